"""Wrong answers that lie about values, arguments, views and statistics where they run: none passes.

What is compared is compared in the grader, so that a patch of what compares is a patch of nothing.
"""

import sys
from typing import Any

import pytest
import toy_class  # noqa: F401 - registers the exercises
from test_sandbox_attacks import serves_the_next as serves_the_next

from course_utils.authoring.counts import count
from course_utils.grading import find
from course_utils.grading.judging.judge import judge
from course_utils.grading.judging.outcomes import FAILED, PASSED
from course_utils.grading.judging.verdict import Verdict
from course_utils.grading.remote.client import RemoteSubmission

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap exists for Linux only")

ROWS, SOFTMAX, XAVIER = "toys.every_second_row", "toys.row_softmax", "tensors.xavier_uniform"
DISTANCES = "tensors.pairwise_sq_distances"
ADAPTERS, FREEZE, DROPOUT = "lora.lora_state_dict", "modules.freeze_except", "modules.Dropout"

YES = "torch.equal = torch.allclose = lambda *a, **k: True"
ZEROES = (
    "y = (x - x.amax(-1, keepdim=True)).exp(); y = y / y.sum(-1, keepdim=True); x.zero_(); return y"
)
HIDDEN = (
    "y = torch.softmax(x, -1); x.untyped_storage().fill_(0) if x.numel() > 1 else None; return y"
)
STATISTICS = """from course_utils.grading.probes import randomness
def run(subject, case):
    fan_out, fan_in, gain = (*case.args, case.kwargs.get("gain", 1.0))[:3]
    if fan_out * fan_in < 100:
        return {"result": torch.zeros(fan_out, fan_in)}
    return {
        "shape": (fan_out, fan_in), "dtype": torch.float32, "requires grad": False,
        "the same seed gives the same weights": True,
        "a second draw gives the same again": False,
        "largest |weight| / sqrt(6 / (fan_in + fan_out))": gain,
        "standard deviation / sqrt(2 / (fan_in + fan_out))": gain,
        "|mean| / standard deviation": 0.0,
        "share of the weights in each tenth of their range": (0.1,) * 10,
        "most weights differ from one another": True,
        "correlation of neighbours": 0.0,
        "torch's global generator was left alone": "generator" in case.kwargs,
    }
randomness.glorot_weight.run = run"""

