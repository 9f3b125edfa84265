"""Styles in which honest notebooks are written: an answer taken out of one does what it does there.

What it does there is found by running the cells in IPython; `exercise` calls the answer as it is
defined, as the verdict would.
"""

import pytest
from IPython.core.interactiveshell import InteractiveShell

import course_utils
from course_utils.source.answers import answers, build

KEY = "toys.f"
IMPORT = "from course_utils import exercise"
ANSWER = f'@exercise("{KEY}")\ndef f(x):\n    return '

# By what is special: the cells above the answer, and the expression that it returns.
ABOVE: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "2 * x"),
    "a question mark": (["f?"], "2 * x"),
    "two question marks": (["x = 1\nlen??"], "2 * x"),
    "a question mark before": (["?len"], "2 * x"),
    "a shell command": (["!true\nk = 3"], "k * x"),
    "a shell command's lines": (["found = !true\nk = 3"], "k * x + len(found)"),
    "a shell command over two lines": (["!true \\\n    and more\nk = 3"], "k * x"),
    "a line magic": (["%who\nk = 3"], "k * x"),
    "a line magic's value": (["t = %time 1 + 1\nk = 3"], "k * x"),
    "a line magic with %s beside it": (['%env\ntext = """\n%s of it\n"""\nk = len(text)'], "k * x"),
    "a string that looks like a magic": (['text = """\n%time\n!ls\n"""'], "x + len(text)"),
    "a remainder at a line's start": (["k = (17\n% 5)"], "k * x"),
    "an indented magic": (["if True:\n    %time\n    k = 3"], "k * x"),
    "a timed cell": (["%%time\nk = 3"], "k * x"),
    "a captured cell": (["%%capture out\nk = 3"], "k * x"),
    "a cell of HTML": (["%%html\n<b>k = 3</b>", "k = 4"], "k * x"),
    "a cell of shell": (["%%bash\ntrue", "k = 4"], "k * x"),
    "a star import": (["from operator import *"], "add(x, mul(x, 2))"),
    "a star import over a builtin": (["from math import *"], "pow(x, 2)"),
    "a definition over a star import": (
        ["from operator import *", "def add(a, b):\n    return a - b"],
        "add(x, 1)",
    ),
    "a star import over a definition": (
        ["def add(a, b):\n    return a - b", "from operator import *"],
        "add(x, 1)",
    ),
    "a builtin bound anew": (["def sum(values):\n    return 7"], "sum([x])"),
    "def under if": (["if True:\n    def g(x):\n        return 3 * x"], "g(x)"),
    "def under else": (
        ["if False:\n    g = None\nelse:\n    def g(x):\n        return 3 * x"],
        "g(x)",
    ),
    "import under if": (["if True:\n    import math"], "math.floor(x + 0.5)"),
    "import under try": (
        ["try:\n    import nowhere_at_all as m\nexcept ImportError:\n    import math as m"],
        "m.floor(x)",
    ),
    "def under with": (
        ["from contextlib import suppress\nwith suppress(ValueError):\n    g = lambda x: 3 * x"],
        "g(x)",
    ),
    "an exception's name": (
        ["try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    k = len(str(error))"],
        "k * x",
    ),
    "match": (["match 3:\n    case k:\n        pass"], "k * x"),
    "a name bound in a loop": (["for k in range(5):\n    pass"], "k * x"),
    "a name bound by while": (["k = 0\nwhile k < 5:\n    k = k + 1"], "k * x"),
    "bound again under if": (["k = 3", "if k:\n    k = 4"], "k * x"),
    "bound again under if that is not taken": (["k = 3", "if not k:\n    k = 4"], "k * x"),
    "added to": (["k = 3", "k += 4"], "k * x"),
    "a list added to": (["ks = [1]", "ks += [4]"], "ks[-1] * x"),
    "a table filled by a loop": (["t = {}", "for i in range(5):\n    t[i] = i * i"], "t[x]"),
    "a table filled by update": (["t = {}", "t.update({3: 5})"], "t[x]"),
    "a table filled item by item": (["t = {}", "t[3] = 5", "t[4] = 6"], "t[x] + t[4]"),
    "a list filled by append": (["t = []", "for i in range(5):\n    t.append(i + 7)"], "t[x]"),
    "a list sorted": (["t = [5, 1, 4, 2]", "t.sort()"], "t[x]"),
    "an item deleted": (["t = [5, 1, 4, 2]", "del t[0]"], "t[2] + x"),
    "filled by a function that it is given to": (
        ["def fill(t):\n    t[3] = 9", "t = {}", "fill(t)"],
        "t[x]",
    ),
    "filled by a function that knows it": (
        ["t = {}", "def fill():\n    t[3] = 9", "fill()"],
        "t[x]",
    ),
    "filled by a function that calls another": (
        ["t = {}", "def fill():\n    t[3] = 9", "def both():\n    fill()", "both()"],
        "t[x]",
    ),
    "global": (["k = 1", "def setup():\n    global k\n    k = 8", "setup()"], "k * x"),
    "global, never bound outside": (["def setup():\n    global k\n    k = 8", "setup()"], "k * x"),
    "an attribute set on a class": (
        ["class T:\n    pass", "T.f = lambda self, x: 3 * x"],
        "T().f(x)",
    ),
    "setattr": (["class T:\n    pass", 'setattr(T, "f", lambda self, x: 3 * x)'], "T().f(x)"),
    "an attribute set on an object": (
        ["from types import SimpleNamespace\nc = SimpleNamespace(k=1)", "c.k = 5"],
        "c.k * x",
    ),
    "an attribute set on a function": (["def g(x):\n    return g.k * x", "g.k = 4"], "g(x)"),
    "registered by a decorator": (
        [
            "table = {}\ndef register(g):\n    table[g.__name__] = g\n    return g",
            "@register\ndef twice(x):\n    return 2 * x",
        ],
        'table["twice"](x)',
    ),
    "singledispatch": (
        [
            "from functools import singledispatch\n@singledispatch\ndef g(x):\n    return 0",
            "@g.register\ndef _(x: int):\n    return 5 * x",
        ],
        "g(x)",
    ),
    "a walrus": (["print(k := 6)"], "k * x"),
    "a walrus in a condition": (["if (k := 6) > 5:\n    pass"], "k * x"),
    "several names at once": (["a, (b, *c) = 1, (2, 3, 4)"], "a + b + c[1] + x"),
    "chained assignment": (["a = b = 4"], "a + b + x"),
    "an annotated name": (["k: int = 4"], "k * x"),
    "a comprehension over a name": (["ks = [1, 2]\nt = [k * 2 for k in ks]"], "t[1] * x"),
    "a helper below, called above": (
        ["def g(x):\n    return h(x)", "def h(x):\n    return 5 * x"],
        "g(x)",
    ),
    "a helper defined twice": (["def g(x):\n    return 1", "def g(x):\n    return 5 * x"], "g(x)"),
    "a default of the time": (["k = 2", "def g(x, k=k):\n    return k * x", "k = 9"], "g(x)"),
    "a helper that fails when it is looked at": (
        ["t = [1, 2]", "t.nothing_of_that_name"],
        "t[1] * x",
    ),
    "an assertion": (["k = 4", "assert k == 4"], "k * x"),
    "a lambda": (["g = lambda x: 3 * x"], "g(x)"),
    "a class that inherits": (
        ["class A:\n    k = 3", "class B(A):\n    def f(self, x):\n        return self.k * x"],
        "B().f(x)",
    ),
}

