"""The training script: its parts against torch's own; whole runs that are split, killed, resumed, refused."""

import json
import math
import re
import signal
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.run import get_args_parser

from course_utils.meters import measure
from course_utils.reference import pretraining
from course_utils.reference.checkpoints import CannotSave, read
from course_utils.reference.corpus import get_batch, library_text, micro_batches
from course_utils.reference.gpt2 import CONFIGS, GPT2, next_token_loss
from course_utils.reference.pretraining import (
    Report,
    autocast,
    cosine_schedule,
    duration,
    estimate_loss,
    flops_per_token,
    matmul_rate,
    pretrain,
    training_step,
)
from course_utils.reference.pretraining_settings import Settings, arguments, check, final_lr
from course_utils.reference.tokenization import Tokenizer
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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.best.pt", "run.pt"]
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
    kept = ["run.best.pt", "run.pt", "whole.best.pt", "whole.pt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


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
    return Settings("bytes-small", **{"batch": 4, "context": 16, "text_bytes": 20_000} | given)


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
        with pytest.raises(FloatingPointError, match=r"step 6: loss nan.*nothing more was saved"):
            pretrain(broken, pytest.fail)
        assert file.read_bytes() == good
        assert not log.exists()


def test_weights_that_the_last_update_broke_are_not_saved(world_of_one, tmp_path):
    """Loss and gradient of step 1 are finite, the weights after it are not."""
    file = tmp_path / "run.pt"
    broken = quick(steps=2, lr=1e39, warmup=0, clip=0.0, save=str(file), save_every=1)
    with pytest.raises(FloatingPointError, match=r"step 1: loss \d.*weights' norm (nan|inf)"):
        pretrain(broken, pytest.fail)
    assert not list(tmp_path.iterdir())


def test_a_held_out_loss_that_is_nan_stops_the_run_too(world_of_one, tmp_path, monkeypatch):
    monkeypatch.setattr(pretraining, "estimate_loss", lambda *_: torch.tensor(float("nan")))
    with pytest.raises(
        FloatingPointError, match=r"step 2: held-out loss nan.*nothing more was saved"
    ):
        reports_of(quick(steps=4, eval_every=2, save=str(tmp_path / "run.pt")))
    assert not list(tmp_path.iterdir())


def test_compile_compiles_the_model_once_and_in_place(world_of_one, monkeypatch):
    """Its names stay those of the bare model. (Compiling takes half a minute: not here.)"""
    calls = []
    monkeypatch.setattr(nn.Module, "compile", lambda module: calls.append(module))
    run = pretraining.PretrainingRun(quick(steps=1, compile=True))
    assert calls == [run.model]
    assert arguments(["--compile"]).compile and not arguments(["--no-compile"]).compile


def test_the_command_then_fails_in_one_line(tmp_path):
    process = start("--lr", "1e30", "--save", str(tmp_path / "run.pt"))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.fullmatch(r"course train: step \d: loss .*nothing more was saved.*\n", errors), errors
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


# ------------------------------------------------------------------------------ what it says


def said_by(capsys, settings):
    pretrain(settings, lambda _: None)
    return capsys.readouterr().out.splitlines()


def test_the_header_says_what_is_trained_and_what_is_not_as_it_was(world_of_one, tmp_path, capsys):
    settings = quick(steps=2, save=str(tmp_path / "run.pt"))
    header = said_by(capsys, settings)
    n = sum(p.numel() for p in GPT2(CONFIGS["bytes-small"]).parameters())
    assert f"{n:,} parameters" in header[0] and "20,000 bytes" in header[1]
    assert "2 of 64 tokens" in header[2] and "0.0 times through the data; float32" in header[2]
    assert f"{16 * n / 1e6:.1f} MB" in header[3] and "CPU" in header[3]
    again = said_by(capsys, replace(settings, steps=3, lr=1e-4, log=str(tmp_path / "log")))
    assert again[4] == f"resumed at step 2 of {tmp_path / 'run.pt'}"
    assert again[5:7] == [
        "  other than before: steps 2, now 3",
        "  other than before: lr 0.003, now 0.0001",
    ]
    assert again[7].startswith("rank 0 of 1")


def test_a_report_in_words():
    report = Report(12, 2.5, 2.25, 3.25, 1e-3, 0.5, 1234.5, 0.42, 4000.0)
    assert str(report) == (
        "step    12  loss 2.5000  validation 2.2500 (3.250 bits a byte)  lr 1.00e-03  norm 0.50  "
        "1,234 tokens/s  MFU 42%  67 min left"
    )
    assert [duration(s) for s in (0.4, 99.0, 101.0, 11_100.0)] == [
        "0 s",
        "99 s",
        "2 min",
        "3 h 05 min",
    ]


def test_the_time_left_is_that_of_the_tokens_left(world_of_one):
    for report in reports_of(quick(steps=4, log_every=1)):
        left = (4 - report.step) * 4 * 16
        assert report.seconds_left == pytest.approx(left / report.tokens_per_second)


# ------------------------------------------------------------------------------ its files


def test_the_best_is_kept_beside_the_last(world_of_one, tmp_path):
    """With a learning rate that undoes what was learned, the best is not the last."""
    file = tmp_path / "run.pt"
    reports_of(quick(steps=30, warmup=30, eval_every=10, eval_batches=4, save=str(file)))
    rising = quick(steps=40, lr=0.5, min_lr=0.5, eval_every=5, eval_batches=4, save=str(file))
    found = reports_of(rising)
    last, best = read(file), read(tmp_path / "run.best.pt")
    assert (last.progress.step, best.progress.step) == (40, 30)
    assert last.progress.best == best.progress.best < found[-1].validation
    assert last.progress.best_step == 30 and "optimizer" not in best.state
    with pytest.raises(ValueError, match=r"holds weights only: go on from the last"):
        reports_of(replace(rising, save=str(tmp_path / "run.best.pt")))


def test_a_file_that_is_no_checkpoint_is_one_clear_line(world_of_one, tmp_path):
    file = tmp_path / "run.pt"
    settings = quick(steps=2, save=str(file))
    reports_of(settings)
    whole = file.read_bytes()
    for damaged, why in (
        (b"", "it is empty"),
        (whole[: len(whole) // 2], "it is torn, or of another program"),
        (whole[:5000], "it is torn, or of another program"),
        (b"a letter to a friend", "it is torn, or of another program"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=f"^{re.escape(str(file))} is no .*: {why}$"):
            pretrain(settings, pytest.fail)
        assert file.read_bytes() == damaged
    for foreign in ({"step": 3, "model": {}}, torch.zeros(3), nn.Linear(2, 2)):
        torch.save(foreign, file)
        with pytest.raises(ValueError, match=f"^{re.escape(str(file))} is no .* another program$"):
            pretrain(settings, pytest.fail)


def test_a_checkpoint_of_another_model_is_one_clear_line(world_of_one, tmp_path):
    settings = quick(steps=1, save=str(tmp_path / "run.pt"))
    reports_of(settings)
    with pytest.raises(
        ValueError, match=r"holds another model: n_embd 64, not 32; n_layer 2, not 1$"
    ):
        pretrain(replace(settings, n_embd=32, n_layer=1), pytest.fail)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_leaves_the_good_file(world_of_one, tmp_path):
    """Whoever writes to /dev/full is told that the disk is full, by the system itself."""
    file = tmp_path / "run.pt"
    partial = tmp_path / "run.pt.partial"
    for there in (False, True):
        if there:
            reports_of(quick(steps=1, save=str(file)))
            good = file.read_bytes()
        partial.symlink_to("/dev/full")
        says = "it holds what it held before" if there else "there is no checkpoint yet"
        with pytest.raises(CannotSave, match=f"step 2: .*: No space left on device; {says}$"):
            reports_of(quick(steps=3, save_every=2, save=str(file)))
        assert not partial.is_symlink()
    assert file.read_bytes() == good


# ------------------------------------------------------------------------------ data of one's own


@pytest.fixture
def texts(tmp_path):
    """Thirty small files in a folder, some of them held out by name; one is no text."""
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    for i in range(30):
        (folder / ("inner" if i % 2 else "") / f"{i}.txt").write_text(
            f"line {i} of this text\n" * 40
        )
    (folder / "picture.png").write_bytes(b"\x89PNG\xff")
    return folder


def test_own_files_own_tokenizer_and_a_folder_at_the_end(world_of_one, texts, tmp_path):
    out, file = tmp_path / "out", tmp_path / "run.pt"
    given = {"data": (str(texts),), "save": str(file), "log": str(tmp_path / "log")}
    own = Settings("bytes-small", steps=3, batch=4, context=16, eval_batches=1, vocab=270, **given)
    model = pretrain(replace(own, export=str(out)), lambda _: None)
    assert model.config.vocab_size == 270
    tokenizer = Tokenizer.load(out)
    assert len(tokenizer) == 270
    stored = GPT2.from_pretrained(out)
    for name, x in model.state_dict().items():
        torch.testing.assert_close(stored.state_dict()[name], x.half().float(), rtol=0, atol=0)
    stamp = json.loads((out / "stamp.json").read_text())
    names = {"train": set(), "held_out": set()}
    for part in names:
        names[part] = set(stamp["files"][part])
    assert len(names["train"]) + len(names["held_out"]) == 30 and all(names.values())
    assert (stamp["step"], stamp["tokens"]) == (3, 3 * 4 * 16)
    assert (out / "log.jsonl").read_text() == (tmp_path / "log").read_text()
    recipe = arguments(["--recipe", str(out / "settings.json"), "--steps", "4"])
    assert recipe == Settings(
        "bytes-small", steps=4, batch=4, context=16, eval_batches=1, vocab=270, data=(str(texts),)
    )
    kept = read(file)
    assert list(kept.tokenizer.merges) == list(tokenizer.merges) and len(kept.tokenizer) == 270
    pretrain(replace(own, steps=4), lambda _: None)
    (texts / "0.txt").write_text("another text")
    run = pretraining.PretrainingRun(replace(own, steps=5))
    assert run.resumed()[-1] == "  other than before: the data's files"
    (tmp_path / "other").mkdir()
    Tokenizer([], special=("<|endoftext|>",)).save(tmp_path / "other")
    with pytest.raises(ValueError, match="holds another model: vocab_size 270, not 257"):
        pretraining.PretrainingRun(replace(own, vocab=0, tokenizer=str(tmp_path / "other")))


def test_bytes_a_byte_compare_tokenizers(world_of_one, texts):
    own = quick(steps=1, log_every=1, data=(str(texts),))
    [report] = reports_of(own)
    data = pretraining.load_data(own)
    per_byte = len(data.held_out) * report.validation / math.log(2)
    judged = sum((texts / name).stat().st_size for name in data.files["held_out"])
    assert report.bits_per_byte == pytest.approx(per_byte / judged)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"data": ("nowhere",)}, "nowhere is neither a file nor a folder"),
        ({"data": ("texts/picture.png",)}, "there is no text in texts/picture.png"),
        ({"data": ("texts/0.txt",), "context": 64}, "tokens to judge by: 65 is the least"),
        ({"data": ("texts",), "tokenizer": "texts"}, "texts/vocab.json"),
        ({"export": "nowhere/out"}, "nowhere/model.safetensors cannot be written"),
    ],
)
def test_data_that_cannot_be_used(world_of_one, texts, monkeypatch, changed, says):
    monkeypatch.chdir(texts.parent)
    (texts / "0.txt").write_text("a short line of text\n" * 20)
    with pytest.raises(ValueError, match=re.escape(says)):
        pretrain(quick(steps=1, **{"text_bytes": 20_000} | changed), pytest.fail)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no recipe"),
        ("[1]", "is no recipe"),
        ('{"speed": 3}', "there are no settings speed"),
        ('{"lr": "fast"}', "lr is 'fast', no float"),
        ('{"steps": true}', "steps is True, no int"),
    ],
)
def test_recipes_that_are_none(tmp_path, text, says):
    file = tmp_path / "recipe.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=says):
        arguments(["--recipe", str(file)])
    with pytest.raises(ValueError, match=r"cannot be read: No such file"):
        arguments(["--recipe", str(tmp_path / "none.json")])


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
        ({"n_head": 3}, "3 heads cannot share 128 features"),
        ({"n_layer": -1}, "--n-layer is -1: 1 is the least"),
        ({"beta2": 1.0}, "--beta2 is 1.0"),
        ({"vocab": 256}, "--vocab is 256: 257 is the least"),
        ({"vocab": 300, "tokenizer": "there"}, "--tokenizer and --vocab are given"),
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
        default = f" (default: {one.default})" if one.default not in (None, "", ()) else ""
        meaning = re.sub(r"-\s+", "-", one.metadata["meaning"])
        name, value = one.name.replace("_", "-"), r"\w+" if one.default != () else r".*?"
        how = rf"--{name}, --no-{name}" if one.default is False else rf"--{name} {value}"
        assert re.search(rf"{how} {re.escape(meaning + default)}", said), one.name
    assert arguments([]) == Settings()
    assert arguments(["--min-lr", "0", "--eval-every", "3"]) == Settings(min_lr=0.0, eval_every=3)


def test_torchrun_leaves_settings_alone_behind_two_dashes():
    ours = ["course", "train", "--log", "log.jsonl"]
    parser = get_args_parser()
    ran = parser.parse_args(["--nproc-per-node=2", "--no-python", "--", *ours])
    assert [ran.training_script, *ran.training_script_args] == ours
