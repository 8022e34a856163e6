"""Hook results: what a hook gives is refused, by the hook's name, where it does not fit."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium
from gymnasium import spaces
from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.data import Spec, flatten, is_tree
from ding_lite.envs import integer_bounds, subspaces

ADVICE = (
    "lower learn.learning_rate, clip gradients with learn.grad_clip_norm, or look for rewards or observations out of proportion"
)


class LossError(FloatingPointError):
    """The loss, or the norm of its gradient, is not finite, and the weights are still those of before; or the weights are not
    finite any more, and nothing was made of them: no saved state, and on a CPU no copy that acts and no snapshot either."""


class HookError(ValueError):
    """A hook fails on the dummy batch, or gives something that does not fit."""


def require_model(hook: str, model: Any) -> nn.Module:
    """What a hook gives as the model.

    Raises:
        TypeError: no module.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{hook} gives a {type(model).__name__}: give a torch.nn.Module.")
    return model


def require_optimizer(hook: str, params: Sequence[nn.Parameter], optimizer: Any) -> Optimizer:
    """What a hook gives as the optimizer of these parameters.

    Raises:
        TypeError: no optimizer, one that wants to compute the loss itself, or one of weights beside the model.
    """
    found = f"{hook} gives a {type(optimizer).__name__}"
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"{found}: give one torch.optim.Optimizer, with groups of parameters where these learn at rates of their own."
        )
    taken = {id(param) for group in optimizer.param_groups for param in group["params"]}
    if not taken <= {id(param) for param in params}:
        raise TypeError(
            f"{found} with weights that are not in self.model, whose gradients would be added up and which nobody would save "
            "or clip: make them a part of what make_model gives."
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
            f"{found}, which computes the loss again and again within a step: give one that takes a step from one gradient, "
            "such as torch.optim.Adam."
        ) from None
    return optimizer


def require_finite(policy: str, train_iter: int, params: Sequence[Tensor]) -> None:
    """Refuse weights that are no numbers any more.

    Raises:
        LossError
    """
    # A sum costs a fraction of asking each number; it may overflow where all are finite, so what it suspects is asked.
    if math.isfinite(sum(float(param.detach().sum()) for param in params)) or all(bool(it.isfinite().all()) for it in params):
        return
    raise LossError(
        f"the weights of {policy} are not finite any more after {train_iter} gradient steps: a gradient was not, though the "
        f"loss was, or a step was far too large: {ADVICE}; and go on from an earlier checkpoint."
    )


def require_methods(policy: object) -> None:
    """Refuse attributes that stand in the place of methods, such as a network `self.actor`.

    Raises:
        TypeError
    """
    for name, value in vars(policy).items():
        if inspect.isfunction(getattr(type(policy), name, None)) and not inspect.isroutine(value):
            raise TypeError(
                f"{type(policy).__name__}.{name} is a method of policies, and self.{name} is set to a {type(value).__name__}: "
                "give that another name."
            )


class ConfiguredPolicy(Protocol):
    """What is asked of a policy whose settings may have no effect."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Its settings by short names."""

    @property
    def params(self) -> Sequence[nn.Parameter]:
        """The parameters that learn."""

    @property
    def has_own_weights(self) -> bool:
        """Whether it has a `get_weights` of its own."""


def warn_of_idle_settings(policy: ConfiguredPolicy) -> None:
    """Say so where a setting has no effect, or acting can follow no learning, because the class has not what it takes."""
    kind: Any = type(policy)
    if policy.config.get("lr_schedule") is not None and not hasattr(policy, "lr_schedule"):
        warnings.warn(
            f"learn.lr_schedule has no effect on a {kind.__name__}: derive a class with it, "
            f"{kind.__name__}.with_updates(mixins=[LearningRateSchedule]).",
            stacklevel=4,
        )
    if not policy.params and kind.learn_on_batch.__qualname__ != "Policy.learn_on_batch" and not policy.has_own_weights:
        warnings.warn(
            f"{kind.__name__} learns, and has neither networks nor get_weights and set_weights: give it these, or the copies "
            "that collect and evaluate see none of what it learns, or see it half done, where it changes arrays in place.",
            stacklevel=4,
        )


def require_batch(hook: str, batch: Any) -> None:
    """Refuse what is no batch."""
    if not is_tree(batch):
        raise HookError(f"{hook} gives a {type(batch).__name__}: give a batch, such as with_leaves(batch, ...).")


def require_mapping(hook: str, given: Any) -> dict[str, Any]:
    """What a hook gives to log, none where it gives None; refuses anything else."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise HookError(f"{hook} gives a {type(given).__name__}: give a dict of what is to be logged, or None.")
    return given if isinstance(given, dict) else dict(given)


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


def require_actions(hook: str, space: gymnasium.Space[Any], action: Any) -> None:
    """Refuse actions [B, ...] of a kind or a value that their space does not have; those of a Box are clipped later.

    Raises:
        HookError
    """
    parts = subspaces(space)
    if parts is not None:
        for name, part in parts.items():
            require_actions(hook, part, action[name])
        return
    wanted = "a number" if isinstance(space, spaces.Box) else "an integer"
    kinds = "biuf" if isinstance(space, spaces.Box) else "biu"
    if action.dtype.kind not in kinds:
        raise HookError(f"{hook} gives actions of {action.dtype}, and {space} takes {wanted} for each: give them as that.")
    bounds = integer_bounds(space)
    if bounds is not None and not ((action >= bounds[0]) & (action <= bounds[1])).all():
        raise HookError(f"{hook} gives the actions {action.tolist()}, and some of them are none of {space}.")


def require_as_long(hook: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Refuse a column of a rollout [T, B, ...] that fits no other, unless all of the batch was cut anew."""
    given, found = dict(flatten(before)), dict(flatten(after))
    front = next(iter(given.values())).shape[:2]
    if any(path in given and leaf.shape[:2] != front for path, leaf in found.items()):
        return
    for path, leaf in found.items():
        if leaf.shape[:2] != front:
            raise HookError(
                f"{hook} gives the column {'/'.join(path)!r} of shape {list(leaf.shape)} beside columns "
                f"[{', '.join(map(str, front))}, ...], which are cut into rows together: give one element for each step."
            )


def require_scalar(hook: str, loss: Any) -> None:
    """Refuse a loss that is no number, or that nothing can be learned from."""
    if not isinstance(loss, Tensor) or loss.ndim:
        found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise HookError(f"{hook} gives {found}: give a scalar tensor, such as the mean over the batch, or (scalar, dict).")
    if not loss.requires_grad:
        raise HookError(f"{hook} does not depend on the model's weights: compute it from self.model, outside torch.no_grad().")


def with_stats(given: Any) -> tuple[Any, dict[str, Any]]:
    """What `loss` returned as loss and statistics, also where it returned the loss alone."""
    if isinstance(given, tuple):
        loss, stats = given
        stats = dict(stats or {})
        for name in ("total_loss", "loss"):
            if name in stats and isinstance(loss, Tensor):
                stats[name] = loss.detach()  # also what a derived class has added to it
        return loss, stats
    return given, {"total_loss": given.detach()} if isinstance(given, Tensor) else {}
