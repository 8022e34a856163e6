"""ding_lite: reinforcement-learning training loops as pipelines of middleware over one context."""

from ding_lite.engine import Context, PipelineError, Task, contract, task

__version__ = "0.1.0"

__all__ = ["Context", "PipelineError", "Task", "__version__", "contract", "task"]
