"""What ranks do when all is well."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor, nn

from course_utils.ranks import Ranks, RanksError, Reply, launch


def texts(replies: list[Reply]) -> list[str]:
    assert all(reply.ok for reply in replies), RanksError(replies)
    return [reply.text for reply in replies]


def test_a_cell_runs_on_every_rank(pool: Ranks) -> None:
    start = time.monotonic()
    replies = pool.run("x = torch.ones(2) * rank\ndist.all_reduce(x)\nprint(world_size)\nx")
    assert texts(replies) == ["4\ntensor([6., 6.])\n"] * 4
    assert [reply.rank for reply in replies] == [0, 1, 2, 3]
    assert all(0 < reply.seconds <= time.monotonic() - start for reply in replies)


def test_names_are_given(pool: Ranks) -> None:
    source = "(torch.__name__, dist.__name__, Tensor.__name__, nn.__name__, F.__name__, __name__)"
    expected = ("torch", "torch.distributed", "Tensor", "torch.nn", "torch.nn.functional")
    assert texts(pool.run(source, [0])) == [repr((*expected, "__main__")) + "\n"]


def test_variables_persist_and_only_some_ranks_run(pool: Ranks) -> None:
    pool.run("kept = rank")
    assert [reply.rank for reply in pool.run("kept = 10 * rank", only=(2, 0))] == [0, 2]
    assert pool.pull("kept") == [0, 1, 20, 3]


@pytest.mark.parametrize("only", [(), (4,), (-1, 0)])
def test_ranks_that_are_not_there_are_refused(pool: Ranks, only: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="0 to 3"):
        pool.run("1", only=only)


def test_tensors_cross_as_plain_copies(pool: Ranks) -> None:
    strided = torch.arange(12.0).reshape(3, 4).t()[1:]
    before = strided.clone()
    pool.push(strided=strided)
    pool.run("layout = (strided.stride(), strided.tolist()); strided += rank")
    assert pool.pull("layout") == [((1, 4), before.tolist())] * 4
    found = pool.pull("strided")
    assert all(torch.equal(got, before + rank) for rank, got in enumerate(found))
    assert torch.equal(strided, before)
    assert not any(name.startswith("torch_") for name in os.listdir("/dev/shm"))


def test_a_view_leaves_the_rest_of_its_storage_behind(pool: Ranks) -> None:
    pool.run("big = torch.zeros(1000, 1000); row = big[3]")
    assert {row.untyped_storage().nbytes() for row in pool.pull("row")} == {4000}


def test_a_graph_stays_behind(pool: Ranks) -> None:
    pool.run("w = nn.Linear(2, 1, bias=False); y = w(torch.ones(2)) * 2")
    assert all(y.is_leaf and y.requires_grad for y in pool.pull("y"))
    assert all(isinstance(w, nn.Linear) for w in pool.pull("w"))


def test_dtensors_come_back_as_each_ranks_part(pool: Ranks) -> None:
    pool.run(
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.tensor import Shard, distribute_tensor\n"
        "d = distribute_tensor(torch.arange(8.), init_device_mesh('cpu', (4,)), [Shard(0)])"
    )
    assert [part.tolist() for part in pool.pull("d")] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def in_a_notebook(source: str, name: str) -> object:
    """An object as a notebook defines it: in a module __main__ that no rank can import."""
    space: dict[str, object] = {"__name__": "__main__", "torch": torch}
    exec(source, space)
    return space[name]


def test_functions_of_a_notebook_are_sent_by_value(pool: Ranks) -> None:
    source = "def twice(x): return 2 * x\ndef f(x):\n    y = twice(x) + rank\n    dist.all_reduce(y)\n    return y"
    f = in_a_notebook(source, "f")
    assert pool.call(f, torch.ones(1)) == [torch.tensor([14.0])] * 4  # type: ignore[arg-type]
    pool.push(f=f)
    assert texts(pool.run("f(torch.zeros(1))")) == ["tensor([6.])\n"] * 4


def test_classes_of_a_notebook_are_sent_by_value(pool: Ranks) -> None:
    source = "class Shift(torch.nn.Module):\n    def forward(self, x): return x + rank"
    pool.push(Shift=in_a_notebook(source, "Shift"))
    assert texts(pool.run("Shift()(torch.zeros(1)).item()"))[2] == "2.0\n"


def add(x: Tensor, by: int = 0) -> Tensor:
    print("adding", by)
    return x + by


def test_call_and_map(pool: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    assert [x.item() for x in pool.call(add, torch.zeros(1), by=3)] == [3.0] * 4
    assert capsys.readouterr().out == "[0-3] adding 3\n"
    arguments = [(torch.zeros(1), rank) for rank in range(4)]
    assert [x.item() for x in pool.map(add, arguments)] == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match="2 tuples of arguments for 4 ranks"):
        pool.map(add, arguments[:2])


def test_what_cannot_be_sent_is_said(pool: Ranks) -> None:
    pool.run("import threading; lock = threading.Lock()")
    with pytest.raises(RanksError, match="cannot be sent"):
        pool.pull("lock")
    with pytest.raises(RanksError, match="'absent' is not defined on rank 0"):
        pool.pull("absent")
    with pytest.raises(
        TypeError, match="lock cannot be sent to the ranks: TypeError: cannot pickle"
    ):
        pool.push(x=1, lock=threading.Lock())
    assert texts(pool.run("1")) == ["1\n"] * 4


def test_streams_warnings_and_values_are_kept_apart(pool: Ranks) -> None:
    source = (
        "import sys, warnings\nprint('a'); print('b', file=sys.stderr)\n"
        "warnings.warn('careful')\nprint('c', end='')\n"
    )
    for _ in range(2):  # a warning is given again in the next cell
        reply = pool.run(source, [1])[0]
        assert (reply.text, reply.stderr) == ("a\nc", "b\n")
        assert reply.warnings == ("line 3: UserWarning: careful\n",)


def test_output_is_seen_while_it_comes(pool: Ranks, tmp_path: Path) -> None:
    """Rank 1 goes on only when its first line has been seen."""
    seen = tmp_path / "seen"

    def look(replies: Mapping[int, Reply]) -> None:
        if replies[1].text == "first\n":
            seen.touch()

    source = (
        "import pathlib, time\nprint('first')\n"
        f"while not pathlib.Path({str(seen)!r}).exists():\n    time.sleep(0.01)\nprint('second')"
    )
    replies = pool.run(source, look=look, timeout=300)
    assert texts(replies) == ["first\nsecond\n"] * 4


def test_an_unchecked_async_op_returns_at_once(pool: Ranks, tmp_path: Path) -> None:
    """Rank 1 takes part only when rank 0's call has returned. Checked, it would never be so."""
    returned = tmp_path / "returned"
    source = (
        "import pathlib, time\nx = torch.ones(1)\n"
        f"returned = pathlib.Path({str(returned)!r})\n"
        "while rank and not returned.exists():\n    time.sleep(0.01)\n"
        "work = dist.all_reduce(x, async_op=True)\nreturned.touch()\nwork.wait()\nx.item()"
    )
    assert texts(pool.run(source, debug=False, timeout=300)) == ["4.0\n"] * 4


