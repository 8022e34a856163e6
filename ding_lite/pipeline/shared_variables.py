"""Shared variables: numbers, attributes and random generators that middleware of several lanes use, and that are no objects."""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from ding_lite.basics.attribute_reads import places_of
from ding_lite.basics.closures import content_of, function_of, globals_of, names_in
from ding_lite.basics.config_classes import Config
from ding_lite.basics.optional_attributes import attribute_of
from ding_lite.basics.origins import is_of_script, module_of
from ding_lite.basics.variables_in_code import CLOSURE, FIRST, Access, accesses_of, global_draws
from ding_lite.pipeline.code_in_use import CodeInUse, advice_on_order, are_unordered, code_in_use, settings_in_use
from ding_lite.pipeline.contexts import is_scalar
from ding_lite.pipeline.entries import Entry

_MOST_SEEN, _MOST_ITEMS = 1_000, 100
_ALL = None
"""Stands for all methods of an object."""

_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_Found = tuple[Any, frozenset[str] | None, Any]
"""A value, the names of its methods that count, and the owner if it is a method."""
_Key = tuple[object, ...]
"""Identifies a variable: by the id of its cell, or by the id of what it is an attribute of, and its name."""


@dataclasses.dataclass
class _Use:
    """How a middleware uses a variable."""

    entry: Entry
    name: str
    """Code for it: "steps" or "Stats.count"."""
    through: str
    """The function that does it, if it is not the middleware itself; or empty."""
    owner: Any
    """The class, module or function that it is an attribute of; None if there is none."""
    is_set: bool
    table: int | None
    """The id of the container that the function is in, of which each middleware may call another one; None if it is in none."""
    is_generator: bool = False
    use: CodeInUse | None = None
    """The code that does it of an object that the contract names; None if it is the middleware itself."""

    @property
    def who(self) -> str:
        return f"{self.entry.name} ({self.entry.location})"

    @property
    def verb(self) -> str:
        if self.is_generator:
            return f"draws from it as well, with {self.name}"
        verb = "sets as well" if self.is_set else "reads"
        return f"{verb}, through {self.through} of the {self.use.kind}" if self.use is not None and self.through else verb

    @property
    def shown(self) -> str:
        """Its name for messages."""
        of = f" of the {self.use.kind}" if self.use is not None else ""
        return f"{self.name} (through {self.through}{of})" if self.through else self.name


def shared_variables(pipeline: Sequence[Entry]) -> Iterator[str]:
    """Advice for each variable that one middleware sets, and another one on another lane reads or sets.

    These are variables of functions around both, global variables, attributes of classes, modules and functions of the script,
    and the global random generators. Two middleware whose contracts name the same object take turns, so that nothing is wrong.
    A variable that is set only where it was None is a value made when it is first needed, and does not count. The settings of a
    configuration count as variables. Code of the script that runs where a middleware uses an object, such as the loss of a
    policy, counts as well; see `code_in_use`.
    """
    found: dict[_Key, list[_Use]] = {}
    for entry in pipeline:
        if entry.contract is not None:
            for key, use in (*_uses_of(entry), *_uses_through(entry, pipeline)):
                found.setdefault(key, []).append(use)
    for uses in found.values():
        for use in uses if len(uses) > 1 else ():
            other = next((it for it in uses if _is_beside(use, it)), None) if use.is_set else None
            if other is not None:
                yield _advice(use, other)
                break


def _is_beside(use: _Use, other: _Use) -> bool:
    """Whether nothing orders the two."""
    if use.table is not None and use.table == other.table:
        return False
    return are_unordered(use.entry, use.use, other.entry, other.use)


