"""Modes, a context and middleware for tests of deferred work."""

import dataclasses
import threading

import pytest

from ding_lite.engine import Context, contract

MODES = pytest.mark.parametrize(
    "mode",
    [{"async_mode": True}, {"async_mode": False, "max_lag": 1}, {"async_mode": False}],
    ids=["threads", "one thread", "plain"],
)


@dataclasses.dataclass
class Counts(Context):
    count: int = 0
    score: int = -1

    def __post_init__(self):
        self.keep("count", "score")


def train(ctx):
    ctx.count += 1


learner = contract(("count",), ("count",), stage="learn")(train)
collector = contract(stage="collect")(lambda ctx: None)  # where all is on one lane, nothing overlaps


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("task.")]
