"""Exercises of chapter 21, tokenization: from a character's bytes to a stream of tokens."""
# mypy: ignore-errors

import codecs
import re
from collections import Counter, defaultdict
from itertools import chain, islice, pairwise
from math import inf

import regex
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, probes, replace
from course_utils.reference import tokenization

merge_pair_of_the_book = tokenization.merge_pair

# ------------------------------------------------------------------------------ utf8_bytes

utf8_bytes = Exercise(
    tokenization.utf8_bytes,
    title="A character's bytes",
    difficulty=1,
    minutes=20,
    points=1,
    hints=(
        "How many bytes are there? Compare the code point with 0x80, 0x800 and 0x10000.",
        "`code_point & 0x3F` are its lowest six bits, and `code_point >> 6` is what is left.",
        "A further byte is `0x80 | six_bits`. The first one is 0xC0, 0xE0 or 0xF0, with the bits that are left.",
        ("edge cases", "Refuse what is no character before you compute any byte."),
    ),
)


@utf8_bytes.by_hand
def _():
    yield call(0x41), [0x41]  # A
    yield call(0xE9), [0xC3, 0xA9]  # é: 00011 101001
    yield call(0x20AC), [0xE2, 0x82, 0xAC]  # €: 0010 000010 101100
    yield call(0x1F600), [0xF0, 0x9F, 0x98, 0x80]  # a face: 000 011111 011000 000000


@utf8_bytes.cases
def _(draw):
    top = draw(st.sampled_from((0x7F, 0x7FF, 0xD7FF, 0x10FFFF)))
    code_point = draw(st.integers(0, top))
    yield call(code_point if not 0xD800 <= code_point <= 0xDFFF else code_point - 0x800)


@utf8_bytes.edge
def _():
    for last in (0x7F, 0x7FF, 0xFFFF, 0x10FFFF):
        yield call(last), "the last of its length"
    for first in (0, 0x80, 0x800, 0x10000):
        yield call(first), "the first of its length"
    yield call(0xD7FF), "the last before the surrogates"
    yield call(0xE000), "the first after the surrogates"
    yield call(0xD800), "the first surrogate"
    yield call(0xDFFF), "the last surrogate"
    yield call(0xDC80), "a surrogate"
    yield call(0x110000), "one beyond Unicode"
    yield call(-1), "a negative number"


NONCHARACTERS = "You refuse code points that UTF-8 can write, such as 0xFFFF. Refuse surrogates and what is out of range alone."
utf8_bytes.slips(
    {
        replace(
            "code_point < 0x80:", "code_point <= 0x80:"
        ): "0x80 needs two bytes: a byte of its own begins with 0.",
        replace(
            "code_point < 0x80:", "code_point < 0x100:"
        ): "A byte above 0x7F is never a character by itself: in UTF-8 0x80 to 0xFF take two.",
        replace(
            "code_point < 0x800 ", "code_point <= 0x800 "
        ): "0x800 needs three bytes: two carry 11 bits.",
        replace(
            "code_point < 0x10000 ", "code_point <= 0x10000 "
        ): "0x10000 needs four bytes: three carry 16 bits.",
        replace(
            "code_point < 0x800 ", "code_point < 0x1000 "
        ): "Two bytes carry 5 + 6 = 11 bits, so they end at 0x7FF.",
        replace(
            "reversed(range(n - 1))", "range(n - 1)"
        ): "Your further bytes are the wrong way round. The highest bits come first.",
        replace(
            "0x80 | code_point >> 6 * i & 0x3F", "code_point >> 6 * i & 0x3F"
        ): "Your further bytes lack the 10 that they begin with: add 0x80.",
        replace(
            "0x80 | code_point >> 6 * i & 0x3F", "0x80 | code_point >> 6 * i & 0x7F"
        ): "A further byte carries six bits: mask with 0x3F.",
        replace(
            "0x80 | code_point >> 6 * i & 0x3F", "0x80 | code_point >> 7 * i & 0x7F"
        ): "You shift by seven bits. A further byte carries six.",
        replace(
            "0xF00 >> n & 0xFF", "(0x1E00 >> n & 0xFF)"
        ): "Your first byte begins with one 1 too many. There are as many as bytes, then a zero.",
        replace(
            "not 0 <= code_point", "not 0 < code_point"
        ): "You refuse 0. It is a character's number, and its byte is 0.",
        replace("<= 0xDFFF", "<= 0xDFFF or code_point in (0xFFFE, 0xFFFF)"): NONCHARACTERS,
        replace(
            " or 0xD800 <= code_point <= 0xDFFF", ""
        ): "You let surrogates through. They are halves of UTF-16's pairs, and "
        "no characters: raise ValueError.",
        replace(
            "0xD800 <= code_point <= 0xDFFF", "0xD800 <= code_point < 0xDFFF"
        ): "0xDFFF is a surrogate, too.",
        replace(
            "0xD800 <= code_point <= 0xDFFF", "0xD800 <= code_point <= 0xDBFF"
        ): "You refuse the first half of the surrogates alone. They go on to 0xDFFF.",
        replace(
            "<= 0x10FFFF or", "<= 0x1FFFFF or"
        ): "Four bytes could carry more, but Unicode ends at 0x10FFFF: raise ValueError beyond.",
        replace(
            "not 0 <= code_point <= 0x10FFFF", "code_point > 0x10FFFF"
        ): "You let negative numbers through: raise ValueError.",
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
    }
)


utf8_bytes.mistake(
    NONCHARACTERS,
    replace("<= 0xDFFF", "<= 0xDFFF or code_point & 0xFFFE == 0xFFFE"),
)
for number, bits, room in ((2, 5, 0x0F), (3, 4, 0x07), (4, 3, 0x03)):
    utf8_bytes.mistake(
        f"You lose the highest bit of long code points: of {number} bytes the first carries {bits} bits.",
        replace(
            "code_point >> 6 * (n - 1), *tail",
            f"code_point >> 6 * (n - 1) & (0xFF if n != {number} else {room}), *tail",
        ),
    )


@utf8_bytes.mistake("You return UTF-16's bytes. UTF-8 is asked for.")
def _(code_point):
    if not 0 <= code_point <= 0x10FFFF or 0xD800 <= code_point <= 0xDFFF:
        raise ValueError(code_point)
    return list(chr(code_point).encode("utf-16-be"))


@utf8_bytes.mistake("You return bytes. A list of integers is asked for: `list(…)` makes one of it.")
def _(code_point):
    if not 0 <= code_point <= 0x10FFFF or 0xD800 <= code_point <= 0xDFFF:
        raise ValueError(code_point)
    return chr(code_point).encode()


