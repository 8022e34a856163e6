"""DQN: learn the value of each action, act greedily on it, explore at random.

Mnih et al. (2015), https://www.nature.com/articles/nature14236; double: van Hasselt et al. (2016),
https://arxiv.org/abs/1509.06461; dueling: Wang et al. (2016), https://arxiv.org/abs/1511.06581.

Room: ding_lite.policy, floor 3. Imports nn, functional, envs, data and the engine.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite.data import Tree
from ding_lite.engine import Config, bounded
from ding_lite.envs import SpaceError
from ding_lite.functional import q_target
from ding_lite.nn import DuelingHead, make_network
from ding_lite.policy.configs import LearnConfig, ModelConfig, PolicyConfig
from ding_lite.policy.exploration import EpsilonGreedy
from ding_lite.policy.faces import to_arrays
from ding_lite.policy.policies import Policy


@dataclasses.dataclass
class DQNModelConfig(ModelConfig):
    """The Q-network."""

    dueling: bool = False
    """Split the head into state value and advantage."""


@dataclasses.dataclass
class DQNLearnConfig(LearnConfig):
    """Learning from replayed transitions."""

    update_per_collect: int = bounded(64, low=1)
    """Gradient steps after each collection."""

    learning_starts: int = bounded(1000, low=0)
    """Transitions in the buffer before the first gradient step."""

    target_update_freq: int = bounded(50, low=1)
    """Gradient steps between two moves of the target network."""

    target_update_theta: float = bounded(1.0, low=0, high=1)
    """How far each move goes: 1 copies the weights, less averages them in."""


@dataclasses.dataclass
class EpsConfig(Config):
    """How often an action is random."""

    type: Literal["exp", "linear"] = "linear"
    """Shape of the decay."""

    start: float = bounded(1.0, low=0, high=1)
    """Probability at the first step."""

    end: float = bounded(0.04, low=0, high=1)
    """Probability that it goes to."""

    decay: int = bounded(5000, low=1)
    """Environment steps: "linear" arrives there, "exp" has come 63% of the way."""


@dataclasses.dataclass
class DQNOtherConfig(Config):
    """Exploration and replay."""

    eps: EpsConfig = dataclasses.field(default_factory=EpsConfig)
    """Random actions."""

    replay_buffer_size: int = bounded(50_000, low=1)
    """Transitions that the buffer holds."""


@dataclasses.dataclass
class DQNPolicyConfig(PolicyConfig):
    """DQN and its close relatives."""

    discount_factor: float = bounded(0.99, low=0, high=1)
    """gamma, a step."""

    double: bool = True
    """Let the online network choose the next action, and the target network judge it."""

    model: DQNModelConfig = dataclasses.field(default_factory=DQNModelConfig)
    """The Q-network."""

    learn: DQNLearnConfig = dataclasses.field(default_factory=DQNLearnConfig)
    """Learning."""

    other: DQNOtherConfig = dataclasses.field(default_factory=DQNOtherConfig)
    """Exploration and replay."""


class DQNPolicy(Policy):
    """Q-learning with a target network, for Discrete actions and observations of any space."""

    config_type = DQNPolicyConfig
    cfg: DQNPolicyConfig
    action_space: spaces.Discrete

    def check_spaces(self) -> None:
        """Discrete actions only."""
        if not isinstance(self.action_space, spaces.Discrete):
            raise SpaceError(
                f"DQN wants Discrete actions, got {self.action_space}: take PPOPolicy, or discretise them in a wrapper."
            )
        self.num_actions, self.first_action = int(self.action_space.n), int(self.action_space.start)

    def make_model(self) -> nn.Module:
        """Observations to Q-values [B, A]; and a target network beside it."""
        model = self.cfg.model
        sizes, options = model.encoder_hidden_size_list, (model.activation, model.conv_layers)
        if model.dueling:
            encoder = make_network(self.observation_space, sizes, None, *options)
            q_network: nn.Module = nn.Sequential(encoder, DuelingHead(sizes[-1], self.num_actions))
        else:
            q_network = make_network(self.observation_space, sizes, self.num_actions, *options)
        self.target_model = copy.deepcopy(q_network).requires_grad_(False).to(self.device)
        return q_network

    def compute_actions(
        self, obs: Any, state: Any = None, *, explore: bool = True, eps: float = 0.0, **kwargs: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """The action of highest value; with probability `eps`, where it explores, any action instead."""
        action = to_arrays(self.model(obs)).argmax(-1)  # numpy's argmax: half of torch's cost for a few rows
        if explore and eps > 0:
            action = self.exploration.mix(action, eps)
        return action + self.first_action if self.first_action else action, state, {}

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Tensor]]:
        """Q-learning, one step; the Huber loss keeps single large errors from dominating.

            target = r + gamma * (1 - terminated) * Q_target(s', a')
            a'     = argmax_a Q(s', a) if double else argmax_a Q_target(s', a)

        Args:
            batch: obs, next_obs [B, *obs_shape]; action [B] int64; reward [B] float; terminated [B] bool.

        Returns:
            The scalar loss, and loss and mean Q-value to log.

        Reference:
            van Hasselt et al. (2016), https://arxiv.org/abs/1509.06461, eq. 4.
        """
        with torch.no_grad():
            next_q = self.target_model(batch.next_obs)
            if self.cfg.double:
                best = self.model(batch.next_obs).argmax(-1, keepdim=True)
                next_value = next_q.gather(-1, best).squeeze(-1)
            else:
                next_value = next_q.amax(-1)
            target = q_target(batch.reward, next_value, batch.terminated, gamma=self.cfg.discount_factor)
        index = batch.action - self.first_action if self.first_action else batch.action
        q_value = self.model(batch.obs).gather(-1, index.unsqueeze(-1)).squeeze(-1)
        loss = nn.functional.smooth_l1_loss(q_value, target)
        return loss, {"loss": loss.detach(), "q_value": q_value.detach().mean()}

    def after_step(self) -> None:
        """Move the target network when its turn comes."""
        if self.train_iter % self.cfg.learn.target_update_freq == 0:
            with torch.no_grad():
                for target, online in zip(self.target_model.parameters(), self.model.parameters()):
                    target.lerp_(online, self.cfg.learn.target_update_theta)

    def make_generators(self, role: str, index: int = 0) -> None:
        """Random numbers, and what DQN does with them."""
        super().make_generators(role, index)
        self.exploration = EpsilonGreedy(self.num_actions, self.rng)

    def generator_state(self) -> dict[str, Any]:
        """Where the random numbers are."""
        return {**super().generator_state(), "exploration": self.exploration.state_dict()}

    def load_generator_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the random numbers of a saved state."""
        super().load_generator_state(state)
        self.exploration.load_state_dict(state["exploration"])

    def state_dict(self) -> dict[str, Any]:
        """The policy's state and the target network."""
        return {**super().state_dict(), "target_model": copy.deepcopy(self.target_model.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to a saved state; where it holds weights alone, the target network takes them too."""
        super().load_state_dict(state)
        self.target_model.load_state_dict(state.get("target_model", state["model"]))
