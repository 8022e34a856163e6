"""PPO on Atari while it learns, with the settings of PPOAtariConfig: an iteration of 1024 steps and 16 gradient steps."""

from __future__ import annotations

from collections.abc import Callable

from ding_lite import Task
from ding_lite.config import PPOAtariConfig
from ding_lite.contexts import OnlineRLContext
from ding_lite.envs import make_envs
from ding_lite.middleware import StepCollector, gae_estimator, multistep_trainer
from ding_lite.policy import PPOPolicy

__all__ = ["GAME", "STEPS", "ours", "stable_baselines3"]

GAME, ENVS, STEPS = "Pong", 8, 1024


def ours() -> Callable[[], None]:
    """The pipeline of examples/ppo_atari.py, without evaluations, checkpoints and logs."""
    cfg = PPOAtariConfig()
    env = make_envs(f"ALE/{GAME}-v5", ENVS, seed=0, atari="train")
    policy = PPOPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
    task = Task().start(ctx=OnlineRLContext())
    task.use(StepCollector(cfg, policy.collect_mode, env))
    task.use(gae_estimator(cfg, policy.collect_mode))
    task.use(multistep_trainer(cfg, policy.learn_mode))
    return lambda: task.run(max_step=1)


def stable_baselines3() -> Callable[[], object]:
    """The same in stable-baselines3, with the settings of its zoo, which are the same."""
    import ale_py
    import gymnasium
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)
    env = VecFrameStack(make_atari_env(f"{GAME}NoFrameskip-v4", ENVS, seed=0), 4)
    model = PPO(
        "CnnPolicy",
        env,
        n_steps=STEPS // ENVS,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        clip_range=0.1,
        vf_coef=0.5,
        ent_coef=0.01,
        device="cpu",
        seed=0,
    )
    return lambda: model.learn(STEPS, reset_num_timesteps=False)
