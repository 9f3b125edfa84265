"""Chapter 13, mixed precision: what autocast casts, loss scaling, master weights, scaled FP8.

Letters: M, K and N are the axes of a matrix product (M, K) · (K, N). A *scale* is always a power
of two here, so that multiplying by it and dividing by it round nothing.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.optim import Optimizer

_LOWER_PRECISION = frozenset({"linear", "matmul"})
_FLOAT32 = {
    "cpu": frozenset({"cross_entropy", "mse_loss", "prod"}),
    "cuda": frozenset(
        [
            "cross_entropy",
            "cumsum",
            "exp",
            "layer_norm",
            "log_softmax",
            "mse_loss",
            "norm",
            "pow",
            "prod",
            "rsqrt",
            "softmax",
            "sum",
        ]
    ),
}

OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "linear": lambda x, y: F.linear(x, y),
    "matmul": lambda x, y: x @ y,
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "cat": lambda x, y: torch.cat([x, y]),
    "mse_loss": lambda x, y: F.mse_loss(x, y),
    "cross_entropy": lambda x: F.cross_entropy(
        x, torch.zeros(len(x), dtype=torch.long).to(x.device)
    ),
    "softmax": lambda x: F.softmax(x, dim=-1),
    "log_softmax": lambda x: F.log_softmax(x, dim=-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "prod": lambda x: x.prod(),
    "cumsum": lambda x: x.cumsum(0),
    "norm": lambda x: x.norm(),
    "exp": lambda x: x.exp(),
    "pow": lambda x: x.pow(3.0),
    "rsqrt": lambda x: x.rsqrt(),
    "relu": lambda x: x.relu(),
    "gelu": lambda x: F.gelu(x),
}
"""The operations whose autocast behaviour the chapter looks at, on one or two (4, 4) inputs."""


def run_under_autocast(
    op: str, inputs: Sequence[torch.dtype], low: torch.dtype, device: str = "cpu"
) -> torch.dtype:
    """Run one of OPERATIONS under autocast to `low`, and say what dtype came out.

    inputs: the dtype of each input. device: on "cpu" the operation really runs. For
    "cuda" nothing is computed and no GPU is needed: fake tensors, which have a device,
    a shape and a dtype but no numbers, go through torch's own CUDA autocast rules and
    stop there.
    """
    function = OPERATIONS[op]
    if device == "cpu":
        with torch.autocast("cpu", dtype=low):
            return function(*(torch.ones(4, 4, dtype=dtype) for dtype in inputs)).dtype
    was_enabled, was = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    with FakeTensorMode():
        tensors = [torch.ones(4, 4, dtype=dtype, device=device) for dtype in inputs]
        torch.set_autocast_enabled(device, True)  # torch.autocast("cuda") refuses without a GPU
        torch.set_autocast_dtype(device, low)
        try:
            return function(*tensors).dtype
        finally:
            torch.set_autocast_enabled(device, was_enabled)
            torch.set_autocast_dtype(device, was)
            torch.clear_autocast_cache()


def autocast_dtype(
    op: str, inputs: tuple[torch.dtype, ...], low: torch.dtype, device: str = "cpu"
) -> torch.dtype:
    """Dtype of the result of `op` under `torch.autocast(device, dtype=low)`.

    op: a name of the chapter's table ("linear", "softmax", "add", …). inputs: the dtype
    of each tensor it is given, floating point. low: bfloat16 or float16. device: "cpu"
    or "cuda". Autocast leaves an operation alone if one of its inputs is float64.
    Source: PyTorch documentation, "Automatic Mixed Precision package", autocast op
    reference.
    """
    widest = reduce(torch.promote_types, inputs)
    if widest == torch.float64:
        return widest
    if op in _LOWER_PRECISION:
        return low
    return torch.float32 if op in _FLOAT32[device] else widest


def loss_scale_history(
    largest: Sequence[float], init_scale: float = 2.0**16, growth_interval: int = 2000
) -> tuple[list[float], list[bool]]:
    """The loss scale at each step of a run in FP16, and which of its steps were skipped.

    largest: for each step the largest |gradient|, before scaling; it may be inf or NaN.
    A step is skipped if its largest gradient times the scale, rounded to float16, is
    not finite; the scale then halves for the next one. It doubles after
    `growth_interval` good steps in a row, counted from its last change. Returns
    (scales, skipped); scales[i] is the one that step i was run with. Source: the rule
    of torch.amp.GradScaler; loss scaling itself: Micikevicius et al. (2018), section
    3.2.
    """
    scale, good = init_scale, 0
    scales, skipped = [], []
    for size in largest:
        scales.append(scale)
        overflow = not bool(torch.tensor(size * scale).half().isfinite())
        skipped.append(overflow)
        good = 0 if overflow else good + 1
        if overflow:
            scale /= 2
        elif good == growth_interval:
            scale, good = scale * 2, 0
    return scales, skipped


class GradScaler:
    """Dynamic loss scaling by the rule of torch.amp.GradScaler, for factors that are powers of two.

    Grows after `growth_interval` good updates in a row, backs off after an inf or NaN;
    either begins the count anew. The scale may fall below 1 and rise above 2¹⁶."""

    def __init__(
        self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
    ) -> None:
        """No update has been counted yet, and no optimizer unscaled."""
        self._scale = init_scale
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._growth_tracker = 0
        self._found_inf: dict[int, bool] = {}

    def get_scale(self) -> float:
        """The scale that the next loss will be multiplied by."""
        return self._scale

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale; its backward scales every gradient."""
        return loss * self._scale

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide its gradients by the scale, in place; note inf or NaN. RuntimeError if twice before update."""
        if id(optimizer) in self._found_inf:
            raise RuntimeError("unscale_() has already been called since the last update()")
        params = [p for group in optimizer.param_groups for p in group["params"]]
        grads = [p.grad for p in params if p.grad is not None]
        self._found_inf[id(optimizer)] = not all(bool(g.isfinite().all()) for g in grads)
        for g in grads:
            g.div_(self._scale)

    def step(self, optimizer: Optimizer) -> None:
        """Unscale it unless that is done; step it, unless its unscaling met inf or NaN, changed since or not."""
        if id(optimizer) not in self._found_inf:
            self.unscale_(optimizer)
        if not self._found_inf[id(optimizer)]:
            optimizer.step()

    def update(self) -> None:
        """Back off if any optimizer met an inf or NaN, else count, and grow when it is time."""
        if any(self._found_inf.values()):
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
        else:
            self._growth_tracker += 1
            if self._growth_tracker == self._growth_interval:
                self._scale *= self._growth_factor
                self._growth_tracker = 0
        self._found_inf.clear()

    def state_dict(self) -> dict[str, Any]:
        """A new dict of what a checkpoint needs, so that a resumed run goes on with the same scales."""
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken, whatever this object was built with."""
        self._scale = state["scale"]
        self._growth_factor = state["growth_factor"]
        self._backoff_factor = state["backoff_factor"]
        self._growth_interval = state["growth_interval"]
        self._growth_tracker = state["_growth_tracker"]


