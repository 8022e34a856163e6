"""Behaviour cloning on CartPole-v1, or any environment: --env.id, from a dataset.

evaluator -> data_fetcher -> trainer -> ckpt_saver

`python benchmarks/collect_datasets.py --only cartpole` collects the dataset; --dataset names another one.
--best-share 0.1 learns from the best tenth of the episodes; add --best-relative-to-start where returns depend on the start,
as on Pendulum-v1.
"""

import sys

from ding_lite import task
from ding_lite.config import BCConfig, from_command_line
from ding_lite.contexts import OfflineRLContext
from ding_lite.datasets import open_dataset
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver, interaction_evaluator, offline_data_fetcher, offline_logger, trainer
from ding_lite.policy import BCPolicy


def main(cfg: BCConfig) -> float:
    env = cfg.env
    evaluator_env = make_envs(env.id, env.evaluator_env_num, seed=cfg.seed + 1, **env.options())
    policy = BCPolicy(cfg.policy, evaluator_env.single_observation_space, evaluator_env.single_action_space)
    dataset = open_dataset(cfg.dataset)
    if cfg.best_share < 1 or cfg.best_relative_to_start:
        dataset = dataset.best(cfg.best_share, cfg.best_relative_to_start)  # of the finished episodes

    with task.start(
        async_mode=cfg.async_mode, max_lag=cfg.max_lag, resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=OfflineRLContext()
    ):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(offline_data_fetcher(cfg, dataset, policy.learn_mode))
        task.use(trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.use(offline_logger(cfg))
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(BCConfig, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
