"""Seven examples of DI-engine (Apache License 2.0): their configurations and `task.use` lines, and what they are here."""

from ding_lite import OnlineRLContext, task
from ding_lite.config import C51Config, DDPGConfig, DQNConfig, PPOConfig, R2D2Config, SACConfig
from ding_lite.data import PrioritizedReplayBuffer, ReplayBuffer
from ding_lite.envs import make_envs
from ding_lite.middleware import (
    CkptSaver,
    OffPolicyLearner,
    StepCollector,
    data_pusher,
    eps_greedy_handler,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    nstep_reward_enhancer,
    online_logger,
    sequence_pusher,
    termination_checker,
)
from ding_lite.policy import C51Policy, DDPGPolicy, DQNPolicy, PPOPolicy, R2D2Policy, SACPolicy

_EVALUATED = "task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))"
_EPS = "task.use(eps_greedy_handler(cfg))"
_COLLECTED = "task.use(StepCollector(cfg, policy.collect_mode, collector_env))"
_RANDOM_FIRST = (
    "task.use(StepCollector(cfg, policy.collect_mode, collector_env, random_collect_size=cfg.policy.random_collect_size))"
)
_NSTEP = "task.use(nstep_reward_enhancer(cfg))"
_PUSHED = "task.use(data_pusher(cfg, buffer_))"
_LEARNED = "task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))"
_SAVED = "task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))"
_EXCHANGED = ("task.use(ContextExchanger(skip_n_iter=1))", "task.use(ModelExchanger(model))")
_ENDED = "task.use(termination_checker(max_train_iter=10000))"

USES = {
    "dqn": [
        *_EXCHANGED,
        *(_EVALUATED, _EPS, _COLLECTED, _PUSHED, _LEARNED),
        *("task.use(online_logger(train_show_freq=10))", _SAVED),
    ],
    "dqn_per": [_EVALUATED, _EPS, _COLLECTED, _PUSHED, _LEARNED, _SAVED],
    "ppo": [
        *_EXCHANGED,
        *(_EVALUATED, _COLLECTED, "task.use(gae_estimator(cfg, policy.collect_mode))"),
        *("task.use(multistep_trainer(policy.learn_mode, log_freq=50))", _SAVED, "task.use(online_logger(train_show_freq=3))"),
    ],
    "c51": [_EVALUATED, _EPS, _COLLECTED, _NSTEP, _PUSHED, _LEARNED, _SAVED],
    "sac": [_EVALUATED, _RANDOM_FIRST, _PUSHED, _LEARNED, _SAVED, _ENDED, "task.use(online_logger())"],
    "ddpg": [_EVALUATED, _RANDOM_FIRST, _PUSHED, _LEARNED, _SAVED, _ENDED],
    "r2d2": [
        *(_EVALUATED, _EPS, _COLLECTED, _NSTEP, "task.use(data_pusher(cfg, buffer_, group_by_env=True))"),
        *(_LEARNED, _SAVED),
    ],
}
"""The `task.use` lines of ding/example, in order."""

_CARTPOLE = {"collector_env_num": 8, "evaluator_env_num": 5, "n_evaluator_episode": 5, "stop_value": 195}
_EPS_SCHEDULE = {"type": "exp", "start": 0.95, "end": 0.1, "decay": 10000}
_SHAPES = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [128, 128, 64]}

