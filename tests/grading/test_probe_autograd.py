"""Probes of derivatives: cases that name a function, and what is seen of a custom Function."""

import pytest
import torch

from course_utils.grading import call, probes
from course_utils.grading.driving.case import Case
from course_utils.grading.probes.chapters.autograd import FUNCTIONS, function
from course_utils.grading.pytrees.serialization import dumps
from course_utils.grading.pytrees.strict import loads
from course_utils.reference import autograd as ref

CUBES = "lambda x: (x ** 3).sum()"
X, V = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])


def test_every_function_of_the_catalogue_can_be_called():
    for source in FUNCTIONS:
        f = function(source)
        if source.startswith("lambda w, x, y: F.cross"):
            given = (torch.ones(3, 2), torch.ones(4, 3), torch.tensor([0, 1, 1, 0]))
        elif source.startswith("lambda w"):
            given = (torch.ones(3), torch.ones(4, 3), torch.ones(4))
        else:
            given = (torch.ones(2, 3),)
        assert isinstance(f(*given), torch.Tensor), source


def test_a_case_may_name_no_other_function():
    with pytest.raises(KeyError, match="not one of the functions"):
        function("lambda x: __import__('os').getcwd()")


def test_a_case_with_a_function_is_data():
    case = Case.from_tree(loads(dumps(call(CUBES, X, V).as_tree())))
    seen = probes.takes_function(ref.hessian_vector_product, case)
    assert torch.equal(seen["result"], 6 * X * V)


def test_the_verdict_shows_a_call_that_can_be_pasted():
    said = probes.takes_function.called("hvp", call(CUBES, torch.tensor(2.0), eps=0.1))
    assert said == f"hvp({CUBES}, tensor(2, float32), eps=0.1)"
    said = probes.accumulates.called("f", call(CUBES, grad=torch.tensor(2.0)))
    assert said.endswith("where w.grad was tensor(2, float32)")


@pytest.mark.parametrize(
    "spoil",
    [lambda x: x.add_(1), lambda x: x.requires_grad_(), lambda x: setattr(x, "grad", x + 1)],
)
def test_whatever_happens_to_an_argument_is_seen(spoil):
    def answer(f, x):
        spoil(x)
        return 0

    seen = probes.takes_function(answer, call(CUBES, X.clone()))
    assert "argument `x` afterwards" in seen
    assert "argument `x` afterwards" not in probes.takes_function(
        lambda f, x: 0, call(CUBES, X.clone())
    )


def test_a_result_that_drags_its_graph_along_is_seen():
    x = X.clone().requires_grad_()
    seen = probes.takes_function(lambda f, x: f(x), call(CUBES, x))
    assert seen["requires_grad of result"] is True


class Attached(ref.SiLU):
    """Keeps its input where autograd does not look."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        s = ctx.x.sigmoid()
        return grad * s * (1 + ctx.x * (1 - s))


def test_an_unguarded_input_is_seen():
    label = "backward after its input was edited in place"
    assert probes.custom_function(ref.SiLU, call(X))[label] == "RuntimeError"
    assert probes.custom_function(Attached, call(X))[label] != "RuntimeError"


def test_gradcheck_speaks_in_float64_whatever_the_case_is():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        assert probes.custom_function(ref.SiLU, call(X.to(dtype)))["gradcheck in float64"]


def test_an_edit_in_place_is_seen_though_the_leaf_is_spared():
    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, low, high):
            return x.round_().clamp(low, high)

        @staticmethod
        def backward(ctx, grad):
            return grad, None, None

    seen = probes.straight_through(InPlace, call(torch.tensor([0.4]), -1, 1))
    assert torch.equal(seen["argument `x` afterwards"], torch.tensor([0.0]))


class OnTheClass(ref.StraightThroughRound):
    """Keeps its mask where the next call overwrites it."""

    @staticmethod
    def forward(ctx, x, low, high):
        OnTheClass.inside = (low <= x.round()) & (x.round() <= high)
        return x.round().clamp(low, high)

    @staticmethod
    def backward(ctx, grad):
        return torch.where(OnTheClass.inside, grad, 0.0), None, None


class OnCtx(ref.StraightThroughRound):
    """Keeps its mask as an attribute."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.inside = (low <= x.round()) & (x.round() <= high)
        return x.round().clamp(low, high)

    @staticmethod
    def backward(ctx, grad):
        return torch.where(ctx.inside, grad, 0.0), None, None


class InADict(OnCtx):
    """Keeps it in a dict there."""

    @staticmethod
    def forward(ctx, x, low, high):
        result = OnCtx.forward(ctx, x, low, high)
        ctx.kept = {"inside": ctx.inside}
        del ctx.inside
        return result

    @staticmethod
    def backward(ctx, grad):
        return torch.where(ctx.kept["inside"], grad, 0.0), None, None


