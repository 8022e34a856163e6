"""Returns, losses, distributions and schedules as pure functions.

Room: ding_lite.functional, floor 0. Torch and numpy only.
"""

from ding_lite.functional.advantages import discounted_sum, gae
from ding_lite.functional.distributions import bernoulli_log_prob, categorical_entropy, gaussian_log_prob, sample_categorical
from ding_lite.functional.losses import explained_variance, ppo_policy_loss, ppo_value_loss, q_target
from ding_lite.functional.schedules import decayed

__all__ = [
    "bernoulli_log_prob",
    "categorical_entropy",
    "decayed",
    "discounted_sum",
    "explained_variance",
    "gae",
    "gaussian_log_prob",
    "ppo_policy_loss",
    "ppo_value_loss",
    "q_target",
    "sample_categorical",
]
