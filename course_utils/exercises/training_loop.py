"""Exercises of chapter 12, the training loop: from a table of counts to a run that survives a kill."""
# mypy: ignore-errors

import copy
import io
import os
import random
from math import inf, nan
from pathlib import Path
from textwrap import indent

import numpy as np
import torch
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.reference import training_loop as loop

# ------------------------------------------------------------------------------ confusion_matrix

confusion_matrix = Exercise(
    loop.confusion_matrix,
    title="True class against predicted class",
    difficulty=1,
    minutes=10,
    points=1,
    hints=(
        "A pair (i, j) is one number: i · n_classes + j. Which function counts how often each number occurs?",
        "`torch.bincount(..., minlength=...)`, then a view as a square.",
        ("edge cases", "Classes that never occur have their rows and columns, too: minlength."),
        ("contracts", "No loop over the rows, and none over the classes: one bincount."),
    ),
)


def ids(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


@confusion_matrix.by_hand
def _():
    yield call(ids(0, 1, 1, 1), ids(0, 0, 1, 1), 2), torch.tensor([[1, 1], [0, 2]])
    yield call(ids(2, 2), ids(0, 0), 3), torch.tensor([[0, 0, 2], [0, 0, 0], [0, 0, 0]])


@confusion_matrix.cases
def _(draw):
    n, k = draw(st.integers(1, 9)), draw(st.integers(1, 5))
    yield call(draw(draws.indices((n,), k)), draw(draws.indices((n,), k)), k)


@confusion_matrix.edge
def _():
    empty = torch.empty(0, dtype=torch.int64)
    yield call(empty, empty, 3), "no rows"
    yield call(ids(0, 0), ids(0, 0), 4), "classes that never occur"
    yield (
        call(ids(15, 3, dtype=torch.int8), ids(16, 17, dtype=torch.int8), 20),
        "the pair's number exceeds 127",
    )
    yield call(ids(1, 0, 1, dtype=torch.int32), ids(1, 1, 0, dtype=torch.int32), 2), "int32"
    yield (
        call(ids(0, 9, 1, 9, 1, 9)[::2], ids(1, 7, 1, 7, 0, 7)[::2], 2),
        "every other element of a tensor",
    )


confusion_matrix.contract(
    contracts.constant_kernels(
        [call(torch.arange(n) % 3, torch.arange(n) % 2, 3) for n in (10, 100)]
    )
)

MATRIX = "target.long() * n_classes + predicted"
FROM_THE_ROWS = "You take the number of classes from the rows. Classes that do not occur have a row and a column, too."
ROW_BY_ROW = "Right, but row by row in Python. Count all rows at once, with bincount."
confusion_matrix.slips(
    {
        replace(
            MATRIX, "predicted.long() * n_classes + target"
        ): "Your table is transposed. It must have a row for each true class and a column for each predicted one.",
        replace(
            ", minlength=n_classes * n_classes).view", ").view"
        ): "Where the last pairs do not occur the counts are too few to view as a square: give minlength.",
        replace(
            MATRIX, "target * n_classes + predicted"
        ): "The number of a pair can exceed what a small integer dtype holds: go to int64 before you multiply.",
        replace(
            "view(n_classes, n_classes)", "view(n_classes, n_classes).float()"
        ): "Counts are integers: int64 is asked for.",
        replace(
            "view(n_classes, n_classes)", "view(n_classes, n_classes).to(target.dtype)"
        ): "Your counts have the dtype of the classes: int64 is asked for, whatever theirs is.",
        replace(
            MATRIX, "target.long()\n    pairs *= n_classes\n    pairs += predicted"
        ): "`.long()` of an int64 tensor is that tensor itself, so in place you change the argument: `*` and `+` make a new one.",
        replace(
            "view(n_classes, n_classes)", "view(n_classes, n_classes) / max(len(target), 1)"
        ): "You return shares. Counts are asked for.",
        replace(
            "return torch.bincount(pairs, minlength=n_classes * n_classes).view(n_classes, n_classes)",
            "return torch.zeros(n_classes, n_classes, dtype=torch.int64).index_put((target.long(), predicted.long()), torch.tensor(1))",
        ): "An index that occurs twice counts once here: pass accumulate=True, or count with bincount.",
        replace(
            "    return",
            "    n_classes = int(max(predicted.max(), target.max())) + 1 if len(target) else n_classes\n    pairs = target.long() * n_classes + predicted\n    return",
        ): FROM_THE_ROWS,
        replace(
            "    return",
            "    seen = [int(x.max()) + 1 if len(x) else 0 for x in (target, predicted)]\n    return",
            "view(n_classes, n_classes)",
            "view(n_classes, n_classes)[: seen[0], : seen[1]].clone()",
        ): FROM_THE_ROWS,
        replace(
            "view(n_classes, n_classes)", "view(n_classes, n_classes).fill_diagonal_(0)"
        ): "You count the errors only. Rows that were predicted right are counted, too, on the diagonal.",
        replace(
            "view(n_classes, n_classes)", "view(n_classes, n_classes).flip(0, 1)"
        ): "Your classes run from the last to the first: class 0 comes first, on both axes.",
    }
)


@confusion_matrix.mistake(ROW_BY_ROW, cost=True)
def _(predicted, target, n_classes):
    counts = torch.zeros(n_classes, n_classes, dtype=torch.int64)
    for p, t in zip(predicted.tolist(), target.tolist(), strict=True):
        counts[t, p] += 1
    return counts


@confusion_matrix.mistake(ROW_BY_ROW, cost=True)
def _(predicted, target, n_classes):
    counts = [[0] * n_classes for _ in range(n_classes)]
    for p, t in zip(predicted.tolist(), target.tolist(), strict=True):
        counts[t][p] += 1
    return torch.tensor(counts, dtype=torch.int64)


@confusion_matrix.alternative("a sparse tensor, whose entries of one place are added up")
def _(predicted, target, n_classes):
    pairs = torch.stack([target.long(), predicted.long()])
    ones = torch.ones(pairs.shape[1], dtype=torch.int64)
    return torch.sparse_coo_tensor(pairs, ones, (n_classes, n_classes)).to_dense()


@confusion_matrix.alternative("two one-hot tables, multiplied")
def _(predicted, target, n_classes):
    one_hot = torch.eye(n_classes, dtype=torch.float64)
    return (one_hot[target.long()].T @ one_hot[predicted.long()]).round().long()


@confusion_matrix.alternative("index_put with accumulate")
def _(predicted, target, n_classes):
    counts = target.new_zeros((n_classes, n_classes), dtype=torch.long)
    ones = torch.ones_like(target, dtype=torch.long)
    return counts.index_put_((target.long(), predicted.long()), ones, accumulate=True)


# ------------------------------------------------------------------------------ average_precision

average_precision = Exercise(
    loop.average_precision,
    title="Average precision",
    difficulty=2,
    minutes=20,
    points=3,
    hints=(
        "Sort the rows by score, the highest first. `cumsum` of the sorted targets says how many positives are among the first k rows.",
        "Precision at k is that divided by k; recall that divided by all positives. Recall changes only at a positive row.",
        "Where several rows have one score, no threshold comes between them: keep only the last row of each score.",
        ("edge cases", "Compute in float64: in float32 the sum differs from the seventh digit on."),
    ),
)


def t(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


@average_precision.by_hand
def _():
    yield call(t(0.9, 0.8, 0.7), t(1.0, 0.0, 1.0)), 0.5 * 1 + 0.5 * 2 / 3
    yield call(t(0.1, 0.2, 0.3), t(1.0, 0.0, 0.0)), 1 / 3
    yield call(t(0.5, 0.5, 0.5, 0.5), t(1.0, 0.0, 0.0, 0.0)), 0.25
    yield call(t(2.0, 1.0, 1.0), t(1.0, 1.0, 0.0)), 0.5 + 0.5 * 2 / 3


@average_precision.cases
def _(draw):
    n = draw(st.integers(1, 9))
    scores = draw(draws.tensors((n,)))
    if draw(st.booleans()):
        scores = (scores * 2).round() / 2  # some are equal
    targets = draw(draws.indices((n,), 2))
    targets[draw(st.integers(0, n - 1))] = 1
    yield call(scores, targets.float() if draw(st.booleans()) else targets)


@average_precision.edge
def _():
    yield call(t(0.3), t(1.0)), "one row"
    yield call(t(0.3, 0.2), t(0.0, 0.0)), "no positive row"
    yield call(t(), t()), "no row at all, and so no positive one"
    yield call(t(0.3, 0.3, 0.3), t(0.0, 1.0, 0.0)), "one score for all, a positive in the middle"
    yield call(t(0.3, 0.3, 0.3), t(0.0, 0.0, 1.0)), "one score for all, the positive last"
    yield call(t(nan, 0.2), t(1.0, 0.0)), "NaN"
    yield call(t(inf, 0.2, -inf), t(0.0, 1.0, 1.0)), "infinite scores"
    ends = t(inf, 0.2, inf, -inf, -inf)
    yield call(ends, t(0.0, 1.0, 1.0, 1.0, 0.0)), "several rows of one infinite score"
    yield call(t(300.0, 200.0, 100.0), t(1.0, 0.0, 1.0)), "large logits"
    yield call(t(0.1, 0.2, 0.2, 0.4), torch.tensor([False, True, False, True])), "bool targets"
    yield call(ids(2, 1, 0).double(), ids(1, 0, 2)), "2 is not the positive class"
    yield (
        call(torch.arange(3000.0) % 7, (torch.arange(3000) % 3 == 0).long()),
        "3000 rows, 7 scores",
    )
    yield call(torch.arange(3000.0).sin().half(), (torch.arange(3000) % 11 == 0).long()), "float16"
    yield (
        call(t(0.1, 9, 0.7, 9, 0.4, 9)[::2], t(1, 9, 0, 9, 1, 9)[::2]),
        "every other element of a tensor",
    )


LESS_THAN_FLOAT64 = (
    "You compute in float32, or in the scores' dtype, which has fewer digits: float64 is asked for."
)
BY_RECALL = (
    "found.diff(prepend=found.new_zeros(1)) / hits[-1]",
    "(found / hits[-1]).diff(prepend=found.new_zeros(1))",
    "gained * found / called",
    "gained * (found / called)",
)
SQUASHED = "A sigmoid makes large logits equal, and so ties where there are none. Rank the scores themselves."
TRAPEZOIDS = (
    "You join the points by straight lines (trapezoids), which is too optimistic for precision. A step counts with the "
    "precision at its end."
)
TIES = "    last[:-1] = ranked[1:] != ranked[:-1]\n"
average_precision.slips(
    {
        replace(
            TIES, ""
        ): "Rows of one score are called together: there is no threshold between them, so no "
        "precision either. Your result depends on their order.",
        replace(
            "descending=True", "descending=False"
        ): "You begin with the lowest score. The first threshold is the highest.",
        replace(".double()", ".float()"): LESS_THAN_FLOAT64,
        replace(".double()", ".to(scores.dtype)"): LESS_THAN_FLOAT64,
        replace(".double()", ".float()", *BY_RECALL): LESS_THAN_FLOAT64,
        replace(".double()", ".to(scores.dtype)", *BY_RECALL): LESS_THAN_FLOAT64,
        replace(
            "found.diff(prepend=found.new_zeros(1)) / hits[-1]", "1 / len(found)"
        ): "You take the plain mean of the precisions over all thresholds. Each counts by how much recall rises there.",
        replace(
            "gained * found / called",
            "gained * (found + found.roll(1).index_fill(0, torch.tensor(0), 0.0)) / 2 / called",
        ): TRAPEZOIDS,
        replace(
            "gained * found / called",
            "gained * (found / called + (found / called).roll(1).index_fill(0, torch.tensor(0), 1.0)) / 2",
        ): TRAPEZOIDS,
        replace(
            "gained * found / called",
            "gained * (found / called + torch.cat([found[:1] / called[:1], (found / called)[:-1]])) / 2",
        ): TRAPEZOIDS,
        replace(
            "/ hits[-1]", "/ len(scores)"
        ): "Recall is of the positive rows: divide by their number, not by that of all rows.",
        replace(
            "    if not positive.any():\n", "    if False:\n"
        ): "Without a positive row there is no recall: raise ValueError.",
        replace(
            "    if scores.isnan().any():\n", "    if False:\n"
        ): "A NaN is sorted somewhere, and nobody notices. Raise ValueError.",
        replace(
            "targets == 1", "targets > 0"
        ): "The positive class is 1. You count every target above 0.",
        replace(".sum().item()", ".sum()"): "You return a tensor: a float is asked for, `.item()`.",
        replace(
            "found.diff(prepend=found.new_zeros(1))", "found.diff(prepend=found[:1])"
        ): "The first step is lost: before the highest threshold recall is 0.",
        replace(
            "last[:-1] = ranked", "last[1:] = ranked"
        ): "You take precision and recall at the first row of each score. All rows of one score are called together: "
        "take them after the last.",
        replace(
            "ranked[1:] != ranked[:-1]", "(ranked[1:] != ranked[:-1]).roll(1)"
        ): "You keep another row than the last of each score. All rows of a score are called before precision is taken.",
        replace(
            "ranked[1:] != ranked[:-1]", "ranked.diff() != 0"
        ): "You find equal scores by their difference, and inf − inf is NaN: rows of one infinite score are not called together. "
        "Compare the scores with !=.",
        replace(
            "gained * found / called",
            "gained * (found / called).flip(0).cummax(0).values.flip(0)",
        ): "You take the best precision at this recall or a higher one: that is interpolated average precision, as of VOC and "
        "COCO. Take the precision as it is.",
        replace(
            "not positive.any()", "not positive.any() or positive.all()"
        ): "Rows that are all positive are no error: average precision is 1 then. ROC curves need both classes.",
        replace("= scores.sort(", "= scores.sigmoid().sort("): SQUASHED,
        replace("= scores.sort(", "= scores.double().sigmoid().sort("): SQUASHED,
        replace(
            '    if not positive.any():\n        raise ValueError("recall needs a row of the positive class; there is none")\n',
            "",
            "positive[order].double().cumsum(0)\n",
            "positive[order].double().cumsum(0)\n    if hits[-1] == 0:\n        raise ValueError\n",
        ): "You ask the last count whether there is a positive row. Without rows there is no last one, and IndexError is raised: "
        "ask positive.any().",
    }
)


@average_precision.mistake(
    "That is the area under the ROC curve: how often a positive row scores above a negative one. Average precision sums "
    "precision over recall."
)
def _(scores, targets):
    if scores.isnan().any() or not (targets == 1).any():
        raise ValueError
    pos, neg = scores[targets == 1].double(), scores[targets != 1].double()
    if not len(neg):
        return 1.0
    wins = (pos[:, None] > neg).double() + 0.5 * (pos[:, None] == neg).double()
    return wins.mean().item()


@average_precision.alternative("threshold by threshold, in Python")
def _(scores, targets):
    if not all(s == s for s in scores.tolist()):
        raise ValueError("NaN")
    truth = [x == 1 for x in targets.tolist()]
    if sum(truth) == 0:
        raise ValueError("no positive")
    total, before = 0.0, 0.0
    values = scores.tolist()
    for threshold in sorted(set(values), reverse=True):
        called = [x for s, x in zip(values, truth, strict=True) if s >= threshold]
        recall = sum(called) / sum(truth)
        total += (recall - before) * sum(called) / len(called)
        before = recall
    return total


@average_precision.alternative("the mean, over positive rows, of the precision at their score")
def _(scores, targets):
    yes = targets.eq(1)
    if torch.isnan(scores).any() or yes.sum() == 0:
        raise ValueError
    ordered = scores.sort().values
    called = len(scores) - torch.searchsorted(ordered, scores[yes].contiguous())
    mine = scores[yes].sort().values
    found = len(mine) - torch.searchsorted(mine, scores[yes].contiguous())
    return float((found.double() / called).mean())


# ------------------------------------------------------------------------------ best_threshold

best_threshold = Exercise(
    loop.best_threshold,
    title="Where to draw the line",
    difficulty=2,
    minutes=20,
    points=2,
    hints=(
        "Between two neighbouring scores the cost does not change, so the scores themselves, and inf, are all the candidates.",
        "Sort as in average_precision. If the first k rows are called, which positives are missed, and which alarms are false?",
        "Rows of one score are called together. Put inf in front of the sorted scores, so that the first minimum is the highest.",
        (
            "edge cases",
            "If every alarm costs more than the miss that it saves, nobody is called: inf.",
        ),
    ),
)


@best_threshold.by_hand
def _():
    scores, targets = t(0.75, 0.5, 0.25), t(1.0, 0.0, 1.0)
    yield call(scores, targets, 1.0), 0.75  # costs: inf 2, 0.75 1, 0.5 2, 0.25 1
    yield call(scores, targets, 10.0), 0.25  # one false alarm is cheaper than one miss
    yield call(scores, targets, 1.0, 10.0), 0.75
    yield call(t(0.75, 0.25), t(0.0, 1.0), 1.0, 2.0), inf


@best_threshold.cases
def _(draw):
    n = draw(st.integers(1, 9))
    scores = draw(draws.tensors((n,)))
    if draw(st.booleans()):
        scores = (scores * 2).round() / 2
    targets = draw(draws.indices((n,), 2))
    miss = float(draw(st.sampled_from([1, 2, 5, 20])))
    more = {"false_alarm": float(draw(st.sampled_from([1, 3])))} if draw(st.booleans()) else {}
    yield call(scores, targets.float() if draw(st.booleans()) else targets, miss, **more)


@best_threshold.edge
def _():
    yield call(torch.empty(0), torch.empty(0), 3.0), "no rows"
    close = "costs that float32 cannot tell apart"
    yield call(t(0.5, 0.25), t(0.0, 1.0), 2.0**24 + 1, 2.0**24), close
    yield call(t(0.75, 0.5, 0.25), t(1.0, 0.0, 1.0), 2.0**24 + 1, 2.0**24), close
    yield call(t(0.75, 0.5, 0.25), t(1.0, 0.0, 1.0), 2.0**24 + 4, 2.0**24 + 3), close
    yield call(t(0.5), t(0.0), 3.0), "nothing to find"
    yield call(t(0.5), t(1.0), 3.0), "nothing to avoid"
    yield (
        call(t(0.5, 0.5, 0.25), t(0.0, 1.0, 0.0), 1.0),
        "a tie: calling both costs as much as calling nobody",
    )
    yield call(t(0.5, 0.5, 0.5, 0.25), t(0.0, 1.0, 1.0, 1.0), 1.0), "three rows of one score"
    yield (
        call(t(0.5, 0.5, 0.5, 0.25), t(1.0, 1.0, 0.0, 0.0), 1.0),
        "the false alarm last of its score",
    )
    yield call(t(0.9, 0.8, 0.7, 0.6), t(1.0, 0.0, 1.0, 0.0), 1.0), "of equal cost the highest"
    yield call(t(-3.5, -1.25, 2.5), t(1.0, 0.0, 1.0), 10.0), "logits, some below 0"
    yield call(t(0.5, 0.25), t(1.0, 1.0), 0.0), "a miss costs nothing"
    yield (
        call(t(0.5, 0.25), t(0.0, 0.0), 1.0, 0.0),
        "an alarm costs nothing, and nobody is to be found",
    )
    yield (
        call(torch.tensor([0.1, 0.7, 0.4]), torch.tensor([True, False, True]), 2.0),
        "bool targets",
    )
    yield call(ids(2, 1, 0).double(), ids(1, 0, 2), 2.0), "2 is not the positive class"
    yield (
        call(t(0.1, 9, 0.7, 9, 0.4, 9)[::2], t(1, 9, 0, 9, 1, 9)[::2], 3.0),
        "every other element of a tensor",
    )
    yield call(t(0.1, 0.7, 0.4, dtype=torch.float64), t(0, 1, 1), 2.0), "float64"


THRESHOLD_TIES = (
    "    cost[:-1][ranked[1:] == ranked[:-1]] = inf  # rows of equal score are called together\n"
)
COST = "miss * missed.double() + false_alarm * alarms.double()"
NOBODY = "nobody = miss * positive.sum().double()"
COSTS_IN_FLOAT64 = "You compute the costs in float32, or in the scores' dtype, which cannot tell large ones apart: float64 is asked for."
best_threshold.slips(
    {
        replace(
            THRESHOLD_TIES, ""
        ): "You draw the line between rows of one score, which no threshold does: they are called together.",
        replace(
            "miss * missed.double() + false_alarm * alarms.double()",
            "missed.double() + alarms.double()",
        ): "You minimise the number of errors. The two kinds have different costs.",
        replace(
            "miss * missed.double() + false_alarm * alarms.double()",
            "false_alarm * missed.double() + miss * alarms.double()",
            "nobody = miss",
            "nobody = false_alarm",
        ): "You have exchanged the two costs: a miss is a positive row below the threshold.",
        replace(
            "false_alarm * alarms.double()", "alarms.double()"
        ): "A false alarm costs false_alarm, which need not be 1.",
        replace(
            "positive.sum() - positive.cumsum(0)",
            "positive.sum() - positive.cumsum(0) + positive.long()",
        ): "A row whose score is the threshold is called positive (at least): you count it as missed.",
        replace(
            "positive.sum() - positive.cumsum(0)",
            "(positive & (ranked <= ranked[:, None])).sum(1)",
            "(~positive).cumsum(0)",
            "(~positive & (ranked > ranked[:, None])).sum(1)",
        ): "You call only the rows above the threshold. Those whose score equals it are called positive, too: `>=`.",
        replace(
            "nobody = miss * positive.sum().double()",
            "nobody = positive.new_tensor(inf, dtype=torch.float64)",
        ): "To call nobody can cost least: inf is a candidate, too.",
        replace(
            "    return candidates[torch.cat([nobody[None], cost]).argmin()].item()",
            "    costs = torch.cat([nobody[None], cost])\n    return candidates[(costs == costs.min()).nonzero().max()].item()",
        ): "Of several thresholds of equal cost you return the lowest: the highest is asked for.",
        replace(
            "    return candidates[torch.cat([nobody[None], cost]).argmin()].item()",
            "    return torch.cat([nobody[None], cost]).min().item()",
        ): "You return the cost. The threshold is asked for.",
        replace(
            "    return candidates[torch.cat([nobody[None], cost]).argmin()].item()",
            "    return candidates[torch.cat([nobody[None], cost]).argmin()]",
        ): "You return a tensor: a float is asked for, `.item()`.",
        replace(
            "    return candidates[torch.cat([nobody[None], cost]).argmin()].item()",
            "    lower = torch.cat([ranked, ranked.new_tensor([-inf])])\n"
            "    place = torch.cat([nobody[None], cost]).argmin()\n"
            "    return ((candidates[place] + lower[place]) / 2).item() if 0 < place < len(ranked) else candidates[place].item()",
        ): "You return the middle between two scores. It costs the same, but a score itself is asked for.",
        replace(
            "targets[order] == 1", "targets[order] > 0"
        ): "The positive class is 1. You count every target above 0.",
        replace(
            "targets[order] == 1", "targets == 1"
        ): "You sort the scores and leave the targets in their old order.",
        replace(
            COST,
            "miss * (missed.double() / max(int(positive.sum()), 1))"
            " + false_alarm * (alarms.double() / max(int((~positive).sum()), 1))",
            NOBODY,
            "nobody = positive.new_tensor(miss * bool(positive.any()), dtype=torch.float64)",
        ): "You weigh the shares of the positives that are missed and of the negatives that are called. The costs are for each row: "
        "weigh their numbers.",
        replace(
            COST,
            "miss * missed.float() + false_alarm * alarms.float()",
            NOBODY,
            "nobody = miss * positive.sum().float()",
        ): COSTS_IN_FLOAT64,
        replace(
            COST,
            "miss * missed.to(scores.dtype) + false_alarm * alarms.to(scores.dtype)",
            NOBODY,
            "nobody = miss * positive.sum().to(scores.dtype)",
        ): COSTS_IN_FLOAT64,
        replace(
            COST,
            "miss / false_alarm * missed.double() + alarms.double()",
            NOBODY,
            "nobody = miss / false_alarm * positive.sum().double()",
        ): "You divide by false_alarm, which is 0 where an alarm costs nothing.",
        replace(
            "targets[order] == 1", "targets[order]", "(~positive)", "(1 - positive)"
        ): "You compute with the targets themselves, 1 − target for a negative: bool refuses that, and a 2 counts as two. Ask for "
        "`targets == 1`.",
    }
)


@best_threshold.mistake(
    "You try the thresholds 0, 0.01, … 1. Scores may be logits of any size: the scores themselves, and inf, are the candidates."
)
def _(scores, targets, miss, false_alarm=1.0):
    best, lowest = inf, miss * (targets == 1).sum().item()
    for threshold in reversed([i / 100 for i in range(101)]):
        called = scores >= threshold
        cost = (
            miss * ((targets == 1) & ~called).sum() + false_alarm * ((targets != 1) & called).sum()
        )
        if cost < lowest:
            best, lowest = threshold, cost.item()
    return best


@best_threshold.alternative("every candidate against every row")
def _(scores, targets, miss, false_alarm=1.0):
    line = torch.cat([scores.unique(), scores.new_full((1,), inf)]).flip(0)
    called, yes = scores >= line[:, None], targets == 1
    cost = miss * (yes & ~called).sum(1).double() + false_alarm * (~yes & called).sum(1).double()
    return float(line[cost.argmin()])


# ------------------------------------------------------------------------------ train_epoch

train_epoch = Exercise(
    loop.train_epoch,
    title="One epoch",
    difficulty=1,
    minutes=15,
    points=2,
    probe=probes.epoch_trained,
    hints=(
        "Six lines for a batch: gradients to zero, forward, loss, backward, step, and the sum.",
        "A batch of 2 rows and one of 16 rows: by what do you weigh their losses?",
        "`total += loss.item() * len(x)`, `rows += len(x)`, and at the end total / rows.",
    ),
)


def batches_of(draw, sizes, classes=2):
    pairs = []
    for n in sizes:
        y = draw(draws.indices((n,), classes))
        pairs.append((draw(draws.tensors((n, 2))), y if classes > 2 else y.float()))
    return pairs


@train_epoch.by_hand
def _():
    weight = t(0.0, 0.0)[None]
    batches = [(t(2.0, 0.0)[None], t(1.0))]  # logit 0, loss ln 2, gradient (0.5 − 1) · 2
    yield (
        call(batches, model="linear", seed=0, optimizer="SGD", weight=weight),
        {
            "epoch 1: mean loss": torch.tensor(2.0).log(),
            "epoch 1: the model afterwards": {"0.weight": t(0.5, 0.0)[None], "0.bias": t(0.25)},
        },
    )


@train_epoch.cases(24)
def _(draw):
    model = draw(st.sampled_from(["linear", "classifier", "noisy", "three classes"]))
    sizes = draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    yield call(
        batches_of(draw, sizes, 3 if model == "three classes" else 2),
        model=model,
        seed=draw(st.integers(0, 99)),
        optimizer=draw(st.sampled_from(["SGD", "momentum", "AdamW"])),
    )


@train_epoch.edge
def _():
    torch.manual_seed(0)
    x, y = torch.randn(13, 2), torch.arange(13) % 2.0
    options = {"seed": 3, "optimizer": "SGD"}
    yield (
        call([(x[:12], y[:12]), (x[12:], y[12:])], model="linear", **options),
        "a last batch of one row",
    )
    yield (
        call([(x[i : i + 1], y[i : i + 1]) for i in range(5)], model="noisy", **options),
        "batches of one row",
    )
    pairs = [(x[:8], y[:8]), (x[8:], y[8:])]
    both = [(inputs, torch.stack([targets, 1 - targets], 1)) for inputs, targets in pairs]
    yield call(both, model="two labels", **options), "two labels a row"
    yield call([], model="linear", **options), "no batch"


train_epoch.slips(
    {
        replace(
            "        optimizer.zero_grad()\n", ""
        ): "You never set the gradients to zero: each backward adds to what is there.",
        replace(
            "        optimizer.zero_grad()\n",
            "",
            "    total, rows = 0.0, 0\n",
            "    total, rows = 0.0, 0\n    optimizer.zero_grad()\n",
        ): "You set the gradients to zero once an epoch. Every batch's backward adds to those of the batch before.",
        replace(
            "        optimizer.zero_grad()\n",
            "",
            "        optimizer.step()\n",
            "        optimizer.step()\n        optimizer.zero_grad()\n",
        ): "You set the gradients to zero after the step. Those that were there before the first batch count in it: do it "
        "before each backward.",
        replace(
            "loss.item() * len(x)", "loss.item()", "rows += len(x)", "rows += 1"
        ): "You take the mean of the batches' means. In a small last batch a row then counts more: weigh by len(x).",
        replace(
            "loss.item() * len(x)", "loss.item()"
        ): "You add up means and divide by rows. A batch's mean loss stands for len(x) rows.",
        replace(
            "    model.train()\n", ""
        ): "The model runs in eval mode, in which it came: dropout drops nothing, and BatchNorm's statistics stay. Call model.train().",
        replace(
            "    model.train()\n", "    model.training = True\n"
        ): "You set the flag of the model alone. `model.train()` reaches every module in it.",
        replace(
            "        optimizer.step()\n", ""
        ): "Nothing is learned: loss.backward() gives the gradients, and after it optimizer.step() uses them. Both, in this order.",
        replace(
            "loss.item() * len(x)",
            "loss * len(x)",
            "return total / rows",
            "return (total / rows).item()",
        ): "You keep loss tensors that still have their graph, so no batch's graph can be freed. Keep loss.item(), or "
        "loss.detach().",
        replace(
            "loss.item() * len(x)", "loss.item() * y.numel()"
        ): "You weigh by the values of the targets. Where a row has several, a loss still stands for len(y) rows.",
        replace(
            "return total / rows", "return torch.tensor(total / rows)"
        ): "You return a tensor: a float is asked for.",
        replace(
            "return total / rows", "return loss.item()"
        ): "You return the loss of the last batch. The mean over all rows is asked for.",
        replace(
            "    return total / rows", "    model.eval()\n    return total / rows"
        ): "You leave the model in eval mode: it is to stay in train mode.",
        replace(
            "    if not rows:\n", "    if False:\n"
        ): "Without a batch there is no mean: raise ValueError.",
    }
)


@train_epoch.mistake(
    "You go through the batches before training on them, and an iterator is then empty. Go through them once."
)
def _(model, batches, optimizer, loss_fn):
    rows = sum(len(x) for x, _ in batches)
    total = 0.0
    model.train()
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    if not rows:
        raise ValueError
    return total / rows


@train_epoch.mistake(
    "You compute the loss again after the step, with the new weights. The loss of a batch is that which it was trained on."
)
def _(model, batches, optimizer, loss_fn):
    model.train()
    total, rows = 0.0, 0
    for x, y in batches:
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        optimizer.step()
        total += loss_fn(model(x), y).item() * len(x)
        rows += len(x)
    if not rows:
        raise ValueError
    return total / rows


@train_epoch.alternative("the sum stays on the device until the end")
def _(model, batches, optimizer, loss_fn):
    model.train(True)
    losses, sizes = [], []
    for inputs, labels in batches:
        out = model(inputs)
        loss = loss_fn(out, labels)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        sizes.append(labels.size(0))
    if not sizes:
        raise ValueError("nothing to train on")
    weights = torch.tensor(sizes, dtype=torch.float64)
    return float((torch.stack(losses) * weights).sum() / weights.sum())


# ------------------------------------------------------------------------------ evaluate

evaluate = Exercise(
    loop.evaluate,
    title="An evaluation that leaves no trace",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.evaluated,
    hints=(
        "Three things to arrange before the first batch: the mode, the gradients, and that the modes come back.",
        "A module in eval mode may live in a model in train mode, a frozen BatchNorm for one. `model.train()` at the end would wake it: note the mode of each of `model.modules()`.",
        "`try: … finally:` puts the modes back where something raises.",
        "The mean over all rows: `loss_fn(torch.cat(outputs), torch.cat(targets))`, or batch by batch, weighted by rows.",
    ),
)


@evaluate.by_hand
def _():
    torch.manual_seed(0)
    yield (
        call(
            [(torch.ones(3, 2), t(1.0, 1.0, 0.0)), (torch.ones(1, 2), t(1.0))],
            model="noisy",
            seed=0,
        ),
        {
            "targets": t(1.0, 1.0, 0.0, 1.0),
            "outputs require grad": False,
            "a graph was recorded": False,
        },
    )


@evaluate.cases(24)
def _(draw):
    model = draw(st.sampled_from(["linear", "classifier", "noisy", "three classes"]))
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    yield call(
        batches_of(draw, sizes, 3 if model == "three classes" else 2),
        model=model,
        seed=draw(st.integers(0, 99)),
    )


@evaluate.edge
def _():
    torch.manual_seed(0)
    x, y = torch.randn(9, 2), torch.arange(9) % 2.0
    batches = [(x[:8], y[:8]), (x[8:], y[8:])]
    yield call(batches, model="classifier", seed=1), "a last batch of one row"
    yield (
        call(batches, model="classifier", seed=1, eval=("1.0",)),
        "a frozen BatchNorm is in eval mode before",
    )
    whole = ("", "0", "1", "1.0", "1.1", "1.2", "2", "3")
    yield (
        call(batches, model="classifier", seed=1, eval=whole),
        "all of the model is in eval mode before",
    )
    yield call(batches, model="classifier", seed=1, eval=("",)), "only the outermost module is"
    yield call(batches, model="classifier", seed=1, raises="model"), "the model raises"
    yield call(batches, model="classifier", seed=1, eval=("1",), raises="loss"), "the loss raises"
    yield call(batches, model="classifier", seed=1, raises="batches"), "reading a batch raises"
    both = [(inputs, torch.stack([targets, 1 - targets], 1)) for inputs, targets in batches]
    yield call(both, model="two labels", seed=1), "two labels a row"
    doubles = [(inputs.double(), targets.double()) for inputs, targets in batches]
    yield call(doubles, model="classifier", seed=1), "float64"
    yield call([], model="linear", seed=1), "no batch"
    yield call([], model="classifier", seed=1, raises="no batch"), "no batch: the modes afterwards"


BY_LISTS = "Outputs or targets lose their dtype: from a list torch.tensor makes float32. torch.cat keeps float64."
NO_GRAPH = "You record a graph that nobody uses, and its activations take memory: torch.no_grad()."
NOT_ALL_MODES = "You note the modes of the model and its children only. Their children have modes, too: model.modules()."
RESTORED = "            module.training = mode\n"
WITHOUT_FINALLY = (
    "    try:\n",
    "    if True:\n",
    "    finally:\n",
    "    if True:\n",
    "            return loss_fn(outputs, targets).item(), outputs, targets\n",
    "            result = loss_fn(outputs, targets).item(), outputs, targets\n",
    RESTORED.rstrip("\n"),
    RESTORED + "        return result",
)
NOT_PUT_BACK = "If the model or the loss raises, the modes are not put back. `try: … finally:`."
evaluate.slips(
    {
        replace(
            "    model.eval()\n", ""
        ): "You evaluate in the mode that the model is in: dropout drops, and BatchNorm "
        "normalises by the batch at hand and changes its statistics.",
        replace(
            "for module, mode in modes.items():\n            module.training = mode",
            "model.train()",
        ): "You put every module into train mode. One that was in eval mode before, a frozen BatchNorm for one, has to stay so.",
        replace(
            "for module, mode in modes.items():\n            module.training = mode",
            "model.train(modes[model])",
        ): "You give every module the mode of the outermost one. One that differed, a frozen BatchNorm for one, has to "
        "get its own back.",
        replace(
            "for module, mode in modes.items():\n            module.training = mode", "pass"
        ): "The model stays in eval mode: the next training step would use it so. Put every mode back.",
        replace("        with torch.no_grad():\n", "        with torch.enable_grad():\n"): NO_GRAPH,
        replace(
            "        with torch.no_grad():\n",
            "        with torch.enable_grad():\n",
            "(model(x), y)",
            "(model(x).detach(), y)",
        ): NO_GRAPH,
        replace(
            "return loss_fn(outputs, targets).item(), outputs, targets",
            "return sum(loss_fn(*one).item() for one in done) / len(done), outputs, targets",
        ): "You take the mean of the batches' means. In a small last batch a row then counts more: weigh by rows.",
        replace(
            ".item(), outputs, targets", ", outputs, targets"
        ): "The loss is a tensor: a float is asked for, `.item()`.",
        replace(*WITHOUT_FINALLY): NOT_PUT_BACK,
        replace(
            *WITHOUT_FINALLY,
            "            if not done:\n",
            "            if not done:\n"
            "                [setattr(module, 'training', modes[module]) for module in modes]\n",
        ): NOT_PUT_BACK,
        replace("model.modules()}", "model.children()} | {model: model.training}"): NOT_ALL_MODES,
        replace(
            "model.modules()}",
            "(model, *model.children())}",
            "module.training = mode",
            "module.train(mode)",
        ): NOT_ALL_MODES,
        replace(
            "    model.eval()\n",
            "    model.eval()\n    batches = list(batches)\n    if not batches:\n        raise ValueError\n",
        ): "Where there is no batch you raise ValueError in eval mode, before the `try` that would put the modes back: the model stays so.",
        replace("torch.cat(parts) for", "torch.tensor(torch.cat(parts).tolist()) for"): BY_LISTS,
        replace(
            ".item(), outputs, targets",
            ".item(), torch.tensor(outputs.tolist()), torch.tensor(targets.tolist())",
        ): BY_LISTS,
        replace(
            "return loss_fn(outputs, targets).item(), outputs, targets",
            "return loss_fn(outputs, targets).item(), outputs.sigmoid(), targets",
        ): "You return what you made of the outputs. Return them as the model gives them.",
        replace(
            "return loss_fn(outputs, targets).item(), outputs, targets",
            "return loss_fn(outputs, targets).item(), *done[-1]",
        ): "You return outputs and targets of the last batch only. Those of all are asked for.",
        replace(
            "return loss_fn(outputs, targets).item(), outputs, targets",
            "return loss_fn(outputs, targets).item() * len(targets), outputs, targets",
        ): "You return the sum over the rows. The mean is asked for.",
        replace(
            "    model.eval()\n", "    model.eval()\n    batches = list(batches)\n"
        ): "You read the batches in eval mode before the `try`. If that raises, the modes are not put back: read them within it.",
    }
)


@evaluate.mistake(
    "You go through the batches twice, and an iterator is empty the second time. Keep what the first pass gives."
)
def _(model, batches, loss_fn):
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            outputs = torch.cat([model(x) for x, _ in batches])
            targets = torch.cat([y for _, y in batches])
            return loss_fn(outputs, targets).item(), outputs, targets
    finally:
        for module, mode in modes.items():
            module.training = mode


@evaluate.mistake(
    "You switch gradients off for good: torch.set_grad_enabled(False) stays after you. `with torch.no_grad():` ends by itself."
)
def _(model, batches, loss_fn):
    modes = {module: module.training for module in model.modules()}
    torch.set_grad_enabled(False)
    try:
        done = [(model.eval()(x), y) for x, y in batches]
        if not done:
            raise ValueError
        outputs, targets = (torch.cat(parts) for parts in zip(*done, strict=True))
        return loss_fn(outputs, targets).item(), outputs, targets
    finally:
        for module, mode in modes.items():
            module.training = mode


@evaluate.alternative("batch by batch, under inference_mode")
def _(model, batches, loss_fn):
    in_eval = [module for module in model.modules() if not module.training]
    was = model.training
    total, outs, ys = 0.0, [], []
    try:
        model.eval()
        with torch.inference_mode():
            for x, y in batches:
                out = model(x)
                total += float(loss_fn(out, y)) * y.shape[0]
                outs.append(out)
                ys.append(y)
    finally:
        model.train()
        model.training = was
        for module in in_eval:
            module.training = False
    if not ys:
        raise ValueError("nothing to evaluate")
    targets = torch.cat(ys)
    return total / len(targets), torch.cat(outs).clone(), targets


# ------------------------------------------------------------------------------ EarlyStopping

EarlyStopping = Exercise(
    loop.EarlyStopping,
    title="When to stop",
    difficulty=2,
    minutes=25,
    points=3,
    probe=probes.stopping,
    hints=(
        "Two counters: epochs so far, and epochs since the best. Which of them does an improvement reset?",
        "`model.state_dict()` holds the model's own tensors, not copies of them: `copy.deepcopy`.",
        "`loss < self.best - self.min_delta` is False for NaN, as it should be.",
        (
            "edge cases",
            "The state has to hold the counters and the weights as well, not only the best loss.",
        ),
    ),
)


def told(*answers):
    return {f"epoch {i}: update returns": answer for i, answer in enumerate(answers)}


@EarlyStopping.by_hand
def _():
    yield (
        call(1.0, 0.5, 0.75, 0.5, patience=2),
        told(False, False, False, True) | {"epoch 3: best": 0.5, "epoch 3: best_epoch": 1},
    )
    yield call(1.0, 0.75, 0.25, patience=1, min_delta=0.5), told(False, True, False)


@EarlyStopping.cases
def _(draw):
    steps = draw(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 2.0, nan]), min_size=1, max_size=7)
    )
    if draw(st.booleans()):
        steps.insert(draw(st.integers(0, len(steps))), "reload")
    if any(loss == loss for loss in steps if loss != "reload"):
        steps.append("restore")
    more = {"min_delta": draw(st.sampled_from([0.0, 0.25]))} if draw(st.booleans()) else {}
    yield call(*steps, patience=draw(st.integers(1, 3)), **more)


