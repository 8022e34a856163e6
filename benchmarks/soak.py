"""Run DQN for a long time with everything on, and check that memory and speed stay the same.

DQN on CartPole runs asynchronously, with worker processes, evaluations, checkpoints, saves of the run, and rows for files,
TensorBoard and Weights & Biases (offline). It hardly learns, so that episodes and evaluations stay equally long. After a fifth
of the time, the memory must grow by less than 1 MB per minute, the speed must drift by less than 5% from the first half to the
second, and the numbers of threads, file descriptors and entries in /dev/shm must not grow; otherwise the exit status is 1. The
speed of a fixed loop is measured alongside: if both drift, the machine does.

    python benchmarks/soak.py                                      # 30 minutes
    python benchmarks/soak.py --minutes 5
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from programs import PATIENCE_S, ROOT

SETTINGS = (
    "--max-step 1000000000 --env.stop-value None --async-mode --env.workers 2 --env.backend process --log.tensorboard "
    "--log.wandb offline --policy.other.replay-buffer-size 5000 --policy.learn.learning-rate 1e-9 --env.max-episode-steps 100"
)
WARM_UP = 0.2  # of the time
MAX_SLOPE_MB, MAX_DRIFT = 1.0, 0.05
SHM = Path("/dev/shm")


class Sample(NamedTuple):
    """What is measured at a time."""

    time_s: float
    env_step: int
    own_mb: float
    all_mb: float
    threads: int
    fds: int
    shm: int
    loop_s: float


def fixed_loop() -> float:
    """Seconds that a fixed amount of Python and numpy takes."""
    begun, total = time.perf_counter(), np.zeros(1000)
    for number in range(100_000):
        total += number
    return time.perf_counter() - begun


def last_step(rows: Path) -> tuple[float, int]:
    """Seconds and environment steps of the last row of metrics."""
    with rows.open("rb") as file:
        file.seek(max(rows.stat().st_size - 20_000, 0))
        row = json.loads(file.read().rpartition(b"\n")[0].rpartition(b"\n")[2])
    return row["time_s"], row["env_step"]


def measured(program: psutil.Process, folder: Path) -> Sample:
    """Measure the program and its child processes."""
    own_mb, all_mb, threads, fds = program.memory_info().rss / 2**20, 0.0, 0, 0
    for process in (program, *program.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            all_mb += process.memory_info().rss / 2**20
            threads += process.num_threads()
            fds += process.num_fds()
    shm = len(os.listdir(SHM)) if SHM.is_dir() else 0
    return Sample(*last_step(folder / "metrics.jsonl"), own_mb, all_mb, threads, fds, shm, fixed_loop())


def report(samples: list[Sample]) -> bool:
    """Print the results. Returns whether all are within their limits."""
    samples = [it for it in samples if it.time_s >= WARM_UP * samples[-1].time_s]
    minutes = np.array([it.time_s for it in samples]) / 60
    slope = float(np.polyfit(minutes, [it.all_mb for it in samples], 1)[0])
    own_slope = float(np.polyfit(minutes, [it.own_mb for it in samples], 1)[0])
    rates = [(new.env_step - old.env_step) / (new.time_s - old.time_s) for old, new in itertools.pairwise(samples)]
    loops = [1 / it.loop_s for it in samples[1:]]
    relative = [rate / loop for rate, loop in zip(rates, loops)]
    half = len(rates) // 2

    def drift(values: list[float]) -> float:
        return statistics.median(values[half:]) / statistics.median(values[:half]) - 1

    print(f"memory: {slope:+.2f} MB per minute, of this process {own_slope:+.2f}; limit {MAX_SLOPE_MB}")
    print(
        f"steps/s: {statistics.median(rates):,.0f}, drift {drift(rates):+.1%}; of the fixed loop {drift(loops):+.1%}; relative "
        f"to it {drift(relative):+.1%}; limit {MAX_DRIFT:.0%} for one of them"
    )
    grown = []
    for name in ("threads", "fds", "shm"):
        before, after = (statistics.median(getattr(it, name) for it in part) for part in (samples[:half], samples[half:]))
        print(f"{name}: {before:g} in the first half, {after:g} in the second (medians)")
        grown += [name] * (after > before)
    is_steady = min(abs(drift(rates)), abs(drift(relative))) < MAX_DRIFT
    return slope < MAX_SLOPE_MB and is_steady and not grown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="duration")
    parser.add_argument("--every-s", type=float, default=10.0, help="seconds between two samples")
    chosen = parser.parse_args()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_SILENT": "true"}
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile("w+") as errors:
        folder = Path(scratch) / "run"
        command = [sys.executable, str(ROOT / "examples" / "dqn.py"), *SETTINGS.split(), "--exp-name", str(folder)]
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=errors, cwd=scratch)
        try:
            program, end = psutil.Process(process.pid), time.monotonic() + 60 * chosen.minutes
            print(("{:>9} " * 8).format("s", "env steps", "MB", "MB in all", "threads", "fds", "shm", "loop, ms"))
            while time.monotonic() < end and process.poll() is None:
                time.sleep(chosen.every_s)
                if (folder / "metrics.jsonl").exists() and process.poll() is None:
                    samples.append(it := measured(program, folder))
                    figures = (f"{it.time_s:.0f}", it.env_step, f"{it.own_mb:.0f}", f"{it.all_mb:.0f}", *it[4:7])
                    print(("{:>9} " * 8).format(*figures, f"{1000 * it.loop_s:.0f}"), flush=True)
            process.send_signal(signal.SIGTERM)
            status = process.wait(PATIENCE_S)
        finally:
            process.kill()
        if status != 143:
            errors.seek(0)
            print(f"the program ended with status {status}: {errors.read()}")
            return 1
    return int(not report(samples))


if __name__ == "__main__":
    sys.exit(main())
