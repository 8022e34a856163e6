"""Distributions over actions of any space; their parameters are the output of a network, the logit."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Generator, Tensor, nn

from ding_lite.envs import SpaceError
from ding_lite.envs.spaces import subspaces
from ding_lite.functional import (
    bernoulli_kl,
    bernoulli_log_prob,
    categorical_entropy,
    categorical_kl,
    gaussian_kl,
    gaussian_log_prob,
    sample_categorical,
)
from ding_lite.functional.log_probs import as_index

MIN_STD = 0.01
"""Smallest standard deviation, as a share of half the range of the Box.

Recorded actions are often exactly at a bound, where a density without such a limit becomes infinite.
"""


USED_REACH = (1e-6, 1e4)
"""Halves of the range of a Box that a mixture is scaled by; larger bounds usually mean that there are none."""


class ActionDistribution(nn.Module, abc.ABC):
    """A distribution over actions of a space. Actions are tensors [B, ...], nested like the space.

    Mode, entropy and KL divergence are exact, except those of a `GaussianMixture`, see there.
    """

    width: int
    """Number of parameters: the last dimension of the logit."""

    @abc.abstractmethod
    def sample(self, logit: Tensor, generator: Generator | None) -> tuple[Any, Tensor]:
        """Sample actions. Returns actions, and their log-probability [B].

        Args:
            logit: [B, width] float.
            generator: random generator on the same device; None for torch's default generator.
        """

    @abc.abstractmethod
    def mode(self, logit: Tensor) -> Any:
        """The actions with the highest probability or density."""

    @abc.abstractmethod
    def evaluate(self, logit: Tensor, action: Any) -> tuple[Tensor, Tensor]:
        """The log-probability of actions, and the entropy, each [B]."""

    @abc.abstractmethod
    def kl(self, logit: Tensor, other: Tensor) -> Tensor:
        """KL(p || q) [B] in nats, where p has the parameters `logit` and q has `other`, each [B, width]."""


class ParametrizedDistribution:
    """A distribution over actions together with its parameters.

    Args:
        distribution: the kind of distribution.
        logit: its parameters, [B, width].
        generator: default random generator of `sample`, on the device of the logit; None for torch's default generator.

    Example:
        >>> bound = ParametrizedDistribution(action_distribution(spaces.Discrete(2)), torch.zeros(3, 2))
        >>> bound.logp(torch.zeros(3, dtype=torch.int64)).exp()
        tensor([0.5000, 0.5000, 0.5000])
    """

    def __init__(self, distribution: ActionDistribution, logit: Tensor, generator: Generator | None = None) -> None:
        self.distribution, self.logit, self._generator = distribution, logit, generator

    def logp(self, action: Any) -> Tensor:
        """The log-probability of actions, [B]."""
        return self.distribution.evaluate(self.logit, action)[0]

    log_prob = logp

    def entropy(self) -> Tensor:
        """The entropy, [B], in nats."""
        return self.distribution.evaluate(self.logit, self.mode())[1]

    def kl(self, other: ParametrizedDistribution) -> Tensor:
        """KL(self || other), [B], in nats."""
        return self.distribution.kl(self.logit, other.logit)

    def sample(self, generator: Generator | None = None) -> Any:
        """Sample actions."""
        return self.distribution.sample(self.logit, generator or self._generator)[0]

    def mode(self) -> Any:
        """The actions with the highest probability or density."""
        return self.distribution.mode(self.logit)


def action_distribution(space: gymnasium.Space[Any], mixture_components: int = 0) -> ActionDistribution:
    """Make the distribution for actions of this space.

    Discrete: categorical. MultiDiscrete: a categorical for each element. MultiBinary: independent Bernoullis. Box: a diagonal
    Gaussian whose standard deviation does not depend on the observation. Dict and Tuple: independent distributions of parts.

    Args:
        space: action space.
        mixture_components: for Box parts, the number of Gaussians of a `GaussianMixture`; 0 for the one Gaussian.

    Raises:
        SpaceError: another space, or a Box of integers.
    """
    parts = subspaces(space)
    if parts is not None:
        return Composite({name: action_distribution(part, mixture_components) for name, part in parts.items()})
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategorical(space.nvec, space.start)
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(space.shape)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return GaussianMixture(space, mixture_components) if mixture_components else DiagonalGaussian(space.shape)
    raise SpaceError(
        f"no distribution over actions of {space}: use Discrete, MultiDiscrete, MultiBinary, a float Box, or a Dict or Tuple "
        "of these."
    )


class Categorical(ActionDistribution):
    """One of n actions, numbered from `start`."""

    def __init__(self, n: int, start: int = 0) -> None:
        super().__init__()
        self.width, self.start = n, start

    def sample(self, logit: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Sample actions [B] int64. Returns them, and their log-probability [B]."""
        log_prob = logit.log_softmax(-1)
        index = sample_categorical(log_prob, generator)
        return index + self.start if self.start else index, log_prob.gather(-1, index.unsqueeze(-1)).squeeze(-1)

    def mode(self, logit: Tensor) -> Tensor:
        """The most probable actions [B]."""
        return logit.argmax(-1) + self.start

    def evaluate(self, logit: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probability of actions [B], and the entropy, each [B]."""
        log_prob = logit.log_softmax(-1)
        index = as_index(action) - self.start if self.start else as_index(action)
        return log_prob.gather(-1, index.unsqueeze(-1)).squeeze(-1), categorical_entropy(log_prob)

    def kl(self, logit: Tensor, other: Tensor) -> Tensor:
        """KL(p || q) [B]."""
        return categorical_kl(logit.log_softmax(-1), other.log_softmax(-1))


class MultiCategorical(ActionDistribution):
    """An array of independent categoricals."""

    def __init__(self, sizes: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.shape = sizes.shape
        self.parts = [Categorical(int(n), int(start)) for n, start in zip(sizes.ravel(), starts.ravel())]
        self.width = int(sizes.sum())

    def _split(self, logit: Tensor) -> tuple[Tensor, ...]:
        return torch.split(logit, [part.width for part in self.parts], -1)

    def sample(self, logit: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Sample actions [B, *shape] int64. Returns them, and their joint log-probability [B]."""
        actions, log_probs = zip(*(part.sample(x, generator) for part, x in zip(self.parts, self._split(logit))))
        return torch.stack(actions, -1).reshape(-1, *self.shape), torch.stack(log_probs).sum(0)

    def mode(self, logit: Tensor) -> Tensor:
        """The most probable actions [B, *shape]."""
        actions = [part.mode(x) for part, x in zip(self.parts, self._split(logit))]
        return torch.stack(actions, -1).reshape(-1, *self.shape)

    def evaluate(self, logit: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The joint log-probability of actions [B, *shape], and the entropy, each [B]."""
        columns = action.reshape(len(action), -1).long().unbind(-1)
        parts = zip(self.parts, self._split(logit), columns)
        log_probs, entropies = zip(*(part.evaluate(x, column) for part, x, column in parts))
        return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)

    def kl(self, logit: Tensor, other: Tensor) -> Tensor:
        """KL(p || q) [B], the sum over all parts."""
        parts = zip(self.parts, self._split(logit), self._split(other))
        return torch.stack([part.kl(x, y) for part, x, y in parts]).sum(0)


class Bernoulli(ActionDistribution):
    """An array of independent bits."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.width = shape, math.prod(shape)

    def sample(self, logit: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Sample bits [B, *shape] int8. Returns them, and their joint log-probability [B]."""
        bits = torch.rand(logit.shape, generator=generator, device=logit.device) < logit.sigmoid()
        return bits.to(torch.int8).reshape(-1, *self.shape), bernoulli_log_prob(logit, bits)

    def mode(self, logit: Tensor) -> Tensor:
        """The most probable bits [B, *shape] int8."""
        return (logit > 0).to(torch.int8).reshape(-1, *self.shape)

    def evaluate(self, logit: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The joint log-probability of bits [B, *shape], and the entropy, each [B]."""
        bits = action.reshape(len(action), -1, 1).long()
        chosen = torch.stack([-logit, logit], -1).gather(-1, bits).squeeze(-1)  # another number than 0 and 1 is an error
        entropy = nn.functional.binary_cross_entropy_with_logits(logit, logit.sigmoid(), reduction="none").sum(-1)
        return nn.functional.logsigmoid(chosen).sum(-1), entropy

    def kl(self, logit: Tensor, other: Tensor) -> Tensor:
        """KL(p || q) [B], the sum over all bits."""
        return bernoulli_kl(logit, other)


class DiagonalGaussian(ActionDistribution):
    """Independent Gaussians with learned standard deviations. Samples are not clipped, so log-probabilities are exact.

    The logit is the mean.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.width = shape, math.prod(shape)
        self.log_std = nn.Parameter(torch.zeros(self.width))

    def sample(self, logit: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Sample actions [B, *shape] float. Returns them, and their log-density [B]."""
        noise = torch.randn(logit.shape, generator=generator, device=logit.device)
        action = logit + self.log_std.exp() * noise
        return action.reshape(-1, *self.shape), gaussian_log_prob(logit, self.log_std, action)

    def mode(self, logit: Tensor) -> Tensor:
        """The mean [B, *shape]."""
        return logit.reshape(-1, *self.shape)

    def evaluate(self, logit: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The log-density of actions [B, *shape], and the entropy, each [B]."""
        entropy = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum().expand(len(logit))
        return gaussian_log_prob(logit, self.log_std, action.reshape(logit.shape)), entropy

    def kl(self, logit: Tensor, other: Tensor) -> Tensor:
        """KL(p || q) [B]; both have the current standard deviation."""
        return gaussian_kl(logit, self.log_std, other, self.log_std)


class GaussianMixture(ActionDistribution):
    """A mixture of diagonal Gaussians. The logit holds weight, mean and standard deviation of each of them.

    Data of several policies can have several good actions for an observation. A single Gaussian is around their mean, which may
    be good for none of them; a mixture has a Gaussian around each. Samples are not clipped, so log-probabilities are exact.

    Where a Box is bounded, the network's numbers are relative to it: a mean of -1 is its lower bound and 1 its upper one.
    Bounds that are further apart than 20,000, or closer than 0.000002, do not count.

    Args:
        space: a Box of floats.
        components: the number of Gaussians, K. With 1, a Gaussian whose standard deviation depends on the observation.

    Raises:
        SpaceError: the space is not a Box of floats.
        ValueError: components is no integer above 0.

    Example:
        >>> distribution = GaussianMixture(spaces.Box(-1.0, 1.0, (3,)), components=5)
        >>> distribution.width
        35

    Reference:
        Bishop (1994), "Mixture Density Networks", https://publications.aston.ac.uk/id/eprint/373/; for behaviour cloning,
        Mandlekar et al. (2021), https://arxiv.org/abs/2108.03298.
    """

    middle: Tensor
    reach: Tensor

    def __init__(self, space: spaces.Box, components: int) -> None:
        super().__init__()
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise SpaceError(
                f"GaussianMixture wants a Box of floats, got {space}: action_distribution(space) fits other spaces."
            )
        if not isinstance(components, int) or isinstance(components, bool) or components < 1:
            raise ValueError(f"GaussianMixture(components={components!r}) wants the number of Gaussians, an integer above 0.")
        self.shape, self.components, self._size = space.shape, components, math.prod(space.shape)
        self.width = components * (1 + 2 * self._size)
        low, high = (bound.astype(np.float64).ravel() for bound in (space.low, space.high))
        least, most = USED_REACH
        with np.errstate(invalid="ignore"):  # inf - inf
            is_bounded = (high / 2 - low / 2 >= least) & (high / 2 - low / 2 <= most)
        low, high = np.where(is_bounded, low, -1.0), np.where(is_bounded, high, 1.0)
        for name, array in {"middle": low / 2 + high / 2, "reach": high / 2 - low / 2}.items():
            self.register_buffer(name, torch.as_tensor(array, dtype=torch.float32), persistent=False)

    def _split(self, logit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The log-weights [B, K]; means and log_std [B, K, A], relative to the bounds."""
        weight, mean, raw = torch.split(logit, [self.components, *[self.components * self._size] * 2], -1)
        shape = (-1, self.components, self._size)
        log_std = torch.log(MIN_STD + nn.functional.softplus(raw))
        return weight.log_softmax(-1), mean.reshape(shape), log_std.reshape(shape)

    def sample(self, logit: Tensor, generator: Generator | None) -> tuple[Tensor, Tensor]:
        """Sample actions [B, *shape] float. Returns them, and their log-density [B]."""
        log_weight, mean, log_std = self._split(logit)
        chosen = sample_categorical(log_weight, generator)
        noise = torch.randn((len(logit), self._size), generator=generator, dtype=logit.dtype, device=logit.device)
        unit = _of(mean, chosen) + _of(log_std, chosen).exp() * noise
        return self._to_action(unit), self._log_density(log_weight, mean, log_std, unit.unsqueeze(-2)).squeeze(-1)

    def mode(self, logit: Tensor) -> Tensor:
        """The mean of the most probable Gaussian [B, *shape].

        The density itself can be highest elsewhere, at a narrow Gaussian with a small weight, such as one
        fitted to clipped actions at a bound.
        """
        log_weight, mean, _ = self._split(logit)
        return self._to_action(_of(mean, log_weight.argmax(-1)))

    def evaluate(self, logit: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The log-density of actions [B, *shape], and an upper bound of the entropy, each [B].

        The entropy of a mixture has no closed form. The bound is exact if the Gaussians are equal or far from each other:

            -sum_i w_i log sum_j w_j exp(-KL(p_i || p_j)) + sum_i w_i H(p_i)

        Reference:
            Kolchinsky and Tracey (2017), https://arxiv.org/abs/1706.02419, the bound with the KL divergence as the distance.
        """
        log_weight, mean, log_std = self._split(logit)
        unit = (action.reshape(len(action), 1, self._size) - self.middle) / self.reach
        inner = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1) + self.reach.log().sum()
        near = self._log_nearness(log_weight, (mean, log_std), (mean, log_std))
        entropy = (log_weight.exp() * (inner - near)).sum(-1)
        return self._log_density(log_weight, mean, log_std, unit).squeeze(-1), entropy

    def kl(self, logit: Tensor, other: Tensor) -> Tensor:
        """An approximation of KL(p || q) [B], which has no closed form. It is 0 for equal parameters, and exact with K = 1.

        Reference:
            Hershey and Olsen (2007), "Approximating the Kullback Leibler Divergence Between Gaussian Mixture Models",
            the variational approximation.
        """
        log_weight, *gaussians = self._split(logit)
        other_weight, *others = self._split(other)
        near = self._log_nearness(log_weight, gaussians, gaussians)
        return (log_weight.exp() * (near - self._log_nearness(other_weight, gaussians, others))).sum(-1)

    def _log_density(self, log_weight: Tensor, mean: Tensor, log_std: Tensor, unit: Tensor) -> Tensor:
        """The log-density [B, N] of N actions [B, N, A] that are relative to the bounds, as one of actions of the space."""
        each = gaussian_log_prob(mean.unsqueeze(-3), log_std.unsqueeze(-3), unit.unsqueeze(-2))
        return (log_weight.unsqueeze(-2) + each).logsumexp(-1) - self.reach.log().sum()

    @staticmethod
    def _log_nearness(log_weight: Tensor, gaussians: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
        """log sum_j w_j exp(-KL(p_i || q_j)) [B, K] for the Gaussians p_i and the others q_j, whose weights are w_j."""
        p, q = [part.unsqueeze(-2) for part in gaussians], [part.unsqueeze(-3) for part in others]
        return (log_weight.unsqueeze(-2) - gaussian_kl(*p, *q)).logsumexp(-1)

    def _to_action(self, unit: Tensor) -> Tensor:
        return torch.addcmul(self.middle, unit, self.reach).reshape(-1, *self.shape)


class Composite(ActionDistribution):
    """Independent distributions by name, for Dict and Tuple spaces."""

    def __init__(self, parts: dict[str, ActionDistribution]) -> None:
        super().__init__()
        self.names, self.parts = list(parts), nn.ModuleList(parts.values())
        self.widths = [part.width for part in parts.values()]
        self.width = sum(self.widths)

    def _split(self, logit: Tensor) -> list[tuple[str, Any, Tensor]]:
        columns = torch.split(logit, self.widths, -1)
        return list(zip(self.names, self.parts, columns))

    def sample(self, logit: Tensor, generator: Generator | None) -> tuple[Any, Tensor]:
        """Sample actions by name. Returns them, and their joint log-probability [B]."""
        drawn = {name: part.sample(x, generator) for name, part, x in self._split(logit)}
        log_probs = [log_prob for _, log_prob in drawn.values()]
        return {name: action for name, (action, _) in drawn.items()}, torch.stack(log_probs).sum(0)

    def mode(self, logit: Tensor) -> Any:
        """The most probable actions by name."""
        return {name: part.mode(x) for name, part, x in self._split(logit)}

    def evaluate(self, logit: Tensor, action: Any) -> tuple[Tensor, Tensor]:
        """The joint log-probability of actions by name, and the entropy, each [B]."""
        log_probs, entropies = zip(*(part.evaluate(x, action[name]) for name, part, x in self._split(logit)))
        return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)

    def kl(self, logit: Tensor, other: Tensor) -> Tensor:
        """KL(p || q) [B], the sum over all parts."""
        pairs = zip(self._split(logit), self._split(other))
        return torch.stack([part.kl(x, y) for (_, part, x), (_, _, y) in pairs]).sum(0)


def _of(parts: Tensor, chosen: Tensor) -> Tensor:
    """Of K rows each, the chosen one: [B, A] of [B, K, A]."""
    return parts.gather(-2, chosen[:, None, None].expand(-1, 1, parts.shape[-1])).squeeze(-2)
