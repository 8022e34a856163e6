"""Network states: what a run changes in networks that their `state_dict` does not have.

These are `requires_grad` of parameters, the modes and numbers of modules, and gradients that are added up over iterations.
Hooks cannot be saved.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ding_lite.basics.optional_attributes import attribute_of, has_attribute
from ding_lite.basics.origins import is_of_ding_lite, is_of_script
from ding_lite.engine.run_parts import network_holder

Settings = dict[str, Any]
"""By place, such as "net.0.weight.requires_grad": a bool, a number, a tuple of numbers or None."""

_MOST_ITEMS = 100  # of a list or dict, where networks are looked for
_NUMBERS = (bool, int, float, type(None))
_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)


class NetworkStates:
    """Compares the networks of a run with what they were at its beginning.

    A run that is resumed makes the same networks again, so its state needs only what has changed since then.
    """

    def __init__(self) -> None:
        self._first: dict[str, Settings] = {}
        self._first_optimizers: dict[str, dict[str, str]] = {}
        self._first_hooks: dict[str, dict[str, set[int]]] = {}
        self._reported: set[tuple[str, str]] = set()

    def begin(self, parts: Mapping[str, Any]) -> None:
        """Look at the networks of these objects now; objects that are known are left out."""
        for name, networks in _networks_of(parts).items():
            if name not in self._first:
                self._first[name], self._first_hooks[name] = _settings_of(networks), _hooks_of(networks)
        for name, part in parts.items():
            self._first_optimizers.setdefault(name, _optimizers_of(part))

    def state_dict(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """By the name of the object: what has changed in its networks, and their gradients."""
        found: dict[str, Any] = {}
        for name, networks in _networks_of(parts).items():
            first = self._first.get(name, {})
            changed = {
                place: value
                for place, value in _settings_of(networks).items()
                if place in first and not _are_same(first[place], value)
            }
            known = {place for place in _parameters_of(networks) if _joined(place, "requires_grad") in first}
            found_here = _gradients_of(parts[name], networks)
            gradients = {place: it for place, it in found_here.items() if place in known}  # others may be made later there
            if changed or gradients:
                found[name] = {"changed": changed, "gradients": gradients}
        return found

    def warnings(self, parts: Mapping[str, Any]) -> Iterator[str]:
        """A warning for each module with hooks that were added since the beginning, and for each optimizer that was replaced by
        one of another class; it names each once."""
        for name, part in parts.items():
            first = self._first_optimizers.get(name, {})
            for place, kind in _optimizers_of(part).items():
                if first.get(place, kind) != kind and (name, place) not in self._reported:
                    self._reported.add((name, place))
                    yield (
                        f"{type(network_holder(part)).__name__}.{place} was replaced during the run, {first[place]} by {kind}: "
                        f"a resumed run makes {first[place]} again, which cannot load that state. Use one optimizer for the "
                        "whole run, and change the settings of its param_groups, which are saved."
                    )
        for name, networks in _networks_of(parts).items():
            before = self._first_hooks.get(name, {})
            for place, hooks in _hooks_of(networks).items():
                if place in before and hooks - before[place] and (name, place) not in self._reported:
                    self._reported.add((name, place))
                    yield (
                        f"a hook was added to {_described(place, parts[name])} during the run, and no state can have it, so a "
                        "resumed run goes on without it. Add it before the run, where the module is made, and let it depend on "
                        "a number that is saved; if the resumed run adds it again by itself, ignore this."
                    )

    def require_fit(self, state: Any, parts: Mapping[str, Any], refuse: Callable[[str], Exception]) -> None:
        """Raise an error if a result of `state_dict` does not fit these objects.

        Args:
            state: the saved state.
            parts: the objects by name.
            refuse: makes the error of a message.
        """
        if not isinstance(state, Mapping):
            raise refuse(f"the state's ['networks'] is {state!r:.80}, expected a dict of changes")
        networks = _networks_of(parts)
        for name, saved in state.items():
            where = f"the state's ['networks'][{name!r}]"
            sections = [saved.get(key) for key in ("changed", "gradients")] if isinstance(saved, Mapping) else [None]
            if not all(isinstance(section, Mapping) for section in sections):
                raise refuse(f"{where} is {saved!r:.80}, expected a dict with 'changed' and 'gradients'")
            found = networks.get(name, {})
            now, params = _settings_of(found), _parameters_of(found)
            for place, value in saved["changed"].items():
                if place not in now:
                    raise refuse(f"{where} has {place!r}, which no network of {name} has here: make the same networks")
                is_flag = isinstance(now[place], bool)
                if isinstance(value, bool) != is_flag if is_flag else not _is_plain(value):
                    raise refuse(f"{where}['changed'][{place!r}] is {value!r:.80}, expected a value like {now[place]!r:.80}")
            for place, gradient in saved["gradients"].items():
                shape = attribute_of(gradient, "shape")
                if place not in params or shape is None or tuple(shape) != tuple(params[place].shape):
                    raise refuse(f"{where}['gradients'] has {place!r}, which fits no parameter of {name} here")

    def load_state_dict(self, state: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
        """Change the networks as they were changed in the saved run, and load the gradients."""
        for name, networks in _networks_of(parts).items():
            first, saved = self._first.get(name, {}), state.get(name, {"changed": {}, "gradients": {}})
            now = _settings_of(networks)
            wanted = {place: first[place] for place in first if place in now} | dict(saved["changed"])
            setters = _setters_of(networks)
            for place, value in wanted.items():
                if not _are_same(now.get(place), value):
                    setters[place](value)
            for place, param in _with_kept_gradients(parts[name], networks).items():
                gradient = saved["gradients"].get(place)
                param.grad = None if gradient is None else gradient.to(param.device, param.dtype).clone()


def _networks_of(parts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By the name of the object, its networks by the name of their attribute: "" for an object that is a network."""
    seen: set[int] = set()
    found: dict[str, dict[str, Any]] = {}
    for name, part in parts.items():
        if _is_network(part):
            inside = {"": part}
        else:
            inside = {}
            for attribute, value in attribute_of(network_holder(part), "__dict__", {}).items():
                inside |= {f"{attribute}{key}": one for key, one in _items_of(value) if _is_network(one)}
        new = {place: one for place, one in inside.items() if id(one) not in seen}
        seen.update(map(id, new.values()))
        if new:
            found[name] = new
    return found


