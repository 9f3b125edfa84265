"""What contracts do before they measure: build the module, fill the gradients, take a first step.

Each takes the student's object and a case and returns the function whose call is measured (see
`contracts.Contract`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from course_utils.grading.driving.case import Case
from course_utils.grading.probes.chapters.autograd import with_function
from course_utils.grading.probes.chapters.gpt2 import config_for
from course_utils.grading.probes.chapters.lora import linear
from course_utils.grading.probes.chapters.pretraining import deduplicated
from course_utils.grading.probes.chapters.schedules_and_stability import with_gradients

Prepared = Callable[[], Any]
SIDE = (32, 32)
"""The shape of each parameter of which an optimizer's step is measured."""


def applied(subject: Any, case: Case) -> Prepared:
    """A custom Function: its `apply`."""
    return partial(subject.apply, *case.args)


def with_documents(subject: Any, case: Case) -> Prepared:
    """Signatures, and the documents that are compared."""
    return partial(deduplicated.run, subject, case)


def with_its_function(subject: Any, case: Case) -> Prepared:
    """The case names a function by its source, for the first argument."""
    return partial(subject, *with_function(case))


def on_a_leaf(subject: Any, case: Case) -> Prepared:
    """The same, and the second argument requires grad."""
    f, w, *rest = with_function(case)
    return partial(subject, f, w.clone().requires_grad_(), *rest)


def module_built(subject: Any, case: Case) -> Prepared:
    """The module, built beforehand, so that only its call is measured."""
    build, _, (mode, *given) = case.args
    layer = subject(**build).train(mode == "train")
    return lambda: layer(*given)


def dropout_built(subject: Any, case: Case) -> Prepared:
    """Dropout in eval mode, and a tensor of ones for it."""
    build, shape, dtype = case.args
    layer, x = subject(**build).eval(), torch.ones(shape, dtype=dtype)
    return lambda: layer(x)


def table_and_head(subject: Any, case: Case) -> Prepared:
    """A model's two ends, for the function that ties them."""
    table, weight, *_ = case.args
    outputs, inputs = weight.shape
    embedding, head = nn.Embedding(*table.shape), nn.Linear(inputs, outputs, bias=False)
    return lambda: subject(embedding, head)


def gpt2_part_built(subject: Any, case: Case) -> Prepared:
    """A part of GPT-2, built beforehand, so that only its calls are measured: with x alone, and with a mask."""
    build, _, (_, x, mask) = case.args
    layer = subject(config_for(subject, build["config"])).eval()
    return lambda: (layer(x), layer(x, mask))


def gpt2_built(subject: Any, case: Case) -> Prepared:
    """The whole model, built beforehand."""
    config, _, _, (_, ids) = case.args
    model = subject["GPT2"]
    built = model(config_for(model, config)).eval()
    return lambda: built(ids)


def lora_built(subject: Any, case: Case) -> Prepared:
    """A LoRA layer around a linear one, built and filled beforehand."""
    kind, weight, bias, build, A, B, x = case.args
    layer = subject(linear(kind, weight, bias), **build)
    with torch.no_grad():
        layer.lora_A.copy_(A)
        layer.lora_B.copy_(B)
    return lambda: layer(x)


def optimizer_step(subject: Any, case: Case, warm: int = 0) -> Prepared:
    """A step of the optimizer, after `warm` others, that returns the parameters."""
    params = [nn.Parameter(torch.ones(SIDE)) for _ in range(case.kwargs["count"])]
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = subject(params, **case.kwargs["options"])
    for _ in range(warm):
        optimizer.step()

    def step() -> list[torch.Tensor]:
        optimizer.step()
        return [p.detach() for p in params]

    return step


def third_optimizer_step(subject: Any, case: Case) -> Prepared:
    """A step after two others, when the optimizer's state exists."""
    return optimizer_step(subject, case, warm=2)


def flat_and_back(subject: Any, case: Case) -> Prepared:
    """Both functions of the pair on the case's tensors; only the way back is measured."""
    shard, unshard = subject.values()
    tensors, world_size = case.args
    shares = [shard(tensors, rank, world_size) for rank in range(world_size)]
    return partial(unshard, shares, [tuple(t.shape) for t in tensors])


def one_share(subject: Any, case: Case) -> Prepared:
    """The first function of the pair on the case's tensors, for rank 1."""
    shard, _ = subject.values()
    tensors, world_size = case.args
    return partial(shard, tensors, 1, world_size)


def for_one_rank(subject: Any, case: Case) -> Prepared:
    """The shards of a saved state, resharded for rank 1."""
    shards, world_size = case.args
    return partial(subject, shards, 1, world_size)


def gradients_given(subject: Any, case: Case) -> Prepared:
    """Parameters with the case's gradients, and its max_norm."""
    grads, max_norm = case.args
    return partial(subject, with_gradients(grads), max_norm)
