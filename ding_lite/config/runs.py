"""What every run's configuration holds: its name, its seed, its environments.

Room: ding_lite.config, floor 4. Imports policy and the engine.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from ding_lite.engine import Config, bounded, seed_field
from ding_lite.policy import OnPolicyConfig, PolicyConfig


@dataclasses.dataclass
class EnvConfig(Config):
    """Environments to collect and to evaluate in."""

    id: str = "CartPole-v1"
    """What `gymnasium.make` calls it. Changing it sets stop_value to the threshold that gymnasium has for the new one."""

    collector_env_num: int = bounded(8, low=1, high=100_000)
    """Environments to collect in, stepped together."""

    evaluator_env_num: int = bounded(8, low=1, high=100_000)
    """Environments to evaluate in, stepped together."""

    max_episode_steps: int | None = bounded(None, low=1)
    """Steps after which an episode is truncated; None leaves that to the environment."""

    workers: int = bounded(1, low=1, high=10_000)
    """Into how many pieces the environments to collect in are split, each acting with random numbers of its own."""

    backend: Literal["local", "process"] = "local"
    """Where environments are stepped: "process" gives each piece, and those to evaluate in, a process of its own."""

    restart: bool = False
    """Start a worker process again, where it was, when it is killed, hangs or raises."""

    log_info: tuple[str, ...] = ()
    """Names in the infos of steps whose mean over each episode is logged, as collect/custom_metrics/NAME_mean, _min, _max."""

    n_evaluator_episode: int = bounded(8, low=1, high=1_000_000)
    """Episodes an evaluation."""

    stop_value: float | None = None
    """Mean return of an evaluation that ends the run; None runs to the end."""

    def options(self) -> dict[str, Any]:
        """For `make_envs`: what holds for the environments to collect in and for those to evaluate in."""
        names = ("backend", "restart", "max_episode_steps", "log_info")
        return {name: getattr(self, name) for name in names}

    def __setattr__(self, name: str, value: Any) -> None:
        changed = name == "id" and value != self.__dict__.get("id", value)
        super().__setattr__(name, value)
        if changed:
            self.stop_value = _threshold(self.id)


def _threshold(env_id: str) -> float | None:
    import gymnasium

    try:
        return gymnasium.spec(env_id).reward_threshold
    except gymnasium.error.Error:  # registered later, or never: make_envs() will say
        return None


@dataclasses.dataclass
class LogConfig(Config):
    """What is written of a run, and shown."""

    every_s: float = bounded(2.0, low=0.0, finite=False)
    """Seconds between two rows of metrics; each evaluation has one of its own."""

    show_every_s: float = bounded(2.0, low=0.0, finite=False)
    """Seconds between two looks on the console."""

    tensorboard: bool = False
    """Whether TensorBoard's files are written too."""

    wandb: Literal["disabled", "offline", "online"] = "disabled"
    """Whether Weights & Biases is told too: by files that `wandb sync` sends later, or at once, which wants a key."""

    video_every: int = bounded(0, low=0)
    """Evaluations between two that are filmed; 0 for none."""


@dataclasses.dataclass
class RunConfig(Config):
    """What a script needs to know; `policy` differs from algorithm to algorithm."""

    exp_name: str = "runs/default"
    """Folder of the run: curve, configuration, checkpoints."""

    seed: int = seed_field(0)
    """Of everything random, from 0 to 2**63 - 1. Setting it sets policy.seed as well."""

    max_step: int = bounded(100_000, low=1)
    """Iterations of the loop, at most."""

    async_mode: bool = False
    """Overlap evaluation, collection and training."""

    max_lag: int | None = bounded(None, low=0)
    """Iterations by which the weights that collect are late; None is 1 in asynchronous mode, else 0."""

    env: EnvConfig = dataclasses.field(default_factory=lambda: EnvConfig(stop_value=475.0))
    """Environments."""

    log: LogConfig = dataclasses.field(default_factory=LogConfig)
    """Metrics, console and videos."""

    policy: PolicyConfig = dataclasses.field(default_factory=PolicyConfig)
    """The algorithm."""

    def __post_init__(self) -> None:
        if self.policy.seed is None:
            self.policy.seed = self.seed

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "seed" and "policy" in self.__dict__:
            self.policy.seed = self.seed
        if name == "policy" and self.policy.seed is None:
            self.policy.seed = self.seed

    def verdict(self, value: float) -> int:
        """Say what a run reached, and the exit status for it: 0, unless a stop_value is set and was not reached."""
        target = self.env.stop_value
        reached = target is None or value >= target
        wanted = "" if target is None else f", stop_value {target:g} {'reached' if reached else 'not reached'}"
        print(f"{self.env.id}: mean return {value:.1f} at the last evaluation{wanted}. Everything is in {self.exp_name}/")
        return 0 if reached else 1


@dataclasses.dataclass
class OnPolicyRunConfig(RunConfig):
    """What a script needs to know whose policy learns from fresh rollouts."""

    policy: OnPolicyConfig = dataclasses.field(default_factory=OnPolicyConfig)
    """The algorithm."""
