"""Probes of data parallel training: models, gradients and files on every rank of a group.

Each body below runs on one rank; its case holds that rank's arguments. `Watch` says, while the
student's code runs, how often it has communicated and whether it has waited: so a gradient that is
averaged too late, or a rank that leaves before the others, shows without a clock.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.grading.distributed.probe import runs_on_ranks
from course_utils.grading.distributed.run import run_on_ranks
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import unchanged
from course_utils.grading.pytrees.shown import shown

# ------------------------------------------------------------------------------ what is watched


class Watch(TorchDispatchMode):
    """Counts calls of torch.distributed, and times that somebody waits for one.

    calls: communications so far; waits: calls of `wait` so far. each: called at every communication.
    """

    supports_higher_order_operators = True

    def __init__(self, each: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.calls = self.waits = 0
        self.each = each

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.calls += func._schema.name != "_c10d_functional::wait_tensor"
            self.waits += func._schema.name == "_c10d_functional::wait_tensor"
            self.each()
        return func(*args, **(kwargs or {}))


@contextmanager
def _watched(each: Callable[[], None] = lambda: None) -> Iterator[Watch]:
    """Count communications and waits in the block."""
    watch = Watch(each)
    waiting = [(dist.Work, "wait"), (dist.Work, "synchronize"), (torch.futures.Future, "wait")]
    before = [(owner, name, getattr(owner, name)) for owner, name in waiting]

    def counting(original: Any) -> Any:
        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            watch.waits += 1
            return original(self, *args, **kwargs)

        return wait

    for owner, name, original in before:
        setattr(owner, name, counting(original))
    try:
        with watch:
            yield watch
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


class Mark(torch.autograd.Function):
    """The identity; when backward comes past, it calls what it was given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, when: Callable[[], None]) -> Tensor:
        ctx.when = when
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.when()
        return grads[0], None


# ------------------------------------------------------------------------------ models


class Net(nn.Module):
    """Layers from 3 inputs to 2 outputs, the first of which is passed last by backward.

    passed: called when backward has the gradients of all layers but the first.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(layers)
        self.passed: Callable[[], None] = lambda: None

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        x = Mark.apply(self.layers[0](x * scale), self.passed)  # type: ignore[no-untyped-call]
        for layer in self.used():
            x = torch.tanh(layer(x))
        return x

    def used(self) -> list[nn.Module]:
        """The layers after the first that this forward goes through."""
        return list(self.layers[1:])


class Branches(Net):
    """Rank r goes through layer 1 + r mod 2 of three; nobody goes through the last."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        x = Mark.apply(self.layers[0](x * scale), self.passed)  # type: ignore[no-untyped-call]
        y: Tensor = self.layers[1 + dist.get_rank() % 2](x)
        return y


class Joins(Net):
    """The second layer takes no part in the first forward."""

    calls = 0

    def used(self) -> list[nn.Module]:
        self.calls += 1
        return super().used()[self.calls == 1 :]


class Leaves(Net):
    """The second layer takes part in the first forward only."""

    calls = 0

    def used(self) -> list[nn.Module]:
        self.calls += 1
        return super().used()[self.calls > 1 :]


class Named(Net):
    """What it returns is a dictionary."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        return {"y": super().forward(x, scale)}


class Counter(nn.Module):
    """Multiplies by a buffer, and changes it: what a running statistic does."""

    scale: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.rand(3))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.scale.clone()  # backward needs it as it is now
        with torch.no_grad():
            self.scale.add_(x.mean(0)[:1].abs())
            self.seen.add_(1 + dist.get_rank())
        return y


class Uneven(nn.Module):
    """A weight with gaps in its memory, a frozen one, an empty one, a table that is transposed on odd
    ranks only, and buffers of four dtypes whose values no float32 holds."""

    def __init__(self) -> None:
        super().__init__()
        self.room = torch.randn(3, 4)
        self.weight = nn.Parameter(self.room[:, :2].T)
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0, 3))
        table = torch.randn(2, 3).T
        self.register_buffer("table", table if dist.get_rank() % 2 else table.contiguous())
        self.register_buffer("exact", torch.randn(3, dtype=torch.float64))
        self.register_buffer("tokens", 2**60 + torch.randint(100, (2,)))
        self.register_buffer("mask", torch.rand(4) < 0.5)
        self.register_buffer("steps", torch.randint(100, ()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.frozen


class Wrapped(nn.Module):
    """Its child has the name that wrappers use, and so has half of another child's."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.submodule = nn.Linear(2, 1)
        self.register_buffer("steps", torch.randint(100, ()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.submodule(self.module(x))
        return y


def tied() -> Net:
    """A net of four layers, two of which share their weight."""
    net = Net(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    net.layers[2].weight = net.layers[1].weight
    return net


def by_hand() -> nn.Module:
    """y = x · (1, 2, 3)"""
    layer = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0, 3.0]]))
    return layer


