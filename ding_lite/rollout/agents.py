"""Rollouts of several agents: each policy acts for some of them, and has a rollout of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from ding_lite.basics import add_note
from ding_lite.data import RolloutBuffer, Trajectories, allocate, map_leaves
from ding_lite.engine import BrokenOff
from ding_lite.envs import AgentVectorEnv, Episode, Seat, SpaceError, column_limits
from ding_lite.metrics import MetricsLogger
from ding_lite.policy import ActMode
from ding_lite.rollout.evaluation import Quotas
from ding_lite.rollout.memories import Memory


class AgentRollout(NamedTuple):
    """A number of steps."""

    parts: dict[str, Trajectories]
    """By policy: [T, B, ...] transitions of its agents, with a row for each of them in each environment, see `Seat`."""

    episodes: list[Episode]
    """Those that ended on the way."""

    env_steps: int
    """Steps of environments, in each of which all agents act."""


class AgentWorker:
    """Several policies that act in environments of several agents. Its rollouts go on where the one before left off.

    Of several policies, each has random numbers of its own by its name, also where their seeds are the same.

    Args:
        env: from `make_agent_envs`.
        policies: the modes that act, by name.
        policy_of: from an agent to the name of its policy, a function or a mapping.

    Raises:
        TypeError: not such an environment, not a mode that acts, or neither a function nor a mapping.
        ValueError: an agent without a policy, or a policy without an agent.
        SpaceError: the agents of a policy differ in their spaces, or it was made for others.
    """

    def __init__(
        self, env: AgentVectorEnv, policies: Mapping[str, ActMode], policy_of: Callable[[Any], str] | Mapping[Any, str]
    ) -> None:
        if not isinstance(env, AgentVectorEnv):
            raise TypeError(f"environments of several agents are wanted, got {env!r:.80}: make them with make_agent_envs(...).")
        for name, policy in policies.items():
            if not hasattr(policy, "require_spaces"):
                raise TypeError(
                    f"the policy {name!r}, a {type(policy).__name__}, does not act by itself: pass policy.collect_mode to a "
                    "collector, policy.eval_mode to an evaluator."
                )
        self.env, self.num_envs = env, env.num_envs
        seats = env.seat(policy_of, tuple(policies))
        self.actors = {name: Actor(name, policy, seats[name]) for name, policy in policies.items()}
        """Who acts, by the name of the policy."""
        if len(policies) > 1:
            for name, policy in policies.items():
                policy.reseed_for(name)

    def collect(self, num_steps: int, **kwargs: Any) -> AgentRollout:
        """Act for `num_steps` steps in every environment.

        Args:
            **kwargs: for `compute_actions` of each policy.
        """
        if not self.env.is_begun:
            self.env.begin()
        actors = self.actors
        storages = {name: RolloutBuffer(num_steps, one.seat.num_envs, one.seat.obs_spec) for name, one in actors.items()}
        obs = {name: storage.obs_at(0) for name, storage in storages.items()}
        for name, one in actors.items():
            map_leaves(np.copyto, obs[name], one.seat.current)
        episodes: list[Episode] = []
        with torch.inference_mode():
            for t in range(num_steps):
                outputs = {name: one.act(obs[name], **kwargs) for name, one in actors.items()}
                obs = {name: storage.obs_at(t + 1) for name, storage in storages.items()}
                episodes += self._advance(outputs, obs, t, storages)
        parts = {
            name: storage.trajectories(
                policy_version=np.full((num_steps, storage.num_envs), actors[name].policy.version)
            ).within(column_limits(actors[name].seat.single_observation_space, actors[name].seat.single_action_space))
            for name, storage in storages.items()
        }
        return AgentRollout(parts, episodes, num_steps * self.num_envs)

    def play_episodes(self, count: int | Sequence[int], is_stopping: Callable[[], bool] = lambda: False) -> list[Episode]:
        """Play `count` episodes from their start, and return them by environment and number.

        Args:
            count: episodes, shared out evenly; or how many in each environment; see `Quotas`.
            is_stopping: asked before each step; once it is true, the evaluation is broken off.

        Raises:
            BrokenOff: it was.
            RuntimeError: an episode does not end within a million steps.
        """
        quotas = Quotas(count, self.num_envs)
        episodes: list[Episode] = []
        self.env.begin()
        out = {name: allocate(one.seat.obs_spec, one.seat.num_envs) for name, one in self.actors.items()}
        with torch.inference_mode():
            for now in itertools.count(1):
                if quotas.are_met:
                    break
                if is_stopping():
                    raise BrokenOff("the run ended during an evaluation.")
                outputs = {name: one.act(one.seat.current) for name, one in self.actors.items()}
                episodes += quotas.count(self._advance(outputs, out), now)
        return sorted(episodes, key=lambda episode: (episode.env, episode.number))

    def _advance(
        self,
        outputs: Mapping[str, dict[str, Any]],
        out: Mapping[str, Any],
        t: int = 0,
        storages: Mapping[str, RolloutBuffer] | None = None,
    ) -> list[Episode]:
        """One step with what the actors gave, recorded as step t where there are storages. Returns episodes that ended."""
        taken = {name: one.policy.env_action(outputs[name]["action"]) for name, one in self.actors.items()}
        parts, finished = self.env.advance(taken, out)
        for name, one in self.actors.items():
            one.memory.see(outputs[name]["action"], parts[name].reward)
            if storages is not None:
                storages[name].add(t, outputs[name], *parts[name][:-1])
        return finished

    def reduce_metrics(self) -> list[dict[Any, Any]]:
        """What each policy logged while it acted, since the last time, under its name."""
        loggers = {name: getattr(one.policy, "metrics", None) for name, one in self.actors.items()}
        reduced = {name: logger.reduce() for name, logger in loggers.items() if isinstance(logger, MetricsLogger)}
        return [{name: logged} for name, logged in reduced.items() if logged]

    def get_weights(self) -> dict[str, Any]:
        """A copy of the weights that each policy acted with last, by name."""
        return {name: one.policy.get_weights() for name, one in self.actors.items()}

    def state_dict(self) -> dict[str, Any]:
        """What each policy carries on for its agents; the environments have their own."""
        return {name: one.memory.state_dict() for name, one in self.actors.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as the worker did that gave this state.

        Raises:
            ValueError: it is of policies with other recurrent states, or of another number of environments.
        """
        for name, one in self.actors.items():
            one.memory.load_state_dict(state[name])


class Actor:
    """A policy that acts for its agents.

    Args:
        name: of the policy.
        policy: the mode that acts.
        seat: the rows of its agents.

    Raises:
        SpaceError: the policy was made for other spaces.
    """

    def __init__(self, name: str, policy: ActMode, seat: Seat) -> None:
        self.policy, self.seat = policy, seat
        self._described = f"the policy {name!r}, which acts for {', '.join(map(str, seat.agents))}"
        try:
            policy.require_spaces(seat.single_observation_space, seat.single_action_space)
        except SpaceError as error:
            add_note(error, f"raised for {self._described}")
            raise
        self.memory = Memory(policy, cast("Any", seat))
        """Its recurrent state in each row."""

    def act(self, obs: Any, **kwargs: Any) -> dict[str, Any]:
        """What the policy does about these observations [rows, ...]: action, and its other outputs, arrays by name.

        Args:
            **kwargs: for the policy's `compute_actions`.
        """
        try:
            return self.memory.act(obs, **kwargs)
        except Exception as error:
            add_note(error, f"raised by {self._described}")
            raise
