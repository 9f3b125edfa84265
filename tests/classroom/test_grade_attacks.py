"""Attacks on `course grade` as a whole: by what an answer keeps, by files, names, plans and outputs."""

import pytest
import toy_class
from html_read import harmless
from toy_class import PLAN, SET_UP, SOFTMAX

from course_utils.authoring.counts import count
from course_utils.classroom.marks.record import FAILED
from course_utils.classroom.reports.feedback import as_html
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
