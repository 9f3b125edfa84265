"""Places in the syntax tree of a definition where something can be changed, and how a change reads."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

DELETE = ast.Pass()
"""In a node's place: nothing."""

_LONGEST = 72


@dataclass(frozen=True)
class Site:
    """A node and the place where it hangs."""

    node: Any
    parent: Any
    field: str
    index: int | None
    above: tuple["Site", ...]
    scope: str

    @property
    def line(self) -> int:
        """Of the node, or of what it is in, where a node has none."""
        return getattr(self.node, "lineno", None) or self.above[-1].line


def sites(tree: ast.Module) -> Iterator[Site]:
    """Every place of a module that may be changed, in the order of the source."""
    for index, node in enumerate(tree.body):
        yield from _walk(Site(node, tree, "body", index, (), ""))


def _walk(site: Site) -> Iterator[Site]:
    """Sites in the order of the source, without what is not to be changed."""
    node, scope = site.node, site.scope
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        scope = f"{scope}.{node.name}".lstrip(".")
        site = replace(site, scope=scope)
    if isinstance(node, ast.JoinedStr):
        return
    yield site
    if isinstance(node, ast.Raise):
        return
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "bases", "type_params", "msg"}:
            continue
        children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if isinstance(child, ast.AST) and not _is_docstring(node, field, index, child):
                yield from _walk(Site(child, node, field, index, (*site.above, site), scope))


def _is_docstring(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> bool:
    return (
        field == "body"
        and index == 0
        and isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


class replaced:
    """Within the block the tree has `new` in the place of the site's node."""

    def __init__(self, site: Site, new: Any):
        self.site, self.new = site, new

    def __enter__(self) -> None:
        parent, field, index = self.site.parent, self.site.field, self.site.index
        if index is None:
            setattr(parent, field, self.new)
            return
        self.whole = getattr(parent, field)
        rest = [*self.whole[:index], *self.whole[index + 1 :]]
        if self.new is DELETE and (rest or field != "body"):
            setattr(parent, field, rest)
        else:
            setattr(parent, field, [*self.whole[:index], self.new, *self.whole[index + 1 :]])

    def __exit__(self, *exception: Any) -> None:
        old = self.site.node if self.site.index is None else self.whole
        setattr(self.site.parent, self.site.field, old)


def texts(site: Site, new: Any) -> tuple[str, str]:
    """How the change reads: the node before and after, with enough around it to be recognised."""
    around = site
    while around.above and (_is_terse(around) or around.field == "slice"):
        above = around.above[-1]
        if isinstance(above.node, ast.arguments) or hasattr(above.node, "body"):
            break
        if len(_text(above)) == _LONGEST:  # cut short: the change might not show
            break
        around = above
    before = f"`{_text(around)}`"
    if new is DELETE:
        return before, ""
    with replaced(site, new):
        return before, f"`{_text(replace(site, node=new) if around is site else around)}`"


def _is_terse(site: Site) -> bool:
    return isinstance(site.node, ast.Constant) or len(_text(site)) < 5


def _text(site: Site) -> str:
    """The code of a node on one line: of a compound statement its head, of a default its name."""
    node = site.node
    text = ast.unparse(ast.fix_missing_locations(node)).strip()
    if isinstance(node, ast.stmt) and hasattr(node, "body"):
        text = text.splitlines()[0]
    if isinstance(site.parent, ast.arguments):
        text = f"{_parameter(site)}={text}"
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _parameter(site: Site) -> str:
    """The name of the parameter whose default this is."""
    arguments, index = site.parent, site.index or 0
    if site.field == "kw_defaults":
        return arguments.kwonlyargs[index].arg
    named = [*arguments.posonlyargs, *arguments.args]
    return named[len(named) - len(arguments.defaults) + index].arg
