"""Rainbow's learner: sample 64 of 100,000 transitions by priority (4 numbers per observation, 2 actions), one step of double
Q-learning on 51 atoms with a noisy dueling head, all layers 64 wide, and new priorities; the target network is copied every 50.

The bare loop does the same in plain torch, with fused Adam and our replay buffer, because torch has none.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from bare.discrete import ACTIONS, BATCH, CAPACITY, GAMMA, OBS, TARGET_FREQ, UPDATES, projection, transitions
from bare.discrete import learner as learner_of
from torch import Tensor, nn
from torch.nn import functional

from ding_lite.config import RainbowConfig
from ding_lite.data import PrioritizedReplayBuffer
from ding_lite.policy import RainbowPolicy

ATOMS, WIDTH = 51, 64
LAYERS = ((WIDTH, WIDTH), (WIDTH, ACTIONS * ATOMS), (WIDTH, WIDTH), (WIDTH, ATOMS))


def ours() -> Callable[[int], None]:
    """Our learner, UPDATES gradient steps per call."""
    model = {"n_atom": ATOMS, "encoder_hidden_size_list": [WIDTH], "head_hidden_size_list": [WIDTH]}
    return learner_of(RainbowConfig(), RainbowPolicy, model, PrioritizedReplayBuffer(CAPACITY))


class Network(nn.Module):
    """Logits [B, A, N], with new noise in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(OBS, WIDTH)
        self.weight = nn.ParameterList(torch.empty(out, into).uniform_(-1, 1) / into**0.5 for into, out in LAYERS)
        self.bias = nn.ParameterList(torch.empty(out).uniform_(-1, 1) / into**0.5 for into, out in LAYERS)
        self.weight_sigma = nn.ParameterList(torch.full((out, into), 0.5 / into**0.5) for into, out in LAYERS)
        self.bias_sigma = nn.ParameterList(torch.full((out,), 0.5 / into**0.5) for into, out in LAYERS)

    def forward(self, obs: Tensor) -> Tensor:
        drawn = torch.randn(sum(map(sum, LAYERS)))
        noise = (drawn.sign() * drawn.abs().sqrt()).split([size for layer in LAYERS for size in layer])

        def layer(x: Tensor, i: int) -> Tensor:
            weight = torch.addcmul(self.weight[i], self.weight_sigma[i], torch.outer(noise[2 * i + 1], noise[2 * i]))
            return functional.linear(x, weight, torch.addcmul(self.bias[i], self.bias_sigma[i], noise[2 * i + 1]))

        features = self.encoder(obs).relu()
        advantage = layer(layer(features, 0).relu(), 1).view(-1, ACTIONS, ATOMS)
        value = layer(layer(features, 2).relu(), 3).unsqueeze(1)
        return value + advantage - advantage.mean(1, keepdim=True)


def bare() -> Callable[[], None]:
    """The same in a bare loop."""
    network = Network()
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    buffer, row, atoms, count = PrioritizedReplayBuffer(CAPACITY), torch.arange(BATCH), torch.linspace(-100, 100, ATOMS), [0]
    buffer.push({**transitions(), "truncated": np.zeros(CAPACITY, np.bool_)})
    wanted = ("obs", "action", "reward", "next_obs", "terminated")

    def run() -> None:
        for _ in range(UPDATES):
            batch = buffer.sample(BATCH, wanted)
            with torch.no_grad():
                best = (network(batch.next_obs).softmax(2) @ atoms).argmax(1)
                prob = target_network(batch.next_obs)[row, best].softmax(1)
                target = projection(prob, batch.reward, GAMMA * ~batch.terminated, atoms)
            log_prob = network(batch.obs)[row, batch.action].log_softmax(1)
            error = -(target * log_prob).sum(1)
            loss = (error * batch.weight).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            divergence = error.detach() + torch.xlogy(target, target).sum(1)
            buffer.update_priority(batch.index, divergence.abs())
            count[0] += 1
            if count[0] % TARGET_FREQ == 0:
                target_network.load_state_dict(network.state_dict())

    return run
