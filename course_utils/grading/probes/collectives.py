"""Probes that run on several ranks: processes of this machine, each with its own part of the case.

`run_on_ranks` sends the student's object and each rank's part of the case to as many processes as the
case has calls, runs a *body* there, and gives what every rank saw. A probe of a chapter's own is a
body, a top-level function `body(subject, case, rank) -> dict`, and

    @runs_on_ranks
    def my_probe(subject, case):
        return run_on_ranks(subject, case, my_body)

In a body `case` holds this rank's `args` and `kwargs`, `torch.distributed` is ready for use, and
`with counted():` marks what the contracts on ranks measure.
"""

import atexit
import itertools
import linecache
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from course_utils.meters import Cost

from ..agreement import disagreement, named, waiting
from ..case import Case
from ..limits import ALLOWED
from ..raised import (
    COSTLY,
    DEADLOCK,
    NEVER_EXPECTED,
    TIME_LIMIT,
    Raised,
    RaisedElsewhere,
    is_students,
)
from ..render import shown
from ..values import dumps, fresh, loads
from .functions import UNASKED_GRAD, changed_arguments, gradients, ramp, requires_grad
from .objects import public_attributes

Body = Callable[[Any, Case, int], dict[str, Any]]

# ------------------------------------------------------------------------------ the processes


@dataclass
class Pools:
    """The ranks of this process, by their number: started when first needed, gone when it is gone."""

    owner: int = field(default_factory=os.getpid)
    by_world: dict[int, Any] = field(default_factory=dict)
    folder: str = ""

    def ranks(self, world: int) -> Any:
        from course_utils.ranks import Ranks

        if world not in self.by_world:
            self.by_world[world] = Ranks(world, debug=False)
        return self.by_world[world]

    def log(self, world: int, rank: int) -> str:
        if not (self.folder and Path(self.folder).is_dir()):  # gone with an earlier launcher
            from course_utils.ranks import launch

            home = launch.launcher(launch.DEFAULT).directory  # which goes even if this is killed
            self.folder = tempfile.mkdtemp(prefix="checks-", dir=home)
        return str(Path(self.folder) / f"{world}-{rank}.log")

    def close(self) -> None:
        if os.getpid() != self.owner:
            return
        for ranks in self.by_world.values():
            with suppress(Exception):
                ranks.close()
        self.by_world.clear()
        shutil.rmtree(self.folder or "/nonexistent", ignore_errors=True)
        self.folder = ""


_pools = Pools()
_runs = itertools.count(1)


def pools() -> Pools:
    """This process's own: a fork of it shares none."""
    global _pools
    if _pools.owner != os.getpid():
        _pools = Pools()
    return _pools


@atexit.register
def close() -> None:
    """Stop all ranks that checks have started. The next check starts new ones."""
    pools().close()


# ------------------------------------------------------------------------------ one run


@dataclass
class Measurement:
    """Every rank's cost, and how part of the work escaped being counted (in words), if it did."""

    costs: list[Cost] = field(default_factory=list)
    elsewhere: str = ""


_measuring: ContextVar[Measurement | None] = ContextVar("measurement", default=None)


@contextmanager
def measuring() -> Iterator[Measurement]:
    """Count the costs of each rank of the run on ranks within the block."""
    found = Measurement()
    token = _measuring.set(found)
    try:
        yield found
    finally:
        _measuring.reset(token)


