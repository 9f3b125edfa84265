"""Chapter 3, broadcasting and named axes: the rules, what undoes them, and axes by name.

Letters are those of the notation page: B batch, T time, S the keys' time, H heads, D features of one
head, C channels. `kv` is the number of heads that keys and values have, G the query heads for each.
"""

from functools import reduce
from itertools import product
from math import prod
from operator import mul

import torch
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the result when tensors of these shapes are broadcast against one another.

    Shapes are aligned at their last axes, and an axis that is missing in front counts
    as 1. On each axis all sizes other than 1 must be equal, and that is the size of the
    result; where all are 1, it is 1. No shape at all gives (). Raises ValueError where
    sizes other than 1 differ. Source: PyTorch documentation, "Broadcasting semantics".
    """
    ndim = max(map(len, shapes), default=0)
    aligned = [(1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for axis, sizes in enumerate(zip(*aligned, strict=True), start=-ndim):
        others = set(sizes) - {1}
        if len(others) > 1:
            raise ValueError(f"axis {axis}: the sizes {sizes} do not broadcast")
        result.append(max(others, default=1))
    return tuple(result)


def batched_outer(
    x: Float[Tensor, "*batch N"], y: Float[Tensor, "*batch M"]
) -> Float[Tensor, "*batch N M"]:
    """Products of every element of x with every element of y, for each entry of the batch.

    Any size may be 0. Result: outer[..., i, j] = x[..., i] * y[..., j].
    """
    return x[..., :, None] * y[..., None, :]


def unbroadcast(grad: Float[Tensor, "..."], shape: tuple[int, ...]) -> Float[Tensor, "..."]:
    """Sum of grad over the axes along which a tensor of `shape` was repeated to reach grad's shape.

    This is the gradient with respect to that tensor, if grad is the one with respect to
    its broadcast copy. shape: broadcasts to grad's shape, so it has no more axes.
    Result: has `shape` and grad's dtype.
    """
    aligned = (1,) * (grad.ndim - len(shape)) + tuple(shape)
    repeated = [axis for axis, size in enumerate(aligned) if size == 1]
    return (grad.sum(repeated, keepdim=True) if repeated else grad).reshape(shape)


def grouped_query_expand(x: Shaped[Tensor, "B kv T D"], G: int) -> Shaped[Tensor, "B kv G T D"]:
    """View of keys or values in which the G query heads of a group share one head of x.

    x: T may be 0. G: query heads for each head of x, at least 1. Result: result[b, n,
    g] is x[b, n] for every g, so query head h = n * G + g of group n reads x[:, n].
    Source: Ainslie et al. (2023), section 2.
    """
    return x[:, :, None].expand(-1, -1, G, -1, -1)


def attention_scores(
    q: Float[Tensor, "B T H D"], k: Float[Tensor, "B S kv D"]
) -> Float[Tensor, "B H T S"]:
    """Scaled products of all queries with all keys, where groups of query heads share a key head.

    H is a multiple of kv: query head h reads the key head h // (H // kv). B, T and
    S may be 0. Result, in the dtype of q and k: scores[b, h, t, s] =
    (q[b, t, h] · k[b, s, h // (H // kv)]) / √D. Source: Vaswani et al. (2017),
    equation 1; the groups, Ainslie et al. (2023), section 2.
    """
    grouped = q.unflatten(2, (k.size(2), -1))  # (B, T, kv, G, D)
    scores = torch.einsum("btngd,bsnd->bngts", grouped, k)
    return scores.flatten(1, 2) * q.size(-1) ** -0.5


def split_heads(x: Float[Tensor, "B T C"], n_head: int) -> Float[Tensor, "B H T D"]:
    """Channels cut into n_head heads of D = C / n_head neighbours each, and time moved inside.

    Result: heads[b, h, t, d] = x[b, t, h * D + d]. n_head divides C. B and T may be 0.
    """
    return rearrange(x, "B T (H D) -> B H T D", H=n_head)


def merge_heads(heads: Float[Tensor, "B H T D"]) -> Float[Tensor, "B T C"]:
    """Heads side by side again, C = H · D channels: what undoes split_heads. B and T may be 0."""
    return rearrange(heads, "B H T D -> B T (H D)")


def patchify(
    images: Float[Tensor, "B C height width"], size: int
) -> Float[Tensor, "B patches features"]:
    """Images cut into square patches, each flattened into a vector: the tokens of a vision model.

    Patches are in row-major order, from the upper left. Within a patch the row varies
    slowest, then the column, and the channel varies fastest: features = size · size ·
    C. B may be 0; `size` is at least 1. Raises ValueError where `size` does not divide
    height and width. Source: Dosovitskiy et al. (2021), section 3.1.
    """
    if images.size(-2) % size or images.size(-1) % size:
        raise ValueError(f"patches of {size} do not fill an image of {tuple(images.shape[-2:])}")
    return rearrange(images, "B C (i p) (j q) -> B (i j) (p q C)", p=size, q=size)


def rope_rotate(
    x: Float[Tensor, "B T H D"], cos: Float[Tensor, "T half"], sin: Float[Tensor, "T half"]
) -> Float[Tensor, "B T H D"]:
    """Each pair of features turned by its position's angle, the same one in every head.

    D is even, half = D / 2, and feature i is paired with feature i + D / 2. B and T may
    be 0. cos, sin: of the angle of position t and pair i, in float32 or wider. Result:
    (a, b) becomes (a cos - b sin, a sin + b cos), in x's dtype. x is not changed.
    Source: Su et al. (2021), section 3.4.2; the pairing is that of GPT-NeoX and of
    Llama in Transformers.
    """
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]  # (T, 1, half)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


def einsum(equation: str, *operands: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Einstein summation by permuting, broadcasting, one product and one sum.

    equation: a letter for each axis, "ik,kj->ij": operands separated by commas, then
    `->` and the result's letters. Spaces are ignored. No letter stands twice in one
    operand or in the result, and each letter of the result stands in an operand.
    Letters that the result lacks are summed over. operands: one or more, of one dtype,
    which the result has; a letter has the same size in each. Raises ValueError where
    their number is not the equation's. Source: `numpy.einsum`, explicit mode.
    """
    inputs, output = equation.replace(" ", "").split("->")
    summed = sorted(set(inputs) - set(output) - {","})
    letters = [*output, *summed]

    def aligned(x: Tensor, names: str) -> Tensor:
        """x with an axis for every letter, in their order: size 1 where it has none."""
        ordered = x.permute([names.index(letter) for letter in letters if letter in names])
        return ordered[tuple(slice(None) if letter in names else None for letter in letters)]

    pairs = zip(operands, inputs.split(","), strict=True)
    whole = reduce(mul, (aligned(x, names) for x, names in pairs))
    return whole.sum(tuple(range(len(output), len(letters)))) if summed else whole


def einsum_by_loops(equation: str, *operands: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The same, read as loops: one for each letter, the result's outside, the summed ones inside.

    The arguments are those of `einsum`. It is slow, and it is what an equation means.
    """
    inputs, output = equation.replace(" ", "").split("->")
    words = inputs.split(",")
    sizes: dict[str, int] = {}
    for x, word in zip(operands, words, strict=True):
        sizes |= zip(word, x.shape, strict=True)
    letters = [*output, *sorted(set(sizes) - set(output))]
    result = operands[0].new_zeros([sizes[letter] for letter in output])
    for index in product(*(range(sizes[letter]) for letter in letters)):
        at = dict(zip(letters, index, strict=True))  # one number for each letter
        factors = [x[tuple(at[n] for n in word)] for x, word in zip(operands, words, strict=True)]
        result[tuple(at[letter] for letter in output)] += prod(factors)
    return result


def rotary_tables(
    length: int, features: int, base: float = 10_000.0
) -> tuple[Float[Tensor, "T half"], Float[Tensor, "T half"]]:
    """cos and sin of the angles t · base^(-2i / features), for position t and pair i.

    Source: Su et al. (2021), section 3.2.2, equation 15.
    """
    frequencies = base ** (-torch.arange(0, features, 2) / features)
    angles = torch.arange(length)[:, None] * frequencies
    return angles.cos(), angles.sin()