@utf8_bytes.alternative("four cases, written out")
def _(code_point):
    if code_point < 0 or code_point > 0x10FFFF or code_point in range(0xD800, 0xE000):
        raise ValueError("no character")
    low, rest = 0x80 + code_point % 64, code_point // 64
    if code_point <= 0x7F:
        return [code_point]
    if code_point <= 0x7FF:
        return [0xC0 + rest, low]
    if code_point <= 0xFFFF:
        return [0xE0 + rest // 64, 0x80 + rest % 64, low]
    return [0xF0 + rest // 4096, 0x80 + rest // 64 % 64, 0x80 + rest % 64, low]


@utf8_bytes.alternative("Python's own")
def _(code_point):
    return list(chr(code_point).encode("utf-8", errors="strict"))


# ------------------------------------------------------------------------------ most_frequent_pair

most_frequent_pair = Exercise(
    tokenization.most_frequent_pair,
    title="The most frequent pair",
    difficulty=1,
    minutes=15,
    points=1,
    hints=(
        "`itertools.pairwise(word)` gives the neighbours of one word.",
        "A pair in a word that stands in the text 9 times occurs 9 times as often as it does in the word.",
        "Python compares tuples item by item: `min` of (-count, pair) is the most frequent and then the smallest.",
        ("edge cases", "Words of one token have no pair. `min` and `max` take a `default`."),
    ),
)


@most_frequent_pair.by_hand
def _():
    yield call([[1, 2, 3], [2, 3]], [1, 1]), (2, 3)
    yield call([[1, 2, 3], [2, 4]], [1, 5]), (2, 4)
    yield call([[5, 6], [3, 9]], [2, 2]), (3, 9)


@st.composite
def counted_words(draw, tokens=5, most=6):
    words = draw(st.lists(st.lists(st.integers(1, tokens), max_size=6), min_size=1, max_size=most))
    counts = draw(st.lists(st.integers(1, 4), min_size=len(words), max_size=len(words)))
    return words, counts


@most_frequent_pair.cases
def _(draw):
    yield call(*draw(counted_words()))


@most_frequent_pair.edge
def _():
    yield call([], []), "no word"
    yield call([[3], [], [4]], [9, 9, 9]), "no pair"
    yield call([[7, 7, 7], [1, 2]], [1, 1]), "pairs that overlap count twice"
    yield call([[2, 9], [2, 4], [3, 1]], [2, 2, 2]), "ties by the first token, then by the second"
    yield call([[3, 1], [2, 9]], [4, 4]), "the smaller first token decides"
    yield call([[10, 2], [9, 1]], [2, 2]), "tokens of one digit and of two"
    yield call([[7, 100], [7, 20]], [2, 2]), "second tokens of two digits and of three"
    yield call([[1, 2], [2, 3], [2, 3]], [3, 2, 2]), "the same word stands there twice"
    yield call([[4, 5], [6, 1, 6, 1]], [3, 1]), "few words, but often"
    yield call([[1, 2], [1, 2], [300, 256]], [1, 1, 3]), "tokens above 255"
    yield call([[1], [2], [1], [2], [8, 9]], [5, 5, 5, 5, 1]), "neighbours in two words are no pair"
    yield call([[0, 0, 5], [0, 0]], [1, 1]), "token 0 is a token like others"


most_frequent_pair.slips(
    {
        replace(
            "pairs[pair] += count", "pairs[pair] += 1"
        ): "You count each word once. A word stands in the text `counts` times.",
        replace(
            "(-pairs[pair], pair)", "-pairs[pair]"
        ): "Of several pairs that are equally frequent you take the first that "
        "you met. The smallest is due.",
        replace(
            "(-pairs[pair], pair)", "(-pairs[pair], pair[::-1])"
        ): "You break ties by the second token. The first token decides, then the second.",
        replace(
            "(-pairs[pair], pair)", "(-pairs[pair], pair[0])"
        ): "You break ties by the first token alone. Where they are equal the second decides.",
        replace(
            "(-pairs[pair], pair)", "(-pairs[pair], pair[0], -pair[1])"
        ): "Of pairs with the same first token you take the larger second one. The smaller is due.",
        replace(
            "(-pairs[pair], pair)", "(-pairs[pair], str(pair))"
        ): "You compare the tokens as text, where 10 comes before 9. They are numbers.",
        replace(
            "return min(pairs,", "return min({p: n for p, n in pairs.items() if n > 1},"
        ): "You leave out pairs that occur once. They are pairs, too.",
        replace(
            "zip(words, counts, strict=True)", "dict(zip(map(tuple, words), counts)).items()"
        ): "Of a word that stands in words twice you keep the last count alone. Both count.",
        replace(
            "(-pairs[pair], pair)", "(-pairs[pair], sum(pair))"
        ): "You break ties by the sum of the tokens. The first token decides, then the second.",
        replace("(-pairs[pair], pair)", "(pairs[pair], pair)"): "You return the rarest pair.",
        replace(
            "min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)",
            "max(pairs, key=lambda pair: (pairs[pair], pair), default=None)",
        ): "Of several pairs that are equally frequent you take the largest. The smallest is due.",
        replace(
            ", default=None", ""
        ): "Where there is no pair, `min` and `max` raise ValueError. Return None: `default=None`.",
        replace(
            "in pairwise(word)", "in zip(word[::2], word[1::2])"
        ): "You count every other pair. Each token but the last begins one.",
        replace(
            "in pairwise(word)", "in set(pairwise(word))"
        ): "You count a pair once in each word. It may stand there several times.",
        replace(
            "in pairwise(word)", "in zip(word, word[2:])"
        ): "Your pairs are two places apart. Neighbours are asked for.",
        replace(
            "in pairwise(word)", "in (tuple(sorted(p)) for p in pairwise(word))"
        ): "You take (1, 2) and (2, 1) for the same pair. Order matters.",
        replace(
            "pairs[pair] += count", "pairs[pair] = count"
        ): "You overwrite a pair's count with that of the last word. Add it.",
        replace(
            "pairs[pair] += count", "pairs[pair] += count * len(word)"
        ): "You weigh a pair by the length of its word. Its count is that of the word.",
        replace(
            "in pairwise(word)", "in pairwise(word[:-1])"
        ): "You leave out the last pair of each word.",
    }
)


@most_frequent_pair.mistake(
    "You take the words for one sequence: the last token of one and the first of the next are no pair."
)
def _(words, counts):
    pairs = Counter(
        pairwise(t for word, n in zip(words, counts, strict=False) for t in list(word) * n)
    )
    return min(pairs, key=lambda p: (-pairs[p], p), default=None)


@most_frequent_pair.mistake(
    "You pack two tokens into left * base + right, with the largest token as the base. It is one too small."
)
def _(words, counts):
    base = max((t for word in words for t in word), default=1)
    keys = Counter()
    for word, count in zip(words, counts, strict=False):
        for left, right in pairwise(word):
            keys[left * base + right] += count
    best = min(keys, key=lambda key: (-keys[key], key), default=None)
    return None if best is None else divmod(best, base)


@most_frequent_pair.mistake(
    "You take token 0 for none: `if before` is false for it. It is a byte like others: ask `is not None`."
)
def _(words, counts):
    pairs = Counter()
    for word, count in zip(words, counts, strict=False):
        before = None
        for token in word:
            if before:
                pairs[before, token] += count
            before = token
    return min(pairs, key=lambda p: (-pairs[p], p), default=None)


@most_frequent_pair.mistake("You count [7, 7, 7] as one pair. Pairs may overlap: it has two.")
def _(words, counts):
    pairs = Counter()
    for word, count in zip(words, counts, strict=False):
        before = None
        for pair in pairwise(word):
            if pair == before:
                before = None
                continue
            pairs[pair] += count
            before = pair
    return min(pairs, key=lambda p: (-pairs[p], p), default=None)


@most_frequent_pair.mistake("You return the pair with its count. The pair alone is asked for.")
def _(words, counts):
    pair = tokenization.most_frequent_pair(words, counts)
    return pair and (
        pair,
        sum(n * list(pairwise(w)).count(pair) for w, n in zip(words, counts, strict=False)),
    )


@most_frequent_pair.alternative("sort all pairs, most frequent first")
def _(words, counts):
    found = defaultdict(int)
    for index in range(len(words)):
        for i in range(len(words[index]) - 1):
            found[words[index][i], words[index][i + 1]] += counts[index]
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0][0], item[0][1]))
    return ranked[0][0] if ranked else None


@most_frequent_pair.alternative("max with negated tokens")
def _(words, counts):
    best, most = None, 0
    pairs = Counter()
    for word, count in zip(words, counts, strict=False):
        pairs.update({pair: n * count for pair, n in Counter(pairwise(word)).items()})
    for pair, n in pairs.items():
        if n > most or (n == most and pair < best):
            best, most = pair, n
    return best


# ------------------------------------------------------------------------------ merge_pair

merge_pair = Exercise(
    tokenization.merge_pair,
    title="One merge",
    difficulty=1,
    minutes=15,
    points=1,
    hints=(
        "Walk along by an index, and write into a new list.",
        "Where a pair stands the index goes on by two, elsewhere by one.",
        ("edge cases", "The last token has no right neighbour: look whether there is one."),
    ),
)


@merge_pair.by_hand
def _():
    yield call([1, 2, 3, 1, 2], (1, 2), 9), [9, 3, 9]
    yield call([7, 7, 7], (7, 7), 8), [8, 7]
    yield call([2, 1], (1, 2), 9), [2, 1]


@merge_pair.cases
def _(draw):
    ids = draw(st.lists(st.integers(1, 3), max_size=10))
    yield call(
        ids, (draw(st.integers(1, 3)), draw(st.integers(1, 3))), draw(st.sampled_from((9, 300)))
    )


@merge_pair.edge
def _():
    yield call([], (1, 2), 9), "no tokens"
    yield call([1], (1, 2), 9), "one token"
    yield call([1, 1], (1, 2), 9), "it ends with the pair's first token"
    yield call([1, 2], (1, 2), 9), "the pair alone"
    yield call([5, 5, 5, 5, 5], (5, 5), 6), "an odd run"
    yield call([5, 5, 5, 5], (5, 5), 6), "an even run"
    yield call([1, 2, 1, 2, 1], (1, 2), 9), "pairs side by side"
    yield call([1, 1, 2], (1, 2), 9), "the pair's first token twice"
    yield call([1, 2, 2], (1, 2), 1), "the new token makes the pair again"
    yield call([11, 2, 1, 23], (1, 2), 9), "tokens whose digits make the pair"
    yield call((1, 2, 3), (1, 2), 9), "the tokens are a tuple"
    yield call([5, 0, 0, 0], (0, 0), 9), "token 0 is a token like others"


merge_pair.slips(
    {
        replace(
            "i += 2", "i += 1"
        ): "After a merge you go on by one, so the pair's second token comes again. Go on by two.",
        replace(
            "== pair", "in (pair, pair[::-1])"
        ): "You merge (2, 1) for (1, 2) as well. Order matters.",
        replace(
            "while i < len(ids):", "while i < len(ids) - 1:"
        ): "You lose the last token where it is in no pair.",
        replace(
            "merged.append(token)", "merged.extend([*pair])"
        ): "You write the pair where the new token is due.",
        replace(
            "merged.append(token)", "merged.append(256)"
        ): "You write 256, whatever the new token is.",
        replace(
            "tuple(ids[i : i + 2]) == pair", "ids[i : i + 2] == list(pair)"
        ): "You compare a slice of ids with a list. ids may be a tuple, of which a slice is a tuple.",
        replace(
            "while i < len(ids):",
            "if len(ids) <= 2:\n        return list(ids)\n    while i < len(ids):",
        ): "You leave two tokens as they are. They may be the pair.",
        replace(
            "tuple(ids[i : i + 2]) == pair", "ids[i] == pair[0]"
        ): "You look at the first token of the pair alone.",
        replace(
            "tuple(ids[i : i + 2]) == pair", "tuple(ids[i : i + 2]) == pair and token not in merged"
        ): "You merge the first occurrence alone. All are merged.",
        replace(
            "tuple(ids[i : i + 2]) == pair",
            "tuple(ids[i : i + 2]) == pair and ids[i + 2 : i + 3] != [pair[1]]",
        ): "In a run of equal "
        "tokens you merge the last two. From left to right, the first two are a pair.",
    }
)


@merge_pair.mistake(
    "In a run of equal tokens you merge from the right. Occurrences are taken from left to right."
)
def _(ids, pair, token):
    return merge_pair_of_the_book(list(ids)[::-1], pair[::-1], token)[::-1]


@merge_pair.mistake("You change ids in place. A new list is due, and ids stays as it is.")
def _(ids, pair, token):
    ids = ids if isinstance(ids, list) else list(ids)
    i = 0
    while i < len(ids) - 1:
        if (ids[i], ids[i + 1]) == pair:
            ids[i : i + 2] = [token]
        i += 1
    return ids


@merge_pair.mistake(
    "You take token 0 for none: `if held` is false for it. It is a byte like others: ask `is not None`."
)
def _(ids, pair, token):
    merged, held = [], None
    for t in ids:
        if held is not None and (held, t) == pair:
            merged.append(token)
            held = None
            continue
        if held is not None:
            merged.append(held)
        held = t
    return [*merged, held] if held else merged


@merge_pair.mistake(
    "You look at the merged tokens again: a token that you have just made is in no pair of this merge."
)
def _(ids, pair, token):
    merged = []
    for t in ids:
        merged.append(t)
        while tuple(merged[-2:]) == pair:
            merged[-2:] = [token]
    return merged


@merge_pair.mistake(
    "In a run of equal tokens every two neighbours are a pair to you. Occurrences do not overlap."
)
def _(ids, pair, token):
    hits = {i for i in range(len(ids) - 1) if (ids[i], ids[i + 1]) == pair}
    return [token if i in hits else t for i, t in enumerate(ids) if i in hits or i - 1 not in hits]


@merge_pair.mistake(
    "You read ids[i + 1] where there is none: the last token has no right neighbour."
)
def _(ids, pair, token):
    out, i = [], 0
    while i < len(ids):
        if ids[i] == pair[0] and ids[i + 1] == pair[1]:
            out.append(token)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


@merge_pair.mistake(
    "You join the digits to a text and replace there. Digits of two tokens can make a third."
)
def _(ids, pair, token):
    joined = " ".join(map(str, ids)).replace(f"{pair[0]} {pair[1]}", str(token))
    return [int(t) for t in joined.split()]


