"""Postprocessing: `compute_advantages`, for a `postprocess_fn` to add advantages and returns to a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from ding_lite.basics import foreign_arguments
from ding_lite.data import Tree
from ding_lite.data.trees import as_floats, has_leaf, with_leaves
from ding_lite.functional import discounted_return, gae
from ding_lite.policy_check import ColumnError


@foreign_arguments(
    {
        "use_critic": "advantages are the returns minus the value, if the batch has one: write "
        "`compute_advantages(batch, use_gae=False)`, with a batch without value for plain returns."
    }
)
def compute_advantages(
    batch: Tree, last_r: Tensor | float = 0.0, gamma: float = 0.9, lambda_: float = 1.0, use_gae: bool = True
) -> Tree:
    """Add advantage and return_, [T, B] float, to a batch. RLlib's function of this name does this to one trajectory.

    Args:
        batch: reward [T, B] float; terminated, truncated [T, B] bool; with `use_gae` also value [T, B] float, or vf_preds, as
            RLlib names it; and, optionally, next_value, to bootstrap at truncated steps. A single trajectory may omit the
            dimension B.
        last_r: value of the state after the last row, a number or [B] float; ignored if the last row is terminated.
        gamma: discount factor per step, in [0, 1].
        lambda_: lambda of generalized advantage estimation, in [0, 1].
        use_gae: False computes discounted returns. The advantages are then the returns, minus the value if the batch has one.

    Returns:
        The batch with the two columns added; the argument is unchanged.

    Raises:
        ColumnError: `use_gae` is True, and the batch has no value.
    """
    single = batch.reward.ndim == 1

    def shaped(name: str) -> Tensor:
        column: Tensor = batch[name]
        return column.unsqueeze(1) if single else column

    reward, terminated, truncated = shaped("reward"), shaped("terminated"), shaped("truncated")
    values = [name for name in ("value", "vf_preds") if has_leaf(batch, name)]
    dtype = as_floats(reward).dtype
    last = torch.as_tensor(last_r, dtype=dtype, device=reward.device).expand(reward.shape[1:])
    if use_gae:
        if not values:
            raise ColumnError(
                "compute_advantages(use_gae=True) wants the column 'value': return {\"value\": "
                "policy.model.value_function()} from extra_action_out_fn, or use use_gae=False."
            )
        value = shaped(values[0])
        next_value = torch.cat([value[1:], last.unsqueeze(0)])
        cut = truncated.clone()
        cut[-1:] = False  # `last_r` is the next value of the last row, truncated or not
        bootstrap = shaped("next_value") if has_leaf(batch, "next_value") else torch.zeros_like(value)
        next_value = torch.where(cut, bootstrap, next_value)
        advantage = gae(reward, value, next_value, terminated, truncated, gamma=gamma, lambda_=lambda_)
        return_ = advantage + value
    else:
        bootstrap = torch.zeros_like(reward, dtype=dtype)
        if len(bootstrap):
            bootstrap[-1] = last
        return_ = discounted_return(reward, terminated, truncated, gamma=gamma, bootstrap=bootstrap)
        advantage = return_ - shaped(values[0]) if values else return_
    columns = {"advantage": advantage, "return_": return_}
    return with_leaves(batch, **{name: column.squeeze(1) if single else column for name, column in columns.items()})
