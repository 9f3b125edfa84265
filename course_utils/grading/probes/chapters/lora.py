"""Probes of LoRA: one adapted layer, a model that gets adapters, merging, and their tensors by name."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import Entries, if_changed, later, unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import ramp
from course_utils.grading.pytrees.shown import shown
from course_utils.grading.pytrees.tree import tensors

from .modules import Conv1D, assemble, described

_ROWS = 400  # of the input that dropout is judged on: enough for every pattern to occur


def linear(kind: str, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """A linear layer of these values: weight is (out, in) whatever the kind holds."""
    d_out, d_in = weight.shape
    made: nn.Module
    if kind == "conv1d":
        made = Conv1D(d_out, d_in)
        made.weight.data, made.bias.data = weight.T.clone(), torch.zeros(d_out, dtype=weight.dtype)
    else:
        made = nn.Linear(d_in, d_out, bias=bias is not None, dtype=weight.dtype)
        made.weight.data = weight.clone()  # type: ignore[union-attr]
    if bias is not None:
        made.bias.data = bias.clone()  # type: ignore[union-attr]
    return made


@probe
def lora_layer(subject: Any, case: Case) -> dict[str, Any]:
    """Wrap a layer, look at what it starts with, give A and B values, go forward and back.

    The case: kind ("linear" or "conv1d"), weight (out, in), bias or None, the constructor's other
    arguments, A, B, x, and "merged" where that is set before the call.
    """
    kind, weight, bias, build, A, B, x, *rest = case.args
    base = linear(kind, weight, bias)
    kept = base.weight
    with MadeAnywhere() as made_anywhere:
        built = subject(base, **build)
    if not isinstance(built, nn.Module):
        return {"what it builds": type(built).__name__}
    made: Any = built
    seen: dict[str, Any] = {
        "parameters": {name: tuple(p.shape) for name, p in made.named_parameters()},
        "dtypes": {name: p.dtype for name, p in made.named_parameters()},
        "made on the default device, not on W's": [
            name for name, p in made.named_parameters() if p.data_ptr() in made_anywhere.addresses
        ],
        "trained": [name for name, p in made.named_parameters() if p.requires_grad],
        "state_dict": sorted(made.state_dict()),
        "it holds the layer that it was given": getattr(made, "base_layer", None) is base,
        "merged at first": getattr(made, "merged", "missing"),
    }
    scaling = getattr(made, "scaling", None)
    fitting = {"lora_A": (A.shape, A.dtype), "lora_B": (B.shape, B.dtype)}
    own = {name: (p.shape, p.dtype) for name, p in made.named_parameters() if name in fitting}
    if own != fitting:
        return seen
    other = subject(linear("linear", torch.ones(2, 3), None), r=1, alpha=1.0)
    other(torch.ones(1, 3))  # what an instance keeps is its own
    with torch.no_grad():
        at_first = made(x.clone())
        seen["at first the output is the base layer's"] = unchanged(base(x), at_first)
        seen["lora_B is zero at first"] = all_zero(made.lora_B.detach().clone())
        seen["lora_A is zero at first"] = all_zero(made.lora_A.detach().clone())
        if made.lora_A.numel() >= 10_000:
            seen["lora_A: "] = _statistics(made.lora_A.detach().clone())
    with torch.no_grad():
        made.lora_A.copy_(A)
        made.lora_B.copy_(B)
    if rest:
        made.merged = True
    if made.training and build.get("dropout"):
        seen |= _dropped(made, base, x)
        made.eval()
    leaf = x.clone().requires_grad_()
    given = leaf * 1
    returned: list[tuple[Tensor, Tensor]] = []
    hook = base.register_forward_hook(lambda _, args, out: returned.append((out, out.clone())))
    y = made(given)
    hook.remove()
    if not isinstance(y, Tensor):
        return seen | {"output": y}
    seen["output"] = y.detach().clone()
    seen["argument `x` afterwards"] = if_changed(x, given.detach().clone())
    seen["what the base layer returned is left alone"] = unchanged(
        [kept.detach() for _, kept in returned], [out.detach().clone() for out, _ in returned]
    )
    seen["scaling"] = float(scaling) if isinstance(scaling, int | float) else scaling
    if y.requires_grad and y.numel():
        (y * ramp(y)).sum().backward()
        seen["gradient of `x`"] = leaf.grad
        for name, parameter in made.named_parameters():
            seen[f"gradient of `{name}`"] = parameter.grad
    if x.dtype == torch.float32:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            seen["shape under autocast to bfloat16"] = tuple(made(x).shape)
    seen["delta()"] = made.delta().detach().clone()
    with torch.no_grad():
        made.lora_B.mul_(2.0)
        seen["delta() once B is doubled"] = made.delta().clone()
        seen["output once B is doubled"] = made(x).clone()
    seen["the base layer's weight is as before"] = unchanged(
        (True, weight), (base.weight is kept, weight_of(base).detach())
    )
    return seen


class MadeAnywhere(TorchFunctionMode):
    """Addresses of the tensors that were made without a device and never moved to one: on a machine
    with a CPU alone nothing else shows where they would be."""

    FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)

    def __init__(self) -> None:
        super().__init__()
        self.addresses: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in self.FACTORIES and (kwargs or {}).get("device") is None and out.numel():
            self.addresses.add(out.data_ptr())
        elif func in (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.type_as):
            self.addresses.discard(args[0].data_ptr())
        return out


def weight_of(layer: Any) -> Tensor:
    """A layer's weight as (out, in): GPT-2's Conv1D keeps it transposed."""
    return layer.weight.T if isinstance(layer, Conv1D) else layer.weight


@later
def all_zero(x: Tensor) -> bool:
    """Has it no element but zeros?"""
    return not x.any()


@later
def _statistics(A: Tensor) -> dict[str, Any]:
    """Of a uniform distribution up to 1 / √in, in its own units, to a ninth: chance does not show, for
    this start or for one that is √6 times as wide."""
    unit = A.detach().double() * A.size(1) ** 0.5
    figures = {
        "standard deviation · √(3 in)": unit.std() * 3**0.5,
        "mean · √in": unit.mean().abs(),
        "largest magnitude · √in": unit.abs().max(),
    }
    return Entries({name: round(round(9 * value.item()) / 9, 2) for name, value in figures.items()})


def _dropped(made: nn.Module, base: nn.Module, x: Tensor) -> dict[str, Any]:
    """In train mode: each different row that one input, many times, gives beside the base layer's.

    Dropout before A gives one row for each set of inputs that it keeps; elsewhere it gives others.
    """
    row = x.detach().flatten(0, -2)[:1]
    with torch.no_grad():
        torch.manual_seed(0)
        rows_in = row.repeat(_ROWS, 1)
        added = made(rows_in) - base(row)
    return {
        "train mode: its input is left alone": unchanged(row.repeat(_ROWS, 1), rows_in),
        "train mode: ": _different(added),
    }


@later
def _different(added: Tensor) -> dict[str, Any]:
    rows = (added.double() * 1e4).round().unique(dim=0) / 1e4
    return Entries(
        {
            "how many different updates one input gets": len(rows),
            "the least and the most": torch.stack([rows.amin(0), rows.amax(0)]).float(),
        }
    )


def _called_layer(name: str, case: Case) -> str:
    kind, weight, _, build, A, B, x, *rest = case.args
    d_out, d_in = weight.shape
    base = f"nn.Linear({d_in}, {d_out})" if kind == "linear" else f"Conv1D({d_out}, {d_in})"
    given = ", ".join(f"{key}={shown(value)}" for key, value in build.items())
    text = f"{name}({base}, {given}), then lora_A={_brief(A)}, lora_B={_brief(B)}"
    return f"{text}{', merged' * bool(rest)}, called with x={_brief(x)}"


def _brief(x: Tensor) -> str:
    return shown(x) if x.numel() <= 4 else f"tensor of shape {tuple(x.shape)}, {x.dtype}"


lora_layer.called = _called_layer


# ------------------------------------------------------------------------------ whole models


@probe
def injected(subject: Any, case: Case) -> dict[str, Any]:
    """Put adapters into a model: its parameters by name afterwards, and which of them train.

    The case: the model's description (see `assemble`), the targets, "eval" for a model in eval mode
    and after it the modules that are in the other mode, and keyword arguments.
    """
    tree, targets, *mode = case.args
    made = assemble(tree).train(mode[:1] != ["eval"])
    for name in mode[1:]:
        made.get_submodule(name).train(not made.training)
    before = {id(p): (name, p.detach().clone()) for name, p in made.named_parameters()}
    try:
        result = subject(made, targets, **case.kwargs)
    except ValueError:
        return {"raises": "ValueError"} | _outcome(made, before)
    seen: dict[str, Any] = {"raises": "nothing"}
    seen["the model that it was given comes back"] = result is made
    seen |= _outcome(made, before)
    with torch.no_grad():
        for name, layer in _adapted(made):
            for part in (layer.lora_A, layer.lora_B):
                part.fill_(1.0)
            base = layer.base_layer
            x = torch.ones(1, layer.lora_A.size(1))
            seen[f"{name}: in train mode"] = [layer.training, base.training]
            seen |= {f"{name}: {what}": p for what, p in _shares_dropped(layer, base).items()}
            seen[f"{name}: what ones everywhere add"] = layer.eval()(x) - base(x)
    return seen


def _shares_dropped(layer: Any, base: nn.Module) -> dict[str, float]:
    """The p of the adapter's dropout, from what it adds: nn.Dropout is one way of several to have it."""
    x = torch.zeros(_ROWS, layer.lora_A.size(1))
    x[:, 0] = 1.0

    def added() -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return (layer(x) - base(x))[:, 0].abs()

    as_it_is, alone, trained = added(), layer.eval() and added().mean(), layer.train() and added()

    def share(adds: Tensor) -> float:
        kept = adds[adds > alone / 2]  # what is kept is divided by 1 − p
        return round(1 - (alone / kept.mean()).item(), 3) + 0.0 if len(kept) else 1.0

    return {"dropped as it is": share(as_it_is), "dropped in train mode": share(trained)}


