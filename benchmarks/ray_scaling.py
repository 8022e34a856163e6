"""Throughput over the number of workers of a Ray cluster: a simulation from measured costs of a call, and runs that check it.

In the simulation, one driver sends a request to each worker in turn, and then takes the results in turn. With `max_lag` it is
so many rollouts ahead. A worker works on one request at a time. The costs are measured with one worker. The bottleneck is the
part that is busy for longer: the workers, or the driver.

    python benchmarks/ray_scaling.py                 # the simulation
    python benchmarks/ray_scaling.py --check 1 2 4 8 16 32  # also runs with waiting environments, and the plot
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections import deque
from pathlib import Path

import ray
from measure import one_thread, report
from ray_workers import make_waiting, steps_per_s, worker_of

from ding_lite.distributed import connect

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "ray_scaling.svg"
STEPS = 50
"""Of each environment in a rollout."""


@dataclasses.dataclass(frozen=True)
class Costs:
    """Seconds of one request with a rollout of one environment."""

    send: float
    """The driver sends it."""
    work: float
    """The worker works on it."""
    way: float
    """The request and the result are under way."""
    take: float
    """The driver takes the result."""


def measured(rounds: int = 30) -> Costs:
    """The costs, as medians."""
    worker = worker_of(make_waiting, 1, "ray")
    rows = []
    for turn in range(rounds + 5):
        begun = time.perf_counter()
        asked = worker.ask(STEPS, eps=0.1)
        sent = time.perf_counter()
        while not worker.env.hosts[0]._worker.poll(wait=True):  # type: ignore[attr-defined]
            pass
        ready = time.perf_counter()
        worker.take(asked)
        taken = time.perf_counter()
        first, last = worker.span or (0, 0)
        work = (last - first) / 1e9
        if turn >= 5:
            rows.append((sent - begun, work, max(0.0, ready - sent - work), taken - ready))
    worker.env.close()
    return Costs(*(statistics.median(column) for column in zip(*rows)))


def simulated(costs: Costs, workers: int, max_lag: int = 0, rollouts: int = 20) -> tuple[float, str]:
    """Environment steps a second, and the bottleneck."""
    now, driver_s = 0.0, 0.0
    free = [0.0] * workers  # when each worker is free
    asked: deque[list[float]] = deque()  # when the result of each worker is there, for each rollout under way
    for number in range(rollouts + max_lag):
        if number < rollouts:
            ready = []
            for index in range(workers):
                now += costs.send
                driver_s += costs.send
                free[index] = max(free[index], now + costs.way / 2) + costs.work
                ready.append(free[index] + costs.way / 2)
            asked.append(ready)
        if number >= max_lag:
            for is_there in asked.popleft():
                now = max(now, is_there) + costs.take
                driver_s += costs.take
    bottleneck = "driver" if driver_s > costs.work * rollouts else "workers"
    return workers * STEPS * rollouts / now, bottleneck


def draw(costs: Costs, found: dict[int, float], path: Path) -> None:
    """The curves of the simulation, and the points of the runs."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "ding_lite"  # the same file from the same numbers
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for max_lag in (0, 1):
        rates = [simulated(costs, count, max_lag)[0] for count in COUNTS]
        axes.plot(COUNTS, rates, label=f"simulated, max_lag={max_lag}")
    one = simulated(costs, 1)[0]
    axes.plot(COUNTS, [one * count for count in COUNTS], ":", color="grey", label="linear")
    if found:
        axes.plot(list(found), list(found.values()), "o", label="measured")
    axes.set(xscale="log", yscale="log", xlabel="workers, one environment each", ylabel="environment steps / s")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=int, nargs="*", default=[], help="numbers of workers to run, and draw the picture")
    arguments = parser.parse_args()
    one_thread()
    connect("local")
    costs = measured()
    for name, seconds in dataclasses.asdict(costs).items():
        report("ray scaling", "measured", f"{name}_ms", seconds * 1e3, steps=STEPS)
    for max_lag in (0, 1):
        for count in COUNTS:
            rate, bottleneck = simulated(costs, count, max_lag)
            report("ray scaling", "simulated", "steps_per_s", rate, workers=count, max_lag=max_lag, bottleneck=bottleneck)
    found = {}
    for count in arguments.check:
        found[count] = steps_per_s(make_waiting, count, STEPS)
        expected = simulated(costs, count)[0]
        report(
            "ray scaling",
            "measured",
            "steps_per_s",
            found[count],
            workers=count,
            of_simulated=round(found[count] / expected, 3),
        )
    if found:
        draw(costs, found, PICTURE)
    ray.shutdown()


if __name__ == "__main__":
    main()
