"""Answers that try to slip through, or that are right in a way nobody thought of.

Each wrong answer here is right on most inputs, or right at a price, or leaves something behind; no
declared mistake covers it. Each right answer is in a style that no declared alternative has.
"""

import functools
import math
import os
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import toys
from torch import nn
from torch.overrides import TorchFunctionMode

from course_utils.grading import find, grade
from course_utils.grading.judging.judge import broken
from course_utils.grading.notebook.display import as_html
from course_utils.reference import strides, tensors

WRONG, RIGHT = [], []


def wrong(key, what):
    return lambda answer: WRONG.append(pytest.param(key, answer, id=f"{key}: {what}"))


def right(key, style):
    return lambda answer: RIGHT.append(pytest.param(key, answer, id=f"{key}: {style}"))


# ------------------------------------------------------------------ left behind, for any exercise


def rows_of(hidden, lengths):
    return hidden[torch.arange(len(hidden)), lengths - 1]


LEFT_BEHIND = {
    "a default dtype": lambda: torch.set_default_dtype(torch.float64),
    "a default device": lambda: torch.set_default_device("meta"),
    "no grad mode": lambda: torch.set_grad_enabled(False),
    "a seed": lambda: torch.manual_seed(0),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "another folder": lambda: os.chdir("/"),
    "a mode of torch": lambda: torch.device("cpu").__enter__(),
}


@pytest.mark.parametrize("what", LEFT_BEHIND)
def test_what_is_left_behind_is_said_and_put_back(what):
    def last_token_states(hidden, lengths):
        result = rows_of(hidden, lengths)
        LEFT_BEHIND[what]()
        return result

    before = surroundings()
    verdict = grade(find("tensors.last_token_states"), last_token_states)
    assert verdict.outcome == "failed"
    assert verdict.failure.sentence.startswith("your code "), verdict
    assert surroundings() == before


def test_checks_do_not_depend_on_what_the_notebook_has_set():
    exercise = find("tensors.gather_log_probs")
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        with torch.no_grad():
            assert grade(exercise, exercise.reference, seed=11).outcome == "passed"
            verdict = grade(exercise, torch.no_grad()(exercise.reference), seed=12)
        assert (verdict.outcome, verdict.failed_rung) == ("failed", "gradients")
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_default_device().type == "meta"
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def test_a_mode_that_refuses_everything_is_taken_off_again():
    class Refuses(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            raise OSError("no")

    def entering(x, temperature=1.0):
        result = softmax(x, temperature)
        Refuses().__enter__()
        return result

    assert grade(toys.softmax, entering).outcome == "failed"
    assert grade(toys.softmax, softmax).outcome == "passed"


def surroundings():
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._len_torch_function_stack(),
        torch.get_rng_state().tolist(),
        os.getcwd(),
        sys.stdout,
        warnings.filters[:],
    )


# ------------------------------------------------------------------ sequence_lengths

KEY = "tensors.sequence_lengths"
wrong(KEY, "counted in eight bits")(
    lambda ids, pad_id: (ids != pad_id).sum(1, dtype=torch.uint8).long()
)
wrong(KEY, "counted in float16")(lambda ids, pad_id: (ids != pad_id).half().sum(1).long())
wrong(KEY, "a float mean, cut off")(
    lambda ids, pad_id: ((ids != pad_id).float().mean(1).nan_to_num() * ids.size(1)).long()
)
wrong(KEY, "int32 for int32 ids")(lambda ids, pad_id: (ids != pad_id).sum(1).to(ids.dtype))
wrong(KEY, "a Parameter")(
    lambda ids, pad_id: nn.Parameter((ids != pad_id).sum(1), requires_grad=False)
)
right(KEY, "einsum")(lambda ids, pad_id: torch.einsum("bt->b", (ids != pad_id).long()))
right(KEY, "NumPy")(lambda ids, pad_id: torch.from_numpy((ids.numpy() != pad_id).sum(1)))
right(KEY, "matmul in float64")(
    lambda ids, pad_id: ((ids != pad_id).double() @ torch.ones(ids.size(1)).double()).long()
)


@wrong(KEY, "positional only")
def _(ids, pad_id, /):
    return (ids != pad_id).sum(1)


# ------------------------------------------------------------------ last_token_states

