"""Probes of the training loop: epochs, early stopping, files, generators and runs that go on elsewhere."""

import os
import random
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir, contextmanager, nullcontext
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.shown import shown

# ------------------------------------------------------------------------------ models


class Noise(nn.Module):
    """In train mode it adds what Python's, NumPy's and torch's generators draw."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        drawn = random.gauss(0, 0.1) + np.random.standard_normal() * 0.1
        return x + drawn + 0.1 * torch.randn(x.shape)


_MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)),
    "classifier": lambda: nn.Sequential(
        nn.Linear(2, 4),
        nn.Sequential(nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(4, 1),
        nn.Flatten(0),
    ),
    "noisy": lambda: nn.Sequential(Noise(), nn.Linear(2, 1), nn.Flatten(0)),
    "two labels": lambda: nn.Linear(2, 2),
    "three classes": lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
}
"""What a case may name; each takes 2 features."""


def _seeded(name: str, seed: int, dtype: torch.dtype = torch.float32) -> Any:
    """The model of this name with the parameters that belong to the seed; torch's own state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _MODELS[name]().to(dtype)


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _modes(module: nn.Module) -> dict[str, bool]:
    return {name or "itself": part.training for name, part in module.named_modules()}


def _loss(model: str) -> Callable[[Tensor, Tensor], Tensor]:
    if model == "three classes":
        return F.cross_entropy
    return lambda outputs, targets: F.binary_cross_entropy_with_logits(outputs, targets)


def _number(value: Any, dtype: torch.dtype) -> Any:
    """A float as a tensor, so that it is compared with the tolerance of what it was computed from."""
    return torch.tensor(value, dtype=dtype) if isinstance(value, float) else value


def _dtype(batches: Any) -> torch.dtype:
    """Of the inputs, and so of the model."""
    return batches[0][0].dtype if batches else torch.float32


def _seed_all_but_torch(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)


def _seed(seed: int) -> None:
    _seed_all_but_torch(seed)
    torch.default_generator.manual_seed(seed)


def _through_a_file(state: Any) -> Any:
    """A state as torch.load reads it with weights_only=True after torch.save."""
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ------------------------------------------------------------------------------ train_epoch


class _Token:
    """Lives as long as the graph that holds it."""


class _Mark(torch.autograd.Function):
    """The identity; its node in the graph holds a token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: _Token) -> Tensor:
        ctx.token = token
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None


class _WatchedLoss:
    """A mean loss that knows of how many earlier batches the graph is still there."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.loss, self.tokens, self.kept = loss, [], 0  # type: ignore[var-annotated]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.kept = max(self.kept, sum(token() is not None for token in self.tokens[:-1]))
        token = _Token()
        self.tokens.append(weakref.ref(token))
        marked: Tensor = _Mark.apply(self.loss(outputs, targets), token)  # type: ignore[no-untyped-call]
        return marked


_OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.5),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.05, weight_decay=0.1),
}


def _drawing_alike(batches: Any, seed: int) -> Iterator[Any]:
    """The batches, the generators seeded before the first: what checks the types of a call draws, too."""
    _seed_all_but_torch(seed)
    yield from batches


@probe
def epoch_trained(subject: Any, case: Case) -> dict[str, Any]:
    """Two epochs with one model, in eval mode at first, and one with another model in between.

    The case: the batches; model, seed, optimizer; weight: a linear model's own. Gradients of an
    earlier backward are there at the start. The batches come from an iterator.
    """
    (batches,), given = case.args, case.kwargs
    dtype = _dtype(batches)
    _seed_all_but_torch(given["seed"])
    model = _seeded(given["model"], given["seed"], dtype).eval()
    if "weight" in given:
        model[0].load_state_dict({"weight": given["weight"], "bias": torch.zeros(1)})
    optimizer = _OPTIMIZERS[given["optimizer"]](model.parameters())
    loss = _WatchedLoss(_loss(given["model"]))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    seen: dict[str, Any] = {}
    for epoch in (1, 2):
        mean = subject(model, _drawing_alike(batches, given["seed"] + epoch), optimizer, loss)
        seen[f"epoch {epoch}: mean loss"] = _number(mean, dtype)
        seen[f"epoch {epoch}: it is a float"] = isinstance(mean, float)
        seen[f"epoch {epoch}: the model afterwards"] = _state(model)
        seen[f"epoch {epoch}: in train mode afterwards"] = _modes(model)
        other = _seeded(given["model"], given["seed"] + 1, dtype)
        with torch.random.fork_rng(devices=[]):
            subject(other, batches[:1], _OPTIMIZERS["SGD"](other.parameters()), loss.loss)
    seen["graphs of earlier batches that are kept"] = loss.kept
    return seen


