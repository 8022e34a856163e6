"""Idle settings: those that nothing reads, and that have no effect on a policy."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, Protocol

from torch import nn

from ding_lite.basics.attribute_reads import attributes_read
from ding_lite.basics.closures import names_in, parts_of
from ding_lite.basics.computed_reads import reads_computed_names
from ding_lite.basics.messages import warn_caller
from ding_lite.basics.optional_attributes import attribute_behind, attribute_of
from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.basics.reached_functions import named_values, reached_functions, reached_getters
from ding_lite.basics.signatures import signature_of
from ding_lite.policy_check.script_reads import settings_read_by_script

_PARTS = {
    "model.attention_window": ("attention_size", "attention_layers", "attention_heads"),
    "learn.replay_proportion": ("replay_slots",),
}
"""Settings that leave out a part of an algorithm if they are None or 0, and the settings of that part."""

_MINIBATCHES = ("epoch_per_collect", "batch_size")


class ConfiguredPolicy(Protocol):
    """The interface that `warn_of_idle_settings` needs from a policy."""

    @property
    def cfg(self) -> Any:
        """The typed configuration."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration by short names."""

    @property
    def learns_from(self) -> str:
        """The batch of `learn_on_batch`: "rollouts" or "transitions"."""

    @property
    def has_loss(self) -> bool:
        """Whether `loss` is overridden."""

    @property
    def has_own_learning(self) -> bool:
        """Whether `learn_on_batch` is overridden."""

    def has_hooks_of_users(self) -> bool:
        """Whether its class is defined outside of the library."""

    @property
    def model(self) -> Any:
        """The networks."""

    @property
    def given_model(self) -> str | None:
        """The class of the model that was given to the constructor; None if the policy has made it."""

    @property
    def params(self) -> Sequence[nn.Parameter]:
        """The parameters that learn."""

    @property
    def has_own_weights(self) -> bool:
        """Whether `get_weights` is overridden."""


def warn_of_idle_settings(policy: ConfiguredPolicy) -> None:
    """Warn if settings have no effect on this class, or if nothing that it learns reaches the acting copies."""
    kind: Any = type(policy)
    _warn_of_minibatch_settings(policy)
    if policy.config.get("lr_schedule") is not None and not hasattr(policy, "lr_schedule"):
        warn_caller(
            f"learn.lr_schedule has no effect on a {kind.__name__}: derive a class with it, "
            f"{kind.__name__}.with_updates(mixins=[LearningRateSchedule]).",
        )
    if policy.cfg.learn.compile != "off" and not (policy.has_loss and policy.params):
        warn_caller(
            f'learn.compile = "{policy.cfg.learn.compile}" has no effect: {kind.__name__} has no loss, and compiled steps are '
            "those of gradient_step. Override loss instead of learn_on_batch, or leave the setting out.",
        )
    _warn_of_optimizer_settings(policy)
    _warn_of_parts(policy)
    _warn_of_model_settings(policy)
    if not policy.params and policy.has_own_learning and not policy.has_own_weights:
        warn_caller(
            f"{kind.__name__} learns, but has neither networks nor get_weights and set_weights: define these. Otherwise the "
            "copies that collect and evaluate do not see what it learns, or see partly updated arrays.",
        )


def _changed(section: object, names: Iterable[str]) -> dict[str, Any]:
    """Those of these settings that differ from the defaults of their class."""
    fields = {it.name: it for it in dataclasses.fields(section)} if dataclasses.is_dataclass(section) else {}
    changed = {}
    for name in (it for it in names if it in fields):
        make = fields[name].default_factory
        default = fields[name].default if make is dataclasses.MISSING else make()
        if getattr(section, name) != default:
            changed[name] = getattr(section, name)
    return changed


def _warn_of_optimizer_settings(policy: ConfiguredPolicy) -> None:
    """Warn of settings of another optimizer, and of settings that the user's own `make_optimizer` does not read."""
    learn, kind = policy.cfg.learn, type(policy)
    changed = _changed(learn, ("optimizer", "optimizer_eps", "rmsprop_decay", "rmsprop_momentum"))
    if not changed or not policy.params:
        return
    make: Any = kind.make_optimizer  # type: ignore[attr-defined]
    reads_all = any(reads_setting(make, name, policy) for name in ("configured_optimizer", "make_optimizer"))  # or super()'s
    for name, value in changed.items():
        if not reads_all and not may_read_setting(make, name, policy):
            fix = f"{kind.__name__} makes its own optimizer. Leave it out, or read it there."
        elif name.startswith("rmsprop_") and learn.optimizer != "rmsprop":
            fix = f"the optimizer is {learn.optimizer}. Leave it out, or set learn.optimizer to 'rmsprop'."
        else:
            continue
        warn_caller(f"learn.{name} = {value!r} has no effect: {fix}")


