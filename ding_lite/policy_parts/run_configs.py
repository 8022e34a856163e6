"""What every run's configuration holds: its name, its seed, its environments."""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import Any, Literal

from ding_lite.basics import Config, ConfigError, ranged_field, seed_field
from ding_lite.engine import current_task
from ding_lite.policy_base import OnPolicyConfig, PolicyConfig


@dataclasses.dataclass
class EnvConfig(Config):
    """Environments to collect and to evaluate in."""

    id: str = "CartPole-v1"
    """What `gymnasium.make` calls it. Changing it sets stop_value to the threshold that gymnasium has for the new one. An
    evaluator of other environments puts their name here."""

    collector_env_num: int = ranged_field(8, low=1, high=100_000)
    """Environments to collect in, stepped together."""

    evaluator_env_num: int = ranged_field(8, low=1, high=100_000)
    """Environments to evaluate in, stepped together."""

    max_episode_steps: int | None = ranged_field(None, low=1)
    """Steps after which an episode is truncated; None leaves that to the environment."""

    workers: int = ranged_field(1, low=1, high=10_000)
    """Into how many pieces the environments to collect in are split, each acting with random numbers of its own."""

    backend: Literal["local", "process"] = "local"
    """Where environments are stepped: "process" gives each piece, and those to evaluate in, a process of its own."""

    restart: bool = False
    """Start a worker process again, where it was, when it is killed, hangs or raises."""

    log_info: tuple[str, ...] = ()
    """Names in the infos of steps whose mean over each episode is logged, as collect/custom_metrics/NAME_mean, _min, _max."""

    n_evaluator_episode: int = ranged_field(8, low=1, high=1_000_000)
    """Episodes an evaluation."""

    stop_value: float | None = None
    """Mean return of an evaluation that ends the run; None runs to the end. Where nobody sets it, it is that of the
    environments that are evaluated in, if gymnasium has one for them."""

    def __new__(cls, *args: Any, **kwargs: Any) -> EnvConfig:
        self = super().__new__(cls, *args, **kwargs)
        names = [field.name for field in dataclasses.fields(cls)]
        self.__dict__.update(_given=frozenset((*names[: len(args)], *kwargs)), _is_made=False)
        return self

    def __post_init__(self) -> None:
        self.__dict__["_is_made"] = True

    @classmethod
    def default(cls, *args: Any, **kwargs: Any) -> EnvConfig:
        """One whose values count as defaults, not as set by the user."""
        config = cls(*args, **kwargs)
        config.__dict__["_given"] = frozenset()
        return config

    def settle(self, name: str, threshold: float | None) -> None:
        """Take the name and the stop_value from the environments that are evaluated in.

        What the user has set holds, in code or on the command line; what is only the default of another environment does not.
        An id that was set holds unless gymnasium knows it as another environment.

        Args:
            name: what they are called.
            threshold: the mean return at which gymnasium calls them solved; None where it says nothing.
        """
        given: frozenset[str] = self.__dict__["_given"]
        known = _spec(self.id)
        if name == self.id or (known is not None and known.id == name):
            return
        if "id" not in given or known is not None:
            if "id" in given:
                warnings.warn(
                    f"cfg.env.id = {self.id!r} was set, but the environments that are evaluated in are {name}: this name is "
                    "taken. Make them by make_envs(cfg.env.id, ...), or set cfg.env.id to their name.",
                    stacklevel=4,
                )
            super().__setattr__("id", name)
        if "stop_value" not in given:
            super().__setattr__("stop_value", threshold)

    def options(self) -> dict[str, Any]:
        """For `make_envs`: what holds for the environments to collect in and for those to evaluate in."""
        names = ("backend", "restart", "max_episode_steps", "log_info")
        return {name: getattr(self, name) for name in names}

    def __setattr__(self, name: str, value: Any) -> None:
        changed = name == "id" and value != self.__dict__.get("id", value)
        super().__setattr__(name, value)
        if self.__dict__["_is_made"]:
            self.__dict__["_given"] |= {name}
        if changed:
            spec = _spec(self.id)
            super().__setattr__("stop_value", None if spec is None else spec.reward_threshold)
            self.__dict__["_given"] -= {"stop_value"}


def pendulum() -> EnvConfig:
    """Pendulum-v1, swung up and held."""
    return EnvConfig.default("Pendulum-v1", n_evaluator_episode=16, evaluator_env_num=16, stop_value=-170.0)


def _spec(env_id: str) -> Any:
    """What gymnasium knows of this environment, or None: registered later, or never, which make_envs() will say."""
    import gymnasium

    try:
        return gymnasium.spec(env_id)
    except (gymnasium.error.Error, ImportError):
        return None


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
        reached = target is None or value >= target
        found = f"mean return {value:.1f} at the last evaluation" if value > -float("inf") else "no evaluation"
        wanted = "" if target is None else f", stop_value {target:g} {'reached' if reached else 'not reached'}"
        why = "" if reason is None else f" The run ended because {reason}."
        where = f" Everything is in {self.exp_name}/" if os.path.isdir(self.exp_name) else ""
        print(f"{self.env.id}: {found}{wanted}.{why}{where}")
        return 0 if reached else 1

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

    env: EnvConfig = dataclasses.field(default_factory=pendulum)
    """Environments."""
