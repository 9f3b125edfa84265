"""Probes of memory: traces, a training step's tenants, recomputation, and steps that do not fit.

A case is data: it names models, functions and stacks of layers of the small catalogues below, and it
gives a trace as short tuples, which become the entries that torch.cuda.memory would give.
"""

import re
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.labels import NOTHING, RAISES
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import call as call_probe
from course_utils.grading.probes.functions import flat_tensors, ramp
from course_utils.grading.pytrees.shown import shown

# ------------------------------------------------------------------------------ traces


@probe
def trace(subject: Any, case: Case) -> dict[str, Any]:
    """Call it with a trace, as torch.cuda.memory would give it. The case: words with spaces between.

    "+7:100@a.py:1<b.py:2" allocates 100 bytes at address 7, in a.py, which b.py called; "?7" asks for
    their end, "!7" completes it, "-7" does both; "|" is a snapshot; any other word is an action that
    concerns no block. What is freed without having been allocated has 64 bytes.
    """
    return call_probe(subject, Case(args=(_trace(case.args[0]),)))


_WORD = re.compile(r"([+?!-])(\d+)(?::(\d+))?(?:@(.*))?")
_ENDS = {
    "?": ["free_requested"],
    "!": ["free_completed"],
    "-": ["free_requested", "free_completed"],
}


def _trace(text: str) -> list[dict[str, Any]]:
    """The entries that the words stand for."""
    entries: list[dict[str, Any]] = []
    sizes: dict[str, int] = {}
    for word in text.split():
        if found := _WORD.fullmatch(word):
            what, addr, size, places = found.groups()
            sizes[addr] = int(size or sizes.get(addr, 64))
            for action in _ENDS.get(what, ["alloc"]):
                by = places.split("<") if places else []
                entries.append(_entry(action, int(addr), sizes[addr], *by))
        elif word == "|":
            entries.append(_entry("snapshot"))
        else:
            entries.append(_entry(word, 1, 2048))
    return entries


def _entry(action: str, addr: int = 0, size: int = 0, *places: str) -> dict[str, Any]:
    """One entry in the form of torch.cuda.memory's device traces."""
    frames = [
        {"filename": p.rpartition(":")[0], "line": int(p.rpartition(":")[2]), "name": "forward"}
        for p in places
    ]
    where = "device_free" if action == "oom" else "addr"
    return {"action": action, where: addr, "size": size, "stream": 0, "frames": frames}


def _called_with_trace(name: str, case: Case) -> str:
    def written(entry: dict[str, Any]) -> str:
        places = " < ".join(f"{f['filename']}:{f['line']}" for f in entry["frames"])
        if not entry.get("addr"):
            return str(entry["action"])
        text = f"{entry['action']} {entry['addr']:#x} {entry['size']} B"
        return f"{text} at {places}" if places else text

    entries = [written(entry) for entry in _trace(case.args[0])]
    few = entries if len(entries) <= 20 else [*entries[:18], f"… {len(entries) - 18} more"]
    return f"{name}(trace), where the trace reads: {'; '.join(few) or 'nothing'}"


trace.called = _called_with_trace


# ------------------------------------------------------------------------------ one training step


class Normed(nn.Module):
    """With buffers, one of them a slice, a table that is used twice, and a part that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1.0, 1.0, 12).view(3, 4))
        self.norm = nn.BatchNorm1d(4)
        self.act = nn.Sigmoid()
        self.unused = nn.Linear(4, 2)
        self.register_buffer("scale", torch.arange(8.0)[4:])

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x @ self.table) * self.scale
        return self.act(h) @ self.table.T


def frozen() -> nn.Module:
    """Linear, ReLU, Linear, (3,) → (3,); the first layer needs no gradient."""
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    return model


def sliced() -> nn.Module:
    """(3,) → (3,), with a layer that adds one half of its input to the square of the other."""

    class Half(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :].square()

    return nn.Sequential(nn.Linear(3, 8), Half(), nn.Tanh(), nn.Linear(4, 3))


class Again(nn.Module):
    """Calls each of its two modules twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(3, 3), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(self.act(self.linear(self.act(x))))
        return y


class Borrows(nn.Module):
    """Two tensors lie in the same memory, one after the other. The product with the first is dropped,
    and autograd with it lets go of what it saved."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        memory = np.full(8, 0.5, np.float32)
        h * torch.from_numpy(memory[:3])
        y: Tensor = h * torch.from_numpy(memory)[:3]
        return y


class Shares(nn.Module):
    """Two layers have one weight, and one activation has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.act = self.last = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.second(self.act(self.first(x))))
        return y


