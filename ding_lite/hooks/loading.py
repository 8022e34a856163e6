"""Loading: what a state has to be before anything of it is taken over, and taking over all of it or nothing.

A state that does not fit is dangerous: fused optimizers read moments of another shape beyond their memory.

Room: ding_lite.hooks, floor 3. Imports envs, the engine, and the room's identities.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.engine import add_note
from ding_lite.envs import load_random_state
from ding_lite.hooks.identities import StateError, differing_settings, require_alike

if TYPE_CHECKING:
    from ding_lite.hooks.policies import Policy
    from ding_lite.hooks.states import PolicyState

_NEEDED = ("train_iter", "version", "learn")


def all_or_nothing(fn: Callable[..., None]) -> Callable[..., None]:
    """A `load_state_dict` of a policy that looks at the whole state first, and takes over all of it or nothing."""

    @functools.wraps(fn)
    def load_state_dict(self: PolicyState, state: Mapping[str, Any]) -> None:
        if self.being_loaded is not None:  # called by that of a derived class, which has looked
            fn(self, state)
            return
        require_state(f"{type(self).__name__}.load_state_dict", state)
        self.being_loaded = state
        try:
            before = copy.deepcopy(self.state_dict())
            if "optimizer" not in state:
                before.pop("optimizer")
            require_loadable(self, state, before)  # type: ignore[arg-type]  # a Policy, as all of these are
            _take_over(self, fn, state, before)
        finally:
            self.being_loaded = None

    return load_state_dict


def _take_over(policy: PolicyState, fn: Callable[..., None], state: Mapping[str, Any], before: Mapping[str, Any]) -> None:
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


def require_loadable(policy: Policy, state: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Refuse a state that does not fit the policy, in any of its parts.

    Args:
        before: the policy's own state.

    Raises:
        StateError: it is of another policy, or the part that does not fit, by its key.
    """
    saved = state.get("made_with")
    if isinstance(saved, Mapping):
        require_alike(policy, saved)
    else:
        saved = None
    if policy.has_own_weights:
        require_like('state["model"]', before["model"], state["model"])
    else:
        require_weights(policy, state["model"], saved)
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
        _require_optimizer('state["optimizer"]', policy.optimizer, state["optimizer"])
    for name in ("train_iter", "version"):
        if isinstance(state[name], bool) or not hasattr(state[name], "__index__") or state[name] < 0:
            raise StateError(f"state[{name!r}] is {state[name]!r:.80}, and a number of at least 0 is wanted.")
    _require_random_numbers(policy, state)
    _require_attached(policy, state.get("attached", {}))
    known = {"model", "optimizer", "made_with", "attached", "collect", "evaluate", *_NEEDED, *networks}
    for name, part in before.items():
        if name not in known and name in state:
            require_like(f"state[{name!r}]", part, state[name])


def require_weights(policy: PolicyState, weights: object, saved: Mapping[str, Any] | None = None) -> None:
    """Refuse weights of another network than the policy's, and such that are no numbers.

    Args:
        saved: what the policy was made with that saved them, where that is known.

    Raises:
        TypeError: a path, or no mapping.
        StateError: the first that does not fit.
    """
    kind = type(policy).__name__
    if isinstance(weights, (str, PathLike)):
        require_state(f"{kind}.load_state_dict", weights)
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"{kind}.set_weights wants weights, as get_weights() gives them, got {weights!r:.80} of type "
            f"{type(weights).__name__}."
        )
    if isinstance(weights.get("model"), Mapping) and "model" not in policy.model.state_dict():
        raise StateError(f"{kind}.set_weights wants weights, and this is a state: use load_state_dict(state).")
    try:
        _require_tensors("", policy.model, weights)
    except StateError as error:
        told = "" if saved is None else differing_settings(policy, saved)  # type: ignore[arg-type]  # a Policy
        raise StateError(f"{misfit(policy)} {error}{told}") from None


def misfit(policy: PolicyState) -> str:
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
        _require_optimizer(where, thing, state)
    elif isinstance(thing, nn.Module) and type(thing).load_state_dict is nn.Module.load_state_dict:
        _require_tensors(where, thing, state)
    else:
        require_like(where, thing.state_dict(), state, getattr(thing, "varying", ()))


