"""How values of each class are inspected: the memory and the content of a value, and the values inside it."""

from __future__ import annotations

import array
import datetime
import enum
import functools
import io
import itertools
import numbers
import operator
import pathlib
import random
import re
import sys
import uuid
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import BuiltinFunctionType, FunctionType, GeneratorType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from ding_lite.basics.closures import closure_of
from ding_lite.basics.optional_attributes import attribute_of, has_attribute
from ding_lite.basics.origins import is_of_script, package_of
from ding_lite.pipeline.contexts import Context, is_scalar

MOST_PARTS = 20_000
"""Maximum number of compared values inside one value."""
_MOST_BYTES = 1 << 20
"""Maximum size of a fully compared array; of a larger one, every n-th element is compared."""
_PLAIN = (
    *(numbers.Number, str, bytes, enum.Enum, type(None), range, slice, re.Pattern, pathlib.PurePath, uuid.UUID),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
)
_PLAIN_MODULES = {
    *("builtins", "types", "collections", "functools", "itertools", "random", "array", "_io", "datetime", "queue", "argparse"),
    *("numpy", "torch", "treetensor"),
}
"""Top-level modules whose objects hold data, or random numbers."""
_OF_GYMNASIUM = ("gymnasium.spaces", "gymnasium.wrappers.utils")  # the latter has RunningMeanStd
_SKIPPED = (FunctionType, MethodType, BuiltinFunctionType, ModuleType, type)
# Objects of a class with `changes_by_itself`, such as deferred work, are left out.
_MEMORY = (list, dict, set, deque, bytearray, array.array)
_DATA = (list, tuple, deque, Set, Mapping, bytearray, array.array, memoryview)
_MOST_SHOWN = 8  # items of a list behind an iterator
_OF_THE_ENGINE = frozenset({"_lineage", "__contract__", "__wrapped__"})
SHARED_BY_DESIGN = "/"
"""Prefix of names of fields of a nested context, which its own middleware write."""

_Content = tuple[int | None, int, Any]
"""Start and end of a value's memory, and its content."""
_Parts = list[tuple[str, Any]]
"""Values inside a value, by name."""
_Look = tuple[_Content, Sequence[tuple[str, Any]]]
"""The content of a value, and the values inside it, by name."""


class HashedBytes(int):
    """What counts in private attributes too: the hash of the content of an array or of the state of a random generator, or what
    decides what a torch module computes."""


def usual_parts(value: Any) -> list[tuple[str, Any]]:
    """The values inside a value, by name, as `fingerprint` finds them."""
    return kind_of(type(value)).parts(value)


def data_in_class(cls: type) -> dict[str, Any]:
    """The data in the classes of the script from which an object is derived."""
    bases = [base for base in cls.__mro__ if is_of_script(base.__module__)]
    members = {name: member for base in reversed(bases) for name, member in vars(base).items()}
    return {name: value for name, value in members.items() if is_data(value) and not name.startswith("__")}


def parts_with_defaults(value: Any) -> list[tuple[str, Any]]:
    """The values inside a value, and the data that its classes of the script hold for attributes which it does not have yet."""
    held = attribute_of(value, "__dict__", {})
    return [*usual_parts(value), *((f".{name}", it) for name, it in data_in_class(type(value)).items() if name not in held)]


def is_data(value: Any) -> bool:
    """Whether a value is a number, a string, a container, an array or a torch module."""
    return is_scalar(value) or kind_of(type(value)).is_data


def holds_data_alone(cls: type) -> bool:
    """Whether objects of a class of a library hold data or random numbers alone: of Python's, numpy's, torch's, gymnasium's."""
    return cls.__module__.startswith(_OF_GYMNASIUM) or package_of(cls.__module__) in _PLAIN_MODULES


