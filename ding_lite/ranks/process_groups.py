"""Groups of processes: joining and leaving one, and exchanging numbers so that a mistake is an error instead of a hang."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from ding_lite.basics.blocks import block
from ding_lite.basics.messages import describe_error, words_of

_INLINE = 61  # numbers that are sent together with the description
_RUNS, _FAILS = 0.0, 1.0
_LEAVE_S = 10.0  # that a process with an error waits for the others
_LONGEST_TEXT = 2000  # characters of an error that the other processes quote
_COMPARED_TO = 1e-6  # of the norm of a tensor


class RankError(RuntimeError):
    """The processes of a data-parallel run cannot continue together. All of them raise it."""


class Ranks:
    """The processes of a data-parallel run, as one of them sees them.

    Every process calls the same methods in the same order. Each call says what it is for; if the others are elsewhere, or have
    failed, all of them raise an error that says where each one is.

    Args:
        rank: number of this process, from 0.
        size: number of processes.
        timeout_s: seconds that a process waits for the others.
    """

    def __init__(self, rank: int, size: int, timeout_s: float) -> None:
        self.rank, self.size, self._timeout_s = rank, size, timeout_s
        self.ends_together = False
        """Whether a `ddp_termination_checker` of the pipeline has begun a run."""
        self.is_running = False
        """Whether a run is between its first and its last iteration."""
        self.is_interrupted: Callable[[], bool] = lambda: False
        """Whether a signal has asked the run to end, so that an interrupt is a second one, which stops it at once."""
        self.iteration = self.steps = 0
        """Iterations, and gradient steps of all policies, of this process; for messages."""
        self._is_over = self._is_disconnected = False
        self._learning: dict[int, tuple[str, Callable[[], Sequence[Tensor]]]] = {}
        self._random = torch.zeros(0, dtype=torch.float64)
        """Random numbers, the same in all processes, for at least the largest tensor that was compared."""

    def exchange(self, description: str, values: Sequence[float] | Tensor = ()) -> Tensor:
        """The values of all processes, [rank, n] float64. All of them pass the same number of values.

        Args:
            description: the purpose, such as "gradient step 7"; the same in all processes.
            values: the values of this process.

        Raises:
            RankError: another process has failed, has ended, is elsewhere, or passes another number of values; or it does not
                answer in time.
        """
        own = torch.as_tensor(values, dtype=torch.float64, device="cpu").reshape(-1)
        row = torch.zeros(_INLINE + 3, dtype=torch.float64)
        row[0], row[1], row[2] = _RUNS, zlib.crc32(description.encode()), len(own)
        if len(own) <= _INLINE:
            row[3 : 3 + len(own)] = own
        with self._explained(description):
            rows = self._gathered(row)
            self._require_all(rows, description)
            return rows[:, 3 : 3 + len(own)] if len(own) <= _INLINE else self._gathered(own)

    def texts(self, description: str, text: str) -> list[str]:
        """The texts of all processes, by rank."""
        self.exchange(description)
        with self._explained(description):
            return self._gathered_texts(text)

    def add(self, description: str, flat: Tensor) -> None:
        """Replace the numbers of a tensor by their sums over all processes. Its length was compared before, by `exchange`."""
        with self._explained(description):
            dist.all_reduce(flat)

    def moments(self, description: str, count: float, mean: Tensor, squares: Tensor) -> tuple[float, Tensor, Tensor]:
        """Merge the moments of the data of all processes.

        Args:
            description: what they are of.
            count: number of elements of this process, may be 0.
            mean: their mean, any shape, float64.
            squares: their sum of squared distances from it, the same shape.

        Returns:
            The three of all elements.

        Reference:
            Chan, Golub and LeVeque (1983), "Algorithms for Computing the Sample Variance".
        """
        parts = torch.stack([mean.double().reshape(-1), squares.double().reshape(-1)]).cpu()
        found = self.exchange(description, torch.cat([torch.tensor([count], dtype=torch.float64), parts.reshape(-1)]))
        counts, means, distances = found[:, :1], *found[:, 1:].reshape(self.size, 2, -1).unbind(1)
        total = counts.sum()
        merged = (counts * means).sum(0) / total.clamp(min=1)
        spread = distances.sum(0) + (counts * (means - merged).square()).sum(0)
        return float(total), merged.to(mean.device).reshape(mean.shape), spread.to(mean.device).reshape(mean.shape)

    def steps_per_epoch(self, rows: int, batch_size: int) -> int:
        """The number of minibatches in an epoch over the rows of all processes: that of their sum, with the sum of batch sizes.

        Raises:
            RankError: a process has fewer rows than there are minibatches.
        """
        found = self.exchange("the rows of a rollout", [rows, batch_size])
        steps = max(1, round(float(found[:, 0].sum() / found[:, 1].sum())))
        if (fewest := int(found[:, 0].min())) < steps:
            self._is_over = True
            raise RankError(
                f"an epoch has {steps} gradient steps, and rank {int(found[:, 0].argmin())} has only {fewest} rows: collect as "
                "much in each process, or raise policy.learn.batch_size."
            )
        return steps

    def require_equal(self, description: str, values: Sequence[Tensor], owner: str = "") -> None:
        """Check that tensors, such as weights, are equal in all processes, up to rounding.

        For each tensor, its product with random numbers, the same ones in all processes, is compared. A sum would not tell
        numbers from the same ones in another order.

        Args:
            description: the point of the program; the same in all processes.
            values: the tensors.
            owner: what they belong to, for the message.

        Raises:
            RankError: they are not, or a number is NaN.
        """
        found = self.exchange(description, self._projected(values)).reshape(self.size, -1, 2)
        projections, norms = found.unbind(-1)
        apart = ~((projections - projections[0]).abs() <= _COMPARED_TO * norms[0])  # True for NaN
        if not apart.any():
            return
        self._is_over = True
        of, is_nan = f" in {owner}" if owner else "", norms.isnan()
        if is_nan.any():
            rank, place = is_nan.nonzero()[0].tolist()
            raise RankError(
                f"the weights of rank {rank} are NaN at {description}{of}: {int(is_nan[rank].sum())} of {len(values)} tensors, "
                f"first number {place}, of the shape {[*values[place].shape]}. Look for what has changed them, such as a loss "
                "that is not finite, or too high a learning rate."
            )
        rank, place = apart.nonzero()[0].tolist()
        raise RankError(
            f"the weights of rank 0 and rank {rank} differ at {description}{of}: {int(apart[rank].sum())} of {len(values)} "
            f"tensors, first number {place}, of the shape {[*values[place].shape]}. All processes begin with the same weights: "
            "make networks with the policy's seed, or load the same file. Afterwards only gradient_step may change them, which "
            "averages the gradients; running statistics, as in nn.BatchNorm1d, are those of one process: use nn.LayerNorm."
        )

    def _projected(self, values: Sequence[Tensor]) -> Tensor:
        """[n, 2] float64, the product of each tensor with the random numbers, and its norm."""
        found = []
        for value in values:
            # Masks have infinite numbers, whose differences would be NaN.
            flat = value.detach().double().reshape(-1).nan_to_num(math.nan, 1.0, -1.0)
            if len(flat) > len(self._random) or self._random.device != flat.device:
                numbers = np.random.default_rng(0).uniform(-1, 1, max(len(flat), len(self._random)))
                self._random = torch.from_numpy(numbers).to(flat.device)
            found += [flat @ self._random[: len(flat)], flat.norm()]
        return torch.stack(found) if found else torch.zeros(0)

    def note_learning(self, policy: object, weights: Callable[[], Sequence[Tensor]]) -> None:
        """Note a policy that the processes learn together, for `require_equal_weights`."""
        self._learning.setdefault(id(policy), (type(policy).__name__, weights))

    def require_equal_weights(self, description: str) -> None:
        """Check that all policies that learn have the same weights in all processes: before they are saved, and at the end.

        Raises:
            RankError: they have not.
        """
        for name, weights in self._learning.values():
            self.require_equal(description, weights(), name)

    def fail(self, error: BaseException) -> None:
        """Tell the other processes that this one ends by an error. Does nothing if they know, or cannot be reached."""
        if self._is_over or isinstance(error, RankError):
            return
        row = torch.zeros(_INLINE + 3, dtype=torch.float64)
        row[0] = _FAILS
        with contextlib.suppress(RankError), self._explained("an error"):
            words = describe_error(error) if words_of(error) else type(error).__name__
            self._require_all(self._gathered(row), "an error", words)

    def leave_after_error(self) -> None:
        """Wait until all processes have noted the error, because torchrun ends the others when the first one has exited."""
        if not self._is_disconnected:
            with contextlib.suppress(RuntimeError):
                dist.monitored_barrier(timeout=datetime.timedelta(seconds=_LEAVE_S))

    def _gathered(self, values: Tensor) -> Tensor:
        rows = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(rows, values)
        return torch.stack(rows)

    def _gathered_texts(self, text: str) -> list[str]:
        texts: list[str] = [""] * self.size
        dist.all_gather_object(texts, text[:_LONGEST_TEXT])
        return texts

    def _require_all(self, rows: Tensor, description: str, error: str = "") -> None:
        """Check that all processes run and have passed the same description and as many numbers."""
        failed = [rank for rank in range(self.size) if rows[rank, 0] == _FAILS]
        if not failed and bool((rows[:, 1:3] == rows[0, 1:3]).all()):
            return
        self._is_over = True
        place = f"{description}, in iteration {self.iteration}, after {self.steps} gradient steps"
        if bool((rows[:, 1] == rows[0, 1]).all()):
            place += f", with {rows[self.rank, 2]:.0f} numbers"
        texts = self._gathered_texts(error or place)
        if failed:
            raise RankError(f"rank {failed[0]} has ended by an error, so rank {self.rank} ends too: {texts[failed[0]]}")
        places = "; ".join(f"rank {rank} is at {text}" for rank, text in enumerate(texts))
        raise RankError(
            f"the processes are not at the same point: {places}. Each process must run the same pipeline, with the same number "
            "of iterations and of gradient steps: compare the settings of the ranks, and the code that depends on their data."
        )

    @block
    def _explained(self, description: str) -> Iterator[None]:
        if self._is_over:
            raise RankError(f"rank {self.rank} cannot reach the other processes at {description}: the run has failed before.")
        try:
            yield
        except RankError:
            raise
        except RuntimeError as error:  # a connection that is closed, or a timeout
            self._is_over = self._is_disconnected = True
            is_late = "timed out" in str(error).lower()
            cause = f"has not come here within {self._timeout_s:g} s" if is_late else "has ended, or cannot be reached"
            raise RankError(
                f"rank {self.rank} got no answer at {description}: another process {cause}. Its own messages say why. "
                f"(torch.distributed: {str(error).partition(chr(10))[0]:.200})"
            ) from error


_current: Ranks | None = None


def current_ranks() -> Ranks | None:
    """The processes that learn together; None if this process learns alone."""
    return _current


def is_first_rank() -> bool:
    """Whether this process evaluates, shows progress and writes checkpoints: rank 0, or a process that learns alone."""
    return _current is None or _current.rank == 0


def total(description: str, number: int) -> int:
    """The sum of a number over all processes; the number itself if this process learns alone."""
    return number if _current is None else round(float(_current.exchange(description, [number]).sum()))


def in_all_ranks(description: str, is_so: bool) -> bool:
    """Whether something is so in all processes; the argument itself if this process learns alone."""
    return is_so if _current is None else bool(_current.exchange(description, [is_so]).all())


def seed_of_rank(seed: int, rank: int) -> int:
    """The seed of a process, from that of the run; rank 0 has the latter."""
    return seed if rank == 0 else int(np.random.SeedSequence([seed, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1))


@block
def joined(timeout_s: float, device: str = "cpu") -> Iterator[Ranks | None]:
    """Join the processes that torchrun has started, and leave them at the end of the block, together.

    An error in one process, also KeyboardInterrupt or SystemExit, ends the others too, with an error that names it. Without
    torchrun, or with one process, this does nothing and gives None.

    Args:
        timeout_s: seconds that a process waits for the others.
        device: device of the networks; on "cuda", gradients are averaged by nccl.

    Raises:
        RankError: in the block, or at its end: another process has failed, or is elsewhere.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield None
        return
    if _current is not None:
        raise RuntimeError("this process has joined the others already: use one data_parallel block.")
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    ranks = _join(rank, size, timeout_s, device)
    try:
        try:
            yield ranks
        except (SystemExit, KeyboardInterrupt) as error:
            if not ranks.is_running:
                ranks.exchange("the end of the program")
            elif not ranks.is_interrupted():
                ranks.fail(error)
                ranks.leave_after_error()
            raise
        except Exception as error:
            ranks.fail(error)
            ranks.leave_after_error()
            raise
        ranks.exchange("the end of the program")
    finally:
        leave()


