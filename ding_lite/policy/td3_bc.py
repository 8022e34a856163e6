"""TD3+BC: TD3 on a dataset, with an actor that also stays close to the actions of the data.

Fujimoto and Gu (2021), https://arxiv.org/abs/2106.06860.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from ding_lite.basics import ranged_field
from ding_lite.data import Tree
from ding_lite.functional import weighted_mean
from ding_lite.policy.td3 import TD3LearnConfig, TD3Policy, TD3PolicyConfig
from ding_lite.policy_base import live_from_next_step
from ding_lite.policy_parts import OFFLINE_POLICIES_FOR_DISCRETE_ACTIONS, OfflineModelConfig, row_weight
from ding_lite.run_configs import OfflinePendulumRunConfig


@dataclasses.dataclass
class TD3BCModelConfig(OfflineModelConfig):
    """Networks."""

    normalize_obs: bool = True
    """Normalise observations to mean 0 and standard deviation 1, by running statistics of the batches learned from. The paper
    uses the statistics of the whole dataset, which they approach. Images, integer Boxes and discrete parts are not
    normalised."""


@dataclasses.dataclass
class TD3BCLearnConfig(TD3LearnConfig):
    """Learning."""

    live_settings = live_from_next_step("bc_alpha")

    batch_size: int = ranged_field(256, low=1, high=10_000_000)
    """Transitions per gradient step."""

    learning_rate: float = ranged_field(3e-4, low=0)
    """Learning rate of the critics, and of the actor unless learning_rate_actor is set."""

    bc_alpha: float = ranged_field(2.5, low=0)
    """Weight of the value in the actor's loss, relative to imitation; 0 for imitation alone. It is alpha in the paper."""


@dataclasses.dataclass
class TD3BCPolicyConfig(TD3PolicyConfig):
    """TD3+BC."""

    model: TD3BCModelConfig = dataclasses.field(default_factory=TD3BCModelConfig)
    """Networks."""

    learn: TD3BCLearnConfig = dataclasses.field(default_factory=TD3BCLearnConfig)
    """Learning."""


@dataclasses.dataclass
class TD3BCConfig(OfflinePendulumRunConfig):
    """TD3+BC, on Pendulum-v1."""

    exp_name: str = "runs/td3_bc"
    """Folder of the run, for metrics, configuration and checkpoints."""

    policy: TD3BCPolicyConfig = dataclasses.field(default_factory=TD3BCPolicyConfig)
    """The algorithm."""


class TD3BCPolicy(TD3Policy):
    """TD3 with behaviour cloning, for actions in a Box with finite bounds and observations of any space."""

    config_type = TD3BCPolicyConfig
    cfg: TD3BCPolicyConfig
    for_other_actions = OFFLINE_POLICIES_FOR_DISCRETE_ACTIONS

    def actor_loss(self, batch: Tree) -> Tensor:
        """The loss of the actor: its negated value by the first critic, and its distance from the actions of the data.

            lambda = bc_alpha / mean(|Q_1(s, mu(s))|), without gradient
            loss   = -lambda * mean(Q_1(s, mu(s))) + mean((mu(s) - a)^2)

        The squared error is of actions scaled to [-1, 1], and a mean over rows and elements of actions. In a data-parallel run,
        lambda uses the rows of all processes. If the batch has weights, both means of the loss are weighted, and lambda is not.

        Args:
            batch: see `TD3Policy.loss`.

        Reference:
            Fujimoto and Gu (2021), https://arxiv.org/abs/2106.06860, eq. 3 and 5, with the actor's actions in lambda, as in the
            authors' code.
        """
        unit: Tensor = self.model.actor(batch.obs)
        q_value: Tensor = self.model.critic(batch.obs, unit, frozen=True)[0]
        scale = self.cfg.learn.bc_alpha / self.batch_mean(q_value.abs())
        data, weight = self.model.bounds.to_unit(batch.action), row_weight(batch)
        if weight is None:
            return nn.functional.mse_loss(unit, data) - scale * q_value.mean()
        return weighted_mean((unit - data).square().mean(-1), weight) - scale * weighted_mean(q_value, weight)
