"""CQL: SAC or DQN on a dataset, with a penalty on the values of actions that are not in the data.

Kumar et al. (2020), https://arxiv.org/abs/2006.04779.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ding_lite.basics import ranged_field
from ding_lite.data import Tree, nested
from ding_lite.data.trees import map_leaves
from ding_lite.functional import squashed_gaussian_log_prob, squashed_gaussian_sample, unsquash, weighted_mean
from ding_lite.nn import masked
from ding_lite.policy.dqn import DQNPolicy, DQNPolicyConfig
from ding_lite.policy.sac import SACLearnConfig, SACPolicy, SACPolicyConfig
from ding_lite.policy_base import live_from_next_step
from ding_lite.policy_parts import (
    OFFLINE_POLICIES_FOR_BOX_ACTIONS,
    OFFLINE_POLICIES_FOR_DISCRETE_ACTIONS,
    OfflineModelConfig,
    OffPolicyLearnConfig,
    row_weight,
)
from ding_lite.run_configs import OfflinePendulumRunConfig, OfflineRunConfig


@dataclasses.dataclass
class DiscreteCQLLearnConfig(OffPolicyLearnConfig):
    """Learning."""

    live_settings = live_from_next_step("min_q_weight")

    batch_size: int = ranged_field(256, low=1, high=10_000_000)
    """Transitions per gradient step."""

    min_q_weight: float = ranged_field(1.0, low=0)
    """Weight of the penalty on actions that are not in the data; 0 is DQN. It is alpha in the paper."""


@dataclasses.dataclass
class DiscreteCQLPolicyConfig(DQNPolicyConfig):
    """CQL for Discrete actions."""

    learn: DiscreteCQLLearnConfig = dataclasses.field(default_factory=DiscreteCQLLearnConfig)
    """Learning."""


@dataclasses.dataclass
class DiscreteCQLConfig(OfflineRunConfig):
    """CQL for Discrete actions, on CartPole-v1."""

    exp_name: str = "runs/discrete_cql"
    """Folder of the run, for metrics, configuration and checkpoints."""

    policy: DiscreteCQLPolicyConfig = dataclasses.field(default_factory=DiscreteCQLPolicyConfig)
    """The algorithm."""


class DiscreteCQLPolicy(DQNPolicy):
    """Conservative Q-learning with a target network, for Discrete actions and observations of any space."""

    config_type = DiscreteCQLPolicyConfig
    cfg: DiscreteCQLPolicyConfig
    for_other_actions = OFFLINE_POLICIES_FOR_BOX_ACTIONS

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The Huber loss of Q-learning, and the penalty.

            loss = td_loss + min_q_weight * mean(log sum_b exp Q(s, b) - Q(s, a))

        The sum is over the actions b that the `action_mask` of s allows, if observations have one.

        Args:
            batch: see `DQNPolicy.loss`.

        Returns:
            The scalar loss; and a dict to log, with loss, td_loss, conservative_gap, which is the mean in the penalty, mean
            q_value and, if the batch has weights, the priority of each row, [B].

        Reference:
            Kumar et al. (2020), https://arxiv.org/abs/2006.04779, eq. 4.
        """
        q_values = self.model(batch.obs)
        td_loss, stats = self.td_loss(q_values, batch)
        q_value = q_values.gather(-1, self.action_index(batch.action).unsqueeze(-1)).squeeze(-1)
        gap = masked(q_values, batch.obs).logsumexp(-1) - q_value
        loss = td_loss + self.cfg.learn.min_q_weight * weighted_mean(gap, row_weight(batch))
        return loss, {**stats, "loss": loss.detach(), "td_loss": stats["loss"], "conservative_gap": gap.detach().mean()}