def _outcome(made: nn.Module, before: dict[int, tuple[str, Tensor]]) -> dict[str, Any]:
    parameters = dict(made.named_parameters())
    old = [p for p in parameters.values() if id(p) in before]
    return {
        "parameters": {name: tuple(p.shape) for name, p in parameters.items()},
        "trained": [name for name, p in parameters.items() if p.requires_grad],
        "the model's own parameters are still there": len(old) == len(before),
        "their values are as before": unchanged(
            [before[id(p)][1] for p in old], [p.detach().clone() for p in old]
        ),
    }


def _adapted(made: nn.Module) -> list[tuple[str, Any]]:
    return [
        (name, module)
        for name, module in made.named_modules()
        if isinstance(getattr(module, "lora_A", None), nn.Parameter)
    ]


def _called_injected(name: str, case: Case) -> str:
    tree, targets, *mode = case.args
    given = "".join(f", {key}={shown(value)}" for key, value in case.kwargs.items())
    how = f" in {mode[0]} mode" if mode else ""
    how += f", but not {' and '.join(mode[1:])}" * bool(mode[1:])
    return f"{name}({described(tree)}{how}, {shown(targets)}{given})"


injected.called = _called_injected


# ------------------------------------------------------------------------------ layers of our own


class Adapted(nn.Module):
    """A LoRALinear that is known to be right, so that only what is asked for is judged."""

    def __init__(
        self, base: nn.Module, A: Tensor, B: Tensor, scaling: float, merged: bool = False
    ) -> None:
        nn.Module.__init__(self)
        self.base_layer = base.requires_grad_(False)
        self.lora_A, self.lora_B = nn.Parameter(A.clone()), nn.Parameter(B.clone())
        self.dropout = nn.Dropout(0.0)
        self.scaling, self.merged = scaling, merged

    def forward(self, x: Tensor) -> Tensor:
        y = self.base_layer(x)
        return y if self.merged else y + F.linear(x, self.delta())

    def delta(self) -> Tensor:
        return self.scaling * (self.lora_B @ self.lora_A)


