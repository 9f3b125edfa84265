"""Chapter 9, data: from files of tokens and streams of documents to batches, on one rank and on many.

A token is an integer. A document is a sequence of tokens; a row is `context` of them side by side.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int, Integer
from torch import Tensor
from torch.utils.data import IterableDataset, Sampler, get_worker_info

Item = TypeVar("Item")

IGNORED = -100
"""The target that `cross_entropy` leaves out: the default of its `ignore_index`."""

# ------------------------------------------------------------------------------ batches


def collate_padded(
    sequences: Sequence[Integer[Tensor, "_"]], pad: int
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Inputs and targets of a batch of sequences of different lengths, both int64 and (B, T).

    sequences: at least one, each of at least one token, in any integer dtype; left as
    they are. Row i of the inputs is sequence i without its last token, row i of the
    targets the same sequence without its first. T is the length of the longest row, and
    may be 0. Shorter rows are filled at their end, inputs with `pad`, targets with
    -100, which cross_entropy leaves out. A sequence may contain `pad` as a token of its
    own. `pad` need not fit into the sequences' dtype.
    """
    T = max(map(len, sequences)) - 1
    inputs = torch.full((len(sequences), T), pad)
    targets = torch.full((len(sequences), T), IGNORED)
    for row, sequence in enumerate(sequences):
        n = len(sequence) - 1
        inputs[row, :n] = sequence[:-1]
        targets[row, :n] = sequence[1:]
    return inputs, targets