@EarlyStopping.edge
def _():
    yield call(1.0, 1.0, 1.0, patience=2), "equal is not better"
    yield call(nan, nan, 1.0, patience=2), "NaN at first"
    yield call(1.0, nan, 0.5, nan, patience=2), "NaN in between"
    yield call(1.0, 2.0, 0.5, 2.0, 2.0, patience=2), "patience begins anew with every improvement"
    yield call(1.0, 2.0, 2.0, 2.0, 0.5, patience=2), "it goes on after the stop"
    yield (
        call(1.0, 0.75, 0.5, 0.25, patience=9, min_delta=0.25),
        "exactly min_delta is not more than it",
    )
    yield call(1.0, 2.0, "reload", 2.0, "restore", patience=2), "reloaded while it waits"
    yield (
        call(1.0, 0.5, "reload", "restore", 0.25, "restore", patience=2),
        "reloaded, restored, and better",
    )
    yield call("reload", 1.0, patience=2), "reloaded before the first"
    yield call(inf, "restore", patience=2), "restore before an epoch has counted"
    yield call(1.0, patience=0), "no patience"
    yield call(-1.0, -2.0, -2.0, patience=1), "losses below 0"
    yield call(1.0, 0.5, 0.75, "restore", patience=3), "the best is not the last"
    yield call(1.0, 0.5, "restore", "restore", patience=3), "restored twice, trained in between"
    yield (
        call(1.0, 2.0, "reload", 2.0, patience=3, then={"patience": 2}),
        "reloaded by an object of another patience",
    )
    yield (
        call(1.0, "reload", 0.75, patience=3, then={"min_delta": 0.5}),
        "reloaded by an object of another min_delta",
    )


