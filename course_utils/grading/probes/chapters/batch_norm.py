"""The probe of a module that must refuse some batches, and is looked at after it has.

It has a file of its own, beside `modules`, so that what else is proved with `module` stays proved.
"""

from typing import Any

from course_utils.grading.driving import labels
from course_utils.grading.driving.case import Case
from course_utils.grading.driving.later import unchanged
from course_utils.grading.driving.probe import probe

from .modules import clone, dtype_of, module, raised_name


@probe
def module_or_refusal(subject: Any, case: Case) -> dict[str, Any]:
    """As `module`; of a case that says `refused`, what its one step, in train mode, raises.

    And whether the buffers are as before after that.
    """
    if "refused" not in case.kwargs:
        return module(subject, case)
    build, weights, (_, x) = case.args
    made = subject(**build).to(dtype_of([weights, x]))
    made.load_state_dict(weights, strict=False)
    before = {name: clone(buffer) for name, buffer in made.named_buffers()}
    try:
        made.train()(x)
        raised = labels.NOTHING
    except Exception as error:
        raised = raised_name(error)
    after = {name: clone(buffer) for name, buffer in made.named_buffers()}
    return {labels.RAISES: raised, "the buffers are as before": unchanged(before, after)}


module_or_refusal.called = module.called