def _advice(use: _Use, other: _Use) -> str:
    order = _order_of_use(use, other)
    if use.is_generator:
        return (
            f"{use.who} draws from the global random generator of {use.owner}, with {use.shown}, and {other.who} "
            f"{other.verb}. Nothing orders the two, so the numbers depend on which is faster: give each a generator of its "
            f"own, {_GENERATORS[use.owner]}."
        )
    owner, _, last = use.name.rpartition(".")
    if order:
        fix = order
    elif isinstance(use.owner, (type, ModuleType, Config)):
        fix = f"add {owner} to both, @contract(..., uses=({owner},))"
    else:
        fix = (
            f"keep it in an object and name that in both, `shared = {{{last!r}: ...}}` and @contract(..., uses=(shared,)); or "
            "pass it on in a field of the context"
        )
    return (
        f"{use.who} sets {use.shown}, which {other.who} {other.verb}, and their contracts name no object in common. Nothing "
        f"orders the two, so the result depends on which is faster: {fix}."
    )


_GENERATORS = {
    "numpy.random": "rng = np.random.default_rng(seed), and draw with rng.random()",
    "random": "rng = random.Random(seed), and draw with rng.random()",
    "torch": "generator = torch.Generator().manual_seed(seed), and draw with torch.rand(..., generator=generator)",
}


def _order_of_use(use: _Use, other: _Use) -> str:
    """How to order the two, if one of them is the code of an object that a contract names; or empty."""
    if use.use is not None:
        return advice_on_order(other.entry, use.entry, use.use)
    return "" if other.use is None else advice_on_order(use.entry, other.entry, other.use)


def _uses_of(entry: Entry) -> Iterator[tuple[_Key, _Use]]:
    """How a middleware uses variables that others may use as well."""
    return _uses_in(_functions_run(entry.fn), entry, None)


def _uses_through(entry: Entry, pipeline: Sequence[Entry]) -> Iterator[tuple[_Key, _Use]]:
    """How the code of objects that it uses does."""
    for code in code_in_use(entry, pipeline):
        runs = [_Run(fn, code.owner, is_top=False, table=None) for fn in code.functions]
        yield from _uses_in(runs, entry, code)
    for code, settings in settings_in_use(entry):
        for name in vars(settings):
            yield (id(settings), name), _Use(entry, name, "", settings, is_set=False, table=None, use=code)


def _uses_in(runs: Sequence[_Run], entry: Entry, code: CodeInUse | None) -> Iterator[tuple[_Key, _Use]]:
    """How functions use variables, each variable once."""
    found: dict[_Key, _Use] = {}

    def add(key: _Key, use: _Use) -> None:
        if key not in found or (use.is_set and not found[key].is_set):
            found[key] = use

    for run in runs:
        through = "" if run.is_top or run.fn.__name__ == "<lambda>" else run.fn.__name__
        for access in accesses_of(run.fn.__code__):
            for key, name, owner, is_set in _variables(run, access):
                add(key, _Use(entry, name, through, owner, is_set, run.table, use=code))
        for generator, call in global_draws(run.fn, run.variables):
            add((generator,), _Use(entry, call, through, generator, True, run.table, is_generator=True, use=code))
    yield from found.items()


class _Run(NamedTuple):
    """A function of the script that a middleware may run."""

    fn: Any
    """The function."""
    owner: Any
    """The object or class of a method; None for others."""
    is_top: bool
    table: int | None
    """The id of the container that it was found in, or that a function was found in that calls it; None if there is none."""

    @property
    def variables(self) -> Mapping[str, Any]:
        """Its variables from outside by name; of global variables, those that its code names."""
        return _variables_of(self.fn)


def _variables_of(fn: FunctionType) -> dict[str, Any]:
    found = globals_of(fn)
    found.update((name, content_of(cell)) for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or ()))
    return found


def _variables(run: _Run, access: Access) -> Iterator[tuple[_Key, str, Any, bool]]:
    """The variables that an access touches: key, name, owner, and whether it is set."""
    fn, name = run.fn, access.name
    is_set = access.is_set and not access.is_first_set
    if access.place == FIRST:
        if run.owner is None:
            return
        value = run.owner
    elif access.place == CLOSURE:
        cell = dict(zip(fn.__code__.co_freevars, fn.__closure__ or ())).get(name)
        if cell is None or name == "__class__":
            return
        yield ("cell", id(cell)), name, None, is_set and not access.chain
        value = content_of(cell)
    else:
        if not is_of_script(module_of(fn)):
            return
        yield (id(fn.__globals__), name), name, None, is_set and not access.chain
        value = fn.__globals__.get(name)
    yield from _attributes(value, access, is_set)


