"""The student's side of a check, in a process of its own, and how one speaks with it.

A *channel* is a function `ask(request, limit_s) -> reply`; requests and replies are trees (see
`values`), so nothing is ever unpickled. `StudentSide.handle` answers them where the student's code
runs: it needs neither references nor exercises and holds nothing that is expected.
`python -m course_utils.grading.remote` serves one over its standard input and output; a frame is its
length in eight bytes, little-endian, then the tree's bytes.
"""

import importlib
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from time import monotonic, perf_counter
from typing import IO, Any

from .case import Case
from .channel import ChannelLost
from .contracts import Contract
from .crossing import dumps, extent, loads, snapshot
from .driven import Driven
from .extract import Answer, answers, build
from .given import install
from .limits import time_limit
from .observe import Observation
from .raised import ENDS, Raised, raised_by
from .signatures import described
from .surroundings import only_answers_here, quiet

LARGEST_FRAME = 64 * 2**20
BATCH_S = 0.5  # after so long a batch of cases is cut short: the rest is asked for again
PIPE_BYTES = 4096  # a pipe that takes any takes so many
BATCH_BYTES = 16 * 2**20
TO_DEFINE_S = 60.0  # for the definitions and imports of an answer; torch alone may take ten

# ------------------------------------------------------------------------------ the student's side


class StudentSide:
    """What runs the student's code and answers questions about it."""

    def __init__(self) -> None:
        self.found: dict[str, Answer] = {}
        self.driven: dict[str, Driven] = {}

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request: read, define, observe or measure.

        Raises KeyError for a request that it does not know, or about what it was not told.
        """
        do: dict[str, Callable[..., dict[str, Any]]] = {
            "read": self.read,
            "define": self.define,
            "observe": self.observe,
            "measure": self.measure,
        }
        return do[request["do"]](**{key: request[key] for key in request if key != "do"})

    def read(self, cells: list[str]) -> dict[str, Any]:
        """The code cells of a notebook: which exercises they answer, and which cannot be parsed."""
        self.found, self.driven = answers(cells), {}
        problems = {key: answer.problem for key, answer in self.found.items() if answer.problem}
        return {"keys": list(self.found), "problems": problems}

    def define(
        self,
        key: str,
        names: list[str],
        methods: list[list[str]],
        probe: str,
        given: dict[str, str],
        limit_s: float = TO_DEFINE_S,
    ) -> dict[str, Any]:
        """Run an answer's statements. methods: of each object, those that are to be described.

        given: modules of the book, by name, as sources, to be found where the book is missing.
        """
        try:
            answer = self.found[key]
            with quiet(), time_limit(limit_s):
                install(given)
                objects = build(answer, names=names)
                tree = [described(obj, m) for obj, m in zip(objects, methods, strict=True)]
        except BaseException as error:  # anything a student's cell may do
            problem = Observation(None, raised_by(error)).as_tree()
            return {"attempted": True, "problem": problem, "descriptions": []}
        subject = objects[0] if len(objects) == 1 else dict(zip(names, objects, strict=True))
        self.driven[key] = Driven(subject, called(probe))
        return {
            "attempted": not answer.is_untouched(len(names)),
            "problem": None,
            "descriptions": tree,
        }

    def observe(
        self, key: str, groups: list[list[Any]], limit_s: float, keep: bool = True
    ) -> dict[str, Any]:
        """What the probe sees on these cases, or on the first of them, and at least on one.

        The rest is left out after an observation that ends a ladder, and when the batch has become
        long or large. overwritten: the number of a kept result that a later call has changed, as it
        was when the group was through.
        """
        driven, start, size, over = self.driven[key], perf_counter(), 0, False
        replies = []
        for group in groups:
            observations: list[Any] = []
            for case in group:
                found, more = bounded(driven.observe(Case.from_tree(case), limit_s, keep))
                observations.append(snapshot(found.as_tree()))  # before a later call may change it
                size += more
                over = bool(found.raised and ENDS.intersection(found.raised.kinds))
                over |= perf_counter() - start > BATCH_S or size > BATCH_BYTES
                if over:
                    break
            replies.append({"observations": observations, "overwritten": driven.overwritten()})
            if over:
                break
        return {"groups": replies}

    def measure(
        self,
        key: str,
        cases: list[Any],
        limit_s: float,
        prepare: str | None = None,
        probe: str | None = None,
        watches_autograd: bool = False,
        results: bool = True,
    ) -> dict[str, Any]:
        """What each call costs. results: what the measured calls returned is asked for too."""
        contract = Contract(
            "",
            tuple(map(Case.from_tree, cases)),
            lambda costs, cases: None,  # who judges holds the limits
            watches_autograd,
            called(prepare) if prepare else None,
            called(probe) if probe else None,
        )
        runs = self.driven[key].measure(contract, limit_s)
        if isinstance(runs, Observation):
            return {"runs": [], "ended": runs.as_tree()}
        return {"runs": [run.as_tree(results) for run in runs], "ended": None}


def in_a_process_of_its_own() -> StudentSide:
    """The student's side where nothing else runs."""
    only_answers_here()
    return StudentSide()


