"""Draws: what random cases are made of, the same for a seed on every machine."""

import inspect
import math
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import configuration
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from torch import Tensor

from course_utils.grading.driving.case import Case
from course_utils.grading.pytrees.serialization import dumps
from course_utils.settings import home


def collect(body: Callable[..., Iterator[Case]], count: int, seed: int) -> list[Case]:
    """The cases that a generator yields in `count` hypothesis draws, without repeats.

    The same seed gives the same cases on every machine and whatever else is loaded.
    """
    import hypothesis
    from hypothesis import strategies as st

    found: dict[bytes, Case] = {}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        backend=_BY_SEED_ALONE,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.data())
    def run(data: Any) -> None:
        for case in body(data.draw):
            found.setdefault(dumps(case.given), case)

    run()
    return list(found.values())


_BY_SEED_ALONE = "strides-to-shards"


class _SeededProvider(HypothesisProvider):
    """Hypothesis' own generator without its habit of trying constants that it finds in the source
    of loaded modules: with them, the cases would depend on what else is imported."""

    def _maybe_draw_constant(self, *args: Any, **kwargs: Any) -> None:
        return None


AVAILABLE_PROVIDERS[_BY_SEED_ALONE] = f"{__name__}.{_SeededProvider.__name__}"


if "HYPOTHESIS_STORAGE_DIRECTORY" not in os.environ:  # else it litters the notebooks' folder
    configuration.set_hypothesis_home_dir(home() / "hypothesis")


Draw = Callable[[st.SearchStrategy], Any]


def sizes(low: int = 1, high: int = 6) -> st.SearchStrategy[int]:
    """Sizes of an axis, from low to high."""
    return st.integers(low, high)


@st.composite
def distinct_sizes(draw: Draw, n: int, low: int = 2, high: int = 7) -> tuple[int, ...]:
    """n different sizes between low and high."""
    return tuple(draw(st.permutations(range(low, high + 1)))[:n])


