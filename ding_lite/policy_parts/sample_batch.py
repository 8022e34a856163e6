"""Names of columns as constants, under the names of RLlib: `batch[SampleBatch.ACTIONS]`."""

from __future__ import annotations

from typing import ClassVar

from ding_lite.basics import foreign_attributes
from ding_lite.data.foreign_columns import ADVICE

_EPISODES = "the columns of a rollout are [T, B, ...], and an episode ends where terminated | truncated is true."

FOREIGN_COLUMNS = {
    "DONES": ADVICE["dones"],
    **dict.fromkeys(("AGENT_INDEX", "ENV_ID", "EPS_ID", "SEQ_LENS", "T", "UNROLL_ID"), f"leave it out: {_EPISODES}"),
    **dict.fromkeys(("PREV_ACTIONS", "PREV_REWARDS"), ADVICE["prev_actions"]),
    **dict.fromkeys(("ACTION_DIST_INPUTS", "ACTION_PROB"), ADVICE["action_dist_inputs"]),
}
"""Columns of RLlib that do not exist here, with what to use instead."""


@foreign_attributes(FOREIGN_COLUMNS)
class SampleBatch:
    """The columns of a batch. There is no DONES: an episode ends where a step is terminated or truncated."""

    OBS: ClassVar[str] = "obs"
    CUR_OBS: ClassVar[str] = "obs"
    NEXT_OBS: ClassVar[str] = "next_obs"
    ACTIONS: ClassVar[str] = "action"
    REWARDS: ClassVar[str] = "reward"
    TERMINATEDS: ClassVar[str] = "terminated"
    TRUNCATEDS: ClassVar[str] = "truncated"
    INFOS: ClassVar[str] = "info"
    """Columns of infos, nested; see `make_envs(..., info_columns=...)`."""
    ACTION_LOGP: ClassVar[str] = "log_prob"
    VF_PREDS: ClassVar[str] = "vf_preds"
    """Name for an extra output with the critic's values. Estimators call the column `value`."""


class Postprocessing:
    """The columns that `compute_advantages` and estimators add."""

    ADVANTAGES: ClassVar[str] = "advantage"
    VALUE_TARGETS: ClassVar[str] = "return_"
