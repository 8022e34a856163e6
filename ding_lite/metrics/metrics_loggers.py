"""`MetricsLogger`: log numbers by name, reduce them in each component, and aggregate them at the root."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import Parameter, signature
from time import perf_counter
from typing import Any

from ding_lite.basics import did_you_mean, foreign_attributes, plain, unflatten
from ding_lite.basics.messages import describe_error
from ding_lite.metrics.deprecated_settings import ABSENT, current_settings, warn_deprecated
from ding_lite.metrics.kinds import DEFAULT_STATS_CLS_LOOKUP
from ding_lite.metrics.matching import describe, matched, require_one_owner
from ding_lite.metrics.paths import RATE, Key, Path, StatsTree, joined, no_key, path_of, rate_of
from ding_lite.metrics.stats_base import StatsBase, at_once
from ding_lite.metrics.throughputs import Throughput

_Asked = tuple[Any, ...]
_COMMON = ("window", "ema_coeff", "percentiles", "with_throughput")
_USUAL: _Asked = (ABSENT, None, None, None, None)
"""The settings of a call without any."""
_UNKNOWN: tuple[Any, _Asked] = None, ()

FOREIGN_ATTRIBUTES = {
    "set_value": '`MetricsLogger().log_value(name, 1.0, reduce="item")` keeps the latest value.',
    "log_n_dicts": "`MetricsLogger().log_dict(settings)` logs a dict, in a loop for several.",
    **dict.fromkeys(
        ("activate_tensor_mode", "deactivate_tensor_mode"), "leave it out: no call waits for a tensor before reduce() does."
    ),
}
"""Methods of RLlib's logger that do not exist here, with what to use instead."""


