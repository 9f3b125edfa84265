"""Portable Markdown of a notebook's cell → MyST.

Notebooks hold only Markdown that JupyterLab, Colab and GitHub show alike. What carries meaning in
it is recognised here: block quotes with a bold lead-in, ``<details>``, and links to notebooks.
"""

import re
from collections.abc import Callable, Iterator

LEAD_INS = {"Predict": "predict", "Note": "note", "Pitfall": "pitfall", "On a GPU": "gpu"}
LEAD_IN = re.compile(rf"\*\*({'|'.join(LEAD_INS)})\.\*\*\s*")
EXERCISE = re.compile(
    r"\*\*Exercise (?P<number>[\d.]+) \((?P<name>[^)]+)\), (?P<stars>[★☆]{3}), "
    r"(?P<minutes>\d+) min\.\*\*\s*"
)
QUOTE = re.compile(r" {0,3}> ?")
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
DETAILS = re.compile(r"\s*<details(?:\s[^>]*)?>\s*(?:<summary>(?P<summary>.*?)</summary>)?\s*(.*)")
SUMMARY = re.compile(r"\s*<summary>(?P<summary>.*?)</summary>\s*(.*)")
NOTEBOOK_LINK = re.compile(r"\]\((?P<path>[^()\s#]+\.ipynb|)#(?P<anchor>[^()\s]+)\)")


def to_myst(text: str, exercise_key: str | None = None) -> str:
    """Translate one cell's Markdown.

    exercise_key: of the exercise that an exercise lead-in announces (the next exercise cell's).
    Raises ValueError for an exercise lead-in without a key, or an unclosed ``<details>``.
    """
    return "\n".join(_blocks(text.split("\n"), exercise_key))


def announces_exercise(text: str) -> bool:
    """Does the Markdown hold the lead-in of an exercise?"""
    return any(EXERCISE.match(QUOTE.sub("", line)) for line in text.split("\n") if _quoted(line))


def dropdown(title: str, body: str, *, kind: str) -> str:
    """A folded block: a native ``<details>`` on the page."""
    return fenced("dropdown", title, body, {"class-container": f"course-{kind}"})


def fenced(directive: str, argument: str, body: str, options: dict[str, str]) -> str:
    """A colon fence that is longer than every fence within its body."""
    inner = max((len(run) for run in re.findall(r"^\s*(:{3,})", body, re.M)), default=2)
    fence = ":" * max(3, inner + 1)
    head = [f"{fence}{{{directive}}} {argument}".rstrip()]
    head += [f":{name}: {value}" for name, value in options.items()]
    return "\n".join([*head, "", body.strip("\n"), fence])


def _quoted(line: str) -> bool:
    return QUOTE.match(line) is not None


def _blocks(lines: list[str], key: str | None) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at]
        if fence := FENCE.match(line):
            end = _find(lines, at + 1, _closes(fence.group(1)), default=len(lines) - 1)
            yield from lines[at : end + 1]
        elif _quoted(line):
            end = _find(lines, at, lambda line: not _quoted(line), default=len(lines)) - 1
            quote = [QUOTE.sub("", line, count=1) for line in lines[at : end + 1]]
            yield from _quote("\n".join(quote), key)
        elif opening := DETAILS.fullmatch(line):
            end = _end_of_details(lines, at)
            yield _details(opening, lines[at + 1 : end + 1], key)
        else:
            end = at
            yield NOTEBOOK_LINK.sub(_link, line)
        at = end + 1


def _find(lines: list[str], start: int, wanted: Callable[[str], bool], default: int) -> int:
    return next((i for i in range(start, len(lines)) if wanted(lines[i])), default)


def _closes(fence: str) -> Callable[[str], bool]:
    return lambda line: line.strip().startswith(fence) and set(line.strip()) == {fence[0]}


def _quote(quote: str, key: str | None) -> Iterator[str]:
    """An admonition where the quotation has a known lead-in, the quotation itself otherwise."""
    if lead := EXERCISE.match(quote):
        if key is None:
            raise ValueError(f"no exercise cell follows the lead-in {lead.group(0).strip()!r}")
        options = {name: lead[name] for name in ("number", "stars", "minutes")} | {"key": key}
        body = to_myst(quote[lead.end() :])
        yield "\n" + fenced("course-exercise", lead["name"], body, options) + "\n"
    elif lead := LEAD_IN.match(quote):
        body = to_myst(quote[lead.end() :])
        kind = {"class": f"course-{LEAD_INS[lead[1]]}"}
        yield "\n" + fenced("admonition", lead[1], body, kind) + "\n"
    else:
        yield "\n".join(f"> {line}".rstrip() for line in to_myst(quote).split("\n"))


def _end_of_details(lines: list[str], start: int) -> int:
    depth = 0
    for at in range(start, len(lines)):
        depth += lines[at].count("<details") - lines[at].count("</details>")
        if depth == 0:
            return at
    raise ValueError(f"<details> is never closed: {lines[start]!r}")


def _details(opening: re.Match[str], body: list[str], key: str | None) -> str:
    summary, rest = opening["summary"], opening[2]
    if summary is None and body and (found := SUMMARY.fullmatch(body[0])):
        summary, rest, body = found["summary"], found[2], body[1:]
    if summary is None:
        raise ValueError("<details> starts with a one-line <summary>…</summary>")
    content, _, after = "\n".join([rest, *body]).rpartition("</details>")
    if after.strip():
        raise ValueError(f"a line goes on after </details>: {after.strip()!r}")
    content = to_myst(content.rstrip(), key)
    title = re.sub(r"</?(?:b|strong|i|em|code)>", "", summary)
    return "\n" + dropdown(title, content, kind="aside") + "\n"


def _link(link: re.Match[str]) -> str:
    """JupyterLab's anchors keep case and punctuation; the page's are lower-case slugs.

    The anchor of an exercise is known to the whole site, so its link needs no path.
    """
    anchor = link["anchor"]
    if anchor.startswith("exercise-"):
        return f"](#{anchor})"
    slug = re.sub(r"[^\w-]", "", anchor.lower())
    return f"]({link['path']}#{slug})"
