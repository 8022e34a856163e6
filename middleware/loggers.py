"""Loggers: show the progress of a run, and write its metrics to files and services."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import numbers
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ding_lite.basics import (
    RunCopy,
    RunRecord,
    Storage,
    WriteError,
    absolute,
    command_line,
    foreign_arguments,
    is_uri,
    open_storage,
    place_in_storage,
    require_usable,
    require_writable,
    write_atomically,
    writing,
)
from ding_lite.basics.optional_attributes import attribute_of, has_attribute
from ding_lite.config import LogConfig, RunConfig
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.engine import Task, contract, current_task
from ding_lite.engine.manual_control import running_task
from ding_lite.envs import save_env_error
from ding_lite.middleware.arguments import RUN_CONFIG, require, require_count
from ding_lite.middleware.foreign_names import ARGUMENTS
from ding_lite.middleware.own_runs import own_run
from ding_lite.middleware.run_beginnings import begin_record
from ding_lite.middleware.run_copies import copy_late_files, copy_of
from ding_lite.ranks import is_first_rank
from ding_lite.rollout.metrics_aggregators import COUNTERS, MetricsAggregator, evaluation_of
from ding_lite.sinks import (
    Csv,
    JsonLines,
    RunLog,
    Sink,
    SinkGroup,
    TensorBoard,
    WeightsAndBiases,
    end_line,
    format_duration,
    json_value,
    make_console,
)

_ENDLESS = 10**9  # iterations; no limit was set
_FIELDS = (
    *("eval_value", "last_eval_value", "last_eval_iter", "eval_metrics", "learn_metrics", "train_output"),
    *("collect_metrics", "finished_episodes", *COUNTERS),
)
_ROW_FILES: dict[str, type[JsonLines] | type[Csv]] = {"metrics.jsonl": JsonLines, "metrics.csv": Csv}
_STEPS = {"env_step": "environment steps", "train_iter": "gradient steps", "total_step": "iterations"}
"""Names of the counters in messages."""

_logger = logging.getLogger(__name__)


@foreign_arguments(ARGUMENTS["online_logger"])
def online_logger(
    cfg: RunConfig | None = None,
    show_every_s: float | None = None,
    train_show_freq: int | None = None,
    sinks: Sequence[Sink] = (),
    counters: Sequence[str] = (),
) -> RunLogger:
    """Aggregate the metrics of all components, write them to the run's folder, and show the progress of the run.

    A row of metrics is written every `cfg.log.every_s` seconds, at each evaluation and at the end. Its columns are the counters
    of the context and, in groups, the metrics since the last row: `collect/` (episodes, over at least the latest hundred; steps
    per second), `learn/` (means over all gradient steps), `evaluate/`, `time/` (seconds), `system/`. An evaluation without
    metrics, such as a middleware that only writes ctx.eval_value, is logged as `evaluate/score`. The last line on the console
    gives the reason for the end of the run and the last evaluation.

    Any context works; fields that it lacks are left out. The step of rows and files is the first of `counters`, else
    ctx.env_step, else ctx.train_iter, else the number of iterations.

    It writes to `cfg.exp_name`: `config.json`, the rows as `metrics.jsonl` and `metrics.csv`, `pipeline.svg` and, if
    iterations overlapped, `timeline.svg` and `lanes.txt`; the events of the run as `run.log`, its id and processes as
    `run.json`, and an error that ends it as `error.txt`. No other process can write to the folder meanwhile. When a new run
    begins, the files of an earlier one in the folder are renamed, with one number, such as `metrics.1.jsonl`. `cfg.log` adds
    TensorBoard and Weights & Biases. If writing fails, there is a warning and the run continues. On a terminal the console is
    a live view, elsewhere plain lines.

    Reads, if the context has them, at the end of the iteration, when every first half has run (if a middleware sets one of them
    after its `yield`, the logger must stand before it, because second halves run in reverse order):
        ctx.env_step, ctx.train_iter, ctx.env_episode; ctx.finished_episodes; ctx.collect_metrics, ctx.learn_metrics,
        ctx.eval_metrics; ctx.eval_value, ctx.last_eval_value, ctx.last_eval_iter; ctx.train_output if a learner logs no
        metrics. And the fields in `counters`.

    Args:
        cfg: configuration of the run; uses exp_name and log, and all of it is written. If None, metrics are only shown,
            and written to `sinks`.
        show_every_s: seconds between two updates of the console; None for the setting of the configuration.
        train_show_freq: gradient steps between two rows, for rows that are the same in every run; None for cfg.log.every_s.
        sinks: further sinks for the rows.
        counters: numeric fields of your own context, to be columns of each row; the first one counts the steps of the run.

    Raises:
        FolderInUseError: another process writes to the folder; or, when the run begins, another open task does.
        WriteError: nothing can be written to the folder.
        TypeError: `sinks` is one sink instead of several, or has something that is no sink; or, when the run begins or writes a
            row, the field that counts its steps is no number.
        ValueError: before the first iteration, another logger of the pipeline writes to the folder, or it has another run than
            the one that is resumed.
        StorageError: cfg.storage_path cannot be opened or written to.
    """
    return RunLogger("online_logger", ("env_step", "train_iter"), cfg, show_every_s, train_show_freq, sinks, counters)


def offline_logger(
    cfg: RunConfig | None = None,
    show_every_s: float | None = None,
    train_show_freq: int | None = None,
    sinks: Sequence[Sink] = (),
    counters: Sequence[str] = (),
) -> RunLogger:
    """`online_logger` for a pipeline that learns from a dataset: its step is the number of gradient steps, or `counters[0]`.

    Reads, at the end of the iteration:
        the same fields as `online_logger`.

    Args:
        cfg, show_every_s, train_show_freq, sinks, counters: as for `online_logger`.
    """
    return RunLogger("offline_logger", ("train_iter",), cfg, show_every_s, train_show_freq, sinks, counters)


def _checked_sinks(name: str, sinks: Any) -> tuple[Sink, ...]:
    """The given sinks.

    Raises:
        TypeError: it is one sink instead of several, or one of them has no method `write` or `close`.
    """
    if has_attribute(sinks, "write") or not isinstance(sinks, Iterable):
        raise TypeError(f"{name}(sinks={sinks!r:.60}) wants several sinks, got one {type(sinks).__name__}: write sinks=[it].")
    given = tuple(sinks)
    for one in given:
        if isinstance(one, type) or not all(callable(attribute_of(one, name)) for name in ("write", "close")):
            raise TypeError(
                f"{name}(sinks=[...]) got {one!r:.60} of type {type(one).__name__}, which is no sink: pass an object with the "
                "methods write(row) and close()."
            )
    return given


class RunLogger:
    """The middleware that `online_logger` and `offline_logger` return."""

    reads_at_end = True
    """Only its second half reads fields."""

    def __init__(
        self,
        name: str,
        steps: Sequence[str],
        cfg: RunConfig | None,
        show_every_s: float | None,
        train_show_freq: int | None,
        sinks: Sequence[Sink],
        counters: Sequence[str],
    ) -> None:
        if cfg is not None:
            for setting in ("log", "log.every_s", "exp_name", "to_dict"):
                require(name, cfg, setting, RUN_CONFIG)
        given = _checked_sinks(name, sinks)
        if isinstance(counters, str):
            raise TypeError(f"{name}(counters={counters!r}) wants several names, got one string: write ({counters!r},).")
        if "time_s" in counters:
            raise ValueError(f'{name}(counters={tuple(counters)!r}): "time_s" is a column of each row already, its seconds.')
        if train_show_freq is not None:
            require_count(name, "train_show_freq", train_show_freq, low=1)
        self.__name__ = name
        self._steps = (*counters, *steps, "total_step")
        self._step = self._steps[0]
        self._cfg, self._log = cfg, LogConfig() if cfg is None else cfg.log
        self._name = None if cfg is None else Path(cfg.exp_name)
        self._folder = None if cfg is None else absolute(cfg.exp_name)
        self.run_record: RunRecord | None = None
        """The record of the run; None without a folder."""
        self._facts: dict[str, Any] = {}
        """What config.json says of the run, beside its settings."""
        self._run_log: RunLog | None = None
        self._has_logged_end = False
        self.storage: Storage | None = None
        """Where CkptSaver copies the folder, by cfg.storage_path."""
        self._copy: RunCopy | None = None
        """The copy, during a run."""
        self._knows_copy = False
        """Whether it is known if there is one."""
        if cfg is not None and self._folder is not None:
            resume, storage_path = getattr(cfg, "resume", None), getattr(cfg, "storage_path", None)
            if resume is not None and is_uri(resume):
                require_usable(resume)  # config.json has it
            if storage_path is not None:
                self.storage = open_storage(storage_path)
                self.storage.at(place_in_storage(cfg.exp_name)).require_writable()
            self.run_record = RunRecord(self._folder)
            self.run_record.lock.take()
            require_writable(self._folder / "config.json")
        self._aggregator = MetricsAggregator(counters)
        self._given = given
        self._sinks: SinkGroup | None = None
        self._after: int | None = None
        """Step of the last row in the files."""
        self._files: dict[str, JsonLines | Csv] = {}
        """The files of rows, by name."""
        self._kept: tuple[float | None, Mapping[str, int]] = None, {}
        """What stays of existing files when the run begins: this number of rows of each file, or, where it is unknown, rows up
        to this step. Without a step, the files are new."""
        self._every_iter = train_show_freq
        every_s = self._log.show_every_s if show_every_s is None else show_every_s
        self._console = make_console(every_s) if is_first_rank() else make_console(math.inf, io.StringIO())
        self._row: dict[str, Any] = {}
        self._evaluated: tuple[float | None, int | None] = None, None
        self._written_iter, self._earlier_s, self._done = -1, 0.0, 0
        self._is_behind = False
        """Whether there are metrics since the last row."""
        self._began = self._written = time.monotonic()
        self._is_timed = False
        """Whether the run has begun, so that its time is known."""
        self._shown = self._began, 0
        """Time and step of the last update of the console."""
        self._iterations = 0
        self._processed = 0.0, 0
        """Seconds of the stage process, and iterations, at the time of the last row."""
        self._task: Task | None = None
        needed = tuple(dict.fromkeys((*counters, *(("train_iter",) if train_show_freq is not None else ()))))
        contract(reads=needed, may_read=[it for it in _FIELDS if it not in needed], uses=(self,), stage="record")(self)

    def __call__(self, ctx: OnlineRLContext | OfflineRLContext) -> Iterator[None]:
        if self._task is None:
            self._begin(current_task(), ctx)
        yield
        evaluated = evaluation_of(ctx) is not None
        self._iterations += 1
        self._done = ctx.total_step + 1
        if self.run_record is not None:
            self.run_record.count(self._done)
        self._aggregator.take(ctx)
        self._is_behind = True
        # The last row is written by end_run, unless the run may be resumed, which then has the same rows as an unbroken run.
        if evaluated or (self._is_due(getattr(ctx, "train_iter", -1)) and (own_run().is_cut or not own_run().finish)):
            self._write(ctx)
        elif self._console.due():
            self._row = self._made(ctx, end=False)
        else:
            return
        if evaluated:
            self._log_evaluation(ctx)
        if evaluated or self._console.due():
            self._show(ctx)

    def end_run(self, ctx: OnlineRLContext | OfflineRLContext) -> Iterator[None]:
        """Write the last row, with the evaluation of the final weights, and show why the run has ended."""
        if self._task is None:  # a resumed run had no iterations left
            self._begin(current_task(), ctx)
        yield
        self._aggregator.take(ctx)
        if self._is_behind or evaluation_of(ctx) is not None:
            run = own_run()
            self._write(run.ctx if run.running else ctx)  # task.ctx also has counters that are not kept
        if evaluation_of(ctx) is not None:
            self._log_evaluation(ctx)
        self._show(ctx)
        if not own_run().is_end_repeated:
            self._say_goodbye(ctx)

    def begin_run(self) -> None:
        """Keep other processes from writing to the folder, and begin `run.json` and `run.log`. The task calls it.

        Raises:
            FolderInUseError: another process, or another open task, writes to the folder.
            ValueError: another logger of the pipeline writes to the folder; nothing saves the run that is to be copied; or the
                folder has the rows of another run than the one that is resumed.
            TypeError: the step of the run is no number.
        """
        task = own_run()
        self._find_step(task.ctx)
        self._require_saver(task)
        self.require_folder()
        self._enter(task)

    def _enter(self, task: Task) -> None:
        self._knows_copy = False
        self._processed = task.stage_seconds()["process"], self._iterations
        if task.ctx.total_step < self._done:  # this logger was in an earlier run of the process
            self._written_iter, self._done = -1, 0
        if self._task is None:
            step = next((getattr(task.ctx, name) for name in self._steps if hasattr(task.ctx, name)), 0)
            self._began, self._began_at = time.monotonic(), time.time()
            self._shown, self._is_timed = (self._began, step), True
        if self.run_record is not None:
            self.run_record.move_error_aside()
        self._begin_record(task.ctx.total_step)

    def require_folder(self) -> None:
        """Raise an error if this logger cannot write to its folder in this run.

        Raises:
            FolderInUseError: another process writes to the folder.
            ValueError: another logger of the pipeline writes to the folder; or the folder has the rows of another run than the
                one that is resumed.
        """
        task, record = own_run(), self.run_record
        self._require_alone(task)
        if record is None:
            return
        if task.resumed_from is not None and record.other_id is not None:
            raise ValueError(
                f"the run in {task.resumed_from} is resumed, and {self.__name__} writes to {self._name}, which has another run "
                f"(its id is {record.other_id} instead of {record.last_id}): pass the exp_name with which the resumed run was "
                "logged, or that of a new folder."
            )
        record.lock.take()

    def _require_alone(self, task: Task) -> None:
        """Raise an error if another logger of the pipeline, or this one at another place, writes to the same files."""
        loggers = [thing for thing in task.middleware_objects() if isinstance(thing, RunLogger)]
        place = None if self._folder is None else os.path.realpath(self._folder)
        same = [it for it in loggers if it is self or (place and it._folder and os.path.realpath(it._folder) == place)]
        if len(same) > 1:
            names = " and ".join(it.__name__ for it in same)
            to = f"to {self._name}/metrics.jsonl" if place else "to the same sinks"
            raise ValueError(
                f"{names} of one pipeline would each write every row {to}: keep one of them, which may have several sinks, "
                f"{same[0].__name__}(cfg, sinks=[first, second]); or give one another cfg.exp_name."
            )

    def _find_step(self, ctx: Any) -> None:
        """Find the field that counts the steps of the run."""
        self._step = next(name for name in self._steps if hasattr(ctx, name))
        self._require_number(getattr(ctx, self._step))

    def _require_number(self, step: Any) -> None:
        """Raise an error if the step of the run is no number."""
        if not isinstance(step, numbers.Real) or isinstance(step, bool):
            raise TypeError(
                f"{self.__name__} counts the steps of the run by ctx.{self._step}, which is {step!r:.60}, but wants a number: "
                "set it before the run, or let counters begin with another field."
            )

    def _require_saver(self, task: Task) -> None:
        """Raise an error if the folder is to be copied, but nothing saves the run."""
        if self.storage is not None and not any(has_attribute(thing, "run_copy") for _, thing in task.used_objects()):
            raise ValueError(
                f"cfg.storage_path is {self.storage.shown!r}, and no CkptSaver in the pipeline saves the run that is to be "
                "copied there: add CkptSaver(policy, cfg.exp_name, train_freq=...), or set storage_path to None."
            )

    def note_error(self, error: Exception) -> None:
        """Write the error that ends the run, with the last row of metrics, to `error.txt`, if the run has begun. The task
        calls it.

        For an error of an environment, the episode up to it is written too, and a note on the error says how to replay it.
        """
        if self._name is None or self._folder is None or self.run_record is None or not self.run_record.is_begun:
            return
        is_there = absolute(self._name) == self._folder  # the working directory is the same as before
        save_env_error(error, self._name if is_there else self._folder)
        self.run_record.note_error(error, self._row)
        if self._run_log is not None:
            _logger.error("the run ended by %s: %s", type(error).__name__, error)
            self._has_logged_end = True

    def _begin_record(self, done: int) -> None:
        """Begin `run.json`, `config.json` and `run.log`, unless this is done."""
        record = self.run_record
        if record is None or record.is_begun:
            return
        try:
            begin_record(self, done)
        except WriteError as error:
            self._warn_of("the record of the run", error)
        self._facts.update(record.known())
        self._keep("the configuration", "config.json", self._write_config)
        task = weakref.ref(own_run())
        self._keep("the log of the run", "run.log", lambda path: self._open_log(path, task))
        self._has_logged_end = False
        begins = "goes on" if done else "begins"
        _logger.info("run %s %s after %d iterations, in %s: %s", record.run_id, begins, done, record.folder, command_line())

    def _open_log(self, path: Path, task: Callable[[], Task | None]) -> None:
        self._run_log = RunLog(path, self._log.level, is_mine=lambda: running_task() in (None, task()))

    def _log_evaluation(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        value, at = self._last_evaluation(ctx)
        _logger.info("evaluation: %g%s", value, "" if at is None else f", after {at} gradient steps")

    def _write(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        self._row = self._made(ctx, end=True)
        self._written, self._written_iter = time.monotonic(), getattr(ctx, "train_iter", -1)
        self._is_behind = False
        assert self._sinks is not None
        self._sinks.write(self._row)
        self._after = self._row[self._step]

    def _is_due(self, train_iter: int) -> bool:
        if self._every_iter is not None:
            return train_iter - self._written_iter >= self._every_iter
        return time.monotonic() - self._written >= self._log.every_s

    def _begin(self, task: Task, ctx: OnlineRLContext | OfflineRLContext) -> None:
        self._task = task
        self._begin_record(ctx.total_step)
        self._find_step(ctx)
        self._written = time.monotonic()
        if not self._is_timed:  # it is called by hand
            self._began, self._began_at = self._written, time.time()
            self._shown = self._began, self._shown[1]
        self._is_timed, self._first_progress, self._iterations = False, (self._began, 0.0), 0
        self._processed = self._processed[0], 0
        sinks: list[Sink] = []
        if self._after is None and task.resumed_from is not None:  # it was saved before its first row
            self._after, self._kept = -1, (-1, dict.fromkeys(_ROW_FILES, 0))
        goes_on = self.run_record is None or self.run_record.goes_on
        kept, rows = self._kept if goes_on else (None, {})
        self._kept = math.inf, {}  # a later run with this logger continues the files, and removes nothing
        if self._folder is not None:
            self._files = {
                name: make(self._folder / name, after=kept, step=self._step, rows=rows.get(name))
                for name, make in _ROW_FILES.items()
            }
            sinks += self._files.values()
            self._keep("the picture of the pipeline", "pipeline.svg", task.draw)
            if self._log.tensorboard:
                sinks.append(TensorBoard(self._folder / "tensorboard", self._step, after=kept))
            if self._log.wandb != "disabled":
                config = self._cfg.to_dict() if self._cfg else {}
                sinks.append(
                    WeightsAndBiases(self._folder, name=self._folder.name, config=config, mode=self._log.wandb, step=self._step)
                )
        self._sinks = SinkGroup([*sinks, *self._given])

    def _made(self, ctx: OnlineRLContext | OfflineRLContext, end: bool) -> dict[str, Any]:
        row = self._aggregator.row(ctx, end, round(self._spent_s(), 3))
        self._require_number(row[self._step])
        spent, iterations = own_run().stage_seconds()["process"], self._iterations
        before, first = self._processed
        if spent > before and iterations > first:
            row["time/process"] = (spent - before) / (iterations - first)
        if end:
            self._processed = spent, iterations
        if self._folder is not None and not self._knows_copy:
            self._copy, self._knows_copy = copy_of(own_run(), self._folder), True
        if self._copy is not None:
            row.update(self._copy.metrics())
        return row

    def _spent_s(self) -> float:
        """Seconds of the run so far, with its earlier parts."""
        return self._earlier_s + (0.0 if self._task is None else time.monotonic() - self._began)

    def _show(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        if not self._row:  # a run that goes on after its end has written no row yet
            self._row = self._made(ctx, end=False)
        row, (done, left) = self._row, self._outlook()
        now, step = time.monotonic(), row[self._step]
        shown_at, shown_step = self._shown
        self._shown = now, step
        line = {
            "step": step,
            "epoch": row.get("train_epoch"),
            "steps/s": round((step - shown_step) / max(now - shown_at, 1e-9)) if step != shown_step else None,
            "return": row.get("collect/episode_return_mean"),
            "eval": self._last_evaluation(ctx)[0],
            "loss": row.get("learn/loss", row.get("learn/total_loss")),
            "eps": row.get("collect/eps"),
            "entropy": row.get("learn/entropy"),
            "time left": format_duration(left) if left else None,
        }
        self._console.write({name: None if isinstance(it, float) and it != it else it for name, it in line.items()}, row, done)

    def _outlook(self) -> tuple[float | None, float | None]:
        """The completed fraction of the run and the seconds left, for the limit that is reached first; None if unknown."""
        task, now = own_run(), time.monotonic()
        found: list[tuple[float, float]] = []
        if task.steps_left < _ENDLESS and self._iterations:
            done = self._iterations / (self._iterations + task.steps_left)
            found.append((done, task.steps_left * (now - self._began) / self._iterations))
        if task.progress is not None:
            begun_at, begun = self._first_progress
            if begun == 0.0:
                self._first_progress = now, task.progress
            elif task.progress > begun:
                found.append((task.progress, (1 - task.progress) * (now - begun_at) / (task.progress - begun)))
        return min(found, key=lambda pair: pair[1], default=(None, None))

    def _last_evaluation(self, ctx: OnlineRLContext | OfflineRLContext) -> tuple[float | None, int | None]:
        """The value of the last evaluation and its gradient step; None if unknown."""
        now = evaluation_of(ctx)
        if now is not None:
            at = getattr(ctx, "last_eval_iter", -1)
            self._evaluated = now, at if at >= 0 else None
        elif self._evaluated[0] is None and (earlier := getattr(ctx, "last_eval_value", -float("inf"))) > -float("inf"):
            self._evaluated = earlier, ctx.last_eval_iter if ctx.last_eval_iter >= 0 else None
        return self._evaluated

    def _say_goodbye(self, ctx: OnlineRLContext | OfflineRLContext) -> None:
        spent = format_duration(self._spent_s())
        count = self._row[self._step] + (self._step == "total_step")  # the last iteration is finished as well
        taken = f"{count:,} {_STEPS.get(self._step, self._step)}"
        reason = own_run().end_reason
        (value, at), steps = self._last_evaluation(ctx), getattr(ctx, "train_iter", None)
        line = end_line(taken, spent, reason, value, at, steps)
        self._console.say(line + self._where())
        _logger.info("%s", line)
        self._has_logged_end = True

    def _where(self) -> str:
        """The files of this run, for the last line on the console."""
        if self._folder is None:
            return ""
        saved = self._folder / "ckpt"
        left = [f"curve: {self._name}/metrics.jsonl"] if (self._folder / "metrics.jsonl").is_file() else []
        if saved.is_dir() and any(path.stat().st_mtime >= self._began_at - 1 for path in saved.iterdir()):
            left.append(f"checkpoints: {self._name}/ckpt")
        listed = ", ".join(left)
        return f" {listed[0].upper()}{listed[1:]}" if listed else ""

    def _write_config(self, path: Path) -> None:
        assert self._cfg is not None
        facts = {"run": self._facts} if self._facts else {}
        write_atomically(path, json.dumps(json_value({**self._cfg.to_dict(), **facts}), indent=2).encode())

    def release(self) -> None:
        """Close the sinks, restore the terminal, and let other processes write to the folder; a later run continues with the
        same files."""
        self._console.close()
        if self._sinks is not None:
            self._sinks.close()
        self._earlier_s = self._spent_s()
        task, self._task = self._task, None
        if task is not None and task.max_lag + task.async_mode:
            with contextlib.suppress(RuntimeError):  # no iteration was completed
                self._keep("the picture of the lanes", "timeline.svg", task.timeline)
                self._keep("what overlapping brought", "lanes.txt", task.report)
        if self._run_log is not None:
            if not self._has_logged_end:
                reason = None if task is None else task.end_reason
                _logger.info("the task is stopped%s", "" if reason is None else f", because {reason}")
            self._run_log.close()
            self._run_log = None
        copy, self._copy, self._knows_copy = self._copy, None, False
        if copy is not None:
            copy_late_files(copy)
        if self.run_record is not None:
            self.run_record.end()

    def _keep(self, what: str, name: str, write: Callable[[Path], object]) -> None:
        """Write a file into the run's folder, if there is one; a failure is a warning."""
        if self._folder is None:
            return
        try:
            with writing(self._folder / name):
                write(self._folder / name)
        except WriteError as error:
            self._warn_of(what, error)

    def _warn_of(self, what: str, error: WriteError) -> None:
        warnings.warn(f"{what} is not written to {self._folder}: {error} Training goes on.", stacklevel=3)

    def state_dict(self) -> dict[str, Any]:
        """The metrics so far, and the step of the last row."""
        return {
            "tally": self._aggregator.state_dict(),
            "time_s": self._spent_s(),
            "after": self._after,
            "file_rows": {name: file.rows for name, file in self._files.items()} or dict(self._kept[1]),
            "written_iter": self._written_iter,
            "is_behind": self._is_behind,
            "run_id": None if self.run_record is None else self.run_record.last_id,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. Before the first iteration, existing files are continued, without the rows since then."""
        self._aggregator.load_state_dict(state["tally"])
        self._earlier_s, self._written_iter, self._done = state["time_s"], state["written_iter"], 0
        self._is_behind = state.get("is_behind", False)
        if self.run_record is not None:
            is_older = "run_id" not in state and state["after"] is not None
            self.run_record.continue_from("" if is_older else state.get("run_id"))
        if self._task is None:
            self._after, rows = state["after"], state.get("file_rows")
            if rows is None:  # older states have one number, or none
                rows = {} if state.get("rows") is None else dict.fromkeys(_ROW_FILES, state["rows"])
            self._kept, self._files = (self._after, rows), {}
