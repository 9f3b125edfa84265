"""Chapter 21, tokenization: from characters to bytes to byte pairs, and back.

A token is an integer, its id. The ids 0 to 255 are the bytes; merge i, counting from 0, makes the token 256 + i.
A pre-token is a piece of text that no token reaches beyond.
"""

import codecs
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path

import regex

Pair = tuple[int, int]

GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Where GPT-2 cuts a text. Source: openai/gpt-2, src/encoder.py, in the shorter writing of tiktoken."""

END_OF_TEXT = "<|endoftext|>"
"""The special token that GPT-2 puts between documents."""

ARTICLE_1 = {
    "English": "All human beings are born free and equal in dignity and rights. They are endowed with reason and "
    "conscience and should act towards one another in a spirit of brotherhood.",
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen "
    "begabt und sollen einander im Geist der Brüderlichkeit begegnen.",
    "French": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et "
    "de conscience et doivent agir les uns envers les autres dans un esprit de fraternité.",
    "Spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón "
    "y conciencia, deben comportarse fraternalmente los unos con los otros.",
    "Russian": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и "
    "совестью и должны поступать в отношении друг друга в духе братства.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι "
    "προικισμένοι με λογική και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα αδελφοσύνης.",
    "Arabic": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميراً وعليهم أن يعامل بعضهم "
    "بعضاً بروح الإخاء.",
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। उन्हें बुद्धि और अन्तरात्मा की देन "
    "प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए।",
    "Korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이성과 양심을 "
    "부여받았으며 서로 형제애의 정신으로 행동하여야 한다.",
    "Japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と良心とを"
    "授けられており、互いに同胞の精神をもって行動しなければならない。",
    "Chinese": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
}
"""The first article of the Universal Declaration of Human Rights (United Nations, 1948), by language.