MODELS: dict[str, Callable[[], nn.Module]] = {
    "Linear(3, 3)": lambda: nn.Linear(3, 3),
    "Linear, ReLU, Linear": lambda: nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3)),
    "Linear, Tanh, Dropout, Linear without bias": lambda: nn.Sequential(
        nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3, bias=False)
    ),
    "frozen Linear, ReLU, Linear": frozen,
    "Linear, one half plus the other half squared, Tanh, Linear": sliced,
    "x @ table, BatchNorm1d, times a buffer, Sigmoid, @ table.T, and a Linear that is not used": Normed,
    "a Tanh and a Linear, each called twice": Again,
    "Linear, then a product that is dropped, and one that takes its factor's place in memory": Borrows,
    "Linear, Tanh, a Linear with the same weight, and the same Tanh": Shares,
}


class Average(torch.optim.Optimizer):
    """Keeps an average of each gradient, and the number of steps as a Python int."""

    def __init__(self, params: Any, lr: float = 0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[p]
            state["steps"] = state.get("steps", 0) + 1
            state["average"] = 0.9 * state.get("average", torch.zeros_like(p)) + 0.1 * p.grad
            p.sub_(state["average"])


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1),
    "SGD with momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.1),
    "one with a tensor and an int in its state": Average,
}


@probe
def timeline(subject: Any, case: Case) -> dict[str, Any]:
    """Give it a model, an optimizer, a loss, and a batch: the rows, the step, and what stays behind.

    The case: names of a model and an optimizer, the batch, the number of earlier steps (which leave
    optimizer state) and whether gradients are there before the step; breaks: "loss" or "optimizer", of
    which the call raises.
    """
    name, optimizer_name, x, earlier, grads = case.args
    model = MODELS[name]()
    if x.dtype is torch.float64:
        model.double()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * ramp(p) + 0.1)
    optimizer = OPTIMIZERS[optimizer_name](p for p in model.parameters() if p.requires_grad)
    target, loss_fn = torch.full_like(x, 0.25), F.binary_cross_entropy_with_logits
    for _ in range(earlier):
        loss_fn(model(x), target).backward()
        optimizer.step()
        optimizer.zero_grad()
    for p in model.parameters():
        if grads and p.requires_grad:
            p.grad = torch.ones_like(p)
    if breaks := case.kwargs.get("breaks"):
        return _broken_step(subject, model, optimizer, x, target, breaks)
    rows = subject(model, optimizer, loss_fn, x, target)
    return {
        "rows": rows,
        "parameters after the step": [p.detach().clone() for p in model.parameters()],
        "hooks that stay on the model": _hooks_on(model),
    }


def _broken_step(
    subject: Any, model: nn.Module, optimizer: Any, x: Tensor, target: Tensor, breaks: str
) -> dict[str, Any]:
    """A step in which the loss or the optimizer raises."""

    def broken(*_: Any) -> Tensor:
        raise ArithmeticError(f"the {breaks} is broken on purpose")

    if breaks == "optimizer":
        optimizer.step = broken
    try:
        subject(model, optimizer, broken if breaks == "loss" else F.mse_loss, x, target)
    except ArithmeticError:
        raised = "ArithmeticError"
    else:
        raised = NOTHING
    return {RAISES: raised, "hooks that stay on the model": _hooks_on(model)}


