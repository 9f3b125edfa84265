"""Exercises of chapter 10, optimizers: update rules as classes, their groups, their bytes."""
# mypy: ignore-errors
# (mistakes are written as students write them, and all classes of theirs are called _)

from collections.abc import Iterator
from math import prod, sqrt

import torch
from hypothesis import strategies as st
from torch import nn

from course_utils.grading import Exercise, call, contracts, draws, probes
from course_utils.grading.probes import prepared
from course_utils.reference import optimizers

# ------------------------------------------------------------------------------ cases


def training(params, grads, options=None, **more):
    """A case for `probes.optimizer`: these parameters, gradients by step, options."""
    return call(params=list(params), grads=grads, options=options or {}, **more)


def line(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def steps_of(*gradients):
    """One parameter's gradients, step by step."""
    return [[g] for g in gradients]


SHAPES = ((2,), (3,), (2, 3), (3, 1, 2), ())


def draw_training(draw, options, apart):
    """Two or three parameters over 3 to 6 steps: groups, missing gradients, a fade, a reload.

    options: the optimizer's. apart: what a second group has of its own besides a learning rate.
    """
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=2, max_size=3))
    steps = draw(st.integers(3, 6))
    params = [draw(draws.tensors(shape, dtype)) for shape in shapes]
    missing = draw(st.booleans())
    grads = [
        [
            None if missing and draw(st.integers(0, 3)) == 0 else draw(draws.tensors(s, dtype))
            for s in shapes
        ]
        for _ in range(steps)
    ]
    more = {}
    if draw(st.booleans()):
        more["groups"] = [
            {"params": list(range(1, len(shapes)))},
            {"params": [0], "lr": 3 * options["lr"], **apart},
        ]
    if draw(st.booleans()):
        more["reload"] = draw(st.integers(2, steps))
    if draw(st.booleans()):
        more["fade"] = 0.5
    return training(params, grads, options, **more)


