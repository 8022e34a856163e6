"""Names of DI-engine's models, with what to write instead."""

from ding_lite.basics import foreign_names

_OWN = "for another network, a subclass of the policy overrides `Policy.make_model`."


def _made_by(policy: str) -> str:
    return f"`{policy}(cfg.policy, observation_space, action_space)` makes its network as cfg.policy.model says; {_OWN}"


_ABSENT = f"its algorithm does not exist here; {_OWN}"

_ENCODED = f"the policy makes a network for observations of any space, as cfg.policy.model says; {_OWN}"

_DI_ENGINE = {
    "C51DQN": _made_by("C51Policy"),
    "ContinuousQAC": (
        "`SACPolicy(cfg.policy, observation_space, action_space)` makes its networks as cfg.policy.model says, and so do "
        f"TD3Policy and DDPGPolicy; {_OWN}"
    ),
    "DQN": _made_by("DQNPolicy"),
    "DRQN": _made_by("R2D2Policy"),
    "IQN": _made_by("IQNPolicy"),
    "PG": _made_by("REINFORCEPolicy"),
    "QRDQN": _made_by("QRDQNPolicy"),
    "RainbowDQN": _made_by("RainbowPolicy"),
    "VAC": _made_by("PPOPolicy"),
    **dict.fromkeys(("ACER", "ATOC", "BCQ", "BDQ", "COMA", "CollaQ", "ContinuousBC", "ContinuousMAQAC"), _ABSENT),
    **dict.fromkeys(("DREAMERVAC", "DiscreteBC", "DiscreteMAQAC", "DiscreteQAC", "EDAC"), _ABSENT),
    **dict.fromkeys(("FQF", "HAVAC", "MADQN", "MAVAC", "NGU", "PDQN", "PPG", "QGPO", "QMix", "QTran", "SQN"), _ABSENT),
    **dict.fromkeys(("GTrXLDQN", "QACDIST", "WQMix"), _ABSENT),
}

_RLLIB = {
    **dict.fromkeys(("ModelCatalog", "RLModule", "TFModelV2", "TorchModelV2"), f"networks are torch modules: {_OWN}"),
    "FullyConnectedNetwork": f"the policy makes its network as cfg.policy.model says; {_OWN}",
    "TorchDistributionWrapper": "it is `ActionDistribution`, and `action_distribution(action_space)` gives that of a space.",
}

_STABLE_BASELINES3 = {
    **dict.fromkeys(("BaseFeaturesExtractor", "CombinedExtractor", "FlattenExtractor", "NatureCNN"), _ENCODED),
    **dict.fromkeys(("CnnPolicy", "MlpPolicy", "MultiInputPolicy"), _ENCODED),
}

NAMES = {"DI-engine": _DI_ENGINE, "Stable-Baselines3": _STABLE_BASELINES3, "RLlib": _RLLIB}
"""For each library, its names with what to write instead, as code in backticks."""

__getattr__ = foreign_names("ding_lite.nn", NAMES)
