"""Saved environments: environments like those of a saved run."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.envs import LocalVectorEnv, MultiAgentVectorEnv, env_factory
from ding_lite.envs.recipes import made_from
from ding_lite.envs.unsaved_env_state import layers_with_state
from ding_lite.reports import ReportError
from ding_lite.rollout.saved_players import SavedPlayers, imported

_RECORD = "run.json"


def record_of(run: str | PathLike[str]) -> Mapping[str, Any]:
    """What `run.json` says; empty if there is none."""
    path = Path(run) / _RECORD
    if not Path(run).exists():
        raise ReportError(f"there is no folder {run}: pass the folder of a run, such as runs/dqn.")
    try:
        found = json.loads(path.read_bytes())
    except OSError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path} cannot be read: {error}.") from None
    envs = found.get("environments", []) if isinstance(found, dict) else None
    folders = found.get("search_path", []) if isinstance(found, dict) else None
    is_whole = isinstance(envs, list) and all(
        isinstance(one, dict) and {"stage", "name", "recipe"} <= set(one) and isinstance(one.get("agents", {}), dict)
        for one in envs
    )
    if not is_whole or not isinstance(folders, list) or not all(isinstance(folder, str) for folder in folders):
        raise ReportError(f"{path} is damaged: its entries 'environments' and 'search_path' are not those of a run.")
    return found  # type: ignore[no-any-return]


def factory_of(record: Mapping[str, Any], env: str | Callable[..., Any] | None, run: str | PathLike[str]) -> Callable[..., Any]:
    """A function that makes one environment like those of the run, or the given one."""
    if env is not None:
        return _given_factory(env)
    known = _environments(record)
    fix = (
        "name the environment by its id or a function that makes it: in Python env=make_env, on the command line --env ID or "
        "--env module:function"
    )
    if known is None and (Path(run) / "dataset.json").is_file():
        raise ReportError(f"{run} is a dataset, not the folder of a run: pass the run whose policy is to be evaluated.")
    if known is None:
        raise ReportError(f"{Path(run) / _RECORD} does not say which environments the run had: {fix}.")
    if isinstance(known["recipe"], str):
        raise ReportError(f"the environment {known['name']} cannot be made here, because {known['recipe']}: {fix}.")
    try:
        made: Callable[..., Any] = made_from(known["recipe"])
        if not callable(made):
            raise TypeError(f"{made!r:.60} is no function")
    except (ImportError, AttributeError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise ReportError(f"the environment {known['name']} cannot be made here: {error}. Otherwise {fix}.") from None
    return made


def _environments(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the record says of the evaluator's environments, or of the collector's; None if there are none."""
    by_stage: dict[str, Mapping[str, Any]] = {known["stage"]: known for known in reversed(record.get("environments", []))}
    return by_stage.get("evaluate") or by_stage.get("collect")


def assignment_of(record: Mapping[str, Any]) -> Callable[[Any], str | None] | None:
    """A function from an agent of the run to the name of its policy; None if the run has one agent."""
    agents = (_environments(record) or {}).get("agents")
    return None if agents is None else lambda agent: agents.get(str(agent))


def _given_factory(env: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function by which `make_envs` makes one of these environments."""
    found = imported(env) if isinstance(env, str) and ":" in env else env
    try:
        return env_factory(found if callable(found) else env)
    except (gymnasium.error.Error, ImportError) as error:
        raise ReportError(f"the environment {env} cannot be made: {error}") from None


def new_envs(factory: Callable[[], Any], count: int, seed: int, players: SavedPlayers) -> LocalVectorEnv | MultiAgentVectorEnv:
    try:
        return (MultiAgentVectorEnv if players.has_agents else LocalVectorEnv)([factory] * count, seed)
    except gymnasium.error.Error as error:
        raise ReportError(f"the environment cannot be made: {error}") from None


def extend_search_path(record: Mapping[str, Any]) -> None:
    """Let modules beside the script of the run be imported."""
    sys.path += [folder for folder in record.get("search_path", []) if folder not in sys.path]


def warn_of_statistics(envs: LocalVectorEnv | MultiAgentVectorEnv) -> None:
    """Warn if a wrapper has statistics of training, which new environments do not have."""
    layer: Any = envs.envs[0]
    while isinstance(layer, gymnasium.Wrapper):
        is_own = is_of_ding_lite(type(layer).__module__)  # whose state belongs to an episode or a game
        if isinstance(layer, (NormalizeObservation, NormalizeReward)) or (not is_own and layer in layers_with_state(layer)):
            warnings.warn(
                f"the wrapper {type(layer).__name__} has a state that it built up in training, and new environments begin "
                "without it, so that the returns may differ from those in training: normalise observations in the policy "
                "instead, by policy.model.normalize_obs.",
                stacklevel=3,
            )
        layer = layer.env
