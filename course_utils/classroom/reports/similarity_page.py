"""similarity.html: the table of pairs, then both texts of each side by side."""

from .page import page
from .similarity import COMMON_LEAST, FEWEST, LONGEST, K, Similarity


def as_html(found: Similarity, title: str) -> str:
    """The page. title: of the assignment."""
    given = {
        "found": found,
        "of": title,
        "share": share,
        "K": K,
        "COMMON_LEAST": COMMON_LEAST,
        "FEWEST": FEWEST,
        "LONGEST": LONGEST,
    }
    return page("similarity.html", f"Similarity: {title}", given)


def share(part: float) -> str:
    """A share in whole per cent."""
    return f"{100 * part:.0f} %"
