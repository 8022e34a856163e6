"""Mixtures: several replay buffers sampled as one, by fixed fractions or as a dict of batches."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from ding_lite.basics import base_state
from ding_lite.basics.signatures import passed_signature_of
from ding_lite.data.column_arrays import as_array, require_held
from ding_lite.data.replay import ReplayBuffer
from ding_lite.data.state_checks import require_integer, require_state, state_error
from ding_lite.data.trees import Tree, holds_objects, nested, tree

Buffers: TypeAlias = "ReplayBuffer | Sequence[tuple[ReplayBuffer, float]] | Mapping[str, ReplayBuffer] | Sampler"
"""One buffer; [(buffer, 0.75), (other, 0.25)] for batches with these fractions of rows from each buffer; {"name": buffer, ...}
for a dict of batches, one of each buffer; or a result of `sampler`."""
_FINEST = 10**9  # largest denominator of a fraction


def sampler(buffers: Buffers, who: str = "sampler") -> Sampler:
    """A common interface for one buffer or several.

    Args:
        buffers: see `Buffers`. Any object with `sample` works.
        who: the caller, for messages.

    Returns:
        The interface; `buffers` itself if it is already a Sampler.

    Raises:
        TypeError: not a replay buffer, or not one of the three forms.
        ValueError: a fraction is not above 0, or the fractions do not sum to 1.

    Example:
        >>> old, new = ReplayBuffer(10), ReplayBuffer(10)
        >>> old.push({"x": np.zeros(10)}), new.push({"x": np.ones(10)})
        (None, None)
        >>> sampler([(old, 0.75), (new, 0.25)]).sample(4).x.tolist()
        [0.0, 0.0, 0.0, 1.0]
        >>> sampler({"old": old, "new": new}).sample(2).new.x.tolist()
        [1.0, 1.0]
    """
    if isinstance(buffers, Sampler):
        return buffers
    if isinstance(buffers, Mapping) and buffers:
        named = {f"the buffer {name!r}": buffer for name, buffer in buffers.items()}
        _require_buffers(named, who)
        return NamedSampler(buffers)
    if not isinstance(buffers, (list, tuple)) or not buffers:
        _require_buffers({"": buffers}, who)
        return Sampler([buffers])
    for pair in buffers:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[1], numbers.Real):
            raise TypeError(
                f"{who} wants buffers with their fractions, [(buffer, 0.75), (other, 0.25)], got {pair!r:.80} in the list."
            )
    _require_buffers({f"buffer {place}": buffer for place, (buffer, _) in enumerate(buffers)}, who)
    shares = [float(share) for _, share in buffers]
    if not min(shares) > 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise ValueError(f"{who} got buffers with the fractions {shares}: each must be above 0, and their sum must be 1.")
    return JoinedSampler([buffer for buffer, _ in buffers], shares)


def _require_buffers(buffers: Mapping[str, Any], who: str) -> None:
    for name, buffer in buffers.items():
        if not hasattr(buffer, "sample"):
            as_what = f" as {name}" if name else ""
            raise TypeError(
                f"{who} wants a ReplayBuffer{as_what}, got {buffer!r:.80} of type {type(buffer).__name__}, which has no "
                "'sample'."
            )


class Sampler:
    """The interface of `sampler` for one buffer; subclasses are for several."""

    def __init__(self, buffers: Sequence[Any], names: Sequence[str] = ("the buffer",)) -> None:
        self.buffers = tuple(buffers)
        """Every buffer, for contracts."""
        self.takes_priorities = any(map(_takes_priorities, self.buffers))
        """Whether `update_priority` must be called after each batch."""
        self.lead = min(map(_lead, self.buffers))
        """Number of batches that are drawn ahead of learning, 0 or 1."""
        self._called = [f"{name}, a {type(buffer).__name__}" for name, buffer in zip(names, buffers)]
        self._capacities = [getattr(buffer, "capacity", math.inf) for buffer in self.buffers]
        self._ways = [_ways_of(buffer) for buffer in self.buffers]

    def has_enough(self, count: int) -> bool:
        """Whether the buffers together hold `count` rows, or are all full, and none is empty."""
        return all(map(len, self.buffers)) and self._hold(count)

    def waited_for(self, count: int) -> list[str]:
        """Names of the empty buffers, if these are the only reason why `has_enough` is false."""
        empty = [name for name, buffer in zip(self._called, self.buffers) if not len(buffer)]
        return empty if self._hold(count) else []

    def _hold(self, count: int) -> bool:
        sizes = list(map(len, self.buffers))
        return sum(sizes) >= count or all(size >= capacity for size, capacity in zip(sizes, self._capacities))

    def state_dict(self) -> dict[str, Any]:
        """Empty, unless rows of several buffers are joined. Buffers have their own state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        require_state(base_state(self, state, ()), "sampler", ())

    @property
    def writes(self) -> int:
        """A version that changes with every write to one of the buffers; only used if `lead` is above 0."""
        return sum(buffer.writes for buffer in self.buffers)

    def sample(self, size: int, columns: Collection[str] | None = None) -> Tree:
        """`size` rows of these top-level leaves; None for all."""
        return self.take(self.draw(size), columns)

    def draw(self, size: int) -> Any:
        """Draw the `size` rows of the next batch, for `take`; see ReplayBuffer."""
        return self._ways[0].draw(size)

    def take(self, drawn: Any, columns: Collection[str] | None = None) -> Tree:
        """The rows of a `draw`; see `sample`."""
        return self._ways[0].take(drawn, columns)

    def _drawn(self, place: int, size: int) -> Any:
        """Draw rows of one of several buffers."""
        if not len(self.buffers[place]):
            raise ValueError(f"sample() from {self._called[place]}, which is empty: push transitions into it first.")
        return self._ways[place].draw(size)

    def update_priority(self, batch: Tree, priority: Any) -> None:
        """Update the priorities of the rows of a sampled batch.

        Args:
            batch: the sampled batch, with the leaf index.
            priority: priority of each row, [B] tensor or array.
        """
        self.buffers[0].update_priority(batch.index, priority)


