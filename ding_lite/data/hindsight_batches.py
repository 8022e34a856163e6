"""Hindsight batches: batches in which goals are replaced by goals that the same episode achieved later."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from ding_lite.data.episode_replay import WITHIN, Array, EpisodeReplayBuffer, GoalSelection
from ding_lite.data.mixtures import Sampler
from ding_lite.data.replay import Draw
from ding_lite.data.trees import LeafError, Tree, as_floats, flatten, map_leaves, nested, tree

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"
"""Parts of the observations of an environment with goals, as gymnasium names them."""
_READ = ("obs", "next_obs", "reward", "terminated", "truncated", "info", "discount")
_FEW = 0.02  # share of rewards that may differ, because observations are stored with fewer digits


class RecordedInfo(dict[str, Any]):
    """The `info` for `compute_reward`: the columns of infos that were recorded, arrays [N, ...] by name."""

    def __missing__(self, name: Any) -> Any:
        raise LeafError(
            f"compute_reward reads info[{name!r}], which is not stored: record it with make_envs(..., "
            f"info_columns=({name!r},)), then info[{name!r}] has the values of all transitions, [N, ...]; or use a function "
            "that does not read it.",
            str(name),
        )


@dataclass(frozen=True)
class GoalRewards:
    """The rewards of an environment with goals, for many transitions in one call.

    Args:
        compute_reward: function (achieved_goal, desired_goal, info) of arrays [N, ...] that returns the rewards [N]. `info`
            is a dict with the recorded columns of infos, [N, ...] by name.
        compute_terminated: function of the same arguments that returns whether the step ends the task, [N]; if it returns a
            single value, it is called for one transition at a time. None if no episode ends because of its goal.
        name: name of the environment, for messages.
    """

    compute_reward: Callable[[Any, Any, Any], Any]
    compute_terminated: Callable[[Any, Any, Any], Any] | None = None
    name: str = "the environment"

    def rewards(self, achieved: Any, desired: Any, info: Mapping[str, Any]) -> Array:
        """The rewards of N transitions, [N].

        Raises:
            ValueError: the function did not return one number for each.
        """
        count = len(next(flatten(achieved))[1])
        reward = np.asarray(self.compute_reward(achieved, desired, RecordedInfo(info)))
        if reward.shape != (count,) or reward.dtype.kind not in "biuf":
            shapes = [leaf.shape for _, leaf in flatten(achieved)]
            raise ValueError(
                f"compute_reward of {self.name} returned {reward.dtype} {reward.shape} for {count} goals of shape "
                f"{shapes[0] if len(shapes) == 1 else shapes}, expected one number for each, ({count},): compute over the last "
                "axis, such as np.linalg.norm(achieved - desired, axis=-1), or pass your own function instead of it."
            )
        return reward

    def terminated(self, achieved: Any, desired: Any, info: Mapping[str, Any]) -> Array | None:
        """Whether N transitions end the task, [N] bool; None if that does not depend on the goal.

        Raises:
            ValueError: the function returned neither one value for each, nor a single one.
        """
        if self.compute_terminated is None:
            return None
        count = len(next(flatten(achieved))[1])
        ends = np.asarray(self.compute_terminated(achieved, desired, RecordedInfo(info)))
        if ends.shape == ():  # gymnasium-robotics returns False for any goals, but also norms over all of them
            rows = zip(_rows(achieved, count), _rows(desired, count), _rows(info, count))
            ends = np.array([self.compute_terminated(one, goal, RecordedInfo(its)) for one, goal, its in rows])
        if ends.shape != (count,):
            raise ValueError(
                f"compute_terminated of {self.name} returned {ends.dtype} {ends.shape} for {count} goals, expected one bool "
                "for each, or a single one."
            )
        return ends.astype(np.bool_)


class GoalDraw(NamedTuple):
    """The transitions of a batch, and where their new goals are from."""

    rows: Array
    """Positions of the transitions, [size]."""
    at: Array
    """Rows of the batch whose goal is replaced, [R]."""
    goals: Array
    """Positions of the transitions that achieved the new goals, [R]."""
    writes: int
    """`writes` of the buffer when they were drawn."""


class HindsightSampler(Sampler):
    """Batches of an EpisodeReplayBuffer in which a share of the goals is replaced by goals that their episode achieved.

    The goal that a transition achieves is that of its next observation. A new goal replaces `desired_goal` in obs and next_obs;
    the reward is computed anew, and so is terminated, if the environment has a function for it. A step that ended its episode
    by a goal that it no longer has is truncated. Everything else is as it was stored.

    Args:
        buffer: holds the transitions.
        rewards: of the environment.
        strategy: from which transitions of the episode the new goals are.
        ratio: probability with which the goal of a transition is replaced, in [0, 1].

    Raises:
        ValueError: the ratio is out of range, or the strategy is unknown.

    Reference:
        Andrychowicz et al. (2017), https://arxiv.org/abs/1707.01495, algorithm 1 and section 4.5.
    """

    def __init__(
        self, buffer: EpisodeReplayBuffer, rewards: GoalRewards, strategy: GoalSelection = "future", ratio: float = 0.8
    ) -> None:
        if strategy not in WITHIN:
            raise ValueError(f"HindsightSampler(strategy={strategy!r}): unknown strategy, use one of {list(WITHIN)}.")
        if not 0 <= ratio <= 1:
            raise ValueError(f"HindsightSampler(ratio={ratio!r}): expected a number in [0, 1].")
        super().__init__([buffer])
        self._buffer, self._rewards = buffer, rewards
        self._strategy: GoalSelection = strategy
        self._ratio = ratio
        self._is_unchecked = True

    def draw(self, size: int) -> GoalDraw:
        """Draw the transitions of the next batch, and their new goals."""
        buffer = self._buffer
        rows = buffer.draw(size).rows
        at = np.flatnonzero(buffer.rng.random(size) < self._ratio)
        return GoalDraw(rows, at, buffer.draw_within(rows[at], self._strategy), buffer.writes)

    def take(self, drawn: GoalDraw, columns: Collection[str] | None = None) -> Tree:
        """The transitions of a draw, with their new goals and rewards.

        Raises:
            ValueError: the transitions have no goals, or rewards of several steps; or a function returned another shape.
        """
        rows, at, goals, writes = drawn
        if writes != self._buffer.writes:  # there may be others at some of these positions now
            kept = self._buffer.are_of_one_episode(rows[at], goals)
            at, goals = at[kept], goals[kept]
        read = None if columns is None else {*columns, *_READ}
        batch: dict[str, Any] = dict(nested(self._buffer.take(Draw(rows, {}), read)))
        _require_goals(batch)
        if self._is_unchecked and len(rows):
            self._is_unchecked = False
            self._compare(batch)
        if len(at):
            self._replace(batch, at, self._buffer.take_part(("next_obs", ACHIEVED), goals))
        return tree({name: leaf for name, leaf in batch.items() if columns is None or name in columns})

    def _replace(self, batch: dict[str, Any], at: Array, goal: Any) -> None:
        """Replace the goals of the rows `at` of a batch, in place."""
        for part in ("obs", "next_obs"):
            map_leaves(lambda leaf, new: leaf.__setitem__(at, new.to(leaf.dtype)), batch[part][DESIRED], goal)
        given = self._arguments(batch, at)
        batch["reward"] = as_floats(batch["reward"])
        batch["reward"][at] = torch.from_numpy(self._rewards.rewards(*given)).to(batch["reward"].dtype)
        ends = self._rewards.terminated(*given)
        if ends is not None:
            was_end, now = batch["terminated"][at] != 0, torch.from_numpy(ends)  # a buffer with a spec may store numbers
            batch["terminated"][at] = now.to(batch["terminated"].dtype)
            is_cut = (batch["truncated"][at] != 0) | (was_end & ~now)
            batch["truncated"][at] = is_cut.to(batch["truncated"].dtype)

    def _arguments(self, batch: Mapping[str, Any], at: Any) -> tuple[Any, Any, Any]:
        """The arguments of `compute_reward` for these rows of a batch."""
        parts = batch["next_obs"][ACHIEVED], batch["next_obs"][DESIRED], batch.get("info", {})
        achieved, desired, info = (map_leaves(lambda leaf: _array(leaf[at]), part) for part in parts)
        return achieved, desired, info

    def _compare(self, batch: Mapping[str, Any]) -> None:
        """Warn if the stored rewards are not those of `compute_reward`."""
        stored = batch["reward"].numpy()
        computed = self._rewards.rewards(*self._arguments(batch, slice(None)))
        differ = np.flatnonzero(~np.isclose(stored, computed, rtol=1e-4, atol=1e-5))
        if len(differ) > _FEW * len(stored):
            row = differ[0]
            warnings.warn(
                f"{len(differ)} of {len(stored)} replayed rewards are not those of compute_reward: one is {stored[row]:g}, "
                f"computed as {computed[row]:g} for the same goals. So replaced goals have rewards of another kind. Pass a "
                "function that computes the rewards as they are stored, with the changes of wrappers and middleware.",
                stacklevel=2,
            )


def _rows(part: Any, count: int) -> Iterable[Any]:
    """The rows of an array [N, ...], or of nested arrays."""
    if not isinstance(part, Mapping):
        return part  # type: ignore[no-any-return]
    rows = zip(*(_rows(inner, count) for inner in part.values())) if part else [()] * count
    return (dict(zip(part, row)) for row in rows)


def _array(leaf: Any) -> Any:
    return leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf


def _require_goals(batch: Mapping[str, Any]) -> None:
    if "discount" in batch:
        raise ValueError(
            "the replayed transitions have the column 'discount', which nstep_reward_enhancer adds: their rewards are sums of "
            "several steps, and those of a new goal would be of one. Leave nstep_reward_enhancer out."
        )
    for part in ("obs", "next_obs"):
        names = list(batch[part]) if isinstance(batch.get(part), dict) else None
        if names is None or not {ACHIEVED, DESIRED} <= set(names):
            found = "no parts" if names is None else f"the parts {names}"
            raise ValueError(
                f"hindsight replaces goals, and the replayed {part} has {found}: use an environment whose observations are "
                f"a Dict with 'observation', {ACHIEVED!r} and {DESIRED!r}."
            )
