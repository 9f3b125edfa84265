"""Mutants of the book's code, and a way to find out which of them the checks let live.

`mutants` makes small wrong versions of a function or class, `build` makes an object of one, and
`run` judges many of them, each in a process of its own that can be killed.
"""

import ast
import contextlib
import copy
import ctypes
import faulthandler
import hashlib
import inspect
import json
import linecache
import os
import selectors
import signal
import sys
import textwrap
import time
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from course_utils.processes import pages as forking

# Making mutants -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """One wrong version.

    id: readable and stable: it names the function, the change, and, where several changes read
        alike, which of them in the order of the source. Code outside the function leaves it as is.
    source: the whole definition, changed. line: of the change, counted from the first line of the
        original's source. description: what was done, in words.
    """

    id: str
    source: str
    line: int
    description: str


_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.FloorDiv),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mult, ast.Div),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,),
}
_PAIRS = (
    ("min", "max"),
    ("any", "all"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("minimum", "maximum"),
    ("sum", "mean"),
    ("triu", "tril"),
    ("zeros", "ones"),
    ("zeros_like", "ones_like"),
    ("new_zeros", "new_ones"),
    ("floor", "ceil"),
    ("sin", "cos"),
)
_NAMES = dict(_PAIRS) | {b: a for a, b in _PAIRS}
_BUILTINS = {"min", "max", "any", "all"}  # those of the above that Python has in both forms
_AXES = {"dim", "axis", "dim0", "dim1", "start_dim", "end_dim"}
_MODULES = {"torch", "math", "F", "nn", "np", "itertools", "functools", "operator", "einops"}
_WRAPPERS = {"abs", "float", "int", "round", "sorted", "reversed"}
# Swapping their first two arguments changes nothing.
_SYMMETRIC = {"transpose", "swapaxes", "swapdims", "min", "max", "minimum", "maximum", "gcd", "lcm"}
_DELETE = ast.Pass()


def mutants(source: str) -> list[Mutant]:
    """All mutants of a function or class, given its source (decorators and docstring allowed).

    Docstrings, annotations, decorators, messages of exceptions and strings are left alone. No two
    mutants have the same syntax tree, none has the original's, and all compile.
    """
    tree = ast.parse(textwrap.dedent(source))
    seen = {ast.dump(tree)}
    found: list[Mutant] = []
    ties: Counter[str] = Counter()
    for site in _sites(tree):
        for description, new in _changes(site):
            before, after = _texts(site, new)
            change = f"{before} removed" if new is _DELETE else f"{before} → {after}"
            with _replaced(site, new):
                text = ast.unparse(ast.fix_missing_locations(tree))
            try:
                compile(text, "<mutant>", "exec")
            except (SyntaxError, ValueError):
                continue
            dump = ast.dump(ast.parse(text))
            if dump in seen:
                continue
            seen.add(dump)
            name = f"{site.scope}: {change}"
            ties[name] += 1
            found.append(Mutant(name, text, site.line, description))
    return _numbered(found, ties)


def original(source: str) -> Mutant:
    """The unchanged source as a mutant: judged beside the others, it must survive."""
    tree = ast.parse(textwrap.dedent(source))
    return Mutant(f"{_names_defined(tree)[0]}: unchanged", ast.unparse(tree), 1, "nothing changed")


def _numbered(found: list[Mutant], ties: Counter[str]) -> list[Mutant]:
    nth: Counter[str] = Counter()
    result = []
    for mutant in found:
        nth[mutant.id] += 1
        if ties[mutant.id] > 1:
            mutant = replace(mutant, id=f"{mutant.id} [#{nth[mutant.id]}]")
        result.append(mutant)
    return result


@dataclass(frozen=True)
class _Site:
    """A node and the place where it hangs."""

    node: Any
    parent: Any
    field: str
    index: int | None
    above: tuple["_Site", ...]
    scope: str

    @property
    def line(self) -> int:
        """Of the node, or of what it is in, where a node has none."""
        return getattr(self.node, "lineno", None) or self.above[-1].line


def _sites(tree: ast.Module) -> Iterator[_Site]:
    for index, node in enumerate(tree.body):
        yield from _walk(_Site(node, tree, "body", index, (), ""))


def _walk(site: _Site) -> Iterator[_Site]:
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
                yield from _walk(_Site(child, node, field, index, (*site.above, site), scope))


def _is_docstring(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> bool:
    return (
        field == "body"
        and index == 0
        and isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


class _replaced:
    """Within the block the tree has `new` in the place of the site's node."""

    def __init__(self, site: _Site, new: Any):
        self.site, self.new = site, new

    def __enter__(self) -> None:
        parent, field, index = self.site.parent, self.site.field, self.site.index
        if index is None:
            setattr(parent, field, self.new)
            return
        self.whole = getattr(parent, field)
        rest = [*self.whole[:index], *self.whole[index + 1 :]]
        if self.new is _DELETE and (rest or field != "body"):
            setattr(parent, field, rest)
        else:
            setattr(parent, field, [*self.whole[:index], self.new, *self.whole[index + 1 :]])

    def __exit__(self, *exception: Any) -> None:
        old = self.site.node if self.site.index is None else self.whole
        setattr(self.site.parent, self.site.field, old)


