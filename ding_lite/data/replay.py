"""Replay: transitions kept for later, sampled uniformly.

Room: ding_lite.data, floor 1. Imports the engine and the room's trees, columns and rollouts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, SupportsIndex

import numpy as np
import torch

from ding_lite.basics import seed_of, unflatten
from ding_lite.data.columns import Spec, as_array, available_bytes, spec_bytes, spec_like, to_objects, write_rows
from ding_lite.data.recycling import Recycler
from ding_lite.data.rollouts import Trajectories
from ding_lite.data.trees import Tree, flatten, map_leaves, nested, tree


class ReplayBuffer:
    """The last `capacity` transitions in preallocated arrays, one for each leaf; sampled uniformly, with replacement.

    Leaves of objects or text stay arrays, of objects.

    Args:
        capacity: transitions.
        seed: of its own random generator.
        spec: shape and dtype of each leaf of a transition, where they are to be fixed, and the size to be known, before the
            first push; otherwise the first push decides.

    Raises:
        TypeError: capacity is no integer.
        ValueError: capacity < 1.
        MemoryError: the arrays would take more than the machine has left, told before any is made.

    Example:
        >>> buffer = ReplayBuffer(100)
        >>> buffer.push({"obs": np.zeros((8, 4), np.float32), "reward": np.ones(8, np.float32)})
        >>> len(buffer), buffer.sample(3).obs.shape
        (8, torch.Size([3, 4]))
    """

    def __init__(self, capacity: int, seed: int = 0, spec: Mapping[str, Spec] | None = None) -> None:
        if not isinstance(capacity, SupportsIndex) or isinstance(capacity, bool):
            raise TypeError(f"ReplayBuffer(capacity={capacity!r}) wants an integer, got a {type(capacity).__name__}.")
        if capacity < 1:
            raise ValueError(f"ReplayBuffer(capacity={capacity}): it holds at least 1 transition.")
        self.capacity = int(capacity)
        self.rng = np.random.default_rng(seed_of(seed, f"{type(self).__name__}(seed={{}})"))
        self._spec: Any = None
        self._columns: Any = None
        self._size = self._next = 0
        # What the last push looked like, and the columns in its order: the next one most often looks the same.
        self._signature: list[Any] = []
        self._order: list[Any] = []
        self._count = 0
        self._recycler = Recycler()
        if spec is not None:
            self._allocate(dict(spec))

    @property
    def bytes_per_transition(self) -> int:
        """Bytes that one transition takes; 0 before its leaves are known."""
        return 0 if self._spec is None else spec_bytes(self._spec)

    @property
    def nbytes(self) -> int:
        """Bytes that the full buffer takes; 0 before its leaves are known."""
        return 0 if self._spec is None else self.bytes_for(self._spec)

    def bytes_for(self, spec: Spec) -> int:
        """Bytes that it takes, full of transitions that look like this."""
        return spec_bytes(spec) * self.capacity

    def _allocate(self, spec: Spec) -> None:
        needed, available = self.bytes_for(spec), available_bytes()
        if available is not None and needed > available:
            raise MemoryError(
                f"a replay buffer of {self.capacity:,} transitions of {spec_bytes(spec):,} bytes needs {needed / 1e9:.1f} GB, "
                f"and {available / 1e9:.1f} GB are left: lower replay_buffer_size."
            )
        self._spec = spec
        self._columns = map_leaves(lambda leaf: np.zeros((self.capacity, *leaf.shape), leaf.dtype), spec)

    def push(self, batch: Trajectories | Tree | Mapping[str, Any]) -> None:
        """Add transitions, overwriting the oldest.

        Args:
            batch: a rollout, or a tree or nested mapping of arrays, tensors or lists [N, ...]; of tensors only the values.

        Raises:
            ValueError: leaves that differ in name, shape, length or kind of dtype from those already here, or that are single
                values. Nothing is added.
        """
        self._store(named_rows(batch))

    def _store(self, rows: Any) -> slice | np.ndarray[Any, Any]:
        """Write these rows; returns where they stand, or the last of them, where they are more than it holds."""
        try:
            signature = [(name, row.dtype, row.shape) for name, row in rows.items()]
        except AttributeError:  # nested leaves
            signature = []
        if not signature or signature != self._signature:
            self._count = self._fitting(rows)
            self._signature, self._order = signature, [self._columns[name] for name in rows]
        count = self._count
        start, stop = self._next, self._next + count
        where: slice | np.ndarray[Any, Any] = slice(start, stop)
        if stop > self.capacity:
            # The rows that stay are the last `capacity`, and they stand where they would have come one by one.
            where = np.arange(max(start, stop - self.capacity), stop) % self.capacity
        write_rows(self._order, rows.values(), where)
        self._next = stop % self.capacity
        self._size = min(self._size + count, self.capacity)
        return where

    def _fitting(self, rows: Any) -> int:
        """How many rows these are, if they fit; the first that come decide the columns."""
        leaves = {path: as_array(leaf) for path, leaf in flatten(rows)}
        if not leaves or () in leaves:
            raise ValueError(f"push() wants a batch with named leaves, got {type(rows).__name__} with none.")
        for path, leaf in leaves.items():
            if not leaf.ndim:
                raise ValueError(
                    f"push() wants rows [N, ...] of each leaf, got {'/'.join(path)} = {leaf.item()!r:.40}, a single value: for "
                    "one transition give [value], or value[None] of an array or tensor."
                )
        count = max(map(len, leaves.values()))
        if self._columns is None:
            for path, leaf in leaves.items():
                if leaf.shape[:1] != (count,):
                    raise ValueError(
                        f"{'/'.join(path)} of shape {leaf.shape} was given beside {count} rows: give as many of each."
                    )
            self._allocate(spec_like(rows))
        columns = dict(flatten(self._columns))
        if leaves.keys() != columns.keys():
            held, given = (sorted("/".join(path) for path in paths) for paths in (columns, leaves))
            raise ValueError(f"a replay buffer with the leaves {held} was given {given}: give it the same.")
        for path, column in columns.items():
            shape, row = (count, *column.shape[1:]), leaves[path]
            fits = row.dtype.kind in "OUS" if column.dtype.hasobject else np.can_cast(row.dtype, column.dtype, "same_kind")
            if row.shape != shape or not fits:
                raise ValueError(
                    f"a replay buffer that holds {'/'.join(path)} as {column.dtype} {shape} was given {row.dtype} {row.shape}: "
                    "give it the same."
                )
        return count

    def sample(self, size: int, columns: Collection[str] | None = None) -> Tree:
        """`size` transitions drawn uniformly with replacement, as a tree of CPU tensors [size, ...].

        Args:
            size: transitions.
            columns: which leaves of the top are wanted; names that it does not have are left out. None wants all.

        Raises:
            ValueError: the buffer is empty, or the size negative.
        """
        self._require_some(size)
        return tree(self._take(self._chosen(columns), self.rng.integers(0, self._size, size)))

    def _require_some(self, size: int) -> None:
        if size < 0:
            raise ValueError(f"sample({size}): a sample has 0 transitions or more.")
        if not self._size:
            raise ValueError("sample() from an empty replay buffer: push transitions first.")

    def _chosen(self, columns: Collection[str] | None) -> dict[str, Any]:
        if columns is None:
            return self._columns  # type: ignore[no-any-return]
        if isinstance(columns, str):
            raise TypeError(f"sample(columns={columns!r}) wants several names, got one string: write ({columns!r},).")
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
                # "clip" skips a check of the bounds, which these rows keep, and with it a copy.
                taken[name] = torch.from_numpy(column.take(rows, 0, out, "clip"))
        return taken

    def __len__(self) -> int:
        return self._size

    def count(self) -> int:
        """How many transitions it holds; the same as `len`."""
        return self._size

    def clear(self) -> None:
        """Forget every transition; the memory stays allocated."""
        self._size = self._next = 0

    def state_dict(self) -> dict[str, Any]:
        """A copy of the transitions (objects as flat lists), where the next one goes, and the state of the random generator."""
        held, shapes = None, []
        if self._columns is not None:
            held = map_leaves(lambda column: _saved(column[: self._size]), self._columns)
            leaves = flatten(self._columns)
            shapes = [[list(path), list(column.shape[1:])] for path, column in leaves if column.dtype.hasobject]
        return {
            "capacity": self.capacity,
            "size": self._size,
            "next": self._next,
            "columns": held,
            "shapes": shapes,
            "rng": self.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state.

        Raises:
            ValueError: it was saved by a buffer of another capacity, or is no such state.
        """
        if missing := {"capacity", "size", "next", "columns", "rng"} - set(state):
            raise ValueError(f"this is no state of a replay buffer: it lacks {sorted(missing)}, it has {sorted(state)}.")
        if state["capacity"] != self.capacity:
            raise ValueError(
                f"a replay buffer of capacity {self.capacity} cannot load one of {state['capacity']}: make it as large."
            )
        if state["columns"] is not None:
            columns = dict(flatten(state["columns"]))
            for path, shape in state.get("shapes", ()):
                columns[tuple(path)] = to_objects(columns[tuple(path)]).reshape(state["size"], *shape)
            held = unflatten(columns)
            if self._columns is None:
                self._allocate(spec_like(held))
            self._fitting(held)
            write_rows([self._columns], [held], slice(0, state["size"]))
        self._size, self._next = state["size"], state["next"]
        self.rng.bit_generator.state = state["rng"]


def named_rows(batch: Trajectories | Tree | Mapping[str, Any]) -> Any:
    """What is pushed as rows [N, ...] by leaf name; what has no named leaves stays as it is."""
    return batch.rows() if type(batch) is Trajectories else nested(batch)


def _saved(column: np.ndarray[Any, Any]) -> torch.Tensor | list[Any]:
    return column.reshape(-1).tolist() if column.dtype.hasobject else torch.from_numpy(column.copy())