@st.composite
def tensors(
    draw: Draw, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> Tensor:
    """Standard normal (times scale) for floating dtypes, -9 … 9 for integers, coin flips for bool."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        return torch.randint(-9, 10, shape, generator=generator, dtype=dtype)
    drawn = torch.float64 if dtype == torch.float64 else torch.float32
    return (scale * torch.randn(shape, generator=generator, dtype=drawn)).to(dtype)


@st.composite
def indices(draw: Draw, shape: tuple[int, ...], high: int, low: int = 0) -> Tensor:
    """int64 indices, low ≤ index < high."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    return torch.randint(low, high, shape, generator=generator)


@st.composite
def shapes(
    draw: Draw, max_dims: int = 4, among: tuple[int, ...] = (0, 1, 2, 3), min_dims: int = 0
) -> tuple[int, ...]:
    """A shape of min_dims to max_dims axes, each of a size from `among`."""
    return tuple(draw(st.lists(st.sampled_from(among), min_size=min_dims, max_size=max_dims)))


@st.composite
def shapes_with(draw: Draw, numel: int, max_dims: int = 4) -> tuple[int, ...]:
    """A shape with exactly `numel` elements, ones and all."""
    if numel == 0:
        shape = list(draw(shapes(max_dims=max_dims - 1, among=(0, 1, 2, 3))))
        shape.insert(draw(st.integers(0, len(shape))), 0)
        return tuple(shape)
    factors, rest, prime = [], numel, 2
    while rest > 1:
        while rest % prime:
            prime += 1
        factors.append(prime)
        rest //= prime
    groups = [1] * draw(st.integers(1 if numel > 1 else 0, max_dims))
    for factor in factors:
        groups[draw(st.integers(0, len(groups) - 1))] *= factor
    return tuple(groups)


@st.composite
def strided_tensors(
    draw: Draw,
    max_dims: int = 4,
    sizes: tuple[int, ...] = (0, 1, 2, 3),
    ops: tuple[str, ...] = ("transpose", "slice", "expand", "unsqueeze"),
    min_dims: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """A tensor counting 0, 1, 2 … in storage order, seen through up to three random view ops."""
    shape = draw(shapes(max_dims=max_dims, among=sizes, min_dims=min_dims))
    x = torch.arange(math.prod(shape), dtype=dtype).view(shape)
    for _ in range(draw(st.integers(0, 3)) if ops else 0):
        x = _draw_view(draw, x, draw(st.sampled_from(ops)), max_dims)
    return x


def _draw_view(draw: Draw, x: Tensor, op: str, max_dims: int) -> Tensor:
    """A view of x by the operation named `op`, on axes that are drawn; x itself where it does not apply."""
    if op == "unsqueeze":
        return x.unsqueeze(draw(st.integers(0, x.ndim))) if x.ndim < max_dims else x
    if x.ndim == 0:
        return x
    axis = draw(st.integers(0, x.ndim - 1))
    if op == "transpose":
        return x.transpose(axis, draw(st.integers(0, x.ndim - 1)))
    if op == "slice":
        start = draw(st.integers(0, max(x.shape[axis] - 1, 0)))
        step = draw(st.integers(1, 2))
        return x[(slice(None),) * axis + (slice(start, None, step),)]
    if op == "expand":
        if x.shape[axis] != 1:
            return x
        return x.expand(*[draw(st.integers(2, 3)) if i == axis else -1 for i in range(x.ndim)])
    raise ValueError(f"unknown view op {op!r}: transpose, slice, expand or unsqueeze")


def scattered(x: Tensor) -> Tensor:
    """The same values in a layout in which no `view` can merge two axes of more than one element.
    For the cases that are called "not contiguous".

    Raises ValueError for a tensor with fewer than two such axes, which any `view` can flatten.
    """
    if sum(size > 1 for size in x.shape) < 2:
        raise ValueError(f"a view flattens every tensor of shape {tuple(x.shape)}")
    room = x.new_zeros([size + 1 for size in reversed(x.shape)])
    made = room[tuple(slice(size) for size in reversed(x.shape))].permute(*reversed(range(x.ndim)))
    return made.copy_(x.detach()).requires_grad_(x.requires_grad)


_DTYPES = {"Float": torch.float32, "Int": torch.int64, "Bool": torch.bool}


@st.composite
def from_annotations(draw: Draw, fn: Callable[..., Any], **overrides: Any) -> dict[str, Any]:
    """Arguments for `fn` from its jaxtyping annotations: one distinct size for each letter.

    overrides: by argument name, a strategy or a plain value. By letter (`B=...`), a size.
    Raises TypeError for a parameter that has neither annotation, default nor override.
    """
    parameters = inspect.signature(fn).parameters
    letters: dict[str, int] = {}
    names = {
        word
        for p in parameters.values()
        for word in re.findall(r"[A-Za-z_]\w*", getattr(p.annotation, "dim_str", ""))
    }
    for letter, size in zip(
        sorted(names), draw(distinct_sizes(len(names), 2, 3 + len(names) + 2)), strict=True
    ):
        letters[letter] = _draw_or_take(draw, overrides.get(letter, size))
    arguments: dict[str, Any] = {}
    for name, p in parameters.items():
        if name in overrides:
            arguments[name] = _draw_or_take(draw, overrides[name])
        elif hasattr(p.annotation, "dim_str"):
            shape = tuple(
                letters[word] if word in letters else int(word)
                for word in p.annotation.dim_str.split()
            )
            kind = p.annotation.__name__.split("[")[0]
            arguments[name] = draw(tensors(shape, _DTYPES.get(kind, torch.float32)))
        elif p.default is inspect.Parameter.empty:
            raise TypeError(f"`{name}` has no jaxtyping annotation: give {name}=<strategy>")
    return arguments


def _draw_or_take(draw: Draw, value: Any) -> Any:
    """What a strategy draws; any other value as it is."""
    return draw(value) if isinstance(value, st.SearchStrategy) else value
