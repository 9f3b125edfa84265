"""Exercises of chapter 24, pretraining: a step and its judge, days, duplicates, laws of scale."""
# mypy: ignore-errors

import math

import torch
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.grading.probes import prepared
from course_utils.reference import deduplication, scaling_laws, training_steps

F32, F64 = torch.float32, torch.float64
PRIME = 2**31 - 1
LIKE = {"like": torch.empty(0)}
UNIFORM = {"like": torch.empty(0), "uniform": True}  # logits of 0: the loss is log 7


def pair(B, T, start=0):
    """ids and next tokens of B rows of T positions, of 7 tokens."""
    ids = (3 * torch.arange(start, start + B * (T + 1)) % 7).view(B, T + 1)
    return ids[:, :-1], ids[:, 1:]


def drawn_pairs(draw, most):
    """Micro-batches of uneven sizes and lengths."""
    made = []
    for _ in range(draw(st.integers(1, most))):
        ids = draw(draws.indices(draw(st.tuples(st.integers(1, 4), st.integers(2, 6))), 7))
        made.append((ids[:, :-1], ids[:, 1:]))
    return made


UNEVEN = [pair(1, 2), pair(3, 4, start=2)]
TURNED = [(x.T.contiguous().T, y.T.contiguous().T) for x, y in UNEVEN]

# ------------------------------------------------------------------------------ estimate_loss

estimate_loss = Exercise(
    training_steps.estimate_loss,
    key="pretraining.estimate_loss",
    title="A loss to judge by",
    difficulty=1,
    minutes=15,
    points=2,
    probe=probes.loss_estimated,
    hints=(
        "The mean over all targets is the sum of what the batches cost, divided by the number of their targets.",
        "`F.cross_entropy` gives a batch's mean. How many targets is it a mean of?",
        "`{module: module.training for module in model.modules()}` remembers the modes before `model.eval()`.",
        ("edge cases", "A part that was frozen in eval mode must not be in train mode afterwards."),
    ),
)


@estimate_loss.by_hand
def _():
    for batches in ([pair(2, 3)], UNEVEN):
        yield (
            call(batches, **UNIFORM),
            {"call 1: loss": torch.tensor(math.log(7)), "the forward ran in train mode": False},
        )


@estimate_loss.cases(14)
def _(draw):
    yield call(drawn_pairs(draw, 4), like=torch.empty(0, dtype=draw(st.sampled_from([F32, F64]))))


@estimate_loss.edge
def _():
    yield call([pair(1, 1), pair(3, 5)], **LIKE), "one target against fifteen"
    yield call([pair(2, 3), pair(2, 5)], **LIKE), "as many rows, of other lengths"
    yield call([pair(1, 6), pair(3, 2)], **LIKE), "as many targets, in other rows"
    yield call([pair(1, 1)], **LIKE), "a single target"
    yield call(UNEVEN, eval=["inside"], **LIKE), "a part of the model is in eval mode before"
    yield call(UNEVEN, eval=["", "inside", "inside.0", "table"], **LIKE), "eval mode before"
    yield call(UNEVEN, [pair(2, 2)], **LIKE), "two calls"
    yield call(UNEVEN, bfloat16=True, **LIKE), "under autocast"
    yield call(UNEVEN, half=True, **LIKE), "logits in bfloat16, without autocast"
    yield call(TURNED, **LIKE), "ids and targets that are not contiguous"


IN_ITS_DTYPE = (
    "The loss is computed in the dtype of the logits. Autocast turns them into float32 by itself; without it a model may "
    "give logits in bfloat16: take their `.float()`."
)
OF_LOGITS = "mean_loss(model(x), y)", "F.cross_entropy(model(x).flatten(0, 1), y.flatten())"
RESTORED = "    for module, mode in modes.items():\n        module.training = mode\n"
LOSSES = "mean_loss(model(x), y) * y.numel() for"
MEAN = "torch.stack(losses).sum() / sum(y.numel() for _, y in batches)"
estimate_loss.slips(
    {
        replace(
            "    model.eval()\n", ""
        ): "The model is judged in train mode: dropout makes its loss larger, and another one in every call. "
        "Call model.eval() first.",
        replace(*OF_LOGITS): IN_ITS_DTYPE,
        replace(RESTORED, ""): "The model stays in eval mode, and trains on without dropout.",
        replace(
            RESTORED, "    model.train()\n"
        ): "You put everything into train mode. What was in eval mode before must be so afterwards.",
        replace(
            RESTORED, "    model.train(modes[model])\n"
        ): "You remember the mode of the model alone. A part of it may be in another one: remember each module's.",
        replace(
            LOSSES, "mean_loss(model(x), y) for", MEAN, "torch.stack(losses).mean()"
        ): "You average the batches' means, so a target of a small batch weighs more. Weigh each mean by its targets.",
        replace(
            LOSSES,
            "mean_loss(model(x), y) * len(y) for",
            MEAN,
            "torch.stack(losses).sum() / sum(len(y) for _, y in batches)",
        ): "You weigh by rows. Batches may have other lengths: weigh by targets, `y.numel()`.",
        replace("@torch.no_grad()\n", ""): "A graph is recorded for nothing, and takes memory.",
        replace(
            "    with precision:\n", "    if True:\n"
        ): "Your forward does not run within `precision`.",
        replace(
            MEAN, f"({MEAN}).item()"
        ): "You return a float. A tensor without axes is asked for.",
        replace(
            MEAN, "torch.stack(losses).sum()"
        ): "You return the sum. Divide by the number of all targets.",
        replace(
            MEAN, "torch.stack(losses).sum() / len(batches)"
        ): "You divide by the number of batches. Divide by the number of all targets.",
        replace(
            "    model.eval()\n", "    model.eval()\n    torch.manual_seed(0)\n"
        ): "You seed torch's global generator, so that training draws the same numbers after each evaluation.",
        replace(
            "    model.eval()\n", "    model.eval()\n    model.zero_grad()\n"
        ): "You drop the gradients. Somebody may be accumulating: leave them alone.",
        replace(
            "mean_loss(model(x), y)", "mean_loss(model(x)[:, :-1], y[:, 1:])"
        ): "You shift once more. The targets are the next tokens already.",
        replace(
            "for x, y in batches]", "for x, y in batches[:1]]"
        ): "You judge the first batch only.",
        replace(
            "@torch.no_grad()\n",
            "",
            "    model.eval()\n",
            "    model.eval()\n    torch.set_grad_enabled(False)\n",
        ): "Afterwards torch records no gradients any more. Use `with torch.no_grad():` or the decorator.",
    }
)


@estimate_loss.mistake(
    "You compute the loss of logits in bfloat16, outside the context. Take `.float()` of the logits first."
)
@torch.no_grad()
def _(model, batches, precision):
    modes = {part: part.training for part in model.modules()}
    model.eval()
    total = 0.0
    for x, y in batches:
        with precision:
            logits = model(x)
        total = total + torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten()) * (
            y.numel() / sum(y.numel() for _, y in batches)
        )
    for part, mode in modes.items():
        part.training = mode
    return total


@estimate_loss.alternative("a running sum in Python, and modes by name")
def _(model, batches, precision):
    before = [(name, part.training) for name, part in model.named_modules()]
    model.train(False)
    total, count = 0.0, 0
    with torch.inference_mode(), precision:
        for x, y in batches:
            logits = model(x).float()
            total += torch.nn.functional.cross_entropy(logits.mT, y, reduction="sum").item()
            count += y.numel()
    parts = dict(model.named_modules())
    for name, mode in before:
        parts[name].training = mode
    return torch.tensor(total / count)


# ------------------------------------------------------------------------------ training_step

training_step = Exercise(
    training_steps.training_step,
    key="pretraining.training_step",
    title="One update",
    difficulty=2,
    minutes=25,
    points=4,
    probe=probes.trained_step,
    hints=(
        "Gradients add up in `.grad`. By what must each micro-batch's mean be multiplied, so that the sum is the mean "
        "of all?",
        "`y.numel() / tokens`, where `tokens` counts the targets of all micro-batches. Call `backward()` on each.",
        "`torch.nn.utils.clip_grad_norm_(parameters, max_norm)` returns the norm before clipping. Call it once.",
        (
            "edge cases",
            "clip = 0 means no limit, and torch would make every gradient 0: give it math.inf.",
        ),
    ),
)


