"""Held objects: those that a middleware reaches, through functions, containers and users' objects, and how it uses them."""

from __future__ import annotations

import functools
import gc
import inspect
import io
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple

from ding_lite.basics.attribute_reads import Place, places_of
from ding_lite.basics.closures import closure_of, function_of, globals_of, names_in
from ding_lite.basics.config_classes import Config
from ding_lite.basics.optional_attributes import attribute_of, has_attribute
from ding_lite.basics.origins import is_of_ding_lite, is_of_script, module_of, package_of
from ding_lite.pipeline.code_in_use import CodeInUse
from ding_lite.pipeline.contexts import is_scalar
from ding_lite.pipeline.contracts import Contract
from ding_lite.pipeline.value_kinds import is_global_generator, is_random_generator, slots_of

_MOST_DEPTH, _MOST_SEEN, _MOST_ITEMS = 8, 2_000, 100
_MOST_CALLS = 3  # helper functions, one in the other, that get an object as an argument
NO_STATE = (FunctionType, MethodType, BuiltinFunctionType, MethodWrapperType, ModuleType, type, Config, Contract)
_MADE_TO_BE_SHARED = frozenset(
    {"threading", "_thread", "queue", "_queue", "concurrent.futures.thread", "concurrent.futures.process"}
)
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_VIEWS: tuple[type, ...] = (MappingProxyType, type({}.keys()), type({}.values()), type({}.items()))
_ANY_ATTRIBUTE = frozenset({"getattr", "vars", "__dict__", "asdict", "astuple", "copy", "deepcopy", "attrgetter"})
_SETTINGS = frozenset(
    {
        *("cfg", "device", "observation_space", "action_space"),
        *("num_envs", "single_observation_space", "single_action_space"),
    }
)
"""Attributes of policies, modes and environments that nothing changes during a run."""
_CHANGES = frozenset({"=", "seed", "sample", "override", "update", "__setattr__", "__dict__"})
"""What code does with a setting that is more than reading it; to sample from a space advances its random generator."""


Places = tuple[tuple[Place, FunctionType], ...]
"""Places in code, each with its function."""


class Held(NamedTuple):
    """An object that a middleware reaches."""

    name: str
    """Code for it, where the script has it: "pol", "self.agent.policy", "box['p']"."""
    through: str
    """The function of the script that has it, if that is not the middleware itself; or empty."""
    thing: Any
    places: Places | None
    """Where the code uses it; None if this is unknown, because it is inside a container, say."""
    around: tuple[int, ...]
    """The ids of the objects that it was reached through."""
    use: CodeInUse | None = None
    """The code that reaches it of an object that the contract names; None if the middleware reaches it itself."""

    @property
    def container(self) -> int | None:
        """The id of the list, tuple or dict that it is in; None if it is in none."""
        return self.around[-1] if self.name.endswith("]") and self.around else None

    @property
    def shown(self) -> str:
        """Its name for messages."""
        return f"{self.name} (through {self.through})" if self.through else self.name

    def attributes(self) -> set[str] | None:
        """The attributes that the code reads of it and that are not mere settings; None if it does anything else with it."""
        is_plain = not isinstance(self.thing, _CONTAINERS) and any(_is_of_library(it) for it in type(self.thing).__mro__)
        return None if self.places is None else _attributes(self.places, is_plain, 0)


class _Node(NamedTuple):
    """A value on the way, and how code names it."""

    name: str
    through: str
    value: Any
    places: Places | None
    around: tuple[int, ...]
    is_top: bool = False
    """Whether it is the middleware itself."""
    is_leaf: bool = False
    """Whether a library holds it, so that only functions of the script in it count."""


def needs_contract(value: object) -> bool:
    """Whether contracts name a value: it may change, and is neither a function, a configuration nor made to be shared."""
    if is_scalar(value) or isinstance(value, NO_STATE) or is_task(value) or type(value).__module__ in _MADE_TO_BE_SHARED:
        return False
    if is_global_generator(value):
        return False
    if isinstance(value, (list, dict, set, deque, bytearray, array)):
        return True
    if has_attribute(value, "__dict__") or has_attribute(value, "__array__") or advances(value):
        return True
    return is_of_script(type(value).__module__) and bool(slots_of(type(value)))


