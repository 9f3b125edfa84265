"""Which of a student's notebooks are those of the assignment, by their names."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

_AGAIN = re.compile(r"( ?\(\d+\)|-\d+)$")
"""What Canvas and browsers put behind the name of a file that is there already."""
_CHAPTER = re.compile(r"\d\d_([a-z]\w*)$")


@dataclass(frozen=True)
class HandedOut:
    """names: of notebooks, without ".ipynb". chapters: whose notebooks count by the book's names, too."""

    names: frozenset[str] = frozenset()
    chapters: frozenset[str] = frozenset()

    @classmethod
    def by(cls, names: Iterable[str], keys: Iterable[str]) -> "HandedOut":
        """By the names of the files that were handed out, and the exercises that count."""
        chapters = frozenset(key.partition(".")[0] for key in keys)
        return cls(frozenset(PurePosixPath(name).stem for name in names), chapters)

    def includes(self, stem: str) -> bool:
        """Is this such a name? Something may stand before it, as Canvas writes it, and a number behind."""
        plain = _AGAIN.sub("", stem)
        chapter = _CHAPTER.search(plain)
        if chapter and chapter[1] in self.chapters:
            return True
        return any(plain == name or plain.endswith(f"_{name}") for name in self.names)


ANY = HandedOut()
"""Nothing is known of what was handed out."""
