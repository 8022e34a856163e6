"""Torch's optimizers without the import of its compiler, which costs a second in every process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

M = TypeVar("M", bound=Callable[..., Any])


def without_compiler(method: M) -> M:
    """The method below the wrappers that import torch._dynamo when first called; the method itself where there are none.

    Torch wraps the methods of its optimizers so that torch.compile leaves them alone, or breaks its graph there. The wrappers
    do nothing else. They are known by that import. Where a version of torch has other ones, they stay, and so does their cost.
    """
    while hasattr(method, "__wrapped__") and "torch._dynamo" in method.__code__.co_names:
        method = method.__wrapped__
    return method


def _step(method: M) -> M:
    """`step` without its wrapper, with gradients switched as the wrapper does."""
    plain = without_compiler(method)

    @functools.wraps(plain)
    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return plain(self, *args, **kwargs)

    return step  # type: ignore[return-value]


class Adam(torch.optim.Adam):
    """torch.optim.Adam, bit for bit: the same arguments, steps, parameter groups, hooks and states.

    Making the first torch.optim.Adam of a process imports torch._dynamo, one second of CPU time; making this one does not.
    A program that gives an optimizer to torch.compile uses torch's own.

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
    """torch.optim.RMSprop, bit for bit, without the import of torch._dynamo, as Adam above."""

    add_param_group = without_compiler(torch.optim.RMSprop.add_param_group)
    state_dict = without_compiler(torch.optim.RMSprop.state_dict)
    load_state_dict = without_compiler(torch.optim.RMSprop.load_state_dict)
    zero_grad = without_compiler(torch.optim.RMSprop.zero_grad)
    step = _step(torch.optim.RMSprop.step)
