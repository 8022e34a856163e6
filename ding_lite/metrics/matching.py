"""Matching: collect the statistics of several components by name, and check that they match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ding_lite.metrics.paths import Path
from ding_lite.metrics.stats_base import StatsBase


def matched(dicts: Sequence[Mapping[Any, Any]], path: Path) -> Iterator[tuple[Path, Sequence[StatsBase]]]:
    """The statistics of the components by name, in order.

    Args:
        dicts: results of `MetricsLogger.reduce()`.
        path: prefix for the names.

    Raises:
        ValueError: a name is a value in one and a prefix in another, or kinds or settings differ.
        TypeError: not a result of `reduce()`.
    """
    for name, found in _by_name(dicts):
        if _are_alike(found):
            yield (*path, name), found
            continue
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


def _by_name(dicts: Sequence[Mapping[Any, Any]]) -> Iterable[tuple[Any, Sequence[Any]]]:
    """Each name with its values, of the components that have it."""
    names = [*dicts[0]] if dicts else []
    if [*map(list, dicts)].count(names) == len(dicts):  # almost always
        return zip(names, zip(*[one.values() for one in dicts]))
    return [
        (name, [one[name] for one in dicts if name in one]) for name in dict.fromkeys(name for one in dicts for name in one)
    ]


def _are_alike(found: Sequence[Any]) -> bool:
    """Whether all are statistics with the same kind, settings and owner."""
    kind = type(found[0])
    if StatsBase not in kind.__mro__:  # like issubclass(), which is slow for abstract classes
        return False
    settings, owner = found[0].settings, found[0].owner
    for one in found:  # noqa: SIM110  all() takes twice as long
        if one.__class__ is not kind or one.settings != settings or one.owner != owner:
            return False
    return True


def _require_alike(path: Path, found: Sequence[Any], kinds: set[type]) -> None:
    for kind in kinds:
        if StatsBase not in kind.__mro__:
            raise TypeError(f"{path!r} is of type {kind.__name__}: aggregate() wants results of reduce() without compile=True.")
    first = found[0]
    known = next((one for one in found if one.owner is not None), first)
    for one in found:
        require_one_owner(path, known, one)
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