@training_step.by_hand
def _():
    for batches in ([pair(2, 3)], UNEVEN):
        yield (
            call(batches, clip=0.0, **UNIFORM),
            {
                "step 1: loss": torch.tensor(math.log(7)),
                "step 1: steps that the optimizer has taken": 1,
            },
        )


@training_step.cases(14)
def _(draw):
    steps = [drawn_pairs(draw, 4) for _ in range(draw(st.integers(1, 2)))]
    like = torch.empty(0, dtype=draw(st.sampled_from([F32, F64])))
    yield call(*steps, clip=draw(st.sampled_from([0.0, 0.1, 0.5, 100.0])), like=like)


@training_step.edge
def _():
    yield call([pair(1, 1), pair(3, 5)], clip=0.3, **LIKE), "one target against fifteen"
    yield call([pair(2, 3), pair(2, 5)], clip=0.0, **LIKE), "as many rows, of other lengths"
    yield call([pair(1, 6), pair(3, 2)], clip=0.0, **LIKE), "as many targets, in other rows"
    yield call([pair(2, 3)], clip=0.2, **LIKE), "a single micro-batch"
    yield call([pair(2, 3)] * 4, clip=0.2, **LIKE), "four equal ones: the step of one"
    yield call(UNEVEN, UNEVEN, UNEVEN, clip=0.2, **LIKE), "three steps, with momentum"
    yield call([pair(2, 3)], clip=1e4, **LIKE), "a norm below the limit stays as it is"
    yield call(UNEVEN, clip=0.0, **LIKE), "no limit"
    yield call(UNEVEN, clip=0.2, bfloat16=True, **LIKE), "under autocast"
    yield call([pair(2, 4)], clip=0.0, half=True, **LIKE), "logits in bfloat16, without autocast"
    yield call(TURNED, clip=0.2, **LIKE), "ids and targets that are not contiguous"


WEIGHT = " * (y.numel() / tokens)"
CLIPPED = "    norm = nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf)\n"
NORM = "    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])\n"
OF_ABSOLUTES = (
    "You limit the sum of the absolute values. The norm is the square root of the sum of squares."
)
STEP = "    optimizer.step()\n"
ADDED = "        total += loss.detach()\n"
training_step.slips(
    {
        replace(*OF_LOGITS): IN_ITS_DTYPE,
        replace(
            WEIGHT, ""
        ): "You add up the means: k micro-batches give about k times the loss and the gradient.",
        replace(
            WEIGHT, " / len(batches)"
        ): "You divide by the number of micro-batches, so a target of a small one weighs more. Weigh by targets.",
        replace(
            WEIGHT, " * (len(y) / sum(len(y) for _, y in batches))"
        ): "You weigh by rows. They may have other lengths: weigh by targets, `y.numel()`.",
        replace(
            CLIPPED, "", ADDED, ADDED + "        " + CLIPPED.lstrip()
        ): "You clip after each micro-batch, so the gradient that is clipped is a part of the whole. Clip once, at "
        "the end.",
        replace(
            STEP, "", ADDED, ADDED + "        optimizer.step()\n"
        ): "You take a step after every micro-batch. It is one step, at the end.",
        replace(
            "    optimizer.zero_grad()\n", ""
        ): "The gradients stay, and the next step adds its own to them.",
        replace(
            "    optimizer.zero_grad()\n",
            "    optimizer.zero_grad(set_to_none=False)\n",
        ): "You set the gradients to zero. They should be None, which is `zero_grad()`'s default and takes no memory.",
        replace(
            "        with precision:\n",
            "        optimizer.zero_grad()\n        with precision:\n",
        ): "You drop the gradients before every micro-batch, so only the last one counts.",
        replace(
            "return total, norm", "return total, torch.clamp(norm, max=clip or math.inf)"
        ): "You return the norm after clipping. That is the limit in many steps: the norm before is what one watches.",
        replace(
            "clip or math.inf", "clip"
        ): "clip = 0 makes every gradient 0. It means that there is no limit.",
        replace(
            "return total, norm", "return total, norm * bool(clip)"
        ): "For clip = 0 you return a norm of 0. There is no limit then, but the norm is asked for all the same.",
        replace(
            CLIPPED + STEP, STEP + CLIPPED
        ): "You clip after the step, which has used the gradients as they were.",
        replace(
            CLIPPED,
            NORM + "    nn.utils.clip_grad_value_(model.parameters(), clip or math.inf)\n",
        ): "You clip each element. All gradients are scaled by one factor, so that their common norm is the limit.",
        replace(
            CLIPPED,
            NORM
            + "    for p in model.parameters():\n        nn.utils.clip_grad_norm_(p, clip or math.inf)\n",
        ): "You clip each parameter for itself, which turns the gradient. The norm is that of all parameters together.",
        replace(
            CLIPPED,
            NORM + "    for group in optimizer.param_groups:\n"
            "        nn.utils.clip_grad_norm_(group['params'], clip or math.inf)\n",
        ): "You clip each group of the optimizer for itself. The norm is that of all parameters together.",
        replace(
            CLIPPED,
            NORM
            + "    for p in model.parameters():\n"
            + "        p.grad *= clip / (norm + 1e-6) if clip else 1\n",
        ): "You scale every gradient to the limit. One whose norm is below it stays as it is.",
        replace(
            CLIPPED,
            NORM
            + "    nn.utils.clip_grad_norm_(model.parameters(), clip or math.inf, norm_type=1)\n",
        ): OF_ABSOLUTES,
        replace("clip or math.inf)", "clip or math.inf, norm_type=1)"): OF_ABSOLUTES,
        replace(
            "clip or math.inf", "clip or 1.0"
        ): "For clip = 0 you clip to a norm of 1. It means that there is no limit.",
        replace(
            CLIPPED, CLIPPED.replace("norm = ", "") + "    norm = torch.zeros(())\n"
        ): "You do not return the norm.",
        replace(
            "        with precision:\n", "        if True:\n"
        ): "You do not use `precision`: run forward and loss within it.",
        replace(
            "        loss.backward()\n",
            "        with precision:\n            loss.backward()\n",
        ): "You call backward within `precision`. It runs in the dtypes of the forward by itself: leave the context "
        "first.",
        replace(
            "total += loss.detach()", "total = total + loss"
        ): "The loss that you return hangs on the graphs of all micro-batches, which so stay in memory. Detach it.",
        replace(
            "total += loss.detach()", "total = loss.detach()"
        ): "You return the last micro-batch's share of the loss. Add them up.",
        replace(
            ADDED, ADDED.replace("()", "() * tokens / (y.numel() * len(batches))")
        ): "The loss that you return is the mean of the micro-batches' means. Weigh it by targets, as the gradient.",
        replace(
            "return total, norm", "return total.item(), norm.item()"
        ): "You return floats. Tensors without axes "
        "are asked for: reading a number from a GPU waits for it.",
        replace(STEP, ""): "The optimizer takes no step.",
    }
)
training_step.mistake(
    "You add up the losses and call backward once, so the graphs of all micro-batches are in memory together. Call "
    "backward on each.",
    replace(
        "        loss.backward()\n        total += loss.detach()\n",
        "        total = total + loss\n",
        CLIPPED,
        "    total.backward()\n    total = total.detach()\n" + CLIPPED,
    ),
)


@training_step.alternative("sums, divided at the end, and a norm by hand")
def _(model, optimizer, batches, precision, clip):
    params = [p for group in optimizer.param_groups for p in group["params"]]
    total, count = 0.0, 0
    for x, y in batches:
        with precision:
            logits = model(x).float()
            loss = torch.nn.functional.cross_entropy(logits.mT, y, reduction="sum")
        loss.backward()
        total, count = total + loss.detach(), count + y.numel()
    for p in params:
        p.grad /= count
    norm = torch.stack([p.grad.norm() for p in params]).norm()
    if clip and norm > clip:
        for p in params:
            p.grad *= clip / norm
    optimizer.step()
    for p in params:
        p.grad = None
    return total / count, norm


# ------------------------------------------------------------------------------ tokens_per_second_to_days

