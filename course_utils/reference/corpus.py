"""Chapters 21 and 24: a corpus, from text files to the tokens that a model is trained on and judged by.

A *document* is a file. Whether it is held out depends on its name alone, so adding a file moves no
other one from the one side to the other, and no held-out document is ever half trained on.
"""

import hashlib
import json
import os
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Int, Integer, UInt8
from torch import Tensor

from .tokenization import END_OF_TEXT, Tokenizer

HELD_OUT = 0.1
"""The share of the text that is never trained on."""

NOT_EVERYWHERE = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
)
"""Folders of the library that are not Python's own, or that many systems do not install."""
TABLES = frozenset({"encodings", "pydoc_data"})
"""Folders of tables that a program has written: a fifth of the bytes, and no code to learn from."""


@dataclass(frozen=True)
class Document:
    """A text file. name: as it is recorded, parts joined by "/". digest: SHA-256 of its bytes, in hex."""

    name: str
    text: str = field(repr=False)
    digest: str
    n_bytes: int


def held_out(name: str, share: float = HELD_OUT) -> bool:
    """Is the document of this name held out? Drawn by the name's digest: that share of all names is."""
    drawn = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return drawn < share * 2**64


# ---------------------------------------------------------------------------------- files


def read_document(file: Path, name: str) -> Document | None:
    """A file's text, or None for one that is no text: not UTF-8, or with a zero byte in it."""
    data = file.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    return Document(name, text, hashlib.sha256(data).hexdigest(), len(data))


def library_files() -> dict[str, Path]:
    """The modules of Python's own library that every installation has, by name, in its order.

    Without what was installed beside them, the tests, and the tables of `encodings` and
    `pydoc_data`; without `_sysconfigdata…`, which describes the one machine.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found: dict[str, Path] = {}
    for folder, inside, files in os.walk(root):
        inside[:] = [
            name
            for name in inside
            if name not in NOT_EVERYWHERE | TABLES and not name.startswith("config-")
        ]
        modules = [Path(folder, file) for file in files if file.endswith(".py")]
        found |= {file.relative_to(root).as_posix(): file for file in modules}
    return {name: found[name] for name in sorted(found) if not name.startswith("_sysconfigdata")}


def text_files(paths: Iterable[Path]) -> dict[str, Path]:
    """The files, and those in the folders, by name, in its order; hidden ones in folders aside.

    The name is the path from the folder that was given. Raises FileNotFoundError for a
    path that is not there, and ValueError for two files of one name.
    """
    found: dict[str, Path] = {}
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} is neither a file nor a folder")
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in inside:
            name = file.relative_to(path if path.is_dir() else path.parent).as_posix()
            if not file.is_file() or (path.is_dir() and f"/{name}".find("/.") >= 0):
                continue
            if name in found and found[name].resolve() != file.resolve():
                raise ValueError(f"{found[name]} and {file} are both called {name!r}")
            found[name] = file
    return dict(sorted(found.items()))


def read_documents(files: dict[str, Path]) -> list[Document]:
    """The documents of these files, in their order; what is no text, or empty, is left out."""
    read = (read_document(file, name) for name, file in files.items())
    return [document for document in read if document is not None and document.n_bytes]


# ---------------------------------------------------------------------------------- tokens


@dataclass(frozen=True)
class Corpus:
    """Two streams of tokens, to train on and to judge by, and what they were made from.

    Each document begins with the end-of-text token, which separates it from the one
    before. files: by name, the digest of each document. whole_files: False where each
    file's own end is held out, since there were too few files to draw from.
    """

    train: Int[Tensor, " N"] = field(repr=False)
    held_out: Int[Tensor, " M"] = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    train_bytes: int
    held_out_bytes: int
    train_files: dict[str, str] = field(repr=False)
    held_out_files: dict[str, str] = field(repr=False)
    whole_files: bool = True

    def digest(self) -> str:
        """Of all names and contents: other files, or other text in one, give another."""
        files = [sorted(files.items()) for files in (self.train_files, self.held_out_files)]
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()


FEW = 20
"""With fewer documents than these, the last tenth of each is held out: of few names, none may be drawn."""


def split_documents(documents: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Documents to train on, and those to judge by."""
    if len(documents) >= FEW:
        return (
            [one for one in documents if not held_out(one.name)],
            [one for one in documents if held_out(one.name)],
        )
    parts: tuple[list[Document], list[Document]] = ([], [])
    for one in documents:
        cut = int(len(one.text) * (1 - HELD_OUT))
        for part, text in zip(parts, (one.text[:cut], one.text[cut:]), strict=True):
            part.append(Document(one.name, text, one.digest, len(text.encode())))
    return parts


