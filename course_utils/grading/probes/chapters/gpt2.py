"""Probes of a GPT-2's parts, of the whole, of how it starts, and of loading a checkpoint into it.

A case gives the sizes as a dict; the object gets them as the class that its own annotation of
`config` names, or as a stand-in with the same attributes where it has none. The same for `parts`,
which a case gives by name out of STAND_INS.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import Entries, if_changed, later, unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import ramp
from course_utils.grading.pytrees.shown import shown

from . import modules
from .modules import assemble, clone, dtype_of, raised_name


@dataclass(frozen=True)
class Sizes:
    """What stands in for GPT2Config or LlamaConfig where nothing says which class it is."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    dropout: float = 0.1
    layer_norm_epsilon: float = 1e-5
    n_kv_head: int = 12
    n_inner: int = 3072
    rope_base: float = 10_000.0


def annotated(subject: Any, name: str) -> Any:
    """The dataclass that the subject, or a class that it inherits from, expects under this name."""
    for owner in getattr(subject, "__mro__", (subject,)):
        function = vars(owner).get("__init__") if inspect.isclass(owner) else owner
        if not inspect.isfunction(function):
            continue
        parameter = inspect.signature(function).parameters.get(name)
        if parameter is not None and is_dataclass(parameter.annotation):
            return parameter.annotation
    return None


def config_for(subject: Any, sizes: dict[str, Any]) -> Any:
    """The configuration of these sizes, of the class that the student's `config` is annotated with."""
    return (annotated(subject, "config") or Sizes)(**sizes)


def parts_for(subject: Any, names: dict[str, str]) -> Any:
    """Stand-ins for a block's parts by role, as the class that the student's `parts` is annotated with."""
    chosen = {role: _STAND_INS[name] for role, name in names.items()}
    if "block" not in chosen and annotated(subject, "parts") is None:
        chosen["block"] = None
    return (annotated(subject, "parts") or SimpleNamespace)(**chosen)


# What a case can hold in place of the parts of a block


NO_MASK = object()
"""What Sums takes for no mask: a None that is given all the same is an error, as for an attention
without that parameter."""


class Half(nn.Module):
    """In place of a norm: (x / 2 + eps) · weight."""

    def __init__(self, n_embd: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n_embd))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return (x / 2 + self.eps) * self.weight


class Sums(nn.Module):
    """In place of attention: the sum of all positions so far, times how much the mask allows."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.n_embd))

    def forward(self, x: Tensor, mask: Any = NO_MASK) -> Tensor:
        y = x.cumsum(1) * self.weight
        return y if mask is NO_MASK else y * mask.to(x.dtype).mean((1, 3))[:, :, None]


class Square(nn.Module):
    """In place of an MLP: x² · weight."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.n_embd))

    def forward(self, x: Tensor) -> Tensor:
        return x.square() * self.weight


