"""Agent environments: single multi-agent environments whose data is checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from ding_lite.basics import add_note
from ding_lite.envs.agent_bases import AgentSpaces
from ding_lite.envs.agent_slots import AgentStepResult
from ding_lite.envs.changes import Change
from ding_lite.envs.env_data_checks import EnvDataError, shown
from ding_lite.envs.episode_starts import EpisodeResult, EpisodeStarts
from ding_lite.envs.error_locations import EnvLocation, ErrorLocation, exit_error, with_location
from ding_lite.envs.factories import TURNS, takes_turns
from ding_lite.envs.infos import own_info
from ding_lite.envs.names import made_as, name_of_env
from ding_lite.envs.results import to_rewards
from ding_lite.envs.spaces import SpaceError, hidden_difference, require_elements, same_layout, space_spec

_WANTED = ("possible_agents", "reset", "step", "observation_space", "action_space")
_PARTS = ("obs", "rewards", "terminations", "truncations", "infos")


class AgentEnv:
    """One multi-agent environment: its current agents, their returns, and the start of its episodes.

    It has the methods that `EpisodeStarts` needs, so that episodes are seeded and replayed like those of other environments.

    Args:
        factory: returns a new environment with PettingZoo's parallel API.
        index: index of the environment.
        run_seed: random seed of the run.

    Raises:
        TypeError: the factory did not return such an environment.
        SpaceError: a space has no fixed layout, or its elements hold no numbers.
    """

    def __init__(self, factory: Callable[[], Any], index: int, run_seed: int) -> None:
        self._is_dirty = False
        self.factory = factory
        """Function that made the environment."""
        self.env, self.index = _made_by(factory, index), index
        self.possible = tuple(self.env.possible_agents)
        """All agents that may take part."""
        self.spaces = {agent: (self.env.observation_space(agent), self.env.action_space(agent)) for agent in self.possible}
        """Observation space and action space of each agent."""
        for agent, (observation_space, action_space) in self.spaces.items():
            require_elements(observation_space, f"environment {index}, observation_space of agent {agent!r}")
            require_elements(action_space, f"environment {index}, action_space of agent {agent!r}")
            space_spec(observation_space), space_spec(action_space)  # raises SpaceError for spaces without a fixed layout
        self.acting: frozenset[Any] = frozenset()
        """The agents of the next step."""
        self._left: frozenset[Any] = frozenset()
        self._returns: dict[Any, float] = {}
        self._infos: dict[Any, Any] = {}
        self._length = 0
        self.ended_at: ErrorLocation | None = None
        """The last step of the previous episode, after its end."""
        self.starts = EpisodeStarts(cast("Any", self), run_seed, index, None, self.env)

    def seed(self, run_seed: int) -> None:
        """Seed the next episodes as in a new environment of a run with this seed."""
        self.starts = EpisodeStarts(cast("Any", self), run_seed, self.index, self.starts.changes, self.env)

    def change(self, change: Change) -> Any:
        """Apply and record a change. Returns the result of a call."""
        self._is_dirty = True
        return self.starts.change(change)

    def begin_replay(self, run_seed: int, changes: Mapping[str, Any] | None = None) -> None:
        """Seed the episodes, in a new environment if this one was changed.

        Args:
            run_seed: random seed of the run.
            changes: changes to apply; None for none.
        """
        if self._is_dirty:
            with suppress(Exception):
                self.env.close()
            self.env = _made_by(self.factory, self.index)
        self._is_dirty = changes is not None
        self.starts = EpisodeStarts(cast("Any", self), run_seed, self.index, None, self.env)
        self.starts.load_changes(changes)

    @property
    def unwrapped(self) -> AgentEnv:
        """Itself."""
        return self

    def begin(self) -> Mapping[Any, Any]:
        """Reset the environment for its next episode. Returns observations by agent."""
        self.starts.earned = self.earned
        try:
            return self.starts.begin()[0]  # type: ignore[no-any-return]
        except (Exception, SystemExit) as error:  # noqa: BLE001  user code; raised below
            raise with_location(error, self.place())  # noqa: B904  mostly it is the same error

    @property
    def infos(self) -> Mapping[Any, Any]:
        """The last info of each agent in this episode."""
        return self._infos

    @property
    def length(self) -> int:
        """Number of steps of its episode so far."""
        return self._length

    @property
    def earned(self) -> float:
        """The sum of all rewards of its episode so far; it does not depend on the order of the agents."""
        return math.fsum(self._returns.values())

    def require_earned(self, before: float) -> None:
        """Raise an error if the replayed episode has another return than before.

        Raises:
            EnvDataError: the returns differ.
        """
        if self.earned != before:
            raise EnvDataError(
                f"environment {self.index} did not come back to its rewards: replayed from its seed, its episode has the "
                f"return {self.earned}, before it was {before}, so a saved run cannot continue in it. The cause may be a "
                "wrapper that keeps statistics across episodes: remove it.",
                self.index,
            )

    def place(self) -> ErrorLocation:
        """The place of its last step or reset."""
        starts, actions = self.starts, self.starts.actions
        known = EnvLocation(
            *(self.index, name_of_env(self.env), starts.number),
            start=starts.start,
            actions=starts.all_actions,
            run_seed=starts.run_seed,
        )
        place = ErrorLocation(f"environment {self.index} ({self.env})", starts.described, given="actions", known=known)
        return place._replace(step=self._length - 1, action=actions[-1]) if actions else place

    def restore(self, state: Mapping[str, Any], played: Callable[[int], None] | None = None) -> Mapping[Any, Any]:
        """Replay a saved episode. Returns observations by agent.

        Args:
            state: state of the episode.
            played: called with the number of replayed steps after the reset and after each step.
        """
        starts, previous = self.starts, state.get("previous")
        self._is_dirty = self._is_dirty or "changes" in state or bool(previous and "changes" in previous)
        try:
            if previous:
                starts.load_state_dict(previous, played)
                self.require_earned(previous["return"])
            return starts.load_state_dict(state, played, follows=bool(previous))[0]  # type: ignore[no-any-return]
        except (Exception, SystemExit) as error:  # noqa: BLE001  user code; raised below
            place = self.place()._replace(step=None, action=None, is_replay=True)
            if starts.replayed is not None and starts.replayed < len(starts.actions):
                place = place._replace(step=starts.replayed, action=starts.actions[starts.replayed])
            raise with_location(error, place)  # noqa: B904  mostly it is the same error

    def play(self, actions: dict[Any, Any], remembered: dict[Any, Any]) -> AgentStepResult:
        """One step with the actions of the current agents.

        Args:
            actions: actions by agent.
            remembered: a copy of them, to record.
        """
        acted, step = self.acting, self._length
        self.starts.actions.append(remembered)
        try:
            obs, rewards, terminations, truncations, infos = self.step(actions)
        except (Exception, SystemExit) as error:  # noqa: BLE001  user code; raised below
            raise with_location(error, self.place()._replace(step=step))  # noqa: B904  mostly it is the same error
        return AgentStepResult(acted, obs, rewards, terminations, truncations, self.acting, None, infos)

    def finished(self) -> EpisodeResult:
        """The finished episode: the sum of all rewards, and the return and the last info of each agent."""
        self.ended_at = self.place()
        info = {"return": dict(self._returns), "info": own_info(self._infos)}
        return EpisodeResult(
            self.index, self.starts.number, sum(self._returns.values()), self._length, self.starts.start.get("seed"), info
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin an episode: observations and infos by agent.

        Raises:
            EnvDataError: an observation is missing, or no agent takes part.
        """
        result = self.env.reset(seed=seed, options=options)
        if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(part, Mapping) for part in result)):
            raise EnvDataError(
                f"environment {self.index} returned {shown(result, 80)} from reset(), expected (obs, infos), both by agent: "
                "correct the environment."
            )
        self._left, self._length = frozenset(), 0
        self.acting = self._present(self.env.agents)
        # In the order of possible_agents, so that their sum is the same in every process: that of a set depends on the hashes.
        self._returns = {agent: 0.0 for agent in self.possible if agent in self.acting}
        self._infos = dict(result[1])
        if not self.acting:
            raise EnvDataError(
                f"environment {self.index} begins an episode without agents: env.agents is empty after reset(). Correct the "
                "environment."
            )
        self._require(self.acting, result[:1], "reset")
        return result

    def step(self, actions: dict[Any, Any]) -> tuple[Any, ...]:
        """One step: observations, rewards, terminations, truncations and infos by agent.

        Raises:
            EnvDataError: a value of an agent that takes part is missing, or an agent leaves without being terminated or
                truncated.
        """
        acted = self.acting
        result = self.env.step(actions)
        if not (isinstance(result, tuple) and len(result) == 5 and all(isinstance(part, Mapping) for part in result)):
            raise EnvDataError(
                f"environment {self.index} returned {shown(result, 80)} from step(), expected ({', '.join(_PARTS)}), each by "
                "agent: correct the environment."
            )
        self._require(acted, result[:4], "step")
        _, rewards, terminations, truncations, infos = result
        ended = [agent for agent in acted if terminations[agent] or truncations[agent]]
        self._left = self._left.union(ended)
        self.acting = self._present(self.env.agents)
        missing = acted - self.acting - self._left
        if missing:
            raise EnvDataError(
                f"agent {min(map(repr, missing))} of environment {self.index} is no longer in env.agents, but was neither "
                "terminated nor truncated: set one of them in the step in which an agent leaves."
            )
        self._require(self.acting, result[:1], "step")
        self._length += 1
        self._infos.update(infos)
        for agent in ended:  # the environment may go on changing it in place
            if agent in infos:
                self._infos[agent] = own_info(infos[agent])
        for agent in self.possible:  # in their order, so that sums are the same every time
            if agent in acted:
                self._returns[agent] = self._returns.get(agent, 0.0) + self._number(agent, rewards[agent])
        return result

    def _present(self, agents: Iterable[Any]) -> frozenset[Any]:
        present = frozenset(agents)
        unknown = present.difference(self.possible)
        if unknown:
            raise EnvDataError(
                f"environment {self.index} has the agents {sorted(map(repr, unknown))}, which are not in possible_agents: add "
                "them there."
            )
        return present - self._left

    def _require(self, agents: Iterable[Any], parts: Sequence[Mapping[Any, Any]], of: str) -> None:
        for agent in agents:
            for name, part in zip(_PARTS, parts):
                if agent not in part:
                    raise EnvDataError(
                        f"environment {self.index} returned no {name} of agent {agent!r} from {of}(), but it takes part: "
                        "return every value for each agent, also in its last step."
                    )

    def _number(self, agent: Any, reward: Any) -> float:
        try:
            return float(reward)
        except (TypeError, ValueError, OverflowError):
            try:
                return float(to_rewards((reward,), self.index)[0])
            except EnvDataError as error:
                raise EnvDataError(f"agent {agent!r} of {error}", self.index) from None


