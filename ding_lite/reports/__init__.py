"""Reports: pages, plots and terminal views, made from the files in folders of runs."""

from ding_lite.reports.curves import Curve, aggregate_seeds, bootstrap_band, iqm
from ding_lite.reports.experiments import Experiment, group_runs
from ding_lite.reports.pages import write_page
from ding_lite.reports.plots import plot_runs
from ding_lite.reports.runs import ReportError, Run, find_runs, load_run
from ding_lite.reports.terminal_views import watch_run

__all__ = [
    "Curve",
    "Experiment",
    "ReportError",
    "Run",
    "aggregate_seeds",
    "bootstrap_band",
    "find_runs",
    "group_runs",
    "iqm",
    "load_run",
    "plot_runs",
    "watch_run",
    "write_page",
]
