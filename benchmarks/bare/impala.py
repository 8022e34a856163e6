"""IMPALA's learner: 32 steps of 8 environments (4 numbers per observation, 2 actions), V-trace, and one gradient step of two
networks with layers of 64 and 64.

The bare loop does the same in plain torch and numpy, with fused Adam.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from bare.rollouts import ACTIONS, ENVS, OBS, STEPS, UPDATES, Stepper, loop, made, mlp, normalised, rollout

from ding_lite.config import IMPALAConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import Trajectories
from ding_lite.middleware import multistep_trainer, onpolicy_data_fetcher
from ding_lite.policy import IMPALAPolicy


def ours() -> Callable[[int], None]:
    """Through onpolicy_data_fetcher and multistep_trainer."""
    cfg, data = IMPALAConfig().override({"policy.learn.epoch_per_collect": 1}), rollout()
    policy = made(IMPALAPolicy, cfg)

    def bring(ctx: OnlineRLContext) -> None:
        ctx.trajectories = Trajectories(data)

    return loop(bring, onpolicy_data_fetcher(cfg), multistep_trainer(cfg, policy.learn_mode))


def bare() -> Callable[[], None]:
    """A loop in torch."""
    actor, critic = mlp(ACTIONS), mlp(1)
    stepper, data = Stepper(actor, critic), rollout()
    obs, last = torch.from_numpy(data["obs"].reshape(-1, OBS)), torch.from_numpy(data["next_obs"][-1])
    action, behaviour = torch.from_numpy(data["action"].reshape(-1, 1)), data["log_prob"]
    going = (1.0 - data["terminated"]).astype(np.float32)

    def vtrace(ratio: np.ndarray, value: np.ndarray, next_value: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        rho = np.minimum(1, ratio)
        delta = rho * (data["reward"] + 0.99 * next_value * going - value)
        decay, trace = 0.99 * 0.95 * going * rho, np.zeros(ENVS, np.float32)
        target = np.empty((STEPS + 1, ENVS), np.float32)
        for t in range(STEPS - 1, -1, -1):
            trace = delta[t] + decay[t] * trace
            target[t] = value[t] + trace
        target[STEPS] = next_value[-1]
        advantage = rho * (data["reward"] + 0.99 * going * target[1:] - value)
        return torch.from_numpy(target[:-1].reshape(-1)), torch.from_numpy(advantage.reshape(-1))

    def run() -> None:
        for _ in range(UPDATES):
            value, log_prob = critic(obs).squeeze(1), actor(obs).log_softmax(1)
            taken = log_prob.gather(1, action).squeeze(1)
            with torch.no_grad():
                last_value = critic(last).reshape(1, ENVS).numpy()
                now = value.reshape(STEPS, ENVS).numpy()
                ratio = np.exp(taken.reshape(STEPS, ENVS).numpy() - behaviour)
            target, advantage = vtrace(ratio, now, np.concatenate([now[1:], last_value]))
            entropy = -(log_prob.exp() * log_prob).sum(1).mean()
            policy_loss = -(taken * normalised(advantage)).mean()
            vf_loss = 0.5 * (value - target).square().mean()
            stepper.step(policy_loss + 0.5 * vf_loss - 0.01 * entropy)

    return run
