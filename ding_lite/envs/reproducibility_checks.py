"""Reproducibility checks: whether environments come back to their observations and rewards when their episodes are replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ding_lite.basics import warn_caller
from ding_lite.data import flatten
from ding_lite.data.state_checks import state_error
from ding_lite.envs.env_data_checks import EnvDataError
from ding_lite.envs.results import to_rewards
from ding_lite.envs.unsaved_env_state import advice_for

ON_SEEDS = (
    "Make its steps depend only on its seed: mostly, reset() lacks super().reset(seed=seed), or the environment draws from a "
    "generator of its own instead of self.np_random."
)
"""Advice for environments whose episodes differ when they are replayed."""


def require_same_obs(found: Any, current: Any, first_env: int = 0, envs: Sequence[Any] = ()) -> None:
    """Raise an error if the replayed observations [B, ...], nested, differ from the saved ones.

    Args:
        found, current: the replayed and the saved observations.
        first_env: index of the environment of the first row.
        envs: the environments, for advice.

    Raises:
        EnvDataError: naming the first environment.
    """
    for (path, now), (_, then) in zip(flatten(found), flatten(current)):
        same = (now == then).reshape(len(now), -1).all(axis=1)
        if not same.all():
            env = first_env + int(np.argmin(same))
            raise EnvDataError(
                f"environment {env} did not come back to its observation{'/'.join(('', *path))}: replayed from its seed it "
                f"returned other observations, so a saved run cannot continue in it. {ON_SEEDS}"
                f"{advice_for(envs[env - first_env]) if envs else ''}",
                env,
            )


def require_running(env: int, step: int, length: int, is_over: bool) -> None:
    """Raise an error if a replayed episode ends in a step after which the saved one went on.

    Args:
        env: index of the environment.
        step: number of replayed steps.
        length: number of steps of the saved episode.
        is_over: whether the last replayed step ended the episode.

    Raises:
        EnvDataError: naming the environment and the step.
    """
    if is_over:
        raise EnvDataError(
            f"environment {env} did not come back to its episode: replayed from its seed, it ended in step {step}, but the "
            f"saved episode, with {length} steps so far, went on after that step, so a saved run cannot continue in it. Make "
            "it with the time limit of the saved run, such as make_envs(..., max_episode_steps=...), and let its end depend "
            "only on its seed and actions.",
            env,
        )


def warn_of_other_envs(state: Any, made: Mapping[str, Any] | None) -> None:
    """Warn if the environments of a saved state had another name or another time limit.

    Args:
        state: the state; those of earlier versions do not say it.
        made: a result of `made_as` for the environments that load it; None for a piece, whose state does not say it either.

    Raises:
        ValueError: the entry of the state is invalid.
    """
    saved = state.get("made_as") if isinstance(state, Mapping) else None
    if saved is None or made is None:
        return
    if not isinstance(saved, Mapping) or not saved.keys() >= made.keys():
        raise state_error("vector environment", "made_as", saved, f"a dict of {', '.join(made)}")
    if any(saved[name] != made[name] for name in made):
        warn_caller(
            f"the saved run had the environments {_described(saved)}, and goes on with {_described(made)}: make the former "
            "ones to go on as before, or begin a new run."
        )


def _described(made: Mapping[str, Any]) -> str:
    limit = made["max_episode_steps"]
    return f"{made['name']} {'without a time limit' if limit is None else f'with at most {limit} steps an episode'}"


def require_same_return(env: int, now: float, then: float, made: Any) -> None:
    """Raise an error if the replayed return of an environment differs from the saved one.

    Args:
        env: index of the environment.
        now, then: the replayed and the saved return.
        made: the environment, for advice.

    Raises:
        EnvDataError: naming the environment.
    """
    if now != then:
        raise EnvDataError(
            f"environment {env} did not come back to its rewards: replayed from its seed, its episode has the return "
            f"{now}, before it was {then}, so a saved run cannot continue in it.{advice_for(made)}",
            env,
        )


def sum_of(rewards: Sequence[Any], env: int) -> float:
    """The sum of these rewards in float32, added one by one as in rollouts, because `sum` of the originals rounds
    differently."""
    total = 0.0
    for reward in rewards:
        total += float(to_rewards((reward,), env)[0])
    return total
