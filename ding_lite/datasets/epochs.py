"""EpochSampler: the rows of a dataset in random order, each once in a pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ding_lite.basics import base_state, seed_of
from ding_lite.data.random_generators import require_generator_state
from ding_lite.data.state_checks import require_integer, require_state


class EpochSampler:
    """Minibatches of shuffled rows: each row once in a pass, in equal parts of about `batch_size`.

    Args:
        num_rows: number of rows.
        batch_size: approximate number of rows in a batch.
        seed: random seed of the order.
        fingerprint: of the data, see `OfflineDataset.fingerprint`.
        rank, ranks: number of this process, and of all processes that learn together. With the same seed, all
            processes together get the batches of one process with a batch size of `ranks * batch_size`, each its part; fewer
            and larger ones where a batch would have less than one row for each process.

    Raises:
        ValueError: there are more processes than rows.

    Example:
        >>> epochs = EpochSampler(10, 4)
        >>> [(epochs.epoch, len(epochs.next())) for _ in range(4)]
        [(0, 5), (0, 5), (1, 5), (1, 5)]
    """

    def __init__(
        self, num_rows: int, batch_size: int, seed: int = 0, fingerprint: str = "", rank: int = 0, ranks: int = 1
    ) -> None:
        if num_rows < ranks and ranks > 1:
            raise ValueError(f"{ranks} processes learn together, and the dataset has only {num_rows} rows: use fewer of them.")
        self.num_rows, self._fingerprint, self._rank, self._ranks = num_rows, fingerprint, rank, ranks
        self.batches = max(1, min(round(num_rows / (ranks * batch_size)), num_rows // ranks))
        """Batches of a pass."""
        self.rng = np.random.default_rng(seed_of(seed, "EpochSampler(seed={})"))
        self._before = self.rng.bit_generator.state
        self._order: np.ndarray[Any, Any] | None = None
        self._taken = 0

    @property
    def epoch(self) -> int:
        """Complete passes so far."""
        return self._taken // self.batches

    def next(self) -> np.ndarray[Any, Any]:
        """The rows of the next batch, or of the part of this process, int64."""
        place = self._taken % self.batches
        if self._order is None or not place:
            self._before = self.rng.bit_generator.state
            self._order = self.rng.permutation(self.num_rows)
        self._taken += 1
        batch = self._order[self.num_rows * place // self.batches : self.num_rows * (place + 1) // self.batches]
        return batch[len(batch) * self._rank // self._ranks : len(batch) * (self._rank + 1) // self._ranks]

    def state_dict(self) -> dict[str, Any]:
        """The place in the pass, and the random generator at the beginning of this pass."""
        rng = self._before if self._taken % self.batches else self.rng.bit_generator.state
        kept = {"num_rows": self.num_rows, "batches": self.batches, "fingerprint": self._fingerprint}
        return {**kept, "taken": self._taken, "rng": rng}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue in the middle of a pass.

        Raises:
            TypeError, ValueError: it is not such a state, or one of a dataset with another number of rows.
        """
        keys = "num_rows", "batches", "fingerprint", "taken", "rng"
        state = base_state(self, state, keys)
        require_state(state, "EpochSampler", keys)
        for name, own in (("num_rows", self.num_rows), ("batches", self.batches)):
            if state[name] != own:
                what = "rows" if name == "num_rows" else "batches in a pass"
                raise ValueError(
                    f"the saved run learned from a dataset of {state[name]} {what}, and this one has {own}: resume with the "
                    "same dataset and batch size."
                )
        if state["fingerprint"] != self._fingerprint:
            raise ValueError("the saved run learned from other data than this dataset has: resume with the same dataset.")
        taken = require_integer(state, "taken", "EpochSampler", 0)
        require_generator_state("rng", state["rng"], self.rng.bit_generator)
        self.rng.bit_generator.state = self._before = state["rng"]
        self._taken, self._order = taken, None
        if taken % self.batches:
            self._order = self.rng.permutation(self.num_rows)


Epochs = EpochSampler  # its name in earlier versions
