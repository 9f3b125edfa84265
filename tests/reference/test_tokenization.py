"""The book's tokenizer against tiktoken and Hugging Face's tokenizers, and what it promises."""

import json
import random
import string
import textwrap
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import hypothesis.strategies as st
import pytest
import regex
import tiktoken
import tokenizers
from hypothesis import given, settings

from course_utils.reference import tokenization
from course_utils.reference.tokenization import (
    ARTICLE_1,
    END_OF_TEXT,
    GPT2_PATTERN,
    Tokenizer,
    bytes_to_unicode,
    decode,
    decode_stream,
    encode,
    encode_stream,
    pre_tokenize,
    special_token_split,
    train_bpe,
    train_bpe_naively,
    utf8_bytes,
    vocabulary,
)

LIBRARY = Path(textwrap.__file__).parent
SCRIPTS = "aZéß'’\"sdlvetrmn 09½٣Ⅷ²_-.,;!()[]{}<|>/\\ \n\t\r\u00a0\u3000\u200d\x00\x85\ufeff日本語한국हिन्दीλЖعא🙂👩💻\u0301"
TEXT = st.text(st.sampled_from(SCRIPTS), max_size=60) | st.text(max_size=30).filter(
    lambda text: not regex.search(r"\p{Cs}", text)
)


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    files = sorted(LIBRARY.glob("*.py"))[::12]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    return Tokenizer.train([*texts, *ARTICLE_1.values()], 1500)


@pytest.fixture(scope="module")
def tik(trained: Tokenizer) -> tiktoken.Encoding:
    ranks = {data: i for i, data in enumerate(trained.vocab[: -len(trained.special)])}
    return tiktoken.Encoding(
        "ours", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens=trained.special
    )


@given(st.characters(exclude_categories=["Cs"]))
def test_bytes_are_those_of_utf8(character):
    assert utf8_bytes(ord(character)) == list(character.encode())


def test_no_surrogate_has_bytes():
    for code_point in (0xD800, 0xDABC, 0xDFFF, 0x110000, -1):
        with pytest.raises(ValueError, match="no character"):
            utf8_bytes(code_point)


@given(TEXT)
def test_pre_tokens_are_the_text(text):
    pieces = pre_tokenize(text)
    assert "".join(pieces) == text
    assert all(pre_tokenize(piece) == [piece] for piece in pieces)


@given(
    words=st.lists(st.lists(st.integers(1, 3), max_size=9), max_size=8),
    counts=st.lists(st.integers(1, 4), min_size=8, max_size=8),
    n_merges=st.integers(0, 12),
)
def test_counts_kept_up_to_date_give_the_same_merges(words, counts, n_merges):
    counts = counts[: len(words)]
    expected = train_bpe_naively(words, counts, n_merges)
    assert train_bpe(words, counts, n_merges) == expected
    assert len(set(vocabulary([]))) == 256


def test_the_toy_of_the_paper():
    toy = {"low": 5, "lower": 2, "newest": 6, "widest": 3}
    merges = train_bpe([list(word.encode()) for word in toy], list(toy.values()), 3)
    assert vocabulary(merges)[256:] == [b"es", b"est", b"lo"]


def test_no_token_comes_about_twice(trained):
    assert len(set(trained.vocab)) == len(trained) == 1500


@settings(max_examples=300)
@given(text=TEXT)
def test_equal_to_tiktoken(trained, tik, text):
    tokens = trained.encode(text)
    assert tokens == tik.encode_ordinary(text)
    assert trained.decode(tokens) == text == tik.decode(tokens)


def test_equal_to_tiktoken_on_long_and_hard_text(trained, tik):
    draw = random.Random(0)
    texts = [*ARTICLE_1.values(), "a" * 500, " " * 50 + "x", "ab" * 200, "🙂" * 40]
    texts += ["".join(draw.choices(SCRIPTS, k=2000)) for _ in range(20)]
    texts += [
        path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(LIBRARY.glob("*.py"))[5:10]
    ]
    for text in texts:
        assert trained.encode(text) == tik.encode_ordinary(text)


