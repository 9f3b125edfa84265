"""The optimizer's probe sees what a training loop relies on, whichever optimizer it drives."""

from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from course_utils.grading import call, probes
from course_utils.grading.pytrees.serialization import dumps
from course_utils.grading.pytrees.strict import loads
from course_utils.grading.pytrees.tree import same
from course_utils.reference.optimizers import decay_groups, optimizer_state_bytes

SHAPES = ((3, 2), (4,), ())


def training(**more):
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]
    grads = [
        [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES] for _ in range(6)
    ]
    grads[1][1] = grads[2][1] = grads[4][0] = None
    return call(params=params, grads=grads, options={"lr": 0.1}, **more)


def see(cls, **more):
    return probes.optimizer(cls, training(**more).fresh())


ALL = [torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adam]
ALL += [torch.optim.AdamW, torch.optim.Adamax, torch.optim.RAdam]


@pytest.mark.parametrize("cls", ALL)
def test_saving_and_loading_changes_nothing_for_torchs_own(cls):
    groups = [{"params": [2, 0]}, {"params": [1], "lr": 0.3}]
    whole = see(cls, groups=groups, fade=0.9)
    for step in range(2, 7):
        assert same(see(cls, groups=groups, fade=0.9, reload=step), whole)


@pytest.mark.parametrize("cls", ALL)
def test_it_is_torchs_trajectory(cls):
    case = training()
    params = [nn.Parameter(p.clone()) for p in case.kwargs["params"]]
    optimizer = cls(params, lr=0.1)
    for grads in case.kwargs["grads"]:
        for p, g in zip(params, grads, strict=True):
            p.grad = None if g is None else g.clone()
        optimizer.step()
    seen = see(cls)
    for i, p in enumerate(params):
        assert torch.equal(seen[f"parameter {i} after each step"][-1], p)
    for promise in (
        "parameters are changed in place",
        "gradients are left alone",
        "no graph is kept",
    ):
        assert seen[promise] is True


def test_torchs_own_takes_the_steps_before_its_checkpoint_is_loaded():
    whole = see(torch.optim.AdamW)
    assert same(see(torch.optim.AdamW, begins="AdamW", reload=4), whole)
    other = see(Rebinds, begins="AdamW", reload=4)
    for i in range(len(SHAPES)):
        label = f"parameter {i} after each step"
        assert torch.equal(other[label][:3], whole[label][:3])
        assert not torch.equal(other[label][3:], whole[label][3:])


def test_parameters_come_as_an_iterator_as_a_models_do():
    class Counts(torch.optim.SGD):
        def __init__(self, params, lr=0.1):
            assert len(list(params)) == len(SHAPES)
            super().__init__(params, lr)

    with pytest.raises(ValueError, match="empty parameter list"):
        see(Counts)


def test_bytes_of_state():
    n = 8 * (6 + 4)  # the single number is left out, and so are counts of steps
    assert see(torch.optim.SGD)["bytes of state"] == 0
    assert see(torch.optim.Adagrad)["bytes of state"] == n
    assert see(torch.optim.AdamW)["bytes of state"] == 2 * n


def test_state_of_parameters_that_never_had_a_gradient_is_nobodys_concern():
    grads = [[torch.ones(3), None]]
    case = call(params=[torch.ones(3), torch.ones(50)], grads=grads, options={"lr": 0.1})
    seen = probes.optimizer(torch.optim.Adagrad, case)  # torch makes its state in the constructor
    assert seen["bytes of state"] == 12


class Sloppy(Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})


class Rebinds(Sloppy):
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.data = p.data - 0.1 * p.grad


class Scribbles(Sloppy):
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.data.sub_(p.grad.mul_(0.1))


class KeepsGraph(Sloppy):
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                self.state[p]["b"] = p.grad + p
                p.data.sub_(0.1 * p.grad)


class Detaches(Sloppy):
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.sub_(0.1 * p.grad)
                p.requires_grad_(False)


@pytest.mark.parametrize(
    "cls, promise",
    [
        (Rebinds, "parameters are changed in place"),
        (Scribbles, "gradients are left alone"),
        (KeepsGraph, "no graph is kept"),
        (Detaches, "no graph is kept"),
    ],
)
def test_broken_promises_are_seen(cls, promise):
    assert see(cls)[promise] is False


def test_an_alias_of_the_gradient_is_seen():
    class Aliases(Sloppy):
        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                if p.grad is not None:
                    p.sub_(0.1 * self.state[p].setdefault("first", p.grad))

    class Clones(Sloppy):
        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                if p.grad is not None:
                    p.sub_(0.1 * self.state[p].setdefault("first", p.grad.clone()))

    label = "parameter 2 after each step"
    assert not torch.equal(see(Aliases)[label], see(Clones)[label])


def test_the_fresh_optimizer_gets_its_options_from_the_file():
    class OwnRate(Sloppy):
        def __init__(self, params, lr=0.1):
            super().__init__(params, lr)
            self.lr = lr

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                if p.grad is not None:
                    p.sub_(self.lr * p.grad)

    case = training()
    case.kwargs["options"] = {"lr": 0.5}
    whole = probes.optimizer(OwnRate, case.fresh())
    case.kwargs["reload"] = 4
    assert not same(probes.optimizer(OwnRate, case.fresh()), whole)


