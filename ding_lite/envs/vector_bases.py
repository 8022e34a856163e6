"""Base class of vector environments: gymnasium's vector API on top of the interface for rollouts."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ding_lite.basics import foreign_attributes
from ding_lite.data import allocate
from ding_lite.envs.changes import ChangeableEnvs
from ding_lite.envs.foreign_names import ATTRIBUTES
from ding_lite.envs.names import made_as
from ding_lite.envs.spaces import space_spec, to_gymnasium, to_nested
from ding_lite.envs.step_interfaces import Step


class Traits(NamedTuple):
    """Attributes that all environments of a vector environment share."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    spec: Any
    metadata: dict[str, Any]
    render_mode: str | None
    name: str
    made_as: dict[str, Any]

    @classmethod
    def of(cls, env: gymnasium.Env[Any, Any]) -> Traits:
        """The attributes of this environment."""
        spaces, made = (env.observation_space, env.action_space), made_as(env)
        return cls(*spaces, env.spec, dict(env.metadata), env.render_mode, made["name"], made)


@foreign_attributes(ATTRIBUTES)
class SameStepVectorEnv(VectorEnv[Any, Any, Any], ChangeableEnvs, abc.ABC):
    """B environments. Each is reset in the step that ends its episode.

    `reset` and `step` have gymnasium's API, with autoreset mode SAME_STEP. They call `begin` and `advance`, which rollouts use
    directly: these write observations into arrays of the caller, and create no joined info dicts.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  gymnasium's own form
    info_columns: tuple[str, ...] = ()
    """Keys of infos whose values a collector records."""
    first_env = 0
    """Index of its first environment, if it is one of several pieces."""
    idle: np.ndarray[Any, Any] | None = None
    """Always None: all environments take every action. See `Stepper.idle`."""
    made_as: dict[str, Any] | None
    """What the state says of these environments: see `names.made_as`. None for one of several pieces."""
    _info: tuple[dict[str, Any], ...]
    """Info of each environment from the last step or reset."""

    def _describe(self, num_envs: int, traits: Traits) -> None:
        self.num_envs = num_envs
        self.spec, self.render_mode, self.env_name = traits.spec, traits.render_mode, traits.name
        self.made_as = traits.made_as
        self.metadata = {**traits.metadata, **type(self).metadata}
        self.single_observation_space, self.single_action_space = traits.observation_space, traits.action_space
        self.observation_space = batch_space(traits.observation_space, num_envs)
        self.action_space = batch_space(traits.action_space, num_envs)
        self._obs_spec = space_spec(traits.observation_space)

    @abc.abstractmethod
    def begin(self, out: Any, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode in every environment, and write the observations to `out`, nested arrays [B, ...]."""

    @abc.abstractmethod
    def advance(self, action: Any, out: Any) -> Step:
        """Step with nested actions [B, ...], and write the next observations to `out`."""

    @abc.abstractmethod
    def step_info(self) -> dict[str, np.ndarray[Any, Any]]:
        """The columns [B, ...] of `info_columns` in the infos of the last step."""

    @property
    def infos(self) -> tuple[dict[str, Any], ...]:
        """The info of each environment from its last step or reset."""
        return self._info

    def new_obs(self) -> Any:
        """Arrays for the observations of all environments, nested [B, ...]."""
        return allocate(self._obs_spec, self.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment; with a seed, as if newly made with that seed."""
        out = self.new_obs()
        self.begin(out, seed, options)
        return to_gymnasium(self.single_observation_space, out), self._joined(self._info)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of each environment; finished episodes are reset, and `infos["final_obs"]` has their final observations."""
        out = self.new_obs()
        step = self.advance(to_nested(self.single_action_space, actions), out)
        infos = self._joined(self._info)
        for episode in step.finished:
            infos = self._add_info(infos, {"final_info": episode.info}, episode.env - self.first_env)
        if step.final_obs:
            final = np.empty(self.num_envs, object)
            for index, obs in step.final_obs.items():
                final[index] = to_gymnasium(self.single_observation_space, obs)
            infos["final_obs"], infos["_final_obs"] = final, np.isin(np.arange(self.num_envs), list(step.final_obs))
        obs = to_gymnasium(self.single_observation_space, out)
        return obs, step.reward, step.terminated, step.truncated, infos

    def _joined(self, each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for index, info in enumerate(each):
            infos = self._add_info(infos, dict(info), index)
        return infos
