"""The tables of sweeps: whole, stamped, and those of the code that is there."""

import json
from pathlib import Path

import pytest
import torch

from course_utils import sweeps
from course_utils.reference.llama import STEPS
from course_utils.sweeps import gpt2_to_llama

KEPT = sorted(path.stem for path in Path(sweeps.__file__).parent.glob("*.json"))


@pytest.mark.parametrize("name", KEPT)
def test_a_stamp_says_how_it_was_made(name):
    stamp = sweeps.find(name)["stamp"]
    assert stamp["command"] == f"python -m course_utils.sweeps.{name}"
    assert (Path(sweeps.__file__).parent / f"{name}.py").exists()
    assert stamp["cpu"] and stamp["threads"] == 1 and stamp["cpu_seconds"] <= 360
    assert sweeps.described(stamp).endswith(f"torch {stamp['torch']}, {stamp['date']}.")


def test_every_step_has_every_seed():
    found = sweeps.find("gpt2_to_llama")
    wanted = [(name, seed) for seed in gpt2_to_llama.SEEDS for name in STEPS]
    assert [(run["step"], run["seed"]) for run in found["runs"]] == wanted
    for run in found["runs"]:
        kind, parts = STEPS[run["step"]]
        with torch.device("meta"):
            model = kind(gpt2_to_llama.CONFIG, parts)
        assert run["parameters"] == sum(p.numel() for p in model.parameters())
        assert len(run["losses"]) == gpt2_to_llama.N_STEPS // found["every"]


def test_saving(tmp_path):
    sweeps.save("a_name", 12.6, {"runs": [1]}, tmp_path / "a_name.json")
    kept = json.loads((tmp_path / "a_name.json").read_text())
    assert kept["runs"] == [1] and kept["stamp"]["cpu_seconds"] == 13


def test_digests_tell_texts_apart():
    a, b = torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([1, 3], dtype=torch.uint8)
    assert sweeps.digest(a) == sweeps.digest(a.clone()) != sweeps.digest(b)
