"""Predictions and the quiz of chapter 24."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

first_loss = Prediction(
    "A model of V = 256 bytes that has learned nothing, and tables of counted bytes: losses in nats a byte.",
    setup="import math",
    asks=[
        Ask(
            "equal probabilities for all bytes, to two places",
            truth="round(math.log(256), 2)",
            why="−ln(1 / 256) = ln 256. A run that starts far above it has a mistake in its initialisation or loss.",
        ),
        Ask(
            "the same in bits a byte",
            truth="int(math.log2(256))",
            why="Nats divided by ln 2: eight bits, the byte as it is stored.",
        ),
        Ask(
            "a table of single bytes can do better",
            truth="True",
            why="Spaces and e's are common, and most of the 256 bytes hardly occur. It needs no context for that.",
        ),
    ],
)

days = Prediction(
    "GPT-2 of 124 M parameters on 10 B tokens, 6 FLOPs a parameter and token.",
    setup="flops = 6 * 124e6 * 10e9\nday = 86400",
    asks=[
        Ask(
            "days on a laptop's core that makes 5e10 FLOP/s",
            truth="round(flops / 5e10 / day)",
            why="7.4e18 FLOPs at 5e10 a second: nearly five years. Attention's own products come on top.",
        ),
        Ask(
            "hours on one GPU of 1e15 FLOP/s with an MFU of 40 %",
            truth="round(flops / (0.4 * 1e15) / 3600)",
            why="18,600 seconds. The same run, eight thousand times as fast as on the core.",
        ),
        Ask(
            "hours on 8 such GPUs that keep 90 % of it together",
            truth="round(flops / (8 * 0.9 * 0.4 * 1e15) / 3600, 1)",
            why="5.2 hours / (8 · 0.9).",
        ),
    ],
)

pairs = Prediction(
    "A corpus of a million documents, of which every pair is compared; or signatures of 64 numbers, in 16 bands.",
    setup="n = 10**6",
    asks=[
        Ask(
            "pairs, in thousands of millions",
            truth="round(n * (n - 1) / 2 / 1e9)",
            why="n (n − 1) / 2. At a microsecond each that is six days of one core.",
        ),
        Ask(
            "entries that go into the dicts of all bands, in millions",
            truth="16 * n // 10**6",
            why="One for each document and band: linear in n.",
        ),
        Ask(
            "chance that two documents of similarity 0.5 become candidates, in percent",
            truth="round(100 * (1 - (1 - 0.5**4) ** 16))",
            why="A band of 4 numbers agrees with probability 0.5⁴ = 1/16. Sixteen tries do not make that certain: 1 − (15/16)¹⁶.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "A validation loss is 2.10 now and was 2.12 a hundred steps ago. Has the model improved?",
            choices=[
                Choice(
                    "Yes: the loss is lower, and validation uses no dropout and no gradient.",
                    why="It is also an estimate from a few batches. Other batches could give the opposite sign.",
                ),
                Choice(
                    "It depends on the estimate's standard error, and on whether both used the same batches.",
                    right=True,
                    why="The same batches each time remove most of the noise from a difference, though not from the value.",
                ),
                Choice(
                    "No: differences below a tenth of a nat are always within the noise of a batch.",
                    why="The noise depends on the number of tokens judged. With enough of them 0.02 is a lot.",
                ),
            ],
        ),
        Question(
            "Micro-batches of 8 and 2 sequences are accumulated, each with its mean loss divided by 2. What is wrong?",
            choices=[
                Choice(
                    "A sequence of the small one weighs four times as much as one of the large one.",
                    right=True,
                    why="Each micro-batch gets half of the weight. Weigh by the targets: 0.8 and 0.2.",
                ),
                Choice(
                    "Nothing: the two means are added, and half of their sum is the mean of all.",
                    why="That holds for equal sizes only.",
                ),
                Choice(
                    "The gradient is half as long as it should be, which clipping then hides.",
                    why="Its length is about right; the weights within it are not.",
                ),
            ],
        ),
        Question(
            "Why can a held-out loss be too low although no held-out file is in the training folder?",
            choices=[
                Choice(
                    "The tokenizer was trained on the training files, which compresses the held-out ones.",
                    why="It is the same tokenizer for both, and saw only training files. That is no leak.",
                ),
                Choice(
                    "In eval mode there is no dropout, so the loss is lower than it is in training.",
                    why="That is how the model will be used. It is no error of the estimate.",
                ),
                Choice(
                    "A file with nearly the same text may be there under another name or in another version.",
                    right=True,
                    why="Copies, forks and vendored files cross a split by names. Look for near duplicates before splitting.",
                ),
            ],
        ),
        Question(
            "A law was fitted on small runs, and its optimum says: half as large a model, twice as many tokens. When is "
            "that wrong advice for a large run?",
            choices=[
                Choice(
                    "If learning rate or schedule suited some sizes of the small runs better than others.",
                    right=True,
                    why="The law then describes the tuning as much as the sizes. Other reasons: text that has to be repeated, and, for the larger size, the cost of using it.",
                ),
                Choice(
                    "If the large run uses more GPUs, since communication is not in the law's FLOPs.",
                    why="It changes the time, and little of what loss a given N and D reach.",
                ),
                Choice(
                    "Never: the exponents of the law are properties of the Transformer itself.",
                    why="They differ from text to text, and papers with the same architecture disagree on them.",
                ),
            ],
        ),
        Question(
            "An ablation ends 0.01 above the baseline. The baseline's three seeds lie 0.03 apart. What do you report?",
            choices=[
                Choice(
                    "The part brings 0.01, since both runs had the same seed and so the same batches.",
                    why="A shared seed removes only a part of the noise: in the chapter's table such differences still vary by hundredths.",
                ),
                Choice(
                    "That the difference is within the seeds' spread, and both sets of numbers.",
                    right=True,
                    why="That is what was measured. More seeds, or a larger run, could decide it.",
                ),
                Choice(
                    "Nothing: an ablation that shows no difference is a failed experiment.",
                    why="It says that, at this size, the part can be left out at no visible cost.",
                ),
            ],
        ),
    ]
)
