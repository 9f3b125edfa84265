"""What `make lab` and `make test` install: the locked requirements, and the script that installs them."""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


def requirements(name: str) -> list[Requirement]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return [Requirement(line) for line in lines if line]


DIRECT = requirements("requirements.in")
LOCKED = requirements("requirements.txt")


@pytest.mark.parametrize("wanted", DIRECT, ids=str)
def test_a_direct_dependency_is_locked_and_installed(wanted: Requirement) -> None:
    here = [
        lock
        for lock in LOCKED
        if lock.name == wanted.name and (lock.marker is None or lock.marker.evaluate())
    ]
    assert len(here) == 1, f"{wanted.name} is locked {len(here)} times for this machine"
    (pin,) = here[0].specifier
    assert pin.operator == "=="
    assert wanted.specifier.contains(pin.version)
    assert version(wanted.name).partition("+")[0] == pin.version


def test_every_direct_dependency_says_why_it_is_here() -> None:
    for line in (ROOT / "requirements.in").read_text().splitlines():
        if line and not line.startswith("#"):
            assert re.fullmatch(r"[\w.=-]+ +# \S.{10,}", line), line


def test_everything_is_pinned_for_every_python_and_system() -> None:
    for python in ("3.11.7", "3.12.4", "3.13.1"):
        for system, platform in (("linux", "Linux"), ("darwin", "Darwin")):
            machine = {
                "python_version": python[:4],
                "python_full_version": python,
                "sys_platform": system,
                "platform_system": platform,
                "os_name": "posix",
            }
            names = [
                lock.name for lock in LOCKED if lock.marker is None or lock.marker.evaluate(machine)
            ]
            assert len(names) == len(set(names)), f"twice: {machine}"
            assert {wanted.name for wanted in DIRECT} <= set(names)
    assert all([s.operator for s in lock.specifier] == ["=="] for lock in LOCKED)


def test_torch_is_one_exact_line_without_cudas_libraries() -> None:
    torch = [str(lock) for lock in LOCKED if lock.name == "torch"]
    assert torch == ["torch==2.13.0"]
    assert not [lock.name for lock in LOCKED if re.match("nvidia|cuda|triton", lock.name)]


def test_no_address_of_a_registry_is_written_down() -> None:
    text = (ROOT / "requirements.txt").read_text()
    assert not re.search(r"://|^\s*-|@ ", text, re.MULTILINE)


def test_the_package_asks_for_nothing_that_is_not_locked() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {re.split("[<>=]", wanted)[0] for wanted in project["dependencies"]}
    assert asked <= {wanted.name for wanted in DIRECT}


# The set-up script, with a Python that only writes down what it is asked to install

FAKE_PYTHON = """#!/bin/sh
case "$1 $2" in
    "-m venv")
        mkdir -p .venv/bin && cp "$0" .venv/bin/python
        echo "venv" >>log ;;
    "-m pip")
        shift 4
        echo "pip $*" >>log
        case "$*" in *"+cpu"*"--index-url"*) exit 0 ;; *"+cpu"*) exit ${NO_LOCAL_WHEEL:-0} ;; esac ;;
    "-m course_utils.lab")
        echo "lab" >>log
        exit ${LAB_STATUS:-0} ;;
    "-c "*version_info*) exec REAL "$@" ;;
    "-c "*) echo "Python 3.11, torch" ;;
    "- "*) exit 1 ;;
    "--version ") echo "Python 3.11.9" ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh clone, as far as the set-up can tell, and a `bin` folder that comes first on the PATH."""
    clone = tmp_path / "a clone"
    (clone / "bin").mkdir(parents=True)
    shutil.copytree(ROOT / "tools", clone / "tools")
    for name in ("requirements.txt", "pyproject.toml", "Makefile"):
        shutil.copy(ROOT / name, clone)
    program(clone, "python3", FAKE_PYTHON.replace("REAL", sys.executable))
    program(clone, "uname", "#!/bin/sh\necho Linux\n")
    return clone


