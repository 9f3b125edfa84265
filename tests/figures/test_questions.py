"""Predictions and quizzes: judged alike in Python and in the form, and told in words."""

import sys

import pytest
import torch

from course_utils import questions
from course_utils.questions import (
    Ask,
    Choice,
    Prediction,
    Question,
    Quiz,
    _is_code,
    _kind,
    _matches,
    _plain,
    judge,
    predict,
    quiz,
)
from tests.browser import screenshot
from tests.figures.test_stride_explorer import CONTRAST

TOY = """
from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

views = Prediction(
    "What holds for `x` and *its* transpose `t`?",
    setup="x = torch.arange(12).reshape(3, 4)",
    code="t = x.T",
    asks=[
        Ask("t.view(12)", truth="can_view(lambda: t.view(12))", why="The strides do not `merge`."),
        Ask("How many bytes has x?", truth="x.numel() * x.element_size()", why="12 elements of 8 bytes."),
        Ask("t.stride()", truth="t.stride()", why="Those of x, swapped."),
        Ask("What is its dtype?", truth="t.dtype", why="`arange` of whole numbers.", accept=("long",)),
        Ask("Its mean?", truth="t.float().mean().item()", why="Half of 11."),
    ],
)
lone = Prediction("The strides of a row?", [Ask("torch.ones(4).stride()", truth="(1,)", why="One axis.")])
broken = Prediction("This one fails.", [Ask("?", truth="torch.ones(2).view(3)", why="-")], setup="y = 1")
not_a_question = 3

quiz = Quiz([
    Question(
        "Which one copies?",
        [
            Choice("x.T", why="It swaps strides."),
            Choice("x.T.contiguous()", right=True, why="The elements change places."),
            Choice("Neither.", why="One does."),
        ],
        code="x = torch.ones(2, 3)",
    ),
    Question("Two?", [Choice("yes", right=True, why="It is."), Choice("no", why="It is not </script>.")]),
])
"""


@pytest.fixture(autouse=True)
def toy(tmp_path, monkeypatch):
    """A chapter named toy, found as any other."""
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(questions, "__path__", [*questions.__path__, str(tmp_path)])
    sys.modules.pop("course_utils.questions.toy", None)
    yield
    sys.modules.pop("course_utils.questions.toy", None)


RIGHT = [False, 96, (1, 4), "torch.int64", 5.5]


# --- Judging in Python


def test_open_it_lists_what_is_asked_and_reveals_nothing():
    text = str(predict("toy.views"))
    assert text.splitlines() == [
        "Predict: What holds for x and its transpose t?",
        "",
        "    t = x.T",
        "",
        "  1. t.view(12)   yes or no?",
        "  2. How many bytes has x?   a whole number?",
        "  3. t.stride()   a tuple?",
        "  4. What is its dtype?   a word?",
        "  5. Its mean?   a number?",
        "Not committed yet. Write your answers: predict('toy.views', answer=[..., ..., ..., ..., ...])",
    ]


@pytest.mark.parametrize("answer", [..., None, [...], [None] * 5, [..., ...]])
def test_nothing_but_dots_is_not_committed(answer):
    assert predict("toy.views", answer=answer).marks is None
    assert "Not committed yet" in str(predict("toy.views", answer=answer))


def test_all_right():
    shown = predict("toy.views", answer=RIGHT)
    assert shown.marks == (True,) * 5
    assert "5 of 5 right." in str(shown)
    assert "  1. ✓ t.view(12): no. The strides do not merge." in str(shown)


def test_some_wrong():
    shown = predict("toy.views", answer=[True, 12, "[1, 4]", "LONG", 5])
    assert shown.marks == (False, False, True, True, False)
    assert "  1. ✗ t.view(12): you said yes, it is no. The strides do not merge." in str(shown)
    assert "2 of 5 right." in str(shown)


def test_some_open():
    shown = predict("toy.views", answer=[True, ..., None, "", 5])
    assert shown.marks is None
    assert "2 of 5 answered: not committed yet." in str(shown)
    assert "96" not in str(shown)


