"""Advantage-weighted regression: the parts that IQL and AWAC have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ding_lite.data import Tree
from ding_lite.functional import advantage_weight, weighted_mean
from ding_lite.nn import GaussianActor
from ding_lite.policy_parts.box_actions import OFFLINE_POLICIES_FOR_DISCRETE_ACTIONS, BoxActionMixin
from ding_lite.policy_parts.replay_losses import row_weight


class AdvantageWeightedMixin(BoxActionMixin):
    """A mixin for an actor that is fitted to recorded actions: a Gaussian that is not squashed.

    `model.actor(obs)` returns mean, in [-1, 1], and log_std, each [B, A].
    """

    stochastic = True
    squashed = False
    for_other_actions = OFFLINE_POLICIES_FOR_DISCRETE_ACTIONS

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Compute actions: sampled from the actor and clipped to the bounds if it explores, otherwise the mean."""
        mean, log_std = self.model.actor(obs)
        if explore:
            noise, state = self.draw_noise(mean, state)
            mean = (mean + log_std.exp() * noise).clamp_(-1, 1)
        return self.model.bounds(mean), state, {}

    def draw_actions(self, obs: Any) -> Tensor:
        """Unit actions [B, A] sampled from the actor, clipped to [-1, 1], without gradient."""
        with torch.no_grad():
            mean, log_std = self.model.actor(obs)
            noise = torch.randn(mean.shape, generator=self.generator, dtype=mean.dtype, device=mean.device)
            unit: Tensor = mean + log_std.exp() * noise
            return unit.clamp_(-1, 1)

    def after_step(self) -> None:
        """Limit the standard deviation of the actor."""
        super().after_step()
        if isinstance(self.model.actor, GaussianActor):
            self.model.actor.limit_log_std_()


def advantage_weighted_loss(log_prob: Tensor, advantage: Tensor, batch: Tree, *, beta: float, limit: float = 100.0) -> Tensor:
    """The loss of an actor that imitates recorded actions, the better ones more.

        loss = -mean(min(exp(beta * advantage), limit) * log pi(a|s))

    Args:
        log_prob: log pi(a|s) of the recorded actions, [B] float.
        advantage: their advantages, [B] float; detached here.
        batch: optionally weight [B] float.
        beta, limit: see `advantage_weight`.

    Returns:
        The scalar loss.
    """
    weight = row_weight(batch)
    return weighted_mean(-advantage_weight(advantage, beta=beta, limit=limit) * log_prob, weight)


def limited_share(advantage: Tensor, *, beta: float, limit: float) -> Tensor:
    """The share of rows whose weight is at the limit, a scalar to log. If it is large, the advantages are large for this
    `beta`: a smaller one, or rewards divided by a constant, tells actions apart again.

    Args:
        advantage: [B] float.
        beta, limit: see `advantage_weight`.
    """
    return (beta * advantage.detach() >= math.log(limit)).to(advantage.dtype).mean()


AdvantageWeightedActing = AdvantageWeightedMixin  # its name in earlier versions
