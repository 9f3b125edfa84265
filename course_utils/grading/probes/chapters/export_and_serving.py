"""Probes of chapter 28: functions that torch.export takes, a program's sizes, a runtime beside the model."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import if_changed, unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.shown import shown

from .modules import clone, raised_name
from .profiling_and_compile import unchecked

# ------------------------------------------------------------------------------ torch.export

_TELLS = "torch.fx.experimental.symbolic_shapes"
"""Its log writes of each refusal to the terminal, past what the verdict catches."""
TAKES, YES = "torch.export takes it", "yes"
_VALUES = "no: what Python does next depends on a value"
_SIZE = "no: a size that may change was fixed"


class _Called(nn.Module):
    """A function of tensors as the module that torch.export asks for."""

    def __init__(self, work: Callable[..., Any]) -> None:
        super().__init__()
        self.work = work

    def forward(self, *given: Tensor) -> Any:
        return self.work(*given)


@contextmanager
def _silence() -> Iterator[None]:
    log = logging.getLogger(_TELLS)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _exported(work: Callable[..., Any], example: Any, dims: Any) -> Any:
    """The program of a function of tensors, or why there is none. dims: of each tensor, those that may change."""
    shapes = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in dims)
    try:
        with _silence():
            program = torch.export.export(_Called(work), tuple(example), dynamic_shapes=(shapes,))
        return program.module()
    except Exception as error:
        return _refusal(error)


def _refusal(error: Exception) -> str:
    """In which way torch.export refused."""
    kinds, text = {kind.__name__ for kind in type(error).__mro__}, str(error)
    if "GuardOnDataDependentSymNode" in kinds or "data-dependent" in text:
        return _VALUES
    if "specialized" in text or "Constraints violated" in text:
        return _SIZE
    return f"no: {raised_name(error)}"


def _of_sizes(visible: Callable[..., Any]) -> Callable[..., Any]:
    """`visible_at` as a function of tensors: T and the capacity are the sizes of two of them."""
    plain = unchecked(visible)
    return lambda position, tokens, places: plain(position, tokens.size(0), places.size(0))


@probe
def exportable(subject: Any, case: Case) -> dict[str, Any]:
    """Call a function; or export it, and call the program on tensors of other sizes.

    A pair's case has the function's name as its first argument. With `then`, a list of arguments, and
    `dims`, the axes of each argument that may change, it is exported with the case's own arguments as
    the example.
    """
    name, given = None, list(case.args)
    if isinstance(subject, dict):
        name, *given = given
        subject = subject[name]
    if "then" not in case.kwargs:
        before = _cloned(given)
        result = subject(*given)
        seen = {"result": clone(result) if isinstance(result, Tensor) else result}
        return seen | {"arguments afterwards": if_changed(before, _cloned(given))}
    program = _exported(
        _of_sizes(subject) if name == "visible_at" else unchecked(subject),
        given,
        case.kwargs["dims"],
    )
    if isinstance(program, str):
        return {TAKES: program}
    seen = {TAKES: YES}
    for number, arguments in enumerate(case.kwargs["then"], start=1):
        try:
            seen[f"the program's result {number}"] = clone(program(*arguments))
        except Exception as error:
            seen[f"the program's result {number}"] = f"raises {raised_name(error)}"
    return seen


def _cloned(given: Any) -> list[Any]:
    return [clone(x) if isinstance(x, Tensor) else x for x in given]


def _called_exportable(name: str, case: Case) -> str:
    given = list(case.args)
    if given and isinstance(given[0], str):
        name, *given = given
    if "then" not in case.kwargs:
        return f"{name}({', '.join(map(shown, given))})"
    sizes = ", ".join(str(tuple(x.shape)) for x in given)
    return f"{name}, exported with tensors of shape {sizes} as the example"


exportable.called = _called_exportable


# ------------------------------------------------------------------------------ a program's sizes


class _Toy(nn.Module):
    """Embeddings of tokens and positions, dropout of all, a head; more positions than it has are an error."""

    def __init__(self, V: int, positions: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.tokens, self.positions = nn.Embedding(V, 6), nn.Embedding(positions, 6)
        self.drop, self.head = nn.Dropout(1.0), nn.Linear(6, V)
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        T = x.size(1)
        if self.positions.num_embeddings < T:
            raise ValueError(f"{T} positions; there are {self.positions.num_embeddings}")
        h = self.tokens(x) + self.positions(torch.arange(T))
        return self.head(torch.tanh(self.drop(h).cumsum(1)))


def _ids(rows: int, tokens: int, V: int, seed: int) -> Tensor:
    return torch.randint(V, (rows, tokens), generator=torch.Generator().manual_seed(seed))


@probe
def program_sizes(subject: Any, case: Case) -> dict[str, Any]:
    """Export a toy, and call the program with tokens of several sizes.

    The case, by name: example, its (rows, tokens); max_batch, max_tokens; positions of the toy; sizes
    to call it with; train: names of submodules that are in train mode ("" is the whole).
    """
    given = case.kwargs
    V, seed = 11, given.get("seed", 0)
    toy = _Toy(V, given["positions"], seed)
    modes = {name: name in given["train"] for name, _ in toy.named_modules()}
    for name, module in toy.named_modules():
        module.training = modes[name]
    rows, tokens = given["example"]
    ids = _ids(rows, tokens, V, seed + 1)
    before, weights = clone(ids), [clone(weight) for weight in toy.parameters()]
    program = subject(toy, ids, given["max_batch"], given["max_tokens"])
    seen: dict[str, Any] = {
        "modes afterwards": {
            name or "the model": "train" if module.training else "eval"
            for name, module in toy.named_modules()
        },
        "argument `ids` afterwards": if_changed(before, clone(ids)),
        "the weights are as they were": unchanged(weights, [clone(w) for w in toy.parameters()]),
    }
    if not isinstance(program, torch.export.ExportedProgram):
        return seen | {"returns a": type(program).__name__}
    run = program.module()
    for rows, tokens in given["sizes"]:
        label = f"the program on {rows} × {tokens} tokens"
        try:
            seen[label] = clone(run(_ids(rows, tokens, V, seed + rows + 7 * tokens)))
        except Exception:
            seen[label] = "refused"
    return seen


def _called_program(name: str, case: Case) -> str:
    given = case.kwargs
    mode = "in train mode" if "" in given["train"] else "in eval mode"
    mode += (
        f", {', '.join(n for n in given['train'] if n)} in train mode"
        if any(given["train"])
        else ""
    )
    rows, tokens = given["example"]
    return (
        f"{name}(model, ids, max_batch={given['max_batch']}, max_tokens={given['max_tokens']}): a model "
        f"of {given['positions']} positions, {mode}, ids of {rows} × {tokens}"
    )


program_sizes.called = _called_program

# ------------------------------------------------------------------------------ a runtime beside the model


class _Session:
    """What an InferenceSession does, in NumPy: the model's function, with a fault."""

    def __init__(self, names: list[str], given: dict[str, Any]) -> None:
        self.names, self.faults = names, given["session"]
        self.fed: list[list[Tensor]] = []
        self.writes = given.get("writes") == "session"

    def get_inputs(self) -> list[Any]:
        """Name, type and shape of each input, as onnxruntime gives them."""
        return [SimpleNamespace(name=n, type="tensor(float)", shape=["B", "T"]) for n in self.names]

    def run(self, outputs: Any, feeds: dict[str, Any]) -> list[Any]:
        """One array in a list. Raises ValueError for other names, or for what is no array."""
        import numpy as np

        if sorted(feeds) != sorted(self.names):
            raise ValueError(f"the inputs are {self.names}; came {sorted(feeds)}")
        if not all(isinstance(x, np.ndarray) for x in feeds.values()):
            raise TypeError("a session takes NumPy arrays")
        number = len(self.fed)
        self.fed.append([torch.from_numpy(feeds[name].copy()) for name in self.names])
        result = _function(*self.fed[-1])
        fault = self.faults[number] if number < len(self.faults) else None
        if self.writes:
            for x in feeds.values():
                x.fill(-64.0)
        return [_with(fault, result).numpy()]


