"""Exercises of chapter 9, data: from padded batches and token files to a sampler that resumes."""
# mypy: ignore-errors

import random
from collections import deque
from itertools import chain, islice, pairwise
from math import ceil

import numpy as np
import torch
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DistributedSampler, IterableDataset, get_worker_info

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.reference import data


def ints(*rows):
    return torch.tensor(rows)


# ------------------------------------------------------------------------------ collate_padded

collate_padded = Exercise(
    data.collate_padded,
    title="A padded batch",
    difficulty=1,
    minutes=15,
    points=1,
    hints=(
        "A sequence of n tokens has n − 1 inputs, and n − 1 targets: the same tokens, one place on.",
        "Make both tensors full first: inputs of `pad`, targets of −100. Then write each row's "
        "beginning.",
        "The longest sequence decides the width: its length less one.",
        (
            "edge cases",
            "Do not look for `pad` among the tokens: a sequence may contain it. Its length says where it ends.",
        ),
    ),
)


@collate_padded.by_hand
def _():
    yield (
        call([torch.tensor([5, 6, 7]), torch.tensor([8, 9])], 0),
        (ints([5, 6], [8, 0]), ints([6, 7], [9, -100])),
    )
    yield (
        call([torch.tensor([1, 2]), torch.tensor([3, 4, 5, 6])], 9),
        (ints([1, 9, 9], [3, 4, 5]), ints([2, -100, -100], [4, 5, 6])),
    )


@collate_padded.cases
def _(draw):
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    sequences = [draw(draws.indices((n,), 9)) for n in lengths]
    yield call(sequences, draw(st.integers(0, 9)))


@collate_padded.edge
def _():
    yield (
        call([torch.tensor([4, 0, 3, 0]), torch.tensor([0, 0])], 0),
        "the padding token is also a token of the text",
    )
    yield call([torch.tensor([7]), torch.tensor([1, 2, 3])], 0), "a single token has no target"
    yield call([torch.tensor([3, 1, 2])], 0), "a batch of one needs no padding"
    yield (
        call(
            [torch.tensor([300, 200], dtype=torch.int32), torch.tensor([9], dtype=torch.int32)], 0
        ),
        "tokens in int32 give results in int64",
    )
    yield (
        call(
            [
                torch.tensor([250, 3, 255], dtype=torch.uint8),
                torch.tensor([9, 4], dtype=torch.uint8),
            ],
            0,
        ),
        "bytes give results in int64, which can hold −100",
    )
    few = torch.tensor([1, 2, 3], dtype=torch.uint8), torch.tensor([4, 5], dtype=torch.uint8)
    yield call(list(few), 300), "bytes, and a `pad` that no byte can hold"
    yield call([torch.arange(6)[::2], torch.arange(2)], 0), "a sequence that steps over elements"
    yield call([torch.tensor([2]), torch.tensor([3])], 0), "nothing to predict at all"


collate_padded.slips(
    {
        replace(
            "targets[row, :n] = sequence[1:]", "targets[row, :n] = sequence[:-1]"
        ): "Your targets are the inputs. The target of a token is the token after it.",
        replace(
            "torch.full((len(sequences), T), IGNORED)", "torch.full((len(sequences), T), pad)"
        ): "Your targets are filled with `pad`, so the model is trained to predict padding. −100 is what "
        "cross_entropy leaves out.",
        replace(
            "torch.full((len(sequences), T), IGNORED)",
            "torch.zeros(len(sequences), T, dtype=torch.long)",
        ): "Your targets are filled with 0, which is a token like any other. −100 is what cross_entropy "
        "leaves out.",
        replace(
            "torch.full((len(sequences), T), pad)", "torch.full((len(sequences), T), IGNORED)"
        ): "Your inputs are filled with −100. It is no token, and an embedding has no row for it: fill "
        "inputs with `pad`.",
        replace(
            "torch.full((len(sequences), T), pad)",
            "torch.zeros(len(sequences), T, dtype=torch.long)",
        ): "Your inputs are filled with 0, not with `pad`.",
        replace(
            "T = max(map(len, sequences)) - 1", "T = max(map(len, sequences))"
        ): "Your rows are one too long: n tokens have n − 1 inputs with a target each.",
        replace(
            "T = max(map(len, sequences)) - 1",
            "T = len(sequences[0]) - 1",
            "[row, :n] = sequence[:-1]",
            "[row, :n] = sequence[:-1][:T]",
            "targets[row, :n] = sequence[1:]",
            "targets[row, :n] = sequence[1:][:T]",
        ): "You make rows as long as the first sequence. The longest one decides.",
        replace(
            "T = max(map(len, sequences)) - 1",
            "T = min(map(len, sequences)) - 1",
            "[row, :n] = sequence[:-1]",
            "[row, :n] = sequence[:-1][:T]",
            "targets[row, :n] = sequence[1:]",
            "targets[row, :n] = sequence[1:][:T]",
        ): "You cut all sequences to the shortest. Pad them to the longest.",
        replace(
            "inputs[row, :n] = sequence[:-1]",
            "inputs[row, T - n :] = sequence[:-1]",
            "targets[row, :n] = sequence[1:]",
            "targets[row, T - n :] = sequence[1:]",
        ): "You pad at the beginning of the rows. Here padding is at their end.",
        replace(
            "return inputs, targets", "return inputs, targets.masked_fill(targets == pad, IGNORED)"
        ): "You take every `pad` among the targets for padding. A sequence may contain that token, and then "
        "it must be predicted: go by the length.",
        replace(
            "return inputs, targets", "return inputs, targets.masked_fill(inputs == pad, IGNORED)"
        ): "You take every `pad` among the inputs for padding. A sequence may contain that token, and then "
        "the one after it must be predicted: go by the length.",
        replace(
            "torch.full((len(sequences), T), pad)",
            "torch.full((len(sequences), T), pad, dtype=sequences[0].dtype)",
        ): "Your inputs have the dtype of the sequences. int64 is asked for.",
        replace(
            "return inputs, targets",
            "return inputs.to(sequences[0].dtype), targets.to(sequences[0].dtype)",
        ): "Your inputs and targets have the dtype of the sequences. int64 is asked for.",
        replace(
            "targets[row, :n] = sequence[1:]",
            "targets[row, :n] = sequence[1:]\n        targets[row, n:] = targets[row, n:].to(sequence.dtype)",
        ): "You fill the targets in the sequence's own dtype. A byte cannot hold −100, and makes 156 of it: "
        "convert to int64 first, then fill.",
        replace(
            "return inputs, targets", "return targets, inputs"
        ): "You return the targets first. The inputs come first.",
        replace(
            "inputs[row, :n] = sequence[:-1]",
            "inputs[row, :n] = sequence[1:]",
            "targets[row, :n] = sequence[1:]",
            "targets[row, :n] = sequence[:-1]",
        ): "You shift the wrong way: each target is the token before its "
        "input. It should be the one after it.",
        replace(
            "T = max(map(len, sequences)) - 1", "T = max(*map(len, sequences), 2) - 1"
        ): "Your rows have one place at least. Where each sequence is a single token there is nothing to "
        "predict, and T is 0.",
        replace(
            "enumerate(sequences)", "enumerate(sorted(sequences, key=len, reverse=True))"
        ): "You sort the sequences by their length. Row i belongs to sequence i.",
        replace(
            "enumerate(sequences)", "enumerate(sorted(sequences, key=len))"
        ): "You sort the sequences by their length. Row i belongs to sequence i.",
    }
)


@collate_padded.mistake(
    "You leave the last token of a sequence in the inputs. There it has no target: n tokens "
    "have n − 1 inputs."
)
def _(sequences, pad):
    T = max(map(len, sequences))
    inputs = torch.full((len(sequences), T), pad)
    targets = torch.full((len(sequences), T), -100)
    for row, sequence in enumerate(sequences):
        inputs[row, : len(sequence)] = sequence
        targets[row, : len(sequence) - 1] = sequence[1:]
    return inputs, targets


@collate_padded.mistake(
    "You cut the last column off rows that are padded already, so a shorter sequence keeps its last token "
    "among the inputs. Cut each sequence, then pad."
)
def _(sequences, pad):
    longs = [s.long() for s in sequences]
    inputs = pad_sequence(longs, batch_first=True, padding_value=pad)[:, :-1]
    targets = pad_sequence(longs, batch_first=True, padding_value=-100)[:, 1:]
    return inputs, targets


@collate_padded.mistake(
    "You fill the inputs in the sequences' own dtype, and a byte cannot hold every `pad`: convert to int64 first, then fill."
)
def _(sequences, pad):
    longs = [s.long() for s in sequences]
    inputs = pad_sequence([s[:-1] for s in sequences], batch_first=True, padding_value=pad)
    targets = pad_sequence([s[1:] for s in longs], batch_first=True, padding_value=-100)
    return inputs.long(), targets


@collate_padded.alternative("pad_sequence, twice")
def _(sequences, pad):
    longs = [s.long() for s in sequences]
    inputs = pad_sequence([s[:-1] for s in longs], batch_first=True, padding_value=pad)
    targets = pad_sequence([s[1:] for s in longs], batch_first=True, padding_value=-100)
    return inputs, targets


@collate_padded.alternative("lists of Python numbers")
def _(sequences, pad):
    rows = [s.tolist() for s in sequences]
    width = max(len(row) for row in rows) - 1
    x = [row[:-1] + [pad] * (width - len(row) + 1) for row in rows]
    y = [row[1:] + [-100] * (width - len(row) + 1) for row in rows]
    return torch.tensor(x, dtype=torch.int64), torch.tensor(y, dtype=torch.int64)


# ------------------------------------------------------------------------------ get_batch

