"""`course serve`: chapter 28's engine over HTTP, with completions in OpenAI's form.

`POST /v1/completions`, in one piece or streamed as server-sent events, `GET /v1/models`, `/metrics` for
Prometheus, `/health`, and at `/` a page to try it on.
"""

import asyncio
import json
import math
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import fastapi
import prometheus_client as prometheus
import torch
import uvicorn
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from .gpt2 import GPT2
from .sampling import load
from .serving import paged_kv_blocks
from .serving_engine import Engine, GenerationRequest
from .serving_runner import LIMITS, Answer, Failed, Limits, Refused, Runner
from .serving_text import TextStream
from .tokenization import END_OF_TEXT, Tokenizer

PATH = "/v1/completions"
PAGE = Path(__file__).parents[1] / "pages" / "serving.html"

# ------------------------------------------------------------------------------ what is asked


class StreamOptions(BaseModel):
    """What a stream has beside its text."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class Completion(BaseModel):
    """The body of a request. Fields and defaults are OpenAI's; top_k is vLLM's."""

    model_config = ConfigDict(extra="forbid")
    prompt: str | list[int]
    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] = 16
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Literal[1] = 1
    user: str | None = None

    @property
    def stops(self) -> list[str]:
        """The stop strings, without empty ones."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in given if text]


class BodyLimit:
    """Stops reading a body that has more bytes than that."""

    def __init__(self, app: Any, most: int) -> None:
        """app: what it is put before, as ASGI has it."""
        self.app, self.most = app, most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One connection's request."""
        read = 0

        async def counted() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.most:
                raise Refused(413, f"a body of more than {self.most} bytes")
            return message

        await self.app(scope, counted if scope["type"] == "http" else receive, send)


# ------------------------------------------------------------------------------ the routes


@dataclass(frozen=True)
class Served:
    """A model that is served: its name, its tokenizer, when it was loaded (seconds since 1970)."""

    name: str
    tokenizer: Tokenizer
    created: int

    @property
    def end(self) -> int | None:
        """The token that begins a document and ends it, if there is one."""
        return self.tokenizer.special.get(END_OF_TEXT)

    def request(self, body: Completion, limits: Limits, context: int) -> GenerationRequest:
        """What the engine gets. Raises Refused for what it need not look at."""
        if body.model not in (None, self.name):
            raise Refused(404, f"there is no model {body.model!r}; there is {self.name!r}", "model")
        if body.max_tokens > limits.max_tokens:
            raise Refused(
                400,
                f"max_tokens is {body.max_tokens}; {limits.max_tokens} is the most",
                "max_tokens",
            )
        return GenerationRequest(
            self._prompt(body.prompt, context),
            body.max_tokens,
            body.temperature,
            body.top_k or None,
            None if body.top_p == 1 else body.top_p,
            body.seed,
            frozenset() if self.end is None else frozenset([self.end]),
        )

    def _prompt(self, prompt: str | list[int], context: int) -> tuple[int, ...]:
        """A text after the token that begins documents, as in training; tokens as they are."""
        if isinstance(prompt, list):
            return tuple(prompt)
        try:
            n_bytes = len(prompt.encode())
        except UnicodeEncodeError:
            raise Refused(400, "prompt is no text: half a surrogate pair", "prompt") from None
        if n_bytes > context * max(map(len, self.tokenizer.vocab)):  # too long, whatever its tokens
            raise Refused(
                400, f"a prompt of {n_bytes} bytes; the context is {context} tokens", "prompt"
            )
        start = () if self.end is None else (self.end,)
        return (*start, *self.tokenizer.encode(prompt))


