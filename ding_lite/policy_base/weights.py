"""Weights of a policy: snapshots, and copying weights from a policy to its acting copies."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ding_lite.data.column_arrays import tensor_to_array
from ding_lite.policy_base.hooks import Hooks
from ding_lite.policy_check import require_finite
from ding_lite.policy_state import StateDictError, differing_settings, misfit, require_weights
from ding_lite.policy_state.network_copies import (
    copy_extra_states,
    detached_copy,
    extra_states,
    load_extra_states,
    load_network,
    on_cpu,
    parts_with,
)

_CHANGES = operator.attrgetter("_version")  # torch's counter of changes in place


class WeightsSnapshot(NamedTuple):
    """A snapshot of a policy's weights. It is never changed."""

    version: int
    """Version of the weights; see `Policy.version`."""

    values: Any
    """A list of tensors: the model's parameters and buffers, in a fixed order. If the policy overrides `get_weights`, its
    result."""

    train_iter: int = 0
    """Gradient steps taken until then."""

    are_tensors: bool = True
    """Whether `values` is the list of the model's tensors, and not the result of an overridden `get_weights`."""

    extra: Mapping[str, Any] | None = None
    """The extra states of the model's modules, see torch's `get_extra_state`; empty if `values` is not a list of tensors. None
    in snapshots of older versions."""

    def as_arrays(self) -> WeightsSnapshot:
        """The same with numpy arrays, to send to another process: torch would write each tensor to its own file."""
        if not self.are_tensors:
            return self
        return self._replace(values=[tensor_to_array(tensor) for tensor in self.values], extra=on_cpu(dict(self.extra or {})))

    def as_tensors(self) -> WeightsSnapshot:
        """The reverse of `as_arrays`. Arrays that cannot be written to are copied, because torch warns about them."""
        if not self.are_tensors:
            return self
        arrays = (array if array.flags.writeable else array.copy() for array in self.values)
        return self._replace(values=[torch.from_numpy(array) for array in arrays])


class PolicyWeights(Hooks):
    """The base class of `Policy` for weights: of the policy that learns, or of an acting copy."""

    being_loaded: Mapping[str, Any] | None = None
    """The state that is being loaded at the moment; None if there is none."""

    is_copy: bool = False
    """Whether it is a copy that acts, and cannot learn."""

    device: torch.device
    train_iter: int
    version: int
    _snapshot: WeightsSnapshot | None
    _found_finite: int  # version of the weights that were checked last

    def take_from_learners(self, is_replaced: bool = False) -> None:
        """Take the state of the learners in other processes."""

    def note_change(self) -> None:
        """Note, for the learners in other processes, that the weights have changed."""

    def count_changes(self) -> int:
        """Torch's count of changes of the parameters in place, without the steps of fused optimizers."""
        try:
            return sum(map(_CHANGES, self.params))
        except RuntimeError:  # tensors made in inference mode have no such counter
            return 0

    @property
    def has_own_weights(self) -> bool:
        """Whether `get_weights` is overridden, so that the weights are not those of the model."""
        return type(self).get_weights is not PolicyWeights.get_weights

    @property
    def weights(self) -> list[Tensor]:
        """The model's parameters and buffers in a fixed order; not copies."""
        return [*self.model.parameters(), *self.model.buffers()]

    def require_finite(self, waiting: bool = True) -> None:
        """Check that the model's parameters are finite. Each version of the weights is checked only once.

        Args:
            waiting: whether to wait for a GPU; if False, weights on a GPU are not checked.

        Raises:
            NonFiniteError: a weight is NaN or infinite.
        """
        if self._found_finite != self.version and self.params and (waiting or self.device.type == "cpu"):
            require_finite(type(self).__name__, self.train_iter, self.params)
            self._found_finite = self.version

    def snapshot(self) -> WeightsSnapshot:
        """A copy of the current weights. While they do not change, the same object is returned."""
        if self._snapshot is None or self._snapshot.version != self.version:
            self.require_finite(waiting=False)
            own = self.has_own_weights
            values = detached_copy(self.get_weights()) if own else [tensor.detach().clone() for tensor in self.weights]
            extra = {} if own else extra_states(self.model)
            self._snapshot = WeightsSnapshot(self.version, values, self.train_iter, not own, extra)
        return self._snapshot

    def copy_weights(self, other: PolicyWeights | WeightsSnapshot) -> None:
        """Load the weights of a policy of the same class, or of a snapshot of one."""
        if isinstance(other, PolicyWeights):
            other.require_finite(waiting=False)
        if self.has_own_weights:
            self.set_weights(detached_copy(other.values if isinstance(other, WeightsSnapshot) else other.get_weights()))
        else:
            with torch.no_grad():
                tensors = other.values if isinstance(other, WeightsSnapshot) else other.weights
                for target, source in zip(self.weights, tensors, strict=True):
                    target.copy_(source)
            if self._has_extra_states and isinstance(other, PolicyWeights):
                copy_extra_states(other.model, self.model)
            elif isinstance(other, WeightsSnapshot) and other.extra:
                load_extra_states(self.model, other.extra)
        self.version, self.train_iter = other.version, other.train_iter

    @functools.cached_property
    def _has_extra_states(self) -> bool:
        """Whether a module of the model has an extra state to load, see torch's `set_extra_state`."""
        return bool(parts_with("set_extra_state", self.model))

    def get_weights(self) -> dict[str, Any]:
        """A copy of the model's weights, on the CPU, with the extra states of its modules.

        A subclass may return other weights, plain data by name.
        """
        return {name: on_cpu(weight) for name, weight in self.model.state_dict().items()}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Load weights that `get_weights` returned.

        Raises:
            TypeError: the weights are not a mapping.
            StateDictError: they do not fit the network, or are not finite. Nothing is changed.
        """
        policy: Any = self  # a whole `Policy`, as `require_weights` needs
        if self.being_loaded is None:
            require_weights(policy, weights)
            self.take_from_learners()
        try:
            load_network(self.model, weights)
        except RuntimeError as error:
            saved = None if self.being_loaded is None else self.being_loaded.get("made_with")
            raise StateDictError(f"{misfit(policy)} {error}{differing_settings(policy.made_with, saved)}") from None
        self.bump_version()

    def bump_version(self) -> None:
        """Increase the version, because the weights have changed: acting copies then load them."""
        self.version += 1
        self._snapshot, self._found_finite = None, -1
        if self.being_loaded is None:
            self.note_change()
