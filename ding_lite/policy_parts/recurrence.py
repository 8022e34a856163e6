"""Recurrence: acting with a recurrent state, and learning from sequences instead of single steps."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.basics import ranged_field
from ding_lite.data import Tree, nested, tree
from ding_lite.data.column_names import STATE_IN
from ding_lite.data.minibatches import rollout_rows
from ding_lite.data.trees import first_leaf, has_leaf, holds_objects, map_leaves, with_leaves
from ding_lite.nn import make_attention_actor_critic, make_recurrent_actor_critic
from ding_lite.policy_base import ActorCriticModelConfig
from ding_lite.policy_check import map_columns

if TYPE_CHECKING:
    from ding_lite.policy_base import Policy as Base
else:
    Base = object

_LSTM = "set policy.model.lstm_size, the width of the LSTM, or None for no LSTM."
_WINDOW = "set policy.model.attention_window, the observations that a step attends to, or None for no attention."


@dataclasses.dataclass
class RecurrentModelConfig(ActorCriticModelConfig):
    """Actor and critic, optionally with an LSTM or attention, for tasks that need memory."""

    foreign: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("use_lstm", "lstm_cell_size"), _LSTM),
        **dict.fromkeys(("use_attention", "attention_memory_inference", "attention_memory_training"), _WINDOW),
        "attention_num_transformer_units": "the number of transformer blocks is policy.model.attention_layers.",
        "attention_num_heads": "the number of heads is policy.model.attention_heads.",
        "attention_dim": "the width of the transformer blocks is policy.model.attention_size.",
        "max_seq_len": "PPO has policy.learn.unroll_len; IMPALA unrolls whole rollouts.",
    }

    lstm_size: int | None = ranged_field(None, low=1, high=16_384)
    """Width of an LSTM after a shared encoder, for tasks that need memory; None for no LSTM."""

    attention_window: int | None = ranged_field(None, low=2, high=16_384)
    """Observations that a step attends to, including the current one, in transformer blocks after a shared encoder, for tasks
    that need memory; None for no attention."""

    attention_size: int = ranged_field(64, low=1, high=16_384)
    """With attention_window, width of the transformer blocks; a multiple of attention_heads."""

    attention_layers: int = ranged_field(1, low=1, high=100)
    """With attention_window, number of transformer blocks."""

    attention_heads: int = ranged_field(4, low=1, high=1024)
    """With attention_window, attention heads of each transformer block."""


def states_in(batch: Tree) -> list[Tensor]:
    """The recurrent state before the steps of a batch: its columns state_in_0, state_in_1, ..."""
    names = (f"{STATE_IN}{element}" for element in itertools.count())
    return [batch[name] for name in itertools.takewhile(partial(has_leaf, batch), names)]


def episode_starts(batch: Tree) -> Tensor:
    """Whether each step is the first of an episode: the previous row ends an episode, or is not a step (`valid` is False).

    Args:
        batch: terminated, truncated [T, B] bool; optionally valid [T, B] bool.

    Returns:
        [T, B] bool. The first row is False, because its previous row is unknown.
    """
    ended = batch.terminated | batch.truncated
    if has_leaf(batch, "valid"):
        ended = ended | ~batch.valid
    return torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])


def time_major(batch: Tree) -> Tree:
    """Transpose sequences [N, L, ...] to [L, N, ...]. Columns with one element per sequence, [N, ...], are unchanged."""

    def turned(name: str, column: Any) -> Any:
        return column if _is_of_sequence(name, column) else map_leaves(lambda leaf: leaf.swapaxes(0, 1), column)

    return map_columns(batch, turned)


def repeated_steps(leaf: Any, length: int) -> Any:
    """Repeat rows [N, ...] `length` times to sequences [N, L, ...]. A tensor, or an array of objects."""
    return torch.stack([leaf] * length, 1) if isinstance(leaf, Tensor) else np.stack([leaf] * length, 1)


def _is_of_sequence(name: str, column: Any) -> bool:
    return name.startswith(STATE_IN) or getattr(column, "ndim", 0) == 1


def cut(batch: Tree, names: Sequence[str], length: int | None) -> dict[str, Any]:
    """Cut columns of a rollout [T, B, ...] into sequences [N, L, ...] of `length` steps of one environment.

    If T is not a multiple of the length, the last step is repeated, and `valid` [N, L] is False for the repeated steps.

    Args:
        batch: the rollout.
        names: names of the columns. Columns state_in_k keep only the first step of each sequence, [N, ...].
        length: L; None for T.

    Returns:
        The columns by name, and valid if the batch has it or steps were repeated.
    """
    num_steps, num_envs = first_leaf(nested(batch)).shape[:2]
    length = min(length or num_steps, num_steps)
    missing = -num_steps % length
    columns = {name: nested(batch[name]) for name in names}
    if has_leaf(batch, "valid") or missing:
        valid = batch.valid if has_leaf(batch, "valid") else torch.ones_like(batch.terminated)
        columns["valid"] = torch.cat([valid, valid.new_zeros(missing, num_envs)])

    def pieces(leaf: Tensor) -> Tensor:
        if len(leaf) % length:
            leaf = torch.cat([leaf, leaf[-1:].expand(missing, *leaf.shape[1:])])
        return leaf.reshape(-1, length, *leaf.shape[1:]).transpose(1, 2).flatten(0, 1)

    firsts = lambda leaf: leaf[::length].flatten(0, 1)  # noqa: E731
    return {name: map_leaves(firsts if name.startswith(STATE_IN) else pieces, column) for name, column in columns.items()}


class RecurrentActorCriticMixin(Base):
    """A mixin for policies with an actor and a critic that may be recurrent.

    A policy is recurrent if `cfg.model.lstm_size` or `cfg.model.attention_window` is set, or if its model has `initial_state`,
    `step`, `unroll`, `unroll_values` and `distribution`, like `RecurrentActorCritic`. A recurrent policy learns from sequences
    of `cfg.learn.unroll_len` steps of one environment, starting with the recurrent state that acting had there; if its loss
    takes rollouts, it unrolls these instead. Other policies are not affected.
    """

    def make_model(self) -> nn.Module:
        """Make the networks: with `cfg.model.lstm_size`, an actor and a critic that share an LSTM; with
        `cfg.model.attention_window`, transformer blocks.

        Raises:
            ValueError: both are set; or attention_size is not a multiple of attention_heads.
        """
        model: Any = self.cfg.model
        window = getattr(model, "attention_window", None)
        encoder = (model.activation, model.conv_layers, model.normalize_obs, model.layer_norm)
        spaces = self.observation_space, self.action_space, model.encoder_hidden_size_list
        if window is not None:
            size, layers, heads = model.attention_size, model.attention_layers, model.attention_heads
            if model.lstm_size is not None:
                raise ValueError(
                    f"model.lstm_size = {model.lstm_size} and model.attention_window = {window}: a policy has either an LSTM "
                    "or attention. Set one of them to None."
                )
            if size % heads:
                raise ValueError(
                    f"model.attention_size = {size} is not a multiple of model.attention_heads = {heads}: each head has an "
                    "equal part of the width."
                )
            return make_attention_actor_critic(*spaces, size, window, layers, heads, *encoder)
        if model.lstm_size is None:
            return super().make_model()
        return make_recurrent_actor_critic(*spaces, model.lstm_size, *encoder)

    @property
    def is_recurrent(self) -> bool:
        """Whether the model has a recurrent state."""
        return hasattr(self.model, "initial_state")

    def get_initial_state(self) -> list[Any]:
        """The model's recurrent state at the start of an episode; empty if the model is not recurrent."""
        return self.model.initial_state() if self.is_recurrent else []

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Compute actions for observations and a recurrent state."""
        if not state:
            return super().compute_actions(obs, state, explore=explore, **kwargs)
        logit, state = self.model.step(obs, state)
        return self.drawn(logit, state, explore)

    @torch.no_grad()
    def with_values(self, batch: Tree) -> Tree:
        """Add value and next_value [T, B] to a rollout, by the newest critic and from the recurrent state of the first row."""
        if not self.is_recurrent:
            return super().with_values(batch)
        value, next_value = (part.to(batch.reward.device) for part in self._unrolled_values(batch))
        return with_leaves(batch, value=value, next_value=next_value)

    @torch.no_grad()
    def next_values(self, batch: Tree, value: Tensor) -> Tensor:
        """V(next_obs) [T, B] of a rollout; with a recurrent state, from that of the first row."""
        if not self.is_recurrent:
            return super().next_values(batch, value)  # type: ignore[misc, no-any-return]  # of ValueNetworkMixin
        return self._unrolled_values(batch)[1]

    def _unrolled_values(self, batch: Tree) -> tuple[Tensor, Tensor]:
        state = [element[0].to(self.device) for element in states_in(batch)]
        obs, next_obs, restart = (
            map_leaves(lambda leaf: leaf.to(self.device), nested(part))
            for part in (batch.obs, batch.next_obs, episode_starts(batch))
        )
        return self.model.unroll_values(obs, next_obs, state, restart)  # type: ignore[no-any-return]

    def learning_rows(self, batch: Tree, batch_size: int) -> tuple[dict[str, Any], int]:
        """The columns of a rollout that the loss reads, as rows [N, ...] or sequences [N, L, ...] with a valid step.

        Args:
            batch: a rollout [T, B, ...].
            batch_size: transitions per gradient step.

        Returns:
            The columns by name; and the number of rows, or of sequences, per gradient step.
        """
        names = self.columns_for_loss(batch)
        if not self.is_recurrent:
            return rollout_rows(batch, names), batch_size
        learn: Any = self.cfg.learn
        rows = cut(batch, names, learn.unroll_len)
        if "valid" in rows and not (has_valid := rows["valid"].any(1)).all():  # without valid steps, there is no loss
            rows = {name: map_leaves(lambda leaf: leaf[has_valid], column) for name, column in rows.items()}
        return rows, max(1, round(batch_size / rows["terminated"].shape[1]))

    def loss_batch(self, batch: Tree) -> Tree:
        """The batch that `loss` takes: of a recurrent policy, a rollout as sequences [N, T, ...], unless it takes rollouts."""
        if not self.is_recurrent or self.loss_takes == "rollouts":
            return super().loss_batch(batch)
        names = [name for name, column in nested(batch).items() if not holds_objects(column)]
        return tree(cut(batch, names, None)) if self.is_rollout(batch) else batch

    def evaluate_batch(self, batch: Tree) -> tuple[Tensor, Tensor, Tree]:
        """Evaluate the model on a batch.

        Args:
            batch: rows [N, ...]; of a recurrent policy, sequences [N, L, ...].

        Returns:
            logit [M, width] and value [M], and the rows [M, ...] that they belong to: the rows of the batch; of a recurrent
            policy, the valid steps of all sequences.
        """
        if not self.is_recurrent:
            return (*self.model(batch.obs), batch)
        steps = time_major(batch)
        logit, value = self.model.unroll(steps.obs, states_in(batch), episode_starts(steps))
        valid = steps.valid.flatten() if has_leaf(batch, "valid") else slice(None)

        def rows(name: str, column: Any) -> Any:
            return column if _is_of_sequence(name, column) else map_leaves(partial(_valid_rows, valid=valid), column)

        return _valid_rows(logit, valid), _valid_rows(value, valid), map_columns(steps, rows)


def _valid_rows(leaf: Tensor, valid: Any) -> Tensor:
    return leaf.flatten(0, 1)[valid]