def _texts(site: _Site, new: Any) -> tuple[str, str]:
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
    if new is _DELETE:
        return before, ""
    with _replaced(site, new):
        return before, f"`{_text(replace(site, node=new) if around is site else around)}`"


def _is_terse(site: _Site) -> bool:
    return isinstance(site.node, ast.Constant) or len(_text(site)) < 5


def _text(site: _Site) -> str:
    """The code of a node on one line: of a compound statement its head, of a default its name."""
    node = site.node
    text = ast.unparse(ast.fix_missing_locations(node)).strip()
    if isinstance(node, ast.stmt) and hasattr(node, "body"):
        text = text.splitlines()[0]
    if isinstance(site.parent, ast.arguments):
        text = f"{_parameter(site)}={text}"
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _parameter(site: _Site) -> str:
    """The name of the parameter whose default this is."""
    arguments, index = site.parent, site.index or 0
    if site.field == "kw_defaults":
        return arguments.kwonlyargs[index].arg
    named = [*arguments.posonlyargs, *arguments.args]
    return named[len(named) - len(arguments.defaults) + index].arg


_LONGEST = 72


# What can be done to a node -----------------------------------------------------------------------

_Change = tuple[str, Any]


def _changes(site: _Site) -> Iterator[_Change]:
    node = site.node
    if isinstance(node, ast.stmt):
        yield from _statement(site)
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "negated the condition", _with(node, test=_negated(node.test))
    elif isinstance(node, ast.comprehension):
        for i, test in enumerate(node.ifs):
            ifs = [*node.ifs[:i], _negated(test), *node.ifs[i + 1 :]]
            yield "negated the condition", _with(node, ifs=ifs)
            yield "dropped the condition", _with(node, ifs=[*node.ifs[:i], *node.ifs[i + 1 :]])
    elif isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            yield (
                "flipped a comparison",
                _with(node, ops=_put(node.ops, i, _COMPARISONS[type(op)]())),
            )
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        for operator in _ARITHMETIC.get(type(node.op), ()):
            yield "changed the operator", _with(node, op=operator())
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "swapped and and or", _with(node, op=other)
        for i in range(len(node.values)):
            rest = [*node.values[:i], *node.values[i + 1 :]]
            yield "dropped a condition", rest[0] if len(rest) == 1 else _with(node, values=rest)
    elif isinstance(node, ast.UnaryOp):
        yield from _unary(node)
    elif isinstance(node, ast.Constant):
        yield from _constant(site)
    elif isinstance(node, ast.Subscript):
        yield from _subscript(node)
    elif isinstance(node, ast.Call):
        yield from _call(node)


def _with(node: Any, **fields: Any) -> Any:
    new = copy.copy(node)
    for field, value in fields.items():
        setattr(new, field, value)
    return new


def _put(values: Sequence[Any], index: int, value: Any) -> list[Any]:
    return [*values[:index], value, *values[index + 1 :]]


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def _shifted(node: ast.expr, by: int) -> ast.expr:
    """`node` plus `by`, as one would write it."""
    value = _integer(node)
    if value is not None:
        return ast.Constant(value + by)
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


