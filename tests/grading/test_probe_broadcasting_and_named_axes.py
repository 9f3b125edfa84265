"""The probe of chapter 3's pair: heads are merged from a view and from a tensor of their own."""

import pytest
import torch

from course_utils.grading import call, probes
from course_utils.reference.broadcasting_and_named_axes import merge_heads, split_heads

X = torch.arange(24.0).view(2, 3, 4)


def seen(split=split_heads, merge=merge_heads):
    return probes.split_and_merged({"split_heads": split, "merge_heads": merge}, call(X.clone(), 2))


def test_there_and_back_from_both_layouts():
    found = seen()
    assert found.keys() == {"split", "merged", "merged, from a new tensor"}
    assert torch.equal(found["split"], X.view(2, 3, 2, 2).transpose(1, 2))
    assert torch.equal(found["merged"], X)
    assert torch.equal(found["merged, from a new tensor"], X)


def test_a_merge_that_views_meets_heads_that_are_not_side_by_side():
    def merge(heads):
        return heads.transpose(1, 2).view(2, 3, 4)

    assert torch.equal(merge(split_heads(X, 2)), X)  # of a view of X it works
    with pytest.raises(RuntimeError, match="view"):
        seen(merge=merge)


def test_what_the_split_changes_is_seen():
    def split(x, n_head):
        x.zero_()
        return split_heads(x, n_head)

    assert any("x" in label for label in seen(split=split).keys() - seen().keys())
