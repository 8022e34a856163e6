"""Declarations: checks of what a policy class defines, and of settings that nothing reads."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import re
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, Protocol

from torch import nn

from ding_lite.basics.attribute_reads import attributes_read
from ding_lite.basics.closures import closure_of
from ding_lite.basics.messages import warn_caller
from ding_lite.policy_check.foreign_methods import ADVICE, HOOKS

_PARTS = {
    "model.attention_window": ("attention_size", "attention_layers", "attention_heads"),
    "learn.replay_proportion": ("replay_slots",),
}
"""Settings that leave out a part of an algorithm if they are None or 0, and the settings of that part."""

_MINIBATCHES = ("epoch_per_collect", "batch_size")

_warned: weakref.WeakSet[type] = weakref.WeakSet()  # classes whose names have been checked


def require_methods(policy: object) -> None:
    """Check that no attribute of a policy hides a method, such as a network `self.actor`.

    Raises:
        TypeError: an attribute has the name of a method.
    """
    for name, value in vars(policy).items():
        if inspect.isfunction(getattr(type(policy), name, None)) and not inspect.isroutine(value):
            raise TypeError(
                f"{type(policy).__name__}.{name} is a method of policies, but self.{name} is set to a {type(value).__name__}: "
                "give the attribute another name."
            )


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
    if policy.has_loss and policy.learns_from == "rollouts" and not policy.has_own_learning:
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
    """Warn of settings of another optimizer, and of settings that a `make_optimizer` of the user's does not read."""
    learn, kind = policy.cfg.learn, type(policy)
    changed = _changed(learn, ("optimizer", "optimizer_eps", "rmsprop_decay", "rmsprop_momentum"))
    if not changed or not policy.params:
        return
    make: Any = kind.make_optimizer  # type: ignore[attr-defined]
    reads_all = any(_reads_setting(make, name) for name in ("configured_optimizer", "make_optimizer"))  # or super()'s
    for name, value in changed.items():
        if not reads_all and not _reads_setting(make, name):
            fix = f"{kind.__name__} makes its own optimizer. Leave it out, or read it there."
        elif name.startswith("rmsprop_") and learn.optimizer != "rmsprop":
            fix = f"the optimizer is {learn.optimizer}. Leave it out, or set learn.optimizer to 'rmsprop'."
        else:
            continue
        warn_caller(f"learn.{name} = {value!r} has no effect: {fix}")


def idle_for_optimizer(kind: Any, names: Iterable[str]) -> list[str]:
    """Those of these settings in the section `learn` that the `make_optimizer` of a policy class does not read."""
    make = kind.make_optimizer
    if any(_reads_setting(make, name) for name in ("configured_optimizer", "make_optimizer", "param_groups")):
        return []
    return [name for name in names if not _reads_setting(make, name)]


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
        if section.normalize_obs and has_none and not _reads_setting(kind.make_model, "normalize_obs"):
            warn_caller(
                f"model.normalize_obs = True has no effect: the model that make_model of {kind.__name__} returns has no "
                "`normalizer`. Pass normalize_obs on to the function that makes the network, or leave the setting out.",
            )
        if not _makes_model_without_settings(kind):
            return
    names = [field.name for field in dataclasses.fields(section)]
    changed = _changed(section, [name for name in names if name != "normalize_obs" or policy.given_model is not None])
    functions = [it for base in kind.__mro__ for name, it in vars(base).items() if name != "make_model"]
    functions += [kind.make_model] if policy.given_model is None else []
    idle = [name for name in changed if not any(_reads_setting(function, name) for function in functions)]
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
    if not inspect.isfunction(make) or make.__module__.partition(".")[0] == "ding_lite" or make.__closure__:
        return False
    if any({"cfg", "config"}.intersection(part.co_names) for part in _parts(make.__code__)):
        return False
    read = attributes_read(make.__code__, next(iter(inspect.signature(make).parameters), ""))
    return read is not None and not any(callable(getattr(kind, name, None)) for name in read)


