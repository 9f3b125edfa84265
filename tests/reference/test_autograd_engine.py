"""The book's engine against torch: each VJP, the order, the walk, and the Tensor of chapter 7's notebook."""

import re
from pathlib import Path

import hypothesis.strategies as st
import nbformat
import numpy as np
import pytest
import torch
from hypothesis import given
from torch.nn import functional as F

from course_utils.meters.arrays import watch_arrays
from course_utils.reference import autograd_engine as engine
from course_utils.reference.autograd_engine import Node

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "07_autograd_engine.ipynb"
SIZES = st.integers(1, 4)
SEEDS = st.integers(0, 999)


def normal(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def by_torch(f, grad, *arrays):
    """torch's gradients of f with respect to each array."""
    leaves = [torch.tensor(x, requires_grad=True) for x in arrays]
    found = torch.autograd.grad(f(*leaves), leaves, torch.tensor(grad))
    return [g.numpy() for g in found]


def close(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@given(shape=st.lists(SIZES, max_size=3), seed=SEEDS)
def test_elementwise_rules_are_torchs(shape, seed):
    x, grad = normal(*shape, seed=seed), normal(*shape, seed=seed + 1)
    close([engine.relu_vjp(grad, np.asarray(np.maximum(x, 0)))], by_torch(torch.relu, grad, x))
    if shape:
        y = torch.tensor(x).log_softmax(-1).numpy()
        found = engine.log_softmax_vjp(grad, y)
        close([found], by_torch(lambda x: x.log_softmax(-1), grad, x))


@given(st.lists(SIZES, max_size=3), st.data())
def test_mul_and_broadcast_are_torchs(shape, data):
    shapes = []
    for _ in range(2):
        kept = shape[data.draw(st.integers(0, len(shape))) :]
        shapes.append([data.draw(st.sampled_from((1, size))) for size in kept])
    a, b = normal(*shapes[0]), normal(*shapes[1], seed=1)
    grad = normal(*np.broadcast_shapes(a.shape, b.shape), seed=2)
    close(engine.mul_vjp(grad, a, b), by_torch(torch.mul, grad, a, b))
    grad = normal(*shape, seed=3)
    (theirs,) = by_torch(lambda x: x.expand(shape), grad, a)
    close([engine.broadcast_vjp(grad, a.shape)], [theirs])


@given(st.lists(SIZES, max_size=2), SIZES, SIZES, SIZES, st.data())
def test_matmul_is_torchs(front, n, k, m, data):
    fronts = []
    for _ in range(2):
        kept = front[data.draw(st.integers(0, len(front))) :]
        fronts.append([data.draw(st.sampled_from((1, size))) for size in kept])
    a, b = normal(*fronts[0], n, k), normal(*fronts[1], k, m, seed=1)
    grad = normal(*(a @ b).shape, seed=2)
    close(engine.matmul_vjp(grad, a, b), by_torch(torch.matmul, grad, a, b))


@given(st.lists(st.integers(-3, 2), max_size=5), SEEDS)
def test_index_is_torchs(ids, seed):
    x, index = normal(3, 2), np.array(ids, dtype=np.int64)
    grad = normal(len(ids), 2, seed=seed)
    found = engine.index_vjp(grad, x.shape, index)
    close([found], by_torch(lambda x: x[torch.tensor(index)], grad, x))


@given(N=SIZES, D=SIZES, H=SIZES, V=SIZES, seed=SEEDS)
def test_backward_by_hand_is_torchs(N, D, H, V, seed):
    weights = {"w1": normal(D, H), "b1": normal(H), "w2": normal(H, V), "b2": normal(V)}
    x, targets = normal(N, D, seed=seed), np.random.default_rng(seed).integers(0, V, N)

    def loss(w1, b1, w2, b2):
        logits = (torch.tensor(x) @ w1 + b1).relu() @ w2 + b2
        return F.cross_entropy(logits, torch.tensor(targets))

    theirs = by_torch(loss, np.array(1.0), *weights.values())
    close(engine.mlp_backward(x, targets, **weights).values(), theirs)


@given(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=9))
def test_the_order_is_topological(steps):
    nodes = [Node(str(i)) for i in range(len(steps))]
    for i, node in enumerate(nodes):
        node.inputs = tuple(nodes[i + s] if i + s < len(nodes) else None for s in steps[i])
    order = engine.topological_order(nodes[0])
    place = {node: at for at, node in enumerate(order)}
    assert len(place) == len(order)
    assert order[0] is nodes[0]
    for node in order:
        assert all(place[below] > place[node] for below in node.inputs if below is not None)


def test_deep_chains_and_many_ways():
    chain, ladder = Node("x"), Node("x")
    for _ in range(50_000):
        chain = Node("", (chain,))
    for _ in range(200):
        ladder = Node("", (ladder, ladder))
    assert len(engine.topological_order(chain)) == 50_001
    assert len(engine.topological_order(ladder)) == 201


def test_a_second_backward_raises():
    leaf = Node("x")
    root = Node("Add", (leaf, leaf), lambda grad, n: (n * grad, n * grad), (2.0,))
    engine.backward(root, np.ones(3))
    assert leaf.grad.tolist() == [4.0] * 3
    with pytest.raises(RuntimeError, match="Add"):
        engine.backward(root, np.ones(3))


def test_a_vjp_of_the_wrong_shape_is_refused():
    x, row = normal(2, 3), normal(3)
    with pytest.raises(ValueError, match="shape"):
        engine.vjp_error(lambda a, b: a + b, lambda g, a, b: (g, g), [x, row], [x, row], x)


def test_the_meter_counts_buffers_and_products():
    with watch_arrays() as arrays:
        kept = [np.ones(n) for n in (3, 1000)]
        view = kept[1][5:]
        assert arrays.alive() == (2, 8 * 1003)
        del kept
        assert arrays.alive() == (1, 8000)
        x = arrays.counted(np.ones((4, 3)))
        np.exp(x @ np.ones((3, 5))).T @ np.ones((4, 2))
        assert arrays.flops == 2 * 4 * 3 * 5 + 2 * 5 * 4 * 2
        assert view.size == 995
        for spell in (
            lambda a, b: a.dot(b),
            lambda a, b: np.dot(a, b),
            lambda a, b: np.tensordot(a, b, 1),
            lambda a, b: np.einsum("ij,jk->ik", a, b),
            lambda a, b: np.einsum("...ij, jk", a, b),
            lambda a, b: np.einsum("ij,jk->ik", a, b, optimize=True),
        ):
            before = arrays.flops
            spell(x, np.ones((3, 5)))
            assert arrays.flops - before == 2 * 4 * 3 * 5
        before = arrays.flops
        np.einsum("ij,ij->ij", x, x) * np.einsum("ij->i", x)[:, None]
        assert arrays.flops == before, "no matrix product"


@pytest.fixture(scope="module")
def notebooks_engine():
    """The names of chapter 7's own cells: its Tensor, its operations, and the check against torch."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    begins = re.compile(r"(def sum_vjp|def normal|class Tensor|def add\(|def sum_\(|ROWS =)", re.M)
    space = dict(vars(engine)) | {"torch": torch, "rng": np.random.default_rng(7)}
    from collections.abc import Callable, Sequence

    space |= {"Callable": Callable, "Sequence": Sequence}
    for cell in cells:
        if cell.cell_type == "code" and begins.match(cell.source):
            source = re.split(r"\n\n\n?(?=da, db =|ids =|for name, f in)", cell.source)[0]
            exec(source, space)
    return space


def test_the_notebooks_engine_is_torchs(notebooks_engine):
    space = notebooks_engine
    for f in space["EXPRESSIONS"].values():
        for _ in range(20):
            values = [space["normal"](*shape) for shape in ((4, 3), (3, 3), (3,))]
            assert space["largest_error"](f, values) < 1e-12


def test_the_notebooks_engine_goes_ten_thousand_deep(notebooks_engine):
    x = notebooks_engine["Tensor"](np.ones(2), requires_grad=True)
    y = x
    for _ in range(20_000):
        y = y + 1.0
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