@merge_pair.mistake(
    "You replace in a text, where pairs side by side share the space between them, so the second is missed."
)
def _(ids, pair, token):
    joined = f" {' '.join(map(str, ids))} "
    return [int(t) for t in joined.replace(f" {pair[0]} {pair[1]} ", f" {token} ").split()]


@merge_pair.mistake(
    "In a run of equal tokens you merge the first two alone. The next two are a pair as well."
)
def _(ids, pair, token):
    hits = [tuple(ids[i : i + 2]) == pair for i in range(len(ids))]
    starts = [hit and not (i and hits[i - 1]) for i, hit in enumerate(hits)]
    merged = [token if start else t for t, start in zip(ids, starts, strict=True)]
    return [t for i, t in enumerate(merged) if not (i and starts[i - 1])]


@merge_pair.alternative("a flag that skips the second token")
def _(ids, pair, token):
    out, skip = [], False
    for left, right in zip(ids, [*ids[1:], None], strict=False):
        if skip:
            skip = False
        elif (left, right) == pair:
            out.append(token)
            skip = True
        else:
            out.append(left)
    return out


@merge_pair.alternative("from an iterator, with one token held back")
def _(ids, pair, token):
    out, open_ = [], False
    for t in ids:
        if open_ and out[-1] == pair[0] and t == pair[1]:
            out[-1], open_ = token, False
        else:
            out.append(t)
            open_ = True
    return out


# ------------------------------------------------------------------------------ pre_tokenize

pre_tokenize = Exercise(
    tokenization.pre_tokenize,
    title="GPT-2's pre-tokens",
    difficulty=2,
    minutes=30,
    points=2,
    hints=(
        "One pattern with six alternatives between `|`, in this order, and `regex.findall`. Write no group that "
        "captures: findall would return the groups.",
        r"The package `regex` knows `\p{L}` (letters) and `\p{N}` (numbers), which `re` does not. `[^\s\p{L}\p{N}]` "
        "is what is neither of them nor white space.",
        r"A space that may be there is ` ?`. `(?!\S)` holds where no other character than white space follows.",
        (
            "edge cases",
            r"Of three spaces before a word `\s+(?!\S)` takes two, since it steps back until no \S follows.",
        ),
    ),
)


@pre_tokenize.by_hand
def _():
    yield call("Hello world"), ["Hello", " world"]
    yield call("it's 2 late!"), ["it", "'s", " 2", " late", "!"]
    yield call("a   b"), ["a", "  ", " b"]
    yield call("x=1\n\n  y"), ["x", "=", "1", "\n\n ", " y"]


PIECES = (
    "a",
    "Zé",
    "ß",
    "don't",
    "'S",
    "’s",
    "'ll",
    "'v",
    "12",
    "3.5",
    "½",
    "٣",
    "_",
    "-->",
    "!",
    " ",
    "  ",
    "\n",
    "\t",
    "\u00a0",
    "日本",
    "नमस्ते",
    "🙂",
    "e\u0301",
)


@st.composite
def texts(draw, most=7):
    return "".join(draw(st.lists(st.sampled_from(PIECES), max_size=most)))


@pre_tokenize.cases
def _(draw):
    yield call(draw(texts()))


@pre_tokenize.edge
def _():
    yield call(""), "an empty text"
    yield call("   "), "white space alone"
    yield call("end  "), "white space at the end"
    yield call("a\n b"), "a newline, then a space"
    yield call("a \nb"), "a space, then a newline"
    yield call("a\n\nb"), "two newlines"
    yield call("IT'S we'Ll"), "the endings are known in small letters alone"
    yield call("we'd I'm they've you're she'll can't"), "all seven endings"
    yield call("it’s"), "the typographic apostrophe is none"
    yield call("'tis the dogs' 'x"), "apostrophes elsewhere"
    yield call("a\u00a0b\u3000c\x85d"), "white space that is no plain space"
    yield call("x² ½ Ⅷ ٣٤"), "numbers that are no digits"
    yield call("snake_case __init__"), "the underscore is no letter"
    yield call("noe\u0308l हिन्दी"), "combining marks are no letters"
    yield call("abc123def"), "letters and digits without a space"
    yield call("1999 123456"), "long numbers"
    yield call("🙂🙂 👩\u200d💻"), "emoji"
    yield call("日本語。中文"), "letters of a script without spaces"
    yield call("a\x00b\ufeffc"), "control characters"
    yield call(" 's 's"), "a space before an ending"
    yield call("!!'s"), "an ending after punctuation"
    yield call("\ud800 x"), "a lone surrogate"
    yield call("二〇二四年 12三"), "words for numbers are letters; their sign for zero is a number"


pre_tokenize.mistake(
    "You split with `\\w`, which takes letters, digits and the underscore for one kind. They are three."
)(lambda text: regex.findall(r"'(?:[sdmt]|ll|ve|re)| ?\w+| ?[^\s\w]+|\s+(?!\S)|\s+", text))


def with_pattern(old, new):
    """pre_tokenize by GPT-2's pattern after one change."""
    pattern = tokenization.GPT2_PATTERN
    assert pattern.count(old) == 1, (old, pattern)
    pattern = pattern.replace(old, new)
    return lambda text: regex.findall(pattern, text)


ASCII_ONLY = "You know the letters and digits of English alone. `\\p{L}` and `\\p{N}` of the package `regex` know those of every script."
DIGITS_ALONE = "You take decimal digits for the only numbers. ½, ² and Ⅷ are of category N as well."
for old, new, says in (
    (r"\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+", r"[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+", ASCII_ONLY),
    (
        r"\s+(?!\S)|",
        "",
        "White space takes the space that belongs to the next word. All of a run but its last character is "
        "a piece: `\\s+(?!\\S)`.",
    ),
    (
        r"|\s+(?!\S)|\s+",
        r"|\s+(?!\S)",
        "You lose single white space before a word, such as a newline: a last alternative takes "
        "what white space is left.",
    ),
    (
        r"'(?:[sdmt]|ll|ve|re)|",
        "",
        "You do not cut endings such as 's and 'll: they are the first alternative.",
    ),
    (
        r"'(?:[sdmt]|ll|ve|re)|",
        r"(?i:'(?:[sdmt]|ll|ve|re))|",
        "You cut endings in capital letters, too. GPT-2 knows them in small letters alone.",
    ),
    (
        r"'(?:[sdmt]|ll|ve|re)|",
        r"['’](?:[sdmt]|ll|ve|re)|",
        "You cut after the typographic apostrophe as well. GPT-2 knows the straight one alone.",
    ),
    (
        r"'(?:[sdmt]|ll|ve|re)|",
        r" ?'(?:[sdmt]|ll|ve|re)|",
        "You let a space stand before an ending such as 's. The ending itself is the piece.",
    ),
    (
        r" ?\p{L}+|",
        r"\p{L}+|",
        "You cut a space off the word that follows it. Letters take a single space before them.",
    ),
    (
        r" ?\p{N}+|",
        r"\p{N}+|",
        "You cut a space off the number that follows it. Numbers take a single space before them.",
    ),
    (
        r" ?[^\s",
        r"[^\s",
        "You cut a space off the punctuation that follows it. It takes a single space before it.",
    ),
    (
        r" ?\p{N}+|",
        r" ?\p{N}|",
        "You cut numbers into single digits. GPT-2 takes as many as there are.",
    ),
    (
        r" ?\p{N}+|",
        r" ?\p{N}{1,3}|",
        "You cut numbers after three digits, as later tokenizers do. GPT-2 takes as many as there are.",
    ),
    (
        r"\p{N}+| ?[^\s\p{L}\p{N}]+",
        r"\p{Nd}+| ?[^\s\p{L}\p{Nd}]+",
        DIGITS_ALONE,
    ),
    (r" ?\p{N}+|", r" ?\p{Nd}+|", DIGITS_ALONE),
    (
        r"|ll|ve|re)|",
        r"|ll|ve|re)\b|",
        "You cut an ending off only where the word ends. GPT-2 does wherever it stands, as in 'select.",
    ),
    (
        r"\s+(?!\S)|",
        r"\s+(?=\s)|",
        "You split the last character off white space at the end of the text. There the run is one piece.",
    ),
    (
        r"\s+(?!\S)|",
        r"\s+(?= \S)|\s+\Z|",
        "You leave the last character of a run to the next piece only if it is a space. A newline is left, too.",
    ),
    (
        r" ?\p{L}+|",
        r"\s?\p{L}+|",
        "You let any white space stand before a word, a newline, too. Only a space does.",
    ),
    (
        r" ?\p{L}+| ?\p{N}+| ?[^\s",
        r"\s?\p{L}+|\s?\p{N}+|\s?[^\s",
        "You let any white space stand before letters, numbers and punctuation. Only a space does: a tab or a "
        "newline is cut off.",
    ),
    (
        r" ?\p{L}+|",
        r" ?[\p{L}\p{M}]+|",
        "You take combining marks for letters. They are of category M, and GPT-2 cuts them off.",
    ),
    (
        r"\p{N}]+",
        r"\p{N}]",
        "You cut punctuation into single characters. GPT-2 takes as many as there are.",
    ),
):
    pre_tokenize.mistake(says)(with_pattern(old, new))


@pre_tokenize.mistake(
    "You return the matches' groups. Write `(?:…)` for a group that does not capture, or take the whole match."
)
def _(text):
    return regex.findall(
        r"'(s|d|m|t|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", text
    )


@pre_tokenize.mistake(
    "You ask `isnumeric()` before you ask for letters. It is true of words for numbers too, such as 三, which are letters: "
    "of category L."
)
def _(text):
    numeric = "".join(sorted({c for c in text if c.isnumeric()}))
    number = f"[{numeric}]" if numeric else "(?!)"
    other = rf"[^\s\p{{L}}{numeric}]"
    return regex.findall(
        rf"'(?:[sdmt]|ll|ve|re)| ?(?:(?!{number})\p{{L}})+| ?{number}+| ?{other}+|\s+(?!\S)|\s+",
        text,
    )


@pre_tokenize.mistake("You split at white space and drop it. Joined, the pieces are the text.")
def _(text):
    return text.split()


@pre_tokenize.alternative("finditer, with the alternatives in verbose form")
def _(text):
    pattern = regex.compile(
        r"""
        '(?:s|d|m|t|ll|ve|re)
      | [ ]?[\p{Letter}]+
      | [ ]?[\p{Number}]+
      | [ ]?(?:(?![\s\p{L}\p{N}]).)+
      | \s+(?=\s|\Z)
      | \s
        """,
        regex.VERBOSE | regex.DOTALL,
    )
    return [match.group() for match in pattern.finditer(text)]


