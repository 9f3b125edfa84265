"""Every exercise of the book grades what it says; and the proofs themselves can fail.

What stands by the ledger is not proved anew, a sample aside: see `course_utils.authoring.ledger`.
"""

import copy

import pytest
import torch
import toy_references as ref
import toys

from course_utils.authoring import proofs
from course_utils.authoring.counts import count
from course_utils.grading import Exercise, NoChecks, call, every, grade
from course_utils.grading.remote.client import RemoteSubmission
from tests.support.proving import DUE, prove, stands

EXERCISES = every()
HERE = [(key, name) for key in DUE for name in proofs.proofs_of(EXERCISES[key])]
HERE = [(key, name) for key, name in HERE if name != proofs.MUTANTS]  # test_mutants has these


@pytest.mark.parametrize(("key", "proof"), HERE)
def test_exercise(key, proof):
    prove(key, proof)


@pytest.mark.parametrize("proof", proofs.PROOFS)
@pytest.mark.parametrize("key", [toy.key for toy in toys.TOYS])
def test_toy(key, proof):
    toy = next(toy for toy in toys.TOYS if toy.key == key)
    may_find_none = proof in ("contracts bind", "layouts are what they are called")
    assert proofs.PROOFS[proof](toy) >= (0 if may_find_none else 1)


@pytest.mark.parametrize("key", EXERCISES)
def test_counted(key):
    """It is proved in this run, or stands by an entry of the ledger that says all that is due."""
    exercise = EXERCISES[key]
    if key in DUE:
        count("exercises proved now")
    else:
        stands(key)
    count("exercises")
    count("mistakes", len(exercise.mistakes))
    count("alternatives", len(exercise.alternatives))
    count("contracts", len(exercise.contracts))
    count("library stand-ins", bool(exercise.stand_in))


def test_a_stand_in_that_is_something_else_is_caught():
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]).step()  # loads much, outside of any limit
    linear = copy.copy(every()["modules.Linear"])
    linear.stand_in_note = "It is quite different."
    with pytest.raises(AssertionError, match="differs in nothing"):
        proofs.stand_in_fits(linear)
    linear.stand_in = "torch.nn.Embedding"
    with pytest.raises(AssertionError, match="is something else"):
        proofs.stand_in_fits(linear)


# ------------------------------------------------------------------ broken on purpose


def broken_copy(**changes) -> Exercise:
    toy = copy.copy(toys.softmax)
    for name, value in changes.items():
        setattr(toy, name, value)
    return toy


def test_a_wrong_reference_is_caught():
    def temperature_softmax(x, temperature=1.0):
        """Wrong: not normalised."""
        return (x / temperature).exp()

    with pytest.raises(AssertionError, match="disagrees with the case worked by hand"):
        proofs.reference_passes(broken_copy(reference=temperature_softmax))


def test_an_exception_that_nobody_meant_is_caught():
    for item in (call("no tensor"), (call("no tensor"), "")):
        toy = broken_copy(key="toys.raises", _drawn={}, _edge=[lambda item=item: iter([item])])
        with pytest.raises(AssertionError, match="the reference raises"):
            proofs.expectations_are_meant(toy)
    toy = broken_copy(
        key="toys.raises", _drawn={}, _edge=[lambda: iter([(call("no tensor"), "a word")])]
    )
    proofs.expectations_are_meant(toy)


def test_a_float_without_its_oracle_is_caught():
    def single_only(x):
        assert x.dtype is torch.float32
        return x

    toy = broken_copy(key="toys.single", reference=single_only, _drawn={}, _by_hand=[], _random=[])
    toy._edge = [lambda: iter([call(torch.ones(2))])]
    with pytest.raises(AssertionError, match="cannot be computed in float64"):
        proofs.expectations_are_meant(toy)


def test_a_mistake_that_passes_is_caught():
    toy = broken_copy(mistakes=list(toys.softmax.mistakes))
    toy.mistake("Not a mistake at all.")(
        lambda x, temperature=1.0: ref.temperature_softmax(x, temperature)
    )
    with pytest.raises(AssertionError, match="this mistake passes"):
        proofs.mistakes_are_diagnosed(toy)


