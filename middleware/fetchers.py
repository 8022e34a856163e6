"""Fetchers: from storage, or from the rollout as it is, to what is learned from."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from ding_lite.basics import base_state, foreign_arguments
from ding_lite.config import RunConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.contexts.train_outputs import train_output_of
from ding_lite.data import Buffers, Tree, nested, sampler
from ding_lite.data.batches import BatchPrefetcher, PreparedBatch
from ding_lite.data.trees import has_leaf
from ding_lite.engine import contract, current_task
from ding_lite.middleware.arguments import policy_settings, require_mode, require_settings, warn_of_other_settings
from ding_lite.middleware.collected import COLLECTED_TERMS, collected_data, copied_batch
from ding_lite.middleware.foreign_names import ARGUMENTS
from ding_lite.middleware.own_runs import own_run
from ding_lite.policy import LearnMode
from ding_lite.policy_base import SKIPPED_FRACTION
from ding_lite.ranks import current_ranks, in_all_ranks


@foreign_arguments(ARGUMENTS["offpolicy_data_fetcher"])
def offpolicy_data_fetcher(
    cfg: RunConfig, buffer_: Buffers, policy: LearnMode | None = None, reward_model: Any = None
) -> Callable[[OnlineRLContext], Iterator[None] | None]:
    """Sample a batch of transitions, once there are enough of them.

    From a prioritised buffer, the batch also has weight and index. After learning from it, the buffer gets the new priorities
    that the policy's loss returned.

    Reads, for a prioritised buffer, at the end of the iteration:
        ctx.train_output: priority [B], or a dict of priorities by the buffer's name.
    Writes:
        ctx.train_data: a tree [B, ...] of the buffer's columns, or a dict of such trees by the buffers' names; None while there
            are too few transitions.

    Args:
        cfg: uses policy.learn.batch_size and policy.learn.learning_starts, both in transitions; and policy.nstep, where there
            is one, to warn where a policy that reads `discount` would learn from rewards of one step instead.
        buffer_: sampled; a list [(buffer, share), ...] for batches joined from shares of each, a dict {name: buffer} for a
            batch of each; or the result of `sampler` for one of these. Learning starts when the buffers together hold
            enough transitions, or are all full, and none is empty.
        policy: if given, only the columns that its hooks read are fetched, as far as they are known.
        reward_model: reads the batch before the policy does, so that the columns that it names are fetched too; from one
            buffer, also raw_reward, if the buffer has this column, which the model keeps.

    Raises:
        ValueError: a single buffer can never hold learning_starts transitions; a batch is larger than all buffers; shares do
            not sum to 1; or, after learning, the policy returned no priorities for a prioritised buffer.
        TypeError: not a replay buffer.
    """
    return replay_fetcher("offpolicy_data_fetcher", cfg, buffer_, policy, reward_model)


def replay_fetcher(
    who: str, cfg: RunConfig, buffer_: Buffers, policy: LearnMode | None = None, reward_model: Any = None
) -> Callable[[OnlineRLContext], Iterator[None] | None]:
    """`offpolicy_data_fetcher` under the name of another middleware."""
    replay = Replay(cfg, buffer_, policy, reward_model, who=who)

    @contract(writes=("train_data",), **replay.terms, stage="learn")
    def fetch(ctx: OnlineRLContext) -> None:
        ctx.train_data = next((batch.data for batch in replay.batches(1)), None)

    @contract(writes=("train_data",), **replay.terms, stage="learn", reads_after=("train_output",))
    def fetch_by_priority(ctx: OnlineRLContext) -> Iterator[None]:
        fetch(ctx)
        batch = ctx.train_data
        yield
        if batch is not None:
            output = train_output_of(ctx.train_output)
            replay.learned(batch, {**output} if output else ctx.train_output)

    fetcher = fetch_by_priority if replay.takes_priorities else fetch
    fetcher.__dict__.update(state_dict=replay.state_dict, load_state_dict=replay.load_state_dict, reads_batch_size=True)
    fetcher.__dict__.update(end_run=replay.end_run)
    fetcher.__dict__.update(data_lacks={"rollouts": "use an algorithm that learns from transitions, such as DQN or SAC"})
    fetcher.__qualname__ = f"{who}.<locals>.{fetcher.__name__}"  # its name in messages
    return fetcher


class Replay:
    """Samples batches from replay and updates priorities: see `offpolicy_data_fetcher`.

    Args:
        cfg, buffer_, policy, reward_model: as for `offpolicy_data_fetcher`.
        prefetch: whether another thread may prepare the next batch; if None, only if the policy learns on a GPU.
        who: name of the middleware, for messages.
    """

    def __init__(
        self,
        cfg: RunConfig,
        buffer_: Buffers,
        policy: LearnMode | None,
        reward_model: Any,
        prefetch: bool | None = False,
        who: str = "offpolicy_data_fetcher",
    ) -> None:
        if policy is not None:
            require_mode(who, policy, "learn_mode")
        self._source = source = sampler(buffer_, who)
        require_settings(who, cfg, "policy.learn.batch_size", "policy.learn.learning_starts")
        warn_of_other_settings(who, cfg, policy, "learn.batch_size", "learn.learning_starts", "nstep")
        self._settings = policy_settings(cfg).learn
        self._enough = self._batch_size = 0
        self._read_settings()
        # A reward model changes the batch before the policy learns from it.
        send = policy.sender() if isinstance(policy, LearnMode) and reward_model is None and prefetch is not False else None
        columns = columns_read(policy, reward_model)
        if columns is not None and reward_model is not None and len(source.buffers) == 1:  # several must all have what is read
            columns = (*columns, "raw_reward")
        self._batches = BatchPrefetcher(source, self._batch_size, columns, send)
        self._prefetches = send is not None if prefetch is None else prefetch
        self._nstep = getattr(cfg.policy, "nstep", 1)
        self._is_unchecked = self._nstep > 1 and "discount" in (getattr(policy, "columns", None) or ())
        self._has_warned, self._who = False, who
        self._waits: bool | None = None
        """Whether learning has not started yet; None before the first iteration."""
        self.takes_priorities = source.takes_priorities
        """Whether `learned` is to be called after each batch."""
        self.terms = drawing(cfg, buffer_)
        """Contract terms for a middleware that takes batches."""

    def _read_settings(self) -> None:
        """Read the settings, which may change in a run; see `Policy.reset_config`."""
        enough, batch_size = max(1, self._settings.learning_starts), self._settings.batch_size
        if (enough, batch_size) == (self._enough, self._batch_size):
            return
        buffers = self._source.buffers
        if len(buffers) == 1 and enough > (capacity := getattr(buffers[0], "capacity", enough)):
            raise ValueError(
                f"policy.learn.learning_starts = {enough:,}, and the replay buffer holds {capacity:,} transitions: learning "
                "would never start. Lower learning_starts, or use a larger buffer."
            )
        _require_room(batch_size, buffers)
        self._enough, self._batch_size = enough, batch_size

    def batches(self, count: int) -> Generator[PreparedBatch, None, None]:
        """Up to `count` batches; none while the buffers hold too little, in one of the processes that learn together. The
        generator must be closed."""
        self._read_settings()
        self._batches.size = self._batch_size
        beside, is_ready = self._prefetches and current_task().async_mode, self._is_ready
        if current_ranks() is not None:
            is_ready = partial(bool, in_all_ranks("the start of learning", self._is_ready()))
        batches = self._batches.take(count, is_ready, beside)
        return self._checked(batches) if self._is_unchecked else batches

    def _checked(self, batches: Generator[PreparedBatch, None, None]) -> Generator[PreparedBatch, None, None]:
        """The same batches; the first one of the run is checked."""
        with closing(batches):
            for batch in batches:
                if self._is_unchecked:
                    self._is_unchecked = False
                    _warn_of_single_steps(batch.data, self._nstep)
                yield batch

    def _is_ready(self) -> bool:
        is_ready = self._source.has_enough(self._enough)
        self._waits = self._waits is not False and not is_ready
        if not is_ready and not self._has_warned and (empty := self._source.waited_for(self._enough)):
            self._has_warned = True
            warnings.warn(
                f"learning waits for transitions in {' and in '.join(empty)}: push some, or leave out an empty buffer.",
                stacklevel=2,
            )
        return is_ready

    def end_run(self, ctx: Any) -> None:
        """Warn if no batch was taken in a whole run, because there were too few transitions."""
        if self._waits and not self._has_warned and not own_run().is_cut:
            self._has_warned = True
            warnings.warn(
                f"{self._who} has not begun to learn in this run: its replay holds {sum(map(len, self._source.buffers)):,} "
                f"transitions, and policy.learn.learning_starts = {self._enough:,}. If no run follows, lower it, or collect "
                "more.",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        """The number of rows that each buffer has given, if there are several."""
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._source.load_state_dict(base_state(self, state, self._source.state_dict()))

    def learned(self, batch: Tree, output: Any) -> None:
        """Update the priorities of a batch's rows in prioritised buffers, from the output of learning."""
        if not _is_skipped(output):
            self._source.update_priority(batch, _priority_in(output))


