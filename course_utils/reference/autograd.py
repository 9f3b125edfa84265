"""Chapter 6, autograd: derivatives by differences, by hand, and by asking autograd the right way.

Letters: N rows of a batch, V classes or words of a vocabulary; `*batch` stands for any axes before
the last. A vector-Jacobian product (VJP) takes the gradient of a loss with respect to a result, and
returns the gradient with respect to what the result was computed from.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


def numerical_gradient(
    f: Callable[[Tensor], Tensor], x: Float[Tensor, "..."], eps: float = 1e-6
) -> Float[Tensor, "..."]:
    """Gradient of f at x by central differences: (f(x + eps·eᵢ) - f(x - eps·eᵢ)) / (2·eps).

    f: takes a float64 tensor of x's shape, and returns a tensor of one element, with
    any number of axes. x: left as it is. The differences are taken in float64, whatever
    x's dtype; the result has the shape and dtype of x and does not require grad, though
    f may use tensors that do. At most two calls of f for each element, and one more in
    all.
    """
    flat = x.detach().double().flatten()
    gradient = torch.zeros_like(flat)
    for i in range(len(flat)):
        step = torch.zeros_like(flat)
        step[i] = eps
        above, below = f((flat + step).view(x.shape)), f((flat - step).view(x.shape))
        gradient[i] = (above - below).item() / (2 * eps)
    return gradient.view(x.shape).to(x.dtype)


def softmax_vjp(
    y: Float[Tensor, "*batch V"], grad: Float[Tensor, "*batch V"]
) -> Float[Tensor, "*batch V"]:
    """Gradient with respect to x, given y = softmax(x) over the last axis and the gradient with respect to y.

    The Jacobian of one row is diag(y) - y yᵀ; it is multiplied with, never built. y,
    grad: of one dtype, which the result has too, and left as they are.
    """
    inner = (grad * y).sum(dim=-1, keepdim=True)
    return y * (grad - inner)


def cross_entropy_backward(
    logits: Float[Tensor, "N V"], targets: Int[Tensor, "N"], ignore_index: int = -100
) -> Float[Tensor, "N V"]:
    """Gradient of F.cross_entropy, the mean over rows that count, with respect to the logits.

    logits: unnormalised, of any finite size. targets: int64. Both are left as they are.
    Rows whose target is ignore_index do not count: their gradient is zero. ignore_index
    is any integer, perhaps that of a class. Zeros if no row counts. Result: in the
    logits' dtype.
    """
    counts = targets != ignore_index
    gradient = logits.softmax(dim=-1)
    gradient[torch.arange(len(targets)), torch.where(counts, targets, 0)] -= 1.0
    gradient.masked_fill_(~counts[:, None], 0.0)
    return gradient.div_(counts.sum().clamp(min=1))


class StraightThroughRound(torch.autograd.Function):
    """Round to the nearest whole number between low and high; backward as if nothing had been done.

    forward: x to the nearest whole number (halves to the even one), clamped to [low,
    high]; NaN stays NaN. backward: the incoming gradient where x rounds to a value
    inside [low, high], ends included; zero elsewhere (where x was clamped, or is NaN),
    even if the incoming gradient is infinite or NaN. x and the incoming gradient are
    left as they are. Saves one byte an element, with ctx.save_for_backward. Source: the
    straight-through estimator of Bengio, Léonard and Courville (2013), with the
    clipping of torch.fake_quantize_per_tensor_affine.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: int, high: int) -> Tensor:
        """x: any floating-point tensor. Result: same shape and dtype."""
        rounded = x.round()
        ctx.save_for_backward((low <= rounded) & (rounded <= high))
        return rounded.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """grad: of the loss with respect to the result. Returns one gradient for each argument of forward."""
        (inside,) = ctx.saved_tensors
        return torch.where(inside, grad, 0.0), None, None


