"""The sandbox from outside: how it starts, ends, is bounded, and what it is where bubblewrap is not."""

import ctypes
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from sandbox_cases import HONEST, REFUSED_EVERYWHERE, WRONG, Runner, found_by, verdict_on

from course_utils.grading import find
from course_utils.grading.judging.judge import judge
from course_utils.grading.judging.outcomes import FAILED, PASSED
from course_utils.grading.remote.client import RemoteSubmission
from course_utils.grading.student.channel import ChannelLost
from course_utils.processes import pages as forking
from course_utils.sandbox import Broken, Limits, Sandbox, SandboxMissing, best_level, bubblewrap
from course_utils.sandbox import levels as levels_module

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap exists for Linux only")

MIB = 2**20
REPOSITORY = Path(__file__).parents[2]


def soon(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


# ------------------------------------------------------------------------------ bubblewrap


def test_a_hundred_submissions_leave_nothing_open(sandbox: Any) -> None:
    def quiet() -> None:
        sandbox.drop_spare()
        sandbox.zygotes[False].calm(0)

    found_by(sandbox, "found = 1")
    quiet()
    this = psutil.Process()
    descriptors, children = this.num_fds(), len(this.children(recursive=True))
    for number in range(100):
        with sandbox.submission() as channel:
            assert Runner(channel).run(f"found = {number}") == number
    quiet()
    assert this.num_fds() == descriptors
    assert len(this.children(recursive=True)) == children
    assert not any(zygote.processes for zygote in sandbox.zygotes.values())


def test_the_process_of_the_next_submission_waits_ready(sandbox: Any) -> None:
    found_by(sandbox, "open('/tmp/x', 'w'); found = 1")
    ready = sandbox.spare
    with sandbox.submission() as channel:
        assert Runner(channel).run("import os; found = os.listdir('/tmp')") == []
        assert channel.process is ready
        assert sandbox.spare is not ready


def test_one_that_dies_as_it_waits_is_no_loss(
    sandbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    zygote = sandbox.zygote(ranks=False)
    for number in range(3):
        assert found_by(sandbox, f"found = {number}") == number
        zygote.kill(sandbox.spare.number)
        assert soon(sandbox.spare.gone)
        if number:
            sandbox.drop_spare()
    forever = 10_000.0  # the test's own limit would end a wait for what is dead already
    monkeypatch.setattr(sys.modules[type(zygote).__module__], "_KILL_S", forever)
    zygote.calm(0)
    assert zygote.processes == {}


def test_a_module_that_the_sandbox_lacks_costs_nobody_anything(sandbox: Any) -> None:
    sandbox.load(["no_such_module"])
    assert verdict_on(sandbox, HONEST).outcome == PASSED


def test_the_time_to_load_is_nobodys(sandbox: Any) -> None:
    found_by(sandbox, "found = 1")
    zygote = sandbox.zygotes[False]
    forks = psutil.Process(zygote.process.pid).children(recursive=True)[1]
    forks.suspend()
    threading.Timer(5.0, forks.resume).start()
    sandbox.load(["mailbox"])
    with sandbox.submission() as channel:
        assert Runner(channel).run("import sys; found = 'mailbox' in sys.modules")
        assert channel.wall_s < 4


def test_what_the_grader_asks_for_is_loaded_for_all_that_come(sandbox: Any) -> None:
    source = "import sys; found = 'colorsys' in sys.modules"
    assert not found_by(sandbox, source)
    sandbox.load(["colorsys"])
    assert found_by(sandbox, source)
    assert found_by(sandbox, source)
    before = sandbox.zygotes[False]
    psutil.Process(before.process.pid).children(recursive=True)[1].kill()
    assert soon(lambda: before.process.poll() is not None)
    assert found_by(sandbox, source)
    assert sandbox.zygotes[False] is not before


def test_random_numbers_are_the_same_each_time(sandbox: Any) -> None:
    source = "import random, numpy; found = [random.random(), float(numpy.random.rand())]"
    first, second = found_by(sandbox, source), found_by(sandbox, f"{source}; {source}")
    assert first[0] != first[1] and second != first
    assert found_by(sandbox, source) == first


def test_nothing_is_left_of_the_rehearsal(sandbox: Any) -> None:
    source = "import linecache; found = [n for n in linecache.cache if n.startswith('<')]"
    assert found_by(sandbox, source) == ["<notebook, code cell 1>"]


def test_a_process_that_forks_has_large_pages(sandbox: Any) -> None:
    """60,000 entries of a page table would be copied at each fork, and taken down at each end."""
    size = 4 * forking.HUGE
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as own:
        own.write(bytes(size))
        at = ctypes.addressof(view := ctypes.c_char.from_buffer(own))
        del view
        first = -(-at // forking.HUGE) * forking.HUGE
        if not forking.collapse_between(first, first + 2 * forking.HUGE):
            pytest.skip("this kernel makes no large pages on demand")
    sandbox.start()
    forks = psutil.Process(sandbox.zygotes[False].process.pid).children(recursive=True)[1]
    rollup = Path(f"/proc/{forks.pid}/smaps_rollup").read_text()
    huge, anonymous = (
        int(re.search(rf"^{name}: *(\d+) kB", rollup, re.MULTILINE)[1])
        for name in ("AnonHugePages", "Anonymous")
    )
    assert huge > anonymous / 4


def test_a_grader_can_start_its_sandbox_before_it_loads_torch() -> None:
    source = "import sys; from course_utils.classroom.run import sandboxes, workers; print('torch' in sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert said.stdout == "False\n"


def test_the_process_that_forks_is_replaced(sandbox: Any) -> None:
    sandbox.start()
    with sandbox.submission() as channel:
        runner = Runner(channel)
        inside = psutil.Process(sandbox.zygotes[False].process.pid).children(recursive=True)
        inside[1].kill()
        with pytest.raises(Broken, match="the process that forks has ended"):
            runner.run("import time; time.sleep(5)")
        assert Runner(channel).run("found = 'again'") == "again"
    assert verdict_on(sandbox, HONEST).outcome == PASSED


def test_a_submission_has_so_much_time_in_all(
    sandbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "limits", replace(sandbox.limits, wall_s=6.0))
    with sandbox.submission() as channel:
        runner = Runner(channel)
        assert runner.run("import time; time.sleep(0.3); found = 1") == 1
        with pytest.raises(ChannelLost) as lost:
            runner.run("import time; time.sleep(100_000)", limit_s=100_000.0)
        assert lost.value.how == "timeout"
        with pytest.raises(ChannelLost, match="seconds of a submission") as lost:
            Runner(channel)
        assert lost.value.how == "timeout"


def test_a_submission_has_so_much_of_the_processor(
    sandbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "limits", replace(sandbox.limits, cpu_s=1.0))
    with sandbox.submission() as channel:
        with pytest.raises(ChannelLost, match="CPU time") as lost:
            Runner(channel).run("while True: pass", limit_s=60.0)
        assert lost.value.how == "timeout"
        with pytest.raises(ChannelLost, match="CPU time"):
            Runner(channel)


ORPHANED = """
import os, sys, time
from course_utils.sandbox import Sandbox
sys.path.insert(0, sys.argv[1])
from sandbox_cases import Runner
kept = []
for isolation in ("bubblewrap", "process"):
    sandbox = Sandbox(isolation)
    channel = sandbox.submission()
    Runner(channel)
    zygote = sandbox.zygotes[False]
    kept += [sandbox, channel]
    print(zygote.process.pid, zygote.folder or "-", flush=True)
time.sleep(100)
"""


def test_a_killed_grader_leaves_neither_processes_nor_folders() -> None:
    grader = subprocess.Popen(
        [sys.executable, "-c", ORPHANED, str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        text=True,
    )
    assert grader.stdout
    with grader:
        told = [grader.stdout.readline().split() for _ in range(2)]
        inside = psutil.Process(grader.pid).children(recursive=True)
        folder = Path(told[1][1])
        assert len(inside) >= 5
        assert folder.is_dir()
        grader.send_signal(signal.SIGKILL)
    assert soon(lambda: not any(p.is_running() and p.status() != "zombie" for p in inside))
    assert soon(lambda: not folder.exists())


def test_an_exercise_on_ranks_runs_in_one_sandbox(sandbox: Any) -> None:
    """All ranks are processes of the submission; they meet over the loopback of its own network."""
    exercise = find("process_groups.all_gather_by_p2p")
    wrong = """
@exercise("process_groups.all_gather_by_p2p")
def all_gather_by_p2p(shard, sizes):
    return shard
"""
    from course_utils.authoring.proofs import standalone

    for cells, outcome in ((standalone(exercise), PASSED), ((wrong,), FAILED)):
        with sandbox.submission(ranks=True) as channel:
            answer = RemoteSubmission(channel.ask, cells).answer(exercise)
            verdict = judge(exercise, answer, explain=False)
        assert verdict.outcome == outcome, str(verdict)


# ------------------------------------------------------------------------------ levels


@pytest.fixture
def levels_anew() -> Iterator[None]:
    best_level.cache_clear()
    yield
    best_level.cache_clear()


@pytest.mark.usefixtures("levels_anew")
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "program", lambda: None)
    level, why = best_level()
    assert level == "process"
    assert "apt-get install bubblewrap" in why
    with pytest.raises(SandboxMissing, match="apt-get install bubblewrap"):
        Sandbox("bubblewrap")


@pytest.mark.usefixtures("levels_anew")
def test_a_refusal_of_the_kernel_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "program", lambda: str(bwrap))
    with pytest.raises(SandboxMissing, match="apparmor_restrict_unprivileged_userns"):
        Sandbox("bubblewrap")


@pytest.mark.usefixtures("levels_anew")
@pytest.mark.parametrize(("platform", "words"), [("win32", "WSL2"), ("darwin", "Linux only")])
def test_other_systems_are_told(monkeypatch: pytest.MonkeyPatch, platform: str, words: str) -> None:
    monkeypatch.setattr(levels_module.sys, "platform", platform)
    with pytest.raises(SandboxMissing, match=words):
        Sandbox("bubblewrap")


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="'bubblewrap'"):
        Sandbox("docker")


# ------------------------------------------------------------------------------ process only


@pytest.fixture(scope="module")
def plain() -> Iterator[Sandbox]:
    with Sandbox("process", Limits(memory=512 * MIB, tasks=48)) as shared:
        yield shared
        folders = [Path(zygote.folder) for zygote in shared.zygotes.values()]
    assert not any(folder.exists() for folder in folders)


def test_a_plain_process_says_what_it_is(plain: Any) -> None:
    assert plain.level.startswith("process only")
    assert "files of this user can be read" in plain.level


LOST = {
    "os._exit": ("import os; os._exit(0)", "died"),
    "endless": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "timeout",
    ),
    "torn": (
        "import os\nfor fd in range(3, 600):\n    try: os.write(fd, b'x' * 100)\n    except OSError: pass",
        "garbage",
    ),
}
REFUSED = REFUSED_EVERYWHERE | {
    "memory": ("bytearray(10**9)", "MemoryError"),
    "tracing the parent": (
        "import ctypes, os; c = ctypes.CDLL(None, use_errno=True)\n"
        "if c.ptrace(16, os.getppid(), 0, 0) < 0: raise PermissionError",
        "PermissionError",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_a_plain_process_is_lost_alone(plain: Any, name: str) -> None:
    source, how = LOST[name]
    with plain.submission() as channel:
        with pytest.raises(ChannelLost) as lost:
            Runner(channel).run(source, limit_s=0.6)
        assert lost.value.how == how
        assert Runner(channel).run("found = 2") == 2


@pytest.mark.parametrize("name", REFUSED)
def test_a_plain_process_is_refused(plain: Any, name: str) -> None:
    statement, error = REFUSED[name]
    assert found_by(plain, statement + "\nfound = 'done'") == error


def test_a_plain_process_leaves_no_daemon_and_no_file(plain: Any) -> None:
    source = """
import os, tempfile, time
tempfile.mkstemp()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: time.sleep(0.01)
    os._exit(0)
time.sleep(0.05)
found = tempfile.gettempdir()"""
    with plain.submission(ranks=True) as channel:
        folder = Path(Runner(channel).run(source))
        zygote = psutil.Process(plain.zygotes[True].process.pid)
        assert len(zygote.children(recursive=True)) >= 3
        assert any(folder.iterdir())
    _, alive = psutil.wait_procs(zygote.children(recursive=True), timeout=120)
    assert not alive
    end = time.monotonic() + 120
    while folder.exists() and time.monotonic() < end:  # it goes once the last process is gone
        time.sleep(0.01)
    assert not folder.exists()


def test_marks_of_a_plain_process(plain: Any) -> None:
    assert verdict_on(plain, HONEST).outcome == PASSED
    assert verdict_on(plain, WRONG).outcome == FAILED


def test_without_fork_each_submission_loads_python_anew() -> None:
    """As on macOS, where a process with torch loaded must not be forked."""
    with Sandbox("process", layers={"fork": False}) as sandbox, sandbox.submission() as channel:
        runner = Runner(channel)
        assert runner.run("found = 1") == 1
        with pytest.raises(ChannelLost, match="exit status 3") as lost:
            runner.run("import os; os._exit(3)")
        assert lost.value.how == "died"
