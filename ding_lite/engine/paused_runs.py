"""Paused runs: overlapping lanes after a run that ended by `max_step`, so that the next run of the task can continue there."""

from __future__ import annotations

from ding_lite.engine.token_networks import Network
from ding_lite.pipeline.contexts import Context, family_of, kept_fields


class PausedRun:
    """A run that has ended by `max_step`, and can be continued.

    Args:
        network: its lanes.
        pipeline: identifies its middleware and their wrappers.
        ctx: the context of its last iteration.
    """

    def __init__(self, network: Network, pipeline: list[tuple[int, int]], ctx: Context) -> None:
        self.network, self._pipeline, self._ctx, self._kept = network, pipeline, ctx, kept_fields(ctx)
        self._last = network.lane_states.last_values(ctx)

    def is_followed_by(self, pipeline: list[tuple[int, int]], ctx: Context) -> bool:
        """Whether the next run continues here: it has the same pipeline, and the context is that of the last iteration, or the
        next one.

        Args:
            pipeline: identifies the middleware of the next run.
            ctx: the context of its first iteration, or the one before.
        """
        if self._pipeline != pipeline or family_of(self._ctx) is not family_of(ctx):
            return False
        return ctx.total_step - self._ctx.total_step in (0, 1) and kept_fields(ctx) == self._kept

    def pass_on(self, ctx: Context) -> None:
        """Pass what was changed since the last run to all lanes: kept fields, and the state of leaders."""
        if self.network.lane_states.pass_on(self._last, ctx):
            self._last = self.network.lane_states.last_values(ctx)

    def resumed(self, pipeline: list[tuple[int, int]], ctx: Context) -> Network | None:
        """The network, prepared for the next run; None if that run has another pipeline, or begins with a context that does not
        follow the last one.

        Args:
            pipeline: identifies the middleware of the next run.
            ctx: the context of its first iteration.
        """
        if ctx.total_step != self._ctx.total_step + 1 or not self.is_followed_by(pipeline, ctx):
            return None
        self.pass_on(ctx)
        self.network.go_on(ctx)
        return self.network
