"""Recurrence: acting with a recurrent state, and learning from sequences of steps instead of single ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ding_lite.data import Tree, first_leaf, has_leaf, holds_objects, map_leaves, nested, rollout_rows, tree, with_leaves
from ding_lite.nn import make_recurrent_actor_critic
from ding_lite.policy_check import map_columns

if TYPE_CHECKING:
    from ding_lite.policy_base import Policy as Base
else:
    Base = object

_STATE_IN = "state_in_"


def states_in(batch: Tree) -> list[Tensor]:
    """The recurrent state that the steps of this batch were acted with: state_in_0, state_in_1, ..."""
    names = (f"{_STATE_IN}{element}" for element in itertools.count())
    return [batch[name] for name in itertools.takewhile(partial(has_leaf, batch), names)]


def episode_starts(batch: Tree) -> Tensor:
    """Where a step begins an episode, as far as those before it tell: behind an end, or a step that was only a reset.

    Args:
        batch: terminated, truncated [T, B] bool; valid [T, B] bool, where there is one.

    Returns:
        [T, B] bool; False in the first row.
    """
    ended = batch.terminated | batch.truncated
    if has_leaf(batch, "valid"):
        ended = ended | ~batch.valid
    return torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])


def time_major(batch: Tree) -> Tree:
    """Sequences [N, L, ...] as [L, N, ...]; what there is one of for each sequence, its state and its weight, stays."""

    def turned(name: str, column: Any) -> Any:
        return column if _is_of_sequence(name, column) else map_leaves(lambda leaf: leaf.swapaxes(0, 1), column)

    return map_columns(batch, turned)


def repeated_steps(leaf: Any, length: int) -> Any:
    """Rows [N, ...] as sequences [N, L, ...] of `length` times the same; a tensor, or an array of objects."""
    return torch.stack([leaf] * length, 1) if isinstance(leaf, Tensor) else np.stack([leaf] * length, 1)


def _is_of_sequence(name: str, column: Any) -> bool:
    return name.startswith(_STATE_IN) or getattr(column, "ndim", 0) == 1


def cut(batch: Tree, names: Sequence[str], length: int | None) -> dict[str, Any]:
    """Columns of a rollout [T, B, ...] as sequences [N, L, ...] of `length` steps, and the state [N, ...] each began with.

    Where T is no multiple of the length, the last step is repeated, and `valid` [N, L] is False of what was added.

    Args:
        names: of the columns; those that start with state_in_ are cut down to the first step of each sequence.
        length: L; None for whole columns.
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
    return {name: map_leaves(firsts if name.startswith(_STATE_IN) else pieces, column) for name, column in columns.items()}


class RecurrentActorCriticMixin(Base):
    """A mixin for policies with an actor and a critic that may have a recurrent state: by `cfg.model.lstm_size`, or by a model
    of their own with `initial_state`, `step`, `unroll`, `unroll_values` and `distribution` as in `RecurrentActorCritic`.

    Such a policy learns from sequences: pieces of `cfg.learn.unroll_len` steps of one environment, each from the state that was
    acted with at its first step. Any other is left as it is.
    """

    def make_model(self) -> nn.Module:
        """With a size of the LSTM, an actor and a critic on recurrent features."""
        model: Any = self.cfg.model
        if model.lstm_size is None:
            return super().make_model()
        return make_recurrent_actor_critic(
            self.observation_space,
            self.action_space,
            model.encoder_hidden_size_list,
            model.lstm_size,
            model.activation,
            model.conv_layers,
            model.normalize_obs,
        )

    @property
    def is_recurrent(self) -> bool:
        """Whether the model has a recurrent state."""
        return hasattr(self.model, "initial_state")

    def get_initial_state(self) -> list[Any]:
        """The model's state where an episode begins."""
        return self.model.initial_state() if self.is_recurrent else []

    def compute_actions(
        self, obs: Any, state: Sequence[Any] = (), *, explore: bool = True, **kwargs: Any
    ) -> tuple[Any, Sequence[Any], dict[str, Any]]:
        """Actions by what was seen up to now."""
        if not state:
            return super().compute_actions(obs, state, explore=explore, **kwargs)
        logit, state = self.model.step(obs, state)
        return self.drawn(logit, state, explore)

    @torch.no_grad()
    def with_values(self, batch: Tree) -> Tree:
        """A rollout with value and next_value [T, B], by the newest critic from the state at its first row on."""
        if not self.is_recurrent:
            return super().with_values(batch)
        state = [element[0].to(self.device) for element in states_in(batch)]
        obs, next_obs, restart = (
            map_leaves(lambda leaf: leaf.to(self.device), nested(part))
            for part in (batch.obs, batch.next_obs, episode_starts(batch))
        )
        value, next_value = (part.to(batch.reward.device) for part in self.model.unroll_values(obs, next_obs, state, restart))
        return with_leaves(batch, value=value, next_value=next_value)

    def learning_rows(self, batch: Tree, batch_size: int) -> tuple[dict[str, Any], int]:
        """What the loss reads of a rollout, rows [N, ...] or sequences [N, L, ...], and how many make up `batch_size` steps."""
        names = self.columns_for_loss(batch)
        if not self.is_recurrent:
            return rollout_rows(batch, names), batch_size
        learn: Any = self.cfg.learn
        rows = cut(batch, names, learn.unroll_len)
        return rows, max(1, round(batch_size / rows["terminated"].shape[1]))

    def loss_batch(self, batch: Tree) -> Tree:
        """A rollout as what `loss` takes."""
        if not self.is_recurrent:
            return super().loss_batch(batch)
        names = [name for name, column in nested(batch).items() if not holds_objects(column)]
        return tree(cut(batch, names, None)) if self._is_rollout(batch) else batch

    def evaluate_batch(self, batch: Tree) -> tuple[Tensor, Tensor, Tree]:
        """What the model says of a batch: logit [N, width] and value [N], and the rows [N, ...] that it says this of.

        Args:
            batch: rows; of a recurrent policy sequences [N, L, ...], of which the real steps are the rows.
        """
        if not self.is_recurrent:
            return (*self.model(batch.obs), batch)
        steps = time_major(batch)
        logit, value = self.model.unroll(steps.obs, states_in(batch), episode_starts(steps))
        real = steps.valid.flatten() if has_leaf(batch, "valid") else slice(None)

        def rows(name: str, column: Any) -> Any:
            return column if _is_of_sequence(name, column) else map_leaves(partial(_real, real=real), column)

        return _real(logit, real), _real(value, real), map_columns(steps, rows)


def _real(leaf: Tensor, real: Any) -> Tensor:
    return leaf.flatten(0, 1)[real]
