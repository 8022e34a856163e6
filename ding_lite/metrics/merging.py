"""Merging: collect the statistics of several components by name, and check that they match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ding_lite.metrics.bases import StatsBase
from ding_lite.metrics.paths import Path


def matched(dicts: Sequence[Mapping[Any, Any]], path: Path) -> Iterator[tuple[Path, list[StatsBase]]]:
    """The statistics of the components by name, in order.

    Args:
        dicts: results of `MetricsLogger.reduce()`.
        path: prefix for the names.

    Raises:
        ValueError: a name is a value in one and a prefix in another, or kinds or settings differ.
        TypeError: not a result of `reduce()`.
    """
    names = [*dicts[0]] if dicts else []
    are_alike = [*map(list, dicts)].count(names) == len(dicts)
    for name in names if are_alike else dict.fromkeys(name for one in dicts for name in one):
        found = [one[name] for one in (dicts if are_alike else [it for it in dicts if name in it])]
        kinds = set(map(type, found))
        if kinds == {dict}:
            yield from matched(found, (*path, name))
        elif dict in kinds:
            raise ValueError(
                f"{(*path, name)!r} is a value in one component, and a prefix of others in another: rename one of them."
            )
        else:
            _require_alike((*path, name), found, kinds)
            yield (*path, name), found


def _require_alike(path: Path, found: Sequence[Any], kinds: set[type]) -> None:
    for kind in kinds:
        if StatsBase not in kind.__mro__:  # like issubclass(), which is slow for abstract classes
            raise TypeError(f"{path!r} is of type {kind.__name__}: aggregate() wants results of reduce() without compile=True.")
    first = found[0]
    settings, owner = first.settings, first.owner
    if len(kinds) == 1 and not [one for one in found if one.settings != settings or one.owner != owner]:
        return
    for one in found:
        require_one_owner(path, first, one)
    other = next((other for other in found if describe(other) != describe(first)), None)
    if other is not None:
        raise ValueError(
            f"{path!r} was logged as {describe(first)} and as {describe(other)}: log it with the same settings everywhere."
        )


def require_one_owner(path: Path, one: StatsBase, other: StatsBase) -> None:
    """Raise an error if these statistics have different owners.

    Raises:
        ValueError: the owners differ.
    """
    if one.owner != other.owner and one.owner is not None and other.owner is not None:
        first, second = (it.owner or "a logger without an owner" for it in sorted((one, other), key=_has_no_owner))
        raise ValueError(f"{path!r} is logged by {first}, and also by {second}: take another name there.")


def _has_no_owner(stats: StatsBase) -> bool:
    return not stats.owner


def describe(stats: StatsBase) -> str:
    """Kind and settings as code."""
    settings = "".join(f", {name}={value!r}" for name, value in stats.settings.items() if value is not None)
    return f"reduce={stats.stats_cls_identifier!r}{settings}"
