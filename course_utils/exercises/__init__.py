"""One module a chapter: for each exercise its cases, mistakes, contracts and hints."""

ORDER = ("tensors", "strides", "mixed_precision")
