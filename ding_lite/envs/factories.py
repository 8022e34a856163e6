"""New environments from factories, checked to be distinct and of the same spaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from ding_lite.basics import add_note
from ding_lite.envs.error_locations import exit_error
from ding_lite.envs.spaces import SpaceError, require_elements, same_layout

EnvFactory = Callable[[], gymnasium.Env[Any, Any]]


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
        raise TypeError(
            f"the factory of environment {index} returned a {type(env).__name__}, expected a new gymnasium.Env. Wrap "
            "environments of the old gym with a library such as shimmy."
        )
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), gymnasium.Space):
            raise TypeError(f"environment {index}, {env}, has no {name}: set it to a gymnasium space in its __init__.")
        require_elements(getattr(env, name), f"environment {index}, {name}")
    return env


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
            raise SpaceError(
                f"environment {index} has the spaces {env.observation_space}, {env.action_space}, environment 0 has "
                f"{first.observation_space}, {first.action_space}: they must be the same in all environments."
            )
