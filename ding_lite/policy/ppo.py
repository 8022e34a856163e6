"""PPO: several epochs on fresh rollouts, each step clipped so that the policy stays near the one that collected them.

Schulman et al. (2017), https://arxiv.org/abs/1707.06347, with the details of Huang et al. (2022), "The 37 Implementation
Details of Proximal Policy Optimization".

Room: ding_lite.policy, floor 3. Imports nn, functional, data and the engine.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ding_lite.data import Tree, first_leaf, map_leaves, minibatches, nested, rollout_rows, with_leaves
from ding_lite.engine import bounded
from ding_lite.functional import explained_variance, ppo_policy_loss, ppo_value_loss
from ding_lite.nn import ActionDistribution, action_distribution, make_network, orthogonal
from ding_lite.policy.configs import CollectConfig, EvalConfig, EvaluatorConfig, LearnConfig, ModelConfig, PolicyConfig
from ding_lite.policy.policies import Policy

_COLUMNS = ("obs", "action", "log_prob", "value", "return_", "advantage")


@dataclasses.dataclass
class PPOModelConfig(ModelConfig):
    """Actor and critic."""

    encoder_hidden_size_list: list[int] = dataclasses.field(default_factory=lambda: [64, 64])
    """Width of each hidden layer."""

    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "tanh"
    """After each hidden layer."""

    share_encoder: bool = False
    """One encoder for both; for images."""


@dataclasses.dataclass
class PPOLearnConfig(LearnConfig):
    """Learning from a rollout."""

    epoch_per_collect: int = bounded(10, low=1)
    """Passes over each rollout."""

    batch_size: int = bounded(128, low=1)
    """Transitions a gradient step."""

    learning_rate: float = bounded(1e-3, low=0)
    """Of Adam, at the start."""

    lr_anneal_iter: int | None = bounded(None, low=1)
    """Gradient steps over which the learning rate falls linearly to 0; None keeps it."""

    clip_ratio: float = bounded(0.2, low=0, high=1)
    """How far the probability ratio counts, either way from 1."""

    value_clip: float | None = bounded(None, low=0)
    """How far the critic's value may move in one rollout's learning, in units of return; None for no limit."""

    value_weight: float = bounded(0.5, low=0)
    """Of the critic's loss."""

    entropy_weight: float = bounded(0.0, low=0)
    """Of the entropy bonus."""

    adv_norm: bool = True
    """Give the advantages of each minibatch mean 0 and standard deviation 1."""

    target_kl: float | None = bounded(None, low=0)
    """Stop the epochs when the policy has moved this far, in nats; None for never."""

    grad_clip_norm: float | None = bounded(0.5, low=0)
    """Largest norm of the gradient; None for no clipping."""


@dataclasses.dataclass
class PPOCollectConfig(CollectConfig):
    """Collecting, and judging what was collected."""

    n_sample: int = bounded(512, low=1)
    """Transitions a rollout, rounded up to whole steps of all environments."""

    discount_factor: float = bounded(0.99, low=0, high=1)
    """gamma, a step."""

    gae_lambda: float = bounded(0.95, low=0, high=1)
    """lambda of the advantage estimator: 0 trusts the critic, 1 the rewards seen."""


@dataclasses.dataclass
class PPOPolicyConfig(PolicyConfig):
    """PPO."""

    model: PPOModelConfig = dataclasses.field(default_factory=PPOModelConfig)
    """Actor and critic."""

    learn: PPOLearnConfig = dataclasses.field(default_factory=PPOLearnConfig)
    """Learning."""

    collect: PPOCollectConfig = dataclasses.field(default_factory=PPOCollectConfig)
    """Collecting."""

    eval: EvalConfig = dataclasses.field(default_factory=lambda: EvalConfig(EvaluatorConfig(eval_freq=100)))
    """Evaluation."""


