"""Torch's optimizers without the import of torch._dynamo, which takes a second in every process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

M = TypeVar("M", bound=Callable[..., Any])


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
    step = _step(torch.optim.Adam.step)


class RMSprop(torch.optim.RMSprop):
    """torch.optim.RMSprop without the import of torch._dynamo; see `Adam`."""

    add_param_group = without_compiler(torch.optim.RMSprop.add_param_group)
    state_dict = without_compiler(torch.optim.RMSprop.state_dict)
    load_state_dict = without_compiler(torch.optim.RMSprop.load_state_dict)
    zero_grad = without_compiler(torch.optim.RMSprop.zero_grad)
    step = _step(torch.optim.RMSprop.step)
