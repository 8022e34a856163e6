"""Checkpoints: save the policy during and after a run."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from ding_lite.basics import (
    RunCopy,
    RunRecord,
    UnsavedError,
    WriteError,
    absolute,
    move_aside,
    plain,
    require_no_uri,
    require_writable,
    save_checkpoint,
    tell,
)
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.engine import Context, EndReason, contract
from ding_lite.middleware.arguments import require_count
from ding_lite.middleware.own_runs import own_run, warn_of_idle_policies
from ding_lite.middleware.run_beginnings import begin_record
from ding_lite.middleware.run_copies import finish_copy
from ding_lite.middleware.run_savers import RunSaver
from ding_lite.policy import ActMode, LearnMode
from ding_lite.policy_state.network_copies import detached_copy
from ding_lite.ranks import current_ranks, is_first_rank
from ding_lite.rollout.metrics_aggregators import evaluation_of

_COUNTERS = ("env_step", "env_episode", "train_iter", "train_epoch")
_EVALUATION = ("eval_value", "eval_weights", "last_eval_iter")
_RESERVED = ("counters", "eval_value", "evaluated_at", "is_untrained", "policies")
"""Keys of a file that belong to no object."""
_LONGEST_REST = 64  # iterations between two attempts after failures to write

_logger = logging.getLogger(__name__)


class HasState(Protocol):
    """A policy, a torch module, an optimizer, or an object of the user."""

    def state_dict(self) -> Any:
        """The state as plain data."""


class CkptSaver:
    """Save the policy regularly, after its best evaluation, and at the end of the run.

    It writes to `save_dir/ckpt`: `iteration_N.pt`, the whole policy after N gradient steps, every `train_freq` steps, of which
    the last `keep_last` are kept; `best.pt`, the weights with the best evaluation and its value; `final.pt`, the whole policy
    at the end of the run. The evaluation of the final weights counts for `best.pt` too. If the process dies while it writes, a
    file is complete or absent. `load_checkpoint` reads the files without executing code. When a new run begins, the files of an
    earlier one in the folder are renamed, `ckpt` to `ckpt.1` and so on.

    With `train_freq`, at the same intervals and at the end of a run by max_step, it saves the state of the whole run, to
    `save_dir/run`: everything in the pipeline that has a `state_dict`. When a signal ends the run, it does so even without
    `train_freq`; if the signal comes during the end of the run, after that. From there, `task.start(resume=save_dir)` continues
    the run bit for bit. Only new transitions of replay buffers are written; if there are many, several iterations write a part
    each. Regular saves of the run are left out as long as they would take more than 1% of the time.

    With a storage (`cfg.storage_path`, or `task.start(storage_path=...)`), the folder is copied there after each save of the
    run, on a thread of its own, and at the end of the run. See docs/reliability.md.

    No other process can write to the folder meanwhile. `run.json` has the id of the run and the processes that worked on it;
    `error.txt` has the error that ended it.

    A file that cannot be written does not end the run: one warning gives path, reason and fix, and later iterations try again,
    at intervals of 1, 2, 4, ... and at most 64 iterations. If the final state cannot be written, `task.run` raises
    `UnsavedError` after the run has ended.

    An evaluator of the user writes ctx.eval_value and ctx.eval_weights: the weights that it evaluated, such as
    `policy.eval_mode.get_weights()`, or a dict of these by name for several policies. Without eval_weights, `best.pt` is the
    policy at the end of the iteration, if ctx.last_eval_iter equals ctx.train_iter. If not, `best.pt` is not written, and a
    warning says so.

    Objects other than policies can be saved too. Each file also holds `counters`, the arguments for the context of a run that
    continues from it:

    | saved | in the file |
    | --- | --- |
    | a policy | its state: `policy.load_state_dict(load_checkpoint(path))` |
    | another object with `state_dict`, such as a torch module | `load_checkpoint(path)["model"]` |
    | a dict of policies | `load_checkpoint(path)["policies"]["name"]` |
    | a dict of other objects, such as a module and its optimizer | `load_checkpoint(path)["name"]` |

    In a context without `train_iter`, N and `train_freq` count finished iterations.

    Reads, if the context has them:
        ctx.train_iter, ctx.env_step, ctx.env_episode, ctx.train_epoch, ctx.total_step; ctx.eval_value, ctx.eval_weights and
        ctx.last_eval_iter. All are read at the end of the iteration, when every first half has run. If a middleware sets one
        of them after its `yield`, CkptSaver must stand before it, because second halves run in reverse order.

    Args:
        policy: object to save, or a dict of several by name, as with multi_agent_evaluator.
        save_dir: folder of the run on this machine, such as cfg.exp_name. A leading `~` is the home folder.
        train_freq: gradient steps between two regular checkpoints, at least 1; None for none.
        save_finish: whether to save at the end of the run.
        keep_last: number of regular checkpoints to keep, at least 1.
        counters: further fields of the context to save as counters.

    Raises:
        TypeError: something has no `state_dict`, or one with other things than plain data in it.
        WriteError: nothing can be written to `save_dir`.
        FolderInUseError: another process writes to `save_dir`. If there is no such folder yet, it is locked before
            the first iteration. Before that, another open task of this process writes to it.
        ValueError: `save_dir` is a URI. Or, before the first iteration: another one of the pipeline saves to the same folder;
            the run that is resumed is in another one.
    """

    reads_at_end = True
    """Only its second half reads fields."""

    def __init__(
        self,
        policy: HasState | Mapping[str, HasState],
        save_dir: str | PathLike[str],
        train_freq: int | None = None,
        save_finish: bool = True,
        keep_last: int = 3,
        counters: Sequence[str] = (),
    ) -> None:
        _require_savable(policy)
        if train_freq is not None:
            require_count("CkptSaver", "train_freq", train_freq, low=1)
        require_count("CkptSaver", "keep_last", keep_last, low=1)
        if not isinstance(save_dir, (str, PathLike)):
            kind = type(save_dir).__name__
            raise TypeError(f"CkptSaver wants the run's folder, such as cfg.exp_name, got {save_dir!r:.80} of type {kind}.")
        if not os.fspath(save_dir).strip():
            raise ValueError(
                f"CkptSaver got {save_dir!r} as the run's folder, which names none: pass one, such as cfg.exp_name."
            )
        require_no_uri(save_dir, "save_dir of CkptSaver")
        if isinstance(counters, str):
            raise TypeError(f"CkptSaver(counters={counters!r}) wants several names of fields: write ({counters!r},).")
        self._policy, self._name, self._folder = policy, Path(save_dir), absolute(save_dir) / "ckpt"
        require_writable(self._folder / "final.pt")
        self.run_record = RunRecord(save_dir)
        """The record of the run."""
        self._run_saver = RunSaver(self.run_record, is_regular=train_freq is not None)
        self.run_record.lock.take_if_exists()
        self._train_freq, self._save_finish, self._keep_last = train_freq, save_finish, keep_last
        self._counters = tuple(dict.fromkeys((*_COUNTERS, *counters)))
        self._last_iter = self._done = 0
        self._best = -float("inf")
        self._better: tuple[float, dict[str, Any]] | None = None
        """Value and content of a `best.pt` that is not written yet."""
        self._kept: list[str] = []
        self._has_begun, self._is_first = False, True
        self._began_untrained: bool | None = None
        """Whether nothing had changed the weights when the run began; None if unknown."""
        self._failures, self._rest = 0, 0
        self._warned: set[tuple[str, int | None]] = set()
        self._final_step, self._has_warned, self._has_warned_of_value = -1, False, False
        self._unsaved: UnsavedError | None = None
        contract(
            reads_after=counters,
            may_read=(*_COUNTERS, *_EVALUATION),
            uses=(self, *(getattr(one, "learn_mode", one) for one in _things(policy))),
            stage="record",
        )(self)

    def __call__(self, ctx: OnlineRLContext | OfflineRLContext | Context) -> Iterator[None]:
        if not self.run_record.is_begun:
            self._begin_record(ctx.total_step)
        if not self._has_begun:
            self._begin()
        yield
        self._done = ctx.total_step + 1
        self.run_record.count(self._done)
        self._note_best(ctx)
        problem = None if self.run_copy is None else self.run_copy.problem()
        if problem is not None:
            warnings.warn(problem, stacklevel=2)
        if current_ranks() is None:  # otherwise `agree` saves, after a comparison of the weights of all processes
            self._save_in_run(ctx)

    def _save_in_run(self, ctx: Any) -> None:
        """Save what is due after an iteration."""
        if own_run().finish:  # saved here already, in case the end of the run is not reached
            self._save_last(ctx)
            return
        self._rest = max(self._rest - 1, 0)
        if self._rest:
            return
        last_iter = self._last_iter
        for kind, error in (("iteration", self._save_regular(ctx)), ("best", self._save_best())):
            if error is not None and (kind, error.errno) not in self._warned:
                self._warned.add((kind, error.errno))
                warnings.warn(f"{error} The run goes on, and later iterations try again.", stacklevel=3)
        if is_first_rank() and self._run_saver.is_due(is_wanted=self._last_iter != last_iter):
            self._run_saver.ask()

    def agree(self, ctx: Any, reason: EndReason | None) -> EndReason | None:
        """Save the policy, and the runs of all processes, after the iteration in which rank 0 saves.

        The weights of all processes are compared before. The task calls it.

        Raises:
            RankError: they differ, so nothing is saved.
        """
        ranks = current_ranks()
        if ranks is None or not ranks.exchange("saving", [self._is_due(ctx)])[0, 0]:
            return reason
        ranks.require_equal_weights("saving")
        self._save_in_run(ctx)
        if ranks.exchange("saving the run", [self._run_saver.is_asked])[0, 0] and ranks.rank:
            self._run_saver.ask()
        return reason

    def _is_due(self, ctx: Any) -> bool:
        """Whether `_save_in_run` may have something to save."""
        is_regular = self._train_freq is not None and _count(ctx) - self._last_iter >= self._train_freq
        return is_regular or self._better is not None or self._run_saver.is_postponed or bool(own_run().finish)

    @property
    def run_copy(self) -> RunCopy | None:
        """The copy of the folder in a storage, during a run; None if it has none."""
        return self._run_saver.run_copy

    def save_run(self) -> None:
        """Save the state of the whole run, and copy it to a storage. The task calls it at the end of a run."""
        self._run_saver.save()

    def begin_run(self) -> None:
        """Keep other processes from writing to the folder, and begin `run.json`. The task calls it.

        Raises:
            FolderInUseError: another process, or another open task, writes to the folder.
            StorageError: the storage cannot be written to; the copy is one of another run, or is ahead of the folder.
            ValueError: another saver of the pipeline writes to the folder, or the run that is resumed is in another one.
        """
        self.require_folder()
        if own_run().ctx.total_step < self._done:  # this saver was in an earlier run of the process
            self._last_iter, self._final_step, self._done = 0, -1, 0
        if self._began_untrained is None and self._is_first:
            self._began_untrained = all(_is_new(one) for one in _things(self._policy))
        self._run_saver.is_asked = False  # an earlier run may have ended by an error before the save that it asked for
        self.run_record.move_error_aside()
        if not self.run_record.is_begun:
            self._begin_record(own_run().ctx.total_step)
        self._run_saver.claim_copy()

    def note_error(self, error: Exception) -> None:
        """Write the error that ends the run to `error.txt`, if the run has begun. The task calls it."""
        self.run_record.note_error(error)

    def _begin_record(self, done: int) -> None:
        with contextlib.suppress(WriteError):  # the first save fails as well, with a warning
            begin_record(self, done)

    def require_folder(self) -> None:
        """Raise an error if this saver cannot write to its folder in this run. A copy in a storage has begun then.

        Raises:
            FolderInUseError: another process writes to the folder.
            StorageError: the storage cannot be written to; the copy is one of another run, or is ahead of the folder.
            ValueError: another saver of the pipeline writes to the folder, or the run that is resumed is in another one.
        """
        task, place = own_run(), os.path.realpath(self._folder)
        savers = [it for it in task.middleware_objects() if isinstance(it, CkptSaver)]
        if any(it is not self and os.path.realpath(it._folder) == place for it in savers):  # would overwrite the files
            raise ValueError(
                f"two CkptSavers of one pipeline write to {self._name}, and each would overwrite what the other saves: give "
                "one another save_dir, or save both things by one, CkptSaver({'name': thing, 'other': thing}, save_dir)."
            )
        resumed, folders = task.resumed_from, [os.path.realpath(it.run_record.folder) for it in (self, *savers)]
        if resumed is not None and os.path.realpath(resumed) not in folders:
            raise ValueError(
                f"the run in {resumed} is resumed, and CkptSaver writes to {self._name}: pass the same folder to both, or copy "
                "the folder first to continue it twice."
            )
        self.run_record.lock.take()
        if self in savers:  # the task calls release, which ends the copy
            self._run_saver.begin_copy(is_continued=self._has_begun)

    def _begin(self) -> None:
        if self._is_first and own_run().resumed_from is None:
            self._run_saver.make_room()
        warn_of_idle_policies("CkptSaver", "saves", _things(self._policy))
        self._has_begun = True

    def end_run(self, ctx: Any) -> Iterator[None]:
        """Save everything that is not saved yet, including the best weights after the last evaluation."""
        self._run_saver.is_asked = False  # if the run ended before
        if not self._has_begun:  # a resumed run had no iterations left
            self._begin()
        yield
        self._note_best(ctx)
        ranks = current_ranks()
        if ranks is not None:
            if own_run().is_end_repeated:  # in this process only; the last pass saves
                return
            ranks.require_equal_weights("the end of the run")
        self._save_last(ctx)
        if self.run_copy is not None and not own_run().is_end_repeated:
            missing = finish_copy(self.run_copy, own_run().watchdog_s)
            if missing is not None:
                own_run().raise_at_end(missing)
        reason = own_run().end_reason
        if reason is not None and reason.kind == "signal" and self._final_step == ctx.total_step and is_first_rank():
            # A signal during the end of the run saves it only afterwards.
            is_resumable = self._run_saver.saved_step == ctx.total_step + 1
            fix = f"; continue the run with task.start(resume={json.dumps(str(self._name))})" if is_resumable else ""
            tell(f"{reason}: the final state is saved in {self._name / 'ckpt/final.pt'}{fix}")

    def _save_last(self, ctx: Any) -> None:
        """Save everything that is not saved yet; a failure is raised after all middleware have ended."""
        if self._unsaved is not None:  # it may succeed now
            own_run().withdraw(self._unsaved)
            self._unsaved = None
        regular, best, last = self._save_regular(ctx), self._save_best(), self._save_final(ctx)
        if not self._save_finish:
            last = regular
        lost = last or best
        if lost is None:
            return
        kept = f" The newest checkpoint of the run is {self._folder / self._kept[-1]}." if self._kept else ""
        what = "its state at the end" if lost is last else "the best policy"
        self._unsaved = UnsavedError(
            lost.errno,
            f"the run has ended, but {what} is not saved: {lost}{kept} While this process is alive, "
            "save_checkpoint(policy.state_dict(), path) can still save it elsewhere.",
            lost.filename,
        )
        own_run().raise_at_end(self._unsaved)

    def _save_regular(self, ctx: Any) -> WriteError | None:
        """Save `iteration_N.pt` if it is due."""
        count = _count(ctx)
        if self._train_freq is None or count - self._last_iter < self._train_freq:
            return None
        name = f"iteration_{count}.pt"
        error = self._save({**self._whole(), **self._counted(ctx)}, name)
        if error is not None:
            return error
        self._last_iter = count
        self._kept = [*(old for old in self._kept if old != name), name]
        for old in self._kept[: -self._keep_last]:
            try:
                (self._folder / old).unlink(missing_ok=True)
            except OSError as refused:
                warnings.warn(f"cannot remove {self._folder / old} ({refused.strerror}): remove it by hand.", stacklevel=2)
        self._kept = self._kept[-self._keep_last :]
        return None

    def _note_best(self, ctx: Any) -> None:
        """Note the weights that this iteration evaluated, if they are the best so far."""
        value = evaluation_of(ctx)
        if value is None or not value > (self._better[0] if self._better else self._best):
            if value is not None and value != value:
                self._warn_of_value(ctx)
            return
        weights, last_iter = getattr(ctx, "eval_weights", None), getattr(ctx, "last_eval_iter", None)
        if weights is None and last_iter is not None and last_iter != _count(ctx):
            self._warn_of_lost_weights(ctx)
            return
        # An evaluator that does not write last_eval_iter leaves it at -1: the gradient steps of its weights are unknown.
        evaluated_at = _count(ctx) if last_iter is None else last_iter if last_iter >= 0 else None
        lineage: dict[str, Any] = {"eval_value": value, "evaluated_at": evaluated_at}
        if self._began_untrained is not None:
            lineage["is_untrained"] = self._began_untrained and evaluated_at == 0
        best = detached_copy(self._whole()) if weights is None else self._best_of(weights)  # a copy: it may be written later
        self._better = value, {**best, **lineage, **self._counted(ctx)}

    def _warn_of_value(self, ctx: Any) -> None:
        if not self._has_warned_of_value:
            self._has_warned_of_value = True
            warnings.warn(
                f"ctx.eval_value is {ctx.eval_value} after {_count(ctx)} gradient steps, and best.pt is not written for it: "
                "correct the score, or the metric, that the evaluator computes from episodes.",
                stacklevel=3,
            )

    def _warn_of_lost_weights(self, ctx: Any) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"a middleware wrote ctx.eval_value = {ctx.eval_value:g} without ctx.eval_weights, and best.pt is not written: "
                f"ctx.last_eval_iter is not ctx.train_iter = {_count(ctx)}, so the policy may have changed since it was "
                "evaluated. Write ctx.eval_weights = policy.eval_mode.get_weights() in the evaluator, or "
                "ctx.last_eval_iter = ctx.train_iter if no later middleware of the iteration learns.",
                stacklevel=3,
            )

    def _save_best(self) -> WriteError | None:
        """Save `best.pt` if the best weights are not on the disk yet."""
        if self._better is None:
            return None
        value, state = self._better
        error = self._save(state, "best.pt")
        if error is None:
            self._best, self._better = value, None
        return error

    def _save_final(self, ctx: Any) -> WriteError | None:
        """Save `final.pt`, unless save_finish is False or it is saved already."""
        if not self._save_finish or self._final_step == ctx.total_step:
            return None
        error = self._save({**self._whole(), **self._counted(ctx)}, "final.pt")
        self._final_step = ctx.total_step if error is None else -1
        return error

    def _save(self, state: Mapping[str, Any], name: str) -> WriteError | None:
        """Write one file; a failure is returned, not raised. Of the processes that learn together, only rank 0 writes it."""
        if not is_first_rank():
            return None
        try:
            if self._is_first:
                move_aside(self._folder)
            self._is_first = False
            save_checkpoint(state, self._folder / name)
            _logger.debug("%s is saved", self._folder / name)
        except WriteError as error:
            self._failures += 1
            self._rest = min(2 ** (self._failures - 1), _LONGEST_REST)
            return error
        self._failures = 0
        self._warned = {(kind, number) for kind, number in self._warned if not name.startswith(kind)}
        return None

    def _whole(self) -> dict[str, Any]:
        policy = self._policy
        if not isinstance(policy, Mapping):
            state: dict[str, Any] = policy.state_dict()
            return state if _is_policy(policy) else {"model": state}
        states = {name: one.state_dict() for name, one in policy.items()}
        return {"policies": states} if _are_policies(policy) else states

    def _best_of(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        policy = self._policy
        if not isinstance(policy, Mapping) or not policy.keys() & weights.keys():
            return _weights_of(policy, weights)
        known = [name for name in policy if name in weights]
        named = {
            name: _weights_of(policy[name], weights[name]) if _is_policy(policy[name]) else weights[name] for name in known
        }
        return {"policies": named} if _are_policies(policy) else named

    def _counted(self, ctx: Any) -> dict[str, Any]:
        counters = {name: getattr(ctx, name) for name in self._counters if hasattr(ctx, name)}
        return {"counters": {**counters, "total_step": ctx.total_step + 1}}  # this iteration is finished as well

    def release(self) -> None:
        """Let other processes write to the folder, until the next run of this saver begins."""
        self._run_saver.release()
        self.run_record.end()

    def state_dict(self) -> dict[str, Any]:
        """The steps, values and names of the last checkpoints, and the content of a `best.pt` that is not written yet."""
        return {
            "last_iter": self._last_iter,
            "best": self._best,
            "better": self._better,
            "kept": list(self._kept),
            "final_step": self._final_step,
            "began_untrained": self._began_untrained,
            "run_id": self.run_record.last_id,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._last_iter, self._best, self._kept = state["last_iter"], state["best"], list(state["kept"])
        self._final_step, self._better = state.get("final_step", -1), state.get("better")  # older states do not have them
        self._began_untrained, self._is_first, self._done = state.get("began_untrained"), False, 0
        self.run_record.continue_from(state.get("run_id"))


def _count(ctx: Any) -> int:
    """Gradient steps so far, or finished iterations if the context does not count gradient steps."""
    count: int = ctx.train_iter if hasattr(ctx, "train_iter") else ctx.total_step + 1
    return count


def _is_policy(one: object) -> bool:
    return hasattr(one, "learn_mode")


def _is_new(one: Any) -> bool:
    """Whether a policy has neither learned nor got other weights; True for other objects, which do not say."""
    return not _is_policy(one) or getattr(one, "version", 0) == getattr(one, "train_iter", 0) == 0


def _things(policy: HasState | Mapping[str, HasState]) -> tuple[HasState, ...]:
    return tuple(policy.values()) if isinstance(policy, Mapping) else (policy,)


def _are_policies(policy: Mapping[str, HasState]) -> bool:
    return all(_is_policy(one) for one in policy.values())


def _require_savable(policy: Any) -> None:
    """Refuse objects that cannot be saved, before anything runs."""
    if not isinstance(policy, Mapping):
        _require_state("the policy itself", policy)
        return
    if not policy:
        raise ValueError("CkptSaver({}) has nothing to save: name what it saves, such as {'model': model}.")
    for name, one in policy.items():
        if not isinstance(name, str) or name in _RESERVED:
            raise ValueError(f"CkptSaver cannot save anything as {name!r}: take a string other than {', '.join(_RESERVED)}.")
        _require_state(f"the policy itself as {name!r}", one)


def _require_state(described: str, one: Any) -> None:
    start = f"CkptSaver wants {described}, got {one!r:.80} of type {type(one).__name__}"
    if isinstance(one, (LearnMode, ActMode)):
        raise TypeError(f"{start}: pass the policy that it belongs to.")
    if isinstance(one, type):
        raise TypeError(f"{start}, the class: make an object of it, {one.__name__}(...).")
    if not callable(getattr(one, "state_dict", None)):
        fix = "pass the model, not its state_dict()" if hasattr(one, "shape") else "a torch module or an optimizer has one"
        raise TypeError(f"{start}, which has no state_dict(): {fix}.")
    if not _is_policy(one):
        plain(one.state_dict(), f"what CkptSaver gets from {type(one).__name__}.state_dict()")


def _weights_of(policy: object, weights: Any) -> dict[str, Any]:
    """The weights, and `made_with` if the policy has it."""
    made_with = getattr(policy, "made_with", None)
    return {"model": weights, **({} if made_with is None else {"made_with": made_with})}
