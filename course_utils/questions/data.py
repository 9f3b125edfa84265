"""Predictions and the quiz of chapter 9."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

COUNT = """
from itertools import islice
import torch
from torch.utils.data import DataLoader, DistributedSampler
"""

batches = Prediction(
    "A data set of 10 items. How many batches does each loader give?",
    setup=COUNT + "def batches(**options):\n    return len(list(DataLoader(range(10), **options)))",
    asks=[
        Ask(
            "DataLoader(data, batch_size=4)",
            truth="batches(batch_size=4)",
            why="Two of four, and one of the two items that are left.",
        ),
        Ask(
            "DataLoader(data, batch_size=4, drop_last=True)",
            truth="batches(batch_size=4, drop_last=True)",
            why="The incomplete batch is left out.",
        ),
        Ask(
            "DataLoader(data)",
            truth="batches()",
            why="batch_size is 1 unless you say otherwise.",
        ),
        Ask(
            "DataLoader(data, batch_size=None)",
            truth="batches(batch_size=None)",
            why="Automatic batching is off: every item comes by itself, without an axis for the batch.",
        ),
    ],
)

ranks = Prediction(
    "A data set of 10 items on 4 ranks, with DistributedSampler and without shuffling. Which indices?",
    setup=COUNT + "def of(rank, **options):\n"
    "    return tuple(DistributedSampler(range(10), 4, rank, shuffle=False, **options))",
    asks=[
        Ask("rank 0", truth="of(0)", why="Places 0, 4 and 8 of the order."),
        Ask(
            "rank 3",
            truth="of(3)",
            why="Places 3, 7 and 11. The order was continued from its beginning, so place 11 is item 1.",
        ),
        Ask(
            "rank 3 with drop_last=True",
            truth="of(3, drop_last=True)",
            why="The order is cut to 8 items, 2 for each rank.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "Your data set holds `self.rng = np.random.default_rng(0)` and adds noise to each item. With four "
            "workers, what is wrong?",
            choices=[
                Choice(
                    "Each worker has a copy of the generator in the same state, so their noise is the same.",
                    right=True,
                    why="The object is copied to the workers with all it holds. Without persistent workers the "
                    "copies are also made anew in each epoch.",
                ),
                Choice(
                    "Nothing: the loader seeds NumPy in every worker.",
                    why="It seeds NumPy's global generator. A generator of your own it does not know.",
                ),
                Choice(
                    "The workers draw from one generator in turn, which is slow.",
                    why="Processes share no Python objects. Each has its own copy.",
                ),
            ],
        ),
        Question(
            "A run with two workers is stopped and goes on from a checkpoint. Its sampler counted the indices that "
            "it gave out. What happens?",
            choices=[
                Choice(
                    "Some items are never trained on.",
                    right=True,
                    why="The loader had asked for batches that were not used yet. The count includes them.",
                ),
                Choice(
                    "Some items come twice.",
                    why="That happens if the position is behind what was used. Here it is ahead.",
                ),
                Choice(
                    "It goes on exactly.",
                    why="Only with num_workers=0, where an index is asked for when its batch is.",
                ),
            ],
        ),
        Question(
            "You forget `sampler.set_epoch(epoch)`. What do the ranks see?",
            choices=[
                Choice(
                    "The same order in every epoch.",
                    right=True,
                    why="The order follows from seed + epoch, and the epoch stays 0.",
                ),
                Choice(
                    "Each rank another permutation, so items are repeated and left out.",
                    why="All ranks have the same seed and epoch, so they still agree.",
                ),
                Choice(
                    "The data in file order.",
                    why="It is shuffled, always in the same way.",
                ),
            ],
        ),
        Question(
            "Documents are packed into rows, and attention has only the causal mask. What can a token see?",
            choices=[
                Choice(
                    "Tokens of the documents before its own in the row.",
                    right=True,
                    why="The causal mask knows places and not documents. A document mask hides the others.",
                ),
                Choice(
                    "Its own document only, since each ends with an end token.",
                    why="The end token is a token like any other. The model may learn to heed it; the mask does not.",
                ),
                Choice(
                    "The whole row.",
                    why="The causal mask hides everything after it.",
                ),
            ],
        ),
        Question(
            "The loader takes 5 ms for a batch and the training step 40 ms. What do more workers gain?",
            choices=[
                Choice(
                    "Nearly nothing: one worker that loads ahead hides the 5 ms.",
                    right=True,
                    why="While the step runs, the next batches are made. Only the transfer is left.",
                ),
                Choice(
                    "The step is faster by 5 ms for each worker.",
                    why="There are only 5 ms to save, and one worker saves them.",
                ),
                Choice(
                    "Twice the throughput with two workers.",
                    why="The training step limits it, and the workers do not make that faster.",
                ),
            ],
        ),
    ]
)
