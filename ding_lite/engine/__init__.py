"""The engine: a loop of functions over a dataclass, checked before it runs. It knows nothing of reinforcement learning.

Room: ding_lite.engine, floor 0. Standard library only, and torch where a checkpoint is written.
"""

from ding_lite.basics import (
    CheckpointError,
    Config,
    ConfigError,
    UnsavedError,
    WriteError,
    add_note,
    arrays,
    bounded,
    did_you_mean,
    load_checkpoint,
    move_aside,
    plain,
    remove_leftovers,
    require_extra,
    require_writable,
    save_checkpoint,
    seed_field,
    seed_of,
    temporary_beside,
    write_atomically,
    writing,
)
from ding_lite.engine.deferrals import BrokenOff, Deferred
from ding_lite.engine.endings import EndReason
from ding_lite.engine.interrupts import RunInterrupted
from ding_lite.engine.lanes import released
from ding_lite.engine.roles import Role
from ding_lite.engine.tasks import Task, current_task, task
from ding_lite.pipeline import (
    Context,
    Contract,
    ContractError,
    Made,
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
    "ContractError",
    "Deferred",
    "EndReason",
    "Made",
    "PipelineError",
    "Remainder",
    "Role",
    "RunInterrupted",
    "Task",
    "UndeclaredFieldError",
    "UnsavedError",
    "WriteError",
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
    "remove_leftovers",
    "require_extra",
    "require_writable",
    "save_checkpoint",
    "seed_field",
    "seed_of",
    "task",
    "temporary_beside",
    "write_atomically",
    "writing",
]
