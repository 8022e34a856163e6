"""Every reference learning run: does each algorithm reach its return, on every seed, within its environment steps?

Runs the examples as a user would, each in a separate process, and writes the results to docs/learning: a table, the curves as
numbers, and a plot. Results of a reference are replaced after all its seeds have finished; with --seeds, those of other seeds
stay. The exit status is 1 if any run does not reach its return.

    python benchmarks/learning.py                              # all but the long ones
    python benchmarks/learning.py --long                       # those of which a seed takes more than 15 minutes on a core
    python benchmarks/learning.py --only sac_pendulum td3_pendulum
    python benchmarks/learning.py --only td3_hopper --seeds 1 2
    python benchmarks/learning.py --compile                    # with compiled gradient steps, kept in docs/learning/compiled
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from references import REFERENCES, Reference

from ding_lite.metrics import read_row

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "learning"
COMPILED = "--policy.learn.compile", "on"
EVALUATED, SCORE = "evaluate/episode_return_mean", "evaluate/score"
COLUMNS = ("seed", "env_step", "mean_return", "seconds")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one run."""

    reference: Reference
    seed: int
    seconds: float
    """From start to end, imports included."""
    curve: list[tuple[int, float]]
    """(environment step, mean return) of each evaluation."""

    @property
    def reached(self) -> int | None:
        """Environment steps until the first evaluation that reached the target, in time."""
        target, within = self.reference.target, self.reference.within
        return next((step for step, value in self.curve if value >= target and step <= within), None)

    @property
    def best(self) -> float:
        """The best evaluation in time."""
        return max(value for step, value in self.curve if step <= self.reference.within)