EXACTLY = "A loss that is better by exactly min_delta, or by nothing, is not better: by more than min_delta is asked for."
PARAMETERS_ONLY = "You keep the parameters only. BatchNorm's running statistics are buffers: they belong to the epoch, too."
NAN_EPOCH = "You pass over an epoch whose loss is NaN. It is an epoch, and one that was not better: it counts."
IN_PLACE = (
    "            self._weights = copy.deepcopy(model.state_dict())\n",
    "            now, kept = model.state_dict(), self._weights\n"
    "            self._weights = {n: kept.get(n, torch.empty_like(v)).copy_(v) for n, v in now.items()}\n",
)
SHARED = (
    "You copy the best weights into the same tensors each time, and a state shares them: it changes with later updates. "
    "Clone them in state_dict and in load_state_dict."
)
EarlyStopping.slips(
    {
        replace(
            "copy.deepcopy(model.state_dict())", "model.state_dict()"
        ): "state_dict() holds the model's own tensors, and so does a dict made of it: training goes on in them, and the best weights are those of the "
        "last epoch. Copy them.",
        replace(
            "copy.deepcopy(model.state_dict())",
            "{n: p.detach().clone() for n, p in model.named_parameters()}",
        ): PARAMETERS_ONLY,
        replace(
            "copy.deepcopy(model.state_dict())",
            "{n: p.detach().clone() for n, p in model.named_parameters()}",
            "model.load_state_dict(self._weights)",
            "model.load_state_dict(self._weights, strict=False)",
        ): PARAMETERS_ONLY,
        replace(*IN_PLACE): SHARED,
        replace(
            *IN_PLACE, "setattr(self, name, value)", "setattr(self, name, copy.deepcopy(value))"
        ): SHARED,
        replace(
            *IN_PLACE, "getattr(self, name) for", "copy.deepcopy(getattr(self, name)) for"
        ): SHARED,
        replace(
            "        self._epochs += 1\n",
            "        self._epochs += 1\n        self.best = min(self.best, loss)\n",
        ): "`best` is the least loss that counted. You lower it for every smaller loss, so that small steps never add up to one "
        "that counts.",
        replace(
            "        self._waited += 1\n",
            "        if loss != loss:\n            return self._waited >= self.patience\n        self._waited += 1\n",
        ): NAN_EPOCH,
        replace(
            "        self._waited += 1\n",
            "        if loss != loss:\n            self._epochs += 1\n            return False\n        self._waited += 1\n",
        ): NAN_EPOCH,
        replace("loss < self.best - self.min_delta", "loss <= self.best - self.min_delta"): EXACTLY,
        replace("loss < self.best - self.min_delta", "self.best - loss >= self.min_delta"): EXACTLY,
        replace(
            "loss < self.best - self.min_delta", "loss < self.best"
        ): "You forget min_delta: an epoch has to be better by more than that.",
        replace(
            "loss < self.best - self.min_delta", "loss < self.best + self.min_delta"
        ): "You add min_delta: then a worse loss counts as better. Subtract it.",
        replace(
            "loss < self.best - self.min_delta", "not loss >= self.best - self.min_delta"
        ): "NaN counts as better here, since every comparison with it is False. Ask for `<`.",
        replace(
            "loss < self.best - self.min_delta",
            "self.best - loss > self.min_delta or loss > self.best + self.min_delta",
        ): "You take every change of the loss for an improvement. Only less is better.",
        replace(
            "self._waited >= self.patience", "self._waited > self.patience"
        ): "You stop an epoch late: after `patience` epochs without improvement, that one included.",
        replace(
            "self._waited >= self.patience", "self._waited == self.patience"
        ): "You say True once, and False in the epochs after. Whoever misses it trains on: `>=`.",
        replace(
            "self._epochs, 0\n", "self._epochs, self._waited\n"
        ): "An improvement has to begin the patience anew: set the counter to 0.",
        replace(
            "            self.best, self.best_epoch",
            "            self.best_epoch",
            "= loss, self._epochs, 0",
            "= self._epochs, 0",
            "        self._epochs += 1\n",
            "        self._epochs += 1\n        self.best = loss\n",
        ): "You compare with the epoch before. The best so far is what counts.",
        replace(
            '"best", "best_epoch", "_epochs", "_waited", "_weights"',
            '"best", "best_epoch", "_weights", "_epochs"',
        ): "Your state lacks how long it has waited: a run that is resumed is more patient than one that was not.",
        replace(
            '"best", "best_epoch", "_epochs", "_waited", "_weights"',
            '"best", "best_epoch", "_epochs", "_waited"',
        ): "Your state lacks the best weights: after a resume there is nothing to restore.",
        replace(
            '"best", "best_epoch", "_epochs", "_waited", "_weights"',
            '"best", "best_epoch", "_weights", "_waited"',
        ): "Your state lacks the number of epochs: after a resume they are counted from 0 again.",
        replace(
            "if patience < 1:", "if patience < 0:"
        ): "A patience of 0 stops before it has begun: raise ValueError.",
        replace(
            "        self._epochs += 1\n",
            "        self._epochs += 1\n        loss = -loss\n",
            "loss < self.best - self.min_delta",
            "loss > -self.best + self.min_delta",
        ): "You look for the highest loss. Less is better.",
        replace(
            "= loss, self._epochs, 0", "= loss, self._epochs + 1, 0"
        ): "You count epochs from 1. The first is 0.",
        replace(
            '"_epochs", "_waited", "_weights"',
            '"_epochs", "_waited", "_weights", "patience", "min_delta"',
        ): "Your state holds patience and min_delta, and loading it overwrites those of the object. They are its own: keep them "
        "out of the state.",
        replace(
            "load_state_dict(self._weights)", "load_state_dict(self._weights, assign=True)"
        ): "With assign=True the kept tensors become the model's own, and training on changes them. Load their values.",
    }
)


