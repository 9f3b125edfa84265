"""The ravine: its paths are those of the book's optimizers, and a reader can work it in every way."""

import random

import pytest
import torch
from test_stride_explorer import CONTRAST

from course_utils.figures.optimizers import CHOICES, RATES, optimizer_ravine, ravine, ravine_path
from tests.browser import screenshot

ROOT = "document.querySelector('[data-s2s-figure]').shadowRoot"
RUN = "(all) => all.map((settings) => StridesToShards.ravine.path(settings))"


def drawn_settings(rng):
    return {
        "method": rng.choice(list(RATES)),
        "eps": rng.choice([1e-8, 1e-2]),
        "start": [round(rng.uniform(-2.9, 2.9), 2), round(rng.uniform(-1.9, 1.9), 2)],
        "steps": 60,
        **{key: rng.choice(values) for key, values in CHOICES.items()},
    }


def test_the_paths_are_those_of_the_references(open_page):
    rng = random.Random(0)
    everything = [drawn_settings(rng) for _ in range(300)]
    got = open_page(optimizer_ravine().html()).page.evaluate(RUN, everything)
    compared, points = set(), 0
    for settings, path in zip(everything, got, strict=True):
        want = ravine_path(settings)
        x, y = settings["start"]
        shaken = ravine_path(settings | {"start": [x + 1e-13, y - 1e-13]})
        steady = (shaken - want).abs().amax(1) < 1e-9  # some paths multiply rounding errors
        path = torch.tensor(path, dtype=torch.float64)
        assert path.shape == want.shape
        assert (path - want).abs()[steady].max() < 1e-7, settings
        assert steady[:3].all()
        compared.add(settings["method"])
        points += int(steady.sum())
    assert compared == set(RATES)
    assert points > 0.8 * 300 * 61


def test_loss_and_gradient(open_page):
    settings = {"kappa": 20, "angle": 30}
    point = torch.tensor([-1.2, 0.7], dtype=torch.float64, requires_grad=True)
    value = ravine(point, **settings)
    value.backward()
    page = open_page(optimizer_ravine().html()).page
    seen = page.evaluate("([s, p]) => StridesToShards.ravine.loss(s, p)", [settings, [-1.2, 0.7]])
    assert seen["value"] == pytest.approx(value.item(), rel=1e-12)
    assert seen["gradient"] == pytest.approx(point.grad.tolist(), rel=1e-12)


def test_the_account_is_exact():
    text = str(optimizer_ravine("SGD", lr=0.05, kappa=20, start=(-2.0, 1.0)))
    assert "step   0: at (-2, 1), loss 12" in text
    assert "step   1: at (-1.9, 0), loss 1.805" in text


def test_unknown_methods_are_named():
    with pytest.raises(ValueError, match="no method 'Lion'"):
        optimizer_ravine("Lion")


# --- The figure


@pytest.fixture
def explorer(open_page):
    visits = []

    def open_explorer(*args, page_options=None, **kwargs):
        visits.append(open_page(optimizer_ravine(*args, **kwargs).html(), **(page_options or {})))
        return visits[-1].page

    yield open_explorer
    for visit in visits:
        visit.check()
        assert len(visit.own) == 1  # the page itself: no request of any kind


def facts(page):
    return page.evaluate(f"[...{ROOT}.querySelectorAll('.facts dd')].map((n) => n.textContent)")


def shown(x):
    return f"{x:.3f}".rstrip("0").rstrip(".") if abs(x) >= 0.001 else None


def test_it_opens_on_a_path(explorer):
    page = explorer("SGD", lr=0.05, start=(-2.0, 1.0), step=1)
    assert facts(page)[:3] == ["1 of 100", "(-1.9, 0)", "1.805"]
    assert page.locator(".note").text_content() == "Loss 0.01 is reached at step 52."
    page.get_by_role("button", name="One step on").click()
    assert facts(page)[0] == "2 of 100"
    assert "step 2: at (-1.805, 0)" in page.get_by_role("status").text_content()
    page.get_by_role("button", name="One step back").click()
    page.get_by_role("button", name="One step back").click()
    assert facts(page)[1] == "(-2, 1)"
    assert page.get_by_role("button", name="One step back").is_disabled()


def test_the_step_by_slider(explorer):
    page = explorer("momentum")
    page.get_by_role("slider", name="step", exact=True).fill("57")
    want = ravine_path(settings_of("momentum"))[57].tolist()
    assert facts(page)[:2] == ["57 of 100", f"({shown(want[0])}, {shown(want[1])})"]


