"""Rewards: what a reward model says that steps earned, beside what the environment says or in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch

from ding_lite.config import RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.data import Trajectories, Tree, has_leaf, is_tree, map_leaves, nested
from ding_lite.engine import contract
from ding_lite.metrics import MetricsLogger
from ding_lite.middleware.arguments import require
from ding_lite.middleware.collected import REWRITE_TERMS, own_batch, require_no_train_data, rewrite
from ding_lite.middleware.outputs import append_metrics, log_outputs

_LOGGED = ("learn_metrics",)


def reward_estimator(
    cfg: RunConfig, reward_model: Any, of: Literal["train_data", "trajectories"] = "train_data"
) -> Callable[[Any], None]:
    """Let a reward model learn from the batch, and then say what its steps earned.

    Either of what is about to be learned from, for replay and datasets; or, before an estimator makes advantages or returns of
    rewards, of what was collected: for PPO and all others that learn from fresh rollouts.

    Reads:
        ctx.train_data, nothing being done where there is none yet; or ctx.trajectories, or ctx.episodes where whole episodes
            were collected instead.
    Writes:
        the same: what the model made of it. In what was collected, the columns [T, B, ...] that it gave; the reward of steps
            that `valid` leaves out stays as it was.
        ctx.learn_metrics: what its learning gave to log; where the context has it.

    Args:
        cfg: nothing of it; in the seed's place.
        reward_model: `estimate(batch) -> batch`, a new tree whose reward is replaced or augmented, of the same shape; and where
            it has one, `learn(batch) -> dict` of numbers to log by name, or None. What was collected is [T, B, ...], of whole
            episodes [N, 1, ...], one after the other. A fetcher that fetches only what is read needs the model as well.
        of: whose rewards: of "train_data", or of the "trajectories" or episodes that were collected.

    Raises:
        ValueError: another `of`; at a call, rewards of another shape, or none.
        TypeError: no reward model; at a call, it gives no batch, or from `learn` something that cannot be logged by name.
        RuntimeError: at a call, advantages or returns were made of the rewards already.
    """
    require_reward_model("reward_estimator", reward_model)
    if of not in ("train_data", "trajectories"):
        raise ValueError(f"reward_estimator(of={of!r}) wants 'train_data', or 'trajectories' to stand before an estimator.")
    metrics = MetricsLogger(owner="the reward model")

    def estimated(batch: Tree, ctx: Any) -> Tree:
        batch, output = estimate_rewards(reward_model, batch)
        if output:
            log_outputs(metrics, [output])
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
        stage="process",
    )
    def estimate_collected(ctx: OnlineRLContext) -> None:
        require_no_train_data(ctx, 'reward_estimator(of="trajectories")')
        rewrite(ctx, "reward_estimator", lambda rollout: _with_leaves_of(estimated(own_batch(rollout), ctx), rollout))

    return estimate if of == "train_data" else estimate_collected


def require_reward_model(middleware: str, reward_model: Any) -> None:
    """Refuse what cannot estimate rewards, by raising TypeError."""
    require(middleware, reward_model, "estimate", "a reward model, with estimate(batch) -> batch")


def estimate_rewards(reward_model: Any, batch: Any) -> tuple[Tree, Mapping[str, Any]]:
    """What the model makes of the batch after it has learned from it, and what its learning gave to log.

    Raises:
        TypeError, ValueError: what it gives is not what `reward_estimator` wants.
    """
    model, before = type(reward_model).__name__, _shapes_of_rewards(batch)
    output = reward_model.learn(batch) if hasattr(reward_model, "learn") else None
    if output is not None and not isinstance(output, Mapping):
        raise TypeError(f"learn() of {model} gave a {type(output).__name__}: return a dict of what to log by name, or nothing.")
    made = reward_model.estimate(batch)
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
                f"estimate() of {model} gave {name} of shape {after[name]}, and the batch had it of shape {shape}: give one "
                "number for each step. A network's [..., 1] wants .squeeze(-1)."
            )
    return made, output or {}


def _require_no_estimates(batch: Any) -> None:
    made = [name for name in ("advantage", "return_") if is_tree(batch) and has_leaf(batch, name)]
    if made:
        raise RuntimeError(
            f"reward_estimator found {made[0]!r} in ctx.train_data, which was made of the rewards of before, so that others "
            'would change nothing: put reward_estimator(cfg, reward_model, of="trajectories") before gae_estimator, or before '
            "whatever else made it."
        )


def _shapes_of_rewards(batch: Any) -> dict[str, tuple[int, ...]]:
    """The shape of `reward`, or of `name.reward` of each batch where there are several by name."""
    if not is_tree(batch):
        return {}
    if has_leaf(batch, "reward"):
        return {"reward": tuple(batch.reward.shape)}
    parts = {name: batch[name] for name in batch.keys()}  # noqa: SIM118  iterating over a tree is over rows
    return {f"{name}.{inner}": shape for name, part in parts.items() for inner, shape in _shapes_of_rewards(part).items()}


def _with_leaves_of(batch: Tree, rollout: Trajectories) -> Trajectories:
    """The rollout with the leaves of the batch as columns."""
    columns = map_leaves(lambda leaf: leaf.numpy(force=True) if isinstance(leaf, torch.Tensor) else leaf, nested(batch))
    columns.pop("valid", None)
    before = rollout.columns["reward"]
    reward = columns["reward"] if rollout.valid is None else np.where(rollout.valid, columns["reward"], before)
    return rollout.with_columns(**{**columns, "reward": reward.astype(before.dtype, copy=False)})
