"""Goals: the reward function of environments with goals, for the replay of goals that were achieved."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium import Env, spaces
from gymnasium.vector.utils import batch_space

from ding_lite.basics import add_note
from ding_lite.data import GoalRewards
from ding_lite.data.hindsight_batches import ACHIEVED, DESIRED
from ding_lite.data.trees import map_leaves
from ding_lite.envs.factories import made_by
from ding_lite.envs.names import name_of_env
from ding_lite.envs.spaces import same_layout


def goal_rewards(env: Any) -> GoalRewards:
    """The functions `compute_reward` and, if there is one, `compute_terminated` of an environment with goals.

    They are those of one more environment, which is made here, in this process, also if the others are in worker processes. So
    later changes of the others, by `call` or `set_attr`, do not reach it. `compute_truncated` is not used: a time limit does
    not depend on the goal.

    The environment has gymnasium's interface for goals: observations are a Dict with `achieved_goal` and `desired_goal`, and
    `compute_reward(achieved_goal, desired_goal, info)` takes one goal [G], or many [N, G]. A wrapper may override it.

    Args:
        env: environments of `make_envs`.

    Raises:
        TypeError: the environments are not those of `make_envs`, have no goals, or have no `compute_reward`.
        ValueError: `compute_reward` does not return one number for each of many goals.
        Exception: its own error for many goals.

    Example:
        >>> from ding_lite.envs import make_envs
        >>> rewards = goal_rewards(make_envs("ding_lite/BitFlip-v0", 2, env_config={"n_bits": 3}))
        >>> rewards.compute_reward(np.zeros((2, 3)), np.array([[0, 0, 0], [0, 0, 1]]), {}).tolist()
        [0.0, -1.0]
    """
    factory = getattr(env, "factory", None)
    if factory is None:
        raise TypeError(
            f"goal_rewards wants environments of make_envs, got {env!r:.80} of type {type(env).__name__}: pass these, or write "
            "GoalRewards(compute_reward) with a function of (achieved_goal, desired_goal, info)."
        )
    one = made_by(factory, 0)
    name = name_of_env(one)
    goals = _require_goals(one, name)
    if not one.has_wrapper_attr("compute_reward"):
        raise TypeError(
            f"{name} has no compute_reward(achieved_goal, desired_goal, info), by which the rewards of other goals are "
            "computed: give it one, or pass your own function, HERLearner(cfg, policy, buffer_, compute_reward)."
        )
    ends = one.get_wrapper_attr("compute_terminated") if one.has_wrapper_attr("compute_terminated") else None
    rewards = GoalRewards(one.get_wrapper_attr("compute_reward"), ends, name)
    _try(rewards, goals, getattr(env, "info_columns", ()))
    return rewards


def _require_goals(env: Env[Any, Any], name: str) -> spaces.Space[Any]:
    """The space of the goals."""
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or not {ACHIEVED, DESIRED} <= set(space.spaces):
        found = f"a Dict with {list(space.spaces)}" if isinstance(space, spaces.Dict) else f"{space}"
        raise TypeError(
            f"the observations of {name} are {found:.120}, and an environment with goals has a Dict with 'observation', "
            f"{ACHIEVED!r} and {DESIRED!r}: use such an environment, or add them by a wrapper."
        )
    if not same_layout(space[ACHIEVED], space[DESIRED]):
        raise TypeError(
            f"{name} has {ACHIEVED!r} in {space[ACHIEVED]} and {DESIRED!r} in {space[DESIRED]}: a goal that was achieved can "
            "only replace another one in the same space."
        )
    return space[DESIRED]


def _try(rewards: GoalRewards, space: spaces.Space[Any], info_columns: Any) -> None:
    """Call the functions with a few random goals, and check what they return."""
    count = 3 if (space.shape or ())[:1] == (2,) else 2  # another number than that of a goal's elements
    many = batch_space(copy.deepcopy(space), count)
    many.seed(0)
    achieved, desired = (map_leaves(np.asarray, many.sample()) for _ in range(2))
    info = {name: np.zeros(count, np.float32) for name in info_columns}
    try:
        rewards.rewards(achieved, desired, info)
        rewards.terminated(achieved, desired, info)
    except Exception as error:
        add_note(
            error,
            f"raised when goal_rewards tried compute_reward and compute_terminated of {rewards.name} with {count} goals at a "
            "time. If they take only one goal, or a certain info, pass your own function, "
            "HERLearner(cfg, policy, buffer_, compute_reward).",
        )
        raise