@pre_tokenize.alternative("character by character, with unicodedata")
def _(text):
    import unicodedata

    def kind(c):
        if regex.match(r"\s", c):
            return "space"
        category = unicodedata.category(c)[0]
        return category if category in "LN" else "other"

    pieces, i = [], 0
    while i < len(text):
        ending = next(
            (e for e in ("'s", "'d", "'m", "'t", "'ll", "'ve", "'re") if text.startswith(e, i)),
            None,
        )
        if ending:
            pieces.append(ending)
            i += len(ending)
            continue
        start = i + (text[i] == " " and i + 1 < len(text) and kind(text[i + 1]) != "space")
        first, end = kind(text[start]), start
        while end < len(text) and kind(text[end]) == first:
            end += 1
        if first == "space" and end < len(text) and end - i > 1:
            end -= 1
        pieces.append(text[i:end])
        i = end
    return pieces


# ------------------------------------------------------------------------------ train_bpe

train_bpe = Exercise(
    tokenization.train_bpe,
    title="Training that counts once",
    difficulty=3,
    minutes=60,
    points=4,
    probe=probes.trained,
    limit_s=30.0,
    hints=(
        "First write it plainly: `most_frequent_pair`, `merge_pair` on all words, again. Then every check but the "
        "last passes.",
        "Keep two dicts: pair → count, and pair → the numbers of the words that contain it. After a merge only "
        "the words of the merged pair change.",
        "For such a word: take the counts of its pairs away, merge, and add those of its new pairs.",
        "The most frequent pair can be found by `min` over the dict of counts. A heap of (-count, pair) is "
        "faster; an entry whose count is no longer true is thrown away when it comes out.",
        ("edge cases", "Pairs whose count has fallen to 0 are no pairs any more."),
    ),
)


@train_bpe.by_hand
def _():
    # low, lower, lowest: l o, then lo w, then low e
    words = [[108, 111, 119], [108, 111, 119, 101, 114], [108, 111, 119, 101, 115, 116]]
    yield call(words, [5, 2, 1], 3), [(108, 111), (256, 119), (257, 101)]
    yield call([[7, 7, 7, 7]], [1], 2), [(7, 7), (256, 256)]
    yield call([[3, 4], [1, 2]], [2, 2], 5), [(1, 2), (3, 4)]


@train_bpe.cases
def _(draw):
    words, counts = draw(counted_words(tokens=3, most=5))
    yield call(words, counts, draw(st.integers(0, 6)))


@train_bpe.cases(15)
def _(draw):
    words, counts = draw(counted_words(tokens=4, most=12))
    yield call([word * 2 for word in words], counts, 12)


@train_bpe.edge
def _():
    yield call([], [], 3), "no words"
    yield call([[5], []], [2, 2], 3), "no pairs"
    yield call([[1, 2, 3]], [4], 0), "no merges are asked for"
    yield call([[1, 2, 3]], [4], 9), "fewer merges than asked for"
    yield call([[7] * 7], [1], 9), "an odd run"
    yield call([[7] * 5, [7, 7], [7] * 8], [1, 3, 1], 9), "runs in several words"
    yield call([[1, 2, 1, 2, 1, 2, 1]], [3], 9), "the same pair in turns"
    yield (
        call([[1, 2, 3, 1, 2, 3], [2, 3], [3, 1]], [1, 2, 3], 9),
        "counts that fall while others rise",
    )
    yield call([[1, 2], [2, 1], [2, 2], [1, 1]], [1, 1, 1, 1], 9), "all equally frequent"
    yield call([[200, 100], [100, 200]], [3, 3], 2), "ties by the first token"
    yield call([[1, 2], [1, 2], [3, 4]], [2, 2, 3], 2), "the same word twice"
    yield call([(1, 2, 3), (1, 2)], (1, 2), 9), "the words are tuples"
    yield call([[0, 1, 0, 1], [2, 0]], [1, 1], 9), "token 0 is a token like others"
    yield (
        call([[1, 2, 9], [9, 9, 1, 2], [5, 1, 2]], [2, 2, 1], 4),
        "a merge brings pairs that were there before",
    )
    yield call(2000, 1, 200), "a large text, in which the work is counted"


BEFORE_ONCE = "You stop before pairs that occur once. Merges go on until no pair is left."
train_bpe.slips(
    {
        replace(
            "256 + len(merges)", "257 + len(merges)"
        ): "Your first token is 257. It is 256, the number of bytes.",
        replace(
            "256 + len(merges)", "max(map(max, filter(None, split))) + 1"
        ): "You number new tokens on from the largest one in the text. The first is 256.",
        replace(
            "(-count, pair) for",
            "(-count, pair[::-1]) for",
            "heappop(heap)\n",
            "heappop(heap)\n        pair = pair[::-1]\n",
            "(-pairs[other], other)",
            "(-pairs[other], other[::-1])",
        ): "Of "
        "pairs that are equally frequent you take that with the smaller second token. The first token decides.",
        replace(
            "(-count, pair) for",
            "(-count, (-pair[0], -pair[1])) for",
            "heappop(heap)\n",
            "heappop(heap)\n        pair = (-pair[0], -pair[1])\n",
            "(-pairs[other], other)",
            "(-pairs[other], (-other[0], -other[1]))",
        ): "Of pairs that are equally frequent you take the largest. The smallest is due.",
        replace(
            "pairs[pair] += counts[i]",
            "pairs[pair] += 1",
            "pairs[old] -= counts[i]",
            "pairs[old] -= 1",
            "pairs[new] += counts[i]",
            "pairs[new] += 1",
        ): "You count each distinct word once. It stands in the text `counts` times.",
        replace(
            "while heap and len(merges) < n_merges:", "while heap and len(merges) <= n_merges:"
        ): "You make one merge too many.",
        replace("if pairs[other]:", "if pairs[other] > 1:"): BEFORE_ONCE,
        replace(
            "        changed = set()\n",
            "        if count == -1:\n            break\n        changed = set()\n",
        ): BEFORE_ONCE,
        replace(
            "[list(word) for word in words]", "words"
        ): "You change the words of the caller. Copy them first.",
        replace(
            "[list(word) for word in words]", "[word.copy() for word in words]"
        ): "You copy words by a method that lists alone have. They may be other sequences, tuples say: `list(word)`.",
        replace(
            "[list(word) for word in words]",
            "[word[:] for word in words]",
            "merge_pair(split[i], pair, 256 + len(merges))",
            "split[i][:0] + merge_pair(split[i], pair, 256 + len(merges))",
        ): "Your copies of words are what the caller's are. They may be other sequences than lists, tuples say: "
        "`list(word)`.",
        replace(
            "        for pair in pairwise(word):\n            pairs[pair]",
            "        for pair in (p for p in pairwise(word) if p[0]):\n            pairs[pair]",
        ): "You take token 0 for none. It is a byte like others: ask `is not None`.",
        replace(
            "            for old in pairwise(split[i]):\n                pairs[old] -= counts[i]\n                changed.add(old)\n",
            "",
        ): "The pairs that a merge takes away are still counted. Take their counts away first.",
        replace(
            "            for new in pairwise(split[i]):\n                pairs[new] += counts[i]\n                where[new].add(i)\n                changed.add(new)\n",
            "",
        ): "You never count the pairs that a merge makes.",
        replace(
            "                where[new].add(i)\n", ""
        ): "You count the pairs that a merge makes, but do not note where they stand, so they are "
        "never merged there.",
        **{
            replace(*edit): "You take a pair at the "
            "count that it once had. Its count has changed since: throw such an entry away."
            for edit in (
                (
                    "            continue  # its count has changed; the heap has it again with the new one",
                    "            pass",
                ),
                ("if -count != pairs[pair]:", "if not pairs[pair]:"),
            )
        },
        replace(
            "if pairs[other]:", "if 255 + len(merges) in other:"
        ): "You push the pairs with the new token alone. Counts of others have fallen: push these, too.",
        replace(
            "                changed.add(new)\n", "", "                changed.add(old)\n", ""
        ): "Counts change, and your heap never hears of it: push the pairs whose counts changed.",
        replace(
            "            split[i] = merge_pair(split[i], pair, 256 + len(merges))",
            "            split[i] = merge_pair(split[i][::-1], pair[::-1], 256 + len(merges))[::-1]",
        ): "In a run of equal "
        "tokens you merge from the right. Occurrences are taken from left to right.",
        replace(
            "merges.append(pair)", "merges.append((pair, 256 + len(merges)))"
        ): "You return each pair with its token. The pair alone is asked for.",
    }
)


def counted(words, counts):
    pairs = Counter()
    for word, count in zip(words, counts, strict=False):
        for pair in pairwise(word):
            pairs[pair] += count
    return pairs


AT_ONCE = (
    "You choose all pairs by their counts in the bytes. After each merge the counts are others."
)


@train_bpe.mistake(AT_ONCE)
def _(words, counts, n_merges):
    pairs = counted(words, counts)
    return sorted(pairs, key=lambda p: (-pairs[p], p))[:n_merges]


MET_FIRST = (
    "Of pairs that are equally frequent you take the one that is met first. The smallest is due."
)
ONCE_A_WORD = "You count the pairs that a merge makes once for each word. The word stands in the text counts[i] times."


@train_bpe.mistake(MET_FIRST)
def _(words, counts, n_merges):
    split, merges = [list(word) for word in words], []
    while len(merges) < n_merges and (pairs := counted(split, counts)):
        merges.append(max(pairs, key=pairs.__getitem__))
        split = [merge_pair_of_the_book(word, merges[-1], 255 + len(merges)) for word in split]
    return merges


def in_a_dict(words, counts, n_merges, *, first=False, once=False):
    """Training with the counts in a dict. first, once: make the mistakes of these names."""
    words = [tuple(word) for word in words]
    pairs, where, merges = defaultdict(int), defaultdict(set), []
    for i, word in enumerate(words):
        for pair in pairwise(word):
            pairs[pair] += counts[i]
            where[pair].add(i)
    for step in range(n_merges):
        best = min(pairs, key=lambda p: -pairs[p] if first else (-pairs[p], p), default=None)
        if best is None or pairs[best] <= 0:
            break
        for i in sorted(where[best]):
            word = words[i]
            for pair in pairwise(word):
                pairs[pair] -= counts[i]
            words[i] = tuple(merge_pair_of_the_book(word, best, 256 + step))
            for pair in zip(words[i], words[i][1:], strict=False):
                pairs[pair] += 1 if once else counts[i]
                where[pair].add(i)
        del where[best]
        merges.append(best)
    return merges


@train_bpe.mistake(MET_FIRST)
def _(words, counts, n_merges):
    return in_a_dict(words, counts, n_merges, first=True)


