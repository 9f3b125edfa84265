"""``Cost``: the figures of one measured block, and how they read."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from html import escape
from typing import Any


@dataclass
class Cost:
    """What a block of torch code cost. All figures are counted, none is timed.

    flops: floating-point operations of matrix products, convolutions and attention, as
        `torch.utils.flop_counter` counts them (a product of (m, k) and (k, n) is 2·m·n·k;
        elementwise work counts 0).
    kernels: operations that compute or move data. Views, metadata (`view`, `transpose`,
        `detach`, `resize_`), reading one number and `empty` are not among them. A
        `torch._foreach_…` call on a list of tensors is one.
    ops: every operation by name, views and `empty` included.
    bytes_allocated: sum of the sizes of the storages that the block made.
    bytes_peak: most bytes of such storages alive at once.
    bytes_largest: size of the largest of them.
    bytes_saved: sizes of the distinct storages that autograd saved for backward, each counted
        whole and once, those made before the block too.
    left_torch: the ways in which data became Python or NumPy values, in order of appearance.
    elements_left: how many elements did.
    elements_entered: how many elements became tensors out of Python or NumPy values
        (`torch.tensor`, `as_tensor`, `from_numpy`, `new_tensor`, a list as an index, …). A single
        number that is assigned (`x[0] = 1.0`) and a `range` are not among them.
    bytes_sent, bytes_received: by this rank in calls of `torch.distributed`: of messages exactly, of
        collectives as the bandwidth-optimal ring has it (see `course_utils.meters.communication`).
    messages: that this rank sends: one a `send`, and a ring's for each collective.
    collectives: calls of collectives by name (`all_reduce`, `barrier`, …).
    bytes_left: bytes of the storages that the block made and that were alive at its end.
    """

    flops: int = 0
    kernels: int = 0
    ops: Counter[str] = field(default_factory=Counter)
    bytes_allocated: int = 0
    bytes_peak: int = 0
    bytes_largest: int = 0
    bytes_saved: int = 0
    left_torch: tuple[str, ...] = ()
    elements_left: int = 0
    elements_entered: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    messages: int = 0
    collectives: Counter[str] = field(default_factory=Counter)
    bytes_left: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain JSON values."""
        return asdict(self) | {
            "ops": dict(self.ops),
            "left_torch": list(self.left_torch),
            "collectives": dict(self.collectives),
        }

    @classmethod
    def from_dict(cls, figures: Mapping[str, Any]) -> "Cost":
        """The inverse of `as_dict`. Raises ValueError for figures that no measurement gives."""
        names = {f.name for f in fields(cls)}
        lacking = {"collectives"} if "collectives" not in figures else set()
        if set(figures) | lacking != names:
            raise ValueError(f"a cost has the figures {', '.join(sorted(names))}")
        ways = figures["left_torch"]
        if type(ways) not in (list, tuple) or not all(type(way) is str for way in ways):
            raise ValueError("left_torch is a list of names")
        ops, collectives = _counter(figures["ops"]), _counter(figures.get("collectives", {}))
        others = names - {"ops", "collectives", "left_torch"}
        numbers: dict[str, Any] = {name: _number(figures[name]) for name in others}
        return cls(**numbers, ops=ops, collectives=collectives, left_torch=tuple(ways))

    def rows(self) -> list[tuple[str, str]]:
        """Label and text of each figure, as the displays show them."""
        left = "nothing"
        if self.left_torch:
            left = f"{', '.join(self.left_torch)} ({_count(self.elements_left, 'element')})"
        entered = "nothing"
        if self.elements_entered:
            entered = _count(self.elements_entered, "element")
        rows = [
            ("FLOPs", f"{self.flops:,}"),
            ("kernels", f"{self.kernels:,} of {_count(self.ops.total(), 'operation')}"),
            ("bytes allocated", format_bytes(self.bytes_allocated)),
            ("… at the peak", format_bytes(self.bytes_peak)),
            ("… largest tensor", format_bytes(self.bytes_largest)),
            ("bytes saved for backward", format_bytes(self.bytes_saved)),
            ("left torch", left),
            ("entered torch", entered),
        ]
        if self.communicated:
            calls = ", ".join(f"{name} × {n}" for name, n in sorted(self.collectives.items()))
            rows += [
                ("bytes sent", format_bytes(self.bytes_sent)),
                ("… received", format_bytes(self.bytes_received)),
                ("messages sent", f"{self.messages:,}"),
                ("collectives", calls or "none"),
            ]
        return rows

    @property
    def communicated(self) -> bool:
        """Did the block send, receive, or call a collective?"""
        return bool(
            self.bytes_sent or self.bytes_received or self.messages or self.collectives.total()
        )

    def __repr__(self) -> str:
        width = max(len(label) for label, _ in self.rows())
        return "\n".join(f"{label:<{width}}  {text}" for label, text in self.rows())

    def _repr_html_(self) -> str:
        body = "".join(
            f'<tr><th scope="row" style="text-align:left">{escape(label)}</th>'
            f'<td style="text-align:right">{escape(text)}</td></tr>'
            for label, text in self.rows()
        )
        return f'<table class="cost"><tbody>{body}</tbody></table>'


def _number(value: Any) -> int:
    """A count, as it came from elsewhere. Raises ValueError for what counts nothing."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"a count is a whole number from 0; came {value!r:.40}")
    return value


def _counter(value: Any) -> Counter[str]:
    if not isinstance(value, dict) or not all(type(key) is str for key in value):
        raise ValueError("operations are counted by name")
    return Counter({key: _number(count) for key, count in value.items()})


def format_bytes(n: int) -> str:
    """`n` bytes in the largest binary unit that keeps the number above one.

    >>> format_bytes(1000), format_bytes(1536), format_bytes(3 * 2**20)
    ('1,000 B', '1.5 KiB', '3 MiB')
    """
    if abs(n) < 1024:
        return f"{n:,} B"
    size = float(n)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:,.2f}".rstrip("0").rstrip(".") + f" {unit}"
    raise AssertionError("unreachable")


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")
