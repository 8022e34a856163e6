"""Multi-agent environments in several pieces, each stepped by its own worker: in this process, or in one process per piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle
import numpy as np

from ding_lite.basics import base_state, seed_of
from ding_lite.data import allocate, flatten
from ding_lite.data.column_arrays import concatenate_flags
from ding_lite.data.trees import map_leaves
from ding_lite.envs.agent_bases import AGENT_ENV_KEYS, MultiAgentStep, MultiAgentVectorBase, require_agents_state
from ding_lite.envs.agent_envs import AgentTraits, require_same_agents
from ding_lite.envs.agent_progress import ProgressMultiAgentVectorEnv
from ding_lite.envs.agent_slots import AgentSlots
from ding_lite.envs.info_columns import require_same_columns
from ding_lite.envs.multi_agent import AgentEnvFactory, MultiAgentVectorEnv
from ding_lite.envs.pieces import ENV, MakeHost, Pieces, len_of
from ding_lite.envs.recipes import recipe_of
from ding_lite.envs.reproducibility_checks import warn_of_other_envs
from ding_lite.envs.step_interfaces import RunningEpisode, Step
from ding_lite.processes import Copied, gather_results, release_hosts


class SplitMultiAgentVectorEnv(Pieces, MultiAgentVectorBase):
    """N copies of a multi-agent environment in pieces, each with its own host. Rollouts run in the process of the environments.

    With any host, the environments behave like those of a MultiAgentVectorEnv with the same seed.

    Args:
        factories: one per copy, each returning a new environment.
        seed: random seed of the run.
        sizes: number of environments in each piece.
        make_host: function of a piece's first environment and size that returns its host.
        info_columns: keys of infos whose values a collector records.

    Raises:
        Exception: the error of an environment's constructor.
        SpaceError: the copies have different agents or spaces.
    """

    state_name = MultiAgentVectorEnv.__name__
    """See `SplitVectorEnv.state_name`."""

    def __init__(
        self,
        factories: Sequence[AgentEnvFactory],
        seed: int,
        sizes: Sequence[int],
        make_host: MakeHost,
        info_columns: Sequence[str] = (),
    ) -> None:
        names = tuple(info_columns)
        first: AgentTraits = self._start(
            sizes, make_host, _make, lambda piece: (factories[piece], seed, piece.start, names), require_same_agents
        )
        super().__init__(self.num_envs, seed, first.spaces, names)
        self._columns: Sequence[Mapping[str, dict[str, np.ndarray[Any, Any]]]] = ()
        self.env_name, self.made_as, self.spec = first.made_as["name"], first.made_as, first.spec
        self.recipe = recipe_of(factories[0])
        """How one of its environments is made, as plain data; or a text that says why another program cannot make it."""

    def assign_slots(self, policy_of: Callable[[Any], str] | Mapping[Any, str], names: Sequence[str]) -> dict[str, AgentSlots]:
        """Assign each agent to a policy; see `MultiAgentVectorBase.assign_slots`."""
        is_first = not self.slots_of
        slots_of = super().assign_slots(policy_of, names)
        if is_first:
            name_of = {agent: name for name, slots in slots_of.items() for agent in slots.agents}
            asked = [host.submit(_assign, name_of, tuple(names), lasting=True) for host in self.hosts]
            gather_results(self.hosts, asked)
        return slots_of

    def begin(self, seed: int | None = None) -> None:
        """Begin an episode in every environment; with a seed, as if newly made with that seed."""
        self._require_slots()
        if seed is not None:
            self.run_seed = seed = seed_of(seed, "begin(seed={})")
        self.accept_loss()
        self._show(self.ask(_begin, [seed] * len(self.hosts)))

    def advance(self, actions: Mapping[str, Any], out: Mapping[str, Any]) -> MultiAgentStep:
        """Step with the actions of each policy; see `MultiAgentVectorBase.advance`."""
        self._require_begun()
        answers = self.ask(_advance, [self._actions_of(piece, actions) for piece in self.slices])
        played = [copied.value[0] for _, copied in answers]
        self._columns = [copied.value[1] for _, copied in answers]
        self._show([now for now, _ in answers], out)
        steps = {name: self._joined(name, [one.steps[name] for one in played]) for name in self.slots_of}
        return MultiAgentStep(steps, [episode for one in played for episode in one.finished])

    def _actions_of(self, piece: slice, actions: Mapping[str, Any]) -> dict[str, Any]:
        """The part of the actions for this piece."""
        found = {}
        for name, slots in self.slots_of.items():
            action = np.asarray(actions[name]) if isinstance(actions[name], (list, tuple)) else actions[name]
            for _, leaf in flatten(action):
                if len(leaf) != slots.num_envs:
                    raise ValueError(f"expected {slots.num_envs} actions, one for each row, got {len(leaf)}.")
            rows = rows_of(piece, slots)
            found[name] = map_leaves(lambda leaf, at=rows: leaf[at], action)
        return found

    def _joined(self, name: str, steps: Sequence[Step]) -> Step:
        starts = [rows_of(piece, self.slots_of[name]).start for piece in self.slices]
        return Step(
            np.concatenate([step.reward for step in steps]),
            np.concatenate([step.terminated for step in steps]),
            np.concatenate([step.truncated for step in steps]),
            {start + row: obs for start, step in zip(starts, steps) for row, obs in step.final_obs.items()},
            concatenate_flags([step.valid for step in steps], [len(step.reward) for step in steps], missing=True),
            [],
        )

    def _show(self, answers: Sequence[Mapping[str, Any]], out: Mapping[str, Any] | None = None) -> None:
        """Write the current observations of the pieces to `out`, or to new arrays, and make them those of the rows."""
        for name, slots in self.slots_of.items():
            current = allocate(slots.obs_spec, slots.num_envs) if out is None else out[name]
            parts = [rows_of(piece, slots) for piece in self.slices]
            for rows, answer in zip(parts, answers):
                map_leaves(lambda column, part, at=rows: column.__setitem__(at, part), current, answer[name][0])
            sizes = [len_of(rows) for rows in parts]
            slots.restarted, slots.idle = (
                concatenate_flags([answer[name][which] for answer in answers], sizes, missing=False) for which in (1, 2)
            )
            slots.current, slots.last, slots.stepped_by = current, None, None

    def step_info(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        """The columns of a policy's rows in the infos of the last step; see `MultiAgentVectorBase.step_info`."""
        parts = [columns[name] for columns in self._columns]
        require_same_columns(parts, lead=1)
        return {column: np.concatenate([part[column] for part in parts]) for column in self.info_columns}

    def describe_rows(self, slots: AgentSlots) -> None:
        """Set `infos` and `running_episodes` of these rows."""
        name = next(name for name, own in self.slots_of.items() if own is slots)
        answers = [copied.value for copied in self.ask(_rows, [name] * len(self.hosts))]
        slots.infos = [info for infos, _ in answers for info in infos]
        slots.running_episodes = [RunningEpisode(*row) for _, rows in answers for row in rows]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore each environment by replaying its saved episode. Call `assign_slots` before.

        If a replay fails, the environments are restored to their state before the call, also by replays.

        Raises:
            TypeError, ValueError: not a state of such environments, or their number, the number of pieces or the policies of
                the agents differ; nothing was changed.
            EnvDataError: a replayed environment returns other observations or rewards: it does not depend on its seed alone.
        """
        state = base_state(self, state, AGENT_ENV_KEYS)
        pieces = self._pieces_in(state)
        for piece, own in zip(self.slices, pieces):
            rows = {name: (len_of(rows_of(piece, slots)), slots.obs_spec) for name, slots in self.slots_of.items()}
            require_agents_state(own, len_of(piece), rows)
        warn_of_other_envs(state, self.made_as)
        self._load_pieces(pieces)
        self.run_seed = int(pieces[0]["run_seed"])
        found = self.ask(_current)
        if all(found):
            self._show(found)
        else:
            for slots in self.slots_of.values():
                slots.current = None

    def close(self) -> None:
        """Close each environment, and end the processes."""
        release_hosts(self.hosts, for_good=True)


def rows_of(piece: slice, slots: AgentSlots) -> slice:
    """The rows of a policy's agents in the environments of a piece."""
    return slice(piece.start * len(slots.agents), piece.stop * len(slots.agents))


