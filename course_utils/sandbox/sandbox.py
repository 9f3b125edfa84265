"""`Sandbox`: the grader's side. It starts the process that forks, and speaks with submissions.

Like `frames`, it loads no torch: the sandbox's process and the grader can load theirs side by side.
"""

import secrets
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from time import monotonic
from typing import Any

from course_utils.grading.student.channel import ChannelLost

from . import bubblewrap, frames, levels
from .handles import Broken, Spawner, SubmissionProcess, ZygoteHandle
from .limits import Limits

_HANDLER = "course_utils.grading.student.server:in_a_process_of_its_own"
_LAST_WORDS_S = 2.0  # for the news how a process ended, which comes after its channel has closed
_FIRST_UID, _UIDS = 0x70000000, 1 << 24  # of nobody else
_LAYERS = {"fork": sys.platform == "linux", "namespaces": True, "rlimits": True, "seccomp": True}


class Sandbox:
    """Runs the code of submissions apart from the grader. Use it in a `with` block, from one thread.

    isolation: "best" (what the machine gives), "bubblewrap" (that, or SandboxMissing) or "process".
    limits: what one submission may use. A process with torch loaded is started at once, and ready
    after seconds (`start` waits for it); another one when a submission first needs ranks.

    Raises SandboxMissing (from best_level).
    """

    def __init__(
        self,
        isolation: str = levels.BEST,
        limits: Limits | None = None,
        *,
        handler: str = _HANDLER,
        layers: dict[str, bool] | None = None,
    ) -> None:
        self.kind, self.why = levels.chosen(isolation)
        self._limits = limits or Limits()
        self.handler = handler
        self.layers = _LAYERS | (layers or {})
        self.own_user = bubblewrap.is_root() and (
            self.kind == levels.BUBBLEWRAP or levels.can_be_another()
        )
        self.zygotes: dict[bool, ZygoteHandle | Spawner] = {}
        self.loads: list[str] = []
        self.spare: SubmissionProcess | None = None
        self.zygote(ranks=False)

    @property
    def limits(self) -> Limits:
        """What one submission may use, from the next one on."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits
        self.drop_spare()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process that forks, and with it everything inside."""
        self.spare = None
        for zygote in self.zygotes.values():
            zygote.close()
        self.zygotes.clear()

    @cached_property
    def level(self) -> str:
        """The isolation in words for people. Raises Broken if Python does not start inside."""
        return levels.described(self.kind, self.why, self.start()["namespaces"])

    def start(self, *, ranks: bool = False) -> dict[str, Any]:
        """Start the process that forks, if it is not there, and wait until it can.

        Raises Broken if Python does not start inside.
        """
        return self.zygote(ranks).wait_ready()

    def zygote(self, ranks: bool) -> ZygoteHandle | Spawner:
        """The home of processes with or without ranks; a new one where that has died."""
        found = self.zygotes.get(ranks)
        if found is not None:
            found.listen()
            if found.alive:
                return found
            found.close()
        new: ZygoteHandle | Spawner
        if self.layers["fork"]:
            new = ZygoteHandle(self.kind, self.handler, ranks, self.layers["namespaces"])
        else:
            new = Spawner(self.handler, ranks)
        if self.loads:
            new.load(self.loads)
        self.zygotes[ranks] = new
        return new

    def load(self, modules: Iterable[str]) -> None:
        """Let submissions from now on find these modules loaded: each would take its time over them."""
        new = [name for name in modules if name not in self.loads]
        if new:
            self.loads += new
            for zygote in self.zygotes.values():
                zygote.load(new)
            self.drop_spare()

    def fork(self, ranks: bool, cpu_s: float | None = None) -> SubmissionProcess:
        """A process for a submission. cpu_s: what is left of its seconds, if not all of them.

        Where every submission has namespaces of its own, one is always kept ready: the next
        submission need not wait until its process has been made.
        """
        zygote = self.zygote(ranks)
        apart = zygote.wait_ready()["namespaces"] and not ranks
        zygote.calm()
        if not apart or cpu_s is not None:
            return zygote.fork(self.order(ranks, cpu_s))
        process, self.spare = self.spare, None
        if process is not None and (process.home is not zygote or process.gone()):
            process.end()
            process = None
        process = process or zygote.fork(self.order(ranks))
        self.spare = zygote.fork(self.order(ranks))
        process.apart = self.spare.apart = True
        return process

    def drop_spare(self) -> None:
        """Make no use of the one that is ready."""
        if self.spare is not None:
            self.spare.abandon()
            self.spare = None

    def order(self, ranks: bool, cpu_s: float | None = None) -> dict[str, Any]:
        """What a process is told of its limits. cpu_s: as for `fork`."""
        limits = asdict(self.limits) | ({} if cpu_s is None else {"cpu_s": cpu_s})
        uid = _FIRST_UID + secrets.randbelow(_UIDS) if self.own_user else None
        return {"limits": limits, "ranks": ranks, "uid": uid, "layers": self.layers}

    def submission(self, *, ranks: bool = False) -> "SubmissionChannel":
        """A channel to the code of one submission; its process starts with the first request.

        ranks: may it start processes, and use the network of its own sandbox (its loopback)?
        """
        return SubmissionChannel(self, ranks)


