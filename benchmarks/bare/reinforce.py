"""REINFORCE's learner: 8 episodes of 32 steps (4 numbers per observation, 2 actions), discounted returns, and one gradient step
of a network with layers of 64 and 64.

The bare loop does the same in plain torch and numpy, with fused Adam.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from bare.rollouts import ACTIONS, ENVS, OBS, STEPS, UPDATES, Stepper, loop, made, mlp, normalised, rollout

from ding_lite.config import REINFORCEConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Episodes
from ding_lite.middleware import montecarlo_return_estimator, multistep_trainer
from ding_lite.policy import REINFORCEPolicy


def ours() -> Callable[[int], None]:
    """Through montecarlo_return_estimator and multistep_trainer."""
    cfg, data = REINFORCEConfig(), rollout()
    policy = made(REINFORCEPolicy, cfg)
    data["terminated"][:], data["terminated"][-1] = False, True
    rows = {name: column.swapaxes(0, 1).reshape(STEPS * ENVS, *column.shape[2:]) for name, column in data.items()}

    def bring(ctx: OnlineRLContext) -> None:
        ctx.episodes = Episodes(rows, [STEPS] * ENVS)

    return loop(bring, montecarlo_return_estimator(cfg, policy.collect_mode), multistep_trainer(cfg, policy.learn_mode))


def bare() -> Callable[[], None]:
    """A loop in torch."""
    actor, data = mlp(ACTIONS), rollout()
    stepper = Stepper(actor)
    obs, action = torch.from_numpy(data["obs"].reshape(-1, OBS)), torch.from_numpy(data["action"].reshape(-1, 1))

    def run() -> None:
        for _ in range(UPDATES):
            return_, trace = np.empty((STEPS, ENVS), np.float32), np.zeros(ENVS, np.float32)
            for t in range(STEPS - 1, -1, -1):
                return_[t] = trace = data["reward"][t] + 0.99 * trace
            log_prob = actor(obs).log_softmax(1)
            entropy = -(log_prob.exp() * log_prob).sum(1).mean()
            weight = normalised(torch.from_numpy(return_.reshape(-1)))
            stepper.step(-(log_prob.gather(1, action).squeeze(1) * weight).mean() - 0.01 * entropy)

    return run
