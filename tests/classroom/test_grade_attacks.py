"""Attacks on `course grade` as a whole: by what an answer keeps, by files, names, plans and outputs."""

import json

import pytest
from html_read import harmless
from rich.console import Console
from sandbox_cases import Runner, found_by
from submissions import notebook, zip_of
from toy_class import PLAN, RIGHT, ROWS, SET_UP, SOFTMAX, cells

from course_utils.authoring.counts import count
from course_utils.classroom.marks.plan import Plan
from course_utils.classroom.marks.record import DAMAGED, FAILED, PASSED, Record
from course_utils.classroom.reports.feedback import as_html
from course_utils.classroom.run import terminal
from course_utils.classroom.submissions.cells import cells_of
from course_utils.classroom.submissions.intake import find, read
from course_utils.grading.judging.ladder import RANDOM


def page_of(record):
    return harmless(as_html(PLAN, record)).text


# ------------------------------------------------------------------------------ what is hidden

KEEPS = """
SEEN = []
@exercise("toys.row_softmax")
def row_softmax(*args, **named):
    if named:
        SEEN.append(named["x"].flatten().tolist())
        return torch.softmax(named["x"], -1)
    raise ValueError(f"SEEN {SEEN}.")
"""
TELLS = """
@exercise("toys.row_softmax")
def row_softmax(*args, **named):
    if named and named["x"].numel() > 2:
        raise ValueError(f"SEEN {named['x'].tolist()}.")
    return torch.softmax((*named.values(), *args)[0], -1)
"""


def test_a_call_by_name_brings_no_hidden_case_to_the_student(graded):
    """Parameters that are hidden are called by name, too: at first with what was worked by hand alone."""
    record = graded(SET_UP, KEEPS)
    assert record.result(SOFTMAX).sentence.endswith("ValueError: SEEN [[0.0, 0.0]].")
    assert "SEEN [[0.0, 0.0]]." in page_of(record)
    count("attacks on a run")


def test_what_a_hidden_call_by_name_shows_is_for_the_instructor(graded):
    record = graded(SET_UP, TELLS)
    result = record.result(SOFTMAX)
    assert (result.outcome, result.failed_rung, result.points) == (FAILED, RANDOM, 0)
    assert "called by name, row_softmax(x=…): your code raised ValueError: SEEN" in result.sentence
    assert "SEEN" not in page_of(record)
    count("attacks on a run")


# ------------------------------------------------------------------------------ outputs without end

ANSWER = "@exercise('toys.row_softmax')\ndef row_softmax(x):\n    "
WITHOUT_END = {
    "an exception's name of ten million letters": "E = type('A' * 10**7, (Exception,), {})\n"
    + f"{ANSWER}raise E('x')",
    "an exception that acts on terminals": f"{ANSWER}raise ValueError("
    "chr(0xD800) + chr(27) + '[2J' + chr(0x202E) + 'z' * 10**6)",
    "a parameter of a million letters": ANSWER.replace("(x)", f"({'x' * 10**6})") + "return 1",
    "ten thousand parameters": ANSWER.replace(
        "(x)", f"(x, {', '.join(f'p{n}=0' for n in range(10_000))})"
    )
    + "return x",
    "keys of a million letters": f"{ANSWER}return {{'k' * 10**6 + str(n): x for n in range(20)}}",
    "a text of ten million letters": f"{ANSWER}return 'q' * 10**7",
    "a shape without elements, and without end": f"{ANSWER}return torch.zeros(0, 2**20, 2**20)",
    "a tensor that has no data": f"{ANSWER}return torch.empty(10**12, device='meta')",
    "a number of four thousand digits": f"{ANSWER}return 10**4000",
}


@pytest.mark.parametrize("name", WITHOUT_END)
def test_what_has_no_end_costs_its_answer_and_is_told_in_short(graded, name):
    record = graded(SET_UP, RIGHT[ROWS], WITHOUT_END[name])
    assert record.result(SOFTMAX).outcome == FAILED
    assert record.result(ROWS).outcome == PASSED
    assert len(record.to_line()) < 10_000
    page = as_html(PLAN, record)
    assert len(page) < 20_000
    assert not {"\x1b", "\u202e", "\ud800"} & set(page)
    count("attacks on a run")


def test_three_million_empty_lines_are_no_work(graded):
    record = graded("\n" * 3_000_000 + "import math", *cells())
    assert record.points == 8
    count("attacks on a run")


@pytest.mark.parametrize("number", ["9" * 10**7, f"0.{'9' * 10**7}e-5", f"1e{'9' * 10**7}"])
def test_numbers_without_end_are_read(number):
    assert cells_of(b'{"cells": [], "x": %s}' % number.encode()).cells == []


def test_two_entries_of_one_name_are_said(tmp_path):
    both = [("ada.ipynb", notebook(RIGHT[ROWS])), ("ada.ipynb", notebook(RIGHT[ROWS] + "\n"))]
    with pytest.warns(UserWarning, match="Duplicate name"):
        place = zip_of(tmp_path / "x.zip", both)
    (ada,) = find(place).submissions
    assert "in 2 notebooks (ada.ipynb, ada.ipynb)" in read(ada).notes[0]
    count("attacks on a run")


def test_a_name_does_not_act_on_the_instructors_terminal():
    console = Console(force_terminal=True, width=200)
    bar = terminal.Bar(console)
    with console.capture() as told:
        bar.step(Record("a\u202eda\x1b]0;x", DAMAGED, (), problem="\u200b" * 10**5))
    assert "a⟨U+202E⟩da⟨U+001B⟩]0;x: damaged: ⟨U+200B⟩" in told.get().replace("\n", "")
    assert "\u202e" not in told.get()
    count("attacks on a run")


# ------------------------------------------------------------------------------ plans

PLAN_ENTRIES = {
    "points that are no number": {"items": [{"key": "a.b", "points": True}]},
    "a grace beyond all time": {"late": {"grace_minutes": 1e300}},
    "a grace before the due date": {"late": {"grace_minutes": -1}},
    "days that are a text": {"late": {"closes_after_days": "3"}},
    "a share that is no number": {"late": {"per_day": float("nan")}},
}


@pytest.mark.parametrize("entry", PLAN_ENTRIES.values(), ids=PLAN_ENTRIES)
def test_a_plan_that_was_changed_by_hand_is_refused_when_it_is_read(entry):
    text = json.dumps(json.loads(PLAN.to_json()) | entry)
    with pytest.raises(ValueError, match=r"points above 0|a grace has|no plan|a share from 0 to 1"):
        Plan.from_json(text)
    count("attacks on a run")


# ------------------------------------------------------------------------------ resources

PIPES = """
import fcntl, os
held = 0
try:
    while True:
        _, end = os.pipe()
        os.set_blocking(end, False)
        try: fcntl.fcntl(end, 1031, 2**20)
        except OSError: pass
        try:
            while True: held += os.write(end, bytes(2**16))
        except BlockingIOError: pass
except OSError:
    found = held
"""


def test_pipes_take_little_of_the_kernels_memory(sandbox):
    assert found_by(sandbox, PIPES) < 2**27
    count("attacks on a run")


def test_one_that_stops_itself_goes_on(sandbox):
    """The first process of a namespace takes no such signal of its own."""
    with sandbox.submission() as channel:
        source = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP); found = 1"
        assert Runner(channel).run(source) == 1
    count("attacks on a run")
