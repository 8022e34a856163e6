"""Restoring the state of a policy after the dry run."""

from __future__ import annotations

import array
import contextlib
import functools
import operator
import random
import sys
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from threading import Thread
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType, NoneType, SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.parameter import is_lazy

from ding_lite.basics.blocks import block
from ding_lite.metrics import MetricsLogger

_LARGEST = 1 << 24  # elements of an array or tensor that is restored; larger ones are data sets, which hooks do not change
_MOST = (
    5000  # objects of classes whose attributes are restored, so that the walk ends soon if a policy refers to a whole program
)
_IMMUTABLE = {NoneType, bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, np.dtype}
_IMMUTABLE |= {FunctionType, MethodType, BuiltinFunctionType, ModuleType, *np.sctypeDict.values()}
_BUILT_IN = {
    list,
    tuple,
    dict,
    set,
    frozenset,
    deque,
    OrderedDict,
    Tensor,
    nn.Parameter,
    np.ndarray,
    Generator,
    np.random.Generator,
}
_HOOKS = "_backward_hooks", "_post_accumulate_grad_hooks"  # of `Tensor.register_hook` and its like; a dict each, or None
_EMPTY: dict[str, Any] = {}
_MISSING = object()
_PLAIN = SimpleNamespace, UserDict, UserList  # classes of the standard library that are made of their attributes
# Modes refer to the policy, and to acting copies, which the dry run remakes. Compiled steps hold hundreds of objects, which no
# hook changes.
_PARTS = "learn_mode", "collect_mode", "eval_mode", "predict_mode", "compiled_steps"


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


