"""Probes of shares: what each rank keeps, and what comes of putting the shares together.

`flat_shards` and `resharded` play all ranks in one process; `sharded_optimizer` and `sharded_layer` run
on ranks.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_utils.grading.distributed.probe import runs_on_ranks
from course_utils.grading.distributed.run import run_on_ranks
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.shown import nested, shown
from course_utils.grading.pytrees.tree import fresh, untouched


@probe
def flat_shards(subject: dict[str, Any], case: Case) -> dict[str, Any]:
    """The share of every rank, the memory behind each, and the tensors put together again; and on
    which device the share of tensors without values is.

    The case's arguments: the tensors, and the number of ranks. The subject: two functions, the first
    of which shards and the second of which undoes it.
    """
    shard, unshard = subject.values()
    tensors, world_size = case.args
    before = fresh(tensors)
    seen: dict[str, Any] = {}
    shares = []
    for rank in range(world_size):
        share = shard(tensors, rank, world_size)
        shares.append(share)
        seen[f"share of rank {rank}"] = share
    seen["bytes behind each share"] = tuple(map(bytes_behind, shares))
    if not untouched(before, tensors):
        seen["argument `tensors` afterwards"] = tensors
    given = fresh(shares)
    try:
        elsewhere = shard([t.to("meta") for t in tensors], 0, world_size).device
    except (RuntimeError, AttributeError) as error:
        elsewhere = f"none: {type(error).__name__}"
    seen["device of the share of tensors on `meta`"] = str(elsewhere)
    seen["the tensors again"] = unshard(shares, [tuple(t.shape) for t in tensors])
    if not untouched(given, shares):
        seen["argument `shards` afterwards"] = shares
    return seen


def bytes_behind(t: Any) -> int | str:
    """Bytes of the storage that a tensor is a view of; "no tensor" for anything else."""
    return t.untyped_storage().nbytes() if isinstance(t, Tensor) else "no tensor"


def _called_flat(name: str, case: Case) -> str:
    tensors, world_size = case.args
    shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
    return f"{name} and back, with tensors of shapes {shapes} on {world_size} ranks"


flat_shards.called = _called_flat


@probe
def resharded(subject: Any, case: Case) -> dict[str, Any]:
    """What every rank of the new world loads, and whether it lies in memory of its own.

    The case's arguments: what each old rank saved, and the number of new ranks.
    """
    shards, world_size = case.args
    before = fresh(shards)
    old = {t.untyped_storage().data_ptr() for saved in shards for t in saved.values()}
    seen: dict[str, Any] = {}
    own = True
    for rank in range(world_size):
        loaded = subject(shards, rank, world_size)
        seen[f"rank {rank} loads"] = loaded
        for t in loaded.values() if isinstance(loaded, dict) else ():
            if isinstance(t, Tensor) and t.numel():
                own &= t.untyped_storage().data_ptr() not in old
                own &= t.untyped_storage().nbytes() == t.nbytes
    seen["in memory of their own, and no more than they need"] = own
    if not untouched(before, shards):
        seen["argument `shards` afterwards"] = shards
    return seen


def _called_resharded(name: str, case: Case) -> str:
    shards, world_size = case.args
    rows = "; ".join(
        f"{key} of shapes {', '.join(str(tuple(saved[key].shape)) for saved in shards)}"
        for key in shards[0]
    )
    return f"{name}(shards, rank, {shown(world_size)}) for every rank, where {len(shards)} saved {rows}"


resharded.called = _called_resharded


# ------------------------------------------------------------------------------ on ranks


@runs_on_ranks
def sharded_optimizer(subject: Any, case: Case) -> dict[str, Any]:
    """Build it on every rank, and step with each rank's own gradients.

    Of each rank's call: params, a list of tensors, the same on all, which become contiguous;
    optimizer, the name of a class of torch.optim; options, its keyword arguments; grads, for each
    step a list with a gradient or None for each parameter; frozen, the indices of parameters that
    do not train; thawed, those of them that do once the optimizer is built; groups, a list of lists of
    ranks that share among themselves, or None for one of all. The parameters are handed over as a
    generator. Seen are all parameters after each step, whether they changed in place, and what
    zero_grad leaves. Another optimizer is built beside it.
    """
    return run_on_ranks(subject, case, optimizer_there)


def optimizer_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `sharded_optimizer` sees on one rank."""
    from course_utils.grading.distributed.on_rank import counted

    given = case.kwargs
    params, optimizer = _built(subject, given, rank)
    for i in given.get("thawed", ()):
        params[i].requires_grad_()
    _built(subject, {**given, "groups": None, "params": [torch.ones(2, 3)], "frozen": ()}, rank)
    views = [p.detach().view(-1) for p in params]
    trail: list[list[Tensor]] = [[] for _ in params]
    gone = True
    for grads in given["grads"]:
        for p, g in zip(params, grads, strict=True):
            p.grad = None if g is None else g.clone()
        with counted():
            optimizer.step()
        for p, values in zip(params, trail, strict=True):
            values.append(p.detach().clone())
        optimizer.zero_grad()
        gone &= all(p.grad is None or not p.grad.any() for p in params)
    seen: dict[str, Any] = {
        f"parameter {i} after each step": torch.stack(values) for i, values in enumerate(trail)
    }
    seen["a view that was taken before the steps shows the new values"] = unchanged(
        [p.detach().flatten() for p in params], views
    )
    seen["zero_grad forgets all gradients"] = gone
    return seen


