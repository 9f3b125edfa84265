"""What a recording depends on: a digest of the code that made it.

A recording is current as long as its digest is the present one. What counts:

- the cell itself, and of the code above it what it uses: functions, classes, imports, plain constants, and
  what those use in turn. Where it uses anything else that was computed above (a tensor, a model, a list),
  *every* code cell above counts, because any of them may have changed that value.
- of ``course_utils``, the definitions that it uses and those that they use; of an exercise, the book's solution.
- calls above that seed or set something in an imported library that it uses (``torch.manual_seed(0)``).

What does not: Markdown, comments, docstrings, formatting, asserts, outputs, cells further down, the set-up cell,
``predict(…)`` and its like, and the versions of torch and the driver, which the stamp says. The digest is of the
parsed code, so it is the same on every Python of the course.
"""

import ast
import builtins
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

ROOM = Path(__file__).resolve().parents[1]
VERBS = ("predict", "quiz", "hint", "solution", "progress", "provenance")
"""Of the notebook's verbs, those that compute nothing that a later cell could use."""

UNFOLLOWED = ("course_utils.grading", "course_utils.questions", "course_utils.recordings")
"""They judge, ask and keep; no output that is recorded comes from them."""

SETS = re.compile(r"(manual_seed|seed|use_.*|set_.*)$|manual_seed_all$")
BUILTINS = {*dir(builtins), "__name__", "__file__", "display", "get_ipython"}
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SCOPES = (*FUNCTION, ast.ClassDef)
COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def digest_of_cells(sources: Sequence[str]) -> str:
    """Digest of what the outputs of the last of these cells depend on.

    sources: code cells in order, solutions in place of stubs, without the set-up cell.
    """
    *above, own = [parse(source) for source in sources]
    statements = [statement for cell in above for statement in cell if not _idle(statement)]
    return _digest(["cell", *map(canonical, own)], _reached(statements, own))


def digest_of_function(module: str, name: str) -> str:
    """Digest of a definition of the course's own module and of what it uses there."""
    return _digest(["function"], _module_parts(module, (name,), set()))


def parse(source: str) -> list[ast.stmt]:
    """The statements of a cell. Magics and shell commands count by their text."""
    lines = source.split("\n")
    if source.lstrip().startswith("%%"):
        return [_text(source)]
    plain = [f"{_indent(line)}{line.strip()!r}" if _magic(line) else line for line in lines]
    try:
        return ast.parse("\n".join(plain)).body
    except SyntaxError:
        return [_text(source)]


def _magic(line: str) -> bool:
    return re.match(r"\s*[%!]\w", line) is not None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _text(source: str) -> ast.stmt:
    return ast.Expr(ast.Constant(source.strip()), lineno=0, col_offset=0)


def _idle(statement: ast.stmt) -> bool:
    """Does the statement compute nothing that a later cell could use?"""
    match statement:
        case ast.Assert():
            return not any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement))
        case ast.Expr(value=ast.Call(func=ast.Name(id=verb))):
            return verb in VERBS
    return False


def canonical(node: object) -> str:
    """Code as text that is the same on every Python: no positions, comments, docstrings or defaults."""
    if isinstance(node, ast.AST):
        fields = []
        for name in sorted(node._fields):
            value = getattr(node, name, None)
            if name == "body" and isinstance(node, SCOPES) and isinstance(value, list):
                value = _without_docstring(value)
            if name in ("ctx", "kind", "type_comment", "type_ignores"):
                continue
            if value is None and not isinstance(node, ast.Constant):
                continue
            if isinstance(node, ast.JoinedStr):
                value = _joined(node.values)
            if value != []:
                fields.append(f"{name}={canonical(value)}")
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(canonical, node))}]"
    return repr(node)


def _joined(parts: list[ast.expr]) -> list[object]:
    """The parts of an f-string, text beside text made one: Python 3.12 cuts it elsewhere."""
    made: list[object] = []
    for part in parts:
        match part:
            case ast.Constant(value=str(text)) if made and isinstance(made[-1], str):
                made[-1] += text
            case ast.Constant(value=str(text)):
                made += [text] if text else []
            case _:
                made.append(part)
    return made


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body


def _digest(*parts: Iterable[str]) -> str:
    state = hashlib.sha256()
    for part in parts:
        for text in part:
            state.update(text.encode() + b"\0")
        state.update(b"\1")
    return state.hexdigest()[:16]


# What a cell reaches


