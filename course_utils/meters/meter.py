"""``measure``: counts what a block of torch code does, on torch's own dispatch modes.

Three hooks see three things. A `TorchDispatchMode` sees every operation below autograd, views and
backward included, with its arguments and results: operations, FLOPs and storages, and the data that
becomes tensors. A
`TorchFunctionMode` sees the calls made from Python: `tolist` and NumPy, which dispatch nothing.
`saved_tensors_hooks` see what autograd keeps for backward.
"""

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type

from course_utils.meters.communication import communicates, communication
from course_utils.meters.cost import Cost
from course_utils.meters.operations import Kind, flop_formula, kind, writes

_ONE = {"item", "is_nonzero", "__bool__", "__float__", "__int__", "__index__", "__complex__"}
_ALL = {"tolist", "numpy", "__array__", "__dlpack__", "apply_", "map_", "map2_"}
_LEAVING: dict[Any, str] = {
    getattr(Tensor, name): name for name in _ONE | _ALL if hasattr(Tensor, name)
}
# Showing a tensor reads it, and is not a way to compute with it.
_SHOWING = {Tensor.__repr__, Tensor.__format__}
_DETACHING = {Tensor.detach, torch.detach, Tensor.data.__get__}  # type: ignore[attr-defined]


class measure:
    """Count what the block costs: `with measure() as cost: ...`.

    parameters: count `nn.Parameter`s (and views of them) among the bytes saved for backward.
    saved: watch what autograd saves. `torch.func.grad` and its kin refuse to run while that is
        watched, and say so; measure them with `saved=False` (`bytes_saved` then stays 0).
    parts: the block comes in several parts: the same object is entered again for each, and what an
        earlier part made and left alive still counts.

    Returns a `Cost`, which can be read at any time: within the block, after it, and after an
    exception. Blocks nest, and the outer one counts the inner one's work as well. Only the thread
    that enters the block is watched, and the backward passes it starts.

    Calls of `torch.distributed` are seen where they are made, those of DistributedDataParallel's reducer
    and of fully_shard too; not seen is what goes around it: methods of a backend object
    (`group._get_backend(device)`), stores, sockets, files, shared memory.

    Fake tensors and those on the meta device count with the bytes that they would take: that is how
    to estimate what does not fit.

    What is not seen: scratch memory inside a kernel; memory made outside of torch's operations
    (`torch.from_numpy`, `UntypedStorage(n)`); data that enters through `torch.frombuffer` or DLPack
    (no operation runs then); the inside of higher-order operators (one kernel
    each); tensors that a custom `autograd.Function` keeps as attributes, or that are saved under
    hooks of the block's own (checkpointing, offloading); and bytes read past torch (pickle,
    `data_ptr`, a parsed `repr`). Code that insists on being compiled does not run here.
    """

    def __init__(self, *, parameters: bool = True, saved: bool = True, parts: bool = False):
        self.cost = Cost()
        self._storages = _Storages(self.cost)
        self._parameters = parameters
        self._saved = saved
        self._parts = parts
        self._stack = ExitStack()

    def __enter__(self) -> Cost:
        with ExitStack() as stack:
            calls = _Calls(self.cost)
            storages = self._storages
            if not self._parts:
                stack.callback(storages.forget_all)
            if self._saved:
                stack.enter_context(_watch_saved(self.cost, self._parameters))
            stack.enter_context(calls)
            operations = _UntracedOperations if "torch._dynamo" in sys.modules else _Operations
            stack.enter_context(operations(self.cost, storages, calls))
            self._stack = stack.pop_all()
        return self.cost

    def __exit__(self, *exception: Any) -> None:
        self.cost.bytes_left = self._storages.live
        self._stack.__exit__(*exception)

    def made(self, t: Tensor) -> bool:
        """Was the storage of `t` made in the block, by an operation? Ask before the block ends."""
        return t.untyped_storage()._cdata in self._storages.sizes


def storage_bytes(t: Tensor) -> int:
    """Bytes of the whole storage that `t` views, which may be more than `t` itself needs."""
    return t.untyped_storage().nbytes()


def shares_storage(a: Tensor, b: Tensor) -> bool:
    """Do `a` and `b` view the same storage (which need not mean that they overlap)?"""
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


