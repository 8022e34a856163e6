"""Loggers: what a person sees of a run, and what stays of it.

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.engine import contract, current_task, write_atomically
from ding_lite.metrics import Console, JsonLines, readable_time

_ENDLESS = 10**9  # iterations; nobody set a limit


def online_logger(cfg: RunConfig | None = None, show_every_s: float = 1.0, train_show_freq: int = 100) -> OnlineLogger:
    """Show progress on the console, and write the curve and the configuration into the run's folder.

    Into `cfg.exp_name`: `config.json`, and `metrics.jsonl` with a line at each evaluation, every `train_show_freq` gradient
    steps, and at the end. A console line gives environment steps, steps a second, mean return of the last 100 episodes, the
    evaluation, the loss, epsilon or entropy, and the time left at most, where the number of iterations is limited.

    Reads, at the end of the iteration, so that it may stand anywhere in the pipeline:
        ctx.env_step, ctx.train_iter, ctx.finished_episodes, ctx.eval_value, ctx.last_eval_value, ctx.train_output,
        ctx.collect_kwargs.

    Args:
        cfg: of the run; uses exp_name, and all of it is written. Without it nothing is written, only shown.
        show_every_s: seconds between two console lines.
        train_show_freq: gradient steps between two lines of the curve.
    """
    return OnlineLogger(cfg, show_every_s, train_show_freq)


class OnlineLogger:
    """What `online_logger` returns."""

    __name__ = "online_logger"

    def __init__(self, cfg: RunConfig | None, show_every_s: float, train_show_freq: int) -> None:
        self._curve: JsonLines | None = None
        if cfg is not None:
            folder = Path(cfg.exp_name)
            self._curve = JsonLines(folder / "metrics.jsonl")
            write_atomically(folder / "config.json", json.dumps(cfg.to_dict(), indent=2).encode())
        self._console = Console(show_every_s)
        self._every_iter = train_show_freq
        self._returns: deque[float] = deque(maxlen=100)
        self._lengths: deque[int] = deque(maxlen=100)
        self._written_iter = -1
        self._began = self._shown = time.monotonic()
        self._shown_step = self._iterations = 0
        contract(
            reads=("env_step", "train_iter"),
            may_read=(
                *("env_episode", "finished_episodes", "eval_value", "last_eval_value"),
                *("train_output", "collect_kwargs"),
            ),
            stage="record",
        )(self)

    def __call__(self, ctx: OnlineRLContext) -> Iterator[None]:
        yield
        last, evaluated = current_task().finish, ctx.eval_value > -float("inf")
        self._iterations += 1
        self._returns.extend(episode.return_ for episode in ctx.finished_episodes)
        self._lengths.extend(episode.length for episode in ctx.finished_episodes)
        learned = ctx.train_iter - self._written_iter >= self._every_iter
        shown = evaluated or last or self._console.due()
        if not (learned or shown):
            return
        row = self._row(ctx, evaluated)
        if self._curve is not None and (learned or evaluated or last):
            self._curve.write(row)
        self._written_iter = ctx.train_iter if learned else self._written_iter
        if shown:
            self._show(ctx, row)
        if last:
            self._say_goodbye(ctx)

    def _row(self, ctx: OnlineRLContext, evaluated: bool) -> dict[str, Any]:
        return {
            "total_step": ctx.total_step,
            "env_step": ctx.env_step,
            "env_episode": ctx.env_episode,
            "train_iter": ctx.train_iter,
            "time_s": round(time.monotonic() - self._began, 3),
            "return": sum(self._returns) / len(self._returns) if self._returns else None,
            "episode_length": sum(self._lengths) / len(self._lengths) if self._lengths else None,
            "eval_value": ctx.eval_value if evaluated else None,
            **{name: value for name, value in ctx.collect_kwargs.items() if isinstance(value, (int, float))},
            **_means(ctx.train_output),
        }

    def _say_goodbye(self, ctx: OnlineRLContext) -> None:
        spent = readable_time(time.monotonic() - self._began)
        kept = f" Curve: {self._curve.path}, checkpoints: {self._curve.path.parent / 'ckpt'}" if self._curve else ""
        self._console.say(f"ended after {ctx.env_step:,} environment steps in {spent}.{kept}")

    def _show(self, ctx: OnlineRLContext, row: Mapping[str, Any]) -> None:
        now = time.monotonic()
        rate = (ctx.env_step - self._shown_step) / max(now - self._shown, 1e-9)
        self._shown, self._shown_step = now, ctx.env_step
        left = current_task().steps_left
        line = {
            "step": ctx.env_step,
            "steps/s": round(rate),
            "return": row["return"],
            "eval": ctx.last_eval_value if ctx.last_eval_value > -float("inf") else None,
            "loss": row.get("loss", row.get("total_loss")),
            "eps": row.get("eps"),
            "entropy": row.get("entropy"),
            "left": f"<{readable_time(left * (now - self._began) / self._iterations)}" if 0 < left < _ENDLESS else None,
        }
        self._console.write(line)


def _means(outputs: Any) -> dict[str, float]:
    """Numbers from what learning gave to log: of a list of dicts, the mean by name. Waits for the device."""
    steps = outputs if isinstance(outputs, list) else [outputs] if outputs else []
    names = steps[0].keys() if steps else ()
    return {name: float(torch.stack([torch.as_tensor(step[name]).float() for step in steps]).mean()) for name in names}
