"""The stride explorer: its arithmetic is torch's, and a reader can work it by mouse, touch and keys."""

import random

import pytest
import torch

from course_utils.figures.interactive import _apply, _suffix, stride_explorer
from tests.browser import screenshot

ROOT = "document.querySelector('[data-s2s-figure]').shadowRoot"


# --- In Python


def test_the_account_is_exact():
    text = str(stride_explorer((3, 4), [("transpose", 0, 1), ("slice", 1, None, None, 2)]))
    assert "y = x.transpose(0, 1)[:, ::2]" in text
    assert "shape (4, 2), stride (1, 8), offset 0: not contiguous" in text
    assert "8 elements in 8 of 12 slots" in text
    assert "y[i, j] is in slot 0 + i·1 + j·8" in text


def test_the_account_counts_slots_once():
    text = str(stride_explorer((3, 4), [("slice", 0, 1, 2, None), ("expand", 0, 3)]))
    assert "12 elements in 4 of 12 slots" in text


@pytest.mark.parametrize("shape", [(), (0, 2), (9,), (7, 7), (1, 1, 1, 1, 1)])
def test_shapes_that_cannot_be_drawn_are_refused(shape):
    with pytest.raises(ValueError, match="cannot be drawn"):
        stride_explorer(shape)


def test_views_that_cannot_be_drawn_are_refused():
    with pytest.raises(ValueError, match="at most 4 axes"):
        stride_explorer((2, 2, 2, 2), [("unsqueeze", 0)])


def test_unknown_operations_are_named():
    with pytest.raises(ValueError, match="no operation 'flip'"):
        stride_explorer(ops=[("flip", 0)])


# --- The arithmetic, against torch


def drawn_op(x, rng):
    """A random operation on x, most often one that torch accepts."""
    axes = range(-x.dim(), x.dim())
    kind = rng.choice(["transpose", "slice", "slice", "select", "expand", "unsqueeze", "squeeze"])
    if kind == "unsqueeze":
        return (kind, rng.randint(-x.dim() - 1, x.dim()))
    if not x.dim():
        return None
    axis = rng.choice(axes)
    size = x.size(axis)
    bound = lambda: rng.choice([None, *range(-size - 2, size + 3)])  # noqa: E731
    match kind:
        case "transpose":
            return (kind, axis, rng.choice(axes))
        case "slice":
            return (kind, axis, bound(), bound(), rng.choice([None, 1, 2, 3]))
        case "select":
            return (kind, axis, rng.randint(-size, size))  # at times one too far
        case "expand":
            return (kind, axis, rng.randint(0, 3))
        case "squeeze":
            return (kind, axis)


def drawn_sequence(rng):
    """Operations and what torch makes of each: a description, or None where it raises."""
    shape = [rng.randint(1, 4) for _ in range(rng.randint(1, 4))]
    x = torch.arange(torch.Size(shape).numel()).reshape(shape)
    view, ops, expected, expressions = x, [], [], []
    for _ in range(rng.randint(1, 6)):
        op = drawn_op(view, rng)
        if op is None or view.dim() > 6:
            break
        ops.append(op)
        try:
            after = _apply(view, op)
        except (RuntimeError, IndexError):
            expected.append(None)
            break
        expressions.append(_suffix(view, op))
        view = after
        expected.append(described(view))
    return {"shape": shape, "ops": ops}, expected, expressions


def described(x):
    return {
        "shape": list(x.shape),
        "stride": list(x.stride()),
        "offset": x.storage_offset(),
        "contiguous": x.is_contiguous(),
        "values": x.flatten().tolist(),
    }


RUN = """
(sequences) => sequences.map(({ shape, ops }) => {
  const { start, apply, suffix, isContiguous, address, indices } = StridesToShards.explorer;
  let state = start(shape);
  const seen = [], expressions = [];
  for (const op of ops) {
    try {
      const next = apply(state, op);
      expressions.push(suffix(state, op));
      state = next;
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      seen.push(null);
      break;
    }
    const { shape, stride, offset } = state;
    const values = indices(shape).map((index) => address(state, index));
    seen.push({ shape, stride, offset, contiguous: isContiguous(state), values });
  }
  return { seen, expressions };
})
"""


