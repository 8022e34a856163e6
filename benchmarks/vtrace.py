"""V-trace, in microseconds a call, at three sizes; 2% of the steps end an episode.

The limit is a plain loop over the steps in numpy, over existing arrays, without checks and with all clips at 1. Also measured
is the same loop in torch, as in most libraries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from measure import compare, one_thread

from ding_lite.functional import vtrace

GAMMA = 0.99


def loop(log_ratio: Any, reward: Any, value: Any, next_value: Any, done: Any) -> Any:
    rho, discount = np.minimum(np.exp(log_ratio), 1), np.float32(GAMMA) * (1 - done.astype(np.float32))
    delta, decay = rho * (reward + discount * next_value - value), discount * rho
    for t in range(len(delta) - 2, -1, -1):
        delta[t] += decay[t] * delta[t + 1]
    target = delta + value
    future = np.concatenate([target[1:], next_value[-1:]])
    return target, rho * (reward + discount * future - value)


def torch_loop(log_ratio: Any, reward: Any, value: Any, next_value: Any, done: Any) -> Any:
    rho, discount = log_ratio.exp().clamp(max=1), GAMMA * (1 - done.float())
    delta, decay = rho * (reward + discount * next_value - value), discount * rho
    for t in range(len(delta) - 2, -1, -1):
        delta[t] += decay[t] * delta[t + 1]
    target = delta + value
    future = torch.cat([target[1:], next_value[-1:]])
    return target, rho * (reward + discount * future - value)


def main() -> None:
    one_thread()
    for steps, envs, times in ((80, 32, 50), (20, 256, 50), (256, 1024, 2)):
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal((steps, envs)).astype(np.float32) for _ in range(4)]
        done = rng.random((steps, envs)) < 0.02
        tensors = [torch.from_numpy(array) for array in arrays]
        flags = torch.from_numpy(done), torch.zeros(steps, envs, dtype=torch.bool)
        functions = {
            "limit": lambda: [loop(*arrays, done) for _ in range(times)],  # noqa: B023
            "torch loop": lambda: [torch_loop(*tensors, flags[0]) for _ in range(times)],  # noqa: B023
            "ours": lambda: [vtrace(*tensors, *flags, gamma=GAMMA) for _ in range(times)],  # noqa: B023
        }
        compare("vtrace", "us_per_call", functions, times, microseconds=True, T=steps, B=envs)


if __name__ == "__main__":
    main()