def amp_step(
    loss: Float[Tensor, ""], optimizer: Optimizer, scaler: torch.amp.GradScaler, max_norm: float
) -> Float[Tensor, ""]:
    """One optimizer step from a loss, with loss scaling and clipping by the global norm.

    loss: unscaled, with its graph. max_norm: bound on the norm of the *true* gradients
    of all of the optimizer's parameters. Returns that norm before clipping. What
    `.grad` holds beforehand plays no part. A step with an inf or NaN gradient changes
    no parameter and lowers the scale.
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


def bf16_master_step(
    weight: Float[Tensor, "*shape"],
    master: Float[Tensor, "*shape"],
    grad: Float[Tensor, "*shape"],
    lr: float,
) -> None:
    """One step of gradient descent on a BF16 weight that has an FP32 master copy, in place.

    weight: the bfloat16 parameter that the model computes with. master: the same in
    float32, which the update goes to. grad: bfloat16, left alone. Afterwards `weight`
    is `master` rounded to nearest. Source: Micikevicius et al. (2018), section 3.1.
    """
    with torch.no_grad():
        master.sub_(lr * grad.to(master.dtype))
        weight.copy_(master)


def power_of_two_scale(amax: float, dtype: torch.dtype) -> float:
    """The largest power of two that takes |values| up to `amax` into the range of `dtype`.

    Returns 1.0 for amax = 0: a tensor of zeros needs no scale.
    """
    if amax == 0:
        return 1.0
    return 2.0 ** math.floor(math.log2(torch.finfo(dtype).max / amax))


def fp8_scaled_matmul(
    a: Float[Tensor, "M K"],
    b: Float[Tensor, "K N"],
    dtype: torch.dtype = torch.float8_e4m3fn,
    amax_a: float | None = None,
    amax_b: float | None = None,
) -> Float[Tensor, "M N"]:
    """a @ b with both factors rounded to FP8, each with one scale for the whole tensor.

    dtype: float8_e4m3fn or float8_e5m2. amax_a, amax_b: the largest |value| to make
    room for, as remembered from earlier steps; None: the tensor's own, which is finite.
    With a remembered one, what lies beyond saturates at the largest finite value, and a
    NaN stays NaN. Scales are powers of two (`power_of_two_scale`). Products are summed
    in float32; the result has the dtype of a. Source: Micikevicius et al. (2022).
    """
    limit = torch.finfo(dtype).max

    def rounded(x: Tensor, amax: float | None) -> tuple[Tensor, float]:
        if amax is None:
            amax = float(x.abs().max())
        scale = power_of_two_scale(amax, dtype)
        return (x * scale).clamp(-limit, limit).to(dtype).float(), scale

    (qa, scale_a), (qb, scale_b) = rounded(a, amax_a), rounded(b, amax_b)
    return ((qa @ qb) / (scale_a * scale_b)).to(a.dtype)
