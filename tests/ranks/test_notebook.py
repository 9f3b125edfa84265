"""`%%ranks` in a kernel: what a reader sees, the stop button, and a kernel that is killed."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

from course_utils.ranks import magic

CELLS = {
    "load": "%load_ext course_utils.ranks",
    "function": "import torch\ndef ring(x):\n    dist.all_reduce(x)\n    return x",
    "sum": "%%ranks 4\nx = torch.ones(2) * rank\ndist.all_reduce(x)\nprint('rank', rank)\nx",
    "alike": "%%ranks\nx",
    "some": "%%ranks ranks=0,2\nimport sys, warnings\nprint('err', file=sys.stderr)\nwarnings.warn('careful')\nrank",
    "push": "%%ranks 2 push=ring pull=z,w\nz = ring(torch.ones(2)); w = rank",
    "pulled": "z, w",
    "figure": "%%ranks 2\nimport matplotlib.pyplot as plt\nif rank == 0:\n    plt.figure(figsize=(2, 1)); plt.plot([0, 1]);",
    "raises": "%%ranks 4 fails\nif rank == 1:\n    raise ValueError('no')\ndist.barrier()",
    "after": "%%ranks 4\nx = torch.ones(1)\ndist.all_reduce(x)\nx",
    "shapes": "%%ranks 4 fails\ndist.all_reduce(torch.ones(2 + rank))",
    "stop": "%ranks stop\n%ranks",
}


def notebook(cells: dict[str, str]) -> Any:
    made = [nbformat.v4.new_code_cell(text, id=name) for name, text in cells.items()]
    return nbformat.v4.new_notebook(cells=made)


def executed(cells: dict[str, str], folder: Path) -> dict[str, list[Any]]:
    done = NotebookClient(
        notebook(cells), timeout=60, kernel_name="python3", resources={"metadata": {"path": folder}}
    ).execute()
    return {cell.id: cell.outputs for cell in done.cells}


def stream(outputs: list[Any], name: str = "stdout") -> str:
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == name)


@pytest.fixture(scope="module", autouse=True)
def course_is_found() -> Any:
    """The kernel imports this course, wherever its own folder is."""
    with pytest.MonkeyPatch.context() as patch:
        root = str(Path(magic.__file__).parents[2])
        patch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
        yield


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return executed(CELLS, tmp_path_factory.mktemp("first"))


def test_output_is_by_rank_and_in_order(first: dict[str, list[Any]]) -> None:
    lines = [
        f"[{rank}] {line}" for rank in range(4) for line in (f"rank {rank}", "tensor([6., 6.])")
    ]
    assert stream(first["sum"]).splitlines() == lines
    assert stream(first["alike"]) == "[0-3] tensor([6., 6.])\n"
    assert stream(first["some"]) == "[0] 0\n[2] 2\n"
    assert stream(first["some"], "stderr").splitlines() == [
        "[0,2] line 3: UserWarning: careful",
        "[0] err",
        "[2] err",
    ]


def test_names_are_pushed_and_pulled(first: dict[str, list[Any]]) -> None:
    assert first["push"] == []
    text = first["pulled"][0].data["text/plain"]
    assert text == "([tensor([2., 2.]), tensor([2., 2.])], [0, 1])"


def test_a_figure_is_displayed(first: dict[str, list[Any]]) -> None:
    label, figure = first["figure"]
    assert label.text == "[0] <Figure size 200x100 with 1 Axes>\n"
    assert set(figure.data) == {"text/plain", "image/png"}


def test_a_failure_that_is_meant(first: dict[str, list[Any]]) -> None:
    assert stream(first["raises"]).startswith("4 of 4 ranks failed\n[1] ValueError: no\n")
    assert stream(first["after"]) == "[0-3] tensor([4.])\n"
    assert "They differ in tensor shapes: 2 vs 3" in stream(first["shapes"])
    assert stream(first["stop"]) == "no ranks are running\n"


def test_twice_the_same_and_green_in_nbval(first: dict[str, list[Any]], tmp_path: Path) -> None:
    """Strict nbval compares every output with the first run's."""
    made = notebook(CELLS)
    for cell in made.cells:
        cell.outputs = first[cell.id]
        cell.execution_count = 1
    nbformat.write(made, tmp_path / "ranks.ipynb")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        + ["--nbval", "--nbval-current-env", "-c", os.devnull, str(tmp_path / "ranks.ipynb")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert f"{len(CELLS)} passed" in done.stdout


FIND = """
import json
from course_utils.ranks import launch
from course_utils.ranks.magic import _loaded
server = launch.launcher(launch.DEFAULT)
pids = [pid for pool in _loaded.pools.values() for pid in pool.pids] + [server.process.pid]
print(json.dumps([pids, str(server.directory)]))
"""


def wait_for(*files: Path) -> None:
    """Until all are there, and what follows them in the cell has begun."""
    end = time.monotonic() + 300
    while not all(file.exists() for file in files):
        assert time.monotonic() < end, "the cell does not begin"
        time.sleep(0.02)
    time.sleep(0.5)


def test_errors_the_stop_button_and_a_killed_kernel(
    gone: Callable[..., bool], tmp_path: Path
) -> None:
    manager, client = start_new_kernel(kernel_name="python3")

    def run(source: str) -> tuple[str, str]:
        """The status, and what was shown."""
        seen: list[str] = []

        def note(message: dict[str, Any]) -> None:
            content = message["content"]
            seen.append(content.get("text", "") or "\n".join(content.get("traceback", [])))

        reply = client.execute_interactive(source, timeout=60, output_hook=note, allow_stdin=False)
        return reply["content"]["status"], "".join(seen)

    def outputs_until_idle(look: Callable[[str], None] = lambda text: None) -> str:
        """What stands beneath the cell at its end. look: sees it after every change."""
        shown, clear = "", False
        while True:
            message = client.get_iopub_msg(timeout=300)
            content = message["content"]
            clear |= message["msg_type"] == "clear_output"
            text = content.get("text", "") or "\n".join(content.get("traceback", []))
            if text:
                shown, clear = ("" if clear else shown) + text, False
            look(shown)
            if content.get("execution_state") == "idle":
                return shown

    try:
        run(CELLS["load"])
        assert run("%%ranks 2\nrank") == ("ok", "[0] 0\n[1] 1\n")
        status, text = run("%%ranks\nif rank == 1:\n    1 / 0")
        assert (status, text) == (
            "error",
            "RanksError: 1 of 2 ranks failed\n[1] ZeroDivisionError: division by zero\n"
            "    line 2:  1 / 0\n[0] finished",
        )
        for wrong, says in {
            "%%ranks 2 quickly\n1": "does not understand 'quickly'",
            "%%ranks timeout=soon\n1": "does not understand 'timeout=soon'",
            "%%ranks ranks=5\n1": "ranks are 0 to 1",
            "%%ranks 2 fails\n1": "no rank did",
        }.items():
            status, text = run(wrong)
            assert status == "error"
            assert says in text
        run("import threading; lock = threading.Lock(); x = 1")
        for wrong, line in {
            "%%ranks 2\nx = 1\nfor": "SyntaxError: invalid syntax, line 2:  for",
            "%%ranks 2\nif x:\ny = 1": "IndentationError: expected an indented block after 'if' "
            "statement on line 1, line 2:  y = 1",
            "%%ranks 2 push=x,nothing\n1": "push: nothing is not defined in the notebook",
            "%%ranks 2 push=x,lock\n1": "push: lock cannot be sent to the ranks: TypeError: "
            "cannot pickle '_thread.lock' object",
        }.items():
            assert run(wrong) == ("error", line)
        assert "2 ranks, started by" in run("%ranks")[1]

        seen = tmp_path / "seen"
        client.execute(
            "%%ranks 2\nimport pathlib, time\nprint('first', rank)\n"
            f"while not pathlib.Path({str(seen)!r}).exists():\n    time.sleep(0.01)\nprint('second')",
            allow_stdin=True,
        )
        outputs = outputs_until_idle(lambda text: seen.touch() if "[1] first 1" in text else None)
        assert outputs == "[0] first 0\n[0] second\n[1] first 1\n[1] second\n"

        client.execute(
            "%%ranks 2 timeout=100000\nprint('so far')\nimport pathlib, time\n"
            f"pathlib.Path({str(tmp_path / 'begun')!r} + str(rank)).touch()\n"
            "if rank: time.sleep(60_000)\ndist.barrier()",
            allow_stdin=True,
        )
        wait_for(*(tmp_path / f"begun{rank}" for rank in range(2)))
        manager.interrupt_kernel()
        shown = outputs_until_idle()
        assert shown.startswith("[0,1] so far\nKeyboardInterrupt: interrupted\n")
        assert "time.sleep(60_000)" in shown
        assert "was waiting in barrier" in shown
        assert "The ranks keep their variables" in shown

        assert run("%%ranks 2\nrank")[0] == "ok"
        pids, directory = json.loads(run(FIND)[1])
        client.execute("%%ranks 2\nif rank: dist.barrier()")  # one waits inside C++ for ever
        time.sleep(0.3)
        os.kill(manager.provisioner.pid, signal.SIGKILL)
        assert len(pids) == 3
        assert gone(pids)
        assert not Path(directory).exists()
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_script_that_ends_takes_its_ranks_along(gone: Callable[..., bool]) -> None:
    """At its end, by an exception, and killed; by fork and by spawn."""
    source = """\
    import os, signal, sys
    from course_utils.ranks import Ranks, launch
    if __name__ == "__main__":
        ranks = Ranks(1, method=sys.argv[2])
        ranks.start()
        server = launch.launcher(sys.argv[2])
        extra = [server.process.pid] if hasattr(server, "process") else []
        print(*ranks.pids, *extra, flush=True)
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if sys.argv[1] == "raise":
            raise SystemExit(3)
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source), how, method],
            stdout=subprocess.PIPE,
            text=True,
        )
        for how, method in [("end", launch_default()), ("raise", "spawn"), ("kill", "spawn")]
    ]
    codes, pids = [], []
    for process in started:
        said, _ = process.communicate(timeout=120)
        pids += [int(pid) for pid in said.split()]
        codes.append(process.returncode)
    assert codes == [0, 3, -signal.SIGKILL]
    assert len(pids) >= 3
    assert gone(pids)


def launch_default() -> str:
    from course_utils.ranks import launch

    return launch.DEFAULT


def test_what_the_line_says_is_read() -> None:
    options = magic.parse("3 ranks=0,2 timeout=2.5 push=a,b pull=c fails debug=off watch=off", 4)
    assert options == magic.Options(3, (0, 2), 2.5, ("a", "b"), ("c",), True, False, False)
    assert magic.parse("", 2) == magic.Options(2)
    for wrong in ("0", "-1", "ranks=", "ranks=a", "timeout=0", "push=1x", "debug=maybe", "fail"):
        with pytest.raises(ValueError, match="does not understand"):
            magic.parse(wrong, 4)
