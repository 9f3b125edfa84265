"""Chapter 15's kernels, where Triton is installed; and that they import where it is not."""

import pytest
import torch

from course_utils.needs import TRITON
from course_utils.reference import triton_kernels
from course_utils.reference.attention import flash_attention_forward

DEVICE = triton_kernels.runs_on()
needs_triton = pytest.mark.skipif(not TRITON.present(), reason="Triton is not installed")


def test_kernels_are_plain_functions():
    assert (triton_kernels.triton is not None) == TRITON.present()
    for name in ("softmax_kernel", "matmul_kernel", "flash_attention_kernel"):
        assert callable(getattr(triton_kernels, name))


@needs_triton
@pytest.mark.parametrize("shape", [(1, 1), (5, 37), (3, 64)])
def test_softmax(shape):
    x = torch.randn(shape, device=DEVICE)
    y = triton_kernels.launch_softmax(triton_kernels.jitted(triton_kernels.softmax_kernel), x)
    torch.testing.assert_close(y, x.softmax(-1))


@needs_triton
@pytest.mark.parametrize("block", [(16, 16, 16), (32, 16, 64)])
def test_product(block):
    a, b = torch.randn(33, 50, device=DEVICE), torch.randn(50, 70, device=DEVICE)
    kernel = triton_kernels.jitted(triton_kernels.matmul_kernel)
    c = triton_kernels.launch_matmul(kernel, a, b, block)
    torch.testing.assert_close(c, a @ b, rtol=1e-4, atol=1e-4)


@needs_triton
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("T", "S"), [(20, 44), (33, 33), (30, 20)])
def test_flash_attention_is_chapter_22s(T, S, causal):
    q, k, v = (torch.randn(2, 3, n, 16, device=DEVICE) for n in (T, S, S))
    ours = triton_kernels.launch_flash_attention(q, k, v, causal=causal)
    theirs = flash_attention_forward(q, k, v, causal=causal)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
