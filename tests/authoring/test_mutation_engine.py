"""The mutation engine: what mutants it makes, and what it says of those that misbehave."""

import ast
import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from course_utils.authoring.mutation import Job, Outcome, build, mutants, original, run

# Mutants -------------------------------------------------------------------------------------


def bodies(source: str) -> set[str]:
    """The mutants of a function of one expression or more, as text of their bodies."""
    text = f"def f(x, y=None, *rest):\n{textwrap.indent(source, '    ')}"
    made = set()
    for mutant in mutants(text):
        made.add("\n".join(ast.unparse(node) for node in ast.parse(mutant.source).body[0].body))
    return made


CHANGES = {
    "comparison": ("return x < y", {"return x <= y"}),
    "equality": ("return x == y", {"return x != y"}),
    "membership": ("return x in y", {"return x not in y"}),
    "identity": ("return x is y", {"return x is not y"}),
    "chained comparison": ("return 0 < x < y", {"return 0 <= x < y", "return 0 < x <= y"}),
    "sum": ("return x + y", {"return x - y"}),
    "product": ("return x * y", {"return x / y", "return x // y"}),
    "power": ("return x ** y", {"return x * y"}),
    "augmented": ("x += y\nreturn x", {"x -= y\nreturn x", "x = y\nreturn x", "return x"}),
    "minus": ("return -x", {"return x"}),
    "not": ("return not x", {"return x"}),
    "and": ("return x and y", {"return x or y", "return x", "return y"}),
    "condition": ("return 2 if x else y", {"return 2 if not x else y"}),
    "filter": (
        "return [a for a in x if a]",
        {"return [a for a in x if not a]", "return [a for a in x]"},
    ),
    "statement": ("x.add_(y)\nreturn x", {"return x"}),
    "only statement": ("x.add_(y)", {"pass"}),
    "integer": ("return x.f(3)", {"return x.f(4)", "return x.f(2)"}),
    "negative integer": ("return x.f(-1)", {"return x.f(-2)", "return x.f(0)", "return x.f(1)"}),
    "float": ("return x.f(0.5)", {"return x.f(1.0)"}),
    "flag": ("return x.f(True)", {"return x.f(False)"}),
    "index": ("return x[y]", {"return x[y + 1]", "return x[y - 1]"}),
    "slice": (
        "return x[y:, :3]",
        {"return x[y + 1:, :3]", "return x[y:, :2]", "return x[y:, :]", "return x[:, :3]"},
    ),
    "axis": (
        "return x.f(dim=-1)",
        {"return x.f(dim=0)", "return x.f(dim=1)", "return x.f()", "return x.f(dim=-2)"},
    ),
    "transpose": ("return x.transpose(0, 1)", {"return x", "return x.transpose(0, 2)"}),
    "permute": (
        "return x.permute(0, 2, 1)",
        {"return x.permute(2, 0, 1)", "return x.permute(0, 1, 2)"},
    ),
    "keyword": ("return x.f(keepdim=True)", {"return x.f()", "return x.f(keepdim=False)"}),
    "arguments": ("return torch.f(x, y)", {"return torch.f(y, x)"}),
    "result": ("return x", {"return None"}),
    "early return": ("if x:\n    return y\nreturn x", {"if x:\n    pass\nreturn x"}),
    "builtin": ("return max(x, y)", {"return min(x, y)"}),
    "method": ("return x.amax()", {"return x.amin()", "return x"}),
    "mean": ("return x.sum()", {"return x.mean()"}),
    "triangle": ("return torch.triu(x)", {"return torch.tril(x)", "return x"}),
    "zeros": ("return torch.zeros(x)", {"return torch.ones(x)"}),
    "chain": ("return x.mT.contiguous()", {"return x.mT"}),
    "context": ("with y:\n    x.f()", {"if True:\n    x.f()"}),
    "loop": (
        "for a in x:\n    if a:\n        break",
        {"for a in x:\n    if a:\n        continue", "for a in x:\n    if a:\n        pass"},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_operators(name):
    source, expected = CHANGES[name]
    assert expected <= bodies(source)


def test_defaults_are_changed_and_docstrings_annotations_strings_and_messages_are_not():
    source = '''
    @decorate(1, 2)
    def f(x: "Float[Tensor, 'n 3']", dim: int = 1, *, eps: float = 1e-5) -> tuple[int, 2]:
        """Adds 1 + 1."""
        if x.dim() < dim:
            raise ValueError(f"{1 + 1}", 1 < 2)
        return "a" + "b" if x.f(eps) else None
    '''
    for mutant in mutants(source):
        function = ast.parse(mutant.source).body[0]
        assert ast.get_docstring(function) == "Adds 1 + 1."
        assert ast.unparse(function.decorator_list[0]) == "decorate(1, 2)"
        assert ast.unparse(function.returns) == "tuple[int, 2]"
        assert "f'{1 + 1}', 1 < 2" in mutant.source or "raise" not in mutant.source
    ids = [mutant.id for mutant in mutants(source)]
    assert "f: `dim=1` → `dim=2`" in ids
    assert "f: `eps=1e-05` → `eps=2e-05`" in ids


def test_a_class_names_its_methods():
    source = """
    class Norm(nn.Module):
        eps: float = 1e-5

        def forward(self, x):
            return x / (x.mean() + self.eps)
    """
    ids = [mutant.id for mutant in mutants(source)]
    assert "Norm.forward: `x.mean() + self.eps` → `x.mean() - self.eps`" in ids
    assert "Norm: `eps: float = 1e-05` → `eps: float = 2e-05`" in ids
    assert not any(mutant.source.startswith("pass") for mutant in mutants(source))


SOURCE = """
def f(shape, dim=0):
    \"\"\"Doc.\"\"\"
    total = 1
    for i in range(len(shape)):
        if i > 0 and i != dim:
            total = total * shape[i] + i > 0
    return total
"""


def test_ids_are_readable_unique_and_stable():
    made = mutants(SOURCE)
    ids = [mutant.id for mutant in made]
    assert len(ids) == len(set(ids))
    assert "f: `i > 0` → `i >= 0`" in ids
    assert all("\n" not in id and len(id) < 200 for id in ids)
    # Code before the function, or how the file is indented, changes nothing.
    indented = textwrap.indent(SOURCE, "    ")
    assert [mutant.id for mutant in mutants(indented)] == ids
    assert mutants(SOURCE) == made


def test_alike_changes_are_told_apart_by_their_order():
    ids = [m.id for m in mutants("def f(i):\n    a = i > 0\n    b = i > 0\n    return a, b")]
    assert "f: `a = i > 0` removed" in ids
    assert {"f: `i > 0` → `i >= 0` [#1]", "f: `i > 0` → `i >= 0` [#2]"} <= set(ids)


def test_mutants_differ_from_each_other_and_from_the_original_and_compile():
    made = mutants(SOURCE)
    trees = {ast.dump(ast.parse(mutant.source)) for mutant in made}
    assert len(trees) == len(made) > 20
    assert ast.dump(ast.parse(SOURCE)) not in trees
    for mutant in made:
        compile(mutant.source, mutant.id, "exec")
        assert 1 <= mutant.line <= len(SOURCE.splitlines())
        assert mutant.description


def test_line_points_at_the_change():
    lines = SOURCE.splitlines()
    for mutant in mutants(SOURCE):
        if "`total = 1` removed" in mutant.id:
            assert lines[mutant.line - 1].strip() == "total = 1"
            break
    else:
        raise AssertionError("no such mutant")


def test_the_original_can_be_judged_beside_its_mutants():
    same = original(SOURCE)
    assert same.id == "f: unchanged"
    assert ast.dump(ast.parse(same.source)) == ast.dump(ast.parse(SOURCE))


names = st.sampled_from(["x", "y", "n"])
expressions = st.recursive(
    st.one_of(names, st.integers(0, 9).map(str), st.sampled_from(["True", "0.5", "'s'"])),
    lambda inner: st.one_of(
        st.tuples(
            inner,
            st.sampled_from(
                ["+", "-", "*", "/", "//", "**", "<", "<=", "==", "and", "or", "in", "is"]
            ),
            inner,
        ).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda e: f"(-{e})"),
        inner.map(lambda e: f"(not {e})"),
        st.tuples(inner, inner).map(lambda t: f"x[{t[0]}:{t[1]}]"),
        st.tuples(names, inner).map(lambda t: f"{t[0]}.sum(dim={t[1]}, keepdim=True)"),
        st.tuples(inner, inner).map(lambda t: f"torch.where({t[0]}, {t[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
    ),
    max_leaves=6,
)


@given(st.lists(expressions, min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_any_function_has_distinct_mutants_that_compile(lines):
    source = "def f(x, y, n):\n" + "".join(f"    x = {line}\n" for line in lines) + "    return x\n"
    made = mutants(source)
    dumps = [ast.dump(ast.parse(mutant.source)) for mutant in made]
    assert len(set(dumps)) == len(dumps) and ast.dump(ast.parse(source)) not in dumps
    assert len({mutant.id for mutant in made}) == len(made)


# Objects -------------------------------------------------------------------------------------

MODULE = """
from dataclasses import dataclass
from math import prod

SCALE = 10

def helper(x):
    return SCALE * x

def f(x):
    return helper(x) + 1

def g(x):
    return f(x) * 2

@dataclass
class Pair:
    a: int
    b: int = 2
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "pristine_toy.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import pristine_toy

    yield pristine_toy
    del sys.modules["pristine_toy"]


def test_a_mutant_uses_the_modules_names_and_leaves_the_module_alone(module):
    f = build("def f(x):\n    return helper(x) - 1", module.f)
    assert (f(1), module.f(1), module.g(1)) == (9, 11, 22)
    assert f.__globals__["g"](1) == 18  # others call the mutant
    f.__globals__["SCALE"] = 0
    assert module.f(1) == 11 and build("def f(x): return SCALE", module)(1) == 10


def test_a_mutant_is_built_on_the_modules_text_not_on_what_wraps_it(module, monkeypatch):
    monkeypatch.setattr(module, "helper", lambda x: pytest.fail("instrumented"))
    assert build("def f(x):\n    return helper(x)", module.f)(1) == 10


def test_shape_checks_are_off_in_what_is_built(tmp_path, monkeypatch):
    jaxtyping = pytest.importorskip("jaxtyping")
    source = "def half(n: int) -> int:\n    return n / 2\n"
    (tmp_path / "checked_toy.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with jaxtyping.install_import_hook("checked_toy", "beartype.beartype"):
        import checked_toy

        with pytest.raises(jaxtyping.TypeCheckError):
            checked_toy.half(1)
        f = build("def f(n: int) -> int:\n    return half(n)", checked_toy.half)
    assert f(1) == 0.5
    del sys.modules["checked_toy"]


def test_classes_and_pairs_can_be_built(module):
    pair = build("@dataclass\nclass Pair:\n    a: int\n    b: int = 3", module.Pair)
    assert pair(1).b == 3
    f, g = build("def f(x):\n    return x\ndef g(x):\n    return f(x)", (module.f, module.g))
    assert g(5) == 5 and g.__globals__["f"] is f


def test_a_mutants_source_can_be_found(module):
    import inspect

    source = "def f(x):\n    return helper(x) - 1\n"
    assert inspect.getsource(build(source, module.f)) == source
    with pytest.raises(ValueError, match="no function"):
        build("x = 1", module.f)
    with pytest.raises(ValueError, match="no module"):
        build(source, 3)


# Judging -------------------------------------------------------------------------------------


def wait_without_working():
    time.sleep(60)


def loop():
    while True:
        pass


def compute():
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass


def write_to_nowhere():
    ctypes.string_at(0)


def devour():
    return bytearray(64 * 2**30)


def recurse():
    return recurse()


def leave():
    raise SystemExit


def spawn_and_loop():
    if os.fork() == 0:
        time.sleep(60)
    loop()


def talk():
    print("loud")
    os.write(1, b"loud")
    os.write(2, b"loud")


def obey(job: Job) -> dict:
    """A judge that does what the job says."""
    payload = job.payload
    if callable(payload):
        payload()
        return {"killed": False}
    if payload == "broken judge":
        raise LookupError("no such exercise")
    return payload


def judged(payload, limit_s: float = 20.0, **options) -> Outcome:
    return run([Job("toy", payload)], obey, limit_s, **options)[0]


def test_verdicts_of_the_judge():
    survived = judged({"killed": False})
    assert (survived.verdict, survived.rung, str(survived)) == ("survived", "", "survived · toy")
    killed = judged({"killed": True, "rung": "random cases", "detail": "x"})
    assert (killed.verdict, killed.rung, killed.detail) == ("killed", "random cases", "x")
    assert str(killed) == "killed: random cases · toy"


@pytest.mark.parametrize(
    ("payload", "rung", "detail"),
    [
        (os.abort, "crash", "SIGABRT"),
        (write_to_nowhere, "crash", "SIGSEGV"),
        (lambda: os._exit(0), "crash", "left with code 0"),
        (lambda: os._exit(3), "crash", "left with code 3"),
        (recurse, "crash", "RecursionError"),
        (leave, "crash", "SystemExit"),
        (lambda: os.closerange(3, 100), "crash", ""),
    ],
)
def test_a_process_that_ends_without_a_verdict_was_killed_by_a_crash(payload, rung, detail):
    outcome = judged(payload)
    assert (outcome.verdict, outcome.rung) == ("killed", rung)
    assert detail in outcome.detail


@pytest.mark.skipif(sys.platform != "linux", reason="no limit on memory elsewhere")
def test_absurd_amounts_of_memory_are_refused():
    outcome = judged(devour, memory_bytes=2**30)
    assert (outcome.verdict, outcome.detail) == ("killed", "MemoryError")


def test_an_endless_loop_meets_the_limit_of_processor_time():
    outcome = judged(loop, limit_s=0.3)
    assert (outcome.verdict, outcome.rung) == ("killed", "time limit")
    assert 0.2 < outcome.processor_s < 3  # its own, however busy the machine


def test_processor_seconds_are_those_of_the_judgement():
    assert judged({"killed": False}).processor_s < 0.2 < judged(compute).processor_s


def test_one_that_waits_meets_the_limit_of_the_clock():
    outcome = judged(wait_without_working, limit_s=0.05)
    assert (outcome.verdict, outcome.rung, outcome.detail) == (
        "killed",
        "time limit",
        "by the clock",
    )


def test_what_it_started_ends_with_it(tmp_path):
    pids = tmp_path / "pid"

    def start():
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        pids.write_text(str(pid))
        loop()

    judged(start, limit_s=0.2)
    end = time.monotonic() + 60
    while time.monotonic() < end and not gone(int(pids.read_text())):
        time.sleep(0.01)
    assert gone(int(pids.read_text()))


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_judge_that_fails_gives_no_verdict():
    outcome = judged("broken judge")
    assert outcome.verdict == "error" and "no such exercise" in outcome.detail
    assert judged({"rung": "says nothing of killing"}).verdict == "error"


def test_output_does_not_reach_the_terminal(capfd):
    assert judged(talk).verdict == "survived"
    assert capfd.readouterr() == ("", "")


def test_many_jobs_keep_their_order_and_do_not_touch_each_other():
    state = []

    def judge(job):
        state.append(job.id)
        if job.payload == "crash":
            os.abort()
        return {"killed": len(state) > 1, "rung": "saw another's state"}

    kinds = ["fine", "crash", "fine", "fine", "crash", "fine"] * 3
    jobs = [Job(str(i), kind) for i, kind in enumerate(kinds)]
    outcomes = run(jobs, judge, 20, workers=3)
    assert [o.id for o in outcomes] == [job.id for job in jobs]
    assert [o.verdict for o in outcomes] == [
        "survived" if kind == "fine" else "killed" for kind in kinds
    ]
    assert state == []


def test_a_large_answer_arrives_whole():
    outcome = judged({"killed": True, "rung": "r", "detail": "x" * 300_000})
    assert len(outcome.detail) == 300_000


def test_an_interruption_ends_the_children(tmp_path):
    script = textwrap.dedent("""
        import os, signal, sys, time
        from pathlib import Path
        from course_utils.authoring.mutation import Job, run

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it

        def judge(job):
            if job.payload == "slow":
                Path(sys.argv[1]).write_text(str(os.getpid()))
                time.sleep(60)
            return {"killed": False}

        run([Job("quick"), Job("slow", "slow")], judge, 30, workers=1)
    """)
    pid_file = tmp_path / "pid"
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(pid_file)], stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 120
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert "KeyboardInterrupt" in errors
    assert gone(int(pid_file.read_text()))


def test_mutants_are_killed_from_source_to_verdict(module):
    source = textwrap.dedent("""
        def f(n):
            total = 0
            while n > 0:
                total += n
                n -= 1
            return total
    """)

    def judge(job):
        f = build(job.payload.source, module.f)
        wrong = [n for n in range(5) if f(n) != n * (n + 1) // 2]
        return {"killed": bool(wrong), "rung": "random cases", "detail": str(wrong)}

    made = [original(source), *mutants(source)]
    jobs = [Job(mutant.id, mutant) for mutant in made]
    outcomes = {o.id: o for o in run(jobs, judge, 0.2)}
    assert outcomes["f: unchanged"].verdict == "survived"
    assert outcomes["f: `n -= 1` removed"].rung == "time limit"
    assert outcomes["f: `total += n` → `total -= n`"].rung == "random cases"
    assert outcomes["f: `n > 0` → `n >= 0`"].verdict == "survived"  # it adds a zero
    assert outcomes["f: `total = 0` removed"].verdict == "error"  # this judge catches nothing
