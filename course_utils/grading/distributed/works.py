"""The works of asynchronous collectives that nobody has waited for."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch.distributed as dist

from course_utils.meters.communication import NAMES
from course_utils.ranks.frames import may_block
from course_utils.ranks.rank.operations import CALLS

_LOOKS = ("wait", "get_future", "is_completed", "is_success", "result", "synchronize")


@contextmanager
def works_watched() -> Iterator[dict[int, tuple[str, Any]]]:
    """The works that Python was handed and that nobody has waited for or asked about, by id."""
    pending: dict[int, tuple[str, Any]] = {}

    def handed(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            work = may_block(call, self, *args, **kwargs)
            if isinstance(work, dist.Work):
                pending[id(work)] = NAMES.get(f"{name}_", name), work
            return work

        return method

    def looked_at(look: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            pending.pop(id(self), None)
            return may_block(look, self, *args, **kwargs)

        return method

    with ExitStack() as stack:
        for name in CALLS:
            original = getattr(dist.ProcessGroup, name)
            stack.enter_context(replaced(dist.ProcessGroup, name, handed(original, name)))
        for name in _LOOKS:
            if hasattr(dist.Work, name):
                original = getattr(dist.Work, name)
                stack.enter_context(replaced(dist.Work, name, looked_at(original)))
        yield pending


@contextmanager
def replaced(owner: Any, name: str, by: Any) -> Iterator[None]:
    """While it is open, `owner.name` is `by`; afterwards what it was, inherited or its own."""
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
