"""Names of other libraries' policies, with what to write instead."""

from ding_lite.basics import foreign_names

_OWN = "`Policy.with_updates` changes a policy that exists, and a subclass of `Policy` is one of your own."
_ABSENT = "this algorithm does not exist;"
_DISCRETE = f"{_ABSENT} for Discrete actions there are `DQNPolicy` and `PPOPolicy`. {_OWN}"
_BOX = f"{_ABSENT} for Box actions there are `SACPolicy`, `TD3Policy` and `DDPGPolicy`. {_OWN}"
_DISTRIBUTION = f"{_ABSENT} for distributions over returns there are `QRDQNPolicy`, `IQNPolicy` and `C51Policy`. {_OWN}"
_RECURRENT = f"{_ABSENT} for recurrent Q-learning there is `R2D2Policy`. {_OWN}"
_OFFLINE = (
    f"{_ABSENT} for datasets with Box actions there are `CQLPolicy`, `IQLPolicy`, `AWACPolicy` and `TD3BCPolicy`, and "
    f"with Discrete actions `DiscreteCQLPolicy` and `DiscreteIQLPolicy`. {_OWN}"
)
_IMITATION = "imitation of a dataset is `BCPolicy`, for actions and observations of any space."
_AGENTS = (
    "algorithms that train agents jointly do not exist: `MultiAgentCollector(cfg, policies, envs, policy_of)` and "
    "`for_policy(name, multistep_trainer(cfg, policy.learn_mode))` train each policy by itself."
)
_LATE = (
    f"{_ABSENT} `PPOPolicy` learns from each rollout by itself, and `IMPALAPolicy` corrects for the weights that have acted, "
    "which may be older."
)
_ACTING = "one policy learns, collects and is evaluated: `policy.learn_mode`, `policy.collect_mode`, `policy.eval_mode`."
_MADE = "name the class: `DQNPolicy(cfg.policy, observation_space, action_space)`."
_RANDOM = "`StepCollector(cfg, policy.collect_mode, env, random_collect_size=1000)` begins with random actions."
_PREDICTED = "`policy.predict(obs)` gives the action for one observation, or for a batch."