@EarlyStopping.alternative("a history of losses, a copy in bytes")
class _:
    def __init__(self, patience, min_delta=0.0):
        if not patience >= 1:
            raise ValueError("patience")
        self.patience, self.min_delta = patience, min_delta
        self.history, self.bytes = [], None
        self.best, self.best_epoch = float("inf"), None

    def update(self, loss, model):
        self.history.append(float(loss))
        if self.best - loss > self.min_delta:
            self.best, self.best_epoch = loss, len(self.history) - 1
            buffer = io.BytesIO()
            torch.save(model.state_dict(), buffer)
            self.bytes = buffer.getvalue()
        since = -1 if self.best_epoch is None else self.best_epoch
        return len(self.history) - 1 - since >= self.patience

    def restore(self, model):
        if self.bytes is None:
            raise RuntimeError("nothing to restore")
        model.load_state_dict(torch.load(io.BytesIO(self.bytes)))

    def state_dict(self):
        return {
            "history": list(self.history),
            "best": self.best,
            "epoch": self.best_epoch,
            "weights": None if self.bytes is None else torch.load(io.BytesIO(self.bytes)),
        }

    def load_state_dict(self, state):
        self.history = list(state["history"])
        self.best, self.best_epoch = state["best"], state["epoch"]
        if state["weights"] is not None:
            buffer = io.BytesIO()
            torch.save(state["weights"], buffer)
            self.bytes = buffer.getvalue()


