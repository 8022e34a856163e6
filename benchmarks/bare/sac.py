"""SAC's learner: sample 256 of 100,000 transitions (17 numbers per observation, 6 per action), and one step of two critics, an
actor and a temperature, with layers of 256 and 256; then move the target critics.

The bare loop does the same in plain torch: both critics in one product per layer, one backward pass, fused Adam.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from bare.continuous import ACTIONS, BATCH, CAPACITY, UPDATES, actor_network, critic_params, judged, learner, transitions
from torch.nn import functional

from ding_lite.config import SACConfig
from ding_lite.policy import SACPolicy

__all__ = ["UPDATES", "bare", "ours"]


def ours(width: int = 256) -> Callable[[int], None]:
    """Through OffPolicyLearner."""
    return learner(SACConfig(), SACPolicy, width)


def bare(width: int = 256) -> Callable[[], None]:
    """A loop in torch."""
    actor, critic = actor_network(width, 2 * ACTIONS), critic_params(width, 2)
    target = [param.detach().clone() for param in critic]
    log_alpha = torch.zeros((), requires_grad=True)
    params = [*actor.parameters(), *critic, log_alpha]
    optimizer = torch.optim.Adam(params, lr=1e-3, fused=True)
    data = {name: torch.from_numpy(column) for name, column in transitions().items()}

    def act(obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = actor(obs).chunk(2, -1)
        log_std = log_std.clamp(-20, 2)
        noise = torch.randn(mean.shape)
        raw = torch.addcmul(mean, log_std.exp(), noise)
        spread = torch.add(log_std, functional.logsigmoid(2 * raw) - raw, alpha=2)
        fixed = 0.5 * noise.square().sum(-1) + ACTIONS * (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
        return torch.tanh(raw), -(spread.sum(-1) + fixed)

    def run() -> None:
        for _ in range(UPDATES):
            rows = torch.randint(0, CAPACITY, (BATCH,))
            obs, action, reward, next_obs, terminated = (column[rows] for column in data.values())
            alpha = log_alpha.detach().exp()
            with torch.no_grad():
                next_action, next_log_prob = act(next_obs)
                next_value = judged(target, next_obs, next_action).amin(0) - alpha * next_log_prob
                wanted = reward + 0.99 * next_value * ~terminated
            critic_loss = 0.5 * (wanted - judged(critic, obs, action)).square().sum(0).mean()
            drawn, log_prob = act(obs)
            q_value = judged([param.detach() for param in critic], obs, drawn).amin(0)
            actor_loss = (alpha * log_prob - q_value).mean()
            alpha_loss = -(log_alpha.exp() * (log_prob.detach().mean() - ACTIONS))
            for param in params:
                param.grad = None
            (critic_loss + actor_loss + alpha_loss).backward()
            optimizer.step()
            torch._foreach_lerp_(target, [param.detach() for param in critic], 0.005)

    return run
