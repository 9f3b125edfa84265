"""An edition with Gradescope's autograder: a zip to upload, with `setup.sh` and `run_autograder`.

The zip holds the course with its references, the plan, and the secret of the random cases. In the
container the grader runs as root, a submission's code as a user of its own that may read Python and
the student's side of the course, and nothing else of ours; there is no bubblewrap in most
containers, so that is the level "process only".
"""

import secrets
from dataclasses import replace

from course_utils.classroom.release import package
from course_utils.classroom.release.edition import Edition
from course_utils.classroom.release.pack import zipped
from course_utils.sandbox.bubblewrap import VISIBLE, VISIBLE_OF_GRADING

from .package_files import ROOT, grading_files

ZIP = "gradescope.zip"
NEEDED_BY_DASK = {"distributed"}


def made(edition: Edition) -> Edition:
    """The edition with `gradescope.zip` for the instructor. The random cases' secret is new each time."""
    course = grading_files()
    lock = _needed(course)
    files = {
        "setup.sh": SETUP.format(torch=_torch_of(lock)).encode(),
        "run_autograder": RUN.encode(),
        "rights.sh": _rights().encode(),
        "requirements.txt": "\n".join(lock).encode() + b"\n",
        "plan.json": edition.plan.to_json().encode(),
        "secret": secrets.token_bytes(32),
        **{f"course/{path}": data for path, data in course.items()},
    }
    note = (
        f"{ZIP} is for Gradescope's page 'Configure Autograder'. It holds the answers. Building its "
        "image downloads torch."
    )
    done = edition.with_files(instructor={ZIP: zipped(files)})
    return replace(done, notes=(*edition.notes, note))


def _needed(course: dict[str, bytes]) -> list[str]:
    """The locked packages that grading imports."""
    sources = [data.decode() for path, data in course.items() if path.endswith(".py")]
    imported = {package.normal(name) for source in sources for name in package.imports(source)}
    direct = dict(package.direct((ROOT / "requirements.in").read_text(encoding="utf-8")))
    wanted = (imported & direct.keys()) - NEEDED_BY_DASK
    return package.pinned((ROOT / "requirements.txt").read_text(encoding="utf-8"), wanted)


def _torch_of(lock: list[str]) -> str:
    (line,) = (line for line in lock if line.startswith("torch=="))
    return line.partition(";")[0].strip()


def _rights() -> str:
    """A script: who may read what of `source`. The rest of the course is the grader's alone."""
    folders = ["course/course_utils", "course/course_utils/grading"]
    seen = [f"course/course_utils/{name}" for name in VISIBLE]
    seen += [f"course/course_utils/grading/{name}" for name in VISIBLE_OF_GRADING]
    return RIGHTS.format(folders=" ".join(folders), seen=" ".join(seen))


SETUP = """\
#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the image: Python, torch for CPUs, the course's needs.
set -eu
cd "${{AUTOGRADER:-/autograder}}/source"
export DEBIAN_FRONTEND=noninteractive

course=${{COURSE_VENV:-/opt/course}}
apt-get update -q
apt-get install -y -q --no-install-recommends bubblewrap python3 python3-venv python3-pip
suitable() {{ "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }}
for name in python3.13 python3.12 python3.11 python3 none; do
    if suitable "$name"; then break; fi
done
if [ "$name" = none ]; then  # an older system: a Python of its own, where every user may read it
    python3 -m venv "$course-uv"
    "$course-uv/bin/pip" install -q uv
    UV_PYTHON_INSTALL_DIR=$course-python "$course-uv/bin/uv" venv --seed --python 3.12 "$course"
else
    "$name" -m venv "$course"
fi
"$course/bin/pip" install -q --no-deps "{torch}+cpu" --index-url https://download.pytorch.org/whl/cpu
"$course/bin/pip" install -q -r requirements.txt
sh rights.sh
"""

RUN = """\
#!/usr/bin/env bash
# Gradescope runs this, as root, for each submission. Student code is run by another user.
set -eu
home=${AUTOGRADER:-/autograder}
export AUTOGRADER=$home PYTHONPATH=$home/source/course OMP_NUM_THREADS=1
cd "$home"
exec "${COURSE_PYTHON:-/opt/course/bin/python}" -P -m course_utils.classroom.alone gradescope
"""

RIGHTS = """\
#!/bin/sh
# In source/: student code, run by a user of its own, reads what it needs of the course and nothing else.
set -eu
chmod -R go= .
chmod 755 . course {folders}
for path in {seen}; do chmod -R go+rX "$path"; done
"""
