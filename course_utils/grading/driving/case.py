"""A case: the arguments of one call, as data."""

from dataclasses import dataclass, field, replace
from typing import Any

from course_utils.grading.pytrees.tree import Tree, fresh, upcast, weight

BY_HAND = "worked by hand"
RANDOM = "random cases"
GRADIENTS = "gradients"
EDGE = "edge cases"
_NOTHING = object()


@dataclass(frozen=True)
class Case:
    """Named arrays and plain values for one call of the student's object, or one on each rank.

    args, kwargs: the call. ranks: of a case that runs on ranks, {"args", "kwargs"} for each of them;
    it has no args and kwargs of its own. rung: which step of the ladder it belongs to. why: what
    makes an edge case one. grad: names of the arguments to differentiate (the gradients rung).
    expected: the answer worked by hand, where there is one.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    rung: str = RANDOM
    why: str = ""
    grad: tuple[str, ...] = ()
    expected: Any = _NOTHING
    ranks: tuple[dict[str, Any], ...] = ()

    @property
    def has_expected(self) -> bool:
        """Was an answer worked by hand? It may be None."""
        return self.expected is not _NOTHING

    @property
    def given(self) -> Tree:
        """All that the call, or the calls, are given."""
        return self.args, self.kwargs, self.ranks

    @property
    def size(self) -> int:
        """How big the case looks to a reader (`tree.weight`)."""
        return weight(self.given)

    @property
    def calls(self) -> tuple["Case", ...]:
        """The call of each rank, as a case of its own."""
        return tuple(
            replace(self, args=one["args"], kwargs=one["kwargs"], ranks=()) for one in self.ranks
        )

    @property
    def world(self) -> int:
        """On how many ranks the case runs; 0 where it does not run on ranks."""
        return len(self.ranks)

    def fresh(self) -> "Case":
        """The same case on copies of its tensors: nobody can spoil it for the next."""
        return self.giving(fresh(self.given))

    def upcast(self) -> "Case":
        """The same case with floating-point tensors in float64."""
        return self.giving(upcast(self.given))

    def giving(self, given: Tree) -> "Case":
        """The same case with other arguments, in the form of `given`."""
        args, kwargs, ranks = given
        return replace(self, args=args, kwargs=kwargs, ranks=ranks)

    def on(self, rung: str, **changes: Any) -> "Case":
        """The same case on another rung, with changes to other fields."""
        return replace(self, rung=rung, **changes)

    def as_tree(self) -> Tree:
        """What crosses to another process: the call, never the expected result."""
        return {"args": self.args, "kwargs": self.kwargs, "ranks": self.ranks, "grad": self.grad}

    @classmethod
    def from_tree(cls, tree: Tree) -> "Case":
        """The inverse of `as_tree`."""
        given = tree["args"], tree["kwargs"], tuple(tree["ranks"])
        return cls(grad=tuple(tree["grad"])).giving(given)


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
    return Case(ranks=tuple({"args": c.args, "kwargs": {**c.kwargs, **kwargs}} for c in each))
