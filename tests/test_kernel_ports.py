"""Kernels get ports that the system gives to nobody who asks for any."""

import socket

import pytest
from jupyter_client.manager import start_new_kernel
from jupyter_client.provisioning.local_provisioner import LocalPortCache

from course_utils.processes import kernel_ports


def test_a_kernel_gets_its_five_ports_from_the_range_apart() -> None:
    kernel_ports.set_apart()
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        ports = {value for key, value in manager.get_connection_info().items() if "_port" in key}
        assert len(ports) == 5
        assert ports <= set(kernel_ports.PORTS)
        assert ports <= LocalPortCache.instance().currently_used_ports
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_setting_apart_twice_forgets_no_port() -> None:
    kernel_ports.set_apart()
    port = LocalPortCache.instance().find_available_port("127.0.0.1")
    kernel_ports.set_apart()
    assert port in LocalPortCache.instance().currently_used_ports
    LocalPortCache.instance().return_port(port)


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as busy, socket.socket() as free:
        for one in (busy, free):
            one.bind(("127.0.0.1", 0))
        taken, other = busy.getsockname()[1], free.getsockname()[1]
        free.close()
        monkeypatch.setattr(kernel_ports, "PORTS", (taken, other))
        ports = kernel_ports.PortsApart()
        assert ports.find_available_port("127.0.0.1") == other
        monkeypatch.setattr(kernel_ports, "PORTS", range(taken, taken + 1))
        with pytest.raises(OSError, match="no port"):
            ports.find_available_port("127.0.0.1")