def long_run(options, apart):
    """Fifty steps on three parameters in two groups, with gaps, a fade and a reload in the middle."""
    generator = torch.Generator().manual_seed(10)
    shapes = ((3, 2), (4,), (2, 1, 2))

    def normal(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    grads = [
        [None if (step + 2 * i) % 5 == 4 else normal(shape) for i, shape in enumerate(shapes)]
        for step in range(50)
    ]
    groups = [{"params": [0, 2]}, {"params": [1], "lr": 0.3 * options["lr"], **apart}]
    params = [normal(shape) for shape in shapes]
    return training(params, grads, options, groups=groups, reload=26, fade=0.98)


def ordinary_edges(options):
    """What every optimizer must bear: gaps, an empty tensor, one seen through strides."""
    x = torch.arange(6.0).view(2, 3).T
    yield (
        training(
            [line(1.0, 2.0), line(3.0, 4.0)], [[None, None], [None, line(1.0, -1.0)]], options
        ),
        "no gradient at all, then one for the second parameter only",
    )
    yield (
        training([x], steps_of(x.cos(), x.sin()), options),
        "a parameter that is not contiguous",
    )
    yield (
        training(
            [torch.ones(0, 2), line(1.0, 2.0)], [[torch.ones(0, 2), line(2.0, -1.0)]] * 2, options
        ),
        "a parameter without elements",
    )
    large = torch.linspace(-1.0, 1.0, 48 * 40).view(48, 40)
    yield training([large], steps_of(large.cos(), large.sin()), options), "a larger matrix"
    yield crowd(MANY + 1, options), "as many parameters as a model has"


def crowd(count, options):
    """That many small parameters, two steps: what the contracts measure, with values to compare."""

    def several(start):
        return [line(start + i, 1.0) for i in range(count)]

    return training(several(0.0), [several(1.0), several(-5.0)], options)


def zero_gradients(options):
    return (
        training([line(1.0, 1.0)], steps_of(line(0.0, 1.0), line(0.0, 0.0)), options),
        "a gradient of zero",
    )


def tiny_gradients(options):
    x = line(1.0, 1.0, 1.0, dtype=torch.float64)
    g = line(1e-3, 1e-5, 1.0, dtype=torch.float64)
    return (
        training([x], steps_of(g, 2 * g), {**options, "eps": 1e-3}),
        "gradients as small as eps, or smaller",
    )


# ------------------------------------------------------------------------------ costs

MANY = 32
PARAMETER_BYTES = 4 * prod(prepared.SIDE)


def many(count=MANY, **options):
    """A case for the meters: that many parameters of one size, with gradients."""
    return call(count=count, options=options)


def bounded_memory(tensors, **options):
    """A first step keeps so many tensors for each parameter, and at no time a copy of them all."""
    kept = {0: "no state", 1: "one tensor", 2: "two tensors"}[tensors]
    return contracts.peak(
        [many(**options)],
        limit=(tensors * MANY + 16) * PARAMETER_BYTES,
        says=f"{kept} for each parameter, a few temporary ones, and no copy of all parameters",
        prepare=prepared.optimizer_step,
    )


# ------------------------------------------------------------------------------ mistakes' tools


def each(optimizer) -> Iterator[tuple]:
    """(group, p, grad, state) of every parameter with a gradient, the sign turned to maximize."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                grad = -p.grad if group["maximize"] else p.grad.clone()
                yield group, p, grad, optimizer.state[p]


def zeros(state, p, *names):
    """The tensors of the state with these names, zeros at first."""
    for name in names:
        if name not in state:
            state[name] = torch.zeros_like(p)
    return [state[name] for name in names]


def counted(state):
    """Steps of this parameter, the present one included."""
    state["step"] = state.get("step", 0) + 1
    return state["step"]


# ------------------------------------------------------------------------------ SGD

SGD = Exercise(
    optimizers.SGD,
    title="Stochastic gradient descent",
    difficulty=1,
    minutes=25,
    points=3,
    probe=probes.optimizer,
    stand_in="torch.optim.SGD",
    hints=(
        "Put the hyper-parameters into a dict and hand it to `super().__init__(params, defaults)`. In "
        "`step`, loop over `self.param_groups` and over `group['params']`, and read every "
        "hyper-parameter from the group.",
        (
            "random cases",
            "In this order: skip where `p.grad is None`; turn the sign to maximize; add the decay; fill "
            "the momentum buffer `self.state[p]['momentum_buffer']`; look ahead for Nesterov; update.",
        ),
        "The first buffer is a *clone* of the gradient, undampened. `p.add_(grad, alpha=-lr)` changes "
        "the parameter in place; `p.data = …` would replace it.",
    ),
)


@SGD.by_hand
def _():
    yield (
        training([line(1.0, -2.0)], steps_of(line(0.5, 1.0), line(0.5, 1.0)), {"lr": 0.1}),
        {"parameter 0 after each step": torch.tensor([[0.95, -2.1], [0.9, -2.2]])},
    )
    yield (
        training(
            [line(1.0, 2.0)],
            steps_of(line(1.0, 0.0), line(1.0, 0.0)),
            {"lr": 0.1, "momentum": 0.5},
        ),
        {"parameter 0 after each step": torch.tensor([[0.9, 2.0], [0.75, 2.0]])},
    )
    yield (
        training(
            [line(1.0, 2.0)],
            steps_of(line(1.0, 0.0), line(1.0, 0.0)),
            {"lr": 0.1, "momentum": 0.5, "nesterov": True, "weight_decay": 0.0},
        ),
        {"parameter 0 after each step": torch.tensor([[0.85, 2.0], [0.675, 2.0]])},
    )


@SGD.cases(30)
def _(draw):
    momentum = draw(st.sampled_from([0.0, 0.9]))
    nesterov = bool(momentum) and draw(st.booleans())
    dampening = draw(st.sampled_from([0.0, 0.4])) if not nesterov else 0.0
    options = {
        "lr": 0.1,
        "momentum": momentum,
        "dampening": dampening,
        "nesterov": nesterov,
        "weight_decay": draw(st.sampled_from([0.0, 0.2])),
        "maximize": draw(st.booleans()),
    }
    yield draw_training(draw, options, {"weight_decay": 0.5})


@SGD.edge
def _():
    options = {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.3}
    yield from ordinary_edges(options)
    yield long_run(options, {"weight_decay": 0.0, "momentum": 0.5}), "fifty steps"
    g = steps_of(line(1.0, 2.0))
    yield (
        training([line(1.0, 2.0)], g, {"nesterov": True}),
        "Nesterov without momentum is refused",
    )
    yield (
        training([line(1.0, 2.0)], g, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}),
        "Nesterov with dampening is refused",
    )
    yield (
        training([line(1.0, 2.0)], g, {"nesterov": True, "momentum": -0.5}),
        "Nesterov with a negative momentum is refused",
    )


SGD.contract(bounded_memory(0))
SGD.contract(bounded_memory(1, momentum=0.9))


def sgd(optimizer, direct):
    """A step in which `direct(group, p, grad, state)` gives what lr multiplies."""
    for group, p, grad, state in each(optimizer):
        p.add_(direct(group, p, grad, state), alpha=-group["lr"])


def with_decay(group, p, grad):
    return grad + group["weight_decay"] * p


def with_momentum(group, grad, state):
    """The right direction, for mistakes that are made elsewhere."""
    momentum = group["momentum"]
    if not momentum:
        return grad
    if "momentum_buffer" not in state:
        state["momentum_buffer"] = grad.clone()
    else:
        state["momentum_buffer"].mul_(momentum).add_(grad, alpha=1 - group["dampening"])
    buffer = state["momentum_buffer"]
    return grad + momentum * buffer if group["nesterov"] else buffer


@SGD.mistake(
    "You dampen the first gradient too. torch's buffer starts as the whole first gradient; dampening "
    "begins with the second."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        def direct(group, p, grad, state):
            if group["momentum"]:
                (buffer,) = zeros(state, p, "momentum_buffer")
                grad = with_decay(group, p, grad)
                buffer.mul_(group["momentum"]).add_(grad, alpha=1 - group["dampening"])
                return grad + group["momentum"] * buffer if group["nesterov"] else buffer
            return with_decay(group, p, grad)

        sgd(self, direct)


@SGD.mistake(
    "Your buffer averages, (1 − momentum)·g, as Adam's does. Here it adds up: the whole gradient, unless "
    "`dampening` takes some of it away."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        def direct(group, p, grad, state):
            grad, mu = with_decay(group, p, grad), group["momentum"]
            if not mu:
                return grad
            (buffer,) = zeros(state, p, "momentum_buffer")
            buffer.mul_(mu).add_(grad, alpha=1 - mu)
            return grad + mu * buffer if group["nesterov"] else buffer

        sgd(self, direct)


@SGD.mistake(
    "With Nesterov you step along momentum·b alone. The gradient belongs to it: g + momentum·b, which "
    "is where the buffer will carry you next."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        def direct(group, p, grad, state):
            direction = with_momentum(
                {**group, "nesterov": False}, with_decay(group, p, grad), state
            )
            return group["momentum"] * direction if group["nesterov"] else direction

        sgd(self, direct)


@SGD.mistake(
    "`nesterov` makes no difference in your results: the step is to go along g + momentum·b with the "
    "*new* b. With the old one, g + momentum·b is the new b itself."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        sgd(
            self,
            lambda group, p, grad, state: with_momentum(
                {**group, "nesterov": False}, with_decay(group, p, grad), state
            ),
        )


@SGD.mistake(
    "Your decay bypasses the momentum buffer. In SGD it is L2: part of the gradient before anything "
    "else is done with it."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        def direct(group, p, grad, state):
            return with_momentum(group, grad, state) + group["weight_decay"] * p

        sgd(self, direct)


@SGD.mistake(
    "With `maximize` you turn the sign of the decay too, so weights grow. Turn the gradient's sign "
    "first, then add the decay."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        def direct(group, p, grad, state):
            sign = -1 if group["maximize"] else 1
            return with_momentum(group, grad + sign * group["weight_decay"] * p, state)

        sgd(self, direct)


@SGD.mistake("`maximize` makes no difference in your code: it turns the sign of the gradient.")
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["maximize"] = False
        super().step()


@SGD.mistake(
    "You bind `p.data` to a new tensor, so the parameter leaves the memory that others (a view, an "
    "optimizer, a bucket of DDP) hold on to. Change it in place: `p.add_(…)`."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        for group, p, grad, state in each(self):
            direction = with_momentum(group, with_decay(group, p, grad), state)
            p.data = p.data - group["lr"] * direction


@SGD.mistake(
    "You take lr from the constructor. A group may have its own, and a schedule changes "
    "`group['lr']` as training goes: read it from the group at every step."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        for group, p, grad, state in each(self):
            direction = with_momentum(group, with_decay(group, p, grad), state)
            p.add_(direction, alpha=-self.defaults["lr"])


@SGD.mistake(
    "A parameter without gradient has `p.grad` None, and your step cannot do arithmetic with that: "
    "skip it."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                grad = with_decay(group, p, -p.grad if group["maximize"] else p.grad.clone())
                p.add_(with_momentum(group, grad, self.state[p]), alpha=-group["lr"])


@SGD.mistake(
    "You take a missing gradient for zeros, so momentum and decay still move the parameter. Without "
    "gradient it stays as it is."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                grad = with_decay(group, p, -p.grad if group["maximize"] else p.grad.clone())
                p.add_(with_momentum(group, grad, self.state[p]), alpha=-group["lr"])


@SGD.mistake(
    "Your buffer *is* the first gradient, not a copy of it: what you add to one appears in the other, "
    "and the next `backward` overwrites both. Clone it."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = -p.grad if group["maximize"] else p.grad
                if group["weight_decay"]:
                    grad = grad + group["weight_decay"] * p
                if group["momentum"]:
                    self.state[p].setdefault("momentum_buffer", grad)
                    if self.state[p].setdefault("begun", False):
                        buffer = self.state[p]["momentum_buffer"]
                        buffer.mul_(group["momentum"]).add_(grad, alpha=1 - group["dampening"])
                    self.state[p]["begun"] = True
                    buffer = self.state[p]["momentum_buffer"]
                    grad = grad + group["momentum"] * buffer if group["nesterov"] else buffer
                p.add_(grad, alpha=-group["lr"])


@SGD.mistake(
    "You add the decay to `p.grad` itself. Whoever looks at the gradient after the step (a log of its "
    "norm, an accumulation) sees something else: add it out of place."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.grad.mul_(-1) if group["maximize"] else None
                p.grad.add_(p, alpha=group["weight_decay"])
                p.add_(with_momentum(group, p.grad, self.state[p]), alpha=-group["lr"])


@SGD.mistake(
    "You keep the buffers in an attribute of your own. `state_dict` saves `self.state` only, so after a "
    "resume they are gone: keep them in `self.state[p]`."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        self.buffers = getattr(self, "buffers", {})
        for group, p, grad, _ in each(self):
            grad = with_decay(group, p, grad)
            direction = with_momentum(group, grad, self.buffers.setdefault(p, {}))
            p.add_(direction, alpha=-group["lr"])


@SGD.mistake(
    "You do without `torch.no_grad()` and work around the error with `p.data`. The decay then enters "
    "the buffer with its graph, and every step's graph hangs on the last: memory grows without end."
)
class _(optimizers.SGD):
    def step(self):
        for group, p, grad, state in each(self):
            grad = with_decay(group, p, grad)
            if group["momentum"]:
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = grad
                else:
                    kept = group["momentum"] * state["momentum_buffer"]
                    state["momentum_buffer"] = kept + (1 - group["dampening"]) * grad
                buffer = state["momentum_buffer"]
                grad = grad + group["momentum"] * buffer if group["nesterov"] else buffer
            p.data.add_(grad.detach(), alpha=-group["lr"])


@SGD.mistake(
    "Your learning rate is inside the buffer: b ← momentum·b + lr·g. While lr is constant that is the "
    "same thing; when a schedule lowers it, the old steps still carry the old rate."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        for group, p, grad, state in each(self):
            direction = with_momentum(group, group["lr"] * with_decay(group, p, grad), state)
            p.sub_(direction)


@SGD.mistake(
    "You keep a buffer although the momentum is 0. It costs as much memory as the parameters, for "
    "nothing."
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        def direct(group, p, grad, state):
            if not group["momentum"]:
                state["momentum_buffer"] = with_decay(group, p, grad).clone()
                return state["momentum_buffer"]
            return with_momentum(group, with_decay(group, p, grad), state)

        sgd(self, direct)


@SGD.mistake(
    "The values are right. But you compute all new parameters before you write the first, and for that "
    "moment hold a copy of the whole model: update each one in place as you come to it.",
    cost=True,
)
class _(optimizers.SGD):
    @torch.no_grad()
    def step(self):
        found = list(each(self))
        new = [
            p - group["lr"] * with_momentum(group, with_decay(group, p, grad), state)
            for group, p, grad, state in found
        ]
        for (_, p, _, _), value in zip(found, new, strict=True):
            p.copy_(value)


@SGD.alternative("out of place, then copied into the parameter")
class _(optimizers.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                with torch.no_grad():
                    g = (p.grad * (-1 if group["maximize"] else 1)) + group["weight_decay"] * p
                    state = self.state[p]
                    if group["momentum"] != 0:
                        old = state.get("b")
                        state["b"] = (
                            g
                            if old is None
                            else group["momentum"] * old + (1 - group["dampening"]) * g
                        )
                        g = g + group["momentum"] * state["b"] if group["nesterov"] else state["b"]
                    p.copy_(p - group["lr"] * g)


@SGD.alternative("on p.data, which autograd does not watch")
class _(optimizers.SGD):
    def step(self):
        for group in self.param_groups:
            for p in filter(lambda p: p.grad is not None, group["params"]):
                g = p.grad.detach().clone()
                if group["maximize"]:
                    g.neg_()
                g.add_(p.data, alpha=group["weight_decay"])
                p.data.sub_(with_momentum(group, g, self.state[p]) * group["lr"])


@SGD.alternative("in lists, with torch._foreach_*")
class _(optimizers.ForeachSGD):
    pass


# ------------------------------------------------------------------------------ AdaGrad

AdaGrad = Exercise(
    optimizers.AdaGrad,
    title="A rate for each coordinate",
    difficulty=1,
    minutes=15,
    points=2,
    probe=probes.optimizer,
    stand_in="torch.optim.Adagrad",
    hints=(
        "One tensor of state, of the parameter's shape, zeros at first. What is added to it at every "
        "step?",
        ("edge cases", "Where a gradient is zero, √s is too. Which term saves the division?"),
        "`state['sum'].addcmul_(grad, grad)`, then `p.addcdiv_(grad, state['sum'].sqrt().add_(eps), "
        "value=-lr)`: eps is added to the root.",
    ),
)


@AdaGrad.by_hand
def _():
    yield (
        training([line(1.0, 1.0)], steps_of(line(3.0, -1.0), line(4.0, 0.0)), {"lr": 0.5}),
        {"parameter 0 after each step": torch.tensor([[0.5, 1.5], [0.1, 1.5]])},
    )


def draw_adaptive(draw, more):
    return {
        "lr": 0.1,
        "eps": draw(st.sampled_from([1e-8, 1e-2, 0.5])),
        "weight_decay": draw(st.sampled_from([0.0, 0.3])),
        "maximize": draw(st.booleans()),
        **more,
    }


@AdaGrad.cases(25)
def _(draw):
    yield draw_training(draw, draw_adaptive(draw, {}), {"weight_decay": 0.5, "eps": 0.1})


@AdaGrad.edge
def _():
    options = {"lr": 0.1, "weight_decay": 0.3, "eps": 0.1}
    yield from ordinary_edges(options)
    yield zero_gradients({"lr": 0.1})
    yield tiny_gradients({"lr": 0.1})
    yield long_run(options, {"weight_decay": 0.0}), "fifty steps"


def adagrad(optimizer, root):
    """A step in which `root(sum, group)` gives the divisor."""
    for group, p, grad, state in each(optimizer):
        grad = with_decay(group, p, grad)
        (total,) = zeros(state, p, "sum")
        total.add_(grad * grad)
        p.sub_(group["lr"] * grad / root(total, group))


@AdaGrad.mistake(
    "Your eps is inside the root. √(s + eps) is at least √eps, which for 1e-10 is 1e-5: add eps to the "
    "root, as torch does."
)
class _(optimizers.AdaGrad):
    @torch.no_grad()
    def step(self):
        adagrad(self, lambda s, group: (s + group["eps"]).sqrt())


@AdaGrad.mistake(
    "You leave eps out. Where all gradients so far were zero, 0 / 0 is NaN, and the parameter with it."
)
class _(optimizers.AdaGrad):
    @torch.no_grad()
    def step(self):
        adagrad(self, lambda s, group: s.sqrt())


@AdaGrad.mistake(
    "You divide by the sum itself. Its unit is that of a squared gradient; take the root."
)
class _(optimizers.AdaGrad):
    @torch.no_grad()
    def step(self):
        adagrad(self, lambda s, group: s + group["eps"])


@AdaGrad.mistake(
    "You divide by this step's gradient alone, so every step has size lr. The divisor sums the squares "
    "of *all* gradients so far."
)
class _(optimizers.AdaGrad):
    @torch.no_grad()
    def step(self):
        for group, p, grad, state in each(self):
            grad = with_decay(group, p, grad)
            state["sum"] = grad * grad
            p.sub_(group["lr"] * grad / (state["sum"].sqrt() + group["eps"]))


@AdaGrad.mistake(
    "You divide before you add: the present gradient belongs to the sum. Without it the first step is "
    "g / eps, which is enormous."
)
class _(optimizers.AdaGrad):
    @torch.no_grad()
    def step(self):
        for group, p, grad, state in each(self):
            grad = with_decay(group, p, grad)
            (total,) = zeros(state, p, "sum")
            p.sub_(group["lr"] * grad / (total.sqrt() + group["eps"]))
            total.add_(grad * grad)


@AdaGrad.mistake(
    "You add up absolute values. AdaGrad adds squares and takes the root of their sum: fifty gradients "
    "of 1 give 7.1, not 50."
)
class _(optimizers.AdaGrad):
    @torch.no_grad()
    def step(self):
        for group, p, grad, state in each(self):
            grad = with_decay(group, p, grad)
            (total,) = zeros(state, p, "sum")
            total.add_(grad.abs())
            p.sub_(group["lr"] * grad / (total + group["eps"]))


@AdaGrad.mistake(
    "Your decay shrinks the parameter directly. In AdaGrad it is L2: part of the gradient, and of the "
    "sum of squares."
)
class _(optimizers.AdaGrad):
    @torch.no_grad()
    def step(self):
        for group, p, grad, state in each(self):
            (total,) = zeros(state, p, "sum")
            total.add_(grad * grad)
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.sub_(group["lr"] * grad / (total.sqrt() + group["eps"]))


@AdaGrad.mistake(
    "You keep one number for each parameter tensor, the sum over all its elements. The point of "
    "AdaGrad is a rate for each coordinate."
)
class _(optimizers.AdaGrad):
    @torch.no_grad()
    def step(self):
        for group, p, grad, state in each(self):
            grad = with_decay(group, p, grad)
            (total,) = zeros(state, p, "sum")
            total.add_((grad * grad).sum())
            p.sub_(group["lr"] * grad / (total.sqrt() + group["eps"]))


@AdaGrad.mistake(
    "You keep the sums in an attribute of your own. `state_dict` saves `self.state` only: after a "
    "resume your steps are large again."
)
class _(optimizers.AdaGrad):
    @torch.no_grad()
    def step(self):
        self.sums = getattr(self, "sums", {})
        for group, p, grad, _ in each(self):
            grad = with_decay(group, p, grad)
            total = self.sums.setdefault(p, torch.zeros_like(p)).add_(grad * grad)
            p.sub_(group["lr"] * grad / (total.sqrt() + group["eps"]))


@AdaGrad.alternative("out of place, with the state made in the constructor")
class _(optimizers.AdaGrad):
    def __init__(self, params, lr=1e-2, eps=1e-10, weight_decay=0.0, maximize=False):
        super().__init__(params, lr, eps, weight_decay, maximize)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["s"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    g = (-1 if group["maximize"] else 1) * p.grad + group["weight_decay"] * p
                    self.state[p]["s"] = self.state[p]["s"] + g**2
                    p -= group["lr"] * g / (self.state[p]["s"] ** 0.5 + group["eps"])


@AdaGrad.alternative("in lists, with torch._foreach_*")
class _(optimizers.ForeachAdaGrad):
    pass


# ------------------------------------------------------------------------------ RMSProp

RMSProp = Exercise(
    optimizers.RMSProp,
    title="An average that forgets",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.optimizer,
    stand_in="torch.optim.RMSprop",
    hints=(
        "Take your AdaGrad and change one line: the sum becomes a moving average. Which of its two terms "
        "does alpha multiply?",
        "Momentum comes last: it collects what is already divided by the root, in a buffer that starts "
        "at zero.",
        "`square.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)`; then d = grad / (square.sqrt() + eps). "
        "With momentum, `buffer.mul_(momentum).add_(d)` and step along the buffer.",
    ),
)


@RMSProp.by_hand
def _():
    yield (
        training(
            [line(1.0, 1.0)], steps_of(line(2.0, -4.0)), {"lr": 0.1, "alpha": 0.75, "eps": 0.0}
        ),
        {"parameter 0 after each step": torch.tensor([[0.8, 1.2]])},
    )
    yield (
        training(
            [line(1.0, 1.0)],
            steps_of(line(2.0, -4.0), line(0.0, 0.0)),
            {"lr": 0.1, "alpha": 0.75, "eps": 0.0, "momentum": 0.5},
        ),
        {"parameter 0 after each step": torch.tensor([[0.8, 1.2], [0.7, 1.3]])},
    )


@RMSProp.cases(25)
def _(draw):
    more = {
        "alpha": draw(st.sampled_from([0.9, 0.6])),
        "momentum": draw(st.sampled_from([0.0, 0.8])),
    }
    yield draw_training(draw, draw_adaptive(draw, more), {"weight_decay": 0.5, "alpha": 0.7})


@RMSProp.edge
def _():
    options = {"lr": 0.1, "weight_decay": 0.3, "eps": 0.1, "momentum": 0.5}
    yield from ordinary_edges(options)
    yield zero_gradients({"lr": 0.1})
    yield tiny_gradients({"lr": 0.1})
    yield long_run(options, {"weight_decay": 0.0, "alpha": 0.5}), "fifty steps"


def rmsprop(optimizer, direct):
    """A step along `direct(group, p, grad, v)`, with momentum after the division."""
    for group, p, grad, state in each(optimizer):
        grad = with_decay(group, p, grad)
        (v,) = zeros(state, p, "square_avg")
        d = direct(group, p, grad, v)
        if group["momentum"]:
            (buffer,) = zeros(state, p, "momentum_buffer")
            d = buffer.mul_(group["momentum"]).add_(d)
        p.sub_(group["lr"] * d)


def averaged(v, grad, alpha):
    return v.mul_(alpha).add_((1 - alpha) * grad * grad)


@RMSProp.mistake(
    "Your eps is inside the root: √(v + eps) is not √v + eps. For a gradient below √eps it makes "
    "another step altogether."
)
class _(optimizers.RMSProp):
    @torch.no_grad()
    def step(self):
        rmsprop(
            self,
            lambda group, p, g, v: g / (averaged(v, g, group["alpha"]) + group["eps"]).sqrt(),
        )


@RMSProp.mistake("You leave eps out: where the gradients are zero, 0 / 0 is NaN.")
class _(optimizers.RMSProp):
    @torch.no_grad()
    def step(self):
        rmsprop(self, lambda group, p, g, v: g / averaged(v, g, group["alpha"]).sqrt())


@RMSProp.mistake(
    "You have alpha the wrong way round: it is the share of the *old* average that stays, 0.99 by "
    "default; the new square gets 1 − alpha."
)
class _(optimizers.RMSProp):
    @torch.no_grad()
    def step(self):
        rmsprop(
            self,
            lambda group, p, g, v: g / (averaged(v, g, 1 - group["alpha"]).sqrt() + group["eps"]),
        )


@RMSProp.mistake(
    "Your average does not weigh the new square: v ← alpha·v + g² settles at 1 / (1 − alpha) times the "
    "mean square, a hundred times for 0.99."
)
class _(optimizers.RMSProp):
    @torch.no_grad()
    def step(self):
        rmsprop(
            self,
            lambda group, p, g, v: g / (v.mul_(group["alpha"]).add_(g * g).sqrt() + group["eps"]),
        )


@RMSProp.mistake(
    "You correct the average for its start at zero. That is Adam's idea; RMSProp has no correction, so "
    "its first steps are larger."
)
class _(optimizers.RMSProp):
    @torch.no_grad()
    def step(self):
        for group, p, grad, state in each(self):
            grad, t = with_decay(group, p, grad), counted(state)
            v = averaged(*zeros(state, p, "square_avg"), grad, group["alpha"])
            d = grad / ((v / (1 - group["alpha"] ** t)).sqrt() + group["eps"])
            if group["momentum"]:
                (buffer,) = zeros(state, p, "momentum_buffer")
                d = buffer.mul_(group["momentum"]).add_(d)
            p.sub_(group["lr"] * d)


@RMSProp.mistake(
    "Your momentum collects raw gradients and divides afterwards. Here each gradient is divided by the "
    "root of its own time, and momentum collects the quotients."
)
class _(optimizers.RMSProp):
    @torch.no_grad()
    def step(self):
        for group, p, grad, state in each(self):
            grad = with_decay(group, p, grad)
            v = averaged(*zeros(state, p, "square_avg"), grad, group["alpha"])
            if group["momentum"]:
                (buffer,) = zeros(state, p, "momentum_buffer")
                grad = buffer.mul_(group["momentum"]).add_(grad)
            p.sub_(group["lr"] * grad / (v.sqrt() + group["eps"]))


@RMSProp.mistake(
    "You use momentum where you should weigh with alpha: the average of squares has a rate of its own."
)
class _(optimizers.RMSProp):
    @torch.no_grad()
    def step(self):
        rmsprop(
            self,
            lambda group, p, g, v: (
                g / (averaged(v, g, group["momentum"] or group["alpha"]).sqrt() + group["eps"])
            ),
        )


@RMSProp.mistake(
    "Your decay shrinks the parameter directly. In RMSProp it is L2: part of the gradient, and so of the "
    "average."
)
class _(optimizers.RMSProp):
    @torch.no_grad()
    def step(self):
        decays = [group["weight_decay"] for group in self.param_groups]
        for group, p, _, _ in each(self):
            p.mul_(1 - group["lr"] * group["weight_decay"])
        for group in self.param_groups:
            group["weight_decay"] = 0.0
        super().step()
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay


@RMSProp.alternative("out of place")
class _(optimizers.RMSProp):
    @torch.no_grad()
    def step(self):
        for group, p, grad, state in each(self):
            g = grad + group["weight_decay"] * p
            old = state.get("v", torch.zeros_like(g))
            state["v"] = group["alpha"] * old + (1 - group["alpha"]) * g.square()
            d = g / (state["v"].sqrt() + group["eps"])
            if group["momentum"] > 0:
                d = state["b"] = group["momentum"] * state.get("b", torch.zeros_like(d)) + d
            p -= group["lr"] * d


@RMSProp.alternative("in lists, with torch._foreach_*")
class _(optimizers.ForeachRMSProp):
    pass


# ------------------------------------------------------------------------------ Adam

Adam = Exercise(
    optimizers.Adam,
    title="Two averages, corrected",
    difficulty=2,
    minutes=25,
    points=4,
    probe=probes.optimizer,
    stand_in="torch.optim.Adam",
    hints=(
        "Three things to remember for each parameter: m, v, and how many steps it has taken. All three "
        "belong in `self.state[p]`, or they do not survive a checkpoint.",
        (
            "random cases",
            "Count t up *before* you use it: at the first step t is 1, and 1 − β₁ᵗ = 1 − β₁. A parameter "
            "that had no gradient has not taken a step.",
        ),
        "m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ), and then p ← p − lr·m̂ / (√v̂ + eps): correct first, take "
        "the root, add eps last.",
    ),
)


@Adam.by_hand
def _():
    yield (
        training([line(1.0, 1.0)], steps_of(line(2.0, -0.01)), {"lr": 0.1, "eps": 0.0}),
        {"parameter 0 after each step": torch.tensor([[0.9, 1.1]])},
    )
    yield (  # m = 1, m̂ = 2; v = 1, v̂ = 4; then m = 0.5, m̂ = 2/3; v = 0.75, v̂ = 12/7
        training(
            [line(1.0)],
            steps_of(line(2.0), line(0.0)),
            {"lr": 0.1, "betas": (0.5, 0.75), "eps": 0.0},
        ),
        {
            "parameter 0 after each step": torch.tensor(
                [[0.9], [0.9 - 0.1 * (2 / 3) / sqrt(12 / 7)]]
            )
        },
    )


BETAS = ((0.9, 0.999), (0.9, 0.95), (0.5, 0.8))


@Adam.cases(25)
def _(draw):
    options = draw_adaptive(draw, {"betas": draw(st.sampled_from(BETAS))})
    yield draw_training(draw, options, {"weight_decay": 0.5, "betas": (0.6, 0.9)})


def adam_edges():
    options = {"lr": 0.1, "weight_decay": 0.3, "eps": 0.1}
    yield from ordinary_edges(options)
    yield zero_gradients({"lr": 0.1})
    yield tiny_gradients({"lr": 0.1})
    yield long_run(options, {"weight_decay": 0.0, "betas": (0.9, 0.95)}), "fifty steps"


@Adam.edge
def _():
    yield from adam_edges()


Adam.contract(bounded_memory(2))


def adam(optimizer, update, decay="l2", start=0):
    """A step along `update(group, m, v, t)`; decay: l2, decoupled or none; start: where t begins."""
    for group, p, grad, state in each(optimizer):
        if decay == "l2":
            grad = with_decay(group, p, grad)
        if decay == "decoupled":
            p.mul_(1 - group["lr"] * group["weight_decay"])
        m, v = zeros(state, p, "exp_avg", "exp_avg_sq")
        t = counted(state) + start
        beta1, beta2 = group["betas"]
        m.mul_(beta1).add_(grad, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        p.sub_(group["lr"] * update(group, m, v, t))


def corrected(group, m, v, t):
    beta1, beta2 = group["betas"]
    return m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + group["eps"])


def uncorrected(group, m, v, t):
    return m / (v.sqrt() + group["eps"])


def eps_inside(group, m, v, t):
    beta1, beta2 = group["betas"]
    return m / (1 - beta1**t) / (v / (1 - beta2**t) + group["eps"]).sqrt()


def eps_before(group, m, v, t):
    beta1, beta2 = group["betas"]
    return m / (1 - beta1**t) * sqrt(1 - beta2**t) / (v.sqrt() + group["eps"])


def eps_missing(group, m, v, t):
    return corrected({**group, "eps": 0.0}, m, v, t)


def only_m(group, m, v, t):
    return m / (1 - group["betas"][0] ** t) / (v.sqrt() + group["eps"])


def root_of_correction(group, m, v, t):
    beta1, beta2 = group["betas"]
    return m / (1 - beta1**t) / (v.sqrt() / (1 - beta2**t) + group["eps"])


NO_CORRECTION = (
    "You do not correct the averages for their start at zero. With the default betas m is at first a tenth "
    "of the gradient and √v a thirtieth of its size, so the first steps come out three to six times too "
    "long: divide by 1 − βᵗ."
)
EPS_INSIDE = (
    "Your eps is inside the root. √(v̂ + 1e-8) is at least 1e-4, ten thousand times the eps that was "
    "asked for: parameters with small gradients hardly move."
)
EPS_BEFORE = (
    "You add eps to √v before the correction, as the paper's shortcut does. The rule here, and torch, "
    "correct v first: √v̂ + eps."
)
EPS_MISSING = "You leave eps out: where a gradient has always been zero, 0 / 0 is NaN."
ONLY_M = "You correct m but not v. Both start at zero: v̂ = v / (1 − β₂ᵗ)."
ROOT = "You divide √v by 1 − β₂ᵗ. It is v that is corrected; its root is divided by √(1 − β₂ᵗ)."
T_LATE = (
    "Your t is one too high: at the first step it must be 1, so that m̂ is the first gradient itself. "
    "Count once for each step of the parameter."
)
T_SHARED = (
    "You count steps once for all parameters. One that had no gradient has taken fewer, and its "
    "averages are that much younger: keep t in `self.state[p]`."
)
T_LOST = (
    "Your count of steps is an attribute of your own, not part of `state_dict`. After a resume it "
    "starts again at 1, and the corrections blow the step up."
)
BETAS_SWAPPED = "You have the betas the wrong way round: β₁ is for the gradient, β₂ for its square."
SQUARED_MEAN = (
    "You average gradients and square the average. v is the average of the *squares*, which does not "
    "vanish when gradients change sign."
)
GLOBAL_BETAS = (
    "You take the betas from the constructor's defaults. A group may have its own, and a loaded "
    "checkpoint too: read them from the group."
)
SHARED_COUNT = "optimizer._t = getattr(optimizer, '_t', 0) + 1"
DATA_REBOUND = (
    "You bind `p.data` to a new tensor, so the parameter leaves the memory that others (a view, a bucket "
    "of DDP) hold on to. Change it in place."
)
IN_ATTRIBUTES = (
    "You keep m, v and t in attributes of your own. `state_dict` saves `self.state` only, so a resumed run "
    "begins its averages afresh."
)


@Adam.mistake(NO_CORRECTION)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        adam(self, uncorrected)


@Adam.mistake(EPS_INSIDE)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        adam(self, eps_inside)


@Adam.mistake(EPS_BEFORE)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        adam(self, eps_before)


@Adam.mistake(EPS_MISSING)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        adam(self, eps_missing)


@Adam.mistake(ONLY_M)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        adam(self, only_m)


@Adam.mistake(ROOT)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        adam(self, root_of_correction)


@Adam.mistake(T_LATE)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        adam(self, corrected, start=1)


@Adam.mistake(
    "Your t is 0 at the first step, and 1 − β⁰ is 0: count up before you correct, not after."
)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        adam(self, corrected, start=-1)


def with_shared_count(optimizer, decay):
    """All parameters are corrected by the optimizer's own count, which it saves in the groups."""
    count = optimizer.param_groups[0].get("t", 0) + 1
    for group in optimizer.param_groups:
        group["t"] = count
    adam(optimizer, lambda group, m, v, t: corrected(group, m, v, count), decay)


def with_lost_count(optimizer, decay):
    """Each parameter's count is kept beside the state."""
    counts = optimizer.__dict__.setdefault("counts", {})
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                counts[p] = counts.get(p, 0) + 1
                optimizer.state[p]["step"] = counts[p] - 1
    adam(optimizer, corrected, decay)


@Adam.mistake(T_SHARED)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        with_shared_count(self, "l2")


@Adam.mistake(T_LOST)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        with_lost_count(self, "l2")


@Adam.mistake(
    "You count t up for every parameter of the loop, so the second one is corrected as if it were a "
    "step older than the first. Count for each parameter, in its state."
)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        def update(group, m, v, t):
            group["t"] = group.get("t", 0) + 1
            return corrected(group, m, v, group["t"])

        adam(self, update)


@Adam.mistake(BETAS_SWAPPED)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["betas"] = group["betas"][::-1]
        super().step()
        for group in self.param_groups:
            group["betas"] = group["betas"][::-1]


@Adam.mistake(SQUARED_MEAN)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        for group, p, grad, state in each(self):
            grad, t = with_decay(group, p, grad), counted(state)
            m, v = zeros(state, p, "exp_avg", "exp_avg_sq")
            beta1, beta2 = group["betas"]
            m.lerp_(grad, 1 - beta1)
            v.lerp_(grad, 1 - beta2)
            p.sub_(group["lr"] * corrected(group, m, v.square() * (1 / (1 - beta2**t)), t))


@Adam.mistake(
    "Your decay is decoupled: that is AdamW, the next exercise. In Adam it is L2, added to the gradient "
    "before the averages."
)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        adam(self, corrected, "decoupled")


@Adam.mistake(GLOBAL_BETAS)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        adam_with_default_betas(self, "l2")


def adam_with_default_betas(optimizer, decay):
    own = [group["betas"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["betas"] = optimizer.defaults["betas"]
    adam(optimizer, corrected, decay)
    for group, betas in zip(optimizer.param_groups, own, strict=True):
        group["betas"] = betas


@Adam.mistake(DATA_REBOUND)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        super().step()
        for _, p, _, _ in each(self):
            p.data = p.data.clone()


@Adam.mistake(IN_ATTRIBUTES)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        kept = self.__dict__.setdefault("moments", {})
        for p, moments in kept.items():
            self.state[p].update(moments)
        super().step()
        for p in list(self.state):
            kept[p] = dict(self.state.pop(p))


@Adam.mistake(
    "The values are right. But you compute all new parameters before you write the first, and for that "
    "moment hold a copy of the whole model: update each one in place as you come to it.",
    cost=True,
)
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self):
        all_at_once(self, "l2")


def all_at_once(optimizer, decay):
    """Right steps, written back after the last was computed."""
    params = [p for _, p, _, _ in each(optimizer)]
    old = [p.clone() for p in params]
    adam(optimizer, corrected, decay)
    new = [p.clone() for p in params]
    for p, before in zip(params, old, strict=True):
        p.copy_(before)
    for p, after in zip(params, new, strict=True):
        p.copy_(after)


@Adam.alternative("line by line as in the paper, out of place, with t as a tensor")
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = (-p.grad if group["maximize"] else p.grad) + group["weight_decay"] * p
                state = self.state[p]
                if len(state) == 0:
                    state.update(
                        t=torch.zeros((), dtype=torch.float64),
                        m=torch.zeros_like(g),
                        v=torch.zeros_like(g),
                    )
                state["t"] = state["t"] + 1
                state["m"] = b1 * state["m"] + (1 - b1) * g
                state["v"] = b2 * state["v"] + (1 - b2) * g**2
                t = state["t"].item()
                m_hat = state["m"] / (1 - b1**t)
                v_hat = state["v"] / (1 - b2**t)
                p.sub_(group["lr"] * m_hat / (v_hat**0.5 + group["eps"]))


# ------------------------------------------------------------------------------ AdamW

AdamW = Exercise(
    optimizers.AdamW,
    title="Decay that is not a gradient",
    difficulty=2,
    minutes=10,
    points=3,
    probe=probes.optimizer,
    stand_in="torch.optim.AdamW",
    hints=(
        "Take your Adam. The decay leaves the gradient; where does it go?",
        "One line before the step: the parameter is multiplied by 1 − lr·weight_decay. m and v never hear "
        "of it.",
        "`p.mul_(1 - group['lr'] * group['weight_decay'])`, after the test for a missing gradient.",
    ),
)


@AdamW.by_hand
def _():
    yield (
        training(
            [line(1.0, -2.0)],
            steps_of(line(2.0, -0.01)),
            {"lr": 0.1, "eps": 0.0, "weight_decay": 0.5},
        ),
        {"parameter 0 after each step": torch.tensor([[0.85, -1.8]])},
    )
    yield (
        training(
            [line(1.0, -2.0)],
            steps_of(None, line(0.0, 0.0)),
            {"lr": 0.1, "weight_decay": 0.5},
        ),
        {"parameter 0 after each step": torch.tensor([[1.0, -2.0], [0.95, -1.9]])},
    )


@AdamW.cases(25)
def _(draw):
    options = draw_adaptive(draw, {"betas": draw(st.sampled_from(BETAS))})
    yield draw_training(draw, options, {"weight_decay": 0.0, "betas": (0.6, 0.9)})


@AdamW.edge
def _():
    yield from adam_edges()


AdamW.contract(bounded_memory(2))


@AdamW.mistake(
    "You add the decay to the gradient: that is Adam with L2. The averages then divide it by √v̂, so "
    "weights with large gradients are hardly decayed at all. Shrink the parameter instead."
)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        adam(self, corrected, "l2")


@AdamW.mistake(
    "Your decay is not multiplied by lr: each step takes weight_decay of the weight away, whatever the "
    "rate, and a schedule does not reach it. The factor is 1 − lr·weight_decay."
)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        for group, p, _, _ in each(self):
            p.mul_(1 - group["weight_decay"])
        adam(self, corrected, "none")


@AdamW.mistake(
    "You decay after Adam's step, so a part of the step is decayed as well. torch shrinks the "
    "parameter first."
)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        adam(self, corrected, "none")
        for group, p, _, _ in each(self):
            p.mul_(1 - group["lr"] * group["weight_decay"])


@AdamW.mistake(
    "You decay parameters that have no gradient. What took no part in this step is left alone: frozen "
    "layers would fade away."
)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["lr"] * group["weight_decay"])
        adam(self, corrected, "none")


@AdamW.mistake(
    "You take weight_decay from the constructor's defaults, so norms and biases in a group with 0 are "
    "decayed all the same. Read it from the group."
)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        for group, p, _, _ in each(self):
            p.mul_(1 - group["lr"] * self.defaults["weight_decay"])
        adam(self, corrected, "none")


@AdamW.mistake("weight_decay makes no difference in your code.")
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        adam(self, corrected, "none")


@AdamW.mistake("Your decay has the wrong sign: weights grow by lr·weight_decay at every step.")
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        for group, p, _, _ in each(self):
            p.mul_(1 + group["lr"] * group["weight_decay"])
        adam(self, corrected, "none")


@AdamW.mistake(
    "A parameter without gradient has `p.grad` None, and your step cannot do arithmetic with that: "
    "skip it."
)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                _ = -p.grad
        super().step()


@AdamW.mistake(NO_CORRECTION)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        adam(self, uncorrected, "decoupled")


@AdamW.mistake(EPS_INSIDE)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        adam(self, eps_inside, "decoupled")


@AdamW.mistake(EPS_MISSING)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        adam(self, eps_missing, "decoupled")


@AdamW.mistake(T_SHARED)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        with_shared_count(self, "decoupled")


@AdamW.mistake(T_LOST)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        with_lost_count(self, "decoupled")


@AdamW.mistake(T_LATE)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        adam(self, corrected, "decoupled", start=1)


@AdamW.mistake(GLOBAL_BETAS)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        adam_with_default_betas(self, "decoupled")


@AdamW.mistake(DATA_REBOUND)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        super().step()
        for _, p, _, _ in each(self):
            p.data = p.data.clone()


@AdamW.mistake(
    "The values are right. But you compute all new parameters before you write the first, and for that "
    "moment hold a copy of the whole model: update each one in place as you come to it.",
    cost=True,
)
class _(optimizers.AdamW):
    @torch.no_grad()
    def step(self):
        all_at_once(self, "decoupled")


@AdamW.alternative("on top of Adam's own step, with the decay taken out of its way")
class _(optimizers.Adam):
    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, maximize=False
    ):
        super().__init__(params, lr, betas, eps, weight_decay, maximize)

    @torch.no_grad()
    def step(self):
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p -= group["lr"] * group["weight_decay"] * p
            group["weight_decay"] = 0.0
        super().step()
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay


