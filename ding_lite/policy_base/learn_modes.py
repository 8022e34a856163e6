"""The mode of a policy that learns: `learn_mode`, which middleware receive."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ding_lite.basics import foreign_attributes
from ding_lite.basics.config_classes import Config
from ding_lite.basics.origins import is_of_script
from ding_lite.data import Tree, nested, to_device, tree
from ding_lite.data.device_transfers import CudaTransfer, StartTransfer
from ding_lite.data.trees import is_tree
from ding_lite.metrics import MetricsLogger
from ding_lite.policy_base.config_sections import PolicyConfig
from ding_lite.policy_base.foreign_hooks import MODE_ATTRIBUTES
from ding_lite.policy_base.learner_groups import LearnerGroup
from ding_lite.policy_base.live_settings import unfollowed_changes
from ding_lite.policy_base.weights import WeightsSnapshot
from ding_lite.policy_check import code_of_learning, idle_batch_size
from ding_lite.policy_check.idle_settings import reads_setting

_MAKING = ("__init__", "before_init", "default_config", "make_model", "make_optimizer", "before_loss_init", "after_init")
"""Hooks that are called when a policy is made."""


class LearningPolicy(Protocol):
    """The interface that `LearnMode` needs from its policy."""

    @property
    def cfg(self) -> PolicyConfig:
        """The configuration."""

    @property
    def model(self) -> nn.Module:
        """The networks that learn."""

    @property
    def settings_made(self) -> Mapping[str, Any]:
        """By dotted name, the values of the configuration that the policy follows."""

    @property
    def device(self) -> torch.device:
        """The device of the networks."""

    @property
    def made_with(self) -> dict[str, Any]:
        """The algorithm, its configuration and its spaces, as plain data."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of a batch that the hooks read; None if unknown."""

    def has_hooks_of_users(self) -> bool:
        """Whether its class is defined outside of the library."""

    @property
    def learns_from(self) -> str:
        """ "rollouts" or "transitions"."""

    @property
    def needs_rollouts(self) -> bool:
        """Whether its learning takes rollouts [T, B, ...] apart; see `Policy.needs_rollouts`."""

    @property
    def train_iter(self) -> int:
        """Gradient steps taken."""

    @property
    def num_steps(self) -> Mapping[str, int]:
        """By name, the number of gradient steps that a value of the last `learn` is the mean of, where it is more than 1."""

    @property
    def version(self) -> int:
        """Version of the weights."""

    @property
    def hook_metrics(self) -> MetricsLogger:
        """The logger of the hooks."""

    @property
    def compiled_steps(self) -> object | None:
        """What takes compiled gradient steps; None if there are none."""

    @property
    def learners(self) -> LearnerGroup | None:
        """The processes that learn in place of this one; None if there are none."""

    def learn(self, batch: Tree, /) -> dict[str, Any]:
        """Learn from a batch. Returns a dict to log."""

    def dry_run(self) -> object:
        """Run the policy on a dummy batch, the first time that this is called."""

    def require_finite(self, waiting: bool = True) -> None:
        """Raise NonFiniteError if the weights are not finite."""

    def snapshot(self) -> WeightsSnapshot:
        """A copy of the weights."""

    def attach(self, name: str, thing: Any, /) -> None:
        """Make an object part of the policy's state."""

    def state_dict(self) -> dict[str, Any]:
        """The whole state."""

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Load a saved state."""


@foreign_attributes(MODE_ATTRIBUTES)
class LearnMode:
    """The mode that learns: it changes the model."""

    def __init__(self, policy: LearningPolicy) -> None:
        self._policy = policy
        self._transfer: CudaTransfer | None = None  # made with the first batch that is copied to a GPU

    def forward(self, batch: Tree) -> dict[str, Tensor]:
        """Learn from a batch, on the policy's device. Only the columns that the hooks read are moved to a GPU.

        Args:
            batch: a tree, or a mapping of tensors and arrays by name.

        Returns:
            A dict to log. Its scalar tensors stay on the device, so that nothing waits for it.

        Raises:
            TypeError: the batch is neither a tree nor a mapping.
        """
        policy = self._policy
        if not is_tree(batch):
            batch = _as_tree(batch, policy)
        torch.clear_autocast_cache()  # a hook may have stepped an optimizer of its own in an earlier batch
        if policy.learners is not None:
            return policy.learners.learn(tree(self._read(batch)))
        if policy.device.type != "cpu":
            with policy.hook_metrics.log_time(("time", "device_copy"), reduce="mean"):
                batch = self._there(self._read(batch))
        elif policy.compiled_steps is not None:
            policy.dry_run()  # tells which columns the hooks read
        return policy.learn(batch)

    def _there(self, columns: dict[str, Any]) -> Tree:
        """These columns on the policy's device. The CPU does not wait for a GPU: it can sample the next batch meanwhile."""
        device = self._policy.device
        if device.type != "cuda":
            return tree(to_device(columns, device))
        self._transfer = self._transfer or CudaTransfer(device)
        return self._transfer.begin(columns)()

    def dry_run(self) -> None:
        """Run the policy on a dummy batch, the first time that this is called; see `Policy.dry_run`."""
        self._policy.dry_run()

    def sender(self) -> StartTransfer | None:
        """A function that copies batches to a GPU while the GPU computes; None if the policy is not on a GPU."""
        if self._policy.device.type != "cuda":
            return None
        transfer = CudaTransfer(self._policy.device)
        return lambda batch: transfer.begin(self._read(batch))

    def _read(self, batch: Tree) -> dict[str, Any]:
        """The columns of a batch that the policy's hooks read, and `valid`."""
        read = self._policy.columns
        return {name: it for name, it in nested(batch).items() if read is None or name in read or name == "valid"}

    @property
    def made_with(self) -> dict[str, Any]:
        """The policy's algorithm, configuration and spaces, as plain data; see `Policy.made_with`."""
        return self._policy.made_with

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of a batch that the policy's hooks read; None if unknown."""
        return self._policy.columns

    def idle_batch_size(self, middleware: Sequence[Any]) -> str | None:
        """A message if the batch size of a user's policy was set and neither it nor this middleware reads it."""
        policy: Any = self._policy
        return idle_batch_size(policy, middleware)

    def data_wanted(self) -> tuple[str, ...]:
        """What training data must have that not all of it has: "advantage" and "return_", as estimators add them, "sequences",
        or "rollouts", in order of time. What hooks of a user may add themselves is left out."""
        policy = self._policy
        if policy.needs_rollouts:
            return ("rollouts", *self._columns_wanted())
        return self._columns_wanted()

    def _columns_wanted(self) -> tuple[str, ...]:
        policy = self._policy
        read = () if policy.has_hooks_of_users() else policy.columns or ()
        added = [name for name in ("advantage", "return_") if name in read]
        return (*added, "sequences") if read and hasattr(policy.cfg.learn, "burn_in") else tuple(added)

    def trains(self, other: object) -> bool:
        """Whether learning changes the networks of a policy, or of the policy that another mode belongs to."""
        owner = getattr(other, "_policy", other)
        return owner is self._policy or getattr(owner, "model", None) is self._policy.model

    @property
    def shares_state_with(self) -> tuple[Any, ...]:
        """The objects that learning changes: the policy, its networks with their layers and parameters, and its optimizers. If
        a contract has one of them in `uses`, this counts as a use of this mode."""
        held = [self._policy.model, *vars(self._policy).values()]
        networks = [it for it in held if isinstance(it, nn.Module)]
        layers = [layer for network in networks for layer in network.modules()]
        tensors = [it for network in networks for it in (*network.parameters(), *network.buffers())]
        optimizers = [it for it in held if isinstance(it, torch.optim.Optimizer)]
        return (self._policy, *{id(it): it for it in (self._policy.model, *layers, *tensors, *optimizers)}.values())

    usual_name = "policy.learn_mode"
    """Code for it in messages."""

    def code_in_use(self, lane: str) -> Iterator[tuple[Any, Sequence[FunctionType]]]:
        """The functions of the script that a middleware on this lane runs by using it, each with the object whose methods they
        are: the hooks and networks. Only middleware on the lane that learns call all of them."""
        if self._policy.learners is not None:
            return iter(())
        return code_of_learning(self._policy, with_values_alone=lane != "learn")

    def settings_in_use(self, lane: str) -> list[Config]:
        """The settings that learning reads in each gradient step, on the lane that learns."""
        return [self._policy.cfg.learn] if lane == "learn" else []

    @property
    def name(self) -> str:
        """Name of the policy's class, for messages."""
        return type(self._policy).__name__

    @property
    def learns_from(self) -> str:
        """ "rollouts", with steps in order of time, or "transitions", in any order."""
        return self._policy.learns_from

    @property
    def cfg(self) -> PolicyConfig:
        """The policy's configuration."""
        return self._policy.cfg

    @property
    def network_holder(self) -> object:
        """The object in whose attributes the networks are; the engine looks there."""
        return self._policy

    @property
    def unfollowed_settings(self) -> dict[str, tuple[Any, Any]]:
        """The settings that were changed after the policy was made, and that it does not follow: by dotted name, the value in
        the configuration and that of the policy. Settings that hooks of users read in each step are left out."""
        found, kind = unfollowed_changes(self._policy.cfg, self._policy.settings_made), type(self._policy)
        return {name: values for name, values in found.items() if not _is_read_in_steps(kind, name.rpartition(".")[2])}

    @property
    def train_iter(self) -> int:
        """Gradient steps taken."""
        return self._policy.train_iter

    @property
    def num_steps(self) -> Mapping[str, int]:
        """By name, the number of gradient steps that a value of the last `forward` is the mean of, where it is more than 1.

        A value counts once for each `gradient_step` that returned it. If `learn_on_batch` does not call `gradient_step`, each
        of its values counts for all steps by which it has increased `train_iter`.
        """
        return self._policy.num_steps

    @property
    def metrics(self) -> MetricsLogger:
        """The logger of the hooks that learn."""
        return self._policy.hook_metrics

    @property
    def version(self) -> int:
        """Version of the weights; increases with every change."""
        return self._policy.version

    def require_finite(self) -> None:
        """Check, at the end of an iteration, that the weights are finite.

        Weights on a GPU are not checked here, because this would wait for the GPU; they are checked when a state is saved.

        Raises:
            NonFiniteError: a weight is NaN or infinite.
        """
        self._policy.require_finite(waiting=False)

    def snapshot(self) -> WeightsSnapshot:
        """A copy of the current weights."""
        return self._policy.snapshot()

    def snapshot_state(self, snapshot: WeightsSnapshot) -> dict[str, Any]:
        """A snapshot as plain data."""
        state = {name: value for name, value in snapshot._asdict().items() if name != "extra" or value}
        return {"weights" if name == "values" else name: value for name, value in state.items()}

    def snapshot_from(self, state: Mapping[str, Any]) -> WeightsSnapshot:
        """The snapshot of a result of `snapshot_state`."""
        named = {"values" if name == "weights" else name: value for name, value in state.items()}
        snapshot, device = WeightsSnapshot(**named), self._policy.device
        if not snapshot.are_tensors:
            return snapshot
        return snapshot._replace(values=[tensor.to(device) for tensor in snapshot.values])

    def release(self) -> None:
        """End the learners in other processes, if there are any; the next batch starts them again in the same state."""
        if self._policy.learners is not None:
            self._policy.learners.release()

    def attach(self, name: str, thing: Any) -> None:
        """Make an object with `state_dict` and `load_state_dict` part of the policy's state; see `Policy.attach`."""
        self._policy.attach(name, thing)

    def state_dict(self) -> dict[str, Any]:
        """The state of the whole policy."""
        return self._policy.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state; see `Policy.load_state_dict`."""
        self._policy.load_state_dict(state)


def _as_tree(batch: Any, policy: LearningPolicy) -> Tree:
    if isinstance(batch, Mapping):
        return tree(batch)
    raise TypeError(
        f"learn_mode.forward of {type(policy).__name__} wants a batch, got {batch!r:.80} of type {type(batch).__name__}: pass "
        "a tree, or a dict of tensors and arrays."
    )


@functools.cache
def _is_read_in_steps(kind: type, name: str) -> bool:
    """Whether a method of a class of users reads a setting after the policy was made."""
    members = [
        (place, member) for base in kind.__mro__ if is_of_script(base.__module__) for place, member in vars(base).items()
    ]
    return any(reads_setting(member, name, kind) for place, member in members if place not in _MAKING)