tokens_per_second_to_days = Exercise(
    training_steps.tokens_per_second_to_days,
    key="pretraining.tokens_per_second_to_days",
    title="How many days",
    difficulty=1,
    minutes=10,
    points=1,
    hints=(
        "How many tokens a second do all devices make together, while they make steps?",
        "Of each second only 1 - lost is spent on steps.",
        ("edge cases", "No tokens take no time; every bound of the docstring has its ValueError."),
    ),
)
DAY = 24 * 60 * 60


@tokens_per_second_to_days.by_hand
def _():
    yield call(1.0 * DAY, 1.0), 1.0
    yield call(10.0 * DAY, 5.0, devices=2), 1.0
    yield call(10.0 * DAY, 5.0, devices=4, scaling=0.5), 1.0
    yield call(1.0 * DAY, 2.0, lost=0.5), 1.0
    yield call(3.0 * DAY, 1.0, lost=0.25), 4.0


@tokens_per_second_to_days.cases
def _(draw):
    yield call(
        draw(st.integers(1, 20)) * 1e9,
        draw(st.sampled_from([900.0, 4e3, 1.5e5])),
        devices=draw(st.integers(1, 64)),
        scaling=draw(st.sampled_from([1.0, 0.9, 0.4])),
        lost=draw(st.sampled_from([0.0, 0.05, 0.3])),
    )


@tokens_per_second_to_days.edge
def _():
    yield call(0.0, 10.0), "no tokens"
    yield call(1e12, 3e3, devices=1000, scaling=0.8, lost=0.1), "all at once"
    yield call(1e9, 0.0), "no speed"
    yield call(1e9, -5.0), "a negative speed"
    yield call(-1.0, 5.0), "a negative number of tokens"
    yield call(1e9, 5.0, devices=0), "no device"
    yield call(1e9, 5.0, devices=-2), "a negative number of devices"
    yield call(1e9, 5.0, scaling=0.0), "nothing of its speed is kept"
    yield call(1e9, 5.0, scaling=1.1), "more than its speed"
    yield call(1e9, 5.0, scaling=-0.5), "less than nothing is kept"
    yield call(1e9, 5.0, lost=1.0), "no step is ever made"
    yield call(1e9, 5.0, lost=1.5), "more than all time is lost"
    yield call(1e9, 5.0, lost=-0.1), "less than nothing is lost"


tokens_per_second_to_days.slips(
    {
        replace(" / (24 * 60 * 60)", " / 3600"): "You return hours. A day has 86,400 seconds.",
        replace(" / (24 * 60 * 60)", ""): "You return seconds. A day has 86,400 of them.",
        replace(
            " * devices", ""
        ): "You count one device. All of them together are `devices` times as fast.",
        replace(
            "* devices * scaling *", "* (1 + (devices - 1) * scaling) *"
        ): "You let the first device keep its full speed. Together, each of them keeps only that share.",
        replace(
            "* scaling *", "*"
        ): "You leave `scaling` out: together, each device keeps only that share of its speed.",
        replace(
            "* scaling *", "/ scaling *"
        ): "A smaller share makes it slower. You divide the speed by `scaling`: multiply.",
        replace(" * (1 - lost)", ""): "You leave out the time that is lost.",
        replace(
            "* (1 - lost)", "/ (1 + lost)"
        ): "You add the lost share to the time of the steps. It is a share of the "
        "whole time: of each second 1 - lost is left.",
        replace(
            "* (1 - lost)", "/ (1 - lost)"
        ): "Lost time makes it longer. You make the speed larger by it.",
        replace("0 < scaling <= 1 and 0 <= lost < 1", "True"): "You do not check the shares.",
        replace(
            "0 <= lost < 1", "0 <= lost <= 1"
        ): "If all time is lost there is no answer: raise ValueError.",
        replace(
            "0 < scaling <= 1", "0 <= scaling <= 1"
        ): "You take a scaling of 0, and divide by it. Raise ValueError.",
        replace(
            "0 < scaling <= 1", "0 < scaling < 1"
        ): "You refuse scaling = 1: devices that lose nothing.",
        replace("0 < scaling <= 1", "0 < scaling"): "You take a scaling above 1. Raise ValueError.",
        replace("0 <= lost < 1", "0 < lost < 1"): "You refuse lost = 0: no time is lost.",
        replace("tokens >= 0 and", "tokens > 0 and"): "You refuse 0 tokens. They take 0 days.",
        replace("tokens >= 0 and", ""): "You take a negative number of tokens. Raise ValueError.",
        replace(
            "tokens_per_second > 0 and", ""
        ): "You do not check the speed. It must be positive.",
        replace(
            " and devices >= 1", " and devices != 0"
        ): "You take a negative number of devices. Raise ValueError.",
        replace(
            "0 < scaling <= 1", "scaling != 0 and scaling <= 1"
        ): "You take a negative scaling. Raise ValueError.",
        replace(
            "0 <= lost < 1", "0 <= lost != 1"
        ): "You take a lost share above 1, and answer with negative days. Raise ValueError.",
        replace(" and devices >= 1", ""): "You do not check the number of devices.",
    }
)


@tokens_per_second_to_days.alternative("seconds first")
def _(tokens, tokens_per_second, *, devices=1, scaling=1.0, lost=0.0):
    if tokens < 0 or tokens_per_second <= 0 or devices < 1:
        raise ValueError("sizes")
    if scaling <= 0 or scaling > 1 or lost < 0 or lost >= 1:
        raise ValueError("shares")
    seconds_of_steps = tokens / devices / tokens_per_second / scaling
    return seconds_of_steps / (1 - lost) / 60 / 60 / 24


# ------------------------------------------------------------------------------ minhash

minhash = Exercise(
    deduplication.minhash,
    key="pretraining.minhash",
    title="A signature",
    difficulty=2,
    minutes=20,
    points=3,
    hints=(
        "Compute all hashes at once: a (K, S) tensor by broadcasting. Which of the two gets a new axis?",
        "Take the remainder before the smallest: `((a[:, None] * shingles + b[:, None]) % p).amin(1)`.",
        (
            "edge cases",
            "`amin` over nothing raises. What could stand in each row besides the hashes?",
        ),
    ),
)


@minhash.by_hand
def _():
    s = torch.tensor([1, 5, 9])
    yield call(s, torch.tensor([1, 2]), torch.tensor([0, 3])), torch.tensor([1, 5])
    a = torch.tensor([PRIME - 1, 1])  # s goes to -s, which is PRIME - s
    yield call(s, a, torch.tensor([0, PRIME - 5])), torch.tensor([PRIME - 9, 0])


def numbers(draw, n):
    return draw(draws.indices((n,), PRIME))


@minhash.cases
def _(draw):
    S, K = draw(draws.distinct_sizes(2, low=1))
    yield call(numbers(draw, S), numbers(draw, K), numbers(draw, K))


def spread(n, seed):
    """n fixed numbers below PRIME."""
    return torch.randint(PRIME, (n,), generator=torch.Generator().manual_seed(seed))


@minhash.edge
def _():
    yield call(spread(0, 1), spread(4, 2), spread(4, 3)), "no shingles"
    yield call(spread(1, 1), spread(5, 2), spread(5, 3)), "one shingle"
    yield call(spread(5, 1), spread(1, 2), spread(1, 3)), "one hash function"
    yield call(spread(5, 1), spread(0, 2), spread(0, 3)), "no hash function"
    yield call(spread(4, 1), spread(4, 2), spread(4, 3)), "as many shingles as hash functions"
    large = torch.tensor([PRIME - 1, PRIME - 2])
    yield call(large, large.clone(), large.clone()), "products near 2⁶²"
    yield (
        call(spread(12, 1)[::3], spread(10, 2)[::2], spread(15, 3)[::3]),
        "every second or third number of a longer one",
    )
    yield call(spread(300, 1), spread(64, 2), spread(64, 3)), "300 shingles, 64 functions"
    meta = (torch.zeros(n, dtype=torch.int64, device="meta") for n in (3, 2, 2))
    yield call(*meta), "on another device than the default one"


