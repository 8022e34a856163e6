"""Replay: stored transitions, sampled uniformly."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
import torch

from ding_lite.basics import NumberedRows, base_state, foreign_arguments, foreign_attributes, seed_of, unflatten, warn_caller
from ding_lite.basics.messages import with_article
from ding_lite.data.column_arrays import (
    Spec,
    as_array,
    available_bytes,
    may_lose,
    require_held,
    require_sampled,
    spec_bytes,
    spec_like,
    write_rows,
)
from ding_lite.data.column_names import POLICY_VERSION
from ding_lite.data.episodes import Episodes
from ding_lite.data.foreign_names import ARGUMENTS, ATTRIBUTES, PUSH_ARGUMENTS, SAMPLE_ARGUMENTS
from ding_lite.data.frame_columns import (
    SavedFrames,
    SharedFrames,
    checked_frames,
    frame_ndim,
    require_room,
    row_bytes,
    shared_bytes,
    state_keys,
)
from ding_lite.data.lists import stack_transitions
from ding_lite.data.recycling import ArrayPool
from ding_lite.data.rollouts import Trajectories
from ding_lite.data.state_checks import require_generator, require_integer, require_state, restored_columns, state_error
from ding_lite.data.trees import Path, Tree, flatten, is_tree, map_leaves, nested, tree

_PART = 64  # transitions with shared frames that are written together
Pushed: TypeAlias = "Trajectories | Episodes | Tree | Mapping[str, Any] | Sequence[Tree | Mapping[str, Any]]"
"""Types that `push` accepts."""


class Draw(NamedTuple):
    """The transitions of a batch."""

    rows: np.ndarray[Any, Any]
    """Positions of the transitions, [size] int64."""
    beside: dict[str, torch.Tensor]
    """Leaves [size] that the draw adds, such as a weight."""


@foreign_attributes(ATTRIBUTES)
class ReplayBuffer:
    """Stores the last `capacity` transitions in preallocated arrays, one per leaf; samples uniformly, with replacement.

    Leaves of objects or text are arrays of objects.

    Args:
        capacity: maximum number of transitions.
        seed: random seed of the buffer's generator.
        spec: shape and dtype of each leaf of a transition, to allocate the memory at once; by default, the first push fixes
            the layout.
        share_frames: store each frame of images once, for all transitions and leaves that show it. A stack of 4 frames, in obs
            and next_obs, then takes an eighth of the memory. Batches are the same. A leaf has frames if its last dimensions
            are [height, width] or [height, width, channels] with at least 256 bytes. If the transitions show more frames than
            one new one each, the memory grows.

    Raises:
        TypeError: capacity is not an integer.
        ValueError: capacity < 1.
        MemoryError: the arrays would need more than the available memory; checked before the allocation.

    Example:
        >>> buffer = ReplayBuffer(100)
        >>> buffer.push({"obs": np.zeros((8, 4), np.float32), "reward": np.ones(8, np.float32)})
        >>> len(buffer), buffer.sample(3).obs.shape
        (8, torch.Size([3, 4]))
    """

    _SAVED: ClassVar[tuple[str, ...]] = ("capacity", "size", "next", "columns", "rng")
    """Keys of a saved state."""
    _CALLED: ClassVar[str] = "replay buffer"

    @foreign_arguments(ARGUMENTS, counts_positional=False)
    def __init__(
        self, capacity: int, seed: int = 0, spec: Mapping[str, Spec] | None = None, *, share_frames: bool = False
    ) -> None:
        if not isinstance(capacity, SupportsIndex) or isinstance(capacity, bool):
            raise TypeError(f"ReplayBuffer(capacity={capacity!r}) wants an integer, got a {type(capacity).__name__}.")
        if capacity < 1:
            raise ValueError(f"ReplayBuffer(capacity={capacity}): the capacity must be at least 1.")
        self.capacity = int(capacity)
        self.rng = np.random.default_rng(seed_of(seed, f"{type(self).__name__}(seed={{}})"))
        self._spec: Any = None
        self._columns: Any = None
        self._size = self._next = 0
        self._pushed = 0  # transitions so far; number n is at position n % capacity
        self._has_warned = False
        self._version = object()  # another one after transitions were removed or replaced other than by pushing
        # Layout of the last push, and the columns in its order, because the next push usually has the same layout.
        self._signature: list[Any] = []
        self._order: list[Any] = []
        self._count = 0
        self._narrower: list[Path] = []
        """Leaves of the last push whose column cannot hold all numbers of their dtype."""
        self._recycler = ArrayPool()
        self.share_frames = share_frames
        self._frames: SharedFrames | None = None
        self.writes = 0
        """Number of calls that wrote or removed transitions."""
        if spec is not None:
            self._allocate(dict(spec))

    @property
    def bytes_per_transition(self) -> int:
        """Bytes per transition; 0 before the leaves are known."""
        if self._spec is None:
            return 0
        return spec_bytes(self._spec) if self._frames is None else -(-self.nbytes // self.capacity)

    @property
    def nbytes(self) -> int:
        """Bytes of the full buffer; 0 before the leaves are known."""
        if self._spec is None:
            return 0
        return self.bytes_for(self._spec) + (0 if self._frames is None else self._frames.grown_bytes)

    def bytes_for(self, spec: Spec) -> int:
        """Bytes of a full buffer with transitions of this spec; with shared frames, if each has one new frame."""
        return shared_bytes(spec, self.capacity) if self.share_frames else spec_bytes(spec) * self.capacity

    def _allocate(self, spec: Spec) -> None:
        require_sampled(spec)
        self._require_memory(spec)
        self._spec = spec
        if not self.share_frames:
            self._columns = map_leaves(self._column, spec)
            return
        self._frames = SharedFrames(spec, self.capacity)
        shared = self._frames.columns
        self._columns = unflatten({path: shared.get(path) or self._column(leaf) for path, leaf in flatten(spec)})

    def _column(self, leaf: Any) -> np.ndarray[Any, Any]:
        return np.zeros((self.capacity, *leaf.shape), leaf.dtype)

    def _require_memory(self, spec: Spec) -> None:
        needed, available = self.bytes_for(spec), available_bytes()
        if available is not None and needed > available:
            size, hint = f"of {spec_bytes(spec):,} bytes", ""
            if self.share_frames:
                size = "with shared frames"
            elif any(frame_ndim(leaf) for _, leaf in flatten(spec)):
                shared = shared_bytes(spec, self.capacity) / 1e9
                name = type(self).__name__
                hint = f" If transitions show the same frames, {name}(..., share_frames=True) needs {shared:.1f} GB."
            raise MemoryError(
                f"a replay buffer of {self.capacity:,} transitions {size} needs {needed / 1e9:.1f} GB, "
                f"but only {available / 1e9:.1f} GB are available: lower replay_buffer_size.{hint}"
            )

    @foreign_arguments(PUSH_ARGUMENTS, counts_positional=False)
    def push(self, batch: Pushed) -> None:
        """Add transitions, overwriting the oldest. Of more than `capacity` at once, the last ones are kept, with a warning.

        Only the column `policy_version` of collected data may be missing in some pushes, such as in that of demonstrations; it
        is -1 there, also for transitions that were stored before the first push with this column.

        Args:
            batch: a rollout or episodes; a tree or nested mapping of arrays, tensors or lists [N, ...]; or a list of N
                transitions, trees or mappings, which are stacked. Only values of tensors are stored, not gradients.

        Raises:
            ValueError: leaves differ in name, shape, length or kind of dtype from the stored ones, a leaf is a single value, or
                has a dtype that tensors do not have, or the stored dtype cannot hold a number. Nothing is added.
            TypeError: a list holds something other than transitions.
        """
        self._store(named_rows(batch))

    def _store(self, rows: Any) -> slice | np.ndarray[Any, Any]:
        """Write these rows; returns the positions of the rows, or of the last ones that fit."""
        columns = self._columns
        if columns is not None and type(rows) is dict and (POLICY_VERSION in rows) != (POLICY_VERSION in columns):
            rows = self._with_versions(rows)
        try:
            signature = [(name, row.dtype, row.shape) for name, row in rows.items()]
        except AttributeError:  # nested leaves
            signature = []
        if not signature or signature != self._signature:
            self._count = self._fitting(rows)
            self._signature, self._order = signature, [self._columns[name] for name in rows]
        if self._narrower:
            self._require_held(rows)
        count = self._count
        start, stop = self._next, self._next + count
        where: slice | np.ndarray[Any, Any] = slice(start, stop)
        if stop > self.capacity:
            # The last `capacity` rows stay, at the same positions as if pushed one by one.
            if count > self.capacity and not self._has_warned:
                self._has_warned = True
                warn_caller(
                    f"{type(self).__name__}(capacity={self.capacity:,}) got {count:,} transitions at once: the last "
                    f"{self.capacity:,} are kept, and the first {count - self.capacity:,} are lost. Use a larger capacity.",
                )
            where = np.arange(max(start, stop - self.capacity), stop) % self.capacity
        self.writes += 1
        if self._frames is None:
            write_rows(self._order, rows.values(), where)
        else:
            self._write_parts(rows, np.arange(start, stop) if isinstance(where, slice) else where)
        self._next = stop % self.capacity
        self._pushed += count
        self._size = min(self._size + count, self.capacity)
        return where

    def _with_versions(self, rows: Any) -> Any:
        """The rows with the column `policy_version`, if they or the buffer have it; the buffer has it from then on."""
        if POLICY_VERSION not in rows:
            return _with_unknown_versions(rows, self._columns)
        if _are_versions(rows[POLICY_VERSION]):
            self._fitting({name: row for name, row in rows.items() if name != POLICY_VERSION})
            self._add_versions(as_array(rows[POLICY_VERSION]).dtype)
        return rows

    def _add_versions(self, dtype: Any) -> None:
        """Add the column `policy_version`, in which it is unknown for all transitions so far."""
        added = {POLICY_VERSION: np.full(self.capacity, -1, dtype)}
        spec: Any = spec_like(added)
        self._columns, self._spec = {**self._columns, **added}, {**self._spec, **spec}
        self._signature, self._version = [], object()

    def _write_parts(self, rows: Any, places: np.ndarray[Any, Any]) -> None:
        """Write these rows, or the last ones that fit, to these positions, in parts: so frames are freed before the next ones
        are added."""
        for begin in range(0, len(places), _PART):
            part, left = places[begin : begin + _PART], len(places) - begin
            last = slice(self._count - left, self._count - left + len(part))
            write_rows(self._order, [map_leaves(lambda leaf, at=last: leaf[at], row) for row in rows.values()], part)

    def _require_held(self, rows: Any) -> None:
        """Raise an error if a column cannot hold one of its numbers."""
        leaves, columns = dict(flatten(rows)), dict(flatten(self._columns))
        for path in self._narrower:
            who = f"a replay buffer's column {'/'.join(path)}"
            require_held(as_array(leaves[path]), columns[path].dtype, who)

    def _fitting(self, rows: Any) -> int:
        """The number of rows, if they fit; the first push fixes the columns."""
        by_path = dict(flatten(rows))
        if not by_path or () in by_path:
            raise ValueError(
                f"push() wants a batch with named leaves, got a {type(rows).__name__} without leaves: pass a dict or tree of "
                "rows [N, ...] by leaf name, a rollout, episodes, or a list of transitions."
            )
        leaves = {path: _rows_of(path, leaf) for path, leaf in by_path.items()}
        for path, leaf in leaves.items():
            if not leaf.ndim:
                raise ValueError(
                    f"push() wants rows [N, ...] of each leaf, got {'/'.join(path)} = {leaf.item()!r:.40}, a single value: for "
                    "one transition pass [value], or value[None] of an array or tensor."
                )
        count = max(map(len, leaves.values()))
        if self._columns is None:
            for path, leaf in leaves.items():
                if leaf.shape[:1] != (count,):
                    raise ValueError(
                        f"push() got {'/'.join(path)} of shape {leaf.shape}, other leaves have {count} rows: pass the same "
                        "number of rows of each leaf."
                    )
            self._allocate(spec_like(rows))
        columns = dict(flatten(self._columns))
        if leaves.keys() != columns.keys():
            held, given = (sorted("/".join(path) for path in paths) for paths in (columns, leaves))
            raise ValueError(f"a replay buffer with the leaves {held} got {given}: pass the same leaves in each push.")
        for path, column in columns.items():
            shape, row = (count, *column.shape[1:]), leaves[path]
            fits = row.dtype.kind in "OUS" if column.dtype.hasobject else np.can_cast(row.dtype, column.dtype, "same_kind")
            if row.shape != shape or not fits:
                raise ValueError(
                    f"a replay buffer that holds {'/'.join(path)} as {column.dtype} {shape} got {row.dtype} {row.shape}: pass "
                    "the same dtype and shape in each push."
                )
        self._narrower = [path for path, column in columns.items() if may_lose(leaves[path].dtype, column.dtype)]
        return count

    @foreign_arguments(SAMPLE_ARGUMENTS, counts_positional=False)
    def sample(self, size: int, columns: Collection[str] | None = None) -> Tree:
        """`size` transitions drawn uniformly with replacement, as a tree of CPU tensors [size, ...].

        Args:
            size: number of transitions.
            columns: top-level leaves to sample; unknown names are ignored. None for all.

        Raises:
            ValueError: the buffer is empty, or the size is negative.
        """
        _require_names(columns)
        return self.take(self.draw(size), columns)

    def draw(self, size: int) -> Draw:
        """Draw the transitions of the next batch: the random part of `sample`, without copying.

        Args:
            size: number of transitions.

        Raises:
            ValueError: the buffer is empty, or the size is negative.
        """
        self._require_some(size)
        return Draw(self.rng.integers(0, self._size, size), {})

    def take(self, draw: Draw, columns: Collection[str] | None = None) -> Tree:
        """The current transitions of a draw, as a tree of CPU tensors [size, ...].

        It changes no state, so another thread may call it while the buffer is not written to.

        Args:
            draw: a result of this buffer's `draw`.
            columns: as for `sample`.
        """
        return tree({**self._take(self._chosen(columns), draw.rows), **draw.beside})

    def _require_some(self, size: int) -> None:
        if size < 0:
            raise ValueError(f"sample({size}): the size must be 0 or more.")
        if not self._size:
            raise ValueError("sample() from an empty replay buffer: push transitions first.")

    def _chosen(self, columns: Collection[str] | None) -> dict[str, Any]:
        if columns is None:
            return self._columns  # type: ignore[no-any-return]
        _require_names(columns)
        return {name: column for name, column in self._columns.items() if name in columns}

    def _take(self, columns: dict[str, Any], rows: np.ndarray[Any, Any]) -> dict[str, Any]:
        taken: dict[str, Any] = {}
        for name, column in columns.items():
            if type(column) is dict:
                taken[name] = self._take(column, rows)
            elif column.dtype.hasobject:
                taken[name] = column.take(rows, 0)
            else:
                out = self._recycler.like(column, len(rows))
                # mode="clip" skips a bounds check, which is not needed, and with it a copy.
                taken[name] = torch.from_numpy(column.take(rows, 0, out, "clip"))
        return taken

    def __len__(self) -> int:
        return self._size

    def count(self) -> int:
        """The number of transitions; the same as `len`."""
        return self._size

    def clear(self) -> None:
        """Remove all transitions; the memory stays allocated."""
        self.writes += 1
        self._size = self._next = 0
        self._pushed, self._version = 0, object()
        if self._frames is not None:
            self._frames.clear()

    def state_dict(self) -> dict[str, Any]:
        """A copy of the transitions (objects as flat lists), and everything else that the next batch depends on."""
        columns = self._columns
        return self._state(None if columns is None else map_leaves(lambda column: _saved(column[: self._size].copy()), columns))

    def state_in_pieces(self) -> dict[str, Any]:
        """The same state for a saver that writes only new transitions: `columns` are `NumberedRows`.

        The state of an empty buffer is as in `state_dict`, and so is that of a subclass which overrides `state_dict`.
        """
        if not self._size or type(self).state_dict is not ReplayBuffer.state_dict:
            return self.state_dict()
        first, size = self._pushed - self._size, row_bytes(self._spec) if self.share_frames else self.bytes_per_transition
        return self._state(NumberedRows(self._version, first, self._pushed, self.capacity, size, self._rows))

    def _state(self, columns: Any) -> dict[str, Any]:
        """The state with these columns."""
        frames = {} if self._frames is None else self._frames.state(isinstance(columns, NumberedRows))
        leaves = () if self._columns is None else flatten(self._columns)
        shapes = [[list(path), list(column.shape[1:])] for path, column in leaves if column.dtype.hasobject]
        return {
            "capacity": self.capacity,
            "size": self._size,
            "next": self._next,
            "columns": columns,
            "shapes": shapes,
            "rng": self.rng.bit_generator.state,
            **frames,
        }

    def _rows(self, first: int, stop: int) -> Any:
        """Copies of the transitions with the numbers `first` to `stop` (exclusive)."""
        places = np.arange(first, stop) % self.capacity
        return map_leaves(lambda column: _saved(column[places]), self._columns)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. A refused state changes nothing.

        Raises:
            TypeError: the state is not a mapping, for example the path of a checkpoint.
            ValueError: the state is of a buffer with another capacity or class, its leaves differ from the stored ones, or it
                is not a possible state of a buffer.
            MemoryError: the transitions would need more than the available memory.
        """
        self._restore(self._checked(state))

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The checked arguments of `_restore`."""
        kind = self._CALLED
        optional = ("shapes", *state_keys(state)) if isinstance(state, Mapping) else ()
        state = base_state(self, state, (*self._SAVED, *optional))
        require_state(state, kind, self._SAVED, optional)
        if state["capacity"] != self.capacity:
            raise ValueError(
                f"a replay buffer of capacity {self.capacity} cannot load a state of capacity {state['capacity']}: make the "
                f"buffer with capacity={state['capacity']}."
            )
        size = require_integer(state, "size", kind, 0, self.capacity)
        place = require_integer(state, "next", kind, 0, self.capacity - 1)
        if size < self.capacity and place != size:
            raise state_error(kind, "next", place, f"{size}, because the buffer is not full and holds {size} transitions")
        require_generator(state["rng"], kind, self.rng)
        columns, frames = self._checked_columns(state, size)
        return {"size": size, "next": place, "rng": state["rng"], "columns": columns, "frames": frames}

    def _checked_columns(self, state: Mapping[str, Any], size: int) -> tuple[Any, SavedFrames | None]:
        """The saved columns as arrays by name, [size, ...], with the dtypes of this buffer; None if there are none. And their
        frames, if these are shared."""
        kind = self._CALLED
        if state["columns"] is None:
            if size:
                raise state_error(kind, "columns", None, f"columns of {size} transitions")
            return None, None
        if ("pools" in state) != self.share_frames:
            raise ValueError(
                f"the state of {with_article(kind)} with share_frames={'pools' in state} does not fit one with share_frames="
                f"{self.share_frames}: make the buffer with share_frames={'pools' in state}."
            )
        held, frames, looks = self._restored(state, size)
        if frames is not None:
            require_room(frames, spec_like(looks), self.capacity)
        if self._columns is None:
            self._require_memory(spec_like(looks))
            return held, frames
        if POLICY_VERSION not in looks:
            looks, held = (_with_unknown_versions(rows, self._columns) for rows in (looks, held))
        elif POLICY_VERSION not in self._columns and _are_versions(looks[POLICY_VERSION]):  # _restore adds it
            looks = {name: row for name, row in looks.items() if name != POLICY_VERSION}
        if self._fitting(looks) is not None:
            ours, theirs = dict(flatten(self._columns)), dict(flatten(looks))
            for path, column in ours.items():
                if theirs[path].dtype != column.dtype:
                    raise state_error(
                        kind, "/".join(("columns", *path)), theirs[path].dtype, f"{column.dtype}, as in this buffer"
                    )
        return held, frames

    def _restored(self, state: Mapping[str, Any], size: int) -> tuple[Any, SavedFrames | None, Any]:
        """The saved columns, their frames, and columns with the shapes and dtypes of this buffer's."""
        held = restored_columns(state["columns"], state.get("shapes", ()), size, self._CALLED)
        if not self.share_frames:
            return held, None, held
        frames = checked_frames(state, held, self._CALLED)
        return held, frames, frames.looks(held)

    def _restore(self, checked: Mapping[str, Any]) -> None:
        held, frames = checked["columns"], checked["frames"]
        self.writes += 1
        if held is not None:
            if self._columns is None:
                self._allocate(spec_like(held if frames is None else frames.looks(held)))
            elif POLICY_VERSION in held and POLICY_VERSION not in self._columns:
                self._add_versions(as_array(held[POLICY_VERSION]).dtype)
            rows = dict(flatten(held))
            shared = () if self._frames is None else self._frames.columns
            columns = {path: column for path, column in flatten(self._columns) if path not in shared}
            write_rows(columns.values(), [rows[path] for path in columns], slice(0, checked["size"]))
            if self._frames is not None:
                self._frames.restore(frames)
        self._size, self._next = checked["size"], checked["next"]
        self._pushed, self._version = self._next + (self.capacity if self._size == self.capacity else 0), object()
        self.rng.bit_generator.state = checked["rng"]


