"""The engine: a loop of functions over a dataclass, checked before it runs. It has no code for reinforcement learning."""

from ding_lite.basics import (
    CheckpointError,
    Config,
    ConfigError,
    UnsavedError,
    WriteError,
    load_checkpoint,
    ranged_field,
    save_checkpoint,
)
from ding_lite.basics import bounded as bounded
from ding_lite.engine.deferrals import BrokenOff as BrokenOff
from ding_lite.engine.deferrals import Deferred, WorkCancelled
from ding_lite.engine.endings import EndReason
from ding_lite.engine.interrupts import RunInterrupted
from ding_lite.engine.lanes import interpreter_released as interpreter_released
from ding_lite.engine.lanes import released as released
from ding_lite.engine.lanes import waiting_for_process
from ding_lite.engine.roles import Role
from ding_lite.engine.run_states import RunStateError
from ding_lite.engine.tasks import Task, current_task, task
from ding_lite.engine.watchdogs import OutOfMemoryError, RunStuckError
from ding_lite.pipeline import (
    Context,
    Contract,
    ContractError,
    NestedContext,
    PendingWork,
    PipelineError,
    UndeclaredFieldError,
    contract,
    contract_of,
    extend_contract,
    run_inside,
)
from ding_lite.pipeline import Made as Made
from ding_lite.pipeline import Remainder as Remainder
from ding_lite.pipeline import engaged as engaged

__all__ = [
    "CheckpointError",
    "Config",
    "ConfigError",
    "Context",
    "Contract",
    "ContractError",
    "Deferred",
    "EndReason",
    "NestedContext",
    "OutOfMemoryError",
    "PendingWork",
    "PipelineError",
    "Role",
    "RunInterrupted",
    "RunStateError",
    "RunStuckError",
    "Task",
    "UndeclaredFieldError",
    "UnsavedError",
    "WorkCancelled",
    "WriteError",
    "contract",
    "contract_of",
    "current_task",
    "extend_contract",
    "load_checkpoint",
    "ranged_field",
    "run_inside",
    "save_checkpoint",
    "task",
    "waiting_for_process",
]