@block
def restoring_state(policy: RestorablePolicy) -> Iterator[None]:
    """Restore the state of a policy after the block: its attributes, and the objects that it can reach through them.

    Changes in place are undone too, and objects stay the same objects, because functions may refer to them: lists, dicts, sets,
    arrays and tensors; weights, buffers, `requires_grad`, hooks and the mode of modules and parameters; states and settings of
    optimizers; attributes of other objects; random generators. The global generators of torch, numpy and Python are restored,
    and gradients are deleted.

    Not restored: `policy.dry_run_results`; attributes of classes; iterators, such as `itertools.count()`, and open files;
    what only functions or objects of the standard library refer to; arrays and tensors of more than 2**24 elements; and
    attributes of more than 5,000 objects.
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
        own = vars(policy)
        for name in [name for name in own if name not in attributes]:
            del own[name]
        own.update(attributes)  # without a moment at which another thread would find no attributes
        for restore in put_back:
            restore()
        policy.load_generator_state(generators)
        random.setstate(pythons)
        np.random.set_state(numpys)  # noqa: NPY002


def _restore_functions(policy: RestorablePolicy) -> Iterator[Callable[[], object]]:
    """For each mutable object that the policy can reach, a function that restores its current contents."""
    for thing, attributes in _walk(policy, policy.dry_run_results):
        if attributes is not None:
            yield attributes.restore
        restore = None if isinstance(thing, nn.Module) else _restore_function(thing)
        if restore is not None:
            yield restore


def reachable(policy: object) -> Iterator[Any]:
    """The mutable objects that a policy can reach, as far as `restoring_state` looks for them."""
    return (thing for thing, _ in _walk(policy))


def _walk(policy: object, *excluded: object) -> Iterator[tuple[Any, _Attributes | None]]:
    """The mutable objects that a policy can reach, each with its attributes if these are restored."""
    seen = {id(policy), *map(id, excluded), *(id(vars(policy).get(name)) for name in _PARTS)}
    waiting = deque(vars(policy).values())
    left = _MOST
    while waiting:
        thing = waiting.popleft()
        kind = type(thing)
        if kind in _IMMUTABLE or id(thing) in seen:
            continue
        seen.add(id(thing))
        attributes = None
        if kind not in _BUILT_IN and (left or isinstance(thing, nn.Module)) and _has_attributes(thing):
            left -= not isinstance(thing, nn.Module)
            attributes = _Attributes(thing)
            waiting += attributes.held
        yield thing, attributes
        if isinstance(thing, nn.Module):
            continue
        if isinstance(thing, (list, tuple, set, frozenset, deque)):
            waiting += thing
        elif isinstance(thing, np.ndarray):
            waiting += thing.ravel().tolist() if thing.dtype == object and thing.size <= _LARGEST else ()
        elif isinstance(thing, Tensor):
            waiting += vars(thing).values()
        elif isinstance(thing, dict) or (kind not in _BUILT_IN and isinstance(thing, MutableMapping)):
            waiting += thing.values()


def _has_attributes(thing: Any) -> bool:
    """Whether the attributes of an object are restored: not those of tensors, classes, threads and the standard library."""
    if isinstance(thing, (Tensor, type, Thread)):
        return False
    return type(thing).__module__.partition(".")[0] not in sys.stdlib_module_names or isinstance(thing, _PLAIN)


class _Attributes:
    """The attributes of an object, and the contents of those that are dicts: a module has a dozen of these, mostly empty."""

    def __init__(self, thing: Any) -> None:
        kind: Any = type(thing)
        self._slots = [(slot, getattr(thing, slot.__name__, _MISSING)) for slot in _slots(kind)]
        self._thing = thing
        self.held = [value for _, value in self._slots]
        """The values of the attributes that may be mutable."""
        self._dicts: list[tuple[dict[str, Any], dict[str, Any]]] = []
        own: Any = getattr(thing, "__dict__", None)
        if type(own) is dict:
            self._dicts.append((own, own.copy()))
            for value in own.values():
                if type(value) in (dict, OrderedDict):
                    self._dicts.append((value, dict(value) if value else _EMPTY))
                    if value:
                        self.held += value.values()
                elif type(value) not in _IMMUTABLE:
                    self.held.append(value)

    def restore(self) -> None:
        """Give the attributes their old values. Dicts that have not changed are not touched."""
        for slot, value in self._slots:
            if value is not _MISSING:
                slot.__set__(self._thing, value)
            elif hasattr(self._thing, slot.__name__):
                slot.__delete__(self._thing)
        for now, before in self._dicts:
            if (now or before) and not _same(now, before):
                _refill(now, before)


@functools.cache
def _slots(kind: Any) -> list[Any]:
    """The descriptors of the `__slots__` of a class and of its bases."""
    own = (vars(base) for base in kind.__mro__ if "__slots__" in vars(base))
    return [slot for names in own for slot in names.values() if isinstance(slot, MemberDescriptorType)]


def _same(now: Mapping[Any, Any], before: Mapping[Any, Any]) -> bool:
    """Whether two dicts have the same objects in the same order. Arrays cannot be compared with `==`."""
    return (
        len(now) == len(before)
        and all(map(operator.is_, now.values(), before.values()))
        and all(map(operator.is_, now, before))
    )


def _alike(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether two sequences have the same objects in the same order."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _refill(thing: Any, contents: Any) -> None:
    """Give a list, deque, dict or set its old contents."""
    thing.clear()
    (thing.extend if isinstance(thing, (list, deque)) else thing.update)(contents)


def _restore_function(thing: Any) -> Callable[[], object] | None:
    if isinstance(thing, Tensor):
        return _restore_tensor(thing)
    if isinstance(thing, (list, deque)):
        items = list(thing)
        return lambda: None if _alike(thing, items) else _refill(thing, items)
    if isinstance(thing, dict):
        contents = thing.copy()
        return lambda: None if _same(thing, contents) else _refill(thing, contents)
    if isinstance(thing, set):
        elements = thing.copy()
        return lambda: _refill(thing, elements)
    if isinstance(thing, np.ndarray) and thing.size <= _LARGEST and thing.flags.writeable:
        copied = thing.copy()
        return lambda: np.copyto(thing, copied)
    if isinstance(thing, (bytearray, array.array)):
        sequence = thing[:]
        return lambda: operator.setitem(thing, slice(None), sequence)
    if isinstance(thing, np.random.SeedSequence):
        return _restore_spawned(thing)
    return _restore_generator(thing)


def _restore_spawned(seeds: Any) -> Callable[[], object]:
    """A function that restores the number of children that a `SeedSequence` has spawned."""
    if not isinstance(seeds, np.random.SeedSequence):
        return lambda: None
    count = seeds.n_children_spawned
    key, size, entropy = seeds.spawn_key, seeds.pool_size, seeds.entropy

    def restore() -> None:
        if seeds.n_children_spawned != count:  # it cannot be assigned
            seeds.__init__(entropy, spawn_key=key, pool_size=size, n_children_spawned=count)  # type: ignore[misc]

    return restore


def _restore_generator(thing: Any) -> Callable[[], object] | None:
    if isinstance(thing, np.random.Generator):
        thing = thing.bit_generator
    if isinstance(thing, np.random.BitGenerator):
        state, spawned = thing.state, _restore_spawned(getattr(thing, "seed_seq", None))

        def restore() -> None:
            thing.state = state
            spawned()

        return restore
    if type(thing) is Generator or isinstance(thing, np.random.RandomState):
        before: Any = thing.get_state()
        return lambda: thing.set_state(before)
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):
        pythons = thing.getstate()
        return lambda: thing.setstate(pythons)
    return None


def _restore_tensor(tensor: Tensor) -> Callable[[], object] | None:
    """A function that restores a tensor's elements, memory, hooks, attributes and `requires_grad`, and deletes its gradient.

    None for a tensor that belongs to the graph of an earlier loss, and for one that has no memory yet.
    """
    if is_lazy(tensor) or not tensor.is_leaf:
        return None
    attributes, hooks = dict(vars(tensor)), [dict(getattr(tensor, name, None) or {}) for name in _HOOKS]
    # Writing to `tensor.data` does not invalidate the graph of a loss that is computed at the moment, as `tensor.copy_` would.
    requires_grad, memory = tensor.requires_grad, tensor.data
    # Torch refuses to write to expanded tensors, so that hooks cannot change them either.
    is_expanded = tensor.layout == torch.strided and 0 in tensor.stride() and tensor.numel() > 1
    copied = None if is_expanded or tensor.numel() > _LARGEST else memory.clone()

    def restore() -> None:
        if copied is not None:
            with torch.inference_mode() if memory.is_inference() else contextlib.nullcontext():
                memory.copy_(copied)
        if not tensor.is_leaf and not tensor._is_view():  # an operation in place has made it a part of a graph
            tensor.detach_()
        if tensor.layout == torch.strided and (
            tensor.data_ptr() != memory.data_ptr() or tensor.shape != memory.shape or tensor.stride() != memory.stride()
        ):
            tensor.data = memory
        own = vars(tensor), *(getattr(tensor, name, None) for name in _HOOKS)
        for now, before in zip(own, (attributes, *hooks)):
            if now is not None and not _same(now, before):
                _refill(now, before)
        if tensor.is_leaf:
            tensor.grad = None
            if tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)

    return restore
