"""Exercises on ranks: the proofs on toys, what each failure looks like, and attacks on the graders."""

import copy
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
import toy_collectives as ref
import toys_on_ranks as toys
from torch.distributed import _functional_collectives as functional

from course_utils.authoring import proofs
from course_utils.authoring.mutation.of_exercise import survey
from course_utils.grading import Exercise, call, contracts, grade, on_ranks, probes
from course_utils.grading.distributed.agreement import disagreement
from course_utils.grading.distributed.run import run_on_ranks
from course_utils.grading.judging.judge import broken

pytestmark = pytest.mark.timeout(300)

plain = copy.copy(toys.ring)  # values only
plain.contracts = []


def me():
    return dist.get_rank(), dist.get_world_size()


def library(x):
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x)
    return x


def verdict_on(answer, exercise=plain, outcome="failed"):
    verdict = grade(exercise, answer, explain=False)
    assert verdict.outcome == outcome, str(verdict)
    return str(verdict)


# ------------------------------------------------------------------------------ whole exercises


@pytest.mark.parametrize("proof", proofs.PROOFS)
@pytest.mark.parametrize("toy", toys.TOYS, ids=lambda toy: toy.names[0])
def test_proof(toy, proof):
    proofs.PROOFS[proof](toy)


def test_mutants_die_in_this_process():
    found = survey(toys.average)
    assert found.made > 10
    assert all("strict" in mutant for mutant in found.living), found.living


# ------------------------------------------------------------------------------ right answers


def by_functional(x):
    return functional.all_reduce(x.contiguous(), "sum", dist.group.WORLD)


def by_root(x):
    x = x.clone(memory_format=torch.contiguous_format)
    dist.reduce(x, 0)
    dist.broadcast(x, 0)
    return x


def waits_later(x):
    x = x.clone(memory_format=torch.contiguous_format)
    work = dist.all_reduce(x, async_op=True)
    work.get_future().wait()
    return x


def in_batches(x):
    rank, n = me()
    total, passing = x.clone(), x.contiguous()
    for _ in range(n - 1):
        received = torch.empty_like(passing)
        both = [
            dist.P2POp(dist.isend, passing, (rank + 1) % n),
            dist.P2POp(dist.irecv, received, (rank - 1) % n),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        total, passing = total + received, received
    return total


def even_then_odd(x):
    """Blocking calls in an order that cannot deadlock."""
    rank, n = me()
    total, passing = x.clone(), x.contiguous()
    for _ in range(n - 1):
        received = torch.empty_like(passing)
        if rank % 2 == 0 and rank != n - 1:
            dist.send(passing, (rank + 1) % n)
            dist.recv(received, (rank - 1) % n)
        else:
            dist.recv(received, (rank - 1) % n)
            dist.send(passing, (rank + 1) % n)
        total, passing = total + received, received
    return total


def from_anywhere(x):
    rank, n = me()
    x = x.clone(memory_format=torch.contiguous_format)
    if x.numel() == 0:  # gloo receives nothing from anywhere
        return x
    if rank:
        dist.send(x, 0)
    else:
        for _ in range(n - 1):
            received = torch.empty_like(x)
            dist.recv(received)
            x += received
    dist.broadcast(x, 0)
    return x


def with_groups(x):
    """Pairs first, then across; groups that are left behind."""
    _, n = me()
    x = x.clone(memory_format=torch.contiguous_format)
    if n != 4:
        dist.all_reduce(x)
        return x
    for pairs in ([0, 1], [2, 3]), ([0, 2], [1, 3]):
        groups = [dist.new_group(pair) for pair in pairs]
        own = next(g for g, p in zip(groups, pairs, strict=True) if dist.get_rank() in p)
        dist.all_reduce(x, group=own)
    return x


def as_objects(x):
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, x)
    return torch.stack(everybody).sum(0)


def checks_first(*args, **kwargs):
    return functools.partial(helper, scale=1)(*args, **kwargs)


def helper(x, scale):
    dist.barrier()
    return scale * library(x)


RIGHT = [
    by_functional, by_root, waits_later, in_batches, even_then_odd, from_anywhere, with_groups,
    as_objects, checks_first, lambda x: library(x),
]  # fmt: skip


