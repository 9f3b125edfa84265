"""Is a mistake still diagnosed as itself when it is written in another way?

Each declared mistake is rewritten mechanically, one change of spelling at a time, and graded.

    python tests/bench/spellings.py strides lora      # these chapters; without names, all
"""

import ast
import inspect
import linecache
import symtable
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from course_utils.grading import every, grade

Function = ast.FunctionDef
Rewrite = Callable[[Function], None]


def own_names(function: Function) -> set[str]:
    """The variables that only this function's own assignments bind."""
    (table,) = symtable.symtable(ast.unparse(function), "", "exec").get_children()
    found = {
        s.get_name()
        for s in table.get_symbols()
        if s.is_local() and not (s.is_parameter() or s.is_imported() or s.is_namespace())
    }
    inner = list(table.get_children())
    for scope in inner:
        inner += scope.get_children()
        found -= {s.get_name() for s in scope.get_symbols() if s.is_local() or s.is_parameter()}
    caught = {n.name for n in ast.walk(function) if isinstance(n, ast.ExceptHandler)}
    matched = {getattr(n, "name", None) for n in ast.walk(function) if isinstance(n, ast.pattern)}
    return found - caught - matched


def names(node: ast.AST, context: type[ast.expr_context]) -> list[str]:
    """The names that are read, or bound, in a statement."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    return [n.id for n in found if isinstance(n.ctx, context)]


def blocks(function: Function) -> Iterator[list[ast.stmt]]:
    """Every list of statements in it."""
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, field, None), list):
                yield block


def checks(statement: ast.stmt) -> bool:
    """Is it `if …: raise …`?"""
    return isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Raise)


# ------------------------------------------------------------------ changes of spelling


def rename(function: Function) -> None:
    """Local variables have other names."""
    own = own_names(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id in own:
            node.id = f"my_{node.id}"


def reorder(function: Function) -> None:
    """Neighbouring assignments of which neither uses the other's change places."""
    for block in blocks(function):
        at = 0
        while at + 1 < len(block):
            one, other = block[at : at + 2]
            if independent(one, other):
                block[at : at + 2] = [other, one]
                at += 1
            at += 1


def independent(one: ast.stmt, other: ast.stmt) -> bool:
    """Two plain assignments to names, of which at most one calls something."""
    if not all(isinstance(s, ast.Assign) and simple(s) for s in (one, other)):
        return False
    if all(any(isinstance(n, ast.Call) for n in ast.walk(s)) for s in (one, other)):
        return False
    bound = set(names(one, ast.Store)), set(names(other, ast.Store))
    read = set(names(one, ast.Load)), set(names(other, ast.Load))
    return not (bound[0] & (bound[1] | read[1]) or bound[1] & read[0])


def simple(assignment: ast.Assign) -> bool:
    return all(isinstance(target, ast.Name) for target in assignment.targets)


def extract(function: Function) -> None:
    """What is returned is computed by a helper within."""
    for block in blocks(function):
        last = block[-1] if block else None
        if isinstance(last, ast.Return) and isinstance(last.value, ast.expr):
            if any(isinstance(n, ast.Yield | ast.Await | ast.NamedExpr) for n in ast.walk(last)):
                continue
            if "super" in names(last, ast.Load):  # it asks the method in which it stands
                continue
            helper = ast.parse("def helper():\n    return None\nreturn helper()").body
            helper[0].body[0].value = last.value  # type: ignore[attr-defined]
            block[-1:] = helper


def inline(function: Function) -> None:
    """A variable that the next statement alone uses, once, stands there as what it was."""
    own = own_names(function)
    used = Counter(names(function, ast.Load)), Counter(names(function, ast.Store))
    for block in blocks(function):
        for at in reversed(range(len(block) - 1)):
            match block[at]:
                case ast.Assign([ast.Name(name)], value) if name in own:
                    once = used[0][name] == used[1][name] == 1
                    after = block[at + 1]
                    if once and name in names(after, ast.Load) and not keeps(after):
                        block[at : at + 2] = [Inlined(name, value).visit(after)]


def keeps(statement: ast.stmt) -> bool:
    """Does it have statements of its own, or an f-string, which takes no backslash before 3.12?"""
    return hasattr(statement, "body") or any(
        isinstance(node, ast.JoinedStr) for node in ast.walk(statement)
    )


class Inlined(ast.NodeTransformer):
    def __init__(self, name: str, value: ast.expr) -> None:
        self.name, self.value = name, value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.value if node.id == self.name else node


def move_check(function: Function) -> None:
    """Checks at the top come just before the end."""
    top = [s for s in function.body[:-1] if checks(s)]
    rest = [s for s in function.body[:-1] if not checks(s)]
    function.body[:-1] = rest + top


def reword(function: Function) -> None:
    """Errors are of the same class and say something else."""
    for node in ast.walk(function):
        match node:
            case ast.Raise(ast.Call(ast.Name() as kind)) | ast.Raise(ast.Name() as kind):
                node.exc = ast.Call(kind, [ast.Constant("no")], [])


