"""Multi-agent environments with PettingZoo's parallel API, stepped in a plain loop.

PettingZoo itself is not imported: any object with `possible_agents`, `agents`, `reset`, `step` and the two spaces works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any, cast

import numpy as np

from ding_lite.basics import add_note, arrays, base_state, plain, seed_of
from ding_lite.basics.blocks import block
from ding_lite.envs.agent_bases import AGENT_ENV_KEYS, MultiAgentStep, MultiAgentVectorBase, require_agents_state
from ding_lite.envs.agent_envs import AgentEnv, require_own_envs, require_same_agents
from ding_lite.envs.agent_slots import AgentSlots, AgentStepResult
from ding_lite.envs.changes import Change
from ding_lite.envs.env_data_checks import EnvDataError
from ding_lite.envs.episode_starts import EpisodeResult
from ding_lite.envs.error_locations import with_location
from ding_lite.envs.factories import close_all
from ding_lite.envs.info_columns import InfoColumns
from ding_lite.envs.infos import own_info
from ding_lite.envs.names import made_as, name_of_envs
from ding_lite.envs.recipes import recipe_of
from ding_lite.envs.reproducibility_checks import warn_of_other_envs
from ding_lite.envs.saved_states import only_piece_of
from ding_lite.envs.step_interfaces import RunningEpisode
from ding_lite.metrics.sums import mean_of

AgentEnvFactory = Callable[..., Any]


class MultiAgentVectorEnv(MultiAgentVectorBase):
    """N copies of a multi-agent environment. Each is reset in the step that ends its episode.

    An episode ends when no agent is left. The row of an agent that leaves earlier does not change until the next episode; see
    `AgentSlots`. An agent may join later, but cannot return within an episode.

    Args:
        factories: one per copy, each returning a new environment.
        seed: random seed of the run.
        first_env: index of the first environment, if this is one of several pieces.
        info_columns: keys of infos whose values a collector records.
    """

    def __init__(
        self, factories: Sequence[AgentEnvFactory], seed: int = 0, first_env: int = 0, info_columns: Sequence[str] = ()
    ) -> None:
        self.first_env = first_env
        self.agent_envs: list[AgentEnv] = []
        try:
            for index, factory in enumerate(factories, first_env):
                self.agent_envs.append(self._made(factory, index, seed))
            require_own_envs(self.agent_envs)
            require_same_agents(self.agent_envs)
        except BaseException:
            with suppress(Exception):
                MultiAgentVectorEnv.close(self)  # those that were made
            raise
        super().__init__(len(self.agent_envs), seed, self.agent_envs[0].spaces, info_columns)
        self.made_as = made_as(self.agent_envs[0].env)
        self._info_columns: dict[str, InfoColumns] = {}
        self._played: Sequence[AgentStepResult] = ()

    def _made(self, factory: AgentEnvFactory, index: int, seed: int) -> AgentEnv:
        return AgentEnv(factory, index, seed)

    @property
    def recipe(self) -> dict[str, Any] | str:
        """How one of its environments is made, as plain data; or a text that says why another program cannot make it."""
        return recipe_of(self.agent_envs[0].factory)

    @property
    def envs(self) -> list[Any]:
        """The environments themselves."""
        return [agent_env.env for agent_env in self.agent_envs]

    def _seed(self, seed: int) -> None:
        self.run_seed = seed
        for agent_env in self.agent_envs:
            agent_env.seed(seed)

    def begin(self, seed: int | None = None) -> None:
        """Begin an episode in every environment; with a seed, as if newly made with that seed."""
        self._require_slots()
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
        self._require_begun()
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
                finished.append(self._with_policies(agent_env.finished()))
                one = _kept(one)
                begun = agent_env.begin()
                one = one._replace(acting=agent_env.acting, begun=begun)
            played.append(one)
        self._played = played
        with self._placing(played):
            return MultiAgentStep({name: slots.to_rows(played, out[name]) for name, slots in self.slots_of.items()}, finished)

    def _with_policies(self, episode: EpisodeResult) -> EpisodeResult:
        """The episode with the mean return of the agents of each policy, over those that took part."""
        returns = episode.info["return"]
        parts = {name: [returns[one] for one in slots.agents if one in returns] for name, slots in self.slots_of.items()}
        means = {name: mean_of(part) for name, part in parts.items() if part}
        return episode._replace(info={"return": returns, "policy_return": means, **episode.info})

    @block
    def _placing(self, played: Sequence[AgentStepResult] = ()) -> Iterator[None]:
        """Adds the location in the environment to an EnvDataError."""
        try:
            yield
        except EnvDataError as error:
            if error.env is None:
                raise
            at = error.env - self.first_env
            agent_env = self.agent_envs[at]
            has_begun = bool(played) and played[at].begun is not None
            place = agent_env.ended_at if has_begun and not error.is_next else agent_env.place()
            raise with_location(error, place or agent_env.place())  # noqa: B904  the same error

    def step_info(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        """The columns of a policy's rows in the infos of the last step; see `MultiAgentVectorBase.step_info`."""
        slots, columns = self.slots_of[name], self._columns_of(name)
        played = [(self._played[index - self.first_env], agent) for index, agent in slots.rows]
        infos = [one.infos.get(agent, {}) if agent in one.acted else {} for one, agent in played]
        absent = {row for row, (one, agent) in enumerate(played) if agent not in one.acted}
        with self._placing(self._played):
            found = columns.gather(infos, absent)
        if self.agent_envs[0].starts.number > 0:
            columns.warn_of_missing(f"{name_of_envs(self)} for the policy {name!r}")
        return found

    def _columns_of(self, name: str) -> InfoColumns:
        if name not in self._info_columns:
            self._info_columns[name] = InfoColumns(self.info_columns, rows=self.slots_of[name].rows)
        return self._info_columns[name]

    def describe_rows(self, slots: AgentSlots) -> None:
        """Set `infos` and `running_episodes` of these rows."""
        rows = [(self.agent_envs[index - self.first_env], agent) for index, agent in slots.rows]
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
            unbegun: dict[str, Any] = {"run_seed": self.run_seed, "made_as": self.made_as, "seats": None}
            if any(agent_env.starts.changes for agent_env in self.agent_envs):
                unbegun["changes"] = [agent_env.starts.changes.state_dict() for agent_env in self.agent_envs]
            return plain(unbegun)  # type: ignore[no-any-return]
        state = {
            "run_seed": self.run_seed,
            "made_as": self.made_as,
            "seats": {name: slots.state_dict() for name, slots in self.slots_of.items()},
            "episodes": [agent_env.starts.state_dict() for agent_env in self.agent_envs],
            "returns": [agent_env.earned for agent_env in self.agent_envs],
        }
        if self.info_columns:
            state["info_columns"] = {name: self._columns_of(name).state_dict() for name in self.slots_of}
        return plain(state)  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore each environment by replaying its saved episode. Call `assign_slots` before.

        If a replay fails, the environments are restored to their state before the call, also by replays.

        Raises:
            TypeError, ValueError: not a state of such environments, or their number or the policies of the agents differ;
                nothing was changed.
            EnvDataError: a replayed environment returns other observations or rewards: it does not depend on its seed alone.
        """
        whole = base_state(self, state, AGENT_ENV_KEYS)
        state = only_piece_of(whole)
        rows = {name: (slots.num_envs, slots.obs_spec) for name, slots in self.slots_of.items()}
        require_agents_state(state, self.num_envs, rows)
        warn_of_other_envs(whole, self.made_as)
        run_seed, starts = self.run_seed, [agent_env.starts for agent_env in self.agent_envs]
        earlier = {name: (slots.current, slots.restarted, slots.last) for name, slots in self.slots_of.items()}
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
                    slots.current, slots.restarted, slots.last = earlier[name]
            raise

    def _go_to(self, state: Mapping[str, Any]) -> None:
        """Replay the saved episodes."""
        unbegun = arrays(state.get("changes")) or [None] * self.num_envs
        self.run_seed, self._info_columns = int(state["run_seed"]), {}
        for name, saved in state.get("info_columns", {}).items():
            self._columns_of(name).load_state_dict(saved)
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
        """Close each environment, also after an error of another one."""
        close_all(agent_env.env for agent_env in self.agent_envs)


def _kept(played: AgentStepResult) -> AgentStepResult:
    """The same result with copies of its parts, because a reset may change in place what the environment returned."""
    return played._replace(
        obs=deepcopy(played.obs),
        rewards=deepcopy(played.rewards),
        terminations=deepcopy(played.terminations),
        truncations=deepcopy(played.truncations),
        infos=own_info(played.infos),
    )


AgentVectorEnv = MultiAgentVectorEnv  # its name in earlier versions