def advances(value: object) -> bool:
    """Whether each use advances a value: an iterator, such as a generator, or a random generator. Not an iterator with
    attributes, or a file."""
    if is_random_generator(value):
        return True
    return isinstance(value, Iterator) and not has_attribute(value, "__dict__") and not isinstance(value, io.IOBase)


def objects_held(fn: Any) -> Iterator[tuple[str, Any]]:
    """Stateful objects that a middleware itself holds, by name: free variables and globals, or attributes of an object."""
    if inspect.isfunction(fn):
        yield from ((name, value) for name, value in closure_of(fn) if needs_contract(value))
        own = fn.__code__.co_names  # without those of functions inside it
        yield from ((name, value) for name, value in globals_of(fn).items() if name in own and needs_contract(value))
    else:
        yield from (
            (f"self.{name}", value) for name, value in attribute_of(fn, "__dict__", {}).items() if needs_contract(value)
        )


def objects_reached(fn: Any) -> Iterator[Held]:
    """Stateful objects that a middleware holds or reaches, the nearest first; one that it reaches in two ways, twice.

    It goes through closures, global variables that code names, partials, bound methods, small containers, and attributes of
    the user's own objects that any code on the way names. Objects of libraries are not searched.
    """
    top = _Node("self" if not isinstance(fn, FunctionType) else "", "", fn, None, (), is_top=True)
    yield from _search([top], _code_reached(fn))


def objects_in_use(code: CodeInUse) -> Iterator[Held]:
    """Stateful objects that the script's code reaches which runs where a middleware uses an object, as in `objects_reached`."""
    owner, functions = code.owner, code.functions
    found = _Code(tuple(functions), frozenset(name for it in functions for name in names_in(it.__code__)))
    nodes = [_Node(it.__name__, "", it, None, (id(owner),)) for it in functions]
    held = {**_data_of(type(owner)), **_attributes_of(owner)}
    for name in sorted(found.names & held.keys()):
        by = next((it for it in functions if places_of(it.__code__, name, is_attribute=True)), None)
        if by is not None:
            nodes.append(_Node(f"self.{name}", by.__name__, held[name], found.places(name), (id(owner),)))
    yield from (it._replace(use=code) for it in _search(nodes, found))


def _search(start: Iterable[_Node], code: _Code) -> Iterator[Held]:
    """The stateful objects that these nodes lead to, the nearest first, without those of the first nodes that are functions."""
    waiting = deque(start)
    seen: dict[tuple[int, str], Any] = {}  # keeps the objects, so that no other one gets the same id
    while waiting and len(seen) < _MOST_SEEN:
        node = waiting.popleft()
        key = (id(node.value), "" if isinstance(node.value, FunctionType) else f"{node.name} {node.through}")
        if key in seen or len(node.around) > _MOST_DEPTH or id(node.value) in node.around:
            continue
        seen[key] = node.value
        if not node.is_top and needs_contract(node.value) and (not node.is_leaf or len(node.around) == 1):
            yield Held(node.name, node.through, node.value, node.places, node.around)
        waiting += _inside(node, code)


class _Code(NamedTuple):
    """All code of the script that a middleware may run."""

    functions: tuple[FunctionType, ...]
    names: frozenset[str]
    """The names of attributes in it."""

    @property
    def reads_any(self) -> bool:
        """Whether it may read attributes that it does not name."""
        return not self.names.isdisjoint(_ANY_ATTRIBUTE)

    def places(self, attribute: str) -> Places | None:
        """Where it uses an attribute of any object; None if this is unknown."""
        if self.reads_any:
            return None
        return tuple((place, fn) for fn in self.functions for place in places_of(fn.__code__, attribute, is_attribute=True))


def _code_reached(fn: Any) -> _Code:
    waiting, seen = deque([_Node("", "", fn, None, (), is_top=True)]), dict[int, Any]()
    while waiting and len(seen) < _MOST_SEEN:
        node = waiting.popleft()
        if id(node.value) not in seen and len(node.around) <= _MOST_DEPTH:
            seen[id(node.value)] = node.value
            waiting += _inside(node, None)
    functions = tuple(it for it in seen.values() if isinstance(it, FunctionType) and is_of_script(module_of(it)))
    return _Code(functions, frozenset(name for it in functions for name in names_in(it.__code__)))


