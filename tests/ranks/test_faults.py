"""What ranks do when something goes wrong: it is said early, with each rank's line, and the next cell works."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from course_utils.ranks import Ranks, RanksError, Reply
from course_utils.ranks.report import DIED, RAISED, SLOW, STUCK, names_of, tidy


def hows(replies: list[Reply]) -> list[str]:
    return [reply.error.how if reply.error else "ok" for reply in replies]


def sources(reply: Reply) -> list[str]:
    return [line.source for line in reply.error.lines] if reply.error else []


def works(pool: Ranks) -> None:
    """The next cell does."""
    replies = pool.run("x = torch.ones(1)\ndist.all_reduce(x)\nx.item()")
    assert [reply.text for reply in replies] == ["4.0\n"] * 4, RanksError(replies)


def test_a_rank_raises_and_the_others_wait(pool: Ranks) -> None:
    replies = pool.run("if rank == 1:\n    raise ValueError('no')\ndist.barrier()")
    assert hows(replies) == [STUCK, RAISED, STUCK, STUCK]
    assert sources(replies[1]) == ["raise ValueError('no')"]
    assert sources(replies[0]) == ["dist.barrier()"]
    assert replies[0].stuck is not None
    assert replies[0].stuck[0].number == 3
    assert "variables are lost" in pool.lost
    text = str(RanksError(replies, pool.lost))
    assert text.splitlines() == [
        "4 of 4 ranks failed",
        "[1] ValueError: no",
        "    line 2:  raise ValueError('no')",
        "[0,2,3] stuck: waits in barrier",
        "    line 3:  dist.barrier()",
        "All 4 processes were stopped: their variables are lost. The next cell starts new ones.",
    ]
    works(pool)


def test_all_ranks_raise_and_nothing_is_lost(pool: Ranks) -> None:
    pool.run("kept = 1\ndef f():\n    return 1 / 0")
    replies = pool.run("f()")
    assert hows(replies) == [RAISED] * 4
    assert [(line.where, line.source) for line in replies[3].error.lines] == [  # type: ignore[union-attr]
        ("", "f()"),
        ("f", "return 1 / 0"),
    ]
    assert replies[0].error is not None
    assert replies[0].error.kinds == ("ZeroDivisionError", "ArithmeticError", "Exception")
    assert pool.lost == ""
    assert pool.pull("kept") == [1] * 4


def test_exit_is_not_the_end(pool: Ranks) -> None:
    replies = pool.run("import sys; sys.exit(3)")
    assert [reply.error.kind for reply in replies if reply.error] == ["SystemExit"] * 4
    works(pool)


@pytest.mark.parametrize(
    ("death", "says"),
    [
        ("os.kill(os.getpid(), 9)", "died: killed by SIGKILL"),
        ("os._exit(5)", "died: exit code 5"),
        ("os.abort()", "died: killed by SIGABRT"),
    ],
)
def test_a_rank_dies(pool: Ranks, death: str, says: str) -> None:
    source = f"import os\nprint('before')\nif rank == 1:\n    {death}\ndist.barrier()"
    replies = pool.run(source)
    assert hows(replies)[1] == DIED
    assert replies[1].error is not None
    assert replies[1].error.message == says
    assert replies[1].text == "before\n"
    assert set(hows(replies)) <= {DIED, STUCK, RAISED}
    assert all(sources(reply)[-1:] == ["dist.barrier()"] for reply in replies if reply.rank != 1)
    if "abort" in death:  # faulthandler wrote where
        assert sources(replies[1]) == ["os.abort()"]
    assert "variables are lost" in pool.lost
    works(pool)


def test_a_rank_dies_between_two_cells(pool: Ranks, gone: Callable[..., bool]) -> None:
    pool.start()
    os.kill(pool.pids[2], signal.SIGKILL)
    assert gone(pool.pids[2:3])
    time.sleep(0.1)
    works(pool)
    assert "A rank died since the last cell" in pool.note
    works(pool)
    assert pool.note == ""


def test_shapes_differ(pool: Ranks) -> None:
    pool.run("kept = rank")
    replies = pool.run("dist.all_reduce(torch.ones(2 + rank))")
    assert hows(replies) == [RAISED] * 4
    assert replies[0].error is not None
    assert replies[0].error.message.endswith("They differ in tensor shapes: 2 vs 3")
    assert sources(replies[0]) == ["dist.all_reduce(torch.ones(2 + rank))"]
    assert "new process group" in pool.lost
    works(pool)
    assert pool.pull("kept") == [0, 1, 2, 3]


def test_shapes_differ_unchecked(pool: Ranks) -> None:
    replies = pool.run("dist.all_reduce(torch.ones(2 + rank))", debug=False)
    assert any(not reply.ok for reply in replies)
    works(pool)


def test_order_differs(pool: Ranks) -> None:
    source = """\
    x = torch.ones(2)
    if rank == 0:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
    else:
        dist.broadcast(x, 0)
        dist.all_reduce(x)
    """
    replies = pool.run(textwrap.dedent(source))
    assert hows(replies) == [RAISED] * 4
    assert replies[0].error is not None
    assert "op type: ALLREDUCE vs BROADCAST" in replies[0].error.message
    assert sources(replies[0]) == ["dist.all_reduce(x)"]
    works(pool)


STUCK_CELLS = {
    "one receives": (
        "if rank == 0:\n    dist.recv(torch.ones(1), 1)",
        {0: "in recv from rank 1"},
    ),
    "a request waits": (
        "w = dist.irecv(torch.ones(1), (rank + 1) % 4)\nw.wait()",
        {rank: f"in recv from rank {(rank + 1) % 4}" for rank in range(4)},
    ),
    "from anywhere": ("if rank == 3:\n    dist.recv(torch.ones(1))", {3: "in recv from any rank"}),
    "in a group": (
        "pair = dist.new_group([1, 3])\n"
        "if rank == 3:\n    dist.recv(torch.ones(1), group=pair, group_src=0)",
        {3: "in recv from rank 1"},
    ),
    "one does something else": (
        "if rank: dist.recv(torch.ones(1), 0)\nelse: dist.all_reduce(torch.ones(1))",
        {0: "in all_reduce"} | dict.fromkeys((1, 2, 3), "in recv from rank 0"),
    ),
    "all send first": (
        "x = torch.ones(1)\nfor w in [dist.isend(x, (rank + 1) % 4, tag=1)]:\n    w.wait()\n"
        "dist.recv(x, (rank - 1) % 4, tag=2)",
        {rank: f"in send to rank {(rank + 1) % 4}" for rank in range(4)},
    ),
    "one makes a group": ("if rank == 2:\n    dist.new_group([0, 2])", {2: "in new_group"}),
    "backward": (
        "m = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))\n"
        "if rank:\n    m(torch.ones(2)).sum().backward()",
        dict.fromkeys([1, 2, 3], "in backward"),
    ),
    "functional": (
        "import torch.distributed._functional_collectives as fc\n"
        "if rank:\n    (fc.all_reduce(torch.ones(1), 'sum', list(range(4))) + 1).sum()",
        dict.fromkeys([1, 2, 3], "in all_reduce"),
    ),
}


@pytest.mark.parametrize(
    ("name", "debug"),
    [*((name, True) for name in STUCK_CELLS)]
    + [(name, False) for name in ("backward", "one does something else", "all send first")],
)
def test_deadlocks_are_found_early(pool: Ranks, name: str, debug: bool) -> None:
    source, who = STUCK_CELLS[name]
    replies = pool.run(source, debug=debug)
    said = {reply.rank: reply.error.message for reply in replies if reply.error}
    assert said == {rank: f"stuck: waits {where}" for rank, where in who.items()}
    assert {reply.error.how for reply in replies if reply.error} == {STUCK}, RanksError(replies)
    lines = [line.strip() for line in source.splitlines()]
    assert {sources(replies[rank])[-1] for rank in who} <= {"w.wait()", *lines[-2:]}
    assert not pool.running


def test_the_group_may_run_out_of_time_itself(pool: Ranks) -> None:
    replies = pool.run("if rank: dist.barrier()", timeout=1.0, watch=False)
    assert hows(replies) == ["ok", RAISED, RAISED, RAISED]
    assert replies[1].error is not None
    assert "1000ms" in replies[1].error.message
    works(pool)


def test_a_rank_sleeps(pool: Ranks) -> None:
    """A sleep is not a deadlock: it may end. At the timeout it is called what it is."""
    source = "import time\nprint('so far')\nif rank == 2:\n    time.sleep(60)\ndist.barrier()"
    replies = pool.run(source, timeout=2.0)
    assert hows(replies) == [SLOW] * 4
    assert [sources(reply) for reply in replies] == [
        ["dist.barrier()"],
        ["dist.barrier()"],
        ["time.sleep(60)"],
        ["dist.barrier()"],
    ]
    assert str(replies[2].error).startswith("still running after 2 s")
    assert str(replies[0].error).startswith("still waiting in barrier after 2 s")
    assert replies[2].text == "so far\n"
    works(pool)


def test_a_nap_and_a_thread_are_waited_for(pool: Ranks) -> None:
    nap = "import time\nif rank == 2:\n    time.sleep(2)\ndist.barrier()"
    thread = (
        "import threading, time\nx = torch.ones(1)\n"
        "def late():\n    time.sleep(2)\n    dist.send(x, 0)\n"
        "if rank == 1:\n    t = threading.Thread(target=late); t.start()\n"
        "    dist.recv(x, 0)\n    t.join()\n"
        "if rank == 0:\n    dist.recv(x, 1)\n    dist.send(x, 1)"
    )
    for source in (nap, thread):
        replies = pool.run(source, debug=False)
        assert hows(replies) == ["ok"] * 4, RanksError(replies)


def test_a_busy_machine_makes_nothing_look_stuck(pool: Ranks) -> None:
    """More processes than cores want to run; one rank computes long while the others wait for it."""
    source = (
        "x = torch.ones(1000)\nfor step in range(20):\n"
        "    if rank == step % 4:\n        sum(i * i for i in range(300_000))\n"
        "    dist.all_reduce(x); x /= 4\n"
    )
    burn = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burn) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        replies = pool.run(source, timeout=120)
        assert hows(replies) == ["ok"] * 4, RanksError(replies)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def interrupt_when(begun: list[Path]) -> None:
    """Press the stop button once all of these files are there, and what follows them has begun."""
    while not all(path.exists() for path in begun):
        time.sleep(0.02)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)


def press_stop(pool: Ranks, folder: Path, source: str, debug: bool = True) -> None:
    """Run it, and press the stop button once every rank has begun."""
    begun = [folder / str(rank) for rank in range(4)]
    touch = (
        f"import pathlib, time\nprint('so far')\npathlib.Path({str(folder)!r}, str(rank)).touch()\n"
    )
    threading.Thread(target=interrupt_when, args=(begun,)).start()
    with pytest.raises(KeyboardInterrupt):
        pool.run(touch + source, timeout=100_000, debug=debug, watch=False)


STOPPED = {
    "one sleeps": (
        "if rank == 1:\n    time.sleep(60_000)\ndist.barrier()",
        ["dist.barrier()", "time.sleep(60_000)", "dist.barrier()", "dist.barrier()"],
    ),
    "they talk": ("x = torch.ones(1)\nwhile True:\n    dist.all_reduce(x)", None),
    "all wait": ("dist.recv(torch.ones(1), (rank + 1) % 4)", None),
    "a model waits": (
        "model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))\n"
        "if rank:\n    model(torch.ones(2)).sum().backward()",
        None,
    ),
}


@pytest.mark.parametrize("name", STOPPED)
@pytest.mark.parametrize("debug", [True, False])
def test_the_stop_button_keeps_variables(
    pool: Ranks, tmp_path: Path, name: str, debug: bool
) -> None:
    source, lines = STOPPED[name]
    pool.run("kept = rank")
    pids = pool.pids
    press_stop(pool, tmp_path, source, debug)
    assert pool.lost.startswith("The ranks keep their variables")
    assert pool.pids == pids
    assert [reply.text for reply in pool.interrupted] == ["so far\n"] * 4
    if lines:
        assert [sources(reply)[-1] for reply in pool.interrupted] == lines
    assert pool.pull("kept") == [0, 1, 2, 3]
    works(pool)
    assert pool.pids == pids


def test_who_cannot_be_stopped_is_named(
    pool: Ranks, gone: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop in C never comes back to Python, which alone could see the stop button."""
    from course_utils.ranks import conversation

    monkeypatch.setattr(conversation, "STOP_S", 0.5)
    pool.start()
    pids = pool.pids
    loop = "import collections, itertools\n    collections.deque(itertools.repeat(0), 0)"
    press_stop(pool, tmp_path, f"if rank == 2:\n    {loop}")
    assert gone(pids)
    assert pool.lost.startswith("[2] cannot be interrupted")
    assert "variables are lost" in pool.lost
    works(pool)


