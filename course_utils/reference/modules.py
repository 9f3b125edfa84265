"""Chapter 8, modules: layers from scratch, and the machinery that finds their parameters.

Letters: B sequences in the batch, T positions in each, D features, H heads, d = D / H features of
a head, V words in the vocabulary, N rows, C channels.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """How many numbers the parameters of a module hold: in total, and those that are trained.

    A parameter with several names (tied weights) counts once; buffers do not count. A
    parameter is trained if it requires a gradient.
    """
    sizes = [(p.numel(), p.requires_grad) for p in module.parameters()]
    return sum(n for n, _ in sizes), sum(n for n, trained in sizes if trained)


class Linear(nn.Module):
    """y = x Wᵀ + b, on the last axis of x.

    Parameters: `weight` (out_features, in_features) and `bias` (out_features), which is
    None where bias=False. Both start uniform on ±1/√in_features, as torch.nn.Linear's
    do.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        """in_features, out_features: sizes of the last axis of x and of y."""
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.bias = (
            nn.Parameter(torch.empty(out_features).uniform_(-bound, bound)) if bias else None
        )

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """x: (..., in_features). Returns (..., out_features)."""
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        """What print(module) shows in the brackets: in_features=3, out_features=2, bias=True."""
        d_out, d_in = self.weight.shape
        return f"in_features={d_in}, out_features={d_out}, bias={self.bias is not None}"


class Embedding(nn.Module):
    """A table of vectors, one for each id.

    Parameter: `weight` (num_embeddings, embedding_dim), which starts standard normal.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        """num_embeddings: V, the number of ids. embedding_dim: D, the size of a vector."""
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_embeddings, embedding_dim))

    def forward(self, ids: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch D"]:
        """The vector of each id; makes nothing larger than the result.

        ids: int64 of any shape. Raises IndexError unless 0 ≤ ids < num_embeddings.
        """
        rows = self.weight.index_select(0, ids.flatten())
        return rows.view(*ids.shape, self.weight.size(1))


class LayerNorm(nn.Module):
    """(x − mean) / √(variance + eps) · weight + bias, each vector of the last axis by itself.

    Parameters: `weight` and `bias` (normalized_shape), ones and zeros at first;
    bias=False leaves `bias` None. The variance is the biased one. Mean and variance of
    a float16 or bfloat16 x are taken in float32 or wider; those of a float64 x may be
    taken in float32. x is left as it is. Source: Ba, Kiros and Hinton (2016), section 3.
    """

    def __init__(self, normalized_shape: int, eps: float = 1e-5, bias: bool = True) -> None:
        """normalized_shape: D, the size of the last axis. eps: added to the variance."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(normalized_shape))
        self.bias = nn.Parameter(torch.zeros(normalized_shape)) if bias else None

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """x: (..., D), of the parameters' dtype. Returns the same shape and dtype."""
        z = x if x.dtype == torch.float64 else x.float()
        centred = z - z.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)
        y = (centred * torch.rsqrt(variance + self.eps)).to(x.dtype) * self.weight
        return y if self.bias is None else y + self.bias


class RMSNorm(nn.Module):
    """x / √(mean of x² + eps) · weight, each vector of the last axis by itself.

    Parameter: `weight` (normalized_shape), ones at first. No mean is subtracted and
    nothing is added. The mean square of a float16 x is taken in float32 or wider; that
    of any other x may be taken in float32. x is left as it is. Source: Zhang and
    Sennrich (2019), equation 4; eps under the root as in Llama.
    """

    def __init__(self, normalized_shape: int, eps: float = 1e-6) -> None:
        """normalized_shape: D, the size of the last axis. eps: added to the mean square."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(normalized_shape))

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """x: (..., D), of the parameters' dtype. Returns the same shape and dtype."""
        z = x if x.dtype == torch.float64 else x.float()
        mean_square = z.square().mean(dim=-1, keepdim=True)
        return (z * torch.rsqrt(mean_square + self.eps)).to(x.dtype) * self.weight


