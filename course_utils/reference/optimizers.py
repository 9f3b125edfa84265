"""Chapter 10, optimizers: from a gradient to a step, each from its update rule.

Every class is a `torch.optim.Optimizer`: hyper-parameters live in `param_groups`, everything that is
remembered in `state`, so that `state_dict` and `load_state_dict` work as they are. The plain classes
loop over the parameters; those named Foreach run each operation once for all of them. Names of
arguments and of state are torch's.
"""
# mypy: disable-error-code="override"
# (torch's own step takes a closure too, which only LBFGS needs)

from collections.abc import Iterator
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, in the form of `torch.optim.SGD`.

    b ← momentum·b + (1 − dampening)·g, from b = g at the parameter's first gradient; p
    ← p − lr·b, or with Nesterov's momentum p ← p − lr·(g + momentum·b). g is the
    gradient, negated if maximize, plus weight_decay·p. Without momentum b = g, whatever
    dampening is, and there is no state. Parameters change in place, one at a time; one
    whose gradient is None stays as it is; gradients are left alone. Options are read
    from the group in each step; b is kept in `self.state`. The constructor raises
    ValueError for nesterov unless momentum is above 0 and dampening is 0. Source:
    Sutskever et al. (2013), section 2.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        maximize: bool = False,
    ):
        """params: parameters, or param groups: dicts of parameters with options of their own."""
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov's momentum needs a momentum above 0 and no dampening")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = -p.grad if group["maximize"] else p.grad
                if group["weight_decay"]:
                    grad = grad.add(p, alpha=group["weight_decay"])
                if momentum:
                    state = self.state[p]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = grad.clone()
                    else:
                        buffer = state["momentum_buffer"].mul_(momentum)
                        buffer.add_(grad, alpha=1 - group["dampening"])
                    buffer = state["momentum_buffer"]
                    grad = grad.add(buffer, alpha=momentum) if group["nesterov"] else buffer
                p.add_(grad, alpha=-lr)


class UpdateRule(Optimizer):
    """An optimizer whose hyper-parameters stand in its class, as `defaults`. Subclasses write `step`."""

    def __init__(self, params: ParamsT, **options: Any):
        """params: parameters, or param groups: dicts of parameters with options of their own.

        options: hyper-parameters that differ from the defaults. Raises TypeError for others.
        """
        if unknown := options.keys() - self.defaults.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        super().__init__(params, {**self.defaults, **options})


