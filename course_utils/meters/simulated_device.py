"""A device that computes while its host goes on, simulated: the clock is a number that calls move."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

MICROSECOND = 1e-6


class Kernel(NamedTuple):
    """One kernel that ran, or will: times in seconds on the simulated clock."""

    name: str
    stream: int
    start: float
    end: float


class SimulatedDevice:
    """A host that launches kernels, and a device that runs each stream's in the order of their launch.

    A launch takes launch_s of the host's time and returns; the kernel starts when its stream is free.
    `clock` is what a program on the host reads, `synchronize` what waits for the device. Nothing here
    takes real time, and the same calls give the same times on every machine.
    """

    def __init__(self, launch_s: float = 5 * MICROSECOND) -> None:
        """launch_s: of the host's time, for each launch."""
        self.launch_s = launch_s
        self.kernels: list[Kernel] = []
        self._now = 0.0
        self._free: dict[int, float] = {}
        self._events: list[dict[str, Any]] = []
        self._launches = 0

    def clock(self) -> float:
        """The host's time, in seconds."""
        return self._now

    def host(self, seconds: float) -> None:
        """The host computes something itself."""
        self._now += seconds

    def launch(self, seconds: float, name: str = "kernel", stream: int = 0) -> float:
        """Queue a kernel. Returns when it will end: what a recorded event would say."""
        return self.launch_graph([(name, seconds)], stream, "cudaLaunchKernel")

    def launch_graph(
        self, kernels: Iterable[tuple[str, float]], stream: int = 0, call: str = "cudaGraphLaunch"
    ) -> float:
        """Queue many kernels, (name, seconds) each, in one launch, as a CUDA graph does.

        call: the name of the host's call in the trace. Returns when the last one will end.
        """
        self._launches += 1
        ids = {"correlation": self._launches}
        self._note("cuda_runtime", call, self._now, self.launch_s, ids)
        self._now += self.launch_s
        end = self._free.get(stream, 0.0)
        for name, seconds in kernels:
            start = max(end, self._now)
            end = start + seconds
            self.kernels.append(Kernel(name, stream, start, end))
            self._note("kernel", name, start, seconds, ids | {"stream": stream})
        self._free[stream] = end
        return end

    def wait(self, stream: int, until: float) -> None:
        """Kernels that are launched to the stream from now on start no earlier than `until`."""
        self._free[stream] = max(self._free.get(stream, 0.0), until)

    def synchronize(self) -> None:
        """The host waits until the device has done all that was launched."""
        self._now = max([self._now, *(kernel.end for kernel in self.kernels)])

    @contextmanager
    def annotation(self, name: str) -> Iterator[None]:
        """A named range on the host's time line, as `record_function` makes one."""
        start = self._now
        yield
        self._note("user_annotation", name, start, self._now - start, {})

    def trace(self) -> list[dict[str, Any]]:
        """What happened as `traceEvents` of a Chrome trace: times in microseconds."""
        return [dict(event) for event in self._events]

    def _note(self, cat: str, name: str, start: float, dur: float, args: dict[str, Any]) -> None:
        ts, length = start / MICROSECOND, dur / MICROSECOND
        made = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": length, "args": args}
        self._events.append(made)