def test_the_last_expression(pool: Ranks) -> None:
    assert texts(pool.run("x = 1\nx + 1", [0])) == ["2\n"]
    assert texts(pool.run("x + 1;", [0])) == [""]
    assert texts(pool.run("None", [0])) == [""]
    assert texts(pool.run("", [0])) == [""]


def test_figures_are_the_same_in_every_run(pool: Ranks) -> None:
    source = "import matplotlib.pyplot as plt\nplt.figure(figsize=(2, 1))\nplt.plot([0, rank]);"
    first, second = (pool.run(source, [0, 1]) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        (bundle,) = one.displays
        assert bundle == other.displays[0]
        assert bundle["image/png"].startswith(b"\x89PNG")
        assert bundle["text/plain"] == "<Figure size 200x100 with 1 Axes>"
    assert first[0].displays != first[1].displays
    (shown,) = pool.run("plt.plot([1, 2]); plt.show(); print('after')", [0])
    assert [kind for kind, _ in shown.items] == ["show", "out"]


def test_rich_values(pool: Ranks) -> None:
    source = "class Rich:\n    def _repr_html_(self): return '<b>1</b>'\n    def __repr__(self): return 'Rich'\ndisplay(Rich())\nRich()"
    bundle = {"text/html": "<b>1</b>", "text/plain": "Rich"}
    assert pool.run(source, [0])[0].displays == [bundle, bundle]


def test_a_flood_is_cut(pool: Ranks) -> None:
    text = pool.run("for _ in range(300): print('x' * 10_000)", [0])[0].text
    assert len(text) < 1_100_000
    assert "at most" in text


def test_the_environment_is_torchruns(pool: Ranks) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    pool.run(f"import os\nfound = [os.environ[name] for name in {names}]")
    assert pool.pull("found") == [[str(r), str(r), "4", "4", "127.0.0.1"] for r in range(4)]
    assert texts(pool.run("torch.get_num_threads()")) == ["1\n"] * 4


@pytest.mark.parametrize("late_s", [0.0, 0.02, 0.05])
def test_a_cell_can_make_the_group_itself(pool: Ranks, late_s: float) -> None:
    """MASTER_PORT is free: `init_process_group` works as in a script.

    Who comes before rank 0 sleeps and tries again, while rank 0 waits for it: no deadlock.
    """
    source = (
        f"import time\nif rank == 0:\n    time.sleep({late_s})\n"
        "dist.destroy_process_group()\ndist.init_process_group('gloo')\n"
        "x = torch.ones(1)\ndist.all_reduce(x)\nx.item()"
    )
    assert texts(pool.run(source)) == ["4.0\n"] * 4
    pool.close()


COLLECTIVES = """
x = torch.ones(4)
dist.monitored_barrier()
if rank == 0:
    dist.send(x, 1)
if rank == 1:
    y = torch.zeros(4)
    dist.recv(y)
dist.all_reduce(x)
pair = dist.new_group([1, 2])
if rank in (1, 2):
    z = torch.full((1,), float(rank))
    ops = [dist.P2POp(dist.isend, z, 3 - rank, pair), dist.P2POp(dist.irecv, torch.zeros(1), 3 - rank, pair)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    dist.all_reduce(z, group=pair)
    assert z.item() == 3 and ops[1].tensor.item() == 3 - rank
dist.barrier()
if rank == 1:
    assert y.tolist() == [1.0] * 4
model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
model(torch.ones(1, 2) * rank).sum().backward()
x.tolist(), model.module.weight.grad.tolist()
"""


@pytest.mark.parametrize("debug", [True, False])
def test_messages_collectives_and_models_in_any_order(pool: Ranks, debug: bool) -> None:
    """torch's own check takes a message between two ranks for a collective, and DDP crashes in it."""
    replies = pool.run(COLLECTIVES, debug=debug)
    assert texts(replies) == ["([4.0, 4.0, 4.0, 4.0], [[1.5, 1.5]])\n"] * 4


def test_debug_off_keeps_variables(pool: Ranks) -> None:
    pool.run("kept = rank")
    level = "dist.get_debug_level().name, kept"
    assert texts(pool.run(level, [3])) == ["('DETAIL', 3)\n"]
    assert texts(pool.run(level, [3], debug=False)) == ["('OFF', 3)\n"]
    x = "x = torch.ones(1)\ndist.all_reduce(x)\nx.item()"
    assert texts(pool.run(x, debug=False)) == ["4.0\n"] * 4
    assert texts(pool.run(x)) == ["4.0\n"] * 4


def test_memory_is_each_ranks_own(pool: Ranks) -> None:
    with Ranks(2) as two:
        two.start()
        before = two.memory()
        two.run("x = torch.ones(5_000_000)", [1])
        grown = [after - b for after, b in zip(two.memory(), before, strict=True)]
    assert grown[1] > 15_000_000 > 5_000_000 > grown[0]
    assert max(before) < 100e6


def test_later_starts_load_nothing_again(pool: Ranks) -> None:
    """The ranks are children of the one process that has loaded torch: forks, not new Pythons."""
    server = launch.launcher(launch.DEFAULT)
    if not isinstance(server, launch.Forkserver):
        pytest.skip("ranks are not forked on this system")
    pool.start()
    with Ranks(4) as four:
        four.start()
        parents = {psutil.Process(pid).ppid() for pid in (*pool.pids, *four.pids)}
    assert parents == {server.process.pid}


def test_pools_live_side_by_side(pool: Ranks) -> None:
    with Ranks(2) as two, Ranks(1) as one:
        for ranks in (two, one, pool):
            ranks.run("dist.barrier(); here = world_size")
        assert (two.pull("here"), one.pull("here")) == ([2, 2], [1])
        assert pool.pull("here") == [4] * 4


def test_the_kernels_own_settings_are_untouched() -> None:
    source = (
        "import os; before = dict(os.environ)\nfrom course_utils.ranks import Ranks\nimport sys\n"
        "assert 'torch' not in sys.modules and 'IPython' not in sys.modules\n"
        "with Ranks(2) as ranks: print(ranks.run('rank')[1].text)\n"
        "assert dict(os.environ) == before and 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("1\n\n", "")


def test_a_world_needs_a_rank() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Ranks(0)


def test_spawn_does_the_same() -> None:
    with Ranks(2, timeout=60.0, method="spawn") as ranks:
        assert texts(ranks.run("x = torch.ones(1)\ndist.all_reduce(x)\nx.item()")) == ["2.0\n"] * 2
        replies = ranks.run("import os\nif rank: os._exit(3)")
        assert str(replies[1].error) == "died: exit code 3"
        assert not ranks.running
