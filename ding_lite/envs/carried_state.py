"""Carried state: what environments carry from one episode to the next, found in their code and while they run.

A resumed run replays the current episode, and so does a worker process that is started again, so they do not have it.
"""

from __future__ import annotations

import dis
import functools
import inspect
import random
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from ding_lite.basics.attribute_reads import instructions_of, names_not_saved
from ding_lite.basics.closures import closure_of, names_in
from ding_lite.basics.origins import is_of_script, module_of
from ding_lite.basics.reached_functions import reached_functions
from ding_lite.basics.variables_in_code import accesses_of, global_draws
from ding_lite.engine.run_parts import has_state

INSTEAD = {
    "NormalizeReward": "scale collected rewards with reward_normalizer()",
    "NormalizeObservation": "normalise in the network, policy.model.normalize_obs = True",
}
"""Wrappers of gymnasium whose statistics a replay does not restore, and what to use instead."""
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
OF_GYMNASIUM = ("_np_random", "_np_random_seed")
"""Attributes that reset(seed=...) sets, in gymnasium.Env."""
_METHODS = ("step", "reset", "observation", "reward", "action")  # the last three of wrappers of gymnasium
_READS = ("LOAD_ATTR", "LOAD_METHOD")
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_SEEDING = ("seed", "manual_seed", "set_state", "setstate", "set_rng_state")


