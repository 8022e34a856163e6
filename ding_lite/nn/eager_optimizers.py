"""Torch's optimizers without the import of torch._dynamo, which takes a second in every process; Adam with short steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._C._autograd import _profiler_enabled
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

M = TypeVar("M", bound=Callable[..., Any])

_Part = tuple[dict[str, Any], list[Tensor], list[Tensor], list[dict[str, Tensor]]]
"""A parameter group; its parameters with a gradient, their gradients, and their states."""

_LAYOUT, _DENSE = attrgetter("dtype", "is_cpu", "is_sparse"), (torch.float32, True, False)
_UNUSUAL = "amsgrad", "capturable", "differentiable", "decoupled_weight_decay"


def without_compiler(method: M) -> M:
    """The method inside the wrappers that import torch._dynamo when they are first called.

    Torch wraps the methods of its optimizers so that torch.compile skips them or breaks its graph there; the wrappers do
    nothing else. They are recognized by that import. Without such wrappers, the method itself is returned.
    """
    while hasattr(method, "__wrapped__") and "torch._dynamo" in method.__code__.co_names:
        method = method.__wrapped__
    return method


def _step(method: M) -> M:
    """`step` without its wrapper, but with its `torch.set_grad_enabled`."""
    plain = without_compiler(method)

    @functools.wraps(plain)
    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return plain(self, *args, **kwargs)

    return step  # type: ignore[return-value]


class Adam(torch.optim.Adam):
    """torch.optim.Adam without the import of torch._dynamo. Arguments, results, hooks and states are the same, bit for bit.

    The first torch.optim.Adam of a process imports torch._dynamo, which takes one second of CPU time. Use torch's own class for
    torch.compile.

    With `fused=True` on the CPU, a step calls torch's fused kernel directly, which takes a third of the time for networks of
    a few small layers. Torch prepares each call anew, and counts the steps of each parameter in an operation of its own. Here
    the counts, `optimizer.state[param]["step"]`, share the memory of one vector.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = Adam([weight], lr=0.5, fused=True)
        >>> weight.sum().backward()
        >>> optimizer.step()
        >>> round(weight.item(), 3), isinstance(optimizer, torch.optim.Adam)
        (0.5, True)
    """

    add_param_group = without_compiler(torch.optim.Adam.add_param_group)
    state_dict = without_compiler(torch.optim.Adam.state_dict)
    load_state_dict = without_compiler(torch.optim.Adam.load_state_dict)
    zero_grad = without_compiler(torch.optim.Adam.zero_grad)

    _torchs_step = Optimizer.profile_hook_step(_step(torch.optim.Adam.step))
    _counts: _Counts | None = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step, as torch's `step` does."""
        parts = None if closure is not None or _is_watched(self) else _fused_parts(self)
        if not parts:
            return self._torchs_step(closure)
        steps = [state["step"] for *_, states in parts for state in states]
        with torch.no_grad():
            if self._counts is None or not self._counts.are_those(steps):
                is_shared = len({*map(Tensor.data_ptr, steps)}) < len(steps)  # a parameter that is in a list twice
                if is_shared or not all(map(_have_usual_moments, parts)):
                    return self._torchs_step()
                self._counts = _Counts(steps)
            self._counts.vector.add_(1)
            for group, params, grads, states in parts:
                torch._fused_adam_(
                    params,
                    grads,
                    [state["exp_avg"] for state in states],
                    [state["exp_avg_sq"] for state in states],
                    [],
                    [state["step"] for state in states],
                    lr=group["lr"],
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    amsgrad=False,
                    maximize=group["maximize"],
                )
        return None

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it as _torchs_step is


class _Counts:
    """The numbers of steps of parameters in one vector, so that one addition counts a step of each.

    Args:
        steps: the numbers, scalar tensors, whose memory becomes that of the vector.
    """

    def __init__(self, steps: Sequence[Tensor]) -> None:
        self.vector = torch.stack([*steps])
        for step, place in zip(steps, self.vector):
            step.data = place  # the same object, because others may hold it
        self._addresses = [*map(Tensor.data_ptr, steps)]

    def are_those(self, steps: Sequence[Tensor]) -> bool:
        """Whether the memory of these numbers is that of the vector."""
        return [*map(Tensor.data_ptr, steps)] == self._addresses


def _is_watched(optimizer: Adam) -> bool:
    """Whether hooks, a profiler, a gradient scaler or the inference mode take part in a step."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or _profiler_enabled()
        or torch.is_inference_mode_enabled()  # the counts would be tensors that no later step may change
        or getattr(optimizer, "grad_scale", None) is not None
        or getattr(optimizer, "found_inf", None) is not None
    )


def _fused_parts(optimizer: Adam) -> list[_Part] | None:
    """The arguments of the fused kernel by group; None if torch is to take the step: the first one of a parameter, or one with
    other settings, or with tensors that are not dense float32 on the CPU."""
    parts: list[_Part] = []
    for group in optimizer.param_groups:
        is_usual = group["fused"] and type(group["lr"]) is float and not any(map(group.get, _UNUSUAL))
        if not is_usual or any(isinstance(beta, Tensor) for beta in group["betas"]):
            return None
        params = [param for param in group["params"] if param.grad is not None]
        grads = [param.grad for param in params]
        states: list[Any] = [optimizer.state.get(param) for param in params]
        if not all(states) or [*map(_LAYOUT, params), *map(_LAYOUT, grads)].count(_DENSE) != 2 * len(params):
            return None
        if params:
            parts.append((group, params, grads, states))
    return parts


def _have_usual_moments(part: _Part) -> bool:
    """Whether parameters and moments are plain tensors of the layout that the fused kernel takes, which does not check it.

    Moments are only replaced together with the counts, for example by `load_state_dict`.
    """
    _, params, _, states = part
    return all(
        type(param) in (nn.Parameter, Tensor)
        and (state["step"].shape, *_LAYOUT(state["step"])) == (torch.Size(), *_DENSE)
        and all(
            moment.shape == param.shape and moment.stride() == param.stride() and _LAYOUT(moment) == _DENSE
            for moment in (state["exp_avg"], state["exp_avg_sq"])
        )
        for param, state in zip(params, states)
    )


class RMSprop(torch.optim.RMSprop):
    """torch.optim.RMSprop without the import of torch._dynamo; see `Adam`."""

    add_param_group = without_compiler(torch.optim.RMSprop.add_param_group)
    state_dict = without_compiler(torch.optim.RMSprop.state_dict)
    load_state_dict = without_compiler(torch.optim.RMSprop.load_state_dict)
    zero_grad = without_compiler(torch.optim.RMSprop.zero_grad)
    step = _step(torch.optim.RMSprop.step)
