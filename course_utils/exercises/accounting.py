"""Exercises of chapter 5, resource accounting: from the FLOPs of one layer to the plan of a training run."""
# mypy: ignore-errors

from fractions import Fraction
from math import ceil

from hypothesis import strategies as st

from course_utils.grading import Exercise, call, replace
from course_utils.reference import accounting

# ------------------------------------------------------------------------------ linear_flops

linear_flops = Exercise(
    accounting.linear_flops,
    title="FLOPs of a linear layer",
    difficulty=1,
    minutes=10,
    points=1,
    hints=(
        "How many elements has the output? And how many multiplications and additions go into one?",
        "A row of the input costs 2 · in_features · out_features. How many rows are there?",
        "`*batch, in_features = x_shape`; backward is one such product for the weight's gradient, and one "
        "for the input's.",
        ("edge cases", "A vector without axes in front is one row: the product of no sizes is 1."),
    ),
)
linear_flops.by_hand(
    lambda: [
        (call((1, 3), 2), (12, 24)),
        (call((5, 3), 2), (60, 120)),
        (call((5, 3), 2, input_grad=False), (60, 60)),
        (call((2, 5, 3), 4), (240, 480)),
    ]
)


@linear_flops.cases
def _(draw):
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    yield call(shape, draw(st.integers(1, 9)), input_grad=draw(st.booleans()))


@linear_flops.edge
def _():
    yield call((7,), 5), "a vector: one row"
    yield call((7,), 5, input_grad=False), "a vector that needs no gradient"
    yield call((0, 7), 5), "an empty batch costs nothing"
    yield call((512, 4096, 12289), 49157), "more FLOPs than a float counts exactly"


ONE_LESS = (
    "You count one addition less in each sum. That is exact for the mathematics, but kernels add to an "
    "accumulator, and everyone counts two FLOPs for each product in a sum."
)
linear_flops.slips(
    {
        replace(
            "2 * prod", "prod"
        ): "You count multiply-adds. Each is a multiplication and an addition, two FLOPs.",
        replace("2 * prod(batch) * in_features", "(2 * in_features - 1) * prod(batch)"): ONE_LESS,
        replace(
            "forward = 2 * prod(batch) * in_features * out_features",
            "n, k, m = prod(batch), in_features, out_features\n    forward = n * (2 * k - 1) * m\n"
            "    weight, data = m * (2 * n - 1) * k, n * (2 * m - 1) * k",
            "forward * (2 if input_grad else 1)",
            "weight + data * input_grad",
        ): ONE_LESS,
        replace(
            "2 * prod(batch)", "2 * (prod(batch) if batch else 1.0)"
        ): "Your counts of a vector are floats: NumPy's and torch's product of no sizes is 1.0. That of "
        "math.prod is 1, and a count is an exact int.",
        replace(
            "prod(batch)", "(batch[0] if batch else 1)"
        ): "You count the first axis only. All axes "
        "in front of the last one are rows: multiply them.",
        replace(
            "prod(batch)", "(batch[-1] if batch else 1)"
        ): "You count only the axis before the last one. All axes in front of the last one are rows: multiply them.",
        replace(
            "prod(batch)", "sum(batch)"
        ): "You add the axes in front. A batch of 2 × 5 has ten rows, not seven.",
        replace(
            "prod(batch)", "(prod(batch) if batch else 0)"
        ): "A vector alone is one row: the product of no sizes is 1, not 0.",
        replace(
            "(2 if input_grad else 1)", "2"
        ): "You count the input's gradient even where nobody needs "
        "it. The first layer of a network skips that product.",
        replace(
            "(2 if input_grad else 1)", "1"
        ): "You count one product in backward. There are two: one "
        "gives the weight's gradient, one the input's.",
        replace(
            "(2 if input_grad else 1)", "(3 if input_grad else 2)"
        ): "You add the forward pass to backward. It is the first number of the pair.",
        replace(
            "(2 if input_grad else 1)", "(1 if input_grad else 2)"
        ): "You have input_grad the wrong "
        "way round: with it there are two products in backward, without it one.",
        replace(
            "(2 if input_grad else 1)", "(2 if input_grad else 0)"
        ): "Without a gradient for the input, the weight's is computed all the same.",
        replace(
            " * out_features", ""
        ): "You count one output feature. Each of out_features is a sum of its own.",
        replace(
            "* out_features", "* (out_features + 1)"
        ): "You count more than the product: a sum too many for each row.",
        replace(
            "in_features * out_features", "in_features * out_features + prod(batch) * out_features"
        ): "You add a bias. This layer has none, and FLOP counters do not count it.",
        replace(
            "2 * prod", "2.0 * prod"
        ): "You return floats. A count is an exact int: beyond 2⁵³ a float skips integers.",
        replace("return forward, forward *", "return forward + forward *"): "You return the sum. "
        "Return the two numbers as a pair, forward and backward.",
    }
)


linear_flops.mistake(
    "You take exactly one axis in front. There may be none, or several: `*batch, in_features = x_shape`.",
    replace("*batch, in_features = x_shape", "*batch, in_features = x_shape\n    (_,) = batch"),
)
linear_flops.mistake(
    "You take at least one axis in front. There may be none: `*batch, in_features = x_shape`.",
    replace("*batch, in_features = x_shape", "*batch, in_features = x_shape\n    (_, *_) = batch"),
)


@linear_flops.alternative("count the elements of the output, then of each gradient")
def _(x_shape, out_features, *, input_grad=True):
    rows = 1
    for size in x_shape[:-1]:
        rows *= size
    d = x_shape[-1]
    y = rows * out_features * 2 * d  # each of y's elements sums over d
    dw = out_features * d * 2 * rows  # each of the weight's over the rows
    dx = rows * d * 2 * out_features if input_grad else 0
    return y, dw + dx


# ------------------------------------------------------------------------------ attention_flops

attention_flops = Exercise(
    accounting.attention_flops,
    title="FLOPs of attention",
    difficulty=2,
    minutes=15,
    points=2,
    hints=(
        "q kᵀ has queries × keys elements for each head of each sequence. What does one of them cost?",
        "The second product costs as much: each element of the result is a sum over the keys.",
        "With causal, count the pairs: the last query sees all keys, the one before it one fewer, and so on.",
        "Of the pairs, 0 + 1 + … + (queries − 1) are hidden.",
        ("edge cases", "One query against a cache of keys sees them all, causal or not."),
    ),
)
attention_flops.by_hand(
    lambda: [
        (call(1, 1, 1, 1, 1), 4),
        (call(1, 1, 3, 3, 2), 72),  # 9 pairs
        (call(1, 1, 3, 3, 2, causal=True), 48),  # 1 + 2 + 3 pairs
        (call(2, 4, 3, 3, 2, causal=True), 384),
        (call(1, 1, 2, 5, 3, causal=True), 108),  # 4 + 5 pairs
    ]
)


@attention_flops.cases
def _(draw):
    queries = draw(st.integers(1, 9))
    keys = queries + draw(st.integers(0, 5))
    batch, n_head, head_dim = (draw(st.integers(1, 5)) for _ in range(3))
    yield call(batch, n_head, queries, keys, head_dim, causal=draw(st.booleans()))


@attention_flops.edge
def _():
    yield call(1, 2, 1, 9, 4, causal=True), "one query and a cache: it sees every key"
    yield call(1, 2, 9, 4, 4), "cross-attention, more queries than keys"
    yield call(1, 2, 9, 4, 4, causal=True), "a causal query without a key"
    yield call(1, 2, 5, 4, 4, causal=True), "one query too many"
    yield call(1, 2, 0, 4, 4, causal=True), "no queries"
    yield call(0, 2, 3, 4, 4), "an empty batch"
    yield call(1, 96, 131071, 131071, 128, causal=True), "a long context, exactly"


attention_flops.slips(
    {
        replace(
            "2 * 2 *", "2 *"
        ): "You have half of it. There are two products, q kᵀ and weights · v, "
        "and each multiply-add is two FLOPs.",
        replace("2 * 2 *", "1 *"): "You have a quarter of it: two products, and two FLOPs for each "
        "multiply-add.",
        replace(
            "queries * keys - hidden", "(queries * keys // 2 if causal else queries * keys)"
        ): "You halve the square. The diagonal is seen as well: of n × n pairs n · (n + 1) / 2.",
        replace(
            "(queries - 1)", "(queries + 1)"
        ): "You hide the diagonal too. A query sees its own key.",
        replace(
            "queries * keys - hidden",
            "(queries * (queries + 1) // 2 if causal else queries * keys)",
        ): "Your first query sees one key. The queries are the last positions: with more keys than "
        "queries, the first query sees keys − queries + 1 of them.",
        replace(" if causal else 0", " if False else 0"): "You count all pairs, causal or not.",
        replace(
            " if causal else 0", ""
        ): "You hide the future always. Without `causal` every query sees every key.",
        replace(
            "- hidden", "- (queries * keys - hidden if causal else 0)"
        ): "You count the pairs that the mask hides. Those that it allows are computed.",
        replace("n_head * ", ""): "head_dim belongs to one head: multiply by their number.",
        replace("batch * ", ""): "You count one sequence. The batch has several.",
        replace(
            "queries * keys", "queries * queries"
        ): "You take as many keys as queries. With a cache, "
        "or between two sequences, there are others.",
        replace(
            "queries * keys", "keys * keys"
        ): "You take as many queries as keys. With a cache one query meets many keys.",
        replace(
            "causal and queries > keys", "False"
        ): "With more causal queries than keys the first ones see nothing: raise ValueError.",
        replace("causal and queries > keys", "queries > keys"): "You refuse more queries than keys "
        "without a mask as well. Cross-attention does that.",
        replace(
            "queries > keys", "queries != keys"
        ): "You refuse a cache. Fewer queries than keys are fine.",
        replace(
            "queries > keys", "queries >= keys"
        ): "You refuse as many queries as keys, which is ordinary self-attention.",
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            "* pairs * head_dim", "* pairs * head_dim + 5 * batch * n_head * pairs"
        ): "You count the softmax as well. Only the two products are asked for.",
        replace(
            "// 2 if causal", "/ 2 if causal"
        ): "You divide to a float. A count is an exact int: use //.",
    }
)


