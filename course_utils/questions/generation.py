"""Predictions and the quiz of chapter 25."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

filters = Prediction(
    "Four tokens have the probabilities 0.5, 0.3, 0.15 and 0.05. How many remain?",
    setup="""
import torch
probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
def nucleus(p, x=probs):
    return int((x.cumsum(0) - x < p - 1e-6).sum())
""",
    asks=[
        Ask(
            "top_p = 0.7",
            truth="nucleus(0.7)",
            why="0.5 is less than 0.7, so the token that crosses it, 0.3, stays.",
        ),
        Ask(
            "min_p = 0.2",
            truth="int((probs >= 0.2 * probs.max()).sum())",
            why="The threshold is 0.2 · 0.5 = 0.1.",
        ),
        Ask(
            "top_k = 3, then top_p = 0.82",
            truth="nucleus(0.82, probs[:3] / probs[:3].sum())",
            why="top_k leaves 0.526, 0.316 and 0.158 when divided by their sum. The first two have 0.842.",
        ),
        Ask(
            "top_p = 0.82, then top_k = 3",
            truth="min(nucleus(0.82), 3)",
            why="Before the others are out, the first two have 0.8, and the third is needed.",
        ),
    ],
)

steps = Prediction(
    "A prompt has 1,000 tokens, and 100 more are generated. How many tokens go through the model?",
    setup="",
    asks=[
        Ask(
            "without a cache",
            truth="sum(1000 + i for i in range(100))",
            why="Each step reads all tokens so far: 1,000, then 1,001, up to 1,099.",
        ),
        Ask(
            "with a cache",
            truth="1000 + 99",
            why="The prompt once, then each new token but the last, after which nothing is asked.",
        ),
    ],
)

draft = Prediction(
    "The model gives the next token A the probability 0.2 and B 0.8, the draft gives A 0.6 and B 0.4.",
    setup="p, q = {'A': 0.2, 'B': 0.8}, {'A': 0.6, 'B': 0.4}",
    asks=[
        Ask(
            "probability that a drafted A is accepted",
            truth="round(min(1, p['A'] / q['A']), 3)",
            why="0.2 / 0.6: the draft proposes it three times too often.",
        ),
        Ask(
            "probability that a draft is accepted at all",
            truth="round(sum(min(p[t], q[t]) for t in p), 3)",
            why="The overlap of the two distributions: min(0.2, 0.6) + min(0.8, 0.4).",
        ),
        Ask(
            "probability that the next token is B",
            truth="p['B']",
            why="What comes out is the model's own distribution, whatever the draft is.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "The temperature is 2, and then min_p = 0.1. Which tokens remain, told by their probabilities "
            "before the temperature?",
            choices=[
                Choice(
                    "Those with at least a tenth of the likeliest one's: min_p does not see the temperature.",
                    why="It does where the temperature comes first, as in Transformers and here.",
                ),
                Choice(
                    "Those with at least a hundredth of the likeliest one's: the ratio before is squared.",
                    right=True,
                    why="Temperature 2 takes the square root of every ratio, and √(1/100) is 1/10.",
                ),
                Choice(
                    "Those with at least a twentieth of the likeliest one's: the threshold is divided by 2.",
                    why="The logits are divided by 2, and so ratios of probabilities become square roots.",
                ),
            ],
        ),
        Question(
            "Decoding one sequence on a GPU reaches a hundredth of its FLOP/s. What limits it?",
            choices=[
                Choice(
                    "Each step reads all weights and the cache from memory, for two FLOPs a weight.",
                    right=True,
                    why="At one token a step the arithmetic intensity is about one FLOP a byte in 16-bit weights.",
                ),
                Choice(
                    "The softmax over the vocabulary, which cannot be computed in parallel.",
                    why="It can, and it is a small part of the step.",
                ),
                Choice(
                    "The sampler, which has to wait for random numbers of the generator.",
                    why="One random number a token is nothing beside the weights.",
                ),
            ],
        ),
        Question(
            "Rows of a batch are padded on the right, as in training, and the cache has one length for all rows. What goes wrong?",
            choices=[
                Choice(
                    "Nothing, as long as the attention mask hides the padding.",
                    why="The mask hides it from others, but the last column's logits are those of padding.",
                ),
                Choice(
                    "The last column, whose logits are sampled, is padding in the shorter rows.",
                    right=True,
                    why="With padding at the left every row ends in its last real token, and new ones follow in one column. (With a length for each row, right padding works, too.)",
                ),
                Choice(
                    "The keys of longer rows are read by the shorter rows.",
                    why="Rows never read one another.",
                ),
            ],
        ),
        Question(
            "A speculative decoder replaces refused tokens by draws from the model's own distribution p, not "
            "from the residual max(0, p − q). What comes out?",
            choices=[
                Choice(
                    "The model's distribution; only fewer tokens are accepted.",
                    why="Accepted tokens already make up min(p, q) of it. What is added has to fill up the rest exactly.",
                ),
                Choice(
                    "The draft's distribution.",
                    why="Tokens that the draft proposes too often are still refused at times.",
                ),
                Choice(
                    "A mixture: tokens that the draft likes come too often.",
                    right=True,
                    why="They were accepted with min(p, q) and come again among the replacements.",
                ),
            ],
        ),
        Question(
            "Two models report a perplexity of 8 and of 20 per token on the same text. Which one predicts it better?",
            choices=[
                Choice(
                    "The first.",
                    why="Its tokens may be shorter, so that there are many more of them to predict.",
                ),
                Choice(
                    "It depends on how many tokens each cuts the text into.",
                    right=True,
                    why="Compare the bits for the whole text, or per byte: tokens · log₂ perplexity / bytes.",
                ),
                Choice(
                    "The second, since a larger vocabulary is harder.",
                    why="A larger vocabulary also has fewer tokens to predict.",
                ),
            ],
        ),
    ]
)
