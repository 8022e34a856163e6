"""Loggers: what a person sees of a run, and what stays of it.

Room: ding_lite.middleware, floor 6.
"""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ding_lite.config import LogConfig, RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.engine import Task, WriteError, contract, current_task, remove_leftovers, write_atomically, writing
from ding_lite.middleware.arguments import RUN_CONFIG, require, require_count
from ding_lite.middleware.tallies import Tally
from ding_lite.sinks import Csv, JsonLines, Sink, SinkGroup, TensorBoard, WeightsAndBiases, make_console, readable_time

_ENDLESS = 10**9  # iterations; nobody set a limit
_FIELDS = ("eval_value", "last_eval_value", "eval_metrics", "learn_metrics", "train_output")


def online_logger(
    cfg: RunConfig | None = None,
    show_every_s: float | None = None,
    train_show_freq: int | None = None,
    sinks: Sequence[Sink] = (),
) -> RunLogger:
    """Bring together what every component logged, write it into the run's folder, and show how far the run is.

    A row of metrics comes every `cfg.log.every_s` seconds, at each evaluation and at the end. Its columns are the counters of
    the context and, in groups, what was logged since the row before: `collect/` (episodes, smoothed over at least a hundred;
    steps a second), `learn/` (means over all gradient steps), `evaluate/`, `time/` (seconds), `system/`.

    Into `cfg.exp_name`: `config.json`, the rows as `metrics.jsonl` and `metrics.csv`, `pipeline.svg` and, where iterations
    overlapped, `timeline.svg` and `lanes.txt`. `cfg.log` adds TensorBoard and Weights & Biases. What cannot be written costs a
    warning, never the run. On a terminal the console is a live view, elsewhere lines.

    Reads, at the end of the iteration, so that it may stand anywhere in the pipeline:
        ctx.env_step, ctx.train_iter, ctx.env_episode; ctx.finished_episodes; ctx.collect_metrics, ctx.learn_metrics,
        ctx.eval_metrics; ctx.eval_value, ctx.last_eval_value; ctx.train_output where a learner has logged nothing else.

    Args:
        cfg: of the run; uses exp_name and log, and all of it is written. Without it nothing is written, only shown.
        show_every_s: seconds between two looks on the console; None for those of the configuration.
        train_show_freq: gradient steps between two rows, where these shall be the same in every run; None for cfg.log.every_s.
        sinks: more that take each row.
    """
    fields = ("env_episode", "finished_episodes", "collect_metrics")
    return RunLogger("online_logger", ("env_step", "train_iter"), fields, cfg, show_every_s, train_show_freq, sinks)


def offline_logger(
    cfg: RunConfig | None = None,
    show_every_s: float | None = None,
    train_show_freq: int | None = None,
    sinks: Sequence[Sink] = (),
) -> RunLogger:
    """`online_logger` for a pipeline that learns from a dataset: it counts gradient steps and epochs.

    Reads, at the end of the iteration:
        ctx.train_iter, ctx.train_epoch; ctx.learn_metrics, ctx.eval_metrics; ctx.eval_value, ctx.last_eval_value;
        ctx.train_output where a learner has logged nothing else.

    Args:
        cfg, show_every_s, train_show_freq, sinks: as for `online_logger`.
    """
    return RunLogger("offline_logger", ("train_iter",), ("train_epoch",), cfg, show_every_s, train_show_freq, sinks)


