"""Columns of batches in RLlib and DI-engine, with their names here or with what to write instead."""

from __future__ import annotations

from collections.abc import Collection
from types import MappingProxyType

from ding_lite.basics import did_you_mean

RENAMED = MappingProxyType(
    {
        **dict.fromkeys(("new_obs", "next_observations", "next_state"), "next_obs"),
        **dict.fromkeys(("observations", "observation"), "obs"),
        "actions": "action",
        "rewards": "reward",
        "terminateds": "terminated",
        "truncateds": "truncated",
        **dict.fromkeys(("action_logp", "logp", "log_probs"), "log_prob"),
        **dict.fromkeys(("vf_preds", "values"), "value"),
        **dict.fromkeys(("advantages", "adv"), "advantage"),
        **dict.fromkeys(("value_targets", "returns", "return"), "return_"),
        **dict.fromkeys(("IS", "priority_IS", "weights"), "weight"),
        "collect_iter": "policy_version",
        "prev_state": "state_in_0",
    }
)
"""Columns with another name here."""

_DONE = (
    "an episode ends where terminated | truncated of the batch is true. Only terminated cuts the bootstrap of values; "
    "truncated is a time limit."
)
_INFOS = "the infos that make_envs(..., info_columns=('x_position',)) names are columns, such as batch.info.x_position."
_PREVIOUS = (
    "name prev_action_batch and prev_reward_batch in the signature of compute_actions, and return them as extra outputs."
)

ADVICE = MappingProxyType(
    {
        **dict.fromkeys(("done", "dones"), _DONE),
        "infos": _INFOS,
        **dict.fromkeys(("prev_actions", "prev_rewards"), _PREVIOUS),
        "action_dist_inputs": "extra outputs of compute_actions or extra_action_out are columns of the same names.",
    }
)
"""For the others, a sentence."""


def column_advice(name: str, columns: Collection[str]) -> str:
    """The end of a sentence about a column that a batch does not have: advice, the nearest column, or a full stop.

    Args:
        name: the column.
        columns: the columns that the batch has.

    Example:
        >>> column_advice("new_obs", ["obs", "next_obs"])
        ": did you mean 'next_obs'?"
    """
    if name in ADVICE:
        return f": {ADVICE[name]}"
    return f": did you mean {RENAMED[name]!r}?" if RENAMED.get(name) in columns else did_you_mean(name, columns)
