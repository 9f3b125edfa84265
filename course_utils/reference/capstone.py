"""`course capstone`: a reader's own model, trained, adapted, quantized and served, looked at piece by piece.

A folder holds `model/`, as `course train --export` writes it; `adapter/`, as `save_adapter` does, and the
text that it is for in `adapter_text/`; `quantized.safetensors`, codes and scales of the model with its
adapter merged; `served/`, what `course serve` reads. Each check has a bound that a broken piece misses.
"""

import copy
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn

from . import ngrams
from .adapter_files import load_adapter
from .corpus import (
    Document,
    bytes_of,
    library_files,
    read_documents,
    split_documents,
    stream,
    text_files,
)
from .generation import CachedGPT2, generate
from .gpt2 import GPT2
from .lora import lora_layers, lora_state_dict, merge, unload, unmerge, weight_of
from .modules import count_parameters
from .quantization import dequantize, quantize, spread, unpack_int4
from .quantized_gpt2 import Text, bits_by_file, block_linears, gap
from .serving import paged_kv_blocks
from .tokenization import END_OF_TEXT, Tokenizer

GOOD, BAD, ABSENT = "✓", "✗", "–"
MOST = 100_000
"""Characters of a text that models are judged by, about; of each document as many as of the others."""
COUNTED = 2**24
"""Bytes of the training text in which the baseline counts trigrams, at most."""
USEFUL = 0.02
"""The share of its bits per byte that a model saves with an adapter on the text that it is for, at least."""
FRACTION = 0.6
"""Bytes of codes and scales, of those of the same weights in float16: above this nothing is saved."""
MARGIN = 0.05
"""Bits per byte that quantizing may cost."""
AWKWARD = f"naïve  café\r\n\t“Ω”\n  中文 🙂 \0{END_OF_TEXT}"
"""Two spaces, a carriage return, marks and scripts of several bytes, a special token's name as text."""

# ---------------------------------------------------------------------------------- what is said


@dataclass(frozen=True)
class Finding:
    """One line of the report, and what to do. mark: GOOD, BAD, or ABSENT for what is not there yet."""

    piece: str
    mark: str
    said: str
    advice: str = ""

    def __str__(self) -> str:
        line = f"{self.mark} {self.piece:<10} {self.said}"
        return f"{line}\n  {'':<10} → {self.advice}" if self.advice else line


class NotYet(Exception):
    """A piece is not there: what, and what to do."""


@dataclass
class Work:
    """The folder, and what the pieces hold that were good enough to look at the next ones with."""

    folder: Path
    base: GPT2 | None = None
    tokenizer: Tokenizer | None = None
    text: Text | None = None
    bits: float = math.nan  # a byte, of the base model on that text
    merged: GPT2 | None = None
    adapter_text: Text | None = None
    quantized: GPT2 | None = None

    def trained(self) -> tuple[GPT2, Tokenizer, Text]:
        """The base model with its tokenizer and its held-out text. Raises NotYet without them."""
        if self.base is None or self.tokenizer is None or self.text is None:
            raise NotYet("not looked at: it needs model", "put right what is said of model first")
        return self.base, self.tokenizer, self.text

    def after(self, piece: str, there: object) -> None:
        """Raises NotYet where an earlier piece lies in the folder and could not be used."""
        if there is None and (self.folder / piece).exists():
            raise NotYet(
                f"not looked at: it needs {piece}", f"put right what is said of {piece} first"
            )

    def within(self, name: str, advice: str) -> Path:
        """A file or folder of this name. Raises NotYet where it is missing."""
        path = self.folder / name
        if not path.exists():
            raise NotYet(f"there is no {name}", advice)
        return path


def verdict(piece: str, good: bool, said: str, advice: str) -> Finding:
    """GOOD, or BAD with what to do."""
    return Finding(piece, GOOD, said) if good else Finding(piece, BAD, said, advice)


def examine(work: Work, pieces: Sequence[str] = ()) -> Iterator[Finding]:
    """Every finding, as soon as it is known; pieces: of these alone. A file that cannot be read is one, too."""
    for piece in pieces or PIECES:
        check, advice = PIECES[piece]
        try:
            yield from check(work)
        except NotYet as absent:
            yield Finding(piece, ABSENT, *absent.args)
        except ModuleNotFoundError as error:
            yield Finding(piece, BAD, f"{error.name} is missing", f"pip install {error.name}")
        except Exception as error:  # files of anything at all: their readers stumble in many ways
            yield Finding(piece, BAD, _in_a_line(error), advice)


