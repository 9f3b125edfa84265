"""Probes of optimizers: driven through many steps over given gradients, and what they keep.

`optimizer` takes classes with torch.optim's protocol, `parameter_groups` a function that sorts a
model's parameters, `state_bytes` one that measures an optimizer; the last two name what they are
given, a model or an optimizer of the small catalogues below, since a case is data.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.shown import nested, shown
from course_utils.grading.pytrees.tree import tensors

# ------------------------------------------------------------------------------ an optimizer


@probe
def optimizer(subject: Any, case: Case) -> dict[str, Any]:
    """Every parameter after every step, and what a training loop relies on besides.

    The case's keyword arguments: params, a list of tensors; grads, for each step a list with a
    gradient or None for each parameter, and an empty list for an optimizer that is built and takes
    no step; groups, a list of dicts whose "params" are indices, or None for one group of all;
    options, of the optimizer; reload, the number of the step (from 1) before which the state_dict
    goes into a fresh optimizer, made with no options, on fresh parameters; begins, the class of
    torch.optim that takes the steps before that, in place of the subject; fade, a factor on every
    group's lr after each step, as a schedule has it; counts, the name under which the state is to
    keep the number of a parameter's steps, as a float32 tensor; stateless, whether anything is
    kept of any parameter. Between saving and loading another optimizer of the class takes a step
    of its own.

    Gradients are written into tensors that stay the same from step to step, as
    `zero_grad(set_to_none=False)` and `backward` do: an optimizer that keeps one as its state sees it
    change.
    """
    given = case.kwargs
    params = [nn.Parameter(x.clone()) for x in given["params"]]
    first = getattr(torch.optim, given["begins"]) if "begins" in given else subject
    optimizer = first(_grouped(params, given.get("groups")), **given.get("options", {}))
    gradients = [torch.zeros_like(p) for p in params]
    trail: list[list[Tensor]] = [[] for _ in params]
    before: list[list[Tensor | None]] = []
    after: list[list[Tensor | None]] = []
    in_place = no_graph = True
    for number, grads in enumerate(given["grads"], start=1):
        if number == given.get("reload"):
            saved = copy.deepcopy(optimizer.state_dict())
            _somebody_elses_step(subject, params)
            params = [nn.Parameter(p.detach().clone()) for p in params]
            optimizer = subject(_grouped(params, given.get("groups")))
            optimizer.load_state_dict(saved)
        for p, gradient, g in zip(params, gradients, grads, strict=True):
            p.grad = None if g is None else gradient.copy_(g)
        places = [p.data_ptr() for p in params]
        optimizer.step()
        in_place &= places == [p.data_ptr() for p in params]
        before.append(list(grads))
        after.append([None if p.grad is None else p.grad.clone() for p in params])
        no_graph &= not any(t.requires_grad for t in tensors(optimizer.state))
        no_graph &= all(p.is_leaf and p.requires_grad for p in params)
        for p, values in zip(params, trail, strict=True):
            values.append(p.detach().clone())
        for group in optimizer.param_groups:
            group["lr"] *= given.get("fade", 1.0)
    seen: dict[str, Any] = {
        f"parameter {i} after each step": torch.stack(values)
        for i, values in enumerate(trail)
        if values
    }
    used = {i for grads in given["grads"] for i, g in enumerate(grads) if g is not None}
    seen["parameters are changed in place"] = in_place
    seen["gradients are left alone"] = unchanged(before, after)
    seen["no graph is kept"] = no_graph
    seen["bytes of state"] = _bytes_of_state(optimizer, [params[i] for i in sorted(used)])
    if given.get("stateless"):
        seen["there is no state"] = not any(optimizer.state.values())
    if name := given.get("counts"):
        kept = [state[name] for state in optimizer.state.values() if name in state]
        seen[f"`{name}` in the state is a float32 tensor"] = all(map(_is_single, kept))
    return seen


def _somebody_elses_step(subject: Any, params: list[nn.Parameter]) -> None:
    """A step of another optimizer: what one keeps in the class or the module, it overwrites."""
    others = [nn.Parameter(torch.ones_like(p)) for p in params]
    for other in others:
        other.grad = torch.full_like(other, 3.0)
    subject(others).step()


def _grouped(params: list[nn.Parameter], groups: list[dict[str, Any]] | None) -> Iterable[Any]:
    """The parameters as an optimizer takes them: an iterator, as `model.parameters()` is one, or
    groups; the case names them by index."""
    if groups is None:
        return iter(params)
    return [{**group, "params": [params[i] for i in group["params"]]} for group in groups]


def _is_single(count: Any) -> bool:
    return isinstance(count, Tensor) and count.dtype is torch.float32


def _bytes_of_state(optimizer: Optimizer, params: list[nn.Parameter]) -> int:
    """Of all that is kept for these parameters, single numbers (a count of steps) aside."""
    storages: dict[int, int] = {}
    for p in params:
        if p.numel() > 1:
            for t in tensors(optimizer.state.get(p, {})):
                if t.numel() > 1:
                    storages[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
    return sum(storages.values())


def _called_with_steps(name: str, case: Case) -> str:
    given = case.kwargs
    if "params" not in given:  # a case for the meters
        options = "".join(f", {key}={shown(value)}" for key, value in given["options"].items())
        return f"a step of {name}(params{options}) with {given['count']} parameters"
    count = len(given["params"])
    made = [_name_group(group) for group in given.get("groups") or ()]
    few = [f"p{i}" for i in range(count)] if count <= 6 else ["p0", "…", f"p{count - 1}"]
    first = "[" + ", ".join(made or few) + "]"
    options = "".join(f", {key}={shown(value)}" for key, value in given.get("options", {}).items())
    steps = len(given["grads"])
    text = f"{name}({first}{options}), {steps or 'no'} step{'s' * (steps > 1)}"
    missing = [
        f"p{i} in step {number}"
        for number, grads in enumerate(given["grads"], start=1)
        for i, g in enumerate(grads)
        if g is None
    ]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        text += f", no gradient for {', '.join(missing[:3])}{more}"
    if given.get("fade", 1.0) != 1.0:
        text += f", lr times {given['fade']:g} after each step"
    if "begins" in given:
        text += f", begun by torch.optim.{given['begins']}"
    if given.get("reload"):
        text += f", saved and loaded into a fresh {name}(…) before step {given['reload']}"
    return text + _values_if_few(given)


def _values_if_few(given: dict[str, Any]) -> str:
    """What the parameters were and which gradients came, where that fits on a line or two."""
    leaves = [*given["params"], *(g for grads in given["grads"] for g in grads)]
    if sum(t.numel() for t in leaves if t is not None) > 12:
        return ""
    parts = []
    for i, p in enumerate(given["params"]):
        came = ", then ".join(
            "None" if grads[i] is None else _listed(grads[i]) for grads in given["grads"]
        )
        parts.append(f"p{i} = {_listed(p)}" + f", gradients {came}" * bool(came))
    return f", where {'; '.join(parts)}"


def _listed(x: Tensor) -> str:
    return nested(x) if x.numel() else f"empty {tuple(x.shape)}"


def _name_group(group: dict[str, Any]) -> str:
    members = ", ".join(f"p{i}" for i in group["params"])
    rest = "".join(f", {key!r}: {shown(value)}" for key, value in group.items() if key != "params")
    return f"{{'params': [{members}]{rest}}}"


optimizer.called = _called_with_steps


# ------------------------------------------------------------------------------ a model's groups


def tied() -> nn.Module:
    """An embedding, a LayerNorm and a linear layer that shares the embedding's weight."""
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 5))
    model[2].weight = model[0].weight  # type: ignore[assignment]
    return model