class BatchNorm1d(nn.Module):
    """(x − mean) / √(variance + eps) · weight + bias, each channel over the batch.

    Parameters: `weight`, `bias` (num_features), ones and zeros at first. Buffers:
    `running_mean`, `running_var` (num_features), zeros and ones, and
    `num_batches_tracked`, an int64 of shape (), which counts the batches in train mode
    from 0. In train mode the batch's own mean and biased variance normalise, and the
    buffers move: running ← (1 − momentum) · running + momentum · new, where new is the
    batch's mean or its *unbiased* variance. In eval mode the buffers normalise and
    stay. x is left as it is. Source: Ioffe and Szegedy (2015), algorithms 1 and 2.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        """num_features: C. eps: added to the variance. momentum: the weight of the new batch."""
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Float[Tensor, "N C *length"]) -> Float[Tensor, "N C *length"]:
        """x: (N, C) or (N, C, L). Returns the same shape.

        In eval mode N may be 0. Raises ValueError in train mode if a channel has a
        single value: it has no unbiased variance.
        """
        per_channel = (1, -1) + (1,) * (x.ndim - 2)
        if self.training:
            mean, variance = self._batch_statistics(x)
        else:
            mean, variance = self.running_mean, self.running_var
        y = (x - mean.view(per_channel)) * torch.rsqrt(variance.view(per_channel) + self.eps)
        return y * self.weight.view(per_channel) + self.bias.view(per_channel)

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance of each channel; moves the running ones."""
        n = x.numel() // x.size(1)
        if n < 2:
            raise ValueError(f"a channel needs more than one value in train mode; came {n}")
        over = [axis for axis in range(x.ndim) if axis != 1]
        variance, mean = torch.var_mean(x, over, correction=0)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * n / (n - 1), self.momentum)
            self.num_batches_tracked += 1
        return mean, variance


class Dropout(nn.Module):
    """In train mode zeroes each element with probability p and divides the others by 1 − p.

    In eval mode it returns x. x is left as it is. In train mode each call draws a new
    mask, from torch's generator. No parameters, no buffers. Source: Srivastava et al.
    (2014), section 10 for the scaling in training ("inverted" dropout).
    """

    def __init__(self, p: float = 0.5) -> None:
        """p: the probability of zeroing. Raises ValueError unless 0 ≤ p ≤ 1."""
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p is a probability, from 0 to 1; came {p}")
        self.p = p

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """x: any shape. Returns the same shape and dtype, on the same device; p = 1 gives zeros, not
        0 / 0."""
        if not self.training:
            return x
        if self.p == 1:
            return x * 0
        keep = torch.empty_like(x).bernoulli_(1 - self.p)
        return x * keep / (1 - self.p)