def _integer(node: ast.expr | None) -> int | None:
    """The value of an integer literal, a negative one too."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _integer(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def _statement(site: _Site) -> Iterator[_Change]:
    node = site.node
    definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    if definition and not site.above:
        return
    if isinstance(node, ast.AnnAssign) and isinstance(site.parent, ast.ClassDef):
        return
    if isinstance(node, ast.Pass | ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal):
        return
    if isinstance(node, ast.Return):
        if node.value is not None and not _is_none(node.value):
            yield "returned None", _with(node, value=ast.Constant(None))
        last = isinstance(site.parent, ast.FunctionDef) and node is site.parent.body[-1]
        if not last:
            yield "dropped a statement", _DELETE
        return
    yield "dropped a statement", _DELETE
    if isinstance(node, ast.With):
        true = ast.Constant(True)
        yield "dropped the context", ast.If(true, node.body, [])
    if isinstance(node, ast.Break):
        yield "went on with the loop", ast.Continue()
    if isinstance(node, ast.Continue):
        yield "left the loop", ast.Break()
    if isinstance(node, ast.AugAssign):
        yield "assigned instead", ast.Assign([node.target], node.value, lineno=node.lineno)
    if isinstance(node, ast.If) and node.orelse:
        yield "dropped the other branch", _with(node, orelse=[])


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _unary(node: ast.UnaryOp) -> Iterator[_Change]:
    value = _integer(node)
    if value is not None:
        yield "changed a constant", ast.Constant(value + 1)
        yield "changed a constant", ast.Constant(value - 1)
    if not isinstance(node.op, ast.UAdd):
        name = {ast.USub: "the minus", ast.Not: "the not", ast.Invert: "the ~"}[type(node.op)]
        yield f"dropped {name}", node.operand


def _constant(site: _Site) -> Iterator[_Change]:
    value = site.node.value
    negative = isinstance(site.parent, ast.UnaryOp) and isinstance(site.parent.op, ast.USub)
    if isinstance(value, bool):
        yield "flipped a flag", ast.Constant(not value)
    elif isinstance(value, int) and not negative:
        yield "changed a constant", ast.Constant(value + 1)
        yield "changed a constant", ast.Constant(value - 1)
    elif isinstance(value, float):
        yield "doubled a constant", ast.Constant(value * 2 if value else 1.0)


def _subscript(node: ast.Subscript) -> Iterator[_Change]:
    """Indices and bounds one further and one less; bounds that are not given stay so."""
    inner = node.slice
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    for i, part in enumerate(parts):
        for description, new in _bounds(part):
            whole = _with(inner, elts=_put(parts, i, new)) if inner is not part else new
            yield description, _with(node, slice=whole)


def _bounds(part: ast.expr) -> Iterator[_Change]:
    if isinstance(part, ast.Slice):
        for bound in ("lower", "upper"):
            value = getattr(part, bound)
            if value is not None:
                for by in (1, -1):
                    yield "shifted a bound", _with(part, **{bound: _shifted(value, by)})
                yield "dropped a bound", _with(part, **{bound: None})
        if part.step is not None:
            yield "dropped the step", _with(part, step=None)
    elif isinstance(part, ast.Name | ast.BinOp | ast.UnaryOp) or _integer(part) is not None:
        for by in (1, -1):
            yield "shifted an index", _shifted(part, by)


def _call(node: ast.Call) -> Iterator[_Change]:
    function = node.func
    name = _called(function)
    method = isinstance(function, ast.Attribute)
    if name in _NAMES and (method or name in _BUILTINS):
        other = _with(function, **{"attr" if method else "id": _NAMES[name]})
        yield f"called {_NAMES[name]} instead", _with(node, func=other)
    if name in {"permute", "movedim"}:
        for i in range(len(node.args) - 1):
            a, b = node.args[i : i + 2]
            yield "swapped two axes", _with(node, args=[*node.args[:i], b, a, *node.args[i + 2 :]])
    elif len(node.args) >= 2 and name not in _SYMMETRIC and not _starred(node.args[:2]):
        first, second, *rest = node.args
        yield "swapped the first two arguments", _with(node, args=[second, first, *rest])
    for i, keyword in enumerate(node.keywords):
        if keyword.arg is None:
            continue
        others = [*node.keywords[:i], *node.keywords[i + 1 :]]
        yield f"dropped {keyword.arg}=", _with(node, keywords=others)
        if keyword.arg in _AXES and _integer(keyword.value) is not None:
            for axis in (0, 1, -1):
                new = _with(keyword, value=ast.Constant(axis))
                yield "changed the axis", _with(node, keywords=_put(node.keywords, i, new))
    yield from _unwrapped(node, name)


def _unwrapped(node: ast.Call, name: str | None) -> Iterator[_Change]:
    """`x.contiguous()` → `x`, `torch.exp(x)` → `x`."""
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if isinstance(owner, ast.Call) and _called(owner.func) == "super":
            return
        if not _is_module(owner):
            if not (isinstance(owner, ast.Name) and owner.id in {"self", "cls"}):
                yield f"dropped .{name}()", owner
        elif node.args and not _starred(node.args[:1]):
            yield f"dropped {name}()", node.args[0]
    elif name in _WRAPPERS and len(node.args) == 1 and not _starred(node.args):
        yield f"dropped {name}()", node.args[0]


def _called(function: ast.expr) -> str | None:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None


def _is_module(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in _MODULES


def _starred(arguments: Sequence[ast.expr]) -> bool:
    return any(isinstance(argument, ast.Starred) for argument in arguments)


# Making objects of them ---------------------------------------------------------------------------


def build(source: str, namespace_of: Any) -> Any:
    """The object that `source` defines; a tuple of them where it defines several.

    The source runs in a fresh copy of the module of `namespace_of` (a module, a function, a class,
    or a tuple of those), made from the module's own text: without jaxtyping's and beartype's
    checks, and so that the module's other functions call the new object too. Modules that it
    imports are shared; run where their import hook is off if they must be unchecked as well.
    """
    module = _module_of(namespace_of)
    namespace = types.ModuleType(module.__name__)
    namespace.__dict__.update(__file__=module.__file__, __package__=module.__package__)
    with _no_jaxtyping_hook():
        exec(_module_code(module.__file__), namespace.__dict__)
    tree = ast.parse(textwrap.dedent(source))
    exec(compile(tree, _remembered(source), "exec"), namespace.__dict__)
    made = tuple(getattr(namespace, name) for name in _names_defined(tree))
    if not made:
        raise ValueError("the source defines no function and no class")
    return made[0] if len(made) == 1 else made


def _module_of(thing: Any) -> types.ModuleType:
    if isinstance(thing, tuple):
        thing = thing[0]
    module = thing if isinstance(thing, types.ModuleType) else inspect.getmodule(thing)
    if module is None or not getattr(module, "__file__", None):
        raise ValueError(f"{thing!r} belongs to no module with a source file")
    return module


@cache
def _module_code(file: str) -> types.CodeType:
    return compile(Path(file).read_text(encoding="utf-8"), file, "exec")


def _remembered(source: str) -> str:
    """A file name under which tracebacks and `inspect` find the source."""
    name = f"<mutant {digest(source)[:12]}>"
    lines = textwrap.dedent(source).splitlines(keepends=True)
    linecache.cache[name] = (len(source), None, lines, name)
    return name


def _names_defined(tree: ast.Module) -> list[str]:
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [node.name for node in tree.body if isinstance(node, definitions)]


class _no_jaxtyping_hook:
    """Within the block modules are imported as they are written."""

    def __enter__(self) -> None:
        self.finders = sys.meta_path[:]
        sys.meta_path[:] = [f for f in self.finders if not _is_jaxtyping(f)]

    def __exit__(self, *exception: Any) -> None:
        sys.meta_path[:] = self.finders


def _is_jaxtyping(finder: Any) -> bool:
    return (getattr(type(finder), "__module__", None) or "").startswith("jaxtyping")


# Judging them -------------------------------------------------------------------------------------

CACHE_VARIABLE = "COURSE_MUTATION_CACHE"
_GIB = 2**30
_MOST_BYTES_READ = 2**20


@dataclass(frozen=True)
class Job:
    """Something to judge. digest: of all that the verdict depends on (see `digest`)."""

    id: str
    digest: str
    payload: Any = None


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    verdict: "killed", "survived", or "error" (the judge itself failed: no verdict).
    rung: what killed it: the judge's word, or "time limit", or "crash".
    detail: what else the judge said, or how the process ended.
    seconds: wall-clock time of the judgement, 0 where it was cached.
    """

    id: str
    verdict: str
    rung: str = ""
    detail: str = ""
    seconds: float = 0.0
    cached: bool = False

    def __str__(self) -> str:
        rung = f": {self.rung}" if self.rung else ""
        return f"{self.verdict}{rung} · {self.id}"


