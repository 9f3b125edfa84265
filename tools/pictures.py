"""The README's two pictures: a verdict, drawn from what the grader says, and the landing page as built.

python tools/pictures.py _build/html
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text

from course_utils.authoring import browser
from course_utils.authoring.dependencies import ROOT
from course_utils.files import write_whole
from course_utils.grading import find, grade

FOLDER = ROOT / "book" / "pictures"
VERDICT, PAGE = FOLDER / "verdict.svg", FOLDER / "page.png"
WIDTH = 100  # columns

CELLS = re.compile(r"^```\{code-cell\} python\n(.*?)^```", re.M | re.S)
LANDING = (ROOT / "book" / "index.md").read_text(encoding="utf-8")
(ANSWER,) = (cell.strip() for cell in CELLS.findall(LANDING) if cell.startswith("@exercise"))
"""The answer of the landing page: nearly right."""

FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>An answer that leaves the offset out, and what the course says to it</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>{lines}</defs>
{backgrounds}
<rect fill="#ffffff" stroke="#d0d7de" x="1" y="1" width="100%" height="100%" rx="8"/>
<text x="12" y="30" fill="#656d76" font-family="sans-serif" font-size="17">A cell with an answer, and what running it says</text>
<g transform="translate({terminal_x}, {terminal_y})" clip-path="none">
{matrix}
</g>
</svg>
"""


def verdict_svg() -> str:
    """A cell with a wrong answer and, below it, what `exercise` prints."""
    namespace: dict[str, object] = {"exercise": lambda _key: lambda part: part}
    exec(ANSWER, namespace)
    said = str(grade(find("strides.flat_index"), namespace["flat_index"]))
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor", force_terminal=True
    )
    console.print(Syntax(ANSWER, "python", theme="friendly", background_color="default"))
    console.print()
    for line in said.splitlines():
        cause = line.strip().startswith("→")
        style = "bold" if cause else "" if line.startswith(" ") else "bold #b3261e"
        console.print(Text(line, style=style))
    return console.export_svg(
        title="", theme=DEFAULT_TERMINAL_THEME, code_format=FORMAT, unique_id="verdict"
    )


def page_png(html: Path) -> bytes:
    """The built landing page as a window of 1,280 by 860 pixels shows it."""
    from playwright.sync_api import sync_playwright

    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=browser.find(), args=browser.ARGUMENTS
        ) as chromium,
    ):
        page = chromium.new_page(viewport={"width": 1280, "height": 860})
        page.goto((html / "book" / "index.html").resolve().as_uri())
        page.wait_for_load_state("networkidle")
        return page.screenshot()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    write_whole(VERDICT, verdict_svg().encode())
    if len(sys.argv) > 1:
        write_whole(PAGE, page_png(Path(sys.argv[1])))
