"""The training loop against scikit-learn and torch; and a run that is killed twenty times."""

import copy
import json
import math
import random
import subprocess
import sys

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from sklearn import metrics
from torch import nn

from course_utils.authoring.counts import count
from course_utils.authoring.dependencies import ROOT
from course_utils.reference import training_loop as loop

KILLS = 20

LABELS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20)
ROWS = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=20)


@given(pairs=LABELS)
def test_the_confusion_matrix_is_scikit_learns(pairs):
    predicted, target = torch.tensor(pairs).T
    ours = loop.confusion_matrix(predicted, target, 4)
    assert ours.tolist() == metrics.confusion_matrix(target, predicted, labels=range(4)).tolist()


@given(rows=ROWS)
def test_average_precision_is_scikit_learns(rows):
    scores, targets = torch.tensor([float(s) for s, _ in rows]), torch.tensor([t for _, t in rows])
    if not targets.any():
        with pytest.raises(ValueError, match="positive"):
            loop.average_precision(scores, targets)
        return
    theirs = metrics.average_precision_score(targets.numpy(), scores.numpy())
    assert math.isclose(loop.average_precision(scores, targets), theirs, abs_tol=1e-12)
    shifted = loop.average_precision(scores * 3 + 1, targets)  # only the order counts
    assert math.isclose(shifted, theirs, abs_tol=1e-12)


@given(rows=ROWS, miss=st.integers(0, 9), alarm=st.integers(0, 9))
def test_no_threshold_costs_less(rows, miss, alarm):
    scores, targets = torch.tensor([float(s) for s, _ in rows]), torch.tensor([t for _, t in rows])

    def cost(line):
        called = scores >= line
        return miss * int((targets & ~called).sum()) + alarm * int((~targets & called).sum())

    best = loop.best_threshold(scores, targets, float(miss), float(alarm))
    others = [*scores.tolist(), math.inf, -3.5, 0.5]
    assert cost(best) == min(map(cost, others))
    assert all(cost(line) > cost(best) for line in others if line > best)


def classifier():
    layers = nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1)
    return nn.Sequential(*layers, nn.Flatten(0))


def batches(sizes):
    return [(torch.randn(n, 2), torch.arange(n) % 2.0) for n in sizes]


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_an_evaluation_is_that_of_all_rows_and_leaves_no_trace(sizes):
    model, pairs = classifier(), batches(sizes)
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    loss, outputs, targets = loop.evaluate(model, iter(pairs), nn.BCEWithLogitsLoss())
    x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    whole = copy.deepcopy(model).eval()(x)
    torch.testing.assert_close(outputs, whole)
    assert torch.equal(targets, y) and not outputs.requires_grad
    assert math.isclose(loss, nn.BCEWithLogitsLoss()(whole, y).item(), rel_tol=1e-5)
    assert [module.training for module in model] == [True, False, True, True, True, True]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_an_epoch_weighs_rows_and_needs_some():
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    pairs, still = batches([7, 2]), torch.optim.SGD(model.parameters(), lr=0.0)
    mean = loop.train_epoch(model, pairs, still, nn.BCEWithLogitsLoss())
    assert math.isclose(mean, loop.evaluate(model, pairs, nn.BCEWithLogitsLoss())[0], rel_tol=1e-6)
    with pytest.raises(ValueError, match="no batch"):
        loop.train_epoch(model, [], still, nn.BCEWithLogitsLoss())


def test_generators_go_on_where_they_were():
    def drawn():
        return random.gauss(0, 1), np.random.standard_normal(), torch.randn(()).item()

    outside = loop.rng_state()
    drawn()
    state = loop.rng_state()
    expected = drawn()
    loop.set_rng_state(state)
    assert drawn() == expected
    loop.set_rng_state(outside)


def test_a_run_survives_being_killed_at_random_moments(tmp_path):
    command = [sys.executable, "-m", "tests.support.killed_run", str(tmp_path), str(KILLS)]
    seed = random.SystemRandom().randrange(10**6)
    done = subprocess.run([*command, str(seed)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}:\n{done.stderr}"
    report = json.loads(done.stdout)
    count("kills that a training run survived", report["kills"])
    assert report["kills"] == KILLS
    assert report["losses equal"] and report["weights equal"], f"seed {seed}: {report}"
