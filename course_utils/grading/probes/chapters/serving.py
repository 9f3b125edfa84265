"""Probes of chapter 28's server: blocks that are taken and given back, and tables that share them.

A case has the sizes by name and the steps as tuples, a method's name and what it is given. What a step
does is seen under the code that makes it. Beside each object another one of its class is used, so that
what belongs to the class is noticed.
"""

from typing import Any

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import if_changed
from course_utils.grading.driving.probe import probe

from .modules import raised_name

_GIVEN = "the tokens that it was given, afterwards"


def _written(step: tuple[Any, ...]) -> str:
    name, *given = step
    return f"{name}({', '.join(map(repr, given))})"


def _done(thing: Any, step: tuple[Any, ...]) -> dict[str, Any]:
    """What a step returns or raises, and whether it changed a list that it got."""
    name, *given = step
    given = [list(x) if isinstance(x, tuple | list) else x for x in given]
    before = [list(x) if isinstance(x, list) else x for x in given]
    seen: dict[str, Any]
    try:
        result = getattr(thing, name)(*given)
    except Exception as error:
        seen = {"raises": "MemoryError" if isinstance(error, MemoryError) else raised_name(error)}
    else:
        seen = {"returns": list(result) if isinstance(result, list) else result}
    if any(isinstance(x, list) for x in given):
        seen[_GIVEN] = if_changed(before, given)
    return seen


def _pool(pool: Any) -> dict[str, Any]:
    return {"uses": list(pool.uses), "free": len(pool)}


def _numbered(case: Case) -> list[tuple[str, tuple[Any, ...]]]:
    return [(f"step {i}, {_written(step)}: ", step) for i, step in enumerate(case.args, start=1)]


@probe
def pooled(subject: dict[str, Any], case: Case) -> dict[str, Any]:
    """A number of blocks, or a pool of n_blocks that is taken from; the pair is a function and a class."""
    blocks_for, pool_of = subject.values()
    if "n_blocks" not in case.kwargs:
        return {"result": blocks_for(*case.args)}
    other = pool_of(3)
    pool = pool_of(case.kwargs["n_blocks"])
    seen: dict[str, Any] = {"new": _pool(pool)}
    for at, step in _numbered(case):
        seen |= {f"{at}{name}": value for name, value in _done(pool, step).items()}
        seen |= {f"{at}{name}": value for name, value in _pool(pool).items()}
    return seen | {"another pool of 3 blocks": _pool(other)}


def _called_pooled(name: str, case: Case) -> str:
    if "n_blocks" not in case.kwargs:
        return f"paged_kv_blocks{case.args}"
    steps = "; ".join(_written(step) for step in case.args) or "nothing"
    return f"BlockPool({case.kwargs['n_blocks']}), then {steps}"


pooled.called = _called_pooled


@probe
def tabled(subject: Any, case: Case) -> dict[str, Any]:
    """Tables over n_blocks of block_size, after each step."""
    sizes = case.kwargs["n_blocks"], case.kwargs["block_size"]
    other = subject(3, 2)
    other.open("other", [8, 9, 7])
    other.grow("other", 3)
    tables = subject(*sizes)
    seen: dict[str, Any] = {"new: tables": dict(tables.tables), "new: pool": _pool(tables.pool)}
    for at, step in _numbered(case):
        seen |= {f"{at}{name}": value for name, value in _done(tables, step).items()}
        held = {str(name): list(table) for name, table in tables.tables.items()}
        seen |= {f"{at}tables": held, f"{at}pool": _pool(tables.pool)}
    return seen | {"another one: table": list(other.tables["other"])}


def _called_tabled(name: str, case: Case) -> str:
    sizes = f"{name}(n_blocks={case.kwargs['n_blocks']}, block_size={case.kwargs['block_size']})"
    few = [_written(step) for step in case.args]
    few = few if len(few) <= 14 else [*few[:12], f"… {len(few) - 12} more"]
    return f"{sizes}, then {'; '.join(few) or 'nothing'}"


tabled.called = _called_tabled
