"""Exercises of chapter 18, FSDP: shares, what they cost, a sharded optimizer and layer, resharding."""
# mypy: ignore-errors

from math import prod

import torch
import torch.distributed as dist
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, on_ranks, probes, replace
from course_utils.grading.probes import prepared
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
    yield call([draws.scattered(x.view(2, 3)), x[:1]], 3), "a tensor that is not contiguous"
    yield call([x[:2]], 5), "more ranks than elements"
    yield call([x[:4].view(2, 2), torch.zeros(0, 3), x[4:]], 4), "an empty tensor among others"
    yield call([x], 1), "one rank: nothing to pad"
    yield call([x.expand(2, 6)], 4), "an expanded tensor"


LAYERS = call([torch.ones(64, 33), torch.ones(64), torch.ones(7, 64)], 4)
shard_flat.contract(
    contracts.allocates(
        [LAYERS],
        limit=lambda case: 4 * 4 * share(sum(t.numel() for t in case.args[0]), 4) + 1024,
        says="`unshard_flat` makes one flat tensor, and views of it",
        prepare=prepared.flat_and_back,
    )
)
UNEVEN = call([torch.ones(64, 33), torch.ones(64), torch.ones(7, 65)], 4)
shard_flat.contract(
    contracts.allocates(
        [UNEVEN],
        limit=lambda case: 4 * sum(t.numel() for t in case.args[0]) * 5 // 4 + 1024,
        says="`shard_flat` makes one flat tensor and one share, and keeps the share",
        prepare=prepared.one_share,
    )
)


shard_flat.mistake(
    "Your shares differ in length. An all-gather into one tensor wants the same from every rank: pad the "
    "flat tensor with zeros first.",
    replace("return mine", "return flat.tensor_split(world_size)[rank].clone()"),
)
shard_flat.mistake(
    "The last share is shorter, or missing: you cut without padding. Collectives want equal shares, so the "
    "end is filled with zeros.",
    replace("return mine", "return part.clone()"),
)
shard_flat.mistake(
    "`chunk` gives a shorter piece at the end, or fewer pieces than ranks. Pad the flat tensor first.",
    replace("return mine", "return flat.chunk(world_size)[rank].clone()"),
)
shard_flat.mistake(
    "`view` raises for a tensor that is not contiguous: `reshape` copies where it must.",
    replace("t.reshape(-1)", "t.view(-1)"),
)
shard_flat.mistake(
    "Your share lies on the default device, wherever the tensors are: `flat.new_zeros` takes theirs.",
    replace("flat.new_zeros(size)", "torch.zeros(size, dtype=flat.dtype)"),
)
shard_flat.mistake(
    "The zeros that you join on are float32, and `cat` promotes a bfloat16 to it: new tensors take the dtype "
    "and the device of the given ones (`flat.new_zeros`).",
    replace(
        "    mine = flat.new_zeros(size)",
        "    flat = torch.cat([flat, torch.zeros(size * world_size - len(flat))])\n"
        "    mine = flat.new_zeros(size)",
    ),
)
shard_flat.mistake(
    "You round the size of a share down: what is left over at the end is kept by nobody. Round up and pad.",
    replace("share(flat.numel(), world_size)", "flat.numel() // world_size"),
)
shard_flat.mistake(
    "Your share is a view of the whole flat tensor, which stays in memory with it: nothing was saved. "
    "Copy the share.",
    replace(
        "mine = flat.new_zeros(size)",
        "flat = F.pad(flat, (0, size * world_size - len(flat)))",
        "    mine[: part.numel()] = part\n    return mine",
        "    return part",
    ),
)


def padded_each(tensors, rank, world_size):
    return torch.cat([fsdp.shard_flat([t], rank, world_size) for t in tensors])


def unshard_each(shards, shapes):
    sizes = [share(prod(shape), len(shards)) for shape in shapes]
    each = zip(*[s.split(sizes) for s in shards], strict=True)
    return [fsdp.unshard_flat(s, [shape])[0] for s, shape in zip(each, shapes, strict=True)]


shard_flat.mistake(
    "You pad and cut each tensor for itself. That is FSDP2's way (dim 0 of every parameter); here the "
    "tensors are joined first, and there is padding only once, at the end."
)(padded_each, unshard_each)
shard_flat.mistake(
    "You deal the elements out like cards, every n-th to a rank. An all-gather joins shares end to end: "
    "they must be contiguous pieces.",
    replace(
        "flat[rank * size : (rank + 1) * size]",
        "flat[rank::world_size]",
        "torch.cat(list(shards))",
        "torch.stack(list(shards), dim=1).flatten()",
    ),
)
shard_flat.mistake(
    "You pad in front; the zeros belong at the end.",
    replace(
        "    mine = flat",
        "    flat = F.pad(flat, (size * world_size - len(flat), 0))\n    mine = flat",
        "flat[: sum(sizes)]",
        "flat[len(flat) - sum(sizes) :]",
    ),
)
shard_flat.mistake(
    "You add padding where none is needed: a length that the number of ranks divides stays as it is. Round "
    "up with -(-numel // world_size).",
    replace("share(flat.numel(), world_size)", "flat.numel() // world_size + 1"),
)
shard_flat.mistake(
    "The shares are right. On the way back you leave the tensors flat: give each its shape.",
    replace(".view(shape)", ""),
)
shard_flat.mistake(
    "The padding is float32, and so is your share: new tensors take the dtype and the device of the given "
    "ones (`flat.new_zeros`).",
    replace("flat.new_zeros(size)", "torch.zeros(size)"),
)
shard_flat.mistake(
    "The values are right, but you copy each tensor out of the flat one, so that for a while the parameters "
    "are there twice. Return views.",
    replace(".view(shape)", ".view(shape).clone()"),
    cost=True,
)
shard_flat.mistake(
    "The values are right, but you join the tensors and then pad into a second flat tensor: for a while all "
    "parameters are there twice. Pad the share, or join the zeros in the same `cat`.",
    replace(
        "    mine = flat.new_zeros(size)",
        "    flat = F.pad(flat, (0, size * world_size - len(flat)))\n    mine = flat.new_zeros(size)",
    ),
    cost=True,
)


