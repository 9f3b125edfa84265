"""Autograd's graph as an interactive figure: stepped forward and back, on numbers one can change."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .interactive import Interactive

_LARGEST = 1000.0
"""Values of leaves have at most this magnitude in the figure."""

OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "square": lambda a: a**2,
    "exp": torch.exp,
    "relu": torch.relu,
    "tanh": torch.tanh,
}
"""What each operation of the figure is in torch."""


@dataclass(frozen=True)
class Expression:
    """leaves: name → (value, requires_grad). ops: (name, operation, its inputs). places: column, row."""

    title: str
    leaves: dict[str, tuple[float, bool]]
    ops: tuple[tuple[str, str, tuple[str, ...]], ...]
    places: dict[str, tuple[float, int]]

    def computed(self) -> dict[str, Tensor]:
        """Every tensor by name, as torch computes it, in float64."""
        found = {
            name: torch.tensor(value, dtype=torch.float64, requires_grad=asks)
            for name, (value, asks) in self.leaves.items()
        }
        for name, operation, inputs in self.ops:
            found[name] = OPERATIONS[operation](*(found[one] for one in inputs))
        return found

    def as_data(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "leaves": [
                {"name": name, "value": value, "requires_grad": asks}
                for name, (value, asks) in self.leaves.items()
            ],
            "ops": [{"name": name, "op": op, "inputs": inputs} for name, op, inputs in self.ops],
            "places": self.places,
        }


EXPRESSIONS = (
    Expression(
        "y = w · exp(w · x + b)",
        {"w": (0.5, True), "x": (2.0, False), "b": (-1.0, True)},
        (
            ("m", "mul", ("w", "x")),
            ("a", "add", ("m", "b")),
            ("e", "exp", ("a",)),
            ("y", "mul", ("w", "e")),
        ),
        {"w": (0, 0), "x": (1, 0), "b": (2, 0), "m": (1, 1), "a": (1.5, 2), "e": (1.5, 3)}
        | {"y": (0.6, 4)},
    ),
    Expression(
        "loss = (w · x + b − t)²",
        {"w": (1.0, True), "x": (2.0, False), "b": (0.5, True), "t": (1.0, False)},
        (
            ("m", "mul", ("w", "x")),
            ("p", "add", ("m", "b")),
            ("r", "sub", ("p", "t")),
            ("loss", "square", ("r",)),
        ),
        {"w": (0, 0), "x": (1, 0), "m": (0.4, 1), "b": (1.5, 1), "p": (0.9, 2), "t": (2, 2)}
        | {"r": (1.4, 3), "loss": (1.4, 4)},
    ),
    Expression(
        "y = x · x + x: used three times",
        {"x": (3.0, True)},
        (("s", "mul", ("x", "x")), ("y", "add", ("s", "x"))),
        {"x": (0.7, 0), "s": (0, 1), "y": (0.7, 2)},
    ),
    Expression(
        "y = v · relu(w · x): a dead unit",
        {"w": (-1.0, True), "x": (2.0, False), "v": (3.0, True)},
        (("m", "mul", ("w", "x")), ("h", "relu", ("m",)), ("y", "mul", ("h", "v"))),
        {"w": (0, 0), "x": (1, 0), "v": (2, 0), "m": (0.5, 1), "h": (0.5, 2), "y": (1.2, 3)},
    ),
    Expression(
        "y = tanh(w · tanh(w · x)): one weight, two layers",
        {"w": (2.0, True), "x": (0.5, False)},
        (
            ("m", "mul", ("w", "x")),
            ("h", "tanh", ("m",)),
            ("n", "mul", ("w", "h")),
            ("y", "tanh", ("n",)),
        ),
        {"w": (0, 0), "x": (1.2, 0), "m": (1.2, 1), "h": (1.2, 2), "n": (0.6, 3), "y": (0.6, 4)},
    ),
)


def autograd_graph(start: int = 0) -> Interactive:
    """The graph that autograd records of a small expression, forward and backward step by step.

    start: the expression that is shown first, an index of `EXPRESSIONS`.
    """
    one = EXPRESSIONS[start]
    return Interactive(
        script="autograd_graph",
        alt=(
            f"Autograd's graph of {one.title}: boxes for leaves and operations with their values, "
            "what each node keeps, and the gradients that backward hands from node to node"
        ),
        text=_account(one),
        data={
            "start": start,
            "largest": _LARGEST,
            "examples": [expression.as_data() for expression in EXPRESSIONS],
        },
    )


def _account(expression: Expression) -> str:
    """What the figure shows in the end, in words; the gradients are torch's."""
    found = expression.computed()
    for name, *_ in expression.ops:
        if found[name].requires_grad:
            found[name].retain_grad()
    found[expression.ops[-1][0]].backward()
    lines = ["Autograd's graph (interactive in JupyterLab and on the page)", expression.title]
    for name, tensor in found.items():
        how = next(
            (f"{op}({', '.join(inputs)})" for n, op, inputs in expression.ops if n == name), ""
        )
        node = tensor.grad_fn.name() if tensor.grad_fn else "leaf"
        gradient = f", gradient {tensor.grad.item():.4g}" if tensor.grad is not None else ""
        lines.append(f"{name} = {f'{how} = ' if how else ''}{tensor.item():.4g} ({node}){gradient}")
    return "\n".join(lines)
