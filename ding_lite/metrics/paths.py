"""Paths: statistics by nested names; no path is a prefix of another."""

from __future__ import annotations

from typing import Any, TypeAlias

from ding_lite.metrics.stats_base import StatsBase

Key: TypeAlias = "str | int | tuple[str | int, ...]"
"""A name, or a path of names."""

Path: TypeAlias = "tuple[Any, ...]"


RATE = "_throughput"
"""End of the names of throughputs."""


def rate_of(path: Path) -> Path:
    """The path under which the throughput of a sum is reported."""
    return (*path[:-1], f"{path[-1]}{RATE}")


def path_of(key: Key) -> Path:
    """The names of a key, from the outermost.

    Raises:
        TypeError: the key is not hashable, for example a list.
    """
    path: Path = key if type(key) is tuple else (key,)
    try:
        hash(path)
    except TypeError:
        raise no_key(key) from None
    return path


def no_key(key: Any, name: Any = "") -> TypeError:
    """The error for an invalid key; names the invalid part."""
    instead = (
        f": write {tuple(key)!r}" if isinstance(key, list) and key and all(isinstance(it, (str, int)) for it in key) else ""
    )
    why = "" if name == "" else f" A name must be text or an integer, {name!r:.60} is a {type(name).__name__}."
    return TypeError(
        f"{key!r:.60} of type {type(key).__name__} is not a key: a key is a name, or a tuple of names{instead}.{why}"
    )


def joined(path: Path) -> str:
    """The names of the path joined by "/", as in a row of metrics."""
    return "/".join(map(str, path))


class StatsTree:
    """Statistics by path. No path is a prefix of another, and no two paths have the same joined name."""

    def __init__(self) -> None:
        self.stats: dict[Path, StatsBase] = {}
        """Statistics by path."""
        self.written: dict[str, Path] = {}
        """Path by joined name; ("a", "b") and "a/b" have the same joined name."""
        self._groups: dict[Path, int] = {}  # number of values under each prefix

    def __contains__(self, path: Path) -> bool:
        return path in self.stats or path in self._groups

    def add(self, path: Path, stats: StatsBase) -> StatsBase:
        """Put statistics under a path.

        Raises:
            ValueError: see `require_free`.
        """
        self.require_free(path)
        for length in range(len(path)):
            self._groups[path[:length]] = self._groups.get(path[:length], 0) + 1
        self.stats[path] = stats
        self.written[joined(path)] = path
        return stats

    def require_free(self, path: Path) -> None:
        """Raise an error if a path cannot be added: it is a prefix of another one, has one as prefix, or the same joined name.

        Raises:
            ValueError: the path clashes, or it or one of its names is empty.
            TypeError: one of its names is neither text nor an integer.
        """
        if not path or "" in path:
            raise ValueError(f"a value needs a name: the key {path!r} is empty, or has an empty part.")
        for name in path:
            if isinstance(name, bool) or not isinstance(name, (str, int)):
                raise no_key(path[0] if len(path) == 1 else path, name)
        other = self.written.get(joined(path), path)
        if other != path:
            raise ValueError(f"{path!r} and {other!r} have the same name {joined(path)!r} in a row: take another name.")
        if path in self._groups:
            raise ValueError(f"{path!r} is a prefix of other keys, so it cannot be a value: take another name.")
        for length in range(1, len(path)):
            if path[:length] in self.stats:
                raise ValueError(f"{path!r} has the prefix {path[:length]!r}, which is a value: take another name.")

    def is_free(self, path: Path) -> bool:
        """Whether a path can be added."""
        try:
            self.require_free(path)
        except (TypeError, ValueError):
            return False
        return path not in self.stats

    def under(self, path: Path) -> dict[Path, StatsBase]:
        """The statistics at this path, or below it."""
        return {there: stats for there, stats in self.stats.items() if there[: len(path)] == path}

    def remove(self, path: Path) -> None:
        """Remove the value at this path."""
        del self.stats[path], self.written[joined(path)]
        for length in range(len(path)):
            self._groups[path[:length]] -= 1
            if not self._groups[path[:length]]:
                del self._groups[path[:length]]