minhash.contract(
    contracts.constant_kernels(
        [call(spread(S, 1), spread(K, 2), spread(K, 3)) for S, K in ((3, 2), (40, 2), (3, 40))],
        says="no Python loop over the shingles or the hash functions",
    )
)
HASHES = "(a[:, None] * shingles + b[:, None]) % PRIME"
minhash.slips(
    {
        replace(
            HASHES, "a[:, None] * shingles + b[:, None]"
        ): "You leave the modulo out: the smallest is then nearly "
        "always that of the smallest shingle.",
        replace(
            HASHES, "(a[:, None] * shingles) % PRIME + b[:, None]"
        ): "You add b after the modulo, so hashes reach beyond 2³¹ − 2.",
        replace(
            HASHES,
            "(a[:, None] * shingles) % PRIME + b[:, None]",
            "torch.cat((hashes, hashes.new_full((len(a), 1), PRIME)), dim=1).amin(dim=1)",
            "hashes.amin(dim=1) if len(shingles) else hashes.new_full((len(a),), PRIME)",
        ): "You add b after the modulo, so hashes reach beyond 2³¹ − 2.",
        replace(HASHES, "(a[:, None] * shingles) % PRIME"): "You leave b out.",
        replace(
            HASHES, "(a[:, None] * ((shingles + b[:, None]) % PRIME)) % PRIME"
        ): "You add b before the product. It is a · s + b, not a · (s + b).",
        replace(
            HASHES, "(a[:1, None] * shingles + b[:, None]) % PRIME"
        ): "All your functions have the first one's factor. Function k has a[k].",
        replace(
            HASHES,
            f"torch.where({HASHES} == 0, PRIME, {HASHES})",
        ): "You leave out a hash of 0. It is one like the others.",
        replace(
            HASHES, "(a[:, None] * shingles + b[:, None]) % (PRIME + 1)"
        ): "You take the remainder by 2³¹. It is 2³¹ − 1, a prime.",
        replace(
            "amin(dim=1)", "amax(dim=1)"
        ): "You take the largest hash. A document without shingles shows then in every comparison.",
        replace(
            "torch.cat((hashes, hashes.new_full((len(a), 1), PRIME)), dim=1).amin(dim=1)",
            "hashes.amin(dim=1)",
        ): "Your code raises for a document without shingles. It has 2³¹ − 1 in each place.",
        replace(
            "hashes.new_full((len(a), 1), PRIME)", "hashes.new_full((len(a), 1), 0)"
        ): "You put a 0 among the "
        "hashes, which is smaller than all others. 2³¹ − 1 is larger than all of them.",
        replace(
            "torch.cat((hashes, hashes.new_full((len(a), 1), PRIME)), dim=1).amin(dim=1)",
            "hashes.amin(dim=1) if len(shingles) else hashes.new_zeros(len(a))",
        ): "A document without shingles has 2³¹ − 1 in each place, not 0, which is a hash.",
        replace(
            "torch.cat((hashes, hashes.new_full((len(a), 1), PRIME)), dim=1).amin(dim=1)",
            "hashes.amin(dim=0) if len(a) else hashes.new_full((0,), PRIME)",
        ): "You take the smallest over the functions, one for each shingle. It is one for each function.",
        replace(
            "a[:, None] * shingles + b[:, None]", "a[:, None].float() * shingles + b[:, None]"
        ): "You compute in "
        "floating point, which cannot hold products near 2⁶² exactly. Stay in int64.",
        replace(
            HASHES, "((a[:, None].double() * shingles + b[:, None]) % PRIME).long()"
        ): "You compute in float64, which holds integers up to 2⁵³ exactly, and products come near 2⁶². Stay in int64.",
        replace(
            "a[:, None] * shingles", "a[:, None].int() * shingles.int()"
        ): "You compute in int32, where the product overflows. Stay in int64.",
        replace(
            ".amin(dim=1)", ".argmin(dim=1)"
        ): "You return where the smallest hash stands. Return the hash.",
    }
)
ONE_BY_ONE = "The values are right, but Python goes through the hash functions one by one."


@minhash.mistake(ONE_BY_ONE, cost=True)
def _(shingles, a, b):
    if not len(a) or not len(shingles):
        return shingles.new_full((len(a),), PRIME)
    return torch.stack([((a[k] * shingles + b[k]) % PRIME).amin() for k in range(len(a))])


@minhash.mistake(
    "You go through the hash functions one by one, and cannot stack the results of none. Compute all at once."
)
def _(shingles, a, b):
    if not len(shingles):
        return shingles.new_full((len(a),), PRIME)
    return torch.stack([((a[k] * shingles + b[k]) % PRIME).amin() for k in range(len(a))])


@minhash.alternative("sorted columns")
def _(shingles, a, b):
    if shingles.numel() == 0:
        return torch.full_like(a, PRIME)
    hashes = torch.remainder(torch.outer(shingles, a) + b, PRIME)
    return hashes.sort(dim=0).values[0]


# ------------------------------------------------------------------------------ near_duplicates

near_duplicates = Exercise(
    deduplication.near_duplicates,
    key="pretraining.near_duplicates",
    title="Near duplicates",
    difficulty=3,
    minutes=40,
    points=6,
    probe=probes.deduplicated,
    hints=(
        "Two rows agree in a band if the band's numbers, as one tuple, are the same key of a dict.",
        "For each band a dict from the tuple to the documents that have it. Candidates are the pairs within one list.",
        "A pair may agree in several bands: collect candidates in a set, and compare when it is complete.",
        (
            "edge cases",
            "`K % bands` must be 0. The similarity decides at the threshold itself, too: `>=`.",
        ),
        "`itertools.combinations(bucket, 2)` gives pairs in order, if the bucket is.",
    ),
)


def table(*rows):
    return torch.tensor(rows)


@near_duplicates.by_hand
def _():
    signatures = table((1, 2, 3, 4), (1, 2, 9, 9), (5, 6, 3, 4), (7, 7, 7, 7))
    documents = [[1, 2, 3], [1, 2], [1, 2, 3, 4], [9]]
    yield call(signatures, documents, bands=2, threshold=0.5), [(0, 1, 2 / 3), (0, 2, 0.75)]
    yield call(signatures, documents, bands=2, threshold=0.75), [(0, 2, 0.75)]


