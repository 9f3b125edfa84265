"""The drawings of chapter 21: a character's bits, a word's merges, what training looks at, what tokens cost.

They draw what they are given, and compute nothing that the chapter's exercises compute.
"""

from collections.abc import Mapping, Sequence

from .style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    RED,
    Drawing,
    doublings,
    note,
    paper,
    plot,
    slot,
)


def draw_bits(characters: Mapping[str, Sequence[int]]) -> Drawing:
    """The bits of each character's bytes: those that only say how to read, and those of the code point.

    characters: by label, the bytes.
    """
    most = max(map(len, characters.values()))
    figure, ax = plot(8, 0.45 * len(characters) + 0.2)
    ax.set_axis_off()
    ax.set_xlim(-7, 9 * most)
    ax.set_ylim(-1.6 * len(characters) - 0.2, 0)
    for row, (label, data) in enumerate(characters.items()):
        y = -1.6 * (row + 1)
        note(ax, -0.4, y + 0.5, label, ha="right", va="center", fontsize=10)
        for i, byte in enumerate(data):
            bits = f"{byte:08b}"
            prefix = 2 if i else (1 if len(data) == 1 else len(data) + 1)
            for k, bit in enumerate(bits):
                slot(ax, 9 * i + k, y, bit, fill=ORANGE if k < prefix else BLUE)
    return figure


def draw_merges(rounds: Sequence[Sequence[str]]) -> Drawing:
    """The tokens of a word after each merge, from its bytes at the top to what is left at the bottom.

    rounds: the tokens, as text, before the first merge and after each of them.
    """
    width = sum(map(len, rounds[0]))
    figure, ax = paper((-0.5, 1.6 * width + 0.5), (-1.5 * len(rounds), 0.3))
    for row, tokens in enumerate(rounds):
        x, y = 0.0, -1.5 * (row + 1) + 0.3
        for number, token in enumerate(tokens):
            size = 1.6 * len(token)
            colour = PALETTE[number % 2]
            ax.fill(
                [x + 0.06, x + size - 0.06, x + size - 0.06, x + 0.06],
                [y, y, y + 1, y + 1],
                color=colour,
                alpha=0.3,
            )
            note(ax, x + size / 2, y + 0.5, token.replace(" ", "␣"), ha="center", va="center")
            x += size
    return figure


def draw_work(work: Mapping[str, Sequence[int]]) -> Drawing:
    """How many pairs training has looked at, after each merge, on a logarithmic axis.

    work: by the trainer's name, the pairs looked at in each merge, the first entry being the start. Where
    nothing has been looked at yet, nothing is drawn.
    """
    figure, ax = plot(6.4, 3.2)
    for colour, style, (name, looks) in zip(
        (RED, BLUE, GREEN), ("-", "--", ":"), work.items(), strict=False
    ):
        total, sums = 0, []
        for n in looks:
            total += n
            sums.append(total)
        first = next((i for i, looked in enumerate(sums) if looked), len(sums))
        ax.plot(range(first, len(sums)), sums[first:], style, color=colour, label=name)
    ax.set_yscale("log")
    ax.set_xlabel("merges")
    ax.set_ylabel("pairs looked at, in all")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def draw_compression(curves: Mapping[str, Mapping[int, float]]) -> Drawing:
    """Bytes a token over the size of the vocabulary, a curve for each kind of text.

    curves: by name of the text, bytes a token by vocabulary size.
    """
    figure, ax = plot(6.4, 3.4)
    for colour, marker, (name, curve) in zip(PALETTE, "osD^vP", curves.items(), strict=False):
        ax.plot(list(curve), list(curve.values()), color=colour, marker=marker, label=name)
    doublings(ax, next(iter(curves.values())))
    ax.axhline(1, color=FAINT, linewidth=0.8, linestyle=":")
    ax.set_xlabel("vocabulary")
    ax.set_ylabel("bytes a token")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def draw_languages(tokens: Mapping[str, int], code_points: Mapping[str, int]) -> Drawing:
    """How many tokens, and how many code points, the same text has in each language.

    tokens, code_points: by language.
    """
    figure, ax = plot(6.4, 0.34 * len(tokens) + 0.9)
    names = list(tokens)
    rows = range(len(names))
    ax.barh([row - 0.2 for row in rows], list(tokens.values()), 0.38, color=BLUE, label="tokens")
    points = [code_points[name] for name in names]
    ax.barh([row + 0.2 for row in rows], points, 0.38, color=ORANGE, label="code points")
    for row, name in enumerate(names):
        ax.text(tokens[name], row - 0.2, f" {tokens[name]}", va="center", color=INK, fontsize=8)
        ax.text(points[row], row + 0.2, f" {points[row]}", va="center", color=INK, fontsize=8)
    ax.set_yticks(rows, names)
    ax.set_xlabel("tokens, and code points, of the same text")
    ax.invert_yaxis()
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure
