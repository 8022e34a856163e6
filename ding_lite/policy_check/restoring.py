"""Restoring the state of a policy after the dry run."""

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

_LARGEST = 1 << 24  # elements of an array or tensor that is restored; larger ones are data sets, which hooks do not change


class RestorablePolicy(Protocol):
    """The interface that `restoring_state` needs from a policy."""

    hook_metrics: MetricsLogger
    """The logger of the hooks."""

    @property
    def dry_run_results(self) -> dict[str, Any]:
        """Results of the dry run, which are not restored."""

    def generator_state(self) -> dict[str, Any]:
        """The states of the random generators."""

    def load_generator_state(self, state: Mapping[str, Any], /) -> None:
        """Load the states of the random generators."""


@contextlib.contextmanager
def restoring_state(policy: RestorablePolicy) -> Iterator[None]:
    """Restore the state of a policy after the block: its attributes, buffers of modules, and random generators.

    Changes in place are undone too: lists, dicts, sets, arrays and tensors get their old contents and stay the same objects,
    because functions may refer to them. The global generators of torch, numpy and Python are restored, and gradients are
    deleted. `policy.dry_run_results` is not restored. Neither are the weights, the optimizer, and attributes of objects of
    other classes, because the dry run takes no gradient step; nor arrays and tensors of more than 2**24 elements.
    """
    attributes, put_back = dict(vars(policy)), list(_restore_functions(policy))
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


def _restore_functions(policy: RestorablePolicy) -> Iterator[Callable[[], object]]:
    """For each mutable object that the policy holds, a function that restores its current contents."""
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
        restore = _restore_function(thing)
        if restore is not None:
            yield restore


def _restore_function(thing: Any) -> Callable[[], object] | None:
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
