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
        self._kept = {name: getattr(ctx, name, None) for name in kept_fields(ctx)}
        self._prints = {name: fingerprint(value) for name, value in self._kept.items() if not is_scalar(value)}
        """Fingerprints of the mutable ones among the kept fields."""
        self._snapshots = network.lane_states.snapshots()

    def resumed(self, pipeline: list[tuple[int, int]], ctx: Context) -> Network | None:
        """The network, prepared for the next run; None if that run has another pipeline, or begins with a context that does not
        follow the last one.

        Args:
            pipeline: identifies the middleware of the next run.
            ctx: the context of its first iteration.
        """
        if self._pipeline != pipeline or family_of(self._ctx) is not family_of(ctx):
            return None
        if ctx.total_step != self._ctx.total_step + 1 or kept_fields(ctx) != tuple(self._kept):
            return None
        values = {name: getattr(ctx, name, None) for name in self._kept}
        set_since = {name: value for name, value in values.items() if value is not self._kept[name]}
        for name, found in self._prints.items():
            if changed(found, fingerprint(values[name]), private="all") is not None:
                set_since[name] = values[name]
        snapshots = {id(leader): new for leader, old in self._snapshots if not _is_same(new := leader.snapshot(), old)}
        self.network.go_on(ctx, set_since, snapshots)
        return self.network


def _is_same(snapshot: Any, other: Any) -> bool:
    return snapshot is other or changed(fingerprint(snapshot), fingerprint(other), private="all") is None
