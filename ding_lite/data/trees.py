"""Trees: nested batches whose leaves are tensors, or arrays of objects."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard, overload

import numpy as np
import torch

with warnings.catch_warnings():
    # The import warns three times about internals of torch and numpy.
    warnings.filterwarnings("ignore", category=FutureWarning, module="treevalue")
    warnings.filterwarnings("ignore", category=DeprecationWarning, module="treetensor")
    import treetensor.torch as treetensor
    from treevalue.tree.common import TreeStorage, create_storage

from ding_lite.basics.comparisons import same_values
from ding_lite.data.foreign_columns import column_advice

if TYPE_CHECKING:  # treetensor has no types

    class Tree:
        """A batch: `batch.obs`, `batch["obs"]`, `batch[:32]`, nested like the spaces."""

        def __init__(self, storage: TreeStorage) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...
        def __getitem__(self, key: Any) -> Any: ...
        def __setitem__(self, key: Any, value: Any) -> None: ...
        def __delitem__(self, key: Any) -> None: ...
        def __contains__(self, key: Any) -> bool: ...
        def __len__(self) -> int: ...
        def update(self, *args: Any, **kwargs: Any) -> Any: ...
        def pop(self, key: Any, *default: Any, **more: Any) -> Any: ...
        def popitem(self) -> Any: ...
        def clear(self) -> Any: ...
        def setdefault(self, key: Any, *default: Any, **more: Any) -> Any: ...
        def _detach(self) -> Any: ...
else:
    Tree = treetensor.Tensor

_LEAVES = {np.ndarray, torch.Tensor}
_PLAIN_LEAVES = {*_LEAVES, float, int, bool, str}

Path = tuple[str, ...]


class Row(Tree):
    """A tree for use in lists, such as a transition: `in` and `remove` work.

    `t == u` of two trees is a bool. It is true if all leaves are equal and, for two transitions of rollouts, if they are the
    same step of the same rollout. NaN is equal to NaN. A comparison with anything else, such as a number, returns a tree.
    """

    def __eq__(self, other: Any) -> Any:
        return _is_same(self, other) if isinstance(other, Tree) else super().__eq__(other)

    def __ne__(self, other: Any) -> Any:
        return not _is_same(self, other) if isinstance(other, Tree) else super().__ne__(other)

    __hash__ = None  # type: ignore[assignment]  # its leaves change

    def __copy__(self) -> Row:
        return _row(map_leaves(_own, nested(self)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Row:
        return _row(map_leaves(lambda leaf: _own(copy.deepcopy(leaf, memo)), nested(self)))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _row, (map_leaves(_own, nested(self)),)


class LeafError(KeyError):
    """There is no leaf of this name.

    Args:
        message: the message.
        name: the name.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr

    def __reduce__(self) -> tuple[Any, ...]:
        return LeafError, (self.args[0], self.name)


