"""Probes of chapter 24: a small language model that is trained and judged, and documents that are compared.

Models cannot cross to another process, so a case names one by its dtype, and the probe builds it.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import unchanged
from course_utils.grading.driving.probe import probe
from course_utils.grading.probes.functions import call, what_a_call_did
from course_utils.grading.pytrees.tree import fresh

from .schedules_and_stability import CountedSGD

_VOCABULARY, _FEATURES = 7, 4


class _Model(nn.Module):
    """ids (B, T) to logits (B, T, 7): a table, dropout, and a head without bias.

    half: logits in bfloat16. noted: in which order forward and backward pass it, and how the forward ran.
    """

    def __init__(self, dtype: torch.dtype, uniform: bool, dropout: float, half: bool) -> None:
        super().__init__()
        self.half_logits = half
        generator = torch.Generator().manual_seed(24)
        self.table = nn.Embedding(_VOCABULARY, _FEATURES, dtype=dtype)
        self.inside = nn.Sequential(nn.Dropout(dropout), nn.Tanh())
        self.head = nn.Linear(_FEATURES, _VOCABULARY, dtype=dtype)
        for p in self.parameters():
            # with `half` the same numbers in each dtype, so that the tolerance is that of float32
            kind = torch.float32 if half else dtype
            drawn = 2 * torch.randn(p.shape, generator=generator, dtype=kind).to(dtype)
            p.data = torch.zeros_like(drawn) if uniform and p is not self.table.weight else drawn
        self.events: list[str] = []
        self.dtypes: set[str] = set()
        self.graphs: set[bool] = set()
        self.modes: set[bool] = set()
        self.head.weight.register_hook(self._backward)  # type: ignore[no-untyped-call]

    def forward(self, ids: Tensor) -> Tensor:
        self.events.append("forward")
        self.graphs.add(torch.is_grad_enabled())
        self.modes.add(self.training)
        logits: Tensor = self.head(self.inside(self.table(ids)))
        logits = logits.bfloat16() if self.half_logits else logits
        self.dtypes.add(str(logits.dtype))
        return logits

    def _backward(self, grad: Tensor) -> None:
        self.events.append("backward")
        self.dtypes.add(f"backward under autocast: {torch.is_autocast_enabled('cpu')}")


def _model(case: Case, dropout: float) -> _Model:
    given = case.kwargs
    return _Model(given["like"].dtype, bool(given.get("uniform")), dropout, bool(given.get("half")))


def _precision(case: Case) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=bool(case.kwargs.get("bfloat16")))


def _modes(model: nn.Module) -> dict[str, bool]:
    return {name or "itself": part.training for name, part in model.named_modules()}


def _single(x: Tensor) -> Tensor:
    """As float32, in which the loss is computed, whatever the model's dtype."""
    return x.float() if x.dtype is torch.float64 else x


def _scalar(seen: dict[str, Any], name: str, x: Any) -> None:
    """A result, and that it hangs on no graph."""
    seen[name] = _single(fresh(x.detach())) if isinstance(x, Tensor) else x
    seen[f"{name} is on a graph"] = bool(getattr(x, "requires_grad", False))


# ------------------------------------------------------------------------------ estimate_loss


@probe
def loss_estimated(subject: Any, case: Case) -> dict[str, Any]:
    """A model judged on the batches of each positional argument, one after the other.

    like: a tensor of the model's dtype. bfloat16: under autocast. half: logits in bfloat16, whatever the
    model's dtype. uniform: all logits are 0. eval: names of modules that are in eval mode before; all
    others are in train mode, with dropout.
    """
    model = _model(case, 0.5).train()
    for name in case.kwargs.get("eval", ()):
        model.get_submodule(name).training = False
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    seen: dict[str, Any] = {}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for number, batches in enumerate(case.args, start=1):
        result = subject(model, list(batches), _precision(case))
        _scalar(seen, f"call {number}: loss", result)
        seen[f"call {number}: modules in train mode afterwards"] = _modes(model)
    seen["the forward recorded a graph"] = True in model.graphs
    seen["the forward ran in train mode"] = True in model.modes
    seen["dtype of the logits"] = sorted(model.dtypes)
    seen["gradients are as before"] = unchanged(
        [torch.full_like(p, 7.0) for p in model.parameters()], [p.grad for p in model.parameters()]
    )
    seen["the global generator is as before"] = unchanged(before, torch.get_rng_state())
    seen["gradients are recorded afterwards"] = torch.is_grad_enabled()
    return seen


