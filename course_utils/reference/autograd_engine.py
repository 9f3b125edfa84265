"""Chapter 7, an autograd engine: what each operation on NumPy arrays does to a gradient, and in which order.

The gradient of a loss with respect to an array has the array's shape and dtype. A vector-Jacobian
product (VJP) takes the gradient with respect to the result of an operation, called `grad` here, and
returns the gradient with respect to what the operation was given.
Axes: N rows of a batch, D features, `hidden` units, V classes; n, k and m of a matrix product;
`*batch` and `*shape` stand for any axes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

Array = np.ndarray


@dataclass(eq=False)
class Node:
    """What is recorded of one operation, or of a leaf.

    name: of the operation. inputs: the node of each of its inputs, in order; None for
    an input that needs no gradient. vjp: vjp(grad, *saved) returns a tuple, a gradient
    for each input; None for a leaf. saved: what vjp needs besides the gradient; None
    once backward has used it. grad: of a leaf, the sum of all gradients that have
    reached it; None before.
    """

    name: str
    inputs: tuple["Node | None", ...] = ()
    vjp: Callable[..., tuple[Array, ...]] | None = None
    saved: tuple[Any, ...] | None = ()
    grad: Array | None = None


# ------------------------------------------------------------------------------ VJPs


def relu_vjp(grad: Float[Array, "*shape"], y: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Gradient with respect to x, given y = relu(x), that is max(x, 0), and the gradient with respect to y.

    grad where y is above 0, and 0 elsewhere, even if grad is infinite or NaN there.
    Result: a new array of grad's dtype. grad, y: left as they are.
    """
    return np.where(y > 0, grad, 0)


def broadcast_vjp(grad: Float[Array, "..."], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Sum of grad over the axes along which an array of `shape` was repeated to reach grad's shape.

    This is the gradient with respect to that array, if grad is the one with respect to
    its broadcast copy. shape: broadcasts to grad's shape, so it has at most as many
    axes. Sizes may be 0, and an axis of size 1 may have become one of size 0. grad:
    left as it is. Result: has `shape` and grad's dtype.
    """
    if grad.shape == shape:
        return grad
    missing = grad.ndim - len(shape)
    repeated = [axis for axis, size in enumerate(shape, start=missing) if size == 1]
    return grad.sum(axis=(*range(missing), *repeated), keepdims=True).reshape(shape)


def mul_vjp(
    grad: Float[Array, "..."], a: Float[Array, "..."], b: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Gradients with respect to a and to b of a * b, the product element by element.

    a, b: of shapes that broadcast against each other; grad has the shape of the result.
    Sizes may be 0. All of one dtype, and left as they are. Returns a pair: the first
    has a's shape, the second b's.
    """
    da, db = np.asarray(grad * b), np.asarray(grad * a)
    return broadcast_vjp(da, a.shape), broadcast_vjp(db, b.shape)


def matmul_vjp(
    grad: Float[Array, "*batch n m"], a: Float[Array, "... n k"], b: Float[Array, "... k m"]
) -> tuple[Float[Array, "... n k"], Float[Array, "... k m"]]:
    """Gradients with respect to a and to b of a @ b.

    a, b: of two axes or more. The axes before the last two broadcast against each
    other, and grad has the shape of the result. Sizes may be 0. All of one dtype, and
    left as they are. Returns a pair: the first has a's shape, the second b's.
    """
    da = grad @ b.swapaxes(-1, -2)
    db = a.swapaxes(-1, -2) @ grad
    return broadcast_vjp(da, a.shape), broadcast_vjp(db, b.shape)


def log_softmax_vjp(
    grad: Float[Array, "*batch V"], y: Float[Array, "*batch V"]
) -> Float[Array, "*batch V"]:
    """Gradient with respect to x, given y = log_softmax(x) over the last axis and the gradient with respect to y.

    y may be -inf, where x was: exp(y) is 0 there, and grad counts as anywhere else.
    grad, y: of one dtype, which the result has too, and left as they are. No (V, V)
    Jacobian is made: not more than 8 arrays of y's size are in memory at once.
    """
    return grad - np.exp(y) * grad.sum(axis=-1, keepdims=True)


def index_vjp(
    grad: Float[Array, "..."], shape: tuple[int, ...], index: Any
) -> Float[Array, "*shape"]:
    """Gradient with respect to x of x[index], where x has `shape`.

    index: whatever NumPy takes: integers, slices, None, `...`, arrays of integers or
    bools, or a tuple of these. An element that is taken several times gets the sum, one
    that is not taken gets 0. grad, index: left as they are. Result: a new array of
    grad's dtype.
    """
    full = np.zeros(shape, grad.dtype)
    np.add.at(full, index, grad)
    return full


# ------------------------------------------------------------------------------ the walk


def topological_order(root: Node) -> list[Node]:
    """All nodes that root depends on, itself included: each once, and before the nodes of its inputs.

    Nodes are left as they are. Of a node only `inputs` is read; it may hold None, or
    the same node twice. No recursion, and a node to which many ways lead is visited
    once: takes a chain of 20,000 nodes, or 60 diamonds in a row.
    """
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(root, False)]
    while stack:
        node, inputs_done = stack.pop()
        if inputs_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(below, False) for below in node.inputs if below is not None]
    return order[::-1]


