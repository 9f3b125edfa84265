"""Builds a site as `make book` does, into a folder of its own; and a tiny one to break on purpose."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import nbformat
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).parents[2]
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"  # -m would import it and do nothing
UNRESOLVED = ["myst.xref_missing", "myst.domains"]
"""What Sphinx says of a link to a page that is not built."""
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


@dataclass(frozen=True)
class Built:
    """What a build left: its exit status, what it printed, and its pages."""

    status: int
    log: str
    html: Path

    @property
    def warnings(self) -> list[str]:
        """Lines of the log that warn or report an error."""
        return [line for line in self.log.splitlines() if "WARNING: " in line or "ERROR: " in line]


def build(project: Path, out: Path, *, first: str = "", **environment: str) -> Built:
    """Build the book in `project` strictly; its pages go to `out`.

    first: Python to run in the build's process before it.
    """
    command = ["-c", f"{first}\n{JUPYTER_BOOK}", "build", str(project), "-W", "-n"]
    ran = _python(*command, "--keep-going", "--path-output", str(out), **environment)
    return Built(ran.returncode, ran.stdout, out / "_build" / "html")


def build_languages(english: Built) -> Built:
    """Build the course in its other languages as `make book` does, below the English pages."""
    ran = _python("-m", "course_utils.authoring.languages", "build", str(english.html.parent))
    return replace(english, status=english.status or ran.returncode, log=english.log + ran.stdout)


def _python(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python as `make book` does: without what the suite sets for itself."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = os.environ | {"PYTHONPATH": path, "NO_COLOR": "1"} | environment
    env.pop("OMP_NUM_THREADS", None)
    return subprocess.run(
        [sys.executable, *command],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def pages_of(project: Path) -> list[str]:
    """The pages of the table of contents, root first."""
    toc = yaml.safe_load((project / "_toc.yml").read_text(encoding="utf-8"))
    parts = toc.get("parts", [toc])
    return [toc["root"], *(name for part in parts for name in _files(part.get("chapters", ())))]


def _files(entries: Iterable[dict]) -> Iterator[str]:
    for entry in entries:
        yield entry["file"]
        yield from _files(entry.get("sections", ()))


def tiny_book(folder: Path, pages: dict[str, str | list]) -> Path:
    """A book with the course's own configuration and the given pages, the first of them its root.

    pages: by name; Markdown, or the cells of a notebook.
    """
    folder.mkdir()
    (folder / "_config.yml").write_bytes((ROOT / "_config.yml").read_bytes())
    (folder / "book").symlink_to(ROOT / "book")
    root, *others = pages
    toc: dict = {"format": "jb-book", "root": root}
    if others:
        toc["chapters"] = [{"file": name} for name in others]
    (folder / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")
    for name, content in pages.items():
        if isinstance(content, str):
            (folder / f"{name}.md").write_text(content, encoding="utf-8")
        else:
            notebook = new_notebook(cells=content, metadata={"kernelspec": KERNEL})
            nbformat.write(notebook, folder / f"{name}.ipynb")
    return folder


def only_page(folder: Path, page: str) -> Path:
    """A book of one page of the course's own; links to its other pages lead nowhere."""
    folder.mkdir()
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    config["sphinx"]["config"]["suppress_warnings"] = UNRESOLVED
    (folder / "_config.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "_toc.yml").write_text(yaml.safe_dump({"format": "jb-book", "root": page}))
    (folder / "book").symlink_to(ROOT / "book")
    copy = folder / f"{page}.ipynb"
    copy.parent.mkdir()
    copy.write_bytes((ROOT / f"{page}.ipynb").read_bytes())
    return folder


def markdown(source: str) -> nbformat.NotebookNode:
    return new_markdown_cell(source)


def code(source: str, **metadata: object) -> nbformat.NotebookNode:
    return new_code_cell(source, metadata=metadata)
