"""Chapter 15's looks into torch.compile: its logs, graphs, kernels, and what it keeps for backward."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo
import torch._logging
from torch import Tensor, fx, nn

Compiled = Callable[..., Any]


@contextmanager
def torch_logs(**artifacts: bool) -> Iterator[list[str]]:
    """What TORCH_LOGS would print within the block, as a list of messages that grows.

    artifacts: as for `torch._logging.set_logs`: `recompiles=True` is TORCH_LOGS=recompiles.
    Nothing is written to the terminal meanwhile; afterwards no artifact is on.
    """
    messages: list[str] = []
    handled: set[int] = set()

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if id(record) not in handled:  # a logger above has the same handler
                handled.add(id(record))
                records.append(record)
                messages.append(record.getMessage())

    records: list[logging.LogRecord] = []  # alive, so that no other gets the same id
    torch._logging.set_logs(**artifacts)  # type: ignore[arg-type]
    found = [logging.getLogger(name) for name in logging.root.manager.loggerDict if _of_torch(name)]
    kept = [(logger, logger.handlers) for logger in found if logger.handlers]
    for logger, _ in kept:
        logger.handlers = [Collect()]
    try:
        yield messages
    finally:
        for logger, handlers in kept:
            logger.handlers = handlers
        torch._logging.set_logs()


def _of_torch(name: str) -> bool:
    """Does a logger of this name say what TORCH_LOGS asks for?"""
    return name.partition(".")[0] == "torch" and name != "torch.__trace"


def graphs_of(function: Compiled, *args: Any, **kwargs: Any) -> list[fx.GraphModule]:
    """The graphs that Dynamo makes of a call, in order: one, or more where it breaks.

    Each runs as it is, without a compiler. Compilations of before are forgotten.
    """
    graphs: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, inputs: list[Tensor]) -> Compiled:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with torch_logs():
        torch.compile(function, backend=backend)(*args, **kwargs)
    torch._dynamo.reset()
    return graphs


def program_of(graph: fx.GraphModule) -> tuple[list[tuple[str, tuple[str, ...]]], list[str]]:
    """The operations of a graph as (result, operands), and its outputs: `pointwise_bytes`' arguments."""
    program, outputs = [], []
    for node in graph.graph.nodes:
        names = tuple(operand.name for operand in node.all_input_nodes)
        if node.op == "output":
            outputs = list(names)
        elif node.op not in ("placeholder", "get_attr"):
            program.append((node.name, names))
    return program, outputs


def bytes_of(graph: fx.GraphModule, *args: Tensor) -> dict[str, int]:
    """Bytes of every tensor of a graph by name, as it is run on these arguments."""
    sizes: dict[str, int] = {}

    class Sizes(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, Tensor):
                sizes[n.name] = value.nbytes
            return value

    Sizes(graph).run(*args)
    return sizes


def kernels_in(code: str) -> dict[str, tuple[int, int]]:
    """Of each C++ kernel in Inductor's code: how many loads and how many stores its text has."""
    found = {}
    for name, text in re.findall(
        r"^(\w+) = async_compile\.cpp_\w+\(.*?r'''(.*?)'''\)", code, re.M | re.S
    ):
        reads = len(set(re.findall(r"(?:loadu\(|= )(in_(?:out_)?ptr\d+)", text)))
        writes = len(set(re.findall(r"\.store\((\w+ptr\d+)|^ *(\w*out_ptr\d+)\[", text, re.M)))
        found[name] = reads, writes
    return found


def kept_for_backward(
    function: Callable[[], Tensor], parameters: Iterable[nn.Parameter] = ()
) -> tuple[Tensor, int]:
    """What the function returns, and the bytes that autograd keeps for its backward, parameters aside.

    Every storage counts whole and once. Compiled functions keep theirs in the same way.
    """
    own = {p.untyped_storage().data_ptr() for p in parameters}
    kept: dict[int, int] = {}

    def pack(saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        result = function()
    return result, sum(kept.values())
