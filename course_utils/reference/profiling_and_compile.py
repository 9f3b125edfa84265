"""Chapter 15, profiling and compile: traces read, times taken, bytes of fused kernels, guards, tiles."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

# ------------------------------------------------------------------------------ traces and times


def self_times(spans: Sequence[tuple[str, float, float]]) -> dict[str, float]:
    """How long each name took itself: the time of its spans less that of the spans directly inside.

    spans: (name, start, end) of one thread, in any order. Two of them are disjoint, or one
    lies inside the other; two that only touch are disjoint. Of two with the same start and
    end the earlier in the list is the outer one. A name may have many spans, also inside
    each other. Returns the sum for each name that occurs.
    """
    own = dict.fromkeys((name for name, _, _ in spans), 0.0)
    around: list[tuple[str, float]] = []  # the spans that are open, the innermost last
    for name, start, end in sorted(spans, key=lambda span: (span[1], -span[2])):
        while around and around[-1][1] <= start:
            around.pop()
        own[name] += end - start
        if around:
            own[around[-1][0]] -= end - start
        around.append((name, end))
    return own


def benchmark(
    function: Callable[[], Any],
    *,
    warmup: int = 3,
    repeats: int = 10,
    synchronize: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Seconds that each of `repeats` calls took, after `warmup` calls that are not counted.

    synchronize: returns when the device has done all that was launched before; None where
    a call returns with its work done. Before each timed call wait until the device has
    nothing to do; the call's time ends when its own work on the device is done. clock: what
    the time is read from, in seconds. Raises ValueError for fewer than one repeat, or a
    negative warm-up.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"{repeats} repeats after {warmup} calls of warm-up")
    wait = synchronize or (lambda: None)
    for _ in range(warmup):
        function()
    seconds = []
    for _ in range(repeats):
        wait()
        start = clock()
        function()
        wait()
        seconds.append(clock() - start)
    return seconds


def median_interval(times: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """The median of the times, and an interval that holds the true one with this confidence or more.

    Returns (median, low, high). With n times in order, low is the k-th smallest and high
    the k-th largest, k as large as possible with 2 · P(fewer than k of n coins show heads)
    ≤ 1 − confidence: the exact probability, no normal approximation. For an even n the
    median is the mean of the middle two. The argument is not changed. Raises ValueError
    where k = 1 is already too much (fewer than 6 times, for 0.95), or unless 0 < confidence
    < 1. Source: the sign test; Conover (1999), section 3.2.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1; came {confidence}")
    ordered, n = sorted(times), len(times)
    k, beyond = 0, 1  # beyond: of the 2ⁿ outcomes, those with at most k heads
    while 2 * beyond / 2**n <= 1 - confidence:
        k += 1
        beyond += math.comb(n, k)
    if k == 0:
        raise ValueError(f"{n} times are too few for a confidence of {confidence}")
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return median, ordered[k - 1], ordered[n - k]


def exposed_time(
    communication: Sequence[tuple[float, float]], compute: Sequence[tuple[float, float]]
) -> float:
    """For how long something of `communication` runs and nothing of `compute` does.

    Both: (start, end) of kernels, in any order; those of one list may overlap, as kernels
    of several streams do. A moment counts once, however many kernels run in it. Returns a
    float, 0.0 if there is no such time.
    """
    marks = [
        (moment, which, step)
        for which, kernels in enumerate((communication, compute))
        for start, end in kernels
        for moment, step in ((start, 1), (end, -1))
    ]
    running, exposed = [0, 0], 0.0
    for (moment, which, step), (following, _, _) in pairwise(sorted(marks)):
        running[which] += step
        if running[0] > 0 and running[1] == 0:
            exposed += following - moment
    return exposed


