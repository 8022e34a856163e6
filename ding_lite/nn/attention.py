"""Attention: a transformer block, features of the last observations of an episode, and features of sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ding_lite.data import nested
from ding_lite.data.trees import map_leaves
from ding_lite.nn.initialization import orthogonal

_CHUNK = 256  # steps per call of a block, because the memory of the scores is quadratic in this number


class AttentionBlock(nn.Module):
    """A transformer block that normalises before each part.

        x = x + attention(norm(x))
        x = x + mlp(norm(x))

    Args:
        width: width of the tokens; a multiple of `heads`.
        heads: attention heads.

    Raises:
        ValueError: the width is not a multiple of the heads.

    Reference:
        Vaswani et al. (2017), https://arxiv.org/abs/1706.03762; with the order of Xiong et al. (2020),
        https://arxiv.org/abs/2002.04745.

    Example:
        >>> AttentionBlock(8, 2)(torch.zeros(3, 5, 8)).shape
        torch.Size([3, 5, 8])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"attention wants a width that is a multiple of the heads, got width {width} and {heads} heads.")
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (orthogonal(nn.Linear(width, width), 1.0) for _ in range(4))
        self.mlp = nn.Sequential(
            orthogonal(nn.Linear(width, 4 * width), 2**0.5), nn.GELU(), orthogonal(nn.Linear(4 * width, width), 1.0)
        )

    def forward(self, tokens: Tensor, count: int | None = None, mask: Tensor | None = None) -> Tensor:
        """Compute the last `count` tokens.

        Args:
            tokens: [B, K, width].
            count: Q; None for all.
            mask: numbers that are added to the attention scores, or bools that are True where a token attends to another;
                broadcast to [B, heads, Q, K]. None for no mask.

        Returns:
            [B, Q, width].
        """
        count = tokens.shape[1] if count is None else count
        x, normed = tokens[:, tokens.shape[1] - count :], self.attention_norm(tokens)
        query, key, value = (
            layer(part).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, part in ((self.query, normed[:, tokens.shape[1] - count :]), (self.key, normed), (self.value, normed))
        )
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class AttentionFeatures(nn.Module):
    """An encoder followed by transformer blocks: features that depend on the last observations of the episode.

    In each block, a step attends to itself and to the window - 1 steps before it, within the episode. Positions are relative:
    each head adds a learned number to the score of a step that is k steps old. So a step has the same features at any place in
    a rollout.

    The recurrent state has, for each block, its inputs at the last window - 1 steps, [window - 1, size]; and the number of
    those steps that belong to the episode, an int. Gradients do not reach the steps before a rollout, and their inputs are
    those of the weights that acted, as with the state of an LSTM. With n blocks, features depend on up to n * (window - 1)
    steps before.

    Args:
        encoder: maps observations [B, *obs_shape], nested like the space, to [B, width].
        width: width of the encoder's output.
        size: width of the blocks and of the features; a multiple of `heads`.
        window: steps that a step attends to, including the current one; at least 2.
        layers: number of blocks.
        heads: attention heads of each block.

    Raises:
        ValueError: the window is smaller than 2, or the size is not a multiple of the heads.

    Reference:
        Dai et al. (2019), https://arxiv.org/abs/1901.02860, for the memory of each block; Press et al. (2022),
        https://arxiv.org/abs/2108.12409, for scores that begin as linear in the age of a step, here with the slopes 2, 1, 1/2
        and so on.

    Example:
        >>> network = AttentionFeatures(nn.Identity(), 3, size=8, window=4, layers=1, heads=2)
        >>> features, state = network.unroll(torch.zeros(5, 2, 3), network.state_of(2), torch.zeros(5, 2, dtype=torch.bool))
        >>> features.shape, [element.shape for element in state]
        (torch.Size([5, 2, 8]), [torch.Size([2, 3, 8]), torch.Size([2])])
    """

    def __init__(self, encoder: nn.Module, width: int, size: int, window: int, layers: int = 1, heads: int = 4) -> None:
        super().__init__()
        if window < 2:
            raise ValueError(f"AttentionFeatures wants a window of at least 2 steps, got {window}: one step has no memory.")
        self.encoder, self.size, self.window, self.layers = encoder, size, window, layers
        self.embedding = orthogonal(nn.Linear(width, size), 1.0)
        self.blocks = nn.ModuleList([AttentionBlock(size, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(size)
        slopes = 2.0 ** (1 - torch.arange(heads))
        # [layers, window, heads]: what a head adds to the score of a step of this age.
        self.age_bias = nn.Parameter((-slopes * torch.arange(window).unsqueeze(1)).repeat(layers, 1, 1))

    def initial_state(self) -> list[Tensor]:
        """The inputs of each block before an episode [window - 1, size], zeros; and the number of known ones, 0."""
        inputs = [torch.zeros(self.window - 1, self.size) for _ in range(self.layers)]
        return [*inputs, torch.zeros((), dtype=torch.int64)]

    def state_of(self, batch_size: int) -> list[Tensor]:
        """The state at the start of B episodes, with the device and dtype of the weights."""
        inputs = self.age_bias.new_zeros(batch_size, self.window - 1, self.size)
        known = torch.zeros(batch_size, dtype=torch.int64, device=inputs.device)
        return [*(inputs.clone() for _ in range(self.layers)), known]

    def step(self, obs: Any, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Compute one step of B environments.

        Args:
            obs: [B, *obs_shape], nested like the space.
            state: the inputs of each block [B, window - 1, size], and the number of known ones [B].

        Returns:
            Features [B, size], and the next state.
        """
        *memories, known = state
        x = self.embedding(self.encoder(obs)).unsqueeze(1)
        ages = torch.arange(self.window - 1, -1, -1, device=x.device)
        unseen = (ages > known.unsqueeze(1))[:, None, None]
        following = []
        for block, memory, bias in zip(self.blocks, memories, self.age_bias, strict=True):
            tokens = torch.cat([memory, x], 1)
            following.append(tokens[:, 1:])
            x = block(tokens, 1, torch.where(unseen, -torch.inf, bias.flip(0).T.unsqueeze(1)))
        return self.norm(x).squeeze(1), [*following, (known + 1).clamp(max=self.window - 1)]

    def unroll(self, obs: Any, state: Sequence[Tensor], restart: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Compute T steps of B environments.

        Args:
            obs: [T, B, *obs_shape], nested like the space.
            state: see `step`; the state before the first step.
            restart: whether a step is the first of an episode, so that it starts with the initial state. [T, B] bool.

        Returns:
            Features [T, B, size], and the state after the last step.
        """
        x, parts = self._encoded(obs), []
        for rows in _chunks(len(restart)):
            part, _, state = self._run(
                x[rows], x[:0], restart.new_zeros((0, restart.shape[1]), dtype=torch.int64), state, restart[rows]
            )
            parts.append(part)
        return torch.cat(parts), list(state)

    def unroll_ahead(self, obs: Any, next_obs: Any, state: Sequence[Tensor], restart: Tensor) -> tuple[Tensor, Tensor]:
        """Compute T steps of B environments, and the features of each next observation.

        Within an episode, the next observation is the obs of the next row. At the end of an episode, and in the last row, it is
        next_obs.

        Args:
            obs, next_obs: [T, B, *obs_shape], nested like the space; next_obs is the observation before any reset.
            state, restart: see `unroll`.

        Returns:
            Features of obs, and of next_obs with the state after the step, each [T, B, size].
        """
        beyond = torch.ones_like(restart)
        beyond[:-1] = restart[1:]
        x, next_obs, parts, looks, places = self._encoded(obs), nested(next_obs), [], [], []
        for rows in _chunks(len(restart)):
            # In each environment, the steps before an end come first, and then others, whose looks are not used.
            is_end, after = (~beyond[rows]).int().sort(dim=0, stable=True)
            count = int((is_end == 0).sum(0).max())
            is_end, after = is_end[:count] == 0, after[:count]
            envs = torch.arange(after.shape[1], device=after.device).expand_as(after)
            place = (after + rows.start, envs)
            seen = self._encoded(map_leaves(lambda leaf: leaf[place], next_obs)) if count else x[:0]  # noqa: B023
            part, look, state = self._run(x[rows], seen, after, state, restart[rows])
            parts.append(part)
            looks.append(look[is_end])
            places.append([index[is_end] for index in place])
        features = torch.cat(parts)
        ahead = torch.cat([features[1:], features[-1:]])
        return features, ahead.index_put(tuple(torch.cat(index) for index in zip(*places)), torch.cat(looks))

    def _encoded(self, obs: Any) -> Tensor:
        """The tokens [T, B, size] of observations [T, B, ...]."""
        lead: list[torch.Size] = []

        def flat(leaf: Tensor) -> Tensor:
            lead.append(leaf.shape[:2])
            return leaf.flatten(0, 1)

        rows = map_leaves(flat, nested(obs))
        return self.embedding(self.encoder(rows)).unflatten(0, lead[0])  # type: ignore[no-any-return]

    def _run(
        self, x: Tensor, looks: Tensor, after: Tensor, state: Sequence[Tensor], restart: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Compute steps, and looks at M observations after some of the steps, which no step attends to.

        Args:
            x: tokens of the steps, [T, B, size].
            looks: tokens of the observations to look at, [M, B, size].
            after: the step before each look, [M, B] int64.
            state, restart: see `unroll`.

        Returns:
            Features of the steps [T, B, size], features of the looks [M, B, size], and the state after the last step.
        """
        *memories, known = state
        steps, num_looks = len(x), len(after)
        place = torch.arange(-(self.window - 1), steps, device=x.device)
        first = torch.where(restart, place[self.window - 1 :].unsqueeze(1), -known).cummax(0).values.T  # [B, T]
        ages, unseen = self._ages(place, first, after.T)
        tokens = torch.cat([x, looks]).transpose(0, 1)
        following = []
        is_old = (place[-(self.window - 1) :] < first[:, -1:]).unsqueeze(-1)
        for block, memory, bias in zip(self.blocks, memories, self.age_bias, strict=True):
            known_inputs = torch.cat([memory, tokens[:, :steps]], 1)
            following.append(known_inputs[:, -(self.window - 1) :].masked_fill(is_old, 0))
            scores = functional.embedding(ages, bias).permute(0, 3, 1, 2).masked_fill(unseen.unsqueeze(1), -torch.inf)
            tokens = block(torch.cat([memory, tokens], 1), steps + num_looks, scores)
        features = self.norm(tokens).transpose(0, 1)
        known = (steps - first[:, -1]).clamp(max=self.window - 1)
        return features[:steps], features[steps:], [*following, known]

    def _ages(self, place: Tensor, first: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        """The age of each token for each query, and whether it is hidden from the query, each [B, T + M, window - 1 + T + M].

        Args:
            place: the steps of the memory and of the rollout, [window - 1 + T].
            first: the first step of the episode of each step, [B, T].
            after: the step before each look, [B, M].
        """
        steps, num_looks = first.shape[1], after.shape[1]
        own = place[self.window - 1 :].expand_as(first)
        query = torch.cat([own, after + 1], 1).unsqueeze(-1)
        start = torch.cat([first, first.gather(1, after)], 1).unsqueeze(-1)
        ages = query - place
        seen = (ages >= 0) & (ages < self.window) & (place >= start)
        seen[:, steps:] &= ages[:, steps:] > 0  # a look takes the place of the step that follows
        itself = torch.eye(num_looks, dtype=torch.bool, device=place.device)
        itself = torch.cat([itself.new_zeros(steps, num_looks), itself]).expand(len(first), -1, -1)
        ages = torch.cat([ages.clamp(0, self.window - 1), torch.zeros_like(itself, dtype=ages.dtype)], -1)
        return ages, ~torch.cat([seen, itself], -1)


def _chunks(steps: int) -> list[slice]:
    return [slice(start, start + _CHUNK) for start in range(0, steps, _CHUNK)]


class SetEncoder(nn.Module):
    """Features of a set of items, by attention between the items and their mean. They do not depend on the order of the items.

    Args:
        item_width: numbers of an item.
        width: width of the blocks and of the features; a multiple of `heads`.
        layers: number of blocks.
        heads: attention heads of each block.

    Reference:
        Lee et al. (2019), https://arxiv.org/abs/1810.00825.

    Example:
        >>> items, mask = torch.ones(2, 5, 3), torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
        >>> SetEncoder(3, 8, heads=2)(items, mask).shape
        torch.Size([2, 8])
    """

    def __init__(self, item_width: int, width: int, layers: int = 1, heads: int = 4) -> None:
        super().__init__()
        self.embedding = orthogonal(nn.Linear(item_width, width), 2**0.5)
        self.blocks = nn.ModuleList([AttentionBlock(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, items: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute the features.

        Args:
            items: [B, N, item_width].
            mask: whether there is an item in each place, [B, N] bool or 0 and 1; None for all places.

        Returns:
            Features [B, width]; zeros for an empty set.
        """
        if mask is None:
            mask = items.new_ones(items.shape[:2], dtype=torch.bool)
        is_item = mask.bool().unsqueeze(-1)
        tokens = self.embedding(items.to(next(self.parameters()).dtype).masked_fill(~is_item, 0))
        # In an empty set, all places attend to each other, because the mean over no place is NaN.
        attends = (mask.bool() | ~mask.bool().any(-1, keepdim=True))[:, None, None]
        for block in self.blocks:
            tokens = block(tokens, None, attends)
        features = self.norm(tokens).masked_fill(~is_item, 0)
        return features.sum(1) / is_item.sum(1).clamp(min=1)  # type: ignore[no-any-return]
