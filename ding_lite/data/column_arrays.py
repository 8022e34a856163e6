"""Columns: preallocated arrays, one per leaf of a batch, with steps or rows as first dimensions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from ding_lite.data.trees import flatten, holds_objects, map_leaves


class LeafSpec(NamedTuple):
    """Shape and dtype of one element of a column."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


Leaf = LeafSpec  # its name in earlier versions
Spec: TypeAlias = "LeafSpec | Mapping[str, Any]"
"""The layout of one element: a LeafSpec, or nested mappings of LeafSpec for Dict and Tuple spaces."""


def allocate(spec: Spec, *lead: int) -> Any:
    """Uninitialised arrays [*lead, *shape], nested as the spec is.

    Example:
        >>> allocate({"x": LeafSpec((3,), np.dtype(np.float32))}, 5, 2)["x"].shape
        (5, 2, 3)
    """
    if isinstance(spec, LeafSpec):
        return np.empty((*lead, *spec.shape), spec.dtype)
    return {name: allocate(inner, *lead) for name, inner in spec.items()}


def spec_like(element: Any, lead: int = 1) -> Spec:
    """The spec of these arrays, tensors or lists without their first `lead` dimensions; text is kept as objects."""
    return map_leaves(lambda leaf: _leaf_like(as_array(leaf), lead), element)  # type: ignore[no-any-return]


def _leaf_like(array: np.ndarray[Any, Any], lead: int) -> LeafSpec:
    is_text = array.dtype.kind in "US"  # as text, a longer one would be cut to the length of the first
    return LeafSpec(array.shape[lead:], np.dtype(object) if is_text else array.dtype)


def as_array(leaf: Any, dtype: Any = None) -> Any:
    """Numbers, or a tensor from any device without its gradient, as an array; a tensor of bfloat16 as one of float32, which
    holds the same numbers."""
    return np.asarray(tensor_to_array(leaf) if isinstance(leaf, torch.Tensor) else leaf, dtype)


def tensor_to_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The numbers of a tensor from any device, without its gradient; floats that numpy does not have become float32."""
    try:
        return tensor.numpy(force=True)
    except TypeError:
        if not tensor.dtype.is_floating_point:
            raise
        return tensor.float().numpy(force=True)


def require_sampled(spec: Spec) -> None:
    """Check that columns of this spec can become tensors.

    Raises:
        ValueError: naming the first leaf whose dtype torch does not have.
    """
    for path, leaf in flatten(spec):
        if leaf.dtype.hasobject:
            continue
        try:
            torch.from_numpy(np.empty(0, leaf.dtype))
        except (TypeError, ValueError):
            fix = "an array of numbers, such as float32 or int64, or of objects"
            if leaf.dtype.kind in "biufc":
                fix = f"{'/'.join(path)}.astype(np.{_torch_dtype(leaf.dtype)})"
            raise ValueError(
                f"a replay buffer got {'/'.join(path)} of dtype {leaf.dtype}, which is no dtype of tensors, so batches of it "
                f"cannot be sampled: pass {fix}."
            ) from None


def _torch_dtype(dtype: np.dtype[Any]) -> str:
    """The name of the nearest dtype in the byte order of this machine that tensors have."""
    native = dtype.newbyteorder("=")
    return {"f": "float64", "c": "complex128"}.get(native.kind, "int64") if native.itemsize > 8 else native.name


def write_rows(columns: Iterable[Any], rows: Iterable[Any], where: slice | np.ndarray[Any, Any]) -> None:
    """Write rows, or the last ones that fit into `where`, into the columns at these positions."""
    for column, row in zip(columns, rows):
        if type(column) is dict:
            write_rows(column.values(), [row[name] for name in column], where)
        else:
            row = row if type(row) is np.ndarray else as_array(row)  # numpy reads no tensor with a gradient
            column[where] = row if type(where) is slice else row[-len(where) :]


def may_lose(dtype: np.dtype[Any], to: np.dtype[Any]) -> bool:
    """Whether a cast from `dtype` to `to` may change numbers, in a pair of dtypes that numpy casts under "same_kind"."""
    return dtype != to and not to.hasobject and not np.can_cast(dtype, to, "safe")


def require_held(array: np.ndarray[Any, Any], dtype: np.dtype[Any], who: str) -> None:
    """Raise an error if a cast to this dtype would change a number. Floats may be rounded.

    Args:
        array: the numbers, in a dtype for which `may_lose` is true.
        dtype: dtype of the destination.
        who: name of the destination, for messages.

    Raises:
        ValueError: naming the first number that would change.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    held = np.isfinite(cast) | ~np.isfinite(array) if dtype.kind in "fc" else cast == array
    if not held.all():
        raise ValueError(
            f"{who} has dtype {dtype}, got {array[~held].flat[0]}, which {dtype} cannot hold: pass {array.dtype} from the "
            "first time on."
        )


