"""REINFORCE: one policy gradient step per collection of whole episodes, with Monte Carlo returns.

Williams (1992), "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning".
"""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor, nn

from ding_lite.basics import ranged_field
from ding_lite.data import Tree
from ding_lite.functional import policy_gradient_loss
from ding_lite.policy_base import (
    ActorCriticLearnConfig,
    EvalConfig,
    EvaluatorConfig,
    OnPolicyCollectConfig,
    Policy,
    PolicyGradientConfig,
)
from ding_lite.policy_parts import ActorCriticMixin
from ding_lite.run_configs import OnPolicyRunConfig


@dataclasses.dataclass
class REINFORCEPolicyConfig(PolicyGradientConfig):
    """REINFORCE; a gradient step uses all episodes of an iteration."""

    fixed_settings = dict.fromkeys(("baseline",), "the networks are made with it: make a new policy.")

    baseline: bool = False
    """Learn a critic, and subtract its value from the returns."""

    learn: ActorCriticLearnConfig = dataclasses.field(default_factory=lambda: ActorCriticLearnConfig(learning_rate=5e-3))
    """Learning."""

    collect: OnPolicyCollectConfig = dataclasses.field(default_factory=lambda: OnPolicyCollectConfig(n_episode=4))
    """Collection and advantage estimation."""

    eval: EvalConfig = dataclasses.field(default_factory=lambda: EvalConfig(EvaluatorConfig(eval_freq=10)))
    """Evaluation."""


@dataclasses.dataclass
class REINFORCEConfig(OnPolicyRunConfig):
    """REINFORCE."""

    exp_name: str = "runs/reinforce"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(1000, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_episode episodes."""

    policy: REINFORCEPolicyConfig = dataclasses.field(default_factory=REINFORCEPolicyConfig)
    """The algorithm."""


class REINFORCEPolicy(ActorCriticMixin, Policy):
    """Monte Carlo policy gradient, for actions and observations of any space."""

    config_type = REINFORCEPolicyConfig
    cfg: REINFORCEPolicyConfig

    def make_model(self) -> nn.Module:
        """Make an actor and, with a baseline, a critic."""
        model: Any = super().make_model()
        if not self.cfg.baseline:
            model.critic = None
        return model  # type: ignore[no-any-return]

    @property
    def has_critic(self) -> bool:
        """Whether it has a baseline."""
        return self.cfg.baseline

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """The policy gradient loss with Monte Carlo returns; with a baseline, also the loss of the critic.

            loss = -mean(log pi(a|s) * advantage) - entropy_coeff * entropy [+ value_weight * mean((V(s) - return)^2) / 2]

        Args:
            batch: obs [B, *obs_shape]; action [B, *action_shape]; advantage [B] float, the return or, with a baseline, the
                return minus the critic's value; with a baseline, return_ [B] float.

        Returns:
            The scalar loss; and a dict to log, with total_loss, policy_loss, entropy and, with a baseline, vf_loss.

        Reference:
            Williams (1992), eq. 4; the baseline: section 4.
        """
        model, vf_loss = self.model, None
        if self.cfg.baseline:
            logit, value = model(batch.obs)
            vf_loss = 0.5 * nn.functional.mse_loss(value, batch.return_)
        else:
            logit = model.logits(batch.obs)
        log_prob, entropy = model.distribution.evaluate(logit, batch.action)
        weight = self.advantages(batch.advantage)
        return self.actor_critic_loss(policy_gradient_loss(log_prob, weight), vf_loss, entropy.mean())
