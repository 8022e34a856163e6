"""Multi-agent rollouts: each policy acts for some agents, and gets its own rollout."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from ding_lite.basics import add_note, base_state
from ding_lite.data import RolloutArrays, Trajectories, allocate
from ding_lite.data.trees import map_leaves
from ding_lite.engine import WorkCancelled
from ding_lite.envs import INFO, AgentSlots, EpisodeResult, SpaceError, action_masks
from ding_lite.envs.agent_bases import MultiAgentVectorBase
from ding_lite.envs.saved_states import only_piece_of
from ding_lite.envs.spaces import column_limits
from ding_lite.envs.step_interfaces import Step
from ding_lite.metrics import MetricsLogger
from ding_lite.policy import ActMode
from ding_lite.rollout.collection import first_steps
from ding_lite.rollout.evaluation import EpisodeBudget
from ding_lite.rollout.final_masks import FinalMasks, last_step
from ding_lite.rollout.recurrent_states import RecurrentState


class MultiAgentRollout(NamedTuple):
    """A rollout of several policies."""

    trajectories: dict[str, Trajectories]
    """By policy: [T, B, ...] transitions, with one row per agent of the policy and environment, see `AgentSlots`."""

    episodes: list[EpisodeResult]
    """Episodes that ended during the rollout."""

    env_steps: int
    """Number of environment steps; all agents act in the same step."""


class MultiAgentWorker:
    """Several policies that act in multi-agent environments. Each rollout continues where the previous one ended.

    Each policy has its own random generator, derived from its name, even if seeds are equal.

    Args:
        env: from `make_multi_agent_envs`.
        policies: the acting mode of each policy, by name.
        policy_of: function or mapping from an agent to the name of its policy.

    Raises:
        TypeError: an argument is not of these types, or a policy is not an acting mode.
        ValueError: an agent has no policy, or a policy has no agent.
        SpaceError: the agents of a policy have different spaces, or the policy was made for other spaces.
    """

    def __init__(
        self, env: MultiAgentVectorBase, policies: Mapping[str, ActMode], policy_of: Callable[[Any], str] | Mapping[Any, str]
    ) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.actors = actors_for(env, policies, policy_of)
        """Actors by the name of the policy."""
        self._times = MetricsLogger(owner="the worker")
        for name, policy in policies.items():
            if env.info_columns and INFO in getattr(policy, "outputs", ()):
                raise ValueError(
                    f"the policy {name!r} returns the extra output {INFO!r}, and the environments record columns of infos "
                    "under this name: give the output another name."
                )

    def collect(self, num_steps: int, **kwargs: Any) -> MultiAgentRollout:
        """Act for `num_steps` steps in every environment.

        Args:
            **kwargs: for `compute_actions` of each policy.
        """
        if not self.env.is_begun:
            self.env.begin()
        actors = self.actors
        storages = {
            name: RolloutArrays(num_steps, one.slots.num_envs, one.slots.obs_spec, one.limits) for name, one in actors.items()
        }
        obs = {name: storage.obs_at(0) for name, storage in storages.items()}
        for name, one in actors.items():
            map_leaves(np.copyto, obs[name], one.slots.current)
            storages[name].begins = first_steps(one.slots.restarted, one.slots.num_envs)
        episodes: list[EpisodeResult] = []
        acting = stepping = 0
        with torch.inference_mode():
            for t in range(num_steps):
                begun = perf_counter_ns()
                outputs = self._act(obs, **kwargs)
                acted = perf_counter_ns()
                obs = {name: storage.obs_at(t + 1) for name, storage in storages.items()}
                episodes += self._advance(outputs, obs, t, storages)
                acting, stepping = acting + acted - begun, stepping + perf_counter_ns() - acted
        self._times.log_value(("time", "inference"), acting / 1e9)
        self._times.log_value(("time", "env_step"), stepping / 1e9)
        trajectories = {
            name: storage.trajectories(policy_version=np.full((num_steps, storage.num_envs), actors[name].policy.version))
            for name, storage in storages.items()
        }
        return MultiAgentRollout(trajectories, episodes, num_steps * self.num_envs)

    def play_episodes(
        self, count: int | Sequence[int], is_stopping: Callable[[], bool] = lambda: False, **settings: Any
    ) -> list[EpisodeResult]:
        """Run `count` episodes from their start, and return them by environment and number.

        Args:
            count: total number of episodes, split evenly; or the number for each environment; see `EpisodeBudget`.
            is_stopping: checked before each step; once it is true, the evaluation stops.
            **settings: for `compute_actions` of each policy, such as eps with modes that explore.

        Raises:
            WorkCancelled: `is_stopping()` became true.
            RuntimeError: an episode does not end within a million steps.
        """
        budget = EpisodeBudget(count, self.num_envs, self.env.first_env, env=self.env)
        episodes: list[EpisodeResult] = []
        self.env.begin()
        out = {name: allocate(one.slots.obs_spec, one.slots.num_envs) for name, one in self.actors.items()}
        with torch.inference_mode():
            for now in itertools.count(1):
                if budget.is_used_up:
                    break
                if is_stopping():
                    raise WorkCancelled("the run ended during an evaluation.")
                outputs = self._act({name: one.slots.current for name, one in self.actors.items()}, **settings)
                episodes += budget.count(self._advance(outputs, out), now)
        return sorted(episodes, key=lambda episode: (episode.env, episode.number))

    def _act(self, obs: Mapping[str, Any], **kwargs: Any) -> dict[str, dict[str, Any]]:
        """The outputs of each policy for its observations."""
        for one in self.actors.values():
            if one.recurrent_state.observed:
                self.env.describe_rows(one.slots)
        return {name: one.act(obs[name], **kwargs) for name, one in self.actors.items()}

    def _advance(
        self,
        outputs: Mapping[str, dict[str, Any]],
        out: Mapping[str, Any],
        t: int = 0,
        storages: Mapping[str, RolloutArrays] | None = None,
    ) -> list[EpisodeResult]:
        """One step with the actors' outputs, recorded as step t in the storages, if any. Returns episodes that ended."""
        taken = {name: one.policy.env_action(outputs[name]["action"]) for name, one in self.actors.items()}
        steps, finished = self.env.advance(taken, out)
        for name, one in self.actors.items():
            one.recurrent_state.observe_step(outputs[name]["action"], steps[name].reward)
            if storages is not None:
                one.require_final_choice(steps[name], out[name], finished, self.env)
                infos = {INFO: self.env.step_info(name)} if self.env.info_columns else {}
                storages[name].add(t, {**outputs[name], **infos}, *steps[name][:-1])
        return finished

    def reduce_metrics(self) -> list[dict[Any, Any]]:
        """What was logged since the last call, as results of `MetricsLogger.reduce()`.

        These are the metrics of each policy while acting, under its name, and the mean seconds per rollout in which the
        policies acted and in which the environments were stepped.
        """
        loggers = {name: getattr(one.policy, "metrics", None) for name, one in self.actors.items()}
        reduced = {name: logger.reduce() for name, logger in loggers.items() if isinstance(logger, MetricsLogger)}
        return [*({name: logged} for name, logged in reduced.items() if logged), self._times.reduce()]

    def get_weights(self) -> dict[str, Any]:
        """A copy of the weights with which each policy acted last, by name."""
        return {name: one.policy.get_weights() for name, one in self.actors.items()}

    def raw_state(self) -> dict[str, Any]:
        """The same as `state_dict`, with unchanged objects of recurrent states."""
        return {name: one.recurrent_state.raw_state() for name, one in self.actors.items()}

    @staticmethod
    def as_plain(raw_state: Mapping[str, Any]) -> dict[str, Any]:
        """A result of `raw_state` as plain data.

        Raises:
            TypeError: a recurrent state holds objects that a checkpoint cannot hold.
        """
        return {name: RecurrentState.as_plain(one) for name, one in raw_state.items()}

    def state_dict(self) -> dict[str, Any]:
        """The recurrent state of each policy; environments have their own state."""
        return self.as_plain(self.raw_state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, or a result of `raw_state`.

        Raises:
            ValueError: the state has other recurrent states, or another number of environments.
        """
        state = base_state(self, state, (*self.actors, "pieces"))
        if not isinstance(state.get("pieces"), Mapping):  # else it is the state of the policy with this name
            state = only_piece_of(state)
        for name, one in self.actors.items():
            one.recurrent_state.load_state_dict(state[name])


class Actor:
    """A policy that acts for its agents.

    Args:
        name: name of the policy.
        policy: its acting mode.
        slots: the rows of its agents.

    Raises:
        SpaceError: the policy was made for other spaces.
    """

    def __init__(self, name: str, policy: ActMode, slots: AgentSlots) -> None:
        self.policy, self.slots = policy, slots
        self._described = f"the policy {name!r}, which acts for {', '.join(map(str, slots.agents))}"
        try:
            policy.require_spaces(slots.single_observation_space, slots.single_action_space)
        except SpaceError as error:
            add_note(error, f"raised for {self._described}")
            raise
        self.limits = column_limits(slots.single_observation_space, slots.single_action_space)
        """Bounds of the columns of its rollouts."""
        self.recurrent_state = RecurrentState(policy, cast("Any", slots))
        """The recurrent state of each row."""
        self._masks = action_masks(slots.single_observation_space, slots.single_action_space)
        self._final_masks = FinalMasks.of(self._masks, policy)

    def act(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        """The policy's action and extra outputs for these observations [rows, ...], arrays by name.

        Args:
            **kwargs: for the policy's `compute_actions`.
        """
        try:
            if self._masks is not None:
                self._masks.require_choice(obs, self._name_of, self.slots.idle)
            return self.recurrent_state.act(obs, **kwargs)
        except Exception as error:
            add_note(error, f"raised by {self._described}")
            raise

    def require_final_choice(self, step: Step, obs: Any, finished: Sequence[EpisodeResult], env: MultiAgentVectorBase) -> None:
        """Raise an error if a truncated state allows no action, and the policy's targets need one.

        Args:
            step: the step of its rows, with the next observations `obs`.
            finished: episodes that ended with it.
            env: the environments.

        Raises:
            ActionMaskError: naming agent, environment and step.
        """

        def where(row: int) -> str:
            ended = last_step(finished, self.slots.rows[row][0])
            if not ended:  # other agents continue
                env.describe_rows(self.slots)
                episode = self.slots.running_episodes[row]
                ended = f" in step {episode.length - 1} of its episode {episode.number}"
            return f"{self._name_of(row)}{ended}"

        if self._final_masks is not None:
            self._final_masks.require(step.truncated, step.final_obs, obs, where)

    def _name_of(self, row: int) -> str:
        index, agent = self.slots.rows[row]
        return f"agent {agent!r} of environment {index}"


def actors_for(
    env: MultiAgentVectorBase, policies: Mapping[str, ActMode], policy_of: Callable[[Any], str] | Mapping[Any, str]
) -> dict[str, Actor]:
    """An actor for each policy, by name. Several policies get generators that differ, even if their seeds are equal.

    Raises:
        TypeError, ValueError, SpaceError: as for MultiAgentWorker.
    """
    if not isinstance(env, MultiAgentVectorBase):
        raise TypeError(f"expected environments of several agents, got {env!r:.80}: make them with make_multi_agent_envs(...).")
    for name, policy in policies.items():
        if not hasattr(policy, "require_spaces"):
            raise TypeError(
                f"the policy {name!r}, a {type(policy).__name__}, is not an acting mode: pass policy.collect_mode to a "
                "collector, policy.eval_mode to an evaluator."
            )
    slots_of = env.assign_slots(policy_of, tuple(policies))
    actors = {name: Actor(name, policy, slots_of[name]) for name, policy in policies.items()}
    if len(policies) > 1:
        for name, policy in policies.items():
            policy.reseed_for(name)
    return actors


AgentRollout = MultiAgentRollout  # its name in earlier versions
AgentWorker = MultiAgentWorker  # its name in earlier versions
