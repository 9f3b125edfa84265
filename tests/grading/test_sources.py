"""What an answer's source needs from its surroundings, and where a class's source is found."""

import linecache

import torch

from course_utils.source.answers import answers, build
from course_utils.source.names import names_used
from course_utils.source.stub import is_stub
from course_utils.source.text import source_of

CELLS = [
    "import torch\nw = torch.tensor(broken_elsewhere)\nx = w * 2\nscale = 3",
    '@exercise("toys.f")\ndef f(x):\n    w = [v * scale for v in x]\n    return (lambda y: y + w[0])(1)',
]


def test_parameters_and_locals_are_not_looked_up_outside():
    assert names_used(CELLS[1]) == {"exercise", "scale"}
    assert names_used("y = x + len(z)") == {"x", "z"}
    assert names_used("class A(B):\n    k = c\n    def f(self):\n        return A, k") == {
        "A",
        "B",
        "c",
        "k",
    }


def test_an_answer_brings_no_namesake_of_its_parameters_along():
    answer = answers(CELLS)["toys.f"]
    (f,) = build(answer)  # with `w` of the first cell, this would raise NameError
    assert f([1, 2]) == 4


FUNCTION_CLASS = '''class Twice(torch.autograd.Function):
    """Static methods only."""

    @staticmethod
    def forward(ctx, x):
        raise NotImplementedError("your turn")

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("your turn")
'''


def test_the_source_of_a_class_of_static_methods_is_found():
    name = "<a cell>"
    linecache.cache[name] = (len(FUNCTION_CLASS), None, FUNCTION_CLASS.splitlines(True), name)
    space = {"torch": torch}
    exec(compile(FUNCTION_CLASS, name, "exec"), space)
    assert source_of(space["Twice"]) == FUNCTION_CLASS.rstrip()
    assert is_stub(space["Twice"])


def test_an_answer_is_untouched_until_one_of_its_bodies_is_written():
    stub = f'@exercise("toys.twice")\n{FUNCTION_CLASS}'
    written = stub.replace('raise NotImplementedError("your turn")', "return 2 * x", 1)
    pair = '@exercise("toys.pair")\ndef f(x): ...\n\n@exercise("toys.pair")\ndef g(x): {}\n'
    for cell, parts, untouched in (
        (stub, 1, True),
        (written, 1, False),
        (pair.format("..."), 2, True),
        (pair.format("return x"), 2, False),
        (pair.format("return x"), 1, False),  # the last is the answer
        (pair.replace("...", "return x").format("..."), 1, True),
    ):
        (answer,) = answers([cell]).values()
        assert answer.is_untouched(parts) == untouched, cell


def test_python_that_nests_too_deeply_is_a_problem_of_its_answer_alone():
    # The first is too deep to be parsed; the second is parsed, but too deep to be looked through.
    for depth in (60_000, 2_000):
        deep = '@exercise("toys.deep")\ndef deep(x):\n    return ' + "-" * depth + "x"
        found = answers([deep, CELLS[1]])
        assert "code cell 1" in found["toys.deep"].problem
        assert not found["toys.f"].problem


def test_a_cell_that_would_not_compile_is_left_out():
    broken = "def scale_by(x, x):\n    return x"
    whole = '@exercise("toys.whole")\ndef whole(x):\n    return scale_by(x)'
    found = answers(["def scale_by(x):\n    return 2 * x", broken, whole])["toys.whole"]
    assert build(found)[0](3) == 6
    found = answers([f"{whole}\n{broken}"])["toys.whole"]
    assert "line 4: duplicate argument" in found.problem


BETWEEN = [
    "import numpy as np\nlog = []",
    "def helper(n):\n    log.append(n)\n    return np.zeros(n)",
    '@exercise("toys.stub")\ndef stub(x):\n    raise NotImplementedError("your turn")',
    "made = stub(helper(3))\nprint(np.abs(made))\nhelper(1)",
    '@exercise("toys.g")\ndef g(n):\n    return np.ones(n).sum() + len(log)',
]


def test_a_call_of_a_module_in_a_function_does_not_change_the_module():
    """Else every line that calls such a function would be run for each answer that uses NumPy."""
    cells = [text.replace("    log.append(n)\n", "") for text in BETWEEN]
    needed = answers(cells)["toys.g"].statements
    assert [statement.cell for statement in needed] == [0, 0, 4]


def test_what_is_run_in_doubt_needs_nothing_for_sure():
    """A line may add to the list that is needed; it uses an answer that is still a stub."""
    (g,) = build(answers(BETWEEN)["toys.g"])
    assert g(2) == 2 + 2
