"""Metrics aggregators: aggregate the metrics of all components of a run into rows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ding_lite.contexts import OfflineRLContext, OnlineRLContext, TrainOutput
from ding_lite.contexts.train_outputs import train_output_of
from ding_lite.data import flatten
from ding_lite.metrics import MetricsLogger
from ding_lite.metrics.outputs import Outputs
from ding_lite.metrics.paths import joined
from ding_lite.metrics.stats_base import detached
from ding_lite.metrics.systems import SystemUse
from ding_lite.rollout.episode_statistics import EpisodeHistory

_STAGES = {"collect_metrics": "collect", "learn_metrics": "learn", "eval_metrics": "evaluate"}
"""Group of each field of the context."""
COUNTERS = ("env_step", "env_episode", "train_iter", "train_epoch")
"""Fields of the context that are columns of each row, after total_step."""
_TIMES = "time"
_SAME = 1e-5  # relative difference of two numbers that count as the same
_WAITING = 256  # reductions, after which they are aggregated even without a row, to free memory


class MetricsAggregator:
    """The root of a run's metrics.

    In every iteration, components reduce their metrics into `ctx.collect_metrics`, `ctx.learn_metrics` and `ctx.eval_metrics`.
    This class aggregates them under `collect/`, `learn/` and `evaluate/`, and all values logged under `time` under `time/`.

    Args:
        counters: further fields of the context that are columns of each row.
    """

    def __init__(self, counters: Sequence[str] = ()) -> None:
        self._counters = tuple(dict.fromkeys(("total_step", *counters, *COUNTERS)))
        self._root = MetricsLogger(root=True)
        self._episodes = EpisodeHistory()
        self._system = SystemUse()
        self._outputs, self._compared, self._score = Outputs(MetricsLogger()), Outputs(MetricsLogger()), MetricsLogger()
        self._taken: set[str] = set()
        """Columns of the logger whose names were also logged by other components."""
        self._lost: set[Any] = set()
        """Fields, names in train_output, and types of it, of which a warning has said that they are not logged."""
        self._waiting: dict[str, list[Mapping[Any, Any]]] = {field: [] for field in _STAGES}

    def take(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        """Add the metrics of this iteration."""
        for field, waiting in self._waiting.items():
            waiting += self._logged(field, getattr(ctx, field, None))
            if len(waiting) > _WAITING:
                self._aggregate()
        self._episodes.add(getattr(ctx, "finished_episodes", None) or ())
        output = getattr(ctx, "train_output", None)
        if output is not None and not (isinstance(output, TrainOutput) and output.is_logged):
            self._take_output(output, getattr(ctx, "learn_metrics", None))
        value = evaluation_of(ctx)
        if value is not None and not getattr(ctx, "eval_metrics", None):  # the evaluator logs no metrics
            self._score.log_value("score", value, reduce="item")
            self._waiting["eval_metrics"].append(self._score.reduce())

    def _logged(self, field: str, logged: Any) -> list[Mapping[Any, Any]]:
        """The reduced metrics in a field of the context. Warns once of each field with something else."""
        if logged is None:
            return []
        is_list = isinstance(logged, list)
        entries = logged if is_list else []
        found = [one for one in entries if isinstance(one, Mapping)]
        if field not in self._lost and not (is_list and len(found) == len(entries)):
            self._lost.add(field)
            wrong = next((one for one in entries if not isinstance(one, Mapping)), logged)
            what = f"has a {type(wrong).__name__}" if is_list else f"is a {type(wrong).__name__}"
            warnings.warn(
                f"some metrics are lost: ctx.{field} {what}. Append results of MetricsLogger.reduce() to it: "
                f"ctx.{field}.append(metrics.reduce()).",
                stacklevel=3,
            )
        return found

    def _take_output(self, given: Any, learn_metrics: Any) -> None:
        """Log values of ctx.train_output that no learner has logged: a learner of your own may leave out ctx.learn_metrics."""
        self._require_dicts(given)
        outputs = train_output_of(given)
        logged = self._logged("learn_metrics", learn_metrics)
        known = {name for one in logged for name in one}
        steps = [{name: value for name, value in one.items() if name not in known} for one in outputs]
        if any(steps):
            self._outputs.log(steps, num_steps=outputs.num_steps)
            self._waiting["learn_metrics"].append(self._outputs.metrics.reduce())
        clashing = [{name: it for name, it in one.items() if name in known and (name,) not in self._lost} for one in outputs]
        if any(clashing):
            self._compare(clashing, outputs.num_steps, logged)

    def _require_dicts(self, given: Any) -> None:
        """Warn once of a train_output, or of a part of it, that is no dict and therefore not logged."""
        several = given if isinstance(given, (list, tuple)) else [given]
        for one in several:
            if not isinstance(one, Mapping) and type(one) not in self._lost:
                self._lost.add(type(one))
                what = "ctx.train_output" if one is given else f"an entry of the {type(given).__name__} in ctx.train_output"
                warnings.warn(
                    f"some metrics are lost: {what} is a {type(one).__name__}. Set it to a dict of values by name, or to a "
                    "list of such dicts, one for each gradient step.",
                    stacklevel=4,
                )

    def _compare(
        self,
        outputs: Sequence[Mapping[str, Any]],
        num_steps: Sequence[Mapping[str, int]],
        logged: Sequence[Mapping[Any, Any]],
    ) -> None:
        """Warn once of each name in train_output whose number is not the one that a learner has logged by this name."""
        self._compared.log(outputs, num_steps=num_steps)
        others = [dict(flatten(one)) for one in logged]
        for path, stats in flatten(self._compared.metrics.reduce()):
            found = [one[path] for one in others if path in one]
            if path in self._lost or any(_is_same(stats.peek(), other) for other in found):
                continue
            self._lost.add(path)
            owner = next((stats.owner for stats in found if getattr(stats, "owner", None)), "another component")
            name = "/".join(map(str, path))
            clash = f"{owner} has logged another number by this name" if found else f"{path[0]!r} was logged before"
            warnings.warn(
                f"some metrics are lost: {name!r} in ctx.train_output is not logged, because {clash} in this iteration: use "
                "another name.",
                stacklevel=4,
            )

    def row(self, ctx: OnlineRLContext | OfflineRLContext, end: bool = True, time_s: float | None = None) -> dict[str, Any]:
        """The aggregated row, with names joined by "/".

        Args:
            end: whether to start a new cycle after this row; False only looks at the current one.
            time_s: seconds since the start of the run, a column after the counters; None leaves it out.
        """
        self._aggregate()
        row = {name: getattr(ctx, name) for name in self._counters if hasattr(ctx, name)}
        if time_s is not None:
            row["time_s"] = time_s
        groups: dict[str, dict[str, Any]] = {}
        for path, value in self._root.values_by_path(empty=False, end=end).items():
            group = groups.setdefault(path[0], {})
            if isinstance(value, Mapping):
                group.update({joined(inside): it for inside, it in flatten(value, path)})
            else:
                group[joined(path)] = value
        for name, own in {"collect": self._episodes.summarize(end), **({"system": self._system.look()} if end else {})}.items():
            group = groups.setdefault(name, {})
            for path, value in flatten(own, (name,)):
                if joined(path) in group:
                    self._warn_of_taken(joined(path))
                group[joined(path)] = value
        for group in groups.values():
            row.update(group)
        return row

    def _warn_of_taken(self, name: str) -> None:
        if name not in self._taken:
            self._taken.add(name)
            warnings.warn(
                f"some metrics are lost: {name} is a column of the logger itself, for collected episodes or the system. "
                "Use another name.",
                stacklevel=4,
            )

    def _aggregate(self) -> None:
        for field, waiting in self._waiting.items():
            if not waiting:
                continue
            waiting.sort(key=_has_no_owner)  # so that owners come first; the sort is stable
            others, times = _split_times(waiting)
            for reduced, key in ((others, _STAGES[field]), (times, _TIMES)):
                try:
                    self._root.aggregate(reduced, key=key)
                except (TypeError, ValueError):  # drop only the values that do not fit
                    for one in reduced:
                        self._aggregate_alone(one, key)
            waiting.clear()

    def _aggregate_alone(self, reduced: Mapping[Any, Any], key: str) -> None:
        for (*path, name), stats in flatten(reduced):
            try:
                self._root.aggregate([{name: stats}], key=(key, *path))
            except (TypeError, ValueError) as error:
                warnings.warn(f"some metrics are lost: {error}", stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        """The metrics so far."""
        self._aggregate()
        return {"root": self._root.state_dict(), "episodes": self._episodes.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._root.load_state_dict(state["root"])
        self._episodes.load_state_dict(state["episodes"])


def evaluation_of(ctx: Any) -> float | None:
    """The value of this iteration's evaluation, or None if there was none.

    Raises:
        TypeError: ctx.eval_value is not one number, nor an array or tensor of one.
    """
    value = getattr(ctx, "eval_value", None)
    if value is None:
        return None
    try:
        number = float(detached(value, "ctx.eval_value"))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"ctx.eval_value is {value!r:.80} of type {type(value).__name__}, expected one number, such as the mean return of "
            "an evaluation."
        ) from error
    return None if number == -math.inf else number


def _is_same(number: Any, logged: Any) -> bool:
    """Whether logged statistics give this number, up to rounding."""
    try:
        one, other = float(number), float(MetricsLogger.peek_results(logged))
    except (TypeError, ValueError):  # a list of values, or a mapping
        return False
    return math.isclose(one, other, rel_tol=_SAME) or (math.isnan(one) and math.isnan(other))


def _has_no_owner(reduced: Mapping[Any, Any]) -> bool:
    return all(
        _has_no_owner(found) if isinstance(found, Mapping) else not getattr(found, "owner", None) for found in reduced.values()
    )


def _split_times(waiting: Sequence[Mapping[Any, Any]]) -> tuple[list[Mapping[Any, Any]], list[Mapping[Any, Any]]]:
    """The reduced metrics without those under `time`, and those."""
    others, times = list[Mapping[Any, Any]](), list[Mapping[Any, Any]]()
    for one in waiting:
        if isinstance(found := one.get(_TIMES), Mapping):
            times.append(found)
            one = {name: it for name, it in one.items() if name != _TIMES}
        others.append(one)
    return others, times
