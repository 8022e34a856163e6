"""QR-DQN's learner: sample 64 of 100,000 transitions (4 numbers per observation, 2 actions), and one step of double Q-learning
on 32 quantiles, with layers of 128 and 128; the target network is copied every 50.

The bare loop does the same in plain torch, with fused Adam.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from bare.discrete import ACTIONS, BATCH, CAPACITY, GAMMA, OBS, TARGET_FREQ, UPDATES, huber_quantiles, tensors
from bare.discrete import learner as learner_of
from torch import nn

from ding_lite.config import QRDQNConfig
from ding_lite.data import ReplayBuffer
from ding_lite.policy import QRDQNPolicy

QUANTILES, WIDTH = 32, 128


def ours() -> Callable[[int], None]:
    """Our learner, UPDATES gradient steps per call."""
    model = {"num_quantiles": QUANTILES, "encoder_hidden_size_list": [WIDTH, WIDTH]}
    return learner_of(QRDQNConfig(), QRDQNPolicy, model, ReplayBuffer(CAPACITY))


def bare() -> Callable[[], None]:
    """The same in a bare loop."""
    layers = (nn.Linear(OBS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, ACTIONS * QUANTILES))
    network = nn.Sequential(*layers)
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    columns, row, shape, count = tensors(), torch.arange(BATCH), (BATCH, ACTIONS, QUANTILES), [0]
    tau = (torch.arange(QUANTILES) + 0.5) / QUANTILES

    def run() -> None:
        for _ in range(UPDATES):
            index = torch.randint(0, CAPACITY, (BATCH,))
            obs, action, reward, next_obs, terminated = (column[index] for column in columns)
            with torch.no_grad():
                best = network(next_obs).view(shape).mean(2).argmax(1)
                next_value = target_network(next_obs).view(shape)[row, best]
                target = reward.unsqueeze(1) + (GAMMA * ~terminated).unsqueeze(1) * next_value
            loss = huber_quantiles(network(obs).view(shape)[row, action], target, tau).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count[0] += 1
            if count[0] % TARGET_FREQ == 0:
                target_network.load_state_dict(network.state_dict())

    return run
