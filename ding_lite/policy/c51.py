"""C51: learn the distribution over returns on fixed atoms, and act greedily on its mean.

Bellemare et al. (2017), https://arxiv.org/abs/1707.06887; double and dueling as in DQN.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ding_lite.basics import ConfigError, ranged_field
from ding_lite.data import Tree
from ding_lite.data.trees import first_leaf
from ding_lite.functional import categorical_loss, categorical_mean, categorical_projection, gather_atoms
from ding_lite.nn import make_atom_network, masked
from ding_lite.policy.dqn import DQNModelConfig, DQNPolicyConfig
from ding_lite.policy_base import Policy
from ding_lite.policy_check import require_output
from ding_lite.policy_parts import (
    EpsilonGreedyMixin,
    LearningRateScheduleMixin,
    TargetNetworkMixin,
    bootstrap_discount,
    weighted_loss,
)
from ding_lite.run_configs import RunConfig


@dataclasses.dataclass
class C51ModelConfig(DQNModelConfig):
    """The network for the distribution over returns."""

    n_atom: int = ranged_field(101, low=2, high=16_384)
    """Number of atoms, evenly spaced from v_min to v_max."""

    v_min: float = ranged_field(-100.0)
    """Smallest discounted return. With discount_factor 0.99, -100 and 100 are enough for rewards in [-1, 1]."""

    v_max: float = ranged_field(100.0)
    """Largest discounted return."""


@dataclasses.dataclass
class C51PolicyConfig(DQNPolicyConfig):
    """C51."""

    model: C51ModelConfig = dataclasses.field(default_factory=C51ModelConfig)
    """The network for the distribution over returns."""


@dataclasses.dataclass
class C51Config(RunConfig):
    """C51."""

    exp_name: str = "runs/c51"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(2000, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    policy: C51PolicyConfig = dataclasses.field(default_factory=C51PolicyConfig)
    """The algorithm."""


class C51Policy(EpsilonGreedyMixin, TargetNetworkMixin, LearningRateScheduleMixin, Policy):
    """Categorical distributional Q-learning, for Discrete actions and observations of any space."""

    config_type: ClassVar[type[C51PolicyConfig]] = C51PolicyConfig
    cfg: C51PolicyConfig
    learns_from = "transitions"

    def check_spaces(self) -> None:
        """Raise SpaceError if the action space is not Discrete, and ConfigError if v_min is not below v_max."""
        super().check_spaces()
        model = self.cfg.model
        if not model.v_min < model.v_max:
            raise ConfigError(f"model.v_min = {model.v_min:g} and model.v_max = {model.v_max:g}: set v_min below v_max.")

    def make_model(self) -> nn.Module:
        """Make the network from observations to logits [B, A, N] of the atoms of each action."""
        model, actions = self.cfg.model, self.num_actions
        return make_atom_network(
            self.observation_space,
            actions,
            model.n_atom,
            model.encoder_hidden_size_list,
            model.activation,
            model.conv_layers,
            dueling=model.dueling,
            normalize_obs=model.normalize_obs,
            layer_norm=model.layer_norm,
        )

    def check_model(self, obs: Any) -> None:
        """Check the shape of the logits."""
        shape = (len(first_leaf(obs)), self.num_actions, None)
        require_output(self, "forward(obs)", self.model(obs), shape, "logits [B, A, N] of the atoms of each action")

    def q_values(self, obs: Any) -> Tensor:
        """The mean return of each action, [B, A]."""
        return self.mean(self.model(obs))

    def mean(self, logit: Tensor) -> Tensor:
        """The mean return [...] of distributions [..., N]."""
        return categorical_mean(logit.softmax(-1), v_min=self.cfg.model.v_min, v_max=self.cfg.model.v_max)

    def logits(self, network: nn.Module, obs: Any) -> Tensor:
        """The logits of the online or target network in the loss, [B, A, N]."""
        return network(obs)  # type: ignore[no-any-return]

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The loss of categorical distributional Q-learning, for one-step or n-step returns.

            target = projection of r + discount * (1 - terminated) * Z_target(s', a') onto the atoms
            a'     = argmax_a mean Z(s', a) if double else argmax_a mean Z_target(s', a)
            loss   = -sum_i target_i * log p_i(s, a)

        Args:
            batch: see `DQNPolicy.loss`.

        Returns:
            The scalar loss; and a dict to log, with loss, mean q_value and, if the batch has weights, the priority of each row,
            [B]: KL(target || predicted distribution).

        Reference:
            Bellemare et al. (2017), https://arxiv.org/abs/1707.06887, algorithm 1; the priority: Hessel et al. (2018),
            https://arxiv.org/abs/1710.02298, section "The Integrated Agent".
        """
        model = self.cfg.model
        with torch.no_grad():
            next_logit = self.logits(self.target_model, batch.next_obs)
            choosing_logit = self.logits(self.model, batch.next_obs) if self.cfg.double else next_logit
            best = masked(self.mean(choosing_logit), batch.next_obs).argmax(-1)
            next_prob = gather_atoms(next_logit, best).softmax(-1)
            gamma = bootstrap_discount(batch, self.cfg.discount_factor)
            target = categorical_projection(
                next_prob, batch.reward, batch.terminated, v_min=model.v_min, v_max=model.v_max, gamma=gamma
            )
        log_prob = gather_atoms(self.logits(self.model, batch.obs), self.action_index(batch.action)).log_softmax(-1)
        loss = categorical_loss(log_prob, target)
        mean_loss, stats = weighted_loss(loss, lambda: loss.detach() + torch.xlogy(target, target).sum(-1), batch)
        mean_prob = log_prob.detach().exp().mean(0)
        return mean_loss, {**stats, "q_value": categorical_mean(mean_prob, v_min=model.v_min, v_max=model.v_max)}