def frozen() -> nn.Module:
    """A net of three layers; the middle one needs no gradient."""
    net = Net(nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 2))
    net.layers[1].requires_grad_(False)
    return net


def two_dtypes() -> nn.Module:
    """A net whose second layer computes in float64."""

    class Double(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.double()).to(x.dtype)

    second = Double(4, 3).double()
    return Net(nn.Linear(3, 4), second, nn.Linear(3, 3), nn.Linear(3, 2))


_MODELS: dict[str, Callable[[], nn.Module]] = {
    "three layers": lambda: Net(nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 2)),
    "one layer": lambda: Net(nn.Linear(3, 2)),
    "a branch for each rank": lambda: Branches(
        nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)
    ),
    "buffers that change": lambda: Net(nn.Linear(3, 3), Counter(), nn.Linear(3, 2)),
    "two layers with one weight": tied,
    "a layer that joins at the second step": lambda: Joins(
        nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
    ),
    "a layer that leaves after the first forward": lambda: Leaves(
        nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
    ),
    "three layers, whose output is in a dictionary": lambda: Named(
        nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 2)
    ),
    "a frozen layer": frozen,
    "float32 and float64": two_dtypes,
    "many dtypes and strides": Uneven,
    "BatchNorm": lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
    "Linear(2, 1)": lambda: nn.Linear(2, 1),
    "Linear(2, 3)": lambda: nn.Linear(2, 3),
    "by hand": by_hand,
    "a child named module": Wrapped,
}
"""What a case may name."""


def _seeded(name: str, seed: int) -> nn.Module:
    """The model of this name with the parameters that belong to the seed; torch's own state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _MODELS[name]()


def _state_of(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by its name, those that are not saved included."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: value.detach() for name, value in named}


# ------------------------------------------------------------------------------ broadcast_parameters


@runs_on_ranks
def started_apart(subject: Any, case: Case) -> dict[str, Any]:
    """Models that differ from rank to rank, handed to the function.

    Each rank's call: model, seed, and the function's further arguments. `weight`: what the model's
    own weight is set to. Seen are all parameters and buffers afterwards, and whether they are in place.
    """
    return run_on_ranks(subject, case, started_apart_there)


def started_apart_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `started_apart` sees on one rank."""
    given = dict(case.kwargs)
    module = _seeded(given.pop("model"), given.pop("seed"))
    weight = given.pop("weight", None)
    if weight is not None:
        with torch.no_grad():
            module.weight.copy_(weight)  # type: ignore[union-attr, operator]
    before = _state_of(module)
    flags = {name: p.requires_grad for name, p in module.named_parameters()}
    places = {name: (t.data_ptr(), t.stride()) for name, t in before.items()}
    result = subject(module, **given)
    after = _state_of(module)
    seen: dict[str, Any] = {f"`{name}`": value.clone() for name, value in after.items()}
    seen["everything is still in its place"] = places == {
        name: (t.data_ptr(), t.stride()) for name, t in after.items()
    }
    still = {name: p.requires_grad for name, p in module.named_parameters()}
    seen["what is trainable stays so"] = flags == still
    if isinstance(module, Uneven):
        seen["the memory between a parameter's rows"] = module.room[:, 2:].clone()
    seen["result"] = result
    return seen


# ------------------------------------------------------------------------------ average_gradients


_FULL = 77.0