def pad_shard(tensors, rank, world_size):
    flat = torch.hstack([t.ravel() for t in tensors])
    size = -(-flat.numel() // world_size)
    part = flat.narrow(0, min(rank * size, len(flat)), max(min(size, len(flat) - rank * size), 0))
    return torch.nn.functional.pad(part, (0, size - len(part)))


def narrow_back(shards, shapes):
    flat, offset, parts = torch.cat(tuple(shards)), 0, []
    for shape in shapes:
        n = torch.Size(shape).numel()
        parts.append(flat.narrow(0, offset, n).reshape(shape))
        offset += n
    return parts


shard_flat.alternative("F.pad of the share alone; narrow there and back")(pad_shard, narrow_back)


def stacked_shard(tensors, rank, world_size):
    numel = sum(t.numel() for t in tensors)
    size = (numel + world_size - 1) // world_size
    table = tensors[0].new_zeros(world_size * size)
    start = 0
    for x in tensors:
        table[start : start + x.numel()] = x.reshape(-1)
        start += x.numel()
    return torch.clone(table.view(world_size, size)[rank])


shard_flat.alternative("a table with a row for each rank")(stacked_shard, narrow_back)


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
    yield call([5, 6], 4, 2), (44, 16, 32)  # whole, a unit is not padded
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


PART = "sum(share(numel, world_size) for numel in numels)"

bytes_per_rank.mistake(
    "You pad the sum of all units. Each unit is gathered for itself, and padded for itself.",
    replace(PART, "share(sum(numels), world_size)"),
)
bytes_per_rank.mistake(
    "You round a share down. Someone must keep what is left over, and equal shares mean that all have the room.",
    replace("share(numel, world_size)", "numel // world_size"),
)
bytes_per_rank.mistake(
    "You add one element also where nothing is left over: 100 elements on 4 ranks are 25 for each. Round up.",
    replace("share(numel, world_size)", "(numel // world_size + 1)"),
)
bytes_per_rank.mistake(
    "Your stage 1 shards the gradients. That is stage 2; stage 1 shards the optimizer's state alone.",
    replace("stage >= 2", "stage >= 1"),
)
bytes_per_rank.mistake(
    "You have stages 1 and 2 the wrong way round: the optimizer's state is sharded first, in stage 1; the "
    "gradients join it in stage 2.",
    replace(
        "of_gradients * (part if stage >= 2",
        "of_gradients * (part if stage >= 1",
        "of_state * (part if stage >= 1",
        "of_state * (part if stage >= 2",
    ),
)
for padded in (f"{PART} * world_size", f"{PART} * world_size if stage else sum(numels)"):
    bytes_per_rank.mistake(
        "What is not sharded is padded too. Padding is there so that the shares are equal; what a rank keeps "
        "whole has its own number of elements.",
        replace("whole = sum(numels)", f"whole = {padded}"),
    )
bytes_per_rank.mistake(
    "Each stage keeps what the one before it sharded: stage 2 shards the optimizer's state and the gradients, "
    "stage 3 all three.",
    replace("stage >= 2", "stage == 2", "stage >= 1", "stage == 1"),
)
bytes_per_rank.mistake(
    "You have the order turned round: the optimizer's state is sharded first, being the largest, the "
    "parameters last.",
    replace(
        "of_parameters * (part if stage == 3",
        "of_parameters * (part if stage >= 1",
        "of_state * (part if stage >= 1",
        "of_state * (part if stage == 3",
    ),
)
bytes_per_rank.mistake(
    "Stage 0 is DDP: every rank keeps everything, and nothing is divided.",
    replace("stage == 3", "stage in (0, 3)", "stage >= 2", "stage != 1", "stage >= 1", "True"),
)
bytes_per_rank.mistake(
    "You shard whole units, as if each belonged to one rank. Every unit is cut into as many shares as there "
    "are ranks.",
    replace(PART, "max(sum(numels[rank::world_size]) for rank in range(world_size))"),
)


bytes_per_rank.mistake(
    "Any stage is taken: one that is not 0, 1, 2 or 3 raises ValueError.",
    replace("stage not in (0, 1, 2, 3)", "False"),
)
bytes_per_rank.mistake(
    "A negative stage is taken: only 0, 1, 2 and 3 are stages, any other raises ValueError.",
    replace("stage not in (0, 1, 2, 3)", "stage > 3"),
)
bytes_per_rank.mistake(
    "A negative stage is taken for an index that counts from the end: only 0, 1, 2 and 3 are stages, any other "
    "raises ValueError.",
    replace(
        "stage not in (0, 1, 2, 3)",
        "stage not in range(-4, 4)",
        "    whole = sum(numels)",
        "    stage %= 4\n    whole = sum(numels)",
    ),
)
bytes_per_rank.mistake(
    "A stage that does not exist raises ValueError; an assert raises AssertionError.",
    replace("ValueError", "AssertionError"),
)
bytes_per_rank.mistake(
    "You divide to a float and round that up. Beyond 2⁵³ a float has no room for the last digits: integers all "
    "the way, -(-numel // world_size).",
    replace("share(numel, world_size)", "-int(-numel / world_size // 1)"),
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


# ------------------------------------------------------------------------------ ZeroOneOptimizer

ZeroOneOptimizer = Exercise(
    fsdp.ZeroOneOptimizer,
    title="A sharded optimizer",
    difficulty=3,
    minutes=35,
    points=5,
    probe=probes.sharded_optimizer,
    hints=(
        "In `__init__`: this rank's share of the flat parameters, one tensor, and an optimizer that "
        "knows nothing else: `optimizer_class([self.shard], **options)`.",
        "In `step`: join the gradients as you joined the parameters, padding included; reduce-scatter; divide "
        "by the number of ranks; that is `self.shard.grad`.",
        "After the inner step: all-gather the shards, `unshard_flat`, and copy into each parameter with "
        "`p.copy_(…)` under `torch.no_grad()`.",
        (
            "edge cases",
            "Is there a parameter without gradient? It still takes its place in the flat vector.",
        ),
        (
            "contracts",
            "One reduce-scatter and one all-gather a step; and only the share may have a state.",
        ),
    ),
)


def stepped(optimizer, options, params, grads_by_rank, **more):
    """A case: grads_by_rank holds for each rank its gradients step by step."""
    same = {"params": params, "optimizer": optimizer, "options": options, **more}
    return on_ranks(*[call(grads=grads, **same) for grads in grads_by_rank])


@ZeroOneOptimizer.by_hand
def _():
    p = t(1.0, 2.0, 3.0)
    grads = [[[t(2.0, 0.0, 0.0)]], [[t(0.0, 4.0, 2.0)]]]  # their mean: 1, 2, 1
    yield (
        stepped("SGD", {"lr": 1.0}, [p], grads),
        {
            "rank 0: parameter 0 after each step": t(0.0, 0.0, 2.0)[None],
            "rank 1: parameter 0 after each step": t(0.0, 0.0, 2.0)[None],
        },
    )


OPTIMIZERS = (
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1}),
)


@ZeroOneOptimizer.cases(6)
def _(draw):
    shapes = draw(st.lists(draws.distinct_sizes(2, low=1, high=4), min_size=1, max_size=3))
    world, steps = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    name, options = draw(st.sampled_from(OPTIMIZERS))
    params = [draw(draws.tensors(s)) for s in shapes]
    yield stepped(
        name,
        options,
        params,
        [[[draw(draws.tensors(s)) for s in shapes] for _ in range(steps)] for _ in range(world)],
    )


