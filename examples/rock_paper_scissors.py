"""A learned policy against a heuristic: PPO plays rock-paper-scissors against a player who always beats its last move.

evaluator -> collector -> for "learned" alone: gae_estimator -> multistep_trainer -> ckpt_saver

Each player sees the other's last move, and an episode has 15 rounds with rewards of +1, 0 or -1. Of the 81 deterministic
answers
to the last move, one wins all 15 rounds: begin with paper, then repeat the other's move. The next best ones reach 8 and are
local optima, so a run may stay there. A random player reaches 0. PPO reaches 8 after 1,500 to 9,000 environment steps.
"""

import sys

import torch
from pettingzoo.classic import rps_v2

from ding_lite import task
from ding_lite.config import PPOConfig, from_command_line
from ding_lite.contexts import MultiAgentContext
from ding_lite.envs import make_multi_agent_envs
from ding_lite.middleware import (
    CkptSaver,
    MultiAgentCollector,
    for_policy,
    gae_estimator,
    multi_agent_evaluator,
    multistep_trainer,
    online_logger,
)
from ding_lite.policy import Policy, PPOPolicy

ROCK_PAPER_SCISSORS = PPOConfig(exp_name="runs/rock_paper_scissors").override(
    {
        "env.id": "rps_v2",
        "env.stop_value": 8.0,
        "policy.learn.entropy_weight": 0.03,
    }
)


class BeatLast(Policy):
    """Plays the move that beats the other's last one (rock, paper and scissors each beat the one before), and rock first."""

    def compute_actions(self, obs, state=None, **kwargs):
        return torch.where(obs == 3, 0, (obs + 1) % 3), state, {}


def main(cfg: PPOConfig) -> float:
    env, factory = cfg.env, rps_v2.parallel_env
    where = {"env_config": env.env_config, "info_columns": env.info_columns, **env.worker_options()}
    collector_env = make_multi_agent_envs(factory, env.collector_env_num, seed=cfg.seed, workers=env.workers, **where)
    evaluator_env = make_multi_agent_envs(factory, env.evaluator_env_num, seed=cfg.seed + 1, **where)
    spaces = collector_env.observation_space("player_0"), collector_env.action_space("player_0")
    learned, heuristic = PPOPolicy(cfg.policy, *spaces), BeatLast({}, *spaces)
    collecting = {"learned": learned.collect_mode, "heuristic": heuristic.collect_mode}
    evaluating = {"learned": learned.eval_mode, "heuristic": heuristic.eval_mode}
    policy_of = {"player_0": "learned", "player_1": "heuristic"}.get

    with task.start(
        async_mode=cfg.async_mode, max_lag=cfg.max_lag, resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=MultiAgentContext()
    ):
        task.use(multi_agent_evaluator(cfg, evaluating, evaluator_env, policy_of, score=lambda returns: returns["player_0"]))
        task.use(MultiAgentCollector(cfg, collecting, collector_env, policy_of))
        task.use(for_policy("learned", gae_estimator(cfg, learned.collect_mode)))
        task.use(for_policy("learned", multistep_trainer(cfg, learned.learn_mode)))
        task.use(CkptSaver({"learned": learned}, cfg.exp_name, train_freq=1000))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(ROCK_PAPER_SCISSORS, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