def test_special_tokens_as_tiktoken_has_them(trained, tik):
    text = f"one{END_OF_TEXT} two {END_OF_TEXT}{END_OF_TEXT}"
    assert trained.encode(text, allow_special=True) == tik.encode(text, allowed_special="all")
    assert trained.encode(text) == tik.encode_ordinary(text)
    assert trained.special[END_OF_TEXT] not in trained.encode(text)


@given(data=st.lists(st.integers(0, 255), max_size=40))
def test_any_bytes_have_a_text(data):
    vocab = vocabulary([])
    text = decode(data, vocab)
    assert text == bytes(data).decode(errors="replace") == "".join(decode_stream(data, vocab))


@given(text=TEXT, cuts=st.lists(st.integers(0, 60), max_size=6))
def test_a_stream_gives_the_tokens_of_the_whole(trained, text, cuts):
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    chunks = [text[i:j] for i, j in pairwise(places)]
    assert list(encode_stream(chunks, trained.merges)) == encode(text, trained.merges)


@given(text=TEXT, more=TEXT)
def test_what_follows_changes_the_last_two_pieces_alone(text, more):
    before, after = pre_tokenize(text), pre_tokenize(text + more)
    assert before[:-2] == after[: max(len(before) - 2, 0)]


def test_a_stream_may_be_endless(trained):
    def endless():
        while True:
            yield "to be or not "

    assert len(list(islice(encode_stream(endless(), trained.merges), 1000))) == 1000


@given(
    text=st.text("ab<|>.", max_size=20),
    special=st.lists(st.sampled_from(["<", "<|", "<|a|>", "<|a|>b", ".", "a"]), unique=True),
)
def test_split_at_special_tokens_is_the_text(text, special):
    pieces = special_token_split(text, special)
    assert "".join(pieces) == text
    assert all(pieces)
    assert all(s not in piece for piece in pieces if piece not in special for s in special)


def test_visible_bytes_are_those_of_hugging_face():
    assert set(bytes_to_unicode().values()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert not set(string.whitespace) & set(bytes_to_unicode().values())


def test_read_by_hugging_face(trained, tmp_path):
    from transformers import GPT2TokenizerFast

    trained.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.merges == trained.merges
    assert again.special == trained.special
    files = [str(tmp_path / name) for name in ("vocab.json", "merges.txt")]
    theirs = tokenizers.ByteLevelBPETokenizer.from_file(*files)
    gpt2 = GPT2TokenizerFast.from_pretrained(tmp_path)
    for text in (*ARTICLE_1.values(), "def f(x):\n    return  x ", "don't 12½ 🙂"):
        assert theirs.encode(text).ids == gpt2(text)["input_ids"] == trained.encode(text)
    marked = f"one{END_OF_TEXT}two"
    assert gpt2(marked)["input_ids"] == trained.encode(marked, allow_special=True)


def test_foreign_files_are_refused(trained, tmp_path):
    trained.save(tmp_path)
    ids = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (tmp_path / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    with pytest.raises(ValueError, match="token 97"):
        Tokenizer.load(tmp_path)


def test_trained_like_hugging_face():
    files = sorted(LIBRARY.glob("*.py"))[::10]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=256 + 800,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.train_from_iterator(texts, trainer)
    merges = json.loads(theirs.to_str())["model"]["merges"]
    names = [theirs.id_to_token(i) for i in range(256)]
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    number = {byte_of[name]: i for i, name in enumerate(names)}
    pieces = Counter(piece for text in texts for piece in pre_tokenize(text))
    words = [[number[byte] for byte in piece.encode()] for piece in pieces]
    for (left, right), merge in zip(
        train_bpe(words, list(pieces.values()), 800), merges, strict=True
    ):
        names.append(names[left] + names[right])
        assert [names[left], names[right]] == (
            merge if isinstance(merge, list) else merge.split(" ")
        )


def test_training_says_what_is_too_small():
    with pytest.raises(ValueError, match="256 bytes"):
        Tokenizer.train(["text"], 256)


def test_training_cuts_special_tokens_out():
    made = Tokenizer.train([f"ab{END_OF_TEXT}ab"] * 3, 300)
    assert all(b"|" not in token for token in made.vocab[256:-1])
    assert tokenization.decode([len(made) - 1], made.vocab) == END_OF_TEXT