def _built(subject: Any, given: dict[str, Any], rank: int) -> tuple[list[nn.Parameter], Any]:
    """A case's parameters, and the student's optimizer on them."""
    params = [nn.Parameter(x.clone(memory_format=torch.contiguous_format)) for x in given["params"]]
    for i in given.get("frozen", ()):
        params[i].requires_grad_(False)
    cls = getattr(torch.optim, given["optimizer"])
    group = _own_group(given.get("groups"), rank)
    return params, subject((p for p in params), cls, group, **given["options"])


@runs_on_ranks
def sharded_state(subject: Any, case: Case) -> dict[str, Any]:
    """The first step of `sharded_optimizer`'s cases: what is alive after it, parameters aside."""
    return run_on_ranks(subject, case, state_there)


def state_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """A parameter may have become a view of a new flat tensor, its old memory being free: it is given
    memory that was there before, so that only what the optimizer keeps for itself is left."""
    from course_utils.grading.distributed.on_rank import counted

    given = case.kwargs
    homes = [torch.empty_like(x) for x in given["params"]]
    params, optimizer = _built(subject, given, rank)
    for p, g in zip(params, given["grads"][0], strict=True):
        p.grad = g
    with counted():
        optimizer.step()
        for p, home in zip(params, homes, strict=True):
            p.data = home.copy_(p.data)
    return {f"parameter {i} after the step": p.detach() for i, p in enumerate(params)}


def _own_group(groups: list[list[int]] | None, rank: int) -> dist.ProcessGroup | None:
    """The rank's group among these, which every rank must help to make; None: all ranks."""
    made = [dist.new_group(ranks) for ranks in groups or ()]
    mine = [group for ranks, group in zip(groups or (), made, strict=True) if rank in ranks]
    return mine[0] if mine else None


def _called_optimizer(name: str, case: Case) -> str:
    first = case.calls[0].kwargs
    options = "".join(f", {key}={shown(value)}" for key, value in first["options"].items())
    shapes = ", ".join(str(tuple(p.shape)) for p in first["params"])
    steps = len(first["grads"])
    text = (
        f"{name}(params, {first['optimizer']}{options}), {steps} step{'s' if steps > 1 else ''} on "
        f"{case.world} ranks, params of shapes {shapes}"
    )
    if first.get("frozen"):
        text += f", frozen: {', '.join(map(str, first['frozen']))}"
        text += " until it is built" * bool(first.get("thawed"))
    if first.get("groups"):
        text += f", in groups of ranks {first['groups']}"
    if sum(p.numel() for p in first["params"]) <= 6 and steps == 1:
        each = "; ".join(
            f"{', '.join(map(listed, call.kwargs['grads'][0]))} on rank {rank}"
            for rank, call in enumerate(case.calls)
        )
        text += f" = {', '.join(map(listed, first['params']))}, gradients {each}"
    return text


