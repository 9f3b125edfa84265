"""The site in other languages: message catalogues extracted and brought up to date, pages built.

    python -m course_utils.authoring.languages update     # catalogues, after a page has changed
    python -m course_utils.authoring.languages build      # pages, into the English site's folder

Either takes the build folder as an argument, by default ``_build``.

A language is a folder in ``book/locale`` with the table of contents of its pages. Code cells and their
outputs are the English site's, from the same cache of executions.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import yaml
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).parents[2]
LOCALE = Path("book", "locale")


def languages(project: Path = ROOT) -> list[str]:
    """Languages that the site has besides English."""
    return sorted(toc.parent.name for toc in (project / LOCALE).glob("*/_toc.yml"))


def pages(language: str, project: Path = ROOT) -> list[str]:
    """The language's pages that have an English original, in order."""
    toc = yaml.safe_load((project / LOCALE / language / "_toc.yml").read_text(encoding="utf-8"))
    return [entry["file"] for entry in toc["chapters"]]


def catalogue(language: str, page: str, project: Path = ROOT) -> Path:
    """The page's catalogue, committed."""
    return project / LOCALE / language / "LC_MESSAGES" / f"{page}.po"


def extract(language: str, out: Path, project: Path = ROOT) -> Path:
    """Messages of the language's pages, as templates in the folder that is returned."""
    _sphinx(language, project, out / "gettext", builder="gettext")
    return out / "gettext"


def update(language: str, out: Path, project: Path = ROOT) -> None:
    """Bring the catalogues up to date; a message whose English has changed is untranslated again."""
    templates = extract(language, out, project)
    for page in pages(language, project):
        with (templates / f"{page}.pot").open("rb") as opened:
            template = read_po(opened, locale=language)
        file = catalogue(language, page, project)
        known = _read(file, language)
        fresh = Catalog(locale=language, project="Strides to Shards", header_comment="")
        for message in template:
            if message.id:
                fresh.add(message.id, known.get(str(message.id), ""))
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as opened:
            write_po(opened, fresh, omit_header=True, width=0, no_location=True)


def build(language: str, out: Path, project: Path = ROOT) -> None:
    """Build the language's pages; they go below the English ones, in ``out/html/<language>``."""
    made = out / language / "html"
    settings = {"locale_dirs": [LOCALE.as_posix()], "language": language}
    _sphinx(language, project, made, builder="html", **settings)
    target = out / "html" / language
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(made, target, ignore=shutil.ignore_patterns(".buildinfo"))


def _read(file: Path, language: str) -> dict[str, str]:
    if not file.exists():
        return {}
    with file.open("rb") as opened:
        return {str(m.id): str(m.string) for m in read_po(opened, locale=language) if m.string}


def _sphinx(locale: str, project: Path, made: Path, *, builder: str, **settings: Any) -> None:
    from jupyter_book.sphinx import build_sphinx

    toc = project / LOCALE / locale / "_toc.yml"
    own = {"external_toc_path": str(toc), "nitpicky": True, "latex_individualpages": False}
    status = build_sphinx(
        project,
        made,
        noconfig=True,
        path_config=project / "_config.yml",
        confoverrides=own | settings,
        doctreedir=made.parent / f".doctrees-{builder}",
        builder=builder,
        warningiserror=True,
        keep_going=True,
    )
    if status:
        raise SystemExit(f"the {builder} build for {locale} has failed: {status}")


if __name__ == "__main__":
    verb, *out = sys.argv[1:] or [""]
    if verb not in ("update", "build"):
        sys.exit(__doc__)
    folder = Path(out[0]) if out else ROOT / "_build"
    for name in languages():
        {"update": update, "build": build}[verb](name, folder)