def learn(reference: Reference, seed: int, folder: Path, more: Sequence[str]) -> Outcome:
    """Run one seed in a separate process, on one thread, with more options."""
    run = folder / f"{reference.name}_{seed}"
    stop = ("--env.stop-value", str(reference.target))
    options = (*reference.options, *more, *stop, "--seed", str(seed), "--exp-name", str(run))
    begin = time.monotonic()
    finished = subprocess.run(
        [sys.executable, ROOT / "examples" / reference.script, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode not in (0, 1):
        raise RuntimeError(f"{reference.name}, seed {seed}, failed:\n{finished.stdout[-2000:]}\n{finished.stderr[-4000:]}")
    rows = [read_row(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    # An asynchronous evaluation is logged some iterations after its weights; and if agents play
    # against each other, what counts is the score of one of them.
    curve = [
        (row.get("evaluate/env_step", row["env_step"]), row.get(SCORE, row[EVALUATED])) for row in rows if EVALUATED in row
    ]
    outcome = Outcome(reference, seed, time.monotonic() - begin, curve)
    where = f"not within {reference.within:,} steps" if outcome.reached is None else f"at {outcome.reached:,} steps"
    print(
        f"{reference.name}  seed {seed}: {reference.target:g} {where}, best {outcome.best:.1f}, {outcome.seconds:.0f} s",
        flush=True,
    )
    return outcome


def keep(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Write the curves of one reference."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{outcomes[0].reference.name}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for run in outcomes:
            writer.writerows((run.seed, step, round(value, 2), round(run.seconds, 1)) for step, value in run.curve)


def kept(reference: Reference, folder: Path) -> list[Outcome]:
    """The results that `keep` wrote for a reference, or none."""
    path = folder / f"{reference.name}.csv"
    if not path.is_file():
        return []
    curves: dict[tuple[int, float], list[tuple[int, float]]] = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            place = int(row["seed"]), float(row["seconds"])
            curves.setdefault(place, []).append((int(row["env_step"]), float(row["mean_return"])))
    return [Outcome(reference, seed, seconds, curve) for (seed, seconds), curve in curves.items()]


def table(outcomes: dict[str, list[Outcome]], is_compiled: bool) -> str:
    """The table in Markdown."""
    title = "# Learning runs with compiled gradient steps" if is_compiled else "# Learning runs"
    made_by = "What `make learn` and `make learn-long` reached, written by them."
    if is_compiled:
        made_by = f"What `make learn ARGS=--compile` reached, all with `{' '.join(COMPILED)}`, written by it."
    lines = [
        title,
        "",
        f"{made_by} Runs of which a seed takes more than 15 minutes on",
        "a core belong to `make learn-long`. Each row is the example as it stands in the repository, run on the seeds in its",
        "file until an evaluation of the greedy policy is good enough for it; `steps` are environment steps until the first",
        "evaluation that reached the target, `best` the median over seeds of the best evaluation in time. Seconds are those",
        "of a whole process, imports included, on two cores that did other work too: an upper bound. What others report is a",
        "mean return after so many steps, not their steps to the target: from the tables of rl-baselines3-zoo and CleanRL,",
        "and from the curves of tianshou.",
        "",
        "| run | command | target | within | reached by | steps: median (least, most) | best | seconds | others |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for reference in REFERENCES:
        runs = outcomes[reference.name]
        if not runs:
            continue
        steps = [run.reached for run in runs if run.reached is not None]
        spread = f"{statistics.median(steps):,.0f} ({min(steps):,}, {max(steps):,})" if steps else "-"
        best, seconds = (statistics.median(getattr(run, name) for run in runs) for name in ("best", "seconds"))
        lines.append(
            f"| {reference.name} | `{reference.command}` | {reference.target:g} | {reference.within:,} | "
            f"{len(steps)} of {len(runs)} | {spread} | {best:.1f} | {seconds:.0f} | {reference.peers} |"
        )
    note = "The curves are in the `.csv` files beside this page: seed, environment step, mean return, seconds of the whole run."
    return "\n".join([*lines, "", "![The curves](curves.svg)", "", note, ""])


def draw(outcomes: dict[str, list[Outcome]], folder: Path) -> None:
    """Plot the curves: a panel for each reference, a line for each seed."""
    from matplotlib.figure import Figure

    shown = [reference for reference in REFERENCES if outcomes[reference.name]]
    columns = 4
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(4 * columns, 3.2 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[len(shown) :]:
        panel.set_visible(False)
    for panel, reference in zip(panels, shown):
        for outcome in outcomes[reference.name]:
            panel.plot(*zip(*outcome.curve), linewidth=1, marker=".", markersize=3, label=f"seed {outcome.seed}")
        panel.axhline(reference.target, color="grey", linestyle="--", linewidth=0.8)
        panel.set(title=reference.name, xlabel="environment steps", ylabel="mean return")
        panel.legend(fontsize=7)
    figure.savefig(folder / "curves.svg", metadata={"Date": None})


def main() -> int:
    names = [reference.name for reference in REFERENCES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="just these")
    parser.add_argument("--long", action="store_true", help="those with more than 15 minutes a seed, instead of the others")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="just these (default: 0 and on, as many as listed)")
    parser.add_argument("--compile", action="store_true", help=f"with {' '.join(COMPILED)}; kept in docs/learning/compiled")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: one a core)")
    arguments = parser.parse_args()
    chosen = [it for it in REFERENCES if (it.name in arguments.only if arguments.only else it.long == arguments.long)]
    keeping, more = (KEPT / "compiled", COMPILED) if arguments.compile else (KEPT, ())
    reached = True
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = [
            [pool.submit(learn, it, seed, Path(folder), more) for seed in arguments.seeds or range(it.seeds)] for it in chosen
        ]
        for runs in waiting:
            outcomes = [run.result() for run in runs]
            reached = reached and all(outcome.reached is not None for outcome in outcomes)
            others = [it for it in kept(outcomes[0].reference, keeping) if arguments.seeds and it.seed not in arguments.seeds]
            keep(sorted([*others, *outcomes], key=lambda it: it.seed), keeping)
    by_name = {reference.name: kept(reference, keeping) for reference in REFERENCES}
    (keeping / "README.md").write_text(table(by_name, arguments.compile), encoding="utf-8")
    draw(by_name, keeping)
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
