"""Networks: layers, encoders, heads, distributions over actions, and initialization.

Room: ding_lite.nn, floor 3, below policy. Imports envs and functional.
"""

from ding_lite.nn.distributions import ActionDistribution, action_distribution
from ding_lite.nn.encoders import ConvLayers, make_network
from ding_lite.nn.heads import DuelingHead
from ding_lite.nn.initialization import orthogonal, seeded
from ding_lite.nn.layers import ACTIVATIONS, MLP

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "ActionDistribution",
    "ConvLayers",
    "DuelingHead",
    "action_distribution",
    "make_network",
    "orthogonal",
    "seeded",
]
