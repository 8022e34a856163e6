"""Networks: the networks and optimizers that a policy holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

_KINDS = (nn.Module, Optimizer)


def networks_of(policy: Any) -> dict[str, Any]:
    """The networks and optimizers of a policy by the name of their attribute. Parts of the model are left out.

    Those in an attribute that is a list, tuple or dict of networks and optimizers have names such as "critics/0".
    """
    in_model = {id(module) for module in policy.model.modules()}
    found: dict[str, Any] = {}
    for name, value in list(vars(policy).items()):
        if isinstance(value, _KINDS):
            found[name] = value
        elif isinstance(value, (list, tuple, dict)) and name != "_attached":
            found.update({f"{name}/{key}": part for key, part in _parts(value)})
    return {name: thing for name, thing in found.items() if name == "model" or id(thing) not in in_model}


def _parts(held: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """The networks and optimizers in a list, tuple or dict, each with its place; none if something else is in it."""
    parts = held.values() if isinstance(held, dict) else held
    if not all(isinstance(part, _KINDS) for part in parts):  # the first other object ends this, for example in a list of data
        return ()
    return held.items() if isinstance(held, dict) else enumerate(held)