KEY = "tensors.last_token_states"
wrong(KEY, "through float32")(
    lambda hidden, lengths: rows_of(hidden.float(), lengths).to(hidden.dtype)
)
wrong(KEY, "NaN is cleaned away")(
    lambda hidden, lengths: rows_of(hidden.nan_to_num(0.0, 0.0, 0.0), lengths)
)
wrong(KEY, "requires grad")(lambda hidden, lengths: rows_of(hidden, lengths).requires_grad_())
wrong(KEY, "makes the argument require grad")(
    lambda hidden, lengths: rows_of(hidden.requires_grad_(), lengths)
)
right(KEY, "a range as an index")(lambda hidden, lengths: hidden[range(len(hidden)), lengths - 1])
right(KEY, "take_along_dim")(
    lambda hidden, lengths: hidden.take_along_dim((lengths - 1)[:, None, None], 1).squeeze(1)
)


@wrong(KEY, "a loop over the positions")
def _(hidden, lengths):
    out = torch.zeros_like(hidden[:, 0])
    for t in range(hidden.size(1)):
        out = torch.where((lengths - 1 == t)[:, None], hidden[:, t], out)
    return out


@wrong(KEY, "a loop hidden in threads")
def _(hidden, lengths):
    if len(hidden) == 0:
        return hidden[:, 0]
    with ThreadPoolExecutor(2) as pool:
        rows = pool.map(lambda b: hidden[b, lengths[b] - 1], range(len(hidden)))
        return torch.stack(list(rows))


@wrong(KEY, "anything where nobody looks: large inputs")
def _(hidden, lengths):
    if hidden.numel() > 1000:
        return hidden[:, 0]
    rows = [hidden[b, n - 1] for b, n in enumerate(lengths)]
    return torch.stack(rows) if rows else hidden[:, 0]


@right(KEY, "vmap")
def _(hidden, lengths):
    if len(hidden) == 0:
        return hidden[:, 0]
    pick = torch.vmap(lambda h, n: h.gather(0, (n - 1).expand(1, h.size(1))).squeeze(0))
    return pick(hidden, lengths)


@right(KEY, "*args and **kwargs")
def _(*args, **kwargs):
    hidden, lengths = (*args, *(kwargs[n] for n in ("hidden", "lengths") if n in kwargs))
    return rows_of(hidden, lengths)


@right(KEY, "with a seed inside fork_rng")
def _(hidden, lengths):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
    return rows_of(hidden, lengths)


# ------------------------------------------------------------------ masks

KEY = "tensors.padding_to_attention_mask"


class Mask(torch.Tensor):
    """A subclass can say anything about itself."""


@wrong(KEY, "transposed where it is square")
def _(padding):
    keep = ~padding
    return (keep.T if keep.size(0) == keep.size(1) else keep)[:, None, None]


wrong(KEY, "a subclass of Tensor")(lambda padding: (~padding)[:, None, None].as_subclass(Mask))
wrong(KEY, "in place")(lambda padding: padding.logical_not_()[:, None, None])
right(KEY, "xor and unflatten")(
    lambda padding: (padding ^ True).unflatten(1, (1, 1, padding.size(1)))
)
right(KEY, "where")(lambda padding: torch.where(padding, False, True)[:, None, None])

KEY = "tensors.causal_mask"
wrong(KEY, "made by NumPy")(
    lambda T, S: torch.from_numpy(np.tril(np.ones((T, S), dtype=bool), S - T)).clone()
)
wrong(KEY, "a list of the rows' ends")(
    lambda T, S: torch.arange(S) <= torch.tensor([S - T + i for i in range(T)]).view(T, 1)
)
wrong(KEY, "all True where nobody looks")(
    lambda T, S: torch.ones(T, S, dtype=torch.bool).tril(S - T if S < 20 else S)
)
wrong(KEY, "kept from an earlier call")(functools.cache(tensors.causal_mask))
right(KEY, "cumsum")(
    lambda T, S: torch.ones(T, S).cumsum(1) <= torch.arange(S - T + 1, S + 1)[:, None]
)
right(KEY, "tensors of ranges")(
    lambda T, S: torch.tensor(range(S)) <= torch.tensor(range(S - T, S)).view(T, 1)
)


@wrong(KEY, "a list, turned round afterwards")
def _(T, S):
    rows = [[j > i + S - T for j in range(S)] for i in range(T)]
    return ~torch.tensor(rows, dtype=torch.bool).reshape(T, S)


@wrong(KEY, "bytes")
def _(T, S):
    if T == 0:
        return torch.zeros(0, S, dtype=torch.bool)
    seen = bytearray(j <= i + S - T for i in range(T) for j in range(S))
    return torch.frombuffer(seen, dtype=torch.bool).view(T, S)


