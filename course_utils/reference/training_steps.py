"""Chapter 24, the parts of a run: one update, one evaluation, and how long it all takes."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer

Batches = Sequence[tuple[Int[Tensor, "_ _"], Int[Tensor, "_ _"]]]
"""Inputs and next tokens, some sequences at a time."""


def mean_loss(logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Mean cross-entropy of the targets in nats, computed in float32.

    What `gpt2.next_token_loss` computes; an answer is graded where no other chapter's code is.
    """
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def estimate_loss(
    model: nn.Module, batches: Batches, precision: torch.autocast
) -> Float[Tensor, ""]:
    """The mean loss over all targets of the batches, in nats, with the model in eval mode.

    model(ids) gives logits (B, T, V) of ids (B, T). batches: one or more pairs of ids and
    next tokens, both (B, T) in int64; B and T may differ from one to the next, and every
    target counts as much as any other (there is no -100). precision: the context in which
    the forward and the loss, a cross-entropy in float32, are computed. No graph is
    recorded. Afterwards each module of the model is in the mode, train or eval, that it
    was in; gradients, and the global generator's state, are as before.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with precision:
        losses = [mean_loss(model(x), y) * y.numel() for x, y in batches]
    for module, mode in modes.items():
        module.training = mode
    return torch.stack(losses).sum() / sum(y.numel() for _, y in batches)


def training_step(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Batches,
    precision: torch.autocast,
    clip: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """One update from all micro-batches: their mean loss, and the gradient's norm before clipping.

    model(ids) gives logits (B, T, V) of ids (B, T). batches: one or more pairs of ids and
    next tokens, both (B, T) in int64; B and T may differ from one to the next, and every
    target counts (there is no -100). The loss is the mean cross-entropy over the targets
    of all micro-batches, computed in float32, and the update is that of one batch of them
    all, whose gradients are clipped once. precision: the context in which forward and loss
    are computed, and backward is not. clip: the largest norm of the gradient of all
    parameters together; 0: no limit. The gradients are None before and after. The two
    results are tensors without axes and without a graph.

    Costs, which are checked:
    - the graph of one micro-batch at a time: each is gone before the next forward
    """
    tokens = sum(y.numel() for _, y in batches)
    total = torch.zeros((), device=batches[0][0].device)
    for x, y in batches:
        with precision:
            loss = mean_loss(model(x), y) * (y.numel() / tokens)
        loss.backward()
        total += loss.detach()
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm


def tokens_per_second_to_days(
    tokens: float,
    tokens_per_second: float,
    *,
    devices: int = 1,
    scaling: float = 1.0,
    lost: float = 0.0,
) -> float:
    """Days from the first step to the last.

    tokens: to train on, each as often as it is seen. tokens_per_second: of one device
    alone. devices: how many work together. scaling: the share of its own speed that each
    keeps when they do, above 0 and at most 1. lost: the share of the time from first to
    last step in which no step is made (evaluation, checkpoints, failures), from 0 to
    below 1. Raises ValueError outside these bounds, for fewer than 1 device, for a speed
    that is not positive and for a negative number of tokens.
    """
    if not (0 < scaling <= 1 and 0 <= lost < 1):
        raise ValueError(f"shares of {scaling} and {lost}")
    if not (tokens >= 0 and tokens_per_second > 0 and devices >= 1):
        raise ValueError(f"{tokens} tokens at {tokens_per_second} a second on {devices} devices")
    return tokens / (tokens_per_second * devices * scaling * (1 - lost)) / (24 * 60 * 60)
