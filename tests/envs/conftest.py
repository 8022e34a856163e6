"""Playing environments with known actions, and the environments to play."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from ding_lite.envs import LocalVectorEnv, make_envs


class Seen(NamedTuple):
    """One step of every environment."""

    action: list[Any]
    next_obs: list[Any]
    """Where the step led, also where an episode ended."""
    reward: list[float]
    done: list[bool]
    episodes: list[tuple[Any, ...]]
    """(env, number, return, length, seed) of those that ended."""


def play(envs: LocalVectorEnv, num_steps: int, seed: int = 0) -> list[Seen]:
    if envs.current is None:
        envs.reset()
    generator, trace = np.random.default_rng(seed), []
    for _ in range(num_steps):
        action = _draw(envs.single_action_space, generator, envs.num_envs)
        out = np.empty((envs.num_envs, *envs.single_observation_space.shape), envs.single_observation_space.dtype)
        step = envs.advance(action, out)
        next_obs = out.tolist()
        for index, final in step.final_obs.items():
            next_obs[index] = final.tolist()
        done = (step.terminated | step.truncated).tolist()
        trace.append(Seen(action.tolist(), next_obs, step.reward.tolist(), done, [tuple(one)[:5] for one in step.finished]))
    return trace


def _draw(space: spaces.Space, generator: np.random.Generator, num_envs: int) -> np.ndarray:
    if isinstance(space, spaces.Discrete):
        return generator.integers(space.n, size=num_envs)
    return generator.uniform(-1, 1, (num_envs, *space.shape)).astype(np.float32)


def _pong(num_envs: int, seed: int) -> LocalVectorEnv:
    pytest.importorskip("ale_py")
    return make_envs("ALE/Pong-v5", num_envs, seed, obs_type="ram", max_episode_steps=9)


_MAKERS = {"Pong": _pong, **{name: partial(make_envs, f"{name}-v1", max_episode_steps=9) for name in ("CartPole", "Pendulum")}}


@pytest.fixture(scope="session")
def known_actions() -> Callable[..., list[Seen]]:
    """A function of (envs, num_steps, seed) that plays known actions, and gives what they led to."""
    return play


@pytest.fixture
def make(request) -> Callable[[int, int], LocalVectorEnv]:
    """A function of (num_envs, seed) that makes environments of nine steps an episode; the parameter is a name."""
    return _MAKERS[request.param]


@pytest.fixture
def made() -> Iterator[Callable[..., Any]]:
    """A function that is make_envs, whose environments are closed in the end."""
    all_made = []

    def make(*args: Any, **kwargs: Any) -> Any:
        all_made.append(make_envs(*args, **kwargs))
        return all_made[-1]

    yield make
    for envs in all_made:
        envs.close()
