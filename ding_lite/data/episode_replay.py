"""Episode replay: a replay buffer that knows which transitions are of the same episode."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch

from ding_lite.basics import NumberedRows, foreign_arguments
from ding_lite.data.column_arrays import Spec
from ding_lite.data.episodes import Episodes
from ding_lite.data.foreign_names import ARGUMENTS, PUSH_ARGUMENTS
from ding_lite.data.replay import Pushed, ReplayBuffer
from ding_lite.data.rollouts import Trajectories
from ding_lite.data.state_checks import require_integer, state_error
from ding_lite.data.trees import flatten, map_leaves, nested

GoalSelection: TypeAlias = Literal["future", "final", "episode"]
"""Which transitions of the same episode: the same one or a later one, the last one, or any."""
WITHIN: tuple[GoalSelection, ...] = get_args(GoalSelection)

_OPEN = np.iinfo(np.int64).max  # last step of an episode that goes on
_ROW_BYTES = 36  # of the arrays below, for each transition
_NEEDED = ("obs", "next_obs", "terminated", "truncated")
Array: TypeAlias = "np.ndarray[Any, Any]"


class _Steps(NamedTuple):
    """Pushed transitions, in the order in which they are stored."""

    rows: dict[str, Any]
    stream: Array
    """[N] the stream of each, in which episodes follow one another: 0 for whole episodes, 1 + the environment in a rollout."""
    ends: Array
    """[N] bool, whether it is the last of its episode."""
    may_go_on: bool
    """Whether the first ones of each stream may continue the episodes that are open."""


class EpisodeReplayBuffer(ReplayBuffer):
    """A replay buffer that knows the episode of each transition, for hindsight experience replay.

    It takes rollouts of a StepCollector, in which episodes go on from one rollout to the next, and whole episodes of an
    EpisodeCollector. An episode goes on if the last step of an environment did not end it, and the first observation of the
    next rollout is the last one before it; otherwise another one has begun. Steps that are only a reset are not stored.

    If the oldest transitions of an episode were overwritten, its others can still be drawn; so can those of an episode that has
    not ended.
    `sample` draws transitions uniformly, as from a ReplayBuffer.

    Args:
        capacity, seed, spec, share_frames: as for ReplayBuffer. The memory is 36 to 44 bytes more for each transition.

    Raises:
        TypeError, ValueError, MemoryError: as for ReplayBuffer.

    Example:
        >>> rows = {"obs": np.arange(3.0), "next_obs": np.arange(1.0, 4.0), "reward": np.zeros(3)}
        >>> ends = {"terminated": np.array([False, True, True]), "truncated": np.zeros(3, bool)}
        >>> buffer = EpisodeReplayBuffer(100)
        >>> buffer.push(Episodes({**rows, **ends}, [2, 1]))
        >>> buffer.draw_within(np.array([0, 1, 2]), "final").tolist()
        [1, 1, 2]
    """

    _SAVED: ClassVar[tuple[str, ...]] = (*ReplayBuffer._SAVED, "places", "streams")
    _CALLED: ClassVar[str] = "episode replay buffer"

    @foreign_arguments(ARGUMENTS, counts_positional=False)
    def __init__(
        self, capacity: int, seed: int = 0, spec: Mapping[str, Spec] | None = None, *, share_frames: bool = False
    ) -> None:
        # Of each transition: its stream, its number in the stream, and those of the first and last step of its episode.
        self._stream = np.zeros(0, np.int32)
        self._step, self._first, self._last = (np.zeros(0, np.int64) for _ in range(3))
        self._forget()
        super().__init__(capacity, seed, spec, share_frames=share_frames)

    def _forget(self) -> None:
        self._stream[:], self._step[:] = 0, -1  # no step of a stream
        # Of each stream: the number of its steps so far, of those that were overwritten, and the first step of the episode
        # that goes on, or -1.
        self._total, self._gone, self._open = (np.zeros(0, np.int64) for _ in range(3))
        self._row_at = np.zeros((0, 1), np.int64)
        """Position of step k of each stream at k % its width, for the steps that are stored."""

    def bytes_for(self, spec: Spec) -> int:
        """Bytes of a full buffer with transitions of this spec, including what is known about episodes."""
        return super().bytes_for(spec) + _ROW_BYTES * self.capacity

    def _allocate(self, spec: Spec) -> None:
        super()._allocate(spec)
        self._stream = np.zeros(self.capacity, np.int32)
        self._step, self._first, self._last = (np.full(self.capacity, -1) for _ in range(3))

    @foreign_arguments(PUSH_ARGUMENTS, counts_positional=False)
    def push(self, batch: Pushed) -> None:
        """Add the transitions of a rollout or of whole episodes, overwriting the oldest.

        Args:
            batch: Trajectories or Episodes, with obs, next_obs, terminated and truncated. Of a rollout that was made of some
                transitions of another one, each series of consecutive steps counts as an episode.

        Raises:
            TypeError: neither of them, so that it is unknown which steps are of one episode.
            ValueError: the order of its steps is unknown, a column is missing, or as for ReplayBuffer. Nothing is added.
        """
        steps = _steps_of(batch)
        goes_on = self._goes_on(steps)
        held = self._size
        where = self._store(steps.rows)
        places = np.arange(where.start, where.stop) if isinstance(where, slice) else where
        if len(places):
            self._note(steps, goes_on, places, places[places < held])

    def _goes_on(self, steps: _Steps) -> Array:
        """[streams] bool: whether the first pushed step continues the open episode of the stream."""
        streams = max(len(self._total), int(steps.stream.max(initial=-1)) + 1)
        goes_on = np.zeros(streams, np.bool_)
        found, first = np.unique(steps.stream, return_index=True)
        known = found < len(self._total)
        found, first = found[known], first[known]
        open_ = (self._open[found] >= 0) & (self._gone[found] < self._total[found])
        found, first = found[open_], first[open_]
        if not steps.may_go_on or not len(found):
            return goes_on
        before = self.take_part(("next_obs",), self._position(found, self._total[found] - 1))
        goes_on[found] = _are_equal(before, map_leaves(lambda leaf: leaf[first], steps.rows["obs"]))
        return goes_on

    def _note(self, steps: _Steps, goes_on: Array, places: Array, overwritten: Array) -> None:
        """Note the episodes of new transitions.

        Args:
            steps: the transitions.
            goes_on: see `_goes_on`.
            places: positions of the last of them, which are stored.
            overwritten: those positions at which there were others.
        """
        streams, count = len(goes_on), len(steps.stream)
        self._widen(streams)
        self._gone += np.bincount(self._stream[overwritten], minlength=streams)
        order = np.argsort(steps.stream, kind="stable")
        stream, ends = steps.stream[order], steps.ends[order]
        sizes = np.bincount(stream, minlength=streams)
        begin = (sizes.cumsum() - sizes)[stream]  # place of the first step of the same stream
        step = self._total[stream] + np.arange(count) - begin
        is_first = np.arange(count) == begin
        begins = np.where(is_first, ~goes_on[stream], np.concatenate([[False], ends[:-1]]))
        # Parts: the steps of one episode in this push.
        part = np.flatnonzero(is_first | begins)
        length = np.diff(part, append=count)
        of, last = stream[part], part + length - 1
        first = np.where(begins[part], step[part], self._open[of])
        is_closed = ends[last]
        self._close(of[is_first[part]], begins[part][is_first[part]])
        continued = is_closed & ~begins[part]
        self._set_last(of[continued], first[continued], step[last[continued]])
        is_last = np.append(of[1:] != of[:-1], True)
        self._open[of[is_last]] = np.where(is_closed, -1, first)[is_last]

        dropped = count - len(places)  # more were pushed than fit
        self._total += sizes
        self._gone += np.bincount(steps.stream[:dropped], minlength=streams)
        self._grow()
        kept = np.empty(count, np.int64)
        kept[order] = np.arange(count)
        kept = kept[dropped:]
        self._stream[places], self._step[places] = stream[kept], step[kept]
        self._first[places] = np.repeat(first, length)[kept]
        self._last[places] = np.repeat(np.where(is_closed, step[last], _OPEN), length)[kept]
        self._row_at[stream[kept], step[kept] % self._row_at.shape[1]] = places

    def _widen(self, streams: int) -> None:
        """Make room for more streams."""
        more = streams - len(self._total)
        if more > 0:
            self._total, self._gone = (np.append(it, np.zeros(more, np.int64)) for it in (self._total, self._gone))
            self._open = np.append(self._open, np.full(more, -1))
            self._row_at = np.append(self._row_at, np.zeros((more, self._row_at.shape[1]), np.int64), 0)

    def _close(self, streams: Array, begins: Array) -> None:
        """End the open episodes of these streams in which another one has begun."""
        ended = streams[begins & (self._open[streams] >= 0)]
        self._set_last(ended, self._open[ended], self._total[ended] - 1)

    def _set_last(self, streams: Array, first: Array, last: Array) -> None:
        """Set the last step of the stored transitions of these episodes, which are the newest of their streams."""
        begin = np.maximum(first, self._gone[streams])
        length = self._total[streams] - begin
        step = np.arange(length.sum()) + np.repeat(begin - (length.cumsum() - length), length)
        self._last[self._position(np.repeat(streams, length), step)] = np.repeat(last, length)

    def _position(self, streams: Array, step: Array) -> Array:
        position: Array = self._row_at[streams, step % self._row_at.shape[1]]
        return position

    def _grow(self) -> None:
        """Make room for the stored steps of each stream."""
        most, width = int((self._total - self._gone).max()), self._row_at.shape[1]
        if most <= width:
            return
        while width < most:
            width *= 2
        wider = np.zeros((len(self._total), width), np.int64)
        held = np.flatnonzero(self._step >= self._gone[self._stream])
        wider[self._stream[held], self._step[held] % width] = held
        self._row_at = wider

    def draw_within(self, rows: Array, which: GoalSelection) -> Array:
        """For each transition, one of the same episode, drawn uniformly from those that are stored, by the buffer's generator.

        Args:
            rows: positions of transitions, [N], such as `draw(size).rows`.
            which: from which transitions of the episode.

        Returns:
            Their positions, [N] int64.
        """
        stream, step = self._stream[rows], self._step[rows]
        last = np.minimum(self._last[rows], self._total[stream] - 1)
        if which == "future":
            step = self.rng.integers(step, last, endpoint=True)
        elif which == "episode":
            step = self.rng.integers(np.maximum(self._first[rows], self._gone[stream]), last, endpoint=True)
        else:
            step = last
        return self._position(stream, step)

    def are_of_one_episode(self, rows: Array, others: Array) -> Array:
        """Whether the transitions at these positions are of the same episode. [N] bool."""
        same: Array = (self._stream[rows] == self._stream[others]) & (self._first[rows] == self._first[others])
        return same

    def take_part(self, path: tuple[str, ...], rows: Array) -> Any:
        """A part of the transitions at these positions.

        Args:
            path: names of a column and of parts inside it, such as ("next_obs", "achieved_goal").
            rows: positions, [N].

        Returns:
            CPU tensors [N, ...], nested like the part.

        Raises:
            KeyError: there is no such part.
        """
        column = self._columns
        for name in path:
            column = column[name]
        return self._take({"": column}, rows)[""]

    def clear(self) -> None:
        """Remove all transitions; the memory stays allocated."""
        super().clear()
        self._forget()

    def _state(self, columns: Any) -> dict[str, Any]:
        places: Any = None
        if isinstance(columns, NumberedRows):
            places = dataclasses.replace(columns, row_bytes=20, copy=self._places)
        elif columns is not None:
            places = self._places_at(np.arange(self._size))
        streams = {"count": self._total.tolist(), "open": self._open.tolist()}
        return {**super()._state(columns), "places": places, "streams": streams}

    def _places(self, first: int, stop: int) -> dict[str, torch.Tensor]:
        return self._places_at(np.arange(first, stop) % self.capacity)

    def _places_at(self, rows: Array) -> dict[str, torch.Tensor]:
        columns: dict[str, Array] = {"stream": self._stream, "step": self._step, "first": self._first}
        return {name: torch.from_numpy(column[rows]) for name, column in columns.items()}

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        checked, kind = super()._checked(state), self._CALLED
        streams: Any = state["streams"]
        if not isinstance(streams, Mapping) or set(streams) != {"count", "open"}:
            raise state_error(kind, "streams", streams, "count and open, a number for each stream")
        numbers = [streams["count"], streams["open"]]
        if not all(isinstance(it, (list, tuple)) for it in numbers) or len(numbers[0]) != len(numbers[1]):
            raise state_error(kind, "streams", streams, "two lists of numbers of the same length")
        count = np.array([require_integer({"count": it}, "count", kind, 0) for it in numbers[0]], np.int64)
        open_ = np.array([require_integer({"open": it}, "open", kind, -1) for it in numbers[1]], np.int64)
        size = checked["size"]
        dtypes = {"stream": np.int32, "step": np.int64, "first": np.int64}
        places = {name: np.zeros(0, dtype) for name, dtype in dtypes.items()}
        if size:
            places = self._checked_places(state["places"], size, dtypes)
        problem = _problem_of(places, count, open_, 0 if size < self.capacity else checked["next"])
        if problem is not None:
            raise state_error(kind, "places", problem, "the steps of episodes, in the order in which they were pushed")
        return {**checked, "places": places, "count": count, "open": open_}

    def _checked_places(self, saved: Any, size: int, dtypes: Mapping[str, Any]) -> dict[str, Array]:
        if not isinstance(saved, Mapping) or set(saved) != set(dtypes):
            raise state_error(self._CALLED, "places", saved, f"tensors {sorted(dtypes)}")
        places = {}
        for name, dtype in dtypes.items():
            leaf: Any = saved[name]
            if not isinstance(leaf, torch.Tensor) or tuple(leaf.shape) != (size,) or leaf.numpy(force=True).dtype != dtype:
                raise state_error(self._CALLED, f"places/{name}", leaf, f"a tensor of {np.dtype(dtype)} ({size},)")
            places[name] = leaf.numpy(force=True)
        return places

    def _restore(self, checked: Mapping[str, Any]) -> None:
        super()._restore(checked)
        size, places, count = self._size, checked["places"], checked["count"]
        self._forget()
        self._widen(len(count))
        if not size:
            self._total[:], self._gone[:], self._open[:] = count, count, checked["open"]
            return
        stream, step, first = places["stream"], places["step"], places["first"]
        self._stream[:size], self._step[:size], self._first[:size] = stream, step, first
        self._stream[size:] = 0
        self._total[:], self._open[:] = count, checked["open"]
        self._gone[:] = count - np.bincount(stream, minlength=len(count))
        order = np.lexsort((step, stream))
        is_last = np.append((stream[order][1:] != stream[order][:-1]) | (first[order][1:] != first[order][:-1]), True)
        at = np.flatnonzero(is_last)
        ends = np.where(first[order][at] == self._open[stream[order][at]], _OPEN, step[order][at])
        last = np.empty(size, np.int64)
        last[order] = np.repeat(ends, np.diff(at, prepend=-1))
        self._last[:size] = last
        self._grow()
        self._row_at[stream, step % self._row_at.shape[1]] = np.arange(size)


def _steps_of(batch: Any) -> _Steps:
    if not isinstance(batch, (Trajectories, Episodes)):
        raise TypeError(
            f"an EpisodeReplayBuffer wants a rollout or whole episodes, got a {type(batch).__name__}, which does not say which "
            "steps are of one episode: push Trajectories or Episodes, as data_pusher(cfg, buffer_) does."
        )
    if isinstance(batch, Trajectories) and batch.order == "none":
        raise ValueError(
            "an EpisodeReplayBuffer got transitions in an unknown order, so it is unknown which are of one episode: push those "
            "of ctx.trajectories, changed in place, or write whole episodes to ctx.episodes."
        )
    if isinstance(batch, Trajectories) and batch.order == "pieces":
        batch = _pieces_of(batch)
    rows: dict[str, Any] = nested(batch.rows())
    if missing := [name for name in _NEEDED if name not in rows]:
        raise ValueError(f"an EpisodeReplayBuffer needs the columns {list(_NEEDED)}, and {missing} are missing: push them too.")
    ends = rows["terminated"] | rows["truncated"]
    if isinstance(batch, Episodes):
        ends[batch.lengths.cumsum() - 1] = True
        return _Steps(rows, np.zeros(len(ends), np.int32), ends, may_go_on=False)
    stream: Array = np.tile(np.arange(1, batch.num_envs + 1, dtype=np.int32), batch.num_steps)
    if batch.valid is not None:
        stream = stream[batch.valid.reshape(-1)]
    return _Steps(rows, stream, ends, may_go_on=True)


def _pieces_of(rollout: Trajectories) -> Episodes:
    """The columns of a rollout as episodes."""
    valid = np.ones((rollout.num_steps, rollout.num_envs), np.bool_) if rollout.valid is None else rollout.valid
    rows = {name: map_leaves(lambda leaf: leaf.swapaxes(0, 1)[valid.T], column) for name, column in rollout.columns.items()}
    lengths = valid.sum(axis=0)
    return Episodes(rows, lengths[lengths > 0])


def _are_equal(stored: Any, pushed: Any) -> Array:
    """Whether rows are equal, [N] bool. Objects are not compared."""
    others = dict(flatten(pushed))
    equal: Any = True
    for path, leaf in flatten(stored):
        if isinstance(leaf, torch.Tensor):
            one = leaf.numpy()
            other = np.asarray(others[path]).astype(one.dtype, copy=False)
            same = (one == other) | ((one != one) & (other != other))
            equal = equal & same.reshape(len(same), -1).all(1)
    return np.asarray(equal)


def _problem_of(places: Mapping[str, Array], count: Array, open_: Array, oldest: int) -> str | None:
    """What is impossible about these streams and steps of a saved state; None for nothing."""
    stream, step, first = (np.roll(places[name], -oldest) for name in ("stream", "step", "first"))  # the oldest one first
    if stream.size and not 0 <= stream.min() <= stream.max() < len(count):
        return "a step of an unknown stream"
    order = np.argsort(stream, kind="stable")
    stream, step, first = stream[order], step[order], first[order]
    is_next = stream[1:] == stream[:-1]
    is_last = np.append(~is_next, True)[: len(stream)]
    if (np.diff(step)[is_next] != 1).any() or (step[is_last] != count[stream[is_last]] - 1).any():
        return "steps that do not follow one another"
    begins = first[1:] != first[:-1]
    if ((first < 0) | (first > step)).any() or (is_next & begins & (first[1:] != step[1:])).any():
        return "an episode that begins at another step"
    last = np.full(len(count), -1)
    last[stream[is_last]] = first[is_last]
    held = np.isin(np.arange(len(count)), stream)
    if (open_ >= np.maximum(count, 1)).any() or (held & (open_ >= 0) & (open_ != last)).any():
        return "an open episode that is not the last one"
    return None


Within = GoalSelection  # its name in earlier versions