# Functions that run in the process of the environments.


def _make(
    objects: dict[str, Any], factories: Sequence[AgentEnvFactory], seed: int, first_env: int, info_columns: Sequence[str]
) -> Copied[AgentTraits]:
    progress = objects.get("progress")
    env = (
        MultiAgentVectorEnv(factories, seed, first_env, info_columns)
        if progress is None
        else ProgressMultiAgentVectorEnv(factories, seed, first_env, progress, info_columns)
    )
    objects[ENV] = env
    traits, env.made_as = AgentTraits.of(env.agent_envs[0]), None
    try:
        cloudpickle.dumps(traits.spec)
    except Exception:  # noqa: BLE001  only for its reward threshold
        return Copied(dataclasses.replace(traits, spec=None))
    return Copied(traits)


def _assign(objects: dict[str, Any], name_of: Mapping[Any, str], names: Sequence[str]) -> None:
    objects[ENV].assign_slots(name_of, names)


def _begin(objects: dict[str, Any], seed: int | None) -> dict[str, Any]:
    objects[ENV].begin(seed)
    return _current(objects)


def _advance(objects: dict[str, Any], actions: Mapping[str, Any]) -> tuple[dict[str, Any], Copied[Any]]:
    env: MultiAgentVectorEnv = objects[ENV]
    out = {name: allocate(slots.obs_spec, slots.num_envs) for name, slots in env.slots_of.items()}
    step = env.advance(actions, out)
    columns = {name: env.step_info(name) for name in env.slots_of} if env.info_columns else {}
    return _current(objects), Copied((step, columns))


def _current(objects: dict[str, Any]) -> dict[str, Any]:
    env: MultiAgentVectorEnv = objects[ENV]
    if not env.is_begun:
        return {}
    return {name: (slots.current, slots.restarted, slots.idle) for name, slots in env.slots_of.items()}


def _rows(objects: dict[str, Any], name: str) -> Copied[tuple[Any, ...]]:
    env: MultiAgentVectorEnv = objects[ENV]
    slots = env.slots_of[name]
    env.describe_rows(slots)
    return Copied((slots.infos, [tuple(episode) for episode in slots.running_episodes]))
