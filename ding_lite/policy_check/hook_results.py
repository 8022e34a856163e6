"""Checks of the results of hooks. Each error names the hook, what it returned, and what to return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ding_lite.basics.messages import warn_caller, with_article
from ding_lite.basics.signatures import passed_signature_of
from ding_lite.data import Spec, flatten
from ding_lite.data.trees import is_tree
from ding_lite.envs.spaces import integer_bounds, subspaces

LOSSES = ("total_loss", "loss")
"""Names under which the whole loss is logged."""


class HookError(ValueError):
    """A hook raises an error on the dummy batch, or returns something of the wrong shape or type."""


def require_model(hook: str, model: Any, is_given: bool = False) -> nn.Module:
    """Check the model that a hook returned, or that a user has given, and return it.

    Args:
        hook: name of the hook, or of the argument, for messages.
        model: the model.
        is_given: whether it is an argument.

    Raises:
        TypeError: it is not a module, or contains a scripted module, or parameters that are not initialized.
    """
    returns, give = ("got", "pass") if is_given else ("returns", "return")
    if not isinstance(model, nn.Module):
        found = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise TypeError(f"{hook} {returns} {found}: {give} a torch.nn.Module.")
    for name, part in model.named_modules():
        place = f" with {name}," if name else ","
        if isinstance(part, torch.jit.ScriptModule):
            raise TypeError(
                f"{hook} {returns} a {type(model).__name__}{place} a module of torch.jit, which acting copies and workers "
                f"cannot copy: {give} the module without torch.jit.script or torch.jit.trace."
            )
        if any(map(is_lazy, (*part.parameters(recurse=False), *part.buffers(recurse=False)))):
            raise TypeError(
                f"{hook} {returns} a {type(model).__name__}{place} a {type(part).__name__} whose parameters are not "
                "initialized: give its sizes, such as nn.Linear(4, 2), or call the module once with a dummy observation before "
                f"you {give} it."
            )
    return model


def require_real(policy: str, model: nn.Module) -> None:
    """Refuse complex parameters: optimizers with `fused=True` and the check for finite weights take real numbers alone.

    Raises:
        HookError: a parameter of the model is complex; the message has its name.
    """
    for name, param in model.named_parameters():
        if param.is_complex():
            raise HookError(
                f"{policy} cannot learn the parameter {name!r} of its {type(model).__name__}, which is {param.dtype} of shape "
                f"{tuple(param.shape)}, expected real numbers: make it real, with a last dimension for the real and the "
                f"imaginary part, nn.Parameter(torch.view_as_real(...)), and call torch.view_as_complex in forward."
            )


def require_optimizer(hook: str, params: Sequence[nn.Parameter], optimizer: Any, others: Sequence[Optimizer] = ()) -> Optimizer:
    """Check the optimizer that a hook returned for these parameters, and return it.

    Args:
        hook: name of the hook and of the policy.
        params: all parameters of the model.
        optimizer: what it returned.
        others: further optimizers of the policy, which may have the other parameters.

    Raises:
        TypeError: it is not an optimizer, needs a closure that computes the loss, or has weights outside of the model.
    """
    found = f"{hook} returns {with_article(type(optimizer).__name__)}"
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{found}: return one torch.optim.Optimizer, with several parameter groups if learning rates differ.")
    taken = {id(param) for group in optimizer.param_groups for param in group["params"]}
    if not taken <= {id(param) for param in params}:
        raise TypeError(
            f"{found} with weights that are not in self.model: their gradients would accumulate, and they would not be clipped "
            "or saved. Make them a part of the module that make_model returns."
        )
    try:
        passed_signature_of(type(optimizer).step).bind(optimizer)  # schedules of torch wrap the step of the object
    except TypeError:
        raise TypeError(
            f"{found}, which needs a closure to compute the loss several times per step: return an optimizer that does not, "
            "such as torch.optim.Adam."
        ) from None
    return optimizer


def warn_of_unlearned(hook: str, params: Sequence[nn.Parameter], optimizer: Optimizer, others: Iterable[Any]) -> None:
    """Warn if parameters of the model are neither in the optimizer that a hook returned nor in one of the policy's others."""
    groups = [group for it in (optimizer, *others) if isinstance(it, Optimizer) for group in it.param_groups]
    taken = {id(param) for group in groups for param in group["params"]}
    if any(param.requires_grad and id(param) not in taken for param in params):
        warn_caller(
            f"{hook} returns {with_article(type(optimizer).__name__)} without some of the model's weights, which will not "
            "learn: add them, or set requires_grad of them to False."
        )


