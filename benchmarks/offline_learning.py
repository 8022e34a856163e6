"""Offline algorithms on the datasets of collect_datasets.py: the mean return of the last policy, not of the best on the way.

Runs the examples as a user would, each in a separate process, and writes docs/learning/offline.md. Runs that the page has
are not repeated; datasets that are missing are collected first. The exit status is 1 if an algorithm is behind the mean return
of its dataset, or CQL, IQL or TD3+BC behind behaviour cloning on a replay dataset.

    python benchmarks/offline_learning.py                      # CartPole-v1 and Pendulum-v1
    python benchmarks/offline_learning.py --long               # Hopper-v5
    python benchmarks/offline_learning.py --all --again        # all, as in `make learn-long`
    python benchmarks/offline_learning.py --only cartpole_replay --seeds 1 --again
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from collect_datasets import KINDS, collect

from ding_lite.datasets import OfflineDataset
from ding_lite.metrics import read_row

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
    steps: int | None = None
    """Gradient steps of a run, if not those of the task."""
    hidden: Sequence[int] | None = None
    """Widths of the hidden layers, if not those of the task; empty for those of the example."""
    kinds: Sequence[str] = tuple(KINDS)
    """Kinds of the datasets, if the algorithm has other settings on others."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A task with its algorithms."""

    env_id: str
    steps: int
    """Gradient steps of a run."""
    episodes: int
    """Of the evaluation at the end."""
    algorithms: Sequence[Algorithm]
    hidden: Sequence[int] = ()
    """Widths of the hidden layers, if not those of the examples."""
    long: bool = False


