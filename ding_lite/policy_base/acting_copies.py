"""Acting copies: the copies of a policy that collect and evaluate, here and in workers."""

from __future__ import annotations

import copy
import random
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from ding_lite.metrics import MetricsLogger
from ding_lite.policy_base.acting import ActMode
from ding_lite.policy_base.learning import LearnMode

ROLES = {"learn": 0, "collect": 1, "evaluate": 2}
"""Number of each role in the seeds of its random generators."""


def acting_copy(policy: Any, role: str, index: int = 0, device: torch.device | None = None) -> Any:
    """A copy of a policy that acts: its own model, which does not learn, its own random generators, and no optimizer.

    Args:
        policy: a `Policy`.
        role: "collect" or "evaluate".
        index: of the worker that it acts for; each has other random numbers.
        device: where it acts; None for the policy's own.
    """
    actor = copy.copy(policy)
    actor.is_copy = True
    copies: dict[int, Any] = {}
    actor.device = device or policy.device
    with torch.inference_mode(False):  # wherever it is first asked for: its weights are going to be overwritten
        actor.model = copy.deepcopy(policy.model, copies).to(actor.device).requires_grad_(False).eval()
    for name, value in vars(policy).items():
        if isinstance(value, (Optimizer, ActMode, LearnMode)):
            delattr(actor, name)
        elif isinstance(value, (torch.Generator, np.random.Generator, random.Random)):
            setattr(actor, name, reseeded(value, [policy.seed, ROLES[role], index, zlib.crc32(name.encode())]))
        elif name != "model" and holds_weights(value):
            setattr(actor, name, copies.get(id(value)) or NotOnActor(name, type(policy).__name__))
    actor.params = list(actor.model.parameters())
    actor._snapshot, actor._attached, actor._loaded = None, {}, {}
    actor.hook_metrics = MetricsLogger(owner=policy.hook_metrics.owner)
    if vars(actor).get("metrics") is policy.hook_metrics:
        del vars(actor)["metrics"]
    if policy.has_own_weights:
        actor.copy_weights(policy)
    actor.make_generators(role, index)
    return actor


def holds_weights(thing: Any) -> bool:
    """Whether it is a network with weights or running statistics, or a list, tuple or dict of such."""
    if isinstance(thing, nn.Module):
        return any(True for _ in (*thing.parameters(), *thing.buffers()))
    if isinstance(thing, Mapping):
        return any(map(holds_weights, thing.values()))
    return isinstance(thing, (list, tuple)) and any(map(holds_weights, thing))


def reseeded(generator: Any, seed: Sequence[int]) -> Any:
    """A random generator of the same kind, of torch, numpy or Python, from this seed."""
    number = int(np.random.default_rng(seed).integers(2**63))
    if isinstance(generator, torch.Generator):
        return torch.Generator(generator.device).manual_seed(number)
    if isinstance(generator, np.random.Generator):
        return np.random.Generator(type(generator.bit_generator)(number))
    return random.Random(number)


class NotOnActor:
    """Stands on a copy that acts for a network beside the model, which only the policy that learns has.

    Args:
        name: of the attribute.
        policy: name of its class.
    """

    def __init__(self, name: str, policy: str) -> None:
        self._message = (
            f"{policy}.{name} is a network beside the model, which the copies that act do not have, since nothing would bring "
            "it up to date: make it a part of what make_model gives."
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # as copying and pickling ask for them
        raise AttributeError(self._message)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise AttributeError(self._message)

    __call__ = __getitem__ = __iter__ = __len__ = _refuse

    def __bool__(self) -> bool:
        return True
