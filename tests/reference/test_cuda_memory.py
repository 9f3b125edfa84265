"""Chapter 14's references against PyTorch itself, and answers that its exercises must tell apart."""

import copy
import gc
import inspect
import itertools
import math
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from course_utils.figures.cuda_memory import draw_timeline
from course_utils.grading import find, grade
from course_utils.grading.probes import checkpointed
from course_utils.grading.pytrees.tree import same
from course_utils.meters import measure
from course_utils.reference.caching_allocator import CudaAllocator, recorded_requests
from course_utils.reference.cuda_memory import (
    CheckpointedBlock,
    MemoryTrace,
    bytes_by_tenant,
    checkpoint,
    checkpoint_every_sqrt,
    find_leak,
    largest_batch,
    peak_memory,
    play,
    step_in_backward,
    traced_step,
    training_step_timeline,
)
from course_utils.reference.gpt2 import GPT2, GPT2Config, Parts, next_token_loss

theirs = partial(torch_checkpoint, use_reentrant=False)


def config(n_layer=4):
    return GPT2Config(
        vocab_size=256, n_positions=32, n_embd=64, n_layer=n_layer, n_head=4, dropout=0.0
    )


def decoder(n_layer=4, parts=Parts()):
    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (2, 33))
    model = GPT2(config(n_layer), parts)
    return model, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


# ------------------------------------------------------------------------------ traces


def test_a_trace_and_the_meter_see_the_same():
    model, ids, targets = decoder()
    with measure() as cost, MemoryTrace() as trace:
        next_token_loss(model(ids), targets).backward()
    assert peak_memory(trace.entries)[0] == cost.bytes_peak
    made = sum(e["size"] for e in trace.entries if e["action"] == "alloc")
    assert made == cost.bytes_allocated
    assert trace.live == sum(p.grad.nbytes for p in model.parameters())


def test_fake_and_meta_tensors_leave_the_same_trace_as_real_ones():
    def sizes(mode):
        with mode:
            model, ids = GPT2(config(n_layer=2)), torch.zeros(2, 32, dtype=torch.long)
            with MemoryTrace() as trace:
                next_token_loss(model(ids), ids).backward()
        return [(e["action"], e["size"]) for e in trace.entries]

    assert sizes(FakeTensorMode()) == sizes(torch.device("cpu"))
    assert peak_of(sizes(torch.device("meta"))) > peak_of(sizes(torch.device("cpu")))


def peak_of(sizes):
    now = most = 0
    for action, size in sizes:
        now += {"alloc": size, "free_completed": -size}.get(action, 0)
        most = max(most, now)
    return most


def test_tenants_add_up_and_go():
    model, ids, targets = decoder()
    optimizer = torch.optim.AdamW(model.parameters())
    with traced_step(model, optimizer) as trace:
        loss = next_token_loss(model(ids), targets)
        trace.mark("forward")
        loss.backward()
        trace.mark("backward")
        optimizer.step()
        del loss
        trace.mark("step")
        optimizer.zero_grad()
        trace.mark("zero_grad")
    lines = bytes_by_tenant(trace.entries)
    at = {e["name"]: i for i, e in enumerate(trace.entries) if e["action"] == "snapshot"}
    size = sum(p.nbytes for p in model.parameters())
    state = sum(t.nbytes for s in optimizer.state.values() for t in s.values())
    assert lines["gradients"][at["backward"]] == lines["gradients"][at["step"]] == size
    assert lines["gradients"][at["zero_grad"]] == lines["activations"][at["backward"]] == 0
    assert lines["optimizer state"][at["step"]] == state
    assert max(map(sum, zip(*lines.values(), strict=True))) == peak_memory(trace.entries)[0]
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_the_profiler_sees_what_a_trace_sees_but_for_gradients_added_in_place():
    model, ids, targets = decoder()

    def step():
        next_token_loss(model(ids), targets).backward()
        model.zero_grad()

    step()
    with MemoryTrace() as trace:
        step()
    made = sorted(e["size"] for e in trace.entries if e["action"] == "alloc" and e["size"])
    asked = sorted(size for action, _, *rest in recorded_requests(step) for size in rest)
    residual = 2 * 32 * 64 * 4
    for size in set(made) - {residual}:
        assert asked.count(size) >= made.count(size), size
    # Where two gradients meet, autograd adds in place, but not while a dispatch mode watches.
    assert made.count(residual) - asked.count(residual) == 2 * model.config.n_layer


