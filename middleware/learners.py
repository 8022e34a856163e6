"""Learners: gradient steps on what was fetched or estimated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch

from ding_lite.config import DQNConfig, RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import Buffers
from ding_lite.engine import contract, engaged
from ding_lite.metrics import MetricsLogger
from ding_lite.middleware.arguments import require, require_face, require_same_algorithm, require_transitions
from ding_lite.middleware.fetchers import drawing, offpolicy_data_fetcher
from ding_lite.middleware.gatherings import batch_of
from ding_lite.middleware.outputs import hand_over, log_outputs
from ding_lite.middleware.rewards import estimate_rewards, require_reward_model
from ding_lite.policy import LearnMode

AnyRLContext = OnlineRLContext | OfflineRLContext

_TIME = ("time", "learn")
_TOUCHES: Any = {
    "reads": ("train_data", "train_iter"),
    "writes": ("train_output", "train_iter"),
    "may_read": ("policy_version", "learn_metrics"),
    "may_write": ("learn_metrics",),
}


def trainer(cfg: RunConfig, policy: LearnMode) -> Callable[[AnyRLContext], None]:
    """Learn from one batch. Does nothing where there is none yet.

    Reads:
        ctx.train_data: what the policy's loss wants; ctx.train_iter.
    Writes:
        ctx.train_output: what to log, scalar tensors by name, and priority [B] where rows were drawn by priority; policy_lag is
            how many gradient steps older the weights were that collected this iteration's data, where it was collected.
        ctx.train_iter: gradient steps counted on.
        ctx.learn_metrics: the same, seconds, and what the policy's hooks logged; where the context has it.

    Args:
        cfg: nothing of it; in the seed's place.
        policy: learns.
    """
    learn_once = _learning("trainer", cfg, policy)

    @contract(**_TOUCHES, uses=(policy,), stage="learn")
    def train(ctx: AnyRLContext) -> None:
        learn_once(ctx)

    return train


def multistep_trainer(cfg: RunConfig, policy: LearnMode) -> Callable[[AnyRLContext], None]:
    """Learn from a rollout in several epochs of minibatches, as the policy does that.

    Reads:
        ctx.train_data: what the policy's loss wants, [T, B, ...]; ctx.train_iter.
    Writes:
        ctx.train_output: what to log, means over all gradient steps, scalar tensors by name.
        ctx.train_iter: gradient steps counted on.
        ctx.learn_metrics: the same, seconds, and what the policy's hooks logged; where the context has it.

    Args:
        cfg: nothing of it; in the seed's place.
        policy: learns; its own configuration says how many epochs, and of what size the minibatches are.
    """
    learn_once = _learning("multistep_trainer", cfg, policy)

    @contract(**_TOUCHES, uses=(policy,), stage="learn")
    def train(ctx: AnyRLContext) -> None:
        learn_once(ctx)

    return train


def _learning(who: str, cfg: object, policy: LearnMode) -> Callable[[AnyRLContext], None]:
    """What both trainers do; they differ in what the policy makes of a batch."""
    if isinstance(cfg, LearnMode):
        raise TypeError(
            f"{who} wants policy.learn_mode, got {policy!r:.80} of type {type(policy).__name__}, and policy.learn_mode in the "
            f"place of the configuration: write {who}(cfg, policy.learn_mode). How often a run logs says "
            "online_logger(cfg, train_show_freq=...)."
        )
    require_face(who, policy, "learn_mode", "train_iter", "forward")
    require_same_algorithm(who, cfg, policy)
    metrics = _Metrics(who, policy)

    def learn_once(ctx: AnyRLContext) -> None:
        if ctx.train_data is not None:
            lag = _lag(policy, ctx)
            with metrics.own.log_time(_TIME, reduce="mean"):
                output = _learn(policy, lag, ctx)
                _require_finite(policy)
            metrics.hand_over([output], lag, ctx)

    return learn_once


def _learn(policy: LearnMode, lag: dict[str, torch.Tensor], ctx: AnyRLContext) -> dict[str, Any]:
    """What learning gave to log, without the lag."""
    before = policy.train_iter
    output = policy.forward(batch_of(ctx.train_data))
    ctx.train_output = {**output, **lag}
    ctx.train_iter += policy.train_iter - before
    return output


def _require_finite(policy: LearnMode) -> None:
    """Refuse weights that the last gradient step spoiled, before this iteration is saved; a policy made elsewhere need not."""
    if hasattr(policy, "require_finite"):
        policy.require_finite()


class _Metrics:
    """What a learner logs itself, what the policy's hooks do, and what a reward model does: three owners of names."""

    def __init__(self, who: str, policy: LearnMode) -> None:
        hooks = getattr(policy, "metrics", None)  # a policy made elsewhere has none
        self._hooks = hooks if isinstance(hooks, MetricsLogger) else MetricsLogger()
        self.own = MetricsLogger(owner=f"{who}, which learns by {self._hooks.owner}" if self._hooks.owner else who)
        self._rewards = MetricsLogger(owner="the reward model")

    def hand_over(
        self,
        outputs: Sequence[Mapping[str, Any]],
        lag: Mapping[str, torch.Tensor],
        ctx: AnyRLContext,
        of_rewards: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Hand over what these gradient steps gave to log, and what the policy's hooks have logged."""
        log_outputs(self.own, outputs)
        log_outputs(self.own, [lag])
        if of_rewards:
            log_outputs(self._rewards, of_rewards)
        hand_over(ctx, "learn_metrics", [one for one in (it.reduce() for it in (self.own, self._hooks, self._rewards)) if one])


def _lag(policy: LearnMode, ctx: AnyRLContext) -> dict[str, torch.Tensor]:
    """How many gradient steps older the weights were that collected this iteration's data than those that learn from it."""
    version = getattr(ctx, "policy_version", -1)
    return {} if version < 0 else {"policy_lag": torch.tensor(float(policy.version - version))}


class OffPolicyLearner:
    """Fetch and learn, `update_per_collect` times.

    A buffer that goes by priority gets the new priorities after each gradient step, before the next batch is drawn.

    Reads:
        ctx.train_iter.
    Writes:
        ctx.train_data: the last batch; None while there are too few transitions to begin.
        ctx.train_output: what to log, one dict of tensors a gradient step; policy_lag is that of the first.
        ctx.train_iter: gradient steps counted on.
        ctx.learn_metrics: the same, seconds, and what the policy's hooks and the reward model logged.

    Args:
        cfg: uses policy.learn.update_per_collect, and what offpolicy_data_fetcher uses.
        policy: learns.
        buffer_: sampled for each gradient step; several as offpolicy_data_fetcher takes them.
        reward_model: learns from each batch, and says what its steps earned, before the policy learns; see reward_estimator.
    """

    def __init__(self, cfg: DQNConfig, policy: LearnMode, buffer_: Buffers, reward_model: Any = None) -> None:
        wanted = "policy.learn.update_per_collect"
        require("OffPolicyLearner", cfg, wanted, f"a configuration with {wanted}, such as DQNConfig")
        require_face("OffPolicyLearner", policy, "learn_mode", "train_iter", "forward")
        require_transitions("OffPolicyLearner", policy)
        require_same_algorithm("OffPolicyLearner", cfg, policy)
        if reward_model is not None:
            require_reward_model("OffPolicyLearner", reward_model)
        self._policy, self._times = policy, cfg.policy.learn.update_per_collect
        self._reward_model = reward_model
        self._fetch = offpolicy_data_fetcher(cfg, buffer_, policy, reward_model)
        self._metrics = _Metrics("OffPolicyLearner", policy)
        contract(
            reads=("train_iter",),
            writes=("train_data", "train_output", "train_iter"),
            may_read=("policy_version", "learn_metrics"),
            may_write=("learn_metrics",),
            **drawing(cfg, buffer_),
            uses=(policy, *(() if reward_model is None else (reward_model,))),
            stage="learn",
        )(self)

    def __call__(self, ctx: OnlineRLContext) -> None:
        outputs: list[dict[str, Any]] = []
        told: list[dict[str, Any]] = []
        of_rewards: list[Mapping[str, Any]] = []
        lag = _lag(self._policy, ctx)  # as it is before the first of these steps
        begun = perf_counter()
        for _ in range(self._times):
            with engaged(self._fetch, ctx):
                if ctx.train_data is None:
                    return
                if self._reward_model is not None:
                    ctx.train_data, output = estimate_rewards(self._reward_model, ctx.train_data)
                    of_rewards.append(output)
                outputs.append(_learn(self._policy, lag, ctx))
            told.append(ctx.train_output)
        _require_finite(self._policy)
        ctx.train_output = told
        self._metrics.own.log_value(_TIME, perf_counter() - begun)
        self._metrics.hand_over(outputs, lag, ctx, of_rewards)
