"""Checks: what a hook gives, refused by the hook's name where it does not fit.

Room: ding_lite.hooks, floor 3. Imports data.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.data import Spec, flatten

if TYPE_CHECKING:
    from ding_lite.hooks.policies import Policy


class HookError(ValueError):
    """A hook fails on the dummy batch, or gives something that does not fit."""


def made_model(policy: Policy) -> nn.Module:
    """What make_model gives.

    Raises:
        TypeError: no module.
    """
    model: Any = policy.make_model()
    if not isinstance(model, nn.Module):
        raise TypeError(f"make_model of {type(policy).__name__} gives a {type(model).__name__}: give a torch.nn.Module.")
    return model


def made_optimizer(policy: Policy) -> Optimizer:
    """What make_optimizer gives.

    Raises:
        TypeError: no optimizer, or one that wants to compute the loss itself.
    """
    optimizer: Any = policy.make_optimizer(policy.params)
    found = f"make_optimizer, or the optimizer_fn, of {type(policy).__name__} gives a {type(optimizer).__name__}"
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"{found}: give one torch.optim.Optimizer, with groups of parameters where these learn at rates of their own."
        )
    try:
        inspect.signature(optimizer.step).bind()
    except TypeError:
        raise TypeError(
            f"{found}, which computes the loss again and again within a step: give one that takes a step from one gradient, "
            "such as torch.optim.Adam."
        ) from None
    return optimizer


def require_rows(hook: str, count: int, outputs: Mapping[str, Any], specs: Mapping[str, Spec] | None = None) -> None:
    """Refuse outputs without one row for each environment, or that are no elements of their space."""
    wanted = {} if specs is None else {path: list(leaf.shape) for path, leaf in flatten(specs)}
    found = dict(flatten(outputs))
    if wanted and wanted.keys() != found.keys():
        names = sorted("/".join(path) for path in wanted)
        raise HookError(f"{hook} gives {sorted('/'.join(path) for path in found)}, and the action space has {names}.")
    for path, leaf in found.items():
        shape, inner = list(getattr(leaf, "shape", ())), wanted.get(path)
        if shape[:1] != [count] or (inner is not None and shape[1:] != inner):
            rest = "..." if inner is None else ", ".join(map(str, inner))
            raise HookError(
                f"{hook} gives the column {'/'.join(path)!r} of shape {shape} for {count} observations: give "
                f"[{count}{', ' if rest else ''}{rest}], one row for each."
            )


def require_as_long(hook: str, before: Mapping[str, Any], after: Mapping[str, Any], rank: int) -> None:
    """Refuse a column that fits no other, unless all of the batch was cut anew.

    Args:
        rank: how many dimensions in front are steps and environments, or rows.
    """
    given, found = dict(flatten(before)), dict(flatten(after))
    front = next(iter(given.values())).shape[:rank]
    if any(path in given and leaf.shape[:rank] != front for path, leaf in found.items()):
        return
    for path, leaf in found.items():
        if leaf.shape[:rank] != front:
            raise HookError(
                f"{hook} gives the column {'/'.join(path)!r} of shape {list(leaf.shape)} beside columns "
                f"[{', '.join(map(str, front))}, ...]: give one element for each {'step' if rank == 2 else 'row'}."
            )


def require_scalar(hook: str, loss: Any) -> None:
    """Refuse a loss that is no number, or that nothing can be learned from."""
    if not isinstance(loss, Tensor) or loss.ndim:
        found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise HookError(f"{hook} gives {found}: give a scalar tensor, such as the mean over the batch, or (scalar, dict).")
    if not loss.requires_grad:
        raise HookError(f"{hook} does not depend on the model's weights: compute it from self.model, outside torch.no_grad().")
