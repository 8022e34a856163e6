"""Runs of a pipeline in each mode, and contexts for them."""

import dataclasses
import warnings
from typing import Any

import pytest

from ding_lite.engine import Context, Task, contract

MODES = pytest.mark.parametrize(
    "mode",
    [{}, {"max_lag": 1}, {"async_mode": True}, {"async_mode": True, "max_lag": 0}],
    ids=["plain", "lag", "threads", "threads without lag"],
)
OVERLAPPING = pytest.mark.parametrize("mode", [{"max_lag": 1}, {"async_mode": True}], ids=["lag", "threads"])


@dataclasses.dataclass
class Data(Context):
    count: int = 0
    batch: Any = None
    more: Any = None
    rows: list = dataclasses.field(default_factory=list)

    @property
    def double(self) -> int:
        return 2 * self.count

    @property
    def quadruple(self) -> int:
        return 2 * self.double

    @property
    def level(self) -> int:
        return self.count

    @level.setter
    def level(self, value: int) -> None:
        self.count = value

    def __post_init__(self) -> None:
        self.keep("count")


@dataclasses.dataclass(slots=True)
class Slotted(Context):
    count: int = 0
    batch: Any = None

    def __post_init__(self) -> None:
        self.keep("count")


def run(*middleware: Any, mode: dict[str, Any], ctx: Context | None = None, steps: int = 3, wrapper: Any = None) -> Any:
    with Task().start(ctx=Data() if ctx is None else ctx, **mode) as loop:
        if wrapper is not None:
            loop.use_wrapper(wrapper)
        for one in middleware:
            loop.use(one(loop) if getattr(one, "wants_loop", False) else one)
        loop.run(steps)
        return loop.ctx


def two_lanes(change, read, uses=((), ()), stages=("collect", "learn")):
    """Middleware of two lanes: one calls `change`, the other `read`."""

    @contract(writes=("batch",), uses=uses[0], stage=stages[0])
    def collects(ctx):
        change()
        ctx.batch = 1

    @contract(reads=("batch",), uses=uses[1], stage=stages[1])
    def learns(ctx):
        return read() and None

    return collects, learns


def warned(*middleware, mode=None):
    """The warnings of a run that tell of what its lanes share."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(*middleware, mode={"max_lag": 1} if mode is None else mode, steps=7)
    return [text for text in (str(one.message) for one in caught) if "which is faster" in text or "Nothing orders" in text]
