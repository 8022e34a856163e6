"""Returns, losses, distributions and schedules as pure functions."""

from ding_lite.functional.advantages import discounted_sum, gae, normalize_advantage
from ding_lite.functional.corrections import VTrace, vtrace
from ding_lite.functional.distributional_losses import (
    categorical_loss,
    categorical_mean,
    categorical_projection,
    gather_atoms,
    quantile_huber_loss,
    quantile_midpoints,
)
from ding_lite.functional.log_probs import (
    bernoulli_kl,
    bernoulli_log_prob,
    categorical_entropy,
    categorical_kl,
    gaussian_kl,
    gaussian_log_prob,
    sample_categorical,
    squashed_gaussian_log_prob,
    squashed_gaussian_sample,
    unsquash,
)
from ding_lite.functional.losses import (
    advantage_weight,
    expectile_loss,
    explained_variance,
    huber,
    masked_mean,
    policy_gradient_loss,
    ppo_policy_loss,
    ppo_value_loss,
    q_target,
    temperature_loss,
    weighted_mean,
)
from ding_lite.functional.off_policy import doubly_robust, effective_sample_size, importance_sampling, weighted_standard_error
from ding_lite.functional.priorities import importance_weight, sequence_priority
from ding_lite.functional.rescaling import rescale_value, unrescale_value
from ding_lite.functional.returns import NStep, discounted_return, nstep_return
from ding_lite.functional.schedules import decayed_value, piecewise_linear
from ding_lite.functional.traces import is_traced
from ding_lite.functional.traces import tracing as tracing
from ding_lite.functional.updates import polyak_

__all__ = [
    "NStep",
    "VTrace",
    "advantage_weight",
    "bernoulli_kl",
    "bernoulli_log_prob",
    "categorical_entropy",
    "categorical_kl",
    "categorical_loss",
    "categorical_mean",
    "categorical_projection",
    "decayed_value",
    "discounted_return",
    "discounted_sum",
    "doubly_robust",
    "effective_sample_size",
    "expectile_loss",
    "explained_variance",
    "gae",
    "gather_atoms",
    "gaussian_kl",
    "gaussian_log_prob",
    "huber",
    "importance_sampling",
    "importance_weight",
    "is_traced",
    "masked_mean",
    "normalize_advantage",
    "nstep_return",
    "piecewise_linear",
    "policy_gradient_loss",
    "polyak_",
    "ppo_policy_loss",
    "ppo_value_loss",
    "q_target",
    "quantile_huber_loss",
    "quantile_midpoints",
    "rescale_value",
    "sample_categorical",
    "sequence_priority",
    "squashed_gaussian_log_prob",
    "squashed_gaussian_sample",
    "temperature_loss",
    "unrescale_value",
    "unsquash",
    "vtrace",
    "weighted_mean",
    "weighted_standard_error",
]
