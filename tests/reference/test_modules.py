"""The book's layers against torch's own in float64: forward, backward, buffers, state."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from course_utils.reference import modules as ref

sizes = st.integers(1, 6)
seeds = st.integers(0, 2**31 - 1)


def drawn(**strategies):
    """`given`, without a deadline: the first call into torch is slow."""
    return lambda test: settings(deadline=None, max_examples=30)(given(**strategies)(test))


def twins(ours: nn.Module, theirs: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Both in float64 with the same random weights, loaded strictly in both directions."""
    ours, theirs = ours.double(), theirs.double()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_()
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def pass_through(layer: nn.Module, x: Tensor, *rest: Tensor) -> dict[str, Tensor]:
    """Output, gradients of input and parameters, and buffers, after one pass."""
    layer.zero_grad()
    leaf = x.clone().requires_grad_() if x.is_floating_point() else x
    y = layer(leaf, *rest)
    y = y[0] if isinstance(y, tuple) else y
    weights = torch.linspace(-1, 1, max(y.numel(), 1), dtype=y.dtype)[: y.numel()].view(y.shape)
    (y * weights).sum().backward()
    seen = {"output": y.detach()}
    if x.is_floating_point():
        seen["x"] = leaf.grad
    seen |= {name: p.grad.clone() for name, p in layer.named_parameters()}
    return seen | {name: b.clone() for name, b in layer.named_buffers()}


def same(ours: nn.Module, theirs: nn.Module, x: Tensor, steps: int = 1) -> None:
    for _ in range(steps):
        torch.testing.assert_close(
            pass_through(ours, x), pass_through(theirs, x), rtol=1e-9, atol=1e-11
        )
        x = 1.5 * x + 0.5 if x.is_floating_point() else x


@drawn(N=sizes, d_in=sizes, d_out=sizes, bias=st.booleans(), seed=seeds)
def test_linear(N, d_in, d_out, bias, seed):
    torch.manual_seed(seed)
    ours, theirs = twins(ref.Linear(d_in, d_out, bias), nn.Linear(d_in, d_out, bias))
    for shape in ((N, d_in), (2, N, d_in), (d_in,)):
        same(ours, theirs, torch.randn(shape, dtype=torch.float64))
    assert ours.extra_repr() == theirs.extra_repr()


def test_linear_and_embedding_start_as_torchs_do():
    torch.manual_seed(0)
    for ours, theirs in (
        (ref.Linear(9, 20_000), nn.Linear(9, 20_000)),
        (ref.Embedding(300, 200), nn.Embedding(300, 200)),
    ):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert abs(a.std() / b.std() - 1) < 0.02
            quantiles = torch.tensor([0.01, 0.25, 0.5, 0.75, 0.99])
            pairs = (p.flatten()[:50_000].quantile(quantiles) for p in (a, b))
            torch.testing.assert_close(*pairs, rtol=0.05, atol=0.03)


@drawn(B=sizes, T=sizes, V=sizes, D=sizes, seed=seeds)
def test_embedding(B, T, V, D, seed):
    torch.manual_seed(seed)
    ours, theirs = twins(ref.Embedding(V, D), nn.Embedding(V, D))
    same(ours, theirs, torch.randint(0, V, (B, T)))


@pytest.mark.parametrize("wrong", [-1, 4])
def test_embedding_refuses_what_torch_refuses(wrong):
    for layer in (ref.Embedding(4, 2), nn.Embedding(4, 2)):
        with pytest.raises(IndexError):
            layer(torch.tensor([0, wrong]))


@drawn(N=sizes, D=sizes, eps=st.sampled_from([1e-5, 0.1]), bias=st.booleans(), seed=seeds)
def test_layer_norm(N, D, eps, bias, seed):
    torch.manual_seed(seed)
    ours, theirs = twins(ref.LayerNorm(D, eps, bias), nn.LayerNorm(D, eps, bias=bias))
    same(ours, theirs, 3 + 2 * torch.randn(N, 2, D, dtype=torch.float64))


