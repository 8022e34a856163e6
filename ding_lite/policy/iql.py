"""IQL: learn V(s), Q(s, a) and an actor from the actions of the data alone, without the value of any other action.

Kostrikov et al. (2021), https://arxiv.org/abs/2110.06169.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite.basics import ranged_field
from ding_lite.data import Tree
from ding_lite.data.trees import first_leaf
from ding_lite.envs import SpaceError
from ding_lite.functional import expectile_loss, gaussian_log_prob, weighted_mean
from ding_lite.functional.log_probs import as_index
from ding_lite.nn import action_distribution, make_q_ensemble, make_state_value
from ding_lite.policy_base import Policy, live_from_next_step
from ding_lite.policy_check import require_members, require_output
from ding_lite.policy_parts import (
    OFFLINE_POLICIES_FOR_BOX_ACTIONS,
    AdvantageWeightedMixin,
    BoxLearnConfig,
    BoxPolicyConfig,
    LearningRateScheduleMixin,
    OfflineModelConfig,
    OffPolicyConfig,
    ParamGroupsMixin,
    TargetNetworkMixin,
    advantage_weighted_loss,
    critic_regression,
    limited_share,
    row_weight,
)
from ding_lite.run_configs import OfflinePendulumRunConfig, OfflineRunConfig

if TYPE_CHECKING:
    Base = Policy
else:
    Base = object


@dataclasses.dataclass
class IQLLearnConfig(BoxLearnConfig):
    """Learning."""

    live_settings = live_from_next_step("expectile", "beta", "max_weight")

    batch_size: int = ranged_field(256, low=1, high=10_000_000)
    """Transitions per gradient step."""

    learning_rate: float = ranged_field(3e-4, low=0)
    """Learning rate of the critics, and of the actor unless learning_rate_actor is set."""

    expectile: float = ranged_field(0.7, low=0, high=1)
    """Expectile of Q over the actions of the data that V estimates: 0.5 for the mean, near 1 for the best action."""

    beta: float = ranged_field(3.0, low=0)
    """Inverse temperature of the weights exp(beta * advantage), per unit of return; 0 for imitation."""

    max_weight: float = ranged_field(100.0, low=1)
    """Limit of the weights."""


@dataclasses.dataclass
class IQLPolicyConfig(BoxPolicyConfig):
    """IQL for Box actions."""

    model: OfflineModelConfig = dataclasses.field(default_factory=OfflineModelConfig)
    """Networks."""

    learn: IQLLearnConfig = dataclasses.field(default_factory=IQLLearnConfig)
    """Learning."""


@dataclasses.dataclass
class IQLConfig(OfflinePendulumRunConfig):
    """IQL for Box actions, on Pendulum-v1."""

    exp_name: str = "runs/iql"
    """Folder of the run, for metrics, configuration and checkpoints."""

    policy: IQLPolicyConfig = dataclasses.field(default_factory=IQLPolicyConfig)
    """The algorithm."""


@dataclasses.dataclass
class DiscreteIQLPolicyConfig(OffPolicyConfig):
    """IQL for Discrete actions."""

    model: OfflineModelConfig = dataclasses.field(default_factory=OfflineModelConfig)
    """Networks."""

    learn: IQLLearnConfig = dataclasses.field(default_factory=IQLLearnConfig)
    """Learning."""


@dataclasses.dataclass
class DiscreteIQLConfig(OfflineRunConfig):
    """IQL for Discrete actions, on CartPole-v1."""

    exp_name: str = "runs/discrete_iql"
    """Folder of the run, for metrics, configuration and checkpoints."""

    policy: DiscreteIQLPolicyConfig = dataclasses.field(default_factory=DiscreteIQLPolicyConfig)
    """The algorithm."""


class IQLLearning(Base):
    """The losses of IQL, for any actions: a mixin that needs the values and likelihoods of the actions in a batch."""

    cfg: Any
    target_model: Any

    def state_values(self, obs: Any) -> Tensor:
        """V(s), [B]."""
        raise NotImplementedError

    def data_values(self, critic: Any, batch: Tree) -> Tensor:
        """Q_k(s, a) of the actions of a batch, [K, B], by the critics that learn or by their target."""
        raise NotImplementedError

    def data_log_prob(self, batch: Tree) -> Tensor:
        """log pi(a|s) of the actions of a batch, [B]."""
        raise NotImplementedError

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The losses of V, the critics and the actor. The gradient of each only reaches its own network.

            A           = min_k Q_target_k(s, a) - V(s)
            value_loss  = mean(|expectile - [A < 0]| * A^2)
            target      = r + discount * (1 - terminated) * V(s')
            critic_loss = mean(sum_k (target - Q_k(s, a))^2) / 2
            actor_loss  = -mean(min(exp(beta * A), max_weight) * log pi(a|s))
            loss        = value_loss + critic_loss + actor_loss

        Args:
            batch: obs, next_obs [B, *obs_shape]; action [B, *action_shape]; reward [B] float; terminated [B] bool; optionally
                discount [B] float for n-step rewards, weight [B] float.

        Returns:
            The scalar loss; and a dict to log, with value_loss, critic_loss, actor_loss, mean q_value, value and advantage,
            limited_share, which is the share of rows whose weight is max_weight, and, if the batch has weights, the priority of
            each row, [B].

        Reference:
            Kostrikov et al. (2021), https://arxiv.org/abs/2110.06169, eq. 5, 6 and 7; the limit: the authors' code.
        """
        learn = self.cfg.learn
        value = self.state_values(batch.obs)
        with torch.no_grad():
            next_value = self.state_values(batch.next_obs)
            target_q_value = self.data_values(self.target_model, batch).amin(0)
        advantage = target_q_value - value
        weight = row_weight(batch)
        value_loss = weighted_mean(expectile_loss(advantage, learn.expectile), weight)
        q_value = self.data_values(self.online_critic(), batch)
        critic_loss, stats = critic_regression(q_value, next_value, batch, self.cfg.discount_factor)
        log_prob = self.data_log_prob(batch)
        actor_loss = advantage_weighted_loss(log_prob, advantage, batch, beta=learn.beta, limit=learn.max_weight)
        stats |= {"value_loss": value_loss.detach(), "actor_loss": actor_loss.detach(), "value": value.detach().mean()}
        stats["limited_share"] = limited_share(advantage, beta=learn.beta, limit=learn.max_weight)
        return value_loss + critic_loss + actor_loss, {**stats, "advantage": advantage.detach().mean()}

    def online_critic(self) -> Any:
        """The critics that learn."""
        raise NotImplementedError

    def target_source(self) -> Any:
        """The critics. There is no target of V or of the actor."""
        return self.online_critic()


