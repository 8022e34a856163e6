"""Live settings: changing the configuration of a policy while it learns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from ding_lite.basics import Config, ConfigError
from ding_lite.basics.config_classes import all_values
from ding_lite.policy_base.short_names import place_of
from ding_lite.policy_state import StateDictError

_OF_OPTIMIZER = frozenset({"learning_rate", "lr_schedule", "optimizer_eps", "rmsprop_decay"})
_COPIED = frozenset(
    f"learn.{name}" for name in ("target_entropy", "kl_coeff", "kl_target", "entropy_weight", "entropy_schedule")
)
"""Live settings of which a policy keeps copies, that only `settings_changed` renews; those of the optimizer are more."""
_READ_LATER = frozenset(
    ("context_length", "target_return", "return_scale", "nstep", "random_collect_size", "collect.n_sample", "collect.n_episode")
    + ("collect.noise_sigma", "collect.noise_correlation", "learn.batch_size", "learn.burn_in", "learn.unroll_len")
)
"""Settings that are fixed in a run, but first read when its middleware are created, or when the policy acts and learns."""


class FixedSettingError(ConfigError):
    """A setting that cannot be changed in a run. Nothing was changed."""


class LivePolicy(Protocol):
    """The interface that changes of settings need from a policy."""

    optimizer: Optimizer
    """The optimizer of `params`."""
    settings_made: dict[str, Any]
    """By dotted name, the values of the configuration that the policy follows."""

    @property
    def cfg(self) -> Any:
        """The typed configuration."""

    @property
    def params(self) -> list[nn.Parameter]:
        """The parameters that learn."""

    def settings_changed(self, names: frozenset[str], /) -> None:
        """Follow changes of the configuration."""

    def require_effect(self, names: frozenset[str], /) -> None:
        """Raise FixedSettingError if a change has no effect."""


def settings_of(cfg: Config, prefix: str = "", by_values: bool = True) -> Iterator[tuple[str, bool, str]]:
    """Each setting of a configuration: its dotted name, whether it can be changed in a run, and when or why not.

    Args:
        cfg: the configuration.
        prefix: of the names.
        by_values: whether the values of other settings count, see `Config.liveness`.
    """
    for name in vars(cfg):
        value = getattr(cfg, name)
        if isinstance(value, Config):
            yield from settings_of(value, f"{prefix}{name}.", by_values)
        elif not name.startswith("_"):
            yield (f"{prefix}{name}", *(cfg.liveness(name) if by_values else Config.liveness(cfg, name)))


def live_changes(
    cfg: Config, values: Mapping[str, Any], made: Mapping[str, Any] | None = None, is_restored: bool = False
) -> dict[str, Any]:
    """The changes that `values` make to a configuration, by dotted name, as it would store them.

    Args:
        cfg: the configuration; it is not changed.
        values: by dotted name, by short name such as "lr", or as nested mappings.
        made: the values that the policy follows, if they may be others than those of the configuration.
        is_restored: whether an earlier run has made these changes; earlier versions allowed more of them.

    Raises:
        ConfigError: a name does not exist, or a value is out of range or of the wrong type.
        FixedSettingError: a setting cannot be changed in a run. The message names all of them.
    """
    if not values:
        return {}
    trial = cfg.trial()
    for name, value in values.items():
        trial.override({place_of(cfg, name): value})
    table = {name: (is_live, words) for name, is_live, words in settings_of(cfg, by_values=not is_restored)}
    before, after = (all_values(one) for one in (cfg, trial))
    changes = {name: after[name] for name in after if after[name] != before[name]}
    for name in unfollowed_changes(cfg, made or {}):
        if table[name][0] and any(f"{name}.".startswith(f"{place_of(cfg, given)}.") for given in values):
            changes[name] = after[name]
    fixed = [f"{name} cannot be changed in a run: {table[name][1]}" for name in changes if not table[name][0]]
    if fixed:
        raise FixedSettingError("\n".join(fixed))
    return changes


def values_of(cfg: Config, names: Iterable[str]) -> dict[str, Any]:
    """The values of these settings by dotted name."""
    flat = all_values(cfg)
    return {name: flat[name] for name in names}


def unfollowed_changes(cfg: Config, made: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings whose change a policy does not follow, if the configuration itself was changed, and not by `reset_config`:
    networks and optimizers are made once, and live settings may have been copied.

    Args:
        cfg: the configuration now.
        made: its values when the policy was made, or as `reset_config` changed them.

    Returns:
        By dotted name the value now, and that with which the policy was made. Settings that no class declares are left out,
        because hooks of users may read them at any time.
    """
    now, found = all_values(cfg), dict[str, tuple[Any, Any]]()
    for name, is_live, _ in settings_of(cfg):
        if name not in made or now[name] == made[name] or name in _READ_LATER or name.startswith(("other.", "eval.")):
            continue
        if (name in _COPIED or is_of_optimizer(frozenset({name}))) if is_live else _is_declared(cfg, name):
            found[name] = now[name], made[name]
    return found


def _is_declared(cfg: Config, name: str) -> bool:
    """Whether a class of the section names a setting, or all, in `fixed_settings`."""
    *way, last = name.split(".")
    for section in way:
        cfg = getattr(cfg, section)
    return any(key in vars(base).get("fixed_settings", {}) for base in type(cfg).__mro__ for key in (last, "*"))


def change_settings(policy: LivePolicy, changes: Mapping[str, Any], must_have_effect: bool = False) -> None:
    """Change the configuration, and let the policy follow. An error undoes everything.

    Args:
        policy: the policy.
        changes: new values by dotted name.
        must_have_effect: whether a change without effect is an error. A saved state may have some.
    """
    if not changes:
        return
    before, attributes = values_of(policy.cfg, changes), dict(vars(policy))
    groups = [dict(group) for group in policy.optimizer.param_groups] if policy.params else []
    policy.cfg.override(changes)
    try:
        policy.settings_changed(frozenset(changes))
        of_optimizer = {name for name in policy.settings_made if is_of_optimizer(frozenset({name}))}
        followed = {*changes, *(of_optimizer if is_of_optimizer(frozenset(changes)) else ())}
        policy.settings_made = {**policy.settings_made, **values_of(policy.cfg, followed)}
        if must_have_effect:
            policy.require_effect(frozenset(changes))
    except BaseException:
        policy.cfg.override(before)
        vars(policy).clear()
        vars(policy).update(attributes)
        if policy.params:
            policy.optimizer.param_groups[:] = groups
        raise


def is_of_optimizer(names: frozenset[str]) -> bool:
    """Whether one of these settings is one of the optimizer."""
    parts = {name.rpartition(".")[2] for name in names}
    return any(part in _OF_OPTIMIZER or part.startswith("learning_rate_") for part in parts)


def restored_settings(cfg: Config, saved: Any, first: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The changes that bring a configuration to a saved state, and the first values of the settings that differ then.

    Args:
        cfg: the configuration.
        saved: the changed settings in the state.
        first: the values that the settings changed here had at first.

    Raises:
        StateDictError: a setting does not fit.
    """
    try:
        if not isinstance(saved, Mapping):
            raise TypeError("it is not a mapping")
        changes = live_changes(cfg, {**first, **saved}, is_restored=True)
        known = {**values_of(cfg, saved), **first}
    except (TypeError, ValueError, LookupError) as error:
        raise StateDictError(f'state["settings"] is {saved!r:.80}, which does not fit: {error}') from None
    return changes, {name: known[name] for name in saved}
