"""An answer in another process gets the verdict that it gets in the notebook; what is lost there is told."""

import copy
import inspect
import re
import sys
from importlib import import_module

import cloudpickle
import pytest
import torch
import toy_references as ref
import toys

from course_utils.authoring import proofs
from course_utils.grading import contracts, every, find, grade
from course_utils.grading.comparing.signatures import description, signature_problem
from course_utils.grading.declaring.cells import solution_cell, stub_cell
from course_utils.grading.declaring.registry import in_book_order
from course_utils.grading.driving.case import call
from course_utils.grading.driving.describe import described
from course_utils.grading.expecting.recent import Recent
from course_utils.grading.judging.judge import judge
from course_utils.grading.probes.chapters.cuda_memory import Average
from course_utils.grading.probes.chapters.optimizers import FlatMomentum
from course_utils.grading.pytrees.serialization import dumps
from course_utils.grading.pytrees.strict import loads
from course_utils.grading.remote import client as elsewhere_module
from course_utils.grading.remote.book_without_answers import given
from course_utils.grading.remote.client import RemoteSubmission
from course_utils.grading.student.channel import ChannelLost
from course_utils.grading.student.modules import install
from course_utils.grading.student.protocol import name_of
from course_utils.grading.student.server import StudentSide
from course_utils.grading.student.vouching import Before
from course_utils.source.answers import answers, build
from course_utils.source.cells import read_cells

IMPORTS = """import math, os, signal, threading, time
import numpy as np
import torch
from torch import Tensor
KEPT = torch.zeros(1000)
"""

SOFTMAX = {
    "the book's": inspect.getsource(ref.temperature_softmax),
    "torch's own": """
def answer(x, temperature=1.0):
    if temperature <= 0:
        raise ValueError
    return torch.softmax(x / temperature, -1)
""",
    "any arguments": """
def answer(*args, **kwargs):
    x, temperature = (*args, *kwargs.values(), 1.0)[:2]
    if temperature <= 0:
        raise ValueError
    return torch.softmax(x / temperature, -1)
""",
    "any arguments, by position only": """
def answer(*args, **kwargs):
    x, temperature = (*args, 1.0)[:2]
    if temperature <= 0:
        raise ValueError
    return torch.softmax(x / temperature, -1)
""",
    "multiplies": "def answer(x, temperature=1.0):\n    if temperature <= 0: raise ValueError\n"
    "    return torch.softmax(x * temperature, -1)",
    "not subtracted": "def answer(x, temperature=1.0):\n    if temperature <= 0: raise ValueError\n"
    "    e = (x / temperature).exp()\n    return e / e.sum(-1, keepdim=True)",
    "detached": "def answer(x, temperature=1.0):\n    if temperature <= 0: raise ValueError\n"
    "    return torch.softmax(x / temperature, -1).detach()",
    "no error": "def answer(x, temperature=1.0):\n    return torch.softmax(x / temperature, -1)",
    "a loop": """
def answer(x, temperature=1.0):
    if temperature <= 0:
        raise ValueError
    if x.ndim == 1 or len(x) == 0:
        return torch.softmax(x / temperature, -1)
    return torch.stack([torch.softmax(row / temperature, -1) for row in x])
""",
    "an array": "def answer(x, temperature=1.0):\n    return x.detach().numpy()",
    "a number of numpy's": "def answer(x, temperature=1.0):\n    return np.int64(1)",
    "a parameter": "def answer(x, temperature=1.0):\n"
    "    return torch.nn.Parameter(torch.softmax(x / temperature, -1))",
    "nothing": "def answer(x, temperature=1.0):\n    pass; x = 1",
    "itself": "def answer(x, temperature=1.0):\n    y = []; y.append(y); return y",
    "2**50 elements": "def answer(x, temperature=1.0):\n"
    "    return torch.zeros(1).expand(2**25, 2**25)",
    "float64": "def answer(x, temperature=1.0):\n    return torch.softmax(x.double(), -1)",
    "one buffer": "def answer(x, temperature=1.0):\n    if temperature <= 0: raise ValueError\n"
    "    y = KEPT[: x.numel()].view(x.shape).type_as(x)\n"
    "    return y.copy_(torch.softmax(x / temperature, -1))",
    "one buffer for matrices": "def answer(x, temperature=1.0):\n"
    "    if temperature <= 0: raise ValueError\n"
    "    y = torch.softmax(x / temperature, -1)\n"
    "    return KEPT[: x.numel()].view(x.shape).type_as(x).copy_(y) if x.ndim > 1 else y",
    "slowly": "def answer(x, temperature=1.0):\n    if temperature <= 0: raise ValueError\n"
    "    time.sleep(0.015)\n    return torch.softmax(x / temperature, -1)",
    "changes x": "def answer(x, temperature=1.0):\n    x.div_(temperature)\n    return x.softmax(-1)",
    "sets a default": "def answer(x, temperature=1.0):\n"
    "    torch.set_default_dtype(torch.float64)\n    return x.softmax(-1)",
    "another default": "def answer(x, temperature=2.0):\n    return x",
    "no default": "def answer(x, temperature):\n    return x",
    "another name": "def answer(y, temperature=1.0):\n    return y",
    "a class": "class answer:\n    pass",
    "a generator": "def answer(x, temperature=1.0):\n    yield x",
    "a coroutine": "async def answer(x, temperature=1.0):\n    return x",
    "an exception": "def answer(x, temperature=1.0):\n    raise KeyError('\\x1b[2J no')",
    "an endless loop": "def answer(x, temperature=1.0):\n    while True: x = x + 1",
    "exits": "def answer(x, temperature=1.0):\n    raise SystemExit(0)",
    "a thread": """
def answer(x, temperature=1.0):
    if temperature <= 0:
        raise ValueError
    out = []
    thread = threading.Thread(target=lambda: out.append(torch.softmax(x / temperature, -1)))
    thread.start(); thread.join()
    return out[0]
""",
    "a huge list": "def answer(x, temperature=1.0):\n    return [0.0] * 130_000",
}