@train_bpe.mistake(ONCE_A_WORD)
def _(words, counts, n_merges):
    return in_a_dict(words, counts, n_merges, once=True)


@train_bpe.mistake("You merge across words: no pair reaches from one word to the next.")
def _(words, counts, n_merges):
    text = [t for word, n in zip(words, counts, strict=False) for t in list(word) * n]
    merges = []
    while len(merges) < n_merges and len(text) > 1:
        pairs = Counter(pairwise(text))
        pair = min(pairs, key=lambda p: (-pairs[p], p))
        text = merge_pair_of_the_book(text, pair, 256 + len(merges))
        merges.append(pair)
    return merges


NAIVE = (
    "The merges are right, but the work is too much: each merge looks at all words. Keep the counts of pairs, note for "
    "each pair in which words it stands, and look at these alone."
)


@train_bpe.mistake(NAIVE)
def _(words, counts, n_merges):
    words, merges = [list(word) for word in words], []
    while len(merges) < n_merges:
        pairs = counted(words, counts)
        if not pairs:
            break
        pair = min(pairs, key=lambda p: (-pairs[p], p))
        words = [merge_pair_of_the_book(word, pair, 256 + len(merges)) for word in words]
        merges.append(pair)
    return merges


@train_bpe.mistake(NAIVE)
def _(words, counts, n_merges):
    words, merges = [list(word) for word in words], []
    pairs = counted(words, counts)
    while len(merges) < n_merges:
        pair = min(pairs, key=lambda p: (-pairs[p], p), default=None)
        if pair is None or pairs[pair] < 1:
            break
        for i, word in enumerate(words):
            new = merge_pair_of_the_book(word, pair, 256 + len(merges))
            if len(new) < len(word):
                for old in pairwise(word):
                    pairs[old] -= counts[i]
                for made in pairwise(new):
                    pairs[made] += counts[i]
                words[i] = new
        merges.append(pair)
    return merges


@train_bpe.mistake(NAIVE)
def _(words, counts, n_merges):
    words = [[int(token) for token in word] for word in words]  # nobody counts looks at these
    return tokenization.train_bpe_naively(words, counts, n_merges)


NO_PAIR_ANY_MORE = (
    "You go on when no pair is left. A pair whose count has fallen to 0 is none any more."
)


def with_pairs_of_count_0(drop_merged):
    def train(words, counts, n_merges):
        words, pairs, merges = [list(word) for word in words], Counter(), []
        where = defaultdict(set)
        for i, word in enumerate(words):
            for pair in pairwise(word):
                pairs[pair] += counts[i]
                where[pair].add(i)
        while pairs and len(merges) < n_merges:
            best = min(pairs, key=lambda p: (-pairs[p], p))
            for i in list(where[best]):
                for pair in pairwise(words[i]):
                    pairs[pair] -= counts[i]
                words[i] = merge_pair_of_the_book(words[i], best, 256 + len(merges))
                for pair in pairwise(words[i]):
                    pairs[pair] += counts[i]
                    where[pair].add(i)
            if drop_merged:
                del pairs[best], where[best]
            merges.append(best)
        return merges

    return train


train_bpe.mistake(NO_PAIR_ANY_MORE)(with_pairs_of_count_0(drop_merged=True))
train_bpe.mistake(NO_PAIR_ANY_MORE)(with_pairs_of_count_0(drop_merged=False))


@train_bpe.mistake(
    "Where two occurrences touch your counts go wrong: the left neighbour of the second is the new token already."
)
def _(words, counts, n_merges):
    words = [list(word) for word in words]
    pairs, where, merges = counted(words, counts), defaultdict(set), []
    for i, word in enumerate(words):
        for pair in pairwise(word):
            where[pair].add(i)
    for token in range(256, 256 + n_merges):
        best = min(pairs, key=lambda p: (-pairs[p], p), default=None)
        if best is None or pairs[best] <= 0:
            break
        for i in where.pop(best):
            word, n, j = words[i], counts[i], 0
            while j + 1 < len(word):
                if (word[j], word[j + 1]) != best:
                    j += 1
                    continue
                for side, old, new in (
                    (word[j - 1 : j], (word[j - 1], word[j]), (word[j - 1], token)),
                    (
                        word[j + 2 : j + 3],
                        (word[j + 1], *word[j + 2 : j + 3]),
                        (token, *word[j + 2 : j + 3]),
                    ),
                ):
                    if side:
                        pairs[old] -= n
                        pairs[new] += n
                        where[new].add(i)
                j += 2
            words[i] = merge_pair_of_the_book(word, best, token)
        pairs.pop(best)
        merges.append(best)
    return merges


@train_bpe.alternative("on copies of the tokens")
def _(words, counts, n_merges):
    return tokenization.train_bpe([list(map(int, word)) for word in words], counts, n_merges)


@train_bpe.alternative("counts in a dict, its smallest found by min")
def _(words, counts, n_merges):
    return in_a_dict(words, counts, n_merges)


@train_bpe.alternative("only the neighbours of a merge are counted anew")
def _(words, counts, n_merges):
    words = [list(word) for word in words]
    pairs, where, merges = Counter(), {}, []
    for i, word in enumerate(words):
        for left, right in pairwise(word):
            pairs[left, right] += counts[i]
            where.setdefault((left, right), set()).add(i)
    while len(merges) < n_merges and pairs:
        top = max(pairs.values())
        if top == 0:
            break
        pair = min(p for p, n in pairs.items() if n == top)
        token = 256 + len(merges)
        for i in where.pop(pair):
            word, n, j = words[i], counts[i], 0
            while j + 1 < len(word):
                if word[j] != pair[0] or word[j + 1] != pair[1]:
                    j += 1
                    continue
                if j:
                    pairs[word[j - 1], word[j]] -= n
                    pairs[word[j - 1], token] += n
                    where.setdefault((word[j - 1], token), set()).add(i)
                if j + 2 < len(word):
                    pairs[word[j + 1], word[j + 2]] -= n
                    pairs[token, word[j + 2]] += n
                    where.setdefault((token, word[j + 2]), set()).add(i)
                word[j : j + 2] = [token]
                j += 1
        pairs.pop(pair, None)
        merges.append(pair)
    return merges


# ------------------------------------------------------------------------------ encode

encode = Exercise(
    tokenization.encode,
    title="Text to tokens",
    difficulty=2,
    minutes=30,
    points=2,
    hints=(
        "Cut the text with `pre_tokenize`. A piece begins as `list(piece.encode())`: its bytes.",
        "Of all pairs in the piece take the one with the smallest token in `merges`, and merge it. Then look again.",
        "`min(pairwise(ids), key=lambda pair: merges.get(pair, inf))` is that pair, or one that has no merge: then "
        "the piece is done.",
        ("edge cases", "A piece of one byte has no pair at all."),
    ),
)
MERGES = {(108, 111): 256, (256, 119): 257, (101, 114): 258, (32, 257): 259, (257, 258): 260}
A_RUN = {(97, 97): 256, (256, 256): 257, (257, 97): 258}


@encode.by_hand
def _():
    yield call("low", MERGES), [257]
    yield call("lower slow", MERGES), [260, 32, 115, 257]
    yield call("é", {}), [195, 169]
    yield call("abc", {(98, 99): 256, (97, 98): 257}), [97, 256]


@st.composite
def trained_merges(draw, letters=(97, 98, 32)):
    """Merges as training makes them, of words of few letters."""
    word = st.lists(st.sampled_from(letters), min_size=1, max_size=6)
    words = draw(st.lists(word, min_size=1, max_size=6))
    made = tokenization.train_bpe(words, [1] * len(words), draw(st.integers(1, 8)))
    return {pair: 256 + i for i, pair in enumerate(made)}


@encode.cases
def _(draw):
    text = "".join(
        draw(st.lists(st.sampled_from(("a", "b", "ab", " ", "ba", "1", "!")), max_size=9))
    )
    yield call(text, draw(trained_merges()))


@encode.cases(15)
def _(draw):
    yield call(draw(texts(5)), draw(trained_merges((195, 169, 227, 129, 160))))


@encode.edge
def _():
    yield call("", MERGES), "an empty text"
    yield call("x", MERGES), "one byte"
    yield call("low low", {}), "no merges at all"
    yield call("aaaaaaa", A_RUN), "a run"
    yield call("aaa", {(97, 97): 256, (97, 256): 257}), "the first two of three"
    yield call("a b", {(97, 32): 256, (32, 98): 257}), "a merge across pre-tokens is none"
    yield call("ab12", {(98, 49): 256, (97, 98): 257}), "letters and digits are apart"
    yield (
        call("abcd", {(99, 100): 256, (97, 98): 257, (98, 99): 258}),
        "the later place has the earlier merge",
    )
    yield call("abab", {(97, 98): 256, (256, 256): 257}), "a merge of merges"
    yield (
        call("abcd", {(97, 98): 256, (256, 99): 257, (99, 100): 258}),
        "a pair that a merge makes comes before one that was there",
    )
    yield (
        call("abc", {(97, 98): 257, (98, 99): 256, (257, 99): 258}),
        "the dict's order is not that of the merges",
    )
    yield (
        call("naïve 日本", {(195, 175): 256, (230, 151): 257, (257, 165): 258}),
        "characters of several bytes",
    )
    yield (
        call("🙂", {(240, 159): 256, (153, 130): 257, (256, 257): 258}),
        "a character of four bytes",
    )
    yield call("a\ud800", MERGES), "a surrogate has no bytes"
    yield call("don't", {(39, 116): 256, (110, 39): 257}), "the apostrophe belongs to the ending"


