"""Vector environments made elsewhere, in each of gymnasium's autoreset modes.

Room: ding_lite.envs, floor 2. Imports data and the room's other files.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from ding_lite.data import Leaf, flatten, map_leaves
from ding_lite.envs.checks import EnvDataError, require_finite, require_in_range, to_element
from ding_lite.envs.episodes import Episode
from ding_lite.envs.results import final_obs
from ding_lite.envs.spaces import integer_bounds, space_spec, to_gymnasium, to_nested
from ding_lite.envs.steps import Step


class ForeignStepper:
    """Steps any gymnasium VectorEnv, and gives the true last observation of every episode, whatever its autoreset mode.

    - SAME_STEP: `infos["final_obs"]` holds it.
    - NEXT_STEP: the step returns it; the step after that is only a reset, and is marked as not valid.
    - DISABLED: the step returns it; the environments concerned are reset here.

    Episode statistics are counted here: gymnasium's wrapper loses them on partial resets.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise EnvDataError(
                f"{env} does not say how it resets: env.metadata['autoreset_mode'] is {mode!r}. Set it to the member of "
                "gymnasium.vector.AutoresetMode that describes the environment."
            )
        self.env, self.mode, self.num_envs = env, mode, env.num_envs
        self.single_observation_space, self.single_action_space = env.single_observation_space, env.single_action_space
        self.action_space = env.action_space
        self._obs_spec, self._bounds = space_spec(env.single_observation_space), integer_bounds(env.single_observation_space)
        self._batch_spec = map_leaves(lambda leaf: Leaf((self.num_envs, *leaf.shape), leaf.dtype), self._obs_spec)
        self._shape = (self.num_envs,)
        flat: Any = self._batch_spec if isinstance(self._batch_spec, Leaf) else (None, None)
        self._obs_shape, self._dtype = flat
        self._resetting: np.ndarray[Any, Any] | None = None
        self._returns = np.zeros(self.num_envs)  # of each running episode
        self._clock = 0
        self._begun_at, self._numbers = [0] * self.num_envs, [-1] * self.num_envs
        self._action: Any = None
        self._lent: list[tuple[Any, Any]] = []
        self.current: Any = None
        self.last: tuple[Any, np.ndarray[Any, Any]] | None = None
        self._ended: np.ndarray[Any, Any] = np.ones(self.num_envs, np.bool_)
        self._valid: np.ndarray[Any, Any] | None = None

    def begin(self, out: Any, seed: int | None = None) -> None:
        """Begin an episode in every environment, and write the observations to `out`, nested arrays [B, ...]."""
        if self._resetting is not None:
            self.env.step(self._action)  # lets gymnasium do the resets it still owes, or it would do them after this one
        obs, _ = self.env.reset(seed=seed)
        self._resetting = self._valid = None
        self._numbers = [0 if seed is not None else number + 1 for number in self._numbers]
        self._returns[:] = 0
        self._begun_at = [self._clock] * self.num_envs
        self._write(obs, out)
        self.current, self._ended = out, np.ones(self.num_envs, np.bool_)

    def advance(self, action: Any, out: Any) -> Step:
        """Take nested actions [B, ...], and write the observations to act on next to `out`."""
        self._action = to_gymnasium(self.single_action_space, action) if type(action) is dict else action
        obs, rewards, terminations, truncations, infos = self.env.step(self._action)
        reward = np.asarray(rewards, np.float32)
        terminated, truncated = np.asarray(terminations, np.bool_), np.asarray(truncations, np.bool_)
        if not reward.shape == terminated.shape == truncated.shape == self._shape:
            raise EnvDataError(
                f"{self.env} returned reward {reward.shape}, terminated {terminated.shape}, truncated {truncated.shape}: each "
                f"has to be {self._shape}."
            )
        require_finite(reward, "the reward")
        if self._lent:
            self._check_lent()
        valid = None
        self._returns += reward
        self._clock += 1
        if self._resetting is not None:
            valid = ~self._resetting
            terminated, truncated = terminated & valid, truncated & valid
            self._returns *= valid  # the step of the others only began their next episode
        if type(obs) is np.ndarray and obs.dtype is self._dtype and obs.shape == self._obs_shape:
            out[...] = obs
            require_finite(out, "obs")
            require_in_range(out, self._bounds, "obs")
        else:
            self._write(obs, out)
        truncated = truncated > terminated  # where both are claimed, the task itself ended
        ended = terminated | truncated
        indices = ended.nonzero()[0].tolist()
        finals: dict[int, Any] = {}
        finished: list[Episode] = []
        self._resetting, self._valid = None, valid
        if indices:
            finals = self._finals(ended, indices, infos, out)
            finished = self._finish(indices, infos)
        self.current, self._ended, self.last = out, ended, None
        return Step(reward, terminated, truncated, finals, valid, finished)

    @property
    def restarted(self) -> np.ndarray[Any, Any] | None:
        """[B] bool: whose episode `current` begins, or is about to."""
        return self._ended if self._valid is None else self._ended | ~self._valid

    def _finals(self, ended: np.ndarray[Any, Any], indices: list[int], infos: dict[str, Any], out: Any) -> dict[int, Any]:
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resetting = ended
            return {}
        if self.mode is AutoresetMode.DISABLED:
            finals = {index: map_leaves(lambda column, row=index: np.copy(column[row]), out) for index in indices}
            obs, _ = self.env.reset(options={"reset_mask": ended.copy()})  # gymnasium pops the key: a new dict each time
            self._write(obs, out)
            return finals
        found = infos.get("final_obs", infos.get("final_observation"))
        if found is None:
            raise EnvDataError(f"{self.env} resets in the same step, but its infos hold no 'final_obs'.")
        finals = {}
        for index in indices:
            finals[index] = final_obs(
                found[index], index, self.single_observation_space, self._obs_spec, self._bounds, "final obs"
            )
            lent = to_nested(self.single_observation_space, found[index])
            self._refuse_overwritten(index, finals[index], out)
            self._lent.append((lent, finals[index]))
        return finals

    def _refuse_overwritten(self, index: int, final: Any, out: Any) -> None:
        """An environment that writes every observation into one array hands out the reset one as the final one.

        One that really ends where it begins is refused too: nothing tells them apart where the arrays came by a pipe.
        """
        began, before = dict(flatten(out)), dict(flatten(self.current))
        for path, leaf in flatten(final):
            as_reset = leaf.ndim and leaf.size and np.array_equal(leaf, began[path][index])
            if as_reset and not np.array_equal(leaf, before[path][index]):
                raise EnvDataError(self._overwritten(f"environment {index}"))

    def _check_lent(self) -> None:
        for lent, copy in self._lent:
            if any(not np.array_equal(one, dict(flatten(copy))[path]) for path, one in flatten(lent)):
                raise EnvDataError(self._overwritten("an environment"))
        self._lent.clear()

    def _overwritten(self, who: str) -> str:
        return (
            f"{who} of {self.env} seems to end where its next episode begins: it writes all observations into one array, and "
            "the last one is lost. Return a new array each step, take another autoreset_mode, or use make_envs()."
        )

    def _finish(self, indices: list[int], infos: dict[str, Any]) -> list[Episode]:
        last = infos.get("final_info", infos)
        begins = self._clock + (self.mode is AutoresetMode.NEXT_STEP)
        finished = []
        for index in indices:
            info = _info_of(last, index) if last else {}
            length = self._clock - self._begun_at[index]
            finished.append(Episode(index, self._numbers[index], float(self._returns[index]), length, None, info))
            self._returns[index], self._begun_at[index] = 0, begins
            self._numbers[index] += 1
        return finished

    def _write(self, obs: Any, out: Any) -> None:
        map_leaves(np.copyto, out, to_element(self.single_observation_space, obs, self._batch_spec, "obs"))
        require_finite(out, "obs")
        require_in_range(out, self._bounds, "obs")


def _info_of(infos: Any, index: int) -> dict[str, Any]:
    """What a vector environment's infos say of one environment: the columns whose mask has it."""
    if not isinstance(infos, dict):
        return {}
    columns = {key: value for key, value in infos.items() if isinstance(value, np.ndarray) and not key.startswith("_")}
    return {key: value[index] for key, value in columns.items() if f"_{key}" not in infos or infos[f"_{key}"][index]}
