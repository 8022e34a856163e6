"""The engine: a loop of functions over a dataclass, checked before it runs. It knows nothing of reinforcement learning.

Room: ding_lite.engine, floor 0. Standard library only, and torch where a checkpoint is written.
"""

from ding_lite.basics.checkpoints import (
    CheckpointError,
    arrays,
    load_checkpoint,
    move_aside,
    plain,
    save_checkpoint,
    write_atomically,
)
from ding_lite.basics.configs import Config, ConfigError, bounded
from ding_lite.basics.messages import add_note, did_you_mean, require_extra
from ding_lite.engine.deferrals import BrokenOff, Deferred
from ding_lite.engine.frames import released
from ding_lite.engine.roles import Role
from ding_lite.engine.tasks import Task, current_task, task
from ding_lite.pipeline.checks import PipelineError
from ding_lite.pipeline.contexts import Context, UndeclaredFieldError
from ding_lite.pipeline.contracts import Contract, contract, contract_of
from ding_lite.pipeline.generators import engaged
from ding_lite.pipeline.remainders import Remainder

__all__ = [
    "BrokenOff",
    "CheckpointError",
    "Config",
    "ConfigError",
    "Context",
    "Contract",
    "Deferred",
    "PipelineError",
    "Remainder",
    "Role",
    "Task",
    "UndeclaredFieldError",
    "add_note",
    "arrays",
    "bounded",
    "contract",
    "contract_of",
    "current_task",
    "did_you_mean",
    "engaged",
    "load_checkpoint",
    "move_aside",
    "plain",
    "released",
    "require_extra",
    "save_checkpoint",
    "task",
    "write_atomically",
]
