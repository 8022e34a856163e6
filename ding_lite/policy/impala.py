"""IMPALA: actor-critic on rollouts of an older policy, with V-trace to correct for the difference.

Espeholt et al. (2018), https://arxiv.org/abs/1802.01561.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ding_lite.basics import ranged_field
from ding_lite.data import Tree, has_leaf, map_leaves, merge_lead, minibatches, nested, tree
from ding_lite.functional import masked_mean, policy_gradient_loss, vtrace
from ding_lite.policy_base import EpochsLearnConfig, EvalConfig, EvaluatorConfig, OnPolicyCollectConfig, OnPolicyConfig, Policy
from ding_lite.policy_parts import ActorCriticLearning, mean_stats
from ding_lite.run_configs import OnPolicyRunConfig


@dataclasses.dataclass
class IMPALALearnConfig(EpochsLearnConfig):
    """Learning from a rollout."""

    epoch_per_collect: int = ranged_field(1, low=1, high=1_000_000)
    """Epochs over each rollout."""

    batch_size: int = ranged_field(512, low=1, high=10_000_000)
    """Transitions per gradient step, rounded to whole environments, which are drawn at random; at most the rollout."""

    vtrace: bool = True
    """Correct for the difference to the policy that acted. False uses importance weights of 1."""

    rho_clip: float = ranged_field(1.0, low=0, finite=False)
    """Upper limit of importance weights in targets and in the policy gradient (rho bar in the paper)."""

    c_clip: float = ranged_field(1.0, low=0, finite=False)
    """Upper limit of importance weights in the trace (c bar in the paper)."""


@dataclasses.dataclass
class IMPALAPolicyConfig(OnPolicyConfig):
    """IMPALA."""

    learn: IMPALALearnConfig = dataclasses.field(
        default_factory=lambda: IMPALALearnConfig(epoch_per_collect=2, learning_rate=3e-4, entropy_weight=0.01)
    )
    """Learning."""

    collect: OnPolicyCollectConfig = dataclasses.field(default_factory=lambda: OnPolicyCollectConfig(n_sample=256))
    """Collection and advantage estimation."""

    eval: EvalConfig = dataclasses.field(default_factory=lambda: EvalConfig(EvaluatorConfig(eval_freq=40)))
    """Evaluation."""


@dataclasses.dataclass
class IMPALAConfig(OnPolicyRunConfig):
    """IMPALA."""

    exp_name: str = "runs/impala"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(1000, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    policy: IMPALAPolicyConfig = dataclasses.field(default_factory=IMPALAPolicyConfig)
    """The algorithm."""


class IMPALAPolicy(ActorCriticLearning, Policy):
    """Importance weighted actor-learner, for actions and observations of any space."""

    config_type = IMPALAPolicyConfig
    cfg: IMPALAPolicyConfig
    loss_takes = "rollouts"
    derived: ClassVar[Mapping[str, tuple[int, ...]]] = {}

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of actor and critic with V-trace targets, and the entropy bonus.

            loss    = -mean(log pi(a|s) * advantage) + value_weight * vf_loss - entropy_coeff * entropy
            vf_loss = mean((V(s) - vs)^2) / 2; advantage = min(rho_clip, ratio) * (r + gamma * vs' - V(s))

        Args:
            batch: obs, next_obs [T, B, *obs_shape]; action [T, B, *action_shape]; reward, log_prob [T, B] float, log_prob of
                the policy that acted; terminated, truncated [T, B] bool; optionally valid [T, B] bool, False for rows to leave
                out.

        Returns:
            The scalar loss; and a dict to log, with total_loss, policy_loss, vf_loss, entropy, rho_mean, the mean importance
            weight clipped at rho_clip, and kl, the estimated KL divergence from the policy that acted, in nats.

        Reference:
            Espeholt et al. (2018), https://arxiv.org/abs/1802.01561, section 4.2.
        """
        learn, collect = self.cfg.learn, self.cfg.collect
        valid = batch.valid if has_leaf(batch, "valid") else None
        value, log_prob, entropy = self.evaluate(batch, valid)
        log_ratio = log_prob.detach() - batch.log_prob
        target, advantage = vtrace(
            log_ratio if learn.vtrace else torch.zeros_like(log_ratio),
            batch.reward,
            value,
            self.next_values(batch, value),
            batch.terminated,
            batch.truncated,
            gamma=collect.discount_factor,
            lambda_=collect.gae_lambda,
            rho_clip=learn.rho_clip,
            c_clip=learn.c_clip,
            pg_rho_clip=learn.rho_clip,
        )
        policy_loss = policy_gradient_loss(log_prob, self.advantages(advantage, valid), valid)
        vf_loss = 0.5 * masked_mean((value - target).square(), valid)
        rho_mean = masked_mean(log_ratio.exp().clamp(max=learn.rho_clip), valid)
        kl = masked_mean(log_ratio.expm1() - log_ratio, valid)
        return self.actor_critic_loss(policy_loss, vf_loss, masked_mean(entropy, valid), rho_mean=rho_mean, kl=kl)

    def evaluate(self, batch: Tree, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Compute V(s), log pi(a|s) and the entropy of pi, each [T, B]. Rows that are not `valid` are 0."""
        obs, action = (map_leaves(merge_lead, nested(part)) for part in (batch.obs, batch.action))
        if valid is not None:
            obs, action = (map_leaves(lambda leaf: leaf[valid.flatten()], part) for part in (obs, action))
        logit, value = self.model(obs)
        found = value, *self.model.distribution.evaluate(logit, action)
        shape = batch.reward.shape
        if valid is None:
            return tuple(x.reshape(shape) for x in found)
        return tuple(x.new_zeros(shape).masked_scatter(valid, x) for x in found)

    def learn_on_batch(self, batch: Tree) -> dict[str, Any]:
        """Learn from a rollout in epochs. Each gradient step takes all steps of some environments, or of all.

        Args:
            batch: see `loss`.

        Returns:
            The means of the statistics of `loss` over all gradient steps, and the result of `stats`.
        """
        learn, steps = self.cfg.learn, []
        columns = {name: batch[name] for name in (*self.columns_for_loss(batch), "valid") if has_leaf(batch, name)}
        num_steps, num_envs = batch.reward.shape
        envs = min(num_envs, max(1, round(learn.batch_size / max(1, num_steps))))
        for _ in range(learn.epoch_per_collect):
            if envs == num_envs:
                steps.append(self.gradient_step(tree(columns)))
                continue
            by_env = {name: map_leaves(lambda leaf: leaf.transpose(0, 1), nested(leaf)) for name, leaf in columns.items()}
            for part in minibatches(by_env, envs, self.generator):
                steps.append(self.gradient_step(map_leaves(lambda leaf: leaf.transpose(0, 1), part)))
        return {**mean_stats(steps), **self.stats(batch)}
