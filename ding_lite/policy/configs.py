"""Sections of configuration that several policies share.

Room: ding_lite.policy, floor 3. Imports the engine.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from ding_lite.engine import Config, bounded


@dataclasses.dataclass
class EvaluatorConfig(Config):
    """When to evaluate."""

    eval_freq: int = bounded(500, low=1)
    """Gradient steps between two evaluations."""

    eval_freq_env_step: int | None = bounded(None, low=1)
    """Environment steps between two evaluations, where that comes first; None for gradient steps only."""


@dataclasses.dataclass
class EvalConfig(Config):
    """Evaluation."""

    evaluator: EvaluatorConfig = dataclasses.field(default_factory=EvaluatorConfig)
    """When."""


@dataclasses.dataclass
class ModelConfig(Config):
    """The encoder of observations."""

    encoder_hidden_size_list: list[int] = dataclasses.field(default_factory=lambda: [128, 128])
    """Width of each hidden layer."""

    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "relu"
    """After each hidden layer."""

    conv_layers: list[tuple[int, int, int]] | None = None
    """For images: (channels, kernel, stride) of each convolution; None chooses by the size of the image."""


@dataclasses.dataclass
class LearnConfig(Config):
    """Gradient steps."""

    batch_size: int = bounded(64, low=1)
    """Transitions a gradient step."""

    learning_rate: float = bounded(1e-3, low=0)
    """Of Adam."""

    grad_clip_norm: float | None = bounded(None, low=0)
    """Largest norm of the gradient; None for no clipping."""


@dataclasses.dataclass
class CollectConfig(Config):
    """Collecting."""

    n_sample: int = bounded(64, low=1)
    """Transitions a collection, rounded up to whole steps of all environments."""


@dataclasses.dataclass
class PolicyConfig(Config):
    """What every policy needs to know."""

    seed: int | None = None
    """Of its weights and of its random actions; None takes the seed of the run."""

    device: str = "cpu"
    """Where its networks live: "cpu", "cuda" or "cuda:1"."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    """The networks."""

    learn: LearnConfig = dataclasses.field(default_factory=LearnConfig)
    """Learning."""

    collect: CollectConfig = dataclasses.field(default_factory=CollectConfig)
    """Collecting."""

    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    """Evaluation."""