def _parameters_of(given: dict[str, Any]) -> list[nn.Parameter]:
    """Parameters, one for each of the case's shapes, full of what no gradient is."""
    params = [
        nn.Parameter(torch.full(shape, _FULL, dtype=like.dtype))
        for shape, like in zip(given["shapes"], given["like"], strict=True)
    ]
    for i in given.get("frozen", ()):
        params[i].requires_grad_(False)
    return params


def _give(params: list[nn.Parameter], grads: list[Tensor | None]) -> None:
    for p, g in zip(params, grads, strict=True):
        p.grad = None if g is None else g.clone()


def _gradients_of(params: list[nn.Parameter], when: str = "") -> dict[str, Any]:
    return {
        f"gradient of parameter {i}{when}": None if p.grad is None else p.grad.clone()
        for i, p in enumerate(params)
    }


def _left_alone(params: list[nn.Parameter]) -> Any:
    return unchanged([torch.full_like(p, _FULL) for p in params], [p.detach() for p in params])


@runs_on_ranks
def averaged(subject: Any, case: Case) -> dict[str, Any]:
    """Parameters with gradients, handed to the function as an iterator.

    Each rank's call: shapes, like (tensors of the parameters' dtypes), frozen (indices), grads (a
    tensor or None for each parameter). Seen are the gradients afterwards, and whether the
    parameters are as they were.
    """
    return run_on_ranks(subject, case, averaged_there)


def averaged_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `averaged` sees on one rank."""
    from course_utils.grading.distributed.on_rank import counted

    params = _parameters_of(case.kwargs)
    _give(params, case.kwargs["grads"])
    with counted():
        result = subject(iter(params))
    seen = _gradients_of(params)
    seen["parameters are left alone"] = _left_alone(params)
    seen["result"] = result
    return seen


# ------------------------------------------------------------------------------ GradientBuckets


@runs_on_ranks
def bucketed(subject: Any, case: Case) -> dict[str, Any]:
    """The class, built on an iterator of parameters, and once more beside it; then some steps.

    Each rank's call: as for `averaged`, without grads; cap_bytes, or nothing; each positional
    argument is a step: (grads, buckets), the gradients and the indices of the buckets to start, or
    None for all. Seen are the buckets, the gradients after each step, and whether `start` waited.
    """
    return run_on_ranks(subject, case, bucketed_there)


def bucketed_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `bucketed` sees on one rank."""
    from course_utils.grading.distributed.on_rank import counted

    given = case.kwargs
    params = _parameters_of(given)
    place = {id(p): i for i, p in enumerate(params)}
    options = {"cap_bytes": given["cap_bytes"]} if "cap_bytes" in given else {}
    reducer = subject(iter(params), **options)
    subject(iter(params[:1]), **options)
    seen: dict[str, Any] = {
        "buckets": [[place.get(id(p), -1) for p in bucket] for bucket in reducer.buckets]
    }
    waited = False
    for number, (grads, chosen) in enumerate(case.args, start=1):
        _give(params, grads)
        with counted(), _watched() as watch:
            for index in range(len(reducer.buckets)) if chosen is None else chosen:
                reducer.start(index)
            waited |= watch.waits > 0
            reducer.finish()
        seen |= _gradients_of(params, f" after step {number}")
    seen["start returns without waiting"] = not waited
    seen["parameters are left alone"] = _left_alone(params)
    return seen


# ------------------------------------------------------------------------------ the wrapper


@runs_on_ranks
def wrapped(subject: Any, case: Case) -> dict[str, Any]:
    """A model wrapped on every rank and trained for some steps.

    Each rank's call: model, seed, options of the wrapper; beside, whether another model is wrapped
    and takes its steps in turn; overlap, whether messages must start and end in time. Each
    positional argument is a step: a list of inputs (N, 3), all but the last of which run inside
    `no_sync`; "silent": all do; "nested": all do, and a `no_sync` within that has ended; "raising":
    first a `no_sync` is left by an exception; "by name": the module gets a further argument by its
    name; "eval": the one input runs without gradients; "in eval mode": so, and in that mode;
    "forward in no_sync", "backward in no_sync": only that of the two is; "two backwards of one
    forward"; "bare": the model itself is called. Seen are outputs, gradients, buffers, and what
    went on meanwhile.
    """
    return run_on_ranks(subject, case, wrapped_there)