def test_too_few_answers():
    shown = predict("toy.views", answer=[True, False])
    assert shown.marks is None
    assert "5 answers asked for, 2 given." in str(shown)


def test_an_answer_of_another_kind():
    assert "Answer 1: True or False is asked for, got 7." in str(
        predict("toy.views", answer=[7, 96, (1, 4), "int64", 5.5])
    )
    assert "Answer 2: a number is asked for, got 'many'." in str(
        predict("toy.views", answer=[True, "many", (1, 4), "int64", 5.5])
    )


@pytest.mark.parametrize("answer", [(1,), [1], [(1,)], "(1,)", "1", torch.Size([1])])
def test_a_lone_ask_takes_its_answer_bare(answer):
    assert predict("toy.lone", answer=answer).marks == (True,)


def test_truths_leave_random_numbers_alone():
    drawing = Prediction(
        "?", [Ask("?", truth="torch.rand(1).item()", why="-")], setup="torch.manual_seed(1)"
    )
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    assert drawing.truths[0] != expected[0]
    assert torch.equal(torch.rand(3), expected)


def test_truths_are_computed_once():
    prediction = Prediction(
        "?", [Ask("?", truth="calls.append(1) or len(calls)", why="-")], "calls = []"
    )
    assert prediction.truths is prediction.truths
    assert prediction.truths == (1,)


def test_a_truth_that_raises_is_named():
    with pytest.raises(
        ValueError, match=r"'This one fails.' cannot be judged: RuntimeError.*view\(3\)"
    ):
        predict("toy.broken")


def test_a_truth_of_no_known_kind_is_named():
    with pytest.raises(ValueError, match="type Tensor cannot be asked for"):
        judge(Prediction("?", [Ask("?", truth="torch.ones(1)", why="-")]), 1)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("views", 'named "chapter.name"'),
        ("toys.views", "no chapter 'toys' with questions. Did you mean 'toy'?"),
        (
            "toy.view",
            "no prediction 'view' in toy. Did you mean 'views'? There are: views, lone, broken",
        ),
        ("toy.quiz", "no prediction 'quiz'"),
        ("toy.not_a_question", "no prediction"),
    ],
)
def test_unknown_keys_say_what_there_is(key, message):
    with pytest.raises(LookupError) as caught:
        predict(key)
    assert message in str(caught.value)


SPELLINGS = [  # kind, truth, answer, right
    ("tuple", (4, 1), "(4, 1)", True),
    ("tuple", (4, 1), "4,1", True),
    ("tuple", (4, 1), "[ 4 , 1 ]", True),
    ("tuple", (4, 1), "4 1", True),
    ("tuple", (4, 1), "torch.Size([4, 1])", True),
    ("tuple", (4, 1), "(4, 1,)", True),
    ("tuple", (4, 1), "(1, 4)", False),
    ("tuple", (4, 1), "41", False),
    ("tuple", (4, -1), "4 -1", True),
    ("tuple", (4,), "(4,)", True),
    ("tuple", (4,), "4", True),
    ("tuple", (), "()", True),
    ("tuple", (), "(0,)", False),
    ("tuple", ((1, 2), (3, 4)), "((1,2),(3,4))", True),
    ("tuple", ((1, 2), (3, 4)), "[[1, 2], [3, 4]]", True),
    ("tuple", ((1, 2), (3, 4)), "(1, 2, 3, 4)", False),
    ("int", 96, "96", True),
    ("int", 96, " 96 ", True),
    ("int", 96, "96.0", True),
    ("int", 96, "-96", False),
    ("int", 4194304, "4194305", False),
    ("float", 0.1, "0.1", True),
    ("float", 1 / 3, "0.3333333", True),
    ("float", 1 / 3, "0.333", False),
    ("float", 0.0, "0", True),
    ("float", 1e-8, "1e-8", True),
    ("bool", True, True, True),
    ("bool", True, False, False),
    ("str", torch.int64, "int64", True),
    ("str", torch.int64, "torch.int64", True),
    ("str", torch.int64, "int32", False),
    ("str", "a copy", "A  copy", True),
    ("str", "a copy", "'a copy'", True),
    ("str", "a copy", "acopy", False),
]