def _inside(node: _Node, code: _Code | None) -> Iterator[_Node]:
    """What a value leads to, of attributes those that this code names; None for all."""
    value, around = node.value, (*node.around, id(node.value))

    def inner(name: str, it: Any) -> _Node:
        return _Node(name, node.through, it, None, around, is_leaf=node.is_leaf)

    if isinstance(value, FunctionType):
        yield from _in_function(node, around)
    elif isinstance(value, functools.partial):
        yield inner(node.name if node.is_top else f"{node.name}.func", value.func)._replace(is_top=node.is_top)
        at, by = ("argument {}", "argument {}") if node.is_top else (f"{node.name}.args[{{}}]", f"{node.name}.keywords[{{!r}}]")
        yield from (inner(at.format(index), it) for index, it in enumerate(value.args))
        yield from (inner(by.format(name), it) for name, it in value.keywords.items())
    elif isinstance(value, MethodType):
        owner = "self" if node.is_top else f"{node.name}.__self__"
        yield inner(owner, value.__self__)
        yield inner(node.name, value.__func__)._replace(is_top=node.is_top)
    elif isinstance(value, (BuiltinFunctionType, MethodWrapperType)):
        if not isinstance(value.__self__, (type, ModuleType)):
            yield inner(f"{node.name}.__self__", value.__self__)
    elif isinstance(value, functools._lru_cache_wrapper):
        yield inner(node.name, value.__wrapped__)
    elif isinstance(value, memoryview):
        yield inner(f"{node.name}.obj", value.obj)
    elif isinstance(value, _VIEWS):
        yield from (inner(f"what {node.name} shows", it) for it in gc.get_referents(value) if isinstance(it, Mapping))
    elif isinstance(value, _CONTAINERS) and not is_of_ding_lite(type(value).__module__):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        yield from (inner(f"{node.name}[{key!r}]", it) for key, it in pairs) if len(value) <= _MOST_ITEMS else ()
    elif not isinstance(value, (type, ModuleType)) and (node.is_top or (not node.is_leaf and _is_of_user(type(value)))):
        yield from _in_object(node, around, code)


def _in_function(node: _Node, around: tuple[int, ...]) -> Iterator[_Node]:
    fn = node.value
    wrapped = vars(fn).get("__wrapped__")
    if callable(wrapped):  # also by a decorator of a library, such as contextlib.contextmanager
        yield _Node(node.name, node.through, wrapped, None, around, is_top=node.is_top)
    if not node.is_top and not is_of_script(module_of(fn)):
        return
    through = "" if node.is_top else node.name if fn.__name__ == "<lambda>" else fn.__name__
    is_leaf = not is_of_script(module_of(fn))
    given: list[tuple[str, Any]] = [(name, it) for name, it in closure_of(fn) if name != "__class__"]
    if is_of_script(module_of(fn)):
        given += globals_of(fn).items()
    positional = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    defaults = fn.__defaults__ or ()
    given += [*zip(positional[len(positional) - len(defaults) :], defaults), *(fn.__kwdefaults__ or {}).items()]
    for name, it in given:
        if isinstance(it, ModuleType):
            known = vars(it) if is_of_script(it.__name__) else {}
            inside = [(f"{name}.{one}", known[one]) for one in sorted(names_in(fn.__code__)) if one in known]
            yield from (_Node(path, through, one, None, around) for path, one in inside)
        elif not is_scalar(it):
            places = tuple((place, fn) for place in places_of(fn.__code__, name))
            yield _Node(name, through, it, places, around, is_leaf=is_leaf)
            known = _data_of(it) if isinstance(it, (type, FunctionType)) else {}
            for one in {place.chain[0] for place, _ in places if place.chain} & known.keys():
                yield _Node(f"{name}.{one}", through, known[one], None, around)


def _data_of(it: type | FunctionType) -> dict[str, Any]:
    """The objects that are attributes of a class or function of the script."""
    if isinstance(it, FunctionType):
        held = vars(it) if is_of_script(it.__module__) else {}
    else:
        held = {name: one for base in reversed(it.__mro__) if is_of_script(base.__module__) for name, one in vars(base).items()}
    return {
        name: one for name, one in held.items() if not name.startswith("__") and needs_contract(one) and not _is_member(one)
    }


