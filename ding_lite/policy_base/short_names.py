"""Short names: access to a policy's configuration by the names that RLlib uses, `policy.config["gamma"]`."""

from __future__ import annotations

import copy
import difflib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ding_lite.basics import Config, ConfigError, did_you_mean, near_fields, warn_caller
from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.policy_base.config_sections import OnPolicyConfig, PolicyConfig
from ding_lite.policy_base.rllib_names import MORE_PLACES, PLACES, SCHEDULE_UNIT, SCHEDULES, places_for

_OFF = {
    **dict.fromkeys(("kl_coeff", "entropy_coeff", "vf_loss_coeff"), 0),
    **dict.fromkeys(("num_atoms", "n_step", "policy_delay"), 1),
    "v_min": -10,
    "v_max": 10,
}
"""Values of RLlib's settings that change nothing where an algorithm does not have the setting, beside None and False."""

_FEW_OWNERS = 3
"""Algorithms that advice about a setting of other algorithms names."""


class Settings(Mapping[str, Any]):
    """The type of `policy.config`: the typed configuration by short or dotted names, and additional settings.

    Args:
        cfg: the typed configuration.
        extra: settings that the typed configuration has no fields for, by name.
    """

    def __init__(self, cfg: PolicyConfig, extra: Mapping[str, Any]) -> None:
        self.cfg, self.extra = cfg, dict(extra)

    def __getitem__(self, name: str) -> Any:
        if name in self.extra:
            return self.extra[name]
        for place in places_for(name):
            found = _lookup(self.cfg, place)
            if found:
                return found[0]
        raise KeyError(f"this {type(self.cfg).__name__} has no {name!r}{did_you_mean(name, self)} It has {', '.join(self)}.")

    def __iter__(self) -> Iterator[str]:
        yield from self.extra
        for name, places in PLACES.items():
            if name not in self.extra and any(_lookup(self.cfg, place) for place in places):
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


def resolve(
    cfg: PolicyConfig | Mapping[str, Any] | None,
    default: PolicyConfig | Mapping[str, Any] | None,
    kind: type[PolicyConfig],
    only_reader: str | None = None,
    reads: Callable[[str], bool] = lambda name: False,
) -> Settings:
    """The settings of a policy: its defaults, changed by `cfg`.

    Args:
        cfg: a typed configuration, which replaces the defaults; or a mapping. In a mapping, short names (`lr`), dotted names
            (`learn.learning_rate`) and sections (`{"learn": {"learning_rate": 1e-3}}`) set fields of the typed configuration.
            So does the section `policy` of a run's configuration, as `PPOConfig().to_dict()` returns it; its other settings are
            those of the run. If `kind` is no algorithm's, settings in it that only algorithms have are kept as additional
            settings by their short names, with a warning. Other names are kept as additional settings, with a warning if a name
            looks like a misspelt field, or if no hook can read it. RLlib's names of schedules cause a warning too, because
            their points count something else there.
        default: the defaults, in the same form; None for those of `kind`.
        kind: type of the typed configuration; PolicyConfig stands for OnPolicyConfig.
        only_reader: name of the policy's class if it has no hook of a user, which could read additional settings; otherwise
            None.
        reads: whether a hook reads a setting of this name, which then is the user's own, and causes no warning.

    Raises:
        ConfigError: a dotted name, or a name in a section, does not exist; a name looks like a misspelt field of a
            configuration that a user has defined; or a value is out of range or of the wrong type.
    """
    extra: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    schedules: set[str] = set()
    base = made_kind(kind)()
    for source in (default, cfg):
        if isinstance(source, PolicyConfig):
            base = source
        elif source is not None:
            base = copy.deepcopy(base)
            is_of_run = not reads("policy") and _is_policy_section(source.get("policy"), base)
            for name, value in source.items():
                place = place_of(base, name)
                if name == "policy" and is_of_run:
                    own, of_others = _split(base, value) if type(base) is OnPolicyConfig else (value, {})
                    extra.update({_short(place): it for place, it in of_others.items()})
                    base.override({place_of(base, inner): _section(base, inner, it) for inner, it in own.items()})
                    _warn_of_others({place: it for place, it in of_others.items() if not reads(_short(place))}, base)
                    schedules |= {inner for inner, it in value.items() if inner in SCHEDULES and it is not None}
                elif "." in place or _lookup(base, place):
                    base.override({place: _section(base, name, value)})
                    schedules |= {name} if name in SCHEDULES and value is not None else set()
                else:
                    if not (name in extra or reads(name) or (is_of_run and _may_be_of_run(name, base))):
                        unknown[name] = value
                    extra[name] = value
    _refuse_slips(unknown, base)
    _warn_of_schedules(sorted(schedules), base)
    if only_reader is None:
        _warn_of_slips(unknown, base)
    else:
        _warn_of_unread(unknown, base, only_reader)
    return Settings(base, extra)


