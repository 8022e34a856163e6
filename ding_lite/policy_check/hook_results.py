"""Checks of the results of hooks. Each error names the hook, what it returned, and what to return."""

from __future__ import annotations

import difflib
import inspect
import math
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType
from typing import Any, Protocol

import gymnasium
from gymnasium import spaces
from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.data import Spec, flatten, is_tree
from ding_lite.envs import integer_bounds, subspaces

_ADVICE = "lower learn.learning_rate, clip gradients with learn.grad_clip_norm, or look for very large rewards or observations"

_warned: weakref.WeakSet[type] = weakref.WeakSet()  # classes whose names have been checked


class LossError(FloatingPointError):
    """The loss, the norm of its gradient, or a weight is not finite.

    If it is the loss or the gradient, no step was taken. If it is a weight, no state is saved; on a CPU, no snapshot is made
    either, and nothing is copied to acting copies.
    """

    found: str = ""
    """What is not finite, and when it was found; without advice."""


def loss_error(found: str) -> LossError:
    """The error for a loss or a gradient that is not finite, with advice."""
    error = LossError(f"{found}: {_ADVICE}.")
    error.found = found
    return error


class HookError(ValueError):
    """A hook raises an error on the dummy batch, or returns something of the wrong shape or type."""


def require_model(hook: str, model: Any) -> nn.Module:
    """Check the model that a hook returned, and return it.

    Raises:
        TypeError: it is not a module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{hook} returns a {type(model).__name__}: return a torch.nn.Module.")
    return model


def require_optimizer(hook: str, params: Sequence[nn.Parameter], optimizer: Any) -> Optimizer:
    """Check the optimizer that a hook returned for these parameters, and return it.

    Raises:
        TypeError: it is not an optimizer, needs a closure that computes the loss, or has weights outside of the model.
    """
    found = f"{hook} returns a {type(optimizer).__name__}"
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{found}: return one torch.optim.Optimizer, with several parameter groups if learning rates differ.")
    taken = {id(param) for group in optimizer.param_groups for param in group["params"]}
    if not taken <= {id(param) for param in params}:
        raise TypeError(
            f"{found} with weights that are not in self.model: their gradients would accumulate, and they would not be clipped "
            "or saved. Make them a part of the module that make_model returns."
        )
    if any(param.requires_grad and id(param) not in taken for param in params):
        warnings.warn(
            f"{found} without some of the model's weights, which will not learn: add them, or set requires_grad of them to "
            "False.",
            stacklevel=4,
        )
    try:
        inspect.signature(optimizer.step).bind()
    except TypeError:
        raise TypeError(
            f"{found}, which needs a closure to compute the loss several times per step: return an optimizer that does not, "
            "such as torch.optim.Adam."
        ) from None
    return optimizer


def require_finite(policy: str, train_iter: int, params: Sequence[Tensor]) -> None:
    """Check that the weights of a policy are finite.

    Raises:
        LossError: a weight is NaN or infinite.
    """
    # A sum is much cheaper than isfinite(). It may overflow although all numbers are finite, so isfinite() then decides.
    if math.isfinite(sum(float(param.detach().sum()) for param in params)) or all(bool(it.isfinite().all()) for it in params):
        return
    raise LossError(
        f"the weights of {policy} are not finite after {train_iter} gradient steps, because a gradient was not finite although "
        f"the loss was, or because a step was much too large: {_ADVICE}; and continue from an earlier checkpoint."
    )


def require_methods(policy: object) -> None:
    """Check that no attribute of a policy hides a method, such as a network `self.actor`.

    Raises:
        TypeError: an attribute has the name of a method.
    """
    for name, value in vars(policy).items():
        if inspect.isfunction(getattr(type(policy), name, None)) and not inspect.isroutine(value):
            raise TypeError(
                f"{type(policy).__name__}.{name} is a method of policies, but self.{name} is set to a {type(value).__name__}: "
                "give the attribute another name."
            )


class ConfiguredPolicy(Protocol):
    """The interface that `warn_of_idle_settings` needs from a policy."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration by short names."""

    @property
    def params(self) -> Sequence[nn.Parameter]:
        """The parameters that learn."""

    @property
    def has_own_weights(self) -> bool:
        """Whether `get_weights` is overridden."""


