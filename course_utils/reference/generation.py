"""Chapter 25, generation: from logits to a token, from a token to a text, and how to measure both.

Letters: B sequences in the batch, T tokens that are read now, S all tokens so far, V tokens in the
vocabulary, H heads, d features of a head, K drafted tokens.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

# ------------------------------------------------------------------------------ one token


def top_k_filter(logits: Float[Tensor, "*batch V"], k: int) -> Float[Tensor, "*batch V"]:
    """The logits of the k likeliest tokens; all others are −inf.

    Tokens that are as likely as the k-th are kept, too, so more than k can remain. k
    may be larger than V. The result has the logits' dtype and device. The argument is
    not changed. Raises ValueError for k below 1.
    Source: Fan et al. (2018), section 5.4; ties as in transformers' TopKLogitsWarper.
    """
    if k < 1:
        raise ValueError(f"at least one token has to remain; came k = {k}")
    least = logits.topk(min(k, logits.size(-1)), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, -math.inf)


def top_p_filter(logits: Float[Tensor, "*batch V"], p: float) -> Float[Tensor, "*batch V"]:
    """The logits of the smallest set of likeliest tokens whose probabilities sum to p or more.

    All others are −inf. The token with which the sum reaches p is kept, so one token
    always remains. Of equally likely tokens those with smaller ids are kept first.
    p = 1 keeps all. Probabilities are computed in float32 (in float64 for float64
    logits); the result has the logits' dtype and device. The argument is not changed.
    Raises ValueError unless 0 < p ≤ 1. Source: Holtzman et al. (2020), section 3.1.
    """
    if not 0 < p <= 1:
        raise ValueError(f"p is a probability above 0; came {p}")
    if p == 1:
        return logits.clone()
    wide = torch.promote_types(logits.dtype, torch.float32)
    ordered, order = logits.to(wide).softmax(-1).sort(dim=-1, descending=True, stable=True)
    likelier = ordered.cumsum(-1) - ordered  # the probability of all tokens before this one
    removed = torch.zeros_like(order, dtype=torch.bool).scatter(-1, order, likelier >= p)
    return logits.masked_fill(removed, -math.inf)


def min_p_filter(logits: Float[Tensor, "*batch V"], p: float) -> Float[Tensor, "*batch V"]:
    """The logits of tokens that are at least p times as likely as the likeliest; others are −inf.

    p = 0 keeps all, p = 1 only the likeliest, and those as likely as it. Probabilities
    are computed in float32 (in float64 for float64 logits); the result has the logits'
    dtype and device. The argument is not changed. Raises ValueError unless 0 ≤ p ≤ 1.
    Source: Nguyen et al. (2025), section 3.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p is a share of the largest probability, 0 to 1; came {p}")
    wide = torch.promote_types(logits.dtype, torch.float32)
    probs = logits.to(wide).softmax(-1)
    return logits.masked_fill(probs < p * probs.amax(-1, keepdim=True), -math.inf)


def repetition_penalty(
    logits: Float[Tensor, "B V"], ids: Int[Tensor, "B T"], penalty: float
) -> Float[Tensor, "B V"]:
    """Logits in which the tokens that a row already has are less likely.

    ids: the tokens of each row so far; T may be 0. Where a token occurs in its
    row, a positive logit is divided by the penalty, a negative one multiplied: once,
    however often the token occurs. A penalty below 1 makes them likelier. The result
    has the logits' dtype and device. The arguments are not changed. Raises ValueError
    unless the penalty is positive.
    Source: Keskar et al. (2019), section 4.1; negative logits as in transformers'
    RepetitionPenaltyLogitsProcessor.
    """
    if penalty <= 0:
        raise ValueError(f"a penalty is positive, 1 for none; came {penalty}")
    here = logits.gather(-1, ids)
    return logits.scatter(-1, ids, torch.where(here > 0, here / penalty, here * penalty))


