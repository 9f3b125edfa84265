"""Exercises that communicate, made for the engine's tests: whole, as an author would declare them."""

import torch
import torch.distributed as dist
import toy_collectives as ref
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, on_ranks, probes

# ------------------------------------------------------------------------------ a function

ring = Exercise(
    ref.ring_sum,
    key="toys.ring_sum",
    title="A sum by a ring",
    difficulty=3,
    minutes=30,
    points=5,
    hints=("First everybody has the sum of one part.", ("contracts", "Send a part, not all.")),
    probe=probes.on_ranks,
)


@ring.by_hand
def _():
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    yield on_ranks((one,), (two,)), [torch.tensor([4.0, 7.0])] * 2
    yield on_ranks((one,)), [one]


@ring.cases(12)
def _(draw):
    world = draw(st.integers(2, 4))
    shape = draw(draws.distinct_sizes(2))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.int64]))
    parts = [draw(draws.tensors(shape, dtype)) for _ in range(world)]
    yield on_ranks(*[(x.T,) for x in parts] if draw(st.booleans()) else [(x,) for x in parts])


@ring.edge
def _():
    yield on_ranks(*[(torch.zeros(0),)] * 3), "nothing to add"
    yield on_ranks(*[(torch.tensor(float(r)),) for r in range(4)]), "one number on four ranks"


def ones(world, size=3000):
    return on_ranks(*[(torch.ones(size) * r,) for r in range(world)])


