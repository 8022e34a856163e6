"""PPO's learn phase: 8 environments times 256 steps, GAE, 4 epochs of minibatches of 256, two 64x64 networks.

The bare loop is lean: log_softmax by hand, one gather an epoch, fused Adam.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional

from ding_lite import Task
from ding_lite.config import PPOConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Trajectories
from ding_lite.middleware import gae_estimator, multistep_trainer
from ding_lite.policy import PPOPolicy

STEPS, ENVS, EPOCHS, BATCH = 256, 8, 4, 256
UPDATES = EPOCHS * STEPS * ENVS // BATCH


def rollout() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((STEPS + 1, ENVS, 4)).astype(np.float32)
    return {
        "obs": obs[:-1],
        "action": rng.integers(0, 2, (STEPS, ENVS)),
        "log_prob": np.full((STEPS, ENVS), -0.69, np.float32),
        "reward": np.ones((STEPS, ENVS), np.float32),
        "next_obs": obs[1:].copy(),
        "terminated": rng.random((STEPS, ENVS)) < 0.02,
        "truncated": np.zeros((STEPS, ENVS), np.bool_),
    }


def ours() -> Callable[[int], None]:
    """Through gae_estimator and multistep_trainer."""
    data = rollout()
    cfg = PPOConfig().override(
        {
            "policy.learn": {"epoch_per_collect": EPOCHS, "batch_size": BATCH, "entropy_weight": 0.01, "learning_rate": 3e-4},
            "policy.model.encoder_hidden_size_list": [64, 64],
        }
    )
    policy = PPOPolicy(cfg.policy, spaces.Box(-10.0, 10.0, (4,)), spaces.Discrete(2))

    def bring(ctx: OnlineRLContext) -> None:
        ctx.trajectories = Trajectories(data)

    task = Task().start(ctx=OnlineRLContext())
    task.use(bring)
    task.use(gae_estimator(cfg, policy.collect_mode))
    task.use(multistep_trainer(cfg, policy.learn_mode))
    return lambda iterations: task.run(max_step=iterations)


def bare() -> Callable[[], None]:
    """A loop in torch."""
    data = rollout()

    def mlp(out: int) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out))

    actor, critic = mlp(2), mlp(1)
    params = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(params, lr=3e-4, fused=True)
    obs, last = torch.from_numpy(data["obs"].reshape(-1, 4)), torch.from_numpy(data["next_obs"][-1])
    action, old = torch.from_numpy(data["action"].reshape(-1)), torch.from_numpy(data["log_prob"].reshape(-1))

    def gae(value: Any, last_value: Any) -> Any:
        advantage = np.empty((STEPS, ENVS), np.float32)
        going = (1.0 - data["terminated"]).astype(np.float32)
        delta = data["reward"] + 0.99 * np.concatenate([value[1:], last_value[None]]) * going - value
        decay, trace = 0.99 * 0.95 * going, np.zeros(ENVS, np.float32)
        for t in range(STEPS - 1, -1, -1):
            advantage[t] = trace = delta[t] + decay[t] * trace
        return torch.from_numpy(advantage).reshape(-1)

    def run() -> None:
        with torch.no_grad():
            value = critic(obs).reshape(STEPS, ENVS)
            advantage = gae(value.numpy(), critic(last).reshape(ENVS).numpy())
        return_ = advantage + value.reshape(-1)
        for _ in range(EPOCHS):
            order = torch.randperm(STEPS * ENVS)
            shuffled = [column[order] for column in (obs, action, old, advantage, return_)]
            for start in range(0, STEPS * ENVS, BATCH):
                o, a, before, adv, ret = (column[start : start + BATCH] for column in shuffled)
                log_prob = actor(o).log_softmax(1)
                entropy = -(log_prob.exp() * log_prob).sum(1).mean()
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                ratio = (log_prob.gather(1, a.unsqueeze(1)).squeeze(1) - before).exp()
                policy_loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
                loss = policy_loss - 0.01 * entropy + 0.5 * functional.mse_loss(critic(o).squeeze(1), ret)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(params, 0.5)
                optimizer.step()

    return run
