"""Loading a policy's state: the whole state is checked first, then loaded completely or not at all."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.basics import Config, add_note
from ding_lite.basics.messages import describe_error
from ding_lite.basics.origins import is_of_ding_lite
from ding_lite.metrics import MetricsLogger
from ding_lite.policy_state.identities import StateDictError, differing_settings, is_of_given_model, require_alike, settings_in
from ding_lite.policy_state.leaves import (
    describe,
    entry_names,
    ranges_of,
    require_count,
    require_like,
    require_range,
    require_tensor,
)
from ding_lite.policy_state.network_copies import detached_copy, is_extra_state
from ding_lite.policy_state.optimizer_states import regrouped, require_optimizer_state, with_group_settings

_NEEDED = ("train_iter", "version", "learn")
_OF_OPTIMIZER = (
    "learn.learning_rate",
    "learn.lr_schedule",
    "learn.optimizer",
    "learn.rmsprop",
)  # parts of the names of settings
_MAY_DIFFER = tuple(f"cfg.policy.{name}" for name in ("model.", "eval.", "learners.", "learn.compile", "device"))
"""Beginnings of the names of settings that may differ from those of a saved state; networks are compared apart."""


class LoadableMode(Protocol):
    """The interface that loading needs from `collect_mode` and `eval_mode`."""

    @property
    def role(self) -> str:
        """The key of the mode's state in the policy's state."""

    def worker_states(self, state: Mapping[str, Any], /) -> list[Any]:
        """The states of the random generators of each worker in a saved state of the mode."""


class LoadablePolicy(Protocol):
    """The interface that loading needs from a policy."""

    being_loaded: Mapping[str, Any] | None
    """The state that is being loaded at the moment; None if there is none."""

    @property
    def cfg(self) -> Config:
        """The configuration."""

    @property
    def version(self) -> int:
        """Version of the weights."""

    def count_changes(self) -> int:
        """The number of changes of the parameters in place."""

    def bump_version(self) -> None:
        """Increase the version, because the weights have changed."""

    def restore_settings(self, state: Mapping[str, Any], /) -> Callable[[], None]:
        """Set the settings that were changed when a state was saved. Returns a function that undoes this."""

    def update_copies(self) -> None:
        """Copy the weights to the acting copies."""

    def take_from_learners(self, is_replaced: bool = False) -> None:
        """Take the state of the learners in other processes."""

    def note_change(self) -> None:
        """Note, for the learners in other processes, that the policy has changed."""

    @property
    def made_with(self) -> Mapping[str, Any]:
        """The result of `identity_of`."""

    @property
    def model(self) -> Any:
        """The networks."""

    @property
    def params(self) -> Sequence[nn.Parameter]:
        """The model's parameters; if empty, there is no optimizer."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of `params`."""

    def optimizer_settings(self) -> list[dict[str, Any]]:
        """The settings of each parameter group as the configuration gives them."""

    @property
    def has_own_weights(self) -> bool:
        """Whether `get_weights` is overridden, so that the weights are not those of the model."""

    @property
    def saved_networks(self) -> tuple[str, ...]:
        """Attributes that `state_dict` saves under their own names."""

    @property
    def state_settings(self) -> Mapping[str, Sequence[str]]:
        """By name of an entry of the state, the settings that give it its first value."""

    @property
    def attachments(self) -> Mapping[str, Any]:
        """The attached objects by name."""

    @property
    def collect_mode(self) -> LoadableMode:
        """The mode that explores."""

    @property
    def eval_mode(self) -> LoadableMode:
        """The mode that acts without exploration."""

    def state_dict(self) -> dict[str, Any]:
        """The whole state."""

    def require_generator_state(self, where: str, state: Any, /) -> None:
        """Raise StateDictError if the states of random generators do not fit."""


