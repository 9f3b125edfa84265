"""How code looks on the page: cells on ranks in colour, long lines of a stub that keep their indent."""

import re
from typing import ClassVar

from docutils import nodes
from IPython.lib.lexers import IPython3Lexer
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import bygroups, inherit
from pygments.token import Keyword, Operator, Text
from sphinx.application import Sphinx


class CourseLexer(IPython3Lexer):
    """IPython's, which leaves the body of any ``%%magic`` plain; that of ``%%ranks`` is Python."""

    name = "IPython with %%ranks"
    aliases: ClassVar = ["ipython3"]
    tokens: ClassVar = {
        "root": [
            (r"(%%)(ranks)([^\n]*\n)", bygroups(Operator, Keyword, Text)),
            inherit,
        ]
    }


def setup(app: Sphinx) -> None:
    """Register the lexer and the stubs' lines."""
    app.add_lexer("ipython3", CourseLexer)
    app.connect("doctree-resolved", indent_stubs)


def indent_stubs(app: Sphinx, doctree: nodes.document, _docname: str) -> None:
    """Make each line of a stub a block of its own, which wraps under its own indentation."""
    if app.builder.format != "html":
        return
    for cell in doctree.findall(nodes.container):
        if "tag_exercise-stub" in cell.get("classes", []):
            for block in list(cell.findall(nodes.literal_block)):
                if "cell_input" in block.parent.get("classes", []):
                    block.replace_self(nodes.raw("", lines_of(block.astext()), format="html"))


def lines_of(source: str) -> str:
    """The highlighted source, with a block for each line that says how far it is indented."""
    body = highlight(source, CourseLexer(), HtmlFormatter(nowrap=True)).rstrip("\n")
    shown = []
    for line in body.split("\n"):
        indent = len(re.sub(r"<[^>]*>", "", line)) - len(re.sub(r"<[^>]*>", "", line).lstrip())
        shown.append(f'<span class="code-line" style="--indent:{indent}ch">{line}\n</span>')
    inner = f'<div class="highlight"><pre>{"".join(shown)}</pre></div>'
    return f'<div class="highlight-ipython3 notranslate">{inner}</div>'
