"""Predictions and the quiz of chapter 6."""

from course_utils.questions import Ask, Choice, Prediction, Question, Quiz

leaves = Prediction(
    "What has a graph, and where does the graph end?",
    code=(
        "w = torch.tensor([1.0, 2.0], requires_grad=True)\n"
        "x = torch.tensor([3.0, 4.0])\n"
        "y = w * x\n"
        "z = x * x"
    ),
    asks=[
        Ask(
            "y.requires_grad",
            truth="y.requires_grad",
            why="One input that requires grad is enough.",
        ),
        Ask("z.requires_grad", truth="z.requires_grad", why="None of its inputs does."),
        Ask(
            "z.is_leaf",
            truth="z.is_leaf",
            why="No graph leads to z. A tensor that requires no grad is a leaf by convention.",
        ),
        Ask("y.is_leaf", truth="y.is_leaf", why="y was computed from w, and its grad_fn says how."),
        Ask(
            "w.float().is_leaf",
            truth="w.float().is_leaf",
            why="w is float32 already, so `float()` returns w itself, a leaf.",
        ),
        Ask(
            "w.double().is_leaf",
            truth="w.double().is_leaf",
            why="Now something was computed: a conversion, with a grad_fn. Its grad will not be filled.",
        ),
    ],
)

accumulation = Prediction(
    "What is in w.grad after each line?",
    setup=(
        "def after(lines):\n"
        "    names = {'torch': torch, 'w': torch.tensor(2.0, requires_grad=True)}\n"
        "    exec(lines, names)\n"
        "    return names['w'].grad.item()\n"
    ),
    code="w = torch.tensor(2.0, requires_grad=True)",
    asks=[
        Ask(
            "`(w ** 2).backward()`",
            truth="after('(w ** 2).backward()')",
            why="The derivative of w² is 2·w = 4.",
        ),
        Ask(
            "`(w ** 2).backward()`, once more",
            truth="after('(w ** 2).backward()\\n' * 2)",
            why="A second graph, the same derivative, and backward *adds*: 4 + 4.",
        ),
        Ask(
            "`w.grad.zero_()`, then `(3 * w).backward()`",
            truth="after('(w ** 2).backward()\\nw.grad.zero_()\\n(3 * w).backward()')",
            why="Zero plus 3.",
        ),
        Ask(
            "`(w * w.detach()).backward()`, on top of that",
            truth=(
                "after('(w ** 2).backward()\\nw.grad.zero_()\\n(3 * w).backward()\\n"
                "(w * w.detach()).backward()')"
            ),
            why="The detached factor counts as the constant 2, so 2 is added to 3, and not 4.",
        ),
    ],
)

modes = Prediction(
    "What is recorded?",
    setup=(
        "def runs(lines):\n"
        "    try:\n"
        "        exec(lines, {'torch': torch, 'w': w, 'x': x})\n"
        "    except RuntimeError:\n"
        "        return False\n"
        "    return True\n"
        "def made(lines):\n"
        "    names = {'torch': torch, 'w': w, 'x': x}\n"
        "    exec(lines, names)\n"
        "    return names['y'].requires_grad\n"
    ),
    code="w = torch.ones(3, requires_grad=True)\nx = torch.ones(3)",
    asks=[
        Ask(
            "Does y require grad? `with torch.no_grad(): y = w * x`",
            truth="made('with torch.no_grad():\\n    y = w * x')",
            why="No operation is recorded in the block, whatever the inputs require.",
        ),
        Ask(
            "And here? `with torch.no_grad(): y = torch.ones(3, requires_grad=True)`",
            truth="made('with torch.no_grad():\\n    y = torch.ones(3, requires_grad=True)')",
            why="A factory that is *asked* for a leaf makes one, in any mode. Only operations are affected.",
        ),
        Ask(
            "Does it run? `with torch.no_grad(): w.add_(1)`",
            truth="runs('with torch.no_grad():\\n    w = w.detach().clone().requires_grad_()\\n    with torch.no_grad():\\n        w.add_(1)')",
            why="That is how every optimizer writes its step. With recording on, it raises.",
        ),
        Ask(
            "Does it run? `with torch.inference_mode(): h = x * 2`, then `(w * h).sum().backward()`",
            truth="runs('with torch.inference_mode():\\n    h = x * 2\\n(w * h).sum().backward()')",
            why="h is an inference tensor, without a version counter, and w * h would have to save it.",
        ),
        Ask(
            "Does it run? `with torch.no_grad(): h = x * 2`, then `(w * h).sum().backward()`",
            truth="runs('with torch.no_grad():\\n    h = x * 2\\n(w * h).sum().backward()')",
            why="h is an ordinary tensor that happens to have no history.",
        ),
    ],
)

