"""Chapter 15's Triton kernels: softmax of rows, a tiled product, and chapter 22's flash attention, forward.

Each is the plain function; `jitted` makes the kernel of it. They import without Triton and run with it:
compiled for a GPU, and on CPU tensors under Triton's interpreter. `triton` and `tl` are what `import triton`
and `import triton.language as tl` give; without Triton, `triton` is None.
"""

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

triton: Any = import_module("triton") if find_spec("triton") else None
tl: Any = import_module("triton.language") if triton else SimpleNamespace(constexpr=object)


def runs_on() -> str:
    """Where kernels find their tensors: "cuda" if Triton compiles them, "cpu" under its interpreter."""
    return "cpu" if triton is None or triton.knobs.runtime.interpret else "cuda"


@cache
def jitted(function: Callable[..., None]) -> Any:
    """The kernel of a function, once for all its launches: `jitted(f)[grid](...)`. Needs Triton."""
    return triton.jit(inspect.unwrap(function))


def softmax_kernel(x_ptr, y_ptr, x_stride, y_stride, n_cols, BLOCK: tl.constexpr):
    """Softmax of one row: program i takes row i of x and writes row i of y.

    x_ptr, y_ptr: the first elements of x and y, of one floating dtype. x_stride, y_stride:
    elements from one row to the next; within a row elements are neighbours. n_cols: of a
    row, 1 to BLOCK. BLOCK: a power of two. Reads and writes nothing beyond the row. The
    largest element is subtracted before exp; computed in float32, written in y's dtype.
    """
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n_cols
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=-float("inf"))
    x = x.to(tl.float32)
    weights = tl.exp(x - tl.max(x, axis=0))
    y = weights / tl.sum(weights, axis=0)
    tl.store(y_ptr + row * y_stride + columns, y, mask=inside)


def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One tile of c = a b: program (i, j) writes rows i · BLOCK_M on and columns j · BLOCK_N on.

    a_ptr, b_ptr, c_ptr: the first elements of a (M, K), b (K, N) and c (M, N), of one
    floating dtype. stride_am: elements of a from one row to the next; stride_ak: from one
    column to the next; likewise for b and c. The blocks are powers of two, 16 or more; they
    need not divide M, N and K. Reads and writes nothing outside of the matrices. Products
    of float32 are float32, not TF32; sums are float32 at least, written in c's dtype.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(
            a_ptr + rows[:, None] * stride_am + inner[None, :] * stride_ak,
            mask=(rows[:, None] < M) & (inner[None, :] < K),
            other=0.0,
        )
        b = tl.load(
            b_ptr + inner[:, None] * stride_bk + columns[None, :] * stride_bn,
            mask=(inner[:, None] < K) & (columns[None, :] < N),
            other=0.0,
        )
        total += tl.dot(a, b, input_precision="ieee")  # not TF32
    tl.store(
        c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn,
        total,
        mask=(rows[:, None] < M) & (columns[None, :] < N),
    )


def flash_attention_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    logsumexp_ptr,
    T,
    S,
    scale,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One tile of queries of one head: program (i, h) takes queries i · BLOCK_Q on of head h.

    Pointers to contiguous q (heads, T, D), k and v (heads, S, D), out (heads, T, D) and
    logsumexp (heads, T). D is a power of two, 16 or more, as the blocks are. With CAUSAL
    the T queries are the last T of the S positions. Source: Dao (2023), algorithm 1.
    """
    tile, head = tl.program_id(0), tl.program_id(1)
    queries = tile * BLOCK_Q + tl.arange(0, BLOCK_Q)
    features = tl.arange(0, D)
    at = (head * T + queries[:, None]) * D + features[None, :]
    q = tl.load(q_ptr + at, mask=queries[:, None] < T, other=0.0)
    maximum = tl.full((BLOCK_Q,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK_Q,), dtype=tl.float32)
    out = tl.zeros((BLOCK_Q, D), dtype=tl.float32)
    for start in range(0, S, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        place = (head * S + keys[:, None]) * D + features[None, :]
        k = tl.load(k_ptr + place, mask=keys[:, None] < S, other=0.0)
        v = tl.load(v_ptr + place, mask=keys[:, None] < S, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = keys[None, :] < S
        if CAUSAL:
            seen = seen & (keys[None, :] <= queries[:, None] + S - T)
        scores = tl.where(seen, scores, -float("inf"))
        new = tl.maximum(maximum, tl.max(scores, axis=1))
        shift = tl.where(new == -float("inf"), 0.0, new)
        weights = tl.exp(scores - shift[:, None])
        keep = tl.exp(maximum - shift)
        total = total * keep + tl.sum(weights, axis=1)
        out = out * keep[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        maximum = new
    divisor = tl.where(total == 0, 1.0, total)  # a row that saw nothing: zeros, and -inf
    tl.store(out_ptr + at, out / divisor[:, None], mask=queries[:, None] < T)
    tl.store(logsumexp_ptr + head * T + queries, maximum + tl.log(divisor), mask=queries < T)


# ------------------------------------------------------------------------------ their launches


def launch_softmax(kernel: Any, x: Tensor) -> Tensor:
    """Softmax of the last axis of x (rows, n) by a kernel with softmax_kernel's arguments.

    kernel: jitted. Rows may lie apart, elements of one row not.
    """
    y = torch.empty_like(x)
    block = triton.next_power_of_2(x.size(1))
    kernel[(x.size(0),)](x, y, x.stride(0), y.stride(0), x.size(1), BLOCK=block)
    return y


def launch_matmul(kernel: Any, a: Tensor, b: Tensor, block: tuple[int, int, int]) -> Tensor:
    """a @ b by a kernel with matmul_kernel's arguments. block: BLOCK_M, BLOCK_N, BLOCK_K."""
    (M, K), N = a.shape, b.size(1)
    c = a.new_empty(M, N)
    grid = (triton.cdiv(M, block[0]), triton.cdiv(N, block[1]))
    strides = (*a.stride(), *b.stride(), *c.stride())
    sizes = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
    kernel[grid](a, b, c, M, N, K, *strides, **sizes)
    return c


def launch_flash_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, block: tuple[int, int] = (16, 16)
) -> tuple[Tensor, Tensor]:
    """Chapter 22's `flash_attention_forward` by the kernel. q: (..., T, D); k, v: (..., S, D)."""
    T, S, D = q.size(-2), k.size(-2), q.size(-1)
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    out, logsumexp = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
    heads = logsumexp.numel() // T
    jitted(flash_attention_kernel)[(triton.cdiv(T, block[0]), heads)](
        q, k, v, out, logsumexp, T, S, D**-0.5, D, *block, causal
    )
    return out, logsumexp
