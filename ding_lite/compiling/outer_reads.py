"""Values outside of objects that functions read: globals, variables of enclosing functions, attributes of classes and modules.

They are found in the code of the functions, not while these run. So a value that a function might read, but does not, is found
too; a value that only a text names, as in `globals()[name]`, is not.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import resolve_name
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor

from ding_lite.compiling.value_guards import (
    GROUPS,
    MISSING,
    Descriptor,
    Globals,
    Guard,
    TensorGuard,
    is_builtin,
    is_users,
    parts_of,
)

_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_OF_FUNCTIONS = frozenset(dir(FunctionType))


class OuterReads:
    """The values outside of objects that functions, and the functions that these call by name, may read. Only functions that
    are of no library are followed.

    Args:
        are_calls_unknown: whether all functions of a class that is only a value are looked through, because it will not be
            known which of them are called.
    """

    def __init__(self, are_calls_unknown: bool) -> None:
        self._are_calls_unknown = are_calls_unknown
        self.functions: dict[CodeType, list[FunctionType]] = {}
        """The functions that were looked through, by their code."""
        self._guards: list[tuple[Guard | TensorGuard, Any]] = []
        self._found: set[tuple[int, str]] = set()
        self._kept: list[Any] = []  # so that no id is used twice
        self._seen: set[tuple[int, type | None]] = set()
        self._waiting: list[tuple[FunctionType, type | None]] = []
        self._names: dict[str, None] = {}
        self._classes: dict[type, None] = {}

    def look_through(self, function: Any, kind: type | None) -> list[tuple[Guard | TensorGuard, Any]]:
        """The values that a function may read, and were not found before: guards, each with the value.

        Args:
            function: a function or method.
            kind: the class of the object that it was read from; None if it is that of no class.
        """
        self._add(function, kind)
        if kind is not None:
            self._add_class(kind)
        return self._all_found()

    def look_at(self, kind: type, has_objects: bool) -> list[tuple[Guard | TensorGuard, Any]]:
        """The attributes of a class that the functions that were looked through may read, and the values that its functions may
        read, if they were not found before: guards, each with the value.

        Args:
            kind: the class.
            has_objects: whether an object of the class was read, and not only the class.
        """
        self._add_class(kind)
        if has_objects or self._are_calls_unknown:
            self._add_all(kind)
        return self._all_found()

    def has_seen(self, code: CodeType, kind: type | None) -> bool:
        """Whether functions with this code were looked through, as those of a class."""
        return any((id(function), kind) in self._seen for function in self.functions.get(code, ()))

    def _all_found(self) -> list[tuple[Guard | TensorGuard, Any]]:
        while self._waiting:
            function, kind = self._waiting.pop()
            self._look_through(function, kind)
        found, self._guards = self._guards, []
        return found

    def _add(self, thing: Any, kind: type | None) -> None:
        """Look through a function, and through its wrappers."""
        function = function_of(thing)
        if function is None or not is_users(function) or (id(function), kind) in self._seen:
            return
        self._seen.add((id(function), kind))
        self._kept.append(function)
        self._waiting.append((function, kind))

    def _add_all(self, kind: type) -> None:
        """Look through all functions of a class of a user's own, because which of them run is not known."""
        for base in kind.__mro__:
            for thing in vars(base).values() if is_users(base) else ():
                self._add(thing, kind)

    def _look_through(self, function: FunctionType, kind: type | None) -> None:
        known = self.functions.setdefault(function.__code__, [])
        if not any(it is function for it in known):
            known.append(function)
            if set(vars(function)) - {"__wrapped__"}:
                self._note(function, "__dict__", vars(function))
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        for names in _chains(function.__code__, {}):
            first, *rest = names
            for name in rest:
                self._add_name(name)
            if isinstance(first, _Imported):
                module = first.module(function.__globals__)
                if module is not None and rest:
                    self._read_of_module(module, rest)
            elif first in cells:
                self._read(cells[first], "cell_contents", rest, kind)
            elif first:
                self._read(Globals(function.__globals__), first, rest, kind)

    def _add_name(self, name: str) -> None:
        """Note the attributes with a name of all known classes."""
        if name not in self._names:
            self._names[name] = None
            for kind in self._classes:
                self._read_of_class(kind, name)

    def _add_class(self, kind: type) -> None:
        """Note the attributes of a class with all known names, as in `type(self).scale` or `super().scale`."""
        for base in kind.__mro__:
            if base not in self._classes and (is_users(base) or base is kind):
                self._classes[base] = None
                for name in self._names:
                    self._read_of_class(base, name)

    def _read_of_class(self, kind: type, name: str) -> None:
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if owner is None or name.startswith("__"):
            return
        value = vars(owner)[name]
        if isinstance(value, (Tensor, property)) or (inspect.isdatadescriptor(value) and not is_users(type(value))):
            return  # reads of the objects are noticed
        is_method = isinstance(value, (FunctionType, staticmethod, classmethod))
        if not is_users(owner) and (is_method or not is_builtin(value)):
            return
        if is_method:
            self._add(value, kind)
        if hasattr(type(value), "__get__") and not isinstance(value, (FunctionType, staticmethod)):
            self._note(Descriptor(kind, name), name, value, id(kind))
        elif is_method:
            self._note(kind, name, getattr(kind, name))
        else:
            self._note(kind, name, value)
            if isinstance(value, type) and is_users(value):
                self._add_class(value)
                if self._are_calls_unknown:
                    self._add_all(value)

    def _read_of_module(self, module: ModuleType, names: Sequence[str]) -> None:
        """An attribute of a module; of a library only functions and classes, which tests replace, and plain values."""
        name, *rest = names
        value = vars(module).get(name, MISSING)
        if is_users(module):
            self._read(module, name, rest, None)
        elif isinstance(value, ModuleType) and rest:
            self._read_of_module(value, rest)
        elif callable(value) or (value is not MISSING and is_builtin(value)):
            self._note(module, name, value)

    def _read(self, owner: Any, name: str, rest: Sequence[str], kind: type | None) -> None:
        """A value, and the attributes that are read from it one after another."""
        if isinstance(inspect.getattr_static(owner, name, MISSING), property):
            return
        value = getattr(owner, name, MISSING)
        if isinstance(value, Tensor):
            self._note_tensor(owner, name, value)
            return
        if isinstance(value, ModuleType):
            self._note(owner, name, value)
            if rest:
                self._read_of_module(value, rest)
            return
        if value is MISSING and name == "cell_contents":
            return
        self._note(owner, name, value)
        if isinstance(value, type):
            if is_users(value):
                self._add_class(value)
                self._add_all(value)
            return
        self._add(value, kind if name == "cell_contents" else None)
        for part in (value.args, value.keywords, value.func) if isinstance(value, functools.partial) else ():
            self._add(part, None)
        if isinstance(value, FunctionType) and is_users(value) and rest and rest[0] not in _OF_FUNCTIONS:
            self._read(value, rest[0], rest[1:], None)
        if isinstance(value, GROUPS):
            for part in parts_of(value):
                self._add(part, None)

    def _note(self, owner: Any, name: str, value: Any, identity: int | None = None) -> None:
        key = (id(vars(owner)) if isinstance(owner, Globals) else id(owner)) if identity is None else identity, name
        if key not in self._found:
            self._found.add(key)
            self._kept.append(owner)
            self._guards.append((Guard.of(owner, name, value), value))

    def _note_tensor(self, owner: Any, name: str, value: Tensor) -> None:
        key = id(vars(owner)) if isinstance(owner, Globals) else id(owner), name
        if key not in self._found:
            self._found.add(key)
            self._kept.append(owner)
            self._guards.append((TensorGuard(owner, name, tuple(value.shape), value.dtype, value.requires_grad), None))


