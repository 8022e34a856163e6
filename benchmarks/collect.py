"""Collecting: CartPole environments, a 64x64 network, epsilon-greedy, pushed into a replay buffer; environment steps a second.

The limit steps the same environments in a plain loop, with one batched forward pass per step, and does nothing else. Each of
its resets is seeded, as ours are; those of a second limit are not. If stable-baselines3 is installed, its DQN is measured too.

Rows with `vectorization` compare environments that are stepped all at once with our plain loop: in the pipeline, and without a
policy, with random actions.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from measure import compare, cpu_seconds, one_thread, report
from torch import nn

from ding_lite import Task
from ding_lite.config import DQNConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.data import ReplayBuffer
from ding_lite.envs import LocalVectorEnv, make_envs
from ding_lite.middleware import StepCollector, data_pusher, eps_greedy_handler
from ding_lite.policy import DQNPolicy

EPS = 0.1


def policy_for(obs: gymnasium.Space[Any], action: gymnasium.Space[Any]) -> DQNPolicy:
    """A DQN with a 64x64 network, its weights from seed 0."""
    return DQNPolicy(DQNConfig().override({"policy.model.encoder_hidden_size_list": [64, 64]}).policy, obs, action)


def ours(env: gymnasium.vector.VectorEnv[Any, Any, Any], steps: int, rollout: int) -> Callable[[], None]:
    """Our pipeline; each call continues the previous one."""
    cfg = DQNConfig().override(
        {"policy.collect.n_sample": rollout * env.num_envs, "policy.other.eps": {"start": EPS, "end": EPS}}
    )
    policy = policy_for(env.single_observation_space, env.single_action_space)
    task = Task().start(ctx=OnlineRLContext())
    task.use(eps_greedy_handler(cfg))
    task.use(StepCollector(cfg, policy.collect_mode, env))
    task.use(data_pusher(cfg, ReplayBuffer(100_000)))
    return lambda: task.run(max_step=steps // rollout)


def network() -> nn.Module:
    """The same network with the same weights in plain torch, for episodes of the same length."""
    layers = (nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    bare = nn.Sequential(*layers).requires_grad_(False)
    weights = policy_for(gymnasium.spaces.Box(-np.inf, np.inf, (4,)), gymnasium.spaces.Discrete(2)).get_weights()
    bare.load_state_dict(dict(zip(bare.state_dict(), weights.values(), strict=True)))
    return bare


def plain_loop(num_envs: int, steps: int, seeded: bool) -> Callable[[], None]:
    """The same environments, stepped one after the other."""
    envs = [gymnasium.make("CartPole-v1", disable_env_checker=True) for _ in range(num_envs)]
    obs = np.stack([env.reset(seed=index)[0] for index, env in enumerate(envs)])
    net, seeds = network(), itertools.count()

    def run() -> None:
        with torch.inference_mode():
            for _ in range(steps):
                action = net(torch.from_numpy(obs)).argmax(-1).numpy()
                for index, (env, one) in enumerate(zip(envs, list(action))):
                    obs[index], _, terminated, truncated, _ = env.step(one)
                    if terminated or truncated:
                        obs[index] = env.reset(seed=next(seeds) if seeded else None)[0]

    return run


def vector_loop(env: gymnasium.vector.VectorEnv[Any, Any, Any], steps: int) -> Callable[[], None]:
    """A loop over a vector environment."""
    net, obs = network(), [env.reset(seed=0)[0]]

    def run() -> None:
        current = obs[0]
        with torch.inference_mode():
            for _ in range(steps):
                current = env.step(net(torch.from_numpy(current)).argmax(-1).numpy())[0]
        obs[0] = current

    return run


def stable_baselines3(num_envs: int, steps: int, rollout: int) -> Callable[[], object]:
    """The same work by stable-baselines3."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_vec_env

    model = DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=num_envs, seed=0),
        learning_starts=0,
        gradient_steps=0,
        train_freq=rollout,
        exploration_initial_eps=EPS,
        exploration_final_eps=EPS,
        buffer_size=100_000,
        device="cpu",
        policy_kwargs={"net_arch": [64, 64]},
    )
    return lambda: model.learn(steps * num_envs, reset_num_timesteps=False)


def random_steps(env: LocalVectorEnv, steps: int) -> Callable[[], None]:
    """Steps with random actions, without a policy."""
    env.action_space.seed(0)
    env.begin(env.new_obs())
    actions, out = [env.action_space.sample() for _ in range(steps)], env.new_obs()

    def run() -> None:
        for action in actions:
            env.advance(action, out)

    return run


def compare_vectorized() -> None:
    """Environments that are stepped all at once, and the plain loop."""
    for num_envs in (8, 64):
        for name in ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"):
            made = {way: make_envs(name, num_envs, vectorization=way) for way in ("none", "auto")}
            cases = {"random actions": {way: random_steps(env, 100) for way, env in made.items()}}
            if name == "CartPole-v1":
                made = {way: make_envs(name, num_envs, vectorization=way) for way in ("none", "auto")}
                cases["pipeline"] = {way: ours(env, 640, 64) for way, env in made.items()}
            for case, functions in cases.items():
                samples = cpu_seconds(functions, 20)
                work = num_envs * (640 if case == "pipeline" else 100)
                for way, seconds in samples.items():
                    params = {"env": name, "envs": num_envs, "vectorization": way}
                    report("collect", case, "env_steps_per_s", work / statistics.median(seconds), **params)
                ratio = statistics.median([plain / fast for plain, fast in zip(samples["none"], samples["auto"])])
                report("collect", case, "times_the_plain_loop", ratio, env=name, envs=num_envs)


def main() -> None:
    one_thread()
    for num_envs, steps, rollout in ((8, 640, 64), (64, 640, 64)):
        functions: dict[str, Callable[[], object]] = {
            "limit": plain_loop(num_envs, steps, seeded=True),
            "limit with unseeded resets": plain_loop(num_envs, steps, seeded=False),
            "ours": ours(make_envs("CartPole-v1", num_envs, seed=0), steps, rollout),
        }
        if importlib.util.find_spec("stable_baselines3"):
            functions["stable-baselines3"] = stable_baselines3(num_envs, steps, rollout)
        params = {"envs": num_envs, "steps_a_rollout": rollout, "env": "gymnasium.make, one by one"}
        compare("collect", "env_steps_per_s", functions, steps * num_envs, **params)
    one, other = (gymnasium.make_vec("CartPole-v1", 64, vectorization_mode="vector_entry_point") for _ in range(2))
    functions = {"limit": vector_loop(one, 1280), "ours": ours(other, 1280, 64)}
    params = {"envs": 64, "steps_a_rollout": 64, "env": "gymnasium's vectorised CartPole"}
    compare("collect", "env_steps_per_s", functions, 1280 * 64, **params)
    compare_vectorized()


if __name__ == "__main__":
    main()
