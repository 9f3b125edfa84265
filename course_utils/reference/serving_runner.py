"""Chapter 28's engine on an event loop: who may come in, what each client gets, and what is counted.

The engine steps in a thread of its own. All else happens on one event loop, which tells it between two
steps what arrived and what was cancelled; so nothing needs a lock.
"""

import asyncio
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily
from starlette.exceptions import HTTPException

from .serving_engine import Engine, Event, GenerationRequest

log = logging.getLogger("course.serve")


@dataclass(frozen=True)
class Limits:
    """What a server takes on.

    queue: requests that wait, at most; the next one is refused. max_tokens: of an answer.
    body: bytes of a request's JSON. grace: seconds for what runs when the server stops.
    """

    queue: int = 64
    max_tokens: int = 256
    body: int = 2**18
    grace: float = 30.0

    def __post_init__(self) -> None:
        """Raises ValueError for what makes no server."""
        if self.queue < 0 or self.max_tokens < 1 or self.body < 1 or self.grace < 0:
            raise ValueError(
                "--queue and --grace are at least 0, --max-tokens 1; came "
                f"{self.queue}, {self.grace} and {self.max_tokens}"
            )


LIMITS = Limits()
"""What a server has that is told nothing else."""


class Refused(HTTPException):
    """An answer that is an error, in OpenAI's form. after: seconds until it is worth another try."""

    def __init__(
        self, status: int, message: str, param: str | None = None, after: int | None = None
    ) -> None:
        super().__init__(status, message, None if after is None else {"Retry-After": str(after)})
        self.param = param

    @property
    def content(self) -> dict[str, Any]:
        """What the client reads."""
        kind = "invalid_request_error" if self.status_code < 429 else "server_error"
        error = {"message": self.detail, "type": kind, "param": self.param}
        return {"error": error | {"code": self.status_code}}


class Failed(Refused):
    """The end of an answer that cannot be finished."""


class Metrics:
    """What `/metrics` shows of an engine, in a registry of its own."""

    def __init__(self, engine: Engine) -> None:
        self.registry = registry = prometheus.CollectorRegistry()
        self.requests = prometheus.Counter(
            "course_requests",
            "Requests that ended, by how: stop, length, cancelled, refused, invalid, failed",
            ["outcome"],
            registry=registry,
        )
        self.ttft = self._histogram(
            "course_time_to_first_token_seconds", "From a request's arrival to its first token"
        )
        self.itl = self._histogram(
            "course_inter_token_seconds", "Between two tokens of a request", low=0.001
        )
        self.seconds = self._histogram(
            "course_request_seconds", "From a request's arrival to its last token"
        )
        self.batch = prometheus.Histogram(
            "course_step_requests",
            "Requests that a step reads tokens of",
            buckets=[1, 2, 4, 8, 16, 32, 64, math.inf],
            registry=registry,
        )
        counts, pool = engine.counts, engine.tables.pool
        for name, what, read in (
            ("running", "Requests that have a slot", lambda: len(engine.running)),
            ("waiting", "Requests in the queue", lambda: len(engine.waiting)),
            ("blocks_used", "Blocks that some table has", lambda: len(pool.uses) - len(pool)),
            ("blocks_free", "Blocks that no table has", lambda: len(pool)),
        ):
            prometheus.Gauge(f"course_{name}", what, registry=registry).set_function(read)
        for name, what in (
            ("steps", "Passes through the model"),
            ("read", "Tokens that went through the model"),
            ("shared", "Tokens whose keys were in the cache already"),
            ("drawn", "Tokens of answers"),
            ("preempted", "Times that a request lost its blocks"),
        ):
            registry.register(_Counted(f"course_engine_{name}", what, counts, name))

    def _histogram(self, name: str, what: str, low: float = 0.004) -> prometheus.Histogram:
        buckets = [low * 2**i for i in range(13)] + [math.inf]
        return prometheus.Histogram(name, what, buckets=buckets, registry=self.registry)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return prometheus.generate_latest(self.registry)


class _Counted:
    """A counter that somebody else counts."""

    def __init__(self, name: str, what: str, counts: Any, attribute: str) -> None:
        self.name, self.what, self.counts, self.attribute = name, what, counts, attribute

    def collect(self) -> Iterator[Any]:
        value = getattr(self.counts, self.attribute)
        yield CounterMetricFamily(self.name, self.what, value)


class Answer:
    """What comes of one request: `async for` its events. It ends with `Runner.forget`."""

    def __init__(self, name: str) -> None:
        self.name, self.arrived = name, time.perf_counter()
        self.events: asyncio.Queue[Event | Failed] = asyncio.Queue()
        self.created, self.last = int(time.time()), 0.0  # when its last token came
        self.n_tokens, self.outcome = 0, "cancelled"  # if nothing else comes

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            event = await self.events.get()
            if isinstance(event, Failed):
                self.outcome = "failed"
                raise event
            yield event
            if event.finish:
                return


