"""Predictions and the quiz of chapter 8."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

registered = Prediction(
    "Which of these does m.parameters() find?",
    code=(
        "class M(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = nn.Parameter(torch.ones(2))\n"
        "        self.b = torch.ones(3, requires_grad=True)\n"
        "        self.c = nn.Linear(4, 5)\n"
        "        self.d = [nn.Linear(4, 5)]\n"
        "        self.e = nn.ModuleList([nn.Linear(4, 5)])\n"
        '        self.register_buffer("f", torch.ones(6))\n'
    ),
    setup=(
        "import torch\n"
        "from torch import nn\n"
        "class M(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = nn.Parameter(torch.ones(2))\n"
        "        self.b = torch.ones(3, requires_grad=True)\n"
        "        self.c = nn.Linear(4, 5)\n"
        "        self.d = [nn.Linear(4, 5)]\n"
        "        self.e = nn.ModuleList([nn.Linear(4, 5)])\n"
        '        self.register_buffer("f", torch.ones(6))\n'
        "m = M()\n"
        "def found(part):\n"
        "    return any(p is part for p in m.parameters())\n"
    ),
    asks=[
        Ask("m.a", truth="found(m.a)", why="An nn.Parameter that is assigned registers itself."),
        Ask(
            "m.b",
            truth="found(m.b)",
            why="A plain tensor does not, whatever its requires_grad: it gets a gradient and no optimizer.",
        ),
        Ask(
            "m.c.weight", truth="found(m.c.weight)", why="A module registers, and with it its own."
        ),
        Ask(
            "m.d[0].weight",
            truth="found(m.d[0].weight)",
            why="A Python list is neither a parameter nor a module; what is in it goes unseen.",
        ),
        Ask(
            "m.e[0].weight",
            truth="found(m.e[0].weight)",
            why="ModuleList is a list that is a module: its items are its children 0, 1, ….",
        ),
        Ask("m.f", truth="found(m.f)", why="A buffer is state, but not trained: not a parameter."),
        Ask(
            "len(m.state_dict())",
            truth="len(m.state_dict())",
            why="a, c.weight, c.bias, e.0.weight, e.0.bias and the buffer f.",
        ),
    ],
)

counting = Prediction(
    "How many numbers are trained?",
    code=(
        "wte = nn.Embedding(1000, 64)\n"
        "head = nn.Linear(64, 1000, bias=False)\n"
        "ln = nn.LayerNorm(64)\n"
        "bn = nn.BatchNorm1d(64)"
    ),
    setup=(
        "import torch\nfrom torch import nn\n"
        "wte = nn.Embedding(1000, 64)\n"
        "head = nn.Linear(64, 1000, bias=False)\n"
        "ln = nn.LayerNorm(64)\n"
        "bn = nn.BatchNorm1d(64)\n"
        "def count(*parts):\n"
        "    return sum(p.numel() for p in nn.ModuleList(parts).parameters())\n"
        "def tied():\n"
        "    head.weight = wte.weight\n"
        "    return count(wte, head)\n"
    ),
    asks=[
        Ask("in ln", truth="count(ln)", why="A weight and a bias of 64 each."),
        Ask(
            "in bn",
            truth="count(bn)",
            why="128 as well: running_mean and running_var are buffers, and are not trained.",
        ),
        Ask("in wte and head", truth="count(wte, head)", why="64,000 each."),
        Ask(
            "the same after head.weight = wte.weight",
            truth="tied()",
            why="One parameter with two names counts once.",
        ),
    ],
)

modes = Prediction(
    "A batch of two rows through a fresh BatchNorm and a Dropout.",
    code=(
        "x = torch.tensor([[0.0], [4.0]])\n"
        "bn = nn.BatchNorm1d(1, momentum=0.5)\n"
        "y = bn(x)          # train mode\n"
        "bn.eval()\n"
        "drop = nn.Dropout(0.75)"
    ),
    setup=(
        "import torch\nfrom torch import nn\n"
        "x = torch.tensor([[0.0], [4.0]])\n"
        "bn = nn.BatchNorm1d(1, momentum=0.5)\n"
        "y = bn(x)\nbn.eval()\n"
        "drop = nn.Dropout(0.75)\n"
        "torch.manual_seed(0)\n"
    ),
    asks=[
        Ask(
            "y[1, 0], to two digits",
            truth="round(y[1, 0].item(), 2)",
            why="The batch's mean is 2, its biased variance 4: (4 − 2) / 2.",
        ),
        Ask(
            "bn.running_mean",
            truth="round(bn.running_mean.item(), 4)",
            why="Half of the old 0 and half of the batch's 2.",
        ),
        Ask(
            "bn.running_var",
            truth="round(bn.running_var.item(), 4)",
            why="The unbiased variance is 8: half of the old 1 and half of 8.",
        ),
        Ask(
            "The largest element of drop(torch.ones(1000))",
            truth="drop(torch.ones(1000)).max().item()",
            why="What survives is divided by 1 − p = 0.25.",
        ),
        Ask(
            "drop.eval()(x) is x",
            truth="bool(drop.eval()(x) is x or torch.equal(drop.eval()(x), x))",
            why="In eval mode dropout hands its input on.",
        ),
    ],
)

normalised_over = Prediction(
    "How many means does each layer subtract from the elements of x, in train mode?",
    code="x = torch.randn(2, 3, 8)  # (B, T, D)",
    setup=("import torch\nx = torch.randn(2, 3, 8)\n"),
    asks=[
        Ask(
            "LayerNorm(8)",
            truth="x.mean(-1).numel()",
            why="One for each of the 2 · 3 tokens.",
        ),
        Ask(
            "BatchNorm1d(8), on x.flatten(0, 1)",
            truth="x.flatten(0, 1).mean(0).numel()",
            why="One for each of the 8 features, over all 6 tokens.",
        ),
        Ask(
            "RMSNorm(8)",
            truth="0",
            why="It divides by the root of a mean of squares, and subtracts nothing.",
        ),
        Ask(
            "Does a token's LayerNorm change if another token does?",
            truth="False",
            why="Each token is normalised by itself. That is what a causal model needs.",
        ),
    ],
)

depth = Prediction(
    "Thirty linear layers of width 256, no biases, an input of variance 1. What becomes of the variance?",
    asks=[
        Ask(
            "Weights N(0, 1): times … in each layer",
            truth="256",
            why="A sum of 256 products of variance 1.",
        ),
        Ask(
            "nn.Linear's default, uniform on ±1/√256: divided by … in each layer",
            truth="3",
            why="A uniform number on ±a has variance a²/3; 256 of them of a² = 1/256 give 1/3.",
        ),
        Ask(
            "Xavier (variance 1/256), each layer followed by a ReLU: divided by about … in each layer",
            truth="2",
            why="Half of the numbers become 0, so the mean square halves: hence Kaiming's factor 2.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "A model trains, but one layer's weights never change. It is kept in `self.layers = [nn.Linear(8, 8)]`. Why?",
            choices=[
                Choice(
                    "A Python list is not registered, so model.parameters() never gave them to the optimizer.",
                    right=True,
                    why="Use nn.ModuleList. The layer still computes, and even gets gradients, which is what makes this hard to see.",
                ),
                Choice(
                    "Layers in a list get no gradient.",
                    why="They do: autograd knows nothing of modules.",
                ),
                Choice(
                    "The layer must be assigned under a name such as `weight`, by which model.parameters() can find it.",
                    why="Any attribute will do, if the value is a module.",
                ),
            ],
        ),
        Question(
            "`best = model.state_dict()` is kept at the best epoch, and loaded after the last. What do you get?",
            choices=[
                Choice("The weights of the best epoch.", why="Only if something had copied them."),
                Choice(
                    "An error: the keys no longer fit.",
                    why="The names have not changed; nor has what they point to.",
                ),
                Choice(
                    "The weights of the last epoch.",
                    right=True,
                    why="A state_dict holds the live tensors, and the optimizer writes into them in place. Clone them, or copy.deepcopy the dict.",
                ),
            ],
        ),
        Question(
            "You freeze a pretrained body with `requires_grad_(False)` and train a new head in train mode. Afterwards the body, in eval mode, gives other outputs than before. Why?",
            choices=[
                Choice(
                    "It has a BatchNorm, whose running statistics moved.",
                    right=True,
                    why="They are buffers: train mode updates them in forward, and requires_grad does not reach them. Call eval() on the body.",
                ),
                Choice(
                    "requires_grad_(False) reaches the module's own parameters, not those of its submodules.",
                    why="It walks the whole tree, as `to` and `train` do.",
                ),
                Choice(
                    "The optimizer's weight decay shrank the frozen weights.",
                    why="torch's optimizers skip a parameter whose .grad is None, decay included.",
                ),
            ],
        ),
        Question(
            "Why does a language model use LayerNorm or RMSNorm, and not BatchNorm?",
            choices=[
                Choice(
                    "They have fewer parameters and no buffers, which counts in a model with many layers.",
                    why="LayerNorm has as many, RMSNorm half.",
                ),
                Choice(
                    "Normalising a token must not mix in other sequences, nor the token's own future.",
                    right=True,
                    why="BatchNorm's statistics are over the whole batch, later positions included, and differ between training and inference.",
                ),
                Choice(
                    "BatchNorm cannot be differentiated.",
                    why="It can, through its mean and variance too.",
                ),
            ],
        ),
        Question(
            "`head.weight = wte.weight` was written, and then the optimizer was made from model.parameters(). What happens in a step?",
            choices=[
                Choice(
                    "The weight moves twice: once for each name.",
                    why="parameters() gives it once.",
                ),
                Choice(
                    "Only the embedding moves; the head is a copy.",
                    why="It is the very same object.",
                ),
                Choice(
                    "The weight moves once, and its gradient is the sum over both uses.",
                    right=True,
                    why="One leaf of the graph, used twice: its gradient accumulates from both.",
                ),
            ],
        ),
    ]
)