def _warn_of_minibatch_settings(policy: ConfiguredPolicy) -> None:
    """Warn of settings of minibatches and epochs that differ from the defaults and that no method of the class reads."""
    kind = type(policy)
    learn, default = policy.cfg.learn, type(policy.cfg)().learn
    changed = [name for name in _MINIBATCHES if getattr(learn, name, None) != getattr(default, name, None)]
    idle = unread_settings(kind, changed)
    if idle:
        given = " and ".join(f"learn.{name} = {getattr(learn, name)}" for name in idle)
        have, them = ("have", "them") if len(idle) > 1 else ("has", "it")
        warn_caller(
            f"{given} {have} no effect: {kind.__name__} takes one gradient step on the whole rollout. Leave {them} out; or use "
            "PPOPolicy, which learns in epochs of minibatches (in build_policy, base=PPOPolicy); or override learn_on_batch.",
        )


def unread_settings(kind: type, names: Iterable[str]) -> list[str]:
    """Those of these settings that no method of the class reads."""
    functions = [it for base in kind.__mro__ for name, it in vars(base).items() if name != "default_config"]
    return [name for name in names if not any(_reads_setting(function, name) for function in functions)]


def is_read_by_users(kind: type, name: str) -> bool:
    """Whether a function of the user's, a method of the class or a hook given to it, reads `config["name"]`."""
    functions = [it for base in kind.__mro__ for it in vars(base).values()]
    return any(_reads_config(it, name) for function in functions for it in _with_closures(function))


def idle_for_rollouts(policy: ConfiguredPolicy, names: Iterable[str]) -> list[str]:
    """Those of these settings in the section `learn` that have no effect, because each step learns from a whole rollout."""
    if not policy.has_loss or policy.learns_from != "rollouts" or policy.has_own_learning:
        return []
    return unread_settings(type(policy), [name for name in _MINIBATCHES if name in names])


def require_declarations(policy: object, hooks: Iterable[str], foreign: Mapping[str, str]) -> None:
    """Check `learns_from` and `loss_takes`, and warn, once per class, of names that nothing calls: misspelt hooks, and hooks of
    other libraries.

    Args:
        policy: the policy.
        hooks: names of hooks and of class attributes that a policy may define.
        foreign: hooks of another library that have no counterpart, each with a sentence of advice.

    Raises:
        TypeError: the class replaces an internal method or property by one that is called in another way.
        ValueError: `learns_from` or `loss_takes` has a value that does not exist.
    """
    kind: Any = type(policy)
    for name in ("learns_from", "loss_takes"):
        given = getattr(policy, name)
        if given not in ("rollouts", "transitions"):
            raise ValueError(f'{kind.__name__}.{name} is {given!r:.80}: set it to "rollouts" or "transitions".')
    users = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in ("ding_lite", "builtins")]
    library = [base for base in kind.__mro__ if base not in users]
    known = {name for base in library for name in vars(base)}
    public = [name for name in hooks if not name.startswith("_")]
    for base in users:
        for name, value in vars(base).items():
            owner = next((it for it in library if name in vars(it)), None)
            if owner is not None and name not in public and not name.startswith("__"):
                _require_no_clash(base, name, value, owner)
    for base in (it for it in users if it not in _warned):
        _warned.add(base)
        for name, value in vars(base).items():
            is_method = (
                inspect.isroutine(value) and name == "metrics"
            )  # the one name of the library that is often another thing
            if name in public or (name in known and not is_method):
                continue
            advice = _advice(name, value, public, foreign)
            if not advice or value is None or _is_used_in_module(base, name):
                continue
            if not any(_refers(function, name) for it in users for function in vars(it).values()):
                verb = "call" if callable(value) else "read"
                warn_caller(f"{base.__name__} defines {name!r}, which ding_lite does not {verb}: {advice}")


