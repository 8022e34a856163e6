"""Columns: a batch that records which of its columns are read, and errors about missing columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from ding_lite.data import Tree, flatten, nested, tree
from ding_lite.data.column_names import FLAGS
from ding_lite.data.foreign_columns import column_advice
from ding_lite.data.trees import has_leaf


class HookReads(NamedTuple):
    """The result of a dry run: the columns of a batch that the hooks of a policy read, and the extra outputs of acting."""

    columns: tuple[str, ...] | None
    """The collected or replayed columns that any hook reads; None if unknown."""

    loss_columns: tuple[str, ...] | None
    """The columns that the loss reads, including those that `postprocess` adds; None if unknown."""

    outputs: tuple[str, ...] = ()
    """Names of the extra outputs of acting, such as log_prob; empty if unknown."""

    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    """The shapes of one element of those of these outputs and of `derived` that the hooks read, by dotted name."""


class ColumnError(KeyError, AttributeError):
    """A hook read a column that the batch does not have."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would add quotation marks


_ABOUT_INFOS = (
    " Columns of infos are recorded by make_envs(..., info_columns=('x_position',)); declare them as derived = "
    "{**Policy.derived, 'info.x_position': ()}."
)


class ReadBatch(Tree):
    """A batch that records which columns are read, by `batch.obs` or `batch["obs"]`. Made by `read_batch`.

    Any other operation, such as slicing or a method of trees, counts as reading all columns.
    """

    _reading: ClassVar[tuple[set[str], str]] = (set(), "")
    """The names of the columns read so far; the name of the hook that reads."""

    def __getattribute__(self, name: str) -> Any:
        read = type(self)._reading[0]
        names = tuple(leaves_of(self))  # including columns that the hook has set
        if name == "_detach":  # gives access to all leaves; `has_leaf` and `with_leaves` call it on the class instead
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
            f"{hook} reads the column {name!r}, and the batch has none{column_advice(name, has)} It has "
            f"{described(has)}. Add it in postprocess, return it from compute_actions as an extra output, or declare it in "
            f"`derived` if the pipeline adds it.{_ABOUT_INFOS if name == 'info' else ''}"
        )


def leaves_of(batch: Any) -> dict[str, Any]:
    """The top-level leaves of a batch by name; this does not count as reading them."""
    storage: Any = Tree._detach(batch)
    return dict(storage.iter_items())


def _plain(part: Any) -> Any:
    """A nested part of the batch as an ordinary tree, which does not record."""
    return tree(leaves_of(part)) if isinstance(part, ReadBatch) else part


def explain_missing(
    error: KeyError | AttributeError, batch: Tree, known: Collection[str] | None, who: str, fix: str | None = None
) -> None:
    """Raise a ColumnError from this error if it is about a column that the batch does not have.

    Args:
        error: the error that learning raised.
        batch: the batch that was learned from.
        known: names of columns that a pipeline may provide; None for any name, if it was read from a tree.
        who: name of the reader, for the message.
        fix: what to do, for the message; None for what a policy does.

    Raises:
        ColumnError: names the column, and the middleware that add such columns.
    """
    name = str(getattr(error, "name", None) or (error.args[0] if error.args else ""))
    is_meant = _is_read_of_tree(error) if known is None else name in known
    if isinstance(error, ColumnError) or has_leaf(batch, name) or not is_meant:
        return
    has = nested(batch)
    advice, hint = column_advice(name, has) if known is None else ".", ""
    if fix is not None:
        advice, hint = (".", f" {fix}") if advice == "." else (advice, "")
    elif name in FLAGS:
        hint = _ABOUT_FLAGS + _ABOUT_REPLAY
    elif advice == ".":
        hint = f"{_ABOUT_ADDED} dataset.with_columns({name}=...) adds it to a dataset.{_ABOUT_REPLAY}"
    raise ColumnError(
        f"{who} reads the column {name!r}, and the batch has none{advice} It has {described(has)}.{hint}"
    ) from error


_ABOUT_FLAGS = (
    " Collectors write terminated and truncated. Data of your own with one flag done need both in its place: terminated where "
    "the task itself ended, truncated where a time limit ended the episode."
)
_ABOUT_ADDED = (
    " gae_estimator and montecarlo_return_estimator add value, next_value, advantage and return_; a PrioritizedReplayBuffer "
    "adds weight; nstep_reward_enhancer adds discount; make_envs(..., info_columns=...) adds info."
)
_ABOUT_REPLAY = (
    " Batches from replay only have the columns that the hooks read in the dry run. With a dict of buffers, the batch of each "
    "buffer is under its name."
)


def _is_read_of_tree(error: KeyError | AttributeError) -> bool:
    """Whether the error comes from the code of trees, and not from a dict or an object of the user's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and any(name in trace.tb_frame.f_code.co_filename for name in ("treevalue", "treetensor"))


STANDARD = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "policy_version", "log_prob")
"""Columns that our collectors write; log_prob only if the policy returns it as an extra output."""

_HARMLESS = {"keys", "shape", "device", "dtype"}


def read_batch(leaves: Mapping[str, Any], hook: str) -> ReadBatch:
    """Make a batch that records which columns are read.

    Args:
        leaves: tensors by name, nested if their space is nested.
        hook: name of the hook that gets the batch, for messages.
    """
    # A new class for each batch, because an instance of a tree can only hold leaves.
    kind: Any = type("ReadBatch", (ReadBatch,), {"_reading": (set(), hook)})
    batch: ReadBatch = kind(tree(leaves)._detach())
    return batch


def columns_read(batch: ReadBatch) -> set[str]:
    """Names of the top-level columns of this batch that were read."""
    read: set[str] = type(batch)._reading[0]
    return read


def described(leaves: Mapping[str, Any]) -> str:
    """Names and shapes, for messages: `obs [6, 4], reward [6]`."""
    shapes = (("/".join(path), list(getattr(leaf, "shape", ()))) for path, leaf in flatten(tree(leaves)))
    return ", ".join(f"{name} {shape}" for name, shape in shapes)


def map_columns(batch: Tree, fn: Callable[[str, Any], Any]) -> Tree:
    """Replace each top-level column of a batch by `fn(name, column)`. A `ReadBatch` continues to record."""
    mapped = tree({name: fn(name, column) for name, column in nested(tree(leaves_of(batch))).items()})
    if not isinstance(batch, ReadBatch):
        return mapped
    kind: Any = type("ReadBatch", (ReadBatch,), {"_reading": type(batch)._reading})
    recording: Tree = kind(mapped._detach())
    return recording
