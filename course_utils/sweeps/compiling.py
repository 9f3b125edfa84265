"""Chapter 15's sweep: a training step with and without `torch.compile`, and with an activation memory budget.

    python -m course_utils.sweeps.compiling

The step is forward and backward of the chapter's small GPT-2 (CONFIG). Each batch is run in turns, eager and
compiled, so that a busy moment meets both; times are CPU times of the process, which other processes disturb
least. Kernels are counted: in eager mode operations that compute or move data; compiled, calls of generated
kernels and of library functions in Inductor's code. Budgets need no compiler: they decide what is kept, and
the backend runs the graphs as they are.
"""

import os
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._inductor.utils import fresh_cache, run_fw_bw_and_get_code
from torch.utils.flop_counter import FlopCounterMode

from course_utils.meters import measure
from course_utils.reference.compiling import kept_for_backward, kernels_in
from course_utils.reference.gpt2 import GPT2, GPT2Config, next_token_loss
from course_utils.reference.profiling_and_compile import benchmark, median_interval
from course_utils.sweeps import save

CONFIG = GPT2Config(vocab_size=512, n_positions=128, n_embd=128, n_layer=4, n_head=4, dropout=0.0)
BATCHES = ((1, 16), (4, 128))
"""Sequences and tokens of each."""
BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.1, 0.0)
TURNS = 31


def setting(batch: int, length: int) -> tuple[GPT2, Callable[[], Tensor]]:
    """The model, and its loss on a batch of random tokens."""
    torch.manual_seed(0)
    model = GPT2(CONFIG)
    tokens = torch.randint(0, CONFIG.vocab_size, (batch, length + 1))
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return model, lambda: next_token_loss(model(ids), targets)


def cpu_seconds() -> float:
    """Of this process, and of the compilers that it has called."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _step(loss: Callable[[], Tensor]) -> None:
    loss().backward()


def calls_in(code: str) -> tuple[int, int]:
    """Calls of generated kernels, and of functions of libraries, in a piece of Inductor's code."""
    body = code[code.index("def call(") :]
    names = "|".join(kernels_in(code)) or "none"
    return len(re.findall(rf"^ +(?:{names})\(", body, re.M)), len(
        re.findall(r"(?:extern_kernels\.\w+|torch\.ops\.aten\.\w+[\w.]*)\(", body)
    )


def budget(loss: Callable[[], Tensor], model: GPT2, share: float | None) -> tuple[int, int]:
    """Bytes that are kept for backward, and FLOPs of the step; share None: without a compiler."""
    torch._dynamo.reset()
    compiled = loss if share is None else torch.compile(loss, backend="aot_eager_decomp_partition")
    with torch._functorch.config.patch(activation_memory_budget=1.0 if share is None else share):
        result, kept = kept_for_backward(compiled, model.parameters())
    with FlopCounterMode(display=False) as counter:  # while it is on nothing runs compiled
        loss()
        result.backward()
    return kept, counter.get_total_flops()


def main() -> None:
    """Make the table anew."""
    torch.set_num_threads(1)
    begun = time.process_time()
    found: dict[str, Any] = {"turns": TURNS, "steps": [], "budgets": []}
    for batch, length in BATCHES:
        model, loss = setting(batch, length)
        with measure() as cost:
            loss().backward()
        torch._dynamo.reset()
        compiled = torch.compile(loss)
        started = cpu_seconds()
        with fresh_cache(), torch._inductor.config.patch(compile_threads=1):
            _, code = run_fw_bw_and_get_code(compiled)
        compile_s = cpu_seconds() - started
        generated, library = (sum(n) for n in zip(*map(calls_in, code), strict=True))
        pairs = []
        for _ in range(TURNS):
            eager_s, compiled_s = (
                benchmark(partial(_step, f), warmup=1, repeats=1, clock=time.process_time)[0]
                for f in (loss, compiled)
            )
            pairs.append((eager_s, compiled_s))
        ratio = median_interval([a / b for a, b in pairs])
        row = {
            "batch": batch,
            "length": length,
            "eager_ms": round(1e3 * median_interval([a for a, _ in pairs])[0], 2),
            "compiled_ms": round(1e3 * median_interval([b for _, b in pairs])[0], 2),
            "ratio": [round(x, 3) for x in ratio],
            "compile_s": round(compile_s, 1),
            "eager_kernels": cost.kernels,
            "generated_kernels": generated,
            "library_calls": library,
            "distinct_kernels": sum(len(kernels_in(text)) for text in code),
        }
        found["steps"].append(row)
        print(f"{time.process_time() - begun:4.0f} s  {row}", flush=True)
    model, loss = setting(*BATCHES[-1])
    for share in (None, *BUDGETS):
        kept, flops = budget(loss, model, share)
        found["budgets"].append({"budget": share, "kept": kept, "flops": flops})
        print(f"{time.process_time() - begun:4.0f} s  {found['budgets'][-1]}", flush=True)
    save("compiling", time.process_time() - begun, found)


if __name__ == "__main__":
    main()