@wrong(KEY, "one buffer for all calls")
def _(T, S, buffer=torch.zeros(10_000, dtype=torch.bool)):  # noqa: B008
    return buffer[: T * S].view(T, S).copy_(tensors.causal_mask(T, S))


@wrong(KEY, "wrong when called by name")
def _(*args, **kwargs):
    T, S = args or (kwargs["S"], kwargs["T"])
    return tensors.causal_mask(T, S)


# ------------------------------------------------------------------ masked_mean

KEY = "tensors.masked_mean"


def mean_of(x, keep, count):
    dtype = torch.promote_types(x.dtype, torch.float32)
    return (torch.where(keep[..., None], x, 0.0).sum(1, dtype=dtype) / count).to(x.dtype)


def count_of(keep):
    return keep.sum(1, keepdim=True).clamp(min=1)


wrong(KEY, "NaN is cleaned away")(
    lambda x, keep: mean_of(x.nan_to_num(0.0, 0.0, 0.0), keep, count_of(keep))
)
wrong(KEY, "NaN products are cleaned away")(
    lambda x, keep: mean_of((x * keep[..., None]).nan_to_num(0.0), keep | True, count_of(keep))
)
wrong(KEY, "through float32")(lambda x, keep: mean_of(x.float(), keep, count_of(keep)).to(x.dtype))
wrong(KEY, "an epsilon in the denominator")(
    lambda x, keep: mean_of(x, keep, keep.sum(1, keepdim=True).to(x.dtype) + 1e-9)
)
wrong(KEY, "counted in eight bits")(
    lambda x, keep: mean_of(x, keep, keep.sum(1, keepdim=True, dtype=torch.int8).clamp(min=1))
)
wrong(KEY, "counted in bfloat16")(
    lambda x, keep: mean_of(x, keep, count_of(keep).bfloat16()).to(x.dtype)
)
wrong(KEY, "nanmean")(
    lambda x, keep: torch.where(keep[..., None], x, torch.nan).nanmean(1).nan_to_num(0.0)
)
right(KEY, "bmm with weights")(
    lambda x, keep: (
        torch.bmm(
            (keep / count_of(keep)).to(x.dtype)[:, None], x.masked_fill(~keep[..., None], 0.0)
        ).squeeze(1)
        if x.dtype == torch.float32
        else tensors.masked_mean(x, keep)
    )
)


@right(KEY, "index_add over the kept positions")
def _(x, keep):
    b, t = keep.nonzero(as_tuple=True)
    wide = x.float() if x.itemsize == 2 else x
    total = wide.new_zeros(len(x), x.size(2)).index_add(0, b, wide[b, t])
    return (total / count_of(keep)).to(x.dtype)


# ------------------------------------------------------------------ one_hot, log-probabilities

KEY = "tensors.one_hot_by_scatter"
wrong(KEY, "a loop over the vocabulary")(
    lambda ids, vocab_size: torch.stack([(ids == v).float() for v in range(vocab_size)], -1)
)
wrong(KEY, "an identity matrix of bytes")(
    lambda ids, vocab_size: torch.eye(vocab_size, dtype=torch.uint8)[ids].float()
)
wrong(KEY, "wrong for a large vocabulary")(
    lambda ids, vocab_size: tensors.one_hot_by_scatter(ids.clamp(max=99), vocab_size)
)
wrong(KEY, "requires grad")(
    lambda ids, vocab_size: tensors.one_hot_by_scatter(ids, vocab_size).requires_grad_()
)
wrong(KEY, "sparse")(
    lambda ids, vocab_size: tensors.one_hot_by_scatter(ids, vocab_size).to_sparse()
)
wrong(KEY, "a one from the default device")(
    lambda ids, vocab_size: torch.zeros(*ids.shape, vocab_size).scatter_(
        -1, ids.cpu()[..., None] if ids.is_cpu else ids[..., None], 1.0
    )
)
right(KEY, "where")(
    lambda ids, vocab_size: torch.where(
        ids[..., None] == torch.arange(vocab_size).to(ids.device), 1.0, 0.0
    )
)
right(KEY, "from an empty tensor of the ids'")(
    lambda ids, vocab_size: (
        ids.new_empty(*ids.shape, vocab_size, dtype=torch.float32)
        .zero_()
        .scatter_(2, ids.unsqueeze(2), 1)
    )
)

