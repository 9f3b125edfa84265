"""`course capstone`: a folder made as its page says holds; each piece, broken on purpose, does not."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from course_utils.cli import app
from course_utils.reference import adapting, capstone
from course_utils.reference.capstone import ABSENT, BAD, GOOD, Finding, Work
from course_utils.reference.exporting import hf_state_dict
from course_utils.reference.gpt2 import GPT2
from course_utils.reference.pretrained import MODEL, course_model, course_tokenizer
from course_utils.reference.pretraining import main as train
from course_utils.reference.quantization import dequantize, gptq, pack_int4, quantize, unpack_int4
from course_utils.reference.quantized_gpt2 import (
    Text,
    block_linears,
    group_scale,
    hessians,
    limits,
    with_weights,
)
from course_utils.reference.serving import BlockTables
from course_utils.reference.serving_engine import Engine

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "book" / "capstone.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def few():
    """Texts of which less is judged by and counted in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capstone, "MOST", 8_000)
        patch.setattr(capstone, "COUNTED", 2**19)
        yield


def ferries(part: str) -> dict[str, str]:
    """Documents of one kind, which a model learns in a few steps."""
    return {
        f"{part}{i}": f"The ferry to island {i} leaves the harbour at {i % 12} o'clock. " * 12
        for i in range(12)
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """What the page's own code makes of the course's model, on shorter texts, in fewer steps."""
    folder = tmp_path_factory.mktemp("capstone")
    (folder / "model").symlink_to(MODEL, target_is_directory=True)
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S))
    assert code.count("steps=300") == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(adapting, "documentation", lambda: (ferries("a"), ferries("b")))
        torch.manual_seed(0)
        exec(code.replace("steps=300", "steps=12, batch=4, context=64"), {})
    return folder


@pytest.fixture(scope="module")
def whole(made) -> tuple[Work, list[Finding]]:
    """The folder as it was made: what the checks hold, and what they say."""
    work = Work(made)
    return work, list(capstone.examine(work))


@pytest.fixture
def work(whole) -> Work:
    """What the checks of the whole folder hold, for checks of one piece that is broken."""
    return whole[0]


def looked_at(piece: str, work: Work, folder: Path | None = None) -> list[Finding]:
    """What is said of one piece, the earlier ones being as in `work`."""
    return list(capstone.examine(replace(work, folder=folder or work.folder), [piece]))


def bad(found: list[Finding], says: str) -> None:
    """One finding is bad; it says this, in a line, and what to do."""
    (one,) = [one for one in found if one.mark == BAD]
    assert says in one.said, one.said
    assert "\n" not in one.said and len(one.said) < 300 and one.advice


@pytest.fixture
def copied(made, tmp_path) -> Path:
    """A folder to break: links stay links."""
    folder = tmp_path / "mine"
    shutil.copytree(made, folder, symlinks=True)
    return folder


# ---------------------------------------------------------------------------------- what is whole


def test_the_pages_own_folder_holds(whole):
    found = whole[1]
    assert [one.mark for one in found] == [GOOD] * 12, "\n".join(map(str, found))
    assert [one.piece for one in found] == [piece for piece in capstone.PIECES for _ in range(3)]
    said = "\n".join(one.said for one in found)
    assert "2,048 tokens" in said and "8 of 8 answers at once" in said and "0 of 64 blocks" in said
    assert capstone.summary(found) == "12 of 12 hold: your model is done"


def test_the_command_says_what_is_missing_and_what_comes_next(tmp_path):
    for arguments, last in (([str(tmp_path)], "0 of 4 hold"), ([str(tmp_path / "no")], "no such")):
        done = CliRunner().invoke(app, ["capstone", *arguments])
        assert done.exit_code == 1
        assert last in done.output.splitlines()[-1]
    done = CliRunner().invoke(app, ["capstone", str(tmp_path)])
    assert done.output.count(f"\n{ABSENT} ") == 4 and "there is no model" in done.output
    assert "→ in the folder: course train" in done.output


def test_the_commands_status_is_0_once_all_holds(whole, monkeypatch):
    monkeypatch.setattr(capstone, "examine", lambda work: iter(whole[1]))
    done = CliRunner().invoke(app, ["capstone", str(whole[0].folder)])
    assert done.exit_code == 0 and done.output.endswith("12 of 12 hold: your model is done\n")


