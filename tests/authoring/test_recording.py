"""`course record`. No GPU is used here: a whole run is SIMULATED, in a temporary copy, and says so.

The simulation is a `sitecustomize` that makes torch.cuda.is_available() true in the kernel, and a stamp
that names no device. Nothing that it makes can reach the repository.
"""

import base64
import os
from pathlib import Path

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from typer.testing import CliRunner

from course_utils import recordings
from course_utils.authoring import notebooks, recording
from course_utils.cli import app
from course_utils.files import write_whole
from course_utils.recordings import recorders

SIMULATED = {
    "gpu": "SIMULATED, no GPU",
    "driver": "none",
    "torch": "2.13.0",
    "cuda": "none",
    "date": "2026-01-02",
}
SIMULATION = (
    "import torch\ntorch.cuda.is_available = lambda: True  # a SIMULATION: there is no GPU\n"
)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ROOT = Path(__file__).parents[2]


def course(*arguments: str | Path):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write(path: Path, *gpu: str) -> Path:
    """A normal notebook with an exercise, a function and gpu cells."""
    cells = [
        new_markdown_cell("# 2 · Strides\n\nA promise."),
        new_code_cell("import torch\nfrom course_utils import exercise, recordings"),
        new_code_cell("", metadata={"exercise": "strides.flat_index"}),
        new_code_cell("def twice(x):\n    return 2 * x"),
        new_code_cell("print('this output is not stored')"),
    ]
    cells[2].source = "..."
    cells += [new_code_cell(source, metadata={"tags": ["gpu"]}) for source in gpu]
    path.parent.mkdir(exist_ok=True)
    normal = notebooks.normalise(new_notebook(cells=cells))
    path.write_text(notebooks.text(normal), encoding="utf-8")
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with notebooks and recordings of its own, on a machine that is SIMULATED to have a GPU."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "simulation").mkdir()
    (tmp_path / "simulation" / "sitecustomize.py").write_text(SIMULATION)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'simulation'}{os.pathsep}{ROOT}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(recordings, "FOLDER", tmp_path / "recordings")
    monkeypatch.setattr(recordings, "NOTEBOOKS", tmp_path / "notebooks")
    return tmp_path