CONFIGS = {
    "dqn": {
        "exp_name": "cartpole_dqn_seed0",
        "env": {**_CARTPOLE, "replay_path": "cartpole_dqn_seed0/video"},
        "policy": {
            "cuda": False,
            "load_path": "cartpole_dqn_seed0/ckpt/ckpt_best.pth.tar",
            "model": {**_SHAPES, "dueling": True},
            "nstep": 1,
            "discount_factor": 0.97,
            "learn": {"update_per_collect": 5, "batch_size": 64, "learning_rate": 0.001},
            "collect": {"n_sample": 8},
            "eval": {"evaluator": {"eval_freq": 40}},
            "other": {"eps": _EPS_SCHEDULE, "replay_buffer": {"replay_buffer_size": 20000}},
        },
    },
    "ppo": {
        "exp_name": "cartpole_ppo_seed0",
        "env": _CARTPOLE,
        "policy": {
            "cuda": False,
            "action_space": "discrete",
            "model": {
                "obs_shape": 4,
                "action_shape": 2,
                "action_space": "discrete",
                "encoder_hidden_size_list": [64, 64, 128],
                "critic_head_hidden_size": 128,
                "actor_head_hidden_size": 128,
            },
            "learn": {
                "epoch_per_collect": 2,
                "batch_size": 64,
                "learning_rate": 0.001,
                "value_weight": 0.5,
                "entropy_weight": 0.01,
                "clip_ratio": 0.2,
                "resume_training": False,
            },
            "collect": {"n_sample": 256, "unroll_len": 1, "discount_factor": 0.9, "gae_lambda": 0.95},
            "eval": {"evaluator": {"eval_freq": 100}},
        },
    },
    "c51": {
        "exp_name": "cartpole_c51_seed0",
        "env": _CARTPOLE,
        "policy": {
            "cuda": False,
            "priority": True,
            "model": {**_SHAPES, "v_min": -10, "v_max": 10, "n_atom": 51},
            "discount_factor": 0.97,
            "nstep": 3,
            "learn": {"update_per_collect": 3, "batch_size": 64, "learning_rate": 0.001, "target_update_freq": 100},
            "collect": {"n_sample": 80, "unroll_len": 1},
            "eval": {"evaluator": {"eval_freq": 40}},
            "other": {"eps": _EPS_SCHEDULE, "replay_buffer": {"replay_buffer_size": 20000}},
        },
    },
    "sac": {
        "exp_name": "pendulum_sac_seed0",
        "env": {**_CARTPOLE, "collector_env_num": 10, "act_scale": True, "stop_value": -250},
        "policy": {
            "cuda": False,
            "priority": False,
            "random_collect_size": 1000,
            "model": {
                "obs_shape": 3,
                "action_shape": 1,
                "twin_critic": True,
                "action_space": "reparameterization",
                "actor_head_hidden_size": 128,
                "critic_head_hidden_size": 128,
            },
            "learn": {
                "update_per_collect": 1,
                "batch_size": 128,
                "learning_rate_q": 0.001,
                "learning_rate_policy": 0.001,
                "learning_rate_alpha": 0.0003,
                "ignore_done": True,
                "target_theta": 0.005,
                "discount_factor": 0.99,
                "auto_alpha": True,
            },
            "collect": {"n_sample": 10},
            "eval": {"evaluator": {"eval_freq": 100}},
            "other": {"replay_buffer": {"replay_buffer_size": 100000}},
        },
    },
    "ddpg": {
        "exp_name": "pendulum_ddpg_seed0",
        "env": {**_CARTPOLE, "act_scale": True, "stop_value": -250},
        "policy": {
            "cuda": False,
            "priority": False,
            "random_collect_size": 800,
            "model": {"obs_shape": 3, "action_shape": 1, "twin_critic": False, "action_space": "regression"},
            "learn": {
                "update_per_collect": 2,
                "batch_size": 128,
                "learning_rate_actor": 0.001,
                "learning_rate_critic": 0.001,
                "ignore_done": True,
                "actor_update_freq": 1,
                "noise": False,
            },
            "collect": {"n_sample": 48, "noise_sigma": 0.1, "collector": {"collect_print_freq": 1000}},
            "eval": {"evaluator": {"eval_freq": 100}},
            "other": {"replay_buffer": {"replay_buffer_size": 20000, "max_use": 16}},
        },
    },
    "r2d2": {
        "exp_name": "cartpole_r2d2_seed0",
        "env": {**_CARTPOLE, "evaluator_env_num": 8, "n_evaluator_episode": 8},
        "policy": {
            "cuda": False,
            "priority": False,
            "priority_IS_weight": False,
            "model": _SHAPES,
            "discount_factor": 0.995,
            "nstep": 5,
            "burnin_step": 2,
            "learn_unroll_len": 40,
            "learn": {"update_per_collect": 5, "batch_size": 64, "learning_rate": 0.0005, "target_update_theta": 0.001},
            "collect": {"n_sample": 32, "unroll_len": 42, "traj_len_inf": True, "env_num": 8},
            "eval": {"env_num": 8, "evaluator": {"eval_freq": 30}},
            "other": {"eps": {**_EPS_SCHEDULE, "end": 0.05}, "replay_buffer": {"replay_buffer_size": 100000}},
        },
    },
}
CONFIGS["dqn_per"] = {
    **CONFIGS["dqn"],
    "exp_name": "cartpole_dqn_per",
    "policy": {**CONFIGS["dqn"]["policy"], "priority": True, "priority_IS_weight": True},
}
"""The configurations of dizoo with which these examples run. C51's is that of c51_nstep."""

TYPES = {
    "dqn": DQNConfig,
    "dqn_per": DQNConfig,
    "ppo": PPOConfig,
    "c51": C51Config,
    "sac": SACConfig,
    "ddpg": DDPGConfig,
    "r2d2": R2D2Config,
}