class Completions:
    """One completion after another, as objects of OpenAI's form."""

    def __init__(self, served: Served, runner: Runner) -> None:
        self.served, self.runner = served, runner

    async def answer(self, body: Completion, http: fastapi.Request) -> Response:
        """`POST /v1/completions`."""
        request = self.served.request(body, self.runner.limits, self.runner.engine.context)
        answer = self.runner.submit(request)
        if body.stream:
            return _Stream(self._lines(answer, body, request), lambda: self.runner.forget(answer))
        whole = asyncio.create_task(self._whole(answer, body, request))
        gone = asyncio.create_task(_disconnected(http))
        try:
            await asyncio.wait((whole, gone), return_when=asyncio.FIRST_COMPLETED)
            if whole.done():
                return JSONResponse(whole.result())
            return Response(status_code=499)  # nobody is there to read it
        finally:
            whole.cancel()
            gone.cancel()
            self.runner.forget(answer)

    async def _texts(self, answer: Answer, stops: Sequence[str]) -> AsyncIterator[tuple[str, str]]:
        """Text, as it becomes certain, and why it ends: "" but with the last one."""
        text = TextStream(self.served.tokenizer.vocab, stops)
        async for _, token, finish in answer:
            answer.n_tokens += 1
            new = "" if token == self.served.end else text.push(token)
            if finish:
                new += text.end()
            if finish or text.stopped:
                answer.outcome = "stop" if text.stopped else str(finish)
                yield new, answer.outcome
                return
            if new:
                yield new, ""

    def _object(
        self, answer: Answer, choices: list[dict[str, Any]], usage: dict[str, int] | None = None
    ) -> dict[str, Any]:
        made = {
            "id": f"cmpl-{answer.name}",
            "object": "text_completion",
            "created": answer.created,
            "model": self.served.name,
            "choices": choices,
        }
        return made if usage is None else made | {"usage": usage}

    async def _whole(
        self, answer: Answer, body: Completion, request: GenerationRequest
    ) -> dict[str, Any]:
        texts = [new async for new, _ in self._texts(answer, body.stops)]
        return self._object(
            answer, [_choice("".join(texts), answer.outcome)], _usage(request, answer)
        )

    async def _lines(
        self, answer: Answer, body: Completion, request: GenerationRequest
    ) -> AsyncIterator[str]:
        """Server-sent events: an object for each piece of text, the usage if it is wanted, [DONE]."""
        try:
            async for new, finish in self._texts(answer, body.stops):
                yield _event(self._object(answer, [_choice(new, finish)]))
            if body.stream_options and body.stream_options.include_usage:
                yield _event(self._object(answer, [], _usage(request, answer)))
            yield "data: [DONE]\n\n"
        except Refused as refused:  # the status is sent already
            yield _event(refused.content)


class _Stream(StreamingResponse):
    """Server-sent events; `close` is called when no more can be sent, whatever the reason."""

    def __init__(self, lines: AsyncIterator[str], close: Callable[[], None]) -> None:
        super().__init__(
            lines, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )
        self.close = close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.close()


def _choice(text: str, finish: str) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish or None}


def _usage(request: GenerationRequest, answer: Answer) -> dict[str, int]:
    prompt, drawn = len(request.prompt), answer.n_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
    }


def _event(content: Any) -> str:
    return f"data: {json.dumps(content)}\n\n"


