"""QR-DQN: learn quantiles of each action's return, and act greedily on their mean.

Dabney et al. (2018), https://arxiv.org/abs/1710.10044; double and dueling as in DQN.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.basics import ranged_field
from ding_lite.data import Tree
from ding_lite.data.trees import first_leaf
from ding_lite.functional import gather_atoms, quantile_midpoints
from ding_lite.nn import make_atom_network, masked
from ding_lite.policy.dqn import DQNModelConfig, DQNPolicyConfig
from ding_lite.policy_base import Policy, live_from_next_step
from ding_lite.policy_check import require_output
from ding_lite.policy_parts import EpsilonGreedyMixin, LearningRateScheduleMixin, TargetNetworkMixin, quantile_regression
from ding_lite.run_configs import RunConfig


@dataclasses.dataclass
class QRDQNModelConfig(DQNModelConfig):
    """The network for quantiles of returns."""

    num_quantiles: int = ranged_field(32, low=1, high=16_384)
    """Number of quantiles of each action's return, at the evenly spaced levels (i + 0.5) / num_quantiles."""


@dataclasses.dataclass
class QRDQNPolicyConfig(DQNPolicyConfig):
    """QR-DQN."""

    live_settings = live_from_next_step("kappa")

    kappa: float = ranged_field(1.0, low=0)
    """Threshold of the Huber loss between quadratic and linear, in units of return; 0 for the linear loss."""

    model: QRDQNModelConfig = dataclasses.field(default_factory=QRDQNModelConfig)
    """The network for quantiles of returns."""


@dataclasses.dataclass
class QRDQNConfig(RunConfig):
    """QR-DQN."""

    exp_name: str = "runs/qrdqn"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(2000, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    policy: QRDQNPolicyConfig = dataclasses.field(default_factory=QRDQNPolicyConfig)
    """The algorithm."""


class QRDQNPolicy(EpsilonGreedyMixin, TargetNetworkMixin, LearningRateScheduleMixin, Policy):
    """Distributional Q-learning by quantile regression, for Discrete actions and observations of any space."""

    config_type = QRDQNPolicyConfig
    cfg: QRDQNPolicyConfig
    learns_from = "transitions"

    def make_model(self) -> nn.Module:
        """Make the network from observations to quantiles [B, A, N] of the return of each action."""
        model, actions = self.cfg.model, self.num_actions
        return make_atom_network(
            self.observation_space,
            actions,
            model.num_quantiles,
            model.encoder_hidden_size_list,
            model.activation,
            model.conv_layers,
            dueling=model.dueling,
            normalize_obs=model.normalize_obs,
            layer_norm=model.layer_norm,
        )

    def check_model(self, obs: Any) -> None:
        """Check the shape of the quantiles."""
        shape = (len(first_leaf(obs)), self.num_actions, None)
        require_output(self, "forward(obs)", self.model(obs), shape, "quantiles [B, A, N] of the return of each action")

    def q_values(self, obs: Any) -> Tensor:
        """The mean return of each action, [B, A]."""
        return self.model(obs).mean(-1)  # type: ignore[no-any-return]

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The quantile regression loss, for one-step or n-step returns.

            target_j = r + discount * (1 - terminated) * theta_target_j(s', a')
            a'       = argmax_a mean_j theta_j(s', a) if double else argmax_a mean_j theta_target_j(s', a)
            loss     = sum_i mean_j |tau_i - [u_ij < 0]| * huber(u_ij) / kappa, u_ij = target_j - theta_i(s, a)

        Args:
            batch: see `DQNPolicy.loss`.

        Returns:
            The scalar loss; and a dict to log, with loss, mean q_value and, if the batch has weights, the priority of each row,
            [B]: the absolute error of the mean.

        Reference:
            Dabney et al. (2018), https://arxiv.org/abs/1710.10044, algorithm 1 and eq. 10.
        """
        with torch.no_grad():
            next_value = self.target_model(batch.next_obs)
            choosing_value = self.model(batch.next_obs) if self.cfg.double else next_value
            next_value = gather_atoms(next_value, masked(choosing_value.mean(-1), batch.next_obs).argmax(-1))
        value = gather_atoms(self.model(batch.obs), self.action_index(batch.action))
        tau = quantile_midpoints(value.shape[1], value.device, value.dtype)
        return quantile_regression(value, next_value, tau, batch, gamma=self.cfg.discount_factor, kappa=self.cfg.kappa)