attention_flops.slips(
    {
        replace(
            " if causal else 0",
            " if False else 0",
            "* head_dim",
            "* head_dim // (2 if causal else 1)",
        ): "You halve the whole for the mask. The diagonal is seen as well: of n × n pairs "
        "n · (n + 1) / 2.",
        replace(
            "queries * (queries - 1) // 2 if causal",
            "queries * keys - keys * (keys + 1) // 2 if causal",
        ): "You count a triangle of all keys. With a cache there are fewer queries than keys: hidden are "
        "0 + 1 + … + (queries − 1) pairs.",
        replace(
            "n_head * pairs", "pairs * n_head * n_head"
        ): "You multiply by n_head twice. head_dim is the width of one head already.",
    }
)


@attention_flops.alternative("a sum over the queries")
def _(batch, n_head, queries, keys, head_dim, *, causal=False):
    if causal and keys < queries:
        raise ValueError("too many queries")
    first = keys - queries + 1 if causal else keys
    pairs = (first + keys) * queries // 2
    scores = 2 * head_dim * pairs
    output = 2 * head_dim * pairs
    return batch * n_head * (scores + output)


# ------------------------------------------------------------------------------ transformer_flops

transformer_flops = Exercise(
    accounting.transformer_flops,
    title="FLOPs of a training step",
    difficulty=2,
    minutes=25,
    points=3,
    hints=(
        "Write down every linear layer of a block with its in_features and out_features.",
        "Of width D they are D × 3D, D × D, D × 4D and 4D × D, for each of batch · context tokens.",
        "All heads together cost what one head of width n_embd costs. So n_head does not matter.",
        "Backward is twice forward: 3 passes. With checkpointing the blocks have a fourth.",
    ),
)

SIZES = {"n_layer": 2, "n_embd": 3, "vocab": 5, "context": 4, "batch": 1}


@transformer_flops.by_hand
def _():
    yield (
        call(**SIZES),
        {"c_attn": 1296, "attention": 1152, "c_proj": 432, "mlp": 3456, "lm_head": 360},
    )
    yield (
        call(**SIZES, checkpointing=True),
        {"c_attn": 1728, "attention": 1536, "c_proj": 576, "mlp": 4608, "lm_head": 360},
    )
    yield (
        call(n_layer=12, n_embd=768, vocab=50257, context=1024, batch=1),
        {
            "c_attn": 130_459_631_616,
            "attention": 115_964_116_992,
            "c_proj": 43_486_543_872,
            "mlp": 347_892_350_976,
            "lm_head": 237_142_278_144,
        },
    )


@transformer_flops.cases
def _(draw):
    yield call(
        n_layer=draw(st.integers(1, 4)),
        n_embd=draw(st.integers(1, 9)),
        vocab=draw(st.integers(1, 30)),
        context=draw(st.integers(1, 9)),
        batch=draw(st.integers(1, 4)),
        checkpointing=draw(st.booleans()),
    )


@transformer_flops.edge
def _():
    yield call(**SIZES | {"n_layer": 0}), "no block: the head alone"
    yield call(**SIZES | {"batch": 0}), "an empty batch"
    yield call(**SIZES | {"context": 1, "batch": 7}), "one token: it attends to itself"
    yield (
        call(n_layer=126, n_embd=16384, vocab=128256, context=131072, batch=3),
        "more than a float counts exactly",
    )


transformer_flops.slips(
    {
        replace(
            "4 if checkpointing else 3", "3"
        ): "You count the same with checkpointing. The blocks are "
        "then computed once more during backward.",
        replace(
            "4 if checkpointing else 3", "2 if checkpointing else 1", "3 * 2 * tokens", "2 * tokens"
        ): "You count the forward pass alone. Backward costs twice as much again.",
        replace(
            "4 if checkpointing else 3",
            "3 if checkpointing else 2",
            "3 * 2 * tokens",
            "2 * 2 * tokens",
        ): "You count backward as one product. A layer's backward is two: for its weight and its input.",
        replace(
            "4 if checkpointing else 3", "6 if checkpointing else 3"
        ): "You run everything twice. "
        "Checkpointing repeats the forward pass of the blocks, not backward.",
        replace(
            "3 * 2 * tokens", "passes * 2 * tokens"
        ): "The head is in no block: checkpointing the blocks does not compute it again.",
        replace("3 * square", "square"): "c_attn makes q, k and v: three times n_embd features.",
        replace(
            "2 * 4 * square", "4 * square"
        ): "The MLP has two layers: up to 4 · n_embd, and down again.",
        replace(
            "2 * 4 * square", "2 * square"
        ): "The MLP is 4 · n_embd wide between its two layers.",
        replace(
            "attention_flops(batch, 1, context, context", "attention_flops(1, 1, tokens, tokens"
        ): "Your tokens attend across sequences. Each of `batch` sequences has context × context scores of its "
        "own.",
        replace(
            "context, context, n_embd)", "context, context, n_embd, causal=True)"
        ): "You leave out what "
        "the mask hides. Here attention is counted whole, as FlopCounterMode counts it.",
        replace("context, context, n_embd)", "context, context, n_embd) // 2"): "You have half of "
        "attention: it is two products, counted whole.",
        replace("n_layer * passes", "passes"): "You count one block. There are n_layer.",
        replace(
            '{"lm_head": 3 *', '{"lm_head": n_layer * 3 *'
        ): "You count a head for each block. There is one, at the end.",
        replace(
            "tokens = batch * context", "tokens = context"
        ): "You count the tokens of one sequence. A step sees batch · context.",
        replace(
            "square = 2 *", "square ="
        ): "You count multiply-adds in the blocks' layers. Each is two FLOPs.",
        replace(
            "3 * 2 * tokens * n_embd * vocab", "3 * 2 * batch * n_embd * vocab"
        ): "You make logits for "
        "the last token only, as one does when generating. Training makes them at every position.",
        replace(
            "3 * 2 * tokens * n_embd * vocab", "3 * 4 * tokens * n_embd * vocab"
        ): "You count the head "
        "twice. The embedding at the other end is a lookup, which costs no FLOPs, even where the two share "
        "their weight.",
        replace(
            "3 * 2 * tokens * n_embd * vocab", "2 * tokens * n_embd * vocab"
        ): "You count the head's forward pass alone. It has a backward pass like any other layer.",
    }
)


transformer_flops.slips(
    {
        replace(
            "4 if checkpointing else 3", "1", "3 * 2 * tokens", "2 * tokens"
        ): "You count the forward pass alone, and checkpointing changes nothing. A training step has a "
        "backward pass, twice as expensive.",
        replace(
            "4 if checkpointing else 3", "5 if checkpointing else 3"
        ): "You run the blocks forward "
        "twice more. With checkpointing there is one extra forward pass.",
        replace("4 if checkpointing else 3", "2 if checkpointing else 3"): "You save a pass by "
        "checkpointing. It saves memory, and costs a forward pass more.",
        replace("3 * square", "4 * square", '"c_proj": square', '"c_proj": 0'): "You count c_proj "
        "with c_attn. Each part has its own entry.",
    }
)


transformer_flops.slips(
    {
        replace(
            "3 * 2 * tokens * n_embd * vocab", "3 * 2 * (tokens - batch) * n_embd * vocab"
        ): "Your head leaves out one position of each sequence. It makes logits at all `context` positions, "
        "whether they have a target or not.",
        replace(
            "tokens = batch * context", "context -= 1\n    tokens = batch * context"
        ): "You take context − 1 positions of each sequence. All `context` of them go through the model.",
        replace(
            "return parts | {",
            'parts["attention"] += parts["attention"] // (2 * passes)\n    return parts | {',
        ): "Your attention costs half a forward pass too much: its backward costs 2.5 times forward only in a "
        "kernel that computes the scores again. Count it twice, like any other product.",
        replace(
            "return parts | {",
            'parts["attention"] -= parts["attention"] // passes\n    return parts | {',
        ): "You have one pass too few for attention. In each of its two products both factors need a gradient, "
        "so its backward costs twice forward.",
        replace(
            "n_layer * passes * flops",
            'n_layer * (3 if part == "attention" else passes) * flops',
        ): "Checkpointing changes nothing in your attention. The whole block is computed again, attention's "
        "products and all.",
        replace(
            "n_layer * passes * flops",
            'n_layer * (passes if part == "attention" else 3) * flops',
        ): "Checkpointing changes nothing in your linear layers. The whole block is computed again, not "
        "attention alone.",
    }
)