# ------------------------------------------------------------------------------ evaluate


@probe
def evaluated(subject: Any, case: Case) -> dict[str, Any]:
    """A model evaluated twice, on all batches and then on the first alone.

    The case: the batches; model, seed; eval: names of modules that are in eval mode before, all
    others are in train mode; raises: "model", "loss" or the iterator of "batches" raises an exception, or
    the answer itself, for "no batch".
    """
    (batches,), given = case.args, case.kwargs
    dtype = _dtype(batches)
    _seed_all_but_torch(given["seed"])
    model = _seeded(given["model"], given["seed"], dtype).train()
    for name in given.get("eval", ()):
        model.get_submodule(name).training = False
    recorded: list[bool] = []
    model.register_forward_hook(lambda *_: recorded.append(torch.is_grad_enabled()))
    loss = _loss(given["model"])
    if "raises" in given:
        return _evaluation_that_raises(subject, model, batches, given["raises"], loss)
    before = _state(model)
    seen: dict[str, Any] = {}
    for what, part in (("", iter(batches)), ("first batch alone: ", batches[:1])):
        mean, outputs, targets = subject(model, part, loss)
        seen[f"{what}mean loss"] = _number(mean, dtype)
        seen[f"{what}it is a float"] = isinstance(mean, float)
        seen[f"{what}outputs"], seen[f"{what}targets"] = outputs, targets
        seen[f"{what}outputs require grad"] = bool(getattr(outputs, "requires_grad", False))
        seen[f"{what}in train mode afterwards"] = _modes(model)
    seen["a graph was recorded"] = any(recorded)
    seen["parameters and buffers are as before"] = unchanged(before, _state(model))
    return seen


class _Refused(Exception):
    """Raised by the model or the loss of a case."""


def _broken_off(batches: Any) -> Iterator[Any]:
    """The first batch, and then an exception."""
    yield batches[0]
    raise _Refused


def _evaluation_that_raises(
    subject: Any, model: nn.Module, batches: Any, what: str, loss: Any
) -> dict[str, Any]:
    def refuse(*_: Any) -> Any:
        raise _Refused

    refused = ValueError if what == "no batch" else _Refused
    if what == "model":
        model.register_forward_hook(refuse)
    try:
        given = _broken_off(batches) if what == "batches" else iter(batches)
        subject(model, given, refuse if what == "loss" else loss)
        raised = False
    except refused:
        raised = True
    return {"it raises": raised, "in train mode afterwards": _modes(model)}


# ------------------------------------------------------------------------------ EarlyStopping


@probe
def stopping(subject: Any, case: Case) -> dict[str, Any]:
    """Build the class with the case's keyword arguments, and tell it the losses, one an epoch.

    Each positional argument is a loss, "reload" (go on with another object that has loaded the
    state, through a file) or "restore" (load the best weights into another model, which then trains on).
    then: arguments of that other object which differ. The weights of the
    model are the number of the epoch, and change in place after each. Another object is told other
    losses in between; one whose state was taken is told of better epochs at the end.
    """
    model, other = _seeded("classifier", 0), _seeded("classifier", 1)
    given = {name: value for name, value in case.kwargs.items() if name != "then"}
    stopper, beside = subject(**given), subject(patience=2)
    seen: dict[str, Any] = {
        "best at first": stopper.best,
        "best_epoch at first": stopper.best_epoch,
    }
    epoch, given_states = 0, []
    for loss in case.args:
        if loss == "reload":
            state = _through_a_file(stopper.state_dict())
            given_states.append((state, _through_a_file(state), stopper.state_dict(), stopper))
            stopper = subject(**given | case.kwargs.get("then", {}))
            stopper.load_state_dict(state)
            continue
        if loss == "restore":
            result = stopper.restore(other)
            seen[f"before epoch {epoch}: weights that restore loads"] = _state(other)
            seen[f"before epoch {epoch}: restore returns"] = result
            _fill(other, -2.0)
            continue
        _fill(model, epoch)
        seen[f"epoch {epoch}: update returns"] = stopper.update(loss, model)
        _fill(model, -1.0)
        beside.update(float(-epoch), other)
        seen[f"epoch {epoch}: best"] = stopper.best
        seen[f"epoch {epoch}: best_epoch"] = stopper.best_epoch
        epoch += 1
    for number, (loaded, copied, live, left) in enumerate(given_states, start=1):
        left.update(-100.0, model)
        seen[f"reload {number}: the state that was loaded is as it was"] = unchanged(copied, loaded)
        seen[f"reload {number}: the state that was taken is as it was"] = unchanged(
            copied, _through_a_file(live)
        )
    return seen


