"""A case: the arguments of one call, as data."""

from dataclasses import dataclass, field, replace
from typing import Any

from .values import Tree, fresh, upcast, weight

BY_HAND = "worked by hand"
RANDOM = "random cases"
GRADIENTS = "gradients"
EDGE = "edge cases"

CALL = frozenset({"args", "kwargs"})
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

    @property
    def calls(self) -> tuple["Case", ...]:
        """The call of each rank, for a case that `on_ranks` made; of any other case, none."""
        if self.kwargs or not all(isinstance(a, dict) and a.keys() == CALL for a in self.args):
            return ()
        return tuple(replace(self, args=a["args"], kwargs=a["kwargs"]) for a in self.args)

    @property
    def world(self) -> int:
        """On how many ranks the case runs; 0 where it does not run on ranks."""
        return len(self.calls)

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


def on_ranks(*calls: Any, **kwargs: Any) -> Case:
    """The case of one call on each rank, as many ranks as there are calls.

    calls: a tuple of positional arguments, or `call(...)`, for each rank. kwargs: the same on all.
    Raises ValueError without any: a check that runs on no rank would check nothing.
    """
    if not calls:
        raise ValueError("on_ranks needs the arguments of at least one rank")
    each = [c if isinstance(c, Case) else call(*c) for c in calls]
    return Case(args=tuple({"args": c.args, "kwargs": {**c.kwargs, **kwargs}} for c in each))