def listed(x: Tensor | None) -> str:
    """A tensor's elements as a nested list; its shape if it has none."""
    return "None" if x is None else nested(x) if x.numel() else f"empty {tuple(x.shape)}"


sharded_optimizer.called = _called_optimizer
sharded_state.called = _called_optimizer


@runs_on_ranks
def sharded_layer(subject: Any, case: Case) -> dict[str, Any]:
    """Apply an autograd.Function on every rank, forward and backward.

    Of each rank's call: x, its own input; shard; out_features; grad, of the output; frozen, whether x
    wants no gradient; groups, as for `sharded_optimizer`; then, the share of a second layer, of one
    output, that is applied to y before the backward pass.
    """
    return run_on_ranks(subject, case, layer_there)


def layer_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """On one rank: result and gradients of the sharded layer; traffic of both passes is counted."""
    from course_utils.grading.distributed.on_rank import counted

    x, shard, group = _layer_inputs(case, rank)
    grad = case.kwargs["grad"].clone()
    if "then" in case.kwargs:
        then = case.kwargs["then"].clone().requires_grad_()
        y = subject.apply(x, shard, case.kwargs["out_features"], group)
        subject.apply(y, then, 1, group).sum().backward()
        seen = _layer_seen(case, x, shard, y, grad)
        return seen | {"gradient of the second layer's shard": then.grad}
    with counted():
        y = subject.apply(x, shard, case.kwargs["out_features"], group)
        y.backward(grad)
    return _layer_seen(case, x, shard, y, grad)


@runs_on_ranks
def sharded_layer_between(subject: Any, case: Case) -> dict[str, Any]:
    """The same as `sharded_layer`, but what is counted ends before the backward pass."""
    return run_on_ranks(subject, case, layer_there_between)


