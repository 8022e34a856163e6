"""A2C's learner: 32 steps of 8 environments (4 numbers per observation, 2 actions), GAE, and one gradient step of two networks
with layers of 64 and 64.

The bare loop does the same in plain torch and numpy, with fused Adam.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from bare.rollouts import ACTIONS, ENVS, OBS, STEPS, UPDATES, Stepper, loop, made, mlp, normalised, rollout

from ding_lite.config import A2CConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Trajectories
from ding_lite.middleware import gae_estimator, multistep_trainer
from ding_lite.policy import A2CPolicy


def ours() -> Callable[[int], None]:
    """Through gae_estimator and multistep_trainer."""
    cfg, data = A2CConfig(), rollout()
    policy = made(A2CPolicy, cfg)

    def bring(ctx: OnlineRLContext) -> None:
        ctx.trajectories = Trajectories(data)

    return loop(bring, gae_estimator(cfg, policy.collect_mode), multistep_trainer(cfg, policy.learn_mode))


def bare() -> Callable[[], None]:
    """A loop in torch."""
    actor, critic = mlp(ACTIONS), mlp(1)
    stepper, data = Stepper(actor, critic), rollout()
    obs, last = torch.from_numpy(data["obs"].reshape(-1, OBS)), torch.from_numpy(data["next_obs"][-1])
    action = torch.from_numpy(data["action"].reshape(-1, 1))

    def run() -> None:
        for _ in range(UPDATES):
            with torch.no_grad():
                value, last_value = critic(obs).reshape(STEPS, ENVS).numpy(), critic(last).reshape(1, ENVS).numpy()
            advantage = np.empty((STEPS, ENVS), np.float32)
            going = (1.0 - data["terminated"]).astype(np.float32)
            delta = data["reward"] + 0.99 * np.concatenate([value[1:], last_value]) * going - value
            decay, trace = 0.99 * 0.95 * going, np.zeros(ENVS, np.float32)
            for t in range(STEPS - 1, -1, -1):
                advantage[t] = trace = delta[t] + decay[t] * trace
            return_ = torch.from_numpy((advantage + value).reshape(-1))
            log_prob = actor(obs).log_softmax(1)
            entropy = -(log_prob.exp() * log_prob).sum(1).mean()
            policy_loss = -(log_prob.gather(1, action).squeeze(1) * normalised(torch.from_numpy(advantage.reshape(-1)))).mean()
            vf_loss = 0.5 * (critic(obs).squeeze(1) - return_).square().mean()
            stepper.step(policy_loss + 0.5 * vf_loss - 0.01 * entropy)

    return run
