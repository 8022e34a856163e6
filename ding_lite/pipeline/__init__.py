"""The pipeline: contexts, middleware and their contracts, and what can be known of them before anything runs.

Internal: its names may change in any version; `ding_lite` and `ding_lite.engine` have those for users.
"""

from ding_lite.pipeline.contexts import Context, UndeclaredFieldError
from ding_lite.pipeline.contract_guards import under_contract
from ding_lite.pipeline.contracts import Contract, NestedContext, contract, contract_of, extend_contract
from ding_lite.pipeline.contracts import Made as Made
from ding_lite.pipeline.generators import engaged as engaged
from ding_lite.pipeline.generators import run_inside
from ding_lite.pipeline.pending_work import PendingWork
from ding_lite.pipeline.pending_work import Remainder as Remainder
from ding_lite.pipeline.pipeline_checks import PipelineError
from ding_lite.pipeline.views import ContractError

__all__ = [
    "Context",
    "Contract",
    "ContractError",
    "NestedContext",
    "PendingWork",
    "PipelineError",
    "UndeclaredFieldError",
    "contract",
    "contract_of",
    "extend_contract",
    "run_inside",
    "under_contract",
]