MOMENTUM = {
    "the book's": inspect.getsource(ref.Momentum),
    "not counted": inspect.getsource(ref.Momentum).replace("+= 1", "+= 0"),
    "no velocity": inspect.getsource(ref.Momentum).replace("self.beta * self.velocity + ", ""),
    "another default": inspect.getsource(ref.Momentum).replace(
        "beta: float = 0.9", "beta: int = 1"
    ),
    "no call": inspect.getsource(ref.Momentum).replace("__call__", "step"),
    "a function": "def Momentum(position, lr=0.1, beta=0.9):\n    return position",
}

DIGITS = {
    "the book's": (inspect.getsource(ref.to_digits), inspect.getsource(ref.from_digits)),
    "the wrong order": (
        "def to_digits(number, base=10):\n    return [int(c) for c in str(number)][::-1]",
        "def from_digits(digits, base=10):\n"
        "    return sum(d * base**i for i, d in enumerate(digits))",
    ),
}


def near(side=None):
    """A channel without a process: only bytes pass."""
    side = side or StudentSide()
    return lambda request, limit_s: loads(dumps(side.handle(loads(dumps(request)))))


def cell_of(exercise, *sources):
    return "\n\n".join(f'@exercise("{exercise.key}")\n{source.strip()}' for source in sources)


def quick(exercise):
    fast = copy.copy(exercise)
    fast.limit_s = 2.0
    return fast


def both(exercise, *sources, explain=True):
    """The verdict in this process, and from another."""
    cells = [IMPORTS, cell_of(exercise, *sources)]
    objects = build(answers(cells)[exercise.key], names=exercise.names)
    here = grade(exercise, *objects, explain=explain)
    return here, judge(exercise, RemoteSubmission(near(), cells).answer(exercise), explain=explain)


def told(verdict):
    failure = verdict.failure
    what = failure and (failure.rung, failure.sentence, failure.called, failure.label)
    return verdict.outcome, verdict.rungs, verdict.total, what, verdict.diagnosis