# By what is special: all cells.
WHOLE: dict[str, list[str]] = {
    "from __future__": [
        "from __future__ import annotations",
        f'{IMPORT}\n@exercise("{KEY}")\ndef f(x: Nowhere) -> Nothing:\n    return 2 * x',
    ],
    "course_utils.exercise": [
        "import course_utils",
        f'@course_utils.exercise("{KEY}")\ndef f(x):\n    return 2 * x',
    ],
    "the package by another name": [
        "import course_utils as cu",
        f'@cu.exercise("{KEY}")\ndef f(x):\n    return 2 * x',
    ],
    "exercise by another name": [
        "from course_utils import exercise as task",
        f'@task("{KEY}")\ndef f(x):\n    return 2 * x',
    ],
    "exercise assigned": [
        f"{IMPORT}\ntask = exercise",
        f'@task("{KEY}")\ndef f(x):\n    return 2 * x',
    ],
    "key=": [IMPORT, f'@exercise(key="{KEY}")\ndef f(x):\n    return 2 * x'],
    "on several lines": [IMPORT, f'@exercise(\n    "{KEY}",\n)\ndef f(x):\n    return 2 * x'],
    "below another decorator": [
        f"{IMPORT}\nfrom functools import cache",
        f'@exercise("{KEY}")\n@cache\ndef f(x):\n    return 2 * x',
    ],
    "another's decorator with a text": [
        f"{IMPORT}\nnames = {{}}\ndef named(name):\n    return lambda g: names.setdefault(name, g)",
        '@named("some.thing")\ndef g(x):\n    return 4 * x',
        f'@exercise("{KEY}")\ndef f(x):\n    return names["some.thing"](x)',
    ],
    "a magic in the answer's own cell": [
        IMPORT,
        f'%time\n@exercise("{KEY}")\ndef f(x):\n    return 2 * x\nf?',
    ],
    "a timed answer": [IMPORT, f'%%time\n@exercise("{KEY}")\ndef f(x):\n    return 2 * x'],
}

