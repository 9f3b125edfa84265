"""Chapter 12, the training loop: train, evaluate, choose, stop, save and go on.

Batches are pairs (inputs, targets). A target of a classifier with two classes is 0 or 1; 1 is the
positive class, the one that is looked for.
"""

import copy
import os
import random
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

# ------------------------------------------------------------------------------ metrics


def confusion_matrix(
    predicted: Int[Tensor, " N"], target: Int[Tensor, " N"], n_classes: int
) -> Int[Tensor, "classes classes"]:
    """A table of counts: counts[i, j] examples are of class i and were predicted as class j.

    predicted, target: a class of each example, from 0 to n_classes − 1; both of the same
    integer dtype, which may be any, and on the same device. The counts are int64, on that
    device. A class without examples has zeros. No Python loop over the examples: the
    number of operations does not grow with N.
    """
    pairs = target.long() * n_classes + predicted
    return torch.bincount(pairs, minlength=n_classes * n_classes).view(n_classes, n_classes)


def average_precision(scores: Float[Tensor, " N"], targets: Shaped[Tensor, " N"]) -> float:
    """Average precision of a ranking: Σ over the thresholds of (recall − recall before) · precision.

    targets: 1 for the positive class, else 0. The thresholds are the distinct scores,
    the highest first; a row is called positive if its score is at least the threshold,
    so rows of equal score are called together. Scores may be infinite; targets may be
    bool, integers or floats. A Python loop over the thresholds is allowed. Returns a
    float, computed in float64. Raises ValueError if no target is 1, or if a score is
    NaN. Source: scikit-learn's `average_precision_score`.
    """
    if scores.isnan().any():
        raise ValueError("a score is NaN, which has no place in a ranking")
    positive = targets == 1
    if not positive.any():
        raise ValueError("recall needs a row of the positive class; there is none")
    ranked, order = scores.sort(descending=True)
    hits = positive[order].double().cumsum(0)
    last = torch.ones_like(positive)  # is it the last row of its score?
    last[:-1] = ranked[1:] != ranked[:-1]
    called = torch.ones_like(hits).cumsum(0)[last]
    found = hits[last]
    gained = found.diff(prepend=found.new_zeros(1)) / hits[-1]
    return (gained * found / called).sum().item()


def best_threshold(
    scores: Float[Tensor, " N"],
    targets: Shaped[Tensor, " N"],
    miss: float,
    false_alarm: float = 1.0,
) -> float:
    """The threshold of least cost: miss · (positives below it) + false_alarm · (negatives at or above it).

    targets: 1 for the positive class, else 0. A row is called positive if its score is
    at least the threshold. The candidates are the scores, and inf, at which no row is
    called. Of several thresholds of equal cost the highest is returned, as a float.
    Without rows: inf. Costs are computed in float64; all prices in the checks are whole
    numbers, so no cost is rounded. Scores that are NaN are not checked.
    """
    ranked, order = scores.sort(descending=True)
    positive = targets[order] == 1
    missed = positive.sum() - positive.cumsum(0)
    alarms = (~positive).cumsum(0)
    cost = miss * missed.double() + false_alarm * alarms.double()
    cost[:-1][ranked[1:] == ranked[:-1]] = inf  # rows of equal score are called together
    nobody = miss * positive.sum().double()
    candidates = torch.cat([ranked.new_tensor([inf]), ranked])
    return candidates[torch.cat([nobody[None], cost]).argmin()].item()


# ------------------------------------------------------------------------------ the loop


def train_epoch(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimizer: Optimizer,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
) -> float:
    """Train on every batch once, one step for each. Returns the mean loss over all rows, a float.

    batches: any iterable of pairs (inputs, targets), gone through once; they may have
    different numbers of rows. loss_fn(outputs, targets): the mean over the rows of a
    batch. The result is made of the losses that were trained on, each computed before its
    step; every row weighs the same. The model is put into train mode and stays in it.
    Gradients from before the call have no effect. No graph of an earlier batch is kept.
    Raises ValueError if there is no batch (the mode is then not checked).
    """
    model.train()
    total, rows = 0.0, 0
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
        rows += len(x)
    if not rows:
        raise ValueError("no batch to train on")
    return total / rows


