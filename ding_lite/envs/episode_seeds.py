"""Episode seeds: the seed of each episode, which depends only on the run's seed, the environment and the episode's number."""

from __future__ import annotations

import hashlib
import struct

SEEDS_PER_HASH = 16
"""Number of consecutive episodes whose seeds come from one hash."""


def episode_seed(run_seed: int, env: int, number: int) -> int:
    """The seed of an episode: a hash of these three numbers, in [0, 2**31).

    Example:
        >>> episode_seed(0, 1, 2) == episode_seed(0, 1, 2), episode_seed(0, 1, 2) == episode_seed(0, 2, 1)
        (True, False)
    """
    return seeds_of_block(run_seed, env, number // SEEDS_PER_HASH)[number % SEEDS_PER_HASH]


def seeds_of_block(run_seed: int, env: int, block: int) -> tuple[int, ...]:
    """The seeds of the episodes block * SEEDS_PER_HASH and following, from one hash."""
    digest = hashlib.blake2b(struct.pack("<qqq", run_seed, env, block)).digest()
    return tuple(seed >> 1 for seed in struct.unpack(f"<{SEEDS_PER_HASH}I", digest))
