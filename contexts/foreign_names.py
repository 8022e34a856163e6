"""Fields of DI-engine's contexts, with what to write instead."""

from types import MappingProxyType

_OWN_METRICS = (
    "a middleware of your own appends the result of `MetricsLogger().reduce()`, of ding_lite.metrics, to ctx.learn_metrics. Or "
    'declare a field in a context of your own, and pass `online_logger(cfg, counters=("field",))`.'
)
_EVALUATION = (
    "`ctx.eval_value` is the mean return of an evaluation, and `ctx.eval_metrics` has return and length of its episodes, which "
    "`online_logger(cfg)` writes as evaluate/episode_return_min, _mean and _max."
)

FOREIGN_FIELDS = MappingProxyType(
    {
        **dict.fromkeys(("eval_output", "eval_value_max", "eval_value_min", "eval_value_std"), _EVALUATION),
        "info_for_logging": _OWN_METRICS,
        "wandb_url": 'the run is logged with `cfg.log.wandb = "online"` and `online_logger(cfg)`, which show its address.',
    }
)
"""Fields of both contexts, as code in backticks."""

FOREIGN_OFFLINE_FIELDS = MappingProxyType(
    {**FOREIGN_FIELDS, "trained_env_step": "it is `ctx.train_iter * cfg.policy.learn.batch_size`."}
)
"""Fields of the offline context."""
