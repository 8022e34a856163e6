"""The weights with which a mode acts: the newest ones, a snapshot that the engine chose, or those of an evaluation.

`ActMode.forward` (`act_modes.py`) calls `current`, which copies them to the acting copy (`acting_copies.py`) if they are not
there yet. Snapshots and the copying itself are in `weights.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, Protocol

from ding_lite.basics.blocks import block
from ding_lite.policy_base.weights import WeightsSnapshot


class PolicyWithWeights(Protocol):
    """The interface that `ActingWeights` needs from its policy, and from the acting copy of the policy."""

    version: int
    """Version of the weights."""

    def snapshot(self) -> WeightsSnapshot:
        """A copy of the weights."""

    def copy_weights(self, other: Any, /) -> None:
        """Load the weights of a policy or of a snapshot."""

    def get_weights(self) -> dict[str, Any]:
        """A copy of the weights, as plain data."""


class ActingWeights:
    """Chooses the weights to act with: those of the block of `acting_with`, else the loaded snapshot, else the policy's newest.

    Args:
        policy: the policy whose weights these are.
        actor: the acting copy, which has the weights of the policy.
    """

    explore: bool

    def __init__(self, policy: PolicyWithWeights, actor: PolicyWithWeights) -> None:
        self._policy, self.actor = policy, actor
        self._given: WeightsSnapshot | None = None
        """The loaded snapshot."""
        self._held: WeightsSnapshot | None = None
        """The weights of a block of `acting_with`."""
        self._copied: PolicyWithWeights | WeightsSnapshot | None = policy
        """What the weights of the acting copy are from; None if it is to be copied again."""
        self._acted_elsewhere: WeightsSnapshot | None = None
        """The weights with which worker copies acted last, if the acting copy has not acted or been renewed since."""
        self._has_acted = False

    def load_snapshot(self, snapshot: WeightsSnapshot | None) -> None:
        """Act with these weights from now on; None acts with the newest weights again."""
        self._given = snapshot

    @block
    def acting_with(self, weights: WeightsSnapshot) -> Iterator[None]:
        """A block in which it acts with these weights, even if other snapshots are loaded in between."""
        before, self._held = self._held, weights
        try:
            yield
        finally:
            self._held = before
            if self._copied is weights:
                self._copied = None  # so that these weights can be freed

    def current(self) -> Any:
        """The acting copy, with the weights that `forward` acts with. Do not change it."""
        weights, actor = self._held or self._given or self._policy, self.actor
        # After load_state_dict() of the policy, other weights may have the version of earlier ones.
        if actor.version != weights.version or weights is not self._copied:
            actor.copy_weights(weights)
            self._copied = weights
        self._has_acted, self._acted_elsewhere = True, None
        return actor

    def renew(self) -> None:
        """Copy the weights of the policy to the acting copy, also if the version is the same."""
        self.actor.copy_weights(self._policy)
        self._copied, self._acted_elsewhere = self._policy, None

    def note_acting(self, weights: WeightsSnapshot) -> None:
        """Note that worker copies act with these weights."""
        self._has_acted, self._acted_elsewhere = True, weights

    def snapshot(self) -> WeightsSnapshot:
        """The weights of this iteration, also in a block of `acting_with`."""
        return self._given or self._policy.snapshot()

    @property
    def acting_snapshot(self) -> WeightsSnapshot:
        """The weights that the next `forward` acts with."""
        return self._held or self.snapshot()

    @property
    def version(self) -> int:
        """Version of the weights in the acting copy: those of the last `forward`."""
        return self.actor.version

    @property
    def is_led(self) -> bool:
        """Whether a snapshot is loaded, so that it does not act with the newest weights."""
        return self._given is not None

    def get_weights(self) -> dict[str, Any]:
        """A copy of the weights with which it acted last, here or in workers. Warns if it has never acted, and the policy has
        learned since."""
        if not self._has_acted and self.actor.version != (self._held or self._given or self._policy).version:
            warnings.warn(
                f"{self.usual_name}.get_weights() gives the weights with which this mode acted last, but it has never acted, "
                f"and {type(self._policy).__name__} has learned since: act through {self.usual_name}, or use "
                "policy.get_weights().",
                stacklevel=2,
            )
        if self._acted_elsewhere is not None:
            self.actor.copy_weights(self._acted_elsewhere)
            self._copied = self._acted_elsewhere = None
        return self.actor.get_weights()

    @property
    def usual_name(self) -> str:
        """Code for it in messages."""
        return "policy.collect_mode" if self.explore else "policy.eval_mode"
