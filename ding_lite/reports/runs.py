"""Runs: the files that a training run has written to its folder. Missing and incomplete files are allowed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ding_lite.basics import did_you_mean
from ding_lite.reports.rows import GrowingFile, MetricColumns, Numbers
from ding_lite.sinks import value_of_json

METRICS, CONFIG = "metrics.jsonl", "config.json"
STEPS_OF_WEIGHTS = ("evaluate/env_step", "evaluate/train_iter")
"""Counters of the weights that an evaluation measured."""


class ReportError(ValueError):
    """Requested data does not exist or cannot be shown."""


@dataclass(frozen=True)
class Run:
    """One training run."""

    folder: Path
    """Folder of the run."""

    config: Mapping[str, Any]
    """The resolved configuration, nested; empty if there is none."""

    columns: MetricColumns
    """Its metrics."""

    notes: tuple[str, ...] = ()
    """Sentences about data that could not be read."""

    @property
    def name(self) -> str:
        """`exp_name` of the configuration, else the folder."""
        name = self.config.get("exp_name")
        return name if isinstance(name, str) and name else str(self.folder)

    def series(self, metric: str, x: str) -> tuple[Numbers, Numbers]:
        """(x, y) of a metric, see `MetricColumns.series`.

        Evaluations are drawn at the x of their weights, because in an asynchronous run their results are logged later.
        """
        own = f"{metric.partition('/')[0]}/{x}"
        return self.columns.series(metric, own if own in STEPS_OF_WEIGHTS and own in self.columns else x)

    def option(self, dotted: str) -> Any:
        """The value of an option such as "env.id", or None."""
        value: Any = self.config
        for name in dotted.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value


def find_runs(paths: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """All runs in these folders. A folder with `metrics.jsonl` is a run; any other is searched for runs.

    Raises:
        ReportError: a folder does not exist, or contains no run.
    """
    if not paths:
        raise ReportError("no folder was given: pass the folder of a run, or a folder that contains runs, such as runs/.")
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        found = list(search(path))
        if not found:
            is_begun = f" It has a {CONFIG}: the run has not written a row yet." if (path / CONFIG).is_file() else ""
            raise ReportError(
                f"{path} is not a run, and contains none: there is no {METRICS} in it or its subfolders, the file that "
                f"online_logger(cfg) and offline_logger(cfg) write.{is_begun}"
            )
        folders.update((folder.resolve(), folder) for folder in found)
    return [load_run(folder) for folder in folders.values()]


def missing(path: Path) -> str:
    """The message for a folder that does not exist, with the nearest name of other folders beside it."""
    beside = [str(one) for one in path.parent.iterdir() if one.is_dir()] if path.parent.is_dir() else []
    return f"there is no folder {path}{did_you_mean(str(path), beside)}"


def search(path: Path) -> Iterator[Path]:
    """The folders of runs, this one or those below it, in the order of their names; links are followed after all folders, but
    not those to a folder around this one."""
    if not path.is_dir():
        if path.exists():
            raise ReportError(f"{path} is a file, expected a folder: pass the folder of this file.")
        raise ReportError(missing(path))
    around = {os.path.realpath(path), *map(str, Path(os.path.realpath(path)).parents)}
    seen: set[str] = set()
    waiting = [str(path)]
    while waiting:
        begin = waiting.pop(0)
        for folder, inner, files in os.walk(begin):
            if (place := os.path.realpath(folder)) in seen:
                inner.clear()
                continue
            seen.add(place)
            inner.sort(key=natural)
            if METRICS in files:
                inner.clear()  # folders in a run belong to it
                yield Path(folder)
            links = [link for name in inner if os.path.islink(link := os.path.join(folder, name))]
            waiting += [link for link in links if os.path.realpath(link) not in around]


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key that compares numbers in names as numbers.

    Example:
        >>> sorted(["dqn_10", "dqn_9"], key=natural)
        ['dqn_9', 'dqn_10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def load_run(folder: Path) -> Run:
    """The run in this folder, with all readable data."""
    notes, columns, tail = [], MetricColumns(), GrowingFile(folder / METRICS)
    while rows := tail.read()[0]:
        columns.take(rows)
    if tail.unreadable:
        notes.append(f"{tail.unreadable} lines of {METRICS} are not rows and were ignored.")
    if not columns.count:
        notes.append(f"{METRICS} has no row yet.")
    if columns.not_finite:
        counts = ", ".join(f"{name} ({count} of {columns.count} rows)" for name, count in columns.not_finite.items())
        notes.append(f"NaN or infinite values, which are not drawn: {counts}.")
    config, problem = read_object(folder / CONFIG)
    config.pop("run", None)  # what is known of the run beside its settings: versions, command line, spaces
    return Run(folder, config, columns, (*notes, problem) if problem else tuple(notes))


def read_object(path: Path) -> tuple[dict[str, Any], str]:
    """The JSON object in a file, and an empty text; or an empty dict, and why it could not be read."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}, f"there is no {path.name}."
    except (ValueError, RecursionError) as error:
        return {}, f"{path.name} cannot be read: {error}."
    return (value_of_json(found), "") if isinstance(found, dict) else ({}, f"{path.name} is not a JSON object.")
