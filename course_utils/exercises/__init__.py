"""One module a chapter: for each exercise its cases, mistakes, contracts and hints."""

ORDER = (
    "tensors",
    "strides",
    "accounting",
    "autograd",
    "modules",
    "optimizers",
    "mixed_precision",
    "cuda_memory",
    "process_groups",
    "ddp",
    "fsdp",
    "gpt2",
    "lora",
)
