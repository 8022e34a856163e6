"""Local workers: B environments and a policy that acts in them, T steps at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ding_lite.basics import arrays, plain
from ding_lite.data import RolloutBuffer, allocate, map_leaves
from ding_lite.envs import EpisodeResult, Step, VectorEnvAdapter, column_limits, episode_seed, space_spec, stepper
from ding_lite.metrics import MetricsLogger
from ding_lite.policy import ActMode, EvalMode
from ding_lite.rollout.evaluation import play_episodes
from ding_lite.rollout.random_actions import RandomActions
from ding_lite.rollout.recurrent_states import RecurrentState
from ding_lite.rollout.rollout_results import NO_POLICY, EpisodeRollout, Rollout, collect_episodes


class LocalWorker:
    """Acts in environments of this process. Each rollout continues where the previous one ended.

    Args:
        env: any gymnasium vector environment.
        policy: the acting mode.

    Raises:
        SpaceError: the policy was made for other spaces.
        TypeError: not an acting mode, or not a vector environment.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], policy: ActMode) -> None:
        self.require_fit(env, policy)
        self.env, self.policy = stepper(env), policy
        self.num_envs: int = env.num_envs
        self.first_env: int = getattr(env, "first_env", 0)
        """Index of its first environment, if it is one of several workers."""
        self.obs_spec = space_spec(env.single_observation_space)
        self.limits = column_limits(env.single_observation_space, env.single_action_space)
        recurrent_state = RecurrentState(policy, self.env)
        self._recurrent_state = recurrent_state if recurrent_state.is_needed else None
        self._random_actions = RandomActions(env, policy.seed + self.first_env)

    @staticmethod
    def require_fit(env: VectorEnv[Any, Any, Any], policy: ActMode) -> None:
        """Refuse anything but an acting mode, and environments with spaces other than the policy's.

        Raises:
            TypeError, SpaceError
        """
        if not hasattr(policy, "require_spaces"):
            raise TypeError(
                f"a {type(policy).__name__} does not act by itself: pass policy.collect_mode to a collector, policy.eval_mode "
                "to an evaluator."
            )
        stepper(env)
        policy.require_spaces(env.single_observation_space, env.single_action_space)

    def begin(self, seed: int | None = None) -> None:
        """Begin an episode in every environment, with this seed where one is given; a rollout does so where none was begun.

        Environments made elsewhere that nobody has seeded begin with a seed of the policy's, another one to collect than to
        evaluate.
        """
        if seed is None and isinstance(self.env, VectorEnvAdapter):
            own = self.policy.seed
            seed = self.env.first_seed(episode_seed(own, 0, 0) if isinstance(self.policy, EvalMode) else own)
        self.env.begin(allocate(self.obs_spec, self.num_envs), seed)

    def act(self, obs: Any, random: bool = False, **kwargs: Any) -> dict[str, Any]:
        """The policy's action and extra outputs for these observations [B, ...], arrays by name.

        Args:
            random: sample actions from the action space instead. A policy with extra outputs still computes these;
                log_prob is that of the sampled actions.
            **kwargs: for the policy's `compute_actions`.

        Returns:
            action; for a recurrent policy, `state_in_0`, `state_out_0` and so on, the state before and after; and its
            extra outputs.
        """
        if random:
            return self._act_at_random(obs, **kwargs)
        if self._recurrent_state is not None:
            return self._recurrent_state.act(obs, **kwargs)
        action, _, outputs = self.policy.forward(obs, **kwargs)
        return {"action": action, **outputs} if outputs else {"action": action}

    def _act_at_random(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        action, recurrent_state = self._random_actions.draw(), self._recurrent_state
        if not getattr(self.policy, "outputs", ()):  # the policy has nothing else to compute
            return {"action": action} if recurrent_state is None else recurrent_state.pass_through(action)
        outputs = {**self.act(obs, **kwargs), "action": action}
        if "log_prob" in outputs:
            outputs["log_prob"] = self._random_actions.log_prob(action)
        return outputs

    def step(self, outputs: Mapping[str, Any], out: Any) -> Step:
        """Step with the outputs of `act`, and write the next observations to `out`, nested arrays [B, ...]."""
        action = outputs["action"]
        step = self.env.advance(self.policy.env_action(action), out)
        if self._recurrent_state is not None:
            self._recurrent_state.observe_step(action, step.reward)
        return step

    def collect(self, num_steps: int, random: bool = False, **kwargs: Any) -> Rollout:
        """Act for `num_steps` steps in every environment.

        Args:
            random: sample actions from the action space instead of the policy.
            **kwargs: for the policy's `compute_actions`.
        """
        return self._collect(num_steps, lambda obs: self.act(obs, random, **kwargs), random)

    def collect_episodes(self, count: int | Sequence[int], random: bool = False, **kwargs: Any) -> EpisodeRollout:
        """Act for `count` whole episodes, or the given number in each environment; see `collect_episodes`.

        Args:
            random: sample actions from the action space instead of the policy.
            **kwargs: for the policy's `compute_actions`.
        """
        return collect_episodes(self, count, random, **kwargs)

    def play_episodes(self, count: int | Sequence[int], is_stopping: Callable[[], bool] = lambda: False) -> list[EpisodeResult]:
        """Run `count` episodes, or the given number in each environment; see `ding_lite.rollout.play_episodes`."""
        return play_episodes(self, count, is_stopping)

    def reduce_metrics(self) -> list[dict[Any, Any]]:
        """The metrics that the policy logged while acting, since the last call: the `MetricsLogger.reduce()` of each copy."""
        metrics = getattr(self.policy, "metrics", None)  # a mode of another library may have none
        return [metrics.reduce()] if isinstance(metrics, MetricsLogger) else []

    def get_weights(self) -> dict[str, torch.Tensor]:
        """A copy of the weights that acted last."""
        return self.policy.get_weights()

    def raw_state(self) -> dict[str, Any]:
        """The same as `state_dict`, with unchanged objects of a recurrent state."""
        recurrent_state = None if self._recurrent_state is None else self._recurrent_state.raw_state()
        return {"memory": recurrent_state, "random": self._random_actions.state_dict()}

    @staticmethod
    def as_plain(raw_state: Mapping[str, Any]) -> dict[str, Any]:
        """The result of `carried` as plain data.

        Raises:
            TypeError: a recurrent state holds objects that a checkpoint cannot hold.
        """
        recurrent_state = None if raw_state["memory"] is None else RecurrentState.as_plain(raw_state["memory"])
        return {"memory": recurrent_state, "random": plain(raw_state["random"])}

    def state_dict(self) -> dict[str, Any]:
        """The recurrent state in each environment, and the generator of random actions; environments have their own state.

        Raises:
            TypeError: a recurrent state holds objects that a checkpoint cannot hold.
        """
        return self.as_plain(self.raw_state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, or a result of `carried`.

        Raises:
            ValueError: the state has another recurrent state, or another number of environments.
        """
        if self._recurrent_state is not None:
            self._recurrent_state.load_state_dict(state["memory"] or {"state": [], "last": None})
        self._random_actions.load_state_dict(arrays(state["random"]))

    def complete_step(self, outputs: dict[str, Any]) -> Rollout:
        """Take one step with the outputs of `act` for the current observations: a rollout of T = 1."""
        return self._collect(1, lambda obs: outputs)

    def _collect(self, num_steps: int, act: Callable[[Any], dict[str, Any]], random: bool = False) -> Rollout:
        if self.env.current is None:
            self.begin()
        storage = RolloutBuffer(num_steps, self.num_envs, self.obs_spec)
        obs_at, add, advance, env_action = storage.obs_at, storage.add, self.env.advance, self.policy.env_action
        recurrent_state = self._recurrent_state
        obs = obs_at(0)
        map_leaves(np.copyto, obs, self.env.current)
        episodes: list[EpisodeResult] = []
        with torch.inference_mode():
            for t in range(num_steps):
                outputs = act(obs)
                obs = obs_at(t + 1)
                reward, terminated, truncated, final_obs, valid, finished = advance(env_action(outputs["action"]), obs)
                if recurrent_state is not None:
                    recurrent_state.observe_step(outputs["action"], reward)
                add(t, outputs, reward, terminated, truncated, final_obs, valid)
                if finished:
                    episodes += finished
        version = NO_POLICY if random else self.policy.version
        trajectories = storage.trajectories(policy_version=np.full((num_steps, self.num_envs), version))
        return Rollout(trajectories.with_limits(self.limits), episodes)