def _optimizers_of(part: Any) -> dict[str, str]:
    """The classes of the optimizers in the attributes of an object, by attribute."""
    held = attribute_of(network_holder(part), "__dict__", {})
    return {name: type(one).__name__ for name, one in held.items() if has_attribute(one, "param_groups")}


def _described(place: str, part: Any) -> str:
    kind = type(network_holder(part)).__name__
    return f"the module {place} of {kind}" if place else f"the network {kind}"


def _items_of(value: Any) -> Iterator[tuple[str, Any]]:
    if type(value) in (list, tuple):
        yield from ((f"[{index}]", one) for index, one in enumerate(value[:_MOST_ITEMS]))
    elif type(value) is dict:
        yield from ((f"[{key!r}]", one) for key, one in itertools.islice(value.items(), _MOST_ITEMS))
    else:
        yield "", value


def _is_network(value: Any) -> bool:
    is_object = not isinstance(value, type) and has_attribute(type(value), "named_parameters")
    return is_object and has_attribute(type(value), "named_modules")


def _modules_of(networks: Mapping[str, Any]) -> dict[str, Any]:
    """Each module once, by its place."""
    found: dict[int, tuple[str, Any]] = {}
    for place, network in networks.items():
        for name, module in network.named_modules():
            found.setdefault(id(module), (_joined(place, name), module))
    return dict(found.values())


def _parameters_of(networks: Mapping[str, Any]) -> dict[str, Any]:
    """Each parameter once, by its place."""
    found: dict[int, tuple[str, Any]] = {}
    for place, network in networks.items():
        for name, param in network.named_parameters():
            found.setdefault(id(param), (_joined(place, name), param))
    return dict(found.values())


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place and name else place or name


def _settings_of(networks: Mapping[str, Any]) -> Settings:
    found = {_joined(place, "requires_grad"): param.requires_grad for place, param in _parameters_of(networks).items()}
    for place, module in _modules_of(networks).items():
        found |= {_joined(place, name): getattr(module, name) for name in _numbers_in(module)}
    return found


def _setters_of(networks: Mapping[str, Any]) -> dict[str, Callable[[Any], None]]:
    """A function for each of these settings that changes it."""
    setters: dict[str, Callable[[Any], None]] = {}
    for place, param in _parameters_of(networks).items():
        setters[_joined(place, "requires_grad")] = param.requires_grad_
    for place, module in _modules_of(networks).items():
        for name in _numbers_in(module):
            setters[_joined(place, name)] = functools.partial(setattr, module, name)
    return setters


def _numbers_in(module: Any) -> list[str]:
    """The mode of a module, and the numbers in its attributes, such as the momentum of a BatchNorm. Those that a class of the
    script adds are left out, because the script may save them itself; `Memories` names them otherwise."""
    if is_of_script(type(module).__module__):
        return ["training"]
    return [name for name, value in vars(module).items() if not name.startswith("_") and _is_plain(value)]


def _is_plain(value: Any) -> bool:
    return type(value) in _NUMBERS or (type(value) is tuple and all(type(one) in _NUMBERS for one in value))


def _are_same(one: Any, other: Any) -> bool:
    """Whether two settings are equal; a NaN is equal to itself."""
    return repr(one) == repr(other)


def _hooks_of(networks: Mapping[str, Any]) -> dict[str, set[int]]:
    """The keys of the hooks of each module by its place; torch never gives a key twice."""
    return {
        place: {key for name in _HOOKS for key in attribute_of(module, name, ())}
        for place, module in _modules_of(networks).items()
    }


def _with_kept_gradients(part: Any, networks: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters whose gradients of an iteration may count in a later one, by place.

    An object may say it of each parameter, with a method `keeps_gradient`. Other classes of this library keep none.
    """
    holder = network_holder(part)
    keeps = attribute_of(holder, "keeps_gradient")
    if keeps is None and is_of_ding_lite(type(holder).__module__):
        return {}
    return {place: param for place, param in _parameters_of(networks).items() if keeps is None or keeps(param)}


def _gradients_of(part: Any, networks: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the kept dense gradients that are not zero, by the place of their parameter."""
    gradients = {place: param.grad for place, param in _with_kept_gradients(part, networks).items()}
    return {
        place: gradient.detach().clone()
        for place, gradient in gradients.items()
        if gradient is not None and not gradient.is_sparse and bool(gradient.count_nonzero())
    }