def some(*shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def thirds(*shapes, seed=0):
    """Numbers of float64 that float32 does not hold."""
    return [x.double() / 3 for x in some(*shapes, seed=seed)]


@ZeroOneOptimizer.edge
def _():
    adam = ("AdamW", {"lr": 0.1})
    shapes = [(3, 2), (5,)]
    yield (
        stepped(*adam, some(*shapes), [[some(*shapes, seed=r) for _ in "ab"] for r in (1, 2, 3)]),
        "eleven elements on three ranks: padding",
    )
    first = [[None, some((5,), seed=r)[0]] for r in (1, 2)]
    yield (
        stepped(*adam, some(*shapes), [[grads, grads] for grads in first]),
        "a parameter without gradient",
    )
    mixed = [[[None, torch.ones(5)]], [[torch.ones(3, 2), torch.ones(5)]]]
    yield stepped(*adam, some(*shapes), mixed), "a gradient that only one rank has"
    still = [[some((5,), seed=r) + [None]] for r in (1, 2)]
    yield (
        stepped("AdamW", {"lr": 0.1, "weight_decay": 0.5}, some((5,), (3,)), still, frozen=[1]),
        "a frozen parameter: weight decay must not shrink it",
    )
    later = [[[None, *some((5,), seed=r)]] for r in (1, 2)]
    yield (
        stepped(*adam, some((3,), (5,)), later, frozen=[0], thawed=[0]),
        "a parameter that was frozen when this was built, and is no more",
    )
    wide = [[thirds(*shapes, seed=r)] for r in (1, 2)]
    yield stepped("SGD", {"lr": 0.1}, thirds(*shapes), wide), "float64"
    yield (
        stepped(*adam, some((2,)), [[some((2,), seed=r)] for r in range(4)]),
        "fewer elements than ranks",
    )
    yield stepped(*adam, some(()), [[some((), seed=r)] for r in (1, 2)]), "a single number"
    yield (
        stepped(
            *adam,
            some((4, 2)),
            [[some((4, 2), seed=r) for _ in "ab"] for r in (1, 2, 3, 4)],
            groups=[[0, 2], [1, 3]],
        ),
        "two groups that share among themselves",
    )
    half = [[some((4, 2), seed=r)] for r in (1, 2)]
    yield (
        stepped("SGD", {"lr": 0.1}, some((4, 2)), half, groups=[[0], [1]]),
        "groups of one rank: the mean is its own gradient",
    )
    turned = [[[draws.scattered(*some((3, 2), seed=r))]] for r in (1, 2)]
    yield stepped(*adam, some((3, 2)), turned), "gradients that are not contiguous"


SHAPES = [(64, 60), (64,), (60, 64), (7,)]
N_ELEMENTS = sum(map(prod, SHAPES))
STEP = stepped("AdamW", {"lr": 0.1}, some(*SHAPES), [[some(*SHAPES, seed=r)] for r in range(4)])
for vectors, says in (
    (3, "what a step leaves behind is the state of a share"),
    (2, "it is the two moments of AdamW, and no gradient besides"),
):
    ZeroOneOptimizer.contract(
        contracts.resident(
            [STEP],
            limit=vectors * 4 * share(N_ELEMENTS, 4) + 1024,
            says=says,
            probe=probes.sharded_state,
        )
    )
ZeroOneOptimizer.contract(
    contracts.sends(
        [STEP],
        limit=2 * 3 * 4 * share(N_ELEMENTS, 4) + 1024,
        says="no more bytes than DDP's all-reduce",
        probe=probes.sharded_optimizer,
    )
)
ZeroOneOptimizer.contract(
    contracts.collectives(
        [STEP],
        limit=2,
        says="two collectives a step, however many parameters",
        probe=probes.sharded_optimizer,
    )
)


def pieces(x, world_size):
    """A flat tensor, padded, as rows: one for each rank."""
    return torch.nn.functional.pad(x, (0, -x.numel() % world_size)).view(world_size, -1)


MEAN_OF_SHARE = "reduce_scatter_mean(flatten_padded(grads, self.world_size), self.group)"

ZeroOneOptimizer.mistake(
    "You step with the sum of all ranks' gradients. The batch's gradient is their mean: divide by the number "
    "of ranks.",
    replace(MEAN_OF_SHARE, MEAN_OF_SHARE + " * self.world_size"),
)
ZeroOneOptimizer.mistake(
    "Each rank steps its share with its own gradient: what the other ranks' rows say about that share is lost. "
    "Reduce-scatter first.",
    replace(MEAN_OF_SHARE, "shard_flat(grads, dist.get_rank(self.group), self.world_size)"),
)
ZeroOneOptimizer.mistake(
    "You never gather: outside of its own share each rank goes on with old parameters, and the ranks drift "
    "apart.",
    replace(
        "flat = all_gather_flat(self.shard, self.group)",
        "flat = flatten_padded(self.params, self.world_size)\n"
        "        flat.view(self.world_size, -1)[dist.get_rank(self.group)] = self.shard",
    ),
)
ZeroOneOptimizer.mistake(
    "You make a new inner optimizer in every step, so its state is lost: momentum and moments begin again.",
    replace(
        "self.optimizer = optimizer_class",
        "self.made = lambda: optimizer_class",
        "self.optimizer.step()",
        "self.made().step()",
    ),
)
ZeroOneOptimizer.mistake(
    "You leave parameters without gradient out of the flat gradient, so that all behind them shift into other "
    "shares. Zeros keep their place.",
    replace(
        "else p.grad for p in self.params]",
        "else p.grad for p in sorted(self.params, key=lambda p: p.grad is None)]",
    ),
)
ZeroOneOptimizer.mistake(
    "You round the size of a share down: what is left over at the end never takes a step. Pad.",
    replace(
        "        new = ",
        "        kept = sum(p.numel() for p in self.params) // self.world_size * self.world_size\n"
        "        flat[kept:] = flatten_padded(self.params, self.world_size)[kept:]\n"
        "        new = ",
    ),
)
ZeroOneOptimizer.mistake(
    "`zero_grad` forgets the gradient of the shard only. Those of the parameters stay, and the next backward "
    "pass adds to them.",
    replace("for p in self.params:\n            p.grad = None", "self.shard.grad = None"),
)
ZeroOneOptimizer.mistake(
    "You do not use the group: shares are cut for all ranks of the job, not for those of the group.",
    replace("self.group = group", "self.group = group = None"),
)
ZeroOneOptimizer.mistake(
    "You ask for the rank without naming the group: in a smaller group that is another number, and the rank "
    "takes another's share. dist.get_rank(group).",
    replace("dist.get_rank(group)", "dist.get_rank()"),
)
ZeroOneOptimizer.mistake(
    "The mean is taken over all ranks of the job. Only those of the group have added theirs: "
    "dist.get_world_size(group).",
    replace(MEAN_OF_SHARE, MEAN_OF_SHARE + " * self.world_size / dist.get_world_size()"),
)
ZeroOneOptimizer.mistake(
    "The share keeps its gradient after the step, beside the optimizer's state: set it to None.",
    replace("        self.shard.grad = None\n", ""),
    cost=True,
)
ZeroOneOptimizer.mistake(
    "Frozen parameters are in the flat vector. A gradient of zeros does not hold them still: weight decay "
    "shrinks them. Leave out what does not require grad.",
    replace("[p for p in params if p.requires_grad]", "list(params)"),
)
ZeroOneOptimizer.mistake(
    "You ask in every step anew which parameters are frozen. What counts is which were when this was built: the share is "
    "of all others.",
    replace(
        "self.params = [p for p in params if p.requires_grad]",
        "self.every = list(params)\n        self.params = [p for p in self.every if p.requires_grad]",
        "        grads = [",
        "        self.params = [p for p in self.every if p.requires_grad]\n        grads = [",
    ),
)
for travels in (
    (
        "flatten_padded(grads, self.world_size), self.group)",
        "flatten_padded(grads, self.world_size).float(), self.group).to(self.shard.dtype)",
    ),
    ("all_gather_flat(self.shard, self.group)", "all_gather_flat(self.shard.float(), self.group)"),
):
    ZeroOneOptimizer.mistake(
        "What travels is float32, whatever the parameters are, and those of float64 lose half of their digits. New tensors "
        "take the dtype of the share.",
        replace(*travels),
    )
ZeroOneOptimizer.mistake(
    "The parameters get new memory in every step (`.data = …`). Views of them, other parameters that are tied "
    "to them by hand for example, stay behind: copy in place.",
    replace("p.copy_(values)", "p.data = values"),
)
ZeroOneOptimizer.mistake(
    "`params` may be a generator, as `model.parameters()` is, and is empty after you have gone through it "
    "once: make a list first.",
    replace(
        "[p for p in params if p.requires_grad]",
        "params",
        "flatten_padded(grads,",
        "flatten_padded([torch.cat([grad.flatten() for grad in grads])],",
    ),
)
ZeroOneOptimizer.mistake(
    "The parameters are right, but nothing is sharded: every rank keeps the optimizer's state of every "
    "parameter. That is DDP.",
    replace(
        "shard_flat(whole, dist.get_rank(group), self.world_size)",
        "flatten_padded(whole, self.world_size)",
        f"self.shard.grad = {MEAN_OF_SHARE}",
        "flat = flatten_padded(grads, self.world_size)\n"
        "        dist.all_reduce(flat, group=self.group)\n"
        "        self.shard.grad = flat / self.world_size",
        "all_gather_flat(self.shard, self.group)",
        "self.shard",
    ),
    cost=True,
)
ZeroOneOptimizer.mistake(
    "The parameters are right, but you all-reduce the gradients and use a share of the result. An all-reduce is "
    "a reduce-scatter and an all-gather; the second half is wasted.",
    replace(
        f"self.shard.grad = {MEAN_OF_SHARE}",
        "flat = flatten_padded(grads, self.world_size)\n"
        "        dist.all_reduce(flat, group=self.group)\n"
        "        mine = flat.view(self.world_size, -1)[dist.get_rank(self.group)]\n"
        "        self.shard.grad = mine / self.world_size",
    ),
    cost=True,
)


@ZeroOneOptimizer.mistake(
    "The parameters are right, but you shard each parameter for itself and send two messages for each. Join "
    "them: many small collectives cost their latency each.",
    cost=True,
)
class OneByOne:
    def __init__(self, params, optimizer_class, group=None, **options):
        params = [p for p in params if p.requires_grad]
        self.parts = [fsdp.ZeroOneOptimizer([p], optimizer_class, group, **options) for p in params]

    def step(self):
        for part in self.parts:
            part.step()

    def zero_grad(self):
        for part in self.parts:
            part.zero_grad()


@ZeroOneOptimizer.alternative("parameters that are views of one flat buffer")
class FlatBuffer:
    def __init__(self, params, optimizer_class, group=None, **options):
        self.params, self.group = [p for p in params if p.requires_grad], group
        n = dist.get_world_size(group)
        self.flat = pieces(torch.cat([p.detach().flatten() for p in self.params]), n)
        self.flat = self.flat.contiguous().view(-1)
        start = 0
        for p in self.params:
            p.data = self.flat[start : start + p.numel()].view(p.shape)
            start += p.numel()
        self.mine = self.flat.view(n, -1)[dist.get_rank(group)]
        self.inner = optimizer_class([self.mine], **options)

    @torch.no_grad()
    def step(self):
        grads = torch.zeros_like(self.flat)
        start = 0
        for p in self.params:
            if p.grad is not None:
                grads[start : start + p.numel()] = p.grad.flatten()
            start += p.numel()
        mean = torch.empty_like(self.mine)
        grads /= dist.get_world_size(self.group)
        fsdp.reduce_scatter_single(mean, grads, group=self.group)
        self.mine.grad = mean
        self.inner.step()
        self.mine.grad = None
        fsdp.all_gather_single(self.flat, self.mine.clone(), group=self.group)

    def zero_grad(self):
        for p in self.params:
            if p.grad is not None:
                p.grad.zero_()


@ZeroOneOptimizer.alternative(
    "torch's own parameters_to_vector, and collectives of lists of tensors"
)
class WithVectors:
    def __init__(self, params, optimizer_class, group=None, **options):
        self.params = [p for p in params if p.requires_grad]
        self.group, self.n = group, dist.get_world_size(group)
        self.mine = torch.nn.Parameter(self.rows(self.params)[dist.get_rank(group)].clone())
        self.inner = optimizer_class([{"params": [self.mine]}], **options)

    def rows(self, tensors):
        vector = torch.nn.utils.parameters_to_vector(x.detach().contiguous() for x in tensors)
        return list(pieces(vector, self.n))

    def step(self):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        mean = torch.empty_like(self.mine.data)
        dist.reduce_scatter(mean, self.rows(grads), group=self.group)
        self.mine.grad = mean / self.n
        self.inner.step()
        self.inner.zero_grad()
        rows = [torch.empty_like(self.mine.data) for _ in range(self.n)]
        dist.all_gather(rows, self.mine.data, group=self.group)
        flat = torch.cat(rows)
        for p in self.params:
            p.data.copy_(flat[: p.numel()].view_as(p))
            flat = flat[p.numel() :]

    def zero_grad(self):
        for p in self.params:
            p.grad = None


for change in (
    "`strict=True` → `strict=False`",
    "`zip(self.params, new, strict=True)` → `zip(self.params, new)`",
):
    ZeroOneOptimizer.equivalent(
        f"ZeroOneOptimizer.step: {change}",
        because="the new tensors are made from the parameters' own shapes, so there are as many of one as of the other",
    )


# ------------------------------------------------------------------------------ FullyShardedLinear

FullyShardedLinear = Exercise(
    fsdp.FullyShardedLinear,
    title="A layer that is whole only while it is used",
    difficulty=3,
    minutes=40,
    points=5,
    probe=probes.sharded_layer,
    hints=(
        "Gathering is `all_gather_single` into a flat tensor, then `unshard_flat([flat], shapes)` with the shapes "
        "(out_features, in_features) and (out_features,).",
        "`ctx.save_for_backward(x, shard)`, and on ctx the group and shapes. Not the weight: the backward pass "
        "gathers it again.",
        "With G the gradient of y and X the input, both as rows: the weight's gradient is Gᵀ X, the bias's the sum "
        "of G's rows, that of x is G W.",
        "Join the two gradients as the parameters were joined, pad, reduce-scatter, divide by the number of ranks.",
        ("contracts", "Three collectives: all-gather; all-gather, reduce-scatter."),
    ),
)


def layer(weight, bias, xs, grads, groups=None, **more):
    """A case: each rank's x and gradient, and the shares of (weight, bias), within its group."""
    world = len(xs)
    flat = torch.cat([weight.flatten(), bias])
    calls = [None] * world
    for ranks in groups or [list(range(world))]:
        rows = pieces(flat, len(ranks))
        for i, rank in enumerate(ranks):
            calls[rank] = call(
                x=xs[rank],
                shard=rows[i].clone(),
                out_features=len(bias),
                grad=grads[rank],
                groups=groups,
                **more,
            )
    return on_ranks(*calls)


@FullyShardedLinear.by_hand
def _():
    yield (
        layer(
            t(1.0, 2.0)[None], t(3.0), [t(1.0, 1.0)[None], t(2.0, 0.0)[None]], [t(1.0)[None]] * 2
        ),
        {
            "rank 0: y": t(6.0)[None],
            "rank 1: y": t(5.0)[None],
            "rank 0: gradient of x": t(1.0, 2.0)[None],
            "rank 0: gradient of the shard": t(1.5, 0.5),
            "rank 1: gradient of the shard": t(1.0, 0.0),
        },
    )


def drawn_layer(batch, n_in, n_out, world, seed=0, **options):
    weight, bias = some((n_out, n_in), (n_out,), seed=seed)
    xs = some(*[(*batch, n_in)] * world, seed=seed + 1)
    return layer(weight, bias, xs, some(*[(*batch, n_out)] * world, seed=seed + 2), **options)


@FullyShardedLinear.cases(6)
def _(draw):
    n_in, n_out, rows = draw(draws.distinct_sizes(3, low=1, high=5))
    batch = draw(st.sampled_from([(rows,), (2, rows)]))
    yield drawn_layer(batch, n_in, n_out, draw(st.integers(1, 4)), draw(st.integers(0, 99)))


@FullyShardedLinear.edge
def _():
    yield drawn_layer((2,), 2, 3, 4), "nine elements on four ranks: padding"
    yield drawn_layer((2,), 1, 1, 3), "fewer elements than ranks"
    yield drawn_layer((), 3, 2, 2), "one row without a batch axis"
    yield drawn_layer((2, 1, 3), 2, 4, 2), "three batch axes"
    yield drawn_layer((3,), 4, 2, 2, frozen=True), "an input that wants no gradient: a first layer"
    yield (
        drawn_layer((2,), 3, 4, 4, groups=[[0, 2], [1, 3]]),
        "two groups that share among themselves",
    )
    weight, bias = some((3, 2), (3,))
    xs, grads = some(*[(3, 2, 2)] * 2, seed=5), some(*[(3, 2, 3)] * 2, seed=6)
    turned = list(map(draws.scattered, grads))
    yield layer(weight, bias, xs, turned), "a gradient that is not contiguous"
    yield layer(weight, bias, list(map(draws.scattered, xs)), grads), "x is not contiguous"
    wide = [[x.double() / 3 for x in each] for each in ((weight, bias), xs, grads)]
    yield layer(*wide[0], *wide[1:]), "float64"
    second = t(1.0, -2.0)  # a share of three weights and a bias, on two ranks
    yield layer(weight, bias, xs, grads, then=second), "two layers: the second comes back first"


WIDE = drawn_layer((2,), 96, 128, 4)
WIDE_SHARE = 4 * share(128 * 97, 4)
FullyShardedLinear.contract(
    contracts.resident(
        [WIDE],
        limit=WIDE_SHARE + 4 * 2 * 128 + 1024,
        says="between the two passes nothing whole is alive",
        probe=probes.sharded_layer_between,
    )
)
FullyShardedLinear.contract(
    contracts.sends(
        [WIDE],
        limit=3 * 3 * WIDE_SHARE + 1024,
        says="two all-gathers and a reduce-scatter of the layer",
        probe=probes.sharded_layer,
    )
)


MEAN_OF_LAYER = "reduce_scatter_mean(flat, ctx.group)"

FullyShardedLinear.mistake(
    "You compute in_features from the gathered length, which has the padding in it. x knows it: x.shape[-1].",
    replace(
        "(out_features, x.shape[-1])",
        "(out_features, shard.numel() * dist.get_world_size(group) // out_features - 1)",
    ),
)
FullyShardedLinear.mistake(
    "The shard's gradient is the sum over the ranks. Divide by their number: it must be what one process "
    "would find for the mean loss of the whole batch.",
    replace(MEAN_OF_LAYER, MEAN_OF_LAYER + " * dist.get_world_size(ctx.group)"),
)
FullyShardedLinear.mistake(
    "Each rank takes its share of its own gradient. The other ranks' rows have something to say about that "
    "share too: reduce-scatter.",
    replace(
        MEAN_OF_LAYER,
        "flat.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)].clone()",
    ),
)
for travels in (
    (
        "weight, bias = unshard_flat([all_gather_flat(shard, group)]",
        "weight, bias = unshard_flat([all_gather_flat(shard.float(), group).to(shard.dtype)]",
    ),
    (MEAN_OF_LAYER, "reduce_scatter_mean(flat.float(), ctx.group).to(shard.dtype)"),
):
    FullyShardedLinear.mistake(
        "What travels is float32, whatever the shard is, and a layer of float64 loses half of its digits. New tensors take "
        "the dtype of the shard.",
        replace(*travels),
    )
FullyShardedLinear.mistake(
    "The bias gets no gradient: it is part of the shard, behind the weight.",
    replace("rows.sum(0)", "torch.zeros_like(rows[0])"),
)
FullyShardedLinear.mistake(
    "You average the gradient of x over the ranks. x is this rank's own rows, and so is its gradient.",
    replace(
        "return grad @ weight",
        "of_x = grad @ weight\n"
        "        dist.all_reduce(of_x, group=ctx.group)\n"
        "        return of_x / dist.get_world_size(ctx.group)",
    ),
)
FullyShardedLinear.mistake(
    "You divide the gradient of x by the number of ranks too. x is this rank's own rows; only the gradient of "
    "the shard is a mean over the ranks.",
    replace("grad @ weight", "grad @ weight / dist.get_world_size(ctx.group)"),
)
FullyShardedLinear.mistake(
    "The weight's gradient is xᵀ·G, of shape (in, out): the weight is (out, in), so laid flat its gradient is in "
    "another order. Gᵀ·x.",
    replace(
        "rows.T @ x.reshape(-1, x.shape[-1])",
        "x.reshape(-1, x.shape[-1]).T @ rows",
    ),
)
FullyShardedLinear.mistake(
    "The bias's gradient is summed over the first axis only. x may have several batch axes, or none: lay the "
    "gradient out as rows first.",
    replace("rows.sum(0)", "grad.sum(0)"),
)
FullyShardedLinear.mistake(
    "The bias's gradient is summed over the first axis only, and what is too much of it is cut off. x may have "
    "several batch axes: lay the gradient out as rows first.",
    replace(
        "rows.sum(0)",
        "grad.sum(0) if grad.dim() > 1 else grad",
        "flat = flatten_padded(grads, dist.get_world_size(ctx.group))",
        "whole = torch.cat([g.reshape(-1) for g in grads])\n"
        "        flat = shard.new_zeros(shard.numel() * dist.get_world_size(ctx.group))\n"
        "        flat[: len(whole)] = whole[: len(flat)]",
    ),
)
FullyShardedLinear.mistake(
    "You divide by the number of all ranks of the job. The mean is over those of the group: "
    "`dist.get_world_size(group)`.",
    replace(
        MEAN_OF_LAYER,
        MEAN_OF_LAYER + " * dist.get_world_size(ctx.group) / dist.get_world_size()",
    ),
)
FullyShardedLinear.mistake(
    "`flatten(0, -2)` raises for one row without a batch axis: reshape(-1, n).",
    replace("grad.reshape(-1, grad.shape[-1])", "grad.flatten(0, -2)"),
)
FullyShardedLinear.mistake(
    "Your backward forgets the group, and gathers and reduces over all ranks of the job: keep the group on ctx.",
    replace(
        "x, shard = ctx.saved_tensors",
        "x, shard = ctx.saved_tensors\n        ctx.group = None",
        "        return grad @ weight",
        "        flat = F.pad(flat, (0, shard.numel() * dist.get_world_size() - len(flat)))\n"
        "        return grad @ weight",
    ),
)
FullyShardedLinear.mistake(
    "You take the mean of the gradient over the rows as well. The rows are summed, the ranks averaged; "
    "whether the loss is a mean is in the gradient that comes in.",
    replace(MEAN_OF_LAYER, MEAN_OF_LAYER + " / len(rows)"),
)
FullyShardedLinear.mistake(
    "You do not use the group: parameters are gathered from all ranks of the job.",
    replace("ctx.group = group", "ctx.group = group = None"),
)
FullyShardedLinear.mistake(
    "The shapes are kept on the class: a second layer overwrites those of the first before its backward "
    "pass. What a call leaves for its own backward belongs on ctx.",
    replace(
        "ctx.group = group",
        "ctx.group = group\n        FullyShardedLinear.shapes = ctx.shapes",
        "ctx.group)], ctx.shapes",
        "ctx.group)], FullyShardedLinear.shapes",
    ),
)
FullyShardedLinear.mistake(
    "You change the gradient that comes in. Others may hold it: compute in a tensor of your own.",
    replace(
        "rows = grad.reshape",
        "of_x = grad @ weight\n        rows = grad.div_(dist.get_world_size(ctx.group)).reshape",
        f"return grad @ weight, {MEAN_OF_LAYER}",
        f"return of_x, {MEAN_OF_LAYER} * dist.get_world_size(ctx.group)",
    ),
)
FullyShardedLinear.mistake(
    "A gradient need not be contiguous, and `view` raises then: `reshape` copies where it must.",
    replace("grad.reshape", "grad.view"),
)
FullyShardedLinear.mistake(
    "The values are right, but the gathered weight is kept for the backward pass: between the passes every "
    "layer is whole on every rank. Keep the shard, and gather again.",
    replace(
        "        ctx.save_for_backward(x, shard)\n",
        "",
        "        return F.linear",
        "        ctx.save_for_backward(x, weight)\n        return F.linear",
        "x, shard = ctx",
        "x, weight = ctx",
        "        weight, _ = unshard_flat([all_gather_flat(shard, ctx.group)], ctx.shapes)\n",
        "",
    ),
    cost=True,
)
FullyShardedLinear.mistake(
    "The values are right, but you all-reduce the gradient of the whole layer and keep a share of it: twice "
    "the bytes of the reduce-scatter that was asked for.",
    replace(
        "        return grad @ weight",
        "        dist.all_reduce(flat, group=ctx.group)\n"
        "        n, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)\n"
        "        return grad @ weight",
        MEAN_OF_LAYER,
        "flat.chunk(n)[rank] / n",
    ),
    cost=True,
)


class ListLayer(torch.autograd.Function):
    @staticmethod
    def gather(shard, group):
        parts = [torch.empty_like(shard) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, shard.detach().contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def forward(ctx, x, shard, out_features, group=None):
        ctx.save_for_backward(x, shard)
        ctx.rest = out_features, group
        flat = ListLayer.gather(shard, group)
        n = out_features * x.shape[-1]
        weight = flat[:n].view(out_features, -1)
        return torch.einsum("...i,oi->...o", x, weight) + flat[n : n + out_features]

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        out_features, group = ctx.rest
        world = dist.get_world_size(group)
        n = out_features * x.shape[-1]
        weight = ListLayer.gather(shard, group)[:n].view(out_features, -1)
        of_x = torch.einsum("...o,oi->...i", grad, weight) if ctx.needs_input_grad[0] else None
        flat = shard.new_zeros(world * shard.numel())
        rows, inputs = grad.reshape(-1, out_features), x.reshape(-1, x.shape[-1])
        flat[:n] = torch.einsum("no,ni->oi", rows, inputs).flatten()
        flat[n : n + out_features] = torch.einsum("no->o", rows)
        mine = torch.empty_like(shard)
        dist.reduce_scatter(mine, list(flat.div_(world).chunk(world)), group=group)
        return of_x, mine, None, None


FullyShardedLinear.alternative("einsum, and collectives of lists of tensors")(ListLayer)


# ------------------------------------------------------------------------------ ShardedModel

ShardedModel = Exercise(
    (fsdp.ShardedModel, fsdp.GatherIn),
    title="A sharded model that computes in another dtype",
    difficulty=3,
    minutes=45,
    points=6,
    probe=probes.sharded_model,
    hints=(
        "`GatherIn`: cast the share, then gather; backward, cast the gradient, then reduce-scatter the mean. "
        "`all_gather_flat` and `reduce_scatter_mean` do the rest.",
        "A name such as `inner.blocks.0` has a parent: `module.get_submodule(parent)`; there `setattr(parent, child, "
        "Unit(…))` puts the unit in place. The root comes last, when all units are made, with `keep=True`.",
        "Take the names of all parameters before you shard anything. A unit knows its own names, without the path that "
        "leads to it.",
        (
            "edge cases",
            "Names in the order of `named_parameters()`, though the root's come first and last; `units` in any order.",
        ),
        (
            "contracts",
            "What is sent in the compute dtype costs fewer bytes: cast before the all-gather.",
        ),
    ),
)

BLOCKS = ["inner.blocks.0", "inner.blocks.1"]


def built(world, *inputs, model="two blocks", units=BLOCKS, dtype=F32, **more):
    """A case: inputs(rank) gives the step's input of one rank. dtype: of the model."""
    given = {"model": model, "units": units, "like": torch.empty(0, dtype=dtype), **more}
    return on_ranks(*(call(*(make(r) for make in inputs), **given) for r in range(world)))


def vectors(n, seed=0, dtype=F32):
    def of(rank):
        generator = torch.Generator().manual_seed(10 * rank + seed)
        return torch.randn(n, 3, generator=generator, dtype=dtype)

    return of


def ids(n, seed=0):
    return lambda rank: torch.randint(
        0, 5, (n,), generator=torch.Generator().manual_seed(10 * rank + seed)
    )


@ShardedModel.by_hand
def _():
    # The input is 0: the first layer's weight gets no gradient
    case = built(2, lambda r: torch.zeros(1, 3))
    names = (
        "inner.first.weight",
        "inner.first.bias",
        *(
            f"inner.blocks.{i}.{name}"
            for i in range(2)
            for name in ("scale", "first.weight", "first.bias", "second.weight", "second.bias")
        ),
        "head.weight",
    )
    yield (
        case,
        {
            "rank 0: names that gather_full_parameters gives": names,
            "rank 1: dtypes of what the optimizer gets": ("float32",),
        },
    )


@ShardedModel.cases(5)
def _(draw):
    world, n = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    units = draw(
        st.sampled_from([BLOCKS, BLOCKS[::-1], BLOCKS[:1], ["inner.first", BLOCKS[1]], []])
    )
    dtype = draw(st.sampled_from([None, BF16]))
    yield built(world, vectors(n), units=units, compute_dtype=dtype)


@ShardedModel.edge
def _():
    yield built(2, ids(3), model="a tied head"), "a head that shares the embedding's weight"
    yield (
        built(2, ids(3), ids(2, 1), model="a tied head", compute_dtype=BF16),
        "the same in bfloat16: its gradient is a sum",
    )
    many = [f"inner.blocks.{i}" for i in range(12)]
    yield (
        built(2, vectors(2), model="twelve blocks", units=many),
        "inner.blocks.10 is not inner.blocks.1",
    )
    yield (
        built(3, vectors(2), vectors(2, 1), compute_dtype=BF16),
        "two steps in bfloat16, three ranks",
    )
    yield built(2, vectors(2, dtype=F64), dtype=F64), "a float64 model in its own dtype"
    yield (
        built(2, vectors(2, dtype=F64), dtype=F64, compute_dtype=F32),
        "a float64 model that computes in float32",
    )
    yield (
        built(2, lambda r: [vectors(2)(r), vectors(1, 1)(r)]),
        "two backwards, whose gradients add up",
    )
    yield (
        built(2, vectors(1), units=["inner.blocks.1", "head"]),
        "one block and the head; the rest is the root",
    )
    yield built(1, vectors(2), compute_dtype=BF16), "one rank"
    yield built(2, vectors(2), units=BLOCKS[::-1]), "units in another order than the model's"
    yield (
        built(2, lambda r: (vectors(2)(r), vectors(2, 1)(r)), compute_dtype=BF16),
        "a model of two arguments, in bfloat16",
    )


WIDE = [f"inner.blocks.{i}" for i in range(3)]
OF_BLOCK = 48 * 49 + 49 + 49 * 48 + 48 + 48
OF_ROOT = 3 * 48 + 48 + 5 * 48
LARGE_MODEL = built(2, vectors(2), model="wide", units=WIDE, compute_dtype=BF16)
ShardedModel.contract(
    contracts.sends(
        [LARGE_MODEL],
        # a gather sends, from each of two ranks, half of it; so does a reduce-scatter
        limit=2 * (3 * 2 * OF_BLOCK + OF_ROOT) // 2 + 4 * (3 * OF_BLOCK + OF_ROOT) // 2 + 1024,
        says="gathers are sent in the compute dtype: two of each unit, one of the root",
        probe=probes.sharded_model,
    )
)
ShardedModel.contract(
    contracts.collectives(
        [LARGE_MODEL],
        limit=3 * 3 + 2,
        says="two all-gathers and a reduce-scatter of each unit, one of each of the root",
        probe=probes.sharded_model,
    )
)
ShardedModel.contract(
    contracts.resident(
        [LARGE_MODEL],
        limit=2 * (OF_ROOT + OF_BLOCK // 2) + 4096,
        says="after the forward pass no unit but the root is whole",
        probe=probes.sharded_model_between,
    )
)
MEAN = "reduce_scatter_mean(grad.to(ctx.dtype).contiguous())"
IN_DTYPE = "GatherIn.apply(shard, self.compute_dtype or shard.dtype)"
FOUND = "{prefix + name: p for name, p in zip(unit.names, whole, strict=True)}"
ShardedModel.slips(
    {
        replace(
            MEAN, f"dist.get_world_size() * {MEAN}"
        ): "The gradients are sums over the ranks. They are to be means: divide by the number of ranks.",
        replace(
            MEAN, "reduce_scatter_mean(grad.contiguous()).to(ctx.dtype)"
        ): "You add up the ranks' gradients in the compute dtype and cast the sum. In bfloat16 that rounds at each "
        "addition: cast before you reduce.",
        replace(
            MEAN, "grad.to(ctx.dtype).chunk(dist.get_world_size())[dist.get_rank()]"
        ): "Each rank keeps its share of its *own* gradient: the ranks' gradients are never averaged. Reduce-scatter.",
        replace(
            "self.compute_dtype or shard.dtype", "shard.dtype"
        ): "`dtype` has no effect on the parameters: they are gathered, and used, in their own dtype.",
        replace(
            "        self.compute_dtype = dtype\n",
            "        self.compute_dtype = dtype\n"
            "        module = module.to(dtype) if dtype else module\n",
        ): "You cast the model itself. Then the shares, and all updates, have the compute dtype's few bits: small steps "
        "are lost. Only what is gathered is cast.",
        replace(
            "        self.compute_dtype = dtype\n",
            "        self.compute_dtype = dtype or torch.float32\n",
        ): "Without a `dtype` you compute in float32. The parameters' own dtype is meant, which may be another.",
        replace(
            "prefix + name: p for",
            "prefix + name: p.float() for",
        ): "The full parameters come back in float32: they keep their own dtype.",
        replace(
            "        for path in units:\n",
            '        self.units[""] = self.root = Unit(module, self._gather, keep=True)\n'
            "        for path in units:\n",
            '        self.units[""] = self.root = Unit(module, self._gather, keep=True)\n\n    def _gather',
            "\n    def _gather",
        ): "You wrap the root before the units: it takes all parameters, and nothing is left for them. Make it last.",
        replace(
            "self._cast(x) for x in args", "x for x in args"
        ): "The inputs stay in their own dtype, and the first layer computes with two dtypes: cast those that are "
        "floating-point.",
        replace(
            "self._cast(x) for x in args", "x if i else self._cast(x) for i, x in enumerate(args)"
        ): "You cast the first argument only. Every argument that is a floating-point tensor is cast.",
        replace(
            "floating = isinstance(x, Tensor) and x.is_floating_point()",
            "floating = isinstance(x, Tensor)",
        ): "You cast ids too. An embedding wants whole numbers: cast floating-point arguments only.",
        replace(
            'prefix = f"{path}." if path else ""',
            'prefix = ""',
            "{name: found[name] for name in self.order}",
            "found",
        ): "A unit's names are those within it: before them belongs the path that leads to it.",
        replace(
            'prefix = f"{path}." if path else ""', 'prefix = f"{path}."'
        ): "The root's names begin with a dot: it has no path.",
        replace(
            "{name: found[name] for name in self.order}", "found"
        ): "The names come unit by unit, the root's last. They are to come in the order of `module.named_parameters()`.",
        replace(
            "in self.units.items()",
            'in [("", self.root), *self.units.items()]',
            "{name: found[name] for name in self.order}",
            "found",
        ): "The names come with all of the root's first. They are to come in the order of `module.named_parameters()`.",
        replace(
            "{name: found[name] for name in self.order}",
            "{name: found[name] for name in sorted(found)}",
        ): "The names are sorted as text. They are to come in the order of `module.named_parameters()`.",
        replace(
            "unshard_flat([all_gather_flat(unit.shard)], unit.shapes)",
            "unshard_flat([self._gather(unit.shard.detach())], unit.shapes)",
        ): "You gather the full parameters in the compute dtype: they are rounded. Gather the shares as they are.",
        replace(
            "unshard_flat([all_gather_flat(unit.shard)], unit.shapes)",
            "unshard_flat([self._gather(unit.shard.detach()).to(unit.shard.dtype)], unit.shapes)",
        ): "You gather the full parameters in the compute dtype and cast them back: the dtype is right, and the values "
        "are rounded. Gather the shares as they are.",
        replace(
            "        self.order = [name for name, _ in module.named_parameters()]\n",
            "",
            '        self.units[""] = self.root',
            "        self.order = [name for name, _ in module.named_parameters()]\n"
            '        self.units[""] = self.root',
            "for name in self.order}",
            "for name in self.order if name in found}",
        ): "You take the names when the units are made already: their parameters are shares by then. Take them first.",
    }
)
ShardedModel.mistake(
    "You pair paths and units by their order. `modules()` finds units in the model's order, and the paths come in the "
    "order of `units`: keep each unit with its path.",
    replace("in self.units.items()", "in zip(self.units, [*self.root.inner, self.root])"),
)
ShardedModel.mistake(
    "The values are right, but you gather in the parameters' own dtype and cast what arrives: that sends more bytes. "
    "Cast the share first.",
    replace("all_gather_flat(shard.to(dtype))", "all_gather_flat(shard).to(dtype)"),
    cost=True,
)
ShardedModel.mistake(
    "The values are right, but units stay whole from forward to backward: all parameters are there at the turn. Only "
    "the root is kept.",
    replace("self._gather)\n", "self._gather, keep=True)\n"),
    cost=True,
)
ShardedModel.mistake(
    "The values are right, but the root is gathered twice, and the whole model is computed again in its backward pass. "
    "It is needed first and last: keep it.",
    replace("self._gather, keep=True)", "self._gather)"),
    cost=True,
)


class GatherList(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, dtype):
        ctx.kind, small = shard.dtype, shard.detach().to(dtype)
        parts = [torch.empty_like(small) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, small)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        wide = [part.contiguous() for part in grad.to(ctx.kind).chunk(dist.get_world_size())]
        mine = torch.empty_like(wide[0])
        dist.reduce_scatter(mine, wide)
        return mine / dist.get_world_size(), None


class ByPlaces(torch.nn.Module):
    """Places of parameters are noted by identity before anything is sharded."""

    def __init__(self, module, units, dtype=None):
        super().__init__()
        self.dtype = dtype
        self.place = {name: i for i, (name, _) in enumerate(module.named_parameters())}
        for path in units:
            *above, last = path.split(".")
            parent = module
            for name in above:
                parent = getattr(parent, name)
            parent.register_module(last, fsdp.Unit(getattr(parent, last), self.gather))
        self.model = fsdp.Unit(module, self.gather, True)
        self.prefixes = [""] + [path + "." for path in units]
        self.parts = [self.model] + [module.get_submodule(path) for path in units]

    def gather(self, shard):
        return GatherList.apply(shard, shard.dtype if self.dtype is None else self.dtype)

    def forward(self, *args):
        if self.dtype is None:
            return self.model(*args)
        return self.model(*[x.to(self.dtype) if torch.is_floating_point(x) else x for x in args])

    def gather_full_parameters(self):
        pairs = []
        for prefix, part in zip(self.prefixes, self.parts, strict=True):
            flat, start = GatherList.apply(part.shard.detach(), part.shard.dtype), 0
            for name, shape in zip(part.names, part.shapes, strict=True):
                pairs.append((prefix + name, flat[start : start + prod(shape)].reshape(shape)))
                start += prod(shape)
        return dict(sorted(pairs, key=lambda pair: self.place[pair[0]]))


for one, why in {
    "ShardedModel._gather: `self.compute_dtype or shard.dtype` → `self.compute_dtype`": "`to(None)` leaves the dtype",
    "ShardedModel._cast: `floating and self.compute_dtype` → `floating`": "`to(None)` leaves the dtype",
    "ShardedModel._cast: `isinstance(x, Tensor) and x.is_floating_point()` → `x.is_floating_point()`": "the models of "
    "the exercise take tensors only",
    "ShardedModel.gather_full_parameters: `zip(unit.names, whole, strict=True)` → `zip(unit.names, whole)`": "a unit has "
    "as many names as tensors",
    "ShardedModel.gather_full_parameters: `strict=True` → `strict=False`": "a unit has as many names as tensors",
    "GatherIn.backward: `grad.to(ctx.dtype).contiguous()` → `grad.to(ctx.dtype)`": "the gradient of a flat tensor that "
    "was split and viewed comes as one contiguous vector",
}.items():
    ShardedModel.equivalent(one, because=why)


ShardedModel.alternative("lists of parts; names sorted by their places")(ByPlaces, GatherList)


class InOneCollective(torch.autograd.Function):
    """A sum by all-reduce in place of a gather would be dearer; an object of two casts is not."""

    @staticmethod
    def forward(ctx, shard, dtype):
        ctx.save_for_backward(shard)
        flat = torch.empty(shard.numel() * dist.get_world_size(), dtype=dtype)
        fsdp.all_gather_single(flat, shard.to(dtype))
        return flat

    @staticmethod
    def backward(ctx, grad):
        (shard,) = ctx.saved_tensors
        out = torch.empty_like(shard)
        fsdp.reduce_scatter_single(out, grad.to(shard) / dist.get_world_size())
        return out, None


class Recorded(fsdp.ShardedModel):
    """The book's, but for the hand-written names and the cast."""

    def _gather(self, shard):
        return InOneCollective.apply(shard, self.compute_dtype or shard.dtype)

    def forward(self, *args):
        kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        to = self.compute_dtype
        return self.root(*[x.to(to) if to and x.dtype in kinds else x for x in args])


ShardedModel.alternative("collectives by hand, the mean before the sum")(Recorded, InOneCollective)


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
    yield (
        call(saved_by(2, step=torch.tensor(5), w=counting(3, 2)), 1),
        "a count of steps comes first",
    )
    yield call([{}, {}], 2), "nothing was saved"
    yield call(saved_by(2, mask=counting(5) > 2, n=counting(3).long()), 3), "bools and integers"


LARGE = [call(saved_by(4, w=counting(512, 64)), n) for n in (2, 8)]
reshard_state_dict.contract(
    contracts.allocates(
        LARGE,
        limit=lambda case: 512 // case.args[1] * 64 * 4 + 1024,
        says="only the rows that a rank keeps are copied, once",
        prepare=prepared.for_one_rank,
    )
)


ROWS = "torch.cat(mine)"

reshard_state_dict.mistake(
    "The values are right, but every tensor is put together whole before you cut it. A model that needed "
    "many ranks does not fit on one: copy only the rows that overlap with yours.",
    replace(ROWS, "torch.cat(saved)[start:stop].clone()"),
    cost=True,
)
reshard_state_dict.mistake(
    "The values are right, but you copy each piece, and `cat` copies it once more: for a while your rows are there "
    "twice. Join the slices as they are.",
    replace("max(stop - offset, 0)]", "max(stop - offset, 0)].clone()"),
    cost=True,
)
reshard_state_dict.mistake(
    "You spread the rows as evenly as possible (`tensor_split`). Shards are cut as `torch.chunk` cuts: "
    "⌈rows / n⌉ for each rank, until none are left.",
    replace(ROWS, "torch.cat(saved).tensor_split(world_size)[rank].clone()"),
)
reshard_state_dict.mistake(
    "You round the rows of a share down: the last rows are loaded by nobody.",
    replace(
        "rows_of(sum(map(len, saved)), rank, world_size)",
        "(sum(map(len, saved)) // world_size * r for r in (rank, rank + 1))",
    ),
)
reshard_state_dict.mistake(
    "You take every shard to have as many rows as the first. The last ones may have fewer, or none: add up the rows of "
    "all.",
    replace("sum(map(len, saved))", "len(first) * len(saved)"),
)
reshard_state_dict.mistake(
    "Your ranks keep views of what was saved: all of it stays in memory. Copy the rows.",
    replace(ROWS, "torch.cat(saved)[start:stop]"),
)
reshard_state_dict.mistake(
    "Rows that all come from one old shard stay a view of it, and keep all of it in memory: copy them too.",
    replace(
        "        loaded[name] = torch.cat(mine)",
        "        found = [part for part in mine if len(part)]\n"
        "        loaded[name] = found[0] if len(found) == 1 else torch.cat(mine)",
    ),
)
reshard_state_dict.mistake(
    "Each new rank takes the shard of the old rank with its number, or nothing. The number of ranks has "
    "changed, and with it every border.",
    replace(ROWS, "saved[rank].clone() if rank < len(saved) else torch.empty_like(first[:0])"),
)
reshard_state_dict.mistake(
    "You leave a tensor out where a rank has no rows of it. It must be there, empty, with the other axes as "
    "they are: every rank's state dict has the same names.",
    replace("loaded[name] = torch.cat", "if start < stop:\n            loaded[name] = torch.cat"),
)
reshard_state_dict.mistake(
    "Where a rank has no rows you join an empty list, which torch.cat refuses. Leave the empty slices in: they "
    "have the dtype and the other axes.",
    replace(ROWS, "torch.cat([part for part in mine if len(part)])"),
)
reshard_state_dict.mistake(
    "Where a rank has no rows you give an empty vector. It loses the other axes: (0, 3) is not (0,).",
    replace(ROWS, "torch.cat(mine) if start < stop else first.new_empty(0)"),
)
reshard_state_dict.mistake(
    "Where a rank has no rows you give torch.empty(0), which is float32 and has one axis: take the dtype of the "
    "saved tensor, and its other axes.",
    replace(ROWS, "torch.cat(mine) if start < stop else torch.empty(0)"),
)
reshard_state_dict.mistake(
    "You take what has no axes from the old rank with the new rank's number. There may be none of that number: "
    "every rank saved it whole, so any of them will do.",
    replace("first.clone()", "shards[rank][name].clone()"),
)
reshard_state_dict.mistake(
    "You drop what has no axes. A count of steps belongs to the state as well, whole on every rank.",
    replace("            loaded[name] = first.clone()\n", ""),
)
reshard_state_dict.mistake(
    "You join the shards in the wrong order: rank 0 holds the first rows, the last rank the last.",
    replace("shard[name] for shard in shards", "shard[name] for shard in shards[::-1]"),
)


reshard_state_dict.mistake(
    "A slice that begins before its part has a negative start, and Python counts that from the end: cut it off "
    "at 0.",
    replace("max(start - offset, 0)", "start - offset", "max(stop - offset, 0)", "stop - offset"),
)
reshard_state_dict.mistake(
    "Your offset stays where it is: every saved shard is cut as if it held the first rows.",
    replace("            offset += len(part)\n", ""),
)
reshard_state_dict.mistake(
    "The tensor without axes is the saved one itself, in memory that belongs to it: clone it too.",
    replace("first.clone()", "first"),
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
    out = {}
    for name, first in shards[0].items():
        if first.ndim == 0:
            out[name] = first.clone()
            continue
        rows = [row for shard in shards for row in shard[name]]
        size = -(-len(rows) // world_size)
        mine = rows[rank * size : (rank + 1) * size]
        out[name] = torch.stack(mine) if mine else first.new_empty(0, *first.shape[1:])
    return out


reshard_state_dict.equivalent(
    "reshard_state_dict: `shards[0]` → `shards[-1]`",
    because="every rank saved the same names, and a tensor without axes whole; the rest is read rank by rank",
)