def idle_for_optimizer(policy: Any, names: Iterable[str]) -> list[str]:
    """Those of these settings in the section `learn` that the `make_optimizer` of a policy does not read."""
    make = type(policy).make_optimizer
    if any(reads_setting(make, name, policy) for name in ("configured_optimizer", "make_optimizer", "param_groups")):
        return []
    return [name for name in names if not may_read_setting(make, name, policy)]


def _warn_of_parts(policy: ConfiguredPolicy) -> None:
    """Warn of settings of a part that another setting leaves out."""
    for name, names in _PARTS.items():
        section_name, setting = name.split(".")
        section = getattr(policy.cfg, section_name)
        if getattr(section, setting, True):
            continue
        for idle, value in _changed(section, names).items():
            warn_caller(f"{section_name}.{idle} = {value!r} has no effect without {name}: leave it out, or set {name}.")


def _warn_of_model_settings(policy: ConfiguredPolicy) -> None:
    """Warn of settings of networks that only `make_model` reads, if the model was given; and of a missing normalizer."""
    kind: Any = type(policy)
    section = policy.cfg.model
    if policy.given_model is None:
        has_none = policy.params and getattr(policy.model, "normalizer", None) is None
        if section.normalize_obs and has_none and not may_read_setting(kind.make_model, "normalize_obs", policy):
            warn_caller(
                f"model.normalize_obs = True has no effect: the model that make_model of {kind.__name__} returns has no "
                "`normalizer`. Pass normalize_obs on to the function that makes the network, or leave the setting out.",
            )
        if not _makes_model_without_settings(kind):
            return
    names = [field.name for field in dataclasses.fields(section)]
    is_lost = policy.given_model is not None and getattr(section, "normalize_obs", False)
    if is_lost and not _changed(section, ["normalize_obs"]) and getattr(policy.model, "normalizer", None) is None:
        warn_caller(
            f"model.normalize_obs = True, the default of {kind.__name__}, has no effect: the network given as model= has no "
            "`normalizer`. Normalise in it, self.normalizer = ding_lite.nn.make_normalizer(observation_space), or set "
            "model.normalize_obs = False.",
        )
    changed = _changed(section, [name for name in names if name != "normalize_obs" or is_lost])
    functions = [it for base in kind.__mro__ for name, it in vars(base).items() if name != "make_model"]
    functions += [kind.make_model] if policy.given_model is None else []
    idle = [name for name in changed if not any(may_read_setting(function, name, policy) for function in functions)]
    if idle and policy.given_model is not None:  # the script may have made the network of them
        read = settings_read_by_script(policy, "model", idle)
        idle = [name for name in idle if name not in read]
    if idle:
        given = " and ".join(f"model.{name} = {changed[name]!r}" for name in idle)
        have, them = ("have", "them") if len(idle) > 1 else ("has", "it")
        why = f"this {kind.__name__} was made with model=, a network of your own. Leave {them} out."
        if policy.given_model is None:
            why = f"make_model of {kind.__name__} reads no settings. Leave {them} out, or read self.cfg.model there."
        warn_caller(f"{given} {have} no effect: {why}")


def _makes_model_without_settings(kind: Any) -> bool:
    """Whether a `make_model` of a user's cannot read the configuration: it only reads other attributes of the policy."""
    make = kind.make_model
    if not inspect.isfunction(make) or is_of_ding_lite(make.__module__) or make.__closure__:
        return False
    if not names_in(make.__code__).isdisjoint({"cfg", "config"}):
        return False
    read = attributes_read(make.__code__, next(iter(signature_of(make).parameters), ""))
    return read is not None and not any(callable(getattr(kind, name, None)) for name in read)


def _warn_of_minibatch_settings(policy: ConfiguredPolicy) -> None:
    """Warn of settings of minibatches and epochs that differ from the defaults and that no method of the class reads."""
    idle = _idle_minibatch_settings(policy)
    if policy.has_hooks_of_users():  # it may learn from a dataset, in batches of this size; see `idle_batch_size`
        idle = [name for name in idle if name != "batch_size"]
    if idle:
        warn_caller(_about_minibatches(policy, idle))