def _is_skipped(output: Any) -> bool:
    """Whether the gradient step was skipped, because it was not finite; it has no priorities."""
    return isinstance(output, Mapping) and "priority" not in output and output.get(SKIPPED_FRACTION) == 1


def _require_room(batch_size: int, buffers: Sequence[Any]) -> None:
    """Refuse a batch of more transitions than the buffers can hold: it would repeat them, and may exceed memory."""
    holds = sum(getattr(one, "capacity", batch_size) for one in buffers)
    if batch_size > holds:
        which = "buffer holds" if len(buffers) == 1 else "buffers hold"
        raise ValueError(
            f"policy.learn.batch_size = {batch_size:,}, and the replay {which} {holds:,} transitions: each batch would repeat "
            "some. Lower batch_size, or use a larger buffer."
        )


def drawing(cfg: RunConfig, buffer_: Buffers) -> Any:
    """Contract terms for a middleware that draws from these buffers."""
    pusher = "sequence_pusher" if hasattr(policy_settings(cfg).learn, "burn_in") else "data_pusher"
    return {"draws": sampler(buffer_).buffers, "hints": {"draws": f"{pusher}(cfg, buffer_)"}}


def _warn_of_single_steps(batch: Tree, nstep: int) -> None:
    """Warn if the rewards of a batch, or of a nested batch, are not n-step sums as the configuration says."""
    parts = [batch] if has_leaf(batch, "reward") else [part for part in nested(batch).values() if isinstance(part, dict)]
    if not all(has_leaf(part, "discount") for part in parts):
        warnings.warn(
            f"policy.nstep = {nstep}, and the replayed transitions have no discount: their rewards are one-step rewards. Put "
            "nstep_reward_enhancer before the pusher, or set policy.nstep = 1.",
            stacklevel=3,
        )