@dataclasses.dataclass(frozen=True)
class AgentTraits:
    """Attributes of a multi-agent environment that are the same in all copies."""

    index: int
    """Index of the environment."""
    possible: tuple[Any, ...]
    """All agents that may take part."""
    spaces: dict[Any, AgentSpaces]
    """Observation space and action space of each agent."""
    made_as: dict[str, Any]
    spec: Any

    @classmethod
    def of(cls, agent_env: AgentEnv) -> AgentTraits:
        """The attributes of this environment."""
        made, spec = made_as(agent_env.env), getattr(agent_env.env, "spec", None)
        return cls(agent_env.index, agent_env.possible, agent_env.spaces, made, spec)


def require_own_envs(agent_envs: Sequence[AgentEnv]) -> None:
    """Raise an error if two factories returned the same environment.

    Raises:
        ValueError: naming the second one.
    """
    for position, one in enumerate(agent_envs):
        if any(one.env is other.env for other in agent_envs[:position]):
            raise ValueError(
                f"the factory of environment {one.index} returned an environment that is in use: make a new one each time."
            )


def require_same_agents(each: Sequence[AgentEnv] | Sequence[AgentTraits]) -> None:
    """Raise an error if environments have different agents or spaces.

    Raises:
        SpaceError: agents or spaces differ.
    """
    first = each[0]
    for one in each:
        if one.possible != first.possible:
            raise SpaceError(
                f"environment {one.index} has the agents {one.possible}, environment {first.index} has {first.possible}: they "
                "must be the same in all environments."
            )
        for agent, (observation_space, action_space) in one.spaces.items():
            like = first.spaces[agent]
            if action_space != like[1] or not same_layout(observation_space, like[0]):
                hidden = hidden_difference(observation_space, like[0]) + hidden_difference(action_space, like[1])
                raise SpaceError(
                    f"agent {agent!r} has the spaces {observation_space}, {action_space} in environment {one.index}, and "
                    f"{like[0]}, {like[1]} in environment {first.index}{hidden}: they must be the same in all environments."
                )


def _made_by(factory: Callable[[], Any], index: int) -> Any:
    try:
        env = factory()
    except SystemExit as error:
        raise exit_error(error, f"the factory of environment {index}") from error
    except Exception as error:
        add_note(error, f"raised while environment {index} was made")
        raise
    if takes_turns(env):
        raise TypeError(f"the factory of environment {index} returned {shown(env, 80)} of type {type(env).__name__}, {TURNS}")
    for name in _WANTED:
        if not hasattr(env, name):
            raise TypeError(
                f"the factory of environment {index} returned a {type(env).__name__}, which has no {name!r}: return a new "
                "environment with PettingZoo's parallel API."
            )
    return env
