"""Exercises of chapter 19, tensor parallelism: f and g, layers cut in two ways, heads, vocabulary, positions."""
# mypy: ignore-errors

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from course_utils.grading import Exercise, call, contracts, draws, on_ranks, probes, replace
from course_utils.reference import tensor_parallel
from course_utils.reference.tensor_parallel import rows_of, share

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16


def t(*values):
    return torch.tensor(values)


def some(*shapes, seed=0, dtype=F32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def turned(x):
    """The same values, with the strides of a transposed tensor: another order in memory."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def at_one_place_or_both(exercise, says, one, other):
    """A slip that can be made at two places of the reference: at both, or at one of them."""
    for edit in (one + other, one, other):
        exercise.mistake(says, edit)


def ring(x_bytes, n):
    """Bytes of one all-reduce."""
    return 2 * (n - 1) * share(x_bytes, n)


def messages_of_one(n):
    """Messages of one all-reduce; a reduce-scatter has half as many, and so has an all-gather."""
    return 2 * (n - 1)


PAIRS = [[0, 2], [1, 3]]

# ------------------------------------------------------------------------------ bytes_per_block

bytes_per_block = Exercise(
    tensor_parallel.bytes_per_block,
    title="Weights or activations over the wire",
    difficulty=1,
    minutes=10,
    points=2,
    hints=(
        "How many elements has one all-reduce of tensor parallelism? How many chunks does a rank send in it?",
        "An all-reduce is a reduce-scatter and an all-gather: 2 (n − 1) chunks. There are four of them.",
        "For ZeRO-3 the elements are the parameters: three collectives of n − 1 chunks each.",
        ("edge cases", "One rank sends nothing. A chunk is rounded up to a whole element."),
    ),
)


@bytes_per_block.by_hand
def _():
    yield call(1, 1, 2, 1), (8, 39)
    yield call(6, 2, 3), (8 * 2 * 4 * 2, 3 * 2 * 25 * 2)  # twelve activations, 74 parameters
    yield call(4096, 1024, 8), (58_720_256, 66_130_176)
    yield call(100, 64, 1), (0, 0)


@bytes_per_block.cases(15)
def _(draw):
    numbers = [draw(st.integers(1, top)) for top in (40, 12, 6, 4)]
    yield call(*numbers)


@bytes_per_block.edge
def _():
    yield call(0, 8, 2), "no tokens: only the weights travel"
    yield call(1, 1, 8, 4), "more ranks than activations"
    yield call(2**40 + 1, 2**12, 64, 2), "integers all the way: no float"


bytes_per_block.mistake(
    "You count half of the bytes: there are four all-reduces, two of them backward, and in each a rank sends 2 (n − 1) "
    "chunks, since it is a reduce-scatter and an all-gather.",
    replace("4 * 2 *", "2 * 2 *"),
)
bytes_per_block.mistake(
    "You count half of the bytes: there are four all-reduces, two of them backward, and in each a rank sends 2 (n − 1) "
    "chunks, since it is a reduce-scatter and an all-gather.",
    replace("4 * 2 *", "4 *"),
)
bytes_per_block.mistake(
    "ZeRO-3 gathers the parameters twice, forward and backward, and reduce-scatters the gradients: three, not two.",
    replace("3 * (world", "2 * (world"),
)
bytes_per_block.mistake(
    "You count the gradients of ZeRO-3 as an all-reduce, 2 (n − 1) chunks. A reduce-scatter sends n − 1.",
    replace("3 * (world", "4 * (world"),
)
bytes_per_block.mistake(
    "You divide the tokens by the number of ranks. In tensor parallelism every rank has the activations of all "
    "tokens of the batch.",
    replace("share(tokens * n_embd", "share(share(tokens, world_size) * n_embd"),
)
bytes_per_block.mistake(
    "You divide the tokens by the number of ranks. In tensor parallelism every rank has the activations of all "
    "tokens of the batch.",
    replace("share(tokens * n_embd", "share(tokens // world_size * n_embd"),
)
for missing, says in (
    (13, "The biases and the norms are missing from the parameters: 13 D of them."),
    (9, "The biases are missing from the parameters: 3 D, D, 4 D and D of them."),
    (4, "The norms are missing from the parameters: two norms with a weight and a bias each, 4 D."),
):
    bytes_per_block.mistake(says, replace("13 * n_embd", f"{13 - missing} * n_embd"))
WIDE = (
    "What is reduced is a layer's result or the gradient of its input, of D features. The 4 D features in the MLP stay "
    "on their rank."
)
for wide in (
    "share(5 * tokens * n_embd, world_size)",
    "(share(4 * tokens * n_embd, world_size) + activations)",
):
    bytes_per_block.mistake(
        WIDE,
        replace("4 * 2 * (world_size - 1) * activations", f"4 * (world_size - 1) * {wide}"),
    )
bytes_per_block.mistake(
    "You round a chunk of the activations down; what is left over is sent as well. Round up: -(-a // n).",
    replace("share(tokens * n_embd, world_size)", "tokens * n_embd // world_size"),
)
bytes_per_block.mistake(
    "You round a chunk of the parameters down; a share is padded. Round up: -(-a // n).",
    replace(
        "share(12 * n_embd**2 + 13 * n_embd, world_size)",
        "(12 * n_embd**2 + 13 * n_embd) // world_size",
    ),
)
bytes_per_block.mistake(
    "You round both chunks down; what is left over is sent as well. Round up: -(-a // n).",
    replace(
        "share(tokens * n_embd, world_size)",
        "tokens * n_embd // world_size",
        "share(12 * n_embd**2 + 13 * n_embd, world_size)",
        "(12 * n_embd**2 + 13 * n_embd) // world_size",
    ),
)
bytes_per_block.mistake(
    "Those are elements. Multiply by the bytes of one.",
    replace("chunks[0] * element_bytes, chunks[1] * element_bytes", "chunks"),
)
bytes_per_block.mistake(
    "You have the two the wrong way round: tensor parallelism first, then ZeRO-3.",
    replace(
        "chunks[0] * element_bytes, chunks[1] * element_bytes",
        "chunks[1] * element_bytes, chunks[0] * element_bytes",
    ),
)
bytes_per_block.mistake(
    "A rank sends n − 1 chunks and not n: its own share needs no way.",
    replace(
        "4 * 2 * (world_size - 1)", "4 * 2 * world_size", "3 * (world_size - 1)", "3 * world_size"
    ),
)
bytes_per_block.mistake(
    "A chunk is an n-th of the elements. n − 1 is how many chunks are sent.",
    replace(
        "activations = share(tokens * n_embd, world_size)",
        "activations = share(tokens * n_embd, max(world_size - 1, 1))",
        "parameters = share(12 * n_embd**2 + 13 * n_embd, world_size)",
        "parameters = share(12 * n_embd**2 + 13 * n_embd, max(world_size - 1, 1))",
    ),
)
bytes_per_block.mistake(
    "You send the whole tensor in each step of the ring. It is cut into n chunks.",
    replace(
        "share(tokens * n_embd, world_size)",
        "tokens * n_embd",
        "share(12 * n_embd**2 + 13 * n_embd, world_size)",
        "12 * n_embd**2 + 13 * n_embd",
    ),
)

bytes_per_block.mistake(
    "Each of the block's parameters is rounded up by itself. As one unit they are put end to end and rounded up once.",
    replace(
        "share(12 * n_embd**2 + 13 * n_embd, world_size)",
        "sum(times * share(numel, world_size) for times, numel in ((6, n_embd), (1, 3 * n_embd), (1, 4 * n_embd), "
        "(1, n_embd**2), (1, 3 * n_embd**2), (2, 4 * n_embd**2)))",
    ),
)
bytes_per_block.mistake(
    "The matrices and the vectors (biases and norms) are rounded up separately. As one unit they are put end to end and "
    "rounded up once.",
    replace(
        "share(12 * n_embd**2 + 13 * n_embd, world_size)",
        "share(12 * n_embd**2, world_size) + share(13 * n_embd, world_size)",
    ),
)
bytes_per_block.mistake(
    "You cut bytes, and round a chunk up to a whole byte. Elements are cut: round up to a whole element, then multiply by "
    "the bytes of one.",
    replace(
        "share(tokens * n_embd, world_size)",
        "share(tokens * n_embd * element_bytes, world_size)",
        "share(12 * n_embd**2 + 13 * n_embd, world_size)",
        "share((12 * n_embd**2 + 13 * n_embd) * element_bytes, world_size)",
        "chunks[0] * element_bytes, chunks[1] * element_bytes",
        "chunks",
    ),
)
ALL_AT_ONCE = (
    "You round up what is sent in all. Each chunk is rounded up, and then sent whole: first ⌈elements / n⌉, then times "
    "the number of chunks."
)
bytes_per_block.mistake(
    ALL_AT_ONCE,
    replace(
        "4 * 2 * (world_size - 1) * activations",
        "share(8 * (world_size - 1) * tokens * n_embd, world_size)",
        "3 * (world_size - 1) * parameters",
        "share(3 * (world_size - 1) * (12 * n_embd**2 + 13 * n_embd), world_size)",
    ),
)
bytes_per_block.mistake(
    ALL_AT_ONCE,
    replace(
        "4 * 2 * (world_size - 1) * activations",
        "share(8 * (world_size - 1) * tokens * n_embd * element_bytes, world_size)",
        "3 * (world_size - 1) * parameters",
        "share(3 * (world_size - 1) * (12 * n_embd**2 + 13 * n_embd) * element_bytes, world_size)",
        "chunks[0] * element_bytes, chunks[1] * element_bytes",
        "chunks",
    ),
)


@bytes_per_block.alternative("ceil of exact fractions")
def _(tokens, n_embd, world_size, element_bytes=2):
    from fractions import Fraction
    from math import ceil

    def passes(times, numel):
        return times * (world_size - 1) * ceil(Fraction(numel, world_size)) * element_bytes

    return passes(8, tokens * n_embd), passes(3, n_embd * (12 * n_embd + 13))


@bytes_per_block.alternative("collective by collective")
def _(tokens, n_embd, world_size, element_bytes=2):
    def scatter_or_gather(numel):
        chunk = (numel + world_size - 1) // world_size
        return sum(chunk * element_bytes for _ in range(world_size - 1))

    def all_reduce(numel):
        return scatter_or_gather(numel) + scatter_or_gather(numel)

    attention = 3 * n_embd * n_embd + 3 * n_embd + n_embd * n_embd + n_embd
    mlp = 4 * n_embd * n_embd + 4 * n_embd + 4 * n_embd * n_embd + n_embd
    norms = 4 * n_embd
    return (
        sum(all_reduce(tokens * n_embd) for _ in range(4)),
        sum(scatter_or_gather(attention + mlp + norms) for _ in range(3)),
    )


# ------------------------------------------------------------------------------ f and g

CopyToRanks = Exercise(
    (tensor_parallel.CopyToRanks, tensor_parallel.ReduceFromRanks),
    title="Two Functions, each the other's backward",
    difficulty=2,
    minutes=25,
    points=3,
    probe=probes.both_ways,
    hints=(
        "Write down what each rank has: f has one x and n uses of it; g has n terms and one sum.",
        "What is used n times gets the sum of n gradients. What is one term of a sum gets the sum's gradient, as it is.",
        "Put `dist.all_reduce` on a tensor of your own: x.clone(memory_format=torch.contiguous_format). It works in "
        "place, and reads the memory in the order in which it lies.",
        "forward and backward are static methods; the group goes on ctx; backward gives None for the group.",
        ("contracts", "One all-reduce each: backward in f, forward in g."),
    ),
)


def two_ways(xs, grads, groups=None):
    return on_ranks(*[call(x=x, grad=g, groups=groups) for x, g in zip(xs, grads, strict=True)])


F_, G_ = "CopyToRanks", "ReduceFromRanks"


@CopyToRanks.by_hand
def _():
    yield (
        two_ways([t(1.0, 2.0), t(10.0, 20.0)], [t(1.0, -1.0), t(2.0, 5.0)]),
        {
            f"rank 0: {F_}: result": t(1.0, 2.0),
            f"rank 0: {F_}: gradient of x": t(3.0, 4.0),
            f"rank 1: {F_}: gradient of x": t(3.0, 4.0),
            f"rank 0: {G_}: result": t(11.0, 22.0),
            f"rank 1: {G_}: result": t(11.0, 22.0),
            f"rank 0: {G_}: gradient of x": t(1.0, -1.0),
            f"rank 1: {G_}: gradient of x": t(2.0, 5.0),
        },
    )


@CopyToRanks.cases(4)
def _(draw):
    shape = draw(draws.distinct_sizes(2, low=1, high=4))
    world, seed = draw(st.integers(2, 3)), draw(st.integers(0, 99))
    yield two_ways(some(*[shape] * world, seed=seed), some(*[shape] * world, seed=seed + 1))


@CopyToRanks.edge
def _():
    xs, grads = some(*[(3, 2)] * 2, seed=5), some(*[(3, 2)] * 2, seed=6)
    strided = [xs[0], turned(xs[1])], [grads[0], turned(grads[1])]
    yield two_ways(*strided), "one rank's tensors lie in memory in another order"
    xs, grads = some(*[(2, 3)] * 4, seed=5), some(*[(2, 3)] * 4, seed=6)
    yield two_ways(xs, grads, groups=PAIRS), "two groups that work among themselves"
    yield (
        two_ways(some((2, 3), (2, 3), dtype=F64), some((2, 3), (2, 3), seed=2, dtype=F64)),
        "float64",
    )
    yield two_ways([t(1.5)[0]] * 2, [t(0.5)[0]] * 2), "a single number"
    yield two_ways(xs[:1], grads[:1]), "one rank: both are the identity"


MANY = two_ways(some(*[(40, 50)] * 4), some(*[(40, 50)] * 4, seed=1))
CopyToRanks.contract(
    contracts.sends(
        [MANY],
        limit=2 * ring(40 * 50 * 4, 4) + 256,
        says="no more bytes than one all-reduce for each of the two",
        probe=probes.both_ways,
    )
)
CopyToRanks.contract(
    contracts.messages(
        [MANY],
        limit=2 * messages_of_one(4),
        says="no more messages than one all-reduce for each of the two",
        probe=probes.both_ways,
    )
)

SUM_BACK = "dist.all_reduce(total, group=ctx.group)"
SUM = "dist.all_reduce(total, group=group)"

CopyToRanks.mistake(
    "Backward of CopyToRanks gives each rank its own gradient. x was used on every rank, so its gradient is the "
    "sum of theirs: all-reduce it.",
    replace(SUM_BACK, "pass"),
)
CopyToRanks.mistake(
    "Backward of ReduceFromRanks sums the gradients. Every rank goes on with the same sum and already has its whole "
    "gradient: summing makes it n times too large.",
    replace(
        "return grad, None",
        "grad = grad.clone(memory_format=torch.contiguous_format)\n"
        "        dist.all_reduce(grad, group=ctx.group)\n"
        "        return grad, None",
        SUM,
        SUM + "\n        ctx.group = group",
    ),
)
CopyToRanks.mistake(
    "Backward of CopyToRanks averages. Tensor parallelism adds up parts of one gradient, it does not average over "
    "batches: leave out the division.",
    replace("return total, None", "return total / dist.get_world_size(ctx.group), None"),
)
for where, says in (
    (
        SUM_BACK,
        "Backward of CopyToRanks does not sum: the default of `all_reduce` is dist.ReduceOp.SUM.",
    ),
    (SUM, "ReduceFromRanks does not sum: the default of `all_reduce` is dist.ReduceOp.SUM."),
):
    for op in ("MAX", "MIN", "PRODUCT"):
        CopyToRanks.mistake(
            says, replace(where, where.replace("total,", f"total, dist.ReduceOp.{op},"))
        )
CopyToRanks.mistake(
    "ReduceFromRanks averages. The ranks have terms of one sum: leave out the division.",
    replace(SUM, SUM + "\n        total /= dist.get_world_size(group)"),
)
CopyToRanks.mistake(
    "Backward of ReduceFromRanks multiplies by the number of ranks. Every rank goes on with the same sum and already has "
    "its whole gradient.",
    replace(
        "return grad, None",
        "return grad * dist.get_world_size(ctx.group), None",
        SUM,
        SUM + "\n        ctx.group = group",
    ),
)
at_one_place_or_both(
    CopyToRanks,
    "`forward` has two inputs, so `backward` returns two gradients: None for the group.",
    replace("return total, None", "return total"),
    replace("return grad, None", "return grad"),
)
CopyToRanks.mistake(
    "Backward of ReduceFromRanks divides by the number of ranks. The derivative of a sum with respect to one of its "
    "terms is 1.",
    replace(
        "return grad, None",
        "return grad / dist.get_world_size(ctx.group), None",
        SUM,
        SUM + "\n        ctx.group = group",
    ),
)
CopyToRanks.mistake(
    "CopyToRanks sums forward. x is the same on every rank; the sum belongs into backward.",
    replace(
        "return x.view_as(x)",
        "y = x.clone(memory_format=torch.contiguous_format)\n"
        "        dist.all_reduce(y, group=group)\n        return y",
    ),
)
CopyToRanks.mistake(
    "You have the two the wrong way round: CopyToRanks is the identity forward, ReduceFromRanks backward.",
)(tensor_parallel.ReduceFromRanks, tensor_parallel.CopyToRanks)
CopyToRanks.mistake(
    "ReduceFromRanks changes its x: `all_reduce` works in place. Sum in a tensor of your own.",
    replace("total = x.clone(memory_format=torch.contiguous_format)", "total = x.detach()"),
)
CopyToRanks.mistake(
    "Backward of CopyToRanks changes the gradient that comes in, which others may hold. Sum in a tensor of your own.",
    replace("total = grad.clone(memory_format=torch.contiguous_format)", "total = grad"),
)
ONLY_WHERE_IT_MUST = (
    "`contiguous()` copies only where it must: a tensor that is contiguous already is summed in place, and whoever holds "
    "it sees the sum. Clone it."
)
CLONED_GRAD = "grad.clone(memory_format=torch.contiguous_format)"
CLONED_X = "x.clone(memory_format=torch.contiguous_format)"
at_one_place_or_both(
    CopyToRanks,
    ONLY_WHERE_IT_MUST,
    replace(CLONED_GRAD, "grad.contiguous()"),
    replace(CLONED_X, "x.contiguous()"),
)
KEEPS_STRIDES = (
    "A plain `clone` keeps the strides, and gloo adds up memory in the order in which it lies: with other strides on "
    "another rank, other elements are added. clone(memory_format=torch.contiguous_format)."
)
at_one_place_or_both(
    CopyToRanks,
    KEEPS_STRIDES,
    replace(CLONED_GRAD, "grad.clone()"),
    replace(CLONED_X, "x.clone()"),
)
CopyToRanks.mistake(
    "Backward of CopyToRanks forgets the group, and sums over all ranks of the job: keep the group on ctx.",
    replace("ctx.group = group", "ctx.group = None"),
)
CopyToRanks.mistake(
    "ReduceFromRanks does not use the group, and sums over all ranks of the job.",
    replace(SUM, "dist.all_reduce(total)"),
)
CopyToRanks.mistake(
    "Only rank 0 has the sum: `reduce` gives it to one rank, `all_reduce` to all.",
    replace(
        SUM,
        "dist.reduce(total, dist.get_process_group_ranks(group or dist.group.WORLD)[0], group=group)\n        total += 0",
    ),
)
CopyToRanks.mistake(
    "The values are right, but every rank sends its whole tensor to all others and adds up: n / 2 times the bytes of "
    "an all-reduce.",
    replace(
        SUM,
        "parts = [torch.empty_like(total) for _ in range(dist.get_world_size(group))]\n"
        "        dist.all_gather(parts, total, group=group)\n"
        "        total = sum(parts)",
    ),
    cost=True,
)
ROW_BY_ROW = (
    "The values are right, but you all-reduce row by row. One all-reduce of the whole tensor has as "
    "many messages as that of one row."
)
for where in (SUM_BACK, SUM):
    CopyToRanks.mistake(
        ROW_BY_ROW,
        replace(
            where,
            "for row in torch.atleast_1d(total):\n            " + where.replace("total", "row"),
        ),
        cost=True,
    )


def _summed(x, group):
    out = x.detach().contiguous().clone()
    work = dist.all_reduce(out, group=group, async_op=True)
    work.wait()
    return out


class AsyncCopy(torch.autograd.Function):
    @staticmethod
    def forward(x, group=None):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        (_, ctx.where) = inputs

    @staticmethod
    def backward(ctx, grad):
        return _summed(grad, ctx.where), None


class AsyncReduce(torch.autograd.Function):
    @staticmethod
    def forward(x, group=None):
        return _summed(x, group)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad.clone(), None


CopyToRanks.alternative("setup_context, and all-reduces that are waited for")(
    AsyncCopy, AsyncReduce
)


class ScatterCopy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group=None):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, grad):
        return _by_chunks(grad, ctx.group), None


class ScatterReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group=None):
        return _by_chunks(x, group)

    @staticmethod
    def backward(ctx, *grads):
        return (*grads, None)


def _by_chunks(x, group):
    n = dist.get_world_size(group)
    flat = F.pad(x.reshape(-1), (0, -x.numel() % n))
    mine = flat.new_empty(flat.numel() // n)
    tensor_parallel.reduce_scatter_single(mine, flat.contiguous(), group=group)
    whole = torch.empty_like(flat)
    tensor_parallel.all_gather_single(whole, mine, group=group)
    return whole[: x.numel()].view(x.shape)


CopyToRanks.alternative("a reduce-scatter and an all-gather")(ScatterCopy, ScatterReduce)


# ------------------------------------------------------------------------------ ColumnParallelLinear

ColumnParallelLinear = Exercise(
    tensor_parallel.ColumnParallelLinear,
    title="A linear layer cut by outputs",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.parallel_layer,
    hints=(
        "nn.Linear's weight is (out, in): which of its axes are the outputs?",
        "`part_of(full.out_features, group)` is a slice: it cuts rows of the weight, and the bias. Clone them, so "
        "that the rest can be freed, and make them nn.Parameter.",
        "Every rank uses all of x, for its own outputs. So x's gradient is a sum over ranks: which of your two "
        "Functions does that?",
        (
            "contracts",
            "The only message is the all-reduce of x's gradient. Keep no reference to the full layer.",
        ),
    ),
)


def linear(
    world, n_in, n_out, *shapes, cut, bias=True, seed=0, dtype=F32, groups=None, strided=False
):
    """A case: a layer of these sizes; cut: "out" or "in", which of them is cut by ranks."""
    n = len(groups[0]) if groups else world
    full = some((n_out, n_in), *[(n_out,)] * bias, seed=seed, dtype=dtype)
    calls = [None] * world
    for k, ranks in enumerate(groups or [range(world)]):
        whole_in = some(*[(*s, n_in) for s in shapes], seed=seed + 10 + k, dtype=dtype)
        whole_out = some(*[(*s, n_out) for s in shapes], seed=seed + 20 + k, dtype=dtype)
        for i, rank in enumerate(ranks):
            if cut == "out":
                xs, grads = whole_in, [g.chunk(n, -1)[i].contiguous() for g in whole_out]
            else:
                xs, grads = [x.chunk(n, -1)[i].contiguous() for x in whole_in], whole_out
            if strided:
                xs, grads = list(map(turned, xs)), list(map(turned, grads))
            names = ("weight", "bias")
            calls[rank] = call(
                kind="linear", full=full, xs=xs, grads=grads, shown=names, groups=groups
            )
    return on_ranks(*calls)


def refused(kind, shapes, world, **more):
    """A case: a layer with parameters of these shapes, which the ranks cannot share evenly."""
    given = call(kind=kind, full=some(*shapes), xs=[], grads=[], groups=None, refused=True, **more)
    return on_ranks(*[given] * world)


SMALL = {"kind": "linear", "full": [t([1.0, 2.0], [3.0, 4.0]), t(10.0, 20.0)]}
BUILT = on_ranks(*[call(**SMALL, xs=[], grads=[], shown=("weight", "bias"))] * 2)
"""A case that builds the layer, and does not call it."""


ELSEWHERE = on_ranks(*[call(**SMALL, xs=[], grads=[], elsewhere=True)] * 2)
"""A case that builds it from a layer on another device."""


@ColumnParallelLinear.by_hand
def _():
    yield (
        BUILT,
        {
            "rank 0: `weight`": t([1.0, 2.0]),
            "rank 1: `weight`": t([3.0, 4.0]),
            "rank 1: `bias`": t(20.0),
        },
    )
    yield (
        on_ranks(
            *[
                call(**SMALL, xs=[t([1.0, 1.0])], grads=[t([g])], shown=("weight", "bias"))
                for g in (1.0, 2.0)
            ]
        ),
        {
            "rank 0: `weight`": t([1.0, 2.0]),
            "rank 1: `bias`": t(20.0),
            "rank 0: result": t([13.0]),
            "rank 1: result": t([27.0]),
            "rank 0: gradient of x": t([7.0, 10.0]),
            "rank 1: gradient of x": t([7.0, 10.0]),
            "rank 1: gradient of `weight`": t([2.0, 2.0]),
        },
    )


@ColumnParallelLinear.cases(3)
def _(draw):
    world, n_in, each, rows = (
        draw(st.integers(low, top)) for low, top in ((2, 3), (1, 4), (1, 3), (1, 3))
    )
    yield linear(
        world,
        n_in,
        world * each,
        (rows,),
        cut="out",
        bias=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


@ColumnParallelLinear.edge
def _():
    yield linear(2, 3, 4, (2, 3), (1,), cut="out"), "two calls, of two and three axes"
    yield linear(2, 3, 6, (2,), cut="out", bias=False), "no bias"
    yield linear(3, 2, 6, (), cut="out"), "one row without a batch axis"
    yield linear(4, 3, 4, (2,), cut="out", groups=PAIRS), "two groups that work among themselves"
    yield (
        linear(4, 3, 6, (2,), cut="out", groups=PAIRS),
        "two groups, and outputs that two ranks can share, not four",
    )
    yield linear(2, 3, 4, (2, 3), cut="out", strided=True), "x and the gradient are not contiguous"
    yield linear(2, 3, 4, (2,), cut="out", dtype=F64), "float64"
    yield linear(2, 3, 4, (2,), cut="out", dtype=BF16), "bfloat16"
    yield ELSEWHERE, "a full layer on another device than the default one"
    yield refused("linear", [(5, 4), (5,)], 2), "two ranks cannot share five outputs evenly"
    yield refused("linear", [(4, 6), (4,)], 3), "three ranks cannot share four outputs evenly"


def layer_contracts(exercise, case, sent, held, messages, all_reduces=1):
    exercise.contract(
        contracts.sends(
            [case],
            limit=sent + 256,
            says=f"forward and backward together send no more than {messages}",
            probe=probes.parallel_layer,
        )
    )
    exercise.contract(
        contracts.messages(
            [case],
            limit=all_reduces * messages_of_one(case.world),
            says="no more messages than " + ("one all-reduce", "two all-reduces")[all_reduces - 1],
            probe=probes.parallel_layer,
        )
    )
    exercise.contract(
        contracts.resident(
            [case],
            limit=held + 1024,
            says="once the full layer is gone, a rank keeps its part, and at most 1 KiB besides",
            probe=probes.parallel_layer_held,
        )
    )


layer_contracts(
    ColumnParallelLinear,
    linear(4, 40, 48, (30,), cut="out"),
    sent=ring(30 * 40 * 4, 4),
    held=(40 * 48 + 48) // 4 * 4,
    messages="one all-reduce of x's gradient",
)

KEPT_AS_A_PART = (
    "The full layer is an attribute of yours, and so a submodule: its parameters are yours too, and stay in memory. Keep "
    "the part only."
)

ROWS_OF_W = "full.weight[mine].clone()"
ROWS_OF_B = "full.bias[mine].clone()"
PASS_F = "CopyToRanks.apply(x, self.group)"

ColumnParallelLinear.mistake(
    "x's gradient is only what this rank's outputs say of it. The other ranks used x too: pass it through "
    "CopyToRanks, whose backward sums.",
    replace(PASS_F, "x"),
)
ColumnParallelLinear.mistake(
    "x goes through ReduceFromRanks: that adds n equal copies. It is CopyToRanks that you need.",
    replace("CopyToRanks.apply", "ReduceFromRanks.apply"),
)
ColumnParallelLinear.mistake(
    "CopyToRanks is around the result: its backward sums the gradients of different ranks' features, and x's gradient is "
    "not summed. It belongs around x.",
    replace(
        f"F.linear({PASS_F}, self.weight, self.bias)",
        "CopyToRanks.apply(F.linear(x, self.weight, self.bias), self.group)",
    ),
)
A_VIEW = (
    "Your parameters are views of the full layer's: all of it stays in memory, and a step of the optimizer changes it. "
    "Clone the part."
)
at_one_place_or_both(
    ColumnParallelLinear,
    A_VIEW,
    replace(ROWS_OF_W, "full.weight[mine]"),
    replace(ROWS_OF_B, "full.bias[mine]"),
)
ColumnParallelLinear.mistake(
    "The bias is added twice: F.linear adds it already.",
    replace(
        f"return F.linear({PASS_F}, self.weight, self.bias)",
        f"y = F.linear({PASS_F}, self.weight, self.bias)\n"
        "        return y if self.bias is None else y + self.bias",
    ),
)
NOT_TRAINED = "Your parameters get no gradient. Make them `nn.Parameter`s, with requires_grad=True, its default."
ColumnParallelLinear.mistake(
    NOT_TRAINED,
    replace(f"nn.Parameter({ROWS_OF_W})", f"nn.Parameter({ROWS_OF_W}, requires_grad=False)"),
)
ColumnParallelLinear.mistake(
    "You cut the weight's columns. It is (out, in), and here the outputs are cut: rows.",
    replace(ROWS_OF_W, "full.weight[:, part_of(full.in_features, group)].clone()"),
)
TRANSPOSED = (
    "Your weight is kept transposed. It is (out, in), as nn.Linear has it; F.linear transposes."
)
ColumnParallelLinear.mistake(
    TRANSPOSED,
    replace(
        ROWS_OF_W,
        "full.weight.T[:, mine].clone()",
        "self.weight, self.bias)",
        "self.weight.T, self.bias)",
    ),
)
ColumnParallelLinear.mistake(
    KEPT_AS_A_PART, replace("self.group = group", "self.group, self.full = group, full")
)
ColumnParallelLinear.mistake(
    "The bias is whole. It belongs to the outputs, and is cut as they are.",
    replace(ROWS_OF_B, "full.bias.detach().clone()"),
)
ColumnParallelLinear.mistake(
    "You divide the bias by the number of ranks. Nothing is summed forward: each output has its own bias, once.",
    replace(ROWS_OF_B, ROWS_OF_B + " / dist.get_world_size(group)"),
)
ColumnParallelLinear.mistake(
    "You deal the rows out like cards, every n-th to a rank. A rank has the r-th of n contiguous parts.",
    replace(
        ROWS_OF_W,
        "full.weight.detach()[dist.get_rank(group)::dist.get_world_size(group)].clone()",
        ROWS_OF_B,
        "full.bias.detach()[dist.get_rank(group)::dist.get_world_size(group)].clone()",
    ),
)
ColumnParallelLinear.mistake(
    "Your part goes by the rank in the job. It goes by that in the group: `dist.get_rank(group)`.",
    replace(
        "mine = part_of(full.out_features, group)",
        "part_of(full.out_features, group)\n"
        "        size = full.out_features // dist.get_world_size(group)\n"
        "        mine = slice(dist.get_rank() * size, (dist.get_rank() + 1) * size)",
    ),
)
ColumnParallelLinear.mistake(
    "You cut for all ranks of the job, not for those of the group.",
    replace("part_of(full.out_features, group)", "part_of(full.out_features)"),
)
ColumnParallelLinear.mistake(
    "The gradient is summed over all ranks of the job, not over those of the group: give CopyToRanks the group.",
    replace(PASS_F, "CopyToRanks.apply(x)"),
)
NO_BIAS = "A layer may have no bias: `full.bias` is None then, and so is yours."
for edit in (
    ("None if full.bias is None else ", ""),
    ("None if full.bias is None else ", "", ROWS_OF_B, "full.bias.detach()[mine].clone()"),
    (
        "self.bias = None if full.bias is None else nn.Parameter(full.bias[mine].clone())",
        "self.bias = nn.Parameter(self.weight.new_zeros(len(self.weight)))\n"
        "        if full.bias is not None:\n"
        "            self.bias.data.copy_(full.bias[mine])",
    ),
    (
        "self.bias = None if full.bias is None else nn.Parameter(full.bias[mine].clone())",
        "if full.bias is not None:\n            self.bias = nn.Parameter(full.bias[mine].clone())",
        "self.weight, self.bias)",
        'self.weight, getattr(self, "bias", None))',
    ),
    ("None if full.bias", "self.weight.detach().new_zeros(len(self.weight)) if full.bias"),
):
    ColumnParallelLinear.mistake(NO_BIAS, replace(*edit))
ON_ITS_DEVICE = (
    "Your parameters are made on the default device, wherever the full layer is: new tensors take its device as well as "
    "its dtype."
)
ColumnParallelLinear.mistake(
    ON_ITS_DEVICE,
    replace(
        ROWS_OF_W,
        "torch.zeros(full.weight[mine].shape, dtype=full.weight.dtype).copy_(full.weight[mine].detach())",
    ),
)
ColumnParallelLinear.mistake(
    "`weight` is a tensor, no nn.Parameter: an optimizer never sees it.",
    replace(f"nn.Parameter({ROWS_OF_W})", f"{ROWS_OF_W}.detach().requires_grad_()"),
)
ColumnParallelLinear.mistake(
    "You gather the results of all ranks. The next layer wants this rank's features only; gathering them costs an "
    "all-gather that nobody needs.",
    replace(
        f"return F.linear({PASS_F}, self.weight, self.bias)",
        f"y = F.linear({PASS_F}, self.weight, self.bias)\n"
        "        n = dist.get_world_size(self.group)\n"
        "        parts = [torch.empty_like(y) for _ in range(n)]\n"
        "        dist.all_gather(parts, y.detach().contiguous(), group=self.group)\n"
        "        parts[dist.get_rank(self.group)] = y\n"
        "        return torch.cat(parts, dim=-1)",
    ),
)
ColumnParallelLinear.mistake(
    "You make new parameters with random values. They must be this rank's part of the full layer's.",
    replace(f"nn.Parameter({ROWS_OF_W})", f"nn.Parameter(torch.randn_like({ROWS_OF_W}))"),
)
ColumnParallelLinear.mistake(
    "Your parameters are float32 whatever the full layer's are: take its dtype.",
    replace(ROWS_OF_W, ROWS_OF_W + ".float()", ROWS_OF_B, ROWS_OF_B + ".float()"),
)
ColumnParallelLinear.mistake(
    "Your parameters are float32 whatever the full layer's are: take its dtype.",
    replace(
        ROWS_OF_W,
        ROWS_OF_W + ".float()",
        ROWS_OF_B,
        ROWS_OF_B + ".float()",
        "self.weight, self.bias)",
        "self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))",
    ),
)
ColumnParallelLinear.mistake(
    "n does not divide the outputs, and nothing raises ValueError: the ranks' parts differ in size. `part_of` checks it; "
    "`chunk` and a slice do not.",
    replace(
        "mine = part_of(full.out_features, group)",
        "n, rank = dist.get_world_size(group), dist.get_rank(group)",
        ROWS_OF_W,
        "full.weight.chunk(n)[rank].clone()",
        ROWS_OF_B,
        "full.bias.chunk(n)[rank].clone()",
    ),
)
ColumnParallelLinear.mistake(
    "n does not divide the outputs, and nothing raises ValueError: the ranks' parts differ in size. `part_of` checks it; "
    "`chunk` and a slice do not.",
    replace(
        "part_of(full.out_features, group)",
        "slice(*[-(-full.out_features // dist.get_world_size(group)) * (dist.get_rank(group) + i) for i in (0, 1)])",
    ),
)
ColumnParallelLinear.mistake(
    "You refuse a layer whose inputs n does not divide. The outputs are cut: n need only divide them.",
    replace(
        "mine = part_of(full.out_features, group)",
        "part_of(full.in_features, group)\n        mine = part_of(full.out_features, group)",
    ),
)
ColumnParallelLinear.mistake(
    "Where n does not divide the outputs you raise something else than ValueError: an assert raises AssertionError.",
    replace(
        "mine = part_of(full.out_features, group)",
        "assert full.out_features % dist.get_world_size(group) == 0\n"
        "        mine = part_of(full.out_features, group)",
    ),
)
ColumnParallelLinear.mistake(
    "The values are right, but you keep the full layer, and with it all of its weight. Keep the part.",
    replace("self.group = group", "self.group, self.from_layer = group, [full]"),
    cost=True,
)
ColumnParallelLinear.mistake(
    "The values are right, but x is sent around forward. It is the same on every rank already.",
    replace(
        f"return F.linear({PASS_F}",
        "y = x.detach().clone(memory_format=torch.contiguous_format)\n"
        "        dist.all_reduce(y, dist.ReduceOp.MAX, group=self.group)\n"
        f"        return F.linear({PASS_F}",
    ),
    cost=True,
)
ColumnParallelLinear.mistake(
    ROW_BY_ROW,
    replace(PASS_F, "torch.stack([CopyToRanks.apply(row, self.group) for row in x])"),
    cost=True,
)


class HookedColumn(nn.Linear):
    def __init__(self, full, group=None):
        n, rank = dist.get_world_size(group), dist.get_rank(group)
        if full.out_features % n:
            raise ValueError("parts of different sizes")
        given = {"dtype": full.weight.dtype, "device": full.weight.device}
        super().__init__(full.in_features, full.out_features // n, full.bias is not None, **given)
        self.group = group
        with torch.no_grad():
            for name, p in self.named_parameters():
                p.copy_(getattr(full, name).tensor_split(n)[rank])

    def _sum(self, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=self.group)
        return grad

    def forward(self, x):
        x = x.view_as(x)
        if x.requires_grad:
            x.register_hook(self._sum)
        return super().forward(x)


ColumnParallelLinear.alternative("a subclass of nn.Linear, and a hook that sums the gradient")(
    HookedColumn
)


class EinsumColumn(nn.Module):
    def __init__(self, full, group=None):
        super().__init__()
        n, rank = dist.get_world_size(group), dist.get_rank(group)
        if len(full.weight) % n:
            raise ValueError("parts of different sizes")
        state = {k: v.chunk(n)[rank].clone() for k, v in full.state_dict().items()}
        self.group = group
        for name in ("weight", "bias"):
            self.register_parameter(name, nn.Parameter(state[name]) if name in state else None)

    def forward(self, x):
        y = torch.einsum(
            "...i,oi->...o", tensor_parallel.CopyToRanks.apply(x, self.group), self.weight
        )
        return y if self.bias is None else y + self.bias


ColumnParallelLinear.alternative("parts of the state dict, and einsum")(EinsumColumn)


# ------------------------------------------------------------------------------ RowParallelLinear

RowParallelLinear = Exercise(
    tensor_parallel.RowParallelLinear,
    title="A linear layer cut by inputs",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.parallel_layer,
    hints=(
        "x Wᵀ is a sum over the input features. A rank has some of them: which columns of the weight go with them?",
        "Every rank's product is one term of the sum. Which of your Functions adds terms up?",
        "The bias belongs to the sum, not to a term: add it once, after.",
        ("contracts", "The only message is the all-reduce of the result."),
    ),
)


@RowParallelLinear.by_hand
def _():
    yield (
        BUILT,
        {
            "rank 0: `weight`": t([1.0], [3.0]),
            "rank 1: `weight`": t([2.0], [4.0]),
            "rank 1: `bias`": t(10.0, 20.0),
        },
    )
    yield (
        on_ranks(
            *[
                call(**SMALL, xs=[t([x])], grads=[t([1.0, -1.0])], shown=("weight", "bias"))
                for x in (1.0, 100.0)
            ]
        ),
        {
            "rank 0: `weight`": t([1.0], [3.0]),
            "rank 1: `weight`": t([2.0], [4.0]),
            "rank 1: `bias`": t(10.0, 20.0),
            "rank 0: result": t([211.0, 423.0]),
            "rank 1: result": t([211.0, 423.0]),
            "rank 0: gradient of x": t([-2.0]),
            "rank 0: gradient of `bias`": t(1.0, -1.0),
            "rank 1: gradient of `weight`": t([100.0], [-100.0]),
        },
    )


@RowParallelLinear.cases(3)
def _(draw):
    world, n_out, each, rows = (
        draw(st.integers(low, top)) for low, top in ((2, 3), (1, 4), (1, 3), (1, 3))
    )
    yield linear(
        world,
        world * each,
        n_out,
        (rows,),
        cut="in",
        bias=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


@RowParallelLinear.edge
def _():
    yield linear(2, 4, 3, (2, 3), (1,), cut="in"), "two calls, of two and three axes"
    yield linear(2, 6, 3, (2,), cut="in", bias=False), "no bias"
    yield linear(3, 6, 2, (), cut="in"), "one row without a batch axis"
    yield linear(4, 4, 3, (2,), cut="in", groups=PAIRS), "two groups that work among themselves"
    yield (
        linear(4, 6, 3, (2,), cut="in", groups=PAIRS),
        "two groups, and inputs that two ranks can share, not four",
    )
    yield linear(2, 4, 3, (2, 3), cut="in", strided=True), "x and the gradient are not contiguous"
    yield linear(2, 4, 3, (2,), cut="in", dtype=F64), "float64"
    yield linear(2, 4, 3, (2,), cut="in", dtype=BF16), "bfloat16"
    yield ELSEWHERE, "a full layer on another device than the default one"
    yield linear(1, 4, 3, (2,), cut="in"), "one rank has all inputs"
    yield (
        linear(2, 4, 1, (2,), cut="in", bias=False),
        "one output: its part of the weight is contiguous",
    )
    yield refused("linear", [(4, 5), (4,)], 2), "two ranks cannot share five inputs evenly"
    yield refused("linear", [(6, 4), (6,)], 3), "three ranks cannot share four inputs evenly"


layer_contracts(
    RowParallelLinear,
    linear(4, 48, 40, (30,), cut="in"),
    sent=ring(30 * 40 * 4, 4),
    held=(40 * 48 // 4 + 40) * 4,
    messages="one all-reduce of the result",
)

COLUMNS_OF_W = "full.weight[:, mine].clone()"
WHOLE_B = "full.bias.clone()"
PASS_G = "ReduceFromRanks.apply(F.linear(x, self.weight), self.group)"
ADD_B = "return y if self.bias is None else y + self.bias"

RowParallelLinear.mistake(
    "The bias is in every rank's term, so that it is added n times. Add it once, after the sum.",
    replace("F.linear(x, self.weight)", "F.linear(x, self.weight, self.bias)", ADD_B, "return y"),
)
RowParallelLinear.mistake(
    "The result is only this rank's term. Sum over the ranks: ReduceFromRanks.",
    replace(PASS_G, "F.linear(x, self.weight)"),
)
RowParallelLinear.mistake(
    "The result goes through CopyToRanks, which sums backward. The terms must be summed forward: ReduceFromRanks.",
    replace("ReduceFromRanks.apply", "CopyToRanks.apply"),
)
RowParallelLinear.mistake(
    "The sum is summed backward as well, as if it were the derivative of all_reduce for a loss that is added up over "
    "ranks: the gradients are n times too large. ReduceFromRanks has the identity there.",
    replace(PASS_G, f"CopyToRanks.apply({PASS_G}, self.group)"),
)
RowParallelLinear.mistake(
    "You add the bias divided by n in each term. The sum is right, but the bias's gradient is divided by n, and with "
    "it its steps. Add it once, after the sum.",
    replace(
        "F.linear(x, self.weight)",
        "F.linear(x, self.weight, None if self.bias is None else self.bias / dist.get_world_size(self.group))",
        ADD_B,
        "return y",
    ),
)
RowParallelLinear.mistake(
    "Only rank 0 adds its bias, and the others have none that trains. Where the result is whole, every rank keeps the "
    "whole bias and adds it after the sum: so it stays the same everywhere.",
    replace(
        "F.linear(x, self.weight)",
        "F.linear(x, self.weight, self.bias if dist.get_rank(self.group) == 0 else None)",
        ADD_B,
        "return y",
    ),
)
RowParallelLinear.mistake(
    NOT_TRAINED,
    replace(f"nn.Parameter({COLUMNS_OF_W})", f"nn.Parameter({COLUMNS_OF_W}, requires_grad=False)"),
)
RowParallelLinear.mistake(
    TRANSPOSED,
    replace(
        COLUMNS_OF_W,
        "full.weight.T[mine].clone()",
        "F.linear(x, self.weight)",
        "F.linear(x, self.weight.T)",
    ),
)
RowParallelLinear.mistake(
    "x has this rank's features already: do not cut it again.",
    replace(
        "self.group = group",
        "self.group, self.mine = group, mine",
        "F.linear(x, self.weight)",
        "F.linear(x[..., self.mine], self.weight)",
    ),
)
ON_RANK_0_ONLY = (
    "Only rank 0 has a bias. The result is whole on every rank, and so is the bias: each rank keeps all of it, and adds it "
    "after the sum."
)
HERE_ONLY = "None if full.bias is None or dist.get_rank(group) else nn.Parameter(full.bias.clone())"
RowParallelLinear.mistake(
    ON_RANK_0_ONLY,
    replace(
        "None if full.bias is None else nn.Parameter(full.bias.clone())",
        HERE_ONLY,
        "F.linear(x, self.weight)",
        "F.linear(x, self.weight, self.bias)",
        ADD_B,
        "return y",
    ),
)
RowParallelLinear.mistake(
    ON_RANK_0_ONLY,
    replace("None if full.bias is None else nn.Parameter(full.bias.clone())", HERE_ONLY),
)
RowParallelLinear.mistake(
    "x passes through CopyToRanks, and its gradient is summed over ranks that have other features. Each rank already has "
    "the whole gradient of its own: leave x as it is.",
    replace("F.linear(x, self.weight)", "F.linear(CopyToRanks.apply(x, self.group), self.weight)"),
)
RowParallelLinear.mistake(
    KEPT_AS_A_PART, replace("self.group = group", "self.group, self.full = group, full")
)
RowParallelLinear.mistake(
    "You leave out the bias.",
    replace(ADD_B, "return y"),
)
RowParallelLinear.mistake(
    "You cut rows. The weight is (out, in), and here the inputs are cut: columns.",
    replace("[:, mine]", "[part_of(full.out_features, group)]"),
)
for edit in (
    (COLUMNS_OF_W, "full.weight[:, mine]", WHOLE_B, "full.bias"),
    (COLUMNS_OF_W, "full.weight[:, mine]"),
):
    RowParallelLinear.mistake(A_VIEW, replace(*edit))
RowParallelLinear.mistake(
    "`contiguous()` copies only where it must: a part that is contiguous already, as where there is one output or one "
    "rank, stays the full layer's memory. Clone it.",
    replace(COLUMNS_OF_W, "full.weight[:, mine].contiguous()"),
)
RowParallelLinear.mistake(
    "n does not divide the inputs, and nothing raises ValueError: the ranks' parts differ in size. `part_of` checks it; "
    "`chunk` and a slice do not.",
    replace(
        "mine = part_of(full.in_features, group)",
        "n, rank = dist.get_world_size(group), dist.get_rank(group)",
        COLUMNS_OF_W,
        "full.weight.chunk(n, 1)[rank].clone()",
    ),
)
RowParallelLinear.mistake(
    "n does not divide the inputs, and nothing raises ValueError: the ranks' parts differ in size. `part_of` checks it; "
    "`chunk` and a slice do not.",
    replace(
        "part_of(full.in_features, group)",
        "slice(*[-(-full.in_features // dist.get_world_size(group)) * (dist.get_rank(group) + i) for i in (0, 1)])",
    ),
)
RowParallelLinear.mistake(
    "Where n does not divide the inputs you raise something else than ValueError: an assert raises AssertionError.",
    replace(
        "mine = part_of(full.in_features, group)",
        "assert full.in_features % dist.get_world_size(group) == 0\n"
        "        mine = part_of(full.in_features, group)",
    ),
)
RowParallelLinear.mistake(
    "Your parameters are float32 whatever the full layer's are: take its dtype.",
    replace(
        COLUMNS_OF_W,
        COLUMNS_OF_W + ".float()",
        WHOLE_B,
        WHOLE_B + ".float()",
        "F.linear(x, self.weight)",
        "F.linear(x, self.weight.to(x.dtype))",
        "y + self.bias",
        "y + self.bias.to(x.dtype)",
    ),
)
RowParallelLinear.mistake(
    "The bias is the full layer's own tensor: a step of the optimizer changes it. Clone it.",
    replace(WHOLE_B, "full.bias"),
)
RowParallelLinear.mistake(
    "You deal the columns out like cards, every n-th to a rank. A rank has the r-th of n contiguous parts.",
    replace("[:, mine]", "[:, dist.get_rank(group) :: dist.get_world_size(group)]"),
)
RowParallelLinear.mistake(
    "Your part goes by the rank in the job. It goes by that in the group: `dist.get_rank(group)`.",
    replace(
        "mine = part_of(full.in_features, group)",
        "part_of(full.in_features, group)\n"
        "        size = full.in_features // dist.get_world_size(group)\n"
        "        mine = slice(dist.get_rank() * size, (dist.get_rank() + 1) * size)",
    ),
)
RowParallelLinear.mistake(
    "You cut for all ranks of the job, not for those of the group.",
    replace("part_of(full.in_features, group)", "part_of(full.in_features)"),
)
RowParallelLinear.mistake(
    "The sum is over all ranks of the job, not over those of the group: give ReduceFromRanks the group.",
    replace(
        "ReduceFromRanks.apply(F.linear(x, self.weight), self.group)",
        "ReduceFromRanks.apply(F.linear(x, self.weight))",
    ),
)
for edit in (
    ("None if full.bias is None else ", ""),
    (
        "self.bias = None if full.bias is None else nn.Parameter(full.bias.clone())",
        "self.bias = nn.Parameter(self.weight.new_zeros(len(self.weight)))\n"
        "        if full.bias is not None:\n"
        "            self.bias.data.copy_(full.bias)",
    ),
    (
        "self.bias = None if full.bias is None else nn.Parameter(full.bias.clone())",
        "if full.bias is not None:\n            self.bias = nn.Parameter(full.bias.clone())",
        ADD_B,
        'return y + self.bias if hasattr(self, "bias") else y',
    ),
    ("None if full.bias", "self.weight.detach().new_zeros(len(self.weight)) if full.bias"),
):
    RowParallelLinear.mistake(NO_BIAS, replace(*edit))
RowParallelLinear.mistake(
    ON_ITS_DEVICE,
    replace(
        COLUMNS_OF_W,
        "torch.zeros(full.weight[:, mine].shape, dtype=full.weight.dtype).copy_(full.weight[:, mine].detach())",
    ),
)
RowParallelLinear.mistake(
    "You average over the ranks. They have terms of one sum.",
    replace(PASS_G, PASS_G + " / dist.get_world_size(self.group)"),
)
RowParallelLinear.mistake(
    "You cut the bias too. Its outputs are whole on every rank, and so is it.",
    replace(WHOLE_B, "full.bias.detach()[part_of(full.out_features, group)].clone()"),
)
RowParallelLinear.mistake(
    "The values are right, but you keep the full layer, and with it all of its weight. Keep the part.",
    replace("self.group = group", "self.group, self.from_layer = group, [full]"),
    cost=True,
)
RowParallelLinear.mistake(
    "The values are right, but every rank gathers all terms and adds them up: n / 2 times the bytes of an all-reduce.",
    replace(
        PASS_G,
        "F.linear(x, self.weight)\n"
        "        rank, n = dist.get_rank(self.group), dist.get_world_size(self.group)\n"
        "        parts = [torch.empty_like(y).contiguous() for _ in range(n)]\n"
        "        dist.all_gather(parts, y.detach().contiguous(), group=self.group)\n"
        "        y = sum(p for i, p in enumerate(parts) if i != rank) + y",
    ),
    cost=True,
)
RowParallelLinear.mistake(
    ROW_BY_ROW,
    replace(
        PASS_G,
        "torch.stack([ReduceFromRanks.apply(row, self.group) for row in F.linear(x, self.weight)])",
    ),
    cost=True,
)


class InPlaceRow(nn.Module):
    def __init__(self, full, group=None):
        super().__init__()
        n, rank = dist.get_world_size(group), dist.get_rank(group)
        if full.in_features % n:
            raise ValueError("parts of different sizes")
        self.group = group
        self.weight = nn.Parameter(full.weight.data.chunk(n, dim=1)[rank].clone())
        self.register_parameter(
            "bias", None if full.bias is None else nn.Parameter(full.bias.data.clone())
        )

    def forward(self, x):
        y = torch.einsum("...i,oi->...o", x, self.weight).contiguous()
        dist.all_reduce(y.detach(), group=self.group)  # unseen by autograd: the identity backward
        return y if self.bias is None else self.bias + y


RowParallelLinear.alternative("an all-reduce that autograd does not see")(InPlaceRow)


class LinearRow(nn.Linear):
    def __init__(self, full, group=None):
        mine = tensor_parallel.part_of(full.in_features, group)
        super().__init__(
            mine.stop - mine.start,
            full.out_features,
            full.bias is not None,
            dtype=full.weight.dtype,
            device=full.weight.device,
        )
        self.group = group
        with torch.no_grad():
            self.weight.copy_(full.weight[:, mine])
            if full.bias is not None:
                self.bias.copy_(full.bias)

    def forward(self, x):
        y = tensor_parallel.ReduceFromRanks.apply(x @ self.weight.T, self.group)
        return y if self.bias is None else torch.add(y, self.bias)


RowParallelLinear.alternative("a subclass of nn.Linear")(LinearRow)


# ------------------------------------------------------------------------------ ParallelMLP

ParallelMLP = Exercise(
    tensor_parallel.ParallelMLP,
    title="The MLP, one all-reduce each way",
    difficulty=2,
    minutes=15,
    points=3,
    probe=probes.parallel_layer,
    hints=(
        "GELU works element by element, but it must see complete sums. Which of your two layers gives complete features?",
        "c_fc by outputs, c_proj by inputs: what the first gives on a rank is what the second takes there.",
        "The two layers hold f and g already. Between them there is GELU(approximate='tanh'), and nothing else.",
        (
            "contracts",
            "Two all-reduces of (B, T, D): c_proj's result forward, x's gradient backward. Keep no reference to `full`.",
        ),
    ),
)


def mlp(world, D, *shapes, seed=0, dtype=F32, groups=None, strided=False):
    sizes = ((4 * D, D), (4 * D,), (D, 4 * D), (D,))
    full = some(*sizes, seed=seed, dtype=dtype)
    calls = [None] * world
    for k, ranks in enumerate(groups or [range(world)]):
        xs = some(*[(*s, D) for s in shapes], seed=seed + 10 + k, dtype=dtype)
        grads = some(*[(*s, D) for s in shapes], seed=seed + 20 + k, dtype=dtype)
        if strided:
            xs, grads = list(map(turned, xs)), list(map(turned, grads))
        for rank in ranks:
            calls[rank] = call(kind="mlp", full=full, xs=xs, grads=grads, groups=groups)
    return on_ranks(*calls)


@ParallelMLP.by_hand
def _():
    # Large features pass GELU as they are, very negative ones become 0: of four, rank 0 has 20 x and −20 x.
    full = [t([20.0], [-20.0], [30.0], [-30.0]), torch.zeros(4), t([1.0, 7.0, 2.0, 7.0]), t(0.5)]
    given = call(kind="mlp", full=full, xs=[t([[1.0]])], grads=[t([[1.0]])], groups=None)
    yield (
        on_ranks(given, given),
        {
            "rank 0: result": t([[80.5]]),
            "rank 1: result": t([[80.5]]),
            "rank 0: gradient of x": t([[80.0]]),
            "rank 1: gradient of x": t([[80.0]]),
        },
    )


@ParallelMLP.cases(2)
def _(draw):
    world = draw(st.sampled_from([2, 4]))
    yield mlp(
        world, draw(st.integers(1, 3)), (draw(st.integers(1, 2)), 3), seed=draw(st.integers(0, 99))
    )


@ParallelMLP.edge
def _():
    yield mlp(2, 3, (2, 3), (1, 5)), "two calls, of two lengths"
    yield mlp(4, 2, (1, 3), groups=PAIRS), "two groups that work among themselves"
    yield mlp(2, 3, (2, 4), strided=True), "x and the gradient are not contiguous"
    yield mlp(3, 3, (1, 4), dtype=F64), "float64, on three ranks"
    yield mlp(1, 2, (1, 4)), "one rank has all features"
    shapes = [(8, 2), (8,), (2, 8), (2,)]
    yield refused("mlp", shapes, 3), "three ranks cannot share eight features evenly"


layer_contracts(
    ParallelMLP,
    mlp(4, 32, (2, 8)),
    sent=2 * ring(2 * 8 * 32 * 4, 4),
    held=((8 * 32 * 32 + 4 * 32) // 4 + 32) * 4,
    messages="two all-reduces of (B, T, D) numbers",
    all_reduces=2,
)

UP, DOWN = "ColumnParallelLinear(full.c_fc, group)", "RowParallelLinear(full.c_proj, group)"
GELU = 'F.gelu(self.c_fc(x), approximate="tanh")'

CUTS_THAT_FIT = (
    "The two cuts do not fit together. c_fc gets all of x, so it is cut by outputs; c_proj gets what that gives on each "
    "rank, so it is cut by inputs."
)
at_one_place_or_both(
    ParallelMLP,
    CUTS_THAT_FIT,
    replace(UP, "RowParallelLinear(full.c_fc, group)"),
    replace(DOWN, "ColumnParallelLinear(full.c_proj, group)"),
)
ParallelMLP.mistake(
    "GPT-2's GELU is the tanh form: approximate='tanh'.",
    replace(', approximate="tanh"', ""),
)
ParallelMLP.mistake(
    "Between the layers there is GELU, not ReLU.", replace(GELU, "F.relu(self.c_fc(x))")
)
ParallelMLP.mistake("You leave out the activation function.", replace(GELU, "self.c_fc(x)"))
ParallelMLP.mistake(
    "GELU comes after c_proj: it belongs between the two layers.",
    replace(f"self.c_proj({GELU})", 'F.gelu(self.c_proj(self.c_fc(x)), approximate="tanh")'),
)
ParallelMLP.mistake(
    "You sum the features between the layers over the ranks. Each rank has other features there, not terms of one sum.",
    replace("self.c_fc(x)", "ReduceFromRanks.apply(self.c_fc(x), self.c_fc.group)"),
)
ParallelMLP.mistake(
    "x passes through CopyToRanks twice, and its gradient is summed twice: the column-parallel layer holds one already.",
    replace("self.c_fc(x)", "self.c_fc(CopyToRanks.apply(x, self.c_fc.group))"),
)
ParallelMLP.mistake(
    "The result is summed twice, and n times too large: the row-parallel layer holds a ReduceFromRanks already.",
    replace(
        f"return self.c_proj({GELU})",
        f"return ReduceFromRanks.apply(self.c_proj({GELU}), self.c_proj.group)",
    ),
)
ParallelMLP.mistake(
    "c_proj's bias is added twice: the row-parallel layer adds it, after the sum.",
    replace(f"return self.c_proj({GELU})", f"return self.c_proj({GELU}) + self.c_proj.bias"),
)
for edit in (
    (DOWN, DOWN + "\n        self.c_proj.bias = None"),
    (
        f"self.c_proj({GELU})",
        f"ReduceFromRanks.apply(F.linear({GELU}, self.c_proj.weight), self.c_proj.group)",
    ),
):
    ParallelMLP.mistake("c_proj's bias is missing: add it once, after the sum.", replace(*edit))
ParallelMLP.mistake(
    "Every rank takes the first columns of c_proj's weight. Rank r has the r-th part of the features, and needs the r-th "
    "part of the columns.",
    replace(
        DOWN,
        f"{DOWN}\n        self.c_proj.weight.data.copy_(full.c_proj.weight[:, : self.c_proj.weight.size(1)])",
    ),
)
ParallelMLP.mistake(
    "GELU comes after c_proj once more. It stands between the two layers only.",
    replace(f"self.c_proj({GELU})", f'F.gelu(self.c_proj({GELU}), approximate="tanh")'),
)
ParallelMLP.mistake(
    "The result is divided by the number of ranks: they have terms of one sum, and nothing is averaged.",
    replace(
        f"return self.c_proj({GELU})",
        f"return self.c_proj({GELU}) / dist.get_world_size(self.c_fc.group)",
    ),
)
ParallelMLP.mistake(
    "x times the sigmoid of 1.702 x is only near GELU. GPT-2's is the tanh form: F.gelu(h, approximate='tanh').",
    replace(
        f"        return self.c_proj({GELU})",
        "        h = self.c_fc(x)\n        return self.c_proj(h * torch.sigmoid(1.702 * h))",
    ),
)
ParallelMLP.mistake(
    "In GELU's tanh form it is h + 0.044715 h³: you square h. F.gelu(h, approximate='tanh') has it right.",
    replace(
        f"        return self.c_proj({GELU})",
        "        h = self.c_fc(x)\n"
        "        inner = (2 / torch.pi) ** 0.5 * (h + 0.044715 * h**2)\n"
        "        return self.c_proj(0.5 * h * (1 + torch.tanh(inner)))",
    ),
)
ParallelMLP.mistake(
    "You apply c_fc's weight yourself and go past its CopyToRanks: x's gradient is only this rank's term of the sum. "
    "Call the layer.",
    replace("self.c_fc(x)", "F.linear(x, self.c_fc.weight, self.c_fc.bias)"),
)
ParallelMLP.mistake(
    "x is added to the result. The residual stream is the block's business.",
    replace(f"return self.c_proj({GELU})", f"return x + self.c_proj({GELU})"),
)
ParallelMLP.mistake(
    "Not both layers use the group: they are cut for all ranks of the job. Give it to each.",
    replace(UP, "ColumnParallelLinear(full.c_fc)"),
)
ParallelMLP.mistake(
    "Not both layers use the group: they are cut for all ranks of the job. Give it to each.",
    replace(DOWN, "RowParallelLinear(full.c_proj)"),
)
ParallelMLP.mistake(
    "Not both layers use the group: they are cut for all ranks of the job. Give it to each.",
    replace(UP, "ColumnParallelLinear(full.c_fc)", DOWN, "RowParallelLinear(full.c_proj)"),
)
ParallelMLP.mistake(
    "The full MLP is an attribute of yours, and so a submodule: its parameters are yours too, and stay in memory. Keep the "
    "parts only.",
    replace("self.c_fc =", "self.full = full\n        self.c_fc ="),
)
ParallelMLP.mistake(
    "The values are right, but you keep the whole MLP, and with it all of its weights. Keep the parts.",
    replace("self.c_fc =", "self.full = [full]\n        self.c_fc ="),
    cost=True,
)
GATHERED_BETWEEN = "The values are right, but the features between the layers are gathered. c_proj needs this rank's only."
ParallelMLP.mistake(
    GATHERED_BETWEEN,
    replace(
        f"return self.c_proj({GELU})",
        f"h = {GELU}\n"
        "        n = dist.get_world_size(self.c_fc.group)\n"
        "        parts = [torch.empty_like(h) for _ in range(n)]\n"
        "        dist.all_gather(parts, h.detach().contiguous(), group=self.c_fc.group)\n"
        "        return self.c_proj(h)",
    ),
    cost=True,
)
ParallelMLP.mistake(
    GATHERED_BETWEEN,
    replace(
        f"return self.c_proj({GELU})",
        f"h = {GELU}\n"
        "        n = dist.get_world_size(self.c_fc.group)\n"
        "        mine = part_of(h.size(-1) * n, self.c_fc.group)\n"
        "        h = F.pad(h, (mine.start, h.size(-1) * (n - 1) - mine.start))\n"
        "        h = ReduceFromRanks.apply(h, self.c_fc.group)\n"
        "        return self.c_proj(h[..., mine])",
    ),
    cost=True,
)
ONE_BY_ONE = (
    "The values are right, but you all-reduce sequence by sequence. One all-reduce of all of them "
    "has as many messages as that of one."
)
for split in (
    f"self.c_proj(one) for one in {GELU}.split(1)",
    f"self.c_proj({GELU.replace('(x)', '(one)')}) for one in x.split(1)",
):
    ParallelMLP.mistake(
        ONE_BY_ONE,
        replace(f"return self.c_proj({GELU})", f"return torch.cat([{split}])"),
        cost=True,
    )


class OwnParameters(nn.Module):
    def __init__(self, full, group=None):
        super().__init__()
        self.group = group
        mine = tensor_parallel.part_of(full.c_fc.out_features, group)
        self.up = nn.Parameter(full.c_fc.weight.detach()[mine].clone())
        self.shift = nn.Parameter(full.c_fc.bias.detach()[mine].clone())
        self.down = nn.Parameter(full.c_proj.weight.detach()[:, mine].clone())
        self.last = nn.Parameter(full.c_proj.bias.detach().clone())

    def forward(self, x):
        x = tensor_parallel.CopyToRanks.apply(x, self.group)
        h = F.gelu(x @ self.up.T + self.shift, approximate="tanh")
        return tensor_parallel.ReduceFromRanks.apply(h @ self.down.T, self.group) + self.last


ParallelMLP.alternative("parameters of its own, f and g")(OwnParameters)


class InARow(nn.Sequential):
    def __init__(self, full, group=None):
        super().__init__(
            tensor_parallel.ColumnParallelLinear(full.c_fc, group),
            nn.GELU(approximate="tanh"),
            tensor_parallel.RowParallelLinear(full.c_proj, group),
        )

    def forward(self, x):
        return super().forward(x)


ParallelMLP.alternative("an nn.Sequential")(InARow)


# ------------------------------------------------------------------------------ ParallelSelfAttention

ParallelSelfAttention = Exercise(
    tensor_parallel.ParallelSelfAttention,
    title="Attention, its heads on several ranks",
    difficulty=3,
    minutes=35,
    points=5,
    probe=probes.parallel_layer,
    hints=(
        "c_attn's weight has 3 D rows: D for q, D for k, D for v, and in each the rows of head 0, head 1, … Which rows "
        "are those of your heads? They lie in three places.",
        "Reorder the rows so that rank 0's q, k and v come first, then rank 1's: weight.view(3, n, D / n, D), the first "
        "two axes swapped. Then ColumnParallelLinear cuts rightly, and takes care of the bias and of x's gradient.",
        "A rank has H / n heads of d features: its qkv is (B, T, 3 D / n). Split that in three, then into heads; d stays "
        "what it was.",
        "c_proj reads the heads' results side by side: those of your heads are the columns that RowParallelLinear keeps.",
        (
            "contracts",
            "Two all-reduces: c_proj's result forward, x's gradient backward. Keep no reference to `full`.",
        ),
    ),
)


def attention(world, n_head, d, *shapes, seed=0, dtype=F32, groups=None, strided=False):
    D = n_head * d
    full = [x / D**0.5 for x in some((3 * D, D), (3 * D,), (D, D), (D,), seed=seed, dtype=dtype)]
    calls = [None] * world
    for k, ranks in enumerate(groups or [range(world)]):
        xs = some(*[(*s, D) for s in shapes], seed=seed + 10 + k, dtype=dtype)
        grads = some(*[(*s, D) for s in shapes], seed=seed + 20 + k, dtype=dtype)
        if strided:
            xs, grads = list(map(turned, xs)), list(map(turned, grads))
        for rank in ranks:
            calls[rank] = call(
                kind="attention", full=full, n_head=n_head, xs=xs, grads=grads, groups=groups
            )
    return on_ranks(*calls)


@ParallelSelfAttention.by_hand
def _():
    # One position attends to itself: v and no more. Two heads of one feature each; v = 2 x, c_proj adds its inputs.
    zeros, eye = torch.zeros(2, 2), torch.eye(2)
    full = [torch.cat([zeros, zeros, 2 * eye]), torch.zeros(6), torch.ones(2, 2), t(0.5, 0.0)]
    x, grad = t([[1.0, 3.0]]), t([[1.0, 0.0]])
    given = call(kind="attention", full=full, n_head=2, xs=[x], grads=[grad], groups=None)
    yield (
        on_ranks(given, given),
        {
            "rank 0: result": t([[8.5, 8.0]]),
            "rank 1: result": t([[8.5, 8.0]]),
            "rank 0: gradient of x": t([[2.0, 2.0]]),
        },
    )


@ParallelSelfAttention.cases(2)
def _(draw):
    world, each, d = draw(st.integers(2, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    yield attention(
        world, world * each, d, (draw(st.integers(1, 2)), 3), seed=draw(st.integers(0, 99))
    )


@ParallelSelfAttention.edge
def _():
    yield attention(2, 4, 3, (2, 3), (1, 5)), "two calls, of two lengths"
    yield attention(4, 4, 2, (1, 3), groups=PAIRS), "two groups that work among themselves"
    yield attention(2, 2, 3, (2, 4), strided=True), "x and the gradient are not contiguous"
    yield attention(3, 6, 2, (1, 4), dtype=F64), "float64"
    yield attention(1, 3, 2, (1, 4)), "one rank has all heads"
    shapes = [(18, 6), (18,), (6, 6), (6,)]
    yield (
        refused("attention", shapes, 2, n_head=3),
        "three heads of two features: two ranks share the features evenly, but not the heads",
    )


layer_contracts(
    ParallelSelfAttention,
    attention(4, 4, 16, (2, 8)),
    sent=2 * ring(2 * 8 * 64 * 4, 4),
    held=((3 * 64 * 64 + 3 * 64 + 64 * 64) // 4 + 64) * 4,
    messages="two all-reduces of (B, T, D) numbers",
    all_reduces=2,
)

REORDERED = "by_rank(p.data, dist.get_world_size(group))"

ParallelSelfAttention.mistake(
    "You cut c_attn's 3 D rows into n plain slices: one rank has queries, another values. Cut q, k and v each by heads.",
    replace(REORDERED, "p.data"),
)
ParallelSelfAttention.mistake(
    "Only the weight's rows are put in order; c_attn's bias belongs to the same rows, and must be cut as they are.",
    replace(REORDERED, f"{REORDERED} if p.ndim == 2 else p.data"),
)
ParallelSelfAttention.mistake(
    "n does not divide the heads, and nothing raises ValueError. The layers check the features only: a head would be "
    "torn apart wherever n divides those.",
    replace(
        "heads = part_of(full.n_head, group)",
        "heads = slice(0, full.n_head // dist.get_world_size(group))",
    ),
)
ParallelSelfAttention.mistake(
    "Where n does not divide the heads you raise something else than ValueError: an assert raises AssertionError.",
    replace(
        "heads = part_of",
        "assert full.n_head % dist.get_world_size(group) == 0\n        heads = part_of",
    ),
)
ParallelSelfAttention.mistake(
    "You split this rank's features into all the heads, so that each has d / n features. It has H / n heads of d.",
    replace("heads.stop - heads.start", "full.n_head"),
)
ParallelSelfAttention.mistake(
    "You forget that attention is causal: a position must not see later ones.",
    replace(", is_causal=True", ""),
)
for value in ("-1e9", "float('-inf')"):
    for hidden, says in (
        ("triu(0)", "A position sees itself, too: mask the positions after it, triu(1)."),
        (
            "tril(-1)",
            "Your mask is the wrong way round: a position sees itself and those before it.",
        ),
    ):
        ParallelSelfAttention.mistake(
            says,
            replace(
                "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
                "scores = q @ k.mT / q.shape[-1] ** 0.5\n"
                f"        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).{hidden}\n"
                f"        y = scores.masked_fill(hidden, {value}).softmax(-1) @ v",
            ),
        )
ParallelSelfAttention.mistake(
    "You normalise over the queries. A query's weights of all keys add up to one: softmax over the last axis.",
    replace(
        "y = F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        "scores = q @ k.mT / q.shape[-1] ** 0.5\n"
        "        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)\n"
        "        y = scores.masked_fill(hidden, float('-inf')).softmax(-2) @ v",
    ),
)
for order in ("k, q, v", "q, v, k", "v, k, q", "k, v, q", "v, q, k"):
    ParallelSelfAttention.mistake(
        f"You unpack the thirds as {order}. c_attn gives q, then k, then v.",
        replace("q, k, v = (", f"{order} = ("),
    )
ParallelSelfAttention.mistake(
    "You deal the heads out like cards. c_proj's columns are contiguous: rank r has heads r H/n to (r + 1) H/n − 1.",
    replace(
        REORDERED,
        "p.data.unflatten(0, (3, full.n_head // dist.get_world_size(group), dist.get_world_size(group), -1))"
        ".permute(2, 0, 1, *range(3, p.ndim + 3)).flatten(0, 3)",
    ),
)
ParallelSelfAttention.mistake(
    "Queries, keys and values are read from each head in turn (head, then q, k, v). GPT-2's c_attn has the q of all "
    "heads first, then k, then v.",
    replace(
        "part.unflatten(-1, (self.n_head, -1)).transpose(1, 2)",
        "part.transpose(1, 2)",
        "self.c_attn(x).chunk(3, dim=-1)",
        "self.c_attn(x).unflatten(-1, (self.n_head, -1)).chunk(3, dim=-1)",
    ),
)
ParallelSelfAttention.mistake(
    "The heads' results are put side by side feature by feature: swap heads and positions back before you flatten.",
    replace("y.transpose(1, 2).flatten(2)", "y.permute(0, 2, 3, 1).flatten(2)"),
)
ParallelSelfAttention.mistake(
    "What the heads give is (B, H / n, T, d), and you reshape it as it is: a row then holds several positions of one head. "
    "Swap heads and positions back first.",
    replace("y.transpose(1, 2).flatten(2)", "y.reshape(len(y), y.size(2), -1)"),
)
ParallelSelfAttention.mistake(
    "You reshape q, k and v to (B, H / n, T, d) at once, which mixes positions and heads. Reshape to (B, T, H / n, d), then "
    "swap two axes.",
    replace(
        "part.unflatten(-1, (self.n_head, -1)).transpose(1, 2)",
        "part.reshape(len(part), self.n_head, part.size(1), -1)",
    ),
)
ParallelSelfAttention.mistake(
    "Positions attend to the batch or heads to one another: q, k and v must be (B, H / n, T, d), with T in the last axis "
    "but one.",
    replace(
        "part.unflatten(-1, (self.n_head, -1)).transpose(1, 2)",
        "part.unflatten(-1, (self.n_head, -1))",
        "y.transpose(1, 2).flatten(2)",
        "y.flatten(2)",
    ),
)
WRONG_SCALE = (
    "A score is q · k divided by √d, where d is the features of one head, D / H on every number of ranks. You divide by "
    "something else; scaled_dot_product_attention has it right by itself."
)
for scale in (
    "x.shape[-1] ** -0.5",  # of all features
    "(q.shape[1] * q.shape[-1]) ** -0.5",  # of this rank's
    "1.0",
    "1 / q.shape[-1]",
):
    ParallelSelfAttention.mistake(
        WRONG_SCALE, replace(", is_causal=True", f", is_causal=True, scale={scale}")
    )
ParallelSelfAttention.mistake(
    "You order the rows of the full layer's own weight: it is another layer afterwards. Order a copy.",
    replace("copy.deepcopy(full.c_attn)", "full.c_attn"),
)
ParallelSelfAttention.mistake(
    "The full attention is an attribute of yours, and so a submodule: its parameters are yours too, and stay in memory. "
    "Keep the parts only.",
    replace("self.n_head = heads", "self.full = full\n        self.n_head = heads"),
)
ParallelSelfAttention.mistake(
    "x passes through CopyToRanks twice, and its gradient is summed twice: the column-parallel layer holds one already.",
    replace("self.c_attn(x)", "self.c_attn(CopyToRanks.apply(x, self.c_attn.group))"),
)
ParallelSelfAttention.mistake(
    "c_proj is cut by rows, or gets all of its bias from every rank: it reads this rank's heads, so cut its columns, and "
    "add the bias once, after the sum.",
    replace(
        "return self.c_proj(y.transpose(1, 2).flatten(2))",
        "return ReduceFromRanks.apply(F.linear(y.transpose(1, 2).flatten(2), self.c_proj.weight, self.c_proj.bias), self.c_proj.group)",
    ),
)
ParallelSelfAttention.mistake(
    "Not all parts use the group: the heads, and both layers, are cut for all ranks of the job or for those of the group. "
    "Give it to each.",
    replace("ColumnParallelLinear(c_attn, group)", "ColumnParallelLinear(c_attn)"),
)
ParallelSelfAttention.mistake(
    "Not all parts use the group: the heads, and both layers, are cut for all ranks of the job or for those of the group. "
    "Give it to each.",
    replace("RowParallelLinear(full.c_proj, group)", "RowParallelLinear(full.c_proj)"),
)
ParallelSelfAttention.mistake(
    "Not all parts use the group: the heads, and both layers, are cut for all ranks of the job or for those of the group. "
    "Give it to each.",
    replace("part_of(full.n_head, group)", "part_of(full.n_head)"),
)
ParallelSelfAttention.mistake(
    "The values are right, but q, k and v are three layers, each of which sums x's gradient by itself: three all-reduces "
    "backward in place of one. Pass x through CopyToRanks once, or keep the three in one layer.",
    replace(
        "self.c_attn(x).chunk(3, dim=-1)",
        "[F.linear(CopyToRanks.apply(x, self.c_attn.group), w, b) for w, b in "
        "zip(self.c_attn.weight.chunk(3), self.c_attn.bias.chunk(3))]",
    ),
    cost=True,
)
ParallelSelfAttention.mistake(
    "The values are right, but you keep the whole attention, and with it all of its weights. Keep the part.",
    replace("self.n_head = heads", "self.full = [full]\n        self.n_head = heads"),
    cost=True,
)
OUT_ONE_BY_ONE = replace(
    "self.c_proj(y.transpose(1, 2).flatten(2))",
    "torch.cat([self.c_proj(one) for one in y.transpose(1, 2).flatten(2).split(1)])",
)
IN_ONE_BY_ONE = replace("self.c_attn(x)", "torch.cat([self.c_attn(one) for one in x.split(1)])")
for edit in (OUT_ONE_BY_ONE, OUT_ONE_BY_ONE + IN_ONE_BY_ONE):
    ParallelSelfAttention.mistake(ONE_BY_ONE, edit, cost=True)


class ThreeLayers(nn.Module):
    def __init__(self, full, group=None):
        super().__init__()
        self.group, n, rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.heads, left = divmod(full.n_head, n)
        if left:
            raise ValueError(f"{left} heads are left over")
        for which, name in enumerate("qkv"):
            for kind in ("weight", "bias"):
                whole = getattr(full.c_attn, kind).data.chunk(3)[which]
                self.register_parameter(
                    f"{name}_{kind}", nn.Parameter(whole.chunk(n)[rank].clone())
                )
        self.out = tensor_parallel.RowParallelLinear(full.c_proj, group)

    def forward(self, x):
        x = tensor_parallel.CopyToRanks.apply(x, self.group)
        B, T, _ = x.shape
        q, k, v = (
            F.linear(x, getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias"))
            .view(B, T, self.heads, -1)
            .transpose(1, 2)
            for name in "qkv"
        )
        scores = q @ k.mT / q.shape[-1] ** 0.5
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        y = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(B, T, -1))


ParallelSelfAttention.alternative("three layers after one copy, and the softmax by hand")(
    ThreeLayers
)


class ByIndex(nn.Module):
    def __init__(self, full, group=None):
        super().__init__()
        n, rank = dist.get_world_size(group), dist.get_rank(group)
        tensor_parallel.part_of(full.n_head, group)  # or it raises ValueError
        self.group, D = group, full.c_proj.in_features
        self.d, part = D // full.n_head, D // n
        rows = torch.cat([torch.arange(part) + i * D + rank * part for i in range(3)])
        self.qkv = nn.Parameter(full.c_attn.weight.detach()[rows])
        self.qkv_bias = nn.Parameter(full.c_attn.bias.detach()[rows])
        self.out = nn.Parameter(
            full.c_proj.weight.detach()[:, rank * part : (rank + 1) * part].clone()
        )
        self.out_bias = nn.Parameter(full.c_proj.bias.detach().clone())

    def forward(self, x):
        x = F.linear(tensor_parallel.CopyToRanks.apply(x, self.group), self.qkv, self.qkv_bias)
        q, k, v = x.view(*x.shape[:2], 3, -1, self.d).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return tensor_parallel.ReduceFromRanks.apply(y @ self.out.T, self.group) + self.out_bias


ParallelSelfAttention.alternative("rows picked by index")(ByIndex)


# ------------------------------------------------------------------------------ VocabParallelEmbedding

VocabParallelEmbedding = Exercise(
    tensor_parallel.VocabParallelEmbedding,
    title="An embedding cut by tokens",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.parallel_layer,
    hints=(
        "`rows_of(V, rank, n)` gives start and stop. Which ids does this rank know, and at which row of its part?",
        "Look up row 0 for the ids of others, and set what comes out to zero. One rank has the row, all others add "
        "nothing: so the sum is the row.",
        "The mask has no axis of features: mask[..., None].",
        ("contracts", "One all-reduce of the result. No rank gathers the table, nor the ids."),
    ),
)


def embedding(
    world, vocab, D, *shapes, seed=0, dtype=F32, groups=None, ids=None, strided=False, **more
):
    (full,) = some((vocab, D), seed=seed, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    calls = [None] * world
    for k, ranks in enumerate(groups or [range(world)]):
        xs = ids or [torch.randint(vocab, s, generator=generator) for s in shapes]
        grads = some(*[(*x.shape, D) for x in xs], seed=seed + 20 + k, dtype=dtype)
        if strided:
            xs, grads = list(map(turned, xs)), list(map(turned, grads))
        for rank in ranks:
            calls[rank] = call(
                kind="embedding",
                full=[full],
                xs=xs,
                grads=grads,
                shown=("weight",),
                groups=groups,
                **more,
            )
    return on_ranks(*calls)


@VocabParallelEmbedding.by_hand
def _():
    table, ids = t([1.0], [2.0], [3.0]), t(2, 0, 2)
    built = call(kind="embedding", full=[table], xs=[], grads=[], shown=("weight",))
    yield (
        on_ranks(built, built),
        {"rank 0: `weight`": t([1.0], [2.0]), "rank 1: `weight`": t([3.0])},
    )
    given = call(
        kind="embedding",
        full=[table],
        xs=[ids],
        grads=[t([1.0], [10.0], [100.0])],
        shown=("weight",),
        groups=None,
    )
    yield (
        on_ranks(given, given),
        {
            "rank 0: `weight`": t([1.0], [2.0]),
            "rank 1: `weight`": t([3.0]),
            "rank 0: result": t([3.0], [1.0], [3.0]),
            "rank 1: result": t([3.0], [1.0], [3.0]),
            "rank 0: gradient of `weight`": t([10.0], [0.0]),
            "rank 1: gradient of `weight`": t([101.0]),
        },
    )


@VocabParallelEmbedding.cases(3)
def _(draw):
    world, D, rows, length = (
        draw(st.integers(low, top)) for low, top in ((2, 3), (1, 3), (1, 3), (1, 4))
    )
    vocab = draw(st.sampled_from([2 * world, 3 * world, 3 * world - 1]))
    yield embedding(world, vocab, D, (rows, length), seed=draw(st.integers(0, 99)))


@VocabParallelEmbedding.edge
def _():
    every = [torch.arange(7).view(1, 7)]
    yield embedding(3, 7, 2, ids=every), "seven rows on three ranks: three, three and one"
    yield embedding(2, 6, 3, (2, 3), (4,)), "two calls, of two axes and of one"
    yield embedding(2, 4, 3, (2, 2, 3)), "ids with three axes"
    yield embedding(2, 4, 2, ids=[t(3, 3, 2)]), "no id of rank 0's"
    yield embedding(4, 5, 2, (2, 3), groups=PAIRS), "two groups that work among themselves"
    yield embedding(2, 5, 3, (2, 4), strided=True), "ids and gradient are not contiguous"
    yield embedding(2, 5, 3, (2, 3), dtype=F64), "float64"
    yield embedding(2, 5, 3, (2, 3), dtype=BF16), "bfloat16"
    yield embedding(2, 5, 3, ids=[torch.zeros(0, 2, dtype=torch.int64)]), "no ids at all"
    yield (
        embedding(2, 4, 2, ids=[t(3, 0, 2, 3)], padding_idx=3),
        "a full embedding with a padding_idx, which does not count",
    )


layer_contracts(
    VocabParallelEmbedding,
    embedding(4, 400, 32, (4, 5)),
    sent=ring(4 * 5 * 32 * 4, 4),
    held=100 * 32 * 4,
    messages="one all-reduce of the result",
)

MASKED = "rows.masked_fill(~mine[..., None], 0.0)"
LOCAL = "(ids - self.start).masked_fill(~mine, 0)"

FOREIGN_ROWS = (
    "Ids of other ranks give some row of yours, and it is added to theirs. Set those rows to zero."
)
CLAMPED = "(ids - self.start).clamp(0, len(self.weight) - 1)"
VocabParallelEmbedding.mistake(FOREIGN_ROWS, replace(MASKED, "rows"))
VocabParallelEmbedding.mistake(FOREIGN_ROWS, replace(MASKED, "rows", LOCAL, CLAMPED))
VocabParallelEmbedding.mistake(
    FOREIGN_ROWS,
    replace(MASKED, "rows", LOCAL, "(ids - self.start) % len(self.weight)"),
)
VocabParallelEmbedding.mistake(
    "The weight passes through CopyToRanks, so that its gradient is summed over ranks that hold other rows. Each rank "
    "already has the whole gradient of its own rows: leave the weight as it is.",
    replace("0), self.weight)", "0), CopyToRanks.apply(self.weight, self.group))"),
)
VocabParallelEmbedding.mistake(
    "Ids of others are looked up as they are: outside of your rows. Put some row that there is in their place, and mask "
    "the result.",
    replace(LOCAL, "ids - self.start"),
)
VocabParallelEmbedding.mistake(
    "You look up an id in your part as if it began at 0: subtract start.",
    replace(LOCAL, "ids.masked_fill(~mine, 0).clamp(max=len(self.weight) - 1)"),
)
VocabParallelEmbedding.mistake(
    "You compare ids from which start was subtracted with stop. Compare the ids themselves, or the difference with the "
    "number of your rows.",
    replace(
        "ids < self.stop",
        "ids - self.start < self.stop",
        LOCAL,
        "(ids - self.start).masked_fill(~mine, 0).clamp(max=len(self.weight) - 1)",
    ),
)
VocabParallelEmbedding.mistake(
    "The result is divided by the number of ranks: one rank has the row, the others add zeros, and nothing is averaged.",
    replace(
        f"return ReduceFromRanks.apply({MASKED}, self.group)",
        f"return ReduceFromRanks.apply({MASKED}, self.group) / dist.get_world_size(self.group)",
    ),
)
VocabParallelEmbedding.mistake(
    "`stop` is the row after your last: an id equal to it is the next rank's.",
    replace(
        "ids < self.stop",
        "ids <= self.stop",
        LOCAL,
        "(ids - self.start).masked_fill(~mine, 0).clamp(max=len(self.weight) - 1)",
    ),
)
VocabParallelEmbedding.mistake(
    "The first of your ids is counted as another's: start itself is yours.",
    replace("ids >= self.start", "ids > self.start"),
)
VocabParallelEmbedding.mistake(
    "You take over the full embedding's `padding_idx`, and its row gets no gradient. Of the full one only the weight counts.",
    replace(
        "rows_of(full.num_embeddings, rank, n)",
        "rows_of(full.num_embeddings, rank, n)\n"
        "        at = full.padding_idx\n"
        "        self.padding = at - self.start if at in range(self.start, self.stop) else None",
        "0), self.weight)",
        "0), self.weight, self.padding)",
    ),
)
VocabParallelEmbedding.mistake(
    "The rows are not summed: each rank has zeros where others have the id.",
    replace(f"ReduceFromRanks.apply({MASKED}, self.group)", MASKED),
)
VocabParallelEmbedding.mistake(
    "The sum is summed backward as well, and the weight's gradient is n times too large: ReduceFromRanks has the "
    "identity there.",
    replace(MASKED, f"CopyToRanks.apply({MASKED}, self.group)"),
)
NOT_ROWS_OF = (
    "Your rows of a vocabulary that n does not divide are not those of `rows_of`: ⌈V / n⌉ for each rank, until none are "
    "left."
)
VocabParallelEmbedding.mistake(
    NOT_ROWS_OF,
    replace(
        "rows_of(full.num_embeddings, rank, n)",
        "(full.num_embeddings // n * rank, "
        "full.num_embeddings if rank == n - 1 else full.num_embeddings // n * (rank + 1))",
    ),
)
VocabParallelEmbedding.mistake(
    NOT_ROWS_OF,
    replace(
        "rows_of(full.num_embeddings, rank, n)",
        "(full.num_embeddings // n * rank + min(rank, full.num_embeddings % n), "
        "full.num_embeddings // n * (rank + 1) + min(rank + 1, full.num_embeddings % n))",
    ),
)
VocabParallelEmbedding.mistake(
    NOT_ROWS_OF,
    replace(
        "rows_of(full.num_embeddings, rank, n)",
        "(full.num_embeddings * rank // n, full.num_embeddings * (rank + 1) // n)",
    ),
)
VocabParallelEmbedding.mistake(
    NOT_TRAINED,
    replace(
        "self.weight = nn.Parameter(full.weight[self.start : self.stop].clone())",
        'self.register_buffer("weight", full.weight.detach()[self.start : self.stop].clone())',
    ),
)
VocabParallelEmbedding.mistake(
    NOT_TRAINED, replace("self.stop].clone())", "self.stop].clone(), requires_grad=False)")
)
VocabParallelEmbedding.mistake(
    "`part_of` refuses a vocabulary that n does not divide. `rows_of` cuts any.",
    replace(
        "self.start, self.stop = rows_of(full.num_embeddings, rank, n)",
        "mine = part_of(full.num_embeddings, group)\n"
        "        self.start, self.stop = mine.start, mine.stop",
    ),
)
for filled in ("masked_fill", "masked_fill_"):
    VocabParallelEmbedding.mistake(
        "You change the caller's ids: `-=`, `ids[…] =` and names that end in `_` work in place. Write to a new tensor.",
        replace(LOCAL, f"ids.sub_(self.start).{filled}(~mine, 0)"),
    )
VocabParallelEmbedding.mistake(
    KEPT_AS_A_PART, replace("self.group = group", "self.group, self.table = group, full")
)
VocabParallelEmbedding.mistake(
    "You round the rows of a rank down: the last ids belong to nobody, and give zeros.",
    replace(
        "rows_of(full.num_embeddings, rank, n)",
        "(full.num_embeddings // n * rank, full.num_embeddings // n * (rank + 1))",
    ),
)
VocabParallelEmbedding.mistake(
    "Your rows are a view of the full table: all of it stays in memory, and a step of the optimizer changes it. Clone "
    "them.",
    replace(".clone())", ")"),
)
VocabParallelEmbedding.mistake(
    "The sum is over all ranks of the job: give ReduceFromRanks the group.",
    replace(", self.group)", ")"),
)
VocabParallelEmbedding.mistake(
    "Rank and number of ranks are those of the job, not of the group.",
    replace(
        "dist.get_rank(group), dist.get_world_size(group)", "dist.get_rank(), dist.get_world_size()"
    ),
)
VocabParallelEmbedding.mistake(
    "You cut the features, not the tokens: every rank has all rows.",
    replace(
        "full.weight[self.start : self.stop]",
        "full.weight.tensor_split(n, dim=1)[rank]",
    ),
)
VocabParallelEmbedding.mistake(
    "You multiply by a mask of one dtype and the result changes its dtype, or you make zeros in float32: take the weight's.",
    replace(MASKED, "(rows * mine[..., None].float())"),
)
VocabParallelEmbedding.mistake(
    "The values are right, but you keep the full table. Keep the rows of this rank.",
    replace("self.group = group", "self.group, self.table = group, [full]"),
    cost=True,
)
VocabParallelEmbedding.mistake(
    "The values are right, but every rank gathers what all others have looked up: n / 2 times the bytes of an all-reduce.",
    replace(
        f"return ReduceFromRanks.apply({MASKED}, self.group)",
        f"out = {MASKED}.contiguous()\n"
        "        parts = [torch.empty_like(out) for _ in range(dist.get_world_size(self.group))]\n"
        "        dist.all_gather(parts, out.detach(), group=self.group)\n"
        "        parts[dist.get_rank(self.group)] = out\n"
        "        return sum(parts)",
    ),
    cost=True,
)
VocabParallelEmbedding.mistake(
    ROW_BY_ROW,
    replace(
        f"return ReduceFromRanks.apply({MASKED}, self.group)",
        f"rows = {MASKED}\n"
        "        return torch.cat([ReduceFromRanks.apply(one, self.group) for one in rows.split(1)])",
    ),
    cost=True,
)


class OneHot(nn.Module):
    def __init__(self, full, group=None):
        super().__init__()
        self.group = group
        n, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.each = -(-full.num_embeddings // n)
        self.weight = nn.Parameter(full.weight.detach().split(self.each)[self.rank].clone())

    def forward(self, ids):
        columns = torch.arange(len(self.weight)) + self.rank * self.each
        hot = (ids[..., None] == columns).to(self.weight.dtype)
        return tensor_parallel.ReduceFromRanks.apply(hot @ self.weight, self.group)


VocabParallelEmbedding.alternative("a one-hot product")(OneHot)


class ScatterRows(nn.Module):
    def __init__(self, full, group=None):
        super().__init__()
        self.group = group
        self.rows = range(
            *rows_of(len(full.weight), dist.get_rank(group), dist.get_world_size(group))
        )
        self.weight = nn.Parameter(full.weight.data[self.rows.start : self.rows.stop].clone())

    def forward(self, ids):
        mine = ids.ge(self.rows.start) & ids.lt(self.rows.stop)
        out = self.weight.new_zeros(*ids.shape, self.weight.shape[1])
        out = out.masked_scatter(mine[..., None], self.weight[ids[mine] - self.rows.start])
        return tensor_parallel.ReduceFromRanks.apply(out, self.group)


VocabParallelEmbedding.alternative("only its own ids are looked up")(ScatterRows)


# ------------------------------------------------------------------------------ vocab_parallel_cross_entropy

vocab_parallel_cross_entropy = Exercise(
    tensor_parallel.vocab_parallel_cross_entropy,
    title="Cross-entropy without all logits",
    difficulty=3,
    minutes=40,
    points=5,
    probe=probes.parallel_loss,
    hints=(
        "The loss is log Σ exp(z) − z of the target. Which (B, T) numbers must the ranks tell one another for that?",
        "Subtract the same number from all logits of a position before exp: the largest of *all* ranks, an all-reduce "
        "with dist.ReduceOp.MAX. It needs no gradient, since it cancels.",
        "Σ exp is a sum over ranks. So is the target's logit: one rank has it, the others give 0. ReduceFromRanks adds up "
        "and leaves the gradient to each rank.",
        "To `gather` the target's logit, put 0 for targets of other ranks, then mask. −100 is nobody's target; its loss "
        "is 0.",
        (
            "contracts",
            "At most three all-reduces of (B, T) numbers; torch.stack makes two of them one. None backward.",
        ),
    ),
)


def losses(
    world,
    vocab,
    B,
    T,
    seed=0,
    dtype=F32,
    groups=None,
    scale=1.0,
    targets=None,
    change=None,
    strided=False,
):
    n = len(groups[0]) if groups else world
    calls = [None] * world
    generator = torch.Generator().manual_seed(seed)
    for k, ranks in enumerate(groups or [range(world)]):
        (whole,) = some((B, T, vocab), seed=seed + k, dtype=F64)
        whole = whole * scale
        if change:
            change(whole, k)
        wanted = torch.randint(vocab, (B, T), generator=generator) if targets is None else targets
        (grad,) = some((B, T), seed=seed + 30)
        for i, rank in enumerate(ranks):
            start, stop = rows_of(vocab, i, n)
            logits = whole[..., start:stop].to(dtype).contiguous()
            calls[rank] = call(
                logits=turned(logits) if strided else logits,
                targets=turned(wanted) if strided else wanted,
                vocab_size=vocab,
                grad=turned(grad) if strided else grad,
                groups=groups,
            )
    return on_ranks(*calls)


@vocab_parallel_cross_entropy.by_hand
def _():
    logits, targets = torch.zeros(1, 2, 2), t([3, -100])
    given = call(logits=logits, targets=targets, vocab_size=4, grad=torch.ones(1, 2), groups=None)
    log4 = torch.log(torch.tensor(4.0)).item()
    yield (
        on_ranks(given, given),
        {
            "rank 0: losses": t([log4, 0.0]),
            "rank 1: losses": t([log4, 0.0]),
            "rank 0: gradient of the logits": t([[0.25, 0.25], [0.0, 0.0]]),
            "rank 1: gradient of the logits": t([[0.25, -0.75], [0.0, 0.0]]),
        },
    )


@vocab_parallel_cross_entropy.cases(3)
def _(draw):
    world, B, T = (draw(st.integers(low, top)) for low, top in ((2, 3), (1, 3), (1, 4)))
    vocab = draw(st.sampled_from([2 * world, 3 * world, 3 * world - 1]))
    yield losses(world, vocab, B, T, seed=draw(st.integers(0, 99)))


def one_large(z, k):
    z[:, :, 0] += 1000.0  # rank 0 has the largest


def nearly_sure(z, k):
    z.zero_()
    z[:, :, 0] = 7.0


def last_large(z, k):
    z[:, :, -1] += 1000.0


def very_low(z, k):
    z -= 1000.0


def apart(z, k):
    z += 1000.0 * k


@vocab_parallel_cross_entropy.edge
def _():
    yield (
        losses(3, 7, 1, 7, targets=torch.arange(7).view(1, 7)),
        "every token of a vocabulary that 3 does not divide",
    )
    yield losses(2, 6, 2, 3, dtype=F64, change=one_large), "rank 0 has by far the largest logits"
    yield (
        losses(2, 6, 2, 3, dtype=F64, change=last_large),
        "the last rank has by far the largest logits",
    )
    yield losses(2, 6, 2, 3, dtype=F64, scale=1000.0), "logits in the thousands"
    yield losses(2, 6, 2, 3, dtype=F64, change=very_low), "all logits are below −900"
    yield (
        losses(2, 6, 2, 2, targets=t([-100, 3], [-100, 0])),
        "nothing to predict at some positions",
    )
    yield losses(2, 6, 1, 2, targets=t([-100, -100])), "nothing to predict at all"
    yield losses(2, 3, 1, 3, targets=t([0, 1, 2])), "three tokens on two ranks: two and one"
    yield (
        losses(4, 5, 2, 3, dtype=F64, groups=PAIRS, change=apart),
        "two groups, one of which has far larger logits",
    )
    yield losses(2, 5, 3, 4, strided=True), "logits, targets and gradient are not contiguous"
    yield losses(2, 6, 2, 3, dtype=F64), "float64"
    yield losses(2, 6, 2, 3, dtype=BF16, scale=4.0), "bfloat16: computed in float32"
    yield (
        losses(2, 6, 1, 2, dtype=BF16, change=nearly_sure, targets=t([0, 0])),
        "bfloat16, and losses of nearly 0",
    )
    yield losses(1, 5, 2, 3), "one rank"


LARGE = losses(4, 400, 4, 8)
vocab_parallel_cross_entropy.contract(
    contracts.sends(
        [LARGE],
        limit=3 * ring(4 * 8 * 4, 4) + 64,
        says="no more bytes than three all-reduces of (B, T) numbers",
        probe=probes.parallel_loss,
    )
)
vocab_parallel_cross_entropy.contract(
    contracts.messages(
        [LARGE],
        limit=3 * messages_of_one(4),
        says="at most three all-reduces",
        probe=probes.parallel_loss,
    )
)

STACKED = "ReduceFromRanks.apply(torch.stack([total, target]), group)"
MAXIMUM = "dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)"

# Many write log Σ + largest − target, and never subtract the largest from the target's logit: the same
# loss, and other numbers once something is wrong.
ADDED_LATER = (
    "target = shifted.gather",
    "target = wide.gather",
    "(total.log() - target)",
    "(total.log() + largest - target)",
)


def in_both_forms(says, *edits):
    """A mistake made in the reference's way to write the loss, and in the other common one."""
    vocab_parallel_cross_entropy.mistake(says, replace(*edits))
    old, new = list(edits[::2]), list(edits[1::2])
    tail = [(o, n) for o, n in zip(old, new, strict=True) if "(total.log() - target)" in o]
    rest = [s for o, n in zip(old, new, strict=True) if (o, n) not in tail for s in (o, n)]
    both = list(ADDED_LATER)
    for o, n in tail:  # its own edit of the result, in the other form
        both[2:] = [o, n.replace(*ADDED_LATER[2:])]
    vocab_parallel_cross_entropy.mistake(says, replace(*both, *rest))


in_both_forms(
    "Each rank subtracts the largest of its own logits: then the sums of exp are in different units and must not be "
    "added. Take the largest of all ranks.",
    MAXIMUM,
    "pass",
)
NOT_DETACHED = (
    "A gradient flows through the largest logit, which each rank takes from its own logits. It cancels in the loss of one "
    "process, and not here: it is a constant, so detach it."
)
in_both_forms(NOT_DETACHED, "wide.detach().amax(-1)", "wide.max(-1).values")
in_both_forms(NOT_DETACHED, "wide.detach().amax(-1)", "wide.amax(-1).clone()")
in_both_forms(
    NOT_DETACHED,
    MAXIMUM,
    "own = wide.max(-1).values\n    " + MAXIMUM + "\n    largest = torch.maximum(own, largest)",
)
in_both_forms(
    "You take the start of this rank's tokens as rank times the size of its own part. The last part may be shorter, and "
    "begins at rank times the size of the others': use `rows_of`.",
    "start, stop = rows_of(vocab_size, dist.get_rank(group), dist.get_world_size(group))",
    "start = dist.get_rank(group) * logits.size(-1)\n    stop = start + logits.size(-1)",
)
vocab_parallel_cross_entropy.mistake(
    "The largest logits of the ranks are added up. All-reduce with dist.ReduceOp.MAX.",
    replace("dist.ReduceOp.MAX", "dist.ReduceOp.SUM"),
)
vocab_parallel_cross_entropy.mistake(
    "exp overflows for large logits, and underflows for very low ones: subtract the largest of the position first.",
    replace("wide - largest[..., None]", "wide - 0 * largest[..., None]"),
)
vocab_parallel_cross_entropy.mistake(
    "You take exp of each rank's logsumexp as it is, and for large logits that is infinite, for very low ones 0. Subtract "
    "the largest logit of all ranks first, and add it after the logarithm.",
    replace(
        "total = shifted.exp().sum(-1)",
        "total = wide.logsumexp(-1).exp()",
        "target = shifted.gather",
        "target = wide.gather",
    ),
)
vocab_parallel_cross_entropy.mistake(
    "The logarithms of the ranks' sums are added up. The sums of exp are added, and then comes the logarithm.",
    replace(
        "total = shifted.exp().sum(-1)",
        "total = shifted.exp().sum(-1).log() + largest / dist.get_world_size(group)",
        "target = shifted.gather",
        "target = wide.gather",
        "(total.log() - target)",
        "(total - target)",
    ),
)
vocab_parallel_cross_entropy.mistake(
    "The logarithms of the ranks' sums are added up. The sums of exp are added, and then comes the logarithm.",
    replace(
        "total = shifted.exp().sum(-1)",
        "total = wide.logsumexp(-1)",
        "target = shifted.gather",
        "target = wide.gather",
        "(total.log() - target)",
        "(total - target)",
    ),
)
vocab_parallel_cross_entropy.mistake(
    "The largest logit is subtracted in the sum of exp, and not from the target's logit. Subtract it from both, or add it "
    "to the logarithm.",
    replace("target = shifted.gather", "target = wide.gather"),
)
vocab_parallel_cross_entropy.mistake(
    "The largest logit is subtracted from the target's logit, and then added to the logarithm as well.",
    replace("(total.log() - target)", "(total.log() + largest - target)"),
)
vocab_parallel_cross_entropy.mistake(
    "The sum of exp is only this rank's. Every rank's part belongs to the denominator.",
    replace(STACKED, "total, ReduceFromRanks.apply(target, group)"),
)
vocab_parallel_cross_entropy.mistake(
    "The target's logit is 0 on the ranks that do not have it: sum it over the ranks as well.",
    replace(STACKED, "ReduceFromRanks.apply(total, group), target"),
)
vocab_parallel_cross_entropy.mistake(
    "The sums are summed backward as well: the gradient is n times too large. ReduceFromRanks has the identity there.",
    replace(STACKED, f"CopyToRanks.apply({STACKED}, group)"),
)
vocab_parallel_cross_entropy.mistake(
    "The sum over ranks is made in place, unseen by autograd and before the logarithm: its derivative then needs the sum "
    "of all ranks. Pass it through ReduceFromRanks.",
    replace(
        "total, target = " + STACKED,
        "target = ReduceFromRanks.apply(target, group)\n"
        "    whole = total.detach().clone()\n"
        "    dist.all_reduce(whole, group=group)\n"
        "    total = total.log() + (whole.log() - total.detach().log())\n"
        "    total = total.exp()",
    ),
)
vocab_parallel_cross_entropy.mistake(
    "Where the target is another rank's you take your logit of token 0. Set it to zero there.",
    replace("[..., 0].masked_fill(~mine, 0.0)", "[..., 0]"),
)
vocab_parallel_cross_entropy.mistake(
    "The target is looked up as if your logits began at token 0: subtract start.",
    replace(
        "(targets - start).masked_fill(~mine, 0)",
        "targets.masked_fill(~mine, 0).clamp(max=logits.size(-1) - 1)",
    ),
)
in_both_forms(
    "A target of −100 means that nothing is to be predicted: its loss is 0, and so is its gradient.",
    "(total.log() - target).masked_fill(targets == -100, 0.0)",
    "(total.log() - target)",
)
NOT_WHERE_ROWS_OF_SAYS = (
    "Your parts of a vocabulary that n does not divide do not begin where `rows_of` says: at rank · ⌈V / n⌉, as long as "
    "there are tokens left."
)
for begins in ("vocab_size // n * rank", "vocab_size * rank // n"):
    for ends in ("start + logits.size(-1)", begins.replace("rank", "(rank + 1)")):
        in_both_forms(
            NOT_WHERE_ROWS_OF_SAYS,
            "start, stop = rows_of(vocab_size, dist.get_rank(group), dist.get_world_size(group))",
            "rank, n = dist.get_rank(group), dist.get_world_size(group)\n"
            f"    start = {begins}\n    stop = {ends}",
            "masked_fill(~mine, 0)[..., None]",
            "masked_fill(~mine, 0).clamp(max=logits.size(-1) - 1)[..., None]",
        )
vocab_parallel_cross_entropy.mistake(
    "You compute in bfloat16. A sum of exp needs float32.",
    replace("logits if logits.dtype == torch.float64 else logits.float()", "logits"),
)
vocab_parallel_cross_entropy.mistake(
    "You bring the losses back to the logits' dtype. They are returned in float32, as they were computed.",
    replace(
        "(total.log() - target).masked_fill(targets == -100, 0.0)",
        "(total.log() - target).masked_fill(targets == -100, 0.0).to(logits.dtype)",
    ),
)
in_both_forms(
    "You compute in bfloat16, and turn only the result into float32. A sum of exp needs float32: turn the logits first.",
    "logits if logits.dtype == torch.float64 else logits.float()",
    "logits",
    "(total.log() - target).masked_fill(targets == -100, 0.0)",
    "(total.log() - target).masked_fill(targets == -100, 0.0)"
    ".to(torch.promote_types(logits.dtype, torch.float32))",
)
vocab_parallel_cross_entropy.mistake(
    "Logits of float64 are rounded to float32: keep what is wider.",
    replace("logits if logits.dtype == torch.float64 else logits.float()", "logits.float()"),
)
vocab_parallel_cross_entropy.mistake(
    "The mean over positions is wanted by the caller, who knows how many count. Return the loss of each position.",
    replace(
        "return (total.log() - target).masked_fill(targets == -100, 0.0)",
        "return (total.log() - target).masked_fill(targets == -100, 0.0).mean().expand(targets.shape)",
    ),
)
vocab_parallel_cross_entropy.mistake(
    "The sign is turned: the loss is log Σ exp minus the target's logit.",
    replace("total.log() - target", "target - total.log()"),
)
vocab_parallel_cross_entropy.mistake(
    "The largest is taken over all ranks of the job: give the group.",
    replace(MAXIMUM, "dist.all_reduce(largest, dist.ReduceOp.MAX)"),
)
vocab_parallel_cross_entropy.mistake(
    "The sums are over all ranks of the job, not over those of the group: give ReduceFromRanks the group.",
    replace(STACKED, "ReduceFromRanks.apply(torch.stack([total, target]))"),
)
LOGITS_GATHERED = (
    "The values are right, but every rank gathers the logits of all: (B, T, V) numbers over the wire and in memory, which "
    "this was to avoid."
)
vocab_parallel_cross_entropy.mistake(
    LOGITS_GATHERED,
    replace(
        "start, stop",
        "begin, end = rows_of(vocab_size, dist.get_rank(group), dist.get_world_size(group))\n"
        "    dist.all_reduce(F.pad(logits.detach().float(), (begin, vocab_size - end)), group=group)\n"
        "    start, stop",
    ),
    cost=True,
)
vocab_parallel_cross_entropy.mistake(
    LOGITS_GATHERED,
    replace(
        "start, stop",
        "n = dist.get_world_size(group)\n"
        "    each = -(-vocab_size // n)\n"
        "    padded = F.pad(logits.detach(), (0, each - logits.size(-1))).contiguous()\n"
        "    parts = [torch.empty_like(padded) for _ in range(n)]\n"
        "    dist.all_gather(parts, padded, group=group)\n"
        "    start, stop",
        MAXIMUM,
        "largest = torch.cat(parts, dim=-1)[..., :vocab_size].to(wide.dtype).amax(-1)",
    ),
    cost=True,
)
vocab_parallel_cross_entropy.mistake(
    "The values are right, but there is an all-reduce backward as well. Each rank already has the whole gradient of the "
    "sum, and its logits are its own.",
    replace(
        STACKED,
        f"CopyToRanks.apply({STACKED}, group) / dist.get_world_size(group) + "
        f"{STACKED}.detach() * (1 - 1 / dist.get_world_size(group))",
    ),
    cost=True,
)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, vocab_size, group):
        n, rank = dist.get_world_size(group), dist.get_rank(group)
        z = logits.to(torch.promote_types(logits.dtype, F32))
        top = z.max(dim=-1).values.contiguous()
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        e = (z - top.unsqueeze(-1)).exp()
        columns = torch.arange(z.shape[-1]) + -(-vocab_size // n) * rank
        hot = targets.unsqueeze(-1) == columns
        both = torch.stack([e.sum(-1), (z * hot).sum(-1)])
        dist.all_reduce(both, group=group)
        keep = targets != -100
        ctx.save_for_backward(e / both[0].unsqueeze(-1), hot, keep)
        ctx.dtype = logits.dtype
        return torch.where(keep, both[0].log() + top - both[1], 0.0)

    @staticmethod
    def backward(ctx, grad):
        p, hot, keep = ctx.saved_tensors
        return ((p - hot.to(p.dtype)) * (grad * keep).unsqueeze(-1)).to(ctx.dtype), None, None, None


@vocab_parallel_cross_entropy.alternative("a Function with its backward by hand")
def _(logits, targets, vocab_size, group=None):
    return _Loss.apply(logits, targets, vocab_size, group)


def wrong_by_hand(says):
    """A mistake in a backward by hand: p, hot, keep and the gradient that comes in → the logits'."""

    def declare(of_logits):
        class Wrong(_Loss):
            @staticmethod
            def backward(ctx, grad):
                p, hot, keep = ctx.saved_tensors
                return of_logits(p, hot.to(p.dtype), keep, grad).to(ctx.dtype), None, None, None

        def answer(logits, targets, vocab_size, group=None):
            return Wrong.apply(logits, targets, vocab_size, group)

        vocab_parallel_cross_entropy.mistake(says)(answer)
        return of_logits

    return declare


@wrong_by_hand(
    "Backward forgets the gradient that comes in: multiply by it, position by position. It is 1 only for a plain sum."
)
def _(p, hot, keep, grad):
    return (p - hot) * keep[..., None]


@wrong_by_hand(
    "You write into a `reshape` in backward. Where strides allow no view it is a copy, and what you write is lost. Write "
    "into the tensor itself, or go on with the copy."
)
def _(p, hot, keep, grad):
    p = p.clone()
    p.reshape(-1, p.size(-1)).sub_(hot.reshape(-1, p.size(-1)))
    return p * (grad * keep)[..., None]


@wrong_by_hand(
    "Backward does not leave out the positions without a target: where it is −100, the logits' gradient is 0."
)
def _(p, hot, keep, grad):
    return (p - hot) * grad[..., None]


@wrong_by_hand(
    "Backward gives the probabilities only. The derivative of log Σ exp(z) − z of the target is p, minus 1 at the target."
)
def _(p, hot, keep, grad):
    return p * (grad * keep)[..., None]


@wrong_by_hand(
    "Backward divides by the number of positions. The losses are not averaged here: the gradient that comes in says how "
    "much each counts."
)
def _(p, hot, keep, grad):
    return (p - hot) * (grad * keep)[..., None] / keep.numel()


@vocab_parallel_cross_entropy.alternative("logsumexp of each rank, then of those")
def _(logits, targets, vocab_size, group=None):
    start, stop = rows_of(vocab_size, dist.get_rank(group), dist.get_world_size(group))
    z = logits.double() if logits.dtype == F64 else logits.float()
    mine = torch.logsumexp(z, dim=-1)
    top = mine.detach().clone()
    dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
    whole = tensor_parallel.ReduceFromRanks.apply((mine - top).exp(), group).log() + top
    inside = (targets >= start) & (targets < stop)
    index = torch.where(inside, targets - start, 0)
    here = torch.where(inside, z.gather(-1, index.unsqueeze(-1)).squeeze(-1), 0.0)
    at = tensor_parallel.ReduceFromRanks.apply(here, group)
    return torch.where(targets == -100, torch.zeros_like(whole), whole - at)


# ------------------------------------------------------------------------------ GatheredLinear

GatheredLinear = Exercise(
    tensor_parallel.GatheredLinear,
    title="A linear layer whose input is cut by positions",
    difficulty=3,
    minutes=40,
    points=5,
    probe=probes.gathered_linear,
    hints=(
        "`gather_sequence(x, group)` is the whole input. Save x, not what you gathered.",
        "G is the gradient of the result, (B, T, out / n). G W is this rank's term of the gradient of all positions: sum "
        "over the ranks, keep your own positions. Which function does both?",
        "The weight's gradient needs the whole input again: gather a second time. With rows for batch and positions, it "
        "is Gᵀ X, and the bias's is the sum of G's rows.",
        "ctx.save_for_backward takes tensors; whether there is a bias goes on ctx as a bool, and so does the group.",
        ("contracts", "Three collectives: all-gather; reduce-scatter, all-gather."),
    ),
)


def gathered(
    world,
    B,
    each,
    n_in,
    n_out,
    seed=0,
    dtype=F32,
    bias=True,
    groups=None,
    strided=False,
    then=False,
):
    """each: positions of each rank. n_out: features of each rank."""
    xs = some(*[(B, each, n_in)] * world, seed=seed, dtype=dtype)
    weights = some(*[(n_out, n_in)] * world, seed=seed + 1, dtype=dtype)
    biases = some(*[(n_out,)] * world, seed=seed + 2, dtype=dtype)
    n = len(groups[0]) if groups else world
    grads = some(*[(B, n * each, n_out)] * world, seed=seed + 3, dtype=dtype)
    if strided:
        xs, grads = list(map(turned, xs)), list(map(turned, grads))
    more = {"then": some((1, n_in), seed=seed + 4, dtype=dtype)[0]} if then else {}
    return on_ranks(
        *[
            call(
                x=xs[r],
                weight=weights[r],
                bias=biases[r] if bias else None,
                grad=grads[r],
                groups=groups,
                **more,
            )
            for r in range(world)
        ]
    )


@GatheredLinear.by_hand
def _():
    yield (
        on_ranks(
            *[
                call(x=t([[x]]), weight=t([w]), bias=t(b), grad=t([[1.0], [10.0]]), groups=None)
                for x, w, b in ((1.0, 2.0, 0.5), (3.0, 5.0, 0.0))
            ]
        ),
        {
            "rank 0: y": t([[2.5], [6.5]]),
            "rank 1: y": t([[5.0], [15.0]]),
            "rank 0: gradient of x": t([[7.0]]),
            "rank 1: gradient of x": t([[70.0]]),
            "rank 0: gradient of weight": t([31.0]),
            "rank 1: gradient of bias": t(11.0),
        },
    )


@GatheredLinear.cases(3)
def _(draw):
    world = draw(st.integers(2, 3))
    sizes = [draw(st.integers(1, 3)) for _ in range(4)]
    yield gathered(world, *sizes, bias=draw(st.booleans()), seed=draw(st.integers(0, 99)))


@GatheredLinear.edge
def _():
    yield (
        gathered(3, 2, 2, 4, 3),
        "a batch of two: its positions must not be mixed with the other's",
    )
    yield gathered(2, 2, 3, 2, 4, bias=False), "no bias"
    yield gathered(4, 2, 2, 3, 2, groups=PAIRS), "two groups that work among themselves"
    yield gathered(2, 3, 2, 3, 4, strided=True), "x and the gradient are not contiguous"
    yield gathered(2, 2, 2, 3, 2, then=True), "two calls: the second comes back first"
    yield gathered(2, 2, 2, 3, 2, dtype=F64), "float64"
    yield gathered(2, 2, 2, 3, 2, dtype=BF16), "bfloat16"


LONG = gathered(4, 2, 16, 64, 4)
GatheredLinear.contract(
    contracts.sends(
        [LONG],
        limit=3 * 3 * 2 * 16 * 64 * 4 + 512,
        says="two all-gathers and a reduce-scatter of (B, T, in) numbers",
        probe=probes.gathered_linear,
    )
)
GatheredLinear.contract(
    contracts.messages(
        [LONG],
        limit=3 * 3,
        says="no more messages than these three",
        probe=probes.gathered_linear,
    )
)
GatheredLinear.contract(
    contracts.resident(
        [LONG],
        limit=2 * 64 * 4 * 4 + 2 * 16 * 64 * 4 + 2048,
        says="between the two passes nothing of (B, T, in) numbers is alive",
        probe=probes.gathered_linear_between,
    )
)

OF_X = "reduce_scatter_sequence(grad @ weight, ctx.group)"
AGAIN = "gather_sequence(x, ctx.group)"

GatheredLinear.mistake(
    "x's gradient has only this rank's term: every rank used all positions, for its own features. Reduce-scatter.",
    replace(OF_X, "(grad @ weight)[:, part_of(grad.size(1), ctx.group)].contiguous()"),
)
GatheredLinear.mistake(
    "x's gradient is of all positions; x has this rank's.",
    replace(OF_X, "grad @ weight"),
)
GatheredLinear.mistake(
    "The weight's gradient sees only this rank's positions. All positions went through the weight: gather x again.",
    replace(
        "rows.T @ gather_sequence(x, ctx.group).flatten(0, 1)",
        "grad[:, part_of(grad.size(1), ctx.group)].flatten(0, 1).T @ x.flatten(0, 1)",
    ),
)
GatheredLinear.mistake(
    "The weight's gradient is summed over the ranks. Each rank's weight is another part of the layer, and the gathered "
    "input has all positions: it is whole as it is.",
    replace(
        "return of_x, of_weight",
        "dist.all_reduce(of_weight, group=ctx.group)\n        return of_x, of_weight",
    ),
)
GatheredLinear.mistake(
    "The bias gets no gradient: it is the sum of the incoming gradient over batch and positions.",
    replace(
        "rows.sum(0) if ctx.has_bias else None",
        "torch.zeros_like(rows[0]) if ctx.has_bias else None",
    ),
)
GatheredLinear.mistake(
    "The bias is not added forward.",
    replace(
        "F.linear(gather_sequence(x, group), weight, bias)",
        "F.linear(gather_sequence(x, group), weight)",
    ),
)
GatheredLinear.mistake(
    "x's gradient is multiplied by the number of ranks. The reduce-scatter has summed over them already.",
    replace(OF_X, OF_X + " * dist.get_world_size(ctx.group)"),
)
for mean in ("rows.mean(0)", "grad.sum(0).mean(0)", "grad.sum(1).mean(0)"):
    GatheredLinear.mistake(
        "The bias's gradient is averaged. The bias was added to every row and position: sum over both.",
        replace("rows.sum(0)", mean),
    )
GatheredLinear.mistake(
    "The bias's gradient counts this rank's positions only. The bias was added to all of them.",
    replace("rows.sum(0)", "grad[:, part_of(grad.size(1), ctx.group)].sum((0, 1))"),
)
GatheredLinear.mistake(
    "The sequences are joined along the batch: gathered tensors lie one under the other, and must be put side by side "
    "along positions.",
    replace(
        "F.linear(gather_sequence(x, group), weight, bias)",
        "F.linear(gather_sequence(x, group).unflatten(1, (dist.get_world_size(group), -1)).transpose(0, 1)"
        ".reshape(len(x), -1, x.size(2)), weight, bias)",
    ),
)
GatheredLinear.mistake(
    "x's gradient is averaged over the ranks. It is a sum: the ranks have parts of the features, not of the batch.",
    replace(OF_X, OF_X + " / dist.get_world_size(ctx.group)"),
)
GatheredLinear.mistake(
    "The group is not used everywhere: forward and backward gather and sum over the ranks of the group, so keep it on ctx.",
    replace("gather_sequence(x, group)", "gather_sequence(x)"),
)
GatheredLinear.mistake(
    "The group is not used everywhere: forward and backward gather and sum over the ranks of the group, so keep it on ctx.",
    replace("ctx.group, ctx.has_bias = group,", "ctx.group, ctx.has_bias = None,"),
)
GatheredLinear.mistake(
    "You assume that there is a bias.",
    replace("rows.sum(0) if ctx.has_bias else None", "rows.sum(0)"),
)
GatheredLinear.mistake(
    "A gradient need not be contiguous, and `view` raises then: flatten or reshape copies where it must.",
    replace("grad.flatten(0, 1)", "grad.view(-1, grad.size(-1))"),
)
GatheredLinear.mistake(
    "What a call leaves for its own backward is kept on the class: a second call overwrites it. It belongs on ctx.",
    replace(
        "ctx.save_for_backward(x, weight)",
        "ctx.save_for_backward(x, weight)\n        GatheredLinear.kept = x, weight",
        "x, weight = ctx.saved_tensors",
        "x, weight = GatheredLinear.kept",
    ),
)
GatheredLinear.mistake(
    "The values are right, but the gathered input is kept for backward: as many activations as without sequence "
    "parallelism. Keep x, and gather again.",
    replace(
        "ctx.save_for_backward(x, weight)",
        "ctx.whole = gather_sequence(x, group)\n        ctx.save_for_backward(x, weight)",
        "F.linear(gather_sequence(x, group), weight, bias)",
        "F.linear(ctx.whole, weight, bias)",
        AGAIN,
        "ctx.whole",
    ),
    cost=True,
)
GatheredLinear.mistake(
    "The values are right, but you all-reduce the gradient of all positions and keep your own: twice the bytes of a "
    "reduce-scatter.",
    replace(
        OF_X,
        "(grad @ weight).contiguous()\n"
        "        dist.all_reduce(of_x, group=ctx.group)\n"
        "        of_x = of_x[:, part_of(of_x.size(1), ctx.group)].contiguous()",
    ),
    cost=True,
)
for once, each in (
    (OF_X, "[reduce_scatter_sequence(one, ctx.group) for one in (grad @ weight).split(1)]"),
    (AGAIN, "[gather_sequence(one, ctx.group) for one in x.split(1)]"),
    ("gather_sequence(x, group)", "[gather_sequence(one, group) for one in x.split(1)]"),
):
    GatheredLinear.mistake(
        "The values are right, but you gather, or reduce-scatter, sequence by sequence. One call takes "
        "the whole batch, in as many messages as one sequence.",
        replace(once, f"torch.cat({each})"),
        cost=True,
    )


class ByLists(torch.autograd.Function):
    @staticmethod
    def whole(x, group):
        parts = [torch.empty(x.shape, dtype=x.dtype) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def forward(ctx, x, weight, bias, group=None):
        ctx.save_for_backward(x, weight, bias)
        ctx.group = group
        y = torch.einsum("bti,oi->bto", ByLists.whole(x, group), weight)
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        terms = torch.einsum("bto,oi->bti", grad, weight)
        mine = torch.empty(x.shape, dtype=x.dtype)
        n = dist.get_world_size(ctx.group)
        dist.reduce_scatter(mine, [c.contiguous() for c in terms.chunk(n, 1)], group=ctx.group)
        of_weight = torch.einsum("bto,bti->oi", grad, ByLists.whole(x, ctx.group))
        return mine, of_weight, None if bias is None else grad.sum((0, 1)), None


GatheredLinear.alternative("einsum, and collectives of lists of tensors")(ByLists)


class WithAutograd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, group=None):
        ctx.inputs, ctx.where = (x.detach(), weight.detach(), bias), group
        return F.linear(tensor_parallel.gather_sequence(x, group), weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias = ctx.inputs
        with torch.enable_grad():
            whole = tensor_parallel.gather_sequence(x, ctx.where).requires_grad_()
            weight = weight.clone().requires_grad_()
            shift = None if bias is None else bias.detach().clone().requires_grad_()
            y = F.linear(whole, weight, shift)
        wanted = [v for v in (whole, weight, shift) if v is not None]
        of_whole, *rest = torch.autograd.grad(y, wanted, grad)
        mine = tensor_parallel.reduce_scatter_sequence(of_whole, ctx.where)
        return (mine, *rest, *[None] * (3 - len(rest)))


GatheredLinear.alternative("recomputed, and differentiated by autograd")(WithAutograd)


CopyToRanks.equivalent(
    "CopyToRanks.forward: `x.view_as(x)` → `x`",
    because="autograd makes a view of an input that a Function returns as it is",
)
vocab_parallel_cross_entropy.equivalent(
    "vocab_parallel_cross_entropy: `shifted.gather(-1, at)[..., 0]` → `shifted.gather(-1, at)[..., -1]`",
    because="the last axis has one element, which is both its first and its last",
)
GatheredLinear.equivalent(
    "GatheredLinear.backward: `rows.sum(0)` → `rows`",
    because="autograd sums a gradient that has more axes than its input over them",
)