class MultiHeadSelfAttention(nn.Module):
    """softmax(q kᵀ / √d) v in n_head heads, each on its own d = d_model / n_head features.

    Submodules: `qkv`, an nn.Linear(d_model, 3 · d_model) that gives the queries, keys
    and values of all heads, in this order, and `proj`, an nn.Linear(d_model, d_model)
    for the result. bias: whether these two have one. No other parameters, and no
    buffers. Source: Vaswani et al. (2017), section 3.2.2.
    """

    def __init__(self, d_model: int, n_head: int, causal: bool = True, bias: bool = True) -> None:
        """causal: a position attends to itself and earlier ones. Raises ValueError unless n_head
        divides d_model."""
        super().__init__()
        if d_model % n_head:
            raise ValueError(f"{n_head} heads cannot share {d_model} features evenly")
        self.n_head, self.causal = n_head, causal
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.proj = nn.Linear(d_model, d_model, bias=bias)

    def forward(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "#B #H #T T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """x: (B, T, D), on any device; B may be 0. Returns the same shape.

        mask: True where a query may attend to a key, broadcast against (B, n_head, T,
        T), and combined with the causal one. Each query must have a key left. x, mask:
        left as they are.
        """
        B, T, D = x.shape
        heads = self.qkv(x).view(B, T, 3, self.n_head, D // self.n_head)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each (B, H, T, d)
        scores = q @ k.transpose(-2, -1) / math.sqrt(D // self.n_head)
        allowed = x.new_ones(T, T, dtype=torch.bool)
        if self.causal:
            allowed = allowed.tril()
        if mask is not None:
            allowed = allowed & mask
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        y = weights @ v
        return self.proj(y.transpose(1, 2).reshape(B, T, D))


def tie_weights(embedding: nn.Embedding, head: nn.Linear) -> None:
    """Make the embedding's weight the head's too: one parameter with two names.

    embedding: (V, D). head: from D to V features; its own weight is given up, its bias
    stays. Raises ValueError if the shapes differ, and then changes nothing. Source:
    Press and Wolf (2017).
    """
    if head.weight.shape != embedding.weight.shape:
        raise ValueError(
            f"cannot tie {tuple(head.weight.shape)} to {tuple(embedding.weight.shape)}"
        )
    head.weight = embedding.weight


def freeze_except(module: nn.Module, names: Sequence[str]) -> None:
    """Train the parameters that are listed, by name or by a submodule's name; freeze all others.

    names: whole and dotted, as in named_parameters: "head" means all of the submodule
    `head` (and nothing of `head2`), "head.bias" one parameter. A parameter with several
    names (it or its submodule is tied) is trained if any of them is meant. Raises
    ValueError for a name that means no parameter (a buffer's, or that of a submodule
    without parameters), and then changes nothing.
    """
    every = list(module.named_parameters(remove_duplicate=False))
    listed = {
        name: [p for path, p in every if path == name or path.startswith(name + ".")]
        for name in names
    }
    for name, found in listed.items():
        if not found:
            raise ValueError(f"no parameter is called {name!r} or lies in it")
    module.requires_grad_(False)
    for found in listed.values():
        for parameter in found:
            parameter.requires_grad_(True)


class TinyModule:
    """nn.Module's bookkeeping from nothing: attributes that register themselves."""

    def __init__(self) -> None:
        """No parameters, buffers or children yet; `training` is True. Subclasses call it first."""
        for registry in ("_parameters", "_buffers", "_children"):
            object.__setattr__(self, registry, {})
        self.training = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Register a Parameter or TinyModule; a tensor assigned to a buffer's name becomes that buffer."""
        if isinstance(value, nn.Parameter):
            kind = self._parameters
        elif isinstance(value, TinyModule):
            kind = self._children
        elif name in self._buffers and isinstance(value, Tensor):
            kind = self._buffers
        else:
            kind = self.__dict__
        self._put(kind, name, value)

    def __getattr__(self, name: str) -> Any:
        """The parameter, buffer or child of this name. Raises AttributeError if there is none."""
        for registry in ("_parameters", "_buffers", "_children"):
            found = self.__dict__.get(registry, {})
            if name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def register_buffer(self, name: str, tensor: Tensor) -> None:
        """Keep a tensor that belongs to the state and is not trained."""
        self._put(self._buffers, name, tensor)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Hand the arguments to `forward`, which a subclass defines, and return its result."""
        return self.forward(*args, **kwargs)

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, nn.Parameter]]:
        """(dotted name, parameter), each once: own, then each child's; prefix "m" gives "m.weight"."""
        seen = set()
        for name, tensor in self._named_state(prefix and prefix + "."):
            if isinstance(tensor, nn.Parameter) and id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor

    def state_dict(self) -> dict[str, Tensor]:
        """All parameters and buffers, each under all its dotted names, detached and not copied."""
        return {name: tensor.detach() for name, tensor in self._named_state("")}

    def load_state_dict(self, state: Mapping[str, Tensor], strict: bool = True) -> None:
        """Copy in place, or change nothing and raise: KeyError (names), else RuntimeError (shapes)."""
        mine = dict(self._named_state(""))
        if strict and mine.keys() != state.keys():
            raise KeyError(f"missing or unexpected: {sorted(mine.keys() ^ state.keys())}")
        shared = [name for name in mine if name in state]
        for name in shared:
            if mine[name].shape != state[name].shape:
                raise RuntimeError(f"{name}: {mine[name].shape} is not {state[name].shape}")
        with torch.no_grad():
            for name in shared:
                mine[name].copy_(state[name])

    def train(self, mode: bool = True) -> "TinyModule":
        """Set `training` to `mode`, here and in all children, however deep. Returns the module."""
        self.training = mode
        for child in self._children.values():
            child.train(mode)
        return self

    def _put(self, kind: dict[str, Any], name: str, value: Any) -> None:
        for other in (self._parameters, self._buffers, self._children, self.__dict__):
            if other is not kind:
                other.pop(name, None)
        kind[name] = value

    def _named_state(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in (self._parameters | self._buffers).items():
            yield prefix + name, tensor
        for name, child in self._children.items():
            yield from child._named_state(f"{prefix}{name}.")
