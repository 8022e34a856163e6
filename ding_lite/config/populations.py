"""The configuration of a population."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from ding_lite.basics import Config, ranged_field, seed_field
from ding_lite.policy import PPOConfig, PPOPolicyConfig
from ding_lite.run_configs import LogConfig


@dataclasses.dataclass
class PopulationConfig(Config):
    """Population-based training: several runs beside each other. Worse ones copy weights and settings from better ones."""

    foreign: ClassVar[Mapping[str, str]] = {
        "perturbation_interval": "it is interval, the iterations of each member in a round.",
        "burn_in_period": "it is burn_in, in rounds.",
        "num_samples": "the number of members is num_members.",
        "hyperparam_mutations": "it is an argument of Population, a mapping of settings by dotted name.",
        "custom_explore_fn": "it is an argument of Population.",
        "time_attr": "leave it out: a round has interval iterations of each member.",
    }

    exp_name: str = "runs/population"
    """Folder of the population, for metrics, decisions, configuration and checkpoints. Those of a member are in its
    subfolder `members`."""

    seed: int = seed_field(0)
    """Random seed of the decisions. The members have seeds of their own."""

    max_step: int = ranged_field(20, low=1)
    """Maximum number of rounds."""

    interval: int = ranged_field(10, low=1)
    """Iterations of each member in a round."""

    num_members: int = ranged_field(4, low=1, high=10_000)
    """Number of members."""

    metric: str = "eval_value"
    """The score of a member: a metric of its slice, such as collect/episode_return_mean, or eval_value, its last evaluation in
    the slice."""

    mode: Literal["max", "min"] = "max"
    """Whether a larger or a smaller score is better."""

    quantile_fraction: float = ranged_field(0.25, low=0, high=0.5)
    """Share of the members that copy another one, and share of the members that these choose from."""

    resample_probability: float = ranged_field(0.25, low=0, high=1)
    """Probability that a setting of a member that copies another one is drawn anew, instead of being perturbed."""

    perturbation_factors: list[float] = ranged_field(default_factory=lambda: [1.2, 0.8], low=0, least=1)
    """Factors for perturbed numbers, of which one is drawn."""

    burn_in: int = ranged_field(0, low=0)
    """Rounds before the first member may copy another one."""

    min_members: int = ranged_field(1, low=1)
    """Least number of members that have not failed; with fewer, the run ends with an error."""

    replace_failed: bool = True
    """Replace a failed member by a new one that copies a good member."""

    backend: Literal["local", "process", "ray"] = "local"
    """Where members run: one after another in this process, each in a process of its own, or each on a Ray cluster."""

    restart: bool = False
    """With processes: start a member again that died, hung or raised an error, from its state before this round.
    Three failures in one round are final. On a Ray cluster, six deaths or hangs, or two errors, are final."""

    timeout_s: float = ranged_field(3600.0, low=0.001)
    """With processes: seconds after which a round of a member counts as hung."""

    ray_address: str | None = None
    """For "ray", the cluster, such as "auto" or "host:6379"; None for RAY_ADDRESS, or else a cluster of this machine."""

    num_cpus_per_member: float | None = ranged_field(None, low=0)
    """For "ray", CPUs that a member reserves. None reserves none: it starts where a CPU is free at that time."""

    num_gpus_per_member: float = ranged_field(0.0, low=0)
    """For "ray", GPUs that a member reserves."""

    replay: str | None = None
    """A file decisions.jsonl, whose decisions are taken again instead of new ones; None for new ones."""

    resume: str | None = None
    """Folder of a population to continue, with its configuration, or the URI of its copy; None for a new one."""

    storage_path: str | None = None
    """URI or path to copy the population's folder to after each save, such as "s3://bucket/experiments"; None for nowhere."""

    log: LogConfig = dataclasses.field(default_factory=LogConfig)
    """Logging: metrics and console."""


_PBT = {"learn.epoch_per_collect": 4, "eval.evaluator.eval_freq": 16}


@dataclasses.dataclass
class PBTConfig(PPOConfig):
    """Population-based training of PPO, on CartPole-v1. All members have these settings, and then each its own learning
    rate."""

    unused_settings: ClassVar[Mapping[str, str]] = {
        f"population.{name}": f"set {name} of the whole configuration, such as --{name.replace('_', '-')}."
        for name in ("exp_name", "seed", "max_step", "resume", "storage_path", "log")
    }

    exp_name: str = "runs/pbt"
    """Folder of the population, for metrics, decisions, configuration and checkpoints. Those of a member are in its
    subfolder `members`."""

    max_step: int = ranged_field(30, low=1)
    """Maximum number of rounds. Each has population.interval iterations of every member."""

    policy: PPOPolicyConfig = dataclasses.field(default_factory=lambda: PPOPolicyConfig().override(_PBT))
    """The algorithm."""

    population: PopulationConfig = dataclasses.field(default_factory=lambda: PopulationConfig(interval=4))
    """The population. Its exp_name and seed are those above. So are max_step, resume, storage_path and log: here they have no
    effect."""

    def members(self, changes: Sequence[Mapping[str, Any]]) -> list[PPOConfig]:
        """The configuration of each member: the settings above, with seeds of their own, and without a stop_value.

        Args:
            changes: values by dotted name, for the first members; further members repeat them in order. Empty for none.
        """
        names = [field.name for field in dataclasses.fields(PPOConfig)]
        found = []
        for number in range(self.population.num_members):
            own = {"seed": 100 * self.seed + 2 * number, "resume": None, "env.stop_value": None}
            member = PPOConfig(**{name: copy.deepcopy(getattr(self, name)) for name in names})
            found.append(member.override({**own, **(changes[number % len(changes)] if changes else {})}))
        return found
