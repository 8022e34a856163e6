"""Atari: agent steps a second of preprocessed Pong with random actions, each of 4 frames.

Ours in `make_envs`, and one environment alone; gymnasium's AtariPreprocessing and FrameStackObservation alone, and in its
SyncVectorEnv; and ALE's own vector environment on one thread, which is in C++. The limit is the emulator alone: 4 frames, the
last two as greyscale screens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
from measure import compare, one_thread

from ding_lite.envs import make_envs
from ding_lite.envs.making import registered_spec

GAME, ENVS, STEPS = "ALE/Pong-v5", 8, 20


def emulator() -> Callable[[], None]:
    """The emulator alone."""
    ale: Any = gymnasium.make(registered_spec(GAME)).unwrapped
    ale.reset(seed=0)
    ale, screens = ale.ale, np.zeros((2, 210, 160), np.uint8)
    actions, numbers = ale.getMinimalActionSet(), itertools.cycle(np.random.default_rng(0).integers(6, size=1000).tolist())

    def run() -> None:
        for _ in range(ENVS * STEPS):
            action = actions[next(numbers)]
            for frame in range(4):
                ale.act(action)
                if frame >= 2:
                    ale.getScreenGrayscale(screens[3 - frame])
            if ale.game_over():
                ale.reset_game()

    return run


def alone(env: gymnasium.Env[Any, Any]) -> Callable[[], None]:
    """One environment."""
    numbers = itertools.cycle(np.random.default_rng(0).integers(6, size=1000).tolist())
    env.reset(seed=0)

    def run() -> None:
        for _ in range(ENVS * STEPS):
            _, _, terminated, truncated, _ = env.step(next(numbers))
            if terminated or truncated:
                env.reset()

    return run


def together(envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> Callable[[], None]:
    """A vector environment."""
    actions = itertools.cycle(np.random.default_rng(0).integers(6, size=(1000, ENVS)))
    envs.reset(seed=0)

    def run() -> None:
        for _ in range(STEPS):
            envs.step(next(actions))

    return run


def gymnasiums() -> gymnasium.Env[Any, Any]:
    """Gymnasium's preprocessing."""
    game = gymnasium.make(registered_spec(GAME), frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    return FrameStackObservation(AtariPreprocessing(game), 4)


def ales() -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """ALE's own vector environment."""
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv("pong", ENVS, num_threads=1, reward_clipping=False, use_fire_reset=False)


def main() -> None:
    one_thread()
    sync = SyncVectorEnv([gymnasiums] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    functions: dict[str, Callable[[], object]] = {
        "limit": emulator(),
        "ours": together(make_envs(GAME, ENVS)),
        "ours, one environment": alone(make_envs(GAME, 1).envs[0]),
        "gymnasium, one environment": alone(gymnasiums()),
        "gymnasium's SyncVectorEnv": together(sync),
        "ALE's AtariVectorEnv, one thread": together(ales()),
    }
    compare("atari", "agent_steps_per_s", functions, ENVS * STEPS, rounds=20, game=GAME, envs=ENVS)


if __name__ == "__main__":
    main()