get_batch = Exercise(
    data.get_batch,
    title="Random windows of a token file",
    difficulty=2,
    minutes=20,
    points=2,
    probe=probes.batches,
    hints=(
        "A window at i has the inputs data[i], …, data[i + context − 1] and the targets one place on. "
        "What is the largest i?",
        "The last target is data[i + context], so i is at most len(data) − context − 1: there are "
        "len(data) − context beginnings.",
        "Slice first, then convert: `data[i : i + context].astype(np.int64)` reads only the window.",
        (
            "edge cases",
            "A file of exactly context + 1 tokens has one window. One with fewer has none: "
            "raise ValueError before anything else.",
        ),
    ),
)


@get_batch.by_hand
def _():
    yield (
        call(ints(7, 8, 9), "uint16", 1, 2, 0),
        {
            "the generator was drawn from": True,
            "the result is a pair": True,
            "inputs": ints([7, 8]),
            "targets": ints([8, 9]),
            "in memory of their own": True,
            "the next number of the generator": 924_231_285,
            "torch's global generator was left alone": True,
        },
    )


@get_batch.cases
def _(draw):
    context = draw(st.integers(1, 5))
    tokens = draw(draws.indices((context + 1 + draw(st.integers(0, 9)),), 50_000))
    seed = draw(st.one_of(st.none(), st.integers(0, 99)))
    yield call(
        tokens, draw(st.sampled_from(("uint16", "uint32"))), draw(st.integers(1, 5)), context, seed
    )


@get_batch.edge
def _():
    run = torch.arange(65530, 65536)
    yield call(run, "uint16", 3, 2, 1), "tokens above 32,767 in uint16"
    yield (
        call(torch.arange(130_000, 130_009), "uint32", 4, 3, 1),
        "a vocabulary of more than 65,536 tokens",
    )
    yield call(torch.arange(250, 256), "uint8", 4, 2, 1), "bytes"
    yield call(torch.arange(4), "uint16", 5, 3, 1), "one window alone fits, again and again"
    yield call(torch.arange(4), "uint16", 1, 3, 1), "one window of one batch"
    yield call(torch.arange(3), "uint16", 2, 3, 1), "one token too few"
    yield call(torch.arange(2), "uint16", 2, 3, 1), "two tokens too few"
    yield call(torch.arange(0), "uint16", 2, 3, 1), "an empty file"
    yield call(torch.arange(9), "uint16", 4, 1, None), "no generator is given"
    yield call(1 << 21, "uint16", 4, 512, 3), "a file of 4 MiB, of which a batch needs 4 KiB"


LAST_WINDOW = (
    "The last window never comes: there are len(data) − context beginnings, and randint leaves out its upper "
    "bound."
)
get_batch.slips(
    {
        replace("n = len(data) - context\n", "n = len(data) - context - 1\n"): LAST_WINDOW,
        replace("torch.randint(n,", "torch.randint(n - 1,"): LAST_WINDOW,
        replace(
            "n = len(data) - context\n", "n = len(data) - context + 1\n", "if n < 1:", "if n < 2:"
        ): "Your last window has no target after its last input: there are len(data) − context beginnings.",
        replace(
            "if n < 1:", "if n < 2:"
        ): "You refuse a file of context + 1 tokens. It has one window.",
        replace(
            "if n < 1:", "if n < 0:"
        ): "You take a file of `context` tokens. Its window would lack the "
        "last target: raise ValueError.",
        replace(
            "data[i + 1 : i + 1 + context]", "data[i : i + context]"
        ): "Your targets are the inputs. The target of a token is the one after it.",
        replace(
            "data[i + 1 : i + 1 + context]",
            "data[i + 2 : i + 2 + context]",
            "n = len(data) - context\n",
            "n = len(data) - context - 1\n",
        ): "Your targets are two places on. The token after the input is one place on.",
        replace(
            ", generator=generator", ""
        ): "You draw from torch's global generator, whatever is given.",
        replace(
            "data[i : i + context].astype(np.int64)",
            "data[i : i + context].astype(np.int16).astype(np.int64)",
            "data[i + 1 : i + 1 + context].astype(np.int64)",
            "data[i + 1 : i + 1 + context].astype(np.int16).astype(np.int64)",
        ): "Tokens above 32,767 become negative: uint16 does not fit into int16. Convert to int64 at once.",
        replace(
            "data[i : i + context].astype(np.int64)",
            "data[i : i + context].astype(np.int32)",
            "data[i + 1 : i + 1 + context].astype(np.int64)",
            "data[i + 1 : i + 1 + context].astype(np.int32)",
        ): "Your results are int32. Embeddings and losses take int64.",
        replace(
            "x = np.stack([data[i", "data = data.astype(np.int64)\n    x = np.stack([data[i"
        ): "You read more of the file than the windows: all of it, or all that lies between them. Slice "
        "each window, then convert the slice.",
        replace(
            ".tolist()", ".sort().values.tolist()"
        ): "You sort the beginnings. The rows come in the order in which they were drawn.",
        replace(
            "generator=generator)", "generator=generator or torch.Generator().manual_seed(0))"
        ): "Where no generator is given you do not draw from torch's global one. torch.randint takes None as "
        "it is.",
        replace(
            "torch.randint(n, (batch_size,), generator=generator)",
            "torch.randperm(n, generator=generator)[:batch_size]",
        ): "You draw by torch.randperm, so no beginning comes twice. torch.randint is asked for.",
        replace(
            "return torch.from_numpy(x), torch.from_numpy(y)",
            "rows = torch.from_numpy(np.concatenate([x, y[:, -1:]], 1))\n    return rows[:, :-1], rows[:, 1:]",
        ): "Inputs and targets share memory: what is written into one shows in the other. Copy one of them.",
        replace(
            "(batch_size,), generator", "(1,), generator", ".tolist()", ".tolist() * batch_size"
        ): "All your windows begin at the same place. Draw a beginning for each.",
        replace(
            "torch.randint(n, (batch_size,), generator=generator).tolist()",
            "[int(torch.randint(n, (1,), generator=generator)) + 0 * k for k in range(batch_size)]\n    torch.randint(n, (1,), generator=generator)",
        ): "You draw more numbers from the generator than there are windows. One call of torch.randint is asked for.",
        replace(
            "raise ValueError(f", "assert False, (f"
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            "return torch.from_numpy(x), torch.from_numpy(y)",
            "return torch.from_numpy(y), torch.from_numpy(x)",
        ): "You return the targets first. The inputs come first.",
    }
)


@get_batch.mistake(
    "You check the length after the beginnings are drawn: for a file that is too short "
    "torch.randint raises RuntimeError. Raise ValueError first."
)
def _(data, batch_size, context, generator=None):
    starts = torch.randint(len(data) - context, (batch_size,), generator=generator).tolist()
    x = np.stack([data[i : i + context].astype(np.int64) for i in starts])
    y = np.stack([data[i + 1 : i + 1 + context].astype(np.int64) for i in starts])
    return torch.from_numpy(x), torch.from_numpy(y)


@get_batch.mistake(
    "Your beginnings come from NumPy, from Python, or from a generator of your own, whatever is given. Hand "
    "it to torch.randint."
)
def _(data, batch_size, context, generator=None):
    if len(data) <= context:
        raise ValueError("too short")
    starts = np.random.randint(len(data) - context, size=batch_size)[:, None]
    windows = torch.from_numpy(data[starts + np.arange(context + 1)].astype(np.int64))
    return windows[:, :-1].clone(), windows[:, 1:].clone()


@get_batch.mistake(
    "Your windows follow one another from the first beginning. Each window begins at a place of its own."
)
def _(data, batch_size, context, generator=None):
    n = len(data) - context
    if n < 1:
        raise ValueError("too short")
    starts = torch.randint(n, (batch_size,), generator=generator)
    rows = (starts[0] + torch.arange(batch_size)[:, None] + torch.arange(context)) % n
    x = torch.from_numpy(data[rows.numpy()].astype(np.int64))
    return x, torch.from_numpy(data[rows.numpy() + 1].astype(np.int64))


