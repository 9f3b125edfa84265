"""Chapter 5, resource accounting: what a model costs in operations, in bytes and in days.

A FLOP is one floating-point addition or multiplication; FLOP/s is a speed. A count is exact, an int.
A time is an estimate, a float. Bytes are bytes: no function here counts in GB or GiB.
"""

from collections.abc import Sequence
from math import ceil, prod

SECONDS_PER_DAY = 24 * 60 * 60

# ------------------------------------------------------------------------------ FLOPs


def linear_flops(
    x_shape: tuple[int, ...], out_features: int, *, input_grad: bool = True
) -> tuple[int, int]:
    """FLOPs of a linear layer without bias: of its forward pass, and of its backward pass.

    x_shape: of the input, (..., in_features), with any number of axes in front, even
    none; a size may be 0. The weight is (out_features, in_features). An element of the
    output is a sum of in_features products and costs 2 · in_features. Both results are
    ints. Backward computes the gradients of the weight and, if input_grad, of the
    input: a product of the same size each. Source: Kaplan et al. (2020), section 2.1.
    """
    *batch, in_features = x_shape
    forward = 2 * prod(batch) * in_features * out_features
    return forward, forward * (2 if input_grad else 1)


def attention_flops(
    batch: int, n_head: int, queries: int, keys: int, head_dim: int, *, causal: bool = False
) -> int:
    """FLOPs of the two products of attention in a forward pass: q kᵀ, then weights · v.

    q is (batch, n_head, queries, head_dim); k and v are (batch, n_head, keys,
    head_dim); batch and queries may be 0. causal: count only the pairs that the causal
    mask allows. The last query sees all keys, and each query sees one key fewer than
    the query after it. Softmax, scale and mask are not counted. Raises ValueError if
    causal and there are more queries than keys.
    """
    if causal and queries > keys:
        raise ValueError(f"{queries} causal queries need as many keys; there are {keys}")
    hidden = queries * (queries - 1) // 2 if causal else 0
    pairs = queries * keys - hidden
    return 2 * 2 * batch * n_head * pairs * head_dim


def transformer_flops(
    *,
    n_layer: int,
    n_embd: int,
    vocab: int,
    context: int,
    batch: int,
    checkpointing: bool = False,
) -> dict[str, int]:
    """FLOPs of one training step of GPT-2, forward and backward, by part.

    The parts: "c_attn", the layers that make q, k and v; "attention", the two products
    of all heads, counted without the causal mask; "c_proj", the layers after them;
    "mlp", both layers of each MLP, whose hidden width is 4 · n_embd; "lm_head", the
    layer that makes the logits. Backward costs twice the forward pass. checkpointing:
    each block is computed once more during backward, the head is not. Biases, norms,
    activation functions, embeddings, the loss and the optimizer's step are not counted.
    The number of heads does not matter: together they have n_embd features. n_layer and
    batch may be 0. Source: Chowdhery et al. (2022), appendix B; Korthikanti et al.
    (2022), appendix A.
    """
    tokens = batch * context
    square = 2 * tokens * n_embd * n_embd  # a linear layer from n_embd to n_embd
    block = {
        "c_attn": 3 * square,
        "attention": attention_flops(batch, 1, context, context, n_embd),
        "c_proj": square,
        "mlp": 2 * 4 * square,
    }
    passes = 4 if checkpointing else 3
    parts = {part: n_layer * passes * flops for part, flops in block.items()}
    return parts | {"lm_head": 3 * 2 * tokens * n_embd * vocab}


# ------------------------------------------------------------------------------ bytes

ELEMENT_BYTES: dict[str, tuple[int, int, int, int]] = {
    "fp32": (4, 4, 0, 4),
    "bf16 mixed": (4, 4, 0, 4),
    "bf16 master": (2, 2, 4, 4),
    "bf16": (2, 2, 0, 2),
}
"""For each precision the bytes of a parameter, a gradient, a master copy and a number of the state."""

STATE_NUMBERS: dict[str, int] = {"sgd": 0, "momentum": 1, "adamw": 2}
"""How many numbers an optimizer remembers for each parameter that it trains."""