CLONING = (Algorithm("BC", "bc"), Algorithm("BC-10%", "bc", ("--best-share", "0.1")))
# Returns of Pendulum-v1 depend on the start: the best tenth of the expert's episodes are those that begin upright.
BEST_FOR_START = ("--best-share", "0.1", "--best-relative-to-start")
CLONING_TO_0 = ("--policy.learn.lr-schedule", "0", "1e-3", "10000", "0")
PENDULUM_CLONING = (
    Algorithm("BC", "bc", CLONING_TO_0, hidden=(128, 128)),
    Algorithm("BC-10%", "bc", (*CLONING_TO_0, *BEST_FOR_START), hidden=(128, 128)),
)
# The expert balances in all its episodes, so that only what is as good as it is not behind it.
SURE_CQL = (
    "--policy.learn.min-q-weight",
    "5",
    "--policy.learn.target-update-freq",
    "200",
    "--policy.learn.lr-schedule",
    "0",
    "1e-3",
    "30000",
    "0",
)
CARTPOLE = (
    *CLONING,
    Algorithm("CQL", "cql", kinds=("replay", "medium", "mixed")),
    Algorithm("CQL", "cql", SURE_CQL, steps=30_000, kinds=("expert",)),
    Algorithm("DT", "decision_transformer", steps=4_000),
)
FAST = ("--policy.learn.learning-rate", "1e-3")
FAST_CQL = (
    *FAST,
    "--policy.learn.learning-rate-actor",
    "1e-3",
    "--policy.learn.learning-rate-alpha",
    "1e-3",
    "--policy.learn.num-actions",
    "4",
    "--policy.learn.bc-steps",
    "1000",
    "--policy.learn.alpha",  # with 1, the actor stays far from the data for long
    "0.2",
)
PENDULUM = (  # returns, and so advantages, are larger than those that beta and awac_lambda are meant for
    *PENDULUM_CLONING,
    Algorithm("CQL", "cql_continuous", FAST_CQL, steps=4_000),
    Algorithm("IQL", "iql", (*FAST, "--policy.learn.beta", "0.1")),
    Algorithm("TD3+BC", "td3_bc"),
    Algorithm("AWAC", "awac", (*FAST, "--policy.learn.awac-lambda", "20")),
)
COMPILED = ("--policy.learn.compile", "on")
NORMALIZED = ("--policy.model.normalize-obs",)
# At a constant rate, the returns of the last policies of a run differ much, and the last one may be any of them.
# More gradient steps make imitation worse on replay, where it averages the actions of several policies.
TO_0 = ("--policy.learn.lr-schedule", "0", "1e-3", "15000", "0")
HOPPER_BC = (*COMPILED, *NORMALIZED, *TO_0)
HOPPER_BEST = (*COMPILED, *NORMALIZED, "--policy.learn.lr-schedule", "0", "1e-3", "25000", "0", "--best-share", "0.1")
# IQL's paper scales returns to a range of 1,000 and has a beta of 3: with these returns of up to 3,500, that is about 1. Where
# most of the data comes from one or two policies, advantages say less, and smaller weights are better.
SHARP_IQL = (*COMPILED, *NORMALIZED, *TO_0, "--policy.learn.beta", "1", "--policy.learn.target-update-theta", "0.02")
HOPPER_IQL = (*COMPILED, *NORMALIZED, *TO_0, "--policy.learn.beta", "0.1")
SHARP_AWAC = (*COMPILED, *NORMALIZED, *TO_0, "--policy.learn.awac-lambda", "1", "--policy.learn.target-update-theta", "0.02")
HOPPER_AWAC = (*COMPILED, *NORMALIZED, *TO_0, "--policy.learn.awac-lambda", "10")
HOPPER_TD3_BC = (*COMPILED, *TO_0, "--policy.learn.bc-alpha", "0.5", "--policy.learn.target-update-theta", "0.02")
EVERY_CQL = (
    *COMPILED,
    *NORMALIZED,
    *TO_0,
    "--policy.learn.learning-rate",
    "1e-3",
    "--policy.learn.learning-rate-alpha",
    "1e-3",
    "--policy.learn.batch-size",
    "128",
    "--policy.learn.num-actions",
    "2",
    "--policy.learn.min-q-weight",
    "10",
)
FAST_ACTOR = (
    "--policy.learn.learning-rate-actor",
    "1e-3",
    "--policy.learn.bc-steps",
    "3000",
    "--policy.learn.alpha",  # weighs the entropy in imitation too
    "0.1",
    "--policy.learn.target-update-theta",
    "0.02",
)
# Data of one policy has few actions for each observation: only a large penalty keeps the actor at these.
SURE = ("--policy.learn.min-q-weight", "100")
MEDIUM_CQL = (*EVERY_CQL, *FAST_ACTOR, *SURE, "--policy.learn.alpha", "0.05")
# With data of experts, the policy after 15,000 gradient steps falls in some seeds, and not after 45,000.
LONG_CQL = (*EVERY_CQL, *FAST_ACTOR, "--policy.learn.lr-schedule", "0", "1e-3", "45000", "0")
EXPERT_CQL = (*LONG_CQL, *SURE, "--policy.learn.alpha", "0.5")
HOPPER_DT = ("--policy.context-length", "20", "--policy.target-return", "3600", "--policy.return-scale", "1000")
HOPPER = (
    Algorithm("BC", "bc", HOPPER_BC),
    Algorithm("BC-10%", "bc", HOPPER_BEST, steps=25_000, hidden=(128, 128)),
    Algorithm("CQL", "cql_continuous", (*EVERY_CQL, *FAST_ACTOR), kinds=("replay",)),
    Algorithm("CQL", "cql_continuous", MEDIUM_CQL, kinds=("medium",)),
    Algorithm("CQL", "cql_continuous", EXPERT_CQL, steps=45_000, kinds=("expert",)),
    Algorithm("CQL", "cql_continuous", LONG_CQL, steps=45_000, kinds=("mixed",)),
    Algorithm("IQL", "iql", SHARP_IQL, kinds=("replay",)),
    Algorithm("IQL", "iql", HOPPER_IQL, kinds=("medium", "expert", "mixed")),
    Algorithm("TD3+BC", "td3_bc", HOPPER_TD3_BC),
    Algorithm("AWAC", "awac", SHARP_AWAC, kinds=("replay",)),
    Algorithm("AWAC", "awac", HOPPER_AWAC, kinds=("medium", "expert", "mixed")),
    Algorithm("DT", "decision_transformer", HOPPER_DT, steps=5_000, hidden=()),
)
TASKS = {
    "cartpole": Task("CartPole-v1", 10_000, 100, CARTPOLE),
    "pendulum": Task("Pendulum-v1", 10_000, 100, PENDULUM, (64, 64)),
    "hopper": Task("Hopper-v5", 15_000, 50, HOPPER, (256, 256), long=True),
}
COLUMNS = ("dataset", "algorithm", "seed", "steps", "return", "seconds")
Results = dict[tuple[str, str, int, int], tuple[float, float]]
"""Mean return at the end and seconds of a run, by dataset, algorithm, seed and gradient steps."""