def is_random_generator(value: Any) -> bool:
    """Whether a value is a random generator of Python, numpy or torch."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and hasattr(numpy, "random"):
        kinds = numpy.random.Generator, numpy.random.BitGenerator, numpy.random.RandomState
        if isinstance(value, kinds):
            return True
    return isinstance(value, random.Random) or (torch is not None and isinstance(value, torch.Generator))


def is_global_generator(value: Any) -> bool:
    """Whether a value is the random generator of the functions of a module, such as that of `random.random`."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if value is getattr(random, "_inst", None):
        return True
    if numpy is not None and hasattr(numpy, "random") and value is numpy.random.mtrand._rand:
        return True
    return torch is not None and value is torch.default_generator


def may_change(value: Any) -> bool:
    """Whether a value can change in place."""
    if is_scalar(value) or isinstance(value, _PLAIN):
        return False
    if isinstance(value, FunctionType):
        return bool(value.__dict__ or _memory_of_call(value))
    return not isinstance(value, _SKIPPED)


class Kind:
    """How to inspect values of one class.

    Args:
        cls: the class.
    """

    __slots__ = (
        "alive",
        "content",
        "has_attributes",
        "inside",
        "is_data",
        "is_ignored",
        "is_named",
        "is_skipped",
        "mark",
        "slots",
    )

    alive: weakref.ref[type[Any]]
    """Removes it when the class is gone."""

    def __init__(self, cls: type[Any]) -> None:
        self.is_skipped = issubclass(cls, _SKIPPED)
        self.is_ignored = hasattr(cls, "changes_by_itself")
        self.content, self.inside = _ways_to_look_at(cls)
        self.is_data = self.inside in _INSIDE_DATA or issubclass(cls, _DATA)
        self.has_attributes = cls.__dictoffset__ != 0 and self.inside not in (_leaves, _in_module)
        self.is_named = self.has_attributes and issubclass(cls, _DATA)
        self.slots = slots_of(cls)
        self.mark = SHARED_BY_DESIGN if issubclass(cls, Context) else "."

    def look(self, value: Any, inside: Sequence[tuple[str, Any]] | None = None) -> _Look:
        """The content of a value, and the values inside it: those given, or the usual ones."""
        try:
            if inside is None and self.is_skipped and not may_change(value):
                return _name_of(value), []
            begin, end, content = self.content(value)
            if self.is_named and type(content) is not HashedBytes:
                content = content, _names_of(value)
            return (begin, end, content), self.parts(value) if inside is None else inside
        except Exception:  # noqa: BLE001  such as a closed file, which may raise any error; what it holds cannot change then
            return (None, 0, None), []

    def parts(self, value: Any) -> _Parts:
        """The values inside a value, by name."""
        found = [] if self.inside is None else self.inside(value)
        if self.has_attributes:
            found += [(f"{self.mark}{name}", inner) for name, inner in _attributes_of(value).items()]
        for name in self.slots:
            if has_attribute(value, name):
                found.append((f".{name}", getattr(value, name)))
        return found


_KINDS: dict[int, Kind] = {}
"""By the id of the class, which is found faster than in a dict with weak keys."""


def kind_of(cls: type[Any]) -> Kind:
    key = id(cls)
    found = _KINDS.get(key)
    if found is None:
        found = Kind(cls)
        found.alive = weakref.ref(cls, lambda _: _KINDS.pop(key, None))
        _KINDS[key] = found
    return found


