"""Chapter 15's functions against the profiler, Dynamo, the library, and counts by hand."""

import logging
import math
import random
import statistics

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.profiler import ProfilerActivity, profile

from course_utils.meters import SimulatedDevice
from course_utils.reference import attention
from course_utils.reference.caching_allocator import quiet_stderr
from course_utils.reference.profiling_and_compile import (
    benchmark,
    count_kernels,
    exposed_time,
    median_interval,
    merge_statistics,
    online_softmax,
    pointwise_bytes,
    recompiles,
    remove_graph_break,
    self_times,
    tiled_matmul,
)


def test_self_times_are_the_profilers():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    x = torch.randn(2, 5, 16)
    with quiet_stderr(), profile(activities=[ProfilerActivity.CPU]) as run:
        layer(x).sum().backward()
    spans = [(e.name, e.time_range.start, e.time_range.end) for e in run.events()]
    theirs = {row.key: row.self_cpu_time_total for row in run.key_averages()}
    own = self_times(spans)
    assert own.keys() == theirs.keys()
    for name, spent in own.items():
        assert spent == pytest.approx(theirs[name], rel=1e-3, abs=1.0), name


def test_self_times_add_up_to_the_outermost_spans():
    spans = [("f", 0.0, 10.0), ("g", 1.0, 4.0), ("f", 2.0, 3.0), ("h", 12.0, 15.0)]
    assert sum(self_times(spans).values()) == 13.0


def test_a_benchmark_of_a_real_function_calls_it_so_often():
    calls = []
    times = benchmark(lambda: calls.append(1), warmup=2, repeats=5)
    assert len(calls) == 7 and len(times) == 5
    assert all(t >= 0 for t in times)


def test_what_was_queued_before_is_nobodys_time():
    device = SimulatedDevice(launch_s=0.25)
    device.launch(100.0)
    times = benchmark(
        lambda: device.launch(2.0),
        warmup=1,
        repeats=3,
        synchronize=device.synchronize,
        clock=device.clock,
    )
    assert times == [2.25, 2.25, 2.25]


@pytest.mark.parametrize("n", [6, 9, 20, 51])
def test_the_interval_holds_the_median_as_often_as_it_says(n):
    chance, held = random.Random(n), 0
    for _ in range(2000):
        _, low, high = median_interval([chance.expovariate(1.0) for _ in range(n)])
        held += low <= math.log(2) <= high
    outside = 1 - held / 2000
    assert outside < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_the_interval_is_as_narrow_as_it_may_be():
    times = [float(i) for i in range(1, 21)]
    _, low, high = median_interval(times)
    assert (low, high) == (
        6.0,
        15.0,
    )  # one place further in: 2 · P(at most 6 heads of 20) is 11.5 %
    assert 2 * sum(math.comb(20, i) for i in range(6)) / 2**20 <= 0.05
    assert 2 * sum(math.comb(20, i) for i in range(7)) / 2**20 > 0.05


def test_five_times_are_too_few():
    with pytest.raises(ValueError, match="too few"):
        median_interval([1.0] * 5)
    assert median_interval([1.0] * 6) == (1.0, 1.0, 1.0)


def test_exposed_and_hidden_add_up():
    chance = random.Random(0)
    for _ in range(50):
        one, other = (
            [
                (float(s), float(s + chance.randint(0, 9)))
                for s in (chance.randint(0, 30) for _ in range(5))
            ]
            for _ in range(2)
        )
        ticks = [t + 0.5 for t in range(40)]

        def runs(kernels, t):
            return any(s < t < e for s, e in kernels)

        by_ticks = sum(runs(one, t) and not runs(other, t) for t in ticks)
        assert exposed_time(one, other) == by_ticks


def test_kernels_of_a_device_that_is_behind():
    device = SimulatedDevice()
    with device.annotation("forward"):
        device.launch(1e-3, "gemm")
        device.launch(1e-3, "gemm")
    with device.annotation("backward"):
        device.launch_graph([("gelu", 1e-3)] * 3)
    assert count_kernels(device.trace(), "forward") == {"gemm": 2}
    assert count_kernels(device.trace(), "backward") == {"gelu": 3}


