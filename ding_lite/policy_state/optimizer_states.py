"""Optimizer states: checks that an optimizer can continue from a saved state.

The checks are strict because a fused optimizer reads beyond the memory of moments of the wrong shape.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ding_lite.nn.eager_optimizers import Adam
from ding_lite.policy_state.identities import StateDictError
from ding_lite.policy_state.leaves import is_plain, require_tensor

_HOW = frozenset({"capturable", "differentiable", "foreach", "fused"})  # change the implementation, not the result
_LEAST_EPS, _FAR_FROM_INFINITY = 1e-30, 1e37  # in float32
_MOST = 1e6  # learning rates, decays and epsilons above this are errors
_KEPT = "kept"  # key in a saved state: indices of the parameters with moments, to detect lost ones
_MADE = "made"  # key in a saved state: settings of each group as the configuration gives them
_PLACES = "places"  # key in a saved state: of each index, the place of its parameter among those of the policy
_OF_SCHEDULE = frozenset({"lr_schedule", "lr_ratio"})  # settings that give the learning rate
_OF_SCHEDULERS = frozenset({"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"})  # torch's add them
_OPTIMIZERS = [it for it in vars(torch.optim).values() if isinstance(it, type) and issubclass(it, Optimizer)]
_OF_OPTIMIZERS = frozenset({"params", *(name for kind in _OPTIMIZERS for name in inspect.signature(kind).parameters)})


def optimizer_state(
    optimizer: Optimizer, made: Sequence[Mapping[str, Any]] | None = None, params: Sequence[Tensor] | None = None
) -> dict[str, Any]:
    """A copy of an optimizer's state, with the indices of the parameters that have moments as "kept".

    Args:
        optimizer: the optimizer.
        made: its `group_settings`, saved as "made"; None to leave them out.
        params: its parameters in an order that does not depend on the parameter groups; their places are saved as "places".
            None to leave them out.
    """
    state = copy.deepcopy(optimizer.state_dict())
    more = {} if made is None else {_MADE: copy.deepcopy([*made])}
    places = [] if params is None else _places(optimizer, params)
    return {**state, _KEPT: list(state["state"]), **more, **({_PLACES: places} if places and -1 not in places else {})}


def _places(optimizer: Optimizer, params: Sequence[Tensor]) -> list[int]:
    places = {id(param): place for place, param in enumerate(params)}
    return [places.get(id(param), -1) for group in optimizer.param_groups for param in group["params"]]


def regrouped(state: Any, optimizer: Optimizer, params: Sequence[Tensor]) -> Any:
    """A saved state of an optimizer, with the parameter groups of this optimizer, if the saved one had others.

    Two parts of a network are in one group if their configured learning rates are the same, for example.

    Returns:
        The state itself, if the groups have the same sizes, or if it does not hold the same parameters.
    """
    own, places = optimizer.state_dict()["param_groups"], _places(optimizer, params)
    if -1 in places or not isinstance(state, Mapping) or sorted(places) != _sorted(state.get(_PLACES)):
        return state
    groups, moments, kept = state.get("param_groups"), state.get("state"), state.get(_KEPT)
    if not isinstance(groups, (list, tuple)) or not all(map(_is_group, groups)) or not isinstance(moments, Mapping):
        return state
    sizes = [len(group["params"]) for group in groups]
    if sizes == [len(group["params"]) for group in own] or sum(sizes) != len(places):
        return state
    index = {saved: places.index(place) for saved, place in enumerate(state[_PLACES])}
    if not isinstance(kept, (list, tuple)) or not all(type(one) is int and one in index for one in (*kept, *moments)):
        return state
    moved = {index[saved]: moments[saved] for saved in moments}
    return {
        **state,
        "param_groups": own,
        "state": moved,
        _KEPT: [index[saved] for saved in kept],
        _MADE: group_settings(own),
        _PLACES: places,
    }


def _sorted(places: object) -> list[int]:
    return sorted(place for place in places if type(place) is int) if isinstance(places, (list, tuple)) else []


def group_settings(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The settings of parameter groups of a new optimizer, as plain data, without those that only change the implementation.

    They are saved beside the current ones, which schedules and hooks change. A difference of the settings that two optimizers
    were made with is a difference of their configurations.
    """
    left_out = {"params", "initial_lr", *_HOW}  # a scheduler of torch adds initial_lr, maybe later
    return [
        {name: _plain(value) for name, value in group.items() if name not in left_out and _is_setting(value)}
        for group in groups
    ]


