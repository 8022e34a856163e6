"""Pushers: store the collected data in replay buffers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from ding_lite.basics import foreign_arguments
from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import EpisodeReplayBuffer, Episodes, ReplayBuffer, Trajectories
from ding_lite.data.replay import Draw
from ding_lite.data.sequences import SequenceWindow, cut_sequences
from ding_lite.data.trees import map_leaves
from ding_lite.engine import contract, contract_of
from ding_lite.functional import sequence_priority
from ding_lite.middleware.arguments import SettingsReadOnce, policy_settings, require, require_settings
from ding_lite.middleware.collected import COLLECTED_TERMS, collected_data, require_single_steps, rollout_of
from ding_lite.middleware.foreign_names import ARGUMENTS
from ding_lite.middleware.own_runs import own_run


@foreign_arguments(ARGUMENTS["data_pusher"])
def data_pusher(cfg: RunConfig, buffer_: ReplayBuffer) -> Callable[[OnlineRLContext], None]:
    """Put this iteration's transitions into the replay buffer.

    Reads:
        ctx.trajectories, or ctx.episodes if whole episodes were collected; each may also be a list.

    Args:
        cfg: unused; kept for the common signature.
        buffer_: replay buffer; when it is full, the oldest transitions are overwritten. A prioritised one takes initial
            priorities from the column `priority`, if priority_calculator has written it.
    """
    require("data_pusher", buffer_, "push", "a ReplayBuffer")

    @contract(**COLLECTED_TERMS, fills=(buffer_,), stage="process")
    def push(ctx: OnlineRLContext) -> None:
        found = collected_data(ctx, "data_pusher")
        if len(found):
            buffer_.push(found)

    push.__dict__.update(data_lacks={"sequences": "replace it by sequence_pusher(cfg, buffer_)"})
    return push


@foreign_arguments(ARGUMENTS["sqil_data_pusher"])
def sqil_data_pusher(cfg: RunConfig, buffer_: ReplayBuffer, expert: bool = False) -> Callable[[OnlineRLContext], None]:
    """Put this iteration's transitions into the replay buffer with the rewards of SQIL: 1 for the expert, 0 for the policy.

    The policy then learns from both, in equal shares: `OffPolicyLearner(cfg, policy.learn_mode, [(expert_buffer, 0.5),
    (buffer_, 0.5)])`. Only the stored rewards change, ctx.trajectories keeps those of the environment.

    Before the first iteration, there is a warning if no transition of the buffers that are sampled together with this one, and
    that no middleware fills, has a reward above 0: then the expert's transitions do not have the rewards of SQIL.

    Reads:
        ctx.trajectories, or ctx.episodes if whole episodes were collected; each may also be a list.

    Args:
        cfg: unused; kept for the common signature.
        buffer_: replay buffer; when it is full, the oldest transitions are overwritten.
        expert: whether the expert collected the transitions.

    Raises:
        RuntimeError: in an iteration, nstep_reward_enhancer has summed up rewards before, so that `discount` would not fit.

    Reference:
        Reddy et al. (2019), "SQIL: Imitation Learning via Reinforcement Learning with Sparse Rewards",
        https://arxiv.org/abs/1905.11108, algorithm 1.
    """
    require("sqil_data_pusher", buffer_, "push", "a ReplayBuffer")
    if not isinstance(expert, bool):
        raise TypeError(f"sqil_data_pusher(expert={expert!r:.60}) wants True or False: whether the expert collected the data.")
    reward = float(expert)

    @contract(**COLLECTED_TERMS, fills=(buffer_,), stage="process")
    def push(ctx: OnlineRLContext) -> None:
        found = collected_data(ctx, "sqil_data_pusher", needs=("reward",))
        if len(found):
            fix = "Leave nstep_reward_enhancer out, and set policy.nstep = 1."
            require_single_steps(found.columns, "sqil_data_pusher", fix)
            if isinstance(found, Trajectories):
                buffer_.push(found.with_columns(reward=np.full_like(found.columns["reward"], reward)))
            else:
                rows = found.rows()
                rows = {**rows, "reward": np.full_like(rows["reward"], reward)}
                buffer_.push(Episodes(rows, found.lengths) if isinstance(buffer_, EpisodeReplayBuffer) else rows)

    if not expert:
        push.begin_run = partial(_warn_of_rewards_of_expert, buffer_)  # type: ignore[attr-defined]
    return push


def _warn_of_rewards_of_expert(own: ReplayBuffer) -> None:
    """Warn of buffers that are sampled together with the policy's own, and that no middleware fills, if no reward is above 0.
    The task calls it."""
    known = [terms for fn in own_run().middleware if (terms := contract_of(fn)) is not None]
    filled = [thing for terms in known for thing in terms.fills]
    beside = [thing for terms in known if any(it is own for it in terms.draws) for thing in terms.draws]
    if any(it is thing for it in beside for thing in filled if thing is not own):
        return
    others = [it for it in beside if it is not own and isinstance(it, ReplayBuffer) and len(it)]
    rewards = [np.asarray(it.take(Draw(np.arange(len(it)), {}), ("reward",)).reward) for it in others]
    if rewards and not any((reward > 0).any() for reward in rewards):
        warnings.warn(
            "sqil_data_pusher gives the transitions of the policy the reward 0, and those of the expert need the reward 1: "
            f"none of the {sum(map(len, rewards)):,} rewards in the {type(others[0]).__name__} sampled with its buffer is "
            "above 0, so that the policy does not learn to imitate. Fill it with "
            'expert_buffer.push({**expert.rows(), "reward": np.ones(len(expert), np.float32)}).',
            stacklevel=2,
        )


def sequence_pusher(cfg: RunConfig, buffer_: ReplayBuffer) -> Callable[[OnlineRLContext], None]:
    """Put this iteration's transitions into the replay buffer as sequences, each of one environment.

    Sequences have burn_in + unroll_len steps and overlap by the burn-in, which may come from the previous rollout. So each step
    is learned from in exactly one sequence, except the first burn_in steps of the run, and steps after them that do not fill a
    sequence.

    Reads:
        ctx.trajectories: a multiple of unroll_len steps, except in the first rollout with a burn-in. Of state_in_0 and so on,
            only the values of a sequence's first step are stored. Rewards must be one-step rewards, because the policy sums
            them within a sequence.

    Args:
        cfg: uses policy.learn.burn_in and policy.learn.unroll_len, in steps; and policy.learn.priority_eta, in [0, 1], to
            combine the priorities of a sequence's steps, if priority_calculator has written the column `priority`.
        buffer_: stores the sequences as rows [burn_in + unroll_len, ...], except those without a valid step to learn from; the
            column valid is False for steps that are only a reset.

    Raises:
        ValueError: in an iteration, a rollout cannot be split into whole sequences, or its rewards are n-step sums already.

    Reference:
        Kapturowski et al. (2019), "Recurrent Experience Replay in Distributed Reinforcement Learning", section 2.3.
    """
    require("sequence_pusher", buffer_, "push", "a ReplayBuffer")
    settings = ("burn_in", "unroll_len", "priority_eta")
    require_settings("sequence_pusher", cfg, *(f"policy.learn.{name}" for name in settings), such_as="R2D2Config")
    learn = policy_settings(cfg).learn
    window = SequenceWindow(learn.burn_in, stride=learn.unroll_len)

    @contract(reads=("trajectories",), fills=(buffer_,), uses=(window,), stage="process")
    def push(ctx: OnlineRLContext) -> None:
        if ctx.trajectories is None:
            raise RuntimeError("sequence_pusher found no ctx.trajectories: put a StepCollector before it.")
        found = rollout_of(ctx.trajectories, "sequence_pusher", "whole")
        if "discount" in found.columns:
            raise ValueError(
                "sequence_pusher found a column 'discount': nstep_reward_enhancer has summed the rewards already, and the "
                "policy itself sums policy.nstep rewards within a sequence. Leave nstep_reward_enhancer out."
            )
        rollout = window.prepend(found)
        if rollout is not None:
            rows = cut_sequences(rollout, learn.burn_in + learn.unroll_len, learn.burn_in)
            rows.setdefault("valid", np.ones_like(rows["terminated"]))
            has_steps = rows["valid"][:, learn.burn_in :].any(1)
            if not has_steps.all():
                rows = {name: map_leaves(lambda leaf: leaf[has_steps], column) for name, column in rows.items()}
            if "priority" in rows:
                learned, valid = (torch.from_numpy(rows[name][:, learn.burn_in :].T) for name in ("priority", "valid"))
                rows["priority"] = sequence_priority(learned, learn.priority_eta, valid)
            if has_steps.any():
                buffer_.push(rows)

    push.begin_run = SettingsReadOnce("sequence_pusher", cfg, "learn.burn_in", "learn.unroll_len")  # type: ignore[attr-defined]
    return push