def _fill(model: nn.Module, value: float) -> None:
    """Set every parameter and buffer to the value, in place."""
    with torch.no_grad():
        for tensor in model.state_dict(keep_vars=True).values():
            tensor.fill_(value)


def _called_stopping(name: str, case: Case) -> str:
    given = {name: value for name, value in case.kwargs.items() if name != "then"}
    settings = ", ".join(f"{key}={shown(value)}" for key, value in given.items())
    then = "".join(f", {k}={shown(v)} after it" for k, v in case.kwargs.get("then", {}).items())
    told = ", ".join(loss if isinstance(loss, str) else shown(loss) for loss in case.args)
    return f"{name}({settings}), updates: {told}{then}"


stopping.called = _called_stopping

# ------------------------------------------------------------------------------ files


class _Interrupting:
    """Whoever pickles it is interrupted."""

    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


@probe
def written(subject: Any, case: Case) -> dict[str, Any]:
    """Save a state and load it again, in a folder of its own.

    The case: the state, and what is special: old (a file of that name exists), text (the path is a
    str), unpicklable (the state holds what torch.save refuses), interrupted (it holds what raises
    KeyboardInterrupt), folder (the path is a folder),
    bare (the path is its name alone, in the folder at hand), object (no save: the file holds a
    pickled Fraction), map_location.
    """
    save, load = subject.values()
    given = dict(case.kwargs)
    place = Path(tempfile.mkdtemp(prefix="course-disk-"))
    path = place / "run.pt"
    try:
        if given.get("object"):
            torch.save({"half": Fraction(1, 2)}, path)
            return {"loading an object raises": _raised(lambda: load(path))}
        with chdir(place) if given.get("bare") else nullcontext():
            return _saved_and_loaded(save, load, path, given)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _saved_and_loaded(save: Any, load: Any, path: Path, given: dict[str, Any]) -> dict[str, Any]:
    seen = _saving(save, path, given)
    more = {"map_location": given["map_location"]} if "map_location" in given else {}
    if path.is_file():
        seen["loaded"] = load(_named(path, given), **more)
    elif not path.exists():
        seen["loading raises"] = _raised(lambda: load(path))
    return seen


def _named(path: Path, given: dict[str, Any]) -> Path | str:
    """The path as the case gives it."""
    if given.get("bare"):
        return path.name
    return str(path) if given.get("text") else path


