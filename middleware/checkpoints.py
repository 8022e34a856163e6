"""Checkpoints: keep what was learned.

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.engine import contract, current_task, move_aside, save_checkpoint
from ding_lite.middleware.arguments import require, require_count
from ding_lite.policy import Policy


class CkptSaver:
    """Save the policy now and then, when it was never better, and at the end.

    Into `save_dir/ckpt`: `iteration_N.pt`, the whole policy after N gradient steps, every `train_freq` of them, the last
    three kept; `best.pt`, the weights that were evaluated best, with that value; `final.pt`, the whole policy when the run
    ends. An evaluation of the final weights, when the run has ended, counts for `best.pt` as well. Each file is whole or not
    there, also if the process dies meanwhile, and `load_checkpoint` reads it without running code. A folder that an earlier
    run left there is moved aside first, to `ckpt.1` and so on.

    Reads:
        ctx.train_iter; ctx.eval_value and ctx.eval_weights where there was an evaluation; ctx.env_step where there is one.
        All at the end of the iteration, so that it may stand anywhere in the pipeline.

    A middleware of the user's own that evaluates writes ctx.eval_value, and ctx.eval_weights beside it: the weights that it
    evaluated, such as `policy.get_weights()`, a dict of them by name for several policies. Without these `best.pt` is the
    policy as the iteration ends, where ctx.last_eval_iter says that it is the one that was evaluated: it is equal to
    ctx.train_iter. Where it is not, `best.pt` is not written, and a warning says so.

    Of several policies, `state["policies"]` holds what stands there for one otherwise, by name:
    `policy.load_state_dict(load_checkpoint(path)["policies"]["name"])`.

    Args:
        policy: what is saved; a dict of policies, by name, where there are several, as beside agents_evaluator.
        save_dir: the run's folder, such as cfg.exp_name.
        train_freq: gradient steps between two regular checkpoints, at least 1; None for none.
        save_finish: whether to save at the end.
        keep_last: how many regular checkpoints stay, at least 1.
    """

    def __init__(
        self,
        policy: Policy | Mapping[str, Policy],
        save_dir: str | PathLike[str],
        train_freq: int | None = None,
        save_finish: bool = True,
        keep_last: int = 3,
    ) -> None:
        policies = tuple(policy.values()) if isinstance(policy, Mapping) else (policy,)
        for one in policies:
            require("CkptSaver", one, "learn_mode", "the policy itself")
        if train_freq is not None:
            require_count("CkptSaver", "train_freq", train_freq, low=1)
        require_count("CkptSaver", "keep_last", keep_last, low=1)
        if not isinstance(save_dir, (str, PathLike)):
            kind = type(save_dir).__name__
            raise TypeError(f"CkptSaver wants the run's folder, such as cfg.exp_name, got {save_dir!r:.80} of type {kind}.")
        self._policy, self._folder = policy, Path(save_dir) / "ckpt"
        self._train_freq, self._save_finish, self._keep_last = train_freq, save_finish, keep_last
        self._last_iter = 0
        self._best = -float("inf")
        self._kept: list[str] = []
        self._is_first = True
        self._final_step, self._has_warned = -1, False
        contract(
            reads=("train_iter",),
            may_read=("env_step", "eval_value", "eval_weights", "last_eval_iter"),
            uses=tuple(one.learn_mode for one in policies),
            stage="record",
        )(self)

    def __call__(self, ctx: OnlineRLContext | OfflineRLContext) -> Iterator[None]:
        yield
        if self._train_freq is not None and ctx.train_iter - self._last_iter >= self._train_freq:
            self._last_iter = ctx.train_iter
            self._save_regular(ctx)
        self._save_if_best(ctx)
        if self._save_finish and current_task().finish:
            self._save_final(ctx)

    def end_run(self, ctx: OnlineRLContext | OfflineRLContext) -> Iterator[None]:
        """Save what evaluating the final weights found best, and the final state where no later iteration has."""
        yield
        self._save_if_best(ctx)
        if self._save_finish and self._final_step != ctx.total_step:
            self._save_final(ctx)
        reason = current_task().end_reason
        if reason is not None and reason.kind == "signal" and self._final_step == ctx.total_step:
            print(f"{reason}: the final state is saved in {self._folder / 'final.pt'}", file=sys.stderr)

    def _save_final(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        self._save({**self._whole(), **_counters(ctx)}, "final.pt")
        self._final_step = ctx.total_step

    def _save_if_best(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        value = getattr(ctx, "eval_value", None)
        if value is None or not value > self._best:
            return
        evaluated, last_iter = getattr(ctx, "eval_weights", None), getattr(ctx, "last_eval_iter", None)
        if evaluated is None and last_iter != ctx.train_iter:
            self._warn_of_lost_weights(ctx)
            return
        self._best = value
        best = self._whole() if evaluated is None else self._best_of(evaluated)
        self._save({**best, "eval_value": value, "evaluated_at": last_iter, **_counters(ctx)}, "best.pt")

    def _warn_of_lost_weights(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"a middleware wrote ctx.eval_value = {ctx.eval_value:g} without ctx.eval_weights, and best.pt is not written: "
                f"ctx.last_eval_iter is not ctx.train_iter = {ctx.train_iter}, so that the policy may not be the one that was "
                "evaluated. Write ctx.eval_weights = policy.get_weights() where it is evaluated, or ctx.last_eval_iter = "
                "ctx.train_iter where nothing is learned after it in the iteration.",
                stacklevel=3,
            )

    def _whole(self) -> dict[str, Any]:
        policy = self._policy
        if isinstance(policy, Mapping):
            return {"policies": {name: one.state_dict() for name, one in policy.items()}}
        return policy.state_dict()

    def _best_of(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(self._policy, Mapping):
            return {"policies": {name: {"model": weights[name]} for name in self._policy if name in weights}}
        return {"model": weights}

    def _save(self, state: Mapping[str, Any], name: str) -> None:
        if self._is_first:
            move_aside(self._folder)
        self._is_first = False
        save_checkpoint(state, self._folder / name)

    def _save_regular(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        self._kept.append(f"iteration_{ctx.train_iter}.pt")
        self._save({**self._whole(), **_counters(ctx)}, self._kept[-1])
        for name in self._kept[: -self._keep_last]:
            (self._folder / name).unlink(missing_ok=True)
        self._kept = self._kept[-self._keep_last :]

    def state_dict(self) -> dict[str, Any]:
        """What it saved last."""
        return {"last_iter": self._last_iter, "best": self._best, "kept": list(self._kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._last_iter, self._best, self._kept = state["last_iter"], state["best"], list(state["kept"])
        self._is_first = False


def _counters(ctx: OnlineRLContext | OfflineRLContext) -> dict[str, Any]:
    names = ("total_step", "env_step", "env_episode", "train_iter", "train_epoch")
    return {"counters": {name: getattr(ctx, name) for name in names if hasattr(ctx, name)}}
