"""Data-parallel PPO on CartPole-v1: several processes collect, and average their gradients.

Start it with `torchrun --nproc-per-node 2 examples/ppo_ddp.py`; without torchrun, one process learns alone. It differs from
ppo.py in the two lines with data_parallel and ddp_termination_checker. See docs/data_parallel.md.
"""

import sys

from ding_lite import task
from ding_lite.config import PPOConfig, data_parallel, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    StepCollector,
    ddp_termination_checker,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    online_logger,
)
from ding_lite.policy import PPOPolicy


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
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.use(online_logger(cfg))
        task.use(ddp_termination_checker())
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(PPOConfig, description=__doc__)
    with data_parallel(config) as config:
        sys.exit(config.report_and_exit_code(main(config)))
