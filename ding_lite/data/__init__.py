"""Data: trees, columns, rollouts and replay."""

from typing import TYPE_CHECKING

from ding_lite.basics import unflatten
from ding_lite.data.column_arrays import Leaf as Leaf
from ding_lite.data.column_arrays import LeafSpec, Spec, allocate
from ding_lite.data.device_transfers import to_device
from ding_lite.data.episode_replay import EpisodeReplayBuffer, GoalSelection
from ding_lite.data.episode_replay import Within as Within
from ding_lite.data.episodes import Episodes
from ding_lite.data.hindsight_batches import GoalRewards, HindsightSampler
from ding_lite.data.minibatches import minibatches
from ding_lite.data.mixtures import Buffers, sampler
from ding_lite.data.prioritized_replay import PrioritizedReplayBuffer
from ding_lite.data.replay import ReplayBuffer
from ding_lite.data.rollouts import Order as Order
from ding_lite.data.rollouts import RolloutArrays, RolloutOrder, Trajectories
from ding_lite.data.rollouts import RolloutBuffer as RolloutBuffer
from ding_lite.data.trees import Tree, flatten, nested, tree, with_leaves

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise allow any name
    from ding_lite.data.foreign_names import __getattr__ as __getattr__

__all__ = [
    "Buffers",
    "EpisodeReplayBuffer",
    "Episodes",
    "GoalRewards",
    "GoalSelection",
    "HindsightSampler",
    "LeafSpec",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "RolloutArrays",
    "RolloutOrder",
    "Spec",
    "Trajectories",
    "Tree",
    "allocate",
    "flatten",
    "minibatches",
    "nested",
    "sampler",
    "to_device",
    "tree",
    "unflatten",
    "with_leaves",
]
