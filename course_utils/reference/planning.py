"""Chapter 20, the planner: which layout of a cluster trains a model in the least time.

One set of constants for every model and every cluster. A micro-batch is one sequence; m is how many of
them each replica has in a step. Bytes are bytes, times are seconds.
"""

from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import NamedTuple

USABLE = 0.8
"""Part of a device's memory that a plan may fill. The rest is for the CUDA context, the buffers of
collectives, fragments and temporary tensors."""
EFFICIENCY = 0.6
"""Part of the peak FLOP/s that the large products of a transformer reach on one device."""
LINK_EFFICIENCY = 0.8
"""Part of a link's rated bandwidth that a large transfer reaches."""
LEAST_TOKENS = 8192
"""Context parallelism leaves each rank at least so many tokens of a sequence."""


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer, and what one step trains it on.

    layers, width, vocab: as usual; embedding and head are counted as a matrix each.
    ffn: hidden width of the MLP; ffn_matrices: 2, or 3 if it is gated (SwiGLU). kv:
    width of the keys over `width` (1 without grouped queries). batch: sequences of a
    step; context: tokens of each. In a mixture of experts each layer has, in place of
    the MLP, `experts` gated MLPs of hidden width `expert_ffn`; a token uses `active` of
    them, and `shared` more that every token uses. nodes: on how many nodes at most a
    token's experts are, if the router has such a limit (0: none). kept: bytes of a number
    that is kept for backward, 2 in BF16.
    """

    layers: int
    width: int
    vocab: int
    ffn: int
    ffn_matrices: int = 2
    kv: float = 1.0
    batch: int = 1024
    context: int = 2048
    experts: int = 0
    active: int = 0
    shared: int = 0
    expert_ffn: int = 0
    nodes: int = 0
    kept: float = 2.0


@dataclass(frozen=True)
class Cluster:
    """Equal devices in equal nodes.

    flops: peak FLOP/s of a device in BF16. memory: bytes of its memory; hbm: bytes a
    second that it reads or writes of that. inside: bytes a second that a device sends
    to others of its node; between: to other nodes. node: devices in a node. zero_stages:
    the stages of ZeRO that the software has.
    """

    devices: int
    flops: float
    memory: float
    hbm: float
    inside: float
    between: float
    node: int = 8
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)


class Layout(NamedTuple):
    """The sizes of a mesh's axes, and how they are used.

    ep: ranks over which experts are spread; they are among the dp · cp that hold the
    same layers. chunks: groups of layers on a pipeline rank (1: not interleaved). zero:
    the stage of ZeRO, 0 to 3, over dp · cp ranks. recompute: 0 nothing, 1 what is
    elementwise (norms, activation functions), 2 each layer from its input.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    chunks: int = 1
    zero: int = 0
    recompute: int = 0


# ------------------------------------------------------------------------------ the model


def layer_parameters(model: Model) -> tuple[int, int]:
    """Parameters of a layer: those of every token, and those of its routed experts. Norms, biases aside."""
    attention = round((2 + 2 * model.kv) * model.width**2)
    if not model.experts:
        return attention + model.ffn_matrices * model.width * model.ffn, 0
    expert = 3 * model.width * model.expert_ffn
    return attention + model.shared * expert, model.experts * expert


