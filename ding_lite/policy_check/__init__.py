"""The dry run of a policy, and checks of the arguments and results of its hooks.

Internal: its names may change in any version; `ding_lite.policy` has the errors.
"""

from ding_lite.policy_check.acting_attributes import AttributesOfActing, changed_by_acting, code_of_acting, code_of_learning
from ding_lite.policy_check.batch_checks import explain_learning, require_known_shapes, require_shapes, warn_of_misfit
from ding_lite.policy_check.columns import STANDARD, ColumnError, HookReads, described, map_columns
from ding_lite.policy_check.dry_run import dummy_elements, try_out
from ding_lite.policy_check.finite_numbers import LossError as LossError
from ding_lite.policy_check.finite_numbers import NonFiniteError, are_finite, loss_error, require_finite
from ding_lite.policy_check.given_models import require_members, require_no_recurrent_state, require_output
from ding_lite.policy_check.given_models import require_no_memory as require_no_memory
from ding_lite.policy_check.hook_names import require_declarations, require_methods
from ding_lite.policy_check.hook_results import (
    HookError,
    require_batch,
    require_mapping,
    require_model,
    require_optimizer,
    require_real,
    warn_of_unlearned,
    with_stats,
)
from ding_lite.policy_check.idle_settings import (
    idle_batch_size,
    idle_for_optimizer,
    idle_for_rollouts,
    is_read_by_users,
    warn_of_idle_settings,
)
from ding_lite.policy_check.network_sizes import explained_size
from ding_lite.policy_check.observations import ObservationError, may_be_wrong, misfit_of
from ding_lite.policy_check.recurrent_checks import like_before, own_object, state_like_before

__all__ = [
    "STANDARD",
    "AttributesOfActing",
    "ColumnError",
    "HookError",
    "HookReads",
    "NonFiniteError",
    "ObservationError",
    "are_finite",
    "changed_by_acting",
    "code_of_acting",
    "code_of_learning",
    "described",
    "dummy_elements",
    "explain_learning",
    "explained_size",
    "idle_batch_size",
    "idle_for_optimizer",
    "idle_for_rollouts",
    "is_read_by_users",
    "like_before",
    "loss_error",
    "map_columns",
    "may_be_wrong",
    "misfit_of",
    "own_object",
    "require_batch",
    "require_declarations",
    "require_finite",
    "require_known_shapes",
    "require_mapping",
    "require_members",
    "require_methods",
    "require_model",
    "require_no_recurrent_state",
    "require_optimizer",
    "require_output",
    "require_real",
    "require_shapes",
    "state_like_before",
    "try_out",
    "warn_of_idle_settings",
    "warn_of_misfit",
    "warn_of_unlearned",
    "with_stats",
]
