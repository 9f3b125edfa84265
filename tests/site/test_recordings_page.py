"""A page with gpu cells in each state, as a reader meets it. The recordings are made up, and say so."""

import base64
import io
from collections.abc import Iterator

import nbformat
import pytest
from nbformat.v4 import new_output
from playwright.sync_api import Browser, Page
from site_build import build, code, markdown, tiny_book
from site_visit import overflow, served, visiting

from course_utils.authoring.counts import count
from course_utils.recordings import cells as gpu_cells

MADE_UP = {
    "gpu": "MADE-UP GPU",
    "driver": "1.2",
    "torch": "2.13.0",
    "cuda": "13.0",
    "date": "2026-01-02",
}
STATES = ("fresh", "picture", "outdated", "stampless", "never")


def gpu(state: str) -> dict:
    source = (
        f"# would show: the number of {state}\nif torch.cuda.is_available():\n    print('{state}')"
    )
    if state == "picture":
        source = "# alt: a made-up grey square\n" + source
    cell = code(source, tags=["gpu"])
    cell.outputs = [new_output("stream", text=f"measured: {state}\n")]
    if state == "picture":
        cell.outputs = [new_output("display_data", data={"image/png": png()})]
    if state == "never":
        cell.outputs = []
    return cell


def png() -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (120, 80), 128).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def cells() -> list[dict]:
    page = [markdown("# Recorded"), code("import torch")]
    for state in STATES:
        page += [markdown(f"## {state.capitalize()}"), gpu(state)]
    for at, digest in gpu_cells.digests(page, str).items():
        state = page[at].source.split("'")[1]
        if state in ("fresh", "picture", "outdated"):
            old = "0" * 16 if state == "outdated" else digest
            page[at].metadata["recorded"] = MADE_UP | {"code": old}
            label = nbformat.from_dict(gpu_cells.label("for JupyterLab only"))
            page[at].outputs.insert(0, label)
    return page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("recorded")
    built = build(tiny_book(folder / "book", {"recorded": cells()}), folder / "out")
    assert built.status == 0, built.log[-3000:]
    with (
        served(built.html, tmp_path_factory.mktemp("www")) as site,
        visiting(browser, site, "recorded.html", "narrow") as visit,
    ):
        yield visit.page
        assert visit.errors == []


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (
            "fresh",
            "Recorded on MADE-UP GPU, driver 1.2, with torch 2.13.0 and CUDA 13.0, 2026-01-02.",
        ),
        (
            "outdated",
            "Recorded before this cell, or code that it uses, changed (on MADE-UP GPU with torch 2.13.0, "
            "2026-01-02); left out until it is recorded again. It would show the number of outdated.",
        ),
        (
            "stampless",
            "Its output came without a note of the GPU that made it, and is left out. "
            "It would show the number of stampless.",
        ),
        ("never", "Not recorded on a GPU yet. It would show the number of never."),
    ],
)
def test_a_reader_sees_what_is_current_and_why_the_rest_is_missing(
    page: Page, state: str, says: str
) -> None:
    section = page.locator(f"section#{state}")
    assert section.locator(".course-recorded").inner_text() == says
    assert section.locator(".course-recorded").is_visible()
    shown = section.locator(".cell_output")
    if state == "fresh":
        assert shown.inner_text().strip() == "measured: fresh"
    else:
        assert shown.count() == 0
        assert "measured" not in section.inner_text()
    assert "would show:" not in section.inner_text()
    count("browser checks", 3)


def test_a_recorded_picture_is_described(page: Page) -> None:
    image = page.locator("section#picture img")
    assert image.get_attribute("alt") == "a made-up grey square"
    assert image.evaluate("image => image.naturalWidth") == 120


def test_the_label_is_for_jupyterlab_only(page: Page) -> None:
    assert "for JupyterLab only" not in page.inner_text("body")
    assert overflow(page) <= 0