def used_parameters(model: Model) -> int:
    """Parameters of a layer that one token uses."""
    every, routed = layer_parameters(model)
    return every + (routed // model.experts * model.active if model.experts else 0)


def parameters(model: Model) -> tuple[int, int]:
    """Parameters of the model: all, and those that one token uses."""
    rest = 2 * model.vocab * model.width
    every, routed = layer_parameters(model)
    return model.layers * (every + routed) + rest, model.layers * used_parameters(model) + rest


def layer_flops(model: Model) -> float:
    """FLOPs of a layer's forward pass over one sequence; attention is causal, half of the pairs."""
    return 2.0 * used_parameters(model) * model.context + 2.0 * model.context**2 * model.width


def kept_bytes(model: Model, recompute: int) -> float:
    """Bytes that autograd keeps of one layer for one token, with flash attention.

    recompute 0: the inputs and outputs of both norms, q, k, v, the heads' output, and
    of each MLP (with experts: of each that the token uses) its first products and their
    activation. 1: the norms' outputs and the activation are left out. 2: only the
    layer's input.
    """
    h = model.width
    if recompute == 2:
        return model.kept * h
    mlps = model.active + model.shared if model.experts else 1
    inner = model.expert_ffn if model.experts else model.ffn
    products = 2 if model.experts else model.ffn_matrices - 1
    numbers = (4 + 2 * model.kv + mlps - 1) * h + mlps * products * inner
    if recompute == 0:
        numbers += 2 * h + mlps * inner
    return model.kept * numbers


def layers_of_stage(model: Model, pp: int) -> tuple[int, float]:
    """Layers of the fullest of pp stages, and the slowest stage's time in times of a layer.

    The last stage has the head as well. The others have n layers each, it has the rest;
    n is the choice for which the slowest stage is fastest.
    """
    head = 2 * model.vocab * model.width * model.context / layer_flops(model)
    if pp == 1:
        return model.layers, float(model.layers + head)
    fewest = ceil(model.layers / pp)
    slowest, n = min(
        (max(n, max(model.layers - (pp - 1) * n, 0) + head), n) for n in (fewest, fewest + 1)
    )
    return n, float(slowest)


def _on_a_rank(model: Model, layout: Layout) -> tuple[tuple[float, int, int], ...]:
    """Parameters of the fullest rank, on how many ranks they are the same, and how far apart these are."""
    every, routed = layer_parameters(model)
    n, _ = layers_of_stage(model, layout.pp)
    embedding = model.vocab * model.width * (2 if layout.pp == 1 else 1)
    copies = layout.dp * layout.cp
    return (
        ((n * every + embedding) / layout.tp, copies, layout.tp),
        (n * routed / layout.ep / layout.tp, copies // layout.ep, layout.tp * layout.ep),
    )


# ------------------------------------------------------------------------------ memory


def memory(model: Model, layout: Layout) -> dict[str, float]:
    """Bytes that the fullest rank holds, by what they are for.

    A parameter takes 2 bytes, its gradient 4 (micro-batches are added up in FP32), its
    optimizer state 12 (master copy, two moments). ZeRO 1 shards the state over the
    ranks with the same parameters, 2 the gradients too, 3 the parameters too, of which
    two layers are whole then. Activations are `kept_bytes` a token and layer, divided by
    tp · cp. A stage holds those of at most pp micro-batches, with c > 1 chunks of at most
    pp + (pp − 1)/c, and never of more than m. Recomputing adds one whole layer's. Without
    a pipeline the logits are here too, 6 bytes each.
    """
    pp, zero = layout.pp, layout.zero
    held = {"parameters": 0.0, "gradients": 0.0, "state": 0.0}
    for numbers, copies, _ in _on_a_rank(model, layout):
        held["parameters"] += 2 * numbers / (copies if zero == 3 else 1)
        held["gradients"] += 4 * numbers / (copies if zero >= 2 else 1)
        held["state"] += 12 * numbers / (copies if zero >= 1 else 1)
    if zero == 3:
        every, routed = layer_parameters(model)
        held["parameters"] += 2 * 2 * (every + routed / layout.ep) / layout.tp
    n, _ = layers_of_stage(model, pp)
    tokens = model.context / layout.tp / layout.cp
    further = (pp - 1) / layout.chunks if layout.chunks > 1 else 0.0
    in_flight = min(model.batch // layout.dp, pp + further)
    held["activations"] = in_flight * n * tokens * kept_bytes(model, layout.recompute)
    if layout.recompute:
        held["activations"] += tokens * kept_bytes(model, 0)
    if pp == 1:
        held["activations"] += 6 * tokens * model.vocab
    return held


# ------------------------------------------------------------------------------ time


def bandwidth(cluster: Cluster, ranks: int, stride: int, rings: bool = False) -> float:
    """Bytes a second that each rank of a group sends, if its ranks are `stride` apart.

    A group within a node has the node's links. rings: for all-reduce and its halves,
    which run a ring through each rank of a node, each over that rank's own way out: k
    ranks of the group in a node send k times as fast.
    """
    if ranks * stride <= cluster.node:
        return LINK_EFFICIENCY * cluster.inside
    ways = max(1, cluster.node // stride) if rings else 1
    return LINK_EFFICIENCY * min(cluster.inside, ways * cluster.between)


def step_seconds(
    model: Model, cluster: Cluster, layout: Layout, tensor_stride: int = 1
) -> dict[str, float]:
    """Seconds of one step, by what they go to; communication counts where nothing hides it.

    - compute: three times the forward FLOPs, four if layers are recomputed, of the
      slowest stage; or, if that is longer, reading and writing the weights (2 bytes a
      pass, and 8 to add to a gradient in FP32). Recomputing what is elementwise reads
      and writes it three times.
    - tensor: two all-reduces a layer in each pass, hidden by nothing.
    - context: a layer's keys and values around the ring, twice as many in backward;
      attention hides them.
    - expert: two all-to-alls a layer in each pass; another micro-batch's compute hides
      them. To other nodes a token goes once for each expert, or for each node, if there
      is a limit and it is less.
    - hops: activations and their gradients from stage to stage, once for each chunk.
    - bubble: (pp − 1)/chunks micro-batches' time.
    - data: gradients and parameters between replicas. ZeRO 0 and 1 hide them behind one
      backward pass, ZeRO 2 (a reduction for each pp micro-batches) and 3 (a reduction
      and two gathers for each) behind all compute.

    tensor_stride: how far apart the ranks of a tensor-parallel group are; 1 in every
    sensible mesh.
    """
    dp, tp, pp, cp, ep, chunks, zero, recompute = layout
    m = model.batch // dp
    n, slowest = layers_of_stage(model, pp)
    every, routed = layer_parameters(model)
    speed = cluster.flops * EFFICIENCY * tp * cp  # of the ranks that share a micro-batch
    passes = 2 if recompute < 2 else 3  # forward, (again,) backward: backward counts twice

    flops = (passes + 1) * layer_flops(model) / speed
    touched = (2 * (passes + 1) + 8) * (every + routed / ep) / tp / cluster.hbm
    again = kept_bytes(model, 0) - kept_bytes(model, 1) if recompute == 1 else 0.0
    elementwise = 3 * again * model.context / (tp * cp) / cluster.hbm
    compute = slowest * (max(flops, touched) + elementwise)

    stream = 2 * model.context / cp * model.width  # bytes of a micro-batch between layers
    reduced = 2 * (tp - 1) / tp * stream
    tensor = passes * n * 2 * reduced / bandwidth(cluster, tp, tensor_stride, rings=True)
    ring = 2 * model.kv * stream / tp * (cp - 1) / bandwidth(cluster, cp, tp)
    attention = 2 * model.context**2 * model.width / speed
    context = n * (2 * passes - 1) * max(0.0, ring - attention)
    times = model.active
    if model.nodes and ep * tp > cluster.node:
        times = min(times, model.nodes)
    moved = times * stream / tp * (ep - 1) / ep
    expert = max(0.0, passes * n * 2 * moved / bandwidth(cluster, ep, tp) - compute)
    hops = 2 * chunks * stream / tp / bandwidth(cluster, pp, tp * cp * dp) * (pp > 1)
    micro = compute + tensor + context + expert + hops

    data = 0.0
    gathers = 2 * 2 * m if zero == 3 else 2 if zero else 4
    reductions = {0: 1, 1: 1, 2: ceil(m / pp), 3: m}[zero]
    for numbers, copies, stride in _on_a_rank(model, layout):
        moved = (gathers + 4 * reductions) * numbers * (copies - 1) / copies
        data += moved / bandwidth(cluster, copies, stride, rings=True)
    hidden = m * compute if zero >= 2 else compute * 2 / (passes + 1)
    return {
        "compute": m * compute,
        "tensor": m * tensor,
        "context": m * context,
        "expert": m * expert,
        "hops": m * hops,
        "bubble": (pp - 1) / chunks * micro,
        "data": max(0.0, data - hidden),
    }


# ------------------------------------------------------------------------------ the choice


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4, … up to limit, at least 1."""
    return [2**i for i in range(max(1, limit).bit_length())]


def plan_parallelism(model: Model, cluster: Cluster, top: int = 1) -> list[Layout]:
    """The `top` fastest layouts of all that fit, the fastest first.

    A Layout uses every device: dp · tp · pp · cp = cluster.devices, where

    - tp is a power of two, at most cluster.node;
    - cp is 1, or a power of two that leaves each rank at least LEAST_TOKENS of the
      model.context tokens;
    - pp is from 1 to model.layers;
    - dp divides model.batch, so that a replica has m = batch / dp micro-batches;
    - ep is 1, or a power of two, at most model.experts, that divides dp · cp;
    - chunks divides n, the layers of a stage: `n, _ = layers_of_stage(model, pp)`; it is
      1 without a pipeline, and where pp does not divide m;
    - zero is one of cluster.zero_stages; recompute is 0, 1 or 2.

    It fits if the values of the dict `memory(model, layout)` add up to at most USABLE ·
    cluster.memory. Its time is the sum of the values of `step_seconds(model, cluster,
    layout)`. Of layouts that take equally long the one that is smaller as a tuple (tp,
    pp, cp, ep, chunks, zero, recompute) comes first. Fewer than `top` fit: all of these;
    none: an empty list.
    """
    sizes = [
        (cluster.devices // (tp * cp * pp), tp, pp, cp)
        for tp in powers_of_two(cluster.node)
        for cp in powers_of_two(model.context // LEAST_TOKENS)
        for pp in range(1, model.layers + 1)
        if cluster.devices % (tp * cp * pp) == 0
    ]
    found = []
    for dp, tp, pp, cp in sizes:
        if model.batch % dp:
            continue
        n, _ = layers_of_stage(model, pp)
        interleaved = pp > 1 and model.batch // dp % pp == 0
        for ep, chunks, zero, recompute in product(
            [e for e in powers_of_two(model.experts) if dp * cp % e == 0],
            [c for c in range(1, n + 1) if n % c == 0] if interleaved else [1],
            cluster.zero_stages,
            (0, 1, 2),
        ):
            layout = Layout(dp, tp, pp, cp, ep, chunks, zero, recompute)
            if sum(memory(model, layout).values()) <= USABLE * cluster.memory:
                seconds = sum(step_seconds(model, cluster, layout).values())
                found.append((seconds, layout[1:], layout))
    return [layout for _, _, layout in sorted(found)[:top]]


# ------------------------------------------------------------------------------ what was published


class Published(NamedTuple):
    """A run that was published: the model, the cluster, and the layout (dp, tp, pp, cp, ep)."""

    model: Model
    cluster: Cluster
    layout: tuple[int, int, int, int, int]
    source: str


def a100(devices: int, *zero_stages: int, memory: float = 80e9) -> Cluster:
    """NVIDIA's A100 in a DGX, nodes of eight: data sheet; 200 Gb/s of InfiniBand for each."""
    return Cluster(devices, 312e12, memory, 2.0e12, 300e9, 25e9, zero_stages=zero_stages)


def h100(devices: int, *zero_stages: int) -> Cluster:
    """NVIDIA's H100 SXM in nodes of eight: data sheet; 400 Gb/s for each."""
    return Cluster(devices, 989e12, 80e9, 3.35e12, 450e9, 50e9, zero_stages=zero_stages)


def _gpt(layers: int, width: int, batch: int, vocab: int = 51200) -> Model:
    return Model(layers, width, vocab, 4 * width, batch=batch)


_LLAMA = (126, 16384, 128256, 53248, 3, 1 / 16)
_MEGATRON = "Narayanan et al. (2021), table 1"

PUBLISHED: dict[str, Published] = {
    "GPT 1.7B": Published(_gpt(24, 2304, 512), a100(32, 0), (32, 1, 1, 1, 1), _MEGATRON),
    "GPT 3.6B": Published(_gpt(30, 3072, 512), a100(64, 0), (32, 2, 1, 1, 1), _MEGATRON),
    "GPT 7.5B": Published(_gpt(36, 4096, 512), a100(128, 0), (32, 4, 1, 1, 1), _MEGATRON),
    "GPT 18B": Published(_gpt(40, 6144, 1024), a100(256, 0), (32, 8, 1, 1, 1), _MEGATRON),
    "GPT 39B": Published(_gpt(48, 8192, 1536), a100(512, 0), (32, 8, 2, 1, 1), _MEGATRON),
    "GPT 76B": Published(_gpt(60, 10240, 1792), a100(1024, 0), (32, 8, 4, 1, 1), _MEGATRON),
    "GPT 146B": Published(_gpt(80, 12288, 2304), a100(1536, 0), (24, 8, 8, 1, 1), _MEGATRON),
    "GPT 310B": Published(_gpt(96, 16384, 2160), a100(1920, 0), (15, 8, 16, 1, 1), _MEGATRON),
    "GPT 530B": Published(_gpt(105, 20480, 2520), a100(2520, 0), (9, 8, 35, 1, 1), _MEGATRON),
    "GPT 1T": Published(_gpt(128, 25600, 3072), a100(3072, 0), (6, 8, 64, 1, 1), _MEGATRON),
    "GPT-3 175B": Published(
        _gpt(96, 12288, 1536),
        a100(1536, 0),
        (16, 8, 12, 1, 1),
        "Narayanan et al. (2021), table 2",
    ),
    "MT-NLG 530B": Published(
        _gpt(105, 20480, 1920), a100(2240, 0), (8, 8, 35, 1, 1), "Smith et al. (2022)"
    ),
    "BLOOM 176B": Published(
        _gpt(70, 14336, 2048, 250880), a100(384, 1), (8, 4, 12, 1, 1), "BigScience (2022)"
    ),
    "GLM 130B": Published(
        Model(70, 12288, 150528, 32768, 3, batch=4224),
        a100(768, 1, memory=40e9),
        (24, 4, 8, 1, 1),
        "Zeng et al. (2022)",
    ),
    "Nemotron-4 340B": Published(
        Model(96, 18432, 256000, 4 * 18432, 2, 8 / 96, 2304, 4096),
        h100(6144, 0, 1),
        (64, 8, 12, 1, 1),
        "NVIDIA (2024)",
    ),
    "Llama 3 405B, 8K": Published(
        Model(*_LLAMA, batch=2048, context=8192),
        h100(16384, 0, 1, 2),
        (128, 8, 16, 1, 1),
        "Llama Team (2024), table 4",
    ),
    "Llama 3 405B, 128K": Published(
        Model(*_LLAMA, batch=128, context=131072),
        h100(16384, 0, 1, 2),
        (8, 8, 16, 16, 1),
        "Llama Team (2024), table 4",
    ),
    "DeepSeek-V3-like": Published(
        Model(61, 7168, 129280, 18432, 3, 1 / 4, 15360, 4096, 256, 8, 1, 2048, 4, 1.0),
        Cluster(2048, 989e12, 80e9, 3.35e12, 200e9, 50e9, zero_stages=(1,)),
        (128, 1, 16, 1, 64),
        "DeepSeek-AI (2024), sections 3.2, 3.3 and 4.2",
    ),
}
"""Layouts that were published. The model of DeepSeek-V3 is simplified: every layer has experts, its
attention is grouped queries with about as many parameters, and products are in BF16. Two facts of the
run are in it: a token goes to four nodes at most, and what is kept for backward is kept in FP8."""


def best_of(run: Published) -> Layout | None:
    """The fastest layout with the published sizes that fits: chunks, zero and recompute are free."""
    for layout in plan_parallelism(run.model, run.cluster, top=10**9):
        if layout[:5] == run.layout:
            return layout
    return None
