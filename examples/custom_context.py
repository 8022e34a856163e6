"""A context and middleware of your own: PPO that also counts how often the cart leaves the middle of its track.

evaluator -> collector -> count_edge (a plain function) -> gae_estimator -> multistep_trainer -> online_logger
-> show (a generator)
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator

from ding_lite import contract, task
from ding_lite.config import PPOConfig, from_command_line
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    StepCollector,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    online_logger,
)
from ding_lite.policy import PPOPolicy


@dataclasses.dataclass
class EdgeContext(OnlineRLContext):
    """The context of online RL with two more fields: one is kept, the other starts at 0 in each iteration."""

    total_edge: int = 0
    """Steps more than 1 unit from the middle since the start. Kept."""

    edge: int = 0
    """The steps among these in this iteration."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.keep("total_edge")


def count_edge(ctx: EdgeContext) -> None:
    """Count the steps near the edge; a plain function is a middleware."""
    assert ctx.trajectories is not None
    ctx.edge = int((ctx.trajectories.batch.obs[..., 0].abs() > 1.0).sum())
    ctx.total_edge += ctx.edge


def show(every: int) -> Callable[[EdgeContext], Iterator[None]]:
    """Print the counts every few iterations; a factory with a contract, so the pipeline can be checked before it runs."""

    @contract(reads_after=("edge", "total_edge", "env_step", "last_eval_value"), stage="record")
    def show_at_the_end(ctx: EdgeContext) -> Iterator[None]:
        yield  # the code below runs after the other middleware of the iteration
        if ctx.total_step % every == 0 or task.finish:
            print(f"step {ctx.env_step:6,}  edge {ctx.edge:3}  in all {ctx.total_edge:5}  last eval {ctx.last_eval_value:.1f}")

    return show_at_the_end


def main(cfg: PPOConfig) -> float:
    env = cfg.env
    collector_env = make_envs(env.id, env.collector_env_num, seed=cfg.seed, workers=env.workers, **env.options())
    evaluator_env = make_envs(env.id, env.evaluator_env_num, seed=cfg.seed + 1, **env.options())
    policy = PPOPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)

    with task.start(
        async_mode=cfg.async_mode, max_lag=cfg.max_lag, resume=cfg.resume, watchdog_s=cfg.watchdog_s, ctx=EdgeContext()
    ):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(count_edge)
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.use(online_logger(cfg))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.use(show(every=5))
        task.describe()
        task.run(max_step=cfg.max_step)
    return task.ctx.last_eval_value


if __name__ == "__main__":
    config = from_command_line(PPOConfig(exp_name="runs/custom_context"), description=__doc__)
    sys.exit(config.report_and_exit_code(main(config)))