def wrapped_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `wrapped` sees on one rank."""
    from course_utils.grading.distributed.on_rank import counted

    given = case.kwargs
    model = _seeded(given["model"], given["seed"])
    if any(x.dtype == torch.float64 for _, inputs in case.args for x in inputs):
        model = model.double()
    ddp = subject(model, **given.get("options", {}))
    seen: dict[str, Any] = {f"`{n}` at the start": v.clone() for n, v in _state_of(model).items()}
    seen["`.module` is the model"] = getattr(ddp, "module", None) is model
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    one_layer = _seeded("one layer", 0).to(next(model.parameters()).dtype)
    other = subject(one_layer) if given.get("beside") else nn.Identity()
    sent, waited = True, False
    with counted(), _watched() as watch:
        for number, (kind, inputs) in enumerate(case.args, start=1):
            optimizer.zero_grad()
            for count, x in enumerate(inputs, start=1):
                silent = count < len(inputs) or kind in ("silent", "nested")
                if given.get("beside"):
                    other(x).square().sum().backward()
                before = watch.calls
                if kind == "raising":
                    with suppress(KeyError), ddp.no_sync():
                        raise KeyError("the student's block")
                if kind in ("eval", "in eval mode"):
                    ddp.train(kind == "eval")
                    with torch.no_grad():
                        seen[f"output of step {number}"] = ddp(x).clone()
                    ddp.train()
                elif kind == "bare":
                    model(x).square().sum().backward()
                    key = f"nothing is communicated without the wrapper, in step {number}"
                    seen[key] = watch.calls == before
                elif kind in ("forward in no_sync", "backward in no_sync"):
                    within = kind == "forward in no_sync"
                    with ddp.no_sync() if within else nullcontext():
                        loss = ddp(x).square().sum()
                    before = watch.calls
                    with nullcontext() if within else ddp.no_sync():
                        loss.backward()
                    seen[f"backward communicates in step {number}"] = watch.calls > before
                elif kind == "two backwards of one forward":
                    loss = ddp(x).square().sum()
                    loss.backward(retain_graph=True)
                    before = watch.calls
                    loss.backward()
                    key = f"the second backward communicates in step {number}"
                    seen[key] = watch.calls > before
                elif silent:
                    with ddp.no_sync():
                        with ddp.no_sync() if kind == "nested" else nullcontext():
                            pass
                        ddp(x).square().sum().backward()
                    key = f"nothing is communicated in no_sync of step {number}"
                    seen[key] = seen.get(key, True) and watch.calls == before
                else:
                    more = {"scale": 2.0} if kind == "by name" else {}
                    output, calls, waits = _one_step(partial(ddp, **more), model, x, watch)
                    seen[f"output of step {number}"] = output
                    sent, waited = sent and calls > 0, waited or waits > 0
            for name, p in model.named_parameters():
                grad = None if p.grad is None else p.grad.clone()
                seen[f"gradient of `{name}` after step {number}"] = grad
            for name, buffer in model.named_buffers():
                seen[f"`{name}` after step {number}"] = buffer.clone()
            optimizer.step()
    if given.get("overlap"):
        seen["a bucket is sent before backward is done"] = sent
        seen["backward waits for a message"] = waited
    seen["names in the state_dict"] = tuple(sorted(ddp.state_dict()))
    return seen


def _one_step(ddp: Any, model: Any, x: Tensor, watch: Watch) -> tuple[Tensor, int, int]:
    """Forward and backward: the output; communications and waits before the first layer's turn."""
    before = early = (0, 0)

    def passed() -> None:
        nonlocal early
        early = watch.calls - before[0], watch.waits - before[1]

    model.passed = passed
    output = ddp(x)
    if isinstance(model, Named):
        output = output["y"]
    before = watch.calls, watch.waits
    output.square().sum().backward()
    return output.detach().clone(), *early


# ------------------------------------------------------------------------------ no_sync_step


