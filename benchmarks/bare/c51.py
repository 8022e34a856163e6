"""C51's learner: sample 64 of 100,000 transitions (4 numbers per observation, 2 actions), and one step of double Q-learning on
51 atoms, with layers of 128 and 128; the target network is copied every 50.

The bare loop does the same in plain torch, with fused Adam.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from bare.discrete import ACTIONS, BATCH, CAPACITY, GAMMA, OBS, TARGET_FREQ, UPDATES, projection, tensors
from bare.discrete import learner as learner_of
from torch import nn

from ding_lite.config import C51Config
from ding_lite.data import ReplayBuffer
from ding_lite.policy import C51Policy

ATOMS, WIDTH = 51, 128


def ours() -> Callable[[int], None]:
    """Our learner, UPDATES gradient steps per call."""
    model = {"n_atom": ATOMS, "encoder_hidden_size_list": [WIDTH, WIDTH]}
    return learner_of(C51Config(), C51Policy, model, ReplayBuffer(CAPACITY))


def bare() -> Callable[[], None]:
    """The same in a bare loop."""
    layers = (nn.Linear(OBS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, ACTIONS * ATOMS))
    network = nn.Sequential(*layers)
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    columns, row, atoms, count = tensors(), torch.arange(BATCH), torch.linspace(-100, 100, ATOMS), [0]

    def run() -> None:
        for _ in range(UPDATES):
            index = torch.randint(0, CAPACITY, (BATCH,))
            obs, action, reward, next_obs, terminated = (column[index] for column in columns)
            with torch.no_grad():
                best = (network(next_obs).view(BATCH, ACTIONS, ATOMS).softmax(2) @ atoms).argmax(1)
                prob = target_network(next_obs).view(BATCH, ACTIONS, ATOMS)[row, best].softmax(1)
                target = projection(prob, reward, GAMMA * ~terminated, atoms)
            log_prob = network(obs).view(BATCH, ACTIONS, ATOMS)[row, action].log_softmax(1)
            loss = -(target * log_prob).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count[0] += 1
            if count[0] % TARGET_FREQ == 0:
                target_network.load_state_dict(network.state_dict())

    return run
