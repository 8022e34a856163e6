"""Learners: gradient steps on what was fetched or estimated.

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ding_lite.config import DQNConfig, RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.engine import contract, engaged
from ding_lite.middleware.arguments import require
from ding_lite.middleware.fetchers import offpolicy_data_fetcher
from ding_lite.policy import LearnMode

AnyRLContext = OnlineRLContext | OfflineRLContext

_TOUCHES: Any = {"reads": ("train_data", "train_iter"), "writes": ("train_output", "train_iter")}


def trainer(cfg: RunConfig, policy: LearnMode) -> Callable[[AnyRLContext], None]:
    """Learn from one batch. Does nothing where there is none yet.

    Reads:
        ctx.train_data: what the policy's loss wants; ctx.train_iter.
    Writes:
        ctx.train_output: what to log, scalar tensors by name.
        ctx.train_iter: gradient steps counted on.

    Args:
        cfg: nothing of it; in the seed's place.
        policy: learns.
    """
    require("trainer", policy, "train_iter", "policy.learn_mode")

    @contract(**_TOUCHES, uses=(policy,), stage="learn")
    def train(ctx: AnyRLContext) -> None:
        _learn(policy, ctx)

    return train


def multistep_trainer(cfg: RunConfig, policy: LearnMode) -> Callable[[AnyRLContext], None]:
    """Learn from a rollout in several epochs of minibatches, as the policy does that.

    Reads:
        ctx.train_data: what the policy's loss wants, [T, B, ...]; ctx.train_iter.
    Writes:
        ctx.train_output: what to log, means over all gradient steps, scalar tensors by name.
        ctx.train_iter: gradient steps counted on.

    Args:
        cfg: nothing of it; in the seed's place.
        policy: learns; its own configuration says how many epochs, and of what size the minibatches are.
    """
    require("multistep_trainer", policy, "train_iter", "policy.learn_mode")

    @contract(**_TOUCHES, uses=(policy,), stage="learn")
    def train(ctx: AnyRLContext) -> None:
        _learn(policy, ctx)

    return train


def _learn(policy: LearnMode, ctx: AnyRLContext) -> None:
    if ctx.train_data is None:
        return
    before = policy.train_iter
    ctx.train_output = policy.forward(ctx.train_data)
    ctx.train_iter += policy.train_iter - before


class OffPolicyLearner:
    """Fetch and learn, `update_per_collect` times.

    Reads:
        ctx.train_iter.
    Writes:
        ctx.train_data: the last batch; None while there are too few transitions to begin.
        ctx.train_output: what to log, one dict of scalar tensors a gradient step.
        ctx.train_iter: gradient steps counted on.

    Args:
        cfg: uses policy.learn.update_per_collect, and what offpolicy_data_fetcher uses.
        policy: learns.
        buffer_: sampled for each gradient step.
    """

    def __init__(self, cfg: DQNConfig, policy: LearnMode, buffer_: ReplayBuffer) -> None:
        self._times = cfg.policy.learn.update_per_collect
        self._fetch = offpolicy_data_fetcher(cfg, buffer_)
        self._train = trainer(cfg, policy)
        contract(
            reads=("train_iter",),
            writes=("train_data", "train_output", "train_iter"),
            uses=(buffer_, policy),
            stage="learn",
        )(self)

    def __call__(self, ctx: OnlineRLContext) -> None:
        outputs: list[dict[str, Any]] = []
        for _ in range(self._times):
            with engaged(self._fetch, ctx):
                if ctx.train_data is None:
                    return
                self._train(ctx)
            outputs.append(ctx.train_output)
        ctx.train_output = outputs
