"""IMPALA: actor-critic on rollouts of an older policy, with V-trace to correct for the difference.

Espeholt et al. (2018), https://arxiv.org/abs/1802.01561. With an LSTM or attention, the networks are unrolled over each rollout
from the recurrent state that acting had at its first step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ding_lite.basics import ranged_field
from ding_lite.data import Tree, minibatches, nested, tree
from ding_lite.data.trees import first_leaf, has_leaf, map_leaves, merge_leading_dims, with_leaves
from ding_lite.functional import masked_mean, policy_gradient_loss, vtrace
from ding_lite.policy_base import (
    EvalConfig,
    EvaluatorConfig,
    MultiEpochLearnConfig,
    OnPolicyCollectConfig,
    OnPolicyConfig,
    Policy,
    live_from_next_step,
)
from ding_lite.policy_parts import (
    ActorCriticMixin,
    RecurrentActorCriticMixin,
    RecurrentModelConfig,
    RolloutReplay,
    episode_starts,
    mean_stats,
    states_in,
)
from ding_lite.run_configs import OnPolicyRunConfig


@dataclasses.dataclass
class IMPALALearnConfig(MultiEpochLearnConfig):
    """Learning from a rollout."""

    foreign: ClassVar[Mapping[str, str]] = {
        "replay_buffer_num_slots": "the number of kept rollouts is policy.learn.replay_slots."
    }
    live_settings = live_from_next_step("vtrace", "rho_clip", "c_clip")
    fixed_settings = dict.fromkeys(
        ("replay_proportion", "replay_slots"), "the replay of rollouts is made with it: start a new run."
    )

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

    replay_proportion: float = ranged_field(0.0, low=0, high=100_000)
    """Mean number of earlier rollouts to learn from together with each new one, drawn at random; 0 for none."""

    replay_slots: int = ranged_field(16, low=1, high=100_000)
    """With replay_proportion, number of earlier rollouts that are kept, in memory and in saved runs."""


@dataclasses.dataclass
class IMPALAPolicyConfig(OnPolicyConfig):
    """IMPALA."""

    model: RecurrentModelConfig = dataclasses.field(default_factory=RecurrentModelConfig)
    """Actor and critic."""

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


class IMPALAPolicy(RecurrentActorCriticMixin, ActorCriticMixin, Policy):
    """Importance weighted actor-learner, for actions and observations of any space, optionally with an LSTM or attention."""

    config_type = IMPALAPolicyConfig
    cfg: IMPALAPolicyConfig
    loss_takes = "rollouts"
    derived: ClassVar[Mapping[str, tuple[int, ...]]] = {}
    _replay: RolloutReplay | None = None

    def set_up(self) -> None:
        """Make the replay of rollouts, if `cfg.learn.replay_proportion` is set."""
        learn = self.cfg.learn
        if learn.replay_proportion:
            self._replay = RolloutReplay(learn.replay_proportion, learn.replay_slots, self.seed)
            self.attach("rollout_replay", self._replay)

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of actor and critic with V-trace targets, and the entropy bonus.

            loss    = -mean(log pi(a|s) * advantage) + value_weight * vf_loss - entropy_coeff * entropy
            vf_loss = mean((V(s) - vs)^2) / 2; advantage = min(rho_clip, ratio) * (r + gamma * vs' - V(s))

        Args:
            batch: obs, next_obs [T, B, *obs_shape]; action [T, B, *action_shape]; reward, log_prob [T, B] float, log_prob of
                the policy that acted; terminated, truncated [T, B] bool; optionally valid [T, B] bool, False for rows to leave
                out. With an LSTM or attention, state_in_0, state_in_1, ... [1 or T, B, ...], the recurrent state before the
                first step.

        Returns:
            The scalar loss; and a dict to log, with total_loss, policy_loss, vf_loss, entropy, rho_mean, the mean importance
            weight clipped at rho_clip, and kl, the estimated KL divergence from the policy that acted, in nats.

        Reference:
            Espeholt et al. (2018), https://arxiv.org/abs/1802.01561, section 4.2.
        """
        learn, collect = self.cfg.learn, self.cfg.collect
        valid = batch.valid if has_leaf(batch, "valid") else None
        batch = _without_junk(batch, valid) if self.is_recurrent and valid is not None else batch
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
        real = slice(None) if valid is None else valid.flatten()
        obs, action = (
            map_leaves(lambda leaf: merge_leading_dims(leaf)[real], nested(part)) for part in (batch.obs, batch.action)
        )
        if self.is_recurrent:
            state = [element[0] for element in states_in(batch)]
            unrolled = self.model.unroll(nested(batch.obs), state, episode_starts(batch))
            logit, value = (merge_leading_dims(part)[real] for part in unrolled)
        else:
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
        learn, steps, skipped = self.cfg.learn, [], self._skipped
        names = [name for name in (*self.columns_for_loss(batch), "valid") if has_leaf(batch, name)]
        columns = {name: map_leaves(lambda leaf: leaf[:1], batch[name]) if _is_state(name) else batch[name] for name in names}
        mixed = columns if self._replay is None else self._replay.mix(columns)
        num_steps, num_envs = len(batch.reward), first_leaf(mixed).shape[1]
        envs = min(num_envs, max(1, round(learn.batch_size / max(1, num_steps))))
        for _ in range(learn.epoch_per_collect):
            if envs == num_envs:
                steps.append(self.gradient_step(tree(mixed)))
                continue
            by_env = {name: map_leaves(lambda leaf: leaf.swapaxes(0, 1), nested(leaf)) for name, leaf in mixed.items()}
            for part in minibatches(by_env, envs, self.generator):
                steps.append(self.gradient_step(map_leaves(lambda leaf: leaf.swapaxes(0, 1), part)))
        if self._replay is not None and self._skipped == skipped:  # otherwise it may hold numbers that are not finite
            self._replay.push(columns)
        return {**mean_stats(steps), **self.stats(batch)}


def _is_state(name: str) -> bool:
    return name.startswith("state_in_")


def _without_junk(batch: Tree, valid: Tensor) -> Tree:
    """A rollout in which rows that are not `valid` have the observations of another row, because the unroll reads all rows."""
    step = [int(index) for index in valid.nonzero()[0]] if valid.any() else [0, 0]

    def filled(leaf: Tensor) -> Tensor:
        return torch.where(valid.view(*valid.shape, *[1] * (leaf.ndim - 2)), leaf, leaf[step[0], step[1]])

    def started(leaf: Tensor) -> Tensor:
        return torch.where(valid[:1].view(1, -1, *[1] * (leaf.ndim - 2)), leaf[:1], torch.zeros_like(leaf[:1]))

    columns = {name: map_leaves(filled, nested(batch[name])) for name in ("obs", "next_obs")}
    states = {f"state_in_{index}": started(element) for index, element in enumerate(states_in(batch))}
    return with_leaves(batch, **columns, **states)