@pytest.mark.parametrize(("kind", "truth", "answer", "right"), SPELLINGS)
def test_spellings(kind, truth, answer, right):
    assert _kind(truth) == kind
    assert _matches(kind, truth, answer) is right


def test_the_form_judges_alike(open_page):
    page = open_page(predict("toy.views").html()).page
    pairs = [
        [kind, truth if kind == "bool" else _plain(truth), answer]
        for kind, truth, answer, _ in SPELLINGS
    ]
    got = page.evaluate(
        "(pairs) => pairs.map((pair) => StridesToShards.questions.matches(...pair))", pairs
    )
    assert got == [right for *_, right in SPELLINGS]


def test_what_counts_as_code():
    code = ["x.view(2, 6)", "x.T", "t[0]", "(4, 1)", "a.stride() == b.stride()"]
    words = [
        "It copies.",
        "yes",
        "row-major",
        "not contiguous",
        "12",
        "Which is it?",
        "`x.T` copies",
    ]
    assert all(map(_is_code, code))
    assert not any(map(_is_code, words))


def test_faulty_questions_are_refused():
    with pytest.raises(ValueError, match="exactly one"):
        Question("?", [Choice("a", why="-"), Choice("b", why="-")])
    with pytest.raises(ValueError, match="every choice says why"):
        Question("?", [Choice("a", why="", right=True), Choice("b", why="-")])
    with pytest.raises(ValueError, match="asks nothing"):
        Prediction("?", [])
    with pytest.raises(ValueError, match="needs a question"):
        Quiz([])


def test_the_quiz_in_a_terminal():
    assert str(quiz("toy")).splitlines() == [
        "Quiz: What did you take away?",
        "  1. Which one copies?",
        "         x = torch.ones(2, 3)",
        "     a) x.T",
        "     b) x.T.contiguous()",
        "     c) Neither.",
        "  2. Two?",
        "     a) yes",
        "     b) no",
        "Answer with letters: quiz('toy', answer=[..., ...])",
    ]
    answered = quiz("toy", answer=["A", "a"])
    assert answered.marks == (False, True)
    assert "   ✗ a) x.T (your answer): It swaps strides." in str(answered)
    assert "   ✓ b) x.T.contiguous(): The elements change places." in str(answered)
    assert str(answered).endswith("1 right of 2 answered, 2 in all.")


def test_quiz_answers_that_make_no_sense():
    assert "Question 2 has the choices a, b: got 'c'." in str(quiz("toy", answer=["a", "c"]))
    assert "2 answers asked for, 1 given." in str(quiz("toy", answer=["a"]))
    with pytest.raises(LookupError, match="no chapter 'sharks'"):
        quiz("sharks")


# --- The forms


@pytest.fixture
def show(open_page):
    """A page with some forms; at the end nothing may have gone wrong on it."""
    visits = []

    def show(*figures, **options):
        visits.append(open_page("".join(figure.html() for figure in figures), **options))
        return visits[-1].page

    yield show
    for visit in visits:
        visit.check()
        assert len(set(visit.own)) == 1


def fill(page, answers):
    items = page.locator("ol > li")
    for n, answer in enumerate(answers):
        if isinstance(answer, bool):
            items.nth(n).get_by_role("radio", name="yes" if answer else "no").check()
        else:
            items.nth(n).get_by_role("textbox").or_(items.nth(n).get_by_role("spinbutton")).fill(
                answer
            )


