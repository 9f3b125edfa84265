"""Exercises of chapter 17, DDP: the same start, averaged gradients, buckets, the wrapper, files."""
# mypy: ignore-errors
# (mistakes are written as students write them, and all classes of theirs are called _)

from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from hypothesis import strategies as st
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd import Variable

from course_utils.grading import Exercise, call, contracts, draws, on_ranks, probes, replace
from course_utils.reference import ddp

WORLDS = st.integers(1, 4)
F16, F32, F64 = torch.float16, torch.float32, torch.float64


def t(*values, dtype=F32):
    return torch.tensor(values, dtype=dtype)


def params(*steps, shapes, dtypes=None, **more):
    """One rank's call for the probes that make parameters, float32 unless told otherwise."""
    like = [torch.empty(0, dtype=dtype) for dtype in dtypes or [F32] * len(shapes)]
    return call(*steps, shapes=shapes, like=like, **more)


def every_rank(world, make):
    """The case of one call on each of `world` ranks: make(rank)."""
    return on_ranks(*(make(rank) for rank in range(world)))


# ------------------------------------------------------------------------------ broadcast_parameters

broadcast_parameters = Exercise(
    ddp.broadcast_parameters,
    title="The same start",
    difficulty=1,
    minutes=10,
    points=1,
    probe=probes.started_apart,
    hints=(
        "`module.parameters()` and `module.buffers()` are all there is; `dist.broadcast(tensor, src)` "
        "fills the tensor on every rank.",
        "torch refuses in-place changes of a leaf that requires grad: `@torch.no_grad()`, or `t.detach()`.",
        (
            "edge cases",
            "Collectives want contiguous tensors: broadcast `t.contiguous()` and copy it back with `t.copy_`.",
        ),
    ),
)


def apart(world, model, **more):
    return every_rank(world, lambda r: call(model=model, seed=10 + r, **more))


@broadcast_parameters.by_hand
def _():
    rows = t(1.0, 2.0)[None], t(3.0, 4.0)[None]
    for src in (0, 1):
        case = [call(model="Linear(2, 1)", seed=r, weight=rows[r], src=src) for r in range(2)]
        yield on_ranks(*case), {f"rank {r}: `weight`": rows[src] for r in range(2)}


@broadcast_parameters.cases(8)
def _(draw):
    world = draw(WORLDS)
    model = draw(st.sampled_from(["three layers", "BatchNorm", "buffers that change"]))
    yield apart(world, model, src=draw(st.integers(0, world - 1)))


@broadcast_parameters.edge
def _():
    yield apart(3, "BatchNorm", src=2), "buffers, and a source that is not rank 0"
    yield apart(2, "buffers that change"), "a buffer that is not in the state_dict"
    yield apart(2, "a frozen layer"), "frozen parameters"
    yield apart(2, "two layers with one weight"), "a parameter that two layers share"
    yield (
        apart(2, "many dtypes and strides", src=1),
        "memory with gaps, empty, bool, and numbers that no float32 holds",
    )
    yield apart(1, "BatchNorm"), "a world of one"


EVERYTHING = "[*module.parameters(), *module.buffers()]"

broadcast_parameters.mistake(
    "The buffers stay as they were on each rank: running statistics and tables are part of the model too.",
    replace(EVERYTHING, "module.parameters()"),
)
broadcast_parameters.mistake(
    "You go by the state_dict, which leaves out buffers registered with persistent=False.",
    replace(EVERYTHING, "module.state_dict().values()"),
)
broadcast_parameters.mistake(
    "Buffers of integers and bools are left out. Counters, masks and tables of positions are part of the model too.",
    replace("*module.buffers()", "*(b for b in module.buffers() if b.is_floating_point())"),
)
broadcast_parameters.mistake(
    "Frozen parameters are left out. They do not train, but all ranks must compute with the same ones.",
    replace("*module.parameters()", "*(p for p in module.parameters() if p.requires_grad)"),
)
broadcast_parameters.mistake(
    "You always send from rank 0: `src` says which rank's values count.", replace(", src)", ", 0)")
)


EACH = f"for t in {EVERYTHING}:\n        "
ALL = f"_broadcast({EVERYTHING}, src)"
broadcast_parameters.mistake(
    "The buffers always come from rank 0: `src` says which rank's values count, of buffers too.",
    replace(ALL, "_broadcast(module.parameters(), src)\n    _broadcast(module.buffers(), 0)"),
)
broadcast_parameters.mistake(
    "You average the ranks' values. The mean of several initialisations is another one, of smaller "
    "variance: copy rank src's.",
    replace(
        ALL,
        EACH + "whole = t.detach().double().contiguous()\n"
        "        dist.all_reduce(whole)\n"
        "        t.detach().copy_(whole / dist.get_world_size())",
    ),
)
for in_new_memory in (
    "whole = t.detach().clone(memory_format=torch.contiguous_format)\n"
    "        dist.broadcast(whole, src)\n"
    "        t.data = whole",
    "t.data = t.detach().contiguous()\n        dist.broadcast(t.detach(), src)",
):
    broadcast_parameters.mistake(
        "Tensors got new memory (`.data = …`). An optimizer's flat buffer, or a view that somebody holds, goes "
        "on with the old values: copy in place.",
        replace(ALL, EACH + in_new_memory),
    )
broadcast_parameters.mistake(
    "You hand over tensors whose memory has gaps, or another order than on other ranks. gloo sends and fills "
    "memory as it lies, without a word: broadcast a contiguous copy, and copy it back.",
    replace(ALL, EACH + "dist.broadcast(t.detach(), src)"),
)
broadcast_parameters.mistake(
    "You broadcast a contiguous copy of what has gaps or is transposed, and the copy is thrown away: put what it "
    "received back with `t.copy_`.",
    replace(ALL, EACH + "dist.broadcast(t.detach().contiguous(), src)"),
)
broadcast_parameters.mistake(
    "Everything travels as float32: float64 loses half of its digits, and an int64 above 2²⁴ is rounded. "
    "Each tensor travels in its own dtype.",
    replace(
        ALL,
        EACH + "whole = t.detach().float().contiguous()\n"
        "        dist.broadcast(whole, src)\n"
        "        t.detach().copy_(whole)",
    ),
)
broadcast_parameters.mistake(
    "You join tensors of several dtypes in a flat one. It has one dtype, to which `cat` promotes: an int64 that "
    "this cannot hold comes out rounded. Make one for each dtype.",
    replace(
        ALL,
        f"every = [t.detach() for t in {EVERYTHING}]\n"
        "    flat = torch.cat([t.flatten() for t in every])\n"
        "    dist.broadcast(flat, src)\n"
        "    for t, new in zip(every, flat.split([t.numel() for t in every])):\n"
        "        t.copy_(new.view(t.shape))",
    ),
)
broadcast_parameters.mistake(
    "Only rank `src` calls broadcast. It is a collective: the others receive by calling it too.",
    replace("    _broadcast", "    if dist.get_rank() == src:\n        _broadcast"),
)


@broadcast_parameters.alternative("one object broadcast: the whole state, pickled")
def _(module, src=0):
    tensors = [*module.parameters(), *module.buffers()]
    box = [[x.detach().clone() for x in tensors]]
    dist.broadcast_object_list(box, src)
    with torch.no_grad():
        for x, value in zip(tensors, box[0], strict=True):
            x.copy_(value)


# ------------------------------------------------------------------------------ average_gradients

average_gradients = Exercise(
    ddp.average_gradients,
    title="Averaged gradients",
    difficulty=1,
    minutes=15,
    points=2,
    probe=probes.averaged,
    hints=(
        "`dist.all_reduce(tensor)` leaves the sum over all ranks in the tensor, on every rank.",
        (
            "random cases",
            "Every rank must call as many all-reduces, of the same shapes, in the same order. What does a "
            "rank do that has no gradient where another has one?",
        ),
        "Divide first, then all-reduce; `torch.zeros_like(p)` where `p.grad is None`; skip only what "
        "does not require grad.",
    ),
)


SHAPES = ((2,), (3, 2), (4,), (1,), (2, 1, 3), (0,), ())


def grads_of(draw, shapes, dtypes):
    """For each parameter a gradient or, one time in five, None."""
    drawn = [draw(draws.tensors(*one)) for one in zip(shapes, dtypes, strict=True)]
    return [draw(st.sampled_from([None, *[grad] * 4])) for grad in drawn]


def frozen_of(draw, shapes):
    return [i for i in range(len(shapes)) if draw(st.integers(0, 5)) == 0]


def averaging(shapes, *grads, **more):
    """A case: grads are those of rank 0, of rank 1 and so on, of parameters of these shapes."""
    return on_ranks(*(params(shapes=shapes, grads=mine, **more) for mine in grads))


@average_gradients.by_hand
def _():
    for first, mean in ((t(1.0, 2.0), t(2.0, 4.0)), (None, t(1.5, 3.0))):
        case = averaging([(2,)], [first], [t(3.0, 6.0)])
        yield case, {f"rank {r}: gradient of parameter 0": mean for r in range(2)}


