"""The probe of an nn.Module sees what would go unnoticed, and takes no style for a fault."""

import pytest
import torch
from torch import nn

from course_utils.grading import call
from course_utils.grading.probes import (
    assembled,
    dropout,
    module,
    module_or_refusal,
    registry,
    tied,
)
from course_utils.grading.probes.chapters.modules import assemble, described

X = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
WEIGHTS = {"weight": torch.tensor([2.0, 3.0])}


class Scale(nn.Module):
    def __init__(self, n=2):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return x * self.weight


def seen(subject, *steps):
    return module(subject, call({"n": 2}, WEIGHTS, *steps))


def test_forward_backward_and_the_step_after():
    found = seen(Scale, ("train", X), ("eval", X))
    assert torch.equal(found["step 1 (train): output"], X * WEIGHTS["weight"])
    weights = torch.linspace(-1, 1, 4).view(2, 2)
    gradient = (weights * X).sum(0)
    assert torch.allclose(found["step 1 (train): gradient of `weight`"], gradient)
    moved = WEIGHTS["weight"] - 0.1 * gradient
    assert torch.allclose(found["step 2 (eval): output"], X * moved)


def test_both_precisions():
    single, double = (
        module(Scale, call({"n": 2}, {"weight": WEIGHTS["weight"].to(t)}, ("train", X.to(t))))
        for t in (torch.float32, torch.float64)
    )
    assert single["step 1 (train): output"].dtype == torch.float32
    assert double["step 1 (train): output"].dtype == torch.float64


def test_a_weight_that_is_no_parameter_is_seen_before_anything_fails():
    class Plain(Scale):
        def __init__(self, n=2):
            super().__init__()
            del self.weight
            self.weight = torch.ones(n)

    found = seen(Plain, ("train", X))
    assert found["parameters"] == {} and "step 1 (train): output" not in found


def test_a_change_of_the_input_is_seen():
    class InPlace(Scale):
        def forward(self, x):
            return x.mul_(2) * self.weight

    assert "step 1 (train): argument `x` afterwards" in seen(InPlace, ("train", X))
    assert "step 1 (train): argument `x` afterwards" not in seen(Scale, ("train", X))


def test_a_detach_is_seen():
    class Detached(Scale):
        def forward(self, x):
            return (x * self.weight).detach()

    assert seen(Detached, ("train", X))["step 1 (train): the result requires grad"] is False


def test_state_that_is_not_saved_is_lost_in_a_reload():
    class Counting(Scale):
        def __init__(self, n=2):
            super().__init__(n)
            self.calls = torch.tensor(0.0)

        def forward(self, x):
            self.calls = self.calls + 1
            return x * self.weight + self.calls

    class Saved(Counting):
        def __init__(self, n=2):
            super().__init__(n)
            calls = self.calls
            del self.calls
            self.register_buffer("calls", calls)

    steps = ("eval", X), ("reload",), ("eval", X)
    lost = module(Counting, call({"n": 2}, WEIGHTS, *steps))
    assert torch.equal(lost["step 1 (eval): output"], lost["step 3 (eval): output"])
    weights = WEIGHTS | {"calls": torch.tensor(0.0)}
    kept = module(Saved, call({"n": 2}, weights, *steps))
    assert torch.equal(kept["step 3 (eval): output"], kept["step 1 (eval): output"] + 1)


def test_a_buffer_that_moves_before_a_batch_is_refused_is_seen():
    class Refusing(Scale):
        def __init__(self, n=2):
            super().__init__(n)
            self.register_buffer("calls", torch.tensor(0))

        def forward(self, x):
            if len(x) < 2:
                raise ValueError("one row")
            self.calls += 1
            return super().forward(x)

    class Counting(Refusing):
        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    one_row = call({"n": 2}, WEIGHTS, ("train", X[:1]), refused=True)
    label = "the buffers are as before"
    assert module_or_refusal(Refusing, one_row) == {"raises": "ValueError", label: True}
    assert module_or_refusal(Counting, one_row) == {"raises": "ValueError", label: False}
    assert module_or_refusal(Scale, one_row) == {"raises": "nothing", label: True}
    case = call({"n": 2}, WEIGHTS, ("train", X))
    assert module_or_refusal(Scale, case).keys() == module(Scale, case).keys()


