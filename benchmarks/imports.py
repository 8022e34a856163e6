"""How long a new process takes to import torch, `import ding_lite` and all of its packages, and to the first step of a run."""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import report

ROUNDS = 5
IMPORTS = {
    "python": "pass",
    "torch": "import torch",
    "torch and gymnasium": "import torch, gymnasium",
    "ding_lite": "import ding_lite",
    "all packages": "import ding_lite, ding_lite.middleware, ding_lite.contexts, ding_lite.config, ding_lite.policy, "
    "ding_lite.envs, ding_lite.data, ding_lite.rollout, ding_lite.reports",
    "examples/dqn.py until its first step": f"""
import os, runpy
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
CartPoleEnv.step = lambda env, action: os._exit(0)
runpy.run_path({str(Path(__file__).resolve().parent.parent / "examples" / "dqn.py")!r}, run_name="__main__")
""",
}
ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # else each process compiles every file


def cpu_s(code: str) -> float:
    """CPU seconds of a process that runs this, without the end of Python."""
    code = f"{code}\nimport os\nos._exit(0)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT, cwd=place, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    samples: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for turn in range(ROUNDS + 1):
        for name, code in IMPORTS.items():
            seconds = cpu_s(code)
            if turn:  # the first reads files from the disk
                samples[name].append(seconds)
    bare = statistics.median(samples.pop("python"))
    for name, seconds in samples.items():
        report("imports", name, "cpu_s_after_the_start_of_python", statistics.median(seconds) - bare)


if __name__ == "__main__":
    main()