def _is_added(name: str, optimizer: Optimizer | None = None) -> bool:
    """Whether no optimizer has such a setting, so that something else has added it to a group: a scheduler of torch adds
    initial_lr, max_lr and others, and may be made after a state is loaded."""
    return name not in _OF_OPTIMIZERS and name not in _OF_SCHEDULE and (optimizer is None or name not in optimizer.defaults)


def with_added_settings(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """A copy of a saved state that fits, with the settings that something has added to this optimizer's groups where the saved
    groups lack them, because loading replaces the groups."""
    copied = copy.deepcopy(dict(state))
    groups = zip(optimizer.param_groups, copied["param_groups"])
    copied["param_groups"] = [
        {**{name: it for name, it in own.items() if name not in given and _is_added(name, optimizer)}, **given}
        for own, given in groups
    ]
    return copied


def _is_setting(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_number(one) for one in value)
    return value is None or isinstance(value, (bool, str)) or _is_number(value)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, Tensor) else value


def with_group_settings(
    state: Mapping[str, Any], made: Sequence[Mapping[str, Any]], is_made_alike: bool = True
) -> tuple[Mapping[str, Any], list[str]]:
    """A saved state of an optimizer, with the settings of this optimizer where the saved one was made with others.

    Settings that both were made with keep their current values in the state, such as a learning rate that a hook has changed.

    Args:
        state: the saved state, which fits the optimizer.
        made: `group_settings` of the optimizer that loads it.
        is_made_alike: for states of older versions, which do not have these settings: whether both were made with the same.

    Returns:
        The state, and a description of each difference.
    """
    groups, found = [], []
    for index, (own, given) in enumerate(zip(made, state["param_groups"])):
        saved = state[_MADE][index] if _MADE in state else own if is_made_alike else _plain_group(given)
        names = [name for name in {**own, **saved} if (name in own and name in saved) or not _is_added(name)]
        others = {name for name in names if own.get(name) != saved.get(name)}
        place = f" of parameter group {index}" if index else ""
        found += [f"{name}{place} is {own.get(name)!r}, and was {saved.get(name)!r}" for name in sorted(others)]
        changed = {"lr", *others} if others & _OF_SCHEDULE else others
        groups.append({**given, **{name: _like(given[name], own[name]) for name in changed if name in own and name in given}})
    return {**state, "param_groups": groups}, list(dict.fromkeys(found))


def _plain_group(group: Mapping[str, Any]) -> dict[str, Any]:
    return group_settings([group])[0]


def _like(given: Any, value: Any) -> Any:
    """The value with the type of the given one, for tensors and tuples."""
    if isinstance(given, Tensor) and value is not None:
        return torch.full_like(given, value)
    return tuple(value) if isinstance(value, list) else value


def moments_of(optimizer: Optimizer, params: Sequence[Tensor]) -> dict[int, Any]:
    """A copy of an optimizer's moments by the place of their parameter in `params`, independent of its parameter groups."""
    return {place: copy.deepcopy(optimizer.state[param]) for place, param in enumerate(params) if param in optimizer.state}


def with_moments(state: Mapping[str, Any], optimizer: Optimizer, params: Sequence[Tensor], moments: Any) -> dict[str, Any]:
    """The state of an optimizer, with the moments of another one, from `moments_of`."""
    if not isinstance(moments, Mapping) or any(place not in range(len(params)) for place in moments):
        raise StateDictError(f'state["moments"] is {moments!r:.80}, expected a result of moments_of().')
    places = {id(param): place for place, param in enumerate(params)}
    grouped = [param for group in optimizer.param_groups for param in group["params"]]
    order = [places.get(id(param)) for param in grouped]
    loaded = {index: copy.deepcopy(dict(moments[place])) for index, place in enumerate(order) if place in moments}
    return {**state, "state": loaded, _KEPT: list(loaded)}


