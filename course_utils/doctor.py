"""Is everything here that the course needs? One line each, with what to do about what is not."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from course_utils.settings import settings

_GOOD, BAD, ABSENT = "✓", "✗", "–"
ENOUGH_DISK = 2 * 2**30
"""Bytes for what the chapters write, the site and the tools' caches."""

ENOUGH_MEMORY = 2 * 2**30
"""Bytes that a chapter's kernel, JupyterLab and a browser are comfortable in."""

_SET_UP = "in the course's folder, run `make lab`; on Windows, the pip lines of the README"


@dataclass(frozen=True)
class Finding:
    """One line of the report. mark: GOOD, BAD (the course needs it) or ABSENT (it can do without)."""

    name: str
    mark: str
    found: str
    advice: str = ""


def _python() -> Finding:
    found = f"{sys.version.split()[0]} ({sys.executable})"
    if sys.version_info >= (3, 14):
        return Finding(
            "Python", ABSENT, found, "the course is tested on Python 3.11, 3.12 and 3.13"
        )
    return Finding("Python", _GOOD, found)


def _torch() -> Finding:
    """Is torch installed, and does it load?"""
    try:
        found = version("torch")
        import torch
    except PackageNotFoundError:
        return Finding("torch", BAD, "not installed", _SET_UP)
    except (ImportError, OSError) as error:
        advice = "remove .venv, then " + _SET_UP
        return Finding("torch", BAD, f"{found} does not load: {error}", advice)
    threads = torch.get_num_threads()
    return Finding("torch", _GOOD, f"{found}, {threads} thread{'s' if threads > 1 else ''}")


def _device() -> Finding:
    """The accelerator that torch can use. A GPU that this build of torch cannot use is ABSENT."""
    import torch

    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / 2**30
        return Finding("device", _GOOD, f"cuda: {torch.cuda.get_device_name(0)}, {memory:.0f} GiB")
    if torch.backends.mps.is_available():
        return Finding("device", _GOOD, "mps (the Mac's GPU); cells for CUDA are skipped")
    if shutil.which("nvidia-smi"):
        advice = "this build of torch cannot use the NVIDIA GPU: make lab TORCH=cu130"
        return Finding("device", ABSENT, "cpu", advice)
    return Finding("device", _GOOD, "cpu: every chapter runs; cells for CUDA are skipped")


def _gloo() -> Finding:
    """Can torch start gloo, which the chapters on many ranks need?"""
    import torch.distributed as dist

    if dist.is_available() and dist.is_gloo_available():
        return Finding("gloo", _GOOD, "processes on this machine can talk to each other")
    advice = "this build of torch cannot run the chapters on many ranks; " + _SET_UP
    return Finding("gloo", BAD, "absent", advice)


def _jupyterlab() -> Finding:
    """Is JupyterLab installed? Another Jupyter will do."""
    try:
        return Finding("JupyterLab", _GOOD, version("jupyterlab"))
    except PackageNotFoundError:
        advice = "the notebooks open in another Jupyter too; for JupyterLab, " + _SET_UP
        return Finding("JupyterLab", ABSENT, "not installed", advice)


def _chromium() -> Finding:
    from course_utils.authoring import browser

    path = browser.find()
    if path:
        return Finding("Chromium", _GOOD, path)
    return Finding("Chromium", ABSENT, "none; only `make test` needs it", browser.ADVICE)


def memory() -> Finding:
    """Memory that is free now, against `ENOUGH_MEMORY`."""
    import psutil

    free = psutil.virtual_memory().available
    found = f"{free / 2**30:.1f} GiB free"
    if free < ENOUGH_MEMORY:
        return Finding("memory", ABSENT, found, "shut down kernels and programs you do not use")
    return Finding("memory", _GOOD, found)


def disk() -> Finding:
    """The room where the course lies."""
    free = shutil.disk_usage(Path(__file__).parent).free
    found = f"{free / 2**30:.1f} GiB free"
    if free < ENOUGH_DISK:
        return Finding("disk", ABSENT, found, "the site and checkpoints need room: make some")
    return Finding("disk", _GOOD, found)


def libraries() -> Finding:
    """What chapters compare themselves with, export to and serve with."""
    found, absent = [], []
    for name in ("transformers", "peft", "onnxruntime", "fastapi", "uvicorn"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            absent.append(name)
    if absent:
        what = f"{' and '.join(absent)} not installed"
        return Finding("libraries", ABSENT, what, "chapters 23, 26 and 28 use them; " + _SET_UP)
    return Finding("libraries", _GOOD, ", ".join(found))


def bubblewrap() -> Finding:
    """What `course grade` runs students' code in."""
    from course_utils.sandbox import levels

    why = levels.why_no_bubblewrap()
    if why:
        return Finding("bubblewrap", ABSENT, why, "only `course grade` needs it, on Linux")
    return Finding("bubblewrap", _GOOD, "`course grade` can isolate students' code")


def _course() -> Finding:
    where = Path(__file__).resolve().parent
    return Finding("course", _GOOD, f"{settings.title}, edition {settings.edition} ({where})")


CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _torch,
    _device,
    _gloo,
    _jupyterlab,
    libraries,
    _chromium,
    bubblewrap,
    memory,
    disk,
    _course,
)


def examine() -> list[Finding]:
    """Every finding, in the order of the report; a check that breaks is a finding too.

    An edition for students has no suite and grades nobody.
    """
    students = not (Path(__file__).parent / "authoring").is_dir()
    left_out = (_chromium, bubblewrap) if students else ()
    return [_finding(check) for check in CHECKS if check not in left_out]


def _finding(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:
        needs_torch = check in (_device, _gloo) and isinstance(error, ImportError)
        advice = "torch comes first" if needs_torch else "please report this"
        return Finding(check.__name__, BAD, f"{type(error).__name__}: {error}", advice)


def report(findings: list[Finding]) -> str:
    """The findings as text, a line each, and what to do on a line of its own."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.mark} {finding.name:<11}{finding.found}")
        if finding.advice:
            lines.append(f"  {'':<11}→ {finding.advice}")
    bad = sum(finding.mark == BAD for finding in findings)
    lines.append("" if bad == 0 else f"\n{bad} of {len(findings)} must be put right first.")
    return "\n".join(lines).rstrip()