@transformer_flops.alternative("by matrix: FLOPs of every layer, three times or four")
def _(*, n_layer, n_embd, vocab, context, batch, checkpointing=False):
    D, again = n_embd, 4 if checkpointing else 3

    def layer(m, n, passes):
        return passes * 2 * m * n * batch * context

    return {
        "lm_head": layer(D, vocab, 3),
        "mlp": n_layer * (layer(D, 4 * D, again) + layer(4 * D, D, again)),
        "c_proj": n_layer * layer(D, D, again),
        "c_attn": n_layer * layer(D, 3 * D, again),
        "attention": n_layer * 2 * layer(context, D, again),
    }


# ------------------------------------------------------------------------------ training_memory

training_memory = Exercise(
    accounting.training_memory,
    title="Bytes of a training step",
    difficulty=1,
    minutes=15,
    points=2,
    hints=(
        "Make a table first: for each precision the bytes of a parameter, of a gradient, of a master copy "
        "and of a number of the optimizer's state.",
        "fp32: 4, 4, 0, 4. Autocast changes none of these. bf16 master: 2, 2, 4, 4. bf16: 2, 2, 0, 2.",
        "A frozen parameter takes its own bytes and nothing else.",
        (
            "edge cases",
            "Looking up an unknown name in a dict raises KeyError; the docstring asks for ValueError.",
        ),
    ),
)


def tenants(parameters, gradients, master, state):
    return {
        "parameters": parameters,
        "gradients": gradients,
        "master_weights": master,
        "optimizer_state": state,
    }


PRECISIONS = ("fp32", "bf16 mixed", "bf16 master", "bf16")


@training_memory.by_hand
def _():
    yield call(100), tenants(400, 400, 0, 800)
    yield call(100, precision="bf16 master"), tenants(200, 200, 400, 800)
    yield call(100, precision="bf16 mixed"), tenants(400, 400, 0, 800)
    yield call(100, precision="bf16"), tenants(200, 200, 0, 400)
    yield call(100, optimizer="sgd"), tenants(400, 400, 0, 0)
    yield call(10, 90), tenants(400, 40, 0, 80)


@training_memory.cases
def _(draw):
    yield call(
        draw(st.integers(0, 1000)),
        draw(st.integers(0, 1000)),
        precision=draw(st.sampled_from(PRECISIONS)),
        optimizer=draw(st.sampled_from(("sgd", "momentum", "adamw"))),
    )


@training_memory.edge
def _():
    for precision in PRECISIONS:
        yield (
            call(3, 5, precision=precision, optimizer="momentum"),
            "one number for each trained one",
        )
        yield call(0, 7, precision=precision), "everything is frozen"
    yield call(2**60 + 1, 1), "integers all the way"
    yield call(1, precision="fp64"), "no such precision"
    yield (
        call(1, precision="bf16 mixed master"),
        "no such precision, though all its words are known",
    )
    yield call(1, optimizer="adagrad"), "no such optimizer"
    yield call(1, optimizer="adam"), "a relative of one of the three"
    yield call(1, precision="FP32"), "a name in capitals"
    yield call(1, precision="int3", optimizer="none"), "neither of the two"


training_memory.slips(
    {
        replace(
            "parameter * (trainable + frozen)", "parameter * trainable"
        ): "Frozen parameters have to be there too: the forward pass uses them.",
        replace(
            "parameter * (trainable + frozen)",
            'parameter * trainable + (2 if "bf16" in precision else 4) * frozen',
        ): "Under autocast you keep frozen parameters in bfloat16. Autocast casts what is multiplied, not what "
        "is stored: they stay float32 like the others.",
        replace(
            "gradient * trainable", "gradient * (trainable + frozen)"
        ): "A frozen parameter has no gradient.",
        replace(
            "master * trainable", "master * (trainable + frozen)"
        ): "A frozen parameter is never updated, and needs no master copy.",
        replace(
            "* state * trainable", "* state * (trainable + frozen)"
        ): "The optimizer remembers nothing of a frozen parameter.",
        replace(
            "STATE_NUMBERS[optimizer] * state", "2 * state"
        ): "You give every optimizer AdamW's two numbers. SGD remembers nothing, momentum one.",
        replace(
            "STATE_NUMBERS[optimizer] * state", "min(STATE_NUMBERS[optimizer], 1) * state"
        ): "AdamW "
        "remembers two averages for each parameter: of its gradient, and of the gradient's square.",
        replace(
            "STATE_NUMBERS[optimizer] * state", "STATE_NUMBERS[optimizer] * parameter"
        ): "You keep the "
        "state in the parameters' dtype. Beside a float32 master copy the state is float32 too.",
        replace(
            "STATE_NUMBERS[optimizer] * state", "STATE_NUMBERS[optimizer] * 4"
        ): 'Your state is always float32. With "bf16" torch makes it in the parameters\' dtype.',
        replace(
            '"master_weights": master', '"master_weights": (4 if "mixed" in precision else master)'
        ): "Under autocast the parameters themselves are the float32 copy: there is no other one from step to "
        "step.",
        replace(
            '"parameters": parameter', '"parameters": (2 if "mixed" in precision else parameter)'
        ): "Autocast casts in the forward pass; the parameters stay float32.",
        replace(
            '"gradients": gradient', '"gradients": (2 if "mixed" in precision else gradient)'
        ): "A gradient has the dtype of its parameter, and under autocast parameters are float32.",
        replace(
            '"gradients": gradient', '"gradients": (4 if "master" in precision else gradient)'
        ): "A "
        'gradient has the dtype of its parameter. With "bf16 master" the parameter is bfloat16.',
        replace(
            '"master_weights": master', '"master_weights": 0'
        ): 'You leave out the float32 copy that "bf16 master" is named after.',
        replace(
            '"master_weights": master', '"master_weights": 4'
        ): 'A master copy is there only with "bf16 master": float32 parameters are their own.',
        replace(
            "precision not in ELEMENT_BYTES or optimizer not in STATE_NUMBERS", "False"
        ): "A KeyError from a table says little. Look first, and raise ValueError.",
        replace(
            " or optimizer not in STATE_NUMBERS", ""
        ): "You check the precision only. An unknown optimizer ends in another error: raise ValueError for "
        "it, too.",
        replace(
            *(" or optimizer not in STATE_NUMBERS", ""),
            *("STATE_NUMBERS[optimizer]", "STATE_NUMBERS.get(optimizer, 2)"),
        ): "You count an optimizer that you do not know like AdamW. Raise ValueError for it.",
        replace(
            *(" or optimizer not in STATE_NUMBERS", ""),
            *("STATE_NUMBERS[optimizer]", "STATE_NUMBERS.get(optimizer, 0)"),
        ): "You count an optimizer that you do not know as one without state. Raise ValueError for it.",
        replace(
            "precision not in ELEMENT_BYTES or ", ""
        ): "You check the optimizer only. An unknown precision ends in another error: raise ValueError for "
        "it, too.",
        replace(
            "precision not in ELEMENT_BYTES or",
            'precision.split()[0] not in ("fp32", "bf16") or',
            "ELEMENT_BYTES[precision]",
            'ELEMENT_BYTES[precision if precision in ELEMENT_BYTES else "bf16 mixed"]',
        ): "You look for words in the name of the precision, so that others with these words pass. There are four "
        "names: raise ValueError for any other.",
        replace(
            "optimizer not in STATE_NUMBERS",
            'optimizer not in (*STATE_NUMBERS, "adam")',
            "STATE_NUMBERS[optimizer]",
            "STATE_NUMBERS.get(optimizer, 2)",
        ): 'You take "adam" as well. The optimizers have three names: raise ValueError for any other.',
        replace(
            "    if precision not",
            "    precision, optimizer = precision.lower(), optimizer.lower()\n    if precision not",
        ): "You take names in capitals as well. Raise ValueError for any name but the seven.",
        replace(
            " or optimizer", " and optimizer"
        ): "You raise only if both are unknown. One is enough.",
    }
)


training_memory.slips(
    {
        replace(
            "ELEMENT_BYTES[precision]",
            '(2, 2, 4, 4) if precision == "bf16 mixed" else ELEMENT_BYTES[precision]',
        ): "You take autocast for bfloat16 parameters with a master copy. Under autocast parameters, "
        "gradients and state stay float32, and only the forward pass casts.",
        replace(
            "ELEMENT_BYTES[precision]",
            '(2, 2, 0, 2) if precision == "bf16 mixed" else ELEMENT_BYTES[precision]',
        ): "You halve everything under autocast. Parameters, gradients and optimizer state stay float32.",
    }
)


@training_memory.alternative("a case for each precision")
def _(trainable, frozen=0, *, precision="fp32", optimizer="adamw"):
    if optimizer not in ("sgd", "momentum", "adamw"):
        raise ValueError(optimizer)
    numbers = ("sgd", "momentum", "adamw").index(optimizer) * trainable
    every = trainable + frozen
    match precision:
        case "fp32" | "bf16 mixed":
            return tenants(4 * every, 4 * trainable, 0, 4 * numbers)
        case "bf16 master":
            return tenants(2 * every, 2 * trainable, 4 * trainable, 4 * numbers)
        case "bf16":
            return tenants(2 * every, 2 * trainable, 0, 2 * numbers)
    raise ValueError(precision)