@pytest.mark.parametrize("answer", RIGHT, ids=lambda f: f.__name__)
def test_right(answer):
    verdict_on(answer, outcome="passed")


# ------------------------------------------------------------------------------ wrong answers


def alone(x):
    return x


def forgets_to_return(x):
    library(x)


def in_place(x):
    if x.is_contiguous():
        dist.all_reduce(x)
        return x.clone()
    return library(x)


def only_on_root(x):
    x = x.clone(memory_format=torch.contiguous_format)
    dist.reduce(x, 0)
    return x


def wrong_on_the_last(x):
    rank, n = me()
    return library(x) + (1 if rank == n - 1 else 0)


def wrong_on_four(x):
    return library(x) * (2 if dist.get_world_size() == 4 else 1)


def wrong_dtype_on_one(x):
    y = library(x)
    return y.double() if dist.get_rank() == 1 else y


def list_on_one(x):
    y = library(x)
    return [y] if dist.get_rank() == 1 else y


def half_precision(x):
    return library(x.half()).to(x.dtype) if x.is_floating_point() else library(x)


def takes_the_maximum(x):
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return x


def a_lock(x):
    library(x)
    return threading.Lock()


def a_subclass(x):
    class Mine(torch.Tensor):
        pass

    return library(x).as_subclass(Mine)


def needs_grad(x):
    y = library(x)
    return y.requires_grad_() if y.is_floating_point() else y


WRONG = [
    (alone, "differ"),
    (forgets_to_return, "NoneType|came None"),
    (in_place, "changed its argument `x`"),
    (only_on_root, "rank 1: result"),
    (wrong_on_the_last, "rank 1: result"),
    (wrong_on_four, "rank 0: result"),
    (wrong_dtype_on_one, "rank 1: result"),
    (list_on_one, "rank 1: result"),
    (half_precision, "differ"),
    (takes_the_maximum, "differ"),
    (a_lock, "came a lock|Lock"),
    (a_subclass, "Mine"),
    (needs_grad, "requires grad"),
]


@pytest.mark.parametrize("answer, says", WRONG, ids=lambda v: getattr(v, "__name__", ""))
def test_wrong(answer, says):
    import re

    text = " ".join(verdict_on(answer).split())
    assert re.search(says, text), text


# ------------------------------------------------------------------------------ failures together


def starts_and_never_waits(x):
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, async_op=True)
    return y


def receives_and_never_waits(x):
    rank, n = me()
    y = torch.zeros_like(x)
    if n > 1:
        received = dist.irecv(y, (rank - 1) % n)  # noqa: F841
        dist.isend(x.contiguous(), (rank + 1) % n).wait()
    return y


def sends_and_forgets(x):
    """gloo forgets a message whose handle is gone, unless it is already on its way."""
    rank, n = me()
    total = x.clone(memory_format=torch.contiguous_format)
    for other in range(n):
        if other != rank:
            dist.isend(x.contiguous(), other)
    for other in range(n):
        if other != rank:
            received = torch.empty_like(total)
            dist.recv(received, other)
            total += received
    return total


def all_send_first(x):
    rank, n = me()
    if n > 1:
        dist.send(x, (rank + 1) % n)
        dist.recv(x, (rank - 1) % n)
    return x


def one_waits_more(x):
    y = library(x)
    if dist.get_rank() == 1:
        dist.barrier()
    return y


def another_order(x):
    if dist.get_rank() == 1:
        dist.barrier()
        return library(x)
    y = library(x)
    dist.barrier()
    return y


def other_sizes(x):
    return library(x[:1] if dist.get_rank() == 1 else x)


def nobody_receives(x):
    if me() == (0, 2):
        dist.isend(x.contiguous(), 1)
    return library(x)


def raises_on_one(x):
    if dist.get_rank() == 1:
        raise KeyError("nothing here")
    return library(x)


def leaves(x):
    if dist.get_rank() == 1:
        os._exit(3)
    return library(x)


def kills_itself(x):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return library(x)


def leaves_politely(x):
    sys.exit("enough")


def uses_what_cannot_be_sent(x):
    with LOCK:
        return library(x)


LOCK = threading.Lock()

