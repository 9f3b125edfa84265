"""Probes of an nn.Module: built, given weights, trained for some steps, saved, loaded, looked at.

A case of `module` is the arguments of the constructor (a dict), the weights by name, and what to do
with the object, step by step:

    ("train", x, ...)   forward and backward in train mode, then one step of gradient descent
    ("eval", x, ...)    forward and backward in eval mode
    ("forward", x, ...) forward alone
    ("beside", changes, x)  call another object, built with changes, that this one must not notice
    ("meta", x, ...)    forward on the meta device, while the default device stays as it is
    ("get", name)       look at an attribute that may be None
    ("reload",)         go on with a new object that has loaded this one's state_dict
    ("fresh",)          look at the values that the parameters and buffers start with
    ("extra_repr",)     what print shows of it
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.grading.driving import labels
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import Entries, if_changed, later, other_than, unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import ramp
from course_utils.grading.pytrees.shown import nested, shown
from course_utils.grading.pytrees.tree import fresh, leaves

LEARNING_RATE = 0.1
MANY = 10_000
"""From this number of elements on, random values are judged by their statistics."""
FEW = 8


@probe
def module(subject: Any, case: Case) -> dict[str, Any]:
    """Build the module, load the case's weights, and take its steps; what each of them showed.

    The dtype is that of the case's tensors, so that the module has to follow `.to(dtype)`. A step
    in train mode ends with every parameter moved against its gradient, so that one that is kept
    elsewhere, or copied, shows in the next.
    """
    build, weights, *steps = case.args
    dtype = dtype_of((weights, steps))
    made = subject(**build)
    if not isinstance(made, nn.Module):
        return {"what it builds": type(made).__name__}
    seen = _outline(made, moved=False)
    made = made.to(dtype)
    seen |= {f"{label} after .to({shown(dtype)})": v for label, v in _outline(made).items()}
    if weights:
        if set(weights) != set(made.state_dict()) - {"num_batches_tracked"}:
            return seen
        made.load_state_dict({**made.state_dict(), **weights})
    for number, (verb, *given) in enumerate(steps, start=1):
        if verb == "reload":
            state = {name: value.clone() for name, value in made.state_dict().items()}
            made = subject(**build).to(dtype)
            made.load_state_dict(state)
            found: dict[str, Any] = {}
        elif verb == "beside":
            changes, *rest = given
            other = subject(**build | changes).to(dtype)
            found = {"shape of the other's output": tuple(other(*rest).shape)}
        elif verb == "meta":
            found = _on_meta(made, given)
        elif verb == "forward":
            with torch.no_grad():
                found = {"output": made(*given)}
        elif verb == "get":
            value = getattr(made, given[0], "missing")
            found = {f"attribute `{given[0]}`": "None" if value is None else shown(value)}
        elif verb == "fresh":
            state = subject(**build).state_dict()
            found = {"": _start_values({name: clone(value) for name, value in state.items()})}
        elif verb == "extra_repr":
            found = {"extra_repr()": " ".join(made.extra_repr().split())}
        else:
            found = _passed_through(made.train(verb == "train"), given)
        seen |= {f"step {number} ({verb}): {label}": value for label, value in found.items()}
    return seen


def dtype_of(tree: Any) -> torch.dtype:
    floating = [x for x in leaves(tree) if isinstance(x, Tensor) and x.is_floating_point()]
    return floating[0].dtype if floating else torch.float32


def _outline(made: nn.Module, moved: bool = True) -> dict[str, Any]:
    """Parameters and state by name: their shapes, or after a move their dtypes."""
    if moved:
        return {"dtypes": {name: value.dtype for name, value in made.state_dict().items()}}
    return {
        "parameters": {name: tuple(value.shape) for name, value in made.named_parameters()},
        "state_dict": {name: tuple(value.shape) for name, value in made.state_dict().items()},
    }


def _passed_through(made: nn.Module, given: list[Any]) -> dict[str, Any]:
    """One forward and backward pass: output, gradients, buffers; in train mode then a step."""
    leaf = given[0].detach().clone()
    differentiable = leaf.is_floating_point()
    x = leaf.requires_grad_() * 1 if differentiable else leaf.clone()
    before = [value.clone() if isinstance(value, Tensor) else value for value in given[1:]]
    made.zero_grad(set_to_none=True)
    y = made(x, *given[1:])
    if not isinstance(y, Tensor):
        return {"output": y}
    seen: dict[str, Any] = {"output": y.detach().clone()}
    seen["argument `x` afterwards"] = if_changed(
        [leaf.detach(), before], [x.detach().clone(), fresh(given[1:])]
    )
    if y.requires_grad:
        (y * ramp(y)).sum().backward()
    else:
        return seen | {labels.NO_GRAD: False}
    if differentiable:
        seen["gradient of `x`"] = leaf.grad
    for name, parameter in made.named_parameters():
        seen[f"gradient of `{name}`"] = clone(parameter.grad)
    for name, buffer in made.named_buffers():
        seen[f"buffer `{name}`"] = clone(buffer)
        if buffer.requires_grad:
            seen[f"buffer `{name}` requires grad"] = True
    if made.training:
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.grad is not None:
                    parameter.sub_(LEARNING_RATE * parameter.grad)
    return seen


def _on_meta(made: nn.Module, given: list[Any]) -> dict[str, Any]:
    """Where no values are: shape, dtype and device of the output."""
    y = copy.deepcopy(made).to("meta")(*(value.to("meta") for value in given))
    if not isinstance(y, Tensor):
        return {"output": y}
    return {"shape": tuple(y.shape), "dtype": y.dtype, "device": y.device.type}


def clone(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().clone()


@later
def _start_values(state: dict[str, Tensor]) -> dict[str, Any]:
    """Values of the parameters and buffers; of large random ones the statistics.

    Those are the standard deviation times the root of the last axis, the mean in units of the
    standard deviation, and the fourth moment in units of the variance squared, which tells a
    uniform (1.8) from a normal (3.0) distribution; rounded so that chance cannot reach the next
    figure.
    """
    seen = Entries()
    for name, value in state.items():
        if value.numel() < MANY:
            seen[f"`{name}`"] = value
            continue
        w = value.double()
        std = max(w.std().item(), 1e-30)
        fourth = (w - w.mean()).pow(4).mean().item() / std**4
        seen[f"standard deviation of `{name}`"] = round(std, 2 if std < 0.5 else 1)
        seen[f"|mean| / standard deviation of `{name}`"] = round(abs(w.mean().item()) / std, 1)
        seen[f"fourth moment / variance² of `{name}`"] = round(fourth)
    return seen


def _called_module(name: str, case: Case) -> str:
    build, weights, *steps = case.args
    given = ", ".join(f"{key}={shown(value)}" for key, value in build.items())
    text = f"{name}({given}) in {shown(dtype_of((weights, steps))).removeprefix('torch.')}"
    if weights:
        text += f" with {', '.join(f'{key}={brief(value)}' for key, value in weights.items())}"
    for number, (verb, *given) in enumerate(steps, start=1):
        text += f"; step {number}: {verb}"
        text += f"({', '.join(map(brief, given))})" if given else ""
    return text


def brief(value: Any) -> str:
    """A tensor of a few elements in full, a larger one by its shape alone."""
    if not isinstance(value, Tensor) or value.numel() <= FEW:
        return (
            nested(value.detach()) if isinstance(value, Tensor) and value.numel() else shown(value)
        )
    return f"tensor of shape {tuple(value.shape)}"


module.called = _called_module


# ------------------------------------------------------------------------------ dropout


@probe
def dropout(subject: Any, case: Case) -> dict[str, Any]:
    """Statistics of a random mask, so that any right way of drawing it passes.

    The case: arguments of the constructor, a shape, a dtype, and "meta" to see only whether it works
    there. The input counts 1, 2, … 7, 1, 2, … so
    that no two neighbours are alike. Fractions of 100,000 elements or more are given in units of
    what is due, to one decimal: chance cannot reach the next.
    """
    build, shape, dtype, *device = case.args
    p = build.get("p", 0.5)
    if not 0 <= p <= 1:
        return {labels.RAISES: _raised_when_built(subject, build)}
    layer = subject(**build)
    subject(p=0.9 if p < 0.5 else 0.1)  # another one, which the first must not notice
    if device:
        return _on_meta(layer.train(), [torch.ones(shape, dtype=dtype)])
    made = {"state_dict": list(layer.state_dict())}
    numel = torch.Size(shape).numel()
    leaf = (torch.arange(numel) % 7 + 1).view(shape).to(dtype).requires_grad_()
    return made | _in_train_mode(layer.train(), leaf, p) | _in_eval_mode(layer.eval(), leaf)


def _raised_when_built(subject: Any, build: dict[str, Any]) -> str:
    try:
        subject(**build)
    except Exception as error:
        return raised_name(error)
    return labels.NOTHING


def _in_train_mode(layer: nn.Module, leaf: Tensor, p: float) -> dict[str, Any]:
    def draw() -> Any:
        torch.manual_seed(0)
        return layer(leaf * 1)

    x = leaf * 1
    torch.manual_seed(0)
    y = layer(x)
    if not isinstance(y, Tensor) or y.shape != leaf.shape:
        return {"train: output": y}
    seen: dict[str, Any] = {"train: dtype": y.dtype, "train: shape": tuple(y.shape)}
    before = leaf.detach()
    seen["argument `x` afterwards"] = _other_values(before, x.detach().clone())
    if p == 1:  # zeros: with a gradient of zero, or with none
        return seen | {
            "train: everything is dropped": unchanged(torch.zeros_like(before), y.detach())
        }
    if not y.requires_grad:
        return seen | {labels.NO_GRAD: False}
    (gradient,) = torch.autograd.grad(y.sum(), leaf)
    seen["train: "] = _what_dropout_did(before, y.detach().clone(), gradient, p)
    if 0 < p < 1 and leaf.numel() >= 10 * MANY:
        seen["train: each call draws anew"] = other_than(layer(leaf * 1), layer(leaf * 1))
        seen["train: the same seed drops the same"] = unchanged(draw(), draw())
    return seen


@later
def _other_values(was: Tensor, now: Tensor) -> Any:
    return Entries() if torch.equal(was, now) else "other values"  # which, depends on how it draws


@later
def _what_dropout_did(x: Tensor, y: Tensor, gradient: Tensor, p: float) -> dict[str, Any]:
    dropped = y == 0
    ratio = (y.double() / x.double())[~dropped]
    ends = torch.stack([ratio.min(), ratio.max()]).to(x.dtype) if ratio.numel() else None
    seen = Entries({"output / input where it is kept, least and most": ends})
    seen["the gradient is dropped and scaled as the output is"] = bool(
        torch.allclose(gradient * x, y, rtol=0.02)
    )
    if 0 < p < 1 and x.numel() >= 10 * MANY:
        dropped = dropped.flatten(1)
        seen["rows dropped as one"] = whole(dropped)
        seen["columns dropped as one"] = whole(dropped.T)
        if not whole(dropped) and not whole(dropped.T):  # else too few draws for a share
            seen["fraction dropped / p"] = round(dropped.double().mean().item() / p, 1)
        rows = dropped.double().mean(dim=1).std().item()
        due = (p * (1 - p) / dropped.size(1)) ** 0.5
        seen["rows differ as much as chance lets them"] = 0.7 < rows / due < 1.4
        columns = dropped.double().mean(dim=0).std().item()
        due = (p * (1 - p) / x.size(0)) ** 0.5
        seen["columns differ as much as chance lets them"] = 0.7 < columns / due < 1.4
    return seen


def whole(dropped: Tensor) -> bool:
    return bool(dropped.all(dim=1).any())


def _in_eval_mode(layer: nn.Module, leaf: Tensor) -> dict[str, Any]:
    y = layer(leaf * 1)
    if not isinstance(y, Tensor):
        return {"eval: output": y}
    seen: dict[str, Any] = {"eval: output ": _beside_input(leaf.detach(), y.detach().clone())}
    if y.requires_grad:
        (gradient,) = torch.autograd.grad(y.sum(), leaf)
        seen["eval: gradient is one"] = unchanged(torch.ones_like(gradient), gradient)
    else:
        seen[labels.NO_GRAD] = False
    return seen


@later
def _beside_input(x: Tensor, y: Tensor) -> dict[str, Any]:
    seen = Entries({"equals input": torch.equal(x, y)})
    if x.shape == y.shape and x.numel():
        ratio = y / x
        seen["/ input, least and most"] = torch.stack([ratio.min(), ratio.max()])
    return seen


def _called_dropout(name: str, case: Case) -> str:
    build, shape, dtype, *device = case.args
    given = ", ".join(f"{key}={shown(value)}" for key, value in build.items())
    if not 0 <= build.get("p", 0.5) <= 1:
        return f"{name}({given})"
    where = "on the meta device, in train mode" if device else "in train and eval mode"
    return f"{name}({given}), called with x of shape {shape}, {shown(dtype)}, {where}"


dropout.called = _called_dropout


# ------------------------------------------------------------------------------ whole models


def assemble(tree: Any) -> Any:
    """A module from its description: what a case can hold in place of one.

    A dict is a module with these attributes, a list an nn.ModuleList; a tuple is a layer:
    ("linear", in, out), ("conv1d", out, in), ("embedding", V, D), ("norm", D), ("own norm", D), ("batchnorm", C),
    ("parameter", *shape), ("in a buffer", *shape), one that views a part of a larger tensor, ("python list",
    *items), whose items no module registers. Under the key "tied" a dict may
    have pairs of dotted names, the second of which becomes the first; under "submodules tied" the same
    of submodules; under "frozen" names; of the whole "eval" says that it is in eval mode, "meta" that it
    is on the meta device.
    """
    if isinstance(tree, list):
        return nn.ModuleList(assemble(item) for item in tree)
    if isinstance(tree, tuple):
        kind, *sizes = tree
        return _LAYERS[kind](*sizes)
    made = nn.Module()
    for name, part in _parts(tree):
        setattr(made, name, assemble(part))
    for first, second in tree.get("tied", ()):
        owner, _, last = second.rpartition(".")
        setattr(made.get_submodule(owner), last, made.get_parameter(first))
    for first, second in tree.get("submodules tied", ()):
        owner, _, last = second.rpartition(".")
        setattr(made.get_submodule(owner), last, made.get_submodule(first))
    for name in tree.get("frozen", ()):
        made.get_parameter(name).requires_grad_(False)
    return made.train(not tree.get("eval", False))


def _parts(tree: dict[str, Any]) -> list[tuple[str, Any]]:
    """The attributes of a description, without what it says of them."""
    said = ("tied", "submodules tied", "frozen", "eval", "meta")
    return [(n, part) for n, part in tree.items() if n not in said]


class Conv1D(nn.Module):
    """transformers' linear layer for GPT-2: x W + b, with W held as (in, out)."""

    def __init__(self, d_out: int, d_in: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d_in, d_out) * 0.02)
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight)
        return flat.view(*x.shape[:-1], -1) if x.numel() else x @ self.weight + self.bias


