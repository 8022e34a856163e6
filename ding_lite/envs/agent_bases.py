"""Agent bases: the agents of multi-agent environments, their spaces, and their policies."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ding_lite.basics import did_you_mean
from ding_lite.data import Spec, flatten
from ding_lite.data.state_checks import require_integer, require_state, state_error
from ding_lite.envs.agent_slots import AgentSlots
from ding_lite.envs.changes import ChangeableEnvs
from ding_lite.envs.episode_starts import EpisodeResult
from ding_lite.envs.saved_states import require_episodes, require_returns, require_rows, require_unbegun
from ding_lite.envs.spaces import SpaceError, hidden_difference, same_layout
from ding_lite.envs.step_interfaces import Step

AgentSpaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
"""Observation space and action space of an agent."""

_KIND = "vector environment of several agents"

AGENT_ENV_KEYS = ("run_seed", "seats", "episodes", "returns", "changes", "info_columns", "pieces", "made_as")
"""All keys that the state of vector environments of several agents may have."""


class MultiAgentStep(NamedTuple):
    """One step of N environments."""

    steps: dict[str, Step]
    """The step for each policy, with rows as in `AgentSlots`, without finished episodes."""

    finished: list[EpisodeResult]
    """Episodes that ended with this step: `return_` is the sum over agents, `info["return"]` the return of each agent,
    `info["policy_return"]` the mean return of the agents of each policy, and `info["info"]` the last info of each agent."""


class MultiAgentVectorBase(ChangeableEnvs):
    """N copies of a multi-agent environment, whose agents are assigned to policies.

    Args:
        num_envs: N.
        seed: random seed of the run.
        spaces: observation space and action space of each agent that may take part.
        info_columns: keys of infos whose values a collector records.
    """

    first_env = 0
    """Index of its first environment, if it is one of several pieces."""
    made_as: dict[str, Any] | None
    """What the state says of these environments: see `names.made_as`. None for one of several pieces."""

    def __init__(self, num_envs: int, seed: int, spaces: Mapping[Any, AgentSpaces], info_columns: Sequence[str] = ()) -> None:
        self.num_envs, self.run_seed, self.info_columns = num_envs, seed, tuple(info_columns)
        self.possible_agents = tuple(spaces)
        """All agents that may take part."""
        self.slots_of: dict[str, AgentSlots] = {}
        """The rows of each policy, since `assign_slots`."""
        self._spaces_of = spaces

    def observation_space(self, agent: Any) -> gymnasium.Space[Any]:
        """Observation space of this agent."""
        return self._spaces(agent)[0]

    def action_space(self, agent: Any) -> gymnasium.Space[Any]:
        """Action space of this agent."""
        return self._spaces(agent)[1]

    def _spaces(self, agent: Any) -> AgentSpaces:
        if agent not in self._spaces_of:
            known = {str(one) for one in self._spaces_of}
            raise ValueError(
                f"there is no agent {agent!r}{did_you_mean(str(agent), known)} There are {', '.join(sorted(known))}."
            )
        return self._spaces_of[agent]

    def assign_slots(self, policy_of: Callable[[Any], str] | Mapping[Any, str], names: Sequence[str]) -> dict[str, AgentSlots]:
        """Assign each agent to a policy. The assignment is permanent; a second call with the same one returns the same rows.

        Args:
            policy_of: function or mapping from an agent to the name of its policy.
            names: names of the policies.

        Raises:
            TypeError: `policy_of` is neither a function nor a mapping.
            ValueError: an agent has none of these policies, a policy has no agent, or the assignment differs from the first
                one.
            SpaceError: the agents of one policy have different spaces.
        """
        name_of = policy_of.get if isinstance(policy_of, Mapping) else policy_of
        if not callable(name_of):
            raise TypeError(
                "policy_of wants a function from an agent to the name of its policy, or a dict of these names by agent, got "
                f"{policy_of!r:.80} of type {type(policy_of).__name__}."
            )
        agents: dict[str, list[Any]] = {name: [] for name in names}
        for agent in self.possible_agents:
            name = name_of(agent)
            if name not in agents:
                near = did_you_mean(str(name), names)
                raise ValueError(f"policy_of({agent!r}) returned {name!r}, but the policies are {', '.join(names)}{near}")
            agents[name].append(agent)
        slots_of = {name: self._make_slots(name, members) for name, members in agents.items()}
        before, now = ({name: slots.agents for name, slots in each.items()} for each in (self.slots_of, slots_of))
        if self.slots_of and before != now:
            raise ValueError(
                f"these environments have the policies {before}, got {now}: make new environments with make_multi_agent_envs()."
            )
        self.slots_of = self.slots_of or slots_of
        return self.slots_of

    def _make_slots(self, name: str, agents: Sequence[Any]) -> AgentSlots:
        if not agents:
            known = ", ".join(map(str, self.possible_agents))
            raise ValueError(f"policy_of() assigns no agent to the policy {name!r}: remove the policy. The agents are {known}.")
        observation_space, action_space = self._spaces(agents[0])
        for agent in agents[1:]:
            one, other = self._spaces(agent)
            if other != action_space or not same_layout(one, observation_space):
                hidden = hidden_difference(observation_space, one) + hidden_difference(action_space, other)
                raise SpaceError(
                    f"the agents {agents[0]!r} and {agent!r} of the policy {name!r} have the spaces {observation_space}, "
                    f"{action_space} and {one}, {other}{hidden}: assign agents with different spaces to different policies."
                )
        return AgentSlots(agents, observation_space, action_space, self.num_envs, self.first_env)

    @property
    def is_begun(self) -> bool:
        """Whether there are observations to act on."""
        return bool(self.slots_of) and all(slots.current is not None for slots in self.slots_of.values())

    @abc.abstractmethod
    def begin(self, seed: int | None = None) -> None:
        """Begin an episode in every environment; with a seed, as if newly made with that seed."""

    @abc.abstractmethod
    def advance(self, actions: Mapping[str, Any], out: Mapping[str, Any]) -> MultiAgentStep:
        """Step with the actions of each policy, nested [rows, ...], and write the next observations to `out` in the same form.

        Raises:
            gymnasium.error.ResetNeeded: `begin` was not called.
            EnvDataError: an environment returned data that its spaces or its API do not allow.
            Exception: the error of an environment, with a note that names the environment, its step and the actions.
        """

    @abc.abstractmethod
    def step_info(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        """The columns of `info_columns` in the infos of the last step, [rows, ...] with the rows of this policy.

        Where an agent took no part in the step, floats are NaN, and other values 0.

        Raises:
            EnvDataError: a value is missing, or does not fit its column.
        """

    @abc.abstractmethod
    def describe_rows(self, slots: AgentSlots) -> None:
        """Set `infos` and `running_episodes` of these rows."""

    def _require_slots(self) -> None:
        if not self.slots_of:
            raise RuntimeError("no agent has a policy yet: assign policies with assign_slots(policy_of, names) first.")

    def _require_begun(self) -> None:
        if not self.is_begun:
            raise gymnasium.error.ResetNeeded("advance() before begin(): call begin() first.")


def require_agents_state(state: Any, num_envs: int, rows_of: Mapping[str, tuple[int, Spec]]) -> None:
    """Raise an error if this is not a state of an `MultiAgentVectorEnv` with these environments and rows.

    Args:
        state: the state.
        num_envs: number of environments.
        rows_of: number of rows of each policy, and the layout of one observation.

    Raises:
        TypeError, ValueError: naming the invalid entry.
    """
    require_state(state, _KIND, ("run_seed", "seats"), ("episodes", "returns", "changes", "info_columns", "made_as"))
    require_integer(state, "run_seed", _KIND, 0, 2**63 - 1)
    saved = state["seats"]
    if saved is None:
        require_unbegun(state, num_envs, _KIND)
        return
    require_state(state, _KIND, ("run_seed", "seats", "episodes"), ("returns", "info_columns", "made_as"))
    if not isinstance(saved, Mapping) or not all(
        isinstance(one, Mapping) and {"current", "restarted"} <= set(one) for one in saved.values()
    ):
        raise state_error(_KIND, "seats", saved, "a dict of current and restarted by policy")
    require_episodes(state["episodes"], _KIND)
    count = len(state["episodes"])
    had = {name: _rows_in(slots["current"]) for name, slots in saved.items()}
    has = {name: rows for name, (rows, _) in rows_of.items()}
    if count != num_envs or had != has:
        raise ValueError(
            f"the state of {count} environments with the rows {had} does not fit {num_envs} with the rows {has}: make "
            "the same number of environments, and assign the agents to the same policies."
        )
    for name, (rows, spec) in rows_of.items():
        require_rows(saved[name], rows, spec, _KIND, f"seats/{name}/")
    if "returns" in state:
        require_returns(state["returns"], num_envs, _KIND)


def _rows_in(batch: Any) -> int:
    _, leaf = next(flatten(batch), ((), 0))
    return np.shape(leaf)[0] if np.ndim(leaf) else 0
