"""The configuration of a run, with sections for environments, logging and the policy."""

from __future__ import annotations

import copy
import dataclasses
import os
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from ding_lite.basics import (
    Config,
    ConfigError,
    di_engine_settings,
    offline_settings,
    ranged_field,
    require_no_uri,
    seed_field,
    show,
)
from ding_lite.engine import current_task
from ding_lite.policy_base import OnPolicyConfig, PolicyConfig
from ding_lite.ranks import is_first_rank
from ding_lite.run_configs.env_configs import EnvConfig, OfflineEnvConfig, pendulum_envs
from ding_lite.run_configs.foreign_names import FOREIGN_METHODS
from ding_lite.sinks import result_line

ConfigType = TypeVar("ConfigType", bound=Config)


@dataclasses.dataclass
class LogConfig(Config):
    """Logging."""

    every_s: float = ranged_field(2.0, low=0.0, finite=False)
    """Seconds between two rows of metrics. Each evaluation writes an additional row."""

    show_every_s: float = ranged_field(2.0, low=0.0, finite=False)
    """Seconds between two updates of the console."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The lowest level of lines in run.log. "INFO" has the start and end of the run, evaluations, saves and warnings."""

    tensorboard: bool = False
    """Whether to write TensorBoard files too."""

    wandb: Literal["disabled", "offline", "online"] = "disabled"
    """Whether to log to Weights & Biases too: "offline" writes files for `wandb sync`, "online" needs an API key."""

    video_every: int = ranged_field(0, low=0)
    """Record a video of every n-th evaluation; 0 for none."""


@dataclasses.dataclass
class RunConfig(Config):
    """The configuration of a run. Each algorithm has its own subclass, with its own type of `policy`."""

    foreign: ClassVar[Mapping[str, str]] = {**offline_settings.DISTINCT, **FOREIGN_METHODS}
    di_engine: ClassVar[Mapping[str, str]] = {**di_engine_settings.RUN, **offline_settings.SHORT}

    exp_name: str = "runs/default"
    """Folder of the run, for metrics, configuration and checkpoints."""

    seed: int = seed_field(0)
    """Random seed of the run, from 0 to 2**63 - 1. Setting it also sets policy.seed. `dataclasses.replace` does so too, unless
    policy.seed was set to another value, here or in a new policy section that is passed. As after any `dataclasses.replace`,
    both configurations share the policy section until their seeds differ; then the one whose seed was changed gets a copy."""

    max_step: int = ranged_field(100_000, low=1)
    """Maximum number of iterations."""

    async_mode: bool = False
    """Overlap evaluation, collection and training."""

    max_lag: int | None = ranged_field(None, low=0)
    """Iterations by which the weights for collection are late; None means 1 in asynchronous mode, otherwise 0."""

    watchdog_s: float | None = ranged_field(None, low=0.001)
    """Seconds without progress after which the run is ended, with the stacks of all threads; None for no limit."""

    resume: str | None = None
    """Folder of a run to continue, with its configuration, or the URI of its copy; None for a new run."""

    storage_path: str | None = None
    """URI or path to copy the run's folder to after each save, such as "s3://bucket/experiments"; None for nowhere."""

    env: EnvConfig = dataclasses.field(default_factory=lambda: EnvConfig.default(stop_value=475.0))
    """Environments."""

    log: LogConfig = dataclasses.field(default_factory=LogConfig)
    """Logging: metrics, console and videos."""

    policy: PolicyConfig = dataclasses.field(default_factory=PolicyConfig)
    """The algorithm."""

    def __post_init__(self) -> None:
        if self.policy.seed is None:
            self.policy.seed = self.seed

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "exp_name" and isinstance(value, (str, os.PathLike)):
            value = self._checked_folder(value)
        is_made = "policy" not in self.__dict__
        super().__setattr__(name, value)
        if name == "seed" and not is_made:
            if _run_seed_of(self.policy) != self.seed and _others(self.policy, self):
                super().__setattr__("policy", copy.deepcopy(self.policy))
            self.policy.seed = self.seed
            _note_run(self.policy, self)
        if name == "policy":
            self._follow(is_made)

    def _checked_folder(self, value: str | os.PathLike[str]) -> str | os.PathLike[str]:
        """A value for exp_name, with the home folder in place of `~`.

        Raises:
            ConfigError: it is not the name of a folder, or it is a URI.
        """
        if not _names_folder(os.fspath(value)):
            raise ConfigError(
                f"{type(self).__name__}.exp_name = {os.fspath(value)!r} is not the name of a folder: set a folder for the "
                f"files of the run, such as {type(self).exp_name!r}."
            )
        try:
            require_no_uri(value, f"{type(self).__name__}.exp_name")
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return os.path.expanduser(value) if os.fspath(value).startswith("~") else value

    def __setstate__(self, state: dict[str, Any]) -> None:  # of copies and pickles
        self.__dict__.update(state)
        _note_run(self.policy, self)

    def _follow(self, is_made: bool) -> None:
        """Let policy.seed follow the seed of the run, unless the user has set it.

        Args:
            is_made: whether this configuration is being made. A policy section of a run with another seed is copied then.
        """
        followed = _run_seed_of(self.policy)
        if is_made and followed not in (None, self.seed):
            own = copy.deepcopy(self.policy)
            own.seed = None if own.seed == followed else own.seed
            super().__setattr__("policy", own)
        if self.policy.seed is None:
            self.policy.seed = self.seed
        _note_run(self.policy, self, is_made or followed is None)

    @classmethod
    def from_dict(cls: type[ConfigType], values: Mapping[str, Any]) -> ConfigType:
        """The configuration from a result of `to_dict`, or from `config.json`, whose entry `run` is left out."""
        settings = {name: value for name, value in values.items() if name != "run"}
        return super().from_dict(settings)

    def report_and_exit_code(self, value: float) -> int:
        """Print the result of a run, and why it ended. Returns the exit status: 1 if stop_value was not reached, otherwise 0.

        In a data-parallel run, only rank 0 prints.

        Args:
            value: mean return of the last evaluation; minus infinity if there was none.
        """
        task = current_task()
        # Only if the current task produced this value: the script may have run another task than the global one.
        reason = task.end_reason if getattr(task.ctx, "last_eval_value", None) == value else None
        target = self.env.stop_value
        folder = self.exp_name if os.path.isdir(self.exp_name) else None
        if is_first_rank():
            show(result_line(self.env.id, value, target, reason, folder))
        return 0 if target is None or value >= target else 1

    verdict = report_and_exit_code  # its name in earlier versions


