"""Adapters of vector environments of gymnasium and other libraries, in each of gymnasium's autoreset modes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import product
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from ding_lite.basics import seed_of
from ding_lite.data import LeafSpec, flatten
from ding_lite.data.trees import map_leaves
from ding_lite.envs.bounds import BoxBounds
from ding_lite.envs.env_data_checks import (
    EnvDataError,
    all_finite,
    require_finite,
    require_in_range,
    shown,
    to_element,
    to_leaf,
)
from ding_lite.envs.episode_starts import EpisodeResult
from ding_lite.envs.error_locations import EnvLocation, ErrorLocation, with_location
from ding_lite.envs.final_observations import FINAL_KEYS, FinalObservations
from ding_lite.envs.info_columns import InfoColumns, names_of
from ding_lite.envs.infos import own_info
from ding_lite.envs.names import name_of_envs
from ding_lite.envs.results import to_rewards
from ding_lite.envs.spaces import SpaceError, integer_bounds, space_spec, to_gymnasium, to_nested
from ding_lite.envs.step_interfaces import RunningEpisode, Step


class VectorEnvAdapter:
    """Steps any gymnasium VectorEnv, and returns the true final observation of every episode, in any autoreset mode.

    - SAME_STEP: `infos["final_obs"]` holds it.
    - NEXT_STEP: the step returns it; the next step is only a reset, and is marked as not valid.
    - DISABLED: the step returns it; the finished environments are reset here.

    Episode statistics are counted here, because gymnasium's wrapper loses them on partial resets.

    Raises:
        EnvDataError: the environment's metadata do not name its autoreset mode.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise EnvDataError(
                f"{env} does not say how it resets: env.metadata['autoreset_mode'] is {mode!r}, expected a member of "
                "gymnasium.vector.AutoresetMode. Set it to the mode of the environment."
            )
        self.env, self.mode, self.num_envs = env, mode, env.num_envs
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        self.action_space = env.action_space
        self._obs_spec, self._bounds = space_spec(env.single_observation_space), integer_bounds(env.single_observation_space)
        self._boxes = BoxBounds([env.single_observation_space] * env.num_envs)
        self._finals = FinalObservations(env, mode, self._obs_spec, self._bounds, self._boxes)
        self._batch_spec = map_leaves(lambda leaf: LeafSpec((self.num_envs, *leaf.shape), leaf.dtype), self._obs_spec)
        self._shape, self._all = (self.num_envs,), np.ones(self.num_envs, np.bool_)
        flat: Any = self._batch_spec if isinstance(self._batch_spec, LeafSpec) else (None, None)
        self._obs_shape, self._dtype = flat
        self._resetting: np.ndarray[Any, Any] | None = None
        self._returns = np.zeros(self.num_envs)  # of each running episode
        self._clock = 0
        self._begun_at, self._numbers = [0] * self.num_envs, [-1] * self.num_envs
        self._action: Any = None
        self._nested: Any = None
        self._seed: int | None = None
        self._resets: np.ndarray[Any, Any] | None = None
        self._next = 0
        self.current: Any = None
        self.last: tuple[Any, np.ndarray[Any, Any]] | None = None
        self.stepped_by: Any = None
        self.acted_by: Any = None
        self._ended: np.ndarray[Any, Any] = np.ones(self.num_envs, np.bool_)
        self._valid: np.ndarray[Any, Any] | None = None
        self._raw_infos: list[tuple[Any, Any]] = []  # infos of the environments that are true in a mask, the latest last
        self.info_columns: tuple[str, ...] = ()
        """Keys of infos whose values a collector records."""
        self._info_columns = InfoColumns(())
        self._finished: list[EpisodeResult] = []  # of the last step

    def record_infos(self, names: Sequence[str]) -> None:
        """Let collectors record these keys of the infos of steps as columns, `batch.info.NAME`; see `InfoColumns`.

        Raises:
            TypeError: not several names.
        """
        names = names_of(names, "record_infos")
        if names != self.info_columns:
            self.info_columns, self._info_columns = names, InfoColumns(names)

    def first_seed(self, seed: int) -> int | None:
        """The random seed for the first episodes: `seed`, or None if the environment was reset before.

        Warns if it was reset outside of this adapter, because then its seed is unknown.
        """
        if self._numbers[0] >= 0:
            return None
        base: Any = self.env.unwrapped
        if not any(_was_reset(one) for one in (base, *getattr(base, "envs", ()))):
            return seed
        warnings.warn(
            f"{self.env} was reset before the run, so the run does not seed it: pass it without a reset to seed it from the "
            f"seed of the policy, or reset it with a seed, env.reset(seed={seed}).",
            stacklevel=2,
        )
        return None

    def begin(self, out: Any, seed: int | None = None) -> None:
        """Begin an episode in every environment, and write the observations to `out`, nested arrays [B, ...]."""
        seed = None if seed is None else seed_of(seed, "reset(seed={})")
        pending = None
        try:
            if self._resetting is not None:
                pending = self._complete_resets()
            obs, infos = self.env.reset(seed=seed)
        except (Exception, SystemExit) as error:  # noqa: BLE001  user code; raised below
            raise with_location(error, ErrorLocation(f"{self.env}", f"{self.num_envs} environments"))  # noqa: B904  mostly it is the same
        self._raw_infos = [(infos, self._all)]
        self._resetting, self._valid = pending, None
        self._seed = self._seed if seed is None else seed
        self._numbers = [0 if seed is not None else number + 1 for number in self._numbers]
        self._returns[:] = 0
        self._begun_at = [self._clock + int(pending is not None and pending[index]) for index in range(self.num_envs)]
        self._resets = self._ended = np.ones(self.num_envs, np.bool_)
        self._next = 0
        try:
            self._write(obs, out)
        except EnvDataError as error:
            raise self._placed(error)  # noqa: B904  the same error
        self.current, self._ended = out, np.ones(self.num_envs, np.bool_)

    def _complete_resets(self) -> np.ndarray[Any, Any] | None:
        """Complete pending resets of gymnasium, which would happen after `reset`, by a step. Returns [B] bool: the environments
        whose episode ended in that step and that will be reset in the first step after `reset`; None if there are none."""
        _, _, terminations, truncations, _ = self.env.step(self._action)
        ended = np.array(terminations, np.bool_) | np.array(truncations, np.bool_)
        return ended if _resets_twice(self.env) and ended.any() else None

    def advance(self, action: Any, out: Any) -> Step:
        """Step with nested actions [B, ...], and write the next observations to `out`."""
        self._nested = action
        self._action = to_gymnasium(self.single_action_space, action) if type(action) is dict else action
        try:
            result = self.env.step(self._action)
        except (Exception, SystemExit) as error:  # noqa: BLE001  user code; raised below
            raise with_location(error, self._place_of_all())  # noqa: B904  mostly it is the same error
        self._clock += 1
        self._resets, self._next = None, 0
        try:
            return self._seen(result, out)
        except EnvDataError as error:
            raise self._placed(error)  # noqa: B904  the same error

    def _seen(self, result: Any, out: Any) -> Step:
        """The checked result of a step."""
        obs, rewards, terminations, truncations, infos = result
        self._raw_infos = [(infos, self._all)]
        reward = self._rewards(rewards)
        terminated, truncated = np.asarray(terminations, np.bool_), np.asarray(truncations, np.bool_)
        if not reward.shape == terminated.shape == truncated.shape == self._shape:
            raise EnvDataError(
                f"{self.env} returned reward {reward.shape}, terminated {terminated.shape}, truncated {truncated.shape}, "
                f"expected {self._shape} for each: correct the environment."
            )
        self._finals.require_kept()
        valid = None
        self._returns += reward
        if self._resetting is not None:
            valid = ~self._resetting
            terminated, truncated = terminated & valid, truncated & valid
            self._returns *= valid  # for the others, this step was only a reset
        truncated = truncated > terminated  # if both are set, termination counts
        ended = terminated | truncated
        # Which observations come from a reset, and by how many episodes they are ahead of `_numbers`.
        self._resets, self._next = (ended, 1) if self.mode is AutoresetMode.SAME_STEP else (self._resetting, 0)
        if type(obs) is np.ndarray and obs.dtype is self._dtype and obs.shape == self._obs_shape:
            out[...] = obs
            self._require_values(out)
        else:
            self._write(obs, out)
        indices = ended.nonzero()[0].tolist()
        finals: dict[int, Any] = {}
        finished: list[EpisodeResult] = []
        self._resetting, self._valid = None, valid
        if indices:
            self._resets = None
            if self.mode is AutoresetMode.DISABLED:  # the reset may change in place what the step returned
                reward, terminated, infos = reward.copy(), terminated.copy(), own_info(infos)
                self._raw_infos = [(infos, self._all)]
            finals = self._finals.of(indices, infos, out, self.current, self._where)
            if self.mode is AutoresetMode.NEXT_STEP:
                self._resetting = ended
            elif self.mode is AutoresetMode.DISABLED:
                self._reset(ended, indices, out)
            finished = self._finish(indices, infos)
        self._finished = finished
        self.current, self._ended, self.last, self.stepped_by = out, ended, None, None
        return Step(reward, terminated, truncated, finals, valid, finished)

    def _rewards(self, rewards: Any) -> np.ndarray[Any, Any]:
        """The rewards as float32; finite, if they have the right shape."""
        array = reward = np.asarray(rewards)
        if array.dtype.kind not in "biuf" and array.shape == self._shape:
            return to_rewards(tuple(array.tolist()))
        if array.dtype != np.float32:
            with np.errstate(over="ignore"):
                reward = np.asarray(array, np.float32)
        if reward.shape == self._shape and not all_finite(reward):
            to_rewards(tuple(array.tolist()))  # raises for the wrong one
        return reward

    def _placed(self, error: EnvDataError) -> BaseException:
        """The error with the place of its environment, or of all environments if its environment is unknown."""
        index = error.env
        if index is None:
            return with_location(error, self._place_of_all(taken=1))
        return with_location(error, self._place_of(index))

    def _where(self, index: int) -> tuple[str, str]:
        return f"environment {index}", self._place_of(index).sentence

    def _place_of(self, index: int) -> ErrorLocation:
        """The place of its last step, which `_clock` already includes, or of the reset that returned its observation."""
        is_reset = self._resets is not None and bool(self._resets[index])
        number = self._numbers[index] + (self._next if is_reset else 0)
        known = EnvLocation(index, name_of_envs(self.env), number, run_seed=self._seed)
        place = ErrorLocation(f"environment {index}", self._episode(number), known=known)
        if not is_reset:
            action = map_leaves(lambda leaf: np.asarray(leaf)[index], self._nested)
            place = place._replace(step=self._clock - self._begun_at[index] - 1, action=action)
        return place

    def _place_of_step(self, index: int) -> ErrorLocation:
        """The place of its last step, also if that step ended its episode."""
        length = next((episode.length for episode in self._finished if episode.env == index), None)
        number = self._numbers[index] - (length is not None)
        known = EnvLocation(index, name_of_envs(self.env), number, run_seed=self._seed)
        action = map_leaves(lambda leaf: np.asarray(leaf)[index], self._nested)
        step = (self._clock - self._begun_at[index] if length is None else length) - 1
        return ErrorLocation(f"environment {index}", self._episode(number), step=step, action=action, known=known)

    def _place_of_all(self, taken: int = 0) -> ErrorLocation:
        """The place of the joint step of all environments.

        Args:
            taken: 1 if `_clock` already includes the step.
        """
        steps = [self._clock - begun - taken for begun in self._begun_at]
        seeded = "" if self._seed is None else f", since reset(seed={self._seed})"
        if self.num_envs == 1:
            together = f"its only environment (step {steps[0]} of its episode {self._numbers[0]}{seeded})"
        else:
            together = (
                f"all its {self.num_envs} environments together (environments 0 to {self.num_envs - 1} were in the steps "
                f"{shown(steps, 200)} of the episodes {shown(self._numbers, 200)}{seeded})"
            )
        known = EnvLocation(None, name_of_envs(self.env), None, run_seed=self._seed)
        return ErrorLocation(f"{self.env}", "", self._clock - taken, self._nested, "actions", together=together, known=known)

    def _episode(self, number: int | None) -> str:
        seeded = "" if self._seed is None else f" since reset(seed={self._seed})"
        return f"next episodes{seeded}" if number is None else f"episode {number}{seeded}"

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, or read an attribute, if the vector environment can."""
        return tuple(self._method("call")(name, *args, **kwargs))

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment, if the vector environment can."""
        self._method("set_attr")(name, values)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment, if the vector environment can read it."""
        return tuple(self._method("get_attr")(name))

    def _method(self, name: str) -> Any:
        method = getattr(self.env, name, None)
        if not callable(method):
            raise TypeError(
                f"{self.env} of type {type(self.env).__name__} has no method {name!r} for its environments: make them with "
                "make_envs(), or give the vector environment this method."
            )
        return method

    @property
    def infos(self) -> list[dict[str, Any]]:
        """The info of each current observation."""
        latest = [next(infos for infos, mask in reversed(self._raw_infos) if mask[index]) for index in range(self.num_envs)]
        return [
            {name: value for name, value in _info_of(infos, index, self.num_envs).items() if name not in FINAL_KEYS}
            for index, infos in enumerate(latest)
        ]

    def step_info(self) -> dict[str, np.ndarray[Any, Any]]:
        """The columns [B, ...] of `info_columns` in the infos of the last step, where they are arrays [B, ...] by key.

        An array "_KEY" [B] says which environments have the key. The values of an episode's last step are in "final_info" if
        the same step has reset the environment. In a step that is only a reset, floats are NaN, and other values 0.

        Raises:
            EnvDataError: a value is missing, does not fit its column, or is not in such an array.
        """
        of_step = self._raw_infos[0][0]
        infos = self._wanted(of_step)
        if self.mode is AutoresetMode.SAME_STEP and self._ended.any():
            last = self._wanted(of_step.get("final_info", of_step))
            infos = [last[index] if ended else infos[index] for index, ended in enumerate(self._ended.tolist())]
        resets = () if self._valid is None else (~self._valid).nonzero()[0].tolist()
        for index in resets:
            infos[index] = {}
        try:
            columns = self._info_columns.gather(infos, resets)
        except EnvDataError as error:
            raise error if error.env is None else with_location(error, self._place_of_step(error.env))  # noqa: B904  the same error
        if self._numbers[0] > 0:
            self._info_columns.warn_of_missing(name_of_envs(self.env))
        return columns

    def _wanted(self, infos: Any) -> list[dict[str, Any]]:
        """The infos by environment, with columns of the wanted keys checked."""
        if not isinstance(infos, dict):
            return [{} for _ in range(self.num_envs)]
        for name in self.info_columns:
            column, mask = infos.get(name), infos.get(f"_{name}")
            for described, given in ((name, column), (f"_{name}", mask)):
                if given is not None and not (isinstance(given, np.ndarray) and given.shape[:1] == self._shape):
                    raise EnvDataError(
                        f"{self.env} returned infos in which {described!r} is {shown(given, 60)} of type "
                        f"{type(given).__name__}, expected an array with one row for each of its {self.num_envs} environments, "
                        f"and an array {'_' + name!r} of booleans if some have none: correct the environment, or leave "
                        f"{name!r} out of info_columns."
                    )
        return [
            {str(name): value for name, value in _info_of(infos, index, self.num_envs).items()}
            for index in range(self.num_envs)
        ]

    @property
    def running_episodes(self) -> list[RunningEpisode]:
        """The current episode of each environment."""
        rows = zip(self._numbers, self._begun_at, self._returns.tolist())
        return [
            RunningEpisode(index, number, max(0, self._clock - begun), total)
            for index, (number, begun, total) in enumerate(rows)
        ]

    @property
    def restarted(self) -> np.ndarray[Any, Any] | None:
        """[B] bool: whether `current` is the start of an episode, or the next step will be."""
        return self._ended if self._valid is None else self._ended | ~self._valid

    @property
    def idle(self) -> np.ndarray[Any, Any] | None:
        """[B] bool: whether the next step is only a reset, which ignores its action; None if all are False."""
        return self._resetting

    def _reset(self, ended: np.ndarray[Any, Any], indices: list[int], out: Any) -> None:
        """Reset the environments whose episode ended, and write their observations to `out`."""
        self._resets, self._next = ended, 1
        try:
            # gymnasium pops the key: a new dict each time
            obs, begun = self.env.reset(options={"reset_mask": ended.copy()})
        except (Exception, SystemExit) as error:  # noqa: BLE001  user code; raised below
            who = f"{self.env}, of its environments {shown(indices, 200)},"
            raise with_location(error, ErrorLocation(who, self._episode(None)))  # noqa: B904  mostly it is the same error
        self._raw_infos.append((begun, ended))
        self._write(obs, out)

    def _finish(self, indices: list[int], infos: dict[str, Any]) -> list[EpisodeResult]:
        last = infos.get("final_info", infos)
        begins = self._clock + (self.mode is AutoresetMode.NEXT_STEP)
        finished = []
        for index in indices:
            # A copy, because an environment may return the same arrays in each step.
            info = own_info(_info_of(last, index, self.num_envs)) if last else {}
            length = self._clock - self._begun_at[index]
            finished.append(EpisodeResult(index, self._numbers[index], float(self._returns[index]), length, None, info))
            self._returns[index], self._begun_at[index] = 0, begins
            self._numbers[index] += 1
        return finished

    def _write(self, obs: Any, out: Any) -> None:
        try:
            batch = to_element(self.single_observation_space, obs, self._batch_spec, "obs")
        except EnvDataError:
            self._require_rows(obs)
            raise
        map_leaves(np.copyto, out, batch)
        self._require_values(out)

    def _require_values(self, out: Any) -> None:
        require_finite(out, "obs")
        require_in_range(out, self._bounds, "obs")
        self._boxes.check(out, self._where)

    def _require_rows(self, obs: Any) -> None:
        """Check row by row, if there is one row per environment, so that the message names the environment."""
        try:
            batch = dict(flatten(to_nested(self.single_observation_space, obs)))
            specs = dict(flatten(self._obs_spec))
        except SpaceError:
            return
        for (path, leaf), index in product(batch.items(), range(self.num_envs)):
            if np.shape(leaf) == (self.num_envs, *specs[path].shape):
                to_leaf(leaf[index], specs[path], f"environment {index}, obs{''.join(f'[{name!r}]' for name in path)}", index)


def _was_reset(env: Any) -> bool:
    """Whether an environment was reset; without a layer that knows it, whether it has drawn random numbers or got a seed.

    Of random numbers alone, it is unknown whether `reset` or the constructor has drawn them.
    """
    layer = env
    while layer is not None:
        known = getattr(layer, "has_reset", None)
        if isinstance(known, bool):
            return known
        layer = getattr(layer, "env", None) if isinstance(layer, gymnasium.Wrapper) else None
    return getattr(getattr(env, "unwrapped", env), "_np_random", None) is not None


def _resets_twice(env: Any) -> bool:
    """Whether environments whose episode ended are reset in the next step although `reset` was called: those of an
    AsyncVectorEnv without shared memory."""
    base = env.unwrapped
    return isinstance(base, AsyncVectorEnv) and not getattr(base, "shared_memory", True)


def _info_of(infos: Any, index: int, count: int) -> dict[str, Any]:
    """The info of one environment from a vector environment's infos: the columns whose mask includes it, also nested ones.

    Args:
        infos: arrays [B, ...] and dicts of them; other values, and nested arrays that are not one row for each environment, are
            left out.
        index: of the environment.
        count: B, for nested infos.
    """
    if not isinstance(infos, dict):
        return {}
    found: dict[str, Any] = {}
    for key, value in infos.items():
        is_nested = isinstance(value, dict) and key not in FINAL_KEYS
        if key.startswith("_") or not (is_nested or isinstance(value, np.ndarray)):
            continue
        if f"_{key}" in infos and not infos[f"_{key}"][index]:
            continue
        if is_nested:
            if nested := _info_of(value, index, count):
                found[key] = nested
        elif value.shape[:1] == (count,):
            found[key] = value[index]
    return found
