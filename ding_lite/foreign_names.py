"""Names that `ding_lite` gives when they are first used, and names of other libraries with what to write instead."""

from ding_lite.basics import foreign_names

ALIASES = {
    "OfflineRLContext": "ding_lite.contexts.OfflineRLContext",
    "OnlineRLContext": "ding_lite.contexts.OnlineRLContext",
}
"""The contexts, which need torch, so that `import ding_lite` does not."""

_POLICY = "`from ding_lite.policy import {0}Policy`, and examples/{1}.py is a whole script."
_SEEDS = (
    "global random generators are not used: cfg.seed seeds the policy, `make_envs(cfg.env.id, 8, seed=cfg.seed)` the "
    "environments, and `ReplayBuffer(20_000, seed=cfg.seed)` the replay."
)
_MADE = "it is `make_envs(cfg.env.id, 8, seed=cfg.seed)`, `from ding_lite.envs import make_envs`."
_WORKERS = 'processes step the environments, `make_envs(cfg.env.id, 8, seed=cfg.seed, workers=4, backend="process")`.'

_DI_ENGINE = {
    "EasyDict": "`DQNConfig().override(main_config)` takes it, `from ding_lite.config import DQNConfig`.",
    "EventLoop": "the task has events: `task.on(event, fn)`, `task.emit(event)`, `task.wait_for(event)`.",
    "Parallel": f"one process learns: {_WORKERS}",
    "StepTimer": "`online_logger(cfg)` writes the seconds of collection, learning and evaluation.",
    "Supervisor": 'worker processes are restarted with `make_envs(cfg.env.id, 8, backend="process", restart=True)`.',
    "VoidMiddleware": "`task.void()` is a middleware that does nothing.",
    "compile_config": "`DQNConfig().override(main_config)`, with `from ding_lite.config import DQNConfig`.",
    "ding_init": "leave it out: `online_logger(cfg)` writes to the folder cfg.exp_name.",
    "set_pkg_seed": _SEEDS,
}
_STABLE_BASELINES3 = {
    "A2C": _POLICY.format("A2C", "a2c"),
    "DDPG": _POLICY.format("DDPG", "ddpg"),
    "DQN": _POLICY.format("DQN", "dqn"),
    "PPO": _POLICY.format("PPO", "ppo"),
    "SAC": _POLICY.format("SAC", "sac"),
    "TD3": _POLICY.format("TD3", "td3"),
    "EvalCallback": "it is `interaction_evaluator(cfg, policy.eval_mode, env)`, "
    "`from ding_lite.middleware import interaction_evaluator`.",
    "VecNormalize": "PPO has `cfg.policy.model.normalize_obs = True`, and `from ding_lite.middleware import reward_normalizer` "
    "scales rewards.",
    "evaluate_policy": "it is evaluate_run of ding_lite.rollout for a saved run, and in training "
    "`interaction_evaluator(cfg, policy.eval_mode, env)`; one action is `policy.predict(obs)`.",
    "make_vec_env": _MADE,
}
_TIANSHOU = {
    "Batch": "a batch is a tree, `from ding_lite.data import tree`.",
    "Collector": "it is `StepCollector(cfg, policy.collect_mode, env)`, `from ding_lite.middleware import StepCollector`.",
    "ReplayBuffer": "`from ding_lite.data import ReplayBuffer`.",
}

NAMES = {"DI-engine": _DI_ENGINE, "Stable-Baselines3": _STABLE_BASELINES3, "Tianshou": _TIANSHOU}
"""For each library, its names with what to write instead, as code in backticks."""

__getattr__ = foreign_names("ding_lite", NAMES, ALIASES)
