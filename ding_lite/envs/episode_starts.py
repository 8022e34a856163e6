"""Episode starts: how each episode began, so that it can be replayed, and the result of a finished episode."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ding_lite.envs.carried_state import CarriedState
from ding_lite.envs.changes import Change, EnvChanges, apply, read, repeat, require_possible
from ding_lite.envs.episode_seeds import SEEDS_PER_HASH, seeds_of_block
from ding_lite.envs.reproducibility_checks import require_running
from ding_lite.envs.unsaved_env_state import (
    attributes_of,
    layers_of,
    layers_with_state,
    load_states,
    states_of,
    warn_of_lost_attributes,
)

_LONGEST = 1_000_000  # recorded steps of an episode


class EpisodeResult(NamedTuple):
    """One finished episode."""

    env: int
    """Index of its environment."""

    number: int
    """Number of earlier episodes of this environment."""

    return_: float
    """Undiscounted sum of its rewards."""

    length: int
    """Number of steps."""

    seed: int | None = None
    """Argument of `env.reset(seed=...)`; None if the start is stored in another way, or unknown."""

    info: Mapping[str, Any] = MappingProxyType({})
    """The info of its last step."""


Episode = EpisodeResult  # its name in earlier versions


def described(number: int, start: Mapping[str, Any]) -> str:
    """Number and start of an episode, for messages."""
    shown = {name: value for name, value in start.items() if name != "states"}
    return f"episode {number}, which began with {shown if 'seed' in shown else 'a saved state'}"


class EpisodeStarts:
    """Starts the episodes of one environment, each from its own seed, and records its actions.

    If a seeded reset is expensive (ALE restarts its emulator, 90 ms instead of 3.5), only the first reset is seeded. For later
    episodes, `start` holds the state of the simulator and its generators before the reset.

    Args:
        env: the environment.
        run_seed: random seed of the run.
        index: index of the environment.
        changes: earlier changes of the environment; None for none.
        changed_env: the object that changes are applied to; None for the environment itself.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        run_seed: int,
        index: int,
        changes: EnvChanges | None = None,
        changed_env: Any = None,
    ) -> None:
        self.run_seed, self.index = run_seed, index
        self.changes = EnvChanges() if changes is None else changes
        """What was changed in the environment by `call` and `set_attr`."""
        self.use(env, changed_env)
        self.changes.begin()
        self.number = -1
        """Number of the current episode."""
        self.start: dict[str, Any] = {}
        """Start of the current episode: {"seed": ...} or the simulator's state, and, if there are any, {"options": ...} and
        {"states": ...} of wrappers before the reset."""
        self.actions: deque[Any] = deque(maxlen=_LONGEST)
        """The actions of the current episode, at most a million."""
        self.earned = 0.0
        """Return of the current episode; set before the next one begins."""
        self._previous: dict[str, Any] | None = None
        """The previous episode and its return, saved while the current one has no steps, to check the replay with its
        rewards."""
        self._has_expensive_resets = hasattr(env.unwrapped, "ale")
        self._seeds: tuple[int, ...] = ()
        self._repeated: Mapping[str, Any] | None = None
        self.info: Mapping[str, Any] = {}
        """The last info of a replay."""
        self.replayed: int | None = None
        """Number of replayed steps while a saved episode is replayed; None until its reset is done."""

    def use(self, env: gymnasium.Env[Any, Any], changed_env: Any = None) -> None:
        """Use this environment from now on."""
        self.env, self._changed_env = env, env if changed_env is None else changed_env
        self._with_state = layers_with_state(env)
        self.carried = CarriedState(layers_of(env))
        """What the environment carries from one episode to the next."""

    def require_possible(self, change: Change) -> None:
        """Raise an error if the environment lacks the attribute of a change."""
        require_possible(self._changed_env, change, self.index)

    def change(self, change: Change) -> Any:
        """Apply a change, and record it for replays. Returns the result of a call."""
        recorded: Change | None = None
        try:
            result, recorded = apply(self._changed_env, change, self.index)
        except Exception:
            recorded = {**change, "raises": True} if "call" in change else None  # it may have changed the environment before
            raise
        finally:
            if recorded is not None:
                taken = len(self.actions) if self.number >= 0 else None
                self.changes.record(recorded, taken, f"environment {self.index} ({self.env})")
        return result

    def read(self, name: str) -> Any:
        """An attribute of the environment."""
        return read(self._changed_env, name, self.index)

    def load_changes(self, state: Mapping[str, Any] | None) -> None:
        """Apply the changes before the current episode to the environment, which is a new one; `state` is None for none."""
        self.changes = EnvChanges.of(state)
        self.changes.repeat(self._changed_env, self.env.reset)

    @property
    def described(self) -> str:
        """Number and start of the current episode, for messages."""
        return described(self.number, self.start)

    @property
    def previous(self) -> Mapping[str, Any] | None:
        """Number, start, actions and return of the previous episode, and changes in it, while the current one has no steps."""
        return None if self.actions else self._previous

    @property
    def all_actions(self) -> tuple[Any, ...] | None:
        """The actions of the current episode; None if it has more steps than are recorded."""
        return None if len(self.actions) == self.actions.maxlen else tuple(self.actions)

    def begin(self, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment for its next episode. Returns its observation and info."""
        result = self._begin(options)
        self.carried.note_reset()
        return result

    def _begin(self, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        is_known = self.number >= 0 and len(self.actions) < _LONGEST
        played = {"number": self.number, "start": self.start, "actions": [*self.actions], "return": self.earned}
        if self.changes:
            played["changes"] = self.changes.state_dict()
        self._previous = played if is_known else None
        self.number += 1
        self.actions.clear()
        self.changes.begin()
        if self._repeated is not None:
            self.start, self._repeated = dict(self._repeated), None
            return next(replay_episode(self.env, self.start, ()))
        given = states_of(self._with_state)
        if options is not None:
            given["options"] = copy.deepcopy(options)
        if self._has_expensive_resets and self.number > 0:
            self.start = {**simulator_state(self.env), **given}
            return self.env.reset(options=options)
        place = self.number % SEEDS_PER_HASH
        if place == 0 or not self._seeds:
            self._seeds = seeds_of_block(self.run_seed, self.index, self.number // SEEDS_PER_HASH)
        self.start = {"seed": self._seeds[place], **given}
        return self.env.reset(seed=self._seeds[place], options=options)

    def repeat(self, number: int, start: Mapping[str, Any]) -> None:
        """Make the next episode one with this number and this start, which is a value of `self.start`."""
        self.number, self._repeated = number - 1, start

    def state_dict(self) -> dict[str, Any]:
        """Number, start and actions of the current episode; before its first step, also those of the previous episode.

        Raises:
            RuntimeError: the episode has more steps than are recorded.
        """
        if len(self.actions) == _LONGEST:
            raise RuntimeError(
                f"environment {self.index} is in an episode of {_LONGEST:,} steps or more, which cannot be saved: give it a "
                "time limit."
            )
        state = {"number": self.number, "start": self.start, "actions": _packed(self.actions)}
        state["attributes"] = attributes_of(self.env)
        if self.changes:
            state["changes"] = self.changes.state_dict()
        if self.previous is not None:
            state["previous"] = {**self.previous, "actions": _packed(self.previous["actions"])}
        return state

    def load_state_dict(
        self, state: Mapping[str, Any], played: Callable[[int], None] | None = None, follows: bool = False
    ) -> tuple[Any, list[Any]]:
        """Restore the environment by replaying the saved episode. Returns its current observation, and the rewards.

        Args:
            state: a result of `state_dict`.
            played: called with the number of replayed steps after the reset and after each step.
            follows: whether the episode before it has just been replayed, so that changes before it are already applied.

        Raises:
            EnvDataError: the episode ends in a step after which the saved one went on.
        """
        self.number, self.start, self._seeds = state["number"], state["start"], ()
        self._previous = state.get("previous")
        self.actions.clear()
        self.actions.extend(state["actions"])
        obs, rewards, self.replayed = None, [], None
        if follows:
            self.changes = EnvChanges.of(state.get("changes"))
        else:
            self.load_changes(state.get("changes"))
        later = [(taken, partial(repeat, self._changed_env, change)) for taken, change in self.changes.during]
        length = len(state["actions"])
        has_ended = "return" in state  # the previous episode, which ended after its last action, or was cut by a reset
        for step, result in enumerate(replay_episode(self.env, self.start, state["actions"], later)):
            if step and not (has_ended and step == length):
                require_running(self.index, step, length, self._ends(result))
            obs, self.info, self.replayed = result[0], result[-1], step
            if step:
                rewards.append(result[1])
            if played is not None:
                played(step)
        warn_of_lost_attributes(self.env, self.index, state.get("attributes"))
        return obs, rewards

    def _ends(self, result: tuple[Any, ...]) -> bool:
        """Whether a step with this result ended the episode."""
        _, _, terminated, truncated, _ = result
        if isinstance(terminated, Mapping):  # by agent: the episode goes on while others take part
            return not getattr(self.env, "acting", True)
        return bool(terminated or truncated)


def _packed(actions: Iterable[Any]) -> Any:
    """Actions as one array, if they are arrays or numbers of one shape; else unchanged."""
    listed = list(actions)
    kinds = {type(action) for action in listed}
    alike = len(kinds) == 1 and not kinds & {dict, tuple} and len({np.shape(action) for action in listed}) == 1
    return np.array(listed) if alike else listed


def simulator_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """State of the simulator and generator of an ALE environment between two episodes, as plain data."""
    inner: Any = env.unwrapped
    state = np.frombuffer(inner.clone_state(include_rng=True).serialize(), np.uint8)
    return {"ale": state, "np_random": inner.np_random.bit_generator.state}


def replay_episode(
    env: gymnasium.Env[Any, Any],
    start: Mapping[str, Any],
    actions: Iterable[Any],
    changes: Sequence[tuple[int, Callable[[], object]]] = (),
) -> Iterator[tuple[Any, ...]]:
    """Replay an episode: yields (obs, info) of the reset, then the result of each `env.step(action)`.

    Args:
        env: an environment of the same kind.
        start: {"seed": episode.seed}, or `EpisodeStarts.start`.
        actions: the actions of the episode.
        changes: functions that change the environment, each with the number of steps before it, in ascending order.
    """
    waiting = deque(changes)

    def change(taken: int) -> None:
        while waiting and waiting[0][0] <= taken:
            waiting.popleft()[1]()

    if "ale" in start:
        from ale_py import ALEState  # installed, because this is an ALE environment

        env.reset(seed=0)
        inner: Any = env.unwrapped
        inner.restore_state(ALEState(np.asarray(start["ale"]).tobytes()))
        inner.np_random.bit_generator.state = start["np_random"]
        load_states(env, start)  # after that reset, which changes them
        yield env.reset(options=copy.deepcopy(start.get("options")))
    else:
        load_states(env, start)
        yield env.reset(seed=start["seed"], options=copy.deepcopy(start.get("options")))
    change(0)
    for taken, action in enumerate(actions, 1):
        yield env.step(action)
        change(taken)