@average_gradients.cases(12)
def _(draw):
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    dtypes = [draw(st.sampled_from([F32, F64]))] * len(shapes)
    grads = [grads_of(draw, shapes, dtypes) for _ in range(draw(WORLDS))]
    yield averaging(shapes, *grads, dtypes=dtypes, frozen=frozen_of(draw, shapes))


TURNED, STRAIGHT = torch.arange(6.0).view(2, 3).T, torch.arange(6.0).view(3, 2)
BIG = t(40000.0, 1.0, dtype=F16)


@average_gradients.edge
def _():
    own = [[t(1.0, r) if i == r else None for i in range(3)] for r in range(3)]
    yield averaging([(2,)] * 3, *own), "each rank has another parameter's gradient only"
    all_of_them = [[t(r, i) for i in range(3)] for r in range(2)]
    yield averaging([(2,)] * 3, *all_of_them, frozen=[1]), "a frozen parameter"
    some = [[None if i == 1 else t(r, i) for i in range(3)] for r in range(2)]
    yield averaging([(2,)] * 3, *some, frozen=[1]), "a frozen parameter without gradient"
    yield averaging([(3,)], [None], [None]), "nobody has a gradient"
    big = averaging([(2,)], *[[BIG]] * 4, dtypes=[F16])
    yield big, "float16: the sum of the four would be infinite"
    yield averaging([(3, 2)], [TURNED], [TURNED]), "a transposed gradient"
    one = averaging([(3, 2)], [STRAIGHT], [TURNED])
    yield one, "a gradient that is transposed in memory on one rank only"
    exact = [t(1.0 + 2**-40, 1e30, dtype=F64), t(2.0), t(5.0, 2.0**-20, dtype=F16)]
    three = averaging([(2,), (1,), (2,)], exact, exact, dtypes=[F64, F32, F16])
    yield three, "three dtypes, and numbers that only float64 holds"
    yield averaging([(2,)], [t(1.0, 2.0)]), "a world of one"


def sent_once(case):
    """Bytes of rank 0's gradients."""
    return sum(grad.nbytes for grad in case.calls[0].kwargs["grads"])


LARGE = [
    averaging([(64,), (32, 4)], *[[torch.full((64,), 1.0), torch.ones(32, 4)]] * world)
    for world in (2, 4)
]
HALVES = [torch.ones(64, dtype=F16), torch.ones(32, 4, dtype=F16)]
LARGE.append(averaging([(64,), (32, 4)], HALVES, HALVES, dtypes=[F16, F16]))
average_gradients.contract(
    contracts.sends(
        LARGE,
        limit=lambda case: 2 * (case.world - 1) * sent_once(case) // case.world + 256,
        says="no rank sends more than an all-reduce of each gradient does",
        probe=probes.averaged,
    )
)
average_gradients.mistake(
    "The gradients are summed, not averaged: the step would grow with the number of ranks.",
    replace("grad.div(dist.get_world_size())", "grad.clone()"),
)
average_gradients.mistake(
    "You divide twice: before the all-reduce and after it.",
    replace("p.grad = mean", "p.grad = mean / dist.get_world_size()"),
)
average_gradients.mistake(
    "A rank that has no gradient stays out. The others wait for it, or their message meets that of "
    "another parameter: take part with zeros.",
    replace(
        "if p.requires_grad:",
        "if p.grad is not None:",
        "torch.zeros_like(p) if p.grad is None else p.grad",
        "p.grad",
    ),
)
average_gradients.mistake(
    "You divide after the sum (and so does ReduceOp.AVG). In float16 the sum of a few gradients may be "
    "infinite although their mean is not: divide first.",
    replace(
        "grad.div(dist.get_world_size())",
        "grad.clone()",
        "= mean",
        "= mean / dist.get_world_size()",
    ),
)
average_gradients.mistake(
    "The ranks send in different orders: what arrives is another parameter's gradient, and of another "
    "size at times. The order must not depend on the rank.",
    replace("in params:", "in list(params)[:: -1 if dist.get_rank() % 2 else 1]:"),
)
TWICE = (
    "The means never get into the gradients: either they are in a copy that is not put back into p.grad, or "
    "`params`, which may be a generator, was used up by an earlier loop, and nothing was averaged. Make a list "
    "of it first."
)
average_gradients.mistake(
    TWICE,
    replace("in params:", "in list(params)[:0]:"),
)
average_gradients.mistake(
    TWICE + " The zeros of a parameter without gradient are all that is new.",
    replace(
        "    for p in params:\n",
        "    for p in params:\n"
        "        if p.requires_grad and p.grad is None:\n"
        "            p.grad = torch.zeros_like(p)\n"
        "    for p in params:\n",
    ),
)
average_gradients.mistake(
    "The zeros that stand in for a gradient are float32, whatever the parameter is: torch.zeros_like(p) has its "
    "dtype, and lies on its device.",
    replace("torch.zeros_like(p)", "torch.zeros(p.shape)"),
)
average_gradients.mistake(
    "You divide by the number of ranks that have a gradient. The others saw samples too, on which the "
    "gradient is zero.",
    replace(
        "            mean =",
        "            have = torch.tensor(float(p.grad is not None))\n"
        "            dist.all_reduce(have)\n"
        "            mean =",
        "grad.div(dist.get_world_size())",
        "grad.div(have.clamp(min=1).to(grad.dtype))",
    ),
)
average_gradients.mistake(
    "The mean reaches rank 0 only: `reduce` leaves the others with what they had.",
    replace(
        "all_reduce(mean)",
        "reduce(mean, 0)",
        "p.grad = mean",
        "p.grad = mean if dist.get_rank() == 0 else grad",
    ),
)
average_gradients.mistake(
    "Every rank gets every rank's gradient, and averages by itself: right, but each rank sends and holds "
    "(n-1) gradients, where an all-reduce sends 2(n-1)/n.",
    replace(
        "            dist.all_reduce(mean)\n            p.grad = mean",
        "            parts = [torch.empty_like(mean) for _ in range(dist.get_world_size())]\n"
        "            dist.all_gather(parts, mean)\n"
        "            p.grad = torch.stack(parts).sum(0).to(mean.dtype)",
    ),
    cost=True,
)


average_gradients.mistake(
    "You hand over gradients as they lie in memory: one that is transposed on one rank only meets the others' "
    "in another order. Make them contiguous first.",
    replace(".contiguous()", ""),
)
average_gradients.mistake(
    "A frozen parameter that has a gradient, from before it was frozen, is averaged. Frozen ones are left alone: "
    "ask for requires_grad.",
    replace("if p.requires_grad:", "if p.requires_grad or p.grad is not None:"),
)
average_gradients.mistake(
    "The gradients travel as float32, those of 16 bits too: twice the bytes. Each travels in its own dtype.",
    replace(
        "dist.all_reduce(mean)",
        "mean = mean.to(torch.promote_types(mean.dtype, torch.float32))\n"
        "            dist.all_reduce(mean)",
        "p.grad = mean",
        "p.grad = mean.to(grad.dtype)",
    ),
    cost=True,
)
average_gradients.mistake(
    "A parameter without gradient takes part with zeros, and is then left without the mean: where another rank "
    "has a gradient of it, it has one afterwards too.",
    replace("p.grad = mean", "p.grad = mean if p.grad is not None else None"),
)
average_gradients.mistake(
    "Frozen parameters get a gradient. They are left alone.",
    replace("if p.requires_grad:", "if True:"),
)
average_gradients.mistake(
    "The gradients travel as float32: those of float64 lose half of their digits, and may not fit.",
    replace(
        "all_reduce(mean)",
        "all_reduce(mean := mean.float())",
        "p.grad = mean",
        "p.grad = mean.to(grad.dtype)",
    ),
)


@average_gradients.alternative("one flat all-reduce for each dtype, in place")
def _(params):
    by_dtype = {}
    for p in params:
        if p.requires_grad:
            by_dtype.setdefault(p.dtype, []).append(p)
    for same in by_dtype.values():
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in same]
        flat = torch.cat([g.reshape(-1) for g in grads]) / dist.get_world_size()
        dist.all_reduce(flat)
        for p, part in zip(same, flat.split([g.numel() for g in grads]), strict=True):
            p.grad = part.view(p.shape)


@average_gradients.alternative("all started, then all waited for")
def _(params):
    started = []
    for p in params:
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad.contiguous()
            p.grad /= dist.get_world_size()
            started.append(dist.all_reduce(p.grad, async_op=True))
    for work in started:
        work.wait()


# ------------------------------------------------------------------------------ GradientBuckets

GradientBuckets = Exercise(
    ddp.GradientBuckets,
    title="Buckets",
    difficulty=2,
    minutes=30,
    points=3,
    probe=probes.bucketed,
    hints=(
        "Fill buckets while you walk through the parameters from the last to the first; keep one that "
        "is being filled for each dtype.",
        "`start` makes one flat tensor (`torch.cat` of the flattened gradients), divides it, starts "
        "`dist.all_reduce(flat, async_op=True)` and remembers (bucket, flat, work).",
        (
            "random cases",
            "`finish` waits for each work, cuts the flat tensor with `split` and copies the parts into the "
            "gradients. Then it forgets them: the next backward starts new ones.",
        ),
    ),
)


