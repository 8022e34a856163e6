"""Rainbow: C51 with noisy networks that explore, dueling, double, rewards of several steps and replay by priority.

Hessel et al. (2018), https://arxiv.org/abs/1710.02298; noisy networks: Fortunato et al. (2018),
https://arxiv.org/abs/1706.10295; replay by priority: Schaul et al. (2016), https://arxiv.org/abs/1511.05952. Rewards of several
steps come from `nstep_reward_enhancer`, priorities from a `PrioritizedReplayBuffer`: see examples/rainbow.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ding_lite.basics import ranged_field
from ding_lite.data import first_leaf, nested
from ding_lite.nn import AtomHead, NoisyMLP, make_network, noise
from ding_lite.policy.c51 import C51ModelConfig, C51Policy, C51PolicyConfig
from ding_lite.policy_parts import HeadModelConfig, PriorityConfig
from ding_lite.run_configs import RunConfig


@dataclasses.dataclass
class RainbowModelConfig(HeadModelConfig, C51ModelConfig):
    """The network that gives probabilities of returns; the layers behind its encoder are noisy."""

    dueling: bool = True
    """Split the head into state value and advantage."""

    noise_sigma: float = ranged_field(0.3, low=0)
    """How strong the noise is at first, in units of the largest initial weight; learned from there. The papers have 0.5; with
    far less, the first greedy action may be the only one that is ever tried."""


@dataclasses.dataclass
class RainbowPolicyConfig(C51PolicyConfig):
    """Rainbow."""

    nstep: int = ranged_field(3, low=1, high=10_000)
    """Rewards that are summed up before the bootstrap, by nstep_reward_enhancer."""

    model: RainbowModelConfig = dataclasses.field(default_factory=RainbowModelConfig)
    """The network that gives probabilities of returns."""

    other: PriorityConfig = dataclasses.field(default_factory=PriorityConfig)  # type: ignore[assignment]
    """Replay by priority."""


@dataclasses.dataclass
class RainbowConfig(RunConfig):
    """Rainbow."""

    exp_name: str = "runs/rainbow"
    """Folder of the run: curve, configuration, checkpoints."""

    max_step: int = ranged_field(2000, low=1)
    """Iterations of the loop, at most; each collects policy.collect.n_sample transitions."""

    policy: RainbowPolicyConfig = dataclasses.field(default_factory=RainbowPolicyConfig)
    """The algorithm."""


class RainbowPolicy(C51Policy):
    """C51 whose network is noisy wherever it learns or explores: its loss is that of C51, with `logits` as here."""

    config_type = RainbowPolicyConfig
    cfg: RainbowPolicyConfig
    acting_settings = ()  # the noise explores

    def make_model(self) -> nn.Module:
        """Observations to logits [B, A, N] of the returns of each action."""
        model, actions = self.cfg.model, self.num_actions
        hidden = model.encoder_hidden_size_list
        encoder = make_network(self.observation_space, hidden, None, model.activation, model.conv_layers)
        widths, options = [hidden[-1], *model.head_hidden_size_list], (model.activation, model.noise_sigma)
        value = NoisyMLP([*widths, model.n_atom], *options) if model.dueling else None
        advantage = NoisyMLP([*widths, actions * model.n_atom], *options)
        return nn.Sequential(encoder, AtomHead(actions, advantage, value))

    def logits(self, network: nn.Module, obs: Any) -> Tensor:
        """What the online or the target network gives while learning, [B, A, N]: with other noise at each call.

        So the network that chooses the next action, the one that judges it and the one that learns are independent.

        Reference:
            Fortunato et al. (2018), https://arxiv.org/abs/1706.10295, eq. 17 and 18.
        """
        with noise(network, self.generator):
            return network(obs)  # type: ignore[no-any-return]

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """The action of highest mean return; where it explores, by a network with noise, other noise in each row and step."""
        with noise(self.model, self.generator if explore else None, rows=len(first_leaf(nested(obs)))):
            return super().compute_actions(obs, state, explore=explore, **kwargs)