FAILING = [
    (starts_and_never_waits, "never waits for the all_reduce that it starts on rank 0"),
    (receives_and_never_waits, "never waits for the recv"),
    (sends_and_forgets, "never waits for the send that it starts on rank 0"),
    (all_send_first, "a deadlock: rank 0 waits in send to rank 1, rank 1 waits in send to rank 0"),
    (one_waits_more, "the ranks do not agree|waits in barrier"),
    (another_order, "as its 1st collective rank 0 calls all_reduce of 2 elements, float32, rank 1"),
    (other_sizes, "as its 1st collective rank 0 calls all_reduce of 2 elements, float32, rank 1"),
    (nobody_receives, "rank 0 sends 1 message to rank 1, which receives none"),
    (raises_on_one, "your code raised KeyError on rank 1: 'nothing here'"),
    (leaves, "rank 1 ended in the middle of it (exit code 3)"),
    (kills_itself, "rank 1 ended in the middle of it (killed by SIGKILL)"),
    (leaves_politely, "your code raised SystemExit on ranks 0 and 1: enough"),
    (uses_what_cannot_be_sent, "your code cannot be sent to the ranks"),
]


@pytest.mark.parametrize("answer, says", FAILING, ids=lambda v: getattr(v, "__name__", ""))
def test_failing(answer, says):
    text = " ".join(verdict_on(answer).split())
    assert any(part in text for part in says.split("|")), text
    verdict_on(library, outcome="passed")


def test_a_deadlock_names_the_line():
    text = verdict_on(all_send_first)
    assert "in all_send_first, ranks 0 and 1:  dist.send(x, (rank + 1) % n)" in text


def test_an_exception_names_the_line():
    assert 'in raises_on_one:  raise KeyError("nothing here")' in verdict_on(raises_on_one)


def test_an_endless_loop_ends():
    def loops(x):
        while dist.get_rank() == 1:
            x = x + 1
        return library(x)

    quick = copy.copy(plain)
    quick.limit_s = 1.5
    text = verdict_on(loops, quick)
    assert "rank 1 was still running when time was up: an endless loop?" in text
    assert "while dist.get_rank() == 1:" in text or "x = x + 1" in text
    verdict_on(library, outcome="passed")


# ------------------------------------------------------------------------------ what is left behind


def sets_the_environment(x):
    os.environ["TOKENS"] = "1"
    return library(x)


def sets_the_dtype(x):
    torch.set_default_dtype(torch.float64)
    return library(x)


def seeds(x):
    torch.manual_seed(0)
    return library(x)


def patches(x):
    dist.mine = True
    return library(x)


def ends_the_group(x):
    y = library(x)
    dist.destroy_process_group()
    return y


def leaves_a_thread(x):
    threading.Thread(target=time.sleep, args=(0.05,)).start()
    return library(x)


def leaves_a_process(x):
    subprocess.Popen(["sleep", "30"])
    return library(x)


LEAVING = [
    (sets_the_environment, "changed the environment (TOKENS) and left it so"),
    (sets_the_dtype, "set torch's default dtype to torch.float64 and left it so"),
    (seeds, "seeded torch's global generator with 0"),
    (patches, "changed torch.distributed.mine and left it so"),
    (ends_the_group, "destroyed a process group that it had not made"),
    (leaves_a_thread, "left a thread running"),
    (leaves_a_process, "left a process running"),
]


@pytest.mark.parametrize("answer, says", LEAVING, ids=lambda v: getattr(v, "__name__", ""))
def test_left_behind(answer, says):
    text = " ".join(verdict_on(answer).split())
    assert f"your code {says}" in text, text
    verdict_on(library, outcome="passed")


def test_what_a_rank_keeps_does_not_reach_the_next_case():
    class Counter:
        count = 0

    def counts(x):
        Counter.count += 1
        Counter.seen = [*getattr(Counter, "seen", []), x]
        return library(x) * Counter.count + 0 * len(Counter.seen)

    verdict_on(counts, outcome="passed")


# ------------------------------------------------------------------------------ costs


def complaint(answer, contract):
    complaint = broken(contract, answer, 5.0)
    return complaint and complaint.text


SENDS, PEAK = toys.ring.contracts


