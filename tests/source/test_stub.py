"""Stubs with what an answer may cost in their docstring."""

import ast

import pytest

from course_utils.source.stub import COSTS, with_costs

ONE_LINE = 'def f(x):\n    """Half of x."""\n    return x / 2'
SEVERAL = 'class C:\n    """A class.\n\n    x: (N,).\n    """\n\n    def f(self):\n        pass'


@pytest.mark.parametrize("source", [ONE_LINE, SEVERAL])
def test_costs_stand_at_the_end_of_the_docstring(source):
    told = with_costs(source, ["no loop", "a view"])
    before, after = (ast.parse(text).body[0] for text in (source, told))
    said = ast.get_docstring(before).rstrip()
    assert ast.get_docstring(after) == f"{said}\n\n{COSTS}\n- no loop\n- a view"
    assert ast.unparse(after.body[1:]) == ast.unparse(before.body[1:])


def test_without_costs_nothing_changes():
    assert with_costs(ONE_LINE, []) == ONE_LINE


def test_a_definition_without_a_docstring_is_refused():
    with pytest.raises(ValueError, match="f has no docstring"):
        with_costs("def f(x):\n    return x", ["no loop"])
