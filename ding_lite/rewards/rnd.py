"""RND: an exploration bonus for rare observations, the error of predicting the output of a random network.

Burda et al. (2019), "Exploration by Random Network Distillation", https://arxiv.org/abs/1810.12894.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor, nn

from ding_lite.basics import Config, ranged_field, seed_of
from ding_lite.data import Tree, has_leaf, map_leaves, nested, with_leaves
from ding_lite.envs import space_spec
from ding_lite.functional import decayed
from ding_lite.nn import Adam, make_network, make_normalizer, seeded
from ding_lite.policy_base import available_device
from ding_lite.policy_state import (
    StateError,
    optimizer_state,
    require_count,
    require_like,
    require_optimizer_state,
    require_part,
    require_range,
)


@dataclasses.dataclass
class RNDRewardConfig(Config):
    """Random network distillation."""

    hidden_size_list: list[int] = ranged_field(default_factory=lambda: [64, 64], low=1, high=16_384)
    """Width of each hidden layer of both networks."""

    feature_size: int = ranged_field(32, low=1, high=16_384)
    """Width of the output of both networks."""

    learning_rate: float = ranged_field(1e-4, low=0)
    """Learning rate of Adam."""

    bonus_weight: float = ranged_field(0.5, low=0)
    """Weight of the bonus, which is scaled to about 1, in the reward."""

    bonus_steps: int | None = ranged_field(10_000, low=1)
    """Gradient steps in which the weight of the bonus decreases linearly to 0; None for constant."""

    scale_decay: float = ranged_field(0.99, low=0, high=1)
    """Decay per gradient step of the running scale of the bonus; 1 keeps the scale of the first batch."""


class RNDRewardModel:
    """Adds a bonus to rewards: the error of predicting a random network's output for the next observation.

        error  = mean over features of (f(norm(next_obs)) - f_random(norm(next_obs)))^2
        bonus  = error / running root mean square of error
        reward = reward + weight * bonus

    Observations are normalised by the statistics of all observations learned from, and clipped at 5 standard deviations. The
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

    columns = ("next_obs", "reward")
    """The columns of a batch that it reads."""

    state_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"mean_square": (0.0, math.inf)}
    """Allowed ranges of entries of a saved state."""

    def __init__(
        self, cfg: RNDRewardConfig, observation_space: gymnasium.Space[Any], seed: int = 0, device: str = "cpu"
    ) -> None:
        self.cfg, self.device = cfg, available_device(device)
        self._spec = space_spec(observation_space)
        with seeded(seed_of(seed, "RNDRewardModel(seed={})")):
            sizes, width = cfg.hidden_size_list, cfg.feature_size
            self.random = make_network(observation_space, sizes, width).to(self.device).requires_grad_(False)
            self.predictor = make_network(observation_space, sizes, width).to(self.device)
        self.obs_norm = make_normalizer(observation_space, limit=5.0).to(self.device)
        self.mean_square = torch.zeros((), device=self.device)
        self.steps = 0
        """Gradient steps taken."""
        self.optimizer = Adam(self.predictor.parameters(), lr=cfg.learning_rate, fused=True)

    def learn(self, batch: Tree) -> dict[str, Tensor]:
        """Take one gradient step of the predictor on the observations of a batch, and update the running statistics.

        Args:
            batch: next_obs [B, ...] or [T, B, ...]; optionally valid [B] or [T, B] bool, False for rows that are not steps.

        Returns:
            A dict to log, with the scalar tensors rnd_loss and rnd_bonus, the mean bonus without its weight; empty if no row is
            a step.
        """
        obs = self._rows(batch)
        if has_leaf(batch, "valid"):
            valid = batch.valid.to(self.device).reshape(-1)
            if not valid.any():
                return {}
            obs = map_leaves(lambda leaf: leaf[valid], obs)
        self.obs_norm.update(obs)  # type: ignore[operator]
        error = self._error(obs)
        square = error.detach().square().mean()
        self.mean_square = torch.where(self.mean_square > 0, self.mean_square.lerp(square, 1 - self.cfg.scale_decay), square)
        loss = error.mean()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.steps += 1
        return {"rnd_loss": loss.detach(), "rnd_bonus": self._scaled(error.detach()).mean()}

    @torch.no_grad()
    def estimate(self, batch: Tree) -> Tree:
        """Add the bonus to the reward of a batch. The environment's reward is kept as raw_reward."""
        reward = batch.reward
        bonus = self._scaled(self._error(self._rows(batch))).reshape(reward.shape).to(reward)
        return with_leaves(batch, reward=reward + self.weight * bonus, raw_reward=reward)

    @property
    def weight(self) -> float:
        """Current weight of the bonus."""
        start, over = self.cfg.bonus_weight, self.cfg.bonus_steps
        return start if over is None else decayed(start, 0.0, over, self.steps, "linear")

    def _rows(self, batch: Tree) -> Any:
        """next_obs as rows [N, ...] on the device."""

        def merged(spec: Any, leaf: Tensor) -> Tensor:
            return leaf.to(self.device).reshape(-1, *spec.shape)

        return map_leaves(merged, self._spec, nested(batch.next_obs))

    def _error(self, obs: Any) -> Tensor:
        """Mean squared error of the prediction over the features, [N]."""
        normal = self.obs_norm(obs)
        return (self.predictor(normal) - self.random(normal)).square().mean(-1)  # type: ignore[no-any-return]

    def _scaled(self, error: Tensor) -> Tensor:
        return error / (self.mean_square.sqrt() + 1e-8)

    def _modules(self) -> dict[str, nn.Module]:
        return {name: getattr(self, name) for name in ("random", "predictor", "obs_norm")}

    def state_dict(self) -> dict[str, Any]:
        """A copy of both networks, the optimizer and the running statistics."""
        modules = {name: module.state_dict() for name, module in self._modules().items()}
        kept = copy.deepcopy({**modules, "mean_square": self.mean_square, "steps": self.steps})
        return {**kept, "optimizer": optimizer_state(self.optimizer)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state.

        Raises:
            StateError: a part is missing or does not fit; nothing is changed.
        """
        own = self.state_dict()
        if missing := [name for name in own if name not in state]:
            raise StateError(
                f"this state of {type(self).__name__} lacks {missing[0]!r}, it has {sorted(map(str, state))}: pass the whole "
                "result of state_dict()."
            )
        for name in own.keys() - {"optimizer"}:
            require_like(f"state[{name!r}]", own[name], state[name])
        for name, module in self._modules().items():
            require_part(f"state[{name!r}]", module, state[name])
        require_range("state['mean_square']", state["mean_square"], self.state_ranges["mean_square"])
        require_count("state['steps']", state["steps"])
        require_optimizer_state('state["optimizer"]', self.optimizer, state["optimizer"])
        for name, module in self._modules().items():
            module.load_state_dict(state[name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.mean_square, self.steps = torch.as_tensor(state["mean_square"], device=self.device), state["steps"]
