"""Exercises of chapter 18, FSDP: shares, what they cost, a sharded optimizer and layer, resharding."""

from functools import partial
from math import prod

import torch
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, probes
from course_utils.reference import fsdp
from course_utils.reference.fsdp import share

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16


def t(*values):
    return torch.tensor(values)


# ------------------------------------------------------------------------------ shard_flat

shard_flat = Exercise(
    (fsdp.shard_flat, fsdp.unshard_flat),
    title="A flat parameter and its shares",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.flat_shards,
    hints=(
        "Flatten each tensor, join them with `torch.cat`, and pad the *end* of the whole with zeros.",
        "Every share has ⌈numel / world_size⌉ elements: `-(-numel // world_size)`. The last ranks may hold "
        "nothing but padding.",
        "A slice is a view: it keeps all of the flat tensor alive. Copy the share out of it.",
        "Back: join the shares, cut off the padding, `split` by the sizes, and `view` each part.",
        ("edge cases", "More ranks than elements? A scalar has one element and the shape ()."),
    ),
)


@shard_flat.by_hand
def _():
    yield (
        call([t(1.0, 2.0, 3.0), t(4.0, 5.0)], 2),
        {
            "share of rank 0": t(1.0, 2.0, 3.0),
            "share of rank 1": t(4.0, 5.0, 0.0),
            "bytes behind each share": (12, 12),
            "the tensors again": [t(1.0, 2.0, 3.0), t(4.0, 5.0)],
        },
    )
    yield (
        call([t(1.0, 2.0).view(2, 1), t(3.0)], 4),
        {
            "share of rank 2": t(3.0),
            "share of rank 3": t(0.0),
            "bytes behind each share": (4, 4, 4, 4),
        },
    )


@shard_flat.cases(20)
def _(draw):
    shapes = draw(st.lists(draws.distinct_sizes(2, low=1, high=5), min_size=1, max_size=3))
    dtype = draw(st.sampled_from([F32, F64, BF16]))
    yield call([draw(draws.tensors(s, dtype)) for s in shapes], draw(st.integers(1, 5)))


@shard_flat.edge
def _():
    x = torch.arange(1.0, 7.0)
    yield call([torch.tensor(2.0), x[:2]], 2), "a scalar"
    yield call([x.view(2, 3).T, x[:1]], 3), "a transposed tensor"
    yield call([x[:2]], 5), "more ranks than elements"
    yield call([x[:4].view(2, 2), torch.zeros(0, 3), x[4:]], 4), "an empty tensor among others"
    yield call([x], 1), "one rank: nothing to pad"
    yield call([x.expand(2, 6)], 4), "an expanded tensor"


def flat_and_shares(subject, case):
    """Both functions on the case's tensors; only the way back is measured."""
    shard, unshard = subject.values()
    tensors, world_size = case.args
    shares = [shard(tensors, rank, world_size) for rank in range(world_size)]
    return partial(unshard, shares, [tuple(t.shape) for t in tensors])


LAYERS = call([torch.ones(64, 33), torch.ones(64), torch.ones(7, 64)], 4)
shard_flat.contract(
    contracts.allocates(
        [LAYERS],
        limit=lambda case: 4 * 4 * share(sum(t.numel() for t in case.args[0]), 4),
        says="one flat tensor, and views of it",
        prepare=flat_and_shares,
    )
)


