"""Loading: what a state has to be before anything of it is taken over, and taking over all of it or nothing."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.basics import Config, add_note
from ding_lite.policy_state.identities import StateError, differing_settings, require_alike
from ding_lite.policy_state.leaves import describe, ranges_of, require_count, require_like, require_range, require_tensor
from ding_lite.policy_state.optimizer_states import require_optimizer_state

_NEEDED = ("train_iter", "version", "learn")


class LoadableMode(Protocol):
    """What loading asks of a policy's mode that acts."""

    @property
    def role(self) -> str:
        """Its key in the state."""

    def states_in(self, state: Mapping[str, Any], /) -> list[Any]:
        """The states of random numbers in one that was saved, one for each worker."""


class LoadablePolicy(Protocol):
    """What loading asks of a policy."""

    being_loaded: Mapping[str, Any] | None
    """The state that is just being loaded."""

    @property
    def cfg(self) -> Config:
        """Its configuration."""

    @property
    def made_with(self) -> Mapping[str, Any]:
        """What `identity_of` gives of it."""

    @property
    def model(self) -> Any:
        """Its networks."""

    @property
    def params(self) -> Sequence[nn.Parameter]:
        """Those that an optimizer learns; without any there is no optimizer."""

    @property
    def optimizer(self) -> Optimizer:
        """Where there are parameters."""

    @property
    def has_own_weights(self) -> bool:
        """Whether its weights are not those of its model."""

    @property
    def saved_networks(self) -> tuple[str, ...]:
        """Attributes whose state is in the policy's under their names."""

    @property
    def attachments(self) -> Mapping[str, Any]:
        """What else is part of its state, by name."""

    @property
    def collect_mode(self) -> LoadableMode:
        """The mode that explores."""

    @property
    def eval_mode(self) -> LoadableMode:
        """The mode that does not."""

    def state_dict(self) -> dict[str, Any]:
        """Its whole state."""

    def require_generator_state(self, where: str, state: Any, /) -> None:
        """Refuse random numbers that it cannot go on from."""


def all_or_nothing(fn: Callable[..., None]) -> Callable[..., None]:
    """A `load_state_dict` of a policy that looks at the whole state first, and takes over all of it or nothing."""

    @functools.wraps(fn)
    def load_state_dict(self: LoadablePolicy, state: Mapping[str, Any]) -> None:
        if self.being_loaded is not None:  # called by that of a derived class, which has looked
            fn(self, state)
            return
        require_state(f"{type(self).__name__}.load_state_dict", state)
        self.being_loaded = state
        try:
            before = copy.deepcopy(self.state_dict())
            if "optimizer" not in state:
                before.pop("optimizer")
            require_loadable(self, state, before)
            _take_over(self, fn, state, before)
        finally:
            self.being_loaded = None

    return load_state_dict


