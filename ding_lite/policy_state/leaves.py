"""Leaves of a state: checks that saved tensors, arrays and numbers can replace the current ones."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.policy_state.identities import StateDictError


def require_tensor(where: str, current: Tensor, given: Tensor, must_be_finite: bool = False) -> None:
    """Check that a saved tensor has the shape, dtype and layout of the current one, and is finite.

    Args:
        where: key of the tensor, for messages.
        current: the current tensor.
        given: the saved tensor.
        must_be_finite: False allows NaN and infinity if the current tensor contains some.

    Raises:
        StateDictError: it does not fit.
    """
    if not _is_alike(current, given) or given.shape != current.shape or given.dtype != current.dtype:
        raise StateDictError(f"{where} is {describe(given)}, expected {describe(current)}.{_remedy(current, given)}")
    if not _is_finite(given) and (must_be_finite or _is_finite(current)):
        broken = given[~given.isfinite()].flatten()
        raise StateDictError(
            f"{where} holds {len(broken)} numbers that are not finite, such as {broken[0].item()}, of {given.numel()}: load an "
            "earlier checkpoint."
        )


def require_like(where: str, current: Any, given: Any, unchecked_entries: Sequence[str] = (), inner: bool = False) -> None:
    """Check that a saved state has the names, shapes and dtypes of the current one, and no NaN if the current one has none.

    Values that are now empty or None, lengths of lists, and the entries in `unchecked_entries` are not checked.

    Args:
        where: key of the state, for messages.
        current: the current state.
        given: the saved state.
        unchecked_entries: names of entries that are not checked.
        inner: True for a nested dict, whose names may differ.

    Raises:
        StateDictError: an entry does not fit; the message names it.
    """
    if isinstance(current, Mapping):
        if not isinstance(given, Mapping):
            raise StateDictError(f"{where} is a {type(given).__name__}, expected a dict with {sorted(map(str, current))}.")
        if current and not inner and current.keys() != given.keys():
            wanted, found = (sorted(map(str, one)) for one in (current, given))
            raise StateDictError(f"{where} has {found}, expected {wanted}.")
        for name in current.keys() & given.keys():
            if name not in unchecked_entries:
                require_like(f"{where}[{name!r}]", current[name], given[name], inner=True)
    else:
        require_leaf(where, current, given)


def require_leaf(where: str, current: Any, given: Any) -> None:
    """Check a single leaf, as `require_like` does.

    Raises:
        StateDictError: it does not fit.
    """
    if current is None or given is None:
        return
    if isinstance(current, (list, tuple, str)):
        if isinstance(given, (list, tuple)) != isinstance(current, (list, tuple)):
            raise StateDictError(f"{where} is {given!r:.80}, expected a {type(current).__name__} as {current!r:.80}.")
        return
    if not isinstance(current, (Tensor, np.ndarray, np.generic, bool, int, float)):
        return
    if not isinstance(given, (Tensor, np.ndarray, np.generic, bool, int, float)):
        raise StateDictError(f"{where} is a {type(given).__name__}, expected a number or an array of numbers.")
    old, new = (value if isinstance(value, Tensor) else np.asarray(value) for value in (current, given))
    if not _is_alike(old, new):
        raise StateDictError(f"{where} is {describe(new)}, expected {describe(old)}.{_remedy(old, new)}")
    if math.prod(old.shape) and old.ndim and new.ndim and old.shape != new.shape:
        raise StateDictError(f"{where} is {describe(new)}, expected {describe(old)}.")
    if (_kind(new) == "c" or (old.ndim and new.ndim)) and _kind(old) != _kind(new):
        raise StateDictError(f"{where} is {describe(new)}, expected {describe(old)}.")
    if not _is_finite(new) and _is_finite(old):
        if isinstance(given, float) and not math.isnan(given):  # such as a best value so far, which starts at -inf
            return
        raise StateDictError(
            f"{where} holds numbers that are not finite, and the current ones are: load an earlier checkpoint."
        )


def entry_names(thing: object, attribute: str) -> tuple[str, ...]:
    """The names of entries in an attribute of an object with a state, `unchecked_entries` or `new_entries`.

    Raises:
        TypeError: it is not a tuple, list or set of strings.
    """
    names = getattr(thing, attribute, ())
    if isinstance(names, str):
        fix = f"write {attribute} = ({names!r},)"
    elif not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in names):
        fix = f'write {attribute} = ("mean",) for an entry "mean"'
    else:
        return tuple(names)
    raise TypeError(f"{type(thing).__name__}.{attribute} is {names!r:.80}, expected a tuple of the names of entries: {fix}.")


def ranges_of(thing: object) -> dict[str, tuple[float, float]]:
    """The (low, high) ranges of entries of an object's state, by name: `state_ranges` of its class and base classes."""
    return {
        name: limits for kind in reversed(type(thing).__mro__) for name, limits in vars(kind).get("state_ranges", {}).items()
    }


