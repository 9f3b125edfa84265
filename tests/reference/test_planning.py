"""Chapter 20's planner: parameters, memory and time on paper, and what it makes of published runs."""

from dataclasses import replace
from math import prod

import pytest

from course_utils.reference.pipeline_schedules import interleaved_schedule, peak_microbatches
from course_utils.reference.planning import (
    PUBLISHED,
    USABLE,
    Cluster,
    Layout,
    Model,
    best_of,
    kept_bytes,
    layers_of_stage,
    memory,
    parameters,
    plan_parallelism,
    step_seconds,
)

GPT = Model(96, 12288, 51200, 4 * 12288, batch=1536)
A100 = Cluster(1536, 312e12, 80e9, 2e12, 300e9, 25e9, zero_stages=(0,))

BILLIONS = {
    "GPT 1.7B": 1.7,
    "GPT 3.6B": 3.6,
    "GPT 7.5B": 7.5,
    "GPT 18B": 18.4,
    "GPT 39B": 39.1,
    "GPT 76B": 76.1,
    "GPT 146B": 145.6,
    "GPT 310B": 310.1,
    "GPT 530B": 529.6,
    "GPT 1T": 1008,
    "GPT-3 175B": 174.6,
    "MT-NLG 530B": 530,
    "BLOOM 176B": 176,
    "GLM 130B": 130,
    "Nemotron-4 340B": 340,
    "Llama 3 405B, 8K": 405,
    "Llama 3 405B, 128K": 405,
    "DeepSeek-V3-like": 671,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name):
    run = PUBLISHED[name]
    assert parameters(run.model)[0] / 1e9 == pytest.approx(BILLIONS[name], rel=0.06)
    assert prod(run.layout[:4]) == run.cluster.devices
    assert run.model.batch % run.layout[0] == 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_row_is_computed(name):
    """A plan uses all devices, fits, and is no slower than the published layout, if that fits."""
    run = PUBLISHED[name]
    [plan] = plan_parallelism(run.model, run.cluster)
    assert prod(plan[:4]) == run.cluster.devices
    assert sum(memory(run.model, plan).values()) <= USABLE * run.cluster.memory
    same = best_of(run)
    assert same is None or same[:5] == run.layout
    if same is not None:
        times = [sum(step_seconds(run.model, run.cluster, x).values()) for x in (plan, same)]
        assert times[0] <= times[1]


def test_what_is_reproduced():
    exact = {
        name
        for name, run in PUBLISHED.items()
        if plan_parallelism(run.model, run.cluster)[0][:5] == run.layout
    }
    assert exact == {
        "GPT 1.7B",
        "GPT 310B",
        "GPT 530B",
        "GPT 1T",
        "GPT-3 175B",
        "MT-NLG 530B",
        "BLOOM 176B",
    }


def test_what_is_near():
    """All published layouts but two take less than a tenth longer than the planner's own."""
    ratios = {
        name: total(run, best_of(run)) / total(run, plan_parallelism(run.model, run.cluster)[0])
        for name, run in PUBLISHED.items()
    }
    assert {name for name, ratio in ratios.items() if ratio > 1.1} == {"GPT 18B", "GLM 130B"}


def total(run, layout):
    """Seconds of a step."""
    return sum(step_seconds(run.model, run.cluster, layout).values())


def test_a_limit_of_nodes_counts_only_between_nodes():
    run = PUBLISHED["DeepSeek-V3-like"]
    layouts = [Layout(*run.layout), Layout(16, 1, 128, 1, 8)]
    free = replace(run.model, nodes=0)
    across, inside = (
        [step_seconds(model, run.cluster, layout)["expert"] for model in (run.model, free)]
        for layout in layouts
    )
    assert across[0] < across[1] and inside[0] == inside[1]


def test_no_stage_holds_more_than_all_micro_batches():
    """As the book's interleaved lists do."""
    for p, m, v in [(4, 4, 2), (4, 4, 4), (2, 2, 2), (4, 8, 2), (4, 16, 4)]:
        layers = 8 * p * v  # and a head that weighs next to nothing
        model = Model(layers, 1024, 8, 4096, batch=m)
        own = kept_bytes(model, 0) * model.context * layers / p
        held = memory(model, Layout(pp=p, chunks=v))["activations"] / own
        assert held == peak_microbatches(interleaved_schedule(p, m, v))[0] / v


def test_memory_of_states_is_the_formula():
    held = memory(GPT, Layout(dp=16, tp=8, pp=12))
    per_layer = 12 * 12288**2
    assert held["parameters"] == 2 * (8 * per_layer + 51200 * 12288) / 8
    assert held["gradients"] == 2 * held["parameters"]
    assert held["state"] == 6 * held["parameters"]
    assert memory(GPT, Layout(16, 8, 12, zero=1))["state"] == held["state"] / 16
    assert memory(GPT, Layout(16, 8, 12, zero=2))["gradients"] == held["gradients"] / 16
    assert memory(GPT, Layout(16, 8, 12, recompute=2))["activations"] < held["activations"] / 8


def test_the_last_stage_has_fewer_layers_where_the_head_is_large():
    assert layers_of_stage(Model(70, 14336, 250880, 4 * 14336), 12)[0] == 6
    n, slowest = layers_of_stage(GPT, 12)
    assert n == 8 or slowest <= 9


def test_the_bubble_is_its_formula():
    parts = step_seconds(GPT, A100, Layout(16, 8, 12))
    busy = sum(parts[p] for p in ("compute", "tensor", "context", "expert", "hops"))
    assert parts["bubble"] == pytest.approx(11 / 96 * busy)
    cut = step_seconds(GPT, A100, Layout(16, 8, 12, chunks=4))
    busy = sum(cut[p] for p in ("compute", "tensor", "context", "expert", "hops"))
    assert cut["bubble"] == pytest.approx(11 / 96 / 4 * busy)


def test_tensor_parallelism_between_nodes_is_slower():
    inside = step_seconds(GPT, A100, Layout(16, 8, 12))
    outside = step_seconds(GPT, A100, Layout(16, 8, 12), tensor_stride=192)
    assert outside["tensor"] == pytest.approx(inside["tensor"] * 300 / 25)
