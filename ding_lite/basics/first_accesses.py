"""First accesses: which attributes of an object its methods read before they have set them, whatever way their code takes."""

from __future__ import annotations

import bisect
import dis
import functools
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from ding_lite.basics.attribute_reads import instructions_of, is_method_load, names_of, place_at
from ding_lite.basics.closures import closure_of, function_of
from ding_lite.basics.origins import is_of_ding_lite, is_of_script, module_of, without_library_decorators

_LOADS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_CLASSDEREF")
_VARIABLES = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME")
_COPIES = ("COPY", "DUP_TOP")
_CALLS = ("CALL", "CALL_FUNCTION")
_CALLS_WITH_NAMES = ("CALL_KW", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX")
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
_ALL = ("__dict__", "__getstate__", "__reduce__", "__reduce_ex__")
_HARMLESS = ("super", "type", "isinstance", "id")
_RETURNING_ITSELF = ("__enter__", "__iter__")
"""What Python calls, so that the result goes to another function, or to one where `with self` counts as a read of all."""
_BY_NAME = ("getattr", "hasattr", "delattr")
_RENEWING = {"clear": 0, "fill": 1, "fill_": 1, "zero_": 0, "copy_": 1}
"""Methods of containers, arrays, tensors and events after which nothing is left of earlier content; each with the number of its
arguments."""
_RENEWING_CALLS = (*_CALLS, "CALL_METHOD")
_OF_ATTRIBUTES = ("__getattr__", "__getattribute__", "__setattr__", "__delattr__")


class Accesses(NamedTuple):
    """What code does first with the attributes of an object."""

    read: frozenset[str]
    """Those that it may read before it has set them."""
    set: frozenset[str]
    """Those that it has set when it ends, whatever way it took."""


_NOTHING = Accesses(frozenset(), frozenset())


class _State(NamedTuple):
    """What is set at one place in code, on every way to it."""

    set: frozenset[str]
    begun: frozenset[str]
    """What calls set whose arguments are computed now."""


class FirstAccesses:
    """The first accesses of the methods of a class, from their bytecode, also through the methods and functions that they call.

    What cannot be known counts as a read: attributes by computed names, objects that get `self`, methods and functions inside
    of functions, which may be called later.

    Args:
        kind: the class.
        calls: for methods of ding_lite, the methods that they call, in this order; the code of others of ding_lite is read.

    Example:
        >>> class Timer:
        ...     def start(self):
        ...         self.begin = 3.0
        ...         self.turns += 1
        ...     def stop(self):
        ...         return 4.0 - self.begin
        >>> timer = FirstAccesses(Timer)
        >>> sorted(timer.of("start").read), sorted(timer.of("stop").read), sorted(timer.of("start", "stop").read)
        (['turns'], ['begin'], ['turns'])
    """

    def __init__(self, kind: Any, calls: Mapping[str, Sequence[str]] | None = None) -> None:
        self._kind, self._calls = kind, calls or {}
        self._all = frozenset(names_of([base for base in kind.__mro__ if is_of_script(base.__module__)]))
        self._found: dict[tuple[CodeType, str], Accesses] = {}
        self.codes: set[CodeType] = set()
        """The code that was read so far, with that of functions inside it."""
        self.names_set: set[str] = set()
        """The attributes that this code sets somewhere."""
        self.names_read: set[str] = set()
        """The attributes that this code reads somewhere."""
        self.names_renewed: set[str] = set()
        """The attributes whose content this code replaces somewhere, `self.rows.clear()`, which counts as if it set them."""
        script = [base for base in kind.__mro__ if is_of_script(base.__module__)]
        self.is_known = not any(name in vars(base) for base in script for name in _OF_ATTRIBUTES)
        """Whether attributes are set and read in the usual way."""

    def of(self, *methods: str) -> Accesses:
        """Those of methods that are called in this order."""
        read, done = set[str](), set[str]()
        for name in methods:
            one = self._of_call(name)
            read |= one.read - done
            done |= one.set
        return Accesses(frozenset(read), frozenset(done))

    def _of_call(self, name: str, below: type | None = None) -> Accesses:
        """Those of a method, called by its name; `below` is the class whose `super()` is called."""
        owner, member = self._member(name, below)
        if isinstance(member, (property, functools.cached_property)):
            return self._of_property(owner, member)
        if isinstance(member, (staticmethod, classmethod)):
            return _NOTHING
        if owner is None or not is_of_script(owner.__module__):
            if name in self._calls:
                return self.of(*self._calls[name])
            if owner is None or not is_of_ding_lite(owner.__module__):
                return _NOTHING
        return self._of_member(owner, member)

    def _of_member(self, owner: Any, member: Any) -> Accesses:
        fn = without_library_decorators(member)
        if isinstance(fn, FunctionType) and fn.__code__.co_argcount and "__wrapped__" not in vars(fn):
            return self._of_function(fn, fn.__code__.co_varnames[0], owner)
        return Accesses(self._all, frozenset()) if owner is None or is_of_script(owner.__module__) else _NOTHING

    def _of_property(self, owner: Any, member: Any) -> Accesses:
        return self._of_member(owner, member.func if isinstance(member, functools.cached_property) else member.fget)

    def _member(self, name: str, below: type | None = None) -> tuple[Any, Any]:
        order = self._kind.__mro__
        later = order if below is None else order[order.index(below) + 1 :]
        return next(((base, vars(base)[name]) for base in later if name in vars(base)), (None, None))

    def _of_function(self, fn: FunctionType, variable: str, owner: type | None) -> Accesses:
        """Those of a function whose argument of this name is the object."""
        key = fn.__code__, variable
        if key not in self._found:
            self._found[key] = _NOTHING  # a function that calls itself reads nothing earlier than it does
            self._found[key] = self._of_code(fn.__code__, fn, variable, owner)
        return self._found[key]

    def _of_code(self, code: CodeType, fn: FunctionType, variable: str, owner: type | None) -> Accesses:
        self.codes.add(code)
        return _Walk(self, code, fn, variable, owner).result()

    # What the walk through the code asks.

    def attribute(self, name: str, below: type | None = None) -> tuple[Accesses, bool]:
        """What happens if an attribute is read, and whether it is a method, whose call does this."""
        self.names_read.add(name)
        if name in _ALL:
            return Accesses(self._all, frozenset()), False
        owner, member = self._member(name, below)
        if isinstance(member, property):
            return self._of_property(owner, member), False
        if isinstance(member, functools.cached_property):
            return Accesses(self._of_property(owner, member).read | {name}, frozenset()), False
        if owner is not None and isinstance(function_of(member), FunctionType):
            return self._of_call(name, below), True
        return Accesses(frozenset({name}), frozenset()), False

    def setting(self, name: str) -> Accesses:
        """What happens if an attribute is set."""
        owner, member = self._member(name)
        if isinstance(member, property):
            return _NOTHING if member.fset is None else self._of_member(owner, member.fset)
        self.names_set.add(name)
        return Accesses(frozenset(), frozenset({name}))

    def renewing(self, name: str) -> Accesses | None:
        """What happens if the content of an attribute is replaced; None if it is no attribute of the object alone."""
        if self._member(name)[0] is not None:
            return None
        self.names_renewed.add(name)
        self.names_set.add(name)
        return Accesses(frozenset(), frozenset({name}))

    def inner(self, code: CodeType, fn: FunctionType, variable: str, owner: type | None) -> Accesses:
        """Those of a function inside of another one."""
        return self._of_code(code, fn, variable, owner)

    def passed(self, value: Any, position: int, names: Sequence[str] = ()) -> Accesses | None:
        """Those of a function that gets the object as an argument; None if they are unknown.

        Args:
            value: the function, or a class.
            position: of the argument.
            names: of a method of the class: ("loss",) in `Base.loss(self, batch)`.
        """
        if isinstance(value, type) and value in self._kind.__mro__ and len(names) == 1 and position == 0:
            order = self._kind.__mro__
            below = order[order.index(value) - 1] if value is not self._kind else None
            return self._of_call(names[0], below)
        is_readable = isinstance(value, FunctionType) and (is_of_script(module_of(value)) or is_of_ding_lite(module_of(value)))
        if is_readable and not names and position < value.__code__.co_argcount and "__wrapped__" not in vars(value):
            return self._of_function(value, value.__code__.co_varnames[position], None)
        return None

    @property
    def everything(self) -> Accesses:
        """Reads of all attributes."""
        return Accesses(self._all, frozenset())


class _Walk:
    """The ways through the code of one function."""

    def __init__(self, of: FirstAccesses, code: CodeType, fn: FunctionType, variable: str, owner: type | None) -> None:
        self._of, self._fn, self._variable, self._owner = of, fn, variable, owner
        self._code = instructions_of(code)
        self._name = code.co_name
        self._offsets = [it.offset for it in self._code]
        self._is_of_script = is_of_script(module_of(fn))
        self._read = set[str]()
        self._ends: list[frozenset[str]] = []
        self._handlers = list(getattr(dis.Bytecode(code), "exception_entries", ()))  # from Python 3.11 on
        self._may_suppress = "suppress" in code.co_names

    def result(self) -> Accesses:
        states: dict[int, _State] = {}
        waiting = [(0, _State(frozenset(), frozenset()))]
        while waiting:
            index, state = waiting.pop()
            before = states.get(index)
            if before is not None:
                state = _State(before.set & state.set, before.begun & state.begun)
                if state == before:
                    continue
            if index >= len(self._code):
                continue
            states[index] = state
            waiting += self._step(index, state)
        done = frozenset.intersection(*self._ends) if self._ends else frozenset[str]()
        return Accesses(frozenset(self._read), done)

    def _step(self, index: int, state: _State) -> Iterator[tuple[int, _State]]:
        """What may follow an instruction, with what is set then."""
        now = self._code[index]
        for entry in self._handlers:
            if entry.start <= now.offset < entry.end:
                yield self._at(entry.target), _State(state.set, frozenset())
        done, begun = set(state.set), set(state.begun)
        self._look(index, done, begun)
        if (now.opname.startswith("STORE_") or now.opname == "POP_TOP") and self._code[index - 1].opname not in _COPIES:
            done, begun = done | begun, set()  # the calls of a statement are done at its end
        after = _State(frozenset(done), frozenset(begun))
        if now.opname in _ENDS:
            if now.opname.startswith("RETURN"):
                self._ends.append(after.set | after.begun)
        elif now.opname == "WITH_EXCEPT_START" and not self._may_suppress:
            return  # the error goes on
        elif now.opcode in dis.hasjrel or now.opcode in dis.hasjabs:
            later = after._replace(begun=frozenset())
            yield self._at(now.argval), later
            if not now.opname.startswith("JUMP") or "_IF_" in now.opname:
                yield index + 1, later
        else:
            yield index + 1, after

    def _at(self, offset: int) -> int:
        return bisect.bisect_left(self._offsets, offset)

    def _look(self, index: int, done: set[str], begun: set[str]) -> None:
        """Note what an instruction does with the object."""
        now = self._code[index]
        if isinstance(now.argval, CodeType) and self._variable in now.argval.co_freevars:
            inner = self._of.inner(now.argval, self._fn, self._variable, self._owner)
            is_now = now.argval.co_name in _COMPREHENSIONS or not self._is_of_script
            self._read |= inner.read - done if is_now else inner.read
        elif now.opname == "LOAD_GLOBAL" and now.argval == "super" and self._is_call(index + 1, 0):
            self._attribute(index, index + 2, done, begun, self._owner)
        elif now.opname.startswith(_LOADS):
            names = now.argval if isinstance(now.argval, tuple) else (now.argval,)
            if self._variable in names[:-1]:  # one instruction loads several variables
                self._unknown(done)
            elif self._variable == names[-1]:
                self._loaded(index, done, begun)

    def _loaded(self, index: int, done: set[str], begun: set[str]) -> None:
        """What happens to the object that the instruction at this index loads."""
        later = index + 1
        while self._code[later].opname in _COPIES:  # self.n += 1
            later += 1
        following, before = self._code[later], [(it.opname, it.argval) for it in self._code[max(0, index - 2) : index]]
        last = before[-1][1] if before else None
        if following.opname == "STORE_ATTR" and later == index + 1:
            self._take(self._of.setting(following.argval), done, done)
        elif following.opname == "DELETE_ATTR":
            self._read |= {following.argval} - done
            done.discard(following.argval)
        elif following.opname.startswith("LOAD_SUPER_"):
            self._attribute(index, later, done, begun, self._owner)
        elif following.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if following.argval != "__class__":
                self._attribute(index, later, done, begun)
        elif len(before) == 2 and before[0][1] == "super" and self._is_call(later, 2):
            self._attribute(index, later + 1, done, begun, self._owner)
        elif last == "setattr" and isinstance(following.argval, str):
            self._take(self._of.setting(following.argval), done, begun)
        elif last in _BY_NAME and following.opname == "LOAD_CONST" and isinstance(following.argval, str):
            self._of.names_read.add(following.argval)
            self._read |= {following.argval} - done
        elif last not in _HARMLESS and not (following.opname == "RETURN_VALUE" and self._name in _RETURNING_ITSELF):
            self._passed(index, done, begun)

    def _attribute(self, index: int, at: int, done: set[str], begun: set[str], below: type | None = None) -> None:
        """The attribute that the instruction `at` reads of the object, or of its `super()` in the class `below`."""
        now = self._code[at]
        renewed = self._of.renewing(now.argval) if below is None and at == index + 1 and self._is_renewed(at) else None
        if renewed is not None:
            self._take(renewed, done, done)
            return
        found, is_method = self._of.attribute(now.argval, below)
        if not is_method:
            self._take(found, done, done)
        elif below is not None or not self._is_of_script or is_method_load(now) or self._is_called_with_names(index, at):
            self._take(found, done, begun)
        else:  # it may be called later
            self._read |= found.read

    def _is_renewed(self, at: int) -> bool:
        """Whether nothing is left of the content of the attribute that the instruction `at` reads: `self.rows.clear()`,
        `self.array.fill(0)`, `self.array[:] = numbers`. Arguments are plain variables, so that they do not read it before."""
        names = [(it.opname, it.argval) for it in self._code[at + 1 : at + 5]]
        operations = [name for name, _ in names]
        if operations[:1] in (["LOAD_ATTR"], ["LOAD_METHOD"]) and names[0][1] in _RENEWING:
            count = _RENEWING[names[0][1]]
            given, call = names[1 : count + 1], self._code[at + 2 + count : at + 3 + count]
            is_plain = all(name.startswith(("LOAD_CONST", "LOAD_FAST", "LOAD_SMALL_INT")) for name, _ in given)
            is_other = all(value != self._variable and not isinstance(value, tuple) for _, value in given)
            return is_plain and is_other and bool(call) and call[0].opname in _RENEWING_CALLS and call[0].arg == count
        constants = [value for name, value in names if name == "LOAD_CONST"]
        if operations[:2] == ["LOAD_CONST", "STORE_SUBSCR"]:
            return constants[0] in (slice(None), Ellipsis)
        is_whole = operations[:2] == ["LOAD_CONST", "LOAD_CONST"] and constants[:2] == [None, None]
        return is_whole and operations[2:] in (["BUILD_SLICE", "STORE_SUBSCR"], ["STORE_SLICE", *operations[3:]])

    def _is_called_with_names(self, index: int, at: int) -> bool:
        """Whether the method that begins an expression is called there: `x = self.method(*args)`."""
        if index and not self._code[index - 1].opname.startswith(("STORE_", "POP_TOP")):
            return False
        for now in self._code[at + 1 :]:
            if now.opname in _CALLS_WITH_NAMES:
                return True
            if now.opname.startswith(("STORE_", "POP_TOP", "RETURN_")) or "JUMP" in now.opname:
                return False
        return False

    def _passed(self, index: int, done: set[str], begun: set[str]) -> None:
        """The object is an argument, or goes elsewhere."""
        place, names, function = place_at(self._code, index), list[str](), ""
        at = index - 1
        while at >= 0 and self._code[at].opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.insert(0, self._code[at].argval)
            at -= 1
        if place.function:
            function, position, names = place.function, place.position, []
        elif names and at >= 0 and self._code[at].opname in _VARIABLES:
            function, position = self._code[at].argval, 0
        known = dict(closure_of(self._fn))
        value = known.get(function, self._fn.__globals__.get(function)) if function else None
        found = None if value is None else self._of.passed(value, position, names)
        if found is None:
            self._unknown(done)
        else:
            self._take(found, done, begun)

    def _unknown(self, done: set[str]) -> None:
        if self._is_of_script:  # the library reads its own attributes
            self._take(self._of.everything, done, done)

    def _take(self, found: Accesses, done: set[str], later: set[str]) -> None:
        self._read |= found.read - done
        later |= found.set

    def _is_call(self, index: int, count: int) -> bool:
        return index < len(self._code) and self._code[index].opname in _CALLS and self._code[index].arg == count
