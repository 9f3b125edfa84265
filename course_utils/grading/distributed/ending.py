"""How a run on ranks ended: the cause rather than its effects."""

import linecache
from typing import Any

from course_utils.grading.observing.errors import (
    DEADLOCK,
    TIME_LIMIT,
    Raised,
    RaisedElsewhere,
)
from course_utils.ranks.report import DIED, SLOW, STUCK
from course_utils.source.tracebacks import is_students

from .agreement import disagreement, named, waiting


def never(message: str, kind: str) -> RaisedElsewhere:
    """What is wrong with the check itself, and no answer of anybody's."""
    return RaisedElsewhere(Raised((kind,), message, told=True, never=True))


def ending(
    replies: dict[int, Any], failures: dict[int, Any], heard: dict[int, list[Any]]
) -> Raised | None:
    """What ended the run, if not every rank came to a good end: the cause rather than its effects."""
    raised = {rank: r["raised"] for rank, r in replies.items() if r["raised"]}
    first = {rank: r for rank, r in raised.items() if not r["second"]}
    died = {rank: f for rank, f in failures.items() if f.how == DIED}
    slow = {rank: f for rank, f in failures.items() if f.how == SLOW}
    waits = {rank: f for rank, f in slow.items() if f.waits and heard[rank]}
    stuck = {rank: f for rank, f in failures.items() if f.how == STUCK} | waits
    slow = {rank: f for rank, f in slow.items() if rank not in waits}
    own = {rank: r for rank, r in first.items() if not r["communication"]}
    if own:
        return _exception(own)
    returned = not raised and not failures
    if fault := disagreement(heard, finished=returned):
        lines = _lines_where(stuck) or _lines_raised(first)
        return Raised((f"Disagreement: {fault}",), fault, lines, told=True, never=True)
    if died:
        return _died_on(died)
    if first:
        return _exception(first)
    if slow:
        told = f"{named(slow)} {'was' if len(slow) == 1 else 'were'} still running when time was up"
        told += ": an endless loop?"
        return Raised((TIME_LIMIT,), told, _lines_where(slow), told=True, never=True)
    if stuck:
        return _deadlock(stuck, heard, set(replies))
    if raised:
        return _exception(raised)
    if failures:
        rank, failure = next(iter(failures.items()))
        return Raised((failure.kind,), f"rank {rank}: {failure.message}", told=True, never=True)
    return _never_waited(replies)


def _exception(raised: dict[int, Any]) -> Raised:
    """The exception of the first of these ranks, and all the ranks that raised the same."""
    rank = min(raised)
    one = raised[rank]
    same = [r for r in raised if raised[r]["kinds"] == one["kinds"]]
    return Raised(
        tuple(one["kinds"]), one["message"], _lines_raised({rank: one}), f" on {named(same)}"
    )


def _lines_raised(raised: dict[int, Any]) -> tuple[tuple[str, int, str], ...]:
    for one in raised.values():
        return tuple((where, n, _source(file, n)) for where, n, file in one["lines"])
    return ()


def _source(file: str, number: int) -> str:
    """A line of the notebook, whose sources only this process knows."""
    return linecache.getline(file, number).strip()


def _lines_where(failures: dict[int, Any]) -> tuple[tuple[str, int, str], ...]:
    """Each stuck rank's innermost line in the student's code; ranks at the same line together."""
    at: dict[tuple[str, int, str], list[int]] = {}
    for rank, failure in failures.items():
        own = [line for line in failure.lines if is_students(line.filename)]
        for line in own[-1:]:
            text = line.source or _source(line.filename, line.number)
            at.setdefault((line.where, line.number, text), []).append(rank)
    return tuple(
        (f"{where}, {named(ranks)}" if where else named(ranks), number, text)
        for (where, number, text), ranks in at.items()
    )


def _died_on(died: dict[int, Any]) -> Raised:
    rank = min(died)
    how = died[rank].message.split("\n")[0].removeprefix("died: ")
    told = f"{named(died)} ended in the middle of it ({how})"
    return Raised(("RankDied",), told, told=True, never=True)


def _deadlock(stuck: dict[int, Any], heard: dict[int, list[Any]], finished: set[int]) -> Raised:
    """The ranks that wait, each with its line; what they wait for is part of the kind."""
    each = {rank: waiting(heard[rank][-1] if heard[rank] else None) for rank in sorted(stuck)}
    told = "a deadlock: " + ", ".join(f"rank {rank} waits {where}" for rank, where in each.items())
    if finished:
        told += f"; {named(sorted(finished))} {'has' if len(finished) == 1 else 'have'} returned"
    kind = f"{DEADLOCK}: {each}"
    return Raised((kind, DEADLOCK), told, _lines_where(stuck), told=True, never=True)


def _never_waited(replies: dict[int, Any]) -> Raised | None:
    for rank, reply in replies.items():
        if reply["unwaited"]:
            name = reply["unwaited"][0]
            told = (
                f"your code never waits for the {name} that it starts on rank {rank}: "
                "nobody knows when it is done"
            )
            return Raised((f"NeverWaited: {name}",), told, told=True, never=True)
    return None