class OwnNorm(nn.Module):
    """A norm with the parameters of torch's, and of no class of torch's."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias)


_LAYERS: dict[str, Callable[..., Any]] = {
    "conv1d": Conv1D,
    "linear": lambda d_in, d_out, bias=True: nn.Linear(d_in, d_out, bias=bias),
    "embedding": nn.Embedding,
    "norm": nn.LayerNorm,
    "own norm": OwnNorm,
    "batchnorm": nn.BatchNorm1d,
    "parameter": lambda *shape: nn.Parameter(torch.ones(shape)),
    "in a buffer": lambda *shape: nn.Parameter(torch.ones(3, *shape)[1]),
    "python list": lambda *items: [assemble(item) for item in items],
}


def described(tree: Any) -> str:
    """The module of a description, as it would be written."""
    if isinstance(tree, list):
        return f"ModuleList([{', '.join(map(described, tree))}])"
    if isinstance(tree, tuple):
        kind, *sizes = tree
        names = {
            "conv1d": "Conv1D",
            "linear": "Linear",
            "embedding": "Embedding",
            "norm": "LayerNorm",
            "own norm": "OwnNorm",
            "batchnorm": "BatchNorm1d",
            "parameter": "Parameter",
            "in a buffer": "ParameterInABuffer",
        }
        if kind == "python list":
            return f"[{', '.join(map(described, sizes))}]"
        return f"{names[kind]}({', '.join(map(str, sizes))})"
    parts = [f"{name}: {described(part)}" for name, part in _parts(tree)]
    parts += [f"{second} is {first}" for first, second in tree.get("tied", ())]
    parts += [f"{second} is {first}" for first, second in tree.get("submodules tied", ())]
    parts += [f"{name} frozen" for name in tree.get("frozen", ())]
    parts += ["in eval mode"] * tree.get("eval", False)
    parts += ["on the meta device"] * tree.get("meta", False)
    return f"Module({', '.join(parts)})"


@probe
def assembled(subject: Any, case: Case) -> dict[str, Any]:
    """Call a function of a module: its result, and which parameters then require a gradient.

    The case: the module's description (see `assemble`), then the other arguments.
    """
    tree, *rest = case.args
    with torch.device("meta" if tree.get("meta") else "cpu"):
        made = assemble(tree)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    parameters = dict(made.named_parameters(remove_duplicate=False))
    try:
        seen = {"returns": subject(made, *rest, **case.kwargs)}
    except Exception as error:
        return {"raises": raised_name(error), "trained": _trained(made)}
    seen["trained"] = _trained(made)
    after = dict(made.named_parameters(remove_duplicate=False))
    seen["the parameters are the same objects"] = all(
        after.get(name) is value for name, value in parameters.items()
    ) and len(after) == len(parameters)
    if not tree.get("meta"):
        seen["their values are as before"] = unchanged(before, dict(made.state_dict()))
    seen["buffers require a gradient"] = any(b.requires_grad for b in made.buffers())
    return seen


def raised_name(error: Exception) -> str:
    """The exception by the name of the nearest of these classes that it is one of."""
    for kind in (NotImplementedError, IndexError, KeyError, ValueError, AttributeError, TypeError):
        if isinstance(error, kind):
            return kind.__name__
    return type(error).__name__ if isinstance(error, RuntimeError) else "Exception"


def _trained(made: nn.Module) -> dict[str, bool]:
    return {name: p.requires_grad for name, p in made.named_parameters(remove_duplicate=False)}


def _called_assembled(name: str, case: Case) -> str:
    tree, *rest = case.args
    return f"{name}({', '.join([described(tree), *map(shown, rest)])})"


assembled.called = _called_assembled


# ------------------------------------------------------------------------------ tying


@probe
def tied(subject: Any, case: Case) -> dict[str, Any]:
    """Tie an nn.Embedding and an nn.Linear, and train the two for two steps.

    The case: the embedding's weight (V, D), the head's weight and bias (or None), ids.
    """
    table, weight, bias, ids = case.args
    embedding, head = pair(table, weight, bias)
    first, own = embedding.weight, head.weight
    try:
        result = subject(embedding, head)
    except Exception as error:
        kept = unchanged(
            (True, True, weight), (embedding.weight is first, head.weight is own, own.detach())
        )
        return {"raises": raised_name(error), "nothing has changed": kept}
    seen: dict[str, Any] = {
        "returns": result,
        "head.weight is embedding.weight": head.weight is embedding.weight,
        "they share their storage": head.weight.data_ptr() == embedding.weight.data_ptr(),
        "embedding.weight is the parameter it was": embedding.weight is first,
        "embedding.weight": clone(embedding.weight),
        "head.weight": clone(head.weight),
        "it requires a gradient": embedding.weight.requires_grad,
        "head's parameters": sorted(name for name, _ in head.named_parameters()),
    }
    both = nn.ModuleDict({"embedding": embedding, "head": head})
    for step in (1, 2):
        y = head(embedding(ids))
        both.zero_grad()
        (y * ramp(y)).sum().backward()
        seen[f"step {step}: output"] = clone(y)
        for name, parameter in both.named_parameters():
            seen[f"step {step}: gradient of `{name}`"] = clone(parameter.grad)
        with torch.no_grad():
            for parameter in both.parameters():
                if parameter.grad is not None:
                    parameter.sub_(LEARNING_RATE * parameter.grad)
    return seen


def pair(table: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[nn.Embedding, nn.Linear]:
    """An embedding and a head with these weights."""
    (V, D), (out, into) = table.shape, weight.shape
    embedding = nn.Embedding(V, D, dtype=table.dtype)
    head = nn.Linear(into, out, bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        embedding.weight.copy_(table)
        head.weight.copy_(weight)
        if bias is not None:
            head.bias.copy_(bias)
    return embedding, head


def _called_tied(name: str, case: Case) -> str:
    table, weight, bias, _ = case.args
    embedding = f"nn.Embedding{tuple(table.shape)}"
    return f"{name}({embedding}, nn.Linear{tuple(reversed(weight.shape))}, bias={bias is not None})"


tied.called = _called_tied


# ------------------------------------------------------------------------------ the bookkeeping


@probe
def registry(subject: Any, case: Case) -> dict[str, Any]:
    """Build a tree of TinyModules, do things with it, and look at its books after each.

    The case: a tree (see `_grow`), then what to do: ("set", dotted name, value or tree),
    ("call", x), ("load", state, strict), ("train", mode), ("round trip",).
    """
    tree, *verbs = case.args
    root = _grow(subject, tree, {})
    seen = {f"at first: {label}": value for label, value in _books(root, tree).items()}
    for number, (verb, *given) in enumerate(verbs, start=1):
        found = _done(subject, root, tree, verb, given)
        seen |= {f"after step {number} ({verb}): {label}": v for label, v in found.items()}
    return seen


def _grow(subject: Any, tree: dict[str, Any], made: dict[str, Any]) -> Any:
    """A module of a subclass with the attributes of a tree.

    A tensor is a plain one, ("parameter", tensor) a parameter, ("frozen", tensor) one that does not
    require a gradient, ("buffer", tensor) a buffer, ("same", name) the object that is called so further
    up, a dict a child module, anything else itself.
    """

    class Child(subject):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            for name, value in tree.items():
                made[name] = _assign(subject, self, name, value, made)

        def forward(self, x: Any, scale: float = 1.0) -> Any:
            return x * self.weight * scale

    return Child()


def _assign(subject: Any, owner: Any, name: str, value: Any, made: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        value = _grow(subject, value, made)
    elif isinstance(value, tuple) and value[0] == "buffer":
        value = value[1].clone()  # a second tree of the same case shares nothing with the first
        owner.register_buffer(name, value)
        return value
    elif isinstance(value, tuple) and value[0] in ("parameter", "frozen"):
        value = nn.Parameter(value[1].clone(), requires_grad=value[0] == "parameter")
    elif isinstance(value, tuple) and value[0] == "same":
        value = made[value[1]]
    setattr(owner, name, value)
    return value


def _done(subject: Any, root: Any, tree: Any, verb: str, given: list[Any]) -> dict[str, Any]:
    if verb == "set":
        path, value = given
        *owners, name = path.split(".")
        owner = root
        for step in owners:
            owner = getattr(owner, step)
        _assign(subject, owner, name, value, {})
        return _books(root, tree) | {f"attribute `{path}`": _kind_of(getattr(owner, name))}
    if verb == "get":
        return {"result": _kind_of(getattr(root, given[0]))}
    if verb == "call":
        x = given[0].requires_grad_()
        y = root(x, **given[1])
        (gradient,) = torch.autograd.grad(y.sum(), root.weight)
        return {"result": clone(y), "gradient of `weight`": gradient}
    if verb == "train":
        result = root.train(*given)
        return {"training": dict(modes(root, "")), "returns itself": result is root}
    if verb == "round trip":
        return _round_trip(subject, root, tree)
    state, strict = given
    before, places = dict(root.named_parameters()), _places(root)
    try:
        root.load_state_dict(state, **({} if strict is None else {"strict": strict}))
        raised = None
    except Exception as error:
        raised = "RuntimeError" if isinstance(error, RuntimeError) else raised_name(error)
    kept = all(value is before.get(name) for name, value in root.named_parameters())
    seen = {"raises": raised, "the same parameters": kept, "in place": places == _places(root)}
    return seen | _books(root, tree)


def _places(root: Any) -> dict[str, int]:
    """Where the values of the state lie."""
    return {name: value.data_ptr() for name, value in root.state_dict().items()}


def _at(root: Any, path: str) -> Any:
    """The attribute of a dotted name, or None."""
    for step in path.split("."):
        root = getattr(root, step, None)
    return root


def _round_trip(subject: Any, root: Any, tree: Any) -> dict[str, Any]:
    """Another tree loads this one's state, and then changes without changing this one."""
    other = _grow(subject, tree, {})
    with torch.no_grad():
        for _, parameter in other.named_parameters():
            parameter.mul_(2.0)
    other.load_state_dict(root.state_dict())
    seen = {f"the other: {label}": value for label, value in _books(other, tree).items()}
    with torch.no_grad():
        for _, parameter in other.named_parameters():
            parameter.add_(1.0)
    seen |= {f"the first: {label}": value for label, value in _books(root, tree).items()}
    return seen


