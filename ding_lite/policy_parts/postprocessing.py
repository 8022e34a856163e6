"""Postprocessing: what a `postprocess_fn` may call to add advantages and returns to a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from ding_lite.data import Tree, has_leaf, with_leaves
from ding_lite.functional import discounted_return, gae
from ding_lite.policy_check import ColumnError


def compute_advantages(
    batch: Tree, last_r: Tensor | float = 0.0, gamma: float = 0.9, lambda_: float = 1.0, use_gae: bool = True
) -> Tree:
    """The batch with advantage and return_, [T, B] float; what RLlib's function of this name does to one trajectory.

    Args:
        batch: reward [T, B] float; terminated, truncated [T, B] bool; with `use_gae` value [T, B] float as well, and next_value
            where it is to count behind truncated steps. A single trajectory may come without B.
        last_r: value of what comes after the last row, a number or [B] float, where that is not terminated.
        gamma: discount a step, in [0, 1].
        lambda_: of generalized advantage estimation, in [0, 1].
        use_gae: False for discounted returns, which are then the advantages too, less the value where the batch has one.

    Raises:
        ColumnError: `use_gae`, and the batch has no value.
    """
    single = batch.reward.ndim == 1

    def shaped(name: str) -> Tensor:
        column: Tensor = batch[name]
        return column.unsqueeze(1) if single else column

    reward, terminated, truncated = shaped("reward"), shaped("terminated"), shaped("truncated")
    last = torch.as_tensor(last_r, dtype=reward.dtype, device=reward.device).expand(reward.shape[1:])
    if use_gae:
        if not has_leaf(batch, "value"):
            raise ColumnError(
                "compute_advantages(use_gae=True) wants the column 'value': give it from extra_action_out_fn as "
                "policy.model.value_function(), or take use_gae=False."
            )
        value = shaped("value")
        next_value = torch.cat([value[1:], last.unsqueeze(0)])
        cut = truncated.clone()
        cut[-1:] = False  # `last_r` is for the last row, however its episode goes on
        beyond = shaped("next_value") if has_leaf(batch, "next_value") else torch.zeros_like(value)
        next_value = torch.where(cut, beyond, next_value)
        advantage = gae(reward, value, next_value, terminated, truncated, gamma=gamma, lambda_=lambda_)
        return_ = advantage + value
    else:
        bootstrap = torch.zeros_like(reward)
        if len(bootstrap):
            bootstrap[-1] = last
        return_ = discounted_return(reward, terminated, truncated, gamma=gamma, bootstrap=bootstrap)
        advantage = return_ - shaped("value") if has_leaf(batch, "value") else return_
    columns = {"advantage": advantage, "return_": return_}
    return with_leaves(batch, **{name: column.squeeze(1) if single else column for name, column in columns.items()})