def require_range(where: str, given: Any, limits: tuple[float, float], current: Any = 0.0) -> None:
    """Check that saved numbers are finite and within limits.

    Args:
        where: key of the numbers, for messages.
        given: the saved numbers: a number or an array; if `current` is a tensor, a tensor.
        limits: (low, high), inclusive.
        current: the current numbers.

    Raises:
        StateDictError: they are not.
    """
    low, high = limits
    wanted = "finite" + (f", at least {low:g}" if low > -math.inf else "") + (f", at most {high:g}" if high < math.inf else "")
    kind = "a tensor" if isinstance(current, Tensor) else "a number"
    allowed = (Tensor,) if isinstance(current, Tensor) else (Tensor, np.ndarray, np.generic, int, float)
    if not isinstance(given, allowed) or isinstance(given, bool) or not is_plain(given):
        raise StateDictError(f"{where} is {given!r:.80} of type {type(given).__name__}, expected {kind}, {wanted}.")
    array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if array.dtype.kind not in "fiu":
        raise StateDictError(f"{where} is {given!r:.80}, expected {kind}, {wanted}.")
    outside = array[~(np.isfinite(array) & (array >= low) & (array <= high))]
    if outside.size:
        raise StateDictError(
            f"{where} holds {outside.flat[0].item()!r}, expected {kind}, {wanted}: load an earlier checkpoint."
        )


def require_count(where: str, given: Any) -> None:
    """Check that a saved counter is an integer from 0 to 2**63 - 1.

    Raises:
        StateDictError: it is not.
    """
    try:
        is_count = not isinstance(given, bool) and is_plain(given) and 0 <= operator.index(given) < 2**63
    except (TypeError, ValueError, RuntimeError):  # not an integer
        is_count = False
    if not is_count:
        raise StateDictError(f"{where} is {given!r:.80}, expected an integer from 0 to 2**63 - 1.")


def tensors_in(state: Any) -> Iterator[Tensor]:
    """The tensors in nested dicts, lists and tuples."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, (Mapping, list, tuple)):
        for part in state.values() if isinstance(state, Mapping) else state:
            yield from tensors_in(part)


def is_plain(array: Any) -> bool:
    """Whether this is an ordinary dense array or tensor: not nested, sparse, quantized, or on the device meta."""
    return not isinstance(array, Tensor) or _form(array) == ""


def describe(array: Any) -> str:
    """Dtype and shape of an array for messages, such as "float32 [2, 4]", and its layout if this is unusual."""
    form = _form(array) if isinstance(array, Tensor) else ""
    if isinstance(array, Tensor) and array.is_nested:
        return form
    return f"{str(array.dtype).removeprefix('torch.')} {list(array.shape)}{form and f', {form}'}"


def _form(tensor: Tensor) -> str:
    """A description of a tensor that is not plain; empty for a plain one."""
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return f"layout {str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_meta:
        return "on the device meta, without data"
    return "quantized" if tensor.is_quantized else ""


def _is_alike(current: Any, given: Any) -> bool:
    forms = [_form(array) if isinstance(array, Tensor) else "" for array in (current, given)]
    return forms[0] == forms[1]


def _remedy(current: Any, given: Any) -> str:
    """A sentence on how to convert a tensor to a plain one; empty if it is plain, or the current one is not."""
    if not isinstance(given, Tensor) or not is_plain(current) or is_plain(given):
        return ""
    if given.is_meta:
        return " It has no data: take the tensor from a model that is not on the device meta."
    if given.is_quantized:
        return " Convert it with tensor.dequantize()."
    return "" if given.is_nested else " Convert it with tensor.to_dense()."


def _is_finite(array: Any) -> bool:
    if not is_plain(array):
        return True  # isfinite() does not support it
    if isinstance(array, Tensor):
        if not (array.is_floating_point() or array.is_complex()):
            return True
        array = array if array.dtype.itemsize > 1 else array.float()
        # A sum takes a thirtieth of the time. It is not finite if a number is not, but it may also overflow.
        return bool(array.sum().isfinite()) or bool(array.isfinite().all())
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _kind(array: Any) -> str:
    if isinstance(array, Tensor):
        return "f" if array.is_floating_point() else "c" if array.is_complex() else "b" if array.dtype == torch.bool else "i"
    kind = str(array.dtype.kind)
    return "i" if kind == "u" else kind