def training_memory(
    trainable: int, frozen: int = 0, *, precision: str = "fp32", optimizer: str = "adamw"
) -> dict[str, int]:
    """Bytes in memory when the optimizer steps, by what they are for, without activations.

    trainable, frozen: how many parameters of each kind; a frozen one has neither
    gradient nor state nor master copy. precision: "fp32", everything in float32; "bf16
    mixed", as "fp32", since autocast leaves all of these in float32; "bf16 master",
    parameters and gradients in bfloat16, with a master copy and state in float32;
    "bf16", everything in bfloat16 and no master copy. optimizer: "sgd" keeps nothing,
    "momentum" one number for each parameter that it trains, "adamw" two.

    Returns "parameters", "gradients", "master_weights" (0 if there are none) and
    "optimizer_state". Raises ValueError for any other precision or optimizer. Source:
    Rajbhandari et al. (2020), section 3.1.
    """
    if precision not in ELEMENT_BYTES or optimizer not in STATE_NUMBERS:
        raise ValueError(f"no memory is known for {precision!r} with {optimizer!r}")
    parameter, gradient, master, state = ELEMENT_BYTES[precision]
    return {
        "parameters": parameter * (trainable + frozen),
        "gradients": gradient * trainable,
        "master_weights": master * trainable,
        "optimizer_state": STATE_NUMBERS[optimizer] * state * trainable,
    }


def activation_bytes(
    batch: int,
    context: int,
    n_embd: int,
    n_head: int,
    *,
    stream: int = 4,
    product: int = 4,
    flash: bool = True,
) -> int:
    """Bytes that autograd keeps of one GPT-2 block without dropout, between forward and backward.

    stream: bytes of an element of the residual stream. product: bytes of an element of
    what is multiplied. Under autocast they are 4 and 2; other formats have other bytes,
    from 1 to 8. batch may be 0. Kept are:

    - in stream bytes, (batch, context, n_embd) each: the inputs of both LayerNorms;
    - in product bytes, (batch, context, n_embd) each: the inputs of c_attn, of c_proj
      (the heads' output) and of the MLP's first layer; q, k and v;
    - in product bytes, four times as wide: GELU's input and GELU's output;
    - in float32: a mean and a reciprocal deviation for each row of each LayerNorm;
    - with flash attention, in float32: one number for each head and query;
    - without: the softmax, (batch, n_head, context, context), in float32, and if
      product is less than 4 a copy of it in product bytes.

    Source: Korthikanti et al. (2022), section 4.1.
    """
    rows = batch * context
    width = rows * n_embd
    maps = batch * n_head * context * context
    norms = 2 * (stream * width + 2 * 4 * rows)
    products = (3 + 3 + 2 * 4) * product * width
    if flash:
        return norms + products + 4 * batch * n_head * context
    return norms + products + (4 + (product if product < 4 else 0)) * maps


# ------------------------------------------------------------------------------ time


def matmul_intensity(m: int, k: int, n: int, element_size: int = 2) -> float:
    """FLOPs for each byte that a product of (m, k) and (k, n) has to move.

    Both factors are read once and the result is written once, in element_size bytes an
    element. No size is 0. Source: Williams, Waterman and Patterson (2009).
    """
    return 2 * m * k * n / (element_size * (m * k + k * n + m * n))


def roofline_time(
    operations: Sequence[tuple[float, float]], peak_flops: float, bandwidth: float
) -> float:
    """Seconds that operations take at least, one after the other.

    operations: (FLOPs, bytes moved) of each, at least one. An operation computes and
    moves bytes at the same time, so it takes the longer of the two times; the next
    begins when it is done. peak_flops: FLOP/s; bandwidth: bytes a second. Raises
    ValueError unless both are above 0. Source: Williams, Waterman and Patterson (2009).
    """
    if peak_flops <= 0 or bandwidth <= 0:
        raise ValueError(f"a machine with {peak_flops} FLOP/s and {bandwidth} bytes/s")
    return sum(max(flops / peak_flops, size / bandwidth) for flops, size in operations)


def mfu(
    tokens_per_second: float,
    n_parameters: int,
    peak_flops: float,
    *,
    n_gpus: int = 1,
    n_layer: int = 0,
    n_embd: int = 0,
    context: int = 0,
) -> float:
    """Model FLOPs utilization of training at this speed, as a share of the peak: 0.4 for 40 %.

    A token costs 6 · n_parameters + 12 · n_layer · n_embd · context FLOPs; the second
    term is attention's, and 0 unless the three are given. n_embd: all heads together.
    tokens_per_second: of all GPUs together. peak_flops: FLOP/s of one GPU.
    Recomputation is not counted. Raises ValueError if n_gpus is below 1. Source:
    Chowdhery et al. (2022), appendix B.
    """
    if n_gpus < 1:
        raise ValueError(f"{n_gpus} GPUs")
    per_token = 6 * n_parameters + 12 * n_layer * n_embd * context
    return tokens_per_second * per_token / (n_gpus * peak_flops)


