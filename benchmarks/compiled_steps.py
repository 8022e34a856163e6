"""Learners with compiled gradient steps, beside the same learner without compilation and the bare torch loop of learners.py.

All of them: `python benchmarks/compiled_steps.py`; some: `python benchmarks/compiled_steps.py dqn ppo`. The first run compiles
for some minutes; later ones take the packages from the cache.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from learners import ITERATIONS, repeat
from measure import compare, one_thread

from ding_lite.policy import Policy

NAMES = ("dqn", "c51", "qrdqn", "iqn", "rainbow", "r2d2", "ddpg", "td3", "sac", "ppo", "ppo_lstm", "a2c", "reinforce", "impala")


def main(names: list[str]) -> None:
    unknown = set(names) - set(NAMES)
    if unknown:
        sys.exit(f"there is no compiled learner {', '.join(sorted(unknown))}: take some of {', '.join(NAMES)}.")
    one_thread()
    for name in names or NAMES:
        work = importlib.import_module(f"bare.{name}")
        with compiling():
            compiled = work.ours()
        functions = {
            "limit": partial(repeat, work.bare()),
            "limit without compilation": partial(work.ours(), ITERATIONS),
            "ours": partial(compiled, ITERATIONS),
        }
        compare("compiled_steps", "updates_per_s", functions, work.UPDATES * ITERATIONS, rounds=8, algorithm=name)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """A block in which every policy is made with learn.compile = "on"."""
    original: Any = Policy.__init__

    def made(self: Policy, cfg: Any, *args: Any, **kwargs: Any) -> None:
        cfg.learn.compile = "on"
        original(self, cfg, *args, **kwargs)

    Policy.__init__ = made  # type: ignore[method-assign]
    try:
        yield
    finally:
        Policy.__init__ = original  # type: ignore[method-assign]


if __name__ == "__main__":
    main(sys.argv[1:])
