"""An interactive figure as a piece of HTML, and how it behaves on a page."""

import json
import re

import pytest

from course_utils.figures import interactive
from course_utils.figures.interactive import Interactive, stride_explorer

NASTY = "</script><!--<script>\u2028 & \" ' <b>"
PROBE = """
StridesToShards.define("probe", (root, data) => {
  const first = !globalThis.mounted;
  globalThis.mounted = (globalThis.mounted ?? 0) + 1;
  if (data.fail) throw new Error("the figure failed");
  root.append(StridesToShards.h("p", { class: "shown" }, data.text), StridesToShards.inline(data.text));
});
"""


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """A figure made of the shared script and a few lines."""
    (tmp_path / "probe.js").write_text(PROBE)
    (tmp_path / "base.js").write_text((interactive.SCRIPTS / "base.js").read_text(encoding="utf-8"))
    monkeypatch.setattr(interactive, "SCRIPTS", tmp_path)
    interactive._source.cache_clear()
    yield lambda **data: Interactive("probe", "A probe", "what it says", data)
    interactive._source.cache_clear()


def test_it_offers_html_and_text():
    figure = stride_explorer()
    bundle = figure._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"] == repr(figure) == figure.text


def test_its_html_is_the_same_each_time():
    assert stride_explorer().html() == stride_explorer().html()


def test_it_names_no_other_host():
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", stride_explorer().html()))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a namespace, never asked for


def test_data_cannot_leave_its_script_element():
    text = interactive._json({"text": NASTY})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["text"] == NASTY


def test_a_script_that_would_end_itself_is_refused(tmp_path, monkeypatch):
    (tmp_path / "broken.js").write_text("const a = '</SCRIPT>';")
    monkeypatch.setattr(interactive, "SCRIPTS", tmp_path)
    with pytest.raises(ValueError, match=r"broken\.js may not contain"):
        interactive._source("broken")


def test_an_unknown_script_names_those_there_are():
    with pytest.raises(
        FileNotFoundError, match=r"There are: .*base, .*questions, .*stride_explorer"
    ):
        Interactive("nothing", "alt", "text").html()


def test_hostile_data_is_shown_as_text(probe, open_page):
    visit = open_page(probe(text=NASTY).html())
    assert visit.page.locator(".shown").text_content() == NASTY
    visit.check()


def test_several_on_a_page_and_a_cell_run_again(probe, open_page):
    visit = open_page(probe(text="one").html() + probe(text="two").html())
    page = visit.page
    assert page.locator(".shown").all_text_contents() == ["one", "two"]
    # JupyterLab sets the HTML of an output, then puts fresh copies of its scripts in their place.
    page.evaluate(
        """(html) => {
          const output = document.createElement("div");
          output.innerHTML = html;
          for (const old of output.querySelectorAll("script")) {
            const copy = document.createElement("script");
            for (const { name, value } of old.attributes) copy.setAttribute(name, value);
            copy.textContent = old.textContent;
            old.replaceWith(copy);
          }
          document.body.append(output);
        }""",
        probe(text="three").html(),
    )
    assert page.locator(".shown").all_text_contents() == ["one", "two", "three"]
    assert page.evaluate("mounted") == 3
    visit.check()


def test_a_figure_that_fails_leaves_its_text(probe, open_page):
    visit = open_page(probe(fail=True).html())
    assert visit.page.get_by_text("what it says").is_visible()
    assert any("the figure failed" in error for error in visit.errors)


def test_without_scripts_the_text_is_read(open_page):
    visit = open_page(stride_explorer().html(), java_script_enabled=False)
    assert visit.page.get_by_text("shape (3, 4), stride (4, 1), offset 0").is_visible()


THEMES = [
    ("document.documentElement.dataset.theme = 'dark'", False, "dark"),  # Jupyter Book
    ("document.documentElement.dataset.theme = 'light'", True, "light"),
    ("document.body.dataset.jpThemeLight = 'false'", False, "dark"),  # JupyterLab
    ("document.body.dataset.jpThemeLight = 'true'", True, "light"),
    ("document.body.className = 'vscode-dark'", False, "dark"),
]


@pytest.mark.parametrize(("switch", "system_is_dark", "theme"), THEMES)
def test_the_theme_follows_the_page(probe, open_page, switch, system_is_dark, theme):
    page = open_page(probe(text="x").html(), dark=system_is_dark).page
    host = page.locator("[data-s2s-figure]")
    assert host.get_attribute("data-theme") == ("dark" if system_is_dark else "light")
    page.evaluate(switch)
    page.wait_for_function(
        "(theme) => document.querySelector('[data-s2s-figure]').dataset.theme === theme", arg=theme
    )


def test_the_theme_follows_the_system(probe, open_page):
    page = open_page(probe(text="x").html()).page
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.querySelector('[data-s2s-figure]').dataset.theme === 'dark'")


def test_inline_markdown(probe, open_page):
    text = r"`x * y` is *not* **ever** $\text{stride}_i \cdot n$, 2 * 3 * 4"
    page = open_page(probe(text=text).html()).page
    inner = page.evaluate("document.querySelector('[data-s2s-figure]').shadowRoot.innerHTML")
    assert "<code>x * y</code> is <em>not</em> <strong>ever</strong>" in inner
    assert '<em class="math">stride_i · n</em>, 2 * 3 * 4' in inner
