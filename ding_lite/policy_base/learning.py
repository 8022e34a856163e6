"""The mode of a policy that learns, which middleware receive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ding_lite.data import Send, Transfer, Tree, is_tree, nested, to_device, tree
from ding_lite.metrics import MetricsLogger
from ding_lite.policy_base.configs import PolicyConfig
from ding_lite.policy_base.weights import Weights


class LearningPolicy(Protocol):
    """What the mode that learns asks of its policy."""

    @property
    def cfg(self) -> PolicyConfig:
        """Its configuration."""

    @property
    def model(self) -> nn.Module:
        """The networks that learn."""

    @property
    def device(self) -> torch.device:
        """Where it learns."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of a batch that its hooks read; None where that is not known."""

    @property
    def learns_from(self) -> str:
        """ "rollouts" or "transitions"."""

    @property
    def train_iter(self) -> int:
        """Gradient steps taken."""

    @property
    def version(self) -> int:
        """Of the weights."""

    @property
    def hook_metrics(self) -> MetricsLogger:
        """Takes numbers from its hooks."""

    def learn(self, batch: Tree, /) -> dict[str, Any]:
        """Learn from a batch. Returns what to log."""

    def dry_run(self) -> object:
        """Run the policy once on a dummy batch, where that has not been done yet."""

    def require_finite(self, waiting: bool = True) -> None:
        """Refuse weights that are not finite."""

    def snapshot(self) -> Weights:
        """A copy of the weights."""

    def attach(self, name: str, thing: Any, /) -> None:
        """Make something part of its state."""

    def state_dict(self) -> dict[str, Any]:
        """Its whole state."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Go back to a saved state."""


class LearnMode:
    """The mode that changes the model."""

    def __init__(self, policy: LearningPolicy) -> None:
        self._policy = policy

    def forward(self, batch: Tree) -> dict[str, Tensor]:
        """Learn from this batch, on the policy's device. Returns what to log, scalar tensors that nothing has waited for.

        Of a batch that lies elsewhere, only the columns that the policy's hooks read are moved.

        Raises:
            TypeError: no tree, and no mapping that could be one.
        """
        policy = self._policy
        if not is_tree(batch):
            batch = _as_tree(batch, policy)
        if policy.device.type != "cpu":
            batch = tree(to_device(self._read(batch), policy.device))
        return policy.learn(batch)

    def dry_run(self) -> None:
        """Try the policy out on a dummy batch, where that has not been done yet; see `Policy.dry_run`."""
        self._policy.dry_run()

    def sender(self) -> Send | None:
        """Something that copies batches to the policy's device while that is at work; None where `forward` does it."""
        if self._policy.device.type != "cuda":
            return None
        transfer = Transfer(self._policy.device)
        return lambda batch: transfer.begin(self._read(batch))

    def _read(self, batch: Tree) -> dict[str, Any]:
        """The leaves of a batch that the policy's hooks read."""
        read = self._policy.columns
        return {name: it for name, it in nested(batch).items() if read is None or name in read or name == "valid"}

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of a batch that the policy's hooks read; None where that is not known."""
        return self._policy.columns

    @property
    def shares_state_with(self) -> tuple[Any, ...]:
        """What changes when this mode learns: a contract that names one of these in `uses` names this mode."""
        return (self._policy, self._policy.model)

    @property
    def name(self) -> str:
        """The class of the policy, for messages."""
        return type(self._policy).__name__

    @property
    def learns_from(self) -> str:
        """ "rollouts", in the order of their steps, or "transitions", in any order."""
        return self._policy.learns_from

    @property
    def cfg(self) -> PolicyConfig:
        """The policy's configuration."""
        return self._policy.cfg

    @property
    def train_iter(self) -> int:
        """Gradient steps taken."""
        return self._policy.train_iter

    @property
    def metrics(self) -> MetricsLogger:
        """Takes numbers from the hooks that learn."""
        return self._policy.hook_metrics

    @property
    def version(self) -> int:
        """Version of the weights; increases with every change."""
        return self._policy.version

    def require_finite(self) -> None:
        """Refuse weights that are no numbers any more, at the end of what an iteration learned.

        Not where that would have to wait for the device: then a state is looked at when it is saved.

        Raises:
            LossError
        """
        self._policy.require_finite(waiting=False)

    def snapshot(self) -> Weights:
        """The weights as they are now, which learning does not change."""
        return self._policy.snapshot()

    def attach(self, name: str, thing: Any) -> None:
        """Make something with state_dict and load_state_dict part of the policy's state."""
        self._policy.attach(name, thing)

    def state_dict(self) -> dict[str, Any]:
        """The state of the whole policy."""
        return self._policy.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state."""
        self._policy.load_state_dict(state)


def _as_tree(batch: Any, policy: LearningPolicy) -> Tree:
    if isinstance(batch, Mapping):
        return tree(batch)
    raise TypeError(
        f"learn_mode.forward of {type(policy).__name__} wants a batch, got {batch!r:.80} of type {type(batch).__name__}: give "
        "a tree, or a dict of tensors and arrays."
    )