class CarriedState:
    """Watches the layers of an environment: their numbers and arrays after each reset, and their random generators.

    Only what the code of a class adds up, as in `self.count += 1`, and does not set in `reset`, is looked at; so an environment
    without such attributes costs nothing.

    Args:
        layers: the wrappers and the environment.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = [one for one in layers if is_of_script(type(one).__module__) and not has_state(one)]
        self._with_sums = [(one, names) for one in self._layers if (names := sums_of(_kind_of(one)))]
        self._statistics = [one for one in layers if _instead_of(one) is not None and not has_state(one)]
        self._first: dict[str, Any] | None = None
        self._last: dict[str, Any] = {}
        self._generators: dict[str, str] = {}
        self._resets = 0

    def note_reset(self) -> None:
        """Note the values after a reset. To be called after each."""
        self._resets += 1
        if self._resets == 1:
            self._generators = self._generator_states()
        if self._with_sums:
            self._last = self._sums()
            self._first = self._last if self._first is None else self._first

    def memories(self) -> Iterator[tuple[str, str]]:
        """What is carried from episode to episode: a name, and the words of a warning about it."""
        if self._resets < 2:
            return
        for layer in self._statistics:
            if getattr(layer, "update_running_mean", True):
                kind = _instead_of(layer)
                yield (
                    type(layer).__name__,
                    f"{type(layer).__name__} keeps statistics of all episodes, and only the current one is replayed in a "
                    "resumed run, and in a worker process that is started again, so these differ: remove it, and "
                    f"{INSTEAD[kind or '']}.",
                )
        first, last = self._first or {}, self._last
        changed = [name for name in last if name in first and not np.array_equal(first[name], last[name])]
        states = self._generator_states()
        changed += [name for name, state in self._generators.items() if states.get(name) != state]
        for name in changed:
            kind, _, attribute = name.partition(".")
            yield (
                name,
                f"{name} is carried from one episode to the next, and only the current episode is replayed in a resumed run, "
                f"and in a worker process that is started again, so it is lost there. Set it in reset(), or give {kind} "
                f"state_dict() and load_state_dict(state). If its steps do not depend on {attribute}, as on a counter for a "
                "log, leave it out there: state_dict() may "
                "return {}.",
            )
        for layer in self._layers:
            kind = type(layer).__name__
            for generator, call in draws_of(_kind_of(layer)):
                yield (
                    f"{kind}: {call}",
                    f"the steps or resets of {kind} draw from the global random generator of {generator}, with {call}, so a "
                    "replay of an episode differs, and a run cannot be resumed, nor a worker process started again. Draw from "
                    "self.np_random instead, which reset(seed=...) seeds.",
                )

    def _sums(self) -> dict[str, Any]:
        return {
            f"{type(layer).__name__}.{name}": value.copy() if isinstance(value, np.ndarray) else value
            for layer, names in self._with_sums
            for name, value in ((it, inspect.getattr_static(layer, it, None)) for it in names)
            if isinstance(value, (int, float, np.number, np.ndarray))
        }

    def _generator_states(self) -> dict[str, str]:
        return {
            f"{type(layer).__name__}.{name}": repr(_state_of(value))
            for layer in self._layers
            for name, value in vars(layer).items()
            if isinstance(value, _GENERATORS) and name not in (*OF_GYMNASIUM, *left_to_reset(_kind_of(layer)))
        }


def warn_of_carried(watched: Sequence[CarriedState], reported: set[str]) -> None:
    """Warn of what the environments carry from episode to episode; each is named once.

    Args:
        watched: one for each environment.
        reported: names of what was reported; they are added to it.
    """
    for one in watched:
        for name, words in one.memories():
            if name not in reported:
                reported.add(name)
                warnings.warn(words, stacklevel=3)


@functools.cache
def sums_of(kind: Any) -> frozenset[str]:
    """The attributes that methods of a class of the script add up, and that `reset` does not set."""
    found = {name for fn in _reached_in_steps(kind) for name in _added_up(fn)}  # what `envs.call` changes is repeated
    names = found - names_not_saved(kind)
    if not names:
        return frozenset()
    set_anew = {name for fn in _reached_by(kind, "reset") for name in (_stored(fn) - _added_up(fn)) | _set_first(fn)}
    return frozenset(names - set_anew)


@functools.cache
def left_to_reset(kind: Any) -> frozenset[str]:
    """The names in the code that `reset` of a class may call, and those that the class lists in `not_saved`."""
    return frozenset(name for fn in _reached_by(kind, "reset") for name in names_in(fn.__code__)) | names_not_saved(kind)


@functools.cache
def draws_of(kind: Any) -> tuple[tuple[str, str], ...]:
    """The global random generators from which `step` and `reset` of a class of the script draw, each with a call; those that
    its code seeds are left out."""
    found: dict[str, str] = {}
    seeded: set[str] = set()
    for fn in _reached_in_steps(kind):
        for generator, call in global_draws(fn, {**fn.__globals__, **dict(closure_of(fn))}):
            if call.rpartition(".")[2] in _SEEDING:
                seeded.add(generator)
            found.setdefault(generator, call)
    return tuple((generator, call) for generator, call in found.items() if generator not in seeded)


def _kind_of(layer: Any) -> Any:
    return type(layer)


def _reached_by(kind: Any, method: str) -> Iterator[FunctionType]:
    start = getattr(kind, method, None)
    return reached_functions(start, kind) if start is not None else iter(())


def _reached_in_steps(kind: Any) -> list[FunctionType]:
    """The functions of the script that steps and resets may call."""
    reached = {fn: None for method in _METHODS for fn in _reached_by(kind, method)}
    return [fn for fn in reached if is_of_script(module_of(fn)) and fn.__name__ != "__init__"]


def _stored(fn: FunctionType) -> set[str]:
    return {it.argval for it in instructions_of(fn.__code__) if it.opname == "STORE_ATTR"}


def _set_first(fn: FunctionType) -> set[str]:
    """The attributes that a function always sets before it reads them."""
    found, seen, skipped_until = set[str](), set[str](), 0
    for it in instructions_of(fn.__code__):
        if it.opname.startswith("RETURN") and it.opname != "RETURN_GENERATOR":
            return found  # what follows may be left out
        if it.opcode in _JUMPS:
            skipped_until = max(skipped_until, it.argval)
        elif it.opname == "STORE_ATTR" and it.argval not in seen and it.offset >= skipped_until:
            found.add(it.argval)
        if it.opname in (*_READS, "STORE_ATTR"):
            seen.add(it.argval)
    return found


def _added_up(fn: FunctionType) -> set[str]:
    """The attributes that one statement of a function reads and sets: `self.n += 1`, `self.best = max(self.best, reward)`.

    Those that a line sets together with others do not count: `change, self.last = reward - self.last, reward`.
    """
    found = {one.chain[-1] for one in accesses_of(fn.__code__) if one.is_set and one.is_read and one.chain}
    line, read, stored = 0, set[tuple[int, str]](), list[tuple[int, str]]()
    for it in instructions_of(fn.__code__):
        now = getattr(it, "line_number", it.starts_line)
        line = now if isinstance(now, int) and not isinstance(now, bool) else line
        if it.opname in _READS:
            read.add((line, it.argval))
        elif it.opname.startswith("STORE_"):
            stored.append((line, it.argval if it.opname == "STORE_ATTR" else ""))
    count = Counter(line for line, _ in stored)
    return found | {name for line, name in read.intersection(stored) if count[line] == 1}


def statistics_in(env: Any) -> list[str]:
    """Names of gymnasium's wrappers with running statistics, around a vector environment and around its first environment.

    Environments in worker processes are not looked at.
    """
    layers, layer = list[Any](), env
    while layer is not None:
        layers.append(layer)
        layer = _inside(layer)
    found = [_instead_of(layer) for layer in layers if getattr(layer, "update_running_mean", True)]
    return [name for name in dict.fromkeys(found) if name is not None]


def _inside(layer: Any) -> Any:
    """What a wrapper wraps, or the first environment of a vector environment; None if there is none, or it is elsewhere."""
    if isinstance(layer, (gymnasium.Wrapper, VectorWrapper)):
        return layer.env
    envs = getattr(layer, "envs", None) if isinstance(layer, VectorEnv) else None
    return envs[0] if isinstance(envs, (list, tuple)) and envs else None


def _instead_of(layer: Any) -> str | None:
    """The wrapper of gymnasium with statistics that a layer is, or is derived from."""
    names = [base.__name__ for base in type(layer).__mro__ if base.__module__.startswith("gymnasium.")]
    return next((name for name in names if name in INSTEAD), None)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    state: Mapping[str, Any] = (
        generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state(legacy=False)
    )
    return {name: _plain(inner) for name, inner in state.items()}


def _plain(inner: Any) -> Any:
    if isinstance(inner, Mapping):
        return {name: _plain(it) for name, it in inner.items()}
    return inner.tobytes() if isinstance(inner, np.ndarray) else inner
