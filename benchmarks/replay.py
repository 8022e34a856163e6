"""Replay: pushing 8 transitions and sampling 256 of them, in microseconds, and bytes a transition.

The limits are slice assignment of the same arrays, `numpy.take` into preallocated arrays, and the size of the arrays.

Room: benchmarks, floor 7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from measure import compare, one_thread, report

from ding_lite.data import ReplayBuffer

PUSHED, SAMPLED = 8, 256
KINDS = {
    "vector (4,) float32": ((4,), np.float32, 1_000_000, 200_000, 400),
    "image (84, 84, 4) uint8": ((84, 84, 4), np.uint8, 20_000, 10_000, 8),
}


def rows(shape: tuple[int, ...], dtype: Any, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "obs": (rng.random((count, *shape)) * 255).astype(dtype),
        "action": rng.integers(0, 2, count),
        "reward": np.ones(count, np.float32),
        "next_obs": (rng.random((count, *shape)) * 255).astype(dtype),
        "terminated": np.zeros(count, np.bool_),
        "truncated": np.zeros(count, np.bool_),
    }


def repeat(times: int, function: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            function()

    return run


def main() -> None:
    one_thread()
    for kind, (shape, dtype, capacity, filled, times) in KINDS.items():
        batch, params = rows(shape, dtype, PUSHED), {"obs": kind, "capacity": capacity, "filled": filled}
        buffer = ReplayBuffer(filled)  # of the filled size, so that pushing runs over memory that is already there
        arrays = {name: np.zeros((filled, *column.shape[1:]), column.dtype) for name, column in batch.items()}
        for start in range(0, filled, PUSHED):
            buffer.push(batch)
            for name, column in batch.items():
                arrays[name][start : start + PUSHED] = column
        place, rng = [0], np.random.default_rng(0)
        outs = {name: np.empty((SAMPLED, *column.shape[1:]), column.dtype) for name, column in arrays.items()}

        def assign(arrays: Any = arrays, batch: Any = batch, place: list[int] = place, filled: int = filled) -> None:
            start = place[0]
            for name, column in batch.items():
                arrays[name][start : start + PUSHED] = column
            place[0] = (start + PUSHED) % filled

        def take(arrays: Any = arrays, outs: Any = outs, rng: Any = rng, filled: int = filled) -> None:
            chosen = rng.integers(0, filled, SAMPLED)
            for name, column in arrays.items():
                column.take(chosen, axis=0, out=outs[name], mode="clip")

        pushing = {"limit": repeat(times, assign), "ours": repeat(times, lambda: buffer.push(batch))}  # noqa: B023
        compare("replay", "us_per_push8", pushing, times, microseconds=True, **params)
        sampling = {"limit": repeat(times, take), "ours": repeat(times, lambda: buffer.sample(SAMPLED))}  # noqa: B023
        compare("replay", "us_per_sample256", sampling, times, microseconds=True, **params)
        size = sum(column.nbytes for column in arrays.values()) / filled
        report("replay", "limit", "bytes_per_transition", size, **params)
        report("replay", "ours", "bytes_per_transition", buffer.nbytes / buffer.capacity, **params)


if __name__ == "__main__":
    main()
