"""Small pipelines for members of populations, and comparing their states."""

import numpy as np
import torch

from ding_lite import task
from ding_lite.config import DQNConfig, PPOConfig
from ding_lite.data import ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
)
from ding_lite.policy import DQNPolicy, PPOPolicy

SMALL = {"env.collector_env_num": 2, "env.evaluator_env_num": 2, "env.n_evaluator_episode": 2, "env.stop_value": None}


def ppo_config(**changes):
    small = {"policy.model.encoder_hidden_size_list": [8], "policy.collect.n_sample": 16, "policy.learn.batch_size": 8}
    often = {"policy.learn.epoch_per_collect": 2, "policy.eval.evaluator.eval_freq": 10}
    return PPOConfig().override({**SMALL, **small, **often, **changes})


def dqn_config(**changes):
    small = {"policy.model.encoder_hidden_size_list": [8], "policy.collect.n_sample": 8, "policy.learn.batch_size": 8}
    often = {"policy.learn.update_per_collect": 2, "policy.learn.learning_starts": 8, "policy.eval.evaluator.eval_freq": 6}
    return DQNConfig().override({**SMALL, **small, **often, **changes})


def ppo(cfg):
    env = make_envs(cfg.env.id, 2, seed=cfg.seed, workers=cfg.env.workers, backend=cfg.env.backend)
    policy = PPOPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
    task.use(interaction_evaluator(cfg, policy.eval_mode, make_envs(cfg.env.id, 2, seed=cfg.seed + 1)))
    task.use(StepCollector(cfg, policy.collect_mode, env))
    task.use(gae_estimator(cfg, policy.collect_mode))
    task.use(multistep_trainer(cfg, policy.learn_mode))
    return policy


def dqn(cfg, task):
    env = make_envs(cfg.env.id, 2, seed=cfg.seed)
    policy = DQNPolicy(cfg.policy, env.single_observation_space, env.single_action_space)
    buffer_ = ReplayBuffer(1000, seed=cfg.seed)
    task.use(interaction_evaluator(cfg, policy.eval_mode, make_envs(cfg.env.id, 2, seed=cfg.seed + 1)))
    task.use(eps_greedy_handler(cfg))
    task.use(StepCollector(cfg, policy.collect_mode, env))
    task.use(data_pusher(cfg, buffer_))
    task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
    return policy


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (torch.Tensor, np.ndarray)):
        return one.shape == other.shape and bool((one == other).all())
    return bool(one == other or (one != one and other != other))


def learned(member):
    state = member.policy.state_dict()
    return {name: part for name, part in state.items() if name not in ("metrics", "settings")}