# ------------------------------------------------------------------------------ training_step


@probe
def trained_step(subject: Any, case: Case) -> dict[str, Any]:
    """Steps of a small language model with SGD, each positional argument one: a list of (ids, targets).

    The optimizer has two groups, as one that spares some parameters the weight decay.
    clip: the largest norm. like: a tensor of the model's dtype. bfloat16: under autocast. half: logits in
    bfloat16, whatever the model's dtype. uniform: all logits are 0.
    """
    model = _model(case, 0.0).train()
    first, *others = model.parameters()
    groups = [{"params": [first]}, {"params": others}]
    optimizer = CountedSGD(groups, lr=0.5, momentum=0.9)
    seen: dict[str, Any] = {}
    for number, batches in enumerate(case.args, start=1):
        model.events.clear()
        loss, norm = subject(model, optimizer, list(batches), _precision(case), case.kwargs["clip"])
        _scalar(seen, f"step {number}: loss", loss)
        _scalar(seen, f"step {number}: norm", norm)
        for name, p in model.named_parameters():
            seen[f"step {number}: `{name}` afterwards"] = _single(p.detach().clone())
        seen[f"step {number}: gradients are None afterwards"] = all(
            p.grad is None for p in model.parameters()
        )
        seen[f"step {number}: a backward before the next forward"] = _one_at_a_time(model.events)
        seen[f"step {number}: steps that the optimizer has taken"] = optimizer.steps
    seen["in train mode afterwards"] = model.training
    seen["dtype of the logits"] = sorted(model.dtypes)
    return seen


def _one_at_a_time(events: list[str]) -> bool:
    return not any(a == b == "forward" for a, b in pairwise(events))


def _called(name: str, case: Case) -> str:
    given, several = case.kwargs, len(case.args) > 1
    calls = [
        "[" + ", ".join(f"{tuple(y.shape)}" for _, y in batches) + "]" for batches in case.args
    ]
    text = f"{name}(model, …) on micro-batches of shapes {', then '.join(calls)}"
    text += f", clip={given['clip']:g}" if "clip" in given else ""
    text += f", {', '.join(given['eval'])} in eval mode before" if given.get("eval") else ""
    text += ", all logits 0" * bool(given.get("uniform"))
    text += ", under autocast to bfloat16" * bool(given.get("bfloat16"))
    text += ", logits in bfloat16" * bool(given.get("half"))
    text += ", in float64" * (given["like"].dtype is torch.float64)
    return text + ", one model" * several


loss_estimated.called = _called
trained_step.called = _called


# ------------------------------------------------------------------------------ near_duplicates


@probe
def deduplicated(subject: Any, case: Case) -> dict[str, Any]:
    """Documents compared by their signatures; the similarity of two is that of their lists of numbers.

    The case: signatures, documents (a list of whole numbers each), bands, threshold. Seen is also which
    pairs were compared, and whether one was compared twice.
    """
    signatures, documents = case.args
    compared: list[tuple[int, int]] = []

    def similarity(i: int, j: int) -> float:
        compared.append((i, j))
        a, b = set(documents[i]), set(documents[j])
        return len(a & b) / len(a | b) if a | b else 1.0

    found = subject(signatures, case.kwargs["bands"], similarity, case.kwargs["threshold"])
    return {
        "result": found,
        "pairs that were compared": sorted(set(compared)),
        "a pair was compared twice": len(compared) > len(set(compared)),
    }


def _called_near(name: str, case: Case) -> str:
    n, K = case.args[0].shape
    rows = f" {case.args[0].tolist()}" if n * K <= 24 else ""
    bands, threshold = case.kwargs["bands"], case.kwargs["threshold"]
    return f"{name} of {n} signatures of {K} numbers{rows}, bands={bands}, threshold={threshold:g}"


deduplicated.called = _called_near

# ------------------------------------------------------------------------------ laws


def _without_dust(report: dict[str, Any], case: Case, named_by: Any) -> dict[str, Any]:
    seen = what_a_call_did(report, case, named_by)
    if isinstance(seen.get("result"), tuple):
        seen["result"] = tuple(
            0.0 if isinstance(x, float) and abs(x) < 1e-10 else x for x in seen["result"]
        )
    return seen


@probe(read=_without_dust, by_name=True)
def law_fitted(subject: Any, case: Case) -> dict[str, Any]:
    """Call it; a number below 1e-10 in its result is 0, in whatever order it was computed."""
    return call.run(subject, case)


__all__ = ["deduplicated", "law_fitted", "loss_estimated", "trained_step"]
