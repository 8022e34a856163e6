"""Ranks: processes that learn one policy together: those that torchrun starts, or the learners of a program.

Internal: its names may change in any version.
"""

from ding_lite.ranks.process_groups import (
    RankError,
    Ranks,
    current_ranks,
    in_all_ranks,
    is_first_rank,
    joined,
    leave,
    meet,
    offer,
    seed_of_rank,
    total,
)

__all__ = [
    "RankError",
    "Ranks",
    "current_ranks",
    "in_all_ranks",
    "is_first_rank",
    "joined",
    "leave",
    "meet",
    "offer",
    "seed_of_rank",
    "total",
]