def test_a_dropped_pool_takes_its_processes_along(gone: Callable[..., bool]) -> None:
    ranks = Ranks(2)
    ranks.start()
    pids = ranks.pids
    del ranks
    assert gone(pids)


def test_the_forkserver_is_killed(pool: Ranks, gone: Callable[..., bool]) -> None:
    from course_utils.ranks import launch

    if launch.DEFAULT != launch.FORKSERVER:
        pytest.skip("no forkserver here")
    ranks = Ranks(1)
    ranks.start()
    pool.start()
    pids = ranks.pids + pool.pids
    server = launch.launcher(launch.FORKSERVER)
    assert isinstance(server, launch.Forkserver)
    os.kill(server.process.pid, signal.SIGKILL)
    assert gone(pids)
    works(pool)  # torch is loaded again
    ranks.close()


def test_functions_show_their_own_lines(pool: Ranks) -> None:
    """A function of a notebook stands on a line that only the notebook's kernel knows."""
    import linecache

    source = "def ring(x):\n    dist.recv(x, 0)\n    return x\n"
    filename = "/tmp/ipykernel_1/2.py"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    space: dict[str, object] = {"__name__": "__main__"}
    exec(compile(source, filename, "exec"), space)
    import torch

    with pytest.raises(RanksError) as caught:
        pool.call(space["ring"], torch.ones(1))  # type: ignore[arg-type]
    assert "line 2 in ring:  dist.recv(x, 0)" in str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "name"),
    [([0, 1, 2, 3], "[0-3]"), ([1], "[1]"), ([0, 2], "[0,2]"), ([0, 1], "[0,1]")]
    + [([0, 2, 3, 4, 7], "[0,2-4,7]")],
)
def test_ranks_have_short_names(ranks: list[int], name: str) -> None:
    assert names_of(ranks) == name


def test_messages_are_the_same_in_every_run() -> None:
    raw = (
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:54321\nException raised from f at x.cpp:1 (most recent call first):\nframe #0"
    )
    assert tidy(raw) == "Connection closed by peer [127.0.0.1]"
    assert len(tidy("x" * 10_000)) < 2000
    assert not re.search(r"\d{5}", tidy(raw))
