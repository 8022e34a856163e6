"""RND: an exploration bonus for rare observations, the error of predicting the output of a random network.

Burda et al. (2019), "Exploration by Random Network Distillation", https://arxiv.org/abs/1810.12894.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import gymnasium
from torch import Tensor

from ding_lite.basics import ranged_field, seed_of
from ding_lite.data import Tree
from ding_lite.data.trees import first_leaf
from ding_lite.envs.spaces import space_spec
from ding_lite.nn import Adam, make_network, make_normalizer, seeded
from ding_lite.rewards.reward_models import BonusConfig, ExplorationBonus


@dataclasses.dataclass
class RNDRewardConfig(BonusConfig):
    """Random network distillation."""

    hidden_size_list: list[int] = ranged_field(default_factory=lambda: [64, 64], low=1, high=16_384)
    """Width of each hidden layer of both networks."""

    conv_layers: list[tuple[int, int, int]] | None = ranged_field(None, low=1, high=16_384)
    """For images: (channels, kernel size, stride) of each convolution; None chooses by image size."""

    feature_size: int = ranged_field(32, low=1, high=16_384)
    """Width of the output of both networks."""

    learning_rate: float = ranged_field(1e-4, low=0)
    """Learning rate of Adam."""


class RNDRewardModel(ExplorationBonus):
    """Adds a bonus to rewards: the error of predicting a random network's output for the next observation.

        error  = mean over features of (f(norm(next_obs)) - f_random(norm(next_obs)))^2
        bonus  = error / running root mean square of error
        reward = reward + weight * bonus

    Numbers of a float Box are normalised by the statistics of all observations learned from, and clipped at 5 standard
    deviations; images, integer Boxes and discrete parts are unchanged. Before the first `learn`, the bonus is 0. The
    running root mean square covers about the last 1 / (1 - scale_decay) batches, not the whole past as in the paper. Rows of
    replay are sampled many times, each time with the current bonus; divided by the large errors of the start, all later bonuses
    would be close to 0.

    Args:
        cfg: settings.
        observation_space: observation space of one environment.
        seed: random seed of the weights of both networks.
        device: torch device of the networks.

    Reference:
        Burda et al. (2019), https://arxiv.org/abs/1810.12894, sections 2.2 and 2.4.
    """

    columns: ClassVar[tuple[str, ...]] = ("next_obs", "reward")
    modules: ClassVar[tuple[str, ...]] = ("random", "predictor", "obs_norm")

    def __init__(
        self, cfg: RNDRewardConfig, observation_space: gymnasium.Space[Any], seed: int = 0, device: str = "cpu"
    ) -> None:
        super().__init__(cfg, device)
        self.cfg, self._spec = cfg, space_spec(observation_space)
        with seeded(seed_of(seed, "RNDRewardModel(seed={})")):
            sizes, width, convs = cfg.hidden_size_list, cfg.feature_size, cfg.conv_layers
            self.random = make_network(observation_space, sizes, width, conv_layers=convs).to(self.device).requires_grad_(False)
            self.predictor = make_network(observation_space, sizes, width, conv_layers=convs).to(self.device)
        self.obs_norm = make_normalizer(observation_space, limit=5.0).to(self.device)
        self.optimizer = Adam(self.predictor.parameters(), lr=cfg.learning_rate, fused=True)

    def learn(self, batch: Tree) -> dict[str, Tensor]:
        """Take one gradient step of the predictor on the observations of a batch, and update the running statistics.

        Args:
            batch: next_obs [B, ...] or [T, B, ...]; optionally valid [B] or [T, B] bool, False for rows that are not steps.

        Returns:
            A dict to log, with the scalar tensors rnd_loss and rnd_bonus, the mean bonus without its weight; empty if no row is
            a step.

        Raises:
            NonFiniteError: the batch has NaN or infinity, or the loss or its gradient is not finite; the networks and the
                running statistics are as before.
        """
        rows = self._rows_of(batch, for_learning=True)
        if not len(first_leaf(rows)):
            return {}
        with self._unless_refused(self.obs_norm):
            self.obs_norm.update(rows["next_obs"])  # type: ignore[operator]
            error = self._error(rows)
            loss, square = error.mean(), error.detach().square().mean()
            self._minimize(loss, square)
        self._update_scale(square)
        return {"rnd_loss": loss.detach(), "rnd_bonus": self._scaled(error.detach()).mean()}

    def _rows_of(self, batch: Tree, for_learning: bool = False) -> dict[str, Any]:
        return self._rows({"next_obs": self._spec}, batch, for_learning)

    def _error(self, rows: dict[str, Any]) -> Tensor:
        """Mean squared error of the prediction over the features, [N]."""
        normal = self.obs_norm(rows["next_obs"])
        return (self.predictor(normal) - self.random(normal)).square().mean(-1)  # type: ignore[no-any-return]
