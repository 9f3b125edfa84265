"""Exercises of chapter 10, optimizers: update rules as classes, their groups, their bytes."""
# mypy: ignore-errors
# (alternatives are written as students write them, and all classes of theirs are called _)

import inspect
from itertools import chain
from math import prod, sqrt

import torch
from hypothesis import strategies as st

from course_utils.grading import Exercise, call, contracts, draws, probes, replace
from course_utils.grading.probes import prepared
from course_utils.reference import optimizers

# ------------------------------------------------------------------------------ cases


def training(params, grads, options, **more):
    """A case for `probes.optimizer`: these parameters, gradients by step, options."""
    return call(params=list(params), grads=grads, options=options, **more)


def line(*values, dtype=torch.float32):
    return torch.tensor(values, dtype=dtype)


def worked(start, gradients, after, **options):
    """One vector, its gradients step by step, and what it was worked out to be after each."""
    grads = [[None if g is None else line(*g)] for g in gradients]
    expected = {"parameter 0 after each step": torch.tensor(after)}
    return training([line(*start)], grads, options), expected


SHAPES = ((2,), (3,), (2, 3), (3, 1, 2), ())


def draw_training(draw, options, apart):
    """Two or three parameters over 3 to 6 steps: groups, missing gradients, a fade, a reload.

    options: the optimizer's. apart: what a second group has of its own besides a learning rate.
    """
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=2, max_size=3))
    steps = draw(st.integers(3, 6))
    params = [draw(draws.tensors(shape, dtype)) for shape in shapes]
    missing = draw(st.booleans())

    def gradient(shape):
        return (
            None if missing and draw(st.integers(0, 3)) == 0 else draw(draws.tensors(shape, dtype))
        )

    grads = [[gradient(shape) for shape in shapes] for _ in range(steps)]
    more = {}
    if draw(st.booleans()):
        second = {"params": [0], "lr": 3 * options["lr"], **apart}
        more["groups"] = [{"params": list(range(1, len(shapes)))}, second]
    if draw(st.booleans()):
        more["reload"] = draw(st.integers(2, steps))
    if draw(st.booleans()):
        more["fade"] = 0.5
    return training(params, grads, options, **more)


