"""Trees of tensors and plain values: copied exactly, shown, turned into bytes and read strictly."""