class SiLU(torch.autograd.Function):
    """x · sigmoid(x), which saves its input and nothing else.

    The derivative is s · (1 + x · (1 - s)) with s = sigmoid(x), recomputed in backward.
    It can be differentiated again. x may be as large as ±10,000: nothing overflows. x
    and the incoming gradient are left as they are. Source: Hendrycks and Gimpel (2016);
    Elfwing et al. (2017).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """x: any floating-point tensor. Result: same shape and dtype."""
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """grad: of the loss with respect to the result. Returns that with respect to x."""
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * s * (1 + x * (1 - s))


def hessian_vector_product(
    f: Callable[[Tensor], Tensor], x: Float[Tensor, "..."], v: Float[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """H v, for the Hessian H of f at x, at the cost of a few backward passes.

    f: returns a tensor of one element, with any number of axes, and may use other
    tensors that require grad: their .grad is left alone. It is called at x and nowhere
    else. x, v: of one shape, and left as they are (x gets neither requires_grad nor
    grad). The Hessian itself, with numel² elements, is never built. Zeros where f is
    linear or constant in x. The result does not require grad. Works under
    torch.no_grad(). Source: Pearlmutter (1994).
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        value = f(x)
        if not value.requires_grad:  # f is constant
            return torch.zeros_like(x)
        (gradient,) = torch.autograd.grad(value, x, create_graph=True, materialize_grads=True)
    if not gradient.requires_grad:  # f is linear
        return torch.zeros_like(x)
    (product,) = torch.autograd.grad(gradient, x, grad_outputs=v, materialize_grads=True)
    return product


def per_sample_gradients(
    loss_fn: Callable[[Tensor, Tensor, Tensor], Tensor],
    w: Float[Tensor, "..."],
    x: Float[Tensor, "N ..."],
    y: Tensor,
) -> Float[Tensor, "N ..."]:
    """Gradient with respect to w of each row's own loss, stacked: result[i] belongs to x[i], y[i].

    loss_fn(w, x, y): the mean loss over the rows of x and y, which come as a batch even
    if it is of one; it may use other tensors that require grad, whose .grad is left
    alone. w, x, y: left as they are, with w's .grad. No Python loop over the rows. The
    result does not require grad. This is what clipping each sample's gradient, as
    differentially private training does, starts from.
    """

    def loss_of_one(w: Tensor, row: Tensor, target: Tensor) -> Tensor:
        return loss_fn(w, row[None], target[None])

    gradients = torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0))
    return gradients(w, x, y).detach()


def gradient_accumulation(
    loss_fn: Callable[[Tensor, Tensor, Tensor], Tensor],
    w: Float[Tensor, "..."],
    x: Float[Tensor, "N ..."],
    y: Tensor,
    micro_batch: int,
) -> Float[Tensor, ""]:
    """Add to w.grad the gradient of the loss on all N rows, seeing `micro_batch` rows at a time.

    loss_fn(w, x, y): the mean loss over the rows of x and y. w: a leaf that requires
    grad; what w.grad holds already stays in the sum. w, x and y keep their values. The
    last micro-batch may be smaller; micro_batch may be larger than N. Returns the mean
    loss over all rows, detached. Memory: one micro-batch's graph at a time.
    """
    total = w.new_zeros(())
    for rows, targets in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        loss = loss_fn(w, rows, targets) * (len(rows) / len(x))
        loss.backward()
        total += loss.detach()
    return total


def saved_bytes(f: Callable[[Tensor], Tensor], x: Float[Tensor, "..."]) -> int:
    """Bytes that autograd saves for backward while it computes f(x), where x requires grad.

    x: left as it is; f gets another tensor on x's storage. Each storage counts once,
    however many saved tensors view it, and counts whole, however little of it they see.
    What is saved for results that f drops counts as well. Result: bytes.
    """
    storages = {}

    def pack(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        storages[storage.data_ptr()] = storage
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        f(x.detach().requires_grad_())
    return sum(storage.nbytes() for storage in storages.values())