def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
) -> tuple[float, Tensor, Tensor]:
    """The mean loss over all rows, a float; then the outputs of all batches, concatenated; then the targets.

    batches: any iterable of pairs (inputs, targets), gone through once; they may have
    different numbers of rows. loss_fn(outputs, targets): the mean over the rows it is
    given. Every row weighs the same. The model runs in eval mode and records no graph.
    Afterwards each of its modules is in the mode it was in, even if an exception was
    raised. Raises ValueError if there is no batch.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            done = [(model(x), y) for x, y in batches]
            if not done:
                raise ValueError("no batch to evaluate")
            outputs, targets = (torch.cat(parts) for parts in zip(*done, strict=True))
            return loss_fn(outputs, targets).item(), outputs, targets
    finally:
        for module, mode in modes.items():
            module.training = mode


class EarlyStopping:
    """Says when to stop, and keeps the weights of the best epoch.

    An epoch is better if its loss is less than the best so far by more than min_delta:
    loss < best - min_delta. An epoch whose loss is NaN is never better. `best` is the loss
    of the best epoch, `best_epoch` its number, counted from 0; before there is one they
    are inf and None. Other attributes may have any names.
    """

    def __init__(self, patience: int, min_delta: float = 0.0) -> None:
        """patience: after so many epochs in a row that were not better, training should stop. Raises
        ValueError if it is below 1."""
        if patience < 1:
            raise ValueError(f"a patience of {patience} epochs: 1 is the least")
        self.patience, self.min_delta = patience, min_delta
        self.best: float = inf
        self.best_epoch: int | None = None
        self._epochs, self._waited = 0, 0
        self._weights: dict[str, Tensor] = {}

    def update(self, loss: float, model: nn.Module) -> bool:
        """Take note of an epoch. Returns True if training should stop, also when called again after it.

        If the epoch is better, the model's state_dict is copied, buffers included: later
        steps do not change the copy.
        """
        self._waited += 1
        if loss < self.best - self.min_delta:
            self.best, self.best_epoch, self._waited = loss, self._epochs, 0
            self._weights = copy.deepcopy(model.state_dict())
        self._epochs += 1
        return self._waited >= self.patience

    def restore(self, model: nn.Module) -> None:
        """Load the best epoch's weights into the model. Raises RuntimeError if there is none."""
        if self.best_epoch is None:
            raise RuntimeError("no epoch has been better than inf")
        model.load_state_dict(self._weights)

    def state_dict(self) -> dict[str, Any]:
        """What changes from epoch to epoch; another object can go on from it. torch.load reads it with
        weights_only=True. Later updates do not change it."""
        names = ("best", "best_epoch", "_epochs", "_waited", "_weights")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; patience and min_delta are the object's own. The state is not
        changed by later updates."""
        for name, value in state.items():
            setattr(self, name, value)


# ------------------------------------------------------------------------------ checkpoints


def save_checkpoint(state: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the state with torch.save so that at every moment `path` is a whole file, old or new.

    Without an old file there is none until the new one is whole. The file is written in the
    same folder under another name, best a fixed one (not checked): what a kill leaves
    there, the next save then overwrites. It is made durable (fsync), and moved to `path`
    in one step; then the folder is made durable, too. No file stays open. If something
    raises before the move is done, Ctrl-C included, what was written is removed, the old
    file stays as it was, and the exception goes on to the caller.
    """
    path = Path(path)
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_checkpoint(
    path: str | os.PathLike[str], map_location: str | torch.device = "cpu"
) -> dict[str, Any]:
    """The state in a file, its tensors on `map_location`; nothing but data is unpickled.

    Raises FileNotFoundError where there is none, and pickle.UnpicklingError for a file
    that holds other objects than tensors and plain values.
    """
    return torch.load(path, map_location=map_location, weights_only=True)


def rng_state() -> dict[str, Any]:
    """The states of the global generators: Python's, NumPy's, torch's on the CPU and on every GPU.

    It holds tensors and plain values only, so torch.load reads it with
    weights_only=True. No generator is changed. Later draws do not change it.
    """
    name, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Put the generators back: what is drawn next is what was drawn after `rng_state`.

    state: as `rng_state` returned it, or as torch.load read it onto the CPU. It is not
    changed. A state from a machine with another number of GPUs is not checked.
    """
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy(), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


class Run:
    """A training run that can be stopped after any step and continued by another object, bit for bit.

    Epoch e, from 0, visits the N rows in the order torch.randperm(N, generator=g), where
    g is a new torch.Generator seeded with seed + e, batch_size at a time; the last batch
    is what is left. `epoch` and `batch`, from 0, name the batch that the next step takes.
    """

    _parts = ("model", "optimizer", "scheduler", "scaler")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: LRScheduler,
        scaler: torch.amp.GradScaler,
        rows: tuple[Tensor, Tensor],
        batch_size: int,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        seed: int = 0,
    ) -> None:
        """rows: the N inputs and their targets. scaler: its `scale`, `step` and `update` are called in
        every step. loss_fn(outputs, targets): the mean over the rows of a batch."""
        self.model, self.optimizer, self.scheduler, self.scaler = (
            model,
            optimizer,
            scheduler,
            scaler,
        )
        self.x, self.y = rows
        self.batch_size, self.loss_fn, self.seed = batch_size, loss_fn, seed
        self.epoch = self.batch = 0

    def step(self) -> float:
        """Train on the next batch, in train mode. Returns its mean loss, unscaled, as a float. The
        scheduler steps after the optimizer, also where the scaler left the optimizer's step out."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        batches = torch.randperm(len(self.x), generator=generator).split(self.batch_size)
        rows = batches[self.batch]
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model(self.x[rows]), self.y[rows])
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.batch += 1
        if self.batch == len(batches):
            self.epoch, self.batch = self.epoch + 1, 0
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        """What a run built with the same arguments needs to go on: the states of model, optimizer,
        scheduler and scaler, the place in the data, and the global generators of Python, NumPy and
        torch. torch.load reads it with weights_only=True. Later steps do not change it."""
        states = {name: getattr(self, name).state_dict() for name in self._parts}
        place = {"epoch": self.epoch, "batch": self.batch, "rng": rng_state()}
        return copy.deepcopy(states | place)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the state of a run with the same arguments. Later steps do not change the state."""
        state = copy.deepcopy(state)
        for name in self._parts:
            getattr(self, name).load_state_dict(state[name])
        self.epoch, self.batch = state["epoch"], state["batch"]
        set_rng_state(state["rng"])
