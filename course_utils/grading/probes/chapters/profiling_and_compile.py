"""Probes of chapter 15: a benchmark of a simulated device, one graph, a kernel of Triton."""

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import if_changed, unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.shown import shown
from course_utils.meters import SimulatedDevice

from .modules import brief, clone, raised_name

# ------------------------------------------------------------------------------ a benchmark

LAUNCH_S = 0.25
"""Simulated seconds of a launch: with the cases' times, a sum that floats hold exactly."""


@probe
def timed(subject: Any, case: Case) -> dict[str, Any]:
    """A function that uses a simulated device, benchmarked with that device's clock.

    The case: `work`, for each call of the function the host's seconds and those of the kernels that it
    launches, the last entry for all calls after it; `queued`, seconds of work that was launched
    before; whether the answer is given `synchronize`; and the other options that it is given.
    """
    work, queued, waits, options = case.args
    device = SimulatedDevice(LAUNCH_S)
    if queued:
        device.launch(queued)
    calls = 0

    def function() -> None:
        nonlocal calls
        host, kernels = work[min(calls, len(work) - 1)]
        calls += 1
        device.host(host)
        for seconds in kernels:
            device.launch(seconds)

    given = {"clock": device.clock} | ({"synchronize": device.synchronize} if waits else {})
    try:
        seconds = subject(function, **given, **options)
    except Exception as error:
        return {"raises": raised_name(error), "calls of the function": calls}
    if isinstance(seconds, list) and any(map(_of_another_clock, seconds)):
        return {"the times are those of the clock that it was given": False}
    return {"result": seconds, "calls of the function": calls}


def _of_another_clock(seconds: Any) -> bool:
    """Is it no whole number of quarters, divided by at most 5? The cases' times are quarters."""
    if not isinstance(seconds, float):
        return False
    parts = seconds * 4 * 60
    return abs(parts - round(parts)) > 1e-6


def _called_timed(name: str, case: Case) -> str:
    work, queued, waits, options = case.args
    told = [
        f"{host} s on the host" + (f", then launches of {kernels} s" if kernels else "")
        for host, kernels in work
    ]
    named = [f"{key}={value}" for key, value in options.items()]
    named += ["synchronize=device.synchronize"] * waits + ["clock=device.clock"]
    before = f", with {queued} s of work in the queue" if queued else ""
    return (
        f"{name}(function, {', '.join(named)}) on a simulated device{before}; a launch takes {LAUNCH_S} s; "
        f"the function's calls: {'; '.join(told)}{'; …' if len(told) > 1 else ''}"
    )


timed.called = _called_timed


# ------------------------------------------------------------------------------ one graph


@probe
def in_one_graph(subject: Any, case: Case) -> dict[str, Any]:
    """Call it; in a case with `compiled`, also compiled: is it one graph, with the same result?

    The backend runs each graph as it is, without a compiler.
    """
    before = [clone(x) if isinstance(x, Tensor) else x for x in case.args]
    result = subject(*case.args)
    seen = {"result": _copied(result), "arguments afterwards": if_changed(before, [*case.args])}
    if case.kwargs.get("compiled"):
        seen |= _compiled(subject, before)
    return seen


def _compiled(subject: Any, args: list[Any]) -> dict[str, Any]:
    """What it gives compiled, and whether Dynamo takes all of it in one graph."""
    graphs = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return graph.forward

    torch._dynamo.reset()
    said = logging.root.manager.disable
    logging.disable(logging.WARNING)  # of the breaks, past the time when prints are caught
    try:
        result = torch.compile(unchecked(subject), backend=backend)(*args)
    except Exception as error:
        return {"compiled, it raises": raised_name(error)}
    finally:
        logging.disable(said)
        torch._dynamo.reset()
    return {"compiled, it is one graph": graphs == 1, "result, compiled": _copied(result)}


def unchecked(subject: Any) -> Any:
    """The function without jaxtyping's checks of its annotations, if it has them: they break a graph."""
    code = getattr(subject, "__code__", None)
    return subject.__wrapped__ if code and "jaxtyping" in Path(code.co_filename).parts else subject


def _called_in_one_graph(name: str, case: Case) -> str:
    called = f"{name}({', '.join(map(brief, case.args))})"
    return f"torch.compile({name})({called[len(name) + 1 :]}" if case.kwargs else called


in_one_graph.called = _called_in_one_graph


def _copied(result: Any) -> Any:
    if isinstance(result, tuple | list):
        return tuple(map(_copied, result))
    return clone(result) if isinstance(result, Tensor) else result


# ------------------------------------------------------------------------------ a kernel of Triton

GUARD = 64
"""Elements in front of and behind each tensor that no kernel may read or write."""


def _interpreted() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


class Arena:
    """Tensors with room around them, so that what strays is seen and hurts nobody."""

    def __init__(self) -> None:
        self.rooms: dict[str, tuple[Tensor, Tensor]] = {}

    def place(self, name: str, x: Tensor, margin: int) -> Tensor:
        """x, with its own values, in the middle of a storage of NaN; margin: elements on each side.

        On the GPU where Triton compiles: its kernels see no other memory.
        """
        device = "cpu" if _interpreted() else "cuda"
        extent = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
        room = torch.full((extent + 2 * margin,), float("nan"), dtype=x.dtype, device=device)
        here = room.as_strided(x.shape, x.stride(), margin)
        here.copy_(x)
        self.rooms[name] = room, here
        return here

    def strayed(self) -> Iterator[str]:
        """Names of the tensors around whose elements something was written."""
        for name, (room, here) in self.rooms.items():
            rest = room.clone()
            rest.as_strided(here.shape, here.stride(), here.storage_offset()).fill_(float("nan"))
            if not rest.isnan().all():
                yield name


