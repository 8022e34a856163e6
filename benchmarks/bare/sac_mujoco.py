"""SAC on HalfCheetah-v5 while it learns, with the settings of SACMuJoCoConfig: acting, stepping, storing, and one gradient step
for each environment step.

The bare loop is written as CleanRL's: one environment, one network per critic, an optimizer for the critics, one for the actor
and one for the temperature. It has neither logs nor evaluations, and ours has none here either.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ding_lite import Task
from ding_lite.config import SACMuJoCoConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import OffPolicyLearner, StepCollector, data_pusher
from ding_lite.policy import SACPolicy

__all__ = ["ENV", "STEPS", "bare", "ours", "stable_baselines3"]

ENV, STEPS, WARM_UP = "HalfCheetah-v5", 64, 5000
CAPACITY, BATCH, WIDTH = 1_000_000, 256, 256


def ours(per_iteration: int = 8, envs: int = 8) -> Callable[[], None]:
    """The pipeline of examples/sac_mujoco.py, without evaluations, checkpoints and logs.

    Args:
        per_iteration: transitions and gradient steps per iteration.
        envs: number of environments.
    """
    cfg = SACMuJoCoConfig().override(
        {"policy.collect.n_sample": per_iteration, "policy.learn.update_per_collect": per_iteration}
    )
    env = make_envs(ENV, envs, seed=0)
    policy = SACPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
    buffer_ = ReplayBuffer(cfg.policy.other.replay_buffer_size)
    task = Task().start(ctx=OnlineRLContext())
    task.use(StepCollector(cfg, policy.collect_mode, env, cfg.policy.random_collect_size))
    task.use(data_pusher(cfg, buffer_))
    task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
    task.run(max_step=1)
    return lambda: task.run(max_step=STEPS // per_iteration)


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """A network with two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs))


def bare() -> Callable[[], None]:
    """A loop in torch and numpy; each call continues the previous one."""
    env = gymnasium.make(ENV)
    env.action_space.seed(0)
    width, actions = env.observation_space.shape[0], env.action_space.shape[0]  # type: ignore[index]
    actor = mlp(width, 2 * actions)
    critics = [mlp(width + actions, 1) for _ in range(2)]
    targets = copy.deepcopy(critics)
    weights = [param for critic in critics for param in critic.parameters()]
    of_targets = [param for critic in targets for param in critic.parameters()]
    log_alpha = torch.zeros(1, requires_grad=True)
    critic_optimizer = torch.optim.Adam(weights, lr=1e-3)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)
    shapes = {"obs": width, "next_obs": width, "action": actions, "reward": 1, "terminated": 1}
    rows = {name: np.zeros((CAPACITY, size), np.float32) for name, size in shapes.items()}
    counter, rng = itertools.count(), np.random.default_rng(0)
    last = [env.reset(seed=0)[0].astype(np.float32)]

    def sample(obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(obs).chunk(2, -1)
        std = log_std.clamp(-20, 2).exp()
        normal = torch.distributions.Normal(mean, std)
        raw = normal.rsample()
        action = torch.tanh(raw)
        return action, (normal.log_prob(raw) - torch.log(1 - action.square() + 1e-6)).sum(1, keepdim=True)

    def judged(networks: list[nn.Sequential], obs: Tensor, action: Tensor) -> list[Tensor]:
        x = torch.cat((obs, action), 1)
        return [network(x) for network in networks]

    def interact(random: bool) -> int:
        obs = last[0]
        if random:
            action = env.action_space.sample()
        else:
            with torch.no_grad():
                action = sample(torch.from_numpy(obs).unsqueeze(0))[0][0].numpy()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        next_obs = next_obs.astype(np.float32)
        number = next(counter)
        transition = {"obs": obs, "next_obs": next_obs, "action": action, "reward": reward, "terminated": terminated}
        for name, value in transition.items():
            rows[name][number % CAPACITY] = value
        last[0] = env.reset()[0].astype(np.float32) if terminated or truncated else next_obs
        return number + 1

    def learn(stored: int) -> None:
        chosen = rng.integers(0, min(stored, CAPACITY), BATCH)
        batch = {name: torch.from_numpy(column[chosen]) for name, column in rows.items()}
        obs, next_obs, alpha = batch["obs"], batch["next_obs"], log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = sample(next_obs)
            next_value = torch.min(*judged(targets, next_obs, next_action)) - alpha * next_log_prob
            target = batch["reward"] + 0.99 * (1 - batch["terminated"]) * next_value
        critic_loss = sum(functional.mse_loss(value, target) for value in judged(critics, obs, batch["action"]))
        critic_optimizer.zero_grad()
        critic_loss.backward()  # type: ignore[union-attr]
        critic_optimizer.step()
        action, log_prob = sample(obs)
        actor_loss = (alpha * log_prob - torch.min(*judged(critics, obs, action))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        alpha_loss = (-log_alpha.exp() * (log_prob.detach() - actions)).mean()
        alpha_optimizer.zero_grad()
        alpha_loss.backward()
        alpha_optimizer.step()
        for param, aim in zip(weights, of_targets):
            aim.data.copy_(0.005 * param.data + 0.995 * aim.data)

    def run() -> None:
        for _ in range(STEPS):
            learn(interact(random=False))

    for _ in range(WARM_UP):
        interact(random=True)
    return run


def stable_baselines3() -> Callable[[], object]:
    """The same settings in stable-baselines3, whose actor, critics and temperature have one learning rate."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.env_util import make_vec_env

    model = SAC("MlpPolicy", make_vec_env(ENV, 1, seed=0), learning_starts=WARM_UP, device="cpu", seed=0)
    model.learn(WARM_UP)
    return lambda: model.learn(STEPS, reset_num_timesteps=False)
