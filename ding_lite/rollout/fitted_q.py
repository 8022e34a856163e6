"""Fitted Q evaluation: a network that learns the values of a policy from a dataset.

Le et al. (2019), "Batch Policy Learning under Constraints", https://arxiv.org/abs/1903.08738.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite.basics import Config, ranged_field, seed_field, seed_of
from ding_lite.data import nested, to_device
from ding_lite.datasets import OfflineDataset
from ding_lite.datasets.space_checks import find_space_mismatch
from ding_lite.envs import SpaceError
from ding_lite.envs.action_masks import without_mask
from ding_lite.functional import polyak_, q_target
from ding_lite.nn import Adam, ConvLayers, clip_actions, make_network, make_normalizer, seeded
from ding_lite.policy import EvalMode
from ding_lite.rollout.evaluated_policies import EvaluatedPolicy, evaluated_policy, require_eval_mode

_ROWS = 8192  # evaluated at once


@dataclasses.dataclass
class FittedQConfig(Config):
    """Fitted Q evaluation."""

    hidden_size_list: list[int] = ranged_field(default_factory=lambda: [64, 64], low=1, high=16_384)
    """Width of each hidden layer of the network."""

    conv_layers: list[tuple[int, int, int]] | None = ranged_field(None, low=1, high=16_384)
    """For images: (channels, kernel size, stride) of each convolution; None chooses by image size."""

    num_steps: int = ranged_field(3000, low=1, high=1_000_000_000)
    """Gradient steps."""

    batch_size: int = ranged_field(256, low=1, high=10_000_000)
    """Transitions per gradient step."""

    learning_rate: float = ranged_field(1e-3, low=0)
    """Learning rate of Adam."""

    target_update_theta: float = ranged_field(0.01, low=0, high=1)
    """Coefficient of the Polyak update of the target network after each gradient step; 1 copies the weights."""

    num_samples: int = ranged_field(8, low=1, high=100_000)
    """Actions that are sampled for the value of an observation, where actions are not Discrete."""

    seed: int = seed_field(0)
    """Random seed of the weights, the minibatches and the sampled actions."""


class FittedQ:
    """Q(s, a) and V(s) of a policy, learned from the transitions of a dataset.

        target = r + gamma * (1 - terminated) * E_{a' ~ pi} Q_target(s', a')
        loss   = mean((target - Q(s, a))^2)

    The expectation over Discrete actions is exact, others are sampled. After the last step of a truncated or
    unfinished episode, the target has the value of the next observation. The network learns in units of the returns of the
    dataset.

    Args:
        policy: policy.eval_mode, of which the current weights are evaluated; see `log_prob_of`. A policy without a distribution
            is evaluated as it acts in evaluations.
        dataset: transitions of any policies.
        gamma: discount per step, in [0, 1]; 1 needs a dataset in which all episodes terminate.
        eps: probability of a random action of epsilon-greedy policies; None for others.
        cfg: settings of the network.

    Raises:
        ValueError: gamma is not in [0, 1], or 1 while an episode does not terminate; the dataset is empty; or as by
            `log_prob_of`.
        SpaceError: the dataset does not fit the spaces of the policy.

    Reference:
        Le et al. (2019), https://arxiv.org/abs/1903.08738, algorithm 3; with a target network as in Paine et al. (2020),
        https://arxiv.org/abs/2007.09055.
    """

    def __init__(
        self,
        policy: EvalMode,
        dataset: OfflineDataset,
        gamma: float,
        eps: float | None = None,
        cfg: FittedQConfig | None = None,
    ) -> None:
        require_discount("FittedQ", gamma)
        require_dataset(policy, dataset, "FittedQ")
        require_ends("FittedQ", gamma, dataset)
        self.cfg, self._gamma, self._dataset = cfg or FittedQConfig(), gamma, dataset
        self._policy: EvaluatedPolicy = evaluated_policy(policy, eps, "FittedQ")
        actor, seed = self._policy.actor, seed_of(self.cfg.seed, "FittedQConfig(seed={})")
        self._device = self._policy.device
        self._generator = torch.Generator(self._device).manual_seed(seed)
        with seeded(seed):
            spaces_ = actor.observation_space, actor.action_space
            network = _Network(*spaces_, self.cfg.hidden_size_list, self.cfg.conv_layers)
            self.network = network.to(self._device)
        self.target = copy.deepcopy(self.network)
        self.error = float("nan")
        """Root mean squared error of the last gradient steps, in units of rewards."""

    def fit(self) -> FittedQ:
        """Learn, from the current weights of the network; returns itself.

        Raises:
            ValueError: the error of the network becomes NaN or infinite.
        """
        cfg, data, network = self.cfg, self._dataset, self.network
        network.offset, network.scale = _location_and_scale(data, self._gamma)
        self.target.offset, self.target.scale = network.offset, network.scale
        for begin in range(0, len(data), _ROWS):
            network.update_norm(*self._inputs(begin, begin + _ROWS))
        self.target.load_state_dict(network.state_dict())
        optimizer = Adam(network.parameters(), lr=cfg.learning_rate, fused=True)
        rng, errors = np.random.default_rng(cfg.seed), []
        for _ in range(cfg.num_steps):
            rows = rng.integers(len(data), size=min(cfg.batch_size, len(data)))
            batch = to_device(data.take(rows, ("obs", "action", "next_obs", "reward", "terminated")), self._device)
            with torch.no_grad():
                next_value = self._value(self.target, nested(batch.next_obs), 1)
                target = q_target(batch.reward, next_value, batch.terminated, gamma=self._gamma)
            error = (target - network.q_value(nested(batch.obs), nested(batch.action))) / network.scale
            loss = error.square().mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            polyak_(self.target.parameters(), network.parameters(), cfg.target_update_theta)
            errors.append(loss.detach())
        self.error = float(torch.stack(errors[-100:]).mean().sqrt()) * network.scale
        if not math.isfinite(self.error):
            raise ValueError(
                f"the network of FittedQ has the error {self.error}: check the observations of the dataset {data.name} for "
                "NaN, see dataset.finite, and for very large numbers, or lower FittedQConfig.learning_rate."
            )
        return self

    @torch.no_grad()
    def q_values(self, rows: Any) -> Tensor:
        """Q(s, a) of these transitions of the dataset, with their actions, [N] on the CPU."""
        batch = to_device(self._dataset.take(rows, ("obs", "action")), self._device)
        return self.network.q_value(nested(batch.obs), nested(batch.action)).cpu()

    @torch.no_grad()
    def values(self, rows: Any, later: bool = False) -> Tensor:
        """V(s) of these transitions of the dataset, or V of the observations after them, [N] on the CPU."""
        name = "next_obs" if later else "obs"
        batch = to_device(self._dataset.take(rows, (name,)), self._device)
        return self._value(self.network, nested(batch[name]), self.cfg.num_samples).cpu()

    def _inputs(self, begin: int, end: int) -> tuple[Any, Any]:
        batch = to_device(self._dataset.take(range(begin, min(end, len(self._dataset))), ("obs", "action")), self._device)
        return nested(batch.obs), nested(batch.action)

    def _value(self, network: _Network, obs: Any, num_samples: int) -> Tensor:
        """The mean of Q(s, a) over the actions of the policy, [N]."""
        log_probs = self._policy.log_probs(obs)
        if log_probs is not None:
            return (log_probs.exp() * network.all_values(obs)).sum(-1)
        drawn = [network.q_value(obs, self._policy.sample(obs, self._generator)) for _ in range(num_samples)]
        return torch.stack(drawn).mean(0)


def require_discount(who: str, gamma: float) -> None:
    """Raise ValueError if gamma is not in [0, 1]."""
    if not 0 <= gamma <= 1:
        raise ValueError(f"{who} wants gamma in [0, 1], got {gamma!r}.")


def require_ends(who: str, gamma: float, dataset: OfflineDataset) -> None:
    """Raise ValueError if gamma is 1 and an episode of the dataset does not terminate, so that its value may be infinite."""
    if gamma < 1:
        return
    terminated = dataset.take(np.cumsum(dataset.lengths) - 1, ("terminated",)).terminated
    if count := int((~terminated).sum()):
        raise ValueError(
            f"{who} got gamma=1, and {count:,} of {dataset.num_episodes:,} episodes of the dataset {dataset.name} do not "
            "terminate, they are truncated or unfinished: with 1, the values of endless episodes are infinite. Use a gamma "
            "below 1, or importance_sampling_metric."
        )


def require_dataset(policy: EvalMode, dataset: OfflineDataset, who: str) -> None:
    """Refuse a dataset that a policy cannot be evaluated on.

    Raises:
        TypeError: the policy is not policy.eval_mode, or the dataset is not an `OfflineDataset`.
        ValueError: it has no transitions, or a reward is NaN or infinite.
        SpaceError: the shapes or dtypes of its observations or actions do not fit the spaces of the policy.
    """
    require_eval_mode(policy, who)
    if not isinstance(dataset, OfflineDataset):
        raise TypeError(
            f"{who} wants a dataset, got {dataset!r:.60} of type {type(dataset).__name__}: open it, open_dataset(...) of "
            "ding_lite.datasets."
        )
    if not len(dataset):
        raise ValueError(f"{who} got the dataset {dataset.name}, which has no transitions.")
    actor = policy.current()
    if found := find_space_mismatch(dataset.columns, actor.observation_space, actor.action_space):
        raise SpaceError(f"{who} got the dataset {dataset.name}, which does not fit the policy: {found}")
    reward = dataset.take(range(len(dataset)), ("reward",)).reward
    if not (finite := reward.isfinite()).all():
        row = int((~finite).nonzero()[0])
        raise ValueError(
            f"{who} found reward = {reward[row].item()} in row {row} of the dataset {dataset.name}: find out where it comes "
            "from, or leave such episodes out, dataset.select(dataset.finite)."
        )


class _Network(nn.Module):
    """Q(s, a): of Discrete actions, an output for each; otherwise the action is an input."""

    def __init__(
        self, observation_space: Any, action_space: Any, hidden_sizes: list[int], conv_layers: ConvLayers | None
    ) -> None:
        super().__init__()
        self.is_discrete, self._action_space = isinstance(action_space, spaces.Discrete), action_space
        self._start = int(action_space.start) if self.is_discrete else 0
        obs = without_mask(observation_space)
        inputs = obs if self.is_discrete else spaces.Dict({"obs": obs, "action": action_space})
        self.norm = make_normalizer(inputs)
        out = int(action_space.n) if self.is_discrete else 1
        self.network = make_network(inputs, hidden_sizes, out, conv_layers=conv_layers)
        self.offset, self.scale = 0.0, 1.0

    def all_values(self, obs: Any) -> Tensor:
        """Q of all Discrete actions, [N, A]."""
        return self.offset + self.scale * self.network(self.norm(obs))  # type: ignore[no-any-return]

    def q_value(self, obs: Any, action: Any) -> Tensor:
        """Q of these actions, [N]."""
        if self.is_discrete:
            return self.all_values(obs).gather(-1, (action.long() - self._start).unsqueeze(-1)).squeeze(-1)
        return self.all_values(self._joined(obs, action)).squeeze(-1)

    def update_norm(self, obs: Any, action: Any) -> None:
        """Update the statistics of inputs."""
        self.norm.update(obs if self.is_discrete else self._joined(obs, action))  # type: ignore[operator]

    def _joined(self, obs: Any, action: Any) -> Any:
        return {"obs": obs, "action": clip_actions(self._action_space, action)}


def _location_and_scale(dataset: OfflineDataset, gamma: float) -> tuple[float, float]:
    """The mean of the discounted returns from all steps of a dataset, and a scale of about their differences.

    The scale is not below the root mean square of the rewards: returns of short pieces of episodes may be equal where values
    are not.
    """
    rewards = dataset.take(range(len(dataset)), ("reward",)).reward.double().numpy()
    returns = np.zeros(len(rewards) + 1)
    ends = set((np.cumsum(dataset.lengths) - 1).tolist())
    for row in range(len(rewards) - 1, -1, -1):
        returns[row] = rewards[row] + (0.0 if row in ends else gamma * returns[row + 1])
    return float(returns[:-1].mean()), float(max(returns[:-1].std(), np.square(rewards).mean() ** 0.5, 1e-6))
