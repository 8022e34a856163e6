"""Data-parallel gradient steps: gradients and statistics are averaged over the processes that learn together."""

from __future__ import annotations

import numbers
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.policy_check import HookError
from ding_lite.ranks import Ranks


class StepAverage:
    """One gradient step of all processes. Each weighs as much as the rows of its batch, so that the result is the gradient of
    the mean loss over the rows of all of them.

    Args:
        ranks: the processes.
        train_iter: number of gradient steps before this one.
        rows: number of rows over which the loss of this process is a mean.
    """

    def __init__(self, ranks: Ranks, train_iter: int, rows: int) -> None:
        self._ranks, self._rows = ranks, rows
        self._what = f"gradient step {train_iter}"
        self._loss: Tensor | None = None
        self._stats: dict[str, Any] = {}
        self._check: Callable[[float], None] | None = None
        self._is_done = False

    def begin(self, loss: Tensor, stats: dict[str, Any], check: Callable[[float], None] | None) -> None:
        """Note the loss of this process.

        Args:
            loss: the loss.
            stats: what the loss returned to log. `average` replaces its numbers by the means of all processes; but whole ones
                stay if they are whole in all processes, such as counts.
            check: called with the mean loss of all processes, which is not finite if one of theirs is not; None for no check.
        """
        self._loss, self._stats, self._check = loss, stats, check

    def require_done(self, policy: str) -> None:
        """Check that the gradients have been averaged.

        Raises:
            HookError: compute_gradients is overridden, and has not done it.
        """
        if not self._is_done:
            raise HookError(
                f"compute_gradients of {policy} has not averaged the gradients over the processes that learn together: after "
                "the backward pass, and before it clips them, write "
                "`if self.averaging is not None: self.averaging.average(self.params)`."
            )

    def average(self, params: Sequence[nn.Parameter]) -> None:
        """Average the gradients of these parameters, and the statistics.

        Raises:
            RankError: the processes do not take the same step, or not with the same parameters.
            NonFiniteError: the loss of one of them is not finite.
        """
        grads = [param.grad for param in params if param.grad is not None]
        kinds = {name: kind for name in sorted(self._stats) if (kind := number_kind(self._stats[name])) is not None}
        # Into the description, because a reduction of different lengths is undefined.
        step = f"{self._what}, with {sum(grad.numel() for grad in grads):,} gradients"
        loss = 0.0 if self._check is None or self._loss is None else float(self._loss.detach())
        real = [name for name, kind in kinds.items() if kind == "real"]
        found = self._ranks.exchange(step, [self._rows, loss, _checksum(real), _checksum(kinds)])
        if (found[:, 2] != found[0, 2]).any():
            real = self._real_in_any(step, real, kinds, has_others=bool((found[:, 3] != found[0, 3]).any()))
        share = self._rows / max(float(found[:, 0].sum()), 1.0)
        if self._check is not None:
            self._check(float((found[:, 0] * found[:, 1]).sum() / found[:, 0].sum().clamp(min=1)))
        device = grads[0].device if grads else torch.device("cpu")
        scalars = [_as_float(self._stats[name]) for name in real]
        flat = torch.cat([*(grad.reshape(-1) for grad in grads), *(it.to(device) for it in scalars)]) * share
        self._ranks.add(self._what, flat)
        *averaged, values = torch.split(flat, [*(grad.numel() for grad in grads), len(scalars)])
        for grad, mean in zip(grads, averaged, strict=True):
            grad.copy_(mean.view_as(grad))
        self._stats.update(zip(real, values.unbind()))
        self._is_done = True
        self._ranks.steps += 1

    def _real_in_any(self, step: str, real: Sequence[str], kinds: Mapping[str, str], has_others: bool) -> list[str]:
        """The names of the numbers that are real in any process: a mean of some rows may be a whole 0 where there are none.

        Args:
            step: the gradient step, for messages.
            real: the names that are real in this process.
            kinds: the kinds of all numbers of this process by name.
            has_others: whether another process has numbers of other names.

        Raises:
            RankError: it has, and each statistic would be averaged with the one at its place.
        """
        if has_others:
            self._ranks.exchange(f"{step} and the statistics [{', '.join(real)}]")
        found = self._ranks.exchange(f"the kinds of numbers in {step}", [name in real for name in kinds])
        return [name for name, is_real in zip(kinds, found.any(0).tolist()) if is_real]

    def mean(self, values: Tensor) -> Tensor:
        """The mean of the numbers of all processes, a scalar without gradient.

        Args:
            values: a number for each row of this process, any shape, float.
        """
        found = self._ranks.exchange(f"a mean in {self._what}", [float(values.detach().double().sum()), values.numel()])
        return (found[:, 0].sum() / found[:, 1].sum().clamp(min=1)).to(values)

    def normalized(self, advantage: Tensor, valid: Tensor | None) -> Tensor:
        """`functional.normalized` with the mean and the standard deviation of the advantages of all processes."""
        real = (advantage if valid is None else advantage[valid]).detach().double()
        mean = real.mean() if real.numel() else real.new_zeros(())
        count, mean, squares = self._ranks.moments(
            f"the advantages of {self._what}", real.numel(), mean, (real - mean).square().sum()
        )
        if count < 2:
            return advantage
        centred = advantage - mean.to(advantage)
        scaled = centred / ((squares / (count - 1)).sqrt().to(advantage) + 1e-8)
        return scaled if valid is None else scaled.masked_fill(~valid, 0)


def number_kind(value: Any) -> Literal["whole", "real"] | None:
    """Whether a value to log is a whole or a real number, of Python, numpy or torch; None for others, also for a bool."""
    if isinstance(value, Tensor):
        if value.ndim or value.dtype == torch.bool or value.is_complex():
            return None
        return "real" if value.is_floating_point() else "whole"
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # a bool of numpy is no Real
        return None
    return "whole" if isinstance(value, numbers.Integral) else "real"


def _checksum(names: Iterable[str]) -> int:
    return zlib.crc32("\n".join(names).encode())


def _as_float(number: Any) -> Tensor:
    """[1] float32, a number to log."""
    plain = number if isinstance(number, Tensor) else float(number)
    return torch.as_tensor(plain, dtype=torch.float32).detach().reshape(1)
