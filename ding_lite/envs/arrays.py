"""Arrays: conversion of observations to tensors, of policy outputs to arrays, and of actions to the environment's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ding_lite.data import flatten, nested
from ding_lite.data.column_arrays import stack_rows, tensor_to_array
from ding_lite.data.trees import map_leaves
from ding_lite.envs.spaces import subspaces, to_nested


def to_tensors(obs: Any, device: torch.device) -> Any:
    """Arrays or tensors as tensors on `device`, copied only if necessary."""
    if type(obs) is np.ndarray:
        obs = torch.from_numpy(obs)
    if isinstance(obs, Tensor):
        return obs if device.type == "cpu" else obs.to(device, non_blocking=True)
    obs = nested(obs)
    if not isinstance(obs, Mapping):
        raise TypeError(f"an observation must be an array or a tensor, or nested like its space, got a {type(obs).__name__}.")
    return map_leaves(lambda leaf: to_tensors(leaf, device), obs)


def to_arrays(output: Any) -> Any:
    """Tensors, numbers and lists [B] as arrays; text and other objects as arrays of objects; arrays are not copied."""
    if type(output) is np.ndarray:
        return output.astype(object) if output.dtype.kind in "US" else output
    if isinstance(output, Tensor):
        try:
            is_plain = output.device.type == "cpu" and not output.requires_grad
            return output.numpy() if is_plain else output.detach().cpu().numpy()
        except TypeError:  # numpy has no bfloat16
            return tensor_to_array(output)
    if isinstance(output, (int, float, np.generic)):
        return np.asarray(output)
    if isinstance(output, (list, tuple)):
        return stack_rows(output)
    output = nested(output)
    if not isinstance(output, Mapping):
        raise TypeError(
            "an output of a policy must be an array, a tensor or a list, or a nested dict of them, got a "
            f"{type(output).__name__}."
        )
    return map_leaves(to_arrays, output)


def actions_to_arrays(action: Any, space: gymnasium.Space[Any]) -> Any:
    """A policy's actions [B, ...], or a list of B actions, as arrays nested like the space."""
    if isinstance(action, (list, tuple)) and subspaces(space) is not None:
        rows = [to_nested(space, row) for row in action]
        return map_leaves(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *rows)
    if isinstance(action, (list, tuple)) and action and isinstance(action[0], (list, tuple)):
        return np.asarray(action)
    return to_arrays(action)


def clipper(space: gymnasium.Space[Any]) -> Callable[[Any], Any]:
    """A function that clips the Box parts of nested actions [B, ...] to their bounds; other parts are unchanged."""
    parts = subspaces(space)
    if parts is not None:
        return partial(_clip_parts, {name: clipper(part) for name, part in parts.items()})
    if isinstance(space, spaces.Box):
        return partial(np.clip, a_min=space.low, a_max=space.high)
    return _identity


def _clip_parts(clip: Mapping[str, Callable[[Any], Any]], action: Any) -> Any:
    return {name: clip_part(action[name]) for name, clip_part in clip.items()}


def _identity(action: Any) -> Any:
    return action


def describe_shapes(structure: Any) -> str:
    """The shapes of nested arrays, tensors or specs, for messages."""
    shapes = {"/".join(path): tuple(leaf.shape) for path, leaf in flatten(structure)}
    return f"shape {shapes['']}" if set(shapes) == {""} else f"shapes {shapes}"
