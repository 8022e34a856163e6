"""Episode statistics: means and ranges over finished episodes, by default over at least the last hundred."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ding_lite.data import flatten
from ding_lite.envs import EpisodeResult
from ding_lite.envs.infos import as_float
from ding_lite.metrics.sums import mean_of

_MOST = 10_000  # latest episodes of a cycle that are summarised
_COUNTED_HERE = "episode"
"""Key of gymnasium's RecordEpisodeStatistics for return and length, which are computed here already."""


def summarize_episodes(episodes: Sequence[EpisodeResult]) -> dict[str, Any]:
    """Mean, minimum and maximum of return and length, and of every number in the info of an episode's last step.

    Args:
        episodes: finished ones.

    Returns:
        episode_return_mean, _min, _max; episode_length_mean, _min, _max; and custom_metrics, a dict with the same endings for
        numbers in infos, over the episodes that have them. NaN if there is no episode.

    Example:
        >>> summary = summarize_episodes([EpisodeResult(0, 0, 3.0, 3, info={"laps": 1}), EpisodeResult(1, 0, 5.0, 9)])
        >>> summary["episode_return_mean"], summary["episode_length_max"], summary["custom_metrics"]["laps_mean"]
        (4.0, 9, 1.0)
    """
    custom: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in numbers_in(episode.info) if episode.info else ():
            custom.setdefault(name, []).append(value)
    spreads = {key: it for name, values in custom.items() for key, it in _spread(name, values).items()}
    return {
        **_spread("episode_return", [episode.return_ for episode in episodes]),
        **_spread("episode_length", [episode.length for episode in episodes]),
        **({"custom_metrics": spreads} if spreads else {}),
    }


class EpisodeHistory:
    """Summaries of a stream of episodes: of all episodes of a cycle, or of the latest `min_history` if the cycle has fewer.

    Args:
        min_history: minimum number of episodes in a summary, if that many have finished.
    """

    def __init__(self, min_history: int = 100) -> None:
        if min_history < 1:
            raise ValueError(f"EpisodeHistory(min_history={min_history}): expected 1 or more.")
        self.min_history = min_history
        self._earlier: list[EpisodeResult] = []
        self._new: deque[EpisodeResult] = deque(maxlen=max(min_history, _MOST))
        self._count = 0  # of this cycle

    def add(self, episodes: Iterable[EpisodeResult]) -> None:
        """Add episodes that finished in this cycle."""
        for episode in episodes:
            # Keep only the numbers of an info, because the rest may be large.
            self._new.append(episode._replace(info=dict(numbers_in(episode.info))) if episode.info else episode)
            self._count += 1

    def summarize(self, end: bool = True) -> dict[str, Any]:
        """The result of `summarize_episodes`, and episodes_this_iter, the number of episodes in this cycle. An empty dict
        before the first episode. If a cycle has more than 10,000 episodes, only the latest are used.

        Args:
            end: whether to start the next cycle.
        """
        missing = max(0, self.min_history - len(self._new))
        episodes = [*(self._earlier[-missing:] if missing else ()), *self._new]
        count = self._count
        if end:
            self._earlier, self._count = episodes[-self.min_history :], 0
            self._new.clear()
        return {**summarize_episodes(episodes), "episodes_this_iter": count} if episodes else {}

    def state_dict(self) -> dict[str, Any]:
        """The episodes that the next summary may use."""
        return {
            "earlier": [_plain(one) for one in self._earlier],
            "new": [_plain(one) for one in self._new],
            "count": self._count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._earlier = [EpisodeResult(*row) for row in state["earlier"]]
        self._new.clear()
        self._new += [EpisodeResult(*row) for row in state["new"]]
        self._count = state["count"]


def numbers_in(info: Mapping[Any, Any]) -> Iterator[tuple[str, float]]:
    """The numbers in an info, including nested dicts, with names joined by "/".

    If two have the same joined name, the first counts; the other causes a warning.
    """
    known: set[str] = set()
    for path, value in flatten(info):
        number = None if _COUNTED_HERE in path[:-1] else as_float(value)
        if number is None:
            continue
        name = "/".join(map(str, path))
        if name in known:
            warnings.warn(
                f"a number in the info of an episode's last step is ignored: {path!r} has the same joined name {name!r} as "
                "another one. Give them different names.",
                stacklevel=2,
            )
            continue
        known.add(name)
        yield name, number


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Mean, minimum and maximum under these names, without NaN, as in the means of MetricsLogger."""
    known = [value for value in values if value == value]
    if not known:
        return {f"{name}_{end}": math.nan for end in ("mean", "min", "max")}
    return {f"{name}_mean": mean_of(known), f"{name}_min": min(known), f"{name}_max": max(known)}


def _plain(episode: EpisodeResult) -> list[Any]:
    return [*episode[:-1], dict(episode.info)]