def test_a_piece_waits_for_one_that_cannot_be_used(copied, work):
    (copied / "adapter" / "adapter_model.safetensors").write_bytes(b"no tensors")
    (one,) = looked_at("quantized", replace(work, merged=None), copied)
    assert one.mark == ABSENT and "it needs adapter" in one.said


# ---------------------------------------------------------------------------------- the model


def a_model(folder: Path) -> Path:
    """A folder with a model to break."""
    shutil.copytree(MODEL, folder / "model")
    return folder / "model"


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def changed(file: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """A safetensors file with other tensors."""
    state = load_file(file)
    change(state)
    save_file(state, file)


def edited(file: Path, **values) -> None:
    """A JSON file with other values."""
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | values), encoding="utf-8")


def untrained(place: Path) -> None:
    torch.manual_seed(0)
    fresh = GPT2(course_model().config)
    save_file(hf_state_dict(fresh.state_dict()), place / "model.safetensors")


def not_finite(place: Path) -> None:
    changed(
        place / "model.safetensors", lambda state: state["transformer.ln_f.weight"].fill_(torch.nan)
    )


def other_merges(place: Path) -> None:
    tokenizer = course_tokenizer()
    type(tokenizer)(list(tokenizer.merges)[:100]).save(place)


BROKEN_MODELS = {
    "byte trigrams": untrained,
    "not finite": not_finite,
    "no whole safetensors file": lambda place: truncated(place / "model.safetensors"),
    "(2048, 192) in the checkpoint, (2048, 96) here": lambda place: edited(
        place / "config.json", n_embd=96
    ),
    "357 tokens": other_merges,
    "stamp.json": lambda place: (place / "stamp.json").unlink(),
    "of 2 files": lambda place: edited(
        place / "stamp.json", files={"train": {"ast.py": "0"}, "held_out": {"abc.py": "0"}}
    ),
    "no/such": lambda place: edited(place / "settings.json", data=["no/such"]),
    "Expecting": lambda place: (place / "config.json").write_text("{"),
}


@pytest.mark.parametrize("says", BROKEN_MODELS)
def test_a_model_that_is_broken(tmp_path, says):
    BROKEN_MODELS[says](a_model(tmp_path))
    bad(looked_at("model", Work(tmp_path)), says)


def test_a_model_without_a_tokenizer_is_not_done(tmp_path):
    (a_model(tmp_path) / "vocab.json").unlink()
    found = looked_at("model", Work(tmp_path))
    assert [one.mark for one in found] == [GOOD, ABSENT] and "--vocab" in found[-1].advice


def test_a_model_of_ones_own_text(tmp_path, monkeypatch):
    """The text is found beside the folder, and of each file the end is held out."""
    (tmp_path / "text").mkdir()
    for name, text in ferries("f").items():
        (tmp_path / "text" / name).write_text(text * 3)
    monkeypatch.chdir(tmp_path)
    sizes = "--n-layer 1 --n-embd 16 --n-head 2 --context 32 --batch 4 --steps 2 --eval-batches 1"
    train(f"--model course --data text --vocab 270 {sizes} --export model".split())
    monkeypatch.chdir(tmp_path.parent)
    found = looked_at("model", Work(tmp_path))
    bad(found, "byte trigrams")  # two steps are no training
    assert [one.mark for one in found] == [GOOD, GOOD, BAD]
    (tmp_path / "text" / "f1").write_text("another text")
    train_docs, judged = capstone.trained_on(
        tmp_path / "model", json.loads((tmp_path / "model" / "stamp.json").read_text())
    )
    assert len(train_docs) == len(judged) == 11
    assert all(
        a.text + b.text == ferries("f")[a.name] * 3 for a, b in zip(train_docs, judged, strict=True)
    )


# ---------------------------------------------------------------------------------- the adapter