def columns_read(policy: LearnMode | None, reward_model: Any) -> tuple[str, ...] | None:
    """The columns of a batch that policy and reward model read; None, for all columns, if one of them does not say."""
    columns: dict[str, None] = {}
    for reader in (policy, *(() if reward_model is None else (reward_model,))):
        read = getattr(reader, "columns", None)
        if read is None:
            return None
        columns.update(dict.fromkeys(read))
    return tuple(columns)


def _priority_in(output: Any) -> Any:
    if isinstance(output, Mapping) and "priority" in output:
        return output["priority"]
    given = sorted(output) if isinstance(output, Mapping) else type(output).__name__
    raise ValueError(
        f"the replay buffer is prioritised, and the output of learning has no 'priority': {given}. Return it, [B], from the "
        "policy's loss among the values to log, or use a ReplayBuffer."
    )


def onpolicy_data_fetcher(cfg: RunConfig) -> Callable[[OnlineRLContext], None]:
    """Use the collected data as the training batch, for policies that compute returns themselves, for example in `postprocess`.

    Reads:
        ctx.episodes, or ctx.trajectories if no whole episodes were collected.
    Writes:
        ctx.train_data: a tree [T, B, ...], with valid [T, B] bool if some rows are not steps.

    Args:
        cfg: unused; kept for the common signature.
    """

    @contract(**COLLECTED_TERMS, writes=("train_data",), stage="process")
    def fetch(ctx: OnlineRLContext) -> None:
        found = collected_data(ctx, "onpolicy_data_fetcher", wants="pieces")
        ctx.train_data = copied_batch(found) if len(found) else None

    estimator = "replace it by gae_estimator(cfg, policy.collect_mode) or montecarlo_return_estimator"
    fetch.__dict__.update(data_lacks={"advantage": estimator, "return_": estimator})
    return fetch