# ------------------------------------------------------------------------------ ForeachAdamW

ForeachAdamW = Exercise(
    optimizers.ForeachAdamW,
    title="One kernel for all parameters",
    difficulty=3,
    minutes=30,
    points=5,
    probe=probes.optimizer,
    stand_in="torch.optim.AdamW",
    hints=(
        "First collect, in plain Python: the parameters that have a gradient, their gradients, their m "
        "and v. Then write Adam's lines, each with `torch._foreach_…_` on these lists.",
        (
            "edge cases",
            "A list may be empty: no parameter of a group has a gradient. The `_foreach` functions refuse "
            "an empty list.",
        ),
        "Parameters may have taken different numbers of steps. `_foreach_div_(tensors, numbers)` and "
        "`_foreach_addcdiv_(params, ms, roots, numbers)` take a list of numbers, one for each.",
        (
            "contracts",
            "Does any torch operation stand inside a Python loop over the parameters? Making the state once, "
            "at the first step, is allowed.",
        ),
    ),
)


@ForeachAdamW.by_hand
def _():
    yield (
        training(
            [line(1.0, -2.0), line(3.0)],
            [[line(2.0, -0.01), line(-5.0)]],
            {"lr": 0.1, "eps": 0.0, "weight_decay": 0.5},
        ),
        {
            "parameter 0 after each step": torch.tensor([[0.85, -1.8]]),
            "parameter 1 after each step": torch.tensor([[2.95]]),
        },
    )