def stream(documents: Iterable[Document], tokenizer: Tokenizer) -> Int[Tensor, " N"]:
    """The tokens of the documents, one after the other, each after an end-of-text token. int32."""
    tokens: list[int] = []
    for document in documents:
        tokens.append(tokenizer.special[END_OF_TEXT])
        tokens += tokenizer.encode(document.text)
    return torch.tensor(tokens, dtype=torch.int32)


def train_tokenizer(documents: Sequence[Document], vocab_size: int) -> Tokenizer:
    """Chapter 21's tokenizer, of at most vocab_size tokens, trained on what is not held out."""
    return Tokenizer.train((one.text for one in split_documents(documents)[0]), vocab_size)


def tokenize(documents: Sequence[Document], tokenizer: Tokenizer) -> Corpus:
    """The corpus of some documents. Raises ValueError for a tokenizer without the end-of-text token."""
    if END_OF_TEXT not in tokenizer.special:
        raise ValueError(f"the tokenizer has no {END_OF_TEXT}, which separates documents")
    train, judged = split_documents(documents)
    return Corpus(
        stream(train, tokenizer),
        stream(judged, tokenizer),
        tokenizer,
        sum(one.n_bytes for one in train),
        sum(one.n_bytes for one in judged),
        {one.name: one.digest for one in train},
        {one.name: one.digest for one in judged},
        len(documents) >= FEW,
    )


# ---------------------------------------------------------------------------------- bytes


def bytes_of(documents: Iterable[Document]) -> UInt8[Tensor, " N"]:
    """The bytes of the documents in UTF-8, one document after the other."""
    return torch.frombuffer(
        bytearray(b"".join(one.text.encode() for one in documents)), dtype=torch.uint8
    )


def library_text(size: int = 2**20) -> UInt8[Tensor, " N"]:
    """The first `size` bytes of the modules of Python's own library, in the order of their names."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(
        bytearray(b"".join(f.read_bytes() for f in files)[:size]), dtype=torch.uint8
    )


def split(
    text: UInt8[Tensor, " N"], held_out: float = HELD_OUT
) -> tuple[UInt8[Tensor, " train"], UInt8[Tensor, " validation"]]:
    """The text to train on, and its end, to judge by."""
    first = int(len(text) * (1 - held_out))
    return text[:first], text[first:]


# ---------------------------------------------------------------------------------- batches


def get_batch(
    text: Integer[Tensor, " N"],
    batch: int,
    context: int,
    seed: int,
    step: int,
    rank: int,
    world_size: int,
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """This rank's rows of the batch that all ranks train on in this step: inputs and next tokens.

    Every rank draws all `batch` positions and keeps each world_size-th, from its rank
    on. The numbers depend on seed and step alone, so the step is all that a checkpoint
    must know of the data.
    """
    generator = torch.Generator().manual_seed(1_000_003 * seed + step)
    starts = torch.randint(len(text) - context, (batch,), generator=generator)[rank::world_size]
    windows = text[starts[:, None] + torch.arange(context + 1)].long()
    return windows[:, :-1], windows[:, 1:]


Batches = Sequence[tuple[Int[Tensor, "_ _"], Int[Tensor, "_ _"]]]
"""Inputs and next tokens, some sequences at a time."""


def micro_batches(x: Int[Tensor, "B T"], y: Int[Tensor, "B T"], size: int) -> Batches:
    """A batch in pieces of at most `size` sequences."""
    return list(zip(x.split(size), y.split(size), strict=True))
