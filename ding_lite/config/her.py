"""The configurations of hindsight experience replay: DQN on bits to be flipped, and SAC on a robot's arm."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ding_lite.basics import Config, di_engine_settings, ranged_field
from ding_lite.policy import DQNConfig, DQNPolicyConfig, SACConfig, SACPolicyConfig
from ding_lite.run_configs import EnvConfig


@dataclasses.dataclass
class HindsightConfig(Config):
    """Hindsight experience replay; see HERLearner."""

    di_engine: ClassVar[Mapping[str, str]] = di_engine_settings.HINDSIGHT

    strategy: Literal["future", "final", "episode"] = "future"
    """Where new goals are from: the same or a later step of the episode, its last step, or any of its steps."""

    ratio: float = ranged_field(0.8, low=0, high=1)
    """Share of replayed transitions that get a new goal; k / (k + 1) for k new goals per stored one."""


@dataclasses.dataclass
class HERConfig(DQNConfig):
    """DQN with hindsight experience replay, on 15 bits to be flipped."""

    exp_name: str = "runs/her"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(500, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(
        default_factory=lambda: EnvConfig.default(
            "ding_lite/BitFlip-v0",
            evaluator_env_num=25,
            n_evaluator_episode=100,
            env_config={"n_bits": 15},
            stop_value=0.9,
        )
    )
    """Environments. stop_value is a share of episodes that reach their goal."""

    policy: DQNPolicyConfig = dataclasses.field(
        default_factory=lambda: DQNPolicyConfig().override(
            {
                "discount_factor": 0.98,
                "collect.n_sample": 120,
                "model.encoder_hidden_size_list": [256],
                "learn": {
                    "batch_size": 128,
                    "learning_rate": 1e-3,
                    "update_per_collect": 20,
                    "target_update_freq": 1,
                    "target_update_theta": 0.05,
                },
                "eval.evaluator.eval_freq": 250,
                "other": {"replay_buffer_size": 200_000, "eps": {"start": 0.2, "end": 0.02, "decay": 30_000}},
            }
        )
    )
    """The algorithm."""

    her: HindsightConfig = dataclasses.field(default_factory=HindsightConfig)
    """Hindsight experience replay."""


_FETCH: dict[str, Any] = {
    "discount_factor": 0.95,
    "random_collect_size": 1000,
    "collect.n_sample": 64,
    "model.encoder_hidden_size_list": [256, 256],
    "learn": {"batch_size": 256, "learning_rate": 1e-3, "update_per_collect": 64, "learning_starts": 1000},
    "other.replay_buffer_size": 1_000_000,
    "eval.evaluator.eval_freq": 1000,
}


@dataclasses.dataclass
class HERFetchConfig(SACConfig):
    """SAC with hindsight experience replay, on FetchReach-v4 of gymnasium-robotics."""

    exp_name: str = "runs/her_fetch"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(375, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(
        default_factory=lambda: EnvConfig.default("FetchReach-v4", n_evaluator_episode=24, stop_value=0.95)
    )
    """Environments. stop_value is a share of episodes that end at their goal."""

    policy: SACPolicyConfig = dataclasses.field(default_factory=lambda: SACPolicyConfig().override(_FETCH))
    """The algorithm."""

    her: HindsightConfig = dataclasses.field(default_factory=HindsightConfig)
    """Hindsight experience replay."""
