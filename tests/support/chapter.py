"""`make chapter N=02`: everything about one chapter, in one run of pytest.

Its notebook as shipped and, as a page, solved; its proofs and mutants, all of them, which go to the
ledger; the tests of its references; its page built and visited in a browser.

    python -m tests.support.chapter 02 [arguments of pytest]
"""

import os
import re
import sys
from pathlib import Path

from course_utils.authoring import ledger
from course_utils.authoring.dependencies import ROOT, closure

CHAPTER = "COURSE_CHAPTER"
"""The variable that has the page of one chapter built, and no other: see tests/site/conftest.py."""

TESTS = ("grading/test_proofs.py", "grading/test_mutants.py", "site/test_pages.py")
NBVAL = ("--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=500")
WHOLE_SITE = ("test_links_anchors_and_images",)
"""A page that is built alone has no others to link to."""


def notebook(number: str) -> Path:
    """The notebook of a chapter by its number. Raises SystemExit where there is none."""
    found = list((ROOT / "notebooks").glob(f"{number.zfill(2)}_*.ipynb"))
    if len(found) != 1:
        have = ", ".join(sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")))
        raise SystemExit(f"there is no chapter {number!r}: make chapter N=02 (there are: {have})")
    return found[0]


def references(name: str) -> list[Path]:
    """Tests of the references that the chapter's exercises use."""
    used = closure([f"course_utils.exercises.{name}"])
    modules = sorted(module.split(".")[-1] for module in used if ".reference." in module)
    tests = [ROOT / "tests" / "reference" / f"test_{module}.py" for module in modules]
    return [test for test in tests if test.exists()]


def arguments(number: str) -> list[str]:
    """Of pytest, for all that there is about the chapter."""
    path = notebook(number)
    name = re.sub(r"^\d+_", "", path.stem)
    tests = [*(ROOT / "tests" / test for test in TESTS), *references(name)]
    about = [
        f"[{name}.",
        path.stem,
        "builds_without_a_warning",
        *(t.stem for t in references(name)),
    ]
    wanted = " or ".join(about)
    left_out = "".join(f" and not {test}" for test in WHOLE_SITE)
    return [*map(str, tests), str(path), *NBVAL, "-k", f"({wanted}){left_out}"]


def main(number: str, *more: str) -> int:
    os.environ[CHAPTER] = notebook(number).stem
    os.environ.setdefault(ledger.PROVE, "all")
    os.chdir(ROOT)
    command = [sys.executable, "-m", "pytest", *arguments(number), *more]
    return os.spawnv(os.P_WAIT, sys.executable, command)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("which chapter? make chapter N=02")
    sys.exit(main(*sys.argv[1:]))
