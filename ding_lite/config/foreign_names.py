"""Names of other libraries' configurations, with what to write instead."""

from ding_lite.basics import foreign_names

_COMPILED = (
    "a configuration is a dataclass, and `DQNConfig().override(main_config)` takes a dict or an EasyDict, and names everything "
    "in it that is called otherwise here."
)
_FILES = "`online_logger(cfg)` writes config.json, and `DQNConfig.from_dict(settings)` makes the configuration of it again."

_DI_ENGINE = {
    **dict.fromkeys(("EasyDict", "compile_config", "compile_config_parallel"), _COMPILED),
    **dict.fromkeys(("parallel_transform", "parallel_transform_slurm"), _COMPILED),
    **dict.fromkeys(("read_config", "read_config_directly", "read_config_with_system"), _FILES),
    **dict.fromkeys(("save_config", "save_config_py"), _FILES),
    "A2C": "it is `A2CConfig()`.",
    "C51": "it is `C51Config()`.",
    "DDPG": "it is `DDPGConfig()`.",
    "DDPContext": "it is a block with `data_parallel(cfg)`, which gives the configuration of the process.",
    "DQN": "it is `DQNConfig()`.",
    "PG": "it is `REINFORCEConfig()`.",
    "PPOF": "it is `PPOConfig()`.",
    "PPOOffPolicy": "PPO learns from each rollout by itself, `PPOConfig()`; from rollouts of older weights, `IMPALAConfig()`.",
    "SAC": "it is `SACConfig()`.",
    "SQL": "soft Q-learning does not exist; the nearest is `DQNConfig()`.",
    "TD3": "it is `TD3Config()`.",
    "to_ddp_config": "settings are those of each process, in a block with `data_parallel(cfg)`.",
}
_RLLIB = {"AlgorithmConfig": "each algorithm has its own, such as `PPOConfig()`; `from_command_line(PPOConfig)` adds options."}

NAMES = {"DI-engine": _DI_ENGINE, "RLlib": _RLLIB}
"""For each library, its names with what to write instead, as code in backticks."""

__getattr__ = foreign_names("ding_lite.config", NAMES)