@runs_on_ranks
def accumulated(subject: Any, case: Case) -> dict[str, Any]:
    """Steps of the function on a linear model that torch's DistributedDataParallel wraps.

    Each rank's call: seed, or zero, for parameters of zeros; each positional argument is the list
    of micro-batches of a step. Before the first, the gradients hold what an earlier backward left.
    Seen are the losses, and gradients and parameters after each step.
    """
    return run_on_ranks(subject, case, accumulated_there)


def accumulated_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `accumulated` sees on one rank."""
    from course_utils.grading.distributed.on_rank import counted

    (x, y), *_ = case.args[0]
    outputs = y.shape[1]
    model = _seeded(f"Linear(2, {outputs})", case.kwargs["seed"]).to(x.dtype)
    if case.kwargs.get("zero"):
        for p in model.parameters():
            p.detach().zero_()
    ddp = nn.parallel.DistributedDataParallel(model)
    for _ in range(3):  # torch rebuilds its buckets after the first
        target = torch.ones(1, outputs, dtype=x.dtype)
        F.mse_loss(ddp(torch.ones(1, 2, dtype=x.dtype)), target).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: dict[str, Any] = {}
    for number, batches in enumerate(case.args, start=1):
        with counted():
            loss = subject(ddp, [tuple(batch) for batch in batches], optimizer)
        seen[f"loss of step {number}"] = loss
        seen["losses are detached"] = seen.get("losses are detached", True) and not (
            isinstance(loss, Tensor) and loss.requires_grad
        )
        for name, p in model.named_parameters():
            seen[f"gradient of `{name}` after step {number}"] = (
                None if p.grad is None else p.grad.clone()
            )
            seen[f"`{name}` after step {number}"] = p.detach().clone()
    seen["the next step communicates"] = _synchronizes(ddp, x)
    return seen


def _synchronizes(ddp: Any, x: Tensor) -> bool:
    with _watched() as watch:
        ddp(x).sum().backward()
    return watch.calls > 0


# ------------------------------------------------------------------------------ token_weighted_backward

_IGNORED = -100


class Tokens(nn.Module):
    """ids (B, T) to logits (B, T, 7): a table, a head with a bias, and a frozen vector."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(17)
        self.table = nn.Parameter(torch.randn(7, 3, generator=generator))
        self.frozen = nn.Parameter(torch.full((3,), 0.5), requires_grad=False)
        self.head = nn.Linear(3, 7)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(7, 3, generator=generator))
            self.head.bias.copy_(torch.randn(7, generator=generator))

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.head(torch.tanh(self.table[ids] + self.frozen))
        return y


@runs_on_ranks
def token_weighted(subject: Any, case: Case) -> dict[str, Any]:
    """Backwards through a model of tokens that torch's DistributedDataParallel wraps.

    Each rank's call: like, a tensor of the model's dtype; uniform, whether its head is of zeros, so
    that all logits are 0; certain, that it bets all on id 0; refused, whether a ValueError is due; each positional argument is a pair
    (ids, targets), one call of the function.
    Gradients are not emptied in between. Seen are the losses and the gradients after each.
    """
    return run_on_ranks(subject, case, token_weighted_there)


