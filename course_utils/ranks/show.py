"""What ranks showed, in the notebook's own cell: by rank, in order, each line with its rank."""

import sys
from collections.abc import Sequence
from typing import Any

from .report import Reply, names_of

PLAIN = "text/plain"


def show(replies: Sequence[Reply]) -> None:
    """Print and display what the ranks showed. What all showed alike is shown once, as [0-3].

    Warnings come first, each once, with the ranks that gave it.
    """
    warned: dict[str, list[int]] = {}
    for reply in replies:
        for text in dict.fromkeys(reply.warnings):
            warned.setdefault(text, []).append(reply.rank)
    for text, ranks in warned.items():
        print(labelled(text, names_of(ranks)), file=sys.stderr)
    shown = {reply.rank: joined(reply.items) for reply in replies}
    alike = len(shown) > 1 and all(items == shown[replies[0].rank] for items in shown.values())
    if alike:
        show_items(shown[replies[0].rank], names_of(shown))
        return
    for rank, items in shown.items():
        show_items(items, names_of([rank]))


def joined(items: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Items without warnings; a value that has no form but text is text; text in a row is one."""
    found: list[tuple[str, Any]] = []
    for kind, item in items:
        if kind == "warning":
            continue
        if kind == "show" and set(item) == {PLAIN}:
            kind, item = "out", item[PLAIN] + "\n"
        if found and kind != "show" and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1] + item)
        else:
            found.append((kind, item))
    return found


def show_items(items: Sequence[tuple[str, Any]], label: str) -> None:
    for kind, item in items:
        if kind == "show":
            print(labelled(item.get(PLAIN, ""), label))
            display_bundle(item)
        else:
            print(labelled(item, label), file=sys.stderr if kind == "err" else sys.stdout)


def display_bundle(bundle: dict[str, Any]) -> None:
    from IPython.display import display

    sys.stdout.flush()
    display(bundle, raw=True)


def labelled(text: str, label: str) -> str:
    """Every line of `text` after its rank."""
    return "\n".join(f"{label} {line}".rstrip() for line in text.removesuffix("\n").split("\n"))