def layer_there_between(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """The same, but only the forward pass is counted."""
    from course_utils.grading.distributed.on_rank import counted

    x, shard, group = _layer_inputs(case, rank)
    with counted():
        y = subject.apply(x, shard, case.kwargs["out_features"], group)
    y.backward(grad := case.kwargs["grad"].clone())
    return _layer_seen(case, x, shard, y, grad)


def _layer_inputs(case: Case, rank: int) -> tuple[Tensor, Tensor, dist.ProcessGroup | None]:
    given = case.kwargs
    x = given["x"].clone().requires_grad_(not given.get("frozen", False))
    return x, given["shard"].clone().requires_grad_(), _own_group(given.get("groups"), rank)


def _layer_seen(case: Case, x: Tensor, shard: Tensor, y: Tensor, grad: Tensor) -> dict[str, Any]:
    given = {"x": x, "shard": shard, "grad": grad}
    before = [case.kwargs[name] for name in given]
    alone = unchanged(before, [value.detach() for value in given.values()])
    return {
        "y": y.detach(),
        "gradient of x": x.grad,
        "gradient of the shard": shard.grad,
        "x, the shard and the gradient that comes in are left alone": alone,
    }


def _called_layer(name: str, case: Case) -> str:
    first = case.calls[0].kwargs
    text = (
        f"{name}.apply(x, shard, {first['out_features']}, group) on {case.world} ranks, x of shape "
        f"{tuple(first['x'].shape)}, shards of {first['shard'].numel()} elements"
    )
    if first.get("groups"):
        text += f", in groups of ranks {first['groups']}"
    if first["shard"].numel() <= 4 and first["x"].numel() <= 4:
        each = "; ".join(
            f"x = {listed(call.kwargs['x'])}, shard = {listed(call.kwargs['shard'])}, gradient of y = "
            f"{listed(call.kwargs['grad'])} on rank {rank}"
            for rank, call in enumerate(case.calls)
        )
        text += f": {each}"
    return text


sharded_layer.called = _called_layer
sharded_layer_between.called = _called_layer


# ------------------------------------------------------------------------------ a whole model


class Block(nn.Module):
    """x + second(tanh(first(x))), of the width of x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width + 1), nn.Linear(width + 1, width)
        self.scale = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.scale * self.second(torch.tanh(self.first(x)))
        return y


class Stack(nn.Module):
    """Ids or vectors in, logits of 5 out: a table or a layer, blocks, a head that may share the table.

    shift: if there is one, it is added to the vectors.
    """

    def __init__(self, width: int, blocks: int, ids: bool = False) -> None:
        super().__init__()
        self.inner: Any = nn.Module()
        self.inner.first = nn.Embedding(5, width) if ids else nn.Linear(3, width)
        self.inner.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 5, bias=False)
        if ids:
            self.head.weight = self.inner.first.weight

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        x = self.inner.first(x if shift is None else x + shift)
        for block in self.inner.blocks:
            x = block(x)
        y: Tensor = self.head(x)
        return y


STACKS: dict[str, Any] = {
    "two blocks": lambda: Stack(4, 2),
    "a tied head": lambda: Stack(4, 2, ids=True),
    "twelve blocks": lambda: Stack(2, 12),
    "wide": lambda: Stack(48, 3),
}
"""Models that a case may name."""


@runs_on_ranks
def sharded_model(subject: Any, case: Case) -> dict[str, Any]:
    """Make the class's model of one that the case names, and train it for some steps.

    Of each rank's call: model, a name of STACKS; units; compute_dtype; like, a tensor of the
    model's dtype; each positional argument is the input of one step, or a list of inputs whose gradients
    add up; an input is a tensor, or a tuple of the model's arguments. Seen are the parameters by name at the start and after each step of SGD, outputs, and
    dtypes.
    """
    return run_on_ranks(subject, case, sharded_model_there)


def sharded_model_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `sharded_model` sees on one rank."""
    from course_utils.grading.distributed.on_rank import counted

    model, module = _sharded_model(subject, case)
    names = [name for name, _ in module.named_parameters()]
    seen: dict[str, Any] = {}
    full = model.gather_full_parameters()
    seen["names that gather_full_parameters gives"] = tuple(full)
    seen |= {
        f"`{name}` at the start": full[name].detach().clone() for name in names if name in full
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    for number, inputs in enumerate(case.args, start=1):
        optimizer.zero_grad()
        for x in inputs if isinstance(inputs, list) else [inputs]:
            with counted():
                y = model(*x) if isinstance(x, tuple) else model(x)
                (y.double() * torch.arange(y.numel()).view(y.shape)).sum().div(y.numel()).backward()
            seen[f"output in step {number}"] = y.detach().clone()
        optimizer.step()
        full = model.gather_full_parameters()
        for name in names:
            if name in full:
                seen[f"`{name}` after step {number}"] = full[name].detach().clone()
    kinds = {str(p.dtype).removeprefix("torch.") for p in model.parameters()}
    seen["dtypes of what the optimizer gets"] = tuple(sorted(kinds))
    return seen


def _sharded_model(subject: dict[str, Any], case: Case) -> tuple[Any, nn.Module]:
    """The student's model, and the plain one of the same values."""
    given = case.kwargs

    def make() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(18)
            module: nn.Module = STACKS[given["model"]]()
        return module.to(given["like"].dtype)

    model_class = next(iter(subject.values()))
    return model_class(make(), given["units"], given.get("compute_dtype")), make()


@runs_on_ranks
def sharded_model_between(subject: Any, case: Case) -> dict[str, Any]:
    """The first step of `sharded_model`'s cases; what is counted is what its forward pass leaves."""
    return run_on_ranks(subject, case, sharded_model_between_there)


def sharded_model_between_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """The output, on one rank; what is alive after the forward pass is counted."""
    from course_utils.grading.distributed.on_rank import counted

    model, _ = _sharded_model(subject, case)
    with counted():
        y = model(case.args[0])
    seen = {"output": y.detach().clone()}
    y.double().sum().backward()
    return seen


def _called_sharded_model(name: str, case: Case) -> str:
    first = case.calls[0].kwargs
    dtype = first.get("compute_dtype")
    more = f", {str(dtype).removeprefix('torch.')}" if dtype else ""
    text = f"{name}(model, {first['units']}{more}) on {case.world} ranks, where model is: {first['model']}"
    text += ", float64" if first["like"].dtype == torch.float64 else ""
    steps = len(case.calls[0].args)
    text = f"{text}; {steps} step{'s' if steps > 1 else ''}"
    return f"{text} on two arguments" if isinstance(case.calls[0].args[0], tuple) else text


sharded_model.called = _called_sharded_model
sharded_model_between.called = _called_sharded_model
