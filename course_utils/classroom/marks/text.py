"""Text that came from a student, made harmless: for pages, for cells of a spreadsheet, for file names.

What one sees must be what is there, so characters that act instead of being shown (controls, those
that turn the direction of the text, halves of surrogate pairs) are written as ⟨U+202E⟩.
"""

import hashlib
import re
import unicodedata
from collections.abc import Sequence

NAME, SENTENCE, CODE = 120, 400, 2000
"""How many characters are shown of a name, of a sentence, of a piece of code."""

ACTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
SPACE = re.compile(r"[\t\n]")
FORMULA = "=+-@|%＝＋－＠"  # what spreadsheets take for the beginning of a formula
PLAIN = re.compile(r"[a-z0-9][a-z0-9._]{0,58}[a-z0-9]|[a-z0-9]", re.ASCII)
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?|index", re.ASCII)


def visible(text: str, most: int = SENTENCE) -> str:
    """The text with every character that acts written out, and cut after `most` characters."""
    cut = len(text) > most
    shown = ACTS.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text[:most])
    return shown + " …" if cut else shown


def line(text: str, most: int = SENTENCE) -> str:
    """The same on one line."""
    return SPACE.sub(" ", visible(text, most))


def code_parts(text: str, most: int = SENTENCE) -> list[tuple[str, bool]]:
    """A sentence cut at its backticks: each part, and whether it is code. One backtick alone is text."""
    parts = visible(text, most).split("`")
    if len(parts) % 2 == 0:
        return [("`".join(parts), False)]
    return [(part, i % 2 == 1) for i, part in enumerate(parts)]


def cell(text: str, most: int = SENTENCE) -> str:
    """Text for a cell of CSV. What a spreadsheet would take for a formula begins with an apostrophe."""
    shown = line(text, most)
    return "'" + shown if is_formula(shown) else shown


def is_formula(text: str) -> bool:
    """Would a spreadsheet take this text for a formula?"""
    return text.lstrip().startswith(tuple(FORMULA))


def number(value: float) -> str:
    """At most two decimals, none that say nothing: 4, 3.5, 2.67."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def plural(n: int, one: str, many: str = "") -> str:
    """ "1 student", "3 students"."""
    return f"{n} {one if n == 1 else many or one + 's'}"


def few(texts: Sequence[str], most: int = 10, longest: int = 300) -> list[str]:
    """The first of these texts, cut to a length, and how many more there are: a student may choose both."""
    found = [text if len(text) <= longest else text[: longest - 1] + "…" for text in texts[:most]]
    return found + ([f"and {len(texts) - most} more"] if len(texts) > most else [])


def file_name(student: str) -> str:
    """A file's name, without suffix, for any student's: safe on every system, one for each student.

    A plain name is its own (`ada_l`); every other ends in a digest of the whole of it, which keeps
    names apart that differ only in case, in what cannot stand in a file's name, or after 40 letters.
    """
    if PLAIN.fullmatch(student) and not RESERVED.fullmatch(student):
        return student
    letters = unicodedata.normalize("NFC", student[:400].encode("utf-8", "ignore").decode())
    words = "".join(c if c.isalnum() else " " for c in letters).split()
    digest = hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    slug = "_".join(words).lower()[:40].encode()[:120].decode("utf-8", "ignore")
    return f"{slug}-{digest}" if slug else digest