RIGHT = ("the book's", "torch's own", "any arguments", "slowly")
IN_OTHER_WORDS = {
    "itself": "one inside of the other without end",
    "a huge list": "too large to look at",
    "a number of numpy's": "came an int",
    "an exception": "raised KeyError",
}


@pytest.mark.parametrize("what", SOFTMAX)
def test_functions_get_the_same_verdict(what):
    here, there = both(quick(toys.softmax), SOFTMAX[what], explain=what not in IN_OTHER_WORDS)
    if what in IN_OTHER_WORDS:
        assert here.outcome == there.outcome and here.rungs == there.rungs
        assert IN_OTHER_WORDS[what] in there.failure.sentence
        assert there.failure.sentence.isprintable()
    else:
        assert told(here) == told(there)
    assert (there.outcome == "passed") == (what in RIGHT)


@pytest.mark.parametrize("what", MOMENTUM)
def test_classes_get_the_same_verdict(what):
    here, there = both(toys.momentum, MOMENTUM[what])
    assert told(here) == told(there)
    assert (there.outcome == "passed") == (what == "the book's")


@pytest.mark.parametrize("what", DIGITS)
def test_pairs_get_the_same_verdict(what):
    here, there = both(toys.digits, *DIGITS[what])
    assert told(here) == told(there)
    assert (there.outcome == "passed") == (what == "the book's")


def test_what_is_unwritten_has_no_version_there_and_the_verdict_says_so():
    cells = ["import torch", stub_cell("accounting.days_to_train")]
    cells.append(solution_cell("accounting.plan_training"))
    exercise = find("accounting.plan_training")
    verdict = judge(exercise, RemoteSubmission(near(), cells).answer(exercise))
    assert verdict.outcome == "failed"
    said = " ".join(str(verdict).split())
    assert "accounting.days_to_train, which your notebook leaves unwritten" in said, said


def test_the_random_cases_are_those_of_the_seed():
    exercise = copy.copy(toys.softmax)
    exercise._drawn = {}
    cells = [IMPORTS, cell_of(exercise, SOFTMAX["multiplies"])]
    submission = RemoteSubmission(near(), cells)
    for seed in (1, 2**63 - 1):
        there = judge(exercise, submission.answer(exercise), seed=seed)
        objects = build(answers(cells)[exercise.key], names=exercise.names)
        assert told(there) == told(grade(exercise, *objects, seed=seed))


def test_an_interruption_over_there_is_the_codes_own():
    source = "def answer(x, temperature=1.0):\n    raise KeyboardInterrupt"
    here, there = both(toys.softmax, source)
    assert here.outcome == "interrupted" and there.outcome == "failed"


# ------------------------------------------------------------------ what there is to judge


def test_a_stub_is_known_without_its_reference():
    for toy in toys.TOYS:
        cells = ["import torch\nfrom torch import Tensor", proofs.cell(toy, proofs.stub_source)]
        answer = RemoteSubmission(near(), cells).answer(toy)
        assert not answer.attempted and judge(toy, answer).outcome == "not attempted"


def test_what_cannot_be_defined_says_why():
    toy = toys.softmax
    for source, why in (
        ("def answer(x, temperature=1.0) return x", "code cell 1, line 2"),
        ("def answer(x, temperature=nobody):\n    return x", "NameError as it was defined"),
        ("def answer(x, temperature=1 / 0):\n    return x", "ZeroDivisionError"),
    ):
        submission = RemoteSubmission(near(), [cell_of(toy, source)])
        assert submission.keys == (toy.key,)
        verdict = judge(toy, submission.answer(toy))
        assert verdict.outcome == "failed" and why in verdict.failure.sentence


def test_half_a_pair_is_no_pair():
    cells = [cell_of(toys.digits, DIGITS["the book's"][0])]
    verdict = judge(toys.digits, RemoteSubmission(near(), cells).answer(toys.digits))
    assert verdict.outcome == "failed" and "from_digits is missing" in verdict.failure.sentence


