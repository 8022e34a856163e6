"""Population-based training of PPO on CartPole-v1, or any environment: --env.id. It begins with bad learning rates.

population_trainer -> population_exploiter -> ckpt_saver

Every member is a run of PPO: evaluator -> collector -> gae_estimator -> multistep_trainer.
"""

import sys

from ding_lite import task
from ding_lite.config import PBTConfig, PPOConfig, from_command_line
from ding_lite.contexts import PopulationContext
from ding_lite.distributed import Population, Range
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    StepCollector,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    online_logger,
    population_exploiter,
    population_trainer,
)
from ding_lite.policy import PPOPolicy

RATES = [{"policy.learn.learning_rate": rate} for rate in (3e-6, 1e-5, 3e-5, 1e-1)]
MUTATIONS = {
    "policy.learn.learning_rate": Range(1e-6, 1e-1, log=True),
    "policy.learn.entropy_weight": Range(1e-4, 1e-1, log=True),
}


def ppo(cfg: PPOConfig) -> PPOPolicy:
    """Add the middleware of a member, and return its policy."""
    env = cfg.env
    collector_env = make_envs(env.id, env.collector_env_num, seed=cfg.seed, **env.options())
    evaluator_env = make_envs(env.id, env.evaluator_env_num, seed=cfg.seed + 1, **env.options())
    policy = PPOPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)
    task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
    task.use(StepCollector(cfg, policy.collect_mode, collector_env))
    task.use(gae_estimator(cfg, policy.collect_mode))
    task.use(multistep_trainer(cfg, policy.learn_mode))
    return policy


def main(cfg: PBTConfig) -> float:
    settings = cfg.population.override({"exp_name": cfg.exp_name, "seed": cfg.seed})
    population = Population(settings, ppo, cfg.members(RATES), MUTATIONS)
    with task.start(resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=PopulationContext()):
        task.use(population_trainer(population))
        task.use(population_exploiter(population))
        task.use(CkptSaver(population, cfg.exp_name, train_freq=1000))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)
    population.close()
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(PBTConfig, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