# ------------------------------------------------------------------------------ checkpoints

save_checkpoint = Exercise(
    (loop.save_checkpoint, loop.load_checkpoint),
    title="A file that is whole at every moment",
    difficulty=2,
    minutes=25,
    points=3,
    probe=probes.written,
    hints=(
        "Never write into the file of before. Write beside it, then `os.replace`: that is one step.",
        "Before the move: `file.flush()`, which empties Python's own buffer, then `os.fsync(file.fileno())`.",
        "The move is a change of the folder. `os.open(folder, os.O_RDONLY)` gives a descriptor that os.fsync takes.",
        (
            "edge cases",
            "`except BaseException:` removes what was written, then `raise`. What is written there may not exist yet: missing_ok.",
        ),
    ),
)

STATE = {"step": 3, "model": {"weight": torch.arange(6.0).view(2, 3), "bias": t(0.5, 1.5)}}


@save_checkpoint.by_hand
def _():
    yield (
        call(state={"step": 3}),
        {"files afterwards": ("run.pt",), "loaded": {"step": 3}, "save returns": None},
    )


@save_checkpoint.cases(8)
def _(draw):
    state = {
        "step": draw(st.integers(0, 9)),
        "w": draw(draws.tensors((draw(st.integers(1, 4)), 2))),
    }
    yield call(state=state, old=draw(st.booleans()), text=draw(st.booleans()))


