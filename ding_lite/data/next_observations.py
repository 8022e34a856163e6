"""Next observations of a rollout, with the final observations of its episodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ding_lite.data.trees import map_leaves


def next_observations(obs: Any, finals: Iterable[tuple[int, int, Any]]) -> Any:
    """The observation that each step returned, before any reset: `next_obs`, arrays [T, B, ...], nested like the space.

    It is the observation before the next step, except at the end of an episode: there it is the final observation, because the
    next step begins with the first observation of another episode.

    Args:
        obs: observations before each step and after the last one, [T + 1, B, ...].
        finals: (t, environment, final observation) of each end of an episode after which the environment was reset.

    Example:
        >>> import numpy as np
        >>> next_observations(np.array([[1.0], [2.0], [0.0]]), [(1, 0, 3.0)]).tolist()
        [[2.0], [3.0]]
    """
    next_obs = map_leaves(lambda column: column[1:].copy(), obs)
    for t, index, final in finals:
        map_leaves(lambda column, leaf, row=(t, index): column.__setitem__(row, leaf), next_obs, final)
    return next_obs
