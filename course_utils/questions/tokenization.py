"""Predictions and the quiz of chapter 21."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

lengths = Prediction(
    "How long is each?",
    asks=[
        Ask(
            'len("naïve".encode())',
            truth='len("naïve".encode())',
            why="Four ASCII letters and one of two bytes: 6.",
        ),
        Ask('len("日本")', truth='len("日本")', why="`len` of a str counts code points."),
        Ask(
            'len("日本".encode())',
            truth='len("日本".encode())',
            why="Both are above U+07FF and below U+10000: three bytes each.",
        ),
        Ask('len("🙂")', truth='len("🙂")', why="One code point. In UTF-16 it would be two units."),
        Ask(
            'len("e\\u0301".encode())',
            truth='len("e\\u0301".encode())',
            why="An e, then an accent of its own: 1 + 2 bytes. The é on your keyboard is one code point of 2 bytes.",
        ),
    ],
)

merges = Prediction(
    "The merges are (a, b) → X, (b, c) → Y, (X, c) → Z, in this order. How many tokens has each text?",
    setup="""
from course_utils.reference.tokenization import encode
M = {(97, 98): 256, (98, 99): 257, (256, 99): 258}
""",
    asks=[
        Ask("abc", truth="len(encode('abc', M))", why="(a, b) comes first: X c, and then Z."),
        Ask("bbc", truth="len(encode('bbc', M))", why="Only (b, c) is there: b Y."),
        Ask("ababc", truth="len(encode('ababc', M))", why="X X c, then X Z."),
        Ask(
            "ab c",
            truth="len(encode('ab c', M))",
            why="A space begins a new pre-token: X, space, c.",
        ),
    ],
)

cut = Prediction(
    "Into how many pre-tokens does GPT-2 cut each text?",
    setup="from course_utils.reference.tokenization import pre_tokenize",
    asks=[
        Ask(
            "'def f(x):'",
            truth="len(pre_tokenize('def f(x):'))",
            why="`def`, ` f`, `(`, `x`, `):`.",
        ),
        Ask('"I\'m"', truth='len(pre_tokenize("I\'m"))', why="`I` and `'m`."),
        Ask("'3.14'", truth="len(pre_tokenize('3.14'))", why="`3`, `.`, `14`."),
        Ask(
            "'a' and four spaces and 'b'",
            truth="len(pre_tokenize('a    b'))",
            why="`a`, three spaces, and ` b` with the fourth.",
        ),
        Ask(
            "'snake_case'",
            truth="len(pre_tokenize('snake_case'))",
            why="`snake`, `_`, `case`: the underscore is no letter.",
        ),
    ],
)

quiz = Quiz(
    questions=[
        Question(
            "Why do GPT-2's tokens begin from bytes, and not from characters?",
            choices=[
                Choice(
                    "Bytes make shorter sequences, so attention costs less.",
                    "Longer ones, before merges: most scripts take two or three bytes a character.",
                ),
                Choice(
                    "256 of them write every text, so nothing is unknown.",
                    "Unicode has more than 140,000 characters, and every new one would be unknown. Any of them is a few bytes.",
                    right=True,
                ),
                Choice(
                    "UTF-8 needs no decoding.",
                    "It does, and tokens may even end in the middle of a character.",
                ),
            ],
        ),
        Question(
            "Training looks at distinct pre-tokens with their counts. What would change if it looked at the whole text, pre-token by pre-token?",
            choices=[
                Choice(
                    "Rare pairs would be found as well, so the merges differ.",
                    "They are found now: each distinct pre-token is there.",
                ),
                Choice(
                    "Merges across pre-tokens would appear.",
                    "No pair reaches from one pre-token to the next, in either case.",
                ),
                Choice(
                    "The work alone; the merges are the same.",
                    "A pair's count is the same sum, in another order.",
                    right=True,
                ),
            ],
        ),
        Question(
            "You sample from a model with the prompt `The answer is ` (with a space at its end), and the text is poor. Why?",
            choices=[
                Choice(
                    "The space is a token of its own, and in training it belonged to the next word.",
                    "The model has rarely seen a word without its space after a lone space.",
                    right=True,
                ),
                Choice(
                    "The tokenizer drops white space at the end, so the model gets another prompt than you see.",
                    "It keeps every byte.",
                ),
                Choice(
                    "The prompt is too short.",
                    "Without the space it would work better, and be shorter still.",
                ),
            ],
        ),
        Question(
            "A user's message contains `<|endoftext|>`. What should the server do?",
            choices=[
                Choice(
                    "Encode it as the special token: it is in the vocabulary.",
                    "Then a user ends the document, or begins a message in another's name.",
                ),
                Choice(
                    "Encode it as the characters that it consists of.",
                    "What a user writes is text. Only the program itself puts special tokens in.",
                    right=True,
                ),
                Choice(
                    "Delete it.",
                    "Then there is no way to talk about it, and what is left may make another one.",
                ),
            ],
        ),
        Question(
            "You double the vocabulary of a small model. What falls?",
            choices=[
                Choice(
                    "The parameters.", "Embedding and head grow in proportion to the vocabulary."
                ),
                Choice(
                    "The loss a token, by less and less with each doubling.",
                    "It usually rises: a token stands for more bytes. Compare bits a byte.",
                ),
                Choice(
                    "Tokens a text, by less and less with each doubling.",
                    "A token that was not worth a merge before is rarer than those that were.",
                    right=True,
                ),
            ],
        ),
    ],
)
