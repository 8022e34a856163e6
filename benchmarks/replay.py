"""Replay: pushing 8 transitions and sampling 256 of them, uniformly and by priority, in microseconds, and bytes a transition.

The limits are slice assignment of the same arrays, `numpy.take` into preallocated arrays, and the size of the arrays. By
priority, sampling includes giving the 256 new priorities, and its limit is a binary sum tree, walked level by level in numpy.

Transitions of stacks of frames, in a buffer that stores each frame once: pushing 32 of them and sampling 32. The limits are a
buffer that stores each stack.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import compare, one_thread, report

from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer

PUSHED, SAMPLED = 8, 256
CAPACITY = 1_000_000  # of prioritised replay, full
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


def walked_tree(arrays: dict[str, Any], priority: np.ndarray[Any, Any]) -> Callable[[], object]:
    """A binary sum tree in one array, node i above nodes 2 i and 2 i + 1: a batch by priority, and its new priorities."""
    rng, size = np.random.default_rng(0), 1 << (CAPACITY - 1).bit_length()
    sums = np.zeros(2 * size)
    sums[size : size + CAPACITY] = 1.0
    for level in range(size.bit_length() - 2, -1, -1):
        sums[1 << level : 2 << level] = sums[2 << level : 4 << level].reshape(-1, 2).sum(1)

    def run() -> object:
        rest = (np.arange(SAMPLED) + rng.random(SAMPLED)) * (sums[1] / SAMPLED)
        node = np.ones(SAMPLED, np.int64)
        while node[0] < size:
            node <<= 1
            goes_right = rest >= sums[node]
            rest -= sums[node] * goes_right
            node += goes_right
        rows = [column.take(node - size, axis=0) for column in arrays.values()]
        weight = (sums[node] / sums[node].min()) ** -0.4
        sums[node] = priority**0.6
        while node[0] > 1:
            node = np.unique(node >> 1)
            sums[node] = sums[2 * node] + sums[2 * node + 1]
        return rows, weight

    return run


def by_priority() -> None:
    """Measure a full prioritised buffer of small transitions without `truncated`, as other libraries are measured."""
    shape, dtype, *_, times = KINDS["vector (4,) float32"]
    batch = {name: column for name, column in rows(shape, dtype, PUSHED).items() if name != "truncated"}
    many = {name: np.tile(column, (CAPACITY // PUSHED, *[1] * (column.ndim - 1))) for name, column in batch.items()}
    params = {"obs": "vector (4,) float32", "capacity": CAPACITY, "filled": CAPACITY}
    buffer = PrioritizedReplayBuffer(CAPACITY)
    buffer.push(many)
    priority = np.random.default_rng(0).random(SAMPLED)

    def update() -> None:
        sample = buffer.sample(SAMPLED)
        buffer.update_priority(sample.index, priority)

    updating = {"limit": repeat(times, walked_tree(many, priority)), "ours": repeat(times, update)}
    compare("replay", "us_per_prioritized_sample256_and_update", updating, times, microseconds=True, **params)
    start = np.arange(0, CAPACITY, PUSHED)
    place = [0]

    def assign() -> None:
        first = start[place[0]]
        for name, column in batch.items():
            many[name][first : first + PUSHED] = column
        place[0] = (place[0] + 1) % len(start)

    pushing = {"limit": repeat(times, assign), "ours": repeat(times, lambda: buffer.push(batch))}
    compare("replay", "us_per_prioritized_push8", pushing, times, microseconds=True, **params)
    size = sum(column.nbytes for column in many.values()) / CAPACITY
    report("replay", "limit", "bytes_per_prioritized_transition", size, **params)
    report("replay", "ours", "bytes_per_prioritized_transition", buffer.nbytes / buffer.capacity, **params)


def uniformly() -> None:
    for kind, (shape, dtype, capacity, filled, times) in KINDS.items():
        batch, params = rows(shape, dtype, PUSHED), {"obs": kind, "capacity": capacity, "filled": filled}
        buffer = ReplayBuffer(filled)  # the filled size, so that pushing writes to memory that is already allocated
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


def games(num_steps: int, num_envs: int = 8) -> dict[str, Any]:
    """Transitions of stacks of 4 frames that differ in a few pixels, [num_steps * num_envs, ...]."""
    rng = np.random.default_rng(0)
    frames = np.tile(rng.integers(0, 256, (84, 84)).astype(np.uint8), (num_steps + 4, num_envs, 1, 1))
    step, env = np.ogrid[: num_steps + 4, :num_envs]
    for _ in range(4):
        frames[(step, env, *rng.integers(0, 84, (2, num_steps + 4, num_envs)))] = rng.integers(0, 256, frames.shape[:2])
    stacks = np.lib.stride_tricks.sliding_window_view(frames, 4, axis=0).transpose(0, 1, 4, 2, 3)
    count = num_steps * num_envs
    others = {name: column for name, column in rows((1,), np.float32, count).items() if not name.endswith("obs")}
    obs, next_obs = (np.ascontiguousarray(part).reshape(count, 4, 84, 84) for part in (stacks[:-1], stacks[1:]))
    return {"obs": obs, "next_obs": next_obs, **others}


def of_frames() -> None:
    """Measure a buffer with shared frames, and one without."""
    filled, pushed, params = 20_000, 32, {"obs": "stack (4, 84, 84) uint8", "capacity": 20_000}
    plain, shared = ReplayBuffer(filled), ReplayBuffer(filled, share_frames=True)
    many = games(600)
    parts = [{name: column[at : at + pushed] for name, column in many.items()} for at in range(0, 4800, pushed)]
    for buffer in (plain, shared):
        while len(buffer) < filled:
            for part in parts:
                buffer.push(part)
    order = [itertools.cycle(parts) for _ in range(2)]
    pushing = {
        "limit": repeat(20, lambda: plain.push(next(order[0]))),
        "ours": repeat(20, lambda: shared.push(next(order[1]))),
    }
    compare("replay", "us_per_push32_of_stacks", pushing, 20, microseconds=True, **params)
    sampling = {"limit": repeat(20, lambda: plain.sample(32)), "ours": repeat(20, lambda: shared.sample(32))}
    compare("replay", "us_per_sample32_of_stacks", sampling, 20, microseconds=True, **params)
    report("replay", "limit", "bytes_per_transition_of_stacks", plain.nbytes / filled, **params)
    report("replay", "ours", "bytes_per_transition_of_stacks", shared.nbytes / filled, **params)


def main() -> None:
    one_thread()
    uniformly()
    of_frames()
    by_priority()


if __name__ == "__main__":
    main()
