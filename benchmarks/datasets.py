"""Datasets: a million transitions of the size of Hopper-v5: recording, opening, memory, and a batch of 256 beside its learner.

Memory is the growth of the resident memory of a process that opens the dataset and takes batches: with columns in memory, as
they are up to 64 MB each, and mapped from disk. The learner is TD3+BC with the networks of its paper, on one thread.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from measure import one_thread, report

from ding_lite.data import Trajectories
from ding_lite.datasets import DatasetWriter, EpochSampler, OfflineDataset, stored_columns
from ding_lite.policy import TD3BCPolicy

STEPS, ENVS, LONGEST, BATCH = 1_000_000, 8, 1000, 256
OBS, ACTION = spaces.Box(-np.inf, np.inf, (11,), np.float32), spaces.Box(-1.0, 1.0, (3,), np.float32)


def rollout(rng: np.random.Generator) -> Trajectories:
    """Whole episodes of the environments."""
    obs = rng.normal(size=(LONGEST + 1, ENVS, 11)).astype(np.float32)
    ends = np.zeros((LONGEST, ENVS), np.bool_)
    ends[-1] = True
    columns: dict[str, Any] = {
        "obs": obs[:-1],
        "action": rng.uniform(-1, 1, (LONGEST, ENVS, 3)).astype(np.float32),
        "reward": rng.normal(size=(LONGEST, ENVS)).astype(np.float32),
        "next_obs": obs[1:],
        "terminated": ends & False,
        "truncated": ends,
    }
    return Trajectories(columns)


def recorded(folder: Path) -> float:
    """Record the dataset. Returns transitions per second."""
    writer, rng, seconds = DatasetWriter(folder), np.random.default_rng(0), 0.0
    writer.begin(OBS, ACTION, {})
    for _ in range(STEPS // (LONGEST * ENVS)):
        found = rollout(rng)
        begun = time.perf_counter()
        writer.add(found)
        seconds += time.perf_counter() - begun
    writer.flush()
    return STEPS / seconds


def resident() -> float:
    """MB of resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def read(folder: Path, is_mapped: bool) -> None:
    """Print what opening and taking batches cost, in this process."""
    one_thread()
    policy = TD3BCPolicy(None, OBS, ACTION)
    policy.dry_run()
    before = resident()
    if is_mapped:
        stored_columns._IN_MEMORY = 0
    begun = time.perf_counter()
    dataset = OfflineDataset(folder)
    opened = time.perf_counter()
    columns = [name for name in policy.columns or () if name in dataset.columns]
    epochs = EpochSampler(len(dataset), BATCH)
    batch = dataset.take(epochs.next(), columns)
    first = time.perf_counter()
    taking, learning = [], []
    for _ in range(300):
        start = time.perf_counter()
        batch = dataset.take(epochs.next(), columns)
        taken = time.perf_counter()
        policy.learn_mode.forward(batch)
        taking.append(taken - start)
        learning.append(time.perf_counter() - taken)
    way = "mapped" if is_mapped else "in memory"
    report("datasets", way, "milliseconds_to_open", 1e3 * (opened - begun))
    report("datasets", way, "milliseconds_until_first_batch", 1e3 * (first - opened))
    report("datasets", way, "resident_megabytes", resident() - before)
    report("datasets", way, "microseconds_per_batch", 1e6 * float(np.median(taking)), batch_size=BATCH)
    report("datasets", way, "learning_over_taking", float(np.median(learning) / np.median(taking)), batch_size=BATCH)


def main() -> None:
    if len(sys.argv) == 3:
        read(Path(sys.argv[1]), sys.argv[2] == "mapped")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        rate = recorded(folder)
        report("datasets", "recording", "transitions_per_second", rate)
        report("datasets", "recording", "megabytes_on_disk", sum(file.stat().st_size for file in folder.iterdir()) / 1e6)
        for way in ("memory", "mapped"):
            subprocess.run([sys.executable, __file__, folder, way], check=True)


if __name__ == "__main__":
    main()