def _attributes(value: Any, access: Access, is_set: bool) -> Iterator[tuple[_Key, str, Any, bool]]:
    """The attributes of classes, modules and functions of the script along the chain of an access."""
    path = access.name
    for depth, attribute in enumerate(access.chain):
        is_last = is_set and depth == len(access.chain) - 1
        held: Mapping[str, Any] = {}
        if attribute == "__class__":
            value, path = type(value), type(value).__name__
            continue
        if isinstance(value, ModuleType):
            if not is_of_script(value.__name__):
                return
            held = vars(value)
            yield (id(held), attribute), f"{path}.{attribute}", value, is_last
        elif isinstance(value, type):
            for base in _places_in(value, attribute, is_last):
                held = vars(base)
                yield (id(base), attribute), f"{value.__name__}.{attribute}", base, is_last
        elif isinstance(value, Config):
            held = vars(value)
            yield (id(value), attribute), f"{path}.{attribute}", value, is_last
        elif isinstance(value, FunctionType):
            if not is_of_script(module_of(value)) or attribute.startswith("__"):
                return
            held = vars(value)
            yield (id(value), attribute), f"{path}.{attribute}", value, is_last
        else:
            own = attribute_of(value, "__dict__", {})
            if is_last or not is_of_script(type(value).__module__):
                return
            held = own
            if attribute not in own:
                for base in _places_in(type(value), attribute, is_set=False):
                    held = vars(base)
                    yield (id(base), attribute), f"{type(value).__name__}.{attribute}", base, False
        value, path = held.get(attribute), f"{path}.{attribute}"


def _places_in(cls: type, attribute: str, is_set: bool) -> list[type]:
    """The classes of the script whose attribute code sets, or may read, by this name of a class."""
    if is_set:
        return [cls] if is_of_script(cls.__module__) else []
    found = []
    for base in cls.__mro__:
        found += [base] if is_of_script(base.__module__) else []
        if attribute in vars(base):
            break
    return found


def _functions_run(fn: Any) -> list[_Run]:
    """The functions of the script that a middleware may run, with those of other functions, objects and classes that it names.

    Of an object, these are the methods that the code names, also in other methods; or all, if the object goes elsewhere.
    """
    found: list[_Run] = []
    waiting: deque[tuple[_Found, bool, int | None]] = deque([(_first(fn), True, None)])
    seen: dict[tuple[int, frozenset[str] | None], Any] = {}  # keeps the objects, so that no other one gets the same id
    while waiting and len(seen) < _MOST_SEEN:
        (value, wanted, owner), is_top, table = waiting.popleft()
        key = (id(value), wanted)
        if is_scalar(value) or key in seen:
            continue
        seen[key] = value
        if isinstance(value, FunctionType):
            if is_of_script(module_of(value)):
                found.append(_Run(value, owner, is_top, table))
            elif not is_top:
                continue
            inside, first = _named(value, owner), _wrapped(value)
        else:
            call = function_of(getattr(type(value), "__call__", None))  # noqa: B004  the method itself
            inside, first = _held(value, wanted, is_top), value.func if isinstance(value, functools.partial) else call
            table = id(value) if table is None and isinstance(value, _CONTAINERS) else table
        waiting += ((it, is_top and it[0] is first, table) for it in inside)
    return found


def _first(fn: Any) -> _Found:
    if isinstance(fn, MethodType):
        return fn.__func__, _ALL, fn.__self__
    is_object = not isinstance(fn, (FunctionType, functools.partial))
    return fn, frozenset({"__call__"}) if is_object else _ALL, None


def _wrapped(fn: FunctionType) -> Any:
    return vars(fn).get("__wrapped__")


