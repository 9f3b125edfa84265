"""What a student's code finds around it: kept quiet, put back afterwards, and what it left changed."""

import io
import os
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
import torch

SEED = 20250101  # nobody's favourite: a seed that the code sets itself is told from it


def set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device == torch.device("cpu") else device)


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch's default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "torch's default device": (torch.get_default_device, set_default_device),
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


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Prints and warnings do not mix with the verdict; settings and random states are put back.

    Yields a list. After the block it says, in words that follow "your code", which settings the
    block had changed and left so.
    """
    left: list[str] = []
    before = {name: get() for name, (get, _) in SETTINGS.items()}
    modes = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    python, numpy = random.getstate(), np.random.get_state()
    with (
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
        warnings.catch_warnings(record=True),
        torch.random.fork_rng(devices=[]),
    ):
        seed(SEED)
        try:
            yield left
        finally:
            if torch.initial_seed() != SEED:
                left.append(f"seeded torch's global generator with {torch.initial_seed()}")
            for name, (get, put_back) in SETTINGS.items():
                if (now := value_of(get)) != before[name]:
                    left.append(f"set {name} to {now} and left it so")
                    put_back(before[name])
            if (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()) > modes:
                left.append("entered a mode of torch and did not leave it")
            while torch._C._len_torch_function_stack() > modes[0]:
                torch._C._pop_torch_function_stack()
            while torch._C._len_torch_dispatch_stack() > modes[1]:
                torch._C._pop_torch_dispatch_stack(None)
            random.setstate(python)
            np.random.set_state(numpy)


def seed(number: int) -> None:
    """Like `torch.manual_seed`, which on a CPU records a traceback for a later CUDA, every time."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


def value_of(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except OSError:  # a working folder that is gone
        return "nothing"
