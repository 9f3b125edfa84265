"""Probes of tensor parallelism: functions and layers of which every rank of a group has a part.

Each body runs on one rank; its case holds that rank's arguments, and the tensors that are the same on
every rank.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_utils.grading.distributed.probe import runs_on_ranks
from course_utils.grading.distributed.run import run_on_ranks
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import unchanged


def _own_group(groups: list[list[int]] | None, rank: int) -> dist.ProcessGroup | None:
    """The rank's group among these, which every rank must help to make; None: all ranks."""
    made = [dist.new_group(ranks) for ranks in groups or ()]
    mine = [group for ranks, group in zip(groups or (), made, strict=True) if rank in ranks]
    return mine[0] if mine else None


# ------------------------------------------------------------------------------ two Functions


@runs_on_ranks
def both_ways(subject: Any, case: Case) -> dict[str, Any]:
    """Apply two autograd.Functions on every rank, forward and backward.

    Of each rank's call: x, its own input; grad, of the output; groups, a list of lists of ranks that
    work among themselves, or nothing for one of all. Seen of each: the result, the gradient of x, and
    whether what was given is as it was. Both are applied before either goes back.
    """
    return run_on_ranks(subject, case, both_ways_there)


def both_ways_there(subject: dict[str, Any], case: Case, rank: int) -> dict[str, Any]:
    """What `both_ways` sees on one rank; the traffic of all four passes is counted."""
    from course_utils.grading.distributed.on_rank import counted

    group = _own_group(case.kwargs.get("groups"), rank)
    xs = {name: _leaf(case.kwargs["x"]) for name in subject}
    grads = {name: _copied(case.kwargs["grad"]) for name in subject}
    ys = {}
    with counted():
        for name, function in subject.items():
            ys[name] = function.apply(xs[name], group)
        for name, y in ys.items():
            y.backward(grads[name])
    seen: dict[str, Any] = {}
    for name, y in ys.items():
        seen[f"{name}: result"] = y.detach()
        seen[f"{name}: gradient of x"] = xs[name].grad
        seen[f"{name}: x and the gradient that comes in are left alone"] = unchanged(
            [case.kwargs["x"], case.kwargs["grad"]], [xs[name].detach(), grads[name]]
        )
    return seen


def _called_both(name: str, case: Case) -> str:
    first = case.calls[0].kwargs
    text = f"{name}.apply(x, group) on {case.world} ranks, x of shape {tuple(first['x'].shape)}"
    return text + _in_groups(first)


both_ways.called = _called_both


def _in_groups(given: dict[str, Any]) -> str:
    return f", in groups of ranks {given['groups']}" if given.get("groups") else ""


# ------------------------------------------------------------------------------ layers


class _Attention(nn.Module):
    """What an attention is built from: the names and the sizes of GPT-2's."""

    def __init__(self, n_embd: int, n_head: int) -> None:
        super().__init__()
        self.n_head, self.dropout = n_head, 0.0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.resid_dropout = nn.Dropout(0.0)


class _MLP(nn.Module):
    """What an MLP is built from: the names and the sizes of GPT-2's."""

    def __init__(self, n_embd: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd)
        self.c_proj = nn.Linear(4 * n_embd, n_embd)
        self.dropout = nn.Dropout(0.0)


def _full(given: dict[str, Any], shift: float = 0.0) -> nn.Module:
    """The whole layer that a case describes; shift is added to its parameters."""
    tensors, size = given["full"], given["full"][0].shape
    layer: nn.Module
    if given["kind"] == "attention":
        layer = _Attention(size[1], given["n_head"])
    elif given["kind"] == "mlp":
        layer = _MLP(size[1])
    elif given["kind"] == "embedding":
        layer = nn.Embedding(size[0], size[1], padding_idx=given.get("padding_idx"))
    else:
        layer = nn.Linear(size[1], size[0], bias=len(tensors) > 1)
    for p, values in zip(layer.parameters(), tensors, strict=True):
        p.data = values + shift if shift else values.clone()
    return layer


@runs_on_ranks
def parallel_layer(subject: Any, case: Case) -> dict[str, Any]:
    """Build the class from a whole layer, on every rank; call it, go back, take a step, call it again.

    Of each rank's call: kind, "linear", "mlp", "embedding" or "attention"; full, its parameters in order;
    n_head, of an attention; xs, this rank's inputs, one for each call; grads, of the results; groups.
    Another layer, of other weights, is built in between. Seen are results and gradients, parameters
    that the case names in `shown`, how many numbers all parameters hold, and what the layer gives
    after a step of SGD; without xs only the parameters. padding_idx: of an embedding. elsewhere: the full
    layer is on the device `meta`, and all that is seen is on which device the parameters are. refused:
    the ranks cannot share this layer evenly, and it is only built.
    """
    return run_on_ranks(subject, case, layer_there)


