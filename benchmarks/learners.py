"""Every algorithm's learner beside a bare torch loop that does the same work: gradient steps a second, on one thread.

All of them: `python benchmarks/learners.py`; some: `python benchmarks/learners.py sac td3`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial

from measure import compare, one_thread

NAMES = (
    *("dqn", "c51", "qrdqn", "iqn", "rainbow", "r2d2"),
    *("ddpg", "td3", "sac"),
    *("ppo", "ppo_lstm", "a2c", "reinforce", "impala"),
)

ITERATIONS = 40
"""Iterations per call. The contracts of middleware are checked in the first iterations of a run, which takes time there."""


def main(names: list[str]) -> None:
    unknown = set(names) - set(NAMES)
    if unknown:
        sys.exit(f"there is no learner {', '.join(sorted(unknown))}: take some of {', '.join(NAMES)}.")
    one_thread()
    for name in names or NAMES:
        work = importlib.import_module(f"bare.{name}")
        bare, ours = work.bare(), work.ours()
        functions = {"limit": partial(repeat, bare), "ours": partial(ours, ITERATIONS)}
        compare("learners", "updates_per_s", functions, work.UPDATES * ITERATIONS, rounds=8, algorithm=name)


def repeat(bare: Callable[[], None]) -> None:
    """The work of one call of ours."""
    for _ in range(ITERATIONS):
        bare()


if __name__ == "__main__":
    main(sys.argv[1:])