def _books(root: Any, tree: Any) -> dict[str, Any]:
    """What a TinyModule says it has, and what it is when asked."""
    named, state = list(root.named_parameters()), root.state_dict()
    return {
        "named_parameters()": [name for name, _ in named],
        "they are parameters": all(isinstance(value, nn.Parameter) for _, value in named),
        "values": {name: clone(value) for name, value in named},
        "named_parameters(prefix)": [name for name, _ in root.named_parameters("m")],
        "state_dict()": {name: clone(value) for name, value in sorted(state.items())},
        "the state requires grad": any(value.requires_grad for value in state.values()),
        "the state shares the parameters' memory": all(
            value.data_ptr() == state[name].data_ptr() for name, value in named if name in state
        ),
        "the state shares the attributes' memory": all(
            found.data_ptr() == value.data_ptr()
            for name, value in state.items()
            if isinstance(found := _at(root, name), Tensor)
        ),
        "training": dict(modes(root, "")),
        "attributes": {name: _kind_of(getattr(root, name, "missing")) for name in sorted(tree)},
    }


def modes(root: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    yield prefix or "itself", root.training
    for name in ("inner", "head", "deep"):
        child = getattr(root, name, None)
        if hasattr(child, "training"):
            yield from modes(child, f"{prefix}{name}.")


def _kind_of(value: Any) -> Any:
    if isinstance(value, nn.Parameter):
        return ("parameter", clone(value))
    if isinstance(value, Tensor):
        return ("tensor", clone(value))
    if hasattr(value, "named_parameters"):
        return ("module", [name for name, _ in value.named_parameters()])
    return value


def _called_registry(name: str, case: Case) -> str:
    tree, *verbs = case.args
    text = f"a subclass of {name} with {shown(tree)}"
    for number, (verb, *given) in enumerate(verbs, start=1):
        text += f"; step {number}: {verb}({', '.join(map(shown, given))})"
    return text


registry.called = _called_registry

__all__ = ["assemble", "assembled", "dropout", "module", "pair", "registry", "tied"]
