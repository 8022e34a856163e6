"""Environments: making, seeding, stepping and replaying them."""

from typing import TYPE_CHECKING

from ding_lite.envs.action_masks import (
    ACTION_MASK,
    ActionMask,
    ActionMaskError,
    ActionMasks,
    action_masks,
    choose_allowed,
    without_mask,
)
from ding_lite.envs.agent_bases import AgentVectorBase, MultiAgentStep
from ding_lite.envs.agent_making import make_agent_envs
from ding_lite.envs.agent_slots import AgentSlots
from ding_lite.envs.arrays import actions_to_arrays, clipper, describe_shapes, to_arrays, to_tensors
from ding_lite.envs.atari import AtariPreprocessing
from ding_lite.envs.autoreset import VectorEnvAdapter
from ding_lite.envs.bit_flip import BIT_FLIP, BitFlip
from ding_lite.envs.changes import ChangingEnvs
from ding_lite.envs.env_data_checks import EnvDataError, all_finite, is_number
from ding_lite.envs.episode_seeds import episode_seed
from ding_lite.envs.episode_starts import Episode as Episode
from ding_lite.envs.episode_starts import EpisodeResult, replay_episode
from ding_lite.envs.error_locations import EnvLocation
from ding_lite.envs.goals import goal_rewards
from ding_lite.envs.info_columns import INFO, InfoColumns, require_same_columns
from ding_lite.envs.infos import as_float
from ding_lite.envs.making import env_factory, make_envs, registered_spec, rendering, stepper
from ding_lite.envs.multi_agent import AgentVectorEnv
from ding_lite.envs.names import name_of_envs, threshold_of_envs
from ding_lite.envs.partial_observations import OnlyElements as OnlyElements
from ding_lite.envs.partial_observations import PartialObservation
from ding_lite.envs.pieces import ENV
from ding_lite.envs.recipes import made_from
from ding_lite.envs.replays import ReplayError, replay_error, save_env_error
from ding_lite.envs.saved_states import only_piece_of
from ding_lite.envs.space_records import recorded_space, space_from
from ding_lite.envs.spaces import (
    SpaceError,
    column_limits,
    integer_bounds,
    load_random_state,
    random_state,
    same_layout,
    space_spec,
    splitter,
    subspaces,
    to_gymnasium,
    to_nested,
)
from ding_lite.envs.steps import RunningEpisode, Step, Stepper
from ding_lite.envs.unsaved_env_state import layers_with_state
from ding_lite.envs.vectors import LocalVectorEnv
from ding_lite.envs.worker_agent_envs import SplitAgentVectorEnv
from ding_lite.envs.worker_envs import SplitVectorEnv

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise allow any name
    from ding_lite.envs.foreign_names import __getattr__ as __getattr__

__all__ = [
    "ACTION_MASK",
    "BIT_FLIP",
    "ENV",
    "INFO",
    "ActionMask",
    "ActionMaskError",
    "ActionMasks",
    "AgentSlots",
    "AgentVectorBase",
    "AgentVectorEnv",
    "AtariPreprocessing",
    "BitFlip",
    "ChangingEnvs",
    "EnvDataError",
    "EnvLocation",
    "EpisodeResult",
    "InfoColumns",
    "LocalVectorEnv",
    "MultiAgentStep",
    "PartialObservation",
    "ReplayError",
    "RunningEpisode",
    "SpaceError",
    "SplitAgentVectorEnv",
    "SplitVectorEnv",
    "Step",
    "Stepper",
    "VectorEnvAdapter",
    "action_masks",
    "actions_to_arrays",
    "all_finite",
    "as_float",
    "choose_allowed",
    "clipper",
    "column_limits",
    "describe_shapes",
    "env_factory",
    "episode_seed",
    "goal_rewards",
    "integer_bounds",
    "is_number",
    "layers_with_state",
    "load_random_state",
    "made_from",
    "make_agent_envs",
    "make_envs",
    "name_of_envs",
    "only_piece_of",
    "random_state",
    "recorded_space",
    "registered_spec",
    "rendering",
    "replay_episode",
    "replay_error",
    "require_same_columns",
    "same_layout",
    "save_env_error",
    "space_from",
    "space_spec",
    "splitter",
    "stepper",
    "subspaces",
    "threshold_of_envs",
    "to_arrays",
    "to_gymnasium",
    "to_nested",
    "to_tensors",
    "without_mask",
]