def run_on_ranks(subject: Any, case: Case, body: Body) -> dict[str, Any]:
    """What `body` sees on every rank: {"rank 0: result": …, "rank 1: result": …, …}.

    One rank for each call of the case, which `on_ranks` made. Raises what ended it: an exception of
    the student's on a rank, a deadlock, a rank that died, ranks that disagree, a time limit.
    """
    calls = case.calls
    if not calls:
        raise never("the case runs on no rank: make it with on_ranks(…)", "NoRanks")
    world = len(calls)
    logs = [pools().log(world, rank) for rank in range(world)]
    run = next(_runs)
    measurement = _measuring.get()
    parcel = packed(subject, body)
    orders = [
        (
            {
                "parcel": parcel,
                "case": dumps(one.as_tree()),
                "rank": rank,
                "run": run,
                "log": logs[rank],
                "logs": logs,
                "costs": measurement is not None,
            },
        )
        for rank, one in enumerate(calls)
    ]
    from ..on_a_rank import DONE, entries_of, perform

    ranks = pools().ranks(world)
    try:
        ranks.start()
        answers = ranks.ask(perform, orders, timeout=ALLOWED.get())
    except BaseException:
        pools().by_world.pop(world, None)
        ranks.close()
        raise
    replies = {a.rank: loads(a.value) for a in answers if a.ok}
    failures = {a.rank: a.error for a in answers if not a.ok}
    spoilt = bool(failures) or not all(reply["clean"] for reply in replies.values())
    heard = {rank: replies[rank]["log"] for rank in replies}
    for rank in failures:
        heard[rank] = [e for e in entries_of(logs[rank], run) if e != DONE]
    ended = ending(replies, failures, heard)
    if spoilt or (ended and ended.told):
        ranks.close()
    if ended:
        if spoilt:
            ended = replace(ended, kinds=(*ended.kinds, COSTLY))
        raise RaisedElsewhere(ended)
    if len(replies) != world or not all(reply["seen"] for reply in replies.values()):
        raise never("not every rank had something to show", "NoRanks")
    if measurement is not None:
        measurement.costs += [Cost.from_dict(replies[rank]["costs"]) for rank in sorted(replies)]
        for rank in sorted(replies):
            for what in replies[rank]["around"]:
                measurement.elsewhere = measurement.elsewhere or f"{what}, on rank {rank}"
    seen = {
        f"rank {rank}: {label}": value
        for rank in sorted(replies)
        for label, value in replies[rank]["seen"].items()
    }
    for rank in sorted(replies):
        for what in replies[rank]["left"][:1]:
            seen[f"rank {rank}: surroundings"] = what
    return seen


