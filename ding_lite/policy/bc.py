"""Behaviour cloning: imitate the actions of a dataset by maximum likelihood.

Pomerleau (1991), "Efficient Training of Artificial Neural Networks for Autonomous Navigation".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite.basics import ConfigError, ranged_field
from ding_lite.data import Tree, flatten
from ding_lite.data.trees import first_leaf
from ding_lite.envs.spaces import subspaces
from ding_lite.functional import masked_mean, weighted_mean
from ding_lite.nn import action_distribution
from ding_lite.policy_base import LearnConfig, Policy, PolicyConfig
from ding_lite.policy_check import require_members, require_output
from ding_lite.policy_parts import LearningRateScheduleMixin, OfflineModelConfig, row_weight
from ding_lite.run_configs import OfflineRunConfig


@dataclasses.dataclass
class BCModelConfig(OfflineModelConfig):
    """The actor."""

    mixture_components: int = ranged_field(0, low=0, high=32)
    """Gaussians in the density of a Box action, whose weights, means and standard deviations depend on the observation, for
    data with several good actions. 0 for one Gaussian, whose standard deviation does not depend on the observation."""


@dataclasses.dataclass
class BCLearnConfig(LearnConfig):
    """Learning."""

    batch_size: int = ranged_field(256, low=1, high=10_000_000)
    """Transitions per gradient step."""


@dataclasses.dataclass
class BCPolicyConfig(PolicyConfig):
    """Behaviour cloning."""

    model: BCModelConfig = dataclasses.field(default_factory=BCModelConfig)
    """The actor."""

    learn: BCLearnConfig = dataclasses.field(default_factory=BCLearnConfig)
    """Learning."""


@dataclasses.dataclass
class BCConfig(OfflineRunConfig):
    """Behaviour cloning, on CartPole-v1."""

    exp_name: str = "runs/bc"
    """Folder of the run, for metrics, configuration and checkpoints."""

    best_share: float = ranged_field(1.0, low=1e-6, high=1)
    """Share of the finished episodes to learn from, those with the highest returns; 1 for all data, unfinished episodes too."""

    best_relative_to_start: bool = False
    """Whether the best episodes are those with the highest returns in comparison to others that begin nearly alike."""

    policy: BCPolicyConfig = dataclasses.field(default_factory=BCPolicyConfig)
    """The algorithm."""


class BCPolicy(LearningRateScheduleMixin, Policy):
    """Behaviour cloning, for actions and observations of any space. It has an actor, and no critic."""

    config_type = BCPolicyConfig
    cfg: BCPolicyConfig
    learns_from = "transitions"

    def check_spaces(self) -> None:
        """Raise ConfigError if there is no Box action for the `mixture_components`."""
        super().check_spaces()
        components = self.cfg.model.mixture_components
        if components and not _has_box(self.action_space):
            raise ConfigError(
                f"model.mixture_components = {components} is for Box actions, and the action space is {self.action_space}: "
                "set it to 0."
            )

    def make_model(self) -> nn.Module:
        """Make the actor."""
        model: Any = super().make_model()
        model.critic = None
        return model  # type: ignore[no-any-return]

    def take_model(self, model: nn.Module) -> nn.Module:
        """The module, with a `distribution` over actions if it has none.

        Raises:
            TypeError: it has no logits.
        """
        require_members(self, model, {"logits": "logits(obs) -> logit [B, width]"})
        if not hasattr(model, "distribution"):
            model.distribution = action_distribution(self.action_space, self.cfg.model.mixture_components)
        return super().take_model(model)

    def check_model(self, obs: Any) -> None:
        """Check the shape of the logit."""
        shape = (len(first_leaf(obs)), self.model.distribution.width)
        logit_is = f"the logit [B, width], the parameters of the {type(self.model.distribution).__name__} distribution"
        require_output(self, "logits(obs)", self.model.logits(obs), shape, logit_is)

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The negated log-likelihood of the actions.

            loss = -mean(log pi(a|s))

        Args:
            batch: obs [B, *obs_shape]; action [B, *action_shape]; optionally weight [B] float.

        Returns:
            The scalar loss; and a dict to log, with loss, entropy and the result of `imitation_errors`.

        Reference:
            Osa et al. (2018), "An Algorithmic Perspective on Imitation Learning", https://arxiv.org/abs/1811.06711, section 3.
        """
        logit = self.model.logits(batch.obs)
        log_prob, entropy = self.model.distribution.evaluate(logit, batch.action)
        loss = weighted_mean(-log_prob, row_weight(batch))
        errors = imitation_errors(self.model.distribution.mode(logit.detach()), batch.action)
        return loss, {"loss": loss.detach(), "entropy": entropy.detach().mean(), **errors}


def _has_box(space: gymnasium.Space[Any]) -> bool:
    parts = subspaces(space)
    return isinstance(space, spaces.Box) if parts is None else any(map(_has_box, parts.values()))


def imitation_errors(guess: Any, action: Any, valid: Tensor | None = None) -> dict[str, Tensor]:
    """How far the most likely actions are from those of the data.

    Args:
        guess, action: [B, *action_shape], nested like the space.
        valid: False for rows that do not count, [B] bool; None if all count.

    Returns:
        accuracy, the fraction of equal numbers, of all parts that are not a Box; and mse, the mean squared error of all Box
        parts. Each is left out if there is no such part.
    """
    wanted = dict(flatten(action))
    equal: list[Tensor] = []
    errors: list[Tensor] = []
    for path, leaf in flatten(guess):
        one, other = (part.detach().reshape(len(leaf), -1) for part in (leaf, wanted[path]))
        is_box = leaf.is_floating_point()
        (errors if is_box else equal).append((one - other).square() if is_box else (one == other.to(one.dtype)).float())
    found = {"accuracy": _mean_of_rows(equal, valid)} if equal else {}
    return {**found, "mse": _mean_of_rows(errors, valid)} if errors else found


def _mean_of_rows(parts: Sequence[Tensor], valid: Tensor | None) -> Tensor:
    """The mean of all elements of the parts [B, width], in the rows that count."""
    rows = torch.cat(list(parts), -1)
    return masked_mean(rows.mean(-1), valid)
