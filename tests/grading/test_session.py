"""The student's side: what a cell shows, what the name is bound to, what is remembered."""

import json

import pytest
import toy_references as ref
from IPython.utils.capture import capture_output

from course_utils.grading import UnknownKey, VerdictError, solution_cell, stub_cell
from course_utils.grading import check_notebook as check

HEAD = '@exercise("toys.temperature_softmax")\ndef temperature_softmax(x, temperature=1.0):\n'
RIGHT = (
    HEAD
    + "    if temperature <= 0:\n        raise ValueError\n    return torch.softmax(x / temperature, -1)\n"
)
MULTIPLIES = RIGHT.replace("x / temperature", "x * temperature")


def test_untouched_stub_is_bound_to_the_book(notebook):
    text = notebook.run(stub_cell("toys.temperature_softmax"))
    assert text.startswith("○ temperature_softmax · not attempted")
    assert "Nothing was checked" in text
    assert notebook["temperature_softmax"] is ref.temperature_softmax


def test_right_answer_passes_and_is_bound(notebook):
    text = notebook.run(RIGHT)
    assert text.startswith("✓ temperature_softmax · passed · ")
    assert "of" in text and "checks" in text
    assert notebook["temperature_softmax"] is not ref.temperature_softmax
    assert "Verdict" not in notebook.html and "<div" in notebook.html


def test_wrong_answer_is_shown_small_explained_and_stays_bound(notebook):
    text = notebook.run(MULTIPLIES)
    assert "✗ temperature_softmax · failed at rung" in text
    assert "temperature=0.5" in text or "temperature=2.0" in text
    assert "The temperature multiplies instead of dividing." in text
    assert 'hint 1 of 3 is open: hint("toys.temperature_softmax")' in text
    assert notebook["temperature_softmax"](notebook["torch"].zeros(2), 1.0) is not None
    assert notebook["temperature_softmax"].__module__ == "__main__"


def test_one_difference_in_one_element_shows_where(notebook):
    text = notebook.run(
        HEAD + "    y = torch.softmax(x / temperature, -1)\n    y[..., -1] += 0.25\n    return y\n"
    )
    assert "differ" in text and "you " in text and "expected " in text


def test_class_in_a_cell(notebook):
    text = notebook.run(stub_cell("toys.Momentum"))
    assert "○ Momentum · not attempted" in text
    source = """@exercise("toys.Momentum")
class Momentum:
    def __init__(self, position, lr=0.1, beta=0.9):
        self.position, self.velocity = position.clone(), torch.zeros_like(position)
        self.lr, self.beta, self.step_count = lr, beta, 0

    def __call__(self, gradient):
        me = Momentum  # the class may name itself while it is checked
        self.velocity = self.beta * self.velocity + gradient
        self.position = self.position - self.lr * self.velocity
        self.step_count += 1
        return self.position
"""
    assert "✓ Momentum · passed" in notebook.run(source)
    assert "attribute `step_count` at the end" in notebook.run(
        source.replace("self.step_count += 1", "pass")
    )


def test_pair_waits_for_its_other_half(notebook):
    text = notebook.run(
        '@exercise("toys.to_digits")\ndef to_digits(number, base=10):\n'
        "    return to_digits(number // base, base) + [number % base] if number >= base else [number]\n"
    )
    assert "checked together with from_digits" in text
    text = notebook.run(
        '@exercise("toys.to_digits")\ndef from_digits(digits, base=10):\n'
        "    total = 0\n    for d in digits:\n        total = total * base + d\n    return total\n"
    )
    assert "✓ to_digits · passed" in text


def test_strict_raises(notebook):
    with pytest.raises(VerdictError, match="multiplies"):
        notebook.run(MULTIPLIES.replace('softmax")', 'softmax", strict=True)'))
    with pytest.raises(VerdictError, match="not attempted"):
        stub = stub_cell("toys.temperature_softmax")
        notebook.run(stub.replace('softmax")', 'softmax", strict=True)'))


def test_hints_come_one_by_one_and_the_fitting_one_first(notebook):
    notebook.run(
        RIGHT.replace(
            "torch.softmax(x / temperature, -1)",
            "(x / temperature).exp() / (x / temperature).exp().sum(-1, keepdim=True)",
        )
    )
    assert "exp overflows" in notebook.run('hint("toys.temperature_softmax")')
    assert "Divide first." in notebook.run('hint("toys.temperature_softmax")')
    last = notebook.run('hint("toys.temperature_softmax")')
    assert "Subtract the largest." in last and "solution(" in last


def test_solution_shows_both_versions(notebook):
    notebook.run(RIGHT)
    text = notebook.run('solution("toys.temperature_softmax")')
    assert "Yours" in text and "The book's version" in text and "z.amax" in text


