"""What a rank sends, noted before it is sent: the list outlives a stuck rank."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from course_utils.meters.communication import Communication, communicates, communication
from course_utils.ranks.frames import may_block


class Log:
    """A file that holds each communication of a rank before it begins: it outlives a stuck rank.

    The first line is the number of the run, so that nobody takes an earlier one for it.
    """

    def __init__(self, path: str, run: int) -> None:
        if path not in _files:
            _files[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.file = _files[path]
        self.entries: list[dict[str, Any]] = []
        os.ftruncate(self.file, 0)
        self.write(run)

    def note(self, what: Communication) -> None:
        """Before a communication begins: keep it, and write it down."""
        entry = vars(what)
        self.entries.append(entry)
        self.write(entry)

    def write(self, entry: Any) -> None:
        os.write(self.file, json.dumps(entry).encode() + b"\n")


DONE = "done"
_files: dict[str, int] = {}


def entries_of(path: str, run: int) -> list[Any]:
    """What a rank has noted in this run so far; the last entry is "done" if it has finished."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError:
        return []
    if len(lines) < 2 or json.loads(lines[0]) != run:
        return []
    return [json.loads(line) for line in lines[1:-1]]


class Wire(TorchDispatchMode):
    """Sees every call of torch.distributed that passes torch's dispatcher, those of C++ too."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(is_traceable_wrapper_subclass_type(t) for t in types):
            return NotImplemented  # the subclass takes it apart; its parts come here
        if getattr(func, "namespace", "aten") != "aten" and communicates(func):
            with suppress(ValueError):  # a group that this rank is not in
                self.log.note(communication(func, args, kwargs or {}))
        return may_block(func, *args, **(kwargs or {}))
