"""Environments: making, seeding, stepping and replaying them."""

from typing import TYPE_CHECKING

from ding_lite.envs.action_masks import ActionMask, ActionMaskError, action_masks
from ding_lite.envs.agent_making import make_agent_envs as make_agent_envs
from ding_lite.envs.agent_making import make_multi_agent_envs
from ding_lite.envs.agent_slots import AgentSlots
from ding_lite.envs.atari import AtariPreprocessing
from ding_lite.envs.bit_flip import BitFlip
from ding_lite.envs.changes import ChangeableEnvs
from ding_lite.envs.changes import ChangingEnvs as ChangingEnvs
from ding_lite.envs.env_data_checks import EnvDataError
from ding_lite.envs.episode_starts import Episode as Episode
from ding_lite.envs.episode_starts import EpisodeResult
from ding_lite.envs.error_locations import EnvLocation
from ding_lite.envs.error_reproduction import NotReproducibleError, reproduce_env_error, save_env_error
from ding_lite.envs.error_reproduction import ReplayError as ReplayError
from ding_lite.envs.error_reproduction import replay_error as replay_error
from ding_lite.envs.goals import goal_rewards
from ding_lite.envs.info_columns import INFO
from ding_lite.envs.local_vectors import LocalVectorEnv
from ding_lite.envs.making import env_factory, make_envs, stepper, with_render_mode
from ding_lite.envs.making import rendering as rendering
from ding_lite.envs.multi_agent import AgentVectorEnv as AgentVectorEnv
from ding_lite.envs.multi_agent import MultiAgentVectorEnv
from ding_lite.envs.partial_observations import OnlyElements as OnlyElements
from ding_lite.envs.partial_observations import PartialObservation
from ding_lite.envs.spaces import SpaceError
from ding_lite.envs.step_interfaces import RunningEpisode, Step
from ding_lite.envs.worker_envs import SplitVectorEnv
from ding_lite.processes import WorkerDied, WorkerError, WorkerHangs

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise allow any name
    from ding_lite.envs.foreign_names import __getattr__ as __getattr__

__all__ = [
    "INFO",
    "ActionMask",
    "ActionMaskError",
    "AgentSlots",
    "AtariPreprocessing",
    "BitFlip",
    "ChangeableEnvs",
    "EnvDataError",
    "EnvLocation",
    "EpisodeResult",
    "LocalVectorEnv",
    "MultiAgentVectorEnv",
    "NotReproducibleError",
    "PartialObservation",
    "RunningEpisode",
    "SpaceError",
    "SplitVectorEnv",
    "Step",
    "WorkerDied",
    "WorkerError",
    "WorkerHangs",
    "action_masks",
    "env_factory",
    "goal_rewards",
    "make_envs",
    "make_multi_agent_envs",
    "reproduce_env_error",
    "save_env_error",
    "stepper",
    "with_render_mode",
]
