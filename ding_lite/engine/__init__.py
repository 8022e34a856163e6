"""The engine: a loop of functions over a dataclass, checked before it runs. It knows nothing of reinforcement learning.

Room: ding_lite.engine, floor 0. Standard library only, and torch where a checkpoint is written.
"""

from ding_lite.basics import (
    CheckpointError,
    Config,
    ConfigError,
    add_note,
    arrays,
    bounded,
    did_you_mean,
    load_checkpoint,
    move_aside,
    plain,
    require_extra,
    save_checkpoint,
    write_atomically,
)
from ding_lite.engine.deferrals import BrokenOff, Deferred
from ding_lite.engine.endings import EndReason
from ding_lite.engine.frames import released
from ding_lite.engine.interrupts import RunInterrupted
from ding_lite.engine.roles import Role
from ding_lite.engine.tasks import Task, current_task, task
from ding_lite.pipeline import (
    Context,
    Contract,
    PipelineError,
    Remainder,
    UndeclaredFieldError,
    contract,
    contract_of,
    engaged,
)

__all__ = [
    "BrokenOff",
    "CheckpointError",
    "Config",
    "ConfigError",
    "Context",
    "Contract",
    "Deferred",
    "EndReason",
    "PipelineError",
    "Remainder",
    "Role",
    "RunInterrupted",
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