def test_a_name_means_what_it_meant_where_it_was_used():
    cells = [
        "half = 0.5",
        cell_of(toys.softmax, "def answer(x, temperature=2 * half):\n    return helper(x)"),
        "half = None\ndef helper(x):\n    return x",
    ]
    (found,) = build(answers(cells)[toys.softmax.key])
    assert inspect.signature(found).parameters["temperature"].default == 1.0
    assert found(3) == 3


def test_an_answer_takes_only_the_imports_that_it_uses():
    cells = [
        "from course_utils import exercise, hint, quiz\nfrom math import nobody, pi",
        cell_of(toys.softmax, "def answer(x, temperature=pi):\n    return x"),
    ]
    cells[0] = cells[0].replace("\n", "\n")
    (found,) = build(answers(cells)[toys.softmax.key])
    assert round(inspect.signature(found).parameters["temperature"].default, 2) == 3.14


def test_a_notebook_finds_what_it_imports_of_the_book_and_no_answer():
    cells = [
        solution_cell(found[1])
        if (found := re.search(r'^@exercise\("([\w.]+)"', cell, re.M))
        else cell
        for cell in read_cells("notebooks/23_gpt2.ipynb")
    ]
    submission = RemoteSubmission(proofs.elsewhere().ask, cells)
    assert judge(find("gpt2.Block"), submission.answer(find("gpt2.Block"))).outcome == "passed"
    with pytest.raises(ValueError, match="told already"):
        submission.answer(find("gpt2.MLP"))

    cheat = "from course_utils.reference.gpt2 import Block as Mine\n"
    cheat += '@exercise("gpt2.Block")\nclass Block(Mine):\n    pass'
    verdict = judge(
        find("gpt2.Block"),
        RemoteSubmission(proofs.elsewhere().ask, [cheat]).answer(find("gpt2.Block")),
    )
    assert verdict.outcome == "failed"


BY_EXCHANGE = """@exercise("process_groups.all_gather_by_p2p")
def all_gather_by_p2p(
    shard: Shaped[Tensor, " own"], sizes: Sequence[int]
) -> Shaped[Tensor, " all"]:
    n, me = dist.get_world_size(), dist.get_rank()

    class Held(list):
        def add(self, part: Tensor) -> None:  # an annotation that only a class body reads
            self.append(part)

    held = Held()
    held.add(shard.detach().contiguous())
    while len(held) < n:
        arriving = shard.new_empty(sizes[(me - len(held)) % n])
        exchange(held[-1], (me + 1) % n, arriving, (me - 1) % n)
        held.add(arriving)
    return torch.cat([held[(me - rank) % n] for rank in range(n)])"""


def test_what_a_notebook_imports_of_the_book_travels_to_the_ranks():
    key = "process_groups.all_gather_by_p2p"
    cells = [
        BY_EXCHANGE if f'@exercise("{key}")' in cell else cell
        for cell in read_cells("notebooks/16_process_groups.ipynb")
    ]
    submission = RemoteSubmission(proofs.elsewhere().ask, cells)
    verdict = judge(find(key), submission.answer(find(key)))
    assert verdict.outcome == "passed", verdict


def test_a_module_of_the_book_that_needs_another_is_left_out():
    """Who does not need it is graded without it; who does hears which one is missing."""
    lost, whole = "nowhere.lost", "nowhere.whole"
    try:
        install({lost: "from nowhere.other import x", whole: "x = 3"})
        assert import_module(whole).x == 3
        with pytest.raises(ModuleNotFoundError, match="lost"):
            import_module(lost)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules.pop(whole))
        sys.modules.pop("nowhere")


def test_what_is_given_answers_only_what_the_book_asked_for_before():
    """A submission is judged in the book's order, in one process."""
    order = in_book_order(every())
    for at, key in enumerate(order):
        modules, keys = given(every()[key])
        assert set(keys) <= set(order[:at]), key
        assert all(compile(source, name, "exec") for name, source in modules.items())


def test_an_optimizer_of_a_probes_own_is_no_change():
    """torch wraps `step` at the first object of a class; an answer has nothing to do with it."""
    import_module("torch._dynamo")  # an optimizer's first object does, and it wraps, too
    before = Before()
    for cls in (FlatMomentum, Average):
        cls([torch.nn.Parameter(torch.zeros(1))])
    assert before.changed() == []


