"""Python values that a gradient step reads or changes: a compiled step is valid for these values only."""

from __future__ import annotations

import contextlib
import gc
import random
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ding_lite.basics import Config
from ding_lite.basics.blocks import block
from ding_lite.basics.origins import is_of_ding_lite, is_of_script
from ding_lite.compiling.outer_reads import OuterReads, function_of
from ding_lite.compiling.tracing import NotCompiledError, user_line
from ding_lite.compiling.value_guards import (
    DEEPEST,
    GROUPS,
    MISSING,
    MOST,
    AnyGuard,
    Descriptor,
    FunctionGuard,
    Globals,
    Guard,
    NamesOf,
    TensorGuard,
    Unshadowed,
    are_alike,
    contents_of,
    has_data,
    is_plain,
    is_users,
    is_watchable,
    parts_of,
)
from ding_lite.policy_state import networks_of

MODULE_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
"""Attributes of a module, each a dict of hooks that a step calls."""

_COUNTERS = "train_iter", "version"
_OF_TORCH = frozenset(vars(nn.Module())) - {"training"} | {"_compiled_call_impl"}
_FUNCTIONS = FunctionType, MethodType, BuiltinFunctionType
_TRANSPARENT = (
    *(*_FUNCTIONS, type, ModuleType, Tensor, nn.Module, Config, Optimizer),
    *(torch.Generator, torch.finfo, torch.iinfo, np.dtype, re.Pattern, type(threading.Lock()), type(threading.RLock())),
)
"""What has no values of its own to read, or values that are checked otherwise, or that do not change."""
_WITH_CONTENTS = *GROUPS, partial, SimpleNamespace, np.ndarray, int, float, complex, str, bytes, Enum
"""What is compared by its contents, to which an object of a derived class may add attributes."""
_RANDOM = random.Random, np.random.Generator, np.random.RandomState
_COPYING = frozenset({"__getstate__", "__reduce__", "__reduce_ex__"})
"""What `copy.copy`, `copy.deepcopy` and `pickle` ask an object for, to read all of its attributes."""
_UNNOTICED = {
    "__getattribute__": "read the attribute as object.name",
    "__get__": "read the attribute as object.name",
    "get_num_threads": "call it in before_step, and keep the result as an attribute",
    "get_num_interop_threads": "call it in before_step, and keep the result as an attribute",
}
"""Functions that read values without a trace, and what to do instead."""
_FOLLOWED = frozenset({"ding_lite.policy_base.short_names"})  # policy.config