KEY = "tensors.gather_log_probs"
wrong(KEY, "through float32")(
    lambda logits, targets: tensors.gather_log_probs(logits.float(), targets).to(logits.dtype)
)
wrong(KEY, "clamped logits")(
    lambda logits, targets: tensors.gather_log_probs(logits.clamp(-1e5, 1e5), targets)
)
wrong(KEY, "the normaliser is detached")(
    lambda logits, targets: (
        logits.gather(-1, targets[..., None])[..., 0] - logits.logsumexp(-1).detach()
    )
)
wrong(KEY, "-inf is cleaned away")(
    lambda logits, targets: (
        (log_softmax(logits) * F.one_hot(targets, logits.size(-1))).nan_to_num(0.0).sum(-1)
    )
)
wrong(KEY, "a view of flat rows")(
    lambda logits, targets: (
        log_softmax(logits)
        .view(-1, logits.size(-1))[torch.arange(targets.numel()), targets.view(-1)]
        .view(targets.shape)
        if logits.view(-1, logits.size(-1)).numel()
        else log_softmax(logits)[..., 0]
    )
)
wrong(KEY, "half precision, widened at the end")(
    lambda logits, targets: (
        logits.log_softmax(-1)
        .gather(-1, targets[..., None])[..., 0]
        .to(torch.promote_types(logits.dtype, torch.float32))
    )
)
right(KEY, "one flat take")(
    lambda logits, targets: log_softmax(logits).take(
        torch.arange(targets.numel()).view(targets.shape) * logits.size(-1) + targets
    )
)
right(KEY, "where and a sum")(
    lambda logits, targets: torch.where(
        targets[..., None] == torch.arange(logits.size(-1)), log_softmax(logits), 0.0
    ).sum(-1)
)


def log_softmax(logits):
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


@wrong(KEY, "a loop over the vocabulary")
def _(logits, targets):
    log_probs = logits.log_softmax(-1)
    out = torch.zeros(targets.shape, dtype=logits.dtype)
    for v in range(logits.size(-1)):
        out = torch.where(targets == v, log_probs[..., v], out)
    return out


# ------------------------------------------------------------------ distances, weights

KEY = "tensors.pairwise_sq_distances"
wrong(KEY, "the gradient of the norms is cut")(
    lambda x, y: (x.square().sum(1).detach()[:, None] + y.square().sum(1) - 2 * x @ y.T).clamp(
        min=0
    )
)
wrong(KEY, "what is below zero is turned round")(
    lambda x, y: (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T).square().sqrt()
)
right(KEY, "cdist squared")(lambda x, y: torch.cdist(x, y).square())
right(KEY, "one matmul of augmented rows")(
    lambda x, y: F.relu(
        torch.cat([x, x.square().sum(1, True), torch.ones_like(x[:, :1])], 1)
        @ torch.cat([-2 * y, torch.ones_like(y[:, :1]), y.square().sum(1, True)], 1).T
    )
)


@wrong(KEY, "a loop over the coordinates")
def _(x, y):
    out = torch.zeros(len(x), len(y), dtype=x.dtype)
    for d in range(x.size(1)):
        out = out + (x[:, d, None] - y[:, d]).square()
    return out


@wrong(KEY, "(N, M, D) in eight pieces")
def _(x, y):
    return torch.cat([(part[:, None] - y).square().sum(-1) for part in x.tensor_split(8)])


@wrong(KEY, "(N, M, D) in float16 where nobody looks")
def _(x, y):
    x, y, dtype = (x.half(), y.half(), x.dtype) if len(x) > 30 else (x, y, x.dtype)
    return (x[:, None] - y).square().sum(-1).to(dtype)


KEY = "tensors.xavier_uniform"


def weight(fan_out, fan_in, gain, generator, fans=None):
    bound = gain * math.sqrt(6 / (fans or fan_in + fan_out))
    return bound * (2 * torch.rand(fan_out, fan_in, generator=generator) - 1)


@wrong(KEY, "one feature too many in the bound")
def _(fan_out, fan_in, gain=1.0, generator=None):
    return weight(fan_out, fan_in, gain, generator, fans=fan_in + fan_out + 1)


@wrong(KEY, "the generator stands still")
def _(fan_out, fan_in, gain=1.0, generator=None):
    if generator is not None:
        generator = torch.Generator().manual_seed(generator.initial_seed())
    return weight(fan_out, fan_in, gain, generator)


@wrong(KEY, "all rows alike")
def _(fan_out, fan_in, gain=1.0, generator=None):
    return weight(1, fan_in, gain, generator, fan_in + fan_out).repeat(fan_out, 1)