def layer_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `parallel_layer` sees on one rank; what is counted are the calls, both ways."""
    from course_utils.grading.distributed.on_rank import counted

    given = case.kwargs
    group = _own_group(given.get("groups"), rank)
    full = _full(given)
    if given.get("refused"):
        return {"building it raises": _raised(lambda: subject(full, group))}
    if given.get("elsewhere"):
        layer = subject(full.to("meta"), group)
        return {f"device of `{name}`": p.device.type for name, p in layer.named_parameters()}
    before = {name: p.detach().clone() for name, p in full.named_parameters()}
    layer = subject(full, group)
    if not given["xs"]:
        return {f"`{name}`": _parameter(layer, name) for name in given["shown"]}
    _full_other = subject(_full(given, 0.5), group)
    xs = [_leaf(x) for x in given["xs"]]
    with counted():
        ys = [layer(x) for x in xs]
        for y, grad in reversed(list(zip(ys, given["grads"], strict=True))):
            y.backward(_copied(grad))
    seen: dict[str, Any] = {}
    named = dict(layer.named_parameters())
    for name in given.get("shown", ()):
        p = named.get(name)
        seen[f"`{name}`"] = _parameter(layer, name)
        seen[f"gradient of `{name}`"] = None if p is None or p.grad is None else p.grad.clone()
    for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
        of = f" of call {k + 1}" if len(xs) > 1 else ""
        seen[f"result{of}"] = y.detach().clone()
        if x.is_floating_point():
            seen[f"gradient of x{of}"] = x.grad
    name = "ids are" if given["kind"] == "embedding" else "x is"
    seen[f"{name} left alone"] = unchanged(list(given["xs"]), [x.detach() for x in xs])
    seen["numbers in its parameters"] = sum(p.numel() for p in layer.parameters())
    with torch.no_grad():
        for p in layer.parameters():
            if p.grad is not None:
                p.sub_(p.grad, alpha=0.01)
        seen["result after a step of SGD"] = layer(given["xs"][0]).clone()
    for name, p in full.named_parameters():
        seen[f"the full layer's {name} is left as it was"] = unchanged([before[name]], [p.detach()])
    return seen


def _parameter(layer: nn.Module, name: str) -> Tensor | str | None:
    """The parameter of this name; where there is none, None if the layer says so, or what it has instead."""
    p = dict(layer.named_parameters()).get(name)
    if p is not None:
        return p.detach().clone()
    if not hasattr(layer, name):
        return "no attribute of this name"
    return None if getattr(layer, name) is None else "no nn.Parameter"


def _raised(build: Callable[[], Any]) -> str:
    """The name of the exception that building raises, or "nothing"."""
    try:
        build()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def _copied(x: Tensor) -> Tensor:
    """The same values with the same strides."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)


def _leaf(x: Tensor) -> Tensor:
    x = _copied(x)
    return x.requires_grad_() if x.is_floating_point() else x


@runs_on_ranks
def parallel_layer_held(subject: Any, case: Case) -> dict[str, Any]:
    """The same layer, built and no more: what is alive once the full one is gone."""
    return run_on_ranks(subject, case, held_there)


def held_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `parallel_layer_held` sees on one rank: the bytes of the parameters."""
    from course_utils.grading.distributed.on_rank import counted

    group = _own_group(case.kwargs.get("groups"), rank)
    with counted():
        full = _full(case.kwargs)
        layer = subject(full, group)
        del full
    return {"bytes of the parameters": sum(p.nbytes for p in layer.parameters())}


def _called_layer(name: str, case: Case) -> str:
    first = case.calls[0].kwargs
    shape = "(V, D)" if first["kind"] == "embedding" else "(out, in)"
    called = "(x)" if first["xs"] else ""
    text = f"{name}(full, group){called} on {case.world} ranks"
    if first["kind"] == "mlp":
        text += f", D = {first['full'][0].shape[1]}"
    elif first["kind"] == "attention":
        text += f", {first['n_head']} heads of {first['full'][0].shape[1] // first['n_head']}"
    else:
        text += f", full's weight {shape} = {tuple(first['full'][0].shape)}"
    if first["xs"]:
        text += f", x of shape {' and '.join(str(tuple(x.shape)) for x in first['xs'])}"
    if first["kind"] == "linear" and len(first["full"]) == 1:
        text += ", no bias"
    text += ", full on the device `meta`" * bool(first.get("elsewhere"))
    if first.get("padding_idx") is not None:
        text += f", full's padding_idx {first['padding_idx']}"
    return text + _in_groups(first)


parallel_layer.called = _called_layer
parallel_layer_held.called = _called_layer


# ------------------------------------------------------------------------------ loss


@runs_on_ranks
def parallel_loss(subject: Any, case: Case) -> dict[str, Any]:
    """Call a loss on every rank's own logits, and go back from it.

    Of each rank's call: logits, of its part of the vocabulary; targets; vocab_size; grad, of the
    losses; groups.
    """
    return run_on_ranks(subject, case, loss_there)


def loss_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `parallel_loss` sees on one rank; both passes are counted."""
    from course_utils.grading.distributed.on_rank import counted

    given = case.kwargs
    group = _own_group(given.get("groups"), rank)
    logits, targets = _leaf(given["logits"]), given["targets"].clone()
    with counted():
        losses = subject(logits, targets, given["vocab_size"], group)
        losses.backward(given["grad"].to(losses.dtype))
    return {
        "losses": losses.detach(),
        "gradient of the logits": logits.grad,
        "logits and targets are left alone": unchanged(
            [given["logits"], given["targets"]], [logits.detach(), targets]
        ),
    }