def backward(root: Node, grad: Array) -> None:
    """Walk back from root, and add to `.grad` of every leaf the gradient that reaches it.

    grad: root's own gradient. root may be a leaf itself. A node's VJP is called once,
    as vjp(grad, *saved), when all gradients of its result have been added. The tuple
    that it returns may hold the same array twice. Where an input is None, its entry is
    None or any array, and is dropped. No array is changed in place: grad, what a vjp
    returns, a leaf's earlier .grad. The array that a leaf gets is its own, shared with
    nobody. Takes a chain of 10,000 nodes. Memory: once a node's vjp has run, `saved` is
    None, and its gradient is kept no longer; only leaves keep theirs. Raises
    RuntimeError at a node whose `saved` is None already: backward has passed there
    before.
    """
    arrived = {root: grad}
    for node in topological_order(root):
        grad = arrived.pop(node)
        if node.vjp is None:
            node.grad = np.array(grad) if node.grad is None else node.grad + grad
            continue
        if node.saved is None:
            raise RuntimeError(f"backward has used what {node.name} saved: record a new graph")
        saved, node.saved = node.saved, None
        for below, part in zip(node.inputs, node.vjp(grad, *saved), strict=True):
            if below is not None:
                arrived[below] = arrived[below] + part if below in arrived else part


# ------------------------------------------------------------------------------ without an engine


def mlp_backward(
    x: Float[Array, "N D"],
    targets: Int[Array, "N"],
    w1: Float[Array, "D hidden"],
    b1: Float[Array, "hidden"],
    w2: Float[Array, "hidden V"],
    b2: Float[Array, "V"],
) -> dict[str, Array]:
    """Gradients of a two-layer classifier's loss, derived by hand.

    logits = relu(x @ w1 + b1) @ w2 + b2, and the loss is the mean over the N rows of
    -log_softmax(logits)[row, targets[row]]. The derivative of relu at 0 is 0. targets:
    from 0 to V - 1. Logits may be of any finite size. All arrays are left as they are.
    Returns the gradients with respect to "w1", "b1", "w2" and "b2", in x's dtype.
    """
    h = np.maximum(x @ w1 + b1, 0)
    logits = h @ w2 + b2
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    dlogits = exp / exp.sum(axis=1, keepdims=True)
    dlogits[np.arange(len(x)), targets] -= 1
    dlogits /= len(x)
    dh = np.where(h > 0, dlogits @ w2.T, 0)
    return {"w1": x.T @ dh, "b1": dh.sum(axis=0), "w2": h.T @ dlogits, "b2": dlogits.sum(axis=0)}


def vjp_error(
    f: Callable[..., Array],
    vjp: Callable[..., tuple[Array, ...]],
    inputs: Sequence[Array],
    directions: Sequence[Array],
    grad: Array,
    eps: float = 1e-6,
) -> float:
    """How far a VJP is from central differences, along one direction.

    f: from arrays to an array. vjp(grad, *inputs) returns a tuple, a gradient for each
    input. directions: an array u for each input x, of its shape. If every x moves along
    its u, the sum of grad · f, element by element, changes at some rate. This rate is
    found in two ways: as the central difference of that sum between the points
    x + eps·u and x - eps·u, and as the sum of gradient · u over all elements of all
    inputs. Returns how far the two are apart, a float that is not negative.

    All in float64, whatever the arrays' dtype: f and vjp get float64 arrays. All arrays
    are left as they are. At most two calls of f and one of vjp. Raises ValueError if
    vjp does not return one gradient for each input, of its shape.
    """
    points = [np.asarray(x, dtype=np.float64) for x in inputs]
    above = f(*(x + eps * u for x, u in zip(points, directions, strict=True)))
    below = f(*(x - eps * u for x, u in zip(points, directions, strict=True)))
    found = float(np.sum(grad * (above - below))) / (2 * eps)
    gradients = vjp(np.asarray(grad, dtype=np.float64), *points)
    if [g.shape for g in gradients] != [x.shape for x in points]:
        raise ValueError("vjp must return a gradient for each input, of its shape")
    due = sum(float(np.sum(g * u)) for g, u in zip(gradients, directions, strict=True))
    return abs(found - due)
