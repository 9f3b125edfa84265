"""Do the ranks agree on what they do together? Read from each rank's list of communications."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from course_utils.meters import format_bytes
from course_utils.ranks.rank.operations import waits_in

Entry = dict[str, Any]
Logs = Mapping[int, Sequence[Entry]]
_ALIKE = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
"""Collectives in which every rank gives a tensor of the same number of elements and dtype."""
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


def disagreement(logs: Logs, finished: bool) -> str | None:
    """In words, the first thing in which the ranks' calls do not fit together; None if they do.

    finished: has every rank returned? Only then is a call that others lack, or a message that nobody
    receives, a fault; until then it may still come.
    """
    return _in_collectives(logs, finished) or _in_messages(logs, finished)


def _in_collectives(logs: Logs, finished: bool) -> str | None:
    groups: dict[tuple[str, tuple[int, ...]], dict[int, list[Entry]]] = defaultdict(dict)
    for rank, entries in logs.items():
        for entry in entries:
            if entry["name"] not in ("send", "recv"):
                key = entry["group"], tuple(entry["ranks"])
                groups[key].setdefault(rank, []).append(entry)
    for (_, ranks), calls in groups.items():
        mine = {rank: calls.get(rank, []) for rank in ranks if rank in logs}
        for number in range(max(map(len, mine.values()))):
            there = {rank: own[number] for rank, own in mine.items() if number < len(own)}
            first, *others = there
            for other in others:
                if differ(there[first], there[other]):
                    return (
                        f"the ranks do not agree: as its {_ordinal(number + 1)} collective rank "
                        f"{first} calls {_described(there[first])}, rank {other} "
                        f"{_described(there[other])}"
                    )
            missing = [rank for rank in mine if rank not in there]
            if missing and finished:
                return (
                    f"the ranks do not agree: {named(there)} {_calls(there)} "
                    f"{_described(there[first])}, {named(missing)} "
                    f"{'does' if len(missing) == 1 else 'do'} not"
                )
    return None


def differ(a: Entry, b: Entry) -> bool:
    """Are these two calls no part of one collective?"""
    if a["name"] != b["name"]:
        return True
    if a["name"] in _ROOTED and a["peer"] != b["peer"]:
        return True
    return a["name"] in _ALIKE and (a["numel"], a["dtype"]) != (b["numel"], b["dtype"])


def _in_messages(logs: Logs, finished: bool) -> str | None:
    """Messages between two ranks pair up one by one, in order."""
    sent: dict[Any, list[Entry]] = defaultdict(list)
    received: dict[Any, list[Entry]] = defaultdict(list)
    anywhere = set()
    for rank, entries in logs.items():
        for entry in entries:
            tail = entry["group"], entry["tag"]
            if entry["name"] == "send":
                sent[(rank, entry["peer"], *tail)].append(entry)
            elif entry["name"] == "recv" and entry["peer"] >= 0:
                received[(entry["peer"], rank, *tail)].append(entry)
            elif entry["name"] == "recv":
                anywhere.add(rank)
    for key in [*sent, *(key for key in received if key not in sent)]:
        source, target = key[:2]
        if target in anywhere:
            continue
        there, here = sent[key], received[key]
        for out, into in zip(there, here, strict=False):
            if out["sent"] != into["received"]:
                kinds = [f" of {e['dtype']}" for e in (out, into)]
                if kinds[0] == kinds[1]:
                    kinds = ["", ""]
                return (
                    f"rank {source} sends {format_bytes(out['sent'])}{kinds[0]} where rank {target} "
                    f"receives {format_bytes(into['received'])}{kinds[1]}"
                )
        if finished and len(there) != len(here):
            return (
                f"rank {source} sends {_count(len(there), 'message')} to rank {target}, which "
                f"receives {len(here) or 'none'}"
            )
    return None


def _described(entry: Entry) -> str:
    """all_reduce of 4 elements, float32."""
    text = str(entry["name"])
    if entry["numel"] or entry["dtype"]:
        text += f" of {_count(entry['numel'], 'element')}, {entry['dtype']}"
    if entry["name"] in _ROOTED and entry["peer"] >= 0:
        text += f", root {entry['peer']}"
    return text


def waiting(entry: Entry | None) -> str:
    """Where a rank is stuck, from its last communication."""
    if entry is None:
        return "before any communication"
    return waits_in(entry["name"], entry["peer"])


def named(ranks: Iterable[int]) -> str:
    """rank 0; ranks 0 and 2; ranks 0, 1 and 3."""
    all_ = [str(rank) for rank in ranks]
    if len(all_) == 1:
        return f"rank {all_[0]}"
    return f"ranks {', '.join(all_[:-1])} and {all_[-1]}"


def _calls(ranks: Iterable[int]) -> str:
    return "calls" if len(list(ranks)) == 1 else "call"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