def _ways_to_look_at(cls: type[Any]) -> tuple[Callable[[Any], _Content], Callable[[Any], _Parts] | None]:
    """The functions that return the content of values of a class, and the values inside besides attributes."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if cls is HashedBytes:
        return _itself, _nothing
    if numpy is not None and issubclass(cls, numpy.void):
        return _raw, _nothing
    if issubclass(cls, _PLAIN) or (numpy is not None and issubclass(cls, numpy.generic)):
        return _plain, _nothing
    if torch is not None and issubclass(cls, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return _plain, _nothing
    if numpy is not None and issubclass(cls, numpy.ndarray):
        return _of_array, _objects_in_array
    if numpy is not None and issubclass(cls, (numpy.random.Generator, numpy.random.BitGenerator, numpy.random.RandomState)):
        return _of(_state_of_numpy), None
    if numpy is not None and issubclass(cls, numpy.random.SeedSequence):
        return _of(lambda it: HashedBytes(hash(repr(it.state)))), None
    if torch is not None and issubclass(cls, torch.nn.parameter.UninitializedTensorMixin):
        return _of(lambda it: None), _nothing
    if torch is not None and issubclass(cls, torch.Tensor):
        return _of_tensor, _tensors_in
    if torch is not None and issubclass(cls, torch.Generator):
        return _of(lambda it: HashedBytes(hash(it.get_state().numpy().tobytes()))), None
    if torch is not None and issubclass(cls, torch.nn.Module):
        return _of(_names_in_module), _in_module
    if hasattr(cls, "iter_items") or (hasattr(cls, "_detach") and hasattr(cls, "items")):  # a tree, or a branch of one
        return _of_tree, _leaves
    if issubclass(cls, Iterator) and cls.__module__ in ("builtins", "_collections") and cls.__reduce__ is not object.__reduce__:
        return _of(_of_iterator), _behind_iterator
    ways = next((ways for base, ways in _BY_BASE.items() if issubclass(cls, base)), None)
    is_called = any("__call__" in vars(base) for base in cls.__mro__) and not is_of_script(cls.__module__)
    return ways or (_of(_label_and_names if is_called else _names_of), None)  # is_called: a method, a class, np.sin


def _of(content: Callable[[Any], Any]) -> Callable[[Any], _Content]:
    """A function that returns an object's address and this content."""
    return lambda value: (id(value), id(value) + 1, content(value))


def _plain(value: Any) -> _Content:
    return None, 0, repr(value)


def _itself(value: Any) -> _Content:
    return None, 0, value


def _raw(value: Any) -> _Content:
    return None, 0, (str(value.dtype), repr(value) if value.dtype.hasobject else value.tobytes())


def _name_of(value: Any) -> _Content:
    """Of a function, class or module."""
    return None, 0, (type(value), _label_of(value))


def _label_of(value: Any) -> str:
    """Which function, method, class or module it is: its module and name, and the place and the content of its code."""
    name = f"{attribute_of(value, '__module__')}.{attribute_of(value, '__qualname__') or attribute_of(value, '__name__')}"
    code = getattr(attribute_of(value, "__func__", value), "__code__", None)
    return name if code is None else f"{name}:{code.co_firstlineno}:{hash(code)}"


def _label_and_names(value: Any) -> Any:
    """Of something that can be called: which one it is, and the names of its attributes."""
    is_open = not isinstance(value, type) or is_of_script(value.__module__)  # libraries may add to their classes
    return _label_of(value), _names_of(value)[1] if is_open else frozenset()


def _of_tuple(value: Any) -> _Content:
    return None, 0, (tuple, len(value))


def _of_keys(keys: Iterable[Any]) -> Any:
    return hash(tuple([repr(key) if is_scalar(key) else hash(key) for key in list(keys)]))


def _of_set(value: Any) -> _Content:
    content = frozenset(repr(one) if is_scalar(one) else hash(one) for one in list(value))
    return (None, 0, content) if isinstance(value, frozenset) else (id(value), id(value) + 1, content)


def _of_bytes(value: Any) -> Any:
    try:
        return HashedBytes(hash(bytes(value)))
    except ValueError:  # a memoryview that was released
        return None


def _of_file(value: Any) -> Any:
    return None if value.closed else HashedBytes(hash((value.getvalue(), value.tell())))


def _names_of(value: Any) -> Any:
    """Names that the class has too are defaults or cached properties; adding them is no change."""
    kind = type(value)
    names = [name for name in _attributes_of(value) if name[0] != "_" and not hasattr(kind, name)]
    if slots := kind_of(kind).slots:
        names += [name for name in slots if name[0] != "_" and has_attribute(value, name)]
    return kind.__qualname__, frozenset(names)


