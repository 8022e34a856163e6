"""PPO on Hopper-v5, or any environment of MuJoCo: --env.id. Needs the extra `mujoco`.

evaluator -> collector -> reward_normalizer -> gae_estimator -> multistep_trainer -> ckpt_saver

Reaches a mean return of 2400 over 10 episodes after 215,000 and 266,000 environment steps (seeds 0 and 1).
"""

import sys

from ding_lite import task
from ding_lite.config import PPOMuJoCoConfig, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    StepCollector,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    online_logger,
    reward_normalizer,
)
from ding_lite.policy import PPOPolicy


def main(cfg: PPOMuJoCoConfig) -> float:
    env = cfg.env
    collector_env = make_envs(env.id, env.collector_env_num, seed=cfg.seed, workers=env.workers, **env.options())
    evaluator_env = make_envs(env.id, env.evaluator_env_num, seed=cfg.seed + 1, **env.options())
    policy = PPOPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)

    with task.start(
        async_mode=cfg.async_mode, max_lag=cfg.max_lag, resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=OnlineRLContext()
    ):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(reward_normalizer(cfg, policy.learn_mode))
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=10_000))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(PPOMuJoCoConfig, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
