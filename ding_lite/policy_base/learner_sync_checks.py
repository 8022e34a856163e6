"""Sync checks: what a script's policy and its learners have in common. A change of only one is an error, or a warning."""

from __future__ import annotations

import copy
import functools
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from ding_lite.basics import Config
from ding_lite.basics.comparisons import same_values
from ding_lite.policy_state import networks_of, tensors_in

_CHANGES = operator.attrgetter("_version")  # torch's counter of changes in place
_MOST_NAMES = 3
_MOST_COPIED = 10_000  # numbers
_OF_PYTHON: Mapping[type, Callable[[Any], Any]] = {str: str.__str__, int: int, float: float, complex: complex}
_PLAIN = (*_OF_PYTHON, np.generic)
_COUNTERS = ("train_iter", "version")  # which are part of the state


class Agreement:
    """The settings, weights and optimizers of a policy at the moment when its learners have the same.

    Args:
        policy: the policy of the script.
        earlier: an agreement that still holds for the settings; None if they are those of the learners.
    """

    def __init__(self, policy: Any, earlier: Agreement | None = None) -> None:
        self._settings: dict[str, Any] = plain_settings(policy.cfg) if earlier is None else earlier._settings
        self._first_settings: dict[str, Any] = _first_settings(policy) if earlier is None else earlier._first_settings
        parts = networks_of(policy).values()
        self._optimizers = [part for part in parts if isinstance(part, Optimizer)]
        self._groups = [_plain_groups(optimizer) for optimizer in self._optimizers]
        self._weights = policy.weights
        self._memory = [_memory(weight) for weight in self._weights if weight.device.type == "cpu"]
        self.note_weights()
        of_model = {id(weight) for weight in self._weights}  # another module may have some of them too
        held = (tensor for part in parts if part is not policy.model for tensor in _tensors_of(part))
        self._others = [tensor for tensor in held if id(tensor) not in of_model]
        self._of_others = _places(self._others)

    def note_weights(self) -> None:
        """Note that the weights of the model, in the same memory, are those of the learners."""
        self._of_weights, self._sums = _places(self._weights), _sums(self._memory)

    def require_same_settings(self, policy: Any, is_sent: bool) -> None:
        """Refuse changes of settings that the learners would not have.

        Args:
            policy: the policy.
            is_sent: whether the learners get the state of the policy before the next batch, and so do not have it yet.

        Raises:
            RuntimeError: a setting was changed by other means than `reset_config`.
        """
        if is_sent:  # with the settings that reset_config has changed
            changed = settings_apart(self._first_settings, _first_settings(policy))
        else:
            changed = settings_apart(self._settings, plain_settings(policy.cfg))
        if changed:
            names = ", ".join(f"cfg.{name}" for name in changed[:_MOST_NAMES])
            raise _changed(names, policy, "change settings by reset_config(), or before the policy is made")

    def require_same_tensors(self, policy: Any) -> None:
        """Refuse changes of weights and optimizers that the learners would not have, and that are lost when the policy takes
        their state. Changes by `.data` are noticed in weights of the model that are on the CPU.

        Raises:
            RuntimeError: something was changed by other means than the methods of the policy.
        """
        weights = policy.weights
        are_same = len(weights) == len(self._weights) and all(map(operator.is_, weights, self._weights))
        if not are_same or _places(weights) != self._of_weights or _sums(self._memory) != self._sums:
            raise _changed("the weights", policy, "change them by set_weights() or load_state_dict()")
        if [_plain_groups(optimizer) for optimizer in self._optimizers] != self._groups:
            raise _changed(
                "param_groups of an optimizer",
                policy,
                "change settings by reset_config(), such as {'lr': 1e-4}; make a scheduler of learning rates in "
                "after_init, with attach(), and step it in learn_on_batch",
            )
        if _places(self._others) != self._of_others:
            raise _changed(
                "tensors of a network outside of the model, or of an optimizer,",
                policy,
                "change them in a hook that learns, or by load_state_dict()",
            )