class JoinedSampler(Sampler):
    """Batches with a fixed fraction of rows from each buffer, in the order of the buffers.

    Fractions of a row are counted from batch to batch, so that the number of rows from each buffer so far never differs from
    its exact fraction by one row or more.

    A batch has the leaves that all buffers have, with the dtypes of the first buffer. If some buffers are prioritised, rows of
    the others have index -1, and weight 1 unless they have a column weight; the indices of each prioritised buffer begin after
    those of the previous one.
    """

    def __init__(self, buffers: Sequence[Any], shares: Sequence[float]) -> None:
        super().__init__(buffers, [f"buffer {place} of the list" for place in range(len(buffers))])
        exact = [max(Fraction(share).limit_denominator(_FINEST), Fraction(1, _FINEST)) for share in shares]
        scale = math.lcm(*(share.denominator for share in exact))
        self._shares = [int(share * scale) for share in exact]  # integers, relative to their sum, so that nothing drifts
        self._given = [0] * len(shares)
        sizes = [buffer.capacity if _takes_priorities(buffer) else 0 for buffer in self.buffers]
        self._offsets = [sum(sizes[:place]) for place in range(len(sizes))]

    def draw(self, size: int) -> Any:
        """Draw the number of rows of each buffer in the next `size`, and the rows.

        Raises:
            ValueError: a buffer that has to give rows is empty, or the size is negative.
        """
        if size < 0:
            raise ValueError(f"sample({size}): the size must be 0 or more.")
        sizes = self._sizes(size)
        places = [place for place, count in enumerate(sizes) if count or len(self.buffers[place])] or [0]
        drawn = [(place, sizes[place], self._drawn(place, sizes[place])) for place in places]
        self._given = [given + count for given, count in zip(self._given, sizes)]
        return drawn

    def take(self, drawn: Any, columns: Collection[str] | None = None) -> Tree:
        """These rows of these top-level leaves; None for those that all buffers have.

        Raises:
            ValueError: only some of the buffers have a requested leaf, or, with `columns=None`, `discount`, because rewards
                must not be bootstrapped with the discount of another buffer. Or a leaf differs in shape, or its dtype cannot be
                cast to that of the first buffer.
        """
        parts = {self._called[place]: self._part(place, count, rows, columns) for place, count, rows in drawn}
        _require_leaves(parts, ("discount",) if columns is None else columns)
        first, *others = parts.values()
        names = [name for name in first if all(name in part for part in others)]
        return tree({name: _joined(name, {called: part[name] for called, part in parts.items()}) for name in names})

    def _sizes(self, size: int) -> list[int]:
        """Number of rows from each buffer: the whole rows that are due, and one more from the buffers that are due next.

        Reference:
            Baruah et al. (1996), "Proportionate progress": with the earliest deadline first, the error stays below one row.
        """
        total, whole = sum(self._given) + size, sum(self._shares)
        owed = [share * total // whole - given for share, given in zip(self._shares, self._given)]
        sizes = [max(rows, 0) for rows in owed]
        begun = [place for place, share in enumerate(self._shares) if sizes[place] == owed[place] and share * total % whole]
        begun.sort(key=lambda place: Fraction(self._given[place] + sizes[place] + 1, self._shares[place]))
        for place in begun[: size - sum(sizes)]:
            sizes[place] += 1
        return sizes

    def state_dict(self) -> dict[str, Any]:
        """How many rows each buffer has given."""
        return {"given": list(self._given)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state. A refused state changes nothing.

        Raises:
            TypeError, ValueError: not a state of a sampler of this number of buffers.
        """
        state = base_state(self, state, ("given",))
        require_state(state, "sampler", ("given",))
        given = state["given"]
        if not isinstance(given, (list, tuple)) or len(given) != len(self.buffers):
            raise state_error("sampler", "given", given, f"a number for each of {len(self.buffers)} buffers")
        self._given = [require_integer({"given": rows}, "given", "sampler", 0) for rows in given]

    def _part(self, place: int, count: int, drawn: Any, columns: Collection[str] | None) -> dict[str, Any]:
        """Rows of one buffer, with the indices of the batch."""
        part: dict[str, Any] = nested(self._ways[place].take(drawn, columns))
        if not self.takes_priorities:
            return part
        if _takes_priorities(self.buffers[place]):
            return {**part, "index": part["index"] + self._offsets[place]}
        weight = part["weight"].reshape(count).float() if "weight" in part else torch.ones(count)
        return {**part, "weight": weight, "index": torch.full((count,), -1)}

    def update_priority(self, batch: Tree, priority: Any) -> None:
        """Update the priorities of rows from prioritised buffers."""
        index, priority = batch.index.numpy(force=True), as_array(priority)
        for buffer, offset in zip(self.buffers, self._offsets):
            if _takes_priorities(buffer):
                own = (index >= offset) & (index < offset + buffer.capacity)
                buffer.update_priority(index[own] - offset, priority[own])


class NamedSampler(Sampler):
    """Dicts of batches, by the name of the buffer."""

    def __init__(self, buffers: Mapping[str, Any]) -> None:
        super().__init__(tuple(buffers.values()), [f"the buffer {name!r}" for name in buffers])
        self._names = tuple(buffers)

    def draw(self, size: int) -> Any:
        """Draw `size` rows of each buffer for the next batch.

        Raises:
            ValueError: a buffer is empty.
        """
        return [self._drawn(place, size) for place in range(len(self.buffers))]

    def take(self, drawn: Any, columns: Collection[str] | None = None) -> Tree:
        """These rows of each buffer, with these top-level leaves; None, or names of buffers, for all leaves."""
        if columns is not None and any(name in columns for name in self._names):
            columns = None
        return tree({name: way.take(rows, columns) for name, way, rows in zip(self._names, self._ways, drawn)})

    def update_priority(self, batch: Tree, priority: Any) -> None:
        """Update the priorities of each prioritised buffer.

        Args:
            batch: the sampled batch.
            priority: [B] for each such buffer by name; or [B], if there is only one.

        Raises:
            ValueError: there are several, and priorities are not given by name for each.
        """
        wanted = {name: buffer for name, buffer in zip(self._names, self.buffers) if _takes_priorities(buffer)}
        if not isinstance(priority, Mapping):
            priority = dict.fromkeys(wanted, priority) if len(wanted) == 1 else {}
        if missing := sorted(wanted.keys() - priority.keys()):
            raise ValueError(
                f"update_priority() got no priorities for the prioritised buffers {missing}: return 'priority' from the loss "
                f"as a dict with [B] for each of {sorted(wanted)}."
            )
        for name, buffer in wanted.items():
            buffer.update_priority(batch[name].index, priority[name])


def _takes_priorities(buffer: Any) -> bool:
    return hasattr(buffer, "update_priority")


def _is_split(buffer: Any) -> bool:
    """Whether its `sample` is that of ReplayBuffer, which is `draw` and then `take`."""
    return getattr(buffer.sample, "__func__", None) is ReplayBuffer.sample


def _lead(buffer: Any) -> int:
    if not _is_split(buffer):
        return 0  # it draws and copies in one call, so it must not be sampled early
    return getattr(buffer, "lag", 0) if _takes_priorities(buffer) else 1


class _Ways(NamedTuple):
    """The functions that draw rows from a buffer and take them."""

    draw: Callable[[int], Any]
    take: Callable[[Any, Collection[str] | None], Tree]


def _ways_of(buffer: Any) -> _Ways:
    """Its `draw` and `take`; a buffer of another library only has `sample`, perhaps without `columns`."""
    if _is_split(buffer):
        return _Ways(buffer.draw, buffer.take)
    if len(passed_signature_of(buffer.sample).parameters) > 1:
        return _Ways(int, buffer.sample)
    return _Ways(int, lambda size, columns: buffer.sample(size))


def _require_leaves(parts: Mapping[str, Mapping[str, Any]], wanted: Collection[str]) -> None:
    for called, part in parts.items():
        for other, others in parts.items():
            if missing := sorted(name for name in wanted if name in others and name not in part):
                raise ValueError(
                    f"sample() needs the leaves {missing} from every buffer, but {called}, lacks them, and {other}, has them: "
                    "push them into both, or pass the buffers by name in a dict."
                )


def _joined(where: str, leaves: Mapping[str, Any]) -> Any:
    """A leaf of each buffer, concatenated, with the dtype of the first."""
    called, first = next(iter(leaves.items()))
    look, rows = _look(first), []
    for other, leaf in leaves.items():
        own = _look(leaf)
        if own != look and not (own[1] == look[1] and _can_cast(own[0], look[0])):
            raise ValueError(
                f"rows of {where} cannot be joined: {called}, holds {look[0]} {look[1]}, and {other}, holds {own[0]} {own[1]}: "
                "push the same shape and dtype into both, or pass the buffers by name in a dict."
            )
        rows.append(leaf if own == look else _cast(leaf, look[0], f"{where} of {called}, beside {other},"))
    if type(first) is dict:
        return {name: _joined(f"{where}/{name}", {other: leaf[name] for other, leaf in leaves.items()}) for name in first}
    return torch.cat(rows) if isinstance(first, torch.Tensor) else np.concatenate(rows)


def _cast(leaf: torch.Tensor, dtype: torch.dtype, who: str) -> torch.Tensor:
    cast = leaf.to(dtype)
    require_held(leaf.numpy(), cast.numpy().dtype, who)
    return cast


def _look(leaf: Any) -> tuple[Any, Any]:
    """Dtype and shape of a row; or the names of nested leaves."""
    if type(leaf) is dict:
        return "nested", sorted(leaf)
    return "object" if holds_objects(leaf) else leaf.dtype, tuple(leaf.shape[1:])


def _can_cast(dtype: Any, to: Any) -> bool:
    """Whether a replay buffer with dtype `to` would accept numbers of `dtype`."""
    are_tensors = isinstance(dtype, torch.dtype) and isinstance(to, torch.dtype)
    return are_tensors and torch.can_cast(dtype, to) and (to.is_signed or not dtype.is_signed)