def record(*paths: Path, traces: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    said: list[str] = []
    failed = recording.record_all(paths, traces, said.append, machine=lambda: SIMULATED)
    return said, failed


SHOWS = f"""\
# would show: doubles, a path, a picture
if torch.cuda.is_available():
    from IPython.display import Image, display
    print("\\x1b[31mtwice\\x1b[0m", twice(3), flat_index((1, 2), (3, 1)))
    print("/srv/somewhere/deep/file.py:3", hex(0x7F00AABBCC00), "12.5 ms, 3 GiB/s")
    display(Image(data=__import__("base64").b64decode("{PNG}"), format="png"))
    recordings.save("toy/doubles", [twice(x) for x in range(4)])"""
CHECKS = "# would show: nothing; it checks\nif torch.cuda.is_available():\n    assert twice(2) == 4"


def test_a_simulated_run_from_solving_to_status(place: Path) -> None:
    path = write(place / "notebooks" / "02_strides.ipynb", SHOWS, CHECKS)
    before = notebooks.read(path)
    said, failed = record(path)
    assert (said, failed) == ([f"{path}: 2 gpu cells recorded, toy/doubles"], [])

    after = notebooks.read(path)
    assert notebooks.text(notebooks.normalise(after)) == path.read_text(encoding="utf-8")
    for old, new in zip(before.cells[:-2], after.cells[:-2], strict=True):
        assert old == new, "only gpu cells may change"
    for old, new in zip(before.cells[-2:], after.cells[-2:], strict=True):
        assert (old.source, old.id) == (new.source, new.id)
        assert new.metadata.recorded == SIMULATED | {"code": new.metadata.recorded.code}
    label, printed, picture = after.cells[-2].outputs
    assert label.data["text/plain"].startswith("Recorded on SIMULATED, no GPU, driver none, with")
    assert printed.text == "twice 6 5\n…/file.py:3 0x… 12.5 ms, 3 GiB/s\n"
    assert base64.b64decode(picture.data["image/png"]).startswith(b"\x89PNG")
    (empty,) = after.cells[-1].outputs
    assert empty.data["text/plain"].endswith("The cell ran and printed nothing.")

    found = recordings.find("toy/doubles")
    assert found is not None
    assert (found.data, found.stamp["gpu"]) == ([0, 2, 4, 6], "SIMULATED, no GPU")
    listed = course("record", "--status", path).stdout
    assert listed.count("recorded        02_strides.ipynb") == 2
    assert "SIMULATED" in listed

    recorded_bytes = path.read_bytes()
    path.write_text(path.read_text().replace("return 2 * x", "return 3 * x"))
    assert course("record", "--status", path).stdout.rstrip().endswith("2 outdated")
    assert recordings.find("toy/doubles") is None
    assert "its outputs are outdated" in course("normalise", "--check", path).stderr
    course("normalise", path)
    check = course("normalise", "--check", path).stderr
    assert check.count("note: 02_strides.ipynb") == 2
    assert "its outputs are outdated" not in check
    assert len(notebooks.read(path).cells[-2].outputs) == 1
    path.write_bytes(recorded_bytes.replace(b"A promise.", b"Another promise, of prose."))
    assert course("record", "--status", path).stdout.rstrip().endswith("2 recorded")


def test_a_cell_that_raises_in_a_simulated_run_leaves_its_notebook_as_it_was(place: Path) -> None:
    bad = (
        "# would show: x\nif torch.cuda.is_available():\n    recordings.save('toy/x', 1)\n    1 / 0"
    )
    path = write(place / "notebooks" / "02_strides.ipynb", CHECKS, bad)
    before = path.read_bytes()
    said, failed = record(path)
    assert said == []
    assert failed == [f"{path}: a cell raised ZeroDivisionError: division by zero"]
    assert path.read_bytes() == before
    assert not (place / "recordings").exists()


def test_a_kernel_that_sees_no_gpu_records_nothing(place: Path, monkeypatch) -> None:
    """The command sees a (simulated) GPU, its kernel does not: nothing may be stored."""
    (place / "simulation" / "sitecustomize.py").unlink()
    if torch.version.cuda is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = write(place / "notebooks" / "02_strides.ipynb", CHECKS)
    before = path.read_bytes()
    _, failed = record(path)
    assert failed == [f"{path}: a cell raised RuntimeError: the notebook's kernel sees no CUDA GPU"]
    assert path.read_bytes() == before


def test_without_a_gpu_nothing_runs_and_nothing_is_written(place: Path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = write(place / "notebooks" / "02_strides.ipynb", SHOWS)
    before = path.read_bytes()
    result = course("record")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("no CUDA GPU here, so nothing was recorded: ")
    assert result.stderr.count("\n") == 1
    assert path.read_bytes() == before
    assert not (place / "recordings").exists()


def test_a_failure_is_the_commands_status(place: Path, monkeypatch) -> None:
    monkeypatch.setattr(recording, "record_all", lambda *_: ["a.ipynb: a cell raised"])
    write(place / "notebooks" / "02_strides.ipynb", CHECKS)
    result = course("record")
    assert (result.exit_code, result.stderr) == (1, "a.ipynb: a cell raised\n")


def test_a_notebook_that_is_not_normal_is_not_run(place: Path, monkeypatch) -> None:
    monkeypatch.setattr(recording, "run", lambda *_: pytest.fail("it ran"))
    path = write(place / "notebooks" / "02_strides.ipynb", CHECKS)
    path.write_text(path.read_text() + "\n")
    _, failed = record(path)
    assert failed == [f"{path}: not in its normal form; run `course normalise` first"]


def test_a_notebook_without_gpu_cells_is_not_run(place: Path, monkeypatch) -> None:
    monkeypatch.setattr(recording, "run", lambda *_: pytest.fail("it ran"))
    path = write(place / "notebooks" / "02_strides.ipynb")
    assert record(path) == ([f"{path}: 0 gpu cells recorded"], [])


def test_a_simulated_trace_is_stored_and_a_failed_one_named(place: Path) -> None:
    """timings/matmul runs into torch's own refusal: behind the simulation there is no GPU."""
    if torch.version.cuda is not None:
        pytest.skip("this build could really run it")
    _, failed = record(traces=("timings/matmul",))
    assert len(failed) == 1
    assert failed[0].startswith("timings/matmul: ")
    assert recordings.index() == {}


def test_a_simulated_trace_goes_into_the_index(place: Path, monkeypatch) -> None:
    def simulated(command, *, env, **_):
        write_whole(Path(env[recordings.COLLECT], command[-1] + ".json"), b"[1]")
        return type("Ran", (), {"returncode": 0, "stderr": ""})

    monkeypatch.setattr(recording.subprocess, "run", simulated)
    assert record(traces=tuple(recorders.RECORDERS))[1] == []
    assert set(recordings.index()) == set(recorders.RECORDERS)
    rows = list(recording.trace_status())
    assert {state for _, state, _ in rows} == {recordings.RECORDED}


# Outputs


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("\x1b[1;31mred\x1b[0m \x1b]8;;x\x07link", "red link"),
        ("10%\r50%\r100%\nnext\r\n", "100%\nnext\n"),
        ("/usr/lib/python3/torch/cuda.py:12: UserWarning", "…/cuda.py:12: UserWarning"),
        ("~/me/a.py file:///srv/me/b.py", "…/a.py …/b.py"),
        (r"C:\Users\me\c.py", "…/c.py"),
        ("https://docs.pytorch.org/docs/stable/x.html", None),
        ("3 GiB/s, 1/2, and/or, a / b, km/h/s, </b></i>", None),
        (r"$\frac\alpha\beta$", None),
        ("<object at 0x7f12ab34cd56>, 0x1F", "<object at 0x…>, 0x1F"),
        ('<img src="data:image/png;base64,iVBO/a/b+/c/d=">', None),
        ("12.5 ms, 3e-4, 1,024 MiB", None),
    ],
)
def test_text_is_freed_of_what_depends_on_the_machine(text: str, becomes: str | None) -> None:
    assert recording.plain_text(text) == (text if becomes is None else becomes)
    assert recording.plain_text(recording.plain_text(text)) == recording.plain_text(text)


def test_streams_are_joined_and_numbers_of_execution_go() -> None:
    kept = recording.kept_outputs(
        [
            new_output("stream", name="stdout", text="a\x1b["),
            new_output("stream", name="stdout", text="0mb\n"),
            new_output("stream", name="stderr", text="c"),
            new_output("execute_result", data={"text/plain": "1", "x/y": "2"}, execution_count=4),
        ]
    )
    assert [out.output_type for out in kept] == ["stream", "stream", "display_data"]
    assert kept[0].text == "ab\n"
    assert kept[2].data == {"text/plain": "1"}
    nbformat.validate(nbformat.v4.new_notebook(cells=[new_code_cell("", outputs=kept)]))


@pytest.mark.parametrize(
    ("out", "says"),
    [
        (new_output("error", ename="E", evalue="v", traceback=[]), "a cell: raised E: v"),
        (new_output("display_data", data={"a/b": "1"}), "puts out a/b, which is not stored"),
        (new_output("stream", text="x" * 300_000), "bytes of output; 262,144 at most"),
    ],
)
def test_what_cannot_be_stored_is_refused(out, says: str) -> None:
    with pytest.raises(recording.CannotRecord, match=says):
        recording.kept_outputs([out])
