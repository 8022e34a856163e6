"""Setting states: settings of configurations that a run changes, which a resumed run must have again.

A policy saves the settings that `policy.reset_config` changes. All others, `policy.cfg.learn.batch_size = 8`, are saved here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ding_lite.basics.checkpoint_files import plain
from ding_lite.basics.config_classes import Config, all_values
from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.basics.value_types import require_kept_type
from ding_lite.engine.run_parts import network_holder


class SettingStates:
    """Compares the configurations of the objects of a run with what they were at its beginning."""

    def __init__(self) -> None:
        self._first: dict[str, dict[str, Any]] = {}
        self._reported: set[tuple[str, str]] = set()

    def begin(self, parts: Mapping[str, Any]) -> None:
        """Look at the configurations of these objects now; objects that are known are left out."""
        for name, cfg in _configs_of(parts).items():
            if name not in self._first:
                self._first[name] = all_values(cfg)
                self._reported.update((name, setting) for setting in _unfollowed(parts[name]))  # the learner names these

    def state_dict(self, parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """By the name of the object and of the setting, the values that have changed, and that the object does not save."""
        changes = {name: self._changes(name, cfg, parts[name]) for name, cfg in _configs_of(parts).items()}
        kept = {name: {it: now for it, now in found.items() if _refusal(it, now) is None} for name, found in changes.items()}
        return {name: found for name, found in kept.items() if found}

    def warnings(self, parts: Mapping[str, Any]) -> Iterator[str]:
        """A warning for each setting that was changed without effect, or that cannot be saved; it names each once."""
        for name, cfg in _configs_of(parts).items():
            holder = type(network_holder(parts[name])).__name__
            unfollowed = _unfollowed(parts[name])
            for setting, (now, made) in unfollowed.items():
                if self._is_new(name, setting):
                    yield (
                        f"cfg.policy.{setting} was set to {now!r} during the run without effect: {holder} was made with "
                        f"{made!r}, and does not follow the change. Change live settings by policy.reset_config("
                        f'{{"{setting}": {now!r}}}), and others before the policy is made.'
                    )
            for setting, now in self._changes(name, cfg, parts[name]).items():
                refusal = _refusal(f"cfg.policy.{setting}", now)
                if refusal is not None and self._is_new(name, setting):
                    yield (
                        f"cfg.policy.{setting} of {holder} was changed during the run, and no state can have it, so a resumed "
                        f"run has its first value, {self._first[name][setting]!r:.80}, again: {refusal}"
                    )

    def require_fit(self, state: Any, parts: Mapping[str, Any], refuse: Callable[[str], Exception]) -> None:
        """Raise an error if a result of `state_dict` does not fit these objects.

        Args:
            state: the saved state.
            parts: the objects by name.
            refuse: makes the error of a message.
        """
        if not isinstance(state, Mapping) or not all(isinstance(one, Mapping) for one in state.values()):
            raise refuse(f"the state's ['settings'] is {state!r:.80}, expected a dict with dicts of settings")
        configs = _configs_of(parts)
        for name, changes in state.items():
            where = f"the state's ['settings'][{name!r}]"
            if name not in configs:
                raise refuse(f"{where} is {changes!r:.80}, but {name} has no configuration here")
            known = all_values(configs[name])
            if unknown := [setting for setting in changes if setting not in known]:
                raise refuse(f"{where} has {unknown[0]!r:.80}, which the configuration of {name} does not have here")
            try:
                configs[name].trial().override(changes)
            except (TypeError, ValueError) as error:
                raise refuse(f"{where} does not fit: {error}") from None

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]], parts: Mapping[str, Any]) -> None:
        """Set the settings as they were when the run was saved."""
        for name, cfg in _configs_of(parts).items():
            changed_back = {setting: self._first[name][setting] for setting in self._changes(name, cfg, parts[name])}
            wanted = {**changed_back, **state.get(name, {})}
            if wanted:
                cfg.override(wanted)

    def _changes(self, name: str, cfg: Config, part: Any) -> dict[str, Any]:
        """The values that have changed since the beginning, without those that the object saves itself."""
        first, saved = self._first.get(name, {}), attribute_of(network_holder(part), "first_settings", {})
        now = all_values(cfg)
        return {it: now[it] for it in now if it in first and it not in saved and _differ(now[it], first[it])}

    def _is_new(self, name: str, setting: str) -> bool:
        is_new = (name, setting) not in self._reported
        self._reported.add((name, setting))
        return is_new


def _configs_of(parts: Mapping[str, Any]) -> dict[str, Config]:
    """Each configuration once, by the name of the first object that has it."""
    held = {name: attribute_of(network_holder(part), "cfg") for name, part in parts.items()}
    first = {id(cfg): name for name, cfg in reversed(held.items()) if isinstance(cfg, Config)}
    return {name: cfg for name, cfg in held.items() if first.get(id(cfg)) == name}


def _unfollowed(part: Any) -> Mapping[str, tuple[Any, Any]]:
    """The settings whose change a policy does not follow: the value now, and that which it was made with."""
    found: Mapping[str, tuple[Any, Any]] = attribute_of(part, "unfollowed_settings", {})
    return found


def _differ(one: Any, other: Any) -> bool:
    try:
        return type(one) is not type(other) or bool(one != other)
    except Exception:  # noqa: BLE001  an array, or a class of a user
        return repr(one) != repr(other)


def _refusal(where: str, value: Any) -> str | None:
    """Why a value cannot be saved; None if it can."""
    try:
        plain(value, where)
        require_kept_type(value, where)
    except (TypeError, ValueError) as error:
        return str(error)
    return None
