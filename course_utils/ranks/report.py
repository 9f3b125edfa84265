"""What one rank answered, and how the failures of all of them read."""

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

RAISED, STUCK, SLOW, DIED = "raised", "stuck", "still running", "died"
"""How a rank can fail. STUCK: it waits for other ranks, and nothing that could wake it is on its
way. SLOW: time ran out while it did something else. DIED: its process is gone."""

_LONGEST_MESSAGE = 1500


class Group(NamedTuple):
    """A process group: does torch check that collectives match; its own timeout in seconds."""

    debug: bool = True
    timeout: float | None = None


class Line(NamedTuple):
    """A line of the caller's own code. where: the function's name, "" at the top of a cell."""

    where: str
    number: int
    source: str
    filename: str = ""

    def __str__(self) -> str:
        inside = f" in {self.where}" if self.where else ""
        return f"line {self.number}{inside}:  {self.source}"


class State(NamedTuple):
    """Where a rank stands. inside: the operation that it waits in, "in recv from rank 0", if known."""

    quiet_s: float = 0.0
    waits: bool = False
    inside: str = ""
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Failure:
    """Why a rank has no result.

    kinds: the exception's class name, then its bases' (RAISED only). lines: where, in the caller's
    own code, outermost first. communication: a RuntimeError out of torch.distributed, which may leave
    the group unusable. waits: it stood in a call that waits for other ranks.
    """

    how: str
    message: str
    kinds: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    communication: bool = False
    waits: bool = False

    @property
    def kind(self) -> str:
        """The exception's class name, or "stuck", "still running", "died"."""
        return self.kinds[0] if self.kinds else self.how

    @property
    def order(self) -> int:
        """Causes first: a death, an exception, an exception that others may have caused, waiting."""
        return [DIED, RAISED, SLOW, STUCK].index(self.how) * 2 + self.communication

    def __str__(self) -> str:
        head = f"{self.kind}: {self.message}" if self.how == RAISED else self.message
        return "\n".join([head.rstrip(": "), *(f"    {line}" for line in self.lines[-3:])])


@dataclass
class Reply:
    """What one rank did with what it was given.

    items: what it showed, in order: ("out" | "err" | "warning", text) and ("show", mime bundle).
    value: what a function returned. error: None if all went well. seconds: measured by the rank.
    """

    rank: int
    items: list[tuple[str, Any]] = field(default_factory=list)
    value: Any = None
    error: Failure | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Did all go well on this rank?"""
        return self.error is None

    @property
    def text(self) -> str:
        """What it printed; the last expression's text too, if it has no other form."""
        return "".join(
            item if kind == "out" else item.get("text/plain", "") + "\n"
            for kind, item in self.items
            if kind in ("out", "show")
        )

    @property
    def stderr(self) -> str:
        """What it wrote to stderr."""
        return "".join(item for kind, item in self.items if kind == "err")

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings that its code gave, each as text."""
        return tuple(item for kind, item in self.items if kind == "warning")

    @property
    def displays(self) -> list[dict[str, Any]]:
        """Figures and last expressions, as mime bundles."""
        return [item for kind, item in self.items if kind == "show"]

    @property
    def stuck(self) -> tuple[Line, ...] | None:
        """Where it stands, if it waits for ranks that will not come or ran out of time."""
        return self.error.lines if self.error and self.error.how in (STUCK, SLOW) else None


class RanksError(RuntimeError):
    """At least one rank failed. replies: those of all ranks; lost: what no longer exists, in words."""

    def __init__(self, replies: Sequence[Reply], lost: str = "") -> None:
        self.replies = list(replies)
        self.lost = lost
        super().__init__(_report(replies, lost))

    @property
    def failures(self) -> dict[int, Failure]:
        """By rank, how each that failed did so."""
        return {reply.rank: reply.error for reply in self.replies if reply.error}

    def _render_traceback_(self) -> list[str]:
        """IPython shows this in place of a traceback, which would only show the kernel's waiting."""
        return ["RanksError: " + str(self)]


class NotSent(TypeError):
    """A value that cannot be pickled, by the name under which it was to be sent to the ranks."""


