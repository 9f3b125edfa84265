"""The functions that make recordings, each in a new process on a GPU: ``course record`` runs them.

``python -m course_utils.recordings.recorders NAME`` makes one. The layouts are described in `recordings`.
"""

import gc
import itertools
import os
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from course_utils import recordings
from course_utils.reference import mixed_precision

DEVICE = "cuda"
ENTRIES = 100_000
_MIB = 2**20
WIDTH = 512


@dataclass(frozen=True)
class Recorder:
    """How a recording is made. shows: what it holds. conf: PYTORCH_ALLOC_CONF of its process."""

    name: str
    function: Callable[[], Any]
    shows: str
    conf: str


RECORDERS: dict[str, Recorder] = {}


def recorder(
    name: str, shows: str, conf: str = ""
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function as the maker of the recording `name`."""

    def register(function: Callable[[], Any]) -> Callable[[], Any]:
        RECORDERS[name] = Recorder(name, function, shows, conf)
        return function

    return register


def environment(made: Recorder) -> dict[str, str]:
    """The environment of a recorder's process: the allocator as that recorder wants it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_") or "ALLOC" not in k}
    return env | ({"PYTORCH_ALLOC_CONF": made.conf} if made.conf else {})


# The caching allocator


@recorder("allocator/training_step", "events of the caching allocator in two training steps")
@recorder(
    "allocator/training_step_expandable",
    "the same with expandable segments",
    conf="expandable_segments:True",
)
def training_step() -> dict[str, Any]:
    """Two steps of AdamW on a small network, from an empty allocator on."""
    _start_history()
    phases: list[dict[str, Any]] = []

    def ended(name: str) -> None:
        torch.cuda.synchronize()
        phases.append(
            {"name": name, "events": len(events(torch.cuda.memory._snapshot()))} | _counters()
        )

    torch.manual_seed(0)
    model = _small_network().to(DEVICE)
    ended("model")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(1000, (16, 128)).to(DEVICE)
    targets = torch.randint(1000, (16, 128)).to(DEVICE)
    ended("batch")
    for step in (1, 2):
        logits = model(tokens)
        loss = F.cross_entropy(logits.view(-1, 1000), targets.view(-1))
        ended(f"forward {step}")
        loss.backward()
        ended(f"backward {step}")
        del logits, loss
        optimizer.step()
        ended(f"optimizer {step}")
        optimizer.zero_grad()
        ended(f"zero_grad {step}")
    torch.cuda.empty_cache()
    ended("empty_cache")
    return _stop_history() | {"phases": phases}


@recorder("allocator/operations", "the allocator's counters after each of a list of operations")
@recorder(
    "allocator/operations_expandable",
    "the same with expandable segments",
    conf="expandable_segments:True",
)
def allocator_operations() -> dict[str, Any]:
    """Allocate and free by hand; after each operation read the allocator's counters."""
    _start_history()
    operations = list(plan())
    held: dict[int, torch.Tensor] = {}
    after = []
    for kind, *rest in operations:
        if kind == "alloc":
            key, size = rest
            held[key] = torch.empty(size, dtype=torch.uint8, device=DEVICE)
        elif kind == "free":
            del held[rest[0]]
        else:
            torch.cuda.empty_cache()
        after.append(_row())
    return _stop_history() | {"operations": operations, "after": after}


def _small_network() -> nn.Module:
    """Tokens to logits: an embedding, three blocks, a head."""

    def block() -> nn.Module:
        up, down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        return nn.Sequential(up, nn.GELU(), down, nn.LayerNorm(WIDTH))

    blocks = [block() for _ in range(3)]
    return nn.Sequential(nn.Embedding(1000, WIDTH), *blocks, nn.Linear(WIDTH, 1000))


def plan(seed: int = 0, drawn: int = 160) -> Iterator[list[Any]]:
    """The operations: first sizes at the borders of the allocator's rules, then drawn ones.

    Yields ["alloc", key, bytes], ["free", key] and ["empty_cache"]. Everything is freed in the end.
    """
    edges = [
        1,
        512,
        513,
        _MIB - 1,
        _MIB,
        _MIB + 1,
        2 * _MIB,
        10 * _MIB - 1,
        10 * _MIB,
        11_000_000,
        25 * _MIB,
    ]
    for key, size in enumerate(edges):
        yield ["alloc", key, size]
    for key in (*range(0, len(edges), 2), *range(1, len(edges), 2)):
        yield ["free", key]
    yield ["empty_cache"]
    draw = random.Random(seed)
    alive: list[int] = []
    for key in range(100, 100 + drawn):
        if alive and draw.random() < 0.45:
            yield ["free", alive.pop(draw.randrange(len(alive)))]
        yield ["alloc", key, int(2 ** draw.uniform(0, 25))]
        alive.append(key)
        if draw.random() < 0.03:
            yield ["empty_cache"]
    for key in alive:
        yield ["free", key]
    yield ["empty_cache"]


def _start_history() -> None:
    """Empty the allocator, zero its counters' peaks and let it note what it does."""
    gc.collect()
    torch.cuda.init()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if torch.cuda.memory_reserved():
        raise RuntimeError("the allocator is not empty: a recorder runs in a process of its own")
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=ENTRIES)


def _stop_history() -> dict[str, Any]:
    """What the allocator did since `_start_history`: events, segments, settings."""
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    return compact(snapshot) | {"conf": os.environ.get("PYTORCH_ALLOC_CONF", "")}


