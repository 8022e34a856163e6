"""Actor-critic learning: what policies have in common that learn an actor, and mostly a critic, from fresh rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.data import Tree, has_leaf
from ding_lite.functional import explained_variance, normalized
from ding_lite.nn import RMSprop
from ding_lite.policy_parts.coefficient_schedules import EntropyCoeffSchedule, LearningRateSchedule
from ding_lite.policy_parts.value_network import ValueNetworkMixin


class ActorCriticLearning(LearningRateSchedule, EntropyCoeffSchedule, ValueNetworkMixin):
    """A mixin for policies whose `cfg.learn` is an `ActorCriticLearnConfig`: the loss, a sum of the actor's, the critic's and
    the entropy's, the advantages in it, the optimizer, and what is logged of the critic."""

    stats_take_rollouts = True

    def make_optimizer(self, params: list[nn.Parameter]) -> Optimizer:
        """Adam or, by `cfg.learn.optimizer`, RMSProp, at `cfg.learn.learning_rate`.

        Reference:
            Mnih et al. (2016), https://arxiv.org/abs/1602.01783, section 4.5, for RMSProp.
        """
        learn: Any = self.cfg.learn
        if learn.optimizer == "rmsprop":
            return RMSprop(params, lr=learn.learning_rate, alpha=0.99, eps=1e-5, foreach=True)
        return super().make_optimizer(params)

    def advantages(self, advantage: Tensor, valid: Tensor | None = None) -> Tensor:
        """Advantages as the actor's loss takes them, normalised where `cfg.learn.adv_norm` says so."""
        learn: Any = self.cfg.learn
        return normalized(advantage, valid) if learn.adv_norm else advantage

    def actor_critic_loss(
        self, policy_loss: Tensor, vf_loss: Tensor | None, entropy: Tensor, penalty: Tensor | None = None, **logged: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of the losses of actor and critic, the entropy bonus, and a penalty.

            loss = policy_loss + value_weight * vf_loss - entropy_coeff * entropy + penalty

        Args:
            policy_loss, entropy: of the actor, scalars.
            vf_loss: of the critic, a scalar; None where there is none.
            penalty: another term to minimise, a scalar with its weight in it.
            **logged: more scalars to log.

        Returns:
            The scalar loss, and total_loss, policy_loss, vf_loss, entropy and `logged`, detached.

        Reference:
            Mnih et al. (2016), https://arxiv.org/abs/1602.01783, section 4.3.
        """
        learn: Any = self.cfg.learn
        loss, parts = policy_loss, {"policy_loss": policy_loss}
        if vf_loss is not None:
            loss, parts = loss + learn.value_weight * vf_loss, {**parts, "vf_loss": vf_loss}
        loss = loss - self.entropy_coeff * entropy
        if penalty is not None:
            loss = loss + penalty
        parts = {"total_loss": loss, **parts, "entropy": entropy, **logged}
        return loss, {name: part.detach() for name, part in parts.items()}

    def stats(self, batch: Tree) -> dict[str, Any]:
        """The learning rate as it is; and how well the critic knew the rollout, where it was asked before."""
        stats: dict[str, Any] = {"cur_lr": torch.tensor(self.cur_lr)}
        if has_leaf(batch, "value") and has_leaf(batch, "return_"):
            columns = (batch.value, batch.return_)
            value, return_ = (leaf[batch.valid] for leaf in columns) if has_leaf(batch, "valid") else columns
            stats["vf_explained_var"] = explained_variance(value, return_)
        return stats


def mean_stats(steps: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean over the gradient steps that gave a number to log, by its name."""
    names = dict.fromkeys(name for step in steps for name in step)
    given = {name: [torch.as_tensor(step[name], dtype=torch.float32) for step in steps if name in step] for name in names}
    return {name: torch.stack(values).mean() for name, values in given.items()}
