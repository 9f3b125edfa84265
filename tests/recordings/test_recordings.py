"""Saving and finding recordings. No GPU is used: where one is needed the test says that it is simulated."""

import json
from pathlib import Path

import pytest
import torch

from course_utils import recordings
from course_utils.files import write_whole
from course_utils.recordings import recorders

MACHINE = {
    "gpu": "SIMULATED",
    "driver": "1.2.3",
    "torch": "2.13.0",
    "cuda": "13.0",
    "date": "2026-01-02",
}
NAME = "toy/steps"


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recordings of the test's own, with one recorder."""
    monkeypatch.setattr(recordings, "FOLDER", tmp_path / "recordings")
    known = {NAME: recorders.Recorder(NAME, recorders.summary, "a toy", "")}
    monkeypatch.setattr(recorders, "RECORDERS", known)
    return tmp_path / "recordings"


def store(tmp_path: Path, data: object, name: str = NAME, by: str = "recorders.summary") -> None:
    suffix, content = recordings._encoded(data)
    write_whole(tmp_path / "collected" / (name + suffix), content)
    digest = recordings.present_code(by)
    assert recordings.store(tmp_path / "collected", MACHINE, lambda _: (by, digest)) == [name]


@pytest.mark.parametrize("data", [{"a": [[1, 2], [3, "],["]], "b": None}, [1.5], "x", {}])
def test_what_was_stored_is_found_with_its_stamp(room: Path, tmp_path: Path, data: object) -> None:
    store(tmp_path, data)
    found = recordings.find(NAME)
    assert found is not None
    assert found.data == data
    assert found.source == (
        "Recorded on SIMULATED, driver 1.2.3, with torch 2.13.0 and CUDA 13.0, 2026-01-02."
    )
    assert recordings.missing(NAME) is None
    assert not list(room.rglob("*.part"))


def test_tensors_come_back_as_they_were(room: Path, tmp_path: Path) -> None:
    data = {"half": torch.arange(6.0).reshape(2, 3).T.bfloat16(), "n": torch.tensor([1])}
    store(tmp_path, data)
    found = recordings.find(NAME)
    assert found is not None
    assert (room / "data/toy/steps.safetensors").is_file()
    for name, tensor in data.items():
        assert torch.equal(found.data[name], tensor)
        assert found.data[name].dtype == tensor.dtype


def test_what_was_never_recorded_is_not_found(room: Path) -> None:
    assert recordings.find(NAME) is None
    assert recordings.missing(NAME) == "toy/steps: not recorded on a GPU yet: not compared."


def test_a_recording_whose_code_changed_is_not_found(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, [1])
    monkeypatch.setattr(recordings.code, "digest_of_function", lambda *_: "another")
    assert recordings.find(NAME) is None
    assert "recorded on SIMULATED" in str(recordings.missing(NAME))
    assert str(recordings.missing(NAME)).endswith("Its code has changed since: not compared.")


def test_a_recording_whose_recorder_is_gone_is_not_found(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, [1])
    monkeypatch.setattr(recorders, "RECORDERS", {})
    assert recordings.state(NAME) == recordings.OUTDATED


@pytest.mark.parametrize("lost", [*recordings.STAMP, "file", "sha256"])
def test_a_recording_without_its_whole_stamp_is_not_found(
    room: Path, tmp_path: Path, lost: str
) -> None:
    store(tmp_path, [1])
    index = json.loads((room / "index.json").read_text())
    del index[NAME][lost]
    (room / "index.json").write_text(json.dumps(index))
    assert recordings.find(NAME) is None
    assert "without a note of where" in str(recordings.missing(NAME))


def test_data_that_was_changed_by_hand_is_not_found(room: Path, tmp_path: Path) -> None:
    store(tmp_path, [1])
    (room / "data/toy/steps.json").write_text("[2]")
    assert recordings.state(NAME) == recordings.UNSTAMPED


def test_recording_again_replaces_also_another_format(room: Path, tmp_path: Path) -> None:
    store(tmp_path, {"x": torch.ones(1)})
    (tmp_path / "collected" / "toy" / "steps.safetensors").unlink()
    store(tmp_path, [2])
    assert [file.name for file in (room / "data/toy").iterdir()] == ["steps.json"]
    found = recordings.find(NAME)
    assert found is not None
    assert found.data == [2]


def test_who_does_not_know_the_maker_stores_nothing(room: Path, tmp_path: Path) -> None:
    write_whole(tmp_path / "collected/toy/a.json", b"1")

    def by(name: str) -> tuple[str, str]:
        raise LookupError(name)

    with pytest.raises(LookupError):
        recordings.store(tmp_path / "collected", MACHINE, by)
    assert not room.exists()


def test_save_does_nothing_but_in_course_record_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv(recordings.COLLECT, raising=False)
    assert not recordings.save(NAME, [1])
    monkeypatch.setenv(recordings.COLLECT, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not recordings.save(NAME, [1])
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert recordings.save(NAME, [1])
    assert json.loads((tmp_path / "toy/steps.json").read_text()) == [1]


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("steps", [1], ValueError),
        ("../steps", [1], ValueError),
        ("toy/Steps", [1], ValueError),
        (NAME, [float("nan")], TypeError),
        (NAME, object(), TypeError),
        (NAME, "x" * 2**20, ValueError),
    ],
)
def test_save_refuses_on_any_machine_what_could_not_be_stored(
    name: str, data: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        recordings.save(name, data)


def test_a_machine_without_cuda_has_no_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="no CUDA"):
        recordings.machine()


def test_the_stamp_on_a_simulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "SIMULATED")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(recordings, "driver", lambda: "580.1")
    made = recordings.machine()
    assert recordings.stamped(made | {"code": "0"})
    assert made["driver"] == "580.1"
    assert not recordings.stamped(made | {"code": "0", "date": "today"})


def test_the_driver_is_what_nvidia_smi_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 999.88.77\necho 999.88.77\n")
    program.chmod(0o755)
    monkeypatch.setattr(recordings.shutil, "which", lambda name: str(program))
    assert recordings.driver() == "999.88.77"


def test_what_lies_in_the_repository_is_whole() -> None:
    """Each entry has a stamp and its file; nothing is simulated; nothing lies about unnamed."""
    index = recordings.index()
    for name, entry in index.items():
        assert recordings.state(name) != recordings.UNSTAMPED, name
        assert "SIMULATED" not in json.dumps(entry)
    named = {recordings.FOLDER / entry["file"] for entry in index.values()}
    assert {f for f in (recordings.FOLDER / "data").rglob("*") if f.is_file()} == named


def test_no_notebook_holds_a_simulated_recording() -> None:
    for path in recordings.NOTEBOOKS.glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        stamps = json.dumps([cell["metadata"].get("recorded") for cell in cells])
        assert "SIMULATED" not in stamps and "MADE-UP" not in stamps, path.name