def warn_of_idle_settings(policy: ConfiguredPolicy) -> None:
    """Warn if `lr_schedule` has no effect on this class, or if nothing that it learns reaches the acting copies."""
    kind: Any = type(policy)
    if policy.config.get("lr_schedule") is not None and not hasattr(policy, "lr_schedule"):
        warnings.warn(
            f"learn.lr_schedule has no effect on a {kind.__name__}: derive a class with it, "
            f"{kind.__name__}.with_updates(mixins=[LearningRateSchedule]).",
            stacklevel=4,
        )
    if not policy.params and kind.learn_on_batch.__qualname__ != "Policy.learn_on_batch" and not policy.has_own_weights:
        warnings.warn(
            f"{kind.__name__} learns, but has neither networks nor get_weights and set_weights: define these. Otherwise the "
            "copies that collect and evaluate do not see what it learns, or see partly updated arrays.",
            stacklevel=4,
        )


def require_declarations(policy: object, hooks: Iterable[str]) -> None:
    """Check `learns_from` and `loss_takes`, and warn, once per class, of names that look like misspelt hooks.

    Args:
        policy: the policy.
        hooks: names of hooks and of class attributes that a policy may define.

    Raises:
        ValueError: `learns_from` or `loss_takes` has a value that does not exist.
    """
    kind: Any = type(policy)
    for name in ("learns_from", "loss_takes"):
        given = getattr(policy, name)
        if given not in ("rollouts", "transitions"):
            raise ValueError(f'{kind.__name__}.{name} is {given!r:.80}: set it to "rollouts" or "transitions".')
    users = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in ("ding_lite", "builtins")]
    known = {name for base in kind.__mro__ if base not in users for name in vars(base)}
    public = [name for name in hooks if not name.startswith("_")]
    for base in (it for it in users if it not in _warned):
        _warned.add(base)
        for name, value in vars(base).items():
            meant = None if name.startswith("_") or name in known else _misspelt(name, public)
            if meant is not None and not any(_refers(function, name) for it in users for function in vars(it).values()):
                warnings.warn(
                    f"{base.__name__} defines {name!r}, which nothing {'calls' if callable(value) else 'reads'}: did you mean "
                    f"{meant!r}?",
                    stacklevel=4,
                )


def _misspelt(name: str, hooks: Sequence[str]) -> str | None:
    """The hook that this name is close to, if there is one."""
    plain = name.replace("_", "").lower()
    same = [hook for hook in hooks if hook.replace("_", "") == plain]
    return next(iter(same or difflib.get_close_matches(name, hooks, n=1, cutoff=0.85)), None)


def _refers(function: Any, name: str) -> bool:
    """Whether the code of another function uses this name, as a helper's callers do."""
    code = getattr(inspect.unwrap(getattr(function, "fget", None) or getattr(function, "__func__", function)), "__code__", None)
    return code is not None and code.co_name != name and _uses(code, name)


def _uses(code: CodeType, name: str) -> bool:
    return name in code.co_names or any(isinstance(part, CodeType) and _uses(part, name) for part in code.co_consts)


def require_batch(hook: str, batch: Any) -> None:
    """Raise HookError if a hook did not return a batch."""
    if not is_tree(batch):
        raise HookError(f"{hook} returns a {type(batch).__name__}: return a batch, such as with_leaves(batch, ...).")


def require_mapping(hook: str, given: Any) -> dict[str, Any]:
    """The dict to log that a hook returned; empty for None.

    Raises:
        HookError: it is not a mapping.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise HookError(f"{hook} returns a {type(given).__name__}: return a dict of values to log, or None.")
    return given if isinstance(given, dict) else dict(given)


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
    if isinstance(given, tuple):
        loss, stats = given
        stats = dict(stats or {})
        for name in ("total_loss", "loss"):
            if name in stats and isinstance(loss, Tensor):
                stats[name] = loss.detach()  # a subclass may have added terms to the loss
        return loss, stats
    return given, {"total_loss": given.detach()} if isinstance(given, Tensor) else {}
