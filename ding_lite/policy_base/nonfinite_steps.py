"""Gradient steps that are not finite: skipping them, or restoring earlier weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from ding_lite.metrics import MetricsLogger
from ding_lite.policy_check import NonFiniteError
from ding_lite.policy_state import networks_of
from ding_lite.policy_state.network_copies import detached_copy, extra_states, load_extra_states

SKIPPED_FRACTION = "skipped_fraction"
"""Key in the output of a gradient step: 1.0 if it was skipped, otherwise 0.0. The mean of several is a fraction."""
_MOST_IN_ROW = 10  # steps in a row that are skipped without an error
_COPY_EVERY = 100  # gradient steps between two copies of the weights
_MOST_RESTORES = 3  # from one copy


class SteppedPolicy(Protocol):
    """The interface that `NonfiniteSteps` needs from a policy."""

    train_iter: int
    """Gradient steps taken."""
    version: int
    """Version of the weights."""
    hook_metrics: MetricsLogger
    """The logger of the hooks."""

    @property
    def model(self) -> nn.Module:
        """The networks."""

    @property
    def params(self) -> Sequence[nn.Parameter]:
        """The parameters of the model."""

    def require_finite(self) -> None:
        """Raise NonFiniteError if a weight is not finite."""

    def bump_version(self) -> None:
        """Increase the version, because the weights have changed."""


class NonfiniteSteps:
    """Takes gradient steps, and handles those whose loss, gradient or resulting weights are not finite.

    "skip" skips a step if its loss or gradient is not finite: weights, buffers, extra states and optimizer stay as they are.

    "restore" goes back to a copy in memory of all networks and optimizers of the policy. The copy is made before the first
    step, before every 100th gradient step, and when the weights were changed from outside. Steps that made loss, gradient or
    weights not finite are skipped. Counters, random generators and data go on.

    Copies and counts are part of the policy's state.

    Args:
        restores: True for "restore", False for "skip".
    """

    unchecked_entries: ClassVar[tuple[str, ...]] = ("copy",)
    is_learned: ClassVar[bool] = False

    def __init__(self, restores: bool) -> None:
        self._restores = restores
        self.count = 0
        """Steps skipped since the policy was made."""
        self.is_taking = False
        """Whether a step is being taken."""
        self._in_row, self._since_copy = 0, 0
        self._copy: dict[str, Any] | None = None
        self._copied_at = self._version = -1
        self._has_warned = False
        self._has_buffers: bool | None = None

    def take(self, policy: SteppedPolicy, step: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Take a gradient step of a policy. Returns its output, with SKIPPED_FRACTION.

        Args:
            policy: the policy.
            step: takes the step; raises NonFiniteError before any change of the weights if loss or gradient is not finite.

        Raises:
            NonFiniteError: more than 10 steps in a row were skipped; or the weights were restored three times since the last
                copy, and would have to be restored again.
        """
        if self._restores:
            self._copy_weights(policy)
        if self._has_buffers is None:
            self._has_buffers = any(True for _ in policy.model.buffers())
        buffers = [buffer.clone() for buffer in policy.model.buffers()] if self._has_buffers else []
        extra, version = extra_states(policy.model), policy.version
        try:
            self.is_taking = True
            output = step()
            if self._restores:
                policy.require_finite()
        except NonFiniteError as error:
            for param in policy.params:
                param.grad = None
            if policy.version == version:
                with torch.no_grad():
                    for buffer, before in zip(policy.model.buffers(), buffers):
                        buffer.copy_(before)
                load_extra_states(policy.model, extra)
            self._skip(policy, error)
            is_skipped, output = True, {}
        else:
            is_skipped, self._in_row = False, 0
        finally:
            self.is_taking = False
        self._version = policy.version
        metrics = policy.hook_metrics
        metrics.log_value("restores" if self._restores else "skipped_steps", int(is_skipped), reduce="lifetime_sum")
        return {**output, SKIPPED_FRACTION: float(is_skipped)}

    def drop_copy(self) -> None:
        """Make a new copy before the next step, because the weights were loaded, or the optimizer has other settings."""
        self._copy = None

    def _skip(self, policy: SteppedPolicy, error: NonFiniteError) -> None:
        self.count += 1
        self._in_row += 1
        found = error.found or str(error)
        if not self._restores and self._in_row > _MOST_IN_ROW:
            raise _given_up(f"{self._in_row} gradient steps in a row were not finite", found) from error
        if self._restores and self._since_copy == _MOST_RESTORES:
            tried = f"the weights of gradient step {self._copied_at} were restored {_MOST_RESTORES} times"
            raise _given_up(tried, found) from error
        if self._restores:
            self._since_copy += 1
            self._restore(policy)
        if not self._has_warned:
            self._has_warned = True
            what = f"the weights of gradient step {self._copied_at} are restored" if self._restores else "the step is skipped"
            warnings.warn(f"{found}: {what}, and the run continues. Later ones are only counted.", stacklevel=6)

    def _copy_weights(self, policy: SteppedPolicy) -> None:
        """Copy the weights if it is time."""
        is_due = policy.train_iter // _COPY_EVERY != self._copied_at // _COPY_EVERY or policy.version != self._version
        if self._copy is None or is_due:
            self._copy = {name: detached_copy(part.state_dict()) for name, part in networks_of(policy).items()}
            self._copied_at, self._since_copy = policy.train_iter, 0

    def _restore(self, policy: SteppedPolicy) -> None:
        assert self._copy is not None, "a copy is made before each step"
        for name, part in networks_of(policy).items():
            if name in self._copy:
                part.load_state_dict(detached_copy(self._copy[name]))
        policy.bump_version()

    def state_dict(self) -> dict[str, Any]:
        """The counts, and the copy of the weights."""
        return {
            "in_row": self._in_row,
            "since_copy": self._since_copy,
            "copied_at": self._copied_at,
            "version": self._version,
            "copy": self._copy,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._in_row, self._since_copy = state["in_row"], state["since_copy"]
        self._copied_at, self._version, self._copy = state["copied_at"], state["version"], state["copy"]


def _given_up(what: str, found: str) -> NonFiniteError:
    error = NonFiniteError(f"{what}; the last time, {found}. Lower the learning rate, clip gradients, or check the data.")
    error.found = f"{what}; the last time, {found}"
    return error