def _saving(save: Any, path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """What is seen of writing the state."""
    if given.get("folder"):
        path.mkdir()
    if given.get("old"):
        torch.save({"old": 1}, path)
    state = given["state"] | ({"refused": lambda: None} if given.get("unpicklable") else {})
    state |= {"refused": _Interrupting()} if given.get("interrupted") else {}
    seen: dict[str, Any] = {}
    with _watched(path) as noted:
        if given.get("interrupted"):
            seen["saving raises"] = _raised(lambda: save(state, path), KeyboardInterrupt)
        elif given.get("unpicklable") or given.get("folder"):
            seen["saving raises"] = _raised(lambda: save(state, path)) is not None
        else:
            seen["save returns"] = save(state, _named(path, given))
            seen |= _durable(noted)
            seen["files that stay open"] = sum(map(_open, noted["descriptors"]))
    seen["files afterwards"] = tuple(
        name if name == path.name else "one of another name"
        for name in sorted(os.listdir(path.parent))
    )
    if given.get("old"):
        seen["a whole file of that name at every step"] = all(noted["whole"])
        seen["the file of before is not written into"] = noted["kept"]
    return seen


def _durable(noted: dict[str, Any]) -> dict[str, Any]:
    """Was the content made durable before it was moved, and the folder after?"""
    moves = [i for i, event in enumerate(noted["events"]) if event[0] == "move"]
    if not moves:
        return {"moved to its name in one step": False}
    _, inode, size, beside = noted["events"][moves[-1]]
    before, after = noted["events"][: moves[-1]], noted["events"][moves[-1] + 1 :]
    return {
        "moved to its name in one step": True,
        "written in the same folder": beside,
        "fsync of the whole content before the move": ("fsync", inode, size, False) in before,
        "fsync of the folder after the move": ("fsync", noted["folder"], 0, True) in after,
    }


def _open(descriptor: tuple[int, int]) -> bool:
    """Is the file of this number and inode still open?"""
    number, inode = descriptor
    try:
        return os.fstat(number).st_ino == inode
    except OSError:
        return False


@contextmanager
def _watched(path: Path) -> Iterator[dict[str, Any]]:
    """Notes calls of fsync, moves to `path`, and whether a file there is whole after each."""
    replaces = path.is_file()
    noted: dict[str, Any] = {"events": [], "whole": [], "kept": True, "descriptors": set()}
    noted["folder"] = path.parent.stat().st_ino

    def whole() -> None:
        if replaces:
            noted["whole"].append(_raised(lambda: torch.load(path, weights_only=True)) is None)

    def synced(call: Any) -> Any:
        def fsync(file: Any) -> None:
            call(file)
            found = os.fstat(file if isinstance(file, int) else file.fileno())
            noted["descriptors"].add(
                (file if isinstance(file, int) else file.fileno(), found.st_ino)
            )
            folder = stat.S_ISDIR(found.st_mode)
            size = 0 if folder else found.st_size
            noted["events"].append(("fsync", found.st_ino, size, folder))
            whole()

        return fsync

    def moved(call: Any) -> Any:
        def move(source: Any, target: Any, **more: Any) -> None:
            found = os.stat(source)
            call(source, target, **more)
            if os.path.realpath(target) == os.path.realpath(path):
                beside = os.path.realpath(Path(source).parent) == os.path.realpath(path.parent)
                noted["events"].append(("move", found.st_ino, found.st_size, beside))
            whole()

        return move

    def removed(call: Any) -> Any:
        def remove(target: Any, **more: Any) -> None:
            call(target, **more)
            whole()

        return remove

    wrapped = {"fsync": synced, "fdatasync": synced, "replace": moved, "rename": moved}
    wrapped |= {"remove": removed, "unlink": removed}
    before = {name: getattr(os, name) for name in wrapped if hasattr(os, name)}
    content = path.read_bytes() if replaces else b""
    with path.open("rb") if replaces else nullcontext() as held:
        for name, original in before.items():
            setattr(os, name, wrapped[name](original))
        try:
            yield noted
        finally:
            for name, original in before.items():
                setattr(os, name, original)
        if held:
            noted["kept"] = held.read() == content


def _raised(action: Callable[[], Any], kind: type[BaseException] = Exception) -> str | None:
    """The name of the exception of this kind, None without one."""
    try:
        action()
    except kind as error:
        return type(error).__name__
    return None


def _called_written(name: str, case: Case) -> str:
    given = case.kwargs
    if given.get("object"):
        return "load_checkpoint(path) of a file with a pickled Fraction"
    where = "str" if given.get("text") else "Path"
    where = "bare name, 'run.pt'" if given.get("bare") else where
    text = f"save_checkpoint({shown(given['state'])}, path) with a {where}"
    text += ", over a file of before" * bool(given.get("old"))
    text += ", the state also holds a lambda" * bool(given.get("unpicklable"))
    text += ", interrupted by KeyboardInterrupt" * bool(given.get("interrupted"))
    text += ", path is a folder" * bool(given.get("folder"))
    if "map_location" in given:
        text += f"; load_checkpoint(path, map_location={given['map_location']!r})"
    return text


written.called = _called_written

# ------------------------------------------------------------------------------ generators


class _TwoGPUs:
    """Stands in for torch.cuda's generators: two GPUs, each with a counter for a state."""

    def __init__(self) -> None:
        self.states = [3, 5]

    def get(self, device: Any = 0) -> Tensor:
        return torch.tensor([self.states[_index(device)]], dtype=torch.uint8)

    def set(self, state: Tensor, device: Any = 0) -> None:
        self.states[_index(device)] = int(state[0])

    def get_all(self) -> list[Tensor]:
        return [self.get(0), self.get(1)]

    def set_all(self, states: Iterable[Tensor]) -> None:
        for device, state in enumerate(states):
            self.set(state, device)

    def draw(self) -> tuple[int, ...]:
        self.states = [state + 1 for state in self.states]
        return tuple(self.states)


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    return torch.device(device).index or 0


def _with(gpus: _TwoGPUs | None) -> Any:
    """In the block, torch.cuda shows two GPUs' generators; or no GPU."""
    shown: dict[str, Any] = {
        "is_available": lambda: gpus is not None,
        "device_count": lambda: 2 if gpus else 0,
    }
    if gpus:
        shown |= {"get_rng_state": gpus.get, "get_rng_state_all": gpus.get_all}
        shown |= {"set_rng_state": gpus.set, "set_rng_state_all": gpus.set_all}
    return mock.patch.multiple(torch.cuda, **shown)


@probe
def generators(subject: Any, case: Case) -> dict[str, Any]:
    """Take the state of seeded generators, draw, put the state back, twice, and draw the same.

    The case: seed; before: how many numbers are drawn before, of each kind; gpus: two GPUs are
    simulated. The state goes through a file, and is written only after the first draws.
    """
    take, put_back = subject.values()
    given = case.kwargs
    gpus = _TwoGPUs() if given.get("gpus") else None
    with _with(gpus), torch.random.fork_rng(devices=[]):
        _seed(given["seed"])
        for _ in range(given["before"]):
            _drawn(gpus)
        before = _standing()
        state = take()
        seen: dict[str, Any] = {"the generators are as before": unchanged(before, _standing())}
        seen["drawn after rng_state"] = _drawn(gpus)
        loaded = _through_a_file(state)
        kept = _through_a_file(state)
        for again in ("drawn after set_rng_state", "drawn after it was called again"):
            _seed(given["seed"] + 1)
            _drawn(gpus)
            seen["set_rng_state returns"] = put_back(loaded)
            seen[again] = _drawn(gpus)
        seen["the state is as it was"] = unchanged(kept, loaded)
    return seen


def _standing() -> Any:
    """Where the generators of Python, NumPy and torch stand."""
    of_numpy: Any = np.random.get_state()
    return random.getstate(), of_numpy[1].tolist(), of_numpy[2:], torch.get_rng_state()


def _drawn(gpus: _TwoGPUs | None) -> dict[str, Any]:
    """A few numbers of each generator: an odd number of normal ones, of which generators keep a second."""
    return {
        "random.gauss": random.gauss(0, 1),
        "random.random": random.random(),
        "np.random.standard_normal": float(np.random.standard_normal()),
        "np.random.rand": float(np.random.rand()),
        "torch.randn": torch.randn(3),
        "torch.randperm": torch.randperm(5),
        "on GPUs": gpus.draw() if gpus else (),
    }


def _called_generators(name: str, case: Case) -> str:
    given = case.kwargs
    gpus = ", two GPUs" if given.get("gpus") else ""
    times = given["before"]
    return f"all generators seeded with {given['seed']}, {times} draws of each{gpus}; rng_state()"


generators.called = _called_generators

# ------------------------------------------------------------------------------ a run

_SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "constant": lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0),
    "step": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9),
}


