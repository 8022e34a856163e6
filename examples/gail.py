"""GAIL on CartPole-v1: PPO imitates an expert, with rewards from a discriminator between the expert and the policy.

evaluator -> collector -> reward_estimator -> gae_estimator -> multistep_trainer -> ckpt_saver

The expert is a controller of CartPole-v1, or a dataset of any environment: --expert-data. Rewards of the environment are only
used to evaluate.
"""

import sys
from typing import Any

import gymnasium
import numpy as np

from ding_lite import task
from ding_lite.config import GAILConfig, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    StepCollector,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    online_logger,
    reward_estimator,
)
from ding_lite.policy import PPOPolicy
from ding_lite.rewards import GAILRewardModel


def controlled(num_episodes: int) -> dict[str, Any]:
    """Transitions of a controller of CartPole-v1, which balances the pole for all 500 steps of an episode, without rewards."""
    env, rows = gymnasium.make("CartPole-v1"), []
    for seed in range(num_episodes):
        (obs, _), done = env.reset(seed=seed), False
        while not done:
            action = int(np.dot(obs, (0.1, 0.5, 1.0, 1.0)) > 0)
            next_obs, _, terminated, truncated, _ = env.step(action)
            row = {"obs": obs, "action": action, "next_obs": next_obs, "terminated": terminated, "truncated": truncated}
            rows.append({**row, "reward": np.float32(0)})
            obs, done = next_obs, terminated or truncated
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def main(cfg: GAILConfig) -> float:
    env = cfg.env
    collector_env = make_envs(env.id, env.collector_env_num, seed=cfg.seed, workers=env.workers, **env.options())
    evaluator_env = make_envs(env.id, env.evaluator_env_num, seed=cfg.seed + 1, **env.options())
    spaces = collector_env.single_observation_space, collector_env.single_action_space
    policy = PPOPolicy(cfg.policy, *spaces)
    reward_model = GAILRewardModel(cfg.reward_model, *spaces, cfg.expert_data or controlled(num_episodes=5), seed=cfg.seed)
    policy.attach("reward_model", reward_model)

    with task.start(
        async_mode=cfg.async_mode, max_lag=cfg.max_lag, resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=OnlineRLContext()
    ):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(reward_estimator(cfg, reward_model, of="trajectories"))
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(GAILConfig, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
