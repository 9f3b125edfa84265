"""The time limit, by timer signal in the main thread and by a second thread elsewhere."""

import signal
import threading

import pytest

from course_utils.processes.time_limit import TimeLimit, time_limit


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
