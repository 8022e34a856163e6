"""Environments in several pieces, each stepped by its own worker: in this process, or in one process per piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import gymnasium
import numpy as np

from ding_lite.basics import base_state, seed_of
from ding_lite.data import allocate, flatten
from ding_lite.data.trees import map_leaves
from ding_lite.envs.batched_steps import Vectorization
from ding_lite.envs.factories import EnvFactory
from ding_lite.envs.info_columns import require_same_columns
from ding_lite.envs.local_vectors import LocalVectorEnv
from ding_lite.envs.pieces import ENV, MakeHost, Pieces, len_of
from ding_lite.envs.progress import ProgressVectorEnv
from ding_lite.envs.recipes import recipe_of
from ding_lite.envs.reproducibility_checks import warn_of_other_envs
from ding_lite.envs.saved_states import ENV_KEYS, require_env_state
from ding_lite.envs.spaces import SpaceError, hidden_difference, same_layout
from ding_lite.envs.step_interfaces import RunningEpisode, Step
from ding_lite.envs.vector_bases import SameStepVectorEnv, Traits
from ding_lite.processes import Copied, release_hosts


class SplitVectorEnv(Pieces, SameStepVectorEnv):
    """B environments in pieces, each with its own host. Rollouts run in the process of the environments.

    With any host, the environments behave like those of a LocalVectorEnv with the same seed.

    Args:
        factories: one per environment, each returning a new one.
        seed: random seed of the run.
        sizes: number of environments in each piece.
        make_host: function of a piece's first environment and size that returns its host.
        info_columns: keys of infos whose values a collector records.
        vectorization: how the environments of a piece are stepped; see `make_envs`.

    Raises:
        Exception: the error of an environment's constructor.
        SpaceError: the environments have different spaces.
    """

    state_name = LocalVectorEnv.__name__
    """A run that is saved with workers can be continued without, if there is one piece, and the other way round."""

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        seed: int,
        sizes: Sequence[int],
        make_host: MakeHost,
        info_columns: Sequence[str] = (),
        vectorization: Vectorization = "none",
    ) -> None:
        self.info_columns = tuple(info_columns)
        first: Traits = self._start(
            sizes,
            make_host,
            _make,
            lambda piece: (factories[piece], seed, piece.start, self.info_columns, vectorization),
            self._require_alike,
        )
        self._describe(self.num_envs, first)
        self.factory = factories[0]
        """Makes another one of its environments, in the process that calls it."""
        self.recipe = recipe_of(factories[0])
        """How one of its environments is made, as plain data; or a text that says why another program cannot make it."""
        self.action_space.seed(seed)
        self.run_seed = seed
        self.current: Any = None
        self.restarted: np.ndarray[Any, Any] | None = None
        self.last: tuple[Any, np.ndarray[Any, Any]] | None = None
        self.stepped_by: Any = None
        self.acted_by: Any = None
        self._info: tuple[dict[str, Any], ...] = ()
        self._columns: list[dict[str, np.ndarray[Any, Any]]] = []

    def _require_alike(self, traits: Sequence[Traits]) -> None:
        first = traits[0]
        for piece, other in zip(self.slices, traits):
            alike = same_layout(other.observation_space, first.observation_space)
            if not alike or other.action_space != first.action_space:
                hidden = hidden_difference(other.observation_space, first.observation_space)
                hidden += hidden_difference(other.action_space, first.action_space)
                raise SpaceError(
                    f"environment {piece.start} has the spaces {other.observation_space}, {other.action_space}, "
                    f"environment 0 has {first.observation_space}, {first.action_space}{hidden}: they must be the same in "
                    "all environments."
                )

    def begin(self, out: Any, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode in every environment, and write the observations to `out`, nested arrays [B, ...]."""
        count = len(self.hosts)
        if seed is not None:
            self.run_seed = seed = seed_of(seed, "reset(seed={})")
            self.action_space.seed(seed)
        self.accept_loss()
        self._join(self.ask(_begin, [seed] * count, [Copied(options)] * count), out)
        self.restarted = np.ones(self.num_envs, np.bool_)

    def advance(self, action: Any, out: Any) -> Step:
        """Step with nested actions [B, ...], and write the next observations to `out`."""
        if self.current is None:
            raise gymnasium.error.ResetNeeded("step() before reset(): call reset() first.")
        action = np.asarray(action) if isinstance(action, (list, tuple)) else action
        for _, leaf in flatten(action):
            if len(leaf) != self.num_envs:
                raise ValueError(f"expected {self.num_envs} actions, one for each environment, got {len(leaf)}.")
        answers = self.ask(_advance, [map_leaves(lambda leaf, at=piece: leaf[at], action) for piece in self.slices])
        steps: list[Step] = self._join(answers, out)
        terminated = np.concatenate([step.terminated for step in steps])
        truncated = np.concatenate([step.truncated for step in steps])
        ended = terminated | truncated
        self.restarted = ended if ended.any() else None
        return Step(
            np.concatenate([step.reward for step in steps]),
            terminated,
            truncated,
            {piece.start + index: obs for piece, step in zip(self.slices, steps) for index, obs in step.final_obs.items()},
            None,
            [episode for step in steps for episode in step.finished],
        )

    def _join(self, answers: Sequence[tuple[Any, Copied[Any]]], out: Any) -> list[Any]:
        """Write the observations of the pieces to `out`, and return the other results of their steps."""
        for piece, (obs, _) in zip(self.slices, answers):
            map_leaves(lambda column, part, at=piece: column.__setitem__(at, part), out, obs)
        self._info = tuple(info for _, copied in answers for info in copied.value[0])
        self._columns = [copied.value[2] for _, copied in answers]
        self.current, self.last = out, None
        return [copied.value[1] for _, copied in answers]

    def step_info(self) -> dict[str, np.ndarray[Any, Any]]:
        """The columns [B, ...] of `info_columns` in the infos of the last step."""
        require_same_columns(self._columns, lead=1)
        return {name: np.concatenate([part[name] for part in self._columns]) for name in self.info_columns}

    @property
    def running_episodes(self) -> list[RunningEpisode]:
        """The current episode of each environment."""
        return [RunningEpisode(*row) for copied in self.ask(_running_episodes) for row in copied.value]

    @property
    def is_vectorized(self) -> bool:
        """Whether all environments of each piece are stepped at once, as arrays; see `vectorization` of `make_envs`."""
        return all(self.ask(_is_vectorized))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore each environment by replaying its saved episode.

        If a replay fails, the environments are restored to their state before the call, also by replays.

        Raises:
            TypeError, ValueError: not a state of such environments, or their number or the number of pieces differs; nothing
                was changed.
            EnvDataError: a replayed environment returns other observations or rewards: it does not depend on its seed alone.
        """
        state = base_state(self, state, ENV_KEYS)
        pieces = self._pieces_in(state)
        for piece, own in zip(self.slices, pieces):
            require_env_state(own, len_of(piece), self._obs_spec)
        warn_of_other_envs(state, self.made_as)
        self._load_pieces(pieces)
        self.run_seed = int(pieces[0]["run_seed"])
        self.action_space.seed(self.run_seed)
        self.current = self.restarted = None
        found = self.ask(_current)
        self._info = tuple(info for _, _, copied in found for info in copied.value)
        if all(obs is not None for obs, _, _ in found):
            self.current = allocate(self._obs_spec, self.num_envs)
            for piece, (obs, _, _) in zip(self.slices, found):
                map_leaves(lambda column, part, at=piece: column.__setitem__(at, part), self.current, obs)
            flags = [
                np.zeros(len_of(piece), np.bool_) if flag is None else flag for piece, (_, flag, _) in zip(self.slices, found)
            ]
            self.restarted = np.concatenate(flags)

    def render(self) -> tuple[Any, ...]:
        """The frame of each environment."""
        return tuple(frame for copied in self.ask(_render) for frame in copied.value)

    def close_extras(self, **kwargs: Any) -> None:
        """Close each environment, and end the processes."""
        release_hosts(self.hosts, for_good=True)


# Functions that run in the process of the environments.


def _make(
    objects: dict[str, Any],
    factories: Sequence[EnvFactory],
    seed: int,
    first_env: int,
    info_columns: Sequence[str],
    vectorization: Vectorization,
) -> Copied[Traits]:
    progress = objects.get("progress")
    env = (
        LocalVectorEnv(factories, seed, first_env, info_columns, vectorization)
        if progress is None
        else ProgressVectorEnv(factories, seed, first_env, progress, info_columns, vectorization)
    )
    objects[ENV] = env
    traits, env.made_as = env.traits, None
    try:
        cloudpickle.dumps(traits)
    except Exception:  # noqa: BLE001  only for display
        return Copied(traits._replace(spec=None, metadata={}))
    return Copied(traits)


def _begin(objects: dict[str, Any], seed: int | None, options: Copied[dict[str, Any] | None]) -> tuple[Any, Copied[Any]]:
    env: LocalVectorEnv = objects[ENV]
    out = env.new_obs()
    env.begin(out, seed, options.value)
    return out, Copied((env.infos, None, {}))


def _advance(objects: dict[str, Any], action: Any) -> tuple[Any, Copied[Any]]:
    env: LocalVectorEnv = objects[ENV]
    out = env.new_obs()
    step = env.advance(action, out)
    return out, Copied((env.infos, step, env.step_info() if env.info_columns else {}))


def _current(objects: dict[str, Any]) -> tuple[Any, Any, Copied[Any]]:
    return objects[ENV].current, objects[ENV].restarted, Copied(objects[ENV].infos)


def _running_episodes(objects: dict[str, Any]) -> Copied[list[tuple[Any, ...]]]:
    return Copied([tuple(episode) for episode in objects[ENV].running_episodes])


def _is_vectorized(objects: dict[str, Any]) -> bool:
    env: LocalVectorEnv = objects[ENV]
    return env.is_vectorized


def _render(objects: dict[str, Any]) -> Copied[tuple[Any, ...]]:
    return Copied(objects[ENV].render())
