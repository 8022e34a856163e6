"""GAE, in microseconds a call, at three sizes; 2% of the steps end an episode.

The limit is a scan in numpy over existing arrays, without checks. Also measured is a plain loop over the steps, as in most
libraries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from measure import compare, one_thread

from ding_lite.functional import gae

GAMMA, LAMBDA = 0.99, 0.95


def scan(reward: Any, value: Any, next_value: Any, done: Any) -> Any:
    going = 1.0 - done.astype(np.float32)
    total = reward + np.float32(GAMMA) * next_value * going - value
    factor, step = np.float32(GAMMA * LAMBDA) * going, 1
    while step < len(total):
        total[:-step] += factor[:-step] * total[step:]
        factor[:-step] *= factor[step:].copy()
        factor[-step:] = 0
        step *= 2
    return total


def loop(reward: Any, value: Any, next_value: Any, done: Any) -> Any:
    going = 1.0 - done.astype(np.float32)
    delta = reward + np.float32(GAMMA) * next_value * going - value
    decay, advantage = np.float32(GAMMA * LAMBDA) * going, np.empty_like(delta)
    trace = np.zeros_like(delta[0])
    for t in range(len(delta) - 1, -1, -1):
        advantage[t] = trace = delta[t] + decay[t] * trace
    return advantage


def main() -> None:
    one_thread()
    for steps, envs, times in ((128, 8, 200), (2048, 8, 20), (128, 1024, 10)):
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal((steps, envs)).astype(np.float32) for _ in range(3)]
        done = rng.random((steps, envs)) < 0.02
        tensors = [torch.from_numpy(array) for array in arrays]
        flags = torch.from_numpy(done), torch.zeros(steps, envs, dtype=torch.bool)
        functions = {
            "limit": lambda: [scan(*arrays, done) for _ in range(times)],  # noqa: B023
            "numpy loop": lambda: [loop(*arrays, done) for _ in range(times)],  # noqa: B023
            "ours": lambda: [gae(*tensors, *flags, gamma=GAMMA, lambda_=LAMBDA) for _ in range(times)],  # noqa: B023
        }
        compare("gae", "us_per_call", functions, times, microseconds=True, T=steps, B=envs)


if __name__ == "__main__":
    main()
