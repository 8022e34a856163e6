"""The schedule of epsilon, the probability of random actions while collecting."""

from __future__ import annotations

from collections.abc import Callable

from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import contract
from ding_lite.functional import decayed_value
from ding_lite.middleware.arguments import policy_settings, require, require_settings


def eps_greedy_handler(cfg: RunConfig) -> Callable[[OnlineRLContext], None]:
    """Set the probability of random actions, as a function of the environment steps so far.

    Reads:
        ctx.env_step, ctx.collect_kwargs.
    Writes:
        ctx.collect_kwargs: "eps", a probability.

    Args:
        cfg: uses policy.other.eps: type, start, end and decay (environment steps).
    """
    require("eps_greedy_handler", cfg, "policy.other.eps", "a configuration with policy.other.eps, such as DQNConfig")
    require_settings("eps_greedy_handler", cfg, *(f"policy.other.eps.{name}" for name in ("type", "start", "end", "decay")))
    eps = policy_settings(cfg).other.eps

    @contract(
        reads=("env_step", "collect_kwargs"),
        writes=("collect_kwargs",),
        provides=("collect_kwargs.eps",),
        stage="explore",
    )
    def handle(ctx: OnlineRLContext) -> None:
        ctx.collect_kwargs = {**ctx.collect_kwargs, "eps": decayed_value(eps.start, eps.end, eps.decay, ctx.env_step, eps.type)}

    return handle


def eps_greedy_masker() -> Callable[[OnlineRLContext], None]:
    """Turn off epsilon-greedy actions, for policies that explore in another way.

    Reads:
        ctx.collect_kwargs.
    Writes:
        ctx.collect_kwargs: "eps", -1.0, as in DI-engine.
    """

    @contract(reads=("collect_kwargs",), writes=("collect_kwargs",), provides=("collect_kwargs.eps",), stage="explore")
    def mask(ctx: OnlineRLContext) -> None:
        ctx.collect_kwargs = {**ctx.collect_kwargs, "eps": -1.0}

    return mask
