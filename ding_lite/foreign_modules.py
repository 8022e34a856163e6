"""Modules of other libraries that do not exist here, with what to write instead."""

from types import MappingProxyType

_NAMES = (
    "there is one package for each kind of thing: `from ding_lite import OnlineRLContext, task`, "
    "`from ding_lite.middleware import StepCollector`, `from ding_lite.policy import PPOPolicy`, "
    "`from ding_lite.envs import make_envs`."
)
_NETWORKS = (
    "the policy makes its networks, `DQNPolicy(cfg.policy, observation_space, action_space)`; parts of networks are in "
    "ding_lite.nn, `from ding_lite.nn import make_actor_critic`."
)
_UTILS = (
    "leave the import out: `make_envs(cfg.env.id, 8, seed=cfg.seed)` and "
    "`DQNPolicy(cfg.policy, observation_space, action_space)` have seeds of their own, `online_logger(cfg)` writes logs and "
    "`CkptSaver(policy, cfg.exp_name)` checkpoints."
)
_FUNCTIONS = "losses, returns and advantages are functions of ding_lite.functional, `from ding_lite.functional import gae`."
_TORCH = f"networks are in ding_lite.nn, `from ding_lite.nn import make_actor_critic`; {_FUNCTIONS}"
_ENVS = "`from ding_lite.envs import make_envs`; `make_envs(fn, 8, seed=cfg.seed)` takes an id or a function that makes one."
_WORKERS = (
    "collectors are middleware, `from ding_lite.middleware import StepCollector`, and processes step the environments, "
    '`make_envs(cfg.env.id, 8, seed=cfg.seed, workers=4, backend="process")`.'
)
_SCRIPT = "the middleware that a script passes to `task.use(fn)` are the algorithm: examples/dqn.py is a whole script."
_CALLBACKS = "a middleware of your own, `task.use(fn)`, reads and writes the context in every iteration."
_METRICS = "`from ding_lite.metrics import MetricsLogger`."
_BUFFERS = "`from ding_lite.data import ReplayBuffer`."
_MIDDLEWARE = "`from ding_lite.middleware import StepCollector`, and so on for every middleware."
_POLICY = "`from ding_lite.policy import Policy`, which also has `build_policy`, `SampleBatch` and every algorithm."
_CONFIGS = "each algorithm has its configuration, `from ding_lite.config import DQNConfig`."
_REWARDS = "`from ding_lite.rewards import RNDRewardModel`."
_DATASETS = "`from ding_lite.datasets import OfflineDataset`."
_TUNE = "`from ding_lite.distributed import as_trainable` makes a pipeline a class for Ray Tune."
_CONNECTORS = (
    "observations are changed by wrappers of gymnasium, `make_envs(cfg.env.id, 8, wrappers=[MyWrapper])`, and batches by "
    "middleware, `task.use(fn)`, or `Policy.postprocess`."
)
_COMMON = (
    f"{_NAMES} Replay buffers are in ding_lite.data, callbacks are middleware, `task.use(fn)`, and evaluate_run of "
    "ding_lite.rollout evaluates a saved run."
)
_NOISE = (
    "noise is a setting of policies for Box actions, such as policy.collect.noise_sigma of `DDPGConfig`, and epsilon is "
    "`cfg.policy.other.eps` of value-based policies."
)
_DATA = (
    "a batch is a tree, `from ding_lite.data import tree`, and collectors are middleware, "
    "`from ding_lite.middleware import StepCollector`."
)

MODULES = MappingProxyType(
    {
        "DI-engine": {
            "framework": _NAMES,
            "model": _NETWORKS,
            "utils": _UTILS,
            "torch_utils": _TORCH,
            **dict.fromkeys(("rl_utils", "hpc_rl"), _FUNCTIONS),
            **dict.fromkeys(("worker", "interaction"), _WORKERS),
            **dict.fromkeys(("entry", "bonus", "example", "design"), _SCRIPT),
            "reward_model": _REWARDS,
            "data.buffer": _BUFFERS,
            **dict.fromkeys(("envs.env", "envs.env_manager", "envs.env_wrappers"), _ENVS),
            **dict.fromkeys(("config.config", "config.example"), _CONFIGS),
            **dict.fromkeys(("middleware.collector", "middleware.functional", "middleware.learner"), _MIDDLEWARE),
            **dict.fromkeys(("policy.base_policy", "policy.common_utils"), _POLICY),
        },
        "RLlib": {
            **dict.fromkeys(("agents", "algorithms", "execution", "optimizers"), _SCRIPT),
            **dict.fromkeys(("core", "models"), _NETWORKS),
            "callbacks": _CALLBACKS,
            "connectors": _CONNECTORS,
            "env": _ENVS,
            "evaluation": _WORKERS,
            "offline": _DATASETS,
            "rllib": _NAMES,
            "tune": _TUNE,
            "envs.multi_agent_env": "`from ding_lite.envs import make_multi_agent_envs`.",
            "metrics.metrics_logger": _METRICS,
            **dict.fromkeys(("policy.policy", "policy.sample_batch", "policy.tf_policy", "policy.torch_policy"), _POLICY),
            "policy.rnn_sequencing": _POLICY,
            **dict.fromkeys(("policy.policy_template", "policy.tf_policy_template", "policy.torch_policy_template"), _POLICY),
        },
        "Stable-Baselines3": {"common": _COMMON},
        "Tianshou": {
            "exploration": _NOISE,
            "trainer": _SCRIPT,
            **dict.fromkeys(("data.batch", "data.collector"), _DATA),
        },
    }
)
"""For each library, the modules below its name or below the same package here, with code in backticks."""