def _require_attached(policy: Policy, states: object) -> None:
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
    learned = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for name, current in module.state_dict().items():
        if name in state and isinstance(current, Tensor):
            place = f"{where}[{name!r}]" if where else repr(name)
            if not isinstance(state[name], Tensor):
                raise StateError(f"{place} is a {type(state[name]).__name__}, and a tensor of {_told(current)} is wanted.")
            _require_tensor(place, current, state[name], must_be_finite=name in learned)


def _require_tensor(where: str, current: Tensor, given: Tensor, must_be_finite: bool = False) -> None:
    if given.shape != current.shape or given.dtype != current.dtype:
        raise StateError(f"{where} is of {_told(given)}, and {_told(current)} is wanted.")
    if not _is_finite(given) and (must_be_finite or _is_finite(current)):
        broken = given[~given.isfinite()].flatten()
        raise StateError(
            f"{where} holds {len(broken)} numbers that are not finite, such as {broken[0].item()}, of {given.numel()}: take a "
            "checkpoint from before that."
        )


def _is_finite(array: Any) -> bool:
    if isinstance(array, Tensor):
        return not array.is_floating_point() or bool(array.isfinite().all())
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def _told(array: Any) -> str:
    return f"shape {list(array.shape)} {str(array.dtype).removeprefix('torch.')}"


def _require_optimizer(where: str, optimizer: Optimizer, state: Any) -> None:
    """Refuse a state whose groups or moments are not those that this optimizer has, or comes to have in its first step."""
    if not isinstance(state, Mapping) or not isinstance(state.get("state"), Mapping) or "param_groups" not in state:
        raise StateError(f"{where} is {state!r:.80}, and the state of a {type(optimizer).__name__} is wanted.")
    params = [param for group in optimizer.param_groups for param in group["params"]]
    own, given = optimizer.state_dict()["param_groups"], state["param_groups"]
    if [len(group["params"]) for group in own] != [len(group.get("params", ())) for group in given]:
        raise StateError(
            f"{where} is of {[len(group.get('params', ())) for group in given]} parameters by group, and those of this "
            f"{type(optimizer).__name__} have {[len(group['params']) for group in own]}."
        )
    for index, (one, other) in enumerate(zip(own, given, strict=True)):
        place = f'{where}["param_groups"][{index}]'
        for name in one:
            if name not in other:
                raise StateError(f"{place} lacks {name!r}, which {type(optimizer).__name__} has: it is of another optimizer.")
            if name != "params":
                _require_leaf(f"{place}[{name!r}]", one[name], other[name])
            if isinstance(other[name], float) and not math.isfinite(other[name]):
                raise StateError(f"{place}[{name!r}] is {other[name]}: take a checkpoint from before that.")
    wanted = _first_moments(where, optimizer, given)
    for index, moments in state["state"].items():
        if index not in range(len(params)):
            raise StateError(f'{where}["state"] has a part {index!r}, and there are {len(params)} parameters.')
        _require_moments(f'{where}["state"][{index}]', params[index], moments, wanted.get(index))


