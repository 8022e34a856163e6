"""The pipeline: contexts, middleware and their contracts, and what can be known of them before anything runs."""

from ding_lite.pipeline.contexts import Context, UndeclaredFieldError
from ding_lite.pipeline.contracts import Contract, Made, NestedContext, contract, contract_of
from ding_lite.pipeline.generators import engaged, run_inside
from ding_lite.pipeline.guards import under_contract
from ding_lite.pipeline.pending_work import PendingWork, Remainder
from ding_lite.pipeline.pipeline_checks import PipelineError
from ding_lite.pipeline.views import ContractError

__all__ = [
    "Context",
    "Contract",
    "ContractError",
    "Made",
    "NestedContext",
    "PendingWork",
    "PipelineError",
    "Remainder",
    "UndeclaredFieldError",
    "contract",
    "contract_of",
    "engaged",
    "run_inside",
    "under_contract",
]
