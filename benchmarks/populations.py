"""Populations against the same members with fixed settings: PPO on CartPole-v1, from bad learning rates.

    python benchmarks/populations.py
    python benchmarks/populations.py --seeds 1 --rounds 5
    python benchmarks/populations.py --exploit local process ray

Each row of docs/learning/populations.csv is a population of four members, with PBT or with fixed settings, that begins with the
learning rates and seeds of examples/pbt.py. Its score is a mean return of 16 episodes by the final weights: of the best member
by the last evaluation with PBT, and of each member with fixed settings.

`--exploit` measures instead, on each of these backends, how long a member takes to copy a policy of 4 MB, with 8 MB of
moments of Adam: wall-clock time from the decision to the answer of the member.
"""

import argparse
import csv
import importlib.util
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from ding_lite import task
from ding_lite.config import PBTConfig, PopulationConfig, PPOConfig
from ding_lite.distributed import Population, Range, member_configs
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, gae_estimator, multistep_trainer
from ding_lite.policy import PPOPolicy

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "learning" / "populations.csv"
FIELDS = ("method", "seed", "rounds", "best", "median", "worst", "env_step", "minutes")
EPISODES = 16


def example() -> Any:
    """The module examples/pbt.py."""
    spec = importlib.util.spec_from_file_location("pbt", ROOT / "examples" / "pbt.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured(method: str, seed: int, rounds: int, folder: str) -> dict[str, Any]:
    """Run a population, and evaluate its members at the end."""
    pbt, begun = example(), time.monotonic()
    cfg = PBTConfig().override({"seed": seed, "exp_name": f"{folder}/{method}_{seed}"})
    settings = cfg.population.override({"seed": seed, "exp_name": cfg.exp_name})
    if method == "fixed":
        settings.quantile_fraction = 0.0
    configs = cfg.members(pbt.RATES)
    for one in configs:
        one.env.n_evaluator_episode = EPISODES
    population = Population(settings, pbt.ppo, configs, pbt.MUTATIONS)
    results: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        results = population.advance()
        scores = population.scores(results)
        if len(scores) != len(configs):
            warnings.warn(f"{len(scores)} of {len(configs)} members have a score.", stacklevel=1)
        last = sorted((score.value for score in scores.values()), reverse=True)
        population.evolve(scores)
        print(f"{method} {seed}: round {population.round}, {', '.join(f'{value:.0f}' for value in last)}", flush=True)
    population.close()
    steps = sum(int(result["env_step"]) for result in results.values())
    minutes = (time.monotonic() - begun) / 60
    values = {"best": last[0], "median": statistics.median(last), "worst": last[-1]}
    found = {"method": method, "seed": seed, "rounds": rounds, "env_step": steps, "minutes": round(minutes, 1)}
    return {**found, **{name: round(value, 1) for name, value in values.items()}}


def large(cfg: PPOConfig) -> PPOPolicy:
    """The pipeline of a member with a policy of 4 MB."""
    env = make_envs("CartPole-v1", 2, seed=cfg.seed)
    policy = PPOPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
    task.use(StepCollector(cfg, policy.collect_mode, env))
    task.use(gae_estimator(cfg, policy.collect_mode))
    task.use(multistep_trainer(cfg, policy.learn_mode))
    return policy


def take_over(backend: str, repeats: int, folder: str) -> None:
    """Print how long it takes until a member has copied another one."""
    small = {"policy.collect.n_sample": 8, "policy.learn.batch_size": 8, "policy.learn.epoch_per_collect": 1}
    cfg = PPOConfig().override({**small, "policy.model.encoder_hidden_size_list": [4, 700, 700]})
    cfg = cfg.override({"env.stop_value": None, "env.collector_env_num": 2})
    rates = {"policy.learn.learning_rate": Range(1e-5, 1e-3, log=True)}
    changes = {"exp_name": f"{folder}/{backend}", "interval": 1, "num_members": 2, "quantile_fraction": 0.5}
    settings = PopulationConfig().override({**changes, "backend": backend, "metric": "learn/entropy"})
    population = Population(settings, large, member_configs(cfg, 2, rates), rates)
    spent = []
    for _ in range(repeats):
        scores = population.scores(population.advance())
        begun = time.perf_counter()
        population.evolve(scores)
        spent.append(1000 * (time.perf_counter() - begun))
    population.close()
    low, _, high = statistics.quantiles(spent, n=4)
    spread = f"median of {repeats}, quartiles {low:.0f} and {high:.0f}"
    print(f"{backend}: a member copies another one in {statistics.median(spent):.0f} ms ({spread})")


def main() -> None:
    """Run both methods with each seed, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of each population")
    parser.add_argument("--table", type=Path, default=TABLE, help="file to write")
    parser.add_argument("--exploit", nargs="+", choices=("local", "process", "ray"), help="measure copying on these backends")
    parser.add_argument(
        "--repeats", type=int, default=30, help="number of times that a member copies another one, with --exploit"
    )
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for backend in arguments.exploit or ():
            take_over(backend, arguments.repeats, folder)
        if arguments.exploit:
            return
        for seed in range(arguments.seeds):
            rows += [measured(method, seed, arguments.rounds, folder) for method in ("pbt", "fixed")]
            with arguments.table.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, FIELDS)
                writer.writeheader()
                writer.writerows(rows)


if __name__ == "__main__":
    main()
