"""PPO's learner with an LSTM: 8 environments times 64 steps (2 numbers per observation, 2 actions), advantages, and 10 epochs
of minibatches of 4 sequences of 32 steps, with layers of 64 and 64 and an LSTM of 64.

The bare loop does the same in plain torch, with fused Adam. No episode ends in the rollout, so that one call of its LSTM is
enough for a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from ding_lite import Task
from ding_lite.config import PPOLSTMConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Trajectories
from ding_lite.middleware import gae_estimator, multistep_trainer
from ding_lite.policy import PPOPolicy

STEPS, ENVS, EPOCHS, LENGTH, PARTS, WIDTH, GAMMA, LAMBDA = 64, 8, 10, 32, 4, 64, 0.98, 0.8
UPDATES = EPOCHS * PARTS


def rollout() -> dict[str, Any]:
    """A random rollout in which no episode ends."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((STEPS + 1, ENVS, 2)).astype(np.float32)
    state = rng.standard_normal((2, STEPS, ENVS, WIDTH)).astype(np.float32)
    return {
        "obs": obs[:-1],
        "action": rng.integers(0, 2, (STEPS, ENVS)),
        "log_prob": np.full((STEPS, ENVS), -0.69, np.float32),
        "reward": np.ones((STEPS, ENVS), np.float32),
        "next_obs": obs[1:].copy(),
        "terminated": np.zeros((STEPS, ENVS), np.bool_),
        "truncated": np.zeros((STEPS, ENVS), np.bool_),
        "state_in_0": state[0],
        "state_in_1": state[1],
    }


def ours() -> Callable[[int], None]:
    """Our estimator and trainer, UPDATES gradient steps per call."""
    learn = {"epoch_per_collect": EPOCHS, "batch_size": STEPS * ENVS // PARTS, "unroll_len": LENGTH}
    model = {"encoder_hidden_size_list": [WIDTH, WIDTH], "lstm_size": WIDTH, "normalize_obs": False}
    collect = {"discount_factor": GAMMA, "gae_lambda": LAMBDA}
    cfg = PPOLSTMConfig().override({"policy.learn": learn, "policy.model": model, "policy.collect": collect})
    policy = PPOPolicy(cfg.policy, spaces.Box(-10.0, 10.0, (2,)), spaces.Discrete(2))
    data = rollout()

    def bring(ctx: OnlineRLContext) -> None:
        ctx.trajectories = Trajectories(data)

    task = Task().start(ctx=OnlineRLContext())
    task.use(bring)
    task.use(gae_estimator(cfg, policy.collect_mode))
    task.use(multistep_trainer(cfg, policy.learn_mode))
    return lambda iterations: task.run(max_step=iterations)


class Network(nn.Module):
    """An encoder, an LSTM, an actor and a critic."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.lstm, self.actor, self.critic = nn.LSTM(WIDTH, WIDTH), nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 1)

    def forward(self, obs: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        """Features [T, B, WIDTH]."""
        return self.lstm(self.encoder(obs), state)[0]  # type: ignore[no-any-return]


def bare() -> Callable[[], None]:
    """The same in a bare loop."""
    network = Network()
    params = list(network.parameters())
    optimizer = torch.optim.Adam(params, lr=1e-3, fused=True)
    data = {name: torch.from_numpy(column) for name, column in rollout().items()}
    obs = torch.cat([data["obs"], data["next_obs"][-1:]])

    def cut(column: Tensor) -> Tensor:
        return column.view(-1, LENGTH, *column.shape[1:]).transpose(1, 2).flatten(0, 1)

    def run() -> None:
        state = data["state_in_0"][:1], data["state_in_1"][:1]
        with torch.no_grad():
            value = network.critic(network(obs, state)).squeeze(2)
        delta = (data["reward"] + GAMMA * value[1:] - value[:-1]).numpy()
        advantage, trace = np.empty((STEPS, ENVS), np.float32), np.zeros(ENVS, np.float32)
        for t in range(STEPS - 1, -1, -1):
            advantage[t] = trace = delta[t] + GAMMA * LAMBDA * trace
        columns = [data["obs"], data["action"], data["log_prob"], torch.from_numpy(advantage)]
        pieces = [cut(column) for column in (*columns, columns[3] + value[:-1])]
        states = [data[f"state_in_{k}"][::LENGTH].flatten(0, 1) for k in range(2)]
        for _ in range(EPOCHS):
            for index in torch.randperm(len(states[0])).chunk(PARTS):
                o, action, before, adv, return_ = (piece[index].transpose(0, 1) for piece in pieces)
                features = network(o, (states[0][index].unsqueeze(0), states[1][index].unsqueeze(0)))
                log_prob = network.actor(features).log_softmax(2)
                entropy = -(log_prob.exp() * log_prob).sum(2).mean()
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                ratio = (log_prob.gather(2, action.unsqueeze(2)).squeeze(2) - before).exp()
                policy_loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
                vf_loss = 0.5 * functional.mse_loss(network.critic(features).squeeze(2), return_)
                loss = policy_loss + 0.5 * vf_loss - 0.0 * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(params, 0.5)
                optimizer.step()

    return run
