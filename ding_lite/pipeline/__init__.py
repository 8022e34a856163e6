"""The pipeline: contexts, middleware and their contracts, and what can be known of them before anything runs."""

from ding_lite.pipeline.contexts import Context, UndeclaredFieldError
from ding_lite.pipeline.contracts import Contract, Made, contract, contract_of
from ding_lite.pipeline.generators import engaged
from ding_lite.pipeline.guards import under_contract
from ding_lite.pipeline.pending_work import Remainder
from ding_lite.pipeline.pipeline_checks import PipelineError
from ding_lite.pipeline.views import ContractError

__all__ = [
    "Context",
    "Contract",
    "ContractError",
    "Made",
    "PipelineError",
    "Remainder",
    "UndeclaredFieldError",
    "contract",
    "contract_of",
    "engaged",
    "under_contract",
]
