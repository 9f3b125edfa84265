"""Is this what was expected, and if not, where does it first differ?

Tolerances are derived, not chosen: from the dtype's epsilon, the longest axis that may have been
summed over, and the error that the reference itself makes against its float64 oracle.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils.grading.pytrees.shown import article, dtype_name, in_words
from course_utils.grading.pytrees.text import short
from course_utils.grading.pytrees.tree import (
    RESIZED,
    SUBCLASS,
    Opaque,
    Tree,
    is_plain_tensor,
    lacks_memory,
)

KIND, SHAPE, DTYPE, DEVICE, _VALUE = "kind", "shape", "dtype", "device", "value"


LONG = 6  # items of a list that nobody compares by eye
_NO_MEMORY = "the result's storage is smaller than the result: it was resized"


EVERYTHING = frozenset({KIND, SHAPE, DTYPE, DEVICE, _VALUE})


@dataclass(frozen=True)
class Difference:
    """The first place where two trees differ.

    aspect: kind, shape, dtype, device or value. path: where in the tree. sentence: what was
    expected and what came. index: of the first differing element; rows: (index, got, expected) of
    the first few, of a tensor of this dtype; wrong, total: how many elements differ; error, allowed: of
    the worst of them.
    """

    aspect: str
    path: str
    sentence: str
    rows: tuple[tuple[str, str, str], ...] = ()
    wrong: int = 0
    total: int = 0
    dtype: str = ""


def allowed_error(want: Tensor, oracle: Tensor | None, length: int) -> Tensor:
    """The largest error a right answer may show in each element of `want`, float64.

    want: the reference's result. oracle: the same computed in float64, if there is one.
    length: the longest axis that may have been reduced over. Rounding errors of a sum of
    `length` terms grow like its square root (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., section 2.8), hence eps · sqrt(length), times eight for safety. In
    float64, where nothing checks the reference itself, a thousand times more is still tiny; half
    precision is accumulated in float32, so there the result's own rounding counts for most.
    """
    exact = (oracle if oracle is not None else want).detach().double()
    exact = exact.abs().nan_to_num(0.0, 0.0, 0.0)
    typical = exact.mean() if exact.numel() else exact.sum()
    eps = torch.finfo(want.dtype).eps
    growth = math.sqrt(max(length, 1))
    factor = 4.0 + growth / 2 if want.element_size() <= 2 else 8.0 * growth
    if want.dtype == torch.float64:
        factor *= 1000.0
    allowed = factor * eps * (exact + typical)
    if oracle is not None and oracle is not want:
        own = (want.detach().double() - oracle.double()).abs().nan_to_num(0.0, 0.0, 0.0)
        allowed = allowed + 4.0 * own
    return allowed


def compare(
    got: Tree,
    want: Tree,
    oracle: Tree = None,
    *,
    length: int = 1,
    aspects: frozenset[str] = EVERYTHING,
    path: str = "",
) -> Difference | None:
    """The first difference between `got` and `want`, or None.

    oracle: `want` in float64, or None. aspects: what is looked at, so that a ladder can ask for
    shapes first and values later.
    """
    if isinstance(want, Tensor):
        return _compare_tensors(got, want, oracle, length, aspects, path)
    if isinstance(want, tuple | list):
        return _compare_sequences(got, want, oracle, length, aspects, path)
    if isinstance(want, dict):
        return _compare_dicts(got, want, oracle, length, aspects, path)
    return _compare_plain(got, want, aspects, path)


def _compare_tensors(
    got: Any, want: Tensor, oracle: Any, length: int, aspects: frozenset[str], path: str
) -> Difference | None:
    def differs(aspect: str, sentence: str) -> Difference:
        return Difference(aspect, path, sentence)

    if isinstance(got, Opaque) and got.tensor:
        return _not_plain(got, aspects, path)
    if not isinstance(got, Tensor):
        return (
            differs(KIND, f"expected {in_words(want)}; came {in_words(got)}")
            if KIND in aspects
            else None
        )
    if type(got) not in (Tensor, type(want)):
        kind = type(got).__name__
        return differs(
            KIND, f"expected a plain Tensor; came {article(kind)} {kind}, a subclass of it"
        )
    if not is_plain_tensor(got) or got.is_nested:
        return differs(KIND, f"expected a dense tensor; came one of layout {got.layout}")
    if DEVICE in aspects and lacks_memory(got):
        return differs(KIND, _NO_MEMORY)
    if got.shape != want.shape:
        sentence = f"expected shape {tuple(want.shape)}; came {tuple(got.shape)}"
        return differs(SHAPE, sentence) if aspects & {SHAPE, _VALUE} else None
    if DTYPE in aspects and got.dtype != want.dtype:
        return differs(
            DTYPE, f"expected dtype {dtype_name(want.dtype)}; came {dtype_name(got.dtype)}"
        )
    if DEVICE in aspects and got.device != want.device:
        return differs(DEVICE, f"expected device {want.device}; came {got.device}")
    if _VALUE not in aspects or want.is_meta:
        return None
    wrong, allowed = _wrong_elements(got.detach(), want.detach(), oracle, length)
    count = int(wrong.sum())
    if count == 0:
        return None
    where = wrong.nonzero()[:3].tolist()
    rows = tuple((_place(i), *elements(got, want, i)) for i in where)
    sentence = f"{count} of {want.numel()} elements differ" if want.ndim else "the value differs"
    if want.is_floating_point():
        sentence += _accuracy_note(got, want, wrong, allowed)
    return Difference(_VALUE, path, sentence, rows, count, want.numel(), dtype_name(want.dtype))


def _not_plain(got: Opaque, aspects: frozenset[str], path: str) -> Difference | None:
    """A tensor that could not cross from another process as one."""
    if got.tensor == SUBCLASS:
        sentence = f"expected a plain Tensor; came {article(got.kind)} {got.kind}, a subclass of it"
    elif got.tensor == RESIZED:
        if DEVICE not in aspects:
            return None
        sentence = _NO_MEMORY
    else:
        sentence = f"expected a dense tensor; came one of layout {got.tensor}"
    return Difference(KIND, path, sentence)


def _wrong_elements(
    got: Tensor, want: Tensor, oracle: Any, length: int
) -> tuple[Tensor, Tensor | None]:
    """Which elements are wrong, and the error that was allowed (None for exact dtypes)."""
    if want.dtype != got.dtype or not want.is_floating_point():
        if want.is_complex() or got.is_complex():
            return ~torch.isclose(got.to(torch.complex128), want.to(torch.complex128)), None
        if not (want.is_floating_point() or got.is_floating_point()):
            return got.long() != want.long(), None
    exact = (oracle if isinstance(oracle, Tensor) and oracle.shape == want.shape else want).double()
    allowed = (
        allowed_error(want if want.is_floating_point() else exact, exact, length)
        if want.numel()
        else exact
    )
    g, w = got.double(), want.double()
    finite = w.isfinite() & g.isfinite()
    near = (g - exact.nan_to_num(0.0)).abs() <= allowed
    special = (g == w) | (g.isnan() & w.isnan())
    return ~torch.where(finite, near | (g == w), special), allowed


def _accuracy_note(got: Tensor, want: Tensor, wrong: Tensor, allowed: Tensor | None) -> str:
    g, w = got.double(), want.double()
    if bool((g.isnan() & ~w.isnan()).any()):
        return f", {int((g.isnan() & ~w.isnan()).sum())} of them NaN where a number is expected"
    if allowed is None or not bool(wrong.any()):
        return ""
    error = (g - w).abs()[wrong]
    if not bool(error.isfinite().all()):
        return ""
    worst = int(error.argmax())
    return f"; the largest error is {error[worst]:.2g}, allowed {allowed[wrong][worst]:.2g}"


def _place(index: list[int]) -> str:
    return "[" + ", ".join(map(str, index)) + "]" if index else ""


def elements(got: Tensor, want: Tensor, index: list[int]) -> tuple[str, str]:
    """The two elements at a place, with as many digits as it takes to tell them apart."""
    mine, theirs = got[tuple(index)].item(), want[tuple(index)].item()
    if not (isinstance(mine, float) and isinstance(theirs, float)):
        return str(mine), str(theirs)
    for digits in (6, 9, 17):
        if f"{mine:.{digits}g}" != f"{theirs:.{digits}g}":
            break
    return f"{mine:.{digits}g}", f"{theirs:.{digits}g}"


def _compare_sequences(
    got: Any, want: Any, oracle: Any, length: int, aspects: frozenset[str], path: str
) -> Difference | None:
    if not isinstance(got, tuple | list):
        if not aspects & {KIND, _VALUE} or (_VALUE not in aspects and not _has_tensor(want)):
            return None
        return Difference(KIND, path, f"expected {in_words(want)}; came {in_words(got)}")
    if len(got) != len(want):
        if _VALUE not in aspects and not _has_tensor(want):
            return None
        sentence = f"expected {len(want)} items; came {len(got)}{odd_ones(got, want)}"
        return Difference(KIND, path, sentence)
    plain = not _has_tensor(want) and not _has_tensor(got)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        o = oracle[i] if isinstance(oracle, tuple | list) and len(oracle) == len(want) else None
        found = compare(g, w, o, length=length, aspects=aspects, path=f"{path}[{i}]")
        if found and plain and not (found.aspect == KIND and isinstance(w, int | float)):
            return Difference(_VALUE, path, first_of(i, g, w, len(want)))
        if found:
            return found
    return None


def odd_ones(got: Any, want: Any) -> str:
    """Of two lists of names, those that only one of them has, never cut."""
    if not all(isinstance(item, str) for item in (*got, *want)):
        return ""
    missing = [item for item in want if item not in got]
    extra = [item for item in got if item not in want]
    parts = [f"{', '.join(map(repr, missing))} missing"] if missing else []
    parts += [f"{', '.join(map(repr, extra))} unexpected"] if extra else []
    return f": {'; '.join(parts)}" if parts else ""


def first_of(i: int, got: Any, want: Any, total: int) -> str:
    """That plain values differ; in a long list, where first."""
    if total <= LONG:
        return "the values differ"
    return f"the values differ, first at [{i}]: expected {short(want)}; came {short(got)}"


def _compare_dicts(
    got: Any, want: dict[Any, Any], oracle: Any, length: int, aspects: frozenset[str], path: str
) -> Difference | None:
    if not isinstance(got, dict):
        return Difference(KIND, path, f"expected a dict; came {in_words(got)}")
    for key, w in want.items():
        if key not in got:
            return Difference(KIND, path, f"{key!r} is missing")
        o = oracle.get(key) if isinstance(oracle, dict) else None
        found = compare(got[key], w, o, length=length, aspects=aspects, path=f"{path}[{key!r}]")
        if found:
            return found
    extra = [key for key in got if key not in want]
    return Difference(KIND, path, f"{short(extra[0])} is unexpected") if extra else None


def _has_tensor(tree: Tree) -> bool:
    if isinstance(tree, tuple | list):
        return any(map(_has_tensor, tree))
    return isinstance(tree, Tensor)


def _compare_plain(got: Any, want: Any, aspects: frozenset[str], path: str) -> Difference | None:
    if KIND in aspects and (isinstance(got, Tensor) or (isinstance(got, Opaque) and got.tensor)):
        return Difference(KIND, path, f"expected {in_words(want)}; came {in_words(got)}")
    if _VALUE not in aspects:
        return None
    got, want = _python_number(got), _python_number(want)
    if isinstance(want, float) and isinstance(got, float):
        close = math.isclose(got, want, rel_tol=1e-9, abs_tol=1e-300) or (
            math.isnan(got) and math.isnan(want)
        )
        return (
            None
            if close
            else Difference(_VALUE, path, f"expected {short(want)}; came {short(got)}")
        )
    if type(got) is not type(want):
        return Difference(KIND, path, f"expected {in_words(want)}; came {in_words(got)}")
    if got == want:
        return None
    return Difference(_VALUE, path, f"expected {short(want)}; came {short(got)}")


def _python_number(value: Any) -> Any:
    """NumPy's scalars as Python's own: a right answer may be of either."""
    return value.item() if issubclass(type(value), np.generic) else value
