"""Unsaved state of environments: what lasts longer than an episode, so that a replay of the episode does not restore it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium

from ding_lite.basics.attribute_reads import names_not_saved
from ding_lite.basics.origins import is_of_script
from ding_lite.engine.run_parts import has_state
from ding_lite.envs.carried_state import INSTEAD, OF_GYMNASIUM

_NUMBERS = (bool, int, float, str, type(None))


def layers_of(env: Any) -> list[Any]:
    """The wrappers, the outermost one first, and the environment."""
    return [*_layers(env)]


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
                f"state_dict() and load_state_dict(state). If its steps do not depend on {name}, as on a clock or a log "
                "counter, leave it out there: a class with a state is not compared, and state_dict() may return {}.",
                stacklevel=2,
            )


def advice_for(env: Any) -> str:
    """For errors of replays that differ: the parts of an environment that may remember earlier episodes, and the fix."""
    layers = list(_layers(env))
    names = list(dict.fromkeys(type(layer).__name__ for layer in layers if is_of_script(type(layer).__module__)))
    lost = [type(layer).__name__ for layer in layers if is_of_script(type(layer).__module__) and not has_state(layer)]
    known = [type(layer).__name__ for layer in layers if type(layer).__name__ in INSTEAD and not has_state(layer)]
    advice = "".join(f" {name} keeps statistics across episodes: remove it, and {INSTEAD[name]}." for name in known)
    if lost := [name for name in dict.fromkeys(lost) if name not in known]:
        advice += (
            f" If {' or '.join(lost)} remembers earlier episodes, give it state_dict() and load_state_dict(state), see "
            "docs/environments.md."
        )
    elif names and not known:
        advice += f" The state_dict() of {' or '.join(names)} may lack something that its steps depend on."
    return advice


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers, the outermost one first, and the environment."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _attributes(layer: Any) -> dict[str, str]:
    if not is_of_script(type(layer).__module__):
        return {}
    kind: Any = type(layer)
    left_out = names_not_saved(kind).union(OF_GYMNASIUM)
    return {name: repr(value) for name, value in vars(layer).items() if type(value) in _NUMBERS and name not in left_out}