def test_the_arithmetic_is_that_of_torch(open_page):
    rng = random.Random(0)
    sequences, expected, expressions = zip(*(drawn_sequence(rng) for _ in range(2000)), strict=True)
    got = open_page(stride_explorer().html()).page.evaluate(RUN, list(sequences))
    for sequence, want, written, one in zip(sequences, expected, expressions, got, strict=True):
        assert one["seen"] == want, sequence
        assert one["expressions"] == written, sequence
    flat = [state for states in expected for state in states]
    assert sum(state is None for state in flat) > 50  # some were refused by both
    assert sum(bool(state) and not state["contiguous"] for state in flat) > 500
    assert sum(bool(state) and state["values"] == [] for state in flat) > 50


def test_the_expression_shown_is_the_view_shown():
    """What one reads, evaluated by Python, is what was applied."""
    rng = random.Random(1)
    for _ in range(500):
        sequence, expected, expressions = drawn_sequence(rng)
        x = torch.arange(torch.Size(sequence["shape"]).numel()).reshape(sequence["shape"])
        made = eval("x" + "".join(expressions), {"x": x})
        done = [state for state in expected if state]
        assert described(made) == (done[-1] if done else described(x))


# --- The figure


def numbers(page):
    """Shape, stride and offset as they stand in the table."""
    return page.evaluate(
        f"""() => {{
          const row = (n) => [...{ROOT}.querySelectorAll(`tbody tr:nth-child(${{n}}) td`)].map((td) => +td.textContent);
          return [row(1), row(2), +{ROOT}.querySelector("dd .offset").textContent];
        }}"""
    )


def formula(page):
    """The lower line of the address, as one reads it."""
    return page.evaluate(
        f"[...{ROOT}.querySelectorAll('.formula > * > :last-child')].map((n) => n.textContent).join(' ')"
    )


def focused(page):
    return page.evaluate(f"{ROOT}.activeElement?.getAttribute('aria-label')")


def expression(page):
    return page.locator(".expression").text_content().splitlines()[1]


@pytest.fixture
def explorer(open_page):
    """A page with the explorer; at the end nothing may have gone wrong on it."""
    visits = []

    def open_explorer(*args, page_options=None, **kwargs):
        visits.append(open_page(stride_explorer(*args, **kwargs).html(), **(page_options or {})))
        return visits[-1].page

    yield open_explorer
    for visit in visits:
        visit.check()
        assert len(visit.own) == 1  # the page itself: no request of any kind


def test_it_opens_with_an_address(explorer):
    page = explorer((3, 4))
    assert numbers(page) == [[3, 4], [4, 1], 0]
    assert formula(page) == "y[2, 1] → 0 + 2·4 + 1·1 = 9"
    assert page.locator(".arc").count() == 3  # two steps along i, one along j
    assert page.get_by_text("12 in 12 distinct slots of 12").is_visible()
    assert page.get_by_text("96 of storage").is_visible()


def test_the_operations_by_mouse(explorer):
    page = explorer((3, 4))
    page.get_by_role("button", name="Apply .transpose(0, 1)").click()
    assert numbers(page) == [[4, 3], [1, 4], 0]
    assert formula(page) == "y[1, 2] → 0 + 1·1 + 2·4 = 9"  # the same element, at its new index
    assert page.get_by_text("no: row-major order needs stride (3, 1)").is_visible()
    assert "not contiguous" in page.get_by_role("status").text_content()

    page.get_by_text("slice", exact=True).click()
    page.get_by_role("button", name="Apply [:, ::2]").click()
    assert expression(page) == "y = x.transpose(0, 1)[:, ::2]"
    assert numbers(page) == [[4, 2], [1, 8], 0]
    assert page.locator(".slot:not(.on)").count() == 4
    assert page.get_by_text("8 in 8 distinct slots of 12").is_visible()

    page.get_by_text("select", exact=True).click()
    page.get_by_label("index").fill("2")
    page.get_by_label("index").press("Enter")
    assert expression(page) == "y = x.transpose(0, 1)[:, ::2][2]"
    assert numbers(page) == [[2], [8], 2]

    page.get_by_text("unsqueeze", exact=True).click()
    page.get_by_role("button", name="Apply .unsqueeze(0)").click()
    page.get_by_text("expand", exact=True).click()
    page.get_by_role("button", name="Apply .expand(3, -1)").click()
    assert numbers(page) == [[3, 2], [0, 8], 2]
    assert page.get_by_text("6 in 2 distinct slots of 12").is_visible()

    page.get_by_role("button", name="Undo").click()
    assert numbers(page) == [[1, 2], [16, 8], 2]
    page.get_by_text("squeeze", exact=True).last.click()
    page.get_by_role("button", name="Apply .squeeze(0)").click()
    assert numbers(page) == [[2], [8], 2]
    page.get_by_role("button", name="Reset").click()
    assert expression(page) == "y = x"
    assert page.get_by_role("button", name="Undo").is_disabled()


