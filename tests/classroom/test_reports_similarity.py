"""Copies are found, two right short answers are not, and no text can stall or take over the grader."""

import random
import time

import pytest

from course_utils.authoring.counts import count
from course_utils.classroom.reports import similarity
from course_utils.classroom.reports.similarity import (
    book_texts,
    exercise_cells,
    fingerprints,
    similar,
    tokens,
)
from course_utils.classroom.reports.similarity_page import as_html
from course_utils.grading import exercises_of
from course_utils.grading.declaring.cells import solution_cell, stub_cell
from tests.classroom.html_read import harmless
from tests.classroom.synthetic_class import HOSTILE

KEY = "strides.view_strides"
LONG = '''
@exercise("strides.view_strides")
def view_strides(shape, stride, new_shape):
    """My own words."""
    chunks = []
    position = len(shape) - 1
    # walk from the back and glue together what lies side by side
    while position >= 0:
        span, step = shape[position], stride[position]
        while position > 0 and stride[position - 1] == step * span:
            position -= 1
            span *= shape[position]
        chunks.append((span, step))
        position -= 1
    answer = [0] * len(new_shape)
    for index in reversed(range(len(new_shape))):
        size = new_shape[index]
        if not chunks or chunks[0][0] % size:
            return None
        answer[index] = chunks[0][1]
        chunks[0] = (chunks[0][0] // size, chunks[0][1] * size)
        if chunks[0][0] == 1:
            chunks.pop(0)
    return tuple(answer)
'''
RENAMED = (
    LONG.replace("chunks", "xs")
    .replace("position", "k")
    .replace("span", "n")
    .replace("answer", "out")
    .replace('"""My own words."""', '"""Entirely different words, and more of them."""')
    .replace("# walk from the back", "# copied, but nobody will notice; I go")
    .replace("    ", "  ")
)
OTHER = """
@exercise("strides.view_strides")
def view_strides(shape, stride, new_shape):
    import itertools
    pairs = [(n, s) for n, s in zip(shape, stride) if n != 1]
    for (a, sa), (b, sb) in itertools.pairwise(pairs):
        if sa != b * sb:
            raise ValueError("cannot be viewed")
    result, running = {}, 1
    for d, n in enumerate(new_shape[::-1]):
        result[d] = running * (pairs[-1][1] if pairs else 1)
        running = running * max(n, 1)
    return tuple(result[d] for d in sorted(result, reverse=True))
"""


def pairs_of(sources, **options):
    found = similar({name: {KEY: text} for name, text in sources.items()}, **options)
    return {(pair.first, pair.second): pair.share for pair in found.pairs}


# ------------------------------------------------------------------------------ what is found


def test_a_copy_with_other_names_comments_and_layout_is_found():
    assert pairs_of({"ada": LONG, "bob": RENAMED, "eve": OTHER}) == {("ada", "bob"): 1.0}


def test_a_copy_in_another_order_of_functions_is_found_in_part():
    half = LONG.partition("    answer = [0]")
    moved = (
        half[0]
        + "    return helper(chunks, new_shape)\n\ndef helper(chunks, new_shape):\n"
        + half[1]
        + half[2]
    )
    ((_, share),) = pairs_of({"ada": LONG, "bob": moved}).items()
    assert share > 0.8


@pytest.mark.parametrize(
    "key", [key for chapter in ("strides", "optimizers", "lora") for key in exercises_of(chapter)]
)
def test_the_books_own_answer_resembles_nothing(key):
    """Whoever writes what the stub, the book or an alternative has, has no fingerprint of their own."""
    texts = book_texts([key])[key]
    sources = {f"s{i}": {key: text} for i, text in enumerate([*texts, *texts])}
    found = similar(sources)
    assert not found.pairs and found.compared == {key: 0}
    count("exercises whose right answer is no copy")


def test_two_short_right_answers_are_not_a_pair():
    one = '@exercise("strides.flat_index")\ndef flat_index(index, stride, offset=0):\n'
    ways = [
        "    return offset + sum(i * s for i, s in zip(index, stride))",
        "    return sum([a * b for a, b in zip(index, stride)]) + offset",
        "    total = offset\n    for i, s in zip(index, stride):\n        total += i * s\n    return total",
    ]
    sources = {f"s{n}": {"strides.flat_index": one + way} for n, way in enumerate(ways * 2)}
    found = similar(sources)
    assert not found.pairs and found.short["strides.flat_index"] > 0


def test_what_much_of_the_class_wrote_is_nobodys_own_but_the_group_is_named():
    everyone = {f"s{n:02d}": {KEY: LONG if n % 2 else RENAMED} for n in range(40)}
    found = similar(everyone | {"eve": {KEY: OTHER}})
    assert not found.pairs
    (group,) = found.groups
    assert group.students == tuple(everyone)
    page = harmless(as_html(found, "Strides"))
    assert page.table("Answers that are the same in many").column("students") == ["40"]
    assert len(pairs_of({f"s{n}": LONG for n in range(4)})) == 6


