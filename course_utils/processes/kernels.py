"""The kernels of notebooks that this process starts: which Python they are of, and on which ports.

Their ports lie out of the range from which the system serves all programs. jupyter_client looks for a
free port and lets go of it; a second or two later the kernel binds it. In between the system may give
it to a program that asks for any port, as gloo, browsers and servers do, and the kernel ends with
"Address already in use".
"""

import os
import random
import socket

from jupyter_client.provisioning.local_provisioner import LocalPortCache

PORTS = range(20_000, 32_000)
"""Below the ports that Linux (from 32,768), macOS and Windows (from 49,152) give to whoever asks for any."""

_DRAW = random.SystemRandom()  # two programs with one seed would try the same ports


class PortsApart(LocalPortCache):
    """Where kernels of this process get their ports from, once there is an instance of it."""

    def find_available_port(self, ip: str) -> int:
        """A port of PORTS that is free now and was not given before. Raises OSError if there is none."""
        for port in _DRAW.sample(PORTS, len(PORTS)):
            if port not in self.currently_used_ports and _is_free(ip, port):
                self.currently_used_ports.add(port)
                return port
        raise OSError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free at {ip}")


def of_this_python() -> None:
    """From now on ``python3`` is a kernel of the Python that runs, with ports of PORTS.

    A kernel of that name in a home folder or on JUPYTER_PATH would otherwise shadow it.
    """
    os.environ.pop("JUPYTER_PATH", None)
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    set_apart()


def set_apart() -> None:
    """From now on kernels that this process starts get ports of PORTS, whoever starts them."""
    if PortsApart.initialized():
        return
    LocalPortCache.clear_instance()
    PortsApart.instance()  # traitlets' singletons: it is LocalPortCache's instance as well


def _is_free(ip: str, port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind((ip, port))
        except OSError:
            return False
    return True
