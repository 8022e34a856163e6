"""Metric evaluators: measure the current policy on a dataset, without environments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, TypeAlias

from ding_lite.config import RunConfig
from ding_lite.datasets import OfflineDataset, open_dataset
from ding_lite.middleware.arguments import RUN_CONFIG, require, require_evaluations, require_mode
from ding_lite.middleware.evaluation_schedules import Evaluation, ScheduledEvaluator
from ding_lite.policy import EvalMode
from ding_lite.rollout.off_policy_metrics import METRIC_FACTORIES

Metric: TypeAlias = "Callable[[EvalMode, OfflineDataset], float | Mapping[str, float]]"
"""A measure of a policy on a dataset: a number, or several by name, of which `value` is the measure and the others are logged.
Higher is better. `policy.forward(obs)` acts with the weights that are evaluated."""


def metric_evaluator(
    cfg: RunConfig,
    policy: EvalMode,
    dataset: OfflineDataset | str | PathLike[str] | Any,
    metric: Metric,
    stop_value: float | None = None,
) -> MetricEvaluator:
    """Measure the policy on a dataset at intervals, for example the accuracy of its actions on episodes it does not learn from.

    It does so when `interaction_evaluator` would evaluate, and in the same way: in the first iteration, then at intervals of
    train_iter, and at the end of the run. Where iterations overlap, it stalls none of them. `CkptSaver` saves the weights with
    the highest value.

    Reads:
        ctx.train_iter, ctx.last_eval_iter; ctx.env_step if the context has it.
    Writes:
        ctx.eval_value, ctx.last_eval_value: the value of the metric.
        ctx.last_eval_iter: train_iter of the weights that were evaluated.
        ctx.eval_weights: the weights that were evaluated, for savers.
        ctx.eval_metrics: the value, as score, the further numbers of the metric, and seconds; if the context has this field.

    Args:
        cfg: uses policy.eval.evaluator.
        policy: policy.eval_mode; acts without exploration.
        dataset: an `OfflineDataset`, or something else that `open_dataset` takes.
        metric: function of the policy's mode and the dataset; returns a number, or numbers by name with "value" among them.
            Higher is better. What an object with `__call__` remembers is saved with the run if it has `state_dict` and
            `load_state_dict`.
        stop_value: value that ends the run; None to run until max_step. cfg.env.stop_value is a return, and not used.

    Raises:
        TypeError: the metric is no function; or, in an iteration, it does not return numbers.
        DatasetError: there is no such dataset, or it is damaged.
    """
    require("metric_evaluator", cfg, "policy.eval.evaluator", RUN_CONFIG)
    require_evaluations("metric_evaluator", cfg)
    require_mode("metric_evaluator", policy, "eval_mode")
    if not callable(metric):
        raise TypeError(
            f"metric_evaluator wants a function metric(policy, dataset) that returns a number, got {metric!r:.60} of type "
            f"{type(metric).__name__}."
        )
    factories: tuple[Any, ...] = METRIC_FACTORIES
    made_by = next((one.__name__ for one in factories if one is metric), None)
    if made_by is not None:
        raise TypeError(
            f"metric_evaluator got {made_by}, which makes a metric: call it, such as metric_evaluator(cfg, policy.eval_mode, "
            f"dataset, {made_by}(0.99))."
        )
    return MetricEvaluator(cfg, policy, open_dataset(dataset), metric, stop_value)


class MetricEvaluator(ScheduledEvaluator):
    """The middleware that `metric_evaluator` returns."""

    _format = ".6g"

    def __init__(
        self, cfg: RunConfig, policy: EvalMode, dataset: OfflineDataset, metric: Metric, stop_value: float | None
    ) -> None:
        super().__init__("metric_evaluator", cfg, [policy], stop_value, f"on the dataset {dataset.name}", measure=metric)
        self._metric, self._dataset = metric, dataset

    def _evaluate(self, counters: dict[str, int], is_stopping: Callable[[], bool] = lambda: False) -> Evaluation:
        metrics, policy = self._metrics, self._policies[0]
        try:
            with metrics.log_time(("time", "evaluate"), reduce="mean"):
                weights = policy.current().get_weights()
                found = _numbers(self._metric(policy, self._dataset), self._metric)
        except BaseException:
            metrics.reset()  # its metrics must not count for the next evaluation
            raise
        value = found.pop("value")
        metrics.log_dict({**found, **counters, "score": value}, reduce="item")
        return Evaluation(value, counters["train_iter"], weights, [metrics.reduce()])


def _numbers(found: Any, metric: Metric) -> dict[str, float]:
    """The result of a metric as numbers by name, with "value" among them."""
    if callable(found):
        name = getattr(metric, "__name__", metric)
        raise TypeError(
            f"the metric {name} returned the function {found!r:.60}, expected a number: if {name} makes a metric, pass the "
            f"result of {name}(...)."
        )
    named = found if isinstance(found, Mapping) else {"value": found}
    numbers: dict[str, float] = {}
    for name, number in named.items():
        try:
            numbers[str(name)] = float(number)
        except (TypeError, ValueError):
            raise TypeError(
                f"the metric {getattr(metric, '__name__', metric)} returned {name} = {number!r:.60}, expected a number."
            ) from None
    if math.isnan(numbers.get("value", 0.0)):
        raise ValueError(f"the metric {getattr(metric, '__name__', metric)} returned NaN, expected a number: higher is better.")
    if "value" not in numbers:
        raise TypeError(
            f"the metric {getattr(metric, '__name__', metric)} returned {', '.join(numbers) or 'nothing'}: return a number, or "
            'numbers by name with "value" among them, the one that counts.'
        )
    return numbers