class _Storages:
    """The storages that the block made and that still live."""

    def __init__(self, cost: Cost):
        self.cost = cost
        self.sizes: dict[int, int] = {}
        self.watches: dict[int, Callable[[], Any]] = {}
        self.live = 0

    def add(self, t: Tensor) -> None:
        """Count the storage of `t`, unless it is already known."""
        storage = t.untyped_storage()
        key = storage._cdata
        if key in self.sizes:
            return
        self.sizes[key] = 0
        self.watches[key] = weakref.ref(storage, lambda _: self.freed(key))
        self.resized(key, storage.nbytes())

    def resized(self, key: int, size: int) -> None:
        """Count a buffer of `size` bytes; for a known storage it takes the old one's place."""
        cost = self.cost
        cost.bytes_allocated += size
        cost.bytes_largest = max(cost.bytes_largest, size)
        self.live += size - self.sizes.get(key, 0)
        cost.bytes_peak = max(cost.bytes_peak, self.live)
        if key in self.sizes:
            self.sizes[key] = size

    def freed(self, key: int) -> None:
        self.live -= self.sizes.pop(key, 0)
        self.watches.pop(key, None)

    def forget_all(self) -> None:
        self.sizes.clear()
        self.watches.clear()


class _Calls(TorchFunctionMode):
    """Sees data leave torch, and knows which Python call is under way."""

    def __init__(self, cost: Cost):
        super().__init__()
        self.cost = cost
        self.current: Any = None
        self.given: Any = ()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        outer = self.current, self.given
        self.current, self.given = func, args
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            self.current, self.given = outer
        way = _LEAVING.get(func) if getattr(func, "__hash__", None) else None
        if way is not None:
            self.leave(way, args[0].numel() if way in _ALL else 1)
        return result

    def read_one(self) -> None:
        """One number is read below Python: within `current`, which may count it itself."""
        if self.current in _LEAVING or self.current in _SHOWING:
            return
        self.leave(getattr(self.current, "__name__", "item").removeprefix("aten::"), 1)

    def boxes(self, t: Tensor) -> bool:
        """Is `t` what torch makes of a number that is assigned, `x[0] = 1.`, or of a `range`?"""
        if t.dim() == 0 and self.current is Tensor.__setitem__:
            return True
        return any(isinstance(given, range) for given in _flat(self.given))

    def leave(self, way: str, elements: int) -> None:
        self.cost.elements_left += elements
        if way not in self.cost.left_torch:
            self.cost.left_torch += (way,)


