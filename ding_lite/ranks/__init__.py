"""Ranks: the processes that torchrun starts, which learn one policy together."""

from ding_lite.ranks.groups import RankError, Ranks, current_ranks, in_all_ranks, is_first_rank, joined, seed_of_rank, total

__all__ = ["RankError", "Ranks", "current_ranks", "in_all_ranks", "is_first_rank", "joined", "seed_of_rank", "total"]
