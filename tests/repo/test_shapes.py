"""The shape annotations of the references are checked while the unit tests run."""

import importlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]

WRONG = '''
from jaxtyping import Float
from torch import Tensor


def transposed(x: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Says that the shape stays; it does not."""
    return x.T
'''


def test_a_wrong_shape_annotation_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import course_utils.reference as reference

    (tmp_path / "wrong_shapes.py").write_text(WRONG)
    monkeypatch.setattr(reference, "__path__", [*reference.__path__, str(tmp_path)])
    module = importlib.import_module("course_utils.reference.wrong_shapes")
    assert module.transposed(torch.zeros(2, 2)).shape == (2, 2)
    with pytest.raises(Exception, match="return value") as caught:
        module.transposed(torch.zeros(2, 3))
    assert "TypeCheckError" in type(caught.value).__name__
    with pytest.raises(Exception, match="parameter"):
        module.transposed(torch.zeros(2, 3, 4))


@pytest.mark.parametrize(("switch", "checked"), [("1", True), ("0", False)])
def test_the_checks_can_be_switched_off(tmp_path: Path, switch: str, checked: bool) -> None:
    code = """
import importlib.util, pathlib, sys
import course_utils.reference as reference
spec = importlib.util.spec_from_file_location("conftest", "tests/conftest.py")
spec.loader.exec_module(importlib.util.module_from_spec(spec))
reference.__path__.append(sys.argv[1])
import torch
from course_utils.reference.wrong_shapes import transposed
transposed(torch.zeros(2, 3))
"""
    (tmp_path / "wrong_shapes.py").write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"COURSE_SHAPE_CHECKS": switch},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode != 0) == checked, done.stderr
    assert ("TypeCheckError" in done.stderr) == checked


def test_a_test_cannot_use_the_network() -> None:
    with (
        socket.socket() as s,
        pytest.raises(pytest.fail.Exception, match="may not use the network"),
    ):
        s.connect(("192.0.2.1", 80))


def test_this_machine_can_be_reached() -> None:
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
