"""Scratch values: attributes that methods set or empty before each use, so that a resumed run does not need them."""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from ding_lite.basics.attribute_reads import attributes_set, instructions_of
from ding_lite.basics.closures import closure_of, function_of, names_in, parts_of
from ding_lite.basics.first_accesses import FirstAccesses
from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.basics.origins import is_of_ding_lite, is_of_script, module_of, without_library_decorators
from ding_lite.basics.reached_functions import reached_functions
from ding_lite.engine.run_parts import has_code_of_script

_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_PRINTING = ("__repr__", "__str__")
_PAIRS = (("__enter__", "__exit__"),)
"""Methods that Python calls one after the other."""
_READS = ("LOAD_ATTR", "LOAD_METHOD", "DELETE_ATTR", "IMPORT_FROM", "LOAD_SUPER_ATTR")
_COPIES = ("COPY", "DUP_TOP")
_BY_TEXT = frozenset({"getattr", "attrgetter", "vars", "__dict__"})


class Scratch(NamedTuple):
    """The attributes of a class whose earlier values nothing reads."""

    values: frozenset[str]
    of_acting: frozenset[str]
    """Those in a copy of a policy that acts."""
    renewed: frozenset[str]
    """Those of which only the content is replaced, `self.rows.clear()`, so that they must hold a container or an array."""

    def has(self, name: str, value: Any, in_acting: bool = False) -> bool:
        """Whether an attribute with this value is one of them."""
        known = self.of_acting if in_acting else self.values
        return name in known and (name not in self.renewed or can_be_renewed(value))


_NONE = Scratch(frozenset(), frozenset(), frozenset())
_RENEWABLE = (list, dict, set, bytearray, deque, OrderedDict, defaultdict, Counter, threading.Event)