@save_checkpoint.edge
def _():
    yield call(state=STATE, old=True), "over a file of before"
    yield call(state=STATE, unpicklable=True), "writing raises"
    yield call(state=STATE, interrupted=True), "writing is interrupted, as by Ctrl-C"
    yield (
        call(state=STATE, unpicklable=True, old=True),
        "writing raises: the file of before must be whole",
    )
    yield call(state=STATE, folder=True), "the path is a folder: the move raises"
    yield call(state=STATE | {"top": t(0.5)}, map_location="meta"), "map_location"
    yield call(state=STATE, bare=True), "a bare name, in the folder at hand"
    yield call(state={}, object=True), "a file with a pickled object"
    yield call(state={"big": torch.zeros(50_000)}, old=True), "more than a buffer holds"
    yield (
        call(
            state={"half": torch.ones(2, dtype=torch.float16), "name": "run", "none": None},
            text=True,
        ),
        "plain values",
    )


FSYNC = "            file.flush()\n            os.fsync(file.fileno())\n"
FOLDER = """    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
"""
NONE_BETWEEN = "You remove or rename the file of before, then move the new one: in between there is none. os.replace does both in one step."
save_checkpoint.slips(
    {
        replace(
            'path.with_name(path.name + ".part")', "path", "        os.replace(part, path)\n", ""
        ): "You write into the file itself. A kill in the middle leaves half a file, and the one of before is gone: write "
        "beside it, then os.replace.",
        replace(
            FSYNC, ""
        ): "The new name may reach the disk before the content: after a power cut the file may be empty. "
        "fsync the file before the move.",
        replace(
            "    folder = os.open", "    return\n    folder = os.open"
        ): "The move itself is not durable: the folder has changed as well. Open it and fsync it.",
        replace(
            "        part.unlink(missing_ok=True)\n", ""
        ): "When writing raises, what was written stays beside the file: remove it, and raise again.",
        replace(
            "        os.replace(part, path)\n",
            "        path.unlink(missing_ok=True)\n        part.rename(path)\n",
        ): NONE_BETWEEN,
        replace(
            "        os.replace(part, path)\n",
            "        backup = path.with_name(path.name + '.bak')\n"
            "        if path.exists():\n"
            "            path.rename(backup)\n"
            "        os.replace(part, path)\n"
            "        backup.unlink(missing_ok=True)\n",
        ): NONE_BETWEEN,
        replace(
            "    except BaseException:", "    except OSError:"
        ): "You tidy up after an OSError alone. What cannot be pickled raises something else: `except BaseException:`, and raise "
        "again.",
        replace(
            "os.open(path.parent, ", "os.open(os.path.dirname(path), "
        ): "os.path gives '' for the folder of a bare name, and nothing can be opened by that: take "
        "os.path.dirname(os.path.abspath(path)), or Path(path).parent.",
        replace(
            "        os.replace(part, path)\n",
            "        path.write_bytes(part.read_bytes())\n        part.unlink()\n",
        ): "You copy into place. A kill in the middle of a copy leaves half a file: os.replace is one step.",
        replace(
            'path.with_name(path.name + ".part")',
            'Path(__import__("tempfile").mkdtemp()) / "part"',
        ): "You write in another folder, which may be on another disk: os.replace fails there. Write beside the file.",
        replace(
            "weights_only=True", "weights_only=False"
        ): "You unpickle whatever the file holds, and a pickle can run any "
        "code: weights_only=True.",
        replace(
            "map_location=map_location, ", ""
        ): "You ignore map_location: a checkpoint from a GPU then fails on a machine without one.",
        replace(
            "return torch.load(path, map_location=map_location, weights_only=True)",
            "state = torch.load(path, weights_only=True)\n"
            "    return {k: v.to(map_location) if isinstance(v, Tensor) else v for k, v in state.items()}",
        ): "You move only the tensors at the top of the state. Those within dicts stay where they were: give torch.load map_location.",
        replace(
            "        raise\n    folder", "        return\n    folder"
        ): "You swallow the exception: whoever called goes on as if the file were there. Raise it again.",
        replace(
            "        os.replace(part, path)\n",
            "        __import__('shutil').copyfile(part, path)\n",
        ): "Your temporary file stays behind, and a copy is no single step: move it with os.replace.",
        replace(
            "    except BaseException:", "    except Exception:"
        ): "Ctrl-C raises KeyboardInterrupt, which is no Exception, and what was written stays beside the file. Catch "
        "BaseException, and raise again.",
    }
)


def _pickled(state, path):
    import pickle

    path = Path(path)
    part = path.with_name("part")
    try:
        with open(part, "wb") as file:
            pickle.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _unpickled(path, map_location="cpu"):
    import pickle

    with open(path, "rb") as file:
        return pickle.load(file)


save_checkpoint.mistake(
    "You pickle the state. Whoever loads it runs what the pickle says: torch.save, and torch.load with weights_only=True."
)(_pickled, _unpickled)


def _by_bytes(state, path):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    folder = Path(path).absolute().parent
    temporary = folder / f".{os.getpid()}.being-written"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            os.write(descriptor, buffer.getbuffer())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    finally:
        if temporary.exists():
            temporary.unlink()
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def _loaded(path, map_location="cpu"):
    with open(path, "rb") as file:
        return torch.load(file, map_location=map_location)


save_checkpoint.alternative("bytes first, then descriptors; a rename by pathlib")(
    _by_bytes, _loaded
)


# ------------------------------------------------------------------------------ generators

rng_state = Exercise(
    (loop.rng_state, loop.set_rng_state),
    title="Every generator",
    difficulty=2,
    minutes=20,
    points=2,
    probe=probes.generators,
    hints=(
        "Four kinds: `random`, `np.random`, torch's on the CPU, and one for each GPU. Each has a pair of functions.",
        "NumPy's state holds an array, which torch.load refuses with weights_only=True: make a tensor of it, and an array again.",
        "NumPy's state also says whether a second normal number is kept, and which. Keep all five entries.",
        "`torch.cuda.get_rng_state_all()`, if torch.cuda.is_available().",
    ),
)
rng_state.by_hand(
    lambda: [
        (call(seed=0, before=1), {"the state is as it was": True, "set_rng_state returns": None})
    ]
)