def test_what_cannot_be_done_is_said(explorer):
    page = explorer((3, 4))
    page.get_by_text("squeeze", exact=True).last.click()
    assert page.get_by_text("Only an axis of size 1 can be dropped").is_visible()
    page.get_by_text("select", exact=True).click()
    page.get_by_label("index").fill("7")
    page.get_by_role("button", name="Apply").click()
    assert "Axis 0 has size 3: there is no index 7" in page.get_by_role("status").text_content()
    assert page.locator(".problem").is_visible()
    page.get_by_text("slice", exact=True).click()
    page.get_by_label("step").fill("-1")
    page.get_by_role("button", name="Apply").click()
    assert page.get_by_text("torch has no negative steps").first.is_visible()
    assert expression(page) == "y = x"


def test_an_empty_view(explorer):
    page = explorer((3, 4), [("slice", 0, 2, 1, None)])
    assert numbers(page) == [[0, 4], [4, 1], 8]
    assert page.get_by_text("No elements: shape (0, 4)").is_visible()
    assert page.get_by_text("0 in 0 distinct slots of 12").is_visible()


def test_a_single_number(explorer):
    page = explorer((3,), [("select", 0, 2)])
    assert formula(page) == "y → 2 = 2"
    assert page.get_by_text("A single number has no axis").count() == 0
    assert page.locator(".cell").count() == 1


def test_the_shape_of_x(explorer):
    page = explorer((3, 4), [("transpose", 0, 1)])
    page.get_by_role("button", name="(2, 3, 4)").click()
    assert numbers(page) == [[2, 3, 4], [12, 4, 1], 0]
    assert expression(page) == "y = x"
    size = page.get_by_label("Size of axis 1 of x")
    size.fill("2")
    size.press("Enter")
    assert numbers(page) == [[2, 2, 4], [8, 4, 1], 0]
    page.get_by_role("button", name="Add an axis").click()
    assert numbers(page) == [[2, 2, 4, 2], [16, 8, 2, 1], 0]
    assert page.get_by_role("button", name="Add an axis").is_disabled()
    page.get_by_role("button", name="Remove the last axis").click()
    size.fill("8")
    size.press("Enter")
    assert "64 elements" in page.get_by_role("status").text_content()
    assert numbers(page) == [[2, 2, 4], [8, 4, 1], 0]
    assert size.input_value() == "2"


def test_pointing_at_elements_and_slots(explorer):
    page = explorer((3, 4), [("slice", 0, 1, 2, None), ("expand", 0, 3)])
    page.locator(".cell[data-index='1,2']").hover()
    assert formula(page) == "y[1, 2] → 4 + 1·0 + 2·1 = 6"
    assert page.locator(".cell.same").count() == 2  # the others that live in the same slot
    page.locator(".slot[data-slot='5']").hover()
    assert "y[0, 1], y[1, 1], y[2, 1]" in page.locator(".places").text_content()
    page.locator(".slot[data-slot='0']").hover()
    assert "not reached by y" in page.locator(".places").text_content()
    page.mouse.move(1, 1)
    assert "y[2, 1]" in formula(page)  # back to what was chosen before


def test_touch(explorer):
    page = explorer((3, 4), page_options={"has_touch": True, "width": 390})
    page.locator(".cell[data-index='0,3']").tap()
    assert formula(page) == "y[0, 3] → 0 + 0·4 + 3·1 = 3"
    page.locator(".slot[data-slot='6']").tap()
    assert "y[1, 2]" in page.locator(".places").text_content()


def test_the_keyboard(explorer):
    page = explorer((3, 4))
    page.locator(".cell[data-index='2,1']").focus()
    press = page.keyboard.press
    press("ArrowUp")
    assert focused(page) == "y[1, 1] is in slot 5: 0 plus 1 times 4 plus 1 times 1"
    assert formula(page) == "y[1, 1] → 0 + 1·4 + 1·1 = 5"
    ring = f"getComputedStyle({ROOT}.activeElement).outline"
    assert "solid 3px" in page.evaluate(ring)
    press("ArrowRight")
    press("End")
    press("ArrowRight")  # there is nothing further right
    assert focused(page).startswith("y[1, 3]")
    press("Control+Home")
    assert focused(page).startswith("y[0, 0]")
    press("Tab")  # one stop for the whole grid; the strip comes next
    assert focused(page) == "Slot 0, reached by y[0, 0]"
    press("ArrowRight")
    assert focused(page) == "Slot 1, reached by y[0, 1]"
    press("End")
    assert "y[2, 3]" in page.locator(".places").text_content()


