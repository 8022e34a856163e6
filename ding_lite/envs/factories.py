"""New environments from factories, checked to be distinct and of the same spaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium

from ding_lite.basics import add_note
from ding_lite.basics.messages import describe_error
from ding_lite.basics.signatures import passed_signature_of
from ding_lite.envs.error_locations import exit_error
from ding_lite.envs.spaces import SpaceError, hidden_difference, require_elements, same_layout

EnvFactory = Callable[[], gymnasium.Env[Any, Any]]


TURNS = (
    "whose agents take turns (PettingZoo's AEC API), which is not supported: all agents of an environment act in each step. "
    "Pass a function that makes a parallel environment to make_multi_agent_envs: parallel_env of the same module if it has "
    "one; otherwise pettingzoo.utils.conversions.aec_to_parallel(env) if all agents act at the same time, or "
    "turn_based_aec_to_parallel(env) if one acts at a time, where the actions of all others are ignored."
)
"""The end of messages about environments whose agents take turns."""


def takes_turns(env: Any) -> bool:
    """Whether this is an environment with PettingZoo's AEC API, or a class of them."""
    turns = callable(getattr(env, "last", None)) and hasattr(env, "agent_selection")
    return callable(getattr(env, "agent_iter", None)) or turns


def require_one_agent(env: Any, start: str) -> None:
    """Raise an error if this is an environment of several agents.

    Raises:
        TypeError: with `start`, and what to do.
    """
    if takes_turns(env):
        raise TypeError(f"{start} a {type(env).__name__}, {TURNS}")
    if hasattr(env, "possible_agents"):
        raise TypeError(
            f"{start} a {type(env).__name__}, which has several agents: make it with make_multi_agent_envs(function, 8)."
        )


def made_by(factory: EnvFactory, index: int) -> gymnasium.Env[Any, Any]:
    """A new environment with this index; errors of the factory get a note with the index.

    Raises:
        TypeError: the factory did not return a gymnasium environment, or one of its spaces is missing.
        SpaceError: a space is empty, or its elements hold no numbers.
        RuntimeError: the factory called `sys.exit`.
    """
    try:
        env = factory()
    except SystemExit as error:
        raise exit_error(error, f"the factory of environment {index}") from error
    except Exception as error:
        add_note(error, f"raised while environment {index} was made")
        raise
    if not isinstance(env, gymnasium.Env):
        require_one_agent(env, f"the factory of environment {index} returned")
        raise TypeError(
            f"the factory of environment {index} returned a {type(env).__name__}, expected a new gymnasium.Env. Wrap "
            "environments of the old gym with a library such as shimmy."
        )
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), gymnasium.Space):
            raise TypeError(f"environment {index}, {env}, has no {name}: set it to a gymnasium space in its __init__.")
        require_elements(getattr(env, name), f"environment {index}, {name}")
    return env


def made_alike(factories: Sequence[EnvFactory], first_env: int = 0) -> list[gymnasium.Env[Any, Any]]:
    """A new environment from each factory. If one fails, or they are not alike, those that were made are closed.

    Raises:
        Exception: as `made_by` and `require_alike`.
    """
    envs: list[gymnasium.Env[Any, Any]] = []
    try:
        for index, factory in enumerate(factories, first_env):
            envs.append(made_by(factory, index))
        require_alike(envs)
    except BaseException:
        with suppress(Exception):
            close_all(envs)
        raise
    return envs


def close_all(envs: Iterable[Any]) -> None:
    """Close each environment that has a `close`.

    Raises:
        Exception: the first error of an environment, after all others were closed.
    """
    errors: list[Exception] = []
    for env in envs:
        try:
            if hasattr(env, "close"):
                env.close()
        except Exception as error:  # noqa: BLE001  user code; raised below
            errors.append(error)
    if errors:
        for other in errors[1:]:
            add_note(errors[0], f"another environment could not be closed either: {describe_error(other)}")
        raise errors[0]


def require_alike(envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
    """Raise an error if an environment is used twice, or environments have different spaces.

    Raises:
        ValueError: two factories returned the same environment.
        SpaceError: the spaces differ.
    """
    first = envs[0]
    for index, env in enumerate(envs):
        if any(env.unwrapped is other.unwrapped for other in envs[:index]):
            raise ValueError(
                f"the factory of environment {index} returned an environment that is in use: make a new one each time."
            )
        if env.action_space != first.action_space or not same_layout(env.observation_space, first.observation_space):
            hidden = hidden_difference(env.observation_space, first.observation_space)
            hidden += hidden_difference(env.action_space, first.action_space)
            raise SpaceError(
                f"environment {index} has the spaces {env.observation_space}, {env.action_space}, environment 0 has "
                f"{first.observation_space}, {first.action_space}{hidden}: they must be the same in all environments."
            )


def settings_of(env_config: Mapping[str, Any] | None, who: str) -> dict[str, Any]:
    """A copy of the keyword arguments of environments.

    Raises:
        TypeError: it is not a mapping with strings as keys.
    """
    if env_config is None:
        return {}
    if not isinstance(env_config, Mapping) or not all(isinstance(name, str) for name in env_config):
        raise TypeError(f"{who}(env_config={env_config!r:.80}) wants keyword arguments by name, such as {{'gravity': 9.8}}.")
    return dict(env_config)


def called(factory: Callable[..., Any], /, **env_config: Any) -> Any:
    """A new environment from a function with these keyword arguments."""
    try:
        return factory(**copied_settings(env_config))
    except TypeError as error:
        try:
            passed_signature_of(factory).bind(**env_config)
        except (TypeError, ValueError):  # it does not take them, or its signature is unknown
            name = getattr(factory, "__name__", type(factory).__name__)
            add_note(error, f"env_config passed {', '.join(env_config)} to {name}")
        raise


def copied_settings(value: Any) -> Any:
    """The same dicts, lists and tuples anew, because an environment may change its arguments; other objects are shared."""
    if type(value) is dict:
        return {name: copied_settings(inner) for name, inner in value.items()}
    return type(value)(map(copied_settings, value)) if type(value) in (list, tuple) else value