def days_to_train(
    n_parameters: int, n_tokens: int, n_gpus: int, peak_flops: float, mfu: float
) -> float:
    """Days that training takes, by 6 · n_parameters · n_tokens FLOPs.

    n_gpus: at least 1. peak_flops: FLOP/s of one GPU. mfu: the share of it that is
    used, above 0 and up to 1. Raises ValueError for any other share. Source: Kaplan et
    al. (2020), section 2.1.
    """
    if not 0 < mfu <= 1:
        raise ValueError(f"a share is above 0 and at most 1; came {mfu}")
    return 6 * n_parameters * n_tokens / (n_gpus * peak_flops * mfu) / SECONDS_PER_DAY


def communication_bytes(n_parameters: int, world_size: int, element_size: int = 4) -> int:
    """Bytes that each rank sends in one data-parallel step: a ring all-reduce of all gradients.

    The gradients are one vector of n_parameters elements, of element_size bytes each.
    It is padded to world_size equal chunks, and padding is sent too. A rank sends
    world_size − 1 chunks in the reduce-scatter and as many in the all-gather. One rank
    alone sends nothing. Raises ValueError for a world size below 1. Source: Patarasuk
    and Yuan (2009).
    """
    if world_size < 1:
        raise ValueError(f"a world of {world_size} ranks")
    chunk = -(-n_parameters // world_size)
    return 2 * (world_size - 1) * chunk * element_size


def plan_training(
    n_parameters: int,
    n_tokens: int,
    max_days: float,
    *,
    peak_flops: float,
    gpu_bytes: int,
    mfu: float = 0.4,
    bytes_per_parameter: int = 16,
    activations: int = 0,
    gpus_per_node: int = 8,
    dollars_per_hour: float = 2.0,
) -> dict[str, int | float]:
    """The fewest GPUs, in whole nodes, that hold a model and train it within max_days.

    Parameters, gradients and optimizer state take bytes_per_parameter together. They
    are split evenly over all GPUs, each share rounded up to whole bytes. activations:
    bytes that each GPU needs besides its share. gpu_bytes: the memory of one GPU. mfu,
    peak_flops: as for `days_to_train`, the error included; mfu does not depend on the
    number of GPUs. n_parameters, n_tokens and max_days are above 0. dollars_per_hour:
    for one GPU.

    Returns "gpus"; "days", how long these GPUs take; "bytes", share and activations of
    one GPU; "dollars", for all GPUs and days. Raises ValueError if activations leave no
    room for a share.
    """
    room = gpu_bytes - activations
    if room <= 0:
        raise ValueError(f"{activations} bytes of activations fill a GPU of {gpu_bytes}")
    state = bytes_per_parameter * n_parameters
    alone = days_to_train(n_parameters, n_tokens, 1, peak_flops, mfu)
    needed = max(-(-state // room), ceil(alone / max_days))
    gpus = -(-needed // gpus_per_node) * gpus_per_node
    return {
        "gpus": gpus,
        "days": alone / gpus,
        "bytes": activations + -(-state // gpus),
        "dollars": 24 * alone * dollars_per_hour,
    }


# ------------------------------------------------------------------------------ published figures

GPUS: dict[str, tuple[float, float, int]] = {
    "V100 SXM2": (125e12, 0.9e12, 32 * 10**9),
    "A100 SXM 80 GB": (312e12, 2.039e12, 80 * 10**9),
    "H100 SXM": (989.4e12, 3.35e12, 80 * 10**9),
    "H200 SXM": (989.4e12, 4.8e12, 141 * 10**9),
    "B200 SXM": (2250e12, 8e12, 180 * 10**9),
}
"""Of each GPU: dense FLOP/s in 16 bits on tensor cores, bytes a second from its memory, and bytes of
it by its name, as NVIDIA's data sheets and white papers give them. The sheets of A100 and later print
the double, with sparsity, beside or instead of the dense rate; V100 has float16 and no bfloat16. B200
is an eighth of a DGX B200."""
