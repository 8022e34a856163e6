"""Restoring: a policy is put back as it was before the dry run."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Generator, Tensor, nn

from ding_lite.metrics import MetricsLogger

_LARGEST = 1 << 24  # numbers in an array or tensor that is copied; what is larger is data, not what a hook counts with


class RestorablePolicy(Protocol):
    """What is asked of a policy that is put back as it was."""

    hook_metrics: MetricsLogger
    """Takes numbers from its hooks."""

    @property
    def dry_run_results(self) -> dict[str, Any]:
        """What the dry run finds out, which stays."""

    def generator_state(self) -> dict[str, Any]:
        """Where its random numbers are."""

    def load_generator_state(self, state: Mapping[str, Any], /) -> None:
        """Go on with these random numbers."""


@contextlib.contextmanager
def restoring_state(policy: RestorablePolicy) -> Iterator[None]:
    """Restore, after the block, random states, statistics of modules and attributes of the policy, also after changes in place.

    The global generators of torch, numpy and Python are restored as well, and gradients are deleted. Lists, dicts, sets, arrays
    and tensors keep their identity, since functions may hold them too. `policy.dry_run_results` stays. Weights, the optimizer
    and attributes of objects of other classes are not restored: the dry run takes no step.
    """
    attributes, put_back = dict(vars(policy)), list(_memories(policy))
    generators, pythons, numpys = policy.generator_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    if vars(policy).get("metrics") is policy.hook_metrics:
        del vars(policy)["metrics"]
    policy.hook_metrics = MetricsLogger(owner=policy.hook_metrics.owner)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        vars(policy).clear()
        vars(policy).update(attributes)
        for restore in put_back:
            restore()
        policy.load_generator_state(generators)
        random.setstate(pythons)
        np.random.set_state(numpys)  # noqa: NPY002


def _memories(policy: RestorablePolicy) -> Iterator[Callable[[], object]]:
    """A function for each thing that it holds, which puts its present contents back."""
    seen = {id(policy.dry_run_results)}
    waiting = list(vars(policy).values())
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, nn.Module):
            waiting += thing.buffers()
        elif isinstance(thing, (list, tuple, set, deque)):
            waiting += thing
        elif isinstance(thing, MutableMapping):
            waiting += thing.values()
        restore = _memory(thing)
        if restore is not None:
            yield restore


def _memory(thing: Any) -> Callable[[], object] | None:
    if isinstance(thing, nn.Module):
        return thing.zero_grad
    if isinstance(thing, (list, deque)):
        items = list(thing)
        return lambda: (thing.clear(), thing.extend(items))
    if isinstance(thing, (dict, set)):
        contents = thing.copy()
        return lambda: (thing.clear(), thing.update(contents))
    if isinstance(thing, np.ndarray) and thing.size <= _LARGEST and thing.flags.writeable:
        array = thing.copy()
        return lambda: np.copyto(thing, array)
    if isinstance(thing, Tensor) and not thing.requires_grad and thing.numel() <= _LARGEST:
        tensor = thing.detach().clone()
        return lambda: thing.copy_(tensor)
    if isinstance(thing, np.random.Generator):
        bits, state = thing.bit_generator, thing.bit_generator.state
        return lambda: setattr(bits, "state", state)
    if isinstance(thing, Generator):
        torch_state = thing.get_state()
        return lambda: thing.set_state(torch_state)
    return None
