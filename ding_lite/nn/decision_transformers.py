"""Decision transformers: the parameters of actions from the last returns-to-go, observations and actions of an episode."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from ding_lite.data import nested
from ding_lite.data.trees import map_leaves
from ding_lite.nn.action_distributions import action_distribution
from ding_lite.nn.attention import AttentionBlock
from ding_lite.nn.encoders import ConvLayers, make_network
from ding_lite.nn.initialization import orthogonal
from ding_lite.nn.normalization import make_normalizer

_TOKENS = 3  # of a step: return-to-go, observation, action


class DecisionTransformer(nn.Module):
    """A causal transformer over return-to-go, observation and action of each step, in this order.

    The features at an observation depend on the steps before and on this step's return-to-go, and give the parameters of the
    action's distribution. Each step has a learned embedding of its number in the episode.

    Args:
        observation_space, action_space: spaces of one environment.
        size: width of the tokens; a multiple of `heads`.
        layers: number of blocks.
        heads: attention heads of each block.
        longest: steps of the longest episode; later steps have the embedding of the last of these.
        normalize_obs: normalise observations, see `make_normalizer`.
        conv_layers: convolutions for images, see `make_network`.

    Reference:
        Chen et al. (2021), https://arxiv.org/abs/2106.01345, section 3.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        size: int,
        layers: int,
        heads: int,
        longest: int,
        normalize_obs: bool = False,
        conv_layers: ConvLayers | None = None,
    ) -> None:
        super().__init__()
        self.distribution = action_distribution(action_space)
        self.normalizer = make_normalizer(observation_space) if normalize_obs else None
        self.embed_obs = make_network(observation_space, [], size, conv_layers=conv_layers)
        self.embed_action = make_network(action_space, [], size)
        self.embed_return = nn.Linear(1, size)
        self.embed_timestep = nn.Embedding(longest, size)
        nn.init.normal_(self.embed_timestep.weight, std=0.02)
        self.input_norm, self.output_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.blocks = nn.ModuleList([AttentionBlock(size, heads) for _ in range(layers)])
        self.head = orthogonal(nn.Linear(size, self.distribution.width), 0.01)

    def forward(self, obs: Any, action: Any, return_to_go: Tensor, timestep: Tensor, valid: Tensor) -> Tensor:
        """Compute the parameters of the action of each step.

        Args:
            obs: [B, K, *obs_shape], nested like the space.
            action: [B, K, *action_shape], nested like the space. That of the last step has no influence.
            return_to_go: [B, K] float.
            timestep: number of each step in its episode, [B, K] int64.
            valid: [B, K] bool, False for places without a step, all of which come first. They have no influence on steps.

        Returns:
            The logit, [B, K, width]; arbitrary where `valid` is False.
        """
        batch, length = valid.shape
        flat = map_leaves(lambda leaf: leaf.flatten(0, 1), {"obs": nested(obs), "action": nested(action)})
        if self.normalizer is not None:
            flat["obs"] = self.normalizer(flat["obs"])
        numbers = self.embed_timestep(timestep.clamp(max=self.embed_timestep.num_embeddings - 1))
        parts = (
            self.embed_return(return_to_go.unsqueeze(-1)),
            self.embed_obs(flat["obs"]).unflatten(0, (batch, length)),
            self.embed_action(flat["action"]).unflatten(0, (batch, length)),
        )
        tokens = self.input_norm(torch.stack([part + numbers for part in parts], 2).flatten(1, 2))
        count = _TOKENS * length
        causal = torch.ones(count, count, dtype=torch.bool, device=valid.device).tril()
        # A place without a step attends to itself, because the softmax over no token is NaN.
        itself = torch.eye(count, dtype=torch.bool, device=valid.device)
        attends = (causal & valid.repeat_interleave(_TOKENS, 1).unsqueeze(1)) | itself
        for block in self.blocks:
            tokens = block(tokens, None, attends.unsqueeze(1))
        features = self.output_norm(tokens).unflatten(1, (length, _TOKENS))[:, :, 1]
        return self.head(features)  # type: ignore[no-any-return]
