"""Chapter 20's ring attention against attention on one process, and what it costs."""

import pytest
import torch
from torch.nn import functional as F

from course_utils.meters import measure
from course_utils.ranks import Ranks
from course_utils.reference.context_parallel import causal_pairs, ring_attention, zigzag_positions


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_zigzag_deals_out_every_token_once_and_the_same_work(n):
    length = 6 * n
    held = [zigzag_positions(rank, n, length) for rank in range(n)]
    assert torch.cat(held).sort().values.tolist() == list(range(length))
    work = {causal_pairs(own, torch.arange(length)) for own in held}
    assert work == {length * (length + 1) // 2 // n}
    for step in range(1, n):  # and in each step of the ring but the first
        assert len({causal_pairs(held[r], held[(r - step) % n]) for r in range(n)}) == 1


def attend(positions, dtype):
    import torch.distributed as dist

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, positions.numel(), 8, dtype=torch.float64).to(dtype)
    own = positions[dist.get_rank()]
    with measure() as cost:
        out = ring_attention(q[:, :, own], k[:, :, own], v[:, :, own], positions)
    whole = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    error = (out.double() - whole[:, :, own]).abs().max().item()
    return error, out.dtype == dtype, cost.messages, cost.bytes_sent, cost.bytes_peak


@pytest.mark.parametrize(
    ("dtype", "least"), [(torch.float32, 1e-6), (torch.float64, 1e-14), (torch.bfloat16, 2e-2)]
)
def test_ring_attention_equals_attention(dtype, least):
    with Ranks(4, timeout=60.0, debug=False) as ranks:
        zigzag = torch.stack([zigzag_positions(rank, 4, 64) for rank in range(4)])
        for positions in (torch.arange(64).view(4, 16), zigzag, torch.randperm(64).view(4, 16)):
            block = 2 * 2 * 3 * 16 * 8 * dtype.itemsize  # one rank's keys and values
            for error, same, messages, sent, _ in ranks.call(attend, positions, dtype):
                assert error < least
                assert same
                assert (messages, sent) == (3, 3 * block)
