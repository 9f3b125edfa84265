"""An edition as a GitHub Classroom template: a workflow that grades each push in the student's repository.

Two steps: ours grades and hands on base64 JSON, Classroom's reporter shows the points. All of it lies
in the repository that the student may change.
"""

from course_utils.classroom.release.edition import CannotRelease, Edition

from .package_files import needed_by

WORKFLOW_PATH = ".github/workflows/classroom.yml"
GRADING = "course_utils.classroom.alone"
"""What the workflow runs. Repositories hold this name: it stays."""
MINUTES = 30


def made(edition: Edition) -> Edition:
    """The edition with the workflow, the plan and the grader among the students' files.

    Raises CannotRelease for an edition without answers: there the grader would have nothing to
    compare with.
    """
    if edition.plan.hidden:
        raise CannotRelease(
            [
                "GitHub Classroom grades inside the student's repository, which must hold the answers: "
                "leave out --without-answers; or hand out the plain edition in repositories, and grade "
                "what `gh classroom clone student-repos` brings with `course grade`"
            ]
        )
    readme = edition.files["README.md"].decode().rstrip("\n") + "\n" + README
    return edition.with_files(
        files={
            WORKFLOW_PATH: WORKFLOW.encode(),
            ".gitignore": b".venv/\n__pycache__/\n.ipynb_checkpoints/\n",
            "README.md": readme.encode(),
            "plan.json": edition.plan.to_json().encode(),
            **needed_by(GRADING),
        }
    )


WORKFLOW = f"""\
# Grades the notebooks at each push; GitHub Classroom reads the points.
name: Autograding

on:
  push:
  workflow_dispatch:

permissions:
  actions: read
  contents: read

jobs:
  autograding:
    if: github.actor != 'github-classroom[bot]'
    runs-on: ubuntu-latest
    timeout-minutes: {MINUTES}
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
          cache: pip
      - name: Install what the course needs
        run: pip install -q -r requirements.txt
      - name: Grade the answers
        id: course
        run: python -P -m {GRADING} classroom
        env:
          OMP_NUM_THREADS: "1"
          PYTHONPATH: ${{{{ github.workspace }}}}
      - name: Report the points
        uses: classroom-resources/autograding-grading-reporter@v1
        env:
          COURSE_RESULTS: ${{{{ steps.course.outputs.result }}}}
        with:
          runners: course
"""

README = """
## Points

Each push is graded on GitHub: *Actions*, then *Autograding*, shows which checks failed.

For the instructor: this grading lies in the repository that it grades, with the workflow and the
book's answers. Who changes them gets any points they like. It tells honest students where they stand;
for marks, clone the repositories (`gh classroom clone student-repos`) and run `course grade` on them.
"""
