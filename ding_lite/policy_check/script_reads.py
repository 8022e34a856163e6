"""Script reads: whether the script that makes a policy reads settings itself, for a network that it gives to the policy."""

from __future__ import annotations

import dis
import sys
from collections.abc import Collection, Iterator
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any

from ding_lite.basics.attribute_reads import instructions_of
from ding_lite.basics.closures import function_of, parts_of
from ding_lite.basics.computed_reads import reads_computed_names
from ding_lite.basics.origins import is_installed, is_of_ding_lite, is_of_script
from ding_lite.basics.reached_functions import reached_functions

_NOT_CONFIGS = ("self", "policy")  # whose attribute `model` is a network


def settings_read_by_script(policy: Any, section: str, names: Collection[str]) -> set[str]:
    """Those settings of a section that code of the script may read: functions that are running, those that they reach, and
    the class of the policy's model. All of them if the section goes elsewhere as a whole, or if names are computed.

    Args:
        policy: the policy that is being made.
        section: name of the section, such as "model".
        names: names of settings.
    """
    left_out = {function_of(vars(base).get("make_model")) for base in type(policy).__mro__}  # it is not called
    found: set[str] = set()
    seen: set[FunctionType] = set()
    for start in (type(policy.model), *_running_functions()):
        for fn in reached_functions(start):
            if fn in seen or fn in left_out or is_of_ding_lite(fn.__module__):
                continue
            seen.add(fn)
            if reads_computed_names(fn):
                return set(names)
            for part in parts_of(fn.__code__):
                found |= _read_in(part, section, names)
    return found


def _running_functions() -> Iterator[Any]:
    """The functions of the script that are running, with the values of their variables; of a module, also its functions."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code, names = frame.f_code, frame.f_globals
        if is_of_script(names.get("__name__")) and not is_installed(code.co_filename):  # such as a launcher, as __main__
            cells = tuple(CellType(frame.f_locals.get(name)) for name in code.co_freevars)
            yield FunctionType(code, names, code.co_name, None, cells)
            if code.co_name == "<module>":  # in a notebook, other cells have called them
                yield from [it for it in names.values() if getattr(it, "__module__", None) == names.get("__name__")]
        frame = frame.f_back


def _read_in(code: CodeType, section: str, names: Collection[str]) -> set[str]:
    """The settings that this code reads by name, without functions inside it."""
    found: set[str] = set()
    instructions = instructions_of(code)
    for place, now in enumerate(instructions):
        then = instructions[place + 1 : place + 3]
        if now.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if now.argval in names:
                found.add(now.argval)
            is_network = place > 0 and _variable_of(instructions[place - 1]) in _NOT_CONFIGS
            if now.argval == section and not is_network and not (then and then[0].opname in ("LOAD_ATTR", "STORE_ATTR")):
                return set(names)
        elif now.opname == "LOAD_CONST" and isinstance(now.argval, str):
            name = now.argval.rpartition(".")[2]
            if name in names and any(it.opname.startswith(("BINARY_SUBSCR", "BINARY_OP", "CALL")) for it in then):
                found.add(name)
    return found


def _variable_of(instruction: dis.Instruction) -> str | None:
    """The name of the variable that an instruction loads; None if it does something else."""
    name = instruction.argval[-1] if isinstance(instruction.argval, tuple) else instruction.argval
    is_variable = instruction.opname.startswith(("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF"))
    return str(name) if is_variable else None