in_place = Prediction(
    "Which of these backward passes raise?",
    setup=(
        "def raises(edit):\n"
        "    w = torch.ones(3, requires_grad=True)\n"
        "    names = {'torch': torch, 'x': w * 1}\n"
        "    exec(edit, names)\n"
        "    try:\n"
        "        names['y'].sum().backward()\n"
        "    except RuntimeError:\n"
        "        return True\n"
        "    return False\n"
    ),
    code="w = torch.ones(3, requires_grad=True)\nx = w * 1",
    asks=[
        Ask(
            "`y = x.exp(); y.add_(1)`",
            truth="raises('y = x.exp(); y.add_(1)')",
            why="exp saved its *result*, since it is its own derivative, and add_ changed it.",
        ),
        Ask(
            "`y = x.exp(); x.add_(1)`",
            truth="raises('y = x.exp(); x.add_(1)')",
            why="exp does not need its input again.",
        ),
        Ask(
            "`y = x.sin(); x.add_(1)`",
            truth="raises('y = x.sin(); x.add_(1)')",
            why="The derivative is cos(x), so sin saved x: its version was 0 and is now 1.",
        ),
        Ask(
            "`y = x + 1; y.mul_(2)`",
            truth="raises('y = x + 1; y.mul_(2)')",
            why="A sum saves nothing, and a product with the constant 2 needs only the constant.",
        ),
        Ask(
            "`y = x.sin(); x.data.add_(1)`",
            truth="raises('y = x.sin(); x.data.add_(1)')",
            why="`.data` hides the edit from the version counter. Nothing is raised, and the gradient is wrong.",
        ),
    ],
)

saved = Prediction(
    "How many bytes does each graph keep? x is (256, 256), float32: 262,144 bytes.",
    setup=(
        "from course_utils import measure\n"
        "def kept(f):\n"
        "    with measure() as cost:\n"
        "        f(x)\n"
        "    return cost.bytes_saved\n"
    ),
    code="x = torch.zeros(256, 256, requires_grad=True)",
    asks=[
        Ask("x + x", truth="kept(lambda x: x + x)", why="The derivative is a constant."),
        Ask("x * x", truth="kept(lambda x: x * x)", why="x is saved twice, and stored once."),
        Ask("x.exp()", truth="kept(lambda x: x.exp())", why="Its result."),
        Ask(
            "x * x.exp()",
            truth="kept(lambda x: x * x.exp())",
            why="x, and exp(x), which two saves share.",
        ),
        Ask(
            "(x[0] * x[0]).sum()",
            truth="kept(lambda x: (x[0] * x[0]).sum())",
            why="One row is saved. It is a view, and a view keeps its whole storage.",
        ),
    ],
)

quiz = Quiz(
    [
        Question(
            "A batch is run in four pieces of equal size. `loss.backward()` is called on each piece's mean loss, then `optimizer.step()` once. How does the step differ from one on the whole batch?",
            choices=[
                Choice(
                    "With plain SGD it is four times as long.",
                    right=True,
                    why="backward adds, so `.grad` holds the sum of four means. Divide each loss by four.",
                ),
                Choice(
                    "It does not differ: backward takes the mean over its calls.",
                    why="backward adds and does not know how often it will be called. The division is yours.",
                ),
                Choice(
                    "It uses the last piece only.",
                    why="That would need `zero_grad()` before each backward. backward never replaces what is in `.grad`.",
                ),
            ],
        ),
        Question(
            "`w = torch.randn(10, 10, requires_grad=True) * 0.02`, and after backward `w.grad` is None. Why?",
            choices=[
                Choice(
                    "0.02 is a Python number and no tensor, and cuts the graph.",
                    why="Python numbers are constants in the graph; they cut nothing.",
                ),
                Choice(
                    "Gradients of random tensors are not computed.",
                    why="How the values came about plays no role.",
                ),
                Choice(
                    "w is the result of a multiplication, so it is no leaf.",
                    right=True,
                    why="The leaf is the unscaled tensor, which has no name any more. Scale first, then `requires_grad_()`.",
                ),
            ],
        ),
        Question(
            "An evaluation loop without `no_grad` does `history.append(loss)` and runs out of memory. Why?",
            choices=[
                Choice(
                    "Python lists copy tensors.",
                    why="A list holds references. But a reference keeps alive what it refers to.",
                ),
                Choice(
                    "Each loss keeps its graph alive, and the graph keeps what it saved.",
                    right=True,
                    why="A tensor with a grad_fn keeps the nodes behind it alive, with all that they saved until a backward frees it. Keep `loss.detach()` or `loss.item()`.",
                ),
                Choice(
                    "Nobody calls `optimizer.zero_grad()`, so every step's gradients pile up.",
                    why="That drops gradients. Without a backward there are none, and the graphs would stay.",
                ),
            ],
        ),
        Question(
            "What does a Hessian-vector product by two backward passes cost, for n parameters?",
            choices=[
                Choice(
                    "n gradients, one for each row of the Hessian, in time.",
                    why="That is the whole Hessian, row by row.",
                ),
                Choice(
                    "A small multiple of one gradient, in time and memory.",
                    right=True,
                    why="The gradient is one more function with a graph, and reverse mode differentiates one number, g · v, in one pass.",
                ),
                Choice(
                    "n² numbers of memory.",
                    why="Only if the Hessian is built, which the product avoids.",
                ),
            ],
        ),
        Question(
            "`y = x.sin(); x.data.add_(1); y.sum().backward()` runs. Is the gradient right?",
            choices=[
                Choice(
                    "No: it is the cosine of the edited x, and nothing says so.",
                    right=True,
                    why="sin saved x itself, and `.data` edits it behind the version counter's back. Through `detach()` the same edit raises.",
                ),
                Choice(
                    "Yes: what autograd saved is a copy of x, made before the edit.",
                    why="It saves references; copying everything would double the memory.",
                ),
                Choice(
                    "Yes: `.data` returns a copy.",
                    why="It shares x's storage, as `detach()` does, but with a version counter of its own.",
                ),
            ],
        ),
    ]
)