class IQLPolicy(IQLLearning, AdvantageWeightedMixin, TargetNetworkMixin, LearningRateScheduleMixin, Policy):
    """Implicit Q-learning, for actions in a Box with finite bounds and observations of any space."""

    config_type = IQLPolicyConfig
    cfg: IQLPolicyConfig
    learns_from = "transitions"

    def make_model(self) -> Any:
        """Make the actor, the critics, the bounds of actions, and V."""
        cfg, model = self.cfg.model, super().make_model()
        model.value = make_state_value(
            self.observation_space,
            cfg.encoder_hidden_size_list,
            cfg.activation,
            cfg.conv_layers,
            normalizer=model.normalizer,
            layer_norm=cfg.layer_norm,
        )
        return model

    def take_model(self, model: nn.Module) -> nn.Module:
        """The module, with `bounds` of actions if it has none.

        Raises:
            TypeError: it has no actor, no critic or no value, or one of them is no module.
        """
        require_members(self, model, {"value": "value(obs) -> [B]"}, modules=("value",))
        return super().take_model(model)

    def check_model(self, obs: Any) -> None:
        """Check the shapes of what actor, critic and value return."""
        super().check_model(obs)
        require_output(self, "value(obs)", self.model.value(obs), (len(first_leaf(obs)),), "the value [B]")

    def param_groups(self) -> Mapping[str, tuple[Iterable[nn.Parameter], float]]:
        """The parameters and learning rates of critics, actor and V."""
        return {**super().param_groups(), "value": (self.model.value.parameters(), self.cfg.learn.learning_rate)}

    def online_critic(self) -> Any:
        """The critics that learn."""
        return self.model.critic

    def state_values(self, obs: Any) -> Tensor:
        """V(s), [B]."""
        return self.model.value(obs)  # type: ignore[no-any-return]

    def data_values(self, critic: Any, batch: Tree) -> Tensor:
        """Q_k(s, a) of the actions of a batch, [K, B]."""
        return critic(batch.obs, self.model.bounds.to_unit(batch.action))  # type: ignore[no-any-return]

    def data_log_prob(self, batch: Tree) -> Tensor:
        """log pi(a|s) of the actions of a batch, [B], for actions scaled to [-1, 1]."""
        mean, log_std = self.model.actor(batch.obs)
        return gaussian_log_prob(mean, log_std, self.model.bounds.to_unit(batch.action))