def buckets_case(world, shapes, steps, **more):
    """steps: for each rank a list of (grads, chosen buckets)."""
    return on_ranks(*(params(*steps[r], shapes=shapes, **more) for r in range(world)))


@GradientBuckets.by_hand
def _():
    def grads(r):
        return [t(1.0 + r), t(2.0, 2.0), t(1.0, 2.0, 3.0 + 2 * r)]

    case = buckets_case(2, [(1,), (2,), (3,)], [[(grads(r), None)] for r in (0, 1)], cap_bytes=16)
    yield (
        case,
        {
            "rank 0: buckets": [[2, 1], [0]],  # 12 bytes, 20 bytes: full; then the last
            "rank 1: gradient of parameter 0 after step 1": t(1.5),
            "rank 1: gradient of parameter 2 after step 1": t(1.0, 2.0, 4.0),
        },
    )


@GradientBuckets.cases(10)
def _(draw):
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6))
    dtypes = [draw(st.sampled_from([F32, F32, F64])) for _ in shapes]
    more = {"dtypes": dtypes, "frozen": frozen_of(draw, shapes)}
    more["cap_bytes"] = draw(st.sampled_from([1, 8, 16, 24, 40, 1000]))
    world = draw(WORLDS)
    steps = [[(grads_of(draw, shapes, dtypes), None) for _ in "ab"] for _ in range(world)]
    yield buckets_case(world, shapes, steps, **more)


def two_by_two(world, steps, **more):
    """Four parameters of eight bytes each; gradients that tell rank, parameter and step apart."""

    def grads(r, step):
        return [t(r + i, 10.0 * step + i) for i in range(4)]

    each = [[(grads(r, s), chosen) for s, chosen in enumerate(steps)] for r in range(world)]
    return buckets_case(world, [(2,)] * 4, each, **more)


@GradientBuckets.edge
def _():
    yield two_by_two(2, [None], cap_bytes=16), "a bucket that holds exactly the cap is full"
    yield two_by_two(2, [None], cap_bytes=17), "one byte short of full: one more goes in"
    yield two_by_two(3, [None, None, None], cap_bytes=8), "three backwards, one after the other"
    yield two_by_two(2, [[1], [0]], cap_bytes=16), "one bucket is started, the other is not"
    yield two_by_two(2, [[], None], cap_bytes=16), "finish, with nothing under way"
    yield two_by_two(2, [None]), "the default: 25 MiB"
    yield two_by_two(1, [None], cap_bytes=16), "a world of one"

    def one_step(shapes, *grads, **more):
        return buckets_case(len(grads), shapes, [[(mine, None)] for mine in grads], **more)

    mixed = [[t(1.0, r), t(1.0, 2.0, r, dtype=F64), t(r, 3.0), t(5.0, dtype=F64)] for r in (0, 1)]
    shapes, dtypes = [(2,), (3,), (2,), (1,)], [F32, F64, F32, F64]
    yield one_step(shapes, *mixed, dtypes=dtypes), "two dtypes in turn: two buckets"
    left = [[t(1.0, r), t(3.0, dtype=F64), t(r, 2.0), t(4.0, 5.0)] for r in (0, 1)]
    again = one_step([(2,), (1,), (2,), (2,)], *left, dtypes=[F32, F64, F32, F32], cap_bytes=16)
    yield again, "a dtype whose bucket was full begins another, after that of another dtype"
    doubles = [[t(r, 1.0, 2.0, dtype=F64), t(1.0, r, dtype=F64)] for r in (0, 1)]
    wide = one_step([(3,), (2,)], *doubles, dtypes=[F64, F64], cap_bytes=16)
    yield wide, "two elements of float64 fill 16 bytes"
    lacking = [None, t(3.0, 4.0)], [t(1.0, 2.0), None]
    yield one_step([(2,), (2,)], *lacking), "each rank lacks another gradient"
    yield one_step([(2,)], *[[BIG]] * 4, dtypes=[F16]), "float16: the sum would be infinite"
    turned = [TURNED, t(1.0)], [STRAIGHT, t(1.0)]
    yield one_step([(3, 2), (1,)], *turned), "a gradient that is transposed on one rank only"


MANY = two_by_two(2, [None], cap_bytes=16)
GradientBuckets.contract(
    contracts.collectives(
        [MANY], limit=2, says="one all-reduce for each bucket", probe=probes.bucketed
    )
)


GradientBuckets.mistake(
    "The buckets begin with the first layer, whose gradients come last: nothing can be sent until "
    "backward is nearly over. Begin with the last parameter.",
    replace(
        "reversed([p for p in params if p.requires_grad])", "[p for p in params if p.requires_grad]"
    ),
)
GradientBuckets.mistake(
    "You close a bucket before it would exceed the cap. Here, as in torch, it is full once it holds the "
    "cap or more: the parameter that fills it goes in.",
    replace(
        "            bucket.append(p)\n"
        "            if sum(q.nbytes for q in bucket) >= cap_bytes:\n"
        "                self.buckets.append(filling.pop(p.dtype))\n",
        "            if bucket and sum(q.nbytes for q in bucket) + p.nbytes > cap_bytes:\n"
        "                self.buckets.append(filling.pop(p.dtype))\n"
        "                bucket = filling.setdefault(p.dtype, [])\n"
        "            bucket.append(p)\n",
    ),
)
GradientBuckets.mistake(
    "What is left at the end comes in the order in which the dtypes first appeared. A bucket that is begun after "
    "a full one is a new one: it stands where it was begun itself.",
    replace(
        "self.buckets.append(filling.pop(p.dtype))",
        "self.buckets.append(bucket)\n                filling[p.dtype] = []",
        "+= filling.values()",
        "+= [bucket for bucket in filling.values() if bucket]",
    ),
)
GradientBuckets.mistake(
    "A parameter without gradient takes part, but does not get the mean: where other ranks have a gradient of it, "
    "it has one afterwards too.",
    replace(
        "                p.grad = torch.empty_like(p) if p.grad is None else p.grad\n"
        "                p.grad.copy_",
        "                if p.grad is not None:\n                    p.grad.copy_",
    ),
)
GradientBuckets.mistake(
    "You count elements, not bytes: a float32 has four of them.", replace("q.nbytes", "q.numel()")
)
GradientBuckets.mistake(
    "You count four bytes for every element. That is float32; others have eight, or two: p.nbytes.",
    replace("q.nbytes", "4 * q.numel()"),
)
GradientBuckets.mistake(
    "One bucket holds two dtypes. Flattened together the smaller one is promoted, and travels at twice "
    "its size: let each dtype fill a bucket of its own.",
    replace("setdefault(p.dtype, [])", 'setdefault("any", [])', "pop(p.dtype)", 'pop("any")'),
)
GradientBuckets.mistake(
    "Another dtype closes the bucket that is being filled. It stays open: each dtype fills one of its own, side by side.",
    replace(
        "            bucket = filling",
        "            if filling and p.dtype not in filling:\n"
        "                self.buckets.append(filling.popitem()[1])\n"
        "            bucket = filling",
    ),
)
GradientBuckets.mistake(
    "Frozen parameters are in the buckets: they never get a gradient to send.",
    replace(" if p.requires_grad]", "]"),
)
GradientBuckets.mistake(
    "The gradients are summed, not averaged.", replace(".div_(dist.get_world_size())", "")
)
GradientBuckets.mistake(
    "You divide after the sum: in float16 the sum may be infinite although the mean is not.",
    replace(
        ".div_(dist.get_world_size())",
        "",
        "mean.view_as(p)",
        "mean.view_as(p) / dist.get_world_size()",
    ),
)
GradientBuckets.mistake(
    "`finish` does not forget what it has finished: at the next backward old means overwrite new gradients.",
    replace("        self._under_way.clear()", ""),
)
GradientBuckets.mistake(
    "`start` waits for its message. Backward stands still meanwhile: start with async_op=True, and wait "
    "in `finish`.",
    replace(", async_op=True", "", "            work.wait()\n", ""),
)
GradientBuckets.mistake(
    "`finish` averages every bucket, started or not. What was not started is another rank's surprise: it "
    "may not take part.",
    replace(
        "        for bucket, flat, work in self._under_way:",
        "        begun = {id(bucket) for bucket, _, _ in self._under_way}\n"
        "        for index, bucket in enumerate(self.buckets):\n"
        "            if id(bucket) not in begun:\n"
        "                self.start(index)\n"
        "        for bucket, flat, work in self._under_way:",
    ),
)


GradientBuckets.mistake(
    "A bucket that holds exactly the cap is left open: it is full as soon as it holds the cap *or more*.",
    replace(">= cap_bytes", "> cap_bytes"),
)
GradientBuckets.mistake(
    "Buckets that never became full are forgotten: what is left when the parameters end must travel too.",
    replace("        self.buckets += filling.values()\n", ""),
)
GradientBuckets.mistake(
    "Parameters without gradient are left out of the flat tensor, so its length and its order differ from "
    "rank to rank: zeros keep their place.",
    replace(
        "torch.zeros_like(p) if p.grad is None else p.grad for p in bucket",
        "p.grad for p in bucket if p.grad is not None",
    ),
)


