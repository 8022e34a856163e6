"""Short names: a policy's configuration by the short names of the field, `policy.config["gamma"]`."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from ding_lite.basics import Config, did_you_mean
from ding_lite.policy_base.configs import OnPolicyConfig, PolicyConfig

_PLACES = {
    "gamma": ("collect.discount_factor", "discount_factor"),
    "lambda": ("collect.gae_lambda",),
    "lr": ("learn.learning_rate",),
    "lr_schedule": ("learn.lr_schedule",),
    "entropy_coeff": ("learn.entropy_weight",),
    "entropy_coeff_schedule": ("learn.entropy_schedule",),
    "vf_loss_coeff": ("learn.value_weight",),
    "grad_clip": ("learn.grad_clip_norm",),
    "kl_coeff": ("learn.kl_coeff",),
    "kl_target": ("learn.kl_target",),
    "clip_param": ("learn.clip_ratio",),
}
"""Where the typed configuration has what RLlib calls so; the first place that it has counts."""


class Settings(Mapping[str, Any]):
    """What `policy.config` is: the typed configuration by short or dotted names, and what came beside it.

    Args:
        cfg: the typed configuration.
        extra: settings by names that it does not know.
    """

    def __init__(self, cfg: PolicyConfig, extra: Mapping[str, Any]) -> None:
        self.cfg, self.extra = cfg, dict(extra)

    def __getitem__(self, name: str) -> Any:
        if name in self.extra:
            return self.extra[name]
        for place in _PLACES.get(name, (name,)):
            found = _lookup(self.cfg, place)
            if found:
                return found[0]
        raise KeyError(f"this {type(self.cfg).__name__} has no {name!r}{did_you_mean(name, self)} It has {', '.join(self)}.")

    def __iter__(self) -> Iterator[str]:
        yield from self.extra
        for name, places in _PLACES.items():
            if name not in self.extra and any(_lookup(self.cfg, place) for place in places):
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


def resolve(
    cfg: PolicyConfig | Mapping[str, Any] | None, default: PolicyConfig | Mapping[str, Any] | None, kind: type[PolicyConfig]
) -> Settings:
    """The settings of a policy: what it was given, over its defaults.

    Args:
        cfg: a typed configuration is taken as it is; of a mapping, short names (`lr`) and dotted ones
            (`learn.learning_rate`) set the typed configuration, the rest stands beside it, with a warning where such a
            name is nearly one of those.
        default: likewise; None for none.
        kind: of the typed configuration, where nothing says; OnPolicyConfig in place of the base of all.

    Raises:
        ConfigError: a dotted name that there is not, or a value that does not fit.
    """
    extra: dict[str, Any] = {}
    base = OnPolicyConfig() if kind is PolicyConfig else kind()
    for source in (default, cfg):
        if isinstance(source, PolicyConfig):
            base = source
        elif source is not None:
            base = type(base).from_dict(base.to_dict())
            for name, value in source.items():
                place = next((place for place in _PLACES.get(name, (name,)) if _lookup(base, place)), None)
                if place is None and "." not in name:
                    if source is cfg and name not in extra:
                        _warn_of_slip(name, base)
                    extra[name] = value
                else:
                    base.override({place or name: value})
    return Settings(base, extra)


def _warn_of_slip(name: str, cfg: Config) -> None:
    """Say so where a name is nearly one that the typed configuration has, such as `gama` or `learning_rate`, or one that other
    libraries have."""
    kept = f"It is kept as policy.config[{name!r}], for hooks that read it."
    sections = {
        place: found[0] for place in ("", "learn", "model", "collect") if (found := _lookup(cfg, place) if place else [cfg])
    }
    has = [f"{place}.{name}" for place, section in sections.items() if place and hasattr(section, name)]
    hint = next((hint for section in sections.values() if (hint := type(section).about(name)) is not None), None)
    if hint is not None and not has:
        warnings.warn(f"the setting {name!r} is none of this {type(cfg).__name__}'s: {hint} {kept}", stacklevel=4)
        return
    near = {place.rpartition(".")[2]: place for section in ("collect", "learn") for place in _values(cfg, section)}
    near |= {short: short for short, places in _PLACES.items() if any(_lookup(cfg, place) for place in places)}
    if name.rstrip("0123456789_") in near and name not in near:
        return  # a second one, such as gamma2
    meant = difflib.get_close_matches(name, near, n=1, cutoff=0.85)
    if meant:
        warnings.warn(
            f"the setting {name!r} is none of this {type(cfg).__name__}'s: did you mean {near[meant[0]]!r}? {kept}",
            stacklevel=4,
        )


def _values(cfg: Config, section: str) -> Iterator[str]:
    """The dotted names of the values in one section."""
    found = _lookup(cfg, section)
    if found and isinstance(found[0], Config):
        yield from (f"{section}.{name}" for name in vars(found[0]))


def _lookup(cfg: Config, place: str) -> list[Any]:
    """The value at a dotted name, in a list; an empty one where there is none."""
    value: Any = cfg
    for name in place.split("."):
        if not isinstance(value, Config) or not hasattr(value, name):
            return []
        value = getattr(value, name)
    return [value]
