"""Settings of d3rlpy and CORL that are called otherwise here or are not needed."""

_PENALTY = "the weight of the penalty is policy.learn.min_q_weight of CQLConfig and DiscreteCQLConfig."
_ACTOR_RATE = "the learning rate of the actor is policy.learn.learning_rate_actor; None takes that of the critics."
_CRITIC_RATE = "the learning rate of the critics is policy.learn.learning_rate."
_TEMPERATURE_RATE = (
    "the learning rate of the temperature is policy.learn.learning_rate_alpha of SACConfig and CQLConfig. The weight of CQL's "
    "penalty, if policy.learn.lagrange_thresh tunes it, has policy.learn.learning_rate."
)
_NUM_ACTIONS = "the actions sampled per observation are policy.learn.num_actions of CQLConfig."
_THRESHOLD = "the threshold that tunes the weight of the penalty is policy.learn.lagrange_thresh of CQLConfig."
_NORMALIZED = "observations are normalised by policy.model.normalize_obs, by running statistics of the batches learned from."
_TD3 = "it is policy.learn.{} of TD3Config and TD3BCConfig."

DISTINCT = {
    **dict.fromkeys(("conservative_weight", "cql_alpha"), _PENALTY),
    **dict.fromkeys(("cql_n_actions", "n_action_samples"), _NUM_ACTIONS),
    **dict.fromkeys(("alpha_threshold", "cql_lagrange", "cql_target_action_gap"), _THRESHOLD),
    "weight_temp": "the inverse temperature of the weights is policy.learn.beta of IQLConfig and DiscreteIQLConfig.",
    "iql_tau": "the expectile is policy.learn.expectile of IQLConfig and DiscreteIQLConfig.",
    "exp_adv_max": "the limit of the weights is policy.learn.max_weight of IQLConfig and AWACConfig.",
    "actor_learning_rate": _ACTOR_RATE,
    "critic_learning_rate": _CRITIC_RATE,
    **dict.fromkeys(("alpha_learning_rate", "temp_learning_rate"), _TEMPERATURE_RATE),
    "n_critics": "the number of critics is not a setting: DDPGPolicy has one, the other policies for Box actions have two.",
    "observation_scaler": _NORMALIZED,
    "reward_scaler": "the middleware reward_normalizer(cfg, policy.learn_mode) scales rewards.",
}
"""Names that users hardly choose themselves."""

SHORT = {
    "gamma": "the discount factor is policy.discount_factor, and for on-policy algorithms policy.collect.discount_factor.",
    "tau": "the coefficient of the update of target networks is policy.learn.target_update_theta; the expectile of IQL is "
    "policy.learn.expectile.",
    "normalize": _NORMALIZED,
    "policy_noise": _TD3.format("target_noise"),
    "noise_clip": _TD3.format("target_noise_clip"),
    "policy_freq": _TD3.format("actor_update_freq"),
    "expl_noise": "it is policy.collect.noise_sigma of DDPGConfig and TD3Config.",
    "actor_lr": _ACTOR_RATE,
    **dict.fromkeys(("critic_lr", "qf_lr", "vf_lr"), _CRITIC_RATE),
    "alpha_lr": _TEMPERATURE_RATE,
}
"""Names that may also be those of a user's own settings."""