def _require_moments(where: str, param: Tensor, moments: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> None:
    if wanted is None:  # not known before its first step: then a moment is a number or like its parameter
        wanted = {
            name: part if part.ndim == 0 else torch.empty_like(param)
            for name, part in moments.items()
            if isinstance(part, Tensor)
        }
    for name in [*wanted, *moments]:
        if (name in wanted) != (name in moments):
            raise StateError(f"{where} {'lacks' if name in wanted else 'has'} {name!r}: it is of another optimizer.")
        if isinstance(wanted[name], Tensor):
            if not isinstance(moments[name], Tensor):
                raise StateError(f"{where}[{name!r}] is a {type(moments[name]).__name__}, and a tensor is wanted.")
            _require_tensor(f"{where}[{name!r}]", wanted[name], moments[name], must_be_finite=True)


def _first_moments(where: str, optimizer: Optimizer, groups: Sequence[Mapping[str, Any]]) -> dict[int, Any]:
    """What a step with these settings leaves for each parameter, found by taking one with a copy."""
    trial = copy.deepcopy(optimizer)
    try:
        trial.load_state_dict({"state": {}, "param_groups": copy.deepcopy(list(groups))})
    except (ValueError, TypeError, KeyError) as error:
        raise StateError(f"{where} is not of this {type(optimizer).__name__}: {error}") from None
    for group in trial.param_groups:
        for param in group["params"]:
            param.grad = torch.zeros_like(param)
    try:
        trial.step()
    except RuntimeError:  # such as one that wants sparse gradients
        return {}
    found: dict[int, Any] = trial.state_dict()["state"]
    return found


def _require_random_numbers(policy: Policy, state: Mapping[str, Any]) -> None:
    for role in ("learn", "collect", "evaluate"):
        if role not in state:
            continue
        if not isinstance(state[role], Mapping):
            raise StateError(f"state[{role!r}] is a {type(state[role]).__name__}, and the state of random numbers is wanted.")
        states = [state[role]]
        if role != "learn":
            face = policy.collect_mode if role == "collect" else policy.eval_mode
            states = face.states_in(state[role])
        for one in states:
            try:
                copy.deepcopy(policy.rng).bit_generator.state = one["rng"]
                torch.Generator(policy.device).set_state(one["generator"].cpu())
                if "action_space" in one:  # not in older ones
                    load_random_state(copy.deepcopy(policy.action_space), one["action_space"])
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RuntimeError) as error:
                raise StateError(
                    f"state[{role!r}] is no state of random numbers ({type(error).__name__}: {error}): give the whole of what "
                    "state_dict() gave."
                ) from None


def require_like(where: str, current: Any, given: Any, varying: Sequence[str] = (), inner: bool = False) -> None:
    """Refuse a state of other names, shapes or kinds of numbers than that of now, or with NaN where now there is none.

    Nothing is asked of what is empty or None now, of the length of lists, and of what `varying` names.

    Raises:
        StateError: the part that does not fit, by its key.
    """
    if isinstance(current, Mapping):
        if not isinstance(given, Mapping):
            raise StateError(f"{where} is a {type(given).__name__}, and a dict with {sorted(map(str, current))} is wanted.")
        if current and not inner and current.keys() != given.keys():
            wanted, found = (sorted(map(str, one)) for one in (current, given))
            raise StateError(f"{where} has {found}, and {wanted} are wanted.")
        for name in current.keys() & given.keys():
            if name not in varying:
                require_like(f"{where}[{name!r}]", current[name], given[name], inner=True)
    else:
        _require_leaf(where, current, given)


def _require_leaf(where: str, current: Any, given: Any) -> None:
    if current is None or given is None:
        return
    if isinstance(current, (list, tuple, str)):
        if isinstance(given, (list, tuple)) != isinstance(current, (list, tuple)):
            raise StateError(f"{where} is {given!r:.80}, and a {type(current).__name__} as {current!r:.80} is wanted.")
        return
    if not isinstance(current, (Tensor, np.ndarray, np.generic, bool, int, float)):
        return
    if not isinstance(given, (Tensor, np.ndarray, np.generic, bool, int, float)):
        raise StateError(f"{where} is a {type(given).__name__}, and a number or an array of numbers is wanted.")
    old, new = (value if isinstance(value, Tensor) else np.asarray(value) for value in (current, given))
    if math.prod(old.shape) and old.ndim and new.ndim and old.shape != new.shape:
        raise StateError(f"{where} is of {_told(new)}, and {_told(old)} is wanted.")
    if old.ndim and new.ndim and _kind(old) != _kind(new):
        raise StateError(f"{where} is of {_told(new)}, and {_told(old)} is wanted.")
    if not _is_finite(new) and _is_finite(old):
        if isinstance(given, float) and not math.isnan(given):  # as what was best so far begins with -inf
            return
        raise StateError(f"{where} holds numbers that are not finite, and now there are none: take a checkpoint from before.")


def _kind(array: Any) -> str:
    if isinstance(array, Tensor):
        return "f" if array.is_floating_point() else "b" if array.dtype == torch.bool else "i"
    kind = str(array.dtype.kind)
    return "i" if kind == "u" else kind