def require_optimizer_state(where: str, optimizer: Optimizer, state: Any, params: Sequence[Tensor] = ()) -> None:
    """Check that the parameter groups and moments of a saved state fit an optimizer.

    The expected moments are those that a copy of the optimizer has after one step.

    Args:
        where: key of the state, for messages.
        optimizer: the optimizer that loads the state.
        state: the saved state.
        params: the parameters whose places the state may name; see `optimizer_state`.

    Raises:
        StateDictError: an entry does not fit; the message names it.
    """
    kind = type(optimizer).__name__
    if not isinstance(state, Mapping) or not isinstance(state.get("state"), Mapping) or "param_groups" not in state:
        raise StateDictError(f"{where} is {state!r:.80}, expected the state of a {kind}.")
    own, given = optimizer.state_dict()["param_groups"], state["param_groups"]
    if not isinstance(given, (list, tuple)) or not all(_is_group(group) for group in given):
        raise StateDictError(
            f'{where}["param_groups"] is {given!r:.80}, expected a list of dicts, each with "params", a list of numbers.'
        )
    if [len(group["params"]) for group in own] != [len(group["params"]) for group in given]:
        theirs, mine = ([len(group["params"]) for group in groups] for groups in (given, own))
        raise StateDictError(
            f'{where}["param_groups"] has {theirs} parameters per group, and this {kind} has {mine} in "params".'
        )
    trial = _trial_of(optimizer)
    for index, group in enumerate(own):
        _require_settings(f'{where}["param_groups"][{index}]', trial, group, given[index])
    own_params = [param for group in optimizer.param_groups for param in group["params"]]
    _require_all_kept(where, state, len(own_params))
    if _MADE in state:
        _require_made(where, state, trial, own)
    if params and _PLACES in state and _sorted(state[_PLACES]) != (expected := sorted(_places(optimizer, params))):
        raise StateDictError(
            f'{where}["{_PLACES}"] is {state[_PLACES]!r:.80}, expected the numbers {expected!r:.80} in any order.'
        )
    wanted = _first_moments(where, trial, given)
    for index, moments in state["state"].items():
        if index not in range(len(own_params)):
            raise StateDictError(f'{where}["state"] has an entry {index!r}, and there are {len(own_params)} parameters.')
        _require_moments(f'{where}["state"][{index}]', own_params[index], moments, wanted.get(index))
    if wanted and not _has_finite_step(optimizer, state):
        _require_finite_step(where, trial, state)


def _trial_of(optimizer: Optimizer) -> Optimizer:
    """A copy with the same settings, with parameters of zeros and without moments."""
    memo: dict[int, Any] = {id(optimizer.state): defaultdict(dict)}
    for group in optimizer.param_groups:
        for param in group["params"]:
            memo[id(param)] = torch.zeros_like(param).requires_grad_(param.requires_grad)
    return copy.deepcopy(optimizer, memo)


def _is_group(group: object) -> bool:
    return isinstance(group, Mapping) and isinstance(group.get("params"), (list, tuple))