class SubmissionChannel:
    """The channel to one submission. What is defined there lasts until the process is lost."""

    def __init__(self, sandbox: Sandbox, ranks: bool) -> None:
        self.sandbox = sandbox
        self.ranks = ranks
        self.wall_s = 0.0
        self.cpu_s = 0.0
        self.process: SubmissionProcess | None = None
        self.closed = False

    def __enter__(self) -> "SubmissionChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the submission's processes, whatever they do. It answers no more.

        With namespaces of its own it can disturb nobody as it ends: nobody waits for that.
        """
        self.closed = True
        if self.process is not None and self.process.apart:
            self.process.abandon()
            self.process = None
        self.end()

    def end(self) -> None:
        """End the process, if there is one, and add what it used to what the submission has used."""
        if self.process is not None:
            process, self.process = self.process, None
            process.end()
            self.cpu_s += process.cpu_s

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The reply to a request within `limit_s` seconds of wall time.

        Raises ChannelLost; then the process is gone, and the next request meets a new one, in which
        nothing is defined. Once the submission has used up what it may use in all, every request
        ends so. Raises Broken if the sandbox itself fails.
        """
        if self.closed:
            raise ValueError("this submission is closed")
        from course_utils.grading.pytrees.serialization import dumps

        self.within_budget()
        data = dumps(request)
        process = self.process or self.begin()
        limits, began = self.sandbox.limits, monotonic()
        deadline = began + min(limit_s, limits.wall_s - self.wall_s)
        try:
            token = frames.send(process.channel, data, deadline, process)
            reply = frames.receive(process.channel, token, deadline, limits.reply, process)
            return frames.parsed(reply, limits.reply)
        except frames.TooLate:
            raise self.lost(f"gave no answer in {deadline - began:.3g} s", "timeout") from None
        except frames.Flood as error:
            raise self.lost(str(error), "flood") from None
        except frames.Garbage as error:
            raise self.lost(str(error), "garbage") from None
        except frames.Ended:
            process.wait(_LAST_WORDS_S)
            raise self.lost(*_ending(process, limits)) from None
        except BaseException:
            self.end()
            raise
        finally:
            self.wall_s += monotonic() - began

    def within_budget(self) -> None:
        """Raises ChannelLost if the submission has used up its seconds."""
        limits = self.sandbox.limits
        for used, most, what in (
            (self.wall_s, limits.wall_s, "seconds"),
            (self.cpu_s, limits.cpu_s, "seconds of CPU time"),
        ):
            if used >= most:
                self.end()
                raise ChannelLost(f"had used up the {most:g} {what} of a submission", "timeout")

    def begin(self) -> SubmissionProcess:
        """A new process for this submission, with what is left of its CPU time."""
        left = self.sandbox.limits.cpu_s - self.cpu_s if self.cpu_s else None
        self.process = self.sandbox.fork(self.ranks, left)
        return self.process

    def lost(self, reason: str, how: str) -> ChannelLost:
        """What is said of a loss. Raises Broken where the code of the submission has no part in it."""
        process = self.process
        self.end()
        if process and process.unable:
            raise Broken(f"no process can be started for a submission: {process.unable}")
        if process and process.status is None and not process.home.alive:
            raise Broken("the process that forks has ended")
        return ChannelLost(reason, how)


def _ending(process: SubmissionProcess, limits: Limits) -> tuple[str, str]:
    """How a process ended, in words that follow "your code", and the kind of loss that it is."""
    status = process.status
    if process.why:
        return process.why, "died"
    if status is None:
        return "ended the process that ran it", "died"
    if process.cpu_s >= limits.cpu_s:
        return f"used up the {limits.cpu_s:g} s of CPU time of a submission", "timeout"
    if status < 0:
        with suppress(ValueError):
            return f"ended the process that ran it ({signal.Signals(-status).name})", "died"
    return f"ended the process that ran it (exit status {status})", "died"


__all__ = ["Broken", "Limits", "Sandbox", "SubmissionChannel", "ZygoteHandle"]
