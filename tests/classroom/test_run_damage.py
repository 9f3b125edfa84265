"""The damage table: what happens to notebooks by accident, and the mark that each must get.

Every row is graded through the real sandbox. All answers of the undamaged notebook are right: 8 points
(2 for the rows, 2 for the softmax, 4 for the attention).
"""

import json
import warnings

import pytest
import toy_class
from graded_here import grade_notebooks
from submissions import code, notebook
from toy_class import ATTENTION, RIGHT, ROWS, SET_UP, SOFTMAX, STUB, WRONG, cells

from course_utils.authoring.counts import count
from course_utils.classroom.marks.record import (
    DAMAGED,
    FAILED,
    GRADED,
    MISSING,
    NOT_ATTEMPTED,
    PASSED,
)

R, S, A = RIGHT[ROWS], RIGHT[SOFTMAX], RIGHT[ATTENTION]
HELPED = A.replace("math.sqrt(q.shape[-1])", "scale(q)")
HELPER = "def scale(q):\n    return math.sqrt(q.shape[-1])"
BASE = "LIMIT = 10\n\ndef limited(fn):\n    return fn"
NEEDS_BASE = S.replace("def row", "@limited\ndef row").replace("x: Tensor)", "x: Tensor, n=LIMIT)")
HEAD, _ = S.split("    e = ")
BEGUN = f"{HEAD}    e = torch.exp(x - x.amax(-1, keepdim=True))"

DAMAGE = {
    "nothing": ([SET_UP, R, S, A], 8),
    "an answer cell is there twice": ([SET_UP, R, R, S, A, S], 8),
    "a copy of the stub is left below the answer": ([SET_UP, R, S, A, STUB[SOFTMAX]], 8),
    "a stub is left above the answer": ([SET_UP, STUB[SOFTMAX], R, S, A], 8),
    "a copy of the stub with other blanks": (
        [SET_UP, R, S, A, STUB[SOFTMAX].replace("\n", "  \n\n")],
        8,
    ),
    "a wrong attempt below the right one": ([SET_UP, R, S, A, WRONG[ATTENTION]], 4),
    "a right attempt below the wrong one": ([SET_UP, R, WRONG[ATTENTION], S, A], 8),
    "answers in one cell": ([SET_UP, f"{R}\n\n\n{S}\n\n\n{A}"], 8),
    "everything in one cell": (["\n\n\n".join([SET_UP, R, S, A])], 8),
    "a helper split off into the cell above": ([SET_UP, R, S, HELPER, HELPED], 8),
    "a helper below its use": ([SET_UP, R, S, HELPED, HELPER], 8),
    "answers in another order": ([SET_UP, A, S, R], 8),
    "the imports come last": ([R, S, A, SET_UP], 8),
    "a decorator and a default defined below their use": ([SET_UP, R, NEEDS_BASE, A, BASE], 8),
    "an answer split in its middle": (
        [SET_UP, R, BEGUN, "    return e / e.sum(-1, keepdim=True)", A],
        8,
    ),
    "cells without metadata": (
        [{"cell_type": "code", "source": text} for text in (SET_UP, R, S, A)],
        8,
    ),
    "cells with strange tags": (
        [
            code(text, metadata={"tags": ["skip-execution", 7], "nbgrader": {"grade": "x"}})
            for text in (SET_UP, R, S, A)
        ],
        8,
    ),
    "metadata that is no object": ([code(t, metadata=None) for t in (SET_UP, R, S, A)], 8),
    "an answer cell turned into markdown": (
        [SET_UP, R, {"cell_type": "markdown", "source": S}, A],
        8,
    ),
    "an answer cell turned into raw text": ([SET_UP, R, {"cell_type": "raw", "source": S}, A], 8),
    "sources as lists of lines": ([code(t.splitlines(True)) for t in (SET_UP, R, S, A)], 8),
    "Windows line ends": ([t.replace("\n", "\r\n") for t in (SET_UP, R, S, A)], 8),
    "magics in the answer's cell": (
        ["%matplotlib inline\n" + SET_UP, f"%%time\n{R}", f"!ls\n{S}\n%timeit 1", f"?torch\n{A}"],
        8,
    ),
    "input() and exceptions in other cells": (
        [SET_UP, "name = input()", "1 / 0", R, "undefined", S, "import sys; sys.exit()", A],
        8,
    ),
    "an endless loop in another cell": ([SET_UP, "while True: pass", R, S, A], 8),
    "syntax errors in other cells": ([SET_UP, "def (", R, "x ==== 1", S, "'''", A], 8),
    "another cell that is no Python at all": ([SET_UP, "\x00\x01", R, "⟂ ∀", S, A], 8),
    "a syntax error in one answer": ([SET_UP, R, S.replace("return", "retrun"), A], 6),
    "a name that is nowhere in one answer": (
        [SET_UP, R, S.replace("torch.exp", "tosch.exp"), A],
        6,
    ),
    "an exception as one answer is defined": ([SET_UP, R, f"1 / 0\n{S}", A], 8),
    "a decorator that raises": ([SET_UP, R, S.replace("def row", "@(1 / 0)\ndef row"), A], 6),
    "input() in an answer": ([SET_UP, R, S.replace("    e =", "    input()\n    e ="), A], 6),
    "warnings on stderr": (
        [SET_UP, R, S.replace("    e =", "    import warnings; warnings.warn('no')\n    e ="), A],
        8,
    ),
    "prints": ([SET_UP, R, S.replace("    e =", "    print('x' * 10**5)\n    e ="), A], 8),
    "an answer deleted": ([SET_UP, R, A], 6),
    "an answer emptied": ([SET_UP, R, "", A], 6),
    "everything deleted": ([SET_UP], 0),
    "no cell at all": ([], 0),
    "untouched": ([SET_UP, *STUB.values()], 0),
    "another exercise's key": ([SET_UP, R, S.replace(SOFTMAX, "toys.nothing"), A], 6),
    "the book's verbs called without an import": ([SET_UP, R, S, A, "progress()\nhint('x')"], 8),
    "an outdated import": ([f"from course_utils import nothing_of_this\n{SET_UP}", R, S, A], 8),
}
"""What happened → the cells, and the points due of 8."""


