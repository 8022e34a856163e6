"""Offline algorithms on the datasets of collect_datasets.py: the mean return of the last policy, not of the best on the way.

Runs the examples as a user would, each in a separate process, and writes docs/learning/offline.md. What ran before is kept; the
datasets that are missing are collected first. The exit status is 1 if an algorithm is behind the mean return of its dataset, or
CQL, IQL or TD3+BC behind behaviour cloning on a replay dataset.

    python benchmarks/offline_learning.py                      # CartPole-v1 and Pendulum-v1
    python benchmarks/offline_learning.py --long               # Hopper-v5
    python benchmarks/offline_learning.py --only cartpole_replay --seeds 1
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from collect_datasets import KINDS, collect

from ding_lite.datasets import OfflineDataset
from ding_lite.sinks import read_row

ROOT = Path(__file__).resolve().parent.parent
DATASETS = ROOT / "datasets"
KEPT = ROOT / "docs" / "learning" / "offline.csv"
PAGE = KEPT.with_suffix(".md")
BETTER = ("CQL", "IQL", "TD3+BC")
"""Algorithms that must be better than behaviour cloning on replay datasets."""


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """An example with its options."""

    name: str
    script: str
    options: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Task:
    """A task with its algorithms."""

    env_id: str
    steps: int
    """Gradient steps of a run."""
    episodes: int
    """Of the evaluation at the end."""
    algorithms: Sequence[Algorithm]
    long: bool = False


CLONING = (Algorithm("BC", "bc"), Algorithm("BC-10%", "bc", ("--best-share", "0.1")))
BOX = (
    Algorithm("CQL", "cql_continuous"),
    Algorithm("IQL", "iql"),
    Algorithm("TD3+BC", "td3_bc"),
    Algorithm("AWAC", "awac"),
)
HOPPER_DT = ("--policy.context-length", "20", "--policy.target-return", "3600", "--policy.return-scale", "1000")
TASKS = {
    "cartpole": Task(
        "CartPole-v1",
        10_000,
        100,
        (*CLONING, Algorithm("CQL", "cql"), Algorithm("DT", "decision_transformer")),
    ),
    "pendulum": Task("Pendulum-v1", 10_000, 100, (*CLONING, *BOX)),
    "hopper": Task("Hopper-v5", 100_000, 50, (*CLONING, *BOX, Algorithm("DT", "decision_transformer", HOPPER_DT)), long=True),
}
COLUMNS = ("dataset", "algorithm", "seed", "return", "seconds")
Results = dict[tuple[str, str, int], tuple[float, float]]
"""Mean return at the end and seconds of a run, by dataset, algorithm and seed."""


def learned(dataset: str, algorithm: Algorithm, seed: int, folder: Path) -> tuple[float, float]:
    """Run one seed in a separate process, on one thread. Returns the mean return at the end, and the seconds."""
    task, run = TASKS[dataset.partition("_")[0]], folder / f"{dataset}_{algorithm.name}_{seed}"
    at_once = str(min(task.episodes, 20))
    options = {
        "env.id": task.env_id,
        "env.evaluator-env-num": at_once,
        "env.n-evaluator-episode": str(task.episodes),
        "policy.eval.evaluator.eval-freq": str(10 * task.steps),  # at the start and at the end
        "max-step": str(task.steps),
        "dataset": str(DATASETS / dataset),
        "seed": str(seed),
        "exp-name": str(run),
    }
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    begun = time.monotonic()
    finished = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{algorithm.script}.py", *given, *algorithm.options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise RuntimeError(f"{algorithm.name} on {dataset}, seed {seed}, failed:\n{finished.stderr[-4000:]}")
    rows = [read_row(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    value = next(row["evaluate/episode_return_mean"] for row in reversed(rows) if "evaluate/episode_return_mean" in row)
    seconds = time.monotonic() - begun
    print(f"{dataset}  {algorithm.name}  seed {seed}: {value:.1f}, {seconds:.0f} s", flush=True)
    return value, seconds


def kept() -> Results:
    """What ran before."""
    if not KEPT.is_file():
        return {}
    with open(KEPT, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {(row["dataset"], row["algorithm"], int(row["seed"])): (float(row["return"]), float(row["seconds"])) for row in rows}


def keep(results: Results) -> None:
    """Write the results, and the page with their table."""
    with open(KEPT, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((*key, round(value, 2), round(seconds, 1)) for key, (value, seconds) in sorted(results.items()))
    lines = [
        "# Offline learning runs",
        "",
        "Written by `python benchmarks/offline_learning.py`. Each number is the mean return of the policy after its last",
        "gradient step, without exploration: mean and standard deviation over seeds, and in brackets the number of seeds.",
        "`data` is the mean return of the episodes in the dataset, and its highest one. `mixed` datasets have half of their",
        "transitions from the medium and half from the expert policy; see `benchmarks/collect_datasets.py`.",
        "",
    ]
    for name, task in TASKS.items():
        datasets = [f"{name}_{kind}" for kind in KINDS if any(key[0] == f"{name}_{kind}" for key in results)]
        if not datasets:
            continue
        names = [algorithm.name for algorithm in task.algorithms]
        lines += [f"{task.env_id}, {task.steps:,} gradient steps, {task.episodes} episodes:", ""]
        lines += [f"| dataset | data | {' | '.join(names)} |", f"| --- | ---: |{' ---: |' * len(names)}"]
        for dataset in datasets:
            cells = [cell(results, dataset, algorithm) for algorithm in names]
            lines.append(f"| {dataset} | {described(dataset)} | {' | '.join(cells)} |")
        lines.append("")
    PAGE.write_text("\n".join(lines), encoding="utf-8")


def cell(results: Results, dataset: str, algorithm: str) -> str:
    found = returns_of(results, dataset, algorithm)
    if not found:
        return ""
    spread = f" ± {statistics.stdev(found):.0f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.0f}{spread} ({len(found)})"


def returns_of(results: Results, dataset: str, algorithm: str) -> list[float]:
    return [value for (where, name, _), (value, _) in results.items() if (where, name) == (dataset, algorithm)]


def described(dataset: str) -> str:
    """Mean and highest return of a dataset; kept in a file, because the dataset may be gone."""
    path = KEPT.with_name("offline_datasets.json")
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if (DATASETS / dataset).exists():
        returns = OfflineDataset(DATASETS / dataset).returns
        known[dataset] = [round(float(returns.mean()), 1), round(float(returns.max()), 1)]
        path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    mean, highest = known[dataset]
    return f"{mean:.0f}, {highest:.0f}"


def falls_short(results: Results, dataset: str) -> list[str]:
    """Sentences about algorithms that did not reach what is asked of them."""
    found, mean = [], float(described(dataset).partition(",")[0])
    cloned = returns_of(results, dataset, "BC")
    for algorithm in {name for where, name, _ in results if where == dataset}:
        value = statistics.mean(returns_of(results, dataset, algorithm))
        if value < mean:
            found.append(f"{dataset}: {algorithm} reached {value:.1f}, and the mean of the data is {mean:.1f}.")
        if dataset.endswith("_replay") and algorithm in BETTER and cloned and value <= statistics.mean(cloned):
            found.append(f"{dataset}: {algorithm} reached {value:.1f}, and BC {statistics.mean(cloned):.1f}.")
    return found


def main() -> int:
    names = [f"{task}_{kind}" for task in TASKS for kind in KINDS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, metavar="DATASET", help="just these")
    parser.add_argument("--algorithms", nargs="+", metavar="NAME", help="just these, such as CQL")
    parser.add_argument("--long", action="store_true", help="Hopper-v5, instead of the others")
    parser.add_argument("--seeds", type=int, default=3, help="seeds from 0 on (default: 3)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: one a core)")
    arguments = parser.parse_args()
    chosen = arguments.only or [name for name in names if TASKS[name.partition("_")[0]].long == arguments.long]
    for name in dict.fromkeys(dataset.partition("_")[0] for dataset in chosen):
        if not all((DATASETS / f"{name}_{kind}" / "dataset.json").exists() for kind in KINDS):
            collect(name, DATASETS)
    results = kept()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = {
            (dataset, algorithm.name, seed): pool.submit(learned, dataset, algorithm, seed, Path(folder))
            for dataset in chosen
            for algorithm in TASKS[dataset.partition("_")[0]].algorithms
            for seed in range(arguments.seeds)
            if (not arguments.algorithms or algorithm.name in arguments.algorithms)
        }
        for key, run in waiting.items():
            results[key] = run.result()
            keep(results)
    missed = [sentence for dataset in chosen for sentence in falls_short(results, dataset)]
    print("\n".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
