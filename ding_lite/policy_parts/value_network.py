"""Value network: a mixin for policies with a state-value critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import torch
from torch import Tensor

from ding_lite.data import Tree, nested
from ding_lite.data.trees import first_leaf, map_leaves, with_leaves
from ding_lite.functional import is_traced
from ding_lite.policy_base import set_up_by_hooks

if TYPE_CHECKING:
    from ding_lite.policy_base import Policy as Base
else:
    Base = object


class ValueNetworkMixin(Base):
    """A mixin with `with_values`, for policies whose model has a critic, `values(obs)`.

    Args:
        observation_space, action_space, config: unused; kept for RLlib's signature.
    """

    @set_up_by_hooks
    def __init__(
        self,
        observation_space: gymnasium.Space[Any] | None = None,
        action_space: gymnasium.Space[Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if not hasattr(self.model, "values") and not hasattr(self.model, "unroll_values"):
            raise TypeError(
                f"{type(self).__name__} has ValueNetworkMixin, which wants a model with values(obs), and make_model returns a "
                f"{type(self.model).__name__}: return a ding_lite.nn.ActorCritic(actor, critic, action_distribution(space), "
                "encoder), which has values(obs), logits(obs), distribution and forward(obs) -> (logit, value), or the result "
                "of make_actor_critic."
            )

    def set_up(self) -> None:
        """Check that the model has a critic, if the policy uses one."""
        if self.has_critic:
            ValueNetworkMixin.__init__(self)

    @torch.no_grad()
    def with_values(self, batch: Tree) -> Tree:
        """Add value = V(obs) and next_value = V(next_obs), [T, B], to a rollout, computed by the newest critic.

        Within an episode, next_obs is the obs of the next row. So V(next_obs) is only computed for the last row, and for
        truncated rows. After a terminated step, next_value is the value of the next episode's first obs, which estimators mask.
        """
        value = self.value(batch.obs)
        next_value = self.next_values(batch, value)
        return with_leaves(batch, value=value.to(batch.reward.device), next_value=next_value.to(batch.reward.device))

    @torch.no_grad()
    def next_values(self, batch: Tree, value: Tensor) -> Tensor:
        """V(next_obs) [T, B] of a rollout, given value = V(obs) [T, B]; arbitrary for terminated steps."""
        next_value = torch.cat([value[1:], self.value(map_leaves(lambda leaf: leaf[-1:], batch.next_obs))])
        cut = batch.truncated.to(self.device).clone()
        cut[-1] = False
        if is_traced():  # values of all rows, because a compiled step has no conditions
            return torch.where(cut, self.value(batch.next_obs), next_value)
        if cut.any():
            places = cut.cpu().nonzero(as_tuple=True)
            next_value[cut] = self.value(map_leaves(lambda leaf: leaf[places].unsqueeze(0), batch.next_obs)).squeeze(0)
        return next_value

    def value(self, obs: Any) -> Tensor:
        """V(obs) [T, B] of observations [T, B, ...]."""
        lead = first_leaf(obs).shape[:2]
        flat = map_leaves(lambda leaf: leaf.flatten(0, 1).to(self.device), nested(obs))
        return self.model.values(flat).reshape(lead)  # type: ignore[no-any-return]
