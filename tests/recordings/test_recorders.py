"""The recorders, on simulated calls of torch.cuda. Nothing here runs on a GPU, and nothing is recorded."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from course_utils import recordings
from course_utils.recordings import recorders

BASE = 0x7F00_0000_0000


class SimulatedCuda:
    """Answers like torch.cuda, with made-up numbers: a trace that grows by an alloc at each look."""

    def __init__(self) -> None:
        self.trace: list[dict[str, Any]] = []
        self.history: list[Any] = []
        self.reserved = 0

    def snapshot(self) -> dict[str, Any]:
        at = len(self.trace)
        self.trace += [
            {"action": "alloc", "addr": BASE + 512 * at, "size": 100, "stream": 0, "time_us": 5},
            {"action": "snapshot", "addr": 0, "size": 0, "stream": 0},
        ]
        segment = {"address": BASE, "total_size": 2**21, "stream": 0, "segment_type": "small"}
        block = {"size": 2**21, "requested_size": 100, "address": BASE, "state": "inactive"}
        return {
            "device_traces": [[], list(self.trace)],
            "segments": [segment | {"blocks": [block]}],
            "allocator_settings": {"expandable_segments": False, "odd": (1, 2)},
        }

    def stats(self) -> dict[str, int]:
        names = ("allocated", "requested", "active", "reserved")
        numbers = {f"{n}_bytes.all.{w}": 7 for n in names for w in ("current", "peak")}
        return numbers | {"segment.all.current": 1}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCuda]:
    simulated = SimulatedCuda()
    monkeypatch.setattr(recorders, "DEVICE", "cpu")
    monkeypatch.setattr(recorders, "WIDTH", 4)
    for name, answer in {
        "init": lambda: None,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda: None,
        "memory_reserved": lambda: simulated.reserved,
        "memory_stats": simulated.stats,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", simulated.snapshot)
    monkeypatch.setattr(
        torch.cuda.memory,
        "_record_memory_history",
        lambda **options: simulated.history.append(options),
    )
    return simulated


def test_the_training_step_on_simulated_cuda_has_the_layout(cuda: SimulatedCuda) -> None:
    made = recorders.training_step()
    assert recordings._encoded(made)[0] == ".json"
    assert cuda.history == [
        {"enabled": "all", "context": None, "max_entries": recorders.ENTRIES},
        {"enabled": None},
    ]
    assert set(made) == {"conf", "settings", "streams", "events", "segments", "phases"}
    assert [phase["name"] for phase in made["phases"]][:4] == [
        "model",
        "batch",
        "forward 1",
        "backward 1",
    ]
    assert [phase["events"] for phase in made["phases"]] == list(range(1, 12))
    assert made["phases"][0]["peak_reserved"] == 7
    assert made["events"][1] == ["alloc", 1024, 100, 0]
    assert all(event[0] != "snapshot" for event in made["events"])
    assert made["segments"] == [
        {
            "address": 0,
            "total_size": 2**21,
            "stream": 0,
            "segment_type": "small",
            "is_expandable": False,
            "blocks": [[0, 2**21, 100, "inactive"]],
        }
    ]
    assert made["settings"] == {"expandable_segments": False, "odd": "(1, 2)"}


def test_operations_on_simulated_cuda_have_a_row_each(cuda: SimulatedCuda) -> None:
    made = recorders.allocator_operations()
    assert len(made["after"]) == len(made["operations"]) > 300
    assert made["after"][0] == [7, 7, 7, 7, 1]


def test_a_recorder_wants_an_empty_allocator(cuda: SimulatedCuda) -> None:
    cuda.reserved = 1
    with pytest.raises(RuntimeError, match="not empty"):
        recorders.training_step()


def test_the_plan_is_fixed_and_frees_what_it_allocates() -> None:
    operations = list(recorders.plan())
    assert operations == list(recorders.plan())
    alive: set[int] = set()
    for kind, *rest in operations:
        if kind == "alloc":
            assert rest[0] not in alive and rest[1] > 0
            alive.add(rest[0])
        elif kind == "free":
            alive.remove(rest[0])
    assert not alive
    assert sum(kind == "empty_cache" for kind, *_ in operations) >= 3


def test_addresses_streams_and_errors_in_a_made_up_snapshot() -> None:
    def event(action: str, stream: int, **more: int) -> dict[str, Any]:
        return {"action": action, "size": 8, "stream": stream} | more

    trace = [
        event("segment_alloc", 93, addr=BASE + 4096),
        event("alloc", 17, addr=BASE),
        event("oom", 93, device_free=5),
    ]
    made = recorders.compact({"device_traces": [trace], "segments": []})
    assert made["events"] == [
        ["segment_alloc", 4096, 8, 0],
        ["alloc", 0, 8, 1],
        ["oom", None, 8, 0],
    ]
    assert made["streams"] == 2


def test_a_history_that_is_full_or_of_two_devices_is_refused(monkeypatch) -> None:
    event = {"action": "alloc"}
    with pytest.raises(RuntimeError, match="2 devices"):
        recorders.events({"device_traces": [[event], [event]]})
    monkeypatch.setattr(recorders, "ENTRIES", 2)
    with pytest.raises(RuntimeError, match="is full"):
        recorders.events({"device_traces": [[event, event]]})


def test_the_autocast_table_has_a_cell_for_each_input(monkeypatch) -> None:
    """On the CPU's autocast, to run the function: these are not CUDA's results."""
    monkeypatch.setattr(recorders, "DEVICE", "cpu")
    table = recorders.autocast_table()["torch"]["bfloat16"]
    assert table["add"] == {
        "float32,float32": "float32",
        "float32,bfloat16": "float32",
        "bfloat16,float32": "float32",
        "bfloat16,bfloat16": "bfloat16",
    }
    assert set(table["exp"]) == {"float32", "bfloat16"}

    def refuses(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not implemented")

    assert recorders.autocast_result(refuses, (torch.float32,), torch.bfloat16) == (
        "error: RuntimeError"
    )


def test_timings_with_simulated_events(monkeypatch) -> None:
    monkeypatch.setattr(recorders, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda end: 1.23456)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    before = torch.get_float32_matmul_precision()
    made = recorders.matmul_timings(sizes=(4,), repeats=3)
    assert torch.get_float32_matmul_precision() == before
    assert made["unit"] == "ms"
    assert made["rows"][1] == {
        "n": 4,
        "dtype": "float32",
        "tf32": True,
        "median": 1.2346,
        "min": 1.2346,
        "max": 1.2346,
        "repeats": 3,
    }
    assert [row["dtype"] for row in made["rows"]] == ["float32", "float32", "bfloat16", "float16"]


def test_a_recorders_process_has_the_allocator_that_it_wants(monkeypatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    made = recorders.RECORDERS["allocator/training_step_expandable"]
    env = recorders.environment(made)
    assert env["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in env
    assert "PYTORCH_ALLOC_CONF" not in recorders.environment(
        recorders.RECORDERS["allocator/training_step"]
    )


def test_without_a_gpu_a_recorder_says_so_and_stores_nothing(monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert recorders.main("timings/matmul") == 1
    assert capsys.readouterr().err == "no CUDA GPU here: nothing was recorded\n"


@pytest.mark.parametrize("name", sorted(recorders.RECORDERS))
def test_each_recorder_has_a_digest_and_its_layout_is_described(name: str) -> None:
    made = recorders.RECORDERS[name]
    assert recordings.NAME.fullmatch(name) and made.shows
    assert f"``{name}``" in str(recordings.__doc__)
    assert len(recordings.present_code(f"recorders.{made.function.__name__}")) == 16
