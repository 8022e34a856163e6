"""Rewards: replace or augment the environment's rewards with a reward model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch

from ding_lite.config import RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import Trajectories, Tree, nested
from ding_lite.data.trees import as_floats, has_leaf, is_tree, map_leaves
from ding_lite.engine import contract
from ding_lite.metrics import MetricsLogger
from ding_lite.metrics.outputs import Outputs, append_metrics
from ding_lite.middleware.arguments import require
from ding_lite.middleware.collected import REWRITE_TERMS, own_batch, require_no_train_data, require_single_steps, rewrite
from ding_lite.policy_check.columns import explain_missing
from ding_lite.ranks import current_ranks

_LOGGED = ("learn_metrics",)
_FETCH = (
    "A fetcher that gets a policy fetches only the columns in use: pass it the reward model too, such as "
    "offline_data_fetcher(cfg, dataset, policy.learn_mode, reward_model). If the reward model has `columns`, name this one "
    "there; without `columns`, all are fetched."
)
_SINGLE_STEPS = (
    "Leave nstep_reward_enhancer out and set policy.nstep = 1, or put reward_estimator(cfg, reward_model, "
    'of="trajectories") before it.'
)


def reward_estimator(
    cfg: RunConfig, reward_model: Any, of: Literal["train_data", "trajectories"] = "train_data"
) -> Callable[[Any], None]:
    """Train a reward model on the batch, then replace the batch's rewards by the model's.

    With of="train_data", for replay and datasets, it works on the training batch. With of="trajectories", for PPO and other
    algorithms that learn from new rollouts, it works on the collected data, before an estimator computes advantages or returns.

    Reads:
        ctx.train_data, doing nothing while it is None; or ctx.trajectories, or ctx.episodes if whole episodes were collected.
    Writes:
        the same field: the batch that the model returned. For collected data, its columns [T, B, ...], and raw_reward, the
            reward of the environment; the reward of steps that `valid` excludes is unchanged.
        ctx.learn_metrics: the values that the model returned to log; if the context has this field.

    Args:
        cfg: uses policy.nstep: with more than one step, rewards that nstep_reward_enhancer has summed are refused.
        reward_model: has `estimate(batch) -> batch`, which returns a new tree with a replaced or augmented reward of the same
            shape; and optionally `learn(batch) -> dict` of numbers to log by name, or None. Collected data is [T, B, ...];
            whole episodes are [N, 1, ...], in sequence. A fetcher that samples only the columns in use needs the model as well.
        of: data whose rewards are replaced: "train_data", or "trajectories" for the collected rollout or episodes.

    Raises:
        ValueError: unknown `of`; or, in an iteration, rewards are missing or have the wrong shape.
        TypeError: not a reward model; or, in an iteration, it does not return a batch, or `learn` does not return a dict.
        RuntimeError: in an iteration, rewards are sums of several steps, or advantages or returns were already computed from
            them.
    """
    require_reward_model("reward_estimator", reward_model)
    if of not in ("train_data", "trajectories"):
        raise ValueError(f"reward_estimator(of={of!r}) wants 'train_data', or 'trajectories' to work before an estimator.")
    metrics = MetricsLogger(owner="the reward model")
    outputs = Outputs(metrics)

    def estimated(batch: Tree, ctx: Any) -> Tree:
        batch, output = estimate_rewards(reward_model, batch, "reward_estimator", cfg)
        if output:
            outputs.log([output])
            append_metrics(ctx, "learn_metrics", [metrics.reduce()])
        return batch

    @contract(
        reads=("train_data",),
        writes=("train_data",),
        may_read=_LOGGED,
        may_write=_LOGGED,
        uses=(reward_model,),
        stage="learn",
    )
    def estimate(ctx: OnlineRLContext | OfflineRLContext) -> None:
        if ctx.train_data is not None:
            _require_no_estimates(ctx.train_data)
            ctx.train_data = estimated(ctx.train_data, ctx)

    @contract(
        reads=REWRITE_TERMS["reads"],
        writes=REWRITE_TERMS["writes"],
        may_read=(*REWRITE_TERMS["may_read"], "train_data", *_LOGGED),
        may_write=(*REWRITE_TERMS["may_write"], *_LOGGED),
        uses=(reward_model,),
        stage="learn",  # the model learns: a checkpoint must not have steps that the policy has not taken yet
    )
    def estimate_collected(ctx: OnlineRLContext) -> None:
        require_no_train_data(ctx, 'reward_estimator(of="trajectories")')
        rewrite(
            ctx,
            "reward_estimator",
            lambda rollout: _with_rewards(rollout, lambda batch: estimated(batch, ctx)),
            needs=("reward",),
        )

    return estimate if of == "train_data" else estimate_collected


def require_reward_model(middleware: str, reward_model: Any) -> None:
    """Check that an object can estimate rewards.

    Raises:
        TypeError: it cannot.
        RuntimeError: it learns, and several processes learn together, each of which would have another one.
    """
    if current_ranks() is not None and callable(getattr(reward_model, "learn", None)):
        raise RuntimeError(
            f"{middleware} got a {type(reward_model).__name__}, which learns, and only policies learn together in several "
            "processes: start the script without torchrun, or use a reward model without `learn`."
        )
    require(middleware, reward_model, "estimate", "a reward model, with estimate(batch) -> batch")


def estimate_rewards(reward_model: Any, batch: Any, who: str, cfg: RunConfig) -> tuple[Tree, Mapping[str, Any]]:
    """The batch with the model's rewards, after the model has learned from it, and the values of its learning to log.

    Args:
        who: the middleware that calls, for the message.
        cfg: uses policy.nstep, if it has it.

    Raises:
        RuntimeError: rewards are sums of several steps, and the model has not learned.
        TypeError, ValueError: the model returns something else than `reward_estimator` requires.
        ColumnError: it reads a column that the batch does not have.
    """
    if getattr(getattr(cfg, "policy", None), "nstep", 1) > 1:  # with 1, nstep_reward_enhancer changes no reward
        for part in _parts_with_rewards(batch).values():
            require_single_steps(part, who, _SINGLE_STEPS)
    model, before = type(reward_model).__name__, _shapes_of_rewards(batch)
    output = _called(reward_model, "learn", batch) if hasattr(reward_model, "learn") else None
    if output is not None and not isinstance(output, Mapping):
        raise TypeError(f"learn() of {model} gave a {type(output).__name__}: return a dict of what to log by name, or nothing.")
    made = _called(reward_model, "estimate", batch)
    if not is_tree(made):
        raise TypeError(
            f"estimate() of {model} gave a {type(made).__name__}: return a batch, such as with_leaves(batch, reward=...)."
        )
    after = _shapes_of_rewards(made)
    for name, shape in before.items():
        if name not in after:
            raise ValueError(f"estimate() of {model} gave a batch without {name}: return with_leaves(batch, reward=...).")
        if after[name] != shape:
            raise ValueError(
                f"estimate() of {model} gave {name} of shape {after[name]}, and the batch has shape {shape}: return one "
                "number for each step. A network's [..., 1] needs .squeeze(-1)."
            )
    return made, output or {}


def _called(reward_model: Any, method: str, batch: Any) -> Any:
    """The result of a method of a reward model for a batch.

    Raises:
        ColumnError: it reads a column that the batch does not have.
    """
    try:
        return getattr(reward_model, method)(batch)
    except (KeyError, AttributeError) as error:
        if is_tree(batch):
            explain_missing(error, batch, None, f"{method}() of {type(reward_model).__name__}", _FETCH)
        raise


def _require_no_estimates(batch: Any) -> None:
    made = [name for name in ("advantage", "return_") if is_tree(batch) and has_leaf(batch, name)]
    if made:
        raise RuntimeError(
            f"reward_estimator found {made[0]!r} in ctx.train_data, which was computed from the old rewards, so new ones "
            'would have no effect: put reward_estimator(cfg, reward_model, of="trajectories") before the middleware that '
            "computes it, such as gae_estimator."
        )


def _shapes_of_rewards(batch: Any) -> dict[str, tuple[int, ...]]:
    """The shape of `reward`, or of `name.reward` of each batch in a dict of batches."""
    return {f"{name}reward": tuple(part.reward.shape) for name, part in _parts_with_rewards(batch).items()}


def _parts_with_rewards(batch: Any, name: str = "") -> dict[str, Tree]:
    """The batch, if it has rewards, or each batch in a dict of batches that has, by its name and a point."""
    if not is_tree(batch):
        return {}
    if has_leaf(batch, "reward"):
        return {name: batch}
    parts = {inner: batch[inner] for inner in batch.keys()}  # noqa: SIM118  iterating over a tree is over rows
    return {it: found for inner, part in parts.items() for it, found in _parts_with_rewards(part, f"{name}{inner}.").items()}


def _with_rewards(rollout: Trajectories, estimated: Callable[[Tree], Tree]) -> Trajectories:
    """The rollout with the leaves of the batch that the function returns as columns."""
    before = rollout.columns["reward"].copy()  # a model may change the batch in place
    raw_reward = rollout.columns["raw_reward"].copy() if "raw_reward" in rollout.columns else before
    batch = estimated(own_batch(rollout))
    columns = map_leaves(lambda leaf: leaf.numpy(force=True) if isinstance(leaf, torch.Tensor) else leaf, nested(batch))
    columns.pop("valid", None)
    reward = columns["reward"] if rollout.valid is None else np.where(rollout.valid, columns["reward"], before)
    reward = reward.astype(as_floats(before).dtype, copy=False)
    # A dataset that is recorded behind it has the environment's rewards.
    return rollout.with_columns(**{**columns, "reward": reward, "raw_reward": raw_reward})