def can_be_renewed(value: Any) -> bool:
    """Whether nothing is left of a value once its content is replaced, as of a list that is cleared."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    arrays = [getattr(it, name) for it, name in ((numpy, "ndarray"), (torch, "Tensor")) if it is not None and hasattr(it, name)]
    return type(value) in (*_RENEWABLE, *arrays)


class _Code(NamedTuple):
    """The code of a function of the script. The function itself is not kept, with what it holds."""

    code: CodeType
    name: str
    """With the name of its class."""


class ScratchValues:
    """Finds the attributes of classes of the script whose value at the end of an iteration nothing reads later.

    All methods may be called at any time, except for those that only these call, and for hooks: the class says in `hook_calls`
    in which order the library calls them. An attribute that other functions read too is left out.

    Args:
        starts: middleware, and other objects, whose functions may read attributes.
    """

    def __init__(self, starts: Iterable[Any] = ()) -> None:
        self._functions = _codes_of(it for start in starts for it in _of_script_in(start))
        self._known: dict[type, Scratch] = {}

    def of(self, kind: type) -> Scratch:
        """Those of a class."""
        if kind not in self._known:
            self._known[kind] = self._found_in(kind) if is_of_script(kind.__module__) else _NONE
        return self._known[kind]

    def _found_in(self, kind: type) -> Scratch:
        if not any(
            True for base in kind.__mro__ if is_of_script(base.__module__) for it in vars(base).values() if _is_setting(it)
        ):
            return _NONE
        calls: Mapping[str, Sequence[str]] = attribute_of(kind, "hook_calls", {})
        first = FirstAccesses(kind, calls)
        if not first.is_known:
            return _NONE
        functions = [*self._functions, *_codes_of([kind])]
        roots = _Roots(kind, first, calls, functions)
        read, always = roots.accesses()
        others = [fn for fn in functions if fn.code not in roots.codes]
        names = (first.names_read | always) & first.names_set
        names = {name for name in names if not any(_reads(fn, name, kind) for fn in others)}
        acting = first.of("act").read | first.of("get_initial_state").read if calls else frozenset[str]()
        of_acting = frozenset(names - acting) if calls else frozenset[str]()
        return Scratch(frozenset(names - read), of_acting, frozenset(first.names_renewed))


class _Roots:
    """The methods of a class that others than itself may call, and what they read first."""

    def __init__(
        self, kind: type, first: FirstAccesses, calls: Mapping[str, Sequence[str]], functions: Sequence[_Code]
    ) -> None:
        self._first, self._functions = first, functions
        own = [base for base in kind.__mro__ if is_of_script(base.__module__) or is_of_ding_lite(base.__module__)]
        self._every = {name: fn for base in reversed(own) for name, it in vars(base).items() for fn in _functions_in(it)}
        self._all = [fn for base in own for it in vars(base).values() for fn in _functions_in(it)]
        script = {name for base in own if is_of_script(base.__module__) for name, it in vars(base).items() if _functions_in(it)}
        self._constructors = {*_CONSTRUCTORS, *calls.get("__init__", ())}
        hooks: list[tuple[str, ...]] = [(name,) for name in ("learn", "act", "get_initial_state", "with_values") if calls]
        self._hooks = hooks + [pair for pair in _PAIRS if set(pair) <= script]
        hooked = {name for names in calls.values() for name in names} | {name for pair in self._hooks for name in pair}
        # Code that a decorator made, such as dataclasses.dataclass, has no file.
        made = {name for name in script if self._every[name].__code__.co_filename == "<string>"}
        self._others = script - hooked - self._constructors - made - {*_PRINTING}
        self._hooked = script & hooked

    @property
    def codes(self) -> set[CodeType]:
        """The code that the class itself runs, or that constructs its objects."""
        made = {part for fn in self._all if fn.__name__ in self._constructors for part in (fn.__code__,)}
        return self._first.codes | made

    def accesses(self) -> tuple[set[str], set[str]]:
        """What is read before it is set; and what one of the methods sets in each call."""
        read, always = set[str](), set[str]()
        roots: list[tuple[str, ...]] = list(self._hooks)
        called = {name for fn in self._all for name in names_in(fn.__code__) if fn.__name__ != name}
        dunders = {name for name in self._others if name.startswith("__")}
        roots += [(name,) for name in sorted(self._others) if name in dunders or name not in called]
        waiting = self._others - {name for names in roots for name in names}
        while roots:
            for names in roots:
                found = self._first.of(*names)
                read |= found.read
                always |= found.set
            new = [name for name in sorted(waiting) if self._is_called_elsewhere(name)]
            roots = [(name,) for name in new]
            waiting -= set(new)
            if not roots:  # a script may also call hooks by itself
                roots = [(name,) for name in sorted(self._hooked) if self._is_named(name, self._functions)]
                self._hooked -= {name for names in roots for name in names}
        return read, always

    def _is_called_elsewhere(self, name: str) -> bool:
        """Whether code that the known methods do not run may call a method."""
        codes = self.codes
        if self._every[name].__code__ not in codes and not name.startswith("_"):
            return True
        return self._is_named(name, (*self._functions, *_of_script(self._all)))

    def _is_named(self, name: str, functions: Iterable[_Code]) -> bool:
        codes = self.codes
        return any(name in names_in(fn.code) for fn in functions if fn.code not in codes)


def _codes_of(starts: Iterable[Any]) -> list[_Code]:
    """The functions of the script that these objects reach."""
    every = {id(it): it for start in starts for it in (start, type(start)) if it is start or is_of_script(it.__module__)}
    return list(dict.fromkeys(_of_script(fn for it in every.values() for fn in reached_functions(it))))


def _of_script_in(start: Any) -> list[Any]:
    """An object with code of the script; or those that an object or function of a library holds."""
    if has_code_of_script(start):
        return [start]
    held = closure_of(start) if isinstance(start, FunctionType) else [*attribute_of(start, "__dict__", {}).items()]
    return [inner for _, inner in held if has_code_of_script(inner)]


def _of_script(functions: Iterable[FunctionType]) -> Iterator[_Code]:
    return (_Code(fn.__code__, fn.__qualname__) for fn in functions if is_of_script(module_of(fn)))


def _functions_in(member: Any) -> list[FunctionType]:
    """The functions of a method or property, without decorators of libraries around them."""
    members = [member.fget, member.fset, member.fdel] if isinstance(member, property) else [function_of(member)]
    found = [without_library_decorators(getattr(it, "func", it)) for it in members]
    return [it for it in found if isinstance(it, FunctionType)]


def _is_setting(member: Any) -> bool:
    return any(True for fn in _functions_in(member) for _ in attributes_set(fn))


@functools.lru_cache(maxsize=16_384)
def _reads(fn: _Code, name: str, kind: type) -> bool:
    """Whether a function may read an attribute of objects of a class; not if it is a method that reads it of its own object of
    another class."""
    names = names_in(fn.code)
    if name not in names:
        return not _BY_TEXT.isdisjoint(names) and any(name in part.co_consts for part in parts_of(fn.code))
    owner = fn.name.rpartition(".")[0]
    is_of_other = bool(owner) and not owner.endswith("<locals>") and owner not in {base.__qualname__ for base in kind.__mro__}
    own = fn.code.co_varnames[0] if is_of_other and fn.code.co_argcount else None
    for code in parts_of(fn.code):
        before = None
        for now in instructions_of(code):
            if now.argval == name and now.opname in _READS and (own is None or before != own):
                return True
            before = before if now.opname in _COPIES else now.argval
    return False