def packed(subject: Any, body: Body) -> bytes:
    """The object as bytes, with all that it needs of the notebook: functions, classes, closures."""
    parts = list(subject.values()) if isinstance(subject, dict) else [subject]
    homes = {getattr(part, "__module__", None) for part in [*parts, body]}
    by_value = []
    for name in homes:
        module = sys.modules.get(name or "")
        path = (getattr(module, "__file__", None) or "").replace("\\", "/")
        ours = "/course_utils/" in path and not (name or "").startswith("course_utils.exercises")
        if module and path and not ours and "/site-packages/" not in path:
            by_value.append(module)
    added = [m for m in by_value if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps((subject, body))
    except Exception as error:
        raise RaisedElsewhere(
            Raised(
                ("NotSent",),
                f"your code cannot be sent to the ranks: something that it uses of the notebook is "
                f"bound to this process ({type(error).__name__}: {error})",
                told=True,
            )
        ) from error
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


# ------------------------------------------------------------------------------ how it ended


def never(message: str, kind: str) -> RaisedElsewhere:
    """What is wrong with the check itself, and no answer of anybody's."""
    return RaisedElsewhere(Raised((kind, NEVER_EXPECTED), message, told=True))


def ending(
    replies: dict[int, Any], failures: dict[int, Any], heard: dict[int, list[Any]]
) -> Raised | None:
    """What ended the run, if not every rank came to a good end: the cause rather than its effects."""
    raised = {rank: r["raised"] for rank, r in replies.items() if r["raised"]}
    first = {rank: r for rank, r in raised.items() if not r["second"]}
    died = {rank: f for rank, f in failures.items() if f.how == "died"}
    slow = {rank: f for rank, f in failures.items() if f.how == "still running"}
    waits = {rank: f for rank, f in slow.items() if "waiting" in f.message and heard[rank]}
    stuck = {rank: f for rank, f in failures.items() if f.how == "stuck"} | waits
    slow = {rank: f for rank, f in slow.items() if rank not in waits}
    own = {rank: r for rank, r in first.items() if not r["communication"]}
    if own:
        return exception(own)
    returned = not raised and not failures
    if fault := disagreement(heard, finished=returned):
        lines = lines_where(stuck) or lines_raised(first)
        return Raised((f"Disagreement: {fault}", NEVER_EXPECTED), fault, lines, told=True)
    if died:
        return died_on(died)
    if first:
        return exception(first)
    if slow:
        told = f"{named(slow)} {'was' if len(slow) == 1 else 'were'} still running when time was up"
        kinds = (TIME_LIMIT, NEVER_EXPECTED)
        return Raised(kinds, f"{told}: an endless loop?", lines_where(slow), told=True)
    if stuck:
        return deadlock(stuck, heard, set(replies))
    if raised:
        return exception(raised)
    if failures:
        rank, failure = next(iter(failures.items()))
        return Raised((failure.kind, NEVER_EXPECTED), f"rank {rank}: {failure.message}", told=True)
    return never_waited(replies)


def exception(raised: dict[int, Any]) -> Raised:
    """The exception of the first of these ranks, and all the ranks that raised the same."""
    rank = min(raised)
    one = raised[rank]
    same = [r for r in raised if raised[r]["kinds"] == one["kinds"]]
    return Raised(
        tuple(one["kinds"]), one["message"], lines_raised({rank: one}), f" on {named(same)}"
    )


def lines_raised(raised: dict[int, Any]) -> tuple[tuple[str, int, str], ...]:
    for one in raised.values():
        return tuple((where, n, source(file, n)) for where, n, file in one["lines"])
    return ()


def source(file: str, number: int) -> str:
    """A line of the notebook, whose sources only this process knows."""
    return linecache.getline(file, number).strip()


def lines_where(failures: dict[int, Any]) -> tuple[tuple[str, int, str], ...]:
    """Each stuck rank's innermost line in the student's code; ranks at the same line together."""
    at: dict[tuple[str, int, str], list[int]] = {}
    for rank, failure in failures.items():
        own = [line for line in failure.lines if is_students(line.filename)]
        for line in own[-1:]:
            text = line.source or source(line.filename, line.number)
            at.setdefault((line.where, line.number, text), []).append(rank)
    return tuple(
        (f"{where}, {named(ranks)}" if where else named(ranks), number, text)
        for (where, number, text), ranks in at.items()
    )


def died_on(died: dict[int, Any]) -> Raised:
    rank = min(died)
    how = died[rank].message.split("\n")[0].removeprefix("died: ")
    told = f"{named(died)} ended in the middle of it ({how})"
    return Raised(("RankDied", NEVER_EXPECTED), told, told=True)


def deadlock(stuck: dict[int, Any], heard: dict[int, list[Any]], finished: set[int]) -> Raised:
    """The ranks that wait, each with its line; what they wait for is part of the kind."""
    each = {rank: waiting(heard[rank][-1] if heard[rank] else None) for rank in sorted(stuck)}
    told = "a deadlock: " + ", ".join(f"rank {rank} waits {where}" for rank, where in each.items())
    if finished:
        told += f"; {named(sorted(finished))} {'has' if len(finished) == 1 else 'have'} returned"
    kind = f"{DEADLOCK}: {each}"
    return Raised((kind, DEADLOCK, NEVER_EXPECTED), told, lines_where(stuck), told=True)


def never_waited(replies: dict[int, Any]) -> Raised | None:
    for rank, reply in replies.items():
        if reply["unwaited"]:
            name = reply["unwaited"][0]
            told = (
                f"your code never waits for the {name} that it starts on rank {rank}: "
                "nobody knows when it is done"
            )
            return Raised((f"NeverWaited: {name}", NEVER_EXPECTED), told, told=True)
    return None


# ------------------------------------------------------------------------------ probes


def runs_on_ranks(probe: Any) -> Any:
    """Mark a probe that calls `run_on_ranks`: it keeps to the time limit itself, and says its calls."""
    probe.keeps_limit = True
    if not hasattr(probe, "called"):
        probe.called = called_on_ranks
    return probe


def called_on_ranks(name: str, case: Case) -> str:
    """ring(x=[1, 2]) on rank 0, (x=[3, 4]) on rank 1"""

    def arguments(call: Case) -> str:
        given = [shown(value) for value in call.args]
        given += [f"{key}={shown(value)}" for key, value in call.kwargs.items()]
        return f"({', '.join(given)})"

    each = [arguments(call) for call in case.calls]
    if len(set(each)) == 1 and len(each) > 1:
        return f"{name}{each[0]} on each of {len(each)} ranks"
    return name + "; ".join(f"{text} on rank {rank}" for rank, text in enumerate(each))


@runs_on_ranks
def on_ranks(subject: Any, case: Case) -> dict[str, Any]:
    """Call it on every rank: results, the arguments it changed, the gradients that the case names."""
    return run_on_ranks(subject, case, call_there)


def call_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """The body of `on_ranks`: see `probes.call`."""
    from ..on_a_rank import counted

    if case.grad:
        with counted():
            return gradients(subject, case)
    given = (case.args, case.kwargs)
    before = fresh(given)
    with counted():
        result = subject(*case.args, **case.kwargs)
    seen = {"result": result, **changed_arguments(subject, before, given)}
    if requires_grad(result) and not requires_grad(list(before)):
        seen[UNASKED_GRAD] = True
    return seen


@runs_on_ranks
def steps_on_ranks(subject: Any, case: Case) -> dict[str, Any]:
    """Build the class on every rank, then call methods of it, one after the other.

    Of each rank's call the keyword arguments build the object; each positional one is a step: a tuple
    of a method's name ("" or "__call__" for the object itself) and its arguments. Seen are each
    step's result and, at the end, the public attributes that hold arrays or plain values.
    """
    return run_on_ranks(subject, case, steps_there)


def steps_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    from ..on_a_rank import counted

    seen: dict[str, Any] = {}
    with counted():
        thing = subject(**case.kwargs)
        results = []
        for name, *arguments in case.args:
            method = thing if name in ("", "__call__") else getattr(thing, name)
            result = method(*arguments)
            results.append(fresh(result))
            del result
    for number, ((name, *_), result) in enumerate(zip(case.args, results, strict=True), start=1):
        seen[f"result of step {number}{f', {name}' if name else ''}"] = result
    for name in public_attributes(thing):
        value = getattr(thing, name)
        if is_data(value):
            seen[f"attribute `{name}` at the end"] = value
    return seen or {"result": None}


def is_data(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(is_data, value))
    if isinstance(value, dict):
        return all(map(is_data, value.values()))
    return value is None or isinstance(value, Tensor | bool | int | float | str | torch.dtype)


def mlp(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 3))


