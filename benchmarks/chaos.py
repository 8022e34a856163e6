"""Kill runs at random instants, resume them, and compare with the unbroken run, bit for bit.

Each run is killed with SIGKILL several times, and resumed by `--resume` each time. Then the final checkpoint and the
evaluations must be those of the unbroken run. The exit status is 1 if anything differs.

    python benchmarks/chaos.py                                     # everything
    python benchmarks/chaos.py --only dqn ppo --kills 5
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parent.parent
MODES = {
    "sync": [],
    "lag": ["--max-lag", "1"],
    "async": ["--async-mode"],
    "async, workers": ["--async-mode", "--env.workers", "2"],
}
SHORT = {
    "dqn": ["--max-step", "80"],
    "rainbow": ["--max-step", "40"],
    "ppo": ["--max-step", "60"],
    "sac": ["--max-step", "60", "--policy.random-collect-size", "256"],
    "r2d2": ["--max-step", "60"],
    "impala": ["--max-step", "60"],
    "ippo": ["--max-step", "12"],
    "rock_paper_scissors": ["--max-step", "20"],
}
WITHOUT_WORKERS = {"ippo", "rock_paper_scissors"}
START_S = 3.0  # a program is not killed before, because importing torch takes that long
PATIENCE_S = 300.0


class Outcome(NamedTuple):
    """The result of a run: everything that must be the same."""

    final: Any
    evaluations: list[Any]
    status: int


def arguments(name: str, mode: str) -> list[str]:
    """The command line of a short run of this example."""
    return [*SHORT[name], "--env.stop-value", "None", *MODES[mode]]


def run(
    name: str, given: Sequence[str], kill_after: float | Path | None = None, number: int = signal.SIGKILL
) -> tuple[int, float]:
    """Run an example, and send it a signal after so many seconds, or when a file exists. Returns its status and duration."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    begun = time.monotonic()
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *given]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while isinstance(kill_after, Path) and process.poll() is None:
            if kill_after.exists():
                kill_after = 0.2
            time.sleep(0.01)
        try:
            _, errors = process.communicate(timeout=kill_after if isinstance(kill_after, float) else PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            _, errors = process.communicate(timeout=PATIENCE_S)
    if process.returncode > 1:
        print(errors, file=sys.stderr)
    return process.returncode, time.monotonic() - begun


def outcome(folder: Path, status: int) -> Outcome:
    """What a run has left in its folder."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluated = [
        (row["env_step"], row["evaluate/episode_return_mean"]) for row in rows if "evaluate/episode_return_mean" in row
    ]
    steps = [row["env_step"] for row in rows]
    assert steps == sorted(steps), "rows are out of order"
    return Outcome(torch.load(folder / "ckpt" / "final.pt", weights_only=True), evaluated, status)


def is_same(one: Any, other: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
    return bool(one == other or (one != one and other != other))


def killed_run(name: str, mode: str, folder: Path, kills: int, whole_s: float, seed: int) -> tuple[Outcome, int]:
    """A run that is killed and resumed several times: its outcome, and how many kills hit it."""
    draw, hits = random.Random(seed), 0
    given = [*arguments(name, mode), "--exp-name", str(folder)]
    for _ in range(kills):
        status, _ = run(name, given, START_S + draw.random() * max(whole_s - START_S, 1.0))
        hits += status == -signal.SIGKILL
        if status >= 0:
            return outcome(folder, status), hits
        if (folder / "run" / "manifest.json").exists():
            given = ["--resume", str(folder)]
    status, _ = run(name, given)
    return outcome(folder, status), hits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SHORT, default=list(SHORT), help="examples")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="modes")
    parser.add_argument("--kills", type=int, default=3, help="kills per run")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    chosen = parser.parse_args()
    failures = total = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in chosen.only:
            for mode in chosen.modes:
                if "workers" in mode and name in WITHOUT_WORKERS:
                    continue
                whole = Path(scratch) / name / mode.replace(", ", "_")
                status, whole_s = run(name, [*arguments(name, mode), "--exp-name", str(whole)])
                wanted = outcome(whole, status)
                found, hits = killed_run(
                    name, mode, whole.with_name(f"{whole.name}_killed"), chosen.kills, whole_s, chosen.seed
                )
                differs = [field for field in Outcome._fields if not is_same(getattr(found, field), getattr(wanted, field))]
                failures += bool(differs)
                total += hits
                print(
                    f"{name:20s} {mode:15s} {hits} kills: {'same' if not differs else 'DIFFERS in ' + ', '.join(differs)}",
                    flush=True,
                )
    print(f"{total} kills, {failures} runs that differ")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