def count_kernels(trace: Sequence[Mapping[str, Any]], annotation: str) -> dict[str, int]:
    """How many kernels were launched inside an annotation, by the name of the kernel.

    trace: `traceEvents` of a profile, in any order; ts and dur are microseconds. Annotations
    are events of cat "user_annotation", with their name; one may occur many times, and all
    count, but a launch inside two of them counts once. A launch is an event of cat
    "cuda_runtime" or "cuda_driver"; it is inside if its own ts is at least the annotation's
    ts and less than the annotation's ts + dur, on whatever thread and whenever it ended.
    Kernels have cat "kernel". They run later, perhaps after the annotation has ended, and
    belong to the launch with the same args["correlation"]; the launch of a CUDA graph has
    many of them. Events of other cats count nothing, and may lack dur, cat and args.
    """
    opened = [
        (event["ts"], event["ts"] + event["dur"])
        for event in trace
        if event.get("cat") == "user_annotation" and event["name"] == annotation
    ]
    launched = {
        event["args"]["correlation"]
        for event in trace
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
        and any(start <= event["ts"] < end for start, end in opened)
    }
    kernels = [event for event in trace if event.get("cat") == "kernel"]
    return dict(Counter(k["name"] for k in kernels if k["args"]["correlation"] in launched))


# ------------------------------------------------------------------------------ what compiling does


def pointwise_bytes(
    program: Sequence[tuple[str, Sequence[str]]], outputs: Sequence[str], sizes: Mapping[str, int]
) -> tuple[int, int]:
    """Bytes that a chain of pointwise operations reads and writes: one kernel for each, and fused.

    program: (result, operands) of each operation, in order; constants are left out of the
    operands, and each name is made once. sizes: the bytes of every tensor, by name. outputs:
    results that are used afterwards, perhaps named twice. A kernel reads each of its
    operands once, also one that it has twice, and writes its result. Returns the sum over
    all operations, used or not; and the bytes of one kernel that reads each input once,
    keeps everything between in registers, and writes each output once. Fused, what no
    output depends on is neither computed nor read.
    """
    one_by_one = sum(
        sizes[result] + sum(sizes[name] for name in set(operands)) for result, operands in program
    )
    made = dict(program)
    needed: set[str] = set()
    waiting = list(outputs)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += made.get(name, ())
    read = sum(sizes[name] for name in needed if name not in made)
    return one_by_one, read + sum(sizes[name] for name in set(outputs))


def remove_graph_break(
    update: Float[Tensor, "*shape"], max_norm: float
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, ""]]:
    """An update with a norm of at most max_norm, zeros if its norm is not finite; and the norm.

    The norm is that of all elements together, without axes, in float32, or in float64 for
    float64. If it is larger than max_norm the update is multiplied by max_norm / norm. The
    result has the update's dtype and device; the argument is not changed. max_norm is
    positive. torch.compile makes one graph of it, and no value is read on the host: neither
    by a break, nor by what fullgraph=True takes into the graph, such as `.item()`.
    """
    wide = torch.promote_types(update.dtype, torch.float32)
    norm = update.to(wide).square().sum().sqrt()
    scale = torch.where(norm > max_norm, max_norm / norm, 1.0)
    clipped = torch.where(norm.isfinite(), update * scale, 0.0)
    return clipped.to(update.dtype), norm


def recompiles(
    shapes: Sequence[tuple[int, ...]], *, dynamic: bool | None = None, limit: int = 8
) -> list[bool]:
    """For each call of a compiled function, in order: does torch.compile compile it anew?

    shapes: of the one argument, contiguous, all with as many axes. Each compilation keeps
    guards. On an axis they ask for the very size that it was compiled with, or, if the axis
    is dynamic, for 2 or more. A call for which all guards of an earlier compilation hold
    takes that one. Else it is compiled, until there are `limit` compilations; from then on
    such a call runs uncompiled, which is False here. dynamic is None or False. None: an
    axis is dynamic if the sizes with which the function was compiled, this call's included,
    differ there; 0 and 1 count among them. But an axis on which this call's size is 0 or 1
    is compiled for just that size; the other axes follow the rule. False: no axis is
    dynamic.
    """
    guards: list[tuple[int | None, ...]] = []  # None: dynamic
    compiled_with: list[tuple[int, ...]] = []
    compiles = []
    for shape in shapes:
        hit = any(
            all(
                size >= 2 if want is None else size == want
                for size, want in zip(shape, wanted, strict=True)
            )
            for wanted in guards
        )
        compiles.append(not hit and len(guards) < limit)
        if compiles[-1]:
            compiled_with.append(shape)
            varies = [len(set(sizes)) > 1 for sizes in zip(*compiled_with, strict=True)]
            guards.append(
                tuple(
                    None if dynamic is None and vary and size >= 2 else size
                    for size, vary in zip(shape, varies, strict=True)
                )
            )
    return compiles