def as_flags(who: str, name: str, column: np.ndarray[Any, Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Flags, which may be numbers 0 and 1, as bool: the same array if it is of bool.

    Args:
        who: the caller, for messages.
        name: the column, for messages.
        column: the flags.
        shape: the shape that they must have.

    Raises:
        ValueError: they have another shape, or other values.
    """
    if column.shape != shape:
        fix = " Use .squeeze(-1)." if column.shape == (*shape, 1) else ""
        raise ValueError(f"{who} got {name} of shape {column.shape}, expected one flag for each step, {shape}.{fix}")
    if column.dtype == np.bool_:
        return column
    if column.dtype == object and all(isinstance(flag, (bool, np.bool_)) for flag in column.flat):
        return column.astype(np.bool_)
    if (place := first_without_flag(column)) is not None:
        raise ValueError(
            f"{who} got {name} = {column[place]!r} at {list(map(int, place))}, expected True or False, or numbers 0 and 1: "
            f"convert it, {name}.astype(bool)."
        )
    return column.astype(np.bool_)


def first_without_flag(column: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    """The index of the first value that is neither 0 nor 1; None if there is none."""
    wrong = (column != 0) & (column != 1) if column.dtype.kind in "biuf" else np.ones(column.shape, np.bool_)  # NaN is neither
    return tuple(np.argwhere(wrong)[0]) if wrong.any() else None


def stack_rows(rows: Sequence[Any]) -> np.ndarray[Any, Any]:
    """B numbers, arrays or tensors of one shape as an array [B, ...]; anything else, such as text, as [B] objects.

    A row of a column of objects or text may be given too, an array of them of any shape, also 0-d; the result has objects.

    Example:
        >>> stack_rows([1, 2]), stack_rows(["a", "long"])
        (array([1, 2]), array(['a', 'long'], dtype=object))
    """
    arrays = [as_array(row) if isinstance(row, torch.Tensor) else row for row in rows]
    if all(map(_is_numeric, arrays)) and len({np.shape(row) for row in arrays}) == 1:
        return np.stack(arrays)
    if all(map(holds_objects, rows)) and len({row.shape for row in rows}) == 1:
        return np.stack([row.astype(object) for row in rows])
    return to_objects([row.item() if holds_objects(row) and not row.ndim else row for row in rows])


def to_objects(things: Sequence[Any]) -> np.ndarray[Any, Any]:
    """These objects as an array [N]."""
    objects = np.empty(len(things), object)
    for place, thing in enumerate(things):  # one by one, because numpy would unpack lists and tuples
        objects[place] = thing
    return objects


def _is_numeric(row: Any) -> bool:
    return isinstance(row, (bool, int, float)) or (isinstance(row, (np.ndarray, np.generic)) and row.dtype.kind in "biufc")


def rows_differ(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[N] bool, whether two rows [N, ...] differ; NaN equals NaN. Floats are compared with the precision that both have."""
    if one.dtype != other.dtype and one.dtype.kind == other.dtype.kind == "f":
        narrower = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
        one, other = one.astype(narrower), other.astype(narrower)
    differ = (one != other) & ~((one != one) & (other != other))
    return differ.any(tuple(range(1, differ.ndim)))  # type: ignore[no-any-return]


def spec_bytes(spec: Spec) -> int:
    """Bytes per element."""
    if isinstance(spec, LeafSpec):
        return int(np.prod(spec.shape, dtype=np.int64)) * spec.dtype.itemsize
    return sum(spec_bytes(inner) for inner in spec.values())


def available_bytes() -> int | None:
    """Available memory of this machine in bytes, or None if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in names else None


def concatenate_flags(
    flags: Sequence[np.ndarray[Any, Any] | None], sizes: Sequence[int], *, missing: bool, axis: int = 0
) -> np.ndarray[Any, Any] | None:
    """Flags of all pieces, joined along `axis`; None if there are none.

    Args:
        flags: of each piece; None if each is `missing`.
        sizes: number of environments or rows of each piece.
        missing: value of flags that are None.
        axis: 0 for flags [B], 1 for flags [T, B].
    """
    known = next((one for one in flags if one is not None), None)
    if known is None:
        return None
    shapes = [(*known.shape[:axis], size) for size in sizes]
    return np.concatenate([np.full(shape, missing) if one is None else one for one, shape in zip(flags, shapes)], axis)
