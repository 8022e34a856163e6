"""Environments of this process, stepped in a plain loop.

Room: ding_lite.envs, floor 2. Imports data and the room's other files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ding_lite.data import Leaf, allocate, flatten, map_leaves
from ding_lite.engine import add_note, arrays, plain
from ding_lite.envs.checks import EnvDataError, require_finite, to_leaf, to_spec
from ding_lite.envs.episodes import Episode, EpisodeStarts
from ding_lite.envs.spaces import SpaceError, same_layout, space_spec, splitter, to_gymnasium, to_nested
from ding_lite.envs.steps import Step

_STEP_PARTS = "(obs, reward, terminated, truncated, info)"


class LocalVectorEnv(VectorEnv[Any, Any, Any]):
    """B environments of this process as one vector environment that resets each episode where it ends.

    `reset` and `step` are gymnasium's, in autoreset mode SAME_STEP. `begin` and `advance` are what rollouts use: they write
    observations into arrays of the caller's, and make no info dicts. A loop in Python is nearly twice as fast as
    gymnasium's SyncVectorEnv, and every observation, reward and flag is checked on the way.

    Each episode starts from a seed of its own, derived from (seed, index of the environment, number of the episode).

    Args:
        factories: one for each environment, each returning a new one.
        seed: of the run.

    Raises:
        SpaceError: the environments differ in their spaces, or a space has no fixed layout.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  gymnasium's own form

    def __init__(self, factories: Sequence[Callable[[], gymnasium.Env[Any, Any]]], seed: int = 0) -> None:
        if not factories:
            raise ValueError("a vector environment needs at least one environment, got none.")
        self.envs = [_made(factory, index) for index, factory in enumerate(factories)]
        first = self.envs[0]
        _require_alike(self.envs)
        self.num_envs = len(self.envs)
        self.spec, self.render_mode = first.spec, first.render_mode
        self.metadata = {**first.metadata, **type(self).metadata}
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)
        self._obs_spec = space_spec(first.observation_space)
        self._split = splitter(first.action_space)
        self._steps = [env.step for env in self.envs]
        self._seed(seed)

    def _seed(self, seed: int) -> None:
        self.run_seed = seed
        self.starts = [EpisodeStarts(env, seed, index) for index, env in enumerate(self.envs)]
        self._remember = [start.actions.append for start in self.starts]
        self.action_space.seed(seed)
        self._returns = np.zeros(self.num_envs)
        self._clock = 0
        self._begun_at = [0] * self.num_envs
        self._no = np.zeros(self.num_envs, np.bool_)
        self._no.flags.writeable = False
        self._flags_checked = False
        self.current: Any = None
        self.restarted: np.ndarray[Any, Any] | None = None
        self._info: tuple[dict[str, Any], ...] = ()

    # What rollouts use.

    def begin(self, out: Any, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode in every environment, and write the observations to `out`, nested arrays [B, ...].

        Args:
            seed: as if newly made with that seed; None goes on to each environment's next episode.
            options: for each `env.reset`.
        """
        if seed is not None:
            self._seed(seed)
        self._returns[:] = 0
        self._begun_at = [self._clock] * self.num_envs
        self._write([start.begin(options) for start in self.starts], out)
        self.current, self.restarted = out, np.ones(self.num_envs, np.bool_)

    def advance(self, action: Any, out: Any) -> Step:
        """Take nested actions [B, ...], and write the observations to act on next to `out`.

        Raises:
            EnvDataError: an observation, reward or flag of the wrong shape, type or range, or not finite.
            Exception: what an environment raised, with a note naming it, its step and its action.
        """
        obs, rewards, terminations, truncations = self._play(self._split(action))
        reward = self._rewards(rewards)
        self._returns += reward
        self._clock += 1
        self.current, self.restarted = out, None
        if True not in terminations and True not in truncations:
            self._write(obs, out)
            return Step(reward, self._no, self._no, {}, None, [])
        terminated, truncated = np.array(terminations, np.bool_), np.array(truncations, np.bool_)
        truncated &= ~terminated
        self.restarted = terminated | truncated
        obs = list(obs)
        final_obs: dict[int, Any] = {}
        finished: list[Episode] = []
        for index in self.restarted.nonzero()[0].tolist():
            final_obs[index] = self._checked_copy(obs[index], index)
            finished.append(self._finish(index))
            obs[index] = self.starts[index].begin()
        self._write(obs, out)
        return Step(reward, terminated, truncated, final_obs, None, finished)

    def _play(self, actions: list[Any]) -> Any:
        if len(actions) != self.num_envs:
            raise ValueError(f"{self.num_envs} environments want as many actions, got {len(actions)}.")
        results: list[Any] = []
        append = results.append
        try:
            for step, remember, action in zip(self._steps, self._remember, actions):
                remember(action)
                append(step(action))
        except Exception as error:
            self._explain(error, len(results), actions)
            raise
        try:
            obs, rewards, terminations, truncations, self._info = zip(*results)
        except ValueError:
            raise EnvDataError(
                f"an environment's step() returned {results[0]!r:.80}, it has to return {_STEP_PARTS}."
            ) from None
        if not self._flags_checked:
            self._check_flags(terminations + truncations)
        return obs, rewards, terminations, truncations

    def _rewards(self, rewards: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        reward: np.ndarray[Any, Any]
        try:
            reward = np.array(rewards, np.float32)
        except (TypeError, ValueError):
            reward = np.empty(0)
        if reward.shape != (self.num_envs,):
            index, value = next((i, r) for i, r in enumerate(rewards) if np.shape(r) != () or not _is_number(r))
            raise EnvDataError(f"environment {index} returned the reward {value!r:.60}: a reward is one number.")
        if not math.isfinite(sum(rewards)):
            require_finite(reward, "the reward")
        return reward

    def _check_flags(self, flags: tuple[Any, ...]) -> None:
        for index, flag in enumerate(flags):
            if not isinstance(flag, (bool, np.bool_)):
                name = "terminated" if index < self.num_envs else "truncated"
                raise EnvDataError(f"environment {index % self.num_envs} returned {name}={flag!r:.60}: it is True or False.")
        self._flags_checked = True

    def _checked_copy(self, obs: Any, index: int) -> Any:
        # A copy, because an environment may write its next episode's first observation into the same array.
        if type(obs) is np.ndarray and isinstance(self._obs_spec, Leaf):
            return to_leaf(obs, self._obs_spec, f"environment {index}, obs").copy()
        checked = to_spec(to_nested(self.single_observation_space, obs), self._obs_spec, f"environment {index}, obs")
        return map_leaves(np.copy, checked)

    def _finish(self, index: int) -> Episode:
        start = self.starts[index]
        total, length = float(self._returns[index]), self._clock - self._begun_at[index]
        self._returns[index], self._begun_at[index] = 0, self._clock
        return Episode(index, start.number, total, length, start.start.get("seed"), self._info[index])

    def _write(self, obs: Sequence[Any], out: Any) -> None:
        if isinstance(self._obs_spec, Leaf):
            _stack(obs, out, self._obs_spec)
        else:
            for index, one in enumerate(obs):
                nested = to_spec(to_nested(self.single_observation_space, one), self._obs_spec, f"environment {index}, obs")
                map_leaves(lambda column, leaf, row=index: column.__setitem__(row, leaf), out, nested)
        require_finite(out, "obs")

    def _explain(self, error: Exception, index: int, actions: list[Any]) -> None:
        start = self.starts[index]
        add_note(
            error,
            f"raised by environment {index} ({self.envs[index]}) in step {self._clock - self._begun_at[index]} of its episode "
            f"{start.number}, which began with {start.start if 'seed' in start.start else 'a kept state'}, at the action "
            f"{actions[index]!r}",
        )

    # What gymnasium's users know.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment; with a seed, as if newly made with that seed."""
        out = allocate(self._obs_spec, self.num_envs)
        self.begin(out, seed, options)
        return to_gymnasium(self.single_observation_space, out), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of each environment; those whose episode ends are reset, and `infos["final_obs"]` holds where it ended."""
        out = allocate(self._obs_spec, self.num_envs)
        step = self.advance(to_nested(self.single_action_space, actions), out)
        infos: dict[str, Any] = {}
        for index, info in enumerate(self._info):
            key = "final_info" if index in step.final_obs else None
            infos = self._add_info(infos, {key: info} if key else info, index)
        if step.final_obs:
            final = np.empty(self.num_envs, object)
            for index, obs in step.final_obs.items():
                final[index] = to_gymnasium(self.single_observation_space, obs)
            infos["final_obs"], infos["_final_obs"] = final, np.isin(np.arange(self.num_envs), list(step.final_obs))
        obs = to_gymnasium(self.single_observation_space, out)
        return obs, step.reward, step.terminated, step.truncated, infos

    def state_dict(self) -> dict[str, Any]:
        """Where each environment is: the start of its episode and what was done since; and the episode's statistics."""
        if self.current is None:
            return {"run_seed": self.run_seed, "current": None}
        state = {
            "run_seed": self.run_seed,
            "current": map_leaves(np.copy, self.current),
            "restarted": self.restarted,
            "episodes": [start.state_dict() for start in self.starts],
            "returns": self._returns.copy(),
            "lengths": [self._clock - begun for begun in self._begun_at],
        }
        return plain(state)  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring each environment back to where it was, by playing its episode again.

        Raises:
            EnvDataError: an environment does not come back to the same observation: it is not a function of its seed.
        """
        self._seed(int(state["run_seed"]))
        if state["current"] is None:
            return
        obs = [start.load_state_dict(arrays(one)) for start, one in zip(self.starts, state["episodes"], strict=True)]
        self._remember = [start.actions.append for start in self.starts]
        self.current = allocate(self._obs_spec, self.num_envs)
        self._write(obs, self.current)
        for (path, now), (_, then) in zip(flatten(self.current), flatten(arrays(state["current"]))):
            same = (now == then).reshape(self.num_envs, -1).all(axis=1)
            if not same.all():
                raise EnvDataError(
                    f"environment {int(np.argmin(same))} did not come back to its observation{'/'.join(('', *path))}: replayed "
                    "from its seed it went another way, so a saved run cannot go on in it."
                )
        self.restarted = arrays(state["restarted"])
        self._returns[:] = state["returns"]
        self._clock = max(state["lengths"])
        self._begun_at = [self._clock - length for length in state["lengths"]]

    def render(self) -> tuple[Any, ...]:
        """The frame of each environment."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close each environment."""
        for env in self.envs:
            env.close()


def _stack(obs: Sequence[Any], out: np.ndarray[Any, Any], leaf: Leaf) -> None:
    """Write B observations into [B, ...]: in one call where all are arrays as they should be, else each one checked."""
    try:
        if leaf.shape and {one.shape for one in obs} == {leaf.shape}:
            np.concatenate(obs, out=out.reshape(-1, *leaf.shape[1:]), casting="no")
            return
    except (AttributeError, TypeError):
        pass  # not arrays, or of another dtype: each on its own, to convert it or to say which is wrong
    for index, one in enumerate(obs):
        out[index] = to_leaf(one, leaf, f"environment {index}, obs")


def _made(factory: Callable[[], gymnasium.Env[Any, Any]], index: int) -> gymnasium.Env[Any, Any]:
    env = factory()
    if not isinstance(env, gymnasium.Env):
        raise TypeError(
            f"the factory of environment {index} returned a {type(env).__name__}, it has to return a new gymnasium.Env. "
            "Environments of the old gym need a shim such as shimmy."
        )
    return env


def _require_alike(envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
    first = envs[0]
    for index, env in enumerate(envs):
        if any(env.unwrapped is other.unwrapped for other in envs[:index]):
            raise ValueError(
                f"the factory of environment {index} returned an environment that is in use: make a new one each time."
            )
        if env.action_space != first.action_space or not same_layout(env.observation_space, first.observation_space):
            raise SpaceError(
                f"environment {index} has the spaces {env.observation_space}, {env.action_space}, environment 0 has "
                f"{first.observation_space}, {first.action_space}: all have to be alike."
            )


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