# ------------------------------------------------------------------------------ activation_bytes

activation_bytes = Exercise(
    accounting.activation_bytes,
    title="What a block keeps",
    difficulty=3,
    minutes=35,
    points=4,
    hints=(
        "Go through the block in order, and ask of each operation what its backward needs. Add up in units "
        "of batch · context · n_embd elements.",
        "LayerNorm: its input, and for each row a mean and a reciprocal deviation. Linear: its input. GELU: "
        "its input. Attention: q, k, v and its output.",
        "The input of c_attn is a LayerNorm's output, that of the MLP's second layer GELU's output: they "
        "are kept by the linear layers.",
        "In product bytes: 3 inputs of linear layers of width n_embd, q, k and v, and 4 + 4 for GELU: 14. In "
        "stream bytes: 2.",
        (
            "edge cases",
            "The softmax is computed in float32. If product is 4 it needs no cast, so no copy is kept.",
        ),
    ),
)


def block_case(batch, context, n_embd, n_head, **more):
    return call(batch, context, n_embd, n_head, **more)


@activation_bytes.by_hand
def _():
    yield call(1, 1, 1, 1), 84  # 2·4 + 2·8 + 14·4 + 4
    yield call(2, 3, 4, 2), 1680  # 2·(4·24 + 8·6) + 14·4·24 + 4·2·2·3
    yield call(2, 3, 4, 2, product=2), 1008
    yield call(2, 3, 4, 2, flash=False), 1776  # 36 scores instead of 12 sums
    yield call(2, 3, 4, 2, product=2, flash=False), 1176


@activation_bytes.cases
def _(draw):
    stream, product = draw(st.sampled_from([(4, 4), (4, 2), (2, 2)]))
    n_head = draw(st.integers(1, 4))
    yield call(
        draw(st.integers(1, 5)),
        draw(st.integers(1, 9)),
        n_head * draw(st.integers(1, 4)),
        n_head,
        stream=stream,
        product=product,
        flash=draw(st.booleans()),
    )


@activation_bytes.edge
def _():
    yield call(0, 8, 16, 4), "an empty batch keeps nothing"
    yield call(12, 1024, 768, 12, product=2), "GPT-2 small under autocast"
    yield call(1, 131072, 16384, 128, stream=2, product=2, flash=False), "scores of a long context"
    yield call(1, 5, 8, 2, stream=8, product=8), "float64, whose sums here stay float32"
    yield call(1, 5, 8, 2, product=4, flash=False), "no cast, no copy"
    yield call(1, 5, 8, 2, stream=8, product=8, flash=False), "float64: no copy either"
    yield call(1, 5, 8, 2, product=1, flash=False), "FP8: the copy has one byte an element"


activation_bytes.slips(
    {
        replace(
            "norms = 2 *", "norms ="
        ): "You count half of what the LayerNorms keep. A block has two, one before attention and one before "
        "the MLP; each keeps its input and two numbers for each row.",
        replace(
            " + 2 * 4 * rows", ""
        ): "You leave out the statistics: each LayerNorm keeps a mean and a "
        "reciprocal deviation for each row.",
        replace(
            "2 * 4 * rows", "4 * rows"
        ): "You count half of the statistics: two LayerNorms keep two float32 numbers each for a row, four "
        "in all.",
        replace(
            "2 * 4 * rows", "2 * stream * rows"
        ): "You keep the statistics in stream bytes. They are float32 whatever the input is.",
        replace(
            "2 * 4 * rows", "2 * product * rows"
        ): "You keep the statistics in product bytes. They are float32 whatever is multiplied.",
        replace(
            "stream * width", "product * width"
        ): "You keep the norms' inputs in product bytes. They are the residual stream itself.",
        replace(
            "* product * width", "* stream * width"
        ): "You keep what is multiplied in stream bytes. Autocast makes it bfloat16.",
        replace(
            " + 4 * batch * n_head * context", ""
        ): "Flash attention keeps one float32 for each head and "
        "query: the logarithm of the row's sum.",
        replace(
            "4 * batch * n_head * context\n", "product * batch * n_head * context\n"
        ): "The logarithms of the sums are float32, not of the products' dtype.",
        replace(
            "4 * batch * n_head * context\n", "4 * batch * context\n"
        ): "Each head has its own sums: multiply by n_head.",
        replace(
            "batch * n_head * context * context", "batch * context * context"
        ): "Each head has scores of its own: multiply by n_head.",
        replace(
            "batch * n_head * context * context", "n_head * context * context"
        ): "Each sequence has scores of its own: multiply by batch.",
        replace(
            "* maps", "* maps + 4 * batch * n_head * context"
        ): "You keep one number for each head and query without flash attention as well. There the softmax "
        "itself is kept, and nothing has to be computed again.",
        replace(
            "(4 + (product if product < 4 else 0))", "4"
        ): "Below 4 bytes, the second product needs the "
        "softmax in its own dtype: that copy is kept too.",
        replace(
            "(4 + (product if product < 4 else 0))", "product"
        ): "The softmax itself is kept in float32, whatever the products' dtype.",
        replace(
            "(4 + (product if product < 4 else 0))", "min(product, 4)"
        ): "Below 4 bytes you keep the copy alone. The softmax itself is kept in float32 as well.",
        replace(
            "(product if product < 4 else 0)", "product"
        ): "You count a copy even in float32. A cast to "
        "the dtype that a tensor has returns the tensor itself.",
        replace(
            "product < 4", "product != 4"
        ): "You count a copy wherever product is not 4. It is kept only where product is less.",
        replace(
            "product < 4", "product == 2"
        ): "You count a copy only where product is 2. It is kept wherever product is less than 4.",
        replace(
            "(4 + (product if product < 4 else 0))", "(8 + (product if product < 4 else 0))"
        ): "You keep the scores before the softmax as well. Its backward needs only its result.",
        replace(
            "rows = batch * context", "rows = context"
        ): "You count one sequence. There are `batch`.",
        replace(
            "if flash:", "if not flash:"
        ): "You have flash the wrong way round: with it no scores are kept.",
    }
)


activation_bytes.slips(
    {
        replace(
            " + 2 * 4 * rows", "", " + 4 * batch * n_head * context\n", "\n"
        ): "You count the large tensors only. The norms keep two numbers for each row, and flash attention "
        "one for each head and query.",
    }
)

WIDTHS = {  # in product bytes, of n_embd: how many are counted for the 14
    6: "Have you left out the MLP's hidden features?",
    7: "Have you left out some of q, k and v, and one of GELU's two sides?",
    8: "Have you taken GELU's two sides as wide as n_embd, or left one out?",
    9: "Have you left out one of GELU's two sides, and the input of a linear layer?",
    10: "Have you left out one of GELU's two sides?",
    11: "Have you left out q, k and v, or the inputs of the linear layers?",
    12: "Have you left out the outputs of the LayerNorms, which are not their inputs, or two of q, k and v?",
    13: "Have you left out one input of a linear layer?",
    15: "Have you counted the heads' output and the input of c_proj, which are the same, or what a residual "
    "addition keeps, which is nothing?",
    16: "Have you counted the outputs of c_proj and of the MLP? No backward needs them.",
    17: "Have you counted c_attn's output beside q, k and v? They are views of it.",
    18: "Have you counted GELU's output and the second layer's input, which are the same?",
}
for number, question in WIDTHS.items():
    activation_bytes.mistake(
        f"Your tensors in product bytes are {number} times as wide as n_embd together. They should be 14: three inputs of "
        f"linear layers, q, k and v, and four each for GELU's input and output. {question}",
        replace("(3 + 3 + 2 * 4)", str(number)),
    )


@activation_bytes.alternative("a list of tensors, each with its elements and bytes")
def _(batch, context, n_embd, n_head, *, stream=4, product=4, flash=True):
    x = batch * context * n_embd
    kept = []
    for _ in range(2):
        kept += [(x, stream), (batch * context, 4), (batch * context, 4)]
    kept += [(x, product)] * 6 + [(4 * x, product)] * 2
    scores = batch * n_head * context**2
    kept += [(batch * n_head * context, 4)] if flash else [(scores, 4)]
    if not flash and product < 4:
        kept.append((scores, product))
    return sum(n * size for n, size in kept)


# ------------------------------------------------------------------------------ matmul_intensity

matmul_intensity = Exercise(
    accounting.matmul_intensity,
    title="Arithmetic intensity of a product",
    difficulty=1,
    minutes=10,
    points=1,
    hints=(
        "Which three matrices move between memory and processor, and how many elements has each?",
        "(m, k), (k, n) and (m, n). Each element is moved once, in the best case.",
        "FLOPs are 2 · m · k · n; divide by bytes, not by elements.",
    ),
)
matmul_intensity.by_hand(
    lambda: [
        (call(1, 1, 1, 1), 2 / 3),
        (call(1, 2, 3), 6 / 11),
        (call(6, 6, 6), 2.0),
        (call(6, 6, 6, 4), 1.0),
    ]
)


@matmul_intensity.cases
def _(draw):
    m, k, n = (draw(st.integers(1, 4096)) for _ in range(3))
    yield call(m, k, n, draw(st.sampled_from([1, 2, 4])))


