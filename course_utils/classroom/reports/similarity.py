"""Answers that resemble one another: a help for whoever then reads both, not a verdict.

The text of an answer is cut into tokens by one regular expression; nothing is parsed or run. Names
that the student may choose are made one, comments, docstrings and layout dropped. Hashes of every
`K` tokens in a row are thinned by winnowing (Schleimer, Wilkerson, Aiken: Winnowing: Local Algorithms
for Document Fingerprinting, SIGMOD 2003, section 4): of each window of `WINDOW` hashes the smallest is
kept, so two texts that share `K + WINDOW - 1` tokens in a row share a fingerprint. What the stub, the
book's version and its alternatives contain is taken away, and so is what many of the class wrote: a
short exercise has few right answers, and most of the class gives them.
"""

import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import combinations
from typing import Any

from course_utils.grading import find
from course_utils.grading.declaring.cells import solution_cell, stub_cell
from course_utils.source.cells import DECORATED
from course_utils.source.text import source_of

K, WINDOW = 6, 4
LONGEST = 40_000  # characters of an answer that are looked at
FEWEST = 8  # fingerprints of its own that an answer needs, to say anything
COMMON_LEAST, COMMON_SHARE = 5, 0.1  # a fingerprint in more submissions than this is common
THRESHOLD = 0.6
MOST_PAIRS = 50
TOKEN = re.compile(
    r"""
    (?P<skip> [ \t\r\f\v\\]+ | \#[^\n]* )
  | (?P<long> [rRbBfFuU]{0,2} (?: \"\"\" [\s\S]*? (?:\"\"\"|\Z) | ''' [\s\S]*? (?:'''|\Z) ) )
  | (?P<text> [rRbBfFuU]{0,2} (?: "(?:\\.|[^"\\\n])*"? | '(?:\\.|[^'\\\n])*'? ) )
  | (?P<number> \d[\w.]* )
  | (?P<name> [^\W\d]\w* )
  | (?P<line> \n )
  | (?P<sign> \*\* | // | -> | [=!<>]= | := | << | >> | . )
    """,
    re.VERBOSE,
)
"""Every character is in exactly one token, found in one pass: the work grows with the length alone."""

BINDS = re.compile(r"\b(?:def|class)[ \t]+(\w+)")


@dataclass(frozen=True)
class Pair:
    """Two students' answers to one exercise. shared, of: fingerprints; of: the smaller answer's."""

    key: str
    first: str
    second: str
    shared: int
    of: int

    @property
    def share(self) -> float:
        return self.shared / self.of


@dataclass(frozen=True)
class Group:
    """Students whose answers to one exercise are the same, token by token, though not the book's."""

    key: str
    students: tuple[str, ...]


@dataclass(frozen=True)
class Similarity:
    """pairs: above the threshold, most alike first. groups: too many to be pairs. compared: answers
    with enough of their own, by exercise; short: those with too little of their own. left_out:
    further pairs above the threshold."""

    pairs: tuple[Pair, ...]
    compared: dict[str, int]
    short: dict[str, int]
    threshold: float
    left_out: int = 0
    groups: tuple[Group, ...] = ()
    texts: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)


def exercise_cells(cells: Iterable[str]) -> dict[str, str]:
    """The text of each answer by key, from the text of code cells: from its `@exercise("…")` to the
    next or to the cell's end. Of several cells with one key the last counts, as in grading."""
    found: dict[str, str] = {}
    for text in cells:
        starts = [*DECORATED.finditer(text)]
        here: dict[str, list[str]] = {}
        for i, start in enumerate(starts):
            end = starts[i + 1].start() if i + 1 < len(starts) else len(text)
            here.setdefault(start[1], []).append(text[start.start() : end])
        found |= {key: "\n".join(parts) for key, parts in here.items()}
    return found


def tokens(text: str) -> list[str]:
    """Tokens with the student's own names made one: names of functions that are defined elsewhere,
    attributes, keywords and numbers stay."""
    text = text[:LONGEST]
    own = set(BINDS.findall(text))
    out: list[str] = []
    for found in TOKEN.finditer(text):
        kind, value = found.lastgroup, found[0]
        if kind in ("skip", "line", "long") or kind is None:
            continue
        if kind == "name":
            called = text[found.end() : found.end() + 1] == "("
            outer = out[-1:] == ["."] or (called and value not in own)
            out.append(value if keyword.iskeyword(value) or outer else "v")
        else:
            out.append("s" if kind == "text" else value)
    return out


def fingerprints(text: str) -> frozenset[int]:
    """The winnowed hashes of a text's tokens."""
    words = tokens(text)
    if len(words) < K:
        return frozenset()
    hashes = [digest(words[i : i + K]) for i in range(len(words) - K + 1)]
    if len(hashes) < WINDOW:
        return frozenset(hashes)
    return frozenset(min(hashes[i : i + WINDOW]) for i in range(len(hashes) - WINDOW + 1))


