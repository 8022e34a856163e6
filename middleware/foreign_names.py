"""Names and arguments of other libraries' middleware, with what to write instead."""

from ding_lite.basics import foreign_names

_WORKERS = (
    "one process learns, and the worker processes of its environments get the newest weights by themselves: "
    '`make_envs(cfg.env.id, 8, seed=cfg.seed, workers=4, backend="process")`.'
)
_DATASET = "`offline_data_fetcher(cfg, dataset)` fetches shuffled batches of a dataset, for `trainer(cfg, policy.learn_mode)`."
_SAVED_DATA = (
    "`offline_data_saver(cfg, path)` records what is collected as a dataset. `CkptSaver(policy, cfg.exp_name, train_freq=100)` "
    "saves replay buffers with the run."
)
_SECONDS = "`online_logger(cfg)` writes the seconds of collection, learning and evaluation, as time/collect and so on."
_METRIC = "a metric is a function: `metric_evaluator(cfg, policy.eval_mode, dataset, metric)` calls `metric(policy, dataset)`."

_DI_ENGINE = {
    "Barrier": _WORKERS,
    "BarrierRuntime": _WORKERS,
    "ContextExchanger": _WORKERS,
    "IMetric": _METRIC,
    "ModelExchanger": _WORKERS,
    "OfflineMemoryDataFetcher": _DATASET,
    "PPOFStepCollector": "PPO has the same collector as other algorithms, `StepCollector(cfg, policy.collect_mode, env)`.",
    "PeriodicalModelExchanger": _WORKERS,
    "StepTimer": _SECONDS,
    "TransitionList": "a list is enough, `rolloutor(policy.collect_mode, env, transitions=[])`.",
    "VoidMiddleware": "`task.void()` is a middleware that does nothing.",
    "buffer_saver": _SAVED_DATA,
    "epoch_timer": _SECONDS,
    "final_ctx_saver": "`CkptSaver(policy, cfg.exp_name)` writes the counters into final.pt.",
    "interaction_evaluator_ttorch": "it is `interaction_evaluator(cfg, policy.eval_mode, env)`.",
    **dict.fromkeys(("offline_data_fetcher_from_mem", "offline_memory_data_fetcher"), _DATASET),
    "ppof_adv_estimator": "it is `gae_estimator(cfg, policy.collect_mode)`.",
    "qgpo_offline_data_fetcher": _DATASET,
    "qgpo_support_data_generator": _DATASET,
    "wandb_offline_logger": 'set `cfg.log.wandb = "online"` and use `offline_logger(cfg)`.',
    "wandb_online_logger": 'set `cfg.log.wandb = "online"` and use `online_logger(cfg)`.',
}
_CALLBACKS = (
    "a middleware of your own, `task.use(fn)`, reads and writes the context in every iteration; code after its `yield` runs "
    "at the end of the iteration."
)
_STABLE_BASELINES3 = {
    **dict.fromkeys(("BaseCallback", "CallbackList", "EventCallback", "EveryNTimesteps"), _CALLBACKS),
    "CheckpointCallback": "it is `CkptSaver(policy, cfg.exp_name, train_freq=1000)`.",
    "EvalCallback": "it is `interaction_evaluator(cfg, policy.eval_mode, env)`, which also ends the run at cfg.env.stop_value.",
    "StopTrainingOnRewardThreshold": "`interaction_evaluator(cfg, policy.eval_mode, env)` ends the run at cfg.env.stop_value.",
}
_TIANSHOU = {"Collector": "it is `StepCollector(cfg, policy.collect_mode, env)`, or EpisodeCollector for whole episodes."}
_RLLIB = {
    **dict.fromkeys(("Callbacks", "DefaultCallbacks", "RLlibCallback"), _CALLBACKS),
    **dict.fromkeys(
        ("ParallelRollouts", "synchronous_parallel_sample"), "it is `StepCollector(cfg, policy.collect_mode, env)`."
    ),
    **dict.fromkeys(("multi_gpu_train_one_step", "train_one_step"), "it is `multistep_trainer(cfg, policy.learn_mode)`."),
    "standardize_fields": "advantages are standardised in each gradient step, with `cfg.policy.learn.adv_norm`.",
}

NAMES = {"DI-engine": _DI_ENGINE, "Stable-Baselines3": _STABLE_BASELINES3, "Tianshou": _TIANSHOU, "RLlib": _RLLIB}
"""For each library, its names with what to write instead, as code in backticks."""

_LOG_FREQ = "`online_logger(cfg, train_show_freq=50)` sets how often learning is logged."
_REWARD_MODEL = "the environment computes the rewards: pass `goal_rewards(env)` as compute_reward."
ARGUMENTS = {
    "EpisodeCollector": {
        "random_collect_size": "it acts with the policy from its first episode; only "
        "`StepCollector(cfg, policy.collect_mode, env, random_collect_size=1000)` begins with random actions."
    },
    "HERLearner": {"her_reward_model": _REWARD_MODEL},
    "OffPolicyLearner": {"log_freq": _LOG_FREQ},
    "data_pusher": {"group_by_env": "for sequences of each environment, use `sequence_pusher(cfg, buffer_)`."},
    "gae_estimator": {
        "buffer_": "PPO learns from each rollout by itself, with `multistep_trainer(cfg, policy.learn_mode)`, and "
        "from rollouts of older weights too, with `task.start(async_mode=True, max_lag=2)`."
    },
    "her_data_enhancer": {"her_reward_model": _REWARD_MODEL},
    "interaction_evaluator": {"render": "`cfg.log.video_every = 1` records a video of each evaluation."},
    "multistep_trainer": {"log_freq": f"write `multistep_trainer(cfg, policy.learn_mode)`; {_LOG_FREQ}"},
    "offpolicy_data_fetcher": {
        "data_shortage_warning": "ctx.train_data is None until the buffer holds `cfg.policy.learn.learning_starts` transitions."
    },
    "online_logger": {
        "record_train_iter": "each row of metrics has both counters, env_step and train_iter: `online_logger(cfg)`."
    },
    "rolloutor": {"collect_print_freq": "`online_logger(cfg, show_every_s=10.0)` sets how often progress is shown."},
    "offline_data_fetcher": {
        "collate_fn": "batches are trees of tensors. A middleware after `offline_data_fetcher(cfg, dataset)` may change "
        "ctx.train_data."
    },
    "offline_data_saver": {
        "data_path": "write `offline_data_saver(cfg, path)`.",
        "data_type": "datasets have one format; `write_minari(dataset, id)` writes HDF5 for Minari.",
    },
    "sqil_data_pusher": {"group_by_env": "SQIL learns from single transitions: leave it out."},
    "trainer": {"log_freq": _LOG_FREQ},
}
"""Arguments of DI-engine's middleware, by middleware, with what to write instead."""

__getattr__ = foreign_names("ding_lite.middleware", NAMES)
