"""Changes of environments between their steps: attributes that were set and methods that were called, recorded for replays."""

from __future__ import annotations

import abc
import copy
import inspect
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from ding_lite.basics import add_note, did_you_mean
from ding_lite.basics.messages import describe_error
from ding_lite.data.state_checks import state_error

Change = Mapping[str, Any]
"""{"set": name, "value": value} or {"call": name, "args": [...], "kwargs": {...}}, as plain data."""

_MANY = 1000  # calls of one environment, after which a warning says that they are kept
_OWN = {"step": "envs.step(actions)", "reset": "envs.reset()", "close": "envs.close()"}


class ChangeableEnvs(abc.ABC):
    """The methods `call`, `set_attr` and `get_attr`, as gymnasium's vector environments have them.

    Changes are recorded. A restarted worker process, and a resumed run, repeat them at the same step of the same episode.
    """

    num_envs: int
    _worker_thread: threading.Thread | None = None

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment; or read an attribute that is not a method. Returns a result per environment.

        The method is looked up in the wrappers, the outermost first, and then in the environment. It should depend only on its
        arguments and on earlier changes. Every call is kept, to repeat it in replays.

        Args:
            name: name of the method.
            *args, **kwargs: numbers, strings, booleans, None, arrays, and lists, tuples and dicts of these.

        Raises:
            AttributeError: an environment has no such method.
            TypeError: an argument is not plain data, or the attribute is not a method.
            ValueError: the method is `step`, `reset` or `close`.
            Exception: the error of the method, with a note that names the environment. The environments after it, in the
                same worker, are then not changed.
        """
        if name in _OWN:
            raise ValueError(f"envs.call({name!r}) would bypass the record of episodes: use {_OWN[name]}.")
        change = {
            "call": name,
            "args": [own_value(value, f"argument {place} of envs.call({name!r})") for place, value in enumerate(args)],
            "kwargs": {key: own_value(value, f"{key} of envs.call({name!r})") for key, value in kwargs.items()},
        }
        self._wait_for_worker()
        return self.apply_changes([change] * self.num_envs)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each environment, in the outermost wrapper that has it, or else in the environment.

        Args:
            name: name of an existing attribute.
            values: the value for all environments; or a list or tuple with one value per environment. A value is a number,
                string, boolean, None, an array, or a list, tuple or dict of these.

        Raises:
            AttributeError: an environment has no such attribute.
            TypeError: a value is not plain data.
            ValueError: the number of values is not the number of environments.
        """
        each = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(
                f"envs.set_attr({name!r}) got {len(each)} values for {self.num_envs} environments: pass one per environment. "
                f"If the value itself is a {type(values).__name__}, pass [value] * {self.num_envs}."
            )
        changes = [{"set": name, "value": own_value(value, f"the value of envs.set_attr({name!r})")} for value in each]
        self._wait_for_worker()
        self.apply_changes(changes)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment, looked up as by `call`.

        Raises:
            AttributeError: an environment has no such attribute.
            TypeError: it is a method.
        """
        self._wait_for_worker()
        return self.read_attribute(name)

    def set_worker_thread(self, thread: threading.Thread | None) -> None:
        """Let `call`, `set_attr` and `get_attr` of other threads wait for the end of this one, which uses the environments."""
        self._worker_thread = thread

    def _wait_for_worker(self) -> None:
        thread = self._worker_thread
        if thread is not None and thread is not threading.current_thread():  # a score of an evaluation may read them
            thread.join()
            if self._worker_thread is thread:
                self._worker_thread = None

    @abc.abstractmethod
    def apply_changes(self, changes: Sequence[Change]) -> tuple[Any, ...]:
        """Apply and record one change per environment. Returns their results."""

    @abc.abstractmethod
    def read_attribute(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment."""