def _hooks_on(model: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    of_modules = sum(len(getattr(m, kind)) for m in model.modules() for kind in kinds)
    of_parameters = sum(
        len(getattr(p, kind, None) or ())
        for p in model.parameters()
        for kind in ("_post_accumulate_grad_hooks", "_backward_hooks")
    )
    return of_modules + of_parameters


def _called_with_model(name: str, case: Case) -> str:
    model, optimizer, x, earlier, grads = case.args
    breaks = case.kwargs.get("breaks")
    return (
        f"{name}(model, optimizer, F.binary_cross_entropy_with_logits, x, target), where model is: {model}; optimizer: "
        f"{optimizer}, after {earlier} step{'' if earlier == 1 else 's'}; x of shape {tuple(x.shape)}"
        + (", gradients there from before" if grads else "")
        + (f", where the {breaks} raises ArithmeticError" if breaks else "")
    )


timeline.called = _called_with_model


# ------------------------------------------------------------------------------ recomputation


def _drop(x: Tensor, p: float) -> Tensor:
    """Dropout whose random numbers do not depend on the dtype of x, as those of F.dropout do."""
    return x * torch.rand(x.shape).ge(p).to(x.dtype) / (1 - p)


Built = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def plain_layers(again: Any, x: Tensor, w: Tensor) -> Built:
    """One tensor in, one out."""
    return (lambda x: ((x @ w).tanh() @ w).sigmoid()), (x,), {}


def with_dropout(again: Any, x: Tensor, w: Tensor) -> Built:
    """Two dropouts: a second run must draw the same masks."""
    return (lambda x: _drop(_drop(x @ w, 0.5).exp(), 0.3).sin()), (x,), {}


def with_keywords(again: Any, x: Tensor, w: Tensor) -> Built:
    """Arguments by position and by name, a tensor among the latter."""

    def function(x: Tensor, power: int, *, scale: float, mask: Tensor | None = None) -> Tensor:
        y = (x @ w) ** power * scale
        return y if mask is None else y.exp() * mask

    return function, (x, 3), {"mask": ramp(x) + 2.0, "scale": 0.5}


def with_others(again: Any, x: Tensor, w: Tensor) -> Built:
    """Arguments that are no tensors, tensors in a list, and a tree as the result."""

    def function(name: str, pair: list[Tensor], none: None, y: Tensor, *, on: bool) -> Any:
        a, b = pair
        assert name == "gate" and none is None and on
        return {"out": a.sigmoid() * b.tanh() * y, "name": name}, (y.exp(), 7)

    return function, ("gate", [x @ w, 2 * x], None, x), {"on": True}


def only_parameters(again: Any, x: Tensor, w: Tensor) -> Built:
    """No argument needs a gradient; the weight inside does."""
    return (lambda x: (x @ w).exp()), (x.detach(),), {}


def nothing_given(again: Any, x: Tensor, w: Tensor) -> Built:
    """No arguments at all."""
    return (lambda: (x @ w).tanh().exp()), (), {}


def nothing_saved(again: Any, x: Tensor, w: Tensor) -> Built:
    """A function whose backward pass needs no tensor."""
    return (lambda x: x + 1.0), (x,), {}


def nested(again: Any, x: Tensor, w: Tensor) -> Built:
    """Two checkpoints inside the outer one, each with a dropout."""

    def inner(x: Tensor, p: float) -> Tensor:
        return _drop((x @ w).tanh(), p).exp()

    def outer(x: Tensor) -> Tensor:
        x = again(inner, x.sin(), 0.25)
        return again(inner, x, p=0.5).sigmoid() * x

    return outer, (x,), {}


def nested_twice(again: Any, x: Tensor, w: Tensor) -> Built:
    """Checkpoints three deep."""

    def inner(x: Tensor) -> Tensor:
        return _drop(x @ w, 0.5).tanh()

    def middle(x: Tensor) -> Tensor:
        return again(inner, again(inner, x)).exp()

    return (lambda x: again(middle, x).sin()), (x,), {}


CALLS: dict[str, Callable[[Any, Tensor, Tensor], Built]] = {
    "lambda x: ((x @ w).tanh() @ w).sigmoid()": plain_layers,
    "lambda x: drop(drop(x @ w, 0.5).exp(), 0.3).sin()": with_dropout,
    "lambda x, power, *, scale, mask: ((x @ w) ** power * scale).exp() * mask": with_keywords,
    "a function of a string, a list of two tensors, None, x and on=True that returns a dict and a tuple": with_others,
    "lambda x: (x @ w).exp(), of an x that requires no grad": only_parameters,
    "lambda: (x @ w).tanh().exp(), without arguments": nothing_given,
    "lambda x: x + 1.0, which saves nothing": nothing_saved,
    "a function that checkpoints two parts of itself, with dropout": nested,
    "a function that checkpoints a function that checkpoints": nested_twice,
}


@probe
def checkpointed(subject: Any, case: Case) -> dict[str, Any]:
    """Call a function through it, go back, and see values, gradients and random numbers.

    The case: the name of a function, x, and options: passes, how many backward passes over the
    same graph; drawn, random numbers drawn between forward and backward; graph, grad mode on or
    off; twice, whether to differentiate twice; autocast, the low dtype of the forward pass by name, ""
    for none; around, that of the backward pass.
    """
    name, x = case.args
    options: dict[str, Any] = {
        "passes": 1,
        "drawn": 3,
        "graph": True,
        "twice": False,
        "autocast": "",
        "around": "",
    }
    options |= case.kwargs
    x = x.detach().clone().requires_grad_()
    w = nn.Parameter(0.4 * ramp(torch.empty(x.shape[-1] ** 2, dtype=x.dtype)).view(x.shape[-1], -1))
    function, args, kwargs = CALLS[name](subject, x, w)
    with torch.set_grad_enabled(options["graph"]), _autocast(options["autocast"]):
        result = subject(function, *args, **kwargs)
    seen: dict[str, Any] = {"what it returns": detached(result)}
    seen["random numbers after the call"] = torch.rand(options["drawn"])
    outputs = [t for t in flat_tensors(_leaves_of(result)) if t.requires_grad]
    seen["results that require grad"] = len(outputs)
    if outputs:
        total = torch.stack([(t * (ramp(t) + 0.5)).sum() for t in outputs]).sum()
        for number in range(options["passes"]):
            last = number == options["passes"] - 1
            with _autocast(options["around"]):
                grads = torch.autograd.grad(
                    total,
                    (x, w),
                    retain_graph=not last or options["twice"],
                    create_graph=options["twice"],
                    allow_unused=True,
                )
            for label, g in zip("xw", grads, strict=True):
                seen[f"gradient of `{label}`" + " in a second pass" * number] = (
                    None if g is None else g.detach()
                )
        if options["twice"]:
            second = torch.autograd.grad(grads[0].square().sum(), w)[0]
            seen["second derivative"] = second
    seen["random numbers after backward"] = torch.rand(2)
    return seen


def _autocast(low: str) -> torch.autocast:
    """Autocast on the CPU to the dtype of this name; switched off for ""."""
    return torch.autocast("cpu", getattr(torch, low or "bfloat16"), enabled=bool(low))


def _leaves_of(tree: Any) -> Any:
    return [_leaves_of(v) for v in tree.values()] if isinstance(tree, dict) else tree


def detached(tree: Any) -> Any:
    """The same tree, its tensors outside the graph."""
    if isinstance(tree, Tensor):
        return tree.detach()
    if isinstance(tree, dict):
        return {key: detached(value) for key, value in tree.items()}
    return type(tree)(map(detached, tree)) if isinstance(tree, list | tuple) else tree


def _called_with_function(name: str, case: Case) -> str:
    source, x, *_ = case.args
    if isinstance(source, int):
        return f"{name}(function, x), where function is {source} times x = (x @ w).tanh()"
    if isinstance(source, tuple):
        *calls, layers = source
        return (
            f"{' calls, each making '.join(map(str, calls))} calls of {name}, around {layers} times "
            "x = (x @ w).tanh(), forward and backward"
        )
    options = case.kwargs
    text = f"{name}(function, …), where x is {shown(x)} and function is: {source}"
    if not options.get("graph", True):
        text += ", under no_grad"
    if options.get("passes", 1) > 1:
        text += f", {options['passes']} backward passes over the same graph"
    if options.get("twice"):
        text += ", differentiated twice"
    if low := options.get("autocast"):
        text += f", under torch.autocast('cpu', torch.{low})"
    if low := options.get("around"):
        text += f", its backward under torch.autocast('cpu', torch.{low})"
    return text


checkpointed.called = _called_with_function


# ------------------------------------------------------------------------------ a stack of layers


class Layer(nn.Module):
    """x @ weight, perhaps dropout, tanh; notes its number each time it is called."""

    def __init__(self, number: int, width: int, dropout: float, calls: list[int]):
        super().__init__()
        weight = (ramp(torch.empty(width * width)) + 0.01 * number).view(width, width) / width**0.5
        self.weight = nn.Parameter(weight)
        self.number, self.dropout, self.calls = number, dropout, calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(self.number)
        return _drop(x @ self.weight.to(x.dtype), self.dropout).tanh()


@probe
def layers(subject: Any, case: Case) -> dict[str, Any]:
    """Give it n layers and x; go back; see values, gradients, and who was called in forward.

    The case: n, x, the dropout of each layer.
    """
    n, x, dropout = case.args
    calls: list[int] = []
    stack = [Layer(i, x.shape[-1], dropout, calls) for i in range(n)]
    x = x.detach().clone().requires_grad_()
    result = subject(stack, x)
    seen: dict[str, Any] = {
        "what it returns": result.detach(),
        "layers called in forward": list(calls),
    }
    torch.rand(3)
    leaves = (x, *(layer.weight for layer in stack))
    grads = torch.autograd.grad((result * (ramp(result) + 0.5)).sum(), leaves, allow_unused=True)
    seen["gradient of `x`"] = grads[0]
    seen["gradients of the layers"] = list(grads[1:])
    seen["layers called at all"] = sorted(set(calls))
    seen["random numbers after backward"] = torch.rand(2)
    return seen


def _called_with_layers(name: str, case: Case) -> str:
    n, x, dropout = case.args
    kind = f"drop(x @ weight, {dropout:g}).tanh()" if dropout else "(x @ weight).tanh()"
    return f"{name}(layers, x) with {n} layers {kind}, x of shape {tuple(x.shape)}"


layers.called = _called_with_layers


# ------------------------------------------------------------------------------ steps that may not fit


class Memory:
    """So many bytes. What is taken is given back when the block dies, as with tensors."""

    def __init__(self, capacity: int, says: str = "out of memory"):
        self.capacity, self.says, self.taken = capacity, says, 0

    def take(self, size: int) -> "Taken":
        """A block of `size` bytes. Raises torch.OutOfMemoryError."""
        if self.taken + size > self.capacity:
            raise torch.OutOfMemoryError(
                f"{self.says}. Tried to allocate {size} bytes; {self.taken} of {self.capacity} "
                "are in use."
            )
        block = Taken()
        self.taken += size
        weakref.finalize(block, self.give_back, size)
        return block

    def give_back(self, size: int) -> None:
        self.taken -= size


class Taken:
    """A block of memory."""


WRONG = "mat1 and mat2 shapes cannot be multiplied"


@probe
def attempts(subject: Any, case: Case) -> dict[str, Any]:
    """Give it a step that takes fixed + per_sample · batch bytes of a memory.

    The case: capacity, fixed, per_sample, the limit (None: its default), and broken: the batch
    from which on the step raises another error than the memory's, or 0. full, wrong: what
    the memory's error and that other one say.
    """
    capacity, fixed, per_sample, limit, broken = case.args
    memory = Memory(capacity, case.kwargs.get("full", "out of memory"))
    wrong = case.kwargs.get("wrong", WRONG)

    def step(batch: int) -> None:
        own = memory.take(fixed)
        activations = memory.take(per_sample * batch)
        if 0 < broken <= batch:
            raise RuntimeError(wrong)
        del own, activations

    return {"result": subject(step) if limit is None else subject(step, limit)}


def _called_with_step(name: str, case: Case) -> str:
    capacity, fixed, per_sample, limit, broken = case.args
    text = (
        f"{name}(step{'' if limit is None else f', {limit}'}), where step(batch) takes {fixed} + "
        f"{per_sample} · batch of {capacity} bytes"
    )
    if full := case.kwargs.get("full"):
        text += f", whose OutOfMemoryError says '{full}'"
    says = f", '{case.kwargs['wrong']}'," if "wrong" in case.kwargs else ""
    return text + (f" and raises a RuntimeError{says} from batch {broken} on" if broken else "")


attempts.called = _called_with_step


def counted_attempts(subject: Any, case: Case) -> Callable[[], Any]:
    """For the meters: the same, where each step runs one kernel."""
    capacity, fixed, per_sample, limit, _ = case.args
    counter = torch.zeros(1)

    def step(batch: int) -> None:
        counter.neg_()
        if fixed + per_sample * batch > capacity:
            raise torch.OutOfMemoryError("out of memory")

    return partial(subject, step, limit)


# ------------------------------------------------------------------------------ for the meters


def forward_only(subject: Any, case: Case) -> Callable[[], Any]:
    """Layers of matmul and tanh, without backward. The case: how many, x, and if it requires grad."""
    depth, x, wants = case.args
    w = nn.Parameter(0.1 * ramp(torch.empty(x.shape[-1] ** 2)).view(x.shape[-1], -1))
    x = x.detach().requires_grad_(wants)

    def function(x: Tensor) -> Tensor:
        for _ in range(depth):
            x = (x @ w).tanh()
        return x

    return lambda: subject(function, x)


def there_and_back_again(subject: Any, case: Case) -> Callable[[], Any]:
    """Nested segments, forward and backward. The case: the lengths of each level, and x.

    (4, 6): four checkpointed functions of six layers. (3, 4, 5): three that checkpoint four of five.
    """
    lengths, x = case.args
    w = nn.Parameter(0.1 * ramp(torch.empty(x.shape[-1] ** 2)).view(x.shape[-1], -1))
    x = x.detach().requires_grad_()

    def run(lengths: Sequence[int], x: Tensor) -> Tensor:
        for _ in range(lengths[0]):
            x = subject(partial(run, lengths[1:]), x) if lengths[1:] else (x @ w).tanh()
        return x

    return lambda: run(lengths, x).sum().backward()


def stack_and_back(subject: Any, case: Case) -> Callable[[], Any]:
    """A stack of n layers, forward and backward. The case: n, x, dropout."""
    n, x, dropout = case.args
    stack = [Layer(i, x.shape[-1], dropout, []) for i in range(n)]
    x = x.detach().requires_grad_()
    return lambda: subject(stack, x).sum().backward()