encode.slips(
    {
        replace(
            "in pre_tokenize(text)", "in [text]"
        ): "You merge across pre-tokens. Cut the text by `pre_tokenize` first.",
        replace(
            "in pre_tokenize(text)", "in text.split()"
        ): "You cut at white space and drop it. Cut by `pre_tokenize`.",
        replace(
            "list(piece.encode())", "list(map(ord, piece))"
        ): "You begin with code points. Begin with the bytes of UTF-8.",
        replace(
            "list(piece.encode())", 'list(piece.encode("latin-1", "replace"))'
        ): "You begin with Latin-1, which has a question mark for "
        "most characters. Begin with the bytes of UTF-8.",
        replace(
            "list(piece.encode())", 'list(piece.encode(errors="replace"))'
        ): "You replace a surrogate by a question mark. It has no bytes: let `encode` raise.",
        replace(
            "list(piece.encode())", 'list(piece.encode(errors="surrogatepass"))'
        ): "You write a surrogate as bytes that are no UTF-8. Let `encode` raise.",
        replace(
            "min(ready)", "max(ready)"
        ): "You apply the latest merge first. The earliest, with the smallest token, comes first.",
        replace(
            "min(ready)", "ready[0]"
        ): "You merge the leftmost pair that can be. Of all pairs in the piece the one with the smallest "
        "token comes first.",
        replace(
            "min(ready)", "ready[-1]"
        ): "You merge the rightmost pair that can be. Of all pairs in the piece the one with the smallest "
        "token comes first.",
        replace(
            "merge_pair(ids, pair, first)", "merge_pair(ids[::-1], pair[::-1], first)[::-1]"
        ): "In a run of equal tokens you merge from the right. Occurrences are taken from left to right.",
        replace(
            "            first = min(ready)\n            pair = next(pair for pair in pairwise(ids) if merges.get(pair) == first)\n            ids = merge_pair(ids, pair, first)\n",
            "            for first in sorted(set(ready)):\n                pair = next(pair for pair in merges if merges[pair] == first)\n                ids = merge_pair(ids, pair, first)\n",
        ): "You merge all pairs that you found, and only then look again. A merge may make a pair that comes before "
        "those: look after each.",
        replace(
            "while ready := [merges[pair] for pair in pairwise(ids) if pair in merges]:",
            "if ready := [merges[pair] for pair in pairwise(ids) if pair in merges]:",
        ): "You merge one pair alone. Go on until none is left.",
        replace(
            "tokens += ids", "tokens.append(ids)"
        ): "You return a list for each piece. One list of tokens is asked for.",
    }
)


@encode.mistake(
    "You go through the merges in the order of the dict. A merge comes the earlier, the smaller its token is."
)
def _(text, merges):
    out = []
    for piece in tokenization.pre_tokenize(text):
        ids = list(piece.encode())
        for pair, token in merges.items():
            ids = merge_pair_of_the_book(ids, pair, token)
        out += ids
    return out


@encode.mistake(
    "You take the longest token that fits, from left to right. Merges are applied in their order, wherever they stand."
)
def _(text, merges):
    vocab = {bytes([b]): b for b in range(256)}
    spelled = {b: bytes([b]) for b in range(256)}
    for (a, b), token in sorted(merges.items(), key=lambda item: item[1]):
        spelled[token] = spelled[a] + spelled[b]
        vocab[spelled[token]] = token
    out = []
    for piece in tokenization.pre_tokenize(text):
        data = piece.encode()
        while data:
            n = max(n for n in range(1, len(data) + 1) if data[:n] in vocab)
            out.append(vocab[data[:n]])
            data = data[n:]
    return out


@encode.mistake(
    "You go from left to right and merge the last two tokens as soon as they are a pair. Of all pairs in the piece the "
    "one with the smallest token comes first."
)
def _(text, merges):
    out = []
    for piece in tokenization.pre_tokenize(text):
        ids = []
        for byte in piece.encode():
            ids.append(byte)
            while tuple(ids[-2:]) in merges:
                ids[-2:] = [merges[tuple(ids[-2:])]]
        out += ids
    return out


@encode.mistake("For a piece of one byte `min` has no pair to choose from.")
def _(text, merges):
    out = []
    for piece in tokenization.pre_tokenize(text):
        ids = list(piece.encode())
        while True:
            pair = min(pairwise(ids), key=lambda p: merges.get(p, inf))
            if pair not in merges:
                break
            ids = merge_pair_of_the_book(ids, pair, merges[pair])
        out += ids
    return out


@encode.mistake(
    "You stop too early where characters have several bytes: a piece can take one merge less than it has bytes."
)
def _(text, merges):
    out = []
    for piece in tokenization.pre_tokenize(text):
        ids = list(piece.encode())
        for _ in piece:
            i = min(
                range(len(ids) - 1),
                key=lambda i: merges.get((ids[i], ids[i + 1]), inf),
                default=None,
            )
            if i is None or (ids[i], ids[i + 1]) not in merges:
                break
            ids[i : i + 2] = [merges[ids[i], ids[i + 1]]]
        out += ids
    return out


@encode.alternative("all merges in order, on all pieces")
def _(text, merges):
    pieces = [list(piece.encode("utf-8")) for piece in tokenization.pre_tokenize(text)]
    for pair, token in sorted(merges.items(), key=lambda item: item[1]):
        pieces = [merge_pair_of_the_book(ids, pair, token) for ids in pieces]
    return [token for ids in pieces for token in ids]


@encode.alternative("one occurrence at a time, as tiktoken does")
def _(text, merges):
    out = []
    for piece in tokenization.pre_tokenize(text):
        ids = [*piece.encode()]
        while len(ids) > 1:
            i = min(range(len(ids) - 1), key=lambda i: merges.get((ids[i], ids[i + 1]), inf))
            if (ids[i], ids[i + 1]) not in merges:
                break
            ids[i : i + 2] = [merges[ids[i], ids[i + 1]]]
        out.extend(ids)
    return out


# ------------------------------------------------------------------------------ special tokens

special_token_split = Exercise(
    tokenization.special_token_split,
    title="Special tokens",
    difficulty=2,
    minutes=20,
    points=2,
    hints=(
        "`re.split` with a group that captures keeps what it splits at.",
        "A special token is plain text: `re.escape` it. In `a|b` the first that fits is taken, so the longest comes first.",
        (
            "edge cases",
            "Between two special tokens that touch `re.split` gives an empty text. And without special tokens "
            "the pattern would be empty.",
        ),
    ),
)
END, START = "<|end|>", "<|start|>"


@special_token_split.by_hand
def _():
    yield call(f"hi{END}there", [END]), ["hi", END, "there"]
    yield call("<a><a><b>", ["<a>", "<a><b>"]), ["<a>", "<a><b>"]
    yield call("plain", [END]), ["plain"]


@special_token_split.cases
def _(draw):
    tokens = draw(
        st.lists(
            st.sampled_from(("ab", "abc", "b", "bca", ".", "a.c", "|", "(", "$")),
            max_size=4,
            unique=True,
        )
    )
    text = "".join(
        draw(
            st.lists(st.sampled_from(("a", "b", "c", "abc", ".", "|", "(", "$", "\n")), max_size=8)
        )
    )
    yield call(text, tokens)


@special_token_split.edge
def _():
    yield call("", [END]), "an empty text"
    yield call("plain", []), "no special tokens"
    yield call("", []), "nothing at all"
    yield call(END, [END]), "a special token alone"
    yield call(END + END, [END]), "two that touch"
    yield call(f"{END}a{START}", (START, END)), "at both ends; the tokens in a tuple"
    yield call("<|end|><|end|>>", ["<|end|>", "<|end|>>"]), "the longer one, given last"
    yield call("<|end|>>", ["<|end|>>", "<|end|>"]), "the longer one, given first"
    yield call("abcd", ["bcd", "ab"]), "the one that begins first, though it is shorter"
    yield call("aaa", ["aa"]), "from left to right"
    yield call("1+1 1.1", ["1+1", "1.1"]), "characters that mean something in a pattern"
    yield call("1x1 11", ["1.1", "1+1"]), "and their patterns are not in the text"
    yield call(f"a\n{END}\nb", [END]), "newlines"
    yield call("a<|END|>b", [END]), "capital letters are others"
    yield call("x|y", ["|"]), "a bar"
    yield call("a\\d1", ["\\d"]), "a backslash"


WHITE_SPACE_DROPPED = "You drop pieces of white space. Joined, the pieces are the text."
special_token_split.mistake(
    WHITE_SPACE_DROPPED,
    replace("if text else []", "if text.strip() else []", "if piece]", "if piece.strip()]"),
)
special_token_split.mistake(
    "An empty text has no pieces.",
    replace(
        "    if not special:\n        return [text] if text else []\n",
        "    if not special or not text:\n        return [text]\n",
    ),
)
special_token_split.slips(
    {
        replace(
            "map(re.escape, longest_first)", "longest_first"
        ): "Special tokens are plain text. `|` and `.` mean something in a pattern: `re.escape`.",
        replace(
            "sorted(special, key=len, reverse=True)", "list(special)"
        ): "Where several begin at the same place you take the one that is "
        "given first. The longest is due.",
        replace(
            "sorted(special, key=len, reverse=True)", "sorted(special, key=len)"
        ): "Where several begin at the same place you take the shortest. The longest is due.",
        replace(
            "if piece]", "]"
        ): "Empty pieces stand at the ends and between special tokens that touch. Drop them.",
        replace(
            'f"({pattern})"', "pattern"
        ): "You drop the special tokens themselves. A group that captures keeps them.",
        replace(
            "    if not special:\n        return [text] if text else []\n", ""
        ): "Without special tokens the pattern is empty, and splits everywhere.",
        replace("return [text] if text else []", "return [text]"): "An empty text has no pieces.",
        replace(
            "map(re.escape, longest_first)", '(t.replace("|", r"\\|") for t in longest_first)'
        ): "You escape the bar alone. Other characters mean something in a pattern, too: `re.escape` knows them all.",
        replace(
            'f"({pattern})", text)', 'f"({pattern})", text, flags=re.IGNORECASE)'
        ): "You take capital letters for small ones. A special token is just these characters.",
        replace("if piece]", "if piece in special or piece.strip()]"): WHITE_SPACE_DROPPED,
        replace(
            "for piece in re.split",
            "for piece in re.split",
            "return [piece for",
            "return [piece.strip() for",
        ): "You strip the pieces. Joined, they are the text.",
        replace(
            'f"({pattern})", text)', 'f"({pattern})", text, maxsplit=1)'
        ): "You split at the first special token alone.",
    }
)


@special_token_split.mistake(
    "You mark each special token by replacing it. A shorter one within it is marked after it, and cuts it. Take the "
    "longest at each place, and go on behind it."
)
def _(text, special):
    for token in sorted(special, key=len, reverse=True):
        text = text.replace(token, f"\0{token}\0")
    return [piece for piece in text.split("\0") if piece]


@special_token_split.mistake(
    "You return the text between special tokens character by character. What stands between two of them is "
    "one piece."
)
def _(text, special):
    pieces = tokenization.special_token_split(text, special)
    return [part for piece in pieces for part in ([piece] if piece in special else piece)]


@special_token_split.mistake(
    "You split by the longest token first, in the whole text. From left to right the one that begins first is "
    "taken, even if a longer one begins within it."
)
def _(text, special):
    pieces = [text]
    for token in sorted(special, key=len, reverse=True):
        split = []
        for piece in pieces:
            split += [piece] if piece in special else re.split(f"({re.escape(token)})", piece)
        pieces = split
    return [piece for piece in pieces if piece]