@drawn(N=sizes, D=sizes, eps=st.sampled_from([1e-6, 0.1]), seed=seeds)
def test_rms_norm(N, D, eps, seed):
    torch.manual_seed(seed)
    ours, theirs = twins(ref.RMSNorm(D, eps), nn.RMSNorm(D, eps))
    same(ours, theirs, 3 + 2 * torch.randn(N, 2, D, dtype=torch.float64))


@drawn(
    N=st.integers(2, 6),
    C=sizes,
    L=st.integers(0, 4),
    momentum=st.sampled_from([0.1, 0.5]),
    seed=seeds,
)
def test_batch_norm(N, C, L, momentum, seed):
    torch.manual_seed(seed)
    shape = (N, C, L) if L else (N, C)
    x = 3 + 2 * torch.randn(shape, dtype=torch.float64)
    ours, theirs = twins(
        ref.BatchNorm1d(C, 0.1, momentum), nn.BatchNorm1d(C, eps=0.1, momentum=momentum)
    )
    same(ours, theirs, x, steps=3)
    same(ours.eval(), theirs.eval(), x, steps=2)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_batch_norm_refuses_a_single_value():
    for layer in (ref.BatchNorm1d(2), nn.BatchNorm1d(2)):
        with pytest.raises(ValueError):
            layer(torch.ones(1, 2))
        assert layer.eval()(torch.ones(1, 2)).shape == (1, 2)


@pytest.mark.parametrize("p", [0.0, 0.3, 0.9, 1.0])
def test_dropout_is_torchs_for_the_same_mask(p):
    x = torch.randn(200, 50, dtype=torch.float64, requires_grad=True)
    ours, theirs = ref.Dropout(p), nn.Dropout(p)
    y = ours(x)
    keep = y != 0
    want = torch.where(keep, x / (1 - p) if p < 1 else x, 0.0)
    torch.testing.assert_close(y, want)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, keep.double() / (1 - p) if p < 1 else 0 * x.detach())
    for mine, torchs in ((y, theirs(x)), (ours(x), theirs(x))):
        shares = (mine == 0).double().mean(), (torchs == 0).double().mean()
        assert abs(shares[0] - shares[1]) < 0.05
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("p", [-0.1, 1.1])
def test_dropout_refuses_what_torch_refuses(p):
    for kind in (ref.Dropout, nn.Dropout):
        with pytest.raises(ValueError):
            kind(p)


@drawn(
    B=sizes,
    T=sizes,
    n_head=st.integers(1, 3),
    d=sizes,
    causal=st.booleans(),
    bias=st.booleans(),
    seed=seeds,
)
def test_attention_is_torchs(B, T, n_head, d, causal, bias, seed):
    torch.manual_seed(seed)
    D = n_head * d
    ours = ref.MultiHeadSelfAttention(D, n_head, causal, bias).double()
    theirs = nn.MultiheadAttention(D, n_head, bias=bias, batch_first=True).double()
    names = {"in_proj_weight": "qkv.weight", "out_proj.weight": "proj.weight"}
    if bias:
        names |= {"in_proj_bias": "qkv.bias", "out_proj.bias": "proj.bias"}
    theirs.load_state_dict({name: ours.state_dict()[mine] for name, mine in names.items()})
    lengths = torch.randint(1, T + 1, (B,))
    padded = torch.arange(T) >= lengths[:, None]
    future = torch.ones(T, T, dtype=torch.bool).triu(1) if causal else None
    x = torch.randn(B, T, D, dtype=torch.float64)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y = ours(a, ~padded[:, None, None, :])
    z = theirs(b, b, b, key_padding_mask=padded, attn_mask=future, need_weights=False)[0]
    torch.testing.assert_close(y, z, rtol=1e-9, atol=1e-11)
    weights = torch.randn_like(y)
    (y * weights).sum().backward()
    (z * weights).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-9, atol=1e-11)
    theirs_by_name = dict(theirs.named_parameters())
    for name, mine in names.items():
        got = ours.get_parameter(mine).grad
        torch.testing.assert_close(got, theirs_by_name[name].grad, rtol=1e-8, atol=1e-10)


