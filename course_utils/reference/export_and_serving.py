"""Chapter 28, export: a model as a graph of tensor operations, and whether another runtime computes the same.

Letters: B rows, T tokens of each that are read now, C places of a cache, H heads, d features of a head,
L blocks of the model, V tokens in the vocabulary.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from .gpt2 import GPT2

# ------------------------------------------------------------------------------ a graph


def per_row_probs(
    logits: Float[Tensor, "B V"], temperature: Float[Tensor, " B"]
) -> Float[Tensor, "B V"]:
    """Probabilities of the next token, each row with its own temperature, as one graph of tensor operations.

    The softmax of a row's logits / its temperature. Where the temperature is 0, the
    likeliest token has the probability 1 and all others 0; of equally likely tokens the
    one with the smallest id. Computed in float32, in float64 for float64 logits, and
    that is the result's dtype, whatever the temperatures' is. There is at least one
    row, and temperatures are 0 or more; that is not checked. The arguments are not
    changed. `torch.export.export` takes the function, with a B that may change: no
    branch or loop in Python depends on a value or on B.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    divisor = temperature.to(logits.dtype)[:, None]
    best = logits.max(-1, keepdim=True).indices
    greedy = torch.zeros_like(logits).scatter(-1, best, 1.0)
    return torch.where(divisor == 0, greedy, (logits / divisor).softmax(-1))


def export_dynamic(
    model: nn.Module, ids: Int[Tensor, "B T"], max_batch: int, max_tokens: int
) -> ExportedProgram:
    """The model in eval mode as an ExportedProgram for 1 to max_batch rows of 1 to max_tokens tokens.

    model: takes ids, (B, T), as its one positional argument, whatever its name. ids: an
    example of any size, with at least one row and one token, perhaps more than the
    maxima; the program's sizes do not depend on it. If a maximum is 1, that size is the
    constant 1. The program refuses more rows or tokens than the maxima. Afterwards the
    model and each of its submodules is in the mode in which it was, train or eval.
    """
    rows, tokens = min(2, max_batch), min(3, max_tokens)
    example = ids[:1, :1].repeat(rows, tokens)
    sizes = {}
    if max_batch > 1:
        sizes[0] = Dim("B", min=1, max=max_batch)
    if max_tokens > 1:
        sizes[1] = Dim("T", min=1, max=max_tokens)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        return export(model, (example,), dynamic_shapes=(sizes,))
    finally:
        for module, training in modes.items():
            module.training = training


# ------------------------------------------------------------------------------ a cache in a graph


def append_at(
    cache: Float[Tensor, "B H C d"], new: Float[Tensor, "B H T d"], position: Int[Tensor, " B"]
) -> Float[Tensor, "B H C d"]:
    """The cache with T more keys (or values) of each row, from the row's own position on.

    position: how many places of each row are filled; int64. Row b's new ones stand in
    the places position[b] to position[b] + T − 1. The cache has these places; that is
    not checked. All other places keep what they hold. B and T are at least 1. The
    result is a new tensor on the cache's device; the arguments are not changed.
    `torch.export.export` takes the function, with B, T and C that may change: no branch
    or loop in Python depends on them or on a position.
    """
    B, H, T, d = new.shape
    place = position[:, None] + torch.arange(T, device=position.device)
    return cache.scatter(2, place[:, None, :, None].expand(B, H, T, d), new)


def visible_at(
    position: Int[Tensor, " B"], T: int, capacity: int
) -> Bool[Tensor, "B 1 T capacity"]:
    """Which places of the cache each of T new tokens may attend to, once they stand in it.

    position: how many places of each row were filled before. New token t of row b stands in
    place position[b] + t, and attends to that place and all before it: True there. T is at
    least 1. The result is on the device of `position`. `torch.export.export` takes the
    function, too, with B, T and a capacity that may change.
    """
    device = position.device
    place = position[:, None] + torch.arange(T, device=device)  # (B, T)
    return (torch.arange(capacity, device=device) <= place[:, :, None])[:, None]