def _in_a_line(error: Exception) -> str:
    said = " ".join(str(error).split())
    if not isinstance(error, ValueError | OSError):
        said = f"{type(error).__name__}: {said}"
    return said if len(said) <= 200 else said[:200] + " …"


def summary(findings: Sequence[Finding]) -> str:
    """How many checks hold, and whether that is all of them."""
    n, good = len(findings), sum(one.mark == GOOD for one in findings)
    return f"{good} of {n} hold" + (": your model is done" if good == n else "")


# ---------------------------------------------------------------------------------- texts


def trained_on(folder: Path, stamp: dict[str, Any]) -> tuple[list[Document], list[Document]]:
    """What a model was trained on, and what was held out: the documents that are as its stamp has them.

    folder: of the exported model. Its settings.json names the files, from where `course train` ran, or from
    beside the folder; without names it was Python's own library. Raises ValueError where nothing is left.
    """
    named = json.loads((folder / "settings.json").read_text(encoding="utf-8")).get("data", [])
    beside = [folder.parent / name for name in named]
    paths = [one if one.exists() else Path(name) for one, name in zip(beside, named, strict=True)]
    train, judged = stamp["files"]["train"], stamp["files"]["held_out"]
    same = [
        one
        for one in read_documents(text_files(paths) if named else library_files())
        if one.digest in (train.get(one.name), judged.get(one.name))
    ]
    parts = (
        split_documents(same)
        if train.keys() & judged.keys()  # of each file the end is held out
        else ([d for d in same if d.name in train], [d for d in same if d.name in judged])
    )
    if not all(parts):
        raise ValueError(
            f"of {len(train | judged)} files that the model was trained on or judged by, "
            f"{len(same)} are still here as they were"
        )
    return parts


