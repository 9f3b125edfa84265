"""The engine of chapter 28's server: many requests, one model, one forward pass for all in each step.

A request is its tokens, and how many of them are read, that is, have their keys in the cache. While
some are not, it is in its prompt; when one is not, it decodes; nothing else tells the two apart. A
request that loses its blocks goes back to none read, and reads its tokens again.

Letters: R tokens that a step reads, of all requests, D features, V tokens in the vocabulary; the others
as in `serving`.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .generation import next_token_probs, sample_token
from .serving import BlockTables, Policy, continuous_batching, paged_attention

Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of the form of `paged_attention`."""


@dataclass(frozen=True)
class GenerationRequest:
    """What is asked for: up to max_tokens after a prompt, drawn as in chapter 25.

    prompt: token ids, at least one. seed: of the request's own generator; None draws one.
    stop: tokens that end it. Whether a model can do it, `Engine.add` says.
    """

    prompt: tuple[int, ...]
    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: frozenset[int] = frozenset()


class Event(NamedTuple):
    """A request got a token. finish: "stop" or "length" with its last one, else None."""

    name: Hashable
    token: int
    finish: str | None


@dataclass(eq=False)
class _Job:
    """A request on its way. read: how many of its tokens have their keys in the cache."""

    name: Hashable
    request: GenerationRequest
    tokens: list[int]
    generator: torch.Generator
    read: int = 0

    @property
    def unread(self) -> int:
        return len(self.tokens) - self.read


@dataclass
class EngineCounts:
    """What an engine has done so far."""

    steps: int = 0
    read: int = 0  # tokens that went through the model
    shared: int = 0  # tokens whose keys were found in the cache instead
    drawn: int = 0
    preempted: int = 0


