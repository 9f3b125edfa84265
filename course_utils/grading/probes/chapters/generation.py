"""Probes of chapter 25: tokens that are drawn, a cache, a model that is spoken to, streams, windows.

The models are toys that a case names by sizes and a seed: their logits depend on every token that they
have read and on its position, and they note what they were given.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from course_utils.grading.driving import labels
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import if_changed, unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.pytrees.shown import shown
from course_utils.grading.pytrees.tree import is_plain_tensor

from .modules import clone, raised_name

# ------------------------------------------------------------------------------ drawing

_ROWS = 6000
_SIGMAS = 5.5
_SEEDS = "with torch.manual_seed(7) once more, then (8)"


def _by_torchs_seed(draw: Callable[[], Any]) -> list[str]:
    """Does torch's global generator decide what is drawn, and nothing else?"""
    drawn: list[Any] = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        drawn.append(clone(draw()))
    same, other = torch.equal(drawn[0], drawn[1]), torch.equal(drawn[0], drawn[2])
    return [
        "the same tokens" if same else "other tokens",
        "the same tokens" if other else "other tokens",
    ]


def _settings(given: dict[str, Any]) -> str:
    return "".join(f", {name}={shown(value)}" for name, value in given.items())


def _in_proportion(tokens: Any, probs: Tensor) -> Any:
    """Which token of which row came too often or too rarely; where some must not come at all, these."""
    B, V = probs.shape
    if not (isinstance(tokens, Tensor) and tokens.shape == (B * _ROWS,)):
        return "not one token for each row"
    if tokens.dtype.is_floating_point or not ((tokens >= 0) & (tokens < V)).all():
        return "some are no tokens"
    amiss, outright = [], []
    for row, came in enumerate(tokens.view(_ROWS, B).T):
        for token, count in enumerate(came.long().bincount(minlength=V).tolist()):
            chance = float(probs[row, token])
            off = count - _ROWS * chance
            if abs(off) > _SIGMAS * math.sqrt(_ROWS * chance * max(1 - chance, 0)) + 1e-3:
                how = "too often" if off > 0 else "too rarely" if count else "never"
                amiss.append(f"token {token} {how} in row {row}")
                outright += amiss[-1:] if not count or not chance else []
    return outright or amiss