@ForeachAdamW.cases(25)
def _(draw):
    options = draw_adaptive(draw, {"betas": draw(st.sampled_from(BETAS))})
    yield draw_training(draw, options, {"weight_decay": 0.0, "betas": (0.6, 0.9)})


@ForeachAdamW.edge
def _():
    yield from adam_edges()
    yield (
        training(
            [line(1.0, 2.0), line(3.0)],
            [[None, line(1.0)], [line(0.5, -1.0), None]],
            {"lr": 0.1, "maximize": True},
            groups=[{"params": [0]}, {"params": [1], "weight_decay": 0.5}],
        ),
        "a group in which no parameter has a gradient",
    )
    yield crowd(101, {"lr": 0.1}), "a hundred parameters"


ForeachAdamW.contract(
    contracts.kernels(
        [many(100)],
        limit=40,
        says="each operation runs once for all parameters, however many there are",
        prepare=prepared.third_optimizer_step,
    )
)


def foreach_adamw(optimizer, params, grads, group, steps):
    """The lists' part of a step, for mistakes that are made before it."""
    lr, (beta1, beta2) = group["lr"], group["betas"]
    ms, vs = zip(
        *(zeros(optimizer.state[p], p, "exp_avg", "exp_avg_sq") for p in params), strict=True
    )
    torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
    torch._foreach_lerp_(ms, grads, 1 - beta1)
    torch._foreach_mul_(vs, beta2)
    torch._foreach_addcmul_(vs, grads, grads, 1 - beta2)
    roots = torch._foreach_sqrt(vs)
    torch._foreach_div_(roots, [sqrt(1 - beta2**t) for t in steps])
    torch._foreach_add_(roots, group["eps"])
    torch._foreach_addcdiv_(params, ms, roots, [-lr / (1 - beta1**t) for t in steps])


