"""Saved states of environments: what they are asked before any environment is changed by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ding_lite.basics import arrays
from ding_lite.data import Spec, flatten, require_state, state_error, whole_number
from ding_lite.envs.env_data_checks import is_number

_KIND = "vector environment"
_KEYS = ("run_seed", "current", "restarted", "episodes", "returns", "lengths")
_EPISODE_KEYS = ("number", "start", "actions")


def pieces_of(state: Any) -> list[Any]:
    """The state of each piece of the environments; those that were saved as one are one piece.

    Raises:
        TypeError, ValueError: no state of environments.
    """
    if isinstance(state, Mapping) and "pieces" in state:
        require_state(state, _KIND, ("pieces",))
        if not isinstance(state["pieces"], (list, tuple)) or not state["pieces"]:
            raise state_error(_KIND, "pieces", state["pieces"], "it is a list with a state for each piece")
        return list(state["pieces"])
    return [state]


def require_env_state(state: Any, num_envs: int, obs_spec: Spec) -> None:
    """Refuse what is no state of so many environments, before anything is changed by it.

    Raises:
        TypeError, ValueError: naming what is wrong.
    """
    require_state(state, _KIND, _KEYS[:2], _KEYS[2:])
    whole_number(state, "run_seed", _KIND, 0, 2**63 - 1)
    if state["current"] is None:
        return
    require_state(state, _KIND, _KEYS)
    require_episodes(state["episodes"], _KIND)
    if (saved := len(state["episodes"])) != num_envs:
        raise ValueError(f"the state of {saved} environments does not fit {num_envs}: make as many as were saved.")
    require_rows(state, num_envs, obs_spec, _KIND)
    require_returns(state["returns"], num_envs, _KIND)
    steps = [len(episode["actions"]) for episode in state["episodes"]]
    lengths = state["lengths"]
    if not isinstance(lengths, (list, tuple)) or list(lengths) != steps:
        raise state_error(_KIND, "lengths", lengths, f"the episodes have {steps} actions")


def require_episodes(episodes: Any, kind: str) -> None:
    """Refuse what are no episodes as `EpisodeStarts.state_dict` gives them.

    Raises:
        ValueError: naming what is wrong.
    """
    if not isinstance(episodes, (list, tuple)):
        raise state_error(kind, "episodes", episodes, "it is a list with an episode for each environment")
    for index, episode in enumerate(episodes):
        _require_episode(episode, f"episodes[{index}]", kind)
        if (previous := episode.get("previous")) is not None:
            name = f"episodes[{index}]['previous']"
            _require_episode(previous, name, kind)
            if not is_number(previous.get("return")) or not np.isfinite(previous["return"]):
                raise state_error(kind, f"{name}['return']", previous.get("return"), "it is a finite number")


def _require_episode(episode: Any, name: str, kind: str) -> None:
    if not isinstance(episode, Mapping) or not set(_EPISODE_KEYS) <= set(episode):
        raise state_error(kind, name, episode, f"it is a dict of {', '.join(_EPISODE_KEYS)}")
    key = f"{name}['number']"
    whole_number({key: episode["number"]}, key, kind, 0)
    start, actions = episode["start"], arrays(episode["actions"])
    key = f"{name}['start']"
    if not isinstance(start, Mapping) or not ({"seed"} <= set(start) or {"ale", "np_random"} <= set(start)):
        raise state_error(kind, key, start, "it is a dict with a seed, or with a kept state of the simulator")
    if "seed" in start:
        whole_number({f"{key}['seed']": start["seed"]}, f"{key}['seed']", kind, 0, 2**63 - 1)
    if not isinstance(start.get("options", {}), Mapping):
        raise state_error(kind, f"{key}['options']", start["options"], "they are a dict")
    if not isinstance(actions, (list, tuple)) and np.ndim(actions) == 0:
        raise state_error(kind, f"{name}['actions']", actions, "they are a list, or an array with a row for each step")


def require_returns(returns: Any, num_envs: int, kind: str) -> None:
    """Refuse what are no returns of so many environments.

    Raises:
        ValueError
    """
    array = np.asarray(arrays(returns))
    if array.shape != (num_envs,) or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        raise state_error(kind, "returns", returns, f"they are {num_envs} finite numbers")


def require_rows(state: Mapping[str, Any], num_rows: int, obs_spec: Spec, kind: str, where: str = "") -> None:
    """Refuse observations and flags under "current" and "restarted" that are not those of so many rows.

    Args:
        where: what their names begin with in messages.

    Raises:
        ValueError: naming what is wrong.
    """
    found = {path: (np.shape(leaf), getattr(leaf, "dtype", type(leaf))) for path, leaf in flatten(arrays(state["current"]))}
    expected = {path: ((num_rows, *leaf.shape), leaf.dtype) for path, leaf in flatten(obs_spec)}
    for path in [*expected, *found]:
        if found.get(path) != expected.get(path):
            has, wants = (_words(each.get(path)) for each in (found, expected))
            name = "/".join((f"{where}current", *map(str, path)))
            raise state_error(kind, name, has, f"that of these environments is {wants}")
    restarted = state["restarted"]
    flags = np.asarray(arrays(restarted))
    if restarted is not None and (flags.shape != (num_rows,) or flags.dtype != np.bool_):
        raise state_error(kind, f"{where}restarted", restarted, f"it is None, or {num_rows} truth values")


def _words(leaf: tuple[Any, Any] | None) -> str:
    return "not there" if leaf is None else f"{leaf[1]} of shape {leaf[0]}"