class View(Row):
    """A tree over the memory of a rollout or of episodes: writing to a leaf changes them. Made by `view`.

    `t.reward = 1`, `t["reward"] = 1`, `t.reward.fill_(1)`, `t.obs.x = 1` and, for several steps, `e[3].reward = 1` and
    `e[2:5].reward = 1` write into that memory, in its dtype. Leaves cannot be added or removed.

    Slices are views. Other results, such as `t.clone()`, `e[mask]`, or a copy by `copy` or `pickle`, are independent
    trees.
    """

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return _as_view(found, self, name) if type(found) is View else found

    def _attr_extern(self, name: str) -> Any:
        """An attribute that is no leaf: a function of torch; treevalue calls this."""
        try:
            return super()._attr_extern(name)  # type: ignore[misc]
        except AttributeError:
            if name.startswith("_") or _OF not in vars(self):
                raise
            raise AttributeError(_missing(self, name), name=name, obj=self) from None

    def __getitem__(self, key: Any) -> Any:
        try:
            found = super().__getitem__(key)
        except KeyError:
            if not isinstance(key, str) or _OF not in vars(self):
                raise
            raise LeafError(_missing(self, key), key) from None
        if type(found) is View and (isinstance(key, str) or _is_slice(key)):
            return _as_view(found, self, key)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        if _OF in vars(self):
            _write(self, {name: value})
        else:
            super().__setattr__(name, value)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, str) and _OF in vars(self):
            _write(self, {key: value})
        else:
            super().__setitem__(key, value)

    def update(self, *leaves: Any, **more: Any) -> None:
        """Write several leaves, all of them or none."""
        if _OF in vars(self):
            _write(self, dict(*map(nested, leaves), **more))
        else:
            super().update(*leaves, **more)

    def __delattr__(self, name: str) -> None:
        self._keep(name)
        super().__delattr__(name)

    def __delitem__(self, key: Any) -> None:
        self._keep(key)
        super().__delitem__(key)

    def pop(self, key: Any, *default: Any, **more: Any) -> Any:
        """Raises ValueError, because leaves of a view cannot be removed."""
        self._keep(key)
        return super().pop(key, *default, **more)

    def popitem(self) -> Any:
        """Raises ValueError, because leaves of a view cannot be removed."""
        self._keep("any leaf")
        return super().popitem()

    def clear(self) -> None:
        """Raises ValueError, because leaves of a view cannot be removed."""
        self._keep("all leaves")
        super().clear()

    def setdefault(self, key: Any, *default: Any, **more: Any) -> Any:
        """The leaf of this name; raises ValueError if there is none."""
        if _OF in vars(self) and not Tree._detach(self).contains(key):
            raise _no_such_leaf(self, key)
        return super().setdefault(key, *default, **more)

    def _keep(self, key: Any) -> None:
        if _OF in vars(self):
            raise ValueError(
                f"{key} cannot be removed from a view of {vars(self)[_OF]}: make a tree without it, such as "
                "tree({name: leaf for name, leaf in t.items() if name != ...})."
            )


_OF, _PLACE = "_of", "_place_of"  # description of the viewed object; origin of a transition
_IS_ONE = "_is_one"  # whether it is a single step, to which values must have the exact shape
_LIMITS = "_limits"  # minimum and maximum of leaves with limits
_STEPS = "_steps"  # number of steps of an episode


def view(
    leaves: Mapping[str, Any],
    of: str,
    place: tuple[Any, int, int] | None = None,
    limits: Mapping[str, Any] | None = None,
    steps: int | None = None,
) -> View:
    """A view of these leaves.

    Args:
        leaves: tensors, arrays of objects, and mappings of them; views of the memory to write to.
        of: name of the viewed object for messages: "a rollout" or "episodes".
        place: (rollout, environment, step) of a transition.
        limits: minimum and maximum by name, nested like the leaves.
        steps: number of steps of a whole episode.
    """
    made = View(create_storage(_tensors(leaves)))
    made.__dict__.update({_OF: of, _PLACE: place, _IS_ONE: place is not None, _LIMITS: limits, _STEPS: steps})
    return made


def place_of(transition: Any) -> tuple[Any, int, int] | None:
    """The (rollout, environment, step) of a transition, also after `with_leaves`."""
    return vars(transition).get(_PLACE) if isinstance(transition, Tree) else None


def is_episode(one: Any, steps: int) -> bool:
    """Whether it is a whole episode of `ctx.episodes` with so many steps, also after `with_leaves` with other observations."""
    return isinstance(one, Tree) and vars(one).get(_STEPS) == steps


def limits_of(one: Any) -> Any:
    """The minimum and maximum by leaf of a view of a rollout or of episodes; None if it is none."""
    return vars(one).get(_LIMITS) if isinstance(one, Tree) else None


def _row(leaves: Mapping[str, Any]) -> Row:
    return Row(create_storage(_tensors(leaves)))


def _is_same(one: Tree, other: Tree) -> bool:
    """Whether all leaves are equal and, if both have a place, the places are equal."""
    place, its_place = place_of(one), place_of(other)
    if place is not None and its_place is not None and (place[0] is not its_place[0] or place[1:] != its_place[1:]):
        return False
    leaves, its_leaves = dict(flatten(one)), dict(flatten(other))
    return leaves.keys() == its_leaves.keys() and all(_are_equal(leaf, its_leaves[path]) for path, leaf in leaves.items())


def _are_equal(leaf: Any, other: Any) -> bool:
    return isinstance(leaf, torch.Tensor) == isinstance(other, torch.Tensor) and same_values(leaf, other)


def _as_view(found: View, parent: View, key: Any) -> View:
    if _OF in (known := vars(parent)):
        is_leaf = isinstance(key, str)
        found.__dict__[_OF] = known[_OF]
        found.__dict__[_IS_ONE] = is_leaf and known[_IS_ONE]
        found.__dict__[_LIMITS] = _inner(known[_LIMITS], key) if is_leaf else known[_LIMITS]
    return found


