"""The autograd graph: its values, gradients, nodes and saved tensors are torch's, and keys work it."""

import itertools

import pytest
import torch

from course_utils.figures.autograd_graph import EXPRESSIONS, OPERATIONS, autograd_graph

STATE = """([i, leaves, asks]) => {
  const A = StridesToShards.autograd, all = JSON.parse(
    document.querySelector('[data-s2s-figure] script[type="application/json"]').textContent).examples;
  const n = A.steps(all[i], asks).length, half = all[i].ops.length;
  return [A.state(all[i], leaves, asks, half), A.state(all[i], leaves, asks, n), n];
}"""
SAVED = ("_saved_self", "_saved_other", "_saved_result")


@pytest.fixture
def page(open_page):
    return open_page(autograd_graph().html()).page


def by_torch(expression, leaves, asks):
    found = {
        n: torch.tensor(v, dtype=torch.float64, requires_grad=asks[n]) for n, v in leaves.items()
    }
    for name, operation, inputs in expression.ops:
        found[name] = OPERATIONS[operation](*(found[one] for one in inputs))
    return found


@pytest.mark.parametrize("index", range(len(EXPRESSIONS)))
def test_it_computes_what_torch_computes(page, index):
    expression = EXPRESSIONS[index]
    names = list(expression.leaves)
    default = {name: value for name, (value, _) in expression.leaves.items()}
    other = {name: -1.5 + i for i, name in enumerate(names)}
    for leaves in (default, other):
        for flags in itertools.product((True, False), repeat=len(names)):
            asks = dict(zip(names, flags, strict=True))
            forward, end, steps = page.evaluate(STATE, [index, leaves, asks])
            found = by_torch(expression, leaves, asks)
            for name, tensor in found.items():
                assert forward["values"][name] == pytest.approx(tensor.item(), rel=1e-12)
            assert set(end["needs"]) == {name for name, x in found.items() if x.requires_grad}
            root = found[expression.ops[-1][0]]
            if not root.requires_grad:
                assert steps == len(expression.ops) and not end["grads"]
                continue
            for name, *_ in expression.ops:
                if found[name].requires_grad:
                    node = found[name].grad_fn
                    held = [
                        getattr(node, what)
                        for what in SAVED
                        if getattr(node, what, None) is not None
                    ]
                    kept = {found[k].data_ptr() for k in forward["kept"][name]}
                    assert {x.data_ptr() for x in held} == kept, (expression.title, name)
                    found[name].retain_grad()
            root.backward()
            for name, tensor in found.items():
                if tensor.requires_grad:
                    assert sum(end["grads"][name]) == pytest.approx(tensor.grad.item(), rel=1e-12)
            assert all(not kept for kept in end["kept"].values())


def test_nodes_are_called_as_torch_calls_them(page):
    names = page.evaluate(
        "() => Object.entries(StridesToShards.autograd.OPS).map(([k, o]) => [k, o.node])"
    )
    x = torch.tensor(0.5, requires_grad=True)
    assert {name for name, _ in names} == set(OPERATIONS)
    for name, node in names:
        two = name in ("add", "sub", "mul")
        assert OPERATIONS[name](*[x] * (1 + two)).grad_fn.name() == node


def test_a_reader_steps_forward_and_back(open_page):
    visit = open_page(autograd_graph().html())
    page = visit.page
    where, what = page.locator(".where"), page.locator(".what")
    assert where.text_content() == "Start · step 0 of 4 + 5"
    page.get_by_role("button", name="One step forward").click()
    assert "A node MulBackward0 is recorded; it keeps x." in what.text_content()
    page.get_by_role("button", name="To the start of backward").click()
    assert "1, is handed to its node" in what.text_content()
    page.get_by_role("group", name="The graph; arrow keys step").focus()
    page.keyboard.press("ArrowRight")
    assert "w gets g · e = 1; e gets g · w = 0.5" in what.text_content()
    page.keyboard.press("End")
    assert page.locator(".facts").text_content().endswith("w.grad2b.grad0.5")
    assert "1 + 1 = 2" in page.locator("svg").text_content()  # two uses, two parts
    page.get_by_role("button", name="w requires grad").click()
    page.keyboard.press("Home")
    page.get_by_role("button", name="b requires grad").click()
    page.get_by_role("button", name="To the end").click()
    assert "backward() would raise" in what.text_content()
    visit.check()


def test_the_leaves_are_the_readers(open_page):
    visit = open_page(autograd_graph().html())
    page = visit.page
    page.get_by_label("Expression").select_option(label=EXPRESSIONS[2].title)
    page.locator("[data-leaf=x]").fill("5")
    page.get_by_role("button", name="To the end").click()
    assert page.locator(".facts").text_content().endswith("x.grad11")
    assert ".grad 1 + 5 + 5 = 11" in page.locator("svg").text_content()
    page.locator("[data-leaf=x]").fill("1e9")  # out of range: the picture stays
    assert page.locator(".facts").text_content().endswith("x.grad11")
    visit.check()


@pytest.mark.parametrize("index", range(len(EXPRESSIONS)))
def test_it_fits_a_phone_in_the_dark(open_page, index):
    open_page(autograd_graph(index).html(), width=390, height=800, dark=True).check()


def test_the_account_in_words_is_torchs():
    text = str(autograd_graph())
    assert "w = 0.5 (leaf), gradient 2" in text and "y = mul(w, e) = 0.5 (MulBackward0)" in text
