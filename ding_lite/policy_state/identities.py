"""Identities: the algorithm, configuration and spaces of a policy as plain data in its state, to check that a state fits."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from ding_lite.basics import Config, ConfigError
from ding_lite.envs import SpaceError
from ding_lite.envs.space_records import DamagedRecordError, comparable, recorded_space, space_from

_PLAIN = (int, float, str, bool, type(None))
_BOUNDS = ("low", "high")
_FIX = 'pass "made_with" from state_dict(), or leave it out.'


class StateDictError(ValueError):
    """A state does not fit the policy that loads it; the policy is unchanged."""


def identity_of(
    kind: type,
    lineage: Sequence[str],
    cfg: Config,
    settings: Mapping[str, Any],
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    given_model: str | None = None,
    config_class: type | None = None,
) -> dict[str, Any]:
    """The algorithm, the base classes, the configuration and the spaces of a policy, as plain data.

    The seed is left out: a state may be loaded into a policy with another seed, because it contains the random generators.

    Args:
        kind: the policy's class.
        lineage: name of the policy's class, and of its base classes.
        cfg: its typed configuration.
        settings: additional settings, which the typed configuration has no fields for.
        observation_space, action_space: its spaces.
        given_model: the class of the network that was given to it, as module:name; None if it has made its networks.
        config_class: the class of the configuration, if it is not the one that the policy makes of a mapping.
    """
    return {
        "algorithm": lineage[0],
        "derived_from": list(lineage[1:]),
        "class": import_path(kind),
        "config": _recorded({name: value for name, value in cfg.to_dict().items() if name != "seed"}),
        "settings": _recorded(settings),
        "observation_space": recorded_space(observation_space),
        "action_space": recorded_space(action_space),
        **({} if given_model is None else {"given_model": given_model}),
        **({} if config_class is None else {"config_class": f"{config_class.__module__}:{config_class.__qualname__}"}),
    }


def import_path(kind: type) -> str | None:
    """module:name, from which a program can import a class; None if that gives another one, or none."""
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return f"{kind.__module__}:{kind.__qualname__}" if found is kind else None


def require_alike(own: Mapping[str, Any], cfg: Config, saved: Any) -> None:
    """Check that a state was saved by a policy with the same algorithm, spaces and networks.

    In the configuration, only the section `model` must be the same, because it defines the networks; a different learning rate,
    for example, is allowed. Bounds of observations may differ.

    Args:
        own: `identity_of` the policy that loads the state.
        cfg: the configuration of that policy.
        saved: `identity_of` the policy that saved the state.

    Raises:
        StateDictError: `saved` is not an identity; or something differs. The message lists all differences.
    """
    require_identity(saved)
    lineage = [own["algorithm"], *own["derived_from"]]
    _require_settings(lineage[0], cfg, saved)
    kind = saved["algorithm"]
    if kind not in lineage and lineage[0] not in saved["derived_from"]:
        raise StateDictError(
            f"this state was saved by a {kind}, and this policy is a {lineage[0]}: make a {kind} with the configuration and "
            'the spaces in state["made_with"]. If the networks are the same, policy.set_weights(state["model"]) loads only the '
            "weights."
        )
    found = [
        f"its {name.replace('_', ' ')} is {_describe(saved[name])}, and that of this policy is {_describe(own[name])}"
        for name in ("observation_space", "action_space")
        if _compared(saved[name], name) != _compared(own[name], name)
    ]
    found += [difference for name, difference in _differences(own, saved) if name.startswith("model.")]
    if found:
        raise StateDictError(
            f"this state was saved by a different {lineage[0]}: {'; '.join(found)}. Make the policy with the environment and "
            "the configuration of the run that saved the state, such as "
            f'{type(cfg).__name__}.from_dict(state["made_with"]["config"]).'
        )


_PARTS: dict[str, type] = {
    "algorithm": str,
    "derived_from": list,
    "config": dict,
    "settings": dict,
    "observation_space": dict,
    "action_space": dict,
}


def require_identity(saved: Any) -> None:
    """Check that this is a result of `identity_of`, also of an earlier version.

    Raises:
        StateDictError: an entry is missing, or is not what it should be; the message names it.
    """
    fix = _FIX
    if not isinstance(saved, Mapping):
        raise StateDictError(f'state["made_with"] is {saved!r:.80}, expected a dict with {[*_PARTS]}: {fix}')
    for name, kind in _PARTS.items():
        if name not in saved:
            raise StateDictError(f'state["made_with"] lacks {name!r}, it has {sorted(map(str, saved))}: {fix}')
        place, found = f'state["made_with"][{name!r}]', saved[name]
        if not isinstance(found, kind):
            raise StateDictError(f"{place} is {found!r:.80} of type {type(found).__name__}, expected a {kind.__name__}: {fix}")
        if found == "":
            raise StateDictError(f"{place} is empty, expected the name of an algorithm: {fix}")
    for name in ("class", "given_model", "config_class"):  # older states do not have the first, and only some have the others
        if not isinstance(saved.get(name), (str, type(None))):
            raise StateDictError(
                f'state["made_with"][{name!r}] is {saved[name]!r:.80}, expected the import path of a class: {fix}'
            )
    for name in ("observation_space", "action_space"):
        _require_recorded(f'state["made_with"][{name!r}]', saved[name])
        _require_space(f'state["made_with"][{name!r}]', saved[name], fix)
        try:
            space_from(saved[name])
        except DamagedRecordError as error:
            raise StateDictError(f'state["made_with"][{name!r}]: {error} Or {fix}') from None
        except SpaceError:  # of another kind
            pass
    if not all(isinstance(name, str) for name in saved["derived_from"]):
        raise StateDictError(f'state["made_with"]["derived_from"] is {saved["derived_from"]!r:.80}, expected names: {fix}')
    for section in ("config", "settings"):
        _require_recorded(f'state["made_with"][{section!r}]', saved[section])


def _require_settings(algorithm: str, cfg: Config, saved: Mapping[str, Any]) -> None:
    """Raise StateDictError for settings whose values the configuration of this algorithm refuses.

    Missing settings, and settings that this version does not have, are allowed.
    """
    if saved["algorithm"] == algorithm:
        _require_legal("state[\"made_with\"]['config']", cfg.trial(), saved["config"])


def _require_recorded(place: str, value: Any) -> None:
    if isinstance(value, Mapping):
        _require_names(place, value)
        for name, item in value.items():
            _require_recorded(f"{place}[{name!r}]", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _require_recorded(f"{place}[{index}]", item)
    elif type(value) not in _PLAIN:
        wanted = "a number, a string, a list or a dict"
        raise StateDictError(f"{place} is {value!r:.80} of type {type(value).__name__}, expected {wanted}: {_FIX}")


def _require_names(place: str, given: Mapping[Any, Any]) -> None:
    for name in given:
        if not isinstance(name, str):
            raise StateDictError(f"{place} has the key {name!r:.80} of type {type(name).__name__}, expected names: {_FIX}")


def _require_legal(place: str, config: Config, saved: Mapping[str, Any]) -> None:
    for name, value in saved.items():
        current = getattr(config, str(name), None)
        if isinstance(current, Config) and isinstance(value, Mapping):
            _require_legal(f"{place}[{name!r}]", current, value)
        elif name in config.to_dict() and not (isinstance(value, str) and value.startswith("<")):  # only its type was saved
            try:
                setattr(config, name, value)
            except ConfigError as error:
                raise StateDictError(f"{place}[{name!r}] is {value!r:.80}, which is not allowed ({error}): {_FIX}") from None


def _require_bound(place: str, space: Mapping[str, Any]) -> None:
    for name in _BOUNDS:
        if name in space:
            try:
                bound = np.array(space[name], np.float64)
            except (TypeError, ValueError, OverflowError):
                bound = np.array(np.nan)
            if isinstance(space[name], bool) or np.isnan(bound).any() or [*bound.shape] not in ([], space.get("shape")):
                raise StateDictError(
                    f"{place}[{name!r}] is {space[name]!r:.80}, expected a number, or an array of the space's shape: {_FIX}"
                )


def _require_space(place: str, space: Any, fix: str) -> None:
    parts = space.get("parts", {}) if isinstance(space, Mapping) else None
    if not isinstance(parts, Mapping) or not isinstance(space.get("kind"), str):
        raise StateDictError(f'{place} is {space!r:.80}, expected a dict with the "kind" of a space, such as "Box": {fix}')
    _require_names(place, space)
    _require_names(f"{place}['parts']", parts)
    _require_bound(place, space)
    for name, part in parts.items():
        _require_space(f"{place}['parts'][{name!r}]", part, fix)


def differing_settings(own: Mapping[str, Any], saved: Mapping[str, Any] | None) -> str:
    """Sentences with the settings and the networks in which two identities differ; empty if there are none."""
    found = [difference for _, difference in _differences(own, saved or {})]
    sentence = f" These settings differ: {'; '.join(found)}." if found else ""
    if is_of_given_model(own, saved or {}):
        given = (saved or {})["given_model"]
        sentence += f" The saved policy had a network of its own, a {given}: pass such a network, model=..."
    return sentence


def is_of_given_model(own: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    """Whether the policy that saved the state had a network that was given to it, and this policy has made its own."""
    return saved.get("given_model") is not None and own.get("given_model") is None


def _differences(own: Mapping[str, Any], saved: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """For each setting that both have and that differs: its dotted name, and a description of the difference."""
    for section, prefix in (("config", "cfg.policy."), ("settings", "")):
        here, there = (dict(settings_in(one.get(section) or {})) for one in (own, saved))
        for name in here:
            if name in there and here[name] != there[name]:
                yield name, f"{prefix}{name} is {there[name]!r} in the state and {here[name]!r} in this policy"


def settings_in(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each single setting of a recorded configuration, by its dotted name."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from settings_in(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _recorded(value: Any) -> Any:
    """The value as numbers, strings, lists and dicts; "<TYPE>" for objects of other types."""
    if isinstance(value, Config):
        return _recorded(value.to_dict())
    if isinstance(value, Mapping):
        return {str(name): _recorded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_recorded(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if type(value) in _PLAIN else f"<{type(value).__name__}>"


def _compared(space: Any, name: str) -> Any:
    """The part of a space that must be the same in both: without the bounds if these are observations."""
    if "parts" in space:
        return [(part, _compared(inner, name)) for part, inner in space["parts"].items()]  # in order, as networks join them
    if name == "action_space":
        return comparable(space)
    return {key: value for key, value in comparable(space).items() if key not in _BOUNDS}


def _describe(space: Any) -> str:
    """A space for messages, such as "Box(shape=[4], dtype=float32)"."""
    if "parts" in space:
        return f"{space['kind']}({', '.join(f'{name}: {_describe(part)}' for name, part in space['parts'].items())})"
    usual = {"start": 0} if space["kind"] == "Box" else {"start": 0, "dtype": "int64"}
    known = comparable(space) if space["kind"] == "MultiBinary" else space
    inner = {name: value for name, value in known.items() if name != "kind" and usual.get(name) != value}
    shown = {name: value if len(str(value)) < 40 else "..." for name, value in inner.items()}
    return f"{space['kind']}({', '.join(f'{name}={value}' for name, value in shown.items())})"


StateError = StateDictError  # its name in earlier versions
