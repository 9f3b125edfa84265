"""Probes of chapter 9: token files, streams that are read one item at a time, and samplers that resume."""

import json
import mmap
from collections.abc import Iterable
from fractions import Fraction
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils import worker as workers

from course_utils.grading.driving import labels
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.watched import Source
from course_utils.grading.pytrees.shown import shown
from course_utils.grading.pytrees.tree import fresh, is_plain_tensor, same
from course_utils.meters.pages import PAGE, pages_in_memory

# ------------------------------------------------------------------------------ token files


def _mapped(tokens: Any, dtype: str) -> np.ndarray:
    """A read-only array in memory of its own, of which no page has been touched if it is all zeros.

    tokens: a tensor, or how many zeros.
    """
    length = tokens if isinstance(tokens, int) else len(tokens)
    memory = mmap.mmap(-1, max(length, 1) * np.dtype(dtype).itemsize)
    if hasattr(memory, "madvise") and hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    data = np.frombuffer(memory, dtype, length)
    if not isinstance(tokens, int):
        data[:] = tokens.numpy().astype(dtype)
    data.flags.writeable = False
    return data


def _as_batches(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    tokens, dtype, batch_size, context, seed = case.args
    whose = "torch's global generator" if seed is None else "the generator"
    drawn = not same(*report["global"]) if seed is None else report["own"] != _first_number(seed)
    seen: dict[str, Any] = {f"{whose} was drawn from": drawn}
    for label, value in report.items():
        if label not in ("pages", "own", "global"):
            chance = not drawn and _is_batch(value, batch_size, context)
            seen[label] = torch.zeros_like(value) if chance else value
    seen[f"the next number of {whose}"] = report["own"]
    if seed is not None:
        seen["torch's global generator was left alone"] = same(*report["global"])
    if isinstance(tokens, int):
        window = (context + 1) * np.dtype(dtype).itemsize
        allowed = 2 * batch_size * (window // PAGE + 2)
        pages = report["pages"]
        seen["it reads no more than it returns"] = pages is None or pages <= allowed
    return seen


def _first_number(seed: int) -> int:
    return int(torch.randint(1 << 30, (1,), generator=torch.Generator().manual_seed(seed)).item())


def _is_batch(x: Any, batch_size: int, context: int) -> bool:
    return isinstance(x, Tensor) and x.shape == (batch_size, context) and x.dtype == torch.int64


@probe(read=_as_batches)
def batches(subject: Any, case: Case) -> dict[str, Any]:
    """Windows of a token file: inputs and targets, what became of the generator, and what was read.

    The case: the tokens, or the number of zeros in a large file; their dtype; batch size, context, and
    the generator's seed, or None for torch's global one. Of a large file the pages are counted that
    are in memory afterwards. The inputs are overwritten, which the targets must not show. Windows that
    the due generator has no part in are chance, and not looked at.
    """
    tokens, dtype, batch_size, context, seed = case.args
    data = _mapped(tokens, dtype)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    before = torch.get_rng_state()
    given = {} if generator is None else {"generator": generator}
    result = subject(data, batch_size, context, **given)
    after = torch.get_rng_state()
    found = pages_in_memory(data) if isinstance(tokens, int) else None
    pages = None if found is None else int(found.sum())
    seen: dict[str, Any] = {"the result is a pair": _is_pair(result)}
    if _is_pair(result):
        x, y = result
        seen |= {"inputs": fresh(x), "targets": fresh(y)}
        seen["in memory of their own"] = _are_apart(x, y, data)
    own = torch.randint(1 << 30, (1,), generator=generator).item()
    return seen | {"own": own, "global": (before, after), "pages": pages}


def _is_pair(result: Any) -> bool:
    return isinstance(result, tuple | list) and len(result) == 2


def _are_apart(x: Any, y: Any, data: np.ndarray) -> Any:
    """Does overwriting one of them leave the others as they were?"""
    if not all(isinstance(t, Tensor) and is_plain_tensor(t) for t in (x, y)):
        return True
    before = [y.clone(), _first_bytes(data)]
    x.add_(1)
    after = y.clone()
    y.add_(1)
    return unchanged(before, [after, _first_bytes(data)])


def _first_bytes(data: np.ndarray) -> Tensor:
    return torch.from_numpy(data[: 1 << 12].copy().view(np.uint8))


def _called_with_a_file(name: str, case: Case) -> str:
    tokens, dtype, batch_size, context, seed = case.args
    kind = "np.memmap"
    data = f"{tokens:,} zeros" if isinstance(tokens, int) else str(tokens.tolist())
    generator = "" if seed is None else f", generator=torch.Generator().manual_seed({seed})"
    return (
        f"{name}(data, {batch_size}, {context}{generator}), where data is a {kind}, {dtype}: {data}"
    )


batches.called = _called_with_a_file


# ------------------------------------------------------------------------------ streams


def _as_rows(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    documents, *_ = case.args
    seen = {k: v for k, v in report.items() if k not in ("given", "later", "documents")}
    for number, row in enumerate(report["given"], start=1):
        if not _is_pair(row):
            seen[f"row {number}"] = row
            continue
        seen[f"tokens of row {number}"], seen[f"document numbers of row {number}"] = row
    both = zip(report["given"], report["later"], strict=False)
    seen["rows stay as they were given"] = all(_stayed(*rows) for rows in both)
    if report["documents"] != documents:
        seen[labels.changed_argument("documents")] = report["documents"]
    return seen


def _stayed(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return torch.equal(before, after)
    if _is_pair(before) and _is_pair(after):
        return all(_stayed(*parts) for parts in zip(before, after, strict=True))
    return True


@probe(read=_as_rows)
def packed(subject: Any, case: Case) -> dict[str, Any]:
    """Rows that are asked for one by one, and how many documents had been taken for each.

    The case: the documents, the context and the token that ends one; by the keyword `rows`, how many
    rows are asked for, where it is not all. The documents come from an iterator that can be gone
    through once; as a list if the case says `a_list`, of which nobody counts what is taken. A row is
    looked at when it comes, and again when all have come.
    """
    documents, context, end = case.args
    source, taken, rows = Source(documents), [], []
    given: list[Any] = []
    stream = documents if case.kwargs.get("a_list") else source
    for row in islice(subject(stream, context, end), case.kwargs.get("rows")):
        rows.append(row)
        given.append(fresh(row) if len(given) < 40 else None)
        taken.append(source.taken)
    seen: dict[str, Any] = {"rows": len(rows), "given": given[:40], "later": rows[:40]}
    seen["documents taken before each row came"] = taken
    return seen | {"documents": documents}


def _called_with_documents(name: str, case: Case) -> str:
    documents, context, end = case.args
    rows = case.kwargs.get("rows")
    asked = "" if rows is None else f", asked for {rows} row{'s' * (rows != 1)}"
    stream = shown(documents) if case.kwargs.get("a_list") else f"iter({shown(documents)})"
    return f"{name}({stream}, {context}, {end}){asked}"


packed.called = _called_with_documents

_OFTEN = 2000
_SIGMAS = 5.5
_AGAIN = 6


def _as_order(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    items, size = case.args[:2]
    came, left_alone = report["came"], same(*report["global"])
    held = max((h for h in report["held"] if type(h) is int), default=0)
    seen: dict[str, Any] = {
        "every item once": _as_often(came, report["of"]),
        "items held": f"at most {size}" if held <= size else str(held),
        "torch's global generator was left alone": left_alone,
    }
    if left_alone:  # else it is chance
        seen["the same generator gives the same order"] = all(o == came for o in report["again"])
    if size == 1:
        seen["order"] = came
    if "orders" in report:
        room = min(size, len(items))
        found = _out_of_proportion(report["orders"], len(items), room, case.kwargs["often"])
        seen[f"out of proportion in {_OFTEN} orders"] = found
    return seen


def _as_often(came: Any, items: Any) -> bool:
    """The same items as often, in whatever order; they need not be hashable or comparable."""
    return isinstance(came, list) and sorted(map(repr, came)) == sorted(map(repr, items))


def _out_of_proportion(orders: Any, n: int, size: int, places: int) -> list[str]:
    """Which items come out at which of the first places too often or too rarely, by what drawing from a
    buffer has; where some come that cannot, or others never, these alone."""
    due, found = _chances(n, size), []
    for place in range(places):
        amiss, outright = [], []
        for item in range(n):
            chance = float(due[place][item])
            count = sum(order[place] == item for order in orders if len(order) > place)
            off = count - len(orders) * chance
            if abs(off) > _SIGMAS * (len(orders) * chance * (1 - chance)) ** 0.5:
                how = "too often" if off > 0 else "too rarely" if count else "never"
                amiss.append(f"{item} {how} at place {place}")
                outright += amiss[-1:] if not count or not chance else []
        found += outright or amiss
    return found


def _chances(n: int, size: int) -> list[list[Fraction]]:
    """By place and item of 0 … n − 1: how likely it is to come out there."""
    left, chances = {item: Fraction(1) for item in range(size)}, []
    for place in range(n):
        in_buffer = min(size, n - place)
        row = [left.get(item, Fraction(0)) / in_buffer for item in range(n)]
        chances.append(row)
        left = {item: still - row[item] for item, still in left.items()}
        if place + size < n:
            left[place + size] = Fraction(1)
    return chances


@probe(read=_as_order)
def shuffled(subject: Any, case: Case) -> dict[str, Any]:
    """The items that come out of a shuffled stream, and how many had been taken for each.

    The case: the items, the buffer's size, and the generator's seed; by the keyword `take`, how many
    are asked for of the items over and over, without an end; by `often`, at how many of the first places
    the items are counted in many orders, drawn with one generator; by `a_list`, that the items are given
    as a list, of which nobody counts what is taken. Compared is what holds for every
    right order, not the order itself.
    """
    items, size, seed = case.args
    take, a_list = case.kwargs.get("take"), case.kwargs.get("a_list", False)
    before = torch.get_rng_state()
    came, held = _came_out(subject, items, size, torch.Generator().manual_seed(seed), take, a_list)
    again = [
        _came_out(subject, items, size, torch.Generator().manual_seed(seed), take, a_list)[0]
        for _ in range(_AGAIN)
    ]
    seen: dict[str, Any] = {"came": came, "again": again, "held": held, "of": came}
    if take is None:
        seen["of"] = list(items)
    if case.kwargs.get("often"):
        generator = torch.Generator().manual_seed(seed)
        seen["orders"] = [
            _came_out(subject, items, size, generator, take)[0] for _ in range(_OFTEN)
        ]
    return seen | {"global": (before, torch.get_rng_state())}


def _came_out(
    subject: Any,
    items: list[Any],
    size: int,
    generator: torch.Generator,
    take: int | None,
    a_list: bool = False,
) -> tuple[list[Any], list[int]]:
    """What came, and after each item how many had been taken and not come yet."""
    source = Source(items if take is None else cycle(items))
    came, held = [], []
    for item in islice(subject(list(items) if a_list else source, size, generator), take):
        came.append(item)
        held.append(source.taken - len(came))
    return came, held


def _called_with_a_stream(name: str, case: Case) -> str:
    items, size, seed = case.args
    take = case.kwargs.get("take")
    stream = f"iter({shown(items)})" if take is None else f"cycle({shown(items)})"
    stream = shown(items) if case.kwargs.get("a_list") else stream
    asked = "" if take is None else f", asked for {take} items"
    return f"{name}({stream}, {size}, torch.Generator().manual_seed({seed})){asked}"


shuffled.called = _called_with_a_stream


class _AsWorker:
    """As if in a worker of a loader: what `get_worker_info` then says. number None: in none."""

    def __init__(self, number: int | None, count: int, dataset: Any) -> None:
        self.info = None
        if number is not None:
            self.info = workers.WorkerInfo(
                id=number, num_workers=count, seed=number, dataset=dataset
            )

    def __enter__(self) -> None:
        workers._worker_info = self.info

    def __exit__(self, *_: Any) -> None:
        workers._worker_info = None


class _Iterable:
    """What can be gone through and is no iterator itself, as a list."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __iter__(self) -> Source:
        return self.source


_IN_TURN = ", two iterators in turn give the same"


def _as_parts(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    _, _, take = case.args
    seen: dict[str, Any] = {}
    for label, value in report.items():
        if label.endswith(_IN_TURN):
            alone = [*report[f"{label.removesuffix(_IN_TURN)} gives"], None, None, None]
            seen[label] = value == [[item, item] for item in alone[: min(take, 3)]]
        else:
            seen[label] = value
    return seen


@probe(read=_as_parts)
def streamed(subject: Any, case: Case) -> dict[str, Any]:
    """What every worker of one rank gives of a stream, the first time and again.

    The case: the number of items, or None for a source without end; by keyword rank and world_size;
    num_workers, 0 for none; take, how many items each worker is asked for. The object is made outside
    of any worker. It is told of the workers as a DataLoader's own are.
    """
    length, (num_workers, take) = case.args[0], case.args[1:]
    sources: list[Source] = []

    def source() -> Iterable[Any]:
        items = cycle(range(100)) if length is None else iter(range(length))
        sources.append(Source(items))
        return sources[-1] if length is None else _Iterable(sources[-1])

    stream = subject(source, **case.kwargs)
    seen: dict[str, Any] = {}
    for number in range(num_workers) if num_workers else [None]:
        name = "without workers" if number is None else f"worker {number}"
        with _AsWorker(number, num_workers, stream):
            sources.clear()
            one = iter(stream)
            seen[f"{name} gives"] = list(islice(one, take))
            seen[f"{name} has taken of the source"] = sum(s.taken for s in sources)
            both = iter(stream), iter(stream)
            pairs = [[next(it, None) for it in both] for _ in range(min(take, 3))]
            seen[name + _IN_TURN] = pairs
    return seen


def _called_as_stream(name: str, case: Case) -> str:
    length, num_workers, take = case.args
    source = "lambda: cycle(range(100))" if length is None else f"lambda: range({length})"
    given = "".join(f", {key}={value}" for key, value in case.kwargs.items())
    among = f"{num_workers} workers" if num_workers != 1 else "1 worker"
    return f"{name}({source}{given}), {among}, each asked for {take} items"


streamed.called = _called_as_stream


# ------------------------------------------------------------------------------ resuming


@probe
def drawn_again(subject: Any, case: Case) -> dict[str, Any]:
    """What the samplers of all ranks give on the way through a plan.

    The case's keyword arguments: length, world_size, seed, and plan, a list of steps: ["epoch", e];
    ["look", n], ask for n indices by a new iterator and leave it; ["used", n]; ["rest"], all that is
    left; ["begin"], make an iterator, and ["go on", n], ask that one for n; ["save"]; ["resume", n],
    make new samplers on n ranks and load what was saved; ["load", state], whether that is refused.
    """
    given = case.kwargs
    run = _Run(subject, given["length"], given["seed"])
    run.start(given["world_size"])
    for number, (do, *rest) in enumerate(given["plan"], start=1):
        for rank, sampler in enumerate(run.samplers):
            what = run.step(do, rank, sampler, *rest)
            for name, value in what.items():
                run.seen[f"step {number}, rank {rank}: {name}"] = value
        if do == "resume":
            run.start(*rest)
            for sampler in run.samplers:
                sampler.load_state_dict(json.loads(json.dumps(run.saved)))
    return run.seen


class _Run:
    """Samplers of all ranks, their iterators, and what was saved."""

    def __init__(self, subject: Any, length: int, seed: int) -> None:
        self.subject, self.length, self.seed = subject, length, seed
        self.seen: dict[str, Any] = {}
        self.samplers: list[Any] = []
        self.iterators: dict[int, Any] = {}
        self.saved: Any = None

    def start(self, world_size: int) -> None:
        """New samplers, one for each rank."""
        options = {"world_size": world_size, "seed": self.seed}
        self.samplers = [self.subject(self.length, rank=r, **options) for r in range(world_size)]

    def step(self, do: str, rank: int, sampler: Any, *given: Any) -> dict[str, Any]:
        """One step of the plan on one rank, and what it shows."""
        match do:
            case "epoch":
                sampler.set_epoch(*given)
            case "used":
                sampler.advance(*given)
            case "look":
                return {"indices": list(islice(sampler, *given))}
            case "rest":
                return {"length": len(sampler), "indices": list(sampler)}
            case "begin":
                self.iterators[rank] = iter(sampler)
            case "go on":
                return {"indices": list(islice(self.iterators[rank], *given))}
            case "save":
                state = sampler.state_dict()
                self.saved = state if rank == 0 else self.saved
                return {"state": fresh(state)}
            case "load":
                return _refusal(sampler, *given)
        return {}


def _refusal(sampler: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Does it refuse to load that, and is it then as it was?"""
    before = fresh(sampler.state_dict())
    try:
        sampler.load_state_dict(state)
    except ValueError:
        return {
            "loading it": "ValueError",
            "it is as it was before": sampler.state_dict() == before,
        }
    return {"loading it": "no error"}


def _called_by_plan(name: str, case: Case) -> str:
    given = case.kwargs
    world = given["world_size"]
    steps = "; ".join(" ".join(map(str, step)) for step in given["plan"])
    ranks = "1 rank" if world == 1 else f"{world} ranks"
    return f"{name}({given['length']}, seed={given['seed']}) on {ranks}: {steps}"


drawn_again.called = _called_by_plan
