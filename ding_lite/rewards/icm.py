"""ICM: an exploration bonus for surprising transitions, the error of predicting features of the next observation.

Pathak et al. (2017), "Curiosity-driven Exploration by Self-supervised Prediction", https://arxiv.org/abs/1705.05363.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor

from ding_lite.basics import ranged_field, seed_of
from ding_lite.data import Tree
from ding_lite.data.trees import first_leaf
from ding_lite.envs.spaces import space_spec
from ding_lite.nn import MLP, Adam, action_distribution, clip_actions, make_encoder, make_network, make_normalizer, seeded
from ding_lite.rewards.reward_models import BonusConfig, ExplorationBonus


@dataclasses.dataclass
class ICMRewardConfig(BonusConfig):
    """The intrinsic curiosity module."""

    hidden_size_list: list[int] = ranged_field(default_factory=lambda: [64], low=1, high=16_384)
    """Width of each hidden layer of the encoder, of the inverse model and of the forward model."""

    conv_layers: list[tuple[int, int, int]] | None = ranged_field(None, low=1, high=16_384)
    """For images: (channels, kernel size, stride) of each convolution; None chooses by image size."""

    feature_size: int = ranged_field(32, low=1, high=16_384)
    """Number of features of an observation."""

    learning_rate: float = ranged_field(1e-4, low=0)
    """Learning rate of Adam."""

    forward_weight: float = ranged_field(0.2, low=0, high=1)
    """Weight of the loss of the forward model; that of the inverse model has the weight 1 - forward_weight."""


class ICMRewardModel(ExplorationBonus):
    """Adds a bonus to rewards: the error of predicting features of the next observation.

        phi(s)  = encoder(norm(s))
        inverse = -log p(a | phi(s), phi(s'))
        error   = mean over features of (forward(phi(s), a) - phi(s'))^2
        loss    = (1 - forward_weight) * inverse + forward_weight * error
        bonus   = error / running root mean square of error
        reward  = reward + weight * bonus

    The inverse model makes the features say what actions influence, so that random parts of an observation give no bonus.
    Box actions are clipped to their bounds, as for the environment; Discrete actions are one-hot vectors. The numbers
    of float Boxes, of observations and of actions, are normalised by the statistics of all next observations and actions
    learned from, and clipped at 5 standard deviations; images, integer Boxes and discrete parts are unchanged. Before the
    first `learn`, the bonus is 0.

    Args:
        cfg: settings.
        observation_space: observation space of one environment.
        action_space: action space of one environment.
        seed: random seed of the weights of the networks.
        device: torch device of the networks.

    Reference:
        Pathak et al. (2017), https://arxiv.org/abs/1705.05363, eq. 2 to 7.
    """

    columns: ClassVar[tuple[str, ...]] = ("obs", "action", "next_obs", "reward")
    modules: ClassVar[tuple[str, ...]] = ("networks", "obs_norm", "action_norm")

    def __init__(
        self,
        cfg: ICMRewardConfig,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        super().__init__(cfg, device)
        self.cfg, self._action_space = cfg, action_space
        obs = space_spec(observation_space)
        self._specs = {"obs": obs, "action": space_spec(action_space), "next_obs": obs}
        sizes, width = cfg.hidden_size_list, cfg.feature_size
        with seeded(seed_of(seed, "ICMRewardModel(seed={})")):
            self.encoder = make_network(observation_space, sizes, width, conv_layers=cfg.conv_layers)
            self.action_encoder, action_width = make_encoder(action_space)
            self.distribution = action_distribution(action_space)
            self.inverse_model = MLP([2 * width, *sizes, self.distribution.width])
            self.forward_model = MLP([width + action_width, *sizes, width])
        parts = (self.encoder, self.action_encoder, self.distribution, self.inverse_model, self.forward_model)
        self.networks = torch.nn.ModuleList(parts).to(self.device)
        self.obs_norm = make_normalizer(observation_space, limit=5.0).to(self.device)
        self.action_norm = make_normalizer(action_space, limit=5.0).to(self.device)
        self.optimizer = Adam(self.networks.parameters(), lr=cfg.learning_rate, fused=True)

    def learn(self, batch: Tree) -> dict[str, Tensor]:
        """Take one gradient step of all networks on the transitions of a batch, and update the running statistics.

        Args:
            batch: obs, action, next_obs [B, ...] or [T, B, ...]; optionally valid [B] or [T, B] bool, False for rows that are
                not steps.

        Returns:
            A dict to log, with the scalar tensors icm_inverse_loss, icm_forward_loss and icm_bonus, the mean bonus without its
            weight; empty if no row is a step.

        Raises:
            NonFiniteError: the batch has NaN or infinity, or the loss or its gradient is not finite; the networks and the
                running statistics are as before.
        """
        rows = self._rows_of(batch, for_learning=True)
        if not len(first_leaf(rows)):
            return {}
        with self._unless_refused(self.obs_norm, self.action_norm):
            self.obs_norm.update(rows["next_obs"])  # type: ignore[operator]
            self.action_norm.update(rows["action"])  # type: ignore[operator]
            error, features, action = self._predicted(rows)
            inverse_loss = -self.distribution.evaluate(self.inverse_model(features), action)[0].mean()
            forward_loss, share = error.mean(), self.cfg.forward_weight
            square = error.detach().square().mean()
            self._minimize((1 - share) * inverse_loss + share * forward_loss, square)
        self._update_scale(square)
        logged = {"icm_inverse_loss": inverse_loss.detach(), "icm_forward_loss": forward_loss.detach()}
        return {**logged, "icm_bonus": self._scaled(error.detach()).mean()}

    def _rows_of(self, batch: Tree, for_learning: bool = False) -> dict[str, Any]:
        rows = self._rows(self._specs, batch, for_learning)
        return {**rows, "action": clip_actions(self._action_space, rows["action"])}

    def _error(self, rows: dict[str, Any]) -> Tensor:
        """Mean squared error of the forward model over the features, [N]."""
        return self._predicted(rows)[0]

    def _predicted(self, rows: dict[str, Any]) -> tuple[Tensor, Tensor, Any]:
        """The error of the forward model [N], the features of both observations [N, 2 F], and the normalised actions."""
        feature, next_feature = (self.encoder(self.obs_norm(rows[name])) for name in ("obs", "next_obs"))
        action = self.action_norm(rows["action"])
        guess = self.forward_model(torch.cat((feature, self.action_encoder(action)), -1))
        return (guess - next_feature).square().mean(-1), torch.cat((feature, next_feature), -1), action