def _all_hashes(text: str) -> frozenset[int]:
    """Every hash, not thinned: what is taken away has to be taken away wherever a window falls."""
    words = tokens(text)
    return frozenset(digest(words[i : i + K]) for i in range(len(words) - K + 1))


def digest(words: Sequence[str]) -> int:
    """A hash of tokens in a row, 64 bits."""
    data = "\0".join(words).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def book_texts(keys: Iterable[str]) -> dict[str, list[str]]:
    """What is subtracted for each exercise: the stub, the book's version, its alternatives."""
    found: dict[str, list[str]] = {}
    for key in keys:
        try:
            exercise = find(key)
        except LookupError:
            found[key] = []
            continue
        texts = [stub_cell(key), solution_cell(key)]
        for other in exercise.alternatives:
            parts = other.subject.values() if isinstance(other.subject, dict) else [other.subject]
            texts += [text for part in parts for text in _written(part)]
        found[key] = texts
    return found


def _written(part: Any) -> list[str]:
    """The source of a function, or of a class and of those of the book that it extends."""
    found = []
    for one in part.__mro__ if isinstance(part, type) else [part]:
        if one.__module__.startswith("course_utils"):
            try:
                found.append(source_of(one))
            except OSError:  # a class without a line of code of its own
                continue
    return found


def similar(
    sources: Mapping[str, Mapping[str, str]],
    known: Mapping[str, Sequence[str]] | None = None,
    threshold: float = THRESHOLD,
) -> Similarity:
    """Pairs of answers that share at least `threshold` of the smaller one's fingerprints.

    sources: text by student and exercise. known: texts to take away by exercise, by default the
    book's (`book_texts`).
    """
    keys = sorted({key for answers in sources.values() for key in answers})
    known = book_texts(keys) if known is None else known
    pairs: list[Pair] = []
    groups: list[Group] = []
    compared, short = {}, {}
    for key in keys:
        mine = _own_fingerprints(key, sources, known.get(key, ()))
        groups += _groups_of(key, mine)
        own = _without_common(mine)
        enough = {student: prints for student, prints in own.items() if len(prints) >= FEWEST}
        compared[key], short[key] = len(enough), len(own) - len(enough)
        pairs += _pairs_of(key, enough, threshold)
    pairs.sort(key=lambda pair: (-pair.share, -pair.of, pair.key, pair.first, pair.second))
    shown = tuple(pairs[:MOST_PAIRS])
    texts = {(s, p.key): sources[s][p.key] for p in shown for s in (p.first, p.second)}
    return Similarity(
        shown, compared, short, threshold, len(pairs) - len(shown), tuple(groups), texts
    )


def _own_fingerprints(
    key: str, sources: Mapping[str, Mapping[str, str]], known: Sequence[str]
) -> dict[str, frozenset[int]]:
    """Each student's fingerprints without the book's."""
    book = frozenset().union(*(_all_hashes(text) for text in known)) if known else frozenset()
    return {
        student: fingerprints(answers[key]) - book
        for student, answers in sources.items()
        if key in answers
    }


def _limit_of(n: int) -> float:
    """In how many of n submissions a fingerprint may be without being common."""
    return max(COMMON_LEAST, COMMON_SHARE * n)


def _without_common(own: Mapping[str, frozenset[int]]) -> dict[str, frozenset[int]]:
    times = Counter(one for prints in own.values() for one in prints)
    common = {one for one, n in times.items() if n > _limit_of(len(own))}
    return {student: prints - common for student, prints in own.items()}


def _groups_of(key: str, own: Mapping[str, frozenset[int]]) -> list[Group]:
    """Larger groups with one answer: what they share is common, so they are in no pair."""
    same = defaultdict(list)
    for student in sorted(own):
        if len(own[student]) >= FEWEST:
            same[own[student]].append(student)
    many = [students for students in same.values() if len(students) > _limit_of(len(own))]
    return [Group(key, tuple(students)) for students in many]


def _pairs_of(key: str, own: Mapping[str, frozenset[int]], threshold: float) -> list[Pair]:
    holders = defaultdict(list)
    for student in sorted(own):
        for one in own[student]:
            holders[one].append(student)
    shared: Counter[tuple[str, str]] = Counter()
    for students in holders.values():
        shared.update(combinations(students, 2))
    found = []
    for (first, second), n in shared.items():
        smaller = min(len(own[first]), len(own[second]))
        if n >= threshold * smaller:
            found.append(Pair(key, first, second, n, smaller))
    return found
