"""Trees: batches whose leaves are tensors, or arrays of objects, under names that may nest.

Room: ding_lite.data, floor 1. The only file that imports treetensor; imports nothing of ours.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

with warnings.catch_warnings():
    # Its import warns three times about internals of torch and numpy that it touches.
    warnings.filterwarnings("ignore", category=FutureWarning, module="treevalue")
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="treetensor")
    import treetensor.torch as treetensor
    from treevalue.tree.common import TreeStorage, create_storage

Tree: TypeAlias = treetensor.Tensor
"""A batch: `batch.obs`, `batch["obs"]`, `batch[:32]`, nested where a space is."""

_TREE: type = treetensor.Tensor  # the same class, where a type checker wants one
_NESTING = {dict, _TREE}
_LEAVES = {np.ndarray, torch.Tensor}

Path = tuple[str, ...]


def tree(leaves: Mapping[str, Any]) -> Tree:
    """A tree of these leaves: tensors, arrays or numbers, and mappings of them.

    Tensors and arrays are not copied. Arrays of objects or text, which no tensor holds, stay arrays. `treetensor.Tensor(dict)`
    gives the same, but calls `repr()` on every leaf, which takes hundreds of microseconds, and milliseconds for images; this
    takes two.

    Raises:
        TypeError: a key that is no string, or a leaf that is no number, array or tensor.

    Example:
        >>> batch = tree({"obs": {"x": np.zeros((2, 3), np.float32)}, "reward": torch.ones(2)})
        >>> batch.obs.x.shape, batch[0].reward
        (torch.Size([2, 3]), tensor(1.))
    """
    return Tree(create_storage(_tensors(leaves)))


def with_leaves(batch: Tree | Mapping[str, Any], **leaves: Any) -> Tree:
    """A tree of the same batch and these leaves beside or instead of its own; `batch` stays as it is.

    Raises:
        TypeError: a batch that is neither a tree nor a mapping.
    """
    if isinstance(batch, _TREE):
        return tree({**dict(Tree._detach(batch).iter_items()), **leaves})
    return tree({**_required(batch, "with_leaves"), **leaves})


def is_tree(thing: Any) -> bool:
    """Whether it is a tree, of any class of trees."""
    return isinstance(thing, _TREE)


def has_leaf(batch: Tree | Mapping[str, Any], name: str) -> bool:
    """Whether the batch has this leaf at its top; `in` would ask the leaves of a tree.

    Raises:
        TypeError: a batch that is neither a tree nor a mapping.
    """
    if isinstance(batch, _TREE):
        return bool(Tree._detach(batch).contains(name))
    return name in _required(batch, "has_leaf")


def _required(batch: Any, who: str) -> Mapping[str, Any]:
    """What is no tree, if it is a mapping; given anything else, treevalue would read memory that is not its own, and crash."""
    if isinstance(batch, Mapping):
        return batch
    raise TypeError(
        f"{who}() wants a batch, a tree or a mapping of leaves by name, got a {type(batch).__name__}: give it a tree, as "
        'tree({"obs": ..., "reward": ...}) makes one.'
    )


def nested(batch: Any) -> Any:
    """A tree, or a dict that holds trees, as nested dicts of tensors and arrays, not copied. A single one stays as it is."""
    if type(batch) is dict:
        flat = _NESTING.isdisjoint(map(type, batch.values()))
        return batch if flat else {name: nested(leaf) for name, leaf in batch.items()}
    return _raw(batch).jsondumpx(lambda leaf: leaf, False, False) if isinstance(batch, _TREE) else batch


def flatten(structure: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf of a tree or of nested mappings, with the names that lead to it."""
    if isinstance(structure, _TREE):
        structure = _raw(structure)
    if isinstance(structure, TreeStorage):
        structure = dict(structure.iter_items())
    if isinstance(structure, Mapping):
        for name, inner in structure.items():
            yield from flatten(inner, (*path, name))
    else:
        yield path, structure


def map_leaves(fn: Callable[..., Any], structure: Any, *others: Any) -> Any:
    """`fn` of each leaf, and of the leaves at the same place in `others`. A tree gives a tree, a dict a dict, a leaf a leaf."""
    kind = type(structure)
    if kind in _LEAVES:  # first, because the other questions take longer than most functions of a leaf
        return fn(structure, *others)
    if issubclass(kind, _TREE):
        return tree(map_leaves(fn, nested(structure), *map(nested, others)))
    if kind is dict or issubclass(kind, Mapping):
        return {name: map_leaves(fn, inner, *(other[name] for other in others)) for name, inner in structure.items()}
    return fn(structure, *others)


def to_device(structure: Any, device: torch.device | str) -> Any:
    """The same structure with its tensors on this device; leaves that are no tensors stay as they are."""
    return map_leaves(lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf, structure)


def first_leaf(structure: Any) -> Any:
    """Any one leaf, for what all of them share: the leading dimensions, the device."""
    while type(structure) is dict:
        structure = next(iter(structure.values()))
    return structure if hasattr(structure, "dtype") and not isinstance(structure, _TREE) else next(flatten(structure))[1]


def holds_objects(leaf: Any) -> bool:
    """Whether it is an array of objects, text or bytes, which stays an array where others become tensors."""
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OUS"


def merge_lead(leaf: Any) -> Any:
    """An array or tensor [T, B, ...] as [T * B, ...], without a copy where that can be had."""
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


def _raw(batch: Tree) -> Any:
    return batch._detach()  # treevalue's name for its storage; it copies nothing


def _tensors(leaves: Mapping[str, Any], where: str = "tree") -> dict[str, Any]:
    converted: dict[str, Any] = {}
    for name, leaf in leaves.items():
        if not isinstance(name, str):
            raise TypeError(f"{where} has the key {name!r} of type {type(name).__name__}: names of leaves are strings.")
        if isinstance(leaf, (torch.Tensor, TreeStorage)):
            converted[name] = leaf
        elif isinstance(leaf, np.ndarray):
            converted[name] = leaf if holds_objects(leaf) else _from_numpy(leaf, f"{where}.{name}")
        elif isinstance(leaf, _TREE):
            converted[name] = _raw(leaf)
        elif isinstance(leaf, Mapping):
            converted[name] = _tensors(leaf, f"{where}.{name}")
        elif isinstance(leaf, (bool, int, float, np.generic)):
            converted[name] = torch.as_tensor(leaf)
        else:
            raise TypeError(f"{where}.{name} is a {type(leaf).__name__}: a leaf is a tensor, an array or a number.")
    return converted


def _from_numpy(array: np.ndarray[Any, Any], where: str) -> torch.Tensor:
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where} is an array of {array.dtype}, which no tensor holds as it is: {error}") from None
