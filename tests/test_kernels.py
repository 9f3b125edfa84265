"""Kernels are of this Python, and get ports that the system gives to nobody who asks for any."""

import os
import socket

import pytest
from jupyter_client.manager import start_new_kernel
from jupyter_client.provisioning.local_provisioner import LocalPortCache

from course_utils.processes import kernels


def test_a_kernel_gets_its_five_ports_from_the_range_apart() -> None:
    kernels.set_apart()
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        ports = {value for key, value in manager.get_connection_info().items() if "_port" in key}
        assert len(ports) == 5
        assert ports <= set(kernels.PORTS)
        assert ports <= LocalPortCache.instance().currently_used_ports
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_kernel_is_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", "/elsewhere")
    monkeypatch.delenv("JUPYTER_PREFER_ENV_PATH", raising=False)
    kernels.of_this_python()
    assert "JUPYTER_PATH" not in os.environ
    assert os.environ["JUPYTER_PREFER_ENV_PATH"] == "1"
    assert isinstance(LocalPortCache.instance(), kernels.PortsApart)


def test_setting_apart_twice_forgets_no_port() -> None:
    kernels.set_apart()
    port = LocalPortCache.instance().find_available_port("127.0.0.1")
    kernels.set_apart()
    assert port in LocalPortCache.instance().currently_used_ports
    LocalPortCache.instance().return_port(port)


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as busy, socket.socket() as free:
        for one in (busy, free):
            one.bind(("127.0.0.1", 0))
        taken, other = busy.getsockname()[1], free.getsockname()[1]
        free.close()
        monkeypatch.setattr(kernels, "PORTS", (taken, other))
        ports = kernels.PortsApart()
        assert ports.find_available_port("127.0.0.1") == other
        monkeypatch.setattr(kernels, "PORTS", range(taken, taken + 1))
        with pytest.raises(OSError, match="no port"):
            ports.find_available_port("127.0.0.1")