class AdaGrad(UpdateRule):
    """Each coordinate's step, divided by the root of the sum of all its squared gradients.

    s ← s + g², from s = 0; p ← p − lr·g / (√s + eps). g is the gradient, negated if
    maximize, plus weight_decay·p. Parameters change in place; one without gradient
    stays as it is; gradients are left alone. Options are read from the group in each
    step. State for each parameter, in `self.state`: one tensor of its shape and dtype,
    and at most single numbers besides. Equal to `torch.optim.Adagrad` with lr_decay =
    0. Source: Duchi et al. (2011).
    """

    defaults = {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.0, "maximize": False}

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            lr, eps = group["lr"], group["eps"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = -p.grad if group["maximize"] else p.grad
                if group["weight_decay"]:
                    grad = grad.add(p, alpha=group["weight_decay"])
                state = self.state[p]
                if not state:
                    state["sum"] = torch.zeros_like(p)
                total = state["sum"].addcmul_(grad, grad)
                p.addcdiv_(grad, total.sqrt().add_(eps), value=-lr)


class RMSProp(UpdateRule):
    """AdaGrad that forgets: a moving average in place of the sum.

    v ← alpha·v + (1 − alpha)·g²; with d = g / (√v + eps), p ← p − lr·d, or with
    momentum b ← momentum·b + d and p ← p − lr·b. v and b begin at 0. g is the gradient,
    negated if maximize, plus weight_decay·p. Parameters change in place; one without
    gradient stays as it is; gradients are left alone. Options are read from the group
    in each step. State for each parameter, in `self.state`: one tensor of its shape and
    dtype, two with momentum, and at most single numbers besides. Equal to
    `torch.optim.RMSprop` with centered = False. Source: Tieleman and Hinton (2012).
    """

    defaults = {
        "lr": 1e-2,
        "alpha": 0.99,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "momentum": 0.0,
        "maximize": False,
    }

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            lr, eps = group["lr"], group["eps"]
            alpha, momentum = group["alpha"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = -p.grad if group["maximize"] else p.grad
                if group["weight_decay"]:
                    grad = grad.add(p, alpha=group["weight_decay"])
                state = self.state[p]
                if not state:
                    state["square_avg"] = torch.zeros_like(p)
                    if momentum:
                        state["momentum_buffer"] = torch.zeros_like(p)
                square = state["square_avg"].mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
                direction = grad / square.sqrt().add_(eps)
                if momentum:
                    direction = state["momentum_buffer"].mul_(momentum).add_(direction)
                p.add_(direction, alpha=-lr)


class Adam(UpdateRule):
    """Moving averages of the gradient and of its square, both corrected for their start at zero.

    m ← β₁·m + (1 − β₁)·g; v ← β₂·v + (1 − β₂)·g²; p ← p − lr·m̂ / (√v̂ + eps), where m̂
    = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ), and t counts the steps of this parameter from
    1. g is the gradient, negated if maximize, plus weight_decay·p. Parameters change in
    place, one at a time; one without gradient stays as it is; gradients are left alone.
    State for each parameter, in `self.state`, named as torch names it, so that torch's
    checkpoints load: `exp_avg` (m) and `exp_avg_sq` (v), of its shape and dtype, and
    `step` (t, a float32 tensor; 1 − βᵗ is computed from a Python number). Options are
    read from the group in each step; such a checkpoint brings further ones, which are
    ignored. Source: Kingma and Ba (2015), Algorithm 1.
    """

    defaults = {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "maximize": False,
    }

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            lr, (beta1, beta2), eps = group["lr"], group["betas"], group["eps"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = -p.grad if group["maximize"] else p.grad
                if group["weight_decay"]:
                    grad = grad.add(p, alpha=group["weight_decay"])
                state = self.state[p]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
                m, v, t = state["exp_avg"], state["exp_avg_sq"], state["step"].item()
                m.lerp_(grad, 1 - beta1)
                v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
                p.addcdiv_(m_hat, v_hat.sqrt().add_(eps), value=-lr)


class AdamW(UpdateRule):
    """Adam whose weight decay does not pass through the averages.

    First p ← (1 − lr·weight_decay)·p, then Adam's step from the gradient alone, negated
    if maximize. Parameters change in place, one at a time; one without gradient stays
    as it is, undecayed; gradients are left alone. State (`exp_avg`, `exp_avg_sq` and
    `step`) and options are as in Adam. Equal to `torch.optim.AdamW`, whose checkpoints
    load; further options in the groups are ignored. Source: Loshchilov and Hutter
    (2019), Algorithm 2, with the decay multiplied by lr.
    """

    defaults = {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 1e-2,
        "maximize": False,
    }

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            lr, (beta1, beta2), eps = group["lr"], group["betas"], group["eps"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = -p.grad if group["maximize"] else p.grad
                state = self.state[p]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
                m, v, t = state["exp_avg"], state["exp_avg_sq"], state["step"].item()
                p.mul_(1 - lr * group["weight_decay"])
                m.lerp_(grad, 1 - beta1)
                v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
                p.addcdiv_(m_hat, v_hat.sqrt().add_(eps), value=-lr)


class ForeachAdamW(UpdateRule):
    """AdamW in which each operation runs once for all parameters of a group, not once for each.

    The same arguments, steps and state as AdamW (`exp_avg`, `exp_avg_sq` and `step`, a
    float32 tensor); it leaves alone and ignores the same. A group may have
    no gradient at all. Each operation on a list (`torch._foreach_mul_` and its kin)
    takes all tensors at once, so the number of operations, once the state is made, does
    not grow with the number of parameters. Source: `_multi_tensor_adam`,
    torch/optim/adam.py.
    """

    defaults = {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 1e-2,
        "maximize": False,
    }

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            grads = [p.grad for p in params]
            if group["maximize"]:
                grads = list(torch._foreach_neg(grads))
            states = [self.state[p] for p in params]
            for p, state in zip(params, states, strict=True):
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
            ms = [state["exp_avg"] for state in states]
            vs = [state["exp_avg_sq"] for state in states]
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)
            ts = [step.item() for step in steps]
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            torch._foreach_lerp_(ms, grads, 1 - beta1)
            torch._foreach_mul_(vs, beta2)
            torch._foreach_addcmul_(vs, grads, grads, 1 - beta2)
            roots = torch._foreach_sqrt(vs)
            torch._foreach_div_(roots, [sqrt(1 - beta2**t) for t in ts])
            torch._foreach_add_(roots, group["eps"])
            torch._foreach_addcdiv_(params, ms, roots, [-lr / (1 - beta1**t) for t in ts])


# ------------------------------------------------------------------------- the others, on lists


def _with_gradients(group: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters of a group that have a gradient, and these: negated to maximize, with L2."""
    params = [p for p in group["params"] if p.grad is not None]
    grads = [p.grad for p in params]
    if params and group["maximize"]:
        grads = list(torch._foreach_neg(grads))
    if params and group["weight_decay"]:
        grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
    return params, grads


def _state(optimizer: Optimizer, params: list[Tensor], name: str) -> list[Tensor]:
    """One tensor of the state for each parameter, zeros where there was none."""
    for p in params:
        if name not in optimizer.state[p]:
            optimizer.state[p][name] = torch.zeros_like(p)
    return [optimizer.state[p][name] for p in params]


class ForeachSGD(SGD):
    """SGD in which each operation runs once for all parameters: the same steps and state."""

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            params, grads = _with_gradients(group)
            if not params:
                continue
            momentum = group["momentum"]
            if momentum:
                new = [p for p in params if "momentum_buffer" not in self.state[p]]
                buffers = _state(self, params, "momentum_buffer")
                torch._foreach_mul_(buffers, momentum)
                if new and group["dampening"]:  # a first gradient is not dampened
                    for p, buffer, grad in zip(params, buffers, grads, strict=True):
                        first = any(p is q for q in new)
                        buffer.add_(grad, alpha=1 if first else 1 - group["dampening"])
                else:
                    torch._foreach_add_(buffers, grads, alpha=1 - group["dampening"])
                if group["nesterov"]:  # in two parts: a sum of both lists would be one more list
                    torch._foreach_add_(params, grads, alpha=-group["lr"])
                    torch._foreach_add_(params, buffers, alpha=-group["lr"] * momentum)
                    continue
                grads = buffers
            torch._foreach_add_(params, grads, alpha=-group["lr"])


class ForeachAdaGrad(AdaGrad):
    """AdaGrad in which each operation runs once for all parameters: the same steps and state."""

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            params, grads = _with_gradients(group)
            if not params:
                continue
            sums = _state(self, params, "sum")
            torch._foreach_addcmul_(sums, grads, grads, 1)
            roots = torch._foreach_sqrt(sums)
            torch._foreach_add_(roots, group["eps"])
            torch._foreach_addcdiv_(params, grads, roots, -group["lr"])


class ForeachRMSProp(RMSProp):
    """RMSProp in which each operation runs once for all parameters: the same steps and state."""

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            params, grads = _with_gradients(group)
            if not params:
                continue
            squares = _state(self, params, "square_avg")
            torch._foreach_mul_(squares, group["alpha"])
            torch._foreach_addcmul_(squares, grads, grads, 1 - group["alpha"])
            roots = torch._foreach_sqrt(squares)
            torch._foreach_add_(roots, group["eps"])
            if group["momentum"]:
                buffers = _state(self, params, "momentum_buffer")
                torch._foreach_mul_(buffers, group["momentum"])
                torch._foreach_addcdiv_(buffers, grads, roots)
                torch._foreach_add_(params, buffers, alpha=-group["lr"])
            else:
                torch._foreach_addcdiv_(params, grads, roots, -group["lr"])


class ForeachAdam(Adam):
    """Adam in which each operation runs once for all parameters: the same steps and state."""

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            params, grads = _with_gradients(group)
            if not params:
                continue
            lr, (beta1, beta2) = group["lr"], group["betas"]
            ms, vs = _state(self, params, "exp_avg"), _state(self, params, "exp_avg_sq")
            for p in params:
                self.state[p].setdefault("step", torch.tensor(0.0))
            steps = [self.state[p]["step"] for p in params]
            torch._foreach_add_(steps, 1)
            ts = [step.item() for step in steps]
            torch._foreach_lerp_(ms, grads, 1 - beta1)
            torch._foreach_mul_(vs, beta2)
            torch._foreach_addcmul_(vs, grads, grads, 1 - beta2)
            roots = torch._foreach_sqrt(vs)
            torch._foreach_div_(roots, [sqrt(1 - beta2**t) for t in ts])
            torch._foreach_add_(roots, group["eps"])
            torch._foreach_addcdiv_(params, ms, roots, [-lr / (1 - beta1**t) for t in ts])


# ------------------------------------------------------------------------- matrices


def newton_schulz(
    x: Float[Tensor, "n m"], steps: int = 5, eps: float = 1e-7
) -> Float[Tensor, "n m"]:
    """x with its singular values pushed towards 1: roughly U Vᵀ where x = U S Vᵀ.

    Divides x by its Frobenius norm, or by eps if that is larger; then `steps` times,
    perhaps 0, x ← a·x + b·(x xᵀ) x + c·(x xᵀ)² x with a, b, c = 3.4445, -4.7750,
    2.0315. A tall matrix is transposed first and back at the end, so that x xᵀ has the
    smaller size. dtype: that of x throughout, float16 and bfloat16 too. The caller's x
    stays as it is. Source: Jordan et al. (2024), Muon.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Muon(Optimizer):
    """Momentum whose update is made orthogonal: for the weight matrices inside a model.

    b ← momentum·b + (1 − momentum)·g, with b = 0 at first; u = newton_schulz in `dtype`
    of b, or with nesterov of (1 − momentum)·g + momentum·b; p ← (1 − lr·weight_decay)·p
    − lr·√max(1, n / m)·u for an (n, m) parameter. Parameters change in place; one
    without gradient is left alone, and so are gradients. Options are read from the
    group in each step. State, in `self.state`: one tensor of the parameter's shape and
    dtype. With the default dtype equal to `torch.optim.Muon`, but for bfloat16
    parameters without nesterov. Source: Jordan et al. (2024).
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        steps: int = 5,
        dtype: torch.dtype = torch.bfloat16,
    ):
        """params: parameters, or param groups. steps: iterations of newton_schulz. dtype: what it
        computes in. Raises ValueError if a parameter of any group does not have exactly
        two axes."""
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "steps": steps,
            "dtype": dtype,
        }
        super().__init__(params, defaults)
        shapes = [tuple(p.shape) for group in self.param_groups for p in group["params"]]
        if any(len(shape) != 2 for shape in shapes):
            raise ValueError(f"Muon is for matrices; came parameters of shapes {shapes}")

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, state = p.grad, self.state[p]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(p)
                buffer = state["momentum_buffer"].lerp_(grad, 1 - momentum)
                update = grad.lerp(buffer, momentum) if group["nesterov"] else buffer
                update = newton_schulz(update.to(group["dtype"]), group["steps"])
                p.mul_(1 - lr * group["weight_decay"])
                p.add_(update, alpha=-lr * sqrt(max(1, p.size(0) / p.size(1))))


# ------------------------------------------------------------------------- groups and bytes


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two param groups: matrices, which decay, and vectors and scalars, which do not.

    A trainable parameter with two or more axes, of any sizes (weights, embeddings),
    goes into the first group, with weight_decay; the rest (biases, gains of norms) into
    the second, with 0. A group has "params", perhaps none, and "weight_decay", nothing
    else. Each parameter comes once, tied or not; frozen ones (requires_grad False) not
    at all. Source: nanoGPT, `configure_optimizers`.
    """
    params = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]


def optimizer_state_bytes(optimizer: Optimizer) -> int:
    """Bytes of memory behind all tensors in `optimizer.state`.

    Tensors, of any dtype, may sit in lists, tuples and dicts of the state, at any
    depth, and under keys that are no parameters. A storage counts in full, and once,
    however many tensors view it. Keys, and what is no tensor, count nothing.
    """
    storages = {}
    for tensor in _tensors(list(optimizer.state.values())):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested lists, tuples and dicts."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from _tensors(item)