def all_or_nothing(fn: Callable[..., None]) -> Callable[..., None]:
    """Decorate `load_state_dict` of a policy: check the whole state first, and undo all changes if loading fails.

    If the state holds only weights, entries of a class of the script that it lacks keep their current values: see
    `_with_own_entries`.
    """

    @functools.wraps(fn)
    def load_state_dict(self: LoadablePolicy, state: Mapping[str, Any]) -> None:
        if self.being_loaded is not None:  # called by super(); the subclass's method has checked the state
            fn(self, state)
            return
        require_state(f"{type(self).__name__}.load_state_dict", state)
        self.take_from_learners(is_replaced="optimizer" in state)
        undo = self.restore_settings(state)
        given, self.being_loaded = state, state
        if self.params and "optimizer" in state:
            state = {**state, "optimizer": regrouped(state["optimizer"], self.optimizer, self.params)}
        try:
            before = detached_copy(self.state_dict())  # a state_dict of a subclass may add tensors without a copy
            if "optimizer" not in state:
                before.pop("optimizer", None)  # a state_dict of a subclass may leave it out
                state = _with_own_entries(self, before, state)
            require_loadable(self, state, before)
            kept = entries_of_other_settings(self, state.get("made_with"))
            state = with_own_values(state, before, kept)
            others = list(dict.fromkeys(it for name in kept if name.partition("/")[0] in state for it in kept[name]))
            if "optimizer" in state and self.params:
                followed, found = _followed(self, state, state["optimizer"] is not given["optimizer"])
                state, others = {**state, "optimizer": followed}, [*found, *others]
            if "optimizer" in state:
                others = list(dict.fromkeys([*others, *_other_settings(self, state.get("made_with"))]))
            if others:
                warnings.warn(
                    f"this {type(self).__name__} goes on with the settings of its own configuration, which differ from those "
                    f"of the loaded state: {'; '.join(others)}. To go on as before, set the former values.",
                    stacklevel=2,
                )
            version, changes = self.version, self.count_changes()
            _load_or_undo(self, fn, state, before)
            has_version = self.version != version or state.get("version") == version
            if not has_version and self.count_changes() != changes:  # a load_state_dict of a subclass may only call torch's
                self.bump_version()
            self.update_copies()
            self.note_change()
        except BaseException:
            undo()
            raise
        finally:
            self.being_loaded = None

    return load_state_dict


