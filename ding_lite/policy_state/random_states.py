"""Random states: checks of the saved states of a policy's random generators."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from ding_lite.data.random_generators import require_generator_state
from ding_lite.envs.spaces import subspaces
from ding_lite.policy_state.identities import StateDictError
from ding_lite.policy_state.leaves import describe

_STATES_OF_TORCH = torch.Size([16]), torch.Generator().get_state().shape
"""Of generators on a GPU and on the CPU."""


def require_random_state(
    where: str,
    state: Any,
    own: Mapping[str, Any],
    rng: np.random.Generator,
    device: torch.device,
    action_space: gymnasium.Space[Any],
) -> None:
    """Check that a saved state has the states of all random generators of a policy.

    Args:
        where: key of the state, for messages.
        state: the saved state.
        own: the policy's current `generator_state()`.
        rng, device, action_space: attributes of the policy.

    Raises:
        StateDictError: an entry does not fit; the message names it.
    """
    if not isinstance(state, Mapping):
        raise StateDictError(f"{where} is {state!r:.80}, expected a dict of random states with {[*own]}.")
    for name in own:
        if name not in state and name != "action_space":  # older states do not have it
            raise StateDictError(
                f"{where} lacks {name!r}, it has {sorted(map(str, state))}: pass the whole result of state_dict()."
            )
    require_numpy_state(f"{where}['rng']", state["rng"], rng)
    _require_torch_state(f"{where}['generator']", state["generator"], own["generator"], device)
    if "action_space" in state:
        _require_space_state(f"{where}['action_space']", state["action_space"], action_space)


def require_numpy_state(where: str, state: Any, rng: np.random.Generator) -> None:
    """Check that a saved state fits a numpy generator.

    Raises:
        StateDictError: an entry does not fit; the message names it.
    """
    try:
        require_generator_state(where, state, rng.bit_generator)
    except ValueError as error:
        raise StateDictError(f"{error} Pass the whole result of state_dict().") from None


def _require_torch_state(where: str, state: Any, own: Tensor, device: torch.device) -> None:
    expected = f"expected the state of a torch.Generator, {describe(own)}: pass the whole result of state_dict()."
    if not isinstance(state, Tensor):
        raise StateDictError(f"{where} is {state!r:.80}, {expected}")
    try:
        set_torch_state(torch.Generator(device), state)
    except (TypeError, RuntimeError) as error:
        raise StateDictError(
            f"{where} is {describe(state)} and not valid ({' '.join(str(error).split())}), {expected}"
        ) from None


def set_torch_state(generator: torch.Generator, state: Tensor) -> None:
    """Set the state of a generator of torch, also to one of a generator on another kind of device.

    Generators of a CPU and of a GPU draw other numbers. If the state is of the other kind, the generator gets a seed that
    depends on the state alone, so that the same state gives the same numbers.

    Raises:
        TypeError, RuntimeError: the state is none of either kind.
    """
    state = state.cpu()
    if state.dtype is torch.uint8 and state.shape != generator.get_state().shape and state.shape in _STATES_OF_TORCH:
        digest = hashlib.sha256(state.numpy().tobytes()).digest()
        generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    else:
        generator.set_state(state)


def _require_space_state(where: str, state: Any, space: gymnasium.Space[Any]) -> None:
    parts = subspaces(space)
    if parts is None:
        require_numpy_state(where, state, copy.deepcopy(space).np_random)
        return
    if not isinstance(state, Mapping) or set(parts) - set(state):
        raise StateDictError(
            f"{where} is {state!r:.80}, expected a dict with {[*parts]}: pass the whole result of state_dict()."
        )
    for name, part in parts.items():
        _require_space_state(f"{where}[{name!r}]", state[name], part)