def test_the_ring_keeps_to_its_bytes():
    assert complaint(ref.ring_sum, SENDS) is None
    assert complaint(library, SENDS) is None


def gathers(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.stack(parts).sum(0)


def root_gets_all(x):
    """Nobody sends much, but rank 0 receives everything."""
    rank, n = me()
    parts = [torch.empty_like(x) for _ in range(n)] if rank == 0 else None
    dist.gather(x, parts, dst=0)
    total = torch.stack(parts).sum(0) if rank == 0 else x.clone()
    dist.broadcast(total, 0)
    return total


def twice(x):
    return (library(x) + library(x)) / 2


def through_files(x):
    rank, n = me()
    with open(f"/tmp/{os.getppid()}-{rank}", "wb") as file:
        file.write(x.numpy().tobytes())
    dist.barrier()
    total = torch.zeros_like(x)
    for other in range(n):
        data = Path(f"/tmp/{os.getppid()}-{other}").read_bytes()
        total += torch.frombuffer(bytearray(data), dtype=x.dtype)
    dist.barrier()
    os.remove(f"/tmp/{os.getppid()}-{rank}")
    return total


def through_saved_tensors(x):
    rank, n = me()
    torch.save(x, f"/tmp/{os.getppid()}-{rank}.pt")
    dist.barrier()
    total = sum(torch.load(f"/tmp/{os.getppid()}-{other}.pt") for other in range(n))
    dist.barrier()
    os.remove(f"/tmp/{os.getppid()}-{rank}.pt")
    return total


def through_the_store(x):
    rank, n = me()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"cheat-{rank}", x.numpy().tobytes())
    parts = [torch.frombuffer(bytearray(store.get(f"cheat-{r}")), dtype=x.dtype) for r in range(n)]
    dist.barrier()
    return torch.stack(parts).sum(0)


def through_the_backend(x):
    x = x.clone()
    group = dist.distributed_c10d._get_default_group()
    group._get_backend(torch.device("cpu")).allreduce([x]).wait()
    return x


def through_a_group_of_its_own(x):
    from datetime import timedelta

    rank, n = me()
    store = dist.PrefixStore("own", dist.distributed_c10d._get_default_store())
    group = dist.ProcessGroupGloo(store, rank, n, timedelta(seconds=5))
    x = x.clone()
    group.allreduce([x]).wait()
    return x


def through_shared_memory(x):
    from multiprocessing.shared_memory import SharedMemory

    rank, n = me()
    if rank == 0:
        memory = SharedMemory("course-cheat", create=True, size=n * x.nbytes)
    dist.barrier()
    if rank:
        memory = SharedMemory("course-cheat")
    memory.buf[rank * x.nbytes : (rank + 1) * x.nbytes] = x.numpy().tobytes()
    dist.barrier()
    flat = torch.frombuffer(bytearray(memory.buf), dtype=x.dtype)[: n * x.numel()]
    total = flat.view(n, *x.shape).sum(0)
    dist.barrier()
    memory.close()
    if rank == 0:
        memory.unlink()
    return total


def through_a_socket(x):
    import socket

    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
    return library(x)


def in_a_thread(x):
    found = []
    thread = threading.Thread(target=lambda: found.append(gathers(x)))
    thread.start()
    thread.join()
    return found[0]


COSTLY = [
    (gathers, "rank 0 of 3 sent 23.44 KiB; allowed: 15.62 KiB"),
    (as_objects, "rank 0 of 3 sent"),
    (root_gets_all, "rank 0 of 3 received 23.44 KiB; allowed: 15.62 KiB"),
    (in_batches, "rank 0 of 3 sent 23.44 KiB; allowed: 15.62 KiB"),
    (twice, "sent 31.25 KiB"),
    (by_functional, None),
    (through_files, "your code writes to a file, on rank 0"),
    (through_saved_tensors, "your code writes to a file, on rank 0"),
    (through_the_store, "your code passes values through a store, on rank 0"),
    (through_the_backend, "your code calls a backend's own methods, which go around"),
    (through_a_group_of_its_own, "your code calls a backend's own methods, which go around"),
    (through_shared_memory, "your code maps memory that other processes may share, on rank"),
    (through_a_socket, "your code opens a socket of its own, on rank 0"),
    (in_a_thread, "works in another thread, where nothing can be counted, on rank"),
]