def _of_iterator(value: Any) -> Any:
    return repr(value.__reduce__()[2:]), operator.length_hint(value)


def _behind_iterator(value: Any) -> _Parts:
    """The object that a built-in iterator iterates over."""
    behind = value.__reduce__()[1]
    if type(value).__name__.startswith(("dict_", "set_", "odict_")):  # a new list; only its items count
        behind = tuple(behind[0])
    return _items(behind)


def position_of(value: Any) -> str | None:
    """Where an iterator is, as text, also if it is of `itertools`, with the iterators that it takes from; None if unknown."""
    if isinstance(value, GeneratorType):
        found = {name: inner for name, inner in _locals_of(value) if is_scalar(inner)}
        return f"{_of_generator(value)} {found!r}"
    if isinstance(value, (itertools.count, itertools.repeat)):
        return repr(value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # itertools deprecates it
            behind = value.__reduce__()[1:]
    except Exception:  # noqa: BLE001  whatever a class of the script raises
        return None
    return _position_in(behind)


def _position_in(value: Any) -> str:
    if isinstance(value, Iterator):
        return position_of(value) or "?"
    if isinstance(value, (tuple, list)):
        return f"{len(value)}{[_position_in(one) for one in value[:_MOST_SHOWN]]}"
    return repr(value) if is_scalar(value) else type(value).__name__


def _of_generator(value: Any) -> Any:
    return None if value.gi_frame is None else value.gi_frame.f_lasti


def _locals_of(value: Any) -> _Parts:
    frame = value.gi_frame
    return [] if frame is None else [(f".<locals>.{name}", inner) for name, inner in list(frame.f_locals.items())]


def _memory_of_call(value: Any) -> _Parts:
    """The state of a function between calls: numbers, containers and arrays of its closure and defaults."""
    found = [(f".<closure>.{name}", inner) for name, inner in closure_of(value)]
    found += [(f".<defaults>[{index}]", inner) for index, inner in enumerate(value.__defaults__ or ())]
    found += [(f".<defaults>.{name}", inner) for name, inner in (value.__kwdefaults__ or {}).items()]
    return [
        (name, inner) for name, inner in found if is_scalar(inner) or isinstance(inner, _MEMORY) or is_array_or_tensor(inner)
    ]


def is_array_or_tensor(value: Any) -> bool:
    """Whether a value is an array of numpy or a tensor of torch."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    return (numpy is not None and isinstance(value, numpy.ndarray)) or (torch is not None and isinstance(value, torch.Tensor))


def _items(value: Any) -> _Parts:
    steady = list(value) if isinstance(value, deque) else value  # another thread may append meanwhile
    return [(f"[{index}]", inner) for index, inner in enumerate(itertools.islice(steady, MOST_PARTS))]


def _entries(value: Any) -> _Parts:
    found: _Parts = []
    for index, (key, inner) in enumerate(itertools.islice(list(value.items()), MOST_PARTS)):
        found.append((f"[{_shown(key, index)}]", inner))
        if not is_scalar(key):
            found.append((f".keys()[{index}]", key))
    return found


def _nothing(value: Any) -> _Parts:
    return []


_BY_BASE: dict[Any, tuple[Callable[[Any], _Content], Callable[[Any], _Parts] | None]] = {
    (bytearray, array.array, memoryview): (_of(_of_bytes), None),
    (io.BytesIO, io.StringIO): (_of(_of_file), None),
    random.Random: (_of(lambda it: HashedBytes(hash(it.getstate()))), None),
    GeneratorType: (_of(_of_generator), _locals_of),
    itertools.count: (_of(repr), None),
    FunctionType: (_of(_label_and_names), _memory_of_call),
    Set: (_of_set, lambda it: [(f"[{index}]", inner) for index, inner in enumerate(list(it)) if not is_scalar(inner)]),
    Mapping: (_of(_of_keys), _entries),
    tuple: (_of_tuple, _items),
    (list, deque): (_of(len), _items),
    functools.partial: (_of(_names_of), lambda it: [(".func", it.func), (".args", it.args), (".keywords", it.keywords)]),
    BaseException: (_of(_names_of), lambda it: [(".args", it.args)]),
}


def _of_tree(value: Any) -> _Content:
    storage = _storage_of(value)
    return id(storage), id(storage) + 1, tuple(name for name, _ in storage.iter_items())


def _leaves(value: Any) -> _Parts:
    return [(f".{name}", inner) for name, inner in _storage_of(value).iter_items()]


def _storage_of(value: Any) -> Any:
    """The storage of the leaves of a tree; a branch itself."""
    kind = type(value)
    return value if hasattr(kind, "iter_items") else kind._detach(value)


def _attributes_of(value: Any) -> dict[str, Any]:
    attributes = attribute_of(value, "__dict__")
    if not (type(attributes) is dict or isinstance(attributes, Mapping)):
        return {}
    return {name: inner for name, inner in list(attributes.items()) if name not in _OF_THE_ENGINE}


def slots_of(cls: type) -> tuple[str, ...]:
    """The names of what objects of a class hold in slots."""
    with_slots = [vars(one) for one in cls.__mro__ if "__slots__" in vars(one)]
    return tuple(dict.fromkeys(name for one in with_slots for name, it in one.items() if isinstance(it, MemberDescriptorType)))


def _shown(key: Any, index: int) -> str:
    is_short = is_scalar(key) or isinstance(key, _PLAIN) or (type(key) is tuple and all(map(is_scalar, key)))
    return repr(key) if is_short else f"{type(key).__name__} {index}"


def _state_of_numpy(value: Any) -> HashedBytes:
    """Of a random generator."""
    state = value.get_state(legacy=False) if hasattr(value, "get_state") else getattr(value, "bit_generator", value).state
    seeds = getattr(getattr(value, "bit_generator", value), "seed_seq", None)
    return HashedBytes(hash((repr(state), getattr(seeds, "n_children_spawned", 0))))


def _of_array(value: Any) -> _Content:
    """The memory of an array, and the hash of its content."""
    begin = value.__array_interface__["data"][0]
    if value.flags.c_contiguous:  # most of them
        end = begin + value.nbytes - value.itemsize
    else:
        begin, end = _span(begin, value.shape, value.strides)
    if value.dtype.hasobject:
        return begin if value.size else None, end + value.itemsize, value.shape
    small = value
    while small.nbytes > _MOST_BYTES and max(small.shape) > 1:
        small = small[_every_other(small.shape)]
    return (
        begin if value.size else None,
        end + value.itemsize,
        HashedBytes(hash((value.shape, value.dtype.num, small.tobytes()))),
    )


def _objects_in_array(value: Any) -> _Parts:
    some = value.reshape(-1)[:MOST_PARTS].tolist() if value.dtype.hasobject else ()
    return [(f".flat[{index}]", inner) for index, inner in enumerate(some)]


def _of_tensor(value: Any) -> _Content:
    """The memory of a tensor, and the hash of its content."""
    torch = sys.modules["torch"]
    if not _is_numbers_alone(value):
        return id(value), id(value) + 1, len(value.unbind()) if value.is_nested else tuple(value.shape)
    if value.is_cpu and value.dtype in _dtypes_of_numpy() and not (value.is_conj() or value.is_neg()):  # most of them
        return _of_array(value.detach().numpy())
    plain = value.detach()
    while plain.numel() * plain.element_size() > _MOST_BYTES and max(plain.shape) > 1:
        plain = plain[_every_other(plain.shape)]
    plain = plain.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if plain.numel() == 1:  # its stride, which means nothing, may be any
        plain = plain.as_strided((1,), (1,))
    size = value.element_size()
    begin, end = _span(value.data_ptr(), value.shape, [stride * size for stride in value.stride()])
    content = HashedBytes(hash((tuple(value.shape), value.dtype, plain.view(torch.uint8).numpy().tobytes())))
    return begin if value.numel() else None, end + size, content


@functools.cache
def _dtypes_of_numpy() -> frozenset[Any]:
    """The dtypes of torch that numpy has too."""
    torch = sys.modules["torch"]
    integers = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    return frozenset({*integers, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128})


def _is_numbers_alone(value: Any) -> bool:
    """Whether a tensor consists only of its numbers in memory."""
    return value.layout is sys.modules["torch"].strided and not (value.is_nested or value.is_quantized or value.is_meta)


def _tensors_in(value: Any) -> _Parts:
    """The parts of a tensor that is more than its numbers in memory."""
    if _is_numbers_alone(value) or value.is_meta:
        return []
    value, layout = value.detach(), str(value.layout)
    if value.is_nested:
        return [(f"[{index}]", inner) for index, inner in enumerate(value.unbind())]
    if value.is_quantized:
        return [(".int_repr()", value.int_repr())]
    if layout == "torch.sparse_coo":
        return [(".indices()", value._indices()), (".values()", value._values())]
    names = ("crow_indices", "col_indices") if layout in ("torch.sparse_csr", "torch.sparse_bsr") else ()
    names = ("ccol_indices", "row_indices") if layout in ("torch.sparse_csc", "torch.sparse_bsc") else names
    return [(f".{name}()", getattr(value, name)()) for name in (*names, *(("values",) if names else ()))]


def _names_in_module(value: Any) -> Any:
    """Of a torch module: also those of its parameters, buffers and modules."""
    return (*_names_of(value), *(tuple(names.keys()) for names in (value._parameters, value._buffers, value._modules)))


def _in_module(value: Any) -> _Parts:
    """What decides what a torch module computes: what it consists of, its mode, what is trained, its hooks, its attributes."""
    attributes = _attributes_of(value)
    found: _Parts = [(".training", HashedBytes(value.training))]
    for name, inner in (*list(value._parameters.items()), *list(value._buffers.items())):
        found.append((f".{name}", inner))
        if inner is not None:
            found.append((f".{name}.requires_grad", HashedBytes(inner.requires_grad)))
    for name, inner in list(value._modules.items()):
        found.append((f"[{name}]" if name.isdigit() else f".{name}", inner))
    for name, inner in attributes.items():
        if name.endswith("_hooks") and isinstance(inner, Mapping):
            found.append((f".{name}", HashedBytes(hash(tuple(map(_name_of, inner.values()))) if inner else 0)))
        elif name not in ("training", "_parameters", "_buffers", "_modules"):
            found.append((f".{name}", inner))
    return found


_INSIDE_DATA = (_nothing, _objects_in_array, _tensors_in, _leaves, _in_module)
"""What looks inside values that are data, beside `_DATA`."""


def _span(begin: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """The addresses of the first and the last element in memory."""
    steps = [(size - 1) * stride for size, stride in zip(shape, strides)]
    return begin + sum(step for step in steps if step < 0), begin + sum(step for step in steps if step > 0)


def bounds_of_memory(array: Any) -> tuple[int, int] | None:
    """The addresses where the memory of an array or tensor begins and ends; None if it is empty, or not in one memory."""
    if hasattr(array, "__array_interface__") and not hasattr(array, "untyped_storage"):
        if not array.size:
            return None
        begin, end = _span(array.__array_interface__["data"][0], array.shape, array.strides)
        return begin, end + array.itemsize
    if not _is_numbers_alone(array) or not array.numel():
        return None
    size = array.element_size()
    begin, end = _span(array.data_ptr(), array.shape, [stride * size for stride in array.stride()])
    return begin, end + size


def _every_other(shape: Sequence[int]) -> tuple[slice, ...]:
    longest = max(range(len(shape)), key=lambda axis: shape[axis])
    return tuple(slice(None, None, 2) if axis == longest else slice(None) for axis in range(len(shape)))