def judged_by(documents: Sequence[Document], tokenizer: Tokenizer, context: int) -> Text:
    """Windows of the middle of the documents, some `MOST` characters of them, for `bits_by_file`.

    A file often begins with text of another kind. context: the longest window. There are 8 windows at
    least, so that their spread can be told. Raises ValueError for too little text.
    """
    each = max(MOST // max(1, len(documents)), 2000)
    few = [replace(one, text=middle(one.text, each)) for one in documents[: -(-MOST // each)]]
    tokens = stream(few, tokenizer).long()
    length = min(context, (len(tokens) - 1) // 8)
    if length < 8:
        raise ValueError(f"{len(tokens)} held-out tokens: 65 are the least to judge by")
    rows = tokens.unfold(0, length + 1, length)
    return Text(rows, len(predicted(rows, tokenizer)))


def middle(text: str, length: int) -> str:
    """So many characters from the middle of a text, or all of a shorter one."""
    start = max(0, len(text) - length) // 2
    return text[start : start + length]


def predicted(rows: Tensor, tokenizer: Tokenizer) -> bytes:
    """The bytes of the tokens that are predicted, special tokens aside."""
    special = set(tokenizer.special.values())
    ids = rows[:, 1:].flatten().tolist()
    return b"".join(tokenizer.vocab[i] for i in ids if i not in special)


def trigram_bits(train: Sequence[Document], text: bytes) -> float:
    """Bits per byte of the text by trigrams of bytes, counted in the training text (chapter 24)."""
    counted = ngrams.WittenBell(bytes_of(train)[:COUNTED], 3, 256)
    log_p = counted(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    return ngrams.bits_per_byte(log_p, len(log_p))


# ---------------------------------------------------------------------------------- the model

TRAIN = "course train --model course --vocab 2048 --save run.pt --export model"


def check_model(work: Work) -> Iterator[Finding]:
    """Does it load, does its tokenizer give back what it is given, is it better than counting?"""
    place = work.within("model", f"in the folder: {TRAIN}")
    model = GPT2.from_pretrained(place)
    config, size = model.config, (place / "model.safetensors").stat().st_size
    said = (
        f"{config.n_layer} layers, {config.n_embd} wide, {count_parameters(model)[0]:,} parameters; "
        f"{size / 1e6:.2f} MB"
    )
    if not all_finite(model):
        yield Finding("model", BAD, f"{said}; some are not finite", "train with a lower --lr")
        return
    yield Finding("model", GOOD, said)
    tokenizer = Tokenizer.load(
        work.within("model/vocab.json", f"train with a tokenizer: {TRAIN}").parent
    )
    train, judged = trained_on(place, json.loads((place / "stamp.json").read_text("utf-8")))
    yield (written := _tokenizer(tokenizer, judged, config.vocab_size))
    if written.mark != GOOD:
        return
    text = judged_by(judged, tokenizer, config.n_positions)
    work.bits = bits_by_file(model, text).sum().item()
    counted = trigram_bits(train, predicted(text.tokens, tokenizer))
    yield verdict(
        "model",
        work.bits < counted,
        f"{work.bits:.3f} bits a byte on text held out, byte trigrams {counted:.3f}",
        "it must be below the trigrams: more --steps (the run goes on from --save), or more text",
    )
    work.base, work.tokenizer, work.text = model, tokenizer, text


def _tokenizer(tokenizer: Tokenizer, judged: Sequence[Document], vocab_size: int) -> Finding:
    texts = [AWKWARD, *(one.text[:2000] for one in judged[:50])]
    ids = [tokenizer.encode(text) for text in texts]
    broken = sum(tokenizer.decode(i) != text for i, text in zip(ids, texts, strict=True))
    per_token = sum(len(text.encode()) for text in texts) / sum(map(len, ids))
    said = f"tokenizer: {len(tokenizer):,} tokens, {per_token:.2f} bytes each; "
    said += f"{len(texts) - broken} of {len(texts)} texts come back as they were"
    if len(tokenizer) != vocab_size:
        said += f"; the model has {vocab_size:,} tokens"
    good = not broken and len(tokenizer) == vocab_size and END_OF_TEXT in tokenizer.special
    return verdict(
        "model", good, said, "vocab.json and merges.txt are those of another run: export again"
    )


def all_finite(model: nn.Module) -> bool:
    """Is no parameter infinite or NaN?"""
    return all(bool(p.isfinite().all()) for p in model.parameters())


# ---------------------------------------------------------------------------------- the adapter


def check_adapter(work: Work) -> Iterator[Finding]:
    """Does it load, was it trained, is the model better with it on its text, can it be merged?"""
    base, tokenizer, text = work.trained()
    place = work.within("adapter", "train LoRA on adapter_text/ and save it with save_adapter")
    adapted = load_adapter(copy.deepcopy(base), place).eval()
    assert isinstance(adapted, GPT2)
    yield (trained := _trained(adapted, base))
    if trained.mark != GOOD:
        return
    yield _merged(adapted, base, text)
    words = work.within("adapter_text", "put the text that the adapter is for there")
    _, judged = split_documents(read_documents(text_files([words])))
    own = judged_by(judged, tokenizer, base.config.n_positions)
    with_it, without = bits_by_file(adapted, own), bits_by_file(base, own)
    more, error = gap(with_it, without)
    other = bits_by_file(adapted, text).sum().item()
    yield verdict(
        "adapter",
        more < -max(2 * error, USEFUL * without.sum().item()),
        f"{with_it.sum():.3f} bits a byte on adapter_text/ held out, {without.sum():.3f} without it "
        f"({more:+.3f} ± {error:.3f}); on the model's own text {other:.3f}, {work.bits:.3f} without it",
        f"it must save {USEFUL:.0%} and two standard errors: more steps, another rate, or more of that text",
    )
    work.merged, work.adapter_text = unload(adapted).eval(), own  # type: ignore[assignment]


def _trained(adapted: GPT2, base: GPT2) -> Finding:
    """Has each layer an update, and how large is it?"""
    layers, tensors = dict(lora_layers(adapted)), list(lora_state_dict(adapted).values())
    share = sum(x.numel() for x in tensors) / count_parameters(base)[0]
    sizes = [
        (layer.delta().norm() / weight_of(layer.base_layer).norm()).item()
        for layer in layers.values()
    ]
    zero = sum(not layer.lora_B.any() for layer in layers.values())
    finite = all(bool(x.isfinite().all()) for x in tensors)
    said = f"rank {tensors[0].size(0)} on {len(layers)} layers, {share:.1%} of the parameters; "
    if zero or not finite:
        said += f"B is zero in {zero} of them" if zero else "some numbers are not finite"
        advice = "train it before you save it" if zero else "train with a lower rate"
        return Finding("adapter", BAD, said, advice)
    return Finding("adapter", GOOD, said + f"updates of {min(sizes):.1%} to {max(sizes):.1%} of W")


@torch.no_grad()
def _merged(adapted: GPT2, base: GPT2, text: Text) -> Finding:
    """Merged it computes the same, and taken out again it leaves the base as it was; float32."""
    ids = text.tokens[:4, :-1]
    beside = adapted(ids)
    merged = merge(adapted)(ids)
    unmerge(adapted)
    apart = ((merged - beside).abs().max() / beside.abs().max()).item()
    left = max(
        ((weight_of(layer.base_layer) - weight).abs().max() / weight.abs().max()).item()
        for name, layer in lora_layers(adapted)
        for weight in [weight_of(base.get_submodule(name))]
    )
    for name, layer in lora_layers(adapted):  # bit for bit, for what follows
        weight_of(layer.base_layer).copy_(weight_of(base.get_submodule(name)))
    return verdict(
        "adapter",
        apart < 1e-4 and left < 1e-5,
        f"merged: logits change by {apart:.0e} of the largest; taken out: weights by {left:.0e}",
        "an update that drowns W is lost in its rounding: a smaller alpha, or a lower rate",
    )


# ---------------------------------------------------------------------------------- the quantized file


@dataclass(frozen=True)
class Layer:
    """A quantized weight: its codes, one step for each number, and the bytes that both take."""

    codes: Tensor
    step: Float[Tensor, "out in"]
    n_bytes: int
    packed: bool

    @property
    def zero_point(self) -> Tensor:
        """Zeros: code 0 stands for 0."""
        return torch.zeros_like(self.step, dtype=torch.int32)

    @property
    def weight(self) -> Float[Tensor, "out in"]:
        """What the codes stand for; float32."""
        return dequantize(self.codes, self.step, self.zero_point)

    def nearest(self, weight: Float[Tensor, "out in"]) -> "Layer":
        """The same steps with codes that are nearest to this weight."""
        low, high = (-8, 7) if self.packed else (-128, 127)
        return replace(self, codes=quantize(weight, self.step, self.zero_point, low, high))


def read_layer(state: dict[str, Tensor], name: str, weight: Tensor) -> Layer:
    """A layer of the file: `packed`, two codes in a byte, or `codes`, int8; and `scale`, of blocks.

    weight: what was quantized, for its shape. Raises ValueError for what is not of this form.
    """
    keys = [key for key in (f"{name}.packed", f"{name}.codes") if key in state]
    if not keys or f"{name}.scale" not in state:
        kind = state[f"{name}.weight"].dtype if f"{name}.weight" in state else "nothing"
        raise ValueError(f"{name} has no packed or codes with a scale, but {kind}")
    held, scale = state[keys[0]], state[f"{name}.scale"]
    packed = keys[0].endswith("packed")
    if held.dtype != (torch.uint8 if packed else torch.int8):
        raise ValueError(f"{keys[0]} is {held.dtype}: uint8 for packed, int8 for codes")
    codes = unpack_int4(held) if packed else held
    if codes.shape != weight.shape:
        raise ValueError(f"{keys[0]} is {tuple(codes.shape)}; the weight is {tuple(weight.shape)}")
    step = spread(scale.float(), weight.shape).expand(weight.shape)
    if not bool(((step > 0) & step.isfinite()).all()):
        raise ValueError(f"{name}.scale: steps are positive and finite")
    return Layer(codes, step, held.nbytes + scale.nbytes, packed)


def assembled(model: GPT2, layers: dict[str, Layer], state: dict[str, Tensor]) -> GPT2:
    """A model with the weights of the file: those of the layers, and the other parameters as they are."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            layer = name.removesuffix(".weight")
            if layer not in layers and name not in state:
                raise ValueError(
                    f"{name} is missing: all that is not quantized is in the file, too"
                )
            parameter.copy_(layers[layer].weight if layer in layers else state[name])
    return made.eval()


def check_quantized(work: Work) -> Iterator[Finding]:
    """Is it smaller, do its codes stand for the weights, and what does that cost?"""
    base, _, text = work.trained()
    work.after("adapter", work.merged)
    original, text = work.merged or base, work.adapter_text or text
    what = "the model with its adapter" if work.merged else "the model"
    file = work.within("quantized.safetensors", f"quantize {what}, and save codes and scales there")
    state = load_file(file)
    weights = weights_of(original)
    layers = {name: read_layer(state, name, weight) for name, weight in weights.items()}
    held, size = sum(x.n_bytes for x in layers.values()), sum(x.numel() for x in weights.values())
    float_file = (work.folder / "model" / "model.safetensors").stat().st_size
    yield verdict(
        "quantized",
        held <= FRACTION * 2 * size,
        f"{8 * held / size:.2f} bits a weight in {len(layers)} layers, {held / (2 * size):.0%} of float16 "
        f"(at most {FRACTION:.0%}); the file {file.stat().st_size / 1e6:.2f} MB, "
        f"model/ {float_file / 1e6:.2f} MB",
        "codes of 8 bits or fewer, and a scale for many of them",
    )
    made = assembled(original, layers, state)
    bits, due = bits_by_file(made, text), bits_by_file(original, text)
    yield _half_a_step(work, layers, weights, state, bits.sum().item(), text)
    more, error = gap(bits, due)
    yield verdict(
        "quantized",
        more <= MARGIN,
        f"{bits.sum():.3f} bits a byte, {due.sum():.3f} in float ({more:+.3f} ± {error:.3f}; "
        f"at most {MARGIN:+})",
        "smaller groups, more bits, or chapter 27's GPTQ",
    )
    work.quantized = made


def _half_a_step(
    work: Work,
    layers: dict[str, Layer],
    weights: dict[str, Tensor],
    state: dict[str, Tensor],
    bits: float,
    text: Text,
) -> Finding:
    """Each weight is rounded to the nearest, or the codes do better than that with the same scales."""
    share = close(layers, weights)
    said = f"{share:.2%} of the weights are within half a step"
    if share == 1:
        return Finding("quantized", GOOD, said)
    assert work.base is not None
    plain = weights_of(work.base)
    if work.merged and close(layers, plain) == 1:
        advice = "load_adapter and unload first, then quantize what comes back"
        return Finding("quantized", BAD, "these are codes of model/ without adapter/", advice)
    nearest = {name: layer.nearest(weights[name]) for name, layer in layers.items()}
    rounded = bits_by_file(assembled(work.merged or work.base, nearest, state), text).sum().item()
    return verdict(
        "quantized",
        bits <= rounded,
        f"{said}; {bits:.3f} bits a byte, rounded to the nearest with these scales {rounded:.3f}",
        "scales and codes do not belong together, or are of another model",
    )


def weights_of(model: GPT2) -> dict[str, Tensor]:
    """The weights that are quantized, by the names of their layers in the model."""
    return {f"transformer.h.{name}": layer.weight for name, layer in block_linears(model)}


def close(layers: dict[str, Layer], weights: dict[str, Tensor]) -> float:
    """The share of the weights that their codes stand for to within half a step (and 1 % of one)."""
    near = [
        ((layer.weight - weights[name]).abs() <= 0.51 * layer.step).flatten()
        for name, layer in layers.items()
    ]
    return torch.cat(near).double().mean().item()


# ---------------------------------------------------------------------------------- the server


def check_served(work: Work) -> Iterator[Finding]:
    """Are these the quantized weights, and does everybody get what they would get alone?"""
    base, known, text = work.trained()
    from .sampling import load

    work.after("adapter", work.merged)
    work.after("quantized.safetensors", work.quantized)
    place = work.within(
        "served", "export the dequantized model there, and try `course serve served`"
    )
    model, tokenizer = load(place)
    final, of = work.merged or base, "model/ with adapter/" if work.merged else "model/"
    if work.quantized:
        final, of = work.quantized, "quantized.safetensors"
    wrong = different(model, final)
    if (tokenizer.merges, tokenizer.special) != (known.merges, known.special):
        wrong = ["the tokenizer"]
    yield verdict(
        "served",
        not wrong,
        f"{wrong[0]} is not that of {of}" if wrong else f"the weights of {of}, rounded to float16",
        f"export {of} again",
    )
    yield from served_together(model.double(), tokenizer, text)


def different(model: nn.Module, due: nn.Module) -> list[str]:
    """Names of the parameters that two models do not share, float16's rounding aside."""
    mine, theirs = (dict(one.named_parameters()) for one in (model, due))
    return [name for name in mine if name not in theirs] + [
        name
        for name, x in theirs.items()
        if name not in mine
        or mine[name].shape != x.shape
        or not torch.allclose(mine[name], x, rtol=2**-10, atol=2**-24)
    ]


def prompts_of(text: Text, context: int, number: int = 8) -> list[tuple[int, ...]]:
    """Beginnings of so many windows, all of different lengths, the longest half a context."""
    longest = max(number, min(context // 2, text.tokens.size(1)))
    rows = text.tokens[torch.arange(number) % len(text.tokens)]
    ends = [longest * (i + 1) // number for i in range(number)]
    return [tuple(row[:end].tolist()) for row, end in zip(rows, ends, strict=True)]


def served_together(model: GPT2, tokenizer: Tokenizer, text: Text) -> Iterator[Finding]:
    """Eight requests at once over HTTP, and one client who hangs up; greedy, in float64.

    model: in float64, where sums in another order hardly ever change a choice.
    """
    import httpx

    from .serving_engine import Engine, Event, GenerationRequest
    from .serving_http import LiveServer, Served
    from .serving_load import closed_loop
    from .serving_load import stream as read

    got: dict[tuple[int, ...], list[int]] = {}
    asked: dict[Any, tuple[int, ...]] = {}

    class Noting(Engine):
        """An engine that notes whose tokens it drew."""

        def add(self, name: Any, request: GenerationRequest) -> None:
            super().add(name, request)
            asked[name] = request.prompt

        def step(self) -> list[Event]:
            events = super().step()
            for event in events:
                got.setdefault(asked[event.name], []).append(event.token)
            return events

    context, most = model.config.n_positions, min(24, model.config.n_positions // 2)
    *prompts, leaves = prompts_of(text, context, 9)
    bodies = [{"prompt": list(one), "max_tokens": most, "temperature": 0} for one in prompts]
    blocks = 4 * paged_kv_blocks(context, 16)
    engine = Noting(model, slots=4, n_blocks=blocks, block_size=16, budget=64)
    with LiveServer(engine, Served("capstone", tokenizer, 0)) as server:
        replies = closed_loop(server.url, bodies, len(bodies))
        with httpx.Client(base_url=server.url, timeout=120, trust_env=False) as client:
            read(client, {"prompt": list(leaves), "max_tokens": most, "temperature": 0}, most=1)
    stop = {tokenizer.special[END_OF_TEXT]} if END_OF_TEXT in tokenizer.special else set()
    equal = sum(got.get(one) == alone(model, one, most, stop) for one in prompts)
    errors = [reply.error for reply in replies if reply.error]
    drawn = sum(len(got.get(one, [])) for one in prompts)
    yield verdict(
        "served",
        equal == len(prompts) and not errors,
        f"{equal} of {len(prompts)} answers at once, {drawn} tokens, are those of each prompt alone"
        + (f"; {errors[0]}" if errors else ""),
        "`course serve served` and send the same prompt twice: what changes beside other requests?",
    )
    pool = engine.tables.pool
    used = len(pool.uses) - len(pool)
    yield verdict(
        "served",
        not used and engine.idle,
        f"{used} of {len(pool.uses)} blocks are still in use once all have left, one of them early",
        "a table was not closed: see BlockTables.close of chapter 28",
    )


def alone(model: GPT2, prompt: tuple[int, ...], most: int, stop: set[int]) -> list[int]:
    """The greedy answer to one prompt with a cache in one piece (chapter 25)."""
    ids = torch.tensor([prompt])
    out = generate(CachedGPT2(model), ids, most, temperature=0.0, stop=stop)
    return out[0, len(prompt) :].tolist()


PIECES: dict[str, tuple[Callable[[Work], Iterator[Finding]], str]] = {
    "model": (check_model, f"export it again: {TRAIN}"),
    "adapter": (check_adapter, "save it again with save_adapter, from a model that loads model/"),
    "quantized": (check_quantized, "write it as the page of the capstone does"),
    "served": (check_served, "write it as the page of the capstone does"),
}
"""By name, in the order of the work: its checks, and what to do where it cannot be read."""
