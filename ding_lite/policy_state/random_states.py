"""Random states: whether the saved random numbers of a policy are such as it can go on from."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from ding_lite.data import require_generator_state
from ding_lite.envs import subspaces
from ding_lite.policy_state.identities import StateError
from ding_lite.policy_state.leaves import describe


def require_random_state(
    where: str,
    state: Any,
    own: Mapping[str, Any],
    rng: np.random.Generator,
    device: torch.device,
    action_space: gymnasium.Space[Any],
) -> None:
    """Refuse anything but the random numbers of such a policy, as its `generator_state` gives them.

    Args:
        own: what its `generator_state` gives now.
        rng, device, action_space: of the policy.

    Raises:
        StateError: the entry that does not fit, by its key.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"{where} is {state!r:.80}, and a dict of random numbers with {[*own]} is wanted.")
    for name in own:
        if name not in state and name != "action_space":  # not in older ones
            raise StateError(f"{where} lacks {name!r}, it has {sorted(map(str, state))}: give all that state_dict() gave.")
    require_numpy_state(f"{where}['rng']", state["rng"], rng)
    _require_torch_state(f"{where}['generator']", state["generator"], own["generator"], device)
    if "action_space" in state:
        _require_space_state(f"{where}['action_space']", state["action_space"], action_space)


def require_numpy_state(where: str, state: Any, rng: np.random.Generator) -> None:
    """Refuse anything but the state of such a generator.

    Raises:
        StateError: the entry that does not fit, by its key.
    """
    try:
        require_generator_state(where, state, rng.bit_generator)
    except ValueError as error:
        raise StateError(f"{error} Give all that state_dict() gave.") from None


def _require_torch_state(where: str, state: Any, own: Tensor, device: torch.device) -> None:
    wanted = f"the state of a random generator of torch, {describe(own)}, is wanted: give all that state_dict() gave."
    if not isinstance(state, Tensor):
        raise StateError(f"{where} is {state!r:.80}, and {wanted}")
    try:
        torch.Generator(device).set_state(state.cpu())
    except (TypeError, RuntimeError) as error:
        raise StateError(
            f"{where} is of {describe(state)} and not legal ({' '.join(str(error).split())}), and {wanted}"
        ) from None


def _require_space_state(where: str, state: Any, space: gymnasium.Space[Any]) -> None:
    parts = subspaces(space)
    if parts is None:
        require_numpy_state(where, state, copy.deepcopy(space).np_random)
        return
    if not isinstance(state, Mapping) or set(parts) - set(state):
        raise StateError(f"{where} is {state!r:.80}, and a dict with {[*parts]} is wanted: give all that state_dict() gave.")
    for name, part in parts.items():
        _require_space_state(f"{where}[{name!r}]", state[name], part)