class Runner:
    """Owns an engine. Only `run` touches it; everybody else leaves word, which is read between two steps.

    A client that reads slowly keeps nobody waiting: its events lie in a queue of its own,
    no more of them than its answer has tokens.
    """

    def __init__(self, engine: Engine, limits: Limits = LIMITS) -> None:
        """Nothing runs before `run`."""
        self.engine, self.limits, self.metrics = engine, limits, Metrics(engine)
        self.on_end: Callable[[], None] = lambda: None
        self.deadline = math.inf  # finite once it is stopping
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._new: list[tuple[Answer, GenerationRequest]] = []
        self._gone: list[Answer] = []
        self._answers: dict[str, Answer] = {}
        self._ends: deque[float] = deque(maxlen=32)

    @property
    def stopping(self) -> bool:
        """Does it take nothing new any more?"""
        return self.deadline < math.inf

    @property
    def _busy(self) -> bool:
        return not self.engine.idle or bool(self._new)

    def submit(self, request: GenerationRequest) -> Answer:
        """Put a request into the queue. Raises Refused: 400 if it cannot be served, 429 and 503 if not now."""
        if self.stopping:
            raise Refused(503, "the server is stopping", after=max(math.ceil(self.limits.grace), 1))
        try:
            self.engine.check(request)
        except ValueError as error:
            raise Refused(400, str(error)) from None
        ahead = len(self.engine.running) + len(self.engine.waiting) + len(self._new)
        if ahead >= self.engine.slots + self.limits.queue:
            raise Refused(
                429,
                f"{ahead} requests are here already",
                after=self._seconds_for(self.limits.queue),
            )
        answer = Answer(uuid.uuid4().hex)
        self._answers[answer.name] = answer
        self._new.append((answer, request))
        self._wake.set()
        return answer

    def _seconds_for(self, requests: int) -> int:
        """About how long so many requests take, at the pace of the last ones; from 1 to 60."""
        if len(self._ends) < 2:
            return 1
        each = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return min(max(math.ceil(each * requests), 1), 60)

    def forget(self, answer: Answer) -> None:
        """Nobody waits for this answer any more: if it is not complete, its request is cancelled."""
        self.metrics.requests.labels(answer.outcome).inc()
        del self._answers[answer.name]
        self._gone.append(answer)
        self._wake.set()

    def stop(self) -> None:
        """Take nothing new, and end `run` when all is done that is there. From any thread; once is enough."""
        if not self.stopping:
            self.deadline = time.perf_counter() + self.limits.grace
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: `run` has ended
                self._loop.call_soon_threadsafe(self._wake.set)

    async def run(self) -> None:
        """A step after another, as long as there is something to do; then wait for more."""
        self._loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "engine") as thread:
            while self._busy or not self.stopping:
                self._wake.clear()
                self._take_word()
                if time.perf_counter() > self.deadline:
                    self._give_up(Failed(503, "the server has stopped", after=1))
                elif self.engine.idle:
                    if not self.stopping:
                        await self._wake.wait()
                else:
                    await self._step(thread)
        while self._answers and time.perf_counter() < self.deadline:
            await asyncio.sleep(0.01)  # all is computed; who reads slowly gets the rest
        self.on_end()

    def _take_word(self) -> None:
        for answer, request in self._new:
            self.engine.add(answer.name, request)
        for answer in self._gone:
            self.engine.cancel(answer.name)
        self._new.clear()
        self._gone.clear()

    async def _step(self, thread: ThreadPoolExecutor) -> None:
        try:
            events = await asyncio.get_running_loop().run_in_executor(thread, self.engine.step)
        except Exception as error:  # what was running cannot go on; the server can
            log.error("a step failed", exc_info=error)
            self._give_up(Failed(500, "the server could not compute this"))
            return
        now = time.perf_counter()
        self.metrics.batch.observe(len(self.engine.last))
        for event in events:
            answer = self._answers.get(str(event.name))
            if answer is not None:  # else it was forgotten meanwhile
                self._deliver(answer, event, now)

    def _deliver(self, answer: Answer, event: Event, now: float) -> None:
        if answer.last == 0:
            self.metrics.ttft.observe(now - answer.arrived)
        else:
            self.metrics.itl.observe(now - answer.last)
        answer.last = now
        answer.events.put_nowait(event)
        if event.finish:
            self.metrics.seconds.observe(now - answer.arrived)
            self._ends.append(now)

    def _give_up(self, why: Failed) -> None:
        """Everybody who still waits for tokens is told why none come."""
        for job in [*self.engine.running, *self.engine.waiting]:
            self.engine.cancel(job.name)
            if (answer := self._answers.get(str(job.name))) is not None:
                answer.events.put_nowait(why)
