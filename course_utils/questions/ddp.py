"""Predictions and the quiz of chapter 17."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

buckets = Prediction(
    "Parameters of 8, 4, 12, 4 and 4 bytes, in the order of the layers. A bucket is filled from the last "
    "parameter on, and is full once it holds 12 bytes or more.",
    setup=(
        "import torch\n"
        "from torch import nn\n"
        "from course_utils.reference.ddp import GradientBuckets\n"
        "params = [nn.Parameter(torch.zeros(n // 4)) for n in (8, 4, 12, 4, 4)]\n"
        "plan = GradientBuckets(params, cap_bytes=12).buckets"
    ),
    code="plan = GradientBuckets(params, cap_bytes=12).buckets",
    asks=[
        Ask(
            "len(plan)",
            truth="len(plan)",
            why="4 + 4 + 12 bytes fill the first; 4 + 8 the second. All five parameters are in two.",
        ),
        Ask(
            "bytes of the first bucket",
            truth="sum(p.nbytes for p in plan[0])",
            why="After 4 + 4 it is not full, so the parameter of 12 bytes goes in too: the cap is where a "
            "bucket is closed, not what it may not exceed.",
        ),
        Ask(
            "bytes of the second bucket",
            truth="sum(p.nbytes for p in plan[1])",
            why="4 is not enough, and 4 + 8 is exactly the cap: full.",
        ),
    ],
)

evaluation = Prediction(
    "Ten samples on four ranks, in order, padded to twelve. The model is wrong on samples 0 and 1 and right "
    "on all others.",
    setup=(
        "import torch\n"
        "from torch.utils.data.distributed import DistributedSampler\n"
        "ranks = [list(DistributedSampler(range(10), 4, r, shuffle=False)) for r in range(4)]\n"
        "padded = [i for mine in ranks for i in mine]"
    ),
    code=(
        "right = [i > 1 for i in range(10)]\n"
        "# each rank counts its right answers; the counts are summed over the ranks"
    ),
    asks=[
        Ask(
            "answers that are counted",
            truth="len(padded)",
            why="Three for each of four ranks: samples 0 and 1 come a second time.",
        ),
        Ask(
            "right ones among them",
            truth="sum(i > 1 for i in padded)",
            why="The two that are repeated are the two wrong ones: still eight.",
        ),
        Ask(
            "is the reported accuracy that of the ten samples?",
            truth="sum(i > 1 for i in padded) / len(padded) == 0.8",
            why="8 of 12 is 67 %, and 8 of 10 is 80 %.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "Four ranks have batches of 8, 8, 8 and 4 samples. Each takes the mean loss of its own, and DDP "
            "averages the gradients. What is the result?",
            choices=[
                Choice(
                    "The gradient of the mean loss of all 28 samples.",
                    why="That would be so if the shares had one size.",
                ),
                Choice(
                    "A mean in which each of the last rank's samples counts twice as much as another.",
                    right=True,
                    why="Every rank counts a quarter; on the last one that is shared by half as many samples.",
                ),
                Choice(
                    "An error: all ranks must have batches of one size.",
                    why="DDP never sees the batches, only gradients, which have the parameters' shapes.",
                ),
            ],
        ),
        Question(
            "Why are the gradients not sent in one bucket of the size of the model?",
            choices=[
                Choice(
                    "Because nothing could be sent before the last gradient is there, so nothing would overlap.",
                    right=True,
                    why="α is paid only once, but all of the β part then comes after backward.",
                ),
                Choice(
                    "Because an all-reduce sends more bytes for one large tensor than for its pieces.",
                    why="The bytes are the same, and there would be fewer messages.",
                ),
                Choice(
                    "Because the tensor would not fit into memory.",
                    why="The flat gradients of a model are no larger than its gradients.",
                ),
            ],
        ),
        Question(
            "On which ranks does `dist.barrier()` belong, where rank 0 saves a checkpoint?",
            choices=[
                Choice(
                    "On rank 0, after it has written: the others have nothing to wait with.",
                    why="A barrier returns when *all* ranks have called it: rank 0 would wait in vain, until the timeout.",
                ),
                Choice(
                    "On all ranks but rank 0.",
                    why="They would wait for rank 0, which never comes.",
                ),
                Choice(
                    "On all ranks, after the writing.",
                    right=True,
                    why="Rank 0 comes to it when the file is there, and the others wait for rank 0.",
                ),
            ],
        ),
        Question(
            "Two ranks take different branches of a model, so that on each another layer has no gradient. "
            "What does torch's DDP do by default?",
            choices=[
                Choice(
                    "It averages what is there; missing gradients count as zeros.",
                    why="That is what `find_unused_parameters=True` comes to.",
                ),
                Choice(
                    "Its backward returns without the mean of those layers, and the next forward raises an error.",
                    right=True,
                    why="The buckets of the unused layers are never complete; the next forward finds that out.",
                ),
                Choice(
                    "It finds the unused parameters by itself after the first iteration.",
                    why="It learns an order from the first iteration; for unused parameters it must be told.",
                ),
            ],
        ),
        Question(
            "A run on 8 ranks is to go on with 4, with the same batch for each step. What must change?",
            choices=[
                Choice(
                    "Twice the batch for each rank (or two micro-batches, the first inside no_sync); nothing else.",
                    right=True,
                    why="The gradient is of the same samples as before, so the learning rate fits too.",
                ),
                Choice(
                    "The learning rate must be halved with the number of ranks, as it would have been doubled for twice as many.",
                    why="That belongs to half the batch. Here each step's batch is what it was.",
                ),
                Choice(
                    "The optimizer's state must be redistributed.",
                    why="With DDP every rank holds all of it. With chapter 18's sharding it would have to be.",
                ),
            ],
        ),
    ]
)
