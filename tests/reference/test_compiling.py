"""The looks into torch.compile that chapter 15 uses."""

import logging

import pytest
import torch

from course_utils.needs import COMPILER
from course_utils.reference.compiling import (
    bytes_of,
    graphs_of,
    kept_for_backward,
    kernels_in,
    program_of,
    torch_logs,
)


def chain(x, b):
    h = x + b
    return h * torch.tanh(h)


def test_logs_are_collected_and_nothing_is_left_on(capfd):
    torch._dynamo.reset()
    function = torch.compile(lambda x: x + 1, backend="eager")
    handlers = logging.getLogger("torch").handlers
    with torch_logs(recompiles=True) as messages:
        function(torch.ones(3))
        function(torch.ones(4))
    assert any("size mismatch at index 0" in message for message in messages)
    assert capfd.readouterr().err == ""
    seen = len(messages)
    function(torch.ones(4, 4))
    assert len(messages) == seen and logging.getLogger("torch").handlers == handlers


def test_a_break_makes_two_graphs():
    def broken(x):
        return x + 1 if x.sum() > 0 else x - 1

    assert len(graphs_of(chain, torch.ones(2), torch.ones(2))) == 1
    assert len(graphs_of(broken, torch.ones(2))) == 2


def test_a_graph_as_a_program_with_bytes():
    x, b = torch.ones(4, 3), torch.ones(3)
    (graph,) = graphs_of(chain, x, b)
    program, outputs = program_of(graph)
    assert [len(operands) for _, operands in program] == [2, 1, 2]
    assert outputs == [program[-1][0]]
    sizes = bytes_of(graph, x, b)
    assert sorted(sizes.values()) == [12, 48, 48, 48, 48]


def test_what_is_kept_leaves_parameters_out():
    layer = torch.nn.Linear(4, 5, bias=False)
    x = torch.randn(3, 4)
    result, kept = kept_for_backward(lambda: layer(x), layer.parameters())
    assert kept == x.nbytes
    torch.testing.assert_close(result, layer(x))
    assert kept_for_backward(lambda: layer(x))[1] == x.nbytes  # no gradient of x: no weight kept


@pytest.mark.skipif(not COMPILER.present(), reason="there is no C++ compiler")
def test_a_chain_is_one_kernel():
    from torch._inductor.utils import fresh_cache, run_and_get_code

    torch._dynamo.reset()
    with fresh_cache(), torch._inductor.config.patch(cpp_cache_precompile_headers=False):
        result, (code,) = run_and_get_code(torch.compile(chain), torch.ones(64, 64), torch.ones(64))
    torch.testing.assert_close(result, chain(torch.ones(64, 64), torch.ones(64)))
    assert list(kernels_in(code).values()) == [(2, 1)]
