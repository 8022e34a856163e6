"""A curriculum with PPO: the environments become more difficult as soon as the policy masters them.

evaluator -> collector -> curriculum -> gae_estimator -> multistep_trainer -> ckpt_saver

The task is a combination lock: each of twelve cells has one right action out of four, a wrong one ends the episode, and only
the last cell has a reward. Random actions from the first cell succeed once in 17 million episodes. So episodes first start in
the last cell, and one cell earlier whenever 90% of them succeed. Evaluations always start in the first cell.

Opens the lock after 18,944 environment steps (seeds 0, 1 and 2). With --env.env-config distance=12, all episodes start in the
first cell, and evaluations still return 0 after 30,720 steps.
"""

import sys
from collections.abc import Callable

import gymnasium

from ding_lite import contract, task
from ding_lite.config import PPOConfig, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import ChangeableEnvs, make_envs
from ding_lite.middleware import (
    CkptSaver,
    StepCollector,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    online_logger,
)
from ding_lite.policy import PPOPolicy

CODE = (2, 0, 3, 1, 1, 0, 2, 3, 0, 1, 3, 2)
CONFIG = PPOConfig(exp_name="runs/curriculum").override({"env.id": "Lock", "env.stop_value": 1.0})


class Lock(gymnasium.Env[int, int]):
    """A combination lock; episodes start `distance` cells before the end."""

    observation_space, action_space = gymnasium.spaces.Discrete(len(CODE)), gymnasium.spaces.Discrete(4)

    def __init__(self, distance: int = 1) -> None:
        self.distance = distance

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[int, dict]:
        super().reset(seed=seed)
        self.cell = len(CODE) - self.distance
        return self.cell, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        is_right = action == CODE[self.cell]
        is_open = is_right and self.cell == len(CODE) - 1
        if is_right and not is_open:
            self.cell += 1
        return self.cell, float(is_open), is_open or not is_right, False, {"distance": self.distance}


def curriculum(env: ChangeableEnvs, threshold: float = 0.9) -> Callable[[OnlineRLContext], None]:
    """Let episodes start one cell earlier when the mean return of an iteration reaches the threshold."""

    @contract(reads=("finished_episodes",), uses=(env,), stage="process")
    def raise_difficulty(ctx: OnlineRLContext) -> None:
        distance = env.get_attr("distance")[0]
        started = [episode.return_ for episode in ctx.finished_episodes if episode.info["distance"] == distance]
        if distance < len(CODE) and started and sum(started) / len(started) >= threshold:
            env.set_attr("distance", distance + 1)

    return raise_difficulty


def main(cfg: PPOConfig) -> float:
    env = cfg.env
    collector_env = make_envs(Lock, env.collector_env_num, seed=cfg.seed, workers=env.workers, **env.options())
    whole = {**env.options(), "env_config": {**env.env_config, "distance": len(CODE)}}
    evaluator_env = make_envs(Lock, env.evaluator_env_num, seed=cfg.seed + 1, **whole)
    policy = PPOPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)

    with task.start(
        async_mode=cfg.async_mode, max_lag=cfg.max_lag, resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=OnlineRLContext()
    ):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(curriculum(collector_env))
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(CONFIG, description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
