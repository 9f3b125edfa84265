"""axe-core on an open page: what hinders a reader who does not see, or sees little."""

import functools
from pathlib import Path

import axe_playwright_python
from playwright.sync_api import Page

STANDARD = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
OPTIONS = {
    "runOnly": {"type": "tag", "values": STANDARD},
    "rules": {"heading-order": {"enabled": True}},
    "resultTypes": ["violations"],
    "preload": False,  # would ask for style sheets by addresses that are relative to other sheets
}
CONTRAST = {"runOnly": ["color-contrast"], "resultTypes": ["violations"], "preload": False}
# A token's colour depends on its class and on what it lies on, a formula's on its paragraph, and what
# the API reference says of one name looks like what it says of another: one of each token, three
# formulas and thirty names are looked at, or a page would take ten seconds.
ONE_OF_EACH = """
const names = [...document.querySelectorAll("dl.py")].filter((one) => !one.querySelector("dl.py"));
for (const one of names.slice(30)) one.remove();
for (const formula of [...document.querySelectorAll("mjx-container")].slice(3)) formula.remove();
const seen = new Set();
for (const pre of document.querySelectorAll(".highlight pre")) {
  const on = ["cell_input", "cell_output", "admonition"].filter((name) => pre.closest("." + name));
  for (const token of pre.querySelectorAll("span[class]:not(.code-line)")) {
    const kind = on + " " + token.className;
    if (seen.has(kind)) token.replaceWith(...token.childNodes);
    seen.add(kind);
  }
}
"""


@functools.cache
def _script() -> str:
    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(page: Page, *, contrast_only: bool = False) -> list[str]:
    """A line for each violation of WCAG 2.2 AA: rule, place, and what would mend it.

    contrast_only: for a second colour scheme, in which nothing else differs. Changes the page.
    """
    page.evaluate(ONE_OF_EACH)
    if not page.evaluate("'axe' in window"):
        page.evaluate(_script())
    found = page.evaluate(
        "options => axe.run(document, options)", CONTRAST if contrast_only else OPTIONS
    )
    return [
        f"{rule['id']}: {node['html'][:120]}: {node.get('failureSummary', '')[:300]}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
