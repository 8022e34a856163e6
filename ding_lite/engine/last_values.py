"""Last values: what lanes know of kept fields and of leaders, to find what was changed between two calls of `run`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from ding_lite.basics.checkpoint_files import plain
from ding_lite.basics.comparisons import same_values
from ding_lite.basics.optional_attributes import has_attribute
from ding_lite.basics.value_types import require_kept_type
from ding_lite.pipeline.contexts import Context, is_scalar
from ding_lite.pipeline.fingerprints import changed, fingerprint


class LastValues:
    """Values of kept fields and snapshots of leaders, as all lanes know them.

    Values are compared, and not objects, because those of a resumed run are copies.

    Args:
        kept: values of the kept fields, by name. Later changes in place are found too: of plain data all of them, of other
            objects those that a fingerprint shows.
        leaders: each leader with a snapshot.
    """

    def __init__(self, kept: Mapping[str, Any], leaders: Iterable[tuple[Any, Any]]) -> None:
        self._copies = {name: copy.deepcopy(value) for name, value in kept.items() if _is_plain(value)}
        self._prints = {name: fingerprint(value) for name, value in kept.items() if name not in self._copies}
        self._leaders = list(leaders)

    def changes(self, ctx: Context, names: Iterable[str]) -> tuple[dict[str, Any], dict[int, Any]]:
        """What was changed since.

        Args:
            ctx: a context.
            names: its kept fields.

        Returns:
            The new values of kept fields by name, and the new snapshots of leaders by id.
        """
        kept = {name: value for name, value in values_of(ctx, names).items() if self._is_new(name, value)}
        found = ((leader, leader.snapshot(), old) for leader, old in self._leaders)
        return kept, {id(leader): new for leader, new, old in found if not _is_same_snapshot(leader, new, old)}

    def _is_new(self, name: str, value: Any) -> bool:
        if name in self._prints:
            return changed(self._prints[name], fingerprint(value), private="all") is not None
        return name not in self._copies or not _is_same(value, self._copies[name])


def values_of(ctx: Context, names: Iterable[str]) -> dict[str, Any]:
    """The values of these fields, without those that have none."""
    return {name: getattr(ctx, name) for name in names if hasattr(ctx, name)}


def _is_plain(value: Any) -> bool:
    """Whether it is data that a file keeps as it is, so that all of it can be compared."""
    if is_scalar(value):
        return True
    try:
        plain(value)
        require_kept_type(value, "the value")
    except (TypeError, ValueError):
        return False
    return True


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values are equal, and of the same types; a NaN is equal to itself."""
    if is_scalar(value) and is_scalar(other):
        return type(value) is type(other) and repr(value) == repr(other)
    # A fingerprint tells 1 from True and a list from a tuple, but it has only a sample of large data.
    return changed(fingerprint(other), fingerprint(value), private="all") is None and same_values(value, other, dtypes=True)


def _is_same_snapshot(leader: Any, new: Any, old: Any) -> bool:
    if new is old or not has_attribute(leader, "snapshot_state"):
        return new is old or changed(fingerprint(old), fingerprint(new), private="all") is None
    # Not by fingerprints, because one of two snapshots may come from a file.
    return same_values(leader.snapshot_state(new), leader.snapshot_state(old), dtypes=True)