@pytest.mark.parametrize("what", DAMAGE)
def test_damage(what, graded):
    made, due = DAMAGE[what]
    record = graded(*made)
    assert record.status == GRADED
    told = {one.key: (one.outcome, one.points, one.sentence) for one in record.results}
    assert record.points == due, told
    assert record.max_points == 8
    count("damaged notebooks with the mark due")


def test_what_was_not_attempted_and_what_is_missing_differ(graded):
    record = graded(SET_UP, R, STUB[SOFTMAX])
    assert [one.outcome for one in record.results] == [PASSED, NOT_ATTEMPTED, MISSING]


def test_a_syntax_error_names_its_place(graded):
    found = graded(*cells(row_softmax=S.replace("return", "retrun"))).result(SOFTMAX)
    assert found.outcome == FAILED
    assert found.sentence.startswith("syntax error in code cell 3, line 5")
    assert found.checks > 0, "the ladder is known even where nothing of it was climbed"


@pytest.mark.parametrize(
    ("name", "does", "tells"),
    [
        ("hangs", "while True: pass", "endless loop"),
        ("dies", "import os; os._exit(3)", "ended the process"),
        ("aborts", "import os; os.abort()", "ended the process"),
        ("recurses", "return row_softmax(x)", "RecursionError"),
        ("raises SystemExit", "raise SystemExit", "SystemExit"),
        ("interrupts", "raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("floods", "import sys; print('x' * 10**8); sys.stderr.write('y' * 10**8)", ""),
        ("takes memory", "return torch.ones(10**10)", "memory"),
    ],
)
def test_a_crash_costs_only_its_own_case(name, does, tells, graded):
    """It happens for one of the two edge cases: everything else keeps its marks."""
    bad = S.replace("    e =", f"    if x.shape == (1, 1):\n        {does}\n    e =")
    record = graded(*cells(row_softmax=bad))
    found = record.result(SOFTMAX)
    if name == "floods":  # it is slow and nothing else
        assert record.points == 8
        return
    assert [one.outcome for one in record.results] == [PASSED, FAILED, PASSED]
    by_rung = {rung.name: (rung.passed, rung.total) for rung in found.rungs}
    assert by_rung["random cases"] == (3, 3)
    assert by_rung["edge cases"][0] <= 1
    assert found.points == 1.5
    assert tells in found.sentence
    count("crashes that cost one case")


def test_two_notebooks_of_which_the_last_attempt_counts():
    wrong = WRONG[ATTENTION]
    first, last = notebook(SET_UP, R, S, A), notebook(SET_UP, wrong)
    record = grade_notebooks({"a.ipynb": first, "b.ipynb": last}, toy_class.PLAN)
    assert [one.outcome for one in record.results] == [PASSED, PASSED, FAILED]
    record = grade_notebooks({"b.ipynb": first, "a.ipynb": last}, toy_class.PLAN)
    assert record.points == 8
    assert "2 notebooks (a.ipynb, b.ipynb)" in record.notes[0]


def test_an_untouched_second_notebook_takes_nothing_away():
    untouched = notebook(SET_UP, *STUB.values())
    answered = notebook(*cells())
    record = grade_notebooks({"a.ipynb": answered, "b.ipynb": untouched}, toy_class.PLAN)
    assert record.points == 8


def test_a_torn_second_notebook_costs_what_only_it_holds():
    files = {"a.ipynb": notebook(SET_UP, R, S), "b.ipynb": notebook(SET_UP, A)[:-50]}
    record = grade_notebooks(files, toy_class.PLAN)
    assert (record.status, record.points) == (GRADED, 4)
    assert record.problem.startswith("b.ipynb: its JSON is torn")


@pytest.mark.parametrize(
    "data",
    [b"", notebook(*cells())[:-100], b"PK\x03\x04", json.dumps(cells()).encode(), b"\xff\xfe\x00"],
)
def test_what_is_no_notebook_is_damaged_and_says_why(data):
    record = grade_notebooks({"x.ipynb": data}, toy_class.PLAN)
    assert (record.status, record.points, record.max_points) == (DAMAGED, 0, 8)
    assert record.problem
    assert [one.outcome for one in record.results] == [MISSING] * 3
    count("damaged notebooks with the mark due")


def test_the_undamaged_notebook_warns_of_nothing(graded):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert graded(*cells()).points == 8