def _built(subject: Any, given: dict[str, Any], seed: int) -> Any:
    model = _seeded(given["model"], seed, given["x"].dtype)
    if "weight" in given:
        model[0].load_state_dict({"weight": given["weight"], "bias": torch.zeros(1)})
    optimizer = _OPTIMIZERS[given["optimizer"]](model.parameters())
    return subject(
        model,
        optimizer,
        _SCHEDULERS[given["scheduler"]](optimizer),
        torch.amp.GradScaler("cpu", **given["scaler"]),
        (given["x"], given["y"]),
        batch_size=given["batch_size"],
        loss_fn=_loss(given["model"]),
        **({"seed": given["order"]} if "order" in given else {}),
    )


@probe
def resumed(subject: Any, case: Case) -> dict[str, Any]:
    """A run of some steps, its state, and more steps; then another run that goes on from that state.

    The case: `steps` before and after; model, optimizer, scheduler, scaler's settings, x, y,
    batch_size, order (the run's seed). The state goes through a file after the first run has ended. The
    other run starts with other weights, and all generators stand elsewhere.
    """
    with torch.random.fork_rng(devices=[]):
        return _resumed(subject, case.kwargs)


def _resumed(subject: Any, given: dict[str, Any]) -> dict[str, Any]:
    (before, after), dtype = given["steps"], given["x"].dtype
    _seed(1)
    run = _built(subject, given, 1)
    run.model.eval()
    seen: dict[str, Any] = {"where it begins": (run.epoch, run.batch)}
    seen["losses before"] = [_number(run.step(), dtype) for _ in range(before)]
    seen["in train mode"] = _modes(run.model)
    seen["where it is left"] = left = (run.epoch, run.batch)
    state = run.state_dict()
    run.model.eval()  # as an evaluation leaves it
    losses = [run.step() for _ in range(after)]
    seen["losses after"] = [_number(loss, dtype) for loss in losses]
    seen["losses are floats"] = all(isinstance(loss, float) for loss in losses)
    seen |= {f"{what} at the end": value for what, value in _ended(run).items()}
    loaded = _through_a_file(state)
    kept = _through_a_file(state)
    for time in ("goes on elsewhere", "goes on a second time"):
        other = _built(subject, given, 2)
        _seed(2)
        other.step()
        other.load_state_dict(loaded)
        where = (other.epoch, other.batch)
        again = [other.step() for _ in range(after)]
        seen[f"{time}: it begins where the first was left"] = unchanged(left, where)
        seen[f"{time}: its losses"] = [_number(loss, dtype) for loss in again]
        seen[f"{time}: bit for bit the losses of the first"] = unchanged(losses, again)
        end = _ended(other)
        for what, value in _ended(run).items():
            seen[f"{time}: {what} as of the first"] = unchanged(value, end[what])
    seen["the state that was loaded is as it was"] = unchanged(kept, loaded)
    return seen


