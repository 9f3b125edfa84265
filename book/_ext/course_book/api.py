"""The page of the package's names, from its sources: signatures, docstrings, where they are defined.

Sources are parsed, not imported: nothing runs, and a signature reads as it was written.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.docutils import SphinxDirective

from . import engine, markdown

Function = ast.FunctionDef | ast.AsyncFunctionDef
INLINE_CODE = re.compile(r"(``.*?``|`[^`]*`)", re.S)
SPECIAL = re.compile(r"([*_$<\[\]|])")


def setup(app: Sphinx) -> None:
    """Register the directive, and how signatures are shown."""
    app.add_directive("course-api", CourseApi)
    app.connect("config-inited", configure)


def configure(app: Sphinx, config: Config) -> None:
    """Names stand without their module, and types that are not ours do not link.

    A signature stays one line, which the page wraps: Sphinx's form over several is a list of
    definitions without terms, which a screen reader cannot read.
    """
    config.add_module_names = config.add_function_parentheses = False
    config.toc_object_entries_show_parents = "hide"
    config.nitpick_ignore_regex = [*config.nitpick_ignore_regex, ("py:.*", r"(?!course_utils\.).*")]


# What the sources say


@dataclass(frozen=True)
class Named:
    """One name as the page shows it.

    kind: function, class, method, property, data or module. signature: with its parentheses and the
    result, or empty. file, line: where it is defined. members: of a class.
    """

    name: str
    kind: str
    doc: str
    file: Path
    line: int
    signature: str = ""
    members: tuple["Named", ...] = field(default=())


def source_file(dotted: str, package: Path) -> Path | None:
    """The file of a module of the package, by its dotted name."""
    here = package.joinpath(*dotted.split(".")[1:])
    for file in (here.with_suffix(".py"), here / "__init__.py"):
        if file.is_file():
            return file
    return None


def module_doc(dotted: str, package: Path) -> str:
    """The module's docstring. Raises LookupError where there is no such module."""
    return ast.get_docstring(_tree(dotted, package)) or ""


def public(dotted: str, package: Path) -> list[Named]:
    """What a module offers: the names of its `__all__`, else the public ones that it defines.

    A name that is imported from another module of the package is described from there.
    """
    tree = _tree(dotted, package)
    listed = _listed(tree)
    if listed is None:
        defined = [node for node in tree.body if isinstance(node, Function | ast.ClassDef)]
        listed = [node.name for node in defined if not node.name.startswith("_")]
    return [_find(name, dotted, package) for name in listed]


def _tree(dotted: str, package: Path) -> ast.Module:
    file = source_file(dotted, package)
    if file is None:
        raise LookupError(f"there is no module {dotted}")
    return _parsed(file.read_text(encoding="utf-8"))


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _listed(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            return list(ast.literal_eval(node.value))
    return None


def _find(name: str, dotted: str, package: Path) -> Named:
    """The name as `dotted` has it: defined there, imported there, or a module within."""
    file = source_file(dotted, package)
    tree = _tree(dotted, package)
    assert file is not None
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and node.name == name:
            return _described(node, file)
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
            return Named(name, "data", _doc_beneath(tree, node), file, node.lineno)
    if (inside := source_file(f"{dotted}.{name}", package)) is not None:
        return Named(name, "module", module_doc(f"{dotted}.{name}", package), inside, 1)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _find(alias.name, _absolute(node, dotted, file), package)
    raise LookupError(f"{dotted} lists {name!r}, which it neither defines nor imports")


def _targets(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _doc_beneath(tree: ast.Module, node: ast.stmt) -> str:
    """The string that follows a constant, as its docstring."""
    at = tree.body.index(node) + 1
    if at < len(tree.body):
        match tree.body[at]:
            case ast.Expr(value=ast.Constant(value=str(text))):
                return inspect.cleandoc(text)
    return ""


def _absolute(node: ast.ImportFrom, dotted: str, file: Path) -> str:
    parts = dotted.split(".")
    up = node.level - (file.name == "__init__.py")
    base = parts[: len(parts) - up] if node.level else []
    return ".".join([*base, *([node.module] if node.module else [])])


def _described(node: Function | ast.ClassDef, file: Path) -> Named:
    doc = ast.get_docstring(node) or ""
    if isinstance(node, ast.ClassDef):
        members = tuple(_members(node, file))
        return Named(node.name, "class", doc, file, node.lineno, _class_signature(node), members)
    return Named(node.name, "function", doc, file, node.lineno, _signature(node))


def _members(node: ast.ClassDef, file: Path) -> Iterator[Named]:
    """Public methods and properties, in their order."""
    for part in node.body:
        if isinstance(part, Function) and not part.name.startswith("_"):
            doc = ast.get_docstring(part) or ""
            marks = {ast.unparse(mark).rpartition(".")[2] for mark in part.decorator_list}
            if marks & {"setter", "overload"}:
                continue
            if marks & {"property", "cached_property"}:
                yield Named(part.name, "property", doc, file, part.lineno)
            else:
                skip = 0 if "staticmethod" in marks else 1
                yield Named(part.name, "method", doc, file, part.lineno, _signature(part, skip))


def _signature(node: Function, skip: int = 0) -> str:
    arguments = ast.parse(f"def f({ast.unparse(node.args)}): ...").body[0].args  # a copy
    if skip:
        first = arguments.posonlyargs or arguments.args
        del first[0]
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(arguments)}){result}"