def _with_own_entries(policy: LoadablePolicy, before: Mapping[str, Any], state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state of only weights, such as `best.pt`, with the current values of the entries that a class of the script adds.

    Its `load_state_dict` may read them, as it may of a state of its own `state_dict`. The library's classes do without theirs.
    """
    kinds = [base for base in type(policy).__mro__ if "state_dict" in vars(base)]
    ours: Any = next(base for base in kinds if is_of_ding_lite(base.__module__))
    if kinds[0] is ours:
        return state
    known = ours.state_dict(policy)
    return {**{name: part for name, part in before.items() if name not in known}, **state}


def _load_or_undo(policy: LoadablePolicy, fn: Callable[..., None], state: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    attributes, kind = dict(vars(policy)), type(policy).__name__
    try:
        fn(policy, state)
    except Exception as error:
        try:
            fn(policy, before)
            add_note(error, f"{kind}.load_state_dict: nothing was changed.")
        except Exception as again:  # noqa: BLE001  the first error is the one to report
            add_note(error, f"{kind}.load_state_dict: changes cannot be undone: {again!r}.")
        if isinstance(error, KeyError) and "optimizer" not in state:
            add_note(
                error,
                "The state holds only weights, as best.pt does. Read other entries with state.get(name), or load it with "
                'policy.set_weights(state["model"]).',
            )
        vars(policy).clear()
        vars(policy).update(attributes)
        if isinstance(error, RuntimeError) and "loading state_dict" in str(error):  # torch's error about names that do not fit
            raise StateDictError(f"a part of this state does not fit this {kind}: {error}") from error
        raise


def require_state(call: str, given: object) -> None:
    """Check that an object looks like the state of one policy.

    Args:
        call: name of the caller, for messages.
        given: the object.

    Raises:
        TypeError: it is not a mapping, for example a path.
        StateDictError: it has the states of several policies, or no "model".
    """
    if isinstance(given, (str, PathLike)):
        shown = repr(str(given))
        raise TypeError(
            f"{call} wants a state, got the path {shown}: load the file first, load_state_dict(load_checkpoint({shown})), with "
            "`from ding_lite.engine import load_checkpoint`."
        )
    if not isinstance(given, Mapping):
        raise TypeError(f"{call} wants a state from state_dict(), got {given!r:.80} of type {type(given).__name__}.")
    several = given.get("policies")
    if isinstance(several, Mapping) and "model" not in given:
        names = list(several)
        raise StateDictError(
            f"{call} got the states of several policies, {', '.join(map(repr, names))}: load one of them, "
            f"load_state_dict(state['policies'][{(names or [''])[0]!r}])."
        )
    if "model" not in given:
        hint = ""
        if given and all(isinstance(value, Tensor) for value in given.values()):
            hint = " These look like weights: load them with set_weights(...)."
        raise StateDictError(f"this is not a state of a policy: it lacks 'model', it has {sorted(map(str, given))}.{hint}")


def require_loadable(policy: LoadablePolicy, state: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Check that all parts of a state fit the policy.

    Args:
        policy: the policy that loads the state.
        state: the saved state.
        before: the policy's current state.

    Raises:
        StateDictError: the state was saved by another kind of policy; or a part does not fit, and the message names it.
    """
    saved = state.get("made_with")
    if "made_with" in state:
        require_alike(policy.made_with, policy.cfg, saved)
    if policy.has_own_weights:
        require_like('state["model"]', before["model"], state["model"])
    else:
        require_weights(policy, state["model"], saved, 'state["model"]')
    networks = {name: vars(policy).get(name) for name in policy.saved_networks if name not in ("model", "optimizer")}
    for name, network in networks.items():
        if network is not None and name in state:
            require_part(f"state[{name!r}]", network, state[name])
    if "optimizer" not in state:
        return
    missing = [name for name in (*_NEEDED, *networks) if name in before and name not in state]
    if missing:
        raise StateDictError(
            f"this state of a {type(policy).__name__} lacks {missing[0]!r}, it has {sorted(map(str, state))}: pass the whole "
            'result of state_dict(), or only the weights, {"model": ...}.'
        )
    if policy.params:
        try:
            require_optimizer_state('state["optimizer"]', policy.optimizer, state["optimizer"], policy.params)
        except StateDictError as error:
            reason = _other_weights(policy, state) or error
            raise StateDictError(f"{reason}{differing_settings(policy.made_with, saved)}") from None
    for name in ("train_iter", "version"):
        require_count(f"state[{name!r}]", state[name])
    _require_random_numbers(policy, state)
    _require_attached(policy, state.get("attached", {}), state.get("networks", []), saved)
    _require_metrics(state.get("metrics", {"stats": []}))
    known = {
        "model",
        "optimizer",
        "made_with",
        "attached",
        "networks",
        "collect",
        "evaluate",
        "predict",
        "metrics",
        "settings",
        "learners",
        *_NEEDED,
        *networks,
    }
    for name, part in before.items():
        if name not in known and name in state:
            require_like(f"state[{name!r}]", part, state[name])
    _require_ranges("state", policy, before, state)


def _other_weights(policy: LoadablePolicy, state: Mapping[str, Any]) -> str:
    """Sentences with the names of the weights that only the state or only the policy has, which also explain other optimizers;
    empty if there are none."""
    own, given = set(policy.model.state_dict()), set(state["model"])
    if policy.has_own_weights or own == given:
        return ""
    parts = [(given - own, "the state has the weights"), (own - given, "this policy has the weights")]
    return f"{misfit(policy)} Only {'; only '.join(f'{has} {sorted(names)}' for names, has in parts if names)}."


def require_weights(
    policy: LoadablePolicy, weights: object, saved: Mapping[str, Any] | None = None, where: str = "weights"
) -> None:
    """Check that weights fit the policy's networks and are finite.

    Args:
        policy: the policy that loads the weights.
        weights: tensors by name.
        saved: the identity of the policy that saved them; None if unknown.
        where: key of the weights in a state, for messages.

    Raises:
        TypeError: they are not a mapping, for example a path.
        StateDictError: a tensor does not fit; the message names it.
    """
    kind = type(policy).__name__
    if where != "weights" and not isinstance(weights, Mapping):
        raise StateDictError(f"{where} is {weights!r:.80}, expected a dict of tensors by name from get_weights().")
    if isinstance(weights, (str, PathLike)):
        shown = repr(str(weights))
        raise TypeError(
            f"{kind}.set_weights wants weights from get_weights(), got the path {shown}: load_policy({shown}) makes the "
            f'policy of a run; of a checkpoint file, the weights are load_checkpoint({shown})["model"], with `from '
            "ding_lite.engine import load_checkpoint`."
        )
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"{kind}.set_weights wants weights from get_weights(), got {weights!r:.80} of type {type(weights).__name__}."
        )
    if not weights and policy.model.state_dict():
        raise StateDictError(f"{where} is empty, expected the weights of a {type(policy.model).__name__}.")
    if isinstance(weights.get("model"), Mapping) and "model" not in policy.model.state_dict():
        raise StateDictError(f"{kind}.set_weights wants weights, got a whole state: use load_state_dict(state).")
    if saved is not None and is_of_given_model(policy.made_with, saved) and set(weights) != set(policy.model.state_dict()):
        raise StateDictError(f"{misfit(policy)}{differing_settings(policy.made_with, saved)}")
    try:
        _require_tensors("", policy.model, weights)
    except StateDictError as error:
        differing = "" if saved is None else differing_settings(policy.made_with, saved)
        raise StateDictError(f"{misfit(policy)} {error}{differing}") from None


