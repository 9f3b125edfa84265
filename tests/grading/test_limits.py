"""The time limit, by timer signal in the main thread, by a second thread elsewhere, in a fork for loops in C."""

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
import toys

from course_utils.grading import call, probes
from course_utils.grading.judging.judge import grade
from course_utils.grading.observing.in_c import may_loop_in_c
from course_utils.grading.observing.observe import observe
from course_utils.processes.stuck import can_fork, first_stuck
from course_utils.processes.time_limit import _SCHEDSTAT as SCHEDSTAT
from course_utils.processes.time_limit import TimeLimit, _delay, time_limit

forks = pytest.mark.skipif(not can_fork(), reason="no fork on this system")


def loops_for_ever():
    while True:
        try:  # noqa: SIM105 - what students write
            sum(range(100))
        except Exception:
            pass


def test_in_the_main_thread():
    with pytest.raises(TimeLimit), time_limit(0.1):
        loops_for_ever()


def test_in_another_thread():
    outcome = []

    def work():
        try:
            with time_limit(0.1):
                loops_for_ever()
        except TimeLimit:
            outcome.append("stopped")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(300)
    assert outcome == ["stopped"]


def test_time_that_the_machine_gives_to_others_does_not_count(monkeypatch):
    begun = time.monotonic()
    given_away = lambda: (time.monotonic() - begun) * 3 / 4  # noqa: E731
    monkeypatch.setattr("course_utils.processes.time_limit._delay", given_away)
    with pytest.raises(TimeLimit), time_limit(0.2):
        loops_for_ever()
    assert time.monotonic() - begun >= 0.8


@pytest.mark.skipif(not Path(SCHEDSTAT).exists(), reason="this system does not count it")
def test_a_thread_knows_how_long_it_has_waited():
    cores = os.sched_getaffinity(0)
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for pid in (0, rival.pid):
            os.sched_setaffinity(pid, {min(cores)})
        before, until = _delay(), time.thread_time() + 0.3
        while time.thread_time() < until:
            pass
        assert _delay() - before > 0.05
    finally:
        rival.kill()
        rival.wait()
        os.sched_setaffinity(0, cores)


def test_quick_code_is_left_alone():
    with time_limit(2.0):
        pass
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    assert left == 0 or left > 2.0, "its own timer is off; a test's own may run"


def test_a_library_is_loaded_to_its_end(tmp_path, monkeypatch):
    """Stopped in the middle, it would be half there for all that comes after."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "slow_library.py").write_text("import time\ntime.sleep(0.5)\nwhole = True\n")
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(TimeLimit), time_limit(0.1):
        import slow_library

        while True:
            pass
    assert slow_library.whole


# ------------------------------------------------------------------ loops inside a C function


def loops_in_c():
    return sum(range(10**13))


def children():
    """The processes that this one has started, those that ended and were not asked for among them."""
    return {child.pid for child in psutil.Process().children()}


@forks
def test_a_loop_in_c_is_found_and_killed():
    """What sleeps longer than the limit is not stuck: only the processor's time counts."""
    quick, before = [lambda: None, partial(time.sleep, 0.3), lambda: 1 / 0], children()
    assert first_stuck(quick, 0.1) is None
    found = first_stuck([*quick, loops_in_c, quick[0]], 0.1)
    assert found.number == 3
    assert [name for *_, name in found.frames][-1] == "loops_in_c"
    assert children() == before, "no fork is left"


@forks
def test_calls_are_made_up_to_one_that_says_it_was_the_last():
    assert first_stuck([lambda: True, loops_in_c], 0.1) is None


def limit_softmax(monkeypatch):
    """0.2 s for an answer; the reference, which may wait for a cold disk, has had its turn before."""
    assert not grade(toys.softmax, *toys.softmax.parts).failure
    monkeypatch.setattr(toys.softmax, "limit_s", 0.2)


def softmax(x, temperature=1.0):
    if temperature != 1.0:
        list(itertools.islice(itertools.product(range(10), repeat=12), 10**12))
    return toys.softmax.parts[0](x, temperature)


@forks
def test_an_answer_that_loops_in_c_gets_a_verdict(monkeypatch):
    limit_softmax(monkeypatch)
    verdict = grade(toys.softmax, softmax)
    assert verdict.failed_rung == "random cases"
    text = str(verdict)
    assert "your code was still running after" in text
    assert "in softmax:  list(itertools.islice(itertools.product(range(10), repeat=12)" in text


def takes_anything(*given, **named):
    if named:
        loops_in_c()
    return toys.softmax.parts[0](*given, **named)


@forks
def test_a_call_by_name_and_a_measured_call_are_stopped_too(monkeypatch):
    limit_softmax(monkeypatch)
    assert "still running" in str(grade(toys.softmax, takes_anything))

    def slow_where_measured(x, temperature=1.0):
        if x.shape == (9, 5) and (x == 1).all():
            loops_in_c()
        return toys.softmax.parts[0](x, temperature)

    verdict = grade(toys.softmax, slow_where_measured)
    assert "could not be measured: your code was still running" in verdict.failure.sentence
    assert "in loops_in_c:  return sum(range(10**13))" in str(verdict)


def test_only_what_runs_through_an_iterator_of_c_is_tried_first():
    assert may_loop_in_c(softmax)
    assert may_loop_in_c({"one": loops_for_ever, "two": takes_anything})
    assert not may_loop_in_c(toys.softmax.parts[0])
    assert not may_loop_in_c(lambda x: [y + 1 for y in range(x)])


def test_a_regular_expression_looks_at_the_clock_itself():
    with pytest.raises(TimeLimit), time_limit(0.1):
        re.match("(a*)*b", "a" * 60)


# ------------------------------------------------------------------ an exception has its line


def raises_where_measured(x, temperature=1.0):
    if x.shape == (9, 5) and (x == 1).all():
        return {1: x}[11]
    return toys.softmax.parts[0](x, temperature)


def raises_by_name(*given, **named):
    if named:
        return named[11]
    return toys.softmax.parts[0](*given)


def test_every_exception_has_the_students_line():
    assert "in raises_where_measured:  return {1: x}[11]" in str(
        grade(toys.softmax, raises_where_measured)
    )
    assert "in raises_by_name:  return named[11]" in str(grade(toys.softmax, raises_by_name))


def test_what_only_the_check_met_has_the_line_of_the_check():
    """What the code gave was of no use: no line of its own was running."""
    (line,) = observe(probes.call, None, call(1)).raised.lines
    assert line[0] == "the check"
    assert "subject(" in line[2]