def _idle_minibatch_settings(policy: ConfiguredPolicy) -> list[str]:
    learn, default = policy.cfg.learn, type(policy.cfg)().learn
    changed = [name for name in _MINIBATCHES if getattr(learn, name, None) != getattr(default, name, None)]
    return idle_for_rollouts(policy, changed)


def _about_minibatches(policy: ConfiguredPolicy, idle: Sequence[str]) -> str:
    given = " and ".join(f"learn.{name} = {getattr(policy.cfg.learn, name)}" for name in idle)
    have, them = ("have", "them") if len(idle) > 1 else ("has", "it")
    return (
        f"{given} {have} no effect: {type(policy).__name__} takes one gradient step on the whole rollout. Leave {them} out; or "
        "use PPOPolicy, which learns in epochs of minibatches (in build_policy, base=PPOPolicy); or override learn_on_batch."
    )


def idle_batch_size(policy: ConfiguredPolicy, middleware: Sequence[Any]) -> str | None:
    """A message, before a run, if the batch size of a user's policy differs from its default and nothing reads it: neither the
    policy nor a middleware, such as offline_data_fetcher.

    Args:
        policy: the policy that learns.
        middleware: the middleware of the run. Those of the library that read the batch size have `reads_batch_size`.
    """
    if not policy.has_hooks_of_users() or "batch_size" not in _idle_minibatch_settings(policy):
        return None
    for fn in middleware:
        if attribute_behind(fn, "reads_batch_size", False):
            return None
        fn = attribute_of(fn, "func", fn)  # of a partial
        code = fn if isinstance(fn, FunctionType) else type(attribute_of(fn, "__self__", fn))
        if not is_of_ding_lite(code.__module__) and may_read_setting(code, "batch_size"):
            return None
    return _about_minibatches(policy, ["batch_size"])


def is_read_by_users(kind: type, name: str) -> bool:
    """Whether a user's function, a method of the class or a hook given to it, reads `config["name"]`, itself or by others."""
    functions = [it for base in kind.__mro__ for it in vars(base).values()]
    return any(_reads_config(function, name, kind) for function in functions)


def idle_for_rollouts(policy: ConfiguredPolicy, names: Iterable[str]) -> list[str]:
    """Those of these settings in the section `learn` that have no effect, because each step learns from a whole rollout."""
    if not policy.has_loss or policy.learns_from != "rollouts" or policy.has_own_learning:
        return []
    functions = [it for base in type(policy).__mro__ for name, it in vars(base).items() if name != "default_config"]
    asked = [name for name in _MINIBATCHES if name in names]
    return [name for name in asked if not any(may_read_setting(function, name, policy) for function in functions)]


def reads_setting(function: Any, name: str, owner: Any = None) -> bool:
    """Whether the code of a function, or of one that it may call, reads `learn.name` or `config["learn.name"]`.

    Args:
        function: a function, or another attribute of a class.
        name: name of the setting in its section.
        owner: the policy whose attribute it is, or its class.
    """
    places = [string for getter in reached_getters(function, owner) for string in getter.__reduce__()[1]]
    if any(isinstance(place, str) and name in place.split(".") for place in places):
        return True
    return any(
        name in names_in(it.__code__) or any(string.rpartition(".")[2] == name for string in _strings(it, owner))
        for it in reached_functions(function, owner)
    )


def may_read_setting(function: Any, name: str, owner: Any = None) -> bool:
    """Whether `reads_setting`, or a user's function among them computes the names of what it reads."""
    if reads_setting(function, name, owner):
        return True
    users = (it for it in reached_functions(function, owner) if not is_of_ding_lite(it.__module__))
    return any(reads_computed_names(it) for it in users)


def _reads_config(function: Any, name: str, owner: type) -> bool:
    """Whether the user's functions, among this one and those that it may call, have `config`, and the name as a string."""
    of_user = [it for it in reached_functions(function, owner) if not is_of_ding_lite(it.__module__)]
    return any("config" in names_in(it.__code__) for it in of_user) and any(name in _strings(it, owner) for it in of_user)


def _strings(function: FunctionType, owner: Any) -> set[str]:
    """The strings in the code of a function; and, in a user's function, those that it names, also in lists and dicts."""
    found = [it for part in parts_of(function.__code__) for it in part.co_consts]
    named = [] if is_of_ding_lite(function.__module__) else list(named_values(function, owner))
    inside = [it for one in (*found, *named) if isinstance(one, (list, tuple, dict)) for it in one]
    inside += [it for one in named if isinstance(one, dict) for it in one.values()]
    return {it for it in (*found, *named, *inside) if isinstance(it, str)}
