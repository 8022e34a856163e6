"""Mixins: stateful parts of a policy, whose methods come before those of the policy that they are mixed into.

Each is set up from the policy's configuration, unless `before_loss_init` calls its constructor; its state is in the
policy's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import torch
from torch import Tensor

from ding_lite.data import Tree, first_leaf, map_leaves, nested, with_leaves
from ding_lite.functional import piecewise

if TYPE_CHECKING:
    from ding_lite.hooks.policies import Policy as Base
else:
    Base = object

Points = Sequence[tuple[float, float]]
"""(gradient step, value) of a schedule, linear between them and constant beyond."""


def set_up_by_hooks(init: Callable[..., None]) -> Callable[..., None]:
    """A mixin's constructor, which a hook calls once the policy is there: `LearningRateSchedule.__init__(policy, lr)`.

    Where Python calls it, because the mixin stands first among the bases, the next constructor of a base takes its place.
    """

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if "cfg" in vars(self):
            init(self, *args, **kwargs)
        else:
            owner: Any = next(kind for kind in type(self).__mro__ if vars(kind).get("__init__") is __init__)
            super(owner, self).__init__(*args, **kwargs)

    return __init__


class LearningRateSchedule(Base):
    """A learning rate that changes with the gradient steps taken, and `cur_lr`, what it is now.

    Args:
        lr: without a schedule.
        lr_schedule: (gradient step, learning rate); None keeps `lr`.
    """

    @set_up_by_hooks
    def __init__(self, lr: float, lr_schedule: Points | None = None) -> None:
        self.cur_lr, self.lr_schedule = lr, lr_schedule
        self._set_learning_rate()

    def set_up(self) -> None:
        """From `lr_schedule` of the configuration; without one, the optimizer keeps the rates that it was made with."""
        schedule = self.config.get("lr_schedule")
        if schedule is not None:
            LearningRateSchedule.__init__(self, self.config["lr"], schedule)
        else:
            self.cur_lr, self.lr_schedule = float(self.optimizer.param_groups[0]["lr"]), None

    def gradient_step(self, batch: Tree) -> dict[str, Any]:
        """A step at the learning rate of the moment."""
        if self.lr_schedule is not None:
            self._set_learning_rate()
        return super().gradient_step(batch)

    def _set_learning_rate(self) -> None:
        if self.lr_schedule is not None:
            self.cur_lr = piecewise(self.lr_schedule, self.train_iter)
        for group in self.optimizer.param_groups:
            group["lr"] = self.cur_lr

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state; the learning rate is that of the saved optimizer."""
        super().load_state_dict(state)
        self.cur_lr = float(self.optimizer.param_groups[0]["lr"])