def share_of_a_ring(case):
    """2(n-1)/n of the bytes of x, and one element a step for parts of uneven sizes."""
    n, x = case.world, case.calls[0].args[0]
    return 2 * (n - 1) * (-(-x.numel() // n)) * x.element_size()


ring.contract(
    contracts.sends([ones(3), ones(4)], limit=share_of_a_ring, says="2(n-1)/n of the bytes")
)
ring.contract(
    contracts.peak_on_ranks(
        [ones(4)], limit=lambda case: 3 * 12_000 + 6_000, says="no copy of every rank's tensor"
    )
)


@ring.mistake("Rank 0 does not add its own part.")
def _(x):
    x = x.clone()
    dist.all_reduce(x if dist.get_rank() else x.zero_())
    return x


@ring.mistake("The sum is divided by the number of ranks.")
def _(x):
    x = x.clone()
    dist.all_reduce(x)
    return x / dist.get_world_size() if x.is_floating_point() else x // dist.get_world_size()


@ring.mistake("Every rank sends before it receives: nobody is there to receive.")
def _(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, passing = x.clone(), x.contiguous()
    for _ in range(n - 1):
        received = torch.empty_like(passing)
        dist.send(passing, (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        total += received
        passing = received
    return total


@ring.mistake("Each rank gathers every rank's tensor and adds them up itself.", cost=True)
def _(x):
    parts = [
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for _ in range(dist.get_world_size())
    ]
    dist.all_gather(parts, x.contiguous())
    return torch.stack(parts).sum(0)


@ring.mistake("The whole tensor travels round the ring, and not one part at a time.", cost=True)
def _(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    total, passing = x.clone(), x.contiguous()
    for _ in range(n - 1):
        received = torch.empty_like(passing)
        for request in dist.isend(passing, (rank + 1) % n), dist.irecv(received, (rank - 1) % n):
            request.wait()
        total += received
        passing = received
    return total


@ring.alternative("reduce_scatter and all_gather of the library, on a padded copy")
def _(x):
    n = dist.get_world_size()
    flat = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % n))
    mine = torch.empty_like(flat[: len(flat) // n])
    dist.reduce_scatter(mine, list(flat.chunk(n)) if len(flat) else [flat] * n)
    parts = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(parts, mine)
    return torch.cat(parts)[: x.numel()].view(x.shape)


@ring.alternative("the library's all_reduce")
def _(x):
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x)
    return x


# ------------------------------------------------------------------------------ lists of tensors

average = Exercise(
    ref.average_gradients,
    key="toys.average_gradients",
    title="Averaged gradients",
    difficulty=2,
    minutes=10,
    points=2,
    hints=("One flat tensor.",),
    probe=probes.on_ranks,
)


@average.by_hand
def _():
    first, second = [torch.tensor([1.0]), torch.zeros(2)], [torch.tensor([3.0]), torch.ones(2)]
    mean = [torch.tensor([2.0]), torch.full((2,), 0.5)]
    yield on_ranks((first,), call(grads=second)), [mean, mean]


@average.cases(8)
def _(draw):
    shapes = [draw(draws.distinct_sizes(2)) for _ in range(draw(st.integers(1, 3)))]
    world = draw(st.integers(1, 4))
    yield on_ranks(*[([draw(draws.tensors(s)) for s in shapes],) for _ in range(world)])


many = on_ranks(*[([torch.ones(10)] * 20,)] * 2)
average.contract(
    contracts.collectives([many], limit=1, says="one collective, however many tensors")
)
average.contract(contracts.messages([many], limit=2, says="the messages of one all_reduce"))


@average.mistake("The sum is not divided.")
def _(grads):
    out = [g.clone() for g in grads]
    for g in out:
        dist.all_reduce(g)
    return out


@average.mistake("The gradients themselves are changed.")
def _(grads):
    for g in grads:
        dist.all_reduce(g)
        g /= dist.get_world_size()
    return grads


@average.mistake("Only rank 0 divides.")
def _(grads):
    out = [g.clone() for g in grads]
    for g in out:
        dist.all_reduce(g)
        if dist.get_rank() == 0:
            g /= dist.get_world_size()
    return out


@average.mistake("One collective for each tensor.", cost=True)
def _(grads):
    out = [g.clone() for g in grads]
    for g in out:
        dist.all_reduce(g)
        g /= dist.get_world_size()
    return out


@average.alternative("asynchronously, through a flat buffer")
def _(grads):
    flat = torch.cat([g.reshape(-1) for g in grads]) / dist.get_world_size()
    work = dist.all_reduce(flat, async_op=True)
    out, start = [], 0
    work.wait()
    for g in grads:
        out.append(flat[start : start + g.numel()].view_as(g))
        start += g.numel()
    return out


# ------------------------------------------------------------------------------ a class with state

momentum = Exercise(
    ref.ShardedMomentum,
    key="toys.ShardedMomentum",
    title="Momentum in shards",
    difficulty=3,
    minutes=20,
    points=4,
    hints=("Reduce-scatter the gradient.",),
    probe=probes.steps_on_ranks,
)


def steps(gradients, **kwargs):
    return on_ranks(*[call(*[("step", g) for g in own]) for own in gradients], **kwargs)


@momentum.by_hand
def _():
    position = torch.zeros(2)
    g = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 4.0])
    yield (
        steps([[g[0]], [g[1]]], position=position),
        {
            "rank 0: result of step 1, step": torch.tensor([-1.0, -2.0]),
            "rank 1: attribute `velocity` at the end": torch.tensor([2.0]),
        },
    )


@momentum.cases(5)
def _(draw):
    world = draw(st.integers(1, 4))
    size = (12,)
    gradients = [[draw(draws.tensors(size)) for _ in range(3)] for _ in range(world)]
    yield steps(
        gradients, position=draw(draws.tensors(size)), beta=draw(st.sampled_from([0.5, 0.9]))
    )


def large(world=4, size=40_000):
    return steps([[torch.ones(size)]] * world, position=torch.zeros(size))


momentum.contract(
    contracts.resident(
        [large()],
        limit=lambda case: 160_000 + 40_000 + 100,
        says="the position, and a quarter of the velocity",
        probe=probes.steps_on_ranks,
    )
)


def broken_momentum(**changes):
    class ShardedMomentum(ref.ShardedMomentum):
        def step(self, gradient):
            gradient = gradient * changes.get("scale", 1.0)
            self.velocity = self.velocity * changes.get("decay", 1.0)
            if changes.get("local"):
                n = dist.get_world_size()
                own = gradient[self.part] * n
                gradient = torch.zeros_like(gradient)
                gradient[self.part] = own
            return super().step(gradient)

    return ShardedMomentum


momentum.mistake("The gradients are added and not averaged.")(broken_momentum(scale=2.0))
momentum.mistake("The velocity is forgotten between steps.")(broken_momentum(decay=0.0))
momentum.mistake("Each rank uses only its own gradient.")(broken_momentum(local=True))


@momentum.mistake("Every rank keeps the whole velocity.", cost=True)
class _Whole(ref.ShardedMomentum):
    def __init__(self, position, beta=0.5):
        super().__init__(position, beta)
        self._whole = torch.zeros_like(position)

    def step(self, gradient):
        mean = gradient.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        self._whole = self.beta * self._whole + mean
        self.position = self.position - self._whole
        self.velocity = self._whole[self.part]
        return self.position


@momentum.alternative("a method that rank 0 drives by scatter and broadcast")
class _ByRoot:
    def __init__(self, position, beta=0.5):
        n, rank = dist.get_world_size(), dist.get_rank()
        self.position, self.beta = position.clone(), beta
        self.part = slice(rank * len(position) // n, (rank + 1) * len(position) // n)
        self.velocity = torch.zeros_like(position[self.part])

    def step(self, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        self.velocity = self.beta * self.velocity + gradient[self.part] / dist.get_world_size()
        parts = [torch.empty_like(self.velocity) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.position[self.part] - self.velocity)
        self.position = torch.cat(parts)
        return self.position


TOYS = (ring, average, momentum)