def _require_settings(place: str, trial: Optimizer, own: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise StateDictError for settings of a group that are missing, unknown, of another type, or not allowed. Those that
    something has added here may be missing, and those that a scheduler of torch has added there may be unknown."""
    kind = type(trial).__name__
    if unknown := [name for name in given if name not in own and name not in _OF_SCHEDULERS]:
        raise StateDictError(f"{place} has {unknown[0]!r}, which {kind} does not have: it was saved by another optimizer.")
    defaults = inspect.signature(type(trial)).parameters
    for name in own:
        if name not in given:
            if _is_added(name, trial):
                continue
            raise StateDictError(f"{place} lacks {name!r}, which {kind} has: it was saved by another optimizer.")
        if name != "params":
            may_lack = own[name] is None or (name in defaults and defaults[name].default is None)
            _require_setting(f"{place}[{name!r}]", own[name], given[name], may_lack)
            if isinstance(own[name], bool) and name not in _HOW and given[name] != own[name]:
                raise StateDictError(
                    f"{place}[{name!r}] is {given[name]!r}, and this {kind} has {own[name]!r}: set it to {own[name]!r}, or "
                    f"make the optimizer with {name}={given[name]!r}."
                )
    # Others could not be compared, as tensors; and torch would assign moments to other parameters than those checked here.
    if not all(type(index) is int for index in given["params"]) or list(given["params"]) != list(own["params"]):
        raise StateDictError(f"{place}['params'] is {given['params']!r:.80}, expected {own['params']!r:.80}.")
    checked = [name for name in defaults if name != "params" and name in own]
    mine = {name: own[name] for name in checked}
    if _refusal(trial, mine):
        return  # the constructor cannot be called like this
    for name in checked:
        if refusal := _refusal(trial, {**mine, name: given[name]}):
            raise StateDictError(
                f"{place}[{name!r}] is {given[name]!r:.80}, which {kind} does not allow ({refusal}); this optimizer has "
                f"{own[name]!r:.80}. Load an earlier checkpoint, or set an allowed value."
            )


def _require_setting(place: str, own: Any, given: Any, may_lack: bool = False) -> None:
    if isinstance(own, (list, tuple)):
        if not isinstance(given, (list, tuple)) or len(given) != len(own):
            raise StateDictError(f"{place} is {given!r:.80}, expected {len(own)} numbers as in {own!r:.80}.")
        for index, (one, other) in enumerate(zip(own, given)):
            _require_setting(f"{place}[{index}]", one, other)
    elif isinstance(own, bool) or own is None:
        if not (
            (given is None and (may_lack or own is None)) or isinstance(given, bool) or (own is None and _is_number(given))
        ):
            raise StateDictError(f"{place} is {given!r:.80}, expected a value such as {own!r}.")
    elif isinstance(own, (int, float, Tensor)):
        if not _is_number(given):
            found = f"a {type(given).__name__}" if not isinstance(given, Tensor) else _describe(given)
            raise StateDictError(f"{place} is {found}, expected a number or an array of numbers, such as {own!r:.80}.")
        if _is_finite(own) and not (_is_finite(given) and abs(float(given)) <= max(_MOST, abs(float(own)))):
            raise StateDictError(f"{place} is {given!r:.80}, and this optimizer has {own!r:.80}: load an earlier checkpoint.")


def _is_number(given: object) -> bool:
    if isinstance(given, Tensor):
        return is_plain(given) and given.numel() == 1 and not given.is_complex() and given.dtype != torch.bool
    return isinstance(given, (int, float)) and not isinstance(given, bool)


def _is_finite(number: Any) -> bool:
    try:
        return math.isfinite(float(number))
    except OverflowError:  # an integer that is too large for a float
        return False


def _describe(given: Tensor) -> str:
    return f"a tensor of {given.dtype}, {given.layout} on {given.device.type}"


def _refusal(trial: Optimizer, settings: Mapping[str, Any]) -> str:
    """The error that the constructor raises for these settings; empty if there is none."""
    try:
        type(trial)([param for group in trial.param_groups for param in group["params"]], **settings)
    except Exception as error:  # noqa: BLE001  optimizers raise different errors
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def _require_all_kept(where: str, state: Mapping[str, Any], count: int) -> None:
    """Raise StateDictError if the moments in a state are not those of the parameters listed in "kept"."""
    if _KEPT not in state:
        return  # an older state, or one from the optimizer's own state_dict()
    kept = state[_KEPT]
    if not isinstance(kept, (list, tuple)) or not all(type(index) is int and 0 <= index < count for index in kept):
        raise StateDictError(f'{where}["{_KEPT}"] is {kept!r:.80}, expected a list of indices of parameters.')
    lost = [index for index in kept if index not in list(state["state"])]
    if lost:
        raise StateDictError(
            f'{where}["state"] lacks {lost[0]!r}, the moments of a parameter: it had those of {kept!r:.80} when it was saved. '
            "Pass the whole result of state_dict()."
        )
    if more := [index for index in state["state"] if index not in kept and index in range(count)]:
        raise StateDictError(
            f'{where}["{_KEPT}"] is {kept!r:.80}, but {where}["state"] also has an entry {more[0]!r}. Pass the whole result of '
            "state_dict()."
        )


def _require_made(where: str, state: Mapping[str, Any], trial: Optimizer, own: Sequence[Mapping[str, Any]]) -> None:
    """Raise StateDictError if the settings that the saved optimizer was made with are not those of such an optimizer."""
    made, groups = state[_MADE], state["param_groups"]
    if not isinstance(made, (list, tuple)) or len(made) != len(own) or not all(isinstance(one, Mapping) for one in made):
        raise StateDictError(
            f'{where}["{_MADE}"] is {made!r:.80}, expected a dict of settings for each of {len(own)} parameter groups.'
        )
    for index, (group, given, mine) in enumerate(zip(groups, made, own)):
        place, points = f'{where}["{_MADE}"][{index}]', given.get("lr_schedule")
        optional = {"lr"} if points is not None else set()
        optional |= {name for name in mine if _is_added(name, trial)}
        if missing := [name for name in group_settings([mine])[0] if name not in given and name not in optional]:
            raise StateDictError(f"{place} lacks {missing[0]!r}, it has {sorted(map(str, given))}.")
        _require_settings(place, trial, mine, {**group, **{name: given[name] for name in given if name not in _OF_SCHEDULE}})
        if points is not None and not (isinstance(points, (list, tuple)) and points and all(map(_is_point, points))):
            raise StateDictError(
                f"{place}['lr_schedule'] is {points!r:.80}, expected points (gradient step, learning rate), or None."
            )
        _require_setting(f"{place}['lr_ratio']", 1.0, given.get("lr_ratio", 1.0))


def _is_point(point: object) -> bool:
    return isinstance(point, (list, tuple)) and len(point) == 2 and all(_is_number(one) and _is_finite(one) for one in point)


def _require_moments(where: str, param: Tensor, moments: Any, wanted: Mapping[str, Any] | None) -> None:
    if not isinstance(moments, Mapping):
        raise StateDictError(f"{where} is {moments!r:.80}, expected a dict of moments.")
    if wanted is None:  # unknown: then a moment must be a single number, or have the shape of its parameter
        wanted = {
            name: part if part.numel() == 1 else torch.empty_like(param)
            for name, part in moments.items()
            if isinstance(part, Tensor) and is_plain(part)
        }
    for name in [*wanted, *moments]:
        if (name in wanted) != (name in moments):
            raise StateDictError(f"{where} {'lacks' if name in wanted else 'has'} {name!r}: it was saved by another optimizer.")
        if isinstance(wanted[name], Tensor):
            if not isinstance(moments[name], Tensor):
                raise StateDictError(f"{where}[{name!r}] is a {type(moments[name]).__name__}, expected a tensor.")
            require_tensor(f"{where}[{name!r}]", wanted[name], moments[name], must_be_finite=True)


def _first_moments(where: str, trial: Optimizer, groups: Sequence[Mapping[str, Any]]) -> dict[int, Any]:
    """The moments of each parameter after one step of a copy with these settings; empty if they cannot be found."""
    try:
        _step(trial, {"state": {}, "param_groups": groups})
    except (ValueError, TypeError, KeyError) as error:
        raise StateDictError(f"{where} does not fit this {type(trial).__name__}: {error}") from None
    except RuntimeError:  # for example, an optimizer that needs sparse gradients
        return {}
    found: dict[int, Any] = trial.state_dict()["state"]
    return found


def _require_finite_step(where: str, trial: Optimizer, state: Mapping[str, Any]) -> None:
    """Raise StateDictError for impossible moments, such as negative squares, with which a step is not finite."""
    _step(trial, state)
    params = [param for group in trial.param_groups for param in group["params"]]
    for index, param in enumerate(params):
        if not bool(param.isfinite().all()):
            parts = state["state"].get(index, {})
            least = {name: part.min().item() for name, part in parts.items() if isinstance(part, Tensor) and part.numel()}
            raise StateDictError(
                f'{where}["state"][{index}] makes parameter {index} {param[~param.isfinite()][0].item()} in a step with zero '
                f"gradients; its smallest numbers are {least}. Load an earlier checkpoint."
            )


def _has_finite_step(optimizer: Optimizer, state: Mapping[str, Any]) -> bool:
    """Whether bounds show that a step of Adam with zero gradients is finite, without taking it. The moments are finite.

    The step changes a parameter by lr / (1 - beta_1^t) * m / (sqrt(v) + eps), so by at most lr / (1 - beta_1) * |m| / eps.
    """
    if type(optimizer).step not in (Adam.step, torch.optim.Adam.step, torch.optim.AdamW.step):
        return False
    for group in state["param_groups"]:
        rate, eps, beta = float(group["lr"]), float(group["eps"]), float(group["betas"][0])
        if not (eps >= _LEAST_EPS and rate >= 0 and 0 <= beta < 1):
            return False
        for index in group["params"]:
            moments = state["state"].get(index)
            if moments is not None and not _moves_little(moments, rate / (1 - beta) / eps):
                return False
    return True


def _moves_little(moments: Mapping[str, Any], factor: float) -> bool:
    """Whether the first moments times this factor are far from infinity, the second ones at least 0, and the steps too."""
    first, squares = moments["exp_avg"], [moments[name] for name in ("exp_avg_sq", "max_exp_avg_sq") if name in moments]
    if first.dtype not in (torch.float32, torch.float64) or not float(moments["step"]) >= 0:
        return False
    if not first.numel():
        return True
    low, high = (float(limit) for limit in first.aminmax())
    return max(-low, high) * factor < _FAR_FROM_INFINITY and all(float(one.min()) >= 0 for one in squares)


def _step(trial: Optimizer, state: Mapping[str, Any]) -> None:
    """Load this state, and take a step with parameters and gradients of zero."""
    trial.load_state_dict(copy.deepcopy({"state": dict(state["state"]), "param_groups": list(state["param_groups"])}))
    for group in trial.param_groups:
        for param in group["params"]:
            param.grad = torch.zeros_like(param)
            param.data.zero_()
    trial.step()
