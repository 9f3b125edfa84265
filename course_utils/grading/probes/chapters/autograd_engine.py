"""Probes of the autograd engine: answers on NumPy arrays, and walks through a graph of nodes.

A case holds tensors, since they cross as they are; the answer gets the arrays that share their
memory, and its arrays come back in the same way. In an index a slice is {"slice": [start, stop,
step]}, and "..." an ellipsis. A graph is a list with an entry for each node: see `_graph`.
"""

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils.grading.driving import labels
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.labels import ARGUMENTS
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import changed_arguments
from course_utils.grading.probes.watched import peak_bytes
from course_utils.grading.pytrees.shown import shown

ARRAYS = {"tensor": "array"}
"""`Exercise.formats` of answers on arrays: what a verdict calls a tensor of the case."""

_OF_THE_CASE = ("within", "own")
"""Keywords of the case, not of the answer: the bytes that the call may hold at its peak, and whether
its result must be an array that shares no memory with an argument."""


def _for_the_answer(case: Case) -> dict[str, Any]:
    """The keywords that the answer is called with."""
    return {name: value for name, value in case.kwargs.items() if name not in _OF_THE_CASE}


class _NoArray(Exception):
    """Something came back that is no plain array."""


def as_array(tree: Any) -> Any:
    """A tree of a case as the answer gets it: arrays for tensors, slices for what stands for them."""
    if isinstance(tree, Tensor):
        return tree.numpy()
    if isinstance(tree, dict) and tree.keys() == {"slice"}:
        return slice(*tree["slice"])
    if isinstance(tree, str) and tree == "...":
        return ...
    if isinstance(tree, tuple | list):
        return type(tree)(map(as_array, tree))
    return tree


