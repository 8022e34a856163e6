"""Variables in code: those from outside that a function reads and sets, and the global random generators that it draws from."""

from __future__ import annotations

import dis
import functools
import itertools
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from ding_lite.basics.attribute_reads import instructions_of
from ding_lite.basics.closures import parts_of
from ding_lite.basics.optional_attributes import attribute_of, has_attribute

GLOBAL, CLOSURE, FIRST = "global", "closure", "first"
"""Where a variable is: in the module, in a function around the code, or the first argument, such as `self`."""
_LOADS = {
    **dict.fromkeys(("LOAD_GLOBAL", "LOAD_NAME"), GLOBAL),
    **dict.fromkeys(("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"), CLOSURE),
    **dict.fromkeys(("LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"), FIRST),
}
_STORES = {
    **dict.fromkeys(("STORE_GLOBAL", "DELETE_GLOBAL"), GLOBAL),
    **dict.fromkeys(("STORE_DEREF", "DELETE_DEREF"), CLOSURE),
}
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_COPIES = ("COPY", "DUP_TOP")
_SETS = ("STORE_ATTR", "DELETE_ATTR")
_CALLS = ("CALL", "CALL_FUNCTION", "CALL_METHOD", "CALL_KW", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX")
_MOST_INSTRUCTIONS = 200  # between a function and its call
_OF_TORCH = frozenset(
    {
        *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
        *("normal", "bernoulli", "multinomial", "poisson", "manual_seed", "seed"),
    }
)
_IN_PLACE = frozenset({"bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_"})
"""Methods of tensors, and functions of torch.nn.init, that draw from torch's global generator."""
_LAYERS = frozenset(
    {
        *("Linear", "Bilinear", "Embedding", "EmbeddingBag", "MultiheadAttention", "Transformer", "TransformerDecoderLayer"),
        *("TransformerEncoderLayer", "RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell", "Conv1d", "Conv2d", "Conv3d"),
        *("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
    }
)
"""Classes of torch.nn whose constructors draw the first weights from torch's global generator."""
_SAMPLES = ("sample", "rsample")
_OF_STATE = frozenset({"seed", "set_state"})
"""Functions of numpy.random that change its global generator, and are no methods of it."""


class Access(NamedTuple):
    """One place in code that reads or sets a variable, or an attribute of it."""

    place: str
    """GLOBAL, CLOSURE or FIRST."""
    name: str
    chain: tuple[str, ...]
    """The attributes, one of the other: ("stats", "count") for `config.stats.count`."""
    is_set: bool
    """Whether it is set or deleted there; of an attribute, the last one of the chain."""
    is_read: bool
    is_first_set: bool = False
    """Whether it is only set where it was None before: a value that is made when it is first needed."""
    draws: bool = True
    """Whether it is called without a generator, if it is called: `torch.rand(3)`."""


@functools.lru_cache(maxsize=16_384)  # each run of a pipeline asks the same
def accesses_of(code: CodeType) -> tuple[Access, ...]:
    """Each place in a function, and in those inside it, that uses a variable from outside, or its first argument."""
    places = dict.fromkeys(code.co_freevars, CLOSURE)
    if code.co_argcount:
        places[code.co_varnames[0]] = FIRST
    return tuple(dict.fromkeys(_accesses_in(code, places)))


def _accesses_in(code: CodeType, places: Mapping[str, str]) -> Iterator[Access]:
    """
    Args:
        code: of the function.
        places: where each variable of functions around it is, and its first argument.
    """
    found = instructions_of(code)
    for index, now in enumerate(found):
        where = _LOADS.get(now.opname) or _STORES.get(now.opname)
        if where != GLOBAL:
            where = None if where is None else places.get(now.argval)
        if where is None:
            continue
        if now.opname in _STORES:
            yield Access(where, now.argval, (), is_set=True, is_read=False, is_first_set=_is_first(found, index))
        else:
            yield from _loaded(found, index, where, code.co_consts)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _accesses_in(inner, {name: places[name] for name in inner.co_freevars if name in places})


def _loaded(code: Sequence[dis.Instruction], index: int, place: str, constants: Sequence[Any]) -> Iterator[Access]:
    """What happens to the variable that the instruction at this index loads."""
    name, start, end = code[index].argval, tuple[str, ...](), index + 1
    before = code[index - 1] if index else None
    if before is not None and before.opname == "LOAD_GLOBAL":
        if before.argval == "type" and end < len(code) and code[end].opname in ("CALL", "CALL_FUNCTION") and code[end].arg == 1:
            start, end = ("__class__",), end + 1
        elif before.argval in ("setattr", "delattr", "getattr") and end < len(code) and isinstance(code[end].argval, str):
            is_set = before.argval != "getattr"
            yield Access(place, name, (code[end].argval,), is_set=is_set, is_read=not is_set)
            return
    begin = end
    while end < len(code) and code[end].opname in _ATTRIBUTE:
        end += 1
    chain = (*start, *(str(it.argval) for it in code[begin:end]))
    following = code[end : end + 2]
    if following and following[0].opname in _SETS:
        yield Access(place, name, (*chain, str(following[0].argval)), is_set=True, is_read=False)
    elif len(following) == 2 and following[0].opname in _COPIES and following[1].opname in _ATTRIBUTE:  # x.count += 1
        yield Access(place, name, (*chain, str(following[1].argval)), is_set=True, is_read=True)
    else:
        yield Access(place, name, chain, is_set=False, is_read=True, draws=not _has_generator(code, end, constants))


def _is_first(code: Sequence[dis.Instruction], index: int) -> bool:
    """Whether the instruction at this index sets a variable for the first time, because code before it asks if it is None."""
    now = code[index]
    if sum(it.opname == now.opname and it.argval == now.argval for it in code) > 1:
        return False
    for at, (load, jump) in enumerate(itertools.pairwise(code[:index])):
        if load.opname not in _LOADS or load.argval != now.argval or "JUMP" not in jump.opname:
            continue
        target = jump.argval
        if jump.opname.endswith("NOT_NONE"):
            return bool(target > now.offset)
        if jump.opname.endswith("NONE") and target <= now.offset:  # if it is not None: return it
            last = [it for it in code[at:index] if it.offset < target][-1]
            return last.opname.startswith("RETURN")
    return False


def _end_of_call(code: Sequence[dis.Instruction], index: int, or_argument: bool = False) -> int | None:
    """The index after the call of the function that was just loaded; None if it is not called, or if this is unknown.

    Args:
        code: all instructions.
        index: that of the instruction after the function.
        or_argument: whether a call counts of which it is an argument.
    """
    above = 0  # values on the stack above the function
    for at in range(index, min(index + _MOST_INSTRUCTIONS, len(code))):
        now, count = code[at], code[at].arg or 0
        if now.opname in _CALLS:
            has_dict = now.opname == "CALL_FUNCTION_EX" and bool(count & 1)
            taken = 1 + has_dict if now.opname == "CALL_FUNCTION_EX" else count + now.opname.endswith("_KW")
            if above <= taken:
                return at + 1 if or_argument or above == taken else None
            above -= taken
        elif now.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            above += 1
        elif now.opname == "JUMP_FORWARD":  # the other value of a conditional expression follows
            above -= 1
        elif now.opname not in (*_ATTRIBUTE, "KW_NAMES"):
            above += dis.stack_effect(now.opcode, now.arg, jump=False)
        if above < 0:
            break
    return None


def _has_generator(code: Sequence[dis.Instruction], index: int, constants: Sequence[Any]) -> bool:
    """Whether the function that was just loaded is called with an argument `generator`, or with a dict of arguments."""
    end = _end_of_call(code, index, or_argument=True)
    if end is None:
        return False
    call, last = code[end - 1], code[end - 2]
    names = constants[last.arg or 0] if last.opname in ("KW_NAMES", "LOAD_CONST") else None
    has_dict = call.opname == "CALL_FUNCTION_EX" and bool((call.arg or 0) & 1)
    return has_dict or (isinstance(names, tuple) and "generator" in names)


def global_draws(fn: FunctionType, variables: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The global random generators that the code of a function names to draw from, "numpy.random", "random" or "torch", each
    with the call, such as "np.random.rand". Of torch, these are functions, methods that change tensors in place, such as
    `x.normal_()`, new layers of networks, and samples of distributions; not layers that draw when they are called, such as
    dropout.

    Args:
        fn: the function.
        variables: the values of its variables by name.

    Example:
        >>> import numpy as np
        >>> def fn():
        ...     return np.random.rand(3), np.random.default_rng(0).random()
        >>> list(global_draws(fn, {"np": np}))
        [('numpy.random', 'np.random.rand')]
    """
    for one in accesses_of(fn.__code__):
        if not one.is_read or not one.draws:
            continue
        value = None if one.place == FIRST else variables.get(one.name)
        owner, depth = value, 0
        while isinstance(owner, ModuleType) and depth < len(one.chain):
            value, owner, depth = owner, getattr(owner, one.chain[depth], None), depth + 1
        generator = _generator_of(owner)
        if generator is None and one.chain and one.chain[-1] in _IN_PLACE and not isinstance(owner, FunctionType):
            generator = "torch" if one.place != FIRST and has_attribute(owner, "untyped_storage") else None
        if generator is not None:
            yield generator, ".".join((one.name, *one.chain[: max(depth, 1)]))
    if "torch" in sys.modules:
        yield from (("torch", call) for call in _torch_draws(fn, variables))


def _torch_draws(fn: FunctionType, variables: Mapping[str, Any]) -> Iterator[str]:
    """The calls of a function that draw from torch's global generator, and are no functions of torch: new layers, samples of
    distributions, and methods that change tensors in place."""
    for code in parts_of(fn.__code__):
        found = instructions_of(code)
        for index, now in enumerate(found):
            if now.opname in _ATTRIBUTE and now.argval in _IN_PLACE and not _has_generator(found, index + 1, code.co_consts):
                if not _is_of_module(found, index, variables):
                    yield str(now.argval)
            elif _LOADS.get(now.opname) in (GLOBAL, CLOSURE):
                end, value = _followed(found, index, variables)
                name = attribute_of(value, "__name__", "") if isinstance(value, type) else ""
                module = attribute_of(value, "__module__", "") if name else ""
                if name in _LAYERS and module.startswith("torch.nn.modules.") and _end_of_call(found, end) is not None:
                    yield name
                elif module.startswith("torch.distributions.") and _is_sampled(found, end):
                    yield f"{name}.sample"


def _followed(code: Sequence[dis.Instruction], index: int, variables: Mapping[str, Any]) -> tuple[int, Any]:
    """The index after the variable that is loaded at this index and its attributes, and the value; of modules' attributes only,
    otherwise None."""
    value, end = variables.get(code[index].argval), index + 1
    while isinstance(value, ModuleType) and end < len(code) and code[end].opname in _ATTRIBUTE:
        value, end = getattr(value, code[end].argval, None), end + 1
    return end, value


def _is_of_module(code: Sequence[dis.Instruction], index: int, variables: Mapping[str, Any]) -> bool:
    """Whether the attribute at this index is one of a module, such as a function with this name."""
    begin = index - 1
    while begin > 0 and code[begin].opname in _ATTRIBUTE:
        begin -= 1
    if begin < 0 or _LOADS.get(code[begin].opname) not in (GLOBAL, CLOSURE):
        return False
    return _followed(code, begin, variables)[0] > index


def _is_sampled(code: Sequence[dis.Instruction], index: int) -> bool:
    """Whether `sample` is called of what the class returns that was just loaded: at once, or through a variable."""
    end = _end_of_call(code, index)
    following = code[end] if end is not None and end < len(code) else None
    if following is None or following.opname in _ATTRIBUTE:
        return following is not None and following.argval in _SAMPLES
    name = following.argval if following.opname.startswith("STORE_") else None
    pairs = itertools.pairwise(code)
    return any(it.argval == name and after.opname in _ATTRIBUTE and after.argval in _SAMPLES for it, after in pairs if name)


def _generator_of(function: Any) -> str | None:
    """The global generator that a function draws from, or None."""
    owner, module, name = (attribute_of(function, it) for it in ("__self__", "__module__", "__name__"))
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if owner is not None and owner is getattr(random, "_inst", None):
        return None if name == "getstate" else "random"
    if numpy is not None and hasattr(numpy, "random"):
        if owner is not None and owner is numpy.random.mtrand._rand:
            return None if name == "get_state" else "numpy.random"
        if name in _OF_STATE and function is getattr(numpy.random, name, None):
            return "numpy.random"
    if torch is None or name is None:
        return None
    if (name in _OF_TORCH and function is getattr(torch, name, None)) or (name in _IN_PLACE and module == "torch.nn.init"):
        return "torch"
    return None
