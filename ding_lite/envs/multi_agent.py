"""Multi-agent environments with PettingZoo's parallel API, stepped in a plain loop.

PettingZoo itself is not imported: any object with `possible_agents`, `agents`, `reset`, `step` and the two spaces works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple, SupportsIndex, cast

import gymnasium
import numpy as np

from ding_lite.basics import add_note, arrays, did_you_mean, plain, seed_of
from ding_lite.data import flatten, require_state, state_error, whole_number
from ding_lite.envs.agent_envs import AgentEnv, require_same_agents
from ding_lite.envs.agent_slots import AgentSlots, AgentStepResult
from ding_lite.envs.changes import Change, ChangingEnvs
from ding_lite.envs.env_data_checks import EnvDataError
from ding_lite.envs.episode_starts import EpisodeResult
from ding_lite.envs.error_locations import with_location
from ding_lite.envs.factories import called, settings_of
from ding_lite.envs.saved_states import require_episodes, require_returns, require_rows, require_unbegun
from ding_lite.envs.spaces import SpaceError, same_layout
from ding_lite.envs.steps import RunningEpisode, Step

AgentEnvFactory = Callable[..., Any]
_KIND = "vector environment of several agents"


def make_agent_envs(
    factory: AgentEnvFactory, num_envs: int = 1, *, seed: int = 0, env_config: Mapping[str, Any] | None = None
) -> AgentVectorEnv:
    """N copies of a multi-agent environment, stepped in this process.

    Args:
        factory: returns a new environment with PettingZoo's parallel API, such as `rps_v2.parallel_env`.
        num_envs: N.
        seed: random seed of the run. Each episode is seeded from (seed, index of the copy, number of the episode).
        env_config: keyword arguments for `factory`; None for none.

    Raises:
        ValueError: num_envs < 1.
        TypeError: `factory` is not a function, or does not return such an environment.
        SpaceError: the copies have different agents or spaces.
    """
    if not isinstance(num_envs, SupportsIndex) or num_envs < 1:
        raise ValueError(f"make_agent_envs(num_envs={num_envs!r}): at least 1 environment is needed.")
    if not callable(factory):
        raise TypeError(
            f"make_agent_envs() wants a function that returns a new environment, such as rps_v2.parallel_env, got {factory!r}."
        )
    own = settings_of(env_config, "make_agent_envs")
    factory = partial(called, factory, **own) if own else factory
    return AgentVectorEnv([factory] * num_envs, seed_of(seed, "make_agent_envs(seed={})"))


class MultiAgentStep(NamedTuple):
    """One step of N environments."""

    steps: dict[str, Step]
    """The step for each policy, with rows as in `AgentSlots`, without finished episodes."""

    finished: list[EpisodeResult]
    """Episodes that ended with this step: `return_` is the sum over agents, `info["return"]` the return of each agent, and
    `info["info"]` the last info of each agent."""


class AgentVectorEnv(ChangingEnvs):
    """N copies of a multi-agent environment. Each is reset in the step that ends its episode.

    An episode ends when no agent is left. The row of an agent that leaves earlier does not change until the next episode; see
    `AgentSlots`. An agent may join later, but cannot return within an episode.

    Args:
        factories: one per copy, each returning a new environment.
        seed: random seed of the run.
    """

    def __init__(self, factories: Sequence[AgentEnvFactory], seed: int = 0) -> None:
        self.agent_envs = [AgentEnv(factory, index, seed) for index, factory in enumerate(factories)]
        require_same_agents(self.agent_envs)
        self.num_envs, self.run_seed = len(self.agent_envs), seed
        self.possible_agents = self.agent_envs[0].possible
        """All agents that may take part."""
        self.slots_of: dict[str, AgentSlots] = {}
        """The rows of each policy, since `assign_slots`."""

    @property
    def envs(self) -> list[Any]:
        """The environments themselves."""
        return [agent_env.env for agent_env in self.agent_envs]

    def observation_space(self, agent: Any) -> gymnasium.Space[Any]:
        """Observation space of this agent."""
        return self._spaces(agent)[0]

    def action_space(self, agent: Any) -> gymnasium.Space[Any]:
        """Action space of this agent."""
        return self._spaces(agent)[1]

    def _spaces(self, agent: Any) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        spaces = self.agent_envs[0].spaces
        if agent not in spaces:
            known = {str(one) for one in spaces}
            raise ValueError(
                f"there is no agent {agent!r}{did_you_mean(str(agent), known)} There are {', '.join(sorted(known))}."
            )
        return spaces[agent]

    def _seed(self, seed: int) -> None:
        self.run_seed = seed
        for agent_env in self.agent_envs:
            agent_env.seed(seed)

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
                f"these environments have the policies {before}, got {now}: make new environments with make_agent_envs()."
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
                raise SpaceError(
                    f"the agents {agents[0]!r} and {agent!r} of the policy {name!r} have the spaces {observation_space}, "
                    f"{action_space} and {one}, {other}: assign agents with different spaces to different policies."
                )
        return AgentSlots(agents, observation_space, action_space, self.num_envs)

    @property
    def is_begun(self) -> bool:
        """Whether there are observations to act on."""
        return bool(self.slots_of) and all(slots.current is not None for slots in self.slots_of.values())

    def begin(self, seed: int | None = None) -> None:
        """Begin an episode in every environment; with a seed, as if newly made with that seed."""
        if not self.slots_of:
            raise RuntimeError("no agent has a policy yet: assign policies with assign_slots(policy_of, names) first.")
        if seed is not None:
            self._seed(seed_of(seed, "begin(seed={})"))
        obs = [agent_env.begin() for agent_env in self.agent_envs]
        with self._placing():
            for slots in self.slots_of.values():
                slots.begin(obs)

    def advance(self, actions: Mapping[str, Any], out: Mapping[str, Any]) -> MultiAgentStep:
        """Step with the actions of each policy, nested [rows, ...], and write the next observations to `out` in the same form.

        Raises:
            gymnasium.error.ResetNeeded: `begin` was not called.
            EnvDataError: an environment returned data that its spaces or its API do not allow.
            Exception: the error of an environment, with a note that names the environment, its step and the actions.
        """
        if not self.is_begun:
            raise gymnasium.error.ResetNeeded("advance() before begin(): call begin() first.")
        acting = [agent_env.acting for agent_env in self.agent_envs]
        taken: list[dict[Any, Any]] = [{} for _ in self.agent_envs]
        kept: list[dict[Any, Any]] = [{} for _ in self.agent_envs]  # recorded actions must not be shared
        for name, slots in self.slots_of.items():
            slots.hand_out(actions[name], taken, acting)
            slots.hand_out(actions[name], kept, acting)
        played: list[AgentStepResult] = []
        finished: list[EpisodeResult] = []
        for agent_env, own, remembered in zip(self.agent_envs, taken, kept):
            one = agent_env.play(own, remembered)
            if not one.acting:
                finished.append(agent_env.finished())
                final = deepcopy(one.obs)  # an environment may write its next first observation into the same array
                begun = agent_env.begin()
                one = one._replace(obs=final, acting=agent_env.acting, begun=begun)
            played.append(one)
        with self._placing(played):
            return MultiAgentStep({name: slots.to_rows(played, out[name]) for name, slots in self.slots_of.items()}, finished)

    @contextmanager
    def _placing(self, played: Sequence[AgentStepResult] = ()) -> Iterator[None]:
        """Adds the location in the environment to an EnvDataError."""
        try:
            yield
        except EnvDataError as error:
            if error.env is None:
                raise
            agent_env = self.agent_envs[error.env]
            has_begun = bool(played) and played[error.env].begun is not None
            place = agent_env.ended_at if has_begun and not error.is_next else agent_env.place()
            raise with_location(error, place or agent_env.place())  # noqa: B904  the same error

    def describe_rows(self, slots: AgentSlots) -> None:
        """Set `infos` and `running_episodes` of these rows."""
        rows = [(self.agent_envs[index], agent) for index, agent in slots.rows]
        slots.infos = [agent_env.infos.get(agent, {}) for agent_env, agent in rows]
        slots.running_episodes = [
            RunningEpisode(one.index, one.starts.number, one.length, one.earned, agent) for one, agent in rows
        ]

    def apply_changes(self, changes: Sequence[Change]) -> tuple[Any, ...]:
        """Apply and record one change per environment. Returns their results."""
        for agent_env, change in zip(self.agent_envs, changes):
            agent_env.starts.require_possible(change)
        return tuple([agent_env.change(change) for agent_env, change in zip(self.agent_envs, changes)])

    def read_attribute(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment."""
        return tuple([agent_env.starts.read(name) for agent_env in self.agent_envs])

    def state_dict(self) -> dict[str, Any]:
        """The state of each environment: the start of its episode, the actions since, the current observations, and changes."""
        if not self.is_begun:
            unbegun: dict[str, Any] = {"run_seed": self.run_seed, "seats": None}
            if any(agent_env.starts.changes for agent_env in self.agent_envs):
                unbegun["changes"] = [agent_env.starts.changes.state_dict() for agent_env in self.agent_envs]
            return plain(unbegun)  # type: ignore[no-any-return]
        state = {
            "run_seed": self.run_seed,
            "seats": {name: slots.state_dict() for name, slots in self.slots_of.items()},
            "episodes": [agent_env.starts.state_dict() for agent_env in self.agent_envs],
            "returns": [agent_env.earned for agent_env in self.agent_envs],
        }
        return plain(state)  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore each environment by replaying its saved episode. Call `assign_slots` before.

        If a replay fails, the environments are restored to their state before the call, also by replays.

        Raises:
            TypeError, ValueError: not a state of such environments, or their number or the policies of the agents differ;
                nothing was changed.
            EnvDataError: a replayed environment returns other observations or rewards: it does not depend on its seed alone.
        """
        self._require_state(state)
        run_seed, starts = self.run_seed, [agent_env.starts for agent_env in self.agent_envs]
        rows = {name: (slots.current, slots.restarted, slots.last) for name, slots in self.slots_of.items()}
        before = None
        with suppress(RuntimeError):  # an episode that is too long to be replayed
            before = self.state_dict()
        try:
            self._go_to(state)
        except Exception as error:
            self._come_back(before, error)
            self.run_seed = run_seed
            for agent_env, start in zip(self.agent_envs, starts):
                agent_env.starts = start
                start.use(cast("Any", agent_env), agent_env.env)
            for name, slots in self.slots_of.items():
                if slots.current is not None:
                    slots.current, slots.restarted, slots.last = rows[name]
            raise

    def _require_state(self, state: Any) -> None:
        """Raise an error if this is not a state of these environments, before any of them changes."""
        require_state(state, _KIND, ("run_seed", "seats"), ("episodes", "returns", "changes"))
        whole_number(state, "run_seed", _KIND, 0, 2**63 - 1)
        saved = state["seats"]
        if saved is None:
            require_unbegun(state, self.num_envs, _KIND)
            return
        require_state(state, _KIND, ("run_seed", "seats", "episodes"), ("returns",))
        if not isinstance(saved, Mapping) or not all(
            isinstance(one, Mapping) and {"current", "restarted"} <= set(one) for one in saved.values()
        ):
            raise state_error(_KIND, "seats", saved, "a dict of current and restarted by policy")
        require_episodes(state["episodes"], _KIND)
        count = len(state["episodes"])
        had = {name: _rows_of(slots["current"]) for name, slots in saved.items()}
        has = {name: slots.num_envs for name, slots in self.slots_of.items()}
        if count != self.num_envs or had != has:
            raise ValueError(
                f"the state of {count} environments with the rows {had} does not fit {self.num_envs} with the rows {has}: make "
                "the same number of environments, and assign the agents to the same policies."
            )
        for name, slots in self.slots_of.items():
            require_rows(saved[name], slots.num_envs, slots.obs_spec, _KIND, f"seats/{name}/")
        if "returns" in state:
            require_returns(state["returns"], self.num_envs, _KIND)

    def _go_to(self, state: Mapping[str, Any]) -> None:
        """Replay the saved episodes."""
        unbegun = arrays(state.get("changes")) or [None] * self.num_envs
        self.run_seed = int(state["run_seed"])
        for agent_env, changes in zip(self.agent_envs, unbegun):
            agent_env.begin_replay(self.run_seed, changes)
        if state["seats"] is None:
            for slots in self.slots_of.values():
                slots.current = None
            return
        obs = [agent_env.restore(arrays(one)) for agent_env, one in zip(self.agent_envs, state["episodes"])]
        with self._placing():
            for name, slots in self.slots_of.items():
                slots.load_state_dict(state["seats"][name], obs, [agent_env.acting for agent_env in self.agent_envs])
            for agent_env, earned in zip(self.agent_envs, state.get("returns", ())):  # earlier versions have none
                agent_env.require_earned(earned)

    def _come_back(self, before: Mapping[str, Any] | None, refusal: Exception) -> None:
        """Restore the state before the call, after a state was refused."""
        try:
            if before is None:
                raise RuntimeError("an episode is too long to be replayed.")
            self._go_to(before)
        except Exception as error:  # noqa: BLE001  added to the refusal, which is the first error
            for slots in self.slots_of.values():
                slots.current = None
            add_note(refusal, f"the environments could not be restored to their earlier state, and will be reset: {error}")

    def close(self) -> None:
        """Close each environment."""
        for agent_env in self.agent_envs:
            if hasattr(agent_env.env, "close"):
                agent_env.env.close()


def _rows_of(batch: Any) -> int:
    _, leaf = next(flatten(batch), ((), 0))
    return np.shape(leaf)[0] if np.ndim(leaf) else 0
