"""Every reference learning run: does each algorithm reach its return, on every seed, within its environment steps?

Runs the examples as a user would, each in a process of its own, and keeps what came of it under docs/learning: a table, the
curves as numbers, and a picture. Exits 1 if any run falls short.

    python benchmarks/learning.py                       # all of them
    python benchmarks/learning.py --only dqn_cartpole   # one

Room: benchmarks, floor 7.
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

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "learning"
EVALUATED = "evaluate/episode_return_mean"


@dataclasses.dataclass(frozen=True)
class Reference:
    """One algorithm on one task."""

    name: str
    script: str
    """In examples/."""

    target: float
    """Mean greedy return to reach."""

    within: int
    """Environment steps."""

    seeds: int
    """Runs, from seed 0 on."""

    options: Sequence[str] = ()
    """For the command line, where the task is not the script's own."""


ACROBOT = ("--env.id", "Acrobot-v1", "--env.n-evaluator-episode", "16")
REFERENCES = (
    Reference("dqn_cartpole", "dqn.py", 475, 60_000, 5),
    Reference("ppo_cartpole", "ppo.py", 475, 60_000, 5),
    Reference("dqn_cartpole_async", "dqn.py", 475, 60_000, 5, ("--async-mode",)),
    Reference("ppo_cartpole_async", "ppo.py", 475, 60_000, 5, ("--async-mode",)),
    Reference("dqn_acrobot", "dqn.py", -100, 100_000, 3, ACROBOT),
    Reference("ppo_acrobot", "ppo.py", -100, 200_000, 3, ACROBOT),
    Reference("ppo_pendulum", "ppo_continuous.py", -250, 200_000, 3),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    reference: Reference
    seed: int
    seconds: float
    curve: list[tuple[int, float]]
    """(environment step, mean return) of each evaluation."""

    @property
    def reached(self) -> tuple[int, float] | None:
        """The first evaluation that reached the target in time."""
        good = ((step, value) for step, value in self.curve if value >= self.reference.target and step <= self.reference.within)
        return next(good, None)


def learn(reference: Reference, seed: int, folder: Path) -> Outcome:
    """One run, in a process of its own, on one thread."""
    run = folder / f"{reference.name}_{seed}"
    options = (*reference.options, "--seed", str(seed), "--exp-name", str(run))
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
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = [(row["env_step"], row[EVALUATED]) for row in rows if EVALUATED in row]
    outcome = Outcome(reference, seed, time.monotonic() - begin, curve)
    best = max(value for _, value in curve)
    where = f"at {outcome.reached[0]:,} steps" if outcome.reached else f"not within {reference.within:,} steps"
    print(f"{reference.name}  seed {seed}: {reference.target:g} {where}, best {best:.1f}, {outcome.seconds:.0f} s", flush=True)
    return outcome


def keep(outcomes: list[Outcome]) -> None:
    """Write the table, the curves and the picture."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for reference in REFERENCES:
        runs = [outcome for outcome in outcomes if outcome.reference is reference]
        with open(KEPT / f"{reference.name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("seed", "env_step", "mean_return"))
            writer.writerows((run.seed, step, round(value, 2)) for run in runs for step, value in run.curve)
    (KEPT / "README.md").write_text(table(outcomes), encoding="utf-8")
    draw(outcomes)


def table(outcomes: list[Outcome]) -> str:
    """The table in Markdown."""
    lines = [
        "# Learning runs",
        "",
        "What `make learn` reached, written by it. Each row is the example as it stands in the repository, run on seeds 0, 1",
        "and so on until an evaluation of the greedy policy is good enough for it; `steps` are environment steps until the",
        "first evaluation that reached the target.",
        "",
        "| run | command | target | within | seeds that reached it | steps: median (least, most) | seconds: median |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for reference in REFERENCES:
        runs = [outcome for outcome in outcomes if outcome.reference is reference]
        steps = [run.reached[0] for run in runs if run.reached]
        spread = f"{statistics.median(steps):,.0f} ({min(steps):,}, {max(steps):,})" if steps else "-"
        command = " ".join(["python", f"examples/{reference.script}", *reference.options])
        seconds = statistics.median(run.seconds for run in runs)
        lines.append(
            f"| {reference.name} | `{command}` | {reference.target:g} | {reference.within:,} | {len(steps)} of {len(runs)} | "
            f"{spread} | {seconds:.0f} |"
        )
    note = "The curves are in the `.csv` files beside this page: seed, environment step, mean return of the evaluation."
    return "\n".join([*lines, "", "![The curves](curves.svg)", "", note, ""])


def draw(outcomes: list[Outcome]) -> None:
    """The curves as a picture: a panel a run, a line a seed."""
    from matplotlib.figure import Figure

    columns = 4
    rows = -(-len(REFERENCES) // columns)
    figure = Figure(figsize=(4 * columns, 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel in list(panels)[len(REFERENCES) :]:
        panel.set_visible(False)
    for panel, reference in zip(figure.axes, REFERENCES):
        for outcome in outcomes:
            if outcome.reference is reference:
                panel.plot(*zip(*outcome.curve), linewidth=1, marker=".", markersize=3, label=f"seed {outcome.seed}")
        panel.axhline(reference.target, color="grey", linestyle="--", linewidth=0.8)
        panel.set(title=reference.name, xlabel="environment steps", ylabel="mean return")
        panel.legend(fontsize=7)
    figure.savefig(KEPT / "curves.svg", metadata={"Date": None})


def main() -> int:
    names = [reference.name for reference in REFERENCES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=names, help="run just this one, and keep nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time (default: one a core)")
    arguments = parser.parse_args()
    chosen = [reference for reference in REFERENCES if arguments.only in (None, reference.name)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [(reference, seed, Path(folder)) for reference in chosen for seed in range(reference.seeds)]
        outcomes = list(pool.map(lambda run: learn(*run), runs))
    if arguments.only is None:
        keep(outcomes)
    return 0 if all(outcome.reached for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
