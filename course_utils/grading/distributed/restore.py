"""What a rank was like before a check, to put it back."""

import os
import sys
import threading
import types
from contextlib import suppress

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import bypass

_JOIN_S = 1.0  # and one that returned, for the threads that it left running


class Before:
    """What a rank was like before a check, to put it back."""

    def __init__(self) -> None:
        bypass.begin()
        self.environment = dict(os.environ)
        self.threads = set(threading.enumerate())
        self.groups = set(dist.distributed_c10d._world.pg_map)
        self.names = [(owner, dict(vars(owner))) for owner in (torch, dist, Tensor, nn.Module)]
        self.restored = True

    def put_back(self) -> list[str]:
        """Undo what the code left behind; what that was, in words that follow "your code"."""
        left = [*self.put_names_back(), *self.put_environment_back(), *self.end_threads()]
        left += self.end_groups() + self.end_processes()
        return left

    def put_names_back(self) -> list[str]:
        left = []
        for owner, before in self.names:
            now = dict(vars(owner))
            if now.keys() == before.keys() and all(now[name] is before[name] for name in now):
                continue
            for name in now.keys() | before.keys():
                value = now.get(name)
                added = name not in before
                if value is before.get(name) or (added and isinstance(value, types.ModuleType)):
                    continue  # modules are loaded when they are first asked for
                if name.startswith("__"):
                    continue  # Python's own, such as copyreg's __slotnames__
                left.append(f"changed {owner.__name__}.{name} and left it so")
                if name in before:
                    setattr(owner, name, before[name])
                else:
                    delattr(owner, name)
        return left

    def put_environment_back(self) -> list[str]:
        now = dict(os.environ)
        if now == self.environment:
            return []
        names = sorted({name for name, _ in now.items() ^ self.environment.items()})
        os.environ.clear()
        os.environ.update(self.environment)
        return [f"changed the environment ({', '.join(names)}) and left it so"]

    def end_threads(self) -> list[str]:
        found = set(threading.enumerate()) - self.threads
        found = {t for t in found if not isinstance(t, threading._DummyThread)}
        for thread in found:
            thread.join(_JOIN_S)
            self.restored &= not thread.is_alive()
        return ["left a thread running"] if found else []

    def end_groups(self) -> list[str]:
        now = set(dist.distributed_c10d._world.pg_map)
        for group in now - self.groups:
            with suppress(Exception):
                dist.destroy_process_group(group)
        if self.groups <= now:
            return []
        self.restored = False
        return ["destroyed a process group that it had not made"]

    def end_processes(self) -> list[str]:
        module = sys.modules.get("multiprocessing.process")
        if not (bypass.started_a_process() or (module and module.active_children())):
            return []
        import psutil

        children = psutil.Process().children(recursive=True)
        for child in children:
            with suppress(psutil.Error):
                child.kill()
        self.restored &= not children
        return ["left a process running"] if children else []
