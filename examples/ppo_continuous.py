"""PPO with continuous actions, on Pendulum-v1: the pipeline of ppo.py with other settings.

evaluator -> collector -> gae_estimator -> multistep_trainer -> ckpt_saver
"""

import sys

from ding_lite import task
from ding_lite.config import PPOConfig, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    StepCollector,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    online_logger,
)
from ding_lite.policy import PPOPolicy

PENDULUM = PPOConfig(exp_name="runs/ppo_continuous", max_step=200).override(
    {
        "env.id": "Pendulum-v1",
        "env.stop_value": -200,
        "env.n_evaluator_episode": 16,
        "policy.collect.n_sample": 2048,
        "policy.collect.discount_factor": 0.9,
        "policy.learn.batch_size": 256,
        "policy.learn.entropy_weight": 0.0,
        "policy.model.activation": "relu",
        "policy.eval.evaluator.eval_freq": 400,
    }
)


def main(cfg: PPOConfig) -> float:
    env = cfg.env
    collector_env = make_envs(env.id, env.collector_env_num, seed=cfg.seed, workers=env.workers, **env.options())
    evaluator_env = make_envs(env.id, env.evaluator_env_num, seed=cfg.seed + 1, **env.options())
    policy = PPOPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)

    with task.start(
        async_mode=cfg.async_mode, max_lag=cfg.max_lag, resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=OnlineRLContext()
    ):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=1000))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(PENDULUM, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
