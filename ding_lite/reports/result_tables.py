"""Result tables: a line with the results of each experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ding_lite.reports.curves import bootstrap_band, iqm
from ding_lite.reports.experiments import STEPS, Experiment, goal_metric, return_metric
from ding_lite.reports.labels import NOTHING, readable
from ding_lite.reports.runs import Run
from ding_lite.sinks import format_duration


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    column: str
    """Name of the column."""
    text: str
    aside: str = ""
    """Smaller text after it: an interval, or the number of seeds."""
    explained: str = ""
    """Explanation of the column."""


def summarize(experiment: Experiment, steps: str | None = None, is_mixed: bool = False) -> list[Cell]:
    """The line of an experiment, a cell for each column.

    Args:
        experiment: the experiment.
        steps: the counter for lengths: "env_step", "train_iter" or "total_step". None for `experiment.counter`.
        is_mixed: whether other lines of the table have another counter, so that the cell names it instead of the column.
    """
    runs, steps = experiment.runs, steps or experiment.counter
    returns = [run.columns.values(return_metric(run)) for run in runs]
    length, seconds = _lasts(runs, steps), _lasts(runs, "time_s")
    ends = [(run.columns.last(steps), run.columns.last("time_s")) for run in runs]
    rate = _median(done / spent for done, spent in ends if done and spent)
    rate = round(rate) if rate and rate >= 10 else rate
    word = STEPS[steps]
    column, aside = ("steps", word) if is_mixed else (word, "")
    return [
        Cell(
            "seeds",
            str(len(runs)),
            ", ".join(experiment.seeds),
            "Number of runs that differ only in their seed, and their seeds.",
        ),
        _return_cell("last evaluation", returns, lambda values: values[-1]),
        _return_cell("best evaluation", returns, max),
        _goal(experiment, steps),
        Cell(column, readable(_median(length)), aside, f"{column.capitalize()} of a run: the median of the seeds."),
        Cell("wall time", _duration(_median(seconds)), explained="Wall time of a run: the median of the seeds."),
        Cell("steps a second", readable(rate), explained=f"{column.capitalize()} divided by wall time, including all work."),
    ]


def _return_cell(column: str, returns: Sequence[np.ndarray], choose: Callable[[np.ndarray], float]) -> Cell:
    chosen = np.array([choose(values) for values in returns if len(values)], float)
    which = column.partition(" ")[0]
    explained = f"Interquartile mean over seeds of the {which} mean return or score of each, and its 95% interval."
    if not len(chosen):
        return Cell(column, NOTHING, explained=explained)
    low, high = map(float, bootstrap_band(chosen))
    aside = f"{readable(low)} to {readable(high)}" if len(chosen) > 1 else ""
    return Cell(column, readable(float(iqm(chosen))), aside, explained)


def _goal(experiment: Experiment, steps: str) -> Cell:
    goal, column = experiment.stop_value, "steps to goal"
    explained = "Steps until the first evaluation that reached stop_value: the median of the seeds that reached it."
    if goal is None:
        return Cell(column, NOTHING, explained=explained)
    there = [run for run in experiment.runs if (run.columns.values(goal_metric(run)) >= goal).any()]
    after = _median(taken for run in there if (taken := _first_at(run, goal, steps)) is not None)
    spent = _median(taken for run in there if (taken := _first_at(run, goal, "time_s")) is not None)
    aside = f"{readable(goal)} by {len(there)} of {len(experiment.runs)}"
    aside += "" if spent is None else f", in {_duration(spent)}"
    return Cell(column, NOTHING if after is None else readable(round(after)), aside, explained)


def _first_at(run: Run, goal: float, x: str) -> float | None:
    xs, values = run.series(goal_metric(run), x)
    reached = np.flatnonzero(values >= goal)
    return float(xs[reached[0]]) if len(reached) else None


def _lasts(runs: Sequence[Run], name: str) -> list[float]:
    return [last for run in runs if (last := run.columns.last(name)) is not None]


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(np.median(found)) if found else None


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    return format_duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"
