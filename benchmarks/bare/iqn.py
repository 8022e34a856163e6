"""IQN's learner: sample 64 of 100,000 transitions (4 numbers per observation, 2 actions), and one step of double Q-learning on
8 quantiles drawn for prediction and target each, 8 for the action, 64 cosines and layers of 128; the target network is copied
every 50.

The bare loop does the same in plain torch, with fused Adam.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from bare.discrete import ACTIONS, BATCH, CAPACITY, GAMMA, OBS, TARGET_FREQ, UPDATES, huber_quantiles, tensors
from bare.discrete import learner as learner_of
from torch import Tensor, nn

from ding_lite.config import IQNConfig
from ding_lite.data import ReplayBuffer
from ding_lite.policy import IQNPolicy

QUANTILES, COSINES, WIDTH = 8, 64, 128


def ours() -> Callable[[int], None]:
    """Our learner, UPDATES gradient steps per call."""
    model = {
        "num_quantiles": QUANTILES,
        "num_target_quantiles": QUANTILES,
        "num_acting_quantiles": QUANTILES,
        "quantile_embedding_size": COSINES,
        "encoder_hidden_size_list": [WIDTH],
        "head_hidden_size_list": [WIDTH],
    }
    return learner_of(IQNConfig(), IQNPolicy, model, ReplayBuffer(CAPACITY))


class Network(nn.Module):
    """Quantiles [B, N, A]."""

    def __init__(self) -> None:
        super().__init__()
        self.obs, self.tau = nn.Linear(OBS, WIDTH), nn.Linear(COSINES, WIDTH)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, ACTIONS))
        self.angles = math.pi * torch.arange(COSINES)

    def forward(self, obs: Tensor, tau: Tensor) -> Tensor:
        places = self.tau((tau.unsqueeze(-1) * self.angles).cos()).relu()
        return self.head(self.obs(obs).relu().unsqueeze(1) * places)  # type: ignore[no-any-return]


def bare() -> Callable[[], None]:
    """The same in a bare loop."""
    network = Network()
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    columns, count, acting = tensors(), [0], (torch.arange(QUANTILES) + 0.5) / QUANTILES

    def run() -> None:
        for _ in range(UPDATES):
            index = torch.randint(0, CAPACITY, (BATCH,))
            obs, action, reward, next_obs, terminated = (column[index] for column in columns)
            with torch.no_grad():
                best = network(next_obs, acting).mean(1).argmax(1)
                next_value = target_network(next_obs, torch.rand(BATCH, QUANTILES))
                next_value = next_value.gather(2, best.view(-1, 1, 1).expand(-1, QUANTILES, 1)).squeeze(2)
                target = reward.unsqueeze(1) + (GAMMA * ~terminated).unsqueeze(1) * next_value
            tau = torch.rand(BATCH, QUANTILES)
            value = network(obs, tau).gather(2, action.view(-1, 1, 1).expand(-1, QUANTILES, 1)).squeeze(2)
            loss = huber_quantiles(value, target, tau).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count[0] += 1
            if count[0] % TARGET_FREQ == 0:
                target_network.load_state_dict(network.state_dict())

    return run
