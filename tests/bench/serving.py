"""Requests a second of `course serve`: many at once against one at a time, in pairs in one run.

Two pairs are compared. In one process: the engine with 16 slots against chapter 25's `generate`, a request
after the other, with a cache in one piece. Over HTTP: two servers in processes of their own, one with 16
slots and one with a single slot, under the same closed loop of 32 clients. The requests are the same in
all: prompts of 5 to 60 tokens, answers of 16 to 48, by the course's own model in float32.
"""

import argparse
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from course_utils.reference.generation import CachedGPT2, generate
from course_utils.reference.pretrained import course_model, course_tokenizer
from course_utils.reference.serving_engine import Engine, GenerationRequest
from course_utils.reference.serving_load import closed_loop
from tests.support.pairs import HEADER, compare

TEXT = "def read(path, encoding=None):\n    with open(path, encoding=encoding) as file:\n        return file.read()\n\n\n"
CLIENTS = 32


def requests(number: int) -> list[GenerationRequest]:
    rng, tokenizer = random.Random(0), course_tokenizer()
    ids = tokenizer.encode(TEXT * 3)
    return [
        GenerationRequest(
            tuple(ids[: rng.randint(5, 60)]), rng.randint(16, 48), rng.choice((0.0, 0.8)), seed=i
        )
        for i in range(number)
    ]


def in_one_process(asked: list[GenerationRequest], pairs: int) -> str:
    model = course_model()

    def one_by_one() -> None:
        for r in asked:
            generate(
                CachedGPT2(model),
                torch.tensor([r.prompt]),
                r.max_tokens,
                temperature=r.temperature,
                generator=torch.Generator().manual_seed(r.seed or 0),
            )

    def together() -> None:
        engine = Engine(model, slots=16, n_blocks=256)
        for i, r in enumerate(asked):
            engine.add(i, r)
        while not engine.idle:
            engine.step()

    return str(compare(one_by_one, together, pairs, warm_up=1))


@contextmanager
def served(slots: int) -> Iterator[str]:
    """The address of a server with so many slots."""
    command = [sys.executable, "-m", "course_utils.cli", "serve", "--port", "0", "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--slots", str(slots)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+?:\d+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def over_http(asked: list[GenerationRequest], pairs: int) -> str:
    bodies = [
        {
            "prompt": list(r.prompt),
            "max_tokens": r.max_tokens,
            "temperature": r.temperature,
            "seed": r.seed,
        }
        for r in asked
    ]

    def crowd(url: str) -> None:
        replies = closed_loop(url, bodies, CLIENTS)
        assert all(reply.finish for reply in replies)

    with served(1) as narrow, served(16) as wide:
        return str(compare(lambda: crowd(narrow), lambda: crowd(wide), pairs, warm_up=1))


def main(number: int, pairs: int) -> None:
    torch.set_num_threads(1)
    asked = requests(number)
    print(f"{number} requests, {sum(r.max_tokens for r in asked)} tokens at most, {pairs} pairs")
    print(f"{'':28}{HEADER.replace('ours ', 'alone').replace('their', ' many')}")
    print(f"{'generate, engine':28}{in_one_process(asked, pairs)}", flush=True)
    print(f"{'server of 1 slot, of 16':28}{over_http(asked, pairs)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=7)
    given = parser.parse_args()
    main(given.requests, given.pairs)