def test_a_prediction_answered_right(show):
    page = show(predict("toy.views"))
    fill(page, [False, "96", "[1, 4]", "int64", "5.5"])
    assert page.get_by_text("The strides do not merge").count() == 0
    page.get_by_role("button", name="Commit").click()
    assert page.locator("li.right").count() == 5
    assert page.get_by_role("status").text_content().strip() == "5 of 5 right."
    assert page.get_by_text("✓ Right").count() == 5
    assert page.locator("li code", has_text="merge").is_visible()


def test_a_prediction_answered_wrong_and_again(show):
    page = show(predict("toy.views"))
    fill(page, [True, "96", "(4, 1)", "long", "5"])
    page.get_by_role("button", name="Commit").click()
    assert page.get_by_role("status").text_content().strip() == "2 of 5 right."
    assert page.locator("li.wrong").count() == 3
    first = page.locator("ol > li").first
    assert "✗ Not right: you said yes, it is no." in first.text_content()
    radio = first.get_by_role("radio", name="yes")
    assert radio.is_disabled()
    assert (
        radio.evaluate("(node) => getComputedStyle(node).opacity") == "0"
    )  # the word is the button
    page.get_by_role("button", name="Try again").click()
    assert page.locator("li.wrong, li.right").count() == 0
    assert page.get_by_text("it is no").count() == 0
    fill(page, [False, "96", "(1, 4)", "long", "5.5"])
    page.get_by_role("button", name="Commit").click()
    assert page.locator("li.right").count() == 5


def test_a_prediction_half_answered(show):
    page = show(predict("toy.views"))
    fill(page, [False, "96"])
    page.get_by_role("button", name="Commit").click()
    assert "3 of 5 still open" in page.get_by_role("status").text_content()
    assert page.locator("li.right, li.wrong").count() == 0
    page.keyboard.type("1 4")  # the focus went to the first open answer
    assert page.locator("ol > li").nth(2).get_by_role("textbox").input_value() == "1 4"


def test_a_prediction_by_keyboard(show):
    page = show(predict("toy.views"))
    press = page.keyboard.press
    page.get_by_role("radio").first.focus()
    press("Space")
    press("ArrowRight")
    for answer in ("96", "(1, 4)", "int64", "5.5"):
        press("Tab")
        page.keyboard.type(answer)
    press("Enter")
    assert page.locator("li.right").count() == 5
    press("Tab")
    press("Enter")
    assert page.get_by_role("button", name="Commit").is_visible()


def test_answers_given_in_python_are_shown(show):
    page = show(predict("toy.views", answer=[True, 96, (1, 4), "int64", 5.5]))
    assert page.locator("li.right").count() == 4
    assert page.locator(".summary").text_content() == "4 of 5 right."


def test_open_answers_given_in_python(show):
    page = show(predict("toy.views", answer=[True, 96, ..., ..., ...]))
    assert page.locator("li.right, li.wrong").count() == 0
    assert page.get_by_role("radio", name="yes").is_checked()
    assert page.locator(".summary").text_content() == "2 of 5 answered: not committed yet."


def answer_quiz(page, *choices):
    for n, choice in enumerate(choices):
        form = page.locator("form").nth(n)
        form.get_by_role("radio").nth(choice).check()
        form.get_by_role("button", name="Check").click()


def test_the_quiz_explains_every_choice(show):
    page = show(quiz("toy"))
    assert page.get_by_text("It swaps strides").count() == 0
    answer_quiz(page, 0)
    assert page.get_by_text("✗ Not right, you chose this: It swaps strides.").is_visible()
    assert page.get_by_text("✓ Right: The elements change places.").is_visible()
    assert page.get_by_text("✗ Not this one: One does.").is_visible()
    assert page.get_by_text("0 right of 1 answered, 2 in all.").is_visible()
    assert "Not right" in page.get_by_role("status").text_content()
    page.locator("form").nth(1).get_by_role("radio").first.check()
    page.locator("form").nth(1).get_by_role("button", name="Check").click()
    assert page.get_by_text("1 right of 2 answered, 2 in all.").is_visible()


def test_the_quiz_asks_for_a_choice(show):
    page = show(quiz("toy"))
    page.get_by_role("button", name="Check").first.click()
    assert "Choose an answer first" in page.get_by_role("status").text_content()