def digest(*parts: str | bytes | Path) -> str:
    """A digest of texts and of the contents of files."""
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part
        data = data.encode() if isinstance(data, str) else data
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def run(
    jobs: Sequence[Job],
    judge: Callable[[Job], dict[str, Any]],
    limit_s: float,
    workers: int = 2,
    *,
    memory_bytes: int = 4 * _GIB,
    warm: Callable[[], object] | None = None,
    report: Callable[[Outcome], object] | None = None,
    cache_dir: Path | None = None,
    here: bool = False,
) -> list[Outcome]:
    """Judge all jobs, each in a forked process of its own; outcomes in the order of the jobs.

    judge: called in the child with the job; it returns `{"killed": bool, "rung": str}`, and may add
        "detail". An exception out of it is an "error", except one that the mutant may well have
        caused (`MemoryError`, `RecursionError`, `SystemExit`): that kills it.
    limit_s: processor seconds, so that a busy machine kills nobody; ten times as many by the clock.
    memory_bytes: how much a child may allocate beyond what it starts with (Linux).
    warm: called once before the first fork, for what should be loaded but once.
    report: called with each outcome as it comes.
    cache_dir: where verdicts are kept by digest; by default `$COURSE_MUTATION_CACHE`, or
        `.cache/mutation` at the root of the repository. Errors, and what an interruption cut
        short, are not kept.
    here: judge in this process, one job after the other, without limits: for a judge whose mutants
        run in other processes anyway (on ranks, which each fork would have to start for itself).

    A process of its own means that no mutant is judged by what another left behind.
    """
    if not (here or hasattr(os, "fork")):
        raise RuntimeError(
            "mutants are judged in forked processes, which this system does not have"
        )
    folder = _cache_folder(cache_dir)
    outcomes: dict[int, Outcome] = {}

    def done(index: int, outcome: Outcome) -> None:
        outcomes[index] = outcome
        if report is not None:
            report(outcome)

    waiting = []
    for index, job in enumerate(jobs):
        known = _read(folder, job, limit_s)
        if known is None:
            waiting.append(index)
        else:
            done(index, known)
    if waiting and warm is not None:
        warm()
    if here:
        for index in waiting:
            outcome = _judged_here(jobs[index], judge)
            _write(folder, jobs[index], outcome, limit_s)
            done(index, outcome)
        return [outcomes[index] for index in range(len(jobs))]
    waiting.reverse()
    running: dict[int, _Child] = {}
    if waiting:
        forking.settle()
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < max(1, workers):
                    index = waiting.pop()
                    child = _Child(jobs[index], judge, limit_s, memory_bytes)
                    running[index] = child
                    selector.register(child.pipe, selectors.EVENT_READ, index)
                for key, _ in selector.select(timeout=0.05):
                    running[key.data].read()
                for index, child in list(running.items()):
                    if child.finished():
                        selector.unregister(child.pipe)
                        del running[index]
                        outcome = child.outcome()
                        _write(folder, jobs[index], outcome, limit_s)
                        done(index, outcome)
        finally:
            for child in running.values():
                child.kill()
    return [outcomes[index] for index in range(len(jobs))]


