"""Runs of middleware that remember something, and what the run says of it when it is saved."""

import dataclasses
import warnings

import torch

from ding_lite import Context, Task
from ding_lite.middleware import CkptSaver


@dataclasses.dataclass
class Sum(Context):
    total: float = dataclasses.field(default=0.0, metadata={"kept": True})


class Box:
    def __init__(self):
        self.count = 0

    def step(self, ctx):
        self.count += 1

    def next(self):
        self.count += 1
        return self.count


class Saved:
    """An object with a state."""

    def __init__(self):
        self.rows, self.box = [], Box()

    def step(self, ctx):
        self.rows.append(self.box.next())

    def state_dict(self):
        return {"rows": list(self.rows), "count": self.box.count}

    def load_state_dict(self, state):
        self.rows, self.box.count = list(state["rows"]), state["count"]


def warned(folder, *middleware, max_step=4, train_freq=1000, **mode):
    """The warnings about memories in a run that is saved; with this train_freq only at its end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=Sum(), **mode) as loop:
            for one in middleware:
                loop.use(one)
            loop.use(CkptSaver(torch.nn.Linear(1, 1), folder, train_freq=train_freq)).run(max_step)
    return [str(it.message) for it in caught if "has no state_dict" in str(it.message)]


def remembered(folder, *middleware, max_step=4):
    """All warnings about memories in a run that is saved at its end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Task().start(ctx=Sum()) as loop:
            for one in middleware:
                loop.use(one)
            loop.use(CkptSaver(torch.nn.Linear(1, 1), folder, train_freq=1000)).run(max_step)
    return [str(it.message) for it in caught if "remembers something" in str(it.message)]
