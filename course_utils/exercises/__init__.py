"""One module a chapter: for each exercise its cases, mistakes, contracts and hints."""

ORDER = (
    "tensors",
    "strides",
    "broadcasting_and_named_axes",
    "number_formats",
    "accounting",
    "autograd",
    "autograd_engine",
    "modules",
    "data",
    "optimizers",
    "schedules_and_stability",
    "training_loop",
    "mixed_precision",
    "cuda_memory",
    "process_groups",
    "ddp",
    "fsdp",
    "attention",
    "gpt2",
    "lora",
)