def frozen() -> nn.Module:
    """Four layers; the embedding and the LayerNorm's bias need no gradient."""
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    for p in (*model[0].parameters(), model[2].bias):
        p.requires_grad_(False)
    return model


def scaled() -> nn.Module:
    """Parameters of its own beside those of a layer: a scalar, a vector, and a table called bias."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False))
    model.register_parameter("temperature", nn.Parameter(torch.ones(())))
    model.register_parameter("weight", nn.Parameter(torch.ones(3)))
    model.register_parameter("relative_bias", nn.Parameter(torch.ones(4, 4)))
    return model


def thin() -> nn.Module:
    """Weights of which an axis, or every axis, has one element."""
    return nn.Sequential(
        nn.Linear(3, 1), nn.Linear(1, 2), nn.Linear(1, 1), nn.Embedding(1, 4), nn.Conv1d(1, 1, 1)
    )


def nowhere() -> nn.Module:
    """Its parameters are on the meta device: all of them have the same address."""
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 4))


_MODELS = {
    "Linear(3, 2)": lambda: nn.Linear(3, 2),
    "Embedding, LayerNorm, Linear": lambda: nn.Sequential(
        nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 5)
    ),
    "Embedding, LayerNorm, Linear tied to the embedding": tied,
    "frozen Embedding, Linear, LayerNorm with frozen bias, Linear": frozen,
    "Conv1d, BatchNorm1d, Linear": lambda: nn.Sequential(
        nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Linear(4, 2)
    ),
    "LayerNorm": lambda: nn.LayerNorm(4),
    "Linear without bias": lambda: nn.Linear(3, 2, bias=False),
    "Linear, a scalar, a vector `weight`, a matrix `relative_bias`": scaled,
    "Linear(3, 1), Linear(1, 2), Linear(1, 1), Embedding(1, 4), Conv1d(1, 1, 1)": thin,
    "Linear, LayerNorm, Linear on the meta device": nowhere,
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(4, 2, 8),
}


@probe
def parameter_groups(subject: Any, case: Case) -> dict[str, Any]:
    """Which parameters, by name and in alphabetical order, are in which group, and its options.

    The case's first argument names a model of the catalogue.
    """
    model = _MODELS[case.args[0]]()
    names = {id(p): name for name, p in model.named_parameters()}
    groups = subject(model, *case.args[1:], **case.kwargs)
    if not (isinstance(groups, list | tuple) and all(isinstance(g, dict) for g in groups)):
        return {"result": groups}
    seen: dict[str, Any] = {"groups": len(groups)}
    for number, group in enumerate(groups, start=1):
        params = list(group.get("params", ()))
        seen[f"parameters of group {number}"] = tuple(
            sorted(names.get(id(p), "no parameter of the model") for p in params)
        )
        seen[f"options of group {number}"] = {
            key: float(value) if type(value) is int else value  # 0 is as good as 0.0
            for key, value in group.items()
            if key != "params"
        }
    return seen


def _called_with_model(name: str, case: Case) -> str:
    model, *rest = case.args
    return f"{name}(model, {', '.join(map(shown, rest))}), where model is: {model}"


parameter_groups.called = _called_with_model


# ------------------------------------------------------------------------------ bytes of state


class FlatMomentum(Optimizer):
    """Keeps one buffer for all parameters; the state of each is a view of it."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        params = [p for group in self.param_groups for p in group["params"]]
        flat = torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype)
        sizes = [p.numel() for p in params]
        for p, view in zip(params, flat.split(sizes), strict=True):
            self.state[p]["momentum_buffer"] = view.view_as(p)


