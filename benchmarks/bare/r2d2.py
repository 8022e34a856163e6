"""R2D2's learner: 32 of 2,000 sequences of 24 steps (2 numbers per observation, 2 actions), 8 of them to warm up, and one step
of double Q-learning on 5 steps, with a layer of 64 and an LSTM of 64; the target network is copied every 50.

The bare loop does the same in plain torch, with fused Adam. No episode ends in the sequences, so one call of its LSTM is enough
for each part.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite import Task
from ding_lite.config import R2D2Config
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.middleware import OffPolicyLearner
from ding_lite.policy import R2D2Policy

CAPACITY, BATCH, BURN_IN, UNROLL, WIDTH, UPDATES, TARGET_FREQ, NSTEP, GAMMA = 2_000, 32, 8, 16, 64, 10, 50, 5, 0.99
LENGTH = BURN_IN + UNROLL


def sequences() -> dict[str, Any]:
    """Random sequences in which no episode ends."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((CAPACITY, LENGTH + 1, 2)).astype(np.float32)
    no = np.zeros((CAPACITY, LENGTH), np.bool_)
    state = rng.standard_normal((2, CAPACITY, WIDTH)).astype(np.float32)
    return {
        "obs": obs[:, :-1],
        "action": rng.integers(0, 2, (CAPACITY, LENGTH)),
        "reward": np.ones((CAPACITY, LENGTH), np.float32),
        "next_obs": obs[:, 1:],
        "terminated": no,
        "truncated": no,
        "valid": ~no,
        "state_in_0": state[0],
        "state_in_1": state[1],
    }


def ours() -> Callable[[int], None]:
    """Our learner, UPDATES gradient steps per call."""
    learn = {"batch_size": BATCH, "update_per_collect": UPDATES, "target_update_freq": TARGET_FREQ}
    learn |= {"burn_in": BURN_IN, "unroll_len": UNROLL}
    model = {"encoder_hidden_size_list": [WIDTH], "lstm_size": WIDTH}
    cfg = R2D2Config().override({"policy.learn": learn, "policy.model": model, "policy.nstep": NSTEP})
    policy = R2D2Policy(cfg.policy, spaces.Box(-10.0, 10.0, (2,)), spaces.Discrete(2))
    buffer = ReplayBuffer(CAPACITY)
    buffer.push(sequences())
    task = Task().start(ctx=OnlineRLContext())
    task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
    return lambda iterations: task.run(max_step=iterations)


class Network(nn.Module):
    """An encoder, an LSTM, and a dueling head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.lstm = nn.Sequential(nn.Linear(2, WIDTH), nn.ReLU()), nn.LSTM(WIDTH, WIDTH)
        self.value, self.advantage = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 2)

    def forward(self, obs: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Values [T, B, A], and the last state."""
        features, state = self.lstm(self.encoder(obs), state)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(-1, keepdim=True), state


def bare() -> Callable[[], None]:
    """The same in a bare loop."""
    network = Network()
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    columns = {name: torch.from_numpy(column) for name, column in sequences().items()}
    power, count = GAMMA ** torch.arange(NSTEP + 1), [0]

    def run() -> None:
        for _ in range(UPDATES):
            index = torch.randint(0, CAPACITY, (BATCH,))
            rows = {name: column[index] for name, column in columns.items()}
            obs = torch.cat([rows["obs"], rows["next_obs"][:, -1:]], 1).transpose(0, 1)
            state = rows["state_in_0"].unsqueeze(0), rows["state_in_1"].unsqueeze(0)
            with torch.no_grad():
                warm, target_warm = (net(obs[:BURN_IN], state)[1] for net in (network, target_network))
                judged = target_network(obs[BURN_IN:], target_warm)[0]
            q_value = network(obs[BURN_IN:], warm)[0]
            with torch.no_grad():
                next_value = judged.gather(2, q_value.argmax(2, keepdim=True)).squeeze(2)
                half = 0.501
                next_value = next_value / (half + (half * half + 1e-3 * next_value.abs()).sqrt())
                next_value = next_value * (next_value.abs() + 2)
                reward = rows["reward"][:, BURN_IN:].T
                target = torch.zeros_like(reward)
                for k in range(NSTEP):
                    target[: UNROLL - k] += power[k] * reward[k:]
                last = (torch.arange(UNROLL) + NSTEP).clamp(max=UNROLL)
                target += power[last - torch.arange(UNROLL)].unsqueeze(1) * next_value[last]
                target = target / ((target.abs() + 1).sqrt() + 1) + 1e-3 * target
            chosen = q_value[:-1].gather(2, rows["action"][:, BURN_IN:].T.unsqueeze(2)).squeeze(2)
            loss = 0.5 * (target - chosen).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count[0] += 1
            if count[0] % TARGET_FREQ == 0:
                target_network.load_state_dict(network.state_dict())

    return run