@dataclasses.dataclass
class CQLLearnConfig(SACLearnConfig):
    """Learning."""

    di_engine: ClassVar[Mapping[str, str]] = {
        "min_q_version": "leave it out: it is version 3 of DI-engine, with importance weights.",
        "with_lagrange": "leave it out, and set policy.learn.lagrange_thresh to a number.",
        "with_q_entropy": "it is the opposite of policy.learn.deterministic_backup.",
    }

    live_settings = live_from_next_step("min_q_weight", "num_actions", "deterministic_backup", "bc_steps")
    fixed_settings = dict.fromkeys(("lagrange_thresh",), "with it, the model has one more parameter: start a new run.")

    batch_size: int = ranged_field(256, low=1, high=10_000_000)
    """Transitions per gradient step."""

    learning_rate: float = ranged_field(3e-4, low=0)
    """Learning rate of the critics, and of the weight of the penalty."""

    learning_rate_actor: float | None = ranged_field(1e-4, low=0)
    """Learning rate of the actor; None for learning_rate, the rate of the critics."""

    learning_rate_alpha: float | None = ranged_field(1e-4, low=0)
    """Learning rate of the logarithm of the temperature; None for learning_rate, the rate of the critics."""

    min_q_weight: float = ranged_field(5.0, low=0)
    """Weight of the penalty on actions that are not in the data, relative to the squared error; 0 is SAC."""

    num_actions: int = ranged_field(10, low=1, high=10_000)
    """Actions sampled per observation for the penalty: so many uniform ones, as many of the actor, and as many of the actor at
    the next observation."""

    lagrange_thresh: float | None = ranged_field(None)
    """Tune the weight of the penalty so that min_q_weight times the gap stays at this threshold; None for a constant weight."""

    deterministic_backup: bool = True
    """Leave the entropy bonus out of the critics' targets."""

    bc_steps: int = ranged_field(0, low=0)
    """Gradient steps at the start in which the actor imitates the data instead of maximising the value."""


@dataclasses.dataclass
class CQLPolicyConfig(SACPolicyConfig):
    """CQL for Box actions."""

    model: OfflineModelConfig = dataclasses.field(default_factory=OfflineModelConfig)
    """Networks."""

    learn: CQLLearnConfig = dataclasses.field(default_factory=CQLLearnConfig)
    """Learning."""


@dataclasses.dataclass
class CQLConfig(OfflinePendulumRunConfig):
    """CQL for Box actions, on Pendulum-v1."""

    exp_name: str = "runs/cql"
    """Folder of the run, for metrics, configuration and checkpoints."""

    policy: CQLPolicyConfig = dataclasses.field(default_factory=CQLPolicyConfig)
    """The algorithm."""