def with_gradient(group):
    return [p for p in group["params"] if p.grad is not None]


def signed(group, params):
    grads = [p.grad for p in params]
    return list(torch._foreach_neg(grads)) if group["maximize"] and params else grads


@ForeachAdamW.mistake(
    "You correct all parameters by the first one's count of steps. One that had no gradient for a while "
    "is younger: pass a list of numbers."
)
class _(optimizers.ForeachAdamW):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = with_gradient(group)
            if params:
                steps = [counted(self.state[p]) for p in params]
                first = [steps[0]] * len(steps)
                foreach_adamw(self, params, signed(group, params), group, first)


@ForeachAdamW.mistake(
    "You hand over an empty list where no parameter of a group has a gradient, and torch refuses it: "
    "go on to the next group."
)
class _(optimizers.ForeachAdamW):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            if not with_gradient(group):
                torch._foreach_mul_([], 1.0)
        super().step()


@ForeachAdamW.mistake(
    "Your list of gradients contains None: leave out the parameters that have none, from every list."
)
class _(optimizers.ForeachAdamW):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            torch._foreach_add([p.grad for p in group["params"]], 1.0)
        super().step()


@ForeachAdamW.mistake(
    "You turn the gradients' sign in place. With `maximize`, whoever looks at `p.grad` after the step sees it "
    "negated: use `_foreach_neg`, without the underscore."
)
class _(optimizers.ForeachAdamW):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            grads = [p.grad for p in with_gradient(group)]
            if group["maximize"] and grads:
                torch._foreach_neg_(grads)
        signs = [group["maximize"] for group in self.param_groups]
        for group in self.param_groups:
            group["maximize"] = False
        super().step()
        for group, sign in zip(self.param_groups, signs, strict=True):
            group["maximize"] = sign


