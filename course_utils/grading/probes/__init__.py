"""Probes: small functions that drive a student's object through a case and say what they saw.

A probe takes the object (a function, a class, or a dict of several by name) and a case, and
returns named arrays and plain values. It runs wherever the student's code runs: in the notebook,
on many ranks, in an instructor's sandbox. So these modules import nothing of the references or of
the exercises, and what a probe returns is data. A probe may carry an attribute `called`, a function
of the object's name and the case, that says in a verdict what was called.
"""

from collections.abc import Callable
from typing import Any

from ..case import Case
from .autograd import accumulates, custom_function, straight_through, takes_function
from .functions import call, named_arguments, never_negative, there_and_back
from .gpt2 import checkpoint, gpt2_count, gpt2_model, gpt2_part, initialised
from .lora import adapter_state, injected, lora_layer, merge_run
from .modules import assembled, dropout, module, registry, tied
from .objects import steps
from .optimizers import optimizer, parameter_groups, state_bytes
from .precision import amp_run, master_run, scaler_run
from .randomness import glorot_weight
from .views import strides_of, view

Probe = Callable[[Any, Case], dict[str, Any]]

__all__ = [
    "Probe",
    "accumulates",
    "adapter_state",
    "amp_run",
    "assembled",
    "call",
    "checkpoint",
    "custom_function",
    "dropout",
    "glorot_weight",
    "gpt2_count",
    "gpt2_model",
    "gpt2_part",
    "initialised",
    "injected",
    "lora_layer",
    "master_run",
    "merge_run",
    "module",
    "named_arguments",
    "never_negative",
    "optimizer",
    "parameter_groups",
    "registry",
    "scaler_run",
    "state_bytes",
    "steps",
    "straight_through",
    "strides_of",
    "takes_function",
    "there_and_back",
    "tied",
    "view",
]