def adapted_class(function: Callable[..., Any]) -> type:
    """Adapted, as a subclass of what the function's own code calls LoRALinear, if that is a class.

    So `isinstance(module, LoRALinear)` finds it, and whose LoRALinear that is makes no difference.
    """
    theirs = getattr(inspect.unwrap(function), "__globals__", {}).get("LoRALinear")
    if not inspect.isclass(theirs) or not issubclass(theirs, nn.Module):
        return Adapted
    return type("LoRALinear", (Adapted, theirs), {})


def model_of(function: Callable[..., Any], layers: dict[str, Any]) -> nn.Module:
    """A model of the case's layers by dotted name: without an adapter, or with one."""
    kind_of_layer = adapted_class(function)
    root = nn.Module()
    for path, (kind, weight, bias, *adapter) in layers.items():
        layer = linear(kind, weight, bias)
        if adapter:
            layer = kind_of_layer(layer, *adapter)
        *owners, last = path.split(".")
        owner = root
        for step in owners:
            if not hasattr(owner, step):
                owner.add_module(step, nn.Module())
            owner = owner.get_submodule(step)
        owner.add_module(last, layer)
    return root


@probe
def merge_run(subject: dict[str, Any], case: Case) -> dict[str, Any]:
    """Merge and unmerge a model in the case's order, and look at it after each.

    The case: layers by name, each (kind, weight, bias) or (kind, weight, bias, A, B, scaling), and
    which of the two functions to call, one after another.
    """
    layers, *verbs = case.args
    merge, unmerge = subject.values()
    made = model_of(merge, layers)
    kept = dict(made.named_parameters())
    seen: dict[str, Any] = {}
    for number, verb in enumerate(verbs, start=1):
        result = {"merge": merge, "unmerge": unmerge}[verb](made)
        at = f"step {number} ({verb})"
        seen[f"{at}: the model comes back"] = result is made
        seen[f"{at}: merged"] = {name: layer.merged for name, layer in _adapted(made)}
        now = dict(made.named_parameters())
        seen[f"{at}: the parameters are the same objects"] = now.keys() == kept.keys() and all(
            now[name] is kept[name] for name in kept
        )
        seen[f"{at}: trained"] = [name for name, p in now.items() if p.requires_grad]
        seen[f"{at}: values"] = {name: p.detach().clone() for name, p in now.items()}
    return seen


