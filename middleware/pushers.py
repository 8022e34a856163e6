"""Pushers: from the rollout into storage."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ding_lite.config import R2D2Config, RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer, SequenceWindow, Trajectories, cut_sequences
from ding_lite.engine import contract
from ding_lite.functional import sequence_priority
from ding_lite.middleware.arguments import require, require_settings
from ding_lite.middleware.collected import COLLECTED_TERMS, collected_data, rollout_of


def data_pusher(cfg: RunConfig, buffer_: ReplayBuffer) -> Callable[[OnlineRLContext], None]:
    """Put this iteration's transitions into the replay buffer.

    Reads:
        ctx.trajectories, or ctx.episodes where whole episodes were collected instead; or a list of transitions, or of episodes,
            in their place.

    Args:
        cfg: nothing of it; in the seed's place.
        buffer_: takes them; the oldest make room. One that goes by priority takes theirs from a column `priority`, where
            priority_calculator has written one.
    """
    require("data_pusher", buffer_, "push", "a ReplayBuffer")

    @contract(**COLLECTED_TERMS, fills=(buffer_,), stage="process")
    def push(ctx: OnlineRLContext) -> None:
        found = collected_data(ctx, "data_pusher")
        if len(found):
            buffer_.push(found if isinstance(found, Trajectories) else found.rows())

    return push


def sequence_pusher(cfg: R2D2Config, buffer_: ReplayBuffer) -> Callable[[OnlineRLContext], None]:
    """Put this iteration's transitions into the replay buffer as sequences of one environment each.

    Sequences of burn_in + unroll_len steps overlap by the burn-in, which may lie in the rollout before, so that each step is
    learned from in one sequence; but for burn_in steps at the very beginning, and those behind them that fill no sequence.

    Reads:
        ctx.trajectories: a multiple of unroll_len steps, but for the first with a burn-in; of state_in_0 and so on, what a
            sequence's first step has is kept. Rewards of one step, which the policy sums up within a sequence.

    Args:
        cfg: uses policy.learn.burn_in and policy.learn.unroll_len, in steps; and policy.learn.priority_eta, in [0, 1], where
            priority_calculator has written a column `priority`, for what a sequence's steps come to.
        buffer_: takes them as rows [burn_in + unroll_len, ...], with valid, False for steps that were only a reset.

    Raises:
        ValueError: at the call, a rollout that cannot be cut into whole sequences, or whose rewards were summed up already.

    Reference:
        Kapturowski et al. (2019), "Recurrent Experience Replay in Distributed Reinforcement Learning", section 2.3.
    """
    require("sequence_pusher", buffer_, "push", "a ReplayBuffer")
    settings = ("burn_in", "unroll_len", "priority_eta")
    require_settings("sequence_pusher", cfg, *(f"policy.learn.{name}" for name in settings), such_as="R2D2Config")
    learn = cfg.policy.learn
    window = SequenceWindow(learn.burn_in, stride=learn.unroll_len)

    @contract(reads=("trajectories",), fills=(buffer_,), uses=(window,), stage="process")
    def push(ctx: OnlineRLContext) -> None:
        if ctx.trajectories is None:
            raise RuntimeError("sequence_pusher found no ctx.trajectories: put a StepCollector before it.")
        found = rollout_of(ctx.trajectories, "sequence_pusher", "whole")
        if "discount" in found.columns:
            raise ValueError(
                "sequence_pusher found a column 'discount': nstep_reward_enhancer has summed up rewards already, and the "
                "policy sums up policy.nstep of them itself, within a sequence. Leave nstep_reward_enhancer out."
            )
        rollout = window.prepend(found)
        if rollout is not None:
            rows = cut_sequences(rollout, learn.burn_in + learn.unroll_len, learn.burn_in)
            rows.setdefault("valid", np.ones_like(rows["terminated"]))
            if "priority" in rows:
                learned = torch.from_numpy(rows["priority"][:, learn.burn_in :].T)
                rows["priority"] = sequence_priority(learned, learn.priority_eta)
            buffer_.push(rows)

    return push