@contextmanager
def _reads_noted(arena: Arena) -> Iterator[list[bool]]:
    """For each load, does it stay inside of the tensors? Only Triton's interpreter can be asked.

    What a load with a mask gives outside, without `other`, is not defined: here it is NaN.
    """
    from triton.runtime import interpreter

    if not _interpreted():
        yield []
        return
    builder: Any = interpreter.interpreter_builder
    load, found = builder.create_masked_load, []
    places = np.concatenate([_addresses(here) for _, here in arena.rooms.values()])

    def noted(pointers: Any, mask: Any, other: Any, *more: Any) -> Any:
        inside = np.broadcast_to(mask.data, pointers.data.shape).astype(bool)
        found.append(bool(np.isin(pointers.data[inside], places).all()))
        read = load(pointers, mask, other, *more)
        if other is None and read.data.dtype.kind == "f":
            read.data[~inside] = np.nan
        return read

    builder.create_masked_load = noted
    try:
        yield found
    finally:
        del builder.create_masked_load


def _addresses(x: Tensor) -> Any:
    """The address of each element."""
    places = torch.zeros(x.shape, dtype=torch.int64)
    for axis, (size, step) in enumerate(zip(x.shape, x.stride(), strict=True)):
        shape = [1] * x.ndim
        shape[axis] = size
        places += (torch.arange(size) * step).view(shape)
    return (x.data_ptr() + places.flatten() * x.element_size()).numpy().astype(np.uint64)


def _launched(
    subject: Any, grid: tuple[int, ...], arena: Arena, args: list[Any], meta: dict[str, int]
) -> dict[str, Any]:
    """What a kernel did: the results that it was to write, and what it should not have."""
    import triton

    inputs = {name: here.clone() for name, (_, here) in arena.rooms.items() if name in "abx"}
    with _reads_noted(arena) as inside:
        triton.jit(inspect.unwrap(subject))[grid](*args, **meta)
    out = next(here for name, (_, here) in arena.rooms.items() if name in "cy")
    seen: dict[str, Any] = {"result": out.cpu().clone()}
    for name, was in inputs.items():
        seen[f"`{name}` is as it was"] = unchanged(was, arena.rooms[name][1].clone())
    seen["reads nothing but its tensors"] = all(inside)
    strayed = sorted(arena.strayed())
    if strayed:
        seen["writes beside"] = strayed
    return seen


@probe
def softmax_launched(subject: Any, case: Case) -> dict[str, Any]:
    """Launch it on the rows of x, in a grid of one program a row.

    The case: x; elements between the rows of the result beyond their own; the block.
    """
    x, gap, block = case.args
    arena = Arena()
    margin = block + GUARD
    x = arena.place("x", x, margin)
    rows, n = x.shape
    y = x.new_empty(rows, n + gap)[:, :n]
    y = arena.place("y", y.fill_(float("nan")), margin)
    args = [x, y, x.stride(0), y.stride(0), n]
    return _launched(subject, (rows,), arena, args, {"BLOCK": block})


def _called_softmax(name: str, case: Case) -> str:
    x, gap, block = case.args
    beyond = f", rows of y {gap} elements further apart" if gap else ""
    return (
        f"{name}[({x.size(0)},)] on x = {brief(x)} with strides {x.stride()}{beyond}, BLOCK={block}"
    )


softmax_launched.called = _called_softmax


@probe
def matmul_launched(subject: Any, case: Case) -> dict[str, Any]:
    """Launch it on a and b, in a grid of one program a tile. The case: a, b, the blocks, c by columns?"""
    a, b, blocks, by_columns = case.args
    (m, k), n = a.shape, b.size(1)
    arena = Arena()
    longest = max(*a.stride(), *b.stride(), m, n)
    margin = 2 * (max(m, n, k) + max(blocks)) * longest + GUARD
    a, b = arena.place("a", a, margin), arena.place("b", b, margin)
    c = a.new_full((n, m), float("nan")).T if by_columns else a.new_full((m, n), float("nan"))
    c = arena.place("c", c, margin)
    grid = (-(-m // blocks[0]), -(-n // blocks[1]))
    args = [a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride()]
    sizes = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), blocks, strict=True))
    return _launched(subject, grid, arena, args, sizes)


def _called_matmul(name: str, case: Case) -> str:
    a, b, blocks, by_columns = case.args
    grid = (-(-a.size(0) // blocks[0]), -(-b.size(1) // blocks[1]))
    strides = f"strides {a.stride()} and {b.stride()}"
    return (
        f"{name}[{grid}] on a = {brief(a)}, b = {brief(b)} with {strides}, "
        f"blocks {shown(tuple(blocks))}{', c by columns' if by_columns else ''}"
    )


matmul_launched.called = _called_matmul