def _take_over(policy: LoadablePolicy, fn: Callable[..., None], state: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    attributes = dict(vars(policy))
    try:
        fn(policy, state)
    except Exception as error:
        try:
            fn(policy, before)
            add_note(error, f"loading a state into a {type(policy).__name__}; no part was taken over.")
        except Exception as again:  # noqa: BLE001  the first error is the one to see
            add_note(error, f"loading a state into a {type(policy).__name__}, which cannot be put back as it was: {again!r}.")
        vars(policy).clear()
        vars(policy).update(attributes)
        if isinstance(error, RuntimeError) and "loading state_dict" in str(error):  # torch's, of names that do not fit
            raise StateError(f"a part of this state is not of this {type(policy).__name__}: {error}") from error
        raise


def require_state(call: str, given: object) -> None:
    """Refuse what is no state of one policy.

    Raises:
        TypeError: a path, or something else that is no mapping.
        StateError: the states of several policies.
    """
    if isinstance(given, (str, PathLike)):
        shown = repr(str(given))
        raise TypeError(
            f"{call} wants a state, got the path {shown}: load the file first, load_state_dict(load_checkpoint({shown})), with "
            "`from ding_lite.engine import load_checkpoint`."
        )
    if not isinstance(given, Mapping):
        raise TypeError(f"{call} wants a state, as state_dict() gives it, got {given!r:.80} of type {type(given).__name__}.")
    several = given.get("policies")
    if isinstance(several, Mapping) and "model" not in given:
        names = list(several)
        raise StateError(
            f"{call} got the states of several policies, {', '.join(map(repr, names))}: take one of them, "
            f"load_state_dict(state['policies'][{(names or [''])[0]!r}])."
        )
    if "model" not in given:
        hint = ""
        if given and all(isinstance(value, Tensor) for value in given.values()):
            hint = " These look like weights: set_weights(...) takes them."
        raise StateError(f"this is no state of a policy: it lacks 'model', it has {sorted(map(str, given))}.{hint}")


def require_loadable(policy: LoadablePolicy, state: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Refuse a state that does not fit the policy, in any of its parts.

    Args:
        before: the policy's own state.

    Raises:
        StateError: it is of another policy, or the part that does not fit, by its key.
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
        raise StateError(
            f"this state of a {type(policy).__name__} lacks {missing[0]!r}, it has {sorted(map(str, state))}: give the whole "
            'of what state_dict() gave, or the weights alone, {"model": ...}.'
        )
    if policy.params:
        require_optimizer_state('state["optimizer"]', policy.optimizer, state["optimizer"])
    for name in ("train_iter", "version"):
        require_count(f"state[{name!r}]", state[name])
    _require_random_numbers(policy, state)
    _require_attached(policy, state.get("attached", {}))
    known = {"model", "optimizer", "made_with", "attached", "collect", "evaluate", *_NEEDED, *networks}
    for name, part in before.items():
        if name not in known and name in state:
            require_like(f"state[{name!r}]", part, state[name])
    _require_ranges("state", policy, before, state)


def require_weights(
    policy: LoadablePolicy, weights: object, saved: Mapping[str, Any] | None = None, where: str = "weights"
) -> None:
    """Refuse weights of another network than the policy's, and such that are no numbers.

    Args:
        saved: what the policy was made with that saved them, where that is known.
        where: their place in a state.

    Raises:
        TypeError: a path, or no mapping.
        StateError: the first that does not fit.
    """
    kind = type(policy).__name__
    if where != "weights" and not isinstance(weights, Mapping):
        raise StateError(f"{where} is {weights!r:.80}, and a dict of tensors by name is wanted, as get_weights() gives them.")
    if isinstance(weights, (str, PathLike)):
        require_state(f"{kind}.load_state_dict", weights)
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"{kind}.set_weights wants weights, as get_weights() gives them, got {weights!r:.80} of type "
            f"{type(weights).__name__}."
        )
    if not weights and policy.model.state_dict():
        raise StateError(f"{where} is empty, and the weights of a {type(policy.model).__name__} are wanted.")
    if isinstance(weights.get("model"), Mapping) and "model" not in policy.model.state_dict():
        raise StateError(f"{kind}.set_weights wants weights, and this is a state: use load_state_dict(state).")
    try:
        _require_tensors("", policy.model, weights)
    except StateError as error:
        differing = "" if saved is None else differing_settings(policy.made_with, saved)
        raise StateError(f"{misfit(policy)} {error}{differing}") from None


def warn_of_other_rates(policy: LoadablePolicy, state: Mapping[str, Any]) -> None:
    """Warn where the learning rates that came with the optimizer are not those of the configuration."""
    saved = dict(_rates_in("", state.get("made_with", {}).get("config", {})))
    now = dict(_rates_in("", policy.made_with["config"]))
    others = [f"cfg.{name} is {now[name]!r}, and was {rate!r}" for name, rate in saved.items() if now.get(name, rate) != rate]
    if others:
        warnings.warn(
            f"the optimizer that was loaded goes on with the learning rate that it was saved with: {'; '.join(others)}. Set "
            'group["lr"] of each group of its param_groups, or take the weights alone, policy.set_weights(state["model"]).',
            stacklevel=4,
        )


def _rates_in(way: str, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _rates_in(f"{way}{name}.", value)
        elif "learning_rate" in name:
            yield f"{way}{name}", value


def misfit(policy: LoadablePolicy) -> str:
    """The beginning of what is said of weights that do not fit."""
    return (
        f"these weights are not of this {type(policy).__name__}'s network; make the policy with the configuration and the "
        "spaces of the run that saved them."
    )


def require_part(where: str, thing: Any, state: object) -> None:
    """Refuse a state that does not fit a part of a policy: of a network or an optimizer each tensor, of anything else its
    names, shapes and kinds of numbers, as they are now.

    Raises:
        StateError: the part that does not fit, by its key.
    """
    if isinstance(thing, Optimizer):
        require_optimizer_state(where, thing, state)
    elif isinstance(thing, nn.Module) and type(thing).load_state_dict is nn.Module.load_state_dict:
        _require_tensors(where, thing, state)
    else:
        own = thing.state_dict()
        require_like(where, own, state, getattr(thing, "varying", ()))
        _require_ranges(where, thing, own, state)


def _require_ranges(where: str, thing: object, own: Mapping[str, Any], state: Any) -> None:
    for name, limits in ranges_of(thing).items():
        if name in own and name in state:
            require_range(f"{where}[{name!r}]", state[name], limits, own[name])


_TORCHS = {"running_var": (0.0, math.inf), "num_batches_tracked": (0.0, math.inf)}


def _ranges_in(module: nn.Module) -> dict[str, tuple[float, float]]:
    """The entries of a module's state that have a range, those of its parts included."""
    found = {}
    for place, part in module.named_modules(remove_duplicate=False):
        ranges = _TORCHS if isinstance(part, nn.modules.batchnorm._NormBase) else ranges_of(part)
        found.update({f"{place}.{name}" if place else name: limits for name, limits in ranges.items()})
    return found


def _require_attached(policy: LoadablePolicy, states: object) -> None:
    if not isinstance(states, Mapping):
        raise StateError(f'state["attached"] is a {type(states).__name__}, and a dict by name is wanted.')
    own = {id(value) for value in vars(policy).values()}
    for name, thing in policy.attachments.items():
        if name in states:
            require_part(f'state["attached"][{name!r}]', thing, states[name])
        elif states and id(thing) in own and isinstance(thing, (nn.Module, Optimizer)):
            raise StateError(f'state["attached"] lacks {name!r}, a {type(thing).__name__} of this {type(policy).__name__}.')


def _require_tensors(where: str, module: nn.Module, state: object) -> None:
    """Refuse tensors of another shape or kind than the module's; which names there are is for the module to say."""
    if not isinstance(state, Mapping):
        raise StateError(f"{where} is a {type(state).__name__}, and the state of a {type(module).__name__} is wanted.")
    if not state and module.state_dict():
        raise StateError(f"{where} is empty, and the state of a {type(module).__name__} is wanted.")
    ranges = _ranges_in(module)
    learned = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for name, current in module.state_dict().items():
        if name in state and isinstance(current, Tensor):
            place = f"{where}[{name!r}]" if where else repr(name)
            if not isinstance(state[name], Tensor):
                raise StateError(f"{place} is a {type(state[name]).__name__}, and a tensor of {describe(current)} is wanted.")
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
            raise StateError(f"{where}['twins'] is {found['twins']!r:.80}, and a list of the states of workers is wanted.")
        for index, one in enumerate(found["twins"]):
            policy.require_generator_state(f"{where}['twins'][{index}]", one)
    for mode in (policy.collect_mode, policy.eval_mode):
        if mode.role in state:
            mode.states_in(state[mode.role])