def token_weighted_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `token_weighted` sees on one rank."""
    from course_utils.grading.distributed.on_rank import counted

    with torch.random.fork_rng(devices=[]):
        model = Tokens().to(case.kwargs["like"].dtype)
    if case.kwargs.get("uniform"):
        for p in model.head.parameters():
            p.detach().zero_()
    if case.kwargs.get("certain"):
        model.head.bias.detach()[0] = 1e4
    ddp = nn.parallel.DistributedDataParallel(model)
    for _ in range(2):  # torch rebuilds its buckets after the first
        ddp(torch.zeros(1, 1, dtype=torch.long)).sum().backward()
    ddp.zero_grad()
    seen: dict[str, Any] = {"losses are detached": True}
    for number, (ids, targets) in enumerate(case.args, start=1):
        given = [ids.clone(), targets.clone()]
        try:
            with counted():
                loss = subject(ddp, ids, targets)
        except ValueError:
            if not case.kwargs.get("refused"):
                raise
            loss = "ValueError"
        seen[f"loss of call {number}"] = loss
        seen["losses are detached"] &= not (isinstance(loss, Tensor) and loss.requires_grad)
        for name, p in model.named_parameters():
            grad = None if p.grad is None else p.grad.clone()
            seen[f"gradient of `{name}` after call {number}"] = grad
        seen[f"ids and targets of call {number} are left alone"] = unchanged(given, [ids, targets])
    return seen


# ------------------------------------------------------------------------------ save_on_rank_zero


class Unwritable:
    """Half-way through writing it the disk is full."""

    def __reduce__(self) -> Any:
        raise OSError(28, "No space left on device")


class Full(nn.Linear):
    """A layer whose state cannot be written to its end."""

    def get_extra_state(self) -> Any:
        return Unwritable()

    def set_extra_state(self, state: Any) -> None:
        return None


@runs_on_ranks
def saved(subject: Any, case: Case) -> dict[str, Any]:
    """A model saved on every rank, each with a disk of its own.

    Each rank's call: model, seed, ddp (is it wrapped by torch's?), old (does a file of that name
    exist?), full (is the disk full before the file is complete?), nowhere (is the path in a folder
    that does not exist?). Seen are the files and their contents, whether the file was there before
    the other ranks could go on, whether at every moment there was a file of that name, whether what
    was moved there came from the same folder, and whether the file of before is whole for who has
    it open.
    """
    return run_on_ranks(subject, case, saved_there)


def saved_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `saved` sees on one rank."""
    given = case.kwargs
    model = Full(2, 1) if given.get("full") else _seeded(given["model"], given["seed"])
    if given.get("ddp"):
        model = nn.parallel.DistributedDataParallel(model)
    folder = tempfile.mkdtemp(prefix="course-disk-")
    path = Path(folder) / ("nowhere" if given.get("nowhere") else "") / "model.pt"
    unwritable = given.get("full") or given.get("nowhere")
    try:
        if given.get("old"):
            torch.save({"old": torch.ones(2)}, path)
        there: list[bool] = []
        result, raised = None, "nothing"
        with _replaced(path) as moments, _watched(lambda: there.append(_whole(path))) as watch:
            try:
                result = subject(model, str(path) if given.get("text", True) else path)
            except (OSError, RuntimeError) as error:  # torch.save raises both on a full disk
                if not unwritable:
                    raise
                raised = "OSError" if isinstance(error, OSError) else type(error).__name__
        found = sorted(os.listdir(folder))
        files = [name if name == path.name else "one of another name" for name in found]
        seen: dict[str, Any] = {"files": tuple(files), "result": result}
        seen |= {what: all(found) for what, found in moments.items()}
        if unwritable:
            seen["it raises"] = raised
        elif dist.get_world_size() > 1:
            seen["no rank goes on before it is told"] = watch.calls > 0
            if rank == 0:
                seen["the file is there when the others are told"] = bool(there) and there[-1]
        if rank == 0:
            seen |= {"names in the file": _contents(path)}
            seen |= {f"`{n}` in the file": v for n, v in _values(path).items()}
        return seen
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _replaced(path: Path) -> Iterator[dict[str, list[bool]]]:
    """How a file of this name is written in the block: whether what is moved there was beside it; and if
    there is one before, whether there is one at every step, and that of before whole for who has it open."""
    always: list[bool] = []
    whole: list[bool] = []
    beside: list[bool] = []
    moments = {
        "there is a file of that name at every moment": always,
        "the file of before is not written into": whole,
        "what is moved into place was written in the same folder": beside,
    }
    replaces = path.exists()
    names = ("remove", "unlink", "rename", "replace")
    before = {name: getattr(os, name) for name in names}

    def noting(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            original(*args, **kwargs)
            if replaces:
                always.append(path.exists())
            if len(args) > 1 and _same(args[1], path):
                beside.append(_same(Path(args[0]).parent, path.parent))

        return call

    content = path.read_bytes() if replaces else b""
    with path.open("rb") if replaces else nullcontext() as held:
        for name, original in before.items():
            setattr(os, name, noting(original))
        try:
            yield moments
        finally:
            for name, original in before.items():
                setattr(os, name, original)
        if held:
            whole.append(held.read() == content)


def _same(one: str | os.PathLike[str], other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _values(path: Path) -> dict[str, Any]:
    try:
        found = torch.load(path, weights_only=True)
    except Exception:
        return {}
    return found if isinstance(found, dict) else {"": found}


def _contents(path: Path) -> tuple[str, ...] | str:
    """The names in the file, or what is wrong with it."""
    if not path.exists():
        return "no file"
    return tuple(sorted(_values(path))) or "not a file that torch.load reads as a state_dict"


def _whole(path: Path) -> bool:
    found = _values(path) if path.exists() else {}
    return bool(found) and "old" not in found


# ------------------------------------------------------------------------------ in words


def _by_rank(texts: list[str]) -> str:
    if len(set(texts)) == 1:
        return f"{texts[0]}, on {len(texts)} rank{'s' if len(texts) > 1 else ''}"
    return "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(texts))


_MADE_OF = ("model", "seed", "options", "overlap", "beside")


def _called_with_model(name: str, case: Case) -> str:
    given = case.calls[0].kwargs
    more = {k: v for k, v in given.items() if k not in _MADE_OF}
    more |= given.get("options", {})
    text = "".join(f", {key}={shown(value)}" for key, value in more.items() if key != "weight")
    steps = ", ".join(
        kind or ("a step" if len(inputs) == 1 else f"a step on {len(inputs)} micro-batches")
        for kind, inputs in case.calls[0].args
    )
    ranks = f"{case.world} rank{'s' if case.world > 1 else ''}"
    text = f"{name}(model{text}) on {ranks}, where model is: {given['model']}"
    return text + (f"; then {steps}" if steps else "")


def _called_with_parameters(name: str, case: Case) -> str:
    given = case.calls[0].kwargs
    shapes = ", ".join(str(tuple(shape)) for shape in given["shapes"])
    cap = f", cap_bytes={given['cap_bytes']}" if "cap_bytes" in given else ""
    kinds = sorted({str(x.dtype).removeprefix("torch.") for x in given["like"]})
    more = f" ({', '.join(kinds)})" if kinds != ["float32"] else ""
    if given.get("frozen"):
        more += f", frozen: {', '.join(map(str, given['frozen']))}"
    text = f"{name}(params{cap}) on {case.world} rank{'s' if case.world > 1 else ''}"
    text += f", params of shapes {shapes}{more}"
    if "grads" in given and sum(g.numel() for g in given["grads"] if g is not None) <= 6:
        text += "; gradients " + _by_rank([shown(one.kwargs["grads"]) for one in case.calls])
    return text


def _called_with_batches(name: str, case: Case) -> str:
    sizes = _by_rank(
        [", then ".join(str([len(x) for x, _ in step]) for step in one.args) for one in case.calls]
    )
    outputs = case.calls[0].args[0][0][1].shape[1]
    more = f" with {outputs} outputs" if outputs > 1 else ""
    return f"{name}(model, batches, optimizer), micro-batches of sizes {sizes}{more}"


def _called_with_path(name: str, case: Case) -> str:
    given = case.calls[0].kwargs
    model = "DistributedDataParallel(model)" if given.get("ddp") else "model"
    text = f"{name}({model}, path) on {case.world} rank{'s' if case.world > 1 else ''}"
    text += f", where model is: {given['model']}"
    text += ", a file of that name is there" if given.get("old") else ""
    text += ", in a folder that does not exist" if given.get("nowhere") else ""
    return text + (", the disk is full before all is written" if given.get("full") else "")


def _called_with_tokens(name: str, case: Case) -> str:
    def of(ids: Tensor, targets: Tensor) -> str:
        return f"{int((targets != _IGNORED).sum())} in {tuple(ids.shape)}"

    targets = _by_rank([", then ".join(of(*pair) for pair in one.args) for one in case.calls])
    dtype = str(case.calls[0].kwargs["like"].dtype).removeprefix("torch.")
    return f"{name}(model, ids, targets) in {dtype}, targets: {targets}"


started_apart.called = _called_with_model
averaged.called = bucketed.called = _called_with_parameters
wrapped.called = _called_with_model
accumulated.called = _called_with_batches
token_weighted.called = _called_with_tokens
saved.called = _called_with_path