def test_two_mistakes_that_look_alike_are_caught():
    first = toys.softmax.mistakes[0]
    toy = broken_copy(mistakes=[*toys.softmax.mistakes])
    toy.mistake("The same results under another name.")(first.subject)
    with pytest.raises(AssertionError, match="is explained as None"):
        proofs.mistakes_are_diagnosed(toy)


def test_a_layout_that_a_view_flattens_is_caught():
    """Transposed, but one of the axes has one element."""
    toy = broken_copy(_edge=[lambda: iter([(call(torch.zeros(3, 1).T), "not contiguous")])])
    with pytest.raises(AssertionError, match="a view flattens every tensor"):
        proofs.layouts_are_what_they_are_called(toy)


def test_a_mistake_that_only_one_seed_finds_is_caught():
    """A class is graded with other random cases than those of seed 0."""
    toy = broken_copy(
        key="toys.lucky",
        mistakes=[],
        _drawn={},
        _edge=[],
        contracts=[],
        probe=copy.copy(toys.softmax.probe),
    )
    highest = max(case.args[0].sum().item() for case in toy.random_cases(0))

    def lucky(x, temperature=1.0):
        right = ref.temperature_softmax(x, temperature)
        return right + 1 if x.sum().item() == highest else right

    for says, one in {"Lucky.": lucky, "A second.": lambda x: x, "A third.": lambda: None}.items():
        toy.mistake(says)(one)
    with pytest.raises(AssertionError, match="seed 0 finds 'Lucky"):
        proofs.mistakes_are_diagnosed(toy)


def test_too_few_mistakes_are_caught():
    with pytest.raises(AssertionError, match="2 mistakes; at least 3"):
        proofs.mistakes_are_diagnosed(broken_copy(mistakes=toys.softmax.mistakes[:2]))


def test_a_stub_whose_signature_drifted_is_caught(monkeypatch):
    stub = proofs.stub_source(ref.temperature_softmax).replace(
        "temperature: float = 1.0", "t: float = 1"
    )
    monkeypatch.setattr(proofs, "stub_source", lambda part: stub)
    with pytest.raises(AssertionError, match="stub and reference disagree"):
        proofs.stub_agrees_with_reference(toys.softmax)


def test_a_right_answer_that_is_rejected_is_caught():
    toy = broken_copy(alternatives=[])
    with pytest.raises(AssertionError, match="no alternative"):
        proofs.alternatives_pass(toy)
    toy.alternative("wrong, in fact")(lambda x, temperature=1.0: x)
    with pytest.raises(AssertionError, match="a right answer is rejected"):
        proofs.alternatives_pass(toy)


def test_a_contract_that_binds_nobody_is_caught():
    toy = broken_copy(mistakes=[m for m in toys.softmax.mistakes if not m.cost])
    with pytest.raises(AssertionError, match="no mistake with right values breaks"):
        proofs.contracts_bind(toy)


def test_an_exercise_without_cases_is_an_error_and_never_a_pass():
    empty = Exercise(
        ref.unit_norm, key="toys.unit_norm", title="t", difficulty=1, minutes=1, points=1
    )
    with pytest.raises(NoChecks, match="declares no case"):
        grade(empty, ref.unit_norm)


def test_a_probe_that_sees_nothing_reads_not_compared():
    blind = Exercise(
        ref.unit_norm,
        key="toys.unit_norm",
        title="t",
        difficulty=1,
        minutes=1,
        points=1,
        probe=lambda subject, case: {},
    )
    blind.edge(lambda: iter([call(torch.ones(2))]))
    verdict = grade(blind, ref.unit_norm)
    assert verdict.outcome == "failed"
    assert "not compared" in str(verdict)


def test_the_other_process_has_no_answers():
    exercise = copy.copy(toys.softmax)
    for package in ("reference", "exercises", "questions"):
        cell = f"""@exercise("{exercise.key}")
def look(x, temperature=1.0):
    import course_utils.{package}
"""
        answer = RemoteSubmission(proofs.elsewhere().ask, [cell]).answer(exercise)
        seen = answer.observe(call(torch.ones(2)))
        assert seen.raised and seen.raised.kind == "ModuleNotFoundError", package
