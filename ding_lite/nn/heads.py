"""Heads: from features to action values.

Room: ding_lite.nn, floor 3, below policy. Torch only.
"""

from __future__ import annotations

from torch import Tensor, nn


class DuelingHead(nn.Module):
    """Action values as state value plus advantage, the advantage centred over actions.

        Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')

    Reference:
        Wang et al. (2016), https://arxiv.org/abs/1511.06581, eq. 9.
    """

    def __init__(self, in_features: int, num_actions: int) -> None:
        super().__init__()
        self.value, self.advantage = nn.Linear(in_features, 1), nn.Linear(in_features, num_actions)

    def forward(self, features: Tensor) -> Tensor:
        """[..., F] to [..., A]."""
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(-1, keepdim=True)  # type: ignore[no-any-return]