def require_batch(hook: str, batch: Any) -> None:
    """Raise HookError if a hook did not return a batch."""
    if not is_tree(batch):
        raise HookError(
            f"{hook} returns {with_article(type(batch).__name__)}: return a batch, such as with_leaves(batch, ...)."
        )


def require_mapping(hook: str, given: Any) -> dict[str, Any]:
    """The dict to log that a hook returned; empty for None.

    Raises:
        HookError: it is not a mapping.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise HookError(f"{hook} returns {with_article(type(given).__name__)}: return a dict of values to log, or None.")
    return dict(given)


def require_rows(hook: str, count: int, outputs: Mapping[str, Any], specs: Mapping[str, Spec] | None = None) -> None:
    """Check that outputs have one row per environment, [count, ...], and the shapes of their specs, if given.

    Raises:
        HookError: an output does not.
    """
    wanted = {} if specs is None else {path: list(leaf.shape) for path, leaf in flatten(specs)}
    found = dict(flatten(outputs))
    if wanted and wanted.keys() != found.keys():
        names = sorted("/".join(path) for path in wanted)
        keys = sorted("/".join(path) for path in found)
        raise HookError(f"{hook} returns actions with the keys {keys}, and the action space has {names}: return these keys.")
    for path, leaf in found.items():
        shape, inner = list(getattr(leaf, "shape", ())), wanted.get(path)
        if shape[:1] != [count] or (inner is not None and shape[1:] != inner):
            rest = "..." if inner is None else ", ".join(map(str, inner))
            raise HookError(
                f"{hook} returns the column {'/'.join(path)!r} of shape {shape} for {count} observations: return "
                f"[{count}{', ' if rest else ''}{rest}], one row per observation."
            )


def require_actions(hook: str, space: gymnasium.Space[Any], action: Any) -> None:
    """Check the dtype of actions [B, ...], and that discrete actions are in their space. Box actions are clipped later.

    Raises:
        HookError: an action does not fit the space.
    """
    parts = subspaces(space)
    if parts is not None:
        for name, part in parts.items():
            require_actions(hook, part, action[name])
        return
    wanted = "numbers" if isinstance(space, spaces.Box) else "integers"
    kinds = "biuf" if isinstance(space, spaces.Box) else "biu"
    if action.dtype.kind not in kinds:
        raise HookError(f"{hook} returns actions of dtype {action.dtype}, and {space} takes {wanted}: return {wanted}.")
    bounds = integer_bounds(space)
    if bounds is not None and not ((action >= bounds[0]) & (action <= bounds[1])).all():
        raise HookError(f"{hook} returns the actions {action.tolist()}, and some are not in {space}: return elements of it.")


def require_as_long(hook: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Check that all columns of a rollout have the same [T, B], unless `postprocess` changed [T, B] of the columns it got.

    Args:
        hook: name of the hook, for messages.
        before: the columns that the hook got.
        after: the columns that it returned.

    Raises:
        HookError: a new column has other leading dimensions.
    """
    given, found = dict(flatten(before)), dict(flatten(after))
    front = next(iter(given.values())).shape[:2]
    if any(path in given and leaf.shape[:2] != front for path, leaf in found.items()):
        return
    for path, leaf in found.items():
        if leaf.shape[:2] != front:
            raise HookError(
                f"{hook} returns the column {'/'.join(path)!r} of shape {list(leaf.shape)} with columns "
                f"[{', '.join(map(str, front))}, ...], which are flattened to rows together: return one element per step."
            )


def require_scalar(hook: str, loss: Any) -> None:
    """Raise HookError if a loss is not a scalar tensor, or does not require gradients."""
    if not isinstance(loss, Tensor) or loss.ndim:
        found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise HookError(f"{hook} returns {found}: return a scalar tensor, such as the mean over the batch, or (scalar, dict).")
    if not loss.requires_grad:
        raise HookError(f"{hook} does not depend on the model's weights: compute it from self.model, outside torch.no_grad().")


def with_stats(given: Any) -> tuple[Any, dict[str, Any]]:
    """The result of `loss` as (loss, dict to log), also if it returned the loss alone."""
    if not isinstance(given, tuple):
        return given, {"total_loss": given.detach()} if isinstance(given, Tensor) else {}
    loss, stats = given
    stats = dict(stats or {})
    for name in LOSSES:
        if name in stats and isinstance(loss, Tensor):
            stats[name] = loss.detach()  # a subclass may have added terms to the loss
    return loss, stats