class RunLogger:
    """What `online_logger` and `offline_logger` return."""

    def __init__(
        self,
        name: str,
        counters: Sequence[str],
        fields: Sequence[str],
        cfg: RunConfig | None,
        show_every_s: float | None,
        train_show_freq: int | None,
        sinks: Sequence[Sink],
    ) -> None:
        if cfg is not None:
            for setting in ("log", "log.every_s", "exp_name", "to_dict"):
                require(name, cfg, setting, RUN_CONFIG)
        if train_show_freq is not None:
            require_count(name, "train_show_freq", train_show_freq, low=1)
        self.__name__ = name
        self._step = counters[0]
        self._cfg, self._log = cfg, LogConfig() if cfg is None else cfg.log
        self._folder = None if cfg is None else Path(cfg.exp_name)
        if cfg is not None and self._folder is not None:
            remove_leftovers(self._folder)
            write_atomically(self._folder / "config.json", json.dumps(cfg.to_dict(), indent=2).encode())
        self._tally = Tally()
        self._given = tuple(sinks)
        self._sinks: SinkGroup | None = None
        self._after: int | None = None
        self._every_iter = train_show_freq
        self._console = make_console(self._log.show_every_s if show_every_s is None else show_every_s)
        self._row: dict[str, Any] = {}
        self._written_iter, self._earlier_s = -1, 0.0
        self._began = self._written = time.monotonic()
        self._shown = self._began, 0
        """When a person saw something last, and at which step."""
        self._iterations = 0
        self._task: Task | None = None
        contract(reads=counters, may_read=(*fields, *_FIELDS), uses=(self,), stage="record")(self)

    def __call__(self, ctx: OnlineRLContext | OfflineRLContext) -> Iterator[None]:
        if self._task is None:
            self._begin(current_task())
        yield
        last, evaluated = current_task().finish, ctx.eval_value > -float("inf")
        self._iterations += 1
        self._tally.take(ctx)
        if evaluated or last or self._is_due(ctx):
            self._row = self._made(ctx, end=True)
            self._written, self._written_iter = time.monotonic(), ctx.train_iter
            assert self._sinks is not None
            self._sinks.write(self._row)
        elif self._console.due():
            self._row = self._made(ctx, end=False)
        else:
            return
        if evaluated or last or self._console.due():
            self._show(ctx)
        if last:
            self._say_goodbye(ctx)

    def _is_due(self, ctx: OnlineRLContext | OfflineRLContext) -> bool:
        if self._every_iter is not None:
            return ctx.train_iter - self._written_iter >= self._every_iter
        return time.monotonic() - self._written >= self._log.every_s

    def _begin(self, task: Task) -> None:
        self._task = task
        self._began = self._written = time.monotonic()
        self._shown, self._iterations = (self._began, self._shown[1]), 0
        sinks: list[Sink] = []
        if self._folder is not None:
            files: Any = {"after": self._after, "step": self._step}
            sinks += [JsonLines(self._folder / "metrics.jsonl", **files), Csv(self._folder / "metrics.csv", **files)]
            self._keep("the picture of the pipeline", "pipeline.svg", task.draw)
            if self._log.tensorboard:
                sinks.append(TensorBoard(self._folder / "tensorboard", self._step, after=self._after))
            if self._log.wandb != "disabled":
                told = self._cfg.to_dict() if self._cfg else {}
                sinks.append(
                    WeightsAndBiases(self._folder, name=self._folder.name, config=told, mode=self._log.wandb, step=self._step)
                )
        self._sinks = SinkGroup([*sinks, *self._given])

    def _made(self, ctx: OnlineRLContext | OfflineRLContext, end: bool) -> dict[str, Any]:
        row = self._tally.row(ctx, end)
        spent = self._earlier_s + time.monotonic() - self._began
        counters = {name: row.pop(name) for name in tuple(row) if "/" not in name}
        return {**counters, "time_s": round(spent, 3), **row}

    def _show(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        row, left = self._row, current_task().steps_left
        is_limited = left < _ENDLESS
        now, step = time.monotonic(), row[self._step]
        spent, (shown_at, shown_step) = now - self._began, self._shown
        self._shown = now, step
        line = {
            "step": step,
            "epoch": row.get("train_epoch"),
            "steps/s": round((step - shown_step) / max(now - shown_at, 1e-9)),
            "return": row.get("collect/episode_return_mean"),
            "eval": ctx.last_eval_value if ctx.last_eval_value > -float("inf") else None,
            "loss": row.get("learn/loss", row.get("learn/total_loss")),
            "eps": row.get("collect/eps"),
            "entropy": row.get("learn/entropy"),
            "left": f"<{readable_time(left * spent / self._iterations)}" if is_limited and left else None,
        }
        done = self._iterations / (self._iterations + left) if is_limited else None
        self._console.write({name: None if isinstance(it, float) and it != it else it for name, it in line.items()}, row, done)

    def _say_goodbye(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        spent = readable_time(time.monotonic() - self._began)
        steps = "environment steps" if self._step == "env_step" else "gradient steps"
        kept = f" Curve: {self._folder / 'metrics.jsonl'}, checkpoints: {self._folder / 'ckpt'}" if self._folder else ""
        self._console.say(f"ended after {self._row[self._step]:,} {steps} in {spent}.{kept}")

    def release(self) -> None:
        """Close what it writes to, and give the terminal back; a run that follows goes on with the same files."""
        self._console.close()
        self._after = self._row.get(self._step, self._after)
        if self._sinks is not None:
            self._sinks.close()
        task, self._task = self._task, None
        if task is None:
            return
        now = time.monotonic()
        self._earlier_s, self._began = self._earlier_s + now - self._began, now
        if task.max_lag + task.async_mode:
            with contextlib.suppress(RuntimeError):  # no iteration was completed
                self._keep("the picture of the lanes", "timeline.svg", task.timeline)
                self._keep("what overlapping brought", "lanes.txt", task.report)

    def _keep(self, what: str, name: str, write: Callable[[Path], object]) -> None:
        """Write a file into the run's folder, where there is one."""
        if self._folder is None:
            return
        try:
            with writing(self._folder / name):
                write(self._folder / name)
        except WriteError as error:
            warnings.warn(f"{what} is not written to {self._folder}: {error} Training goes on.", stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        """What the next rows go on from, and after which step."""
        spent = self._earlier_s + time.monotonic() - self._began
        after = self._row.get(self._step, self._after)
        return {"tally": self._tally.state_dict(), "time_s": spent, "after": after, "written_iter": self._written_iter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: before the first iteration, with the files that are there, cut at its step."""
        self._tally.load_state_dict(state["tally"])
        self._earlier_s, self._written_iter = state["time_s"], state["written_iter"]
        self._after = state["after"] if self._sinks is None else self._after
