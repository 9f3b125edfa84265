"""A corpus: which files, which of them are held out, and the tokens of both parts."""

import hashlib
import sysconfig
from pathlib import Path

import pytest
import torch

from course_utils.reference import corpus
from course_utils.reference.corpus import (
    Document,
    held_out,
    library_files,
    read_documents,
    split_documents,
    stream,
    text_files,
    tokenize,
    train_tokenizer,
)
from course_utils.reference.tokenization import END_OF_TEXT, Tokenizer


def document(name, text):
    data = text.encode()
    return Document(name, text, hashlib.sha256(data).hexdigest(), len(data))


def test_a_tenth_of_all_names_is_held_out_whatever_else_there_is():
    names = [f"folder/{i}.py" for i in range(20_000)]
    drawn = [name for name in names if held_out(name)]
    assert abs(len(drawn) / len(names) - 0.1) < 0.01
    assert set(drawn) < {name for name in names if held_out(name, 0.2)}
    few = [document(name, "x") for name in names[:100]]
    assert [one.name for one in split_documents(few)[1]] == [n for n in names[:100] if held_out(n)]
    assert not held_out("argparse.py") and held_out("dataclasses.py") == held_out("dataclasses.py")


def test_the_library_is_pythons_own_without_tests_and_tables():
    files = library_files()
    assert list(files) == sorted(files)
    root = Path(sysconfig.get_path("stdlib"))
    assert all(file == root / name for name, file in files.items())
    assert {"argparse.py", "json/decoder.py", "collections/__init__.py"} <= files.keys()
    parts = {part for name in files for part in name.split("/")}
    assert not parts & {"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}
    assert not [name for name in files if "_sysconfigdata" in name]


def test_own_files_and_folders(tmp_path):
    (tmp_path / "a" / "inner").mkdir(parents=True)
    (tmp_path / "a" / ".git").mkdir()
    for name in ("a/inner/1.txt", "a/.git/config", "a/.hidden", "b.txt", "a/empty.txt"):
        (tmp_path / name).write_text("" if "empty" in name else f"the text of {name}")
    (tmp_path / "a" / "zero.bin").write_bytes(b"a\0b")
    (tmp_path / "a" / "latin.txt").write_bytes("für".encode("latin-1"))
    files = text_files([tmp_path / "b.txt", tmp_path / "a"])
    assert list(files) == ["b.txt", "empty.txt", "inner/1.txt", "latin.txt", "zero.bin"]
    [first, second] = read_documents(files)
    assert first == document("b.txt", "the text of b.txt") and second.name == "inner/1.txt"
    assert text_files([tmp_path / "a" / ".hidden"]).keys() == {".hidden"}  # it was asked for
    with pytest.raises(FileNotFoundError, match="none is neither a file nor a folder"):
        text_files([tmp_path / "none"])
    (tmp_path / "a" / "b.txt").write_text("another")
    with pytest.raises(ValueError, match=r"both called 'b\.txt'"):
        text_files([tmp_path / "b.txt", tmp_path / "a"])


def test_each_document_follows_an_end_of_text_and_is_told_from_one_inside():
    tokenizer = Tokenizer.train(["banana bandana"] * 3, 260)
    end = tokenizer.special[END_OF_TEXT]
    texts = ["banana", f"ban{END_OF_TEXT}dana", ""]
    tokens = stream([document(str(i), text) for i, text in enumerate(texts)], tokenizer)
    assert tokens.dtype == torch.int32
    ends = (tokens == end).nonzero().flatten().tolist()
    assert len(ends) == 3 and ends[0] == 0 and ends[2] == len(tokens) - 1
    assert tokenizer.decode(tokens[: ends[1]].tolist()) == END_OF_TEXT + "banana"


def test_the_parts_of_a_corpus(monkeypatch):
    documents = [document(f"{i}.txt", f"text number {i}, " * 20) for i in range(100)]
    tokenizer = train_tokenizer(documents, 280)
    train, judged = split_documents(documents)
    assert tokenizer.merges == Tokenizer.train([one.text for one in train], 280).merges
    whole = tokenize(documents, tokenizer)
    assert torch.equal(whole.train, stream(train, tokenizer))
    assert torch.equal(whole.held_out, stream(judged, tokenizer))
    assert whole.train_bytes + whole.held_out_bytes == sum(one.n_bytes for one in documents)
    assert whole.held_out_files == {one.name: one.digest for one in judged}
    assert not whole.train_files.keys() & whole.held_out_files.keys() and whole.whole_files
    other = tokenize([*documents[:-1], document("99.txt", "changed")], tokenizer)
    assert other.digest() != whole.digest() == tokenize(documents[::-1], tokenizer).digest()
    with pytest.raises(ValueError, match=r"no <\|endoftext\|>"):
        tokenize(documents, Tokenizer([], special=()))


def test_of_few_files_the_end_of_each_is_held_out():
    documents = [document("a", "ä" * 50 + "b" * 50), document("c", "d" * 10)]
    found = tokenize(documents, Tokenizer([]))
    assert not found.whole_files
    assert (found.train_bytes, found.held_out_bytes) == (50 * 2 + 40 + 9, 10 + 1)
    assert found.train_files == found.held_out_files
    assert found.held_out.tolist() == [256, *b"b" * 10, 256, *b"d"]
    many = [document(str(i), "text") for i in range(corpus.FEW)]
    assert tokenize(many, Tokenizer([])).whole_files