def test_everything_by_keyboard_alone(explorer):
    page = explorer((3, 4))
    press = page.keyboard.press
    page.locator(".pill input:checked").focus()
    press("ArrowRight")  # from transpose to slice
    for _ in range(4):
        press("Tab")
    page.keyboard.type("3")  # the step
    press("Enter")
    assert expression(page) == "y = x[:, ::3]"
    assert numbers(page) == [[3, 2], [4, 3], 0]
    assert page.evaluate(f"{ROOT}.activeElement.dataset.focus") == "step"  # focus stays in place
    for _ in range(3):
        press("Tab")  # apply, the expression, undo
    press("Enter")
    assert expression(page) == "y = x"
    assert page.evaluate(f"{ROOT}.activeElement?.value") == "slice"  # not lost with the button


def test_arrow_keys_cross_the_blocks_of_four_axes(explorer):
    page = explorer((2, 2, 3, 2))
    page.locator(".cell[data-index='0,0,2,1']").focus()
    page.keyboard.press("ArrowRight")
    assert focused(page).startswith("y[0, 1, 2, 0]")
    page.keyboard.press("ArrowDown")
    assert focused(page).startswith("y[1, 1, 0, 0]")


def test_a_host_page_hears_no_typing(explorer):
    page = explorer((3, 4))
    page.evaluate("addEventListener('keydown', (event) => (globalThis.heard = event.key))")
    page.get_by_label("Size of axis 0").press("0")
    assert page.evaluate("globalThis.heard ?? null") is None


def test_every_control_has_a_name_and_a_size(explorer):
    page = explorer((3, 4))
    controls = page.locator("button, input, select, [role=gridcell]")
    small = []
    for n in range(controls.count()):
        control = controls.nth(n)
        box = control.bounding_box()
        if min(box["width"], box["height"]) < 24:
            small.append(control.evaluate("(node) => node.outerHTML"))
    assert not small
    tree = page.locator("[data-s2s-figure]").aria_snapshot()
    assert 'group "Stride explorer' in tree
    assert 'grid "The view y, shape (3, 4)' in tree
    for nameless in ("- button\n", "- textbox\n", "- spinbutton\n", "- combobox\n"):
        assert nameless not in tree


CONTRAST = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (color, under) => {
    canvas.fillStyle = under; canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (color) => color.map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  const poor = [];
  for (const host of document.querySelectorAll("[data-s2s-figure]"))
    for (const node of host.shadowRoot.querySelectorAll(".figure *")) {
      const words = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
      if (!words || !node.checkVisibility() || node.matches(":disabled, .hidden, text")) continue;
      const layers = [];
      for (let up = node; up; up = up.parentElement) layers.unshift(getComputedStyle(up).backgroundColor);
      let ground = "#fff";
      for (const layer of layers) ground = `rgb(${rgb(layer, ground).join()})`;
      const [a, b] = [light(rgb(getComputedStyle(node).color, ground)), light(rgb(ground, ground))];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) poor.push(`${node.className || node.tagName} ${node.textContent.slice(0, 20)}: ${ratio.toFixed(2)}`);
    }
  return poor;
}
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1000])
def test_it_reads_well(explorer, dark, width):
    page = explorer(
        (2, 2, 3, 2),
        [("slice", 3, 0, 1, None), ("expand", 3, 3)],
        page_options={"dark": dark, "width": width},
    )
    assert page.evaluate(CONTRAST) == []
    screenshot(page, f"stride_explorer_{'dark' if dark else 'light'}_{width}")


def test_reduced_motion(explorer):
    page = explorer((3, 4), page_options={"reduced_motion": "reduce"})
    assert page.evaluate("document.getAnimations({ subtree: true }).length") == 0
    moving = f"getComputedStyle({ROOT}.querySelector('.arc')).animationName"
    assert page.evaluate(moving) == "none"


def test_two_explorers_do_not_mix(open_page):
    page = open_page(stride_explorer((3, 4)).html() + stride_explorer((2, 2)).html()).page
    first, second = page.locator("[data-s2s-figure]").all()
    second.get_by_role("button", name="Apply").click()
    assert first.locator(".expression").text_content().endswith("y = x")
    assert second.locator(".expression").text_content().endswith("y = x.transpose(0, 1)")