# ------------------------------------------------------------------ what is lost


def test_a_process_that_is_lost_costs_only_the_case(monkeypatch):
    """Each of these ends the process over there; a fresh one defines the answer again."""
    monkeypatch.setattr(elsewhere_module, "MARGIN_S", 0.8)
    exercise = quick(toys.softmax)
    source = """
def answer(x, temperature=1.0):
    if temperature == 2.0:
        os._exit(3)
    if temperature == 3.0:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        time.sleep(99)
    return torch.softmax(x / temperature, -1)
"""
    submission = RemoteSubmission(proofs.elsewhere().ask, [IMPORTS, cell_of(exercise, source)])
    answer = submission.answer(exercise)
    kinds = []
    for temperature in (0.5, 2.0, 4.0, 3.0):
        seen = answer.observe(call(torch.zeros(3, 2), temperature))
        kinds.append(seen.raised and seen.raised.kind)
    assert kinds == [None, "ProcessLost", None, "TimeLimit"]
    assert submission.losses == 2


def fragile(on):
    """A channel that is lost over every case of this temperature, with all that was defined."""
    side = [near()]

    def ask(request, limit_s):
        cases = [case for group in request.get("groups", ()) for case in group]
        given = [case["kwargs"].get("temperature") for case in cases]
        if request["do"] == "observe" and on in given:
            side[0] = near()
            raise ChannelLost("ended the process that ran it", "died")
        return side[0](request, limit_s)

    return ask


def test_a_loss_in_a_batch_costs_only_its_own_case():
    cells = [IMPORTS, cell_of(toys.softmax, SOFTMAX["the book's"])]
    answer = RemoteSubmission(fragile(on=3.0), cells).answer(toys.softmax)
    cases = [call(torch.zeros(2), temperature=t) for t in (1.0, 2.0, 3.0, 4.0, 5.0)]
    answer.announce([cases])
    seen = [answer.observe(case) for case in cases]
    assert [bool(one.raised) for one in seen] == [False, False, True, False, False]
    assert answer.overwritten() is None


def test_the_third_loss_ends_it():
    cells = [IMPORTS, cell_of(toys.softmax, SOFTMAX["the book's"])]
    submission = RemoteSubmission(fragile(on=2.0), cells)
    verdict = judge(toys.softmax, submission.answer(toys.softmax), explain=False)
    assert verdict.outcome == "failed" and "ended the process" in verdict.failure.sentence
    assert 3 <= submission.losses < 10


def test_a_notebook_that_cannot_be_read_is_one_problem():
    def ask(request, limit_s):
        raise ChannelLost("ended the process that ran it", "died")

    submission = RemoteSubmission(ask, ["x"])
    assert submission.keys == () and "cannot be read" in submission.problem
    assert judge(toys.softmax, submission.answer(toys.softmax)).outcome == "failed"


