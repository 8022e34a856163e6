"""The engine: a loop of functions over a dataclass, checked before it runs. It knows nothing of reinforcement learning."""

from ding_lite.basics import (
    CheckpointError,
    Config,
    ConfigError,
    UnsavedError,
    WriteError,
    bounded,
    load_checkpoint,
    ranged_field,
    save_checkpoint,
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
    "bounded",
    "contract",
    "contract_of",
    "current_task",
    "engaged",
    "load_checkpoint",
    "ranged_field",
    "released",
    "save_checkpoint",
    "task",
]
