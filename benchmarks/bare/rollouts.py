"""Common parts of the bare loops of A2C, IMPALA and REINFORCE: a rollout, networks, and the learner to compare with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite import Task
from ding_lite.contexts import OnlineRLContext
from ding_lite.policy import Policy

STEPS, ENVS, OBS, ACTIONS, WIDTH, UPDATES = 32, 8, 4, 2, 64, 10
SETTINGS = {
    "policy.model.encoder_hidden_size_list": [WIDTH, WIDTH],
    "policy.learn": {"learning_rate": 3e-4, "entropy_weight": 0.01},
}


def rollout() -> dict[str, Any]:
    """A random rollout [T, B], in which some steps end an episode."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((STEPS + 1, ENVS, OBS)).astype(np.float32)
    return {
        "obs": obs[:-1],
        "action": rng.integers(0, ACTIONS, (STEPS, ENVS)),
        "log_prob": np.full((STEPS, ENVS), -0.69, np.float32),
        "reward": np.ones((STEPS, ENVS), np.float32),
        "next_obs": obs[1:].copy(),
        "terminated": rng.random((STEPS, ENVS)) < 0.02,
        "truncated": np.zeros((STEPS, ENVS), np.bool_),
    }


def made(kind: type[Policy], cfg: Any) -> Policy:
    """A policy for such rollouts."""
    return kind(cfg.override(SETTINGS).policy, spaces.Box(-10.0, 10.0, (OBS,)), spaces.Discrete(ACTIONS))


def loop(*middleware: Callable[[OnlineRLContext], None]) -> Callable[[], None]:
    """A function that runs UPDATES iterations of this middleware."""
    task = Task().start(ctx=OnlineRLContext())
    for one in middleware:
        task.use(one)
    return lambda iterations: task.run(max_step=iterations * UPDATES)


def mlp(out: int) -> nn.Module:
    """A network from observations to `out` numbers."""
    return nn.Sequential(nn.Linear(OBS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, out))


def normalised(x: Tensor) -> Tensor:
    """The tensor with mean 0 and standard deviation 1."""
    return (x - x.mean()) / (x.std() + 1e-8)


class Stepper:
    """The gradient steps of a bare loop: clips the gradient norm, and uses fused Adam."""

    def __init__(self, *networks: nn.Module) -> None:
        self.params = [param for network in networks for param in network.parameters()]
        self.optimizer = torch.optim.Adam(self.params, lr=3e-4, fused=True)

    def step(self, loss: Tensor) -> None:
        """Take one gradient step on this loss."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.params, 0.5)
        self.optimizer.step()
