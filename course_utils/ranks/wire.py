"""How values cross between the kernel and its ranks: pickled as bytes, with nothing shared.

multiprocessing's own pickler would send a tensor as a handle of shared memory, which outlives both
ends if one is killed; this one sends the numbers. cloudpickle takes functions and classes that were
defined in a notebook along by value.
"""

import io
import pickle
from typing import Any

import cloudpickle


class _Results(cloudpickle.Pickler):
    """Values on their way back: whatever kind of tensor, a plain one on the CPU arrives."""

    def reducer_override(self, obj: Any) -> Any:
        plain = plain_tensor(obj)
        if plain is not obj:
            return (_itself, (plain,))
        return super().reducer_override(obj)


def _itself(value: Any) -> Any:
    return value


def plain_tensor(value: Any) -> Any:
    """A tensor of another device or kind as a plain one on the CPU; anything else as it is.

    Of a DTensor: this rank's part of it. A view of a larger storage: a copy without the rest.
    """
    import torch
    import torch.distributed as dist

    if not isinstance(value, torch.Tensor):
        return value
    if type(value).__name__ == "AsyncCollectiveTensor":
        return value.wait()  # type: ignore[attr-defined]
    if dist.is_available() and type(value).__name__ == "DTensor":
        return value.to_local()  # type: ignore[attr-defined]
    if value.device.type not in ("cpu", "meta"):
        return value.detach().cpu()
    strided = value.layout is torch.strided and value.device.type == "cpu"
    if strided and type(value) in (torch.Tensor, torch.nn.Parameter):
        if value.untyped_storage().nbytes() > 2 * value.nbytes + 1024:
            return value.detach().clone().requires_grad_(value.requires_grad)
        if type(value) is torch.Tensor and not value.is_leaf:
            return value.detach().requires_grad_(True)
    return value


def dumps(value: Any) -> bytes:
    """A value on its way to a rank, as bytes."""
    return cloudpickle.dumps(value)


def dumps_result(value: Any) -> bytes:
    """A value on its way back, as bytes: every tensor a plain one on the CPU."""
    buffer = io.BytesIO()
    _Results(buffer).dump(value)
    return buffer.getvalue()


def loads(data: bytes) -> Any:
    """The value of such bytes. Only for bytes of this course's own processes: they run code."""
    return pickle.loads(data)