def next_token_probs(
    logits: Float[Tensor, "B V"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Float[Tensor, "B V"]:
    """Probabilities from which the next token is drawn.

    The logits are divided by the temperature, then filtered by top_k, by top_p and by
    min_p, in this order, where each is given; each filter sees what the one before it
    has left. The softmax comes last. temperature 0 gives the likeliest token the
    probability 1, of equally likely ones that with the smallest id, whatever the
    filters. Computed in float32, in float64 for float64 logits, and that is the
    result's dtype. The logits are not changed. Raises ValueError for a negative
    temperature, and, above 0, where a filter does (a top_k or top_p of 0 is not None).
    Source: the order is that of transformers' generate.
    """
    if temperature < 0:
        raise ValueError(f"a temperature is 0 or more; came {temperature}")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature == 0:
        likeliest = logits.max(-1, keepdim=True).indices
        return torch.zeros_like(logits).scatter(-1, likeliest, 1.0)
    logits = logits / temperature
    if top_k is not None:
        logits = top_k_filter(logits, top_k)
    if top_p is not None:
        logits = top_p_filter(logits, top_p)
    if min_p is not None:
        logits = min_p_filter(logits, min_p)
    return logits.softmax(-1)


def sample_token(
    probs: Float[Tensor, "B V"], generator: torch.Generator | None = None
) -> Int[Tensor, " B"]:
    """One token for each row, drawn with the row's probabilities.

    The rows are drawn independently. generator: where the random numbers come from;
    None is torch's global one, which is left alone if another is given. The result is
    int64.
    """
    return torch.multinomial(probs, 1, generator=generator)[:, 0]


# ------------------------------------------------------------------------------ a cache


class KVCache:
    """The keys and values of one block, for up to `capacity` tokens, in memory that is made once.

    Attributes: `k` and `v`, (B, H, capacity, d); `length`, how many tokens are in it.
    """

    def __init__(
        self,
        batch: int,
        n_head: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        """An empty cache. n_head: heads of keys and values, fewer than of queries with GQA."""
        self.k = torch.zeros(batch, n_head, capacity, head_dim, dtype=dtype, device=device)
        self.v = torch.zeros_like(self.k)
        self.length = 0

    def append(
        self, k: Float[Tensor, "B H T d"], v: Float[Tensor, "B H T d"]
    ) -> tuple[Float[Tensor, "B H S d"], Float[Tensor, "B H S d"]]:
        """Keep T more tokens; all keys and all values so far, as views of `k` and `v`.

        T may be 0. Raises ValueError, before anything is kept, if there is no room for
        so many tokens, or if B, H or d is not the cache's.
        """
        B, H, capacity, d = self.k.shape
        end = self.length + k.size(2)
        if end > capacity:
            raise ValueError(f"{end} tokens; the cache has room for {capacity}")
        if not k.shape == v.shape == (B, H, k.size(2), d):
            raise ValueError(f"expected (B, H, T, d) = {(B, H, k.size(2), d)}; came {k.shape}")
        self.k[:, :, self.length : end] = k
        self.v[:, :, self.length : end] = v
        self.length = end
        return self.k[:, :, :end], self.v[:, :, :end]

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`.

        Raises ValueError if there are not so many, or if `length` is negative.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"there are {self.length} tokens; {length} cannot be kept")
        self.length = length


class SlidingKVCache:
    """A ring buffer: the keys and values of the last `window` tokens, in memory for so many.

    Token number i stands in place i % window, over the token that leaves the window. A
    prompt goes in token by token, as each of its tokens has a window of its own.
    """

    def __init__(self, batch: int, n_head: int, window: int, head_dim: int) -> None:
        """An empty ring, in float32. `length` counts all tokens, also those that were overwritten."""
        self.k = torch.zeros(batch, n_head, window, head_dim)
        self.v = torch.zeros_like(self.k)
        self.length = 0

    def append(
        self, k: Float[Tensor, "B H T d"], v: Float[Tensor, "B H T d"]
    ) -> tuple[Float[Tensor, "B H W d"], Float[Tensor, "B H W d"]]:
        """Keep one more token, so T is 1; keys and values of the window, in the order of their places.

        Attention does not depend on that order where the position is in the key already:
        learned and rotary positions, not biases for distances. Raises ValueError for any
        number of tokens but one: of several, the first would lack keys that the last ones
        write over.
        """
        if k.size(2) != 1:
            raise ValueError(f"a ring takes one token at a time; came {k.size(2)}")
        window = self.k.size(2)
        self.k[:, :, self.length % window] = k[:, :, 0]
        self.v[:, :, self.length % window] = v[:, :, 0]
        self.length += 1
        filled = min(self.length, window)
        return self.k[:, :, :filled], self.v[:, :, :filled]


@dataclass
class ModelCache:
    """A `KVCache` for each block, and how many tokens at the left of each row are padding, (B,)."""

    blocks: list[KVCache]
    padding: Tensor | None = None

    @property
    def length(self) -> int:
        """How many tokens it has read, padding included."""
        return self.blocks[0].length

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values, of the empty places, too."""
        return sum(block.k.nbytes + block.v.nbytes for block in self.blocks)

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`."""
        for block in self.blocks:
            block.truncate(length)


def positions_and_mask(
    padding: Int[Tensor, " B"], T: int, S: int
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B 1 T S"]]:
    """Positions of the last T of S tokens in a left-padded batch, and who may attend to whom.

    T: 0 to S. padding: how many tokens at the left of each row are padding, 0 to S. A
    row's first real token has the position 0; so has each padding token. A real token
    attends to itself and to the real tokens before it. A padding token attends only to
    itself, so that every query has a key: a softmax over none is NaN. Result:
    int64 positions, and bools, True where the query (third axis) may attend to the key
    (fourth), on the device of `padding`.
    """
    token = torch.arange(S, device=padding.device)
    query = token[S - T :, None]  # (T, 1)
    real = (token >= padding[:, None])[:, None]  # (B, 1, S)
    mask = ((token <= query) & real) | (token == query)
    return (query[:, 0] - padding[:, None]).clamp(min=0), mask[:, None]


def new_cache(
    model: Any, batch: int, capacity: int, padding: Int[Tensor, " B"] | None = None
) -> ModelCache:
    """An empty cache for a GPT2 of chapter 23, on its device, in its dtype.

    capacity: tokens a row, at most. padding: how many tokens at the left of each row are padding.
    """
    config, weight = model.config, model.lm_head.weight
    sizes = batch, config.n_head, capacity, config.n_embd // config.n_head
    blocks = [KVCache(*sizes, weight.dtype, weight.device) for _ in range(config.n_layer)]
    return ModelCache(blocks, padding)


@torch.no_grad()
def forward_with_cache(
    model: Any, ids: Int[Tensor, "B T"], cache: ModelCache, last: bool = False
) -> Float[Tensor, "B _ V"]:
    """Logits of a GPT2 after each of T more tokens, (B, T, V); their keys and values join the cache.

    It walks through the model's own layers. last: only the logits after the last token,
    (B, 1, V). Raises ValueError for a model in train mode, and for more tokens than
    there are positions or places.
    """
    if model.training:
        raise ValueError("a cache is for generation: call model.eval() first")
    body, start = model.transformer, cache.length
    B, T = ids.shape
    S = start + T
    if model.config.n_positions < S:
        raise ValueError(f"{S} tokens; the model has {model.config.n_positions} positions")
    padding = ids.new_zeros(B) if cache.padding is None else cache.padding
    positions, seen = positions_and_mask(padding, T, S)
    plain = cache.padding is None and (T == 1 or start == 0)  # all is seen, or all of the past
    mask = None if plain else seen
    x = body.wte(ids) + body.wpe(positions)
    for block, kept in zip(body.h, cache.blocks, strict=True):
        x = x + attend_with_cache(block.attn, block.ln_1(x), kept, mask)
        x = x + block.mlp(block.ln_2(x))
    return model.lm_head(body.ln_f(x[:, -1:] if last else x))


def attend_with_cache(
    attention: Any, x: Float[Tensor, "B T D"], cache: KVCache, mask: Bool[Tensor, "B 1 T S"] | None
) -> Float[Tensor, "B T D"]:
    """Chapter 23's attention of T more tokens to all of the cache, which they join first."""
    B, T, D = x.shape
    q, k, v = (
        part.view(B, T, attention.n_head, -1).transpose(1, 2)  # (B, H, T, d)
        for part in attention.c_attn(x).split(D, dim=2)
    )
    k, v = cache.append(k, v)
    y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None and T > 1)
    return attention.c_proj(y.transpose(1, 2).reshape(B, T, D))


class CachedGPT2:
    """A GPT2 as `generate` uses it: `new_cache`, and a call that reads more tokens."""

    def __init__(self, model: Any) -> None:
        """model: of chapter 23, in eval mode. It is not copied."""
        self.model = model

    def new_cache(
        self, batch: int, capacity: int, padding: Int[Tensor, " B"] | None = None
    ) -> ModelCache:
        """An empty cache for so many rows of at most so many tokens."""
        return new_cache(self.model, batch, capacity, padding)

    def __call__(self, ids: Int[Tensor, "B T"], cache: ModelCache) -> Float[Tensor, "B V"]:
        """Read T more tokens a row; the logits after the last one."""
        return forward_with_cache(self.model, ids, cache, last=True)[:, 0]


# ------------------------------------------------------------------------------ a text


@torch.no_grad()
def generate(
    model: Any,
    ids: Int[Tensor, "B T"],
    max_new_tokens: int,
    *,
    padding: Int[Tensor, " B"] | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: torch.Generator | None = None,
    stop: Collection[int] = (),
) -> Int[Tensor, "B longer"]:
    """The prompt and up to max_new_tokens more tokens a row.

    max_new_tokens: 0 gives the prompt alone. model: `model.new_cache(batch, capacity,
    padding)` makes an empty cache with room for `capacity` tokens a row, and
    `model(ids, cache)` reads more tokens, (B, T), and gives the logits after the last
    one, (B, V). ids: the prompt, at least one token a row. padding: how many tokens at
    the left of each row are padding. The next token is drawn as by `next_token_probs`
    and `sample_token`, with the rest of the arguments. A row that has drawn a token of
    `stop` is done, and repeats that token until all rows are done or have
    max_new_tokens; the caller cuts it at the first such token. Stop tokens in the
    prompt do not count. No gradient is recorded, and ids is not changed.

    The model reads each token once: first the prompt, then one token a row in each step;
    what is drawn last is not read.
    """
    B, T = ids.shape
    cache = model.new_cache(B, T + max_new_tokens, padding)
    stops = torch.tensor(sorted(stop), dtype=ids.dtype, device=ids.device)
    done = torch.zeros(B, dtype=torch.bool, device=ids.device)
    read = ids
    for _ in range(max_new_tokens):
        logits = model(read, cache)
        probs = next_token_probs(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
        )
        new = torch.where(done, ids[:, -1], sample_token(probs, generator))
        ids = torch.cat((ids, new[:, None]), dim=1)
        done = done | torch.isin(new, stops)
        read = new[:, None]
        if done.all():
            break
    return ids


def speculative_accept(
    target: Float[Tensor, "next V"],
    draft: Float[Tensor, "K V"],
    drafted: Int[Tensor, " K"],
    u: Float[Tensor, " K"],
) -> tuple[int, Float[Tensor, " V"]]:
    """How many drafted tokens are accepted, and the probabilities of the token that follows them.

    target: the large model's probabilities at each of the K places and after them,
    (K + 1, V). draft: the cheaper model's, with which the drafted tokens were drawn. u:
    random numbers, uniform in [0, 1). K may be 0. Token i is accepted with probability
    min(1, target / draft), that is, if u[i] is below that. The first that is refused is
    dropped, with all after it. In its place comes a token with the probabilities
    max(0, target − draft) of that place, divided by their sum. If all are accepted, one
    comes with the probabilities of target's last row. The arguments are not changed.
    Source: Leviathan et al. (2023), algorithm 1; Chen et al. (2023), algorithm 2.
    """
    K = len(drafted)
    at = torch.arange(K, device=target.device), drafted
    accepted = u * draft[at] < target[at]
    n = int(accepted.long().cumprod(0).sum())
    if n == K:
        return K, target[K].clone()
    rest = (target[n] - draft[n]).clamp(min=0)
    return n, rest / rest.sum()


@torch.no_grad()
def speculative_generate(
    model: Any,
    draft: Any,
    ids: Int[Tensor, "1 T"],
    max_new_tokens: int,
    *,
    lookahead: int = 4,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> tuple[Int[Tensor, "1 longer"], list[int]]:
    """max_new_tokens more tokens with the model's own distribution, most of them drafted by another.

    model, draft: GPT2s with the same vocabulary. lookahead: tokens that are drafted for
    each pass of the model. Returns the tokens, and how many drafted ones each pass
    accepted. temperature: above 0.
    """
    end = ids.size(1) + max_new_tokens
    cache, small = new_cache(model, 1, end), new_cache(draft, 1, end)
    counts: list[int] = []
    while ids.size(1) < end:
        start, K = ids.size(1), min(lookahead, end - ids.size(1) - 1)
        q = []
        for _ in range(K):
            logits = forward_with_cache(draft, ids[:, small.length :], small, last=True)
            q.append(next_token_probs(logits[:, 0], temperature=temperature))
            ids = torch.cat((ids, sample_token(q[-1], generator)[:, None]), dim=1)
        logits = forward_with_cache(model, ids[:, cache.length :], cache)[0, -K - 1 :]
        p = next_token_probs(logits, temperature=temperature)
        u = torch.rand(K, dtype=p.dtype, generator=generator)
        drafts = torch.cat(q) if q else p[:0]
        n, probs = speculative_accept(p, drafts, ids[0, start:], u)
        new = sample_token(probs[None], generator)
        ids = torch.cat((ids[:, : start + n], new[:, None]), dim=1)
        cache.truncate(start + n)
        small.truncate(min(small.length, start + n))
        counts.append(n)
    return ids, counts


def expected_tokens(alpha: float, lookahead: int) -> float:
    """Tokens that one pass of the large model yields, if each draft is accepted with probability alpha.

    (1 − α^(K + 1)) / (1 − α): the accepted drafts and the token after them. Source:
    Leviathan et al. (2023), equation 1.
    """
    return sum(alpha**n for n in range(lookahead + 1))


def stop_stream(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """The text that comes in pieces, up to the first stop string, as soon as it is certain.

    pieces: any iterable; a piece may be empty, and a stop string may begin in one and
    end in another. stops: any number of strings, none of them empty. The stop string
    that is complete first ends the text (of several that end at the same place, the
    longest): it is not given out, nor what follows, and no further piece is taken.
    Otherwise the longest ending of the text so far that is the beginning of a stop
    string is held back. All before it is given out before the next piece is taken; what
    is still held at the end of the pieces is given out then. No piece is taken before
    text is asked for. No empty string is given out.
    """
    held = ""
    for piece in pieces:
        held += piece
        found = [(held.find(stop) + len(stop), held.find(stop)) for stop in stops if stop in held]
        if found:
            if begin := min(found)[1]:
                yield held[:begin]
            return
        begins = (stop[:n] for stop in stops for n in range(1, len(stop)))
        kept = max((len(part) for part in begins if held.endswith(part)), default=0)
        certain, held = held[: len(held) - kept], held[len(held) - kept :]
        if certain:
            yield certain
    if held:
        yield held


# ------------------------------------------------------------------------------ how good is it


@torch.no_grad()
def perplexity(
    logits_of: Callable[[Tensor], Tensor], ids: Int[Tensor, " N"], context: int, stride: int
) -> float:
    """exp of the mean negative log-probability of the tokens of a text, each after those before it.

    logits_of: the model, (1, T) ids → (1, T, V) logits, T at most `context`. The first
    token is given and not counted; each of the N − 1 others is counted once. The first
    window is the first `context` tokens, or the first N − 1 if N ≤ context: no window
    reads the last token. Each further one ends `stride` tokens later (the last one
    perhaps fewer), has `context` tokens, and counts only the predictions that no window
    had before. Losses are computed in float32 at least. Raises ValueError unless
    1 ≤ stride ≤ context and N is at least 2, even if one window is enough.
    """
    N = len(ids)
    if not (1 <= stride <= context and N >= 2):
        raise ValueError(f"{N} tokens, context {context}, stride {stride}")
    nats, done, step = 0.0, 1, context
    while done < N:
        end = min(done + step, N)
        window = ids[max(end - 1 - context, 0) : end - 1]
        logits = logits_of(window[None])[0, done - end :]
        wide = torch.promote_types(logits.dtype, torch.float32)
        nats += F.cross_entropy(logits.to(wide), ids[done:end], reduction="sum").item()
        done, step = end, stride
    return math.exp(nats / (N - 1))


def bits_per_byte(perplexity: float, tokens: int, n_bytes: int) -> float:
    """Bits that the model needs for a byte of the text: comparable among tokenizers.

    perplexity: per token. tokens: those that were counted. n_bytes: of these tokens' text.
    """
    return tokens * math.log2(perplexity) / n_bytes


@torch.no_grad()
def choose_by_likelihood(
    logits_of: Callable[[Tensor], Tensor],
    prompt: Sequence[int],
    choices: Sequence[Sequence[int]],
    normalise: bool = True,
) -> list[float]:
    """The log-probability of each choice after the prompt, in nats; a mean per token if normalised.

    The largest is the model's answer. prompt: one token at least.
    """
    scores = []
    for choice in choices:
        ids = torch.tensor([*prompt, *choice])
        logs = logits_of(ids[None, :-1])[0, len(prompt) - 1 :].log_softmax(-1)
        nats = logs.gather(-1, ids[len(prompt) :, None]).sum().item()
        scores.append(nats / len(choice) if normalise else nats)
    return scores


def pass_at_k(n: int, c: int, k: int) -> float:
    """Estimate of the probability that at least one of k samples is right, from n of which c are.

    Of all sets of k of the n samples, the share that has a right one. It has no bias.
    There may be thousands of samples. Raises ValueError unless 0 ≤ c ≤ n and 1 ≤ k ≤ n.
    Source: Chen et al. (2021), equation 1.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"n = {n} samples, c = {c} right ones, k = {k}")
    return 1 - math.comb(n - c, k) / math.comb(n, k)
