"""Networks: layers, encoders, heads, distributions over actions, and initialization."""

from typing import TYPE_CHECKING

from ding_lite.nn.action_bounds import ActionBounds, clip_actions
from ding_lite.nn.action_distributions import ActionDistribution, GaussianMixture, ParametrizedDistribution, action_distribution
from ding_lite.nn.action_masks import get_action_mask, masked
from ding_lite.nn.actor_critics import ActorCritic, make_actor_critic
from ding_lite.nn.attention import AttentionBlock, AttentionFeatures, SetEncoder
from ding_lite.nn.box_actor_critics import ActionCritic as ActionCritic
from ding_lite.nn.box_actor_critics import (
    BoundedActorCritic,
    GaussianActor,
    QCritic,
    SquashedGaussianActor,
    TanhActor,
    ValueCritic,
    make_bounded_actor_critic,
    make_state_value,
)
from ding_lite.nn.decision_transformers import DecisionTransformer
from ding_lite.nn.eager_optimizers import Adam, RMSprop
from ding_lite.nn.encoders import ConvLayers, EncoderAndHead, make_encoder, make_network
from ding_lite.nn.ensembles import EnsembleMLP
from ding_lite.nn.initialization import orthogonal, seeded
from ding_lite.nn.layers import ACTIVATIONS, MLP
from ding_lite.nn.noisy import NoisyLinear, NoisyMLP, noisy_weights
from ding_lite.nn.noisy import noise as noise
from ding_lite.nn.normalization import Normalized, RunningNorm, make_normalizer, normalized_inputs
from ding_lite.nn.q_networks import DuelingHead, QEnsemble, make_q_ensemble, make_q_network
from ding_lite.nn.recurrent import RecurrentFeatures
from ding_lite.nn.recurrent_networks import (
    RecurrentActorCritic,
    RecurrentQNetwork,
    make_attention_actor_critic,
    make_recurrent_actor_critic,
    make_recurrent_q_network,
)
from ding_lite.nn.value_distributions import CategoricalHead, CosineEmbedding, ImplicitQuantileNetwork, make_atom_network

if not TYPE_CHECKING:  # hidden from type checkers, which would otherwise allow any name
    from ding_lite.nn.foreign_names import __getattr__ as __getattr__

__all__ = [
    "ACTIVATIONS",
    "MLP",
    "ActionBounds",
    "ActionDistribution",
    "ActorCritic",
    "Adam",
    "AttentionBlock",
    "AttentionFeatures",
    "BoundedActorCritic",
    "CategoricalHead",
    "ConvLayers",
    "CosineEmbedding",
    "DecisionTransformer",
    "DuelingHead",
    "EncoderAndHead",
    "EnsembleMLP",
    "GaussianActor",
    "GaussianMixture",
    "ImplicitQuantileNetwork",
    "NoisyLinear",
    "NoisyMLP",
    "Normalized",
    "ParametrizedDistribution",
    "QCritic",
    "QEnsemble",
    "RMSprop",
    "RecurrentActorCritic",
    "RecurrentFeatures",
    "RecurrentQNetwork",
    "RunningNorm",
    "SetEncoder",
    "SquashedGaussianActor",
    "TanhActor",
    "ValueCritic",
    "action_distribution",
    "clip_actions",
    "get_action_mask",
    "make_actor_critic",
    "make_atom_network",
    "make_attention_actor_critic",
    "make_bounded_actor_critic",
    "make_encoder",
    "make_network",
    "make_normalizer",
    "make_q_ensemble",
    "make_q_network",
    "make_recurrent_actor_critic",
    "make_recurrent_q_network",
    "make_state_value",
    "masked",
    "noisy_weights",
    "normalized_inputs",
    "orthogonal",
    "seeded",
]
