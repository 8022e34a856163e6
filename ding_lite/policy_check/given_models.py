"""Checks of a model that was given to the constructor of a policy. Each error says what is missing or expected."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.policy_check.hook_results import HookError


class PolicyWithGivenModel(Protocol):
    """The interface that these checks need from a policy."""

    @property
    def model(self) -> Any:
        """The networks."""


def require_members(policy: object, model: nn.Module, members: Mapping[str, str], modules: Sequence[str] = ()) -> None:
    """Check that a model has these methods and attributes.

    Args:
        policy: the policy that was called with the model.
        model: the model.
        members: for each name, how it is called and what it returns.
        modules: the names of those that must be modules, because the policy needs the parameters of each.

    Raises:
        TypeError: the model lacks one, the message lists all of `members`; or one of `modules` is no module.
    """
    missing = [name for name in members if not hasattr(model, name)]
    if missing:
        raise TypeError(
            f"{type(policy).__name__}(model=...) got a {type(model).__name__}, which has no {' and no '.join(missing)}. Such a "
            f"model has {'; '.join(members.values())}."
        )
    for name in modules:
        if not isinstance(found := getattr(model, name), nn.Module):
            raise TypeError(
                f"{type(policy).__name__}(model=...) got a {type(model).__name__}, whose {name} is a {type(found).__name__}, "
                f"expected an nn.Module with the parameters of {name}: assign it in __init__, self.{name} = ..., a module with "
                "the method forward."
            )


def require_no_recurrent_state(policy: Any, model: nn.Module) -> None:
    """Check that a model has no recurrent state if the policy does not use one.

    Args:
        policy: the policy that was called with the model, whose `get_initial_state` is that of `Policy`. If a class of a script
            overrides `compute_actions`, it may keep the state in another way.
        model: the model.

    Raises:
        TypeError: the model has `initial_state`, and the policy would act and learn without memory.
    """
    if not callable(getattr(model, "initial_state", None)) or _is_empty(model.initial_state):
        return
    acting = next(kind for kind in type(policy).__mro__ if "compute_actions" in vars(kind))
    if is_of_ding_lite(acting.__module__):
        kind = type(policy).__name__
        raise TypeError(
            f"{kind}(model=...) got a {type(model).__name__}, which has a recurrent state (initial_state), and {kind} would "
            "act and learn without it: use PPOPolicy or IMPALAPolicy, or R2D2Policy for Q-values, which support such networks; "
            "or a network without memory."
        )


require_no_memory = require_no_recurrent_state  # its name in earlier versions


def _is_empty(initial_state: Any) -> bool:
    """Whether a model says that it has no recurrent state."""
    for arguments in ((), (1,)):  # the second is a number of rows
        with contextlib.suppress(Exception):
            found = initial_state(*arguments)
            return hasattr(found, "__len__") and not len(found)
    return False


def require_output(policy: PolicyWithGivenModel, call: str, output: Any, shape: Sequence[int | None], what: str) -> None:
    """Check an output of the model for dummy observations.

    Args:
        policy: the policy.
        call: how the model was called, such as "forward(obs)".
        output: what it returned.
        shape: the expected shape; None for any size.
        what: what the output is, such as "Q-values [B, A]".

    Raises:
        HookError: the output is not a tensor, or has another shape.
    """
    fits = isinstance(output, Tensor) and output.ndim == len(shape)
    if not fits or any(wanted not in (None, size) for wanted, size in zip(shape, output.shape)):
        found = f"a tensor of shape {list(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise HookError(
            f"the model of {type(policy).__name__}, a {type(policy.model).__name__}, returns {found} from {call} for a dummy "
            f"batch, expected a tensor of shape [{expected}]: {what}."
        )