@near_duplicates.cases
def _(draw):
    n, rows, bands = draw(st.integers(1, 7)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    signatures = draw(draws.indices((n, rows * bands), 3))
    sets = st.sets(st.integers(0, 5), max_size=5).map(sorted)
    documents = [draw(sets) for _ in range(n)]
    threshold = draw(st.sampled_from([0.0, 0.3, 0.5, 1.0]))
    yield call(signatures, documents, bands=bands, threshold=threshold)


SAME = [[1, 2, 3]] * 4


@near_duplicates.edge
def _():
    yield (
        call(table((1, 2), (1, 2), (1, 2)), SAME[:3], bands=2, threshold=0.5),
        "they agree in all bands",
    )
    yield (
        call(table((1, 2), (2, 1)), SAME[:2], bands=2, threshold=0.5),
        "the same numbers in other columns",
    )
    yield (
        call(table((1, 2, 3), (1, 2, 9)), SAME[:2], bands=1, threshold=0.5),
        "one band: all must agree",
    )
    yield (
        call(table((1, 5, 5), (9, 5, 1)), SAME[:2], bands=3, threshold=0.5),
        "as many bands as columns",
    )
    shared = table((1, 2, 3, 4), (1, 9, 3, 9))
    yield call(shared, SAME[:2], bands=2, threshold=0.5), "half of each band: no candidates"
    crossed = table((1, 2, 8, 8), (7, 7, 1, 2))
    yield (
        call(crossed, SAME[:2], bands=2, threshold=0.5),
        "the first band of one, the second of the other",
    )
    yield (
        call(table((1, 23), (12, 3)), SAME[:2], bands=1, threshold=0.5),
        "digits that run together",
    )
    yield (
        call(table((1, 2), (1, 2)), [[1], [2]], bands=1, threshold=0.5),
        "candidates that are not alike",
    )
    yield call(table((1, 2), (1, 2)), [[1], [2]], bands=1, threshold=0.0), "threshold 0"
    yield call(table((1, 2), (1, 2)), [[1, 2], [1]], bands=1, threshold=0.5), "at the threshold"
    yield call(table((3, 4)), [[1]], bands=2, threshold=0.5), "one document"
    yield call(torch.zeros(0, 4, dtype=torch.int64), [], bands=2, threshold=0.5), "no document"
    yield (
        call(table((1, 2, 3), (1, 2, 3)), SAME[:2], bands=2, threshold=0.5),
        "bands that do not come out even",
    )
    yield call(table((1, 2), (1, 2)), SAME[:2], bands=0, threshold=0.5), "no band"
    yield (
        call(table((1, 2), (1, 2)), SAME[:2], bands=-1, threshold=0.5),
        "a negative number of bands",
    )
    yield call(table((1, 2), (1, 2)), SAME[:2], bands=3, threshold=0.5), "more bands than columns"
    turned = table((1, 1, 4, 4), (2, 2, 5, 6), (3, 3, 3, 0)).T
    yield call(turned, SAME, bands=3, threshold=0.5), "not contiguous"
    order = table((1, 5), (2, 6), (2, 5), (1, 6))
    yield call(order, SAME, bands=2, threshold=0.5), "pairs are found in another order"
    many = spread(6000 * 4, 7).view(6000, 4)
    many[5000] = many[17]
    documents = [[i] for i in range(6000)]
    documents[5000] = [17]
    yield call(many, documents, bands=2, threshold=0.5), "6,000 documents, two of them alike"


near_duplicates.contract(
    contracts.largest_tensor(
        [call(spread(500 * 4, 7).view(500, 4), [[i] for i in range(500)], bands=2, threshold=0.5)],
        limit=500 * 4 * 8 * 4,
        says="no tensor of n · n elements is made",
        prepare=prepared.with_documents,
    )
)
BANDS = "signatures.chunk(bands, dim=1)"
GROUPS = (
    "        buckets = defaultdict(list)\n        for i, row in enumerate(band.tolist()):\n"
    "            buckets[tuple(row)].append(i)\n        for bucket in buckets.values():\n"
    "            candidates.update(combinations(bucket, 2))\n"
)
near_duplicates.slips(
    {
        replace(
            "similarity(i, j)) for", "similarity(j, i)) for"
        ): "You call similarity(j, i). The smaller number comes first.",
        replace(
            "for i, j in sorted(candidates)]", "for i, j in candidates]"
        ): "Your pairs are in no order: sort them.",
        replace(
            "found[2] >= threshold", "found[2] > threshold"
        ): "You leave out pairs at the threshold itself. Keep similarities of at least it.",
        replace(
            "return [found for found in measured if found[2] >= threshold]",
            "return sorted((one for one in measured if one[2] >= threshold), key=lambda one: -one[2])",
        ): "You put the most similar pairs first. The order is that of i, then of j.",
        replace(
            "[(i, j, similarity(i, j)) for i, j in sorted(candidates)]",
            "[(i, j, similarity(i, j)) for i, j in sorted(candidates) if similarity(i, j) >= threshold]",
        ): "You call similarity twice for a pair, once for the threshold and once for the result. Keep its answer.",
        replace(
            "candidates: set[tuple[int, int]] = set()",
            "agreeing = defaultdict(int)",
            "            candidates.update(combinations(bucket, 2))\n",
            "            for pair in combinations(bucket, 2):\n                agreeing[pair] += 1\n"
            "    candidates = {pair for pair, times in agreeing.items() if times == bands}\n",
        ): "You ask for all bands to agree. One band of any is enough.",
        replace(
            "    measured = [(i, j, similarity(i, j)) for i, j in sorted(candidates)]\n"
            "    return [found for found in measured if found[2] >= threshold]",
            "    kept, gone = [], set()\n    for i, j in sorted(candidates):\n"
            "        if not gone & {i, j} and (value := similarity(i, j)) >= threshold:\n"
            "            kept.append((i, j, value))\n            gone.add(j)\n    return kept",
        ): "You leave out pairs of a document that an earlier pair has. Every pair of candidates counts.",
        replace(
            "return [found for found in measured if found[2] >= threshold]", "return measured"
        ): "You return all candidates. Keep those whose similarity is at least the threshold.",
        replace(
            BANDS, f"[{BANDS}[0]]"
        ): "You look at the first band only. One band of any is enough.",
        replace(
            BANDS, "signatures.chunk(signatures.size(1), dim=1)"
        ): "You take every column for a band. A band is "
        "K / bands columns, and all of them must agree.",
        replace(
            BANDS, "signatures.split(bands, dim=1)"
        ): "You make bands of `bands` columns: split takes the size of "
        "a part, chunk the number of parts.",
        replace(
            BANDS, "[signatures[:, k::bands] for k in range(bands)]"
        ): "You take every bands-th column for a band. A band is of neighbouring columns.",
        replace(
            "buckets[tuple(row)]", "buckets[tuple(sorted(row))]"
        ): "You sort the numbers of a band. They have to agree column by column.",
        replace(
            "buckets[tuple(row)]", "buckets[sum(row)]"
        ): "Your key is a sum, which different rows may share. Take the tuple.",
        replace(
            "buckets[tuple(row)]", "buckets[''.join(map(str, row))]"
        ): "Your key is the digits one after the "
        "other: 1, 23 and 12, 3 give the same. Take the tuple.",
        replace(
            "        buckets = defaultdict(list)\n",
            "",
            "    candidates: set[tuple[int, int]] = set()\n",
            "    candidates = set()\n    buckets = defaultdict(list)\n",
        ): "You keep one dict for all bands, so the first band of one document meets the second of another. Each band "
        "has its own.",
        replace(
            "candidates: set[tuple[int, int]] = set()",
            "candidates = []",
            "candidates.update",
            "candidates.extend",
        ): "A pair that "
        "agrees in several bands is compared, and returned, several times. Collect candidates in a set.",
        replace(
            "combinations(bucket, 2)", "zip(bucket, bucket[1:])"
        ): "You pair neighbours only. Of three documents in a bucket there are three pairs.",
        replace(
            "combinations(bucket, 2)", "((bucket[0], i) for i in bucket[1:])"
        ): "You pair each document with the first of its bucket only. All pairs within a bucket are candidates.",
        replace(
            "similarity(i, j)) for", "float((signatures[i] == signatures[j]).double().mean())) for"
        ): "You return the share of equal columns, which estimates the similarity. Call `similarity`.",
        replace(
            "bands < 1 or signatures.size(1) % bands", "bands < 1"
        ): "Some documents have bands of other sizes: "
        "raise ValueError where K cannot be cut evenly.",
        replace(
            "bands < 1 or", "bands == 0 or"
        ): "A negative number of bands is refused, too: raise ValueError.",
    }
)


@near_duplicates.mistake(
    "You compare the true similarity of every pair. It is slow: compare candidates only.",
)
def _(signatures, bands, similarity, threshold):
    n, K = signatures.shape
    if bands < 1 or K % bands:
        raise ValueError("bands")
    if n > 1000:
        raise TimeoutError("this would take minutes")
    parts = (
        signatures.view(n, bands, -1)
        if signatures.is_contiguous()
        else signatures.reshape(n, bands, -1)
    )
    found = []
    for i in range(n):
        for j in range(i + 1, n):
            value = similarity(i, j)
            if value >= threshold and (parts[i] == parts[j]).all(-1).any():
                found.append((i, j, value))
    return found


@near_duplicates.mistake(
    "You compare the signatures of all pairs at once: a tensor of n · n elements and more. Group equal bands instead.",
    cost=True,
)
def _(signatures, bands, similarity, threshold):
    n, K = signatures.shape
    if bands < 1 or K % bands:
        raise ValueError("bands")
    agree = torch.zeros(n, n, dtype=torch.bool)
    for k in range(bands):
        part = signatures[:, k * (K // bands) : (k + 1) * (K // bands)]
        _, group = part.unique(dim=0, return_inverse=True) if n else (None, part.new_zeros(0))
        agree |= group[:, None] == group
    pairs = agree.triu(1).nonzero().tolist()
    measured = [(i, j, similarity(i, j)) for i, j in pairs]
    return [one for one in measured if one[2] >= threshold]


@near_duplicates.mistake(
    "You compare a pair again in each band in which it agrees. Collect candidates in a set, and compare at the end."
)
def _(signatures, bands, similarity, threshold):
    if bands < 1 or signatures.size(1) % bands:
        raise ValueError("bands")
    found = set()
    for band in signatures.chunk(bands, dim=1):
        buckets = {}
        for i, row in enumerate(band.tolist()):
            buckets.setdefault(tuple(row), []).append(i)
        for bucket in buckets.values():
            for at, i in enumerate(bucket):
                for j in bucket[at + 1 :]:
                    value = similarity(i, j)
                    if value >= threshold:
                        found.add((i, j, value))
    return sorted(found)


@near_duplicates.mistake(
    "You keep one dict for all bands, so the first band of one document meets the second of another. Each band has its "
    "own."
)
def _(signatures, bands, similarity, threshold):
    if bands < 1 or signatures.size(1) % bands:
        raise ValueError("bands")
    buckets, pairs = {}, set()
    for band in signatures.chunk(bands, dim=1):
        for i, row in enumerate(band.tolist()):
            buckets.setdefault(tuple(row), set()).add(i)
    for bucket in buckets.values():
        pairs |= {(i, j) for i in bucket for j in bucket if i < j}
    measured = [(i, j, similarity(i, j)) for i, j in sorted(pairs)]
    return [one for one in measured if one[2] >= threshold]


@near_duplicates.alternative("sorted bands, runs of equal ones")
def _(signatures, bands, similarity, threshold):
    n, K = signatures.shape
    if bands <= 0 or K % bands != 0:
        raise ValueError("bands")
    width = K // bands
    rows, seen, out = signatures.tolist(), set(), []
    for k in range(bands):
        keyed = sorted((rows[i][k * width : (k + 1) * width], i) for i in range(n))
        for at, (key, i) in enumerate(keyed):
            for other, j in keyed[at + 1 :] if at + 1 < n and keyed[at + 1][0] == key else ():
                if other != key:
                    break
                pair = (min(i, j), max(i, j))
                if pair not in seen:
                    seen.add(pair)
                    value = similarity(*pair)
                    if value >= threshold:
                        out.append((*pair, value))
    return sorted(out)


# ------------------------------------------------------------------------------ fit_power_law

fit_power_law = Exercise(
    scaling_laws.fit_power_law,
    key="pretraining.fit_power_law",
    title="A straight line of logarithms",
    difficulty=1,
    minutes=15,
    points=2,
    probe=probes.law_fitted,
    hints=(
        "log y = log a + b log x is a straight line. Which least squares give its slope?",
        "The slope is the covariance of log x and log y, divided by the variance of log x.",
        "The line goes through the means of both: log a = mean(log y) − b · mean(log x).",
        ("edge cases", "Two points with the same x have no slope; zero has no logarithm."),
    ),
)


def f64(*values):
    return torch.tensor(values, dtype=F64)


@fit_power_law.by_hand
def _():
    yield call(f64(1, 2, 4), f64(3, 6, 12)), (3.0, 1.0)
    yield call(f64(1, 10, 100), f64(5, 0.5, 0.05)), (5.0, -1.0)
    yield call(f64(1, 4), f64(2, 4)), (2.0, 0.5)
    yield call(f64(1, 100), f64(3, 3)), (3.0, 0.0)
    yield call(f64(1, 1, math.e), f64(1, math.e**2, math.e)), (math.e, 0.0)


@fit_power_law.cases
def _(draw):
    n = draw(st.integers(2, 7))
    dtype = draw(st.sampled_from([F32, F64]))
    x = torch.tensor(
        draw(st.lists(st.integers(1, 60), min_size=n, max_size=n, unique=True)), dtype=dtype
    )
    y = torch.tensor(draw(st.lists(st.integers(1, 40), min_size=n, max_size=n)), dtype=dtype) / 8
    yield call(x, y)


@fit_power_law.edge
def _():
    yield call(f64(2e9, 7e9, 5e10), f64(2.9, 2.4, 2.0)), "sizes of real models"
    yield call(f64(1e18, 1e20, 1e23), f64(4e8, 7e9, 2e11)), "FLOPs of real models"
    yield call(torch.tensor([3.0, 3.0, 9.0]), torch.tensor([1.0, 2.0, 5.0])), "float32, one x twice"
    yield (
        call(torch.tensor([1e30, 2e30, 8e30]), torch.tensor([1e-6, 3e-6, 2e-6])),
        "float32, large and small",
    )
    # nearer ones would ask for one formula of several that are right on paper
    near = f64(1e8, 1.1e8, 1.2e8)
    yield call(near, f64(2.0, 2.2, 2.4)), "x that lie close together"
    yield (
        call(f64(1, 2, 3, 4, 5, 6)[::2], f64(4, 0, 5, 0, 6, 0)[::2]),
        "every other number of a longer one",
    )
    yield call(f64(3, 3), f64(1, 2)), "one x only"
    yield call(f64(3), f64(1)), "one run"
    yield call(f64(), f64()), "no run"
    yield call(f64(0, 1, 2), f64(1, 2, 3)), "a size of 0"
    yield call(f64(1, 2, 3), f64(1, 0, 3)), "a loss of 0"
    yield call(f64(-1, -2, -3), f64(1, 2, 3)), "negative sizes"
    yield call(f64(1, 2, 3), f64(1, -2, 3)), "a negative loss"
    yield call(f64(1, 2, math.inf), f64(1, 2, 3)), "an infinite size"
    yield call(f64(1, 2, 3), f64(1, math.nan, 3)), "a loss that is NaN"
    yield call(f64(1, 2, 3), f64(1, math.inf, 3)), "a loss that is infinite"


POSITIVE = "torch.isfinite(x) & torch.isfinite(y) & (x > 0) & (y > 0)"
fit_power_law.slips(
    {
        replace(
            "u, v = x.double().log(), y.double().log()", "u, v = x.double(), y.double().log()"
        ): "You fit log y on x: an exponential. A power law is a line of log y on log x.",
        replace(
            "u, v = x.double().log(), y.double().log()", "u, v = x.double().log(), y.double()"
        ): "You fit y on log x. Take the logarithm of y, too.",
        replace(
            "u, v = x.double().log(), y.double().log()",
            "u, v = x.double().log10(), y.double().log10()",
        ): "You take logarithms to base 10, and exp, to base e, does not undo them.",
        replace(
            "(v.mean() - b * u.mean()).exp().item()", "(v.mean() - b * u.mean()).item()"
        ): "You return log a. Take exp of the intercept.",
        replace(
            "(v.mean() - b * u.mean()).exp()", "v.mean().exp()"
        ): "Your a is the y in the middle. The line's value "
        "at log x = 0 is mean(log y) − b · mean(log x).",
        replace(
            "v.mean() - b * u.mean()", "v.mean() - u.mean()"
        ): "You subtract mean(log x) without its factor b. "
        "The line's value at log x = 0 is mean(log y) − b · mean(log x).",
        replace(
            "(v.mean() - b * u.mean())", "(v.mean() + b * u.mean())"
        ): "You add b · mean(log x) where it is to be subtracted.",
        replace(
            "b.item()", "-b.item()"
        ): "You return −b. In a · x^b a falling law has a negative exponent.",
        replace(
            "return (v.mean() - b * u.mean()).exp().item(), b.item()",
            "return b.item(), (v.mean() - b * u.mean()).exp().item()",
        ): "You return (b, a). It is (a, b).",
        replace(
            "du = u - u.mean()", "du = u"
        ): "You do not subtract the mean of log x: that is a line through the origin.",
        replace(
            "u, v = x.double().log(), y.double().log()",
            "v, u = x.double().log(), y.double().log()",
        ): "You fit log x on log y. Least squares of log y on log x give another line.",
        replace(
            "b = (du * (v - v.mean())).sum() / du.square().sum()",
            "b = (v[-1] - v[0]) / (u[-1] - u[0])",
        ): "You draw the line through the first and the last point. Least squares use all points.",
        replace(
            "x.double().log(), y.double().log()", "x.float().log(), y.float().log()"
        ): "You compute in float32. Convert to float64 before the logarithm.",
        replace(
            "x.double().log(), y.double().log()", "x.log(), y.log()"
        ): "You compute in the dtype of the arguments. Convert to float64 before the logarithm.",
        replace(
            "x.double().log(), y.double().log()", "x.log().double(), y.log().double()"
        ): "You take logarithms in the dtype of the arguments. Convert to float64 before the logarithm.",
        replace(
            "b = (du * (v - v.mean())).sum() / du.square().sum()",
            "b = (v[-1] - v[0]) / (u[-1] - u[0])",
            "v.mean() - b * u.mean()",
            "v[0] - b * u[0]",
        ): "You draw the line through the first and the last point. Least squares takes all points into account.",
        replace(
            "b = (du * (v - v.mean())).sum() / du.square().sum()",
            "b = (u * v).sum() / (u * u).sum()",
        ): "Your slope is that of a line through the origin. Subtract the means of log x and log y first.",
        replace(
            f"not ({POSITIVE}).all()", "False"
        ): "You do not check the values. Zero, negative and infinite ones "
        "have no finite logarithm: raise ValueError.",
        replace(" & (y > 0)", ""): "You do not check that y is positive.",
        replace(" & (x > 0)", ""): "You do not check that x is positive.",
        replace(
            "torch.isfinite(x) & torch.isfinite(y) & ", ""
        ): "You take infinite values. Raise ValueError.",
        replace(
            "len(x.unique()) < 2", "len(x) < 2"
        ): "Two runs at the same x have no slope: count different x.",
        replace(
            "len(x.unique()) < 2",
            "len(x) < 2",
            "(du * (v - v.mean())).sum() / du.square().sum()",
            "torch.linalg.lstsq(torch.stack((torch.ones_like(u), u), 1), v[:, None]).solution[1, 0]",
        ): "Two runs at the same x have no slope: count different x.",
        replace("len(x.unique()) < 2", "False"): "One x has no slope: raise ValueError.",
        replace(
            "len(x.unique()) < 2", "len(x.unique()) < 3"
        ): "Two different x are enough for a line.",
        replace(
            "len(x.unique()) < 2", "len(x.unique()) < len(x)"
        ): "You refuse an x that occurs twice. Two different ones are enough.",
    }
)


@fit_power_law.alternative("a least-squares solver")
def _(x, y):
    x, y = x.to(F64), y.to(F64)
    good = torch.logical_and(x > 0, y > 0) & ~(x.isinf() | y.isinf())
    if not bool(good.all()) or x.numel() < 2 or bool((x == x[0]).all()):
        raise ValueError("no law")
    middle = x.log().mean()
    A = torch.stack([x.log() - middle, torch.ones_like(x)], 1)
    slope, level = torch.linalg.lstsq(A, y.log()[:, None]).solution[:, 0].tolist()
    return math.exp(level - slope * float(middle)), slope


# ------------------------------------------------------------------------------ isoflop_minimum

isoflop_minimum = Exercise(
    scaling_laws.isoflop_minimum,
    key="pretraining.isoflop_minimum",
    title="The lowest point of a budget",
    probe=probes.law_fitted,
    difficulty=2,
    minutes=20,
    points=3,
    hints=(
        "With u = log N the parabola c + b u + a u² is linear in a, b and c: least squares again, of three columns.",
        "Its lowest point is at u = −b / (2a); the size is exp of that.",
        "u between 9 and 14 gives columns that are nearly parallel. Subtract the mean of log N first, and add it back.",
        (
            "edge cases",
            "A parabola with a ≤ 0 has no lowest point; two sizes do not fix a parabola.",
        ),
    ),
)


@isoflop_minimum.by_hand
def _():
    e = math.e
    yield call(f64(1, e, e**2), f64(3, 2, 3)), (e, 2.0)
    yield call(f64(1, e, e**2), f64(4, 1, 0)), (e**2, 0.0)
    yield call(f64(1, e, e**2, e**3), f64(9, 4, 1, 0)), (e**3, 0.0)


@isoflop_minimum.cases
def _(draw):
    n = draw(st.integers(3, 7))
    places = draw(st.lists(st.integers(0, 12), min_size=n, max_size=n, unique=True))
    u = torch.tensor(places, dtype=F64) / 2
    losses = 2 + 0.2 * (u - draw(st.integers(0, 8))).square()
    off = draw(draws.indices((n,), 9)) / 1000
    yield call((u + 9).exp(), losses + off)


REAL = f64(2e4, 4e4, 9e4, 2e5, 5e5)


@isoflop_minimum.edge
def _():
    losses = f64(2.3, 2.1, 2.0, 2.05, 2.2)
    yield call(REAL, losses), "sizes of the chapter"
    yield call(1e6 * REAL, losses), "sizes of real models"
    yield call(REAL.flip(0), losses.flip(0)), "from large to small"
    yield call(REAL.float(), losses.float()), "float32"
    yield call(REAL, f64(2.3, 2.1, 1.95, 1.85, 1.8)), "the lowest point is beyond the runs"
    yield call(f64(1e4, 1e4, 3e4, 9e4), f64(2.4, 2.2, 2.0, 2.1)), "one size twice"
    yield (
        call(f64(1, 0, 2, 0, 4, 0)[::2], f64(3, 0, 2, 0, 3, 0)[::2]),
        "every other number of a longer one",
    )
    yield call(REAL, f64(1, 2, 3, 2, 1)), "a hill"
    yield call(REAL[:2], losses[:2]), "two sizes"
    yield call(f64(1e4, 1e4, 3e4), f64(2, 2.1, 2.2)), "three runs of two sizes"
    yield call(f64(), f64()), "no run"
    yield call(f64(0, 1e4, 2e4, 3e4), f64(3, 2, 1.9, 2)), "a size of 0"
    yield call(f64(-1e4, 1e4, 2e4, 3e4), f64(3, 2, 1.9, 2)), "a negative size"


isoflop_minimum.slips(
    {
        replace(
            "u = parameters.double().log()", "u = parameters.double()"
        ): "You fit the parabola in N. It is one in log N.",
        replace(
            "u = parameters.double().log()",
            "u = parameters.double()",
            "(middle + best).exp().item()",
            "(middle + best).item()",
        ): "You fit the parabola in N. It is one in log N, and exp of its lowest point is the size.",
        replace(
            "best = -b / (2 * a)",
            "best = min(max(-b / (2 * a), u.min().item()), u.max().item())",
            "c + b * best / 2",
            "c + b * best + a * best**2",
        ): "You keep the lowest point between the runs. It may lie beyond them.",
        replace(
            "(middle + best).exp().item()", "(middle + best).item()"
        ): "You return log N. Take exp.",
        replace(
            "(middle + best).exp()", "torch.tensor(best).double().exp()"
        ): "You subtract the mean of log N and never add it back.",
        replace("best = -b / (2 * a)", "best = -b / a"): "The lowest point is at −b / (2a).",
        replace(
            "best = -b / (2 * a)", "best = -b / a", "c + b * best / 2", "c + b * best + a * best**2"
        ): "You take −b / a for the lowest point. It is at −b / (2a).",
        replace(
            "best = -b / (2 * a)", "best = b / (2 * a)"
        ): "The lowest point is at −b / (2a): you lose the sign.",
        replace(
            "c + b * best / 2", "c"
        ): "You return the parabola's value at the mean. Compute it at its lowest point.",
        replace(
            "c + b * best / 2", "losses.double().min().item()"
        ): "You return the lowest loss of a run. Return the parabola's at its lowest point.",
        replace(
            "return (middle + best).exp().item(), c + b * best / 2",
            "return parameters[losses.argmin()].item(), losses.min().item()",
        ): "You return the best of the runs. The parabola's lowest point lies between them, or beyond.",
        replace(
            "if a <= 0:", "if False:"
        ): "A parabola that opens downwards has its highest point there: raise ValueError.",
        replace(
            "if a <= 0:", "if not u.min() < -b / (2 * a) < u.max():"
        ): "You refuse a lowest point that is not between the runs. It may lie beyond them.",
        replace(
            "not (parameters > 0).all() or", ""
        ): "You do not check the sizes. They must be positive.",
        replace(
            "len(parameters.unique()) < 3", "len(parameters) < 3"
        ): "Three runs of two sizes do not fix a parabola: count different sizes.",
        replace(
            "len(parameters.unique()) < 3", "False"
        ): "Two sizes do not fix a parabola: raise ValueError.",
        replace(
            "len(parameters.unique()) < 3",
            "len(parameters.unique()) < len(parameters) or len(parameters) < 3",
        ): "You refuse a size that occurs twice. Three different ones are enough.",
        replace(
            "len(parameters.unique()) < 3", "len(parameters.unique()) < 4"
        ): "Three different sizes are enough.",
        replace(
            "parameters.double().log()", "parameters.log2().double()"
        ): "You take logarithms to base 2, and exp, to base e, does not undo them.",
        replace(
            "parameters.double().log()", "parameters.double().log10()"
        ): "You take logarithms to base 10, and exp, to base e, does not undo them.",
        replace(
            "losses.double()[:, None]", "losses.double().log()[:, None]"
        ): "You take the logarithm of the loss, too. The parabola is one of the loss.",
        replace(
            "losses.double()[:, None]",
            "losses.double().log()[:, None]",
            "c + b * best / 2",
            "torch.tensor(c + b * best / 2, dtype=torch.float64).exp().item()",
        ): "You take the logarithm of the loss, too. The parabola is one of the loss.",
    }
)


@isoflop_minimum.alternative("normal equations around the smallest size")
def _(parameters, losses):
    N, L = parameters.to(F64), losses.to(F64)
    if bool((N <= 0).any()) or len(set(N.tolist())) <= 2:
        raise ValueError("sizes")
    start, width = N.log().min(), N.log().max() - N.log().min()
    t = 2 * (N.log() - start) / width - 1
    X = torch.stack([t * t, t, torch.ones_like(t)], dim=1)
    a, b, c = torch.linalg.solve(X.mT @ X, X.mT @ L).tolist()
    if not a > 0:
        raise ValueError("a hill")
    at = -0.5 * b / a
    return math.exp(float(start) + (at + 1) * float(width) / 2), a * at * at + b * at + c


# ------------------------------------------------------------------------------ compute_optimal

compute_optimal = Exercise(
    scaling_laws.compute_optimal,
    key="pretraining.compute_optimal",
    title="The best size for a budget",
    difficulty=2,
    minutes=20,
    points=3,
    hints=(
        "Put D = flops / (6 N) into the law, and set the derivative with respect to N to zero.",
        "A · alpha / N^alpha = B · beta / D^beta: at the optimum both terms gain equally from a little more.",
        "N^(alpha + beta) = (alpha A / (beta B)) · (flops / 6)^beta.",
        ("edge cases", "Each of the five numbers must be positive."),
    ),
)
LAW = {"A": 406.4, "alpha": 0.34, "B": 410.7, "beta": 0.28}


@compute_optimal.by_hand
def _():
    yield call(6.0 * 100, A=1.0, alpha=1.0, B=1.0, beta=1.0), (10.0, 10.0)
    yield call(6.0 * 100, A=4.0, alpha=1.0, B=1.0, beta=1.0), (20.0, 5.0)
    yield call(6.0 * 8, A=1.0, alpha=1.0, B=0.5, beta=2.0), (4.0, 2.0)


@compute_optimal.cases
def _(draw):
    exponents = st.integers(1, 9).map(lambda k: k / 10)
    yield call(
        10.0 ** draw(st.integers(9, 25)),
        A=float(draw(st.integers(1, 500))),
        alpha=draw(exponents),
        B=float(draw(st.integers(1, 500))),
        beta=draw(exponents),
    )


@compute_optimal.edge
def _():
    yield call(5.76e23, **LAW), "the budget of Gopher and Chinchilla"
    yield call(1e12, **LAW), "a budget of this chapter"
    yield call(6.0, **LAW), "a tiny budget"
    for name in LAW:
        yield call(1e20, **LAW | {name: 0.0}), f"{name} is 0"
        yield call(1e20, **LAW | {name: -0.3}), f"{name} is negative"
    yield call(0.0, **LAW), "no FLOPs"
    yield call(-1e20, **LAW), "negative FLOPs"


compute_optimal.slips(
    {
        replace(
            "G = (alpha * A / (beta * B))", "G = (A / B)"
        ): "You leave the exponents out of the factor: it is alpha · A / (beta · B).",
        replace(
            "(alpha * A / (beta * B))", "(beta * B / (alpha * A))"
        ): "Your factor is upside down: a large A asks for a large model.",
        replace("** (1 / (alpha + beta))", ""): "Take the (alpha + beta)-th root of the factor.",
        replace(
            "** (1 / (alpha + beta))", "** (1 / (alpha * beta))"
        ): "The root is the (alpha + beta)-th.",
        replace(
            "** (beta / (alpha + beta))", "** (alpha / (alpha + beta))"
        ): "You exchange the exponents: N grows with beta / (alpha + beta).",
        replace(
            "** (beta / (alpha + beta))", "** 0.5"
        ): "N grows with the square root only if alpha and beta are equal.",
        replace(
            "(flops / 6) **", "flops **"
        ): "You leave the 6 out: a token costs 6 FLOPs a parameter.",
        replace("flops / 6 / N", "flops / N"): "Your D does not fit the budget: 6 · N · D = flops.",
        replace(
            "return N, flops / 6 / N", "return N, G * (flops / 6) ** (alpha / (alpha + beta))"
        ): "You multiply both by the factor. D is divided by it, so that 6 · N · D = flops.",
        replace(
            "return N, flops / 6 / N", "return flops / 6 / N, N"
        ): "You return (D, N). It is (N, D).",
        replace(
            "return N, flops / 6 / N", "return N, 20 * N"
        ): "Twenty tokens a parameter is a rule of thumb. D follows from the budget.",
        replace(
            "alpha * A / (beta * B)", "alpha * A / beta * B"
        ): "You multiply by B: put beta * B in brackets.",
        replace(
            "if not min(flops, A, alpha, B, beta) > 0:", "if flops <= 0:"
        ): "You check the budget only. The law's numbers must be positive, too.",
        replace(
            "if not min(flops, A, alpha, B, beta) > 0:", "if not min(A, alpha, B, beta) > 0:"
        ): "You do not check the budget.",
        replace(
            "min(flops, A, alpha, B, beta) > 0", "min(flops, A, alpha, B, beta) >= 0"
        ): "Zero is refused, too.",
    }
)


@compute_optimal.alternative("logarithms")
def _(flops, *, A, alpha, B, beta):
    if any(x <= 0 for x in (flops, A, alpha, B, beta)):
        raise ValueError("positive numbers")
    budget, total = math.log(flops / 6), alpha + beta
    shift = (math.log(alpha) + math.log(A) - math.log(beta) - math.log(B)) / total
    return math.exp(shift + budget * beta / total), math.exp(-shift + budget * alpha / total)


# ------------------------------------------------------------------------------ mutants that compute the same

LAST_AXIS = "the tensor has two axes, so the last is axis 1"
for change, because in {
    "torch.zeros((), device=batches[0][0].device)` → `torch.zeros(())": "there is one device where this is graded",
    "batches[0][0]` → `batches[0][1]": "inputs and targets are on one device",
    "batches[0][0]` → `batches[0][-1]": "inputs and targets are on one device",
    "batches[0]` → `batches[-1]": "all micro-batches are on one device",
}.items():
    training_step.equivalent(f"training_step: `{change}`", because=because)
CAT = "torch.cat((hashes, hashes.new_full((len(a), 1), PRIME)), dim=1)"
minhash.equivalent(f"minhash: `{CAT}.amin(di…` → `{CAT}.amin(di…` [#2]", because=LAST_AXIS)
minhash.equivalent(f"minhash: `{CAT}` → `{CAT.replace('dim=1', 'dim=-1')}`", because=LAST_AXIS)
minhash.equivalent(
    "minhash: `(len(a), 1)` → `(len(a), 2)`", because="the smallest of two of them is that of one"
)
near_duplicates.equivalent(
    "near_duplicates: `signatures.chunk(bands, dim=1)` → `signatures.chunk(bands, dim=-1)`",
    because=LAST_AXIS,
)
for change in ("`v - v.mean()` → `v + v.mean()`", "`v.mean()` → `v.sum()` [#1]"):
    fit_power_law.equivalent(
        f"fit_power_law: {change}",
        because="the du sum to 0: what is added to all of v does not count",
    )
STACK = "torch.stack((torch.ones_like(u), u, u.square()), dim=1)"
SOLVED = "torch.linalg.lstsq(columns, losses.double()[:, None]).solution[:, 0]"
isoflop_minimum.equivalent(
    "isoflop_minimum: `u.mean()` → `u.sum()`", because="log N may be counted from anywhere"
)
isoflop_minimum.equivalent(
    f"isoflop_minimum: `{STACK}` → `{STACK.replace('dim=1', 'dim=-1')}`",
    because="vectors stacked have two axes",
)
isoflop_minimum.equivalent(
    f"isoflop_minimum: `{SOLVED}` → `{SOLVED.replace('[:, 0]', '[:, -1]')}`",
    because="there is one column",
)
isoflop_minimum.equivalent(
    "isoflop_minimum: `a <= 0` → `a < 0`",
    because="rounding decides on which side of 0 a straight line's a lies",
)