@matmul_intensity.edge
def _():
    yield call(1, 4096, 4096), "one row: a vector times a matrix"
    yield call(4096, 1, 4096), "an outer product"
    yield call(4096, 4096, 1, 4), "a matrix times a vector"


matmul_intensity.slips(
    {
        replace("2 * m", "m"): "You count multiply-adds: each is two FLOPs.",
        replace(" + m * n", ""): "The result has to be written, too.",
        replace("m * k + ", ""): "You leave out the left factor.",
        replace(
            "m * k + k * n + m * n", "m * k * n"
        ): "You count an element for each FLOP. Each of the three "
        "matrices is moved once; that is why large products are efficient.",
        replace(
            "element_size * (m", "(m"
        ): "You divide by elements. Memory moves bytes: multiply by element_size.",
        replace(
            "element_size * (m * k + k * n + m * n)", "element_size * (m * k + k * n + 2 * m * n)"
        ): "You move the result twice. It is written once; nothing was there to read.",
        replace(
            "/ (element_size * (", "/ ((1 / element_size) * ("
        ): "You divide by element_size twice over: "
        "larger elements are more bytes and lower the intensity.",
        replace(
            "m * k + k * n + m * n", "m + k + n"
        ): "You add sizes of axes. A matrix of (m, k) has m · k elements.",
        replace(
            "m * k + k * n + m * n", "k * n"
        ): "You count the weight alone. That is close for one row, and wrong for many.",
        replace("n / (", "n // ("): "You round down. The intensity is a ratio, a float.",
    }
)


matmul_intensity.slips(
    {
        replace(
            "element_size * (m * k + k * n + m * n)", "element_size * (m * k + k * n) + m * n"
        ): "The result's elements have element_size bytes, too.",
        replace(
            "element_size * (m * k + k * n + m * n)", "element_size * (m * k + k * n) + 4 * m * n"
        ): "You write the result in float32, 4 bytes an element. It is written like the factors, in "
        "element_size bytes.",
        replace(
            "2 * m * k * n / (", "(2 * k - 1) * m * n / ("
        ): "You count one addition less in each sum. The convention is 2 · m · k · n.",
        replace(
            "m * k + k * n + m * n", "m * n * (2 * k + 1)"
        ): "You read a row and a column anew for each element of the result. Both factors are read once: a "
        "kernel keeps what it needs again.",
        replace(
            "m * k + k * n + m * n", "2 * m * k * n"
        ): "You move two elements for each multiply-add. Each of the three matrices is moved once.",
        replace(
            "m * k + k * n + m * n", "m * k + m * k * n + m * n"
        ): "You read the right factor anew for each row of the left. Both are read once.",
        replace(
            "return 2 * m * k * n / (", "return float(2 * m * k * n // (", "+ m * n)", "+ m * n))"
        ): "You round down before you make it a float. The intensity has digits behind the point.",
        replace(
            "return 2 * m * k * n / (", "return round(2 * m * k * n / (", "+ m * n)", "+ m * n))"
        ): "You round to a whole number. The intensity is a ratio, a float.",
    }
)


@matmul_intensity.alternative("the reciprocal of the bytes a FLOP takes")
def _(m, k, n, element_size=2):
    return 2 / (element_size * (1 / m + 1 / k + 1 / n))


# ------------------------------------------------------------------------------ roofline_time

roofline_time = Exercise(
    accounting.roofline_time,
    title="No faster than the roof",
    difficulty=2,
    minutes=15,
    points=2,
    hints=(
        "How long does one operation compute, and how long does it move bytes?",
        "Both go on at the same time, so one operation takes the longer of the two.",
        "Add up over the operations: the next starts when this one is done.",
    ),
)


@roofline_time.by_hand
def _():
    yield call([(100.0, 10.0)], 10.0, 10.0), 10.0
    yield call([(10.0, 100.0)], 10.0, 10.0), 10.0
    yield call([(100.0, 10.0), (10.0, 100.0)], 10.0, 10.0), 20.0
    yield call([(100.0, 30.0)], 50.0, 10.0), 3.0


@roofline_time.cases
def _(draw):
    one = st.tuples(st.integers(0, 10**6).map(float), st.integers(1, 10**6).map(float))
    operations = draw(st.lists(one, min_size=1, max_size=4))
    rates = (draw(st.integers(1, 1000)) * 1e3 for _ in range(2))
    yield call(operations, *rates)


@roofline_time.edge
def _():
    yield call([(0.0, 5.0)], 10.0, 10.0), "a copy has no FLOPs"
    yield call([(5.0, 0.0)], 10.0, 10.0), "all of it in registers"
    yield call([(1e15, 1e9)] * 3, 989.4e12, 3.35e12), "three large products on an H100"
    yield call(((100.0, 30.0), (10.0, 100.0)), 50.0, 10.0), "a tuple of operations"
    yield call([(1.0, 1.0)], 0.0, 1.0), "nothing computes"
    yield call([(1.0, 1.0)], 1.0, 0.0), "nothing moves"
    yield call([(1.0, 1.0)], -1.0, 1.0), "a negative speed"
    yield call([(1.0, 1.0)], 1.0, -1.0), "a negative bandwidth"
    yield call([(1.0, 1.0)], 0.5, 0.25), "less than one FLOP or byte a second"
    yield call([(1.0, 1.0)], 0.0, 0.0), "neither computes nor moves"
    yield call([(1.0, 1.0)], -1.0, -1.0), "two negative speeds"


roofline_time.slips(
    {
        replace(
            "max(flops", "min(flops"
        ): "You take the faster of the two. An operation is done when both "
        "are: the slower decides.",
        replace(
            "max(flops / peak_flops, size / bandwidth)", "flops / peak_flops + size / bandwidth"
        ): "You add computing and moving. They go on at the same time: take the longer.",
        replace(
            "max(flops / peak_flops, size / bandwidth)", "flops / peak_flops"
        ): "You count computing alone. Most operations of a model wait for memory.",
        replace(
            "max(flops / peak_flops, size / bandwidth)", "size / bandwidth"
        ): "You count memory alone. A large product waits for its arithmetic.",
        replace(
            "flops / peak_flops", "flops / bandwidth", "size / bandwidth", "size / peak_flops"
        ): "You divide FLOPs by the bandwidth and bytes by the FLOP/s. Look at the units.",
        replace(
            "return sum(", "return max("
        ): "You let all operations run at once. One follows the other: add their times.",
        replace(
            "flops / peak_flops, size / bandwidth",
            "peak_flops / flops if flops else 0.0, bandwidth / size if size else 0.0",
        ): "You divide the wrong way round: FLOPs by FLOP/s are seconds.",
        replace(
            "peak_flops <= 0 or bandwidth <= 0", "False"
        ): "A machine without speed is a mistake of the caller: raise ValueError.",
        replace(
            "peak_flops <= 0 or bandwidth <= 0", "peak_flops < 0 or bandwidth < 0"
        ): "You let 0 through: a division by zero. Both have to be above 0.",
        replace(
            "peak_flops <= 0 or bandwidth <= 0", "peak_flops == 0 or bandwidth == 0"
        ): "You let negative speeds through.",
        replace(
            "peak_flops <= 0 or bandwidth <= 0", "peak_flops * bandwidth <= 0"
        ): "You look at the product of the two speeds, which is above 0 where both are negative. Look at each.",
        replace(
            "in operations)", "in [operations.pop() for _ in range(len(operations))])"
        ): "You take the operations off the caller's own list, which is empty afterwards. Go through it in a "
        "loop, or copy it first.",
        replace(
            "in operations)", "in operations + [])"
        ): "Your code takes a list only. A sequence may be a tuple as well: go through it in a loop, or make a list "
        "of it first.",
        replace(
            " <= 0 or bandwidth", " <= 0 and bandwidth"
        ): "You refuse only if both are wrong. One is enough.",
    }
)


@roofline_time.mistake(
    "You add up all FLOPs and all bytes, and compare the sums. A slow copy cannot hide behind another "
    "operation's arithmetic: compare for each operation."
)
def _(operations, peak_flops, bandwidth):
    if peak_flops <= 0 or bandwidth <= 0:
        raise ValueError("no speed")
    return max(
        sum(f for f, _ in operations) / peak_flops, sum(b for _, b in operations) / bandwidth
    )


roofline_time.slips(
    {
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            "max(flops / peak_flops, size / bandwidth)",
            "(flops / peak_flops if flops > size else size / bandwidth)",
        ): "You compare FLOPs with bytes. Compare times: an operation is compute-bound above peak_flops / "
        "bandwidth FLOPs a byte, not above 1.",
        replace(
            "max(flops / peak_flops, size / bandwidth)",
            "(size / bandwidth if size / flops > bandwidth / peak_flops else flops / peak_flops)",
        ): "You divide by an operation's FLOPs, and a copy has none. Compare times, or products.",
        replace(
            "max(flops / peak_flops, size / bandwidth)",
            "(flops / peak_flops if flops / size > peak_flops / bandwidth else size / bandwidth)",
        ): "You divide by an operation's bytes, and it may move none. Compare times, or products.",
    }
)


@roofline_time.alternative("compare the intensity with the ridge")
def _(operations, peak_flops, bandwidth):
    if min(peak_flops, bandwidth) <= 0:
        raise ValueError("no speed")
    ridge, seconds = peak_flops / bandwidth, 0.0
    for flops, size in operations:
        seconds += flops / peak_flops if flops > ridge * size else size / bandwidth
    return seconds