SEEN = {"seen": {"result": 1}, "raised": None, "left": [], "seconds": 0.1}
ONE = {"observations": [SEEN], "overwritten": None}
FORGED = {
    "no reply": {},
    "nothing at all": {"groups": []},
    "nothing observed": {"groups": [{"observations": [], "overwritten": None}]},
    "more than was asked": {"groups": [{"observations": [{}] * 500, "overwritten": None}]},
    "more groups than were asked": {"groups": [ONE] * 99},
    "a gap before the last group": {"groups": [ONE | {"observations": []}, ONE]},
    "no observation": {"groups": [{"observations": [{"passed": True}], "overwritten": None}]},
    "no result of that number": {"groups": [ONE | {"overwritten": 99}]},
    "no list": {"groups": [{"observations": "all passed", "overwritten": None}]},
    "no groups": {"groups": "all passed"},
    "no dict": {"groups": ["all passed"]},
    "a tensor": {"groups": [torch.zeros(3)]},
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_reply_is_a_failure(what):
    honest = near()

    def ask(request, limit_s):
        return FORGED[what] if request["do"] == "observe" else honest(request, limit_s)

    cells = [IMPORTS, cell_of(toys.softmax, SOFTMAX["the book's"])]
    verdict = judge(toys.softmax, RemoteSubmission(ask, cells).answer(toys.softmax))
    assert verdict.outcome == "failed" and "cannot be read" in verdict.failure.sentence


@pytest.mark.parametrize("do", ["define", "measure"])
def test_any_reply_of_another_form_is_a_failure(do):
    honest = near()
    tensor = {"attempted": True, "problem": None, "descriptions": [torch.zeros(3)]}
    for reply in ({}, {"runs": [], "ended": None}, {"attempted": 1}, {"problem": None}, tensor):
        cells = [IMPORTS, cell_of(toys.softmax, SOFTMAX["the book's"])]
        submission = RemoteSubmission(
            lambda r, s, reply=reply: reply if r["do"] == do else honest(r, s), cells
        )
        verdict = judge(toys.softmax, submission.answer(toys.softmax))
        assert verdict.outcome == "failed" and "cannot be read" in verdict.failure.sentence


def asked_of(what):
    """What a channel was asked over an answer, and the verdict."""
    asked = []
    honest = near()

    def ask(request, limit_s):
        asked.append(request["do"])
        return honest(request, limit_s)

    cells = [IMPORTS, cell_of(toys.softmax, SOFTMAX[what])]
    return asked, judge(toys.softmax, RemoteSubmission(ask, cells).answer(toys.softmax))


def test_all_cases_of_an_answer_cross_together():
    asked, verdict = asked_of("the book's")
    assert verdict.ran == 54 and asked == ["read", "define", "observe", "measure"]


def test_a_slow_answer_sends_what_it_has():
    asked, verdict = asked_of("slowly")
    assert verdict.outcome == "passed" and 2 <= asked.count("observe") < 20


def test_a_buffer_is_complained_of_on_the_rung_that_fills_it_again():
    for verdict in both(toys.softmax, SOFTMAX["one buffer for matrices"]):
        assert verdict.failure.rung == "random cases" and "you keep" in verdict.failure.sentence


# ------------------------------------------------------------------ the parts


def test_functions_are_named_or_refused():
    assert name_of(ref.to_digits) == "toy_references:to_digits"
    with pytest.raises(ValueError, match="top level"):
        name_of(lambda x: x)


def test_default_values_are_compared_as_data():
    def due(x=torch.float32, y=(1, 2.0), z=torch.relu, w=float("nan")):
        pass

    def alike(x=torch.float32, y=(1, 2.0), z=torch.relu, w=float("nan")):
        pass

    def other(x=torch.float32, y=(1, 2.0), z=torch.tanh, w=float("nan")):
        pass

    def crossed(function):
        return (description(loads(dumps(described(function)))),)

    assert signature_problem([due], crossed(alike)) is None
    assert "the default of `z`" in signature_problem([due], crossed(other))


def test_what_is_remembered_is_bounded_and_never_of_another_object():
    recent = Recent(size=2)
    made = []
    for _ in range(50):
        thing = object()  # its identity may be that of one that is gone
        recent.get((thing,), lambda: made.append(1), "key")
    assert len(made) == 50 and len(recent) == 2
    assert recent.get((thing,), lambda: made.append(2), "key") is None and made[-1] == 1


def test_the_verdict_names_the_case_that_costs_too_much():
    toy = copy.copy(toys.softmax)
    sizes = [call(torch.ones(n, 5)) for n in (2, 900, 3)]
    toy.contracts = [contracts.largest_tensor(sizes, limit=4 * 5 * 800)]
    verdict = grade(toy, ref.temperature_softmax)
    assert "(900, 5)" in verdict.failure.called
    toy.contracts = [contracts.constant_kernels([call(torch.ones(n, 5)) for n in (2, 9)])]
    looped = next(m.subject for m in toy.mistakes if m.cost)
    assert "(9, 5)" in grade(toy, looped).failure.called, "where cases are compared, the last"