def function_of(thing: Any) -> FunctionType | None:
    """The function of a method, a property, a partial function or a wrapper; None if there is none."""
    if isinstance(thing, (staticmethod, classmethod, MethodType)):
        thing = thing.__func__
    if isinstance(thing, (property, functools.cached_property)):
        thing = thing.fget if isinstance(thing, property) else thing.func
    if isinstance(thing, functools.partial):
        thing = thing.func
    if not isinstance(thing, FunctionType):
        thing = inspect.getattr_static(thing, "__wrapped__", None)  # that of functools.lru_cache
    return thing if isinstance(thing, FunctionType) else None


class _Imported(NamedTuple):
    """A module that a function imports itself."""

    name: str
    level: int
    """Number of dots before the name."""
    is_whole: bool
    """Whether the function gets the module itself; `import a.b` gives a."""

    def module(self, known: Mapping[str, Any]) -> ModuleType | None:
        """The module, as the code with these globals finds it; None if it was never imported."""
        name = self.name if self.is_whole else self.name.partition(".")[0]
        if self.level:
            try:
                name = resolve_name("." * self.level + name, known.get("__package__") or known.get("__name__", ""))
            except ImportError:
                return None
        return sys.modules.get(name)


_Chain = list[Any]
"""A name, or a module that is imported, and the names of the attributes that are read from it, one after another."""


def _chains(code: CodeType, imported: Mapping[str, _Chain]) -> Iterator[_Chain]:
    """Names of variables that are not local, and modules that the code imports itself, with the attributes that are read from
    each, one after another. Attributes that are read from anything else follow an empty name.

    Args:
        code: code of a function.
        imported: what the functions around it have imported, by the name of the variable.
    """
    chain: _Chain | None = None
    known, last, constants = dict(imported), [], deque[Any]([0, None], 2)
    for instruction in dis.get_instructions(code):
        name, value = instruction.opname, instruction.argval
        is_free = name == "LOAD_DEREF" and value in code.co_freevars
        if name in _ATTRIBUTES:
            if chain is None:
                yield ["", value]
            else:
                chain.append(value)
            continue
        if chain:
            yield chain
        chain = None
        if name.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")) and value in known:
            chain = [*known[value]]
        elif name in _GLOBALS or is_free:
            chain = [value]
        elif name == "LOAD_CONST":
            constants.append(value)
        elif name == "IMPORT_NAME":
            level, names = constants
            last = [_Imported(value, level, names is not None)]  # of `import a.b as c`, IMPORT_FROM gives b
        elif name == "IMPORT_FROM":
            chain = last = [*last[:1], value] if last and last[0].is_whole else [*last, value]
        elif name in ("STORE_FAST", "STORE_DEREF") and last:
            known[value] = [*last]
        if name not in ("IMPORT_NAME", "IMPORT_FROM", "SWAP", "ROT_TWO", "POP_TOP"):
            last = [] if not name.startswith("STORE") else last[:1]
    if chain:
        yield chain
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _chains(constant, known)