@foreign_attributes(FOREIGN_ATTRIBUTES)
class MetricsLogger:
    """Logs values by name, and computes their statistics.

    Every component (a worker, a learner) has its own logger. At the end of its task, the component calls `reduce`, which
    returns the statistics and starts a new cycle. Its parent aggregates them into its own logger, and the root reports values.
    Means are over all values of all components.

    The first call for a key fixes its settings. Later calls may omit them; different ones are an error. Only one thread may
    log at a time.

    A logger in the `uses` of a contract is saved with the run.

    Args:
        root: whether this is the root, which keeps lifetime sums.
        owner: description of the component that owns the names. `aggregate` raises an error for values of different owners
            under one name.
        stats_cls_lookup: kinds by their name in `reduce=`; see `DEFAULT_STATS_CLS_LOOKUP`.

    Example:
        >>> workers = [MetricsLogger(), MetricsLogger()]
        >>> for worker, returns in zip(workers, ([1, 2, 3], [10])):
        ...     for value in returns:
        ...         worker.log_value(("episode", "return"), value)
        >>> root = MetricsLogger(root=True)
        >>> root.aggregate([worker.reduce() for worker in workers], key="collect")
        >>> root.compile()
        {'collect': {'episode': {'return': 4.0}}}
    """

    may_lack_state = True
    """A run that an earlier version saved has no state of it, and can be resumed."""

    def __init__(
        self, root: bool = False, stats_cls_lookup: Mapping[str, type[StatsBase]] | None = None, owner: str = ""
    ) -> None:
        self.root, self.owner = root, owner
        self._lookup = dict(DEFAULT_STATS_CLS_LOOKUP if stats_cls_lookup is None else stats_cls_lookup)
        self.reset()

    def reset(self) -> None:
        """Remove all keys and values."""
        self._tree = StatsTree()
        self._stats = self._tree.stats
        self._cycle_begun = perf_counter()
        self._has_warned = False
        self._merged: set[Path] = set()
        self._timed: set[Path] = set()
        self._latest: dict[Path, Sequence[StatsBase]] = {}
        self._unread: dict[Path, Mapping[str, Any]] = {}
        """Saved states of aggregated kinds that this logger does not know, until statistics of this kind arrive."""
        self._known: dict[Key, tuple[Any, _Asked]] = {}
        """By key as given in the call: its statistics, and the last settings."""

    # Logging.

    def log_value(
        self,
        key: Key,
        value: Any,
        *,
        reduce: Any = ABSENT,
        window: float | None = None,
        ema_coeff: float | None = None,
        percentiles: Any = None,
        with_throughput: bool | None = None,
        **settings: Any,
    ) -> None:
        """Log one value.

        Args:
            key: a name, or a path as a tuple of names.
            value: a number, or a tensor of one element, which is not waited for; any object for "item" and "item_series".
            reduce: mean (the default), ema, min, max, sum, lifetime_sum, percentiles, item, item_series, or a
                custom kind.
            window: number of latest values that count; all by default.
            ema_coeff: weight of the newest value for "ema"; 0.01 by default.
            percentiles: percentiles for "percentiles"; see `PercentilesStats`.
            with_throughput: whether to report a sum per second as well.
            **settings: settings of a custom kind.

        Raises:
            ValueError: the kind or a setting is unknown or differs from the first call for the key; or the key is a prefix of
                another one, or has one as prefix.
            TypeError: the value is not a number.
        """
        if percentiles is not None and hasattr(percentiles, "tolist"):
            percentiles = percentiles.tolist()  # an array would be compared number by number
        asked = reduce, window, ema_coeff, percentiles, with_throughput
        stats, known = self._last(key)
        if known != asked or settings:
            stats = self._find(key, asked, settings, "mean")
        stats.push(value)

    def log_values(self, key: Key, values: Sequence[Any], **settings: Any) -> None:
        """`log_value` for each of several values, at little more than the cost of one.

        Args:
            key: as for `log_value`.
            values: a list, an array or a tensor; each row of an array or tensor is a value.
            **settings: as for `log_value`.

        Raises:
            TypeError: a single value, or a dict; see also `log_value`.
        """
        several = at_once(values)
        if not several:
            return
        stats, known = self._last(key)
        if known != _USUAL or settings:
            self.log_value(key, several[0], **settings)
            stats, several = self._stats[path_of(key)], several[1:]
        stats.push_all(several)

    def log_dict(self, value_dict: Mapping[Any, Any], *, key: Key = (), reduce: Any = ABSENT, **settings: Any) -> None:
        """`log_value` for every value of a nested dict, with `key` as prefix."""
        path = path_of(key)
        for name, value in value_dict.items():
            if isinstance(value, Mapping):
                self.log_dict(value, key=(*path, name), reduce=reduce, **settings)
            else:
                self.log_value((*path, name), value, reduce=reduce, **settings)

    def log_time(
        self,
        key: Key,
        *,
        reduce: Any = ABSENT,
        window: float | None = None,
        ema_coeff: float | None = None,
        **settings: Any,
    ) -> Timer:
        """A context manager that logs the seconds that its block takes; by default as an exponential moving average.

        Example:
            >>> logger = MetricsLogger()
            >>> with logger.log_time("block"):
            ...     total = sum(range(100))
            >>> 0 < logger.peek("block") < 1
            True
        """
        asked = reduce, window, ema_coeff, None, None
        stats, known = self._last(key)
        if known != asked or settings:
            stats = self._find(key, asked, settings, "ema")
            self._timed.add(path_of(key))
        return Timer(stats.push)

    # Reading.

    def peek(
        self,
        key: Key | None = None,
        default: Any = ABSENT,
        *,
        compile: bool = True,
        throughput: bool = False,
        latest_merged_only: bool = False,
        empty: bool = True,
    ) -> Any:
        """The statistics since the last `reduce`, without changing them.

        Args:
            key: key of a value, or a prefix for a nested dict of several. None for all.
            default: returned instead of an error if there is no such key.
            compile: False for a list of values.
            throughput: return the throughput of a sum, which must be logged `with_throughput=True`.
            latest_merged_only: only the values of the last `aggregate`.
            empty: whether to include keys without values since the last `reduce`.

        Raises:
            KeyError: there is no such key.
            ValueError: throughput is not logged; or `latest_merged_only` for a value that was logged here.
        """
        path = () if key is None else path_of(key)
        if path in self._stats:
            return self._look(path, compile, throughput, latest_merged_only)()
        if key is not None and path not in self._tree:
            if default is not ABSENT:
                return default
            names = ["/".join(map(str, there)) for there in self._stats]
            raise KeyError(f"nothing was logged as {key!r}{did_you_mean('/'.join(map(str, path)), names)}")
        inside = self._tree.under(path)
        if not empty:
            inside = {there: stats for there, stats in inside.items() if not stats.is_empty}
        if throughput:
            inside = {there: stats for there, stats in inside.items() if getattr(stats, "clock", None) is not None}
        looks = {there: self._look(there, compile, throughput, latest_merged_only) for there in inside}
        return unflatten({there[len(path) :]: self._guarded(there, look) for there, look in looks.items()})

    def _look(self, path: Path, compile: bool, throughput: bool, latest_merged_only: bool) -> Callable[[], Any]:
        """A function that returns the value. The key and the options are checked before it is called."""
        stats = self._stats[path]
        if throughput:
            clock = getattr(stats, "clock", None)
            if clock is None:
                raise ValueError(f"{path!r} has no throughput: log it with reduce='sum', with_throughput=True.")
            return lambda: clock.rate(stats.peek())
        if latest_merged_only:
            if path not in self._merged:
                raise ValueError(f"latest_merged_only: {path!r} was logged here, not aggregated.")
            stats = self._made(stats)
            if path in self._latest:
                stats.merge(self._latest[path])
        return partial(stats.peek, compile=compile)

    @staticmethod
    def peek_results(results: Any) -> Any:
        """The result of `reduce()` with values instead of statistics."""
        if isinstance(results, Mapping):
            return {name: MetricsLogger.peek_results(inside) for name, inside in results.items()}
        return results.peek() if isinstance(results, StatsBase) else results

    def __contains__(self, key: Key) -> bool:
        return path_of(key) in self._tree

    # Reducing and aggregating.

    def reduce(self, compile: bool = False) -> dict[Any, Any]:
        """End the cycle, and start the next.

        Args:
            compile: whether to return plain values, see `compile`; else non-empty statistics for `aggregate` of another logger.
        """
        if compile:
            return self.compile()
        self._latest = {}
        handed: dict[Path, StatsBase] = {}
        for path, stats in self._stats.items():
            is_empty, reduced = stats.is_empty, stats.reduce(compile=False)
            if not is_empty:
                handed[path] = reduced
        self._cycle_begun = perf_counter()
        return dict(unflatten(handed)) if handed else {}

    def compile(self, empty: bool = True) -> dict[Any, Any]:
        """End the cycle, and return all values in nested dicts; sums `with_throughput` also as `NAME_throughput`, unless
        that name is taken. The first cycle begins when the logger is created, or when its state is restored.

        Args:
            empty: whether to include keys without values in this cycle.
        """
        return dict(unflatten(self.values_by_path(empty)))

    def values_by_path(self, empty: bool = True, end: bool = True) -> dict[Path, Any]:
        """`compile` with the path of each value instead of nested dicts; with `end=False` the same of `peek`, without
        throughputs."""
        values: dict[Path, Any] = {}
        for path, stats in self._stats.items():
            is_wanted = empty or not stats.is_empty
            try:
                value = stats.reduce() if end else stats.peek() if is_wanted else None
            except Exception as error:  # noqa: BLE001  a custom kind may raise anything
                value = self._lost(path, error)
                if end:
                    stats.clear()
            if not is_wanted:
                continue
            values[path] = value
            if end and (clock := getattr(stats, "clock", None)) is not None:
                rate = rate_of(path)
                if joined(rate) not in self._tree.written and rate not in self._tree:
                    values[rate] = clock.of_cycle(stats.peek())
        if end:
            self._latest, self._cycle_begun = {}, perf_counter()
        return values

    def aggregate(self, stats_dicts: Sequence[Mapping[Any, Any]], *, key: Key = (), as_own: bool = False) -> None:
        """Merge the reduced statistics of other loggers, in this order.

        Args:
            stats_dicts: results of their `reduce()`.
            key: prefix for the names.
            as_own: whether they count as logged here, because the others work in place of this process.

        Raises:
            ValueError: kinds or settings under one name differ, or a value was logged here under this name. Then nothing is
                merged.
            TypeError: not a result of `reduce()`.
        """
        stats_dicts = list(stats_dicts)
        together = list(matched([one for one in stats_dicts if one], path_of(key)))
        new = {path: found[0] for path, found in together}
        added = StatsTree()
        for path, stats in new.items():
            self._require_mergeable(path, stats, as_own)
            if path not in self._stats:
                added.add(path, stats)  # raises ValueError if two new names clash
            self._require_own_rate(path, stats, new)
        self._latest = {}
        places = {id(it): place for place, one in enumerate(stats_dicts) for it in _statistics_in(one)} if as_own else {}
        for path, found in together:
            self._merge(path, found, [places[id(it)] for it in found] if as_own else None)

    def merge_and_log_n_dicts(self, stats_dicts: Sequence[Mapping[Any, Any]], *, key: Key = ()) -> None:
        """An earlier name of `aggregate`."""
        warn_deprecated("merge_and_log_n_dicts()", "aggregate()", stacklevel=3)
        self.aggregate(stats_dicts, key=key)

    def _require_mergeable(self, path: Path, incoming: StatsBase, as_own: bool) -> None:
        stats = self._stats.get(path)
        if stats is None:
            self._tree.require_free(path)
        elif path not in self._merged and not as_own:
            raise ValueError(f"{path!r} was logged here, and cannot be aggregated too: pass aggregate() another key=.")
        elif type(stats) is not type(incoming) or stats.settings != incoming.settings:
            raise ValueError(
                f"{path!r} was first aggregated as {describe(stats)}, now as {describe(incoming)}: log it with the same "
                "settings."
            )
        elif stats.owner != incoming.owner:
            require_one_owner(path, stats, incoming)

    def _require_own_rate(self, path: Path, incoming: StatsBase, new: Mapping[Path, StatsBase]) -> None:
        """Refuse to merge a value that has the name of another owner's throughput, or the throughput."""
        name = path[-1]
        if getattr(incoming, "clock", None) is not None:
            rate = rate_of(path)
            other = new.get(rate) or self._stats.get(rate)
            if other is not None:
                require_one_owner(rate, incoming, other)
        elif isinstance(name, str) and name.endswith(RATE):
            base = (*path[:-1], name.removesuffix(RATE))
            counted = new.get(base) or self._stats.get(base)
            if counted is not None and getattr(counted, "clock", None) is not None:
                require_one_owner(path, incoming, counted)

    def _merge(self, path: Path, found: Sequence[Any], places: Sequence[int] | None) -> None:
        """Merge the statistics of several components, or of those at these places that work in place of this one."""
        stats = self._stats.get(path)
        if stats is None:
            stats = self._tree.add(path, self._continued(path, self._made(found[0])))
            if places is None:
                self._merged.add(path)
        stats.owner = found[0].owner
        self._latest[path] = found
        self._guarded(path, partial(stats.merge, found) if places is None else partial(stats.merge_own, found, places))

    def _continued(self, path: Path, stats: StatsBase) -> StatsBase:
        """New statistics, with the saved state that waits for their kind and settings, if there is one."""
        row = self._unread.pop(path, None)
        if row is not None and row["kind"] == stats.stats_cls_identifier and row["settings"] == stats.settings:
            stats.set_state(row["state"])
        return stats

    def _guarded(self, path: Path, call: Callable[[], Any]) -> Any:
        """The result of the call, or NaN if it raises, so that one bad value does not affect the others."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001  a custom kind may raise anything
            return self._lost(path, error)

    def _lost(self, path: Path, error: Exception) -> float:
        """NaN for a value that cannot be computed, with a warning."""
        kind = type(self._stats[path]).__name__
        warnings.warn(f"the value of {path!r} is lost, because {kind} raised {describe_error(error)}", stacklevel=4)
        return math.nan

    # Deleting, saving and loading.

    def delete(self, *path: str | int, key_error: bool = True) -> None:
        """Remove the value of this key, or all values under this prefix.

        Raises:
            KeyError: there is no such key, and `key_error` is true.
        """
        gone = self._tree.under(path)
        if not gone and key_error:
            raise KeyError(f"nothing was logged as {path!r}.")
        self._unread = {there: row for there, row in self._unread.items() if there[: len(path)] != path}
        for there in gone:
            self._tree.remove(there)
            self._merged.discard(there)
            self._latest.pop(there, None)
        self._known.clear()

    def get_state(self) -> dict[str, Any]:
        """The state for `set_state`."""
        return {
            "stats": [
                {
                    "path": list(path),
                    "kind": stats.stats_cls_identifier,
                    "settings": dict(stats.settings),
                    "is_merged": path in self._merged,
                    "state": stats.get_state(),
                }
                for path, stats in self._stats.items()
            ]
            + [dict(row) for path, row in self._unread.items() if self._tree.is_free(path)]
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, and discard the values logged here. An aggregated value of a custom kind appears again when
        the next one is aggregated, if this logger does not know its kind.

        Raises:
            ValueError: a value was logged here with a kind that this logger does not know.
        """
        self.reset()
        for row in state["stats"]:
            path = tuple(row["path"])
            if row["is_merged"] and row["kind"] not in self._lookup:
                self._unread[path] = row
                continue
            stats = self._tree.add(path, self._new(path, row["kind"], row["settings"]))
            stats.owner = None
            stats.set_state(row["state"])
            if row["is_merged"]:
                self._merged.add(path)

    def state_dict(self) -> dict[str, Any]:
        """The state for `load_state_dict`: that of `get_state`, without keys whose values a checkpoint cannot hold, such as
        objects with `reduce="item"`; a warning names these."""
        rows, lost = [], []
        for row in self.get_state()["stats"]:
            try:
                plain(row)
                rows.append(row)
            except (TypeError, ValueError) as error:
                lost.append(f"{'/'.join(map(str, row['path']))} ({error})")
        if lost and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"a MetricsLogger that is saved with the run has values that a checkpoint cannot hold, so a resumed run begins "
                f"without them: {'; '.join(lost)}. Log numbers, arrays or tensors, or call reduce() in each iteration.",
                stacklevel=2,
            )
        return {"stats": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, as `set_state` does."""
        self.set_state(state)

    def state_with_values(self) -> list[Any]:
        """The state without times, and without keys that have no values, as most have none after `reduce`."""
        counted = [(path, stats) for path, stats in self._stats.items() if path not in self._timed]
        rows = [(path, stats.get_state(), self._made(stats).get_state()) for path, stats in counted]
        return [(path, state) for path, state, empty in rows if repr(state) != repr(empty)]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}}  # a cache

    # Statistics by key.

    def _find(self, key: Key, asked: _Asked, settings: dict[str, Any], usual: str) -> StatsBase:
        """The statistics of this key; created if there are none."""
        path, (reduce, *common) = path_of(key), asked
        kind, given = current_settings(
            reduce, {**{name: it for name, it in zip(_COMMON, common) if it is not None}, **settings}
        )
        stats = self._stats.get(path)
        if stats is None:
            stats = self._tree.add(path, self._new(path, kind or usual, given))
        elif path in self._merged:
            raise ValueError(f"{key!r} is aggregated from other loggers, and cannot be logged here too: take another name.")
        else:
            self._require_same(path, stats, kind, given)
        if not settings:
            self._known[key] = stats, asked
        return stats

    def _last(self, key: Key) -> tuple[Any, _Asked]:
        """The statistics of a key as given in an earlier call, and the settings of that call."""
        try:
            return self._known.get(key, _UNKNOWN)
        except TypeError:
            raise no_key(key) from None

    def _require_same(self, path: Path, stats: StatsBase, kind: str | None, given: dict[str, Any]) -> None:
        if kind is not None and self._lookup.get(kind) is not type(stats):
            self._kind(path, kind)
            raise ValueError(f"{path!r} was first logged as {describe(stats)}, now with reduce={kind!r}: take another name.")
        if given:
            new = self._new(path, stats.stats_cls_identifier, {**stats.settings, **given})
            if new.settings != stats.settings:
                raise ValueError(f"{path!r} was first logged as {describe(stats)}, now as {describe(new)}: take another name.")

    def _kind(self, path: Path, kind: str) -> type[StatsBase]:
        if not isinstance(kind, str) or kind not in self._lookup:
            hint = did_you_mean(str(kind), self._lookup)
            if kind in ("median", "quantile") and "percentiles" in self._lookup:
                hint = ": a median is reduce='percentiles', percentiles=[50]."
            raise ValueError(f"{path!r}: unknown reduce={kind!r}{hint} Use one of {', '.join(self._lookup)}.")
        return self._lookup[kind]

    def _new(self, path: Path, kind: str, settings: dict[str, Any]) -> StatsBase:
        cls = self._kind(path, kind)
        self._require_known(path, kind, settings)
        try:
            stats = cls(**settings)
        except TypeError as error:
            if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
                raise TypeError(
                    f"{path!r}: reduce={kind!r} is a {cls.__name__}, which lacks {', '.join(lacking)}: define these methods."
                ) from None
            raise ValueError(f"{path!r}: reduce={kind!r} does not accept the settings {settings!r}: {error}") from error
        stats.owner = self.owner
        return self._placed(stats)

    def _require_known(self, path: Path, kind: str, settings: Mapping[str, Any]) -> None:
        """Raise an error for settings that the kind does not have, naming the kinds that have them."""
        wrong = next((name for name in settings if not _takes(self._lookup[kind], name)), None)
        if wrong is None:
            return
        own = [name for name in signature(self._lookup[kind]).parameters if _takes(self._lookup[kind], name)]
        others = [repr(name) for name, cls in self._lookup.items() if _takes(cls, wrong)]
        raise ValueError(
            f"{path!r}: reduce={kind!r} has no setting {wrong!r}, it has {', '.join(own) or 'none'}: leave {wrong}="
            f"{settings[wrong]!r} out{', or use ' + ' or '.join(others) if others else ''}."
        )

    def _made(self, like: StatsBase) -> StatsBase:
        return self._placed(type(like)(**like.settings))

    def _placed(self, stats: StatsBase) -> StatsBase:
        stats.is_root = self.root
        if isinstance(clock := getattr(stats, "clock", None), Throughput):
            clock.begin_at(self._cycle_begun)
        return stats


def _takes(cls: type[StatsBase], name: str) -> bool:
    """Whether a kind has this setting."""
    parameters = signature(cls).parameters
    kinds = {it.kind for it in parameters.values()}
    return Parameter.VAR_KEYWORD in kinds or (
        name in parameters and parameters[name].kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    )


class Timer:
    """Measures the seconds that its block takes."""

    __slots__ = ("_begun", "_push")

    def __init__(self, push: Callable[[Any], None]) -> None:
        self._push = push

    def __enter__(self) -> Timer:
        self._begun = perf_counter()
        return self

    def __exit__(self, kind: object, error: object, where: object) -> None:
        self._push(perf_counter() - self._begun)


def _statistics_in(reduced: Mapping[Any, Any]) -> Iterator[Any]:
    """All statistics in a result of `reduce()`."""
    for found in reduced.values():
        if isinstance(found, Mapping):
            yield from _statistics_in(found)
        else:
            yield found
