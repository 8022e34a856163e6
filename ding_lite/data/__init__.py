"""Data: trees, columns, rollouts and replay.

Room: ding_lite.data, floor 1. Imports the engine.
"""

from ding_lite.basics import unflatten
from ding_lite.data.columns import Leaf, Spec, allocate, available_bytes, spec_bytes, spec_like
from ding_lite.data.minibatches import minibatches, rollout_rows
from ding_lite.data.recycling import Recycler
from ding_lite.data.replay import ReplayBuffer
from ding_lite.data.rollouts import RolloutBuffer, Trajectories
from ding_lite.data.trees import Tree, first_leaf, flatten, has_leaf, map_leaves, nested, tree, with_leaves

__all__ = [
    "Leaf",
    "Recycler",
    "ReplayBuffer",
    "RolloutBuffer",
    "Spec",
    "Trajectories",
    "Tree",
    "allocate",
    "available_bytes",
    "first_leaf",
    "flatten",
    "has_leaf",
    "map_leaves",
    "minibatches",
    "nested",
    "rollout_rows",
    "spec_bytes",
    "spec_like",
    "tree",
    "unflatten",
    "with_leaves",
]
