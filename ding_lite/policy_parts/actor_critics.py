"""Actor-critic learning: the parts that A2C, PPO, IMPALA and REINFORCE have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.data import Tree
from ding_lite.data.trees import first_leaf, has_leaf
from ding_lite.functional import explained_variance, normalize_advantage
from ding_lite.metrics.stats_base import unmasked
from ding_lite.nn import action_distribution
from ding_lite.policy_check import require_members, require_output
from ding_lite.policy_parts.coefficient_schedules import EntropyCoeffSchedule, LearningRateSchedule
from ding_lite.policy_parts.value_network import ValueNetworkMixin


class ActorCriticMixin(LearningRateSchedule, EntropyCoeffSchedule, ValueNetworkMixin):
    """A mixin for policies whose `cfg.learn` is an `ActorCriticLearnConfig`.

    It provides the weighted sum of losses, the normalisation of advantages, and statistics of the critic.
    """

    stats_take_rollouts = True

    def take_model(self, model: nn.Module) -> nn.Module:
        """The module, with a `distribution` over actions if it has none.

        Raises:
            TypeError: it lacks a method of an actor-critic.
        """
        members = {"forward": "forward(obs) -> (logit [B, width], value [B])", "logits": "logits(obs)", "values": "values(obs)"}
        if not self.has_critic:
            members = {"logits": "logits(obs) -> logit [B, width]"}
        if hasattr(model, "initial_state"):
            members = {
                "step": "initial_state() -> list of tensors; step(obs, state) -> (logit [B, width], next state)",
                "unroll": "unroll(obs, state, restart) -> (logit [T, B, width], value [T, B])",
                "unroll_values": "unroll_values(obs, next_obs, state, restart) -> (value, next_value), each [T, B]",
            }
        require_members(self, model, members)
        if not hasattr(model, "distribution"):
            model.distribution = action_distribution(self.action_space)
        return super().take_model(model)

    def check_model(self, obs: Any) -> None:
        """Check the shapes of logit and value."""
        count, width = len(first_leaf(obs)), self.model.distribution.width
        logit_is = f"the logit [B, width], the parameters of the {type(self.model.distribution).__name__} distribution"
        if hasattr(self.model, "initial_state"):
            state = [torch.stack([element] * count).to(self.device) for element in self.model.initial_state()]
            require_output(self, "step(obs, state)", self.model.step(obs, state)[0], (count, width), logit_is)
            return
        require_output(self, "logits(obs)", self.model.logits(obs), (count, width), logit_is)
        if self.has_critic:
            logit, value = self.model(obs)
            require_output(self, "forward(obs)", logit, (count, width), logit_is)
            require_output(self, "forward(obs)", value, (count,), "the value [B]; a head [B, 1] needs .squeeze(-1)")
            require_output(self, "values(obs)", self.model.values(obs), (count,), "the value [B]")

    def advantages(self, advantage: Tensor, valid: Tensor | None = None) -> Tensor:
        """The advantages for the actor's loss: normalised if `cfg.learn.adv_norm` is set, over the steps where `valid`, of all
        processes that learn together."""
        learn: Any = self.cfg.learn
        if not learn.adv_norm:
            return advantage
        return normalize_advantage(advantage, valid) if self.averaging is None else self.averaging.normalized(advantage, valid)

    def actor_critic_loss(
        self, policy_loss: Tensor, vf_loss: Tensor | None, entropy: Tensor, penalty: Tensor | None = None, **logged: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of the losses of actor and critic, the entropy bonus, and a penalty.

            loss = policy_loss + value_weight * vf_loss - entropy_coeff * entropy + penalty

        Args:
            policy_loss: loss of the actor, a scalar.
            vf_loss: loss of the critic, a scalar; None without a critic.
            entropy: mean entropy of the actor, a scalar.
            penalty: another term to minimise, a scalar that includes its weight.
            **logged: more scalars to log.

        Returns:
            The scalar loss; and a dict to log, with total_loss, policy_loss, vf_loss, entropy and `logged`, detached.

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
        """The current learning rate, cur_lr; and vf_explained_var, if the batch has value and return_ and it is defined there.

        It is undefined for a single row, and if all returns are equal.
        """
        stats = super().stats(batch)
        if has_leaf(batch, "value") and has_leaf(batch, "return_"):
            columns = (batch.value, batch.return_)
            value, return_ = (leaf[batch.valid] for leaf in columns) if has_leaf(batch, "valid") else columns
            # Once per batch, after its gradient steps, so that waiting for the device costs little.
            if return_.numel() > 1 and math.isfinite(explained := explained_variance(value, return_)):
                stats["vf_explained_var"] = explained
        return stats


def mean_stats(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of each statistic over the gradient steps that have it, also in nested dicts. An empty array is no value, and
    masked numbers are left out.

    Of what is not numeric, such as a text, it is the last one, which the learner names in a warning.
    """
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: _mean_of([step[name] for step in steps if name in step]) for name in names}


def _mean_of(stats: list[Any]) -> Any:
    if all(isinstance(stat, Mapping) for stat in stats):
        return mean_stats(stats)
    try:
        values = [torch.as_tensor(unmasked(stat), dtype=torch.float32) for stat in stats]
    except (TypeError, ValueError, RuntimeError):
        return stats[-1]
    shape = values[0].shape
    if all(value.shape == shape for value in values):
        return torch.stack(values).mean()
    means = [value.mean() for value in values if value.numel()]
    return torch.stack(means).mean() if means else torch.tensor(math.nan)


ActorCriticLearning = ActorCriticMixin  # its name in earlier versions