@GradientBuckets.mistake(
    "There are buckets, but one message for each parameter: make one flat tensor of a bucket.",
    cost=True,
)
class _(ddp.GradientBuckets):
    def start(self, index):
        for p in self.buckets[index]:
            flat = (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
            flat = flat / dist.get_world_size()
            self._under_way.append(([p], flat, dist.all_reduce(flat, async_op=True)))


@GradientBuckets.alternative("one flat buffer for each bucket, of which the gradients become views")
class _:
    def __init__(self, params, cap_bytes=25 * 2**20):
        self.buckets, self.futures, open_ = [], [], {}
        for p in [p for p in params if p.requires_grad][::-1]:
            bucket, size = open_.get(p.dtype, ([], 0))
            open_[p.dtype] = bucket + [p], size + p.numel() * p.element_size()
            if open_[p.dtype][1] >= cap_bytes:
                self.buckets.append(open_.pop(p.dtype)[0])
        self.buckets.extend(bucket for bucket, _ in open_.values())

    def start(self, index):
        bucket = self.buckets[index]
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in bucket]
        flat = _flatten_dense_tensors([g.contiguous() for g in grads]) / dist.get_world_size()
        self.futures.append((bucket, flat, dist.all_reduce(flat, async_op=True).get_future()))

    def finish(self):
        while self.futures:
            bucket, flat, future = self.futures.pop()
            future.wait()
            for p, mean in zip(bucket, _unflatten_dense_tensors(flat, bucket), strict=True):
                p.grad = mean


for mutant in (
    "GradientBuckets.finish: `zip(bucket, flat.split([p.numel() for p in bucket]), strict=True)` → "
    "`zip(bucket, flat.split([p.numel() for p in bucket]))`",
    "GradientBuckets.finish: `strict=True` → `strict=False`",
):
    GradientBuckets.equivalent(
        mutant,
        because="split gives one piece for each size, and there is a size for each parameter",
    )


# ------------------------------------------------------------------------------ the wrapper

DistributedDataParallel = Exercise(
    ddp.DistributedDataParallel,
    title="DistributedDataParallel",
    difficulty=3,
    minutes=60,
    points=5,
    probe=probes.wrapped,
    hints=(
        "Three parts: at the start `broadcast_parameters` and `GradientBuckets`; a hook on each "
        "trainable parameter; something at the end of backward that waits.",
        "`p.register_post_accumulate_grad_hook(f)` calls f(p) when p.grad is there. Count down how many "
        "gradients a bucket still lacks, and start it at 0, if all earlier ones have been started.",
        "In the first hook of a backward, `Variable._execution_engine.queue_callback(f)` (from "
        "torch.autograd) asks the engine to call f when the whole backward is done.",
        (
            "edge cases",
            "Which buckets have not been started when backward is done? Those with a parameter that it "
            "did not reach. Whether to communicate is decided in `forward`.",
        ),
    ),
)

STEP, NO_SYNC, NESTED, RAISING, BY_NAME = "", "silent", "nested", "raising", "by name"
EVAL, EVAL_MODE, BARE = "eval", "in eval mode", "bare"
FORWARD_IN, BACKWARD_IN = "forward in no_sync", "backward in no_sync"
TWO_BACKWARDS = "two backwards of one forward"


def inputs(rank, number, n=2, micro=1):
    generator = torch.Generator().manual_seed(100 * rank + number)
    return [torch.randn(n, 3, generator=generator) for _ in range(micro)]


def training(world, model, steps, cap_bytes=1, apart=True, **more):
    """steps: pairs of kind and number of micro-batches."""

    def mine(rank):
        each = [(kind, inputs(rank, i, micro=micro)) for i, (kind, micro) in enumerate(steps)]
        options = {} if cap_bytes is None else {"cap_bytes": cap_bytes}
        return call(*each, model=model, seed=rank if apart else 0, options=options, **more)

    return every_rank(world, mine)


@DistributedDataParallel.by_hand
def _():
    one = t(1.0, 0.0, 0.0)[None], t(0.0, 1.0, 0.0)[None]
    case = [call((STEP, [one[r]]), model="by hand", seed=0, options={}) for r in range(2)]
    # y = w·x with w = (1, 2, 3): rank 0 has y = 1 and gradient (2, 0, 0), rank 1 y = 2 and (0, 4, 0)
    yield (
        on_ranks(*case),
        {f"rank {r}: gradient of `weight` after step 1": t(1.0, 2.0, 0.0)[None] for r in range(2)},
    )


@DistributedDataParallel.cases(8)
def _(draw):
    model = draw(
        st.sampled_from(
            ["three layers", "one layer", "buffers that change", "two layers with one weight"]
        )
    )
    kinds = st.sampled_from([(STEP, 1), (STEP, 1), (STEP, 2), (EVAL, 1)])
    steps = draw(st.lists(kinds, min_size=1, max_size=3))
    cap = draw(st.sampled_from([1, 40, 10**6]))
    yield training(draw(WORLDS), model, steps, cap)


@DistributedDataParallel.edge
def _():
    three, drift, step = "three layers", "buffers that change", (STEP, 1)
    yield training(2, three, [step] * 2, overlap=True), "many buckets: they overlap"
    yield training(3, "a branch for each rank", [step] * 2, 30), "parameters that are not reached"
    yield training(2, "a frozen layer", [step], 1), "a frozen layer in the middle"
    yield training(2, "float32 and float64", [step], 60), "two dtypes"
    yield training(2, drift, [step, (EVAL, 1), step], None), "buffers drift"
    yield training(2, drift, [step, (EVAL_MODE, 1)], None), "buffers have drifted before eval mode"
    yield training(2, three, [(STEP, 3), (NO_SYNC, 1), step], 40), "no_sync, and then not"
    yield training(2, drift, [(STEP, 2)], 40), "no_sync keeps buffers apart too"
    bare, silent = [(BARE, 1), step], [(EVAL, 1), (BARE, 1), step, (EVAL, 1), (BARE, 1)]
    yield training(2, three, bare * 2, 40), "`.module` itself is called in between"
    yield training(2, three, silent, 40), "`.module` itself, after a forward without gradients"
    joins = "a layer that joins at the second step"
    for cap in (40, 10**6):
        yield training(2, joins, [step] * 2, cap), "a layer that the first backward does not reach"
    leaves = "a layer that leaves after the first forward"
    for cap in (40, 10**6):
        yield training(2, leaves, [(STEP, 2)], cap), "a layer that only no_sync has reached"
    named = "three layers, whose output is in a dictionary"
    yield training(2, named, [step], 40), "a module that returns no tensor"
    yield training(2, three, [(NESTED, 2), step], 40), "a no_sync within a no_sync"
    mixed = [(FORWARD_IN, 1), step], [(BACKWARD_IN, 1), step]
    yield training(2, three, mixed[0], 40), "forward in no_sync, backward outside of it"
    yield training(2, three, mixed[1], 40), "forward outside of no_sync, backward in it"
    yield training(2, three, [(TWO_BACKWARDS, 1), step], 40), "two backwards of one forward"
    yield training(2, three, [(RAISING, 1)], 40), "a no_sync that an exception has left"
    yield training(2, three, [(BY_NAME, 1)], 40), "the module takes an argument by its name"
    yield training(2, three, [(STEP, 2)] * 2, 40, beside=True), "two models, in turn"
    yield training(1, three, [(STEP, 2)], 40), "a world of one"


LARGE_STEP = training(2, "three layers", [(STEP, 1)], 10**6)
DistributedDataParallel.contract(
    contracts.collectives(
        [LARGE_STEP],
        limit=1,
        says="one all-reduce for each bucket, and nothing else where there are no buffers",
        probe=probes.wrapped,
    )
)


