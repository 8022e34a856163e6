"""Compiled gradient steps: loss, backward pass, clipping and optimizer of any policy as one program, compiled ahead of time.

Steps on a CUDA device are recorded as CUDA graphs.

Internal: its names may change in any version.
"""

from ding_lite.compiling.compiled_steps import MAX_FORMS, CompiledSteps, Outputs
from ding_lite.compiling.functional_steps import CompilablePolicy, batch_copy
from ding_lite.compiling.packages import cache_folder
from ding_lite.compiling.tracing import NotCompiledError

__all__ = ["MAX_FORMS", "CompilablePolicy", "CompiledSteps", "NotCompiledError", "Outputs", "batch_copy", "cache_folder"]
