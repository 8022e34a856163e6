"""Common parts of the bare loops of DDPG, TD3 and SAC: transitions, networks, and the learner to compare with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite import Task
from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.middleware import OffPolicyLearner
from ding_lite.policy import Policy

CAPACITY, BATCH, UPDATES, OBS, ACTIONS = 100_000, 256, 20, 17, 6


def transitions() -> dict[str, Any]:
    """Random transitions."""
    rng = np.random.default_rng(0)
    return {
        "obs": rng.standard_normal((CAPACITY, OBS)).astype(np.float32),
        "action": rng.uniform(-1, 1, (CAPACITY, ACTIONS)).astype(np.float32),
        "reward": rng.standard_normal(CAPACITY).astype(np.float32),
        "next_obs": rng.standard_normal((CAPACITY, OBS)).astype(np.float32),
        "terminated": rng.random(CAPACITY) < 0.02,
    }


def learner(cfg: RunConfig, kind: type[Policy], width: int) -> Callable[[int], None]:
    """A function that takes UPDATES gradient steps with OffPolicyLearner."""
    learn = {"batch_size": BATCH, "update_per_collect": UPDATES, "learning_rate": 1e-3}
    cfg.override({"policy.model.encoder_hidden_size_list": [width, width], "policy.learn": learn})
    policy = kind(cfg.policy, spaces.Box(-10.0, 10.0, (OBS,)), spaces.Box(-1.0, 1.0, (ACTIONS,)))
    buffer = ReplayBuffer(CAPACITY)
    buffer.push({**transitions(), "truncated": np.zeros(CAPACITY, np.bool_)})
    task = Task().start(ctx=OnlineRLContext())
    task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer))
    return lambda iterations: task.run(max_step=iterations)


def actor_network(width: int, outputs: int) -> nn.Module:
    """A network from observations to `outputs` numbers."""
    return nn.Sequential(nn.Linear(OBS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))


def critic_params(width: int, count: int) -> list[nn.Parameter]:
    """The weights [count, out, in] and biases [count, 1, out] of each layer of critics."""
    sizes = (OBS + ACTIONS, width, width, 1)
    params = []
    for before, after in pairwise(sizes):
        params.append(nn.Parameter(torch.empty(count, after, before).uniform_(-1, 1) / before**0.5))
        params.append(nn.Parameter(torch.zeros(count, 1, after)))
    return params


def judged(params: Sequence[Tensor], obs: Tensor, action: Tensor) -> Tensor:
    """Q-values [count, B], each layer of all critics in one product."""
    x = torch.cat((obs, action), 1).expand(len(params[0]), -1, -1)
    x = torch.relu(torch.baddbmm(params[1], x, params[0].mT))
    x = torch.relu(torch.baddbmm(params[3], x, params[2].mT))
    return torch.baddbmm(params[5], x, params[4].mT).squeeze(-1)


def deterministic(width: int, count: int, next_action: Callable[[Tensor], Tensor], actor_every: int) -> Callable[[], None]:
    """A function that takes UPDATES gradient steps of `count` critics and a deterministic actor, in plain torch."""
    actor, critic = actor_network(width, ACTIONS), critic_params(width, count)
    target_actor, target = copy.deepcopy(actor).requires_grad_(False), [param.detach().clone() for param in critic]
    params = [*actor.parameters(), *critic]
    targets, followed = [*target_actor.parameters(), *target], [param.detach() for param in params]
    optimizer = torch.optim.Adam(params, lr=1e-3, fused=True)
    data = {name: torch.from_numpy(column) for name, column in transitions().items()}
    steps = [0]

    def run() -> None:
        for _ in range(UPDATES):
            rows = torch.randint(0, CAPACITY, (BATCH,))
            obs, action, reward, next_obs, terminated = (column[rows] for column in data.values())
            with torch.no_grad():
                next_value = judged(target, next_obs, next_action(target_actor(next_obs))).amin(0)
                wanted = reward + 0.99 * next_value * ~terminated
            loss = 0.5 * (wanted - judged(critic, obs, action)).square().sum(0).mean()
            if steps[0] % actor_every == 0:
                loss = loss - judged([param.detach() for param in critic], obs, torch.tanh(actor(obs)))[0].mean()
            for param in params:
                param.grad = None
            loss.backward()
            optimizer.step()
            steps[0] += 1
            if steps[0] % actor_every == 0:
                torch._foreach_lerp_(targets, followed, 0.005)

    return run
