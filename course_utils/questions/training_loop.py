"""Predictions and the quiz of chapter 12."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

nobody = Prediction(
    "Of 80 rows 8 are positive. A model says *negative* of every row. What does it score?",
    asks=[
        Ask("accuracy", truth="72 / 80", why="It is right on all 72 negative rows."),
        Ask("recall", truth="0 / 8", why="Of the 8 positive rows it finds none."),
        Ask(
            "accuracy of a model that finds 6 of the 8, with 6 false alarms",
            truth="(72 - 6 + 6) / 80",
            why="66 negatives and 6 positives are right: 72 again. Accuracy cannot tell the two models apart.",
        ),
    ],
)

modes = Prediction(
    "A model with BatchNorm and Dropout. Yes or no?",
    setup="""
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
x = torch.randn(16, 4)

def same(mode):
    model.train(mode)
    with torch.no_grad():
        return torch.equal(model(x), model(x))

def moves(mode):
    model.train(mode)
    before = model[1].running_mean.clone()
    with torch.no_grad():
        model(x)
    return not torch.equal(before, model[1].running_mean)

def alone(mode):
    model.train(mode)
    try:
        model(x[:1])
    except ValueError:
        return True
    return False
""",
    asks=[
        Ask(
            "in train mode two forwards of one batch agree",
            truth="same(True)",
            why="Dropout draws anew.",
        ),
        Ask(
            "in eval mode they agree",
            truth="same(False)",
            why="Dropout does nothing, and BatchNorm uses what it has stored.",
        ),
        Ask(
            "under `no_grad`, in train mode, a forward changes BatchNorm's running mean",
            truth="moves(True)",
            why="no_grad is about the graph. The mode decides about the statistics.",
        ),
        Ask(
            "in train mode a batch of one row raises ValueError",
            truth="alone(True)",
            why="One row has no variance; the last batch of an epoch may be such a one.",
        ),
        Ask(
            "in eval mode a batch of one row raises ValueError",
            truth="alone(False)",
            why="Nothing is computed over the batch.",
        ),
    ],
)

aliases = Prediction(
    "What is in a state_dict?",
    setup="""
from torch import nn
layer = nn.Linear(2, 1)
state = layer.state_dict()
""",
    code="""
state = layer.state_dict()
with torch.no_grad():
    layer.weight.fill_(5.0)
""",
    asks=[
        Ask(
            "state['weight'][0, 0].item()",
            truth="5.0",
            why="The state shares the parameters' memory: it is a view of now, not a copy of then.",
        ),
        Ask(
            "state['weight'].requires_grad",
            truth="state['weight'].requires_grad",
            why="The tensors are detached.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "An epoch has 3 batches of 32 rows and a last one of 4. You return the mean of the four batch losses. How "
            "much does a row of the last batch count, against any other?",
            choices=[
                Choice("As much.", why="Only if every batch has the same number of rows."),
                Choice(
                    "8 times as much.",
                    right=True,
                    why="Every batch counts a quarter, shared by 32 rows or by 4.",
                ),
                Choice("An eighth.", why="The other way round: fewer rows share the same weight."),
            ],
        ),
        Question(
            "One row in ten is positive. You train with `pos_weight=9`. What should you expect of the outputs?",
            choices=[
                Choice(
                    "Their sigmoid is no longer the probability of the positive class.",
                    right=True,
                    why="The weighted loss has its minimum at odds that are 9 times too high: the logits rise by about ln 9.",
                ),
                Choice(
                    "They rank the rows in another order, by construction.",
                    why="A shift of all logits keeps the order. What changes in the ranking comes from training, and may be better or worse.",
                ),
                Choice(
                    "Nothing, since weights cancel in the mean.",
                    why="They cancel only where all rows have the same weight.",
                ),
            ],
        ),
        Question(
            "A run is killed while `torch.save(state, 'run.pt')` writes. What is there when it starts again?",
            choices=[
                Choice(
                    "The checkpoint of before.",
                    why="It was cut to zero bytes when the file was opened for writing.",
                ),
                Choice(
                    "Half a file, which cannot be loaded.",
                    right=True,
                    why="That is why one writes beside it and moves.",
                ),
                Choice("No file.", why="Opening creates it at once; the content follows."),
            ],
        ),
        Question(
            "You resume with model, optimizer and scheduler, and the losses differ from those of a run that was not "
            "stopped. The model has dropout. What is missing?",
            choices=[
                Choice("The gradients.", why="They are computed anew at every step."),
                Choice(
                    "The state of torch's generator, or the place in the data.",
                    right=True,
                    why="Dropout draws other features; or the epoch begins again.",
                ),
                Choice(
                    "`model.eval()` before saving.", why="The mode is not part of a state_dict."
                ),
            ],
        ),
        Question(
            "Why load a checkpoint that a stranger gave you with `weights_only=True`?",
            choices=[
                Choice(
                    "It is faster.",
                    why="It may even be slower: the unpickler is written in Python.",
                ),
                Choice(
                    "A pickle names functions to call; only a short list of them is then allowed.",
                    right=True,
                    why="Everything else raises UnpicklingError before it is called.",
                ),
                Choice(
                    "It checks the file's signature.",
                    why="There is none. A file says nothing of who wrote it.",
                ),
            ],
        ),
    ]
)