class ScriptAttributes:
    """The plain attributes of a policy, to warn of those that a script sets and its learners do not have.

    They are numbers, strings, arrays and tensors, without weights, counters and private ones of the library. Of large arrays
    and tensors, changes in place are not found, because each batch would copy and compare them.

    Args:
        policy: the policy of the script, at the end of its constructor.
    """

    def __init__(self, policy: Any) -> None:
        self._policy = type(policy)
        self._private: set[str] = {name for name in vars(policy) if name.startswith("_")}
        self._named = set[str]()  # one warning of each is enough
        self._made = self._known = self._plain(policy)

    def since_made(self, policy: Any) -> dict[str, Any]:
        """Those that are not as at the end of the constructor, by name. The learners may have them from a loaded state."""
        return self._since(self._made, policy)

    def note(self, policy: Any) -> None:
        """Note that those that changed since the last call are not changes of the script, or are known."""
        self._known = self._plain(policy)

    def warn_of_changes(self, policy: Any) -> None:
        """Warn of those that changed since the last call of `note`."""
        self.warn(self._since(self._known, policy))

    def warn(self, names: Iterable[str]) -> None:
        """Warn of those with these names. They are left out from then on."""
        new = list(names)
        self._named.update(new)
        if new:
            verb, values = ("were", "these values") if len(new) > 1 else ("was", "this value")
            warnings.warn(
                f"{', '.join(new)} of {self._policy.__name__} {verb} set in the script after the policy was made, and its "
                f"learners do not have {values}: write a setting of the configuration instead, or set it in __init__ or "
                "before_loss_init of the policy.",
                stacklevel=2,
            )

    def _since(self, before: Mapping[str, Any], policy: Any) -> dict[str, Any]:
        now = self._plain(policy)
        return {name: it for name, it in now.items() if name not in before or not _is_same(it, before[name])}

    def _plain(self, policy: Any) -> dict[str, Any]:
        return {
            name: _copied(value) for name, value in vars(policy).items() if _is_plain(value) and not self._is_left_out(name)
        }

    def _is_left_out(self, name: str) -> bool:
        is_cached = isinstance(getattr(self._policy, name, None), functools.cached_property)
        return is_cached or name in _COUNTERS or name in self._private or name in self._named


def _is_plain(value: Any) -> bool:
    if isinstance(value, Tensor):
        # Those with gradients are weights; a nested one has no shape.
        return not (value.requires_grad or value.is_meta or value.is_nested)
    return not value.dtype.hasobject if isinstance(value, np.ndarray) else isinstance(value, _PLAIN)


def _copied(value: Any) -> Any:
    """A copy that can be sent: a number or text of a class of its own as one of Python; a large array or tensor itself."""
    if not isinstance(value, (Tensor, np.ndarray)):
        return next((make(value) for kind, make in _OF_PYTHON.items() if isinstance(value, kind)), value)
    if math.prod(value.shape) > _MOST_COPIED:
        return value
    return value.detach().clone() if isinstance(value, Tensor) else value.copy()


def _is_same(value: Any, other: Any) -> bool:
    return value is other or same_values(value, other, dtypes=True)


def _changed(what: str, policy: Any, fix: str) -> RuntimeError:
    return RuntimeError(
        f"{what} of {type(policy).__name__} changed in the script, and its learners do not have this change: {fix}."
    )


def _first_settings(policy: Any) -> dict[str, Any]:
    """The settings, without the changes of `reset_config`."""
    return plain_settings(copy.deepcopy(policy.cfg).override(policy.first_settings))


def plain_settings(cfg: Config) -> dict[str, Any]:
    """The settings of a configuration, nested, as plain data."""
    return {name: _plain(value) for name, value in vars(cfg).items()}


def settings_apart(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The dotted names of the settings in which two results of `plain_settings` differ."""
    return [] if before == after else list(_apart(before, after, ""))


def _apart(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name in dict.fromkeys((*before, *after)):
        one, other = before.get(name), after.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping) and name in before and name in after:
            yield from _apart(one, other, f"{prefix}{name}.")
        elif one != other:
            yield f"{prefix}{name}"


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return plain_settings(value)
    kind = type(value)
    return kind(map(_plain, value)) if kind in (list, tuple) else dict(value) if kind is dict else value


def _plain_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The settings of each parameter group: numbers, also those in tensors, and flags."""
    return [
        {name: value.tolist() if isinstance(value, Tensor) else value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def _tensors_of(part: Any) -> Iterable[Tensor]:
    return tensors_in(dict(part.state)) if isinstance(part, Optimizer) else [*part.parameters(), *part.buffers()]


def _places(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Where each tensor is in memory, and how often it was changed in place."""
    return [(tensor.data_ptr(), 0 if tensor.is_inference() else _CHANGES(tensor)) for tensor in tensors]


def _memory(tensor: Tensor) -> NDArray[Any]:
    """The memory of a tensor on the CPU, as unsigned integers; it is not a copy."""
    data = torch.empty(0, dtype=torch.uint8).set_(tensor.detach().untyped_storage()).numpy()
    return data.view(np.uint64 if data.nbytes % 8 == 0 else np.uint8)


def _sums(memory: Iterable[NDArray[Any]]) -> list[int]:
    """A checksum of each array, because torch does not count changes of `.data`."""
    return [int(np.add.reduce(data, dtype=np.uint64)) for data in memory]