def get_batch(
    data: np.ndarray, batch_size: int, context: int, generator: torch.Generator | None = None
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Random windows of a token file: inputs and targets, both int64 and (batch_size, context).

    data: 1-D, unsigned integers, as a rule a read-only np.memmap. Row i begins at the
    i-th number of `torch.randint(n, (batch_size,), generator=generator)`, one call,
    where n is the number of beginnings that leave room for the inputs and for the
    target after the last of them. The targets are the tokens one place on. No more of
    data is read than is returned. The results share no memory with each other or with
    data. Raises ValueError if data has fewer than context + 1 tokens. Source: nanoGPT,
    train.py.
    """
    n = len(data) - context
    if n < 1:
        raise ValueError(f"a window needs {context + 1} tokens; the file has {len(data)}")
    starts = torch.randint(n, (batch_size,), generator=generator).tolist()
    x = np.stack([data[i : i + context].astype(np.int64) for i in starts])
    y = np.stack([data[i + 1 : i + 1 + context].astype(np.int64) for i in starts])
    return torch.from_numpy(x), torch.from_numpy(y)


# ------------------------------------------------------------------------------ packing


def pack_documents(
    documents: Iterable[Sequence[int]], context: int, end: int
) -> Iterator[tuple[Int[Tensor, "T"], Int[Tensor, "T"]]]:
    """Rows of `context` tokens without padding, and for each token the number of its document.

    Each document, also an empty one, is followed by the token `end`, which belongs to
    it; then all of them are one stream, cut every `context` tokens. A document may go
    on in the next row, and may contain `end` itself. Yields pairs of new int64 tensors,
    (T,) each: tokens and document numbers, counted from 0 over the whole stream. What
    is left at the end and fills no row is dropped.

    documents: any iterable, even an endless one, of sequences of any kind. A document
    is taken only when the row that it begins in is asked for. Documents are not
    changed.
    """
    tokens: list[int] = []
    numbers: list[int] = []
    for number, document in enumerate(documents):
        tokens += [*document, end]
        numbers += [number] * (len(document) + 1)
        while len(tokens) >= context:
            yield torch.tensor(tokens[:context]), torch.tensor(numbers[:context])
            tokens, numbers = tokens[context:], numbers[context:]


def document_positions(numbers: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Position of each token in the part of its document that is in the row: 0, 1, 2, …, then 0 again.

    numbers: of each token's document, as `pack_documents` gives them: equal
    within a document, and larger in the next, perhaps by more than 1; left as they are.
    B may be 0. The rest of a document that began in an earlier row is counted from the
    beginning of this row. Returns int64, (B, T), on the same device.
    """
    place = torch.arange(numbers.size(1), device=numbers.device).expand(numbers.shape)
    begins = torch.ones_like(numbers, dtype=torch.bool)
    begins[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    return place - torch.where(begins, place, 0).cummax(dim=1).values


def document_mask(numbers: Int[Tensor, "B T"]) -> Bool[Tensor, "B 1 T T"]:
    """Which token may attend to which: to itself and those before it, of its own document.

    numbers: of each token's document, 0 or more; left as they are. B and T
    may be 0. Returns a bool mask, (B, 1, T, T), on the same device, with queries on the
    third axis, keys on the last, and one axis for all heads; True means may attend, as
    `scaled_dot_product_attention` has it.
    """
    T = numbers.size(1)
    same = numbers[:, None, :, None] == numbers[:, None, None, :]
    return same & torch.ones(T, T, dtype=torch.bool, device=numbers.device).tril()


# ------------------------------------------------------------------------------ order


def shard_indices(
    length: int,
    world_size: int,
    rank: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    drop_last: bool = False,
) -> list[int]:
    """Indices of a data set that a rank sees in an epoch: those of torch's DistributedSampler.

    The order of the epoch is 0 … length − 1, or with shuffle `torch.randperm(length)`
    from a new generator seeded with seed + epoch. All ranks get equally many. If
    world_size does not divide length, the order is continued from its own beginning,
    over and over where it must be, up to the next multiple; with drop_last it is cut at
    the last multiple instead. Of the result rank r gets places r, r + world_size, r + 2
    · world_size, …, as ints, and none if length is 0. Raises ValueError unless 0 ≤ rank
    < world_size.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}")
    order = list(range(length))
    if shuffle:
        generator = torch.Generator().manual_seed(seed + epoch)
        order = torch.randperm(length, generator=generator).tolist()
    each = length // world_size if drop_last else -(-length // world_size)
    return [order[i % length] for i in range(rank, each * world_size, world_size)]


def shuffled_window(items: Iterable[Item], size: int, generator: torch.Generator) -> Iterator[Item]:
    """The items of a stream in an order shuffled as far as a buffer of `size` items allows.

    The buffer is filled, as far as the stream goes; then an item of it, each as likely
    as any other, is given out, and the next of the stream takes its place, again and
    again. When the stream ends, the buffer is emptied in the same way. Each item is
    given out once; an item may be anything, None too. Whenever one comes out, at most
    `size` others that were taken from the stream are still held, so the stream may be
    endless. Random numbers come from `generator` alone. Raises ValueError, at the
    latest when the first item is asked for, if size is below 1, even if the stream is
    empty. Source: tf.data's shuffle.
    """
    if size < 1:
        raise ValueError(f"a buffer holds at least one item; came {size}")
    stream = iter(items)
    buffer = list(islice(stream, size))
    while buffer:
        place = int(torch.randint(len(buffer), (1,), generator=generator))
        buffer[place], buffer[-1] = buffer[-1], buffer[place]
        yield buffer.pop()
        buffer += islice(stream, 1)


class ShardedStream(IterableDataset[Item]):
    """A stream that is divided among all workers of all ranks: each item is given by one of them.

    Item i (from 0) belongs to rank i % world_size. Of a rank's items, in their order,
    the j-th (again from 0) belongs to the worker number j % num_workers; without
    workers the process itself gives all of them. The object is made in the main
    process, so ask which worker it is in when it is iterated. It can be iterated again
    and again, also by several iterators at once. It reads the source no further than
    the item that is asked for.
    """

    def __init__(self, source: Callable[[], Iterable[Item]], rank: int = 0, world_size: int = 1):
        """source: called without arguments for each iteration, it returns a new iterable, which may be
        endless. rank, world_size: of this process.
        """
        self.source, self.rank, self.world_size = source, rank, world_size

    def __iter__(self) -> Iterator[Item]:
        """This worker's part, from its beginning."""
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        of_rank = islice(self.source(), self.rank, None, self.world_size)
        return islice(of_rank, worker, None, num_workers)


# ------------------------------------------------------------------------------ resuming


class ResumableSampler(Sampler[int]):
    """A rank's indices in an epoch, from wherever the run has got to.

    A loader with workers asks for indices long before the training loop uses them.
    """

    def __init__(self, length: int, *, rank: int = 0, world_size: int = 1, seed: int = 0):
        """length: of the data set, at least 1. The order of epoch e is torch.randperm(length) from a
        generator seeded with seed + e, on every rank. It begins in epoch 0, at position 0."""
        self.length, self.seed = length, seed
        self.rank, self.world_size = rank, world_size
        self.epoch = self.position = 0

    def __iter__(self) -> Iterator[int]:
        """This rank's indices from the position to the end of the epoch; asking for them changes nothing.

        `order[position:]` is dealt out to the ranks in turn, and continued with the order's beginning,
        over and over where it must be, until all get equally many. At position 0 these are
        DistributedSampler's. `advance` and other iterators change nothing for one that has begun."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        places = islice(count(self.position + self.rank, self.world_size), len(self))
        return iter([order[place % self.length] for place in places])

    def __len__(self) -> int:
        """How many indices this rank has left in the epoch."""
        left = max(self.length - self.position, 0)
        return -(-left // self.world_size)

    def advance(self, n: int) -> None:
        """Told that each rank used n more indices, move on by n · world_size, even past the end."""
        self.position += n * self.world_size

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch at position 0. If it is in that epoch already, the position stays."""
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """A new dict with "epoch", "position", "seed" and "length", the same on every rank."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "length": self.length,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken, perhaps on another number of ranks. Raises ValueError, and
        changes nothing, if its seed or length is not this sampler's: the order would be another."""
        if (state["seed"], state["length"]) != (self.seed, self.length):
            raise ValueError(
                f"the state is of seed {state['seed']} and {state['length']} items; "
                f"this sampler has seed {self.seed} and {self.length}"
            )
        self.epoch, self.position = state["epoch"], state["position"]
