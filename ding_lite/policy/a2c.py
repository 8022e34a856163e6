"""A2C: one policy gradient step per rollout, with advantages from a critic.

The synchronous version of Mnih et al. (2016), https://arxiv.org/abs/1602.01783: environments are stepped together.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from ding_lite.basics import ranged_field
from ding_lite.data import Tree
from ding_lite.functional import policy_gradient_loss
from ding_lite.policy_base import OnPolicyCollectConfig, Policy, PolicyGradientConfig
from ding_lite.policy_parts import ActorCriticMixin
from ding_lite.run_configs import OnPolicyRunConfig


@dataclasses.dataclass
class A2CPolicyConfig(PolicyGradientConfig):
    """A2C; a gradient step takes the whole rollout."""

    collect: OnPolicyCollectConfig = dataclasses.field(default_factory=lambda: OnPolicyCollectConfig(n_sample=128))
    """Collection and advantage estimation."""


@dataclasses.dataclass
class A2CConfig(OnPolicyRunConfig):
    """A2C."""

    exp_name: str = "runs/a2c"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(3000, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    policy: A2CPolicyConfig = dataclasses.field(default_factory=A2CPolicyConfig)
    """The algorithm."""


class A2CPolicy(ActorCriticMixin, Policy):
    """Advantage actor-critic, for actions and observations of any space."""

    config_type = A2CPolicyConfig
    cfg: A2CPolicyConfig

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of actor and critic: policy gradient, squared error of the critic, and entropy bonus.

            loss    = -mean(log pi(a|s) * advantage) + value_weight * vf_loss - entropy_coeff * entropy
            vf_loss = mean((V(s) - return)^2) / 2

        Args:
            batch: obs [B, *obs_shape]; action [B, *action_shape]; advantage, return_ [B] float.

        Returns:
            The scalar loss; and a dict to log, with total_loss, policy_loss, vf_loss and entropy.

        Reference:
            Mnih et al. (2016), https://arxiv.org/abs/1602.01783, algorithm S3.
        """
        logit, value = self.model(batch.obs)
        log_prob, entropy = self.model.distribution.evaluate(logit, batch.action)
        policy_loss = policy_gradient_loss(log_prob, self.advantages(batch.advantage))
        vf_loss = 0.5 * (value - batch.return_).square().mean()
        return self.actor_critic_loss(policy_loss, vf_loss, entropy.mean())