async def _disconnected(http: fastapi.Request) -> None:
    """Comes back when the client has gone away; the body has been read."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def create_app(runner: Runner, served: Served) -> fastapi.FastAPI:
    """The routes, and an engine that runs as long as they are served."""

    @asynccontextmanager
    async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(runner.run())
        yield
        runner.stop()
        await running

    app = fastapi.FastAPI(
        title="course serve", lifespan=lifespan, docs_url=None, redoc_url=None
    )  # their pages load scripts from elsewhere
    app.add_middleware(BodyLimit, most=runner.limits.body)
    app.post(PATH, response_model=None)(Completions(served, runner).answer)

    @app.exception_handler(HTTPException)
    async def refuse(http: fastapi.Request, error: HTTPException) -> JSONResponse:
        refused = error if isinstance(error, Refused) else Refused(error.status_code, error.detail)
        if http.url.path == PATH and not isinstance(error, Failed):  # these are counted already
            outcome = "refused" if refused.status_code in (429, 503) else "invalid"
            runner.metrics.requests.labels(outcome).inc()
        return JSONResponse(refused.content, refused.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def explain(http: fastapi.Request, error: RequestValidationError) -> JSONResponse:
        if "json" not in http.headers.get("content-type", ""):
            return await refuse(http, Refused(415, "send JSON, and Content-Type: application/json"))
        first = error.errors()[0]
        where = [str(part) for part in first["loc"][1:]]
        param = where[0] if where and first["type"] != "json_invalid" else None
        message = first["ctx"]["error"] if first["type"] == "json_invalid" else first["msg"]
        text = (
            f"{'.'.join(where)}: {message}" if param else f"the body is no JSON object: {message}"
        )
        return await refuse(http, Refused(400, text, param))

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        one = {
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "course",
        }
        return {"object": "list", "data": [one]}

    @app.get("/health")
    def health() -> JSONResponse:
        if runner.stopping:
            return JSONResponse({"status": "stopping"}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(runner.metrics.text(), media_type=prometheus.CONTENT_TYPE_LATEST)

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(PAGE, media_type="text/html")

    return app


# ------------------------------------------------------------------------------ a process, or a thread


class Server(uvicorn.Server):
    """The first signal lets what is here finish and refuses what comes; the second ends it now."""

    def __init__(self, app: fastapi.FastAPI, runner: Runner) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=max(math.ceil(runner.limits.grace), 1),
            )
        )
        self.runner = runner
        runner.on_end = self._end

    def _end(self) -> None:
        self.should_exit = True

    def handle_exit(self, sig: int, frame: Any) -> None:
        """uvicorn calls this for SIGINT and SIGTERM."""
        if self.runner.stopping:
            self.runner.deadline = 0.0
            super().handle_exit(sig, frame)
        self.runner.stop()


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any that is free. Raises ValueError where it cannot."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot listen on {host}, port {port}: {why}") from None


class LiveServer:
    """A server in a thread of this process, on loopback, at `url`: for notebooks and tests.

    It listens once this is made. `stop`, or the end of a with block, ends it as SIGTERM would.
    """

    def __init__(self, engine: Engine, served: Served, limits: Limits = LIMITS) -> None:
        """The engine belongs to the server from now on."""
        self.runner = Runner(engine, limits)
        self._server = Server(create_app(self.runner, served), self.runner)
        listener = listening("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, daemon=True
        )
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(0.005)

    def stop(self) -> None:
        """Let what runs finish, refuse what comes, and wait until it is over."""
        self.runner.stop()
        self._thread.join()

    def __enter__(self) -> "LiveServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@dataclass(frozen=True)
class EngineSettings:
    """What `course serve` makes an engine with. blocks 0: as many as all slots need for whole contexts."""

    slots: int = 16
    blocks: int = 0
    block_size: int = 16
    budget: int = 256
    dtype: str = "float32"
    threads: int = 0

    def engine(self, model: GPT2) -> Engine:
        """Raises ValueError for what makes none."""
        if self.dtype not in DTYPES:
            raise ValueError(f"--dtype is one of {', '.join(DTYPES)}; came {self.dtype}")
        if min(self.slots, self.block_size) < 1 or min(self.blocks, self.threads) < 0:
            raise ValueError("--slots and --block-size are at least 1, --blocks and --threads 0")
        if self.threads:
            torch.set_num_threads(self.threads)
        whole = self.slots * paged_kv_blocks(model.config.n_positions, self.block_size)
        return Engine(
            model.to(getattr(torch, self.dtype)),
            slots=self.slots,
            n_blocks=self.blocks or whole,
            block_size=self.block_size,
            budget=self.budget,
        )


DTYPES = ("float32", "bfloat16", "float64")


def serve(
    source: Path | None,
    settings: EngineSettings,
    limits: Limits,
    where: tuple[str, int],
    name: str,
    say: Callable[[str], None],
) -> None:
    """`course serve`: until a signal comes. Raises ValueError, in one line, for what cannot be served.

    source: as of `course sample`. where: host and port. say: is told where it listens.
    """
    listener = listening(*where)
    model, tokenizer = load(source)
    engine = settings.engine(model)
    runner = Runner(engine, limits)
    host = f"[{where[0]}]" if ":" in where[0] else where[0]
    say(
        f"{name} at http://{host}:{listener.getsockname()[1]}: {engine.slots} at once, "
        f"{len(engine.tables.pool)} blocks of {engine.block_size} tokens "
        f"({engine.cache.nbytes / 1e6:.1f} MB). Ctrl+C ends it."
    )
    app = create_app(runner, Served(name, tokenizer, int(time.time())))
    Server(app, runner).run(sockets=[listener])
