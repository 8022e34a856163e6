"""AWAC on Pendulum-v1, or any environment with actions in a bounded Box: --env.id, from a dataset.

evaluator -> data_fetcher -> trainer -> ckpt_saver

`python benchmarks/collect_datasets.py --only pendulum` collects the dataset; --dataset names another one.
"""

import sys

from ding_lite import task
from ding_lite.config import AWACConfig, from_command_line
from ding_lite.contexts import OfflineRLContext
from ding_lite.datasets import open_dataset
from ding_lite.envs import make_envs
from ding_lite.middleware import CkptSaver, interaction_evaluator, offline_data_fetcher, offline_logger, trainer
from ding_lite.policy import AWACPolicy


def main(cfg: AWACConfig) -> float:
    env = cfg.env
    evaluator_env = make_envs(env.id, env.evaluator_env_num, seed=cfg.seed + 1, **env.options())
    policy = AWACPolicy(cfg.policy, evaluator_env.single_observation_space, evaluator_env.single_action_space)
    dataset = open_dataset(cfg.dataset)

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
    config = from_command_line(AWACConfig, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
