"""Whole trainings beside stable-baselines3: CPU seconds of the program until an evaluation reaches the target.

Same task, same target, same number of evaluated episodes; each library with its own settings: ours those of the examples,
stable-baselines3 those of its zoo. Programs run one after another, in turn. CPU seconds are those of the whole process, from
start to end. Ours is measured with and without compiled steps, whose packages are made before the race. Needs
stable-baselines3, which no extra installs.

    python benchmarks/races.py
    python benchmarks/races.py --only ppo_cartpole --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from measure import report

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
OTHER = "stable-baselines3"


@dataclasses.dataclass(frozen=True)
class Race:
    """A task, and what ends a training."""

    script: str
    env: str
    target: float
    episodes: int
    """Episodes of an evaluation."""


RACES = {
    "ppo_cartpole": Race("ppo.py", "CartPole-v1", 475, 8),
    "dqn_cartpole": Race("dqn.py", "CartPole-v1", 475, 8),
    "ppo_acrobot": Race("ppo.py", "Acrobot-v1", -90, 16),
    "sac_pendulum": Race("sac.py", "Pendulum-v1", -170, 16),
}


def commands(name: str, seed: int, folder: str) -> dict[str, list[str]]:
    """The programs of a race by contender."""
    race = RACES[name]
    ours = [sys.executable, str(EXAMPLES / race.script), "--env.id", race.env, "--env.stop-value", str(race.target)]
    ours += ["--env.n-evaluator-episode", str(race.episodes), "--seed", str(seed)]
    other = [sys.executable, str(HERE / "peers" / "sb3_training.py"), name, race.env, str(race.target), str(race.episodes)]
    return {
        "ours": [*ours, "--exp-name", f"{folder}/plain"],
        "ours, compiled": [*ours, "--exp-name", f"{folder}/compiled", "--policy.learn.compile", "on"],
        OTHER: [*other, "--seed", str(seed)],
    }


def cpu_seconds(command: Sequence[str]) -> tuple[float, bool]:
    """The CPU seconds of a program and its children, and whether it reached the target."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if finished.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} failed:\n{finished.stderr[-4000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, finished.returncode == 0


def race(name: str, seeds: Sequence[int]) -> None:
    """Print the CPU seconds of each contender, and how many times ours the other library takes."""
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        warm_up = commands(name, seeds[0], f"{folder}/warm_up")["ours, compiled"]
        cpu_seconds([*warm_up, "--max-step", "20"])
        for seed in seeds:
            for who, command in commands(name, seed, f"{folder}/{seed}").items():
                spent, is_reached = cpu_seconds(command)
                seconds.setdefault(who, []).append(spent)
                report("races", who, "cpu_s", spent, race=name, seed=seed, reached=is_reached)
    for who, found in seconds.items():
        report("races", who, "median_cpu_s", statistics.median(found), race=name)
        if who != OTHER:
            ratio = statistics.median(seconds[OTHER]) / statistics.median(found)
            report("races", who, f"times_as_fast_as_{OTHER}", ratio, race=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=RACES, metavar="RACE", default=list(RACES), help=f"of {', '.join(RACES)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    arguments = parser.parse_args()
    for name in arguments.only:
        race(name, arguments.seeds)


if __name__ == "__main__":
    main()
