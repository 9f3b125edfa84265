"""A probe of collectives on ranks that counts rounds: messages that wait for one another."""

from collections import defaultdict, deque
from functools import partial
from typing import Any

from course_utils.grading.distributed.agreement import Logs
from course_utils.grading.distributed.probe import runs_on_ranks
from course_utils.grading.distributed.run import run_on_ranks
from course_utils.grading.driving.case import Case
from course_utils.grading.probes.on_ranks import call_there, what_calls_did


@runs_on_ranks(read=what_calls_did)
def in_rounds(subject: Any, case: Case) -> dict[str, Any]:
    """What `on_ranks` sees, and whether ⌈log2 n⌉ rounds of messages are enough for what was sent."""
    return run_on_ranks(subject, case, call_there, heard=partial(_told, case.world))


def _told(world: int, logs: Logs) -> dict[str, str]:
    """The rounds if they are more than it takes, with who sends how often; else the most there may be."""
    due, came = (world - 1).bit_length(), rounds(logs)
    if came <= due:
        return {"rounds of messages": f"at most {due}"}
    sent = {rank: sum(e["name"] == "send" for e in own) for rank, own in sorted(logs.items())}
    each = ", ".join(f"{n} by rank {rank}" for rank, n in sent.items() if n)
    return {"rounds of messages": f"{came}; messages: {each}"}


def rounds(logs: Logs) -> int:
    """How many rounds the ranks' messages take: in one, a rank sends one at most, and only what it had
    before the round began."""
    at, sent, had = dict.fromkeys(logs, 0), dict.fromkeys(logs, 0), dict.fromkeys(logs, 0)
    under_way: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    moved = True
    while moved:
        moved = False
        for rank, entries in logs.items():
            for entry in entries[at[rank] :]:
                if entry["name"] == "send":
                    sent[rank] = max(sent[rank], had[rank]) + 1
                    under_way[rank, entry["peer"]].append(sent[rank])
                elif entry["name"] == "recv":
                    arriving = under_way[entry["peer"], rank]
                    if not arriving:
                        break
                    had[rank] = max(had[rank], arriving.popleft())
                at[rank] += 1
                moved = True
    return max(sent.values(), default=0)
