"""The figure of an engine's steps: its frames are the engine's, and keys work it."""

import pytest
import torch

from course_utils.figures.serving import engine_steps
from course_utils.reference.gpt2 import GPT2, GPT2Config
from course_utils.reference.serving_engine import Engine, GenerationRequest

CONFIG = GPT2Config(vocab_size=50, n_positions=64, n_embd=12, n_layer=1, n_head=2, dropout=0.0)
SAME = tuple(range(9))


@pytest.fixture(scope="module")
def figure():
    torch.manual_seed(0)
    engine = Engine(GPT2(CONFIG).eval(), slots=3, n_blocks=12, block_size=4, budget=8)
    requests = {
        "a": GenerationRequest((*SAME, 11), 4, seed=1),
        "b": GenerationRequest((20, 21, 22, 23, 24), 6, seed=2),
        "c": GenerationRequest((*SAME, 12, 13), 5, seed=3),
        "d": GenerationRequest((*SAME[:4], 7, 7, 7), 3, seed=4),
    }
    shown = engine_steps(engine, requests, {"c": 3, "d": 5})
    assert engine.idle
    return shown


def test_frames_add_up(figure):
    frames = figure.data["frames"]
    for frame in frames:
        held = [block for row in frame["rows"] for block in row["table"]]
        assert frame["uses"] == [held.count(block) for block in range(12)]
        assert sum(row["now"] for row in frame["rows"]) <= 8
        for row in frame["rows"]:
            assert row["read"] <= row["prompt"] + row["drawn"]
            assert len(row["table"]) * 4 >= row["read"]
    assert [row["state"] for row in frames[-1]["rows"]] == ["done"] * 4
    assert [row["drawn"] for row in frames[-1]["rows"]] == [4, 6, 5, 3]
    assert sum(frame["shared"] for frame in frames) == 8 + 4
    assert any(max(frame["uses"]) == 2 for frame in frames)
    assert figure.text.count("\n") == len(frames) - 1


def test_a_reader_steps_by_button_and_by_key(open_page, figure):
    visit = open_page(figure.html())
    page = visit.page
    where, last = page.locator(".where"), len(figure.data["frames"]) - 1
    assert where.text_content() == "before the first step · 0 of 12 blocks in use"
    page.get_by_role("button", name="One step forward").click()
    assert where.text_content().startswith(f"after step 1 of {last}")
    assert page.locator(".what").text_content() == "a reads 8."
    page.get_by_role("group", name="The engine; arrow keys step").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert "8 tokens were in known blocks already." in page.locator(".what").text_content()
    page.keyboard.press("End")
    assert page.get_by_role("button", name="One step forward").is_disabled()
    assert "complete" in page.locator(".what").text_content()
    page.keyboard.press("Home")
    assert where.text_content().startswith("before the first step")
    visit.check()
