"""DQN's learner: sample 64 of 100,000 transitions and take one double-DQN step on a 4-64-64-2 network.

The bare loop has fused Adam and indexed tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from ding_lite import Task
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.middleware import OffPolicyLearner
from ding_lite.policy import DQNPolicy

CAPACITY, BATCH, UPDATES, TARGET_FREQ = 100_000, 64, 50, 100


def transitions() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "obs": rng.standard_normal((CAPACITY, 4)).astype(np.float32),
        "action": rng.integers(0, 2, CAPACITY),
        "reward": np.ones(CAPACITY, np.float32),
        "next_obs": rng.standard_normal((CAPACITY, 4)).astype(np.float32),
        "terminated": rng.random(CAPACITY) < 0.02,
        "truncated": np.zeros(CAPACITY, np.bool_),
    }


def ours() -> Callable[[int], None]:
    """Through OffPolicyLearner."""
    cfg = DQNConfig().override(
        {
            "policy.model.encoder_hidden_size_list": [64, 64],
            "policy.learn": {"batch_size": BATCH, "update_per_collect": UPDATES, "target_update_freq": TARGET_FREQ},
        }
    )
    policy = DQNPolicy(cfg.policy, spaces.Box(-10.0, 10.0, (4,)), spaces.Discrete(2))
    buffer = ReplayBuffer(CAPACITY)
    buffer.push(transitions())
    task = Task().start(ctx=OnlineRLContext())
    task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
    return lambda iterations: task.run(max_step=iterations)


def bare() -> Callable[[], None]:
    """A loop in torch."""
    layers = (nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    q_network = nn.Sequential(*layers)
    target_network = copy.deepcopy(q_network)
    optimizer = torch.optim.Adam(q_network.parameters(), lr=1e-3, fused=True)
    tensors = [torch.from_numpy(column) for name, column in transitions().items() if name != "truncated"]  # which is not read
    count = [0]

    def run() -> None:
        for _ in range(UPDATES):
            rows = torch.randint(0, CAPACITY, (BATCH,))
            obs, action, reward, next_obs, terminated = (column[rows] for column in tensors)
            with torch.no_grad():
                best = q_network(next_obs).argmax(1, keepdim=True)
                next_value = target_network(next_obs).gather(1, best).squeeze(1)
                target = reward + 0.99 * next_value * ~terminated
            loss = functional.smooth_l1_loss(q_network(obs).gather(1, action.unsqueeze(1)).squeeze(1), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count[0] += 1
            if count[0] % TARGET_FREQ == 0:
                target_network.load_state_dict(q_network.state_dict())

    return run