class Tied(nn.Module):
    """One weight, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(self.first(x).tanh()))
        return y


class Unused(nn.Module):
    """A layer that takes no part, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(5, 3), nn.Linear(4, 4)
        self.register_buffer("scale", torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.used(x) * self.scale
        return y


def seeded(make: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return make()

    return build


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "mlp": mlp,
    "tied": seeded(Tied),
    "unused": seeded(Unused),
}
"""Models of 5 inputs that a case may name; the seed decides the parameters."""


@runs_on_ranks
def module_on_ranks(subject: Any, case: Case) -> dict[str, Any]:
    """Wrap a model on every rank (as DistributedDataParallel does) and train it for some steps.

    Of each rank's call: model, a name of MODELS; seed, of its parameters (a different one on each rank
    shows whether they are made equal); options, keyword arguments of the wrapper; lr, of plain SGD
    between steps. Each positional argument is the input (N, 5) of one step. Seen are each step's
    output and gradients, and at the end parameters and buffers, by the model's own names.
    """
    return run_on_ranks(subject, case, module_there)


def module_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    from ..on_a_rank import counted

    given = case.kwargs
    model = MODELS[given["model"]](given["seed"])
    double = any(x.dtype == torch.float64 for x in case.args)
    model = model.double() if double else model
    seen: dict[str, Any] = {}
    with counted():
        wrapped = subject(model, **given.get("options", {}))
    for number, x in enumerate(case.args, start=1):
        model.zero_grad()
        with counted():
            output = wrapped(x)
            (output * ramp(output)).sum().backward()
            finish = getattr(wrapped, "finish", None)
            if finish is not None:
                finish()
        seen[f"output of step {number}"] = output.detach().clone()
        for name, p in model.named_parameters():
            seen[f"gradient of `{name}` in step {number}"] = (
                None if p.grad is None else p.grad.clone()
            )
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None:
                    p.sub_(p.grad, alpha=given.get("lr", 0.1))
    for name, value in model.state_dict().items():
        seen[f"`{name}` at the end"] = value
    return seen


__all__ = [
    "MODELS",
    "measuring",
    "module_on_ranks",
    "on_ranks",
    "run_on_ranks",
    "runs_on_ranks",
    "steps_on_ranks",
]
