"""Names of other libraries' environments, with what to write instead."""

from ding_lite.basics import foreign_names

_MADE = "it is `make_envs(cfg.env.id, cfg.env.collector_env_num, seed=cfg.seed)`, with an id or a function that makes one."
_PROCESSES = 'it is `make_envs(cfg.env.id, 8, seed=cfg.seed, workers=4, backend="process")`.'
_RESTARTED = 'it is `make_envs(cfg.env.id, 8, seed=cfg.seed, backend="process", restart=True)`.'
_ENV = (
    "a gymnasium environment needs no wrapper, and `gymnasium.Env` is the base class of your own: "
    "`make_envs(lambda: MyEnv(), 8, seed=cfg.seed)`."
)
_ATARI = (
    'use gymnasium\'s: `make_envs("ALE/Pong-v5", 8, frameskip=1, wrappers=[gymnasium.wrappers.AtariPreprocessing, '
    "partial(gymnasium.wrappers.FrameStackObservation, stack_size=4)])`."
)
_SPACES = "observations of any space are encoded by the policy, `DQNPolicy(cfg.policy, observation_space, action_space)`."
_RETURNS = "leave it out: `StepCollector(cfg, policy.collect_mode, env)` measures returns and lengths of episodes."
_WRAPPERS = "wrappers of gymnasium or your own are listed in `make_envs(cfg.env.id, 8, wrappers=[MyWrapper])`."
_CHECKED = "leave it out: each reset and each step of `make_envs(cfg.env.id, 8)` is checked against the spaces."
_STEPS = "`gymnasium.Env.step` returns obs, reward, terminated, truncated, info, and `Step` is that of all environments."

_DI_ENGINE = {
    **dict.fromkeys(("BaseEnvManager", "BaseEnvManagerV2", "GymVectorEnvManager", "create_env_manager"), _MADE),
    **dict.fromkeys(("get_env_manager_cls", "get_vec_env_setting", "get_env_cls", "setup_ding_env_manager"), _MADE),
    **dict.fromkeys(("AsyncSubprocessEnvManager", "PoolEnvManager", "PoolEnvManagerV2"), _PROCESSES),
    **dict.fromkeys(("SubprocessEnvManagerV2", "SyncSubprocessEnvManager"), _PROCESSES),
    "EnvSupervisor": _RESTARTED,
    **dict.fromkeys(("BaseEnv", "DingEnvWrapper", "GymToGymnasiumWrapper"), _ENV),
    "BaseEnvTimestep": _STEPS,
    **dict.fromkeys(("ClipRewardWrapper", "EpisodicLifeWrapper", "FireResetWrapper", "FrameStackWrapper"), _ATARI),
    **dict.fromkeys(("MaxAndSkipWrapper", "NoopResetWrapper", "ScaledFloatFrameWrapper", "WarpFrameWrapper"), _ATARI),
    **dict.fromkeys(("ObsTransposeWrapper", "RamWrapper", "TransposeWrapper"), _ATARI),
    **dict.fromkeys(("AllinObsWrapper", "FlatObsWrapper", "GymHybridDictActionWrapper"), _SPACES),
    "EvalEpisodeReturnWrapper": _RETURNS,
    "FinalEvalRewardEnv": _RETURNS,
    "ObsNormWrapper": "PPO normalises observations with `cfg.policy.model.normalize_obs = True`; for other algorithms, use "
    "`gymnasium.wrappers.NormalizeObservation`.",
    "StaticObsNormWrapper": "use `gymnasium.wrappers.TransformObservation`.",
    "RewardNormWrapper": "it is the middleware `reward_normalizer(cfg, policy.learn_mode)`.",
    "TimeLimitWrapper": "it is `make_envs(cfg.env.id, 8, max_episode_steps=200)`.",
    **dict.fromkeys(("ActionRepeatWrapper", "DelayRewardWrapper", "ObsPlusPrevActRewWrapper"), _WRAPPERS),
    **dict.fromkeys(("create_env_wrapper", "get_default_wrappers", "update_shape"), _WRAPPERS),
    **dict.fromkeys(("check_all", "check_array_space", "check_different_memory", "check_obs_deepcopy"), _CHECKED),
    **dict.fromkeys(("check_reset", "check_space_dtype", "check_step", "demonstrate_correct_procedure"), _CHECKED),
}
_STABLE_BASELINES3 = {
    **dict.fromkeys(("DummyVecEnv", "make_vec_env"), _MADE),
    "SubprocVecEnv": _PROCESSES,
    "VecNormalize": "PPO normalises observations with `cfg.policy.model.normalize_obs = True`, and the middleware "
    "`reward_normalizer(cfg, policy.learn_mode)` scales rewards.",
    "VecFrameStack": _ATARI,
    "Monitor": _RETURNS,
}
_TIANSHOU = {"DummyVectorEnv": _MADE, "SubprocVectorEnv": _PROCESSES, "ShmemVectorEnv": _PROCESSES}
_AGENTS = "it is `make_multi_agent_envs(fn, 8, seed=cfg.seed)`, with a function that makes one with PettingZoo's parallel API."
_RLLIB = {
    **dict.fromkeys(("MultiAgentEnv", "ParallelPettingZooEnv", "make_multi_agent"), _AGENTS),
    "PettingZooEnv": f"agents cannot take turns, so make a parallel environment, by parallel_env of the same module: {_AGENTS}",
    **dict.fromkeys(("VectorEnv", "register_env"), _MADE),
    "EnvContext": '`make_envs(fn, 8, env_config={"size": 3})` passes keyword arguments to the function.',
    "ExternalEnv": "environments that call the policy do not exist; `policy.predict(obs)` acts in a program of your own.",
}

NAMES = {"DI-engine": _DI_ENGINE, "Stable-Baselines3": _STABLE_BASELINES3, "Tianshou": _TIANSHOU, "RLlib": _RLLIB}
"""For each library, its names with what to write instead, as code in backticks."""

ATTRIBUTES = {
    **dict.fromkeys(("launch", "ready_obs", "try_reset"), "`envs.reset()` begins the episodes and returns the observations."),
    **dict.fromkeys(("env_num", "active_env"), "the number of environments is `envs.num_envs`; each is stepped in every step."),
    "ready_imgs": "`envs.render()` returns the images.",
    "reward_space": "rewards have no space, they are float numbers of any size; see `envs.single_observation_space`.",
    "seed": "`make_envs(cfg.env.id, 8, seed=cfg.seed)` and `envs.reset(seed=1)` set seeds.",
    "random_action": "`envs.action_space.sample()` gives an action for each environment.",
    "enable_save_replay": "`cfg.log.video_every = 1` records a video of each evaluation.",
}
"""Attributes of DI-engine's environment managers, with what to write instead."""

__getattr__ = foreign_names("ding_lite.envs", NAMES)