def test_a_trace_can_be_played_to_an_allocator_and_comes_back_in_its_snapshot():
    model, ids, targets = decoder()
    with MemoryTrace() as trace:
        next_token_loss(model(ids), targets).backward()
    allocator = CudaAllocator(2**30)
    play(trace.entries, allocator)
    again = allocator.snapshot()["device_traces"][0]
    assert peak_memory(again)[0] == peak_memory(trace.entries)[0]
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        play(trace.entries, CudaAllocator(2**20))


def test_tenants_of_a_trace_that_reuses_addresses_and_begins_in_the_middle():
    trace = [
        {"action": "free_completed", "addr": 9, "size": 5},
        {"action": "alloc", "addr": 1, "size": 4, "tenant": "gradients"},
        {"action": "free_completed", "addr": 1, "size": 4},
        {"action": "alloc", "addr": 1, "size": 6},
        {"action": "snapshot"},
    ]
    assert bytes_by_tenant(trace) == {"gradients": [0, 4, 0, 0, 0], "temporary": [0, 0, 0, 6, 6]}
    draw_timeline(trace, {"parameters": 8})


def test_find_leak_reads_a_real_trace():
    kept = []
    with MemoryTrace() as trace:
        for _ in range(3):
            line = inspect.currentframe().f_lineno + 1
            kept.append(torch.ones(8))
            torch.zeros(100)
            trace.mark()
    assert find_leak(trace.entries) == [(f"{__file__}:{line}", 64)]


# ------------------------------------------------------------------------------ the timeline


def test_the_timeline_is_what_a_dispatch_mode_sees():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    x, target = torch.randn(5, 8), torch.randn(5, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    rows = training_step_timeline(copy.deepcopy(model), optimizer, F.mse_loss, x, target)
    with MemoryTrace() as trace:
        loss = F.mse_loss(model(x), target)
        after = trace.live - loss.untyped_storage().nbytes()
        del loss
    (row,) = [row for row in rows if row[0] == "loss"]
    assert row[4] == after + x.nbytes + target.nbytes  # which were there before


# ------------------------------------------------------------------------------ recomputation


def test_checkpoint_is_torchs_on_every_case_of_the_exercise():
    cases = find("cuda_memory.checkpoint").all_cases(seed=7)
    assert len(cases) > 20
    for case in cases:
        seen = []
        for way in (checkpoint, theirs):
            torch.manual_seed(3)
            seen.append(checkpointed(way, case.fresh()))
        assert same(*seen), case


@pytest.mark.parametrize("n_layer", [1, 3])
def test_checkpointed_blocks_have_torchs_gradients_and_saved_bytes(n_layer):
    def run(way):
        parts = Parts(block=partial(CheckpointedBlock, through=way)) if way else Parts()
        model, ids, targets = decoder(n_layer, parts)
        with measure(parameters=False) as cost:
            loss = next_token_loss(model(ids), targets)
            saved = cost.bytes_saved
            loss.backward()
        return saved, cost, [p.grad for p in model.parameters()]

    (none, plain, want), (ours, cost, got), (library, lib_cost, lib) = map(
        run, (None, checkpoint, theirs)
    )
    assert same(got, want) and same(lib, want)
    assert ours == library < none
    assert plain.flops < lib_cost.flops < cost.flops  # the library stops early


def test_nested_checkpoints_keep_only_the_outermost_argument():
    w = torch.randn(16, 16, requires_grad=True)
    inside = []

    def inner(x):
        inside.append(weakref.ref(x))
        return (x @ w).tanh()

    def outer(x, again):
        for _ in range(3):
            x = again(inner, x.sin())
        return x

    for again in (checkpoint, theirs):
        inside.clear()
        x = torch.randn(4, 16, requires_grad=True)
        out = again(outer, x, again)
        gc.collect()
        assert [ref() for ref in inside] == [None, None, None]
        out.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_checkpoint_under_autocast_has_torchs_gradients(dtype):
    """Backward runs outside of autocast, twice over the same graph."""

    def gradients(again):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Dropout(0.3), nn.Linear(6, 6))
        x = torch.randn(4, 6, requires_grad=True)
        with torch.autocast("cpu", dtype):
            y = again(layers, again(layers, x)) if again else layers(layers(x))
        assert y.dtype == dtype
        y.float().square().sum().backward(retain_graph=True)
        y.float().square().sum().backward()
        return [x.grad, *(p.grad for p in layers.parameters())]

    mine, torchs, plain = map(gradients, (checkpoint, theirs, None))
    assert all(map(torch.equal, mine, torchs)) and all(map(torch.equal, mine, plain))


