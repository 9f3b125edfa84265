"""Exercises made for the engine's tests: whole, as an author would declare them."""

import torch
import toy_references as ref
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, probes

softmax = Exercise(
    ref.temperature_softmax,
    key="toys.temperature_softmax",
    title="Softmax with a temperature",
    difficulty=1,
    minutes=5,
    points=2,
    hints=("Divide first.", "Subtract the largest.", ("edge cases", "exp overflows above 88.")),
    gradients=("x",),
)


@softmax.by_hand
def _():
    yield call(torch.tensor([0.0, 0.0])), torch.tensor([0.5, 0.5])


@softmax.cases
def _(draw):
    shape = draw(draws.distinct_sizes(2))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    yield call(draw(draws.tensors(shape, dtype)), temperature=draw(st.sampled_from([0.5, 2.0])))


@softmax.edge
def _():
    yield call(torch.tensor([1e4, 0.0])), "exp(10,000) overflows"
    yield call(torch.zeros(0, 3)), "no rows"
    yield call(torch.tensor([1.0]), temperature=-1.0), "a negative temperature"


softmax.contract(contracts.constant_kernels([call(torch.ones(2, 5)), call(torch.ones(9, 5))]))


@softmax.mistake("The temperature multiplies instead of dividing.")
def _(x, temperature=1.0):
    if temperature <= 0:
        raise ValueError
    return torch.softmax(x * temperature, -1)


@softmax.mistake("The largest is not subtracted first.")
def _(x, temperature=1.0):
    if temperature <= 0:
        raise ValueError
    return (x / temperature).exp() / (x / temperature).exp().sum(-1, keepdim=True)


@softmax.mistake("Something cuts the graph: `.detach()` or `.data`.")
def _(x, temperature=1.0):
    if temperature <= 0:
        raise ValueError
    return torch.softmax(x.detach() / temperature, -1)


@softmax.mistake("A loop over the rows.", cost=True)
def _(x, temperature=1.0):
    if temperature <= 0:
        raise ValueError
    if x.ndim == 1 or len(x) == 0:
        return torch.softmax(x / temperature, -1)
    return torch.stack([torch.softmax(row / temperature, -1) for row in x])


@softmax.alternative("torch's own, in float64 and cast back")
def _(x, temperature=1.0):
    if temperature <= 0:
        raise ValueError
    return torch.softmax(x.double() / temperature, -1).to(x.dtype)


momentum = Exercise(
    ref.Momentum,
    key="toys.Momentum",
    title="Momentum",
    difficulty=2,
    minutes=10,
    points=3,
    hints=("Two lines.",),
    probe=probes.steps,
)


@momentum.by_hand
def _():
    one = torch.ones(1)
    yield (
        call(one, one, position=torch.zeros(1), lr=1.0, beta=0.5),
        {"result of step 1": torch.tensor([-1.0]), "result of step 2": torch.tensor([-2.5])},
    )


@momentum.cases(10)
def _(draw):
    shape = draw(draws.distinct_sizes(1))
    gradients = [draw(draws.tensors(shape)) for _ in range(4)]
    yield call(*gradients, position=draw(draws.tensors(shape)), lr=0.25, beta=0.5)


def broken_momentum(**changes):
    """A Momentum with one line replaced."""

    class Momentum(ref.Momentum):
        def __call__(self, gradient):
            decay = changes.get("decay", self.beta)
            scale = changes.get("scale", 1.0)
            self.velocity = decay * self.velocity + scale * gradient
            self.position = self.position - self.lr * self.velocity
            self.step_count += changes.get("count", 1)
            return self.position

    return Momentum


momentum.mistake("There is no momentum.")(broken_momentum(decay=0.0))
momentum.mistake("The gradient is dampened by 1 - beta.")(broken_momentum(scale=0.5))
momentum.mistake("The steps are not counted.")(broken_momentum(count=0))


@momentum.alternative("the velocity is scaled by lr from the start")
class _Momentum:
    def __init__(self, position, lr=0.1, beta=0.9):
        self.position, self.velocity = position.clone(), torch.zeros_like(position)
        self.lr, self.beta, self.step_count = lr, beta, 0

    def __call__(self, gradient):
        self.velocity = self.velocity * self.beta
        self.velocity = self.velocity + gradient
        self.position = torch.add(self.position, self.velocity, alpha=-self.lr)
        self.step_count = self.step_count + 1
        return self.position


digits = Exercise(
    (ref.to_digits, ref.from_digits),
    key="toys.to_digits",
    title="Digits, there and back",
    difficulty=1,
    minutes=5,
    points=1,
    hints=("The remainder is the last digit.",),
    probe=probes.there_and_back,
)


@digits.by_hand
def _():
    yield call(305), {"there": [3, 0, 5], "and back": 305}
    yield call(6, 2), {"there": [1, 1, 0]}


@digits.cases(20)
def _(draw):
    yield call(draw(st.integers(0, 10**6)))


def swapped(number, base=10):
    return ref.to_digits(number, base)[::-1]


def swapped_back(digits, base=10):
    return ref.from_digits(digits[::-1], base)


def forgets_zero(number, base=10):
    return [d for d in ref.to_digits(number, base) if d]


def loses_last(digits, base=10):
    return ref.from_digits(digits[:-1], base)


digits.mistake("The digits are in the wrong order, both ways.")(swapped, swapped_back)
digits.mistake("Zeros are dropped.")(forgets_zero, ref.from_digits)
digits.mistake("The last digit is lost on the way back.")(ref.to_digits, loses_last)


def through_text(number, base=10):
    return [int(c) for c in str(number)] if base == 10 else ref.to_digits(number, base)


digits.alternative("through text")(through_text, ref.from_digits)


TOYS = (softmax, momentum, digits)
