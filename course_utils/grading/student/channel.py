"""A channel to a student's code, as both of its ends name it. Loads nothing."""

from collections.abc import Callable
from typing import Any

Ask = Callable[[dict[str, Any], float], dict[str, Any]]
"""(request, limit_s) → reply; both are trees (see `values`). Raises ChannelLost."""


class ChannelLost(Exception):
    """The process on the other side is gone; the next question meets a fresh one.

    reason: in words that follow "your code". how: "died", "timeout", "flood" or "garbage".
    """

    def __init__(self, reason: str, how: str) -> None:
        super().__init__(reason)
        self.reason, self.how = reason, how
