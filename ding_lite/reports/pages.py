"""Pages: a report of runs on one page, which needs no network and no other file."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ding_lite import __version__
from ding_lite.basics import require_extra, write_atomically
from ding_lite.reports.attachments import newest_videos, picture, text
from ding_lite.reports.charts import GRID, INK, LEGEND, PALETTE, Panel, draw, inline_svg, style_of
from ding_lite.reports.experiments import RETURNS, STEPS, Experiment, differences, group_runs, metrics_of
from ding_lite.reports.labels import format_value, label_of, readable
from ding_lite.reports.plots import panels_of
from ding_lite.reports.result_tables import summarize
from ding_lite.reports.runs import STEPS_OF_WEIGHTS, find_runs

DARK_PALETTE = ("#4aa8e0", "#ff8f4d", "#2fc79b", "#e79ac4", "#f5b942", "#9ad4f5", "#b0b0b0")
"""PALETTE for a dark page."""

_COUNTERS = ("total_step", "env_step", "env_episode", "train_iter", "train_epoch", "time_s", *STEPS_OF_WEIGHTS)
_LARGE, _SMALL = (500, 300), (300, 190)  # pixels of a chart
_MOST_CHARTS = 60  # small ones
_VIDEOS, _VIDEO_BYTES = 2, 12_000_000  # of a run, and of all runs together


def write_page(
    paths: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    videos_per_run: int = _VIDEOS,
    most_video_bytes: int = _VIDEO_BYTES,
) -> Path:
    """Write the report of all runs in these folders.

    Args:
        paths: folders of runs, or folders that contain runs. Runs that differ only in their seed are one experiment.
        out: the file, which is replaced atomically.
        videos_per_run: number of the newest videos of each run; 0 for none.
        most_video_bytes: maximum size of all videos on the page.

    Returns:
        `out`.

    Raises:
        ReportError: a folder does not exist, or contains no run.
        ImportError: the extra `plot` is not installed.
    """
    require_extra("jinja2", "plot", "a report")
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters.update(sha256=_sha256, format_value=format_value, breakable=_breakable)
    experiments = group_runs(find_runs(paths))
    content = _content(experiments, videos_per_run, most_video_bytes)
    page = environment.get_template("page.html").render(content)
    out = Path(out)
    write_atomically(out, page.encode(errors="replace"))  # a name may hold half a letter
    return out


def _content(experiments: Sequence[Experiment], videos_per_run: int, most_video_bytes: int) -> dict[str, Any]:
    """The variables of the template."""
    runs = [run for experiment in experiments for run in experiment.runs]
    charts = _Charts(experiments)
    counters = dict.fromkeys(experiment.counter for experiment in experiments)
    steps = next((x for x in STEPS if all(experiment.has(x) for experiment in experiments)), next(iter(counters)))
    axes = [x for x in dict.fromkeys((steps, *counters, "time_s")) if any(experiment.has(x) for experiment in experiments)]
    known = [name for name in metrics_of(experiments) if name not in (*_COUNTERS, *RETURNS)]
    others = [name for name in known if not name.startswith("system/")]
    videos, left_out = newest_videos(runs, videos_per_run, most_video_bytes)
    constant = {name: value for name in others if (value := _only_value(experiments, name)) is not None}
    changing = sorted((name for name in others if name not in constant), key=_importance)
    return {
        **_heading(experiments),
        "version": __version__,
        "experiments": experiments,
        "colours": charts.colours,
        "styles": [style_of(place) for place in range(len(experiments))],
        "palettes": {"light": PALETTE, "dark": DARK_PALETTE},
        "summary": [summarize(experiment, is_mixed=len(counters) > 1) for experiment in experiments],
        "axes": [(x, label_of(x)) for x in axes],
        "curves": [chart for x in axes for metric in RETURNS for chart in charts.of(metric, x, _LARGE)],
        "legend_note": LEGEND,
        "others": _by_topic([chart for name in changing[:_MOST_CHARTS] for chart in charts.of(name, steps, _SMALL)]),
        "constant": {name: readable(value) for name, value in constant.items()},
        "not_drawn": changing[_MOST_CHARTS:],
        "system": [chart for name in known if name.startswith("system/") for chart in charts.of(name, "time_s", _SMALL)],
        "pictures": _pictures(experiments),
        "lanes": list(_lanes(experiments)),
        "differences": differences(experiments),
        "videos": videos,
        "left_out": left_out,
    }


def _heading(experiments: Sequence[Experiment]) -> dict[str, str]:
    """Heading, subtitle and title of the page."""
    names = [experiment.name for experiment in experiments]
    heading = " and ".join(names) if len(names) <= 2 else f"{', '.join(names[:-1])} and {names[-1]}"
    if len(names) > 4 or len(heading) > 80:
        heading = f"{len(names)} experiments" if len(names) > 1 else heading
    environments = [env for env in dict.fromkeys(experiment.env for experiment in experiments) if env]
    runs = sum(len(experiment.runs) for experiment in experiments)
    parts = [", ".join(environments), f"{runs} runs" if runs > 1 else "1 run"]
    if len(names) > 1:
        parts.append(f"{len(names)} experiments")
    subtitle = " \u00b7 ".join(filter(None, parts))
    return {"heading": heading, "subtitle": subtitle, "title": f"{heading}: {', '.join(environments) or 'training report'}"}


class _Charts:
    """Makes charts with unique ids."""

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self._experiments = experiments
        self._count = 0
        self.colours = {colour: f"var(--series-{place})" for place, colour in enumerate(PALETTE)}
        self.colours |= {INK: "var(--ink)", GRID: "var(--grid)"}

    def of(self, metric: str, x: str, size: tuple[int, int]) -> Iterator[dict[str, str]]:
        """A chart of this metric for each environment that has data. The first one names experiments that have none over
        `x`."""
        panels = panels_of(self._experiments, metric, x, points=300 if size == _LARGE else 100)
        drawn = {line.name for panel in panels for line in panel.lines}
        missing = [
            experiment.name for experiment in self._experiments if experiment.has(metric) and experiment.name not in drawn
        ]
        for place, panel in enumerate(panels):
            self._count += 1
            figure = draw([panel], size, named=False, seeds=size == _LARGE)
            svg = inline_svg(figure, f"chart{self._count}", self.colours)
            yield {
                "metric": metric,
                "env": panel.title,
                "x": x,
                "svg": svg,
                "description": _description(panel),
                "name": label_of(metric),
                "missing": "" if place or not missing else f"Not drawn, without {label_of(x)}: {', '.join(missing)}.",
            }


def _description(panel: Panel) -> str:
    """A description of the chart for screen readers."""
    where = f" in {panel.title}" if panel.title else ""
    ends = [f"{line.name} ends at {readable(float(line.curve.mean[-1]))}" for line in panel.lines]
    return f"{label_of(panel.metric)} over {label_of(panel.x)}{where}: {', '.join(ends)}."


def _only_value(experiments: Sequence[Experiment], name: str) -> float | None:
    """The value of a metric that is the same in every row of every run, else None."""
    runs = [run for experiment in experiments for run in experiment.runs]
    if any(run.columns.not_finite[name] for run in runs):
        return None
    columns = [values for run in runs if len(values := run.columns.values(name))]
    found = {float(end) for values in columns for end in (values.min(), values.max())}
    return found.pop() if len(found) == 1 else None


def _importance(name: str) -> tuple[int, str]:
    topics = ("learn", "time", "evaluate", "collect")
    topic = name.partition("/")[0]
    return (topics.index(topic) if topic in topics else len(topics), name)


def _by_topic(charts: Sequence[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    topics: dict[str, list[dict[str, str]]] = defaultdict(list)
    for chart in charts:
        topics[chart["metric"].rpartition("/")[0].partition("/")[0] or "other"].append(chart)
    return topics


def _pictures(experiments: Sequence[Experiment]) -> list[dict[str, Any]]:
    """Each distinct picture of a pipeline, with the names of its experiments."""
    shown: dict[str, list[str]] = defaultdict(list)
    for experiment in experiments:
        for address in dict.fromkeys(picture(run, "pipeline.svg") for run in experiment.runs):
            shown[address].append(experiment.name)
    shown.pop("", None)
    return [{"address": address, "names": names} for address, names in shown.items()]


def _lanes(experiments: Sequence[Experiment]) -> Iterator[dict[str, Any]]:
    """For each experiment, the first run in async mode: the picture of its timeline, and the text about its lanes."""
    for experiment in experiments:
        for run in experiment.runs:
            lanes, words = picture(run, "timeline.svg"), text(run, "lanes.txt")
            if lanes or words:
                yield {"name": experiment.name, "run": run.name, "picture": lanes, "words": words}
                break


def _breakable(name: str) -> Any:
    """The name of an option with possible line breaks after each dot, underscore or slash."""
    import markupsafe

    return markupsafe.Markup(re.sub(r"([._/])", r"\1<wbr>", str(markupsafe.escape(name))))


def _sha256(script: str) -> str:
    """The hash of a script for the content security policy of the page, which allows no other scripts."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
