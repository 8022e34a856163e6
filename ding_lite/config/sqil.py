"""The configuration of DQN that imitates an expert by SQIL."""

from __future__ import annotations

import dataclasses

from ding_lite.basics import ranged_field
from ding_lite.policy import DQNConfig


@dataclasses.dataclass
class SQILConfig(DQNConfig):
    """DQN that imitates an expert by SQIL."""

    exp_name: str = "runs/sqil"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(2000, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    expert_data: str | list[str] | None = None
    """Dataset of the expert: a folder that offline_data_saver has written, or a dataset of Minari; several are used as one.
    None for episodes of a controller of CartPole-v1."""

    expert_share: float = ranged_field(0.5, low=0.001, high=0.999)
    """Share of the expert's transitions in each batch."""