@rng_state.cases(12)
def _(draw):
    yield call(seed=draw(st.integers(0, 99)), before=draw(st.integers(0, 3)))


@rng_state.edge
def _():
    yield call(seed=5, before=0), "just seeded"
    yield call(seed=5, before=1, gpus=True), "two GPUs"
    yield call(seed=5, before=700), "Python's and NumPy's states have gone once round"


rng_state.slips(
    {
        replace(
            "np.random.set_state((name, keys.numpy(), *rest))", "pass"
        ): "NumPy's generator is not put back: `np.random.get_state`, `np.random.set_state`.",
        replace(
            'random.setstate(state["python"])', "pass"
        ): "Python's own generator is not put back: `random.getstate`, `random.setstate`.",
        replace(
            '    torch.set_rng_state(state["torch"])\n', ""
        ): "torch's generator is not put back: `torch.get_rng_state`, `torch.set_rng_state`.",
        replace(
            "np.random.set_state((name, keys.numpy(), *rest))",
            "np.random.set_state((name, keys.numpy(), rest[0]))",
        ): "NumPy keeps a second normal number (has_gauss, cached_gaussian). You drop it: keep all five entries.",
        replace(
            'random.setstate(state["python"])', 'random.setstate((*state["python"][:2], None))'
        ): "Python keeps a second normal number, too, the third entry of its state. You drop it: keep all three.",
        replace(
            '"python": random.getstate(),',
            '"python": [torch.Tensor(one).tolist() if isinstance(one, tuple) else one for one in random.getstate()],',
            'random.setstate(state["python"])',
            "version, words, gauss = state['python']\n    random.setstate((version, tuple(map(int, words)), gauss))",
        ): "torch.Tensor(...) is float32, which cannot hold a word of 32 bits: torch.tensor(..., dtype=torch.int64).",
        replace(
            '"numpy": (name, torch.from_numpy(keys), *rest)',
            '"numpy": [name, torch.from_numpy(keys), *rest]',
            "np.random.set_state((name, keys.numpy(), *rest))",
            'state["numpy"][1] = keys.numpy()\n    np.random.set_state(tuple(state["numpy"]))',
        ): "You put NumPy's array into the state that is given, so that it cannot be used again. A copy of the outer dict shares "
        "what is within.",
        replace(
            'random.setstate(state["python"])',
            'random.setstate(state.pop("python"))',
            'state["numpy"]',
            'state.pop("numpy")',
            'torch.set_rng_state(state["torch"])',
            'torch.set_rng_state(state.pop("torch"))',
        ): "You take the entries out of the given state with `pop`, so that it cannot be used again. Read them: state[…].",
        replace(
            "torch.from_numpy(keys)", "keys"
        ): "NumPy's state holds an array, which torch.load refuses with weights_only=True. Make a tensor of it.",
        replace(
            "torch.get_rng_state()",
            "torch.initial_seed()",
            'torch.set_rng_state(state["torch"])',
            'torch.default_generator.manual_seed(state["torch"])',
        ): "You keep torch's seed. It says where the generator began, not how far it has come: keep its state.",
        replace(
            "torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []", "[]"
        ): "The GPUs' generators are not put back, and dropout draws from them: torch.cuda.get_rng_state_all, set_rng_state_all.",
        replace(
            "torch.cuda.get_rng_state_all() if",
            "[torch.cuda.get_rng_state()] if",
            'torch.cuda.set_rng_state_all(state["cuda"])',
            'torch.cuda.set_rng_state(state["cuda"][0])',
        ): "You keep the generator of one GPU. Each has its own: torch.cuda.get_rng_state_all().",
        replace(
            "    name, keys, *rest = np.random.get_state()\n",
            "    np.random.seed(0)\n    name, keys, *rest = np.random.get_state()\n",
        ): "You seed a generator where only its state is asked for: what is drawn next is other than it would have been.",
        replace(
            '"python": random.getstate(),',
            '"python": random.randrange(2**31),',
            'random.setstate(state["python"])',
            'random.seed(state["python"])',
        ): "You draw a number, to seed with it later. That changes the generator, and what is drawn after it: keep "
        "`random.getstate()`.",
    }
)


def _as_lists():
    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state = {
        "random": list(random.getstate()),
        "numpy": [kind, [int(k) for k in keys], int(position), int(has_gauss), float(gauss)],
        "cpu": torch.random.get_rng_state().tolist(),
    }
    if torch.cuda.is_available():
        state["gpus"] = [torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())]
    return state


def _from_lists(state):
    version, internal, following = state["random"]
    random.setstate((version, tuple(internal), following))
    kind, keys, *more = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *more))
    torch.random.set_rng_state(torch.tensor(state["cpu"], dtype=torch.uint8))
    for i, gpu in enumerate(state.get("gpus", ())):
        torch.cuda.set_rng_state(gpu, i)


rng_state.alternative("lists of numbers")(_as_lists, _from_lists)

# ------------------------------------------------------------------------------ Run

Run = Exercise(
    loop.Run,
    title="A run that survives",
    difficulty=3,
    minutes=45,
    points=5,
    probe=probes.resumed,
    limit_s=10.0,
    hints=(
        "What decides what the next step computes? Weights and buffers, the optimizer's state, the learning rate's, the scale, which rows come next, and what dropout draws.",
        "The order of an epoch follows from seed + epoch. So epoch and batch are all that must be kept of the data.",
        "`step`: rows of the batch, zero_grad, loss, `scaler.scale(loss).backward()`, `scaler.step(optimizer)`, `scaler.update()`, `scheduler.step()`, then the place.",
        "A state_dict holds the tensors that go on being trained: `copy.deepcopy` on the way out. And on the way in: optimizers keep the tensors that they load.",
        "Load the generators last: building and loading may draw.",
    ),
)

NO_SCALING = {"enabled": False}


def run_case(draw=None, **changes):
    x = torch.arange(14.0).view(7, 2).sin()
    given = {
        "steps": (2, 3),
        "model": "linear",
        "optimizer": "SGD",
        "scheduler": "constant",
        "scaler": NO_SCALING,
        "x": x,
        "y": torch.arange(7) % 2.0,
        "batch_size": 3,
    }
    return call(**given | changes)


@Run.by_hand
def _():
    x, y = t(2.0, 0.0)[None], t(1.0)
    yield (
        run_case(x=x, y=y, steps=(1, 1), weight=t(0.0, 0.0)[None]),
        {
            "losses before": [torch.tensor(2.0).log()],
            "where it begins": (0, 0),
            "where it is left": (1, 0),
        },
    )


@Run.cases(16)
def _(draw):
    n = draw(st.integers(2, 7))
    yield run_case(
        x=draw(draws.tensors((n, 2))),
        y=draw(draws.indices((n,), 2)).float(),
        batch_size=draw(st.integers(1, 4)),
        model=draw(st.sampled_from(["linear", "noisy"])),
        optimizer=draw(st.sampled_from(["SGD", "momentum", "AdamW"])),
        scheduler=draw(st.sampled_from(["constant", "step", "cosine"])),
        scaler=draw(st.sampled_from([NO_SCALING, {"init_scale": 8.0, "growth_interval": 2}])),
        steps=(draw(st.integers(0, 4)), draw(st.integers(1, 4))),
        order=draw(st.integers(0, 99)),
    )


@Run.edge
def _():
    torch.manual_seed(0)
    x, y = torch.randn(12, 2), torch.arange(12) % 2.0
    more = {"x": x, "y": y, "batch_size": 4}
    yield run_case(steps=(0, 3)), "a state before the first step"
    yield run_case(steps=(3, 4)), "left at the end of an epoch"
    yield run_case(steps=(5, 6)), "left in the middle of the second epoch"
    yield run_case(steps=(2, 4), batch_size=100), "one batch an epoch"
    yield (
        run_case(**more, model="classifier", optimizer="AdamW", scheduler="cosine"),
        "BatchNorm and dropout",
    )
    yield (
        run_case(**more, model="noisy", optimizer="momentum", steps=(1, 5)),
        "noise of three generators",
    )
    overflowing = {"init_scale": 2.0**127, "backoff_factor": 2.0**-5, "growth_interval": 2}
    yield (
        run_case(
            x=100 * torch.arange(14.0).view(7, 2).cos(),
            scaler=overflowing,
            optimizer="AdamW",
            scheduler="cosine",
            steps=(3, 5),
        ),
        "scaled losses that overflow",
    )
    yield (
        run_case(scaler={"init_scale": 4.0, "growth_interval": 3}, steps=(2, 3)),
        "the scale grows soon after",
    )
    yield (
        run_case(scheduler="step", optimizer="momentum", steps=(1, 3)),
        "the learning rate falls soon after",
    )
    yield run_case(order=1, steps=(4, 4)), "another seed"


SAVED = "states = {name: getattr(self, name).state_dict() for name in self._parts}"
LOADED = "        for name in self._parts:\n            getattr(self, name).load_state_dict(state[name])\n"


DRAWN = (
    "        generator = torch.Generator().manual_seed(self.seed + self.epoch)\n"
    "        batches = torch.randperm(len(self.x), generator=generator).split(self.batch_size)\n"
)
OLD_ORDER = "You keep the order of an epoch, and load_state_dict leaves the old one there: draw that of the loaded epoch."


def without(part):
    return replace(
        LOADED,
        f'        for name in self._parts:\n            if name != "{part}":\n                getattr(self, name).load_state_dict(state[name])\n',
    )


