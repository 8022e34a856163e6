"""Final masks: the last state of a truncated episode allows an action, if a target takes the best action there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ding_lite.data.trees import map_leaves
from ding_lite.envs import ActionMaskError, EpisodeResult
from ding_lite.envs.action_masks import ACTION_MASK, ActionMasks
from ding_lite.policy import ActMode


class FinalMasks:
    """Checks the masks of truncated states, for policies whose targets have the value of the best allowed action there.

    Args:
        masks: the masks of actions in observations.
        policy: that collects.
    """

    def __init__(self, masks: ActionMasks, policy: ActMode) -> None:
        self._masks, self._policy = masks, policy

    @classmethod
    def of(cls, masks: ActionMasks | None, policy: ActMode) -> FinalMasks | None:
        """The checks that this policy needs; None if it needs none."""
        needs = masks is not None and getattr(policy, "bootstraps_from_actions", False)
        return cls(masks, policy) if needs and masks is not None else None

    def require(
        self,
        truncated: np.ndarray[Any, Any],
        finals: Mapping[int, Any],
        obs: Any,
        where: Callable[[int], str],
    ) -> None:
        """Raise an error if a truncated state allows no action.

        Args:
            truncated: [B] bool.
            finals: the final observations of rows that were reset in the same step.
            obs: the next observations [B, ...] of all other rows.
            where: describes a row and its step for the message.

        Raises:
            ActionMaskError: naming the environment, its step, and the fix.
        """
        for row in truncated.nonzero()[0].tolist():
            final = finals[row] if row in finals else map_leaves(lambda leaf, at=row: leaf[at], obs)
            if not self._masks.has_choice(map_leaves(lambda leaf: np.asarray(leaf)[None], final)).all():
                algorithm = self._policy.made_with["algorithm"]
                raise ActionMaskError(
                    f"{where(row)} was truncated with a final observation whose {ACTION_MASK!r} allows no action. {algorithm} "
                    "learns from the value of the best allowed action in a truncated state, because the episode could have "
                    "continued: return the mask of the actions that would be possible there, or set terminated instead of "
                    "truncated if there are none."
                )


def last_step(finished: Sequence[EpisodeResult], env: int) -> str:
    """Describes the step with which the episode of this environment has ended; empty if it has not."""
    for episode in finished:
        if episode.env == env:
            seed = "" if episode.seed is None else f", which began with reset(seed={episode.seed})"
            return f" in step {episode.length - 1} of its episode {episode.number}{seed},"
    return ""