@pytest.mark.parametrize("answer, says", COSTLY, ids=lambda v: getattr(v, "__name__", ""))
def test_costs(answer, says):
    found = complaint(answer, SENDS)
    assert found is None if says is None else says in str(found), found


def test_the_peak_on_a_rank():
    assert "held at once" in complaint(gathers, PEAK)
    assert complaint(ref.ring_sum, PEAK) is None


def test_a_failing_verdict_names_the_bytes():
    verdict = grade(toys.ring, gathers)
    assert verdict.failed_rung == "contracts"
    assert "2(n-1)/n of the bytes — rank 0 of 3 sent 23.44 KiB; allowed: 15.62 KiB" in " ".join(
        str(verdict).split()
    )
    assert verdict.diagnosis == "Each rank gathers every rank's tensor and adds them up itself."


def test_contracts_need_cases_on_ranks():
    with pytest.raises(ValueError, match="cases made by on_ranks"):
        contracts.sends([call(torch.ones(2))], limit=1)


# ------------------------------------------------------------------------------ no rank, no pass


def test_no_rank_is_an_error():
    with pytest.raises(ValueError, match="at least one rank"):
        on_ranks()


def test_a_case_without_ranks_is_an_error_and_never_a_pass():
    exercise = Exercise(library, "t", 1, 1, 1, key="toys.none", probe=probes.on_ranks)
    exercise.edge(lambda: iter([call(torch.ones(2))]))
    with pytest.raises(RuntimeError, match="runs on no rank"):
        grade(exercise, library)


def test_a_reference_that_deadlocks_is_an_error_and_never_a_pass():
    exercise = Exercise(all_send_first, "t", 1, 1, 1, key="toys.dead", probe=probes.on_ranks)
    exercise.edge(lambda: iter([on_ranks((torch.ones(2),), (torch.ones(2),))]))
    with pytest.raises(RuntimeError, match="a deadlock"):
        grade(exercise, all_send_first)


def shows_nothing_on_one(subject, case, rank):
    return {"result": 1} if rank == 0 else {}


def test_a_rank_that_shows_nothing_is_an_error():
    case = on_ranks((1,), (1,))
    with pytest.raises(Exception, match="not every rank"):
        run_on_ranks(library, case, shows_nothing_on_one)


def test_as_many_results_by_hand_as_ranks():
    exercise = Exercise(library, "t", 1, 1, 1, key="toys.hands", probe=probes.on_ranks)
    x = torch.ones(1)
    exercise.by_hand(lambda: iter([(on_ranks((x,), (x,)), [x + x])]))
    with pytest.raises(AssertionError, match="1 results by hand for 2 ranks"):
        grade(exercise, library)


# ------------------------------------------------------------------------------ gradients, models


def differentiable(x):
    return torch.distributed.nn.functional.all_reduce(x)


def cut(x):
    return library(x.detach())


def test_gradients_flow_through_ranks():
    exercise = Exercise(
        differentiable, "t", 1, 1, 1, key="toys.grad", probe=probes.on_ranks, gradients=("x",)
    )
    x = torch.ones(3)
    exercise.by_hand(lambda: iter([(on_ranks((x,), (2 * x,)), [3 * x, 3 * x])]))
    assert exercise.gradient_cases([])
    assert grade(exercise, differentiable).outcome == "passed"
    assert grade(exercise, cut).outcome == "failed"


def wrap(module):
    """DistributedDataParallel, by its own name."""
    return torch.nn.parallel.DistributedDataParallel(module)