class EntropyCoeffSchedule(Base):
    """A weight of the entropy bonus that changes with the gradient steps taken: `entropy_coeff`.

    Args:
        entropy_coeff: without a schedule.
        entropy_coeff_schedule: (gradient step, weight); None keeps `entropy_coeff`.
    """

    state_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"entropy_coeff": (-math.inf, math.inf)}

    @set_up_by_hooks
    def __init__(self, entropy_coeff: float, entropy_coeff_schedule: Points | None = None) -> None:
        self.entropy_coeff, self.entropy_coeff_schedule = entropy_coeff, entropy_coeff_schedule
        if entropy_coeff_schedule is not None:
            self.entropy_coeff = piecewise(entropy_coeff_schedule, self.train_iter)

    def set_up(self) -> None:
        """From `entropy_coeff` and `entropy_coeff_schedule` of the configuration."""
        EntropyCoeffSchedule.__init__(self, self.config.get("entropy_coeff", 0.0), self.config.get("entropy_coeff_schedule"))

    def gradient_step(self, batch: Tree) -> dict[str, Any]:
        """A step with the weight of the moment."""
        if self.entropy_coeff_schedule is not None:
            self.entropy_coeff = piecewise(self.entropy_coeff_schedule, self.train_iter)
        return super().gradient_step(batch)

    def state_dict(self) -> dict[str, Any]:
        """The policy's state and the weight."""
        return {**super().state_dict(), "entropy_coeff": self.entropy_coeff}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state."""
        super().load_state_dict(state)
        self.entropy_coeff = state.get("entropy_coeff", self.entropy_coeff)


class KLCoeffMixin(Base):
    """A weight of the KL divergence that is adapted after each batch whose learning gives "kl": `kl_coeff`.

    It grows by half where the policy moved further than twice `kl_target`, and is halved where it moved less than half of it.

    Args:
        config: with `kl_coeff`, the weight at the start, and `kl_target`, in nats.

    Reference:
        Schulman et al. (2017), https://arxiv.org/abs/1707.06347, section 4, with gentler factors and a wider band.
    """

    state_ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"kl_coeff": (0.0, math.inf)}

    @set_up_by_hooks
    def __init__(self, config: Mapping[str, Any]) -> None:
        self.kl_coeff, self.kl_target = float(config.get("kl_coeff", 0.2)), float(config.get("kl_target", 0.01))

    def set_up(self) -> None:
        """From `kl_coeff` and `kl_target` of the configuration."""
        KLCoeffMixin.__init__(self, self.config)

    def learn(self, batch: Tree) -> dict[str, Any]:
        """Learn, and adapt the weight by how far that moved the policy."""
        output = super().learn(batch)
        if self.kl_coeff > 0 and "kl" in output:
            self.update_kl(float(output["kl"]))
        return output

    def update_kl(self, sampled_kl: float) -> float:
        """Adapt the weight to this divergence, in nats. Returns the new weight."""
        if sampled_kl > 2.0 * self.kl_target:
            self.kl_coeff *= 1.5
        elif sampled_kl < 0.5 * self.kl_target:
            self.kl_coeff *= 0.5
        return self.kl_coeff

    def state_dict(self) -> dict[str, Any]:
        """The policy's state and the weight."""
        return {**super().state_dict(), "kl_coeff": self.kl_coeff}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state."""
        super().load_state_dict(state)
        self.kl_coeff = state.get("kl_coeff", self.kl_coeff)


class ValueNetworkMixin(Base):
    """A critic that judges rollouts: `with_values`, for a model that has `values(obs)`.

    Args:
        observation_space, action_space, config: in RLlib's places; nothing of them.
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
                f"{type(self).__name__} has a critic (ValueNetworkMixin) and wants a model with values(obs), and make_model "
                f"gives a {type(self.model).__name__}: give a ding_lite.nn.ActorCritic(actor, critic, "
                "action_distribution(space), encoder), which has it with logits(obs), distribution and forward(obs) -> (logit, "
                "value), or what make_actor_critic makes."
            )

    def set_up(self) -> None:
        """Checks the model."""
        ValueNetworkMixin.__init__(self)

    @torch.no_grad()
    def with_values(self, batch: Tree) -> Tree:
        """A rollout with value = V(obs) and next_value = V(next_obs), [T, B], by the newest critic.

        Between two steps of one episode next_obs is the next row's obs, so only the last row, and rows that were cut by a
        time limit, need a second look.
        """
        value = self.value(batch.obs)
        next_value = self.next_values(batch, value)
        return with_leaves(batch, value=value.to(batch.reward.device), next_value=next_value.to(batch.reward.device))

    @torch.no_grad()
    def next_values(self, batch: Tree, value: Tensor) -> Tensor:
        """V(next_obs) [T, B] of a rollout whose value = V(obs) [T, B] is known."""
        next_value = torch.cat([value[1:], self.value(map_leaves(lambda leaf: leaf[-1:], batch.next_obs))])
        cut = batch.truncated.to(self.device).clone()
        cut[-1] = False
        if cut.any():
            places = cut.cpu().nonzero(as_tuple=True)
            next_value[cut] = self.value(map_leaves(lambda leaf: leaf[places].unsqueeze(0), batch.next_obs)).squeeze(0)
        return next_value

    def value(self, obs: Any) -> Tensor:
        """V of observations [T, B, ...], as [T, B]."""
        lead = first_leaf(obs).shape[:2]
        flat = map_leaves(lambda leaf: leaf.flatten(0, 1).to(self.device), nested(obs))
        return self.model.values(flat).reshape(lead)  # type: ignore[no-any-return]
