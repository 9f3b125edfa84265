"""A contract: a promise about what some calls cost, and who judges it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .case import Case
from .cost import Measured, Prepare, measure_call

Limit = int | Callable[[Case], int]

_NEAR = 0.15
"""Two figures are near one another that differ by at most this share of the larger."""


@dataclass(frozen=True)
class Complaint:
    """What of a promise was not kept. text: for the student, with figures.

    kind: what two answers that break it in the same way have in common; by default the text.
    figure: how much it was, which tells two ways of one kind apart.
    """

    text: str
    kind: str = ""
    figure: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", self.kind or self.text)

    def same_as(self, other: "Complaint | None") -> bool:
        """Is the promise broken in the same way, to the last byte?"""
        return other is not None and (self.kind, self.figure) == (other.kind, other.figure)

    def near(self, other: "Complaint | None") -> bool:
        """Is it broken in the same way, by about as much? A tensor more or less depends on how a line
        is written."""
        if other is None or self.kind != other.kind:
            return False
        return abs(self.figure - other.figure) <= _NEAR * max(self.figure, other.figure)


class Judge(Protocol):
    """Costs and their cases → a complaint, or None."""

    def __call__(self, costs: Sequence[Any], cases: Sequence[Case]) -> Complaint | None: ...


class Measuring(Protocol):
    """A probe that drives the object on ranks and measures every one of them."""

    def measure(self, subject: Any, case: Case) -> Measured: ...

    def read(self, report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Contract:
    """promise: what is bounded, in words. cases: the calls. judge: costs → complaint or None.

    What is measured is also a check: the call must give what the reference gives, in memory that the
    call made or that an argument brought, and in one thread; else the cost would be another work's.
    watches_autograd: count bytes saved for backward too (torch.func's transforms refuse to run then).
    prepare: what to do with the object and the case before measuring begins (build the module, fill
    the gradients); it returns the function whose call is measured. By default the object is called.
    probe: for contracts on ranks, what drives the object there; every rank is measured.
    """

    promise: str
    cases: tuple[Case, ...]
    judge: Judge
    watches_autograd: bool = False
    prepare: Prepare | None = None
    probe: Measuring | None = None

    def run(self, subject: Any, case: Case) -> Measured:
        """What one call costs and gives, on copies of the case's tensors made beforehand."""
        ready = case.fresh()
        if self.probe:
            return self.probe.measure(subject, ready)
        return measure_call(subject, ready, self.prepare, self.watches_autograd)