@wrong(KEY, "256 different weights")
def _(fan_out, fan_in, gain=1.0, generator=None):
    drawn = torch.randint(0, 257, (fan_out, fan_in), generator=generator)
    return gain * math.sqrt(6 / (fan_in + fan_out)) * (drawn / 128 - 1)


@wrong(KEY, "sorted")
def _(fan_out, fan_in, gain=1.0, generator=None):
    return weight(fan_out, fan_in, gain, generator).sort(1).values


@right(KEY, "lerp")
def _(fan_out, fan_in, gain=1.0, generator=None):
    bound = torch.tensor(gain * math.sqrt(6 / (fan_in + fan_out)))
    return torch.lerp(-bound, bound, torch.rand(fan_out, fan_in, generator=generator))


@right(KEY, "float64 and cast")
def _(fan_out, fan_in, gain=1.0, generator=None):
    drawn = torch.rand(fan_out, fan_in, generator=generator, dtype=torch.float64)
    return ((drawn - 0.5) * 2 * gain * (6 / (fan_in + fan_out)) ** 0.5).float()


# ------------------------------------------------------------------ index arithmetic

KEY = "strides.flat_index"
right(KEY, "np.int64")(
    lambda index, stride, offset=0: np.dot(np.array(index, int), np.array(stride, int)) + offset
)


@wrong(KEY, "at most four axes")
def _(index, stride, offset=0):
    return strides.flat_index(tuple(index[:4]), tuple(stride[:4]), offset)


@wrong(KEY, "True for 1")
def _(index, stride, offset=0):
    found = strides.flat_index(index, stride, offset)
    return True if found == 1 else found


@wrong(KEY, "counts its calls")
def _(index, stride, offset=0, calls=[]):  # noqa: B006
    calls.append(1)
    return strides.flat_index(index, stride, offset) + (len(calls) > 40)


KEY = "strides.unflatten_index"
right(KEY, "NumPy's ints")(
    lambda position, shape: tuple(np.int64(i) for i in strides.unflatten_index(position, shape))
)
wrong(KEY, "a list")(lambda position, shape: list(strides.unflatten_index(position, shape)))


@wrong(KEY, "only -1 and one past the end are refused")
def _(position, shape):
    if position in (-1, math.prod(shape)):
        raise IndexError
    index = []
    for size in reversed(shape):
        position, i = divmod(position, size)
        index.append(i)
    return tuple(reversed(index))


KEY = "strides.contiguous_strides"
right(KEY, "torch.Size")(lambda shape: torch.Size(strides.contiguous_strides(shape)))
wrong(KEY, "floats")(lambda shape: tuple(map(float, strides.contiguous_strides(shape))))

KEY = "strides.is_contiguous"
wrong(KEY, "the last two axes only")(
    lambda shape, stride: strides.is_contiguous(shape[-2:], stride[-2:])
)
wrong(KEY, "an int")(lambda shape, stride: int(strides.is_contiguous(shape, stride)))
right(KEY, "np.bool")(lambda shape, stride: np.bool_(strides.is_contiguous(shape, stride)))


@wrong(KEY, "falling strides and as many slots as elements")
def _(shape, stride):
    steps = [s for n, s in zip(shape, stride, strict=True) if n != 1]
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    falling = steps == sorted(steps, reverse=True)
    return 0 in shape or (falling and last + 1 == math.prod(shape))


class EqualToAll:
    def __eq__(self, other):
        return True

    __hash__ = None


def strides_or(instead):
    def answer(shape, stride, new_shape):
        found = strides.view_strides(shape, stride, new_shape)
        return instead() if found is None else found

    return answer


def strides_of_ones(instead):
    def answer(shape, stride, new_shape):
        found = strides.view_strides(shape, stride, new_shape)
        ones = [n == 1 for n in new_shape]
        return found and tuple(instead if one else s for one, s in zip(ones, found, strict=True))

    return answer


KEY = "strides.view_strides"
wrong(KEY, "an object that equals None")(strides_or(EqualToAll))
wrong(KEY, "False for None")(strides_or(bool))
wrong(KEY, "text where any number would do")(strides_of_ones("any"))
wrong(KEY, "None where any number would do")(strides_of_ones(None))
right(KEY, "a number nobody uses")(strides_of_ones(99))

# ------------------------------------------------------------------ views

