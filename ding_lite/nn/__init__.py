"""Networks: encoders, heads and their initialization.

Room: ding_lite.nn, floor 3, below policy. Imports envs and functional.
"""

from ding_lite.nn.encoders import ACTIVATIONS, ConvLayers, make_encoder, mlp
from ding_lite.nn.heads import ActionHead, DuelingHead, action_head
from ding_lite.nn.initialization import orthogonal, seeded

__all__ = [
    "ACTIVATIONS",
    "ActionHead",
    "ConvLayers",
    "DuelingHead",
    "action_head",
    "make_encoder",
    "mlp",
    "orthogonal",
    "seeded",
]
