"""Heads: from features to action values, and to distributions over actions of any space.

Room: ding_lite.nn, floor 3, below policy. Imports envs for the spaces.
"""

from __future__ import annotations

import abc
import math
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Generator, Tensor, nn

from ding_lite.envs import SpaceError, subspaces
from ding_lite.functional import bernoulli_log_prob, gaussian_log_prob, sample_categorical
from ding_lite.nn.initialization import orthogonal


class DuelingHead(nn.Module):
    """Action values as state value plus advantage, the advantage centred over actions.

        Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')

    Reference:
        Wang et al. (2016), https://arxiv.org/abs/1511.06581, eq. 9.
    """

    def __init__(self, in_features: int, num_actions: int) -> None:
        super().__init__()
        self.value, self.advantage = nn.Linear(in_features, 1), nn.Linear(in_features, num_actions)

    def forward(self, features: Tensor) -> Tensor:
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(-1, keepdim=True)  # type: ignore[no-any-return]


class ActionHead(nn.Module, abc.ABC):
    """A distribution over actions, from features [B, F]. Actions are elements of the space, as nested dicts [B, ...]."""

    @abc.abstractmethod
    def sample(self, features: Tensor, generator: Generator) -> tuple[Any, Tensor]:
        """An action drawn from it, and its log-probability [B]."""

    @abc.abstractmethod
    def mode(self, features: Tensor) -> Any:
        """The action where probability or density is highest."""

    @abc.abstractmethod
    def evaluate(self, features: Tensor, action: Any) -> tuple[Tensor, Tensor]:
        """Log-probability of this action, and entropy, each [B]."""