def test_use_book_mine_provenance_reset(notebook):
    notebook.run("def helper(z):\n    return torch.softmax(z, -1)")
    notebook.run(RIGHT.replace("torch.softmax(x / temperature, -1)", "helper(x / temperature)"))
    assert "yours" in notebook.run("provenance()")
    notebook.run('use_book("toys.temperature_softmax")')
    assert notebook["temperature_softmax"] is ref.temperature_softmax
    assert "the book's" in notebook.run("provenance()")
    notebook.shell.user_ns.pop("helper")  # another kernel would not have it
    notebook.run('again = mine("toys.temperature_softmax")')
    assert notebook["again"] is not ref.temperature_softmax
    assert notebook["again"](notebook["torch"].zeros(2)).tolist() == [0.5, 0.5]
    assert "starts again" in notebook.run('reset("toys.temperature_softmax")')
    assert "You have no passed answer" in notebook.run('again = mine("toys.temperature_softmax")')
    assert notebook["again"] is ref.temperature_softmax


def test_mine_says_that_the_last_answer_did_not_pass(notebook):
    notebook.run(RIGHT)
    assert "did not pass" not in notebook.run('again = mine("toys.temperature_softmax")')
    notebook.run(RIGHT.replace("x / temperature", "x * temperature"))
    said = notebook.run('again = mine("toys.temperature_softmax")')
    assert "that passed is used; the last one you ran did not pass" in said
    assert notebook["again"](notebook["torch"].tensor([0.0, 1.0]), 0.1)[1] > 0.99


def test_a_failing_answer_says_which_other_of_yours_it_uses(notebook):
    leaning = """@exercise("toys.Momentum")
class Momentum:
    def __init__(self, position, lr=0.1, beta=0.9):
        self.position, self.lr = position.clone(), lr

    def __call__(self, gradient):
        step = lambda: temperature_softmax(gradient)
        self.position = self.position - self.lr * step()
        return self.position
"""
    says = "it uses your `temperature_softmax` (toys.temperature_softmax), which has not passed"
    notebook.run(MULTIPLIES)
    assert says in notebook.run(leaning)
    notebook.run(RIGHT)
    assert says not in notebook.run(leaning)
    notebook.run(MULTIPLIES)
    assert says not in notebook.run(leaning.replace("temperature_softmax(gradient)", "gradient"))


def test_a_cell_that_raises_is_told_what_has_not_passed(notebook):
    says = "Not passed yet in this notebook: `temperature_softmax`. This cell may fail"

    def said(cell: str) -> str:
        with capture_output() as shown:
            notebook.shell.run_cell(cell)
        return shown.stdout

    assert says not in said("assert 1 == 2"), "nothing has been answered"
    notebook.run(MULTIPLIES)
    assert says in said("assert 1 == 2")
    assert said("assert 1 == 2").count(says) == 1, "it is registered once"
    assert says not in said("1 + 1") and says not in said("raise KeyboardInterrupt")
    notebook.run(RIGHT)
    assert says not in said("assert 1 == 2")


def test_progress_counts_what_passed(notebook, monkeypatch):
    from course_utils.grading.notebook import verbs

    assert "0 of" in str(verbs.progress())
    wrong = (
        '@exercise("strides.flat_index")\ndef flat_index(index, stride, offset=0):\n    return 1\n'
    )
    notebook.run(wrong)
    assert "\n✗ strides: flat_index\n" in str(verbs.progress())
    with pytest.raises(UnknownKey, match="no chapter"):
        verbs.progress("nosuch")


# ------------------------------------------------------------------ bad input


def test_unknown_key(notebook):
    with pytest.raises(UnknownKey, match=r"did you mean 'toys\.temperature_softmax'"):
        notebook.run('@exercise("toys.temperatur_softmax")\ndef f(x): pass')
    with pytest.raises(UnknownKey, match="no exercise 3"):
        notebook.run("hint(3)")


def test_other_arguments(notebook):
    text = notebook.run(
        '@exercise("toys.temperature_softmax")\ndef temperature_softmax(logits, t):\n    return 1\n'
    )
    assert "`temperature_softmax` takes (x, temperature); yours takes (logits, t)" in text


def test_other_default(notebook):
    assert "the default of `temperature` is 1.0; yours has 2.0" in notebook.run(
        RIGHT.replace("=1.0", "=2.0")
    )


def test_class_where_a_function_is_due(notebook):
    text = notebook.run(
        '@exercise("toys.temperature_softmax")\nclass temperature_softmax:\n    x = 1\n'
    )
    assert "must be a function; came a class" in text


def test_generator_where_a_value_is_due(notebook):
    assert "contains `yield`" in notebook.run(HEAD + "    yield x\n")


def test_result_that_is_no_tensor(notebook):
    text = notebook.run(HEAD + "    return x.tolist()\n")
    assert "expected a Tensor of shape (2,), float32; came a list of 2" in text
    text = notebook.run(HEAD + "    return object()\n")
    assert "came an object" in text


def test_nan(notebook):
    text = notebook.run(HEAD + "    return x * float('nan')\n")
    assert "of them NaN where a number is expected" in text


def test_endless_loop_is_stopped_and_its_line_named(notebook, monkeypatch):
    import toys

    monkeypatch.setattr(toys.softmax, "limit_s", 1.0)
    text = notebook.run(HEAD + "    while True:\n        x = x + 1\n")
    assert "still running" in text and "endless loop" in text
    assert "in temperature_softmax:" in text


