"""Network copies: deep copies of networks and policies, and the extra state of modules, which is neither parameter nor buffer.

`copy.deepcopy` refuses tensors that belong to the graph of a loss, such as features that `forward` keeps in an attribute.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_EXTRA = "_extra_state"  # torch's key in a `state_dict`, after the name of the module


def detached_copy(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A deep copy, in which tensors that belong to the graph of a loss are detached. The value itself is not changed.

    Args:
        value: a network, a policy, a state, or any other value that `copy.deepcopy` can copy.
        memo: copies that were made before, by the id of the original, as for `copy.deepcopy`. It is extended.

    Example:
        >>> import torch
        >>> net = nn.Linear(2, 1)
        >>> net.features = net(torch.zeros(2))
        >>> detached_copy(net).features.requires_grad, net.features.requires_grad
        (False, True)
    """
    with _Detaching():
        return copy.deepcopy(value, memo)


class _Detaching(TorchFunctionMode):
    """A context in which `copy.deepcopy` detaches the tensors that it refuses, wherever they are."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = tensor.detach().clone()
            return memo[id(tensor)]
        return func(*args, **(kwargs or {}))


def is_extra_state(name: str) -> bool:
    """Whether this key of a module's `state_dict` has what `get_extra_state` of a module returns."""
    return name.rpartition(".")[2] == _EXTRA


def extra_states(module: nn.Module) -> dict[str, Any]:
    """Copies of the extra state of a module and its submodules, by their key in its `state_dict`.

    Only modules that override `get_extra_state` have one.
    """
    return {name: detached_copy(part.get_extra_state()) for name, part in parts_with("get_extra_state", module).items()}


def load_extra_states(module: nn.Module, states: Mapping[str, Any]) -> None:
    """Load a result of `extra_states`. The modules get copies, which they may change in place."""
    for name, part in parts_with("set_extra_state", module).items() if states else ():
        if name in states:
            part.set_extra_state(detached_copy(states[name]))


def copy_extra_states(source: nn.Module, target: nn.Module) -> None:
    """Give a network the extra state of another one of the same class. Modules that both share are left out."""
    parts = parts_with("set_extra_state", target)
    if not parts:
        return
    shared = set(map(id, source.modules())).intersection(map(id, target.modules()))
    states = extra_states(source)
    load_extra_states(target, {name: states[name] for name, part in parts.items() if name in states and id(part) not in shared})


def load_network(module: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a result of `state_dict` of a module. If it is refused, the module is as before.

    Args:
        module: the module.
        state: a result of its `state_dict`. Its extra states are copied first, because modules may keep them.

    Raises:
        RuntimeError: a name is missing or unknown, or a tensor has another shape.
        Exception: an error of `set_extra_state`.
    """
    before = detached_copy(module.state_dict())
    try:
        module.load_state_dict({name: detached_copy(it) if is_extra_state(name) else it for name, it in state.items()})
    except Exception:
        module.load_state_dict(before)  # some tensors may have been loaded
        raise


def on_cpu(value: Any) -> Any:
    """A deep copy of a value, with the tensors in dicts, lists and tuples detached and on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if type(value) in (list, tuple):
        return type(value)(map(on_cpu, value))
    return {name: on_cpu(part) for name, part in value.items()} if type(value) is dict else detached_copy(value)


def parts_with(method: str, module: nn.Module) -> dict[str, nn.Module]:
    """The modules that override a method of `nn.Module` for extra states, by their key in the `state_dict`."""
    plain = getattr(nn.Module, method)
    return {
        f"{name}.{_EXTRA}" if name else _EXTRA: part
        for name, part in module.named_modules()
        if getattr(type(part), method, plain) is not plain
    }
