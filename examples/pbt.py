"""Population-based training of PPO on CartPole-v1, or any environment: --run.env.id. It begins with bad learning rates.

population_stepper -> population_exploiter -> ckpt_saver

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
    population_stepper,
)
from ding_lite.policy import PPOPolicy

RATES = [3e-6, 1e-5, 3e-5, 1e-1]
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


def members(cfg: PBTConfig) -> list[PPOConfig]:
    """The configurations of the members: the learning rates in turn, and seeds that follow each other."""
    configs = []
    for number in range(cfg.num_members):
        changes = {"seed": 100 * cfg.seed + 2 * number, "policy.learn.learning_rate": RATES[number % len(RATES)]}
        configs.append(PPOConfig.from_dict(cfg.run.to_dict()).override(changes))
    return configs


def main(cfg: PBTConfig) -> float:
    population = Population(cfg, ppo, members(cfg), MUTATIONS)
    with task.start(resume=cfg.resume, ctx=PopulationContext()):
        task.use(population_stepper(population))
        task.use(population_exploiter(population))
        task.use(CkptSaver(population, cfg.exp_name, train_freq=1000))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)
    population.close()
    return task.ctx.last_eval_value


if __name__ == "__main__":
    value = main(from_command_line(PBTConfig, description=__doc__))
    print(f"The best score of the last round is {value:g}.")
    sys.exit(0)