def _as_drawn(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    if case.args[0] == "probabilities":
        return report
    seen: dict[str, Any] = {
        name: report[name] for name in ("shape", "dtype") if name in report
    } or {"result": report["result"]}
    seen["tokens out of proportion"] = _in_proportion(report["many"], case.args[1])
    if "again" in report:
        seen["the same generator gives the same tokens"] = report["again"]
        seen["torch's global generator was left alone"] = report["global"]
    seen |= {_SEEDS: report[_SEEDS]} if _SEEDS in report else {}
    return seen | {name: x for name, x in report.items() if name.startswith("argument")}


@probe(read=_as_drawn)
def sampled(subject: dict[str, Any], case: Case) -> dict[str, Any]:
    """Probabilities, or tokens drawn with given ones; the pair is two functions, in this order.

    The case: ("probabilities", logits) with the settings by name; or ("tokens", probabilities, seed),
    where the seed may be None for torch's global generator. Tokens are drawn for 6,000 copies of the
    rows, and counted.
    """
    of_logits, draw = subject.values()
    kind, given, *seed = case.args
    before = clone(given)
    if kind == "probabilities":
        result = of_logits(given, **case.kwargs)
        seen = {"probabilities": clone(result) if isinstance(result, Tensor) else result}
        return seen | {"argument `logits` afterwards": if_changed(before, clone(given))}

    def generator() -> Any:
        return None if seed[0] is None else torch.Generator().manual_seed(seed[0])

    tokens = draw(given, generator())
    plain = isinstance(tokens, Tensor) and is_plain_tensor(tokens)
    report: dict[str, Any] = (
        {"shape": tuple(tokens.shape), "dtype": tokens.dtype} if plain else {"result": tokens}
    )
    many = given.repeat(_ROWS, 1)
    state = torch.get_rng_state()
    report["many"] = draw(many, generator())
    if seed[0] is not None:
        report["global"] = unchanged(state, torch.get_rng_state())
        torch.manual_seed(1)
        report["again"] = unchanged(clone(report["many"]), clone(draw(many, generator())))
    elif isinstance(report["many"], Tensor):
        report[_SEEDS] = _by_torchs_seed(lambda: draw(many, None))
    return report | {"argument `probs` afterwards": if_changed(before, clone(given))}


def _called_sampled(name: str, case: Case) -> str:
    kind, given, *seed = case.args
    if kind == "probabilities":
        return f"next_token_probs({shown(given)}{_settings(case.kwargs)})"
    source = "" if seed[0] is None else f", torch.Generator().manual_seed({seed[0]})"
    return f"sample_token({shown(given)}{source})"


sampled.called = _called_sampled

# ------------------------------------------------------------------------------ a cache


def _cloned(given: Any) -> list[Any]:
    return [clone(x) if isinstance(x, Tensor) else x for x in given]


def _state(cache: Any) -> dict[str, Any]:
    return {"length": cache.length, "k": tuple(cache.k.shape), "v": tuple(cache.v.shape)}


def _inside(part: Any, whole: Any) -> bool:
    """Does a tensor live in another's memory?"""
    return (
        isinstance(part, Tensor)
        and isinstance(whole, Tensor)
        and part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    )


@probe
def cached(subject: Any, case: Case) -> dict[str, Any]:
    """A cache, and another one of its class that is filled before each of its steps.

    The case: what the constructor gets, by name, and steps: ("append", k, v) or ("truncate", length).
    """
    build, *steps = case.args
    cache = subject(**build)
    seen: dict[str, Any] = {"new": _state(cache) | {"dtype": cache.k.dtype}}
    for number, (verb, *given) in enumerate(steps, start=1):
        at = f"step {number} ({verb}): "
        disturbing = [torch.full_like(x, 9.0) for x in given if isinstance(x, Tensor)]
        if disturbing and _fits(disturbing[0], build):
            subject(**build).append(*disturbing)
        before = _cloned(given)
        try:
            result = getattr(cache, verb)(*given)
        except Exception as error:
            seen[f"{at}raises"] = raised_name(error)
        else:
            seen |= {f"{at}{name}": value for name, value in _appended(cache, result).items()}
        seen[f"{at}cache"] = _state(cache)
        filled = max(cache.length, 0) if isinstance(cache.length, int) else 0
        seen[f"{at}kept"] = [clone(cache.k[:, :, :filled]), clone(cache.v[:, :, :filled])]
        seen[f"{at}arguments afterwards"] = if_changed(before, _cloned(given))
    return seen


def _fits(x: Tensor, build: dict[str, Any]) -> bool:
    sizes = build["batch"], build["n_head"], build["head_dim"]
    return x.ndim == 4 and (*x.shape[:2], x.size(3)) == sizes and x.size(2) <= build["capacity"]


def _appended(cache: Any, result: Any) -> dict[str, Any]:
    if not (isinstance(result, tuple | list) and len(result) == 2):
        return {"returns": result}
    views = [_inside(part, whole) for part, whole in zip(result, (cache.k, cache.v), strict=True)]
    return {"keys": clone(result[0]), "values": clone(result[1]), "are views": views}


def _called_cached(name: str, case: Case) -> str:
    build, *steps = case.args
    if isinstance(build, int):  # a contract's
        return f"one append to a {name} that has {build} tokens and room for {steps[0]}"
    text = f"{name}({', '.join(f'{key}={shown(value)}' for key, value in build.items())})"
    return text + "".join(f".{verb}({', '.join(map(shown, given))})" for verb, *given in steps)


cached.called = _called_cached


def cache_filled(subject: Any, case: Case) -> Callable[[], Any]:
    """A cache with tokens in it, for one more: what it costs. The case: how many, and how many there may be."""
    tokens, capacity = case.args
    cache = subject(batch=2, n_head=3, capacity=capacity, head_dim=4)
    many, one = torch.ones(2, 3, tokens, 4), torch.ones(2, 3, 1, 4)
    cache.append(many, many)

    def step() -> None:
        cache.append(one, one)

    return step


# ------------------------------------------------------------------------------ a model

_D = 6


class _Reader:
    """What a toy remembers of the tokens it has read."""

    def __init__(self, batch: int, capacity: int, padding: Tensor | None) -> None:
        self.state = torch.zeros(batch, _D, dtype=torch.float64)
        self.length, self.capacity, self.padding = 0, capacity, padding


class _Toy:
    """A model whose logits depend on each token that it has read and on its position."""

    def __init__(self, V: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        sizes = (V, _D), (_D, _D), (_D, V)
        self.embedding, self.mix, self.head = (
            torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes
        )
        self.recorded = False

    def new_cache(self, batch: int, capacity: int, padding: Tensor | None = None) -> _Reader:
        return _Reader(batch, capacity, padding)

    def __call__(self, ids: Tensor, cache: _Reader) -> Tensor:
        B, T = ids.shape
        if len(cache.state) != B:
            raise ValueError(f"{B} rows; the cache has {len(cache.state)}")
        if cache.length + T > cache.capacity:
            raise ValueError(f"{cache.length + T} tokens; the cache has room for {cache.capacity}")
        self.recorded |= torch.is_grad_enabled()
        padding = torch.zeros(B, dtype=torch.int64) if cache.padding is None else cache.padding
        position = cache.length + torch.arange(T) - padding[:, None]
        weight = (position >= 0) * (1.5 + torch.cos(2.0 * position))
        x = self.embedding[ids] @ self.mix
        cache.state = cache.state + (x * weight[..., None]).sum(1)
        cache.length += T
        return 3 * torch.sin(cache.state) @ self.head


def _as_generated(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    seen = {
        name: x for name, x in report.items() if name not in ("result", "again", "same", "global")
    }
    if "seed" not in case.kwargs:
        return {"result": report["result"]} | seen
    ids, n = case.kwargs["ids"], case.kwargs["n"]
    result = report["result"]
    B, T = ids.shape
    if _SEEDS in seen:
        return seen
    if not (isinstance(result, Tensor) and result.shape == (B, T + n)):
        return {"shape": tuple(getattr(result, "shape", ()))} | seen
    V = case.kwargs["model"][0]
    even = torch.full((1, V), 1 / V)
    return seen | {
        "shape": tuple(result.shape),
        "the prompt comes first": torch.equal(result[:, :T], ids),
        **{f"at place {place}": _evenly(result[:, T + place], even) for place in range(min(n, 2))},
        "the same generator gives the same tokens": report["same"],
        "torch's global generator was left alone": report["global"],
    }


def _evenly(tokens: Tensor, even: Tensor) -> str:
    """At a temperature that makes all tokens about equally likely: are they?"""
    V, n = even.size(1), len(tokens)
    counts = tokens.long().clamp(0, V - 1).bincount(minlength=V)
    due = n / V
    far = (counts - due).abs().max() > _SIGMAS * math.sqrt(due * (1 - 1 / V))
    return (
        "some tokens come much more often than others" if far else "all tokens come about as often"
    )


def _with_sets(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The settings as the answer gets them: no set can be written in a case."""
    given = dict(kwargs)
    if "stop_set" in given:
        given["stop"] = set(given.pop("stop_set"))
    return given


@probe(read=_as_generated)
def generated(subject: Any, case: Case) -> dict[str, Any]:
    """Tokens from a toy.

    The case, by name: model, a pair of V and a seed; ids; n; the settings; seed, of a generator, where
    tokens are chance: then the temperature makes all of them about equally likely. stop_set: stop
    tokens that the answer gets as a set.
    """
    given = _with_sets(case.kwargs)
    (V, model_seed), ids, n = given.pop("model"), given.pop("ids"), given.pop("n")
    chance, seed, before = "seed" in given, given.pop("seed", None), clone(ids)

    def run(toy: _Toy) -> Any:
        if seed is None:
            return subject(toy, ids, n, **given)
        return subject(toy, ids, n, **given, generator=torch.Generator().manual_seed(seed))

    toy, state = _Toy(V, model_seed), torch.get_rng_state()
    result = run(toy)
    report: dict[str, Any] = {
        "result": clone(result) if isinstance(result, Tensor) else result,
        "gradients are recorded": toy.recorded,
        "argument `ids` afterwards": if_changed(before, clone(ids)),
    }
    if chance and seed is None and isinstance(result, Tensor):
        report[_SEEDS] = _by_torchs_seed(lambda: run(_Toy(V, model_seed)))
    elif seed is not None:
        report["global"] = unchanged(state, torch.get_rng_state())
        torch.manual_seed(7)
        report["same"] = unchanged(clone(result), clone(run(_Toy(V, model_seed))))
    return report


def _called_generated(name: str, case: Case) -> str:
    given = _with_sets(case.kwargs)
    if case.args:  # a contract's
        V, seed, ids, n, *stop = case.args
        told = f", stop={shown(stop)}" * bool(stop)
        return f"{name}(model, {shown(ids)}, {n}, temperature=0.0{told}), where model is toy number {seed} of {V} tokens"
    (V, seed), ids, n = given.pop("model"), given.pop("ids"), given.pop("n")
    if given.get("seed", 0) is None:
        del given["seed"]
    if "seed" in given:
        given["generator"] = f"torch.Generator().manual_seed({given.pop('seed')})"
    told = "".join(f", {key}={x if key == 'generator' else shown(x)}" for key, x in given.items())
    return f"{name}(model, {shown(ids)}, {n}{told}), where model is toy number {seed} of {V} tokens"


generated.called = _called_generated


def toy_built(subject: Any, case: Case) -> Callable[[], Any]:
    """A toy, spoken to: V, a seed, the prompt, how many tokens, and stop tokens."""
    V, seed, ids, n, *stop = case.args
    toy = _Toy(V, seed)
    return lambda: subject(toy, ids, n, temperature=0.0, stop=stop)


# ------------------------------------------------------------------------------ a stream of text


class _Pieces:
    """An iterable of pieces, no iterator, that counts how many are taken."""

    def __init__(self, pieces: Iterable[str]) -> None:
        self.pieces, self.taken = iter(pieces), 0

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces:
            self.taken += 1
            yield piece


def _as_stopped(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    by_then: dict[int, str] = {}
    for taken, text in report["given"]:
        by_then[taken] = by_then.get(taken, "") + text
    return {
        "text": "".join(text for _, text in report["given"]),
        "text given out, by the number of pieces taken": [[n, by_then[n]] for n in sorted(by_then)],
        "pieces taken in all": report["taken"],
        "pieces taken before any is asked for": report["before"],
        "an empty string is given out": any(not text for _, text in report["given"]),
        "argument `stops` afterwards": report["stops"],
    }


@probe(read=_as_stopped)
def stopped(subject: Any, case: Case) -> dict[str, Any]:
    """Text that is asked for bit by bit, and how many pieces had been taken when each bit came."""
    pieces, stops = case.args
    source, kept = _Pieces(pieces), list(stops)
    stream: Iterator[str] = subject(source, stops)
    before, given = source.taken, []
    for text in stream:
        given.append([source.taken, text])
    seen = {"given": given, "before": before, "taken": source.taken}
    return seen | {"stops": labels.NOTHING if list(stops) == kept else list(stops)}


stopped.called = lambda name, case: (
    f"{name}({shown(case.args[0])}, {shown(case.args[1])}), asked for all"
)

# ------------------------------------------------------------------------------ windows of a text


@probe
def windowed(subject: Any, case: Case) -> dict[str, Any]:
    """A perplexity by a toy that is called with windows, and the windows.

    The case: V and a seed, the tokens, context and stride, and the dtype of the logits.
    """
    (V, seed), ids, context, stride, dtype = case.args
    generator = torch.Generator().manual_seed(seed)
    embedding, head = (
        torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((V, _D), (_D, V))
    )
    windows: list[list[int]] = []
    recorded = []

    def logits_of(window: Tensor) -> Tensor:
        if window.ndim != 2 or not 1 <= window.size(1) <= context:
            raise ValueError(f"ids of shape {tuple(window.shape)}; (1, 1 to {context}) is expected")
        windows.append(window[0].tolist())
        recorded.append(torch.is_grad_enabled())
        steps = torch.cos(2.0 * torch.arange(window.size(1)))[:, None] + 1.5
        return (torch.sin((embedding[window] * steps).cumsum(1)) @ head).to(dtype)

    before = clone(ids)
    result = subject(logits_of, ids, context, stride)
    if isinstance(result, float):  # a tensor, so that float32 will do
        result = torch.tensor(result, dtype=torch.float32)
    return {
        "result": result,
        "windows": windows,
        "gradients are recorded": any(recorded),
        "argument `ids` afterwards": if_changed(before, clone(ids)),
    }


def _called_windowed(name: str, case: Case) -> str:
    (V, seed), ids, context, stride, _ = case.args
    return f"{name}(logits_of, {shown(ids)}, {context}, {stride}), where logits_of is toy {seed} of {V} tokens"


windowed.called = _called_windowed
