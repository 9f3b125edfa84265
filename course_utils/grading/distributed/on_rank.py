"""The ranks' side of a check: `perform` runs a probe's body on one rank and says what happened there.

It runs in a process of `course_utils.ranks`, like `torchrun`'s. Nothing of one check is left for the
next: the student's object is unpickled anew, settings and environment are put back, and a rank that
cannot vouch for its state says so, so that the kernel starts new ones.
"""

import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.cost import IN_A_THREAD, threads_started
from course_utils.grading.observing.errors import short_message
from course_utils.grading.observing.global_state import quiet
from course_utils.grading.pytrees.serialization import dumps
from course_utils.grading.pytrees.strict import loads
from course_utils.grading.pytrees.text import short
from course_utils.grading.pytrees.tree import Opaque, map_tree
from course_utils.meters import measure
from course_utils.source.tracebacks import files_of, is_students, kinds_of, lines_of

from .bypass import aside_watched
from .log import DONE, Log, Wire, entries_of
from .restore import Before
from .works import works_watched

_GRACE_S = 0.25  # a rank that failed waits so long for the others before it hangs up
_SETTLE_S = 0.005  # for gloo's threads to let go of the tensors of a collective that is done


class Meter:
    """What the counted parts of one body cost, and what went around the meter."""

    def __init__(self) -> None:
        self.measure = measure(parts=True)
        self.around: list[str] = []

    @contextmanager
    def part(self) -> Iterator[None]:
        """Count what this block costs; `around` gathers what it did where nothing is counted."""
        with threads_started() as threads, aside_watched() as aside, self.measure:
            yield
            gc.collect()  # what only a cycle holds is not held
            sleep(_SETTLE_S)
        self.around += aside
        if threads:
            self.around.append(IN_A_THREAD)


_meter: Meter | None = None


@contextmanager
def counted() -> Iterator[None]:
    """For a probe's body: count what this block costs, and nothing else of the body.

    Several such blocks are added up; what one leaves alive is alive in the next. Outside of a
    contract nothing is counted.
    """
    if _meter is None:
        yield
        return
    with _meter.part():
        yield


_held: list[Any] = []


def perform(order: dict[str, Any]) -> bytes:
    """Run a body on this rank. The reply, as a tree: see `reply` below.

    order: parcel (the pickled subject and body), case (a call's tree), rank, run (its number), log
    and logs (paths), costs (whether to count).
    """
    global _meter
    before = Before()
    log = Log(order["log"], order["run"])
    reply: dict[str, Any] = {"seen": None, "raised": None, "left": [], "costs": None, "around": []}
    _meter = meter = Meter() if order["costs"] else None
    try:
        with quiet() as left, works_watched() as pending:
            try:
                subject, body = pickle.loads(order["parcel"])
                case = Case.from_tree(loads(order["case"]))
                with Wire(log):
                    seen = body(subject, case, order["rank"])
                reply["seen"] = _plain(seen)
                dumps(reply["seen"])  # read now: what was not waited for has not come yet
            except BaseException as error:
                reply["raised"] = _raised_here(error)
                del error
        reply["left"] = left
        if meter is not None:
            reply["costs"] = meter.measure.cost.as_dict()
            reply["around"] = sorted(set(meter.around))
    finally:
        _meter = None
        log.write(DONE)
    reply["unwaited"] = sorted({name for name, _ in pending.values()})
    _held[:] = [work for _, work in pending.values()]  # gloo drops a message with its handle
    reply["log"] = log.entries
    reply["left"] += before.put_back()
    reply["clean"] = before.restored and not pending
    if reply["raised"] and not _others_done(order):
        _hang_up()
        reply["clean"] = False
    return dumps(reply)


def _plain(seen: Any) -> Any:
    """What a body saw, as data: tensors of a subclass are named, those still under way waited for."""

    def leaf(value: Any) -> Any:
        if isinstance(value, AsyncCollectiveTensor):
            return value.wait()
        if type(value) is nn.Parameter:
            return value.data.requires_grad_(value.requires_grad)
        if isinstance(value, Tensor) and type(value) is not Tensor:
            return Opaque(type(value).__name__, short(value))
        return value

    return map_tree(leaf, seen)


def _raised_here(error: BaseException) -> dict[str, Any]:
    """An exception as data; its lines with file names, since the kernel knows the sources."""
    message, files = short_message(error), files_of(error)
    lines = lines_of(error, is_students)[-3:]
    return {
        "kinds": list(kinds_of(error)),
        "message": message,
        "lines": [(line.where, line.number, line.filename) for line in lines],
        "second": "Connection closed by peer" in message or "Connection reset" in message,
        "communication": bool(files) and "/torch/distributed/" in files[-1],
    }


def _others_done(order: dict[str, Any]) -> bool:
    """Have all other ranks finished, within a moment?"""
    end = monotonic() + _GRACE_S
    waiting = [path for path in order["logs"] if path != order["log"]]
    while waiting:
        waiting = [path for path in waiting if DONE not in entries_of(path, order["run"])[-1:]]
        if waiting and monotonic() > end:
            return False
        if waiting:
            sleep(0.002)
    return True


def _hang_up() -> None:
    """Close this rank's connections, so that ranks that wait for it fail at once."""
    with suppress(Exception):
        dist.destroy_process_group()