def events(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """The trace of the one device that has one, torch's notes of snapshots left out."""
    traces = [trace for trace in snapshot["device_traces"] if trace]
    if len(traces) > 1:
        raise RuntimeError(f"{len(traces)} devices did something; a recording is of one")
    trace = traces[0] if traces else []
    if len(trace) >= ENTRIES:
        raise RuntimeError(f"the history holds {ENTRIES:,} events and is full: its start is lost")
    return [event for event in trace if event["action"] != "snapshot"]


def compact(snapshot: dict[str, Any]) -> dict[str, Any]:
    """A snapshot in the layout of the recordings: no frames, no times, addresses from 0."""
    trace = events(snapshot)
    segments = sorted(snapshot["segments"], key=lambda segment: segment["address"])
    places = [e["addr"] for e in trace if e["action"] != "oom"] + [s["address"] for s in segments]
    base = min(places, default=0)
    streams: dict[int, int] = {}
    for item in (*trace, *segments):
        streams.setdefault(item["stream"], len(streams))

    def line(event: dict[str, Any]) -> list[Any]:
        address = None if event["action"] == "oom" else event["addr"] - base
        return [event["action"], address, event["size"], streams[event["stream"]]]

    def blocks(segment: dict[str, Any]) -> list[list[Any]]:
        address, rows = segment["address"], []
        for block in segment["blocks"]:
            asked = block.get("requested_size", block["size"])
            rows.append(
                [block.get("address", address) - base, block["size"], asked, block["state"]]
            )
            address += block["size"]
        return rows

    def whole(segment: dict[str, Any]) -> dict[str, Any]:
        return {
            "address": segment["address"] - base,
            "total_size": segment["total_size"],
            "stream": streams[segment["stream"]],
            "segment_type": segment["segment_type"],
            "is_expandable": bool(segment.get("is_expandable", False)),
            "blocks": blocks(segment),
        }

    return {
        "settings": {k: _plain(v) for k, v in snapshot.get("allocator_settings", {}).items()},
        "streams": len(streams),
        "events": [line(event) for event in trace],
        "segments": [whole(segment) for segment in segments],
    }


def _plain(value: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _counters() -> dict[str, int]:
    """The allocator's bytes now, and its peaks."""
    stats = torch.cuda.memory_stats()
    now = {
        name: int(stats[f"{name}_bytes.all.current"])
        for name in ("allocated", "requested", "active", "reserved")
    }
    peaks = {f"peak_{n}": int(stats[f"{n}_bytes.all.peak"]) for n in ("allocated", "reserved")}
    return now | peaks


def _row() -> list[int]:
    """One row of ``after``: allocated, reserved, requested, active bytes, and segments."""
    now = _counters()
    segments = int(torch.cuda.memory_stats()["segment.all.current"])
    return [now["allocated"], now["reserved"], now["requested"], now["active"], segments]


# Mixed precision


@recorder("mixed_precision/autocast_table", "dtypes that operations return under CUDA's autocast")
def autocast_table() -> dict[str, Any]:
    """The dtype of each operation of chapter 13's table, run by real kernels under autocast."""
    tables: dict[str, Any] = {}
    for low in (torch.bfloat16, torch.float16):
        table = tables[_name(low)] = {}
        for op, function in mixed_precision.OPERATIONS.items():
            arguments = function.__code__.co_argcount
            table[op] = {
                ",".join(map(_name, dtypes)): autocast_result(function, dtypes, low)
                for dtypes in itertools.product((torch.float32, low), repeat=arguments)
            }
    return {"torch": tables}


def autocast_result(
    function: Callable[..., torch.Tensor], dtypes: tuple[torch.dtype, ...], low: torch.dtype
) -> str:
    """The dtype that comes out, or the kind of error."""
    inputs = [torch.ones(4, 4, dtype=dtype, device=DEVICE) for dtype in dtypes]
    try:
        with torch.autocast(DEVICE, dtype=low):
            return _name(function(*inputs).dtype)
    except (RuntimeError, TypeError) as error:
        return f"error: {type(error).__name__}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# Timings


@recorder("timings/matmul", "how long square matrix products take in each precision")
def matmul_timings(
    sizes: tuple[int, ...] = (512, 1024, 2048, 4096, 8192), repeats: int = 30
) -> dict[str, Any]:
    """Time (n, n) @ (n, n) in each precision."""
    was = torch.get_float32_matmul_precision()
    rows = []
    try:
        for n, (dtype, tf32) in itertools.product(
            sizes,
            (
                (torch.float32, False),
                (torch.float32, True),
                (torch.bfloat16, False),
                (torch.float16, False),
            ),
        ):
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            a = torch.randn(n, n, device=DEVICE).to(dtype)
            b = torch.randn(n, n, device=DEVICE).to(dtype)
            spans = _timed(lambda a=a, b=b: a @ b, repeats)  # type: ignore[misc]
            rows.append({"n": n, "dtype": _name(dtype), "tf32": tf32} | summary(spans))
    finally:
        torch.set_float32_matmul_precision(was)
    return {"unit": "ms", "rows": rows}


def _timed(work: Callable[[], Any], repeats: int, warm_up: int = 5) -> list[float]:
    """Milliseconds on the GPU of each of `repeats` calls, after some that are not counted."""
    for _ in range(warm_up):
        work()
    torch.cuda.synchronize()
    pairs = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        pairs.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairs]


def summary(spans: list[float]) -> dict[str, Any]:
    """Median, least and most of the spans, to a tenth of a microsecond."""
    of = {"median": statistics.median(spans), "min": min(spans), "max": max(spans)}
    return {name: round(span, 4) for name, span in of.items()} | {"repeats": len(spans)}


def main(name: str) -> int:
    """Make one recording and save it. 0 if it was kept."""
    made = RECORDERS[name]
    if not torch.cuda.is_available():
        print("no CUDA GPU here: nothing was recorded", file=sys.stderr)
        return 1
    return int(not recordings.save(name, made.function()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