@ForeachAdamW.mistake(
    "You add the decay to the gradients: that is Adam with L2. Multiply the parameters instead."
)
class _(optimizers.ForeachAdamW):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = with_gradient(group)
            if params:
                grads = torch._foreach_add(
                    signed(group, params), params, alpha=group["weight_decay"]
                )
                steps = [counted(self.state[p]) for p in params]
                foreach_adamw(self, params, grads, {**group, "weight_decay": 0.0}, steps)


@ForeachAdamW.mistake(NO_CORRECTION)
class _(optimizers.ForeachAdamW):
    @torch.no_grad()
    def step(self):
        adam(self, uncorrected, "decoupled")


@ForeachAdamW.mistake(
    "You add eps before you divide by √(1 − β₂ᵗ), so it is divided too. Correct first, add eps last."
)
class _(optimizers.ForeachAdamW):
    @torch.no_grad()
    def step(self):
        adam(self, eps_before, "decoupled")


@ForeachAdamW.mistake(
    "The values are right. But you go from parameter to parameter: for a model of 148 tensors that is "
    "148 times as many kernels, most of them tiny. Give each operation the whole list.",
    cost=True,
)
class _(optimizers.ForeachAdamW):
    @torch.no_grad()
    def step(self):
        adam(self, corrected, "decoupled")


