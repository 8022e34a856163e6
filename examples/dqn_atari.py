"""DQN on Pong, or another Atari game: --env.id ALE/Breakout-v5. It needs the extra `atari`.

evaluator -> eps_greedy -> collector -> data_pusher -> learner -> ckpt_saver

The collector's environments clip rewards, and a lost life ends an episode; the evaluator plays whole games. The replay buffer
stores each frame once: a million transitions take 7.6 GB.
"""

import sys

from ding_lite import task
from ding_lite.config import DQNAtariConfig, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    interaction_evaluator,
    online_logger,
)
from ding_lite.policy import DQNPolicy


def main(cfg: DQNAtariConfig) -> float:
    env = cfg.env
    collector_env = make_envs(env.id, env.collector_env_num, seed=cfg.seed, atari="train", workers=env.workers, **env.options())
    evaluator_env = make_envs(env.id, env.evaluator_env_num, seed=cfg.seed + 1, atari="eval", **env.options())
    policy = DQNPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)
    buffer_ = ReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed, share_frames=True)

    with task.start(
        async_mode=cfg.async_mode, max_lag=cfg.max_lag, resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=OnlineRLContext()
    ):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=10_000))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(DQNAtariConfig, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
