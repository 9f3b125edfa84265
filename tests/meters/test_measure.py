"""Every figure of a `Cost` against a value worked out by hand."""

import json
import warnings
import weakref

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from course_utils.meters import Cost, format_bytes, measure, shares_storage, storage_bytes


def cost_of(f, **options) -> Cost:
    with measure(**options) as cost:
        f()
    return cost


# Bytes ---------------------------------------------------------------------------------------


def test_the_contiguous_of_attention_costs_one_copy():
    B, T, H, D = 2, 5, 3, 4
    y = torch.randn(B, H, T, D)
    cost = cost_of(lambda: y.transpose(1, 2).contiguous().view(B, T, H * D))
    assert cost.bytes_allocated == cost.bytes_peak == cost.bytes_largest == B * T * H * D * 4
    assert cost.kernels == 1
    assert cost.ops == {"transpose": 1, "clone": 1, "view": 1}


VIEWS = {
    "view": lambda x: x.view(6, 4),
    "reshape that views": lambda x: x.reshape(-1),
    "transpose": lambda x: x.transpose(0, 2),
    "T": lambda x: x[0].T,
    "permute": lambda x: x.permute(2, 0, 1),
    "slice": lambda x: x[:, 1:, ::2],
    "select": lambda x: x[0],
    "expand": lambda x: x[:, :1].expand(2, 9, 4),
    "squeeze and unsqueeze": lambda x: x.unsqueeze(0).squeeze(0),
    "unbind": lambda x: x.unbind(0),
    "split": lambda x: x.split(2, dim=-1),
    "chunk": lambda x: x.chunk(3, dim=1),
    "unsafe_split": lambda x: torch.unsafe_split(x, 1),
    "diagonal": lambda x: x.diagonal(dim1=0, dim2=1),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "as_strided": lambda x: x.as_strided((3,), (5,)),
    "view as another dtype": lambda x: x.view(torch.int32),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "contiguous already": lambda x: x.contiguous(),
    "to the same dtype": lambda x: x.to(torch.float32),
    "in-place transpose": lambda x: x.view(x.shape).transpose_(0, 1),
    "set_": lambda x: torch.Tensor().set_(x),
    "tuple unpacking": lambda x: list(x),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_free(name):
    x = torch.randn(2, 3, 4)
    cost = cost_of(lambda: VIEWS[name](x))
    assert (cost.bytes_allocated, cost.kernels, cost.left_torch) == (0, 0, ())


COPIES = {  # of a (2, 3, 4) float32 tensor; bytes, kernels
    "reshape that copies": (lambda x: x.mT.reshape(-1), 96, 1),
    "contiguous": (lambda x: x.mT.contiguous(), 96, 1),
    "flatten": (lambda x: x.mT.flatten(), 96, 1),
    "clone": (lambda x: x.clone(), 96, 1),
    "clone of an expanded tensor": (lambda x: x[:1].expand(5, 3, 4).contiguous(), 240, 1),
    "to float64": (lambda x: x.double(), 192, 1),
    "advanced indexing": (lambda x: x[:, torch.tensor([0, 0])], 2 * 8 + 2 * 2 * 4 * 4, 1),
    "boolean mask": (lambda x: x[x == x], 24 + 96, 2),
    "in place": (lambda x: x.add_(1).mul_(2), 0, 2),
    "setitem": (lambda x: x.__setitem__(0, 1.0), 0, 1),
    "max with indices": (lambda x: x.max(dim=-1), 6 * 4 + 6 * 8, 1),
    "cat": (lambda x: torch.cat([x, x]), 192, 1),
    "stack": (lambda x: torch.stack([x, x, x]), 288, 1),
    "empty computes nothing": (lambda x: torch.empty_like(x), 96, 0),
    "new_empty": (lambda x: x.new_empty(5), 20, 0),
    "zeros": (lambda x: torch.zeros(5), 20, 1),
    "tensor from a list": (lambda x: torch.tensor([1.0, 2.0]), 8, 0),
    "NumPy's memory": (lambda x: torch.from_numpy(np.zeros(5)), 0, 0),
    "no elements": (lambda x: torch.zeros(0, 3), 0, 1),
}


@pytest.mark.parametrize("name", COPIES)
def test_bytes_and_kernels(name):
    f, size, kernels = COPIES[name]
    x = torch.randn(2, 3, 4)
    cost = cost_of(lambda: f(x))
    assert (cost.bytes_allocated, cost.kernels) == (size, kernels), cost.ops
    assert cost.left_torch == ()


def test_out_costs_nothing_where_it_fits_and_a_buffer_where_it_must_grow():
    a, out = torch.ones(8), torch.empty(8)
    assert cost_of(lambda: torch.add(a, a, out=out)).bytes_allocated == 0
    fits_not = torch.empty(0)
    cost = cost_of(lambda: torch.add(a, a, out=fits_not))
    assert (cost.bytes_allocated, cost.bytes_peak, cost.kernels) == (32, 32, 1)


def test_resizing_counts_the_new_buffer_in_place_of_the_old():
    def grow():
        x = torch.empty(4)
        x.resize_(8)
        x.resize_(2)

    cost = cost_of(grow)
    assert (cost.bytes_allocated, cost.bytes_peak, cost.bytes_largest) == (48, 32, 32)
    assert cost.kernels == 0


def test_pairwise_distances_make_an_n_m_d_tensor():
    N, M, D = 5, 7, 3
    x, y = torch.randn(N, D), torch.randn(M, D)
    cost = cost_of(lambda: (x[:, None] - y[None]).pow(2).sum(-1))
    assert cost.bytes_largest == N * M * D * 4
    assert cost.bytes_allocated == 2 * N * M * D * 4 + N * M * 4
    assert cost.bytes_peak == 2 * N * M * D * 4  # the difference is gone when the sum is made
    frugal = cost_of(lambda: (x * x).sum(-1)[:, None] - 2 * x @ y.T + (y * y).sum(-1))
    assert frugal.bytes_largest == N * M * 4


def test_peak_counts_what_is_alive_and_allocated_counts_all():
    def chain():
        x = torch.ones(100)
        for _ in range(10):
            x = x + 1

    cost = cost_of(chain)
    assert (cost.bytes_allocated, cost.bytes_peak) == (11 * 400, 2 * 400)
    kept = []
    cost = cost_of(lambda: kept.extend(torch.ones(100) for _ in range(10)))
    assert cost.bytes_peak == 10 * 400


def test_a_view_keeps_its_storage_alive_and_the_graph_what_it_saved():
    def through_a_view():
        x = torch.ones(100)[:1]
        torch.ones(100)
        return x

    assert cost_of(through_a_view).bytes_peak == 800

    def through_the_graph():
        x = torch.ones(100, requires_grad=True)
        y = x.exp().sum()  # saves exp's result, which has no other owner
        z = torch.ones(100)
        del z
        y.backward()
        del y, x

    cost = cost_of(through_the_graph)
    # x, exp's result, its product with the gradient; the loss and its own gradient
    assert cost.bytes_peak == 3 * 400 + 2 * 4
    assert cost_of(lambda: [torch.ones(100).sum() for _ in range(3)]).bytes_peak == 2 * 4 + 404


def test_the_cost_stands_still_after_the_block():
    kept = []
    cost = cost_of(lambda: kept.append(torch.ones(100)))
    before = cost.as_dict()
    kept.clear()
    torch.ones(7).sum().item()
    assert cost.as_dict() == before


# Kernels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 4, 9])
def test_kernels_of_a_python_loop_grow(n):
    x = torch.randn(n, 3)
    assert cost_of(lambda: [row.sum() for row in x]).kernels == n
    assert cost_of(lambda: x.sum(-1)).kernels == 1


@pytest.mark.parametrize("n", [2, 20])
def test_an_operation_on_a_list_is_one_kernel(n):
    tensors = [torch.ones(3, 2) for _ in range(n)]
    with measure() as cost:
        torch._foreach_mul_(tensors, 0.5)
        roots = torch._foreach_sqrt(tensors)
    assert cost.kernels == 2
    assert cost.bytes_peak == n * 24 == sum(root.nbytes for root in roots)


def test_composites_are_taken_apart_in_inference_mode_too():
    x, w = torch.randn(2, 5, 3), torch.randn(4, 3)

    @torch.inference_mode()
    def f():
        F.linear(x, w).mT.reshape(-1)

    cost = cost_of(f)
    assert (cost.kernels, cost.flops) == (2, 2 * 10 * 3 * 4)
    assert cost.ops["clone"] == 1


def test_backward_inside_the_block_is_counted():
    x = torch.randn(3, 4, requires_grad=True)
    w = torch.randn(4, 5, requires_grad=True)
    cost = cost_of(lambda: (x @ w).sum().backward())
    assert cost.flops == 3 * (2 * 3 * 4 * 5)
    assert cost.ops["mm"] == 3


# FLOPs ---------------------------------------------------------------------------------------

m, n, k, b = 3, 5, 4, 2
FLOPS = {
    "matrix product": (lambda: torch.ones(m, k) @ torch.ones(k, n), 2 * m * n * k),
    "batched": (lambda: torch.ones(b, m, k) @ torch.ones(b, k, n), 2 * b * m * n * k),
    "broadcast": (lambda: torch.ones(b, m, k) @ torch.ones(k, n), 2 * b * m * n * k),
    "matrix and vector": (lambda: torch.ones(m, k) @ torch.ones(k), 2 * m * k),
    "dot": (lambda: torch.ones(k) @ torch.ones(k), 2 * k),
    "linear": (lambda: F.linear(torch.ones(m, k), torch.ones(n, k), torch.ones(n)), 2 * m * n * k),
    "einsum": (
        lambda: torch.einsum("bik,bjk->bij", torch.ones(b, m, k), torch.ones(b, n, k)),
        2 * b * m * n * k,
    ),
    "conv1d": (lambda: F.conv1d(torch.ones(1, 2, 10), torch.ones(4, 2, 3)), 2 * 8 * 4 * 2 * 3),
    "elementwise": (lambda: torch.ones(m, k) * 2 + 1, 0),
    "attention": (
        lambda: F.scaled_dot_product_attention(*[torch.ones(1, 2, m, k) for _ in range(3)]),
        2 * (2 * 2 * m * m * k),
    ),
    "distances by one product": (
        lambda: torch.cdist(torch.ones(30, k), torch.ones(40, k)),
        2 * 30 * 40 * (k + 2),
    ),
}


@pytest.mark.parametrize("name", FLOPS)
def test_flops(name):
    f, expected = FLOPS[name]
    assert cost_of(f).flops == expected


# Saved for backward --------------------------------------------------------------------------


def saved_by(f, *shapes, **options) -> int:
    arguments = [torch.randn(shape, requires_grad=True) for shape in shapes]
    return cost_of(lambda: f(*arguments), **options).bytes_saved


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_tensor_is_its_parts(layout):
    x = torch.eye(3)
    with measure() as cost:
        sparse = x.to_sparse(layout=layout)
        kept = cost.bytes_peak
        dense = sparse.to_dense()
    assert kept >= 3 * 4 and cost.bytes_peak >= kept + dense.nbytes
    w = torch.ones(3, 2, requires_grad=True)
    with measure() as cost:
        torch.sparse.mm(sparse, w).sum().backward()
    assert cost.bytes_saved >= 3 * 4


def test_bytes_saved():
    assert saved_by(torch.relu, (3, 4)) == 48  # its result
    assert saved_by(lambda a, b: a @ b, (3, 4), (4, 5)) == (12 + 20) * 4  # both factors
    assert saved_by(lambda a: a.softmax(-1), (3, 4)) == 48  # its result
    assert saved_by(lambda a: a * a, (3, 4)) == 48  # one storage, saved twice
    assert saved_by(lambda a: a + a, (3, 4)) == 0
    assert saved_by(lambda a: a.exp().exp(), (3, 4)) == 96
    assert saved_by(lambda a: (a[:, :1] * 2.0).exp() + a[:, :1] ** 2, (3, 4)) == 12 + 48


def test_nothing_is_saved_without_grad():
    a = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert cost_of(lambda: a.exp()).bytes_saved == 0
    assert cost_of(lambda: a.detach().exp()).bytes_saved == 0


def test_parameters_can_be_left_out():
    layer = nn.Linear(4, 5)
    x = torch.randn(3, 4, requires_grad=True)
    assert cost_of(lambda: layer(x)).bytes_saved == (12 + 20) * 4
    assert cost_of(lambda: layer(x), parameters=False).bytes_saved == 12 * 4


def test_watching_does_not_change_gradients_or_torchs_own_checks():
    x = torch.randn(4, requires_grad=True)
    with measure():
        (x.exp() * x).sum().backward()
    torch.testing.assert_close(x.grad, (x.exp() * (1 + x)).detach())

    def overwrites_an_input():
        c = torch.ones(4)
        y = x * c
        c.mul_(2)
        y.sum().backward()

    def overwrites_a_result():
        y = x.exp()
        y.mul_(2)
        y.sum().backward()

    for wrong in (overwrites_an_input, overwrites_a_result):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            cost_of(wrong)


def test_second_derivatives_survive_being_watched():
    x = torch.tensor([0.5, 2.0], requires_grad=True)

    def second():
        (first,) = torch.autograd.grad((x.exp() * x**3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    with measure() as watched:
        result = second()
    expected = x.exp() * (x**3 + 6 * x**2 + 6 * x)
    torch.testing.assert_close(result, expected.detach())
    assert cost_of(second, saved=False).ops == watched.ops  # the meter's own work is not counted


def test_hooks_around_and_inside_the_block_keep_working():
    x = torch.randn(4, requires_grad=True)
    packed = []

    def pack(t):
        packed.append(t.shape)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), measure() as cost:
        y = x.exp()
    y.sum().backward()
    assert (packed, cost.bytes_saved) == ([(4,)], 16)

    with measure() as cost, torch.autograd.graph.saved_tensors_hooks(lambda t: None, lambda t: t):
        x.exp()
    assert cost.bytes_saved == 0


def test_torch_func_works_where_saved_tensors_are_not_watched():
    x = torch.randn(4)
    with measure(saved=False) as cost:
        torch.func.grad(lambda x: x.exp().sum())(x)
    assert cost.kernels > 0
    with pytest.raises(RuntimeError, match="saved tensor hooks"), measure():
        torch.func.grad(lambda x: x.exp().sum())(x)


# Leaving torch -------------------------------------------------------------------------------


def fails(f):
    with pytest.raises(RuntimeError):
        f()


LEAVES = {  # of torch.arange(6.).view(2, 3)
    "tolist": (lambda x: x.tolist(), ("tolist",), 6),
    "item": (lambda x: x[0, 0].item(), ("item",), 1),
    "numpy": (lambda x: x.numpy(), ("numpy",), 6),
    "np.asarray": (lambda x: np.asarray(x), ("__array__",), 6),
    "np.sqrt": (lambda x: np.sqrt(x), ("__array__",), 6),
    "float": (lambda x: float(x[0, 0]), ("__float__",), 1),
    "int": (lambda x: int(x[0, 0]), ("__int__",), 1),
    "if": (lambda x: 1 if x.sum() > 0 else 0, ("__bool__",), 1),
    "complex": (lambda x: complex(x[0, 0]), ("__complex__",), 1),
    "range": (lambda x: range(torch.tensor(3)), ("__index__",), 1),
    "list index": (lambda x: [1, 2][torch.tensor(1)], ("__index__",), 1),
    "in": (lambda x: 1.0 in x, ("__contains__",), 1),
    "max of Python": (lambda x: max(x[0]), ("__bool__",), 2),
    "sum of Python": (lambda x: sum(x[0]), (), 0),
    "a loop of reads": (lambda x: [float(v) for v in x.view(-1)], ("__float__",), 6),
    "dlpack": (lambda x: np.from_dlpack(x), ("__dlpack__",), 6),
    "apply_": (lambda x: x.apply_(lambda v: v + 1), ("apply_",), 6),
    "a tensor as an index": (lambda x: x[torch.tensor(1)], ("__getitem__",), 1),
    "untyped storage": (lambda x: bytes(x.untyped_storage()), ("item",), 24),
    "two ways": (lambda x: (x.tolist(), x[0].tolist(), x[0, 0].item()), ("tolist", "item"), 10),
    "printing": (lambda x: (repr(x), str(x), f"{x[0, 0]:.1f}"), (), 0),
    "shape, len, dtype": (lambda x: (x.shape, len(x), x.dtype, x.stride(), x.numel()), (), 0),
    "a failed read": (lambda x: fails(x.item), (), 0),
}


@pytest.mark.parametrize("name", LEAVES)
def test_data_leaving_torch(name):
    f, ways, elements = LEAVES[name]
    x = torch.arange(6.0).view(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cost = cost_of(lambda: f(x))
    assert (cost.left_torch, cost.elements_left) == (ways, elements)


# Entering torch ------------------------------------------------------------------------------

ENTERS = {  # with x = torch.arange(6.).view(2, 3)
    "tensor": (lambda x: torch.tensor([[1, 2], [3, 4]]), 4),
    "tensor of tensors": (lambda x: torch.tensor([x[0, 0], x[0, 1]]), 2),
    "tensor of an array": (lambda x: torch.tensor(np.ones(3)), 3),
    "tensor of a tensor": (lambda x: x.new_tensor(x), 0),
    "one number": (lambda x: torch.tensor(1.0), 1),
    "as_tensor": (lambda x: torch.as_tensor([1, 2]), 2),
    "as_tensor of a tensor": (lambda x: torch.as_tensor(x), 0),
    "asarray": (lambda x: torch.asarray([1, 2]), 2),
    "from_numpy": (lambda x: torch.from_numpy(np.ones(3)), 3),
    "Tensor": (lambda x: torch.Tensor([1, 2]), 2),
    "LongTensor": (lambda x: torch.LongTensor([1, 2]), 2),
    "new_tensor": (lambda x: x.new_tensor([1, 2]), 2),
    "NumPy's result": (lambda x: x + np.ones(3, dtype=np.float32), 6),
    "a list as an index": (lambda x: x[[0, 1], [0, 1]], 4),
    "an array as an index": (lambda x: x[np.array([0, 1])], 2),
    "a list as an index to write to": (lambda x: x.__setitem__([0, 1], 1.0), 2),
    "a number written": (lambda x: x.__setitem__((0, 1), 1.0), 0),
    "a range as an index": (lambda x: x[range(2), range(2)], 0),
    "a tensor of a range": (lambda x: torch.tensor(range(5)), 0),
    "arange, full, where": (lambda x: torch.where(x > 1, torch.full((3,), 2.0), 0.0), 0),
    "arithmetic with numbers": (lambda x: 2 * x + 1, 0),
    "ints and slices as an index": (lambda x: x[0, 1:], 0),
}


@pytest.mark.parametrize("name", ENTERS)
def test_data_entering_torch(name):
    f, elements = ENTERS[name]
    x = torch.arange(6.0).view(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cost_of(lambda: f(x)).elements_entered == elements


def test_what_the_block_made():
    x = torch.zeros(3)
    with measure() as outer, (meter := measure()):
        assert meter.made(x + 1) and meter.made((x + 1)[1:])
        assert not meter.made(x) and not meter.made(x.view(3, 1))
    assert outer.kernels == 2


# The block -----------------------------------------------------------------------------------


def test_an_exception_leaves_a_readable_cost_and_no_mode_behind():
    def f(x):
        x.sum()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), measure() as cost:
        f(torch.ones(3))
    assert (cost.kernels, cost.bytes_allocated) == (2, 16)
    assert _get_current_dispatch_mode_stack() == []
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    assert torch._C._len_torch_function_stack() == 0


def test_blocks_nest():
    x = torch.randn(4, requires_grad=True)
    with measure() as outer:
        x.exp()
        with measure() as inner:
            x.exp().tolist()
        x.exp()
    assert (inner.kernels, inner.bytes_allocated, inner.bytes_saved) == (1, 16, 16)
    assert (outer.kernels, outer.bytes_allocated, outer.bytes_saved) == (3, 48, 48)
    assert inner.left_torch == outer.left_torch == ("tolist",)


def test_a_cost_can_be_read_inside_the_block():
    with measure() as cost:
        x = torch.ones(3)
        assert cost.bytes_allocated == 12
        x.exp_()
    assert cost.kernels == 2


def test_fake_and_meta_tensors_cost_what_real_ones_would():
    def f(device="cpu"):
        a = torch.ones(4, 8, device=device)
        (a @ a.T).sum()

    real = cost_of(f)
    with FakeTensorMode():
        assert cost_of(f) == real
    assert cost_of(lambda: f("meta")) == real
    with measure() as cost, FakeTensorMode():
        f()
    assert cost == real


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_backward_on_a_gpu_is_counted_from_its_own_thread():
    def f(device):
        x = torch.randn(3, 4, device=device, requires_grad=True)
        (x @ x.T).sum().backward()

    assert cost_of(lambda: f("cuda")).flops == cost_of(lambda: f("cpu")).flops


# Values --------------------------------------------------------------------------------------


def test_storages():
    x = torch.zeros(3, 4)
    assert storage_bytes(x[0, :1]) == 48
    assert shares_storage(x, x.T[1:]) and not shares_storage(x, x.clone())
    assert not shares_storage(torch.zeros(0), torch.zeros(0))


def test_a_cost_survives_json():
    cost = cost_of(lambda: torch.ones(3, 3) @ torch.ones(3, 3))
    assert Cost.from_dict(json.loads(json.dumps(cost.as_dict()))) == cost


def test_a_cost_can_be_read_by_people():
    cost = cost_of(lambda: torch.ones(1000).tolist())
    assert "4,000 B" not in repr(cost) and "3.91 KiB" in repr(cost)
    assert "tolist (1,000 elements)" in repr(cost)
    assert "1 of 1 operation" in repr(cost)
    assert "entered torch" in repr(cost)
    assert cost._repr_html_().count("<tr>") == len(cost.rows())


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (3 * 2**30, "3 GiB")],
)
def test_format_bytes(n, text):
    assert format_bytes(n) == text


# Properties ----------------------------------------------------------------------------------

shapes = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)