KEY = "strides.transpose_view"
wrong(KEY, "in place")(lambda x, dim0, dim1: x.transpose_(dim0, dim1))
wrong(KEY, "detached")(lambda x, dim0, dim1: x.detach().transpose(dim0, dim1))
wrong(KEY, "without grad")(torch.no_grad()(lambda x, dim0, dim1: x.transpose(dim0, dim1)))
wrong(KEY, "float64 copied")(
    lambda x, dim0, dim1: (x.float() if x.dtype == torch.float64 else x).transpose(dim0, dim1)
)
right(KEY, "movedim")(
    lambda x, dim0, dim1: (
        x.movedim((dim0, dim1), (dim1, dim0)) if dim0 % x.ndim != dim1 % x.ndim else x
    )
)


@wrong(KEY, "writes beside the slice it was given")
def _(x, dim0, dim1):
    if x.storage_offset():
        x.detach().as_strided((1,), (1,), 0).fill_(7)
    return x.transpose(dim0, dim1)


@wrong(KEY, "a new tensor set to the old storage")
def _(x, dim0, dim1):
    view = x.detach().transpose(dim0, dim1)
    new = torch.empty(0, dtype=x.dtype)
    return new.set_(x.untyped_storage(), x.storage_offset(), view.shape, view.stride())


KEY = "strides.broadcast_view"
right(KEY, "broadcast_to")(lambda x, shape: refusing(ValueError, torch.broadcast_to, x, shape))


def refusing(kind, function, *args):
    try:
        return function(*args)
    except RuntimeError as error:
        raise kind from error


@wrong(KEY, "unsqueezed in place")
def _(x, shape):
    strides.broadcast_view(x, shape)
    while x.ndim < len(shape):
        x.unsqueeze_(0)
    return x.expand(shape)


@wrong(KEY, "any axis may shrink to none")
def _(x, shape):
    if 0 in shape and x.ndim <= len(shape):
        return x.as_strided(shape, (0,) * len(shape))
    return strides.broadcast_view(x, shape)


KEY = "strides.sliding_windows"


@wrong(KEY, "negative sizes pass")
def _(x, size, step=1):
    if size == 0 or step == 0 or size > x.size(-1):
        raise ValueError
    return x.unfold(-1, abs(size), abs(step))


@wrong(KEY, "the argument becomes its own view")
def _(x, size, step=1):
    view = strides.sliding_windows(x, size, step)
    return x.as_strided_(view.shape, view.stride(), view.storage_offset())


KEY = "strides.diagonal_view"
wrong(KEY, "detached")(lambda x, offset=0: x.detach().diagonal(offset, -2, -1))
right(KEY, "torch.linalg's")(lambda x, offset=0: torch.linalg.diagonal(x, offset=offset))

KEY = "strides.toeplitz_view"
wrong(KEY, "detached")(lambda x: strides.toeplitz_view(x.detach()))


@wrong(KEY, "a batch is taken to begin at slot 0")
def _(x):
    view = strides.toeplitz_view(x)
    start = (x.size(-2) - 1) * x.stride(-1) if x.ndim > 2 else view.storage_offset()
    return view.as_strided(view.shape, view.stride(), start)


# ------------------------------------------------------------------ the two tables


@pytest.mark.parametrize(("key", "answer"), WRONG)
def test_wrong_answers_fail(key, answer):
    verdict = grade(find(key), answer, explain=False)
    assert verdict.outcome == "failed", "a wrong answer passes"
    assert str(verdict) and as_html(verdict)


@pytest.mark.parametrize(("key", "answer"), RIGHT)
def test_right_answers_pass(key, answer):
    verdict = grade(find(key), answer)
    assert verdict.outcome == "passed", verdict


# ------------------------------------------------------------------ answers that attack the engine


def softmax(x, temperature=1.0):
    if temperature <= 0:
        raise ValueError
    return torch.softmax(x / temperature, -1)


def raising(error):
    def answer(x, temperature=1.0):
        raise error

    return answer


def returning(make):
    return lambda x, temperature=1.0: make(softmax(x, temperature))


class Bare(BaseException):
    """Not an Exception: `except Exception` lets it through."""


class NoText(Exception):
    def __str__(self):
        raise SystemExit


class EndlessText:
    def __repr__(self):
        while True:
            pass


class Pretender:
    """It says that it is a Tensor, and is not."""

    __class__ = property(lambda self: torch.Tensor)

    def __getattr__(self, name):
        raise OSError(name)