class _Run(NamedTuple):
    """What a policy section is a part of. Not an attribute of the section, which has settings only."""

    section: weakref.ref[PolicyConfig]
    seed: int
    owners: list[weakref.ref[RunConfig]]


_runs: dict[int, _Run] = {}
"""By id of a policy section."""


def _note_run(section: PolicyConfig, owner: RunConfig, has_its_seed: bool = True) -> None:
    """Note that this policy section belongs to a configuration of a run, and whether it follows its seed."""
    key, known = id(section), _runs.get(id(section))
    seed = owner.seed if has_its_seed or known is None else known.seed
    owners = [*map(weakref.ref, _others(section, owner)), weakref.ref(owner)]
    _runs[key] = _Run(weakref.ref(section, lambda _: _runs.pop(key, None)), seed, owners)


def _run_seed_of(section: PolicyConfig) -> int | None:
    """The seed of the run that a policy section belongs to; None if it belongs to none."""
    return _runs[id(section)].seed if id(section) in _runs else None


def _others(section: PolicyConfig, owner: RunConfig) -> list[RunConfig]:
    """The other configurations that the policy section belongs to."""
    owners = [it() for it in _runs[id(section)].owners] if id(section) in _runs else []
    return [it for it in owners if it is not None and it is not owner and it.__dict__.get("policy") is section]


def _names_folder(path: str) -> bool:
    return bool(path.strip()) and "\0" not in path


@dataclasses.dataclass
class OnPolicyRunConfig(RunConfig):
    """The configuration of a run with an on-policy algorithm."""

    policy: OnPolicyConfig = dataclasses.field(default_factory=OnPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class PendulumRunConfig(RunConfig):
    """The base of the configurations of DDPG, TD3 and SAC: Pendulum-v1, with at most 5000 iterations."""

    max_step: int = ranged_field(5000, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=pendulum_envs)
    """Environments."""


@dataclasses.dataclass
class OfflineRunConfig(RunConfig):
    """The configuration of a run that learns from a dataset. The environments are for evaluation only."""

    dataset: str | list[str] = "datasets/cartpole_replay"
    """The dataset: its folder; a dataset of Minari, by its folder or id; or an HDF5 file in the layout of D4RL. Several are
    used as one."""

    max_step: int = ranged_field(10_000, low=1)
    """Maximum number of iterations. Each takes one gradient step."""

    env: OfflineEnvConfig = dataclasses.field(default_factory=OfflineEnvConfig.default)
    """Environments, for evaluation."""


@dataclasses.dataclass
class OfflinePendulumRunConfig(OfflineRunConfig):
    """The base of the configurations of CQL, TD3+BC, IQL and AWAC: a dataset of Pendulum-v1."""

    dataset: str | list[str] = "datasets/pendulum_replay"
    """The dataset: its folder; a dataset of Minari, by its folder or id; or an HDF5 file in the layout of D4RL. Several are
    used as one."""

    env: OfflineEnvConfig = dataclasses.field(
        default_factory=lambda: OfflineEnvConfig.default("Pendulum-v1", n_evaluator_episode=16, evaluator_env_num=16)
    )
    """Environments, for evaluation."""
