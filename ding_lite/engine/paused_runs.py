"""Paused runs: overlapping lanes after a run that ended by `max_step`, so that the next run of the task can continue there."""

from __future__ import annotations

from typing import Any

from ding_lite.engine.token_networks import Network
from ding_lite.pipeline.contexts import Context, family_of, is_scalar, kept_fields
from ding_lite.pipeline.fingerprints import changed, fingerprint


class PausedRun:
    """A run that has ended by `max_step`, and can be continued.

    Args:
        network: its lanes.
        pipeline: identifies its middleware and their wrappers.
        ctx: the context of its last iteration.
    """

    def __init__(self, network: Network, pipeline: list[tuple[int, int]], ctx: Context) -> None:
        self.network, self._pipeline, self._ctx = network, pipeline, ctx
        self._note(ctx)

    def _note(self, ctx: Context) -> None:
        """Every lane knows the values of this context, and acts on the leaders as they are."""
        self._kept = {name: getattr(ctx, name, None) for name in kept_fields(ctx)}
        self._prints = {name: fingerprint(value) for name, value in self._kept.items() if not is_scalar(value)}
        """Fingerprints of the mutable ones among the kept fields."""
        self._snapshots = self.network.lane_states.snapshots()

    def is_followed_by(self, pipeline: list[tuple[int, int]], ctx: Context) -> bool:
        """Whether the next run continues here: it has the same pipeline, and the context is that of the last iteration, or the
        next one.

        Args:
            pipeline: identifies the middleware of the next run.
            ctx: the context of its first iteration, or the one before.
        """
        if self._pipeline != pipeline or family_of(self._ctx) is not family_of(ctx):
            return False
        return ctx.total_step - self._ctx.total_step in (0, 1) and kept_fields(ctx) == tuple(self._kept)

    def pass_on(self, ctx: Context) -> None:
        """Pass what was changed since the last run to all lanes: kept fields, and the state of leaders."""
        values = {name: getattr(ctx, name, None) for name in self._kept}
        set_since = {name: value for name, value in values.items() if value is not self._kept[name]}
        for name, found in self._prints.items():
            if changed(found, fingerprint(values[name]), private="all") is not None:
                set_since[name] = values[name]
        snapshots = {id(leader): new for leader, old in self._snapshots if not _is_same(new := leader.snapshot(), old)}
        if set_since or snapshots:
            self.network.lane_states.replace(set_since, snapshots)
            self._note(ctx)

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


def _is_same(snapshot: Any, other: Any) -> bool:
    return snapshot is other or changed(fingerprint(snapshot), fingerprint(other), private="all") is None
