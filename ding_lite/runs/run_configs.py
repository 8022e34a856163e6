"""Configuration of a run: its name, seed and limits; its environments, logs and policy are sections of it."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Literal

from ding_lite.basics import Config, ConfigError, ranged_field, seed_field
from ding_lite.engine import current_task
from ding_lite.policy_base import OnPolicyConfig, PolicyConfig
from ding_lite.runs.end_lines import result_line
from ding_lite.runs.env_configs import EnvConfig, pendulum_envs


@dataclasses.dataclass
class LogConfig(Config):
    """What is written of a run, and shown."""

    every_s: float = ranged_field(2.0, low=0.0, finite=False)
    """Seconds between two rows of metrics; each evaluation has one of its own."""

    show_every_s: float = ranged_field(2.0, low=0.0, finite=False)
    """Seconds between two looks on the console."""

    tensorboard: bool = False
    """Whether TensorBoard's files are written too."""

    wandb: Literal["disabled", "offline", "online"] = "disabled"
    """Whether Weights & Biases is told too: by files that `wandb sync` sends later, or at once, which wants a key."""

    video_every: int = ranged_field(0, low=0)
    """Evaluations between two that are filmed; 0 for none."""


@dataclasses.dataclass
class RunConfig(Config):
    """What a script needs to know; `policy` differs from algorithm to algorithm."""

    exp_name: str = "runs/default"
    """Folder of the run: curve, configuration, checkpoints."""

    seed: int = seed_field(0)
    """Of everything random, from 0 to 2**63 - 1. Setting it sets policy.seed as well."""

    max_step: int = ranged_field(100_000, low=1)
    """Iterations of the loop, at most."""

    async_mode: bool = False
    """Overlap evaluation, collection and training."""

    max_lag: int | None = ranged_field(None, low=0)
    """Iterations by which the weights that collect are late; None is 1 in asynchronous mode, else 0."""

    env: EnvConfig = dataclasses.field(default_factory=lambda: EnvConfig.default(stop_value=475.0))
    """Environments."""

    log: LogConfig = dataclasses.field(default_factory=LogConfig)
    """Metrics, console and videos."""

    policy: PolicyConfig = dataclasses.field(default_factory=PolicyConfig)
    """The algorithm."""

    def __post_init__(self) -> None:
        if self.policy.seed is None:
            self.policy.seed = self.seed

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "exp_name" and isinstance(value, (str, os.PathLike)) and not _names_folder(os.fspath(value)):
            raise ConfigError(
                f"{type(self).__name__}.exp_name = {os.fspath(value)!r} names no folder: give one to write the run to, such as "
                f"{type(self).exp_name!r}."
            )
        super().__setattr__(name, value)
        if name == "seed" and "policy" in self.__dict__:
            self.policy.seed = self.seed
        if name == "policy" and self.policy.seed is None:
            self.policy.seed = self.seed

    def report_and_exit_code(self, value: float) -> int:
        """Say what a run reached and why it ended, and the exit status for it: 0, unless a stop_value is set and was not
        reached.

        Args:
            value: of the last evaluation; minus infinity where there was none.
        """
        task = current_task()
        # Only where it is this value's run: the script may have run another task than the global one.
        reason = task.end_reason if getattr(task.ctx, "last_eval_value", None) == value else None
        target = self.env.stop_value
        folder = self.exp_name if os.path.isdir(self.exp_name) else None
        print(result_line(self.env.id, value, target, reason, folder))
        return 0 if target is None or value >= target else 1

    verdict = report_and_exit_code  # its name in earlier versions


def _names_folder(path: str) -> bool:
    return bool(path.strip()) and "\0" not in path


@dataclasses.dataclass
class OnPolicyRunConfig(RunConfig):
    """What a script needs to know whose policy learns from fresh rollouts."""

    policy: OnPolicyConfig = dataclasses.field(default_factory=OnPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class PendulumRunConfig(RunConfig):
    """What the algorithms for actions in a Box share: Pendulum-v1, and how long they take for it."""

    max_step: int = ranged_field(5000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=pendulum_envs)
    """Environments."""
