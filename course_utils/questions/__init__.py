"""Questions a reader commits to: predictions inside a chapter, a quiz at its end.

A chapter's questions are data, in `course_utils/questions/<chapter>.py`: any number of
`Prediction`s under their names, and one `Quiz` called `quiz`. The right answers of a prediction are
not written down: they are computed, by running the very code that the prediction is about.
"""

import ast
import difflib
import hashlib
import importlib
import math
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import EllipsisType, ModuleType
from typing import Any

import torch

from course_utils.figures.interactive import Interactive

__all__ = ["Ask", "Choice", "Prediction", "Question", "Quiz", "can_view", "predict", "quiz"]

Given = bool | str | None  # an answer as the form holds it: None while it is open


def can_view(make: Callable[[], Any]) -> bool:
    """Does `make()`, such as `lambda: x.view(12)`, run without raising?"""
    try:
        make()
    except RuntimeError:
        return False
    return True


# --- The questions, as an author writes them


@dataclass(frozen=True)
class Ask:
    """One thing to predict.

    text: the question in inline Markdown, or a Python expression, which is shown as code.
    truth: an expression for the right answer; the type of its value decides what is asked for:
        bool (yes or no), int, float, tuple, or text (str, a dtype, a device).
    why: what makes it so, in inline Markdown.
    accept: other spellings that count as right.
    """

    text: str
    truth: str
    why: str
    accept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """Questions that are answered before the code is run, and judged together.

    setup: code run before the truths are computed, not shown. code: shown above the asks, and run
    after `setup`. Expressions may use `torch`, `can_view`, and what the two define.
    """

    title: str
    asks: Sequence[Ask]
    setup: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        if not self.asks:
            raise ValueError(f"The prediction {self.title!r} asks nothing: give it an Ask.")

    @cached_property
    def truths(self) -> tuple[Any, ...]:
        """The right answers, computed once; the reader's random numbers stay as they were."""
        names: dict[str, Any] = {"torch": torch, "can_view": can_view}
        with torch.random.fork_rng(devices=[]):
            self._run(f"{self.setup}\n{self.code}", names, exec)
            return tuple(self._run(ask.truth, names, eval) for ask in self.asks)

    def _run(self, source: str, names: dict[str, Any], how: Callable[..., Any]) -> Any:
        try:
            return how(source, names)
        except Exception as error:
            raise ValueError(
                f"The prediction {self.title!r} cannot be judged: {type(error).__name__}: {error}, "
                f"in {source.strip()!r}"
            ) from error

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """What each ask asks for: bool, int, float, tuple or str."""
        return tuple(_kind(truth) for truth in self.truths)


@dataclass(frozen=True)
class Choice:
    """One answer to choose, and why it is right or not. Shown as code where it is an expression."""

    text: str
    why: str
    right: bool = False


@dataclass(frozen=True)
class Question:
    """A question with one right choice. text: inline Markdown; code: shown beneath it."""

    text: str
    choices: Sequence[Choice]
    code: str = ""

    def __post_init__(self) -> None:
        if sum(choice.right for choice in self.choices) != 1 or len(self.choices) < 2:
            raise ValueError(f"{self.text!r} needs two choices or more, exactly one of them right.")
        if not all(choice.why for choice in self.choices):
            raise ValueError(f"{self.text!r}: every choice says why it is right or wrong.")

    @property
    def id(self) -> str:
        """Names this wording of the question, so that stored answers never outlive it."""
        words = "\n".join([self.text, self.code, *(choice.text for choice in self.choices)])
        return hashlib.sha256(words.encode()).hexdigest()[:10]

    @property
    def right(self) -> int:
        """The number of the right choice, from 0."""
        return next(n for n, choice in enumerate(self.choices) if choice.right)


@dataclass(frozen=True)
class Quiz:
    """The three to five questions that end a chapter."""

    questions: Sequence[Question]
    title: str = "What did you take away?"

    def __post_init__(self) -> None:
        if not self.questions:
            raise ValueError("A quiz needs a question.")


# --- Judging an answer given in Python