@given(shapes)
@settings(max_examples=40, deadline=None)
def test_every_new_tensor_is_its_size_and_every_view_of_it_nothing(shape):
    x = torch.zeros(shape)
    assert cost_of(lambda: torch.zeros(shape)).bytes_allocated == 4 * x.numel()
    assert cost_of(lambda: x + 1).bytes_allocated == 4 * x.numel()
    assert cost_of(lambda: x.unsqueeze(0).transpose(0, -1)).bytes_allocated == 0


@given(shapes, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_a_reshape_is_free_exactly_where_it_shares(shape, random):
    x = torch.zeros(shape)
    dims = list(range(x.dim()))
    random.shuffle(dims)
    x = x.permute(dims)
    result = []
    cost = cost_of(lambda: result.append(x.reshape(-1)))
    assert (cost.bytes_allocated == 0) == (shares_storage(x, result[0]) or x.numel() == 0)
    assert cost.kernels == (0 if shares_storage(x, result[0]) else 1)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50)), max_size=12))
@settings(max_examples=60, deadline=None)
def test_the_peak_is_that_of_a_simulated_allocator(steps):
    live: list[int] = []
    peak = total = 0
    tensors: list[torch.Tensor] = []
    with measure() as cost:
        for free, size in steps:
            if free and tensors:
                tensors.pop(0)
                live.pop(0)
            tensors.append(torch.empty(size))
            live.append(4 * size)
            total += 4 * size
            peak = max(peak, sum(live))
    assert (cost.bytes_allocated, cost.bytes_peak) == (total, peak)
    assert cost.bytes_largest <= cost.bytes_peak <= cost.bytes_allocated


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_matmul_flops(m, n, k):
    assert cost_of(lambda: torch.ones(m, k) @ torch.ones(k, n)).flops == 2 * m * n * k


def test_a_saved_result_dies_with_its_graph():
    x = torch.randn(4, requires_grad=True)
    with measure() as cost:
        y = x.exp()
        storage = weakref.ref(y.untyped_storage())
        del y
        torch.empty(4)
    assert storage() is None
    assert cost.bytes_peak == cost.bytes_saved == 16


def test_compiled_code_may_be_called():
    f = torch.compile(lambda x: (x * 2).sum(), backend="eager")
    assert cost_of(lambda: f(torch.ones(3))).ops == {"ones": 1, "mul": 1, "sum": 1}