_DI_ENGINE = {
    "PPOFPolicy": "it is `PPOPolicy`.",
    "PPOPGPolicy": f"{_ABSENT} the nearest are `PPOPolicy` and `REINFORCEPolicy`.",
    **dict.fromkeys(("ACERPolicy", "PPGOffPolicy", "PPGPolicy", "PPOOffPolicy"), _LATE),
    **dict.fromkeys(("BDQPolicy", "DQNSTDIMPolicy", "DiscreteSACPolicy", "MDQNPolicy", "SQNPolicy", "SQLPolicy"), _DISCRETE),
    "DTPolicy": "it is `DecisionTransformerPolicy`, which learns from windows of a dataset.",
    "FQFPolicy": _DISTRIBUTION,
    **dict.fromkeys(("D4PGPolicy", "PDQNPolicy", "SQILSACPolicy", "TD3VAEPolicy"), _BOX),
    **dict.fromkeys(("NGUPolicy", "R2D2GTrXLPolicy", "R2D3Policy"), _RECURRENT),
    **dict.fromkeys(("BCQPolicy", "EDACPolicy", "QGPOPolicy"), _OFFLINE),
    **dict.fromkeys(("IBCPolicy", "ILPolicy", "ProcedureCloningBFSPolicy"), _IMITATION),
    **dict.fromkeys(("PromptAWRPolicy", "PromptPGPolicy"), f"policies of language models do not exist. {_OWN}"),
    **dict.fromkeys(("ATOCPolicy", "COMAPolicy", "CollaQPolicy", "HAPPOPolicy", "QMIXPolicy", "QTRANPolicy"), _AGENTS),
    "WQMIXPolicy": _AGENTS,
    "CommandModePolicy": _ACTING,
    **dict.fromkeys(("create_policy", "get_policy_cls"), _MADE),
    **dict.fromkeys(("PolicyFactory", "get_random_policy"), _RANDOM),
    **dict.fromkeys(("single_env_forward_wrapper", "single_env_forward_wrapper_ttorch"), _PREDICTED),
    "default_preprocess_learn": "leave it out: `Policy.loss` gets a tree of tensors on its device.",
}
_NETWORKS = (
    "leave it out: the policy makes its networks for the spaces, `PPOPolicy(cfg.policy, observation_space, action_space)`, and "
    "for another network a subclass overrides `Policy.make_model`."
)
_MASKS = "it is `PPOPolicy`, and so are all policies: a Dict observation with the key action_mask limits the actions."
_STABLE_BASELINES3 = {
    **{name: f"it is `{name}Policy`." for name in ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3")},
    **dict.fromkeys(("ActorCriticCnnPolicy", "BasePolicy", "CnnPolicy", "MlpPolicy", "MultiInputPolicy"), _NETWORKS),
    "MaskablePPO": _MASKS,
    "RecurrentPPO": "it is `PPOPolicy`, with cfg.policy.model.lstm_size.",
    "ActorCriticPolicy": "the networks of PPO and A2C are made by `make_actor_critic` of ding_lite.nn, as cfg.policy.model "
    "says.",
}

_BUILT = 'it is `build_policy("MyPolicy", loss_fn=fn)`, whose hooks have the same names; torch is the only framework.'
_ADVANTAGES = "it is `gae_estimator(cfg, policy.collect_mode)`, or in a postprocess_fn `compute_advantages(batch)`."
_TRAINERS = {
    **{name: name for name in ("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3")},
    "Impala": "IMPALA",
    "PG": "REINFORCE",
}
_TEMPLATES = ("build_policy_class", "build_tf_policy", "build_torch_policy")
_RLLIB = {
    **dict.fromkeys(_TEMPLATES, _BUILT),
    **dict.fromkeys(("TFPolicy", "TorchPolicy", "TorchPolicyV2"), "it is `Policy`."),
    **dict.fromkeys(("PPOTF1Policy", "PPOTF2Policy", "PPOTFPolicy", "PPOTorchPolicy"), "it is `PPOPolicy`."),
    **dict.fromkeys(("DQNTFPolicy", "DQNTorchPolicy"), "it is `DQNPolicy`."),
    **dict.fromkeys(("ImpalaTorchPolicy", "VTraceTFPolicy", "VTraceTorchPolicy"), "it is `IMPALAPolicy`."),
    **dict.fromkeys(("SACTFPolicy", "SACTorchPolicy"), "it is `SACPolicy`."),
    **dict.fromkeys(("A3CTorchPolicy", "A3CTFPolicy"), "the nearest are `A2CPolicy` and `IMPALAPolicy`."),
    **{name: f"it is `{name}Policy`." for name in ("CQL", "IMPALA", "R2D2")},
    **dict.fromkeys(("APPO", "APPOTorchPolicy"), _LATE),
    "BEHAVIOUR_LOGITS": "`Policy.extra_action_out` returns extra outputs by any name, such as behaviour_logits, and the batch "
    "has them as columns of that name; every policy with an actor records log_prob.",
    **{
        f"{name}Trainer": f"`{kind}Policy` is the policy, and the middleware that a script passes to `task.use(fn)` train it."
        for name, kind in _TRAINERS.items()
    },
    "RLModule": "a policy is a subclass of `Policy`, and `Policy.make_model` makes its network, a torch module.",
    **dict.fromkeys(("compute_gae_for_sample_batch", "postprocess_ppo_gae"), _ADVANTAGES),
    "explained_variance": "it is `from ding_lite.functional import explained_variance`, whose arguments are (value, return_).",
    "standardize_fields": "advantages are standardised in each gradient step of PPO, with `cfg.policy.learn.adv_norm`.",
    "MultiAgentBatch": "each policy learns from its own rollout, in ctx.parts: `for_policy(name, "
    "multistep_trainer(cfg, policy.learn_mode))`.",
}

NAMES = {"DI-engine": _DI_ENGINE, "Stable-Baselines3": _STABLE_BASELINES3, "RLlib": _RLLIB}
"""For each library, its names with what to write instead, as code in backticks."""

ALIASES = {
    "BehaviourCloningPolicy": "ding_lite.policy.bc.BCPolicy",
    "PGPolicy": "ding_lite.policy.reinforce.REINFORCEPolicy",
    "RainbowDQNPolicy": "ding_lite.policy.rainbow.RainbowPolicy",
}
"""DI-engine's names of algorithms that are the same."""

__getattr__ = foreign_names("ding_lite.policy", NAMES, ALIASES)
