"""tools/peers.txt and the environment that tools/peers.sh makes of it."""

import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from packaging.requirements import Requirement

from tests.peers import peers  # noqa: F401 (a fixture)

ROOT = Path(__file__).parents[2]


def requirements(name: str) -> dict[str, Requirement]:
    lines = [line.partition("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    return {found.name: found for found in map(Requirement, filter(None, lines))}


def test_every_peer_is_pinned_and_none_is_a_package_of_the_course() -> None:
    wanted, locked = requirements("tools/peers.txt"), requirements("requirements.txt")
    assert {"nbgrader", "otter-grader"} <= wanted.keys()
    assert not wanted.keys() & locked.keys()
    for requirement in wanted.values():
        (pin,) = requirement.specifier
        assert pin.operator == "=="


def test_the_peers_run_on_the_courses_own_packages(peers: ModuleType) -> None:  # noqa: F811
    """With the very torch of .venv: a benchmark of two torches would compare nothing."""
    wanted = requirements("tools/peers.txt")
    names = [*wanted, "torch", "nbclient"]
    listed = f"import sys; from importlib.metadata import version; print(*map(version, {names}))"
    found = dict(zip(names, peers.run("python", "-c", listed, cwd=ROOT).split(), strict=True))
    for name, requirement in wanted.items():
        assert requirement.specifier.contains(found[name])
    assert (found["torch"], found["nbclient"]) == (version("torch"), version("nbclient"))
    inside = [path.name for path in peers.FOLDER.glob("lib/python*/site-packages/*")]
    assert not any(re.match(r"torch\b", name) for name in inside)


def test_the_script_is_whole_and_says_what_is_missing(tmp_path: Path) -> None:
    script = ROOT / "tools/peers.sh"
    subprocess.run(["sh", "-n", script], check=True)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/peers.sh").write_text(script.read_text())
    done = subprocess.run(
        ["sh", tmp_path / "tools/peers.sh"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "There is no .venv: sh tools/setup.sh makes it." in done.stderr
