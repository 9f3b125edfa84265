"""Answers to chapter 8 that no declared mistake or alternative covers: rejected, or accepted."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_utils.grading import find, grade
from course_utils.reference import modules as R

WRONG, RIGHT = [], []


def wrong(key, what):
    return lambda answer: WRONG.append(pytest.param(key, answer, id=f"{key}: {what}"))


def right(key, style):
    return lambda answer: RIGHT.append(pytest.param(key, answer, id=f"{key}: {style}"))


@pytest.fixture
def exercise():
    return lambda key: find(f"modules.{key}")


@wrong("count_parameters", "first number trained")
def _(module):
    t = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return (t, t)


@wrong("count_parameters", "dedupe by shape")
def _(module):
    d = {tuple(p.shape): p for p in module.parameters()}.values()
    return (sum(p.numel() for p in d), sum(p.numel() for p in d if p.requires_grad))


@right("count_parameters", "by identity")
def _(module):
    seen = {}
    for _n, p in module.named_parameters(remove_duplicate=False):
        seen[id(p)] = p
    return (
        sum(math.prod(p.size()) for p in seen.values()),
        sum(math.prod(p.size()) for p in seen.values() if p.requires_grad),
    )


@wrong("Linear", "cached transpose")
class _(R.Linear):
    def __init__(self, in_features, out_features, bias=True):
        super().__init__(in_features, out_features, bias)
        self.__dict__["wt"] = self.weight.T

    def forward(self, x):
        y = x @ self.wt
        return y if self.bias is None else y + self.bias


@wrong("Linear", "bias detached")
class _(R.Linear):
    def forward(self, x):
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias.detach()


@right("Linear", "F.linear kaiming")
class _(nn.Module):
    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        self.i, self.o = (in_features, out_features)
        self.weight = nn.Parameter(torch.zeros(out_features, in_features))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if bias:
            self.bias = nn.Parameter((torch.rand(out_features) * 2 - 1) / math.sqrt(in_features))
        else:
            self.bias = None

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self):
        return f"in_features={self.i},  out_features={self.o}, bias={self.bias is not None}"


@wrong("Embedding", "modulo")
class _(R.Embedding):
    def forward(self, ids):
        return super().forward(ids % self.weight.size(0))


@wrong("Embedding", "gradient once per id")
class _(R.Embedding):
    def forward(self, ids):
        _u, inv = ids.unique(return_inverse=True)
        if ids.numel() and (ids.min() < 0 or ids.max() >= len(self.weight)):
            raise IndexError
        y = self.weight.detach()[ids]
        first = torch.zeros_like(ids, dtype=torch.bool)
        flat = inv.flatten()
        f = (
            torch.tensor([i == flat.tolist().index(v) for i, v in enumerate(flat.tolist())]).view(
                ids.shape
            )
            if ids.numel()
            else first
        )
        return torch.where(f[..., None], self.weight[ids], y)


@right("Embedding", "gather")
class _(R.Embedding):
    def forward(self, ids):
        if ids.numel() and (not ((ids >= 0) & (ids < self.weight.shape[0])).all()):
            raise IndexError("x")
        i = ids.reshape(-1, 1).expand(-1, self.weight.shape[1])
        return torch.gather(self.weight, 0, i).reshape(ids.shape + (self.weight.shape[1],))


@wrong("Dropout", "gaussian")
class _(R.Dropout):
    def forward(self, x):
        return (
            x * (1 + torch.randn_like(x) * math.sqrt(self.p / (1 - self.p)))
            if self.training and 0 < self.p < 1
            else x * 0
            if self.training and self.p == 1
            else x
        )


@wrong("Dropout", "sqrt scale")
class _(R.Dropout):
    def forward(self, x):
        return F.dropout(x, self.p) * math.sqrt(1 - self.p) if self.training else x


@wrong("Dropout", "eval detach")
class _(R.Dropout):
    def forward(self, x):
        return super().forward(x) if self.training else x.detach()


@wrong("Dropout", "2p")
class _(R.Dropout):
    def forward(self, x):
        return F.dropout(x, min(1, self.p * 1.1)) if self.training else x


@right("Dropout", "where rand")
class _(R.Dropout):
    def forward(self, x):
        if not self.training or self.p == 0.0:
            return x
        drop = torch.rand(x.numel(), device=x.device).reshape(x.shape) < self.p
        scale = 0.0 if self.p >= 1 else 1 / (1 - self.p)
        return torch.where(drop, torch.zeros_like(x), x * scale)


@wrong("LayerNorm", "affine first")
class _(R.LayerNorm):
    def forward(self, x):
        z = x * self.weight
        z = z if self.bias is None else z + self.bias
        return F.layer_norm(z, z.shape[-1:], eps=self.eps)


@wrong("LayerNorm", "weight+1")
class _(R.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x, x.shape[-1:], self.weight + 1, self.bias, self.eps)


@wrong("LayerNorm", "eps clamp")
class _(R.LayerNorm):
    def forward(self, x):
        c = x - x.mean(-1, keepdim=True)
        y = c / c.square().mean(-1, keepdim=True).clamp_min(self.eps).sqrt() * self.weight
        return y if self.bias is None else y + self.bias


@right("LayerNorm", "std")
class _(R.LayerNorm):
    def forward(self, x):
        c = x.double() - x.double().sum(-1, keepdim=True) / x.shape[-1]
        v = torch.einsum("...d,...d->...", c, c).unsqueeze(-1) / x.shape[-1]
        y = torch.mul(c, (v + self.eps) ** (-0.5)).to(x.dtype) * self.weight
        if self.bias is not None:
            y = y.add(self.bias)
        return y


@wrong("RMSNorm", "eps squared")
class _(R.RMSNorm):
    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + self.eps**2).rsqrt() * self.weight


@wrong("RMSNorm", "bfloat16 stats")
class _(R.RMSNorm):
    def forward(self, x):
        return (
            x
            * (x.bfloat16().square().mean(-1, keepdim=True) + self.eps).rsqrt().to(x.dtype)
            * self.weight
        )


@right("RMSNorm", "float32 forced, as in Llama")
class _(R.RMSNorm):
    def forward(self, x):
        return (x.float() * (x.float().square().mean(-1, keepdim=True) + self.eps).rsqrt()).type_as(
            x
        ) * self.weight


@right("RMSNorm", "norm")
class _(R.RMSNorm):
    def forward(self, x):
        return (
            torch.div(
                x, torch.sqrt(x.float().pow(2).sum(-1, keepdim=True) / x.shape[-1] + self.eps)
            ).type_as(x)
            * self.weight
        )


@wrong("BatchNorm1d", "n = batch only")
class _(R.BatchNorm1d):
    def forward(self, x):
        if self.training and x.ndim == 3:
            rv = self.running_var.clone()
            n = x.shape[0]
            y = super().forward(x)
            v = x.var((0, 2), correction=0).detach()
            with torch.no_grad():
                self.running_var.copy_(rv.lerp(v * n / max(n - 1, 1), self.momentum))
            return y
        return super().forward(x)


@wrong("BatchNorm1d", "cumulative")
class _(R.BatchNorm1d):
    def forward(self, x):
        m = self.momentum
        self.momentum = 1 / (int(self.num_batches_tracked) + 1) if self.training else m
        y = super().forward(x)
        self.momentum = m
        return y


@wrong("BatchNorm1d", "eval leaves grad off")
class _(R.BatchNorm1d):
    def forward(self, x):
        if not self.training:
            with torch.no_grad():
                return super().forward(x)
        return super().forward(x)


@right("BatchNorm1d", "transposed")
class _(R.BatchNorm1d):
    def forward(self, x):
        t = x.transpose(1, -1)
        if self.training:
            flat = t.reshape(-1, t.shape[-1])
            if len(flat) == 1:
                raise ValueError("one")
            mu = flat.mean(0)
            var = flat.var(0, unbiased=False)
            self.num_batches_tracked.add_(1)
            self.running_mean.mul_(1 - self.momentum).add_(mu.detach(), alpha=self.momentum)
            self.running_var.mul_(1 - self.momentum).add_(
                flat.detach().var(0, unbiased=True), alpha=self.momentum
            )
        else:
            mu, var = (self.running_mean.clone(), self.running_var.clone())
        return ((t - mu) / torch.sqrt(var + self.eps) * self.weight + self.bias).transpose(1, -1)


@wrong("MultiHeadSelfAttention", "first head's mask")
class _(R.MultiHeadSelfAttention):
    def forward(self, x, mask=None):
        return super().forward(x, None if mask is None else mask[:, :1])


@wrong("MultiHeadSelfAttention", "causal dropped with mask")
class _(R.MultiHeadSelfAttention):
    def forward(self, x, mask=None):
        c = self.causal
        self.causal = c and mask is None
        y = super().forward(x, mask)
        self.causal = c
        return y


@wrong("MultiHeadSelfAttention", "query detached")
class _(R.MultiHeadSelfAttention):
    def forward(self, x, mask=None):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        a = (
            torch.ones(T, T, dtype=torch.bool).tril()
            if self.causal
            else torch.ones(T, T, dtype=torch.bool)
        )
        a = a if mask is None else a & mask
        return self.proj(
            ((q.detach() @ k.mT / math.sqrt(q.size(-1))).masked_fill(~a, -math.inf).softmax(-1) @ v)
            .transpose(1, 2)
            .reshape(B, T, D)
        )


@right("MultiHeadSelfAttention", "bmm -1e9")
class _(R.MultiHeadSelfAttention):
    def forward(self, x, mask=None):
        B, T, D = x.shape
        H = self.n_head
        d = D // H
        q, k, v = [
            p.reshape(B, T, H, d).transpose(1, 2).reshape(B * H, T, d)
            for p in self.qkv(x).chunk(3, -1)
        ]
        s = torch.bmm(q * d ** (-0.5), k.transpose(1, 2)).view(B, H, T, T)
        if self.causal:
            s = s.masked_fill(torch.triu(torch.ones(T, T, device=x.device), 1) > 0, -1000000000.0)
        if mask is not None:
            s = torch.where(mask, s, torch.tensor(-1000000000.0, dtype=s.dtype))
        p = F.softmax(s, dim=3).view(B * H, T, T)
        return self.proj(torch.bmm(p, v).view(B, H, T, d).permute(0, 2, 1, 3).reshape(B, T, D))


@right("MultiHeadSelfAttention", "no view of empties / F.sdpa is_causal")
class _(R.MultiHeadSelfAttention):
    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_head, -1)).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if mask is not None and self.causal:
            mask = mask & torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal and mask is None
        )
        return self.proj(y.transpose(1, 2).flatten(2))


@wrong("tie_weights", "frozen")
def _(embedding, head):
    if head.weight.shape != embedding.weight.shape:
        raise ValueError
    head.weight = embedding.weight.requires_grad_(False)


@wrong("tie_weights", "returns head")
def _(embedding, head):
    if head.weight.shape != embedding.weight.shape:
        raise ValueError
    head.weight = embedding.weight
    return head


@wrong("tie_weights", "averages")
def _(embedding, head):
    if head.weight.shape != embedding.weight.shape:
        raise ValueError
    embedding.weight.data.add_(head.weight.data).div_(2)
    head.weight = embedding.weight


@right("tie_weights", "_parameters")
def _(embedding, head):
    if list(head.weight.size()) != list(embedding.weight.size()):
        raise ValueError("x")
    head._parameters["weight"] = embedding._parameters["weight"]


@wrong("freeze_except", "grad on buffers / strict only first component")
def _(module, names):
    R.freeze_except(module, [n.split(".")[0] for n in names])


@wrong("freeze_except", "suffix")
def _(module, names):
    ps = list(module.named_parameters(remove_duplicate=False))
    for n in names:
        if not any(((p + ".").startswith(n + ".") or p.endswith("." + n) for p, _ in ps)):
            raise ValueError
    module.requires_grad_(False)
    for p, v in ps:
        if any((p + ".").startswith(n + ".") or p.endswith("." + n) for n in names):
            v.requires_grad_(True)


@wrong("freeze_except", "replaces parameters")
def _(module, names):
    R.freeze_except(module, names)
    for n, p in list(module.named_parameters()):
        o, _, l = n.rpartition(".")
        setattr(
            module.get_submodule(o),
            l,
            nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad),
        )


@right("freeze_except", "recursive")
def _(module, names):
    ps = {}
    for n, p in module.named_parameters(remove_duplicate=False):
        ps.setdefault(p, []).append(n.split("."))
    want = [n.split(".") for n in names]

    def hit(path, w):
        return path[: len(w)] == w

    for w in want:
        if not any(hit(q, w) for qs in ps.values() for q in qs):
            raise ValueError(w)
    for p, qs in ps.items():
        p.requires_grad = any(hit(q, w) for q in qs for w in want)


@wrong("TinyModule", "load partly before raising")
class _(R.TinyModule):
    def load_state_dict(self, state, strict=True):
        mine = self.state_dict()
        for n in mine:
            if n in state:
                if mine[n].shape != state[n].shape:
                    raise RuntimeError
                mine[n].copy_(state[n])
        if strict and mine.keys() != state.keys():
            raise KeyError


@wrong("TinyModule", "register_buffer keeps parameter")
class _(R.TinyModule):
    def register_buffer(self, name, tensor):
        self._buffers[name] = tensor


@wrong("TinyModule", "params include buffers")
class _(R.TinyModule):
    def named_parameters(self, prefix=""):
        seen = set()
        for n, t in self._named_state(prefix):
            if id(t) not in seen:
                seen.add(id(t))
                yield (n, t)


@wrong("TinyModule", "train ignores mode")
class _(R.TinyModule):
    def train(self, mode=True):
        return super().train(True)


@right("TinyModule", "subclass forms")
class _(R.TinyModule):
    def state_dict(self):
        return {n: t.data for n, t in self._named_state("")}

    def named_parameters(self, prefix=""):
        return list(super().named_parameters(prefix))


# ------------------------------------------------------------------ families that once passed


@wrong("count_parameters", "by storage")
def _(module):
    found = {p.untyped_storage().data_ptr(): p for p in module.parameters()}.values()
    return sum(p.numel() for p in found), sum(p.numel() for p in found if p.requires_grad)


@wrong("count_parameters", "each module by its mode")
def _(module):
    total, _ = R.count_parameters(module)
    parts = [p for m in module.modules() if m.training for p in m.parameters(recurse=False)]
    return total, sum(p.numel() for p in set(parts) if p.requires_grad)


@wrong("Linear", "view with a guess of the axes")
class _(R.Linear):
    def forward(self, x):
        flat = x.view(-1, self.weight.shape[1]) if x.ndim > 2 else x
        y = flat @ self.weight.T
        y = y if self.bias is None else y + self.bias
        return y.reshape(*x.shape[:-1], -1) if x.numel() else x @ self.weight.T + y.sum()


@wrong("Linear", "the weight is kept on the class")
class _(R.Linear):
    def __init__(self, in_features, out_features, bias=True):
        super().__init__(in_features, out_features, bias)
        type(self).width = out_features

    def forward(self, x):
        y = x @ self.weight[: self.width].T
        return y if self.bias is None else y + self.bias[: self.width]


@wrong("Linear", "bias registered only where there is one")
class _(nn.Module):
    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        for name, parameter in R.Linear(in_features, out_features, bias).named_parameters():
            setattr(self, name, parameter)

    def forward(self, x):
        return F.linear(x, self.weight, getattr(self, "bias", None))

    def extra_repr(self):
        d_out, d_in = self.weight.shape
        bias = "bias" in self._parameters
        return f"in_features={d_in}, out_features={d_out}, bias={bias}"


@wrong("Dropout", "p above 1 fails only when it is called")
class _(nn.Module):
    def __init__(self, p=0.5):
        super().__init__()
        self.p = p

    def forward(self, x):
        return F.dropout(x, self.p, self.training)


@wrong("Dropout", "whole numbers are not looked at")
class _(R.Dropout):
    def __init__(self, p=0.5):
        super().__init__(p if 0 <= p <= 1 or p % 1 else 0.5)
        self.p = p


@wrong("Dropout", "p is the class's")
class _(R.Dropout):
    def __init__(self, p=0.5):
        super().__init__(p)
        del self.p
        type(self).p = p


@right("Dropout", "zeros without a gradient")
class _(R.Dropout):
    def forward(self, x):
        return torch.zeros_like(x) if self.training and self.p == 1 else super().forward(x)


@wrong("LayerNorm", "eps is the class's")
class _(R.LayerNorm):
    def __init__(self, normalized_shape, eps=1e-5, bias=True):
        super().__init__(normalized_shape, eps, bias)
        del self.eps
        type(self).eps = eps


@wrong("RMSNorm", "the norm of a float16 row")
class _(R.RMSNorm):
    def forward(self, x):
        mean_square = (x.norm(dim=-1, keepdim=True) / x.size(-1) ** 0.5).square()
        return x * torch.rsqrt(mean_square + self.eps) * self.weight


@wrong("RMSNorm", "float32 comes out")
class _(R.RMSNorm):
    def forward(self, x):
        return super().forward(x.float()) if x.dtype != torch.float64 else super().forward(x)


@wrong("MultiHeadSelfAttention", "a mask for the class")
class _(R.MultiHeadSelfAttention):
    past = None

    def forward(self, x, mask=None):
        T, kind = x.size(1), type(self)
        if kind.past is None or kind.past.size(0) < T:
            kind.past = torch.ones(T, T, dtype=torch.bool, device=x.device)
            kind.past = kind.past.tril() if self.causal else kind.past
        past = kind.past[:T, :T]
        self.causal, causal = False, self.causal
        y = super().forward(x, past if mask is None else past & mask)
        self.causal = causal
        return y


@wrong("MultiHeadSelfAttention", "the first mask is kept")
class _(R.MultiHeadSelfAttention):
    def forward(self, x, mask=None):
        if mask is not None:
            mask = self.__dict__.setdefault("kept", mask)
        return super().forward(x, mask)


@right("MultiHeadSelfAttention", "a mask kept as long as it is long enough")
class _(R.MultiHeadSelfAttention):
    def forward(self, x, mask=None):
        T = x.size(1)
        past = self.__dict__.get("past")
        if past is None or past.size(0) < T or past.device != x.device:
            past = self.__dict__["past"] = x.new_ones(T, T).tril().bool()
        allowed = past[:T, :T] if self.causal else torch.ones_like(past[:T, :T])
        q, k, v = (z.unflatten(-1, (self.n_head, -1)).mT.mT for z in self.qkv(x).chunk(3, -1))
        q, k, v = (z.transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, allowed if mask is None else allowed & mask)
        return self.proj(y.transpose(1, 2).flatten(2))


@wrong("freeze_except", "a submodule is enough")
def _(module, names):
    inside = dict(module.named_modules())
    every = dict(module.named_parameters(remove_duplicate=False))
    if any(name not in inside and name not in every for name in names):
        raise ValueError
    R.freeze_except(module, [n for n in names if n in every or list(inside[n].parameters())])


@wrong("TinyModule", "a buffer that an attribute hides")
class _(R.TinyModule):
    def register_buffer(self, name, tensor):
        for registry in (self._parameters, self._children):
            registry.pop(name, None)
        self._buffers[name] = tensor


@wrong("TinyModule", "frozen ones are not saved")
class _(R.TinyModule):
    def state_dict(self):
        named = dict(self.named_parameters())
        frozen = {n for n, p in named.items() if not p.requires_grad}
        return {n: t for n, t in super().state_dict().items() if n not in frozen}


@wrong("TinyModule", "eval stays in the children")
class _(R.TinyModule):
    def train(self, mode=True):
        modes = [(child, child.training) for child in self._children.values()]
        super().train(mode)
        for child, before in modes:
            child.training = before and mode
        return self


@pytest.mark.parametrize(("key", "answer"), WRONG)
def test_wrong_answers_are_rejected(exercise, key, answer):
    assert grade(exercise(key), answer, explain=False).outcome == "failed"


@pytest.mark.parametrize(("key", "answer"), RIGHT)
def test_right_answers_pass(exercise, key, answer):
    verdict = grade(exercise(key), answer)
    assert verdict.outcome == "passed", str(verdict)