DistributedDataParallel.mistake(
    "Each rank keeps the parameters that it happened to have: averaged gradients move them alike, and they "
    "never meet. Broadcast at the start.",
    replace("        broadcast_parameters(module)\n", ""),
)
DistributedDataParallel.mistake(
    "The buffers are made equal once and then drift: each rank's statistics are of its own samples. "
    "Broadcast rank 0's before every forward.",
    replace("_broadcast(self.module.buffers(), src=0)", "pass"),
)
DistributedDataParallel.mistake(
    "Buffers are broadcast in train mode only. In eval mode the ranks compute with statistics of their own: "
    "rank 0's come before every forward.",
    replace("        if self._sync:\n", "        if self._sync and self.training:\n"),
)
DistributedDataParallel.mistake(
    "Buffers are broadcast in no_sync too. Nothing is communicated there.",
    replace("        if self._sync:\n            _broadcast", "        _broadcast"),
)
DistributedDataParallel.mistake(
    "The gradients are summed, not averaged.",
    replace(
        "        self._reducer.finish()",
        "        self._reducer.finish()\n"
        "        for p in self._bucket_of:\n"
        "            p.grad *= dist.get_world_size()",
    ),
)
UNREACHED = (
    "        for index in range(self._next, len(self._missing)):  # parameters that were not reached\n"
    "            self._reducer.start(index)\n"
)
IN_ORDER = (
    "        while self._next < len(self._missing) and self._missing[self._next] == 0:\n"
    "            self._reducer.start(self._next)\n"
    "            self._next += 1\n"
)
DistributedDataParallel.mistake(
    "Parameters that this rank's backward does not reach keep their bucket from being sent, and the other "
    "ranks wait for it. When backward is over, send what is left, with zeros.",
    replace(UNREACHED, ""),
)
DistributedDataParallel.mistake(
    "A parameter that this backward does not reach is sent as zeros, and what it has added up in `no_sync` is lost. Send "
    "its gradient as it stands; zeros are for one that has none.",
    replace(
        UNREACHED,
        UNREACHED.replace(
            "            self._reducer",
            "            if self._missing[index] == len(self._reducer.buckets[index]):\n"
            "                for p in self._reducer.buckets[index]:\n"
            "                    p.grad = torch.zeros_like(p)\n"
            "            self._reducer",
        ),
    ),
)
DistributedDataParallel.mistake(
    "You take what the module returns for a tensor. It may be a tuple or a dictionary: return it as it is, and hang nothing "
    "on it.",
    replace(
        "return self.module(*args, **kwargs)",
        "out = self.module(*args, **kwargs)\n"
        "        if out.requires_grad:\n"
        "            out.register_hook(lambda grad: None)\n"
        "        return out",
    ),
)
DistributedDataParallel.mistake(
    "All messages start after backward is over: right values, no overlap. Start a bucket as soon as its "
    "gradients are there.",
    replace(IN_ORDER, ""),
)
DistributedDataParallel.mistake(
    "A bucket is sent whenever it is complete. Where ranks take different branches they send in different "
    "orders, and messages meet that do not belong together: never before an earlier bucket.",
    replace(
        IN_ORDER,
        "        if self._missing[self._bucket_of[p]] == 0:\n"
        "            self._reducer.start(self._bucket_of[p])\n",
        UNREACHED,
        "        for index, missing in enumerate(self._missing):\n"
        "            if missing:\n"
        "                self._reducer.start(index)\n",
    ),
)
DistributedDataParallel.mistake(
    "The hooks send whatever backward comes past, that of `.module` called directly too. Whether to "
    "communicate is decided in the wrapper's forward.",
    replace(
        "if not self._armed:",
        "if not self._sync:",
        "self._sync, self._armed = True, False",
        "self._sync, self._armed, self._missing = True, False, []",
        "self._reducer.finish()",
        "self._reducer.finish()\n        self._missing = []",
    ),
)
DistributedDataParallel.mistake(
    "You ask in backward whether to communicate. What counts is where forward ran: decide there, and remember it.",
    replace(
        "self._armed = self._sync and torch.is_grad_enabled()",
        "self._armed = torch.is_grad_enabled()",
        "if not self._armed:",
        "if not (self._armed and self._sync):",
    ),
)
for decided in (
    "self._sync and torch.is_grad_enabled()",
    "self._sync if torch.is_grad_enabled() else self._armed",
):
    DistributedDataParallel.mistake(
        "Nothing is switched off after the first backward: a second one of the same forward, or one of `.module`, "
        "communicates again. Of the backwards that follow a forward only the first does.",
        replace(
            "        self._reducer.finish()",
            "        self._reducer.finish()\n        self._missing = []",
            "self._armed = self._sync and torch.is_grad_enabled()",
            f"self._armed = {decided}",
        ),
    )
DistributedDataParallel.mistake(
    "A hook on what forward returns begins to communicate, in every backward that comes past it. Of the "
    "backwards that follow a forward only the first communicates: take note that one has.",
    replace(
        "        self._armed = self._sync and torch.is_grad_enabled()",
        "        wanted, self._armed = self._sync and torch.is_grad_enabled(), False",
        "        return self.module(*args, **kwargs)",
        "        out = self.module(*args, **kwargs)\n"
        "        if wanted and out.requires_grad:\n"
        "            out.register_hook(lambda _: setattr(self, '_armed', True))\n"
        "        return out",
        "        self._reducer.finish()",
        "        self._reducer.finish()\n        self._missing, self._armed = [], False",
    ),
)
DistributedDataParallel.mistake(
    "Each bucket is waited for as soon as it is started: backward stands still until the slowest rank has "
    "come. Wait at the end.",
    replace("self._next += 1", "self._next += 1\n            self._reducer.finish()"),
)
DistributedDataParallel.mistake(
    "`no_sync` does nothing: the gradients of every micro-batch are sent.",
    replace("before, self._sync = self._sync, False", "before = self._sync"),
)
DistributedDataParallel.mistake(
    "After `no_sync` nothing is ever sent again: put back what was before, also when the block raises.",
    replace("self._sync = before", "pass"),
)
DistributedDataParallel.mistake(
    "Right values, but one message for each parameter: the buckets are not used.",
    replace("(module.parameters(), cap_bytes)", "(module.parameters(), 1)"),
    cost=True,
)


DistributedDataParallel.mistake(
    "The module does not get its arguments by name: hand on *args and **kwargs.",
    replace("self.module(*args, **kwargs)", "self.module(*args)"),
)
DistributedDataParallel.mistake(
    "A no_sync within a no_sync switches the outer one off when it ends: put back what was before.",
    replace("self._sync = before", "self._sync = True"),
)
DistributedDataParallel.mistake(
    "If the block of `no_sync` raises, nothing is ever sent again: put back what was before in a `finally`.",
    replace("        try:\n            yield\n        finally:\n    ", "        yield\n"),
)
DistributedDataParallel.mistake(
    "The counts go on from where the last backward left them: after a parameter that it did not reach, a "
    "bucket is sent before its gradients are there. Count from the start in every backward.",
    replace(
        "True, False\n",
        "True, False\n        self._left = [len(bucket) for bucket in self._reducer.buckets]\n",
        "self._missing = [len(bucket) for bucket in self._reducer.buckets]",
        "self._missing = self._left",
        "            self._next += 1",
        "            self._missing[self._next] = len(self._reducer.buckets[self._next])\n"
        "            self._next += 1",
    ),
)
DistributedDataParallel.mistake(
    "A forward without gradients (torch.no_grad) has no backward, but you wait for one: the next backward of "
    "`.module` is averaged. Ask torch.is_grad_enabled() too.",
    replace("self._sync and torch.is_grad_enabled()", "self._sync"),
)
DistributedDataParallel.mistake(
    "You finish when the last bucket is sent. Where a parameter is not reached its bucket never is, and "
    "nobody waits or sends the rest: ask the engine to call you at the end of backward (queue_callback).",
    replace(
        "            Variable._execution_engine.queue_callback(self._finish)  # when all of backward is done\n",
        "",
        "            self._next += 1",
        "            self._next += 1\n"
        "            if self._next == len(self._missing):\n"
        "                return self._finish()",
    ),
)


@DistributedDataParallel.alternative(
    "hooks that start messages, a final callback, no buckets' class"
)
class _(nn.Module):
    def __init__(self, module, cap_bytes=25 * 2**20):
        super().__init__()
        self.module, self.talk, self.here = module, True, None
        self.send(dist.broadcast, [*module.parameters(), *module.buffers()], 0)
        self.plan, open_ = [], {}
        for p in [p for p in module.parameters() if p.requires_grad][::-1]:
            bucket = open_.setdefault(p.dtype, [])
            if not bucket:
                self.plan.append(bucket)
            bucket.append(p)
            if sum(q.numel() * q.element_size() for q in bucket) >= cap_bytes:
                del open_[p.dtype]
            p.register_post_accumulate_grad_hook(self.arrived)

    def send(self, how, tensors, *args):
        with torch.no_grad():
            for x in tensors:
                whole = x.contiguous()
                how(whole, *args)
                x.copy_(whole)

    def forward(self, *args, **kwargs):
        self.here = set() if self.talk and torch.is_grad_enabled() else None
        if self.talk:
            self.send(dist.broadcast, self.module.buffers(), 0)
        return self.module(*args, **kwargs)

    def arrived(self, p):
        if self.here is None:
            return
        if not self.here:
            self.sent = []
            Variable._execution_engine.queue_callback(self.done)
        self.here.add(p)
        while len(self.sent) < len(self.plan) and self.here.issuperset(self.plan[len(self.sent)]):
            self.start()

    def start(self):
        bucket = self.plan[len(self.sent)]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([g.reshape(-1) / dist.get_world_size() for g in parts])
        self.sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def done(self):
        while len(self.sent) < len(self.plan):
            self.start()
        for bucket, (flat, work) in zip(self.plan, self.sent, strict=True):
            work.wait()
            for p, mean in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad = mean.view_as(p).clone()
        self.here = None

    @contextmanager
    def no_sync(self):
        was, self.talk = self.talk, False
        try:
            yield
        finally:
            self.talk = was


# ------------------------------------------------------------------------------ no_sync_step

