"""SAC on HalfCheetah-v5 while it learns: environment steps a second, beside a bare loop like CleanRL's, on one thread.

Needs the extra `mujoco`. If stable-baselines3 is installed, its SAC is measured too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from bare import sac_mujoco
from measure import compare, one_thread


def main() -> None:
    one_thread()
    functions: dict[str, Callable[[], object]] = {
        "limit": sac_mujoco.bare(),
        "ours": sac_mujoco.ours(),
        "ours, one environment": sac_mujoco.ours(envs=1),
        "ours, one step per iteration": sac_mujoco.ours(per_iteration=1, envs=1),
    }
    if importlib.util.find_spec("stable_baselines3"):
        functions["stable-baselines3"] = sac_mujoco.stable_baselines3()
    compare("whole_runs", "env_steps_per_s", functions, sac_mujoco.STEPS, rounds=15, algorithm="sac", env=sac_mujoco.ENV)


if __name__ == "__main__":
    main()