@special_token_split.alternative("find the next one, again and again")
def _(text, special):
    pieces, i, start = [], 0, 0
    while i < len(text):
        here = [token for token in special if text.startswith(token, i)]
        if not here:
            i += 1
            continue
        pieces += [text[start:i], max(here, key=len)]
        i += len(pieces[-1])
        start = i
    return [piece for piece in [*pieces, text[start:]] if piece]


@special_token_split.alternative("finditer")
def _(text, special):
    if not special:
        return [text][: len(text)]
    found = re.compile(
        "|".join(re.escape(t) for t in sorted(special, key=lambda t: -len(t)))
    ).finditer(text)
    pieces, at = [], 0
    for match in found:
        pieces += [text[at : match.start()]] * (match.start() > at) + [match.group()]
        at = match.end()
    return pieces + [text[at:]] * (at < len(text))


# ------------------------------------------------------------------------------ encode_stream

encode_stream = Exercise(
    tokenization.encode_stream,
    title="A text that never ends",
    difficulty=3,
    minutes=35,
    points=3,
    probe=probes.streamed_tokens,
    limit_s=20.0,
    hints=(
        "Keep the text whose pieces are not certain yet. When a chunk comes, put it behind that, and cut both together.",
        "Of the pieces all but the last two are certain: encode these, and keep the last two as text.",
        "After the last chunk what was kept is certain, too.",
        (
            "edge cases",
            "Chunks may be empty, or end in the middle of a word, of a run of spaces, of 've.",
        ),
    ),
)
LETTERS = {(97, 97): 256, (32, 97): 257, (256, 256): 258, (39, 118): 259, (32, 32): 260}


def streamed(chunks, merges, take=None):
    """The case with the latest chunk at which each token may come."""
    due, held = [], ""
    for number, chunk in enumerate(chunks, 1):
        pieces = tokenization.pre_tokenize(held + chunk)
        held = "".join(pieces[-2:])
        due += [number] * sum(len(tokenization.encode(p, merges)) for p in pieces[:-2])
    due += [len(chunks)] * len(tokenization.encode(held, merges))
    given = {} if take is None else {"take": take}
    return call(chunks, merges, due=due[:take], **given)


def seen_of(*tokens):
    return {
        "tokens": list(tokens),
        "tokens that come too late, with the chunks taken by then": [],
        "chunks taken before a token is asked for": 0,
    }


@encode_stream.by_hand
def _():
    yield streamed(["aa", "aa a"], LETTERS), seen_of(258, 257)
    yield streamed(["a ", " a"], LETTERS), seen_of(97, 32, 257)
    yield streamed(["a'v", "e"], LETTERS), seen_of(97, 259, 101)


