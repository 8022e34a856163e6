"""Datasets for offline RL, collected from nothing by our own policies: expert, medium, replay and mixed.

For each task a policy is trained twice, until its evaluation reaches a medium return, and until it reaches that of an expert:

| dataset | content |
| --- | --- |
| TASK_replay | all transitions of the training of the expert, from random actions on |
| TASK_medium | episodes of the medium policy, which explores; on Hopper-v5, by normal noise of 0.1 on greedy actions |
| TASK_expert | episodes of the expert policy, in the same way; on Hopper-v5, with noise of 0.2 |
| TASK_mixed | half of the transitions from each of these two |

    python benchmarks/collect_datasets.py                        # all tasks, into datasets/
    python benchmarks/collect_datasets.py --only cartpole

A dataset that exists is left as it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ding_lite import task
from ding_lite.config import DQNConfig, RunConfig, SACConfig, SACMuJoCoConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.datasets import OfflineDataset
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    interaction_evaluator,
    offline_data_saver,
    online_logger,
)
from ding_lite.policy import DQNPolicy, SACPolicy
from ding_lite.rollout import record_run

KINDS = ("replay", "medium", "expert", "mixed")


@dataclasses.dataclass(frozen=True)
class Source:
    """How the datasets of a task are collected."""

    train: Callable[[Any, Path | None], None]
    """Trains a policy by this configuration, and records its transitions in this folder."""
    config: Callable[[], RunConfig]
    settings: Mapping[str, Any]
    """Changes of the configuration."""
    medium: float
    expert: float
    """Mean returns of an evaluation at which training ends."""
    steps: int
    """Transitions of a dataset, except of replay."""
    eps: float | None = None
    """Probability of random actions, for policies that explore by it."""
    noise_sigma: Mapping[str, float] | None = None
    """By level, the standard deviation of noise on greedy actions, in the range [-1, 1]; None for the exploration of the
    policy."""


def train_dqn(cfg: DQNConfig, record_in: Path | None) -> None:
    envs, evaluator_envs, policy = made(cfg, DQNPolicy)
    buffer_ = ReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)
    with task.start(ctx=OnlineRLContext()):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_envs))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, envs))
        recorded(cfg, record_in)
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(CkptSaver(policy, cfg.exp_name))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)


def train_sac(cfg: SACConfig, record_in: Path | None) -> None:
    envs, evaluator_envs, policy = made(cfg, SACPolicy)
    buffer_ = ReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)
    with task.start(ctx=OnlineRLContext()):
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_envs))
        task.use(StepCollector(cfg, policy.collect_mode, envs, cfg.policy.random_collect_size))
        recorded(cfg, record_in)
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(CkptSaver(policy, cfg.exp_name))
        task.use(online_logger(cfg))
        task.run(max_step=cfg.max_step)


def made(cfg: RunConfig, policy_class: Any) -> Any:
    """The environments for collection and for evaluation, and the policy."""
    env = cfg.env
    envs = make_envs(env.id, env.collector_env_num, seed=cfg.seed, **env.options())
    evaluator_envs = make_envs(env.id, env.evaluator_env_num, seed=cfg.seed + 1, **env.options())
    return envs, evaluator_envs, policy_class(cfg.policy, envs.single_observation_space, envs.single_action_space)


def recorded(cfg: RunConfig, record_in: Path | None) -> None:
    if record_in is not None:
        task.use(offline_data_saver(cfg, record_in))


OFTEN = {"policy.eval.evaluator.eval_freq": 200}
SOURCES = {
    "cartpole": Source(train_dqn, DQNConfig, OFTEN, medium=150.0, expert=500.0, steps=50_000, eps=0.05),
    "pendulum": Source(train_sac, SACConfig, OFTEN, medium=-700.0, expert=-170.0, steps=50_000),
    "hopper": Source(
        train_sac,
        SACMuJoCoConfig,
        {
            "env.id": "Hopper-v5",
            "policy.model.encoder_hidden_size_list": [128, 128],
            "policy.learn.compile": "auto",
            "policy.eval.evaluator.eval_freq": 5000,
        },
        medium=1200.0,
        expert=2800.0,
        steps=200_000,
        # SAC's own noise is squashed by tanh, which moves the mean of its actions, and imitation learns the mean: acting by it,
        # the expert had a return of 1,900, and acting greedily one of 3,146. With noise of 0.1 it ran faster than without it,
        # and had 3,164, so that a policy that acts like it without noise would be behind its data. With 0.2, it falls at times.
        noise_sigma={"medium": 0.1, "expert": 0.2},
    ),
}


def collect(name: str, folder: Path) -> None:
    """Collect the datasets of a task."""
    source = SOURCES[name]
    paths = {kind: folder / f"{name}_{kind}" for kind in KINDS}
    for level in ("medium", "expert"):
        noise = None if source.noise_sigma is None else source.noise_sigma[level]
        acting: dict[str, Any] = {"eps": source.eps} if noise is None else {"deterministic": True, "noise_sigma": noise}
        run = folder / "runs" / f"{name}_{level}"
        wanted = [paths[level], paths["mixed"], *([paths["replay"]] if level == "expert" else [])]
        if all(map(is_there, wanted)):
            continue
        cfg = source.config().override({**source.settings, "exp_name": str(run), "env.stop_value": getattr(source, level)})
        record_in = paths["replay"] if level == "expert" and not is_there(paths["replay"]) else None
        source.train(cfg, record_in)
        for kind, share in ((level, 1.0), ("mixed", 0.5)):
            is_second = kind == "mixed" and level == "expert"
            if is_second or not is_there(paths[kind]):
                record_run(run, paths[kind], int(share * source.steps), append=is_second, **acting)
    for kind, path in paths.items():
        found = OfflineDataset(path)
        print(
            f"{name}_{kind}: {len(found):,} transitions, {found.num_episodes:,} episodes, return: mean "
            f"{found.returns.mean():.1f}, highest {found.returns.max():.1f}",
            flush=True,
        )


def is_there(path: Path) -> bool:
    return (path / "dataset.json").exists()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SOURCES), metavar="TASK", help="just these")
    parser.add_argument("--folder", type=Path, default=Path("datasets"), help="folder of the datasets (default: datasets)")
    arguments = parser.parse_args()
    for name in arguments.only or SOURCES:
        collect(name, arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