def test_checkpoint_leaves_nothing_behind():
    dead = []

    def once():
        x = torch.randn(4, 4, requires_grad=True)
        dead.append(weakref.ref(x))
        checkpoint(lambda x: x.tanh().exp(), x).sum().backward()

    once()
    assert dead[0]() is None


@pytest.mark.parametrize("n", [1, 2, 9, 10, 16])
def test_every_sqrt_gives_what_the_layers_give(n):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Tanh()) for _ in range(n)]
    x = torch.randn(3, 4, requires_grad=True)
    found = []
    for run in (lambda ls, x: nn.Sequential(*ls)(x), checkpoint_every_sqrt):
        torch.manual_seed(1)
        run(layers, x).sum().backward()
        found.append([p.grad.clone() for layer in layers for p in layer.parameters()])
        for layer in layers:
            layer.zero_grad()
    assert same(*found)


def test_stepping_in_backward_gives_the_same_weights():
    def train(in_backward):
        model, ids, targets = decoder(n_layer=2)
        if in_backward:
            optimizer = None
            made = step_in_backward(model, torch.optim.AdamW)
            assert set(made) == {name for name, _ in model.named_parameters()}
        else:
            optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            next_token_loss(model(ids), targets).backward()
            if optimizer:
                optimizer.step()
                optimizer.zero_grad()
        assert all(p.grad is None for p in model.parameters())
        return [p.detach() for p in model.parameters()]

    assert same(train(True), train(False))


# ------------------------------------------------------------------------------ answers


def rejected(key, answer):
    return grade(find(f"cuda_memory.{key}"), answer).outcome == "failed"


def test_wrong_answers_that_no_mistake_declares_are_rejected():
    def peak_of_requests(trace):  # frees by size, not by address
        now = most = 0
        alive, best = [], []
        for e in trace:
            if e["action"] == "alloc":
                alive.append(e["addr"])
                now += e["size"]
            elif e["action"] == "free_completed":
                now -= e["size"] if e["addr"] in alive else 0
                alive = [a for a in alive if a != e["addr"]]
            if now >= most and e["action"] == "alloc":
                most, best = now, list(alive)
        return most, best

    def sorted_blocks(trace):
        most, blocks = peak_memory(trace)
        return most, sorted(blocks)

    assert rejected("peak_memory", peak_of_requests)
    assert rejected("peak_memory", sorted_blocks)

    def with_other_rows(change):
        def run(*args):
            return [change(row) for row in training_step_timeline(*args)]

        return run

    assert rejected("training_step_timeline", with_other_rows(lambda r: (*r[:4], max(r[4] - 4, 0))))
    assert rejected(
        "training_step_timeline",
        with_other_rows(lambda r: r if r[0] != "step" else (*r[:2], 0, *r[3:])),
    )

    def whole_stack(layers, x):  # the right cost for perfect squares only: one more segment
        size = int(len(layers) ** 0.5)
        for i in range(0, size * size, max(size, 1)):
            x = checkpoint(nn.Sequential(*layers[i : i + size]), x)
        return x

    def no_checkpoint(layers, x):
        for layer in layers:
            x = layer(x)
        return x

    assert rejected("checkpoint_every_sqrt", whole_stack)
    assert rejected("checkpoint_every_sqrt", no_checkpoint)

    def never_shrinks(trace):  # forgets that a place may grow by zero
        return [leak for leak in find_leak(trace) if leak[1] > 8]

    def by_name(trace):
        return sorted(find_leak(trace))

    assert rejected("find_leak", never_shrinks)
    assert rejected("find_leak", by_name)

    def powers_then_linear(step, limit=1024):
        good = 0
        for batch in itertools.chain((1, 2, 4, 8, 16, 32), range(33, limit + 1)):
            if batch > limit:
                break
            try:
                step(batch)
            except torch.OutOfMemoryError:
                break
            good = batch
        return good

    def swallow(step, limit=1024):
        try:
            return largest_batch(step, limit)
        except RuntimeError:
            return 0

    assert rejected("largest_batch", powers_then_linear)
    assert rejected("largest_batch", swallow)


def test_wrong_checkpoints_that_no_mistake_declares_are_rejected():
    def by_seed(function, *args, **kwargs):  # the same numbers twice, but not those of a plain run
        def seeded(*args, **kwargs):
            torch.manual_seed(5)
            return function(*args, **kwargs)

        return theirs(seeded, *args, **kwargs)

    def without_keywords(function, *args, **kwargs):
        return theirs(lambda *a: function(*a), *args)

    def offloaded(function, *args, **kwargs):  # keeps everything, elsewhere
        with torch.autograd.graph.save_on_cpu():
            return function(*args, **kwargs)

    for wrong in (by_seed, without_keywords, offloaded):
        assert rejected("checkpoint", wrong)