Run.slips(
    {
        without(
            "optimizer"
        ): "The optimizer's state is lost: momentum and averages begin at 0 again.",
        without(
            "scheduler"
        ): "The scheduler's state is lost: the learning rate follows the schedule from its beginning.",
        without(
            "scaler"
        ): "The scaler's state is lost: the scale begins at init_scale again, and the next steps may overflow.",
        replace(
            '        set_rng_state(state["rng"])', "        pass"
        ): "The generators are not put back: dropout drops other features than in the "
        "run that was left.",
        replace(
            'self.epoch, self.batch = state["epoch"], state["batch"]',
            'self.epoch, self.batch = state["epoch"], 0',
        ): "You begin the epoch again. Its first batches are trained on twice: keep the batch as well.",
        replace(
            'self.epoch, self.batch = state["epoch"], state["batch"]', "pass"
        ): "The place in the data is lost: training begins with the first epoch's first batch.",
        replace(
            "return copy.deepcopy(states | place)", "return states | place"
        ): "The state holds the tensors that go on being trained: whoever saves it later saves other weights. Copy it.",
        replace(
            "return copy.deepcopy(states | place)",
            'return states | place | {"model": copy.deepcopy(states["model"])}',
        ): "You copy the model's state alone. The optimizer's momentum and averages go on changing: copy its state, too.",
        replace(
            "        state = copy.deepcopy(state)\n", ""
        ): "The optimizer keeps the tensors that it loads and trains on in them: the state changes with later steps. Copy it.",
        replace(
            "manual_seed(self.seed + self.epoch)", "manual_seed(self.seed)"
        ): "Every epoch visits the rows in the same order. Seed with seed + epoch.",
        replace(
            "torch.randperm(len(self.x), generator=generator)", "torch.randperm(len(self.x))"
        ): "You draw the order from torch's global generator, anew at every step: batches overlap, and dropout moves it on. "
        "Give randperm the generator.",
        replace(
            "torch.randperm(len(self.x), generator=generator)", "torch.arange(len(self.x))"
        ): "You do not shuffle the rows.",
        replace(
            "        self.scaler.scale(loss).backward()\n", "        loss.backward()\n"
        ): "You do not scale the loss, and scaler.step still divides the gradients by the scale.",
        replace(
            "        self.scaler.update()\n", ""
        ): "Without scaler.update() the scale never changes.",
        replace(
            "        self.scheduler.step()\n", ""
        ): "Without scheduler.step() the learning rate never changes.",
        replace(
            "        self.scheduler.step()\n",
            "",
            "            self.epoch, self.batch = self.epoch + 1, 0\n",
            "            self.epoch, self.batch = self.epoch + 1, 0\n            self.scheduler.step()\n",
        ): "You step the scheduler once an epoch. It is to step after every batch.",
        replace(
            "            self.epoch, self.batch = self.epoch + 1, 0\n",
            "            self.batch = 0\n",
        ): "You never count the epoch up, so every epoch has the order of the first.",
        replace(
            "        self.model.train()\n", ""
        ): "The model stays in the mode that it came in, and an evaluation leaves eval mode: call model.train().",
        replace(
            "        self.optimizer.zero_grad()\n", ""
        ): "You never set the gradients to zero: each backward adds to what is there.",
        replace(
            "return loss.item()", "return self.scaler.scale(loss).item()"
        ): "You return the scaled loss. The loss itself is asked for.",
        replace(
            "return loss.item()", "return loss.detach()"
        ): "You return a tensor: a float is asked for, `.item()`.",
        replace(
            "        self.scaler.step(self.optimizer)\n",
            "        self.scaler.unscale_(self.optimizer)\n        self.optimizer.step()\n",
        ): "You step past the scaler, which leaves a step out where a gradient overflows: `scaler.step(optimizer)`.",
        replace(
            "        rows = batches[self.batch]\n",
            "        batches = [b for b in batches if len(b) == self.batch_size] or batches\n        rows = batches[self.batch]\n",
        ): "You leave out the rows that are left at the end of an epoch. They are its last batch.",
        replace(
            "        self.scaler.step(self.optimizer)\n",
            "        scale = self.scaler.get_scale()\n        self.scaler.step(self.optimizer)\n",
            "        self.scheduler.step()\n",
            "        if self.scaler.get_scale() >= scale:\n            self.scheduler.step()\n",
        ): "Where the scaler leaves a step out, you leave out the scheduler's as well. It is to step after every batch.",
        replace(
            "        rows = batches[self.batch]\n",
            "        rows = (*batches, batches[0][:0])[self.batch]\n",
            "        if self.batch == len(batches):\n",
            "        if self.batch == len(self.x) // self.batch_size + 1:\n",
        ): "N // batch_size + 1 is one batch too many where batch_size divides N, an empty one. Round up: -(-N // batch_size).",
        replace(
            "        generator = torch",
            "        if self.batch * self.batch_size >= len(self.x):\n"
            "            self.epoch, self.batch = self.epoch + 1, 0\n"
            "        generator = torch",
            "        if self.batch == len(batches):\n            self.epoch, self.batch = self.epoch + 1, 0\n",
            "",
        ): "You begin the next epoch within the next step. Until then epoch and batch name a batch that there is not: count on at once.",
        replace(
            DRAWN,
            "        batches = self._batches\n",
            "        self.epoch = self.batch = 0\n",
            "        self.epoch = self.batch = 0\n        self._begin()\n\n"
            f"    def _begin(self):\n{DRAWN}        self._batches = batches\n",
            "            self.epoch, self.batch = self.epoch + 1, 0\n",
            "            self.epoch, self.batch = self.epoch + 1, 0\n            self._begin()\n",
        ): OLD_ORDER,
        replace(
            DRAWN,
            f"        if self.batch == 0:\n{indent(DRAWN, '    ')}            self._batches = batches\n"
            "        batches = self._batches\n",
        ): OLD_ORDER,
        replace(
            "        self.model.train()\n",
            "        if self.batch == 0:\n            self.model.train()\n",
        ): "You put the model into train mode where an epoch begins. An evaluation in its middle leaves eval mode: call "
        "model.train() in every step.",
    }
)


@Run.alternative("bytes for a snapshot, a counter of steps for the place")
class _:
    def __init__(self, model, optimizer, scheduler, scaler, rows, batch_size, loss_fn, seed=0):
        self.model, self.optimizer = model, optimizer
        self.scheduler, self.scaler = scheduler, scaler
        (self.x, self.y), self.loss_fn = rows, loss_fn
        self.batch_size, self.seed, self.done = batch_size, seed, 0

    @property
    def _n_batches(self):
        return -(-self.x.shape[0] // self.batch_size)

    @property
    def epoch(self):
        return self.done // self._n_batches

    @property
    def batch(self):
        return self.done % self._n_batches

    def step(self):
        g = torch.Generator()
        g.manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.x.shape[0], generator=g)
        start = self.batch * self.batch_size
        rows = order[start : start + self.batch_size]
        self.model.train()
        for parameter in self.model.parameters():
            parameter.grad = None
        loss = self.loss_fn(self.model(self.x[rows]), self.y[rows])
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.done += 1
        return float(loss)

    def state_dict(self):
        parts = (self.model, self.optimizer, self.scheduler, self.scaler)
        buffer = io.BytesIO()
        torch.save([*(part.state_dict() for part in parts), loop.rng_state()], buffer)
        buffer.seek(0)
        return {"parts": torch.load(buffer), "done": self.done}

    def load_state_dict(self, state):
        *parts, rng = copy.deepcopy(state["parts"])
        for part, own in zip(
            (self.model, self.optimizer, self.scheduler, self.scaler), parts, strict=True
        ):
            part.load_state_dict(own)
        self.done = state["done"]
        loop.set_rng_state(rng)


for text, of in (
    ("positive[order].double().cumsum(0)", average_precision),
    ("positive.cumsum(0)", best_threshold),
    ("(~positive).cumsum(0)", best_threshold),
    ("torch.ones_like(hits).cumsum(0)", average_precision),
):
    of.equivalent(
        f"{of.key.split('.')[1]}: `{text}` → `{text.replace('(0)', '(-1)')}`",
        because="there is one axis, the first and the last",
    )

for mutant in ("`if not done:` removed", "`raise ValueError('no batch to evaluate')` removed"):
    evaluate.equivalent(
        f"evaluate: {mutant}",
        because="nothing can be unpacked into outputs and targets then, which is a ValueError, too",
    )
for mutant in ("`zip(*done, strict=True)` → `zip(*done)`", "`strict=True` → `strict=False`"):
    evaluate.equivalent(f"evaluate: {mutant}", because="each of them is a pair")

for mutant, because in {
    "save_checkpoint: `file.flush()` removed": "torch.save flushes the file that it has written to",
    "save_checkpoint: `file.flush()` → `file`": "torch.save flushes the file that it has written to",
    "save_checkpoint: `file.fileno()` → `file`": "os.fsync asks the file for its number",
    "save_checkpoint: `part.unlink(missing_ok=True)` → `part.unlink()`": "the part is missing only if it "
    "could not be opened, and both raise OSError then",
    "save_checkpoint: `missing_ok=True` → `missing_ok=False`": "the part is missing only if it could not "
    "be opened, and both raise OSError then",
    "load_checkpoint: `torch.load(path, map_location=map_location, weights_only=True)` → "
    "`torch.load(path, map_location=map_location)`": "True is the default",
}.items():
    save_checkpoint.equivalent(mutant, because=because)
rng_state.equivalent(
    "set_rng_state: `keys.numpy()` → `keys`", because="np.random.set_state makes an array of it"
)

for mutant in (
    "`if self.best_epoch is None:` removed",
    "`raise RuntimeError('no epoch has been better than inf')` removed",
):
    EarlyStopping.equivalent(
        f"EarlyStopping.restore: {mutant}",
        because="load_state_dict raises RuntimeError for a dict without weights, too",
    )
