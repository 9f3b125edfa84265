"""The training loop: its parts against torch's own, and whole runs that are split, killed, resumed."""

import json
import re
import signal

import pytest
import torch
from torch import nn

from course_utils.meters import measure
from course_utils.reference import pretraining
from course_utils.reference.gpt2 import CONFIGS, GPT2, next_token_loss
from course_utils.reference.pretraining import (
    Settings,
    autocast,
    check,
    cosine_schedule,
    flops_per_token,
    matmul_rate,
    micro_batches,
    training_step,
)
from course_utils.reference.train import library_text
from tests.training_script import script

SMALL = ["--steps", "8", "--batch", "8", "--context", "16", "--warmup", "3", "--log-every", "1"]
SMALL += ["--eval-every", "4", "--eval-batches", "2", "--text-bytes", "100000"]
start, run, run_forked = script(pretraining.__name__, *SMALL)


def losses_in(output):
    return {int(n): float(x) for n, x in re.findall(r"step +(\d+)  loss ([\d.]+)", output)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process, never stopped: what it printed and its log."""
    file = tmp_path_factory.mktemp("alone") / "log.jsonl"
    return run("--log", str(file)), file


@pytest.mark.parametrize(
    ("by", "strategy"), [(run, "ddp"), (run_forked, "fsdp")], ids=["ddp", "fsdp"]
)
def test_two_processes_and_micro_batches_compute_the_same(alone, by, strategy):
    one = losses_in(alone[0])
    two = losses_in(by("--strategy", strategy, "--micro-batch", "2", processes=2))
    assert one.keys() == two.keys() == set(range(1, 9))
    assert all(abs(one[step] - two[step]) < 3e-4 for step in one)


def test_killed_and_started_again_it_ends_bit_for_bit_the_same(tmp_path):
    whole, file = tmp_path / "whole.pt", tmp_path / "run.pt"
    losses = losses_in(run_forked("--dropout", "0.1", "--save", str(whole)))
    options = ("--dropout", "0.1", "--save", str(file), "--save-every", "2")
    process = start(*options)
    for line in process.stdout:
        if line.startswith("step     5"):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate(timeout=60)
    again = losses_in(run_forked(*options))
    assert max(again) == 8 and 2 < min(again) <= 6
    assert all(again[step] == losses[step] for step in again)
    one, two = (torch.load(path, weights_only=True) for path in (whole, file))
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.pt", "whole.pt"]


def test_the_log(alone):
    output, file = alone
    reports = [json.loads(line) for line in file.read_text().splitlines()]
    assert [report["step"] for report in reports] == list(range(1, 9))
    assert [r["step"] for r in reports if r["validation"] is not None] == [4, 8]
    assert all(r["tokens_per_second"] > 0 and r["mfu"] > 0 for r in reports)
    assert "tokens/s  MFU" in output


def test_micro_batches_give_the_gradient_of_the_whole():
    torch.manual_seed(0)
    text, found = library_text(20_000), []
    for micro_batch in (8, 3, 1):
        settings = Settings(batch=8, micro_batch=micro_batch)
        torch.manual_seed(0)
        model = GPT2(CONFIGS["bytes"])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        batches = list(micro_batches(text, settings, 16, 0, 0, 1))
        precision = autocast("float32", torch.device("cpu"))
        loss, norm = training_step(model, optimizer, batches, precision, 1.0, 1)
        assert norm > 1 and len(batches) == -(-8 // micro_batch)
        found.append((loss, norm, model.transformer.wte.weight.detach()))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_clipping_bounds_the_step():
    ids = torch.arange(97)[None]
    for clip in (0.5, 0.0):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(97, 8), nn.Linear(8, 97, bias=False))
        before = [p.detach().clone() for p in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        precision = autocast("float32", torch.device("cpu"))
        _, norm = training_step(model, optimizer, [(ids, ids)] * 2, precision, clip, 1)
        moved = [a.detach() - b for a, b in zip(model.parameters(), before, strict=True)]
        distance = torch.cat([m.flatten() for m in moved]).norm()
        expected = min(norm, torch.tensor(clip)) if clip else norm
        torch.testing.assert_close(distance, expected, rtol=1e-4, atol=0)


def test_the_schedule_is_torchs_own():
    steps, warmup, lr, low = 50, 7, 3.0, 0.5
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    line = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, warmup - 1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 1 - warmup, low)
    mine = [cosine_schedule(step, steps, warmup, lr, low) for step in range(steps)]
    for step in range(warmup):
        assert mine[step] == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        line.step()
    optimizer.param_groups[0]["lr"] = lr
    for step in range(warmup, steps):
        assert mine[step] == pytest.approx(optimizer.param_groups[0]["lr"])
        cosine.step()
    assert mine[-1] == pytest.approx(low) and mine[warmup - 1] == mine[warmup] == lr


@pytest.mark.parametrize("name", ["bytes", "tiny"])
def test_flops_are_those_that_are_counted(name):
    """The meter sees 2 L D T more: the fused attention's backward does q kᵀ once again."""
    config = CONFIGS[name]
    model, T = GPT2(config), config.n_positions
    ids = torch.randint(config.vocab_size, (2, T))
    with measure() as cost:
        next_token_loss(model(ids), ids).backward()
    again = 2 * config.n_layer * config.n_embd * T
    assert cost.flops == 2 * T * (flops_per_token(config, T) + again)


def test_the_rate_is_a_rate():
    assert matmul_rate(torch.device("cpu"), "float32", seconds=0.01) > 1e8


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": "gpt3"}, "no model 'gpt3'; there are: gpt2"),
        ({"batch": 7}, "7 sequences cannot be split over 2"),
        ({"model": "tiny"}, "97 ids; bytes need 256"),
        ({"strategy": "tensor"}, "the strategy is ddp or fsdp; came 'tensor'"),
        ({"precision": "float8"}, "came 'float8'"),
        ({"context": 129}, "context 129: the model has 128"),
    ],
)
def test_settings_that_cannot_be_run(settings, says):
    with pytest.raises(ValueError, match=says):
        check(Settings(**settings), world_size=2)