def bounded(found: Observation) -> tuple[Observation, int]:
    """The observation and its bytes; or in its place, where it is too large to cross, that it is."""
    try:
        size = extent(found.seen)
        if size <= LARGEST_FRAME // 2:
            return found, size
        told = f"what your code returned is too large to look at: {size:,} bytes"
    except ValueError as error:
        told = f"what your code returned is too large to look at: {error}"
    return Observation(None, Raised(("TooLarge",), told, told=True), found.seconds), 0


def name_of(function: Callable[..., Any]) -> str:
    """The name by which another process finds a function. Raises ValueError if it has none."""
    name = f"{function.__module__}:{function.__qualname__}"
    try:
        if called(name) is function:
            return name
    except (ImportError, AttributeError):
        pass
    raise ValueError(f"{name} is not at the top level of a module: no other process can find it")


def called(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


# ------------------------------------------------------------------------------ frames


def write_frame(stream: IO[bytes], tree: Any) -> None:
    data = dumps(tree)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def read_frame(stream: IO[bytes], largest: int = LARGEST_FRAME) -> Any:
    """The next frame's tree. Raises EOFError at the end, ValueError for a torn or oversized frame."""
    head = stream.read(8)
    if not head:
        raise EOFError("no more frames")
    size = int.from_bytes(head, "little")
    if len(head) < 8 or size > largest:
        raise ValueError(f"a frame of {size} bytes; at most {largest} may cross")
    data = stream.read(size)
    if len(data) < size:
        raise ValueError(f"a frame was torn: {len(data)} of {size} bytes came")
    return loads(data)


def serve(requests: IO[bytes], replies: IO[bytes]) -> None:
    """Answer requests until there are no more."""
    side = in_a_process_of_its_own()
    while True:
        try:
            request = read_frame(requests)
        except EOFError:
            return
        write_frame(replies, side.handle(request))


# ------------------------------------------------------------------------------ a process


class Process:
    """A channel to a plain process: its own memory, no other bound. A new one after each loss."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> None:
        self.environment, self.cwd = {**os.environ, **(environment or {})}, cwd
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The reply. Raises ChannelLost if none comes in time, or none that can be read."""
        process = self.process = self.process or self.started()
        assert process.stdin and process.stdout
        try:
            end = monotonic() + limit_s
            self.send(process.stdin, request, end)
            reply = loads(self.frame(process.stdout, end))
            if not isinstance(reply, dict):
                raise ValueError("a reply is a dict")
            return reply
        except TimeoutError as error:
            self.close()
            raise ChannelLost(f"gave no answer in {limit_s:.0f} s", "timeout") from error
        except (EOFError, BrokenPipeError) as error:
            self.close()
            raise ChannelLost("ended the process that ran it", "died") from error
        except ValueError as error:
            self.close()
            raise ChannelLost(f"sent what cannot be read: {error}", "garbage") from error

    def send(self, stream: IO[bytes], request: Any, end: float) -> None:
        """Write a frame to a process that may have stopped reading."""
        data = dumps(request)
        ahead = memoryview(len(data).to_bytes(8, "little") + data)
        while ahead:
            if not select.select([], [stream], [], max(end - monotonic(), 0))[1]:
                raise TimeoutError
            ahead = ahead[os.write(stream.fileno(), ahead[:PIPE_BYTES]) :]

    def frame(self, stream: IO[bytes], end: float) -> bytes:
        size = int.from_bytes(self.bytes_of(stream, 8, end), "little")
        if size > LARGEST_FRAME:
            raise ValueError(f"a frame of {size} bytes; at most {LARGEST_FRAME} may cross")
        return self.bytes_of(stream, size, end)

    def bytes_of(self, stream: IO[bytes], size: int, end: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not select.select([stream], [], [], max(end - monotonic(), 0))[0]:
                raise TimeoutError
            piece = os.read(stream.fileno(), min(size - len(data), 2**20))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "course_utils.grading.remote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment,
            cwd=self.cwd,
        )

    def close(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the student prints is not mistaken for a frame
    serve(sys.stdin.buffer, channel)
