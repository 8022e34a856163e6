"""Data: trees, columns, rollouts and replay."""

from typing import TYPE_CHECKING

from ding_lite.basics import unflatten
from ding_lite.data.batches import BatchPrefetcher, PreparedBatch
from ding_lite.data.column_arrays import Leaf as Leaf
from ding_lite.data.column_arrays import (
    LeafSpec,
    Spec,
    allocate,
    available_bytes,
    concatenate_flags,
    spec_bytes,
    spec_like,
    stack_rows,
    to_objects,
)
from ding_lite.data.device_transfers import CudaTransfer, StartTransfer, to_device
from ding_lite.data.episode_replay import EpisodeReplayBuffer, Within
from ding_lite.data.episodes import Episodes, cut_episodes
from ding_lite.data.hindsight import ACHIEVED, DESIRED, GoalRewards, HindsightSampler, RecordedInfo
from ding_lite.data.lists import episodes_from_list, rollout_from_list, stack_transitions
from ding_lite.data.minibatches import minibatches, rollout_rows
from ding_lite.data.mixtures import Buffers, Sampler, sampler
from ding_lite.data.prioritized import PrioritizedReplayBuffer
from ding_lite.data.random_generators import require_generator_state
from ding_lite.data.recycling import ArrayPool
from ding_lite.data.replay import ReplayBuffer
from ding_lite.data.restoring import require_integer, require_state, state_error
from ding_lite.data.rollouts import Order, RolloutBuffer, Trajectories
from ding_lite.data.sequences import SequenceWindow, cut_sequences
from ding_lite.data.sum_trees import SumTree
from ding_lite.data.trees import (
    Tree,
    first_leaf,
    flatten,
    has_leaf,
    holds_objects,
    is_tree,
    map_leaves,
    merge_leading_dims,
    nested,
    tree,
    with_leaves,
)

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise allow any name
    from ding_lite.data.foreign_names import __getattr__ as __getattr__

__all__ = [
    "ACHIEVED",
    "DESIRED",
    "ArrayPool",
    "BatchPrefetcher",
    "Buffers",
    "CudaTransfer",
    "EpisodeReplayBuffer",
    "Episodes",
    "GoalRewards",
    "HindsightSampler",
    "LeafSpec",
    "Order",
    "PreparedBatch",
    "PrioritizedReplayBuffer",
    "RecordedInfo",
    "ReplayBuffer",
    "RolloutBuffer",
    "Sampler",
    "SequenceWindow",
    "Spec",
    "StartTransfer",
    "SumTree",
    "Trajectories",
    "Tree",
    "Within",
    "allocate",
    "available_bytes",
    "concatenate_flags",
    "cut_episodes",
    "cut_sequences",
    "episodes_from_list",
    "first_leaf",
    "flatten",
    "has_leaf",
    "holds_objects",
    "is_tree",
    "map_leaves",
    "merge_leading_dims",
    "minibatches",
    "nested",
    "require_generator_state",
    "require_integer",
    "require_state",
    "rollout_from_list",
    "rollout_rows",
    "sampler",
    "spec_bytes",
    "spec_like",
    "stack_rows",
    "stack_transitions",
    "state_error",
    "to_device",
    "to_objects",
    "tree",
    "unflatten",
    "with_leaves",
]