def long_run(options, apart, steps=50, **more):
    """Three parameters in two groups, with gaps, a fade and a reload in the middle."""
    generator = torch.Generator().manual_seed(10)
    shapes = ((3, 2), (4,), (2, 1, 2))

    def normal(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    grads = [
        [None if (step + 2 * i) % 5 == 4 else normal(shape) for i, shape in enumerate(shapes)]
        for step in range(steps)
    ]
    groups = [{"params": [0, 2]}, {"params": [1], "lr": 0.3 * options["lr"], **apart}]
    more = {"groups": groups, "reload": steps // 2 + 1, "fade": 0.98, **more}
    return training(map(normal, shapes), grads, options, **more)


def ordinary_edges(options):
    """What every optimizer must bear: gaps, zeros, an empty tensor, one seen through strides."""
    a, b, zeros = line(1.0, 2.0), line(3.0, -1.0), line(0.0, 0.0)
    gaps = training([a, b], [[None, None], [None, b]], options)
    yield gaps, "no gradient at all, then one for the second parameter only"
    fresh = training([a, b], [[zeros, b], [a, zeros], [zeros, zeros]], options)
    yield fresh, "gradients of zeros, at first and later: they are gradients like others"
    x = draws.scattered(torch.arange(6.0).view(2, 3))
    yield training([x], [[x.cos()], [x.sin()]], options), "a parameter that is not contiguous"
    empty = torch.ones(0, 2)
    yield training([empty, a], [[empty, b]] * 2, options), "a parameter without elements"
    large = torch.linspace(-1.0, 1.0, 48 * 40).view(48, 40)
    yield training([large], [[large.cos()], [large.sin()]], options), "a larger matrix"
    yield crowd(MANY + 1, options), "as many parameters as a model has"


def adaptive_edges(apart, **more):
    """The same, gradients near zero, and fifty steps; more: options besides."""
    options = {"lr": 0.1, "weight_decay": 0.3, "eps": 0.1, **more}
    yield from ordinary_edges(options)
    zeros = training([line(1.0, 1.0)], [[line(0.0, 1.0)], [line(0.0, 0.0)]], {"lr": 0.1})
    yield zeros, "a gradient of zero"
    x, g = torch.ones(3, dtype=torch.float64), line(1e-3, 1e-5, 1.0, dtype=torch.float64)
    tiny = training([x], [[g], [2 * g]], {"lr": 0.1, "eps": 1e-3})
    yield tiny, "gradients as small as eps, or smaller"
    x, g = torch.zeros(3, dtype=torch.float64), line(1e-10, 1e-8, 1.0, dtype=torch.float64)
    yield training([x], [[g], [g]], {}), "no option given: the defaults"
    yield long_run(options, apart), "fifty steps"


def crowd(count, options):
    """That many small parameters, two steps: what the contracts measure, with values to compare."""

    def several(start):
        return [line(start + i, 1.0) for i in range(count)]

    return training(several(0.0), [several(1.0), several(-5.0)], options)


# ------------------------------------------------------------------------------ costs

MANY = 32
PARAMETER_BYTES = 4 * prod(prepared.SIDE)


def many(count=MANY, **options):
    """A case for the meters: that many parameters of one size, with gradients."""
    return call(count=count, options=options)


def bounded_memory(tensors, **options):
    """A first step keeps so many tensors for each parameter, and at no time a copy of them all."""
    kept = {0: "without momentum no state", 1: "with momentum one tensor", 2: "two tensors"}[
        tensors
    ]
    return contracts.peak(
        [many(**options)],
        limit=(tensors * MANY + 16) * PARAMETER_BYTES,
        says=f"{kept} for each parameter, a few temporary tensors, and no copy of all parameters",
        prepare=prepared.optimizer_step,
    )


# ------------------------------------------------------------------------------ slips of every loop

GROUPS = "for group in self.param_groups:"
STEP = "    @torch.no_grad()\n    def step"
CONSTRUCTOR = "    def __init__(self, params, **options):\n        super().__init__(params, **options)\n        "
KEPT = 'vars(self).setdefault("kept", {}).setdefault(p, {})'
SKIP = "if p.grad is None:\n                    continue\n                "
DECAY = 'grad = grad.add(p, alpha=group["weight_decay"])'

NONE = (
    "A parameter without gradient has `p.grad` None, and your step cannot do arithmetic with that: "
    "skip it."
)
SKIPS_ZEROS = (
    "You skip a parameter whose gradient is all zeros. That is a gradient like others: momentum, averages "
    "and decay move the parameter all the same. Only None means that it took no part."
)
UPHILL = "Your steps go along the gradient, uphill. The step is subtracted: p ← p − lr·…"
NEVER_MAXIMIZED = "`maximize` makes no difference in your code: it turns the sign of the gradient."
ALL_AT_ONCE = (
    "The values are right. But you prepare something for all parameters (gradients, or new values) before you "
    "write the first, and for that moment hold a copy of the whole model: finish each one as you come to it."
)


def slips_with_options(ex):
    """One hyper-parameter, or each of them, is read from the constructor."""
    _, *by_signature = inspect.signature(ex.reference).parameters
    for name in getattr(ex.reference, "defaults", by_signature):
        ex.mistake(
            f"You take {name} from the constructor. A group may have its own, a schedule changes it, a "
            f"checkpoint brings it along: read it from the group, at every step.",
            replace(
                GROUPS,
                f'{GROUPS}\n            group = {{**group, "{name}": self.defaults["{name}"]}}',
            ),
        )
    ex.mistake(
        "You take the hyper-parameters from the constructor. A group may have its own, a schedule changes "
        "`group['lr']`, and a checkpoint brings them along: read each from the group, in `step`.",
        replace(
            GROUPS, f'{GROUPS}\n            group = {{**self.defaults, "params": group["params"]}}'
        ),
    )


def slips_of_a_loop(ex, update):
    """What goes wrong around any update rule: whose options, which parameters, whose memory."""
    out_of_place = update.replace("_(", "(", 1)
    slips_with_options(ex)
    ex.mistake(UPHILL, replace("=-lr", "=lr"))
    ex.mistake(NEVER_MAXIMIZED, replace('-p.grad if group["maximize"] else p.grad', "p.grad"))
    ex.mistake(
        "You turn the sign of `p.grad` itself. With `maximize`, whoever looks at the gradient after the "
        "step sees it negated: `-p.grad` makes a new tensor.",
        replace("-p.grad if", "p.grad.neg_() if"),
    )
    ex.mistake(NONE, replace(SKIP, ""))
    ex.mistake(SKIPS_ZEROS, replace("p.grad is None", "p.grad is None or not p.grad.any()"))
    ends = "Your loop ends at the first parameter without gradient. Go on to the next: `continue`."
    ex.mistake(ends, replace("continue", "return"))
    ex.mistake(ends, replace("continue", "break"))
    ex.mistake(
        "Only the first group takes a step: go through all of `self.param_groups`.",
        replace(GROUPS, "for group in self.param_groups[:1]:"),
    )
    ex.mistake(
        "You reset `p.grad` in `step`. That is `zero_grad`'s task; whoever looks at the gradient after the "
        "step finds none.",
        replace(update, f"{update}\n                p.grad = None"),
    )
    ex.mistake(
        "You take a missing gradient for zeros, so momentum, averages and decay still move the "
        "parameter. Without gradient it stays as it is.",
        replace(SKIP + "grad =", "grad = torch.zeros_like(p) if p.grad is None else"),
    )
    ex.mistake(
        "You bind `p.data` to a new tensor, so the parameter leaves the memory that others (a view, a "
        "bucket of DDP) hold on to. Change it in place: `p.add_(…)`.",
        replace(update, f"p.data = {out_of_place}"),
    )
    ex.mistake(
        "You keep your state in an attribute of your own. `state_dict` saves `self.state` only, so a "
        "resumed run begins afresh: keep it in `self.state[p]`.",
        replace("self.state[p]", KEPT),
    )
    if ex.contracts:
        every = f"new.append((p, {out_of_place}))"
        last = "\n        for p, value in new:\n            p.copy_(value)"
        ex.mistake(
            ALL_AT_ONCE,
            replace(GROUPS, "new = []\n        " + GROUPS, update, every + last),
            cost=True,
        )


DECAY_UPHILL = (
    "With `maximize` you turn the sign of the decay too, so weights grow. Turn the gradient's sign alone, not "
    "that of lr."
)
SQUARES_UNDECAYED = (
    "You square the gradient before the decay is added to it. With L2 the decay is part of the gradient, and so "
    "of its square: add it first."
)


def slips_of_l2(ex, decoupled, squares=""):
    """What goes wrong with decay that is part of the gradient. decoupled: the sentence for decay that
    is not. squares: where the gradient is squared."""
    if squares:
        ex.mistake(
            SQUARES_UNDECAYED, replace(squares, squares.replace("grad, grad", "p.grad, p.grad"))
        )
    ex.mistake(decoupled, replace(DECAY, 'p.mul_(1 - lr * group["weight_decay"])'))
    ex.mistake("weight_decay makes no difference in your code.", replace(DECAY, "pass"))
    ex.mistake(NONE, replace(SKIP, "", DECAY, 'grad = grad + group["weight_decay"] * p'))
    ex.mistake(
        "With `maximize` you turn the sign of the decay too, so weights grow. Turn the gradient's sign "
        "first, then add the decay.",
        replace(DECAY, DECAY.replace("alpha=", 'alpha=(-1 if group["maximize"] else 1) * ')),
    )
    ex.mistake(
        "You add the decay to `p.grad` itself. Whoever looks at the gradient after the step (a log of its "
        "norm, an accumulation) sees something else: add it out of place.",
        replace("grad.add(p", "grad.add_(p"),
    )


# ------------------------------------------------------------------------------ SGD

SGD = Exercise(
    optimizers.SGD,
    title="Stochastic gradient descent",
    difficulty=1,
    minutes=25,
    points=3,
    probe=probes.optimizer,
    stand_in="torch.optim.SGD",
    hints=(
        "Put the hyper-parameters into a dict and hand it to `super().__init__(params, defaults)`. In "
        "`step`, loop over `self.param_groups` and over `group['params']`, and read every "
        "hyper-parameter from the group.",
        (
            "random cases",
            "In this order: skip where `p.grad is None`; turn the sign to maximize; add the decay; fill "
            "the momentum buffer `self.state[p]['momentum_buffer']`; look ahead for Nesterov; update.",
        ),
        "The first buffer is a *clone* of the gradient, undampened. `p.add_(grad, alpha=-lr)` changes "
        "the parameter in place; `p.data = …` would replace it.",
    ),
)


@SGD.by_hand
def _():
    one = [(1.0, 0.0)] * 2
    yield worked((1.0, -2.0), [(0.5, 1.0)] * 2, [[0.95, -2.1], [0.9, -2.2]], lr=0.1)
    yield worked((1.0, 2.0), one, [[0.9, 2.0], [0.75, 2.0]], lr=0.1, momentum=0.5)
    ahead = {"lr": 0.1, "momentum": 0.5, "nesterov": True, "weight_decay": 0.0}
    yield worked((1.0, 2.0), one, [[0.85, 2.0], [0.675, 2.0]], **ahead)


@SGD.cases(30)
def _(draw):
    momentum = draw(st.sampled_from([0.0, 0.9]))
    nesterov = bool(momentum) and draw(st.booleans())
    dampening = draw(st.sampled_from([0.0, 0.4])) if not nesterov else 0.0
    options = {
        "lr": 0.1,
        "momentum": momentum,
        "dampening": dampening,
        "nesterov": nesterov,
        "weight_decay": draw(st.sampled_from([0.0, 0.2])),
        "maximize": draw(st.booleans()),
    }
    yield draw_training(draw, options, {"weight_decay": 0.5})


@SGD.edge
def _():
    options = {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.3}
    yield from ordinary_edges(options)
    yield long_run(options, {"weight_decay": 0.0, "momentum": 0.5}), "fifty steps"
    x = line(1.0, 2.0)
    still = training([x], [[x], [x]], {"lr": 0.1}, stateless=True)
    yield still, "without momentum there is no state"
    for why, refused in (
        ("without momentum", {}),
        ("with dampening", {"momentum": 0.9, "dampening": 0.1}),
        ("with a negative momentum", {"momentum": -0.5}),
    ):
        x, options = line(1.0, 2.0), {"nesterov": True, **refused}
        yield training([x], [[x]], options), f"Nesterov {why} is refused"
        yield training([x], [], options), f"Nesterov {why} is refused before any step"


SGD.contract(bounded_memory(0))
SGD.contract(bounded_memory(1, momentum=0.9))


slips_of_a_loop(SGD, "p.add_(grad, alpha=-lr)")
slips_of_l2(
    SGD,
    "Your decay bypasses the momentum buffer. In SGD it is L2: part of the gradient before anything "
    "else is done with it.",
)
SGD.mistake(
    "You dampen the first gradient too. torch's buffer starts as the whole first gradient; dampening "
    "begins with the second.",
    replace("grad.clone()", 'grad * (1 - group["dampening"])'),
)
SGD.mistake(
    "Your buffer averages, (1 − momentum)·g, as Adam's does. Here it adds up: the whole gradient, unless "
    "`dampening` takes some of it away.",
    replace("grad.clone()", "grad * (1 - momentum)", '1 - group["dampening"]', "1 - momentum"),
)
SGD.mistake(
    "`dampening` makes no difference in your code: from the second step on the buffer gets "
    "(1 − dampening)·g.",
    replace('1 - group["dampening"]', "1"),
)
SGD.mistake(
    "You weigh the new gradient with dampening itself. It is what is taken away: (1 − dampening)·g.",
    replace('1 - group["dampening"]', 'group["dampening"]'),
)
SGD.mistake(
    "With Nesterov you step along momentum·b alone. The gradient belongs to it: g + momentum·b, which "
    "is where the buffer will carry you next.",
    replace("grad.add(buffer, alpha=momentum)", "buffer * momentum"),
)
SGD.mistake(
    "`nesterov` makes no difference in your results: the step is to go along g + momentum·b with the "
    "*new* b. With the old one, g + momentum·b is the new b itself.",
    replace('grad.add(buffer, alpha=momentum) if group["nesterov"] else buffer', "buffer"),
)
SGD.mistake(
    "With Nesterov you look ahead with the buffer as it was before this step, and g + momentum·b with the "
    "old b is the new b: plain momentum, from the second step on. Update the buffer, then look ahead.",
    replace(
        'state["momentum_buffer"] = grad.clone()',
        'state["momentum_buffer"] = old = grad.clone()',
        "else:\n",
        'else:\n                        old = state["momentum_buffer"].clone()\n',
        "grad.add(buffer, alpha=momentum)",
        "grad.add(old, alpha=momentum)",
    ),
)
SGD.mistake(
    "With Nesterov you step along g + b. The buffer is multiplied by momentum once more: g + momentum·b.",
    replace("grad.add(buffer, alpha=momentum)", "grad + buffer"),
)
SGD.mistake(
    "Nesterov without momentum raises nothing in your constructor: momentum must be above 0, or a "
    "ValueError is due.",
    replace("momentum <= 0 or dampening", "dampening"),
)
SGD.mistake(
    "Nesterov with a negative momentum raises nothing in your constructor: momentum must be above 0, or a "
    "ValueError is due.",
    replace("momentum <= 0", "momentum == 0"),
)
SGD.mistake(
    "Nesterov with dampening raises nothing in your constructor: dampening must be 0, or a ValueError is "
    "due.",
    replace("(momentum <= 0 or dampening != 0)", "momentum <= 0"),
)
SGD.mistake(
    "Your constructor accepts Nesterov with any momentum and dampening. Without momentum or with "
    "dampening it must raise ValueError.",
    replace("momentum <= 0 or dampening != 0", "False"),
)
SGD.mistake(
    "Your ValueError for Nesterov comes from `step`, after a whole forward and backward pass. Raise "
    "it in the constructor.",
    replace(
        "if nesterov and",
        "if False and",
        GROUPS,
        f"{GROUPS}\n            bad = group['momentum'] <= 0 or group['dampening'] != 0\n"
        "            if group['nesterov'] and bad:\n                raise ValueError('Nesterov')",
    ),
)
FIRST_GRADIENT = (
    "Your buffer *is* the first gradient, not a copy of it: what is written into one appears in the other, "
    "and the next `backward` overwrites both. Clone it."
)
SGD.mistake(FIRST_GRADIENT, replace("grad.clone()", "grad"))
SGD.mistake(
    FIRST_GRADIENT,
    replace(
        "grad.clone()",
        "grad",
        'buffer = state["momentum_buffer"].mul_(momentum)',
        'buffer = state["momentum_buffer"] = momentum * state["momentum_buffer"]',
    ),
)
SGD.mistake(
    "You do without `torch.no_grad()` and work around the error with `p.data`. The decay then enters "
    "the buffer with its graph, and every step's graph hangs on the last: memory grows without end.",
    replace(
        "@torch.no_grad()\n    ",
        "",
        'if group["weight_decay"]:',
        "if True:",
        "p.add_(grad",
        "p.data.add_(grad",
    ),
)
WHOLE = '1 if first else 1 - group["dampening"]'
for first, later in (
    ("first = not self.state", '1 - group["dampening"]'),
    ('first, self.begun = not hasattr(self, "begun"), True', WHOLE),
):
    SGD.mistake(
        "You ask once for the whole optimizer whether the buffers begin. A parameter may get its first "
        "gradient later, and your code dampens it: ask for each parameter whether it has a buffer.",
        replace(
            *(GROUPS, f"{first}\n        {GROUPS}", "grad.clone()", f"grad * ({WHOLE})"),
            *('alpha=1 - group["dampening"]', f"alpha={later}"),
        ),
    )
SGD.mistake(
    "With Nesterov you add to `p.grad` itself, where neither decay nor `maximize` has made another tensor of it. "
    "Whoever looks at the gradient after the step sees something else: add out of place.",
    replace("grad.add(buffer", "grad.add_(buffer"),
)
SGD.mistake(
    "Your learning rate is inside the buffer: b ← momentum·b + lr·g. While lr is constant that is the "
    "same thing; when a schedule lowers it, the old steps still carry the old rate.",
    replace(
        "if momentum:", "grad = lr * grad\n                if momentum:", "alpha=-lr", "alpha=-1"
    ),
)
SGD.mistake(
    "You keep a buffer although the momentum is 0: it costs as much memory as the parameters, and "
    "dampening then shortens the steps. Without momentum the step is along the gradient.",
    replace("if momentum:", "if True:"),
)
SGD.mistake(
    "You count steps in `self.state`. SGD's step does not depend on the count: without momentum there is no state.",
    replace(
        "if momentum:\n",
        'self.state[p]["step"] = self.state[p].get("step", 0) + 1\n                if momentum:\n',
    ),
)
SGD.mistake(
    "You keep a buffer although the momentum is 0, and do not use it: it costs as much memory as the parameters. "
    "Without momentum there is no state.",
    replace(
        "if momentum:",
        'if not momentum:\n                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)\n'
        "                if momentum:",
    ),
)


@SGD.alternative(
    "out of place, then copied into the parameter; p.data, which autograd does not watch"
)
class _(optimizers.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in filter(lambda p: p.grad is not None, group["params"]):
                g = (-1 if group["maximize"] else 1) * p.grad + group["weight_decay"] * p.data
                state, mu = self.state[p], group["momentum"]
                if mu != 0:
                    old = state.get("b")
                    state["b"] = g if old is None else mu * old + (1 - group["dampening"]) * g
                    g = g + mu * state["b"] if group["nesterov"] else state["b"]
                p.data.copy_(p.data - group["lr"] * g)


SGD.alternative("in lists, with torch._foreach_*")(optimizers.ForeachSGD)


# ------------------------------------------------------------------------------ AdaGrad

AdaGrad = Exercise(
    optimizers.AdaGrad,
    title="A rate for each coordinate",
    difficulty=1,
    minutes=15,
    points=2,
    probe=probes.optimizer,
    stand_in="torch.optim.Adagrad",
    hints=(
        "One tensor of state, of the parameter's shape, zeros at first. What is added to it at every "
        "step?",
        ("edge cases", "Where a gradient is zero, √s is too. Which term saves the division?"),
        "`state['sum'].addcmul_(grad, grad)`, then `p.addcdiv_(grad, state['sum'].sqrt().add_(eps), "
        "value=-lr)`: eps is added to the root.",
    ),
)


@AdaGrad.by_hand
def _():
    yield worked((1.0, 1.0), [(3.0, -1.0), (4.0, 0.0)], [[0.5, 1.5], [0.1, 1.5]], lr=0.5)


def slips_of_the_root(ex, squares):
    """What goes wrong with the divisor: the root of these squares, plus eps."""
    root = f"{squares}.sqrt().add_(eps)"
    ex.mistake(
        "Your eps is inside the root. √(v + eps) is at least √eps: with 1e-8 that is 1e-4, ten thousand "
        "times as much, and parameters with small gradients hardly move. Add eps to the root.",
        replace(root, f"({squares} + eps).sqrt()"),
    )
    ex.mistake(
        "You leave eps out: where a gradient has always been zero, 0 / 0 is NaN.",
        replace(root, f"{squares}.sqrt()"),
    )
    ex.mistake(
        "You divide by the squares themselves. Their unit is that of a squared gradient: take the root.",
        replace(root, f"({squares} + eps)"),
    )


ROOT_IN_PLACE = (
    "You take the root in place, and what you take it of is your state: the next step goes on from the root. "
    "`sqrt`, without the underscore at the end, makes a new tensor."
)


def slips_of_a_root_in_place(ex, squares):
    """The same, where these squares are the state itself."""
    for root in (f"({squares}.sqrt_() + eps)", f"{squares}.sqrt_().add_(eps)"):
        ex.mistake(ROOT_IN_PLACE, replace(f"{squares}.sqrt().add_(eps)", root))


IN_FLOAT32 = (
    "You make your state with `torch.zeros(p.shape)`, in float32 whatever the parameter is, so float64 "
    "loses half of its digits or an operation refuses the mixture. `torch.zeros_like(p)` has the "
    "parameter's dtype, and its device."
)
ZEROS, IN_DEFAULT_DTYPE = "torch.zeros_like(p)", "torch.zeros(p.shape)"


def slips_of_its_dtype(ex, **names):
    """State in the default dtype, made at the first gradient or in the constructor. names: of the
    state, each with the condition on which it is there."""
    kept = {name: f'state["{name}"] = {ZEROS}' for name in names}
    lazy = [(text, text.replace(ZEROS, IN_DEFAULT_DTYPE)) for text in kept.values()]
    ex.mistake(IN_FLOAT32, replace(*chain(*lazy)))
    early = "for group in self.param_groups:\n            for p in group['params']:"
    for name, condition in names.items():
        early += f"\n                if {condition}:"
        early += f"\n                    self.state[p]['{name}'] = {IN_DEFAULT_DTYPE}"
    made = STEP, f"{CONSTRUCTOR}{early}\n\n{STEP}"
    none_later = chain(*((text, "pass") for text in kept.values()))
    ex.mistake(IN_FLOAT32, replace(*made, *none_later))


def draw_adaptive(draw, more):
    return {
        "lr": 0.1,
        "eps": draw(st.sampled_from([1e-8, 1e-2, 0.5])),
        "weight_decay": draw(st.sampled_from([0.0, 0.3])),
        "maximize": draw(st.booleans()),
        **more,
    }


@AdaGrad.cases(25)
def _(draw):
    yield draw_training(draw, draw_adaptive(draw, {}), {"weight_decay": 0.5, "eps": 0.1})


AdaGrad.edge(lambda: adaptive_edges({"weight_decay": 0.0}))
slips_of_the_root(AdaGrad, "total")
slips_of_a_root_in_place(AdaGrad, "total")
slips_of_a_loop(AdaGrad, "p.addcdiv_(grad, total.sqrt().add_(eps), value=-lr)")
slips_of_l2(
    AdaGrad,
    "Your decay shrinks the parameter directly. In AdaGrad it is L2: part of the gradient, and of the "
    "sum of squares.",
    ".addcmul_(grad, grad)",
)
AdaGrad.mistake(
    "You divide by this step's gradient alone, so every step has size lr. The divisor sums the squares "
    "of *all* gradients so far.",
    replace(".addcmul_(grad, grad)", ".copy_(grad * grad)"),
)
AdaGrad.mistake(
    "You divide before you add: the present gradient belongs to the sum. Without it the first step is "
    "g / eps, which is enormous.",
    replace(".addcmul_", '.clone()\n                state["sum"].addcmul_'),
)
AdaGrad.mistake(
    "You add up absolute values. AdaGrad adds squares and takes the root of their sum: fifty gradients "
    "of 1 give 7.1, not 50.",
    replace(".addcmul_(grad, grad)", ".add_(grad.abs())", "total.sqrt()", "total.clone()"),
)
AdaGrad.mistake(
    "You keep one number for each parameter tensor, the sum over all its elements. The point of "
    "AdaGrad is a rate for each coordinate.",
    replace(".addcmul_(grad, grad)", ".add_((grad * grad).sum())"),
)
slips_of_its_dtype(AdaGrad, sum="True")


@AdaGrad.alternative("out of place, with the state made in the constructor")
class _(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, eps=1e-10, weight_decay=0.0, maximize=False):
        given = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, given)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["s"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    g = (-1 if group["maximize"] else 1) * p.grad + group["weight_decay"] * p
                    self.state[p]["s"] = self.state[p]["s"] + g**2
                    p -= group["lr"] * g / (self.state[p]["s"] ** 0.5 + group["eps"])


AdaGrad.alternative("in lists, with torch._foreach_*")(optimizers.ForeachAdaGrad)


# ------------------------------------------------------------------------------ RMSProp

RMSProp = Exercise(
    optimizers.RMSProp,
    title="An average that forgets",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.optimizer,
    stand_in="torch.optim.RMSprop",
    hints=(
        "Take your AdaGrad and change one line: the sum becomes a moving average. Which of its two terms "
        "does alpha multiply?",
        "Momentum comes last: it collects what is already divided by the root, in a buffer that starts "
        "at zero.",
        "`square.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)`; then d = grad / (square.sqrt() + eps). "
        "With momentum, `buffer.mul_(momentum).add_(d)` and step along the buffer.",
    ),
)


@RMSProp.by_hand
def _():
    options = {"lr": 0.1, "alpha": 0.75, "eps": 0.0}
    yield worked((1.0, 1.0), [(2.0, -4.0)], [[0.8, 1.2]], **options)
    later = [[0.8, 1.2], [0.7, 1.3]]
    yield worked((1.0, 1.0), [(2.0, -4.0), (0.0, 0.0)], later, momentum=0.5, **options)


@RMSProp.cases(25)
def _(draw):
    more = {
        "alpha": draw(st.sampled_from([0.9, 0.6])),
        "momentum": draw(st.sampled_from([0.0, 0.8])),
    }
    yield draw_training(draw, draw_adaptive(draw, more), {"weight_decay": 0.5, "alpha": 0.7})


RMSProp.edge(lambda: adaptive_edges({"weight_decay": 0.0, "alpha": 0.5}, momentum=0.5))
slips_of_the_root(RMSProp, "square")
slips_of_a_root_in_place(RMSProp, "square")
slips_of_a_loop(RMSProp, "p.add_(direction, alpha=-lr)")
slips_of_l2(
    RMSProp,
    "Your decay shrinks the parameter directly. In RMSProp it is L2: part of the gradient, and so of the "
    "average.",
    ".addcmul_(grad, grad,",
)
RMSProp.mistake(
    "You have alpha the wrong way round: it is the share of the *old* average that stays, 0.99 by "
    "default; the new square gets 1 − alpha.",
    replace("mul_(alpha)", "mul_(1 - alpha)", "value=1 - alpha", "value=alpha"),
)
RMSProp.mistake(
    "Your average does not weigh the new square: v ← alpha·v + g² settles at 1 / (1 − alpha) times the "
    "mean square, a hundred times for 0.99.",
    replace("value=1 - alpha", "value=1"),
)
RMSProp.mistake(
    "You correct the average for its start at zero. That is Adam's idea; RMSProp has no correction, so "
    "its first steps are larger.",
    replace(
        "direction = grad / square.sqrt()",
        'state["step"] = t = state.get("step", 0) + 1\n'
        "                direction = grad / (square / (1 - alpha**t)).sqrt()",
    ),
)
RMSProp.mistake(
    "Your momentum collects raw gradients and divides afterwards. Here each gradient is divided by the "
    "root of its own time, and momentum collects the quotients.",
    replace(" / square.sqrt().add_(eps)", "", "p.add_(d", "p.add_(1 / (square.sqrt() + eps) * d"),
)
RMSProp.mistake(
    "You use momentum where you should weigh with alpha: the average of squares has a rate of its own.",
    replace('group["alpha"]', 'group["momentum"] or group["alpha"]'),
)
RMSProp.mistake(
    "Your momentum averages, (1 − momentum)·d. Here it adds up: b ← momentum·b + d.",
    replace(".add_(direction)", ".add_(direction, alpha=1 - momentum)"),
)
RMSProp.mistake(
    "Your learning rate is inside the buffer: b ← momentum·b + lr·d. While lr is constant that is the "
    "same thing; when a schedule lowers it, the old steps still carry the old rate.",
    replace(".add_(direction)", ".add_(lr * direction)", "=-lr", "=-1 if momentum else -lr"),
)
RMSProp.mistake(
    "You keep a momentum buffer although the momentum is 0: two tensors of state for each parameter, where one is "
    "enough.",
    replace(
        'if momentum:\n                        state["momentum_buffer"]',
        'if True:\n                        state["momentum_buffer"]',
    ),
)
RMSProp.mistake(
    "Your average begins with the first squared gradient in full. It begins at zero, so after the first "
    "step it is (1 − alpha)·g², and that step is the longer for it.",
    replace('state["square_avg"] = torch.zeros_like(p)', 'state["square_avg"] = grad * grad'),
)
RMSProp.mistake(
    IN_FLOAT32,
    replace(f'state["square_avg"] = {ZEROS}', f'state["square_avg"] = {IN_DEFAULT_DTYPE}'),
)
slips_of_its_dtype(RMSProp, square_avg="True", momentum_buffer="group['momentum']")
RMSProp.alternative("in lists, with torch._foreach_*")(optimizers.ForeachRMSProp)


# ------------------------------------------------------------------------------ Adam

Adam = Exercise(
    optimizers.Adam,
    title="Two averages, corrected",
    difficulty=2,
    minutes=25,
    points=4,
    probe=probes.optimizer,
    stand_in="torch.optim.Adam",
    hints=(
        "Three things to remember for each parameter: m, v, and how many steps it has taken. All three "
        "belong in `self.state[p]`, as `exp_avg`, `exp_avg_sq` and `step`, or they do not survive a "
        "checkpoint.",
        "`state['step'] = torch.tensor(0.0)` at first, `state['step'] += 1`, and `t = state['step'].item()` "
        "to compute with: a Python float.",
        (
            "random cases",
            "Count t up *before* you use it: at the first step t is 1, and 1 − β₁ᵗ = 1 − β₁. A parameter "
            "that had no gradient has not taken a step.",
        ),
        "m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ), and then p ← p − lr·m̂ / (√v̂ + eps): correct first, take "
        "the root, add eps last.",
    ),
)


@Adam.by_hand
def _():
    yield worked((1.0, 1.0), [(2.0, -0.01)], [[0.9, 1.1]], lr=0.1, eps=0.0)
    # m = 1, m̂ = 2; v = 1, v̂ = 4; then m = 0.5, m̂ = 2/3; v = 0.75, v̂ = 12/7
    after = [[0.9], [0.9 - 0.1 * (2 / 3) / sqrt(12 / 7)]]
    yield worked((1.0,), [(2.0,), (0.0,)], after, lr=0.1, betas=(0.5, 0.75), eps=0.0)


BETAS = ((0.9, 0.999), (0.9, 0.95), (0.5, 0.8))


@Adam.cases(25)
def _(draw):
    options = draw_adaptive(draw, {"betas": draw(st.sampled_from(BETAS))})
    yield draw_training(draw, options, {"weight_decay": 0.5, "betas": (0.6, 0.9)})


def adam_edges(torchs):
    """torchs: the class of torch.optim that has the same state."""
    apart = {"weight_decay": 0.0, "betas": (0.9, 0.95)}
    yield from adaptive_edges(apart)
    begun = long_run({"lr": 0.1, "weight_decay": 0.3}, apart, steps=6, begins=torchs)
    yield begun, f"a checkpoint of torch.optim.{torchs} goes on"
    x = line(1.0, 2.0)
    counted = training([x], [[x], [x]], {"lr": 0.1}, counts="step")
    yield counted, f"the count of steps is kept as torch.optim.{torchs} keeps it"


Adam.edge(lambda: adam_edges("Adam"))
Adam.contract(bounded_memory(2))


WITH_T = STEP, f"{CONSTRUCTOR}self.t = 0\n\n{STEP}"
STEPPED = "p.addcdiv_(m_hat, v_hat.sqrt().add_(eps), value=-lr)"
LOOP = 'for p in group["params"]:'
COUNT = 'state["step"].item()'
COUNTS_IN_INTS = (
    "A checkpoint of torch's does not go on as it would in torch: there `step` is a float32 tensor, and "
    "yours computes 1 − βᵗ with it. Make a Python float of it first: `state['step'].item()`."
)
COUNTS_OTHERWISE = (
    "Your `state['step']` is not what torch keeps there, a float32 tensor, and so your checkpoints are not "
    "like torch's. Let it be `torch.tensor(0.0)` at first, and add 1 to it."
)
FURTHER_OPTIONS = (
    "A checkpoint of torch's brings options into the groups that your function does not know (`amsgrad`, "
    "`differentiable`, …), also into `self.defaults`. Read from the group, by name, what you need."
)
EVERY_DEFAULT = (
    "You look up in the group every option that `self.defaults` names. `load_state_dict` adds `differentiable` "
    "to them, which your groups lack. Read from the group, by name, what you need."
)
OWN_NAMES = (
    "Your state has names of its own, so a checkpoint of torch's brings averages that your step does not "
    "find. Its names are `exp_avg`, `exp_avg_sq` and `step`."
)
IN_PLACE = "(v.sqrt_() / sqrt(1 - beta2**t)).add_(eps)"
HANDED_ON = f"""{GROUPS}
            options = {{name: value for name, value in group.items() if name in self.defaults}}
            (lambda lr, betas, eps, weight_decay, maximize: None)(**options)"""
LOOKED_UP = f"{GROUPS}\n            [group[name] for name in self.defaults]"
NO_CORRECTION = (
    "You do not correct the averages for their start at zero. With the default betas m is at first a tenth "
    "of the gradient and √v a thirtieth of its size, so the first steps come out three to six times too "
    "long: divide by 1 − βᵗ."
)


def slips_of_adam(ex):
    """What goes wrong with the averages, their correction, eps and the count of steps."""
    both = "m / (1 - beta1**t), v / (1 - beta2**t)"
    ex.mistake(NO_CORRECTION, replace(both, "m, v"))
    ex.mistake(
        "You correct m but not v. Both start at zero: v̂ = v / (1 − β₂ᵗ).",
        replace("v / (1 - beta2**t)", "v"),
    )
    ex.mistake(
        "You correct v but not m. Both start at zero: m̂ = m / (1 − β₁ᵗ).",
        replace("m / (1 - beta1**t)", "m"),
    )
    ex.mistake(
        "You divide √v by 1 − β₂ᵗ. It is v that is corrected; its root is divided by √(1 − β₂ᵗ).",
        replace("v / (1 - beta2**t)", "v / (1 - beta2**t) ** 2"),
    )
    for written in (
        "m.div_(1 - beta1**t), v.div_(1 - beta2**t)",
        "m.div_(1 - beta1**t), v / (1 - beta2**t)",
        "m / (1 - beta1**t), v.div_(1 - beta2**t)",
    ):
        ex.mistake(
            "You write a corrected average back into the state. m̂ and v̂ are for this step only: m and v go on "
            "as they were.",
            replace(both, written),
        )
    ex.mistake(
        "You add eps to √v before the correction, as the paper's shortcut does. The rule here, and torch, "
        "correct v first: √v̂ + eps.",
        replace("v_hat.sqrt().add_(eps)", "v.sqrt().add_(eps) / sqrt(1 - beta2**t)"),
    )
    ex.mistake(
        "Your t is one too high: at the first step it must be 1, so that m̂ is the first gradient itself. "
        "Count once for each step of the parameter.",
        replace(COUNT, COUNT + " + 1"),
    )
    ex.mistake(
        "Your t is 0 at the first step, and 1 − β⁰ is 0: count up before you correct, not after.",
        replace(COUNT, COUNT + " - 1"),
    )
    ex.mistake(
        "You count steps once for all parameters. One that had no gradient has taken fewer, and its "
        "averages are that much younger: keep t in `self.state[p]`.",
        replace(
            LOOP, 'group["t"] = group.get("t", 0) + 1\n            ' + LOOP, COUNT, 'group["t"]'
        ),
    )
    ex.mistake(
        "`self.t` counts steps once for all parameters. One that had no gradient has taken fewer; and "
        "after a resume the count begins afresh. Keep t in `self.state[p]`.",
        replace(*WITH_T, GROUPS, "self.t += 1\n        " + GROUPS, COUNT, "self.t"),
    )
    ex.mistake(
        "`self.t += 1` stands in the loop over parameters, so the second one is corrected as if it were a "
        "step older than the first. Count for each parameter, in its state.",
        replace(*WITH_T, 'state["step"] += 1', "self.t += 1", COUNT, "self.t"),
    )
    ex.mistake(
        "Your count of steps is an attribute of your own, not part of `state_dict`. After a resume it "
        "starts again at 1, and old averages are corrected as if they were young.",
        replace(
            STEP,
            f"{CONSTRUCTOR}self.t = {{}}\n\n{STEP}",
            'state["step"] += 1',
            "self.t[p] = self.t.get(p, 0) + 1",
            COUNT,
            "self.t[p]",
        ),
    )
    ex.mistake(
        "You leave the count a tensor in float32, so 1 − βᵗ is computed in float32: for 0.999 it is off by "
        "5·10⁻⁵ at the first step. `state['step'].item()` is a Python float.",
        replace(COUNT, 'state["step"]'),
    )
    ex.mistake(COUNTS_IN_INTS, replace("torch.tensor(0.0)", "0", COUNT, 'state["step"]'))
    ex.mistake(
        COUNTS_OTHERWISE,
        replace("torch.tensor(0.0)", "0", COUNT, 'float(state["step"])'),
    )
    kept = [f'state["{name}"] = {ZEROS}' for name in ("exp_avg", "exp_avg_sq")]
    single = [(text, text.replace(ZEROS, IN_DEFAULT_DTYPE)) for text in kept]
    averaged = "m.lerp_(grad, 1 - beta1)", "m.mul_(beta1).add_(grad, alpha=1 - beta1)"
    ex.mistake(IN_FLOAT32, replace(*chain(*single)))  # lerp_ raises
    ex.mistake(IN_FLOAT32, replace(*chain(*single), *averaged))
    folded = (both, "None, (v.sqrt() / sqrt(1 - beta2**t)).add_(eps)")
    folded += (STEPPED, "p.addcdiv_(m, v_hat, value=-lr / (1 - beta1**t))")
    ex.mistake(IN_FLOAT32, replace(*chain(*single), *averaged, *folded))
    ex.mistake(ROOT_IN_PLACE, replace("v_hat.sqrt().add_(eps)", IN_PLACE))
    ex.mistake(FURTHER_OPTIONS, replace(GROUPS, HANDED_ON))
    ex.mistake(EVERY_DEFAULT, replace(GROUPS, LOOKED_UP))
    ex.mistake(
        OWN_NAMES,
        replace('state["exp_avg"] =', 'state["m"] =', 't = state["exp_avg"]', 't = state["m"]'),
    )
    ex.mistake(
        "You have the betas the wrong way round: β₁ is for the gradient, β₂ for its square.",
        replace("(beta1, beta2)", "(beta2, beta1)"),
    )
    ex.mistake(
        "Your averages keep 1 − β of the old and take β of the new. It is the other way round: β of the "
        "old stays.",
        replace(
            "lerp_(grad, 1 - beta1)",
            "lerp_(grad, beta1)",
            "v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)",
            "v.mul_(1 - beta2).addcmul_(grad, grad, value=beta2)",
        ),
    )
    ex.mistake(
        "You average gradients and square the average. v is the average of the *squares*, which does not "
        "vanish when gradients change sign.",
        replace(
            "v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)",
            "v.lerp_(grad, 1 - beta2)",
            "v / (1 - beta2**t)",
            "(v / (1 - beta2**t)).square()",
        ),
    )


slips_of_adam(Adam)
slips_of_the_root(Adam, "v_hat")
slips_of_a_loop(Adam, STEPPED)
slips_of_l2(
    Adam,
    "Your decay is decoupled: that is AdamW, the next exercise. In Adam it is L2, added to the gradient "
    "before the averages.",
    ".addcmul_(grad, grad,",
)


@Adam.alternative("line by line as in the paper, out of place, with t as a tensor")
class _(optimizers.Adam):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = (-p.grad if group["maximize"] else p.grad) + group["weight_decay"] * p
                state = self.state[p]
                if len(state) == 0:
                    state.update(
                        step=torch.zeros(()),
                        exp_avg=torch.zeros_like(g),
                        exp_avg_sq=torch.zeros_like(g),
                    )
                state["step"] = state["step"] + 1
                state["exp_avg"] = b1 * state["exp_avg"] + (1 - b1) * g
                state["exp_avg_sq"] = b2 * state["exp_avg_sq"] + (1 - b2) * g**2
                t = state["step"].item()
                m_hat = state["exp_avg"] / (1 - b1**t)
                v_hat = state["exp_avg_sq"] / (1 - b2**t)
                p.sub_(group["lr"] * m_hat / (v_hat**0.5 + group["eps"]))


# ------------------------------------------------------------------------------ AdamW

AdamW = Exercise(
    optimizers.AdamW,
    title="Decay that is not a gradient",
    difficulty=2,
    minutes=10,
    points=3,
    probe=probes.optimizer,
    stand_in="torch.optim.AdamW",
    hints=(
        "Take your Adam. The decay leaves the gradient; where does it go?",
        "One line before the step: the parameter is multiplied by 1 − lr·weight_decay. It does not "
        "enter m and v.",
        "`p.mul_(1 - group['lr'] * group['weight_decay'])`, after the test for a missing gradient.",
    ),
)


@AdamW.by_hand
def _():
    options = {"lr": 0.1, "weight_decay": 0.5}
    yield worked((1.0, -2.0), [(2.0, -0.01)], [[0.85, -1.8]], eps=0.0, **options)
    after = [[1.0, -2.0], [0.95, -1.9]]
    yield worked((1.0, -2.0), [None, (0.0, 0.0)], after, **options)


def draw_adamw(draw):
    options = draw_adaptive(draw, {"betas": draw(st.sampled_from(BETAS))})
    yield draw_training(draw, options, {"weight_decay": 0.0, "betas": (0.6, 0.9)})


AdamW.cases(25)(draw_adamw)
AdamW.edge(lambda: adam_edges("AdamW"))
AdamW.contract(bounded_memory(2))


DECAYS_AT_FIRST_RATE = (
    "Your decay takes lr from the constructor, where the rest of the step reads the group's. A group may "
    "have a rate of its own, and a schedule changes it: the factor is 1 − group['lr']·weight_decay."
)
SHRINK = 'p.mul_(1 - lr * group["weight_decay"])'

slips_of_adam(AdamW)
slips_of_the_root(AdamW, "v_hat")
slips_of_a_loop(AdamW, STEPPED)
AdamW.mistake(
    "You add the decay to the gradient: that is Adam with L2. The averages then divide it by √v̂, so "
    "weights with large gradients are hardly decayed at all. Shrink the parameter instead.",
    replace(SHRINK, DECAY),
)
AdamW.mistake(
    "Your decay is not multiplied by lr: each step takes weight_decay of the weight away, whatever the "
    "rate, and a schedule does not reach it. The factor is 1 − lr·weight_decay.",
    replace("1 - lr * group", "1 - group"),
)
AdamW.mistake(DECAYS_AT_FIRST_RATE, replace("1 - lr * group", '1 - self.defaults["lr"] * group'))
AdamW.mistake(
    "You decay after Adam's step, so a part of the step is decayed as well. torch shrinks the "
    "parameter first.",
    replace(SHRINK, "", STEPPED, f"{STEPPED}\n                {SHRINK}"),
)
AdamW.mistake(
    "You decay parameters that have no gradient. What took no part in this step is left alone: frozen "
    "layers would fade away.",
    replace(SHRINK, "", SKIP, f"{SHRINK}\n                {SKIP}"),
)
AdamW.mistake("weight_decay makes no difference in your code.", replace(SHRINK, ""))
UPHILL_RATE = '1 - (-lr if group["maximize"] else lr) * group'
AdamW.mistake(DECAY_UPHILL, replace("1 - lr * group", UPHILL_RATE))
AdamW.mistake(
    "Your decay has the wrong sign: weights grow by lr·weight_decay at every step.",
    replace("1 - lr * group", "1 + lr * group"),
)


@AdamW.alternative("on top of Adam's own step, with the decay taken out of its way")
class _(optimizers.Adam):
    defaults = {**optimizers.Adam.defaults, "weight_decay": 1e-2}

    @torch.no_grad()
    def step(self):
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p -= group["lr"] * group["weight_decay"] * p
            group["weight_decay"] = 0.0
        super().step()
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay


# ------------------------------------------------------------------------------ ForeachAdamW

ForeachAdamW = Exercise(
    optimizers.ForeachAdamW,
    title="One kernel for all parameters",
    difficulty=3,
    minutes=30,
    points=5,
    probe=probes.optimizer,
    stand_in="torch.optim.AdamW",
    hints=(
        "First collect, in plain Python: the parameters that have a gradient, their gradients, their m "
        "and v. Then write Adam's lines, each with `torch._foreach_…_` on these lists.",
        (
            "edge cases",
            "A list may be empty: no parameter of a group has a gradient. The `_foreach` functions refuse "
            "an empty list.",
        ),
        "The counts are tensors too: `torch._foreach_add_(steps, 1)`, and `.item()` of each to compute with. "
        "Parameters may have taken different numbers of steps. `_foreach_div_(tensors, numbers)` and "
        "`_foreach_addcdiv_(params, ms, roots, numbers)` take a list of numbers, one for each.",
        (
            "contracts",
            "Does any torch operation stand inside a Python loop over the parameters? Making the state once, "
            "at the first step, is allowed.",
        ),
    ),
)


@ForeachAdamW.by_hand
def _():
    case = training(
        [line(1.0, -2.0), line(3.0)],
        [[line(2.0, -0.01), line(-5.0)]],
        {"lr": 0.1, "eps": 0.0, "weight_decay": 0.5},
    )
    after = torch.tensor([[0.85, -1.8]]), torch.tensor([[2.95]])
    yield case, {f"parameter {i} after each step": values for i, values in enumerate(after)}


ForeachAdamW.cases(25)(draw_adamw)


@ForeachAdamW.edge
def _():
    yield from adam_edges("AdamW")
    idle = training(
        [line(1.0, 2.0), line(3.0)],
        [[None, line(1.0)], [line(0.5, -1.0), None]],
        {"lr": 0.1, "maximize": True},
        groups=[{"params": [0]}, {"params": [1], "weight_decay": 0.5}],
    )
    yield idle, "a group in which no parameter has a gradient"
    yield crowd(101, {"lr": 0.1}), "a hundred parameters"


ForeachAdamW.contract(
    contracts.kernels(
        [many(100)],
        limit=40,
        says="each operation runs once for all parameters, however many there are",
        prepare=prepared.third_optimizer_step,
    )
)


FOREACH_DECAY = 'torch._foreach_mul_(params, 1 - lr * group["weight_decay"])'
ROOTS_CORRECTED = "torch._foreach_div_(roots, [sqrt(1 - beta2**t) for t in ts])"
EPS_ADDED = 'torch._foreach_add_(roots, group["eps"])'
AGES = "[step.item() for step in steps]"

ForeachAdamW.mistake(
    "You correct all parameters by the first one's count of steps. One that had no gradient for a while "
    "is younger: pass a list of numbers.",
    replace(AGES, "[steps[0].item()] * len(steps)"),
)
ForeachAdamW.mistake(
    "`self.t` counts steps once for all parameters. One that had no gradient has taken fewer; and "
    "after a resume the count begins afresh. Keep t in `self.state[p]`, and pass a list of numbers.",
    replace(*WITH_T, GROUPS, "self.t += 1\n        " + GROUPS, AGES, "[self.t] * len(steps)"),
)
ForeachAdamW.mistake(
    "You hand over an empty list where no parameter of a group has a gradient, and torch refuses it: "
    "go on to the next group.",
    replace("if not params:\n                continue\n            ", ""),
)
ForeachAdamW.mistake(
    "Your list of gradients contains None: leave out the parameters that have none, from every list.",
    replace(" if p.grad is not None]", "]"),
)
ForeachAdamW.mistake(
    SKIPS_ZEROS, replace("p.grad is not None]", "p.grad is not None and p.grad.any()]")
)
ForeachAdamW.mistake(
    COUNTS_IN_INTS,
    replace(
        "torch.tensor(0.0)",
        "0",
        "torch._foreach_add_(steps, 1)",
        'for state in states:\n                state["step"] += 1',
        AGES,
        '[state["step"] for state in states]',
    ),
)
ForeachAdamW.mistake(
    COUNTS_OTHERWISE,
    replace(
        "torch.tensor(0.0)",
        "0",
        "torch._foreach_add_(steps, 1)",
        'for state in states:\n                state["step"] += 1',
        AGES,
        '[float(state["step"]) for state in states]',
    ),
)
ForeachAdamW.mistake(
    OWN_NAMES,
    replace('state["exp_avg"] =', 'state["m"] =', 'ms = [state["exp_avg"]', 'ms = [state["m"]'),
)
ForeachAdamW.mistake(
    "You turn the gradients' sign in place. With `maximize`, whoever looks at `p.grad` after the step sees it "
    "negated: use `_foreach_neg`, without the underscore.",
    replace("grads = list(torch._foreach_neg(grads))", "torch._foreach_neg_(grads)"),
)
ForeachAdamW.mistake(NEVER_MAXIMIZED, replace("grads = list(torch._foreach_neg(grads))", "pass"))
slips_with_options(ForeachAdamW)
ForeachAdamW.mistake(UPHILL, replace("-lr /", "lr /"))
ForeachAdamW.mistake(
    "You add the decay to the gradients: that is Adam with L2. Multiply the parameters instead.",
    replace(
        FOREACH_DECAY, 'grads = torch._foreach_add(grads, params, alpha=group["weight_decay"])'
    ),
)
ForeachAdamW.mistake(
    DECAYS_AT_FIRST_RATE, replace("1 - lr * group", '1 - self.defaults["lr"] * group')
)
ForeachAdamW.mistake(DECAY_UPHILL, replace("1 - lr * group", UPHILL_RATE))
ForeachAdamW.mistake(FURTHER_OPTIONS, replace(GROUPS, HANDED_ON))
ForeachAdamW.mistake(EVERY_DEFAULT, replace(GROUPS, LOOKED_UP))
ForeachAdamW.mistake(
    "Your lists go on from group to group, so parameters of an earlier group are updated again with each "
    "later one. Begin new lists for every group.",
    replace(GROUPS, f"params = []\n        {GROUPS}", "params = [p for p", "params += [p for p"),
)
EVERY_DECAY = FOREACH_DECAY.replace("params,", 'group["params"],')
ACTIVE = "params = [p for"
DECAYS_IDLE = (
    "You decay parameters that have no gradient. What took no part in this step is left alone: frozen "
    "layers would fade away."
)
ForeachAdamW.mistake(DECAYS_IDLE, replace(FOREACH_DECAY, EVERY_DECAY))
ForeachAdamW.mistake(
    DECAYS_IDLE, replace(FOREACH_DECAY, "", ACTIVE, f"{EVERY_DECAY}\n            {ACTIVE}")
)
ForeachAdamW.mistake("weight_decay makes no difference in your code.", replace(FOREACH_DECAY, ""))
ForeachAdamW.mistake(
    NO_CORRECTION, replace(ROOTS_CORRECTED, "", "[-lr / (1 - beta1**t) for t in ts]", "-lr")
)
ForeachAdamW.mistake(
    "You divide √v by 1 − β₂ᵗ. It is v that is corrected; its root is divided by √(1 − β₂ᵗ).",
    replace("sqrt(1 - beta2**t)", "1 - beta2**t"),
)
ForeachAdamW.mistake(
    "You add eps before you divide by √(1 − β₂ᵗ), so it is divided too. Correct first, add eps last.",
    replace(
        f"{ROOTS_CORRECTED}\n            {EPS_ADDED}", f"{EPS_ADDED}\n            {ROOTS_CORRECTED}"
    ),
)
ForeachAdamW.mistake(
    "You leave eps out, or add it to lists that you drop: `_foreach_add` without the underscore at the "
    "end returns new tensors and leaves the old ones as they are.",
    replace(EPS_ADDED, ""),
)
ForeachAdamW.mistake(
    "You take the root of v in place, so the next step goes on from the root: `_foreach_sqrt`, without "
    "the underscore at the end, makes new tensors.",
    replace(
        "roots = torch._foreach_sqrt(vs)", "roots = vs\n            torch._foreach_sqrt_(roots)"
    ),
)
ForeachAdamW.mistake(
    "The values are right. But you go from parameter to parameter: for a model of 148 tensors that is "
    "148 times as many kernels, most of them tiny. Give each operation the whole list, the counts of "
    "steps too: `torch._foreach_add_(steps, 1)`.",
    cost=True,
)(optimizers.AdamW)
ALONE = {
    "one operation still runs": (),
    "two operations still run": (
        FOREACH_DECAY,
        '[p.mul_(1 - lr * group["weight_decay"]) for p in params]',
    ),
}
for still, decay in ALONE.items():
    ForeachAdamW.mistake(
        f"The values are right. But {still} for each parameter by itself: look in your loops, where lists are filled, "
        "parameters decayed or counts raised. `torch._foreach_add_(steps, 1)` raises all counts of steps at once.",
        replace("torch._foreach_add_(steps, 1)", "[step.add_(1) for step in steps]", *decay),
        cost=True,
    )


@ForeachAdamW.alternative("corrections folded into the learning rate and eps")
class _(optimizers.ForeachAdamW):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            kept, sign = [self.state[p] for p in params], -1 if group["maximize"] else 1
            for p, state in zip(params, kept, strict=True):
                if "exp_avg" not in state:
                    state["step"] = torch.zeros(1).squeeze()
                    state.update(exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
            t, m, v = ([state[key] for state in kept] for key in ("step", "exp_avg", "exp_avg_sq"))
            torch._foreach_add_(t, torch.ones(()))
            t = [int(n) for n in t]
            b1, b2 = group["betas"]
            grads = torch._foreach_mul([p.grad for p in params], sign)
            torch._foreach_mul_(m, b1)
            torch._foreach_add_(m, torch._foreach_mul(grads, 1 - b1))
            torch._foreach_mul_(v, b2)
            torch._foreach_addcmul_(v, grads, grads, value=1 - b2)
            scales = [sqrt(1 - b2**n) for n in t]
            roots = list(torch._foreach_sqrt(v))
            torch._foreach_add_(roots, [group["eps"] * scale for scale in scales])
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            sizes = [-group["lr"] * scale / (1 - b1**n) for scale, n in zip(scales, t, strict=True)]
            torch._foreach_addcdiv_(params, m, roots, sizes)


for mutant in (
    "`zip(params, states, strict=True)` → `zip(params, states)`",
    "`strict=True` → `strict=False`",
):
    ForeachAdamW.equivalent(
        f"ForeachAdamW.step: {mutant}",
        because="states is made with one entry for each of params, so the lengths never differ; the flag only guards against a slip",
    )


# ------------------------------------------------------------------------------ newton_schulz


def amplified(case):
    """Each iteration multiplies the rounding errors in the smallest singular values by 3.4445."""
    steps = case.args[1] if len(case.args) > 1 else 5
    return round(3.4445 ** (2 * steps)) + 64


newton_schulz = Exercise(
    optimizers.newton_schulz,
    title="Singular values towards one",
    difficulty=2,
    minutes=15,
    points=3,
    length=amplified,
    hints=(
        "(x xᵀ) x has the singular vectors of x and the cubes of its singular values. Which polynomial of "
        "one number does one iteration apply to each of them?",
        "With A = x xᵀ it is one line: x ← a·x + (b·A + c·A @ A) @ x.",
        (
            "contracts",
            "For a tall matrix x xᵀ is the larger product: work on x.T and turn it back.",
        ),
    ),
)


@newton_schulz.by_hand
def _():
    # one singular value s = 1 after the division: a + b + c = 3.4445 - 4.7750 + 2.0315 = 0.701
    yield call(torch.tensor([[3.0, 4.0]]), 1), torch.tensor([[0.6, 0.8]]) * 0.701
    # s = 1/sqrt(2) twice: s·(a + b/2 + c/4) = s·1.564875
    yield call(torch.eye(2), 1), torch.eye(2) * 1.564875 / sqrt(2)


@newton_schulz.cases(15)
def _(draw):
    shape = draw(draws.distinct_sizes(2, low=1, high=6))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    yield call(draw(draws.tensors(shape, dtype)), draw(st.integers(1, 6)))


@newton_schulz.edge
def _():
    x = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    yield call(x), "five steps by default"
    yield call(torch.zeros(2, 3)), "a matrix of zeros"
    yield call(1e-9 * x, 3, 1e-3), "a norm below eps"
    yield call(x, 0), "no iteration: only the division"
    yield call(x.T, 2), "tall, and not contiguous"
    yield call(torch.eye(3, dtype=torch.float64), 3), "square"
    yield call(x.bfloat16(), 1), "bfloat16, as Muon calls it"
    yield call(x.half().T, 1), "float16, tall"


TALL = call(torch.randn(512, 4, generator=torch.Generator().manual_seed(0)))
newton_schulz.contract(
    contracts.largest_tensor(
        [TALL],
        limit=lambda case: case.args[0].numel() * case.args[0].element_size(),
        says="x xᵀ of the smaller size: no tensor larger than x",
    )
)


newton_schulz.mistake(
    "You forgot to turn a tall matrix back: the result must have the shape of x.",
    replace("return x.T if tall else x", "return x"),
)
newton_schulz.mistake(
    "You do not divide by the norm first. The polynomial pulls towards 1 only what starts between 0 and "
    "about 1.2; larger singular values run away.",
    replace("x / x.norm().clamp(min=eps)", "x"),
)
newton_schulz.mistake(
    "You divide by the largest singular value. That bounds them too, but it costs an SVD. Muon divides "
    "by the Frobenius norm, which is never smaller.",
    replace("x.norm()", "torch.linalg.matrix_norm(x, 2)"),
)
newton_schulz.mistake(
    "You divide the caller's matrix in place. It is a gradient or a momentum buffer, which somebody still needs: "
    "`x / norm` makes a new one.",
    replace("x = x / x.norm()", "x /= x.norm()"),
)
newton_schulz.mistake(
    "You divide each row by its own norm. One number divides the whole matrix, its Frobenius norm; else "
    "the singular vectors change.",
    replace("x.norm()", "x.norm(dim=1, keepdim=True)"),
)
newton_schulz.mistake(
    "You use the classic coefficients 1.5, −0.5: they converge to 1 exactly, and slowly. Muon's three "
    "are steeper at 0 and only come near 1.",
    replace("3.4445, -4.7750, 2.0315", "1.5, -0.5, 0.0"),
)
newton_schulz.mistake(
    "You compute U Vᵀ exactly, by an SVD. That is what the iteration approaches, not what it gives, and "
    "the SVD is what it is there to avoid.",
    replace(
        "return x.T if tall else x",
        "u, _, vt = torch.linalg.svd(x.T if tall else x, full_matrices=False)\n    return u @ vt",
        "range(steps)",
        "range(0)",
    ),
)
newton_schulz.mistake("You do one iteration too many.", replace("range(steps)", "range(steps + 1)"))
newton_schulz.mistake("You do one iteration too few.", replace("range(steps)", "range(steps - 1)"))
newton_schulz.mistake(
    "You compute x xᵀ once, before the loop. x changes in every iteration, and x xᵀ with it.",
    replace(
        "for _ in range(steps):\n        gram = x @ x.T\n",
        "gram = x @ x.T\n    for _ in range(steps):\n",
    ),
)
newton_schulz.mistake(
    "You square x xᵀ element by element. (x xᵀ)² is a matrix product: `gram @ gram`.",
    replace("torch.addmm(gram, gram, gram, beta=b, alpha=c)", "b * gram + c * gram * gram"),
)
IN_BFLOAT16 = replace(
    "x = x.T if tall else x",
    "dtype, x = x.dtype, (x.T if tall else x).bfloat16()",
    "return x.T if tall else x",
    "return (x.T if tall else x).to(dtype)",
)
ONE_LINE = "x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)"
IN_BFLOAT16_ONCE_DIVIDED = replace(
    "x = x / x.norm().clamp(min=eps)",
    "dtype, x = x.dtype, (x / x.norm().clamp(min=eps)).bfloat16()",
    "return x.T if tall else x",
    "return (x.T if tall else x).to(dtype)",
)
RETURNED_IN_BFLOAT16 = replace("x = x.T if tall else x", "x = (x.T if tall else x).bfloat16()")
for rounded in (IN_BFLOAT16, IN_BFLOAT16_ONCE_DIVIDED, RETURNED_IN_BFLOAT16):
    for line_by_line in (
        ONE_LINE,
        "x = a * x + (b * gram + c * gram @ gram) @ x",
        "x = a * x + (b * gram + c * (gram @ gram)) @ x",
    ):
        newton_schulz.mistake(
            "You iterate in bfloat16, as Muon's own code does. Here the dtype is that of x throughout: "
            "the optimizer chooses it.",
            rounded + replace(ONE_LINE, line_by_line),
        )
newton_schulz.mistake(
    "You add eps to the norm. It is a lower bound, `norm().clamp(min=eps)`: it changes nothing unless "
    "the matrix is nearly zero.",
    replace("x.norm().clamp(min=eps)", "(x.norm() + eps)"),
)
newton_schulz.mistake(
    "You leave eps out: a gradient of zeros is divided by zero, and the weights become NaN.",
    replace(".clamp(min=eps)", ""),
)
newton_schulz.mistake(
    "The values are right. But for a tall matrix x xᵀ is n × n: for a layer of 3072 × 768 it is sixteen "
    "times as large as the other product, and the iteration takes ten times the work. Transpose first.",
    replace("x.size(0) > x.size(1)", "False"),
    cost=True,
)


@newton_schulz.alternative("with xᵀ x on the other side for tall matrices")
def _(x, steps=5, eps=1e-7):
    x = x / torch.clamp(torch.linalg.norm(x), min=eps)
    for _ in range(steps):
        if x.shape[0] > x.shape[1]:
            a = x.mT @ x
            x = 3.4445 * x + x @ (-4.7750 * a + 2.0315 * (a @ a))
        else:
            a = x @ x.mT
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x


newton_schulz.equivalent(
    "newton_schulz: `x.size(0) > x.size(1)` → `x.size(0) >= x.size(1)`",
    because="only a square matrix is treated otherwise, and for it p(x xᵀ) x transposed is p(xᵀ x) xᵀ: the same polynomial of the same singular values",
)


# ------------------------------------------------------------------------------ decay_groups

decay_groups = Exercise(
    optimizers.decay_groups,
    title="What decays and what does not",
    difficulty=1,
    minutes=10,
    points=2,
    probe=probes.parameter_groups,
    hints=(
        "How many axes has a weight matrix? And a bias, or the gain of a norm?",
        "`model.parameters()` gives a tied parameter once. `p.requires_grad` says whether it is trained.",
        "Two list comprehensions: `p.ndim >= 2`, and the rest with `weight_decay` 0.0.",
    ),
)


@decay_groups.by_hand
def _():
    linear = {
        "groups": 2,
        "parameters of group 1": ("weight",),
        "options of group 1": {"weight_decay": 0.1},
        "parameters of group 2": ("bias",),
        "options of group 2": {"weight_decay": 0.0},
    }
    yield call("Linear(3, 2)", 0.1), linear
    three = {
        "parameters of group 1": ("0.weight", "2.weight"),
        "parameters of group 2": ("1.bias", "1.weight", "2.bias"),
    }
    yield call("Embedding, LayerNorm, Linear", 0.2), three


@decay_groups.edge
def _():
    thin = "Linear(3, 1), Linear(1, 2), Linear(1, 1), Embedding(1, 4), Conv1d(1, 1, 1)"
    for model, why in (
        ("Embedding, LayerNorm, Linear tied to the embedding", "a tied weight"),
        ("frozen Embedding, Linear, LayerNorm with frozen bias, Linear", "frozen parameters"),
        ("Conv1d, BatchNorm1d, Linear", "weights with three axes"),
        (thin, "a matrix with one row, or one column, is a matrix"),
        ("Linear, LayerNorm, Linear on the meta device", "parameters without memory"),
        ("LayerNorm", "no matrix at all: the first group is empty"),
        ("Linear without bias", "only matrices: the second group is empty"),
        ("Linear, a scalar, a vector `weight`, a matrix `relative_bias`", "names that mislead"),
    ):
        yield call(model, 0.1), why
    yield call("TransformerEncoderLayer", 0.0), "weight decay 0 in both"


MATRICES, VECTORS = "p.ndim >= 2", "p.ndim < 2"
TRAINABLE = "[p for p in model.parameters() if p.requires_grad]"
NAMED = "{p: name for name, p in model.named_parameters() if p.requires_grad}"

for spared in ('"bias" in params[p]', 'any(part in params[p] for part in ("bias", "norm"))'):
    decay_groups.mistake(
        "You go by the name. A norm's gain is called weight and must not decay, whatever its module is called; a "
        "table called bias has two axes and should. Count axes.",
        replace(TRAINABLE, NAMED, MATRICES, f"not {spared}", VECTORS, spared),
    )
decay_groups.mistake(
    "You go by the kind of layer, norm or not, and the name of a bias. A gain in no norm of torch's must not decay "
    "either, and a table called bias has two axes and should. Count axes.",
    replace(
        "params = [",
        "norms = (nn.LayerNorm, nn.BatchNorm1d)\n"
        "    gains = {p for m in model.modules() if isinstance(m, norms) for p in m.parameters()}\n"
        "    gains |= {p for name, p in model.named_parameters() if name.endswith('bias')}\n"
        "    params = [",
        *(MATRICES, "p not in gains", VECTORS, "p in gains"),
    ),
)
decay_groups.mistake(
    "You go by the name. A norm's gain is called weight and must not decay; a matrix may have another "
    "name, and should. Count axes.",
    replace(
        TRAINABLE, NAMED, MATRICES, '"weight" in params[p]', VECTORS, '"weight" not in params[p]'
    ),
)
decay_groups.mistake(
    "Frozen parameters (requires_grad False) do not belong in an optimizer: leave them out.",
    replace(" if p.requires_grad", ""),
)
decay_groups.mistake(
    "A tied weight comes twice in your groups, once for each module that holds it. Ask the model for its "
    "parameters, not module after module.",
    replace("p in model.parameters()", "m in model.modules() for p in m.parameters(recurse=False)"),
)
decay_groups.mistake(
    "You have the groups the wrong way round: matrices decay, vectors do not.",
    replace(MATRICES, f"not {MATRICES}", VECTORS, f"not {VECTORS}"),
)
decay_groups.mistake(
    "Only the weights of Linear layers decay in your groups. Embeddings and convolutions are matrices "
    "too, or more.",
    replace(
        "params = [",
        "linear = {m.weight for m in model.modules() if isinstance(m, nn.Linear)}\n    params = [",
        MATRICES,
        "p in linear",
        VECTORS,
        "p not in linear",
    ),
)
decay_groups.mistake(
    "Embeddings do not decay in your groups. A table of embeddings has two axes, so it belongs to the "
    "matrices: count axes, whatever layer they are in.",
    replace(
        "params = [",
        "tables = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}\n    params = [",
        MATRICES,
        f"{MATRICES} and p not in tables",
        VECTORS,
        f"{VECTORS} or p in tables",
    ),
)
decay_groups.mistake(
    "Your second group has no weight_decay of its own, so it takes the optimizer's: 0.01 in AdamW. Write "
    "the 0 down.",
    replace(', "weight_decay": 0.0', ""),
)
decay_groups.mistake(
    "Both of your groups have the same weight_decay. That of vectors and scalars is 0.",
    replace("0.0", "weight_decay"),
)
decay_groups.mistake(
    "Exactly two axes is too narrow: the kernels of a convolution have three or more, and decay as well.",
    replace(MATRICES, "p.ndim == 2", VECTORS, "p.ndim != 2"),
)
decay_groups.mistake(
    "You treat a matrix with one row or one column as a vector. It has two axes, so it decays: count "
    "axes, `p.ndim`, whatever their sizes.",
    replace(MATRICES, "p.squeeze().ndim >= 2", VECTORS, "p.squeeze().ndim < 2"),
)
decay_groups.mistake(
    "Vectors decay in your groups. Only parameters with two axes or more decay.",
    replace(MATRICES, "p.ndim >= 1", VECTORS, "p.ndim < 1"),
)
decay_groups.mistake(
    "You leave a group out when it is empty. Two groups are due, whatever the model: the code that "
    "builds an optimizer counts on them.",
    replace(
        "return [",
        "groups = [",
        "0.0},\n    ]",
        '0.0},\n    ]\n    return [g for g in groups if g["params"]]',
    ),
)


@decay_groups.alternative("one loop over the named parameters")
def _(model, weight_decay):
    decay, rest = [], []
    for _, p in model.named_parameters():
        if not p.requires_grad:
            continue
        (decay if p.dim() > 1 else rest).append(p)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


# ------------------------------------------------------------------------------ state bytes

optimizer_state_bytes = Exercise(
    optimizers.optimizer_state_bytes,
    title="What an optimizer holds",
    difficulty=2,
    minutes=15,
    points=2,
    probe=probes.state_bytes,
    hints=(
        "`optimizer.state` is a dict from parameter to a dict of what is kept for it. Which of those values "
        "are tensors?",
        "A value may be a list or a dict with tensors inside: write a recursive generator of tensors.",
        "Bytes belong to storages: `t.untyped_storage()` has `data_ptr()` and `nbytes()`. Collect them in a "
        "dict, so that each counts once.",
    ),
)

TWO = ((3, 4), (5,))


def held(name, options=None, shapes=TWO, dtype=torch.float32, unused=0, steps=1):
    return call(name, options or {}, shapes, dtype, unused, steps)


@optimizer_state_bytes.by_hand
def _():
    yield held("SGD", {"lr": 0.1}), 0
    yield held("SGD", {"lr": 0.1, "momentum": 0.9}), 17 * 4
    yield held("AdamW"), 2 * 17 * 4 + 2 * 4  # and torch's two counts of steps, a float32 each
    yield held("AdamW", dtype=torch.float64), 2 * 17 * 8 + 2 * 4


@optimizer_state_bytes.edge
def _():
    yield held("AdamW", steps=0), "nothing is kept before the first step"
    yield held("AdamW", unused=1), "a parameter without gradient has no state"
    yield held("AdamW", dtype=torch.bfloat16), "two bytes an element"
    yield held("Adagrad"), "state from the beginning"
    yield held("Adam", {"amsgrad": True}), "three tensors for each parameter"
    yield held("LBFGS", {"max_iter": 3}, steps=2), "lists of tensors"
    yield held("FlatMomentum"), "one buffer, and views of it"
    yield held("FlatMomentum", shapes=((4, 4), (3,), (2, 2, 2))), "the same with three parameters"
    yield held("Factored"), "a dict in the state, and one count for all parameters"
    yield held("Paired"), "a tuple of tensors"
    yield held("Nested"), "a list within a dict"
    yield held("Mixed"), "dicts, lists and tuples, one inside the other"
    yield held("Flattened"), "a buffer and a view of all of it"
    yield held("Quantized"), "bytes, a mask, integers; and what belongs to no parameter"
    yield held("Windowed"), "views of a part of a buffer: all of it is held"


ALL = "_tensors(list(optimizer.state.values()))"
ADDED = "storages[storage.data_ptr()] = storage.nbytes()"

optimizer_state_bytes.mistake(
    "You count elements. An element of float32 has 4 bytes, one of bfloat16 2: `element_size()` knows.",
    replace(ADDED, "storages[len(storages)] = tensor.numel()"),
)
optimizer_state_bytes.mistake(
    "You take 4 bytes for every element, whatever the dtype.",
    replace("storage.nbytes()", "4 * storage.nbytes() // tensor.element_size()"),
)
optimizer_state_bytes.mistake(
    "You only look at values that are tensors themselves. LBFGS keeps lists of them, others a dict: go into "
    "those too.",
    replace(
        ALL,
        "[t for kept in optimizer.state.values() for t in kept.values() if isinstance(t, Tensor)]",
    ),
)
ONE_DEEP = (
    "(value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) "
    "else [value])"
)
optimizer_state_bytes.mistake(
    "You go into the lists and dicts of a parameter's state, and no deeper. One may hold another, at "
    "any depth: let the function that opens one call itself for what is inside.",
    replace(
        ALL,
        f"[t for kept in optimizer.state.values() for value in kept.values() for t in {ONE_DEEP} "
        "if isinstance(t, Tensor)]",
    ),
)


def opening(kinds):
    """The search for tensors that opens these kinds only."""
    found = f"""def inside(tree):
        if isinstance(tree, Tensor):
            yield tree
        elif isinstance(tree, {kinds}):
            for item in tree.values() if isinstance(tree, dict) else tree:
                yield from inside(item)

    storages = {{}}"""
    return replace("storages = {}", found, ALL, "inside(dict(optimizer.state))")


optimizer_state_bytes.mistake(
    "You open lists, but no dicts within a parameter's state: tensors may sit there as well.",
    opening("list | tuple")
    + replace(
        "dict(optimizer.state)", "[list(kept.values()) for kept in optimizer.state.values()]"
    ),
)
optimizer_state_bytes.mistake(
    "You open dicts and lists, but no tuples: tensors may sit there as well.",
    opening("dict | list"),
)
optimizer_state_bytes.mistake(
    "You open dicts only. LBFGS keeps lists of tensors, others tuples: go into those too.",
    opening("dict"),
)
optimizer_state_bytes.mistake(
    "You look up the state of each parameter. `optimizer.state` may keep more, under keys that are no "
    "parameter: go through all its values.",
    replace(
        ALL,
        "_tensors([optimizer.state.get(p) for g in optimizer.param_groups for p in g['params']])",
    ),
)
optimizer_state_bytes.mistake(
    "You count tensors of floats only. Counts of steps, masks and bytes of quantized averages are memory "
    "as well.",
    replace(ALL, f"[t for t in {ALL} if t.is_floating_point()]"),
)
optimizer_state_bytes.mistake(
    "You count the bytes that a tensor shows. Where it is a view of a part, all of the storage behind it is "
    "held: `untyped_storage().nbytes()`.",
    replace(ADDED, "storages[tensor.data_ptr()] = tensor.numel() * tensor.element_size()"),
)
for shown in (
    "storages.setdefault(storage.data_ptr(), tensor.numel() * tensor.element_size())",
    "storages[storage.data_ptr()] = tensor.numel() * tensor.element_size()",
):
    optimizer_state_bytes.mistake(
        "You count each storage once, but only the bytes that one of its views shows. All of it is held: "
        "`untyped_storage().nbytes()`.",
        replace(ADDED, shown),
    )
optimizer_state_bytes.mistake(
    "You count a storage once for every tensor that views it. One flat buffer with a view for each "
    "parameter is there once.",
    replace(ADDED, "storages[len(storages)] = storage.nbytes()"),
)
for told_apart in ("id(tensor)", "tensor.data_ptr()"):
    optimizer_state_bytes.mistake(
        "You tell tensors apart, not the storages behind them: two views of one storage count it twice. "
        "The address of a storage is `untyped_storage().data_ptr()`, wherever a view begins.",
        replace("storages[storage.data_ptr()]", f"storages[{told_apart}]"),
    )
EACH = "for tensor in " + ALL
optimizer_state_bytes.mistake(
    "You tell storages apart within the state of one parameter only. One that two parameters share counts in both: "
    "keep one dict, or set, of storages for all.",
    replace(
        EACH,
        "for number, tensor in [(i, t) for i, kept in enumerate(optimizer.state.values()) "
        "for t in _tensors(kept)]",
        "storages[storage.data_ptr()]",
        "storages[number, storage.data_ptr()]",
    ),
)
optimizer_state_bytes.mistake(
    "You count a tensor that several parameters share once for each of them; it is there once.",
    replace(ADDED, "storages[len(storages)] = tensor.numel() * tensor.element_size()"),
)
optimizer_state_bytes.mistake(
    "You count the parameters too. They are the keys of `optimizer.state`, not part of what it keeps.",
    replace("list(optimizer.state.values())", "[optimizer.param_groups, dict(optimizer.state)]"),
)
optimizer_state_bytes.mistake(
    "You estimate from the parameters, two tensors for each, and do not look at what is there: SGD keeps "
    "none, and a parameter without gradient has no state."
)(
    lambda optimizer: sum(
        2 * p.numel() * p.element_size() + 4 for g in optimizer.param_groups for p in g["params"]
    )
)


@optimizer_state_bytes.alternative("a stack in place of recursion, and a set of storages")
def _(optimizer):
    stack, seen, total = list(optimizer.state.values()), set(), 0
    while stack:
        item = stack.pop()
        if torch.is_tensor(item):
            storage = item.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.size()
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
    return total


optimizer_state_bytes.equivalent(
    "optimizer_state_bytes: `storages[storage.data_ptr()]` → `storages[storage]`",
    because="torch hands out one Python object for a storage as long as that lives, and the dict keeps it alive: the keys fall together for the same tensors",
)


# ------------------------------------------------------------------------------ Muon

Muon = Exercise(
    optimizers.Muon,
    title="An optimizer for matrices",
    difficulty=2,
    minutes=20,
    points=3,
    probe=probes.optimizer,
    hints=(
        "It is SGD with momentum, but for three things: the buffer is an average, what is stepped along "
        "goes through `newton_schulz`, and the step is longer for a tall matrix.",
        "`buffer.lerp_(grad, 1 - momentum)` is the average. Nesterov mixes once more: "
        "`grad.lerp(buffer, momentum)`, out of place.",
        "`newton_schulz(update.to(group['dtype']), group['steps'])`; shrink the parameter by the decay; "
        "then step by lr · √max(1, n / m).",
    ),
)


def matrices(*values, dtype=torch.float64):
    return [torch.tensor(rows, dtype=dtype) for rows in values]


EXACT = {"lr": 0.1, "dtype": torch.float64}


@Muon.by_hand
def _():
    # b = g / 2 = (1.5, 2); divided by its norm (0.6, 0.8); one iteration: times 0.701; lr 0.1
    wide = training(
        matrices([[1.0, 1.0]]),
        [matrices([[3.0, 4.0]])],
        {**EXACT, "weight_decay": 0.0, "momentum": 0.5, "nesterov": False, "steps": 1},
    )
    after = torch.tensor([[[0.95794, 0.94392]]], dtype=torch.float64)
    yield wide, {"parameter 0 after each step": after}
    # the same on its end, times √2, after a decay by 1 − 0.1 · 0.5
    tall = training(
        matrices([[1.0], [1.0]]),
        [matrices([[3.0], [4.0]])],
        {**EXACT, "weight_decay": 0.5, "momentum": 0.5, "nesterov": False, "steps": 1},
    )
    moved = [[0.95 - 0.04206 * sqrt(2)], [0.95 - 0.05608 * sqrt(2)]]
    yield tall, {"parameter 0 after each step": torch.tensor([moved], dtype=torch.float64)}
    # the numbers of torch.optim.Muon
    W, *grads = matrices(
        [[1.0, 0.0], [0.0, -1.0], [1.0, 1.0]],
        [[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]],
        [[0.0, 1.0], [1.0, 0.0], [2.0, 0.0]],
        dtype=torch.bfloat16,
    )
    first = [[0.265625, 0.0], [0.0, -1.375], [0.94921875, 0.94921875]]
    second = [[0.279296875, -0.486328125], [-0.1005859375, -1.671875], [0.458984375, 1.1640625]]
    theirs = torch.tensor([first, second], dtype=torch.bfloat16)
    yield training([W], [[g] for g in grads], {"lr": 0.5}), {"parameter 0 after each step": theirs}


@Muon.cases(25)
def _(draw):
    options = {
        **EXACT,
        "weight_decay": draw(st.sampled_from([0.0, 0.5])),
        "momentum": draw(st.sampled_from([0.5, 0.8])),
        "nesterov": draw(st.booleans()),
        "steps": draw(st.integers(1, 4)),
    }
    shapes = draw(
        st.lists(st.sampled_from(((2, 3), (3, 2), (1, 4), (4, 1), (2, 2))), min_size=2, max_size=3)
    )
    params = [draw(draws.tensors(shape, torch.float64)) for shape in shapes]
    missing = draw(st.booleans())

    def gradient(shape):
        absent = missing and draw(st.integers(0, 3)) == 0
        return None if absent else draw(draws.tensors(shape, torch.float64))

    grads = [[gradient(shape) for shape in shapes] for _ in range(draw(st.integers(2, 4)))]
    more = {}
    if draw(st.booleans()):
        second = {"params": [0], "lr": 0.3, "weight_decay": 0.2, "momentum": 0.3, "steps": 2}
        more["groups"] = [{"params": list(range(1, len(shapes)))}, second]
    if draw(st.booleans()):
        more["reload"] = draw(st.integers(2, len(grads)))
    if draw(st.booleans()):
        more["fade"] = 0.5
    yield training(params, grads, options, **more)


@Muon.edge
def _():
    generator = torch.Generator().manual_seed(10)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    a, b, zeros = normal(2, 3), normal(3, 2), torch.zeros(3, 2, dtype=torch.float64)
    options = {**EXACT, "momentum": 0.8}
    gaps = training([a, b], [[None, None], [None, b], [a, None]], options)
    yield gaps, "no gradient at all, then one for one parameter only"
    still = training([a, b], [[a, zeros], [None, b], [a, zeros]], options)
    yield still, "gradients of zeros, at first and later: they are gradients like others"
    for shape in ((8, 2), (2, 8)):
        p, grads = normal(*shape), [[normal(*shape)] for _ in range(3)]
        yield training([p], grads, options), f"a parameter of shape {shape}"
    x = draws.scattered(normal(2, 3))
    yield training([x], [[normal(2, 3)]] * 2, options), "a parameter that is not contiguous"
    low = [torch.ones(2, 2).bfloat16(), torch.ones(2, 1).bfloat16()]
    grads = [[torch.eye(2).bfloat16(), torch.tensor([[3.0], [4.0]]).bfloat16()]]
    yield training(low, grads, {"lr": 0.5}), "bfloat16 weights, all options but lr by default"
    divided = {"lr": 0.5, "momentum": 0.5, "steps": 0, "dtype": torch.bfloat16}
    rounded = training(matrices([[1.0, 1.0]]), [matrices([[3.0, 4.0]])], divided)
    yield rounded, "float64 weights, an iteration in bfloat16, and none of it: only the division"
    yield training([normal(3)], [[normal(3)]], options), "a vector: no matrix"
    yield training([normal(3)], [], options), "a vector, and no step"
    second = [{"params": [0]}, {"params": [1]}]
    later = training([a, normal(3)], [[a, None]], options, groups=second)
    yield later, "a vector in the second group"
    yield training([a, normal(2, 2, 2)], [[a, None]], options), "three axes: no matrix"
    second = {"params": [1], "lr": 0.03, "nesterov": False, "momentum": 0.5, "steps": 2}
    groups = [{"params": [0]}, second]
    grads = [[normal(2, 3), normal(3, 2)] for _ in range(6)]
    yield training([a, b], grads, options, groups=groups, reload=4, fade=0.9), "two groups, saved"


AVERAGED = 'state["momentum_buffer"].lerp_(grad, 1 - momentum)'
LOOKED_AHEAD = 'grad.lerp(buffer, momentum) if group["nesterov"] else buffer'
MADE_ORTHOGONAL = 'newton_schulz(update.to(group["dtype"]), group["steps"])'
TALLER = "sqrt(max(1, p.size(0) / p.size(1)))"

Muon.mistake(UPHILL, replace("alpha=-lr", "alpha=lr"))
Muon.mistake(
    NONE, replace("if p.grad is None:\n                    continue\n                ", "")
)
Muon.mistake(SKIPS_ZEROS, replace("p.grad is None", "p.grad is None or not p.grad.any()"))
Muon.mistake(
    "Your loop ends at the first parameter without gradient. Go on to the next: `continue`.",
    replace("continue", "return"),
)
Muon.mistake(
    "Only the first group takes a step: go through all of `self.param_groups`.",
    replace(
        "for group in self.param_groups:\n            lr",
        "for group in self.param_groups[:1]:\n            lr",
    ),
)
Muon.mistake(
    "You take a missing gradient for zeros, so the average and the decay still move the parameter. "
    "Without gradient it stays as it is.",
    replace(
        "if p.grad is None:\n                    continue\n                grad, state = p.grad, self.state[p]",
        "grad, state = torch.zeros_like(p) if p.grad is None else p.grad, self.state[p]",
    ),
)
Muon.mistake(
    "Your lr is the constructor's. A group may have a rate of its own, and a schedule changes it: read "
    "`group['lr']`.",
    replace('lr, momentum = group["lr"]', 'lr, momentum = self.defaults["lr"]'),
)
Muon.mistake(
    "Your momentum is the constructor's. A group may have its own, and a loaded checkpoint brings it "
    "along: read `group['momentum']`.",
    replace('group["lr"], group["momentum"]', 'group["lr"], self.defaults["momentum"]'),
)
Muon.mistake(
    "Your buffer adds up, momentum·b + g, as SGD's does. Here it averages, (1 − momentum)·g. Without "
    "Nesterov the division by the norm hides the difference; with it, g and b are mixed in other parts.",
    replace(AVERAGED, 'state["momentum_buffer"].mul_(momentum).add_(grad)'),
)
Muon.mistake(
    "Your average weighs the wrong way round: the new gradient gets 1 − momentum.",
    replace("lerp_(grad, 1 - momentum)", "lerp_(grad, momentum)"),
)
Muon.mistake(
    "Your buffer starts as the first gradient. It starts at zero, so that the first gradient counts "
    "1 − momentum.",
    replace(
        'state["momentum_buffer"] = torch.zeros_like(p)', 'state["momentum_buffer"] = grad.clone()'
    ),
)
Muon.mistake(
    "`nesterov` makes no difference in your code: with it, the matrix that is made orthogonal is "
    "(1 − momentum)·g + momentum·b.",
    replace(LOOKED_AHEAD, "buffer"),
)
Muon.mistake(
    "You look ahead whatever `nesterov` says: without it, b itself is made orthogonal.",
    replace(LOOKED_AHEAD, "grad.lerp(buffer, momentum)"),
)
Muon.mistake(
    "With Nesterov you add the whole gradient, g + momentum·b, as SGD does. Muon mixes: "
    "(1 − momentum)·g + momentum·b.",
    replace("grad.lerp(buffer, momentum)", "grad + momentum * buffer"),
)
Muon.mistake(
    "With Nesterov you mix into `p.grad` itself. Whoever looks at the gradient after the step sees "
    "something else: `lerp`, not `lerp_`.",
    replace("grad.lerp(buffer", "grad.lerp_(buffer"),
)
Muon.mistake(
    "With Nesterov you mix into the buffer itself, so the next step's average begins with the wrong "
    "values. Make a new tensor.",
    replace("grad.lerp(buffer, momentum)", "buffer.mul_(momentum).add_(grad, alpha=1 - momentum)"),
)
Muon.mistake(
    "You make the gradient orthogonal and average afterwards. Muon averages first: a mean of orthogonal "
    "matrices is not orthogonal.",
    replace(
        "grad, state = p.grad, self.state[p]",
        'grad = newton_schulz(p.grad.to(group["dtype"]), group["steps"]).to(p.dtype)\n'
        "                state = self.state[p]",
        f"update = {MADE_ORTHOGONAL}\n",
        "\n",
    ),
)
Muon.mistake(
    "The step is along the average itself: it never goes through `newton_schulz`. That is SGD.",
    replace(MADE_ORTHOGONAL, "update"),
)
Muon.mistake(
    "`steps` makes no difference in your code: hand `group['steps']` to `newton_schulz`.",
    replace('group["dtype"]), group["steps"])', 'group["dtype"]))'),
)
Muon.mistake(
    "You iterate in bfloat16 whatever `dtype` says. It is the default only.",
    replace('update.to(group["dtype"])', "update.bfloat16()"),
)
Muon.mistake(
    "You iterate in the parameter's own dtype whatever `dtype` says: `update.to(group['dtype'])`.",
    replace('update.to(group["dtype"])', "update"),
)
Muon.mistake(
    "Your step has no factor √max(1, n / m). All singular values of the update are about 1; a tall matrix "
    "is to step further.",
    replace(f" * {TALLER}", ""),
)
Muon.mistake(
    "Your factor takes m / n. It is the tall matrix, more rows than columns, whose step is longer: n / m.",
    replace("p.size(0) / p.size(1)", "p.size(1) / p.size(0)"),
)
Muon.mistake(
    "Your factor shortens the steps of wide matrices too: it is never below 1, √max(1, n / m).",
    replace("max(1, p.size(0) / p.size(1))", "p.size(0) / p.size(1)"),
)
Muon.mistake(
    "The root is missing: the factor is √max(1, n / m).",
    replace(TALLER, "max(1, p.size(0) / p.size(1))"),
)
Muon.mistake(
    "Your factor is 0.2·√max(n, m). That is the variant of Liu et al. (2025), which matches the size of AdamW's "
    "steps; here it is √max(1, n / m).",
    replace(TALLER, "0.2 * sqrt(max(p.shape))"),
)
Muon.mistake(
    "You add the decay to the gradient, where the iteration makes it orthogonal with the rest. It is "
    "decoupled: shrink the parameter itself.",
    replace(
        "grad, state = p.grad, self.state[p]",
        'grad, state = p.grad.add(p, alpha=group["weight_decay"]), self.state[p]',
        'p.mul_(1 - lr * group["weight_decay"])\n',
        "\n",
    ),
)
Muon.mistake(
    "Your decay is not multiplied by lr: the factor is 1 − lr·weight_decay.",
    replace("1 - lr * group", "1 - group"),
)
Muon.mistake(
    "Your decay has the factor √max(1, n / m), too. That belongs to the step alone: the parameter shrinks by "
    "1 − lr·weight_decay.",
    replace("1 - lr * group", f"1 - lr * {TALLER} * group"),
)
Muon.mistake(
    "weight_decay makes no difference in your code.",
    replace('p.mul_(1 - lr * group["weight_decay"])\n', "\n"),
)
Muon.mistake(
    "You decay after the step, so a part of the step is decayed as well. Shrink the parameter first.",
    replace(
        'p.mul_(1 - lr * group["weight_decay"])\n',
        "\n",
        f"p.add_(update, alpha=-lr * {TALLER})",
        f'p.add_(update, alpha=-lr * {TALLER})\n                p.mul_(1 - lr * group["weight_decay"])',
    ),
)
Muon.mistake(
    "You bind `p.data` to a new tensor, so the parameter leaves the memory that others (a view, a "
    "bucket of DDP) hold on to. Change it in place: `p.add_(…)`.",
    replace("p.add_(update", "p.data = p.add(update"),
)
Muon.mistake(
    "You keep your state in an attribute of your own. `state_dict` saves `self.state` only, so a "
    "resumed run begins afresh: keep it in `self.state[p]`.",
    replace("self.state[p]", KEPT),
)
Muon.mistake(
    "Your constructor takes a parameter that is no matrix. Vectors and embeddings belong to another "
    "optimizer: raise ValueError.",
    replace("if any(len(shape) != 2 for shape in shapes):", "if False:"),
)
Muon.mistake(
    "Your constructor lets a parameter of more than two axes pass. Only matrices are allowed.",
    replace("len(shape) != 2", "len(shape) < 2"),
)


Muon.mistake(
    "Your ValueError for a parameter that is no matrix comes from `step`, after a whole forward and "
    "backward pass. Raise it in the constructor.",
    replace(
        "if any(len(shape) != 2 for shape in shapes):",
        "if False:",
        "for group in self.param_groups:\n            lr",
        "if any(p.ndim != 2 for group in self.param_groups for p in group['params']):\n"
        "            raise ValueError('no matrix')\n"
        "        for group in self.param_groups:\n            lr",
    ),
)
Muon.mistake(
    "You look at the parameters of the first group alone. No group may hold one that is no matrix.",
    replace(
        'for group in self.param_groups for p in group["params"]]',
        'for p in self.param_groups[0]["params"]]',
    ),
)


@Muon.alternative("plain arithmetic, out of place, then copied into the parameter")
class _(torch.optim.Optimizer):
    def __init__(
        self, params, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, steps=5,
        dtype=torch.bfloat16,
    ):  # fmt: skip
        given = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "steps": steps}
        super().__init__(params, {**given, "nesterov": nesterov, "dtype": dtype})
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() != 2:
                    raise ValueError("matrices only")

    def step(self):
        for group in self.param_groups:
            mu = group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                with torch.no_grad():
                    old = self.state[p].get("b", 0 * p)
                    b = mu * old + (1 - mu) * p.grad
                    self.state[p]["b"] = b
                    u = (1 - mu) * p.grad + mu * b if group["nesterov"] else b
                    u = optimizers.newton_schulz(u.to(group["dtype"]), group["steps"]).to(p.dtype)
                    n, m = p.shape
                    longer = (n / m) ** 0.5 if n > m else 1.0
                    shrunk = p - group["lr"] * group["weight_decay"] * p
                    p.copy_(shrunk - group["lr"] * longer * u)


@Muon.alternative("the averages in one list operation a group; state made in the constructor")
class _(torch.optim.Optimizer):
    def __init__(
        self, params, lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, steps=5,
        dtype=torch.bfloat16,
    ):  # fmt: skip
        given = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "steps": steps}
        super().__init__(params, {**given, "nesterov": nesterov, "dtype": dtype})
        for group in self.param_groups:
            if not all(p.ndim == 2 for p in group["params"]):
                raise ValueError("matrices only")
            for p in group["params"]:
                self.state[p]["average"] = torch.zeros_like(p.data)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            used = [p for p in group["params"] if p.grad is not None]
            if not used:
                continue
            averages = [self.state[p]["average"] for p in used]
            torch._foreach_mul_(averages, group["momentum"])
            torch._foreach_add_(averages, [p.grad for p in used], alpha=1 - group["momentum"])
            for p, average in zip(used, averages, strict=True):
                along = average
                if group["nesterov"]:
                    along = group["momentum"] * average + (1 - group["momentum"]) * p.grad
                u = optimizers.newton_schulz(along.to(group["dtype"]), group["steps"])
                p *= 1 - group["lr"] * group["weight_decay"]
                p -= group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5 * u
