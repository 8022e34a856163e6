"""Send SIGINT and SIGTERM to runs at random moments, and check how they end.

DQN runs synchronously, with overlapping iterations, and with worker processes, with and without signal handlers of the program.
After the first signal, the run must be saved after its last iteration, and the program must end within ten seconds with status
130 or 143, without a traceback; after a second signal, within one second. In addition, Python needs time to exit with these
modules, which is measured first. No process may be left. The exit status is 1 if one of these is not true.

    python benchmarks/signals.py                                   # 288 runs
    python benchmarks/signals.py --runs 2 --twice 1
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil
from chaos import MODES
from programs import Ended, run_example

from ding_lite.basics import CheckpointError, RunFiles, load_checkpoint

ENDLESS = "--max-step 1000000 --env.stop-value None"
LONG_ITERATIONS = f"{ENDLESS} --policy.learn.learning-starts 64 --policy.learn.update-per-collect 1000000"
MARK = "the handler of the program"
WITH_HANDLERS = f"""
import runpy, signal, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: print({MARK!r}, file=sys.stderr))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ONLY_MODULES = """
import pathlib, runpy, sys, tyro
runpy.run_path(sys.argv[1], run_name="not main")
pathlib.Path(sys.argv[2]).touch()
"""
LATEST_S = 2.0  # of the first signal after the beginning of the run
BETWEEN_S = 0.3
LIMIT_S, LIMIT_TWICE_S = 10.0, 1.0
GONE_WITHIN_S = 5.0  # child processes, of which the fork server exits as slowly as the program


class Case(NamedTuple):
    """What a run is, and what it gets."""

    mode: str
    has_handlers: bool
    number: signal.Signals
    is_twice: bool


def processes_of(session: int) -> list[str]:
    """Names of the processes of a session that are still there after a while."""
    end = time.monotonic() + GONE_WITHIN_S
    while True:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.name())
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def faults_of_state(folder: Path) -> list[str]:
    """What is wrong with the files of a run that a signal ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            saved = RunFiles(folder).load()[0]["done"]
            final = load_checkpoint(folder / "ckpt" / "final.pt")["counters"]["total_step"]
            noted = json.loads((folder / "run.json").read_text())["sessions"][-1]["iterations"]
        except (OSError, ValueError, CheckpointError, Warning) as error:
            return [str(error)]
    return [] if saved == final == noted else [f"saved after {saved} iterations, final.pt after {final}, run.json {noted}"]


def exit_seconds(scratch: Path, jobs: int) -> float:
    """Seconds that Python takes to exit with the modules of the example, the median of a few programs."""
    files = [scratch / f"loaded_{at}" for at in range(2 * jobs + 1)]
    with ThreadPoolExecutor(jobs) as pool:
        ends = pool.map(lambda file: run_example("dqn", [str(file)], file, program=["-c", ONLY_MODULES]), files)
        return statistics.median(ended.run_s for ended in ends)


def faults_of(case: Case, ended: Ended, folder: Path, exit_s: float) -> list[str]:
    """What is wrong with the end of a run."""
    found = []
    expected = {128 + case.number} | ({-signal.SIGINT} if case.is_twice and case.number == signal.SIGINT else set())
    if ended.status not in expected:
        found.append(f"status {ended.status}: {ended.errors}")
    if ended.end_s > exit_s + (LIMIT_TWICE_S if case.is_twice else LIMIT_S):
        found.append(f"it took {ended.end_s:.2f} s")
    if left := processes_of(ended.session):
        found.append(f"left processes: {', '.join(left)}")
    if not case.is_twice:
        if "Traceback" in ended.errors:
            found.append(ended.errors)
        if (MARK in ended.errors) != case.has_handlers:
            found.append("the handler of the program was not called")
        found += faults_of_state(folder)
    return found


def signalled(case: Case, after_s: float, folder: Path, exit_s: float) -> tuple[float, list[str]]:
    """Seconds that a run took to end after its last signal, and what was wrong."""
    settings = LONG_ITERATIONS if case.is_twice else ENDLESS
    given = [*settings.split(), *MODES[case.mode].split(), "--exp-name", str(folder)]
    program = ["-c", WITH_HANDLERS] if case.has_handlers else []
    signals = [(after_s, case.number), *([(BETWEEN_S, case.number)] if case.is_twice else [])]
    ended = run_example("dqn", given, folder / "run.log", signals, program)
    return ended.end_s, faults_of(case, ended, folder, exit_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="runs per case that get one signal")
    parser.add_argument("--twice", type=int, default=4, help="runs per case that get a second signal")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the moments")
    parser.add_argument("--mode", choices=[*MODES], nargs="+", default=[*MODES], help="kinds of runs")
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in the background, and so would the runs
    draw, faulty, longest = random.Random(chosen.seed), 0, {False: 0.0, True: 0.0}
    layout = "{:8} {:20} {:8} {:12} {:>5} {:>12} {:>7}"
    print(layout.format("mode", "program's handlers", "signal", "signals", "runs", "longest end", "faults"))
    cases = itertools.product(chosen.mode, (False, True), (signal.SIGINT, signal.SIGTERM), (False, True))
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(chosen.jobs) as pool:
        exit_s = exit_seconds(Path(scratch), chosen.jobs)
        for at, case in enumerate(itertools.starmap(Case, cases)):
            runs = chosen.twice if case.is_twice else chosen.runs
            moments = [draw.uniform(0, LATEST_S) for _ in range(runs)]
            folders = [Path(scratch) / f"{at}_{run}" for run in range(runs)]
            ends = list(pool.map(signalled, [case] * runs, moments, folders, [exit_s] * runs))
            slowest = max((end_s for end_s, _ in ends), default=0.0)
            messages = [f"after {moment:.3f} s: {fault}" for moment, (_, found) in zip(moments, ends) for fault in found]
            longest[case.is_twice] = max(longest[case.is_twice], slowest)
            faulty += sum(bool(found) for _, found in ends)
            which, own = "a second one" if case.is_twice else "one", "yes" if case.has_handlers else "no"
            row = (case.mode, own, case.number.name, which, runs, f"{slowest:.2f} s", len(messages))
            print(layout.format(*row), *messages, sep="\n    ", flush=True)
    print(
        f"longest end {longest[False]:.2f} s, after a second signal {longest[True]:.2f} s, of which Python's exit takes "
        f"{exit_s:.2f} s; {faulty} runs with faults"
    )
    return int(faulty > 0)


if __name__ == "__main__":
    sys.exit(main())