class Alone(Sums):
    """Attention that can take no mask."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)


class Nothing(nn.Module):
    """A branch that adds nothing."""

    def __init__(self, config: Any) -> None:
        super().__init__()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return torch.zeros_like(x)


class Triple(nn.Module):
    """A block that does not look at its parts: 3 x."""

    def __init__(self, config: Any, parts: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.n_embd))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return 3 * x * self.weight


_STAND_INS: dict[str, Any] = {
    "half": Half,
    "sums": Sums,
    "square": Square,
    "alone": Alone,
    "nothing": Nothing,
    "triple": Triple,
    "LayerNorm": nn.LayerNorm,
}


# ------------------------------------------------------------------------------ one part


@probe
def gpt2_part(subject: Any, case: Case) -> dict[str, Any]:
    """As `module` does, with {"config": sizes, "parts": names} for the constructor, and whatever buffers
    it keeps beside its state_dict. An instance of other sizes is made and called in between. One more
    step:

    ("dropped", x, n_head)  in train mode: which share of the result is zero, of each element and
    of all features of a head at once, and how the rest compares with the result in eval mode
    """
    build, weights, *steps = case.args

    def made(**given: Any) -> Any:
        given["config"] = config_for(subject, given["config"])
        if "parts" in given:
            given["parts"] = parts_for(subject, given["parts"])
        return subject(**given)

    if steps and steps[0][0] == "dropped":
        layer = made(**build).to(dtype_of((weights, steps)))
        layer.load_state_dict({**layer.state_dict(), **weights})
        return _dropped(layer, *steps[0][1:])

    def beside_another(**given: Any) -> Any:
        layer = made(**given)
        if isinstance(layer, nn.Module):
            other = made(**given | {"config": given["config"] | _OTHER})
            other(torch.ones(1, 2, _OTHER["n_embd"]))
        return layer

    seen = modules.module(beside_another, case)
    return {label: value for label, value in seen.items() if ": buffer `" not in label}


_OTHER: dict[str, Any] = {"n_embd": 5, "n_head": 1, "dropout": 0.0}


def _dropped(layer: nn.Module, x: Tensor, n_head: int) -> dict[str, Any]:
    """Statistics of what a layer zeroes in train mode, to one decimal: chance reaches no further."""
    whole = layer.eval()(x).detach()
    torch.manual_seed(0)
    y = layer.train()(x).detach()
    if y.shape != whole.shape:
        return {"train: output": y}
    return {"train: ": _shares(y, whole, n_head)}


@later
def _shares(y: Tensor, whole: Tensor, n_head: int) -> dict[str, Any]:
    heads = (y == 0).unflatten(-1, (n_head, -1)).all(-1)
    ratio = (y / whole)[y != 0]
    ends = [round(x, 2) for x in (ratio.min().item(), ratio.max().item())] if len(ratio) else None
    return Entries(
        {
            "share of the output that is zero": round((y == 0).double().mean().item(), 1),
            "share of heads that are zero": round(heads.double().mean().item(), 1),
            "output / output in eval mode, where it is kept": ends,
        }
    )


def _called_part(name: str, case: Case) -> str:
    build, weights, *steps = case.args
    config, *parts = (_settings(given) for given in build.values())
    kind = "LlamaConfig" if "n_inner" in build["config"] else "GPT2Config"
    text = f"{name}({kind}({config})" + "".join(f", Parts({p})" for p in parts) + ")"
    text += f" in {shown(dtype_of((weights, steps))).removeprefix('torch.')}"
    for number, (verb, *given) in enumerate(steps, start=1):
        told = ", ".join(map(modules.brief, given))
        text += f"; step {number}: {verb}" + (f"({told})" if given else "")
    return text


def _settings(given: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in given.items())


gpt2_part.called = _called_part


@probe
def gpt2_count(subject: Any, case: Case) -> dict[str, Any]:
    """Call a function of a config: the result."""
    (sizes,) = case.args
    return {"result": subject(config_for(subject, sizes))}


gpt2_count.called = lambda name, case: f"{name}(GPT2Config({_settings(case.args[0])}))"


# ------------------------------------------------------------------------------ the start


@probe
def initialised(subject: Any, case: Case) -> dict[str, Any]:
    """Fill a model with sevens, have it initialised, and look at each parameter.

    The case: a description (see `assemble`) and n_layer. Of matrices the standard deviation to a
    quarter of an octave, the mean in units of it, and the fourth moment in units of the variance squared (3 for a
    normal distribution), so that any right way of drawing passes.
    """
    tree, n_layer = case.args
    made = assemble(tree)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(7.0)
    before = dict(made.named_parameters(remove_duplicate=False))
    trained = [name for name, p in before.items() if p.requires_grad]
    result = subject(made, n_layer)
    after = dict(made.named_parameters(remove_duplicate=False))
    seen = {
        "returns": result,
        "the parameters are those they were": all(after.get(n) is p for n, p in before.items()),
        "those require a gradient that did": [n for n in after if after[n].requires_grad]
        == trained,
    }
    return seen | {f"`{n}`: ": _figures(p.detach().clone()) for n, p in after.items()}


@later
def _figures(parameter: Tensor) -> dict[str, Any]:
    if parameter.ndim < 2 or parameter.numel() < modules.FEW:
        return Entries({"values": parameter})
    w = parameter.double()
    std = w.std().item()
    if std == 0:
        return Entries({"all are": w.flatten()[0].item()})
    octaves = round(4 * math.log2(std / 0.02)) / 4  # chance reaches no further than 0.05 of one
    found = Entries({"standard deviation": float(f"{0.02 * 2**octaves:.2g}")})
    if w.numel() >= modules.MANY:
        found["|mean| / standard deviation"] = round(abs(w.mean().item()) / std, 1)
        found["fourth moment / variance²"] = round((w - w.mean()).pow(4).mean().item() / std**4)
    return found


initialised.called = lambda name, case: (
    f"{name}(model, n_layer={case.args[1]}), where model is {modules.described(case.args[0])}"
)


# ------------------------------------------------------------------------------ the whole


@probe
def gpt2_model(subject: Any, case: Case) -> dict[str, Any]:
    """Build the whole model from a pair {"GPT2", "Transformer"}, fill it with weights, and run it.

    The case: sizes, names of parts, a seed, then what to do:

    ("eval", ids, mask?), ("train", ids, mask?)   forward and backward: features, logits, gradients
    ("dropped", ids)                              as in `gpt2_part`, of the features
    ("fresh",)                                    how it starts
    ("steps", ids, n)                             n steps of gradient descent: the losses
    """
    with together(subject) as model:
        return _driven(model, *case.args)


@contextmanager
def together(subject: Any) -> Iterator[Any]:
    """The class GPT2; wherever it was defined, its `Transformer` is the one of the same pair."""
    model = subject["GPT2"]
    space = getattr(inspect.unwrap(vars(model).get("__init__", together)), "__globals__", {})
    before = space.get("Transformer")
    if before is not None:
        space["Transformer"] = subject["Transformer"]
    try:
        yield model
    finally:
        if before is not None:
            space["Transformer"] = before


def _driven(
    model: Any, sizes: dict[str, Any], names: dict[str, str], seed: int, *steps: tuple[Any, ...]
) -> dict[str, Any]:
    config = config_for(model, sizes)
    made = model(config, parts_for(model, names)) if names else model(config)
    due = ("transformer", "lm_head", "transformer.wte", "transformer.h", "transformer.ln_f")
    if missing := [path for path in due if not _reached(made, path)]:
        return {"attributes that are missing": missing}
    seen: dict[str, Any] = {
        "parameters": {name: tuple(p.shape) for name, p in made.named_parameters()},
        "state_dict": {name: tuple(x.shape) for name, x in made.state_dict().items()},
        "config is kept": getattr(made, "config", None) == config,
        "the head's features": [
            getattr(made.lm_head, f"{end}_features", None) for end in ("in", "out")
        ],
        "the head's weight is the embedding's": made.lm_head.weight is made.transformer.wte.weight,
        "they share their storage": _shared(made.lm_head.weight, made.transformer.wte.weight),
    }
    if any(verb == "fresh" for verb, *_ in steps):
        for name, parameter in made.named_parameters():
            seen[f"`{name}`: "] = _figures(parameter.detach().clone())
    made.double()
    _fill(made, seed)
    for number, (verb, *given) in enumerate(steps, start=1):
        found = _VERBS[verb](made, *given)
        seen |= {f"step {number} ({verb}): {label}": value for label, value in found.items()}
    return seen


def _reached(made: Any, path: str) -> bool:
    """Is there an attribute of this dotted name?"""
    for name in path.split("."):
        if not hasattr(made, name):
            return False
        made = getattr(made, name)
    return True


def _shared(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _fill(made: nn.Module, seed: int) -> None:
    """Weights of no special form, the same for the same names and shapes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, p in sorted(made.named_parameters()):
            value = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(value / 2 if p.ndim > 1 else 1 + value / 4)


