"""Probes of chapter 21: training whose work is counted, streams of text, tokens that are bytes."""

import random
import sys
from itertools import islice
from typing import Any

from course_utils.grading.driving import labels
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.labels import ARGUMENTS
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import what_a_call_did
from course_utils.grading.probes.watched import Source, peak_bytes
from course_utils.grading.pytrees.shown import shown

# ------------------------------------------------------------------------------ training


class _TooMuch(BaseException):
    """More work than is allowed; no `except Exception` holds it up."""


class _Tally:
    """How often counted tokens were compared or hashed, and how often they may be."""

    def __init__(self, allowed: int) -> None:
        self.allowed, self.looks = allowed, 0

    def add(self) -> None:
        """One more. Raises _TooMuch beyond what is allowed."""
        self.looks += 1
        if self.looks > self.allowed:
            raise _TooMuch


def _counted(tally: _Tally) -> type[int]:
    """A type of integers of which each comparison and each hash is counted."""

    def watched(name: str) -> Any:
        plain = getattr(int, name)

        def method(self: int, *others: Any) -> Any:
            tally.add()
            return plain(self, *others)

        return method

    names = ("__hash__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
    return type("int", (int,), {name: watched(name) for name in names})


def _large_text(n_words: int, seed: int) -> tuple[list[list[int]], list[int]]:
    """Distinct words of 3 to 7 tokens, some tokens much more frequent than others, and their counts."""
    draw = random.Random(seed)
    tokens = range(97, 137)
    weights = [1 / (1 + i) for i in range(len(tokens))]
    words: dict[tuple[int, ...], int] = {}
    while len(words) < n_words:
        word = tuple(draw.choices(tokens, weights, k=draw.randint(3, 7)))
        words[word] = draw.randint(1, 50)
    return [list(word) for word in words], list(words.values())


def _as_plain(tree: Any) -> Any:
    """Counted integers as those that they stand for."""
    if isinstance(tree, tuple | list):
        return type(tree)(map(_as_plain, tree))
    return tree.real if isinstance(tree, int) and type(tree).__base__ is int else tree


def _as_trained(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    return what_a_call_did(report, case, named_by) if ARGUMENTS in report else report


@probe(read=_as_trained)
def trained(subject: Any, case: Case) -> dict[str, Any]:
    """Merges, and what became of the arguments; of a large text, whether they took too much work.

    The case: words, counts and n_merges; or the number of words of a large text, the seed it is drawn
    with, and n_merges. There tokens are integers that count how often they are compared or hashed, and
    the call ends when that is as often as there are pairs, times merges. If fewer tokens were looked at
    than there are, the answer copied them, and the interpreter's steps are counted instead.
    """
    if isinstance(case.args[0], int):
        return _of_a_large_text(subject, *case.args)
    result = subject(*case.args)
    return {"result": result, ARGUMENTS: (case.args, case.kwargs)}


def _of_a_large_text(subject: Any, n_words: int, seed: int, n_merges: int) -> dict[str, Any]:
    words, counts = _large_text(n_words, seed)
    pairs = sum(len(word) - 1 for word in words)
    tally = _Tally(pairs * n_merges)
    kind = _counted(tally)
    try:
        result = subject([[kind(token) for token in word] for word in words], counts, n_merges)
        looks, tally.allowed = tally.looks, 1 << 60  # what comes now is not the answer's work
        if looks < pairs:  # it works on copies of the tokens that cannot be counted
            steps = _Tally(_STEPS * pairs * n_merges)
            _by_steps(steps, subject, words, counts, n_merges)
    except _TooMuch:
        return {"as much work as counting all pairs for each merge": True}
    seen = {"as much work as counting all pairs for each merge": False}
    return seen | {"result": _as_plain(result)}


_STEPS = 10  # of the interpreter: to take up a pair and add to its count takes more


def _by_steps(tally: _Tally, subject: Any, *given: Any) -> None:
    """Call it once more, and count the interpreter's steps. Raises _TooMuch."""

    def trace(frame: Any, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            tally.add()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        subject(*given)
    finally:
        sys.settrace(before)


def _called_with_words(name: str, case: Case) -> str:
    first, second, n_merges = case.args
    if isinstance(first, int):
        return (
            f"{name}(words, counts, {n_merges}), where words are {first:,} words of 3 to 7 tokens"
        )
    return f"{name}({shown(first)}, {shown(second)}, {n_merges})"


trained.called = _called_with_words

# ------------------------------------------------------------------------------ streams


def _as_tokens(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    if "peak" in report:
        allowed = case.kwargs["within"]
        peak = report["peak"]
        held = peak if isinstance(peak, int) else allowed + 1
        return {
            "tokens": report["tokens"],
            "it keeps little of the text": held <= allowed,
        }
    seen = {"tokens": report["tokens"]}
    both = zip(report["taken"], case.kwargs["due"], strict=False)
    late = [[number, taken] for number, (taken, due) in enumerate(both) if taken > due]
    return seen | {
        "tokens that come too late, with the chunks taken by then": late,
        "chunks taken before a token is asked for": report["taken before"],
    }


@probe(read=_as_tokens)
def streamed_tokens(subject: Any, case: Case) -> dict[str, Any]:
    """Tokens that are asked for one by one, and how many chunks had been taken when each came.

    The case: chunks and merges; `due`: how many chunks may have been taken for each token; `take`: how
    many tokens are asked for, where it is not all. Or, with `within`: a number of chunks that are made
    one after the other, of which the tokens are only counted, while the bytes held at the peak are
    measured.
    """
    chunks, merges = case.args
    if "within" in case.kwargs:
        return _long_stream(subject, chunks, merges)
    source, tokens, taken = Source(chunks), [], []
    stream, before = subject(source, merges), source.taken
    for token in islice(stream, case.kwargs.get("take")):
        tokens.append(token)
        taken.append(source.taken)
    return {"tokens": tokens, "taken": taken, "taken before": before}


def _long_stream(subject: Any, number: int, merges: Any) -> dict[str, Any]:
    """Chunks of 40 words of 99 letters."""
    made = (f" {chr(97 + i % 26) * 99}" * 40 for i in range(number))
    with peak_bytes() as peak:
        tokens = sum(1 for _ in subject(made, merges))
        return {"tokens": tokens, "peak": peak()}


def _called_with_chunks(name: str, case: Case) -> str:
    chunks, merges = case.args
    if isinstance(chunks, int):
        return f"{name}(chunks, {{}}) on {chunks} chunks of 4,000 letters"
    take = case.kwargs.get("take")
    asked = "" if take is None else f", asked for {take} tokens"
    return f"{name}(iter({shown(chunks)}), {shown(merges)}){asked}"


streamed_tokens.called = _called_with_chunks

# ------------------------------------------------------------------------------ bytes


@probe
def of_bytes(subject: Any, case: Case) -> dict[str, Any]:
    """Text of tokens. The case: ids and, for each token of the vocabulary, its bytes as integers.

    The ids come as a list, and once more from an iterator, which can be gone through once.
    """
    ids, spelled = case.args
    vocab = [bytes(token) for token in spelled]
    given, kept = list(ids), list(vocab)
    seen: dict[str, Any] = {"result": subject(given, vocab)}
    if given != list(ids):
        seen[labels.changed_argument("ids")] = given
    if vocab != kept:
        seen[labels.changed_argument("vocab")] = [list(token) for token in vocab]
    return seen | {"from an iterator": subject(iter(list(ids)), kept)}


def _called_with_bytes(name: str, case: Case) -> str:
    ids, spelled = case.args
    if len(spelled) > 256:
        return f"{name}({shown(ids)}, vocab), where vocab has all bytes, then {_more(spelled)}"
    return f"{name}({shown(ids)}, {[bytes(token) for token in spelled]})"


def _more(spelled: Any) -> str:
    return ", ".join(str(bytes(token)) for token in spelled[256:])


of_bytes.called = _called_with_bytes
