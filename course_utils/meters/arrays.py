"""What NumPy arrays cost: which of them are alive, and the FLOPs of their products."""

import math
import tracemalloc
from typing import Any, NamedTuple

import numpy as np


class Alive(NamedTuple):
    """Memory that arrays hold. number: of their buffers. bytes: of these, together."""

    number: int
    bytes: int


class watch_arrays:
    """Count what the arrays of a block cost: `with watch_arrays() as arrays: ...`.

    `arrays.alive()` says at any time within the block how many buffers that NumPy has allocated in it
    are still there; a view has none of its own. It asks Python's tracemalloc, so a small buffer that NumPy
    keeps for its next array does not count. `arrays.counted(x)` is a view of x whose products, and those of
    what operators and ufuncs make of it, add to `arrays.flops`: 2 · m · k · n for (m, k) times (k, n), and
    nothing for what is no matrix product, as in chapter 5. `np.dot` and `np.tensordot` count as `@` does,
    and `np.einsum` of two operands that sums over an index. (np.where gives plain arrays, which are not
    counted.) Blocks do not nest.
    """

    def __init__(self) -> None:
        self.flops = 0
        self._kind = _watched_by(self)

    def __enter__(self) -> "watch_arrays":
        tracemalloc.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        tracemalloc.stop()

    def alive(self) -> Alive:
        """The buffers that were allocated in the block and are there now."""
        ours = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
        traces = tracemalloc.take_snapshot().filter_traces([ours]).traces
        sizes = [trace.size for trace in traces]
        return Alive(len(sizes), sum(sizes))

    def counted(self, x: np.ndarray) -> np.ndarray:
        """A view of x whose products are counted."""
        return x.view(self._kind)


def _watched_by(meter: watch_arrays) -> type[np.ndarray]:
    """A class of arrays that tells this meter of its products."""

    class Watched(np.ndarray):
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
            plain = [x.view(np.ndarray) if isinstance(x, Watched) else x for x in inputs]
            if out := kwargs.get("out"):
                kwargs["out"] = tuple(
                    x.view(np.ndarray) if isinstance(x, Watched) else x for x in out
                )
            result = getattr(ufunc, method)(*plain, **kwargs)
            if ufunc is np.matmul:
                meter.flops += 2 * int(np.size(result)) * int(plain[0].shape[-1])
            return result.view(Watched) if isinstance(result, np.ndarray) else result

        def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
            if function not in (np.dot, np.tensordot, np.einsum):
                return super().__array_function__(function, types, args, kwargs)
            plain = [x.view(np.ndarray) if isinstance(x, Watched) else x for x in args]
            result = function(*plain, **kwargs)
            meter.flops += 2 * int(np.size(result)) * _summed_over(function, plain, result)
            return result.view(Watched) if isinstance(result, np.ndarray) else result

        def dot(self, b: Any, out: Any = None) -> Any:
            return np.dot(self, b, out=out)

    return Watched


def _summed_over(function: Any, args: list[Any], result: Any) -> int:
    """How many products are added up for each element of the result: 0 if it is no matrix product."""
    if function is not np.einsum:  # each index that is summed over is in both operands
        a, b = np.size(args[0]), np.size(args[1])
        summed = math.isqrt(a * b // max(np.size(result), 1))
        return 0 if function is np.dot and 0 in (np.ndim(args[0]), np.ndim(args[1])) else summed
    subscripts, *operands = args
    if not isinstance(subscripts, str) or len(operands) != 2:
        return 0
    before, _, kept = subscripts.replace(" ", "").partition("->")
    if "->" not in subscripts:
        kept = "".join(c for c in before if before.count(c) == 1)
    sizes: dict[str, int] = {}
    for letters, x in zip(before.split(","), operands, strict=True):
        front, _, back = letters.partition("...")
        shape = np.shape(x)
        sizes |= dict(zip(front, shape, strict=False))
        sizes |= dict(zip(reversed(back), reversed(shape), strict=False))
    gone = sizes.keys() - set(kept)
    return math.prod(sizes[c] for c in gone) if gone else 0
