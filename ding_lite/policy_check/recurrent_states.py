"""Recurrent states: what a policy gives for the next step has the form of what it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NO_BATCH = (str, bytes, Mapping, Set)  # these have a length too, but not one place for each environment


def state_like_before(before: Sequence[Any], after: Any, policy: str) -> list[Any]:
    """The next state of a policy, each element in the form that it had.

    Args:
        before: a batch for each element: a tensor [B, ...], or a list of B objects.
        after: what `compute_actions` gave: a tensor, array or list [B, ...] for each element.
        policy: name of its class, for messages.

    Raises:
        TypeError: no list of elements, or an element is of another kind of dtype, or no batch.
        ValueError: other elements, or one of another shape or length.
    """
    who = f"compute_actions of {policy}"
    if isinstance(after, _NO_BATCH) or not hasattr(after, "__len__"):
        raise TypeError(
            f"{who} gave a state that is a {type(after).__name__}: give a list of {len(before)} elements, as get_initial_state "
            "does."
        )
    if len(after) != len(before):
        raise ValueError(
            f"{who} gave a state of {len(after)} elements, and get_initial_state one of {len(before)}: both give the same "
            "elements, in the same order."
        )
    return [like_before(one, next_one, f"{who} gave state element {k}") for k, (one, next_one) in enumerate(zip(before, after))]


def like_before(before: Any, after: Any, what: str) -> Any:
    """The next state of one element, in the form that it had.

    Args:
        before: a tensor [B, ...], or a list of B objects.
        after: of a tensor a tensor, an array, a list of numbers or one of B tensors; of a list anything of B places.
        what: for messages: "compute_actions of GRUPolicy gave state element 0".

    Raises:
        TypeError: another kind of dtype, or no batch.
        ValueError: another shape or length.
    """
    if not isinstance(before, Tensor):
        if isinstance(after, _NO_BATCH) or not hasattr(after, "__len__"):
            raise TypeError(f"{what} as a {type(after).__name__}: give a list of {len(before)}, one for each environment.")
        if len(after) != len(before):
            raise ValueError(f"{what} for {len(after)} environments, and there are {len(before)}.")
        return list(after)
    tensor = after if isinstance(after, Tensor) else _to_tensor(after, tuple(before.shape), what)
    if tensor.shape != before.shape:
        raise ValueError(
            f"{what} in the shape {tuple(tensor.shape)}, and it had {tuple(before.shape)} before: a state keeps its shape."
        )
    if tensor.dtype != before.dtype and not torch.can_cast(tensor.dtype, before.dtype):
        raise TypeError(
            f"{what} in {tensor.dtype}, and it was {before.dtype} before: have get_initial_state give what compute_actions "
            "gives, such as 0.0 where it began with 0."
        )
    return tensor.to(before.dtype)


def _to_tensor(rows: Any, shape: tuple[int, ...], what: str) -> Tensor:
    try:
        if isinstance(rows, (list, tuple)) and rows and isinstance(rows[0], Tensor):
            return torch.stack(list(rows))
        return torch.as_tensor(np.asarray(rows))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{what} as a {type(rows).__name__} that is no tensor of the shape {shape}: {error}") from error
