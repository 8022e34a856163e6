"""SAC: learn Q(s, a) with an entropy bonus, and a stochastic actor that maximises it and explores.

Haarnoja et al. (2018a), https://arxiv.org/abs/1801.01290; with automatic temperature tuning (2018b),
https://arxiv.org/abs/1812.05905.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ding_lite.basics import ranged_field
from ding_lite.data import Tree
from ding_lite.functional import temperature_loss
from ding_lite.nn import BoundedActorCritic
from ding_lite.policy_base import Policy, live_from_next_step
from ding_lite.policy_parts import (
    BoxActionMixin,
    BoxLearnConfig,
    BoxPolicyConfig,
    LearningRateScheduleMixin,
    TargetNetworkMixin,
    critic_regression,
)
from ding_lite.policy_state import with_own_values
from ding_lite.run_configs import EnvConfig, PendulumRunConfig, mujoco_envs


@dataclasses.dataclass
class SACLearnConfig(BoxLearnConfig):
    """Learning."""

    live_settings = live_from_next_step("learning_rate_alpha", "target_entropy")
    fixed_settings = dict.fromkeys(
        ("alpha", "auto_alpha"), "the temperature is a parameter of the model: change learn.target_entropy, or start a new run."
    )

    alpha: float = ranged_field(1.0, low=1e-8)
    """Temperature, the weight of the entropy, in units of reward per nat; with auto_alpha, the initial value."""

    auto_alpha: bool = True
    """Whether to tune the temperature so that the entropy stays at target_entropy."""

    learning_rate_alpha: float | None = ranged_field(None, low=0)
    """Learning rate of the logarithm of the temperature; None for learning_rate, the rate of the critics."""

    target_entropy: float | None = ranged_field(None)
    """Target entropy in nats, for actions scaled to [-1, 1]; None for minus the number of action dimensions."""


@dataclasses.dataclass
class SACPolicyConfig(BoxPolicyConfig):
    """SAC."""

    learn: SACLearnConfig = dataclasses.field(default_factory=SACLearnConfig)
    """Learning."""


@dataclasses.dataclass
class SACConfig(PendulumRunConfig):
    """SAC, on Pendulum-v1."""

    exp_name: str = "runs/sac"
    """Folder of the run, for metrics, configuration and checkpoints."""

    policy: SACPolicyConfig = dataclasses.field(default_factory=SACPolicyConfig)
    """The algorithm."""


_SAC_MUJOCO = {
    "random_collect_size": 5000,
    "model.encoder_hidden_size_list": [256, 256],
    "learn": {"batch_size": 256, "learning_starts": 5000, "learning_rate": 1e-3},
    "other.replay_buffer_size": 1_000_000,
    "eval.evaluator.eval_freq": 5000,
}


@dataclasses.dataclass
class SACMuJoCoConfig(SACConfig):
    """SAC, on HalfCheetah-v5 and other tasks of MuJoCo: a million environment steps, one gradient step for each.

    The settings of Haarnoja et al. (2018b), with the learning rates of tianshou, and with 8 environments instead of one.
    """

    exp_name: str = "runs/sac_mujoco"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(124_376, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=lambda: mujoco_envs("HalfCheetah-v5", stop_value=4800.0))
    """Environments."""

    policy: SACPolicyConfig = dataclasses.field(default_factory=lambda: SACPolicyConfig().override(_SAC_MUJOCO))
    """The algorithm."""


class SACPolicy(BoxActionMixin, TargetNetworkMixin, LearningRateScheduleMixin, Policy):
    """Soft actor-critic, for actions in a Box with finite bounds and observations of any space."""

    config_type: ClassVar[type[SACPolicyConfig]] = SACPolicyConfig
    cfg: SACPolicyConfig
    learns_from = "transitions"
    stochastic = True

    def make_model(self) -> BoundedActorCritic:
        """Make the actor, the critics, the bounds of actions, and the logarithm of the temperature."""
        return self._with_temperature(super().make_model())  # type: ignore[no-any-return]

    def take_model(self, model: nn.Module) -> nn.Module:
        """The module, with `bounds` and `log_alpha` if it has none."""
        return self._with_temperature(super().take_model(model))  # type: ignore[no-any-return]

    def _with_temperature(self, model: Any) -> Any:
        """The model with the logarithm of the temperature, and set the target entropy."""
        learn = self.cfg.learn
        if not hasattr(model, "log_alpha"):
            model.log_alpha = nn.Parameter(torch.tensor(math.log(learn.alpha)), requires_grad=learn.auto_alpha)
        self._set_target_entropy(model)
        return model

    def _set_target_entropy(self, model: Any) -> None:
        target = self.cfg.learn.target_entropy
        self.target_entropy = -float(model.bounds.width) if target is None else target

    def settings_changed(self, names: frozenset[str]) -> None:
        """Follow changes of the target entropy."""
        super().settings_changed(names)
        if "learn.target_entropy" in names:
            self._set_target_entropy(self.model)

    @property
    def state_settings(self) -> Mapping[str, Sequence[str]]:
        """The settings of the entries of the state; a constant temperature is a setting."""
        constant = {} if self.cfg.learn.auto_alpha else {"model/log_alpha": ("learn.auto_alpha", "learn.alpha")}
        return {**super().state_settings, **constant}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Load weights that `get_weights` returned. Without `cfg.learn.auto_alpha`, the temperature stays as it is."""
        is_of_settings = self.being_loaded is not None and "made_with" in self.being_loaded  # then `state_settings` decides
        if not is_of_settings and not self.cfg.learn.auto_alpha and isinstance(weights, Mapping):
            weights = with_own_values(weights, {"log_alpha": self.model.log_alpha}, ["log_alpha"])
        super().set_weights(weights)

    def param_groups(self) -> Mapping[str, tuple[Iterable[nn.Parameter], float]]:
        """The parameters and learning rates of critics, actor and temperature."""
        learn = self.cfg.learn
        rate = learn.learning_rate if learn.learning_rate_alpha is None else learn.learning_rate_alpha
        return {**super().param_groups(), "alpha": ([self.model.log_alpha], rate)}

    def target_source(self) -> nn.Module:
        """The critics. There is no target actor: targets use actions of the current actor."""
        critic: nn.Module = self.model.critic
        return critic

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Compute actions: sampled from the actor if it explores, otherwise the squashed mean."""
        mean, log_std = self.model.actor(obs)
        if explore:
            noise, state = self.draw_noise(mean, state)
            mean = mean + log_std.exp() * noise
        return self.model.bounds(torch.tanh(mean)), state, {}

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The losses of critics, actor and temperature. The gradient of each only reaches its own parameters.

            loss = critic_loss + actor_loss + (temperature_loss if auto_alpha)

        Args:
            batch: obs, next_obs [B, *obs_shape]; action [B, *action_shape] float; reward [B] float; terminated [B] bool;
                discount [B] float for n-step rewards; weight [B] float with prioritised replay, for the loss of the critics.

        Returns:
            The scalar loss; and a dict to log, with critic_loss, actor_loss, alpha, entropy, mean q_value and, if the batch has
            weights, the priority of each row, [B].
        """
        alpha = self.model.log_alpha.detach().exp()
        critic_loss, stats = self.critic_loss(batch, alpha)
        actor_loss, log_prob = self.actor_loss(batch, alpha)
        loss = critic_loss + actor_loss
        if self.cfg.learn.auto_alpha:
            loss = loss + temperature_loss(self.model.log_alpha, log_prob, self.target_entropy)
        return loss, {**stats, "actor_loss": actor_loss.detach(), "alpha": alpha, "entropy": -log_prob.detach().mean()}

    def critic_loss(self, batch: Tree, alpha: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """The loss of the critics: the target is the minimum of both target critics, plus the entropy bonus.

            a'     ~ pi(s')
            target = r + discount * (1 - terminated) * (min_k Q_target_k(s', a') - alpha * log pi(a'|s'))
            loss   = mean(sum_k (target - Q_k(s, a))^2) / 2

        Args:
            batch: see `loss`.
            alpha: temperature, a scalar.

        Returns:
            See `critic_regression`.

        Reference:
            Haarnoja et al. (2018b), https://arxiv.org/abs/1812.05905, eq. 5 and 6, with two critics as in section 6.
        """
        with torch.no_grad():
            next_action, next_log_prob = self.model.actor.sample(batch.next_obs, self.generator)
            next_value = self.target_model(batch.next_obs, next_action).amin(0) - alpha * next_log_prob
        q_value = self.model.critic(batch.obs, self.model.bounds.to_unit(batch.action))
        return critic_regression(q_value, next_value, batch, self.cfg.discount_factor)

    def actor_loss(self, batch: Tree, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of the actor: the negated minimum of both critics for its actions, minus the entropy bonus.

            a    ~ pi(s)
            loss = mean(alpha * log pi(a|s) - min_k Q_k(s, a))

        Args:
            batch: see `loss`.
            alpha: temperature, a scalar.

        Returns:
            The scalar loss, and log pi(a|s), [B].

        Reference:
            Haarnoja et al. (2018b), https://arxiv.org/abs/1812.05905, eq. 7 and 9.
        """
        loss, log_prob = self.actor_row_loss(batch, alpha)
        return loss.mean(), log_prob

    def actor_row_loss(self, batch: Tree, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """The terms of the mean in `actor_loss`, and log pi(a|s); both [B]."""
        action, log_prob = self.model.actor.sample(batch.obs, self.generator)
        q_value = self.model.critic(batch.obs, action, frozen=True).amin(0)
        return alpha * log_prob - q_value, log_prob