def _function(*given: Tensor) -> Tensor:
    """2 x, or 2 x + y, …: exact in every dtype."""
    return sum((x for x in given[1:]), 2 * given[0])


def _with(fault: Any, result: Tensor) -> Tensor:
    """A result with what a session did to it: None, a tensor to add, or in words."""
    if isinstance(fault, Tensor):
        return result + fault.to(result.dtype)
    match fault:
        case "float64":
            return result.double()
        case "one row":
            return result[:1].clone()
        case "one more axis":
            return result[None].clone()
        case "float16":
            return result.half()
        case "transposed":
            return result.T.clone()
        case "negated":
            return -result
        case "finite":
            return result.nan_to_num()
    return result.clone()


@probe
def compared(subject: Any, case: Case) -> dict[str, Any]:
    """Let an answer compare a function with a session, and look at what it says and at what both were given.

    The case, by name: inputs, a list of cases, each a list of tensors; names of the session's inputs;
    session: for each of its calls what is wrong with the result (None: nothing); rtol, atol; stream: the
    cases come from a generator; grad: the model has parameters that record gradients; writes: which of
    the two writes into what it gets.
    """
    given = case.kwargs
    session = _Session(given["names"], given)
    asked: list[Any] = []
    recording: list[bool] = []

    def model(*tensors: Tensor) -> Tensor:
        asked.append([clone(x) for x in tensors])
        recording.append(torch.is_grad_enabled())
        result = _function(*tensors)
        if given.get("writes") == "model":
            for x in tensors:
                x.fill_(-64.0)
        weight = torch.ones((), dtype=result.dtype, requires_grad=bool(given.get("grad")))
        return result * weight

    inputs = [tuple(one) for one in given["inputs"]]
    before = [_cloned(one) for one in inputs]
    tolerances = {name: given[name] for name in ("rtol", "atol") if name in given}
    cases = _stream(inputs) if given.get("stream") else inputs
    seen: dict[str, Any] = {}
    try:
        result = subject(model, session, cases, **tolerances)
    except (AssertionError, ValueError) as error:
        refused = isinstance(error, ValueError)
        seen["raises"] = "ValueError" if refused else "AssertionError"
        if refused:
            seen["calls before the error"] = len(asked) + len(session.fed)
            return seen
    else:
        seen["raises"] = "nothing"
        seen["the largest difference"] = result
        seen["the model was called with"] = asked
        seen["calls of the model that record gradients"] = sum(recording)
        seen["the session was fed with"] = session.fed
    return seen | {"cases afterwards": if_changed(before, [_cloned(one) for one in inputs])}


