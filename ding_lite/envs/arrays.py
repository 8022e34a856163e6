"""Arrays: observations as tensors for a policy, its outputs as arrays, and its actions as the environment takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ding_lite.data import flatten, map_leaves, nested, stack_rows
from ding_lite.envs.spaces import subspaces, to_nested


def to_tensors(obs: Any, device: torch.device) -> Any:
    """Arrays or tensors as tensors on `device`, without a copy where none is needed."""
    if type(obs) is np.ndarray:
        obs = torch.from_numpy(obs)
    if isinstance(obs, Tensor):
        return obs if device.type == "cpu" else obs.to(device, non_blocking=True)
    obs = nested(obs)
    if not isinstance(obs, Mapping):
        raise TypeError(f"an observation is an array or a tensor, or nested as its space is, got a {type(obs).__name__}.")
    return map_leaves(lambda leaf: to_tensors(leaf, device), obs)


def to_arrays(output: Any) -> Any:
    """Tensors, numbers and lists [B] as arrays; text and other objects as arrays of objects; what already is one stays."""
    if type(output) is np.ndarray:
        return output.astype(object) if output.dtype.kind in "US" else output
    if isinstance(output, Tensor):
        return output.numpy() if output.device.type == "cpu" and not output.requires_grad else output.detach().cpu().numpy()
    if isinstance(output, (int, float, np.generic)):
        return np.asarray(output)
    if isinstance(output, (list, tuple)):
        return stack_rows(output)
    output = nested(output)
    if not isinstance(output, Mapping):
        raise TypeError(f"a policy gives arrays, tensors or lists, or nested dicts of them, got a {type(output).__name__}.")
    return map_leaves(to_arrays, output)


def actions_to_arrays(action: Any, space: gymnasium.Space[Any]) -> Any:
    """A policy's actions [B, ...] as arrays, nested as the space is; also where they came as a list of B actions."""
    if isinstance(action, (list, tuple)) and subspaces(space) is not None:
        rows = [to_nested(space, row) for row in action]
        return map_leaves(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *rows)
    if isinstance(action, (list, tuple)) and action and isinstance(action[0], (list, tuple)):
        return np.asarray(action)
    return to_arrays(action)


def clipper(space: gymnasium.Space[Any]) -> Callable[[Any], Any]:
    """A function that clips the Box parts of nested actions [B, ...] to their bounds, and gives the rest as it is."""
    parts = subspaces(space)
    if parts is not None:
        return partial(_clip_parts, {name: clipper(part) for name, part in parts.items()})
    if isinstance(space, spaces.Box):
        return partial(np.clip, a_min=space.low, a_max=space.high)
    return _as_it_is


def _clip_parts(clip: Mapping[str, Callable[[Any], Any]], action: Any) -> Any:
    return {name: clip_part(action[name]) for name, clip_part in clip.items()}


def _as_it_is(action: Any) -> Any:
    return action


def shapes_of(structure: Any) -> str:
    """The shapes of nested arrays, tensors or specs, for messages."""
    shapes = {"/".join(path): tuple(leaf.shape) for path, leaf in flatten(structure)}
    return f"shape {shapes['']}" if set(shapes) == {""} else f"shapes {shapes}"
