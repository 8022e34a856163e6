"""Experiments: groups of runs that differ only in their seed, with distinct names."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ding_lite.reports.curves import Curve, aggregate_seeds
from ding_lite.reports.runs import Run

SCORE = "evaluate/score"
"""Metric that is compared with stop_value, if it is not the mean return."""

RETURNS = ("evaluate/episode_return_mean", SCORE, "collect/episode_return_mean")
"""Default metrics of curves; the first available one is used."""

STEPS = {"env_step": "environment steps", "train_iter": "gradient steps", "total_step": "iterations"}
"""Counters of the lengths of runs, with their names; the first that an experiment has is used."""

_OF_A_SEED = ("seed", "policy.seed", "exp_name", "storage_path", "resume")
_OF_NO_RESULT = (
    *("log.", "watchdog_s", "env.backend", "env.restart", "env.ray_address", "env.num_cpus_per_worker"),
    *("env.num_gpus_per_worker", "env.worker_resources", "env.worker_resources.", "env.vectorization"),
    *("policy.learners.backend", "policy.learners.restart", "policy.learners.ray_address", "policy.learners.timeout_s"),
    *("policy.learners.num_cpus_per_learner", "policy.learners.num_gpus_per_learner"),
    *("policy.learners.learner_resources", "policy.learners.learner_resources."),
    *("backend", "restart", "timeout_s", "ray_address", "num_cpus_per_member", "num_gpus_per_member"),  # of a population
)
"""Options that do not change results, and sections of such options, which end in a dot."""
_WORDS = re.compile(r"([/_\-.\s]*)([^/_\-.\s]+)")  # each word, with the separators before it
_MOST_OPTIONS = 3  # in a name


@dataclass(frozen=True)
class Experiment:
    """One or more runs of one configuration."""

    name: str
    """Unique name in the report."""

    runs: tuple[Run, ...]
    """The runs, in the order of their seeds."""

    options: Mapping[str, Any]
    """Their common configuration by dotted name, without seeds, names and options that do not change results."""

    @property
    def env(self) -> str:
        """The id of the environment, or an empty string."""
        return str(self.options.get("env.id") or "")

    @property
    def stop_value(self) -> float | None:
        """The mean return, or score, of an evaluation that ends a run."""
        value = self.options.get("env.stop_value")
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    @property
    def seeds(self) -> list[str]:
        """The known seeds of the runs, in order."""
        return [str(run.option("seed")) for run in self.runs if run.option("seed") is not None]

    @property
    def counter(self) -> str:
        """The counter of the lengths of its runs: environment steps, or gradient steps of offline runs, else iterations."""
        return next((name for name in STEPS if self.has(name)), "env_step")

    def has(self, metric: str) -> bool:
        """Whether any run has a number of this name."""
        return any(metric in run.columns for run in self.runs)

    def reached(self, run: Run) -> bool:
        """Whether the last evaluation of this run reached its stop_value."""
        last = run.columns.last(goal_metric(run))
        return self.stop_value is not None and last is not None and last >= self.stop_value

    def curve(self, metric: str, x: str, points: int = 300, smooth: int = 1) -> Curve | None:
        """The aggregated curve of a metric. A run that reached its stop_value keeps its last return."""
        held = [metric in RETURNS and self.reached(run) for run in self.runs]
        series = [run.series(metric, x) for run in self.runs]
        return aggregate_seeds(series, held=held, points=points, smooth=smooth)


def return_metric(run: Run) -> str:
    """The metric of evaluations: the mean return if the run has it, else the score."""
    return SCORE if SCORE in run.columns and RETURNS[0] not in run.columns else RETURNS[0]


def goal_metric(run: Run) -> str:
    """The metric that is compared with stop_value: the score if the run has one, else the mean return of evaluations."""
    return SCORE if SCORE in run.columns else RETURNS[0]


def group_runs(runs: Sequence[Run]) -> list[Experiment]:
    """Group runs with the same configuration, except for `seed`, `policy.seed`, `exp_name`, `resume`, and options that do not
    change results, such as `log`.

    A run without a configuration is an experiment by itself. The name of an experiment is the common part of the names of its
    runs, without the folders that all have in common. If two have the same name, options in which they differ are added.
    """
    groups: dict[str, list[Run]] = defaultdict(list)
    for number, run in enumerate(runs):
        key = json.dumps(_shared(run), sort_keys=True) if run.config else f"run {number}"
        groups[key].append(run)
    members = [sorted(group, key=_seed_of) for group in groups.values()]
    options = [_shared(group[0]) for group in members]
    names = _distinct(_without_common_folders([_shared_name(group) for group in members]), options)
    return [Experiment(*parts) for parts in zip(names, map(tuple, members), options)]


def differences(experiments: Sequence[Experiment]) -> dict[str, list[Any]]:
    """The options in which experiments differ, by dotted name: a list with the value of each; None for a missing option."""
    configured = [experiment for experiment in experiments if experiment.options]
    return {
        name: [experiment.options.get(name) for experiment in experiments]
        for name in dict.fromkeys(name for experiment in configured for name in experiment.options)
        if any(experiment.options.get(name) != configured[0].options.get(name) for experiment in configured)
    }


def metrics_of(experiments: Sequence[Experiment]) -> list[str]:
    """The sorted names of all metrics."""
    return sorted({name for experiment in experiments for run in experiment.runs for name in run.columns.names})


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in config.items():
        inner = isinstance(value, Mapping) and value
        options.update(_flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value})
    return options


def _shared(run: Run) -> dict[str, Any]:
    options = _flat(run.config)
    left_out = {*_OF_A_SEED, *_OF_NO_RESULT}
    sections = tuple(name for name in _OF_NO_RESULT if name.endswith("."))
    return {name: it for name, it in options.items() if name not in left_out and not name.startswith(sections)}


def _seed_of(run: Run) -> tuple[bool, float]:
    seed = run.option("seed")
    known = isinstance(seed, (int, float))
    return (not known, float(seed) if known else 0.0)


def _shared_name(runs: Sequence[Run]) -> str:
    """The words of the first name that all names have; for a single run, its name without its seed."""
    if len(runs) > 1:
        others = [{word for _, word in _WORDS.findall(run.name)} for run in runs[1:]]
        dropped = {word for _, word in _WORDS.findall(runs[0].name) if not all(word in other for other in others)}
    else:
        seed = runs[0].option("seed")
        dropped = {str(seed), f"s{seed}", f"seed{seed}"}
    kept = [between + word for between, word in _WORDS.findall(runs[0].name) if word not in {*dropped, "seed"}]
    return "".join(kept).strip("_-. ") or runs[0].name


def _without_common_folders(names: list[str]) -> list[str]:
    parts = [name.split("/") for name in names]
    common = 0
    while all(len(part) > common + 1 and part[common] == parts[0][common] for part in parts):
        common += 1
    return ["/".join(part[common:]) for part in parts]


def _distinct(names: Sequence[str], options: Sequence[Mapping[str, Any]]) -> list[str]:
    """Distinct names: equal ones get the options in which they differ, or a number."""
    described = [name if names.count(name) == 1 else _with_options(place, names, options) for place, name in enumerate(names)]
    return [
        name if described.count(name) == 1 else f"{name} ({described[:place].count(name) + 1})"
        for place, name in enumerate(described)
    ]


def _with_options(place: int, names: Sequence[str], options: Sequence[Mapping[str, Any]]) -> str:
    alike = [other for name, other in zip(names, options) if name == names[place]]
    own = options[place]
    differing = [key for key in own if any(other.get(key) != own[key] for other in alike)][:_MOST_OPTIONS]
    short = [key.rpartition(".")[2] for key in differing]
    spelt = [name if short.count(name) == 1 else key for key, name in zip(differing, short)]
    return " ".join([names[place], *(f"{name}={own[key]}" for name, key in zip(spelt, differing))])
