"""How long `ding-lite report` takes for a run with many columns, and for one with many rows."""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import report

RUNS = {"5,000 columns": (5_000, 200), "2 million rows": (5, 2_000_000)}
"""Columns and rows."""


def write_run(folder: Path, columns: int, rows: int) -> None:
    """Write the files of a run with random metrics."""
    rng = random.Random(0)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"exp_name": folder.name, "seed": 0}))
    names = [f"learn/part_{index}/loss" for index in range(columns)]
    with open(folder / "metrics.jsonl", "w") as file:
        for step in range(rows):
            row = {"train_iter": step, "env_step": 8 * step, "time_s": 0.1 * step, "evaluate/episode_return_mean": rng.random()}
            file.write(json.dumps({**row, **{name: rng.random() for name in names}}) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        for name, (columns, rows) in RUNS.items():
            folder = Path(place) / name.replace(" ", "_").replace(",", "")
            write_run(folder, columns, rows)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            command = [sys.executable, "-m", "ding_lite", "report", str(folder), "--out", f"{folder}.html"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""})
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            report("reports", name, "cpu_s", seconds)


if __name__ == "__main__":
    main()
