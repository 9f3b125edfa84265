"""Small wrong versions of a function or class, made from its source."""

import ast
import textwrap
from collections import Counter
from dataclasses import dataclass, replace

from .changes import changes
from .sites import DELETE, replaced, sites, texts


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


def mutants(source: str) -> list[Mutant]:
    """All mutants of a function or class, given its source (decorators and docstring allowed).

    Docstrings, annotations, decorators, messages of exceptions and strings are left alone. No two
    mutants have the same syntax tree, none has the original's, and all compile.
    """
    tree = ast.parse(textwrap.dedent(source))
    seen = {ast.dump(tree)}
    found: list[Mutant] = []
    ties: Counter[str] = Counter()
    for site in sites(tree):
        for description, new in changes(site):
            before, after = texts(site, new)
            change = f"{before} removed" if new is DELETE else f"{before} → {after}"
            with replaced(site, new):
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
    return Mutant(f"{names_defined(tree)[0]}: unchanged", ast.unparse(tree), 1, "nothing changed")


def _numbered(found: list[Mutant], ties: Counter[str]) -> list[Mutant]:
    nth: Counter[str] = Counter()
    result = []
    for mutant in found:
        nth[mutant.id] += 1
        if ties[mutant.id] > 1:
            mutant = replace(mutant, id=f"{mutant.id} [#{nth[mutant.id]}]")
        result.append(mutant)
    return result


def names_defined(tree: ast.Module) -> list[str]:
    """Names of the functions and classes that a module defines."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return [node.name for node in tree.body if isinstance(node, definitions)]
