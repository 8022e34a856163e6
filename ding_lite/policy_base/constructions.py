"""Constructions: the arguments with which a policy was made, so that its learners can make the same one."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from ding_lite.basics.global_random import global_random_states
from ding_lite.processes.pickles import dumps, loads


class Given(NamedTuple):
    """The arguments of a constructor as they were given, with another configuration, to send to another process."""

    pickled: bytes
    place: int | str
    """Position or name of the configuration."""

    cfg: Any
    """The other configuration."""

    settings: Mapping[str, Any]
    """By dotted name, the settings that differ, for a configuration that was given as a mapping."""

    randoms: Mapping[str, Any] | None
    """The states of the global random generators before the constructor; None if they are not known."""

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """New objects on each call, because a constructor may change them."""
        args, kwargs = loads(self.pickled)
        given = args[self.place] if isinstance(self.place, int) else kwargs[self.place]
        cfg = {**given, **self.settings} if isinstance(given, Mapping) else self.cfg
        if isinstance(self.place, int):
            return (*args[: self.place], cfg, *args[self.place + 1 :]), kwargs
        return args, {**kwargs, self.place: cfg}


class Construction:
    """The arguments of a policy's constructor. A copy of the policy has the same ones.

    If the policy has learners, they are pickled here, before the constructor can change them.

    Args:
        kind: the class of the policy.
        args, kwargs: the arguments.
    """

    def __init__(self, kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._kind, self._args, self._kwargs = kind, args, kwargs
        self._place: int | str | None = None  # of the configuration
        self._pickled: bytes | None = None
        self._randoms: dict[str, Any] | None = None
        if any(map(_names_learners, (*args, *kwargs.values(), kind.default_config()))):  # type: ignore[attr-defined]
            self._randoms = global_random_states()
            with contextlib.suppress(TypeError):  # `with_cfg` raises it
                self._pickled = self._dumped()

    def __deepcopy__(self, memo: dict[int, Any]) -> Construction:
        return self

    def note_cfg(self, cfg: Any) -> None:
        """Note which argument is the configuration."""
        self._place = next((place for place, it in self._places() if it is cfg), None)

    def with_cfg(self, cfg: Any, settings: Mapping[str, Any]) -> Given:
        """The arguments as they were given, with another configuration.

        Args:
            cfg: the configuration.
            settings: by dotted name, the settings that differ, for a configuration that was given as a mapping.

        Raises:
            LookupError: no argument is the configuration.
            TypeError: an argument cannot be pickled.
        """
        if self._place is None:
            raise LookupError("no argument is the configuration")
        return Given(self._pickled or self._dumped(), self._place, cfg, settings, self._randoms)

    def _places(self) -> list[tuple[int | str, Any]]:
        return [*enumerate(self._args), *self._kwargs.items()]

    def _dumped(self) -> bytes:
        try:
            return dumps((self._args, self._kwargs), by_value=True)
        except Exception as error:
            place = next((place for place, it in self._places() if not _can_be_pickled(it)), "")
            raise TypeError(
                f"{self._kind.__name__} has learners, which are made with the same arguments, and argument {place!r} of its "
                f"constructor cannot be sent to them: {error}. Make this object in the constructor, or learn in the process of "
                "the script: policy.learners.num_learners=0."
            ) from error


def _names_learners(argument: Any) -> bool:
    """Whether an argument may be a configuration with learners."""
    if isinstance(argument, Mapping):
        settings = [*argument.items(), *(argument["policy"].items() if isinstance(argument.get("policy"), Mapping) else ())]
        return any("learners" in str(name) and bool(value) for name, value in settings)
    return bool(getattr(getattr(argument, "learners", None), "num_learners", 0))


def _can_be_pickled(value: Any) -> bool:
    try:
        dumps(value, by_value=True)
    except Exception:  # noqa: BLE001 (pickling runs code of the object)
        return False
    return True


class ConstructorSignature:
    """The attribute `__signature__` of a class with a `__new__` for any arguments: those of its `__init__`, as help() shows.

    Constructors of mixins that hooks call are skipped, see `set_up_by_hooks`.
    """

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        constructors = (vars(kind)["__init__"] for kind in owner.__mro__ if "__init__" in vars(kind))
        signature = inspect.signature(next(init for init in constructors if not getattr(init, "is_called_by_hooks", False)))
        return signature.replace(parameters=list(signature.parameters.values())[1:])
