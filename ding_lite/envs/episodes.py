"""Episodes: how each one starts, so that it can be played again, and what it amounted to.

Room: ding_lite.envs, floor 2. Imports nothing of ours.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium


class Episode(NamedTuple):
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


def episode_seed(run_seed: int, env: int, number: int) -> int:
    """The seed of an episode: a function of these three alone, spread over [0, 2**31).

    Example:
        >>> episode_seed(0, 1, 2) == episode_seed(0, 1, 2), episode_seed(0, 1, 2) == episode_seed(0, 2, 1)
        (True, False)
    """
    packed = struct.pack("<qqq", run_seed, env, number)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=4).digest(), "little") >> 1


class EpisodeStarts:
    """Begins the episodes of one environment, each from its own seed.

    Where seeding a reset is dear (ALE restarts its emulator for it, 90 ms instead of 3.5), only the first is seeded, and the
    simulator's state and generators before the reset are what `start` holds instead.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], run_seed: int, index: int) -> None:
        self.env, self.run_seed, self.index = env, run_seed, index
        self.number = -1
        self._is_dear = hasattr(env.unwrapped, "ale")
        self.start: dict[str, Any] = {}
        """How the current episode began: {"seed": ...}, or the simulator's state."""

    def begin(self, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment for its next episode. Returns its observation."""
        self.number += 1
        if self._is_dear and self.number > 0:
            self.start = simulator_state(self.env)
            obs, _ = self.env.reset(options=options)
        else:
            self.start = {"seed": episode_seed(self.run_seed, self.index, self.number)}
            obs, _ = self.env.reset(seed=self.start["seed"], options=options)
        return obs


def simulator_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """State and generators of an ALE environment between two episodes."""
    inner: Any = env.unwrapped
    return {"ale": inner.clone_state(include_rng=True), "np_random": inner.np_random.bit_generator.state}


def replay_episode(env: gymnasium.Env[Any, Any], start: dict[str, Any], actions: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Play an episode again: yields (obs,) of the reset, then what each `env.step(action)` returns.

    Args:
        env: an environment made as the first one was.
        start: `EpisodeStarts.start` of that episode, or {"seed": episode.seed}.
        actions: what was done.
    """
    if "ale" in start:
        env.reset(seed=0)
        inner: Any = env.unwrapped
        inner.restore_state(start["ale"])
        inner.np_random.bit_generator.state = start["np_random"]
        yield (env.reset()[0],)
    else:
        yield (env.reset(seed=start["seed"])[0],)
    for action in actions:
        yield env.step(action)
