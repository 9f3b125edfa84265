"""Texts that may be shown: cut to a length, without what steers a terminal."""

import re

from course_utils.processes.time_limit import TimeLimit, time_limit

LONGEST_TEXT = 2_000
UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
TO_SHOW_S = 0.2  # for an object's own __repr__ or an exception's __str__


def cut(text: str, limit: int = LONGEST_TEXT) -> str:
    """The text without what steers a terminal, and no longer than a reader wants it."""
    text = UNSHOWN.sub("�", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def short(value: object, limit: int = 200) -> str:
    """`repr(value)`, guarded: a broken or endless __repr__ is named, a long one is cut."""
    try:
        with time_limit(TO_SHOW_S):
            text = repr(value)
    except TimeLimit:
        text = f"<{type(value).__name__} whose repr does not end>"
    except BaseException as error:  # the student's own __repr__ may raise anything
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 1] + "…"
