"""The memory budget: its bytes are step_memory's, and a reader can set everything by mouse and keys."""

import random
from dataclasses import asdict

import pytest
from test_stride_explorer import CONTRAST

from course_utils.figures.memory_budget import CHOICES, DEFAULTS, memory_budget
from course_utils.reference.memory_budget import GPUS, SHAPES, parameter_count, step_memory
from tests.browser import screenshot

ROOT = "document.querySelector('[data-s2s-figure]').shadowRoot"
RUN = """(all) => all.map((s) => {
  const memory = StridesToShards.budget.stepMemory(s);
  return { memory, total: StridesToShards.budget.sum(memory), count: StridesToShards.budget.parameterCount(s) };
})"""
OPTIONS = {
    "precision": ["fp32", "bf16 mixed", "bf16"],
    "optimizer": ["sgd", "momentum", "adam", "adamw"],
    "state_dtype": [None, "fp32", "bf16"],
    "tied": [True, False],
    "checkpointing": ["none", "selective", "block"],
    "attention": ["flash", "scores"],
    "zero": [0, 1, 2, 3],
}


def drawn(rng):
    shape = dict(rng.choice(list(SHAPES.values())))
    if rng.random() < 0.5:
        shape["n_embd"] = shape["n_head"] * rng.randrange(1, 200)
        shape["vocab"] = rng.randrange(1, 300_000)
    settings = {key: rng.choice(values) for key, values in (OPTIONS | CHOICES).items()}
    if rng.random() < 0.3:
        settings["world_size"] = rng.randrange(1, 2000)
    return shape | settings


def test_its_bytes_are_those_of_step_memory(open_page):
    rng = random.Random(0)
    everything = [drawn(rng) for _ in range(600)]
    everything += [shape | DEFAULTS for shape in SHAPES.values()]
    got = open_page(memory_budget().html()).page.evaluate(RUN, everything)
    largest = 0
    for settings, seen in zip(everything, got, strict=True):
        want = step_memory(**settings)
        assert seen["memory"] == asdict(want), settings
        assert seen["total"] == want.total
        shape = (settings[k] for k in ("n_layer", "n_embd", "vocab", "context", "tied"))
        assert seen["count"] == parameter_count(*shape)
        largest = max(largest, want.total)
    assert len(got) == 606 and largest < 2**53
    for key, values in OPTIONS.items():
        assert {settings[key] for settings in everything} == set(values)


def test_the_account_is_exact():
    text = str(memory_budget("GPT-2 small", batch=8))
    want = step_memory(**SHAPES["GPT-2 small"], batch=8, precision="bf16 mixed")
    assert "124,439,808 parameters" in text
    assert f"= {want.total:,} bytes" in text
    assert "T4" in text.splitlines()[-1]
    with pytest.raises(ValueError, match="no shape 'GPT-9'"):
        memory_budget("GPT-9")
    with pytest.raises(ValueError, match="precision is one of"):
        memory_budget(precision="fp8")


# --- The figure


@pytest.fixture
def budget(open_page):
    visits = []

    def open_budget(*args, page_options=None, **kwargs):
        visits.append(open_page(memory_budget(*args, **kwargs).html(), **(page_options or {})))
        return visits[-1].page

    yield open_budget
    for visit in visits:
        visit.check()
        assert len(visit.own) == 1  # the page itself: no request of any kind


def shown(page):
    """The bytes in the table, by tenant."""
    script = f"[...{ROOT}.querySelectorAll('tbody tr')].map((r) => [r.querySelector('th').textContent, r.querySelector('.exact').textContent])"
    return {name: int(text.replace(",", "")) for name, text in page.evaluate(script)}


def as_shown(memory):
    names = {"weight_copies": "bf16 copies of weights"}
    return {names.get(k, k.replace("_", " ")): v for k, v in asdict(memory).items()}


def test_a_reader_changes_the_settings(budget):
    page = budget()
    settings = SHAPES["GPT-2 small"] | DEFAULTS
    assert shown(page) == as_shown(step_memory(**settings))
    page.get_by_text("GPT-2 XL", exact=True).click()
    settings |= SHAPES["GPT-2 XL"]
    assert shown(page) == as_shown(step_memory(**settings))
    page.get_by_role("radio", name="every block").check(force=True)
    page.get_by_role("radio", name="SGD").check(force=True)
    page.get_by_role("radio", name="its own").check(force=True)
    settings |= {"checkpointing": "block", "optimizer": "sgd", "tied": False}
    assert shown(page) == as_shown(step_memory(**settings))
    page.get_by_role("slider", name="ranks").fill("3")
    page.locator("fieldset", has_text="ZeRO stage").get_by_text("3", exact=True).click()
    settings |= {"world_size": CHOICES["world_size"][3], "zero": 3}
    memory = step_memory(**settings)
    assert shown(page) == as_shown(memory)
    assert f"{memory.total:,} bytes on each of 8 ranks" in page.locator(".note").text_content()
    said = page.get_by_role("status").text_content()
    fits = [name for name, size in GPUS.items() if memory.total <= size]
    assert "on each rank; fits on" in said and all(name in said for name in fits)
    assert page.locator(".gpus .yes").count() == len(fits)


def test_by_keyboard(budget):
    page = budget()
    page.get_by_role("radio", name="bf16 mixed").focus()
    page.keyboard.press("ArrowRight")
    assert shown(page)["parameters"] == 2 * 124_439_808
    page.get_by_role("slider", name="batch on each rank").focus()
    page.keyboard.press("ArrowRight")
    assert (
        page.get_by_role("slider", name="batch on each rank").get_attribute("aria-valuetext")
        == "12"
    )
    want = step_memory(**SHAPES["GPT-2 small"] | DEFAULTS | {"precision": "bf16", "batch": 12})
    assert shown(page)["activations"] == want.activations


def test_what_does_not_fit_is_said(budget):
    page = budget("70B", tied=False)
    assert page.locator(".gpus .yes").count() == 0
    assert "too small by" in page.locator(".gpus").text_content()
    page.get_by_role("slider", name="context").fill("0")
    assert "fits on none of the GPUs" in page.get_by_role("status").text_content()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1000])
def test_it_reads_well(budget, dark, width):
    page = budget("7B", batch=1, zero=1, world_size=8, page_options={"dark": dark, "width": width})
    assert page.evaluate(CONTRAST) == []
    screenshot(page, f"memory_budget_{'dark' if dark else 'light'}_{width}")


def test_nothing_moves_by_itself(budget):
    page = budget(page_options={"reduced_motion": "reduce"})
    assert page.evaluate("document.getAnimations({ subtree: true }).length") == 0


def test_two_budgets_do_not_mix(open_page):
    page = open_page(memory_budget().html() + memory_budget("7B").html()).page
    first, second = page.locator("[data-s2s-figure]").all()
    before = first.locator(".note").text_content()
    second.get_by_text("every block", exact=True).click()
    assert first.locator(".note").text_content() == before