def test_bytes_of_a_chain():
    program = [("h", ("x", "b")), ("s", ("h", "h")), ("y", ("h", "s"))]
    sizes = {"x": 400, "b": 4, "h": 400, "s": 400, "y": 400}
    assert pointwise_bytes(program, ["y"], sizes) == (804 + 800 + 1200, 404 + 400)


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_an_update_is_clipped_as_torch_does(scale):
    update = scale * torch.randn(7, 5)
    clipped, norm = remove_graph_break(update, 2.0)
    torch.testing.assert_close(norm, torch.linalg.vector_norm(update))
    parameter = torch.nn.Parameter(torch.zeros(7, 5))
    parameter.grad = update.clone()
    torch.nn.utils.clip_grad_norm_([parameter], 2.0)
    torch.testing.assert_close(clipped, parameter.grad, rtol=1e-5, atol=1e-6)


def by_dynamo(shapes, dynamic, limit):
    torch._dynamo.reset()
    counter, compiles = CompileCounter(), []
    function = torch.compile(lambda x: x * 2 + 1, backend=counter, dynamic=dynamic)
    with torch._dynamo.config.patch(recompile_limit=limit):
        for shape in shapes:
            before = counter.frame_count
            function(torch.zeros(shape))
            compiles.append(counter.frame_count > before)
    return compiles


def test_dynamo_compiles_in_the_same_calls(monkeypatch):
    monkeypatch.setattr(logging.getLogger("torch._dynamo"), "disabled", True)
    monkeypatch.setattr(logging.getLogger("torch._dynamo.convert_frame"), "disabled", True)
    chance = random.Random(0)
    for _ in range(40):
        rank, pool = chance.choice((1, 2, 3)), chance.choice(((2, 3, 4, 5), (0, 1, 2, 3)))
        shapes = [
            tuple(chance.choice(pool) for _ in range(rank)) for _ in range(chance.randint(1, 8))
        ]
        dynamic, limit = chance.choice((None, None, False)), chance.choice((8, 3))
        ours = recompiles(shapes, dynamic=dynamic, limit=limit)
        assert ours == by_dynamo(shapes, dynamic, limit), (shapes, dynamic, limit)


@pytest.mark.parametrize("block", [1, 5, 64])
def test_statistics_give_softmax_and_chapter_22s_state(block):
    scores, values = 5 * torch.randn(3, 40), torch.randn(40, 4)
    maximum, total = online_softmax(scores, block)
    torch.testing.assert_close(
        (scores - maximum[:, None]).exp() / total[:, None], scores.softmax(-1)
    )
    start = torch.full((3,), -math.inf), torch.zeros(3), torch.zeros(3, 4)
    state = attention.online_softmax(*start, scores, values)
    torch.testing.assert_close(state[:2], (maximum, total))


def test_a_merge_is_associative_and_has_an_identity():
    parts = [online_softmax(9 * torch.randn(4, n), 3) for n in (1, 6, 20)]
    left = merge_statistics(merge_statistics(parts[0], parts[1]), parts[2])
    right = merge_statistics(parts[0], merge_statistics(parts[1], parts[2]))
    torch.testing.assert_close(left, right)
    torch.testing.assert_close(merge_statistics(parts[1], parts[0]), merge_statistics(*parts[:2]))
    nothing = torch.full((4,), -math.inf), torch.zeros(4)
    torch.testing.assert_close(merge_statistics(nothing, parts[0]), parts[0])
    assert all(not x.isnan().any() for x in merge_statistics(nothing, nothing))


def test_what_tiles_read_has_a_formula():
    a, b = torch.randn(12, 20), torch.randn(20, 30)
    c, read = tiled_matmul(a, b, 4, 5, 7)
    torch.testing.assert_close(c, a @ b, rtol=1e-5, atol=1e-5)
    assert read == 12 * 20 * (30 // 5) + 20 * 30 * (12 // 4)
    assert statistics.mean([tiled_matmul(a, b, 12, 30, k)[1] for k in (1, 20)]) == 12 * 20 + 20 * 30