class EnvChanges:
    """The record of the changes of one environment since it was made."""

    def __init__(self, before: Iterable[Change] = (), during: Iterable[tuple[int, Change]] = ()) -> None:
        self.before: tuple[Change, ...] = tuple(before)
        """Those before the reset of the current episode, as far as they still matter."""
        self.during: list[tuple[int, Change]] = list(during)
        """Those since that reset, each with the number of steps of the episode before it."""
        self._has_warned = False

    def __bool__(self) -> bool:
        return bool(self.before or self.during)

    def record(self, change: Change, taken: int | None, who: str) -> None:
        """Record a change.

        Args:
            change: the change.
            taken: number of steps of the current episode; None before the first episode.
            who: the environment, for a warning.
        """
        if taken is None:
            self.before = _compacted([*self.before, change])
        else:
            self.during.append((taken, {**change, "begun": True}))
        if "call" not in change or self._has_warned:
            return
        calls = sum("call" in one for one in (*self.before, *(one for _, one in self.during)))
        if calls >= _MANY:
            self._has_warned = True
            warnings.warn(
                f"{who} has had {calls} calls such as {change.get('call')!r}. All are kept, because a resumed run or a "
                "restarted worker repeats them. Of attributes that are set by envs.set_attr(), only the last value is kept.",
                stacklevel=6,
            )

    def begin(self) -> None:
        """An episode begins."""
        if self.during:
            self.before, self.during = _compacted([*self.before, *(change for _, change in self.during)]), []

    def repeat(self, env: Any, reset: Callable[..., Any]) -> None:
        """Apply the changes before the current episode to a new environment, with this method `reset`."""
        is_begun = False
        for change in self.before:
            # A method may need what a reset creates. Its seed does not matter, because the episode's own reset follows.
            if change.get("begun") and not is_begun and ("call" in change or not _has(env, change["set"])):
                reset(seed=0)
                is_begun = True
            repeat(env, change)

    def state_dict(self) -> dict[str, Any]:
        """The record as plain data."""
        return {"before": list(self.before), "during": [list(one) for one in self.during]}

    @classmethod
    def of(cls, state: Mapping[str, Any] | None) -> EnvChanges:
        """The record of a result of `state_dict`; empty for None."""
        return cls() if state is None else cls(state["before"], [(taken, change) for taken, change in state["during"]])


