"""Chapter 26: what the course's model is adapted to (other text, a form of answer), how, and how it is judged.

Letters: B rows of T positions. A *method* makes ready what is to be trained; `adapt` and `instruct`
then train whatever requires a gradient.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pydoc_data import topics
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from .corpus import get_batch, held_out
from .generation import CachedGPT2, generate
from .gpt2 import GPT2, next_token_loss
from .lora import inject_lora, masked_instruction_loss
from .pretrained import course_stamp, document_tokens, stamped_documents
from .tokenization import END_OF_TEXT, Tokenizer

TARGETS = {
    "attention": ["c_attn", "attn.c_proj"],
    "MLP": ["c_fc", "mlp.c_proj"],
    "all": ["c_attn", "c_proj", "c_fc"],
}
"""Which linear layers get adapters: those of attention, those of the MLPs, or both."""

# ---------------------------------------------------------------------------------- texts


def runs_of_words(text: str, length: int = 8) -> set[str]:
    """The runs of so many words of a text: chapter 24's shingles, without hashes. White space does not count."""
    words = text.split()
    return {" ".join(words[i : i + length]) for i in range(len(words) - length + 1)}


def documentation(clean: bool = True) -> tuple[dict[str, str], dict[str, str]]:
    """The topics of Python's `help()`, English prose: those to train on, and those held out, by name.

    Some topics are parts of others. clean: topics that share eight words in a row with a held-out one
    are in neither dictionary.
    """
    parts: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for name, text in sorted(topics.topics.items()):
        parts[held_out(name)][name] = text
    train, judged = parts
    if clean:
        seen = set().union(*map(runs_of_words, judged.values()))
        train = {name: text for name, text in train.items() if not runs_of_words(text) & seen}
    return train, judged


def share_seen(train: Mapping[str, str], judged: Mapping[str, str]) -> float:
    """The share of the different runs of eight words of `judged` that stand in `train`, too."""
    asked, seen = (set().union(*map(runs_of_words, part.values())) for part in (judged, train))
    return len(asked & seen) / len(asked)


def topic_tokens(texts: Mapping[str, str], tokenizer: Tokenizer) -> Integer[Tensor, " N"]:
    """The tokens of the topics, one after the other, each after an end-of-text token."""
    tokens: list[int] = []
    for text in texts.values():
        tokens += [tokenizer.special[END_OF_TEXT], *tokenizer.encode(text)]
    return torch.tensor(tokens)


