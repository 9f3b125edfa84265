"""Chapter 22, attention: one dot product, masks, heads, positions, and the same sum in tiles."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def scaled_dot_product_attention(
    q: Float[Tensor, "*batch T d"],
    k: Float[Tensor, "*batch S d"],
    v: Float[Tensor, "*batch S e"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch T e"]:
    """softmax(q kᵀ / √d) v: for each query a mean of the values, weighted by its scores.

    mask: True where a query may attend to a key, broadcast against (*batch, T, S);
    without one every query sees every key. A query that may attend to nothing gives
    zeros, and all gradients stay finite. A NaN in a query that may attend to something
    makes its result NaN; one in a key or value, those of all queries that may attend to
    it. (What a hidden NaN does is not checked.) S is at least 1. Result: of q's dtype.
    Source: Vaswani et al. (2017), section 3.2.1; the zeros,
    `torch.nn.functional.scaled_dot_product_attention`.
    """
    scores = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5
    if mask is None:
        return scores.softmax(dim=-1) @ v
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0) @ v


def causal_mask(T: int, S: int, window: int | None = None) -> Bool[Tensor, "T S"]:
    """Which keys each query may attend to: its own position and earlier ones.

    The T queries are the last T of the S positions: query t is position S − T + t. With
    more queries than keys the first queries see nothing. window: a query sees only its
    own position and the window − 1 before it. Result: bool, True where the query may
    attend. Raises ValueError for a window below 1.
    """
    if window is not None and window < 1:
        raise ValueError(f"a window holds the query's own position at least; came {window}")
    distance = torch.arange(S - T, S)[:, None] - torch.arange(S)
    near = distance < (S if window is None else window)
    return (distance >= 0) & near


def document_mask(
    documents: Int[Tensor, "B T"], *, causal: bool = True, window: int | None = None
) -> Bool[Tensor, "B 1 T T"]:
    """Who may attend to whom where rows hold several documents and padding.

    documents: for each position the number of its document, which may come again later
    in the row; a negative one is padding. A position sees those of its own document:
    with causal, itself and earlier ones; with window, which is at least 1, those fewer
    than `window` positions of the row away, on both sides if not causal. Padding sees
    nothing and nobody sees it. Result: bool, True where the query (third
    axis) may attend to the key (fourth); the second axis is for the heads. B and T may
    be 0. On the device of `documents`.
    """
    position = torch.arange(documents.size(1), device=documents.device)
    distance = position[:, None] - position
    allowed = documents[:, :, None] == documents[:, None, :]
    allowed = allowed & (documents >= 0)[:, :, None]
    if causal:
        allowed = allowed & (distance >= 0)
    if window is not None:
        allowed = allowed & (distance.abs() < window)
    return allowed[:, None]


def multi_head_attention(
    x: Float[Tensor, "B T D"],
    context: Float[Tensor, "B S C"],
    w_q: Float[Tensor, "width D"],
    w_k: Float[Tensor, "width C"],
    w_v: Float[Tensor, "width C"],
    w_o: Float[Tensor, "D width"],
    n_head: int,
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "B T D"]:
    """Attention in n_head heads: queries from x, keys and values from context.

    Self-attention is context = x. Each weight is that of an nn.Linear without bias,
    (out, in). Head h has the d = width / n_head features from h · d on, of queries,
    keys and values alike; the heads' results stand side by side in this order before
    w_o. mask: as for `scaled_dot_product_attention`, broadcast against (B, n_head, T,
    S). Raises ValueError unless n_head divides width. Source: Vaswani et al. (2017),
    section 3.2.2.
    """
    if w_q.size(0) % n_head:
        raise ValueError(f"{n_head} heads cannot share {w_q.size(0)} features evenly")
    q = (x @ w_q.T).unflatten(-1, (n_head, -1)).transpose(1, 2)  # (B, H, T, d)
    k = (context @ w_k.T).unflatten(-1, (n_head, -1)).transpose(1, 2)
    v = (context @ w_v.T).unflatten(-1, (n_head, -1)).transpose(1, 2)
    y = scaled_dot_product_attention(q, k, v, mask)
    return y.transpose(1, 2).flatten(2) @ w_o.T


def grouped_query_attention(
    q: Float[Tensor, "B H T d"],
    k: Float[Tensor, "B kv S d"],
    v: Float[Tensor, "B kv S e"],
    mask: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "B H T e"]:
    """Attention in which H / kv query heads share each head of keys and values.

    Query head h reads the key head h // (H // kv). kv = 1 is multi-query attention, kv
    = H is ordinary attention. mask: as for `scaled_dot_product_attention`, broadcast
    against (B, H, T, S). k and v are not repeated in memory. Raises ValueError unless kv
    divides H. Source: Ainslie et al. (2023), section 2.
    """
    B, H, T, _ = q.shape
    kv, S = k.shape[1:3]
    if H % kv:
        raise ValueError(f"{H} query heads cannot share {kv} key heads evenly")
    stacked = q.reshape(B, kv, H // kv * T, q.size(-1))  # a group's queries, one below the other
    if mask is not None:
        mask = mask.expand(B, H, T, S).reshape(B, kv, H // kv * T, S)
    return scaled_dot_product_attention(stacked, k, v, mask).reshape(B, H, T, v.size(-1))


def apply_rope(
    x: Float[Tensor, "*batch T d"],
    positions: Int[Tensor, "..."],
    *,
    base: float = 10_000.0,
    interleaved: bool = False,
) -> Float[Tensor, "*batch T d"]:
    """Each pair of features turned by position · base^(−2i / d), for pair i.

    x: queries or keys; d is even. positions: broadcast against (*batch, T), any
    integers. The pair i is features i and i + d / 2, or with interleaved 2i and 2i + 1.
    (a, b) becomes (a cos − b sin, a sin + b cos), each in its own place. Angles and
    products are computed in float32, in float64 for a float64 x. Result: of x's dtype,
    on x's device. Raises ValueError for an odd d. Source: Su et al. (2021), section
    3.4.2; halves as in GPT-NeoX and Transformers' Llama, pairs of neighbours as in
    Meta's Llama.
    """
    if x.size(-1) % 2:
        raise ValueError(f"pairs need an even number of features; came {x.size(-1)}")
    wide = torch.promote_types(x.dtype, torch.float32)
    pair = torch.arange(x.size(-1) // 2, dtype=wide, device=x.device)
    angle = positions[..., None] * base ** (-2 * pair / x.size(-1))  # (..., T, d / 2)
    cos, sin = angle.cos(), angle.sin()
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    turned = a * cos - b * sin, a * sin + b * cos
    y = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return y.to(x.dtype)


def pairs_to_halves(
    weight: Float[Tensor, "width *in_features"], n_head: int
) -> Float[Tensor, "width *in_features"]:
    """The rows of a projection to queries or keys, reordered for the other layout of RoPE.

    weight: (n_head · d, in), trained for pairs of neighbours; or its bias, (n_head ·
    d,). In each head row 2i moves to i and row 2i + 1 to i + d / 2. Queries and keys
    made by the result and rotated in halves then have the scores that they had before.
    Raises ValueError unless d is a whole and even number. Source: `permute` in
    Transformers' conversion of Llama weights.
    """
    if weight.size(0) % (2 * n_head):
        raise ValueError(f"{weight.size(0)} rows are not {n_head} heads of an even size")
    return weight.unflatten(0, (n_head, -1, 2)).transpose(1, 2).flatten(0, 2)


def alibi_bias(n_head: int, T: int, S: int) -> Float[Tensor, "n_head T S"]:
    """ALiBi as an additive mask: −slope · distance for the past, −inf for the future.

    The T queries are the last T of the S positions. If n_head is a power of two, the
    slope of head h, from 0, is 2^(−8 (h + 1) / n_head). Otherwise, with p the largest
    power of two below n_head: the p slopes for p heads come first, then the first,
    third, fifth … of the slopes for 2p heads, as many as are missing. Result: float32.
    Source: Press, Smith and Lewis (2022), section 3 and the authors' `get_slopes`.
    """
    power = 2 ** (n_head.bit_length() - 1)
    exponents = [8 * (h + 1) / power for h in range(power)]
    exponents += [4 * (2 * h + 1) / power for h in range(n_head - power)]
    slopes = 2.0 ** -torch.tensor(exponents)
    distance = torch.arange(S - T, S)[:, None] - torch.arange(S)
    return (-slopes[:, None, None] * distance).masked_fill(distance < 0, -math.inf)


def online_softmax(
    maximum: Float[Tensor, "*rows"],
    total: Float[Tensor, "*rows"],
    output: Float[Tensor, "*rows e"],
    scores: Float[Tensor, "*rows n"],
    values: Float[Tensor, "*batch n e"],
) -> tuple[Float[Tensor, "*rows"], Float[Tensor, "*rows"], Float[Tensor, "*rows e"]]:
    """One step of attention over a stream: the state after n further keys.

    The state of a row, over all keys seen so far: maximum, of their scores (−inf before
    the first); total, the sum of exp(score − maximum); output, the sum of exp(score −
    maximum) · value. A score of −inf is a key that is masked out and adds nothing; a
    row that has seen no other keeps maximum −inf, total 0 and output 0. *rows is
    (*batch, T): all T rows of a batch entry share its values. n is at least 1, and all
    have one dtype, float32 or float64. Returns the three of the new state, new tensors,
    of that dtype. Source: Milakov and Gimelshein (2018),
    algorithm 3; with values, Dao et al. (2022), section 3.1.
    """
    new = torch.maximum(maximum, scores.amax(dim=-1))
    shift = new.masked_fill(new == -math.inf, 0.0)  # exp(−inf − 0) is 0, −inf − −inf is NaN
    weights = (scores - shift[..., None]).exp()
    keep = (maximum - shift).exp()
    total = total * keep + weights.sum(dim=-1)
    return new, total, output * keep[..., None] + weights @ values


def flash_attention_forward(
    q: Float[Tensor, "*batch T d"],
    k: Float[Tensor, "*batch S d"],
    v: Float[Tensor, "*batch S e"],
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Float[Tensor, "*batch T e"], Float[Tensor, "*batch T"]]:
    """Attention in tiles of block_q queries and block_k keys, and what backward needs of it.

    causal: the T queries are the last T of the S positions, and see themselves and
    earlier ones; a tile in which every score is masked out is not computed. The last
    tiles may be smaller. Returns the result, of q's dtype, and the logarithm of each
    row's sum of exp(q · k / √d) over the keys that it sees. A row that sees nothing
    gives zeros and −inf. Computed in float32, in float64 for float64 inputs; so is the
    second result. Both are on q's device. Nothing of T · S elements is made, unless T
    and S fit into one tile. Source: Dao (2023), algorithm 1.
    """
    T, S, scale = q.size(-2), k.size(-2), q.size(-1) ** -0.5
    wide = torch.promote_types(q.dtype, torch.float32)
    out = q.new_zeros(*q.shape[:-1], v.size(-1))
    logsumexp = q.new_full(q.shape[:-1], -math.inf, dtype=wide)
    for i in range(0, T, block_q):
        q_i = q[..., i : i + block_q, :].to(wide) * scale
        position = torch.arange(i, i + q_i.size(-2), device=q.device) + S - T
        m = q_i.new_full(q_i.shape[:-1], -math.inf)
        total, o = torch.zeros_like(m), q_i.new_zeros(*m.shape, v.size(-1))
        seen = min(i + block_q, T) + S - T if causal else S  # keys that some query of the tile sees
        for j in range(0, seen, block_k):
            k_j, v_j = (t[..., j : j + block_k, :].to(wide) for t in (k, v))
            scores = q_i @ k_j.transpose(-2, -1)
            if causal:
                key = torch.arange(j, j + k_j.size(-2), device=q.device)
                scores = scores.masked_fill(key > position[:, None], -math.inf)
            m, total, o = online_softmax(m, total, o, scores, v_j)
        out[..., i : i + block_q, :] = o / total.masked_fill(total == 0, 1.0)[..., None]
        logsumexp[..., i : i + block_q] = m + total.log()
    return out, logsumexp


def flash_attention_backward(
    grad_out: Float[Tensor, "*batch T e"],
    q: Float[Tensor, "*batch T d"],
    k: Float[Tensor, "*batch S d"],
    v: Float[Tensor, "*batch S e"],
    out: Float[Tensor, "*batch T e"],
    logsumexp: Float[Tensor, "*batch T"],
    *,
    causal: bool = False,
    block_q: int = 64,
    block_k: int = 64,
) -> tuple[Float[Tensor, "*batch T d"], Float[Tensor, "*batch S d"], Float[Tensor, "*batch S e"]]:
    """Gradients with respect to q, k and v, from `flash_attention_forward`'s two results.

    grad_out: of the loss with respect to `out`. The weights are computed again, tile by
    tile; a tile that forward skips is skipped here too. Each tile takes five products.
    A row that sees nothing has the gradient 0 and adds nothing to the others. Computed
    in float32, in float64 for float64 inputs; the results have the inputs' dtype and
    device. Nothing of T · S elements is made, unless T and S fit into one tile. Source:
    Dao (2023), algorithm 2.
    """
    T, S, scale = q.size(-2), k.size(-2), q.size(-1) ** -0.5
    wide = torch.promote_types(q.dtype, torch.float32)
    dq, dk, dv = (torch.zeros_like(t, dtype=wide) for t in (q, k, v))
    row_sums = (grad_out.to(wide) * out.to(wide)).sum(dim=-1, keepdim=True)
    for i in range(0, T, block_q):
        rows = slice(i, i + block_q)
        q_i, do_i = q[..., rows, :].to(wide), grad_out[..., rows, :].to(wide)
        position = torch.arange(i, i + q_i.size(-2), device=q.device) + S - T
        seen = min(i + block_q, T) + S - T if causal else S
        for j in range(0, seen, block_k):
            keys = slice(j, j + block_k)
            k_j, v_j = k[..., keys, :].to(wide), v[..., keys, :].to(wide)
            scores = q_i @ k_j.transpose(-2, -1) * scale
            p = (scores - logsumexp[..., rows, None]).exp()
            if causal:
                key = torch.arange(j, j + k_j.size(-2), device=q.device)
                p = p.masked_fill(key > position[:, None], 0.0)
            dv[..., keys, :] += p.transpose(-2, -1) @ do_i
            dp = do_i @ v_j.transpose(-2, -1)
            ds = p * (dp - row_sums[..., rows, :]) * scale
            dq[..., rows, :] += ds @ k_j
            dk[..., keys, :] += ds.transpose(-2, -1) @ q_i
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)
