"""Saved states: checks of a state before environments are restored from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from ding_lite.basics import arrays
from ding_lite.data import Spec, flatten
from ding_lite.data.state_checks import require_integer, require_state, state_error
from ding_lite.envs.changes import require_changes
from ding_lite.envs.env_data_checks import is_number

_KIND = "vector environment"
_KEYS = ("run_seed", "current", "restarted", "episodes", "returns", "lengths")
ENV_KEYS = (*_KEYS, "changes", "info_columns", "pieces", "made_as")
"""All keys that the state of vector environments may have."""

_EPISODE_KEYS = ("number", "start", "actions")


def pieces_of(state: Any) -> list[Any]:
    """The saved state of each piece of the environments; environments that are not split are one piece.

    Raises:
        TypeError, ValueError: not a state of environments in pieces.
    """
    if isinstance(state, Mapping) and "pieces" in state:
        require_state(state, _KIND, ("pieces",), ("made_as",))
        if not isinstance(state["pieces"], (list, tuple)) or not state["pieces"]:
            raise state_error(_KIND, "pieces", state["pieces"], "a list with a state for each piece")
        return list(state["pieces"])
    return [state]


def only_piece_of(state: Any) -> Any:
    """The saved state of environments in one piece.

    Raises:
        TypeError, ValueError: not a state of environments, or one of several pieces.
    """
    if len(pieces := pieces_of(state)) != 1:
        raise ValueError(
            f"the state of environments in {len(pieces)} pieces does not fit environments in one piece: make them with "
            f"workers={len(pieces)}."
        )
    return pieces[0]


def require_env_state(state: Any, num_envs: int, obs_spec: Spec) -> None:
    """Raise an error if this is not a state of `num_envs` environments with these observations.

    Raises:
        TypeError, ValueError: naming the invalid entry.
    """
    require_state(state, _KIND, _KEYS[:2], (*_KEYS[2:], "changes", "info_columns", "made_as"))
    require_integer(state, "run_seed", _KIND, 0, 2**63 - 1)
    if state["current"] is None:
        require_unbegun(state, num_envs, _KIND)
        return
    require_state(state, _KIND, _KEYS, ("info_columns", "made_as"))
    require_episodes(state["episodes"], _KIND)
    if (saved := len(state["episodes"])) != num_envs:
        raise ValueError(f"the state of {saved} environments does not fit {num_envs}: make {saved} environments.")
    require_rows(state, num_envs, obs_spec, _KIND)
    require_returns(state["returns"], num_envs, _KIND)
    steps = [len(episode["actions"]) for episode in state["episodes"]]
    lengths = state["lengths"]
    if not isinstance(lengths, (list, tuple)) or list(lengths) != steps:
        raise state_error(_KIND, "lengths", lengths, f"{steps}, the numbers of actions of the episodes")


def require_unbegun(state: Mapping[str, Any], num_envs: int, kind: str) -> None:
    """Raise an error if the changes in a state of environments without an episode are not those of `num_envs` environments.

    Raises:
        ValueError: naming the invalid entry.
    """
    if "changes" in state:
        changes = state["changes"]
        if not isinstance(changes, (list, tuple)) or len(changes) != num_envs:
            raise state_error(kind, "changes", changes, f"a list with the changes of {num_envs} environments")
        for index, one in enumerate(changes):
            require_changes(one, f"changes[{index}]", kind)


def require_episodes(episodes: Any, kind: str) -> None:
    """Raise an error if these are not results of `EpisodeStarts.state_dict`.

    Raises:
        ValueError: naming the invalid entry.
    """
    if not isinstance(episodes, (list, tuple)):
        raise state_error(kind, "episodes", episodes, "a list with an episode for each environment")
    for index, episode in enumerate(episodes):
        _require_episode(episode, f"episodes[{index}]", kind)
        if (previous := episode.get("previous")) is not None:
            name = f"episodes[{index}]['previous']"
            _require_episode(previous, name, kind)
            if not is_number(previous.get("return")) or not np.isfinite(previous["return"]):
                raise state_error(kind, f"{name}['return']", previous.get("return"), "a finite number")


def _require_episode(episode: Any, name: str, kind: str) -> None:
    if not isinstance(episode, Mapping) or not set(_EPISODE_KEYS) <= set(episode):
        raise state_error(kind, name, episode, f"a dict of {', '.join(_EPISODE_KEYS)}")
    key = f"{name}['number']"
    require_integer({key: episode["number"]}, key, kind, 0)
    start, actions = episode["start"], arrays(episode["actions"])
    key = f"{name}['start']"
    if not isinstance(start, Mapping) or not ({"seed"} <= set(start) or {"ale", "np_random"} <= set(start)):
        raise state_error(kind, key, start, "a dict with a seed, or with a saved state of the simulator")
    if "seed" in start:
        require_integer({f"{key}['seed']": start["seed"]}, f"{key}['seed']", kind, 0, 2**63 - 1)
    if not isinstance(start.get("options", {}), Mapping):
        raise state_error(kind, f"{key}['options']", start["options"], "a dict")
    if not isinstance(actions, (list, tuple)) and np.ndim(actions) == 0:
        raise state_error(kind, f"{name}['actions']", actions, "a list, or an array with a row for each step")
    if "changes" in episode:
        require_changes(episode["changes"], f"{name}['changes']", kind)


def require_action(key: str, action: Any, space: gymnasium.Space[Any], cause: BaseException) -> None:
    """Raise an error if a saved action, whose replay failed, is not in the action space.

    Raises:
        ValueError: naming the entry.
    """
    try:
        fits = bool(space.contains(action))
    except Exception:  # noqa: BLE001  contains() of a user's space
        fits = False
    if not fits:
        raise state_error(_KIND, key, action, f"an action in {space}") from cause


def require_returns(returns: Any, num_envs: int, kind: str) -> None:
    """Raise an error if these are not the returns of `num_envs` environments.

    Raises:
        ValueError: they are not `num_envs` finite numbers.
    """
    array = np.asarray(arrays(returns))
    if array.shape != (num_envs,) or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise state_error(kind, "returns", returns, f"{num_envs} finite numbers")


def require_rows(state: Mapping[str, Any], num_rows: int, obs_spec: Spec, kind: str, where: str = "") -> None:
    """Raise an error if the entries "current" and "restarted" are not observations and flags of `num_rows` rows.

    Args:
        state: mapping with these entries.
        num_rows: number of environments, or of rows of agents.
        obs_spec: layout of one observation.
        kind: name of the object that loads the state.
        where: prefix of the entries in messages.

    Raises:
        ValueError: naming the invalid entry.
    """
    found = {path: (np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for path, leaf in flatten(arrays(state["current"]))}
    expected = {path: ((num_rows, *leaf.shape), leaf.dtype) for path, leaf in flatten(obs_spec)}
    for path in [*expected, *found]:
        if found.get(path) != expected.get(path):
            has, wants = (_words(each.get(path)) for each in (found, expected))
            name = "/".join((f"{where}current", *map(str, path)))
            raise state_error(kind, name, has, f"{wants}, as in these environments")
    restarted = state["restarted"]
    flags = np.asarray(arrays(restarted))
    if restarted is not None and (flags.shape != (num_rows,) or flags.dtype != np.bool_):
        raise state_error(kind, f"{where}restarted", restarted, f"None, or an array of {num_rows} bool")


def _words(leaf: tuple[Any, Any] | None) -> str:
    return "missing" if leaf is None else f"{leaf[1]} of shape {leaf[0]}"
