"""Names that `ding_lite` gives when they are first used, and names of other libraries with what to write instead."""

from ding_lite.basics import foreign_names, refuse_foreign_modules
from ding_lite.foreign_modules import MODULES

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

_CALLBACKS = (
    "a middleware of your own, `task.use(fn)`, reads and writes the context in every iteration; code after its `yield` runs "
    "at the end of the iteration. Events are `task.on(event, fn)`."
)

_MODEL = "for another network, a subclass of the policy overrides `Policy.make_model`, `from ding_lite.policy import Policy`."

_NOISE = (
    "noise is a setting of the policy, policy.collect.noise_sigma and policy.collect.noise_correlation of `DDPGConfig()`, "
    "`from ding_lite.config import DDPGConfig`."
)

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
    "BaseCallback": _CALLBACKS,
    "BaseFeaturesExtractor": _MODEL,
    **dict.fromkeys(("CnnPolicy", "MlpPolicy", "MultiInputPolicy"), _MODEL),
    "MaskablePPO": "`from ding_lite.policy import PPOPolicy`; a Dict observation with the key action_mask limits the actions.",
    "RecurrentPPO": "`from ding_lite.policy import PPOPolicy`, with cfg.policy.model.lstm_size.",
    **dict.fromkeys(("NormalActionNoise", "OrnsteinUhlenbeckActionNoise"), _NOISE),
}
_TIANSHOU = {
    "Batch": "a batch is a tree, `from ding_lite.data import tree`.",
    "Collector": "it is `StepCollector(cfg, policy.collect_mode, env)`, `from ding_lite.middleware import StepCollector`.",
    "ReplayBuffer": "`from ding_lite.data import ReplayBuffer`.",
}

_ALGORITHM = (
    "the middleware that a script passes to `task.use(fn)` are the algorithm, and `task.run(max_step=500)` runs them: "
    "examples/ppo.py is a whole script."
)
_BUILT = '`from ding_lite.policy import build_policy`, whose hooks have the same names: `build_policy("MyPolicy", loss_fn=fn)`.'
_CONFIG = "`from ding_lite.config import {0}`."
_OWN_POLICY = "`from ding_lite.policy import Policy`."
_TUNE = (
    "a script is one run, `task.run(max_step=500)`: start it once for each setting, and compare the runs with "
    "ding-lite report runs/."
)
_RLLIB = {
    "SampleBatch": "`from ding_lite.policy import SampleBatch` has the names of columns. A batch is a tree, "
    "`from ding_lite.data import tree`.",
    "MultiAgentBatch": "the data of each policy is in ctx.parts, with `from ding_lite.middleware import MultiAgentCollector`.",
    **dict.fromkeys(("build_policy_class", "build_tf_policy", "build_torch_policy"), _BUILT),
    **dict.fromkeys(("Policy", "TFPolicy", "TorchPolicy", "TorchPolicyV2"), _OWN_POLICY),
    **dict.fromkeys(("Algorithm", "Trainable", "Trainer", "build_trainer", "with_common_config"), _ALGORITHM),
    "A2CTrainer": _POLICY.format("A2C", "a2c"),
    "DDPGTrainer": _POLICY.format("DDPG", "ddpg"),
    "DQNTrainer": _POLICY.format("DQN", "dqn"),
    **dict.fromkeys(("IMPALA", "Impala", "ImpalaTrainer"), _POLICY.format("IMPALA", "impala")),
    "PGTrainer": _POLICY.format("REINFORCE", "reinforce"),
    "PPOTrainer": _POLICY.format("PPO", "ppo"),
    "SACTrainer": _POLICY.format("SAC", "sac"),
    "TD3Trainer": _POLICY.format("TD3", "td3"),
    "AlgorithmConfig": "each algorithm has its own configuration, such as PPOConfig, `from ding_lite.config import PPOConfig`.",
    **{
        name: _CONFIG.format(name)
        for name in ("A2CConfig", "DDPGConfig", "DQNConfig", "IMPALAConfig", "PPOConfig", "SACConfig")
    },
    "ImpalaConfig": _CONFIG.format("IMPALAConfig"),
    "TD3Config": _CONFIG.format("TD3Config"),
    **dict.fromkeys(("ray", "tune", "Tuner", "air"), _TUNE),
    **dict.fromkeys(("Callbacks", "DefaultCallbacks", "RLlibCallback"), _CALLBACKS),
    "MultiAgentEnv": "environments have PettingZoo's parallel API, and `make_multi_agent_envs(fn, 8, seed=cfg.seed)` makes "
    "them, `from ding_lite.envs import make_multi_agent_envs`.",
    "register_env": f"a function needs no registration, `make_envs(fn, 8, seed=cfg.seed)`; with an id {_MADE}",
    **dict.fromkeys(("ModelCatalog", "TFModelV2", "TorchModelV2", "RLModule"), _MODEL),
    **dict.fromkeys(("EnvRunner", "RolloutWorker", "WorkerSet"), _WORKERS),
    "postprocess_ppo_gae": "`from ding_lite.middleware import gae_estimator`.",
    "MetricsLogger": "`from ding_lite.metrics import MetricsLogger`.",
    "standardize_fields": "advantages are standardised in each gradient step of PPO, with `cfg.policy.learn.adv_norm`.",
}
NAMES = {"DI-engine": _DI_ENGINE, "Stable-Baselines3": _STABLE_BASELINES3, "Tianshou": _TIANSHOU, "RLlib": _RLLIB}
"""For each library, its names with what to write instead, as code in backticks."""
for _library, _names in NAMES.items():  # for `from ding_lite import framework`
    _names.update({name: text for name, text in MODULES[_library].items() if "." not in name and name not in _names})

__getattr__ = foreign_names("ding_lite", NAMES, ALIASES)
refuse_foreign_modules("ding_lite", MODULES)
