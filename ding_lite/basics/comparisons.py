"""Comparisons of nested values, such as the states of two objects."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from ding_lite.basics.optional_attributes import has_attribute


def same_values(one: Any, other: Any, *, dtypes: bool = False) -> bool:
    """Whether two nested values are equal.

    Mappings are equal if they have the same keys and values; lists, tuples and arrays if they have the same items. A tensor is
    equal to a tensor on another device, or to an array, of the same shape with the same numbers; a nested tensor only to a
    nested one, and one on the meta device only to one there. NaN is equal to NaN. Objects of a dataclass are equal if their
    fields are.

    Args:
        one, other: the values.
        dtypes: whether tensors of different dtypes differ.

    Example:
        >>> same_values({"a": [1, float("nan")]}, {"a": (1.0, float("nan"))}), same_values([1], [[1]])
        (True, False)
    """
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_values(it, other[name], dtypes=dtypes) for name, it in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same_values(*pair, dtypes=dtypes) for pair in zip(one, other))
    if _is_tensor(one) and _is_tensor(other):
        return _same_tensors(one, other, dtypes)
    if has_attribute(one, "__array__") or has_attribute(other, "__array__"):
        return _same_arrays(one, other, dtypes)
    if dataclasses.is_dataclass(one) and not isinstance(one, type) and type(one) is type(other):
        names = [field.name for field in dataclasses.fields(one) if field.compare]
        fields = [[getattr(it, name, dataclasses.MISSING) for name in names] for it in (one, other)]  # some may be unset
        return same_values(*fields, dtypes=dtypes)
    return bool(one == other) or bool(one != one and other != other)


def _same_tensors(one: Any, other: Any, dtypes: bool) -> bool:
    if dtypes and one.dtype != other.dtype:
        return False
    if one.is_nested or other.is_nested:
        return one.is_nested and other.is_nested and same_values(one.unbind(), other.unbind(), dtypes=dtypes)
    if one.is_meta or other.is_meta:
        return one.is_meta and other.is_meta and (one.shape, one.dtype) == (other.shape, other.dtype)
    return one.shape == other.shape and _same_numbers(_dense(one), _dense(other).to(one.device))


def _same_arrays(one: Any, other: Any, dtypes: bool) -> bool:
    if any(_is_tensor(it) and (it.is_nested or it.is_meta) for it in (one, other)):
        return False
    if isinstance(one, (list, tuple)):
        return len(getattr(other, "shape", ())) > 0 and same_values(one, list(other), dtypes=dtypes)
    if isinstance(other, (list, tuple)):
        return _same_arrays(other, one, dtypes)
    arrays = _array(one), _array(other)
    if arrays[0].shape != arrays[1].shape:
        return False
    if any(array.dtype.names is not None for array in arrays):
        first, second = arrays
        return first.dtype.names == second.dtype.names and all(
            _same_arrays(first[name], second[name], dtypes) for name in first.dtype.names
        )
    if any(array.dtype == object for array in arrays):
        return same_values(arrays[0].tolist(), arrays[1].tolist(), dtypes=dtypes)
    return _same_numbers(*arrays)


def _same_numbers(one: Any, other: Any) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _array(value: Any) -> Any:
    import numpy as np

    if _is_tensor(value):
        value, kind = _dense(value).cpu(), str(value.dtype)
        if kind == "torch.bfloat16" or kind.startswith("torch.float8"):  # unknown to numpy
            value = value.float()
        value = value.cfloat() if kind == "torch.complex32" else value
    return np.asarray(value)


def _dense(tensor: Any) -> Any:
    """The numbers of a tensor of any kind, such as a sparse one, as a common tensor."""
    tensor = tensor.detach()
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    return tensor.to_dense().resolve_conj().resolve_neg()


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
