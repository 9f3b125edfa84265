"""The probes of chapter 20 that look at kinds: tuples that can be keys, layouts that have names."""

import pytest

from course_utils.grading import call, probes
from course_utils.reference.pipeline_schedules import gpipe_schedule
from course_utils.reference.planning import Cluster, Model, plan_parallelism

KIND = "its innermost sequences are tuples"
MODEL = {
    "layers": 2,
    "width": 64,
    "vocab": 100,
    "ffn": 256,
    "ffn_matrices": 2,
    "kv": 1.0,
    "batch": 4,
    "context": 64,
    "experts": 0,
    "active": 0,
    "shared": 0,
    "expert_ffn": 0,
    "nodes": 0,
    "kept": 2.0,
}
CLUSTER = {
    "devices": 2,
    "flops": 1e14,
    "memory": 1e10,
    "hbm": 1e12,
    "inside": 1e11,
    "between": 1e10,
    "node": 2,
    "zero_stages": (0,),
}


def kind_of(result):
    return probes.of_tuples(lambda: result, call()).get(KIND)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ([[("F", 0, 0)], [("F", 1, 0)]], True),
        ([[["F", 0, 0]], [("F", 1, 0)]], False),
        ([[], [("F", 0, 0)]], True),
        ({("F", 0, 0): (0.0, 1.0)}, True),
        ({("F", 0, 0): [0.0, 1.0]}, False),
        ([["0F0", "0B0"]], False),
        ({}, None),
        ([], None),
        (3, None),
    ],
)
def test_innermost_sequences(result, said):
    assert kind_of(result) is said


def test_a_schedule_of_the_book():
    seen = probes.of_tuples(gpipe_schedule, call(2, 2))
    assert seen["result"] == gpipe_schedule(2, 2) and seen[KIND] is True


def test_layouts_have_names():
    case = call(model=MODEL, cluster=CLUSTER)
    label = "each is a Layout, with names"
    assert probes.planned(plan_parallelism, case)[label] is True

    def plain(model: Model, cluster: Cluster, top: int = 1):
        return [tuple(layout) for layout in plan_parallelism(model, cluster, top)]

    assert probes.planned(plain, case)[label] is False
