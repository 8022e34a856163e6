"""Sections of configuration that several policies share: what all have, and what learns from fresh rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from ding_lite.basics import Config, ranged_field, seed_field

_BURN_IN = "steps that only bring the recurrent state up to date are policy.learn.burn_in of R2D2Config."
_ACTOR_STEPS = "the actor learns in each gradient step; TD3Config alone has policy.learn.actor_update_freq."
_WIDTHS = "actor and critic have the hidden layers of policy.model.encoder_hidden_size_list, each as many."


@dataclasses.dataclass
class EvaluatorConfig(Config):
    """When to evaluate."""

    eval_freq: int = ranged_field(500, low=1)
    """Gradient steps between two evaluations."""

    eval_freq_env_step: int | None = ranged_field(None, low=1)
    """Environment steps between two evaluations, where that comes first; None for gradient steps only."""


@dataclasses.dataclass
class EvalConfig(Config):
    """Evaluation."""

    evaluator: EvaluatorConfig = dataclasses.field(default_factory=EvaluatorConfig)
    """When."""


@dataclasses.dataclass
class ModelConfig(Config):
    """The encoder of observations."""

    foreign: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("actor_head_hidden_size", "critic_head_hidden_size", "actor_head_layer_num", "critic_head_layer_num"), _WIDTHS
    )

    encoder_hidden_size_list: list[int] = ranged_field(default_factory=lambda: [128, 128], low=1, high=16_384)
    """Width of each hidden layer."""

    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "relu"
    """After each hidden layer."""

    conv_layers: list[tuple[int, int, int]] | None = ranged_field(None, low=1, high=16_384)
    """For images: (channels, kernel, stride) of each convolution; None chooses by the size of the image."""


@dataclasses.dataclass
class LearnConfig(Config):
    """Gradient steps."""

    foreign: ClassVar[Mapping[str, str]] = {
        "burnin_step": _BURN_IN,
        "actor_update_freq": _ACTOR_STEPS,
        "policy_update_freq": _ACTOR_STEPS,
        "value_norm": "values are not normalised; reward_normalizer(cfg, policy.learn_mode) brings rewards to a scale.",
    }

    batch_size: int = ranged_field(64, low=1, high=10_000_000)
    """Transitions a gradient step."""

    learning_rate: float = ranged_field(1e-3, low=0)
    """Of Adam."""

    lr_schedule: list[tuple[float, float]] | None = ranged_field(None, low=0)
    """Points (gradient step, learning rate), linear between them, for policies with a LearningRateSchedule; None keeps it."""

    grad_clip_norm: float | None = ranged_field(None, low=0, finite=False)
    """Largest norm of the gradient; None for no clipping."""


@dataclasses.dataclass
class CollectConfig(Config):
    """Collecting."""

    n_sample: int = ranged_field(64, low=1, high=10_000_000)
    """Transitions a collection, rounded up to whole steps of all environments."""

    n_episode: int = ranged_field(8, low=1, high=1_000_000)
    """Episodes a collection, where whole episodes are collected."""


@dataclasses.dataclass
class PolicyConfig(Config):
    """What every policy needs to know."""

    foreign: ClassVar[Mapping[str, str]] = {"burnin_step": _BURN_IN}

    seed: int | None = seed_field(None)
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


# What learns from fresh rollouts.


@dataclasses.dataclass
class ActorCriticModelConfig(ModelConfig):
    """Actor and critic."""

    encoder_hidden_size_list: list[int] = ranged_field(default_factory=lambda: [64, 64], low=1, high=16_384)
    """Width of each hidden layer."""

    activation: Literal["relu", "tanh", "elu", "gelu", "silu"] = "tanh"
    """After each hidden layer."""

    share_encoder: bool = False
    """One encoder for both; for images."""

    normalize_obs: bool = False
    """Give observations mean 0 and standard deviation 1, by what was learned from so far; images, bytes and discrete parts stay
    as they are."""


@dataclasses.dataclass
class OnPolicyLearnConfig(LearnConfig):
    """Learning from a rollout."""

    foreign: ClassVar[Mapping[str, str]] = {
        "entropy_coeff": "the weight of the entropy bonus is policy.learn.entropy_weight.",
        "ent_coef": "the weight of the entropy bonus is policy.learn.entropy_weight.",
        "vf_coef": "the weight of the critic's loss is policy.learn.value_weight.",
    }

    entropy_weight: float = ranged_field(0.0, low=0)
    """Of the entropy bonus."""

    entropy_schedule: list[tuple[float, float]] | None = ranged_field(None, low=0)
    """Points (gradient step, weight of the entropy bonus), linear between them; None keeps it."""

    value_weight: float = ranged_field(0.5, low=0)
    """Of the critic's loss."""

    grad_clip_norm: float | None = ranged_field(0.5, low=0, finite=False)
    """Largest norm of the gradient; None for no clipping."""


@dataclasses.dataclass
class ActorCriticLearnConfig(OnPolicyLearnConfig):
    """Learning an actor, and mostly a critic, from a rollout."""

    adv_norm: bool = True
    """Give the advantages of each gradient step mean 0 and standard deviation 1."""

    optimizer: Literal["adam", "rmsprop"] = "adam"
    """What turns gradients into steps."""


@dataclasses.dataclass
class EpochsLearnConfig(ActorCriticLearnConfig):
    """Learning from a rollout in several passes."""

    epoch_per_collect: int = ranged_field(10, low=1, high=1_000_000)
    """Passes over each rollout."""

    batch_size: int = ranged_field(128, low=1, high=10_000_000)
    """Transitions a gradient step."""


@dataclasses.dataclass
class OnPolicyCollectConfig(CollectConfig):
    """Collecting, and judging what was collected."""

    n_sample: int = ranged_field(512, low=1, high=10_000_000)
    """Transitions a rollout, rounded up to whole steps of all environments."""

    discount_factor: float = ranged_field(0.99, low=0, high=1)
    """gamma, a step."""

    gae_lambda: float = ranged_field(0.95, low=0, high=1)
    """lambda of the advantage estimator: 0 trusts the critic, 1 the rewards seen."""


@dataclasses.dataclass
class OnPolicyConfig(PolicyConfig):
    """What policies need to know that learn from fresh rollouts; the default of `build_policy`."""

    model: ActorCriticModelConfig = dataclasses.field(default_factory=ActorCriticModelConfig)
    """Actor and critic."""

    learn: OnPolicyLearnConfig = dataclasses.field(default_factory=OnPolicyLearnConfig)
    """Learning."""

    collect: OnPolicyCollectConfig = dataclasses.field(default_factory=OnPolicyCollectConfig)
    """Collecting."""

    eval: EvalConfig = dataclasses.field(default_factory=lambda: EvalConfig(EvaluatorConfig(eval_freq=100)))
    """Evaluation."""


@dataclasses.dataclass
class PolicyGradientConfig(OnPolicyConfig):
    """What policies need to know that take a gradient step a rollout, whole episodes or not."""

    learn: ActorCriticLearnConfig = dataclasses.field(default_factory=ActorCriticLearnConfig)
    """Learning."""

    eval: EvalConfig = dataclasses.field(default_factory=lambda: EvalConfig(EvaluatorConfig(eval_freq=40)))
    """Evaluation."""