class ActorCritic(nn.Module):
    """A distribution over actions and a value, from observations."""

    distribution: ActionDistribution

    def __init__(
        self, actor: nn.Module, critic: nn.Module, distribution: ActionDistribution, encoder: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.actor, self.critic, self.distribution, self.encoder = actor, critic, distribution, encoder

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Logit [B, width] and value [B]."""
        features = self._features(obs)
        return self.actor(features), self.critic(features).squeeze(-1)

    def logits(self, obs: Any) -> Tensor:
        """What the distribution over actions is made from, [B, width]."""
        return self.actor(self._features(obs))  # type: ignore[no-any-return]

    def values(self, obs: Any) -> Tensor:
        """V(obs) [B]."""
        return self.critic(self._features(obs)).squeeze(-1)  # type: ignore[no-any-return]

    def _features(self, obs: Any) -> Any:
        return obs if self.encoder is None else self.encoder(obs)


class PPOPolicy(Policy):
    """Proximal policy optimization, for actions and observations of any space."""

    config_type = PPOPolicyConfig
    cfg: PPOPolicyConfig
    model: ActorCritic

    def make_model(self) -> ActorCritic:
        """Orthogonal weights; the last layers such that actions are nearly uniform and values small at the start."""
        model, space = self.cfg.model, self.observation_space
        distribution = action_distribution(self.action_space)
        sizes, options = model.encoder_hidden_size_list, (model.activation, model.conv_layers)
        if model.share_encoder:
            encoder = orthogonal(make_network(space, sizes, None, *options))
            actor = orthogonal(nn.Linear(sizes[-1], distribution.width), 0.01)
            return ActorCritic(actor, orthogonal(nn.Linear(sizes[-1], 1), 1.0), distribution, encoder)
        actor = orthogonal(make_network(space, sizes, distribution.width, *options), last_gain=0.01)
        critic = orthogonal(make_network(space, sizes, 1, *options), last_gain=1.0)
        return ActorCritic(actor, critic, distribution)

    def compute_actions(
        self, obs: Any, state: Any = None, *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """An action drawn from the policy, with its log_prob; or the most probable one."""
        logit = self.model.logits(obs)
        if not explore:
            return self.model.distribution.mode(logit), state, {}
        action, log_prob = self.model.distribution.sample(logit, self.generator)
        return action, state, {"log_prob": log_prob}

    @torch.no_grad()
    def with_values(self, batch: Tree) -> Tree:
        """A rollout with value = V(obs) and next_value = V(next_obs), [T, B], by the newest critic.

        Between two steps of one episode next_obs is the next row's obs, so only the last row, and rows that were cut by a
        time limit, need a second look.
        """
        value = self._values(batch.obs)
        next_value = torch.cat([value[1:], self._values(map_leaves(lambda leaf: leaf[-1:], batch.next_obs))])
        cut = batch.truncated.to(self.device).clone()
        cut[-1] = False
        if cut.any():
            places = cut.cpu().nonzero(as_tuple=True)
            next_value[cut] = self._values(map_leaves(lambda leaf: leaf[places].unsqueeze(0), batch.next_obs)).squeeze(0)
        return with_leaves(batch, value=value.to(batch.reward.device), next_value=next_value.to(batch.reward.device))

    def _values(self, obs: Any) -> Tensor:
        """V of observations [T, B, ...], as [T, B]."""
        lead = first_leaf(obs).shape[:2]
        flat = map_leaves(lambda leaf: leaf.flatten(0, 1).to(self.device), nested(obs))
        return self.model.values(flat).reshape(lead)

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """The clipped surrogate, the critic's error, and the entropy bonus.

            loss = policy_loss + value_weight * vf_loss - entropy_weight * entropy

        Args:
            batch: obs [B, *obs_shape]; action [B, *action_shape]; log_prob, advantage, value, return_ [B] float.

        Returns:
            The scalar loss, and total_loss, policy_loss, vf_loss, entropy, kl and clip_frac to log.

        Reference:
            Schulman et al. (2017), https://arxiv.org/abs/1707.06347, eq. 9.
        """
        learn = self.cfg.learn
        logit, value = self.model(batch.obs)
        log_prob, entropy = self.model.distribution.evaluate(logit, batch.action)
        advantage = batch.advantage
        if learn.adv_norm and len(advantage) > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss, log_ratio = ppo_policy_loss(log_prob, batch.log_prob, advantage, clip_ratio=learn.clip_ratio)
        vf_loss = ppo_value_loss(value, batch.value, batch.return_, value_clip=learn.value_clip)
        entropy = entropy.mean()
        loss = policy_loss + learn.value_weight * vf_loss - learn.entropy_weight * entropy
        with torch.no_grad():
            # The estimator k3 of http://joschu.net/blog/kl-approx.html: unbiased, never negative.
            moved = log_ratio.expm1()
            kl = (moved - log_ratio).mean()
            clip_frac = (moved.abs() > learn.clip_ratio).float().mean()
        parts = {"policy_loss": policy_loss, "vf_loss": vf_loss, "entropy": entropy, "kl": kl, "clip_frac": clip_frac}
        return loss, {"total_loss": loss.detach(), **{name: part.detach() for name, part in parts.items()}}

    def learn_on_batch(self, batch: Tree) -> dict[str, Tensor]:
        """Epochs of shuffled minibatches over a rollout.

        Args:
            batch: as for `loss`, but [T, B, ...]; `valid` [T, B] bool, where steps are to be left out.

        Returns:
            The mean over all gradient steps of what `loss` gives to log, and `stats`.
        """
        learn = self.cfg.learn
        self._anneal()
        rows = rollout_rows(batch, _COLUMNS)
        steps: list[dict[str, Tensor]] = []
        for _ in range(learn.epoch_per_collect):
            steps += [self.gradient_step(part) for part in minibatches(rows, learn.batch_size, self.generator)]
            if learn.target_kl is not None and float(steps[-1]["kl"]) > learn.target_kl:
                break
        means = {name: torch.stack([step[name] for step in steps]).mean() for name in steps[0]}
        return {**means, **self.stats(batch)}

    def stats(self, batch: Tree) -> dict[str, Tensor]:
        """How well the critic knew this rollout, and the learning rate."""
        rate = torch.tensor(self.optimizer.param_groups[0]["lr"])
        rows = rollout_rows(batch, ("value", "return_"))
        return {"vf_explained_var": explained_variance(rows["value"], rows["return_"]), "cur_lr": rate}

    def _anneal(self) -> None:
        steps = self.cfg.learn.lr_anneal_iter
        if steps is not None:
            rate = self.cfg.learn.learning_rate * max(0.0, 1 - self.train_iter / steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
