"""What comes from a student's process may be forged: it is a tree, or it is refused, and soon."""

import enum
import json
import math
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import save
from test_values import trees

from course_utils.authoring.counts import count
from course_utils.grading.comparing.signatures import description
from course_utils.grading.comparing.trees import compare
from course_utils.grading.driving.cost import Measured
from course_utils.grading.driving.describe import described
from course_utils.grading.observing.errors import Raised
from course_utils.grading.observing.observe import Observation
from course_utils.grading.pytrees.serialization import dumps
from course_utils.grading.pytrees.strict import loads
from course_utils.grading.pytrees.tree import Opaque, leaves
from course_utils.meters import Cost


def frame(tree, **arrays):
    """A frame with this JSON, whatever it says."""
    text = tree if isinstance(tree, str) else json.dumps(tree)
    return save(arrays, metadata={"tree": text})


def tensor(shape, stride, offset=0, dtype="float32", number="0", grad=False):
    return {"tensor": [number, dtype, shape, stride, offset, grad, False, "cpu"]}


BYTES = torch.zeros(64, dtype=torch.uint8)

FORGED = {
    "reaches beyond its storage": frame(tensor([17], [1]), **{"0": BYTES}),
    "starts beyond its storage": frame(tensor([1], [1], offset=16), **{"0": BYTES}),
    "strides beyond its storage": frame(tensor([2], [16]), **{"0": BYTES}),
    "a negative stride": frame(tensor([2], [-1], offset=2), **{"0": BYTES}),
    "a negative size": frame(tensor([-2], [1]), **{"0": BYTES}),
    "an offset that overflows": frame(tensor([1], [1], offset=2**62), **{"0": BYTES}),
    "sizes that overflow": frame(tensor([2**40, 2**40], [0, 0]), **{"0": BYTES}),
    "more axes than torch has": frame(tensor([1] * 65, [1] * 65), **{"0": BYTES}),
    "a size for no stride": frame(tensor([1, 1], [1]), **{"0": BYTES}),
    "a size that is a bool": frame(tensor([True], [1]), **{"0": BYTES}),
    "an array that did not come": frame(tensor([1], [1], number="1"), **{"0": BYTES}),
    "an array of floats": frame(tensor([1], [1]), **{"0": torch.zeros(4)}),
    "a quantised dtype": frame(tensor([1], [1], dtype="quint8"), **{"0": BYTES}),
    "a dtype that is a function": frame(tensor([1], [1], dtype="load"), **{"0": BYTES}),
    "integers that require grad": frame(tensor([1], [1], dtype="int64", grad=True), **{"0": BYTES}),
    "a bool that is 2": frame(tensor([1], [1], dtype="bool"), **{"0": BYTES + 2}),
    "a device that is not there": frame({"device": "nowhere:3"}),
    "a dtype of no such name": frame({"dtype": "__class__"}),
    "JSON of great depth": frame("[" * 10**6 + "]" * 10**6),
    "a tree that is too deep": frame("[" * 300 + "]" * 300),
    "a tree of too many values": frame([0] * 600_000),
    "an integer of 10,000 digits": frame("1" * 10_000),
    "a float of JSON": frame("1.5"),
    "not a number": frame("NaN"),
    "a float of no number": frame({"float": "one"}),
    "two tags": frame({"float": "1", "tuple": []}),
    "no tag": frame({}),
    "a tag of nobody's": frame({"pickle": "x"}),
    "a dict without pairs": frame({"dict": [[1]]}),
    "a key that is a list": frame({"dict": [[[], 1]]}),
    "a key that is a tensor": frame({"dict": [[tensor([1], [1]), 1]]}, **{"0": BYTES}),
    "keys that collide": frame({"dict": [[n * (2**61 - 1), 0] for n in range(20_000)]}),
    "an opaque of too many words": frame({"opaque": ["x", "y" * 10**6, ""]}),
    "an opaque of one word": frame({"opaque": ["x"]}),
    "no tree": save({"0": BYTES}),
    "metadata of no tree": save({"0": BYTES}, metadata={"bush": "1"}),
    "a header of 2**60 bytes": (2**60).to_bytes(8, "little") + b"{}",
    "a header that is a list": (2).to_bytes(8, "little") + b"[]",
    "nothing": b"",
    "seven bytes": b"1234567",
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.",
}


