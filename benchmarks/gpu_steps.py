"""Gradient steps on a GPU: as CUDA graphs (`learn.compile`), beside the same steps without.

All of them: `python benchmarks/gpu_steps.py`; some: `python benchmarks/gpu_steps.py dqn sac`. The time is that of the wall
clock, until the GPU is done, because the CPU launches operations ahead of it.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from measure import one_thread, report

from ding_lite import policy as policies
from ding_lite.data import tree

STEPS, ROUNDS, DEVICE = 100, 8, "cuda"
VECTOR, WIDE, IMAGE = spaces.Box(-10.0, 10.0, (4,)), spaces.Box(-10.0, 10.0, (17,)), spaces.Box(0, 255, (4, 84, 84), "uint8")
TWO, SIX = spaces.Discrete(2), spaces.Box(-1.0, 1.0, (6,))
SMALL = {"model.encoder_hidden_size_list": [64, 64]}
LARGE = {"model.encoder_hidden_size_list": [256, 256]}
CONV = {"model.encoder_hidden_size_list": [512]}


class Case(NamedTuple):
    """A policy, and the batch that it learns from."""

    name: str
    """Of the policy's class, without `Policy`."""
    obs: spaces.Box
    action: Any
    rows: int
    settings: Mapping[str, Any]
    length: int | None = None
    """Steps of each row, if the policy learns from sequences."""


CASES = {
    "dqn": Case("DQN", VECTOR, TWO, 64, SMALL),
    "c51": Case("C51", VECTOR, TWO, 64, SMALL),
    "qrdqn": Case("QRDQN", VECTOR, TWO, 64, SMALL),
    "rainbow": Case("Rainbow", VECTOR, TWO, 64, SMALL),
    "ppo": Case("PPO", VECTOR, TWO, 64, SMALL),
    "a2c": Case("A2C", VECTOR, TWO, 64, SMALL),
    "sac": Case("SAC", WIDE, SIX, 256, LARGE),
    "td3": Case("TD3", WIDE, SIX, 256, LARGE),
    "r2d2": Case("R2D2", VECTOR, TWO, 32, {**SMALL, "model.lstm_size": 64, "learn.burn_in": 8, "learn.unroll_len": 16}, 24),
    "dqn_atari": Case("DQN", IMAGE, spaces.Discrete(6), 32, CONV),
    "rainbow_atari": Case("Rainbow", IMAGE, spaces.Discrete(6), 32, CONV),
    "ppo_atari": Case("PPO", IMAGE, spaces.Discrete(6), 256, CONV),
}


def main(names: list[str]) -> None:
    unknown = set(names) - set(CASES)
    if unknown:
        sys.exit(f"there is no case {', '.join(sorted(unknown))}: take some of {', '.join(CASES)}.")
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU: this benchmark needs one.")
    one_thread()
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    for name in names or CASES:
        case = CASES[name]
        steps = {mode: stepper(case, mode) for mode in ("off", "on")}
        taken: dict[str, list[float]] = {mode: [] for mode in steps}
        for turn in range(ROUNDS + 2):
            for mode, step in steps.items():
                seconds = timed(step)
                if turn >= 2:
                    taken[mode].append(seconds)
        for mode, what in (("off", "plain"), ("on", "graph")):
            report("gpu_steps", what, "us_per_step", statistics.median(taken[mode]) / STEPS * 1e6, algorithm=name)
        ratios = [plain / graph for plain, graph in zip(taken["off"], taken["on"])]
        report("gpu_steps", "graph", "times_as_fast", statistics.median(ratios), algorithm=name)


def stepper(case: Case, mode: str) -> Callable[[], object]:
    """A function that takes a gradient step on the next of some batches."""
    cls = getattr(policies, f"{case.name}Policy")
    cfg = cls.config_type().override({**case.settings, "device": DEVICE, "learn.compile": mode, "seed": 0})
    policy = cls(cfg, case.obs, case.action)
    batches = itertools.cycle([policy.postprocess(batch_of(case, policy, seed)) for seed in range(4)])
    for _ in range(20):
        policy.gradient_step(next(batches))
    if mode == "on" and not policy.compiled_steps.taken:
        sys.exit(f"{case.name}: no step is a graph. {policy.compiled_steps.refused}")
    return lambda: policy.gradient_step(next(batches))


def timed(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def batch_of(case: Case, policy: Any, seed: int) -> Any:
    """Random rows with all columns that the policies read, on the GPU."""
    g = torch.Generator().manual_seed(seed)
    lead = (case.rows,) if case.length is None else (case.rows, case.length)

    def observations() -> torch.Tensor:
        if case.obs.dtype == "uint8":
            return torch.randint(0, 256, (*lead, *case.obs.shape), generator=g, dtype=torch.uint8)
        return torch.randn(*lead, *case.obs.shape, generator=g)

    def numbers() -> torch.Tensor:
        return torch.randn(*lead, generator=g)

    is_discrete = isinstance(case.action, spaces.Discrete)
    columns = {
        "obs": observations(),
        "next_obs": observations(),
        "action": torch.randint(0, int(case.action.n), lead, generator=g)
        if is_discrete
        else torch.rand(*lead, *case.action.shape, generator=g) * 2 - 1,
        "reward": numbers(),
        "terminated": torch.rand(*lead, generator=g) < 0.02,
        "truncated": torch.zeros(lead, dtype=torch.bool),
        "log_prob": -numbers().abs(),
        "value": numbers(),
        "advantage": numbers(),
        "return_": numbers(),
    }
    if case.length is not None:
        columns |= {f"state_in_{k}": torch.zeros(case.rows, 64) for k in range(2)}
        columns["valid"] = torch.ones(lead, dtype=torch.bool)
    else:
        columns["discount"] = torch.full(lead, 0.99)
    read = policy.columns
    return tree({name: it.to(DEVICE) for name, it in columns.items() if read is None or name in read or name == "valid"})


if __name__ == "__main__":
    main(sys.argv[1:])