def _named(fn: FunctionType, owner: Any) -> Iterator[_Found]:
    """The values that the code of a function names."""
    wrapped = _wrapped(fn)
    if callable(wrapped):
        yield wrapped, _ALL, owner
    variables = _variables_of(fn) if is_of_script(module_of(fn)) else dict(zip(fn.__code__.co_freevars, _cells(fn)))
    for name, value in variables.items():
        if isinstance(value, ModuleType):
            known = vars(value) if is_of_script(value.__name__) else {}
            chains = [place.chain[0] for place in places_of(fn.__code__, name) if place.chain]
            yield from ((known[one], _ALL, None) for one in chains if one in known)
        elif not is_scalar(value):
            asked = _names_asked(fn, name)
            if asked is None and isinstance(value, type):  # it is called: the methods of the new object
                asked = frozenset(names_in(fn.__code__))
            if asked is None or not isinstance(value, FunctionType):  # of a function, attributes alone call nothing
                yield value, asked, None
    yield from ((it, _ALL, None) for it in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()))
    if owner is not None and fn.__code__.co_argcount:
        own = _names_asked(fn, fn.__code__.co_varnames[0])
        yield from _held(owner, own, is_top=False)


def _cells(fn: FunctionType) -> list[Any]:
    return [content_of(cell) for cell in fn.__closure__ or ()]


def _names_asked(fn: FunctionType, name: str) -> frozenset[str] | None:
    """The attributes of a variable that a function reads, and those that it sets, with "="; None if it does more with it."""
    places = places_of(fn.__code__, name)
    if not all(place.chain for place in places):
        return _ALL
    return frozenset(f"{place.chain[0]}{end}" for place in places for end in ("", "=") if not end or place.chain[1:] == (end,))


def _held(value: Any, wanted: frozenset[str] | None, is_top: bool) -> Iterator[_Found]:
    """What may run of an object, class, partial function or small container."""
    if isinstance(value, functools.partial):
        yield from ((it, _ALL, None) for it in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, MethodType):
        yield value.__func__, _ALL, value.__self__
    elif isinstance(value, functools._lru_cache_wrapper):
        yield value.__wrapped__, _ALL, None
    elif isinstance(value, _CONTAINERS):
        inner = value.values() if isinstance(value, dict) else value
        yield from ((it, _ALL, None) for it in inner) if len(value) <= _MOST_ITEMS else ()
    elif not isinstance(value, ModuleType):
        yield from _in_object(value, wanted, is_top)


def _in_object(value: Any, wanted: frozenset[str] | None, is_top: bool) -> Iterator[_Found]:
    """The methods of an object or class, and what an object holds."""
    kind = value if isinstance(value, type) else type(value)
    bases = [base for base in kind.__mro__ if is_of_script(base.__module__)]
    if not bases and not is_top:
        return
    is_settings = isinstance(value, Config)  # their special methods read all of them, and none is called to read one
    others = [base for base in kind.__mro__ if not is_of_script(base.__module__) and base.__module__ != "builtins"]
    if bases and others and not is_settings:
        wanted = _ALL  # code of a library may call any method
    for base in bases:
        for name, member in vars(base).items():
            if name in _CONSTRUCTORS and not isinstance(value, type):
                continue  # it has run
            is_static = isinstance(member, staticmethod)
            of = kind if isinstance(member, classmethod) else None if is_static or isinstance(value, type) else value
            for asked, method in _functions_in(name, member):
                if _may_run(asked, wanted, is_settings):
                    yield method, _ALL, of
    for name, it in ({} if isinstance(value, type) else attribute_of(value, "__dict__", {})).items():
        if wanted is None or is_top or name in wanted:
            yield it, _ALL, None


def _functions_in(name: str, member: Any) -> Iterator[tuple[str, FunctionType]]:
    """The function of a method, by the name that runs it; of a property also those that set or delete it, by "name="."""
    get = member.func if isinstance(member, functools.cached_property) else function_of(member)
    found = [(name, get)]
    if isinstance(member, property):
        found += [(f"{name}=", it) for it in (member.fset, member.fdel)]
    yield from ((asked, it) for asked, it in found if isinstance(it, FunctionType))


def _may_run(name: str, wanted: frozenset[str] | None, is_settings: bool) -> bool:
    """Whether a method of this name may run, if these names count. Special methods run without being named."""
    is_special = name.startswith("__")
    if is_special and is_settings:
        return wanted is not None and name in wanted
    return is_special or wanted is None or name in wanted
