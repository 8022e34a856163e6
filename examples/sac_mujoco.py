"""SAC on HalfCheetah-v5, or any environment of MuJoCo: --env.id. Needs the extra `mujoco`.

evaluator -> collector -> data_pusher -> learner -> ckpt_saver

Reaches a mean return of 4500 over 10 episodes after 75,000 environment steps (seed 0).
"""

import sys

from ding_lite import task
from ding_lite.config import SACMuJoCoConfig, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    interaction_evaluator,
    online_logger,
)
from ding_lite.policy import SACPolicy


def main(cfg: SACMuJoCoConfig) -> float:
    env = cfg.env
    collector_env = make_envs(env.id, env.collector_env_num, seed=cfg.seed, workers=env.workers, **env.options())
    evaluator_env = make_envs(env.id, env.evaluator_env_num, seed=cfg.seed + 1, **env.options())
    policy = SACPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)
    buffer_ = ReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)

    with task.start(
        async_mode=cfg.async_mode, max_lag=cfg.max_lag, resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=OnlineRLContext()
    ):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env, cfg.policy.random_collect_size))
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=10_000))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(SACMuJoCoConfig, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
