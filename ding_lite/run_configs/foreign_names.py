"""Methods of RLlib's configurations, with what to write instead."""

from types import MappingProxyType

_POLICY = (
    "set the fields of cfg.policy, such as `cfg.policy.learn.learning_rate = 1e-3`, or several at once, "
    '`cfg.override({"policy.learn.learning_rate": 1e-3, "policy.device": "cpu"})`.'
)
_COLLECTION = (
    "set `cfg.env.collector_env_num = 8`, `cfg.env.workers = 2` and `cfg.policy.collect.n_sample = 512`, and pass them to "
    "`make_envs(cfg.env.id, cfg.env.collector_env_num, seed=cfg.seed, workers=cfg.env.workers)`."
)
_BUILT = (
    "a script makes the parts: `make_envs(cfg.env.id, 8, seed=cfg.seed)`, "
    "`PPOPolicy(cfg.policy, observation_space, action_space)`, `task.use(middleware)` for each step, and "
    "`task.run(max_step=cfg.max_step)`. examples/ppo.py is a whole script."
)
_NETWORKS = "set the fields of `cfg.policy.model`; another network is made by `Policy.make_model` of a subclass."
_EXPLORATION = "value-based policies explore by cfg.policy.other.eps, the others by their distribution over actions."
_LEFT_OUT = "leave it out: it has no counterpart here. See docs/from_rllib.md."

FOREIGN_METHODS = MappingProxyType(
    {
        "environment": "set `cfg.env.id`, and make the environments: `make_envs(cfg.env.id, 8, seed=cfg.seed)`, or "
        "`make_envs(fn, 8, seed=cfg.seed)` with a function.",
        "training": _POLICY,
        **dict.fromkeys(("env_runners", "rollouts"), _COLLECTION),
        "callbacks": "a middleware of your own, `task.use(fn)`, reads and writes the context in every iteration.",
        "reporting": "set `cfg.log.every_s` and `cfg.log.show_every_s`; `task.use(online_logger(cfg))` writes the metrics. "
        "Statistics of your own are an argument of a logger, `MetricsLogger(stats_cls_lookup=settings)`.",
        "evaluation": "set `cfg.policy.eval.evaluator.eval_freq` and `cfg.env.n_evaluator_episode`; "
        "`task.use(interaction_evaluator(cfg, policy.eval_mode, env))` evaluates.",
        "learners": "set `cfg.policy.learners.num_learners` and `cfg.policy.learners.num_gpus_per_learner`.",
        "resources": "set `cfg.policy.device`, `cfg.env.workers`, and for a cluster `cfg.env.num_cpus_per_worker`.",
        "framework": "leave it out: torch is the only one. Compiled steps are `cfg.policy.learn.compile`.",
        "multi_agent": "policies are objects in your script: `MultiAgentCollector(cfg, policies, envs, policy_of)` collects, "
        "and `for_policy(name, multistep_trainer(cfg, policy.learn_mode))` learns.",
        "rl_module": _NETWORKS,
        "exploration": _EXPLORATION,
        "offline_data": "offline learning has a dataset, the setting dataset of `CQLConfig()`, and "
        "`offline_data_fetcher(cfg, dataset)`.",
        "checkpointing": "`task.use(CkptSaver(policy, cfg.exp_name, train_freq=100))` saves.",
        "fault_tolerance": "set `cfg.env.restart = True`; a run that ended goes on with `task.start(resume=cfg.exp_name)`.",
        "debugging": "set `cfg.seed` and `cfg.log.level`.",
        "update_from_dict": "it is `cfg.override(settings)`.",
        **dict.fromkeys(("build", "build_algo", "algo_class"), _BUILT),
        **dict.fromkeys(("api_stack", "experimental", "python_environment", "validate", "freeze"), _LEFT_OUT),
    }
)
"""As code in backticks."""