def _is_member(value: object) -> bool:
    """Whether it is part of a class, such as a property, and no data. A descriptor of the script may have data."""
    if isinstance(value, (property, staticmethod, classmethod, functools.cached_property)):
        return True
    return hasattr(type(value), "__get__") and not is_of_script(type(value).__module__)


def _in_object(node: _Node, around: tuple[int, ...], code: _Code | None) -> Iterator[_Node]:
    """The attributes of an object, and the methods of its classes of the script."""
    value, kind = node.value, type(node.value)
    held = {**_data_of(kind), **_attributes_of(value)}
    used = None if node.is_top else _names_used(node)
    is_leaf = not is_of_script(kind.__module__) and kind is not SimpleNamespace
    for name, it in held.items():
        if node.is_top or code is None or code.reads_any or name in (code.names if used is None else used):
            places = None if code is None or _is_named_by_library(kind, name) else code.places(name)
            yield _Node(f"{node.name}.{name}", node.through, it, places, around, is_leaf=is_leaf)
    for method in _methods_of(kind):
        if used is None or method.__name__ in used:
            yield _Node(node.name, node.through, method, None, around, is_top=node.is_top)


def _attributes_of(value: Any) -> dict[str, Any]:
    """What an object holds by name, also in slots."""
    held = {**attribute_of(value, "__dict__", {})}
    held.update((name, attribute_of(value, name)) for name in slots_of(type(value)) if has_attribute(value, name))
    return held


def _is_named_by_library(kind: type, attribute: str) -> bool:
    """Whether a parent class that is not of the script has code that may use an attribute."""
    others = (function_of(it) for base in kind.__mro__ if not is_of_script(base.__module__) for it in vars(base).values())
    return any(attribute in names_in(it.__code__) for it in others if isinstance(it, FunctionType))


def _names_used(node: _Node) -> set[str] | None:
    """The attributes of an object that code reads, and the names in the methods among them; None if it does more with it."""
    if node.places is None or not all(place.chain for place, _ in node.places):
        return None
    methods = {method.__name__: names_in(method.__code__) for method in reversed([*_methods_of(type(node.value))])}
    used, waiting = set[str](), [place.chain[0] for place, _ in node.places]
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            waiting += methods.get(name, ())
    return used


def _methods_of(kind: type) -> Iterator[FunctionType]:
    """Methods and properties of a class of the script, except for its constructor."""
    for base in kind.__mro__:
        for name, value in vars(base).items() if is_of_script(base.__module__) else ():
            method = value.func if isinstance(value, functools.cached_property) else function_of(value)
            if isinstance(method, FunctionType) and name not in ("__init__", "__new__", "__post_init__"):
                yield method


def _attributes(places: Places, is_plain: bool, depth: int) -> set[str] | None:
    """The attributes that are read in these places, without settings; None if the object goes elsewhere."""
    found: set[str] = set()
    for place, fn in places:
        if place.chain:
            is_setting = is_plain and place.chain[0] in _SETTINGS and _CHANGES.isdisjoint(place.chain)
            is_kept = len(place.chain) == 1 and not _CHANGES.isdisjoint(names_in(fn.__code__))  # in a variable, say
            found |= set() if is_setting and not is_kept else {place.chain[0]}
            continue
        helper = {**fn.__globals__, **dict(closure_of(fn))}.get(place.function)
        if not isinstance(helper, FunctionType) or not is_of_script(helper.__module__) or depth >= _MOST_CALLS:
            return None
        code = helper.__code__
        if place.position >= code.co_argcount or "__wrapped__" in vars(helper):
            return None
        inner = tuple((it, helper) for it in places_of(code, code.co_varnames[place.position]))
        inside = _attributes(inner, is_plain, depth + 1)
        if inside is None:
            return None
        found |= inside
    return found


def _is_of_user(kind: type) -> bool:
    """Whether a class and its parents are of the script, apart from those of Python itself."""
    if kind is SimpleNamespace:
        return True
    return is_of_script(kind.__module__) and not any(_is_of_library(base) for base in kind.__mro__)


def _is_of_library(kind: type) -> bool:
    return is_of_ding_lite(kind.__module__) or package_of(kind.__module__) in ("torch", "gymnasium", "numpy")


def is_task(value: object) -> bool:
    """Whether a value is a task, which reaches every middleware."""
    return all(has_attribute(value, name) for name in ("use", "run", "finish"))