class DiscreteIQLPolicy(IQLLearning, ParamGroupsMixin, TargetNetworkMixin, LearningRateScheduleMixin, Policy):
    """Implicit Q-learning, for Discrete actions and observations of any space.

    A class of its own, because networks and acting differ: critics give the values of all actions at once, and the actor is a
    categorical distribution, which respects an `action_mask`. The losses are the same.
    """

    config_type = DiscreteIQLPolicyConfig
    cfg: DiscreteIQLPolicyConfig
    learns_from = "transitions"
    action_space: spaces.Discrete

    def check_spaces(self) -> None:
        """Raise SpaceError if the action space is not Discrete."""
        super().check_spaces()
        if not isinstance(self.action_space, spaces.Discrete):
            raise SpaceError(
                f"DiscreteIQLPolicy wants Discrete actions, got {self.action_space}: use {OFFLINE_POLICIES_FOR_BOX_ACTIONS}."
            )

    def make_model(self) -> Any:
        """Make the actor, V and the critics."""
        cfg = self.cfg.model
        model: Any = super().make_model()
        model.q_critic = make_q_ensemble(
            self.observation_space,
            int(self.action_space.n),
            cfg.encoder_hidden_size_list,
            cfg.activation,
            cfg.conv_layers,
            normalizer=model.normalizer,
            layer_norm=cfg.layer_norm,
        )
        return model

    def take_model(self, model: nn.Module) -> nn.Module:
        """The module, with a `distribution` over actions if it has none.

        Raises:
            TypeError: it lacks a network.
        """
        members = {"logits": "logits(obs) -> logit [B, A]", "values": "values(obs) -> [B]", "actor": "actor, a module"}
        members |= {"critic": "critic, the module of values(obs)", "q_critic": "q_critic(obs) -> Q-values [K, B, A]"}
        require_members(self, model, members, modules=("actor", "critic", "q_critic"))
        if not hasattr(model, "distribution"):
            model.distribution = action_distribution(self.action_space)
        return super().take_model(model)

    def check_model(self, obs: Any) -> None:
        """Check the shapes of logit, value and Q-values."""
        count, width = len(first_leaf(obs)), int(self.action_space.n)
        require_output(self, "logits(obs)", self.model.logits(obs), (count, width), "the logit [B, A]")
        require_output(self, "values(obs)", self.model.values(obs), (count,), "the value [B]")
        require_output(self, "q_critic(obs)", self.model.q_critic(obs), (None, count, width), "Q-values [K, B, A] of K critics")

    def param_groups(self) -> Mapping[str, tuple[Iterable[nn.Parameter], float]]:
        """The parameters and learning rates of critics, actor and V."""
        learn, model = self.cfg.learn, self.model
        actor_rate = learn.learning_rate if learn.learning_rate_actor is None else learn.learning_rate_actor
        return {
            "critic": (model.q_critic.parameters(), learn.learning_rate),
            "actor": (model.actor.parameters(), actor_rate),
            "value": (model.critic.parameters(), learn.learning_rate),
        }

    def online_critic(self) -> Any:
        """The critics that learn."""
        return self.model.q_critic

    def state_values(self, obs: Any) -> Tensor:
        """V(s), [B]."""
        return self.model.values(obs)  # type: ignore[no-any-return]

    def data_values(self, critic: Any, batch: Tree) -> Tensor:
        """Q_k(s, a) of the actions of a batch, [K, B]."""
        q_values = critic(batch.obs)
        index = (as_index(batch.action) - int(self.action_space.start)).expand(len(q_values), -1)
        return q_values.gather(-1, index.unsqueeze(-1)).squeeze(-1)  # type: ignore[no-any-return]

    def data_log_prob(self, batch: Tree) -> Tensor:
        """log pi(a|s) of the actions of a batch, [B]."""
        return self.model.distribution.evaluate(self.model.logits(batch.obs), batch.action)[0]  # type: ignore[no-any-return]
