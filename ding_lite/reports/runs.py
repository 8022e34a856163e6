"""Runs: what a training run left in its folder, read with patience for what is missing or cut off."""

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

METRICS, CONFIG = "metrics.jsonl", "config.json"


class ReportError(ValueError):
    """Something was asked for that is not there, or cannot be drawn."""


@dataclass(frozen=True)
class Run:
    """One training run."""

    folder: Path
    """Where it is."""

    config: Mapping[str, Any]
    """The resolved configuration, nested; empty where there is none."""

    columns: MetricColumns
    """Its numbers."""

    notes: tuple[str, ...] = ()
    """What could not be read, a sentence each."""

    @property
    def name(self) -> str:
        """What the configuration calls it, else its folder."""
        name = self.config.get("exp_name")
        return name if isinstance(name, str) and name else str(self.folder)

    def series(self, metric: str, x: str) -> tuple[Numbers, Numbers]:
        """(x, y) of a metric, see `MetricColumns.series`.

        An evaluation stands where its weights were, not where its result was known: that of an asynchronous run comes later.
        """
        own = f"{metric.partition('/')[0]}/{x}"
        return self.columns.series(metric, own if own in self.columns else x)

    def option(self, dotted: str) -> Any:
        """The value of an option such as "env.id", or None."""
        value: Any = self.config
        for name in dotted.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return value


def find_runs(paths: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """Every run in these folders: a folder that holds `metrics.jsonl` is a run, any other is searched for runs.

    Raises:
        ReportError: a folder is not there, or there is no run in it.
    """
    if not paths:
        raise ReportError("no folder was named: name the folder of a run, or one that holds several, such as runs/.")
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        found = list(search(path))
        if not found:
            is_begun = f" It has a {CONFIG}: the run has written no row yet." if (path / CONFIG).is_file() else ""
            raise ReportError(
                f"{path} is no run, and none is in it: there is no {METRICS} in it or in a folder below it, which "
                f"online_logger(cfg) and offline_logger(cfg) write.{is_begun}"
            )
        folders.update((folder.resolve(), folder) for folder in found)
    return [load_run(folder) for folder in folders.values()]


def missing(path: Path) -> str:
    """What is said of a folder that is not there, with the one beside it whose name is nearest."""
    beside = [str(one) for one in path.parent.iterdir() if one.is_dir()] if path.parent.is_dir() else []
    return f"there is no folder {path}{did_you_mean(str(path), beside)}"


def search(path: Path) -> Iterator[Path]:
    """The folders of runs, this one or those below it, in the order of their names."""
    if not path.is_dir():
        if path.exists():
            raise ReportError(f"{path} is no folder. It is a file: name the folder that it is in.")
        raise ReportError(missing(path))
    for folder, inner, files in os.walk(path):
        inner.sort(key=natural)
        if METRICS in files:
            inner.clear()  # what lies in a run belongs to it
            yield Path(folder)


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts numbers in names as numbers.

    Example:
        >>> sorted(["dqn_10", "dqn_9"], key=natural)
        ['dqn_9', 'dqn_10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def load_run(folder: Path) -> Run:
    """The run in this folder, with whatever of it can be read."""
    notes, columns, tail = [], MetricColumns(), GrowingFile(folder / METRICS)
    while rows := tail.read()[0]:
        for row in rows:
            columns.take(row)
    if tail.unreadable:
        notes.append(f"{tail.unreadable} lines of {METRICS} are no rows and were left out.")
    if not columns.count:
        notes.append(f"{METRICS} holds no row yet.")
    if columns.not_finite:
        counts = ", ".join(f"{name} ({count} of {columns.count} rows)" for name, count in columns.not_finite.items())
        notes.append(f"NaN or infinite, and left out where values are drawn: {counts}.")
    config, problem = read_object(folder / CONFIG)
    return Run(folder, config, columns, (*notes, problem) if problem else tuple(notes))


def read_object(path: Path) -> tuple[dict[str, Any], str]:
    """The JSON object in a file, and why it is empty where that is not as it should be."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}, f"there is no {path.name}."
    except (ValueError, RecursionError) as error:
        return {}, f"{path.name} cannot be read: {error}."
    return (found, "") if isinstance(found, dict) else ({}, f"{path.name} holds no object.")
