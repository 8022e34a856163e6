"""The steps of optimizers as functions of tensors: Adam, AdamW and RMSprop."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ding_lite import nn as own
from ding_lite.compiling.cuda_graphs import uses_graphs
from ding_lite.compiling.tracing import NotCompiledError

Moments = Mapping[str, Tensor]
_IMPLEMENTATION = frozenset({"params", "lr", "foreach", "fused", "capturable", "initial_lr"})


GLOBAL_STEP_HOOKS = _global_optimizer_pre_hooks, _global_optimizer_post_hooks
"""The hooks of all optimizers."""


def require_supported(optimizer: Optimizer) -> None:
    """Check that the steps of an optimizer can be compiled.

    Raises:
        NotCompiledError: it is of another class, or has a setting or a hook that cannot be compiled.
    """
    if type(optimizer) not in _STEPS:
        kinds = "Adam, AdamW and RMSprop"
        raise NotCompiledError(
            f"the optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}, not one of {kinds}."
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks or any(GLOBAL_STEP_HOOKS):
        raise NotCompiledError("the optimizer has hooks (register_step_pre_hook, register_step_post_hook).")
    step = vars(optimizer).get("step")
    if step is not None and not getattr(step, "_wrapped_by_lr_sched", False):  # torch's schedules count the calls
        raise NotCompiledError("optimizer.step has been replaced.")
    for group in optimizer.param_groups:
        for name in ("amsgrad", "maximize", "centered", "differentiable"):
            if group.get(name):
                raise NotCompiledError(f"the optimizer has {name}=True.")
        if isinstance(group.get("betas", (0.9,))[0], Tensor):
            raise NotCompiledError("the betas of the optimizer are tensors.")


def settings_of(optimizer: Optimizer) -> tuple[Any, ...]:
    """The settings that a compiled step holds for: all but the learning rates."""
    return tuple(
        tuple((name, copy.copy(value)) for name, value in group.items() if name not in _IMPLEMENTATION)
        for group in optimizer.param_groups
    )


def moment_names(optimizer: Optimizer, group: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of the moments of a parameter."""
    if isinstance(optimizer, torch.optim.RMSprop):
        return ("step", "square_avg", "momentum_buffer") if group["momentum"] > 0 else ("step", "square_avg")
    return "step", "exp_avg", "exp_avg_sq"


def zero_moment(name: str, param: Tensor) -> Tensor:
    """A moment of a parameter before the first step, by its key."""
    return torch.zeros((), dtype=torch.float32, device=param.device) if name == "step" else torch.zeros_like(param.detach())


def place_counts(optimizer: Optimizer) -> None:
    """Move the numbers of steps to the devices of their parameters, because a step on a device cannot wait for the CPU. Torch
    keeps those of some optimizers on the CPU, and takes them from either.
    """
    for param, state in optimizer.state.items():
        _place_count(param, state)


def _place_count(param: Tensor, state: dict[str, Any]) -> None:
    step = state.get("step")
    if isinstance(step, Tensor) and step.device != param.device:
        state["step"] = step.to(param.device)


def begin_moments(optimizer: Optimizer, group: Mapping[str, Any], param: Tensor) -> bool:
    """Make the moments of a parameter as the first step of the optimizer would. Returns False if it had some."""
    state = optimizer.state[param]
    if state:
        _place_count(param, state)
        return False
    for name in moment_names(optimizer, group):
        state[name] = zero_moment(name, param)
    return True