def _kind(truth: Any) -> str:
    if isinstance(truth, bool):
        return "bool"
    for kind in (int, float, tuple, str):
        if isinstance(truth, kind):
            return kind.__name__
    if isinstance(truth, list):
        return "tuple"
    if isinstance(truth, (torch.dtype, torch.device, torch.memory_format, torch.layout)):
        return "str"
    raise ValueError(
        f"A truth of type {type(truth).__name__} cannot be asked for (got {truth!r}): use a bool, "
        "int, float, tuple, str, dtype or device."
    )


def _plain(value: Any) -> str:
    """The value as a reader would write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        items = [_plain(item) if isinstance(item, (tuple, list)) else str(item) for item in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    return str(value)


def _is_open(answer: Any) -> bool:
    return answer is None or answer is ... or (isinstance(answer, str) and not answer.strip())


def _given(kind: str, answer: Any) -> Given:
    """What the reader wrote in Python, as the form would hold it.

    Raises ValueError where the form could not hold it: a word for a number, a number for a yes.
    """
    if _is_open(answer):
        return None
    written = _plain(answer).strip()
    if kind == "bool":
        words = {"yes": True, "true": True, "no": False, "false": False}
        if written.lower() not in words:
            raise ValueError(f"True or False is asked for, got {answer!r}")
        return words[written.lower()]
    if kind in ("int", "float"):
        try:
            float(written)
        except ValueError:
            raise ValueError(f"a number is asked for, got {answer!r}") from None
    return written


def _matches(kind: str, truth: Any, given: bool | str) -> bool:
    """Is the answer right? The same rules as in figures/js/questions.js."""
    if kind == "bool":
        return given is truth
    given, written = str(given), _plain(truth)
    if kind in ("int", "float"):
        return math.isclose(float(given), float(written), rel_tol=0.0 if kind == "int" else 1e-6)
    form = _tuple_form if kind == "tuple" else _text_form
    return form(given) == form(written)


def _tuple_form(text: str) -> str:
    """One spelling for all the ways to write a tuple: `[4, 1]`, `4 1`, `torch.Size([4, 1])`."""
    form = text.replace("torch.Size", "").translate(str.maketrans("[{]}", "(())")).strip()
    if "," not in form:
        form = re.sub(r"(\w)\s+(?=[\w-])", r"\1,", form)
    form = re.sub(r",(?=\)|$)", "", re.sub(r"\s+", "", form))
    while _closes_at_end(form):
        form = form[1:-1].removesuffix(",")
    return form


def _closes_at_end(form: str) -> bool:
    """Does the bracket that opens first close last?"""
    depth = 0
    for at, character in enumerate(form):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return at > 0 and at == len(form) - 1
    return False


def _text_form(text: str) -> str:
    form = re.sub(r"^([\"'`])(.*)\1$", r"\2", text.strip())
    return re.sub(r"\s+", " ", form).removeprefix("torch.").lower()


@dataclass(frozen=True)
class Judged:
    """The answers to a prediction, and which were right (None while one of them is open)."""

    prediction: Prediction
    given: tuple[Given, ...]
    problem: str = ""

    @property
    def committed(self) -> bool:
        return not self.problem and all(answer is not None for answer in self.given)

    @cached_property
    def marks(self) -> tuple[bool, ...] | None:
        if not self.committed:
            return None
        return tuple(
            _matches(kind, truth, answer)
            or any(_matches(kind, other, answer) for other in ask.accept)
            for ask, kind, truth, answer in zip(
                self.prediction.asks,
                self.prediction.kinds,
                self.prediction.truths,
                self.given,
                strict=True,
            )
            if answer is not None
        )


def judge(prediction: Prediction, answer: Any = ...) -> Judged:
    """Judge what the reader wrote: one answer for each ask, `...` for one that is still open."""
    answers, count = _listed(answer, len(prediction.asks))
    if all(_is_open(one) for one in answers):
        return Judged(prediction, (None,) * count)
    if len(answers) != count:
        problem = f"{_count(count, 'answer')} asked for, {len(answers)} given."
        return Judged(prediction, (None,) * count, problem)
    given: list[Given] = []
    problem = ""
    for n, (kind, one) in enumerate(zip(prediction.kinds, answers, strict=True), 1):
        try:
            given.append(_given(kind, one))
        except ValueError as error:
            given.append(None)
            problem = problem or f"Answer {n}: {error}."
    return Judged(prediction, tuple(given), problem)


def _listed(answer: Any, count: int) -> tuple[list[Any], int]:
    """The answers as a list; a lone ask takes its answer bare, even where that is a tuple."""
    several = isinstance(answer, (list, tuple)) and not isinstance(answer, torch.Size)
    if several and (count > 1 or (isinstance(answer, list) and len(answer) == 1)):
        return list(answer), count
    return [answer], count


# --- Showing


@dataclass(frozen=True, repr=False)
class Answered(Interactive):
    """A form with what was answered in Python. marks: right or not, None while not committed."""

    marks: tuple[bool, ...] | None = field(default=None, kw_only=True)


def predict(key: str, answer: Any = ...) -> Answered:
    """The prediction `"chapter.name"`, as a form; with answers, also judged.

    answer: one for each question, in order, `...` where you have not decided. While one is open,
    nothing is revealed.

    Raises LookupError where there is no such prediction, naming those that there are.
    """
    prediction = _find(key)
    judged = judge(prediction, answer)
    return Answered(
        script="questions",
        alt=f"Predict: {_without_marks(prediction.title)}",
        text=_prediction_text(key, judged),
        data={
            "key": key,
            "title": prediction.title,
            "code": prediction.code.strip("\n"),
            "problem": judged.problem or ("" if judged.committed else _open_text(judged)),
            "answers": list(judged.given),
            "asks": [
                {
                    "text": ask.text,
                    "code": _is_code(ask.text),
                    "kind": kind,
                    "truth": truth if kind == "bool" else _plain(truth),
                    "accept": list(ask.accept),
                    "why": ask.why,
                }
                for ask, kind, truth in zip(
                    prediction.asks, prediction.kinds, prediction.truths, strict=True
                )
            ],
        },
        marks=judged.marks,
    )


def quiz(
    chapter: str, answer: Sequence[str | EllipsisType | None] | EllipsisType = ...
) -> Answered:
    """The quiz of a chapter, as a form; with letters such as `["b", "a", ...]`, also judged.

    Raises LookupError where the chapter has no quiz, naming those that have one.
    """
    found = getattr(_module(chapter), "quiz", None)
    if not isinstance(found, Quiz):
        raise LookupError(f"Chapter {chapter!r} has no quiz.")
    letters = [] if answer is ... else list(answer)
    picked: list[int | None] = []
    problem = ""
    if all(_is_open(letter) for letter in letters):
        picked = [None] * len(found.questions)
    elif len(letters) != len(found.questions):
        problem = f"{_count(len(found.questions), 'answer')} asked for, {len(letters)} given."
        picked = [None] * len(found.questions)
    else:
        for n, (question, letter) in enumerate(zip(found.questions, letters, strict=True), 1):
            allowed = "abcdefgh"[: len(question.choices)]
            at = None if _is_open(letter) else allowed.find(str(letter).strip().lower() or "?")
            if at == -1:
                problem = f"Question {n} has the choices {', '.join(allowed)}: got {letter!r}."
                at = None
            picked.append(at)
    answered = any(at is not None for at in picked)
    return Answered(
        script="questions",
        alt=f"Quiz: {_without_marks(found.title)}",
        text=_quiz_text(chapter, found, picked, problem),
        data={
            "chapter": chapter,
            "title": found.title,
            "problem": problem,
            "answers": {
                q.id: at for q, at in zip(found.questions, picked, strict=True) if at is not None
            }
            if answered
            else None,
            "questions": [
                {
                    "id": question.id,
                    "text": question.text,
                    "code": question.code.strip("\n"),
                    "choices": [
                        {"text": c.text, "code": _is_code(c.text), "right": c.right, "why": c.why}
                        for c in question.choices
                    ],
                }
                for question in found.questions
            ],
        },
        marks=tuple(at == q.right for q, at in zip(found.questions, picked, strict=True))
        if None not in picked
        else None,
    )


def _is_code(text: str) -> bool:
    """Is the text a Python expression, rather than words?"""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return False
    shapes = (ast.Attribute, ast.Call, ast.Subscript, ast.Tuple)  # `row-major` is no subtraction
    return any(isinstance(part, shapes) for part in ast.walk(node))


def _without_marks(text: str) -> str:
    """Inline Markdown as plain text; the same marks as in figures/js/base.js."""
    if _is_code(text):
        return text
    marks = r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\$([^$]+)\$"
    return re.sub(marks, lambda match: match[match.lastindex or 0], text)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _open_text(judged: Judged) -> str:
    given = sum(answer is not None for answer in judged.given)
    return f"{given} of {len(judged.given)} answered: not committed yet." if given else ""


_ASKED = {
    "bool": "yes or no?",
    "int": "a whole number?",
    "float": "a number?",
    "tuple": "a tuple?",
    "str": "a word?",
}


def _prediction_text(key: str, judged: Judged) -> str:
    prediction = judged.prediction
    lines = [f"Predict: {_without_marks(prediction.title)}"]
    if prediction.code:
        lines += ["", *(f"    {line}" for line in prediction.code.strip("\n").splitlines()), ""]
    if judged.marks is None:
        for n, (ask, kind) in enumerate(zip(prediction.asks, prediction.kinds, strict=True), 1):
            lines.append(f"  {n}. {_without_marks(ask.text)}   {_ASKED[kind]}")
        blanks = ", ".join(["..."] * len(prediction.asks))
        state = judged.problem or _open_text(judged) or "Not committed yet."
        lines.append(f"{state} Write your answers: predict({key!r}, answer=[{blanks}])")
        return "\n".join(lines)
    rows = zip(prediction.asks, judged.marks, judged.given, prediction.truths, strict=True)
    for n, (ask, right, given, truth) in enumerate(rows, 1):
        verdict = _plain(truth) if right else f"you said {_plain(given)}, it is {_plain(truth)}"
        mark = "✓" if right else "✗"
        lines.append(
            f"  {n}. {mark} {_without_marks(ask.text)}: {verdict}. {_without_marks(ask.why)}"
        )
    lines.append(f"{sum(judged.marks)} of {len(judged.marks)} right.")
    return "\n".join(lines)


def _quiz_text(chapter: str, found: Quiz, picked: Sequence[int | None], problem: str) -> str:
    lines = [f"Quiz: {_without_marks(found.title)}"]
    for n, (question, at) in enumerate(zip(found.questions, picked, strict=True), 1):
        lines.append(f"  {n}. {_without_marks(question.text)}")
        lines += [f"         {line}" for line in question.code.strip("\n").splitlines()]
        for c, choice in enumerate(question.choices):
            if at is None:
                lines.append(f"     {'abcdefgh'[c]}) {_without_marks(choice.text)}")
                continue
            mark = "✓" if choice.right else "✗" if c == at else " "
            said = " (your answer)" if c == at else ""
            why = _without_marks(choice.why)
            lines.append(f"   {mark} {'abcdefgh'[c]}) {_without_marks(choice.text)}{said}: {why}")
    done = [(q, at) for q, at in zip(found.questions, picked, strict=True) if at is not None]
    if done:
        right = sum(at == question.right for question, at in done)
        lines.append(f"{right} right of {len(done)} answered, {len(found.questions)} in all.")
    else:
        example = ", ".join(["..."] * len(found.questions))
        lines.append(f"Answer with letters: quiz({chapter!r}, answer=[{example}])")
    if problem:
        lines.append(problem)
    return "\n".join(lines)


# --- Finding


def _chapters() -> list[str]:
    return sorted(
        info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_")
    )


def _module(chapter: str) -> ModuleType:
    chapters = _chapters()
    if chapter not in chapters:
        raise LookupError(
            f"There is no chapter {chapter!r} with questions.{_closest(chapter, chapters)} "
            f"There are: {', '.join(chapters) or 'none yet'}."
        )
    return importlib.import_module(f"{__name__}.{chapter}")


def _find(key: str) -> Prediction:
    chapter, dot, name = key.partition(".")
    if not dot:
        raise LookupError(
            f'A prediction is named "chapter.name", such as "strides.which_views": got {key!r}.'
        )
    found = {
        n: value for n, value in vars(_module(chapter)).items() if isinstance(value, Prediction)
    }
    if name not in found:
        raise LookupError(
            f"There is no prediction {name!r} in {chapter}.{_closest(name, list(found))} "
            f"There are: {', '.join(found) or 'none yet'}."
        )
    return found[name]


def _closest(word: str, words: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
