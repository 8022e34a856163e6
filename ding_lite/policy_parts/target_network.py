"""Target networks: a copy of a network that changes more slowly, to compute bootstrapped targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from ding_lite.functional import polyak_
from ding_lite.policy_state.network_copies import copy_extra_states, detached_copy, load_network

if TYPE_CHECKING:
    from ding_lite.policy_base import Policy as Base
else:
    Base = object


_SETTINGS = "target_update_freq", "target_update_theta"


class TargetNetworkMixin(Base):
    """A mixin with a target network, `target_model`, updated every `cfg.learn.target_update_freq` gradient steps.

        target = (1 - theta) * target + theta * online, theta = cfg.learn.target_update_theta

    Buffers, such as running statistics, and extra states of modules (torch's `get_extra_state`) are copied instead. The
    normalizer of observations, `model.normalizer`, is shared: both networks normalise by the newest statistics.

    Reference:
        Mnih et al. (2015), https://www.nature.com/articles/nature14236, for periodic copies (theta = 1); Lillicrap et al.
        (2016), https://arxiv.org/abs/1509.02971, for a small theta after each step.
    """

    saved_networks: ClassVar[tuple[str, ...]] = ("model", "optimizer", "target_model")

    def target_source(self) -> nn.Module:
        """The network that the target network is a copy of. By default, the whole model."""
        return self.model  # type: ignore[no-any-return]

    def set_up(self) -> None:
        """Make the target network.

        Raises:
            TypeError: the configuration has no settings of target networks.
        """
        missing = [name for name in _SETTINGS if not hasattr(self.cfg.learn, name)]
        if missing:
            raise TypeError(
                f"{type(self).__name__} has a target network, and its configuration, a {type(self.cfg).__name__}, has no "
                f"learn.{missing[0]}: set config_type, or get_default_config of build_policy, to a configuration with it, "
                "such as DQNPolicyConfig."
            )
        normalizer = getattr(self.model, "normalizer", None)
        shared = {} if normalizer is None else {id(normalizer): normalizer}  # deepcopy does not copy what it finds here
        self.target_model = detached_copy(self.target_source(), shared).requires_grad_(False)

    def after_step(self) -> None:
        """Update the target network every `target_update_freq` gradient steps."""
        super().after_step()
        learn: Any = self.cfg.learn
        if self.train_iter % learn.target_update_freq == 0:
            polyak_(self.target_model.parameters(), self.target_source().parameters(), learn.target_update_theta)
            for target, online in zip(self.target_model.buffers(), self.target_source().buffers()):
                target.copy_(online)
            if self._has_extra_states:
                copy_extra_states(self.target_source(), self.target_model)

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Load weights that `get_weights` returned. The target network becomes a copy of them."""
        super().set_weights(weights)
        if self.being_loaded is None and not self.is_copy:  # the copies that act have no target network
            load_network(self.target_model, self.target_source().state_dict())

    def state_dict(self) -> dict[str, Any]:
        """The policy's state, including the target network."""
        return {**super().state_dict(), "target_model": detached_copy(self.target_model.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state. If it has only the weights of the model, the target network becomes a copy of them."""
        super().load_state_dict(state)
        saved = state.get("target_model")
        load_network(self.target_model, self.target_source().state_dict() if saved is None else saved)


TargetNetwork = TargetNetworkMixin  # its name in earlier versions
