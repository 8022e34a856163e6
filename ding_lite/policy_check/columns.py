"""Columns: a batch that remembers which of its leaves were read, and says so plainly where one is missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, NamedTuple

from ding_lite.basics import did_you_mean
from ding_lite.data import Tree, flatten, has_leaf, nested, tree


class HookReads(NamedTuple):
    """Which columns of a batch the hooks of a policy read, None where that is not known; and which it gives when it acts."""

    columns: tuple[str, ...] | None
    """Those of what is collected or replayed that any hook reads."""

    loss_columns: tuple[str, ...] | None
    """Those that the loss reads, also where postprocess made them."""

    outputs: tuple[str, ...] = ()
    """What acting gives beside the action, such as log_prob; empty where it could not be tried out."""


class ColumnError(KeyError, AttributeError):
    """A hook read a column that the batch does not have."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would quote it


class ReadBatch(Tree):
    """A batch that remembers what is read of it: `batch.obs`, `batch["obs"]`. Made by `read_batch`.

    Whatever else is done with it (a slice, a method of trees) reads all of it.
    """

    _reading: ClassVar[tuple[set[str], str]] = (set(), "")
    """The names that were read; the hook that reads."""

    def __getattribute__(self, name: str) -> Any:
        read = type(self)._reading[0]
        names = tuple(leaves_of(self))  # with those that the hook has set
        if name == "_detach":  # on its way to all leaves; only `has_leaf` and `with_leaves` go past it
            read.update(names)
        if name.startswith("_"):
            return super().__getattribute__(name)
        if name in names:
            read.add(name)
        elif hasattr(Tree, name):
            if name not in _HARMLESS:
                read.update(names)
        else:
            raise self._missing(name)
        return _plain(super().__getattribute__(name))

    def __getitem__(self, key: Any) -> Any:
        read, names = type(self)._reading[0], tuple(leaves_of(self))
        if not isinstance(key, str):
            read.update(names)
            return tree(leaves_of(self))[key]
        if key not in names:
            raise self._missing(key)
        read.add(key)
        return _plain(super().__getitem__(key))

    def _missing(self, name: str) -> ColumnError:
        _, hook = type(self)._reading
        has = leaves_of(self)
        return ColumnError(
            f"{hook} reads the column {name!r}, and the batch has none{did_you_mean(name, has)} It has "
            f"{described(has)}. Add it in postprocess, give it from compute_actions as an extra output, or declare in "
            f"`derived` what the pipeline adds."
        )


def leaves_of(batch: Any) -> dict[str, Any]:
    """What is at the top of a batch, past what remembers that it is read."""
    storage: Any = Tree._detach(batch)
    return dict(storage.iter_items())


def _plain(part: Any) -> Any:
    """What is nested in the batch, as a tree that remembers nothing."""
    return tree(leaves_of(part)) if isinstance(part, ReadBatch) else part


def explain_missing(error: KeyError | AttributeError, batch: Tree, known: Collection[str], who: str) -> None:
    """Raise an error that says more, where this one is about a column that the pipeline was to bring.

    Args:
        error: what learning raised.
        batch: what it was given.
        known: columns that there may be.
        who: reads it.
    """
    name = str(getattr(error, "name", None) or (error.args[0] if error.args else ""))
    if isinstance(error, ColumnError) or name not in known or has_leaf(batch, name):
        return
    raise ColumnError(
        f"{who} reads the column {name!r}, and the batch has none. It has {described(nested(batch))}. gae_estimator and "
        "montecarlo_return_estimator add value, next_value, advantage and return_, a PrioritizedReplayBuffer weight, "
        "nstep_reward_enhancer discount; from replay, only columns are fetched that the hooks read in every step; of buffers "
        "by name, a batch of each lies under its name."
    ) from error


STANDARD = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "policy_version", "log_prob")
"""Columns that our collectors bring; the last where the policy's distribution gives it."""

_HARMLESS = {"keys", "shape", "device", "dtype"}


def read_batch(leaves: Mapping[str, Any], hook: str) -> ReadBatch:
    """A batch that remembers what is read of it.

    Args:
        leaves: tensors by name, nested where a space is.
        hook: which hook it is given to, for messages.
    """
    # A class of its own, because an instance of a tree has no place for anything but leaves.
    kind: Any = type("ReadBatch", (ReadBatch,), {"_reading": (set(), hook)})
    batch: ReadBatch = kind(tree(leaves)._detach())
    return batch


def columns_read(batch: ReadBatch) -> set[str]:
    """The leaves at the top of this batch that were read."""
    read: set[str] = type(batch)._reading[0]
    return read


def described(leaves: Mapping[str, Any]) -> str:
    """Names and shapes, for messages: `obs [6, 4], reward [6]`."""
    shapes = (("/".join(path), list(getattr(leaf, "shape", ()))) for path, leaf in flatten(tree(leaves)))
    return ", ".join(f"{name} {shape}" for name, shape in shapes)


def map_columns(batch: Tree, fn: Callable[[str, Any], Any]) -> Tree:
    """The batch with `fn(name, column)` in the place of each column at its top; one that remembers what is read still does."""
    mapped = tree({name: fn(name, column) for name, column in nested(tree(leaves_of(batch))).items()})
    if not isinstance(batch, ReadBatch):
        return mapped
    kind: Any = type("ReadBatch", (ReadBatch,), {"_reading": type(batch)._reading})
    remembering: Tree = kind(mapped._detach())
    return remembering
