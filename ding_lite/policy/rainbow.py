"""Rainbow: C51 with double Q-learning, dueling networks, n-step returns, prioritised replay, and noisy networks to explore.

Hessel et al. (2018), https://arxiv.org/abs/1710.02298; noisy networks: Fortunato et al. (2018),
https://arxiv.org/abs/1706.10295; prioritised replay: Schaul et al. (2016), https://arxiv.org/abs/1511.05952. The pipeline adds
`nstep_reward_enhancer` and a `PrioritizedReplayBuffer`: see examples/rainbow.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ding_lite.basics import ranged_field, warn_caller
from ding_lite.data import nested
from ding_lite.data.trees import first_leaf
from ding_lite.nn import CategoricalHead, EncoderAndHead, NoisyLinear, NoisyMLP, make_network, noisy_weights, normalized_inputs
from ding_lite.policy.c51 import C51ModelConfig, C51Policy, C51PolicyConfig
from ding_lite.policy_parts import EncoderHeadModelConfig, PriorityConfig
from ding_lite.run_configs import RunConfig


@dataclasses.dataclass
class RainbowModelConfig(EncoderHeadModelConfig, C51ModelConfig):
    """The network for the distribution over returns; the layers after its encoder are noisy."""

    dueling: bool = True
    """Split the head into state value and advantage."""

    noise_sigma: float = ranged_field(0.3, low=0)
    """Initial strength of the noise, relative to the largest initial weight; it is learned. The papers use 0.5. With a much
    smaller value, the policy may only ever try its first greedy action."""


@dataclasses.dataclass
class RainbowPolicyConfig(C51PolicyConfig):
    """Rainbow."""

    foreign: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("epsilon", "exploration_final_eps", "exploration_fraction", "exploration_initial_eps"),
        "there is no epsilon: noisy networks explore, with policy.model.noise_sigma.",
    )

    nstep: int = ranged_field(3, low=1, high=10_000)
    """Steps of n-step returns, computed by nstep_reward_enhancer."""

    model: RainbowModelConfig = dataclasses.field(default_factory=RainbowModelConfig)
    """The network for the distribution over returns."""

    other: PriorityConfig = dataclasses.field(default_factory=PriorityConfig)  # type: ignore[assignment]
    """Prioritised replay."""


@dataclasses.dataclass
class RainbowConfig(RunConfig):
    """Rainbow."""

    exp_name: str = "runs/rainbow"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(2000, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    policy: RainbowPolicyConfig = dataclasses.field(default_factory=RainbowPolicyConfig)
    """The algorithm."""


class RainbowPolicy(C51Policy):
    """C51 with noisy networks for learning and exploration. The loss is that of C51, with noisy `logits`."""

    config_type = RainbowPolicyConfig
    cfg: RainbowPolicyConfig
    acting_settings = ()  # the noise explores

    def make_model(self) -> nn.Module:
        """Make the network from observations to logits [B, A, N] of the atoms of each action."""
        model, actions = self.cfg.model, self.num_actions
        hidden = model.encoder_hidden_size_list
        encoder = make_network(self.observation_space, hidden, None, model.activation, model.conv_layers, model.layer_norm)
        widths, options = [hidden[-1], *model.head_hidden_size_list], (model.activation, model.noise_sigma, model.layer_norm)
        value = NoisyMLP([*widths, model.n_atom], *options) if model.dueling else None
        advantage = NoisyMLP([*widths, actions * model.n_atom], *options)
        network = EncoderAndHead(encoder, CategoricalHead(actions, advantage, value))
        return normalized_inputs(self.observation_space, network, model.normalize_obs)

    def check_model(self, obs: Any) -> None:
        """Check the shape of the logits, and warn if the model has no noise to explore with."""
        super().check_model(obs)
        acts_on_its_own = type(self).compute_actions is not RainbowPolicy.compute_actions
        if acts_on_its_own or any(isinstance(part, NoisyLinear) for part in self.model.modules()):
            return
        if torch.equal(self.model(obs), self.model(obs)):  # otherwise it has noise of its own
            warn_caller(
                f"{type(self).__name__}(model=...) got a {type(self.model).__name__} without a NoisyLinear, so it does not "
                "explore: without eps, it always takes the action with the highest value. Use ding_lite.nn.NoisyMLP or "
                "NoisyLinear for the last layers of the network; or C51Policy, with an eps_greedy_handler in the pipeline."
            )

    def logits(self, network: nn.Module, obs: Any) -> Tensor:
        """The logits of the online or target network in the loss, [B, A, N], with new noise in each call.

        So the noise is independent when the next action is chosen, when it is evaluated, and in the prediction.

        Reference:
            Fortunato et al. (2018), https://arxiv.org/abs/1706.10295, eq. 17 and 18.
        """
        with noisy_weights(network, self.generator):
            return network(obs)  # type: ignore[no-any-return]

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Compute the actions with the highest mean return; if it explores, with new noise in each row and step."""
        with noisy_weights(self.model, self.generator if explore else None, rows=first_leaf(nested(obs)).shape[0]):
            return super().compute_actions(obs, state, explore=explore, **kwargs)
