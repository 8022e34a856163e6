"""ding_lite: reinforcement-learning training loops as pipelines of middleware over one context."""

from typing import TYPE_CHECKING

from ding_lite.engine import Context, PipelineError, Task, contract, extend_contract, task

if TYPE_CHECKING:
    from ding_lite.contexts import OfflineRLContext, OnlineRLContext
if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise allow any name
    from ding_lite.foreign_names import __getattr__ as __getattr__

__version__ = "0.1.0"

__all__ = [
    "Context",
    "OfflineRLContext",
    "OnlineRLContext",
    "PipelineError",
    "Task",
    "__version__",
    "contract",
    "extend_contract",
    "task",
]
