"""Plots: one metric of several experiments, as an image file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path

from ding_lite.basics import did_you_mean, printable, warn_caller, write_atomically
from ding_lite.reports.charts import Line, Panel, draw, write
from ding_lite.reports.experiments import RETURNS, SCORE, Experiment, goal_metric, group_runs, metrics_of
from ding_lite.reports.runs import ReportError, find_runs

KINDS = (".png", ".svg", ".pdf")
"""Supported endings of image files."""

_MOST = 12  # names in a message


def plot_runs(
    paths: Sequence[str | os.PathLike[str]],
    metric: str | None = None,
    x: str | None = None,
    out: str | os.PathLike[str] = "curve.png",
    smooth: int = 1,
) -> Path:
    """Plot a metric of all runs in these folders, with one curve for each experiment and one panel for each environment.

    Args:
        paths: folders of runs, or folders that contain runs.
        metric: name of the metric, such as "learn/loss"; None for the mean return of evaluations, or of collection if there are
            none.
        x: metric of the x-axis: "env_step", "time_s", "train_iter" or another counter. None for "env_step", or "train_iter" if
            the runs have no "env_step", as offline runs. A warning names runs without such rows.
        out: the file, ending in .png, .svg or .pdf.
        smooth: number of rows of the moving mean: each point and those before it.

    Returns:
        `out`.

    Raises:
        ReportError: there is no run, no such metric or no data, or the ending of the file or `smooth` is invalid.
        ImportError: the extra `plot` is not installed.
    """
    out = Path(out)
    if out.suffix.lower() not in KINDS:
        raise ReportError(f"--out {out} ends in {out.suffix or 'nothing'!r}, expected {', '.join(KINDS[:-1])} or {KINDS[-1]}.")
    if isinstance(smooth, bool) or not isinstance(smooth, Integral) or smooth < 1:
        raise ReportError(f"--smooth {smooth!r}: expected a whole number of rows, 1 or more; 1 does not smooth.")
    experiments = group_runs(find_runs(paths))
    if x is None:
        x = "train_iter" if {"env_step", "train_iter"} & {*metrics_of(experiments)} == {"train_iter"} else "env_step"
    metric = _known_metric(experiments, metric, x)
    panels = panels_of(experiments, metric, x, smooth=smooth)
    if not panels:
        raise ReportError(f"no row has both {metric} and {x}: choose another --x.")
    runs = [run for experiment in experiments for run in experiment.runs]
    if left := [str(run.folder) for run in runs if not len(run.series(metric, x)[0])]:
        warn_caller(printable(f"{', '.join(left)}: not drawn, because no row has both {metric} and {x}."))
    image = write(draw(panels, size=(600, 340), legend=True), out.suffix.lower()[1:])
    write_atomically(out, image)
    return out


def _known_metric(experiments: Sequence[Experiment], metric: str | None, x: str) -> str:
    """The metric to plot; raises ReportError if the runs do not have it or `x`."""
    known = metrics_of(experiments)
    metric = metric or next((name for name in RETURNS if name in known), RETURNS[0])
    for option, name in (("--metric", metric), ("--x", x)):
        if name not in known:
            raise ReportError(f"{option} {name}: the runs have no such metric{did_you_mean(name, known)}{_listed(known)}")
    return metric


def panels_of(experiments: Sequence[Experiment], metric: str, x: str, points: int = 300, smooth: int = 1) -> list[Panel]:
    """A panel for each environment that has data."""
    panels = []
    environments = dict.fromkeys(experiment.env for experiment in experiments)
    for env in environments:
        inside = [(place, experiment) for place, experiment in enumerate(experiments) if experiment.env == env]
        curves = [(place, experiment, experiment.curve(metric, x, points, smooth)) for place, experiment in inside]
        lines = [Line(experiment.name, curve, place) for place, experiment, curve in curves if curve is not None]
        goals = {_goal(experiment, metric) for _, experiment, curve in curves if curve is not None}
        goal = goals.pop() if len(goals) == 1 else None
        if lines:
            panels.append(Panel(lines, metric, x, env if len(environments) > 1 else "", goal))
    return panels


def _goal(experiment: Experiment, metric: str) -> float | None:
    """The stop_value of an experiment, if it is one for this metric; that of a mean return is also drawn for collection."""
    by_score = {goal_metric(run) == SCORE for run in experiment.runs if metric in run.columns}
    return experiment.stop_value if metric in RETURNS and by_score == {metric == SCORE} else None


def _listed(known: Sequence[str]) -> str:
    more = f" and {len(known) - _MOST} more" if len(known) > _MOST else ""
    return f" They have {', '.join(known[:_MOST])}{more}." if known else " They have no metrics."
