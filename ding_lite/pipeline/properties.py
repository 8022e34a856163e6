"""Properties of a context: the fields that a property reads and writes, found in its code before a run."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.pipeline.contexts import Context


class Touched(NamedTuple):
    """Fields of a context."""

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()


def expand_reads(cls: type[Context], names: Iterable[str]) -> frozenset[str]:
    """These names, and for each property among them the fields that it reads."""
    found = frozenset(names)
    return found.union(*(fields_behind(cls, name).reads for name in found if is_property(cls, name)))


def expand_writes(cls: type[Context], names: Iterable[str]) -> frozenset[str]:
    """These names, and for each property among them the fields that its setter writes."""
    found = frozenset(names)
    return found.union(*(fields_behind(cls, name).writes for name in found if is_property(cls, name)))


def fields_behind(cls: type[Context], name: str) -> Touched:
    """The fields that a property reads when it is read, and those that its setter touches; nothing for any other name.

    Follows other properties and methods of the class. A string in the code that equals a field's name counts as a read, so
    that `getattr(self, "x")` is seen.

    Raises:
        TypeError: the property is not a Python function, so its code cannot be read.
    """
    prop = _property_of(cls, name)
    if prop is None:
        return Touched()
    reads, writes = set[str](), set[str]()
    for function, collects_writes in ((prop.fget, False), (prop.fset, True)):
        if function is None:
            continue
        code = attribute_of(functools.partial(function).func, "__code__")
        if code is None:
            raise TypeError(
                f"{cls.__name__}.{name} is a property made of {function!r}, whose code cannot be read, so its fields "
                "are unknown: name these fields in the contract instead of the property, or write a plain function."
            )
        touched = _touched_by(cls, code, {name})
        reads |= touched.reads
        if collects_writes:
            writes |= touched.writes
    return Touched(frozenset(reads), frozenset(writes))


def is_property(cls: type[Context], name: str) -> bool:
    """Whether the class computes this name."""
    return _property_of(cls, name) is not None


def _property_of(cls: type[Context], name: str) -> property | None:
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    return found if isinstance(found, property) else None


def _touched_by(cls: type[Context], code: CodeType, seen: set[str]) -> Touched:
    reads, writes = set[str](), set[str]()
    fields = cls.__dataclass_fields__
    for verb, name in _names_in(code):
        if name in fields:
            (writes if verb == "write" else reads).add(name)
        elif name not in seen:
            seen.add(name)
            for inner in _codes_of(cls, name):
                touched = _touched_by(cls, inner, seen)
                reads |= touched.reads
                writes |= touched.writes
    return Touched(frozenset(reads), frozenset(writes))


def _names_in(code: CodeType) -> Iterator[tuple[str, str]]:
    """("read" or "write", name) of every attribute in this code, and of every string, and of the functions inside."""
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
            yield "write", str(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield "read", str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, str):
            yield "read", constant


def _codes_of(cls: type[Context], name: str) -> Iterator[CodeType]:
    """The code of a method or property of the class; methods of Context itself are left out."""
    own = cls.__mro__[: cls.__mro__.index(Context)]
    found: Any = next((vars(base)[name] for base in own if name in vars(base)), None)
    found = getattr(found, "__func__", found)  # class and static methods
    functions = (found.fget, found.fset) if isinstance(found, property) else (found,)
    for function in functions:
        if isinstance(function, FunctionType):
            yield function.__code__