def program(clone: Path, name: str, text: str) -> None:
    path = clone / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def set_up(clone: Path, **choices: str) -> tuple[subprocess.CompletedProcess, list[str]]:
    """Run the set-up; the process, and what it installed, line by line."""
    (clone / "log").unlink(missing_ok=True)
    own = {k: v for k, v in os.environ.items() if k not in ("TORCH", "PYTHON", "WITH")}
    path = f"{clone / 'bin'}:/usr/bin:/bin"
    done = subprocess.run(
        ["/bin/sh", clone / "tools" / "setup.sh"],
        env=own | {"PATH": path} | choices,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    log = clone / "log"
    return done, log.read_text().splitlines() if log.exists() else []


def test_a_fresh_clone_gets_torch_first_then_the_rest(clone: Path) -> None:
    done, log = set_up(clone)
    assert done.returncode == 0, done.stderr
    assert log == [
        "venv",
        "pip install --quiet --no-deps torch==2.13.0+cpu",
        "pip install -qq -r requirements.txt",
        "pip install -qq --no-deps --no-build-isolation --editable .",
        "lab",
    ]


def test_a_second_run_does_nothing(clone: Path) -> None:
    set_up(clone)
    done, log = set_up(clone)
    assert (done.returncode, done.stderr, log) == (0, "", [])


def test_changed_requirements_are_installed(clone: Path) -> None:
    set_up(clone)
    with (clone / "requirements.txt").open("a") as file:
        file.write("# changed\n")
    _, log = set_up(clone)
    assert "pip install -qq -r requirements.txt" in log
    assert "venv" not in log


def test_an_interrupted_set_up_is_begun_again(clone: Path) -> None:
    done, _ = set_up(clone, LAB_STATUS="1")
    assert done.returncode != 0
    _, log = set_up(clone)
    assert "pip install -qq -r requirements.txt" in log


def test_without_a_local_wheel_torch_comes_from_pytorchs_index(clone: Path) -> None:
    done, log = set_up(clone, NO_LOCAL_WHEEL="1")
    assert done.returncode == 0
    assert log[2].endswith("torch==2.13.0+cpu --index-url https://download.pytorch.org/whl/cpu")


def test_a_cuda_build_is_one_choice_and_stays_chosen(clone: Path) -> None:
    set_up(clone)
    _, log = set_up(clone, TORCH="cu130")
    assert "pip install --quiet torch==2.13.0+cu130" in log
    _, log = set_up(clone)
    assert log == []
    assert "torch cu130" in (clone / ".venv/.set-up").read_text()


TRITON = "pip install -qq --no-deps -r tools/triton.txt"


def test_triton_is_one_choice_that_stays_and_can_be_taken_back(clone: Path) -> None:
    _, log = set_up(clone)
    assert TRITON not in log
    _, log = set_up(clone, WITH="triton")
    assert log[log.index("pip install -qq -r requirements.txt") + 1] == TRITON
    _, log = set_up(clone)
    assert log == []
    assert "with triton" in (clone / ".venv/.set-up").read_text()
    _, log = set_up(clone, WITH="none")
    assert "pip uninstall -qq --yes triton" in log
    assert TRITON not in log
    _, log = set_up(clone)
    assert log == []


def test_what_cannot_come_with_it_is_refused(clone: Path) -> None:
    done, log = set_up(clone, WITH="jax")
    assert (done.returncode, log) == (1, [])
    assert "say triton, or none" in done.stderr
    program(clone, "uname", "#!/bin/sh\necho Darwin\n")
    done, _ = set_up(clone, WITH="triton")
    assert done.returncode == 1
    assert "no Triton for Darwin" in done.stderr


def test_triton_is_pinned() -> None:
    (only,) = requirements("tools/triton.txt")
    assert only.name == "triton"
    assert [pin.operator for pin in only.specifier] == ["=="]


def test_on_a_mac_torch_is_the_plain_one(clone: Path) -> None:
    program(clone, "uname", "#!/bin/sh\necho Darwin\n")
    _, log = set_up(clone)
    assert log[1] == "pip install --no-deps torch==2.13.0"
    done, _ = set_up(clone, TORCH="cu130")
    assert done.returncode == 1
    assert "no CUDA on a Mac" in done.stderr


def test_an_unknown_build_is_refused(clone: Path) -> None:
    done, log = set_up(clone, TORCH="gpu")
    assert (done.returncode, log) == (1, [])
    assert "such as cu130" in done.stderr


def test_a_python_that_is_too_old_is_named(clone: Path) -> None:
    old = '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.6"\nexit 1\n'
    for name in ("python3", "python3.13", "python3.12", "python3.11", "python"):
        program(clone, name, old.replace("exit 1", '[ "$1" = --version ]'))
    done, log = set_up(clone)
    assert (done.returncode, log) == (1, [])
    assert "needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert "Python 3.9.6" in done.stderr
    done, _ = set_up(clone, PYTHON="python3")
    assert "PYTHON=python3 is not a Python 3.11 or newer" in done.stderr


@pytest.mark.parametrize("script", ["tools/setup.sh", "tools/lock.sh", ".ci/run"])
def test_scripts_parse_and_stop_at_errors(script: str) -> None:
    path = ROOT / script
    shell = "bash" if "bash" in path.read_text().splitlines()[0] else "sh"
    subprocess.run([shell, "-n", path], check=True, timeout=10)
    assert re.search(r"^set -eu$", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("present", [(), ("chromium", "make", "bwrap")])
def test_ci_installs_what_a_bare_machine_lacks_and_runs_make_test(
    tmp_path: Path, present: tuple[str, ...]
) -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    program(tmp_path, "id", "#!/bin/sh\necho 0\n")
    program(tmp_path, "apt-get", '#!/bin/sh\necho "apt-get $*"\n')
    for name in present:
        program(tmp_path, name, f'#!/bin/sh\necho "{name} $*"\n')
    done = subprocess.run(
        ["bash", ROOT / ".ci/run"],
        env={"PATH": str(tmp_path / "bin"), "CI": "true"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
        check=False,
    )
    if present:
        assert done.stdout == "make test\n"
        more = ["bash", ROOT / ".ci/run", "chapter", "N=15"]
        done = subprocess.run(
            more, env={"PATH": str(tmp_path / "bin")}, capture_output=True, text=True, timeout=30
        )
        assert done.stdout == "make chapter N=15\n"
    else:
        assert done.stdout.splitlines() == [
            "apt-get update -q",
            "apt-get install -y -q --no-install-recommends chromium make bubblewrap",
        ]


def test_make_names_its_targets() -> None:
    done = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, timeout=10, check=True
    )
    named = re.findall(r"^make (\w+)\t\S", done.stdout, re.MULTILINE)
    expected = "help setup peers lab test prove chapter check fix book bench lock clean"
    assert named == expected.split()
