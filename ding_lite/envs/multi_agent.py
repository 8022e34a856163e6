"""Environments of several agents, which have PettingZoo's parallel API, stepped in a plain loop.

PettingZoo itself is not imported: whatever has `possible_agents`, `agents`, `reset`, `step` and the two spaces will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple, SupportsIndex

import gymnasium

from ding_lite.basics import arrays, did_you_mean, plain, seed_of
from ding_lite.data import first_leaf
from ding_lite.envs.agent_envs import Copy, require_same_agents
from ding_lite.envs.agent_slots import Played, Seat
from ding_lite.envs.env_data_checks import EnvDataError
from ding_lite.envs.episode_starts import Episode
from ding_lite.envs.places import blamed
from ding_lite.envs.spaces import SpaceError, same_layout
from ding_lite.envs.steps import Step

AgentEnvFactory = Callable[[], Any]


def make_agent_envs(factory: AgentEnvFactory, num_envs: int = 1, *, seed: int = 0) -> AgentVectorEnv:
    """N copies of an environment of several agents, stepped by this process.

    Args:
        factory: returns a new environment with PettingZoo's parallel API, such as `rps_v2.parallel_env`.
        num_envs: N.
        seed: of the run. Each episode is seeded from (seed, index of the copy, number of the episode).

    Raises:
        ValueError: num_envs < 1.
        TypeError: no function, or what it returns is no such environment.
        SpaceError: the copies differ in their agents or spaces.
    """
    if not isinstance(num_envs, SupportsIndex) or num_envs < 1:
        raise ValueError(f"make_agent_envs(num_envs={num_envs!r}): at least 1 environment is needed.")
    if not callable(factory):
        raise TypeError(
            f"make_agent_envs() wants a function that returns a new environment, such as rps_v2.parallel_env, got {factory!r}."
        )
    return AgentVectorEnv([factory] * num_envs, seed_of(seed, "make_agent_envs(seed={})"))


class AgentStep(NamedTuple):
    """One step of N environments."""

    parts: dict[str, Step]
    """For each policy, with rows as `Seat` has them. Episodes are not told there: they are those of environments."""

    finished: list[Episode]
    """Episodes that ended with this step: `return_` is the sum over agents, `info["return"]` that of each, and `info["info"]`
    the last info of each."""


class AgentVectorEnv:
    """N copies of an environment of several agents, each of which is reset in the step that ends its episode.

    An episode ends when no agent is left. Who has left earlier stands still until the next one begins; see `Seat`. Who comes
    later begins then. Who has left does not come back within an episode.

    Args:
        factories: one for each copy, each returning a new one.
        seed: of the run.
    """

    def __init__(self, factories: Sequence[AgentEnvFactory], seed: int = 0) -> None:
        self.copies = [Copy(factory, index, seed) for index, factory in enumerate(factories)]
        require_same_agents(self.copies)
        self.num_envs, self.run_seed = len(self.copies), seed
        self.possible_agents = self.copies[0].possible
        """Everybody who may take part."""
        self.seats: dict[str, Seat] = {}
        """The rows of each policy, since `seat`."""

    @property
    def envs(self) -> list[Any]:
        """The copies themselves."""
        return [copy.env for copy in self.copies]

    def observation_space(self, agent: Any) -> gymnasium.Space[Any]:
        """Of this agent."""
        return self._spaces(agent)[0]

    def action_space(self, agent: Any) -> gymnasium.Space[Any]:
        """Of this agent."""
        return self._spaces(agent)[1]

    def _spaces(self, agent: Any) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        spaces = self.copies[0].spaces
        if agent not in spaces:
            known = {str(one) for one in spaces}
            raise ValueError(
                f"there is no agent {agent!r}{did_you_mean(str(agent), known)} There are {', '.join(sorted(known))}."
            )
        return spaces[agent]

    def _seed(self, seed: int) -> None:
        self.run_seed = seed
        for copy in self.copies:
            copy.seed(seed)

    def seat(self, policy_of: Callable[[Any], str] | Mapping[Any, str], names: Sequence[str]) -> dict[str, Seat]:
        """Give each agent to a policy, once and for all; asked again for the same, it gives the same rows.

        Args:
            policy_of: from an agent to the name of its policy, a function or a mapping.
            names: of the policies.

        Raises:
            TypeError: neither a function nor a mapping.
            ValueError: an agent without a policy of these, a policy without an agent, or other policies than before.
            SpaceError: the agents of one policy have not the same spaces.
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
                raise ValueError(f"policy_of({agent!r}) gave {name!r}, and the policies are {', '.join(names)}{near}")
            agents[name].append(agent)
        seats = {name: self._seat(name, members) for name, members in agents.items()}
        before, now = ({name: seat.agents for name, seat in each.items()} for each in (self.seats, seats))
        if self.seats and before != now:
            raise ValueError(
                f"these environments serve the policies {before}, and not {now}: make others with make_agent_envs()."
            )
        self.seats = self.seats or seats
        return self.seats

    def _seat(self, name: str, agents: Sequence[Any]) -> Seat:
        if not agents:
            known = ", ".join(map(str, self.possible_agents))
            raise ValueError(f"policy_of() gives no agent to the policy {name!r}: leave it out. The agents are {known}.")
        observation_space, action_space = self._spaces(agents[0])
        for agent in agents[1:]:
            one, other = self._spaces(agent)
            if other != action_space or not same_layout(one, observation_space):
                raise SpaceError(
                    f"the agents {agents[0]!r} and {agent!r} of the policy {name!r} have the spaces {observation_space}, "
                    f"{action_space} and {one}, {other}: give agents of different spaces to different policies."
                )
        return Seat(agents, observation_space, action_space, self.num_envs)

    @property
    def is_begun(self) -> bool:
        """Whether there are observations to act on."""
        return bool(self.seats) and all(seat.current is not None for seat in self.seats.values())

    def begin(self, seed: int | None = None) -> None:
        """Begin an episode in every environment; with a seed, as if newly made with that seed."""
        if not self.seats:
            raise RuntimeError("nobody acts here yet: give the agents to policies by seat(policy_of, names).")
        if seed is not None:
            self._seed(seed_of(seed, "begin(seed={})"))
        obs = [copy.begin() for copy in self.copies]
        with self._placing():
            for seat in self.seats.values():
                seat.begin(obs)

    def advance(self, actions: Mapping[str, Any], out: Mapping[str, Any]) -> AgentStep:
        """Take the actions of each policy, nested [rows, ...], and write the observations to act on next to `out`, likewise.

        Raises:
            gymnasium.error.ResetNeeded: nothing has begun.
            EnvDataError: an environment returned what its spaces or its API do not allow.
            Exception: what an environment raised, with a note naming it, its step and the actions.
        """
        if not self.is_begun:
            raise gymnasium.error.ResetNeeded("the environments were not begun: call begin() before advance().")
        acting = [copy.acting for copy in self.copies]
        taken: list[dict[Any, Any]] = [{} for _ in self.copies]
        kept: list[dict[Any, Any]] = [{} for _ in self.copies]  # what is remembered belongs to nobody else
        for name, seat in self.seats.items():
            seat.hand_out(actions[name], taken, acting)
            seat.hand_out(actions[name], kept, acting)
        played: list[Played] = []
        finished: list[Episode] = []
        for copy, own, remembered in zip(self.copies, taken, kept):
            one = copy.play(own, remembered)
            if not one.acting:
                finished.append(copy.finished())
                final = deepcopy(one.obs)  # an environment may write its next first observation into the same array
                begun = copy.begin()
                one = one._replace(obs=final, acting=copy.acting, begun=begun)
            played.append(one)
        with self._placing(played):
            return AgentStep({name: seat.see(played, out[name]) for name, seat in self.seats.items()}, finished)

    @contextmanager
    def _placing(self, played: Sequence[Played] = ()) -> Iterator[None]:
        """Wrong data tells the place of its environment, in the step that was played."""
        try:
            yield
        except EnvDataError as error:
            if error.env is None:
                raise
            copy = self.copies[error.env]
            has_begun = bool(played) and played[error.env].begun is not None
            place = copy.ended_at if has_begun and not error.is_next else copy.place()
            raise blamed(error, place or copy.place())  # noqa: B904  the same error

    def state_dict(self) -> dict[str, Any]:
        """Where each environment is: the start of its episode and what was done since; and what is acted on next."""
        if not self.is_begun:
            return {"run_seed": self.run_seed, "seats": None}
        state = {
            "run_seed": self.run_seed,
            "seats": {name: seat.state_dict() for name, seat in self.seats.items()},
            "episodes": [copy.starts.state_dict() for copy in self.copies],
        }
        return plain(state)  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring each environment back to where it was, by playing its episode again; where the agents have their policies.

        Raises:
            ValueError: the state of another number of environments, or of agents with other policies.
            EnvDataError: an environment does not come back to the same observations: it is not a function of its seed.
        """
        self._seed(int(state["run_seed"]))
        if state["seats"] is None:
            for seat in self.seats.values():
                seat.current = None
            return
        saved, count = state["seats"], len(state["episodes"])
        had = {name: len(first_leaf(seat["current"])) for name, seat in saved.items()}
        has = {name: seat.num_envs for name, seat in self.seats.items()}
        if count != self.num_envs or had != has:
            raise ValueError(
                f"the state of {count} environments with the rows {had} does not fit {self.num_envs} with the rows {has}: make "
                "as many, and give the agents to the same policies."
            )
        obs = [copy.restore(arrays(one)) for copy, one in zip(self.copies, state["episodes"])]
        with self._placing():
            for name, seat in self.seats.items():
                seat.load_state_dict(saved[name], obs, [copy.acting for copy in self.copies])

    def close(self) -> None:
        """Close each environment."""
        for copy in self.copies:
            if hasattr(copy.env, "close"):
                copy.env.close()
