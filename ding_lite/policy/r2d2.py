"""R2D2: Q-learning with an LSTM, from replayed sequences with the recurrent state that acting had at their first step.

Kapturowski et al. (2019), "Recurrent Experience Replay in Distributed Reinforcement Learning",
https://openreview.net/forum?id=r1lyTjAqYX. `sequence_pusher` makes the sequences, and a `PrioritizedReplayBuffer` samples them:
see examples/r2d2.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ding_lite.basics import ranged_field
from ding_lite.data import Tree
from ding_lite.data.trees import first_leaf, map_leaves, with_leaves
from ding_lite.functional import nstep_return, q_target, rescale_value, sequence_priority, unrescale_value
from ding_lite.nn import make_recurrent_q_network, masked
from ding_lite.policy_base import CollectConfig, EvalConfig, EvaluatorConfig, ModelConfig, Policy, live_from_next_step
from ding_lite.policy_check import map_columns, require_members, require_output
from ding_lite.policy_parts import (
    EpsConfig,
    EpsilonGreedyMixin,
    EpsReplayConfig,
    LearningRateScheduleMixin,
    OffPolicyLearnConfig,
    PriorityConfig,
    TargetNetworkMixin,
    ValueBasedConfig,
    episode_starts,
    repeated_steps,
    states_in,
    time_major,
    weighted_loss,
)
from ding_lite.run_configs import EnvConfig, RunConfig


@dataclasses.dataclass
class R2D2ModelConfig(ModelConfig):
    """The recurrent Q-network."""

    encoder_hidden_size_list: list[int] = ranged_field(default_factory=lambda: [64], low=1, high=16_384)
    """Width of each hidden layer before the LSTM."""

    lstm_size: int = ranged_field(64, low=1, high=16_384)
    """Width of the LSTM."""

    dueling: bool = True
    """Split the head into state value and advantage."""


@dataclasses.dataclass
class R2D2LearnConfig(OffPolicyLearnConfig):
    """Learning from replayed sequences."""

    live_settings = live_from_next_step("priority_eta", "rescale_eps")
    fixed_settings = dict.fromkeys(
        ("burn_in", "unroll_len"), "the sequences in the replay buffer have this length: start a new run."
    )

    burn_in: int = ranged_field(8, low=0, high=100_000)
    """Steps at the start of each sequence that only update the stored recurrent state with the newest weights."""

    unroll_len: int = ranged_field(16, low=1, high=100_000)
    """Steps after the burn-in, to learn from."""

    batch_size: int = ranged_field(32, low=1, high=10_000_000)
    """Sequences per gradient step."""

    update_per_collect: int = ranged_field(8, low=1, high=1_000_000)
    """Gradient steps after each collection."""

    learning_starts: int = ranged_field(100, low=0)
    """Sequences in the buffer before the first gradient step."""

    priority_eta: float = ranged_field(0.9, low=0, high=1)
    """Weight of the largest error in the priority of a sequence; the weight of the mean error is 1 - priority_eta."""

    rescale_eps: float = ranged_field(1e-3, low=0)
    """Epsilon of the value rescaling, see `rescale_value`."""


@dataclasses.dataclass
class R2D2CollectConfig(CollectConfig):
    """Collection."""

    n_sample: int = ranged_field(128, low=1, high=10_000_000)
    """Transitions per iteration. The number per environment must be a multiple of unroll_len."""


@dataclasses.dataclass
class R2D2ReplayConfig(PriorityConfig, EpsReplayConfig):
    """Exploration and prioritised replay."""

    replay_buffer_size: int = ranged_field(10_000, low=1, high=1_000_000_000)
    """Capacity of the buffer, in sequences."""

    eps: EpsConfig = dataclasses.field(default_factory=lambda: EpsConfig(decay=10_000))
    """Schedule of epsilon."""


@dataclasses.dataclass
class R2D2PolicyConfig(ValueBasedConfig):
    """R2D2."""

    sums_rewards = True

    nstep: int = ranged_field(5, low=1, high=10_000)
    """Steps of n-step returns, within a sequence."""

    model: R2D2ModelConfig = dataclasses.field(default_factory=R2D2ModelConfig)
    """The recurrent Q-network."""

    learn: R2D2LearnConfig = dataclasses.field(default_factory=R2D2LearnConfig)
    """Learning from replayed sequences."""

    collect: R2D2CollectConfig = dataclasses.field(default_factory=R2D2CollectConfig)
    """Collection."""

    eval: EvalConfig = dataclasses.field(default_factory=lambda: EvalConfig(EvaluatorConfig(eval_freq=160)))
    """Evaluation."""

    other: R2D2ReplayConfig = dataclasses.field(default_factory=R2D2ReplayConfig)
    """Exploration and prioritised replay."""


@dataclasses.dataclass
class R2D2Config(RunConfig):
    """R2D2, on CartPole without velocities."""

    exp_name: str = "runs/r2d2"
    """Folder of the run, for metrics, configuration and checkpoints."""

    max_step: int = ranged_field(2000, low=1)
    """Maximum number of iterations. Each collects policy.collect.n_sample transitions."""

    env: EnvConfig = dataclasses.field(default_factory=lambda: EnvConfig.default("CartPoleNoVel-v1", stop_value=475.0))
    """Environments."""

    policy: R2D2PolicyConfig = dataclasses.field(default_factory=R2D2PolicyConfig)
    """The algorithm."""


class R2D2Policy(EpsilonGreedyMixin, TargetNetworkMixin, LearningRateScheduleMixin, Policy):
    """Recurrent Q-learning with a target network, for Discrete actions and observations of any space."""

    config_type = R2D2PolicyConfig
    cfg: R2D2PolicyConfig
    learns_from = "transitions"

    def make_model(self) -> nn.Module:
        """Make the network from observations and recurrent state to Q-values [B, A]."""
        model = self.cfg.model
        return make_recurrent_q_network(
            self.observation_space,
            self.num_actions,
            model.encoder_hidden_size_list,
            model.lstm_size,
            model.activation,
            model.conv_layers,
            dueling=model.dueling,
            normalize_obs=model.normalize_obs,
            layer_norm=model.layer_norm,
        )

    def take_model(self, model: nn.Module) -> nn.Module:
        """The module.

        Raises:
            TypeError: it lacks a method of a recurrent Q-network.
        """
        members = {
            "initial_state": "initial_state() -> list of tensors",
            "step": "step(obs, state) -> (Q-values [B, A], next state)",
            "advance": "advance(obs, state, restart) -> state after T steps",
            "unroll_ahead": "unroll_ahead(obs, next_obs, state, restart) -> Q-values of both, each [T, B, A]",
        }
        require_members(self, model, members)
        return super().take_model(model)

    def check_model(self, obs: Any) -> None:
        """Check the shape of the Q-values of a step."""
        count = len(first_leaf(obs))
        state = [torch.stack([element] * count).to(self.device) for element in self.model.initial_state()]
        shape, what = (count, self.num_actions), "Q-values [B, A], one for each action"
        require_output(self, "step(obs, state)", self.model.step(obs, state)[0], shape, what)

    def get_initial_state(self) -> list[Any]:
        """The state of the LSTM at the start of an episode: zeros."""
        return self.model.initial_state()  # type: ignore[no-any-return]

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, eps: float = 0.0, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Compute the actions with the highest values; if it explores, random ones with probability `eps`."""
        q_value, state = self.model.step(obs, state)
        return self.choose(q_value, eps if explore else 0.0, obs), state, {}

    def dummy_batch(self, batch: Tree) -> Tree:
        """Turn rows [N, ...] of the dummy batch into sequences [N, L, ...], by repeating each step."""
        length = self.cfg.learn.burn_in + self.cfg.learn.unroll_len

        def repeated(name: str, column: Any) -> Any:
            is_single = name.startswith("state_in_") or name == "weight"
            return column if is_single else map_leaves(partial(repeated_steps, length=length), column)

        sequences = map_columns(batch, repeated)
        return with_leaves(sequences, valid=torch.ones_like(sequences.terminated))

    def postprocess(self, batch: Tree) -> Tree:
        """Transpose replayed sequences [N, L, ...] to [L, N, ...].

        Raises:
            ValueError: L is not burn_in + unroll_len.
        """
        learn = self.cfg.learn
        length = learn.burn_in + learn.unroll_len
        if batch.terminated.shape[1:] != (length,):
            raise ValueError(
                f"R2D2Policy learns from sequences [N, {length}] of burn_in {learn.burn_in} and unroll_len {learn.unroll_len} "
                f"steps, and the shape of terminated is {list(batch.terminated.shape)}: fill the buffer with sequence_pusher, "
                "with the same configuration."
            )
        return time_major(batch)

    def count_rows(self, batch: Tree) -> int:
        """The number of sequences, because the loss is a mean over sequences."""
        return int(batch.terminated.shape[1])

    def unrolled(self, network: nn.Module, batch: Tree) -> tuple[Tensor, Tensor]:
        """Compute the values of obs and of next_obs after the burn-in, each [U, N, A] with U = unroll_len."""
        burn_in, state, restart = self.cfg.learn.burn_in, states_in(batch), episode_starts(batch)
        if burn_in:
            with torch.no_grad():
                state = network.advance(batch.obs[:burn_in], state, restart[:burn_in])  # type: ignore[operator]
        learned = batch.obs[burn_in:], batch.next_obs[burn_in:]
        return network.unroll_ahead(*learned, state, restart[burn_in:])  # type: ignore[operator, no-any-return]

    def loss(self, batch: Tree) -> tuple[Tensor, dict[str, Any]]:
        """The loss of double Q-learning with n-step returns and rescaled values, over the steps after the burn-in.

            target_t = h(sum_{i<k} gamma^i r_{t+i} + gamma^k * (1 - terminated) * h^-1(Q_target(s_{t+k}, a')))
            a'       = argmax_a Q(s_{t+k}, a)
            loss     = mean_t (target_t - Q(s_t, a_t))^2 / 2

        The next action a' is one that the `action_mask` of s_{t+k} allows, if observations have one. h is `rescale_value`. k is
        n, or less if the episode or the sequence ends earlier. The recurrent state starts with the one that acting had at the
        first step of the sequence, and is reset at the start of each episode.

        Args:
            batch: obs, next_obs [L, N, *obs_shape]; action [L, N] int64; reward [L, N] float; terminated, truncated, valid
                [L, N] bool, valid False for rows that are not steps; state_in_0, state_in_1 [N, lstm_size] float; weight [N]
                float with prioritised replay. L = burn_in + unroll_len.

        Returns:
            The scalar loss; and a dict to log, with loss, mean q_value and, if the batch has weights, the priority of each
            sequence, [N].

        Reference:
            Kapturowski et al. (2019), section 2.3.
        """
        learn = self.cfg.learn
        q_values, next_q = self.unrolled(self.model, batch)
        action, reward, terminated, truncated, valid = (
            column[learn.burn_in :] for column in (batch.action, batch.reward, batch.terminated, batch.truncated, batch.valid)
        )
        with torch.no_grad():
            target_q = self.unrolled(self.target_model, batch)[1]
            best = masked(next_q, batch.next_obs[learn.burn_in :]).argmax(-1, keepdim=True)
            next_value = target_q.gather(-1, best).squeeze(-1)
            next_value = unrescale_value(next_value, learn.rescale_eps)
            window = nstep_return(reward, terminated, truncated, n=self.cfg.nstep, gamma=self.cfg.discount_factor, valid=valid)
            future, is_end = next_value.gather(0, window.last), terminated.gather(0, window.last)
            target = rescale_value(q_target(window.return_, future, is_end, gamma=window.discount), learn.rescale_eps)
        q_value = q_values.gather(-1, self.action_index(action).unsqueeze(-1)).squeeze(-1)
        error = (target - q_value).masked_fill(~valid, 0)
        loss = 0.5 * error.square().sum(0) / valid.sum(0).clamp(min=1)
        mean_loss, stats = weighted_loss(loss, lambda: sequence_priority(error.detach(), learn.priority_eta, valid), batch)
        steps = self.batch_mean(valid.sum(0).to(q_value)).clamp(min=1e-9)  # per sequence, so that the mean is over all steps
        return mean_loss, {**stats, "q_value": q_value.detach().masked_fill(~valid, 0).sum(0).mean() / steps}
