"""Leaves of a state: tensors, arrays and numbers, and whether those of one state can take the place of another's."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ding_lite.policy_state.identities import StateError


def require_tensor(where: str, current: Tensor, given: Tensor, must_be_finite: bool = False) -> None:
    """Refuse a tensor of another shape, kind or layout than the current one, and numbers that are not finite.

    Args:
        must_be_finite: refuse these even where the current tensor holds some too.

    Raises:
        StateError
    """
    if not _is_alike(current, given) or given.shape != current.shape or given.dtype != current.dtype:
        raise StateError(f"{where} is of {describe(given)}, and {describe(current)} is wanted.{_remedy(current, given)}")
    if not _is_finite(given) and (must_be_finite or _is_finite(current)):
        broken = given[~given.isfinite()].flatten()
        raise StateError(
            f"{where} holds {len(broken)} numbers that are not finite, such as {broken[0].item()}, of {given.numel()}: take a "
            "checkpoint from before that."
        )


def require_like(where: str, current: Any, given: Any, varying: Sequence[str] = (), inner: bool = False) -> None:
    """Refuse a state of other names, shapes or kinds of numbers than the current one, or with NaN where that has none.

    Nothing is asked of what is empty or None now, of the length of lists, and of what `varying` names.

    Raises:
        StateError: the part that does not fit, by its key.
    """
    if isinstance(current, Mapping):
        if not isinstance(given, Mapping):
            raise StateError(f"{where} is a {type(given).__name__}, and a dict with {sorted(map(str, current))} is wanted.")
        if current and not inner and current.keys() != given.keys():
            wanted, found = (sorted(map(str, one)) for one in (current, given))
            raise StateError(f"{where} has {found}, and {wanted} are wanted.")
        for name in current.keys() & given.keys():
            if name not in varying:
                require_like(f"{where}[{name!r}]", current[name], given[name], inner=True)
    else:
        require_leaf(where, current, given)


def require_leaf(where: str, current: Any, given: Any) -> None:
    """The same of a single leaf.

    Raises:
        StateError
    """
    if current is None or given is None:
        return
    if isinstance(current, (list, tuple, str)):
        if isinstance(given, (list, tuple)) != isinstance(current, (list, tuple)):
            raise StateError(f"{where} is {given!r:.80}, and a {type(current).__name__} as {current!r:.80} is wanted.")
        return
    if not isinstance(current, (Tensor, np.ndarray, np.generic, bool, int, float)):
        return
    if not isinstance(given, (Tensor, np.ndarray, np.generic, bool, int, float)):
        raise StateError(f"{where} is a {type(given).__name__}, and a number or an array of numbers is wanted.")
    old, new = (value if isinstance(value, Tensor) else np.asarray(value) for value in (current, given))
    if not _is_alike(old, new):
        raise StateError(f"{where} is of {describe(new)}, and {describe(old)} is wanted.{_remedy(old, new)}")
    if math.prod(old.shape) and old.ndim and new.ndim and old.shape != new.shape:
        raise StateError(f"{where} is of {describe(new)}, and {describe(old)} is wanted.")
    if (_kind(new) == "c" or (old.ndim and new.ndim)) and _kind(old) != _kind(new):
        raise StateError(f"{where} is of {describe(new)}, and {describe(old)} is wanted.")
    if not _is_finite(new) and _is_finite(old):
        if isinstance(given, float) and not math.isnan(given):  # as what was best so far begins with -inf
            return
        raise StateError(f"{where} holds numbers that are not finite, and now there are none: take a checkpoint from before.")


def ranges_of(thing: object) -> dict[str, tuple[float, float]]:
    """The entries of its state that have a range, and from where to where: `state_ranges` of all its classes."""
    return {
        name: limits for kind in reversed(type(thing).__mro__) for name, limits in vars(kind).get("state_ranges", {}).items()
    }


def require_range(where: str, given: Any, limits: tuple[float, float], current: Any = 0.0) -> None:
    """Refuse anything but finite numbers within these limits: a tensor where there is one now, a number or an array elsewhere.

    Raises:
        StateError
    """
    low, high = limits
    wanted = "finite" + (f", at least {low:g}" if low > -math.inf else "") + (f", at most {high:g}" if high < math.inf else "")
    kind = "a tensor" if isinstance(current, Tensor) else "a number"
    allowed = (Tensor,) if isinstance(current, Tensor) else (Tensor, np.ndarray, np.generic, int, float)
    if not isinstance(given, allowed) or isinstance(given, bool) or not is_plain(given):
        raise StateError(f"{where} is {given!r:.80} of type {type(given).__name__}, and {kind} is wanted, {wanted}.")
    array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if array.dtype.kind not in "fiu":
        raise StateError(f"{where} is {given!r:.80}, and {kind} is wanted, {wanted}.")
    outside = array[~(np.isfinite(array) & (array >= low) & (array <= high))]
    if outside.size:
        raise StateError(
            f"{where} holds {outside.flat[0].item()!r}, and {kind} is wanted, {wanted}: take a checkpoint from before that."
        )


def require_count(where: str, given: Any) -> None:
    """Refuse anything but a whole number of at least 0 that fits into 64 bits.

    Raises:
        StateError
    """
    try:
        is_count = not isinstance(given, bool) and is_plain(given) and 0 <= operator.index(given) < 2**63
    except (TypeError, ValueError, RuntimeError):  # not a number, or one that is not whole
        is_count = False
    if not is_count:
        raise StateError(f"{where} is {given!r:.80}, and a number of at least 0 is wanted, a whole one of 64 bits.")


def is_plain(array: Any) -> bool:
    """Whether it has a number for each place, as arrays and most tensors do."""
    return not isinstance(array, Tensor) or _form(array) == ""


def describe(array: Any) -> str:
    """Shape, kind of numbers and, where it is unusual, layout."""
    form = _form(array) if isinstance(array, Tensor) else ""
    if isinstance(array, Tensor) and array.is_nested:
        return form
    return f"shape {list(array.shape)} {str(array.dtype).removeprefix('torch.')}{form and f', {form}'}"


def _form(tensor: Tensor) -> str:
    """What is unusual about a tensor, which most functions refuse; empty where nothing is."""
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return f"of the layout {str(tensor.layout).removeprefix('torch.')}"
    if tensor.is_meta:
        return "on the device meta, without numbers"
    return "quantized" if tensor.is_quantized else ""


def _is_alike(current: Any, given: Any) -> bool:
    forms = [_form(array) if isinstance(array, Tensor) else "" for array in (current, given)]
    return forms[0] == forms[1]


def _remedy(current: Any, given: Any) -> str:
    """How to make a usual tensor of an unusual one."""
    if not isinstance(given, Tensor) or not is_plain(current) or is_plain(given):
        return ""
    if given.is_meta:
        return " It was made without numbers: take it from a model that has some."
    if given.is_quantized:
        return " tensor.dequantize() gives its numbers."
    return "" if given.is_nested else " tensor.to_dense() makes it one."


def _is_finite(array: Any) -> bool:
    if not is_plain(array):
        return True  # nothing can be asked there
    if isinstance(array, Tensor):
        if not (array.is_floating_point() or array.is_complex()):
            return True
        return bool((array if array.dtype.itemsize > 1 else array.float()).isfinite().all())
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _kind(array: Any) -> str:
    if isinstance(array, Tensor):
        return "f" if array.is_floating_point() else "c" if array.is_complex() else "b" if array.dtype == torch.bool else "i"
    kind = str(array.dtype.kind)
    return "i" if kind == "u" else kind