def _called_merge(name: str, case: Case) -> str:
    layers, *verbs = case.args
    return f"{', then '.join(verbs)} on a model of {_in_words(layers)}"


def _in_words(layers: dict[str, Any]) -> str:
    parts = []
    for path, (kind, weight, _, *adapter) in layers.items():
        d_out, d_in = weight.shape
        base = f"nn.Linear({d_in}, {d_out})" if kind == "linear" else f"Conv1D({d_out}, {d_in})"
        rank = f" with an adapter of rank {len(adapter[0])}, s = {adapter[2]:g}" if adapter else ""
        parts.append(f"{path}: {base}{rank}")
    return "; ".join(parts)


merge_run.called = _called_merge


@probe
def adapter_state(subject: Any, case: Case) -> dict[str, Any]:
    """What is in the state of the adapters of a model, and whether it is detached.

    The case: layers as for `merge_run`. frozen: names of those whose adapter does not train.
    """
    made = model_of(subject, case.args[0])
    for layer in case.kwargs.get("frozen", ()):
        made.get_submodule(layer).requires_grad_(False)
    before = {name: (p.detach().clone(), p.requires_grad) for name, p in made.named_parameters()}
    state = subject(made)
    if not isinstance(state, dict):
        return {"result": state}
    tensors = [value for value in state.values() if isinstance(value, Tensor)]
    theirs = {
        name: p for name, p in made.named_parameters() if ".lora_" in name or ".base_layer" in name
    }
    return {
        "state": {name: state[name] for name in sorted(state, key=str)},
        "some tensor requires grad": any(x.requires_grad for x in tensors),
        "the model is as before": unchanged(
            [before[name] for name in theirs],
            [(p.detach(), p.requires_grad) for p in theirs.values()],
        ),
    }