def _inner(limits: Any, name: str) -> Any:
    return limits.get(name) if isinstance(limits, Mapping) else None


def _is_slice(key: Any) -> bool:
    """Whether an index returns views, not copies."""
    parts = key if isinstance(key, tuple) else (key,)
    return all(isinstance(part, (int, np.integer, slice, type(None), type(...))) and part is not True for part in parts)


def _write(target: View, values: Mapping[str, Any]) -> None:
    """Write all of these leaves, or none if one does not fit."""
    found: list[tuple[Any, Any]] = []
    for name, value in values.items():
        if not Tree._detach(target).contains(name):
            raise _no_such_leaf(target, name)
        leaf, known = Tree._detach(target).get(name), vars(target)
        _collect(name, leaf, nested(value), known[_OF], found, known[_IS_ONE], _inner(known[_LIMITS], name))
    for leaf, array in found:
        (leaf if isinstance(leaf, np.ndarray) else leaf.numpy())[...] = array


def _missing(target: View, name: str) -> str:
    """The message for a leaf that is read and does not exist."""
    message = f"a view of {vars(target)[_OF]} has no leaf {name!r}{column_advice(name, [*target.keys()])}"
    message += f" It has {', '.join(sorted(target.keys()))}."
    if name.startswith(("state_in_", "state_out_")):
        message += (
            " The recurrent state is recorded only if a hook that learns reads it. To record it for a middleware, return it "
            "from compute_actions as an extra output."
        )
    return message


def _no_such_leaf(target: View, name: Any) -> ValueError:
    of, has = vars(target)[_OF], sorted(target.keys())
    added = (
        f"ctx.episodes = Episodes({{**ctx.episodes.rows(), {name!r}: ...}}, ctx.episodes.lengths) adds it, [N] for all steps"
        if of == "episodes"
        else f"ctx.trajectories = ctx.trajectories.with_columns({name}=...) adds it, [T, B]"
    )
    return ValueError(
        f"{name!r} cannot be set in a view of {of} with the leaves {has}: it has no such leaf, and a new one would be lost. "
        f"{added}; with_leaves(t, {name}=...) makes a new tree."
    )


def _collect(name: str, leaf: Any, value: Any, of: str, found: list[tuple[Any, Any]], is_one: bool, limits: Any = None) -> None:
    """Append to `found` each leaf with the values to write, in its dtype."""
    if isinstance(leaf, TreeStorage):
        names = {inner for inner, _ in leaf.iter_items()}
        if not isinstance(value, Mapping) or set(value) != names:
            given = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise ValueError(f"{name} of {of} has the leaves {sorted(names)}, got {given}: give the same leaves.")
        for inner, own in leaf.iter_items():
            _collect(f"{name}.{inner}", own, value[inner], of, found, is_one, _inner(limits, inner))
        return
    array = _numbers(name, leaf, value, of) if isinstance(leaf, torch.Tensor) else _objects(leaf, value)
    if array.dtype.kind == "O" and leaf.dtype.kind in "US" and (is_cut := array.astype(leaf.dtype) != array).any():
        raise ValueError(f"{name} of {of} is {leaf.dtype}, which cannot hold {array[is_cut].flat[0]!r}: give shorter text.")
    if is_one and isinstance(leaf, torch.Tensor) and array.shape != tuple(leaf.shape):
        raise ValueError(
            f"{name} of {of} is {leaf.dtype} {tuple(leaf.shape)}, got values of shape {array.shape}: give the same shape, or "
            f"set all of them to one number with t.{name}.fill_(...)."
        )
    try:
        fitted = np.broadcast_to(array, tuple(leaf.shape))
    except ValueError:
        raise ValueError(
            f"{name} of {of} is {leaf.dtype} {tuple(leaf.shape)}, got values of shape {array.shape}: give the same shape."
        ) from None
    _require_within(name, fitted, limits, of)
    found.append((leaf, fitted))


