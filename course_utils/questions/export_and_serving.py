"""Predictions and the quiz of chapter 28."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

traced = Prediction(
    "torch.jit.trace records next_probs with three logits and temperature 1. Then the trace is called with "
    "temperature 0.",
    setup="""
import warnings
import torch
__name__ = "prediction"  # a trace asks where a function is from

def next_probs(logits, temperature):
    if temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits).scatter(-1, best, 1.0)
    return (logits / temperature).softmax(-1)

warnings.simplefilter("ignore")
three = torch.tensor([[1.0, 2.0, 3.0]])
trace = torch.jit.trace(next_probs, (three, torch.tensor(1.0)))
result = trace(three, torch.tensor(0.0))
""",
    asks=[
        Ask(
            "does the call raise? (True or False)",
            truth="False",
            why="A trace is a list of operations. Nothing in it knows that there was a branch.",
        ),
        Ask(
            "how many of the three numbers are NaN?",
            truth="int(result.isnan().sum())",
            why="The branch of the example was recorded: logits / 0 is infinite, and the softmax of infinities is NaN.",
        ),
    ],
)

sizes = Prediction(
    "The course's model has 256 positions and raises for more tokens. Which exports are refused? "
    "(True: refused)",
    setup="",
    asks=[
        Ask(
            "an example of 2 × 8 tokens, the number of tokens a Dim without a maximum",
            truth="True",
            why="The model holds for at most 256 tokens, and the range that you gave goes further.",
        ),
        Ask(
            "an example of 1 × 8 tokens, the number of rows a Dim up to 64",
            truth="True",
            why="A size of 1 in the example is taken for a constant.",
        ),
        Ask(
            "an example of 2 × 8 tokens, both sizes Dims, up to 64 and 256",
            truth="False",
            why="Every condition that the model puts on the sizes holds in these ranges.",
        ),
    ],
)

batches = Prediction(
    "There are two slots. Four requests wait, each with a prompt of one token. Their answers have 6, 2, 2 and 2 tokens.",
    setup="""
from course_utils.reference.serving import Arrival, continuous_batching, simulate, static_batching, token_steps

arrivals = [Arrival(0, 1, n) for n in (6, 2, 2, 2)]
static = simulate(static_batching, arrivals, 2, 8)
continuous = simulate(continuous_batching, arrivals, 2, 8)
""",
    asks=[
        Ask(
            "steps with static batching",
            truth="len(static)",
            why="The first batch takes 6 steps, as its longer answer does; the second takes 2.",
        ),
        Ask(
            "steps with continuous batching",
            truth="len(continuous)",
            why="While one slot serves the long answer, the other serves the three short ones, one after another.",
        ),
        Ask(
            "the step that gives the last request its first token, with continuous batching",
            truth="token_steps(arrivals, continuous)[-1][0]",
            why="Its slot serves the second request in steps 1 and 2, the third in 3 and 4, and then the fourth.",
        ),
    ],
)

blocks = Prediction(
    "Blocks have 16 places. A sequence has 33 tokens.",
    setup="",
    asks=[
        Ask(
            "blocks that it has",
            truth="-(-33 // 16)",
            why="33 / 16 is 2.06, and what is begun counts.",
        ),
        Ask("places that are empty", truth="3 * 16 - 33", why="Three blocks have 48 places."),
        Ask(
            "empty places of a sequence, at most",
            truth="16 - 1",
            why="Only the last block has empty places, and it has one token at least.",
        ),
    ],
)

shared = Prediction(
    "Blocks have 4 places. One sequence has read the tokens a b c d e f g h i. How many tokens of these are found in the "
    "cache?",
    setup="""
from course_utils.reference.serving import BlockTables

def found(tokens):
    tables = BlockTables(8, 4)
    read = [ord(c) for c in "abcdefghi"]
    tables.open("first", read)
    tables.grow("first", len(read))
    tables.fill("first", read)
    return tables.open("second", [ord(c) for c in tokens])
""",
    asks=[
        Ask(
            "a b c d e f g h i j",
            truth="found('abcdefghij')",
            why="Two blocks are full and known. The third, which holds i, is not full.",
        ),
        Ask(
            "a b c d x f g h i",
            truth="found('abcdxfghi')",
            why="The second block begins differently.",
        ),
        Ask(
            "x b c d e f g h i",
            truth="found('xbcdefghi')",
            why="The second block has the same four tokens, but other ones before them, so its keys are other ones.",
        ),
        Ask(
            "a b c d e f g h",
            truth="found('abcdefgh')",
            why="Both blocks are known. But then no token would be read, and only reading one gives logits.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "A model has `if self.training: x = self.drop(x)`. You export it in eval mode. What does torch.export say?",
            choices=[
                Choice(
                    "Nothing. The graph has no dropout, for good.",
                    right=True,
                    why="`self.training` is a Python value, known while exporting. The branch is decided then.",
                ),
                Choice(
                    "It refuses: control flow that depends on data.",
                    why="The branch depends on a setting of the module, not on a tensor's values.",
                ),
                Choice(
                    "Nothing. `program.module().train()` brings the dropout back.",
                    why="The other branch was never recorded, and `train()` raises.",
                ),
            ],
        ),
        Question(
            "An exported step has the cache as argument and result, with C = 64 places. A row has 64 tokens. What "
            "does a further step do?",
            choices=[
                Choice(
                    "It depends on the runtime: the position is a value, and no guard looks at values.",
                    right=True,
                    why="Guards know sizes. Writing beyond the last place is an index error in one runtime, and "
                    "something worse in another: count before you call.",
                ),
                Choice(
                    "The guard on C refuses it.",
                    why="C is still 64, and so is every size. Only the number in `position` has grown.",
                ),
                Choice("The cache grows.", why="Sizes of results are fixed by the graph."),
            ],
        ),
        Question(
            "Two prompts have equal tokens in their second block and different ones in the first. May they share the second block?",
            choices=[
                Choice(
                    "No: keys depend on all tokens before them.",
                    right=True,
                    why="From the second layer on, a token's key has seen the tokens before it. So a block is known by its "
                    "whole beginning.",
                ),
                Choice(
                    "Yes: the tokens are the same.",
                    why="Then one of them would attend to keys of another text.",
                ),
                Choice(
                    "Yes, if both are at the same positions.",
                    why="Equal positions do not suffice; the tokens before are others.",
                ),
            ],
        ),
        Question(
            "A prompt of 8,000 tokens arrives while thirty users are reading their answers. What do they notice if the budget of a "
            "step is 512 tokens?",
            choices=[
                Choice(
                    "Each of the next 17 steps or so takes longer, and their text goes on.",
                    right=True,
                    why="A step reads thirty tokens of theirs and 482 of the prompt: about 17 of them.",
                ),
                Choice("Nothing.", why="A step of 512 tokens takes longer than one of thirty."),
                Choice(
                    "They wait until the prompt is read.",
                    why="That is so without chunks. With them, whoever decodes is in every step.",
                ),
            ],
        ),
        Question(
            "A test sends a request whenever one is answered, with eight clients. The server stalls for two seconds. What does the "
            "test report?",
            choices=[
                Choice(
                    "At most eight slow requests, however many would have come in these two seconds.",
                    right=True,
                    why="The clients wait as long as the server does, so the load pauses with it. A closed loop hides a queue.",
                ),
                Choice(
                    "All requests of these two seconds as slow.",
                    why="An open loop would. Here nobody sends them.",
                ),
                Choice(
                    "Nothing, as no request failed.",
                    why="The eight that were on their way took two seconds longer.",
                ),
            ],
        ),
    ]
)
