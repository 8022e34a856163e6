"""SAC with hindsight experience replay: a robot's arm reaches for a random position, FetchReach-v4.

evaluator -> collector -> data_pusher -> learner -> ckpt_saver

It needs the extra `robotics`. Any other environment with goals and actions in a bounded Box: --env.id. The reward is -1 in each
step that does not end within 5 cm of the goal. The score of an evaluation is the share of episodes that end there.
"""

import sys

from ding_lite import task
from ding_lite.config import HERFetchConfig, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import EpisodeReplayBuffer
from ding_lite.envs import goal_rewards, make_envs
from ding_lite.middleware import (
    CkptSaver,
    HERLearner,
    StepCollector,
    data_pusher,
    interaction_evaluator,
    online_logger,
)
from ding_lite.policy import SACPolicy


def main(cfg: HERFetchConfig) -> float:
    env = cfg.env
    collector_env = make_envs(env.id, env.collector_env_num, seed=cfg.seed, workers=env.workers, **env.options())
    evaluator_env = make_envs(env.id, env.evaluator_env_num, seed=cfg.seed + 1, **env.options())
    policy = SACPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)
    buffer_ = EpisodeReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)
    rewards = goal_rewards(collector_env)

    with task.start(
        async_mode=cfg.async_mode, max_lag=cfg.max_lag, resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=OnlineRLContext()
    ):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env, score=lambda it: it.info["is_success"]))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env, cfg.policy.random_collect_size))
        task.use(data_pusher(cfg, buffer_))
        task.use(HERLearner(cfg, policy.learn_mode, buffer_, rewards))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=1000))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(HERFetchConfig, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
