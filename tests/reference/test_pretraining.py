"""The training script: its parts against torch's own; whole runs that are split, killed, resumed, refused."""

import json
import re
import signal
from dataclasses import fields

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_utils.meters import measure
from course_utils.reference import pretraining
from course_utils.reference.gpt2 import CONFIGS, GPT2, next_token_loss
from course_utils.reference.pretraining import (
    Settings,
    arguments,
    autocast,
    check,
    cosine_schedule,
    estimate_loss,
    final_lr,
    flops_per_token,
    get_batch,
    library_text,
    matmul_rate,
    micro_batches,
    pretrain,
    training_step,
)
from tests.training_script import script

SMALL = ["--model", "bytes-small", "--steps", "8", "--batch", "8", "--context", "16"]
SMALL += ["--warmup", "3", "--log-every", "1", "--eval-every", "4", "--eval-batches", "2"]
SMALL += ["--text-bytes", "100000"]
start, run, run_forked = script(pretraining.__name__, *SMALL)


def losses_in(output):
    """Loss by step."""
    return {int(n): float(x) for n, x in re.findall(r"step +(\d+)  loss ([\d.]+)", output)}


def same(one, two):
    """Are two checkpoints' models equal bit for bit?"""
    one, two = (torch.load(path, weights_only=True)["model"] for path in (one, two))
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# ------------------------------------------------------------------------------ whole runs


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process, never stopped: what it printed and its log."""
    file = tmp_path_factory.mktemp("alone") / "log.jsonl"
    return run("--strategy", "none", "--log", str(file)), file


@pytest.mark.parametrize(
    ("by", "strategy", "processes", "options"),
    [
        (run, "ddp", 2, []),
        (run, "fsdp", None, []),
        (run_forked, "fsdp", 2, []),
        (run_forked, "ddp", 1, []),
        (run_forked, "ddp", 2, ["--micro-batch", "2"]),
        (run_forked, "fsdp", 2, ["--micro-batch", "2"]),
    ],
    ids=["torchrun-ddp-2", "python-fsdp-1", "fork-fsdp-2", "fork-ddp-1", "ddp-micro", "fsdp-micro"],
)
def test_the_losses_are_those_of_one_process(alone, by, strategy, processes, options):
    one = losses_in(alone[0])
    many = losses_in(by("--strategy", strategy, *options, processes=processes))
    assert many.keys() == one.keys() == set(range(1, 9))
    assert all(abs(one[step] - many[step]) <= 2e-4 for step in one)


def test_any_strategy_goes_on_from_the_file_of_another(tmp_path):
    rising = ("--warmup", "8")  # a learning rate that does not depend on the number of steps
    one = losses_in(run_forked(*rising))
    file = (*rising, "--save", str(tmp_path / "run.pt"))
    run_forked("--strategy", "ddp", "--steps", "3", *file, processes=2)
    run_forked("--strategy", "fsdp", "--steps", "6", *file, processes=2)
    output = run_forked("--strategy", "none", *file)
    assert "from step 6" in output and losses_in(output).keys() == {7, 8}
    assert losses_in(output)[8] == pytest.approx(one[8], abs=2e-4)
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    assert saved["step"] == 8
    assert saved["model"].keys() == GPT2(CONFIGS["bytes-small"]).state_dict().keys()


def test_resumed_is_bit_for_bit_the_same_as_never_stopped(tmp_path):
    whole, halves = (("--warmup", "8", "--save", str(tmp_path / name)) for name in ("1.pt", "2.pt"))
    run_forked(*whole)
    run_forked(*halves, "--steps", "5")
    run_forked(*halves)
    assert same(tmp_path / "1.pt", tmp_path / "2.pt")


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
    assert same(whole, file)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.pt", "whole.pt"]


def test_the_log(alone):
    output, file = alone
    reports = [json.loads(line) for line in file.read_text().splitlines()]
    assert [report["step"] for report in reports] == list(range(1, 9))
    assert [r["step"] for r in reports if r["validation"] is not None] == [4, 8]
    assert all(r["tokens_per_second"] > 0 and r["mfu"] > 0 for r in reports)
    assert "tokens/s  MFU" in output


@pytest.fixture
def world_of_one():
    """A process group of this process alone, for runs that need no process of their own."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def quick(**changed):
    given = {"eval_every": 100, "log_every": 100, "eval_batches": 1, "warmup": 1} | changed
    return Settings(model="bytes-small", batch=4, context=16, text_bytes=20_000, **given)


def reports_of(settings):
    found = []
    pretrain(settings, found.append)
    return found


def test_a_run_that_turns_nan_stops_and_leaves_the_good_file(world_of_one, tmp_path):
    file, log = tmp_path / "run.pt", tmp_path / "log.jsonl"
    reports_of(quick(steps=3, save=str(file)))
    good = file.read_bytes()
    for every in ({"save_every": 6}, {"save_every": 100, "log_every": 6}):
        broken = quick(steps=12, lr=1e30, save=str(file), log=str(log), **every)
        with pytest.raises(FloatingPointError, match=r"step 6: loss nan.*nothing was saved"):
            pretrain(broken, pytest.fail)
        assert file.read_bytes() == good
        assert not log.exists()


def test_the_command_then_fails_in_one_line(tmp_path):
    process = start("--lr", "1e30", "--save", str(tmp_path / "run.pt"))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.fullmatch(r"course train: step \d: loss .*nothing was saved.*\n", errors), errors
    assert not list(tmp_path.iterdir())