def offer() -> tuple[Store, int]:
    """Open the store at which processes meet, in the one that will be rank 0. Returns it, and its port."""
    store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
    return store, store.port


def meet(store: Store | tuple[str, int], rank: int, size: int, timeout_s: float, device: str = "cpu") -> Ranks:
    """Join processes that a program has started, and that end together with it. `leave` ends this.

    Args:
        store: in rank 0, that of `offer`; in the others, the address and the port of that machine.
        rank: number of this process, from 0.
        size: number of processes.
        timeout_s: seconds that a process waits for the others.
        device: device of the networks; on "cuda", gradients are averaged by nccl.

    Raises:
        RuntimeError: this process has joined others already, or does not reach them.
    """
    if _current is not None:
        raise RuntimeError("this process learns together with others already.")
    limit = datetime.timedelta(seconds=timeout_s)
    shared = TCPStore(*store, is_master=False, timeout=limit) if isinstance(store, tuple) else store
    ranks = _join(rank, size, timeout_s, device, shared)
    ranks.ends_together = True
    return ranks


def _join(rank: int, size: int, timeout_s: float, device: str, store: Store | None = None) -> Ranks:
    global _current
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    of_store: dict[str, Any] = {} if store is None else {"store": store, "rank": rank, "world_size": size}
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout_s), **of_store)
    _current = Ranks(rank, size, timeout_s)
    return _current


def leave() -> None:
    """Leave the other processes, without a wait."""
    global _current
    _current = None
    dist.destroy_process_group()