def _may_be_of_run(name: str, cfg: PolicyConfig) -> bool:
    """Whether a name beside the section `policy` may be a setting of the run, of which a policy knows only `env`."""
    return name == "env" or not (_foreign_hint(name, cfg, "foreign") or _owners_hint(name) or _slip_hint(name, cfg))


def _section(cfg: PolicyConfig, section: str, values: Any) -> Any:
    """The values of a section with the names of its fields for short names, such as those in RLlib's dict of the model."""
    if not isinstance(values, Mapping):
        return values
    return {_field_of(cfg, section, name): value for name, value in values.items()}


def _split(cfg: PolicyConfig, sections: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a policy without those that only other algorithms have; and those, by dotted name."""
    own: dict[str, Any] = {}
    of_others: dict[str, Any] = {}
    for section, values in sections.items():
        if not isinstance(values, Mapping):
            place = place_of(cfg, _short(section))  # off-policy algorithms have discount_factor at another place
            if _lookup(cfg, place):
                own[place] = values
            else:
                (of_others if _owners_of(section) else own)[section] = values
            continue
        kept = dict(values)
        for name in values:
            place = f"{section}.{_field_of(cfg, section, name)}"
            if not _lookup(cfg, place) and _owners_of(place):
                of_others[place] = kept.pop(name)
        if kept or (not values and _lookup(cfg, section)):
            own[section] = kept
    return own, of_others


def _short(place: str) -> str:
    """RLlib's name of a setting, or its own without the section."""
    names = (name for name, places in {**PLACES, **MORE_PLACES}.items() if place in places)
    return next(names, place.rpartition(".")[2])


def _warn_of_others(settings: Mapping[str, Any], cfg: Config) -> None:
    """Warn of settings that only other algorithms have, except for the defaults of these."""
    names = [name for name, value in settings.items() if not any(_is_equal(value, usual) for (usual,) in _usual(name))]
    if names:
        warn_caller(
            f"{type(cfg).__name__} has no settings {_listed(names)}, which other algorithms have. They are kept in "
            f"policy.config, as {_listed(map(_short, names))}, and have an effect only where a hook reads them. To change "
            "hooks of an algorithm, derive from its policy, as in PPOPolicy.with_updates(...)."
        )


def _is_equal(value: Any, usual: Any) -> bool:
    return type(value) is type(usual) and bool(value == usual)


@functools.cache
def _usual(place: str) -> list[list[Any]]:
    """The defaults of this setting in the algorithms of the library, each in a list."""
    return [found for kind in _kinds() if (found := _lookup(kind(), place))]


def _kinds() -> list[type[PolicyConfig]]:
    """The configurations of the library's policies."""
    kinds: list[type[PolicyConfig]] = [PolicyConfig]
    for kind in kinds:  # grows
        kinds += kind.__subclasses__()
    return [kind for kind in kinds if kind.__module__.startswith("ding_lite.policy.")]


def _field_of(cfg: PolicyConfig, section: str, name: str) -> str:
    place = place_of(cfg, name)
    is_short = not _lookup(cfg, f"{section}.{name}") and place.startswith(f"{section}.")
    return place.removeprefix(f"{section}.") if is_short else name


def _is_policy_section(section: Any, cfg: PolicyConfig) -> bool:
    """Whether a setting `policy` is the section of a run's configuration, and not a setting of a user's own."""
    if not isinstance(section, Mapping):
        return False
    known = [_lookup(cfg, place_of(cfg, str(name))) for name in section]
    sections = [value for found, value in zip(known, section.values(), strict=True) if found and isinstance(found[0], Config)]
    return any(known) and all(isinstance(value, (Mapping, Config)) for value in sections)


def made_kind(kind: type[PolicyConfig]) -> type[PolicyConfig]:
    """The type of the configuration that a policy makes of a mapping: PolicyConfig stands for OnPolicyConfig."""
    return OnPolicyConfig if kind is PolicyConfig else kind


def place_of(cfg: Config, name: str) -> str:
    """The dotted name in this configuration for which a short name stands; other names unchanged."""
    return next((place for place in places_for(name) if _lookup(cfg, place)), name)


def _refuse_slips(names: Iterable[str], cfg: Config) -> None:
    """Raise ConfigError for a name that looks like a field, if a user has defined the configuration with all its settings."""
    for name in names if not is_of_ding_lite(type(cfg).__module__) else ():
        if not _foreign_hint(name, cfg, "foreign") and (hint := _slip_hint(name, cfg)):
            raise ConfigError(f"{type(cfg).__name__} has no setting {name!r}: {hint}")


def _warn_of_schedules(names: Sequence[str], cfg: Config) -> None:
    """Warn of schedules by names of RLlib, in one warning for all."""
    if names:
        warn_caller(
            f"{_listed(names)}: {SCHEDULE_UNIT} Give {' and '.join(repr(place_of(cfg, name)) for name in names)} "
            "instead, with gradient steps, to get no warning."
        )


def _warn_of_slips(names: Iterable[str], cfg: Config) -> None:
    """Warn of each name that looks like a field of the typed configuration, such as `gama`, or is a name in another library."""
    for name in names:
        if hint := _foreign_hint(name, cfg, "foreign") or _slip_hint(name, cfg):
            warn_caller(
                f"{type(cfg).__name__} has no setting {name!r}: {hint} It is kept as policy.config[{name!r}], for hooks that "
                "read it.",
            )


def _warn_of_unread(settings: Mapping[str, Any], cfg: Config, reader: str) -> None:
    """Warn of settings that nothing reads, in one warning for all.

    A whole configuration of RLlib has settings that are off, such as `num_atoms` = 1. Those that only other algorithms have
    cause no warning then.
    """
    unread = [name for name, value in settings.items() if not _is_off(name, value) or _foreign_hint(name, cfg, "foreign")]
    hints = {name: _advice(name, cfg) for name in unread}
    if not hints:
        return
    kind = type(cfg).__name__
    shown = sorted(hints, key=lambda name: not hints[name])
    if len(hints) == 1:
        found = f"{kind} has no setting {shown[0]!r}{f': {hints[shown[0]]}' if hints[shown[0]] else '.'} It is kept as"
        found += f" policy.config[{shown[0]!r}], but {reader} does not read it."
    else:
        found = f"{kind} has no settings {_listed(shown)}. They are kept in policy.config, but {reader} reads none of them. "
        by_hint: dict[str, list[str]] = {}
        for name in shown:
            by_hint.setdefault(hints[name], []).append(name)
        found += " ".join(f"{_listed(names)}: {hint}" for hint, names in by_hint.items() if hint)
    warn_caller(f"{found.rstrip()} {kind}().to_dict() has all settings.")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _foreign_hint(name: str, cfg: Config, *tables: str) -> str:
    """Advice about a name in another library, unless it is the name of a field in a section; an empty string if unknown."""
    sections = _sections(cfg)
    if any(place and hasattr(section, name) for place, section in sections.items()):
        return ""
    return next((hint for section in sections.values() if (hint := type(section).about(name, *tables)) is not None), "")


def _advice(name: str, cfg: Config) -> str:
    """Advice about a setting that nothing reads; an empty string if there is none."""
    found = _foreign_hint(name, cfg, "foreign") or _owners_hint(name) or _foreign_hint(name, cfg)
    return found or _slip_hint(name, cfg) or _near_hint(name, cfg)


def _is_off(name: str, value: Any) -> bool:
    """Whether a name of RLlib has a value that changes nothing."""
    is_off = value is None or value is False or (isinstance(value, (int, float)) and value == _OFF.get(name))
    return is_off and places_for(name) != (name,)


def _owners_hint(name: str) -> str:
    """The algorithms that have the setting for which a name of RLlib stands; an empty string for other names."""
    return "" if places_for(name) == (name,) else next((hint for it in places_for(name) if (hint := _owners_of(it))), "")


@functools.cache
def _owners_of(place: str) -> str:
    """The policies of the library that have this setting, as a sentence; an empty string if there are none."""
    owners = sorted({kind.__name__.removesuffix("Config") for kind in _kinds() if _lookup(kind(), place)})
    if not owners:
        return ""
    shown = [*owners[:_FEW_OWNERS], *(["others"] if len(owners) > _FEW_OWNERS else [])]
    have = "have" if len(shown) > 1 else "has"
    return f"{' and '.join(part for part in (', '.join(shown[:-1]), shown[-1]) if part)} {have} it, as {place}."


def _slip_hint(name: str, cfg: Config) -> str:
    """A question about the field or short name that looks like this name; an empty string if there is none."""
    plain = name.lower()
    near = {place.rpartition(".")[2]: place for section in ("collect", "model", "learn") for place in _values(cfg, section)}
    near |= {field: field for field, value in vars(cfg).items() if not isinstance(value, Config)}
    near |= {short: short for short in (*PLACES, *MORE_PLACES) if any(_lookup(cfg, place) for place in places_for(short))}
    if plain.rstrip("0123456789_") in near and plain not in near:
        return ""  # a numbered variant, such as gamma2
    cutoff = 0.8 if len(plain) <= 4 else 0.85  # one letter too many or too few in a short name, such as lrr
    meant = difflib.get_close_matches(plain, near, n=1, cutoff=cutoff)
    return f"did you mean {near[meant[0]]!r}?" if meant else ""


def _near_hint(name: str, cfg: Config) -> str:
    """A question about the field that has a similar word, such as target_noise_clip; an empty string if there is none."""
    places = {
        field: f"{place}.{field}".lstrip(".")
        for place, section in _sections(cfg).items()
        for field in near_fields(type(section), name)
    }
    meant = difflib.get_close_matches(name, sorted(places), n=1)
    return f"did you mean {places[meant[0]]!r}?" if meant else ""


def _sections(cfg: Config) -> dict[str, Config]:
    """The configuration itself, by an empty name, and its sections whose fields short names stand for."""
    return {"": cfg, **{place: found[0] for place in ("learn", "model", "collect") if (found := _lookup(cfg, place))}}


def _values(cfg: Config, section: str) -> Iterator[str]:
    """The dotted names of the fields in one section."""
    found = _lookup(cfg, section)
    if found and isinstance(found[0], Config):
        yield from (f"{section}.{name}" for name in vars(found[0]))


def _lookup(cfg: Config, place: str) -> list[Any]:
    """A list with the value at a dotted name; an empty list if there is none."""
    value: Any = cfg
    for name in place.split("."):
        if not isinstance(value, Config) or not hasattr(value, name):
            return []
        value = getattr(value, name)
    return [value]