class _Operations(TorchDispatchMode):
    """Sees every operation: counts it, its FLOPs, and the storages it makes."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see _UntracedOperations

    def __init__(self, cost: Cost, storages: _Storages, calls: _Calls):
        super().__init__()
        self.cost = cost
        self.storages = storages
        self.calls = calls

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(is_traceable_wrapper_subclass_type(t) for t in types):
            return NotImplemented  # the subclass takes it apart; its parts come here
        if not isinstance(func, OpOverload):
            result = func(*args, **kwargs)
            self.count(func.__name__, work=True)
            for t in _tensors((result,)):
                self.storages.add(t)
            return result
        if kind(func) is Kind.COMPOSITE and flop_formula(func) is None:
            with self:
                return func.decompose(*args, **kwargs)
        return self.observe(func, args, kwargs)

    def observe(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation and count it."""
        before = {}
        if writes(func):
            for t in _tensors((*args, *kwargs.values())):
                before[t.untyped_storage()._cdata] = (t, storage_bytes(t))
        talks = communicates(func)
        if talks:  # counted beforehand: it may wait forever
            self.communicate(func, args, kwargs)
        result = func(*args, **kwargs)

        for key, (t, size) in before.items():
            if t.untyped_storage()._cdata == key and storage_bytes(t) > size:
                self.storages.resized(key, storage_bytes(t))
        made = self.made(func, args, kwargs, result)
        for t in made:
            self.storages.add(t)
        what = kind(func)
        if what is Kind.READ:
            self.calls.read_one()
        if func is torch.ops.aten.lift_fresh.default and not self.calls.boxes(result):
            self.cost.elements_entered += result.numel()
        aliases = not made and not before and any(True for _ in _tensors((result,)))
        if not self.bookkeeping(func):
            name = func._schema.name.removeprefix("aten::")
            self.count(name, work=what is Kind.WORK and not aliases and not talks)
        formula = flop_formula(func)
        if formula is not None:
            self.cost.flops += int(formula(*args, **kwargs, out_val=result))
        return result

    def communicate(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> None:
        what, cost = communication(func, args, kwargs), self.cost
        cost.bytes_sent += what.sent
        cost.bytes_received += what.received
        cost.messages += what.messages
        if what.is_collective:
            cost.collectives[what.name] += 1

    def made(
        self, func: OpOverload, args: Any, kwargs: dict[str, Any], result: Any
    ) -> list[Tensor]:
        """Those of the results whose storage the operation made."""
        if func is torch.ops.aten.lift_fresh.default:
            return [result] if self.entered(result) else []
        results = list(_tensors((result,)))
        if not results or kind(func) is Kind.FREE:
            return []
        old = {t.untyped_storage()._cdata for t in _tensors((*args, *kwargs.values()))}
        return [t for t in results if t.untyped_storage()._cdata not in old]

    def entered(self, t: Tensor) -> bool:
        """Did `t` bring memory of its own? NumPy's stays NumPy's; `x[0] = 1.` boxes one number."""
        boxed = t.dim() == 0 and self.calls.current is Tensor.__setitem__
        return t.untyped_storage().resizable() and not boxed

    def bookkeeping(self, func: OpOverload) -> bool:
        """Is the operation torch's own, and none of the program's?

        Autograd detaches what it saves, and more often where it is watched.
        """
        if func is torch.ops.aten.detach.default:
            return self.calls.current not in _DETACHING
        return func.namespace in ("prim", "profiler")

    def count(self, name: str, work: bool) -> None:
        self.cost.ops[name] += 1
        self.cost.kernels += work


class _UntracedOperations(_Operations):
    """The same, with its handler hidden from torch's compiler.

    By default torch hides every handler, and imports the compiler to do so (0.7 s). That is worth
    it only where the compiler is loaded anyway.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among `values` and in the lists and tuples among them."""
    for value in values:
        if isinstance(value, Tensor):
            yield from _stored(value)
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _stored(t: Tensor) -> tuple[Tensor, ...]:
    """The tensors that hold what `t` does: itself, or the parts of a sparse one, which has no storage."""
    if t.layout is torch.strided:
        return (t,)
    with torch._C.DisableTorchFunction():
        if t.layout is torch.sparse_coo:
            return t._indices(), t._values()
        if t.layout in (torch.sparse_csr, torch.sparse_bsr):
            return t.crow_indices(), t.col_indices(), t.values()
        if t.layout in (torch.sparse_csc, torch.sparse_bsc):
            return t.ccol_indices(), t.row_indices(), t.values()
    return (t,)


def _flat(values: Any) -> Iterator[Any]:
    """`values`, and what the tuples among them hold: the parts of an index."""
    if isinstance(values, tuple):
        for value in values:
            yield from _flat(value)
    else:
        yield values


def _without_graph(t: Tensor) -> Tensor:
    """`t` detached. An operation's result, kept with its graph, would keep itself alive forever."""
    if t.grad_fn is None:
        return t
    with torch._C.DisableTorchFunction():
        return t.detach()


def _watch_saved(cost: Cost, parameters: bool) -> saved_tensors_hooks:
    """Hooks that count what is saved and change nothing: hooks around them still get their turn."""
    seen: dict[int, Callable[[], Any]] = {}
    outer = torch._C._autograd._top_saved_tensors_default_hooks(False)

    def count(t: Tensor) -> None:
        storage = t.untyped_storage()
        key = storage._cdata
        if key not in seen and (parameters or not _is_parameter(t)):
            seen[key] = weakref.ref(storage, lambda _: seen.pop(key, None))
            cost.bytes_saved += storage.nbytes()

    def pack(t: Tensor) -> Any:
        for part in _stored(t):
            count(part)
        if outer is not None:
            return outer[0](t)
        return _without_graph(t), None if t.is_inference() else t._version

    def unpack(packed: Any) -> Tensor:
        if outer is not None:
            return outer[1](packed)
        t, version = packed
        if version is not None and t._version != version:
            raise RuntimeError(_MODIFIED.format(shape=list(t.shape), now=t._version, then=version))
        return t

    return saved_tensors_hooks(pack, unpack)


# torch checks this itself, but not for tensors saved through hooks.
_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation: a tensor of shape {shape} is at version {now}; expected version {then} instead."
)


def _is_parameter(t: Tensor) -> bool:
    base = t if t._base is None else t._base
    return isinstance(base, torch.nn.Parameter)