class NotRun(Exception):
    """Why a cell was not even begun, in one line: no traceback of the magic's own code."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class RanksInterrupted(KeyboardInterrupt):
    """The stop button, with where each rank stood and what was lost."""

    def __init__(self, replies: Sequence[Reply], lost: str = "") -> None:
        self.replies = list(replies)
        self.lost = lost
        super().__init__("\n".join(["interrupted", *_places(replies), lost]).rstrip())

    def _render_traceback_(self) -> list[str]:
        return ["KeyboardInterrupt: " + str(self)]


def names_of(ranks: Iterable[int]) -> str:
    """[0-3], [1], [0,2]: ranks as the output names them."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return f"[{','.join(parts)}]"


def _places(replies: Sequence[Reply]) -> list[str]:
    """Each failure after the ranks that met it, causes before what they brought about; then the rest."""
    failed = [reply for reply in replies if reply.error]
    groups: dict[str, list[int]] = {}
    for reply in sorted(failed, key=lambda reply: reply.error.order if reply.error else 0):
        groups.setdefault(str(reply.error), []).append(reply.rank)
    lines = [f"{names_of(ranks)} {text}" for text, ranks in groups.items()]
    done = [reply.rank for reply in replies if reply.ok]
    return [*lines, f"{names_of(done)} finished"] if done else lines


def _report(replies: Sequence[Reply], lost: str = "") -> str:
    """How many ranks failed, how, where, and what was lost."""
    failed = sum(not reply.ok for reply in replies)
    head = f"{failed} of {len(replies)} ranks failed" if len(replies) > 1 else "the rank failed"
    return "\n".join([head, *_places(replies), lost]).rstrip()


def tidy(message: str) -> str:
    """torch's message without C++ frames, source files and port numbers: the same in every run."""
    message = re.split(r"\n?(Exception raised from |C\+\+ CapturedTraceback|frame #0)", message)[0]
    message = re.sub(r"\[/\S+\.(cc|cpp|h):\d+\]\s*", "", message)
    message = re.sub(r"(\[[\w.:]+\]):\d{2,5}\b", r"\1", message)
    message = re.sub(r", TensorDeviceTypes=TensorOptions\((?:[^()]|\([^()]*\))*\)", "", message)
    message = re.sub(
        r"\.?Collectives differ in the following aspects:\s*", ". They differ in ", message
    )
    message = re.sub(r"Tensor Tensor shapes: (\S+?)vs ", r"tensor shapes: \1 vs ", message)
    message = re.sub(r"Op type: (\S+?)vs ", r"op type: \1 vs ", message)
    message = message.replace(" in 86400000 ms", "").strip()
    if len(message) > _LONGEST_MESSAGE:
        message = message[:_LONGEST_MESSAGE] + " …"
    return message


_PLAIN = "text/plain"


def show(replies: Sequence[Reply]) -> None:
    """Print and display what the ranks showed. What all showed alike is shown once, as [0-3].

    Warnings come first, each once, with the ranks that gave it.
    """
    warned: dict[str, list[int]] = {}
    for reply in replies:
        for text in dict.fromkeys(reply.warnings):
            warned.setdefault(text, []).append(reply.rank)
    for text, ranks in warned.items():
        print(_labelled(text, names_of(ranks)), file=sys.stderr)
    shown = {reply.rank: _joined(reply.items) for reply in replies}
    alike = len(shown) > 1 and all(items == shown[replies[0].rank] for items in shown.values())
    if alike:
        show_items(shown[replies[0].rank], names_of(shown))
        return
    for rank, items in shown.items():
        show_items(items, names_of([rank]))


def _joined(items: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Items without warnings; a value that has no form but text is text; text in a row is one."""
    found: list[tuple[str, Any]] = []
    for kind, item in items:
        if kind == "warning":
            continue
        if kind == "show" and set(item) == {_PLAIN}:
            kind, item = "out", item[_PLAIN] + "\n"
        if found and kind != "show" and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1] + item)
        else:
            found.append((kind, item))
    return found


def show_items(items: Sequence[tuple[str, Any]], label: str) -> None:
    """Print and display, in order, every line after `label`."""
    for kind, item in items:
        if kind == "show":
            print(_labelled(item.get(_PLAIN, ""), label))
            _display_bundle(item)
        else:
            print(_labelled(item, label), file=sys.stdout if kind == "out" else sys.stderr)


def _display_bundle(bundle: dict[str, Any]) -> None:
    from IPython.display import display

    sys.stdout.flush()
    display(bundle, raw=True)


def _labelled(text: str, label: str) -> str:
    """Every line of `text` after its rank."""
    return "\n".join(f"{label} {line}".rstrip() for line in text.removesuffix("\n").split("\n"))