def task_of(dataset: str) -> Task:
    return TASKS[dataset.partition("_")[0]]


def algorithms_on(dataset: str) -> list[Algorithm]:
    return [it for it in task_of(dataset).algorithms if dataset.partition("_")[2] in it.kinds]


def learned(dataset: str, algorithm: Algorithm, seed: int, folder: Path) -> tuple[float, float]:
    """Run one seed in a separate process, on one thread. Returns the mean return at the end, and the seconds."""
    task, run = task_of(dataset), folder / f"{dataset}_{algorithm.name}_{seed}"
    steps = algorithm.steps or task.steps
    at_once = str(min(task.episodes, 20))
    options = {
        "env.id": task.env_id,
        "env.evaluator-env-num": at_once,
        "env.n-evaluator-episode": str(task.episodes),
        "policy.eval.evaluator.eval-freq": str(10 * steps),  # at the start and at the end
        "max-step": str(steps),
        "dataset": str(DATASETS / dataset),
        "seed": str(seed),
        "exp-name": str(run),
    }
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    if hidden := task.hidden if algorithm.hidden is None else algorithm.hidden:
        given += ["--policy.model.encoder-hidden-size-list", *map(str, hidden)]
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
    """What ran before, with as many gradient steps as now."""
    if not KEPT.is_file():
        return {}
    with open(KEPT, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {
        (row["dataset"], row["algorithm"], int(row["seed"]), int(row["steps"])): (float(row["return"]), float(row["seconds"]))
        for row in rows
    }
    datasets = {key[0] for key in found}
    steps = {(name, it.name): it.steps or task_of(name).steps for name in datasets for it in algorithms_on(name)}
    return {key: it for key, it in found.items() if steps.get(key[:2]) == key[3]}


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
        "`data` is the mean return of the finished episodes in the dataset, and the highest one. `mixed` datasets have half of",
        "their transitions from the medium and half from the expert policy; see `benchmarks/collect_datasets.py`.",
        "",
        "Returns of Pendulum-v1 depend on the start. The best tenth of the expert's episodes by their returns are those that",
        "begin upright, which do not show how to swing up: imitation of them reached -1,387, and a clone of a few lines of",
        "torch -1,318. So BC-10% compares the returns of episodes with nearby first observations there.",
        "The seeds of Hopper-v5 differ much: a policy that falls a little earlier has half the return.",
        "",
        "On Hopper-v5, CQL has settings of its own on each dataset, and IQL and AWAC on replay. On medium, with those of",
        "replay, two seeds of CQL reached 1,386 and 881, one of IQL 1,243, and one of AWAC 913; on replay, with those of the",
        "others, one of IQL reached 415, and one of AWAC 393. With a min_q_weight of 100 and an alpha of 0.2, three seeds of",
        "CQL reached 1,202 on medium, on average. After 15,000 gradient steps instead of 45,000, three seeds of CQL reached",
        "3,119, 3,235 and 2,624 on expert, and 1,693, 1,701 and 1,382 on mixed.",
        "",
        "The expert data of Hopper-v5 has noise of 0.2. With noise of 0.1, its mean return was 3,164, and that of the expert",
        "without noise 3,146. On that data, BC, CQL, IQL, TD3+BC and AWAC reached between 3,138 and 3,158: they acted like the",
        "expert without noise, and were up to 1% behind the data.",
        "",
        "BC with `--policy.model.mixture-components 5` reached, on average over three seeds, 1,075 on hopper_replay and 1,272",
        "on hopper_medium.",
        "",
        "On cartpole_expert, CQL has settings of its own: with those of the other three datasets, three seeds reached 469.6.",
        "With its settings, it would be behind the data of cartpole_mixed (297, one seed). CQL on pendulum_expert gets worse",
        "with many gradient steps: 10,000 with an alpha of 1 reached -494 and -421, and 6,000 with one of 0.2 -160 and -273.",
        "",
    ]
    for name, task in TASKS.items():
        datasets = [f"{name}_{kind}" for kind in KINDS if any(key[0] == f"{name}_{kind}" for key in results)]
        if not datasets:
            continue
        names = list(dict.fromkeys(algorithm.name for algorithm in task.algorithms))
        lines += [f"{task.env_id}, {described_task(task)}:", ""]
        lines += [f"| dataset | data | {' | '.join(names)} |", f"| --- | ---: |{' ---: |' * len(names)}"]
        for dataset in datasets:
            cells = [cell(results, dataset, algorithm) for algorithm in names]
            mean, highest = returns_in(dataset)
            lines.append(f"| {dataset} | {mean:.0f}, {highest:.0f} | {' | '.join(cells)} |")
        lines.append("")
        if missed := [sentence for dataset in datasets for sentence in falls_short(results, dataset)]:
            lines += ["Not reached:", "", *(f"- {sentence}" for sentence in missed), ""]
    PAGE.write_text("\n".join(lines), encoding="utf-8")


