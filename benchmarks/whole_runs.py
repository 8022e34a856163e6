"""Environment steps a second while learning, on one thread: SAC on HalfCheetah-v5, beside a bare loop; and PPO on Pong.

Needs the extras `mujoco` and `atari`. If stable-baselines3 is installed, its SAC and PPO are measured too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from bare import ppo_atari, sac_mujoco
from measure import compare, one_thread, report

OTHER = "stable-baselines3"


def main() -> None:
    one_thread()
    has_other = importlib.util.find_spec("stable_baselines3") is not None
    functions: dict[str, Callable[[], object]] = {
        "limit": sac_mujoco.bare(),
        "ours": sac_mujoco.ours(),
        "ours, one environment": sac_mujoco.ours(envs=1),
        "ours, one step per iteration": sac_mujoco.ours(per_iteration=1, envs=1),
    }
    if has_other:
        functions[OTHER] = sac_mujoco.stable_baselines3()
    measure(functions, sac_mujoco.STEPS, 15, algorithm="sac", env=sac_mujoco.ENV)
    functions = {"ours": ppo_atari.ours()}
    if has_other:
        functions[OTHER] = ppo_atari.stable_baselines3()
    measure(functions, ppo_atari.STEPS, 5, algorithm="ppo", env=ppo_atari.GAME)


def measure(functions: dict[str, Callable[[], object]], steps: int, rounds: int, **params: str) -> None:
    """Compare these functions, and ours with the other library."""
    medians = compare("whole_runs", "env_steps_per_s", functions, steps, rounds=rounds, **params)
    if OTHER in medians:
        report("whole_runs", "ours", f"speed_of_{OTHER}_times", medians[OTHER] / medians["ours"], **params)


if __name__ == "__main__":
    main()
