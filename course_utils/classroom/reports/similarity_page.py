"""similarity.html: pairs of answers that resemble one another, side by side."""

from collections.abc import Mapping, Sequence
from html import escape

from course_utils.classroom.marks.text import escaped, isolated, plural

from .page import page, table
from .similarity import (
    COMMON_LEAST,
    FEWEST,
    LONGEST,
    Group,
    K,
    Pair,
    Similarity,
)

SAID = (
    "<p><b>This is a help, not a verdict.</b> Two answers can be alike because one was copied, because both follow "
    "the same hint, lecture or assistant, or because the exercise leaves little choice: <b>a short exercise has few "
    "distinct right answers</b>. Read both texts, and talk with both students, before you conclude anything. What is "
    "not here was not shown to be different either: a copy that was rewritten is not found, and neither is one from "
    "outside of the class.</p>"
)


def as_html(found: Similarity, title: str) -> str:
    """similarity.html: the table of pairs, then both texts of each side by side."""
    lead = f'<p class="lead">{escaped(title)}</p>'
    parts = ["<h1>Answers that resemble one another</h1>", lead, SAID, how(found)]
    if found.groups:
        parts.append(groups_table(found.groups))
    if found.pairs:
        parts.append(pairs_table(found))
        parts += [side_by_side(i, pair, found.texts) for i, pair in enumerate(found.pairs, 1)]
    else:
        parts.append(f"<p>No two answers share {100 * found.threshold:.0f} % or more.</p>")
    return page(f"Similarity: {title}", "\n".join(parts))


def pairs_table(found: Similarity) -> str:
    rows = [
        (
            f'<a href="#pair-{i}">{isolated(pair.first)} and {isolated(pair.second)}</a>',
            code(pair.key),
            f"{100 * pair.share:.0f} %",
            f"{pair.shared} of {pair.of}",
        )
        for i, pair in enumerate(found.pairs, 1)
    ]
    more = f"; {found.left_out} further pairs are not shown" if found.left_out else ""
    caption = f"{plural(len(found.pairs), 'pair')} above {100 * found.threshold:.0f} %{more}"
    heads = ("students", "exercise", "share", "fingerprints")
    return table(caption, heads, rows, "ttnn", "Pairs of answers")


def how(found: Similarity) -> str:
    rows = [(code(key), str(found.compared[key]), str(found.short[key])) for key in found.compared]
    said = (
        f"<p>Share: of the fingerprints (every {K} tokens in a row, winnowed) of the smaller of two answers, how many "
        "are in the other. Names, layout and comments do not count. The stub, the book's version and its "
        f"alternatives were taken away, and what more than {COMMON_LEAST} submissions and a tenth of the class have "
        f"in common. An answer with fewer than {FEWEST} fingerprints left has too "
        "little of its own to tell; so have the stub and the book's own version.</p>"
    )
    if not rows:
        return said + "<p>There was no answer to compare.</p>"
    heads = ("exercise", "answers compared", "too little to tell")
    return said + table("What was compared", heads, rows, "knn", "What was compared")


def groups_table(groups: Sequence[Group]) -> str:
    rows = [
        (code(g.key), str(len(g.students)), ", ".join(isolated(s) for s in g.students))
        for g in groups
    ]
    caption = (
        "Answers that are the same in many submissions, names and layout aside, and not the book's: what "
        "one would write anyway, or one text that went round. They are in no pair below"
    )
    return table(caption, ("exercise", "students", "who"), rows, "knt", "Many with one answer")


def code(key: str) -> str:
    return f"<code>{escape(key)}</code>"


def side_by_side(i: int, pair: Pair, texts: Mapping[tuple[str, str], str]) -> str:
    columns = "".join(
        f'<div><h3>{isolated(student)}</h3><pre tabindex="0"><code>'
        f"{escaped(texts[student, pair.key], LONGEST)}</code></pre></div>"
        for student in (pair.first, pair.second)
    )
    return (
        f'<h2 id="pair-{i}">{i}. <code>{escape(pair.key)}</code>, {100 * pair.share:.0f} %</h2>'
        f'<div class="pair">{columns}</div>'
    )