no_sync_step = Exercise(
    ddp.no_sync_step,
    title="Accumulate, communicate once",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.accumulated,
    hints=(
        "All micro-batches but the last run inside `with model.no_sync():`; `contextlib.nullcontext()` "
        "is a `with` that does nothing.",
        "Weigh each micro-batch's mean by its share of the samples: `len(x) / samples`.",
        (
            "contracts",
            "DDP decides in *forward* whether the backward will communicate: the forward belongs inside "
            "`no_sync` too.",
        ),
    ),
)


def micro(rank, step, sizes, dtype=F32, outputs=1):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return [
        (
            torch.randn(n, 2, generator=generator, dtype=dtype),
            torch.randn(n, outputs, generator=generator, dtype=dtype),
        )
        for n in sizes
    ]


def accumulation(world, *steps, **more):
    """steps: the sizes of the micro-batches, of each step."""
    return every_rank(
        world,
        lambda r: call(*(micro(r, i, sizes, **more) for i, sizes in enumerate(steps)), seed=5),
    )


@no_sync_step.by_hand
def _():
    # The outputs are 0: losses 1 and 9, of one sample and of three; by the bias -2 and -6
    yield (
        on_ranks(
            call(
                [(torch.zeros(1, 2), t(1.0)[None]), (torch.zeros(3, 2), t(3.0, 3.0, 3.0)[:, None])],
                seed=5,
                zero=True,
            )
        ),
        {
            "rank 0: loss of step 1": torch.tensor(7.0),
            "rank 0: gradient of `bias` after step 1": t(-5.0),
            "rank 0: `bias` after step 1": t(0.5),
        },
    )


@no_sync_step.cases(8)
def _(draw):
    sizes = st.lists(st.integers(1, 3), min_size=1, max_size=4)
    steps = draw(st.lists(sizes, min_size=1, max_size=2))
    yield accumulation(draw(WORLDS), *steps)


@no_sync_step.edge
def _():
    yield accumulation(2, [2]), "one micro-batch: a plain step"
    yield accumulation(2, [2, 2, 2], [2, 2]), "two steps: what was before the first is dropped"
    yield accumulation(3, [1, 5]), "micro-batches of different sizes"
    yield accumulation(2, [1, 2], dtype=F64), "float64"
    yield accumulation(2, [1, 2], [3], outputs=3), "three outputs"


ACCUMULATE = accumulation(2, [2, 2, 2, 2])
no_sync_step.contract(
    contracts.collectives(
        [ACCUMULATE],
        limit=1,
        says="the gradients travel once for each step",
        probe=probes.accumulated,
    )
)


no_sync_step.mistake(
    "The mean of the micro-batches' means weighs a sample of a small micro-batch more than one of a large: "
    "weigh each by its share of the samples.",
    replace("(len(x) / samples)", "(1 / len(batches))"),
)
no_sync_step.mistake(
    "The losses are added up as they are, so the gradient grows with the number of micro-batches.",
    replace(" * (len(x) / samples)", ""),
)
no_sync_step.mistake(
    "You divide the squares by the number of samples. The mean is over all elements of the outputs: a sample of "
    "three outputs has three.",
    replace("(len(x) / samples)", "(y.numel() / samples)"),
)
no_sync_step.mistake(
    "The loss that you return is the last micro-batch's part of it: add up the parts.",
    replace("torch.stack(losses).sum()", "losses[-1]"),
)
LAST = "    optimizer.step()\n", "    optimizer.step()\n    optimizer.zero_grad()\n"
no_sync_step.mistake(
    "You drop the gradients behind the step, not before it: what was left from before is part of the step, and "
    "the step's own are gone.",
    replace("    optimizer.zero_grad()\n", "", *LAST),
)
no_sync_step.mistake(
    "You drop the gradients behind the step too: those of the step stay, for whoever looks at them afterwards.",
    replace(*LAST),
)
no_sync_step.mistake(
    "Every micro-batch runs inside no_sync, the last one too: the gradients are never averaged, and the "
    "ranks drift apart.",
    replace("nullcontext() if number == len(batches) else ", ""),
)
no_sync_step.mistake(
    "What an earlier backward left in the gradients is part of the step: `optimizer.zero_grad()` first.",
    replace("    optimizer.zero_grad()\n", ""),
)
no_sync_step.mistake(
    "The gradients are dropped before every micro-batch: only the last one counts. Once for each step.",
    replace("start=1):", "start=1):\n        optimizer.zero_grad()"),
)
no_sync_step.mistake(
    "The loss that you return is the last micro-batch's, not that of all samples.",
    replace(
        "torch.stack(losses).sum()",
        "F.mse_loss(output.detach(), y)",
        "model(x), y)",
        "output := model(x), y)",
    ),
)
no_sync_step.mistake(
    "Your forwards run outside of `no_sync`, and only their backwards inside of it. DDP decides in forward "
    "whether to communicate: the forward belongs inside, too.",
    replace(
        "    for number, (x, y) in enumerate(batches, start=1):\n",
        "    outputs = [model(x) for x, _ in batches]\n"
        "    for number, (x, y) in enumerate(batches, start=1):\n",
        "F.mse_loss(model(x), y)",
        "F.mse_loss(outputs[number - 1], y)",
    ),
)
no_sync_step.mistake(
    "The wrong way round: the last micro-batch runs inside no_sync, and all others communicate.",
    replace("number == len(batches)", "number != len(batches)"),
)
no_sync_step.mistake(
    "You weigh the gradients, but the loss that you return is the mean of the micro-batches' means: it is that of "
    "all samples.",
    replace(
        "torch.stack(losses).sum()",
        "torch.stack(losses).mean()",
        "loss.detach()",
        "loss.detach() * (samples / len(x))",
    ),
)
no_sync_step.mistake(
    "Your loss goes through a Python number, and comes back as float32 whatever the model computes in: add up "
    "tensors.",
    replace("torch.stack(losses).sum()", "torch.tensor(sum(loss.item() for loss in losses))"),
)
no_sync_step.mistake("The optimizer never takes its step.", replace("    optimizer.step()\n", ""))
no_sync_step.mistake(
    "The loss that you return still holds its graph: detach it.", replace("loss.detach()", "loss")
)
no_sync_step.mistake(
    "The gradients travel with every micro-batch. All but the last belong inside no_sync, their forward "
    "too: DDP decides in forward whether its backward will communicate.",
    replace(
        "start=1):",
        "start=1):\n        output = model(x)",
        "F.mse_loss(model(x), y)",
        "F.mse_loss(output, y)",
    ),
    cost=True,
)


@no_sync_step.alternative("one block for all but the last, sums divided by hand")
def _(model, batches, optimizer):
    optimizer.zero_grad(set_to_none=True)
    n = sum(y.numel() for _, y in batches)

    def backward(x, y):
        loss = (model(x) - y).square().sum() / n
        loss.backward()
        return loss.detach()

    with model.no_sync():
        losses = [backward(x, y) for x, y in batches[:-1]]
    losses.append(backward(*batches[-1]))
    optimizer.step()
    return sum(losses)


no_sync_step.equivalent(
    "no_sync_step: `F.mse_loss(model(x), y)` → `F.mse_loss(y, model(x))`",
    because="the squared error is symmetric, and so are its gradients, to the last bit",
)

# ------------------------------------------------------------------------------ token_weighted_backward

token_weighted_backward = Exercise(
    ddp.token_weighted_backward,
    title="Every token weighs the same",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.token_weighted,
    hints=(
        "DDP divides by the number of ranks. Which factor on this rank's *sum* of losses makes the average of all "
        "ranks' gradients that of the whole mean?",
        "It needs the number of targets of all ranks, before backward: a tensor, and `dist.all_reduce`.",
        (
            "contracts",
            "The sum of the losses is known before backward, too: two numbers can travel in one tensor.",
        ),
        (
            "edge cases",
            "A rank without targets calls the same things: its sum of losses is 0, its mean would be 0/0.",
        ),
    ),
)


def row(shape, targets=None, seed=0):
    """ids and targets of a shape, of which only the first `targets` (None: all) are not ignored."""
    generator = torch.Generator().manual_seed(seed + 31 * shape[0] + shape[1])
    ids, y = (torch.randint(0, 7, shape, generator=generator) for _ in range(2))
    if targets is not None:
        y.flatten()[targets:] = -100
    return ids, y


def tokens(*ranks, dtype=F32, **more):
    """The case of calls on ranks; each rank's list of (ids, targets)."""
    like = torch.empty(0, dtype=dtype)
    return on_ranks(*(call(*mine, like=like, **more) for mine in ranks))


@token_weighted_backward.by_hand
def _():
    # All logits are 0, so each target's loss is log 7; each adds softmax − one-hot to the bias
    first = torch.tensor([[0, 1]]), torch.tensor([[0, 0]])
    second = torch.tensor([[2]]), torch.tensor([[1]])
    mean = torch.full((7,), 1 / 7)
    mean[0] -= 2 / 3
    mean[1] -= 1 / 3
    case = tokens([first], [second], uniform=True)
    yield (
        case,
        {f"rank {r}: gradient of `head.bias` after call 1": mean for r in range(2)}
        | {f"rank {r}: loss of call 1": torch.tensor(7.0).log() for r in range(2)},
    )