class _Child:
    """A forked process that judges one job and answers through a pipe."""

    def __init__(self, job: Job, judge: Callable[[Job], dict], limit_s: float, memory: int):
        self.job = job
        self.started = time.monotonic()
        self.deadline = self.started + 10 * limit_s
        self.answer = b""
        self.eof = self.late = False
        self.pipe, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # A forked child of a process with threads: it uses none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _live(job, judge, limit_s, memory, write)
        os.close(write)

    def read(self) -> None:
        data = os.read(self.pipe, 65536)
        self.eof = not data
        if len(self.answer) < _MOST_BYTES_READ:
            self.answer += data

    def finished(self) -> bool:
        self.late = time.monotonic() > self.deadline
        return self.eof or self.late or self.answer.endswith(b"\n")

    def kill(self) -> int:
        """End the process and what it started, and return its status."""
        status = None
        if self.eof and not self.answer:  # it ended by itself: how?
            status = self._status_within(1.0)
        for kill, target in ((os.killpg, self.pid), (os.kill, self.pid)):
            if kill is os.killpg or status is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(target, signal.SIGKILL)
        if status is None:
            _, status = os.waitpid(self.pid, 0)
        os.close(self.pipe)
        return status

    def _status_within(self, seconds: float) -> int | None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return status
            time.sleep(0.002)
        return None

    def outcome(self) -> Outcome:
        status = self.kill()
        verdict = self._verdict(status)
        return replace(verdict, seconds=round(time.monotonic() - self.started, 3))

    def _verdict(self, status: int) -> Outcome:
        id = self.job.id
        if self.answer.endswith(b"\n"):
            try:
                return _judged(id, json.loads(self.answer))
            except (ValueError, KeyError):  # the mutant wrote into the pipe
                return Outcome(id, "killed", "crash", "broke off its answer")
        if self.late:
            return Outcome(id, "killed", "time limit", "by the clock")
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            if number in (signal.SIGPROF, signal.SIGXCPU):
                return Outcome(id, "killed", "time limit")
            if number == signal.SIGKILL:
                return Outcome(id, "error", detail="the process was killed from outside")
            return Outcome(id, "killed", "crash", signal.Signals(number).name)
        return Outcome(id, "killed", "crash", f"left with code {os.waitstatus_to_exitcode(status)}")


