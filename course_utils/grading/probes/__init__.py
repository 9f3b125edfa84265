"""Probes: small functions that drive a student's object through a case and say what they saw.

A probe takes the object (a function, a class, or a dict of several by name) and a case, and
returns named arrays and plain values. It runs wherever the student's code runs: in the notebook,
on many ranks, in an instructor's sandbox. So these modules import nothing of the references or of
the exercises, and what a probe returns is data. What the engine must know of one besides, such as
how a verdict writes its call, it carries itself: see `driving.probe.Probe`.
"""

from course_utils.grading.driving.probe import Probe
from course_utils.grading.probes.chapters.autograd import (
    accumulates,
    custom_function,
    straight_through,
    takes_differences,
    takes_function,
    takes_function_at,
    takes_function_for_bytes,
)
from course_utils.grading.probes.chapters.autograd_engine import (
    on_arrays,
    ordered,
    takes_vjp,
    walked,
)
from course_utils.grading.probes.chapters.batch_norm import module_or_refusal
from course_utils.grading.probes.chapters.broadcasting_and_named_axes import split_and_merged
from course_utils.grading.probes.chapters.caching_allocator import allocator
from course_utils.grading.probes.chapters.cuda_memory import (
    attempts,
    checkpointed,
    layers,
    timeline,
    trace,
)
from course_utils.grading.probes.chapters.custom_functions import saved_for_backward
from course_utils.grading.probes.chapters.data import (
    batches,
    drawn_again,
    packed,
    shuffled,
    streamed,
)
from course_utils.grading.probes.chapters.ddp import (
    accumulated,
    averaged,
    bucketed,
    saved,
    started_apart,
    token_weighted,
    wrapped,
)
from course_utils.grading.probes.chapters.export_and_serving import (
    compared,
    exportable,
    program_sizes,
    renamed,
)
from course_utils.grading.probes.chapters.fsdp import (
    flat_shards,
    resharded,
    sharded_layer,
    sharded_layer_between,
    sharded_model,
    sharded_model_between,
    sharded_optimizer,
    sharded_state,
)
from course_utils.grading.probes.chapters.generation import (
    cached,
    generated,
    sampled,
    stopped,
    windowed,
)
from course_utils.grading.probes.chapters.gpt2 import (
    checkpoint,
    gpt2_count,
    gpt2_model,
    gpt2_part,
    initialised,
)
from course_utils.grading.probes.chapters.lora import (
    adapter_state,
    injected,
    lora_layer,
    merge_run,
    nf4_product,
    preferred,
)
from course_utils.grading.probes.chapters.mixed_precision import amp_run, master_run, scaler_run
from course_utils.grading.probes.chapters.modules import assembled, dropout, module, registry, tied
from course_utils.grading.probes.chapters.number_formats import (
    exact_values,
    exact_without_fp8,
    fields,
    limits,
    signed_number,
)
from course_utils.grading.probes.chapters.optimizers import optimizer, parameter_groups, state_bytes
from course_utils.grading.probes.chapters.pipeline_and_3d import dispatched, pipelined, planned
from course_utils.grading.probes.chapters.pretraining import (
    deduplicated,
    law_fitted,
    loss_estimated,
    trained_step,
)
from course_utils.grading.probes.chapters.process_groups import in_rounds
from course_utils.grading.probes.chapters.profiling_and_compile import (
    in_one_graph,
    matmul_launched,
    softmax_launched,
    timed,
)
from course_utils.grading.probes.chapters.quantization import four_bit_layer, observed, one_of
from course_utils.grading.probes.chapters.schedules_and_stability import (
    accumulated_on_ranks,
    accumulated_steps,
    clipped,
    clipped_on_ranks,
    factor,
    finite_steps,
    seeded,
    spikes,
)
from course_utils.grading.probes.chapters.tensor_parallel import (
    both_ways,
    gathered_linear,
    gathered_linear_between,
    parallel_layer,
    parallel_layer_held,
    parallel_loss,
)
from course_utils.grading.probes.chapters.tokenization import of_bytes, streamed_tokens, trained
from course_utils.grading.probes.chapters.training_loop import (
    epoch_trained,
    evaluated,
    generators,
    resumed,
    stopping,
    written,
)

from .functions import a_tuple, call, named_arguments, never_negative, of_tuples, there_and_back
from .objects import steps
from .on_ranks import module_on_ranks, on_ranks, steps_on_ranks
from .randomness import glorot_weight
from .views import strides_of, view

__all__ = [
    "Probe",
    "a_tuple",
    "accumulated",
    "accumulated_on_ranks",
    "accumulated_steps",
    "accumulates",
    "adapter_state",
    "allocator",
    "amp_run",
    "assembled",
    "attempts",
    "averaged",
    "batches",
    "both_ways",
    "bucketed",
    "cached",
    "call",
    "checkpoint",
    "checkpointed",
    "clipped",
    "clipped_on_ranks",
    "compared",
    "custom_function",
    "deduplicated",
    "dispatched",
    "drawn_again",
    "dropout",
    "epoch_trained",
    "evaluated",
    "exact_values",
    "exact_without_fp8",
    "exportable",
    "factor",
    "fields",
    "finite_steps",
    "flat_shards",
    "four_bit_layer",
    "gathered_linear",
    "gathered_linear_between",
    "generated",
    "generators",
    "glorot_weight",
    "gpt2_count",
    "gpt2_model",
    "gpt2_part",
    "in_one_graph",
    "in_rounds",
    "initialised",
    "injected",
    "law_fitted",
    "layers",
    "limits",
    "lora_layer",
    "loss_estimated",
    "master_run",
    "matmul_launched",
    "merge_run",
    "module",
    "module_on_ranks",
    "module_or_refusal",
    "named_arguments",
    "never_negative",
    "nf4_product",
    "observed",
    "of_bytes",
    "of_tuples",
    "on_arrays",
    "on_ranks",
    "one_of",
    "optimizer",
    "ordered",
    "packed",
    "parallel_layer",
    "parallel_layer_held",
    "parallel_loss",
    "parameter_groups",
    "pipelined",
    "planned",
    "preferred",
    "program_sizes",
    "registry",
    "renamed",
    "resharded",
    "resumed",
    "sampled",
    "saved",
    "saved_for_backward",
    "scaler_run",
    "seeded",
    "sharded_layer",
    "sharded_layer_between",
    "sharded_model",
    "sharded_model_between",
    "sharded_optimizer",
    "sharded_state",
    "shuffled",
    "signed_number",
    "softmax_launched",
    "spikes",
    "split_and_merged",
    "started_apart",
    "state_bytes",
    "steps",
    "steps_on_ranks",
    "stopped",
    "stopping",
    "straight_through",
    "streamed",
    "streamed_tokens",
    "strides_of",
    "takes_differences",
    "takes_function",
    "takes_function_at",
    "takes_function_for_bytes",
    "takes_vjp",
    "there_and_back",
    "tied",
    "timed",
    "timeline",
    "token_weighted",
    "trace",
    "trained",
    "trained_step",
    "view",
    "walked",
    "windowed",
    "wrapped",
    "written",
]