def _called_state(name: str, case: Case) -> str:
    frozen = "".join(f"; {layer} is frozen" for layer in case.kwargs.get("frozen", ()))
    return f"{name}(a model of {_in_words(case.args[0])}{frozen})"


adapter_state.called = _called_state


@probe
def nf4_product(subject: Any, case: Case) -> dict[str, Any]:
    """Apply a Function of an intermediate x and a quantised W: the product, and the gradient of x.

    The case: apply's arguments, and `transposed` where the gradient that comes in is not contiguous.
    Before backward it is applied to another x and another W, which are no business of this call's.
    Autograd raises in backward if a tensor given to `save_for_backward` was edited in the meantime;
    one kept in any other way is not guarded.
    """
    x, codes, scales, *rest = case.args
    leaf = x.detach().clone().requires_grad_()
    between = leaf * 1.0
    result = subject.apply(between, codes, scales, *rest)
    if not isinstance(result, Tensor):
        return {"forward": result}
    seen: dict[str, Any] = {
        "forward": result.detach().clone(),
        "argument `x` afterwards": if_changed(x, between.detach().clone()),
    }
    if not result.requires_grad:
        return seen | {"the result requires grad": False}
    size = math.prod(rest[0])
    held = [x for x in tensors(vars(result.grad_fn)) if x.is_floating_point()]
    seen["W is kept on ctx, as numbers"] = any(
        x.numel() == size and x.numel() != scales.numel() for x in held
    )
    subject.apply(1.0 - leaf, 255 - codes, 2.0 * scales + 1.0, *rest)
    if not result.numel():
        return seen
    incoming = 0.5 * ramp(result) + 0.7
    if case.kwargs.get("transposed"):
        incoming = incoming.mT.contiguous().mT
    before = incoming.clone()
    (gradient,) = torch.autograd.grad(result, leaf, incoming, allow_unused=True)
    seen["gradient of `x`"] = gradient
    seen["the gradient that came in is left alone"] = unchanged(before, incoming)
    for edited in ("codes", "scales"):
        kept = {"codes": codes.clone(), "scales": scales.clone()}
        again = subject.apply(leaf * 1.0, *kept.values(), *rest)
        kept[edited].zero_()
        label = f"backward after its {edited} were edited in place"
        try:
            torch.autograd.grad(again, leaf, incoming)
        except RuntimeError:
            seen[label] = "RuntimeError"
        else:
            seen[label] = "no error, from edited values"
    return seen


def _called_product(name: str, case: Case) -> str:
    how = ", and a gradient that is not contiguous" if case.kwargs.get("transposed") else ""
    return f"{name}.apply({', '.join(map(shown, case.args))}){how}"


nf4_product.called = _called_product


@probe
def preferred(subject: Any, case: Case) -> dict[str, Any]:
    """A loss of four log-probabilities a pair: what it returns, and the gradient of each of the four."""
    names = ("policy_chosen", "policy_rejected", "reference_chosen", "reference_rejected")
    leaves = [x.detach().clone().requires_grad_() for x in case.args[:4]]
    given = [leaf * 1.0 for leaf in leaves]
    result = subject(*given, *case.args[4:])
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Tensor)):
        return {"result": result}
    loss, margins = result
    seen: dict[str, Any] = {"loss": loss.detach().clone(), "margins": margins}
    if isinstance(margins, Tensor):
        seen["margins"] = margins.detach().clone()
        seen["margins require grad"] = margins.requires_grad
    for name, leaf, now in zip(names, leaves, given, strict=True):
        seen[f"argument `{name}` afterwards"] = if_changed(leaf.detach(), now.detach().clone())
    if loss.requires_grad and loss.dim() == 0:
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        for name, leaf, gradient in zip(names, leaves, found, strict=True):
            seen[f"gradient of `{name}`"] = torch.zeros_like(leaf) if gradient is None else gradient
    return seen