def _stream(inputs: list[Any]) -> Iterator[Any]:
    yield from inputs


def _called_compared(name: str, case: Case) -> str:
    given = case.kwargs
    cases = "; ".join(", ".join(map(shown, one)) for one in given["inputs"]) or "none"
    said = [
        f"in its call {n} the session's result is {fault if isinstance(fault, str) else 'off by ' + shown(fault)}"
        for n, fault in enumerate(given["session"], start=1)
        if fault is not None
    ]
    said += ["the model has parameters that record gradients"] if given.get("grad") else []
    said += [f"the {given['writes']} writes into what it gets"] if given.get("writes") else []
    said += [f"{n}={given[n]:g}" for n in ("rtol", "atol") if n in given]
    x, *more = given["names"]
    what = " + ".join([f"2 · {x}", *more])
    return f"{name} of {what} and a session, on the cases {cases}" + "".join(
        f"; {one}" for one in said
    )


compared.called = _called_compared

# ------------------------------------------------------------------------------ names and shapes of others


@probe
def renamed(subject: Any, case: Case) -> dict[str, Any]:
    """Call it with weights by name: what it makes, how that lies in memory, and what it changed."""
    weights = case.args[0]
    before = {name: clone(x) for name, x in weights.items()}
    result = subject(*case.args, **case.kwargs)
    if not isinstance(result, dict):
        return {"returns a": type(result).__name__}
    tensors = {name: x for name, x in result.items() if isinstance(x, Tensor)}
    return {
        "names": sorted(map(str, result)),
        "tensors": {name: clone(x) for name, x in tensors.items()},
        "not contiguous": sorted(name for name, x in tensors.items() if not x.is_contiguous()),
        "record gradients": sorted(name for name, x in tensors.items() if x.requires_grad),
        "argument `weights` afterwards": if_changed(
            before, {name: clone(x) for name, x in weights.items()}
        ),
    }
