"""Acting copies: the copies of a policy that collect and evaluate, in this process and in workers.

`acting_copy` makes one. `ActingWeights.current` (`acting_weights.py`) loads new weights into it. Workers get weights with a
request, if the weights have changed since the previous one.
"""

from __future__ import annotations

import copy
import random
import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from ding_lite.metrics import MetricsLogger
from ding_lite.policy_base.act_modes import ActMode
from ding_lite.policy_base.learn_modes import LearnMode
from ding_lite.policy_state.network_copies import detached_copy

ROLES = {"learn": 0, "collect": 1, "evaluate": 2, "predict": 3}
"""The number that stands for each role in the seeds of random generators."""
_SHARED = ("model", "params", "dry_run_results")  # the first two are replaced; the results are the same for all copies
_LIBRARIES = ("ding_lite", "gymnasium")  # their objects, such as buffers and environments, may be large and are never weights


def acting_copy(policy: Any, role: str, index: int = 0, device: torch.device | None = None) -> Any:
    """Copy a policy for acting: the copy has its own model without gradients, its own random generators, and no optimizer.

    Other attributes are shared with the policy. If the policy overrides `get_weights`, the copy has its own copies of these
    attributes instead (see `own_copy`), so that `set_weights` of the copy may write in place. Networks outside of the model are
    replaced by `NotOnActor`.

    Args:
        policy: a `Policy`.
        role: "collect", "evaluate" or "predict".
        index: index of the worker; the copies of different workers draw different random numbers.
        device: device of the copy; None for the policy's device.
    """
    actor = copy.copy(policy)
    actor.is_copy, actor.learners, actor.constructed_with = True, None, None
    copies: dict[int, Any] = {}
    actor.device = device or policy.device
    with torch.inference_mode(False):  # the weights are overwritten later, which inference tensors do not allow
        actor.model = detached_copy(policy.model, copies).to(actor.device).requires_grad_(False).eval()
    copies[id(policy)] = actor
    for name, value in vars(policy).items():
        if isinstance(value, (Optimizer, ActMode, LearnMode)):
            delattr(actor, name)
        elif isinstance(value, (torch.Generator, np.random.Generator, random.Random)):
            setattr(actor, name, reseeded(value, [policy.rank_seed, ROLES[role], index, zlib.crc32(name.encode())]))
        elif name != "model" and holds_weights(value):
            setattr(actor, name, copies.get(id(value)) or NotOnActor(name, type(policy).__name__))
        elif policy.has_own_weights and name not in _SHARED:
            setattr(actor, name, own_copy(value, copies))
    actor.params = list(actor.model.parameters())
    # A test names every attribute that a copy shares, so that a new one cannot be shared by mistake.
    actor._snapshot, actor._attached, actor._loaded, actor._nonfinite_steps = None, {}, {}, None
    actor.compiled_steps = actor._attributes_of_acting = None
    actor.hook_metrics = MetricsLogger(owner=policy.hook_metrics.owner)
    if vars(actor).get("metrics") is policy.hook_metrics:
        del vars(actor)["metrics"]
    if policy.has_own_weights:
        actor.copy_weights(policy)
    actor.make_generators(role, index)
    return actor


def holds_weights(thing: Any) -> bool:
    """Whether this is a module with parameters or buffers, or a list, tuple or mapping that contains one."""
    if isinstance(thing, nn.Module):
        return any(True for _ in (*thing.parameters(), *thing.buffers()))
    if isinstance(thing, Mapping):
        return any(map(holds_weights, thing.values()))
    return isinstance(thing, (list, tuple)) and any(map(holds_weights, thing))


def own_copy(thing: Any, copies: dict[int, Any]) -> Any:
    """A deep copy of an attribute. Objects in it that cannot be copied, and those of the library and of gymnasium, are shared.

    Args:
        thing: the attribute.
        copies: copies that were made before, by the id of the original, as for `detached_copy`. It is extended.
    """
    if id(thing) in copies:
        return copies[id(thing)]
    kind = type(thing)
    if kind in (list, set, deque):
        copied = copies[id(thing)] = copy.copy(thing)  # with the same maxlen
        copied.clear()
        (copied.update if kind is set else copied.extend)(own_copy(part, copies) for part in thing)
    elif kind in (dict, OrderedDict, defaultdict):
        copied = copies[id(thing)] = copy.copy(thing)
        copied.update({key: own_copy(value, copies) for key, value in thing.items()})
    elif kind is tuple:
        copied = tuple(own_copy(part, copies) for part in thing)
    elif kind is np.ndarray and type(thing.base) is np.ndarray and thing.base.flags.forc and not thing.dtype.hasobject:
        memory = own_copy(thing.base, copies)  # shared with the copies of other views of it
        offset = thing.ctypes.data - thing.base.ctypes.data
        copied = np.ndarray(thing.shape, thing.dtype, memory, offset, thing.strides)
    elif kind.__module__.partition(".")[0] in _LIBRARIES:
        return thing
    else:
        try:
            return detached_copy(thing, copies)
        except Exception:  # noqa: BLE001 - it calls code of the object
            return thing
    copies[id(thing)] = copied
    return copied


def reseeded(generator: Any, seed: Sequence[int]) -> Any:
    """A random generator of torch, numpy or Python, the same kind as this one, with this seed."""
    number = int(np.random.default_rng(seed).integers(2**63))
    if isinstance(generator, torch.Generator):
        return torch.Generator(generator.device).manual_seed(number)
    if isinstance(generator, np.random.Generator):
        return np.random.Generator(type(generator.bit_generator)(number))
    return random.Random(number)


class NotOnActor:
    """Placeholder on an acting copy for a network outside of the model; using it raises AttributeError.

    Args:
        name: name of the attribute.
        policy: name of the policy's class.
    """

    def __init__(self, name: str, policy: str) -> None:
        self._message = (
            f"{policy}.{name} is a network outside of the model. Acting copies do not have it, because only the weights of the "
            "model are copied to them: make it a part of the module that make_model returns."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # copy and pickle look these up
        raise AttributeError(self._message)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise AttributeError(self._message)

    __call__ = __getitem__ = __iter__ = __len__ = _refuse

    def __bool__(self) -> bool:
        return True
