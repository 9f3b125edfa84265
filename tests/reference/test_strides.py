"""The book's stride arithmetic and views against torch's and NumPy's own."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from course_utils.grading import draws
from course_utils.reference import strides

TENSORS = draws.strided_tensors(max_dims=4, sizes=(0, 1, 2, 3, 4))
MATRICES = draws.strided_tensors(max_dims=4, min_dims=2, sizes=(0, 1, 2, 3, 5))


def same_view(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Same shape, same elements of the same storage."""
    if ours.shape != theirs.shape:
        return False
    if ours.numel() == 0:
        return True
    return (
        ours.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr()
        and strides.addresses(ours) == strides.addresses(theirs)
    )


def try_view(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor | None:
    try:
        return x.view(shape)
    except RuntimeError:
        return None


@given(x=TENSORS.filter(lambda x: x.numel() > 0), data=st.data())
def test_flat_index_is_the_address_torch_uses(x, data):
    index = tuple(data.draw(st.integers(0, size - 1)) for size in x.shape)
    position = strides.flat_index(index, x.stride(), x.storage_offset())
    assert x[index].storage_offset() == position


def test_flat_index_refuses_an_index_of_another_length():
    with pytest.raises(ValueError, match="zip"):
        strides.flat_index((1, 2), (3,))


@given(shape=draws.shapes(among=(1, 2, 3, 5)), data=st.data())
def test_unflatten_index_is_numpys(shape, data):
    position = data.draw(st.integers(0, math.prod(shape) - 1))
    assert strides.unflatten_index(position, shape) == np.unravel_index(position, shape)


@pytest.mark.parametrize("position, shape", [(6, (2, 3)), (-1, (2, 3)), (0, (2, 0)), (1, ())])
def test_unflatten_index_outside(position, shape):
    with pytest.raises(IndexError, match="outside"):
        strides.unflatten_index(position, shape)


@given(shape=draws.shapes(among=(0, 1, 2, 3)))
def test_contiguous_strides_are_those_of_a_new_tensor(shape):
    assert strides.contiguous_strides(shape) == torch.empty(shape).stride()


@given(x=TENSORS)
def test_is_contiguous_is_torchs(x):
    assert strides.is_contiguous(tuple(x.shape), x.stride()) == x.is_contiguous()


@given(x=TENSORS, data=st.data())
def test_view_strides_are_torchs(x, data):
    shape = data.draw(draws.shapes_with(x.numel()))
    ours = strides.view_strides(tuple(x.shape), x.stride(), shape)
    theirs = try_view(x, shape)
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        assert same_view(x.as_strided(shape, ours, x.storage_offset()), theirs)


@given(x=TENSORS.filter(lambda x: x.ndim > 0), data=st.data())
def test_transpose_view_is_torchs(x, data):
    axes = st.integers(-x.ndim, x.ndim - 1)
    dim0, dim1 = data.draw(axes), data.draw(axes)
    assert same_view(strides.transpose_view(x, dim0, dim1), x.transpose(dim0, dim1))


@given(x=TENSORS, data=st.data())
def test_broadcast_view_is_expand(x, data):
    grown = tuple(data.draw(st.integers(0, 3)) if size == 1 else size for size in x.shape)
    shape = data.draw(draws.shapes(max_dims=2, among=(0, 1, 2, 3))) + grown
    assert same_view(strides.broadcast_view(x, shape), x.expand(shape))


@given(x=TENSORS, shape=draws.shapes())
def test_broadcast_view_refuses_what_expand_refuses(x, shape):
    try:
        x.expand(shape)
    except RuntimeError:
        with pytest.raises(ValueError, match="broadcast"):
            strides.broadcast_view(x, shape)
    else:
        strides.broadcast_view(x, shape)


@given(x=TENSORS.filter(lambda x: x.ndim and x.size(-1)), data=st.data())
def test_sliding_windows_is_unfold(x, data):
    size, step = data.draw(st.integers(1, x.size(-1))), data.draw(st.integers(1, 4))
    assert same_view(strides.sliding_windows(x, size, step), x.unfold(-1, size, step))


@pytest.mark.parametrize("size, step", [(0, 1), (6, 1), (2, 0), (2, -1)])
def test_sliding_windows_refuses(size, step):
    with pytest.raises(ValueError, match="no window"):
        strides.sliding_windows(torch.arange(5.0), size, step)


@given(x=MATRICES, data=st.data())
def test_diagonal_view_is_torchs(x, data):
    offset = data.draw(st.integers(-x.size(-2), x.size(-1)))
    theirs = torch.diagonal(x, offset, dim1=-2, dim2=-1)
    assert same_view(strides.diagonal_view(x, offset), theirs)


@given(batch=draws.shapes(max_dims=2, among=(1, 2)), n=st.integers(1, 5), m=st.integers(1, 5))
def test_toeplitz_view_is_its_definition(batch, n, m):
    x = torch.randn(*batch, n, n + m - 1)
    i, j = torch.arange(n)[:, None], torch.arange(m)
    expected = x[..., i, j - i + n - 1]
    ours = strides.toeplitz_view(x)
    assert torch.equal(ours, expected)
    assert ours.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_toeplitz_view_of_one_row_needs_no_negative_stride():
    x = torch.arange(6.0).view(3, 2).T[:1]  # one row: its own stride is never used
    assert same_view(strides.toeplitz_view(x), x)


def test_toeplitz_view_of_equal_rows_is_numpys_toeplitz():
    c = np.arange(6.0)  # T[i, j] = c[j - i + 2]: first row c[2:], the rows below begin earlier
    expected = np.lib.stride_tricks.as_strided(c[2:], (3, 4), (-c.strides[0], c.strides[0]))
    rows = torch.from_numpy(c).repeat(3, 1)
    assert np.array_equal(strides.toeplitz_view(rows).numpy(), expected)


@pytest.mark.parametrize(
    "x",
    [torch.zeros(3, 2), torch.zeros(0, 2), torch.zeros(5).expand(3, 5), torch.zeros(5, 3).T],
)
def test_toeplitz_view_refuses(x):
    with pytest.raises(ValueError, match="no view"):
        strides.toeplitz_view(x)


@given(x=TENSORS.filter(lambda x: x.numel() > 0))
def test_addresses_are_where_the_elements_are(x):
    slots = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    assert slots[strides.addresses(x)].tolist() == x.flatten().tolist()


def test_cache_lines_and_misses():
    x = torch.zeros(32, 32)  # 128 bytes a row: two lines of 64
    assert strides.cache_lines(x) == strides.cache_lines(x.T) == 64
    assert strides.cache_lines(x[:, 0]) == 32
    assert strides.cache_misses(x, lines=16) == 64
    assert strides.cache_misses(x.T, lines=16) == 32 * 32
    assert strides.cache_misses(x.T, lines=64) == 64


# What the chapter says of torch in words, and no cell of it shows


def test_a_matmul_into_its_own_argument_is_wrong_and_raises_nothing():
    a = torch.arange(9.0).reshape(3, 3)
    right = a @ a.T
    assert not torch.equal(torch.mm(a, a.T, out=a), right)


def test_the_memory_format_that_comes_out():
    last = torch.channels_last
    x, weight = torch.randn(2, 8, 5, 5), torch.randn(4, 8, 3, 3)
    for one in (x, x.to(memory_format=last)):
        for other in (weight, weight.to(memory_format=last)):
            y = torch.nn.functional.conv2d(one, other)
            either = one.is_contiguous(memory_format=last) or other.is_contiguous(
                memory_format=last
            )
            assert y.is_contiguous(memory_format=last) == either
    pixels = x.to(memory_format=last)
    assert (pixels + 1).is_contiguous(memory_format=last)
    assert pixels.softmax(1).is_contiguous()
    assert torch.nn.functional.layer_norm(pixels, (5,)).is_contiguous()


def test_a_result_may_keep_the_order_of_a_transpose():
    x = torch.zeros(3, 4)
    assert (x.T + 1).stride() == x.T.stride() == (1, 4)
    assert x.flip(0).stride() == (4, 1)  # a view would need -4