def _require_within(name: str, array: np.ndarray[Any, Any], limits: Any, of: str) -> None:
    if not isinstance(limits, tuple) or np.shape(limits[0]) != array.shape[array.ndim - np.ndim(limits[0]) :]:
        return  # no limits, or an index that does not fit their shape
    if (outside := (array < limits[0]) | (array > limits[1])).any():
        place = tuple(np.argwhere(outside)[0])
        least, most = (np.broadcast_to(limit, array.shape)[place] for limit in limits)
        raise ValueError(f"{name} of {of} cannot be {array[place]}: its space allows {least} to {most} there.")


def _numbers(name: str, leaf: torch.Tensor, value: Any, of: str) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(value.numpy(force=True) if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{name} of {of} is {leaf.dtype} {tuple(leaf.shape)}, got {value!r:.60}: give numbers.")
    return cast_numbers(array, leaf.numpy().dtype, f"{name} of {of} is {leaf.dtype}")


def cast_numbers(array: np.ndarray[Any, Any], dtype: np.dtype[Any], what: str) -> np.ndarray[Any, Any]:
    """These numbers in the dtype of their destination. Floats may be rounded.

    Args:
        array: the numbers.
        dtype: dtype of the destination.
        what: name and dtype of the destination, for messages.

    Raises:
        ValueError: the dtype cannot hold one of them.
    """
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if dtype.kind == "f" and array.dtype.kind in "biuf":
        fits = np.isfinite(cast) | ~np.isfinite(array)
    else:
        fits = cast == array
    if not fits.all():
        raise ValueError(f"{what}, which cannot hold {array[~fits].flat[0].item()!r}: give values that fit.")
    return cast


def _objects(leaf: np.ndarray[Any, Any], value: Any) -> np.ndarray[Any, Any]:
    """An array of objects with one element for each, because numpy would unpack lists."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
        return value.astype(object)
    boxed = np.empty(len(value) if leaf.ndim and isinstance(value, (list, tuple)) else (), object)
    boxed[...] = value if boxed.ndim else None
    if not boxed.ndim:
        boxed[()] = value
    return boxed


def tree(leaves: Mapping[str, Any]) -> Tree:
    """A tree of these leaves: tensors, arrays or numbers, and mappings of them.

    Tensors and arrays are not copied. Arrays of objects or text stay arrays. `treetensor.Tensor(dict)` returns the same, but
    calls `repr()` on every leaf, which takes hundreds of microseconds, and milliseconds for images. This function takes two
    microseconds.

    Raises:
        TypeError: a key is not a string, or a leaf is not a number, array or tensor.

    Example:
        >>> batch = tree({"obs": {"x": np.zeros((2, 3), np.float32)}, "reward": torch.ones(2)})
        >>> batch.obs.x.shape, batch[0].reward
        (torch.Size([2, 3]), tensor(1.))
    """
    return Tree(create_storage(_tensors(leaves)))


def with_leaves(batch: Tree | Mapping[str, Any], **leaves: Any) -> Tree:
    """A tree of the same batch with these leaves added or replaced; `batch` is unchanged.

    Raises:
        TypeError: `batch` is neither a tree nor a mapping.
    """
    if isinstance(batch, Tree):
        known = {name: it for name in (_PLACE, _STEPS) if (it := vars(batch).get(name)) is not None}
        kept = dict(Tree._detach(batch).iter_items())
        if kept.keys() <= leaves.keys():
            known.pop(_STEPS, None)  # with all leaves replaced, steps may be in another order
        leaves = {**kept, **leaves}
        made = _row(leaves) if _PLACE in known else tree(leaves)
        made.__dict__.update(known)
        return made
    return tree({**_required(batch, "with_leaves"), **leaves})


def is_tree(thing: Any) -> TypeGuard[Tree]:
    """Whether it is a tree of any class."""
    return isinstance(thing, Tree)


def has_leaf(batch: Tree | Mapping[str, Any], name: str) -> bool:
    """Whether the batch has this top-level leaf; `name in tree` would search the values.

    Raises:
        TypeError: `batch` is neither a tree nor a mapping.
    """
    if isinstance(batch, Tree):
        return bool(Tree._detach(batch).contains(name))
    return name in _required(batch, "has_leaf")


def _required(batch: Any, who: str) -> Mapping[str, Any]:
    """The batch, which must be a mapping, because treevalue crashes with anything else."""
    if isinstance(batch, Mapping):
        return batch
    raise TypeError(
        f"{who}() wants a tree or a mapping of leaves by name, got a {type(batch).__name__}: pass a tree, such as "
        'tree({"obs": ..., "reward": ...}).'
    )


_NESTING = {dict, Tree, Row, View}


def nested(batch: Any) -> Any:
    """A tree, or a dict of trees, as nested dicts of tensors and arrays, not copied. A single leaf is returned unchanged."""
    if type(batch) is dict:
        flat = _NESTING.isdisjoint(map(type, batch.values()))
        return batch if flat else {name: nested(leaf) for name, leaf in batch.items()}
    return batch._detach().jsondumpx(lambda leaf: leaf, False, False) if isinstance(batch, Tree) else batch


def flatten(structure: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf of a tree or of nested mappings, with its path."""
    if isinstance(structure, Tree):
        structure = structure._detach()
    if isinstance(structure, TreeStorage):
        structure = dict(structure.iter_items())
    if isinstance(structure, Mapping):
        for name, inner in structure.items():
            if type(inner) in _PLAIN_LEAVES:
                yield (*path, name), inner
            else:
                yield from flatten(inner, (*path, name))
    else:
        yield path, structure


@overload
def map_leaves(fn: Callable[..., Any], structure: Tree, *others: Any) -> Tree: ...
@overload
def map_leaves(fn: Callable[..., Any], structure: Any, *others: Any) -> Any: ...
def map_leaves(fn: Callable[..., Any], structure: Any, *others: Any) -> Any:
    """Apply `fn` to each leaf and the leaves at the same path in `others`. Returns a tree, dict or leaf, like the input."""
    kind = type(structure)
    if kind in _LEAVES:  # first, because the other checks take longer than most functions
        return fn(structure, *others)
    if issubclass(kind, Tree):
        return tree(map_leaves(fn, nested(structure), *map(nested, others)))
    if kind is dict or issubclass(kind, Mapping):
        return {name: map_leaves(fn, inner, *(other[name] for other in others)) for name, inner in structure.items()}
    return fn(structure, *others)


def first_leaf(structure: Any) -> Any:
    """The first leaf, to read a property that all leaves share, such as leading dimensions or device."""
    while type(structure) is dict:
        structure = next(iter(structure.values()))
    return structure if hasattr(structure, "dtype") and not isinstance(structure, Tree) else next(flatten(structure))[1]


def holds_objects(leaf: Any) -> bool:
    """Whether it is an array of objects, text or bytes, which is not converted to a tensor."""
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind in "OUS"


def as_floats(leaf: Any) -> Any:
    """An array or tensor of numbers as floats: unchanged if it holds floats, else as float32.

    For new rewards, which get the dtype of the former ones: those of some datasets are integers.
    """
    if isinstance(leaf, torch.Tensor):
        return leaf if leaf.is_floating_point() else leaf.float()
    return leaf if leaf.dtype.kind == "f" else leaf.astype(np.float32)


def merge_leading_dims(leaf: Any) -> Any:
    """An array or tensor [T, B, ...] as [T * B, ...], without a copy if possible."""
    return leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])


