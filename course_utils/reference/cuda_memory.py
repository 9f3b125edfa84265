"""The book's code of chapter 14: where memory goes in a training step, and how to need less of it.

A *trace* is a list of entries in the form of `torch.cuda.memory._snapshot()["device_traces"][0]`:
dicts with "action" ("alloc", "free_requested", "free_completed", "snapshot", …), "addr", "size" in
bytes and "frames" (innermost first, each with "filename", "line", "name"). `MemoryTrace` records one
without a GPU.
"""

import itertools
import math
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from .gpt2 import Block, GPT2Config, Parts

Trace = list[dict[str, Any]]

# ------------------------------------------------------------------------------ a block that runs twice


class CheckpointedBlock(Block):
    """GPT-2's block, with its forward pass called through a checkpoint.

    How a block is called is no setting of GPT-2, so a model whose blocks are computed
    again takes this one: `Parts(block=partial(CheckpointedBlock, through=checkpoint))`.
    """

    def __init__(
        self, config: GPT2Config, parts: Parts = Parts(), *, through: Callable[..., Tensor]
    ):
        """through: called as `checkpoint` is, with the block's forward and its arguments."""
        super().__init__(config, parts)
        self.through = through

    def forward(
        self, x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B 1 T T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        return self.through(super().forward, x, mask)


# ------------------------------------------------------------------------------ traces


class MemoryTrace(TorchDispatchMode):
    """Records what operations allocate, and when it is freed: `with MemoryTrace() as trace: …`.

    entries: the trace. live: bytes alive now that were made within the block.
    mark(name): notes a moment, as an entry whose action is "snapshot". claim(tenant,
    tensors): says whose memory the blocks of these tensors are, on their entries'
    "tenant". A block is known by a number of its own in "addr", since fake tensors and
    those on the meta device, which work too, have no address.

    It sees operations and their results: not the scratch memory inside a kernel, nor
    what was made before the block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entries: Trace = []
        self.live = 0
        self._blocks: dict[int, dict[str, Any]] = {}
        self._watches: dict[int, weakref.ref] = {}
        self._addresses = itertools.count(1)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        fresh = (
            func is torch.ops.aten.lift_fresh.default
        )  # torch.tensor(…): made outside of operations
        given = set() if fresh else {_key(t) for t in _tensors((args, kwargs or {}))}
        result = func(*args, **(kwargs or {}))
        for t in _tensors(result):
            if _key(t) not in given and _key(t) not in self._blocks:
                self._made(t.untyped_storage(), str(func))
        return result

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._watches.clear()

    def mark(self, name: str = "") -> None:
        """Note a moment: the end of a step, the start of the backward pass."""
        self._note("snapshot", 0, 0, name=name)

    def claim(self, tenant: str, tensors: Sequence[Tensor]) -> None:
        """Say whose memory it is. The first claim to a block holds."""
        for t in tensors:
            if _key(t) in self._blocks:
                self._blocks[_key(t)].setdefault("tenant", tenant)

    def _made(self, storage: torch.UntypedStorage, op: str) -> None:
        key, size = storage._cdata, storage.nbytes()
        entry = self._note("alloc", next(self._addresses), size, frames=_frames(), op=op)
        self._blocks[key] = entry
        self._watches[key] = weakref.ref(storage, lambda _: self._freed(key))
        self.live += size

    def _freed(self, key: int) -> None:
        entry = self._blocks.pop(key)
        self._watches.pop(key, None)
        for action in ("free_requested", "free_completed"):
            self._note(action, entry["addr"], entry["size"])
        self.live -= entry["size"]

    def _note(self, action: str, addr: int, size: int, **more: Any) -> dict[str, Any]:
        entry = {"action": action, "addr": addr, "size": size, "stream": 0, "frames": [], **more}
        self.entries.append(entry)
        return entry


def _key(t: Tensor) -> int:
    return t.untyped_storage()._cdata


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _tensors(item)


_NOT_YOURS = (f"{os.sep}torch{os.sep}", f"{os.sep}jaxtyping{os.sep}", "<@beartype")


def _frames(depth: int = 6) -> list[dict[str, Any]]:
    """The Python frames under way, innermost first, without torch's own and this recorder's."""
    found: list[dict[str, Any]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < depth:
        code = frame.f_code
        own = code.co_name in ("__torch_dispatch__", "_made")
        if not own and not any(part in code.co_filename for part in _NOT_YOURS):
            found.append(
                {"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name}
            )
        frame = frame.f_back
    return found


@contextmanager
def traced_step(model: nn.Module, optimizer: Optimizer) -> Iterator[MemoryTrace]:
    """A MemoryTrace of one training step that knows whose memory is whose.

    Claims what autograd saves for "activations", gradients as they arrive for
    "gradients" and what an optimizer step leaves in its state for "optimizer state".
    What nobody claims is temporary.
    """
    trace = MemoryTrace()

    def pack(t: Tensor) -> Tensor:
        trace.claim("activations", [t])
        return t

    def arrived(p: Tensor) -> None:
        if p.grad is not None:
            trace.claim("gradients", [p.grad])

    def stepped(optimizer: Optimizer, *_: Any) -> None:
        trace.claim("optimizer state", list(_tensors(dict(optimizer.state))))

    hooks = [
        p.register_post_accumulate_grad_hook(arrived) for p in model.parameters() if p.requires_grad
    ]
    hooks.append(optimizer.register_step_post_hook(stepped))
    try:
        with trace, saved_tensors_hooks(pack, lambda t: t):
            yield trace
    finally:
        for hook in hooks:
            hook.remove()


def play(trace: Trace, allocator: Any) -> None:
    """Ask a `CudaAllocator` for what the trace allocates, and free what it frees.

    Empty blocks take nothing. Raises torch.OutOfMemoryError where the allocator does.
    """
    addresses: dict[int, int] = {}
    for entry in trace:
        if not entry["size"]:
            continue
        if entry["action"] == "alloc":
            allocator.frames = entry["frames"]
            addresses[entry["addr"]] = allocator.malloc(entry["size"])
        elif entry["action"] == "free_completed":
            allocator.free(addresses.pop(entry["addr"]))


def peak_memory(trace: list[dict[str, Any]]) -> tuple[int, list[int]]:
    """Most bytes taken at once, and by which blocks.

    trace: entries as in `torch.cuda.memory._snapshot()["device_traces"][0]`, of one
    device. A block, even of 0 bytes, is taken from its "alloc" to its "free_completed";
    other actions change nothing, and their entries need not have an "addr". An address
    can be used again. What is freed without having been allocated in the trace was
    there before it began, and does not count. Returns the bytes and the addresses of
    the blocks taken at the first moment of the peak, in the order of their allocation;
    (0, []) for a trace without "alloc".
    """
    taken: dict[int, int] = {}
    now = most = 0
    blocks: list[int] = []
    for entry in trace:
        if entry["action"] == "alloc":
            taken[entry["addr"]] = entry["size"]
            now += entry["size"]
            if now > most:
                most, blocks = now, list(taken)
        elif entry["action"] == "free_completed":
            now -= taken.pop(entry["addr"], 0)
    return most, blocks


def find_leak(trace: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """The places whose memory grows from step to step, and by how many bytes.

    trace: as in `peak_memory`, whose rules of what is taken hold here too, with a
    "snapshot" entry at the end of each training step. A place is "filename:line" of the
    innermost frame (frames[0]) of an "alloc", "?" if its frames are empty. It leaks if
    the bytes taken that were allocated there grow from every snapshot to the next. The
    first step warms up: what it leaves (optimizer state, say) is where counting begins.
    Returns (place, bytes at the last snapshot minus bytes at the first), the most bytes
    first and equal ones by place; [] for fewer than two snapshots.
    """
    alive: Counter[str] = Counter()
    born: dict[int, tuple[str, int]] = {}
    history: list[Counter[str]] = []
    for entry in trace:
        if entry["action"] == "alloc":
            frames = entry["frames"]
            place = f"{frames[0]['filename']}:{frames[0]['line']}" if frames else "?"
            born[entry["addr"]] = place, entry["size"]
            alive[place] += entry["size"]
        elif entry["action"] == "free_completed" and entry["addr"] in born:
            place, size = born.pop(entry["addr"])
            alive[place] -= size
        elif entry["action"] == "snapshot":
            history.append(alive.copy())
    if len(history) < 2:
        return []
    leaks = [
        (place, history[-1][place] - history[0][place])
        for place in alive
        if all(before[place] < after[place] for before, after in itertools.pairwise(history))
    ]
    return sorted(leaks, key=lambda leak: (-leak[1], leak[0]))


# ------------------------------------------------------------------------------ one step's tenants


class _Saved:
    """Stands for a tensor in autograd's graph, and counts its storage for as long as it is there."""

    def __init__(self, tensor: Tensor, count: Counter[int]):
        self.tensor, self.count = tensor, count
        self.storage = tensor.untyped_storage()
        count[self.storage.data_ptr()] += 1

    def __del__(self) -> None:
        self.count[self.storage.data_ptr()] -= 1


def training_step_timeline(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    target: Tensor,
) -> list[tuple[str, int, int, int, int]]:
    """Run one training step and say, moment by moment, how many bytes each of four tenants takes.

    The step: loss_fn(model(x), target), backward, optimizer.step(),
    optimizer.zero_grad(). Rows are (moment, parameters, gradients, optimizer state,
    activations), in bytes. Moments: "start"; "forward <name>" after each call of a
    module without children, by its name in `named_modules`; "loss"; "gradient <name>"
    when a parameter's gradient is in its `.grad`, by its name in
    `named_parameters`; "step"; "zero_grad". Optimizer state: every tensor in
    optimizer.state. Activations: the storages that autograd holds for the backward pass
    at that moment, each counted whole and once; those of parameters and buffers are not
    among them. No hook stays behind, not even where the step raises; the exception is
    passed on.
    """
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    sizes: dict[int, int] = {}
    held: Counter[int] = Counter()
    rows: list[tuple[str, int, int, int, int]] = []

    def pack(t: Tensor) -> _Saved:
        sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return _Saved(t.detach(), held)

    def note(moment: str) -> None:
        states = [t for state in optimizer.state.values() for t in state.values()]
        rows.append(
            (
                moment,
                sum(p.nbytes for p in model.parameters()),
                sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
                sum(t.nbytes for t in states if isinstance(t, Tensor)),
                sum(sizes[key] for key, n in held.items() if n and key not in own),
            )
        )

    hooks = []
    for name, module in model.named_modules():
        if not list(module.children()):
            hooks.append(
                module.register_forward_hook(lambda *_, name=name: note(f"forward {name}"))
            )
    for name, p in model.named_parameters():
        if p.requires_grad:
            hooks.append(
                p.register_post_accumulate_grad_hook(lambda _, name=name: note(f"gradient {name}"))
            )
    try:
        note("start")
        with saved_tensors_hooks(pack, lambda saved: saved.tensor):
            loss = loss_fn(model(x), target)
        note("loss")
        loss.backward()
        optimizer.step()
        note("step")
        optimizer.zero_grad()
        note("zero_grad")
    finally:
        for hook in hooks:
            hook.remove()
    return rows


# ------------------------------------------------------------------------------ recompute


class _Keep(torch.autograd.Function):
    """Computes nothing and saves its tensors, where hooks around it see them as any other."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise AssertionError("nobody uses its result")


def _device_states(values: Sequence[Any]) -> dict[int, Tensor]:
    """The state of the random numbers of every GPU that one of the tensors is on."""
    devices = {v.get_device() for v in values if isinstance(v, Tensor) and v.is_cuda}
    return {device: torch.cuda.get_rng_state(device) for device in sorted(devices)}


def _set_states(state: Tensor, device_states: dict[int, Tensor]) -> None:
    torch.set_rng_state(state)
    for device, device_state in device_states.items():
        torch.cuda.set_rng_state(device_state, device)


def _autocasts(values: Sequence[Any]) -> list[torch.autocast]:
    """Autocast as it is now, on the CPU and on every device that one of the tensors is on."""
    kinds = {"cpu", *(v.device.type for v in values if isinstance(v, Tensor))}
    return [
        torch.autocast(
            kind,
            torch.get_autocast_dtype(kind),
            torch.is_autocast_enabled(kind),
            torch.is_autocast_cache_enabled(),
        )
        for kind in sorted(kinds)
        if torch.amp.is_autocast_available(kind)
    ]


@contextmanager
def _all_of(contexts: Iterable[AbstractContextManager[Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """function(*args, **kwargs), keeping for backward only its tensor arguments.

    What the function saves is dropped. Backward runs it once more, when it first needs
    something of that, with the random numbers and the autocast of the first time and
    without moving the generator. A further backward pass over the same graph runs it
    again, and the gradients can be differentiated, too. Arguments need not be tensors,
    nor require grad, and can be keywords; calls nest, and an outer one drops the
    tensors that inner ones were given by position; parameters that the function uses
    get their gradients. Without grad mode it only calls the function. Source: Chen et
    al. (2016); the method is torch.utils.checkpoint's with use_reentrant=False.
    """
    given = [*args, *kwargs.values()]
    places = [i for i, value in enumerate(given) if isinstance(value, Tensor)]
    anchor = torch.empty(0, requires_grad=True)
    kept = _Keep.apply(anchor, *(given[i] for i in places)).grad_fn
    state, device_states = torch.get_rng_state(), _device_states(given)
    autocasts = _autocasts(given)
    for i in places:
        given[i] = None
    n, names = len(args), list(kwargs)
    recomputed: dict[int, Tensor] = {}
    numbers = itertools.count()

    def pack(t: Tensor) -> int:
        return next(numbers)

    def unpack(number: int) -> Tensor:
        if number not in recomputed:
            recompute()
        return recomputed.pop(number)

    def recompute() -> None:
        values, again = list(given), itertools.count()
        for i, t in zip(places, kept.saved_tensors, strict=True):
            values[i] = t

        def keep(t: Tensor) -> None:
            recomputed[next(again)] = t.detach()

        with (
            torch.random.fork_rng(devices=list(device_states)),
            torch.enable_grad(),
            _all_of(autocasts),
            saved_tensors_hooks(keep, lambda nothing: nothing),
        ):
            _set_states(state, device_states)
            function(*values[:n], **dict(zip(names, values[n:], strict=True)))

    with saved_tensors_hooks(pack, unpack):
        return function(*args, **kwargs)


def checkpoint_every_sqrt(
    layers: Sequence[Callable[[Tensor], Tensor]], x: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """Call the n layers one after the other, in checkpointed segments of about √n layers.

    Then about √n inputs of segments are kept, and in backward the activations of one
    segment at a time, about √n more; each layer runs at most twice. No layers: x.
    Source: Chen et al. (2016), section 4.
    """
    size = math.ceil(math.sqrt(len(layers)))

    def run(segment: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
        for layer in segment:
            x = layer(x)
        return x

    for start in range(0, len(layers), max(size, 1)):
        x = checkpoint(run, layers[start : start + size], x)
    return x


# ------------------------------------------------------------------------------ do without


def step_in_backward(
    model: nn.Module, make: Callable[[list[nn.Parameter]], Optimizer]
) -> dict[str, Optimizer]:
    """Give each parameter an optimizer of its own that steps as soon as its gradient is there.

    make: an optimizer for a list of one parameter. The gradient is dropped at once, so
    that few are alive together; accumulating over micro-batches and clipping by the
    norm of all are no longer possible. Returns the optimizers by the parameters' names;
    the hooks stay on the model.
    """
    optimizers = {n: make([p]) for n, p in model.named_parameters() if p.requires_grad}

    def use(optimizer: Optimizer) -> Callable[[Tensor], None]:
        def hook(p: Tensor) -> None:
            optimizer.step()
            optimizer.zero_grad()

        return hook

    for name, p in model.named_parameters():
        if p.requires_grad:
            p.register_post_accumulate_grad_hook(use(optimizers[name]))
    return optimizers


def largest_batch(step: Callable[[int], Any], limit: int = 1024) -> int:
    """The largest batch, up to `limit`, with which a step fits into memory.

    step(batch) runs one training step; it raises torch.OutOfMemoryError where the batch
    does not fit. If a batch fits, so do all smaller ones. Other exceptions are passed
    on. Runs at most 2·log2(limit) + 2 steps. Returns 0 if not even one sample fits, or
    if limit is 0: then no step is run.
    """

    def fits(batch: int) -> bool:
        try:
            step(batch)
        except torch.OutOfMemoryError:
            return False
        return True

    low, high = 0, limit + 1  # low fits; high does not
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def bytes_by_tenant(trace: Trace) -> dict[str, list[int]]:
    """For each tenant, its bytes after every entry of the trace: what the timeline draws.

    A block without a "tenant" is temporary. What was there before the trace began does
    not count.
    """
    alive: dict[int, tuple[str, int]] = {}
    now: Counter[str] = Counter()
    after: list[Counter[str]] = []
    for entry in trace:
        if entry["action"] == "alloc":
            alive[entry["addr"]] = tenant, size = entry.get("tenant", "temporary"), entry["size"]
            now[tenant] += size
        elif entry["action"] == "free_completed" and entry["addr"] in alive:
            tenant, size = alive.pop(entry["addr"])
            now[tenant] -= size
        after.append(now.copy())
    return {tenant: [sizes[tenant] for sizes in after] for tenant in now}
