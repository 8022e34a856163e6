"""A training of stable-baselines3 with the settings of its zoo, until an evaluation reaches the target.

    python benchmarks/peers/sb3_training.py ppo_cartpole CartPole-v1 475 8 --seed 0

The exit status is 1 if the target was not reached.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import stable_baselines3 as sb3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization


def ppo_cartpole(env: str, seed: int) -> Any:
    return sb3.PPO(
        "MlpPolicy",
        make_vec_env(env, 8, seed=seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        learning_rate=lambda left: left * 1e-3,
        clip_range=lambda left: left * 0.2,
        seed=seed,
        device="cpu",
    )


def ppo_acrobot(env: str, seed: int) -> Any:
    envs = VecNormalize(make_vec_env(env, 16, seed=seed))
    return sb3.PPO("MlpPolicy", envs, n_steps=256, gae_lambda=0.94, n_epochs=4, seed=seed, device="cpu")


def dqn_cartpole(env: str, seed: int) -> Any:
    return sb3.DQN(
        "MlpPolicy",
        make_vec_env(env, 1, seed=seed),
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1000,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device="cpu",
    )


def sac_pendulum(env: str, seed: int) -> Any:
    return sb3.SAC("MlpPolicy", make_vec_env(env, 1, seed=seed), learning_rate=1e-3, seed=seed, device="cpu")


TRAININGS = {
    "ppo_cartpole": (ppo_cartpole, 100_000, 1536),
    "ppo_acrobot": (ppo_acrobot, 1_000_000, 1536),
    "dqn_cartpole": (dqn_cartpole, 50_000, 512),
    "sac_pendulum": (sac_pendulum, 20_000, 500),
}
"""The model, the most environment steps, and the steps between evaluations."""


class Target(BaseCallback):
    """Evaluates the greedy policy, and ends the training at the target."""

    def __init__(self, envs: Any, every: int, target: float, episodes: int) -> None:
        super().__init__()
        self.envs, self.every, self.target, self.episodes, self.value, self.next = envs, every, target, episodes, -1e9, every

    def _on_step(self) -> bool:
        if self.num_timesteps < self.next:
            return True
        self.next += self.every
        if isinstance(self.envs, VecNormalize):
            sync_envs_normalization(self.training_env, self.envs)
        self.value, _ = evaluate_policy(self.model, self.envs, n_eval_episodes=self.episodes, deterministic=True)
        return self.value < self.target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("training", choices=TRAININGS)
    parser.add_argument("env")
    parser.add_argument("target", type=float)
    parser.add_argument("episodes", type=int, help="episodes of an evaluation")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make, steps, every = TRAININGS[arguments.training]
    model = make(arguments.env, arguments.seed)
    envs: Any = make_vec_env(arguments.env, arguments.episodes, seed=arguments.seed + 1000)
    if isinstance(model.env, VecNormalize):
        envs = VecNormalize(envs, training=False, norm_reward=False)
    found = Target(envs, every, arguments.target, arguments.episodes)
    model.learn(steps, callback=found)
    print(f"{arguments.training}: {found.value:.1f} after {model.num_timesteps} environment steps")
    return int(found.value < arguments.target)


if __name__ == "__main__":
    sys.exit(main())
