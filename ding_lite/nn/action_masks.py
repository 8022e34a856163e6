"""Masked values: logits and values of actions where an action mask allows only some actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ding_lite.data import Tree
from ding_lite.data.trees import has_leaf
from ding_lite.envs.action_masks import ACTION_MASK


def get_action_mask(obs: Any) -> Any:
    """The `action_mask` of observations, [..., n]; None if they have none."""
    if isinstance(obs, Tensor) or not isinstance(obs, (Mapping, Tree)) or not has_leaf(obs, ACTION_MASK):
        return None
    return obs[ACTION_MASK]


def masked(value: Tensor, obs: Any) -> Tensor:
    """The values of actions, or logits, with a very low number where the `action_mask` of the observations is 0.

        masked_i = value_i if mask_i else lowest number of the dtype / 4

    The softmax of such a logit is exactly 0, without NaN in log-probabilities, entropies, KL divergences and gradients, and its
    own gradient is 0. If a row allows no action, all its numbers are equal. Without a mask, the values are returned unchanged.

    Args:
        value: a number for each action, [..., n] float: n of Discrete(n), or sum(nvec) of MultiDiscrete(nvec).
        obs: the observations [..., *obs_shape] that the values belong to, with or without a mask [..., n].

    Returns:
        The masked values, [..., n].

    Raises:
        ValueError: the mask has another shape.

    Example:
        >>> obs = {"obs": torch.zeros(1, 4), "action_mask": torch.tensor([[1, 0, 1]])}
        >>> masked(torch.zeros(1, 3), obs).softmax(-1).tolist()
        [[0.5, 0.0, 0.5]]
    """
    mask = get_action_mask(obs)
    if mask is None:
        return value
    if mask.shape != value.shape:
        raise ValueError(
            f"masked() wants a value for each number of {ACTION_MASK!r}, {list(mask.shape)}, got {list(value.shape)}: pass one "
            "number for each action, such as the mean of its distribution."
        )
    # Finite, because the gradient of 0 * -inf is NaN; a quarter, so that differences and log_softmax do not overflow.
    return value.masked_fill(mask == 0, torch.finfo(value.dtype).min / 4)
