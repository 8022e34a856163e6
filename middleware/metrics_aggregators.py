"""Metrics aggregators: aggregate the metrics of all components of a run into rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ding_lite.contexts import OfflineRLContext, OnlineRLContext, train_output_of
from ding_lite.data import flatten
from ding_lite.metrics import MetricsLogger, SystemUse
from ding_lite.middleware.outputs import log_outputs
from ding_lite.rollout import EpisodeHistory

_STAGES = {"collect_metrics": "collect", "learn_metrics": "learn", "eval_metrics": "evaluate"}
"""Group of each field of the context."""
COUNTERS = ("env_step", "env_episode", "train_iter", "train_epoch")
"""Fields of the context that are columns of each row, after total_step."""
_TIMES = "time"
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
        self._outputs, self._score = MetricsLogger(), MetricsLogger()
        self._taken: set[str] = set()
        """Columns of the logger whose names were also logged by other components."""
        self._waiting: dict[str, list[Mapping[Any, Any]]] = {field: [] for field in _STAGES}

    def take(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        """Add the metrics of this iteration."""
        for field, waiting in self._waiting.items():
            logged = getattr(ctx, field, None)
            waiting += [one for one in logged if isinstance(one, Mapping)] if isinstance(logged, list) else ()
            if len(waiting) > _WAITING:
                self._aggregate()
        self._episodes.add(getattr(ctx, "finished_episodes", None) or ())
        self._take_output(ctx)
        value = evaluation_of(ctx)
        if value is not None and not getattr(ctx, "eval_metrics", None):  # the evaluator logs no metrics
            self._score.log_value("score", value, reduce="item")
            self._waiting["eval_metrics"].append(self._score.reduce())

    def _take_output(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        """Log the values of ctx.train_output that no learner has logged: a learner of your own may only write this field."""
        outputs = train_output_of(getattr(ctx, "train_output", None))
        known = {name for one in getattr(ctx, "learn_metrics", None) or () for name in one}
        steps = [{name: value for name, value in one.items() if name not in known} for one in outputs]
        if any(steps):
            log_outputs(self._outputs, steps)
            self._waiting["learn_metrics"].append(self._outputs.reduce())

    def row(self, ctx: OnlineRLContext | OfflineRLContext, end: bool = True, time_s: float | None = None) -> dict[str, Any]:
        """The aggregated row, with names joined by "/".

        Args:
            end: whether to start a new cycle after this row; False only looks at the current one.
            time_s: seconds since the start of the run, a column after the counters; None leaves it out.
        """
        self._aggregate()
        logged = self._root.compile(empty=False) if end else self._root.peek(empty=False)
        own = {"collect": self._episodes.summarize(end), **({"system": self._system.look()} if end else {})}
        groups: dict[str, dict[str, Any]] = {}
        for path, value in flatten(logged):
            groups.setdefault(path[0], {})["/".join(map(str, path))] = value
        for path, value in flatten(own):
            group, name = groups.setdefault(path[0], {}), "/".join(map(str, path))
            if name in group:
                self._warn_of_taken(name)
            group[name] = value
        counters = {name: getattr(ctx, name) for name in self._counters if hasattr(ctx, name)}
        times = {} if time_s is None else {"time_s": time_s}
        return {**counters, **times, **{name: value for group in groups.values() for name, value in group.items()}}

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
            waiting.sort(key=_has_no_owner)  # so that owners come first; the sort is stable
            for reduced, key in (([_without_times(one) for one in waiting], _STAGES[field]), (_times(waiting), _TIMES)):
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
        return {"root": self._root.get_state(), "episodes": self._episodes.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._root.set_state(state["root"])
        self._episodes.load_state_dict(state["episodes"])


def evaluation_of(ctx: Any) -> float | None:
    """The value of this iteration's evaluation, or None if there was none."""
    value = getattr(ctx, "eval_value", None)
    return None if value is None or value == -float("inf") else float(value)


def _has_no_owner(reduced: Mapping[Any, Any]) -> bool:
    return not any(getattr(stats, "owner", None) for _, stats in flatten(reduced))


def _without_times(reduced: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return {name: it for name, it in reduced.items() if name != _TIMES} if _has_times(reduced) else reduced


def _times(waiting: Sequence[Mapping[Any, Any]]) -> list[Mapping[Any, Any]]:
    return [one[_TIMES] for one in waiting if _has_times(one)]


def _has_times(reduced: Mapping[Any, Any]) -> bool:
    return isinstance(reduced.get(_TIMES), Mapping)
