"""Common parts of the bare loops of C51, QR-DQN, IQN and Rainbow: transitions, and the learner to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional

from ding_lite import Task
from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.middleware import OffPolicyLearner
from ding_lite.policy import Policy

CAPACITY, BATCH, UPDATES, TARGET_FREQ, OBS, ACTIONS, GAMMA = 100_000, 64, 20, 50, 4, 2, 0.99


def transitions() -> dict[str, Any]:
    """Random transitions of one step."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.standard_normal((CAPACITY, OBS)).astype(np.float32),
        "action": rng.integers(0, ACTIONS, CAPACITY),
        "reward": np.ones(CAPACITY, np.float32),
        "next_obs": rng.standard_normal((CAPACITY, OBS)).astype(np.float32),
        "terminated": rng.random(CAPACITY) < 0.02,
    }


def learner(cfg: RunConfig, kind: type[Policy], model: Mapping[str, Any], buffer: ReplayBuffer) -> Callable[[int], None]:
    """A function that takes UPDATES gradient steps with OffPolicyLearner."""
    learn = {"batch_size": BATCH, "update_per_collect": UPDATES, "target_update_freq": TARGET_FREQ}
    cfg.override({"policy.model": model, "policy.learn": learn})
    policy = kind(cfg.policy, spaces.Box(-10.0, 10.0, (OBS,)), spaces.Discrete(ACTIONS))
    buffer.push({**transitions(), "truncated": np.zeros(CAPACITY, np.bool_)})
    task = Task().start(ctx=OnlineRLContext())
    task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
    return lambda iterations: task.run(max_step=iterations)


def tensors() -> list[Tensor]:
    """The columns of `transitions`, for indexing."""
    return [torch.from_numpy(column) for column in transitions().values()]


def huber_quantiles(value: Tensor, target: Tensor, tau: Tensor) -> Tensor:
    """The quantile loss of each row, [B], for quantiles [B, N] at tau, [B, N] or [N], and samples [B, M]."""
    pairs = len(value), value.shape[1], target.shape[1]
    value, target = value.unsqueeze(2).expand(pairs), target.unsqueeze(1).expand(pairs)
    weight = (tau.unsqueeze(-1) - (target < value).float()).abs()
    return (weight * functional.huber_loss(value, target, reduction="none")).mean(2).sum(1)


def projection(prob: Tensor, reward: Tensor, discount: Tensor, atoms: Tensor) -> Tensor:
    """The probabilities [B, N] of reward + discount * Z, projected onto the atoms [N] of Z."""
    count = len(atoms)
    step = (atoms[-1] - atoms[0]) / (count - 1)
    place = ((reward.unsqueeze(1) + discount.unsqueeze(1) * atoms).clamp(atoms[0], atoms[-1]) - atoms[0]) / step
    low = place.long().clamp(0, count - 2)
    share = (place - low) * prob
    return torch.zeros_like(prob).scatter_add_(1, low, prob - share).scatter_add_(1, low + 1, share)
