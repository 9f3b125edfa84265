"""A job of several ranks, each with a loader that has a worker, that is killed in an epoch and goes on.

    python -m tests.support.killed_loader FOLDER RANKS SEED

Every rank writes a line about each batch that it used; rank 0 saves the sampler's state after every
third step. The job is killed at a random step, the ranks one after the other, and goes on from the
state. Another job is never disturbed. Prints a report in JSON.
"""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from course_utils.reference.data import ResumableSampler

LENGTH, BATCH, EPOCHS = 61, 3, 3


def rank_of_job(folder: Path, rank: int, ranks: int, barrier: Any, last: int | None) -> None:
    """Use a rank's batches from wherever the saved state says to the end of the last epoch.

    last: a number of batches after which it waits to be killed.
    """
    torch.set_num_threads(1)
    sampler = ResumableSampler(LENGTH, rank=rank, world_size=ranks, seed=5)
    state = folder / "state.json"
    if state.exists():
        sampler.load_state_dict(json.loads(state.read_text()))
    barrier.wait()
    items = torch.arange(LENGTH) ** 2
    loader = DataLoader(
        items, BATCH, sampler=sampler, num_workers=1, multiprocessing_context="fork"
    )
    done = 0
    with (folder / f"{rank}.log").open("a") as log:
        for epoch in range(sampler.epoch, EPOCHS):
            sampler.set_epoch(epoch)
            for step, batch in enumerate(loader, start=1):
                sampler.advance(len(batch))
                log.write(f"{epoch} {sampler.position} {batch.tolist()}\n")
                log.flush()
                barrier.wait()
                if rank == 0 and step % 3 == 0:
                    state.with_suffix(".new").write_text(json.dumps(sampler.state_dict()))
                    state.with_suffix(".new").rename(state)
                done += 1
                if done == last:
                    time.sleep(600)


def used(folder: Path, rank: int) -> list[str]:
    """The lines of a rank."""
    log = folder / f"{rank}.log"
    return log.read_text().splitlines() if log.exists() else []


def job(folder: Path, ranks: int, kill_after: int | None = None) -> None:
    """All ranks to their end, or until rank 0 has used so many batches."""
    folder.mkdir(exist_ok=True)
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(ranks)
    last = kill_after and kill_after + 2
    given = [(folder, rank, ranks, barrier, last) for rank in range(ranks)]
    processes = [context.Process(target=rank_of_job, args=one) for one in given]
    for process in processes:
        process.start()
    while kill_after and len(used(folder, 0)) < kill_after:
        time.sleep(0.001)
    for process in processes if kill_after else []:
        os.kill(process.pid, signal.SIGKILL)
    for process in processes:
        process.join()


def main(folder: Path, ranks: int, seed: int) -> None:
    """Kill it once, go on, and compare with the job that nobody disturbed."""
    steps = -(-LENGTH // (BATCH * ranks))
    kill_after = random.Random(seed).randrange(4, 2 * steps)
    killed, whole = folder / "killed", folder / "whole"
    job(killed, ranks, kill_after)
    state = json.loads((killed / "state.json").read_text())
    before = [used(killed, rank) for rank in range(ranks)]
    job(killed, ranks)
    job(whole, ranks)
    equal = []
    for rank in range(ranks):
        undisturbed = used(whole, rank)
        rest = used(killed, rank)[len(before[rank]) :]
        saved = len(undisturbed) - len(rest)
        equal.append(before[rank] == undisturbed[: len(before[rank])])
        equal.append(rest == undisturbed[saved:] and saved <= len(before[rank]))
    report = {
        "steps before the kill": len(before[0]),
        "state": state,
        "steps": EPOCHS * steps,
        "steps without a kill": len(used(whole, 0)),
        "equal": all(equal),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