def _require_no_clash(base: type, name: str, value: Any, owner: type) -> None:
    """Check that a method of a user's class can take the place of the method or property of the same name of `owner`."""
    inner = vars(owner)[name]
    if isinstance(inner, (property, functools.cached_property)) and name != "metrics":
        replaced = "property" if inspect.isfunction(value) else ""
    elif inspect.isfunction(inner) and inspect.isfunction(value):
        replaced = "" if _can_replace(value, inner, name) else "method"
    else:
        replaced = ""
    if replaced:
        raise TypeError(
            f"{base.__name__}.{name} replaces the {replaced} {name} of {owner.__name__}, used internally in another way: "
            "give it another name."
        )


def _can_replace(value: Any, inner: Any, name: str) -> bool:
    """Whether a method can be called as the one that it replaces. `learn` is often another method."""
    own, given = inspect.signature(value), inspect.signature(inner).parameters.values()
    positional = [
        it.name for it in given if it.kind in (it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD) and it.default is it.empty
    ]
    try:
        own.bind(*positional, **{it.name: None for it in given if it.kind is it.KEYWORD_ONLY and it.default is it.empty})
    except TypeError:
        return False
    return name != "learn" or [*own.parameters][: len(positional)] == positional or _reads_setting(value, name)


def _advice(name: str, value: Any, hooks: Sequence[str], foreign: Mapping[str, str]) -> str:
    """What to write instead of a name of another library, or of a public name that is close to a hook; empty if unknown."""
    stem = name.removesuffix("_fn")
    meant = HOOKS.get(name) or HOOKS.get(stem)
    if meant is None and callable(_function_of(value)):
        advice = ADVICE.get(name) or foreign.get(name)
        if advice is not None:
            return advice
    if meant is None and not name.startswith("_"):
        meant = _misspelt(stem, hooks)
    return f"did you mean {meant!r}?" if meant else ""


def _misspelt(name: str, hooks: Sequence[str]) -> str | None:
    """The hook that this name is close to, if there is one."""
    plain = name.replace("_", "").lower()
    same = [hook for hook in hooks if hook.replace("_", "") == plain]
    return next(iter(same or difflib.get_close_matches(name, hooks, n=1, cutoff=0.85)), None)


def _refers(function: Any, name: str) -> bool:
    """Whether the code of another function uses this name, as a helper's callers do."""
    code = getattr(_function_of(function), "__code__", None)
    return code is not None and code.co_name != name and any(name in part.co_names for part in _parts(code))


def _is_used_in_module(kind: type, name: str) -> bool:
    """Whether the file that defines the class reads an attribute of this name, such as a function that a hook calls."""
    try:
        source = inspect.getsource(sys.modules[kind.__module__])
    except (OSError, TypeError, KeyError):  # a notebook
        return False
    return re.search(rf"(\.|getattr\(\w+, [\"']){name}\b", source) is not None


def _reads_setting(function: Any, name: str) -> bool:
    """Whether the code of a function, or of a function in its closure, reads `learn.name` or `config["learn.name"]`."""
    return any(
        name in part.co_names or any(string.rpartition(".")[2] == name for string in _strings(part))
        for it in _with_closures(function)
        for part in _parts(it.__code__)
    )


def _reads_config(function: Any, name: str) -> bool:
    """Whether a function of the user's reads `config["name"]`."""
    is_of_user = (function.__module__ or "").partition(".")[0] != "ding_lite"
    return is_of_user and any("config" in part.co_names and name in _strings(part) for part in _parts(function.__code__))


def _strings(code: CodeType) -> list[str]:
    return [constant for constant in code.co_consts if isinstance(constant, str)]


def _with_closures(function: Any) -> Iterator[Any]:
    """A function, and those in its closure; none for other objects."""
    seen, left = set(), [function]
    while left:
        function = _function_of(left.pop())
        if inspect.isfunction(function) and function not in seen:
            seen.add(function)
            yield function
            left += [value for _, value in closure_of(function)]


def _function_of(member: Any) -> Any:
    """The function of a static or class method, or of the getter of a property; other objects unchanged."""
    return inspect.unwrap(getattr(member, "fget", None) or getattr(member, "__func__", member))


def _parts(code: CodeType) -> Iterator[CodeType]:
    """This code, and the code of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
