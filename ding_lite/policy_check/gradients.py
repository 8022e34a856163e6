"""Checks of gradients in the dry run: the loss must reach weights that an optimizer changes, and no others."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.basics.blocks import block
from ding_lite.policy_check.hook_results import HookError
from ding_lite.policy_check.policy_restoring import reachable


class PolicyWithModel(Protocol):
    """The interface that `require_gradients` needs from a policy."""

    @property
    def model(self) -> nn.Module:
        """The networks."""

    @property
    def params(self) -> Sequence[nn.Parameter]:
        """The model's parameters."""


@block
def require_gradients(policy: PolicyWithModel) -> Iterator[None]:
    """Check the gradients that the block computes. Warns of weights outside of the model that no optimizer changes.

    Raises:
        HookError: no parameter of an optimizer gets a gradient.
    """
    if not policy.params:
        yield
        return
    kind, held = type(policy).__name__, _held(policy)
    trained = {id(param): param for _, thing in held for param in _optimized(thing)}
    beside = _beside_the_model(policy, held)
    for param in (*trained.values(), *(param for _, param in beside)):
        param.grad = None
    passed: list[bool] = []  # hooks may take a step and delete the gradients themselves
    watches: list[Any] = [it.register_hook(lambda _: passed.append(True)) for it in trained.values() if it.requires_grad]
    try:
        yield
    finally:
        for watch in watches:
            watch.remove()
    idle = {name: param for name, param in beside if param.grad is not None and id(param) not in trained}
    if not idle and (passed or any(param.grad is not None for param in trained.values())):
        return
    others = {id(param): param for thing in reachable(policy) for param in _optimized(thing)}  # for example of a trainer object
    if not passed and all(param.grad is None for param in {**trained, **others}.values()):
        raise HookError(
            f"loss of {kind} does not depend on any parameter that the optimizer changes, so that nothing would be learned: "
            "compute it from self.model, without detach() and outside torch.no_grad()."
        )
    for name in dict.fromkeys(name for name, param in idle.items() if id(param) not in others):
        warnings.warn(
            f"the loss of {kind} depends on weights of self.{name}, which no optimizer changes, so that they would never be "
            f"trained: make self.{name} a part of what make_model returns, or give it an optimizer that the policy holds.",
            stacklevel=2,
        )


def _beside_the_model(policy: PolicyWithModel, held: Sequence[tuple[str, Any]]) -> list[tuple[str, Tensor]]:
    """The weights outside of the model that may learn, each with the name of the attribute that holds it."""
    own, found = {id(param) for param in policy.params}, []
    for name, thing in held:
        if thing is not policy.model and id(thing) not in own:
            weights = thing.parameters() if isinstance(thing, nn.Module) else [thing] if isinstance(thing, Tensor) else ()
            found += [(name, it) for it in weights if it.requires_grad and it.is_leaf and id(it) not in own]
    return found


def _held(policy: PolicyWithModel) -> list[tuple[str, Any]]:
    """The modules, optimizers and tensors in the attributes of a policy, and in lists, tuples and dicts there, by attribute."""
    waiting, seen, found = [(name, value) for name, value in vars(policy).items() if name != "_attached"], set(), []
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, (list, tuple, dict)):
            if value and id(value) not in seen:
                seen.add(id(value))
                waiting += [(name, each) for each in (value.values() if isinstance(value, dict) else value)]
        elif isinstance(value, (nn.Module, Optimizer, Tensor)):
            found.append((name, value))
    return found


def _optimized(thing: Any) -> list[Any]:
    """The parameters of an optimizer; empty for other objects."""
    return [param for group in thing.param_groups for param in group["params"]] if isinstance(thing, Optimizer) else []