# ------------------------------------------------------------------------------ mfu

mfu = Exercise(
    accounting.mfu,
    title="Model FLOPs utilization",
    difficulty=1,
    minutes=10,
    points=1,
    hints=(
        "How many FLOPs does a token cost? How many tokens are there in a second?",
        "That is FLOP/s achieved. Divide by what all GPUs could do at their peak.",
        "`6 * n_parameters + 12 * n_layer * n_embd * context` for a token.",
    ),
)


@mfu.by_hand
def _():
    yield call(10.0, 100, 6000.0), 1.0
    yield call(10.0, 100, 6000.0, n_gpus=4), 0.25
    yield call(10.0, 100, 6000.0, n_layer=1, n_embd=5, context=10), 2.0
    yield (
        call(
            238.3e3,
            540_350_000_000,
            275e12,
            n_gpus=6144,
            n_layer=118,
            n_embd=48 * 256,
            context=2048,
        ),
        0.4622894202513182,  # PaLM: 46.2 %
    )


@mfu.cases
def _(draw):
    yield call(
        float(draw(st.integers(1, 10**6))),
        draw(st.integers(1, 10**9)),
        draw(st.integers(1, 1000)) * 1e12,
        n_gpus=draw(st.integers(1, 64)),
        n_layer=draw(st.integers(1, 96)),
        n_embd=draw(st.integers(1, 8192)),
        context=draw(st.integers(1, 8192)),
    )


@mfu.edge
def _():
    yield call(0.0, 100, 1e12), "a run that stands still"
    yield call(1e4, 124_439_808, 1e14), "attention left out"
    yield call(1e4, 100, 1e12, n_gpus=0), "no GPU"
    yield call(1e4, 100, 1e12, n_gpus=-8), "a negative number of GPUs"


mfu.slips(
    {
        replace(
            "6 * n_parameters", "2 * n_parameters"
        ): "Your parameters cost 2 FLOPs a token each, the forward pass alone. Training costs 6.",
        replace(
            "6 * n_parameters", "8 * n_parameters"
        ): "You count the forward pass twice. That is hardware "
        "FLOPs utilization, with recomputation; the model's own FLOPs count once.",
        replace(
            " + 12 * n_layer * n_embd * context", ""
        ): "You leave out attention: 12 · n_layer · n_embd · context for a token.",
        replace(
            "12 *", "6 *"
        ): "Your attention is half of it. A token costs 12 · n_layer · n_embd · context there, and a causal "
        "mask takes nothing off.",
        replace(
            "6 * n_parameters + 12 * n_layer * n_embd * context",
            "6 * (n_parameters + 12 * n_layer * n_embd * context)",
        ): "Your 6 multiplies attention's term as well. The 12 has forward and backward in it already: the 6 "
        "belongs to n_parameters alone.",
        replace(
            "return tokens_per_second * per_token / (n_gpus * peak_flops)",
            "return min(1.0, tokens_per_second * per_token / (n_gpus * peak_flops))",
        ): "You cut the share off at 1. Where it comes out above, one of the figures is wrong, and your "
        "result hides it.",
        replace("12 * n_layer *", "12 *"): "You count the attention of one layer.",
        replace(
            "n_embd * context", "n_embd * context * context"
        ): "You count a whole sequence's attention for one token. A token meets `context` others.",
        replace(
            "(n_gpus * peak_flops)", "peak_flops"
        ): "The number of GPUs has no effect in yours: tokens_per_second is of all of them together, "
        "peak_flops of one.",
        replace(
            "(n_gpus * peak_flops)", "peak_flops * n_gpus"
        ): "You multiply by the number of GPUs. The tokens are of all GPUs together: divide.",
        replace(
            "return tokens", "return 100 * tokens"
        ): "You return a percentage. A share of 1.0 is all of the peak.",
        replace("n_gpus < 1", "False"): "A run on no GPU has no utilization: raise ValueError.",
        replace("n_gpus < 1", "n_gpus == 0"): "You let a negative number of GPUs through.",
        replace("n_gpus < 1", "n_gpus < 0"): "You let 0 GPUs through: a division by zero.",
        replace(
            "tokens_per_second * per_token", "per_token / max(tokens_per_second, 1e-300)"
        ): "You divide by the tokens a second. FLOPs of a token times tokens a second are FLOP/s.",
    }
)


mfu.slips(
    {
        replace(
            "tokens_per_second * per_token",
            "(tokens_per_second * 6 * n_parameters + 12 * n_layer * n_embd * context)",
        ): "You count attention once a second. Both terms are for one token: multiply their sum by the "
        "tokens a second.",
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            "6 * n_parameters + 12 *", "2 * n_parameters + 4 *"
        ): "You have a third of it, which is the forward pass. Backward costs twice as much again.",
        replace(
            "6 * n_parameters + 12 *", "4 * n_parameters + 8 *"
        ): "You have two thirds of it. A token costs 2 FLOPs a parameter forward and 4 backward, and attention "
        "4 and 8 for each of n_layer · n_embd · context.",
        replace(
            "6 * n_parameters + 12 *", "3 * n_parameters + 6 *"
        ): "You have half of it. A multiply-add is two FLOPs.",
        replace(
            "6 * n_parameters + 12 *", "8 * n_parameters + 16 *"
        ): "You have a third too much: so many FLOPs a GPU does if it computes the forward pass twice. The "
        "model's own count once.",
        replace(
            "12 *", "4 *"
        ): "Your attention is its forward pass alone, 4 · n_layer · n_embd · context for a token. Training "
        "costs 12.",
    }
)


@mfu.alternative("the speed over the highest speed, as PaLM defines it")
def _(tokens_per_second, n_parameters, peak_flops, *, n_gpus=1, n_layer=0, n_embd=0, context=0):
    if n_gpus <= 0:
        raise ValueError(n_gpus)
    highest = n_gpus * peak_flops / (6 * n_parameters + 12 * n_layer * context * n_embd)
    return tokens_per_second / highest


# ------------------------------------------------------------------------------ days_to_train

days_to_train = Exercise(
    accounting.days_to_train,
    title="Days to train",
    difficulty=1,
    minutes=10,
    points=1,
    hints=(
        "How many FLOPs are there in all? Six for each parameter and token.",
        "FLOP/s of all GPUs together, at the share that is used.",
        "A day has 86,400 seconds.",
        ("edge cases", "A share above 1, such as 40 for 40 %, raises ValueError. So does 0."),
    ),
)


@days_to_train.by_hand
def _():
    yield call(1, 86_400, 6, 1.0, 1.0), 1.0
    yield call(1, 86_400, 6, 1.0, 0.5), 2.0
    yield call(70 * 10**9, 15 * 10**12, 1024, 989.4e12, 0.5), 143.94114067448285
    yield call(174_600_000_000, 300 * 10**9, 1000, 1e15, 1.0), 3.6375


@days_to_train.cases
def _(draw):
    yield call(
        draw(st.integers(1, 10**12)),
        draw(st.integers(1, 10**13)),
        draw(st.integers(1, 20_000)),
        draw(st.integers(1, 5000)) * 1e12,
        draw(st.sampled_from([0.1, 0.35, 0.4, 0.462, 1.0])),
    )


@days_to_train.edge
def _():
    yield call(10**9, 10**10, 8, 1e15, 1.0), "the whole peak"
    yield call(10**9, 10**10, 8, 1e15, 0.0), "nothing is used"
    yield call(10**9, 10**10, 8, 1e15, 40.0), "forty per cent, written as 40"
    yield call(10**9, 10**10, 8, 1e15, 1.01), "more than the peak"
    yield call(10**9, 10**10, 8, 1e15, -0.4), "a negative share"


ANY_SHARE = "A share is above 0 and at most 1: raise ValueError for another, such as 40 for 40 %."
ABOVE_ONE = "You let a share above 1 through. Somebody meant per cent."
NOTHING = "You let 0 through: a division by zero."
NOT_ALL = "You refuse 1, which is all of the peak."
days_to_train.slips(
    {
        replace("6 * n", "2 * n"): "You count the forward pass alone: 2 of 6 FLOPs.",
        replace(
            "6 * n", "4 * n"
        ): "You leave something out: 2 FLOPs forward and 4 backward for each parameter and token.",
        replace("6 * n", "3 * n"): "You count multiply-adds: each is two FLOPs.",
        replace(" * mfu)", ")"): "You train at the peak. Divide by the share that is used, too.",
        replace(
            "(n_gpus * peak_flops * mfu)", "(n_gpus * peak_flops) * mfu"
        ): "You multiply by the share. Less utilization takes longer.",
        replace("(n_gpus * peak_flops * mfu)", "(peak_flops * mfu)"): "You train on one GPU.",
        replace(" / SECONDS_PER_DAY", ""): "These are seconds.",
        replace("SECONDS_PER_DAY", "3600"): "These are hours.",
        replace(
            "SECONDS_PER_DAY", "60 * 60 * 24"
        ): "/ and * go from left to right: you divide by 60, then "
        "multiply by 60 and by 24. Put the seconds of a day in brackets.",
        replace(
            "SECONDS_PER_DAY", "24 * 60 * 60"
        ): "/ and * go from left to right: you divide by 24, then multiply by 60 twice. Put the seconds of a "
        "day in brackets.",
        replace("0 < mfu <= 1", "True"): ANY_SHARE,
        replace("0 < mfu <= 1", "0 < mfu"): ABOVE_ONE,
        replace(
            "    if not", "    mfu = mfu / 100 if mfu > 1 else mfu\n    if not"
        ): "You take a share above 1 for per cent, and divide it by 100. Raise ValueError: nobody knows what "
        "the caller of 1.01 meant.",
        replace("0 < mfu <= 1", "mfu <= 1"): "You let a share of 0 or less through.",
        replace("0 < mfu <= 1", "0 <= mfu <= 1"): NOTHING,
        replace("0 < mfu <= 1", "0 < mfu < 1"): NOT_ALL,
    }
)


