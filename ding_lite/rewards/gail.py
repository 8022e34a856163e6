"""GAIL: rewards for acting like an expert, from a discriminator between transitions of the expert and of the policy.

Ho and Ermon (2016), "Generative Adversarial Imitation Learning", https://arxiv.org/abs/1606.03476.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid, softplus

from ding_lite.basics import Config, ranged_field, seed_of
from ding_lite.data import Tree
from ding_lite.data.trees import as_floats, first_leaf, map_leaves
from ding_lite.datasets import open_dataset
from ding_lite.datasets.space_checks import require_spaces
from ding_lite.envs.action_masks import without_mask
from ding_lite.envs.spaces import space_spec
from ding_lite.nn import MLP, Adam, clip_actions, make_encoder, make_normalizer, seeded
from ding_lite.rewards.reward_models import RewardModel, not_finite, with_reward

_REWARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "positive": softplus,  # -log(1 - sigmoid(x)) is softplus(x)
    "log_ratio": lambda logit: logit,
    "negative": logsigmoid,
}
_AT_ONCE = 10_000  # transitions of the expert whose statistics are computed at once


@dataclasses.dataclass
class GAILRewardConfig(Config):
    """Generative adversarial imitation learning."""

    hidden_size_list: list[int] = ranged_field(default_factory=lambda: [64, 64], low=1, high=16_384)
    """Width of each hidden layer of the discriminator."""

    conv_layers: list[tuple[int, int, int]] | None = ranged_field(None, low=1, high=16_384)
    """For images: (channels, kernel size, stride) of each convolution; None chooses by image size."""

    learning_rate: float = ranged_field(1e-3, low=0)
    """Learning rate of Adam."""

    batch_size: int = ranged_field(256, low=1, high=10_000_000)
    """Transitions of the expert, and as many of the policy, per gradient step."""

    update_per_collect: int = ranged_field(4, low=1, high=1_000_000)
    """Gradient steps of the discriminator on each batch of the policy."""

    reward: Literal["positive", "log_ratio", "negative"] = "positive"
    """-log(1 - D), log D - log(1 - D), or log D, where D is the probability of the expert. Episodes that should be long need
    "positive", episodes that should end early "negative"; "log_ratio" has both signs."""

    label_smoothing: float = ranged_field(0.0, low=0, high=0.5)
    """The labels to predict are 1 - label_smoothing for the expert, and label_smoothing for the policy."""

    gradient_penalty: float = ranged_field(10.0, low=0)
    """Weight of the gradient penalty, which keeps the discriminator smooth; 0 for none."""


class GAILRewardModel(RewardModel):
    """Replaces rewards: a discriminator D(s, a) says how likely a transition is to be the expert's.

        loss    = -mean over the expert of log D - mean over the policy of log(1 - D) + gradient_penalty * penalty
        penalty = mean over x of (|grad logit(x)| - 1)^2, D = sigmoid(logit)
        reward  = -log(1 - D)                with reward="positive"
                  log D - log(1 - D)         with reward="log_ratio", the logit
                  log D                      with reward="negative"

    Each x of the penalty is a mixture, in a random proportion, of the features of a transition of the expert and of one of the
    policy. The discriminator takes observations and actions; Discrete values are one-hot vectors. Floats are normalised by the
    statistics of the expert, and actions are clipped to the bounds of their Box, as for the environment. The environment's
    rewards are not used, and those of the expert need not be true ones.

    Args:
        cfg: settings.
        observation_space: observation space of one environment.
        action_space: action space of one environment.
        expert_data: a dataset of the expert, anything that `open_dataset` takes.
        seed: random seed of the weights of the discriminator, and of its minibatches.
        device: torch device of the discriminator.

    Raises:
        SpaceError: observations or actions of the expert do not fit the spaces.
        ValueError: there are no transitions of the expert, or they have NaN or infinity.

    Reference:
        Ho and Ermon (2016), https://arxiv.org/abs/1606.03476, algorithm 1; "log_ratio": Fu et al. (2018),
        https://arxiv.org/abs/1710.11248; the penalty: Gulrajani et al. (2017), https://arxiv.org/abs/1704.00028.
    """

    columns: ClassVar[tuple[str, ...]] = ("obs", "action", "reward")
    modules: ClassVar[tuple[str, ...]] = ("discriminator", "norm")

    def __init__(
        self,
        cfg: GAILRewardConfig,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        expert_data: Any,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        super().__init__(device)
        self.cfg, self._seed = cfg, seed_of(seed, "GAILRewardModel(seed={})")
        self.expert = open_dataset(expert_data)
        self._action_space = action_space
        self._specs = {"obs": space_spec(observation_space), "action": space_spec(action_space)}
        if not len(self.expert):
            raise ValueError(
                f"GAILRewardModel got the dataset {self.expert.name}, which has no transitions: record the expert first."
            )
        fix = "record the expert in the same environment"
        require_spaces(self.expert, observation_space, action_space, "the environment", fix, are_clipped=True)
        both = spaces.Dict({"obs": without_mask(observation_space), "action": action_space})
        with seeded(self._seed):
            encoder, width = make_encoder(both, cfg.conv_layers)
            self.discriminator = torch.nn.Sequential(encoder, MLP([width, *cfg.hidden_size_list, 1])).to(self.device)
        self.norm = make_normalizer(both).to(self.device)
        for first in range(0, len(self.expert), _AT_ONCE):
            rows = self.expert.take(range(first, min(first + _AT_ONCE, len(self.expert))), ("obs", "action"))
            if names := not_finite(self._rows(self._specs, rows)):
                raise ValueError(f"the dataset {self.expert.name} has NaN or infinity in {names}: record the expert again.")
            self.norm.update(self._inputs(rows))  # type: ignore[operator]
        self.optimizer = Adam(self.discriminator.parameters(), lr=cfg.learning_rate, fused=True)

    def learn(self, batch: Tree) -> dict[str, Tensor]:
        """Take `update_per_collect` gradient steps of the discriminator, on random transitions of the expert and of a batch.

        Args:
            batch: obs, action [B, ...] or [T, B, ...]; optionally valid [B] or [T, B] bool, False for rows that are not steps.

        Returns:
            A dict to log, with the scalar tensors gail_loss, and gail_expert_prob and gail_policy_prob, the mean of D over the
            transitions of each; empty if no row is a step.

        Raises:
            NonFiniteError: the batch has NaN or infinity, and nothing has changed; or the loss or its gradient is not finite,
                and the discriminator is as before this gradient step.
        """
        rows = self._inputs(batch, for_learning=True)
        count = len(first_leaf(rows))
        if not count:
            return {}
        for _ in range(self.cfg.update_per_collect):
            rng = np.random.default_rng([self._seed, self.steps])  # so that there is no random state to save
            mine = torch.from_numpy(rng.integers(count, size=min(count, self.cfg.batch_size))).to(self.device)
            theirs = self.expert.take(rng.integers(len(self.expert), size=len(mine)), ("obs", "action"))
            share = torch.from_numpy(rng.random((len(mine), 1), np.float32)).to(self.device)
            logged = self._step(self._inputs(theirs), map_leaves(lambda leaf, at=mine: leaf[at], rows), share)
        return logged

    def _step(self, expert: Any, policy: Any, share: Tensor) -> dict[str, Tensor]:
        cfg = self.cfg
        features, policy_features = self._features(expert), self._features(policy)
        head = self.discriminator[1]
        logit, policy_logit = head(features).squeeze(-1), head(policy_features).squeeze(-1)
        label = torch.full_like(logit, 1 - cfg.label_smoothing)
        loss = binary_cross_entropy_with_logits(logit, label) + binary_cross_entropy_with_logits(policy_logit, 1 - label)
        total = loss
        if cfg.gradient_penalty > 0:
            mixed = torch.lerp(policy_features.detach(), features.detach(), share).requires_grad_()
            (slope,) = torch.autograd.grad(head(mixed).sum(), mixed, create_graph=True)
            total = loss + cfg.gradient_penalty * (slope.norm(dim=-1) - 1).square().mean()
        self._minimize(total)
        probs = {"gail_expert_prob": logit, "gail_policy_prob": policy_logit}
        return {"gail_loss": loss.detach(), **{name: x.detach().sigmoid().mean() for name, x in probs.items()}}

    @torch.no_grad()
    def estimate(self, batch: Tree) -> Tree:
        """Replace the reward of a batch. The one before is kept as raw_reward, unless the batch has this column."""
        logit = self.discriminator[1](self._features(self._inputs(batch))).squeeze(-1)
        before = as_floats(batch.reward)
        return with_reward(batch, _REWARDS[self.cfg.reward](logit).reshape(before.shape).to(before))

    def state_dict(self) -> dict[str, Any]:
        """See `RewardModel.state_dict`; and a checksum of the data of the expert."""
        return {**super().state_dict(), "expert": self.expert.fingerprint}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state, see `RewardModel.load_state_dict`, with a warning if it is one with another expert."""
        expert = self.expert.fingerprint
        if isinstance(state, Mapping) and "expert" in state:  # states of earlier versions do not have it
            expert = state["expert"]
            state = {name: it for name, it in state.items() if name != "expert"}
        super().load_state_dict(state)
        if expert != self.expert.fingerprint:
            warnings.warn(
                f"this GAILRewardModel goes on with the expert of the dataset {self.expert.name}, and the loaded state has "
                "learned from other data. To go on as before, pass the same dataset.",
                stacklevel=2,
            )

    def _inputs(self, batch: Tree, for_learning: bool = False) -> Any:
        """Observations and actions as rows [N, ...]."""
        rows = self._rows(self._specs, batch, for_learning)
        return {**rows, "action": clip_actions(self._action_space, rows["action"])}

    def _features(self, inputs: Any) -> Tensor:
        return self.discriminator[0](self.norm(inputs))  # type: ignore[no-any-return]