def test_the_quiz_by_keyboard(show):
    page = show(quiz("toy"))
    press = page.keyboard.press
    page.get_by_role("radio").first.focus()
    press("ArrowDown")  # arrows choose; nothing is judged before one says so
    assert page.get_by_text("Right").count() == 0
    press("Enter")
    assert page.get_by_text("1 right of 1 answered").is_visible()
    press("Tab")
    press("Space")
    press("Tab")
    press("Enter")
    assert page.get_by_text("2 right of 2 answered").is_visible()


def test_the_quiz_remembers(show):
    page = show(quiz("toy"))
    answer_quiz(page, 0, 0)
    page.reload()
    assert page.get_by_text("1 right of 2 answered").is_visible()
    assert page.get_by_text("It swaps strides").is_visible()
    keys = page.evaluate("Object.keys(localStorage)")
    assert keys == ["strides-to-shards:quiz:toy"]
    page.get_by_role("button", name="Start over").click()
    assert page.get_by_text("It swaps strides").count() == 0
    assert page.evaluate("Object.keys(localStorage)") == []


BAD_STORES = {
    "denied": "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })",
    "full": "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }",
    "nonsense": "localStorage.setItem('strides-to-shards:quiz:toy', '{{{')",
    "another edition": "localStorage.setItem('strides-to-shards:quiz:toy', '{\"gone\": 1}')",
    "no object": "localStorage.setItem('strides-to-shards:quiz:toy', '7')",
}


@pytest.mark.parametrize("script", BAD_STORES.values(), ids=BAD_STORES)
def test_the_quiz_without_a_good_store(show, script):
    page = show(quiz("toy"), init_script=script)
    answer_quiz(page, 1, 0)
    assert page.get_by_text("2 right of 2 answered").is_visible()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1000])
def test_the_forms_read_well(show, dark, width):
    page = show(
        predict("toy.views", answer=[True, 96, (1, 4), "int64", 5]),
        predict("toy.views"),
        quiz("toy", answer=["a", ...]),
        dark=dark,
        width=width,
    )
    assert page.evaluate(CONTRAST) == []
    tree = page.locator("body").aria_snapshot()
    for nameless in ("- button\n", "- textbox\n", "- spinbutton\n", "- radiogroup\n", "- radio\n"):
        assert nameless not in tree
    screenshot(page, f"questions_{'dark' if dark else 'light'}_{width}")


# --- The book's own


BOOK = [
    f"{chapter}.{name}"
    for chapter in questions._chapters()
    for name, value in vars(questions._module(chapter)).items()
    if isinstance(value, Prediction)
]


@pytest.mark.parametrize("key", BOOK)
def test_every_prediction_of_the_book_can_be_judged(key):
    prediction = questions._find(key)
    assert predict(key).marks is None
    assert predict(key, answer=list(prediction.truths)).marks == (True,) * len(prediction.asks)


@pytest.mark.parametrize("chapter", questions._chapters())
def test_every_quiz_of_the_book_can_be_taken(chapter):
    found = questions._module(chapter).quiz
    assert 3 <= len(found.questions) <= 5
    letters = ["abcdefgh"[question.right] for question in found.questions]
    assert quiz(chapter, answer=letters).marks == (True,) * len(letters)


def test_no_habit_gives_the_right_choice_away():
    """Whoever always takes the longest choice, or always the same letter, is right as if by chance."""
    asked = [
        q for chapter in questions._chapters() for q in questions._module(chapter).quiz.questions
    ]
    chance = sum(1 / len(q.choices) for q in asked)
    longest = sum(
        q.choices[q.right].text == max((c.text for c in q.choices), key=len) for q in asked
    )
    assert longest < 1.4 * chance, f"{longest} of {len(asked)}; by chance {chance:.0f}"
    for letter in range(3):
        assert sum(q.right == letter for q in asked) < 1.4 * chance, "abc"[letter]