days_to_train.slips(
    {
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            "/ SECONDS_PER_DAY", "// SECONDS_PER_DAY"
        ): "You round down to whole days. The estimate is a float.",
        replace(
            "return 6", "return float(ceil(6", "SECONDS_PER_DAY", "SECONDS_PER_DAY))"
        ): "You round up to whole days. The estimate keeps its digits behind the point.",
        replace(
            "return 6", "return ceil(6", "SECONDS_PER_DAY", "SECONDS_PER_DAY)"
        ): "You round up to whole days, an int. The estimate is a float.",
        replace(
            "return 6", "return float(round(6", "SECONDS_PER_DAY", "SECONDS_PER_DAY))"
        ): "You round to the nearest whole day. The estimate keeps its digits behind the point.",
        replace(
            "return 6", "return round(6", "SECONDS_PER_DAY", "SECONDS_PER_DAY)"
        ): "You round to the nearest whole day, an int. The estimate is a float.",
        replace(
            "return 6", "return int(6", "SECONDS_PER_DAY", "SECONDS_PER_DAY)"
        ): "You cut off part of a day, and return an int. The estimate is a float.",
        replace("SECONDS_PER_DAY", "(8 * 3600)"): "A day has 24 hours, for GPUs at least.",
    }
)


@days_to_train.alternative("in PFLOP/s-days, exactly")
def _(n_parameters, n_tokens, n_gpus, peak_flops, mfu):
    if mfu <= 0 or mfu > 1:
        raise ValueError(mfu)
    petaflop_days = Fraction(6 * n_parameters * n_tokens, 86_400 * 10**15)
    return float(petaflop_days / (n_gpus * Fraction(peak_flops) * Fraction(mfu) / 10**15))


# ------------------------------------------------------------------------------ communication_bytes

communication_bytes = Exercise(
    accounting.communication_bytes,
    title="What a step sends",
    difficulty=2,
    minutes=15,
    points=2,
    hints=(
        "Cut the vector into as many chunks as there are ranks. How long is each, padding included?",
        "Reduce-scatter: every rank sends one chunk in each of world_size − 1 steps.",
        "All-gather: as many steps again.",
        (
            "edge cases",
            "One rank sends nothing. A chunk's length is rounded up, since padding is sent too.",
        ),
    ),
)


@communication_bytes.by_hand
def _():
    yield call(100, 4), 600
    yield call(100, 4, 2), 300
    yield call(100, 2), 400
    yield call(10, 4), 72  # chunks of 3


@communication_bytes.cases
def _(draw):
    yield call(
        draw(st.integers(1, 10**6)),
        draw(st.integers(1, 64)),
        draw(st.sampled_from([1, 2, 4, 8])),
    )


@communication_bytes.edge
def _():
    yield call(100, 1), "one rank alone"
    yield call(0, 8), "no parameters"
    yield call(3, 8), "more ranks than parameters"
    yield call(2**60 + 1, 3), "integers all the way"
    yield call(100, 0), "no ranks"
    yield call(100, -2), "a negative number of ranks"


A_STEP_TOO_MANY = "A chunk that has passed world_size − 1 links has met every rank."
communication_bytes.slips(
    {
        replace(
            "2 * (world_size", "(world_size"
        ): "You count one half: a reduce-scatter, and then an all-gather that costs the same.",
        replace("(world_size - 1)", "world_size"): A_STEP_TOO_MANY,
        replace("(world_size - 1)", "world_size * (world_size > 1)"): A_STEP_TOO_MANY,
        replace(
            "2 * (world_size - 1)", "(2 * world_size - 1) * (world_size > 1)"
        ): "You let one of the two halves take world_size steps. Both take world_size − 1: a chunk that has "
        "passed so many links has met every rank.",
        replace(
            "-(-n_parameters // world_size)", "n_parameters"
        ): "You send the whole vector in each step. A ring sends one chunk of it.",
        replace(
            "-(-n_parameters // world_size)", "n_parameters // world_size"
        ): "You round the chunk down, and some gradients are never sent.",
        replace(
            "* chunk * element_size", "* n_parameters * element_size // world_size"
        ): "You divide at the "
        "end. The chunks are equal, and padded: round up to whole elements first.",
        replace(
            "return 2 *", "return world_size * 2 *"
        ): "You count what all ranks send. One rank is asked for.",
        replace(
            "2 * (world_size - 1) * chunk", "2 * n_parameters"
        ): "2 · n_parameters is what it tends to for many ranks. For a few it is less.",
        replace(" * element_size", ""): "You count elements. Bytes are asked for.",
        replace(
            "-(-n_parameters // world_size)", "-int(-n_parameters / world_size // 1)"
        ): "You divide to a float, which beyond 2⁵³ skips integers: -(-n // m) rounds up exactly.",
        replace(
            "-(-n_parameters // world_size)", "n_parameters / world_size"
        ): "You send fractions of an element. Round a chunk up, and return an int.",
        replace(
            "-(-n_parameters // world_size)", "n_parameters // world_size + 1"
        ): "You add one element even where the division is exact.",
        replace(
            "world_size < 1", "False"
        ): "There is no world of fewer than one rank: raise ValueError.",
        replace("world_size < 1", "world_size == 0"): "You let a negative number of ranks through.",
        replace(
            "world_size < 1", "world_size <= 1"
        ): "You refuse one rank. It sends nothing, which is 0.",
    }
)


communication_bytes.slips(
    {
        replace(
            "2 * (world_size - 1) * chunk", "2 * (world_size > 1) * n_parameters"
        ): "Two whole vectors are what it tends to for many ranks. A rank sends 2 · (world_size − 1) chunks.",
        replace(
            "-(-n_parameters // world_size)",
            "-(-n_parameters * element_size // world_size)",
            "chunk * element_size",
            "chunk",
        ): "You round a chunk up to whole bytes. It is of whole elements: round up their number, then multiply "
        "by element_size.",
        replace(
            "-(-n_parameters // world_size)",
            "n_parameters * element_size // world_size",
            "chunk * element_size",
            "chunk",
        ): "You cut a chunk off at whole bytes, and some are never sent. It is of whole elements: round up their "
        "number, then multiply by element_size.",
        replace(
            "return 2 * (world_size - 1) * chunk * element_size",
            "return -(-2 * (world_size - 1) * n_parameters * element_size // world_size)",
        ): "You round up at the end. Each of the equal chunks is of whole elements: round up first.",
        replace(
            "raise ValueError(", "assert False, ("
        ): "An assert raises AssertionError, and python -O drops it. Raise ValueError.",
        replace(
            *("world_size < 1", "world_size <= 1"),
            *('raise ValueError(f"a world of {world_size} ranks")', "return 0"),
        ): "You return 0 for fewer than one rank as well. One rank sends nothing; below 1 raise ValueError.",
    }
)


