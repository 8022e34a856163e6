"""Episode starts: how each episode begins, so that it can be played again, and what it amounted to."""

from __future__ import annotations

import copy
import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium
import numpy as np

_SEEDS = 16  # that one hash gives
_LONGEST = 1_000_000  # steps of an episode that are remembered


class EpisodeResult(NamedTuple):
    """One finished episode."""

    env: int
    """Index of its environment."""

    number: int
    """How many episodes that environment had begun before."""

    return_: float
    """Sum of its rewards, undiscounted."""

    length: int
    """Steps."""

    seed: int | None = None
    """What `env.reset(seed=...)` was given; None where the start was kept otherwise, or is not known."""

    info: Mapping[str, Any] = MappingProxyType({})
    """The info of its last step."""


Episode = EpisodeResult  # its name in earlier versions


def episode_seed(run_seed: int, env: int, number: int) -> int:
    """The seed of an episode: a function of these three alone, spread over [0, 2**31).

    Example:
        >>> episode_seed(0, 1, 2) == episode_seed(0, 1, 2), episode_seed(0, 1, 2) == episode_seed(0, 2, 1)
        (True, False)
    """
    return _seeds(run_seed, env, number // _SEEDS)[number % _SEEDS]


def _seeds(run_seed: int, env: int, block: int) -> tuple[int, ...]:
    """The seeds of as many episodes in a row as one hash gives."""
    digest = hashlib.blake2b(struct.pack("<qqq", run_seed, env, block)).digest()
    return tuple(seed >> 1 for seed in struct.unpack(f"<{_SEEDS}I", digest))


class EpisodeStarts:
    """Begins the episodes of one environment, each from its own seed, and remembers what was done since.

    Where seeding a reset is dear (ALE restarts its emulator for it, 90 ms instead of 3.5), only the first is seeded, and the
    simulator's state and generators before the reset are what `start` holds instead.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], run_seed: int, index: int) -> None:
        self.env, self.run_seed, self.index = env, run_seed, index
        self.number = -1
        """Of the current episode."""
        self.start: dict[str, Any] = {}
        """How the current episode began: {"seed": ...} or the simulator's state, and {"options": ...} where there were any."""
        self.actions: deque[Any] = deque(maxlen=_LONGEST)
        """What was done since, the last million steps."""
        self.earned = 0.0
        """By the current episode; set before the next one begins."""
        self._previous: dict[str, Any] | None = None
        """The episode before, and what it earned, until the current one has a step: a replay without steps shows nothing."""
        self._is_dear = hasattr(env.unwrapped, "ale")
        self._seeds: tuple[int, ...] = ()
        self.replayed: int | None = None
        """The step to be played next, while a saved episode is played again; None until its reset is done."""

    @property
    def described(self) -> str:
        """Number and beginning of the current episode, for messages."""
        return f"episode {self.number}, which began with {self.start if 'seed' in self.start else 'a kept state'}"

    def begin(self, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment for its next episode. Returns its observation and info."""
        is_known = self.number >= 0 and len(self.actions) < _LONGEST
        played = {"number": self.number, "start": self.start, "actions": [*self.actions], "return": self.earned}
        self._previous = played if is_known else None
        self.number += 1
        self.actions.clear()
        given = {} if options is None else {"options": copy.deepcopy(options)}
        if self._is_dear and self.number > 0:
            self.start = {**simulator_state(self.env), **given}
            return self.env.reset(options=options)
        place = self.number % _SEEDS
        if place == 0 or not self._seeds:
            self._seeds = _seeds(self.run_seed, self.index, self.number // _SEEDS)
        self.start = {"seed": self._seeds[place], **given}
        return self.env.reset(seed=self._seeds[place], options=options)

    def state_dict(self) -> dict[str, Any]:
        """The current episode: its number, its start, and what was done since; where that is nothing, also the one before.

        Raises:
            RuntimeError: the episode is longer than what is remembered.
        """
        if len(self.actions) == _LONGEST:
            raise RuntimeError(f"environment {self.index} is in an episode of over {_LONGEST:,} steps, and cannot be saved.")
        state = {"number": self.number, "start": self.start, "actions": _packed(self.actions)}
        if self._previous is not None and not self.actions:
            state["previous"] = {**self._previous, "actions": _packed(self._previous["actions"])}
        return state

    def load_state_dict(self, state: Mapping[str, Any], played: Callable[[int], None] | None = None) -> tuple[Any, list[Any]]:
        """Bring the environment back to where it was, by playing the episode again. Returns its observation, and the rewards.

        Args:
            played: called with the number of steps after each.
        """
        self.number, self.start, self._seeds = state["number"], state["start"], ()
        self._previous = state.get("previous")
        self.actions.clear()
        self.actions.extend(state["actions"])
        obs, rewards, self.replayed = None, [], None
        for step, result in enumerate(replay_episode(self.env, self.start, state["actions"])):
            obs, self.replayed = result[0], step
            if step:
                rewards.append(result[1])
            if played is not None:
                played(step)
        return obs, rewards


def _packed(actions: Iterable[Any]) -> Any:
    """Actions as one array, where they are arrays or numbers alike; else as they are."""
    listed = list(actions)
    kinds = {type(action) for action in listed}
    alike = len(kinds) == 1 and not kinds & {dict, tuple} and len({np.shape(action) for action in listed}) == 1
    return np.array(listed) if alike else listed


def simulator_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """State and generators of an ALE environment between two episodes, as plain data."""
    inner: Any = env.unwrapped
    state = np.frombuffer(inner.clone_state(include_rng=True).serialize(), np.uint8)
    return {"ale": state, "np_random": inner.np_random.bit_generator.state}


def replay_episode(env: gymnasium.Env[Any, Any], start: Mapping[str, Any], actions: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Play an episode again: yields (obs, info) of the reset, then what each `env.step(action)` returns.

    Args:
        env: an environment made as the first one was.
        start: {"seed": episode.seed}, or what `EpisodeStarts.start` was.
        actions: what was done.
    """
    if "ale" in start:
        from ale_py import ALEState  # there, since an ALE environment is

        env.reset(seed=0)
        inner: Any = env.unwrapped
        inner.restore_state(ALEState(np.asarray(start["ale"]).tobytes()))
        inner.np_random.bit_generator.state = start["np_random"]
        yield env.reset(options=copy.deepcopy(start.get("options")))
    else:
        yield env.reset(seed=start["seed"], options=copy.deepcopy(start.get("options")))
    for action in actions:
        yield env.step(action)
