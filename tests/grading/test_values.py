"""Trees cross from process to process and back unchanged; copies share nothing with the original."""

import math

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_utils.grading import draws
from course_utils.grading.comparing.trees import allowed_error, compare
from course_utils.grading.pytrees.serialization import dumps, packed
from course_utils.grading.pytrees.shown import shown, told_apart
from course_utils.grading.pytrees.strict import loads, unpacked
from course_utils.grading.pytrees.tree import fresh, same, upcast

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
trees = st.recursive(
    plain | draws.strided_tensors() | st.just(torch.bfloat16),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(trees)
def test_there_and_back(tree):
    assert same(loads(dumps(tree)), tree)


@given(draws.strided_tensors())
def test_strides_and_offset_survive(x):
    for copy in (loads(dumps(x)), fresh(x)):
        assert copy.stride() == x.stride() and copy.storage_offset() == x.storage_offset()
        assert torch.equal(copy, x)
        if x.numel():
            assert copy.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_shared_storage_stays_shared():
    x = torch.arange(6.0)
    for a, b in (loads(dumps((x, x[1:]))), fresh((x, x[1:]))):
        a[1] = 99.0
        assert b[0] == 99.0


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.complex64, torch.uint8],
)
def test_dtypes_survive(dtype):
    x = torch.ones(3, 2).to(dtype)
    back = loads(dumps(x))
    assert back.dtype == dtype and torch.equal(back, x)


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_a_frame_is_a_file_as_safetensors_writes_it(texts):
    arrays = {str(i): torch.tensor(list(t), dtype=torch.uint8) for i, t in enumerate(texts)}
    data = packed(arrays, "[]")
    assert data == safetensors.torch.save(arrays, metadata={"tree": "[]"})
    for found in (unpacked(data), safetensors.torch.load(data)):
        assert found.keys() == arrays.keys()
        assert all(torch.equal(found[name], arrays[name]) for name in arrays)


def test_objects_do_not_cross():
    class Evil:
        def __repr__(self):
            raise RuntimeError

    assert loads(dumps(Evil())).kind == "Evil"
    assert loads(dumps(lambda: 1)).kind == "function"


def test_garbage_is_refused():
    for garbage in (b"", b"12345678", dumps(torch.ones(3))[:-2]):
        with pytest.raises(Exception):  # noqa: B017 - safetensors' own error types vary
            loads(garbage)


@given(draws.strided_tensors())
def test_upcast_keeps_strides(x):
    up = upcast(x)
    assert up.dtype == torch.float64 and up.stride() == x.stride() and torch.equal(up.float(), x)


# ------------------------------------------------------------------ comparison


def test_packed_integers_are_shown_in_the_exercises_unit():
    """Two codes of four bits: a hexadecimal digit each."""
    mine, theirs = (torch.tensor(x, dtype=torch.uint8) for x in ([0x0F, 0x7D], [0xF0, 0x7D]))
    pair = told_apart((mine,), (theirs,), {"uint8": "#04x"})
    assert [text[:20] for text in pair] == ["(tensor([0x0f, 0x7d]", "(tensor([0xf0, 0x7d]"]
    assert shown(mine) == "tensor([15, 125]; shape (2,), uint8)"
    assert shown(mine.long(), formats={"uint8": "#04x"}).startswith("tensor([15, 125];")


def test_differences_say_what_and_where():
    a = torch.zeros(2, 3)
    assert compare(a, a) is None
    assert compare(a.T, a).sentence == "expected shape (2, 3); came (3, 2)"
    assert compare(a.double(), a).sentence == "expected dtype float32; came float64"
    b = a.clone()
    b[1, 2] = 5
    found = compare(b, a)
    assert found.rows == (("[1, 2]", "5", "0"),) and found.wrong == 1
    assert compare([1, 2], (1, 2)) is None, "a list may stand for a tuple"
    assert compare(1, True).sentence == "expected a bool; came an int"
    assert compare((2.0, 3), (2, 3)).sentence == "expected an int; came a float"
    assert compare((2, 4), (2, 3)).sentence == "the values differ"
    assert compare(torch.tensor(1), 1).sentence.startswith("expected an int; came a Tensor")
    assert compare(None, (1,)) and compare((1,), None)
    assert compare(math.nan, math.nan) is None and compare(1.0, math.nan)


def test_special_values_must_agree():
    want = torch.tensor([math.inf, -math.inf, math.nan, 1.0])
    assert compare(want.clone(), want) is None
    for i in range(4):
        got = want.clone()
        got[i] = 0.5
        assert compare(got, want)


@given(st.integers(1, 4096))
def test_tolerance_admits_another_order_of_summation_and_no_more(n):
    x = torch.randn(8, n, generator=torch.Generator().manual_seed(n))
    want, oracle = x.sum(1), x.double().sum(1)
    other = x.flip(1).cumsum(1)[:, -1]
    assert compare(other, want, oracle, length=n) is None
    worse = want + 3 * allowed_error(want, oracle, n).float()
    assert compare(worse, want, oracle, length=n)


def test_half_precision_is_judged_by_its_own_epsilon():
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    want = x @ x
    assert (
        compare((x.float() @ x.float()).bfloat16(), want, x.double() @ x.double(), length=64)
        is None
    )
    assert compare(want * 1.1, want, x.double() @ x.double(), length=64)
