"""Learners: gradient steps on the training data of an iteration."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from time import perf_counter
from typing import Any

import torch

from ding_lite.basics import base_state, foreign_arguments
from ding_lite.config import RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext, TrainOutput
from ding_lite.data import Buffers
from ding_lite.data.trees import has_leaf, is_tree
from ding_lite.engine import contract
from ding_lite.metrics import MetricsLogger
from ding_lite.metrics.outputs import Outputs, append_metrics
from ding_lite.metrics.reserved_names import LEARNING, require_own_names
from ding_lite.middleware.arguments import (
    policy_settings,
    require,
    require_mode,
    require_same_algorithm,
    require_transitions,
    warn_of_later_settings,
    warn_of_other_settings,
)
from ding_lite.middleware.collected import batch_of
from ding_lite.middleware.fetchers import Replay
from ding_lite.middleware.foreign_names import ARGUMENTS
from ding_lite.middleware.own_runs import own_run
from ding_lite.middleware.rewards import estimate_rewards, require_reward_model
from ding_lite.policy import LearnMode
from ding_lite.ranks import in_all_ranks

AnyRLContext = OnlineRLContext | OfflineRLContext

_TIME = ("time", "learn")


@foreign_arguments(ARGUMENTS["trainer"])
def trainer(cfg: RunConfig, policy: LearnMode) -> Callable[[AnyRLContext], None]:
    """Learn from one batch. Does nothing while there is no batch; nor, in a data-parallel run, while a process has none.

    Reads:
        ctx.train_data: the batch for the policy's loss; ctx.train_iter.
    Writes:
        ctx.train_output: values to log, scalar tensors by name; priority [B] for prioritised replay; and policy_lag, the number
            of versions by which the weights that collected this iteration's data are older, usually gradient steps.
        ctx.train_iter: incremented by the gradient steps.
        ctx.learn_metrics: the same values, seconds, and the metrics that the policy's hooks logged; if the context has this
            field.

    Args:
        cfg: the configuration of the run; only checked to be of the policy's algorithm.
        policy: policy.learn_mode.
    """
    return _trainer("trainer", cfg, policy)


@foreign_arguments(ARGUMENTS["multistep_trainer"])
def multistep_trainer(cfg: RunConfig, policy: LearnMode) -> Callable[[AnyRLContext], None]:
    """Learn from a rollout, in as many gradient steps as the policy takes, such as PPO's epochs of minibatches.

    Reads:
        ctx.train_data: the batch for the policy's loss, [T, B, ...]; ctx.train_iter.
    Writes:
        ctx.train_output: values to log, means over all gradient steps, scalar tensors by name.
        ctx.train_iter: incremented by the gradient steps.
        ctx.learn_metrics: the same values, seconds, and the metrics that the policy's hooks logged; if the context has this
            field.

    Args:
        cfg: the configuration of the run; only checked to be of the policy's algorithm.
        policy: policy.learn_mode; its configuration sets the number of epochs and the size of minibatches.
    """
    return _trainer("multistep_trainer", cfg, policy)


def _trainer(name: str, cfg: object, policy: LearnMode) -> Callable[[AnyRLContext], None]:
    """What both trainers do with ctx.train_data; the policy decides how many gradient steps it takes."""
    if isinstance(cfg, LearnMode):
        raise TypeError(
            f"{name} wants policy.learn_mode, got {policy!r:.80} of type {type(policy).__name__}, and policy.learn_mode "
            f"instead of the configuration: write {name}(cfg, policy.learn_mode). To set how often a run logs, use "
            "online_logger(cfg, train_show_freq=...)."
        )
    require_mode(name, policy, "learn_mode", "train_iter", "forward")
    require_same_algorithm(name, cfg, policy)
    metrics = _Metrics(name, policy)

    @contract(
        reads=("train_data", "train_iter"),
        writes=("train_output", "train_iter"),
        may_read=("policy_version", "learn_metrics"),
        may_write=("learn_metrics",),
        uses=(policy,),
        stage="learn",
    )
    def train(ctx: AnyRLContext) -> None:
        if not in_all_ranks("learning", ctx.train_data is not None):
            return
        batch = batch_of(ctx.train_data)
        _require_single_steps(name, policy, batch)
        lag, before = _lag(policy, ctx), policy.train_iter
        with metrics.own.log_time(_TIME, reduce="mean"):
            output = TrainOutput([{**policy.forward(batch)}])
            output.num_steps = [_num_steps(policy)]
            ctx.train_iter += policy.train_iter - before
            _require_finite(policy)
        metrics.append(ctx, output, lag, policy.train_iter - before)

    train.__dict__.update(begin_run=partial(_warn_of_settings, name, policy), data_wanted=getattr(policy, "data_wanted", None))
    train.__qualname__ = f"{name}.<locals>.train"  # its name in messages
    return train


def _warn_of_settings(who: str, policy: LearnMode) -> None:
    """Warn before a run of settings without effect."""
    warn_of_later_settings(who, policy)
    if isinstance(policy, LearnMode) and (found := policy.idle_batch_size(own_run().middleware_objects())):
        warnings.warn(found, stacklevel=2)


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


def _require_finite(policy: LearnMode) -> None:
    """Refuse weights that are not finite before this iteration is saved; policies of other libraries are not checked."""
    if hasattr(policy, "require_finite"):
        policy.require_finite()


class _Metrics:
    """The metrics of a learner, of the policy's hooks and of a reward model; each owns its names."""

    def __init__(self, who: str, policy: LearnMode) -> None:
        self._policy = policy
        hooks = getattr(policy, "metrics", None)  # a policy of another library has none
        self._hooks = hooks if isinstance(hooks, MetricsLogger) else MetricsLogger()
        self.own = MetricsLogger(owner=f"{who}, which learns by {self._hooks.owner}" if self._hooks.owner else who)
        self._rewards = MetricsLogger(owner="the reward model")
        self._outputs, self._reward_outputs = Outputs(self.own), Outputs(self._rewards)

    def append(
        self,
        ctx: AnyRLContext,
        output: TrainOutput,
        lag: Mapping[str, Any],
        steps: int,
        of_rewards: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Set ctx.train_output, and append its values, the number of gradient steps, and the metrics of the policy's hooks to
        the context.

        Args:
            ctx: the context.
            output: what the policy returned.
            lag: the lag of the data, which each dict of the output gets.
            steps: number of gradient steps.
            of_rewards: what a reward model returned.

        Raises:
            ValueError: the policy returned a name that the learner uses itself.
        """
        for step in output:
            if not LEARNING.isdisjoint(step):
                require_own_names(f"{getattr(self._policy, 'name', type(self._policy).__name__)} returns", step, LEARNING)
            step.update(lag)
        self.own.log_value("gradient_steps", steps, reduce="sum", with_throughput=True)
        self._outputs.log(output, num_steps=output.num_steps)
        reduced = [self.own.reduce(), self._hooks.reduce()]
        if of_rewards:
            self._reward_outputs.log(of_rewards)
            reduced.append(self._rewards.reduce())
        output.is_logged = append_metrics(ctx, "learn_metrics", [one for one in reduced if one])
        ctx.train_output = output


def _num_steps(policy: LearnMode) -> Mapping[str, int]:
    """The number of gradient steps that each value of the last `forward` is the mean of."""
    return getattr(policy, "num_steps", {})  # a policy of another library has none


def _lag(policy: LearnMode, ctx: AnyRLContext) -> dict[str, torch.Tensor]:
    """The difference of versions between the weights that learn from this iteration's data and those that collected it."""
    version = getattr(ctx, "policy_version", -1)
    return {} if version < 0 else {"policy_lag": torch.tensor(float(policy.version - version))}


class OffPolicyLearner:
    """Sample a batch and learn from it, `update_per_collect` times.

    A prioritised buffer gets the new priorities after each gradient step, before the next batch is drawn; with a `lag` of the
    buffer, one batch later.

    In an asynchronous run, if the policy learns on a GPU, the next batch is copied and moved to the device while the policy
    learns from the current one. The result is the same. Prioritised buffers without a `lag`, and buffers of other libraries,
    are not prefetched, and by default neither are batches for a `reward_model`.

    Reads:
        ctx.train_iter.
    Writes:
        ctx.train_data: the last batch; None while there are too few transitions.
        ctx.train_output: values to log, one dict of tensors per gradient step; policy_lag is that of the first step.
        ctx.train_iter: incremented by the gradient steps.
        ctx.learn_metrics: the same values, seconds, and the metrics of the policy's hooks and of the reward model.

    Args:
        cfg: uses policy.learn.update_per_collect, and the settings of offpolicy_data_fetcher.
        policy: policy.learn_mode.
        buffer_: replay buffer, or several as for offpolicy_data_fetcher; sampled for each gradient step.
        reward_model: learns from each batch and replaces its rewards, those of single steps, before the policy learns; see
            reward_estimator.
        prefetch: whether to prepare the next batch meanwhile in an asynchronous run; by default (None), only if the policy
            learns on a GPU and there is no reward model.
    """

    @foreign_arguments(ARGUMENTS["OffPolicyLearner"])
    def __init__(
        self,
        cfg: RunConfig,
        policy: LearnMode,
        buffer_: Buffers,
        reward_model: Any = None,
        prefetch: bool | None = None,
    ) -> None:
        who, wanted = type(self).__name__, "policy.learn.update_per_collect"
        require(who, cfg, wanted, f"a configuration with {wanted}, such as DQNConfig")
        require_mode(who, policy, "learn_mode", "train_iter", "forward")
        require_transitions(who, policy)
        require_same_algorithm(who, cfg, policy)
        warn_of_other_settings(who, cfg, policy, "learn.update_per_collect")
        if reward_model is not None:
            require_reward_model(who, reward_model)
        if prefetch not in (True, False, None):
            raise TypeError(f"{who}(prefetch={prefetch!r}) wants True, False, or None for True if the policy learns on a GPU.")
        self._policy, self._cfg, self._settings = policy, cfg, policy_settings(cfg).learn
        self.data_wanted = getattr(policy, "data_wanted", None)
        self._reward_model = reward_model
        self._replay = Replay(cfg, buffer_, policy, reward_model, prefetch, who)
        self._metrics = _Metrics(who, policy)
        contract(
            reads=("train_iter",),
            writes=("train_data", "train_output", "train_iter"),
            may_read=("policy_version", "learn_metrics"),
            may_write=("learn_metrics",),
            **self._replay.terms,
            uses=(policy, *(() if reward_model is None else (reward_model,))),
            stage="learn",
        )(self)

    def begin_run(self) -> None:
        """Warn of settings that were changed after the policy was made. The task calls it."""
        warn_of_later_settings(type(self).__name__, self._policy)

    def end_run(self, ctx: OnlineRLContext) -> None:
        """Warn if learning has not begun. The task calls it at the end of a run."""
        self._replay.end_run(ctx)

    def __call__(self, ctx: OnlineRLContext) -> None:
        output, num_steps = TrainOutput(), list[Mapping[str, int]]()
        of_rewards: list[Mapping[str, Any]] = []
        lag = _lag(self._policy, ctx)  # before the first gradient step
        first, begun = self._policy.train_iter, perf_counter()
        data: Any = None
        try:
            with closing(self._replay.batches(self._settings.update_per_collect)) as batches:
                for batch in batches:
                    data, sent = batch
                    if self._reward_model is not None:
                        data, of_batch = estimate_rewards(self._reward_model, data, type(self).__name__, self._cfg)
                        sent = data
                        of_rewards.append(of_batch)
                    before = self._policy.train_iter
                    output.append({**self._policy.forward(sent)})
                    num_steps.append(_num_steps(self._policy))
                    ctx.train_iter += self._policy.train_iter - before
                    if self._replay.takes_priorities:
                        self._replay.learned(batch.data, output[-1])
        finally:
            # Written once: the enforcement of contracts keeps each value, and the memory of a batch is to be reused.
            ctx.train_data = data
        if not output:
            return
        _require_finite(self._policy)
        output.num_steps = num_steps
        self._metrics.own.log_value(_TIME, perf_counter() - begun)
        self._metrics.append(ctx, output, lag, self._policy.train_iter - first, of_rewards)

    def state_dict(self) -> dict[str, Any]:
        """The number of rows that each buffer has given, if there are several; policy and buffers have their own state."""
        return self._replay.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._replay.load_state_dict(base_state(self, state, self._replay.state_dict()))