def settings_of(method, **changes):
    return optimizer_ravine(method).data["settings"] | changes


def test_another_optimizer_comes_with_its_rate(explorer):
    page = explorer("SGD")
    page.get_by_text("Adam", exact=True).click()
    want = ravine_path(settings_of("Adam"))[30].tolist()
    assert facts(page)[1] == f"({shown(want[0])}, {shown(want[1])})"
    assert page.get_by_role("slider", name="β₁").is_enabled()
    page.get_by_text("AdaGrad", exact=True).click()
    assert page.get_by_role("slider", name="β₁ (not used)").is_disabled()
    page.get_by_text("RMSProp", exact=True).click()
    assert page.get_by_role("slider", name="alpha").is_enabled()


def test_too_high_a_rate_is_said(explorer):
    page = explorer("SGD")
    page.get_by_role("slider", name="learning rate").fill("14")
    assert "runs away" in page.locator(".note").text_content()


def test_a_path_is_kept_for_comparison(explorer):
    page = explorer("SGD")
    page.get_by_role("button", name="Keep this path").click()
    page.get_by_text("Adam", exact=True).click()
    assert "Dashed: SGD, lr 0.09." in page.locator(".note").text_content()
    assert page.locator(".ghost").get_attribute("points").count(",") == 31
    page.get_by_role("button", name="Drop the kept path").click()
    assert page.locator(".ghost").get_attribute("points") == ""


def test_the_start_by_keyboard(explorer):
    page = explorer("SGD", start=(-2.0, 1.0), step=0)
    handle = page.get_by_role("slider", name="Start")
    handle.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Shift+ArrowDown")
    assert facts(page)[1] == "(-1.9, 0.89)"
    assert handle.get_attribute("aria-valuetext") == "x -1.9, y 0.89"
    ring = f"getComputedStyle({ROOT}.querySelector('.ring')).strokeWidth"
    assert page.evaluate(ring) == "5px"
    for _ in range(60):
        page.keyboard.press("ArrowLeft")
    assert facts(page)[1] == "(-2.9, 0.89)"  # it stays on the page


def test_the_start_by_mouse(explorer):
    page = explorer("SGD", start=(0.0, 0.0), step=0)
    box = page.locator(".stage").bounding_box()
    scale = box["width"] / 6
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + scale, y - 0.5 * scale, steps=4)
    page.mouse.up()
    got = [float(part) for part in facts(page)[1].strip("()").split(", ")]
    assert got == pytest.approx([1.0, 0.5], abs=0.03)
    before = facts(page)[1]
    page.mouse.move(x, y)
    assert facts(page)[1] == before  # released


def test_the_order_of_the_tab_key(explorer):
    page = explorer("Adam")
    page.get_by_role("radio", name="Adam", exact=True).focus()
    names = []
    for _ in range(9):
        page.keyboard.press("Tab")
        names.append(page.evaluate(f"{ROOT}.activeElement?.getAttribute('aria-label')"))
    assert names[:5] == [
        "learning rate",
        "β₁",
        "β₂",
        "κ, across over along",
        "turned by, in degrees",
    ]
    assert names[5].startswith("Start")
    assert names[6:] == ["One step back", "step", "One step on"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1000])
def test_it_reads_well(explorer, dark, width):
    page = explorer("momentum", angle=30, page_options={"dark": dark, "width": width})
    page.get_by_role("button", name="Keep this path").click()
    page.get_by_text("Adam", exact=True).click()
    assert page.evaluate(CONTRAST) == []
    screenshot(page, f"optimizer_ravine_{'dark' if dark else 'light'}_{width}")


def test_nothing_moves_by_itself(explorer):
    page = explorer("Adam", page_options={"reduced_motion": "reduce"})
    assert page.evaluate("document.getAnimations({ subtree: true }).length") == 0


def test_two_ravines_do_not_mix(open_page):
    page = open_page(optimizer_ravine("SGD").html() + optimizer_ravine("Adam").html()).page
    first, second = page.locator("[data-s2s-figure]").all()
    before = first.locator(".facts").text_content()
    second.get_by_text("RMSProp", exact=True).click()
    second.get_by_role("button", name="One step on").click()
    assert first.locator(".facts").text_content() == before
