"""Recurrent checks: checks that the next state of a policy has the same form as its previous state."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

_UNCHANGING = {type(None), bool, int, float, complex, str, bytes}
_NO_BATCH = (str, bytes, Mapping, Set)  # these have a length too, but not one item per environment


def state_like_before(before: Sequence[Any], after: Any, policy: str) -> list[Any]:
    """The next recurrent state of a policy, each element converted to the form of the previous state.

    Args:
        before: the previous state, a batch per element: a tensor [B, ...], or a list of B objects.
        after: the state that `compute_actions` returned: a tensor, array or list [B, ...] per element.
        policy: name of the policy's class, for messages.

    Raises:
        TypeError: the state is not a list of elements; or an element is not a batch, or has a dtype that cannot be cast.
        ValueError: the number of elements, or the shape or length of an element, differs.
    """
    who = f"compute_actions of {policy}"
    if isinstance(after, _NO_BATCH) or not hasattr(after, "__len__"):
        raise TypeError(
            f"{who} returned a state that is a {type(after).__name__}: return a list of {len(before)} elements, as "
            "get_initial_state does."
        )
    if len(after) != len(before):
        raise ValueError(
            f"{who} returned a state of {len(after)} elements, and get_initial_state one of {len(before)}: return the same "
            "elements from both, in the same order."
        )
    what = f"{who} returned state element"
    return [like_before(one, next_one, f"{what} {k}") for k, (one, next_one) in enumerate(zip(before, after))]


def like_before(before: Any, after: Any, what: str) -> Any:
    """The next value of one element of a recurrent state, converted to the form of its previous value.

    Args:
        before: a tensor [B, ...], or a list of B objects.
        after: if `before` is a tensor, a tensor, an array, a list of numbers or a list of B tensors; otherwise anything of
            length B.
        what: start of the messages, such as "compute_actions of GRUPolicy returned state element 0".

    Raises:
        TypeError: it is not a batch, or has a dtype that cannot be cast.
        ValueError: the shape or length differs.
    """
    if not isinstance(before, Tensor):
        if isinstance(after, _NO_BATCH) or not hasattr(after, "__len__"):
            raise TypeError(f"{what} as a {type(after).__name__}: return a list of {len(before)}, one item per environment.")
        if len(after) != len(before):
            raise ValueError(
                f"{what} for {len(after)} environments, but there are {len(before)}: return one item per environment."
            )
        return list(after)
    tensor = after if isinstance(after, Tensor) else _to_tensor(after, tuple(before.shape), what)
    if tensor.shape != before.shape:
        raise ValueError(
            f"{what} with shape {tuple(tensor.shape)}, but its shape was {tuple(before.shape)} before: return the same shape."
        )
    if tensor.dtype != before.dtype and not torch.can_cast(tensor.dtype, before.dtype):
        raise TypeError(
            f"{what} with dtype {tensor.dtype}, but its dtype was {before.dtype} before: return the same dtype from "
            "get_initial_state, for example 0.0 instead of 0."
        )
    return tensor.to(before.dtype)


def own_object(thing: Any, policy: str) -> Any:
    """A deep copy of an object in a recurrent state, which other environments and recorded steps do not share.

    Args:
        thing: the object; numbers and text are returned unchanged.
        policy: name of the policy's class, for messages.

    Raises:
        TypeError: the object cannot be copied.
    """
    if type(thing) in _UNCHANGING:
        return thing
    try:
        return copy.deepcopy(thing)
    except Exception as error:
        raise TypeError(
            f"the recurrent state of {policy} has {thing!r:.80} of type {type(thing).__name__}, which copy.deepcopy cannot "
            f"copy: {error}. Each environment needs its own copy, and so does each recorded step: use tensors, arrays, plain "
            "data or objects that can be copied."
        ) from error


def _to_tensor(rows: Any, shape: tuple[int, ...], what: str) -> Tensor:
    try:
        if isinstance(rows, (list, tuple)) and rows and isinstance(rows[0], Tensor):
            return torch.stack(list(rows))
        return torch.as_tensor(np.asarray(rows))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{what} as a {type(rows).__name__} that is not a tensor of shape {shape}: {error}") from error