def right_shard(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    size = -(-len(flat) // world_size)
    flat = torch.cat([flat, flat.new_zeros(size * world_size - len(flat))])
    return flat[rank * size : (rank + 1) * size].clone()


def right_unshard(shards, shapes):
    flat, out, start = torch.cat(shards), [], 0
    for shape in shapes:
        out.append(flat[start : start + prod(shape)].view(shape))
        start += prod(shape)
    return out


def uneven(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    return flat.tensor_split(world_size)[rank].clone()


def floored(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    size = len(flat) // world_size
    return flat[rank * size : (rank + 1) * size].clone()


def viewed(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    size = -(-len(flat) // world_size)
    flat = torch.cat([flat, flat.new_zeros(size * world_size - len(flat))])
    return flat[rank * size : (rank + 1) * size]


def padded_each(tensors, rank, world_size):
    return torch.cat([right_shard([t], rank, world_size) for t in tensors])


def unshard_each(shards, shapes):
    out, start = [], 0
    for shape in shapes:
        size = -(-prod(shape) // len(shards))
        flat = torch.cat([s[start : start + size] for s in shards])
        out.append(flat[: prod(shape)].view(shape))
        start += size
    return out


def strided_shard(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    size = -(-len(flat) // world_size)
    flat = torch.cat([flat, flat.new_zeros(size * world_size - len(flat))])
    return flat[rank::world_size].clone()


def unshard_strided(shards, shapes):
    return right_unshard([torch.stack(list(shards), dim=1).flatten()], shapes)


def padded_in_front(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    size = -(-len(flat) // world_size)
    flat = torch.cat([flat.new_zeros(size * world_size - len(flat)), flat])
    return flat[rank * size : (rank + 1) * size].clone()


def unshard_front(shards, shapes):
    flat = torch.cat(shards)
    return right_unshard([flat[len(flat) - sum(map(prod, shapes)) :]], shapes)


def unpadded_end(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    size = -(-len(flat) // world_size)
    return flat[rank * size : (rank + 1) * size].clone()


def one_more(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    size = len(flat) // world_size + 1
    flat = torch.cat([flat, flat.new_zeros(size * world_size - len(flat))])
    return flat[rank * size : (rank + 1) * size].clone()


shard_flat.mistake(
    "Your shares differ in length. An all-gather into one tensor wants the same from every rank: pad the "
    "flat tensor with zeros first."
)(uneven, right_unshard)
shard_flat.mistake(
    "The last share is shorter, or missing: you cut without padding. Collectives want equal shares, so the "
    "end is filled with zeros."
)(unpadded_end, right_unshard)
shard_flat.mistake(
    "You round the size of a share down: what is left over at the end is kept by nobody. Round up and pad."
)(floored, lambda shards, shapes: right_unshard([*shards, shards[0].new_zeros(99)], shapes))
shard_flat.mistake(
    "Your share is a view of the whole flat tensor, which stays in memory with it: nothing was saved. "
    "Copy the share."
)(viewed, right_unshard)
shard_flat.mistake(
    "You pad and cut each tensor for itself. That is FSDP2's way (dim 0 of every parameter); here the "
    "tensors are joined first, and there is padding only once, at the end."
)(padded_each, unshard_each)
shard_flat.mistake(
    "You deal the elements out like cards, every n-th to a rank. An all-gather joins shares end to end: "
    "they must be contiguous pieces."
)(strided_shard, unshard_strided)
shard_flat.mistake("You pad in front; the zeros belong at the end.")(padded_in_front, unshard_front)
shard_flat.mistake(
    "You add padding where none is needed: a length that the number of ranks divides stays as it is. Round "
    "up with -(-numel // world_size)."
)(one_more, right_unshard)
shard_flat.mistake(
    "The shares are right. On the way back you leave the tensors flat: give each its shape."
)(right_shard, lambda shards, shapes: [x.flatten() for x in right_unshard(shards, shapes)])
shard_flat.mistake(
    "The values are right, but you copy each tensor out of the flat one, so that for a while the parameters "
    "are there twice. Return views.",
    cost=True,
)(right_shard, lambda shards, shapes: [x.clone() for x in right_unshard(shards, shapes)])


def pad_shard(tensors, rank, world_size):
    flat = torch.hstack([t.ravel() for t in tensors])
    missing = -flat.numel() % world_size
    return torch.nn.functional.pad(flat, (0, missing)).chunk(world_size)[rank].clone()


def narrow_back(shards, shapes):
    flat, offset, parts = torch.cat(tuple(shards)), 0, []
    for shape in shapes:
        n = torch.Size(shape).numel()
        parts.append(flat.narrow(0, offset, n).reshape(shape))
        offset += n
    return parts


shard_flat.alternative("F.pad and chunk; narrow on the way back")(pad_shard, narrow_back)


def stacked_shard(tensors, rank, world_size):
    numel = sum(t.numel() for t in tensors)
    size = (numel + world_size - 1) // world_size
    table = torch.zeros(world_size * size, dtype=tensors[0].dtype)
    start = 0
    for x in tensors:
        table[start : start + x.numel()] = x.reshape(-1)
        start += x.numel()
    return torch.clone(table.view(world_size, size)[rank])


shard_flat.alternative("a table with a row for each rank")(stacked_shard, right_unshard)


# ------------------------------------------------------------------------------ bytes_per_rank

bytes_per_rank = Exercise(
    fsdp.bytes_per_rank,
    title="What each rank keeps",
    difficulty=1,
    minutes=15,
    points=2,
    hints=(
        "What does a stage shard? 1: the optimizer's state. 2: the gradients as well. 3: the parameters as well.",
        "A share of a unit of N elements is ⌈N / n⌉ elements, padding included.",
        "Pad unit by unit, then add: ⌈a/n⌉ + ⌈b/n⌉ may be more than ⌈(a+b)/n⌉.",
        ("edge cases", "Stages other than 0 to 3 raise ValueError."),
    ),
)


@bytes_per_rank.by_hand
def _():
    yield call([100], 4, 0), (400, 400, 800)
    yield call([100], 4, 1), (400, 400, 200)
    yield call([100], 4, 2), (400, 100, 200)
    yield call([100], 4, 3), (100, 100, 200)
    yield call([5, 6], 4, 3), (16, 16, 32)  # two elements of each unit
    yield call([7_500_000_000], 64, 3, (2, 2, 12)), (234_375_000, 234_375_000, 1_406_250_000)


@bytes_per_rank.cases(20)
def _(draw):
    yield call(
        draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)),
        draw(st.integers(1, 6)),
        draw(st.integers(0, 3)),
        draw(st.sampled_from([(4, 4, 8), (2, 2, 12), (2, 4, 8), (4, 4, 4)])),
    )


@bytes_per_rank.edge
def _():
    for stage in (0, 1, 2, 3):
        yield call([3, 1], 8, stage), "more ranks than elements"
        yield call([12, 5], 1, stage), "one rank: nothing to shard"
        yield call([], 4, stage), "no unit at all"
    yield call([10**12 + 1], 4, 3), "a trillion, too many for a float32 to count exactly"
    yield call([2**60 + 1], 3, 3), "integers all the way: no float"
    yield call([4], 2, 4), "no such stage"
    yield call([4], 2, -1), "no such stage"


def table(shared, part=lambda ns, n: sum(-(-m // n) for m in ns)):
    """A version for which `shared` names what each stage shards."""

    def version(numels, world_size, stage, element_bytes=(4, 4, 8)):
        if stage not in range(4):
            raise ValueError("no such stage")
        count = [part(numels, world_size) if what in shared[stage] else sum(numels) for what in "pgo"]
        return tuple(b * n for b, n in zip(element_bytes, count, strict=True))

    return version


RIGHT = ("", "o", "og", "ogp")
bytes_per_rank.mistake(
    "You pad the sum of all units. Each unit is gathered for itself, and padded for itself."
)(table(RIGHT, lambda ns, n: -(-sum(ns) // n)))
bytes_per_rank.mistake(
    "You round a share down. Someone must keep what is left over, and equal shares mean that all have the room."
)(table(RIGHT, lambda ns, n: sum(m // n for m in ns)))
bytes_per_rank.mistake(
    "Your stage 1 shards the gradients. That is stage 2; stage 1 shards the optimizer's state alone."
)(table(("", "og", "og", "ogp")))
bytes_per_rank.mistake(
    "Each stage keeps what the one before it sharded: stage 2 shards the optimizer's state and the gradients, "
    "stage 3 all three."
)(table(("", "o", "g", "p")))
bytes_per_rank.mistake(
    "You have the order turned round: the optimizer's state is sharded first, being the largest, the "
    "parameters last."
)(table(("", "p", "pg", "pgo")))
bytes_per_rank.mistake("Stage 0 is DDP: every rank keeps everything, and nothing is divided.")(
    table(("ogp", "o", "og", "ogp"))
)


@bytes_per_rank.mistake(
    "You shard whole units, as if each belonged to one rank. Every unit is cut into as many shares as there "
    "are ranks."
)
def _(numels, world_size, stage, element_bytes=(4, 4, 8)):
    return table(RIGHT, lambda ns, n: max((sum(ns[r::n]) for r in range(n)), default=0))(
        numels, world_size, stage, element_bytes
    )


@bytes_per_rank.mistake(
    "You divide bytes and round those. Elements are what is shared out: an element of four bytes is not cut."
)
def _(numels, world_size, stage, element_bytes=(4, 4, 8)):
    if stage not in range(4):
        raise ValueError("no such stage")
    return tuple(
        sum(-(-b * m // world_size) if k < stage else b * m for m in numels)
        for b, k in zip(element_bytes, (2, 1, 0), strict=True)
    )


@bytes_per_rank.alternative("ceil of exact fractions, and a loop over the three")
def _(numels, world_size, stage, element_bytes=(4, 4, 8)):
    from fractions import Fraction
    from math import ceil

    if not 0 <= stage <= 3:
        raise ValueError(stage)
    out = []
    for position, size in enumerate(element_bytes):
        n = world_size if stage >= 3 - position else 1
        out.append(sum(ceil(Fraction(m, n)) for m in numels) * size)
    return tuple(out)


# ------------------------------------------------------------------------------ reshard_state_dict

reshard_state_dict = Exercise(
    fsdp.reshard_state_dict,
    title="A checkpoint for another number of ranks",
    difficulty=3,
    minutes=30,
    points=4,
    probe=probes.resharded,
    hints=(
        "How many rows has a tensor in all? Which of them, from where to where, will your rank keep?",
        "Walk over the old shards with a running offset: an old shard holds rows [offset, offset + len). "
        "Which of those overlap with yours?",
        "Overlap of [a, b) and [c, d): from max(a, c) to min(b, d), if that is not empty.",
        "`torch.cat` of the overlapping slices copies just what you keep. No overlap: an empty tensor with the "
        "other axes as they are.",
        ("edge cases", "A tensor without axes, such as a count of steps, is whole on every rank."),
        (
            "contracts",
            "Do not join a tensor first and cut it then: no rank may have the memory for that.",
        ),
    ),
)


def saved_by(world_size, **whole):
    """What each rank saves of whole tensors: rows cut as torch.chunk does, none where too late."""
    shards = [{} for _ in range(world_size)]
    for name, x in whole.items():
        for rank, shard in enumerate(shards):
            if x.ndim == 0:
                shard[name] = x.clone()
            else:
                size = -(-len(x) // world_size)
                shard[name] = x[rank * size : (rank + 1) * size].clone()
    return shards


def counting(*shape, start=0):
    return torch.arange(start, start + prod(shape), dtype=F32).view(shape)


@reshard_state_dict.by_hand
def _():
    yield (
        call([{"w": t(0.0, 1.0, 2.0)}, {"w": t(3.0, 4.0)}], 4),
        {
            "rank 0 loads": {"w": t(0.0, 1.0)},
            "rank 1 loads": {"w": t(2.0, 3.0)},
            "rank 2 loads": {"w": t(4.0)},
            "rank 3 loads": {"w": torch.empty(0)},
        },
    )
    yield (
        call(saved_by(3, w=counting(4, 1), step=torch.tensor(7.0)), 1),
        {"rank 0 loads": {"w": counting(4, 1), "step": torch.tensor(7.0)}},
    )


@reshard_state_dict.cases(15)
def _(draw):
    rows, columns = draw(draws.distinct_sizes(2, low=1, high=9))
    generator_dtype = draw(st.sampled_from([F32, BF16]))
    w = draw(draws.tensors((rows, columns), generator_dtype))
    b = draw(draws.tensors((draw(st.integers(1, 7)),)))
    old, new = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    yield call(saved_by(old, weight=w, bias=b, step=torch.tensor(3.0)), new)


@reshard_state_dict.edge
def _():
    yield call(saved_by(4, w=counting(2, 3)), 3), "fewer rows than ranks, before and after"
    yield call(saved_by(2, w=counting(5, 2)), 2), "the same number of ranks"
    yield call(saved_by(1, w=counting(7)), 3), "from one rank"
    yield call(saved_by(2, w=torch.zeros(0, 3)), 2), "no rows at all"
    yield call(saved_by(3, w=counting(6, 2, 2)), 4), "three axes"
    yield call(saved_by(2, step=torch.tensor(5)), 3), "only a count of steps"
    yield call(saved_by(2, step=torch.tensor(5), w=counting(3, 2)), 1), "a count of steps comes first"
    yield call([{}, {}], 2), "nothing was saved"
    yield call(saved_by(2, mask=counting(5) > 2, n=counting(3).long()), 3), "bools and integers"


def for_one_rank(subject, case):
    shards, world_size = case.args
    return partial(subject, shards, 1, world_size)


LARGE = [call(saved_by(4, w=counting(512, 64)), n) for n in (2, 8)]
reshard_state_dict.contract(
    contracts.allocates(
        LARGE,
        limit=lambda case: 512 // case.args[1] * 64 * 4,
        says="only the rows that a rank keeps are copied, once",
        prepare=for_one_rank,
    )
)


def like_chunk(x, rank, world_size):
    """The rows of a rank, copied."""
    size = -(-len(x) // world_size)
    return x[rank * size : (rank + 1) * size].clone()


def by_tensor(one):
    """A version that treats each tensor with axes by `one(saved, rank, world_size)`."""

    def version(shards, rank, world_size):
        out = {}
        for name, first in shards[0].items():
            saved = [s[name] for s in shards]
            out[name] = first.clone() if first.ndim == 0 else one(saved, rank, world_size)
        return out

    return version


reshard_state_dict.mistake(
    "The values are right, but every tensor is put together whole before you cut it. A model that needed "
    "many ranks does not fit on one: copy only the rows that overlap with yours.",
    cost=True,
)(by_tensor(lambda saved, rank, n: like_chunk(torch.cat(saved), rank, n)))
reshard_state_dict.mistake(
    "You spread the rows as evenly as possible (`tensor_split`). Shards are cut as `torch.chunk` cuts: "
    "⌈rows / n⌉ for each rank, until none are left."
)(by_tensor(lambda saved, rank, n: torch.cat(saved).tensor_split(n)[rank].clone()))
reshard_state_dict.mistake(
    "You round the rows of a share down: the last rows are loaded by nobody."
)(
    by_tensor(
        lambda saved, rank, n: torch.cat(saved)[
            rank * (sum(map(len, saved)) // n) : (rank + 1) * (sum(map(len, saved)) // n)
        ].clone()
    )
)
reshard_state_dict.mistake(
    "Your ranks keep views of what was saved: all of it stays in memory. Copy the rows."
)(
    by_tensor(
        lambda saved, rank, n: torch.cat(saved)[
            rank * -(-sum(map(len, saved)) // n) : (rank + 1) * -(-sum(map(len, saved)) // n)
        ]
    )
)
reshard_state_dict.mistake(
    "Each new rank takes the shard of the old rank with its number, or nothing. The number of ranks has "
    "changed, and with it every border."
)(
    by_tensor(
        lambda saved, rank, n: (
            saved[rank].clone() if rank < len(saved) else saved[0].new_empty(0, *saved[0].shape[1:])
        )
    )
)


@reshard_state_dict.mistake(
    "You leave a tensor out where a rank has no rows of it. It must be there, empty, with the other axes as "
    "they are: every rank's state dict has the same names."
)
def _(shards, rank, world_size):
    whole = by_tensor(lambda saved, rank, n: like_chunk(torch.cat(saved), rank, n))
    return {k: v for k, v in whole(shards, rank, world_size).items() if v.numel()}


@reshard_state_dict.mistake(
    "Where a rank has no rows you give an empty vector. It loses the other axes: (0, 3) is not (0,)."
)
def _(shards, rank, world_size):
    whole = by_tensor(lambda saved, rank, n: like_chunk(torch.cat(saved), rank, n))
    found = whole(shards, rank, world_size)
    return {k: v if v.numel() or v.ndim == 1 else v.new_empty(0) for k, v in found.items()}


@reshard_state_dict.mistake(
    "You drop what has no axes. A count of steps belongs to the state as well, whole on every rank."
)
def _(shards, rank, world_size):
    whole = by_tensor(lambda saved, rank, n: like_chunk(torch.cat(saved), rank, n))
    return {k: v for k, v in whole(shards, rank, world_size).items() if v.ndim}


@reshard_state_dict.mistake(
    "You join the shards in the wrong order: rank 0 holds the first rows, the last rank the last."
)
def _(shards, rank, world_size):
    return by_tensor(lambda saved, rank, n: like_chunk(torch.cat(saved), rank, n))(
        shards[::-1], rank, world_size
    )


@reshard_state_dict.alternative("an empty tensor, filled row range by row range")
def _(shards, rank, world_size):
    out = {}
    for name in shards[0]:
        saved = [shard[name] for shard in shards]
        if not saved[0].shape:
            out[name] = saved[-1].clone()
            continue
        rows = sum(x.shape[0] for x in saved)
        size = -(-rows // world_size)
        low, high = min(rank * size, rows), min(rank * size + size, rows)
        mine = torch.empty((high - low, *saved[0].shape[1:]), dtype=saved[0].dtype)
        seen = 0
        for x in saved:
            a, b = max(low, seen), min(high, seen + x.shape[0])
            if b > a:
                mine[a - low : b - low].copy_(x[a - seen : b - seen])
            seen += x.shape[0]
        out[name] = mine
    return out


@reshard_state_dict.alternative("row by row, stacked")
def _(shards, rank, world_size):
    def one(saved, rank, n):
        where = [(x, i) for x in saved for i in range(len(x))]
        size = -(-len(where) // n)
        mine = where[rank * size : (rank + 1) * size]
        empty = saved[0].new_empty(0, *saved[0].shape[1:])
        return torch.cat([x[i : i + 1] for x, i in mine]) if mine else empty

    return by_tensor(one)(shards, rank, world_size)


reshard_state_dict.equivalent(
    "reshard_state_dict: `shards[0]` → `shards[-1]`",
    because="every rank saved the same names, and a tensor without axes whole; the rest is read rank by rank",
)