def test_evaluations_do_not_wait_for_a_report(world_of_one):
    found = reports_of(quick(steps=13, eval_every=3, log_every=5))
    assert [r.step for r in found] == [3, 5, 6, 9, 10, 12, 13]
    assert [r.step for r in found if r.validation is not None] == [3, 6, 9, 12, 13]


@pytest.mark.parametrize("name", ["save", "log"])
def test_where_nothing_can_be_written_no_step_is_taken(world_of_one, tmp_path, name):
    for path in (tmp_path / "nowhere" / "run", tmp_path):
        with pytest.raises(ValueError, match=f"{path} cannot be written: "):
            pretrain(quick(**{name: str(path)}), pytest.fail)
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------ its parts


def test_ranks_share_a_batch_without_overlap():
    text = library_text(1000)
    whole, after = get_batch(text, 6, 10, 0, 3, 0, 1)
    assert torch.equal(whole[:, 1:], after[:, :-1])
    for world_size in (2, 3):
        parts = [get_batch(text, 6, 10, 0, 3, r, world_size)[0] for r in range(world_size)]
        assert torch.equal(torch.stack(parts, 1).flatten(0, 1), whole)
    assert not torch.equal(get_batch(text, 6, 10, 0, 4, 0, 1)[0], whole)
    assert not torch.equal(get_batch(text, 6, 10, 1, 3, 0, 1)[0], whole)


def test_micro_batches_give_the_gradient_and_the_loss_of_the_whole():
    text, found = library_text(20_000), []
    precision = autocast("float32", torch.device("cpu"))
    for size in (8, 3, 1):
        torch.manual_seed(0)
        model = GPT2(CONFIGS["bytes"])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        batches = micro_batches(*get_batch(text, 8, 16, 0, 0, 0, 1), size)
        estimate = estimate_loss(model, batches, precision)
        loss, norm = training_step(model, optimizer, batches, precision, 1.0)
        assert norm > 1 and len(batches) == -(-8 // size)
        torch.testing.assert_close(estimate, loss)
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
        _, norm = training_step(model, optimizer, [(ids, ids)] * 2, precision, clip)
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


def test_the_rate_is_that_of_the_fastest_product(monkeypatch):
    """On a clock that shows these seconds: products of 4 s and of 2 s, and then no time is left."""
    seconds = iter([0.0, 1.0, 1.0, 5.0, 6.0, 7.0, 9.0, 10.0])
    monkeypatch.setattr(pretraining.time, "perf_counter", lambda: next(seconds))
    rate = matmul_rate(torch.device("cpu"), "float32", seconds=10.0)
    assert rate == 2 * 1024**3 / 2.0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": "gpt3"}, "no model 'gpt3'; there are: gpt2"),
        ({"model": "tiny"}, "no model 'tiny'"),
        ({"batch": 7}, "7 sequences cannot be split over 2"),
        ({"strategy": "none"}, "2 processes with --strategy none"),
        ({"strategy": "tensor"}, "the strategy is none, ddp or fsdp; came 'tensor'"),
        ({"precision": "float8"}, "came 'float8'"),
        ({"context": 129}, "context 129: the model has 128"),
        ({"context": -1}, "context -1"),
        ({"steps": 0}, "--steps is 0: 1 is the least"),
        ({"steps": -5}, "--steps is -5"),
        ({"batch": 0}, "--batch is 0"),
        ({"micro_batch": 0}, "--micro-batch is 0"),
        ({"eval_every": 0}, "--eval-every is 0"),
        ({"eval_batches": 0}, "--eval-batches is 0"),
        ({"log_every": 0}, "--log-every is 0"),
        ({"save_every": 0}, "--save-every is 0"),
        ({"warmup": -1}, "--warmup is -1: 0 is the least"),
        ({"clip": float("nan")}, "--clip is nan"),
        ({"dropout": 1.0}, "--dropout is 1.0"),
        ({"lr": 0.0}, "--lr is 0.0"),
        ({"lr": 1e-5, "min_lr": 3e-4}, "--lr is 1e-05 and --min-lr 0.0003"),
        ({"lr": float("nan")}, "--lr is nan"),
        ({"text_bytes": 1280}, "--text-bytes 1280 holds out 128: 129 is the least"),
    ],
)
def test_settings_that_cannot_be_run(settings, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        check(Settings(**settings), world_size=2)


def test_settings_at_their_borders_can_be_run(world_of_one):
    """One step of the least of everything, from the shortest text; the whole of a long warm-up."""
    check(Settings(text_bytes=1290), world_size=2)
    least = {"micro_batch": 1, "warmup": 0, "clip": 0.0, "weight_decay": 0.0, "min_lr": 0.0}
    [report] = reports_of(quick(steps=1, log_every=1, **least))
    assert report.lr == Settings.lr
    assert final_lr(Settings(lr=1e-5)) == pytest.approx(1e-6)
    [report] = reports_of(quick(steps=2, lr=1e-5, warmup=2, log_every=2))
    assert report.lr == 1e-5


def test_help_gives_each_setting_its_meaning_and_default(capsys):
    with pytest.raises(SystemExit):
        arguments(["--help"])
    said = re.sub(r"-\s+", "-", " ".join(capsys.readouterr().out.split()))
    for one in fields(Settings):
        default = f" (default: {one.default})" if one.default not in (None, "") else ""
        meaning = re.sub(r"-\s+", "-", one.metadata["meaning"])
        assert re.search(
            rf"--{one.name.replace('_', '-')} \w+ {re.escape(meaning + default)}", said
        )
    assert arguments([]) == Settings()
    assert arguments(["--min-lr", "0", "--eval-every", "3"]) == Settings(min_lr=0.0, eval_every=3)
