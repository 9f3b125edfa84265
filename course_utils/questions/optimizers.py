"""Predictions and the quiz of chapter 10."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

buffer = Prediction(
    "The gradient is 1 at every step; what does the buffer hold?",
    code="b = 0.9 * b + g  # SGD's momentum buffer, from b = g at the first step",
    setup="b, g = 0.0, 1.0",
    asks=[
        Ask(
            "b after the first step",
            truth="1.0",
            why="It starts as the gradient itself.",
        ),
        Ask(
            "b after the second step",
            truth="0.9 * 1 + 1",
            why="Nine tenths of the old one, and the *whole* new gradient: 0.9 + 1.",
        ),
        Ask(
            "b after a thousand steps, to one decimal",
            truth="round(sum(0.9**k for k in range(1000)), 1)",
            why="1 + 0.9 + 0.81 + … = 1 / (1 − 0.9): with momentum 0.9 a constant gradient moves the parameter ten times as fast.",
        ),
    ],
)

first_step = Prediction(
    "Adam's first step, from fresh averages.",
    code="g, lr, beta1, beta2 = 0.01, 0.1, 0.9, 0.999",
    asks=[
        Ask(
            "m, before correction",
            truth="round((1 - beta1) * g, 6)",
            why="A tenth of the gradient: the other nine tenths are still the zero it began with.",
        ),
        Ask(
            "m̂, after correction",
            truth="(1 - beta1) * g / (1 - beta1)",
            why="Divided by 1 − 0.9¹, it is the gradient itself.",
        ),
        Ask(
            "Length of the step, as a number (eps aside)",
            truth="lr",
            why="m̂ / √v̂ = g / |g|: the first step is lr in every coordinate, whatever the gradient's size.",
        ),
        Ask(
            "Is the step ten times as long if g is ten times as large?",
            truth="lr * 10 * g / (10 * g) == 10 * lr * g / g",
            why="The gradient's size cancels. Multiply the loss by a constant, and Adam's first step stays as it was; SGD's grows with it.",
        ),
    ],
)

which_group = Prediction(
    "Does it decay? By the rule *two axes or more*.",
    code=(
        "model = torch.nn.ModuleDict({\n"
        '    "wte": torch.nn.Embedding(50, 8),\n'
        '    "ln": torch.nn.LayerNorm(8),\n'
        '    "fc": torch.nn.Linear(8, 32),\n'
        "})"
    ),
    asks=[
        Ask("wte.weight", truth="model['wte'].weight.ndim >= 2", why="A table of 50 × 8."),
        Ask("ln.weight", truth="model['ln'].weight.ndim >= 2", why="A gain: one number a feature."),
        Ask("fc.weight", truth="model['fc'].weight.ndim >= 2", why="A matrix."),
        Ask("fc.bias", truth="model['fc'].bias.ndim >= 2", why="A vector."),
    ],
)

gpt2_bytes = Prediction(
    "GPT-2 has 124,439,808 parameters, in float32. How many bytes of state (counts of steps aside)?",
    code="n = 124_439_808",
    asks=[
        Ask("SGD", truth="0", why="It remembers nothing."),
        Ask("SGD with momentum", truth="4 * n", why="One buffer of the size of the model: 498 MB."),
        Ask(
            "AdamW",
            truth="2 * 4 * n",
            why="m and v: twice the model, 996 MB. With parameters and gradients it makes four times the model.",
        ),
    ],
)

kernels = Prediction(
    "AdamW, eight operations for each update. GPT-2 has 148 parameter tensors.",
    code="tensors, operations = 148, 8",
    asks=[
        Ask(
            "Kernels of a loop over the parameters",
            truth="tensors * operations",
            why="Every operation once for every tensor.",
        ),
        Ask(
            "Calls of `torch._foreach_…`",
            truth="operations",
            why="Each call takes the whole list.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "What does `weight_decay` do in `torch.optim.Adam`, unlike in `AdamW`?",
            choices=[
                Choice(
                    "It shrinks every weight by the same factor, 1 − lr·weight_decay, before the step is taken from it.",
                    why="That is AdamW.",
                ),
                Choice(
                    "Nothing: Adam ignores it.",
                    why="It is added to the gradient, before the averages.",
                ),
                Choice(
                    "It is added to the gradient, and so divided by √v̂: weights with large gradients decay less.",
                    right=True,
                    why="That is L2. In AdamW every weight loses the same fraction, lr·weight_decay.",
                ),
                Choice(
                    "The same thing; they differ only in their default.",
                    why="The defaults do differ (0 and 0.01). But L2 and decoupled decay are the same thing for SGD without momentum, and not for Adam.",
                ),
            ],
        ),
        Question(
            "You resume a run, load the model but not the optimizer's `state_dict`. What happens with AdamW?",
            choices=[
                Choice(
                    "Little: the averages are rebuilt from the gradients of the first step, and the second goes on as before.",
                    why="Averages over many steps cannot be rebuilt from one.",
                ),
                Choice(
                    "It raises an error.",
                    why="An optimizer without state is a fresh one: it has no way to know.",
                ),
                Choice(
                    "m, v and t start at zero: the first step has length lr wherever the gradient is not zero.",
                    right=True,
                    why="A coordinate with noisy gradients took short steps before, because m was small beside √v. Now it steps by lr like the rest, and the loss may jump.",
                ),
            ],
        ),
        Question(
            "Which parameter is changed by `AdamW.step()`?",
            code="a.grad = None\nb.grad = torch.zeros_like(b)  # at every step so far\n# lr and weight_decay above 0",
            choices=[
                Choice("Only a", why="A parameter without gradient is left alone, decay and all."),
                Choice("Only b", right=True, why="b is decayed; a, without gradient, is skipped."),
                Choice("Both", why="`grad is None` and a gradient of zeros are different things."),
                Choice(
                    "Neither", why="A gradient of zero gives no step, but the decay still comes."
                ),
            ],
        ),
        Question(
            "What speaks for betas (0.9, 0.95) rather than (0.9, 0.999) in a language model?",
            choices=[
                Choice(
                    "v then averages some 20 steps, not 1000, and follows sooner when the gradients' size changes.",
                    right=True,
                    why="After a spike √v stays large, and the steps short, for several times the number of steps that v averages.",
                ),
                Choice(
                    "It makes the bias correction unnecessary, since v̂ and v then hardly differ from the first steps on.",
                    why="Without it the first step would be 0.1 / √0.05 = 0.45 lr, less than half of what it should be.",
                ),
                Choice(
                    "It saves memory.",
                    why="The state is two tensors for each parameter, whatever the betas.",
                ),
            ],
        ),
        Question(
            "What does `foreach=True` change?",
            choices=[
                Choice(
                    "The update: gradients are averaged over all parameters.",
                    why="Each tensor is still updated by itself; only the loop over them moves out of Python.",
                ),
                Choice(
                    "The number of kernels, at the price of temporary lists as large as the parameters.",
                    right=True,
                    why="The update is the same. One call takes all tensors, and its results all live at once.",
                ),
                Choice(
                    "The state: it is shared by all parameters.",
                    why="Each has its own m, v and t, under the same names.",
                ),
            ],
        ),
    ]
)
