"""Learning with the settings of stable-baselines3, beside it: CPU microseconds per environment step, with acting and storing.

The networks, batches and numbers of gradient steps are the same. There are no evaluations and no logs. Needs stable-baselines3,
which no extra installs, and for HalfCheetah-v5 the extra `mujoco`. The first run compiles for some minutes.

    python benchmarks/equal_settings.py
    python benchmarks/equal_settings.py --only dqn_step ppo
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from measure import cpu_seconds, one_thread, report

from ding_lite import Task
from ding_lite.config import DQNConfig, PPOConfig, SACConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    multistep_trainer,
)
from ding_lite.policy import DQNPolicy, PPOPolicy, SACPolicy

OTHER = "stable-baselines3"
CAPACITY, WARM_UP = 100_000, 100


@dataclasses.dataclass(frozen=True)
class Case:
    """An algorithm on a task, with settings of both libraries."""

    env: str
    num_envs: int
    per_iteration: int
    """Environment steps between updates."""

    updates: int
    """Gradient steps after these; of PPO, epochs."""

    batch: int
    steps: int
    """Environment steps per call."""

    target: float
    """Speed of ours to reach with compiled steps, in times that of stable-baselines3."""

    sync: int = 1
    """Gradient steps between copies of DQN's target network."""

    widths: tuple[int, ...] = (64, 64)


CASES = {
    "ppo": Case("CartPole-v1", 8, 2048, 10, 64, 2048, 6.0),
    "dqn_step": Case("CartPole-v1", 8, 64, 64, 64, 1024, 6.0, sync=50),
    "dqn_defaults": Case("CartPole-v1", 1, 4, 1, 32, 1024, 2.5, sync=10_000),
    "sac": Case("HalfCheetah-v5", 1, 1, 1, 256, 100, 1.4, widths=(256, 256)),
}


def ppo(case: Case, mode: str) -> Callable[[], object]:
    learn = {"batch_size": case.batch, "epoch_per_collect": case.updates, "learning_rate": 3e-4, "compile": mode}
    cfg = PPOConfig().override({"policy": {"learn": learn, "collect": {"n_sample": case.per_iteration}}})
    env = make_envs(case.env, case.num_envs, seed=0)
    policy = PPOPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
    task = Task().start(ctx=OnlineRLContext())
    task.use(StepCollector(cfg, policy.collect_mode, env))
    task.use(gae_estimator(cfg, policy.collect_mode))
    task.use(multistep_trainer(cfg, policy.learn_mode))
    return lambda: task.run(max_step=case.steps // case.per_iteration)


def dqn(case: Case, mode: str) -> Callable[[], object]:
    learn = {
        **_off_policy(case, mode),
        "target_update_freq": case.sync,
        "learning_rate": 1e-4,
        "grad_clip_norm": 10.0,
    }
    settings = {
        "double": False,
        "model.encoder_hidden_size_list": [*case.widths],
        "learn": learn,
        "collect.n_sample": case.per_iteration,
        "other": {"replay_buffer_size": CAPACITY, "eps": {"start": 0.1, "end": 0.1}},
    }
    cfg = DQNConfig().override({"policy": settings})
    env = make_envs(case.env, case.num_envs, seed=0)
    policy = DQNPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
    buffer_ = ReplayBuffer(CAPACITY)
    task = Task().start(ctx=OnlineRLContext())
    task.use(eps_greedy_handler(cfg))
    task.use(StepCollector(cfg, policy.collect_mode, env))
    task.use(data_pusher(cfg, buffer_))
    task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
    return lambda: task.run(max_step=case.steps // case.per_iteration)


def sac(case: Case, mode: str) -> Callable[[], object]:
    settings = {
        "random_collect_size": WARM_UP,
        "model.encoder_hidden_size_list": [*case.widths],
        "learn": {**_off_policy(case, mode), "learning_rate": 3e-4},
        "collect.n_sample": case.per_iteration,
        "other.replay_buffer_size": CAPACITY,
    }
    cfg = SACConfig().override({"policy": settings})
    env = make_envs(case.env, case.num_envs, seed=0)
    policy = SACPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
    buffer_ = ReplayBuffer(CAPACITY)
    task = Task().start(ctx=OnlineRLContext())
    task.use(StepCollector(cfg, policy.collect_mode, env, cfg.policy.random_collect_size))
    task.use(data_pusher(cfg, buffer_))
    task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
    return lambda: task.run(max_step=case.steps // case.per_iteration)


def _off_policy(case: Case, mode: str) -> dict[str, Any]:
    return {"batch_size": case.batch, "update_per_collect": case.updates, "learning_starts": WARM_UP, "compile": mode}


def other(name: str, case: Case) -> Callable[[], object]:
    """The same case in stable-baselines3."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env

    env = make_vec_env(case.env, case.num_envs, seed=0)
    shared: dict[str, Any] = {"batch_size": case.batch, "device": "cpu", "seed": 0}
    every = case.per_iteration // case.num_envs
    of_replay = {**shared, "buffer_size": CAPACITY, "learning_starts": WARM_UP}
    of_replay |= {"train_freq": every, "gradient_steps": case.updates}
    model: Any
    if name == "ppo":
        model = sb3.PPO("MlpPolicy", env, n_steps=every, n_epochs=case.updates, **shared)
    elif name == "sac":
        model = sb3.SAC("MlpPolicy", env, **of_replay)
    else:
        eps = {"exploration_initial_eps": 0.1, "exploration_final_eps": 0.1}
        interval = case.sync if case.num_envs == 1 else case.sync * case.num_envs
        model = sb3.DQN("MlpPolicy", env, learning_rate=1e-4, target_update_interval=interval, **eps, **of_replay)
    return lambda: model.learn(case.steps, reset_num_timesteps=False)


MAKERS: Mapping[str, Callable[[Case, str], Callable[[], object]]] = {"ppo": ppo, "dqn": dqn, "sac": sac}


def measure(name: str, rounds: int) -> None:
    """Print the microseconds of a case, and how many times those of ours the other library takes."""
    case, kind = CASES[name], name.partition("_")[0]
    functions = {
        "ours": MAKERS[kind](case, "off"),
        "ours, compiled": MAKERS[kind](case, "on"),
        OTHER: other(kind, case),
    }
    samples = cpu_seconds(functions, rounds)
    for who, seconds in samples.items():
        report("equal_settings", who, "us_per_env_step", statistics.median(seconds) / case.steps * 1e6, case=name)
    for who in ("ours", "ours, compiled"):
        ratio = statistics.median(theirs / own for own, theirs in zip(samples[who], samples[OTHER]))
        target = {"target": f"at least {case.target:g}"} if "compiled" in who else {}
        report("equal_settings", who, f"times_as_fast_as_{OTHER}", ratio, case=name, **target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", default=list(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=12, help="calls of each in turn (default: 12)")
    arguments = parser.parse_args()
    one_thread()
    for name in arguments.only:
        measure(name, arguments.rounds)


if __name__ == "__main__":
    main()