def _called_loss(name: str, case: Case) -> str:
    first = case.calls[0].kwargs
    parts = ", ".join(str(tuple(call.kwargs["logits"].shape)) for call in case.calls)
    text = (
        f"{name}(logits, targets, {first['vocab_size']}, group) on {case.world} ranks, logits of "
        f"shapes {parts}"
    )
    if first["targets"].numel() <= 4:
        text += f", targets {first['targets'].tolist()}"
    return text + _in_groups(first)


parallel_loss.called = _called_loss


# ------------------------------------------------------------------------------ sequences


@runs_on_ranks
def gathered_linear(subject: Any, case: Case) -> dict[str, Any]:
    """Apply an autograd.Function of (x, weight, bias, group) on every rank, forward and backward.

    Of each rank's call: x, its positions; weight and bias (or None), its part; grad; groups; then, a
    weight that is applied to the same x, by a second call, before the first goes back.
    """
    return run_on_ranks(subject, case, gathered_there)


def gathered_there(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `gathered_linear` sees on one rank; both passes are counted."""
    from course_utils.grading.distributed.on_rank import counted

    inputs, group = _gathered_inputs(case, rank)
    grad = _copied(case.kwargs["grad"])
    other = case.kwargs.get("then")
    if other is not None:
        x2 = _leaf(case.kwargs["x"])
        y = subject.apply(*inputs, group)
        subject.apply(x2 + 1.0, other.clone(), None, group).sum().backward()
        y.backward(grad)
        return _gathered_seen(case, inputs, y, grad) | {"gradient of the second x": x2.grad}
    with counted():
        y = subject.apply(*inputs, group)
        y.backward(grad)
    return _gathered_seen(case, inputs, y, grad)


@runs_on_ranks
def gathered_linear_between(subject: Any, case: Case) -> dict[str, Any]:
    """The same, but what is counted ends before the backward pass."""
    return run_on_ranks(subject, case, gathered_there_between)


def gathered_there_between(subject: Any, case: Case, rank: int) -> dict[str, Any]:
    """What `gathered_linear_between` sees on one rank."""
    from course_utils.grading.distributed.on_rank import counted

    inputs, group = _gathered_inputs(case, rank)
    with counted():
        y = subject.apply(*inputs, group)
    grad = _copied(case.kwargs["grad"])
    y.backward(grad)
    return _gathered_seen(case, inputs, y, grad)


def _gathered_inputs(case: Case, rank: int) -> tuple[list[Tensor | None], Any]:
    given = case.kwargs
    inputs = [None if given[k] is None else _leaf(given[k]) for k in ("x", "weight", "bias")]
    return inputs, _own_group(given.get("groups"), rank)


def _gathered_seen(
    case: Case, inputs: list[Tensor | None], y: Tensor, grad: Tensor
) -> dict[str, Any]:
    names = ("x", "weight", "bias")
    seen: dict[str, Any] = {"y": y.detach()}
    for name, value in zip(names, inputs, strict=True):
        if value is not None:
            seen[f"gradient of {name}"] = value.grad
    now = [None if value is None else value.detach() for value in inputs]
    seen["inputs and the gradient that comes in are left alone"] = unchanged(
        [*(case.kwargs[name] for name in names), case.kwargs["grad"]], [*now, grad]
    )
    return seen


def _called_gathered(name: str, case: Case) -> str:
    first = case.calls[0].kwargs
    text = (
        f"{name}.apply(x, weight, {'None' if first['bias'] is None else 'bias'}, group) on "
        f"{case.world} ranks, x of shape {tuple(first['x'].shape)}, weight "
        f"{tuple(first['weight'].shape)}"
    )
    return text + _in_groups(first)


gathered_linear.called = _called_gathered
gathered_linear_between.called = _called_gathered