class DecodeStep(nn.Module):
    """A GPT2 that reads T more tokens of each row, with its caches as arguments and as results.

    All that changes from step to step is a tensor, so one graph serves every step: the
    prompt (T tokens, position 0) and each token after it (T = 1).
    """

    def __init__(
        self,
        model: GPT2,
        append: Callable[[Tensor, Tensor, Tensor], Tensor] = append_at,
        visible: Callable[[Tensor, int, int], Tensor] = visible_at,
    ) -> None:
        """model: in eval mode. It is not copied. append, visible: your own in the place of the book's."""
        super().__init__()
        self.model = model
        self.append: Any = append
        self.visible: Any = visible

    def forward(
        self,
        ids: Int[Tensor, "B T"],
        keys: Float[Tensor, "L B H C d"],
        values: Float[Tensor, "L B H C d"],
        position: Int[Tensor, " B"],
    ) -> tuple[Float[Tensor, "B T V"], Float[Tensor, "L B H C d"], Float[Tensor, "L B H C d"]]:
        """Logits after each of the T tokens, and the caches with their keys and values.

        position: how many tokens of each row the caches hold.
        """
        body: Any = self.model.transformer
        (B, T), C = ids.shape, keys.size(3)
        mask = self.visible(position, T, C)
        x = body.wte(ids) + body.wpe(position[:, None] + torch.arange(T, device=ids.device))
        new_keys, new_values = [], []
        for n, block in enumerate(body.h):
            attention = block.attn
            q, k, v = (
                part.view(B, T, attention.n_head, -1).transpose(1, 2)  # (B, H, T, d)
                for part in attention.c_attn(block.ln_1(x)).chunk(3, dim=2)
            )
            k, v = self.append(keys[n], k, position), self.append(values[n], v, position)
            y = F.scaled_dot_product_attention(q, k, v, mask)
            x = x + attention.c_proj(y.transpose(1, 2).reshape(B, T, -1))
            x = x + block.mlp(block.ln_2(x))
            new_keys.append(k)
            new_values.append(v)
        return (
            self.model.lm_head(body.ln_f(x)),
            torch.stack(new_keys),
            torch.stack(new_values),
        )


# ------------------------------------------------------------------------------ another runtime


def assert_onnx_parity(
    model: Callable[..., Tensor],
    session: Any,
    cases: Iterable[tuple[Tensor, ...]],
    rtol: float = 1e-4,
    atol: float = 1e-4,
) -> float:
    """Raises AssertionError unless the two give the same on every case; the largest difference there was.

    model: called with a case's tensors, gives one tensor; no gradient is recorded.
    session: an onnxruntime.InferenceSession of one output, or an object like it:
    `get_inputs()` lists its inputs, in the order of the model's arguments, each with a
    `name`; `run(None, feeds)`, with NumPy arrays by these names, gives a list of
    arrays. Model and session are called once for each case. If one of them writes into
    what it gets, neither the other nor the cases change. A case's tensors may require
    gradients.

    The outputs are the same if shape and dtype are the same, and for each element
    |model's − session's| ≤ atol + rtol · |model's|, computed in float64 whatever their
    dtype, integers too. An infinity equals only an infinity of its own sign. NaN equals
    nothing, not even another NaN. The result is the largest |model's − session's| of
    all elements of all cases, a float: 0 between equal infinities, and 0 if there are
    no elements. Raises ValueError, before either of the two is called, if there is no
    case or if one has more or fewer tensors than the session has inputs.
    """
    cases, names = list(cases), [one.name for one in session.get_inputs()]
    if not cases or any(len(given) != len(names) for given in cases):
        raise ValueError(f"expected cases of {len(names)} tensors; came {[len(c) for c in cases]}")
    largest = 0.0
    for number, given in enumerate(cases):
        arrays = [x.detach().cpu().clone().numpy() for x in given]
        with torch.no_grad():
            ours = model(*(x.clone() for x in given)).cpu()
        theirs = torch.from_numpy(session.run(None, dict(zip(names, arrays, strict=True)))[0])
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            raise AssertionError(
                f"case {number}: {ours.dtype} {tuple(ours.shape)} of the model, "
                f"{theirs.dtype} {tuple(theirs.shape)} of the session"
            )
        x, y = ours.double(), theirs.double()
        apart = torch.where(x == y, 0.0, (x - y).abs())
        wrong = ~(apart <= atol + rtol * x.abs()) | apart.isinf()
        if wrong.any():
            raise AssertionError(
                f"case {number}: {int(wrong.sum())} of {wrong.numel()} elements differ"
            )
        if apart.numel():
            largest = max(largest, float(apart.max()))
    return largest