Compared with Unicode's collection (github.com/unicode-org/udhr): the same characters, but for the place of three
vowel signs in Arabic, a space before the full stop in Hindi, and the width of two commas in Chinese.
"""

# ------------------------------------------------------------------------------ bytes


def utf8_bytes(code_point: int) -> list[int]:
    """The bytes of a character in UTF-8, as integers from 0 to 255.

    code_point: the character's number in Unicode. Below 0x80 it is the only byte. Below
    0x800 its lowest 11 bits are dealt out to two bytes, below 0x10000 16 bits to three,
    else 21 bits to four, the highest bits to the first byte. The first byte begins with
    as many ones as there are bytes, then a zero; each further byte begins with 10 and
    carries 6 bits. Raises ValueError for a negative number, one above 0x10FFFF, or a
    surrogate, 0xD800 to 0xDFFF, and for no other. Source: RFC 3629, section 3.
    """
    if not 0 <= code_point <= 0x10FFFF or 0xD800 <= code_point <= 0xDFFF:
        raise ValueError(f"{code_point:#x} is the number of no character")
    if code_point < 0x80:
        return [code_point]
    n = 2 if code_point < 0x800 else 3 if code_point < 0x10000 else 4
    tail = [0x80 | code_point >> 6 * i & 0x3F for i in reversed(range(n - 1))]
    return [0xF00 >> n & 0xFF | code_point >> 6 * (n - 1), *tail]


# ------------------------------------------------------------------------------ merges


def most_frequent_pair(words: Sequence[Sequence[int]], counts: Sequence[int]) -> Pair | None:
    """The pair of neighbouring tokens that occurs most often, or None if there is no pair.

    words: the tokens of each word; no pair reaches from one word to the next. counts:
    for each word, how often it stands in the text, 1 or more; a pair in it counts as
    often. Pairs may overlap: [7, 7, 7] has the pair (7, 7) twice. Of several that occur
    equally often it is the smallest pair: that with the smallest first token, and if
    these are equal, with the smallest second one.
    """
    pairs: Counter[Pair] = Counter()
    for word, count in zip(words, counts, strict=True):
        for pair in pairwise(word):
            pairs[pair] += count
    return min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)


def merge_pair(ids: Sequence[int], pair: Pair, token: int) -> list[int]:
    """The tokens with `token` in place of each occurrence of the pair, as a list.

    Occurrences in ids are taken from left to right and do not overlap: in three equal
    tokens the first two are a pair, and the third is left. The new token is in no pair
    of this merge. ids is not changed.
    """
    merged: list[int] = []
    i = 0
    while i < len(ids):
        if tuple(ids[i : i + 2]) == pair:
            merged.append(token)
            i += 2
        else:
            merged.append(ids[i])
            i += 1
    return merged


def train_bpe(words: Sequence[Sequence[int]], counts: Sequence[int], n_merges: int) -> list[Pair]:
    """The first n_merges merges of a text: byte pair encoding's training.

    words: the tokens of each word, as a rule a pre-token's bytes; two words may be
    equal. counts: how often each stands in the text, 1 or more. Each merge takes the
    most frequent pair of the words as they are then, of equally frequent ones the
    smallest. It replaces the pair in all words, from left to right, by the token
    256 + number of merges before. Fewer merges are returned if no pair is left. The
    arguments are not changed.

    The work is counted, in one check of 200 merges of 2,000 words: how often tokens are
    compared and hashed, in all. Allowed is n_merges times the number of pairs that these
    words have before the first merge. So keep the counts of pairs, and after a merge look
    only at the words that contain the pair; then a scan of all distinct pairs for each
    merge is allowed, too. If you work on copies of the tokens, such as int(token), the
    bytecode instructions that Python executes are counted instead, of which ten times as
    many are allowed. Source: Sennrich et al. (2016), section 3.2.
    """
    split = [list(word) for word in words]
    pairs: Counter[Pair] = Counter()
    where: defaultdict[Pair, set[int]] = defaultdict(set)
    for i, word in enumerate(split):
        for pair in pairwise(word):
            pairs[pair] += counts[i]
            where[pair].add(i)
    heap = [(-count, pair) for pair, count in pairs.items()]
    heapify(heap)
    merges: list[Pair] = []
    while heap and len(merges) < n_merges:
        count, pair = heappop(heap)
        if -count != pairs[pair]:
            continue  # its count has changed; the heap has it again with the new one
        changed = set()
        for i in where.pop(pair):
            for old in pairwise(split[i]):
                pairs[old] -= counts[i]
                changed.add(old)
            split[i] = merge_pair(split[i], pair, 256 + len(merges))
            for new in pairwise(split[i]):
                pairs[new] += counts[i]
                where[new].add(i)
                changed.add(new)
        merges.append(pair)
        for other in changed:
            if pairs[other]:
                heappush(heap, (-pairs[other], other))
    return merges


def train_bpe_naively(
    words: Sequence[Sequence[int]], counts: Sequence[int], n_merges: int
) -> list[Pair]:
    """The same merges as `train_bpe`: all pairs of all words are counted anew for each merge."""
    split = [list(word) for word in words]
    merges: list[Pair] = []
    while len(merges) < n_merges and (pair := most_frequent_pair(split, counts)):
        split = [merge_pair(word, pair, 256 + len(merges)) for word in split]
        merges.append(pair)
    return merges


# ------------------------------------------------------------------------------ text to tokens


def pre_tokenize(text: str) -> list[str]:
    """The pieces in which GPT-2 cuts a text before it looks for byte pairs. Joined, they are the text.

    At each place the first of these that fits is taken, as long as it can be:

    1. one of 's 'd 'm 't 'll 've 're, in small letters, with the straight apostrophe;
    2. letters of any script, with a single space before them if there is one;
    3. digits and other numbers of any script, with such a space;
    4. characters that are neither white space nor letters nor numbers, with such a space;
    5. a run of white space that ends the text; of any other run of two or more, all but
       the last character (which may be the next piece's space);
    6. white space that is left.

    A letter is of Unicode's category L, a number of category N. White space has Unicode's
    property White_Space, as for the package regex (str.isspace adds U+001C to U+001F; not
    checked). Source: Radford et al. (2019), section 2.2; openai/gpt-2, src/encoder.py.
    """
    return regex.findall(GPT2_PATTERN, text)


def encode(text: str, merges: Mapping[Pair, int]) -> list[int]:
    """The tokens of a text: cut by `pre_tokenize`, then merged within each piece.

    merges: the token that each pair becomes. An earlier merge has a smaller token,
    wherever it stands in `merges`. A piece begins as its bytes in UTF-8. In each step
    the pair that becomes the smallest token is merged at all its places in the piece,
    from left to right, as by `merge_pair`. The piece is done when no pair of it can be
    merged. Raises UnicodeEncodeError for a surrogate, which has no bytes.
    """
    tokens = []
    for piece in pre_tokenize(text):
        ids = list(piece.encode())
        while ready := [merges[pair] for pair in pairwise(ids) if pair in merges]:
            first = min(ready)
            pair = next(pair for pair in pairwise(ids) if merges.get(pair) == first)
            ids = merge_pair(ids, pair, first)
        tokens += ids
    return tokens


def special_token_split(text: str, special: Collection[str]) -> list[str]:
    """The text cut at its special tokens: these, and what stands between them, in their order.

    special: the special tokens, none of them empty; each is plain text, whatever
    characters it has. They are looked for from left to right. Where several begin at the
    same place, the longest is taken. Joined, the pieces are the text, and none is empty:
    without special tokens the text is one piece, and an empty text has none.
    """
    if not special:
        return [text] if text else []
    longest_first = sorted(special, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first))
    return [piece for piece in re.split(f"({pattern})", text) if piece]


def encode_stream(chunks: Iterable[str], merges: Mapping[Pair, int]) -> Iterator[int]:
    """The tokens of a text that comes in chunks: those of `encode("".join(chunks), merges)`, one by one.

    chunks: any iterable, even an endless one; a chunk may be empty, and may end
    anywhere. `pre_tokenize` cuts the text so far into pieces, of which later text can
    change only the last two. The others are certain: their tokens are given out before
    the next chunk is taken, and their text is not kept. No chunk is taken before a
    token is asked for, and no further one while tokens of certain pieces are left.
    """
    held = ""
    for chunk in chunks:
        pieces = pre_tokenize(held + chunk)
        held = "".join(pieces[-2:])
        for piece in pieces[:-2]:
            yield from encode(piece, merges)
    yield from encode(held, merges)


# ------------------------------------------------------------------------------ tokens to text


def decode(ids: Iterable[int], vocab: Sequence[bytes]) -> str:
    """The text of some tokens.

    ids: may be an iterator. vocab: the bytes of each token. The bytes of all tokens
    together are read as UTF-8: a character may begin in one token and end in another.
    Where they are no UTF-8, U+FFFD stands in the text, as often as Python's
    errors="replace" puts it. Raises ValueError for an id that vocab does not have,
    negative ones included.
    """
    data = bytearray()
    for token in ids:
        if not 0 <= token < len(vocab):
            raise ValueError(f"there is no token {token}: the vocabulary has {len(vocab)}")
        data += vocab[token]
    return data.decode(errors="replace")


def decode_stream(ids: Iterable[int], vocab: Sequence[bytes]) -> Iterator[str]:
    """The text of tokens that come one by one: with each token the characters that it completes.

    Yields one string for each token, perhaps an empty one, and one for what is left at the
    end. Joined, they are `decode(ids, vocab)`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in ids:
        yield decoder.decode(vocab[token])
    yield decoder.decode(b"", final=True)


def vocabulary(merges: Iterable[Pair]) -> list[bytes]:
    """The bytes of each token: 256 single bytes, then what each merge puts together."""
    vocab = [bytes([byte]) for byte in range(256)]
    for left, right in merges:
        vocab.append(vocab[left] + vocab[right])
    return vocab


# ------------------------------------------------------------------------------ files


def bytes_to_unicode() -> dict[int, str]:
    """A visible character for each byte: how GPT-2's files write tokens, which need not be UTF-8.

    Printable bytes stand for themselves: 33 to 126, 161 to 172 and 174 to 255, read as
    code points. The other 68, in ascending order, are written as the code points 256,
    257, …, 323; so a space is Ġ. Returns 256 entries, byte → character, in any order.
    Source: openai/gpt-2, src/encoder.py.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + i) for i, byte in enumerate(others)
    }


class Tokenizer:
    """Byte-level BPE with GPT-2's pre-tokens, and special tokens after the merges.

    merges: the token that each pair becomes. vocab: the bytes of each token. special: the
    id of each special token. All three are for reading.
    """

    def __init__(self, merges: Iterable[Pair], special: Sequence[str] = (END_OF_TEXT,)):
        """merges: in their order. special: special tokens, which get the ids after the merges."""
        pairs = list(merges)
        self.merges = {pair: 256 + i for i, pair in enumerate(pairs)}
        self.special = {token: 256 + len(pairs) + i for i, token in enumerate(special)}
        self.vocab = vocabulary(pairs) + [token.encode() for token in special]
        self._known: dict[str, list[int]] = {}

    @classmethod
    def train(
        cls, texts: Iterable[str], vocab_size: int, special: Sequence[str] = (END_OF_TEXT,)
    ) -> "Tokenizer":
        """A tokenizer of at most vocab_size tokens, bytes and special tokens included.

        texts: documents; a special token in them is cut out, and no token reaches across
        it. Raises ValueError if vocab_size leaves no room for bytes and special tokens.
        """
        n_merges = vocab_size - 256 - len(special)
        if n_merges < 0:
            raise ValueError(
                f"{vocab_size} tokens are fewer than 256 bytes and {len(special)} special"
            )
        pieces: Counter[str] = Counter()
        for text in texts:
            for part in special_token_split(text, special):
                if part not in special:
                    pieces.update(pre_tokenize(part))
        words = [list(piece.encode()) for piece in pieces]
        return cls(train_bpe(words, list(pieces.values()), n_merges), special)

    def __len__(self) -> int:
        """The size of the vocabulary: one more than the largest id."""
        return len(self.vocab)

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The tokens of a text. allow_special: its special tokens become their ids; otherwise, as is
        due with a text that a user wrote, they are characters like others."""
        parts = special_token_split(text, self.special) if allow_special else [text]
        tokens: list[int] = []
        for part in parts:
            if allow_special and part in self.special:
                tokens.append(self.special[part])
                continue
            for piece in pre_tokenize(part):
                tokens += self._encoded(piece)
        return tokens

    def _encoded(self, piece: str) -> list[int]:
        """The tokens of a pre-token. Short ones are kept: most of a text is the same few thousand."""
        if piece in self._known:
            return self._known[piece]
        tokens = encode(piece, self.merges)
        if len(piece) <= 32 and len(self._known) < 1 << 17:
            self._known[piece] = tokens
        return tokens

    def encode_stream(self, chunks: Iterable[str]) -> Iterator[int]:
        """The tokens of a text that comes in chunks, without special tokens."""
        return encode_stream(chunks, self.merges)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some tokens, special tokens written out."""
        return decode(ids, self.vocab)

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of tokens that come one by one."""
        return decode_stream(ids, self.vocab)

    def save(self, folder: str | Path) -> None:
        """Write `vocab.json` and `merges.txt`, as GPT-2 has them, into a folder, which is made."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        shown = bytes_to_unicode()
        written = ["".join(shown[byte] for byte in token) for token in self.vocab]
        written[len(self.vocab) - len(self.special) :] = self.special
        ids = {token: i for i, token in enumerate(written)}
        lines = [f"{written[left]} {written[right]}" for left, right in self.merges]
        (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
        text = "\n".join(["#version: 0.2", *lines, ""])
        (folder / "merges.txt").write_text(text, encoding="utf-8", newline="\n")

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        """The tokenizer that `save` wrote. Raises ValueError if the files are not of its form: bytes by
        their value, then merges in their order, then special tokens."""
        folder = Path(folder)
        ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
        merges = [(ids[left], ids[right]) for left, right in pairs]
        special = [token for token, i in ids.items() if i >= 256 + len(merges)]
        made = cls(merges, sorted(special, key=ids.__getitem__))
        shown = bytes_to_unicode()
        for i, token in enumerate(made.vocab[: 256 + len(merges)]):
            if ids.get("".join(shown[byte] for byte in token)) != i:
                raise ValueError(f"token {i} of {folder / 'vocab.json'} is not {token!r}")
        return made