def python_tokens(
    tokenizer: Tokenizer, part: str = "held_out", most: int = 60_000
) -> Integer[Tensor, " N"]:
    """So many tokens of the course model's own kind of text: from files held out, or trained on ("train").

    At most 2,000 of each file.
    """
    documents = stamped_documents(course_stamp(), part)
    each = (document_tokens(one, tokenizer, 2000) for one in islice(documents, most // 2000))
    return torch.cat(list(each))[:most]


# ---------------------------------------------------------------------------------- methods


class Bottleneck(nn.Module):
    """A layer and, after it, an adapter as Houlsby et al. (2019) have it: y + up(gelu(down(y))).

    `down` goes to r features and `up` back; `up` starts at zero, so nothing changes at first.
    """

    def __init__(self, base_layer: nn.Linear, r: int) -> None:
        """base_layer: the layer whose answer is adapted."""
        super().__init__()
        self.base_layer = base_layer
        self.down, self.up = (
            nn.Linear(base_layer.out_features, r),
            nn.Linear(r, base_layer.out_features),
        )
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        """x: (..., in). Returns (..., out)."""
        y = self.base_layer(x)
        return y + self.up(F.gelu(self.down(y)))


def train_all(model: GPT2) -> GPT2:
    """Full fine-tuning: each weight trains."""
    return model.requires_grad_(True)


def train_head(model: GPT2) -> GPT2:
    """The head alone, untied: a weight of its own, a copy of the embedding's; all else is frozen."""
    model.requires_grad_(False)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


def train_bottlenecks(model: GPT2, r: int = 32) -> GPT2:
    """A `Bottleneck` after each block's attention and MLP; the model is frozen."""
    model.requires_grad_(False)
    blocks: Any = model.transformer.h
    for block in blocks:
        block.attn.c_proj = Bottleneck(block.attn.c_proj, r)
        block.mlp.c_proj = Bottleneck(block.mlp.c_proj, r)
    return model


def train_lora(
    model: GPT2, r: int = 8, targets: str = "all", alpha: float | None = None, rslora: bool = False
) -> GPT2:
    """Adapters of rank r, α = 2 r unless given; the model is frozen."""
    chosen = 2.0 * r if alpha is None else alpha
    inject_lora(model, TARGETS[targets], r, chosen, rslora=rslora)
    return model


METHODS: dict[str, Callable[[GPT2], GPT2]] = {
    "full": train_all,
    "head": train_head,
    "bottleneck": train_bottlenecks,
    "LoRA": train_lora,
}
"""By name, what makes ready a model; in place."""


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that require a gradient."""
    return [p for p in model.parameters() if p.requires_grad]


# ---------------------------------------------------------------------------------- training


def rate(step: int, steps: int, lr: float) -> float:
    """The learning rate: up in the first tenth of the steps, then half a cosine down to a tenth."""
    warm = min(1.0, (step + 1) / max(1, steps // 10))
    return lr * warm * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def steps_of_adamw(
    model: nn.Module,
    steps: int,
    lr: float,
    loss_of: Callable[[int], Float[Tensor, ""]],
    rate: Callable[[int, int, float], float] = rate,
) -> list[float]:
    """Train what requires a gradient: AdamW without decay, norms clipped at 1. The loss of each step.

    loss_of: called with the step. rate: the learning rate, of step, steps and lr.
    """
    parameters = trained(model)
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)
    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate(step, steps, lr)
        loss = loss_of(step)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def adapt(
    model: GPT2,
    tokens: Integer[Tensor, " N"],
    steps: int,
    lr: float,
    seed: int = 0,
    batch: int = 8,
    context: int = 128,
) -> list[float]:
    """Train on windows of a text. The loss of each step, in nats a token."""

    def loss_of(step: int) -> Float[Tensor, ""]:
        x, y = get_batch(tokens, batch, context, seed, step, 0, 1)
        return next_token_loss(model(x), y)

    return steps_of_adamw(model, steps, lr, loss_of)


@torch.no_grad()
def judge(model: GPT2, tokens: Integer[Tensor, " N"], windows: int = 32) -> float:
    """The mean loss on the same windows of 128 tokens each time, in nats a token."""
    x, y = get_batch(tokens, windows, 128, -1, 0, 0, 1)
    return next_token_loss(model(x), y).item()


# ---------------------------------------------------------------------------------- instructions


class Request(NamedTuple):
    """A class that is asked for: its name, and its attributes."""

    name: str
    attributes: tuple[str, ...]


NOUNS = [
    "Ball",
    "Base",
    "Bus",
    "Card",
    "City",
    "Class",
    "Clock",
    "Coin",
    "Context",
    "Event",
    "Field",
    "File",
    "Flower",
    "Handler",
    "Header",
    "Key",
    "List",
    "Map",
    "Node",
    "Note",
    "Option",
    "Page",
    "Parser",
    "Park",
    "Path",
    "Point",
    "Seat",
    "Server",
    "Set",
    "Song",
    "Star",
    "Station",
    "Stream",
    "Table",
    "Task",
    "Test",
    "Token",
    "Town",
    "Tree",
    "Type",
    "Value",
    "Wall",
    "Window",
    "Word",
]
FIELDS = [
    "action",
    "address",
    "args",
    "base",
    "block",
    "buffer",
    "child",
    "code",
    "command",
    "config",
    "content",
    "context",
    "count",
    "data",
    "date",
    "doc",
    "end",
    "error",
    "event",
    "field",
    "file",
    "filename",
    "files",
    "format",
    "frame",
    "group",
    "handler",
    "header",
    "host",
    "index",
    "info",
    "item",
    "items",
    "key",
    "length",
    "level",
    "line",
    "lines",
    "list",
    "local",
    "log",
    "main",
    "map",
    "match",
    "message",
    "method",
    "mode",
    "module",
    "name",
    "names",
    "node",
    "number",
    "object",
    "offset",
    "option",
    "options",
    "order",
    "parent",
    "parser",
    "part",
    "parts",
    "path",
    "pattern",
    "port",
    "prefix",
    "process",
    "request",
    "result",
    "root",
    "server",
    "size",
    "source",
    "start",
    "state",
    "stream",
    "tag",
    "target",
    "text",
    "time",
    "token",
    "type",
    "url",
    "user",
    "value",
    "version",
    "width",
    "word",
]
"""What classes and attributes are called: short words, most of them known to the model from Python's library."""


def answer_of(request: Request, hint: bool = False) -> str:
    """The class that was asked for. hint: with the type of what `__init__` returns."""
    names = ", ".join(request.attributes)
    body = "".join(f"        self.{name} = {name}\n" for name in request.attributes)
    arrow = " -> None" if hint else ""
    return f"class {request.name}:\n    def __init__(self, {names}){arrow}:\n{body}"


def prompt_of(request: Request) -> str:
    """The request in words."""
    *first, last = request.attributes
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"# Write a class {request.name} with {listed}.\n"


def requests(part: str, n: int, seed: int = 0) -> list[Request]:
    """n requests to train on ("train"), or with names that those never have ("held_out").

    One to three attributes each. A fifth of the nouns and of the attributes' names are held out, by
    the digest of the word.
    """
    chosen = part == "held_out"
    nouns = [word for word in NOUNS if held_out(word, 0.2) == chosen]
    fields = [word for word in FIELDS if held_out(word, 0.2) == chosen]
    draw = random.Random(f"{part} {seed}")
    return [
        Request(draw.choice(nouns), tuple(draw.sample(fields, draw.randint(1, 3))))
        for _ in range(n)
    ]


class Examples(NamedTuple):
    """Prompts with their answers, as rows of tokens: what `masked_instruction_loss` is given."""

    ids: Int[Tensor, "B T"]
    prompt_lengths: Int[Tensor, " B"]
    lengths: Int[Tensor, " B"]


def examples(pairs: Iterable[tuple[str, str]], tokenizer: Tokenizer, end: bool = True) -> Examples:
    """Rows of a prompt, its answer and the end-of-text token, with which they are filled up, too.

    end: False leaves the token out of the answers.
    """
    stop = tokenizer.special[END_OF_TEXT]
    split = [(tokenizer.encode(prompt), tokenizer.encode(answer)) for prompt, answer in pairs]
    rows = [prompt + answer + [stop] * end for prompt, answer in split]
    ids = torch.full((len(rows), max(map(len, rows))), stop)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    return Examples(
        ids,
        torch.tensor([len(prompt) for prompt, _ in split]),
        torch.tensor([len(tokens) for tokens in rows]),
    )


def answer_log_probs(
    logits: Float[Tensor, "B T V"],
    ids: Int[Tensor, "B T"],
    prompt_lengths: Int[Tensor, " B"],
    lengths: Int[Tensor, " B"],
) -> Float[Tensor, " B"]:
    """log p of each row's answer given its prompt: the sum over the answer's tokens, in nats, float32.

    Arguments as `masked_instruction_loss` has them.
    """
    position = torch.arange(1, ids.size(1), device=ids.device)
    answer = (position >= prompt_lengths[:, None]) & (position < lengths[:, None])
    each = F.cross_entropy(logits[:, :-1].mT.float(), ids[:, 1:].long(), reduction="none")
    return -(each * answer).sum(1)


MASKS = ("answers", "prompts too", "no end token")
"""What the loss of `instruct` is taken of."""


def instruct(
    model: GPT2,
    tokenizer: Tokenizer,
    steps: int,
    lr: float,
    seed: int = 0,
    batch: int = 16,
    mask: str = "answers",
) -> list[float]:
    """Train on requests and their answers, half of them with a type hint. The loss of each step."""

    def loss_of(step: int) -> Float[Tensor, ""]:
        given = requests("train", batch, seed=1_000_003 * seed + step)
        pairs = [(prompt_of(one), answer_of(one, i % 2 == 0)) for i, one in enumerate(given)]
        ids, prompts, lengths = examples(pairs, tokenizer, end=mask != "no end token")
        if mask == "prompts too":
            prompts = torch.ones_like(prompts)
        return masked_instruction_loss(model(ids), ids, prompts, lengths)

    return steps_of_adamw(model, steps, lr, loss_of)


def answers(
    model: GPT2,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    temperature: float = 0.0,
    seed: int = 0,
    longest: int = 64,
) -> list[str]:
    """What the model writes after each prompt, up to the end of text or `longest` tokens.

    One left-padded batch, with chapter 25's cache. temperature 0 takes the likeliest token.
    """
    stop = tokenizer.special[END_OF_TEXT]
    encoded = [tokenizer.encode(prompt) for prompt in prompts]
    T = max(map(len, encoded))
    ids = torch.tensor([[stop] * (T - len(one)) + one for one in encoded])
    padding = torch.tensor([T - len(one) for one in encoded])
    out = generate(
        CachedGPT2(model),
        ids,
        longest,
        padding=padding,
        temperature=temperature,
        generator=torch.Generator().manual_seed(seed),
        stop=(stop,),
    )
    written = (row[: row.index(stop)] if stop in row else row for row in out[:, T:].tolist())
    return [tokenizer.decode(row) for row in written]