def entries_of_other_settings(policy: LoadablePolicy, saved: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """The entries of a saved state that this policy does not take, because it has other settings for them.

    Args:
        policy: the policy that loads the state.
        saved: the identity of the policy that saved it; None if unknown.

    Returns:
        By name of the entry, descriptions of the settings that differ.
    """
    now, then = _settings(policy.made_with), _settings(saved)
    found = {
        name: _differences(now, then, [f"{prefix}{setting}" for setting in settings for prefix in ("cfg.policy.", "")])
        for name, settings in policy.state_settings.items()
    }
    return {name: differences for name, differences in found.items() if differences}


def with_own_values(state: Mapping[str, Any], own: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A state in which these entries have the values of the state `own`. Entries that one of them lacks stay as they are.

    Args:
        state: a saved state.
        own: the state of the policy that loads it.
        names: names of entries, as in `state_settings`.
    """
    result = dict(state)
    for name in names:
        entry, _, inner = name.partition("/")
        if entry not in own or entry not in state:
            continue
        if not inner:
            result[entry] = own[entry]
        elif isinstance(result[entry], Mapping):  # a policy may have weights of another kind
            result[entry] = with_own_values(result[entry], own[entry], [inner])
    return result


def _differences(now: Mapping[str, Any], then: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Descriptions of the settings with these names that both have and that differ."""
    both = [name for name in names if name in now and name in then]
    return [f"{name} is {now[name]!r}, and was {then[name]!r}" for name in both if now[name] != then[name]]


def _settings(identity: Mapping[str, Any] | None) -> dict[str, Any]:
    """The recorded settings in an identity, by the names that messages use."""
    found = {f"cfg.policy.{name}": value for name, value in settings_in((identity or {}).get("config", {}))}
    return {**found, **dict(settings_in((identity or {}).get("settings", {})))}


def _followed(
    policy: LoadablePolicy, state: Mapping[str, Any], has_other_groups: bool
) -> tuple[Mapping[str, Any], Sequence[str]]:
    """The state of the optimizer in a policy's state, with the policy's own settings where they differ from the saved ones;
    and descriptions of these differences.

    Settings that a schedule or a hook has changed are no differences.

    Args:
        policy: the policy that loads the state.
        state: the whole state, which fits.
        has_other_groups: whether its optimizer had other parameter groups; see `regrouped`.
    """
    now, saved = _settings(policy.made_with), _settings(state.get("made_with"))
    others = _differences(now, saved, filter(_is_of_optimizers, now))
    followed, found = with_group_settings(state["optimizer"], policy.optimizer_settings(), not others)
    if has_other_groups:
        found = ["the parameter groups of the optimizer"]
    return followed, (others or found) if found else ()


def _is_of_optimizers(name: str) -> bool:
    return name.startswith("cfg.policy.") and any(part in name for part in _OF_OPTIMIZER)


def _other_settings(policy: LoadablePolicy, saved: Mapping[str, Any] | None) -> list[str]:
    """Descriptions of the settings that differ from those of the policy that saved a state.

    Those of optimizers are left out, see `_followed`, those that may be others without changing what is learned, and weights
    beside a schedule, which have no effect.
    """
    now = _settings(policy.made_with)
    idle = {name.replace("_schedule", "_weight") for name, points in now.items() if points and name.endswith("_schedule")}
    names = [it for it in now if it not in idle and not it.startswith(_MAY_DIFFER) and not _is_of_optimizers(it)]
    return _differences(now, _settings(saved), names)


def misfit(policy: LoadablePolicy) -> str:
    """The first part of messages about weights that do not fit."""
    return (
        f"these weights do not fit the network of this {type(policy).__name__}; make the policy with the configuration and the "
        "spaces of the run that saved them."
    )


def require_part(where: str, thing: Any, state: object) -> None:
    """Check that a state fits a part of a policy.

    Args:
        where: key of the part, for messages.
        thing: a module, an optimizer, or another object with `state_dict`.
        state: the saved state of the part. It must have the same shapes and dtypes as the current one.

    Raises:
        StateDictError: an entry does not fit; the message names it.
        TypeError: `unchecked_entries` or `new_entries` of the part is not a tuple of names.
    """
    if isinstance(thing, Optimizer):
        require_optimizer_state(where, thing, state)
    elif isinstance(thing, nn.Module) and type(thing).load_state_dict is nn.Module.load_state_dict:
        _require_tensors(where, thing, state)
    else:
        # `new_entries` are those that states of older versions do not have.
        new = set(entry_names(thing, "new_entries")).difference(state if isinstance(state, Mapping) else ())
        own = {name: it for name, it in thing.state_dict().items() if name not in new}
        require_like(where, own, state, entry_names(thing, "unchecked_entries"))
        _require_ranges(where, thing, own, state)


def _require_ranges(where: str, thing: object, own: Mapping[str, Any], state: Any) -> None:
    for name, limits in ranges_of(thing).items():
        if name in own and name in state:
            require_range(f"{where}[{name!r}]", state[name], limits, own[name])


_TORCHS = {"running_var": (0.0, math.inf), "num_batches_tracked": (0.0, math.inf)}


def _ranges_in(module: nn.Module) -> dict[str, tuple[float, float]]:
    """The (low, high) ranges of entries in the state of a module and its submodules, by name."""
    found = {}
    for place, part in module.named_modules(remove_duplicate=False):
        ranges = _TORCHS if isinstance(part, nn.modules.batchnorm._NormBase) else ranges_of(part)
        found.update({f"{place}.{name}" if place else name: limits for name, limits in ranges.items()})
    return found


def _require_attached(policy: LoadablePolicy, states: object, networks: object, saved: Any) -> None:
    """Check the states of attached objects, and of the networks and optimizers outside of the model.

    Args:
        policy: the policy that loads them.
        states: the states by name.
        networks: the names of those that were not attached by `attach`, which may be called later.
        saved: the identity of the policy that saved them; None if unknown. A base class does without networks of a derived one.
    """
    if not isinstance(states, Mapping):
        raise StateDictError(f'state["attached"] is a {type(states).__name__}, expected a dict by name.')
    if not isinstance(networks, (list, tuple)) or not all(isinstance(name, str) for name in networks):
        raise StateDictError(f'state["networks"] is {networks!r:.80}, expected a list of names.')
    is_same = isinstance(saved, Mapping) and saved.get("algorithm") == policy.made_with["algorithm"]
    lost = [name for name in networks if name in states and name not in policy.attachments] if is_same else []
    if lost:
        raise StateDictError(
            f'state["attached"] has {lost[0]!r}, a network or optimizer that this {type(policy).__name__} does not have: make '
            f"self.{lost[0].partition('/')[0]} in after_init, and not on first use, so that it is there when a state is loaded."
        )
    own = {id(value) for value in vars(policy).values()}
    for name, thing in policy.attachments.items():
        if name in states:
            require_part(f'state["attached"][{name!r}]', thing, states[name])
        elif states and id(thing) in own and isinstance(thing, (nn.Module, Optimizer)):
            raise StateDictError(f'state["attached"] lacks {name!r}, a {type(thing).__name__} of this {type(policy).__name__}.')


def _require_metrics(state: Any) -> None:
    try:
        if not isinstance(state["stats"], list):
            raise TypeError("it is no list")
        MetricsLogger().set_state(state)
    except Exception as error:  # noqa: BLE001  a damaged state may raise any
        found = describe_error(error)
        raise StateDictError(
            f'state["metrics"] wants "stats" as in MetricsLogger.get_state(), which cannot be read ({found}).'
        ) from None


def _require_tensors(where: str, module: nn.Module, state: object) -> None:
    """Raise StateDictError for a tensor that does not fit the module's. Missing and unknown names are left to the module."""
    if not isinstance(state, Mapping):
        raise StateDictError(f"{where} is a {type(state).__name__}, expected the state of a {type(module).__name__}.")
    if not state and module.state_dict():
        raise StateDictError(f"{where} is empty, expected the state of a {type(module).__name__}.")
    if odd := [name for name in state if not isinstance(name, str)]:
        place = f"{where} has the key" if where else "they have the key"
        raise StateDictError(f"{place} {odd[0]!r} of type {type(odd[0]).__name__}, expected names of tensors.")
    ranges = _ranges_in(module)
    learned = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for name, current in module.state_dict().items():
        if name in state and isinstance(current, Tensor) and not is_extra_state(name):
            place = f"{where}[{name!r}]" if where else repr(name)
            if not isinstance(state[name], Tensor):
                raise StateDictError(f"{place} is a {type(state[name]).__name__}, expected a tensor {describe(current)}.")
            require_tensor(place, current, state[name], must_be_finite=name in learned)
            if name in ranges:
                require_range(place, state[name], ranges[name], current)


def _require_random_numbers(policy: LoadablePolicy, state: Mapping[str, Any]) -> None:
    for role in ("learn", "collect", "evaluate"):
        if role not in state:
            continue
        where, found = f"state[{role!r}]", state[role]
        if role == "learn" or not isinstance(found, Mapping) or "twins" not in found:
            policy.require_generator_state(where, found)
            continue
        if not isinstance(found["twins"], (list, tuple)) or not found["twins"]:
            raise StateDictError(f"{where}['twins'] is {found['twins']!r:.80}, expected a list of the states of workers.")
        for index, one in enumerate(found["twins"]):
            policy.require_generator_state(f"{where}['twins'][{index}]", one)
    for mode in (policy.collect_mode, policy.eval_mode):
        if mode.role in state:
            mode.worker_states(state[mode.role])