def _own(leaf: Any) -> Any:
    """A copy that does not share memory."""
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf.copy()


def _tensors(leaves: Mapping[str, Any], where: str = "tree") -> dict[str, Any]:
    converted: dict[str, Any] = {}
    for name, leaf in leaves.items():
        if type(name) is str and type(leaf) is torch.Tensor:  # the usual case, as fast as possible
            converted[name] = leaf
            continue
        if not isinstance(name, str):
            raise TypeError(f"{where} has the key {name!r} of type {type(name).__name__}: names of leaves must be strings.")
        if isinstance(leaf, (torch.Tensor, TreeStorage)):
            converted[name] = leaf
        elif isinstance(leaf, np.ndarray):
            converted[name] = leaf if holds_objects(leaf) else _from_numpy(leaf, f"{where}.{name}")
        elif isinstance(leaf, Tree):
            converted[name] = leaf._detach()
        elif isinstance(leaf, Mapping):
            converted[name] = _tensors(leaf, f"{where}.{name}")
        elif isinstance(leaf, (bool, int, float, np.generic)):
            converted[name] = torch.as_tensor(leaf)
        else:
            raise TypeError(f"{where}.{name} is a {type(leaf).__name__}, expected a tensor, an array or a number.")
    return converted


def _from_numpy(array: np.ndarray[Any, Any], where: str) -> torch.Tensor:
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where} is an array of {array.dtype}, which torch cannot convert to a tensor: {error}") from None
