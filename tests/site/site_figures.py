"""Every interactive figure, prediction and quiz of a page, used as a reader does."""

from playwright.sync_api import Locator
from site_visit import Visit

from course_utils.authoring.counts import count

FIGURE = "[data-s2s-figure]"


def answer_quiz(figure: Locator) -> int:
    """Choose the first answer of each question; each choice must then be explained."""
    questions = figure.locator("form").all()
    for question in questions:
        choices = question.get_by_role("radio")
        assert choices.count() >= 2
        choices.first.check()
        question.get_by_role("button", name="Check").click()
        assert question.locator(".verdict").inner_text().strip()
        explained = question.locator(".why").all_inner_texts()
        assert len(explained) == choices.count()
        assert all(reason.strip() for reason in explained), question.inner_text()
    assert f"of {len(questions)} answered" in figure.locator(".foot .summary").inner_text()
    return len(questions)


def commit_prediction(figure: Locator) -> int:
    """Answer each line with something, commit, and read each verdict."""
    asks = figure.locator("ol > li").all()
    for ask in asks:
        if ask.get_by_role("radio").count():
            ask.get_by_role("radio").first.check()
        else:
            ask.locator("input").fill("1")
    figure.get_by_role("button", name="Commit").click()
    for ask in asks:
        assert ask.locator(".verdict").inner_text().strip()
    return len(asks)


def press_each_button(figure: Locator) -> int:
    """Press what can be pressed when the figure is first seen; it stays there."""
    buttons = [button for button in figure.get_by_role("button").all() if button.is_enabled()]
    for button in buttons[:12]:
        if button.is_visible() and button.is_enabled():
            button.click()
    assert figure.evaluate("figure => figure.shadowRoot.textContent").strip()
    return len(buttons)


def use_figures(visit: Visit, html: str) -> None:
    """Use all of an open page's, which says no error; html: its text, which says whether it has any."""
    figures = visit.page.locator(FIGURE).all()
    assert bool(figures) == (FIGURE.strip("[]") in html)
    for figure in figures:
        assert (figure.get_attribute("aria-label") or "").strip()
        kind = figure.locator(".kind")
        said = kind.first.inner_text().lower() if kind.count() else ""
        use = {"quiz": answer_quiz, "predict": commit_prediction}.get(said, press_each_button)
        used = use(figure)
        assert visit.errors == []
        count("figures on pages used")
        count("browser checks", 1 + used)
