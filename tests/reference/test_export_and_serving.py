"""The book's graphs compute what its model computes, at other sizes than the example's, and in onnxruntime."""

import inspect

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from course_utils.reference.export_and_serving import (
    DecodeStep,
    append_at,
    assert_onnx_parity,
    export_dynamic,
    per_row_probs,
    visible_at,
)
from course_utils.reference.exported_forms import (
    Compiling,
    count_ops,
    in_fresh_process,
    median_ms,
    quietly,
    why_refused,
)
from course_utils.reference.exporting import hf_state_dict
from course_utils.reference.generation import KVCache, next_token_probs
from course_utils.reference.gpt2 import CONFIGS, GPT2, load_hf_state_dict


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    return GPT2(CONFIGS["tiny"]).eval()


def test_rows_have_chapter_25s_probabilities():
    logits, temperature = torch.randn(5, 9), torch.tensor([0.0, 0.3, 1.0, 2.0, 0.0])
    rows = [
        next_token_probs(x[None], temperature=t)[0]
        for x, t in zip(logits, temperature.tolist(), strict=True)
    ]
    torch.testing.assert_close(per_row_probs(logits, temperature), torch.stack(rows))


def test_append_at_is_a_cache_when_all_rows_are_as_long():
    cache = KVCache(2, 3, 7, 4)
    empty = torch.zeros(2, 3, 7, 4)
    filled, length = empty, torch.zeros(2, dtype=torch.int64)
    for T in (3, 1, 2):
        new = torch.randn(2, 3, T, 4)
        keys, _ = cache.append(new, new)
        filled, length = append_at(filled, new, length), length + T
        assert torch.equal(filled[:, :, : cache.length], keys)
    assert not empty.any() and not filled[:, :, 6:].any()


def test_steps_of_rows_of_unequal_lengths_are_the_model(tiny):
    C, lengths = 12, [5, 2]
    texts = [torch.randint(97, (1, n + 4)) for n in lengths]
    sizes = tiny.config.n_layer, 2, tiny.config.n_head, C, tiny.config.n_embd // tiny.config.n_head
    keys, values, position = torch.zeros(sizes), torch.zeros(sizes), torch.tensor([0, 0])
    one = torch.zeros_like(keys), torch.zeros_like(values)
    example = torch.zeros(2, 3, dtype=torch.int64), *one, torch.tensor([0, 1])
    B, T = Dim("B", max=4), Dim("T", max=C)
    unchecked = DecodeStep(tiny, visible=inspect.unwrap(visible_at))  # T is a symbol here, no int
    program = export(unchecked, example, dynamic_shapes=({0: B, 1: T}, {1: B}, {1: B}, {0: B}))
    step = program.module()
    with torch.no_grad():
        for row, text in enumerate(texts):  # the prompts, each by itself
            k, v = keys[:, row : row + 1], values[:, row : row + 1]
            _, k, v = step(text[:, : lengths[row]], k, v, position[:1] * 0)
            keys[:, row], values[:, row] = k[:, 0], v[:, 0]
        position = torch.tensor(lengths)
        for n in range(4):  # and then a token of both in each step
            ids = torch.cat([text[:, lengths[row] + n] for row, text in enumerate(texts)])[:, None]
            logits, keys, values = step(ids, keys, values, position)
            position = position + 1
            for row, text in enumerate(texts):
                due = tiny(text[:, : lengths[row] + n + 1])[:, -1]
                torch.testing.assert_close(logits[row : row + 1, 0], due)


def test_visible_at_of_an_empty_cache_is_the_causal_mask():
    assert torch.equal(
        visible_at(torch.zeros(1).long(), 4, 4)[0, 0], torch.ones(4, 4).tril().bool()
    )


def test_a_program_is_the_model_and_refuses_what_is_too_large(tiny):
    program = export_dynamic(tiny, torch.zeros(1, 1, dtype=torch.int64), 5, 16)
    run = program.module()
    for size in ((1, 1), (5, 16), (3, 2)):
        ids = torch.randint(97, size)
        assert torch.equal(run(ids), tiny(ids))
    for size in ((6, 2), (2, 17)):
        with pytest.raises(AssertionError, match="Guard failed"):
            run(torch.zeros(size, dtype=torch.int64))
    assert count_ops(program.graph)["scaled_dot_product_attention"] == tiny.config.n_layer


