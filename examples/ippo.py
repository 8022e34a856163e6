"""Independent PPO: agents that cooperate, share one policy, and act on their own observations.

evaluator -> collector -> for "everybody": gae_estimator -> multistep_trainer -> ckpt_saver

In simple_spread_v3, three agents should cover three landmarks without collisions, in 25 steps. Their return per episode is -81
with random actions, and -50 after about 90,000 environment steps. To give each agent its own policy, create one for each of
`collector_env.possible_agents`, under the agent's name, and pass policy_of=str. Each policy has its own random generator. For
different initial weights as well, pass different seeds: `dataclasses.replace(cfg.policy, seed=cfg.seed + k)`.
"""

import sys

from mpe2 import simple_spread_v3

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
from ding_lite.policy import PPOPolicy

SPREAD = PPOConfig(exp_name="runs/ippo", max_step=250).override(
    {
        "env.id": "simple_spread_v3",
        "env.collector_env_num": 16,
        "env.evaluator_env_num": 16,
        "env.n_evaluator_episode": 64,
        "env.stop_value": -50.0,
        "policy.learn.batch_size": 500,
        "policy.learn.entropy_weight": 0.01,
        "policy.collect.n_sample": 2000,
        "policy.collect.discount_factor": 0.9,
        "policy.eval.evaluator.eval_freq": 600,
    }
)


def everybody(agent: str) -> str:
    return "everybody"


def main(cfg: PPOConfig) -> float:
    env, factory = cfg.env, simple_spread_v3.parallel_env
    where = {"env_config": env.env_config, "info_columns": env.info_columns, **env.worker_options()}
    collector_env = make_multi_agent_envs(factory, env.collector_env_num, seed=cfg.seed, workers=env.workers, **where)
    evaluator_env = make_multi_agent_envs(factory, env.evaluator_env_num, seed=cfg.seed + 1, **where)
    policy = PPOPolicy(cfg.policy, collector_env.observation_space("agent_0"), collector_env.action_space("agent_0"))

    with task.start(
        async_mode=cfg.async_mode, max_lag=cfg.max_lag, resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=MultiAgentContext()
    ):
        task.use(multi_agent_evaluator(cfg, {"everybody": policy.eval_mode}, evaluator_env, everybody))
        task.use(MultiAgentCollector(cfg, {"everybody": policy.collect_mode}, collector_env, everybody))
        task.use(for_policy("everybody", gae_estimator(cfg, policy.collect_mode)))
        task.use(for_policy("everybody", multistep_trainer(cfg, policy.learn_mode)))
        task.use(CkptSaver({"everybody": policy}, cfg.exp_name, train_freq=1000))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(SPREAD, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
