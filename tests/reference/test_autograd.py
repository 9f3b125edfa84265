"""The book's chapter 6 against torch's own derivatives, on drawn inputs, in float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils import measure
from course_utils.reference import autograd as ref

sizes = st.integers(1, 6)
seeds = st.integers(0, 2**31 - 1)


def drawn(**strategies):
    """`given`, without a deadline: the first call into torch is slow."""
    return lambda test: settings(deadline=None, max_examples=50)(given(**strategies)(test))


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixed(x):
    return (x.sin() * x.sum()).sum() + (x**3).sum()


@drawn(n=sizes, m=sizes, seed=seeds)
def test_numerical_gradient_is_near_autograds(n, m, seed):
    x = normal(seed, n, m)
    got = ref.numerical_gradient(mixed, x)
    torch.testing.assert_close(got, torch.func.grad(mixed)(x), rtol=1e-6, atol=1e-6)


@drawn(n=sizes, seed=seeds, low=st.integers(-5, 0), high=st.integers(0, 5))
def test_straight_through_round_is_torchs_fake_quantize(n, seed, low, high):
    x = (4 * normal(seed, n)).float()
    ours, torchs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = ref.StraightThroughRound.apply(ours, low, high)
    want = torch.fake_quantize_per_tensor_affine(torchs, 1.0, 0, low, high)
    torch.testing.assert_close(y, want)
    g = torch.linspace(0.5, 2.0, n)
    y.backward(g)
    want.backward(g)
    assert torch.equal(ours.grad, torchs.grad)


@drawn(n=sizes, seed=seeds)
def test_silu_is_torchs_twice_differentiated(n, seed):
    x = normal(seed, n).requires_grad_()
    ours, torchs = ref.SiLU.apply(x), F.silu(x)
    torch.testing.assert_close(ours, torchs)
    (a,) = torch.autograd.grad(ours.square().sum(), x, create_graph=True)
    (b,) = torch.autograd.grad(torchs.square().sum(), x, create_graph=True)
    torch.testing.assert_close(a, b)
    second = [torch.autograd.grad(g.sin().sum(), x)[0] for g in (a, b)]
    torch.testing.assert_close(*second)
    assert torch.autograd.gradcheck(ref.SiLU.apply, x)
    assert torch.autograd.gradgradcheck(ref.SiLU.apply, x)


def test_the_functions_save_what_they_say():
    x = torch.randn(1000, requires_grad=True)
    with measure() as cost:
        ref.StraightThroughRound.apply(x, -2, 2)
    assert cost.bytes_saved == 1000
    with measure() as cost:
        ref.SiLU.apply(x)
    assert cost.bytes_saved == 4000


@drawn(n=sizes, v=sizes, seed=seeds)
def test_softmax_vjp_is_autograds(n, v, seed):
    x, g = normal(seed, n, v).requires_grad_(), normal(seed + 1, n, v)
    y = x.softmax(-1)
    (want,) = torch.autograd.grad(y, x, g)
    torch.testing.assert_close(ref.softmax_vjp(y.detach(), g), want)


@drawn(n=sizes, v=sizes, seed=seeds, ignore=st.sampled_from([-100, -1, 0, 1000]))
def test_cross_entropy_backward_is_autograds(n, v, seed, ignore):
    logits = normal(seed, n, v).requires_grad_()
    targets = torch.arange(n) * 7 % v
    targets[seed % n] = ignore
    loss = F.cross_entropy(logits, targets, ignore_index=ignore)
    (want,) = torch.autograd.grad(loss, logits)
    got = ref.cross_entropy_backward(logits.detach(), targets, ignore)
    torch.testing.assert_close(got, want)


@drawn(n=sizes, m=sizes, seed=seeds)
def test_hessian_vector_product_is_the_hessian_times_the_vector(n, m, seed):
    x, v = normal(seed, n, m), normal(seed + 1, n, m)
    H = torch.func.hessian(mixed)(x).reshape(n * m, n * m)
    got = ref.hessian_vector_product(mixed, x, v)
    torch.testing.assert_close(got.flatten(), H @ v.flatten())
    want = torch.autograd.functional.hvp(mixed, x, v)[1]
    torch.testing.assert_close(got, want)


@drawn(N=sizes, D=sizes, V=sizes, seed=seeds, size=st.integers(1, 7))
def test_gradient_accumulation_is_the_whole_batchs_gradient(N, D, V, seed, size):
    w, x = normal(seed, D, V).requires_grad_(), normal(seed + 1, N, D)
    y = torch.arange(N) % V

    def loss_fn(w, x, y):
        return F.cross_entropy(x @ w, y)

    (want,) = torch.autograd.grad(loss_fn(w, x, y), w)
    got = ref.gradient_accumulation(loss_fn, w, x, y, size)
    torch.testing.assert_close(got, loss_fn(w, x, y).detach())
    torch.testing.assert_close(w.grad, want)


@drawn(N=sizes, D=sizes, V=sizes, seed=seeds)
def test_per_sample_gradients_are_those_of_one_row_each(N, D, V, seed):
    w, x = normal(seed, D, V).requires_grad_(), normal(seed + 1, N, D)
    y = torch.arange(N) % V

    def loss_fn(w, x, y):
        return F.cross_entropy(x @ w, y)

    got = ref.per_sample_gradients(loss_fn, w, x, y)
    for i in range(N):
        (want,) = torch.autograd.grad(loss_fn(w, x[i : i + 1], y[i : i + 1]), w)
        torch.testing.assert_close(got[i], want)


@pytest.mark.parametrize(
    "f",
    [
        torch.exp,
        torch.sin,
        F.gelu,
        lambda x: x * x.exp(),
        lambda x: F.layer_norm(x, (8,)),
        lambda x: x[:2] @ x[2:4].T,
    ],
)
def test_saved_bytes_are_the_meters(f):
    x = torch.randn(8, 8, requires_grad=True)
    with measure() as cost:
        f(x)
    assert ref.saved_bytes(f, x) == cost.bytes_saved


PARAMETER = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    ("f", "factor"),
    [
        (lambda x: (PARAMETER * x**3).sum(), 12.0),
        (lambda x: (PARAMETER * x).sum(), 0.0),
        (lambda x: PARAMETER**2, 0.0),
        (lambda x: torch.ones(()), 0.0),
        (lambda x: x.sum(), 0.0),
    ],
)
@pytest.mark.parametrize("recording", [True, False])
def test_hessian_vector_product_of_any_function(f, factor, recording):
    x, v = normal(0, 3), normal(1, 3)
    with torch.set_grad_enabled(recording):
        got = ref.hessian_vector_product(f, x, v)
    torch.testing.assert_close(got, factor * x * v)
    assert not got.requires_grad and PARAMETER.grad is None


def test_results_need_no_grad_though_the_function_uses_what_does():
    x = normal(0, 4, 3)
    assert not ref.numerical_gradient(lambda x: (PARAMETER * x).sum(), x).requires_grad
    got = ref.per_sample_gradients(lambda w, x, y: (PARAMETER * x @ w).mean(), x[0], x, x)
    assert not got.requires_grad
    torch.testing.assert_close(got, 2 * x)


def test_an_infinite_gradient_stops_where_x_was_clamped():
    x = torch.tensor([0.3, 9.0, float("nan")], requires_grad=True)
    ref.StraightThroughRound.apply(x, -2, 2).backward(torch.full((3,), float("inf")))
    assert x.grad.tolist() == [float("inf"), 0.0, 0.0]


def test_what_a_function_drops_was_saved_all_the_same():
    x = torch.ones(1000)
    assert ref.saved_bytes(lambda x: (x * x).exp().sum().item() * x, x) == 8000