@ForeachAdamW.alternative("corrections folded into the learning rate and eps")
class _(optimizers.ForeachAdamW):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = with_gradient(group)
            if not params:
                continue
            for p in params:
                if not self.state[p]:
                    self.state[p].update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                self.state[p]["t"] += 1
            grads = signed(group, params)
            b1, b2 = group["betas"]
            m, v = ([self.state[p][name] for p in params] for name in "mv")
            torch._foreach_add_(torch._foreach_mul_(m, b1) or m, torch._foreach_mul(grads, 1 - b1))
            torch._foreach_mul_(v, b2)
            torch._foreach_addcmul_(v, grads, grads, value=1 - b2)
            roots = list(torch._foreach_sqrt(v))
            scales = [sqrt(1 - b2 ** self.state[p]["t"]) for p in params]
            torch._foreach_add_(roots, [group["eps"] * s for s in scales])
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            sizes = [
                -group["lr"] * s / (1 - b1 ** self.state[p]["t"])
                for s, p in zip(scales, params, strict=True)
            ]
            torch._foreach_addcdiv_(params, m, roots, sizes)


for mutant in (
    "`zip(params, states, strict=True)` → `zip(params, states)`",
    "`strict=True` → `strict=False`",
):
    ForeachAdamW.equivalent(
        f"ForeachAdamW.step: {mutant}",
        because="states is made with one entry for each of params, so the lengths never differ; the flag only guards against a slip",
    )


# ------------------------------------------------------------------------------ newton_schulz


def amplified(case):
    """Each iteration multiplies the rounding errors in the smallest singular values by 3.4445."""
    steps = case.args[1] if len(case.args) > 1 else 5
    return round(3.4445 ** (2 * steps)) + 64


newton_schulz = Exercise(
    optimizers.newton_schulz,
    title="Singular values towards one",
    difficulty=2,
    minutes=15,
    points=3,
    length=amplified,
    hints=(
        "(x xᵀ) x has the singular vectors of x and the cubes of its singular values. Which polynomial of "
        "one number does one iteration apply to each of them?",
        "With A = x xᵀ it is one line: x ← a·x + (b·A + c·A @ A) @ x.",
        (
            "contracts",
            "For a tall matrix x xᵀ is the larger product: work on x.T and turn it back.",
        ),
    ),
)


@newton_schulz.by_hand
def _():
    # one singular value s = 1 after the division: a + b + c = 3.4445 - 4.7750 + 2.0315 = 0.701
    yield call(torch.tensor([[3.0, 4.0]]), 1), torch.tensor([[0.6, 0.8]]) * 0.701
    # s = 1/sqrt(2) twice: s·(a + b/2 + c/4) = s·1.564875
    yield call(torch.eye(2), 1), torch.eye(2) * 1.564875 / sqrt(2)


@newton_schulz.cases(15)
def _(draw):
    shape = draw(draws.distinct_sizes(2, low=1, high=6))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    yield call(draw(draws.tensors(shape, dtype)), draw(st.integers(1, 6)))


@newton_schulz.edge
def _():
    x = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    yield call(x), "five steps by default"
    yield call(torch.zeros(2, 3)), "a matrix of zeros"
    yield call(1e-9 * x, 3, 1e-3), "a norm below eps"
    yield call(x, 0), "no iteration: only the division"
    yield call(x.T, 2), "tall, and not contiguous"
    yield call(torch.eye(3, dtype=torch.float64), 3), "square"


TALL = call(torch.randn(512, 4, generator=torch.Generator().manual_seed(0)))
newton_schulz.contract(
    contracts.largest_tensor(
        [TALL],
        limit=lambda case: case.args[0].numel() * case.args[0].element_size(),
        says="x xᵀ of the smaller size: no tensor larger than x",
    )
)


def iterate(x, steps, coefficients=(3.4445, -4.7750, 2.0315)):
    a, b, c = coefficients
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def flat_way(x, eps):
    """x with no more rows than columns, divided by its norm."""
    x = x.T if x.size(0) > x.size(1) else x
    return x / x.norm().clamp(min=eps)


@newton_schulz.mistake(
    "You forgot to turn a tall matrix back: the result must have the shape of x."
)
def _(x, steps=5, eps=1e-7):
    return iterate(flat_way(x, eps), steps)


@newton_schulz.mistake(
    "You do not divide by the norm first. The polynomial pulls towards 1 only what starts between 0 and "
    "about 1.2; larger singular values run away."
)
def _(x, steps=5, eps=1e-7):
    tall = x.size(0) > x.size(1)
    y = iterate(x.T if tall else x, steps)
    return y.T if tall else y


@newton_schulz.mistake(
    "You divide by the largest singular value. It would do, but it costs an SVD; Muon divides by the "
    "Frobenius norm, which is never smaller."
)
def _(x, steps=5, eps=1e-7):
    tall = x.size(0) > x.size(1)
    y = x.T if tall else x
    y = iterate(y / torch.linalg.matrix_norm(y, 2).clamp(min=eps), steps)
    return y.T if tall else y


@newton_schulz.mistake(
    "You use the classic coefficients 1.5, −0.5: they converge to 1 exactly, and slowly. Muon's three "
    "are steeper at 0 and only come near 1."
)
def _(x, steps=5, eps=1e-7):
    tall = x.size(0) > x.size(1)
    y = iterate(flat_way(x, eps), steps, (1.5, -0.5, 0.0))
    return y.T if tall else y


@newton_schulz.mistake(
    "You compute U Vᵀ exactly, by an SVD. That is what the iteration approaches, not what it gives, and "
    "the SVD is what it is there to avoid."
)
def _(x, steps=5, eps=1e-7):
    u, _, vt = torch.linalg.svd(x, full_matrices=False)
    return u @ vt


@newton_schulz.mistake("You do one iteration too many.")
def _(x, steps=5, eps=1e-7):
    tall = x.size(0) > x.size(1)
    y = iterate(flat_way(x, eps), steps + 1)
    return y.T if tall else y


@newton_schulz.mistake(
    "You add eps to the norm. It is a lower bound, `norm().clamp(min=eps)`: it changes nothing unless "
    "the matrix is nearly zero."
)
def _(x, steps=5, eps=1e-7):
    tall = x.size(0) > x.size(1)
    y = x.T if tall else x
    y = iterate(y / (y.norm() + eps), steps)
    return y.T if tall else y


@newton_schulz.mistake(
    "You leave eps out: a gradient of zeros is divided by zero, and the weights become NaN."
)
def _(x, steps=5, eps=1e-7):
    tall = x.size(0) > x.size(1)
    y = iterate(flat_way(x, 0.0), steps)
    return y.T if tall else y


@newton_schulz.mistake(
    "The values are right. But for a tall matrix x xᵀ is n × n: for a layer of 3072 × 768 that is sixteen "
    "times the work of the other product. Transpose first.",
    cost=True,
)
def _(x, steps=5, eps=1e-7):
    return iterate(x / x.norm().clamp(min=eps), steps)


@newton_schulz.alternative("with xᵀ x on the other side for tall matrices")
def _(x, steps=5, eps=1e-7):
    x = x / torch.clamp(torch.linalg.norm(x), min=eps)
    for _ in range(steps):
        if x.shape[0] > x.shape[1]:
            a = x.mT @ x
            x = 3.4445 * x + x @ (-4.7750 * a + 2.0315 * (a @ a))
        else:
            a = x @ x.mT
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x


newton_schulz.equivalent(
    "newton_schulz: `x.size(0) > x.size(1)` → `x.size(0) >= x.size(1)`",
    because="only a square matrix is treated otherwise, and for it p(x xᵀ) x transposed is p(xᵀ x) xᵀ: the same polynomial of the same singular values",
)


# ------------------------------------------------------------------------------ decay_groups