@token_weighted_backward.cases(8)
def _(draw):
    world, dtype = draw(WORLDS), draw(st.sampled_from([F32, F64]))
    calls = []
    for _ in range(world):
        shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 4)))
        calls.append(
            [row(shape, draw(st.integers(0, shape[0] * shape[1])), draw(st.integers(0, 9)))]
        )
    calls[draw(st.integers(0, world - 1))] = [row((2, 3), 5)]
    yield tokens(*calls, dtype=dtype)


@token_weighted_backward.edge
def _():
    yield tokens([row((1, 2))], [row((3, 4))]), "two targets against twelve"
    yield tokens([row((2, 3), 4)], [row((2, 3), 0)]), "a rank without a target"
    yield tokens([row((2, 3), 4)], [row((0, 3))]), "a rank with an empty batch"
    again = [row((2, 2), 1, seed=1)], [row((1, 3), seed=2)]
    yield (
        tokens([row((1, 2)), *again[0]], [row((2, 3), 5), *again[1]]),
        "two calls: gradients add up",
    )
    yield tokens([row((1, 3), 2)], [row((2, 2))], [row((1, 1))], dtype=F64), "float64, three ranks"
    first = tokens([row((2, 2), 0)], [row((1, 2), 0)], refused=True)
    yield first, "nobody has a target in the first call: there are no gradients yet"
    sure = torch.tensor([[3, 5]]), torch.zeros(1, 2, dtype=torch.long)
    yield tokens([sure], [sure], certain=True), "targets, and a loss of exactly 0"
    unlikely = torch.tensor([[3, 5, 1, 2]]), torch.tensor([[1, 2, 3, 4]])
    yield (
        tokens([unlikely], [unlikely], dtype=F16, certain=True),
        "float16: the sum of both ranks' losses would be infinite",
    )
    refused = tokens([row((1, 2)), row((2, 2), 0)], [row((2, 3)), row((1, 2), 0)], refused=True)
    yield refused, "nobody has a target: gradients stay as they were"
    yield tokens([row((2, 3), 4)]), "a world of one"
    ids, targets = row((3, 2), 4)
    turned = ids.T.contiguous().T, targets.T.contiguous().T
    yield tokens([turned], [row((2, 5), 7)]), "ids and targets that are transposed in memory"


token_weighted_backward.contract(
    contracts.collectives(
        [tokens([row((2, 3))], [row((1, 2), 1)])],
        limit=2,
        says="one all-reduce of a few numbers, besides DDP's own of the gradients",
        probe=probes.token_weighted,
    )
)

TOKENS = "sums[1]"
BACKWARD = f"(loss * dist.get_world_size() / {TOKENS}).backward()"
OWN = "(targets != -100).sum()"
SENT = "    dist.all_reduce(sums)\n"
RAISES = '    if sums[1] == 0:\n        raise ValueError("no rank has a target")\n'
SUM = 'F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), reduction="sum")'
token_weighted_backward.slips(
    {
        replace(
            BACKWARD, f"(loss / {OWN}.clamp(min=1)).backward()"
        ): "Each rank takes the mean over its own targets, and DDP averages the means: a token on a rank that has few "
        "weighs more than one on a rank that has many. Divide by the number of all ranks' targets.",
        replace(
            "loss * dist.get_world_size()", "loss"
        ): "The gradient is too small, by the number of ranks: DDP divides by it. Multiply the loss by the world size.",
        replace(
            f"loss * dist.get_world_size() / {TOKENS}", "loss * dist.get_world_size()"
        ): "You never divide by the number of targets: the gradient is that of the sum.",
        replace(
            f"(loss * dist.get_world_size() / {TOKENS})", "loss"
        ): "You hand DDP the sum of the losses, and it averages sums: divide by the number of all ranks' targets, "
        "multiply by the number of ranks.",
        replace(
            OWN, "torch.tensor(targets.numel())"
        ): "You count all positions. Those with -100 are no targets.",
        replace(
            SENT, SENT + "    sums[1] /= dist.get_world_size()\n"
        ): "You take the ranks' mean number of targets and multiply by the number of ranks as well: the gradient is too "
        "large. One of the two is enough.",
        replace(
            "model(ids)", "model.module(ids)"
        ): "You call the model beneath DDP, `.module`: nothing is averaged, and the ranks drift apart.",
        replace(
            "return (sums[0] / sums[1]).to(loss.dtype)",
            "return loss.detach() / " + OWN,
        ): "The gradients are right. The loss that you return is the mean over this rank's targets: it is that over all "
        "ranks' targets.",
        replace(
            "return (sums[0] / sums[1]).to(loss.dtype)",
            f"return loss.detach() * dist.get_world_size() / {TOKENS}",
        ): "The gradients are right. The loss that you return is what this rank gave DDP, not the mean over all ranks' "
        "targets.",
        replace(
            "return (sums[0] / sums[1]).to(loss.dtype)", "return float(sums[0] / sums[1])"
        ): "The loss comes back as a Python number: return a tensor of the logits' dtype.",
        replace(
            "return (sums[0] / sums[1]).to(loss.dtype)", "return sums[0] / sums[1]"
        ): "The loss comes back in another dtype than the logits have: bring it back with `.to`.",
        replace(
            "return (sums[0] / sums[1]).to(loss.dtype)",
            "return loss / loss.detach() * sums[0] / sums[1]",
        ): "The loss that you return still holds its graph: detach it.",
        replace(
            "loss.detach().double(), (targets != -100).sum().double()",
            "loss.detach(), (targets != -100).sum()",
        ): "The sum of the losses and the number of targets travel in the logits' dtype. In float16 a sum over all ranks "
        "may be infinite, and bfloat16 cannot count beyond 256: send them as float64.",
        replace(RAISES, ""): "Without a target on any rank you divide by zero. Raise ValueError.",
        replace(
            RAISES, "", f"    {BACKWARD}\n", f"    {BACKWARD}\n" + RAISES
        ): "You raise only after backward, which has already added to the gradients. Raise before it.",
        replace(
            f"    {BACKWARD}\n",
            f"    (loss / {TOKENS}).backward()\n"
            "    for p in model.parameters():\n"
            "        p.grad *= dist.get_world_size()\n",
        ): "You multiply the gradients by the world size, those of earlier calls with them. Multiply the loss, before "
        "backward.",
        replace(
            "if sums[1] == 0:", f"if {OWN} == 0:"
        ): "A rank without a target raises, although another has one; and the others wait for it in DDP's all-reduce. "
        "It takes part with zeros.",
        replace(
            "    sums = torch",
            f"    if {OWN} == 0:\n        return loss.detach()\n    sums = torch",
        ): "A rank without a target returns early. The others wait for it in the all-reduce: it takes part, with zeros.",
        replace(
            SUM,
            "F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()) * " + OWN,
        ): "The mean of a rank without a target is NaN, and NaN times 0 stays NaN. Take the sum.",
        replace(
            "    loss = F", "    model.zero_grad()\n    loss = F"
        ): "You empty the gradients first. The caller decides when: here they add up.",
        replace(
            f"    {BACKWARD}\n", f"    model.zero_grad()\n    {BACKWARD}\n"
        ): "You empty the gradients before backward. The caller decides when: here they add up.",
        replace(
            f"    {BACKWARD}\n",
            f"    {BACKWARD}\n"
            "    for p in model.parameters():\n"
            "        if p.grad is not None:\n"
            "            dist.all_reduce(p.grad)\n",
        ): "DDP has averaged the gradients in backward already; you add them up over the ranks once more.",
        replace(
            SENT, ""
        ): "Each rank divides by its own number of targets, times the number of ranks. The number is that of all ranks: "
        "all-reduce it.",
    }
)
for own in ("loss.detach()", "loss.detach().double()"):
    token_weighted_backward.mistake(
        "The gradients are right. The loss that you return is what this rank gave DDP, not the mean over all ranks' targets.",
        replace(
            "return (sums[0] / sums[1]).to(loss.dtype)",
            f"return ({own} * dist.get_world_size() / {TOKENS}).to(loss.dtype)",
        ),
    )
for both in (
    SENT + "    dist.all_reduce(torch.zeros(1))\n",
    "    first, second = sums.split(1)\n    dist.all_reduce(first)\n    dist.all_reduce(second)\n",
):
    token_weighted_backward.mistake(
        "The values are right, but the ranks speak twice where once would do: put the sum of the losses and the number "
        "of targets in one tensor.",
        replace(SENT, both),
        cost=True,
    )


@token_weighted_backward.alternative("the mean number of targets over the ranks, by ReduceOp.AVG")
def _(model, ids, targets):
    logits = model(ids)
    y = targets.reshape(-1)
    losses = nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), y, reduction="none", ignore_index=-100
    )
    both = torch.tensor([losses.sum().item(), y.ne(-100).sum().item()], dtype=F64)
    dist.all_reduce(both, op=dist.ReduceOp.AVG)
    if not both[1] > 0:
        raise ValueError("not a target anywhere")
    losses.sum().div(both[1].item()).backward()
    return (both[0] / both[1]).to(logits.dtype)


