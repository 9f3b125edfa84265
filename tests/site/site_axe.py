"""axe-core on an open page: what hinders a reader who does not see, or sees little."""

import functools
from pathlib import Path

import axe_playwright_python
from playwright.sync_api import Page

STANDARD = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
STRUCTURE = {
    "runOnly": {"type": "tag", "values": STANDARD},
    "rules": {"heading-order": {"enabled": True}, "color-contrast": {"enabled": False}},
    "resultTypes": ["violations"],
    "preload": False,  # would ask for style sheets by addresses that are relative to other sheets
}
CONTRAST = {"runOnly": ["color-contrast"], "resultTypes": ["violations"], "preload": False}
# A formula's colour depends on its paragraph, a token's on its class and on what it lies on, and what
# the API reference says of one name looks like what it says of another: three formulas, one of each
# token and thirty names are looked at, or a page would take ten seconds.
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
# Contrast depends on an element's own style and on the backgrounds that it lies on: of all text with
# the same of both, figures' shadow trees included, one is measured.
LOOKS = """
() => {
  const found = new Map();
  const look = (element, under) => {
    const style = getComputedStyle(element);
    const ground = style.backgroundColor + style.backgroundImage + style.opacity + style.filter;
    const on = ground === under[0] ? under : [ground, under];
    const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (text) {
      const { color, fontSize, fontWeight, textShadow, webkitTextFillColor: fill } = style;
      const kind = JSON.stringify([on, color, fill, fontSize, fontWeight, textShadow]);
      if (!found.has(kind) && element.checkVisibility({ visibilityProperty: true })) {
        found.set(kind, element);
      }
    }
    for (const inner of [...element.children, ...(element.shadowRoot?.children ?? [])]) look(inner, on);
  };
  look(document.body, []);
  return [...found.values()];
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
    looks = page.evaluate_handle(LOOKS)
    found = page.evaluate(
        "([looks, options]) => axe.run({include: looks}, options)", [looks, CONTRAST]
    )["violations"]
    if not contrast_only:
        found += page.evaluate("options => axe.run(document, options)", STRUCTURE)["violations"]
    return [
        f"{rule['id']}: {node['html'][:120]}: {node.get('failureSummary', '')[:300]}"
        for rule in found
        for node in rule["nodes"]
    ]
