"""A training run that is killed at random moments, again and again, and goes on each time.

    python -m tests.support.killed_run FOLDER KILLS SEED

Each life is a fork of one process that has torch loaded. It goes on from the checkpoint, saves after
every step, and is killed a random time after its first save. The last life, and a run that nobody
disturbed, then train equally far. Prints a report in JSON.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from course_utils.reference.training_loop import Run, load_checkpoint, save_checkpoint


def new_run() -> Run:
    torch.manual_seed(0)
    x = torch.randn(50, 4)
    layers = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1)
    model = nn.Sequential(*layers, nn.Flatten(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=7)
    loss = nn.BCEWithLogitsLoss()
    return Run(model, optimizer, scheduler, scaler, (x, (x[:, 0] > 0).float()), 8, loss)


def train(path: Path, steps: int, saved: Callable[[], object] = lambda: None) -> None:
    """Train until `steps` are done, from the checkpoint if there is one; save after every step."""
    run, losses = new_run(), []
    if path.exists():
        state = load_checkpoint(path)
        losses = state["losses"]
        run.load_state_dict(state["run"])
    while len(losses) < steps:
        losses.append(run.step())
        save_checkpoint({"losses": losses, "run": run.state_dict()}, path)
        saved()


def life(path: Path, steps: int) -> tuple[int, int]:
    """A child that trains: its number, and a descriptor that can be read once it has saved."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            train(path, steps, lambda: os.write(theirs, b"."))
        finally:
            os._exit(0)
    os.close(theirs)
    return child, ours


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    new_run()  # loads what an optimizer imports when it is made, before the first fork
    moments, inside, killed = random.Random(seed), 0, 0
    path, part = folder / "run.pt", folder / "run.pt.part"
    for _ in range(kills):
        child, first = life(path, 10**6)
        os.read(first, 1)
        time.sleep(moments.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        os.close(first)
        load_checkpoint(path)  # whole, or this raises
        inside += part.exists()
    steps = len(load_checkpoint(path)["losses"]) + 3
    for name in ("run.pt", "undisturbed.pt"):
        child, first = life(folder / name, steps)
        os.waitpid(child, 0)
        os.close(first)
    ends = [load_checkpoint(folder / name) for name in ("run.pt", "undisturbed.pt")]
    weights = [list(end["run"]["model"].values()) for end in ends]
    report = {
        "kills": killed,
        "inside a save": inside,
        "steps": steps,
        "losses equal": ends[0]["losses"] == ends[1]["losses"],
        "weights equal": all(map(torch.equal, *weights)),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