class Ticket:
    """Stands for a saved tensor."""

    def __init__(self, segment, number):
        self.segment, self.number = segment, number


class Segment(torch.autograd.graph.saved_tensors_hooks):
    """A right answer in another style: objects instead of closures."""

    def __init__(self, function, kwargs, state):
        super().__init__(self.pack, self.unpack)
        self.function, self.kwargs, self.state = function, kwargs, state
        enabled = torch.is_autocast_enabled("cpu")
        self.autocast = torch.autocast("cpu", torch.get_autocast_dtype("cpu"), enabled)
        self.count, self.cache, self.node, self.rest = 0, {}, None, []

    def pack(self, t):
        self.count += 1
        return Ticket(self, self.count - 1)

    @staticmethod
    def unpack(ticket):
        segment = ticket.segment
        if ticket.number not in segment.cache:
            segment.run_again()
        return segment.cache.pop(ticket.number)

    def run_again(self):
        order, saved = itertools.count(), iter(self.node.saved_tensors)
        args = [next(saved) if a is Ticket else a for a in self.rest]
        now = torch.get_rng_state()
        torch.set_rng_state(self.state)
        with (
            torch.enable_grad(),
            self.autocast,
            torch.autograd.graph.saved_tensors_hooks(
                lambda t: self.cache.__setitem__(next(order), t.detach()), lambda _: None
            ),
        ):
            self.function(*args, **self.kwargs)
        torch.set_rng_state(now)


class Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, flag, *tensors):
        ctx.save_for_backward(*tensors)
        return flag.clone()

    @staticmethod
    def backward(ctx, grad):
        return (None,) * (1 + len(ctx.saved_tensors))


def test_right_answers_in_other_styles_pass():
    def with_objects(function, *args, **kwargs):
        segment = Segment(function, kwargs, torch.get_rng_state())
        flag = torch.zeros(1, requires_grad=True)
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        segment.node = Keeping.apply(flag, *tensors).grad_fn
        segment.rest = [Ticket if isinstance(a, torch.Tensor) else a for a in args]
        if segment.node is None:
            return function(*args, **kwargs)
        with segment:
            return function(*args, **kwargs)

    verdict = grade(find("cuda_memory.checkpoint"), with_objects)
    assert verdict.outcome == "passed", verdict

    def recursive(step, limit=1024):
        def search(low, high):
            if low >= high:
                return low
            middle = -(-(low + high) // 2)
            good = True
            try:
                step(middle)
            except torch.OutOfMemoryError:
                good = False
            return search(middle, high) if good else search(low, middle - 1)

        return search(0, limit)

    def doubling(step, limit=1024):
        def runs(batch):
            try:
                step(batch)
            except torch.OutOfMemoryError:
                return False
            return True

        if limit < 1 or not runs(1):
            return 0
        good = 1
        while 2 * good <= limit and runs(2 * good):
            good *= 2
        bad = min(2 * good, limit + 1)
        while bad - good > 1:
            middle = good + (bad - good) // 2
            if runs(middle):
                good = middle
            else:
                bad = middle
        return good

    for answer in (recursive, doubling):
        verdict = grade(find("cuda_memory.largest_batch"), answer)
        assert verdict.outcome == "passed", verdict

    def of_isqrt_layers(layers, x):
        size = max(math.isqrt(len(layers)), 1)

        def from_(start, x):
            if start >= len(layers):
                return x

            def segment(x):
                for layer in layers[start : start + size]:
                    x = layer(x)
                return x

            return from_(start + size, theirs(segment, x))

        return from_(0, x)

    verdict = grade(find("cuda_memory.checkpoint_every_sqrt"), of_isqrt_layers)
    assert verdict.outcome == "passed", verdict

    def with_a_list(trace):
        totals, taken, best = 0, [], (0, [])
        for e in trace:
            match e:
                case {"action": "alloc", "addr": addr, "size": size}:
                    taken.append((addr, size))
                    totals += size
                    if totals > best[0]:
                        best = totals, [a for a, _ in taken]
                case {"action": "free_completed", "addr": addr}:
                    totals -= sum(s for a, s in taken if a == addr)
                    taken = [(a, s) for a, s in taken if a != addr]
        return best

    verdict = grade(find("cuda_memory.peak_memory"), with_a_list)
    assert verdict.outcome == "passed", verdict
