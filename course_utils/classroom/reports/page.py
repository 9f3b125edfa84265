"""HTML pages in one file: no script, no request, light and dark, readable on paper and on a phone."""

from collections.abc import Iterable, Sequence
from html import escape

from course_utils.classroom.marks.text import line

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""What a browser lets a page do, should a piece of student's text ever come through unescaped."""

CSS = """
:root {
  color-scheme: light dark;
  --ink: #16202c; --muted: #526070; --paper: #ffffff; --panel: #f5f7fa; --line: #d5dce4; --edge: #6f7d8c;
  --accent: #1d5fa8; --tint: #edf4fc; --focus: #b3470b;
  --good: #14713a; --bad: #b02a20; --wait: #526070; --gone: #8a5300;
  --serif: Charter, "Bitstream Charter", "Iowan Old Style", "Palatino Linotype", Palatino, Georgia, serif;
  --mono: ui-monospace, "SF Mono", "Cascadia Code", "DejaVu Sans Mono", Menlo, Consolas, monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e2e8ef; --muted: #a5b1be; --paper: #14181d; --panel: #1c2228; --line: #343d47; --edge: #8492a0;
    --accent: #8cc0f5; --tint: #1a2634; --focus: #ffb066;
    --good: #6fd197; --bad: #ff9c92; --wait: #a5b1be; --gone: #f0b45f;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink); line-height: 1.6; overflow-wrap: break-word;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
}
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.2rem 4rem; }
h1, h2, h3 { font-family: var(--serif); font-weight: 600; line-height: 1.2; text-wrap: balance; }
h1 { font-size: clamp(1.7rem, 1.3rem + 2vw, 2.4rem); margin: 0 0 .4rem; }
h2 { font-size: 1.45rem; margin: 2.8rem 0 .6rem; }
h3 { font-size: 1.1rem; margin: 1.6rem 0 .4rem; }
p { margin: .5rem 0; text-wrap: pretty; }
a { color: var(--accent); }
code, pre { font-family: var(--mono); font-size: .88em; }
code { background: var(--panel); border-radius: 4px; padding: .1em .3em; }
pre { margin: .4rem 0; padding: .6rem .8rem; background: var(--panel); border-radius: 6px; white-space: pre-wrap; }
pre code { padding: 0; font-size: 1em; }
.muted { color: var(--muted); }
.lead { color: var(--muted); font-family: var(--serif); font-size: 1.15rem; margin-top: 0; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; min-width: min(100%, 32rem); font-size: .93rem; line-height: 1.45; }
caption { text-align: left; color: var(--muted); padding: 0 0 .4rem; }
th, td { padding: .35rem 1.4rem .35rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
.scroll :is(td, tbody th):not(.n, .key) { min-width: 10rem; }
td > span { white-space: nowrap; }
.scroll bdi { overflow-wrap: break-word; }
:is(td, th):last-child { padding-right: 0; }
:is(p, h1, h2, h3, li, dd, bdi) { overflow-wrap: anywhere; }
thead th { border-bottom-color: var(--edge); vertical-align: bottom; }
tbody th { font-weight: 400; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
thead th.n { white-space: normal; }
td.key, th.key { white-space: nowrap; }
tbody th:not(.key, .scroll *) code { overflow-wrap: anywhere; }
@media (max-width: 32rem) { th, td { padding-right: .7rem; } section.exercise { padding-inline: .8rem; } }
th.key code { background: none; padding: 0; }
dl.figures { display: flex; flex-wrap: wrap; gap: .4rem 2.4rem; margin: 1.2rem 0; padding: .9rem 0; border-block: 1px solid var(--line); }
dl.figures div { display: flex; flex-direction: column-reverse; }
dl.figures dt { color: var(--muted); font-size: .88rem; }
dl.figures dd { margin: 0; font-family: var(--serif); font-size: 1.5rem; line-height: 1.25; }
dl.figures dd small { font-size: .6em; color: var(--muted); }
svg { display: block; width: 100%; height: auto; max-width: 38rem; margin: .8rem 0; }
svg text { fill: var(--ink); font-family: inherit; }
svg .muted { fill: var(--muted); }
svg .axis { stroke: var(--edge); }
svg .bar { fill: var(--accent); }
.passed { fill: var(--good); color: var(--good); } .failed { fill: var(--bad); color: var(--bad); }
.waiting { fill: var(--edge); color: var(--wait); } .gone { fill: var(--gone); color: var(--gone); }
svg .part { stroke: var(--paper); stroke-width: 1.5; }
section.exercise { border: 1px solid var(--line); border-left: 4px solid var(--edge); border-radius: 6px; padding: .3rem 1.1rem 1rem; margin: 1.2rem 0; }
section.exercise.passed { border-left-color: var(--good); } section.exercise.failed { border-left-color: var(--bad); }
section.exercise { color: inherit; }
section.exercise h2 { margin: .7rem 0 .1rem; font-size: 1.2rem; }
.verdict { font-weight: 600; margin: 0 0 .5rem; }
.box { background: var(--tint); border-radius: 6px; padding: .5rem .8rem; margin: .6rem 0; }
.warn { border-left: 3px solid var(--gone); padding-left: .9rem; margin: 1rem 0; }
ol.teach { padding-left: 1.4rem; } ol.teach li { margin: .7rem 0; padding-left: .3rem; }
details > summary { cursor: pointer; color: var(--accent); padding: .3rem 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: 0 1rem; }
.pair > div { min-width: 0; }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }
@media print { main { max-width: none; } details > summary { display: none; } }
"""


def page(title: str, body: str) -> str:
    """A whole page. title: plain text. body: HTML, what stands in <main>."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(line(title, 120))}</title>\n"
        f'<link rel="icon" href="data:,">\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n'
        f"{body}\n</main>\n</body>\n</html>\n"
    )


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    kinds: str = "",
    scroll: str = "",
) -> str:
    """A table whose first column heads the rows. Everything given is HTML.

    kinds: one letter a column: t text, n number, k an exercise's key. scroll: the name of the region
    that scrolls sideways on a narrow screen, by default none.
    """
    kinds = kinds.ljust(len(heads), "t")
    classes = [{"n": ' class="n"', "k": ' class="key"'}.get(kind, "") for kind in kinds]
    head = "".join(
        f'<th scope="col"{c}>{text}</th>' for text, c in zip(heads, classes, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row"{c}>{text}</th>' if i == 0 else f"<td{c}>{text}</td>"
            for i, (text, c) in enumerate(zip(row, classes, strict=True))
        )
        + "</tr>\n"
        for row in rows
    )
    whole = f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
    if scroll:
        name = escape(scroll, quote=True)
        return f'<div class="scroll" role="region" aria-label="{name}" tabindex="0">{whole}</div>'
    return whole


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """A row of figures: (what, HTML)."""
    inner = "".join(f"<div><dt>{escape(what)}</dt><dd>{value}</dd></div>" for what, value in pairs)
    return f'<dl class="figures">{inner}</dl>'


def svg(name: str, title: str, desc: str, width: int, height: int, inner: str) -> str:
    """A drawing that a screen reader reads by its title and description (plain text)."""
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(desc)}</desc>{inner}</svg>'
    )
