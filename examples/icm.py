"""DQN with the intrinsic curiosity module (ICM) on MountainCar-v0, where only an exploration bonus leads to the goal.

evaluator -> eps_greedy -> collector -> data_pusher -> fetcher -> reward_estimator -> trainer -> ckpt_saver
"""

import sys

from ding_lite import task
from ding_lite.config import ICMConfig, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    interaction_evaluator,
    offpolicy_data_fetcher,
    online_logger,
    reward_estimator,
    trainer,
)
from ding_lite.policy import DQNPolicy
from ding_lite.rewards import ICMRewardModel


def main(cfg: ICMConfig) -> float:
    env = cfg.env
    collector_env = make_envs(env.id, env.collector_env_num, seed=cfg.seed, workers=env.workers, **env.options())
    evaluator_env = make_envs(env.id, env.evaluator_env_num, seed=cfg.seed + 1, **env.options())
    spaces = collector_env.single_observation_space, collector_env.single_action_space
    policy = DQNPolicy(cfg.policy, *spaces)
    reward_model = ICMRewardModel(cfg.reward_model, *spaces, seed=cfg.seed)
    policy.attach("reward_model", reward_model)
    buffer_ = ReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)

    with task.start(
        async_mode=cfg.async_mode, max_lag=cfg.max_lag, resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=OnlineRLContext()
    ):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(data_pusher(cfg, buffer_))
        task.use(offpolicy_data_fetcher(cfg, buffer_, policy.learn_mode, reward_model))
        task.use(reward_estimator(cfg, reward_model))
        task.use(trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=1000))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(ICMConfig, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