@pytest.mark.parametrize("subject", [OnCtx, InADict])
@pytest.mark.parametrize("x", [torch.tensor([0.3, 3.0]), torch.zeros(0)])
def test_a_mask_on_ctx_is_seen(x, subject):
    label = "a tensor is kept on ctx itself"
    assert probes.saved_for_backward(subject, call(x, -2, 2))[label]
    assert not probes.saved_for_backward(ref.StraightThroughRound, call(x, -2, 2))[label]


def test_state_on_the_class_is_seen():
    case = call(torch.tensor([0.3, 3.0]), -2, 2)  # the other call clamps neither
    label = "gradient of `x`"
    right, wrong = (
        probes.straight_through(f, case) for f in (ref.StraightThroughRound, OnTheClass)
    )
    assert not torch.equal(right[label], wrong[label])


def test_an_edit_of_the_incoming_gradient_is_seen():
    class InPlace(ref.SiLU):
        @staticmethod
        def backward(ctx, grad):
            return grad.mul_(2)

    assert "argument `grad` afterwards" in probes.straight_through(InPlace, call(X))
    assert "argument `grad` afterwards" not in probes.straight_through(ref.SiLU, call(X))


def test_a_case_may_switch_recording_off():
    recorded = []
    for case in (call(CUBES, X), call(CUBES, X, no_grad=True)):
        probes.takes_function(lambda f, x: recorded.append(torch.is_grad_enabled()), case)
    assert recorded == [True, False]
    said = probes.takes_function.called("hvp", call(CUBES, torch.tensor(2.0), no_grad=True))
    assert said == f"hvp({CUBES}, tensor(2, float32)) under torch.no_grad()"


@pytest.mark.parametrize(("calls", "enough"), [(1, True), (5, True), (6, False)])
def test_calls_of_the_function_are_counted(calls, enough):
    def answer(f, x):
        for _ in range(calls):
            f(x)
        return x

    seen = probes.takes_differences(answer, call(CUBES, X))
    assert seen["two calls of f for each element are enough"] is enough


WITH_PARAMETER = "lambda x, w=torch.tensor(2.0, requires_grad=True): (w * x ** 3).sum()"


def test_a_gradient_left_with_the_function_s_own_parameters_is_seen():
    def answer(f, x, own):
        leaf = x.detach().requires_grad_()
        f(leaf).backward(inputs=None if own else [leaf])
        return leaf.grad

    for probe in (probes.takes_function, probes.takes_function_at, probes.takes_differences):
        spoilt, spared = (
            probe(lambda f, x, own=own: answer(f, x, own), call(WITH_PARAMETER, X))
            for own in (True, False)
        )
        assert spoilt["surroundings"].startswith("adds to the .grad of other tensors")
        assert "surroundings" not in spared


@pytest.mark.parametrize("step", [1e-1, 1e-4])
def test_a_function_called_beside_x_is_all_that_is_seen(step):
    def beside(f, x, v):
        slope = torch.func.grad(f)
        return (slope(x + step * v) - slope(x)) / step

    seen = probes.takes_function_at(beside, call(CUBES, X, V))
    assert seen == {"surroundings": "calls f at other points than x"}


def at_a_copy(f, x, v):
    return torch.autograd.functional.vhp(f, x.detach().clone(), v)[1]


def in_float64(f, x, v):
    return at_a_copy(f, x.double(), v.double()).to(x.dtype)


def forward_over_reverse(f, x, v):
    return torch.func.jvp(torch.func.grad(f), (x,), (v,))[1]


def by_the_whole_hessian(f, x, v):
    return torch.func.hessian(f)(x) @ v


@pytest.mark.parametrize(
    "answer", [at_a_copy, in_float64, forward_over_reverse, by_the_whole_hessian]
)
def test_a_function_called_at_x_in_any_form_is_not_called_beside_it(answer):
    seen = probes.takes_function_at(answer, call(CUBES, X, V))
    assert torch.allclose(seen["result"], 6 * X * V)


@pytest.mark.parametrize(("came", "shown"), [(24, False), (48, True), (72, True)])
def test_of_bytes_that_are_missed_it_is_not_seen_how_many(came, shown):
    case = call("lambda x: x.sin().cos()", X, whole=48)
    seen = probes.takes_function_for_bytes(lambda f, x: came, case)
    assert (seen == {"result": came}) is shown
    assert ("surroundings" in seen) is not shown
    assert "whole" not in probes.takes_function_for_bytes.called("saved_bytes", case)
