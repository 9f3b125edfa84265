"""The book's schedules are torch's, action for action; its simulator agrees with the formula."""

import itertools
import re

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from course_utils.reference.pipeline_schedules import (
    bubble,
    bubble_fraction,
    gpipe_schedule,
    interleaved_schedule,
    one_f_one_b_schedule,
    peak_microbatches,
    shown,
    timeline,
    weight_versions,
    zero_bubble_schedule,
)


def torch_table(name, p, m, v=None):
    """torch's table in our form, without what is no computation."""
    given = {"num_stages_per_rank": v} if v else {}
    table = []
    for row in get_schedule_ops(name, p, m, **given):
        found = [re.fullmatch(r"(\d+)([FBIW])(\d+)", str(action)) for action in row]
        table.append([(one[2], int(one[1]), int(one[3])) for one in found if one])
    return table


def alike(n, forward=1.0, backward=2.0):
    return {
        "F": [forward] * n,
        "B": [backward] * n,
        "I": [backward / 2] * n,
        "W": [backward / 2] * n,
    }


@pytest.mark.parametrize("p", [2, 3, 4, 5])
def test_schedules_are_torchs(p):
    for m in range(p, 13):
        assert torch_table("GPipe", p, m) == gpipe_schedule(p, m)
        ours = one_f_one_b_schedule(p, m)
        assert torch_table("1F1B", p, m)[:-1] == ours[:-1]  # of the last, see below
        for v in (2, 3):
            try:
                theirs = torch_table("Interleaved1F1B", p, m, v)
            except ValueError:
                for make in (interleaved_schedule, zero_bubble_schedule):
                    with pytest.raises(ValueError, match="groups of one size"):
                        make(p, m, v)
                continue
            assert theirs == interleaved_schedule(p, m, v)
            split = torch_table("InterleavedZeroBubble", p, m, v)
            assert split == zero_bubble_schedule(p, m, v)


def test_torchs_table_of_1f1b_has_its_last_rank_one_too_high():
    """When torch has mended it, the chapter's text is to follow."""
    theirs, ours = torch_table("1F1B", 4, 8)[-1], one_f_one_b_schedule(4, 8)[-1]
    assert [(k, s, i - (k == "F")) for k, s, i in theirs] == ours
    with pytest.raises(ValueError, match="rank 3: 3B0"):
        timeline(torch_table("1F1B", 4, 8), alike(4))


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
def test_the_simulated_bubble_is_the_formulas(p):
    for m, (forward, backward) in itertools.product(
        range(1, 13), ((1.0, 2.0), (1.0, 1.0), (3.0, 2.0))
    ):
        for make in (gpipe_schedule, one_f_one_b_schedule):
            schedule = make(p, m)
            times = timeline(schedule, alike(p, forward, backward))
            assert bubble(schedule, times) == pytest.approx(bubble_fraction(p, m))
        for v in (1, 2, 3):
            if m % p == 0:
                schedule = interleaved_schedule(p, m, v)
                times = timeline(schedule, alike(p * v, forward, backward))
                assert bubble(schedule, times) == pytest.approx(bubble_fraction(p, m, v))


@pytest.mark.parametrize("p", [1, 2, 4])
def test_what_is_held(p):
    for m in (1, 2, 4, 8, 12):
        assert peak_microbatches(gpipe_schedule(p, m)) == [m] * p
        assert peak_microbatches(one_f_one_b_schedule(p, m)) == [min(m, p - r) for r in range(p)]
        assert max(peak_microbatches(zero_bubble_schedule(p, m))) <= min(m, p)


def test_zero_bubble_leaves_what_its_paper_says():
    for p, m in ((2, 4), (4, 8), (4, 12)):
        schedule = zero_bubble_schedule(p, m)
        times = timeline(schedule, {"F": [3.0] * p, "I": [2.0] * p, "W": [1.0] * p})
        assert max(end for _, end in times.values()) == 6 * m + (p - 1) * (3 + 2 - 1)


def test_stages_late_by_what_lies_behind_them():
    versions = weight_versions(one_f_one_b_schedule(4, 12))
    for stage in range(4):
        late = {versions["B", stage, i] - versions["F", stage, i] for i in range(3, 12)}
        assert late == {3 - stage}


def test_a_deadlock_names_who_waits_for_what():
    crossed = [
        [("F", 0, 0), ("B", 0, 0), ("F", 0, 1), ("B", 0, 1)],
        [("F", 1, 1), ("B", 1, 1), ("F", 1, 0), ("B", 1, 0)],
    ]
    with pytest.raises(ValueError, match="rank 0: 0B0, rank 1: 1F1"):
        timeline(crossed, alike(2))
    assert shown(("W", 3, 12)) == "3W12"
    with pytest.raises(ValueError, match="at least 1"):
        bubble_fraction(2, 0)