def with_b(value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    """An adapter with other numbers in B."""

    def change(state: dict[str, torch.Tensor]) -> None:
        for name in state:
            if "lora_B" in name:
                state[name] = value(state[name])

    return lambda folder: changed(folder / "adapter" / "adapter_model.safetensors", change)


def of_no_use(folder: Path) -> None:
    """Trained on noise: updates of the right size in no direction."""
    torch.manual_seed(0)
    with_b(lambda b: torch.randn_like(b) * b.std())(folder)


BROKEN_ADAPTERS = {
    "B is zero in 24 of them": with_b(torch.zeros_like),
    "not finite": with_b(lambda b: b / 0),
    "bits a byte on adapter_text/": of_no_use,
    "without it (+": with_b(torch.neg),
    "of the largest; taken out": with_b(lambda b: b * 1e6),
    "does not fit this model": lambda folder: changed(
        folder / "adapter" / "adapter_model.safetensors",
        lambda state: state.update({name: x[:, :3].contiguous() for name, x in state.items()}),
    ),
    "this model has no adapter": lambda folder: changed(
        folder / "adapter" / "adapter_model.safetensors", dict.clear
    ),
    "SafetensorError": lambda folder: truncated(folder / "adapter" / "adapter_model.safetensors"),
    "adapter_config.json": lambda folder: (folder / "adapter" / "adapter_config.json").unlink(),
    "held-out tokens": lambda folder: [
        file.write_text("short") for file in (folder / "adapter_text").iterdir()
    ],
}


@pytest.mark.parametrize("says", BROKEN_ADAPTERS)
def test_an_adapter_that_is_broken(copied, work, says):
    BROKEN_ADAPTERS[says](copied)
    found = looked_at("adapter", work, copied)
    if "taken out" in says:  # and it is of no use, either
        found = found[:2]
    bad(found, says)


def test_an_adapter_without_its_text_waits(copied, work):
    shutil.rmtree(copied / "adapter_text")
    found = looked_at("adapter", work, copied)
    assert [one.mark for one in found] == [GOOD, GOOD, ABSENT]


# ---------------------------------------------------------------------------------- the quantized file


def codes_of(model: GPT2, **others) -> dict[str, torch.Tensor]:
    """A file's tensors by hand: int8, a scale for each row."""
    state = {name: x for name, x in model.state_dict().items() if name != "lm_head.weight"}
    for short, layer in block_linears(model):
        name = f"transformer.h.{short}"
        scale = layer.weight.abs().amax(1, keepdim=True) / 127
        none = torch.zeros_like(scale, dtype=torch.int32)
        del state[f"{name}.weight"]
        state[f"{name}.codes"] = quantize(layer.weight, scale, none, -127, 127)
        state[f"{name}.scale"] = scale
    return {name: x.contiguous().clone() for name, x in state.items()}


def in_float(state: dict[str, torch.Tensor]) -> None:
    for name in [name for name in state if name.endswith(".packed")]:
        stem = name.removesuffix(".packed")
        state[f"{stem}.weight"] = unpack_int4(state.pop(name)).float()
        del state[f"{stem}.scale"]


def in_wide_codes(state: dict[str, torch.Tensor]) -> None:
    for name in [name for name in state if name.endswith(".packed")]:
        state[name.removesuffix("packed") + "codes"] = unpack_int4(state.pop(name)).int()


def scales(
    change: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[dict[str, torch.Tensor]], None]:
    def apply(state: dict[str, torch.Tensor]) -> None:
        for name in state:
            if name.endswith(".scale"):
                state[name] = change(state[name]).contiguous()

    return apply


def without(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def apply(state: dict[str, torch.Tensor]) -> None:
        del state[name]

    return apply


LAYER = "transformer.h.0.attn.c_attn"
BROKEN_FILES = {
    "has no packed or codes with a scale, but torch.float32": in_float,
    "int8 for codes": in_wide_codes,
    "steps are positive": scales(torch.zeros_like),
    "parameters of shape": scales(lambda s: s[:, :5]),
    "transformer.wte.weight is missing": without("transformer.wte.weight"),
    "c_attn has no packed or codes": without(f"{LAYER}.scale"),
}


@pytest.mark.parametrize("says", BROKEN_FILES)
def test_a_quantized_file_that_is_broken(copied, work, says):
    changed(copied / "quantized.safetensors", BROKEN_FILES[says])
    bad(looked_at("quantized", work, copied), says)


def test_a_quantized_file_that_is_torn(copied, work):
    truncated(copied / "quantized.safetensors")
    bad(looked_at("quantized", work, copied), "SafetensorError")


@pytest.mark.parametrize("change", [lambda s: s.roll(1, 0), lambda s: s * 1.5])
def test_wrong_scales_are_seen_in_the_weights_and_in_the_bits(copied, work, change):
    changed(copied / "quantized.safetensors", scales(change))
    size, half, bits = looked_at("quantized", work, copied)
    assert size.mark == GOOD
    assert half.mark == BAD and "rounded to the nearest with these scales" in half.said
    assert bits.mark == BAD and float(re.search(r"\((\+\S+)", bits.said)[1]) > capstone.MARGIN


def test_int8_by_rows_holds_and_too_many_scales_do_not(copied, work):
    save_file(codes_of(work.merged), copied / "quantized.safetensors")
    found = looked_at("quantized", work, copied)
    assert [one.mark for one in found] == [GOOD] * 3
    spendthrift = scales(lambda s: s.float().repeat_interleave(8, 1))
    shutil.copy(work.folder / "quantized.safetensors", copied)
    changed(copied / "quantized.safetensors", spendthrift)
    bad(looked_at("quantized", work, copied), "of float16 (at most 60%)")


def test_codes_of_the_model_without_its_adapter_are_told_apart(copied, work):
    save_file(codes_of(work.base), copied / "quantized.safetensors")
    found = looked_at("quantized", work, copied)
    assert "codes of model/ without adapter/" in found[1].said and found[1].mark == BAD


def test_codes_that_do_better_than_the_nearest_hold(copied, work):
    """GPTQ moves weights by more than half a step, on purpose."""
    found = {
        name: H for name, H in hessians(work.merged, work.adapter_text).items() if name[0] == "0"
    }
    nearest = {f"transformer.h.{n}": layer.weight for n, layer in block_linears(work.merged)}
    one = replace_first_block(work.merged, found)
    state = load_file(copied / "quantized.safetensors")
    for name, layer in block_linears(one):
        stem = f"transformer.h.{name}"
        scale = group_scale(nearest[stem], 4, 32)
        none = torch.zeros_like(scale, dtype=torch.int32)
        state[f"{stem}.scale"] = scale.bfloat16()
        state[f"{stem}.packed"] = pack_int4(quantize(layer.weight, scale, none, -8, 7))
    save_file(state, copied / "quantized.safetensors")
    size, half, bits = looked_at("quantized", work, copied)
    assert [size.mark, half.mark, bits.mark] == [GOOD, GOOD, GOOD]
    assert "rounded to the nearest with these scales" in half.said


def replace_first_block(model: GPT2, found: dict[str, torch.Tensor]) -> GPT2:
    """A copy whose first block has GPTQ's weights, by these Hessians; the others are as they were."""

    def change(name: str, weight: torch.Tensor) -> torch.Tensor:
        if name not in found:
            return weight
        scale = group_scale(weight, 4, 32)
        codes = gptq(weight, found[name], scale, *limits(4))
        return dequantize(codes, scale, torch.zeros_like(scale, dtype=torch.int32))

    return with_weights(model, change)


# ---------------------------------------------------------------------------------- the server


def test_a_folder_of_other_weights_is_not_the_quantized_model(copied, work, monkeypatch):
    shutil.copy(MODEL / "model.safetensors", copied / "served")
    monkeypatch.setattr(capstone, "served_together", lambda *_: iter(()))
    bad(looked_at("served", work, copied), "is not that of quantized.safetensors")


def test_a_folder_with_another_tokenizer_is_told(copied, work, monkeypatch):
    other_merges(copied / "served")
    monkeypatch.setattr(capstone, "served_together", lambda *_: iter(()))
    bad(looked_at("served", work, copied), "the tokenizer is not that of")


def test_a_served_folder_that_is_torn(copied, work):
    truncated(copied / "served" / "model.safetensors")
    bad(looked_at("served", work, copied), "no whole safetensors file")


def short(work: Work) -> Work:
    """With shorter prompts."""
    return replace(work, text=Text(work.text.tokens[:, :18], work.text.n_bytes))


def test_a_table_that_is_not_closed_is_a_leak(work, monkeypatch):
    close = BlockTables.close

    def forgetful(self, name):
        if len(self.tables[name]) % 2:
            self.tables[name].pop()
        close(self, name)

    monkeypatch.setattr(BlockTables, "close", forgetful)
    bad(looked_at("served", short(work)), "blocks are still in use")


def test_an_answer_that_depends_on_its_neighbours_is_seen(work, monkeypatch):
    draw = Engine._draw

    def swapped(self, jobs, logits):
        return draw(self, jobs, logits.flip(0))

    monkeypatch.setattr(Engine, "_draw", swapped)
    bad(looked_at("served", short(work)), "of 8 answers at once")