def _require_names(columns: Collection[str] | None) -> None:
    if isinstance(columns, str):
        raise TypeError(f"sample(columns={columns!r}) wants several names, got one string: write ({columns!r},).")


def named_rows(batch: Any) -> Any:
    """The pushed data as rows [N, ...] by leaf name; data without named leaves is unchanged."""
    if isinstance(batch, (Trajectories, Episodes)):
        return batch.rows()
    if isinstance(batch, (list, tuple)) and any(is_tree(one) or isinstance(one, Mapping) for one in batch):
        return stack_transitions(batch, "push()")
    return nested(batch)


def _with_unknown_versions(rows: Any, columns: Mapping[str, Any]) -> Any:
    """The rows with the column `policy_version`, -1 for each, if these columns have it."""
    leaves = [leaf for _, leaf in flatten(rows)] if isinstance(rows, Mapping) else []
    if not _are_versions(columns.get(POLICY_VERSION)) or not leaves or not np.ndim(leaves[0]):
        return rows  # which is refused, if it does not fit
    return {**rows, POLICY_VERSION: np.full(len(leaves[0]), -1, columns[POLICY_VERSION].dtype)}


def _are_versions(column: Any) -> bool:
    """Whether a column holds one integer for each transition."""
    if column is None or isinstance(column, Mapping) or is_tree(column):
        return False
    found = as_array(column)
    return bool(found.ndim == 1 and found.dtype.kind == "i")


def _rows_of(path: tuple[str, ...], leaf: Any) -> Any:
    try:
        return as_array(leaf)
    except (TypeError, ValueError):
        raise ValueError(
            f"push() wants rows [N, ...] of one shape, got {'/'.join(path)} = {leaf!r:.60}: give each row the same shape, or "
            "pass an array of objects, to_objects(rows)."
        ) from None


def _saved(column: np.ndarray[Any, Any]) -> torch.Tensor | list[Any]:
    return column.reshape(-1).tolist() if column.dtype.hasobject else torch.from_numpy(column)
