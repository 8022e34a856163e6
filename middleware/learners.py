"""Learners: gradient steps on what was fetched or estimated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any

import torch

from ding_lite.config import DQNConfig, RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import Buffers, has_leaf, is_tree
from ding_lite.engine import contract
from ding_lite.metrics import MetricsLogger
from ding_lite.middleware.arguments import require, require_mode, require_same_algorithm, require_transitions
from ding_lite.middleware.collected import batch_of
from ding_lite.middleware.fetchers import Replay
from ding_lite.middleware.outputs import append_metrics, log_outputs
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
    require_mode(who, policy, "learn_mode", "train_iter", "forward")
    require_same_algorithm(who, cfg, policy)
    metrics = _Metrics(who, policy)

    def learn_once(ctx: AnyRLContext) -> None:
        if ctx.train_data is not None:
            lag = _lag(policy, ctx)
            with metrics.own.log_time(_TIME, reduce="mean"):
                batch = batch_of(ctx.train_data)
                _require_single_steps(who, policy, batch)
                output = _learn(policy, lag, ctx, batch)
                _require_finite(policy)
            metrics.append([output], lag, ctx)

    return learn_once


def _require_single_steps(who: str, policy: LearnMode, batch: Any) -> None:
    """Refuse rewards that are sums of several steps, for a policy that takes each for that of one."""
    if not (is_tree(batch) and has_leaf(batch, "discount")):
        return
    columns = getattr(policy, "columns", None) or ()
    if "reward" in columns and "discount" not in columns:
        raise RuntimeError(
            f"{who} found the column 'discount', which nstep_reward_enhancer adds, and {getattr(policy, 'name', policy)} reads "
            "reward without it: sums of several steps would be taken for rewards of one. Leave nstep_reward_enhancer out."
        )


def _learn(policy: LearnMode, lag: dict[str, torch.Tensor], ctx: AnyRLContext, batch: Any) -> dict[str, Any]:
    """What learning from this batch gave to log, without the lag."""
    before = policy.train_iter
    output = policy.forward(batch)
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

    def append(
        self,
        outputs: Sequence[Mapping[str, Any]],
        lag: Mapping[str, torch.Tensor],
        ctx: AnyRLContext,
        of_rewards: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Append what these gradient steps gave to log, and what the policy's hooks have logged."""
        log_outputs(self.own, outputs)
        log_outputs(self.own, [lag])
        if of_rewards:
            log_outputs(self._rewards, of_rewards)
        append_metrics(
            ctx, "learn_metrics", [one for one in (it.reduce() for it in (self.own, self._hooks, self._rewards)) if one]
        )


def _lag(policy: LearnMode, ctx: AnyRLContext) -> dict[str, torch.Tensor]:
    """How many gradient steps older the weights were that collected this iteration's data than those that learn from it."""
    version = getattr(ctx, "policy_version", -1)
    return {} if version < 0 else {"policy_lag": torch.tensor(float(policy.version - version))}


class OffPolicyLearner:
    """Fetch and learn, `update_per_collect` times.

    A buffer that goes by priority gets the new priorities after each gradient step, before the next batch is drawn, or the next
    but one where the buffer has a `lag`.

    In an asynchronous run, where the policy learns on a GPU, the next batch is made ready while it learns from the present one:
    copied out of the buffer, and moved. That changes no result. Not for buffers that go by priority without a `lag`, nor for
    those made elsewhere.

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
        prefetch: whether the next batch is made ready meanwhile in an asynchronous run; None where the policy learns on a GPU.
    """

    def __init__(
        self,
        cfg: DQNConfig,
        policy: LearnMode,
        buffer_: Buffers,
        reward_model: Any = None,
        prefetch: bool | None = None,
    ) -> None:
        wanted = "policy.learn.update_per_collect"
        require("OffPolicyLearner", cfg, wanted, f"a configuration with {wanted}, such as DQNConfig")
        require_mode("OffPolicyLearner", policy, "learn_mode", "train_iter", "forward")
        require_transitions("OffPolicyLearner", policy)
        require_same_algorithm("OffPolicyLearner", cfg, policy)
        if reward_model is not None:
            require_reward_model("OffPolicyLearner", reward_model)
        if prefetch not in (True, False, None):
            raise TypeError(
                f"OffPolicyLearner(prefetch={prefetch!r}) wants True or False, or None for where the policy learns on a GPU."
            )
        self._policy, self._times = policy, cfg.policy.learn.update_per_collect
        self._reward_model = reward_model
        self._replay = Replay(cfg, buffer_, policy, reward_model, prefetch)
        self._metrics = _Metrics("OffPolicyLearner", policy)
        contract(
            reads=("train_iter",),
            writes=("train_data", "train_output", "train_iter"),
            may_read=("policy_version", "learn_metrics"),
            may_write=("learn_metrics",),
            **self._replay.terms,
            uses=(policy, *(() if reward_model is None else (reward_model,))),
            stage="learn",
        )(self)

    def __call__(self, ctx: OnlineRLContext) -> None:
        train_outputs: list[dict[str, Any]] = []
        outputs: list[dict[str, Any]] = []
        of_rewards: list[Mapping[str, Any]] = []
        lag = _lag(self._policy, ctx)  # as it is before the first of these steps
        begun = perf_counter()
        data: Any = None
        try:
            with closing(self._replay.batches(self._times)) as batches:
                for batch in batches:
                    data, sent = batch
                    if self._reward_model is not None:
                        data, output = estimate_rewards(self._reward_model, data)
                        sent = data
                        of_rewards.append(output)
                    outputs.append(_learn(self._policy, lag, ctx, sent))
                    train_outputs.append(ctx.train_output)
                    self._replay.learned(batch.data, ctx.train_output)
        finally:
            # Once, since what watches over contracts remembers each value, and the memory of a batch is to be used again.
            ctx.train_data = data
        if not outputs:
            return
        _require_finite(self._policy)
        ctx.train_output = train_outputs
        self._metrics.own.log_value(_TIME, perf_counter() - begun)
        self._metrics.append(outputs, lag, ctx, of_rewards)