def action_head(space: gymnasium.Space[Any], in_features: int) -> ActionHead:
    """The head for actions of this space.

    Discrete: categorical; MultiDiscrete: a categorical for each part; MultiBinary: independent bits; Box: a diagonal Gaussian
    whose standard deviation does not depend on the observation; Dict and Tuple: their parts, independent of each other.

    Raises:
        SpaceError: any other space, or a Box of integers.
    """
    parts = subspaces(space)
    if parts is not None:
        return CompositeHead({name: action_head(part, in_features) for name, part in parts.items()})
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(in_features, int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(in_features, space.nvec, space.start)
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(in_features, space.shape)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return GaussianHead(in_features, space.shape)
    raise SpaceError(
        f"no distribution over actions of {space}: take Discrete, MultiDiscrete, MultiBinary, float Box, or nest them."
    )


class CategoricalHead(ActionHead):
    """One of n actions, counted from `start`."""

    def __init__(self, in_features: int, n: int, start: int = 0) -> None:
        super().__init__()
        self.linear, self.start = orthogonal(nn.Linear(in_features, n), 0.01), start

    def sample(self, features: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """An action [B] int64 drawn from it, and its log-probability [B]."""
        log_prob = self.linear(features).log_softmax(-1)
        index = sample_categorical(log_prob, generator)
        return index + self.start, log_prob.gather(-1, index.unsqueeze(-1)).squeeze(-1)

    def mode(self, features: Tensor) -> Tensor:
        """The most probable action [B]."""
        return self.linear(features).argmax(-1) + self.start  # type: ignore[no-any-return]

    def evaluate(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of this action [B], and entropy, each [B]."""
        log_prob = self.linear(features).log_softmax(-1)
        index = action - self.start if self.start else action
        return log_prob.gather(-1, index.unsqueeze(-1)).squeeze(-1), -(log_prob.exp() * log_prob).sum(-1)


class MultiCategoricalHead(ActionHead):
    """One choice for each element of an array, independent of each other."""

    def __init__(self, in_features: int, sizes: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.shape = sizes.shape
        self.heads = nn.ModuleList(
            CategoricalHead(in_features, int(n), int(start)) for n, start in zip(sizes.ravel(), starts.ravel())
        )

    def sample(self, features: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Actions [B, *shape], and their joint log-probability [B]."""
        actions, log_probs = zip(*(head.sample(features, generator) for head in self._heads()))
        return torch.stack(actions, -1).reshape(-1, *self.shape), sum(log_probs[1:], start=log_probs[0])

    def mode(self, features: Tensor) -> Tensor:
        """The most probable actions [B, *shape]."""
        return torch.stack([head.mode(features) for head in self._heads()], -1).reshape(-1, *self.shape)

    def evaluate(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Joint log-probability of actions [B, *shape], and entropy, each [B]."""
        columns = action.reshape(len(action), -1).long().unbind(-1)
        log_probs, entropies = zip(*(head.evaluate(features, column) for head, column in zip(self._heads(), columns)))
        return sum(log_probs[1:], start=log_probs[0]), sum(entropies[1:], start=entropies[0])

    def _heads(self) -> list[CategoricalHead]:
        return list(self.heads)  # type: ignore[arg-type]


class BernoulliHead(ActionHead):
    """Bits, independent of each other."""

    def __init__(self, in_features: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.linear = orthogonal(nn.Linear(in_features, math.prod(shape)), 0.01)

    def sample(self, features: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Bits [B, *shape] int8, and their joint log-probability [B]."""
        logit = self.linear(features)
        bits = torch.rand(logit.shape, generator=generator, device=logit.device) < logit.sigmoid()
        return bits.to(torch.int8).reshape(-1, *self.shape), bernoulli_log_prob(logit, bits)

    def mode(self, features: Tensor) -> Tensor:
        """The most probable bits [B, *shape] int8."""
        return (self.linear(features) > 0).to(torch.int8).reshape(-1, *self.shape)  # type: ignore[no-any-return]

    def evaluate(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Joint log-probability of bits [B, *shape], and entropy, each [B]."""
        logit = self.linear(features)
        bits = action.reshape(len(action), -1).bool()
        entropy = nn.functional.binary_cross_entropy_with_logits(logit, logit.sigmoid(), reduction="none").sum(-1)
        return bernoulli_log_prob(logit, bits), entropy


class GaussianHead(ActionHead):
    """A diagonal Gaussian; not bounded, so that its log-probability stays exact where the environment clips."""

    def __init__(self, in_features: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.mean = orthogonal(nn.Linear(in_features, math.prod(shape)), 0.01)
        self.log_std = nn.Parameter(torch.zeros(math.prod(shape)))

    def sample(self, features: Tensor, generator: Generator) -> tuple[Tensor, Tensor]:
        """Actions [B, *shape] float, and their log-density [B]."""
        mean = self.mean(features)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        action = mean + self.log_std.exp() * noise
        return action.reshape(-1, *self.shape), gaussian_log_prob(mean, self.log_std, action)

    def mode(self, features: Tensor) -> Tensor:
        """The mean [B, *shape]."""
        return self.mean(features).reshape(-1, *self.shape)  # type: ignore[no-any-return]

    def evaluate(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-density of actions [B, *shape], and entropy, each [B]."""
        mean = self.mean(features)
        entropy = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum().expand(len(mean))
        return gaussian_log_prob(mean, self.log_std, action.reshape(mean.shape)), entropy


class CompositeHead(ActionHead):
    """Parts by name, independent of each other given the features."""

    def __init__(self, parts: dict[str, ActionHead]) -> None:
        super().__init__()
        self.names = list(parts)
        self.parts = nn.ModuleList(parts.values())

    def sample(self, features: Tensor, generator: Generator) -> tuple[Any, Tensor]:
        """Actions by name, and their joint log-probability [B]."""
        drawn = {name: head.sample(features, generator) for name, head in self._heads().items()}
        log_probs = [log_prob for _, log_prob in drawn.values()]
        return {name: action for name, (action, _) in drawn.items()}, sum(log_probs[1:], start=log_probs[0])

    def mode(self, features: Tensor) -> Any:
        """The most probable actions by name."""
        return {name: head.mode(features) for name, head in self._heads().items()}

    def evaluate(self, features: Tensor, action: Any) -> tuple[Tensor, Tensor]:
        """Joint log-probability of actions by name, and entropy, each [B]."""
        log_probs, entropies = zip(*(head.evaluate(features, action[name]) for name, head in self._heads().items()))
        return sum(log_probs[1:], start=log_probs[0]), sum(entropies[1:], start=entropies[0])

    def _heads(self) -> dict[str, ActionHead]:
        return dict(zip(self.names, self.parts))  # type: ignore[arg-type]