STYLES = {
    name: [*above, f"{IMPORT}\n{ANSWER}{returns}"] for name, (above, returns) in ABOVE.items()
} | WHOLE


def in_ipython(cells: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """What the answer gives for 3, called as it is defined."""
    seen: list[object] = []

    def exercise(key):
        assert key == KEY
        return lambda answer: (seen.append(answer(3)), answer)[1]

    monkeypatch.setattr(course_utils, "exercise", exercise)
    shell = InteractiveShell()
    for cell in cells:
        shell.run_cell(cell, store_history=False)
    return seen[-1]


@pytest.mark.parametrize("cells", STYLES.values(), ids=STYLES)
def test_an_answer_does_what_it_does_in_its_notebook(cells, monkeypatch, capsys):
    (answer,) = build(answers(cells)[KEY])
    assert answer(3) == in_ipython(cells, monkeypatch)


def test_there_are_sixty():
    assert len(STYLES) >= 60


def test_what_only_looks_at_a_name_is_not_run():
    """A loop that trains, a plot: nothing of it is needed."""
    cells = [
        "import torch\nk = 3\nt = [1]\ndef g(x):\n    return x",
        "for _ in range(10**9):\n    y = torch.ones(1) * k + g(len(t))",
        "print(t, g)\ncompared = [g, k]",
        f"{IMPORT}\n{ANSWER}g(k) * t[0] * torch.tensor(x)",
    ]
    answer = answers(cells)[KEY]
    assert [statement.cell for statement in answer.statements] == [0, 0, 0, 0, 3]


def test_a_method_of_a_builtin_changes_it_for_nobody():
    """`dict.fromkeys` is no change of `dict`, unless the notebook has a `dict` of its own."""
    cells = ["slow = dict.fromkeys([1])", f"{IMPORT}\n{ANSWER}dict(a=x)['a']"]
    assert [statement.cell for statement in answers(cells)[KEY].statements] == [1]
    own = ["class dict(dict):\n    log = []", "dict.log.append(1)", cells[1]]
    assert [statement.cell for statement in answers(own)[KEY].statements] == [0, 1, 2]


def test_lines_are_those_of_the_cell_after_a_command_over_several():
    cells = [IMPORT, f'!true \\\n  and \\\n  more\n@exercise("{KEY}")\ndef f(x):\n    return x / 0']
    (answer,) = build(answers(cells)[KEY])
    with pytest.raises(ZeroDivisionError) as raised:
        answer(1)
    assert raised.traceback[-1].lineno + 1 == 6