def test_endless_loop_that_swallows_exceptions(notebook, monkeypatch):
    import toys

    monkeypatch.setattr(toys.softmax, "limit_s", 1.0)
    body = "    while True:\n        try:\n            x = x + 1\n        except Exception:\n            pass\n"
    assert "endless loop" in notebook.run(HEAD + body)


def test_interrupted_by_the_student(notebook):
    stop = "    import os, signal\n    os.kill(os.getpid(), signal.SIGINT)\n"
    text = notebook.run(HEAD + stop + "    while True:\n        pass\n")
    assert "■ temperature_softmax · interrupted" in text
    assert notebook.run("1 + 1") is not None  # the kernel lives on


def test_recursive_answer(notebook):
    text = notebook.run(
        HEAD
        + "    if x.ndim > 1 and len(x):\n        return torch.stack([temperature_softmax(row, temperature) for row in x])\n    if temperature <= 0:\n        raise ValueError\n    return torch.softmax(x / temperature, -1)\n"
    )
    assert (
        "rung 6 of 6, contracts" in text or "contracts" in text
    )  # right values through its own name
    text = notebook.run(HEAD + "    return temperature_softmax(x, temperature)\n")
    assert "RecursionError" in text


def test_exception_names_the_students_line(notebook):
    text = notebook.run(HEAD + "    y = x + 1\n    return y[99]\n")
    assert "your code raised IndexError" in text
    assert "line 4 in temperature_softmax:  return y[99]" in text


def test_printing_answer_does_not_flood(notebook):
    text = notebook.run(RIGHT.replace("    return", "    print('noise')\n    return"))
    assert "noise" not in text and "passed" in text


def test_corrupt_progress_file_is_kept_aside(notebook, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "progress.json").write_text('{"version": 1, "exercises": {"a"')
    text = notebook.run(RIGHT)
    assert "✓" in text and "progress file was damaged" in text
    (aside,) = home.glob("progress.damaged-*.json")
    assert aside.read_text() == '{"version": 1, "exercises": {"a"'
    entries = json.loads((home / "progress.json").read_text())["exercises"]
    assert entries["toys.temperature_softmax"]["last"] == "passed"


def test_progress_of_a_newer_edition_is_kept_aside(notebook, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "progress.json").write_text('{"version": 99, "exercises": {}}')
    assert "newer edition" in notebook.run(RIGHT)
    assert list(home.glob("progress.damaged-*.json"))


def test_progress_that_cannot_be_written_is_said(notebook, tmp_path, monkeypatch):
    (tmp_path / "afile").write_text("")
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "afile"))
    text = notebook.run(RIGHT)
    assert "✓" in text and "could not be saved" in text


# ------------------------------------------------------------------ in a terminal


def write_notebook(path, *cells):
    path.write_text(
        json.dumps(
            {
                "cells": [
                    {"cell_type": "code", "metadata": {}, "outputs": [], "source": cell}
                    for cell in cells
                ],
                "metadata": {},
                "nbformat": 4,
                "nbformat_minor": 5,
            }
        )
    )
    return path


def test_check_notebook_runs_only_what_an_answer_needs(tmp_path):
    path = write_notebook(
        tmp_path / "mine.ipynb",
        "%matplotlib inline\nimport torch\nraise SystemExit('never run')",
        "def helper(z):\n    return torch.softmax(z, -1)",
        "1 / 0",
        RIGHT.replace("torch.softmax(x / temperature, -1)", "helper(x / temperature)"),
    )
    (verdict,) = check(path)
    assert verdict.outcome == "passed", verdict


def test_check_notebook_takes_the_books_version_of_what_is_unwritten(tmp_path):
    """As the notebook does: an exercise that is still the stub stands for the book's."""
    stub = stub_cell("accounting.days_to_train")
    answer = solution_cell("accounting.plan_training")
    assert "days_to_train(" in answer
    path = write_notebook(tmp_path / "mine.ipynb", "import torch", stub, answer)
    untouched, verdict = check(path)
    assert untouched.outcome == "not attempted"
    assert verdict.outcome == "passed", verdict
    wrong = stub.replace('raise NotImplementedError("your turn")', "return 0.0")
    path = write_notebook(tmp_path / "wrong.ipynb", "import torch", wrong, answer)
    assert [verdict.outcome for verdict in check(path)] == ["failed", "failed"]


def test_check_notebook_says_where_a_syntax_error_is(tmp_path):
    path = write_notebook(tmp_path / "mine.ipynb", "import torch", HEAD + "    return x +\n")
    (verdict,) = check(path)
    assert "syntax error in code cell 2, line 3" in str(verdict)


def test_check_notebook_takes_the_last_of_two_copies(tmp_path):
    path = write_notebook(tmp_path / "mine.ipynb", "import torch", MULTIPLIES, RIGHT)
    (verdict,) = check(path)
    assert verdict.outcome == "passed"


def test_check_notebook_on_something_else(tmp_path):
    (tmp_path / "torn.ipynb").write_text('{"cells": [')
    with pytest.raises(ValueError, match="not a readable notebook"):
        check(tmp_path / "torn.ipynb")
