"""Unsaved state of environments: what lasts longer than an episode, so that a replay of the episode does not restore it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium

from ding_lite.basics.origins import is_of_script
from ding_lite.engine.run_parts import has_state

_NUMBERS = (bool, int, float, str, type(None))


def layers_with_state(env: gymnasium.Env[Any, Any]) -> list[Any]:
    """The wrappers, the outermost one first, and the environment, as far as their classes have `state_dict` and
    `load_state_dict`."""
    return [layer for layer in _layers(env) if has_state(layer)]


def states_of(layers: Sequence[Any]) -> dict[str, Any]:
    """A part of an episode's start: the states before its reset; empty if there are none."""
    return {"states": [copy.deepcopy(layer.state_dict()) for layer in layers]} if layers else {}


def load_states(env: gymnasium.Env[Any, Any], start: Mapping[str, Any]) -> None:
    """Load these states, before the reset that begins the replay of an episode.

    Raises:
        ValueError: the environment has other wrappers with a state.
    """
    states, layers = start.get("states", []), layers_with_state(env)
    if len(states) != len(layers):
        raise ValueError(
            f"the episode was played with {len(states)} wrappers that have a state_dict, and this environment has "
            f"{len(layers)}: make it with the same wrappers."
        )
    for layer, state in zip(layers, states):
        layer.load_state_dict(copy.deepcopy(state))


def attributes_of(env: gymnasium.Env[Any, Any]) -> list[dict[str, str]]:
    """Numbers and strings that wrappers and environments of the script hold in attributes, as text, if they have no state."""
    return [{} if has_state(layer) else _attributes(layer) for layer in _layers(env)]


def warn_of_lost_attributes(env: gymnasium.Env[Any, Any], index: int, saved: Any) -> None:
    """Warn if an attribute of a replayed environment differs from the saved one.

    Args:
        env: the environment.
        index: its index, for the warning.
        saved: a result of `attributes_of`; None for states of earlier versions.
    """
    for layer, attributes in zip(_layers(env), saved or ()):
        now, kind = _attributes(layer), type(layer).__name__
        name = next((name for name, value in attributes.items() if name in now and now[name] != value), None)
        if name is not None:
            warnings.warn(
                f"environment {index} does not come back to what it remembers from earlier episodes: {kind}.{name} is "
                f"{now[name]} after the replay of its episode, and was {attributes[name]} when it was saved. Give {kind} "
                "state_dict() and load_state_dict(state).",
                stacklevel=2,
            )


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers, the outermost one first, and the environment."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _attributes(layer: Any) -> dict[str, str]:
    if not is_of_script(type(layer).__module__):
        return {}
    return {name: repr(value) for name, value in vars(layer).items() if type(value) in _NUMBERS}