RENAMED = {
    "other.replay_buffer": lambda value: {"other.replay_buffer_size": value["replay_buffer_size"]},
    "learn.learning_rate_q": lambda value: {"learn.learning_rate": value},
    "learn.learning_rate_critic": lambda value: {"learn.learning_rate": value},
    "learn.learning_rate_policy": lambda value: {"learn.learning_rate_actor": value},
    "learn.target_theta": lambda value: {"learn.target_update_theta": value},
    "learn.discount_factor": lambda value: {"discount_factor": value},
    "burnin_step": lambda value: {"learn.burn_in": value},
    "learn_unroll_len": lambda value: {"learn.unroll_len": value},
}
"""Settings of the policy that have another name here; all others that are refused are left out."""

SMALL = {
    "off_policy": {"policy.learn.learning_starts": 64, "policy.learn.batch_size": 16},
    "ppo": {"policy.collect.n_sample": 64, "policy.learn.batch_size": 32},
    "box": {"policy.learn.learning_starts": 64, "policy.random_collect_size": 100, "env.max_episode_steps": 20},
    "r2d2": {"policy.learn.learning_starts": 8, "policy.learn.batch_size": 8, "policy.collect.n_sample": 320},
}
"""For runs of a few iterations."""


def cartpole(cfg):
    collector_env = make_envs("CartPole-v1", cfg.env.collector_env_num, seed=cfg.seed)
    evaluator_env = make_envs("CartPole-v1", cfg.env.evaluator_env_num, seed=cfg.seed + 1)
    return collector_env, evaluator_env


def pendulum(cfg):
    limit = cfg.env.max_episode_steps
    collector_env = make_envs("Pendulum-v1", cfg.env.collector_env_num, seed=cfg.seed, max_episode_steps=limit)
    evaluator_env = make_envs("Pendulum-v1", cfg.env.evaluator_env_num, seed=cfg.seed + 1, max_episode_steps=limit)
    return collector_env, evaluator_env


def dqn(cfg):
    cfg.override(SMALL["off_policy"])
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        collector_env, evaluator_env = cartpole(cfg)
        policy = DQNPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)
        buffer_ = ReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(online_logger(train_show_freq=10))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.run(max_step=10)


def dqn_per(cfg):
    cfg.override(SMALL["off_policy"])
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        collector_env, evaluator_env = cartpole(cfg)
        policy = DQNPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)
        buffer_ = PrioritizedReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.run(max_step=10)


def ppo(cfg):
    cfg.override(SMALL["ppo"])
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        collector_env, evaluator_env = cartpole(cfg)
        policy = PPOPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(gae_estimator(cfg, policy.collect_mode))
        task.use(multistep_trainer(cfg, policy.learn_mode))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.use(online_logger(train_show_freq=3))
        task.run(max_step=2)


def c51(cfg):
    cfg.override(SMALL["off_policy"])
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        collector_env, evaluator_env = cartpole(cfg)
        policy = C51Policy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)
        buffer_ = ReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(nstep_reward_enhancer(cfg))
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.run(max_step=2)


def sac(cfg):
    cfg.override(SMALL["box"])
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        collector_env, evaluator_env = pendulum(cfg)
        policy = SACPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)
        buffer_ = ReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env, random_collect_size=cfg.policy.random_collect_size))
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.use(termination_checker(max_train_iter=10000))
        task.use(online_logger())
        task.run(max_step=3)


def ddpg(cfg):
    cfg.override(SMALL["box"])
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        collector_env, evaluator_env = pendulum(cfg)
        policy = DDPGPolicy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)
        buffer_ = ReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env, random_collect_size=cfg.policy.random_collect_size))
        task.use(data_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.use(termination_checker(max_train_iter=10000))
        task.run(max_step=3)


def r2d2(cfg):
    cfg.override(SMALL["r2d2"])
    with task.start(async_mode=False, ctx=OnlineRLContext()):
        collector_env, evaluator_env = cartpole(cfg)
        policy = R2D2Policy(cfg.policy, collector_env.single_observation_space, collector_env.single_action_space)
        buffer_ = ReplayBuffer(cfg.policy.other.replay_buffer_size, seed=cfg.seed)
        task.use(interaction_evaluator(cfg, policy.eval_mode, evaluator_env))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, policy.collect_mode, collector_env))
        task.use(sequence_pusher(cfg, buffer_))
        task.use(OffPolicyLearner(cfg, policy.learn_mode, buffer_))
        task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))
        task.run(max_step=2)


PORTED = {fn.__name__: fn for fn in (dqn, dqn_per, ppo, c51, sac, ddpg, r2d2)}
"""The examples as they are here."""
