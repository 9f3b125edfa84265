"""`course sample`: its draws, its sources, its errors, its command."""

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from course_utils.cli import app
from course_utils.reference.checkpoints import Progress, about, save
from course_utils.reference.exporting import export
from course_utils.reference.gpt2 import GPT2, GPT2Config, generate
from course_utils.reference.pretraining_settings import Settings
from course_utils.reference.sampling import Sampling, chances, load, sample
from course_utils.reference.tokenization import Tokenizer

CONFIG = GPT2Config(vocab_size=257, n_positions=16, n_embd=24, n_layer=2, n_head=3, dropout=0.0)
TOKENIZER = Tokenizer([])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return GPT2(CONFIG).eval()


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 2}, [1, 3]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.45}, [3]),
        ({"top_p": 0.55}, [1, 3]),
        ({"top_p": 0.85}, [0, 1, 3]),
        ({"top_p": 1e-9}, [3]),
        ({"top_p": 0.55, "temperature": 100.0}, [0, 1, 3]),  # nearly equal: three are needed
        ({"top_p": 0.65, "top_k": 2}, [1, 3]),  # of these two, 0.375 and 0.625
        ({"top_p": 0.65, "top_k": 2, "temperature": 0.1}, [3]),
    ],
)
def test_what_may_be_drawn(how, left):
    """Chances 0.15, 0.3, 0.05, 0.5."""
    logits = torch.tensor([[0.15, 0.3, 0.05, 0.5]]).log()
    drawn = chances(logits, Sampling(**{"temperature": 1.0} | how))
    assert drawn[0].nonzero().flatten().tolist() == left


def test_without_a_cut_it_is_the_books_own_sampler(model):
    ids = torch.tensor([[256, *b"def "]])
    expected = generate(model, ids, 12, 0.8, generator=torch.Generator().manual_seed(3))
    [text] = sample(model, TOKENIZER, "def ", how=Sampling(12, 0.8, seed=3))
    assert text == TOKENIZER.decode(expected[0, 1:].tolist())


@pytest.mark.parametrize("tokens", [11, 30])
def test_a_text_beyond_the_context_begins_as_one_within_it(model, tokens):
    ids = torch.tensor([[256, *b"def "]])
    expected = generate(model, ids, tokens, 0.8, generator=torch.Generator().manual_seed(3))
    [text] = sample(model, TOKENIZER, "def ", how=Sampling(tokens, 0.8, seed=3))
    assert text == TOKENIZER.decode(expected[0, 1:].tolist())


def test_the_seed_decides(model):
    how = Sampling(10, 1.0)
    one, two = (sample(model, TOKENIZER, "x", 3, how) for _ in range(2))
    assert one == two and len(set(one)) == 3 and all(text.startswith("x") for text in one)
    assert sample(model, TOKENIZER, "x", 3, Sampling(10, 1.0, seed=1)) != one
    greedy = sample(model, TOKENIZER, "x", 3, Sampling(10, 0.0))
    assert len(set(greedy)) == 1


def test_a_text_stops_at_its_end():
    torch.manual_seed(0)
    model = GPT2(CONFIG)
    nn.init.zeros_(model.transformer.wte.weight)
    model.transformer.ln_f.bias.data.fill_(1.0)
    model.transformer.wte.weight.data[256] = 5.0  # always the end of text
    assert sample(model, TOKENIZER, "text", 2) == ["text", "text"]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"tokens": 0}, "--tokens is 0"),
        ({"temperature": -0.1}, "--temperature is -0.1"),
        ({"temperature": float("nan")}, "--temperature is nan"),
        ({"top_k": -1}, "--top-k is -1"),
        ({"top_p": 0.0}, "--top-p is 0.0"),
        ({"top_p": 1.5}, "--top-p is 1.5"),
    ],
)
def test_what_cannot_be_drawn(how, says):
    with pytest.raises(ValueError, match=says):
        Sampling(**how)


def test_a_checkpoint_and_an_exported_folder_write_the_same(model, tmp_path):
    """Weights that float16 holds exactly: the folder keeps them so."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.half().float())
    settings, file, folder = Settings(), tmp_path / "run.pt", tmp_path / "model"
    save(file, Progress(3), model, None, about(settings, CONFIG, TOKENIZER))
    export(folder, model.state_dict(), CONFIG, TOKENIZER, settings, Progress(3), {})
    given = [
        "--prompt",
        "a = ",
        "--tokens",
        "9",
        "--top-k",
        "40",
        "--top-p",
        "0.9",
        "--number",
        "2",
    ]
    said = []
    for source in (file, folder):
        done = CliRunner().invoke(app, ["sample", str(source), *given])
        assert done.exit_code == 0, done.output
        said.append(done.output)
    assert said[0] == said[1] and said[0].count("a = ") == 2 and "\n----\n" in said[0]


def test_a_model_of_bytes(model, tmp_path):
    config = GPT2Config(vocab_size=256, n_positions=16, n_embd=24, n_layer=1, n_head=3)
    file = tmp_path / "bytes.pt"
    save(file, Progress(), GPT2(config), None, about(Settings(), config, None))
    [text] = sample(*load(file), "ab", how=Sampling(4))
    assert text.startswith("ab")
    sample(*load(file), how=Sampling(4))


def test_sources_that_are_none(tmp_path):
    (tmp_path / "letter").write_text("dear friend")
    (tmp_path / "folder").mkdir()
    for name, why in (
        ("nowhere", "there is no checkpoint"),
        ("letter", "is no checkpoint of course train"),
        ("folder", "holds no exported model"),
    ):
        done = CliRunner().invoke(app, ["sample", str(tmp_path / name)])
        assert done.exit_code == 1
        assert done.output.startswith("course sample: ") and why in done.output
        assert done.output.count("\n") == 1
    done = CliRunner().invoke(app, ["sample", "--number", "0", str(tmp_path / "nowhere")])
    assert done.exit_code == 1