def test_onnxruntime_agrees_and_another_model_does_not():
    import onnxruntime

    model = nn.Sequential(nn.Linear(3, 5), nn.GELU()).eval()
    program = export(model, (torch.zeros(2, 3),), dynamic_shapes=({0: Dim("B")},))
    made = quietly(lambda: torch.onnx.export(program, dynamo=True))
    session = onnxruntime.InferenceSession(made.model_proto.SerializeToString())
    cases = [(torch.randn(B, 3),) for B in (1, 2, 9)]
    assert 0 <= assert_onnx_parity(model, session, iter(cases)) < 1e-4
    other = nn.Sequential(nn.Linear(3, 5), nn.GELU())
    with pytest.raises(AssertionError, match="case 0"):
        assert_onnx_parity(other, session, cases)
    with pytest.raises(ValueError, match="1 tensors"):
        assert_onnx_parity(model, session, [])


def test_a_step_with_a_cache_writes_the_same_in_onnxruntime(tiny):
    import onnxruntime

    L, H = tiny.config.n_layer, tiny.config.n_head
    d, C = tiny.config.n_embd // H, 12
    empty = torch.zeros(2, L, 1, H, C, d)
    ids = torch.tensor([[5, 11, 2]])
    unchecked = DecodeStep(tiny, visible=inspect.unwrap(visible_at))
    sizes = {1: Dim("T", max=C)}, None, None, None
    program = export(unchecked, (ids, *empty, torch.tensor([0])), dynamic_shapes=sizes)
    made = quietly(lambda: torch.onnx.export(program, dynamo=True))
    session = onnxruntime.InferenceSession(made.model_proto.SerializeToString())
    names = [port.name for port in session.get_inputs()]

    def by_session(*given):
        feeds = {name: x.numpy() for name, x in zip(names, given, strict=True)}
        return [torch.from_numpy(x) for x in session.run(None, feeds)]

    (keys, values), text, position = empty, ids, torch.tensor([0])
    with torch.no_grad():
        for _ in range(6):
            logits, keys, values = by_session(ids, keys, values, position)
            due = tiny(text)[:, -ids.size(1) :]
            torch.testing.assert_close(logits, due, rtol=1e-4, atol=1e-4)
            position = position + ids.size(1)
            ids = due[:, -1].argmax(-1, keepdim=True)
            assert torch.equal(ids, logits[:, -1].argmax(-1, keepdim=True))
            text = torch.cat((text, ids), dim=1)


def test_weights_come_back_from_the_published_form(tiny):
    published = hf_state_dict(tiny.state_dict(), torch.float32)
    again = GPT2(CONFIGS["tiny"])
    load_hf_state_dict(again, published)
    assert all(map(torch.equal, again.parameters(), tiny.parameters()))


def test_a_refusal_names_the_line():
    class Branch(nn.Module):
        def forward(self, x):
            if x.sum() > 0:
                return x
            return -x

    said = why_refused(lambda: export(Branch(), (torch.ones(2),)))
    assert "data-dependent" in said and said.endswith("if x.sum() > 0:")
    with pytest.raises(AssertionError, match="took it"):
        why_refused(lambda: None)


def test_a_fresh_process_tells_what_it_did_before_it_died():
    done = in_fresh_process(
        "mark('begin')\ntell(x=[1, 2])\nimport os\nos.abort()\ntell(y=3)", SOME_VARIABLE="1"
    )
    assert done.told == {"x": [1, 2]} and set(done.seconds) == {"begin"} and done.code != 0
    assert in_fresh_process("import os\ntell(x=os.environ['X'])", X="7").told == {"x": "7"}


def test_without_a_compiler_the_background_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    compiling = Compiling(tmp_path / "package.pt2")
    assert "compiler" in compiling.problem(600.0).lower()
    compiling.stop()


def test_a_median_is_of_calls_after_the_first():
    calls = []
    assert median_ms(lambda: calls.append(1), rounds=3) >= 0 and len(calls) == 4