@get_batch.alternative("one matrix of indices")
def _(data, batch_size, context, generator=None):
    if len(data) <= context:
        raise ValueError("the file is too short")
    starts = torch.randint(len(data) - context, (batch_size,), generator=generator).numpy()
    windows = data[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    rows = torch.from_numpy(windows)
    return rows[:, :-1].clone(), rows[:, 1:].clone()


@get_batch.alternative("as nanoGPT has it, tensor by tensor")
def _(data, batch_size, context, generator=None):
    if len(data) < context + 1:
        raise ValueError("the file is too short")
    ix = torch.randint(len(data) - context, (batch_size,), generator=generator)
    x = torch.stack([torch.from_numpy((data[i : i + context]).astype(np.int64)) for i in ix])
    y = torch.stack(
        [torch.from_numpy((data[i + 1 : i + 1 + context]).astype(np.int64)) for i in ix]
    )
    return x, y


get_batch.equivalent(
    "get_batch: `torch.randint(n, (batch_size,), generator=generator).tolist()` → "
    "`torch.randint(n, (batch_size,), generator=generator)`",
    because="a tensor of one integer is an index like an int",
)

# ------------------------------------------------------------------------------ pack_documents

pack_documents = Exercise(
    data.pack_documents,
    title="Rows without padding",
    difficulty=2,
    minutes=25,
    points=2,
    probe=probes.packed,
    hints=(
        "Keep two lists: tokens that wait for a row, and the number of each one's document.",
        "Take a document and put it and `end` into the lists. While they hold a row or more, yield one "
        "and take it away from their front.",
        "A function with `yield` runs only as far as its rows are asked for. That alone makes it lazy, if "
        "you take one document at a time.",
        (
            "edge cases",
            "A document may be longer than several rows: `while`, not `if`. An empty one is its `end` alone.",
        ),
    ),
)


def rows_of(documents, *rows, taken):
    """What the probe sees of these rows, pairs of tokens and numbers."""
    seen = {"rows": len(rows)}
    for number, (tokens, numbers) in enumerate(rows, start=1):
        seen[f"tokens of row {number}"] = torch.tensor(tokens)
        seen[f"document numbers of row {number}"] = torch.tensor(numbers)
    return seen | {
        "rows stay as they were given": True,
        "documents taken before each row came": taken,
    }


@pack_documents.by_hand
def _():
    three = [[5, 6], [7], [8, 9]]
    yield (
        call(three, 3, 0),
        rows_of(three, ([5, 6, 0], [0, 0, 0]), ([7, 0, 8], [1, 1, 2]), taken=[1, 3]),
    )
    long = [[1, 2, 3, 4, 5]]
    yield (
        call(long, 2, 0),
        rows_of(long, ([1, 2], [0, 0]), ([3, 4], [0, 0]), ([5, 0], [0, 0]), taken=[1, 1, 1]),
    )


@pack_documents.cases
def _(draw):
    documents = draw(st.lists(st.lists(st.integers(1, 99), max_size=6), min_size=1, max_size=6))
    yield call(documents, draw(st.integers(1, 5)), draw(st.integers(0, 3)))


@pack_documents.edge
def _():
    yield call([], 3, 0), "no document"
    yield call([[], [], [4]], 2, 0), "empty documents: their end alone"
    yield call([[4, 5]], 4, 0), "less than a row: nothing comes"
    yield call([[4, 5, 6]], 4, 0), "exactly a row"
    yield call([list(range(1, 12))], 3, 0), "a document of four rows"
    yield call([[1, 0, 2], [0]], 2, 0), "the end token within a document"
    yield (
        call([[4, 5], [6, 7], [8, 9], [1, 2]], 3, 0, rows=1),
        "one row is asked for: one document is needed",
    )
    yield (
        call([[4, 5, 6, 7, 8]] * 4, 3, 0, rows=2),
        "two rows of one document: the second is not needed",
    )
    yield call([[k] for k in range(90)], 4, 500), "many short documents in a row"
    yield call([(5, 6), (7,), (8, 9)], 3, 0), "documents that are tuples"
    yield call([[5, 6], [7], [8, 9]], 3, 0, a_list=True), "a list, which is no iterator"


WAITS = (
    "A row whose last token is an `end` waits for the next document. It is full: put `end` behind its "
    "document at once, and yield at `>=`."
)
SHARED = (
    "Your rows share one buffer: when the next is asked for, those given out before change. Make new tensors "
    "for each row."
)
pack_documents.slips(
    {
        replace(
            "tokens += [*document, end]",
            "tokens += document",
            "[number] * (len(document) + 1)",
            "[number] * len(document)",
        ): "You leave out the `end` after each document.",
        replace(
            "tokens += [*document, end]", "tokens += [end, *document]"
        ): "You put `end` before each document. It follows it.",
        replace(
            "[number] * (len(document) + 1)", "[number] * len(document) + [number + 1]"
        ): "You count `end` to the next document. It belongs to the one that it ends.",
        replace(
            "enumerate(documents)", "enumerate(documents, 1)"
        ): "Your documents are counted from 1. The first one is number 0.",
        replace(
            "while len(tokens)", "if len(tokens)"
        ): "You take one row at most from each document. A long one fills several: use `while`.",
        replace("len(tokens) >= context", "len(tokens) > context"): WAITS,
        replace(
            "enumerate(documents)", "enumerate(filter(len, documents))"
        ): "You leave out empty documents. Each has its `end`, and a number.",
        replace(
            "for number, document in enumerate(documents):",
            "number = 0\n    for document in documents:",
            "numbers += [number] * (len(document) + 1)",
            "for token in [*document, end]:\n"
            "            numbers.append(number)\n"
            "            number += token == end",
        ): "You count up at every token that equals `end`. A document may contain that token itself, and goes on "
        "after it.",
        replace(
            "tokens += [*document, end]",
            "if not document:\n            continue\n        tokens += [*document, end]",
        ): "You leave out empty documents. Each has its `end`, and a number.",
        replace(
            "tokens += [*document, end]",
            "document = document[: len(document) - (document[-1:] == [end])]\n        tokens += [*document, end]",
        ): "You put no `end` behind a document whose own last token is one. Each is followed by one more.",
        replace(
            "tokens, numbers = tokens[context:], numbers[context:]", "tokens, numbers = [], []"
        ): "You throw away what is left of a document after a row. The next row begins with it.",
        replace(
            "tokens, numbers = tokens[context:], numbers[context:]",
            "tokens, numbers = tokens[context - 1 :], numbers[context - 1 :]",
            "while len(tokens) >= context:",
            "while len(tokens) >= context > 1:",
        ): "Your rows overlap by a token. Each token is in one row.",
        replace(
            "enumerate(documents)", "enumerate(list(documents))"
        ): "You take all documents before the "
        "first row. Take the next one when it is needed: the stream may be endless.",
        replace(
            "tokens += [*document, end]",
            "document.append(end)\n        tokens += document",
            "(len(document) + 1)",
            "len(document)",
        ): "You append `end` to the caller's documents. Copy the tokens into a list of your own.",
        replace(
            "[*document, end]", "document + [end]"
        ): "`document + [end]` takes a list alone. A document may be any sequence: [*document, end].",
        replace(
            "enumerate(documents):\n",
            "enumerate(iter(lambda: next(documents, None), None)):\n",
        ): "You call next on what is given, and only an iterator takes that. Any iterable may come: a for loop, or iter first.",
    }
)


@pack_documents.mistake(
    "You number the documents of each row from 0. The numbers are counted over the whole stream."
)
def _(documents, context, end):
    for tokens, numbers in data.pack_documents(documents, context, end):
        yield tokens, numbers - numbers[0]


@pack_documents.mistake(
    "You pad what is left at the end to a row. It is dropped: rows have no padding."
)
def _(documents, context, end):
    tokens, numbers, number = [], [], 0
    for number, document in enumerate(documents):
        tokens += [*document, end]
        numbers += [number] * (len(document) + 1)
        while len(tokens) >= context:
            yield torch.tensor(tokens[:context]), torch.tensor(numbers[:context])
            tokens, numbers = tokens[context:], numbers[context:]
    if tokens:
        left = context - len(tokens)
        yield torch.tensor(tokens + [end] * left), torch.tensor(numbers + [number] * left)


@pack_documents.mistake(
    "You begin every document in a row of its own and cut what does not fit. Documents follow one "
    "another without a gap, and go on in the next row."
)
def _(documents, context, end):
    for number, document in enumerate(documents):
        row = [*document, end][:context]
        if len(row) == context:
            yield torch.tensor(row), torch.full((context,), number)


@pack_documents.mistake(
    "You yield what is left over at the end as a shorter row. It fills no row and is dropped."
)
def _(documents, context, end):
    tokens, numbers = [], []
    for number, document in enumerate(documents):
        tokens += [*document, end]
        numbers += [number] * (len(document) + 1)
        while len(tokens) >= context:
            yield torch.tensor(tokens[:context]), torch.tensor(numbers[:context])
            tokens, numbers = tokens[context:], numbers[context:]
    if tokens:
        yield torch.tensor(tokens), torch.tensor(numbers)


@pack_documents.mistake(WAITS)
def _(documents, context, end):
    tokens, numbers = [], []
    for number, document in enumerate(documents):
        tokens += [*document, end]
        numbers += [number] * (len(document) + 1)
        while len(tokens) > context:
            yield torch.tensor(tokens[:context]), torch.tensor(numbers[:context])
            tokens, numbers = tokens[context:], numbers[context:]
    if len(tokens) == context:
        yield torch.tensor(tokens), torch.tensor(numbers)


@pack_documents.mistake(SHARED)
def _(documents, context, end):
    row, ids = torch.empty(context, dtype=torch.long), torch.empty(context, dtype=torch.long)
    for tokens, numbers in data.pack_documents(documents, context, end):
        yield row.copy_(tokens), ids.copy_(numbers)


@pack_documents.mistake(SHARED)
def _(documents, context, end):
    row, ids, place = torch.zeros(context).long(), torch.zeros(context).long(), 0
    for number, document in enumerate(documents):
        for token in (*document, end):
            row[place], ids[place], place = token, number, (place + 1) % context
            if place == 0:
                yield row, ids


@pack_documents.alternative("one stream of pairs, cut by islice")
def _(documents, context, end):
    stream = chain.from_iterable(
        ((token, number) for token in (*document, end)) for number, document in enumerate(documents)
    )
    while len(row := list(islice(stream, context))) == context:
        tokens, numbers = zip(*row, strict=True)
        yield torch.tensor(tokens), torch.tensor(numbers)


@pack_documents.alternative("a deque")
def _(documents, context, end):
    waiting = deque()
    for i, document in enumerate(documents):
        waiting.extend((t, i) for t in list(document) + [end])
        while len(waiting) >= context:
            row = [waiting.popleft() for _ in range(context)]
            yield torch.tensor([t for t, _ in row]), torch.tensor([i for _, i in row])


# ------------------------------------------------------------------------------ positions and mask

document_positions = Exercise(
    data.document_positions,
    title="Positions in a packed row",
    difficulty=2,
    minutes=20,
    points=2,
    hints=(
        "Where does a document begin? At the row's first place, and wherever the number differs from the "
        "one before.",
        "A token's position is its place in the row less the place where its document begins.",
        "Put the place at each beginning and 0 elsewhere, then take a running maximum: `cummax`.",
    ),
)
ROWS = ints([0, 0, 0, 1, 1, 2], [3, 4, 4, 4, 4, 4])


@st.composite
def numbered(draw, B=None, T=None):
    """Rows of document numbers, as packing gives them."""
    B, T = B or draw(st.integers(1, 4)), T or draw(st.integers(1, 8))
    steps = draw(st.lists(st.sampled_from((0, 0, 1, 1, 3)), min_size=B * T, max_size=B * T))
    return torch.tensor(steps).cumsum(0).view(B, T)


@document_positions.by_hand
def _():
    yield call(ints([0, 0, 1, 1, 1])), ints([0, 1, 0, 1, 2])
    yield call(ROWS), ints([0, 1, 2, 0, 1, 0], [0, 0, 1, 2, 3, 4])


@document_positions.cases
def _(draw):
    yield call(draw(numbered()))


@document_positions.edge
def _():
    yield call(ints([7, 7, 7, 7])), "one document, begun in an earlier row"
    yield call(ints([0, 1, 2, 3])), "each token is a document"
    yield call(ints([5], [5])), "rows of one token"
    yield call(ints([0, 0, 1], [1, 1, 1], [1, 2, 2])), "a document over three rows"
    yield call(ints([0, 4, 4, 9])), "numbers that are skipped"
    yield call(draws.scattered(ROWS)), "not contiguous"
    yield call(ROWS.int()), "numbers in int32 give positions in int64"
    yield call(torch.zeros(2, 3, dtype=torch.long, device="meta")), "on another device"
    yield call(torch.empty(0, 3, dtype=torch.long)), "no row"


document_positions.contract(
    contracts.constant_kernels(
        [call(torch.arange(8).view(2, 4) // 2), call(torch.arange(96).view(3, 32) // 5)],
        "No Python loop: the number of operations does not grow with the rows, their length or the documents.",
    )
)
document_positions.slips(
    {
        replace(
            "place - torch.where(begins, place, 0).cummax(dim=1).values", "place.clone()"
        ): "Your positions do not begin again at a new document.",
        replace(
            "cummax(dim=1)", "cummax(dim=0)"
        ): "Your running maximum goes from row to row. It runs along each row: dim=1.",
        replace(
            "numbers[:, 1:] != numbers[:, :-1]", "numbers[:, 1:] == numbers[:, :-1]"
        ): "You take a token for "
        "the first of its document where it is not, and the other way round.",
        replace(
            "place - torch.where(begins, place, 0).cummax(dim=1).values",
            "place - torch.where(begins, place, 0).cummax(dim=1).values + 1",
        ): "Your positions begin at 1. The first is 0.",
        replace(
            "place - torch.where(begins, place, 0).cummax(dim=1).values",
            "place - torch.where(begins, place, 0)",
        ): "You take away the beginning at the first token of each document "
        "alone. The tokens after it need it as well: a running maximum carries it on.",
        replace(
            "cummax(dim=1).values", "cumsum(dim=1)"
        ): "You add up the places where documents begin, so from the third document of a row on you take "
        "away too much. Carry the last beginning on: `cummax`, not `cumsum`.",
        replace(
            "place - torch.where(begins, place, 0).cummax(dim=1).values",
            "torch.where(begins, place, 0).cummax(dim=1).values",
        ): "You return where each document begins. The position is the place in the row less that.",
        replace(
            "place - torch.where(begins, place, 0).cummax(dim=1).values",
            "(place - torch.where(begins, place, 0).cummax(dim=1).values).to(numbers.dtype)",
        ): "Your positions have the dtype of the numbers. int64 is asked for.",
        replace(
            "torch.ones_like(numbers, dtype=torch.bool)\n    begins[:, 1:] = numbers[:, 1:] != numbers[:, :-1]",
            "torch.zeros_like(numbers, dtype=torch.bool)\n    begins[:, :-1] = numbers[:, 1:] != numbers[:, :-1]",
        ): "Your documents begin a place too early: at the last token of the one before.",
        replace(
            "place - torch.where(begins, place, 0).cummax(dim=1).values",
            "begins.long().cumsum(1) - 1",
        ): "You return which document of the row it is. The position of the token in it is "
        "asked for.",
    }
)


@document_positions.mistake(
    "Documents that go on in the next row count on there. Positions in a row begin at 0."
)
def _(numbers):
    flat = numbers.reshape(1, -1)
    return data.document_positions(flat).view(numbers.shape)


STEPS = (
    "You take it that numbers go up in steps of 1. They may go up by more: a document begins wherever the "
    "number changes."
)
ELSEWHERE = (
    "You make a tensor on the CPU, wherever the numbers are. Give it `device=numbers.device`."
)
document_positions.slips(
    {
        replace(
            "numbers[:, 1:] != numbers[:, :-1]", "numbers[:, 1:] == numbers[:, :-1] + 1"
        ): STEPS,
        replace(", device=numbers.device", ""): ELSEWHERE,
    }
)


@document_positions.mistake(STEPS)
def _(numbers):
    first = numbers - numbers[:, :1]
    counts = torch.nn.functional.one_hot(
        first, 1 + int(first.max()) if first.numel() else 1
    ).cumsum(1)
    return counts.gather(2, first[..., None]).squeeze(-1) - 1 + (first > numbers.size(1)).long()


@document_positions.mistake(
    "A loop over the tokens runs as many operations as there are tokens.", cost=True
)
def _(numbers):
    positions = torch.zeros_like(numbers, dtype=torch.long)
    for t in range(1, numbers.size(1)):
        same = numbers[:, t] == numbers[:, t - 1]
        positions[:, t] = torch.where(same, positions[:, t - 1] + 1, 0)
    return positions


@document_positions.alternative("count the tokens before it that are of the same document")
def _(numbers):
    same = numbers[:, :, None] == numbers[:, None, :]
    return same.tril(-1).sum(-1)


@document_positions.alternative("searchsorted finds the first token of each document")
def _(numbers):
    numbers = numbers.contiguous()
    first = torch.searchsorted(numbers, numbers)
    return torch.arange(numbers.size(1), device=numbers.device) - first


for mutant, because in {
    "`torch.arange(numbers.size(1), device=numbers.device).expand(numbers.sha…` → "
    "`torch.arange(numbers.size(1), device=numbers.device)`": "the places broadcast over the rows",
    "`torch.ones_like(numbers, dtype=torch.bool)` → `torch.zeros_like(numbers, dtype=torch.bool)`": "a "
    "document that is said to begin at place 0 puts 0 there, and so does none",
    "`torch.where(begins, place, 0).cummax(dim=1)` → `torch.where(begins, place, 0).cummax(dim=-1)`": "a row has "
    "two axes, so the last is axis 1",
    "`torch.where(begins, place, 0)` → `torch.where(begins, place, -1)`": "a document begins at place 0, and the "
    "running maximum is never below that",
}.items():
    document_positions.equivalent(f"document_positions: {mutant}", because=because)


document_mask = Exercise(
    data.document_mask,
    title="A mask for packed documents",
    difficulty=2,
    minutes=15,
    points=2,
    hints=(
        "Two tokens are of one document if their numbers are equal. Compare all pairs by broadcasting.",
        "Queries on the third axis: `numbers[:, None, :, None]`. Keys on the last: "
        "`numbers[:, None, None, :]`.",
        "And the causal rule: a query sees keys at its own place and before. `tril` keeps these.",
    ),
)


@document_mask.by_hand
def _():
    yes, no = True, False
    yield (
        call(ints([0, 0, 1])),
        torch.tensor([[[[yes, no, no], [yes, yes, no], [no, no, yes]]]]),
    )
    yield (
        call(ints([4, 4], [4, 5])),
        torch.tensor([[[[yes, no], [yes, yes]]], [[[yes, no], [no, yes]]]]),
    )


@document_mask.cases
def _(draw):
    yield call(draw(numbered()))


@document_mask.edge
def _():
    yield call(ints([3, 3, 3])), "one document: the causal mask"
    yield call(ints([0, 1, 2])), "each token sees itself alone"
    yield call(ints([0, 0, 1], [1, 1, 1])), "the same number in two rows"
    yield call(ints([8], [9])), "rows of one token"
    yield call(draws.scattered(ROWS)), "not contiguous"
    yield call(ROWS.int()), "numbers in int32"
    yield call(torch.zeros(2, 3, dtype=torch.long, device="meta")), "on another device"
    yield call(torch.empty(0, 3, dtype=torch.long)), "no row"
    yield call(torch.empty(2, 0, dtype=torch.long)), "rows without tokens"


document_mask.contract(
    contracts.constant_kernels(
        [call(torch.arange(8).view(2, 4) // 2), call(torch.arange(96).view(3, 32) // 5)],
        "No Python loop: the number of operations does not grow with the rows, their length or the documents.",
    )
)
document_mask.contract(
    contracts.largest_tensor(
        [call(torch.arange(512).view(2, 256) // 50)],
        2 * 256 * 256,
        "No tensor is larger than the mask itself: B · T · T bytes.",
    )
)
document_mask.slips(
    {
        replace(
            ".tril()", ""
        ): "Your tokens see those after them in their document. The mask is causal as well: `tril`.",
        replace(
            ".tril()", ".triu()"
        ): "Your causal rule is upside down: a token sees those before it, not after.",
        replace(
            ".tril()", ".tril(-1)"
        ): "Your tokens do not see themselves. The diagonal belongs to the mask, or "
        "the first token of a document has nothing to attend to.",
        replace("same & torch", "~same & torch"): "Your tokens see all documents but their own.",
        replace(
            "return same & torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril()",
            "return ~(same & torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril())",
        ): "In your mask True means hidden. Here it means may attend.",
        replace(
            "return same & torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril()",
            "return (same & torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril()).squeeze(1)",
        ): "Your mask lacks the axis for the heads: (B, 1, T, T).",
        replace(
            "return same & torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril()",
            "return (same & torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril()).float()",
        ): "Your mask has numbers. A "
        "float mask is added to the scores; a bool mask says who may attend.",
        replace(
            "return same & torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril()",
            "return torch.zeros(same.shape).masked_fill(~(same & torch.ones(T, T, dtype=torch.bool).tril()), "
            "float('-inf'))",
        ): "That is the mask that is added to scores. A bool mask is asked for, True for may attend.",
        replace(
            "numbers[:, None, :, None] == numbers[:, None, None, :]",
            "numbers[:1, None, :, None] == numbers[:1, None, None, :]",
            "return same &",
            "return same.expand(len(numbers), 1, T, T) &",
        ): "You mask every row like the first one.",
        replace(
            "return same &", "return same & (numbers != 0)[:, None, None, :] &"
        ): "You take number 0 for padding. It is the first document, and packed rows have no padding.",
        replace(", device=numbers.device", ""): ELSEWHERE,
    }
)


for moved in (".transpose(0, 1)", ".transpose(1, 2)", ".squeeze(1)[..., None]"):
    document_mask.slips(
        {
            replace(
                "return same & torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril()",
                "return (same & torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril())"
                + moved,
            ): "Your axis for the heads is at another place. It comes after that of the rows: (B, 1, T, T).",
        }
    )


@document_mask.mistake(
    "Your tokens see all earlier documents: the mask is the causal one. Only equal numbers are one document."
)
def _(numbers):
    B, T = numbers.shape
    causal = torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril()
    return causal.expand(B, 1, T, T).clone()


@document_mask.mistake(
    "Your tokens see the document just before their own as well. Only equal numbers are one document."
)
def _(numbers):
    T = numbers.size(1)
    near = numbers[:, None, :, None] - numbers[:, None, None, :] <= 1
    return near & torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril()


@document_mask.mistake(
    "A loop over the rows runs more operations the more rows there are.", cost=True
)
def _(numbers):
    T = numbers.size(1)
    causal = torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril()
    rows = [(row[:, None] == row[None, :]) & causal for row in numbers]
    return torch.stack(rows)[:, None] if rows else torch.empty(0, 1, T, T, dtype=torch.bool)


@document_mask.mistake(
    "You make a tensor of (B, T, T) integers on the way, eight times as large as the mask. Compare, "
    "and keep bools.",
    cost=True,
)
def _(numbers):
    difference = numbers[:, None, :, None].long() - numbers[:, None, None, :].long()
    T = numbers.size(1)
    return (difference == 0) & torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril()


@document_mask.mistake(
    "You make the causal part of floats, four bytes for each pair of places. Give `torch.ones` the dtype "
    "torch.bool.",
    cost=True,
)
def _(numbers):
    T = numbers.size(1)
    same = numbers[:, None, :, None] == numbers[:, None, None, :]
    return same & torch.ones(T, T, device=numbers.device).tril().bool()


@document_mask.mistake(
    "You make the causal part of integers, eight bytes for each pair of places. Compare the places "
    "themselves, `place[:, None] >= place`, or give `torch.ones` the dtype torch.bool.",
    cost=True,
)
def _(numbers):
    place = torch.arange(numbers.size(1), device=numbers.device)
    same = numbers[:, None, :, None] == numbers[:, None, None, :]
    return same & (place[:, None] - place >= 0)


@document_mask.alternative("two comparisons of places and numbers")
def _(numbers):
    place = torch.arange(numbers.shape[1], device=numbers.device)
    causal = place[:, None] >= place
    return ((numbers.unsqueeze(2) == numbers.unsqueeze(1)) & causal).unsqueeze(1)


# ------------------------------------------------------------------------------ shuffled_window

shuffled_window = Exercise(
    data.shuffled_window,
    title="Shuffling a stream",
    difficulty=2,
    minutes=20,
    points=2,
    probe=probes.shuffled,
    hints=(
        "Fill a list with the first `size` items. `islice(stream, size)` gives as many as there are.",
        "Draw a place of the list, give out what lies there, and put the next item of the stream in its stead.",
        "When the stream has ended, take what was drawn out of the list, until it is empty.",
        ("edge cases", "Do not use None as the sign that the stream has ended: it may be an item."),
    ),
)


def ordered(of, size, **more):
    seen = {
        "every item once": True,
        "items held": f"at most {size}",
        "torch's global generator was left alone": True,
        "the same generator gives the same order": True,
    }
    return seen | more


@shuffled_window.by_hand
def _():
    yield call([5, 6, 7], 1, 0), ordered([5, 6, 7], 1, order=[5, 6, 7])
    yield call([3, 1], 2, 0), ordered([3, 1], 2)


@shuffled_window.cases(15)
def _(draw):
    yield call(
        list(range(draw(st.integers(0, 12)))), draw(st.integers(1, 6)), draw(st.integers(0, 99))
    )


@shuffled_window.edge
def _():
    yield call([0, 1, 2, 3, 4], 3, 7, often=2), "each item of the buffer is as likely"
    yield call([0, 1, 2], 3, 8, often=3), "a buffer that holds them all"
    yield call([0, 1, 2], 4, 9, often=1), "a buffer larger than the stream"
    yield call([0, 1, 2, 3, 4, 5], 2, 7, often=2), "a buffer of two"
    yield call([], 3, 0), "nothing to shuffle"
    yield call([None, 0, False, None, ""], 2, 1), "items that look like nothing"
    yield call([[1, 2], [3], [4, 5]], 2, 1), "items of any kind"
    yield call(list(range(7)), 3, 1, take=40), "a stream without end"
    yield (
        call([0, 1, 2, 3, 4], 2, 1, a_list=True),
        "a list, which begins again when it is asked again",
    )
    yield call([1, 2, 3], 0, 0), "no buffer at all"
    yield call([], -1, 0), "a negative size, and nothing to shuffle"


DRAWN_ELSEWHERE = "You draw from torch's global generator, if only when the stream has ended. Draw from the one that is given."
BY_PYTHON = "You draw with Python's own random module, if only when the stream has ended. Draw from the generator."
UNDRAWN = "When the stream ends you give out the rest of the buffer without drawing. Draw from it to the end."
UNEVEN = (
    "While the buffer empties some of its items are likelier than others. Draw from as many places as it has "
    "left."
)
shuffled_window.slips(
    {
        replace(
            "torch.randint(len(buffer), (1,), generator=generator)",
            "torch.randint(len(buffer), (1,))",
        ): DRAWN_ELSEWHERE,
        replace(
            "torch.randint(len(buffer), (1,), generator=generator)",
            "torch.randint(len(buffer), (1,), generator=generator if len(buffer) == size else None)",
        ): DRAWN_ELSEWHERE,
        replace(
            "stream = iter(items)", "items = list(items)\n    stream = iter(items)"
        ): "You take the whole stream at once. It may be endless: hold `size` items at most.",
        replace(
            "while buffer:\n", "while len(buffer) == size:\n"
        ): "You stop when the stream ends, and lose what is in the buffer. Give that out as well.",
        replace(
            "len(buffer), (1,)", "max(len(buffer) - 1, 1), (1,)"
        ): "The last item of your buffer is never drawn. "
        "randint leaves out its upper bound: give it the buffer's length.",
        replace(
            "torch.randint(len(buffer), (1,), generator=generator)",
            "torch.randint(size, (1,), generator=generator) % len(buffer)",
        ): UNEVEN,
        replace(
            "torch.randint(len(buffer), (1,), generator=generator)",
            "torch.randint(size, (1,), generator=generator).clamp(max=len(buffer) - 1)",
        ): UNEVEN,
        replace(
            "if size < 1:", "if size < 0:"
        ): "A buffer of 0 items gives out nothing, without a word. Raise ValueError.",
        replace(
            "islice(stream, size))", "islice(stream, size - 1))"
        ): "Your buffer holds one item fewer than it may.",
        replace(
            "islice(stream, size))", "islice(stream, size + 1))"
        ): "Your buffer holds one item more than it may.",
        replace(
            "buffer[place], buffer[-1] = buffer[-1], buffer[place]", "place = 0"
        ): "You give out the item that has been in the buffer last, without drawing.",
        replace(
            "raise ValueError(f", "assert False, (f"
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
    }
)


def emptied_by(rest):
    """Shuffles rightly until the stream has ended; `rest` then says in which order the others come."""

    def shuffled(items, size, generator):
        if size < 1:
            raise ValueError("size")
        buffer = []
        for item in items:
            buffer.append(item)
            if len(buffer) == size:
                yield buffer.pop(int(torch.randint(size, (1,), generator=generator)))
        yield from rest(buffer)

    return shuffled


for says, rest in (
    (DRAWN_ELSEWHERE, lambda buffer: [buffer[i] for i in torch.randperm(len(buffer)).tolist()]),
    (BY_PYTHON, lambda buffer: random.sample(buffer, len(buffer))),
    (UNDRAWN, list),
    (UNDRAWN, reversed),
):
    shuffled_window.mistake(says)(emptied_by(rest))


def emptied_at(place):
    """Shuffles rightly while the buffer is full; then an item comes from a place made of the number drawn."""

    def shuffled(items, size, generator):
        if size < 1:
            raise ValueError("size")
        stream = iter(items)
        buffer = list(islice(stream, size))
        while buffer:
            drawn = int(torch.randint(size, (1,), generator=generator))
            yield buffer.pop(place(drawn, len(buffer)))
            buffer += islice(stream, 1)

    return shuffled


for place in (lambda drawn, left: drawn % left, lambda drawn, left: min(drawn, left - 1)):
    shuffled_window.mistake(UNEVEN)(emptied_at(place))


@shuffled_window.mistake(
    "You shuffle block by block: items of one block never mix with the next. Replace each item as it is "
    "given out."
)
def _(items, size, generator):
    if size < 1:
        raise ValueError("size")
    stream = iter(items)
    while block := list(islice(stream, size)):
        for i in torch.randperm(len(block), generator=generator).tolist():
            yield block[i]


@shuffled_window.mistake(UNDRAWN)
def _(items, size, generator):
    if size < 1:
        raise ValueError("size")
    stream = iter(items)
    buffer = list(islice(stream, size))
    for item in stream:
        place = int(torch.randint(len(buffer), (1,), generator=generator))
        yield buffer[place]
        buffer[place] = item
    yield from buffer


@shuffled_window.mistake(
    "You go through what is given twice, to fill the buffer and for the rest. A list begins again, and items come twice: "
    "make one iterator of it, by iter."
)
def _(items, size, generator):
    if size < 1:
        raise ValueError("size")
    buffer = list(islice(items, size))
    for item in items:
        place = int(torch.randint(len(buffer), (1,), generator=generator))
        yield buffer[place]
        buffer[place] = item
    while buffer:
        yield buffer.pop(int(torch.randint(len(buffer), (1,), generator=generator)))


@shuffled_window.mistake(
    "You take None for the end of the stream. It may be an item: go by StopIteration, or by a for loop."
)
def _(items, size, generator):
    if size < 1:
        raise ValueError("size")
    stream = iter(items)
    buffer = []
    while len(buffer) < size and (item := next(stream, None)) is not None:
        buffer.append(item)
    while buffer:
        place = int(torch.randint(len(buffer), (1,), generator=generator))
        buffer[place], buffer[-1] = buffer[-1], buffer[place]
        yield buffer.pop()
        if (item := next(stream, None)) is not None:
            buffer.append(item)


@shuffled_window.mistake(
    "You seed a generator yourself, so every stream is shuffled alike. Draw from the one that is given."
)
def _(items, size, generator):
    return data.shuffled_window(items, size, torch.Generator().manual_seed(0))


@shuffled_window.mistake(BY_PYTHON)
def _(items, size, generator):
    if size < 1:
        raise ValueError("size")
    stream = iter(items)
    buffer = list(islice(stream, size))
    while buffer:
        yield buffer.pop(random.randrange(len(buffer)))
        buffer += islice(stream, 1)


@shuffled_window.alternative("the new item first, then the draw is given out")
def _(items, size, generator):
    if size <= 0:
        raise ValueError("a buffer needs room")
    buffer = []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        place = torch.randint(0, size, (), generator=generator).item()
        out, buffer[place] = buffer[place], item
        yield out
    for i in torch.randperm(len(buffer), generator=generator).tolist():
        yield buffer[i]


shuffled_window.equivalent(
    "shuffled_window: `int(torch.randint(len(buffer), (1,), generator=generator))` → "
    "`torch.randint(len(buffer), (1,), generator=generator)`",
    because="a tensor of one integer is an index like an int",
)

# ------------------------------------------------------------------------------ ShardedStream

ShardedStream = Exercise(
    data.ShardedStream,
    title="A stream for many workers",
    difficulty=2,
    minutes=25,
    points=3,
    probe=probes.streamed,
    hints=(
        "Every worker runs `__iter__` in its own process, on its own copy of the object. "
        "`get_worker_info()` says there which one it is.",
        "First the rank's part, then the worker's part of that: two slices with a step.",
        "`islice(stream, start, None, step)` works on any iterable, and reads no further than it must.",
        ("edge cases", "Without workers `get_worker_info()` is None: one worker, number 0."),
    ),
)


@ShardedStream.by_hand
def _():
    yield (
        call(7, 0, 9, rank=1, world_size=2),
        {
            "without workers gives": [1, 3, 5],
            "without workers has taken of the source": 7,
            "without workers, two iterators in turn give the same": True,
        },
    )
    yield (
        call(10, 2, 2, rank=0, world_size=2),
        {
            "worker 0 gives": [0, 4],
            "worker 0 has taken of the source": 5,
            "worker 0, two iterators in turn give the same": True,
            "worker 1 gives": [2, 6],
            "worker 1 has taken of the source": 7,
            "worker 1, two iterators in turn give the same": True,
        },
    )


@ShardedStream.cases(25)
def _(draw):
    world_size = draw(st.integers(1, 3))
    yield call(
        draw(st.integers(0, 20)),
        draw(st.integers(0, 3)),
        9,
        rank=draw(st.integers(0, world_size - 1)),
        world_size=world_size,
    )


@ShardedStream.edge
def _():
    yield call(5, 0, 9), "one rank, no workers: all of them"
    yield call(5, 3, 9), "one rank, three workers"
    yield call(2, 3, 9, rank=1, world_size=2), "fewer items than readers"
    yield call(0, 2, 9), "no items"
    yield call(None, 3, 5, rank=1, world_size=2), "a source without end"
    yield call(None, 0, 5), "a source without end, no workers"


ShardedStream.slips(
    {
        replace(
            " if info else (0, 1)", ""
        ): "Without workers `get_worker_info()` is None: then the process gives everything itself.",
        replace(
            "self.rank, None, self.world_size", "0, None, 1"
        ): "Every rank gives everything: rank and world_size are not used.",
        replace(
            "worker, num_workers = (info.id",
            "worker, num_workers = (info.num_workers - 1 - info.id",
        ): "Your workers "
        "are counted backwards: the j-th item of a rank belongs to worker j % num_workers.",
        replace(
            "of_rank = islice(self.source(),",
            "of_rank = islice(list(islice(self.source(), 10_000)),",
        ): "You put the whole source into a list. Read it as items are asked for.",
        replace(
            "self.source, self.rank, self.world_size = source, rank, world_size",
            "self.source, self.rank, self.world_size = source, rank, world_size\n        self.made = iter(source())",
            "islice(self.source(), self",
            "islice(self.made, self",
        ): "The source is called once, when the object is made, and is used "
        "up after one pass. Call it in `__iter__`.",
        replace(
            "self.source, self.rank, self.world_size = source, rank, world_size",
            "self.source, self.rank, self.world_size = source, rank, world_size\n        self.info = get_worker_info()",
            "info = get_worker_info()\n        worker",
            "info = self.info\n        worker",
        ): "Every worker gives the "
        "whole part of its rank, so each item comes once from every worker. Ask `get_worker_info()`, and ask in `__iter__`: "
        "where the object is made, there is no worker yet.",
        replace(
            "self.world_size = source, rank, world_size", "self.world_size = source, 0, world_size"
        ): "Every rank gives the part of rank 0.",
        replace(
            "return islice(of_rank, worker, None, num_workers)",
            "of_rank = ((i, x) for i, x in enumerate(self.source()) if i % self.world_size == self.rank)\n"
            "        return (x for i, x in of_rank if i % num_workers == worker)",
        ): "You choose the worker by an item's number in the stream. It goes by its number among the "
        "rank's items.",
    }
)


@ShardedStream.mistake(
    "Each worker gives a block of the items, one after the other. That needs the length, which a stream "
    "has not: deal the items out in turn."
)
class _(IterableDataset):
    def __init__(self, source, rank=0, world_size=1):
        self.source, self.rank, self.world_size = source, rank, world_size

    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        items = list(islice(self.source(), self.rank, 10_000, self.world_size))
        each = ceil(len(items) / num_workers)
        return iter(items[worker * each : (worker + 1) * each])


@ShardedStream.mistake(
    "You mix up number and count: item i of all is for reader rank · num_workers + worker of all readers. "
    "Here item i belongs to rank i % world_size first."
)
class _(IterableDataset):
    def __init__(self, source, rank=0, world_size=1):
        self.source, self.rank, self.world_size = source, rank, world_size

    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        reader = self.rank * num_workers + worker
        return islice(self.source(), reader, None, self.world_size * num_workers)


ON_THE_OBJECT = (
    "Your object itself keeps how far an iterator has got, so two of them, or a second pass, disturb each "
    "other. Keep it in variables of `__iter__`."
)


@ShardedStream.mistake(ON_THE_OBJECT)
class _(data.ShardedStream):
    place = 0

    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        for item in self.source():
            turn, rank = divmod(self.place, self.world_size)
            self.place += 1
            if rank == self.rank and turn % num_workers == worker:
                yield item


@ShardedStream.mistake(ON_THE_OBJECT)
class _(data.ShardedStream):
    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        self.place = 0
        for item in self.source():
            turn, rank = divmod(self.place, self.world_size)
            self.place += 1
            if rank == self.rank and turn % num_workers == worker:
                yield item


@ShardedStream.mistake(ON_THE_OBJECT)
class _(data.ShardedStream):
    def __iter__(self):
        self.items = data.ShardedStream.__iter__(self)
        while self.items:
            try:
                yield next(self.items)
            except StopIteration:
                return


@ShardedStream.mistake(ON_THE_OBJECT)
class _(data.ShardedStream):
    def __iter__(self):
        self.items = data.ShardedStream.__iter__(self)
        return self

    def __next__(self):
        return next(self.items)


READ_ON = (
    "You read further in the source than it takes to reach the item: a whole round, or one item ahead. Give "
    "each item as soon as it has come."
)


@ShardedStream.mistake(READ_ON)
class _(data.ShardedStream):
    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        for i, (item, _) in enumerate(pairwise(chain(self.source(), [None]))):
            if i % (self.world_size * num_workers) == self.rank + self.world_size * worker:
                yield item


@ShardedStream.mistake(READ_ON)
class _(data.ShardedStream):
    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        stream = iter(self.source())
        while items := list(islice(stream, self.world_size * num_workers)):
            yield from items[self.rank + self.world_size * worker :][:1]


@ShardedStream.mistake(ON_THE_OBJECT)
class _(IterableDataset):
    def __init__(self, source, rank=0, world_size=1):
        self.source, self.rank, self.world_size = source, rank, world_size
        self.items = None

    def __iter__(self):
        if self.items is None:
            info = get_worker_info()
            worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
            of_rank = islice(self.source(), self.rank, None, self.world_size)
            self.items = islice(of_rank, worker, None, num_workers)
        return self

    def __next__(self):
        return next(self.items)


@ShardedStream.mistake(
    "You call next on what the source returns, and only an iterator takes that. It returns an iterable: a for loop, or iter "
    "first."
)
class _(data.ShardedStream):
    def __iter__(self):
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        stream, i = self.source(), 0
        while True:
            try:
                item = next(stream)
            except StopIteration:
                return
            if i % (self.world_size * num_workers) == self.rank + self.world_size * worker:
                yield item
            i += 1


@ShardedStream.alternative("one loop with a remainder")
class _(IterableDataset):
    def __init__(self, source, rank=0, world_size=1):
        super().__init__()
        self.source = source
        self.rank = rank
        self.world_size = world_size

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        n = 1 if info is None else info.num_workers
        w = 0 if info is None else info.id
        mine = self.rank + self.world_size * w
        for i, item in enumerate(self.source()):
            if i % (self.world_size * n) == mine:
                yield item


# ------------------------------------------------------------------------------ shard_indices

shard_indices = Exercise(
    data.shard_indices,
    title="A rank's indices",
    difficulty=2,
    minutes=20,
    points=2,
    hints=(
        "Make the order of the whole epoch first, the same on every rank. Then take every world_size-th place.",
        "How many does each rank get? The length divided by world_size, rounded up, or down with drop_last.",
        "Where the order is too short, it goes on from its beginning: `order[place % length]`.",
        (
            "edge cases",
            "With fewer items than ranks the order may have to be repeated several times.",
        ),
    ),
)


@shard_indices.by_hand
def _():
    yield call(6, 2, 1, shuffle=False), [1, 3, 5]
    yield call(5, 2, 1, shuffle=False), [1, 3, 0]
    yield call(5, 2, 0, shuffle=False, drop_last=True), [0, 2]
    yield call(2, 5, 4, shuffle=False), [0]
    yield call(5, 2, 0, shuffle=True, seed=0), [4, 1, 2]


@shard_indices.cases
def _(draw):
    world_size = draw(st.integers(1, 5))
    yield call(
        draw(st.integers(0, 12)),
        world_size,
        draw(st.integers(0, world_size - 1)),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 5)),
        epoch=draw(st.integers(0, 5)),
        drop_last=draw(st.booleans()),
    )


@shard_indices.edge
def _():
    yield call(2, 7, 6), "fewer items than ranks: the order is repeated three times"
    yield call(2, 7, 6, drop_last=True), "fewer items than ranks, dropped"
    yield call(0, 3, 1), "no items"
    yield call(8, 4, 2, drop_last=True), "it comes out even"
    yield call(9, 1, 0), "one rank alone"
    yield call(11, 4, 3, seed=3, epoch=4), "seed and epoch"
    yield call(10, 4, 3, seed=1), "two places to fill up"
    yield call(5, 2, 2), "a rank too many"
    yield call(5, 2, -1), "a negative rank"


TOO_SHORT = (
    "You append the order once. With fewer items than ranks that is not enough: go on from its beginning as "
    "often as it takes."
)
FILLED_BY_ONE = (
    "You fill up with one index alone: 0, the order's first, or its last. The order is continued: its first, "
    "its second, its third."
)
shard_indices.slips(
    {
        replace(
            "manual_seed(seed + epoch)", "manual_seed(seed)"
        ): "Every epoch has the same order. Seed the generator with seed + epoch.",
        replace(
            "manual_seed(seed + epoch)", "manual_seed(epoch)"
        ): "Your order forgets the seed: it is seed + epoch.",
        replace(
            "manual_seed(seed + epoch)", "manual_seed(seed + epoch + rank)"
        ): "Each rank has an order of its own, so "
        "some items come twice and others never. All ranks share one order.",
        replace(
            "if shuffle:", "if True:"
        ): "You shuffle always. Without `shuffle` the order is 0, 1, 2, …",
        replace("if shuffle:", "if False:"): "You never shuffle.",
        replace(
            "if drop_last else -(-length // world_size)", "if drop_last else length // world_size"
        ): "You drop what "
        "does not come out even, always. Without drop_last the order is continued from its beginning.",
        replace(
            "length // world_size if drop_last else", "-(-length // world_size) if drop_last else"
        ): "drop_last "
        "changes nothing: with it the order is cut at the last multiple of world_size.",
        replace(
            "else -(-length // world_size)", "else (length // world_size + 1 if length else 0)"
        ): "You add a round also where world_size divides the length. Nothing is missing there: round up, "
        "-(-length // world_size).",
        replace(
            "order[i % length] for i in range(rank, each * world_size, world_size)",
            "order[i] for i in range(rank, min(length, each * world_size), world_size)",
        ): "Some ranks get one index fewer. In a "
        "step where one rank has no batch, the others wait for it for ever: continue the order from its beginning.",
        replace(
            "order[i % length] for i in range(rank, each * world_size, world_size)",
            "order[i % length] for i in range(rank * each, (rank + 1) * each)",
        ): "You give each rank a block of the order. "
        "Rank r gets places r, r + world_size, and so on.",
        replace("order[i % length]", "order[min(i, length - 1)]"): FILLED_BY_ONE,
        replace(
            "order[i % length] for i in range(rank, each * world_size, world_size)",
            "(order + order)[i] for i in range(rank, each * world_size, world_size)",
        ): TOO_SHORT,
        replace(
            "order[i % length] for i in range(rank, each * world_size, world_size)",
            "i for i in (order + order)[: each * world_size][rank::world_size]",
        ): TOO_SHORT,
        replace(
            "order[i % length]", "(order[i] if i < length else i % length)"
        ): "You fill up with 0, 1, 2, … The order is continued from its own beginning, which with `shuffle` is another.",
        replace("order[i % length]", "order[i if i < length else 0]"): FILLED_BY_ONE,
        replace("order[i % length]", "(order[i] if i < length else 0)"): FILLED_BY_ONE,
        replace(
            "each = length // world_size if drop_last",
            "each = max(length - 1, 0) // world_size if drop_last",
        ): "With drop_last you cut off a round also where world_size divides the length. Nothing is left over there.",
        replace(
            "raise ValueError(f", "assert False, (f"
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            "order = torch.randperm(length, generator=generator).tolist()",
            "order = torch.randperm(length, generator=generator)",
            "return [order",
            "order = torch.as_tensor(order)\n    return [order",
        ): "You return tensors of one element. Indices are ints.",
    }
)


for accepted, says in {
    "if False:": "A rank that is not in 0 … world_size − 1 is accepted. Raise ValueError.",
    "if not 0 <= rank <= world_size:": "Ranks count from 0: world_size itself is no rank.",
    "if not rank < world_size:": "A negative rank is accepted. Raise ValueError.",
}.items():
    check = "if not 0 <= rank < world_size:", accepted
    cut = (
        "for i in range(rank, each * world_size, world_size)]",
        "for i in range(each * world_size)][rank::world_size]",
    )
    shard_indices.slips({replace(*check): says, replace(*check, *cut): says})


@shard_indices.mistake(
    "You seed torch's global generator, and so change all random numbers that come after. Make one of your own."
)
def _(length, world_size, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    if shuffle:
        torch.manual_seed(seed + epoch)
    given = {"shuffle": shuffle, "seed": seed, "epoch": epoch, "drop_last": drop_last}
    return data.shard_indices(length, world_size, rank, **given)


@shard_indices.alternative("ask DistributedSampler")
def _(length, world_size, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    if length == 0 and 0 <= rank < world_size:
        return []
    sampler = DistributedSampler(
        range(length), world_size, rank, shuffle=shuffle, seed=seed, drop_last=drop_last
    )
    sampler.set_epoch(epoch)
    return list(sampler)


@shard_indices.alternative("a padded list and a slice")
def _(length, world_size, rank, *, shuffle=True, seed=0, epoch=0, drop_last=False):
    if rank < 0 or rank >= world_size:
        raise ValueError("no such rank")
    if shuffle:
        g = torch.Generator()
        g.manual_seed(seed + epoch)
        indices = torch.randperm(length, generator=g).tolist()
    else:
        indices = list(range(length))
    if drop_last:
        total = length - length % world_size
    else:
        total = ceil(length / world_size) * world_size
    if indices:
        indices = (indices * ceil(total / length))[:total] if total > length else indices[:total]
    return indices[rank:total:world_size]


# ------------------------------------------------------------------------------ ResumableSampler

ResumableSampler = Exercise(
    data.ResumableSampler,
    title="A sampler that resumes",
    difficulty=3,
    minutes=40,
    points=4,
    probe=probes.drawn_again,
    hints=(
        "Keep the epoch and a position. The order follows from seed and epoch alone, so it is not part of "
        "the state.",
        "`__iter__` changes nothing. A loader with workers asks for indices that are used much later, or never.",
        "The position counts items of all ranks: `advance(n)` adds n · world_size. So a state taken on one rank "
        "holds for all, and for another number of ranks.",
        "What is left are places position + rank, position + rank + world_size, …, as many as `len(self)`; "
        "place p is order[p % length].",
        "A loop calls `set_epoch(epoch)` at the head of each epoch, also of the one that it resumes. Then the "
        "position must stay.",
    ),
)


def plan(length, world_size, *steps, seed=0):
    return call(
        length=length, world_size=world_size, seed=seed, plan=[list(step) for step in steps]
    )


@ResumableSampler.by_hand
def _():
    yield (
        plan(5, 1, ["rest"], ["used", 2], ["rest"]),
        {
            "step 1, rank 0: length": 5,
            "step 1, rank 0: indices": [4, 0, 1, 3, 2],
            "step 3, rank 0: length": 3,
            "step 3, rank 0: indices": [1, 3, 2],
        },
    )
    yield (
        plan(6, 2, ["used", 2], ["save"]),
        {
            f"step 2, rank {rank}: state": {"epoch": 0, "position": 4, "seed": 0, "length": 6}
            for rank in (0, 1)
        },
    )


@ResumableSampler.cases(30)
def _(draw):
    length, world = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    epoch, each = draw(st.integers(0, 2)), -(-length // world)
    used = draw(st.integers(0, each))
    yield plan(
        length,
        world,
        ["epoch", epoch],
        ["look", draw(st.integers(0, 3))],
        ["used", used],
        ["save"],
        ["resume", draw(st.sampled_from((world, world, 1, 2, 4)))],
        ["epoch", epoch],
        ["rest"],
        ["epoch", epoch + 1],
        ["rest"],
        seed=draw(st.integers(0, 9)),
    )


@ResumableSampler.edge
def _():
    yield plan(9, 1, ["look", 5], ["save"], ["rest"]), "a loader looks ahead: nothing has been used"
    yield (
        plan(9, 1, ["begin"], ["go on", 2], ["used", 2], ["go on", 3], ["used", 3], ["go on", 9]),
        "an iterator under way does not mind what has been used meanwhile",
    )
    yield (
        plan(9, 1, ["begin"], ["go on", 2], ["look", 3], ["go on", 9]),
        "nor another iterator",
    )
    yield plan(9, 2, ["used", 1], ["used", 2], ["rest"]), "used twice"
    yield (
        plan(9, 2, ["used", 1], ["save"], ["used", 2], ["resume", 2], ["rest"]),
        "used after it was saved",
    )
    yield (
        plan(10, 4, ["used", 2], ["save"], ["resume", 4], ["rest"]),
        "an epoch that does not come out even",
    )
    yield plan(10, 4, ["used", 3], ["rest"], ["save"]), "the whole epoch has been used, and more"
    yield plan(10, 4, ["used", 1], ["save"], ["resume", 3], ["rest"]), "four ranks become three"
    yield plan(10, 1, ["used", 3], ["save"], ["resume", 4], ["rest"]), "one rank becomes four"
    yield (
        plan(10, 4, ["used", 3], ["save"], ["resume", 1], ["rest"]),
        "the epoch is over, and a rank goes on alone",
    )
    yield plan(2, 5, ["rest"]), "fewer items than ranks"
    yield plan(3, 2, ["used", 1], ["epoch", 0], ["rest"]), "the epoch that it is in"
    yield (
        plan(7, 1, ["used", 4], ["epoch", 1], ["rest"], ["epoch", 0], ["rest"]),
        "another epoch, and back",
    )
    yield (
        plan(
            7, 2, ["epoch", 2], ["used", 1], ["save"], ["resume", 2], ["epoch", 2], ["rest"], seed=5
        ),
        "resumed in epoch 2",
    )
    yield plan(6, 1, ["rest"], ["rest"]), "two passes without a word are alike"
    other = {"epoch": 1, "position": 2, "seed": 1, "length": 6}
    yield plan(6, 1, ["used", 1], ["load", other]), "a state of another seed"
    yield plan(6, 1, ["load", other | {"seed": 0, "length": 5}]), "a state of another length"


OF_ALL = "Your length is that of the whole epoch. It is how many indices are left."
ResumableSampler.slips(
    {
        replace(
            "manual_seed(self.seed + self.epoch)", "manual_seed(self.seed)"
        ): "Every epoch has the same order. Seed the generator with seed + epoch.",
        replace(
            "manual_seed(self.seed + self.epoch)", "manual_seed(self.seed + self.epoch + self.rank)"
        ): "Each rank has an "
        "order of its own, so some items come twice and others never. All ranks share one.",
        replace(
            "self.position += n * self.world_size", "self.position += n"
        ): "Your position counts what one rank has used. Every rank "
        "has used n: the position moves on by n · world_size.",
        replace(
            "if epoch != self.epoch:\n            self.epoch, self.position = epoch, 0",
            "self.epoch, self.position = epoch, 0",
        ): "set_epoch of the epoch that it is in loses the position. A resumed loop calls it at the head of that epoch: the "
        "position must stay.",
        replace(
            "self.epoch, self.position = epoch, 0", "self.epoch = epoch"
        ): "A new epoch begins where the last one had got to. Set the position back to 0.",
        replace(
            "self.position + self.rank, self.world_size", "self.rank, self.world_size"
        ): "You begin every epoch at its beginning: the position is not used.",
        replace(
            "self.position + self.rank, self.world_size", "self.position, 1"
        ): "Every rank gets the same indices: deal them out in turn.",
        replace(
            "order[place % self.length] for place in places",
            "order[place % self.length] for place in places if place < self.length",
        ): "Some ranks get one index fewer. In a step where one rank has no batch the others wait for it for ever: continue the order "
        "from its beginning.",
        replace(
            "order[place % self.length] for place in places",
            "order[self.position + (place - self.position) % (self.length - self.position)] for place in places",
        ): "You fill up from the beginning of "
        "what is left. A run that was never stopped fills up from the beginning of the order.",
        replace("left = max(self.length - self.position, 0)", "left = self.length"): OF_ALL,
        replace(
            *("left = max(self.length - self.position, 0)", "left = self.length"),
            "self.world_size), len(self))",
            "self.world_size), -(-max(self.length - self.position, 0) // self.world_size))",
        ): OF_ALL,
        replace(
            "return -(-left // self.world_size)", "return left // self.world_size"
        ): "You drop what does not come out even. "
        "Round up: the order is continued from its beginning.",
        replace(
            "return -(-left // self.world_size)", "return left"
        ): "Your length counts what all ranks have left. Divide by world_size.",
        replace(
            '"position": self.position,', '"position": self.position // self.world_size,'
        ): "Your state says what one rank has used. Said for "
        "all of them it holds for another number of ranks as well.",
        replace(
            'self.epoch, self.position = state["epoch"], state["position"]',
            'self.position = state["position"]',
        ): "You load the position without the epoch. The order of another epoch is another.",
        replace(
            'self.epoch, self.position = state["epoch"], state["position"]',
            'self.epoch = state["epoch"]',
        ): "You load the epoch without the position.",
        replace(
            'if (state["seed"], state["length"]) != (self.seed, self.length):', "if False:"
        ): "You load a state of another order "
        "without a word. Its position would mean other items: raise ValueError.",
        replace(
            'if (state["seed"], state["length"]) != (self.seed, self.length):',
            'if state["length"] != self.length:',
        ): "You load a state "
        "of another seed. Its position would mean other items: raise ValueError.",
        replace(
            'if (state["seed"], state["length"]) != (self.seed, self.length):',
            'if state["seed"] != self.seed:',
        ): "You load a state "
        "of another length. Its position would mean other items: raise ValueError.",
        replace(
            "max(self.length - self.position, 0)", "(self.length - self.position)"
        ): "At the end of an epoch that does not come out "
        "even the position is beyond the length, and yours has a negative number left. There are 0.",
    }
)


@ResumableSampler.mistake(
    "Your iterator moves the position itself, as indices are asked for. A loader with workers asks long before "
    "they are used: only `advance` moves the position."
)
class _(data.ResumableSampler):
    def __iter__(self):
        for index in data.ResumableSampler.__iter__(self):
            self.position += self.world_size
            yield index

    def advance(self, n):
        pass


@ResumableSampler.mistake(
    "Your iterator looks at the position at every step, so it skips items when `advance` is called meanwhile. "
    "Look once, when it begins."
)
class _(data.ResumableSampler):
    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=g).tolist()
        given = 0
        while given < len(self):
            yield order[(self.position + self.rank + given * self.world_size) % self.length]
            given += 1


REFUSED = "A state that you refuse has changed the sampler already. Look first whether it fits, then load it."
OF_THE_EPOCH = (
    "You deal out the places of the whole epoch, so with another number of ranks some get more than others. "
    "Deal out what is left: the first place of it is rank 0's."
)
ResumableSampler.slips(
    {
        replace(
            "iter([order[place % self.length] for place in places])",
            "(order[(self.position + self.rank + k * self.world_size) % self.length] for k in range(len(self)))",
        ): "Your iterator looks at the position at every step, so it skips items when `advance` is called meanwhile. "
        "Look once, when it begins.",
        replace(
            'if (state["seed"], ',
            'self.epoch, self.position = state["epoch"], state["position"]\n        if (state["seed"], ',
        ): REFUSED,
        replace(
            'if (state["seed"], state["length"]) != (self.seed, self.length):',
            'if state["length"] != self.length:\n            self.epoch = state["epoch"]\n'
            '        if (state["seed"], state["length"]) != (self.seed, self.length):',
        ): REFUSED,
        replace(
            "islice(count(self.position + self.rank, self.world_size), len(self))",
            "range(self.rank, -(-self.length // self.world_size) * self.world_size, self.world_size)\n"
            "        places = [place for place in places if place >= self.position]",
        ): OF_THE_EPOCH,
    }
)


@ResumableSampler.mistake(
    "Your object itself keeps what an iterator has still to give, so a second one disturbs the first. Keep it in variables "
    "of `__iter__`."
)
class _(data.ResumableSampler):
    def __iter__(self):
        self.rest = list(data.ResumableSampler.__iter__(self))
        while self.rest:
            yield self.rest.pop(0)


@ResumableSampler.mistake(OF_THE_EPOCH)
class _(data.ResumableSampler):
    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=g).tolist()
        return iter([order[place % self.length] for place in self.places()])

    def __len__(self):
        return len(self.places())

    def places(self):
        total = ceil(self.length / self.world_size) * self.world_size
        return [p for p in range(self.rank, total, self.world_size) if p >= self.position]


@ResumableSampler.mistake(
    "Your state is the object's own dict, not a copy. It changes after it was saved."
)
class _(data.ResumableSampler):
    def __init__(self, length, *, rank=0, world_size=1, seed=0):
        self.kept = {"epoch": 0, "position": 0, "seed": seed, "length": length}
        super().__init__(length, rank=rank, world_size=world_size, seed=seed)

    def state_dict(self):
        self.kept.update(epoch=self.epoch, position=self.position)
        return self.kept

    def advance(self, n):
        super().advance(n)
        self.state_dict()


@ResumableSampler.alternative("a padded list, cut")
class _:
    def __init__(self, length, *, rank=0, world_size=1, seed=0):
        self.n, self.seed_, self.r, self.w = length, seed, rank, world_size
        self.e = self.p = 0

    def __iter__(self):
        g = torch.Generator()
        g.manual_seed(self.seed_ + self.e)
        order = torch.randperm(self.n, generator=g).tolist()
        rest = order[self.p :]
        while len(rest) % self.w:
            rest += order[: self.w - len(rest) % self.w]
        yield from rest[self.r :: self.w]

    def __len__(self):
        return ceil(max(0, self.n - self.p) / self.w)

    def advance(self, n):
        self.p = self.p + n * self.w

    def set_epoch(self, epoch):
        if epoch == self.e:
            return
        self.e, self.p = epoch, 0

    def state_dict(self):
        return {"epoch": self.e, "position": self.p, "seed": self.seed_, "length": self.n}

    def load_state_dict(self, state):
        if state["seed"] != self.seed_ or state["length"] != self.n:
            raise ValueError("another order")
        self.e = state["epoch"]
        self.p = state["position"]
