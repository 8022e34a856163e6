"""The configuration of each algorithm; what they hold by default solves the task of the example of that name."""

from __future__ import annotations

import dataclasses

from ding_lite.config.runs import EnvConfig, OnPolicyRunConfig, RunConfig
from ding_lite.engine import bounded
from ding_lite.policy import (
    A2CPolicyConfig,
    C51PolicyConfig,
    DDPGPolicyConfig,
    DQNPolicyConfig,
    IMPALAPolicyConfig,
    IQNPolicyConfig,
    PPOPolicyConfig,
    QRDQNPolicyConfig,
    R2D2PolicyConfig,
    RainbowPolicyConfig,
    REINFORCEPolicyConfig,
    SACPolicyConfig,
    TD3PolicyConfig,
)
from ding_lite.rewards import RNDRewardConfig


def pendulum() -> EnvConfig:
    """Pendulum-v1, swung up and held."""
    return EnvConfig.default("Pendulum-v1", n_evaluator_episode=16, evaluator_env_num=16, stop_value=-170.0)


@dataclasses.dataclass
class A2CConfig(OnPolicyRunConfig):
    """A2C."""

    exp_name: str = "runs/a2c"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(3000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    policy: A2CPolicyConfig = dataclasses.field(default_factory=A2CPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class C51Config(RunConfig):
    """C51."""

    exp_name: str = "runs/c51"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(2000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    policy: C51PolicyConfig = dataclasses.field(default_factory=C51PolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class DDPGConfig(RunConfig):
    """DDPG, on Pendulum-v1."""

    exp_name: str = "runs/ddpg"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(5000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=pendulum)
    """Environments."""

    policy: DDPGPolicyConfig = dataclasses.field(default_factory=DDPGPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class DQNConfig(RunConfig):
    """DQN."""

    exp_name: str = "runs/dqn"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(2000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    policy: DQNPolicyConfig = dataclasses.field(default_factory=DQNPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class IMPALAConfig(OnPolicyRunConfig):
    """IMPALA."""

    exp_name: str = "runs/impala"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(1000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    policy: IMPALAPolicyConfig = dataclasses.field(default_factory=IMPALAPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class IQNConfig(RunConfig):
    """IQN."""

    exp_name: str = "runs/iqn"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(2000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    policy: IQNPolicyConfig = dataclasses.field(default_factory=IQNPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class PPOConfig(OnPolicyRunConfig):
    """PPO."""

    exp_name: str = "runs/ppo"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(500, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    policy: PPOPolicyConfig = dataclasses.field(default_factory=PPOPolicyConfig)
    """The algorithm."""


_PPO_LSTM = {
    "model": {"lstm_size": 64, "normalize_obs": True},
    "learn": {"unroll_len": 32, "value_weight": 0.1},
    "collect": {"discount_factor": 0.98, "gae_lambda": 0.8},
    "eval.evaluator.eval_freq": 200,
}


@dataclasses.dataclass
class PPOLSTMConfig(PPOConfig):
    """PPO with an LSTM, on CartPole without velocities."""

    exp_name: str = "runs/ppo_lstm"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(500, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=lambda: EnvConfig.default("CartPoleNoVel-v1", stop_value=475.0))
    """Environments."""

    policy: PPOPolicyConfig = dataclasses.field(default_factory=lambda: PPOPolicyConfig().override(_PPO_LSTM))
    """The algorithm."""


@dataclasses.dataclass
class QRDQNConfig(RunConfig):
    """QR-DQN."""

    exp_name: str = "runs/qrdqn"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(2000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    policy: QRDQNPolicyConfig = dataclasses.field(default_factory=QRDQNPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class R2D2Config(RunConfig):
    """R2D2, on CartPole without velocities."""

    exp_name: str = "runs/r2d2"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(2000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=lambda: EnvConfig.default("CartPoleNoVel-v1", stop_value=475.0))
    """Environments."""

    policy: R2D2PolicyConfig = dataclasses.field(default_factory=R2D2PolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class RainbowConfig(RunConfig):
    """Rainbow."""

    exp_name: str = "runs/rainbow"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(2000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    policy: RainbowPolicyConfig = dataclasses.field(default_factory=RainbowPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class REINFORCEConfig(OnPolicyRunConfig):
    """REINFORCE."""

    exp_name: str = "runs/reinforce"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(1000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_episode episodes."""

    policy: REINFORCEPolicyConfig = dataclasses.field(default_factory=REINFORCEPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class SACConfig(RunConfig):
    """SAC, on Pendulum-v1."""

    exp_name: str = "runs/sac"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(5000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=pendulum)
    """Environments."""

    policy: SACPolicyConfig = dataclasses.field(default_factory=SACPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class TD3Config(RunConfig):
    """TD3, on Pendulum-v1."""

    exp_name: str = "runs/td3"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(5000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=pendulum)
    """Environments."""

    policy: TD3PolicyConfig = dataclasses.field(default_factory=TD3PolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class RNDConfig(DQNConfig):
    """DQN with a bonus for what is new, on MountainCar-v0."""

    exp_name: str = "runs/rnd"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = bounded(18_000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions, and takes one gradient step."""

    env: EnvConfig = dataclasses.field(
        default_factory=lambda: EnvConfig.default(
            "MountainCar-v0", n_evaluator_episode=16, evaluator_env_num=16, stop_value=-120.0
        )
    )
    """Environments."""

    policy: DQNPolicyConfig = dataclasses.field(
        default_factory=lambda: DQNPolicyConfig().override(
            {
                "collect.n_sample": 8,
                "learn": {"batch_size": 128, "target_update_freq": 200},
                "other.eps": {"decay": 10_000, "end": 0.05},
            }
        )
    )
    """The algorithm."""

    reward_model: RNDRewardConfig = dataclasses.field(default_factory=RNDRewardConfig)
    """The bonus."""
