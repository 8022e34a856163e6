"""IQN: learn the quantile function of each action's return at random quantile levels, and act greedily on the mean.

Dabney et al. (2018), https://arxiv.org/abs/1806.06923; double and dueling as in DQN.
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
from ding_lite.nn import MLP, CosineEmbedding, DuelingHead, ImplicitQuantileNetwork, make_network, masked, normalized_inputs
from ding_lite.policy.dqn import DQNModelConfig
from ding_lite.policy.qrdqn import QRDQNPolicyConfig
from ding_lite.policy_base import Policy
from ding_lite.policy_check import require_output
from ding_lite.policy_parts import (
    EncoderHeadModelConfig,
    EpsilonGreedyMixin,
    LearningRateScheduleMixin,
    TargetNetworkMixin,
    quantile_regression,
)
from ding_lite.run_configs import RunConfig


@dataclasses.dataclass
class IQNModelConfig(EncoderHeadModelConfig, DQNModelConfig):
    """The network for quantiles of returns."""

    quantile_embedding_size: int = ranged_field(64, low=1, high=16_384)
    """Number of cosines in the embedding of quantile levels."""

    num_quantiles: int = ranged_field(8, low=1, high=16_384)
    """Random quantile levels per row for the prediction."""

    num_target_quantiles: int = ranged_field(8, low=1, high=16_384)
    """Random quantile levels per row for the target."""

    num_acting_quantiles: int = ranged_field(8, low=1, high=16_384)
    """Quantiles whose mean is the value of an action, at the evenly spaced levels (i + 0.5) / num_acting_quantiles."""


@dataclasses.dataclass
class IQNPolicyConfig(QRDQNPolicyConfig):
    """IQN."""

    model: IQNModelConfig = dataclasses.field(default_factory=IQNModelConfig)  # type: ignore[assignment]
    """The network for quantiles of returns."""


@dataclasses.dataclass
class IQNConfig(RunConfig):
    """IQN."""

    exp_name: str = "runs/iqn"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(2000, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    policy: IQNPolicyConfig = dataclasses.field(default_factory=IQNPolicyConfig)
    """The algorithm."""


class IQNPolicy(EpsilonGreedyMixin, TargetNetworkMixin, LearningRateScheduleMixin, Policy):
    """Distributional Q-learning with implicit quantiles, for Discrete actions and observations of any space."""

    config_type = IQNPolicyConfig
    cfg: IQNPolicyConfig
    learns_from = "transitions"

    def make_model(self) -> nn.Module:
        """Make the network from observations [B, *obs_shape] and quantile levels tau [B, N] to quantiles [B, A, N]."""
        model = self.cfg.model
        hidden, activation, norm = model.encoder_hidden_size_list, model.activation, model.layer_norm
        encoder = make_network(self.observation_space, hidden, None, activation, model.conv_layers, norm)
        width = [hidden[-1], *model.head_hidden_size_list]
        head: nn.Module = MLP([*width, self.num_actions], activation, layer_norm=norm)
        if model.dueling:
            body = MLP(width, activation, activate_last=True, layer_norm=norm)
            head = nn.Sequential(body, DuelingHead(width[-1], self.num_actions))
        network = ImplicitQuantileNetwork(encoder, CosineEmbedding(model.quantile_embedding_size, hidden[-1]), head)
        return normalized_inputs(self.observation_space, network, model.normalize_obs)

    def check_model(self, obs: Any) -> None:
        """Check the shape of the quantiles at given levels."""
        count, places = len(first_leaf(obs)), 5
        tau = torch.rand(count, places, device=self.device, generator=self.generator)
        what = "quantiles [B, A, N] of the return of each action, at the levels tau [B, N], or [N] for all rows"
        for levels in (tau, tau[0]):
            require_output(self, "forward(obs, tau)", self.model(obs, levels), (count, self.num_actions, places), what)

    def q_values(self, obs: Any) -> Tensor:
        """The mean return of each action, [B, A]."""
        return self.mean(self.model, obs)

    def mean(self, network: nn.Module, obs: Any) -> Tensor:
        """The mean return of each action according to a network, [B, A].

        The paper draws the quantile levels at random; evenly spaced levels give a less noisy and deterministic mean.
        """
        return network(obs, quantile_midpoints(self.cfg.model.num_acting_quantiles, self.device)).mean(-1)  # type: ignore[no-any-return]

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The quantile regression loss at random quantile levels, for one-step or n-step returns.

            target_j = r + discount * (1 - terminated) * Z_target(s', a'; tau'_j)
            a'       = argmax_a mean Z(s', a) if double else argmax_a mean Z_target(s', a)
            loss     = sum_i mean_j |tau_i - [u_ij < 0]| * huber(u_ij) / kappa, u_ij = target_j - Z(s, a; tau_i)

        Args:
            batch: see `DQNPolicy.loss`.

        Returns:
            See `QRDQNPolicy.loss`.

        Reference:
            Dabney et al. (2018), https://arxiv.org/abs/1806.06923, eq. 3 and algorithm 1.
        """
        model = self.cfg.model
        with torch.no_grad():
            choosing_value = self.mean(self.model if self.cfg.double else self.target_model, batch.next_obs)
            best = masked(choosing_value, batch.next_obs).argmax(-1)
            next_tau = self.drawn_places(len(best), model.num_target_quantiles)
            next_value = gather_atoms(self.target_model(batch.next_obs, next_tau), best)
        tau = self.drawn_places(len(best), model.num_quantiles)
        value = gather_atoms(self.model(batch.obs, tau), self.action_index(batch.action))
        return quantile_regression(value, next_value, tau, batch, gamma=self.cfg.discount_factor, kappa=self.cfg.kappa)

    def drawn_places(self, rows: int, n: int) -> Tensor:
        """Draw quantile levels, [rows, n], uniform in [0, 1)."""
        return torch.rand(rows, n, generator=self.generator, device=self.device)