class ByHand(torch.nn.Module):
    """Parameters from rank 0; a collective for each gradient, in the order of the parameters."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        for value in module.state_dict().values():
            dist.broadcast(value, 0)

    def forward(self, x):
        return self.module(x)

    def finish(self):
        for p in self.module.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


class NoBroadcast(ByHand):
    def __init__(self, module):
        torch.nn.Module.__init__(self)
        self.module = module


def test_models_on_ranks():
    exercise = Exercise(wrap, "t", 1, 1, 1, key="toys.ddp", probe=probes.module_on_ranks)

    @exercise.edge
    def _():
        for world in 1, 2, 3:
            inputs = [call(torch.randn(4, 5), torch.randn(4, 5), seed=r) for r in range(world)]
            yield on_ranks(*inputs, model="mlp")

    assert grade(exercise, wrap).outcome == "passed"
    assert grade(exercise, lambda module: ByHand(module)).outcome == "passed"
    assert grade(exercise, lambda module: NoBroadcast(module)).outcome == "failed"
    large = on_ranks(*[call(torch.ones(4, 5), seed=1)] * 2, model="mlp")
    # DistributedDataParallel sends one bucket after two broadcasts and two comparisons of shapes
    bucketed = contracts.collectives([large], limit=5, probe=probes.module_on_ranks)
    assert broken(bucketed, wrap, 5.0) is None
    assert (
        "called collectives (all_reduce × 6, broadcast × 6): 12"
        in broken(bucketed, ByHand, 5.0).text
    )


# ------------------------------------------------------------------------------ agreement


def entry(name, **changes):
    return {
        "name": name, "sent": 8, "received": 8, "messages": 1, "ranks": (0, 1), "peer": -1,
        "tag": 0, "numel": 2, "dtype": "float32", "group": "0",
    } | changes  # fmt: skip


def test_ranks_that_agree():
    logs = {
        0: [entry("all_reduce"), entry("send", peer=1)],
        1: [entry("all_reduce"), entry("recv", peer=0)],
    }
    assert disagreement(logs, finished=True) is None
    ahead = {0: [entry("all_reduce")], 1: []}
    assert disagreement(ahead, finished=False) is None
    assert "rank 0 calls all_reduce of 2 elements, float32, rank 1 does not" in disagreement(
        ahead, finished=True
    )


def test_roots_and_sizes_must_agree():
    roots = {0: [entry("broadcast", peer=0)], 1: [entry("broadcast", peer=1)]}
    assert "root 0, rank 1 broadcast" in disagreement(roots, finished=False)
    sizes = {0: [entry("send", peer=1, sent=12)], 1: [entry("recv", peer=0)]}
    assert disagreement(sizes, False) == "rank 0 sends 12 B where rank 1 receives 8 B"


# ------------------------------------------------------------------------------ in a notebook


def test_an_answer_with_helpers_from_other_cells(notebook, monkeypatch):
    from course_utils.grading.declaring import registry

    monkeypatch.setattr(registry, "_extra", {toy.key: toy for toy in toys.TOYS})
    notebook.run(
        "import torch.distributed as dist\nscale = 1\ndef copy_of(x):\n    return x.clone() * scale"
    )
    shown = notebook.run(
        '@exercise("toys.average_gradients")\n'
        "def average_gradients(grads):\n"
        "    flat = torch.cat([copy_of(g).flatten() for g in grads])\n"
        "    dist.all_reduce(flat)\n"
        "    flat /= dist.get_world_size()\n"
        "    sizes = [g.numel() for g in grads]\n"
        "    return [p.view(g.shape) for p, g in zip(flat.split(sizes), grads)]"
    )
    assert "✓ average_gradients" in shown, shown
    shown = notebook.run(
        '@exercise("toys.average_gradients")\n'
        "def average_gradients(grads):\n"
        "    if dist.get_rank():\n"
        "        dist.recv(grads[0], 0)\n"
        "    return grads"
    )
    assert "rank 1 waits in recv from rank 0; rank 0 has returned" in " ".join(shown.split())
    assert "line 4 in average_gradients, rank 1:  dist.recv(grads[0], 0)" in shown


# ------------------------------------------------------------------------------ nothing stays


def test_no_process_outlives_the_one_that_checks(tmp_path):
    script = tmp_path / "checks.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        sys.path[:0] = [sys.argv[1]]
        import psutil, toys_on_ranks as toys
        from course_utils.grading import grade
        assert grade(toys.average, *toys.average.parts).outcome == "passed"
        print(*[p.pid for p in psutil.Process().children(recursive=True)])
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script), str(Path(__file__).parent)],
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) > 2
    end = time.monotonic() + 120
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in pids)
