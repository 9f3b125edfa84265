"""`course serve`: real clients over HTTP, many at once, some of them rude; and its end."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from course_utils.authoring.counts import count
from course_utils.cli import app
from course_utils.reference.generation import stop_stream
from course_utils.reference.gpt2 import GPT2, GPT2Config
from course_utils.reference.pretrained import course_model, course_tokenizer
from course_utils.reference.serving_engine import Engine, GenerationRequest
from course_utils.reference.serving_http import LiveServer, Served
from course_utils.reference.serving_load import closed_loop, open_loop, stream
from course_utils.reference.serving_runner import LIMITS, Limits
from course_utils.reference.serving_text import TextStream
from course_utils.reference.tokenization import Tokenizer
from tests.support.alone import alone, compared

PATH = "/v1/completions"
BYTES = Tokenizer([])
CONFIG = GPT2Config(vocab_size=257, n_positions=128, n_embd=24, n_layer=2, n_head=3, dropout=0.0)


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    return GPT2(CONFIG).double().eval()


@contextmanager
def live(model, tokenizer=BYTES, limits=LIMITS, **sizes):
    engine = Engine(model, **{"slots": 4, "n_blocks": 64, "block_size": 8} | sizes)
    with (
        LiveServer(engine, Served("it", tokenizer, 0), limits) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        yield server, client


def counted(client) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            found["/".join([sample.name, *sample.labels.values()])] = sample.value
    return found


def until(what, seconds=30.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def nothing_left(server) -> bool:
    engine = server.runner.engine
    pool = engine.tables.pool
    return engine.idle and len(pool) == len(pool.uses) and not (
        engine.tables.tables or server.runner._answers
    )  # fmt: skip


def test_many_clients_at_once_each_get_what_they_would_get_alone():
    model, tokenizer = course_model().double(), course_tokenizer()
    end = tokenizer.special["<|endoftext|>"]
    rng = random.Random(0)
    begins = ["def read(path):\n", "import os\nimport sys\n\n", "class Reader:\n    def ", "for "]
    asked = []
    for i in range(32):
        prompt = begins[i % 4] + "# and so on\n" * rng.randint(0, 6)
        asked.append({
            "prompt": prompt, "max_tokens": rng.randint(8, 40), "seed": i,
            "temperature": rng.choice([0.0, 0.8, 1.0]), "top_p": rng.choice([0.9, 1.0]),
            "top_k": rng.choice([0, 50]), **({"stop": ["\n\n", "):"]} if i % 5 == 0 else {}),
        })  # fmt: skip
    kinds = ["whole", "streamed", "slow", "hangs up"]
    with live(model, tokenizer, slots=8, n_blocks=48, block_size=16, budget=64) as (server, client):
        engine, tokens = server.runner.engine, {}
        step = engine.step

        def noted():
            events = step()
            for event in events:
                tokens.setdefault(event.name, []).append(event.token)
            return events

        engine.step = noted
        together = threading.Barrier(40)

        def ask(i):
            with httpx.Client(base_url=server.url, timeout=120, trust_env=False) as mine:
                together.wait()
                if i >= 36:
                    return mine.post(PATH, json={"prompt": "too long " * 500}).status_code
                if i >= 32:
                    json_ = {"Content-Type": "application/json"}
                    return mine.post(PATH, content=b'{"prompt": "a", ', headers=json_).status_code
                kind = kinds[i % 4]
                if kind == "whole":
                    answer = mine.post(PATH, json=asked[i]).json()
                    choice = answer["choices"][0]
                    return answer["id"], choice["text"], choice["finish_reason"]
                text, name, finish = "", "", None
                with mine.stream("POST", PATH, json=asked[i] | {"stream": True}) as response:
                    for number, line in enumerate(filter(None, response.iter_lines())):
                        if line == "data: [DONE]":
                            break
                        event = json.loads(line.removeprefix("data: "))
                        name, choice = event["id"], event["choices"][0]
                        text, finish = text + choice["text"], choice["finish_reason"]
                        if kind == "slow":
                            time.sleep(0.05)
                        if kind == "hangs up" and number == 2:
                            break
                return name, text, finish

        with ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(ask, range(40)))
        until(lambda: nothing_left(server))
        numbers = counted(client)
    assert answers[32:] == [400] * 8
    found, cancelled = Counter(), 0
    for body, (name, text, finish) in zip(asked, answers, strict=False):
        request = GenerationRequest(
            (end, *tokenizer.encode(body["prompt"])), body["max_tokens"], body["temperature"],
            body["top_k"] or None, None if body["top_p"] == 1 else body["top_p"], body["seed"],
            frozenset([end]),
        )  # fmt: skip
        due, got = alone(model, request), tokens[name.removeprefix("cmpl-")]
        found[compared(model, request, got, due[: len(got)])] += 1
        written = tokenizer.decode(due[:-1] if due[-1] == end else due)
        cut = "".join(stop_stream([written], body.get("stop", [])))
        if finish is None:
            cancelled += 1
            assert cut.startswith(text)
        else:
            assert text == cut
            assert finish == ("stop" if cut != written or due[-1] == end else "length")
    assert found["different"] == 0 and found["equal"] + found["tie"] == 32, found
    count("answers over HTTP, equal to those of an unbatched run", found["equal"])
    ended = {name: numbers.get(f"course_requests_total/{name}", 0) for name in ("stop", "length")}
    assert cancelled >= 4 and numbers["course_requests_total/cancelled"] == cancelled
    assert sum(ended.values()) == 32 - cancelled
    assert numbers["course_requests_total/invalid"] == 8
    assert numbers["course_blocks_used"] == 0 and numbers["course_blocks_free"] == 48
    assert numbers["course_engine_drawn_total"] == sum(map(len, tokens.values()))
    assert numbers["course_step_requests_count"] == numbers["course_engine_steps_total"]
    assert numbers["course_engine_shared_total"] > 0


HEADERS = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("content", "status", "why"),
    [
        (b"{", 400, "the body is no JSON object: "),
        (b"", 400, ""),
        (b"[1]", 400, "the body is no JSON object: "),
        (b'"a"', 400, "the body is no JSON object: "),
        (b"\xff", 400, ""),
        (b"[" * 100_000, 400, ""),
        (b'{"prompt": "a", "seed": %s}' % (b"9" * 5000), 400, ""),
        (b'{"prompt": "\\ud800"}', 400, "prompt"),
        (b'{"prompt": "a", "temperature": NaN}', 400, "temperature"),
        ({}, 400, "prompt: Field required"),
        ({"prompt": 3}, 400, "prompt"),
        ({"prompt": []}, 400, "a prompt has a token"),
        ({"prompt": [257]}, 400, "tokens are 0 to 256"),
        ({"prompt": ["a", "b"]}, 400, "prompt"),
        ({"prompt": "a" * 200}, 400, "there is room for 128"),
        ({"prompt": "a" * 20_000}, 400, "the context is 128 tokens"),
        ({"prompt": "a" * 300_000}, 413, "more than 262144 bytes"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens: "),
        ({"prompt": "a", "max_tokens": 300}, 400, "max_tokens is 300; 256 is the most"),
        ({"prompt": "a", "temperature": -1}, 400, "temperature: "),
        ({"prompt": "a", "top_p": 0}, 400, "top_p: "),
        ({"prompt": "a", "top_k": -1}, 400, "top_k: "),
        ({"prompt": "a", "seed": -1}, 400, "seed: "),
        ({"prompt": "a", "stop": ["a"] * 5}, 400, "stop"),
        ({"prompt": "a", "n": 2}, 400, "n: "),
        ({"prompt": "a", "best_of": 2}, 400, "best_of: "),
        ({"prompt": "a", "model": "other"}, 404, "there is no model 'other'; there is 'it'"),
    ],
)
def test_what_is_wrong_is_said(served, content, status, why):
    _, client = served
    given = {"json": content} if isinstance(content, dict) else {"content": content}
    response = client.post(PATH, **given, headers=HEADERS)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["message"].startswith(why) or why in error["message"]
    assert error["type"] == "invalid_request_error" and error["code"] == status
    assert "\n" not in error["message"]


@pytest.fixture(scope="module")
def served(small):
    with live(small) as made:
        yield made


def test_other_addresses(served):
    _, client = served
    [model] = client.get("/v1/models").json()["data"]
    assert model["id"] == "it" and model["object"] == "model"
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/nowhere").json()["error"]["message"] == "Not Found"
    assert client.get(PATH).status_code == 405
    assert client.post(PATH, content=b'{"prompt": "a"}').status_code == 415
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "http" not in page.text.lower().replace("<!doctype html>", "").replace("https", "http")


def test_streamed_and_whole_are_the_same(served):
    _, client = served
    body = {"prompt": "ab", "max_tokens": 20, "seed": 3, "temperature": 1.0}
    whole = client.post(PATH, json=body).json()
    with client.stream(
        "POST", PATH, json=body | {"stream": True, "stream_options": {"include_usage": True}}
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    *pieces, last = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    choices = [piece["choices"][0] for piece in pieces]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 20, "total_tokens": 23}
    assert client.post(PATH, json=body | {"prompt": [256, 97, 98]}).json()["choices"] == [
        choice | {"text": whole["choices"][0]["text"]} for choice in whole["choices"]
    ]


def test_a_full_queue_says_when_to_come_again(small):
    with live(small, slots=1, limits=Limits(queue=1)) as (server, client):
        hold = threading.Event()
        step = server.runner.engine.step
        server.runner.engine.step = lambda: (hold.wait(), step())[1]
        body = {"prompt": "a", "max_tokens": 3}
        with ThreadPoolExecutor(2) as pool:
            first = [pool.submit(client.post, PATH, json=body) for _ in range(2)]
            until(lambda: len(server.runner._answers) == 2)
            refused = client.post(PATH, json=body)
            streamed = stream(client, body)
            assert refused.status_code == streamed.status == 429
            assert int(refused.headers["Retry-After"]) >= 1
            assert "requests are here already" in refused.json()["error"]["message"]
            hold.set()
            assert [future.result().status_code for future in first] == [200, 200]
        assert client.post(PATH, json=body).status_code == 200
        assert counted(client)["course_requests_total/refused"] == 2


@pytest.mark.parametrize("streamed", [True, False])
def test_who_goes_away_is_forgotten(small, streamed):
    """Its blocks are free long before its tokens would have been drawn."""
    with live(small) as (server, client):
        engine, step, slow = server.runner.engine, server.runner.engine.step, threading.Event()
        engine.step = lambda: (slow.wait(0.02), step())[1]
        body = {"prompt": "a", "max_tokens": 120, "temperature": 0.0}  # greedy, it never ends
        if streamed:
            assert len(stream(client, body, most=3).times) == 3
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(PATH, json=body, timeout=0.3)
        until(lambda: nothing_left(server))
        assert 0 < engine.counts.drawn < 100
        assert counted(client)["course_requests_total/cancelled"] == 1


def test_who_never_reads_keeps_no_slot(small):
    with live(small, slots=1) as (server, client):
        with client.stream(
            "POST", PATH, json={"prompt": "a", "max_tokens": 100, "stream": True, "seed": 1}
        ):
            answer = client.post(PATH, json={"prompt": "b", "max_tokens": 5})
            assert answer.status_code == 200
        until(lambda: nothing_left(server))


def test_a_step_that_fails_costs_those_in_it(small):
    with live(small) as (server, client):
        engine, step = server.runner.engine, server.runner.engine.step

        def broken():
            raise RuntimeError("no step today")

        engine.step = broken
        body = {"prompt": "a", "max_tokens": 5}
        answer = client.post(PATH, json=body)
        assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
        assert stream(client, body).error == "the server could not compute this"
        engine.step = step
        assert client.post(PATH, json=body).status_code == 200
        until(lambda: nothing_left(server))
        assert counted(client)["course_requests_total/failed"] == 2


def test_both_kinds_of_crowds(served):
    server, _ = served
    bodies = [{"prompt": "a" * i, "max_tokens": 6, "seed": i} for i in range(1, 7)]
    for replies in (closed_loop(server.url, bodies, 3), open_loop(server.url, bodies, [0.01] * 6)):
        assert [reply.finish for reply in replies] == ["length"] * 6
        assert all(reply.times == sorted(reply.times) for reply in replies)
        assert all(reply.arrived < reply.times[0] for reply in replies)


def test_text_of_tokens_in_any_pieces():
    rng = random.Random(0)
    for _ in range(400):
        data = rng.choices([b"a", b"b", "é".encode(), "→".encode(), b"\xff"], k=rng.randint(0, 9))
        ids = list(b"".join(data))
        stops = rng.sample(["ab", "b", "é→", "aba", "→a", "�"], rng.randint(0, 3))
        text, out = TextStream(BYTES.vocab, stops), []
        for token in ids:
            out.append(text.push(token))
            if text.stopped:
                break
        out.append(text.end())
        due = list(stop_stream(BYTES.decode_stream(ids), stops))
        assert "".join(out) == "".join(due)
        assert text.stopped == any(stop in BYTES.decode(ids) for stop in stops)


# ------------------------------------------------------------------------------ a process of its own


@contextmanager
def process(*arguments):
    """`course serve`, and its address."""
    done = subprocess.Popen(
        [sys.executable, "-m", "course_utils.cli", "serve", "--port", "0", "--threads", "1", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        line = done.stdout.readline()
        url = re.search(r"http://\S+?:\d+", line)
        assert url, line + done.stdout.read()
        with httpx.Client(base_url=url[0], timeout=60, trust_env=False) as client:
            until(lambda: _answers(client))
            yield done, client
    finally:
        done.kill()
        done.wait()
        done.stdout.close()


def _answers(client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.TransportError:
        return False


def test_terminated_it_finishes_what_runs_and_refuses_what_comes():
    with process("--grace", "50") as (served, client):
        body = {"prompt": "def f", "max_tokens": 200, "stream": True, "temperature": 0.0}
        with client.stream("POST", PATH, json=body) as response:
            lines = filter(None, response.iter_lines())
            first = next(lines)
            served.send_signal(signal.SIGTERM)
            until(lambda: client.get("/health").status_code == 503)
            refused = client.post(PATH, json={"prompt": "a"})
            rest = list(lines)
        assert refused.status_code == 503 and int(refused.headers["Retry-After"]) >= 1
        assert first.startswith("data: {") and rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"]
        assert served.wait(30) == 0
        assert served.stdout.read() == ""


@pytest.mark.parametrize(("grace", "signals"), [("0.02", 1), ("600", 2)])
def test_grace_has_an_end_and_a_second_signal_ends_it_now(grace, signals):
    """On a busy machine an answer may be whole before the signal is sent: that try shows nothing."""
    for _ in range(5):
        if last := _last_line_after(signals, "--grace", grace):
            assert json.loads(last)["error"]["code"] == 503
            return
    pytest.fail("each of five answers was whole before its signal came")


def _last_line_after(signals: int, *arguments: str) -> str:
    """What ended a stream whose server got so many signals; "" where the answer was whole."""
    body = {
        "prompt": "def f",
        "max_tokens": 256 - 10,
        "stream": True,
        "temperature": 2.0,
        "seed": 1,
    }
    with process(*arguments) as (served, client):
        with client.stream("POST", PATH, json=body) as response:
            lines = filter(None, response.iter_lines())
            next(lines)
            for _ in range(signals):
                served.send_signal(signal.SIGTERM)
                time.sleep(0.05)
            *_, last = lines
        served.wait(30)
    return last.removeprefix("data: ").replace("[DONE]", "")


def test_settings_and_errors_in_one_line(tmp_path):
    helped = CliRunner().invoke(app, ["serve", "--help"]).output
    for name in ("slots", "blocks", "block-size", "budget", "queue", "max-tokens", "grace", "dtype", "host", "port"):  # fmt: skip
        assert f"--{name} <" in helped
    assert helped.count("[default: ") == 12
    for arguments, why in (
        (["--port", "99999"], "cannot listen on 127.0.0.1, port 99999"),
        (["--dtype", "int8", "--port", "0"], "--dtype is one of float32, bfloat16, float64"),
        (["--slots", "0", "--port", "0"], "--slots and --block-size are at least 1"),
        (["--budget", "3", "--port", "0"], "a step must have a token for each of 16 slots"),
        (["--queue", "-1"], "--queue and --grace are at least 0"),
        ([str(tmp_path / "nowhere"), "--port", "0"], "there is no checkpoint"),
        ([str(tmp_path), "--port", "0"], "holds no exported model"),
    ):
        done = CliRunner().invoke(app, ["serve", *arguments])
        assert done.exit_code == 1 and done.output.count("\n") == 1, done.output
        assert done.output.startswith("course serve: ") and why in done.output
