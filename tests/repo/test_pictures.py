"""The README's pictures show what is so today."""

import re
import struct
import sys

from course_utils.authoring.dependencies import ROOT

sys.path.append(str(ROOT / "tools"))
import pictures


def test_the_pictured_verdict_is_the_one_that_the_grader_gives() -> None:
    assert pictures.verdict_svg() == pictures.VERDICT.read_text(encoding="utf-8")


def test_the_pictured_verdict_asks_for_nothing_else() -> None:
    drawn = pictures.VERDICT.read_text(encoding="utf-8")
    assert re.findall(r"https?://[^\"' )]*", drawn) == ["http://www.w3.org/2000/svg"]
    assert "You left the offset out" in drawn.replace("&#160;", " ")


def test_the_page_is_a_picture_of_a_window() -> None:
    head = pictures.PAGE.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    assert struct.unpack(">II", head[16:24]) == (1280, 860)
    assert pictures.PAGE.stat().st_size < 400_000


def test_the_readme_shows_them_with_a_description() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for picture in (pictures.VERDICT, pictures.PAGE):
        shown = re.search(rf"!\[(.+?)\]\({picture.relative_to(ROOT).as_posix()}\)", readme)
        assert shown, picture
        assert len(shown[1]) > 30