def _as_tensor(value: Any) -> Any:
    """What an answer returned, as data: tensors for arrays and NumPy's scalars."""
    if isinstance(value, dict):
        return {key: _as_tensor(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_as_tensor(item) for item in value]
    if isinstance(value, Tensor):
        raise _NoArray("returns a torch tensor; a NumPy array is due")
    if isinstance(value, np.generic | float):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        return value
    if type(value) is not np.ndarray:
        raise _NoArray(f"returns a {type(value).__name__}; a plain NumPy array is due")
    if not value.flags.writeable or any(stride < 0 for stride in value.strides):
        value = value.copy()
    try:
        return torch.from_numpy(value)
    except TypeError as error:
        raise _NoArray(f"returns an array of dtype {value.dtype}") from error


def _seen(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    seen = {label: value for label, value in report.items() if label != ARGUMENTS}
    if ARGUMENTS in report:
        given = case.args, _for_the_answer(case)
        seen |= changed_arguments(named_by, given, report[ARGUMENTS])
    return seen


def _called(name: str, case: Case) -> str:
    given = [shown(x, formats=ARRAYS) for x in case.args]
    given += [f"{k}={shown(v, formats=ARRAYS)}" for k, v in _for_the_answer(case).items()]
    return f"{name}({', '.join(given)})"


@probe(read=_seen)
def on_arrays(subject: Any, case: Case) -> dict[str, Any]:
    """Call it with arrays: the arrays that it returns, and the arguments that it changed.

    The case may say, by the keyword `within`, how many bytes the call may hold at its peak, and by `own`
    that the result is an array of its own.
    """
    kwargs = _for_the_answer(case)
    arrays = {name: as_array(value) for name, value in kwargs.items()}
    within = case.kwargs.get("within")
    given = [as_array(x) for x in case.args]
    with peak_bytes() if within else _unwatched() as peak:
        result = subject(*given, **arrays)
        held = peak()
    try:
        seen = {"result": _as_tensor(result)}
    except _NoArray as error:
        seen = {labels.SURROUNDINGS: str(error)}
    if within and held > within:
        seen = {labels.SURROUNDINGS: "holds more in memory at once than its docstring allows"}
    others = [x for x in given if isinstance(x, np.ndarray)] if case.kwargs.get("own") else []
    if isinstance(result, np.ndarray) and any(np.shares_memory(result, x) for x in others):
        seen = {labels.SURROUNDINGS: "returns memory of an argument; a new array is due"}
    return seen | {ARGUMENTS: (case.args, kwargs)}


on_arrays.called = _called


@contextmanager
def _unwatched() -> Iterator[Callable[[], int]]:
    yield lambda: 0


# ------------------------------------------------------------------------------ graphs


class _Node:
    """A node with what a walk may look at, where the book's own class is not."""

    number: int

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: tuple[_Node | None, ...] = ()
        self.vjp: Any = None
        self.saved: Any = ()
        self.grad: Any = None


def _kind() -> type[_Node]:
    """The class of the nodes: the book's own once an answer has imported it, and may ask for it by
    isinstance. (Looked for, not imported: a release without chapter 7 has this file, not the class.)
    """
    package = __name__.partition(".")[0]
    home = sys.modules.get(f"{package}.reference.autograd_engine")
    return getattr(home, "Node", _Node)


def _graph(case: Case) -> list[list[Any]]:
    """For each node its inputs, as numbers or None, and then the weights of its VJP, if the case has any.

    A case may say `chain=n` for n nodes in a row, or `ladder=n` for n diamonds.
    """
    if n := case.kwargs.get("chain"):
        return [[[i + 1], [-1.0]] for i in range(n - 1)] + [[[], []]]
    if n := case.kwargs.get("ladder"):
        return [[[i + 1, i + 1], [0.5, 0.5]] for i in range(n - 1)] + [[[], []]]
    return [list(entry) for entry in case.args[0]]


def _nodes(graph: Sequence[Sequence[Any]]) -> list[_Node]:
    kind = _kind()
    nodes = [kind("Operation") for _ in graph]  # a name says nothing about which node it is
    for number, (node, (inputs, *_)) in enumerate(zip(nodes, graph, strict=True)):
        node.number = number
        node.inputs = tuple(None if i is None else nodes[i] for i in inputs)
    return nodes


def _reached(graph: Sequence[Sequence[Any]], root: int) -> set[int]:
    """The nodes that root depends on, itself included."""
    found, ahead = {root}, [root]
    while ahead:
        new = {i for i in graph[ahead.pop()][0] if i is not None} - found
        found |= new
        ahead += new
    return found


def _judged(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    graph, root = _graph(case), case.kwargs.get("root", 0)
    orders = {k: v for k, v in report.items() if k != labels.SURROUNDINGS}
    judged = {label: _fault(order, graph, root) for label, order in orders.items()}
    return {k: v for k, v in report.items() if k == labels.SURROUNDINGS} | judged


def _fault(order: Any, graph: Sequence[Sequence[Any]], root: int) -> str:
    """What is wrong with an order of nodes, given as numbers, or "right"."""
    if not isinstance(order, list) or not all(type(i) is int for i in order):
        return "no list of nodes"
    if not all(0 <= i < len(graph) for i in order):
        return "holds something that is no node"
    if len(set(order)) < len(order):
        return "a node stands in it twice"
    place = {node: at for at, node in enumerate(order)}
    if _reached(graph, root) - place.keys():
        return "a node is missing"
    users = ((i, below) for i in order for below in graph[i][0] if below is not None)
    if any(place[below] < place[i] for i, below in users):
        return "a node comes before one that needs its result"
    return "right"


class _Watched:
    """What nodes become that see if their inputs are asked for in a call inside a thousand others, more
    than Python allows by default."""

    number: int
    nested = False

    @property
    def inputs(self) -> Any:
        if self.number % 1_000 == 999 and not self.nested:  # to ask at each takes long
            with suppress(ValueError):
                self.nested = bool(sys._getframe(1_000))
        return self.__dict__["inputs"]

    @inputs.setter
    def inputs(self, nodes: Any) -> None:
        self.__dict__["inputs"] = nodes


@probe(read=_judged)
def ordered(subject: Any, case: Case) -> dict[str, Any]:
    """The order of a graph's nodes, as numbers, asked for twice; the orders are judged where they are read.

    The case may say `used`: the nodes are as backward leaves them, with `saved` None.
    """
    nodes = _nodes(_graph(case))
    if "used" in case.kwargs:
        for node in nodes:
            node.saved = None
    root, inputs = nodes[case.kwargs.get("root", 0)], [node.inputs for node in nodes]
    watched: Any = type("Node", (_Watched, type(root)), {})
    for node in nodes:
        node.__class__ = watched
    seen: dict[str, Any] = {}
    for label in ("the order", "the order, asked for again"):
        found = subject(root)
        if not isinstance(found, list):
            return {label: None}
        seen[label] = [getattr(node, "number", -1) for node in found]
    if any(node.inputs is not was for node, was in zip(nodes, inputs, strict=True)):
        seen[labels.SURROUNDINGS] = "changes the inputs of nodes"
    if any(getattr(node, "nested", False) for node in nodes):
        seen[labels.SURROUNDINGS] = "calls itself for each node; its docstring wants no recursion"
    return seen


class _Walk:
    """A graph whose VJPs multiply by weights, and what a backward through it does with arrays.

    A weight of None hands the very same array on, as the VJP of an addition does; so do all inputs of a
    node without weights, which saves nothing. For a constant it is None, and with a weight an array, each
    of another shape.
    """

    def __init__(self, graph: Sequence[Sequence[Any]], earlier: dict[int, Any]) -> None:
        self.nodes = _nodes(graph)
        self.calls = [0] * len(graph)
        self.handed: list[tuple[Any, np.ndarray]] = []
        self.done: list[_Node] = []
        self.complaint = ""
        for node, (inputs, weights) in zip(self.nodes, graph, strict=True):
            if inputs:
                node.vjp, node.saved = self._vjp(node, bool(weights)), tuple(weights)
        for number, grad in earlier.items():
            self.nodes[number].grad = grad

    def _vjp(self, node: _Node, weighted: bool) -> Callable[..., tuple[Any, ...]]:
        def vjp(grad: Any, *saved: float | None) -> tuple[Any, ...]:
            weights = saved if weighted else (None,) * len(node.inputs)
            self.calls[node.number] += 1
            self.look()
            self.done.append(node)
            pairs = enumerate(zip(node.inputs, weights, strict=True), start=node.number + 2)
            parts = [
                (None if weight is None else np.full(place, weight))
                if below is None
                else (grad if weight is None else np.asarray(weight * grad))
                for place, (below, weight) in pairs
            ]
            made = [
                p for p, w in zip(parts, weights, strict=True) if p is not None and w is not None
            ]
            self.handed += [(weakref.ref(part), part.copy()) for part in made if part.size < 99]
            return tuple(parts)

        return vjp

    def look(self) -> None:
        """Is what the nodes before held, or was handed to them, still there?"""
        if any(node.saved is not None for node in self.done[-3:]):
            self.complaint = self.complaint or "leaves `saved` in nodes whose vjp has run"
        alive = sum(ref() is not None for ref, _ in self.handed[-40:-8])
        if alive > 8:
            self.complaint = self.complaint or "keeps gradients that no node needs any more"

    def afterwards(self, given: Any, before: Any, earlier: list[tuple[Any, Any]]) -> str:
        """What a backward did to arrays that are not its own, or left behind."""
        kept = [(ref(), copy) for ref, copy in self.handed]
        kept += [(given, before), *earlier]
        changed = [x for x, copy in kept if x is not None and not np.array_equal(x, copy)]
        leaves = [node.grad for node in self.nodes if node.vjp is None and node.grad is not None]
        leaves = [x for x in leaves if isinstance(x, np.ndarray)]
        others = [given, *(x for x, _ in earlier)]
        shared = any(np.shares_memory(x, y) for i, x in enumerate(leaves) for y in leaves[:i])
        shared = shared or any(np.shares_memory(x, y) for x in leaves for y in others)
        if changed:
            return "changes an array in place that is not its own"
        if shared:
            return "gives a leaf an array that somebody else holds, too"
        if any(node.grad is not None for node in self.nodes if node.vjp is not None):
            return "sets .grad of a node that is no leaf"
        return self.complaint


@probe
def walked(subject: Any, case: Case) -> dict[str, Any]:
    """Go backward through a graph from each of `roots`, by default from node 0: the leaves' gradients,
    how often each VJP ran, which nodes still hold what they saved, and what became of the arrays.

    before: of some leaves, by number, the gradient that they have.
    """
    graph, grad = _graph(case), case.args[-1].numpy()
    earlier = {int(n): g.numpy() for n, g in case.kwargs.get("before", {}).items()}
    walk, was = _Walk(graph, earlier), grad.copy()
    kept = [(g, g.copy()) for g in earlier.values()]
    for root in case.kwargs.get("roots", [0]):
        subject(walk.nodes[root], grad)
    try:
        leaves = {f"node {n.number}": _as_tensor(n.grad) for n in walk.nodes if n.vjp is None}
    except _NoArray as error:
        return {labels.SURROUNDINGS: str(error).replace("returns", "gives a leaf")}
    seen: dict[str, Any] = {"how often each vjp ran": walk.calls if len(graph) < 99 else []}
    seen |= {f".grad of {name}": value for name, value in leaves.items()}
    holding = [n.number for n in walk.nodes if n.vjp is not None and n.saved is not None]
    seen["nodes that still hold what they saved"] = holding if len(graph) < 99 else len(holding)
    if complaint := walk.afterwards(grad, was, kept):
        seen[labels.SURROUNDINGS] = complaint
    return seen


def _drawn(case: Case) -> str:
    """The graph of a case in words."""
    for name in ("chain", "ladder"):
        if n := case.kwargs.get(name):
            return f"a {name} of {n:,} nodes"
    entries = [
        f"node {number} has inputs {shown(inputs)}"
        + (f" and weights {shown(weights[0])}" if weights else "")
        for number, (inputs, *weights) in enumerate(case.args[0])
        if inputs
    ]
    return "; ".join(entries) or "node 0 is a leaf"


def _called_on_graph(name: str, case: Case) -> str:
    used = "; backward has used the graph" if "used" in case.kwargs else ""
    return f"{name}(node {case.kwargs.get('root', 0)}), where {_drawn(case)}{used}"


def _called_backward(name: str, case: Case) -> str:
    grad = shown(case.args[-1], formats=ARRAYS)
    roots = case.kwargs.get("roots", [0])
    calls = ", then ".join(f"{name}(node {root}, {grad})" for root in roots)
    before = case.kwargs.get("before", {})
    had = "".join(f"; node {n} had .grad {shown(g, formats=ARRAYS)}" for n, g in before.items())
    return f"{calls}, where {_drawn(case)}{had}"


ordered.called = _called_on_graph
walked.called = _called_backward

# ------------------------------------------------------------------------------ differences

FUNCTIONS = frozenset(
    {
        # functions of arrays, of degree two at most: for them central differences are exact
        "lambda a: a * a",
        "lambda a: 3 * a",
        "lambda a: a.sum(axis=0)",
        "lambda a: a[0] * a[1]",
        "lambda a, b: a * b",
        "lambda a, b: a @ b",
        "lambda a, b: a + b",
        # their VJPs, right and wrong
        "lambda g, a: (2 * g * a,)",
        "lambda g, a: (g * a,)",
        "lambda g, a: (3 * g,)",
        "lambda g, a: (g,)",
        "lambda g, a: (g, g)",
        "lambda g, a: (np.broadcast_to(g, a.shape),)",
        "lambda g, a: (np.stack([g * a[1], g * a[0]]),)",
        "lambda g, a, b: (g * b, g * a)",
        "lambda g, a, b: (g * b, g * b)",
        "lambda g, a, b: (g * b,)",
        "lambda g, a, b: (g @ b.T, a.T @ g)",
        "lambda g, a, b: (g @ b.T, g.T @ a)",
        "lambda g, a, b: (g @ b.T, 2 * (a.T @ g))",
        "lambda g, a, b: (g, g)",
        "lambda g, a, b: (g, g.sum(axis=0))",
    }
)


def _function(source: str) -> Callable[..., Any]:
    """The function that a case names. Raises KeyError for one that is not in the catalogue."""
    if source not in FUNCTIONS:
        raise KeyError(f"{source!r} is not one of the functions that a case may name")
    found: Callable[..., Any] = eval(source, {"np": np})  # a constant of this file
    return found


@probe(read=_seen)
def takes_vjp(subject: Any, case: Case) -> dict[str, Any]:
    """Call it with a function and a VJP, the first two arguments: the number that it returns, whether
    they were called more often than they need be, and with what."""
    f, vjp, *rest = case.args
    calls = {"f": 0, "vjp": 0}
    dtypes: set[str] = set()

    def counted(name: str, source: str) -> Callable[..., Any]:
        function = _function(source)

        def called(*arrays: Any) -> Any:
            calls[name] += 1
            dtypes.update(str(np.asarray(x).dtype) for x in arrays)
            return function(*arrays)

        return called

    arrays = [as_array(x) for x in rest]
    kwargs = {name: as_array(value) for name, value in case.kwargs.items()}
    result = subject(counted("f", f), counted("vjp", vjp), *arrays, **kwargs)
    seen: dict[str, Any] = {"result": result, ARGUMENTS: (case.args, case.kwargs)}
    if not isinstance(result, float):
        seen["result"] = f"{type(result).__name__}, no float"
    if dtypes - {"float64"}:
        seen[labels.SURROUNDINGS] = "gives f or vjp arrays that are not float64"
    elif calls["f"] > 2 or calls["vjp"] > 1:
        seen[labels.SURROUNDINGS] = "calls f more than twice, or vjp more than once"
    return seen


def _called_with_functions(name: str, case: Case) -> str:
    f, vjp, *rest = case.args
    given = [f, vjp, *(shown(x, formats=ARRAYS) for x in rest)]
    given += [f"{key}={shown(value, formats=ARRAYS)}" for key, value in case.kwargs.items()]
    return f"{name}({', '.join(given)})"


takes_vjp.called = _called_with_functions

__all__ = ["ARRAYS", "FUNCTIONS", "on_arrays", "ordered", "takes_vjp", "walked"]