def stepped(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    moments: Sequence[Moments],
    rate: Tensor,
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """The parameters and moments of a group after a step.

    Args:
        optimizer: the optimizer, for its class.
        group: the parameter group, for its settings.
        params, grads: parameters and their gradients.
        moments: their moments.
        rate: learning rate, a float64 scalar.
    """
    return _STEPS[type(optimizer)](group, params, grads, moments, rate)


def steps_in_place(optimizer: Optimizer, params: Sequence[Tensor]) -> bool:
    """Whether torch has one operation for the whole step, with an argument to skip it, as for Adam on a GPU."""
    return isinstance(optimizer, torch.optim.Adam) and all(uses_graphs(param.device) for param in params)


def step_in_place(
    group: Mapping[str, Any],
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    moments: Sequence[Moments],
    rate: Tensor,
    finite: Tensor,
) -> None:
    """Change the parameters and moments of a group of Adam or AdamW by one operation. A GPU launches it faster than the dozens
    that it is made of.

    Args:
        finite: whether the step is taken, a bool scalar.

    The other arguments are those of `stepped`.
    """
    is_decoupled = bool(group.get("decoupled_weight_decay", False))
    steps, not_finite = [it["step"] for it in moments], (~finite).float()
    torch._foreach_add_(steps, 1)
    take = torch._fused_adamw_ if is_decoupled else torch._fused_adam_
    take(
        [*params],
        [*grads],
        [it["exp_avg"] for it in moments],
        [it["exp_avg_sq"] for it in moments],
        [],
        steps,
        lr=rate.float(),
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
        found_inf=not_finite,
    )
    torch._foreach_sub_(steps, [not_finite] * len(steps))


def _adam(
    group: Mapping[str, Any], params: Sequence[Tensor], grads: Sequence[Tensor], moments: Sequence[Moments], rate: Tensor
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Kingma and Ba (2015), https://arxiv.org/abs/1412.6980, algorithm 1; Loshchilov and Hutter (2019),
    https://arxiv.org/abs/1711.05101, for decoupled weight decay."""
    (beta1, beta2), eps, decay = group["betas"], group["eps"], group["weight_decay"]
    is_decoupled = bool(group.get("decoupled_weight_decay", False))
    # Together, and by exp instead of pow, so that the corrections are computed once for each parameter.
    steps = torch.stack([it["step"] for it in moments]).double() + 1
    sizes = (rate / (1 - _power(beta1, steps))).unbind()
    roots = (1 - _power(beta2, steps)).sqrt().unbind()
    counts, found = steps.float().unbind(), []
    for place, (param, grad, own_moments) in enumerate(zip(params, grads, moments)):
        if decay and not is_decoupled:
            grad = grad + decay * param
        first = own_moments["exp_avg"].lerp(grad, 1 - beta1)
        second = own_moments["exp_avg_sq"] * beta2 + (1 - beta2) * grad * grad
        kept = param * (1 - rate * decay).to(param.dtype) if decay and is_decoupled else param
        root, size = roots[place].to(param.dtype), sizes[place].to(param.dtype)
        new = kept - size * (first / (second.sqrt() / root + eps))
        found.append((new, {"step": counts[place], "exp_avg": first, "exp_avg_sq": second}))
    return found


def _power(beta: float, steps: Tensor) -> Tensor:
    """beta to the power of these numbers, which are at least 1."""
    return torch.exp(steps * math.log(beta)) if beta > 0 else torch.zeros_like(steps)


def _rmsprop(
    group: Mapping[str, Any], params: Sequence[Tensor], grads: Sequence[Tensor], moments: Sequence[Moments], rate: Tensor
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """RMSProp as in torch.optim.RMSprop."""
    alpha, eps, momentum, decay = group["alpha"], group["eps"], group["momentum"], group["weight_decay"]
    found = []
    for param, grad, own_moments in zip(params, grads, moments):
        if decay:
            grad = grad + decay * param
        square = own_moments["square_avg"] * alpha + (1 - alpha) * grad * grad
        change, size = grad / (square.sqrt() + eps), rate.to(param.dtype)
        new_moments = {"step": own_moments["step"] + 1, "square_avg": square}
        if momentum > 0:
            change = new_moments["momentum_buffer"] = own_moments["momentum_buffer"] * momentum + change
        found.append((param - size * change, new_moments))
    return found


_STEPS: Mapping[type[Optimizer], Callable[..., list[tuple[Tensor, dict[str, Tensor]]]]] = {
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    own.Adam: _adam,
    torch.optim.RMSprop: _rmsprop,
    own.RMSprop: _rmsprop,
}
