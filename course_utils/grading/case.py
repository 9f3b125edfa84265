"""A case: the arguments of one call, as data."""

from dataclasses import dataclass, field, replace
from typing import Any

from .values import Tree, fresh, upcast, weight

BY_HAND = "worked by hand"
RANDOM = "random cases"
GRADIENTS = "gradients"
EDGE = "edge cases"

_NOTHING = object()


@dataclass(frozen=True)
class Case:
    """Named arrays and plain values for one call of the student's object.

    args, kwargs: the call. rung: which step of the ladder it belongs to. why: what makes an edge
    case one. grad: names of the arguments to differentiate (the gradients rung). expected: the
    answer worked by hand, where there is one.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    rung: str = RANDOM
    why: str = ""
    grad: tuple[str, ...] = ()
    expected: Any = _NOTHING

    @property
    def has_expected(self) -> bool:
        return self.expected is not _NOTHING

    @property
    def size(self) -> int:
        return weight((self.args, self.kwargs))

    def fresh(self) -> "Case":
        """The same case on copies of its tensors: nobody can spoil it for the next."""
        args, kwargs = fresh((self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs)

    def upcast(self) -> "Case":
        args, kwargs = upcast((self.args, self.kwargs))
        return replace(self, args=args, kwargs=kwargs)

    def on(self, rung: str, **changes: Any) -> "Case":
        return replace(self, rung=rung, **changes)

    def as_tree(self) -> Tree:
        """What crosses to another process: the call, never the expected result."""
        return {"args": self.args, "kwargs": self.kwargs, "grad": self.grad}

    @classmethod
    def from_tree(cls, tree: Tree) -> "Case":
        return cls(args=tree["args"], kwargs=tree["kwargs"], grad=tuple(tree["grad"]))


def call(*args: Any, **kwargs: Any) -> Case:
    """The case of one call with these arguments."""
    return Case(args=args, kwargs=kwargs)