def test_a_pair_below_the_threshold_is_not_shown():
    half = LONG[: len(LONG) // 2] + OTHER.partition(":")[2]
    (share,) = pairs_of({"ada": LONG, "bob": half}, threshold=0.1).values()
    assert 0.3 < share < 0.7
    assert pairs_of({"ada": LONG, "bob": half}, threshold=share)
    assert not pairs_of({"ada": LONG, "bob": half}, threshold=share + 0.01)


def test_winnowing_keeps_its_promise():
    """Any K + WINDOW - 1 tokens in a row that two texts share leave a fingerprint that both have."""
    rng = random.Random(0)
    words = [f"f{n}(" for n in range(200)]  # names that are called stay as they are
    for _ in range(200):
        shared = " ".join(rng.choices(words, k=similarity.K + similarity.WINDOW - 1))
        left, right = (
            " ".join([*rng.choices(words, k=rng.randrange(20)), shared, *rng.choices(words, k=9)])
            for _ in range(2)
        )
        assert fingerprints(left) & fingerprints(right)


# ------------------------------------------------------------------------------ tokens


def test_tokens():
    text = 'x = torch.sum(y, dim=-1)  # a comment\n"""doc"""\nreturn f(x)[0] ** 2.5e3 + "a\\"b"'
    assert tokens(text) == [
        *("v", "=", "v", ".", "sum", "(", "v", ",", "v", "=", "-", "1", ")"),
        *("return", "f", "(", "v", ")", "[", "0", "]", "**", "2.5e3", "+", "s"),
    ]


def test_names_that_the_student_defines_are_one():
    assert tokens("def helper(a): return helper(b)") == tokens("def other(x): return other(y)")


@pytest.mark.parametrize("text", HOSTILE)
def test_every_text_has_tokens(text):
    assert isinstance(tokens(text), list)


@pytest.mark.parametrize(
    "unit",
    [
        '"',
        "'",
        '"""',
        "'''",
        "\\",
        '\\"',
        "(",
        "#",
        "\n",
        "@exercise(",
        "a",
        "1",
        "é",
        "\x00",
        "r'",
    ],
)
def test_the_work_grows_with_the_length_alone(unit):
    """No text makes it quadratic, and none is looked at beyond the bound."""
    started = time.process_time()
    fingerprints(unit * 1_000_000)
    exercise_cells([unit * 100_000])
    assert time.process_time() - started < 3


def test_cells():
    cells = [
        "import torch",
        f'{LONG}\n\n@exercise("a.b")\ndef b(): pass\n',
        '@exercise("a.b")\ndef b(): return 1\n',
        "x = '@exercise(\"no.such\")'",
        "def broken(:\n@exercise( 'c.d')\ndef d(",
    ]
    found = exercise_cells(cells)
    assert list(found) == [KEY, "a.b", "c.d"]
    assert found[KEY].strip() == LONG.strip() and found["a.b"].endswith("return 1\n")


def test_a_pair_of_functions_in_one_cell_is_one_answer():
    text = '@exercise("a.b")\ndef one(): pass\n\n\n@exercise("a.b")\ndef two(): pass\n'
    assert "one" in exercise_cells([text])["a.b"] and "two" in exercise_cells([text])["a.b"]


# ------------------------------------------------------------------------------ the class, the page


def class_of(n, seed=0):
    """Answers that differ as answers of different people do, and two pairs of copies."""
    rng = random.Random(seed)
    lines = [
        *(
            "total = total * {a} + {b}",
            "if total > {a}:\n        return None",
            "out.append({a} % {b})",
        ),
        *(
            "total = max(total, {a})",
            "steps[{a}] = total // {b}",
            "for k in range({a}):\n        total += k",
        ),
        *(
            "values = sorted(out, key=len)",
            "total -= shape[{a}]",
            "out = [x for x in out if x != {b}]",
        ),
    ]
    sources = {}
    for i in range(n):
        body = [
            rng.choice(lines).format(a=rng.randrange(90), b=rng.randrange(90)) for _ in range(25)
        ]
        text = stub_cell(KEY).replace('raise NotImplementedError("your turn")', "\n    ".join(body))
        sources[f"student{i:03d}"] = {
            KEY: text,
            "strides.flat_index": solution_cell("strides.flat_index"),
        }
    sources["student007"][KEY] = sources["student123"][KEY].replace("total", "t")
    sources["student050"][KEY] = sources["student051"][KEY]
    return sources


def test_two_copies_among_two_hundred_are_found():
    found = similar(class_of(200))
    page = as_html(found, "Strides")
    assert [(p.first, p.second) for p in found.pairs] == [
        ("student007", "student123"),
        ("student050", "student051"),
    ]
    assert found.compared == {KEY: 200, "strides.flat_index": 0}
    table = harmless(page).table("2 pairs above 60 %")
    assert table.column("share") == ["100 %", "100 %"]


def test_the_page_is_a_help_and_says_so():
    page = harmless(as_html(similar({"ada": {KEY: LONG}, "bob": {KEY: RENAMED}}), "Strides"))
    assert "This is a help, not a verdict." in page.text
    assert "a short exercise has few distinct right answers" in page.text
    assert "glue together" in page.text and "nobody will notice" in page.text
    assert "No two answers share 60 % or more." in harmless(as_html(similar({}), "Strides")).text


def test_both_texts_and_names_are_escaped():
    sources = {
        name: {KEY: LONG + f"\n# {name}\n" + "</code></pre><script>alert(1)</script>"}
        for name in HOSTILE[:3]
    }
    page = harmless(as_html(similar(sources), "<script>"))
    assert (
        page.text.count("</code></pre><script>alert(1)</script>") == 6
    )  # three pairs, two texts each
