"""Logging: its fraction of the time of a run, with all sinks and a live view on a terminal.

Runs the examples of DQN and PPO on a pseudo-terminal, and sums the time spent in calls of loggers, those of components and that
of the run, including the time of the measurement. Opening and closing the sinks, which does not depend on the length of a run,
is reported separately.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from measure import one_thread, report

from ding_lite.metrics import MetricsLogger
from ding_lite.middleware.loggers import RunLogger

ROOT = Path(__file__).resolve().parent.parent
RUNS = {"dqn": ("DQNConfig", 500), "ppo": ("PPOConfig", 200)}
"""By example: its configuration, and how many iterations."""
LEAVES = ("log_value", "log_values", "log_dict", "log_time", "reduce")


class Meter:
    """Sums the seconds spent in wrapped functions; nested calls count once."""

    def __init__(self) -> None:
        self.spent = {"logging": 0.0, "opening and closing": 0.0}
        self._inside = self._opened = False

    def around(self, fn: Callable[..., Any], account: str = "logging") -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return fn(*args, **kwargs)
            self._inside, begun = True, perf_counter()
            try:
                return fn(*args, **kwargs)
            finally:
                self.spent[account] += perf_counter() - begun
                self._inside = False

        return timed

    def around_halves(self, fn: Callable[..., Iterator[None]]) -> Callable[..., Iterator[None]]:
        """Around what stands behind the `yield` of a middleware; before it, and the first time behind it, it opens things."""

        def timed(*args: Any) -> Iterator[None]:
            halves = fn(*args)
            self.around(next, "opening and closing")(halves)
            yield
            self.around(next, "logging" if self._opened else "opening and closing")(halves, None)
            self._opened = True

        return timed


def child(name: str, folder: Path) -> None:
    one_thread()
    sys.path.insert(0, str(ROOT / "examples"))
    meter, example = Meter(), import_module(name)
    for verb in LEAVES:
        setattr(MetricsLogger, verb, meter.around(getattr(MetricsLogger, verb)))
    RunLogger.__call__ = meter.around_halves(RunLogger.__call__)  # type: ignore[method-assign]
    RunLogger.release = meter.around(RunLogger.release, "opening and closing")  # type: ignore[method-assign]
    config, iterations = RUNS[name]
    cfg = getattr(example, config)(exp_name=folder / "run", max_step=iterations)
    cfg.override({"env.stop_value": None, "log.tensorboard": True, "log.wandb": "offline"})
    begun = perf_counter()
    example.main(cfg)
    wall = perf_counter() - begun - meter.spent["opening and closing"]
    (folder / "cost.json").write_text(json.dumps({"wall": wall, **meter.spent}))


def main() -> None:
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = pty.openpty()
            command = [sys.executable, __file__, name, folder]
            process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm-256color"})
            os.close(theirs)
            shown = drained(ours)
            if process.wait():
                raise RuntimeError(shown[-2000:].decode(errors="replace"))
            cost = json.loads((Path(folder) / "cost.json").read_text())
            rows = len((Path(folder) / "run/metrics.jsonl").read_text().splitlines())
        share = cost["logging"] / cost["wall"]
        report("logging_cost", "ours", "share_of_wall_time", share, run=name, rows=rows, target="at most 0.01")
        report("logging_cost", "ours", "seconds", cost["wall"], run=name)
        report("logging_cost", "ours", "opening_and_closing_s", cost["opening and closing"], run=name)


def drained(terminal: int) -> bytes:
    """Read a terminal until its other end is closed."""
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # on Linux, the other end is closed
            piece = b""
        if not piece:
            os.close(terminal)
            return shown
        shown = shown[-65536:] + piece


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
