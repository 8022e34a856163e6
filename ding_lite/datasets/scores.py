"""Scores: returns relative to those of a random and of an expert policy."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ding_lite.datasets.chunks import DatasetError
from ding_lite.datasets.offline_datasets import OfflineDataset

REFERENCES = "reference_returns"
"""Name of the returns of a random and an expert policy in the sources of a dataset."""

REFERENCE_RETURNS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "halfcheetah": (-280.178953, 12135.0),
        "hopper": (-20.272305, 3234.3),
        "walker2d": (1.629008, 4592.3),
        "ant": (-325.6, 3879.7),
    }
)
"""Mean returns of a random and of an expert policy that D4RL has published, REF_MIN_SCORE and REF_MAX_SCORE, for the tasks of
MuJoCo that gymnasium has too. They were measured in gym's version v2 of the tasks."""

_TASK = re.compile(r"([A-Za-z0-9]+)-(?:[a-z-]+-)?v\d+")


def normalized_score(returns: Any, references: str | Sequence[float] | OfflineDataset) -> Any:
    """Returns on a scale on which a random policy has 0 and an expert 100, as D4RL reports them.

        score = 100 * (return - random) / (expert - random)

    Args:
        returns: a return, or an array of them, undiscounted.
        references: the mean returns (random, expert); or a task that is in `REFERENCE_RETURNS`, by the id in gymnasium, such as
            "Hopper-v5", or in D4RL, such as "hopper-medium-v2"; or a dataset that was read from Minari and has them, as
            ref_min_score and ref_max_score.

    Returns:
        A float, or an array like `returns`.

    Raises:
        ValueError: the references are unknown or not two finite numbers, or that of the expert is not above the random one.

    Reference:
        Fu et al. (2020), https://arxiv.org/abs/2004.07219.

    Example:
        >>> normalized_score(3234.3, "Hopper-v5"), normalized_score(125.0, (0.0, 500.0))
        (100.0, 25.0)
    """
    random, expert = _references(references)
    if not (math.isfinite(random) and math.isfinite(expert) and random < expert):
        raise ValueError(
            f"normalized_score of the references ({random:g}, {expert:g}): expected the returns (random, expert), the second "
            "one above the first."
        )
    scores = 100 * (np.asarray(returns, np.float64) - random) / (expert - random)
    return scores if scores.ndim else float(scores)


def _references(references: Any) -> tuple[float, float]:
    if isinstance(references, OfflineDataset):
        return _references_of(references)
    if isinstance(references, str):
        found = _TASK.fullmatch(references)
        if found is None or (task := found[1].lower()) not in REFERENCE_RETURNS:
            raise ValueError(
                f"normalized_score has no references for {references!r}, only for {', '.join(REFERENCE_RETURNS)}, such as "
                "'Hopper-v5': pass the returns (random, expert)."
            )
        return REFERENCE_RETURNS[task]
    try:
        random, expert = map(float, references)
    except (TypeError, ValueError):
        raise ValueError(
            f"normalized_score of the references {references!r:.60}: expected the returns (random, expert), the id of a task, "
            "or a dataset that has them."
        ) from None
    return random, expert


def _references_of(dataset: OfflineDataset) -> tuple[float, float]:
    """The references that a dataset has."""
    found = {tuple(source.get(REFERENCES) or ()) for source in dataset.sources}
    if len(found) != 1 or found == {()}:
        what = "has no reference returns" if found <= {()} else "was made of parts with different reference returns"
        raise DatasetError(f"the dataset {dataset.name} {what}: pass the returns (random, expert), or the id of a task.")
    random, expert = found.pop()
    return float(random), float(expert)