def test_what_is_kept_in_the_class_does_not_pass_for_state():
    class InTheClass(Sloppy):
        kept: ClassVar = {}

        @torch.no_grad()
        def step(self):
            for i, p in enumerate(self.param_groups[0]["params"]):
                if p.grad is not None:
                    total = self.kept.get(i, torch.zeros_like(p)) + p.grad
                    self.kept[i] = total
                    p.sub_(0.1 * total)

    whole = see(InTheClass)
    InTheClass.kept.clear()
    assert not same(see(InTheClass, reload=4), whole)


def test_a_count_of_steps_is_looked_at_where_the_case_names_it():
    class Counts(torch.optim.Optimizer):
        def __init__(self, params, first=0, lr=0.1):
            super().__init__(params, {"lr": lr})
            self.first = first

        def step(self):
            for p in self.param_groups[0]["params"]:
                self.state[p]["step"] = self.state[p].get("step", self.first) + 1

    def see(cls, **more):
        case = call(params=[torch.ones(2)], grads=[[torch.ones(2)]] * 2, **more)
        return probes.optimizer(cls, case.fresh())

    seen = "`step` in the state is a float32 tensor"
    assert see(torch.optim.Adam, counts="step")[seen]
    assert see(torch.optim.SGD, counts="step")[
        seen
    ]  # where there is none, nothing is wrong with it
    assert seen not in see(Counts)
    firsts = {0: False, torch.zeros((), dtype=torch.float64): False, torch.zeros(()): True}
    for first, right in firsts.items():
        assert see(Counts, counts="step", options={"first": first})[seen] is right


def test_what_is_seen_crosses_to_another_process():
    for case in (training(reload=3), training(groups=[{"params": [0, 1, 2]}])):
        seen = probes.optimizer(torch.optim.Adam, case.fresh())
        assert same(loads(dumps(seen)), seen)
        assert same(loads(dumps(case.as_tree()))["kwargs"], case.kwargs)


def test_the_call_is_told_in_words():
    says = probes.optimizer.called
    text = says("Adam", training(reload=3, fade=0.5))
    assert "Adam([p0, p1, p2], lr=0.1), 6 steps" in text
    assert "no gradient for p1 in step 2, p1 in step 3, p0 in step 5" in text
    assert "saved and loaded into a fresh Adam(…) before step 3" in text
    begun = says("Adam", training(reload=3, begins="AdamW"))
    assert (
        "begun by torch.optim.AdamW, saved and loaded into a fresh Adam(…) before step 3" in begun
    )
    small = call(params=[torch.ones(1)], grads=[[torch.zeros(1)], [None]], options={"lr": 0.1})
    assert "p0 = [1], gradients [0], then None" in says("SGD", small)
    grouped = says("SGD", training(groups=[{"params": [0, 1]}, {"params": [2], "lr": 0.3}]))
    assert "{'params': [p2], 'lr': 0.3}" in grouped


@pytest.mark.parametrize(
    "name, bytes_",
    [
        ("Quantized", 17 * (1 + 1) + 256 * 4 + 3 * 8),  # codes, masks, the table, counts
        ("Windowed", 10 * 17 * 4),  # the whole history of each
        ("Flattened", 17 * 4),  # a buffer, and a view of all of it
        (
            "Factored",
            10 * 4,
        ),  # sums of 3 rows and 4 columns, twice that of a vector, a count for both
        ("Paired", 17 * (4 + 2)),
        ("Nested", 17 * (4 + 2)),
        ("Mixed", 17 * 4),
    ],
)
def test_optimizers_whose_state_is_not_floats_of_the_parameters_size(name, bytes_):
    case = call(name, {}, ((3, 4), (5,)), torch.float32, 0, 1)
    assert probes.state_bytes(optimizer_state_bytes, case) == {"result": bytes_}


def test_models_that_sorting_by_size_or_by_address_gets_wrong():
    seen = {}
    for model in (
        "Linear(3, 1), Linear(1, 2), Linear(1, 1), Embedding(1, 4), Conv1d(1, 1, 1)",
        "Linear, LayerNorm, Linear on the meta device",
    ):
        seen[model] = probes.parameter_groups(decay_groups, call(model, 0.1))
    thin, nowhere = seen.values()
    assert thin["parameters of group 1"] == tuple(f"{i}.weight" for i in range(5))
    assert nowhere["parameters of group 1"] == ("0.weight", "2.weight")
    assert len(nowhere["parameters of group 2"]) == 4


def test_groups_are_named_and_a_stranger_is_told_apart():
    def stranger(model, weight_decay):
        return [{"params": [nn.Parameter(torch.ones(1))]}, {"params": list(model.parameters())}]

    seen = probes.parameter_groups(stranger, call("Linear(3, 2)", 0.1))
    assert seen["parameters of group 1"] == ("no parameter of the model",)
    assert seen["parameters of group 2"] == ("bias", "weight")
    assert seen["options of group 1"] == {}


def test_anything_but_groups_is_returned_as_it_is():
    assert probes.parameter_groups(lambda model, wd: None, call("LayerNorm", 0.1)) == {
        "result": None
    }