class Reads:
    """Inside `recording`, records which attributes this thread reads and sets: of the policy, of configurations and networks,
    and of all objects that it reads there, except for those of this library.

    Args:
        kinds: base classes of the objects that are watched from the start.
        inputs: names of attributes of `policy` that are inputs of the step, with any value.
        policy: the policy.
    """

    def __init__(self, kinds: Sequence[type], inputs: Sequence[str], policy: Any) -> None:
        self._kinds, self._inputs, self._policy = list(kinds), inputs, policy
        self._kin = tuple(kind for kind in type(policy).__mro__ if kind is not object and not is_users(kind))
        self._thread, self._paused = 0, False
        self._stack = contextlib.ExitStack()
        self._found: dict[tuple[int, str], Guard] = {}
        self._before: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._writers: dict[tuple[int, str], str] = {}
        self._groups: dict[tuple[int, str], tuple[Any, Any, Any, str]] = {}
        self._methods: dict[int, tuple[Any, set[str]]] = {}
        self._is_profiled = sys.getprofile() is not None
        self._outer = OuterReads(are_calls_unknown=self._is_profiled)
        self._doubts: list[tuple[str, NotCompiledError]] = []
        self._outside: dict[tuple[int, str], Guard | TensorGuard] = {}
        self._functions: dict[int, FunctionGuard] = {}
        self._called: set[tuple[CodeType, type | None]] = set()
        self._is_own: dict[CodeType, bool] = {}
        self._watched: set[int] = set()
        self._tensors: dict[tuple[int, str], TensorGuard] = {}
        self._modules: set[int] = set()
        self._made: dict[int, Any] = {}  # objects that the step itself makes
        self._reached: dict[int, Any] = {}  # objects that the step reaches
        self._line: Callable[[], str] = user_line

    @property
    def guards(self) -> list[AnyGuard]:
        """What the step is valid for. What it sets before it reads it is left out, if it was restored at the end."""
        restored = [
            Guard.of(owner, name, value)
            for key, (owner, value) in self._before.items()
            if key not in self._found and (value is MISSING or is_plain(value)) and (name := key[1])
        ]
        own = [(it, names - vars(it).keys()) for it, names in self._methods.values() if hasattr(it, "__dict__")]
        unshadowed = [Unshadowed(it, frozenset(names)) for it, names in own]
        outside = [guard for key, guard in self._outside.items() if key not in self._found]
        return [*self._found.values(), *restored, *unshadowed, *self._tensors.values(), *outside, *self._functions.values()]

    @block
    def recording(self) -> Iterator[None]:
        """Record in this block.

        Raises:
            NotCompiledError: at the end, an attribute or a global has another value than before; or the block has read
                something that cannot be compared.
        """
        self._thread = threading.get_ident()
        policy = self._policy
        modules = modules_of(policy)
        self._modules = {id(policy), *map(id, modules)}
        kinds = {type(module) for module in modules}
        hooks = [hook for module in modules for name in MODULE_HOOKS for hook in vars(module)[name].values()]
        hooks += [hook for param in policy.params for hook in (param._backward_hooks or {}).values()]
        with self._stack:
            for kind in tuple(self._kinds):
                self._watch(kind)
            self._paused, self._line = True, lambda: "the loss"
            try:
                self._search(policy.loss, type(policy))
                for kind in kinds:
                    self._search(kind.forward, kind)
                for hook in hooks:
                    self._follow("a hook", hook)
            finally:
                self._paused, self._line = False, user_line
            with self._noticing_calls():
                yield
        self._require_noticed()
        called = {name for code, _ in self._called for name in code.co_names}
        if error := next((error for name, error in self._doubts if self._is_profiled or name in called), None):
            raise error
        for (_, name), (owner, value) in self._before.items():
            now = _held(owner, name)
            if now is not value and not (is_plain(now) and are_alike(now, value)):
                raise NotCompiledError(
                    f"{self._writers[id(owner), name]} sets {type(owner).__name__}.{name}, which a compiled step would not do: "
                    "do it in before_step or after_step."
                )
        for (_, name), (owner, group, contents, place) in self._groups.items():
            if not are_alike(contents_of(group), contents):
                raise NotCompiledError(
                    f"{place} reads {type(owner).__name__}.{name}, whose contents the loss changes, which a compiled step "
                    "would not do: change it in before_step or after_step; or, if a network only writes it for others to read, "
                    f"name it in scratch_attributes, a tuple of names, of the class {type(owner).__name__}."
                )
        found = [it for it in (*self._found.values(), *self._outside.values()) if isinstance(it, Guard)]
        kept: list[Guard | FunctionGuard] = [it for it in found if (id(it.owner), it.name) not in self._before]
        for guard in kept + [*self._functions.values()]:
            if not guard.holds():
                raise NotCompiledError(
                    f"the loss changes {guard.place}, which a compiled step would not do: do it in before_step or after_step."
                )

    def _require_noticed(self) -> None:
        """Raise an error if code of the script reads values in a way that cannot be noticed."""
        for code in self._outer.functions if self._is_profiled else {code for code, _ in self._called}:
            name = next((it for it in code.co_names if it in _UNNOTICED), None)
            if name is not None and code.co_name not in _UNNOTICED:
                raise NotCompiledError(
                    f"{code.co_name} ({code.co_filename}:{code.co_firstlineno}) calls {name}, and a compiled step cannot "
                    f"follow what that reads: {_UNNOTICED[name]}."
                )

    def _watch(self, kind: type) -> None:
        self._stack.enter_context(_replaced(kind, "__getattribute__", self._reader))
        self._stack.enter_context(_replaced(kind, "__setattr__", self._writer))
        self._stack.enter_context(_replaced(kind, "__delattr__", self._deleter))
        if getattr(kind, "__init__") is not object.__init__:  # noqa: B009
            self._stack.enter_context(_replaced(kind, "__init__", self._maker))

    def _search(self, function: Any, kind: type | None) -> None:
        """Guard what a function reads outside of objects, and watch the objects there."""
        self._keep(self._outer.look_through(function, kind))

    def _keep(self, found: Sequence[tuple[Guard | TensorGuard, Any]]) -> None:
        for guard, value in found:
            key = id(vars(guard.owner)) if isinstance(guard.owner, Globals) else id(guard.owner), guard.name
            if key not in self._outside:
                self._outside[key] = guard
                if not isinstance(guard, Guard) or (isinstance(guard.owner, ModuleType) and not is_users(guard.owner)):
                    continue
                try:
                    self._follow(guard.place, value)
                except NotCompiledError as error:
                    if not isinstance(guard.owner, (type, Descriptor)):
                        raise
                    self._doubts.append((guard.name, error))  # functions that are not called may have named it

    @block
    def _noticing_calls(self) -> Iterator[None]:
        """Notice which functions this thread calls in this block, with their default values."""
        if self._is_profiled:  # the profiler must go on, so that it is not known which functions are called
            self._paused = True
            try:
                for function in [it for same in self._outer.functions.values() for it in same]:
                    self._guard_function(function)
            finally:
                self._paused = False
            yield
            return
        sys.setprofile(self._notice_call)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _notice_call(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or self._paused:
            return
        code = frame.f_code
        is_own = self._is_own.get(code)
        if is_own is None:
            # Not of installed packages, whose functions torch and Python also call on their own, such as for a warning.
            is_own = self._is_own[code] = is_of_script(frame.f_globals.get("__name__"))
        if not is_own:
            return
        self._paused = True
        try:
            first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
            kind = first if isinstance(first, type) else type(first)
            if (code, kind) not in self._called:
                self._called.add((code, kind))
                self._look_at_call(frame, code, kind)
        finally:
            self._paused = False

    def _look_at_call(self, frame: FrameType, code: CodeType, kind: type) -> None:
        of_kind = [it for base in kind.__mro__ for it in map(function_of, vars(base).values()) if it and it.__code__ is code]
        if of_kind:
            self._search(of_kind[0], kind)
        elif code not in self._outer.functions:
            for function in self._functions_with(frame, code):
                self._search(function, None)
        for function in self._outer.functions.get(code, ()):
            self._guard_function(function)

    def _functions_with(self, frame: FrameType, code: CodeType) -> list[FunctionType]:
        """The functions with a code that was called. None, if the step itself makes them."""
        named = function_of(frame.f_globals.get(code.co_name))
        if named is not None and named.__code__ is code:
            return [named]
        caller = frame.f_back
        while caller is not None and caller.f_globals.get("__name__") != __name__:
            if code in caller.f_code.co_consts:
                return []
            caller = caller.f_back
        return [it for it in gc.get_referrers(code) if isinstance(it, FunctionType)]

    def _guard_function(self, function: FunctionType) -> None:
        if id(function) not in self._functions:
            self._functions[id(function)] = guard = FunctionGuard.of(function)
            self._follow(guard.place, [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()])

    def _reader(self, original: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        def __getattribute__(owner: Any, name: str) -> Any:
            if threading.get_ident() != self._thread or self._paused:
                return original(owner, name)
            if name.startswith("__"):
                is_all = name in _COPYING or (name == "__dict__" and _is_users_code())
                if is_all and not isinstance(owner, nn.Module):
                    self._note_all(owner)
                return original(owner, name)
            try:
                value = original(owner, name)
            except AttributeError:
                self._note(owner, name, MISSING)
                raise
            self._note(owner, name, value)
            return value

        return __getattribute__

    def _note_all(self, owner: Any) -> None:
        if owner is self._policy:
            raise NotCompiledError(f"{user_line()} reads vars({type(owner).__name__}): read its attributes one by one.")
        if not type(owner).__dictoffset__:  # with slots alone, which are read one by one
            return
        names = NamesOf(owner)
        if not names.names and id(owner) not in self._reached:  # one that pickle has just made
            return
        if id(owner) not in self._made:
            self._outside.setdefault((id(owner), "__dict__"), Guard.of(names, "names", names.names))
        for name in names.names:
            self._note(owner, name, object.__getattribute__(owner, "__dict__")[name])

    def _note(self, owner: Any, name: str, value: Any) -> None:
        is_of_module = isinstance(owner, nn.Module)
        if isinstance(value, nn.Module) and id(owner) in self._modules:  # forms check the networks
            return
        if is_of_module and (name in _OF_TORCH or isinstance(value, Tensor)):
            return
        if id(owner) in self._made:
            return
        self._paused = True
        try:
            if isinstance(value, Tensor):
                if owner is self._policy and name in self._inputs:
                    return
                layout = tuple(value.shape), value.dtype, value.requires_grad
                self._tensors.setdefault((id(owner), name), TensorGuard(owner, name, *layout))
                return
            if isinstance(own := getattr(type(owner), name, None), property):  # what it reads is recorded
                self._search(own.fget, type(owner))
                self._outside.setdefault((id(type(owner)), name), Guard.of(type(owner), name, own))
                return
            if value is MISSING:  # of a network, or made by a `__getattr__`
                value = getattr(owner, name, MISSING)
                if isinstance(value, Tensor) or (isinstance(value, nn.Module) and id(owner) in self._modules):
                    return
            if isinstance(value, _FUNCTIONS) and name not in getattr(owner, "__dict__", ()):
                self._methods.setdefault(id(owner), (owner, set()))[1].add(name)
                self._search(value, type(owner))
                if is_users(value) or name == "loss":  # a class may get another one
                    found = getattr(type(owner), name, None)
                    self._outside.setdefault((id(type(owner)), name), Guard.of(type(owner), name, found))
                return
            if owner is self._policy and (name in self._inputs or name == "params"):  # forms check the parameters
                return
            if owner is self._policy and name in _COUNTERS:
                raise NotCompiledError(
                    f"{self._line()} reads {name}, which changes in each step: override step_variant() to return what depends "
                    "on it, such as self.train_iter % 2 == 0, and call it in the loss."
                )
            if isinstance(value, Optimizer) and _is_users_code():
                raise NotCompiledError(
                    f"{self._line()} reads {name}, an optimizer, whose settings change: set an attribute in before_step, such "
                    "as self.lr = self.optimizer.param_groups[0]['lr'], and name it in step_inputs."
                )
            if name in getattr(type(owner), "scratch_attributes", ()):
                return
            if isinstance(value, (*GROUPS, np.ndarray)) and (id(owner), name) not in self._groups:
                self._groups[id(owner), name] = owner, value, contents_of(value), self._line()
            self._guard(owner, name, value)
        finally:
            self._paused = False

    def _guard(self, owner: Any, name: str, value: Any) -> None:
        place = f"{type(owner).__name__}.{name}"
        is_own = owner is self._policy and name == "rng"  # it is compared with its state before the step
        if not is_own:
            self._follow(place, value)
        key = id(owner), name
        if key in self._found or key in self._before or _is_internal(value):
            return
        self._found[key] = Guard.of(owner, name, value)

    def _follow(self, place: str, value: Any, depth: int = 0) -> None:
        """Watch the attributes of an object, and of those in a list and the like."""
        self._reached[id(value)] = value
        if type(value) in weakref.ProxyTypes:
            raise NotCompiledError(
                f"{self._line()} reads {place}, a weak proxy, whose object a compiled step cannot follow: keep the object "
                "itself, or a weakref.ref of it."
            )
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            raise NotCompiledError(
                f"{self._line()} reads {place}, an array of objects, which a compiled step cannot follow: keep a list, or an "
                "array of numbers."
            )
        size = value.size if isinstance(value, np.ndarray) else len(value) if isinstance(value, GROUPS) else 0
        if size > MOST:
            raise NotCompiledError(
                f"{self._line()} reads {place}, a {type(value).__name__} of {size:,}, whose contents a compiled step does not "
                f"follow, as it does up to {MOST:,}: keep it as a tensor, as a buffer of the model."
            )
        self._follow_parts(place, value, depth)
        kind = type(value)
        if (kind.__dictoffset__ or is_users(kind)) and isinstance(value, _WITH_CONTENTS) and is_watchable(kind):
            self._watch_objects_of(kind)
        elif isinstance(value, type) and is_users(value):
            self._keep(self._outer.look_at(value, has_objects=False))
            if is_users(kind):
                self._watch_objects_of(kind)
        elif isinstance(value, ModuleType) and is_users(value):
            self._watch_module(value)
        elif isinstance(value, nn.Module) and is_users(kind):
            self._search(kind.forward, kind)
        elif isinstance(value, _RANDOM):
            raise NotCompiledError(
                f"{self._line()} reads {place}, a {kind.__name__}, whose random numbers a compiled step would repeat: "
                "draw from self.generator, such as torch.randn(shape, generator=self.generator)."
            )
        elif (
            value is MISSING
            or is_plain(value)
            or isinstance(value, (*_WITH_CONTENTS, *_TRANSPARENT))
            or self._is_left_out(value)
            or function_of(value) is not None
        ):
            return
        elif is_watchable(kind):
            self._watch_objects_of(kind)
        elif not callable(value):
            raise NotCompiledError(
                f"{self._line()} reads {place}, a {kind.__name__}, whose state a compiled step cannot follow: use it in "
                "before_step, and keep the result as an attribute."
            )

    def _follow_parts(self, place: str, value: Any, depth: int) -> None:
        """Watch what is in a list and the like, or in a function."""
        if isinstance(value, partial):
            self._follow(place, [value.func, *value.args, *value.keywords.values()], depth + 1)
        elif isinstance(value, SimpleNamespace):
            self._follow(place, vars(value), depth + 1)
        elif isinstance(value, GROUPS):
            for part in parts_of(value) if depth < DEEPEST else ():
                self._follow(place, part, depth + 1)
        elif isinstance(value, weakref.ref):
            self._follow(place, value(), depth + 1)
        elif isinstance(value, MethodType):
            self._search(value, type(value.__self__))
            self._follow(place, value.__self__, depth + 1)
        elif has_data(value):
            self._follow(place, value.__self__, depth + 1)
        elif (found := function_of(value)) is not None:
            self._search(found, type(self._policy))

    def _watch_module(self, module: ModuleType) -> None:
        """Notice what is read from a module of a user's own."""
        if id(module) not in self._watched and type(module) is ModuleType:
            self._watched.add(id(module))
            module.__class__ = type("module", (ModuleType,), {"__getattribute__": self._reader(ModuleType.__getattribute__)})
            self._stack.callback(setattr, module, "__class__", ModuleType)

    def _watch_objects_of(self, kind: type) -> None:
        if kind in self._kinds:
            return
        self._kinds.append(kind)
        try:
            self._watch(kind)
        except (TypeError, AttributeError) as error:
            raise NotCompiledError(f"{self._line()} reads a {kind.__name__}, whose class cannot be watched: {error}.") from None
        self._keep(self._outer.look_at(kind, has_objects=True))

    def _is_left_out(self, value: Any) -> bool:
        """Whether an object is one of this library, and no policy."""
        return _is_internal(value) and not isinstance(value, self._kin)

    def _writer(self, original: Callable[[Any, str, Any], None]) -> Callable[[Any, str, Any], None]:
        def __setattr__(owner: Any, name: str, value: Any) -> None:
            if threading.get_ident() == self._thread and not self._paused:
                self._note_change(owner, name)
            original(owner, name, value)

        return __setattr__

    def _deleter(self, original: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
        def __delattr__(owner: Any, name: str) -> None:
            if threading.get_ident() == self._thread and not self._paused:
                self._note_change(owner, name)
            original(owner, name)

        return __delattr__

    def _maker(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(owner: Any, *args: Any, **kwargs: Any) -> None:
            if threading.get_ident() == self._thread and not self._paused:
                self._made[id(owner)] = owner
            original(owner, *args, **kwargs)

        return __init__

    def _note_change(self, owner: Any, name: str) -> None:
        if id(owner) in self._made:
            return
        key, self._paused = (id(owner), name), True
        try:
            if key not in self._before:
                self._before[key] = owner, _held(owner, name)
                self._writers[key] = user_line()
        finally:
            self._paused = False


def modules_of(policy: Any) -> list[nn.Module]:
    """The networks of a policy, and the modules in them."""
    networks = [network for network in networks_of(policy).values() if isinstance(network, nn.Module)]
    return [module for network in networks for module in network.modules()]


def _is_internal(value: Any) -> bool:
    """Whether an object is one of this library, whose values do not change or are checked otherwise."""
    kind = type(value)
    return is_of_ding_lite(kind.__module__) and kind.__module__ not in _FOLLOWED and not isinstance(value, Config)


def _is_users_code() -> bool:
    """Whether the caller of the reader that calls this, or of its `_note`, is code of a user's own."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return frame is not None and is_users(_Code(frame.f_globals.get("__name__")))


class _Code:
    """Code of a module, as `is_users` takes it."""

    def __init__(self, module: Any) -> None:
        self.__module__ = module


def _held(owner: Any, name: str) -> Any:
    """The attribute of an object, or of a module the parameter, buffer or module."""
    own: dict[str, Any] = getattr(owner, "__dict__", {})
    groups = (own.get(group) for group in ("_parameters", "_buffers", "_modules"))
    return next((held[name] for held in (own, *groups) if isinstance(held, dict) and name in held), _of_slot(owner, name))


def _of_slot(owner: Any, name: str) -> Any:
    slot = getattr(type(owner), name, None)
    return getattr(owner, name, MISSING) if hasattr(slot, "__set__") and not isinstance(slot, property) else MISSING


@block
def _replaced(kind: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a method of a class by a wrapper of it, for the block."""
    own = vars(kind).get(name, MISSING)
    setattr(kind, name, wrap(getattr(kind, name)))
    try:
        yield
    finally:
        if own is MISSING:
            delattr(kind, name)
        else:
            setattr(kind, name, own)