def own_value(value: Any, where: str) -> Any:
    """A copy of a value that a file can hold; scalars of numpy become Python numbers.

    Raises:
        TypeError: the value is not plain data.
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is np.ndarray and value.dtype.kind in "biufc":
        return value.copy()
    if type(value) in (list, tuple):
        return type(value)(own_value(inner, f"{where}[{place}]") for place, inner in enumerate(value))
    if type(value) is dict and all(type(key) in (str, int) for key in value):
        return {key: own_value(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    raise TypeError(
        f"{where} is {value!r:.60} of type {type(value).__name__}, which a saved run cannot hold: pass numbers, strings, "
        "booleans, None, arrays, or lists, tuples and dicts of these, and let a method of the environment make the object from "
        "them."
    )


def require_possible(env: Any, change: Change, index: int) -> None:
    """Raise an error if an environment lacks the attribute of a change.

    Raises:
        AttributeError: naming the environment and the attribute.
    """
    name = change.get("call") or change.get("set")
    if not _has(env, str(name)):
        raise AttributeError(_missing(env, str(name), index))


def apply(env: Any, change: Change, index: int) -> tuple[Any, Change | None]:
    """Apply a change. Returns the result, and the change to record; None if it only read an attribute.

    Raises:
        TypeError: a call with arguments of an attribute that is not a method.
        Exception: the error of the environment, with a note.
    """
    name = change.get("call")
    try:
        if name is None:
            name = change["set"]
            recorded = change if _is_plain(env, name) else {**change, "is_property": True}
            _set(env, name, copy.deepcopy(change["value"]))
            return None, recorded
        attribute = _get(env, name)
        if callable(attribute):
            result = attribute(*copy.deepcopy(change["args"]), **copy.deepcopy(change["kwargs"]))
            return result, None if name == "render" else change
    except Exception as error:
        done = f"by {name}()" if "call" in change else f"when {name!r} was set"
        add_note(error, f"raised {done} of environment {index} ({env})")
        raise
    if change["args"] or change["kwargs"]:
        raise TypeError(
            f"envs.call({name!r}, ...) got arguments, but {name!r} of environment {index} ({env}) is {attribute!r:.60}, not a "
            f"method: set it by envs.set_attr({name!r}, value)."
        )
    return attribute, None


def read(env: Any, name: str, index: int) -> Any:
    """An attribute of an environment.

    Raises:
        AttributeError: there is none.
        TypeError: it is a method.
    """
    if not _has(env, name):
        raise AttributeError(_missing(env, name, index))
    value = _get(env, name)
    if inspect.isroutine(value):
        raise TypeError(
            f"envs.get_attr({name!r}): {name!r} of environment {index} ({env}) is a method: use envs.call({name!r})."
        )
    return value


def repeat(env: Any, change: Change) -> None:
    """Apply a recorded change to an environment that replays an episode.

    Raises:
        ValueError: the environment refuses it.
    """
    try:
        if "call" in change:
            _get(env, change["call"])(*copy.deepcopy(change["args"]), **copy.deepcopy(change["kwargs"]))
        else:
            _set(env, change["set"], copy.deepcopy(change["value"]))
    except Exception as error:
        if change.get("raises"):
            return
        done = f"call({change['call']!r})" if "call" in change else f"set_attr({change['set']!r})"
        raise ValueError(
            f"envs.{done} of the saved run cannot be repeated in {env}: {describe_error(error)}. Use the same "
            "environment and wrappers."
        ) from error


def require_changes(state: Any, where: str, kind: str) -> None:
    """Raise an error if this is not a result of `EnvChanges.state_dict`.

    Raises:
        ValueError: naming the entry.
    """
    if not isinstance(state, Mapping) or not {"before", "during"} <= set(state):
        raise state_error(kind, where, state, "a dict of before and during")
    for place, change in enumerate(state["before"]):
        if not _is_change(change):
            raise state_error(kind, f"{where}['before'][{place}]", change, "a change by set_attr or call")
    for place, one in enumerate(state["during"]):
        if not (isinstance(one, (list, tuple)) and len(one) == 2 and isinstance(one[0], int) and _is_change(one[1])):
            raise state_error(kind, f"{where}['during'][{place}]", one, "a number of steps, and a change by set_attr or call")


def _is_change(change: Any) -> bool:
    if not isinstance(change, Mapping):
        return False
    is_set = isinstance(change.get("set"), str) and "value" in change
    return is_set or (isinstance(change.get("call"), str) and {"args", "kwargs"} <= set(change))


def _compacted(changes: Sequence[Change]) -> tuple[Change, ...]:
    """The same without values that are overwritten later, if only such values are set in between."""
    kept: list[Change] = []
    later: set[str] = set()
    for change in reversed(changes):
        if "call" in change or change.get("is_property"):  # may depend on what was set before
            later.clear()
        elif change["set"] in later:
            continue
        else:
            later.add(change["set"])
        kept.append(change)
    return tuple(reversed(kept))


def _is_plain(env: Any, name: str) -> bool:
    """Whether setting an attribute only stores the value, unlike that of a property."""
    descriptor = inspect.getattr_static(type(_holder(env, name)), name, None)
    return not hasattr(type(descriptor), "__set__")


def _has(env: Any, name: str) -> bool:
    if isinstance(env, gymnasium.Env):
        return bool(env.has_wrapper_attr(name))
    return hasattr(_holder(env, name), name)


def _get(env: Any, name: str) -> Any:
    if isinstance(env, gymnasium.Env):
        return env.get_wrapper_attr(name)
    return getattr(_holder(env, name), name)


def _set(env: Any, name: str, value: Any) -> None:
    """Set an existing attribute.

    Raises:
        AttributeError: there is none.
    """
    if isinstance(env, gymnasium.Env):
        if not env.set_wrapper_attr(name, value, force=False):
            raise AttributeError(f"{env} has no attribute {name!r}")
        return
    holder = _holder(env, name)
    if not hasattr(holder, name):
        raise AttributeError(f"{env} has no attribute {name!r}")
    setattr(holder, name, value)


def _holder(env: Any, name: str) -> Any:
    """The outermost wrapper that has an attribute of its own by this name, or else the environment."""
    # hasattr() is not enough, because wrappers of PettingZoo pass attributes of the environment on.
    layers = [*_layers(env)]
    own = (layer for layer in layers if name in getattr(layer, "__dict__", ()) or hasattr(type(layer), name))
    return next(own, layers[-1])


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers, the outermost one first, and the environment."""
    while env is not None:
        yield env
        env = getattr(env, "__dict__", {}).get("env")


def _missing(env: Any, name: str, index: int) -> str:
    known = {each for layer in _layers(env) for each in dir(layer) if not each.startswith("_")}
    return f"environment {index} ({env}) has no attribute {name!r}{did_you_mean(name, known)}"


ChangingEnvs = ChangeableEnvs  # its name in earlier versions