class Factored(Optimizer):
    """Keeps row and column sums in a dict, and one count for all parameters."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        count = torch.tensor(1.0)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].update(
                    step=count,
                    stats={"row": p.detach().sum(-1), "col": p.detach().sum(0), "name": "stats"},
                )


class Paired(Optimizer):
    """Keeps two averages in a tuple."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["averages"] = (p.detach().clone(), p.detach().half())


class Nested(Optimizer):
    """Keeps a history in a list, and that in a dict."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["past"] = {"values": [p.detach().clone(), p.detach().half(), None]}


class Mixed(Optimizer):
    """Keeps a dict in a tuple in a list."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["past"] = [(0, {"value": p.detach().clone()})]


class Flattened(Optimizer):
    """Keeps a buffer in the parameter's shape and as one row: a view from the same beginning."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                buffer = torch.zeros_like(p)
                self.state[p].update(buffer=buffer, row=buffer.view(-1))


class Quantized(Optimizer):
    """Keeps averages in bytes, a mask, and what all parameters share under names of its own."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                codes = torch.zeros(p.shape, dtype=torch.int8)
                self.state[p].update(codes=codes, mask=p.detach() > 0)
        self.state["levels"] = {"table": torch.linspace(-1, 1, 256)}  # type: ignore[index]
        self.state["steps"] = {"counts": torch.ones(3, dtype=torch.int64)}  # type: ignore[index]


class Windowed(Optimizer):
    """Keeps the last rows of a long history: a view, behind which is all of it."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                history = torch.zeros(10, p.numel(), dtype=p.dtype)
                self.state[p].update(window=history[-2:], last=[{"row": (history[-1],)}])


_OWN = {
    cls.__name__: cls
    for cls in (FlatMomentum, Factored, Paired, Nested, Mixed, Flattened, Quantized, Windowed)
}


@probe
def state_bytes(subject: Any, case: Case) -> dict[str, Any]:
    """Call it with an optimizer that has taken steps on the sum of its parameters' squares.

    The case: the class's name (of torch.optim, or of this module's own), its options, the
    parameters' shapes and dtype, how many of them stay out of the loss, and the number of steps.
    """
    name, options, shapes, dtype, unused, steps = case.args
    params = [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes]
    cls = _OWN.get(name) or getattr(torch.optim, name)
    optimizer = cls(params, **options)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.stack([p.square().sum() for p in params[unused:]]).sum()
        loss.backward()
        return loss

    for _ in range(steps):
        closure()
        optimizer.step(closure)  # type: ignore[arg-type]
    return {"result": subject(optimizer)}


def _called_with_optimizer(name: str, case: Case) -> str:
    cls, options, shapes, dtype, unused, steps = case.args
    made = ", ".join(f"{key}={shown(value)}" for key, value in options.items())
    kind = str(dtype).removeprefix("torch.")
    idle = f", {unused} of them without gradient" if unused else ""
    return (
        f"{name}({cls}(params{', ' if made else ''}{made})) after {steps} step{'s' * (steps != 1)}, params of shapes "
        f"{', '.join(map(str, shapes))} in {kind}{idle}"
    )


state_bytes.called = _called_with_optimizer
