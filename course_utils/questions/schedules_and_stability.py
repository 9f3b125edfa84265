"""Predictions and the quiz of chapter 11."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

RATES = """
import warnings
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

def rate(make, steps):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = make(optimizer)
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
    return round(optimizer.param_groups[0]["lr"], 4)
"""

rates = Prediction(
    "The optimizer was made with lr = 1. What is its learning rate after so many calls of scheduler.step()?",
    setup=RATES,
    asks=[
        Ask(
            "LinearLR(optimizer, 0.25, 1.0, total_iters=4), 0 calls",
            truth="rate(lambda o: LinearLR(o, 0.25, 1.0, 4), 0)",
            why="A scheduler sets the first step's rate when it is made.",
        ),
        Ask(
            "CosineAnnealingLR(optimizer, T_max=4), 4 calls",
            truth="rate(lambda o: CosineAnnealingLR(o, 4), 4)",
            why="T_max is the step at which the cosine reaches its lowest point, eta_min = 0.",
        ),
        Ask(
            "CosineAnnealingLR(optimizer, T_max=4), 8 calls",
            truth="rate(lambda o: CosineAnnealingLR(o, 4), 8)",
            why="It is a cosine: after half a period it rises again. Nothing stops it at T_max.",
        ),
    ],
)

clipped = Prediction(
    "Two parameters have gradients [3, 0] and [0, 4]. What is in .grad after "
    "torch.nn.utils.clip_grad_norm_(parameters, max_norm)?",
    setup="""
def after(max_norm, which):
    params = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    params[0].grad, params[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    torch.nn.utils.clip_grad_norm_(params, max_norm)
    return round(params[which].grad.max().item(), 4)
""",
    asks=[
        Ask(
            "the largest element of the first, max_norm = 1",
            truth="after(1.0, 0)",
            why="The norm of all together is 5, so everything is multiplied by 1/5.",
        ),
        Ask(
            "the largest element of the second, max_norm = 4.5",
            truth="after(4.5, 1)",
            why="Each gradient alone is below 4.5. Their common norm, 5, is not: the factor is 0.9.",
        ),
        Ask(
            "the largest element of the first, max_norm = 10",
            truth="after(10.0, 0)",
            why="A gradient is never scaled up.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "A run accumulates 8 micro-batches for each optimizer step. When does it call scheduler.step()?",
            choices=[
                Choice(
                    "Once for each optimizer step.",
                    right=True,
                    why="A schedule counts updates. Its warm-up and its end are in optimizer steps.",
                ),
                Choice(
                    "Once for each micro-batch.",
                    why="Then the schedule runs 8 times too fast, and is over after an eighth of the run.",
                ),
                Choice(
                    "Once for each epoch.",
                    why="That is the old habit of image classifiers. A language model may see less than one epoch.",
                ),
            ],
        ),
        Question(
            "You multiply the loss by 1,000 and train with AdamW, without clipping and with a negligible eps. What "
            "happens to the updates?",
            choices=[
                Choice(
                    "Nothing, up to rounding.",
                    right=True,
                    why="The average gradient and the root of the average square both grow by 1,000. They cancel.",
                ),
                Choice(
                    "They grow by 1,000.",
                    why="That is SGD. Adam divides by the gradients' own size.",
                ),
                Choice(
                    "They shrink by 1,000.",
                    why="The denominator grows, but so does the numerator.",
                ),
            ],
        ),
        Question(
            "Rank 0 has 10 targets, rank 1 has 1,000. Each takes the mean loss over its own targets, and DDP averages "
            "the gradients. What is wrong?",
            choices=[
                Choice(
                    "A target of rank 0 weighs 100 times as much as one of rank 1.",
                    right=True,
                    why="Each rank's mean has the weight 1/2, and shares it among its targets.",
                ),
                Choice(
                    "The gradient is too large by the number of ranks.",
                    why="DDP divides by the number of ranks. The size is plausible, which hides the error.",
                ),
                Choice(
                    "Nothing: a mean of means is a mean.",
                    why="Only if all of them are over equally many.",
                ),
            ],
        ),
        Question(
            "One gradient in a run was 1,000 times too large, and finite. AdamW has beta1 = 0.9 and beta2 = 0.999. "
            "Fifty steps later, what does it still do?",
            choices=[
                Choice(
                    "Steps are far too small, since the average square is still dominated by the spike.",
                    right=True,
                    why="Of the square 0.999^50 = 95 % is left, of the average gradient 0.9^50 = 0.5 %.",
                ),
                Choice(
                    "Steps are far too large, since the average gradient still points along the spike.",
                    why="The average gradient forgets it within some tens of steps.",
                ),
                Choice(
                    "Nothing: Adam normalises each step by itself.",
                    why="It divides by an average over about 1 / (1 - beta2) steps.",
                ),
            ],
        ),
        Question(
            "set_seed(0) runs at the top of a training script. Two runs on one GPU end with different weights. Which "
            "of these can be the reason?",
            choices=[
                Choice(
                    "An operation whose threads add in no fixed order.",
                    right=True,
                    why="Floating-point addition depends on the order, and atomic additions on a GPU have none. "
                    "torch.use_deterministic_algorithms(True) forbids them.",
                ),
                Choice(
                    "Dropout draws other masks.",
                    why="Dropout draws from torch's generator of that device, which torch.manual_seed has seeded.",
                ),
                Choice(
                    "The initial weights differ.",
                    why="They are drawn from torch's global generator, which is seeded.",
                ),
            ],
        ),
    ]
)
