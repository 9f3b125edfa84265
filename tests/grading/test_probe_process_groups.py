"""Rounds of messages, and answers about ranks that no declared mistake or alternative covers."""

import pytest
import torch
import torch.distributed as dist

from course_utils.grading import find, grade
from course_utils.grading.probes.chapters.process_groups import rounds


def send(peer):
    return {"name": "send", "peer": peer}


def recv(peer):
    return {"name": "recv", "peer": peer}


@pytest.mark.parametrize(
    ("logs", "due"),
    [
        ({0: [], 1: []}, 0),
        ({0: [send(1), send(2)], 1: [recv(0), send(3)], 2: [recv(0)], 3: [recv(1)]}, 2),
        ({0: [send(2), send(1)], 1: [recv(0), send(3)], 2: [recv(0)], 3: [recv(1)]}, 3),
        ({0: [send(1)], 1: [recv(0), send(2), send(3)], 2: [recv(1)], 3: [recv(1)]}, 3),
        ({0: [send(1), send(2), send(3)], 1: [recv(0)], 2: [recv(0)], 3: [recv(0)]}, 3),
        ({0: [send(1)], 1: [recv(0), send(2)], 2: [recv(1)]}, 2),
        ({0: [send(1), recv(1)], 1: [send(0), recv(0)]}, 1),
        ({0: [recv(1)], 1: []}, 0),  # nobody sends it
    ],
)
def test_rounds(logs, due):
    assert rounds(logs) == due


def depth_three(x, root=0):
    """Two senders, two messages from each at most, three rounds."""
    rank, n = dist.get_rank(), dist.get_world_size()
    place, data = (rank - root) % n, x.contiguous()
    if place == 0 and n > 1:
        dist.send(data, (root + 1) % n)
    elif place == 1:
        dist.recv(data, root)
        for to in range(2, n):
            dist.send(data, (root + to) % n)
    elif place:
        dist.recv(data, (root + 1) % n)
    x.copy_(data)


def test_a_tree_that_is_too_deep():
    verdict = grade(find("process_groups.tree_broadcast"), depth_three)
    assert verdict.outcome == "failed"
    assert verdict.failure.label == "rounds of messages", verdict


def blocking(x):
    """A right ring: rank 0 receives first, all others send first; slices."""
    rank, n = dist.get_rank(), dist.get_world_size()
    flat = x.reshape(-1).contiguous()
    marks = [0]
    for r in range(n):
        marks.append(marks[-1] + flat.numel() // n + (r < flat.numel() % n))
    piece = {r: flat[marks[r] : marks[r + 1]] for r in range(n)}
    for step in range(2 * n - 2):
        out, into = (rank - step - 1) % n, (rank - step - 2) % n
        buffer = torch.empty_like(piece[into])
        if rank == 0:
            dist.recv(buffer, (rank - 1) % n)
            dist.send(piece[out], (rank + 1) % n)
        else:
            dist.send(piece[out], (rank + 1) % n)
            dist.recv(buffer, (rank - 1) % n)
        if step < n - 1:
            buffer += piece[into]
        piece[into].copy_(buffer)
    x.copy_(flat.view(x.shape))


def test_a_ring_of_blocking_calls_is_right():
    verdict = grade(find("process_groups.ring_all_reduce"), blocking)
    assert verdict.outcome == "passed", verdict


@pytest.mark.parametrize("bad", [(0, 5, (4, 4)), (0, 4, (4, 8)), (-1, 0, (4, 4)), (0, -1, (4, 4))])
def test_ranks_that_do_not_exist(bad):
    """A check that lets one of them through is caught."""
    right = find("process_groups.rank_of").parts[0]

    def rank_of(node, local_rank, local_world_sizes):
        if (node, local_rank) == bad[:2]:
            return 0
        return right(node, local_rank, local_world_sizes)

    with pytest.raises(ValueError, match="node"):
        right(*bad)
    assert grade(find("process_groups.rank_of"), rank_of).outcome == "failed"
