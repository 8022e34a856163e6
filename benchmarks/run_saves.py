"""Saving a run: the milliseconds that one save takes with a large replay buffer, and the share of DQN's wall time.

The run waits while it is saved, so these are wall times, including the fsync of each file. The limit is a save that writes the
whole state. Between two saves, a few transitions are new.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from measure import one_thread, report

from ding_lite import task
from ding_lite.basics import RunFiles
from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer
from ding_lite.middleware import CkptSaver

ROOT = Path(__file__).resolve().parent.parent
SAVES = 20
KINDS = {
    "vector (4,) float32": ((4,), np.float32, 1_000_000, 2_000),
    "image (84, 84) uint8": ((84, 84), np.uint8, 100_000, 200),
}
"""Shape and dtype of an observation, transitions in the full buffer, and new ones between two saves."""
ITERATIONS = 500


def rows(shape: tuple[int, ...], dtype: Any, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "obs": rng.integers(0, 255, (count, *shape), np.uint8).astype(dtype, copy=False),
        "action": rng.integers(0, 2, count),
        "reward": np.ones(count, np.float32),
        "next_obs": rng.integers(0, 255, (count, *shape), np.uint8).astype(dtype, copy=False),
        "terminated": np.zeros(count, np.bool_),
        "truncated": np.zeros(count, np.bool_),
    }


def seconds(function: Callable[..., object], *args: object) -> float:
    begun = time.perf_counter()
    function(*args)
    return time.perf_counter() - begun


def buffers() -> None:
    for kind, (shape, dtype, capacity, new) in KINDS.items():
        batch = rows(shape, dtype, new)
        for called in (ReplayBuffer, PrioritizedReplayBuffer):
            buffer = called(capacity)
            for _ in range(capacity // new):
                buffer.push(batch)
            params = {"obs": kind, "transitions": capacity, "new": new, "buffer": called.__name__, "bytes": buffer.nbytes}
            with tempfile.TemporaryDirectory() as folder:
                whole = seconds(RunFiles(folder).save, {"parts": {"buffer": buffer.state_dict()}}, 0)
                report("run_saves", "limit", "ms_per_whole_save", whole * 1e3, **params)
            with tempfile.TemporaryDirectory() as folder:
                measure(buffer, batch, RunFiles(folder), params)


def measure(buffer: ReplayBuffer, batch: dict[str, Any], files: RunFiles, params: dict[str, Any]) -> None:
    """The saves of a run as CkptSaver takes them: first rows, one file in each iteration, then the rest."""
    first, later = list(waits(buffer, batch, files, 0)), []
    for number in range(1, SAVES + 1):
        later.append(sum(waits(buffer, batch, files, number)))
    report("run_saves", "ours", "ms_of_longest_wait_of_first_save", max(first) * 1e3, **params, target="at most 200")
    report("run_saves", "ours", "ms_of_first_save", sum(first) * 1e3, **params, iterations=len(first))
    report("run_saves", "ours", "ms_per_later_save", statistics.median(later) * 1e3, **params, target="at most 200")
    report("run_saves", "ours", "ms_of_slowest_later_save", max(later) * 1e3, **params)
    report("run_saves", "ours", "ms_to_load", seconds(files.load) * 1e3, **params)


def waits(buffer: ReplayBuffer, batch: dict[str, Any], files: RunFiles, number: int) -> Iterator[float]:
    """How long each iteration waits for one save, in seconds."""
    left = 1
    while left:
        buffer.push(batch)
        begun = time.perf_counter()
        state = {"parts": {"buffer": buffer.state_in_pieces()}}
        left = files.save_rows(state)
        if not left:
            files.save(state, number)
        yield time.perf_counter() - begun


class TimedSaver(CkptSaver):
    """A saver that notes how long each save of the run takes."""

    spent: ClassVar[list[float]] = []
    """In seconds."""

    def save_run(self) -> None:
        self.spent.append(seconds(super().save_run))


def dqn() -> None:
    """Run the example of DQN with its default settings, except for the end of the run."""
    sys.path.insert(0, str(ROOT / "examples"))
    example = import_module("dqn")
    example.CkptSaver = TimedSaver
    spent = TimedSaver.spent
    with tempfile.TemporaryDirectory() as folder:
        cfg = example.DQNConfig(exp_name=folder + "/run", max_step=ITERATIONS)
        cfg.override({"env.stop_value": None})
        with contextlib.redirect_stdout(io.StringIO()):
            wall = seconds(example.main, cfg)
    params = {"run": "dqn", "saves": len(spent), "iterations": task.ctx.total_step + 1, "seconds": round(wall, 1)}
    report("run_saves", "ours", "share_of_wall_time", sum(spent) / wall, **params, target="at most 0.02")
    report("run_saves", "ours", "ms_per_save", statistics.median(spent) * 1e3, **params)


def main() -> None:
    one_thread()
    buffers()
    dqn()


if __name__ == "__main__":
    main()
