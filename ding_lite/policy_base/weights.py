"""Weights of a policy: snapshots of them, and how they get from one policy to its copies."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ding_lite.policy_base.hooks import Hooks
from ding_lite.policy_check import require_finite
from ding_lite.policy_state import StateError, misfit, require_weights


class Weights(NamedTuple):
    """The weights of a policy at one moment, which nothing changes any more."""

    version: int
    """Version of the policy's weights that these are; see `Policy.version`."""

    weights: Any
    """A list of tensors, the model's parameters and buffers in its order; of a policy with a `get_weights` of its own, what
    that gave."""

    train_iter: int = 0
    """Gradient steps that led to them."""

    def as_arrays(self) -> Weights:
        """The same with arrays for tensors, to be sent elsewhere: torch would write each tensor as a file of its own."""
        tensors = isinstance(self.weights, list)
        return self._replace(weights=[tensor.cpu().numpy() for tensor in self.weights]) if tensors else self

    def as_tensors(self) -> Weights:
        """The reverse of `as_arrays`."""
        arrays = isinstance(self.weights, list)
        return self._replace(weights=[torch.from_numpy(array) for array in self.weights]) if arrays else self


class PolicyWeights(Hooks):
    """The weights of a `Policy`: those that learn, or those of a copy that acts."""

    being_loaded: Mapping[str, Any] | None = None
    """The state that is being loaded, if one is."""

    device: torch.device
    train_iter: int
    version: int
    _snapshot: Weights | None
    _found_finite: int  # version of the weights that were checked last

    @property
    def has_own_weights(self) -> bool:
        """Whether its weights are what a `get_weights` of its own gives, not those of its model."""
        return type(self).get_weights is not PolicyWeights.get_weights

    @property
    def weights(self) -> list[Tensor]:
        """The model's parameters and buffers themselves, in a fixed order."""
        return [*self.model.parameters(), *self.model.buffers()]

    def require_finite(self, waiting: bool = True) -> None:
        """Refuse weights that are no numbers any more, before anything is made of them. Each weights are looked at once.

        Args:
            waiting: whether to wait for a device that works beside this thread; where not, only a CPU is asked.

        Raises:
            LossError
        """
        if self._found_finite != self.version and self.params and (waiting or self.device.type == "cpu"):
            require_finite(type(self).__name__, self.train_iter, self.params)
            self._found_finite = self.version

    def snapshot(self) -> Weights:
        """A copy of the weights as they are now; the same one again while they do not change."""
        if self._snapshot is None or self._snapshot.version != self.version:
            self.require_finite(waiting=False)
            own = self.has_own_weights
            weights = copy.deepcopy(self.get_weights()) if own else [tensor.detach().clone() for tensor in self.weights]
            self._snapshot = Weights(self.version, weights, self.train_iter)
        return self._snapshot

    def copy_weights(self, other: PolicyWeights | Weights) -> None:
        """Take over the weights of a policy of the same kind, or of a snapshot of one."""
        if isinstance(other, PolicyWeights):
            other.require_finite(waiting=False)
        if self.has_own_weights:
            self.set_weights(copy.deepcopy(other.weights if isinstance(other, Weights) else other.get_weights()))
        else:
            with torch.no_grad():
                for target, source in zip(self.weights, other.weights, strict=True):
                    target.copy_(source)
        self.version, self.train_iter = other.version, other.train_iter

    def get_weights(self) -> dict[str, Any]:
        """A copy of the model's weights, on the CPU. A policy may have weights of another kind, plain data by name."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Take over weights that `get_weights` gave.

        Raises:
            TypeError: a path, or something else that is no mapping.
            StateError: they are not of this network, or are no numbers; nothing is changed.
        """
        policy: Any = self  # a whole `Policy`, which has all that the messages name
        if self.being_loaded is None:
            require_weights(policy, weights)
        before = copy.deepcopy(self.model.state_dict())
        try:
            self.model.load_state_dict(dict(weights))
        except RuntimeError as error:
            self.model.load_state_dict(before)  # some of them may have fitted
            raise StateError(f"{misfit(policy)} {error}") from None
        self.bump_version()

    def bump_version(self) -> None:
        """Give the weights another version, because they have changed: copies that act take them over then."""
        self.version += 1
        self._snapshot, self._found_finite = None, -1