decay_groups = Exercise(
    optimizers.decay_groups,
    title="What decays and what does not",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.parameter_groups,
    hints=(
        "How many axes has a weight matrix? And a bias, or the gain of a norm?",
        "`model.parameters()` gives a tied parameter once. `p.requires_grad` says whether it is trained.",
        "Two list comprehensions: `p.ndim >= 2`, and the rest with `weight_decay` 0.0.",
    ),
)


@decay_groups.by_hand
def _():
    yield (
        call("Linear(3, 2)", 0.1),
        {
            "groups": 2,
            "parameters of group 1": ("weight",),
            "options of group 1": {"weight_decay": 0.1},
            "parameters of group 2": ("bias",),
            "options of group 2": {"weight_decay": 0.0},
        },
    )
    yield (
        call("Embedding, LayerNorm, Linear", 0.2),
        {
            "parameters of group 1": ("0.weight", "2.weight"),
            "parameters of group 2": ("1.bias", "1.weight", "2.bias"),
        },
    )


@decay_groups.edge
def _():
    yield call("Embedding, LayerNorm, Linear tied to the embedding", 0.1), "a tied weight"
    yield (
        call("frozen Embedding, Linear, LayerNorm with frozen bias, Linear", 0.1),
        "frozen parameters",
    )
    yield call("Conv1d, BatchNorm1d, Linear", 0.1), "weights with three axes"
    yield call("LayerNorm", 0.1), "no matrix at all: the first group is empty"
    yield call("Linear without bias", 0.1), "only matrices: the second group is empty"
    yield (
        call("Linear, a scalar, a vector `weight`, a matrix `relative_bias`", 0.1),
        "names that mislead",
    )
    yield call("TransformerEncoderLayer", 0.0), "weight decay 0 in both"


@decay_groups.mistake(
    "You go by the name. A norm's gain is called weight and must not decay; a table called bias has two "
    "axes and should. Count axes."
)
def _(model, weight_decay):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for n, p in named if "bias" not in n], "weight_decay": weight_decay},
        {"params": [p for n, p in named if "bias" in n], "weight_decay": 0.0},
    ]


@decay_groups.mistake(
    "Frozen parameters (requires_grad False) do not belong in an optimizer: leave them out."
)
def _(model, weight_decay):
    params = list(model.parameters())
    return [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]


@decay_groups.mistake(
    "A tied weight comes twice in your groups, once for each module that holds it. Ask the model for its "
    "parameters, not module after module."
)
def _(model, weight_decay):
    params = [p for m in model.modules() for p in m.parameters(recurse=False) if p.requires_grad]
    return [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]


@decay_groups.mistake("You have the groups the wrong way round: matrices decay, vectors do not.")
def _(model, weight_decay):
    params = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in params if p.ndim < 2], "weight_decay": weight_decay},
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": 0.0},
    ]


@decay_groups.mistake(
    "Only the weights of Linear layers decay in your groups. Embeddings and convolutions are matrices "
    "too, or more."
)
def _(model, weight_decay):
    linear = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    params = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in params if id(p) in linear], "weight_decay": weight_decay},
        {"params": [p for p in params if id(p) not in linear], "weight_decay": 0.0},
    ]


@decay_groups.mistake(
    "Your second group has no weight_decay of its own, so it takes the optimizer's: 0.01 in AdamW. Write "
    "the 0 down."
)
def _(model, weight_decay):
    params = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in params if p.ndim < 2]},
    ]


@decay_groups.mistake(
    "Exactly two axes is too narrow: the kernels of a convolution have three or more, and decay as well."
)
def _(model, weight_decay):
    params = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in params if p.ndim == 2], "weight_decay": weight_decay},
        {"params": [p for p in params if p.ndim != 2], "weight_decay": 0.0},
    ]


@decay_groups.alternative("one loop over the named parameters")
def _(model, weight_decay):
    decay, rest = [], []
    for _, p in model.named_parameters():
        if not p.requires_grad:
            continue
        (decay if p.dim() > 1 else rest).append(p)
    return [
        dict(params=decay, weight_decay=weight_decay),  # noqa: C408
        dict(params=rest, weight_decay=0.0),  # noqa: C408
    ]


# ------------------------------------------------------------------------------ state bytes

optimizer_state_bytes = Exercise(
    optimizers.optimizer_state_bytes,
    title="What an optimizer holds",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.state_bytes,
    hints=(
        "`optimizer.state` is a dict from parameter to a dict of what is kept for it. Which of those values "
        "are tensors?",
        "A value may be a list or a dict with tensors inside: write a recursive generator of tensors.",
        "Bytes belong to storages: `t.untyped_storage()` has `data_ptr()` and `nbytes()`. Collect them in a "
        "dict, so that each counts once.",
    ),
)

TWO = ((3, 4), (5,))


def held(name, options=None, shapes=TWO, dtype=torch.float32, unused=0, steps=1):
    return call(name, options or {}, shapes, dtype, unused, steps)


@optimizer_state_bytes.by_hand
def _():
    yield held("SGD", {"lr": 0.1}), 0
    yield held("SGD", {"lr": 0.1, "momentum": 0.9}), 17 * 4
    yield held("AdamW"), 2 * 17 * 4 + 2 * 4  # and torch's two counts of steps, a float32 each
    yield held("AdamW", dtype=torch.float64), 2 * 17 * 8 + 2 * 4


@optimizer_state_bytes.edge
def _():
    yield held("AdamW", steps=0), "nothing is kept before the first step"
    yield held("AdamW", unused=1), "a parameter without gradient has no state"
    yield held("AdamW", dtype=torch.bfloat16), "two bytes an element"
    yield held("Adagrad"), "state from the beginning"
    yield held("Adam", {"amsgrad": True}), "three tensors for each parameter"
    yield held("LBFGS", {"max_iter": 3}, steps=2), "lists of tensors"
    yield held("FlatMomentum"), "one buffer, and views of it"
    yield held("FlatMomentum", shapes=((4, 4), (3,), (2, 2, 2))), "the same with three parameters"
    yield held("Factored"), "dicts and lists in the state, and one count for all parameters"


def top_level(optimizer):
    return [
        t for kept in optimizer.state.values() for t in kept.values() if isinstance(t, torch.Tensor)
    ]


def everything(tree):
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [t for item in tree for t in everything(item)] if isinstance(tree, list | tuple) else []


def once(tensors):
    """Bytes of their storages, each once."""
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
    )


@optimizer_state_bytes.mistake(
    "You count elements. An element of float32 has 4 bytes, one of bfloat16 2: `element_size()` knows."
)
def _(optimizer):
    return sum(t.numel() for t in everything(dict(optimizer.state)))


@optimizer_state_bytes.mistake("You take 4 bytes for every element, whatever the dtype.")
def _(optimizer):
    return once(everything(dict(optimizer.state))) and sum(
        {
            t.untyped_storage().data_ptr(): 4 * t.untyped_storage().nbytes() // t.element_size()
            for t in everything(dict(optimizer.state))
        }.values()
    )


@optimizer_state_bytes.mistake(
    "You only look at values that are tensors themselves. LBFGS keeps lists of them, others a dict: go into "
    "those too."
)
def _(optimizer):
    return once(top_level(optimizer))


@optimizer_state_bytes.mistake(
    "You count a storage once for every tensor that views it. One flat buffer with a view for each "
    "parameter is there once."
)
def _(optimizer):
    return sum(t.untyped_storage().nbytes() for t in everything(dict(optimizer.state)))


@optimizer_state_bytes.mistake(
    "You count a tensor that several parameters share once for each of them; it is there once."
)
def _(optimizer):
    return sum(t.numel() * t.element_size() for t in everything(dict(optimizer.state)))


@optimizer_state_bytes.mistake(
    "You count the parameters too. They are the keys of `optimizer.state`, not part of what it keeps."
)
def _(optimizer):
    params = [p for group in optimizer.param_groups for p in group["params"]]
    return once([*params, *everything(dict(optimizer.state))])


@optimizer_state_bytes.mistake(
    "You estimate from the parameters, two tensors for each, and do not look at what is there: SGD keeps "
    "none, and a parameter without gradient has no state."
)
def _(optimizer):
    params = [p for group in optimizer.param_groups for p in group["params"]]
    return sum(2 * p.numel() * p.element_size() + 4 for p in params)


@optimizer_state_bytes.alternative("a stack in place of recursion, and a set of storages")
def _(optimizer):
    stack, seen, total = list(optimizer.state.values()), set(), 0
    while stack:
        item = stack.pop()
        if torch.is_tensor(item):
            storage = item.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.size()
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
    return total


optimizer_state_bytes.equivalent(
    "optimizer_state_bytes: `storages[storage.data_ptr()]` → `storages[storage]`",
    because="torch hands out one Python object for a storage as long as that lives, and the dict keeps it alive: the keys fall together for the same tensors",
)
