"""One module a chapter: for each exercise its cases, mistakes, contracts and hints."""

ORDER = (
    "tensors",
    "strides",
    "autograd",
    "modules",
    "optimizers",
    "mixed_precision",
    "gpt2",
    "lora",
)
