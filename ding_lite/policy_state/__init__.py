"""Checks of a policy's saved state, and loading it completely or not at all.

Internal: its names may change in any version; `ding_lite.policy` has the errors.
"""

from ding_lite.policy_state.identities import (
    StateDictError,
    differing_settings,
    identity_of,
    require_alike,
    require_identity,
    settings_in,
)
from ding_lite.policy_state.identities import StateError as StateError
from ding_lite.policy_state.leaves import entry_names, require_count, require_like, require_range, tensors_in
from ding_lite.policy_state.loading import (
    all_or_nothing,
    entries_of_other_settings,
    misfit,
    require_part,
    require_state,
    require_weights,
    with_own_values,
)
from ding_lite.policy_state.networks import networks_of
from ding_lite.policy_state.optimizer_states import (
    group_settings,
    moments_of,
    optimizer_state,
    require_optimizer_state,
    with_added_settings,
    with_group_settings,
    with_moments,
)
from ding_lite.policy_state.random_states import require_random_state, set_torch_state

__all__ = [
    "StateDictError",
    "all_or_nothing",
    "differing_settings",
    "entries_of_other_settings",
    "entry_names",
    "group_settings",
    "identity_of",
    "misfit",
    "moments_of",
    "networks_of",
    "optimizer_state",
    "require_alike",
    "require_count",
    "require_identity",
    "require_like",
    "require_optimizer_state",
    "require_part",
    "require_random_state",
    "require_range",
    "require_state",
    "require_weights",
    "set_torch_state",
    "settings_in",
    "tensors_in",
    "with_added_settings",
    "with_group_settings",
    "with_moments",
    "with_own_values",
]