class CQLPolicy(SACPolicy):
    """Conservative Q-learning, for actions in a Box with finite bounds and observations of any space.

    It is CQL(H) of the paper, with importance sampling.
    """

    config_type = CQLPolicyConfig
    cfg: CQLPolicyConfig
    for_other_actions = OFFLINE_POLICIES_FOR_DISCRETE_ACTIONS

    def make_model(self) -> Any:
        """Make the networks of SAC and, with a threshold, the logarithm of the weight of the penalty."""
        return self._with_penalty_weight(super().make_model())

    def take_model(self, model: nn.Module) -> nn.Module:
        """The module, with what SAC adds and, with a threshold, `log_penalty_weight` if it has none."""
        return self._with_penalty_weight(super().take_model(model))  # type: ignore[no-any-return]

    def _with_penalty_weight(self, model: Any) -> Any:
        if self.cfg.learn.lagrange_thresh is not None and not hasattr(model, "log_penalty_weight"):
            model.log_penalty_weight = nn.Parameter(torch.zeros(()))
        return model

    def param_groups(self) -> Mapping[str, tuple[Iterable[nn.Parameter], float]]:
        """The parameters and learning rates of critics, actor, temperature and, with a threshold, the penalty's weight."""
        learn, groups = self.cfg.learn, super().param_groups()
        if learn.lagrange_thresh is None:
            return groups
        return {**groups, "penalty_weight": ([self.model.log_penalty_weight], learn.learning_rate)}

    def critic_loss(self, batch: Tree, alpha: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """The loss of the critics: that of SAC, plus the penalty on actions that are not in the data.

            penalty_k = min_q_weight * mean(gap_k)
            loss      = sac_loss + sum_k penalty_k / 2

        With `lagrange_thresh`, the penalty has another factor w, learned by `w_loss`, which is part of the result:

            loss   = sac_loss + sum_k w * (penalty_k - lagrange_thresh) / 2
            w_loss = -w * mean_k(penalty_k - lagrange_thresh)

        With `deterministic_backup`, the targets have no entropy bonus. The penalty is halved, as the squared error of SAC is,
        so that min_q_weight and lagrange_thresh are those of the authors' code, which does not halve either of them.

        Args:
            batch, alpha: see `SACPolicy.critic_loss`.

        Returns:
            The scalar loss; and a dict to log: see `critic_regression`, plus conservative_gap, the mean gap, and, with a
            threshold, penalty_weight, which is w.

        Reference:
            Kumar et al. (2020), https://arxiv.org/abs/2006.04779, eq. 4; the threshold: appendix F.
        """
        learn = self.cfg.learn
        loss, stats = super().critic_loss(batch, torch.zeros_like(alpha) if learn.deterministic_backup else alpha)
        gap = self.conservative_gap(batch)
        weight = row_weight(batch)
        penalty = learn.min_q_weight * torch.stack([weighted_mean(one, weight) for one in gap])
        stats = {**stats, "conservative_gap": gap.detach().mean()}
        if learn.lagrange_thresh is None:
            return loss + penalty.sum() / 2, stats
        factor, excess = self.model.log_penalty_weight.exp().clamp(max=1e6), penalty - learn.lagrange_thresh
        loss = loss + factor.detach() * excess.sum() / 2 - factor * excess.detach().mean()
        return loss, {**stats, "penalty_weight": factor.detach()}

    def conservative_gap(self, batch: Tree) -> Tensor:
        """How much higher the values of all actions are than that of the action of the data.

            gap_k = log sum_j exp(Q_k(s, b_j) - log p(b_j)) - Q_k(s, a)

        There are 3 * num_actions actions b_j, scaled to [-1, 1]: a third is uniform, a third is drawn from pi(s), and a third
        from pi(s'). p is the density that each was drawn from. The sum estimates 3 * num_actions times the integral of
        exp Q_k(s, b); this constant factor is left in, as in the authors' code.

        Args:
            batch: obs, next_obs [B, *obs_shape]; action [B, *action_shape] float.

        Returns:
            gap, [K, B].

        Reference:
            Kumar et al. (2020), https://arxiv.org/abs/2006.04779, appendix F.
        """
        count, unit = self.cfg.learn.num_actions, self.model.bounds.to_unit(batch.action)
        like: dict[str, Any] = {"generator": self.generator, "dtype": unit.dtype, "device": unit.device}
        with torch.no_grad():
            actions = [2 * torch.rand((count, *unit.shape), **like) - 1]
            log_probs = [torch.full_like(actions[0][..., 0], -unit.shape[-1] * math.log(2))]
            now, then = self.model.actor(batch.obs), self.model.actor(batch.next_obs)
            # next_obs of a terminated episode may be NaN, because no target has its value.
            is_known = then[0].isfinite() & then[1].isfinite()
            for mean, log_std in (now, [torch.where(is_known, later, own) for later, own in zip(then, now, strict=True)]):
                action, log_prob = squashed_gaussian_sample(mean, log_std, torch.randn((count, *unit.shape), **like))
                actions.append(action)
                log_probs.append(log_prob)
            units = torch.cat([*actions, unit.unsqueeze(0)])  # [3 * num_actions + 1, B, A]
        repeated = map_leaves(lambda leaf: leaf.expand(len(units), *leaf.shape).flatten(0, 1), nested(batch.obs))
        q_value = self.model.critic(repeated, units.flatten(0, 1)).unflatten(1, units.shape[:2])
        return (q_value[:, :-1] - torch.cat(log_probs)).logsumexp(1) - q_value[:, -1]  # type: ignore[no-any-return]

    def step_variant(self) -> bool:
        """Whether the actor imitates in this gradient step."""
        return self.train_iter < self.cfg.learn.bc_steps

    def actor_loss(self, batch: Tree, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of the actor: that of SAC, but imitation in the first `bc_steps` gradient steps; weighted, if the batch has
        weights. The temperature is tuned on all rows alike.

            b    ~ pi(s)
            loss = mean(alpha * log pi(b|s) - log pi(a|s)) if train_iter < bc_steps

        The likelihood of an action at a bound is infinite, so actions are clipped 1e-6 inside of [-1, 1] for it, see
        `unsquash`.

        Args:
            batch, alpha: see `SACPolicy.actor_loss`.

        Returns:
            The scalar loss, and log pi(b|s), [B].

        Reference:
            The code of Kumar et al. (2020), where bc_steps is policy_eval_start.
        """
        loss, log_prob = self.actor_row_loss(batch, alpha)
        return weighted_mean(loss, row_weight(batch)), log_prob

    def actor_row_loss(self, batch: Tree, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """The terms of the mean in `actor_loss`, and log pi(b|s); both [B]."""
        if not self.step_variant():
            return super().actor_row_loss(batch, alpha)
        mean, log_std = self.model.actor(batch.obs)
        noise = torch.randn(mean.shape, generator=self.generator, dtype=mean.dtype, device=mean.device)
        log_prob = squashed_gaussian_sample(mean, log_std, noise)[1]
        likelihood = squashed_gaussian_log_prob(mean, log_std, unsquash(self.model.bounds.to_unit(batch.action)))
        return alpha * log_prob - likelihood, log_prob