def cell(results: Results, dataset: str, algorithm: str) -> str:
    found = returns_of(results, dataset, algorithm)
    if not found:
        return ""
    spread = f" ± {statistics.stdev(found):.0f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.0f}{spread} ({len(found)})"


def returns_of(results: Results, dataset: str, algorithm: str) -> list[float]:
    return [value for (where, name, *_), (value, _) in results.items() if (where, name) == (dataset, algorithm)]


def described_task(task: Task) -> str:
    """What the runs of a task have in common."""
    labels = {it: it.name if len(it.kinds) == len(KINDS) else f"{it.name} on {', '.join(it.kinds)}" for it in task.algorithms}
    steps = [f"{task.steps:,} gradient steps", *(f"{label} {it.steps:,}" for it, label in labels.items() if it.steps)]
    widths = {"": task.hidden, **{f" of {label}": it.hidden for it, label in labels.items() if it.hidden}}
    hidden = [f"hidden layers{whose} of {' and '.join(map(str, sizes))}" for whose, sizes in widths.items() if sizes]
    options = [f"{label} with `{' '.join(last_options(it.options))}`" for it, label in labels.items() if it.options]
    return ", ".join([*steps, *hidden, *options, f"{task.episodes} episodes"])


def last_options(words: Sequence[str]) -> list[str]:
    """The options without those that a later one of the same name replaces."""
    options: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word
            options[name] = []
        options[name].append(word)
    return [word for option in options.values() for word in option]


def returns_in(dataset: str) -> tuple[float, float]:
    """Mean and highest return of a dataset, with a tenth; kept in a file, because the dataset may be gone."""
    path = KEPT.with_name("offline_datasets.json")
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if (DATASETS / dataset).exists():
        data = OfflineDataset(DATASETS / dataset)
        returns = data.returns[data.finished]  # those of others are parts of what they would have been
        known[dataset] = [round(float(returns.mean()), 1), round(float(returns.max()), 1)]
        path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    mean, highest = known[dataset]
    return mean, highest


def falls_short(results: Results, dataset: str) -> list[str]:
    """Sentences about algorithms that did not reach what is asked of them."""
    found, mean = [], returns_in(dataset)[0]
    cloned = returns_of(results, dataset, "BC")
    for algorithm in dict.fromkeys(name for where, name, *_ in results if where == dataset):
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
    parser.add_argument("--all", action="store_true", help="Hopper-v5 and the others")
    parser.add_argument("--seeds", type=int, default=3, help="seeds from 0 on (default: 3)")
    parser.add_argument("--again", action="store_true", help="repeat the runs that the page has")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: one a core)")
    arguments = parser.parse_args()
    chosen = arguments.only or [name for name in names if arguments.all or task_of(name).long == arguments.long]
    for name in dict.fromkeys(dataset.partition("_")[0] for dataset in chosen):
        if not all((DATASETS / f"{name}_{kind}" / "dataset.json").exists() for kind in KINDS):
            collect(name, DATASETS)
    results = kept()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = {}
        for seed, dataset in itertools.product(range(arguments.seeds), chosen):
            for algorithm in algorithms_on(dataset):
                key = (dataset, algorithm.name, seed, algorithm.steps or task_of(dataset).steps)
                is_asked = not arguments.algorithms or algorithm.name in arguments.algorithms
                if is_asked and (arguments.again or key not in results):
                    waiting[pool.submit(learned, dataset, algorithm, seed, Path(folder))] = key
        for run in as_completed(waiting):
            results[waiting[run]] = run.result()
            keep(results)
    missed = [sentence for dataset in chosen for sentence in falls_short(results, dataset)]
    print("\n".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
