"""The probes of LoRA: what they tell apart, and whose classes they accept."""

import torch
from torch import nn

from course_utils.grading import call, probes
from course_utils.grading.probes.chapters.lora import Adapted, adapted_class, model_of
from course_utils.reference import lora


def layer(cls, **build):
    W, A, B = torch.randn(3, 2), torch.randn(2, 2), torch.randn(3, 2)
    case = call("linear", W, None, {"r": 2, "alpha": 4.0} | build, A, B, torch.randn(4, 2))
    return probes.lora_layer(cls, case)


def test_dropout_is_seen_where_it_acts():
    class Between(lora.LoRALinear):
        def forward(self, x):
            return self.base_layer(x) + self.scaling * (
                self.dropout(x @ self.lora_A.T) @ self.lora_B.T
            )

    torch.manual_seed(0)
    label = "train mode: the least and the most"
    right, wrong = layer(lora.LoRALinear, dropout=0.5), layer(Between, dropout=0.5)
    assert right["train mode: how many different updates one input gets"] == 4
    assert right[label].shape == wrong[label].shape == (2, 3)
    torch.manual_seed(0)
    again = layer(lora.LoRALinear, dropout=0.5)
    torch.testing.assert_close(again[label], right[label])


def test_a_layer_that_is_no_module_or_keeps_other_names_is_reported():
    assert layer(lambda base, r, alpha: "text")["what it builds"] == "str"

    class Renamed(nn.Module):
        def __init__(self, base_layer, r, alpha):
            super().__init__()
            self.base_layer, self.down = base_layer, nn.Parameter(torch.zeros(r, 2))

    assert "down" in layer(Renamed)["parameters"]
    assert "output" not in layer(Renamed)


def test_the_models_layers_are_instances_of_the_answers_own_class():
    assert issubclass(adapted_class(lora.merge), lora.LoRALinear)
    assert issubclass(adapted_class(lora.merge), Adapted)
    assert adapted_class(lambda model: model) is Adapted  # nothing of that name is in reach here
    A, B = torch.randn(1, 2), torch.randn(3, 1)
    layers = {"h.0.fc": ("conv1d", torch.randn(3, 2), None, A, B, 0.5)}
    made = model_of(lora.merge, layers)
    (found,) = [m for m in made.modules() if isinstance(m, lora.LoRALinear)]
    assert found is made.get_submodule("h.0.fc")
    assert found.base_layer.weight.shape == (2, 3)
    torch.testing.assert_close(found.delta(), 0.5 * B @ A)


def test_an_error_of_inject_lora_is_looked_at_with_the_model_it_leaves():
    model = {"fc": ("linear", 2, 3)}
    seen = probes.injected(lora.inject_lora, call(model, ["q_proj"], r=2))
    assert seen["raises"] == "ValueError" and seen["trained"] == ["fc.weight", "fc.bias"]
    seen = probes.injected(lora.inject_lora, call(model, ["fc"], r=2))
    assert seen["raises"] == "nothing" and seen["trained"] == ["fc.lora_A", "fc.lora_B"]


def test_what_is_called_is_said():
    case = call({"fc": ("linear", torch.zeros(3, 2), None)}, "merge", "unmerge")
    assert probes.merge_run.called("merge", case) == (
        "merge, then unmerge on a model of fc: nn.Linear(2, 3)"
    )