def _run(made: Any, mode: bool, ids: Tensor, *mask: Tensor) -> dict[str, Any]:
    made.train(mode).zero_grad()
    before = clone(ids)
    features, logits = made.transformer(ids, *mask), made(ids, *mask)
    seen: dict[str, Any] = {"features": clone(features), "logits": clone(logits)}
    (logits * ramp(logits)).sum().backward()
    for name, parameter in made.named_parameters():
        seen[f"gradient of `{name}`"] = clone(parameter.grad)
    seen["argument `ids` afterwards"] = if_changed(before, clone(ids))
    return seen


def descend(made: nn.Module, ids: Tensor, n: int) -> dict[str, Any]:
    """The losses of n steps of gradient descent on ids (batch, position)."""
    losses = []
    for _ in range(n):
        made.zero_grad()
        loss = nn.functional.cross_entropy(made(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        losses.append(clone(loss))
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.grad is not None:
                    parameter.sub_(modules.LEARNING_RATE * parameter.grad)
    return {"losses": losses}


_VERBS: dict[str, Callable[..., dict[str, Any]]] = {
    "eval": lambda made, *given: _run(made, False, *given),
    "train": lambda made, *given: _run(made, True, *given),
    "dropped": lambda made, ids: _dropped(made.transformer, ids, 1),
    "fresh": lambda made: {},
    "steps": descend,
}


def _called_model(name: str, case: Case) -> str:
    sizes, names, _, *steps = case.args
    text = f"GPT2(GPT2Config({_settings(sizes)})" + (
        f", Parts({_settings(names)}))" if names else ")"
    )
    for number, (verb, *given) in enumerate(steps, start=1):
        told = ", ".join(map(modules.brief, given))
        text += f"; step {number}: {verb}" + (f"({told})" if given else "")
    return text


gpt2_model.called = _called_model


# ------------------------------------------------------------------------------ a checkpoint


def gpt2_tree(sizes: dict[str, Any]) -> dict[str, Any]:
    """The description (see `assemble`) of a GPT-2 of these sizes."""
    V, C, D = sizes["vocab_size"], sizes["n_positions"], sizes["n_embd"]
    block = {
        "ln_1": ("norm", D),
        "attn": {"c_attn": ("linear", D, 3 * D), "c_proj": ("linear", D, D)},
        "ln_2": ("norm", D),
        "mlp": {"c_fc": ("linear", D, 4 * D), "c_proj": ("linear", 4 * D, D)},
    }
    return {
        "transformer": {
            "wte": ("embedding", V, D),
            "wpe": ("embedding", C, D),
            "h": [block] * sizes["n_layer"],
            "ln_f": ("norm", D),
        },
        "lm_head": ("linear", D, V, False),
        "tied": [("transformer.wte.weight", "lm_head.weight")],
    }


@probe
def checkpoint(subject: Any, case: Case) -> dict[str, Any]:
    """Load a checkpoint into a GPT-2 of these sizes, full of sevens: what it then holds.

    Where it raises ValueError: which tensors the message names, whether nothing was copied.
    """
    sizes, state = case.args
    made = assemble(gpt2_tree(sizes))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(7.0)
    before = dict(made.named_parameters(remove_duplicate=False))
    kept = {name: x.clone() for name, x in state.items()}
    given = dict(state)
    try:
        result = subject(made, given)
    except ValueError as error:
        candidates = _at_fault_or_not(before, state)
        held = [p.detach() for p in made.parameters()]
        return {
            "raises": raised_name(error),
            "its message names": sorted(n for n in candidates if named(n, str(error))),
            "nothing was copied": unchanged([torch.full_like(p, 7.0) for p in held], held),
        }
    after = dict(made.named_parameters(remove_duplicate=False))
    values = {f"`{name}`": clone(p) for name, p in made.named_parameters()}
    with torch.no_grad():
        for parameter in made.parameters():  # what is the model's alone can be moved
            parameter.add_(1.0)
    apart = unchanged(list(kept.items()), list(given.items()))
    return {
        "returns": result,
        "the parameters are those they were": all(after.get(n) is p for n, p in before.items()),
        "the head is still tied": after["lm_head.weight"] is after["transformer.wte.weight"],
        "they require a gradient": all(p.requires_grad for p in after.values()),
        "the checkpoint is as it was, also once the model changes": apart,
    } | values


def _at_fault_or_not(model: dict[str, Any], state: dict[str, Tensor]) -> set[str]:
    """The tensors of which a message must name those at fault and no other. Of the head and the
    embedding that it is compared with, the one that is not at fault may be named or not."""
    names = {_short(name) for name in (*model, *state)}
    if "lm_head.weight" not in state:
        return names
    given = {_short(name): x.shape for name, x in state.items()}
    fits = given.get("wte.weight") == model["transformer.wte.weight"].shape
    return names - {"wte.weight" if fits else "lm_head.weight"}


def _short(name: str) -> str:
    return name.removeprefix("transformer.")


def named(name: str, message: str) -> bool:
    """Does a message name this tensor, as a word of its own?"""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message) is not None


checkpoint.called = lambda name, case: (
    f"{name}(model, state): the model of GPT2Config({_settings(case.args[0])}), the state of "
    f"{len(case.args[1])} tensors"
)