class Liar(torch.Tensor):
    """Whatever it is asked, every element of it is right."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return torch.zeros(())


def freed(x):
    x = x.detach()
    x.untyped_storage().resize_(0)
    return x


def holds_itself(x):
    items = []
    items.append(items)
    return items


class Softmax:
    def __call__(self, x, temperature=1.0):
        return softmax(x, temperature)


async def asynchronous(x, temperature=1.0):
    return softmax(x, temperature)


def default_that_is_no_number(x, temperature=np.ones(3)):  # noqa: B008
    return softmax(x, temperature)


def exits_when_measured(x, temperature=1.0):
    if torch._C._len_torch_dispatch_stack():
        sys.exit()
    return softmax(x, temperature)


FAILING = {
    "SystemExit": (raising(SystemExit(3)), "your code raised SystemExit: 3"),
    "GeneratorExit": (raising(GeneratorExit()), "your code raised GeneratorExit"),
    "a BaseException": (raising(Bare("no")), "your code raised Bare: no"),
    "an exception without text": (raising(NoText()), "your code raised NoText"),
    "an endless repr": (returning(lambda x: EndlessText()), "came an EndlessText"),
    "equal to all": (returning(lambda x: EqualToAll()), "came an EqualToAll"),
    "a pretender": (returning(lambda x: Pretender()), "OSError"),
    "a liar": (returning(lambda x: torch.zeros_like(x).as_subclass(Liar)), "came a Liar"),
    "a list of itself": (returning(holds_itself), "RecursionError"),
    "freed memory": (returning(freed), "it was resized"),
    "sparse": (returning(torch.Tensor.to_sparse), "layout torch.sparse_coo"),
    "nested": (returning(lambda x: torch.nested.nested_tensor([x])), "expected a dense tensor"),
    "on meta": (returning(lambda x: x.to("meta")), "expected device cpu; came meta"),
    "endless": (returning(lambda x: x.expand(10**9, *x.shape)), "expected shape (2,)"),
    "async": (asynchronous, "returns a coroutine"),
    "an array as default": (default_that_is_no_number, "the default of `temperature` is 1.0"),
    "SystemExit when measured": (exits_when_measured, "could not be measured"),
    "nothing": (None, "must be callable; came None"),
}


@pytest.mark.parametrize("what", FAILING)
def test_a_clear_verdict_and_a_kernel_that_works_on(what):
    answer, sentence = FAILING[what]
    verdict = grade(toys.softmax, answer)
    assert verdict.outcome == "failed"
    assert sentence in str(verdict), verdict
    assert as_html(verdict)
    assert grade(toys.softmax, softmax).outcome == "passed"


CALLABLES = {
    "partial": functools.partial(softmax),
    "cached": functools.cache(softmax),
    "an object": Softmax(),
    "compiled": torch.compile(softmax, backend="eager"),
    "a negative view": returning(lambda x: torch._neg_view(-x)),
}


@pytest.mark.parametrize("what", CALLABLES)
def test_anything_that_can_be_called_may_be_an_answer(what):
    verdict = grade(toys.softmax, CALLABLES[what])
    assert verdict.outcome == "passed", verdict


def swallows_everything(x, temperature=1.0):
    while True:
        try:  # noqa: SIM105 - what students write
            time.sleep(1)
        except:  # noqa: E722
            pass


def sleeps_when_measured(x, temperature=1.0):
    if torch._C._len_torch_dispatch_stack():
        time.sleep(60_000)
    return softmax(x, temperature)


@pytest.mark.parametrize("answer", [swallows_everything, sleeps_when_measured])
def test_what_does_not_end_is_stopped(answer, monkeypatch):
    monkeypatch.setattr(toys.softmax, "limit_s", 1.0)
    verdict = grade(toys.softmax, answer, explain=False)
    assert "still running" in str(verdict)


def test_an_interrupt_while_costs_are_measured_is_no_failure():
    def interrupted(x, temperature=1.0):
        if torch._C._len_torch_dispatch_stack():
            raise KeyboardInterrupt
        return softmax(x, temperature)

    assert grade(toys.softmax, interrupted).outcome == "interrupted"


def test_output_of_every_kind_is_kept_quiet(capfd):
    def noisy(x, temperature=1.0):
        print("noise")
        print("noise", file=sys.stderr)
        warnings.warn("noise", stacklevel=1)
        return softmax(x, temperature)

    assert grade(toys.softmax, noisy).outcome == "passed"
    assert "noise" not in "".join(capfd.readouterr())


def test_a_thread_that_lives_on_harms_nobody():
    def spawning(x, temperature=1.0):
        threading.Thread(target=time.sleep, args=(0.01,), daemon=True).start()
        return softmax(x, temperature)

    verdict = grade(toys.softmax, spawning)
    assert "another thread" in str(verdict)
    assert grade(toys.softmax, softmax).outcome == "passed"


# ------------------------------------------------------------------ explanations that do not fit


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        (
            "tensors.one_hot_by_scatter",
            lambda ids, vocab_size: torch.stack(
                [
                    tensors.one_hot_by_scatter(ids[:, [t]], vocab_size)[:, 0]
                    for t in range(ids.size(1))
                ],
                1,
            ),
        ),
        (
            "tensors.causal_mask",
            lambda T, S: torch.arange(S) <= torch.tensor([S - T + i for i in range(T)]).view(T, 1),
        ),
        (
            "tensors.pairwise_sq_distances",
            lambda x, y: (
                torch.from_numpy(tensors.pairwise_sq_distances(x, y).detach().numpy())
                if not x.requires_grad
                else tensors.pairwise_sq_distances(x, y)
            ),
        ),
    ],
)
def test_another_cost_than_the_known_mistakes_is_not_explained_as_one(key, answer):
    verdict = grade(find(key), answer)
    assert verdict.failed_rung == "contracts"
    assert verdict.diagnosis is None, verdict


def test_a_contract_can_be_judged_without_an_exercise():
    (contract,) = toys.softmax.contracts
    assert broken(contract, softmax, 5.0) is None


# ------------------------------------------------------------------ mine()

HEAD = '@exercise("toys.temperature_softmax")\n'
BODY = (
    "def temperature_softmax(x, temperature=1.0):\n    if temperature <= 0:\n"
    "        raise ValueError\n    return torch.softmax((x / temperature){}, -1)\n"
)
KEPT = {
    "a constant from a library": ("from math import pi as PI\n", HEAD + BODY.format(" + PI")),
    "infinity": ("INF = float('inf')\n", HEAD + BODY.format(".clamp(max=INF)")),
    "a type variable": (
        "from typing import TypeVar\nNumbers = TypeVar('Numbers')\n",
        HEAD + BODY.format("").replace("(x, temp", "(x: Numbers, temp", 1),
    ),
    "an alias of a type": (
        "from collections.abc import Iterable\nRows = Iterable[torch.Tensor]\n",
        HEAD + BODY.format("").replace("(x, temp", "(x: Rows, temp", 1),
    ),
    "a function in a default": (
        "def one():\n    return 1.0\n",
        HEAD + BODY.format("").replace("=1.0", "=one()", 1),
    ),
    "a cached function": ("import functools\n", HEAD + "@functools.cache\n" + BODY.format("")),
    "another name": ("", HEAD + BODY.format("").replace("temperature_softmax", "mine_own", 1)),
}
NOT_KEPT = {
    "a global tensor": (
        "ZERO = torch.zeros(())\n",
        HEAD + BODY.format(" + ZERO.to(x.dtype)"),
        "`ZERO`",
    ),
    "a closure": (
        "",
        "def make(shift):\n    "
        + (HEAD + BODY.format(" + shift")).replace("\n", "\n    ")
        + "\n    return temperature_softmax\ntemperature_softmax = make(1.0)\n",
        "`shift`",
    ),
    "a lambda": (
        "def no(error):\n    raise error\n",
        'f = exercise("toys.temperature_softmax")(lambda x, temperature=1.0: '
        "torch.softmax(x / temperature, -1) if temperature > 0 else no(ValueError()))\n",
        "its source",
    ),
}
USE = 'again = mine("toys.temperature_softmax")\nprint(again(torch.zeros(2)).tolist())'


@pytest.mark.parametrize("what", KEPT)
def test_an_answer_is_kept_with_what_it_needs(notebook, what):
    before, cell = KEPT[what]
    notebook.run(before)
    assert "✓" in notebook.run(cell)
    assert notebook.run(USE) == "[0.5, 0.5]"
    assert notebook["again"] is not toys.softmax.reference


@pytest.mark.parametrize("what", NOT_KEPT)
def test_what_cannot_be_kept_is_said_and_the_book_stands_in(notebook, what):
    before, cell, missing = NOT_KEPT[what]
    notebook.run(before)
    assert "✓" in notebook.run(cell)
    text = notebook.run(USE)
    assert f"needs {missing}, which could not be kept" in text
    assert notebook["again"] is toys.softmax.reference


def test_the_same_cell_twice_and_one_function_for_two_exercises(notebook):
    cell = HEAD + BODY.format("")
    assert "✓" in notebook.run(cell) and "✓" in notebook.run(cell)
    text = notebook.run('@exercise("strides.flat_index")\n' + cell)
    assert "✓ temperature_softmax · passed" in text and "✗ flat_index · failed" in text
