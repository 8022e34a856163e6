"""Action bounds: scale actions from [-1, 1] to the bounds of a Box and back, or clip them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ding_lite.envs.spaces import subspaces


class ActionBounds(nn.Module):
    """Converts unit actions to actions of a Box and back.

    Args:
        space: a Box of floats with finite bounds.

    Example:
        >>> ActionBounds(spaces.Box(-2.0, 4.0, (1,)))(torch.tensor([[-1.0], [0.5]])).tolist()
        [[-2.0], [2.5]]
    """

    low: Tensor
    high: Tensor
    middle: Tensor
    reach: Tensor
    per_reach: Tensor

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.shape, self.width = space.shape, int(np.prod(space.shape))
        low, high = (bound.astype(np.float64).ravel() for bound in (space.low, space.high))
        self._is_unit = bool((low == -1).all() and (high == 1).all())
        middle, reach = low / 2 + high / 2, high / 2 - low / 2
        per_reach = np.divide(1, reach, out=np.zeros_like(reach), where=reach > 0)
        inner_low, inner_high = _inner(low, high)
        arrays = {"low": inner_low, "high": inner_high, "middle": middle, "reach": reach, "per_reach": per_reach}
        for name, array in arrays.items():
            self.register_buffer(name, torch.as_tensor(array, dtype=torch.float32), persistent=False)

    def forward(self, unit: Tensor) -> Tensor:
        """Convert unit actions [B, A] to actions [B, *shape] of the Box."""
        action = torch.addcmul(self.middle, unit, self.reach).clamp(self.low, self.high)  # rounding may exceed the bounds
        return action.reshape(-1, *self.shape)

    def to_unit(self, action: Tensor) -> Tensor:
        """Convert actions [B, *shape] to unit actions [B, A]; 0 for elements whose bounds are equal.

        Actions beyond the bounds, such as samples of a Gaussian policy, are clipped to them, as for the environment.
        """
        action = action.reshape(len(action), -1).to(self.middle.dtype)
        unit = action if self._is_unit else (action - self.middle) * self.per_reach
        return unit.clamp(-1, 1)


def clip_actions(space: gymnasium.Space[Any], action: Any) -> Any:
    """Actions as the environment gets them: numbers of Box parts clipped to their bounds.

    Args:
        space: action space.
        action: tensors [B, *shape], nested like the space.
    """
    parts = subspaces(space)
    if parts is not None:
        return {name: clip_actions(part, action[name]) for name, part in parts.items()}
    if not isinstance(space, spaces.Box):
        return action
    bounds = space.low, space.high
    if action.dtype == torch.float32 and space.dtype == np.float64:
        bounds = _inner(*bounds)
    low, high = (torch.as_tensor(bound, dtype=action.dtype, device=action.device) for bound in bounds)
    return torch.clamp(action, low, high)


def _inner(low: Any, high: Any) -> tuple[Any, Any]:
    """The bounds rounded to float32, inwards."""
    inner_low, inner_high = low.astype(np.float32), high.astype(np.float32)
    inner_low = np.where(inner_low < low, np.nextafter(inner_low, np.float32(np.inf)), inner_low)
    return inner_low, np.where(inner_high > high, np.nextafter(inner_high, np.float32(-np.inf)), inner_high)