class PagedCache:
    """Keys and values of all blocks of all layers: `keys` and `values`, (layers, N, P, H, d)."""

    def __init__(self, model: Any, n_blocks: int, block_size: int) -> None:
        """For a GPT2 of chapter 23: its dtype, its device."""
        config, weight = model.config, model.lm_head.weight
        shape = (n_blocks, block_size, config.n_head, config.n_embd // config.n_head)
        self.keys = weight.new_zeros(config.n_layer, *shape)
        self.values = torch.zeros_like(self.keys)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return self.keys.nbytes + self.values.nbytes


class Part(NamedTuple):
    """Rows of equal length among the tokens of a step: `tokens` of them, and a table for each row."""

    tokens: slice
    tables: Int[Tensor, "B n"]


def paged_forward(
    model: Any,
    cache: PagedCache,
    ids: Int[Tensor, " R"],
    positions: Int[Tensor, " R"],
    places: Int[Tensor, " R"],
    parts: Sequence[Part],
    last: Int[Tensor, " B"],
    attention: Attention = paged_attention,
) -> Float[Tensor, "B V"]:
    """One pass of a GPT2 over tokens of many sequences; the logits after those at `last`.

    All linear layers see the tokens in one row, whatever sequence they are of. Only
    attention asks: it goes part by part. positions: of each token in its sequence.
    places: where its key and value go, block · P + place in the block. parts: they cover
    all tokens, in order; a part of B rows has T tokens for each.
    """
    body, R = model.transformer, len(ids)
    x = body.wte(ids) + body.wpe(positions)
    for block, keys, values in zip(body.h, cache.keys, cache.values, strict=True):
        q, k, v = block.attn.c_attn(block.ln_1(x)).view(R, 3, *keys.shape[2:]).unbind(1)
        keys.flatten(0, 1).index_copy_(0, places, k)
        values.flatten(0, 1).index_copy_(0, places, v)
        attended = []
        for rows, tables in parts:
            shape = len(tables), -1
            at = positions[rows].view(shape)
            y = attention(q[rows].unflatten(0, shape), keys, values, tables, at)
            attended.append(y.reshape(at.numel(), -1))
        x = x + block.attn.c_proj(torch.cat(attended))
        x = x + block.mlp(block.ln_2(x))
    return model.lm_head(body.ln_f(x[last]))


class Engine:
    """Runs requests together on one model. Whoever owns it calls `add`, `cancel` and `step`, one at a time.

    Attributes: `waiting` and `running`, in their order; `tables`, a BlockTables; `cache`;
    `counts`; `last`, of the last step: the name of each request in it, and how many of its
    tokens were read.
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int = 16,
        n_blocks: int = 256,
        block_size: int = 16,
        budget: int = 256,
        policy: Policy = continuous_batching,
        tables: Callable[[int, int], Any] = BlockTables,
        attention: Attention = paged_attention,
    ) -> None:
        """model: a GPT2 of chapter 23 in eval mode. slots: requests that run at once, at most.

        n_blocks: of the cache, block_size tokens in each. budget: tokens that a step reads,
        at most. policy, tables, attention: the pieces of `serving`, or yours. Raises
        ValueError for a model in train mode, for what is less than 1, and for a budget
        smaller than slots.
        """
        positions = model.config.n_positions
        if model.training:
            raise ValueError("a cache is for generation: call model.eval() first")
        if min(slots, n_blocks, block_size) < 1:
            raise ValueError(f"{slots} slots, {n_blocks} blocks of {block_size}: 1 is the least")
        if budget < slots:
            raise ValueError(f"a step must have a token for each of {slots} slots; came {budget}")
        self.model, self.slots, self.budget = model, slots, budget
        self.policy, self.attention = policy, attention
        self.tables = tables(n_blocks, block_size)
        self.block_size, self.context = block_size, min(n_blocks * block_size, positions)
        self.cache = PagedCache(model, n_blocks, block_size)
        self.waiting: deque[_Job] = deque()
        self.running: list[_Job] = []
        self.counts = EngineCounts()
        self.last: list[tuple[Hashable, int]] = []

    @property
    def idle(self) -> bool:
        """Is there nothing to do?"""
        return not (self.waiting or self.running)

    def check(self, request: GenerationRequest) -> None:
        """Raises ValueError for a request that could never be served."""
        length = len(request.prompt) + request.max_tokens
        if not request.prompt or request.max_tokens < 1:
            raise ValueError("a prompt has a token at least, and so has an answer")
        if length > self.context:
            raise ValueError(
                f"{len(request.prompt)} tokens of prompt and {request.max_tokens} more are {length}; "
                f"there is room for {self.context}"
            )
        if not all(0 <= token < self.model.config.vocab_size for token in request.prompt):
            raise ValueError(f"tokens are 0 to {self.model.config.vocab_size - 1}")
        next_token_probs(  # which says what is wrong with these
            torch.zeros(1, 2),
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
        )

    def add(self, name: Hashable, request: GenerationRequest) -> None:
        """A request waits from now on, after a `check`. name: no other that waits or runs has it."""
        self.check(request)
        generator = torch.Generator()
        if request.seed is None:
            generator.seed()
        else:
            generator.manual_seed(request.seed)
        self.waiting.append(_Job(name, request, list(request.prompt), generator))

    def cancel(self, name: Hashable) -> None:
        """Forget a request, wherever it is; its blocks are free. One that is done is none any more."""
        for job in [job for job in self.running if job.name == name]:
            self.running.remove(job)
            self.tables.close(name)
        self.waiting = deque(job for job in self.waiting if job.name != name)

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Read some tokens of some requests in one pass; a token for each that has none left to read."""
        plan = self._plan()
        if not plan:
            return []
        done = [(job, i) for i, (job, n) in enumerate(plan) if n == job.unread]
        logits = self._read(plan, [i for _, i in done])
        for job, n in plan:
            full = job.read // self.block_size
            job.read += n
            if job.read // self.block_size > full:
                self.tables.fill(job.name, job.tokens[: job.read])
        self.counts.steps += 1
        self.counts.read += sum(n for _, n in plan)
        self.last = [(job.name, n) for job, n in plan]
        return self._draw([job for job, _ in done], logits) if done else []

    # -------------------------------------------------------------------- who runs, and where

    def _plan(self) -> list[tuple[_Job, int]]:
        """How many tokens of whom this step reads, with blocks for all of them."""
        read, admitted = self.policy(
            [job.unread for job in self.running],
            [job.unread for job in self.waiting],
            self.slots,
            self.budget,
        )
        preempted = self.counts.preempted
        plan = [(job, n) for job, n in zip(list(self.running), read, strict=True) if n]
        plan = [(job, n) for job, n in plan if self._has_room(job, n)]
        plan = [(job, n) for job, n in plan if job in self.running]
        if self.counts.preempted == preempted:  # else there is no room for anybody new
            plan += self._admit(admitted)
        return sorted(plan, key=lambda item: item[1] > 1)  # those that decode first, as one part

    def _has_room(self, job: _Job, n: int) -> bool:
        """Are there blocks for n more tokens? If need be, those who came last lose theirs."""
        while job in self.running:
            try:
                self.tables.grow(job.name, job.read + n)
                return True
            except MemoryError:
                self._preempt(self.running[-1])
        return False

    def _preempt(self, job: _Job) -> None:
        """Take everything from it but its tokens and its generator; it is the next to run again."""
        self.running.remove(job)
        self.tables.close(job.name)
        job.read = 0
        self.waiting.appendleft(job)
        self.counts.preempted += 1

    def _admit(self, admitted: Sequence[int]) -> list[tuple[_Job, int]]:
        """Slots, tables and blocks for the first that wait, as far as there are blocks."""
        plan = []
        for n in admitted:
            job = self.waiting[0]
            known = self.tables.open(job.name, job.tokens)
            n = min(n, len(job.tokens) - known)
            try:
                self.tables.grow(job.name, known + n)
            except MemoryError:
                self.tables.close(job.name)
                break
            self.waiting.popleft()
            self.running.append(job)
            job.read = known
            self.counts.shared += known
            plan.append((job, n))
        return plan

    # -------------------------------------------------------------------- one pass, and what it says

    def _read(self, plan: Sequence[tuple[_Job, int]], done: Sequence[int]) -> Float[Tensor, "B V"]:
        """The logits after the last token of those that are done, in one pass for all."""
        P, (jobs, _) = self.block_size, zip(*plan, strict=True)
        tables = [self.tables.tables[job.name] for job in jobs]
        spans = [range(job.read, job.read + n) for job, n in plan]
        ids = [job.tokens[p] for job, span in zip(jobs, spans, strict=True) for p in span]
        places = [
            table[p // P] * P + p % P
            for table, span in zip(tables, spans, strict=True)
            for p in span
        ]
        ends = list(accumulate(map(len, spans)))
        decoding = sum(len(span) == 1 for span in spans)  # they come first, as rows of one part
        parts = [Part(slice(0, decoding), self._padded(tables[:decoding]))] if decoding else []
        for i in range(decoding, len(plan)):
            parts.append(Part(slice(ends[i] - len(spans[i]), ends[i]), self._padded([tables[i]])))
        return paged_forward(
            self.model,
            self.cache,
            self._ints(ids),
            self._ints([p for span in spans for p in span]),
            self._ints(places),
            parts,
            self._ints([ends[i] - 1 for i in done]),
            self.attention,
        )

    def _ints(self, numbers: Sequence[Any]) -> Int[Tensor, "..."]:
        return torch.tensor(numbers, dtype=torch.int64, device=self.cache.keys.device)

    def _padded(self, tables: Sequence[Sequence[int]]) -> Int[Tensor, "B n"]:
        """Tables of different lengths, filled up with block 0, which nobody attends to there."""
        longest = max(map(len, tables))
        return self._ints([[*table, *[0] * (longest - len(table))] for table in tables])

    def _draw(self, jobs: Sequence[_Job], logits: Float[Tensor, "B V"]) -> list[Event]:
        """A token for each, with its own settings, from its own generator."""
        alike: dict[tuple, list[int]] = {}
        for i, job in enumerate(jobs):
            how = job.request
            alike.setdefault((how.temperature, how.top_k, how.top_p), []).append(i)
        drawn = {}
        for (temperature, top_k, top_p), rows in alike.items():
            probs = next_token_probs(
                logits[rows], temperature=temperature, top_k=top_k, top_p=top_p
            ).cpu()
            for i, row in zip(rows, probs, strict=True):
                certain = temperature == 0
                drawn[i] = int(
                    row.argmax() if certain else sample_token(row[None], jobs[i].generator)
                )
        self.counts.drawn += len(jobs)
        return [self._got(job, drawn[i]) for i, job in enumerate(jobs)]

    def _got(self, job: _Job, token: int) -> Event:
        job.tokens.append(token)
        finish = None
        if token in job.request.stop:
            finish = "stop"
        elif len(job.tokens) == len(job.request.prompt) + job.request.max_tokens:
            finish = "length"
        if finish:
            self.running.remove(job)
            self.tables.close(job.name)
        return Event(job.name, token, finish)
