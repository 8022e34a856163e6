"""Agent slots: the rows of one policy, which acts for some agents in every environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ding_lite.basics import arrays
from ding_lite.data import allocate, flatten
from ding_lite.data.trees import map_leaves
from ding_lite.envs.bounds import BoxBounds
from ding_lite.envs.env_data_checks import EnvDataError, require_in_range
from ding_lite.envs.final_observations import final_obs
from ding_lite.envs.reproducibility_checks import ON_SEEDS
from ding_lite.envs.results import are_flags, require_flags, to_rewards, write_obs
from ding_lite.envs.spaces import integer_bounds, is_scalar, space_spec, splitter, subspaces, to_gymnasium
from ding_lite.envs.step_interfaces import RunningEpisode, Step


class AgentStepResult(NamedTuple):
    """The result of one step of one environment, by agent."""

    acted: frozenset[Any]
    """Agents that took part in it."""
    obs: Mapping[Any, Any]
    """Next observations, including those of agents that left with this step."""
    rewards: Mapping[Any, Any]
    terminations: Mapping[Any, Any]
    truncations: Mapping[Any, Any]
    acting: frozenset[Any]
    """Agents of the next step."""
    begun: Mapping[Any, Any] | None
    """The first observations of the next episode, if it has begun."""
    infos: Mapping[Any, Any]


class AgentSlots:
    """The agents of one policy in N environments, as rows [N * agents, ...]: those of environment 0, then those of 1, ...

    If an agent takes no part in a step, because it has left while others continue, its row does not change: its observation
    stays, its reward is 0, and the step is not valid.

    Args:
        agents: the agents, in the order of the environment's `possible_agents`; all have the same spaces.
        observation_space, action_space: spaces of each agent.
        num_envs: N.
        first_env: index of environment 0, if these are the environments of one of several pieces.
    """

    def __init__(
        self,
        agents: Sequence[Any],
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        num_envs: int,
        first_env: int = 0,
    ) -> None:
        self.agents = tuple(agents)
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.rows = [(first_env + position, agent) for position in range(num_envs) for agent in agents]
        """Environment and agent of each row."""
        self._places = [(position, agent) for position in range(num_envs) for agent in agents]
        self.num_envs = len(self.rows)
        """Number of rows, named as in code for B environments."""
        self.obs_spec = space_spec(observation_space)
        self.current: Any = None
        """The observations to act on next, nested arrays [rows, ...]; None before `begin`."""
        self.restarted: np.ndarray[Any, Any] | None = None
        """[rows] bool: whether `current` is the start of an episode; None if no row is."""
        self.idle: np.ndarray[Any, Any] | None = None
        """[rows] bool: whether the agent takes no part in the next step; None if all do."""
        self.last: tuple[Any, np.ndarray[Any, Any]] | None = None
        """Action and reward of the last step, set by the worker that took it; None if unknown."""
        self.stepped_by: Any = None
        """The object that took the last step, set by that object; None if unknown."""
        self.acted_by: Any = None
        """The object with a recurrent state that has acted for the current observations, until the step."""
        self.infos: Sequence[Mapping[str, Any]] = ()
        """The info of each current observation, set by the environments if a policy needs it."""
        self.running_episodes: list[RunningEpisode] = []
        """The current episode of each row, set in the same way."""
        self._bounds, self._boxes = integer_bounds(observation_space), BoxBounds([observation_space] * self.num_envs)
        self._split = splitter(action_space)
        self._actions_are_values = is_scalar(action_space)

    def begin(self, obs: Sequence[Mapping[Any, Any]]) -> None:
        """Start an episode in every environment, with these observations by agent; absent agents get zeros."""
        out = self._blank()
        there = [agent in obs[at] for at, agent in self._places]
        self._write([obs[at][agent] if is_there else None for (at, agent), is_there in zip(self._places, there)], out, out)
        self.current, self.restarted, self.last = out, np.array(there), None
        self._set_idle(there)

    def hand_out(self, action: Any, to: Sequence[dict[Any, Any]], acting: Sequence[frozenset[Any]]) -> None:
        """Distribute nested actions [rows, ...] to a dict by agent for each environment.

        Raises:
            ValueError: the number of actions is not the number of rows.
        """
        action = np.asarray(action) if isinstance(action, (list, tuple)) else action
        # A copy, because the environment or the caller may change the array.
        each = self._split(action if self._actions_are_values else map_leaves(np.copy, action))
        if len(each) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} actions, one for each row, got {len(each)}.")
        for (at, agent), one in zip(self._places, each):
            if agent in acting[at]:
                to[at][agent] = one

    def to_rows(self, played: Sequence[AgentStepResult], out: Any) -> Step:
        """The result of a step as rows; the next observations are written to `out`, nested arrays [rows, ...].

        Raises:
            EnvDataError: an observation, reward or flag has the wrong shape, type or range, or is not finite.
        """
        pairs = [(played[at], agent) for at, agent in self._places]
        acted = [agent in one.acted for one, agent in pairs]
        reward = self._reward(tuple(one.rewards[agent] if took else 0.0 for (one, agent), took in zip(pairs, acted)))
        terminations = tuple(took and one.terminations[agent] for (one, agent), took in zip(pairs, acted))
        truncations = tuple(took and one.truncations[agent] for (one, agent), took in zip(pairs, acted))
        if not are_flags(terminations + truncations):
            self._checked(lambda row: require_flags((terminations[row],), (truncations[row],), self.rows[row][0]))
        terminated, truncated = np.array(terminations, np.bool_), np.array(truncations, np.bool_)
        finals = {
            row: self._final(row, pairs[row][0].obs[pairs[row][1]])
            for row in (terminated | truncated).nonzero()[0].tolist()
            if pairs[row][0].begun is not None
        }
        try:
            self._write([_shown(*pair) for pair in pairs], out, self.current)
        except EnvDataError as error:
            error.is_next = True
            raise
        begins = [agent in one.acting and (one.begun is not None or agent not in one.acted) for one, agent in pairs]
        self.current, self.restarted, self.last = out, np.array(begins) if any(begins) else None, None
        self.stepped_by = None
        self._set_idle([agent in one.acting for one, agent in pairs])
        valid = None if all(acted) else np.array(acted)
        # If both flags are set, termination counts.
        return Step(reward, terminated, truncated > terminated, finals, valid, [])

    def _set_idle(self, takes_part: Sequence[bool]) -> None:
        self.idle = None if all(takes_part) else ~np.array(takes_part)

    def _write(self, elements: Sequence[Any], out: Any, before: Any) -> None:
        """Write observations; missing ones are taken from `before`."""
        space = self.single_observation_space
        if any(one is None for one in elements):
            elements = [self._element(before, row) if one is None else one for row, one in enumerate(elements)]
        try:
            write_obs(elements, out, space, self.obs_spec)
            require_in_range(out, self._bounds, "obs")
            self._boxes.check(out, self._where)
        except EnvDataError:
            self._checked(lambda row: self._write_row(row, elements[row]))
            raise

    def _write_row(self, row: int, element: Any) -> None:
        index, one = self.rows[row][0], allocate(self.obs_spec, 1)
        write_obs([element], one, self.single_observation_space, self.obs_spec, index)
        require_in_range(one, self._bounds, "obs", index)

    def _element(self, batch: Any, row: int) -> Any:
        return to_gymnasium(self.single_observation_space, map_leaves(lambda leaf: np.copy(leaf[row]), batch))

    def _final(self, row: int, obs: Any) -> Any:
        index, agent = self.rows[row]
        what = f"obs of agent {agent!r}"
        final = final_obs(obs, index, self.single_observation_space, self.obs_spec, self._bounds, what)
        self._boxes.check_row(row, final, self._where)
        return final

    def _where(self, row: int) -> tuple[str, str]:
        index, agent = self.rows[row]
        return f"agent {agent!r} of environment {index}", ""

    def _reward(self, rewards: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        try:
            return to_rewards(rewards)
        except EnvDataError:
            self._checked(lambda row: to_rewards((rewards[row],), self.rows[row][0]))
            raise

    def _checked(self, check: Callable[[int], object]) -> None:
        """Check row by row, so that the message names the environment and the agent."""
        for row, (_, agent) in enumerate(self.rows):
            try:
                check(row)
            except EnvDataError as error:
                raise EnvDataError(f"agent {agent!r} of {error}", error.env) from None

    def _blank(self) -> Any:
        """An element of the space for each row, as close to zero as its integers allow."""
        out = map_leaves(np.zeros_like, allocate(self.obs_spec, self.num_envs))
        _raise_to(self.single_observation_space, out)
        return out

    def state_dict(self) -> dict[str, Any]:
        """The current observations, and which of them start an episode."""
        return {"current": map_leaves(np.copy, self.current), "restarted": self.restarted}

    def load_state_dict(self, state: Mapping[str, Any], obs: Sequence[Mapping[Any, Any]], acting: Sequence[Any]) -> None:
        """Restore a saved state, after replayed environments returned these observations by agent.

        Raises:
            EnvDataError: a replayed environment does not return the same observation.
        """
        self.current, self.restarted, self.stepped_by = arrays(state["current"]), arrays(state["restarted"]), None
        self._set_idle([agent in acting[at] for at, agent in self._places])
        now = self._blank()
        shown = [obs[at][agent] if agent in acting[at] else None for at, agent in self._places]
        self._write(shown, now, self.current)
        for (_, one), (_, other) in zip(flatten(now), flatten(self.current)):
            same = (one == other).reshape(self.num_envs, -1).all(axis=1)
            if not same.all():
                index, agent = self.rows[int(np.argmin(same))]
                raise EnvDataError(
                    f"environment {index} did not come back to its observation of agent {agent!r}: replayed from its seed it "
                    f"returned other observations, so a saved run cannot continue in it. {ON_SEEDS}",
                    index,
                )


def _shown(played: AgentStepResult, agent: Any) -> Any:
    """An agent's next observation; its last one if it has left; None if it has none."""
    if agent in played.acting:
        return (played.obs if played.begun is None else played.begun)[agent]
    return played.obs[agent] if played.begun is None and agent in played.acted else None


def _raise_to(space: gymnasium.Space[Any], batch: Any) -> None:
    parts = subspaces(space)
    if parts is not None:
        for name, part in parts.items():
            _raise_to(part, batch[name])
    elif (bounds := integer_bounds(space)) is not None:
        batch[...] = bounds[0]
