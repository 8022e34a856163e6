"""Terminations: end a run at stop_value or at a limit of steps, in one process or several."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from ding_lite.basics import foreign_arguments
from ding_lite.contexts import OfflineRLContext, OnlineRLContext
from ding_lite.engine import EndReason, contract, current_task
from ding_lite.middleware.own_runs import own_run
from ding_lite.ranks import RankError, Ranks, current_ranks

_EVALUATION = ("last_eval_value", "last_eval_iter")
_MOST_STATES = 4  # that processes compare; a saver keeps two


def finish_if_reached(ctx: OnlineRLContext | OfflineRLContext, stop_value: float, found: str) -> bool:
    """End the run with this iteration if its evaluation has reached stop_value. Returns whether it has.

    Args:
        ctx: the context, with eval_value.
        stop_value: the value to reach.
        found: what found the value, for the message.
    """
    if not ctx.eval_value >= stop_value:
        return False
    own_run().finish_because(f"stop_value {stop_value:g} was reached: {found}")
    return True


@foreign_arguments({})
def termination_checker(
    max_env_step: int | None = None, max_train_iter: int | None = None
) -> Callable[[OnlineRLContext], None]:
    """End the run with the iteration in which a limit is reached.

    Reads:
        ctx.env_step, ctx.train_iter, if they are limited.

    Args:
        max_env_step: environment steps.
        max_train_iter: gradient steps.

    Raises:
        ValueError: no limit is set, or a limit is not a number of at least 1.
    """
    limits = {name: limit for name, limit in (("env_step", max_env_step), ("train_iter", max_train_iter)) if limit is not None}
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, numbers.Real) or not limit >= 1:
            raise ValueError(f"termination_checker(max_{name}={limit!r}) wants a number of steps, at least 1.")
    if not limits:
        raise ValueError("termination_checker() without a limit never ends anything: set max_env_step or max_train_iter.")

    @contract(reads=tuple(limits), stage="record")
    def check(ctx: OnlineRLContext) -> None:
        task = current_task()
        for name, limit in limits.items():
            value = getattr(ctx, name)
            task.progress = min(value / limit, 1.0)
            if value >= limit:
                task.finish_because(f"termination_checker found {name} {value:,}, and max_{name} is {limit:,}")

    return check


@foreign_arguments({})
def ddp_termination_checker(
    max_env_step: int | None = None, max_train_iter: int | None = None, rank: int | None = None
) -> DDPTerminationChecker:
    """End the processes of a data-parallel run after the same iteration: at a limit, or when one of them is to end.

    The reason may be a limit here, stop_value, `task.finish`, or a signal, in any process. Without torchrun, this is
    `termination_checker`, or does nothing if no limit is set.

    Reads:
        ctx.env_step, the environment steps of all processes, and ctx.train_iter, if they are limited.
    Writes:
        ctx.last_eval_value, ctx.last_eval_iter: those of rank 0, which evaluates; if the context has them.

    Args:
        max_env_step: environment steps of all processes.
        max_train_iter: gradient steps.
        rank: rank of this process, as in DI-engine; None for that of torchrun.

    Raises:
        ValueError: a limit is not a number of at least 1; or `rank` is not that of this process.
        RuntimeError: at the beginning of the run: it is asynchronous or has a lag.
        RankError: in an iteration: another process has failed, or runs another pipeline.
    """
    ranks = current_ranks()
    own = 0 if ranks is None else ranks.rank
    if rank is not None and rank != own:
        raise ValueError(
            f"ddp_termination_checker(rank={rank!r}) is called in the process with rank {own}: leave the argument out. Several "
            "processes are started by torchrun, and learn together in a block `with data_parallel(cfg) as cfg:`."
        )
    limits = [name for name, limit in (("env_step", max_env_step), ("train_iter", max_train_iter)) if limit is not None]
    return DDPTerminationChecker(termination_checker(max_env_step, max_train_iter) if limits else None, limits)


class DDPTerminationChecker:
    """The middleware that `ddp_termination_checker` returns.

    Args:
        check: checks the limits; None without limits.
        limits: the counters that it reads.
    """

    def __init__(self, check: Callable[[OnlineRLContext], None] | None, limits: Sequence[str]) -> None:
        self.__name__ = "ddp_termination_checker"
        self._check = check
        taken = () if current_ranks() is None else _EVALUATION  # from rank 0, at the end of the run
        contract(reads=limits, may_read=taken, may_write=taken, uses=(self,), stage="record")(self)

    def __call__(self, ctx: Any) -> None:
        if self._check is not None:
            self._check(ctx)

    def begin_run(self) -> None:
        """Check that the run is not asynchronous. The task calls it."""
        ranks, task = current_ranks(), own_run()
        if ranks is None:
            return
        if task.async_mode or task.max_lag:
            raise RuntimeError(
                "a data-parallel run is neither asynchronous nor has it a lag, because all processes exchange numbers in the "
                "same order: leave async_mode and max_lag of task.start() out."
            )
        ranks.ends_together = ranks.is_running = True
        ranks.is_interrupted = lambda: task.is_cut

    def agree(self, ctx: Any, reason: EndReason | None) -> EndReason | None:
        """The reason why all processes end after this iteration, that of the lowest rank; None if no process is to end."""
        ranks = current_ranks()
        if ranks is None:
            return reason
        place = f"the end of iteration {ctx.total_step}"
        asks = self._exchange(ranks, place, ctx, reason is not None)
        ranks.iteration += 1
        ranks.is_running = not asks and own_run().steps_left > 0
        if not asks:
            return None
        kind, _, words = ranks.texts(place, "" if reason is None else f"{reason.kind} {reason.words}")[asks[0]].partition(" ")
        if reason is not None and (reason.kind, reason.words) == (kind, words):
            return reason
        return EndReason(cast("Any", kind), f"{words}, in rank {asks[0]}")

    def end_run(self, ctx: Any) -> Iterator[None]:
        """Wait until all processes have ended their runs, take the last evaluation of rank 0, and compare the weights."""
        yield
        ranks = current_ranks()
        if ranks is not None and not own_run().is_end_repeated:
            ranks.is_running = False
            self._exchange(ranks, "the end of the run", ctx)
            ranks.require_equal_weights("the end of the run")

    def _exchange(self, ranks: Ranks, what: str, ctx: Any, asks: bool = False) -> list[int]:
        """Take the last evaluation of rank 0. Returns the ranks that ask to end."""
        found = ranks.exchange(what, [asks, *(getattr(ctx, name, math.nan) for name in _EVALUATION)])
        for name, value in zip(_EVALUATION, found[0, 1:].tolist()):
            if ranks.rank and hasattr(ctx, name):
                setattr(ctx, name, type(getattr(ctx, name))(value))
        return [rank for rank in range(ranks.size) if found[rank, 0]]

    def choose_state(self, saved: Sequence[int]) -> int | None:
        """The number of iterations after which to resume: the newest state that all processes have saved.

        Raises:
            RankError: there is none.
        """
        ranks = current_ranks()
        if ranks is None:
            return None
        padded = [*saved, *[-1] * _MOST_STATES][:_MOST_STATES]
        found: list[list[int]] = ranks.exchange("the saved states", padded).int().tolist()
        common = set(found[0]).intersection(*found) - {-1}
        if not common:
            raise RankError(f"no state was saved by all processes: those of the ranks are after {found} iterations.")
        return max(common)

    def state_dict(self) -> dict[str, Any]:
        """The number of processes."""
        ranks = current_ranks()
        return {"ranks": 1 if ranks is None else ranks.size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check that a saved run had as many processes.

        Raises:
            ValueError: it had not.
        """
        own = self.state_dict()["ranks"]
        if state["ranks"] != own:
            raise ValueError(
                f"the run was saved by {state['ranks']} processes, and continues with {own}: start it with "
                f"torchrun --nproc-per-node {state['ranks']}."
            )