@drawn(B=sizes, T=sizes, n_head=st.integers(1, 3), seed=seeds)
def test_attention_is_scaled_dot_product_attention(B, T, n_head, seed):
    torch.manual_seed(seed)
    layer = ref.MultiHeadSelfAttention(4 * n_head, n_head).double()
    x = torch.randn(B, T, 4 * n_head, dtype=torch.float64)
    q, k, v = layer.qkv(x).unflatten(-1, (3, n_head, 4)).permute(2, 0, 3, 1, 4)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x), layer.proj(want), rtol=1e-9, atol=1e-11)


def small_model() -> nn.Module:
    model = nn.Sequential(nn.Embedding(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 5))
    ref.tie_weights(model[0], model[2])
    return model


def test_count_parameters_is_what_an_optimizer_holds():
    model = small_model()
    model[1].weight.requires_grad_(False)
    held = torch.optim.SGD(model.parameters(), lr=1.0).param_groups[0]["params"]
    total = sum(p.numel() for p in held)
    assert ref.count_parameters(model) == (total, total - 3) == (15 + 6 + 5, 23)


def test_tied_weights_stay_tied_over_steps_and_checkpoints():
    model, copy = small_model(), small_model()
    adam = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.tensor([1, 2])).square().sum().backward()
        adam.step()
    assert model[0].weight is model[2].weight
    copy.load_state_dict(model.state_dict())
    assert torch.equal(copy[2].weight, model[0].weight)
    with pytest.raises(ValueError):
        ref.tie_weights(nn.Embedding(3, 2), nn.Linear(3, 2))


def test_freeze_except():
    model = small_model()
    ref.freeze_except(model, ["2"])
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == ["0.weight", "2.bias"]
    with pytest.raises(ValueError):
        ref.freeze_except(model, ["3"])


# ------------------------------------------------------------------------------ TinyModule


def trees(base: type) -> type:
    """The same class of models on top of nn.Module or of TinyModule."""

    class Leaf(base):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(float(n)))
            self.register_buffer("mean", torch.ones(n))
            self.plain = torch.zeros(n)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    class Tree(base):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.scale, self.b = Leaf(2), nn.Parameter(torch.ones(())), Leaf(3)
            self.b.inner = Leaf(4)
            self.tied = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * self.a(x)

    return Tree


def test_tiny_module_keeps_the_books_as_nn_module_does():
    tiny, real = trees(ref.TinyModule)(), trees(nn.Module)()
    assert [n for n, _ in tiny.named_parameters()] == [n for n, _ in real.named_parameters()]
    ours, theirs = tiny.state_dict(), real.state_dict()
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
    real.load_state_dict({name: 2 * value for name, value in ours.items()})
    tiny.load_state_dict(real.state_dict())
    for name, value in real.state_dict().items():
        assert torch.equal(tiny.state_dict()[name], value), name
    x = torch.ones(2)
    assert torch.equal(tiny(x), real(x))
    assert tiny.train(False) is tiny and not tiny.b.inner.training


def test_tiny_module_reassigns_as_nn_module_does():
    for value in (None, nn.Parameter(torch.zeros(5))):
        tiny, real = trees(ref.TinyModule)(), trees(nn.Module)()
        for tree in (tiny, real):
            tree.a.weight = value
        a, b = ([n for n, _ in tree.named_parameters()] for tree in (tiny, real))
        assert a == b
    for tree in (trees(ref.TinyModule)(), trees(nn.Module)()):
        with pytest.raises(AttributeError):
            _ = tree.nothing


def test_tiny_module_feeds_torchs_optimizer():
    tiny, real = trees(ref.TinyModule)(), trees(nn.Module)()
    for tree in (tiny, real):
        sgd = torch.optim.SGD([p for _, p in tree.named_parameters()], lr=0.1, momentum=0.9)
        for _ in range(3):
            tree(torch.ones(2)).square().sum().backward()
            sgd.step()
    torch.testing.assert_close(tiny.a.weight, real.a.weight)
    assert not math.isnan(float(tiny.scale))
