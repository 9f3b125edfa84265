"""Clients of `course serve` that note when each piece of text came; and crowds of them, in two kinds."""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Reply:
    """What a client got. Times are of `time.perf_counter`.

    arrived: when the request was due. times: when each piece of text came. finish: the
    reason that the server gave, None if the text broke off. status: of HTTP. error: what
    the server said instead.
    """

    arrived: float
    times: list[float] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    status: int = 0
    error: str = ""


def stream(
    client: httpx.Client, body: dict[str, Any], due: float | None = None, most: int | None = None
) -> Reply:
    """Ask for one completion and read it piece by piece.

    client: it knows the server's address. body: of the request, without `stream`. due: the
    time from which it counts; None is now. most: hang up after so many pieces.
    """
    reply = Reply(time.perf_counter() if due is None else due)
    with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        reply.status = response.status_code
        if response.status_code != 200:
            reply.error = json.loads(response.read())["error"]["message"]
            return reply
        for line in response.iter_lines():
            if not line or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                reply.error = event["error"]["message"]
                return reply
            for choice in event["choices"]:
                reply.times.append(time.perf_counter())
                reply.text += choice["text"]
                reply.finish = choice["finish_reason"]
            if len(reply.times) == most:
                return reply
    return reply


def open_loop(url: str, bodies: Sequence[dict[str, Any]], gaps: Sequence[float]) -> list[Reply]:
    """Each request comes when it comes: so many seconds after the one before it, done or not.

    A request that is sent late, because this machine is busy, still counts from when it was
    due.
    """
    begin, due = time.perf_counter(), 0.0
    times = [begin + (due := due + gap) for gap in gaps]

    def run(client: httpx.Client, i: int) -> Reply:
        time.sleep(max(times[i] - time.perf_counter(), 0))
        return stream(client, bodies[i], times[i])

    return _together(url, run, len(bodies), len(bodies))


def closed_loop(url: str, bodies: Sequence[dict[str, Any]], clients: int) -> list[Reply]:
    """So many clients, each of which asks again when it has its answer, until all is asked."""
    return _together(url, lambda client, i: stream(client, bodies[i]), len(bodies), clients)


def _together(
    url: str, run: Callable[[httpx.Client, int], Reply], number: int, threads: int
) -> list[Reply]:
    limits = httpx.Limits(max_connections=None)
    with (
        httpx.Client(base_url=url, timeout=120, limits=limits, trust_env=False) as client,
        ThreadPoolExecutor(max(threads, 1)) as pool,
    ):
        return list(pool.map(lambda i: run(client, i), range(number)))