def _reached(above: list[ast.stmt], own: list[ast.stmt]) -> list[str]:
    """The parts of the code above that the cell uses, and of the course's modules."""
    bound: dict[str, list[ast.stmt]] = {}
    for statement in above:
        for name in binds(statement):
            bound.setdefault(name, []).append(statement)
    known = BUILTINS.union(*map(binds, own))
    used: list[ast.stmt] = []
    waiting, seen = sorted(free(own)), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in bound and name not in known:
            return _everything(above, own)
        makers = [*bound.get(name, ()), *(s for s in above if name in _set_by(s))]
        for statement in makers:
            if name not in _set_by(statement) and not _fixed(statement):
                return _everything(above, own)
            if statement not in used:
                used.append(statement)
                if not isinstance(statement, ast.Import | ast.ImportFrom):
                    waiting += free([statement])
    parts = []
    visited: set[tuple[str, str]] = set()
    for statement in sorted(used, key=above.index):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            parts += _import_parts(statement, seen, "", visited)
        else:
            parts.append(canonical(statement))
    return parts


def _everything(above: list[ast.stmt], own: list[ast.stmt]) -> list[str]:
    """All the code above: the cell uses a value, and each cell may have changed it."""
    names = free([*above, *own]) | {name for s in [*above, *own] for name in _loads(s)}
    parts = []
    visited: set[tuple[str, str]] = set()
    for statement in above:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            parts += _import_parts(statement, names, "", visited)
        else:
            parts.append(canonical(statement))
    for statement in own:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            parts += _import_parts(statement, names, "", visited)
    return ["everything above", *parts]


def _fixed(statement: ast.stmt) -> bool:
    """Is what the statement binds the same whenever one looks?"""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return True
        case ast.Import() | ast.ImportFrom():
            return all(alias.name != "*" for alias in statement.names)
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
            return isinstance(value, ast.Lambda) or _constant(value)
    return False


def _constant(value: ast.expr) -> bool:
    match value:
        case ast.Constant():
            return True
        case ast.UnaryOp(operand=operand):
            return _constant(operand)
        case ast.BinOp(left=left, right=right):
            return _constant(left) and _constant(right)
        case ast.Tuple(elts=elements):
            return all(_constant(element) for element in elements)
        case ast.Attribute(value=ast.Name(id="torch")):  # a dtype
            return True
    return False


def _set_by(statement: ast.stmt) -> set[str]:
    """Names of modules (or classes) in which a statement at the top level sets something."""
    roots = set()
    nodes = list(_outside_functions(statement))
    managers = [item.context_expr for n in nodes if isinstance(n, ast.With) for item in n.items]
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr=attribute)) if (
                SETS.match(attribute) and node not in managers  # those put back what they set
            ):
                roots.add(_root(node.func))
            case (
                ast.Attribute(ctx=ast.Store() | ast.Del())
                | ast.Subscript(ctx=ast.Store() | ast.Del())
            ):
                roots.add(_root(node))
    return roots - {""}


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


# Names


def binds(statement: ast.stmt) -> set[str]:
    """Names that a statement at the top level binds."""
    found = set()
    for node in _outside_functions(statement):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.add(name)
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {(alias.asname or alias.name).split(".")[0] for alias in names}
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                found.add(name)
            case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                found.add(name)
    return found


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a statement, the insides of functions, classes and comprehensions left out."""
    yield node
    if not isinstance(node, (*SCOPES, *COMPREHENSION)):
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)
    elif isinstance(node, COMPREHENSION):
        yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))


def _loads(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def free(statements: Sequence[ast.stmt], bound: Iterable[str] = ()) -> set[str]:
    """Names that the statements read from outside: read before they are surely bound here."""
    known, found = set(bound), set()
    for statement in statements:
        match statement:
            case (
                ast.If(test=test, body=body, orelse=orelse)
                | ast.While(test=test, body=body, orelse=orelse)
            ):
                found |= _reads(test) - known
                found |= free(body, known) | free(orelse, known)
                if isinstance(statement, ast.If) and orelse:
                    known |= _surely(body) & _surely(orelse)
            case ast.For(target=target, iter=items, body=body, orelse=orelse):
                found |= _reads(items) - known
                found |= (_reads(target) - known) | free(body, known | _targets(target))
                found |= free(orelse, known)
            case ast.With(items=managers, body=body):
                for manager in managers:
                    found |= _reads(manager.context_expr) - known
                    if manager.optional_vars is not None:
                        known |= _targets(manager.optional_vars)
                found |= free(body, known)
                known |= _surely(body)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                found |= free(body, known) | free([*body, *orelse], known)
                for handler in handlers:
                    found |= (_reads(handler.type) if handler.type else set()) - known
                    found |= free(handler.body, known | {handler.name or ""})
                found |= free(final, known)
            case _:
                found |= _reads(statement) - known
                known |= binds(statement)
    return found


def _surely(body: Sequence[ast.stmt]) -> set[str]:
    simple = [s for s in body if not isinstance(s, ast.If | ast.For | ast.While | ast.Try)]
    return {name for statement in simple for name in binds(statement)}


def _targets(target: ast.expr) -> set[str]:
    return {
        n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _reads(node: ast.AST) -> set[str]:
    """Names that a node reads, those of inner scopes left out."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            return {name}
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            return {name} | _reads(value)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            arguments = node.args
            outside = [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]
            names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            names += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
            own = {argument.arg for argument in names}
            outside += [argument.annotation for argument in names if argument.annotation]
            if isinstance(node, ast.Lambda):
                inside = _reads(node.body)
            else:
                outside += [*node.decorator_list, *([node.returns] if node.returns else [])]
                own |= {node.name} | {name for s in node.body for name in binds(s)}
                own -= {n for s in ast.walk(node) if isinstance(s, ast.Global) for n in s.names}
                inside = set().union(*map(_reads, node.body))
            return (inside - own) | set().union(*map(_reads, outside))
        case ast.ClassDef():
            outside = [*node.bases, *(k.value for k in node.keywords), *node.decorator_list]
            inside = set().union(*map(_reads, node.body)) - {node.name}
            return inside | set().union(*map(_reads, outside))
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            own = set().union(*(_targets(g.target) for g in node.generators))
            first = _reads(node.generators[0].iter)
            inside = set().union(*map(_reads, ast.iter_child_nodes(node)))
            return first | (inside - own)
        case ast.Global(names=names):
            return set(names)
    return set().union(*map(_reads, ast.iter_child_nodes(node)))


