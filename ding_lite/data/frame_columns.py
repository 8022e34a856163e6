"""Frame columns: images of transitions, with each frame stored once, however many transitions show it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from ding_lite.basics import NumberedRows, unflatten
from ding_lite.data.column_arrays import LeafSpec, Spec, as_array, available_bytes, spec_bytes
from ding_lite.data.state_checks import require_integer, state_error
from ding_lite.data.trees import Path, flatten

_SMALLEST = 256  # bytes of a frame; smaller ones are stored as they are
_MOST_CHANNELS = 4  # in the last dimension
_WINDOW = 4096  # latest frames among which an equal one is looked for
_SLACK = 1024  # frames of a pool beyond those of its transitions


def frame_ndim(leaf: LeafSpec) -> int:
    """Number of last dimensions of a leaf that are a frame: 2 for [height, width], 3 with channels last; 0 if it has no frames.

    Example:
        >>> uint8 = np.dtype(np.uint8)
        >>> [frame_ndim(LeafSpec(shape, uint8)) for shape in ((4, 84, 84), (4, 84, 84, 3), (84, 84, 4), (17,), (2, 3, 5))]
        [2, 3, 3, 0, 0]
    """
    shape = leaf.shape
    ndim = 3 if shape and shape[-1] <= _MOST_CHANNELS else 2
    is_large = len(shape) >= ndim and math.prod(shape[-ndim:]) * leaf.dtype.itemsize >= _SMALLEST
    return ndim if is_large and not leaf.dtype.hasobject else 0


class FramePool:
    """Frames of one shape and dtype. Equal ones are stored once, for as long as a transition refers to them.

    Frames are numbered in the order in which they were added, and frame n is at position n % room. An equal frame is looked for
    among the latest 4096 by a hash, and then compared byte by byte.

    Args:
        shape: shape of a frame.
        dtype: its dtype.
        room: number of frames; it grows if the transitions refer to more.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], room: int) -> None:
        self.shape, self.dtype, self.room = shape, dtype, room
        self.frames = np.zeros((room, *shape), dtype)
        """Frame n at position n % room."""
        self._uses = np.zeros(room, np.int32)  # of each position by transitions
        self.first = self.stop = 0
        """Number of the oldest frame in use, and of the next one to be added."""
        self.version = object()
        """Another object after frames were replaced other than by adding."""
        self._latest: dict[int, int] = {}  # number of the latest frame with this hash
        self.frame_bytes = math.prod(shape) * dtype.itemsize
        words = self.frame_bytes // 8 if self.frame_bytes % 8 == 0 else self.frame_bytes
        self._multipliers = np.random.default_rng(0).integers(0, 2**63, words, np.uint64) * np.uint64(2) + np.uint64(1)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self.frames.nbytes + self._uses.nbytes

    def add(self, frames: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Add frames [M, *shape], or find equal ones. Returns their numbers, [M] int64, each with one more use.

        Raises:
            MemoryError: more frames are in use than memory can hold. Nothing is added.
        """
        words = self._words(frames)
        unique, shown, inverse = np.unique(self._hashes(words), return_index=True, return_inverse=True)
        hashes: list[int] = unique.tolist()
        first_of = shown[inverse]  # the first one in this batch with the same hash
        is_equal = (words == words[first_of]).all(1)
        known = np.array([self._latest.get(one, -1) for one in hashes], np.int64)
        is_known = known >= max(self.first, self.stop - _WINDOW)
        found = known[is_known]
        is_known[is_known] = (self._words(self.frames[found % self.room]) == words[shown[is_known]]).all(1)
        is_new = ~is_equal
        is_new[shown[~is_known]] = True
        new = is_new.nonzero()[0]
        self._make_room(len(new))
        numbers = np.empty(len(frames), np.int64)
        numbers[new] = np.arange(self.stop, self.stop + len(new))
        numbers[shown[is_known]] = known[is_known]
        numbers[is_equal] = numbers[first_of[is_equal]]
        self.frames[numbers[new] % self.room] = frames[new]
        self.stop += len(new)
        self._latest.update(zip(unique[inverse[new]].tolist(), numbers[new].tolist()))
        if len(self._latest) > 2 * _WINDOW:
            self._latest = {one: number for one, number in self._latest.items() if number >= self.stop - _WINDOW}
        self.use(numbers)
        return numbers

    def use(self, numbers: np.ndarray[Any, Any]) -> None:
        """Count one more use of each of these frames."""
        np.add.at(self._uses, numbers % self.room, 1)

    def release(self, numbers: np.ndarray[Any, Any]) -> None:
        """Count one use less of each of these frames, and free the oldest frames that are not in use."""
        np.subtract.at(self._uses, numbers % self.room, 1)
        self.free()

    def free(self) -> None:
        """Free the oldest frames that are not in use."""
        while self.first < self.stop:
            begin = self.first % self.room
            used = self._uses[begin : begin + min(1024, self.stop - self.first)] > 0
            place = int(used.argmax())
            if used[place]:
                self.first += place
                return
            self.first += len(used)

    def _make_room(self, count: int) -> None:
        """Make room for `count` more frames."""
        room = _room_for(self.stop + count - self.first, self.room, self.frame_bytes)
        if room == self.room:
            return
        numbers = np.arange(self.first, self.stop)
        frames, uses = np.zeros((room, *self.shape), self.dtype), np.zeros(room, np.int32)
        frames[numbers % room], uses[numbers % room] = self.frames[numbers % self.room], self._uses[numbers % self.room]
        self.frames, self._uses, self.room = frames, uses, room

    def _words(self, frames: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The bytes of frames, as integers [M, W]."""
        flat = frames.reshape(len(frames), math.prod(self.shape))
        return flat.view(np.uint64 if self.frame_bytes % 8 == 0 else np.uint8)

    def _hashes(self, words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A number for each frame, nearly always another one for another frame: two with the same one are both stored."""
        return np.einsum("mw,w->m", words, self._multipliers)  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Remove all frames."""
        self._uses[:] = 0
        self.first, self.version = self.stop, object()

    def copies(self, first: int, stop: int) -> torch.Tensor:
        """Copies of the frames with the numbers `first` to `stop` (exclusive)."""
        return torch.from_numpy(self.frames[np.arange(first, stop) % self.room])

    def saved(self, in_pieces: bool) -> Any:
        """The frames in use, frame n at position n % count; as `NumberedRows` for a saver that writes only new frames."""
        count = self.stop - self.first
        if in_pieces:
            return NumberedRows(self.version, self.first, self.stop, count, self.frame_bytes, self.copies)
        frames = np.empty((count, *self.shape), self.dtype)
        numbers = np.arange(self.first, self.stop)
        if count:
            frames[numbers % count] = self.frames[numbers % self.room]
        return torch.from_numpy(frames)

    def restore(self, saved: SavedPool) -> None:
        """Replace all frames; their uses have to be counted again."""
        self._uses[:] = 0
        self.first = self.stop = saved.first
        self._latest, self.version = {}, object()
        count = saved.stop - saved.first
        self._make_room(count)
        self.stop = saved.stop
        for begin in range(saved.first, saved.stop, _WINDOW):
            numbers = np.arange(begin, min(begin + _WINDOW, saved.stop))
            self.frames[numbers % self.room] = saved.frames[numbers % count]
        latest = np.arange(max(saved.first, saved.stop - _WINDOW), saved.stop)
        hashes = self._hashes(self._words(self.frames[latest % self.room]))
        self._latest = dict(zip(hashes.tolist(), latest.tolist()))


def _room_for(needed: int, room: int, frame_bytes: int) -> int:
    """The room of a pool for `needed` frames, which may be more than its present room.

    Raises:
        MemoryError: memory cannot hold them.
    """
    if needed <= room:
        return room
    room = max(needed, room + room // 2)
    size, available = room * frame_bytes, available_bytes()
    if available is not None and size > available:
        raise MemoryError(
            f"the transitions of a replay buffer with share_frames refer to {needed:,} different frames of {frame_bytes:,} "
            f"bytes. Memory for {room:,} needs {size / 1e9:.1f} GB, but only {available / 1e9:.1f} GB are available: lower "
            "replay_buffer_size."
        )
    return room


class FrameColumn:
    """The frames of one leaf of all transitions, by their numbers in a pool; a replay buffer uses it like an array.

    Args:
        pool: pool of the frames.
        capacity: number of transitions.
        lead: shape of a leaf without its frames, such as (4,) for a stack of 4.
    """

    def __init__(self, pool: FramePool, capacity: int, lead: tuple[int, ...]) -> None:
        self.pool = pool
        self.index = np.full((capacity, *lead), -1, np.int64)
        """Numbers of the frames of each transition; -1 before the first one."""
        self.shape, self.dtype = (capacity, *lead, *pool.shape), pool.dtype
        self.strides = (math.prod(lead) * pool.frame_bytes,)
        """Bytes of a row."""

    def __setitem__(self, where: Any, rows: Any) -> None:
        """Store rows [N, *lead, *shape] at these positions."""
        frames = np.ascontiguousarray(rows, self.dtype).reshape(-1, *self.pool.shape)
        if len(frames):
            old, numbers = self.index[where].copy(), self.pool.add(frames)  # a slice gives a view
            self.index[where] = numbers.reshape(old.shape)
            self.pool.release(old[old >= 0])

    def __getitem__(self, where: Any) -> np.ndarray[Any, Any]:
        """The numbers of the frames at these positions."""
        return self.index[where]  # type: ignore[no-any-return]

    def take(
        self, rows: np.ndarray[Any, Any], axis: int = 0, out: np.ndarray[Any, Any] | None = None, mode: str = "clip"
    ) -> np.ndarray[Any, Any]:
        """Copies of the transitions at these positions, [N, *lead, *shape]; as `numpy.take`, for axis 0."""
        if out is None:
            out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        places = self.index.take(rows, 0).reshape(-1) % self.pool.room
        self.pool.frames.take(places, 0, out.reshape(-1, *self.pool.shape), "clip")
        return out

    def restore(self, index: np.ndarray[Any, Any]) -> None:
        """Replace all numbers by these, of the first transitions, and count the uses of their frames."""
        self.index[:] = -1
        self.index[: len(index)] = index
        self.pool.use(index.reshape(-1))


class SharedFrames:
    """The pools and columns of a replay buffer whose transitions share frames.

    Args:
        spec: shape and dtype of each leaf of a transition.
        capacity: number of transitions.
    """

    def __init__(self, spec: Spec, capacity: int) -> None:
        self.columns: dict[Path, FrameColumn] = {}
        """The columns of leaves with frames."""
        self.pools: list[FramePool] = []
        kinds: dict[Any, FramePool] = {}
        for kind, room in _rooms(spec, capacity).items():
            kinds[kind] = FramePool(*kind, room)
            self.pools.append(kinds[kind])
        for path, leaf in flatten(spec):
            if ndim := frame_ndim(leaf):
                pool = kinds[leaf.shape[-ndim:], leaf.dtype]
                self.columns[path] = FrameColumn(pool, capacity, leaf.shape[:-ndim])
        self._allocated = self._nbytes()

    def _nbytes(self) -> int:
        return sum(pool.nbytes for pool in self.pools)

    @property
    def grown_bytes(self) -> int:
        """Bytes that were allocated because the transitions show more than one new frame each."""
        return self._nbytes() - self._allocated

    def clear(self) -> None:
        """Remove all frames."""
        for column in self.columns.values():
            column.index[:] = -1
        for pool in self.pools:
            pool.clear()

    def state(self, in_pieces: bool) -> dict[str, Any]:
        """The part of the buffer's state beside the numbers of each transition.

        Args:
            in_pieces: the frames as `NumberedRows`.
        """
        framed = [[list(path), self.pools.index(column.pool)] for path, column in self.columns.items()]
        frames = {f"frames_{place}": pool.saved(in_pieces) for place, pool in enumerate(self.pools)}
        return {"framed": framed, "pools": [[pool.first, pool.stop] for pool in self.pools], **frames}

    def restore(self, saved: SavedFrames) -> None:
        """Replace all frames."""
        for place, held in enumerate(saved.pools):
            path = next(path for path, number in saved.framed.items() if number == place)
            self.columns[path].pool.restore(held)
        for path, column in self.columns.items():
            column.restore(saved.numbers[path])
        for pool in self.pools:
            pool.free()


class SavedPool(NamedTuple):
    """The frames of a pool in a saved state."""

    first: int
    """Number of the oldest frame."""
    stop: int
    """Number of the next frame to be added."""
    frames: np.ndarray[Any, Any]
    """Frame n at position n % (stop - first)."""


class SavedFrames(NamedTuple):
    """The checked frames of a saved state."""

    framed: dict[Path, int]
    """The pool of each leaf with frames."""
    pools: list[SavedPool]
    numbers: dict[Path, np.ndarray[Any, Any]]
    """The numbers of the frames of each transition."""

    def looks(self, held: Any) -> Any:
        """These columns; instead of those with frames, arrays with the shape and dtype of the frames, which take no memory."""
        columns = dict(flatten(held))
        for path, place in self.framed.items():
            frames = self.pools[place].frames
            columns[path] = np.broadcast_to(np.zeros((), frames.dtype), (*columns[path].shape, *frames.shape[1:]))
        return unflatten(columns)


def require_room(frames: SavedFrames, spec: Spec, capacity: int) -> None:
    """Raise an error if memory cannot hold the frames of a saved state.

    Args:
        frames: the saved frames.
        spec, capacity: those of the buffer.

    Raises:
        MemoryError: there are too many.
    """
    rooms = _rooms(spec, capacity)
    for pool in frames.pools:
        shape, dtype = pool.frames.shape[1:], pool.frames.dtype
        _room_for(pool.stop - pool.first, rooms[shape, dtype], math.prod(shape) * dtype.itemsize)


def state_keys(state: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of `SharedFrames.state` that this state may have."""
    pools = state.get("pools")
    return ("framed", "pools", *(f"frames_{place}" for place in range(len(pools) if isinstance(pools, (list, tuple)) else 0)))


def checked_frames(state: Mapping[str, Any], held: Any, kind: str) -> SavedFrames:
    """The frames of a saved state, if they fit its transitions.

    Args:
        state: the state of a buffer.
        held: its columns as arrays.
        kind: name of the buffer, for messages.

    Raises:
        ValueError: naming the invalid entry.
    """
    columns = dict(flatten(held))
    pools: list[SavedPool] = []
    for place, ends in enumerate(state["pools"]):
        name = f"pools[{place}]"
        if not isinstance(ends, (list, tuple)) or len(ends) != 2:
            raise state_error(kind, name, ends, "the first and the last number of its frames")
        first = require_integer({name: ends[0]}, name, kind, 0)
        stop = require_integer({name: ends[1]}, name, kind, first)
        frames = state.get(f"frames_{place}")
        if not isinstance(frames, (torch.Tensor, np.ndarray)) or len(frames.shape) < 2 or len(frames) != stop - first:
            found = tuple(frames.shape) if isinstance(frames, (torch.Tensor, np.ndarray)) else frames
            raise state_error(kind, f"frames_{place}", found, f"{stop - first} frames")
        pools.append(SavedPool(first, stop, as_array(frames)))
        if frame_ndim(spec := LeafSpec(pools[-1].frames.shape[1:], pools[-1].frames.dtype)) != len(spec.shape):
            raise state_error(
                kind, f"frames_{place}", f"frames of shape {spec.shape}", "frames that are large enough to be shared"
            )
    if len({(pool.frames.shape[1:], pool.frames.dtype) for pool in pools}) != len(pools):
        raise state_error(kind, "pools", state["pools"], "a pool for each shape and dtype of frames")
    framed: dict[Path, int] = {}
    for path, place in _pairs(state.get("framed"), kind):
        numbers = columns.get(path)
        if numbers is None or place not in range(len(pools)):
            raise state_error(kind, "framed", state["framed"], "the path of a column and the number of a pool")
        first, stop = pools[place].first, pools[place].stop
        if numbers.dtype != np.int64 or (numbers.size and not first <= numbers.min() <= numbers.max() < stop):
            name = "/".join(("columns", *path))
            raise state_error(kind, name, "other numbers", f"numbers of frames from {first} to {stop - 1}")
        framed[path] = place
    if set(framed.values()) != set(range(len(pools))):
        raise state_error(kind, "framed", state.get("framed"), f"a column for each of {len(pools)} pools")
    return SavedFrames(framed, pools, {path: columns[path] for path in framed})


def _pairs(framed: Any, kind: str) -> list[tuple[Path, int]]:
    try:
        return [(tuple(path), place) for path, place in framed]
    except (TypeError, ValueError):
        raise state_error(kind, "framed", framed, "a list with [path, number of a pool]") from None


def shared_bytes(spec: Spec, capacity: int) -> int:
    """Bytes of a full buffer with shared frames, if each transition has one new frame."""
    size = sum(room * (math.prod(shape) * dtype.itemsize + 4) for (shape, dtype), room in _rooms(spec, capacity).items())
    return size + capacity * row_bytes(spec)


def row_bytes(spec: Spec) -> int:
    """Bytes of a transition without its frames: its other leaves, and the numbers of its frames."""
    size = 0
    for _, leaf in flatten(spec):
        ndim = frame_ndim(leaf)
        size += 8 * math.prod(leaf.shape[:-ndim]) if ndim else spec_bytes(leaf)
    return size


def _rooms(spec: Spec, capacity: int) -> dict[tuple[tuple[int, ...], np.dtype[Any]], int]:
    """Number of frames in the pool of each shape and dtype: one per transition, and those of the starts of episodes.

    Two leaves, such as obs and next_obs, show the same frames.
    """
    leaves: dict[Any, int] = {}
    for _, leaf in flatten(spec):
        if ndim := frame_ndim(leaf):
            kind = (leaf.shape[-ndim:], leaf.dtype)
            leaves[kind] = leaves.get(kind, 0) + 1
    return {kind: (count + 1) // 2 * (capacity + capacity // 16) + _SLACK for kind, count in leaves.items()}
