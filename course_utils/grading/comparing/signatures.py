"""Does a student's object take what the book's does?

What came from the process where the object lives is read strictly: it may be forged.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from course_utils.grading.driving.describe import (
    MOST_PARAMETERS,
    NO_DEFAULT,
    described,
    methods_due,
)
from course_utils.grading.pytrees.text import cut, short
from course_utils.grading.pytrees.tree import Opaque, Tree, same, tensors

_KINDS = {
    kind.name: kind
    for kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
}


@dataclass(frozen=True)
class Call:
    """One signature. text: as Python writes it."""

    signature: inspect.Signature
    text: str

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """The parameters, in order."""
        return list(self.signature.parameters.values())


@dataclass(frozen=True)
class Description:
    """What can be said of an object without calling it.

    named: its kind in words. call: its own signature, if Python knows one. methods: of a class, for
    each that was asked for: is it there, and its signature, if Python knows one.
    """

    named: str
    is_class: bool = False
    is_callable: bool = True
    is_generator: bool = False
    is_coroutine: bool = False
    call: Call | None = None
    methods: Mapping[str, tuple[bool, Call | None]] | None = None

    @property
    def takes_any(self) -> bool:
        """Are there *args or **kwargs?"""
        return self.call is not None and _takes_any(self.call.parameters)


def description(tree: Tree) -> Description:
    """The description that a tree holds. Raises ValueError for a tree that is none."""
    try:
        methods = {
            checked(name, str): (checked(checked(one, dict)["there"], bool), _call(one["call"]))
            for name, one in checked(checked(tree, dict)["methods"], dict).items()
        }
        return Description(
            cut(checked(tree["named"], str)),
            checked(tree["class"], bool),
            checked(tree["callable"], bool),
            checked(tree["generator"], bool),
            checked(tree["coroutine"], bool),
            _call(tree["call"]),
            methods,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this describes no object: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=512)
def _description_of(reference: Any) -> Description:
    reference = inspect.unwrap(reference)  # beartype's wrapper of a generator function is none
    return description(described(reference, methods_due(reference)))


def _call(tree: Tree) -> Call | None:
    """A signature from its tree (`describe.described`); None for None.

    Raises TypeError, KeyError or ValueError for a tree that describes none.
    """
    if tree is None:
        return None
    found = []
    for one in checked(checked(tree, dict)["parameters"], list)[:MOST_PARAMETERS]:
        default, name = checked(checked(one, dict)["default"], list), cut(checked(one["name"], str))
        kind = _KINDS[checked(one["kind"], str)]
        found.append(inspect.Parameter(name, kind, default=default[0] if default else NO_DEFAULT))
    return Call(inspect.Signature(found), cut(checked(tree["text"], str)))


def checked(value: Any, kind: type) -> Any:
    """The value, if it is of exactly this kind. Raises TypeError."""
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected, {type(value).__name__} came")
    return value


def signature_problem(references: Sequence[Any], answers: Sequence[Description]) -> str | None:
    """What is wrong with the kind or the parameters of the student's objects, in words."""
    for reference, mine in zip(references, answers, strict=True):
        name = reference.__name__
        want = _description_of(reference)
        problem = _kind_problem(name, want, mine) or _parameters_problem(name, want, mine)
        if problem:
            return problem
    return None


def _kind_problem(name: str, want: Description, mine: Description) -> str | None:
    if want.is_class != mine.is_class:
        due, came = ("a class" if one.is_class else "a function" for one in (want, mine))
        return f"`{name}` must be {due}; came {came}"
    if not mine.is_callable:
        return f"`{name}` must be callable; came {mine.named}"
    if mine.is_generator and not want.is_generator:
        return f"`{name}` contains `yield`, so it returns a generator; return the value"
    if mine.is_coroutine and not want.is_coroutine:
        return f"`{name}` is `async`, so it returns a coroutine; return the value"
    return None


def _parameters_problem(name: str, want: Description, mine: Description) -> str | None:
    if not want.is_class:
        return _differing_parameters(name, want.call, mine.call)
    for method, (_, due) in (want.methods or {}).items():
        there, came = (mine.methods or {}).get(method, (False, None))
        if not there:
            return f"`{name}` has no method `{method}`"
        problem = _differing_parameters(f"{name}.{method}", due, came)
        if problem:
            return problem
    return None


def _differing_parameters(name: str, due: Call | None, came: Call | None) -> str | None:
    """None if every call that suits the reference suits the student's."""
    if due is None or came is None:
        return None
    want, have = due.parameters, came.parameters
    given = [p.name for p in have]
    names = [p.name for p in want]
    ordinary = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in want)
    if ordinary and (_takes_any(have) or set(given) >= set(names)):
        for args, kwargs in (names, {}), ([], dict.fromkeys(names)):
            try:
                came.signature.bind(*args, **kwargs)
            except TypeError:
                how = "by name" if kwargs else "by position"
                return f"`{name}` must take ({', '.join(names)}) {how} too; yours is {came.text}"
    if _takes_any(have):
        return None
    extra = [p.name for p in have if p.name not in names and p.default is NO_DEFAULT]
    if extra or given[: len(names)] != names:
        return f"`{name}` takes ({', '.join(names)}); yours takes ({', '.join(given)})"
    for w, h in zip(want, have, strict=False):
        if (w.default is NO_DEFAULT) != (h.default is NO_DEFAULT) or not _equal_defaults(w, h):
            return f"the default of `{w.name}` is {_default(w)}; yours has {_default(h)}"
    return None


def _takes_any(parameters: Sequence[inspect.Parameter]) -> bool:
    """Are there *args or **kwargs?"""
    return any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _equal_defaults(a: inspect.Parameter, b: inspect.Parameter) -> bool:
    """Equal, or written alike: an object of a class that was defined twice."""
    if a.default is b.default or same(a.default, b.default):
        return True
    return not tensors((a.default, b.default)) and bool(a.default == b.default)


def _default(p: inspect.Parameter) -> str:
    """A parameter's default as a reader would write it; "none" if it has none."""
    if p.default is NO_DEFAULT:
        return "none"
    return p.default.text if isinstance(p.default, Opaque) else short(p.default)