# The course's own modules


def _import_parts(
    statement: ast.Import | ast.ImportFrom,
    wanted: set[str] | None,
    here: str,
    visited: set[tuple[str, str]],
) -> list[str]:
    """What is imported of `wanted` (None: all of it), and for the course's own modules its code.

    here: the module that imports, for relative imports; empty in a notebook.
    """
    parts: list[str] = []
    for alias in statement.names:
        bound = (alias.asname or alias.name).split(".")[0]
        if wanted is not None and bound not in wanted and alias.name != "*":
            continue
        if isinstance(statement, ast.Import):
            module, name = alias.name, "*"
        else:
            module, name = _absolute(statement, here), alias.name
        parts.append(f"import {module} {name} as {bound}")
        if module == ROOM.name and name != "*":
            module, name = _home_of(name) or (module, name)
        if module.split(".")[0] != ROOM.name or module.startswith(UNFOLLOWED):
            continue
        if name != "*" and _file(f"{module}.{name}"):
            module, name = f"{module}.{name}", "*"
        if not module.startswith(UNFOLLOWED):
            parts += _module_parts(module, (name,), visited)
    return parts


def _absolute(statement: ast.ImportFrom, here: str) -> str:
    if not statement.level:
        return statement.module or ""
    parts = here.split(".")
    if _file(here) and _file(here).name == "__init__.py":  # type: ignore[union-attr]
        parts.append("__init__")
    base = parts[: -statement.level]
    return ".".join([*base, *([statement.module] if statement.module else [])])


def _home_of(verb: str) -> tuple[str, str] | None:
    """Where a verb of the package really lives: they are loaded when first used."""
    from course_utils import _HOMES

    return next(((home, verb) for home, verbs in _HOMES.items() if verb in verbs), None)


def _file(module: str) -> Path | None:
    path = ROOM.parent.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


def _module_parts(module: str, names: Sequence[str], visited: set[tuple[str, str]]) -> list[str]:
    """The definitions of `names` in a module of the course (``*``: all), and what they use."""
    file = _file(module)
    if file is None:
        return [f"no module {module}"]
    statements = _statements(file, file.stat().st_mtime_ns)
    bound: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        for name in binds(statement):
            bound.setdefault(name, []).append(statement)
    waiting = list(bound) if "*" in names else list(names)
    found: dict[int, list[str]] = {}
    while waiting:
        name = waiting.pop()
        if (module, name) in visited:
            continue
        visited.add((module, name))
        makers = [*bound.get(name, ()), *(s for s in statements if name in _set_by(s))]
        if not makers and name not in BUILTINS:
            found.setdefault(-1, []).append(f"no {name} in {module}")
        for statement in makers:
            at = statements.index(statement)
            if isinstance(statement, ast.Import | ast.ImportFrom):
                found.setdefault(at, []).extend(_import_parts(statement, {name}, module, visited))
            elif at not in found:
                found[at] = [f"{module}: {canonical(statement)}"]
                waiting += free([statement])
    return [part for at in sorted(found) for part in sorted(found[at])]


@lru_cache
def _statements(file: Path, _mtime: int) -> list[ast.stmt]:
    return ast.parse(file.read_bytes()).body
