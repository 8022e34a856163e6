"""The engine: a loop of functions over a dataclass, checked before it runs. It has no code for reinforcement learning."""

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
from ding_lite.engine.deferrals import BrokenOff, Deferred, WorkCancelled
from ding_lite.engine.endings import EndReason
from ding_lite.engine.interrupts import RunInterrupted
from ding_lite.engine.lanes import interpreter_released, released
from ding_lite.engine.roles import Role
from ding_lite.engine.run_states import RunStateError
from ding_lite.engine.tasks import Task, current_task, opened_for, task
from ding_lite.engine.watchdogs import OutOfMemoryError, RunStuck
from ding_lite.pipeline import (
    Context,
    Contract,
    ContractError,
    Made,
    NestedContext,
    PendingWork,
    PipelineError,
    Remainder,
    UndeclaredFieldError,
    contract,
    contract_of,
    engaged,
    run_inside,
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
    "NestedContext",
    "OutOfMemoryError",
    "PendingWork",
    "PipelineError",
    "Remainder",
    "Role",
    "RunInterrupted",
    "RunStateError",
    "RunStuck",
    "Task",
    "UndeclaredFieldError",
    "UnsavedError",
    "WorkCancelled",
    "WriteError",
    "bounded",
    "contract",
    "contract_of",
    "current_task",
    "engaged",
    "interpreter_released",
    "load_checkpoint",
    "opened_for",
    "ranged_field",
    "released",
    "run_inside",
    "save_checkpoint",
    "task",
]
