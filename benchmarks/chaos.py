"""Kill runs at random moments, resume them, and compare them with uninterrupted runs, bit for bit.

A run is killed with SIGKILL at a random moment after its beginning, and resumed, until it ends; then another one begins, until
the kills of this variant are used up. After each kill, every file that the run has saved must be readable. After each end, the
final checkpoint, the evaluations and the exit status must be those of an uninterrupted run. The exit status is 1 if something
is unreadable or differs.

    python benchmarks/chaos.py                                     # everything: 50 kills per example
    python benchmarks/chaos.py --only dqn ppo --modes async --envs own Pong --kills 5
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from programs import run_example

from ding_lite.basics import CheckpointError, RunFiles, load_checkpoint

MODES = {
    "sync": "",
    "lag": "--max-lag 1",
    "async": "--async-mode",
    "workers": "--async-mode --env.workers 2 --env.backend process",
}
LANDER = "--env.max-episode-steps 150 --env.n-evaluator-episode 2 --env.evaluator-env-num 2 --env.id LunarLander"
MUJOCO = "--env.n-evaluator-episode 2 --env.evaluator-env-num 2 --env.id InvertedPendulum-v5"
SAC = (
    "--policy.random-collect-size 64 --policy.learn.learning-starts 64 --policy.learn.update-per-collect 50 "
    "--policy.learn.batch-size 16 --policy.model.encoder-hidden-size-list 16 16"
)
AGENTS = "--policy.learn.batch-size 32 --policy.model.encoder-hidden-size-list 16 16"
RUNS = {
    "dqn": {
        "own": "--max-step 60",
        "LunarLander": f"--max-step 60 {LANDER}-v3",
        "Pong": "--max-step 100 --env.id ALE/Pong-v5 --env.max-episode-steps 40 --env.collector-env-num 2 "
        "--env.n-evaluator-episode 1 --env.evaluator-env-num 1 --policy.collect.n-sample 8 --policy.learn.batch-size 4 "
        "--policy.learn.update-per-collect 6 --policy.learn.learning-starts 16 --policy.other.replay-buffer-size 200 "
        "--policy.model.conv-layers 8 8 8 16 4 4",
    },
    "rainbow": {"own": "--max-step 30", "LunarLander": f"--max-step 30 {LANDER}-v3"},
    "ppo": {
        "own": "--max-step 60",
        "LunarLander": f"--max-step 60 {LANDER}-v3",
        "InvertedPendulum": f"--max-step 60 {MUJOCO}",
    },
    "sac": {
        "own": f"--max-step 70 {SAC}",
        "LunarLander": f"--max-step 70 {SAC} {LANDER}Continuous-v3",
        "InvertedPendulum": f"--max-step 70 {SAC} {MUJOCO}",
    },
    "r2d2": {"own": "--max-step 60", "LunarLander": f"--max-step 60 {LANDER}-v3"},
    "impala": {"own": "--max-step 200", "LunarLander": f"--max-step 150 {LANDER}-v3"},
    "ippo": {"own": f"--max-step 9 {AGENTS} --policy.collect.n-sample 320"},
    "rock_paper_scissors": {"own": f"--max-step 15 {AGENTS}"},
}
"""The settings of each example in each environment: a run of a few seconds that is saved several times."""
NEEDS = {"LunarLander": "Box2D", "Pong": "ale_py", "InvertedPendulum": "mujoco"}
WITHOUT_WORKERS = {"ippo", "rock_paper_scissors"}
ENVS = ("own", *NEEDS)
MARGIN_S = 0.3  # a run may take longer than the one that was measured, and the moments cover its end too


class Variant(NamedTuple):
    """An example in one environment and one mode."""

    name: str
    env: str
    mode: str

    def arguments(self, folder: Path) -> list[str]:
        """The command line of a new run."""
        return [*f"{RUNS[self.name][self.env]} {MODES[self.mode]} --env.stop-value None --exp-name".split(), str(folder)]


class Outcome(NamedTuple):
    """The result of a run: everything that must be the same."""

    status: int
    final: Any
    evaluations: list[Any]
    is_in_order: bool


class Row(NamedTuple):
    """What happened to the runs of a variant."""

    kills: int
    resumed: int
    unreadable: list[str]
    differs: list[str]


def outcome(folder: Path, status: int) -> Outcome:
    """What a run has left in its folder."""
    if not (folder / "ckpt" / "final.pt").exists():
        return Outcome(status, None, [], False)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    value = "evaluate/episode_return_mean"
    evaluations = [(row["env_step"], row[value]) for row in rows if value in row]
    steps = [row["env_step"] for row in rows]
    return Outcome(status, load_checkpoint(folder / "ckpt" / "final.pt"), evaluations, steps == sorted(steps))


def is_same(one: Any, other: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
    return bool(one == other or (one != one and other != other))


def differences(found: Outcome, wanted: Outcome) -> list[str]:
    """Names of what differs."""
    return [field for field in Outcome._fields if not is_same(getattr(found, field), getattr(wanted, field))]


def done(folder: Path) -> int:
    """Iterations after which the run was saved last; 0 if it was not."""
    manifest = folder / "run" / "manifest.json"
    return json.loads(manifest.read_text())["states"][0]["done"] if manifest.exists() else 0


def unreadable(folder: Path) -> list[str]:
    """Messages about files in the folder of a killed run that cannot be read."""
    found, manifest = [], folder / "run" / "manifest.json"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            if manifest.exists():
                RunFiles(folder).load()
                for state in json.loads(manifest.read_text())["states"]:
                    content = (manifest.parent / state["file"]).read_bytes()
                    if hashlib.sha256(content).hexdigest() != state["sha256"]:
                        found.append(f"{state['file']} is damaged")
            for path in (folder / "ckpt").glob("*.pt"):
                load_checkpoint(path)
        except (OSError, ValueError, CheckpointError, Warning) as error:
            found.append(str(error))
    return found


def killed_runs(variant: Variant, kills: int, scratch: Path, seed: int) -> Row:
    """Kill and resume runs of a variant until they were killed so many times."""
    draw, hits, resumed = random.Random(f"{seed} {variant}"), 0, 0
    faults: list[str] = []
    whole, folder = scratch / "whole", scratch / "killed"
    ended = run_example(variant.name, variant.arguments(whole), whole / "run.log")
    wanted, run_s, total = outcome(whole, ended.status), ended.run_s, done(whole)
    if ended.status != 0 or not total:
        return Row(0, 0, [], [f"the uninterrupted run, status {ended.status}: {ended.errors}"])
    while True:
        given = ["--resume", str(folder)] if done(folder) else variant.arguments(folder)
        resumed += given[0] == "--resume"
        left_s = run_s * (1 - done(folder) / total) + MARGIN_S
        signals = [(draw.uniform(0, left_s), signal.SIGKILL)] if hits < kills else []
        ended = run_example(variant.name, given, folder / "run.log", signals)
        faults += unreadable(folder)
        if ended.status == -signal.SIGKILL:
            hits += 1
            continue
        differs = differences(outcome(folder, ended.status), wanted)
        if ended.status != 0:
            differs.append(ended.errors)
        if hits == kills or differs:
            return Row(hits, resumed, faults, differs)
        shutil.rmtree(folder)


def chosen_variants(
    only: Sequence[str], modes: Sequence[str], envs: Sequence[str], kills: int
) -> Iterator[tuple[Variant, int]]:
    """Each variant with its share of the kills of its example."""
    for name in only:
        variants = [
            Variant(name, env, mode)
            for env in RUNS[name]
            for mode in modes
            if env in envs
            and not (mode == "workers" and name in WITHOUT_WORKERS)
            and (env not in NEEDS or importlib.util.find_spec(NEEDS[env]))
        ]
        for at, variant in enumerate(variants):
            if share := (at + 1) * kills // len(variants) - at * kills // len(variants):
                yield variant, share


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="examples")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="modes")
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS), help="environments; own: that of the example")
    parser.add_argument("--kills", type=int, default=50, help="kills per example, spread over its variants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="variants at a time")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the moments")
    chosen = parser.parse_args()
    for env in chosen.envs:
        if env in NEEDS and not importlib.util.find_spec(NEEDS[env]):
            print(f"{env} is left out: {NEEDS[env]} is not installed")
    variants = list(chosen_variants(chosen.only, chosen.modes, chosen.envs, chosen.kills))
    layout = "{:20} {:17} {:8} {:>5} {:>8} {:>11}  {}"
    print(layout.format("example", "environment", "mode", "kills", "resumed", "unreadable", "result"))
    rows = []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(chosen.jobs) as pool:
        places = [Path(scratch) / "_".join(variant) for variant, _ in variants]
        found = pool.map(lambda it, place: killed_runs(*it, place, chosen.seed), variants, places)
        for (variant, _), row in zip(variants, found):
            rows.append(row)
            result = f"DIFFERS in {', '.join(row.differs)}" if row.differs else "same"
            print(layout.format(*variant, row.kills, row.resumed, len(row.unreadable), result), flush=True)
            for message in row.unreadable:
                print(f"    {message}", flush=True)
    unread, differ = sum(len(row.unreadable) for row in rows), sum(bool(row.differs) for row in rows)
    print(
        f"{sum(row.kills for row in rows)} kills, {sum(row.resumed for row in rows)} resumed, {unread} unreadable states, "
        f"{differ} of {len(rows)} variants differ"
    )
    return int(unread + differ > 0)


if __name__ == "__main__":
    sys.exit(main())