def test_start_values_and_extra_repr():
    found = module(nn.Linear, call({"in_features": 20, "out_features": 10_000}, {}, ("fresh",)))
    assert found["step 1 (fresh): standard deviation of `weight`"] == 0.13  # 1 / √60
    assert found["step 1 (fresh): fourth moment / variance² of `weight`"] == 2  # uniform: 1.8
    shown = module(nn.Linear, call({"in_features": 2, "out_features": 1}, {}, ("extra_repr",)))
    assert shown["step 1 (extra_repr): extra_repr()"] == "in_features=2, out_features=1, bias=True"


def test_dropout_is_judged_by_statistics():
    right = dropout(nn.Dropout, call({"p": 0.25}, (400, 500), torch.float32))
    assert right["train: fraction dropped / p"] == 1.0
    assert not right["train: rows dropped as one"]
    assert not right["train: columns dropped as one"]
    assert right["train: rows differ as much as chance lets them"]
    assert right["train: columns differ as much as chance lets them"]
    assert right["train: each call draws anew"] and right["eval: output equals input"]
    rows = dropout(nn.Dropout1d, call({"p": 0.25}, (400, 500), torch.float32))
    assert not rows["train: rows differ as much as chance lets them"]


def test_dropout_has_to_refuse_a_p_when_it_is_built():
    class Late(nn.Dropout):
        def __init__(self, p=0.5):
            super().__init__(0.5)
            self.p = p

    case = call({"p": 2.0}, (3, 4), torch.float32)
    assert dropout(nn.Dropout, case) == {"raises": "ValueError"}
    assert dropout(Late, case) == {"raises": "nothing"}


def test_a_second_instance_and_a_forgotten_device_are_seen():
    class Shared(Scale):
        def __init__(self, n=2):
            super().__init__(n)
            Shared.n = n

        def forward(self, x):
            return x * self.weight * self.n + torch.zeros(2)

    beside = ("beside", {"n": 1}, X[:, :1])
    steps = ("eval", X), beside, ("eval", X)
    found = seen(Shared, *steps)
    assert not torch.equal(found["step 1 (eval): output"], found["step 3 (eval): output"])
    found = seen(Scale, *steps, ("meta", X), ("get", "bias"))
    assert torch.equal(found["step 1 (eval): output"], found["step 3 (eval): output"])
    assert found["step 4 (meta): device"] == "meta"
    assert found["step 5 (get): attribute `bias`"] != "None"
    with pytest.raises(RuntimeError, match="device"):
        seen(Shared, ("meta", X))


def test_a_model_from_its_description():
    tree = {
        "wte": ("embedding", 5, 3),
        "h": [{"fc": ("linear", 3, 4)}],
        "head": ("linear", 3, 5, False),
        "lost": ("python list", ("linear", 2, 2)),
        "tied": [("wte.weight", "head.weight")],
        "frozen": ["h.0.fc.bias"],
    }
    model = assemble(tree)
    assert model.head.weight is model.wte.weight
    assert [name for name, _ in model.named_parameters()] == [
        "wte.weight",
        "h.0.fc.weight",
        "h.0.fc.bias",
    ]
    assert "head.weight is wte.weight" in described(tree)
    found = assembled(lambda m: m.requires_grad_(False) and None, call(tree))
    assert not any(found["trained"].values()) and found["returns"] is None


def test_tying_by_copy_comes_apart():
    table = torch.arange(6.0).view(3, 2)
    case = call(table, torch.zeros(3, 2), None, torch.tensor([1]))

    def assign(embedding, head):
        head.weight = embedding.weight

    def copy(embedding, head):
        head.weight.data.copy_(embedding.weight)

    a, b = tied(assign, case), tied(copy, case)
    assert torch.equal(a["step 1: output"], b["step 1: output"])
    assert not torch.equal(a["step 2: output"], b["step 2: output"])
    assert a["embedding.weight is the parameter it was"]


def test_the_registry_probe_on_nn_module_itself():
    class Real(nn.Module):
        def named_parameters(self, prefix=""):
            return super().named_parameters(prefix.rstrip("."))

    tree = {
        "weight": ("parameter", torch.ones(2)),
        "mean": ("buffer", torch.zeros(2)),
        "inner": {"bias": ("parameter", torch.ones(1))},
        "shared": ("same", "weight"),
    }
    found = registry(Real, call(tree, ("train", False), ("round trip",)))
    assert found["at first: named_parameters()"] == ["weight", "inner.bias"]
    assert sorted(found["at first: state_dict()"]) == ["inner.bias", "mean", "shared", "weight"]
    assert found["after step 1 (train): training"] == {"itself": False, "inner.": False}
    again = found["after step 2 (round trip): the other: values"]["weight"]
    assert torch.equal(again, torch.ones(2))