@communication_bytes.alternative("message by message")
def _(n_parameters, world_size, element_size=4):
    if world_size <= 0:
        raise ValueError(world_size)
    padded = n_parameters + -n_parameters % world_size
    messages = [padded // world_size * element_size] * (world_size - 1)
    return sum(messages) + sum(messages)


# ------------------------------------------------------------------------------ plan_training

plan_training = Exercise(
    accounting.plan_training,
    title="The fewest GPUs",
    difficulty=3,
    minutes=30,
    points=4,
    hints=(
        "Two numbers of GPUs: the fewest that hold the state, and the fewest that are done in time. Which "
        "one decides?",
        "A GPU has gpu_bytes − activations bytes for its share. Divide the state by that, and round up.",
        "One GPU would take days_to_train(…, 1, …); n GPUs an n-th of that.",
        "Take the larger number, round it up to whole nodes, and only then compute days and bytes.",
        ("edge cases", "If activations fill a GPU, no number of GPUs is enough: raise ValueError."),
    ),
)

H100 = {"peak_flops": 989.4e12, "gpu_bytes": 80 * 10**9}
TOY = {"peak_flops": 1.0, "gpu_bytes": 100, "mfu": 1.0, "gpus_per_node": 1, "dollars_per_hour": 1.0}


@plan_training.by_hand
def _():
    # one GPU: 6 · 100 · 1440 / 86,400 = 10 days; 1600 bytes of state
    yield call(100, 1440, 30.0, **TOY), {"gpus": 16, "days": 0.625, "bytes": 100, "dollars": 240.0}
    yield (
        call(100, 1440, 0.3, **TOY),
        {"gpus": 34, "days": 10 / 34, "bytes": 48, "dollars": 240.0},
    )
    yield (
        call(100, 1440, 30.0, **TOY | {"gpus_per_node": 8}, activations=20),
        {"gpus": 24, "days": 10 / 24, "bytes": 87, "dollars": 240.0},
    )


@plan_training.cases
def _(draw):
    yield call(
        draw(st.integers(10**8, 10**12)),
        draw(st.integers(10**9, 2 * 10**13)),
        float(draw(st.integers(1, 400))),
        **H100,
        mfu=draw(st.sampled_from([0.2, 0.35, 0.5])),
        bytes_per_parameter=draw(st.sampled_from([12, 16, 18])),
        activations=draw(st.integers(0, 79)) * 10**9,
        gpus_per_node=draw(st.sampled_from([1, 4, 8])),
        dollars_per_hour=draw(st.sampled_from([1.5, 2.0, 3.25])),
    )


@plan_training.edge
def _():
    yield call(70 * 10**9, 15 * 10**12, 60.0, **H100), "all else by default"
    yield call(70 * 10**9, 10**9, 60.0, **H100), "few tokens: memory decides"
    yield call(10**8, 15 * 10**12, 7.0, **H100), "a small model: the deadline decides"
    yield call(10**6, 10**6, 60.0, **H100), "one node, however small the run"
    yield call(10**9, 10**9, 9.0, **H100, activations=80 * 10**9), "activations fill the GPU"
    yield call(10**9, 10**9, 9.0, **H100, activations=81 * 10**9), "activations do not even fit"
    yield call(10**6, 10**6, 9.0, **H100, activations=80 * 10**9 - 1), "one byte of room"
    yield call(100, 1440, 30.0, **TOY, activations=20), "single GPUs, filled to the last byte"
    yield call(100, 1440, 0.25, **TOY), "single GPUs, done at the very end of max_days"
    yield call(10**9, 10**9, 9.0, **H100, mfu=0.0), "a share of nothing"
    yield call(10**9, 10**9, 9.0, **H100, mfu=1.5), "a share above 1"


ALONE = "days_to_train(n_parameters, n_tokens, 1, peak_flops, mfu)"
AT_ANY_SHARE = "6 * n_parameters * n_tokens / (peak_flops * mfu) / SECONDS_PER_DAY"
plan_training.slips(
    {
        replace(ALONE, AT_ANY_SHARE): ANY_SHARE,
        replace(ALONE, f"{AT_ANY_SHARE} if mfu > 1 else {ALONE}"): ABOVE_ONE,
        replace(ALONE, f"{AT_ANY_SHARE} if mfu == 0 else {ALONE}"): NOTHING,
        replace(ALONE, ALONE.replace("mfu)", "mfu if mfu < 1 else 0)")): NOT_ALL,
        replace(
            "max(-(-state // room), ceil(alone / max_days))", "ceil(alone / max_days)"
        ): "You look at the deadline alone. The GPUs have to hold the model's state as well.",
        replace(
            "max(-(-state // room), ceil(alone / max_days))", "-(-state // room)"
        ): "You look at memory alone, and miss the deadline.",
        replace(
            "max(-(-state", "min(-(-state"
        ): "You take the smaller of the two numbers. Both conditions have to hold.",
        replace(
            "gpu_bytes - activations", "gpu_bytes"
        ): "You fill the GPU with state. Its activations need room as well.",
        replace(
            "-(-state // room)", "state // room"
        ): "You round down: then the last bytes have no place.",
        replace(
            "ceil(alone / max_days)", "int(alone / max_days)"
        ): "You round down, and come in late.",
        replace(
            "ceil(alone / max_days)", "int(alone / max_days) + 1"
        ): "You round down and add one, which is a GPU too many where they are done at the very end of max_days. "
        "Round up.",
        replace(
            "ceil(alone / max_days)", "round(alone / max_days)"
        ): "You round to the nearest, and come in late half of the time. Round up.",
        replace(
            "-(-needed // gpus_per_node) * gpus_per_node", "needed"
        ): "GPUs come in whole nodes: round up to a multiple of gpus_per_node.",
        replace(
            "-(-needed // gpus_per_node) * gpus_per_node", "-(-needed // gpus_per_node)"
        ): "You return nodes. Multiply by the GPUs in each.",
        replace(
            "-(-needed // gpus_per_node) * gpus_per_node",
            "max(needed // gpus_per_node, 1) * gpus_per_node",
        ): "You round the nodes down.",
        replace(
            "-(-needed // gpus_per_node) * gpus_per_node",
            "(needed // gpus_per_node + 1) * gpus_per_node",
        ): "You add a node even where the GPUs fill whole nodes.",
        replace(
            "alone / gpus,", "alone / needed,"
        ): "You compute the days before rounding up to nodes. The GPUs that you rent all work.",
        replace(
            '"days": alone / gpus', '"days": max_days'
        ): "You return the deadline. More GPUs than needed are done sooner.",
        replace(
            "activations + -(-state // gpus)", "-(-state // gpus)"
        ): "A GPU's bytes include its activations.",
        replace(
            "activations + -(-state // gpus)", "activations + state"
        ): "You give each GPU the whole state. It is shared out over all of them.",
        replace(
            "activations + -(-state // gpus)", "-(-(activations + state) // gpus)"
        ): "You share out the activations as well. Each GPU has its own.",
        replace(
            "activations + -(-state // gpus)", "activations + -(-state // needed)"
        ): "The share is of the GPUs in whole nodes, not of those that would just do.",
        replace(
            "activations + -(-state // gpus)", "activations + state // gpus"
        ): "You round the share down. Some GPU has to hold the rest.",
        replace("24 * alone", "alone"): "You pay by the day. The price is for an hour.",
        replace(
            "24 * alone", "24 * alone / gpus"
        ): "You pay for one GPU. All of them cost, for all the time.",
        replace(
            "room <= 0", "room < 0"
        ): "A room of 0 bytes holds nothing: raise ValueError there too.",
        replace("room <= 0", "False"): "You never look whether activations leave any room.",
        replace("peak_flops, mfu)", "peak_flops, 1.0)"): "You train at the peak: use mfu.",
    }
)


plan_training.slips(
    {
        replace(
            "-(-state // room)", "-(-state // gpu_bytes)"
        ): "You check that activations leave room, and then give the state the whole GPU.",
        replace(
            "max(-(-state // room), ceil(alone / max_days))",
            "-(-state // room) + ceil(alone / max_days)",
        ): "You add the two numbers of GPUs. The same GPUs hold the state and compute: take the larger.",
        replace(
            "24 * alone * dollars", "24 * max_days * gpus * dollars"
        ): "You pay until the deadline. The run may be done before.",
        replace(
            "-(-needed // gpus_per_node) * gpus_per_node", "max(needed, gpus_per_node)"
        ): "You take at least one node, and then single GPUs. Round up to whole nodes.",
        replace(
            "alone / gpus", "alone / needed", "24 * alone", "24 * alone / needed * gpus"
        ): "You compute the days, and the dollars by them, before rounding up to nodes. The GPUs that you rent all "
        "work, and are done sooner.",
        replace(
            "24 * alone", "24 * alone / gpus * needed"
        ): "You pay for the GPUs before rounding up to nodes. All that you rent cost.",
        replace(
            "* n_parameters",
            "* n_parameters + activations",
            "-(-state // room)",
            "-(-state // gpu_bytes)",
            "activations + -(-state // gpus)",
            "-(-state // gpus)",
        ): "You share out the activations with the state. Each GPU has its own: they take from its room, and add "
        "to its bytes.",
        replace(
            "-(-state // room)", "-(-(state + activations) // gpu_bytes)"
        ): "You share out the activations where you look how many GPUs hold the state. They take from the room of "
        "each.",
    }
)


@plan_training.alternative("add nodes until it fits and is done in time")
def _(
    n_parameters,
    n_tokens,
    max_days,
    *,
    peak_flops,
    gpu_bytes,
    mfu=0.4,
    bytes_per_parameter=16,
    activations=0,
    gpus_per_node=8,
    dollars_per_hour=2.0,
):
    if activations >= gpu_bytes or not 0 < mfu <= 1:
        raise ValueError("no room, or no share")
    state = n_parameters * bytes_per_parameter
    fit = ceil(Fraction(state, gpu_bytes - activations))
    seconds = 6 * n_parameters * n_tokens / (peak_flops * mfu)
    in_time = ceil(seconds / 86400 / max_days)
    gpus = ceil(Fraction(max(fit, in_time), gpus_per_node)) * gpus_per_node
    hours = seconds / 3600 / gpus
    return {
        "gpus": gpus,
        "days": hours / 24,
        "bytes": activations + ceil(Fraction(state, gpus)),
        "dollars": hours * gpus * dollars_per_hour,
    }


transformer_flops.equivalent(
    "transformer_flops: `attention_flops(batch, 1, context, context, n_embd)` → `attention_flops(1, batch, "
    "context, context, n_embd)`",
    because="the count is proportional to batch and to heads, so only their product matters",
)
activation_bytes.equivalent(
    "activation_bytes: `product < 4` → `product < 3`", because="no dtype has elements of 3 bytes"
)
plan_training.equivalent(
    "plan_training: `days_to_train(n_parameters, n_tokens, 1, peak_flops, mfu)` → `days_to_train(n_tokens, "
    "n_parameters, 1, peak_flops, mfu)`",
    because="the FLOPs are 6 times the product of the two, exactly",
)