REWRITES: list[Rewrite] = [rename, reorder, extract, inline, move_check, reword]


# ------------------------------------------------------------------ a mistake, written otherwise


class NoSource(ValueError):
    """An object whose source is not to be found, or that needs what stands around it."""


def functions_of(subject: Any) -> list[FunctionType]:
    """The functions that its own source defines."""
    if isinstance(subject, FunctionType):
        return [subject]
    if inspect.isclass(subject):
        own = [getattr(value, "__func__", value) for value in vars(subject).values()]
        return [
            f for f in own if isinstance(f, FunctionType) and f.__qualname__.endswith(f.__name__)
        ]
    return []


def unwrapped(function: FunctionType) -> FunctionType:
    """What decorators hide. Raises NoSource for a wrapper that an exercise declares: it is the slip."""
    inner = inspect.unwrap(function)
    if inner is not function and "exercises" in Path(function.__code__.co_filename).parts:
        raise NoSource
    return inner


def of_torch(decorator: ast.expr) -> bool:
    """`@torch.no_grad()` belongs to the answer; what declares it to an exercise does not."""
    return ast.unparse(decorator).startswith("torch.")


def node_of(subject: Any) -> ast.FunctionDef | ast.ClassDef:
    """Its definition, with torch's decorators alone. Raises NoSource."""
    functions = [unwrapped(f) for f in functions_of(subject)]
    if not functions or any(set(f.__code__.co_freevars) - {"__class__"} for f in functions):
        raise NoSource
    line, file = functions[0].__code__.co_firstlineno, functions[0].__code__.co_filename
    kind = ast.ClassDef if inspect.isclass(subject) else ast.FunctionDef
    for node in ast.walk(ast.parse("".join(linecache.getlines(file)))):
        if isinstance(node, kind) and node.name == subject.__name__:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= line <= (node.end_lineno or 0):
                node.decorator_list = [d for d in node.decorator_list if of_torch(d)]
                return node
    raise NoSource


def rewritten(subject: Any, rewrite: Rewrite) -> Any:
    """The object after the rewrite, None if that changes nothing. Raises NoSource."""
    node = node_of(subject)
    before = ast.unparse(node)
    for function in [n for n in (node, *node.body) if isinstance(n, ast.FunctionDef)]:
        if function is node or isinstance(node, ast.ClassDef):
            rewrite(function)
    source = ast.unparse(ast.fix_missing_locations(node))
    if source == before:
        return None
    name = f"<{rewrite.__name__}, {abs(hash(source))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = dict(inspect.unwrap(functions_of(subject)[0]).__globals__)
    try:
        exec(compile(source, name, "exec", dont_inherit=True), space)
    except NameError as error:  # a class that needs what stood around it
        raise NoSource from error
    return space[node.name]


def otherwise(subject: Any, rewrite: Rewrite) -> list[Any] | None:
    """The objects of an answer, rewritten; None if nothing changes."""
    parts = list(subject.values()) if isinstance(subject, dict) else [subject]
    found = [rewritten(part, rewrite) for part in parts]
    if all(one is None for one in found):
        return None
    return [part if one is None else one for part, one in zip(parts, found, strict=True)]


# ------------------------------------------------------------------ the table


def measure(chapter: str) -> dict[str, Counter[str]]:
    """By rewrite: mistakes rewritten, named as themselves, not named, named as another, passed."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for key, exercise in every().items():
        if not key.startswith(chapter + ".") or exercise.needs:
            continue
        for mistake in exercise.mistakes:
            found["mistakes"]["all"] += 1
            for rewrite in REWRITES:
                try:
                    objects = otherwise(mistake.subject, rewrite)
                except NoSource:
                    found["mistakes"]["without a source of their own"] += 1
                    break
                if objects is None:
                    continue
                verdict = grade(exercise, *objects)
                says = {mistake.says: "itself", None: "nothing"}.get(verdict.diagnosis, "another")
                found[rewrite.__name__]["passed" if verdict.outcome == "passed" else says] += 1
                if says != "itself" and "-v" in sys.argv:
                    print(f"  {key}, {rewrite.__name__}: {mistake.says[:70]} -> {says}")
    return found


def main() -> None:
    chapters = [name for name in sys.argv[1:] if name != "-v"]
    columns = [rewrite.__name__ for rewrite in REWRITES]
    print("named as itself / rewritten".ljust(40) + "".join(c.rjust(12) for c in (*columns, "all")))
    for chapter in chapters or sorted({key.partition(".")[0] for key in every()}):
        found = measure(chapter)
        each = [(found[c]["itself"], found[c].total()) for c in columns]
        each.append((sum(x for x, _ in each), sum(y for _, y in each)))
        kinds = sum((found[c] for c in columns), Counter())
        cells = "".join(f"{x}/{y}".rjust(12) for x, y in each)
        print(f"{chapter}, {found['mistakes']['all']} mistakes".ljust(40) + cells, flush=True)
        print(f"  {dict(kinds)}, {dict(found['mistakes'])}", flush=True)


if __name__ == "__main__":
    main()
