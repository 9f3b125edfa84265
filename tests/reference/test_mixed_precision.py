"""Chapter 13's references against PyTorch itself."""

import itertools

import pytest
import torch

from course_utils.grading import call, find
from course_utils.grading.probes import scaler_run
from course_utils.grading.pytrees.tree import same
from course_utils.reference.mixed_precision import (
    OPERATIONS,
    GradScaler,
    autocast_dtype,
    bf16_master_step,
    fp8_scaled_matmul,
    power_of_two_scale,
    run_under_autocast,
)

HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_the_table_is_what_torch_does(op, device):
    """On the CPU by running it, for CUDA through torch's own rules on fake tensors."""
    n = OPERATIONS[op].__code__.co_argcount
    for low in HALVES:
        for inputs in [
            *itertools.product((torch.float32, low), repeat=n),
            (torch.float64,) * n,
        ]:
            got = run_under_autocast(op, inputs, low, device)
            assert autocast_dtype(op, inputs, low, device) == got, (inputs, low)


def test_asking_about_cuda_leaves_autocast_as_it_was():
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with pytest.raises(KeyError):
        run_under_autocast("no such operation", (torch.float32,), torch.bfloat16, "cuda")
    run_under_autocast("linear", (torch.float32,) * 2, torch.bfloat16, "cuda")
    assert (torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")) == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("op", OPERATIONS)
def test_fake_tensors_say_what_a_gpu_does(op):
    n = OPERATIONS[op].__code__.co_argcount
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [torch.ones(4, 4, dtype=dtype, device="cuda") for _ in range(n)]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            real = OPERATIONS[op](*inputs).dtype
        assert run_under_autocast(op, (dtype,) * n, torch.bfloat16, "cuda") == real


def torch_scaler(**settings):
    return torch.amp.GradScaler("cpu", **settings)


def test_the_scaler_is_torchs_on_every_case_of_the_exercise():
    cases = find("mixed_precision.GradScaler").all_cases(seed=7)
    assert len(cases) > 20
    for case in cases:
        assert same(scaler_run(GradScaler, case.fresh()), scaler_run(torch_scaler, case.fresh()))


def test_the_scaler_is_torchs_over_a_long_run_with_injected_overflows():
    generator = torch.Generator().manual_seed(0)
    steps = []
    for i in range(400):
        g = torch.randn(5, generator=generator) * 2.0 ** torch.randint(
            -20, 6, (), generator=generator
        )
        if i % 37 == 5:
            g[i % 5] = float("inf") if i % 2 else float("nan")
        steps.append({"grads": [[g], [g[:2] * 3]], "fp16": True, "explicit": i % 3 == 0})
    start = [[torch.ones(5)], [torch.ones(2)]]
    case = call(start, *steps, growth_interval=11)
    mine, theirs = scaler_run(GradScaler, case.fresh()), scaler_run(torch_scaler, case.fresh())
    assert same(mine, theirs)
    scales = [v for k, v in theirs.items() if k.endswith("scale afterwards")]
    ups = sum(b > a for a, b in itertools.pairwise(scales))
    downs = sum(b < a for a, b in itertools.pairwise(scales))
    assert ups > 10 and downs > 10


def test_the_state_is_torchs():
    mine, theirs = GradScaler(growth_interval=3), torch_scaler(growth_interval=3)
    assert mine.state_dict() == theirs.state_dict()


def test_two_implementations_load_each_others_state():
    theirs = torch_scaler()
    theirs.load_state_dict(GradScaler(init_scale=8.0).state_dict())
    assert theirs.get_scale() == 8.0


def test_master_weights_are_those_of_sgd_in_float32():
    torch.manual_seed(0)
    master, weight = torch.randn(50), torch.empty(50, dtype=torch.bfloat16)
    twin = torch.nn.Parameter(master.clone())
    sgd = torch.optim.SGD([twin], lr=1e-3)
    for _ in range(100):
        grad = torch.randn(50).bfloat16()
        twin.grad = grad.float()
        sgd.step()
        bf16_master_step(weight, master, grad, 1e-3)
    torch.testing.assert_close(master, twin.detach())
    assert torch.equal(weight, master.bfloat16())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_the_scale_fills_the_range(dtype):
    limit = torch.finfo(dtype).max
    for amax in (1e-6, 0.3, 1.0, limit, 1e5, 2.0**20):
        scale = power_of_two_scale(amax, dtype)
        assert limit / 2 < amax * scale <= limit


def test_the_fp8_product_is_torchs():
    torch.manual_seed(0)
    a, b = 1e-3 * torch.randn(16, 32), 50 * torch.randn(32, 16)

    def quantized(x):
        scale = power_of_two_scale(float(x.abs().max()), torch.float8_e4m3fn)
        return (x * scale).to(torch.float8_e4m3fn), torch.tensor(1 / scale)

    (qa, undo_a), (qb, undo_b) = quantized(a), quantized(b.T.contiguous())
    want = torch._scaled_mm(qa, qb.T, scale_a=undo_a, scale_b=undo_b, out_dtype=torch.float32)
    torch.testing.assert_close(fp8_scaled_matmul(a, b), want)
    assert float((want - a @ b).norm() / (a @ b).norm()) < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_fp8_product_is_summed_in_float32(dtype):
    ones = torch.ones(1, 512, dtype=dtype)
    got = fp8_scaled_matmul(ones, ones.T)
    assert got.dtype == dtype
    assert got.item() == 512
