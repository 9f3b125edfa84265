"""The tables of sweeps: whole, stamped, and those of the code that is there."""

import json
from pathlib import Path

import pytest
import torch

from course_utils import sweeps
from course_utils.reference.adapting import MASKS, METHODS, trained
from course_utils.reference.gpt2 import GPT2
from course_utils.reference.llama import STEPS
from course_utils.reference.pretrained import course_model
from course_utils.reference.pretraining import flops_per_token
from course_utils.sweeps import ablations, adapting, gpt2_to_llama, quantizing, scaling_laws

KEPT = sorted(path.stem for path in Path(sweeps.__file__).parent.glob("*.json"))


@pytest.mark.parametrize("name", KEPT)
def test_a_stamp_says_how_it_was_made(name):
    stamp = sweeps.find(name)["stamp"]
    assert stamp["command"] == f"python -m course_utils.sweeps.{name}"
    assert (Path(sweeps.__file__).parent / f"{name}.py").exists()
    assert stamp["cpu"] and stamp["threads"] == 1 and stamp["cpu_seconds"] <= 3600
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


def test_every_budget_is_spent():
    found = sweeps.find("scaling_laws")
    usual = [run for run in found["runs"] if run["factor"] == 1]
    wanted = [(C, size) for C, sizes in scaling_laws.BUDGETS.items() for size in sizes]
    assert [(run["budget"], run["size"]) for run in usual] == wanted
    assert len(found["runs"]) == len(wanted) + 10
    for run in found["runs"]:
        config = scaling_laws.SIZES[run["size"]]
        spent = run["bytes"] * flops_per_token(config, scaling_laws.CONTEXT)
        assert abs(spent / run["budget"] - 1) < 0.01 and run["steps"] == run["curve"][-1][0]
        assert len(run["curve"]) == scaling_laws.CURVE and run["loss"] == run["curve"][-1][1]


def test_every_ablation_has_every_seed():
    found = sweeps.find("ablations")
    wanted = [(name, seed) for seed in ablations.SEEDS for name in ablations.VARIANTS]
    assert [(run["variant"], run["seed"]) for run in found["runs"]] == wanted
    for run in found["runs"]:
        assert len(run["losses"]) == ablations.N_STEPS // found["every"]


def test_a_variant_differs_in_its_part_alone():
    def built(name):
        torch.manual_seed(0)
        return ablations.build(ablations.VARIANTS[name])

    plain = dict(built("GPT-2").named_parameters())
    assert isinstance(built("GPT-2"), GPT2)
    for name, changed in {
        "no positions": "wpe",
        "no 1/√(2L)": "c_proj.weight",
        "untied head": "lm_head",
        "post-LN": "no",
        "no biases": "no",
    }.items():
        found = dict(built(name).named_parameters())
        apart = [n for n, p in found.items() if n not in plain or not torch.equal(p, plain[n])]
        assert all(changed in n for n in apart) and bool(apart) == (changed != "no")
    frozen = {n for n, p in built("no biases").named_parameters() if not p.requires_grad}
    assert frozen == {n for n in plain if n.endswith("bias")}


def test_each_way_to_adapt_was_tried_at_each_rate_with_each_seed():
    found = sweeps.find("adapting")
    wanted = [
        (m, lr, s) for m, rates in adapting.RATES.items() for lr in rates for s in adapting.SEEDS
    ]
    assert [(run["method"], run["lr"], run["seed"]) for run in found["methods"]] == wanted
    assert {(run["r"], run["rslora"]) for run in found["ranks"]} == {
        (r, rslora) for r in adapting.RANKS for rslora in (False, True)
    }
    asked = [(s, mask) for s in adapting.ANSWER_SEEDS for mask in MASKS]
    assert [(run["seed"], run["mask"]) for run in found["masks"]] == asked
    for run in found["methods"]:
        if run["seed"] == 0 and run["lr"] == 1e-2:
            model = METHODS[run["method"]](course_model())
            assert run["trained"] == sum(p.numel() for p in trained(model))


def test_the_spectrum_of_a_change():
    base, moved = course_model(), course_model()
    with torch.no_grad():
        for block in moved.transformer.h:
            block.attn.c_attn.weight.add_(torch.ones(576, 1) @ torch.ones(1, 192))  # rank one
            block.mlp.c_fc.weight.add_(torch.randn(768, 192))
    found = adapting.spectra(moved, base)
    assert min(found["attn.c_attn"]) > 0.999 and found["mlp.c_fc"][0] < 0.1
    assert found["mlp.c_fc"] == sorted(found["mlp.c_fc"]) and len(found["mlp.c_fc"]) == 192


def test_saving(tmp_path):
    sweeps.save("a_name", 12.6, {"runs": [1]}, tmp_path / "a_name.json")
    kept = json.loads((tmp_path / "a_name.json").read_text())
    assert kept["runs"] == [1] and kept["stamp"]["cpu_seconds"] == 13


def test_digests_tell_texts_apart():
    a, b = torch.tensor([1, 2], dtype=torch.uint8), torch.tensor([1, 3], dtype=torch.uint8)
    assert sweeps.digest(a) == sweeps.digest(a.clone()) != sweeps.digest(b)


def test_every_way_to_fewer_bits_is_there():
    found = sweeps.find("quantizing")
    for part in ("rounded", "gptq"):
        assert tuple(row["bits"] for row in found[part]) == quantizing.BITS
    assert tuple(row["windows"] for row in found["calibration"]) == quantizing.CALIBRATION
    wanted = [
        (bits, lr, seed)
        for bits, rates in quantizing.RATES.items()
        for lr in rates
        for seed in quantizing.SEEDS
    ]
    assert [(row["bits"], row["lr"], row["seed"]) for row in found["qat"]] == wanted
    same = {row["windows"]: row["bits_a_byte"] for row in found["calibration"]}
    assert same[16] == next(row["bits_a_byte"] for row in found["gptq"] if row["bits"] == 3)
