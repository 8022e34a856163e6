"""Mixtures: several replay buffers sampled as one, joined by shares or side by side.

Room: ding_lite.data, floor 1. Imports the room's replay and trees.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch

from ding_lite.data.replay import ReplayBuffer
from ding_lite.data.trees import Tree, first_leaf, map_leaves, nested, tree

Buffers: TypeAlias = "ReplayBuffer | Sequence[tuple[ReplayBuffer, float]] | Mapping[str, ReplayBuffer]"
"""One buffer; [(buffer, 0.75), (other, 0.25)], whose batches are joined from shares of each; or {"name": buffer, ...}, whose
batches hold a batch of each under its name."""


def sampler(buffers: Buffers, who: str = "sampler") -> Sampler:
    """One face for one buffer or several.

    Args:
        buffers: see `Buffers`. Whatever can `sample` may stand in for our own.
        who: asks, for messages.

    Raises:
        TypeError: what is no replay buffer, or not of one of the three forms.
        ValueError: shares that are not above 0, or do not sum to 1.

    Example:
        >>> old, new = ReplayBuffer(10), ReplayBuffer(10)
        >>> old.push({"x": np.zeros(10)}), new.push({"x": np.ones(10)})
        (None, None)
        >>> sampler([(old, 0.75), (new, 0.25)]).sample(4).x.tolist()
        [0.0, 0.0, 0.0, 1.0]
        >>> sampler({"old": old, "new": new}).sample(2).new.x.tolist()
        [1.0, 1.0]
    """
    if isinstance(buffers, Mapping) and buffers:
        named = {f"the buffer {name!r}": buffer for name, buffer in buffers.items()}
        _require_buffers(named, who)
        return NamedSampler(buffers)
    if not isinstance(buffers, (list, tuple)) or not buffers:
        _require_buffers({"": buffers}, who)
        return Sampler([buffers])
    for pair in buffers:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[1], numbers.Real):
            raise TypeError(f"{who} wants buffers with their shares, [(buffer, 0.75), (other, 0.25)], got {pair!r:.80} in it.")
    _require_buffers({f"buffer {place}": buffer for place, (buffer, _) in enumerate(buffers)}, who)
    shares = [float(share) for _, share in buffers]
    if not min(shares) > 0 or not math.isclose(sum(shares), 1, abs_tol=1e-6):
        raise ValueError(f"{who} was given buffers with the shares {shares}: each is above 0, and together they are 1.")
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
    """The face of one buffer, made by `sampler`; of several in the classes below."""

    def __init__(self, buffers: Sequence[Any]) -> None:
        self.buffers = tuple(buffers)
        """Every buffer, for contracts."""
        self.takes_priorities = any(map(_takes_priorities, self.buffers))
        """Whether `update_priority` wants to be told of each batch."""
        self._capacities = [getattr(buffer, "capacity", math.inf) for buffer in self.buffers]
        self._sample = [_sampling(buffer) for buffer in self.buffers]

    def has_enough(self, count: int) -> bool:
        """Whether each buffer holds so many rows, or is full."""
        return all(len(buffer) >= min(count, capacity) for buffer, capacity in zip(self.buffers, self._capacities))

    def sample(self, size: int, columns: Collection[str] | None = None) -> Tree:
        """`size` rows of these leaves of the top; None wants all."""
        return self._sample[0](size, columns)

    def update_priority(self, batch: Tree, priority: Any) -> None:
        """Give the rows of a sampled batch new priorities.

        Args:
            batch: with the leaf index, as sampled.
            priority: of each of its rows, [B] tensor or array.
        """
        self.buffers[0].update_priority(batch.index, priority)


class JoinedSampler(Sampler):
    """Batches of which each buffer gives its share of the rows, first those of the first.

    They have the leaves that all buffers have. Where one of the buffers goes by priority, rows of the others have weight 1 and
    index -1, and the indices of each such buffer follow on those of the one before.
    """

    def __init__(self, buffers: Sequence[Any], shares: Sequence[float]) -> None:
        super().__init__(buffers)
        self._shares = [share / sum(shares) for share in shares]
        sizes = [buffer.capacity if _takes_priorities(buffer) else 0 for buffer in self.buffers]
        self._offsets = [sum(sizes[:place]) for place in range(len(sizes))]

    def sample(self, size: int, columns: Collection[str] | None = None) -> Tree:
        """`size` rows of these leaves of the top; None wants those that all buffers have.

        Raises:
            ValueError: a leaf is asked for that one buffer has and another lacks.
        """
        parts = [nested(sample(count, columns)) for sample, count in zip(self._sample, self._sizes(size))]
        if self.takes_priorities:
            parts = [self._numbered(part, offset) for part, offset in zip(parts, self._offsets)]
        names = [name for name in parts[0] if all(name in part for part in parts)]
        if columns is not None:
            self._require_same(parts)
        return tree({name: map_leaves(_joined, *(part[name] for part in parts)) for name in names})

    def _sizes(self, size: int) -> list[int]:
        """Rows of each buffer: the whole numbers below its shares, and those left over to the largest remainders."""
        exact = [share * size for share in self._shares]
        sizes = [math.floor(rows) for rows in exact]
        by_remainder = sorted(range(len(sizes)), key=lambda place: sizes[place] - exact[place])
        for place in by_remainder[: size - sum(sizes)]:
            sizes[place] += 1
        return sizes

    @staticmethod
    def _numbered(part: dict[str, Any], offset: int) -> dict[str, Any]:
        if "index" in part:
            return {**part, "index": part["index"] + offset}
        count = len(first_leaf(part))
        return {**part, "weight": torch.ones(count), "index": torch.full((count,), -1)}

    def _require_same(self, parts: Sequence[Mapping[str, Any]]) -> None:
        for place, part in enumerate(parts):
            for other, others in enumerate(parts):
                if missing := sorted(others.keys() - part.keys()):
                    raise ValueError(
                        f"the leaves {missing} are asked for, which buffer {other} of the list has and buffer {place}, a "
                        f"{type(self.buffers[place]).__name__}, lacks: push them into both, or take buffers by name."
                    )

    def update_priority(self, batch: Tree, priority: Any) -> None:
        """Give the rows that came by priority new ones, each in its buffer."""
        index, priority = batch.index.numpy(force=True), torch.as_tensor(priority).numpy(force=True)
        for buffer, offset in zip(self.buffers, self._offsets):
            if _takes_priorities(buffer):
                own = (index >= offset) & (index < offset + buffer.capacity)
                buffer.update_priority(index[own] - offset, priority[own])


class NamedSampler(Sampler):
    """Batches that hold, under the name of each buffer, a batch of it."""

    def __init__(self, buffers: Mapping[str, Any]) -> None:
        super().__init__(tuple(buffers.values()))
        self._names = tuple(buffers)

    def sample(self, size: int, columns: Collection[str] | None = None) -> Tree:
        """`size` rows of each buffer."""
        return tree({name: sample(size, columns) for name, sample in zip(self._names, self._sample)})

    def update_priority(self, batch: Tree, priority: Any) -> None:
        """Give the rows of each buffer that goes by priority new ones.

        Args:
            batch: as sampled.
            priority: [B] of each such buffer by its name; or [B], where there is but one.

        Raises:
            ValueError: there are several, and the priorities are not given by name, or not for each.
        """
        wanted = {name: buffer for name, buffer in zip(self._names, self.buffers) if _takes_priorities(buffer)}
        if not isinstance(priority, Mapping):
            priority = dict.fromkeys(wanted, priority) if len(wanted) == 1 else {}
        if missing := sorted(wanted.keys() - priority.keys()):
            raise ValueError(
                f"the buffers {missing} go by priority, and none was given for them: let the loss give 'priority' as a dict "
                f"with [B] for each of {sorted(wanted)}."
            )
        for name, buffer in wanted.items():
            buffer.update_priority(batch[name].index, priority[name])


def _takes_priorities(buffer: Any) -> bool:
    return hasattr(buffer, "update_priority")


def _sampling(buffer: Any) -> Callable[[int, Collection[str] | None], Tree]:
    """Its `sample`; for a buffer made elsewhere that cannot be asked for single leaves, one that asks for all."""
    if len(inspect.signature(buffer.sample).parameters) > 1:
        return buffer.sample  # type: ignore[no-any-return]
    return lambda size, columns: buffer.sample(size)


def _joined(*leaves: Any) -> Any:
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return torch.cat(leaves)
    return np.concatenate([np.asarray(leaf) for leaf in leaves])