def _ended(run: Any) -> dict[str, Any]:
    return {
        "model": _state(run.model),
        "learning rate": float(run.optimizer.param_groups[0]["lr"]),
        "scale": float(run.scaler.get_scale()),
        "place": (run.epoch, run.batch),
    }


def _called_trained(name: str, case: Case) -> str:
    given = case.kwargs
    sizes = [len(x) for x, _ in case.args[0]]
    text = f"{name} of {given['model']!r} on batches of sizes {sizes}"
    if "optimizer" in given:
        text += f", {given['optimizer']}"
    if given.get("eval"):
        text += f", {', '.join(given['eval'])} in eval mode before"
    text += ", in float64" * (_dtype(case.args[0]) is torch.float64)
    return text + f", the {given.get('raises')} raises" * (
        given.get("raises") in ("model", "loss", "batches")
    )


def _called_resumed(name: str, case: Case) -> str:
    given = case.kwargs
    before, after = given["steps"]
    rows, size = len(given["x"]), given["batch_size"]
    text = (
        f"{name} of {given['model']!r} with {given['optimizer']}, {given['scheduler']}, {rows} rows"
    )
    return f"{text} in batches of {size}; {before} steps, state_dict(), {after} more steps"


epoch_trained.called = _called_trained
evaluated.called = _called_trained
resumed.called = _called_resumed

__all__ = ["epoch_trained", "evaluated", "generators", "resumed", "stopping", "written"]