@token_weighted_backward.alternative("gathered counts, and log-probabilities picked out by hand")
def _(model, ids, targets):
    world = dist.get_world_size()
    kept = targets != -100
    logp = model(ids).log_softmax(-1)
    picked = logp.gather(-1, targets.masked_fill(~kept, 0).unsqueeze(-1)).squeeze(-1)
    total = -(picked * kept).sum()
    everyone = [torch.zeros(2, dtype=F64) for _ in range(world)]
    dist.all_gather(everyone, torch.stack([total.detach().double(), kept.sum().double()]))
    losses, counts = torch.stack(everyone).sum(0).tolist()
    if counts == 0:
        raise ValueError("nobody has a target")
    torch.autograd.backward(total, torch.full_like(total, world / counts))
    return torch.full_like(total.detach(), losses / counts)


for one, other in (
    ("loss.detach().double()", "loss.detach()"),
    ("(targets != -100).sum().double()", "(targets != -100).sum()"),
):
    token_weighted_backward.equivalent(
        f"token_weighted_backward: `{one}` → `{other}`",
        because="torch.stack promotes it to the other's float64",
    )

# ------------------------------------------------------------------------------ save_on_rank_zero

save_on_rank_zero = Exercise(
    ddp.save_on_rank_zero,
    title="One file, whole or not at all",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.saved,
    hints=(
        "`if dist.get_rank() == 0:` around the writing, and nothing of what must happen on all ranks "
        "inside of it.",
        "A DistributedDataParallel has the bare model as `.module`; ask with isinstance, not by name.",
        (
            "edge cases",
            "Write to another name in the same folder, then `os.replace` it: that happens in one step.",
        ),
    ),
)


def saving(world, model="three layers", **more):
    return every_rank(world, lambda r: call(model=model, seed=r, **more))


@save_on_rank_zero.by_hand
def _():
    yield (
        saving(2, "Linear(2, 1)", ddp=True),
        {
            "rank 0: files": ("model.pt",),
            "rank 1: files": (),
            "rank 0: names in the file": ("bias", "weight"),
        },
    )


@save_on_rank_zero.cases(8)
def _(draw):
    model = draw(st.sampled_from(["three layers", "BatchNorm", "a child named module"]))
    more = {name: draw(st.booleans()) for name in ("ddp", "old", "text")}
    yield saving(draw(WORLDS), model, **more)


@save_on_rank_zero.edge
def _():
    yield saving(2, "a child named module"), "a bare model whose child is called `module`"
    yield saving(2, "a child named module", ddp=True), "the same, wrapped"
    yield (
        saving(2, "two layers with one weight", ddp=True, old=True),
        "a file of before is replaced",
    )
    yield (
        saving(3, "buffers that change", ddp=True, text=False),
        "a Path; a buffer that is not saved",
    )
    yield saving(1, ddp=True), "a world of one"
    yield saving(1, old=True, full=True), "writing fails half-way: the file of before must be whole"
    yield saving(2, full=True), "writing fails half-way: every rank must hear of it"
    yield saving(2, nowhere=True), "a folder that does not exist: every rank must hear of it"


save_on_rank_zero.mistake(
    "The names in the file begin with `module.`: whoever loads it needs a wrapper too. Save the state of "
    "`model.module`.",
    replace("bare.state_dict()", "model.state_dict()"),
)
for stripped in ('replace("module.", "")', 'removeprefix("module.")'):
    save_on_rank_zero.mistake(
        "You strip `module.` from every name that has it, and so rename children of the model itself. Unwrap "
        "the model instead.",
        replace("bare.state_dict()", f"{{k.{stripped}: v for k, v in model.state_dict().items()}}"),
    )
save_on_rank_zero.mistake(
    "You unwrap whatever has a `.module`. A bare model may have a child of that name: ask with isinstance.",
    replace("isinstance(model, nn.parallel.DistributedDataParallel)", 'hasattr(model, "module")'),
)
save_on_rank_zero.mistake(
    "All ranks write. On one disk they write the same file at the same time; the last one wins, and a "
    "reader in between finds pieces of several.",
    replace("dist.get_rank() == 0", "True"),
)
TOLD = "    dist.broadcast_object_list(failure)  # the others wait here, and hear how it went\n"
save_on_rank_zero.mistake(
    "Nothing holds the other ranks back: they go on, and may read the file before it is there. A collective, "
    "on all ranks, after the writing.",
    replace(TOLD, ""),
)
save_on_rank_zero.mistake(
    "The barrier comes before the writing: the ranks leave it together, and only then rank 0 begins.",
    replace(TOLD, "", "    if dist", "    dist.barrier()\n    if dist"),
)
save_on_rank_zero.mistake(
    "The barrier is inside the `if`: rank 0 waits for ranks that never come.",
    replace(TOLD, "        dist.barrier()\n"),
)
save_on_rank_zero.mistake(
    "You write into the file itself. If that fails half-way, the checkpoint of before is gone too: write "
    "beside it, then os.replace.",
    replace(
        "state_dict(), partial)",
        "state_dict(), path)",
        "            os.replace(partial, path)\n",
        "",
    ),
)
save_on_rank_zero.mistake(
    "Your temporary file stays behind: move it (os.replace), do not copy it.",
    replace(
        "os.replace(partial, path)",
        'other = Path(f"{path}.other")\n'
        "            other.write_bytes(partial.read_bytes())\n"
        "            os.replace(other, path)",
    ),
)
save_on_rank_zero.mistake(
    "You save the parameters only. Buffers (running statistics, for one) are part of the state_dict too.",
    replace(
        "bare.state_dict()",
        "{k: v for k, v in bare.state_dict().items() if k in dict(bare.named_parameters())}",
    ),
)


MOVED = "os.replace(partial, path)"
save_on_rank_zero.mistake(
    "Your temporary file lies in another folder, which may be on another disk: os.replace fails there, and "
    "shutil.move copies. Write it beside the file.",
    replace(
        'Path(path).with_name(Path(path).name + ".partial")',
        'Path(__import__("tempfile").mkdtemp()) / "partial"',
        MOVED,
        '__import__("shutil").move(partial, path)\n            partial.parent.rmdir()',
        "            partial.unlink(missing_ok=True)\n",
        '            __import__("shutil").rmtree(partial.parent)\n',
    ),
)
save_on_rank_zero.mistake(
    "You copy the temporary file into place. A copy takes its time, and who reads, or kills, in the middle "
    "has half a file: os.replace is one step.",
    replace(MOVED, "Path(path).write_bytes(partial.read_bytes())\n            partial.unlink()"),
)
save_on_rank_zero.mistake(
    "You remove the file of before and move the new one there: in between there is none. os.replace does "
    "both in one step.",
    replace(MOVED, "Path(path).unlink(missing_ok=True)\n            partial.rename(path)"),
)
save_on_rank_zero.mistake(
    "When writing fails, what was written of the temporary file stays behind: remove it.",
    replace("            partial.unlink(missing_ok=True)\n", ""),
)
save_on_rank_zero.mistake(
    "When writing fails on rank 0, the others wait for it for ever in the barrier: tell them (a broadcast), and "
    "raise on every rank.",
    replace(
        'failure = [f"{type(error).__name__}: {error}"]',
        "raise",
        "broadcast_object_list(failure)",
        "barrier()",
    ),
)
save_on_rank_zero.mistake(
    "You catch OSError alone. For a folder that does not exist torch.save raises a RuntimeError: rank 0 leaves, "
    "and the others wait for it for ever.",
    replace("except Exception as error", "except OSError as error"),
)
save_on_rank_zero.mistake(
    "When writing fails on rank 0, it raises, and the others go on as if the file were there: tell them (a "
    "broadcast), and raise on every rank.",
    replace("    if failure[0]:", "    if dist.get_rank() == 0 and failure[0]:"),
)


save_on_rank_zero.mistake(
    "You raise a RuntimeError. An OSError is asked for, on every rank.",
    replace("raise OSError(f", "raise RuntimeError(f"),
)
save_on_rank_zero.mistake(
    "Rank 0 raises what torch.save raised, which is a RuntimeError for a folder that does not exist. Raise OSError on "
    "every rank.",
    replace(
        "    if failure[0]:\n",
        "    if failure[0] and dist.get_rank() == 0 and failure[0].startswith('RuntimeError'):\n"
        "        raise RuntimeError(failure[0])\n"
        "    if failure[0]:\n",
    ),
)


@save_on_rank_zero.alternative(
    "a rename in place of os.replace, an all-reduce in place of the broadcast"
)
def _(model, path):
    done = torch.ones(1)
    temporary = Path(path).parent / "being-written"
    if dist.get_rank() == 0:
        inner = model
        while isinstance(inner, nn.parallel.DistributedDataParallel):
            inner = inner.module
        try:
            with open(temporary, "wb") as file:
                torch.save(inner.state_dict(), file)
            temporary.rename(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            done.zero_()
    dist.all_reduce(done, dist.ReduceOp.MIN)
    if not done:
        raise OSError("rank 0 could not save")


save_on_rank_zero.equivalent(
    "save_on_rank_zero: `failure[0]` → `failure[-1]`",
    because="the list that is broadcast has one item",
)