@pytest.fixture(scope="module")
def honest_s():
    """Processor seconds for an honest frame with as many keys as the largest of the forged ones."""
    honest = frame({"dict": [[str(n), 0] for n in range(20_000)]})
    return seconds_for(lambda: loads(honest))


def seconds_for(action):
    start = time.process_time()
    action()
    return time.process_time() - start


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_frame_is_refused(what, honest_s):
    """And at no more work than an honest one of its size: keys that collide take 20,000² steps."""

    def refused():
        with pytest.raises(ValueError):
            loads(FORGED[what])

    assert seconds_for(refused) < 30 * honest_s
    count("forged frames refused")


@given(trees, st.data())
def test_a_torn_or_altered_frame_is_refused_or_a_tree(tree, data):
    frame = bytearray(dumps(tree))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(frame) - 1))
        frame[place] ^= 1 << data.draw(st.integers(0, 7))
    frame = frame[: data.draw(st.sampled_from([len(frame), len(frame) - 1, len(frame) // 2]))]
    try:
        found = loads(bytes(frame))
    except ValueError:
        return
    look_at(found)


def look_at(tree):
    """Read every element: what loads gives never reaches outside of its memory."""
    for leaf in leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
            assert leaf.numel() < 10**6 or 0 in leaf.stride()
            if leaf.numel() < 10**6:
                leaf.clone()


@given(st.binary(max_size=200))
@example(b"\x02" + b"\0" * 7 + b"{}")
def test_any_bytes_are_refused_or_a_tree(data):
    with suppress(ValueError):
        look_at(loads(data))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | st.sampled_from(["0", "float32", "cpu", 2**62, -1]),
    lambda inner: (
        st.lists(inner, max_size=8)
        | st.dictionaries(
            st.sampled_from(["tensor", "dict", "tuple", "opaque", "float", "dtype", "device"]),
            inner,
            max_size=1,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_json_in_a_frame_is_refused_or_a_tree(value):
    with suppress(ValueError):
        look_at(loads(frame(value, **{"0": BYTES})))


sizes = st.integers(-1, 20) | st.sampled_from([2**31, 2**59, 2**62, 2**64])


@given(
    st.lists(st.tuples(sizes, sizes), max_size=4),
    sizes,
    st.sampled_from(["float32", "int8", "bool", "complex64"]),
)
def test_any_outline_is_refused_or_inside_of_its_storage(axes, offset, dtype):
    tree = tensor([n for n, _ in axes], [s for _, s in axes], offset, dtype)
    try:
        found = loads(frame(tree, **{"0": BYTES}))
    except ValueError:
        return
    if found.numel():
        last = offset + sum((n - 1) * s for n, s in axes)
        assert (last + 1) * found.element_size() <= 64
    look_at(found)


def test_a_tensor_of_2_to_the_50_elements_costs_nothing():
    huge = loads(frame(tensor([2**25, 2**25], [0, 0]), **{"0": BYTES}))
    assert huge.numel() == 2**50  # who looked at them all would never come back
    for want in (torch.zeros(2), torch.zeros(2, 2), [1, 2], 1.0, {"a": 1}, "text", None):
        assert compare(huge, want)
        assert compare([huge], [want]) and compare({"a": huge}, {"a": want})


def test_what_crosses_keeps_its_kind():
    class Mine(torch.Tensor):
        pass

    for value in (
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2).as_subclass(Mine),
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
    ):
        here, there = (compare(x, torch.ones(2)) for x in (value, loads(dumps(value))))
        assert here == there and here is not None
    resized = torch.ones(2)
    resized.untyped_storage().resize_(4)
    assert compare(resized, torch.ones(2)) == compare(loads(dumps(resized)), torch.ones(2))
    assert torch.equal(loads(dumps(torch.tensor([1j]).conj())), torch.tensor([-1j]))


def test_a_number_of_another_kind_does_not_pass_for_a_plain_one():
    class One(enum.IntEnum):
        ONE = 1

    assert loads(dumps(np.int64(1))) == 1 and type(loads(dumps(np.float32(0.5)))) is float
    assert isinstance(loads(dumps(One.ONE)), Opaque)
    assert isinstance(loads(dumps(10**5000)), Opaque)


def test_a_tree_that_holds_itself_does_not_cross():
    endless: list = []
    endless.append(endless)
    with pytest.raises(ValueError):
        dumps(endless)
    with pytest.raises(ValueError):
        dumps(list(range(600_000)))


# ------------------------------------------------------------------ what trees stand for

RAISED = {
    "kinds": ["ValueError"],
    "message": "m",
    "lines": [["f", 1, "x"]],
    "where": "",
    "told": False,
    "never": False,
    "costly": False,
}
SEEN = {"seen": {"result": 1}, "raised": None, "left": [], "seconds": 0.5}


def test_observations_cross():
    for found in (
        Observation({"result": 1}, None, 0.5, ("set something",)),
        Observation(None, Raised(("ValueError", "Exception"), "no", (("f", 3, "x"),)), 0.1),
        Observation(None, Raised(("\x1b[2J" + "x" * 5000,), "\ud800"), 0.1),
    ):
        back = Observation.from_tree(loads(dumps(found.as_tree())))
        assert back == found or found.raised.kind.startswith("\x1b")
        str(back).encode()


@pytest.mark.parametrize(
    "tree",
    [
        None,
        [],
        {},
        SEEN | {"seen": None},
        SEEN | {"raised": RAISED},
        SEEN | {"seconds": math.nan},
        SEEN | {"seconds": math.inf},
        SEEN | {"seconds": -1.0},
        SEEN | {"seconds": 1},
        SEEN | {"left": "text"},
        SEEN | {"left": [1]},
        SEEN | {"left": ["x"] * 1000},
        SEEN | {"passed": True},
        SEEN | {"seen": {1: 1}},
        SEEN | {"seen": {"x" * 5000: 1}},
        SEEN | {"seen": {"\x1b[2J": 1}},
        *(
            SEEN | {"seen": None, "raised": RAISED | change}
            for change in (
                {"kinds": []},
                {"kinds": "ValueError"},
                {"kinds": [1]},
                {"kinds": ["x"] * 1000},
                {"message": None},
                {"message": "x" * 5000},
                {"message": "\x1b[2J"},
                {"message": "\ud800"},
                {"lines": [["f", "1", "x"]]},
                {"lines": [["f", 2**70, "x"]]},
                {"lines": [["f"]]},
                {"where": 1},
                {"told": "yes"},
                {"extra": 1},
            )
        ),
    ],
)
def test_a_forged_observation_is_refused(tree):
    with pytest.raises(ValueError):
        Observation.from_tree(tree)


@pytest.mark.parametrize(
    "change",
    [
        {"flops": -1},
        {"flops": 1.0},
        {"flops": True},
        {"flops": 2**70},
        {"flops": None},
        {"ops": {"aten::add": -1}},
        {"ops": {1: 1}},
        {"ops": []},
        {"left_torch": "tolist"},
        {"left_torch": [1]},
        {"score": 100},
    ],
)
def test_a_forged_cost_is_refused(change):
    cost = Cost(flops=3)
    assert Cost.from_dict(cost.as_dict()) == cost
    with pytest.raises(ValueError):
        Cost.from_dict(cost.as_dict() | change)


@pytest.mark.parametrize(
    "tree",
    [
        None,
        {},
        {"costs": [], "result": 1, "elsewhere": ""},
        {"costs": [1], "result": 1, "elsewhere": ""},
        {"costs": [Cost().as_dict()] * 2, "result": 1, "elsewhere": ""},
        {"costs": [Cost().as_dict()], "result": 1, "elsewhere": None},
    ],
)
def test_a_forged_measurement_is_refused(tree):
    with pytest.raises(ValueError):
        Measured.from_tree(tree)


def function(x, *, y=1):
    return x


@given(json_values, st.data())
def test_a_forged_description_is_refused(value, data):
    tree = described(function)
    assert description(loads(dumps(tree))) == description(tree)
    tree[data.draw(st.sampled_from(list(tree)))] = value
    with suppress(ValueError):
        description(tree)


@pytest.mark.parametrize(
    "parameters",
    [
        [
            {"name": "x", "kind": "KEYWORD_ONLY", "default": []},
            {"name": "y", "kind": "POSITIONAL_ONLY", "default": []},
        ],
        [{"name": "not a name", "kind": "KEYWORD_ONLY", "default": []}],
        [{"name": "x", "kind": "POSITIONAL_ONLY", "default": []}] * 2,
        [{"name": "x"}],
        [1],
        "text",
    ],
)
def test_parameters_that_no_function_has_are_refused(parameters):
    with pytest.raises(ValueError):
        description(described(function) | {"call": {"text": "", "parameters": parameters}})
