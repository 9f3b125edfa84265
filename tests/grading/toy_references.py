"""Small references for the engine's own tests: a function, a class with state and steps, a pair."""

import math

import torch
from torch import Tensor


def temperature_softmax(x: Tensor, temperature: float = 1.0) -> Tensor:
    """Softmax of x / temperature over the last axis.

    x: (..., N). Raises ValueError unless temperature > 0.
    """
    if temperature <= 0:
        raise ValueError("temperature must be positive")
    z = x / temperature
    e = (z - z.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


class Momentum:
    """A toy optimizer: velocity = beta · velocity + gradient; position -= lr · velocity."""

    def __init__(self, position: Tensor, lr: float = 0.1, beta: float = 0.9) -> None:
        """position: (N,), updated in place of its own copy."""
        self.position = position.clone()
        self.velocity = torch.zeros_like(position)
        self.lr, self.beta = lr, beta
        self.step_count = 0

    def __call__(self, gradient: Tensor) -> Tensor:
        """One step; the new position."""
        self.velocity = self.beta * self.velocity + gradient
        self.position = self.position - self.lr * self.velocity
        self.step_count += 1
        return self.position


def to_digits(number: int, base: int = 10) -> list[int]:
    """The digits of a number, most significant first."""
    digits = [number % base]
    while number >= base:
        number //= base
        digits.append(number % base)
    return digits[::-1]


def from_digits(digits: list[int], base: int = 10) -> int:
    """The number with these digits."""
    return sum(d * base**i for i, d in enumerate(reversed(digits)))


def unit_norm(x: Tensor) -> Tensor:
    """x / |x|, along the last axis."""
    return x / math.sqrt(1.0) / x.norm(dim=-1, keepdim=True)
