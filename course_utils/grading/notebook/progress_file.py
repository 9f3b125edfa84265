"""What a student has done: one small JSON file, written atomically, never lost silently."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from course_utils.files import write_whole
from course_utils.settings import home

_VERSION = 1
T = TypeVar("T")


class Store:
    """The progress file. warnings: what went wrong when it was read, in words for the student."""

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (folder or home()) / "progress.json"
        self.warnings: list[str] = []

    def read(self) -> dict[str, dict[str, Any]]:
        """Entries by exercise key. A damaged file is set aside under another name, and said."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            if data["version"] > _VERSION:
                raise ValueError(f"it was written by a newer edition (format {data['version']})")
            entries = data["exercises"]
            if not all(isinstance(entry, dict) for entry in entries.values()):
                raise ValueError("its entries are not of the expected form")
            return dict(entries)
        except FileNotFoundError:
            return {}
        except OSError as error:
            self.warn(f"the progress file {self.path} cannot be read: {error}")
            return {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.set_aside(error)
            return {}

    def set_aside(self, error: Exception) -> None:
        """Keep a damaged file under a name of its own, so that the next edit loses nothing."""
        aside = self.path.with_name(f"progress.damaged-{time.strftime('%Y%m%d-%H%M%S')}.json")
        n = 1
        while aside.exists():
            aside = aside.with_stem(f"{aside.stem}-{n}")
            n += 1
        self.path.replace(aside)
        self.warn(
            f"the progress file was damaged ({error}); it is kept as {aside}, and a new one is begun"
        )

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def edit(self, change: Callable[[dict[str, dict[str, Any]]], T]) -> T:
        """Apply `change` to the entries and save them together, under a lock.

        Where nothing can be written (a full or read-only disk) the work goes on and says so.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_suffix(".lock"), timeout=5):
                entries = self.read()
                result = change(entries)
                self.write(entries)
                return result
        except OSError as error:
            self.warn(f"your progress could not be saved in {self.path}: {error}")
            return change({})  # the caller's answer, from nothing that was kept

    def write(self, entries: dict[str, dict[str, Any]]) -> None:
        text = json.dumps({"version": _VERSION, "exercises": entries}, indent=1, sort_keys=True)
        write_whole(self.path, text + "\n")

    def update(self, key: str, **changes: Any) -> dict[str, Any]:
        """Change one entry; the entry as it then is."""

        def change(entries: dict[str, dict[str, Any]]) -> dict[str, Any]:
            entry = entries.setdefault(key, {})
            entry.update(changes)
            return entry

        return self.edit(change)

    def take_warnings(self) -> list[str]:
        """The warnings since the last call."""
        taken, self.warnings = self.warnings, []
        return taken


_store: Store | None = None


def store() -> Store:
    """The one store of this process; a new one when the file's place has changed."""
    global _store
    wanted = Store()
    if _store is None or _store.path != wanted.path:
        _store = wanted
    return _store