@encode_stream.cases
def _(draw):
    text = draw(texts(6)) + "".join(
        draw(st.lists(st.sampled_from(("a", " a", "'ve ", "  ", "1", "'", "\n")), max_size=6))
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    chunks = [text[i:j] for i, j in pairwise([0, *cuts, len(text)])]
    yield streamed(chunks, LETTERS)


@encode_stream.edge
def _():
    yield streamed([], LETTERS), "no chunk"
    yield streamed(["", "", "a", ""], LETTERS), "empty chunks"
    yield streamed(list("aaaa aa  aa'll we've 12 !a"), LETTERS), "one character at a time"
    yield streamed(["we'", "v", "e a"], LETTERS), "an ending in three chunks"
    yield streamed(["a'", "l", "l b"], LETTERS), "another ending in three chunks"
    yield streamed(["a  ", "  ", " a"], LETTERS), "a run of spaces"
    yield streamed(["a \n", "\n", "a"], LETTERS), "a run of white space that ends in a newline"
    yield (
        streamed(["\n\n\na b"], {(10, 10): 256, (256, 10): 257}),
        "white space that is two pieces, and one by itself",
    )
    yield streamed(["a a a a a a", "a a"], LETTERS), "a chunk with many pieces"
    yield (
        streamed(["a b c d e f ", "g h i j", " k l m"], {}, take=2),
        "two tokens are asked for: one chunk is enough",
    )
    yield (
        streamed(["a b c d e f ", "g h i j", " k l m"], {}, take=9),
        "the first chunk is given out before the second is taken",
    )
    yield streamed(["日本", "語 ", "🙂a"], LETTERS), "characters of several bytes"
    yield streamed(["a b c d e f g h i j k l m n "] * 6, {}), "many chunks of many pieces"
    yield call(100, {}, within=200_000), "400 kB, of which little is kept"


WHOLE = "You read the whole stream before the first token. Give out what is certain, then take the next chunk."
encode_stream.slips(
    {
        replace(
            'held = "".join(pieces[-2:])',
            'held = "".join(pieces[-1:])',
            "in pieces[:-2]",
            "in pieces[:-1]",
        ): "You keep one piece back. Two can still "
        'change: after "\'v" comes an e, and both become one.',
        replace(
            'held = "".join(pieces[-2:])', 'held = ""', "in pieces[:-2]", "in pieces"
        ): "You encode each chunk by itself. A piece may begin in one chunk and end in another.",
        replace(
            "yield from encode(held, merges)", "return"
        ): "What you keep back is never given out when the stream ends.",
        replace("    for chunk in chunks:\n", '    for chunk in ["".join(chunks)]:\n'): WHOLE,
        replace(
            "pre_tokenize(held + chunk)", "pre_tokenize(chunk + held)"
        ): "You put what was kept behind the next chunk. It stands before it.",
        replace(
            '"".join(pieces[-2:])', '" ".join(pieces[-2:])'
        ): "You join the kept pieces with a space. Their own spaces are in them.",
        replace(
            "        for piece in pieces[:-2]:\n            yield from encode(piece, merges)\n",
            '        yield from encode("".join(pieces[:-2]), merges)\n',
        ): "You join the pieces that are certain, and `encode` cuts them anew, without what follows: three newlines "
        "before a letter are then one piece in place of two. Encode each piece by itself.",
        replace(
            "in pieces[:-2]", "in pieces"
        ): "What you keep back you give out as well, so it comes twice.",
        replace(
            'held = "".join(pieces[-2:])',
            'held = "".join(pieces[-40:])',
            "in pieces[:-2]",
            "in pieces[:-40]",
        ): "You keep more back than you need. Only the last two pieces can change.",
        replace(
            "yield from encode(piece, merges)",
            "yield encode(piece, merges)",
            "    yield from encode(held",
            "    yield encode(held",
        ): "You yield lists. Tokens are asked for, one by one: `yield from`.",
    }
)


@encode_stream.mistake(
    "You cut at the last space. White space before a word is a piece of its own, and of a run only the last space "
    "belongs to the word."
)
def _(chunks, merges):
    held = ""
    for chunk in chunks:
        held += chunk
        cut = held.rfind(" ") + 1
        yield from tokenization.encode(held[:cut], merges)
        held = held[cut:]
    yield from tokenization.encode(held, merges)


@encode_stream.mistake(
    "You cut before the last space. White space before it may belong to the same piece, and text without a space may "
    "be certain: keep the last two pieces."
)
def _(chunks, merges):
    held = ""
    for chunk in chunks:
        held += chunk
        cut = max(held.rfind(" "), 0)
        yield from tokenization.encode(held[:cut], merges)
        held = held[cut:]
    yield from tokenization.encode(held, merges)


@encode_stream.mistake(
    "You take an empty chunk for the end. The stream ends where the iterator does."
)
def _(chunks, merges):
    held, source = "", iter(chunks)
    while chunk := next(source, ""):
        pieces = tokenization.pre_tokenize(held + chunk)
        held = "".join(pieces[-2:])
        for piece in pieces[:-2]:
            yield from tokenization.encode(piece, merges)
    yield from tokenization.encode(held, merges)


@encode_stream.mistake(
    "You take a chunk when the function is called. Take it when a token is asked for, as a generator does."
)
def _(chunks, merges):
    source = iter(chunks)
    first = list(islice(source, 1))
    return tokenization.encode_stream(chain(first, source), merges)


@encode_stream.mistake(
    "You keep all the text and encode it again with each chunk. Keep only what can still change."
)
def _(chunks, merges):
    text, given = "", 0
    for chunk in chunks:
        text += chunk
        pieces = tokenization.pre_tokenize(text)
        for piece in pieces[given : max(len(pieces) - 2, given)]:
            yield from tokenization.encode(piece, merges)
        given = max(len(pieces) - 2, given)
    for piece in tokenization.pre_tokenize(text)[given:]:
        yield from tokenization.encode(piece, merges)


@encode_stream.mistake("You take the next chunk before you have given out what is certain.")
def _(chunks, merges):
    waiting, held = [], ""
    for chunk in chunks:
        yield from waiting
        pieces = tokenization.pre_tokenize(held + chunk)
        held = "".join(pieces[-2:])
        waiting = [t for piece in pieces[:-2] for t in tokenization.encode(piece, merges)]
    yield from waiting
    yield from tokenization.encode(held, merges)


@encode_stream.mistake(WHOLE)
def _(chunks, merges):
    return tokenization.encode("".join(chunks), merges)


class Queued:
    """An iterator that keeps a queue of tokens."""

    def __init__(self, chunks, merges):
        self.chunks, self.merges, self.held, self.queue = iter(chunks), merges, "", []

    def __iter__(self):
        return self

    def __next__(self):
        while not self.queue:
            if self.held is None:
                raise StopIteration
            chunk = next(self.chunks, None)
            if chunk is None:
                self.queue, self.held = tokenization.encode(self.held, self.merges), None
            else:
                *sure, one, two = ["", "", *tokenization.pre_tokenize(self.held + chunk)]
                self.queue = [t for piece in sure for t in tokenization.encode(piece, self.merges)]
                self.held = one + two
        return self.queue.pop(0)


@encode_stream.alternative("an iterator class that keeps a queue")
def _(chunks, merges):
    return Queued(chunks, merges)


@encode_stream.alternative("the place from which nothing is certain")
def _(chunks, merges):
    text = ""
    for chunk in chunks:
        text += chunk
        ends = [m.end() for m in regex.finditer(tokenization.GPT2_PATTERN, text)]
        sure = ends[-3] if len(ends) > 2 else 0
        for piece in tokenization.pre_tokenize(text)[: max(len(ends) - 2, 0)]:
            yield from tokenization.encode(piece, merges)
        text = text[sure:]
    yield from tokenization.encode(text, merges)


# ------------------------------------------------------------------------------ decode

decode = Exercise(
    tokenization.decode,
    title="Tokens to text",
    difficulty=1,
    minutes=15,
    points=1,
    probe=probes.of_bytes,
    hints=(
        'Put the bytes of all tokens together first: `b"".join(…)`.',
        '`bytes.decode` takes `errors`; "replace" puts U+FFFD where there is no character.',
        ("edge cases", "`vocab[-1]` is no IndexError in Python. Look at the id before you use it."),
    ),
)
BYTES = [[b] for b in range(256)]
SPELLED = [[104, 105], [195], [169], [240, 159], [153, 130], [32], [255]]


@decode.by_hand
def _():
    yield call([0, 5, 0], SPELLED), "hi hi"
    yield call([1, 2], SPELLED), "é"
    yield call([1, 0], SPELLED), "\ufffdhi"


@decode.cases
def _(draw):
    yield call(draw(st.lists(st.integers(0, 6), max_size=8)), SPELLED)


@decode.cases(15)
def _(draw):
    data = draw(texts(4)).encode(errors="replace")
    cut = draw(st.integers(0, len(data)))
    yield call([*data[:cut], 256], [*BYTES, list(data[cut:])])


@decode.edge
def _():
    yield call([], SPELLED), "no tokens"
    yield call([3, 4], SPELLED), "a character in two tokens"
    yield call([3], SPELLED), "half a character"
    yield call([4, 3], SPELLED), "the halves the wrong way round"
    yield call([6, 6, 0], SPELLED), "bytes that UTF-8 never has"
    yield call([195, 195, 169], BYTES), "a beginning without its end"
    yield call([237, 160, 128], BYTES), "the bytes of a surrogate"
    yield call([192, 128], BYTES), "a zero written too long"
    yield call([244, 144, 128, 128], BYTES), "beyond Unicode"
    yield call([239, 187, 191, 97], BYTES), "a byte order mark stays"
    yield call([13, 10, 9, 0], BYTES), "control characters"
    yield call([7], SPELLED), "an id that is one too large"
    yield call([-1], SPELLED), "a negative id"
    yield call([0, 90], SPELLED), "an id that is far too large"
    yield call([0, 256], BYTES), "no token 256"


decode.slips(
    {
        replace(
            'data.decode(errors="replace")', "data.decode()"
        ): 'Tokens in any order may be no UTF-8. Then errors="replace" puts '
        "U+FFFD there; yours raises.",
        replace(
            'errors="replace"', 'errors="ignore"'
        ): "You leave out bytes that are no UTF-8. U+FFFD stands in their place.",
        replace(
            'errors="replace"', 'errors="backslashreplace"'
        ): "You write bytes that are no UTF-8 as codes. U+FFFD stands in their place.",
        replace(
            'errors="replace"', 'errors="surrogateescape"'
        ): "You write bytes that are no UTF-8 as surrogates. U+FFFD stands in their place.",
        replace(
            'data.decode(errors="replace")', 'data.decode("latin-1")'
        ): "You read the bytes as Latin-1, one character each. They are UTF-8.",
        replace(
            'data.decode(errors="replace")', 'data.decode("ascii", errors="replace")'
        ): "You read the bytes as ASCII. They are UTF-8.",
        replace(
            'data.decode(errors="replace")', 'data.decode("utf-8-sig", errors="replace")'
        ): "You drop a byte order mark at the beginning. It is a character like others.",
        replace(
            "not 0 <= token < len(vocab)", "token >= len(vocab)"
        ): "A negative id takes a token from the end of the vocabulary. Raise ValueError.",
        replace(
            "not 0 <= token < len(vocab)", "token < 0"
        ): "An id beyond the vocabulary raises IndexError. ValueError is due.",
        replace(
            "not 0 <= token < len(vocab)", "not 0 <= token <= len(vocab)"
        ): "The largest id is len(vocab) - 1. For len(vocab) you raise "
        "IndexError; ValueError is due.",
        replace(
            "not 0 <= token < len(vocab)", "False"
        ): "You use an id before you look at it. Raise ValueError for one that vocab does not have.",
        replace(
            "data += vocab[token]", 'data += vocab[token].rstrip(b"\\0")'
        ): "You lose zero bytes at the end of a token. A zero is a byte like others.",
        replace(
            "data += vocab[token]", "data = vocab[token] + data"
        ): "You put each token before those that came. It follows them.",
        replace(
            'data.decode(errors="replace")',
            'data.decode(errors="replace").replace("\\r\\n", "\\n")',
        ): "You change line ends. Text comes back as it is.",
        replace(
            "            raise ValueError(", "            continue\n            raise ValueError("
        ): "You skip an id that vocab does not have. Raise ValueError.",
    }
)


@decode.mistake(
    "You read each token as UTF-8 by itself. A character may begin in one token and end in another: put the bytes together first."
)
def _(ids, vocab):
    ids = list(ids)
    if any(not 0 <= i < len(vocab) for i in ids):
        raise ValueError(ids)
    return "".join(vocab[i].decode(errors="replace") for i in ids)


@decode.mistake(
    "You go through ids twice. They may come from an iterator, which can be gone through once."
)
def _(ids, vocab):
    if any(not 0 <= i < len(vocab) for i in ids):
        raise ValueError("no such token")
    return b"".join(vocab[i] for i in ids).decode(errors="replace")


@decode.mistake(
    "What is left at the end is lost. Half a character there becomes U+FFFD: tell the decoder that the text is over."
)
def _(ids, vocab):
    reader, text = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for i in ids:
        if not 0 <= i < len(vocab):
            raise ValueError(i)
        text += reader.decode(vocab[i])
    return text


@decode.alternative("join, from a list")
def _(ids, vocab):
    ids = list(ids)
    for i in ids:
        if i < 0 or i >= len(vocab):
            raise ValueError(f"no token {i}")
    return str(b"".join(map(vocab.__getitem__, ids)), "utf-8", "replace")


@decode.alternative("with the incremental decoder")
def _(ids, vocab):
    reader, text = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for i in ids:
        if i not in range(len(vocab)):
            raise ValueError(i)
        text += reader.decode(vocab[i])
    return text + reader.decode(b"", True)


# ------------------------------------------------------------------------------ bytes_to_unicode

bytes_to_unicode = Exercise(
    tokenization.bytes_to_unicode,
    title="Bytes that can be seen",
    difficulty=1,
    minutes=15,
    points=1,
    hints=(
        "Begin with those that stand for themselves: three ranges. `range` leaves out its end.",
        "Go through the other bytes in ascending order, and give out code points from 256 on.",
    ),
)


@bytes_to_unicode.by_hand
def _():
    own = "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"
    own += "¡¢£¤¥¦§¨©ª«¬®¯°±²³´µ¶·¸¹º»¼½¾¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÿ"
    seen = {ord(c): c for c in own}
    hidden = [*range(33), *range(127, 161), 173]
    yield call(), seen | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


bytes_to_unicode.slips(
    {
        replace(
            "range(33, 127)", "range(33, 126)"
        ): "You leave out ~, byte 126: a range does not contain its end.",
        replace(
            "range(33, 127)", "range(32, 127)"
        ): "You let the space stand for itself. It becomes Ġ, so that merges.txt can be split at "
        "spaces.",
        replace(
            "range(33, 127)", "range(33, 128)"
        ): "You let byte 127 stand for itself. It is a control character.",
        replace(
            "range(161, 173), *range(174, 256)", "range(161, 256)"
        ): "Byte 173 is the soft hyphen, which is not visible: it is among the others.",
        replace(
            "range(161, 173)", "range(161, 172)"
        ): "You leave out ¬, byte 172: a range does not contain its end.",
        replace(
            "range(161, 173)", "range(160, 173)"
        ): "Byte 160 is a space that does not break. It is not visible: among the others.",
        replace(
            "range(174, 256)", "range(174, 255)"
        ): "You leave out ÿ, byte 255: a range does not contain its end.",
        replace(
            ", *range(161, 173), *range(174, 256)", ""
        ): "You let ASCII alone stand for itself. Of the bytes above, 161 to 172 and 174 to 255 "
        "do, too.",
        replace(
            "chr(256 + i)", "chr(256 + byte)"
        ): "You add 256 to the byte. The others are numbered among themselves: the first is 256, the "
        "second 257.",
        replace(
            "chr(256 + i)", "chr(257 + i)"
        ): "You begin at 257. The first of the others is 256.",
        replace(
            "for byte in range(256) if", "for byte in reversed(range(256)) if"
        ): "You number the others from the last one. They are in ascending order.",
        replace(
            "[byte for byte in range(256) if byte not in printable]",
            "[*range(33), 173, *range(127, 161)]",
        ): "You number byte 173 before 127 to 160. The others are numbered in ascending order.",
        replace(
            "[byte for byte in range(256) if byte not in printable]",
            "[*range(127, 161), 173, *range(33)]",
        ): "You number the control characters from 127 on before 0 to 32. The others are numbered in ascending order.",
        replace(
            "range(33, 127)", "range(33, 92), *range(93, 127)"
        ): "You hide the backslash, byte 92. It is printable; only `repr` writes it as two.",
        replace(
            "{byte: chr(byte) for byte in printable} |", ""
        ): "You leave out the bytes that stand for themselves.",
    }
)


@bytes_to_unicode.mistake("You return character → byte. The keys are the bytes.")
def _():
    return {c: b for b, c in tokenization.bytes_to_unicode().items()}


@bytes_to_unicode.mistake("You return code points. Characters are asked for: `chr(…)`.")
def _():
    return {b: ord(c) for b, c in tokenization.bytes_to_unicode().items()}


@bytes_to_unicode.alternative("one loop with a counter")
def _():
    table, n = {}, 0
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + n)
            n += 1
    return table


@bytes_to_unicode.alternative("what Python thinks printable, the space aside")
def _():
    hidden = [b for b in range(256) if not chr(b).isprintable() or chr(b).isspace()]
    return {b: chr(256 + hidden.index(b) if b in hidden else b) for b in range(256)}


# ------------------------------------------------------------------------------ mutants that live

for mutant in ("`3840 >> n` → `3841 >> n`", "`3840 >> n & 255` → `3840 >> n & 254`"):
    utf8_bytes.equivalent(
        f"utf8_bytes: {mutant}", because="shifted by 2, 3 or 4 the lowest bits of 0xF00 are zero"
    )
for mutant in (
    "`zip(words, counts, strict=True)` → `zip(words, counts)`",
    "`strict=True` → `strict=False`",
):
    most_frequent_pair.equivalent(
        f"most_frequent_pair: {mutant}", because="there are as many counts as words"
    )
special_token_split.equivalent(
    "special_token_split: `sorted(special, key=len, reverse=True)` → `sorted(special, reverse=True)`",
    because="of two that stand at the same place the longer begins with the other, and so comes after it in "
    "the alphabet",
)
bytes_to_unicode.equivalent(
    "bytes_to_unicode: `range(256)` → `range(255)`", because="byte 255 stands for itself"
)
