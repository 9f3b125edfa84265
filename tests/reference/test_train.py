"""The training script: the same losses on one process and on many, resumed or not."""

import pytest
import torch

from course_utils.reference import train
from tests.training_script import script

SMALL = ["--steps", "8", "--batch", "8", "--context", "16", "--width", "16", "--log-every", "1"]
_, run, run_forked = script(train.__name__, *SMALL)


def losses_in(output):
    """Loss by step."""
    lines = (line.split() for line in output.splitlines() if line.startswith("step"))
    return {int(line[1]): float(line[3]) for line in lines}


@pytest.fixture(scope="module")
def alone():
    return losses_in(run("--strategy", "none"))


@pytest.mark.parametrize(
    ("by", "strategy", "processes"),
    [
        (run, "ddp", 2),
        (run, "fsdp", None),
        (run_forked, "fsdp", 2),
        (run_forked, "ddp", 1),
    ],
    ids=["torchrun-ddp-2", "python-fsdp-1", "fork-fsdp-2", "fork-ddp-1"],
)
def test_the_losses_are_those_of_one_process(alone, by, strategy, processes):
    many = losses_in(by("--strategy", strategy, processes=processes))
    assert many.keys() == alone.keys() == set(range(1, 9))
    assert torch.allclose(
        torch.tensor(list(many.values())), torch.tensor(list(alone.values())), atol=2e-4
    )


def test_any_strategy_goes_on_from_the_file_of_another(alone, tmp_path):
    file = ("--save", str(tmp_path / "run.pt"))
    run_forked("--strategy", "ddp", "--steps", "3", *file, processes=2)
    run_forked("--strategy", "fsdp", "--steps", "6", *file, processes=2)
    output = run_forked("--strategy", "none", *file)
    assert "from step 6" in output and losses_in(output).keys() == {7, 8}
    assert losses_in(output)[8] == pytest.approx(alone[8], abs=2e-4)
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]
    saved = torch.load(tmp_path / "run.pt", weights_only=True)
    assert saved["step"] == 8
    assert saved["model"].keys() == train.Transformer(2, 16, 4, 16).state_dict().keys()


def test_resumed_is_bit_for_bit_the_same_as_never_stopped(tmp_path):
    whole, halves = tmp_path / "whole.pt", tmp_path / "halves.pt"
    run_forked("--save", str(whole))
    run_forked("--save", str(halves), "--steps", "5")
    run_forked("--save", str(halves))
    one, two = (torch.load(path, weights_only=True) for path in (whole, halves))
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])


def test_ranks_share_a_batch_without_overlap():
    text = train.library_text(1000)
    whole, after = train.get_batch(text, 6, 10, 0, 3, 0, 1)
    assert torch.equal(whole[:, 1:], after[:, :-1])
    for world_size in (2, 3):
        parts = [train.get_batch(text, 6, 10, 0, 3, r, world_size)[0] for r in range(world_size)]
        assert torch.equal(torch.stack(parts, 1).flatten(0, 1), whole)
    assert not torch.equal(train.get_batch(text, 6, 10, 0, 4, 0, 1)[0], whole)
    assert not torch.equal(train.get_batch(text, 6, 10, 1, 3, 0, 1)[0], whole)


@pytest.mark.parametrize("arguments", [["--strategy", "none"], ["--batch", "7"]])
def test_what_cannot_be_split_is_refused(monkeypatch, arguments):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(SystemExit, match=arguments[1]):
        train.train(train.arguments(arguments))
