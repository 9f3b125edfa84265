"""What a student's code finds around it: always the same, put back afterwards; what it left changed."""

import io
import os
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
import torch

_SEED = 20250101  # nobody's favourite: a seed that the code sets itself is told from it
_NOTHING = "nothing"


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device == torch.device("cpu") else device)


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (torch.get_default_device, _set_default_device),
    "torch's grad mode": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "torch's deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "torch's number of threads": (torch.get_num_threads, torch.set_num_threads),
    "torch's anomaly mode": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "torch's matmul precision": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "the working folder": (os.getcwd, os.chdir),
}
# A notebook may have set these itself; checks do not depend on it.
_STANDARD = {
    "torch's default dtype": torch.float32,
    "torch's default device": torch.device("cpu"),
    "torch's grad mode": True,
}


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Prints and warnings do not mix with the verdict; settings and random states are put back.

    The block finds torch as it is when just imported: float32, on the CPU, recording gradients.
    The states of Python's and NumPy's generators are those outside; in a process that only runs
    answers they are always the same (`only_answers_here`). Yields a list: after the block it says, in
    words that follow "your code", which settings the block had changed and left so.
    """
    left: list[str] = []
    outside = {name: _value_of(get) for name, (get, _) in _SETTINGS.items()}
    _change(outside, _STANDARD)
    before = outside | _STANDARD
    modes = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    put_back = _randomness()
    with (
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
        warnings.catch_warnings(record=True),
        torch.random.fork_rng(devices=[]),
    ):
        seed(_SEED)
        try:
            yield left
        finally:
            with torch._C.DisableTorchFunction():
                left += _changed_since(before, modes)
                _change(before, outside)
            put_back()


def only_answers_here() -> None:
    """Say that nobody's random numbers are to be kept in this process, whose copies take 50 µs."""
    global _randomness
    _randomness = _always_the_same


def _as_outside() -> Callable[[], None]:
    """Keep the states of Python's and NumPy's generators; what it returns puts them back."""
    python, numpy = random.getstate(), np.random.get_state()

    def put_back() -> None:
        random.setstate(python)
        np.random.set_state(numpy)

    return put_back


def _always_the_same() -> Callable[[], None]:
    random.setstate(_AT_FIRST)
    np.random.seed(_SEED)
    return lambda: None


_AT_FIRST = random.Random(_SEED).getstate()
_randomness = _as_outside


def _changed_since(before: dict[str, Any], modes: tuple[int, int]) -> list[str]:
    """What is no longer as it was, in words; it is put back."""
    left = []
    if torch.initial_seed() != _SEED:
        left.append(f"seeded torch's global generator with {torch.initial_seed()}")
    now = {name: _value_of(get) for name, (get, _) in _SETTINGS.items()}
    left += [f"set {n} to {now[n]} and left it so" for n in now if now[n] != before[n]]
    _change(now, before)
    if (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()) > modes:
        left.append("entered a mode of torch and did not leave it")
    while torch._C._len_torch_function_stack() > modes[0]:
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack() > modes[1]:
        torch._C._pop_torch_dispatch_stack(None)
    return left


def _change(settings: dict[str, Any], to: dict[str, Any]) -> None:
    """Set those of the settings that differ from what they should be."""
    for name, value in to.items():
        if settings[name] != value and value is not _NOTHING:
            _SETTINGS[name][1](value)


def seed(number: int) -> None:
    """Like `torch.manual_seed`, which on a CPU records a traceback for a later CUDA, every time."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


def _value_of(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except OSError:  # a working folder that is gone
        return _NOTHING