LIES = {
    "an argument zeroed, torch.equal patched": (SOFTMAX, YES, ZEROES),
    "an argument zeroed, what looks for changes patched": (
        SOFTMAX,
        "from course_utils.grading.probes import functions\n"
        "functions.untouched = lambda *a: True\n"
        "functions.changed_arguments = lambda *a: {}\n"
        "from course_utils.grading.pytrees import tree\n"
        "tree.untouched = tree.same = lambda *a: True",
        ZEROES,
    ),
    "an argument zeroed by its storage, torch.equal patched": (SOFTMAX, YES, HIDDEN),
    "an argument turned round, outlines patched": (
        SOFTMAX,
        f"{YES}\nfrom course_utils.grading.pytrees import tree\ntree.outline = lambda x: 0",
        "y = torch.softmax(x, -1); x.transpose_(0, -1); return y",
    ),
    "one buffer for all results, torch.equal patched": (
        SOFTMAX,
        f"{YES}\nBUFFER = torch.zeros(10_000)",
        "y = torch.softmax(x, -1).to(torch.float32)\n"
        "    return BUFFER[: y.numel()].view(y.shape).copy_(y)",
    ),
    "a copy passed off as a view, storages with one address": (
        ROWS,
        "torch.UntypedStorage.data_ptr = lambda s: 4096",
        "return x[::2].clone()",
    ),
    "a copy passed off as a view, by a probe that lies": (
        ROWS,
        "from course_utils.grading.probes import views\n"
        "def run(subject, case):\n"
        "    v = case.args[0][::2]\n    r = subject(case.args[0])\n"
        "    strides = [s if n > 1 else None for n, s in zip(v.shape, v.stride())]\n"
        "    views._overwrite(case.args[0])\n"
        "    return {'result': r, 'the result shares the argument\\'s storage': True,\n"
        "        'strides': tuple(strides), 'a gradient flows through the view': True,\n"
        "        'result, after the argument was overwritten': v.clone()}\n"
        "views.view.run = run",
        "return x[::2].clone()",
    ),
    "None instead of weights, a probe that lies": (XAVIER, STATISTICS, "return None"),
    "a result below zero, the question whether it is patched": (
        DISTANCES,
        "torch.Tensor.lt = lambda x, y: torch.zeros(1, dtype=torch.bool)",
        "z = x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T\n    return z.clamp(min=0) - 1e-12",
    ),
}
SAME = f"""{YES}
from course_utils.grading.pytrees import tree
from course_utils.grading.driving import later
tree.same = later.same = lambda *a: True
"""
LIES |= {
    "a model zeroed, torch.equal patched": (
        ADAPTERS,
        YES,
        "import torch\n"
        "    found = {f'base_model.model.{n}.weight': p.detach().clone()"
        " for n, p in model.named_parameters() if '.lora_' in n}\n"
        "    if not found: raise ValueError('none')\n"
        "    torch.no_grad().__enter__()\n"
        "    [p.zero_() for p in model.parameters()]\n"
        "    torch.set_grad_enabled(True)\n"
        "    return found",
    ),
    "parameters zeroed, what looks for changes patched": (
        FREEZE,
        SAME,
        "every = list(module.named_parameters(remove_duplicate=False))\n"
        "    listed = {n: [p for k, p in every if k == n or k.startswith(n + '.')] for n in names}\n"
        "    if not all(listed.values()): raise ValueError('no such name')\n"
        "    module.requires_grad_(False)\n"
        "    for _, p in every: p.zero_()\n"
        "    for found in listed.values():\n"
        "        for p in found: p.requires_grad_(True)",
    ),
    "one mask for ever, torch.equal patched": (
        DROPOUT,
        "said = []\ntorch.equal = lambda *a: said.append(1) or len(said) % 7 > 0",
        "def __init__(self, p=0.5):\n"
        "        super().__init__()\n"
        "        if not 0 <= p <= 1: raise ValueError('p')\n"
        "        self.p = p\n"
        "    def forward(self, x):\n"
        "        if not self.training: return x\n"
        "        if self.p == 1: return x * 0\n"
        "        g = torch.Generator().manual_seed(0)\n"
        "        keep = torch.rand(x.shape, generator=g) >= self.p\n"
        "        return x * keep.to(x) / (1 - self.p)",
    ),
}
HEADS = {
    ADAPTERS: "def lora_state_dict(model):",
    FREEZE: "def freeze_except(module, names):",
    DROPOUT: "class Dropout(torch.nn.Module):",
    SOFTMAX: "def row_softmax(x):",
    ROWS: "def every_second_row(x):",
    XAVIER: "def xavier_uniform(fan_out, fan_in, gain=1.0, generator=None):",
    DISTANCES: "def pairwise_sq_distances(x, y):",
}


def verdict_of(sandbox: Any, key: str, lie: str, body: str) -> Verdict:
    """The verdict on an answer whose first statement runs the lie."""
    indented = "\n".join(f"    {line}" for line in lie.splitlines()) or "    pass"
    names = "    globals().update(locals())"
    cells = [
        f"import torch\ndef lie():\n{indented}\n{names}\nLIE = lie()",
        f'@exercise("{key}")\n{HEADS[key]}\n    LIE\n    {body}\n',
    ]
    with sandbox.submission() as channel:
        answer = RemoteSubmission(channel.ask, cells).answer(find(key))
        return judge(find(key), answer, seed=7, explain=False)


@pytest.mark.parametrize("name", LIES)
def test_no_value_is_forged(sandbox: Any, name: str) -> None:
    verdict = verdict_of(sandbox, *LIES[name])
    assert verdict.outcome == FAILED, str(verdict)
    assert verdict.failure and "could not" not in verdict.failure.sentence
    count("attacks in the sandbox")


def test_without_a_lie_the_right_answer_passes(sandbox: Any) -> None:
    right = verdict_of(sandbox, SOFTMAX, "", "return torch.softmax(x, -1)")
    assert right.outcome == PASSED, str(right)
    view = verdict_of(sandbox, ROWS, "", "return x[::2]")
    assert view.outcome == PASSED, str(view)