# ------------------------------------------------------------------------------ a row, a tile at a time


def online_softmax(
    x: Float[Tensor, "*rows n"], block_size: int
) -> tuple[Float[Tensor, "*rows"], Float[Tensor, "*rows"]]:
    """What softmax needs of each row, in one pass over blocks of it: (maximum, total).

    maximum: of the row. total: the sum of exp(x − maximum) over the row; softmax is then
    exp(x − maximum) / total. Elements are finite or −∞; a row of −∞ alone has (−∞, 0). n is
    at least 1, and need not be a multiple of block_size. Computed in float32, in float64
    for a float64 x; so are the results, on x's device. The argument is not changed. Raises
    ValueError for a block_size below 1. Source: Milakov and Gimelshein (2018), algorithm 3.
    """
    if block_size < 1:
        raise ValueError(f"a block holds one element at least; came {block_size}")
    wide = torch.promote_types(x.dtype, torch.float32)
    maximum = x.new_full(x.shape[:-1], -math.inf, dtype=wide)
    state = maximum, torch.zeros_like(maximum)
    for block in x.split(block_size, dim=-1):
        block = block.to(wide)
        top = block.amax(dim=-1)
        weights = (block - top.masked_fill(top == -math.inf, 0.0)[..., None]).exp()
        state = merge_statistics(state, (top, weights.sum(dim=-1)))
    return state


def merge_statistics(
    one: tuple[Float[Tensor, "*rows"], Float[Tensor, "*rows"]],
    other: tuple[Float[Tensor, "*rows"], Float[Tensor, "*rows"]],
) -> tuple[Float[Tensor, "*rows"], Float[Tensor, "*rows"]]:
    """(maximum, total) of rows of which `one` and `other` have seen two parts.

    The parts may be merged in any order and grouping. (−∞, 0) has seen nothing, and changes
    nothing. The arguments are not changed. The results have their dtype, and never a NaN
    where the arguments have none.
    """
    maximum = torch.maximum(one[0], other[0])
    shift = maximum.masked_fill(maximum == -math.inf, 0.0)  # −∞ − −∞ is NaN
    return maximum, one[1] * (one[0] - shift).exp() + other[1] * (other[0] - shift).exp()


def tiled_matmul(
    a: Float[Tensor, "M K"],
    b: Float[Tensor, "K N"],
    block_m: int,
    block_n: int,
    block_k: int,
) -> tuple[Float[Tensor, "M N"], int]:
    """a @ b, a tile of block_m × block_n at a time; and how many elements of a and b were read.

    A tile of the result is a sum over products of (block_m, block_k) of a with (block_k,
    block_n) of b, in float32, or in float64 for float64; it is rounded to a's dtype once,
    at the end. The last tiles of each axis may be smaller. Every tile of the result reads
    its tiles of a and b anew, so elements count as often as they are read; where a size is 0,
    none is read. a and b have one dtype, any strides, and are not changed; the result is on
    a's device. Raises ValueError for a block below 1.
    """
    if min(block_m, block_n, block_k) < 1:
        raise ValueError(f"tiles of {block_m} × {block_k} and {block_k} × {block_n}")
    wide = torch.promote_types(a.dtype, torch.float32)
    c, read = a.new_empty(a.size(0), b.size(1)), 0
    for i in range(0, a.size(0), block_m):
        for j in range(0, b.size(1), block_n):
            tile = c[i : i + block_m, j : j + block_n]
            total = torch.zeros_like(tile, dtype=wide)
            for k in range(0, a.size(1), block_k):
                a_tile = a[i : i + block_m, k : k + block_k]
                b_tile = b[k : k + block_k, j : j + block_n]
                total += a_tile.to(wide) @ b_tile.to(wide)
                read += a_tile.numel() + b_tile.numel()
            tile.copy_(total)
    return c, read
