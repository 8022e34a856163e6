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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import resolve_name
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn

from ding_lite.compiling.guards import GROUPS, MISSING, Globals, Guard, is_plain, is_users, parts_of

_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})
_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})


def outer_guards(functions: Iterable[tuple[Any, type]]) -> list[Guard]:
    """The values outside of objects that functions, and the functions that these call by name, may read.

    Args:
        functions: functions or methods, each with the class of the object that it was read from. Only those that are of no
            library are followed.
    """
    search = _Search()
    for function, kind in functions:
        search.add(function, kind)
    return search.guards()


class _Search:
    def __init__(self) -> None:
        self._found: dict[tuple[int, str], Guard] = {}
        self._seen: set[tuple[int, int]] = set()
        self._waiting: list[tuple[FunctionType, type | None]] = []

    def guards(self) -> list[Guard]:
        while self._waiting:
            function, kind = self._waiting.pop()
            self._look_through(function, kind)
        return list(self._found.values())

    def add(self, thing: Any, kind: type | None) -> None:
        """Look through a function, and through its wrappers."""
        if isinstance(thing, (staticmethod, classmethod, MethodType)):
            thing = thing.__func__
        if isinstance(thing, property):
            thing = thing.fget
        if isinstance(thing, functools.partial):
            thing = thing.func
        if not isinstance(thing, FunctionType) and isinstance(wrapped := getattr(thing, "__wrapped__", None), FunctionType):
            thing = wrapped
        if not isinstance(thing, FunctionType) or not is_users(thing) or (id(thing.__code__), id(kind)) in self._seen:
            return
        self._seen.add((id(thing.__code__), id(kind)))
        self._waiting.append((thing, kind))

    def add_all(self, kind: type) -> None:
        """Look through all functions of a class of a user's own, because which of them run is not known."""
        for base in kind.__mro__:
            for thing in vars(base).values() if is_users(base) else ():
                self.add(thing, kind)

    def _look_through(self, function: FunctionType, kind: type | None) -> None:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        for names in _chains(function.__code__, {}):
            first, *rest = names
            if isinstance(first, _Imported):
                module = first.module(function.__globals__)
                if module is not None and is_users(module) and rest:
                    self._read(module, rest[0], rest[1:], None)
            elif first in cells:
                self._read(cells[first], "cell_contents", rest, kind)
            elif first:
                self._read(Globals(function.__globals__), first, rest, kind)
            elif kind is not None:
                for name in rest:
                    self._read_of_class(kind, name)

    def _read_of_class(self, kind: type, name: str) -> None:
        """An attribute that may be that of a class, as in `type(self).scale` or `super().scale`."""
        for owner in kind.__mro__:
            value = vars(owner).get(name, MISSING)
            if value is MISSING or not is_users(owner):
                continue
            if is_plain(value) or isinstance(value, GROUPS):
                self._note(owner, name, value)
            else:
                self.add(value, kind)

    def _read(self, owner: Any, name: str, rest: Sequence[str], kind: type | None) -> None:
        """A value, and the attributes that are read from it one after another."""
        if isinstance(inspect.getattr_static(owner, name, MISSING), property):
            return
        value = getattr(owner, name, MISSING)
        if value is MISSING or isinstance(value, (Tensor, nn.Module)):
            return
        if isinstance(value, ModuleType):
            if is_users(value) and rest:
                self._read(value, rest[0], rest[1:], None)
            return
        if isinstance(value, type):
            if is_users(value):
                self._note(owner, name, value)
                for inner in rest[:1]:
                    self._read_of_class(value, inner)
                self.add_all(value)
            return
        self._note(owner, name, value)
        self.add(value, kind if name == "cell_contents" else None)
        for part in (value.args, value.keywords, value.func) if isinstance(value, functools.partial) else ():
            self.add(part, None)
        if isinstance(value, GROUPS):
            for part in parts_of(value):
                self.add(part, None)
        elif not is_plain(value) and not callable(value) and is_users(type(value)):
            for inner in rest[:1]:
                self._read_of_class(type(value), inner)
                if inspect.getattr_static(value, inner, MISSING) is not MISSING:
                    self._read(value, inner, rest[1:], type(value))

    def _note(self, owner: Any, name: str, value: Any) -> None:
        key = id(vars(owner)) if isinstance(owner, Globals) else id(owner), name
        if key not in self._found:
            self._found[key] = Guard.of(owner, name, value)


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