def _class_signature(node: ast.ClassDef) -> str:
    """What the class is called with: of `__init__`, or the fields of a dataclass."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            part.returns = None
            return _signature(part, skip=1)
    if any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
        fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
        shown = [_field(part) for part in fields if not _targets(part) & _private(part)]
        return f"({', '.join(shown)})"
    return ""


def _private(node: ast.AnnAssign) -> set[str]:
    return {name for name in _targets(node) if name.startswith("_")}


def _field(node: ast.AnnAssign) -> str:
    text = f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}"
    if node.value is None:
        return text
    return f"{text} = {_default(node.value)}"


def _default(value: ast.expr) -> str:
    """A field's default; of one that a call describes, such as `setting(0.1, "what for")`, the first
    argument, and of `field(...)`, which has none, three dots."""
    if not isinstance(value, ast.Call):
        return ast.unparse(value)
    return ast.unparse(value.args[0]) if value.args else "..."


# What the page says


class CourseApi(SphinxDirective):
    """``{course-api} course_utils.meters``; ``names``: only these; ``without``: all but these."""

    required_arguments = 1
    option_spec: ClassVar = dict.fromkeys(("names", "without"), directives.unchanged_required)

    def run(self) -> list[nodes.Node]:
        """The module's docstring and its names."""
        dotted, package = self.arguments[0], engine.package()
        wanted = self.options.get("names", "").split()
        without = self.options.get("without", "").split()
        offered = public(dotted, package)
        found = [one for one in offered if one.name in wanted or not wanted]
        found = [one for one in found if one.name not in without]
        absent = {*wanted, *without} - {one.name for one in offered}
        if absent:
            raise self.error(f"{dotted} has no {', '.join(sorted(absent))}")
        for file in {source_file(dotted, package), *(one.file for one in found)}:
            self.env.note_dependency(str(file))
        text = "" if wanted else as_markdown(module_doc(dotted, package)) + "\n\n"
        text += "\n\n".join(described(one, package) for one in found)
        holder = nodes.container(classes=["course-api"])
        lines = StringList(text.split("\n"), source=self.arguments[0])
        before = self.env.ref_context.get("py:module")
        self.env.ref_context["py:module"] = dotted  # its names are the ones that signatures mean
        self.state.nested_parse(lines, self.content_offset, holder)
        self.env.ref_context["py:module"] = before
        return [holder]


def described(one: Named, package: Path) -> str:
    """MyST for one name and its members: an object of Sphinx's Python domain, so that it has an anchor."""
    members = (_inner(member) for member in one.members if member.doc)
    body = [as_markdown(one.doc), *members]
    if link := source_link(one, package):
        body.insert(1, link)
    if one.kind == "module":
        return f"`{one.name}`\n: {as_markdown(one.doc.partition(chr(10) * 2)[0])}"
    return markdown.fenced(
        f"py:{one.kind}", one.name + one.signature, "\n\n".join(filter(None, body)), {}
    )


def _inner(member: Named) -> str:
    head = member.name + member.signature
    return markdown.fenced(f"py:{member.kind}", head, as_markdown(member.doc), {})


def source_link(one: Named, package: Path) -> str:
    """A link to the line, once the repository's address is set."""
    from course_utils.settings import settings

    if not settings.repository:
        return ""
    base = settings.repository.removesuffix("/").removesuffix(".git")
    path = one.file.relative_to(package.parent).as_posix()
    return f"[{path}]({base}/blob/main/{path}#L{one.line})"


def as_markdown(doc: str) -> str:
    """A docstring, which is plain text with code in backticks, as Markdown that reads the same."""
    blocks = []
    for block in re.split(r"\n{2,}", doc.strip("\n")):
        if re.match(r" {4}|>>> |``\w+`` {2,}", block):
            blocks.append("```text\n" + inspect.cleandoc(block) + "\n```")
        else:
            parts = INLINE_CODE.split(block)
            parts[::2] = [SPECIAL.sub(r"\\\1", part) for part in parts[::2]]
            blocks.append("".join(parts))
    return "\n\n".join(blocks)
