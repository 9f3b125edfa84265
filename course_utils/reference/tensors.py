"""Chapter 1, tensors: from padded token ids to masks, pooled states, losses and weights.

Letters: B sequences in the batch, T positions in each, D features, V words in the vocabulary.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def sequence_lengths(ids: Int[Tensor, "B T"], pad_id: int) -> Int[Tensor, "B"]:
    """Number of tokens in each row that are not padding, int64.

    ids: token ids. pad_id: the id that fills short rows up to T. B and T may be 0.
    """
    return (ids != pad_id).sum(dim=1)


def last_token_states(
    hidden: Float[Tensor, "B T D"], lengths: Int[Tensor, "B"]
) -> Float[Tensor, "B D"]:
    """Hidden state of the last real token of each right-padded sequence.

    hidden: one state a position. lengths: real tokens in each row, 1 ≤ lengths ≤ T. B
    may be 0. This is the pooling of GPT-style classifiers and reward models.
    """
    rows = torch.arange(hidden.size(0), device=hidden.device)
    return hidden[rows, lengths - 1]


def padding_to_attention_mask(padding: Bool[Tensor, "B T"]) -> Bool[Tensor, "B 1 1 T"]:
    """Mask that broadcasts against attention scores (B, heads, queries, keys).

    padding: True at padding. B may be 0. Returns True at the keys that may be attended
    to, the convention of torch.nn.functional.scaled_dot_product_attention.
    """
    return ~padding[:, None, None, :]


def causal_mask(T: int, S: int) -> Bool[Tensor, "{T} {S}"]:
    """Which of S keys each of T queries may attend to: those at its own position and before.

    T, S: numbers of queries and keys, 0 ≤ T ≤ S. The queries are the *last* T of the S
    positions, as they are when earlier keys come from a cache. Returns True where
    attention is allowed.
    """
    return torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)


def masked_mean(x: Float[Tensor, "B T D"], keep: Bool[Tensor, "B T"]) -> Float[Tensor, "B D"]:
    """Mean over the positions with keep=True; zeros for a row that keeps none.

    x: one vector a position. B may be 0. What stands at the other positions has no
    influence, even NaN or infinity. Half precision is summed in float32, since float16
    ends at 65,504; the result has x's dtype. This is the mean pooling of sentence
    encoders.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    total = torch.where(keep[:, :, None], x, 0.0).sum(dim=1, dtype=dtype)
    count = keep.sum(dim=1, keepdim=True).clamp(min=1)
    return (total / count).to(x.dtype)


def one_hot_by_scatter(
    ids: Int[Tensor, "B T"], vocab_size: int
) -> Float[Tensor, "B T {vocab_size}"]:
    """Rows of zeros with a single 1.0 at each id, float32, on the device of ids.

    ids: int64, 0 ≤ ids < vocab_size. B may be 0. Makes no tensor larger than the
    result.
    """
    zeros = torch.zeros(*ids.shape, vocab_size, device=ids.device)
    return zeros.scatter_(-1, ids[..., None], 1.0)


def gather_log_probs(
    logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Log-probability, in nats, that the softmax of the logits gives to each target.

    logits: unnormalised, of any finite size. targets: int64, 0 ≤ targets < V. B may be
    0. Logits in half precision are converted to float32, which is then also the dtype
    of the result; float64 stays float64. The negative of its mean is the cross-entropy
    loss of a language model.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_sum_exp = logits.logsumexp(dim=-1)
    picked = logits.gather(-1, targets[..., None]).squeeze(-1)
    return picked - log_sum_exp


def pairwise_sq_distances(x: Float[Tensor, "N D"], y: Float[Tensor, "M D"]) -> Float[Tensor, "N M"]:
    """Squared Euclidean distance of every row of x to every row of y, never negative.

    Uses |x - y|² = |x|² + |y|² - 2 x·y, so that the work is one matmul and no (N, M, D)
    tensor is made. Rounding can push a tiny distance below zero: it is raised to zero.
    N may be 0.
    """
    x_sq = x.square().sum(dim=1)[:, None]
    y_sq = y.square().sum(dim=1)[None, :]
    return (x_sq + y_sq - 2 * x @ y.T).clamp(min=0)


def xavier_uniform(
    fan_out: int, fan_in: int, gain: float = 1.0, generator: torch.Generator | None = None
) -> Float[Tensor, "{fan_out} {fan_in}"]:
    """Weight of a linear layer, uniform on [-a, a] with a = gain · sqrt(6 / (fan_in + fan_out)).

    fan_in, fan_out: features that come in and go out. generator: where the randomness
    comes from; None means torch's global one. float32, no gradient. Source: Glorot and
    Bengio (2010), equation 16; the gain is torch.nn.init's.
    """
    bound = gain * math.sqrt(6.0 / (fan_in + fan_out))
    return bound * (2.0 * torch.rand(fan_out, fan_in, generator=generator) - 1.0)