def _judged(id: str, answer: dict[str, Any]) -> Outcome:
    if "error" in answer:
        return Outcome(id, "error", detail=answer["error"])
    if not answer["killed"]:
        return Outcome(id, "survived", detail=answer.get("detail", ""))
    return Outcome(id, "killed", answer.get("rung", ""), answer.get("detail", ""))


def _live(
    job: Job, judge: Callable[[Job], dict[str, Any]], limit_s: float, memory: int, write: int
) -> None:
    """The life of the child; it does not return."""
    try:
        _confine(limit_s, memory)
        answer = _answer(job, judge)
    except BaseException as error:
        answer = {"killed": True, "rung": "crash", "detail": type(error).__name__}
    try:
        data = json.dumps(answer, default=str).encode() + b"\n"
        while data:
            data = data[os.write(write, data) :]
    finally:
        os._exit(0)


def _answer(job: Job, judge: Callable[[Job], dict[str, Any]]) -> dict[str, Any]:
    """What the judge says, and what an exception out of it means."""
    try:
        answer = dict(judge(job))
        return {"killed": bool(answer["killed"])} | answer
    except (MemoryError, RecursionError) as error:
        return {"killed": True, "rung": "crash", "detail": type(error).__name__}
    except Exception:
        return {"error": traceback.format_exc()}


def _judged_here(job: Job, judge: Callable[[Job], dict[str, Any]]) -> Outcome:
    start = time.monotonic()
    outcome = _judged(job.id, _answer(job, judge))
    return replace(outcome, seconds=round(time.monotonic() - start, 3))


def _confine(limit_s: float, memory: int) -> None:
    """Bound what the child can do to the machine, and cut it off from the terminal."""
    import resource

    os.setpgid(0, 0)  # an interrupt from the keyboard is the parent's to handle
    for name in ("SIGINT", "SIGTERM", "SIGPROF", "SIGALRM"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    faulthandler.disable()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    sys.stdout = sys.stderr = os.fdopen(null, "w", encoding="utf-8")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with the parent
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    signal.setitimer(signal.ITIMER_PROF, limit_s)


def _cache_folder(given: Path | None) -> Path:
    root = Path(__file__).parents[2]
    return given or Path(os.environ.get(CACHE_VARIABLE) or root / ".cache" / "mutation")


def _cache_file(folder: Path, job: Job) -> Path:
    name = digest(job.digest)
    return folder / name[:2] / f"{name}.json"


def _read(folder: Path, job: Job, limit_s: float) -> Outcome | None:
    """The cached outcome. One that ran out of time counts only for limits as short as its own."""
    try:
        kept = json.loads(_cache_file(folder, job).read_text(encoding="utf-8"))
        if kept["rung"] == "time limit" and limit_s > kept["limit_s"]:
            return None
        return Outcome(job.id, kept["verdict"], kept["rung"], kept["detail"], cached=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(folder: Path, job: Job, outcome: Outcome, limit_s: float) -> None:
    if outcome.verdict == "error":
        return
    file = _cache_file(folder, job)
    file.parent.mkdir(parents=True, exist_ok=True)
    kept = asdict(outcome) | {"limit_s": limit_s}
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    temporary.replace(file)
