"""How the tests of the sandbox speak with a submission, and what they grade after each attack."""

from typing import Any

from course_utils.grading import call, find
from course_utils.grading.judging.judge import judge
from course_utils.grading.judging.verdict import Verdict
from course_utils.grading.remote.client import RemoteSubmission

KEY = "strides.flat_index"
PROBE = "course_utils.grading.probes.functions:call"

REFUSED_EVERYWHERE = {
    "fork": ("import os; os.fork()", "PermissionError"),
    "a signal to the parent": ("import os; os.kill(os.getppid(), 9)", "PermissionError"),
    "a socket": ("import socket; socket.socket()", "PermissionError"),
    "the references": ("import course_utils.reference.strides", "ModuleNotFoundError"),
}
"""What is refused with bubblewrap and without: a statement, and the exception that it must raise."""

RUNNER = f"""
@exercise("{KEY}")
def flat_index(source):
    space = {{}}
    exec(source, space)
    return space["found"]
"""

HONEST = f"""
@exercise("{KEY}")
def flat_index(index, stride, offset=0):
    return offset + sum(i * s for i, s in zip(index, stride))
"""

WRONG = f"""
@exercise("{KEY}")
def flat_index(index, stride, offset=0):
    return sum(i * s for i, s in zip(index, stride))
"""


class Runner:
    """Runs sources as a student's function would, one after another, in one submission."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        channel.ask({"do": "read", "cells": [RUNNER]}, 20.0)
        names = {"names": ["flat_index"], "methods": [[]], "given": {}}
        defined = channel.ask({"do": "define", "key": KEY, "probe": PROBE, **names}, 20.0)
        assert defined["problem"] is None

    def run(self, source: str, limit_s: float = 30.0, own_limit_s: float = 60.0) -> Any:
        """What the source binds to `found`, or the name of the exception that ended it."""
        case = call(source).as_tree()
        request = {"do": "observe", "key": KEY, "groups": [[case]], "limit_s": own_limit_s}
        (group,) = self.channel.ask(request, limit_s)["groups"]
        (observation,) = group["observations"]
        if observation["raised"]:
            return observation["raised"]["kinds"][0]
        return observation["seen"]["result"]


def verdict_on(sandbox: Any, *cells: str) -> Verdict:
    """The verdict on a notebook that answers one exercise."""
    with sandbox.submission() as channel:
        return judge(
            find(KEY), RemoteSubmission(channel.ask, cells).answer(find(KEY)), seed=7, explain=False
        )


def found_by(sandbox: Any, source: str, *, ranks: bool = False, limit_s: float = 30.0) -> Any:
    with sandbox.submission(ranks=ranks) as channel:
        return Runner(channel).run(source, limit_s)
